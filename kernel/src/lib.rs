//! The Linux personality: everything a program sees, in safe Rust over the machine.
//!
//! Reading order: `syscall` (the front door), `process`, `mm`, `fs`, then `sched` and `sync` below
//! them; `ipc`, `net`, `drivers` stand beside.

#![no_std]

extern crate alloc;

pub mod fs;
pub mod io;
pub mod mm;
pub mod poll;
pub mod process;
pub mod sched;
pub mod sync;
pub mod syscall;
pub mod time;
pub mod user;

/// The first CPU comes here once the machine is up.
pub fn main() -> ! {
    machine::log!("up: {:?}", machine::frame::usage());
    machine::power::off(machine::power::OK)
}

/// Every other CPU comes here.
pub fn secondary() -> ! {
    machine::cpu::halt_forever()
}
