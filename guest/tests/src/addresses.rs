//! Kernel addresses in what programs can read: there must be none, or the places that were chosen
//! at random at boot are told to everybody.
//!
//! Every regular file of /proc (of this process and of the system) and of /sys that opens is read
//! and searched: numbers in hexadecimal and decimal, and words of binary files. Without privileges
//! no kernel may show any. With them Linux shows some to whom it lets read the kernel's log
//! (proc(5), kptr_restrict); Limen shows none.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::*;
use crate::{sc, tests};

tests!("addresses": of_the_kernel_are_in_no_file, of_the_kernel_are_in_no_log, are_recognised);

/// The kernel's half, but for what is no place: the page of vsyscall(2), which is at one address
/// for ever, small negative numbers, and limits that are that much below all ones (shmget(2):
/// SHMMAX).
const KERNEL: std::ops::Range<u64> = 0xffff_8000_0000_0000..0xffff_ffff_fe00_0000;
/// Files whose reading waits, has an effect, or is memory itself.
const LEFT_OUT: &[&str] = &["kmsg", "mem", "kcore", "pagemap", "debug", "tracing", "security"];
/// Of each file so much is read.
const BYTES: usize = 64 << 10;
/// Folders within folders.
const DEPTH: usize = 9;
/// Files, at most and at least.
const FILES_MAX: usize = 20_000;
const FILES_MIN: usize = 60;

/// Numbers of `text` with at least `digits` digits of this base.
fn numbers(text: &[u8], base: u32, digits: usize) -> impl Iterator<Item = u64> {
    let is_digit = move |byte: &u8| char::from(*byte).is_digit(base);
    let words = text.split(move |byte| !is_digit(byte)).filter(move |word| word.len() >= digits);
    words.filter_map(move |word| u64::from_str_radix(std::str::from_utf8(word).ok()?, base).ok())
}

/// The first kernel address in the contents of a file.
fn address_in(bytes: &[u8]) -> Option<u64> {
    if bytes.contains(&0) {
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        return words.into_iter().find(|word| KERNEL.contains(word));
    }
    // Sets of signals and capabilities are numbers of that size.
    let is_set = |line: &&[u8]| {
        [b"Sig", b"Shd", b"Cap"].iter().any(|word| line.starts_with(word.as_slice()))
    };
    let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !is_set(line));
    lines
        .flat_map(|line| numbers(line, 16, 16).chain(numbers(line, 10, 20)))
        .find(|number| KERNEL.contains(number))
}

fn are_recognised() {
    let found = |text: &str| address_in(text.as_bytes());
    assert_eq!(found("a\nffffffff81000000 T _text\n"), Some(0xffff_ffff_8100_0000));
    assert_eq!(found("0xffff888000000000"), Some(0xffff_8880_0000_0000));
    assert_eq!(found("18446744071578845184"), Some(0xffff_ffff_8100_0000));
    assert_eq!(address_in(&[0, 0, 0, 0, 0, 0x80, 0xff, 0xff]), Some(0xffff_8000_0000_0000));
    assert_eq!(found("SigBlk:\tffffffff81000000\nffffffffff600000-ffffffffff601000"), None);
    assert_eq!(found("7fffffffe000 -1 ffffffffffffffff 18446744073692774399"), None);
}

/// Reads the files below `folder`, and notes what has an address.
fn search(folder: &Path, depth: usize, files: &mut usize, bad: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_process = name.as_bytes().iter().all(u8::is_ascii_digit);
        let is_left_out = LEFT_OUT.iter().any(|left| name == *left);
        let Ok(kind) = entry.file_type() else { continue };
        if is_left_out || is_process || *files >= FILES_MAX {
            continue;
        }
        if kind.is_dir() && depth > 0 {
            search(&path, depth - 1, files, bad);
        } else if kind.is_file() {
            let Some(path) = path.to_str() else { continue };
            let Ok(fd) = open(path, O_RDONLY | O_NONBLOCK) else { continue };
            let mut bytes = vec![0; BYTES];
            let got = sc!(SYS_read, fd, bytes.as_mut_ptr(), BYTES);
            close(fd as i32);
            let Ok(got) = got else { continue };
            *files += 1;
            if let Some(address) = address_in(&bytes[..got]) {
                bad.push(format!("{path}: {address:#x}"));
            }
        }
    }
}

fn search_all() {
    let (mut files, mut bad) = (0, vec![]);
    for folder in ["/proc", "/proc/self", "/proc/thread-self", "/sys"] {
        search(Path::new(folder), DEPTH, &mut files, &mut bad);
    }
    assert!(files >= FILES_MIN, "only {files} files could be read");
    assert!(bad.is_empty(), "{bad:?}");
}

pub fn is_limen() -> bool {
    std::fs::read_to_string("/proc/version").unwrap_or_default().contains("limen")
}

fn of_the_kernel_are_in_no_file() {
    in_child(|| {
        sc!(SYS_setresgid, 1234, 1234, 1234).is(0);
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0).is(0);
        search_all();
    });
    if is_limen() {
        search_all();
    }
}

/// syslog(2): read everything that is there.
const READ_ALL: usize = 3;

fn of_the_kernel_are_in_no_log() {
    let mut bytes = vec![0; 256 << 10];
    let got = sc!(SYS_syslog, READ_ALL, bytes.as_mut_ptr(), bytes.len());
    // Linux's own log names some, to whom it lets read it.
    if let (Ok(got), true) = (got, is_limen()) {
        assert!(got > 0, "the log is empty");
        assert_eq!(address_in(&bytes[..got]), None);
    }
}
