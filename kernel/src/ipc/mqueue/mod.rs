//! POSIX message queues (mq_overview(7)): mq_open(2), mq_unlink(2), mq_timedsend(2),
//! mq_timedreceive(2), mq_notify(2), mq_getsetattr(2).
//!
//! A queue is an object of a file system of its own, so that names, rights and descriptors are
//! those of files; what is different is here and in `queue`. Unlike System V's, a message goes to
//! who has waited longest, and a process may ask to be told when the empty queue gets one.
//!
//! Reading order: this file, `queue`, `fs`, `limits`.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};
use machine::sync::Once;

use self::fs::{Attr, QueueFile};
use self::queue::{COOKIE_BYTES, Message, Telling};
use crate::base::sync::Timeout;
use crate::base::time::{Deadline, TimeSpec};
use crate::base::user::{UserPtr, read_path};
use crate::process::signal::LAST;
use crate::process::{current, give_file, own_file};
use crate::timers::posix::SigEvent;
use crate::vfs::open::How;
use crate::vfs::{File, namei, open};

pub mod fs;
pub mod limits;
mod queue;

pub use queue::CookieSink;

/// Priorities are below it (MQ_PRIO_MAX).
pub const PRIORITY_MAX: u32 = 32768;

/// How the socket behind a file is found, for SIGEV_THREAD. ENOTSOCK, EINVAL.
pub type SinkOf = fn(&File) -> Result<Arc<dyn CookieSink>>;

machine::ro_after_init! {
    static SINK_OF: Once<SinkOf> = Once::new();
}

/// Says how sockets that hear of messages are found, once.
pub fn register_sockets(sink_of: SinkOf) {
    SINK_OF.call_once(|| sink_of);
}

/// A queue's name is one component. ENOENT, EACCES.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EACCES),
        _ if name.contains(&b'/') => Err(Errno::EACCES),
        _ => Ok(()),
    }
}

/// mq_open(2).
pub fn mq_open(name: u64, flags: u32, mode: u32, attr: UserPtr<Attr>) -> Result<u64> {
    let asked = Attr::read_asked(attr)?;
    let process = &current().process;
    let name = read_path(name)?;
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    // That there is no room for it comes before all that is wrong with the name.
    if process.files().is_full(process.fd_limit()) {
        return Err(Errno::EMFILE);
    }
    check_name(&name)?;
    let context = fs::context(asked);
    let kept = raw::O_ACCMODE | raw::O_CREAT | raw::O_EXCL | raw::O_NONBLOCK;
    let is_odd = flags & raw::O_ACCMODE == raw::O_ACCMODE;
    let how = How { flags: flags & kept, mode: mode & 0o7777, walk: 0 };
    if is_odd {
        // Only a new queue may be opened for nothing.
        let exclusive = How { flags: how.flags | raw::O_EXCL, ..how };
        if flags & raw::O_CREAT == 0 {
            open::open(&context, raw::AT_FDCWD, &name, &How { flags: raw::O_PATH, ..how })?;
            return Err(Errno::EINVAL);
        }
        let file = open::open(&context, raw::AT_FDCWD, &name, &exclusive);
        let is_there = file.as_ref().is_err_and(|&error| error == Errno::EEXIST);
        let error = if flags & raw::O_EXCL != 0 { Errno::EEXIST } else { Errno::EINVAL };
        return if is_there { Err(error) } else { give_file(file?, true) };
    }
    give_file(open::open(&context, raw::AT_FDCWD, &name, &how)?, true)
}

/// mq_unlink(2).
pub fn mq_unlink(name: u64) -> Result<u64> {
    let name = read_path(name)?;
    check_name(&name)?;
    namei::unlink(&fs::context(None), raw::AT_FDCWD, &name)?;
    Ok(0)
}

/// The queue behind an open file; EBADF.
fn queue_of(file: &File) -> Result<&QueueFile> {
    file.ops_as::<QueueFile>().ok_or(Errno::EBADF)
}

/// mq_timedsend(2).
pub fn mq_timedsend(
    fd: u32,
    text: u64,
    len: u64,
    priority: u32,
    timeout: UserPtr<TimeSpec>,
) -> Result<u64> {
    let deadline = Deadline::read(timeout, true)?;
    if priority >= PRIORITY_MAX {
        return Err(Errno::EINVAL);
    }
    let file = own_file(fd)?;
    let object = queue_of(&file)?;
    file.check_writable()?;
    if len > object.queue.max_bytes {
        return Err(Errno::EMSGSIZE);
    }
    crate::base::reserve::check_room_for_files().map_err(|_| Errno::ENOMEM)?;
    let text = UserPtr::<u8>::new(text).read_many(len as usize)?;
    let timeout = Timeout { nonblocking: file.is_nonblocking(), deadline };
    object.queue.send(Message { priority, text }, timeout)?;
    object.touch();
    Ok(0)
}

/// mq_timedreceive(2).
pub fn mq_timedreceive(
    fd: u32,
    at: UserPtr<u8>,
    len: u64,
    priority: UserPtr<u32>,
    timeout: UserPtr<TimeSpec>,
) -> Result<u64> {
    let deadline = Deadline::read(timeout, true)?;
    let file = own_file(fd)?;
    let object = queue_of(&file)?;
    file.check_readable()?;
    if len < object.queue.max_bytes {
        return Err(Errno::EMSGSIZE);
    }
    let timeout = Timeout { nonblocking: file.is_nonblocking(), deadline };
    let message = object.queue.receive(timeout)?;
    object.touch();
    priority.write_if_some(&message.priority)?;
    at.write_bytes(&message.text)?;
    Ok(message.text.len() as u64)
}

/// mq_notify(2).
pub fn mq_notify(fd: u32, event: UserPtr<SigEvent>) -> Result<u64> {
    let telling = event.non_null().map(|event| telling_of(&event.read()?)).transpose()?;
    let file = own_file(fd)?;
    let object = queue_of(&file)?;
    match telling {
        None => object.queue.unregister(current().process.files().identity()),
        Some(telling) => {
            crate::vfs::file::watch_closing();
            object.queue.register(telling)?;
        }
    }
    Ok(0)
}

/// EINVAL, EFAULT, EBADF, ENOTSOCK.
fn telling_of(event: &SigEvent) -> Result<Telling> {
    match event.notify {
        raw::SIGEV_NONE => Ok(Telling::Nothing),
        raw::SIGEV_SIGNAL if event.signal > LAST => Err(Errno::EINVAL),
        raw::SIGEV_SIGNAL => Ok(Telling::Signal(event.signal, event.value)),
        raw::SIGEV_THREAD => {
            let cookie = UserPtr::<[u8; COOKIE_BYTES]>::new(event.value).read()?;
            let file = own_file(event.signal)?;
            let sink_of = SINK_OF.get().ok_or(Errno::ENOTSOCK)?;
            Ok(Telling::Cookie(sink_of(&file)?, cookie))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// mq_getsetattr(2).
pub fn mq_getsetattr(fd: u32, new: UserPtr<Attr>, old: UserPtr<Attr>) -> Result<u64> {
    let new = new.non_null().map(UserPtr::read).transpose()?;
    if new.is_some_and(|new| new.flags & !i64::from(raw::O_NONBLOCK) != 0) {
        return Err(Errno::EINVAL);
    }
    let file = own_file(fd)?;
    let object = queue_of(&file)?;
    let before = Attr::of(&file, &object.queue);
    if let Some(new) = new {
        let kept = file.flags() & !raw::O_NONBLOCK;
        file.set_flags(kept | new.flags as u32);
    }
    old.write_if_some(&before)?;
    Ok(0)
}
