//! What the programs that count a kernel's instructions share: the calls, and the machine they
//! find when they are its only program.
//!
//! Neighbours: main.rs (what single operations cost), ipi.rs (what interrupts isolated CPUs), and
//! the package limen-guest-growth (what many of something cost).

pub mod raw;
pub mod sys;

use std::time::Duration;

use raw::syscall;

/// How long a kernel has after its boot for what it has put off: Linux frees its init text, probes
/// devices and runs work queues then, in the middle of whatever is measured. Only idle time passes.
const SETTLE: Duration = Duration::from_secs(4);

/// Waits until the kernel's own start-up work is done.
pub fn settle() {
    std::thread::sleep(SETTLE);
}

/// As the only program of an initramfs (the Linux side of the comparison) there is no /dev yet.
/// Errors do not matter: what is missing fails when it is used.
pub fn furnish() {
    for dir in [c"/dev", c"/tmp"] {
        let _ = syscall(libc::SYS_mkdir, [dir.as_ptr() as usize, 0o755, 0, 0, 0, 0]);
    }
    if !std::path::Path::new("/proc/self").exists() {
        let (kind, at) = (c"proc".as_ptr() as usize, c"/proc".as_ptr() as usize);
        let _ = syscall(libc::SYS_mkdir, [at, 0o755, 0, 0, 0, 0]);
        let _ = syscall(libc::SYS_mount, [kind, at, kind, 0, 0, 0]);
    }
    let (kind, at) = (c"devtmpfs".as_ptr() as usize, c"/dev".as_ptr() as usize);
    if !std::path::Path::new("/dev/zero").exists() {
        let _ = syscall(libc::SYS_mount, [kind, at, kind, 0, 0, 0]);
    }
}

/// Which kernel this is (uname(2)), and what it says that it does about each vulnerability of its
/// CPU.
pub fn report_kernel() {
    const FILES: &str = "/sys/devices/system/cpu/vulnerabilities";
    let proc = |file: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{file}"));
    let [release, version] = ["osrelease", "version"].map(|file| proc(file).unwrap_or_default());
    println!("version {} {}", release.trim(), version.trim());
    if !std::path::Path::new(FILES).exists() {
        let (kind, at) = (c"sysfs".as_ptr() as usize, c"/sys".as_ptr() as usize);
        let _ = syscall(libc::SYS_mkdir, [at, 0o755, 0, 0, 0, 0]);
        let _ = syscall(libc::SYS_mount, [kind, at, kind, 0, 0, 0]);
    }
    let files = std::fs::read_dir(FILES).into_iter().flatten().flatten();
    for file in files {
        let said = std::fs::read_to_string(file.path()).unwrap_or_default();
        println!("vulnerability {}: {}", file.file_name().display(), said.trim());
    }
}

/// What a VM is like that has just booted: ticks since it was switched on until this program's
/// `main` (the counter starts at 0), and memory that is free (sysinfo(2)), in bytes.
pub fn report_boot(booted_ticks: u64) {
    // SAFETY: a structure of integers.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    let ret = syscall(libc::SYS_sysinfo, [&raw mut info as usize, 0, 0, 0, 0, 0]);
    assert_eq!(ret, 0, "sysinfo");
    println!("boot_ticks {booted_ticks}");
    println!("free_bytes {}", info.freeram * u64::from(info.mem_unit));
}

/// Ends the machine, where this program may.
pub fn power_off() {
    let _ = syscall(libc::SYS_reboot, [0xfee1_dead, 0x2812_1969, 0x4321_fedc, 0, 0, 0]);
}
