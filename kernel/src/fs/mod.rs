//! File systems, one folder or file each, over the objects and traits of `vfs`.
//!
//! Reading order: `tmpfs` (all in memory), `virtiofs` and `ninep` (the host's
//! folders), `overlay` (one above the
//! other), `devfs`; `pseudo` is what procfs and sysfs are made of.

pub mod devfs;
pub mod memfd;
pub mod ninep;
pub mod overlay;
pub mod pseudo;
pub mod tmpfs;
pub mod virtiofs;

use abi::Errno;

/// A file server's error number as ours: EIO if Linux has none such, since 512 and its neighbours
/// would make the kernel restart the call.
fn server_errno(number: u32) -> Errno {
    /// The last number of errno(3).
    const MAX: u32 = Errno::EHWPOISON.number() as u32;
    match number {
        1..=MAX => Errno::new(number),
        _ => Errno::EIO,
    }
}
