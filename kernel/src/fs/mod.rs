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
mod xattrs;

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

/// Longest name of a server's directory entry, bytes.
const NAME_MAX: usize = 255;

/// Whether a server's directory can have an entry of this name.
fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
