//! File systems, one folder or file each, over the objects and traits of `vfs`.
//!
//! Reading order: `tmpfs` (all in memory), `ninep` (the host's folders), `overlay` (one above the
//! other), `devfs`; `pseudo` is what procfs and sysfs are made of.

pub mod devfs;
pub mod memfd;
pub mod ninep;
pub mod overlay;
pub mod pseudo;
pub mod tmpfs;
