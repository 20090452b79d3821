//! A request: what is asked, whether it can be, and the doing of what is done at once.

use alloc::sync::Arc;
use core::mem::offset_of;

use abi::aio::{HAS_EVENT_FD, HAS_PRIORITY, IoControl, opcode};
use abi::{Errno, Result};

use super::context::{Completion, Context};
use super::polled;
use crate::base::io::{Sink, Source, read_buffers};
use crate::base::user::UserPtr;
use crate::io::eventfd::EventFd;
use crate::io::file_at;
use crate::io::transfer::{self, RequestFlags};
use crate::process::current;
use crate::security::check_io_priority;
use crate::vfs::File;

/// What the kernel writes into requests (KIOCB_KEY).
const KEY: u32 = 0;

fn key_at(request: u64) -> UserPtr<u32> {
    UserPtr::new(request.wrapping_add(offset_of!(IoControl, key) as u64))
}

/// EINVAL for a request that the kernel has not seen.
pub(super) fn check_key(request: u64) -> Result<()> {
    if key_at(request).read()? == KEY { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Takes the request at that address. An error says that it was not taken, and that there will be
/// no completion.
pub(super) fn submit(context: &Arc<Context>, at: u64) -> Result<()> {
    let asked = UserPtr::<IoControl>::new(at).read()?;
    if asked.reserved != 0 || i64::try_from(asked.count).is_err() {
        return Err(Errno::EINVAL);
    }
    context.begin()?;
    let result = make(context, at, &asked);
    if result.is_err() {
        context.forget();
    }
    result
}

fn make(context: &Arc<Context>, at: u64, asked: &IoControl) -> Result<()> {
    let file = file_at(asked.fd.into())?;
    let counter = match asked.flags & HAS_EVENT_FD {
        0 => None,
        _ => Some(counter_at(asked.event_fd)?),
    };
    key_at(at).write(&KEY)?;
    let completion = Completion { request: at, data: asked.data, counter };
    let result = match asked.opcode {
        opcode::POLL => {
            let wanted = u16::try_from(asked.buffer).map_err(|_| Errno::EINVAL)?;
            if asked.offset != 0 || asked.count != 0 || asked.rw_flags != 0 {
                return Err(Errno::EINVAL);
            }
            return polled::submit(context, completion, file, wanted.into());
        }
        opcode::READ => read(&file, asked, false)?,
        opcode::READ_VECTOR => read(&file, asked, true)?,
        opcode::WRITE => write(&file, asked, false)?,
        opcode::WRITE_VECTOR => write(&file, asked, true)?,
        opcode::SYNC | opcode::SYNC_DATA => {
            let is_plain =
                asked.buffer == 0 && asked.offset == 0 && asked.count == 0 && asked.rw_flags == 0;
            if !is_plain || !transfer::is_syncable(&file) {
                return Err(Errno::EINVAL);
            }
            file.inode().sync().map(|()| 0)
        }
        _ => return Err(Errno::EINVAL),
    };
    context.complete(&completion, result);
    Ok(())
}

fn counter_at(fd: u32) -> Result<Arc<File>> {
    let file = file_at(fd.into())?;
    if file.ops_as::<EventFd>().is_some() { Ok(file) } else { Err(Errno::EINVAL) }
}

/// What is wrong with the request itself is the outer error, and what becomes of it the inner.
fn read(file: &Arc<File>, asked: &IoControl, is_vector: bool) -> Result<Result<u64>> {
    check_priority(asked)?;
    let flags = RequestFlags::of_read(asked.rw_flags)?;
    file.check_readable()?;
    if !file.ops().has_data().0 {
        return Err(Errno::EINVAL);
    }
    let offset = place(file, asked)?;
    if is_vector {
        let Some(vector) = read_buffers(asked.buffer, asked.count)? else { return Ok(Ok(0)) };
        return Ok(transfer::read_request(file, offset, Sink::user_vector(&vector), flags));
    }
    check_buffer(asked)?;
    let sink = Sink::user(asked.buffer, asked.count as usize);
    Ok(transfer::read_request(file, offset, sink, flags))
}

/// As [`read`].
fn write(file: &Arc<File>, asked: &IoControl, is_vector: bool) -> Result<Result<u64>> {
    check_priority(asked)?;
    let flags = RequestFlags::of_write(asked.rw_flags)?;
    file.check_writable()?;
    if !file.ops().has_data().1 {
        return Err(Errno::EINVAL);
    }
    let offset = place(file, asked)?;
    if is_vector {
        let Some(vector) = read_buffers(asked.buffer, asked.count)? else { return Ok(Ok(0)) };
        return Ok(transfer::write_request(file, offset, Source::user_vector(&vector), flags));
    }
    check_buffer(asked)?;
    let source = Source::user(asked.buffer, asked.count as usize);
    Ok(transfer::write_request(file, offset, source, flags))
}

/// Where in a file with places; None for a stream.
fn place(file: &File, asked: &IoControl) -> Result<Option<u64>> {
    let offset = u64::try_from(asked.offset).map_err(|_| Errno::EINVAL)?;
    Ok(file.is_seekable().then_some(offset))
}

fn check_buffer(asked: &IoControl) -> Result<()> {
    let buffer = UserPtr::<u8>::new(asked.buffer);
    if buffer.is_user_range(asked.count as usize) { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Requests are done at once, whatever their class is; one that is none is EINVAL, and the class of
/// real time takes a right (ioprio_set(2)).
fn check_priority(asked: &IoControl) -> Result<()> {
    if asked.flags & HAS_PRIORITY == 0 {
        return Ok(());
    }
    check_io_priority(&current().subject(), u32::from(asked.priority as u16))
}
