//! Files of memory without a name: memfd_create(2) and System V segments.
//! They live in a tmpfs that is mounted nowhere.

use alloc::sync::Arc;

use abi::{Result, general as raw};
use machine::sync::Once;

use crate::fs::tmpfs::{Limits, TmpFs, TmpInode};
use crate::vfs::dentry::Dentry;
use crate::vfs::mount::{self, Mount};
use crate::vfs::path::Location;
use crate::vfs::{File, Inode, SetAttributes};

/// The file system they live in.
fn home() -> (Arc<TmpFs>, Arc<Mount>) {
    static HOME: Once<(Arc<TmpFs>, Arc<Mount>)> = Once::new();
    let make = || {
        let fs = TmpFs::new("tmpfs", 0o777, Limits::NONE);
        fs.set_huge(None);
        (fs.clone(), mount::detached(fs))
    };
    HOME.call_once(make).clone()
}

/// A new, empty file without a name. `mode` has its permission bits.
pub fn make(mode: u32, uid: u32, gid: u32) -> Result<Arc<TmpInode>> {
    home().0.nameless_file(mode, uid, gid)
}

/// Opens such a file for reading and writing; `shown` is its name in /proc/PID/maps.
pub fn open(inode: Arc<TmpInode>, shown: &[u8]) -> Result<Arc<File>> {
    let flags = raw::O_RDWR | raw::O_LARGEFILE;
    let operations = inode.clone().open(flags)?;
    let location = Location::new(home().1, Dentry::detached(inode, shown));
    Ok(File::new(operations, flags, Some(location)))
}

/// A file of `size` zero bytes that belongs to `uid` and `gid`, without a descriptor; `shown` as in
/// [`open`].
pub fn of_size(shown: &[u8], size: u64, uid: u32, gid: u32) -> Result<Arc<File>> {
    let inode = make(0o600, uid, gid)?;
    inode.set_attributes(&SetAttributes { size: Some(size), ..SetAttributes::default() })?;
    open(inode, shown)
}
