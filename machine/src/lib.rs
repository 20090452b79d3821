//! The only crate with `unsafe` and assembly: it boots the CPU and drives it, and offers the kernel
//! safe functions for everything that needs either.
//!
//! *Machine acts.* There is no policy here; decisions come from `mechanisms/*` and from the kernel,
//! which the machine calls through the functions that `machine/image` binds.
//!
//! Reading order: `boot` (how it starts), `entry` (how programs come in and go out), `task`,
//! `memory`,
//! `frame`, `sync`; the devices last.

#![no_std]

extern crate alloc;

pub mod apic;
pub mod behind_guests;
pub mod boot;
pub mod cfi;
pub mod context;
pub mod cpu;
pub mod debug_registers;
mod descriptors;
pub mod entropy;
pub mod entry;
pub mod fpu;
pub mod frame;
mod heap;
mod ioapic;
pub mod ipi;
pub mod irq;
#[cfg(feature = "ktest")]
pub mod ktest;
mod kaslr;
mod late_text;
pub mod log;
pub mod memory;
pub mod mitigations;
mod mmio;
mod multiboot;
pub mod panic;
mod pci;
pub mod pcid;
pub mod percpu;
mod platform;
pub mod power;
mod sealed;
pub mod seccomp;
mod selftest;
pub mod sites;
mod smp;
pub mod speculation;
pub mod stack;
pub mod static_branch;
pub mod static_call;
pub mod sync;
pub mod task;
mod text_poke;
mod thunk;
pub mod time;
mod tlb;
pub mod trace;
pub mod uaccess;
pub mod vdso;
pub mod virtio;
mod vmap;
pub mod vmrun;

pub use heap::{idle_bytes as heap_idle_bytes, slab_bytes, trim as trim_heap};
pub use vmap::usage as vmap_usage;
