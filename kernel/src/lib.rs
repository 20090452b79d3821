//! The Linux personality: everything a program sees, in safe Rust over the machine.
//!
//! Reading order: `syscall` (the front door), `process`, `mm`, `fs`, then `sched` and `sync` below
//! them; `ipc`, `net`, `drivers` stand beside.

#![no_std]

extern crate alloc;

use core::sync::atomic::{AtomicBool, Ordering};

use machine::task::Task;

pub mod balance;
pub mod drivers;
pub mod fs;
pub mod identity;
pub mod io;
pub mod ipc;
#[cfg(feature = "ktest")]
mod ktest;
pub mod mm;
pub mod net;
pub mod params;
pub mod poll;
pub mod process;
pub mod random;
pub mod report;
pub mod sched;
pub mod schedstats;
pub mod start;
pub mod sync;
pub mod syscall;
pub mod time;
pub mod tty;
pub mod user;
pub mod vdso;
pub mod watchdog;

/// Set once the first CPU has made what the others need.
static READY: AtomicBool = AtomicBool::new(false);

/// The first CPU comes here once the machine is up: becomes its own idle thread, and starts the
/// kernel thread that starts everything else, since only a thread may sleep.
pub fn main() -> ! {
    become_idle_thread();
    READY.store(true, Ordering::Release);
    process::init::start(start::prepare, start::ended).expect("memory for the first process");
    sched::idle_loop()
}

/// Every other CPU comes here.
pub fn secondary() -> ! {
    while !READY.load(Ordering::Acquire) {
        machine::sync::spin_wait();
    }
    become_idle_thread();
    sched::idle_loop()
}

fn become_idle_thread() {
    let task = Task::adopt_boot_thread().expect("memory for an idle thread");
    sched::adopt_idle_thread(process::kernel_thread("idle", task));
}
