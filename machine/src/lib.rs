//! The only crate with `unsafe` and assembly: it boots the CPU and drives it, and offers the kernel
//! safe functions for everything that needs either.
//!
//! *Machine acts.* There is no policy here; decisions come from `mechanisms/*` and from the kernel,
//! which the machine calls through the functions that `machine/image` binds.
//!
//! The folders are floors, each of which uses only those below it (ARCHITECTURE.md has the table,
//! `./limen check` counts): `boot`, `vmrun`, `task`, `entry`, `mitigations`, `device`, `text`,
//! `panic`, `memory`, `context_tracking`, `cpu`. Reading order: `boot` (how it starts), `entry`
//! (how programs come in and go out), `task`, `memory`; the devices last. The kernel names modules
//! without their floor, as they are exported below.

#![no_std]

extern crate alloc;

pub mod boot;
mod context_tracking;
pub mod cpu;
mod device;
pub mod entry;
#[cfg(feature = "ktest")]
pub mod ktest;
pub mod memory;
pub mod mitigations;
pub mod panic;
pub mod task;
mod text;
pub mod vmrun;

pub use context_tracking::word as context;
pub use context_tracking::{ipi, pcid, tlb};
#[cfg(feature = "lockstat")]
pub use cpu::lockstat;
pub use cpu::{
    apic, clock as time, irq, log, percpu, pkey, power, speculation, sync, user_shadow_stack,
};
pub use device::{entropy, virtio};
pub use entry::trace;
pub use memory::heap::{
    idle_bytes as heap_idle_bytes, mapped_bytes, objects as heap_objects, slab_bytes,
    trim as trim_heap,
};
pub use memory::vmap::usage as vmap_usage;
pub use memory::{frame, stack, uaccess};
pub use mitigations::behind_guests;
pub use task::{debug_registers, fpu};
pub use text::{cfi, seccomp, sites, static_branch, static_call, vdso};
