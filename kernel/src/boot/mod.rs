//! From the first CPU's idle thread to the program's start, and what is told at its end.
//!
//! Reading order: `start` (file systems, then the program), `report`, `initramfs`; `sessions`
//! starts other programs while it runs.

pub mod file_systems;
mod helper;
pub mod host_channel;
pub mod initramfs;
pub mod report;
mod sessions;
pub mod start;
