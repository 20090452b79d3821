//! The formats that the command line (host) and the kernel (guest) both read and write.
//!
//! Codecs, each pure and bounded, so that both sides share one definition and one set of
//! tests: [`boot_config`] (what to run and how, read once at boot), [`cpio`] (the archive that
//! carries it and any packed files), [`control`] (the lines that cross the control port while
//! the program runs), [`ninep`] and [`fuse`] (the messages that carry the host's
//! files); [`pvh`],
//! [`multiboot`], [`params`], [`acpi`] and [`pvclock`], what loader, firmware and hypervisor tell
//! the kernel; [`elf`] and [`script`], the programs it runs; [`library_cache`], where the libraries
//! of a packed one are; [`sockaddr`] and [`rtnetlink`], what they say to sockets; [`udplite`], how
//! much of a datagram is covered; [`tsc`], the clock's arithmetic.
//!
//! Why it is hard: every decoder here reads bytes that the other side of a boundary made. None may
//! panic, loop without a limit, or allocate more than its input is long.
//!
//! Neighbours: `cli` writes configuration and archives and reads control lines; `kernel` does the
//! reverse. Devices and their names are in [`ports`].
#![no_std]

extern crate alloc;

pub mod acpi;
pub mod boot_config;
pub mod control;
pub mod cpio;
pub mod elf;
pub mod fuse;
pub mod library_cache;
pub mod multiboot;
pub mod ninep;
pub mod params;
pub mod ports;
pub mod pvclock;
pub mod pvh;
pub mod rtnetlink;
pub mod script;
pub mod sockaddr;
pub mod tsc;
pub mod udplite;
mod wire;
