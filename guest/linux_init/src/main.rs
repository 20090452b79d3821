//! The first process of a Linux beside which `limen compare` puts Limen: starts the program that
//! the configuration in the initramfs names, and says what it took, as Limen's kernel does.
//!
//! Why it is hard: both kernels must be measured from the program's first instruction to its end.
//! So the program is traced until its execve(2) is done, where it stops; there the time is taken,
//! and it runs on without a tracer. Its standard output goes to a file in memory (Linux's console
//! would cost an exit a byte), and is copied to the serial port afterwards, escaped, between lines
//! `NAME VALUE` of the form that `limen compare` reads.
//!
//! Neighbours: `cli/src/compare` writes the image and reads the serial port; `formats` has the
//! configuration.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::chroot;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use formats::boot_config::{BootConfig, RootKind};
use formats::ports::{CONFIG_PATH, ROOT_TAG};

/// Where the program's output goes.
const OUTPUT: &str = "/run/limen-output";
/// Where the host's tree is until it is the root.
const LIVE_ROOT: &str = "/live";
/// What the kernel tells about itself, and where.
const KERNELS: [(&str, &str); 3] = [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")];
/// What is on the serial port before everything of ours, so that it is told from the kernel's.
const MARK: &str = "limen-linux";

fn main() {
    if let Err(error) = run() {
        say(&format!("failed {error}"));
    }
    // SAFETY: reboot(2) takes no pointer; this process is the machine's first, and all it had to
    // say is on the serial port, which sync(2) has nothing to do with.
    unsafe { libc::reboot(libc::RB_AUTOBOOT) };
}

/// One line on the console.
fn say(text: &str) {
    let line = format!("\n{MARK} {text}\n");
    // There is nobody else to tell.
    let _ = File::options()
        .write(true)
        .open("/dev/console")
        .map(|mut to| to.write_all(line.as_bytes()));
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    for (kind, place) in KERNELS {
        mount(kind, kind, place)?;
    }
    let bytes = fs::read(format!("/{CONFIG_PATH}"))?;
    let config = BootConfig::decode(&bytes).map_err(|error| error.to_string())?;
    fs::create_dir_all("/run")?;
    let mut output = File::options().read(true).write(true).create_new(true).open(OUTPUT)?;
    if config.root == RootKind::Live {
        enter_live_root()?;
    }
    let argv: Vec<&OsStr> = config.argv.iter().map(|word| OsStr::from_bytes(word)).collect();
    let mut command = Command::new(OsStr::from_bytes(&config.program));
    command.arg0(argv.first().copied().unwrap_or_default()).args(argv.iter().skip(1));
    command.env_clear().current_dir(OsStr::from_bytes(&config.cwd));
    for entry in &config.env {
        if let Some(at) = entry.iter().position(|&byte| byte == b'=') {
            command.env(OsStr::from_bytes(&entry[..at]), OsStr::from_bytes(&entry[at + 1..]));
        }
    }
    command
        .stdin(File::open("/dev/null")?)
        .stdout(output.try_clone()?)
        .stderr(File::create("/dev/console")?);
    // SAFETY: between fork and exec only ptrace(2) is called, which is a system call alone and
    // takes no pointer here.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let pid = command.spawn()?.id() as i32;
    // It stops with SIGTRAP as its first instruction is next.
    wait(pid)?;
    let before = interrupts();
    // SAFETY: PTRACE_DETACH takes no pointer; `pid` is our child, in its stop.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    let (started, started_ns) = (ticks(), now_ns());
    let status = wait(pid)?;
    let (ended, ended_ns) = (ticks(), now_ns());
    say(&format!("ticks {}", ended.wrapping_sub(started)));
    say(&format!("ns {}", ended_ns - started_ns));
    counters(&before);
    match libc::WIFSIGNALED(status) {
        true => say(&format!("signaled {}", libc::WTERMSIG(status))),
        false => say(&format!("exit {}", libc::WEXITSTATUS(status))),
    }
    let mut bytes = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut bytes)?;
    let output = bytes;
    say(&format!("output {}", output.escape_ascii()));
    say("end");
    // What was written has left the machine when this returns.
    // SAFETY: tcdrain(3) takes a descriptor that is open until the end of this statement.
    unsafe { libc::tcdrain(File::options().write(true).open("/dev/console")?.as_raw_fd()) };
    Ok(())
}

/// Makes the host's tree, which comes by virtio-fs, this process's root.
fn enter_live_root() -> Result<(), Box<dyn std::error::Error>> {
    mount("virtiofs", ROOT_TAG, LIVE_ROOT)?;
    // No /tmp of its own: what is measured may lie in the host's.
    for (kind, place) in KERNELS {
        mount(kind, kind, &format!("{LIVE_ROOT}{place}"))?;
    }
    chroot(LIVE_ROOT)?;
    Ok(std::env::set_current_dir("/")?)
}

fn mount(kind: &str, source: &str, place: &str) -> Result<(), Box<dyn std::error::Error>> {
    fs::create_dir_all(place)?;
    let (kind, source) = (CString::new(kind)?, CString::new(source)?);
    let place = CString::new(place)?;
    // SAFETY: all pointers are to strings with their NUL that outlive the call; no data is given.
    let done =
        unsafe { libc::mount(source.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    // The kernel may have mounted /dev itself.
    let error = std::io::Error::last_os_error();
    if done == 0 || error.raw_os_error() == Some(libc::EBUSY) { Ok(()) } else { Err(error.into()) }
}

fn wait(pid: i32) -> Result<i32, std::io::Error> {
    let mut status = 0;
    // SAFETY: `status` is a place for the call's result that outlives it.
    match unsafe { libc::waitpid(pid, &raw mut status, 0) } {
        got if got == pid => Ok(status),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The time-stamp counter, which counts instructions where the machine is measured.
fn ticks() -> u64 {
    // SAFETY: RDTSC needs nothing but a CPU that has it, as all of this architecture have.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place for the call's result that outlives it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What Linux has counted, for the rows that it shares with Limen.
fn counters(before: &[(&str, u64)]) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills in `usage`, which outlives it; zeros are a value of it anyway.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    say(&format!("counter page-faults {}", usage.ru_minflt + usage.ru_majflt));
    say(&format!("counter context-switches {}", usage.ru_nvcsw + usage.ru_nivcsw));
    for ((name, before), (_, after)) in before.iter().zip(interrupts()) {
        say(&format!("counter {name} {}", after - before));
    }
}

/// Interrupts of all CPUs since boot, by kind; in the same order each time.
fn interrupts() -> Vec<(&'static str, u64)> {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let of = |label: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(label));
        let words = line.unwrap_or_default().split_whitespace();
        words.map_while(|word| word.parse::<u64>().ok()).sum()
    };
    [
        ("interrupts-timer", "LOC:"),
        ("ipis-reschedule", "RES:"),
        ("ipis-tlb", "TLB:"),
        ("ipis-call", "CAL:"),
    ]
    .map(|(name, label)| (name, of(label)))
    .into()
}
