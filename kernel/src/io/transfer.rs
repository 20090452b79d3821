//! An open file is read and written: what every call does that moves data, whatever names the
//! request has.
//!
//! Files with a position keep its lock over the whole transfer, so that concurrent calls take turns
//! (POSIX 2.9.7). Appending is the file's own business: it knows its end.
//! Neighbours: `splice` moves data between two files, `base::io` has a request's buffers.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};

use crate::base::io::{Sink, Source};
use crate::fs::devfs;
use crate::fs::pseudo::PseudoInode;
use crate::process::current;
use crate::process::signal::send_to_current;
use crate::security::{Resource, UNLIMITED};
use crate::vfs::flags::check_not_append_only;
use crate::vfs::permission::{READ, WRITE};
use crate::vfs::{File, FileType, hooks, inotify};

/// Reads at the file's position, or from a stream. The caller has seen that it may be read.
#[inline(always)]
pub fn read_stream(file: &Arc<File>, sink: &mut Sink<'_>) -> Result<u64> {
    hooks::file_permission((file, READ))?;
    let read = if file.is_seekable() {
        read_at_position(file, sink)?
    } else {
        file.ops().read_at(file, 0, sink)?
    };
    note(file, raw::IN_ACCESS, read);
    Ok(read as u64)
}

#[inline(never)]
fn read_at_position(file: &Arc<File>, sink: &mut Sink<'_>) -> Result<usize> {
    let mut position = file.position.lock();
    check_end(*position, sink.left())?;
    let read = file.ops().read_at(file, *position, sink);
    let read = read.map_err(|error| explain(file, error))?;
    if file.has_positions() {
        *position += read as u64;
    }
    Ok(read)
}

/// Writes at the file's position or end, or to a stream. The caller has seen that it may be
/// written.
#[inline(always)]
pub fn write_stream(file: &Arc<File>, source: &mut Source<'_>) -> Result<u64> {
    hooks::file_permission((file, WRITE))?;
    let written = if file.is_seekable() {
        write_at_position(file, source)?
    } else {
        file.ops().write_at(file, 0, source)?
    };
    note(file, raw::IN_MODIFY, written);
    Ok(written as u64)
}

#[inline(never)]
fn write_at_position(file: &Arc<File>, source: &mut Source<'_>) -> Result<usize> {
    let mut position = file.position.lock();
    check_end(*position, source.left())?;
    if writes_nothing(file, source) {
        return Ok(0);
    }
    check_file_limit(file, *position, source)?;
    file.drop_privileges(|| current().subject())?;
    let written = file.ops().write_at(file, *position, source)?;
    if !file.moves_when_written() {
        return Ok(written);
    }
    *position += written as u64;
    if source.appends(file.flags())
        && written > 0
        && let Some(cache) = file.inode().page_cache()
    {
        *position = cache.size();
    }
    Ok(written)
}

/// Reads at an offset, whatever the file's position.
pub fn read_at(file: &Arc<File>, offset: u64, sink: &mut Sink<'_>) -> Result<u64> {
    check_positional(file, offset, sink.left())?;
    file.check_readable()?;
    hooks::file_permission((file, READ))?;
    let read = file.ops().read_at(file, offset, sink);
    let read = read.map_err(|error| explain(file, error))?;
    note(file, raw::IN_ACCESS, read);
    Ok(read as u64)
}

/// Writes at an offset, whatever the file's position.
pub fn write_at(file: &Arc<File>, offset: u64, source: &mut Source<'_>) -> Result<u64> {
    check_positional(file, offset, source.left())?;
    file.check_writable()?;
    hooks::file_permission((file, WRITE))?;
    if writes_nothing(file, source) {
        return Ok(0);
    }
    check_file_limit(file, offset, source)?;
    file.drop_privileges(|| current().subject())?;
    let written = file.ops().write_at(file, offset, source)?;
    note(file, raw::IN_MODIFY, written);
    Ok(written as u64)
}

/// What a request says of itself beside its data (RWF_*, preadv2(2)).
#[derive(Clone, Copy, Debug)]
pub struct RequestFlags(u32);

impl RequestFlags {
    const READ: u32 =
        raw::RWF_HIPRI | raw::RWF_DSYNC | raw::RWF_SYNC | raw::RWF_NOWAIT | raw::RWF_APPEND;
    /// Write where the call says, whatever O_APPEND says; linux-raw-sys does not have it.
    const NOAPPEND: u32 = 1 << 5;

    /// Those of a read. EOPNOTSUPP for a flag that is not known.
    pub fn of_read(bits: u32) -> Result<Self> {
        Self::check(bits, Self::READ | Self::NOAPPEND)
    }

    /// Those of a write. EINVAL if they contradict each other.
    pub fn of_write(bits: u32) -> Result<Self> {
        let both = raw::RWF_APPEND | Self::NOAPPEND;
        let flags = Self::check(bits, Self::READ | Self::NOAPPEND)?;
        if bits & both == both { Err(Errno::EINVAL) } else { Ok(flags) }
    }

    /// Those of a read of what was read before there were flags: it may be polled for.
    pub fn of_old_read(bits: u32) -> Result<Self> {
        Self::check(bits, raw::RWF_HIPRI)
    }

    fn check(bits: u32, known: u32) -> Result<Self> {
        if bits & !known != 0 { Err(Errno::EOPNOTSUPP) } else { Ok(RequestFlags(bits)) }
    }

    fn says(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

/// A read with flags, at an offset or (`None`) where the file stands.
pub fn read_request(
    file: &Arc<File>,
    offset: Option<u64>,
    sink: Sink<'_>,
    flags: RequestFlags,
) -> Result<u64> {
    let mut sink = sink.without_waiting(flags.says(raw::RWF_NOWAIT));
    match offset {
        None => read_stream(file, &mut sink),
        Some(offset) => read_at(file, offset, &mut sink),
    }
}

/// A write with flags, at an offset or (`None`) where the file stands.
pub fn write_request(
    file: &Arc<File>,
    offset: Option<u64>,
    source: Source<'_>,
    flags: RequestFlags,
) -> Result<u64> {
    let nowait = flags.says(raw::RWF_NOWAIT);
    if nowait && file.is_seekable() && !devfs::never_waits(file) {
        // Room in a file may have to be made: nobody can say that it does not take waiting.
        return Err(Errno::EOPNOTSUPP);
    }
    if flags.says(RequestFlags::NOAPPEND) {
        check_not_append_only(file.inode().as_ref())?;
    }
    let said = [(raw::RWF_APPEND, true), (RequestFlags::NOAPPEND, false)];
    let said = said.into_iter().find(|&(flag, _)| flags.says(flag));
    let mut source = source.without_waiting(nowait).appending(said.map(|(_, appends)| appends));
    let written = match offset {
        None => write_stream(file, &mut source)?,
        Some(offset) => write_at(file, offset, &mut source)?,
    };
    if flags.says(raw::RWF_DSYNC | raw::RWF_SYNC) {
        file.inode().sync()?;
    }
    Ok(written)
}

/// Whether the file has something that can be made to last (fsync(2)).
pub fn is_syncable(file: &File) -> bool {
    let inode = file.inode();
    let has_data = matches!(inode.file_type(), FileType::Regular | FileType::Directory);
    file.is_seekable() && has_data && !inode.is::<PseudoInode>()
}

/// ESPIPE for a stream, EINVAL for a range that does not fit a file offset (pread(2)).
fn check_positional(file: &File, offset: u64, len: usize) -> Result<()> {
    if !file.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    if offset + len as u64 > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Whether a write of a file's contents has none: it changes nothing, wherever it is.
#[inline]
fn writes_nothing(file: &File, source: &Source<'_>) -> bool {
    source.left() == 0 && file.inode().page_cache().is_some()
}

/// EINVAL for what begins at a file offset and ends behind all of them.
#[inline]
pub fn check_end(position: u64, len: usize) -> Result<()> {
    const MAX: u64 = i64::MAX as u64;
    let leaves = position <= MAX && position + len as u64 > MAX;
    if leaves { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Reading a directory is EISDIR, whatever its file system says.
#[cold]
fn explain(file: &File, error: Errno) -> Errno {
    let is_directory = error == Errno::EINVAL && file.inode().file_type() == FileType::Directory;
    if is_directory { Errno::EISDIR } else { error }
}

/// Cuts a write at RLIMIT_FSIZE; EFBIG, and SIGXFSZ, from there on (setrlimit(2)).
#[inline]
fn check_file_limit(file: &File, offset: u64, source: &mut Source<'_>) -> Result<()> {
    let limit = current().process.limit(Resource::FileSize);
    if limit == UNLIMITED { Ok(()) } else { cut_at_limit(file, offset, source, limit) }
}

#[cold]
fn cut_at_limit(file: &File, offset: u64, source: &mut Source<'_>, limit: u64) -> Result<()> {
    let Some(cache) = file.inode().page_cache() else { return Ok(()) };
    let append = source.appends(file.flags());
    let offset = if append { cache.size() } else { offset };
    if offset >= limit {
        send_to_current(raw::SIGXFSZ);
        return Err(Errno::EFBIG);
    }
    source.truncate((limit - offset) as usize);
    Ok(())
}

/// Tells whoever watches the file.
#[inline(always)]
pub fn note(file: &File, mask: u32, done: usize) {
    if inotify::is_active()
        && done > 0
        && let Some(location) = &file.location
    {
        inotify::event(&location.dentry, mask);
    }
}
