//! A Linux with kCFI, built by `objtool/fixtures/linux/build.sh`, audited, rewritten and booted.
//!
//! It takes minutes to build, so these tests run by name only:
//! `LIMEN_LINUX_FIXTURE=FOLDER cargo test -p limen-objtool --test linux -- --ignored`.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use objtool::elf::Image;
use objtool::{Form, Options, audit, rewrite};
use text_patching::preamble;

const BOOT_LIMIT: Duration = Duration::from_secs(120);
const ALIVE: &str = "fixture: all calls were made";

fn folder() -> PathBuf {
    std::env::var_os("LIMEN_LINUX_FIXTURE")
        .expect("LIMEN_LINUX_FIXTURE names the folder that build.sh has filled")
        .into()
}

fn image(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn rewritten(image: &[u8], form: Form) -> objtool::Rewritten {
    rewrite(image, form, &Options::default()).unwrap()
}

/// Boots a kernel; what it said on its serial port.
fn boot(name: &str, vmlinux: &[u8]) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kernel = dir.join(name);
    std::fs::write(&kernel, vmlinux).unwrap();
    let options = "-no-user-config -nodefaults -no-reboot -display none -accel tcg,thread=single \
        -M microvm,x-option-roms=off,rtc=on,isa-serial=on,pcie=off -cpu max -smp 1 -m 256M \
        -serial stdio";
    let mut qemu = Command::new("qemu-system-x86_64")
        .args(options.split_whitespace())
        .arg("-kernel")
        .arg(&kernel)
        .arg("-initrd")
        .arg(folder().join("initramfs.cpio"))
        .args(["-append", "console=ttyS0 panic=-1 reboot=t oops=panic"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = qemu.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).map(|_| text)
    });
    let started = Instant::now();
    while qemu.try_wait().unwrap().is_none() {
        if started.elapsed() > BOOT_LIMIT {
            qemu.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = reader.join().unwrap().unwrap();
    let _ = std::fs::remove_file(kernel);
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
#[ignore = "needs LIMEN_LINUX_FIXTURE"]
fn all_witnesses_agree() {
    let counts = audit(&image("vmlinux"), &Options::default()).unwrap().counts;
    assert!(counts.checks > 2500, "{counts:?}");
    assert_eq!(counts.checks_by_relocation, counts.checks);
    assert_eq!(counts.traps, counts.checks);
    assert_eq!(counts.form_kcfi, counts.checks);
    assert!(counts.poisonable > 0);
    for name in ["vmlinux.norelocs", "vmlinux.stripped"] {
        let report = audit(&image(name), &Options::default()).unwrap();
        assert_eq!(report.counts.checks, counts.checks, "{name}");
        assert!(!report.not_proved.is_empty(), "{name}");
    }
}

#[test]
#[ignore = "needs LIMEN_LINUX_FIXTURE"]
fn four_bytes_per_check_there_and_back() {
    for name in ["vmlinux", "vmlinux.norelocs", "vmlinux.stripped"] {
        let old = image(name);
        let new = rewritten(&old, Form::Opt);
        let differing = old.iter().zip(&new.data).filter(|(old, new)| old != new).count();
        assert_eq!(differing, 4 * new.applied.written, "{name}");
        assert!(new.warnings.iter().any(|line| line.contains("UDB")), "{name}");
        assert!(rewritten(&new.data, Form::Kcfi).data == old, "{name}");
    }
}

#[test]
#[ignore = "needs LIMEN_LINUX_FIXTURE and QEMU"]
fn boots_in_all_forms() {
    let vmlinux = image("vmlinux");
    for form in [Form::Kcfi, Form::Opt, Form::Off] {
        let said = boot(form.name(), &rewritten(&vmlinux, form).data);
        assert!(said.contains(ALIVE), "{form:?}:\n{said}");
    }
    let said = boot("stripped", &rewritten(&image("vmlinux.stripped"), Form::Opt).data);
    assert!(said.contains(ALIVE), "{said}");
}

/// A function that is called through a pointer gets another hash: both forms must stop there. What
/// the rewritten kernel says is why `rewrite` warns: it does not know UDB.
#[test]
#[ignore = "needs LIMEN_LINUX_FIXTURE and QEMU"]
fn a_wrong_hash_stops_it() {
    let mut bad = image("vmlinux");
    let at = {
        let image = Image::parse(&bad).unwrap();
        let function = image.symbol("pipe_write").unwrap();
        assert!(preamble::decode_at(&image, function, -15).is_ok());
        let piece = image.piece_at(function).unwrap();
        usize::try_from(piece.file_offset + function - piece.address).unwrap() - 15
    };
    bad[at] ^= 1;
    let said = boot("bad-kcfi", &bad);
    assert!(said.contains("CFI failure at") && !said.contains(ALIVE), "{said}");
    let said = boot("bad-opt", &rewritten(&bad, Form::Opt).data);
    assert!(said.contains("invalid opcode") && !said.contains(ALIVE), "{said}");
    assert!(!said.contains("CFI failure at"), "this Linux knows UDB:\n{said}");
}
