//! cachestat(2): what of a file is in memory, in numbers. mincore(2) tells the same of a mapping,
//! page by page.

use abi::{Errno, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::base::user::UserPtr;
use crate::mm::PAGE;
use crate::process::{current, own_open_file};
use crate::vfs::File;
use crate::vfs::permission::{self, WRITE};

/// `struct cachestat_range`.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
pub struct Range {
    offset: u64,
    /// 0: up to the end.
    len: u64,
}

/// `struct cachestat`. Pages are never taken away to be read again soon, so none was "evicted".
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
pub struct Numbers {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// cachestat(2).
pub fn cachestat(fd: u32, range: UserPtr<Range>, to: UserPtr<Numbers>, flags: u32) -> Result<u64> {
    let file = own_open_file(fd)?;
    let Range { offset, len } = range.read()?;
    if !may_know(&file) {
        return Err(Errno::EPERM);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let last = if len == 0 { u64::MAX } else { offset.wrapping_add(len).wrapping_sub(1) / PAGE };
    let mut numbers = Numbers::default();
    if let Some(cache) = file.inode().page_cache()
        && offset / PAGE <= last
    {
        let counted = cache.count(offset / PAGE..=last);
        (numbers.cached, numbers.dirty, numbers.writeback) = counted;
    }
    to.write(&numbers)?;
    Ok(0)
}

/// Who may write to it or owns it: to others, what is in memory would tell what others read.
fn may_know(file: &File) -> bool {
    let who = current().subject();
    let inode = file.inode();
    file.check_writable().is_ok()
        || inode.metadata().is_ok_and(|of| permission::is_owner(&of, &who))
        || permission::check(&*inode, WRITE, &who).is_ok()
}
