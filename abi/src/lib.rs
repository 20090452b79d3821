//! Linux's numbers and layouts for x86-64: error numbers, system call numbers, structures.
//!
//! Almost everything is `linux-raw-sys`, re-exported under its own module names (`general`, `net`,
//! `ioctl`, `prctl`, `ptrace`, `system`, `auxvec`, `elf`); only error numbers get a type.
//! No logic lives here.

#![no_std]

pub mod aio;
pub mod errno;
pub mod kvm;
pub mod kvm_capabilities;
pub mod net_layout;
pub mod option_layout;
pub mod syscalls;
pub mod sysv;
pub mod udp_option;

pub use errno::Errno;
pub use linux_raw_sys::{auxvec, general, ioctl, net, prctl, ptrace, system};

/// What functions of the kernel return.
pub type Result<T> = core::result::Result<T, Errno>;
