//! inotify(7): inotify_init(2), inotify_add_watch(2), inotify_rm_watch(2).

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};

use super::{CWD, PathName, file};
use crate::process::give_file;
use crate::vfs::inotify::Inotify;
use crate::vfs::path::{self, Context, walk};
use crate::vfs::permission::{self, READ};
use crate::vfs::{File, hooks};

/// inotify_init(2).
pub fn inotify_init() -> Result<u64> {
    new_instance(0)
}

/// inotify_init1(2).
pub fn inotify_init1(flags: u64) -> Result<u64> {
    new_instance(super::check_flags(flags, raw::IN_CLOEXEC | raw::IN_NONBLOCK)?)
}

fn new_instance(flags: u32) -> Result<u64> {
    let instance = Inotify::new()?;
    let file = File::new(instance, raw::O_RDONLY | flags & raw::O_NONBLOCK, None);
    give_file(file, flags & raw::O_CLOEXEC != 0)
}

fn instance(file: &Arc<File>) -> Result<&Inotify> {
    file.ops_as::<Inotify>().ok_or(Errno::EINVAL)
}

/// inotify_add_watch(2).
pub fn inotify_add_watch(fd: u64, path: u64, mask: u32) -> Result<u64> {
    let options = raw::IN_ONLYDIR
        | raw::IN_DONT_FOLLOW
        | raw::IN_EXCL_UNLINK
        | raw::IN_MASK_ADD
        | raw::IN_MASK_CREATE
        | raw::IN_ONESHOT;
    // Reported, never asked for; harmless in a mask.
    let reported = raw::IN_UNMOUNT | raw::IN_Q_OVERFLOW | raw::IN_IGNORED | raw::IN_ISDIR;
    let both = raw::IN_MASK_ADD | raw::IN_MASK_CREATE;
    if mask & raw::IN_ALL_EVENTS == 0
        || mask & !(raw::IN_ALL_EVENTS | options | reported) != 0
        || mask & both == both
    {
        return Err(Errno::EINVAL);
    }
    let file = file(fd)?;
    let instance = instance(&file)?;
    let path = PathName::read(path)?;
    let mut flags = 0;
    if mask & raw::IN_DONT_FOLLOW == 0 {
        flags |= walk::FOLLOW;
    }
    if mask & raw::IN_ONLYDIR != 0 {
        flags |= walk::DIRECTORY;
    }
    let context = Context::current();
    let location = path::resolve(&context, CWD as i32, path.bytes(), flags)?;
    permission::check(location.inode().as_ref(), READ, &context.subject)?;
    hooks::path_notify((&location, mask))?;
    instance.watch(&location.dentry, mask).map(|wd| wd as u64)
}

/// inotify_rm_watch(2).
pub fn inotify_rm_watch(fd: u64, watch: i32) -> Result<u64> {
    let file = file(fd)?;
    instance(&file)?.unwatch(watch)?;
    Ok(0)
}
