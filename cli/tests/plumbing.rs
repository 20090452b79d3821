//! The plumbing of `limen run`, with a shell script in QEMU's place.
//!
//! The script finds its wires in QEMU's options, opens them as `$control`, `$stdio`, `$stderr` and
//! `$klog`, and then does what the kernel parameters say: each test writes its guest in shell.
//! What only a kernel can show (a real boot, a real terminal) is tested elsewhere.

use std::io::{Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

const FAKE_QEMU: &str = r#"#!/bin/bash
for word; do
    case $word in
    # Is the device of virtio-fs there?
    vhost-user-fs-*,help) [ -e "${0%/*}/lacks-virtiofs" ]; exit $((! $?)) ;;
    socket,id=*,fd=*)
        name=${word#socket,id=}; name=${name%%,*}
        eval "$name=${word##*fd=}" ;;
    esac
    [ "${before-}" = -append ] && guest=$word
    before=$word
done
say() { echo "$@" >&$control; }
eval "$guest"
exit 1
"#;

/// An ELF image with nothing but the note by which QEMU knows a kernel's entry.
fn kernel() -> Vec<u8> {
    const HEADER: u64 = 64;
    const SEGMENT: u64 = 56;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let mut put = |bytes: &[u8]| elf.extend_from_slice(bytes);
    // e_type, e_machine, e_version; e_entry, e_phoff, e_shoff; e_flags; sizes and counts.
    [2_u16, 62, 1, 0].iter().for_each(|half| put(&half.to_le_bytes()));
    [0, HEADER, 0].iter().for_each(|word: &u64| put(&word.to_le_bytes()));
    [0_u16, 0, 64, 56, 1, 0, 0, 0].iter().for_each(|half| put(&half.to_le_bytes()));
    // p_type PT_NOTE, p_flags; p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
    [4_u32, 4].iter().for_each(|word| put(&word.to_le_bytes()));
    [HEADER + SEGMENT, 0, 0, 24, 24, 4].iter().for_each(|word: &u64| put(&word.to_le_bytes()));
    // n_namesz, n_descsz, n_type; the name; the entry.
    [4_u32, 8, 18].iter().for_each(|word| put(&word.to_le_bytes()));
    put(b"Xen\0");
    put(&0x10_0000_u64.to_le_bytes());
    elf
}

struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let program = dir.path().join("qemu");
        std::fs::write(&program, FAKE_QEMU).expect("script");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("mode");
        std::fs::write(dir.path().join("kernel"), kernel()).expect("kernel");
        Self(dir)
    }

    /// `limen run` with this guest.
    fn command(&self, guest: &str, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limen"));
        command
            .env("LIMEN_QEMU", self.0.path().join("qemu"))
            .env("XDG_CACHE_HOME", self.0.path())
            .args(["run", "--accel", "tcg", "--kernel"])
            .arg(self.0.path().join("kernel"))
            .args(options)
            .args(["--append", guest, "--", "/bin/true"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, guest: &str, options: &[&str]) -> Output {
        self.command(guest, options).output().expect("runs")
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Reads up to and with this line; the result is all of it.
fn await_line(out: &mut impl Read, line: &str) -> String {
    let (mut seen, mut byte) = (String::new(), [0]);
    while !seen.ends_with(line) {
        assert_eq!(out.read(&mut byte).expect("readable"), 1, "ended after {seen}");
        seen.push(byte[0] as char);
    }
    seen
}

#[test]
fn streams_are_separate_and_status_passes() {
    let guest = "say boot-ns 5; echo out >&$stdio; echo err >&$stderr; say exit 7";
    let output = Fake::new().run(guest, &[]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
}

#[test]
fn other_ends() {
    let fake = Fake::new();
    for (guest, status, text) in [
        ("say boot-ns 1; say signaled 11", 139, ""),
        ("say not-found /x", 127, "/x: not found"),
        ("say not-executable 8 /x", 126, "Exec format"),
        ("echo boom >&2; echo hello >&$klog", 126, "boom"),
        ("echo 'limen: panic: oh' >&$klog; echo '  #0 0x10' >&$klog", 125, "limen: panic: oh"),
        ("say boot-ns 1; say exit 0; echo 'limen: panic: late' >&$klog", 125, "late"),
    ] {
        let output = fake.run(guest, &[]);
        assert_eq!(output.status.code(), Some(status), "{guest}: {}", err(&output));
        assert!(err(&output).contains(text), "{guest}: {}", err(&output));
    }
}

#[test]
fn time_limits_before_and_after_boot() {
    let fake = Fake::new();
    let wait = "read -r _ <&$control";
    let output = fake.run(wait, &["--timeout", "300ms"]);
    // The first line is stdin's end; without a second one the guest waits.
    assert_eq!(output.status.code(), Some(126), "{}", err(&output));
    let wait = "say boot-ns 1; while read -r _ <&$control; do :; done";
    let output = fake.run(wait, &["--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(124), "{}", err(&output));
}

#[test]
fn all_bytes_pass_both_ways_and_the_end_is_told() {
    const LEN: usize = 64 << 20;
    let fake = Fake::new();
    let guest = format!(
        "say boot-ns 1; head -c {LEN} <&$stdio >&$stdio; read -r line <&$control; \
         echo \"$line\" >&$stderr; say exit 0"
    );
    let mut child = fake.command(&guest, &[]).stdin(Stdio::piped()).spawn().expect("runs");
    let mut input = child.stdin.take().expect("piped");
    let data: Vec<u8> =
        (0..LEN as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let output = std::thread::scope(|scope| {
        let data = &data;
        scope.spawn(move || input.write_all(data).expect("taken"));
        child.wait_with_output().expect("ends")
    });
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(output.stdout == data);
    assert_eq!(err(&output), format!("stdin-eof {LEN}\n"));
}

#[test]
fn closed_stdout_is_told() {
    let fake = Fake::new();
    let guest = "say boot-ns 1; echo ready >&$stdio; read -r eof <&$control; \
                 while ! read -r -t 0.01 line <&$control; do echo more >&$stdio; done; \
                 echo \"$line\" >&$stderr; say exit 0";
    let mut child = fake.command(guest, &[]).spawn().expect("runs");
    await_line(child.stdout.as_mut().expect("piped"), "ready\n");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(err(&output), "output-closed 1\n");
}

/// A QEMU without virtio-fs is asked once; the root goes by 9P, which is told the first time.
#[test]
fn without_virtiofs_the_root_goes_by_9p() {
    let fake = Fake::new();
    std::fs::write(fake.0.path().join("lacks-virtiofs"), "").expect("written");
    let guest = "case \"$*\" in *virtio-9p*) echo by 9P >&$stdio ;; esac; \
                 echo ${share-none} >&$stdio; say exit 0";
    for (options, says) in
        [(&[][..], true), (&[], false), (&["-v"], true), (&["--share", "9p"], false)]
    {
        let output = fake.run(guest, options);
        assert_eq!(output.stdout, b"by 9P\nnone\n", "{options:?}: {}", err(&output));
        let said = err(&output).contains("no virtio-fs device): the live root goes by 9P");
        assert_eq!(said, says, "{options:?}: {}", err(&output));
    }
}

/// A server of the root that has ended ends the run, with a reason and a way out; QEMU does not
/// hang on.
#[test]
fn the_end_of_the_roots_server_is_told() {
    let fake = Fake::new();
    for (guest, says) in [
        // No message of vhost-user begins so.
        ("printf '%64s' x >&$share; exec sleep 1000", "do not understand each other"),
        ("eval \"exec $share>&-\"; exec sleep 1000", "has closed its connection"),
    ] {
        let output = fake.run(&format!("say boot-ns 1; {guest}"), &[]);
        assert_eq!(output.status.code(), Some(125), "{guest}: {}", err(&output));
        let said = err(&output);
        assert!(said.contains(says) && said.contains("--share 9p"), "{guest}: {said}");
    }
    // Who has said its last is not waited for.
    let output = fake.run("say boot-ns 1; say exit 3; eval \"exec $share>&-\"; sleep 3", &[]);
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
}

#[test]
fn first_signal_is_forwarded_second_kills() {
    let fake = Fake::new();
    let guest = "say boot-ns 1; say log ready; read -r eof <&$control; \
                 read -r line <&$control; echo \"$line\" >&$stdio; while :; do sleep 1; done";
    let mut child = fake.command(guest, &[]).spawn().expect("runs");
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a pid");
    let term = || rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("sent");
    // On the same wire as boot-ns: both have been read when this line appears.
    await_line(child.stderr.as_mut().expect("piped"), "limen: ready\n");
    term();
    await_line(child.stdout.as_mut().expect("piped"), "signal 15\n");
    term();
    assert_eq!(child.wait().expect("ends").code(), Some(143));
}

#[test]
fn json_reports_what_the_guest_said() {
    let guest = "say boot-ns 2000000; say counter peak-memory-bytes 4096; \
                 say missing-syscall 334 rseq 2; say missing-file '/a\\x0a'; say exit 3";
    let fake = Fake::new();
    let output = fake.run(guest, &["--json", "--missing-syscalls", "--missing-files"]);
    let text = err(&output);
    assert!(text.contains("rseq (334)"), "{text}");
    let last = text.lines().last().expect("a line");
    let json: serde_json::Value = serde_json::from_str(last).expect("one object");
    assert_eq!(json["exit_code"], 3);
    assert_eq!(json["boot_ms"], 2.0);
    assert_eq!(json["peak_memory_bytes"], 4096);
    assert_eq!(json["missing_syscalls"][0]["name"], "rseq");
    assert_eq!(json["missing_files"][0], "/a\n");
    let file = fake.0.path().join("report.json");
    let output = fake.run(guest, &[&format!("--json={}", file.display())]);
    assert_eq!(err(&output), "");
    assert!(std::fs::read_to_string(file).expect("written").contains("\"exit_code\":3"));
}

#[test]
fn qemu_dies_with_its_parent() {
    let fake = Fake::new();
    let guest = "say boot-ns 1; echo pid $$ >&$stdio; echo ready >&$stdio; exec sleep 1000";
    let mut child = fake.command(guest, &[]).spawn().expect("runs");
    let said = await_line(child.stdout.as_mut().expect("piped"), "ready\n");
    let pid = said.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a pid");
    let qemu = rustix::process::Pid::from_raw(pid).expect("a pid");
    let handle = rustix::process::pidfd_open(qemu, rustix::process::PidfdFlags::empty());
    let handle = handle.expect("it runs");
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let mut fds = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "QEMU still runs");
}
