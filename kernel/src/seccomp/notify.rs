//! Filters that leave calls to another program (SECCOMP_RET_USER_NOTIF, seccomp_unotify(2)).
//!
//! A [`Listener`] is what both ends hold: the filter, through which threads ask, and the
//! descriptor, through which a supervisor answers. A call that is asked about waits as a
//! [`Notice`].
//!
//! Why it is hard: either end may go at any time. A thread that is signalled takes its notice back,
//! and its id is never valid again; when the descriptor goes, all who wait get ENOSYS, as does
//! whoever asks later; when the last thread with the filter goes, the descriptor hangs up.
//!
//! Locks: a listener's state is a spin lock held for a few loads and stores.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, general as raw};
use machine::frame::PAGE_SIZE;
use machine::sync::SpinLock;
use seccomp::Data;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::poll::{PollTable, events};
use crate::base::sched::Sleep;
use crate::base::sync::{WaitError, WaitQueue};
use crate::base::user::{UserPtr, read_extensible};
use crate::process::Thread;
use crate::process::current;
use crate::process::seccomp::{Answer, Supervisor};
use crate::vfs::{File, FileOps, FileType, Inode, anon::AnonInode};

/// `struct seccomp_notif`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    data: [u32; 16],
}

/// `struct seccomp_notif_resp`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    source: u32,
    wanted: u32,
    open_flags: u32,
}

/// `struct seccomp_notif_sizes`: of the first two, and of `struct seccomp_data`.
pub(super) const SIZES: [u16; 3] =
    [size_of::<Notification>() as u16, size_of::<Response>() as u16, size_of::<Data>() as u16];

mod command {
    pub(super) const RECEIVE: u32 = 0xc050_2100;
    pub(super) const SEND: u32 = 0xc018_2101;
    pub(super) const ID_VALID: u32 = 0x4008_2102;
    /// The same with the direction that it first had.
    pub(super) const ID_VALID_OLD: u32 = 0x8008_2102;
    /// Without the size of what it takes, which may grow.
    pub(super) const ADD_FD: u32 = 0x4000_2103;
    pub(super) const SIZE_MASK: u32 = 0x3fff_0000;
    pub(super) const SET_FLAGS: u32 = 0x4008_2104;
}

/// SECCOMP_USER_NOTIF_FLAG_CONTINUE: the call is made after all.
const CONTINUE: u32 = 1;
/// SECCOMP_ADDFD_FLAG_SETFD and _SEND.
const ADD_AT: u32 = 1;
const ADD_AND_SEND: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nobody has seen it.
    Waits,
    /// A supervisor has it.
    Received,
    Answered(Answer),
}

/// A call that is asked about.
struct Notice {
    id: u64,
    /// Who waits for the answer.
    thread: Arc<Thread>,
    data: [u32; 16],
    stage: Stage,
    done: Arc<WaitQueue>,
}

struct NoticeState {
    next_id: u64,
    notices: Vec<Notice>,
}

/// See the module.
pub(super) struct Listener {
    state: SpinLock<NoticeState>,
    /// Woken when there is something to receive or to answer, or a hang-up.
    readers: Arc<WaitQueue>,
    /// The descriptor is gone.
    is_closed: AtomicBool,
    /// The filter is gone.
    is_unused: AtomicBool,
    /// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV.
    killable: bool,
}

impl Listener {
    /// A new one, and the file for its descriptor.
    #[must_use]
    pub(super) fn new(killable: bool) -> (Arc<Listener>, Arc<File>) {
        let listener = Arc::new(Listener {
            // Ids of listeners differ, so that one is not taken for another's.
            state: SpinLock::new(NoticeState {
                next_id: machine::entropy::random_u64(),
                notices: Vec::new(),
            }),
            readers: Arc::new(WaitQueue::new()),
            is_closed: AtomicBool::new(false),
            is_unused: AtomicBool::new(false),
            killable,
        });
        let inode = AnonInode::new(FileType::Anonymous, 0o600, "seccomp notify");
        let file = ListenerFile { listener: listener.clone(), inode };
        (listener, File::new(Arc::new(file), raw::O_RDWR, None))
    }

    fn enter(&self, data: &Data) -> Result<(u64, Arc<WaitQueue>)> {
        let thread = current();
        let done = Arc::new(WaitQueue::new());
        let mut state = self.state.lock();
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(Errno::ENOSYS);
        }
        state.notices.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let id = state.next_id;
        state.next_id = id.wrapping_add(1);
        let (thread, stage) = (thread.to_arc(), Stage::Waits);
        state.notices.push(Notice { id, thread, data: data.0, stage, done: done.clone() });
        Ok((id, done))
    }

    fn wait(&self, id: u64, done: &WaitQueue) -> Result<Answer> {
        loop {
            let received = |stage| self.killable && stage == Stage::Received;
            let was_received = self.state.lock().stage(id).is_some_and(received);
            let sleep = if was_received { Sleep::Killable } else { Sleep::Interruptible };
            // None: it sleeps in another way from now on.
            let answer = done.wait_deadline(sleep, None, || {
                if self.is_closed.load(Ordering::SeqCst) {
                    return Some(Some(Err(Errno::ENOSYS)));
                }
                match self.state.lock().stage(id)? {
                    Stage::Answered(answer) => Some(Some(Ok(answer))),
                    stage if received(stage) && !was_received => Some(None),
                    _ => None,
                }
            });
            match answer {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(WaitError::Interrupted | WaitError::TimedOut) => {
                    return Err(Errno::ERESTARTSYS);
                }
            }
        }
    }

    /// Marks the oldest notice that nobody has seen as received.
    fn receive(&self) -> Option<Notification> {
        let mut state = self.state.lock();
        let notice = state.notices.iter_mut().find(|notice| notice.stage == Stage::Waits)?;
        notice.stage = Stage::Received;
        notice.done.wake_all(0);
        let (id, pid, data) = (notice.id, notice.thread.tid(), notice.data);
        Some(Notification { id, pid, flags: 0, data })
    }

    /// A notice that could not be handed over waits again.
    fn give_back(&self, id: u64) {
        if let Ok(notice) = self.state.lock().received(id) {
            notice.stage = Stage::Waits;
        }
        self.readers.wake_all(events::READABLE);
    }

    fn answer(&self, id: u64, answer: Answer) -> Result<()> {
        let mut state = self.state.lock();
        let notice = state.received(id)?;
        notice.stage = Stage::Answered(answer);
        notice.done.wake_all(0);
        Ok(())
    }
}

impl Supervisor for Listener {
    fn forsake(&self) {
        self.is_unused.store(true, Ordering::SeqCst);
        self.readers.wake_all(0);
    }

    fn ask(&self, data: &Data) -> Answer {
        let result = self.enter(data).and_then(|(id, done)| {
            self.readers.wake_all(events::READABLE);
            let result = self.wait(id, &done);
            let notice = self.state.lock().take(id);
            drop(notice);
            result
        });
        result.unwrap_or_else(|error| Answer::Result(error.to_raw()))
    }
}

impl NoticeState {
    fn stage(&self, id: u64) -> Option<Stage> {
        self.notices.iter().find(|notice| notice.id == id).map(|notice| notice.stage)
    }

    fn take(&mut self, id: u64) -> Option<Notice> {
        let at = self.notices.iter().position(|notice| notice.id == id)?;
        Some(self.notices.remove(at))
    }

    /// The notice if a supervisor has it: ENOENT, or EINPROGRESS.
    fn received(&mut self, id: u64) -> Result<&mut Notice> {
        let notice = self.notices.iter_mut().find(|notice| notice.id == id);
        let notice = notice.ok_or(Errno::ENOENT)?;
        if notice.stage == Stage::Received { Ok(notice) } else { Err(Errno::EINPROGRESS) }
    }
}

/// The supervisor's descriptor.
struct ListenerFile {
    listener: Arc<Listener>,
    inode: Arc<AnonInode>,
}

impl ListenerFile {
    fn receive(&self, argument: u64) -> Result<u64> {
        let at = UserPtr::<Notification>::new(argument);
        if at.read()?.as_bytes().iter().any(|&byte| byte != 0) {
            return Err(Errno::EINVAL);
        }
        let listener = &self.listener;
        let next = || match listener.receive() {
            Some(notification) => Some(Ok(notification)),
            None if listener.is_unused.load(Ordering::SeqCst) => Some(Err(Errno::ENOENT)),
            None => None,
        };
        let notification = listener.readers.wait(next).map_err(|_| Errno::EINTR)??;
        listener.readers.wake_all(events::WRITABLE);
        if let Err(error) = at.write(&notification) {
            listener.give_back(notification.id);
            return Err(error);
        }
        Ok(0)
    }

    fn send(&self, argument: u64) -> Result<u64> {
        let response = UserPtr::<Response>::new(argument).read()?;
        let continues = response.flags & CONTINUE != 0;
        if response.flags & !CONTINUE != 0
            || continues && (response.error != 0 || response.value != 0)
        {
            return Err(Errno::EINVAL);
        }
        let answer = match response.error {
            _ if continues => Answer::Continue,
            0 => Answer::Result(response.value as u64),
            // Given as a negative number.
            error => Answer::Result(i64::from(error) as u64),
        };
        self.listener.answer(response.id, answer)?;
        Ok(0)
    }

    fn id_valid(&self, argument: u64) -> Result<u64> {
        let id = UserPtr::<u64>::new(argument).read()?;
        let stage = self.listener.state.lock().stage(id);
        if stage == Some(Stage::Received) { Ok(0) } else { Err(Errno::ENOENT) }
    }

    /// Gives the thread that asks a copy of one of the supervisor's descriptors.
    fn add_fd(&self, argument: u64, size: u32) -> Result<u64> {
        if !(size_of::<AddFd>() as u32..PAGE_SIZE as u32).contains(&size) {
            return Err(Errno::EINVAL);
        }
        let wanted: AddFd = read_extensible(argument, size.into())?;
        if wanted.flags & !(ADD_AT | ADD_AND_SEND) != 0
            || wanted.open_flags & !raw::O_CLOEXEC != 0
            || wanted.wanted != 0 && wanted.flags & ADD_AT == 0
        {
            return Err(Errno::EINVAL);
        }
        let file = current().files().get(wanted.source)?;
        let thread = self.listener.state.lock().received(wanted.id)?.thread.clone();
        let files = thread.files();
        let close_on_exec = wanted.open_flags & raw::O_CLOEXEC != 0;
        let limit = thread.process.fd_limit();
        let fd = match wanted.flags & ADD_AT {
            0 => files.insert(file, close_on_exec, 0, limit)?,
            _ => {
                drop(files.replace(wanted.wanted, file, close_on_exec, limit)?);
                wanted.wanted
            }
        };
        if wanted.flags & ADD_AND_SEND != 0 {
            self.listener.answer(wanted.id, Answer::Result(fd.into()))?;
        }
        Ok(fd.into())
    }
}

impl FileOps for ListenerFile {
    fn has_data(&self) -> (bool, bool) {
        (false, false)
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        let listener = &self.listener;
        table.wait_on(&listener.readers);
        let state = listener.state.lock();
        let has = |wanted| state.notices.iter().any(|notice| notice.stage == wanted);
        let mut mask = 0;
        if has(Stage::Waits) {
            mask |= events::READABLE;
        }
        if has(Stage::Received) {
            mask |= events::WRITABLE;
        }
        if listener.is_unused.load(Ordering::SeqCst) {
            mask |= events::HUP;
        }
        mask
    }

    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        match command {
            command::RECEIVE => self.receive(argument),
            command::SEND => self.send(argument),
            command::ID_VALID | command::ID_VALID_OLD => self.id_valid(argument),
            add if add & !command::SIZE_MASK == command::ADD_FD => {
                self.add_fd(argument, (add & command::SIZE_MASK) >> 16)
            }
            // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP is advice for the scheduler, which is not taken.
            command::SET_FLAGS if argument & !1 == 0 => Ok(0),
            _ => Err(Errno::EINVAL),
        }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }

    fn release(&self, _file: &File) {
        self.listener.is_closed.store(true, Ordering::SeqCst);
        for notice in &self.listener.state.lock().notices {
            notice.done.wake_all(0);
        }
    }
}
