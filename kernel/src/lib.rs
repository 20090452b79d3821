//! The Linux personality: everything a program sees, in safe Rust over the machine.
//!
//! It is a house of floors, and imports run down: `boot` · `calls` (the front door) · `files` ·
//! `mapping` · `procfs` · `tty` · `kvm` · `seccomp` · `ptrace` · `sockets` · `inet` · `net` ·
//! `aio` · `io` · `ipc` · `futex` · `exec` · `signal` · `wait` · `timers` · `process` · `fs` ·
//! `drivers` · `mm` · `vfs` · `page_cache` · `security` · `base`.
//! Reading order: `calls`, `process`, `mm`, `vfs`, then `base` below them.

#![no_std]

extern crate alloc;

use core::sync::atomic::{AtomicBool, Ordering};

use machine::task::Task;

pub mod aio;
pub mod base;
pub mod boot;
pub mod calls;
pub mod drivers;
pub mod exec;
pub mod files;
pub mod fs;
pub mod futex;
pub mod inet;
pub mod init;
pub mod io;
pub mod ipc;
pub mod khugepaged;
#[cfg(feature = "ktest")]
mod ktest;
pub mod kvm;
pub mod mapping;
pub mod mm;
pub mod net;
pub mod oom;
pub mod page_cache;
pub mod process;
pub mod procfs;
pub mod ptrace;
pub mod seccomp;
pub mod security;
pub mod signal;
pub mod sockets;
pub mod timers;
pub mod tty;
pub mod vfs;
pub mod wait;

/// Set once the first CPU has made what the others need.
static READY: AtomicBool = AtomicBool::new(false);

/// The first CPU comes here once the machine is up: becomes its own idle thread, and starts the
/// kernel thread that starts everything else, since only a thread may sleep.
pub fn main() -> ! {
    become_idle_thread();
    READY.store(true, Ordering::Release);
    init::start(boot::start::prepare, boot::start::ended).expect("memory for the first process");
    base::sched::idle_loop()
}

/// Every other CPU comes here.
pub fn secondary() -> ! {
    while !READY.load(Ordering::Acquire) {
        machine::sync::spin_wait();
    }
    become_idle_thread();
    base::sched::idle_loop()
}

fn become_idle_thread() {
    let task = Task::adopt_boot_thread().expect("memory for an idle thread");
    base::sched::adopt_idle_thread(process::kernel_thread("idle", task).base.clone());
}
