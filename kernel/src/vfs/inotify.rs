//! Watching files and directories (inotify(7)), and directories by signals (fcntl(2), F_NOTIFY).
//!
//! Why it is hard: everything that touches a file would have to report it, and hardly ever is
//! anybody watching. So every report begins with one load ([`is_active`]); only then is the object
//! looked at, which has its watches ([`super::state::InodeState`]). A watch holds its object by the
//! dentry.
//!
//! Locks: an object's watches, then an instance's `state`, then its wait queue. All are spin locks;
//! dentries that watches held are dropped after them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;

use super::anon::AnonInode;
use super::dentry::Dentry;
use super::leases::Holder;
use super::{File, FileOps, FileType, Inode};
use crate::base::args::translate;
use crate::base::io::Sink;
use crate::base::poll::{PollTable, events};
use crate::base::sync::WaitQueue;
use crate::base::user::UserPtr;

/// Most events an instance keeps (max_queued_events).
const EVENTS_MAX: usize = 16_384;
/// Most watches in all (max_user_watches).
const WATCHES_MAX: usize = 65_536;
/// Most instances (max_user_instances, for all users together).
const INSTANCES_MAX: usize = 1024;
/// Bytes of `struct inotify_event` before its name.
const HEADER: usize = 16;
/// The events a program can ask for.
const ALL_EVENTS: u32 = raw::IN_ALL_EVENTS;

/// An inotify instance.
pub struct Inotify {
    this: Weak<Inotify>,
    state: SpinLock<InstanceState>,
    readable: Arc<WaitQueue>,
    next: AtomicI32,
    inode: Arc<AnonInode>,
}

#[derive(Default)]
struct InstanceState {
    queue: VecDeque<Event>,
    /// Watched objects by descriptor: holding the dentry keeps the object where it is.
    watched: BTreeMap<i32, Arc<Dentry>>,
}

#[derive(PartialEq, Eq)]
struct Event {
    wd: i32,
    mask: u32,
    cookie: u32,
    name: Vec<u8>,
}

struct Watch {
    wd: i32,
    mask: u32,
    told: Told,
}

/// Who is told.
enum Told {
    Instance(Weak<Inotify>),
    /// By a signal, through an open directory with this identity.
    Directory(u64, Weak<dyn Holder>),
}

impl Watch {
    fn is_of(&self, instance: *const Inotify) -> bool {
        matches!(&self.told, Told::Instance(own) if core::ptr::eq(own.as_ptr(), instance))
    }

    fn is_of_file(&self, id: u64) -> bool {
        matches!(&self.told, Told::Directory(own, _) if *own == id)
    }
}

/// The watches of one object.
#[derive(Default)]
pub struct Watches(SpinLock<Vec<Watch>>);

/// How many watches there are.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static INSTANCES: AtomicUsize = AtomicUsize::new(0);
static COOKIE: AtomicU32 = AtomicU32::new(1);

/// Whether anybody watches anything.
#[inline(always)]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed) != 0
}

// ------------------------------------------------------------------------------------------------
// Reports

/// Something happened to an object: whoever watches it or its directory is told.
#[inline(always)]
pub fn event(dentry: &Arc<Dentry>, mask: u32) {
    if is_active() {
        event_slow(dentry, mask);
    }
}

fn event_slow(dentry: &Arc<Dentry>, mask: u32) {
    let mask = mask | if dentry.is_directory() { raw::IN_ISDIR } else { 0 };
    // Who watches the directory is told first.
    if let (Some(parent), name) = dentry.parent_and_name() {
        report(parent.inode(), mask, 0, &name, dentry.is_unlinked());
    }
    report(dentry.inode(), mask, 0, b"", false);
}

/// A name of a directory came or went.
#[inline(always)]
pub fn name_event(parent: &Dentry, name: &[u8], mask: u32, is_directory: bool, cookie: u32) {
    if is_active() {
        let mask = mask | if is_directory { raw::IN_ISDIR } else { 0 };
        report(parent.inode(), mask, cookie, name, false);
    }
}

/// A name was removed, and perhaps its object with it.
#[inline(always)]
pub fn removed(victim: &Dentry, parent: &Dentry, name: &[u8]) {
    if is_active() {
        if !victim.is_directory() {
            report(victim.inode(), raw::IN_ATTRIB, 0, b"", false);
        }
        name_event(parent, name, raw::IN_DELETE, victim.is_directory(), 0);
        gone(victim);
    }
}

/// An object lost its name to another one.
#[inline(always)]
pub fn replaced(victim: &Dentry) {
    if is_active() {
        gone(victim);
    }
}

/// Ends the watches of an object that has no names left.
fn gone(victim: &Dentry) {
    if !victim.is_directory() && victim.inode().metadata().is_ok_and(|of| of.links > 0) {
        return;
    }
    // Events about the object itself do not say that it is a directory (inotify(7)).
    report(victim.inode(), raw::IN_DELETE_SELF, 0, b"", false);
    let Some(watches) = victim.inode().state().known_watches() else { return };
    let watches = core::mem::take(&mut *watches.0.lock());
    for watch in watches {
        ACTIVE.fetch_sub(1, Ordering::Relaxed);
        if let Told::Instance(instance) = watch.told
            && let Some(instance) = instance.upgrade()
        {
            instance.end(watch.wd);
        }
    }
}

/// An object moved from one name to another.
pub fn renamed(dentry: &Arc<Dentry>, from: (&Arc<Dentry>, &[u8]), to: (&Arc<Dentry>, &[u8])) {
    if is_active() {
        let cookie = COOKIE.fetch_add(1, Ordering::Relaxed);
        let is_directory = dentry.is_directory();
        name_event(from.0, from.1, raw::IN_MOVED_FROM, is_directory, cookie);
        name_event(to.0, to.1, raw::IN_MOVED_TO, is_directory, cookie);
        report(dentry.inode(), raw::IN_MOVE_SELF, 0, b"", false);
    }
}

fn report(inode: &Arc<dyn Inode>, mask: u32, cookie: u32, name: &[u8], unlinked: bool) {
    let mut told: Vec<(Arc<Inotify>, i32, bool)> = Vec::new();
    let mut signalled: Vec<Arc<dyn Holder>> = Vec::new();
    {
        let Some(watches) = inode.state().known_watches() else { return };
        watches.0.lock().retain(|watch| {
            let wanted = watch.mask & mask & ALL_EVENTS != 0;
            if !wanted || unlinked && watch.mask & raw::IN_EXCL_UNLINK != 0 {
                return true;
            }
            let once = watch.mask & raw::IN_ONESHOT != 0;
            match &watch.told {
                Told::Instance(instance) => {
                    told.extend(instance.upgrade().map(|instance| (instance, watch.wd, once)));
                }
                Told::Directory(_, holder) => signalled.extend(holder.upgrade()),
            }
            if once {
                ACTIVE.fetch_sub(1, Ordering::Relaxed);
            }
            !once
        });
    }
    signalled.iter().for_each(|holder| holder.tell());
    for (instance, wd, once) in told {
        instance.push(Event { wd, mask, cookie, name: name.to_vec() });
        if once {
            instance.end(wd);
        }
    }
}

// ------------------------------------------------------------------------------------------------
// Instances

impl Inotify {
    /// A new instance; EMFILE if there are too many.
    pub fn new() -> Result<Arc<Inotify>> {
        if INSTANCES.fetch_add(1, Ordering::Relaxed) >= INSTANCES_MAX {
            INSTANCES.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::EMFILE);
        }
        Ok(Arc::new_cyclic(|this| Inotify {
            this: this.clone(),
            state: SpinLock::default(),
            readable: Arc::new(WaitQueue::new()),
            next: AtomicI32::new(1),
            inode: AnonInode::new(FileType::Anonymous, 0o600, "inotify"),
        }))
    }

    /// Adds or changes a watch (inotify_add_watch(2)); `mask` has been checked to name an event.
    pub fn watch(&self, dentry: &Arc<Dentry>, mask: u32) -> Result<i32> {
        let mut list = dentry.inode().state().watches().0.lock();
        let mine = |watch: &&mut Watch| watch.is_of(self);
        let kept = ALL_EVENTS | raw::IN_ONESHOT | raw::IN_EXCL_UNLINK;
        if let Some(watch) = list.iter_mut().find(mine) {
            if mask & raw::IN_MASK_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            let old = if mask & raw::IN_MASK_ADD != 0 { watch.mask } else { 0 };
            watch.mask = old | mask & kept;
            return Ok(watch.wd);
        }
        let wd = add(&mut list, || Watch {
            wd: self.next.fetch_add(1, Ordering::Relaxed),
            mask: mask & kept,
            told: Told::Instance(self.this.clone()),
        })?;
        self.state.lock().watched.insert(wd, dentry.clone());
        Ok(wd)
    }

    /// Ends a watch (inotify_rm_watch(2)); EINVAL if there is no such.
    pub fn unwatch(&self, wd: i32) -> Result<()> {
        let dentry = self.state.lock().watched.get(&wd).cloned().ok_or(Errno::EINVAL)?;
        forget(dentry.inode(), |watch| watch.wd == wd && watch.is_of(self));
        self.end(wd);
        Ok(())
    }

    /// Tells the program that a watch is over.
    fn end(&self, wd: i32) {
        let dentry = self.state.lock().watched.remove(&wd);
        if dentry.is_some() {
            self.push(Event { wd, mask: raw::IN_IGNORED, cookie: 0, name: Vec::new() });
        }
    }

    fn push(&self, event: Event) {
        {
            let mut state = self.state.lock();
            if state.queue.back() == Some(&event) {
                return;
            }
            match state.queue.len() {
                EVENTS_MAX.. => return,
                _ if state.queue.try_reserve(1).is_err() => return,
                len if len == EVENTS_MAX - 1 => state.queue.push_back(Event {
                    wd: -1,
                    mask: raw::IN_Q_OVERFLOW,
                    cookie: 0,
                    name: Vec::new(),
                }),
                _ => state.queue.push_back(event),
            }
        }
        self.readable.wake_all(events::READABLE);
    }

    /// The next event if it fits; EINVAL if it does not.
    fn pop(&self, room: usize) -> Option<Result<Event>> {
        let mut state = self.state.lock();
        let fits = state.queue.front()?.encoded_len() <= room;
        if fits { state.queue.pop_front().map(Ok) } else { Some(Err(Errno::EINVAL)) }
    }
}

impl Drop for Inotify {
    fn drop(&mut self) {
        INSTANCES.fetch_sub(1, Ordering::Relaxed);
        let this: *const Inotify = self;
        for dentry in self.state.get_mut().watched.values() {
            forget(dentry.inode(), |watch| watch.is_of(this));
        }
    }
}

/// What F_NOTIFY asks for, as events. A rename is told where the name was.
const SIGNALLED: [(u32, u32); 6] = [
    (raw::DN_ACCESS, raw::IN_ACCESS),
    (raw::DN_MODIFY, raw::IN_MODIFY),
    (raw::DN_CREATE, raw::IN_CREATE | raw::IN_MOVED_TO),
    (raw::DN_DELETE, raw::IN_DELETE | raw::IN_MOVED_FROM),
    (raw::DN_RENAME, raw::IN_MOVED_FROM),
    (raw::DN_ATTRIB, raw::IN_ATTRIB),
];

/// The events that an argument of F_NOTIFY asks for.
#[must_use]
pub fn signalled_events(wanted: u32) -> u32 {
    translate(wanted, &SIGNALLED)
}

/// Has `holder` told of these events in an open directory, once or (`again`) each time, beside what
/// it is told already; until the directory is closed. ENOSPC.
pub fn signal(file: &File, mask: u32, again: bool, holder: Weak<dyn Holder>) -> Result<()> {
    let inode = file.inode();
    let mut list = inode.state().watches().0.lock();
    if let Some(watch) = list.iter_mut().find(|watch| watch.is_of_file(file.id)) {
        watch.mask |= mask;
        if again {
            watch.mask &= !raw::IN_ONESHOT;
        }
        return Ok(());
    }
    let once = if again { 0 } else { raw::IN_ONESHOT };
    add(&mut list, || Watch { wd: 0, mask: mask | once, told: Told::Directory(file.id, holder) })?;
    Ok(())
}

/// Ends what [`signal`] began.
pub fn end_signals(file: &File) {
    if is_active() {
        forget(&file.inode(), |watch| watch.is_of_file(file.id));
    }
}

/// Adds a watch to those of an object, and gives its descriptor; ENOSPC beyond the most there may
/// be.
fn add(list: &mut Vec<Watch>, make: impl FnOnce() -> Watch) -> Result<i32> {
    if ACTIVE.load(Ordering::Relaxed) >= WATCHES_MAX || list.try_reserve(1).is_err() {
        return Err(Errno::ENOSPC);
    }
    let watch = make();
    let wd = watch.wd;
    list.push(watch);
    ACTIVE.fetch_add(1, Ordering::Relaxed);
    Ok(wd)
}

/// Removes watches of one object.
fn forget(inode: &Arc<dyn Inode>, which: impl Fn(&Watch) -> bool) {
    let Some(watches) = inode.state().known_watches() else { return };
    let mut list = watches.0.lock();
    let before = list.len();
    list.retain(|watch| !which(watch));
    ACTIVE.fetch_sub(before - list.len(), Ordering::Relaxed);
}

impl Event {
    /// Its name with at least one NUL, in units of a header.
    fn name_len(&self) -> usize {
        if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(HEADER) }
    }

    fn encoded_len(&self) -> usize {
        HEADER + self.name_len()
    }

    fn put(&self, sink: &mut Sink<'_>) -> Result<usize> {
        let mut header = [0; HEADER];
        let words = [self.wd as u32, self.mask, self.cookie, self.name_len() as u32];
        for (bytes, word) in header.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        if self.name.is_empty() {
            return sink.put(&header);
        }
        let mut bytes = Vec::with_capacity(self.encoded_len());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&self.name);
        bytes.resize(self.encoded_len(), 0);
        sink.put(&bytes)
    }
}

impl FileOps for Inotify {
    fn has_data(&self) -> (bool, bool) {
        (true, false)
    }

    fn has_io_signals(&self) -> bool {
        true
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) {
        let watched = self.state.lock().watched.clone();
        // The newest first.
        for (wd, dentry) in watched.into_iter().rev() {
            let Some(watches) = dentry.inode().state().known_watches() else { continue };
            let own = |watch: &&Watch| watch.wd == wd && watch.is_of(self);
            let Some(mask) = watches.0.lock().iter().find(own).map(|watch| watch.mask) else {
                continue;
            };
            let of = dentry.inode().metadata();
            let (inode, device) = of.map_or((0, 0), |of| (of.inode, of.device));
            // Text in memory has no error to give.
            let _ = write!(out, "inotify wd:{wd:x} ino:{inode:x} sdev:{device:x} ");
            let _ = writeln!(out, "mask:{mask:x} ignored_mask:0 ");
        }
    }

    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let mut done = 0;
        let mut next = if file.is_nonblocking() || !sink.may_wait() {
            self.pop(sink.left()).ok_or(Errno::EAGAIN)?
        } else {
            self.readable.wait(|| self.pop(sink.left()))?
        };
        loop {
            match next {
                Ok(event) => done += event.put(sink)?,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            match self.pop(sink.left()) {
                Some(event) => next = event,
                None => return Ok(done),
            }
        }
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.readable);
        if self.state.lock().queue.is_empty() { 0 } else { events::READABLE }
    }

    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        if command != abi::ioctl::FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let bytes: usize = self.state.lock().queue.iter().map(Event::encoded_len).sum();
        UserPtr::<i32>::new(argument).write(&(bytes as i32))?;
        Ok(0)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}
