//! Waiting for many files by a set that the kernel keeps (epoll(7)).
//!
//! An [`Item`] is one registered (file, descriptor). It stays on the file's wait queues while it is
//! registered; a wake-up puts it on the set's ready list, from any context. epoll_wait takes items
//! off that list and asks their files: a file that is not ready after all just leaves the list, one
//! that is ready is reported, and with level triggering goes back to the end of the list. So a wait
//! costs what is ready, not what is registered.
//!
//! No wake-up is lost: an item is taken off the list (its mark cleared) before its file is asked,
//! so whatever happens after the question puts it back.
//!
//! The ready list, not the set, is what items point to: a wake-up never holds the last reference to
//! a set or to a file. Cycles of references (item, its registration, the queue) are cut by
//! [`Item::detach`], which every removal calls.
//!
//! A file knows the items that watch it, and its end tells them; so nothing but the check for
//! cycles meets another set's lock.
//!
//! Locks, outermost first: [`NESTING`], a set's `items`, an item's `registration`, a wait queue, a
//! ready list, the set's own queue. A file's watchers are under none and over none.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::{Once, SpinLock};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::epoll_items::Watched;
use super::{read_timeout, signals};
use crate::base::lists::{Lists, Place};
use crate::base::poll::{PollTable, events};
use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitError, WaitQueue, Wake};
use crate::base::time::Deadline;
use crate::base::user::UserPtr;
use crate::vfs::file::FileWatcher;
use crate::vfs::{Fd, File, FileOps, FileType, Inode, anon::AnonInode};

/// Most items of one set.
const ITEMS_MAX: usize = 1 << 20;
/// Deepest chain of sets that watch sets (epoll_ctl(2), ELOOP).
const DEPTH_MAX: usize = 5;

/// `struct epoll_event` (epoll_ctl(2)); packed on x86-64.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C, packed)]
pub struct Event {
    events: u32,
    data: u64,
}

/// Items that are asked between two looks at the list.
const BATCH: usize = 8;

/// Flags beside the poll mask.
const FLAGS: u32 = raw::EPOLLET | raw::EPOLLONESHOT | EPOLLWAKEUP | raw::EPOLLEXCLUSIVE;
const EPOLLWAKEUP: u32 = 1 << 29;
/// What EPOLLEXCLUSIVE may be combined with.
const EXCLUSIVE_OK: u32 = events::IN
    | events::OUT
    | events::ERR
    | events::HUP
    | EPOLLWAKEUP
    | raw::EPOLLET
    | raw::EPOLLEXCLUSIVE;

/// Items that may be ready, and who waits for them.
struct ReadyList {
    items: SpinLock<Lists<Arc<Item>, 1>>,
    /// Waiters in epoll_wait, and whoever polls the set itself.
    queue: Arc<WaitQueue>,
    /// The set's open file.
    owner: Once<Weak<File>>,
    /// Some file was closed: the set has items to throw away.
    is_stale: AtomicBool,
}

impl ReadyList {
    /// Puts the item on the list unless it is there. Its place has been reserved.
    fn push(&self, item: &Arc<Item>) {
        if !item.is_listed.swap(true, Ordering::SeqCst) {
            Item::enlist(item.clone(), &mut self.items.lock());
        }
    }

    fn pop(&self) -> Option<Arc<Item>> {
        let mut items = self.items.lock();
        let item = items.pop_front(0)?;
        item.listed_at.store(Place::NONE.number(), Ordering::Relaxed);
        Some(item)
    }

    /// Takes as many as there is room for, and there are.
    fn pop_some(&self, into: &mut [Option<Arc<Item>>]) -> usize {
        let mut items = self.items.lock();
        for (at, room) in into.iter_mut().enumerate() {
            let Some(item) = items.pop_front(0) else { return at };
            item.listed_at.store(Place::NONE.number(), Ordering::Relaxed);
            *room = Some(item);
        }
        into.len()
    }

    /// Of ready items the first so many were told. Those come back behind all others, if they are
    /// to be told again, and the rest before them.
    fn put_back(&self, ready: &mut [Option<Arc<Item>>], told: usize) {
        let mut items = self.items.lock();
        let comes_back = |item: &mut Arc<Item>| !item.is_listed.swap(true, Ordering::SeqCst);
        let (told, rest) = ready.split_at_mut(told);
        // Others are dropped when the lock is free.
        for place in told {
            if let Some(item) = place.take_if(|item| item.is_told_again() && comes_back(item)) {
                Item::enlist(item, &mut items);
            }
        }
        for place in rest.iter_mut().rev() {
            if let Some(item) = place.take_if(comes_back) {
                item.note_place(&items);
                items.push_front(0, item);
            }
        }
    }

    /// Takes an item off the list, if it is there by now.
    fn take(&self, item: &Item) -> Option<Arc<Item>> {
        let mut items = self.items.lock();
        let place = item.listed_at.swap(Place::NONE.number(), Ordering::Relaxed);
        items.remove(0, Place::of_number(place))
    }

    fn len(&self) -> usize {
        self.items.lock().len()
    }
}

/// One registration.
struct Item {
    me: Weak<Item>,
    list: Arc<ReadyList>,
    file: Weak<File>,
    /// Poll mask with flags; without mask bits after EPOLLONESHOT has fired.
    mask: AtomicU32,
    data: AtomicU64,
    is_listed: AtomicBool,
    /// Its place on the ready list, under whose lock it changes.
    listed_at: AtomicU32,
    /// Its place among the watchers of its file.
    watched_at: AtomicU32,
    registration: Mutex<Option<PollTable>>,
}

impl Item {
    /// What its file can do now, of what is wanted.
    fn ask(&self, table: &mut PollTable) -> u32 {
        let mask = self.mask.load(Ordering::SeqCst) & !FLAGS;
        if mask == 0 {
            return 0;
        }
        match self.file.upgrade() {
            Some(file) => file.ops().poll(&file, table) & mask,
            None => 0,
        }
    }

    /// After an event was told: whether the next wait is to look at it again.
    fn is_told_again(&self) -> bool {
        let mask = self.mask.load(Ordering::SeqCst);
        if mask & raw::EPOLLONESHOT != 0 {
            // Only if nobody has re-armed it meanwhile.
            let off = mask & FLAGS;
            let _ = self.mask.compare_exchange(mask, off, Ordering::SeqCst, Ordering::SeqCst);
            return false;
        }
        mask & raw::EPOLLET == 0
    }

    /// Goes to the end of the ready list, where there is room.
    #[inline(always)]
    fn enlist(item: Arc<Item>, list: &mut Lists<Arc<Item>, 1>) {
        item.note_place(list);
        list.push_back(0, item);
    }

    /// It is about to be put on the list.
    #[inline(always)]
    fn note_place(&self, list: &Lists<Arc<Item>, 1>) {
        self.listed_at.store(list.next_place().number(), Ordering::Relaxed);
    }

    /// Leaves the file's queues. Afterwards nothing but the ready list may hold the item.
    fn detach(&self) {
        self.mask.store(0, Ordering::SeqCst);
        let registration = self.registration.lock().take();
        drop(registration);
    }
}

impl Wake for Item {
    fn wake(&self, happened: u32) -> bool {
        let mask = self.mask.load(Ordering::SeqCst) & !FLAGS;
        if mask == 0 || (happened != 0 && happened & mask == 0) {
            return false;
        }
        let Some(me) = self.me.upgrade() else { return false };
        self.list.push(&me);
        let has_waiters = self.list.queue.has_waiters();
        self.list.queue.wake_one(events::READABLE);
        // A set that nobody waits on does not use up the one wake-up of exclusive waiters.
        has_waiters
    }
}

/// The items of a set.
#[derive(Default)]
struct Items {
    watched: Watched<Arc<Item>>,
    /// For so many there is room on the ready list.
    reserved: usize,
}

/// A set.
pub struct Epoll {
    items: Mutex<Items>,
    list: Arc<ReadyList>,
    inode: Arc<AnonInode>,
}

/// Taken when a set is put into a set: makes the check for cycles mean something.
static NESTING: Mutex<()> = Mutex::new(());

/// How many registrations there are.
static WATCHES: AtomicUsize = AtomicUsize::new(0);
/// What a registration costs with its places in lists, bytes.
const WATCH_COST: usize = 256;

/// Most registrations in the system (fs.epoll.max_user_watches): those that fill a 25th of the
/// memory.
pub fn watches_max() -> usize {
    machine::frame::total() * machine::frame::PAGE_SIZE / 25 / WATCH_COST
}

impl FileWatcher for Item {
    /// It leaves its set.
    fn file_closed(&self) {
        self.detach();
        self.list.is_stale.store(true, Ordering::SeqCst);
        WATCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes events where a program wants them; how many it could be given.
fn write_events(to: UserPtr<Event>, events: &[Event]) -> usize {
    match to.write_many(events) {
        Ok(()) => events.len(),
        Err(_) => (0..events.len()).take_while(|&at| to.nth(at).write(&events[at]).is_ok()).count(),
    }
}

fn watch(item: &Item, file: &File) -> Result<()> {
    if WATCHES.fetch_add(1, Ordering::Relaxed) >= watches_max() {
        WATCHES.fetch_sub(1, Ordering::Relaxed);
        return Err(Errno::ENOSPC);
    }
    match file.watch(item.me.clone()) {
        Ok(place) => {
            item.watched_at.store(place.number(), Ordering::Relaxed);
            Ok(())
        }
        Err(error) => {
            WATCHES.fetch_sub(1, Ordering::Relaxed);
            Err(error)
        }
    }
}

fn unwatch(item: &Item, file: &File) {
    file.unwatch(Place::of_number(item.watched_at.load(Ordering::Relaxed)));
    WATCHES.fetch_sub(1, Ordering::Relaxed);
}

impl Epoll {
    /// Registers a file. EEXIST, ENOSPC, ENOMEM.
    fn add(&self, file: &Arc<File>, fd: Fd, event: Event) -> Result<()> {
        let mut items = self.items.lock();
        let Items { watched: items, reserved } = &mut *items;
        // Files that were closed left their items behind, detached.
        if self.list.is_stale.load(Ordering::SeqCst) {
            self.list.is_stale.store(false, Ordering::SeqCst);
            items.retain(|item| item.file.strong_count() > 0);
        }
        let len = items.count();
        if items.get(file.id, fd).is_some() {
            return Err(Errno::EEXIST);
        }
        if len >= ITEMS_MAX {
            return Err(Errno::ENOSPC);
        }
        if len == *reserved {
            self.reserve(len + 1)?;
            *reserved = len + 1;
        }
        let item = Arc::new_cyclic(|me| Item {
            me: me.clone(),
            list: self.list.clone(),
            file: Arc::downgrade(file),
            mask: AtomicU32::new(event.events | events::ERR | events::HUP),
            data: AtomicU64::new(event.data),
            is_listed: AtomicBool::new(false),
            listed_at: AtomicU32::new(Place::NONE.number()),
            watched_at: AtomicU32::new(Place::NONE.number()),
            registration: Mutex::new(None),
        });
        watch(&item, file)?;
        items.insert(file.id, fd, item.clone());
        let mut registration = item.registration.lock();
        let exclusive = event.events & raw::EPOLLEXCLUSIVE != 0;
        let mut table = PollTable::register(item.clone(), exclusive);
        let ready = item.ask(&mut table);
        if let Err(error) = table.check() {
            drop(registration);
            items.remove(file.id, fd);
            self.forget(&item, Some(file));
            return Err(error);
        }
        *registration = Some(table);
        drop(registration);
        self.announce(&item, ready);
        Ok(())
    }

    /// Makes sure that all items, and those that are being removed, find a place on the ready list.
    fn reserve(&self, items: usize) -> Result<()> {
        loop {
            let (len, capacity) = {
                let list = self.list.items.lock();
                (list.len(), list.capacity())
            };
            if capacity >= items.max(len) * 2 {
                return Ok(());
            }
            let larger = Lists::try_with_capacity(items.max(len) * 4);
            let mut larger = larger.map_err(|_| Errno::ENOMEM)?;
            let mut list = self.list.items.lock();
            if larger.capacity() >= list.len() * 2 {
                while let Some(item) = list.pop_front(0) {
                    Item::enlist(item, &mut larger);
                }
                core::mem::swap(&mut *list, &mut larger);
            }
            drop(list);
        }
    }

    fn announce(&self, item: &Arc<Item>, ready: u32) {
        if ready != 0 {
            self.list.push(item);
            self.list.queue.wake_one(events::READABLE);
        }
    }

    /// Changes what is wanted. ENOENT.
    fn modify(&self, file: &Arc<File>, fd: Fd, event: Event) -> Result<()> {
        let items = self.items.lock();
        let item = items.watched.get(file.id, fd).ok_or(Errno::ENOENT)?;
        if item.mask.load(Ordering::SeqCst) & raw::EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        item.data.store(event.data, Ordering::SeqCst);
        item.mask.store(event.events | events::ERR | events::HUP, Ordering::SeqCst);
        let ready = item.ask(&mut PollTable::ask());
        self.announce(item, ready);
        Ok(())
    }

    /// Takes a registration away. ENOENT.
    fn remove(&self, file: &Arc<File>, fd: Fd) -> Result<()> {
        let item = self.items.lock().watched.remove(file.id, fd).ok_or(Errno::ENOENT)?;
        self.forget(&item, Some(file));
        Ok(())
    }

    /// Ends a registration of `file`, or of a file that is gone, which has no watchers.
    fn forget(&self, item: &Arc<Item>, file: Option<&File>) {
        item.detach();
        if let Some(file) = file {
            unwatch(item, file);
        }
        if item.is_listed.load(Ordering::SeqCst) {
            drop(self.list.take(item));
        }
    }

    /// Reports up to `max` events; 0 if there are none after all.
    fn collect(&self, to: UserPtr<Event>, max: usize) -> Result<u64> {
        let mut found = 0;
        // Each item on the list now is looked at once; those that come back wait for the next call.
        let mut left = self.list.len();
        let mut result = Ok(());
        let mut nowhere = PollTable::ask();
        while found < max && left > 0 && result.is_ok() {
            let mut batch = [const { None }; BATCH];
            let taken = self.list.pop_some(&mut batch[..BATCH.min(left).min(max - found)]);
            if taken == 0 {
                break;
            }
            left -= taken;
            let mut told = [Event { events: 0, data: 0 }; BATCH];
            let mut count = 0;
            for at in 0..taken {
                let Some(item) = &batch[at] else { continue };
                item.is_listed.store(false, Ordering::SeqCst);
                let events = item.ask(&mut nowhere);
                if events != 0 {
                    told[count] = Event { events, data: item.data.load(Ordering::SeqCst) };
                    batch.swap(at, count);
                    count += 1;
                }
            }
            let written = write_events(to.nth(found), &told[..count]);
            self.list.put_back(&mut batch[..count], written);
            found += written;
            if written < count {
                result = Err(Errno::EFAULT);
            }
        }
        if self.list.len() > 0 {
            self.list.queue.wake_one(events::READABLE);
        }
        if found > 0 { Ok(found as u64) } else { result.map(|()| 0) }
    }

    fn wait(&self, to: UserPtr<Event>, max: usize, deadline: Option<Deadline>) -> Result<u64> {
        loop {
            let found = self.collect(to, max)?;
            if found > 0 || deadline.is_some_and(Deadline::has_passed) {
                return Ok(found);
            }
            let ready = || (self.list.len() > 0).then_some(());
            match self.list.queue.wait_deadline(Sleep::Interruptible, deadline, ready) {
                Ok(()) => {}
                Err(WaitError::TimedOut) => return Ok(0),
                // Never restarted, whatever SA_RESTART says (signal(7)).
                Err(WaitError::Interrupted) => return Err(Errno::EINTR),
            }
        }
    }

    /// Whether an item is ready. Takes those off the list that are not.
    fn is_ready(&self) -> bool {
        for _ in 0..self.list.len() {
            let Some(item) = self.list.pop() else { break };
            item.is_listed.store(false, Ordering::SeqCst);
            if item.ask(&mut PollTable::ask()) != 0 {
                self.list.push(&item);
                return true;
            }
        }
        false
    }

    /// Sets among its files.
    fn children(&self) -> Vec<Arc<File>> {
        let items = self.items.lock();
        let files = items.watched.iter().filter_map(|(_, item)| item.file.upgrade());
        files.filter(|file| file.ops_as::<Epoll>().is_some()).collect()
    }
}

impl FileOps for Epoll {
    fn has_data(&self) -> (bool, bool) {
        (false, false)
    }

    /// Commands that a set does not know are none at all, not those of another device.
    fn ioctl(&self, _file: &File, _command: u32, _argument: u64) -> Result<u64> {
        Err(Errno::EINVAL)
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) {
        for (fd, item) in self.items.lock().watched.iter() {
            let Some(file) = item.file.upgrade() else { continue };
            let mask = item.mask.load(Ordering::Relaxed);
            let data = item.data.load(Ordering::Relaxed);
            let of = file.inode().metadata();
            let (inode, device) = of.map_or((0, 0), |of| (of.inode, of.device));
            // Text in memory has no error to give.
            let _ = write!(out, "tfd: {fd:8} events: {mask:8x} data: {data:16x} ");
            let _ = writeln!(out, " pos:0 ino:{inode:x} sdev:{device:x}");
        }
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.list.queue);
        if self.is_ready() { events::READABLE } else { 0 }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }

    fn release(&self, _file: &File) {
        let items = core::mem::take(&mut self.items.lock().watched);
        for (_, item) in items.iter() {
            self.forget(item, item.file.upgrade().as_deref());
        }
        // Items whose files were closed may still be listed.
        let rest = core::mem::take(&mut *self.list.items.lock());
        drop(rest);
    }
}

/// Longest chain of sets from `file` down, itself included. ELOOP if `target` is among them or the
/// chain is longer than `room`.
fn depth(file: &Arc<File>, target: &Arc<File>, room: usize) -> Result<usize> {
    if Arc::ptr_eq(file, target) || room == 0 {
        return Err(Errno::ELOOP);
    }
    let Some(epoll) = file.ops_as::<Epoll>() else { return Ok(0) };
    let mut longest = 0;
    for child in epoll.children() {
        longest = longest.max(depth(&child, target, room - 1)?);
    }
    Ok(longest + 1)
}

/// How many sets are above this one, itself included: found through the watchers of its file.
fn height(file: &File, room: usize) -> usize {
    if room == 0 {
        return 0;
    }
    let above = |watcher: &Arc<dyn FileWatcher>| {
        let watcher: &dyn Any = &**watcher;
        let item = watcher.downcast_ref::<Item>()?;
        Some(height(&*item.list.owner.get()?.upgrade()?, room - 1))
    };
    1 + file.watchers().iter().filter_map(above).max().unwrap_or(0)
}

/// epoll_create(2): the size must be positive and means nothing.
pub fn sys_epoll_create(size: i32) -> Result<u64> {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    create(0)
}

/// epoll_create1(2).
pub fn sys_epoll_create1(flags: u32) -> Result<u64> {
    create(flags)
}

fn create(flags: u32) -> Result<u64> {
    if flags & !raw::EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let list = Arc::new(ReadyList {
        items: SpinLock::new(Lists::new()),
        queue: Arc::new(WaitQueue::new()),
        owner: Once::new(),
        is_stale: AtomicBool::new(false),
    });
    let inode = AnonInode::new(FileType::Anonymous, 0o600, "[eventpoll]");
    let epoll = Epoll { items: Mutex::new(Items::default()), list, inode };
    super::give_ops(Arc::new(epoll), raw::O_RDWR, flags & raw::EPOLL_CLOEXEC != 0)
}

/// epoll_ctl(2).
pub fn sys_epoll_ctl(
    epoll_word: u64,
    operation: u32,
    fd: u64,
    event_at: UserPtr<Event>,
) -> Result<u64> {
    let mut event = if operation == raw::EPOLL_CTL_DEL {
        Event { events: 0, data: 0 }
    } else {
        event_at.read()?
    };
    let [set, file] = super::files_at([epoll_word, fd])?;
    let fd = fd as Fd;
    if !file.ops().is_pollable() {
        return Err(Errno::EPERM);
    }
    let Some(epoll) = set.ops_as::<Epoll>() else { return Err(Errno::EINVAL) };
    if Arc::ptr_eq(&set, &file) {
        return Err(Errno::EINVAL);
    }
    if event.events & raw::EPOLLEXCLUSIVE != 0 {
        let is_set = file.ops_as::<Epoll>().is_some();
        let wrong = event.events & !EXCLUSIVE_OK != 0;
        if operation == raw::EPOLL_CTL_MOD || is_set || wrong {
            return Err(Errno::EINVAL);
        }
    }
    event.events &= !EPOLLWAKEUP;
    epoll.list.owner.call_once(|| Arc::downgrade(&set));
    match operation {
        raw::EPOLL_CTL_ADD if file.ops_as::<Epoll>().is_some() => {
            let _nesting = NESTING.lock();
            let below = depth(&file, &set, DEPTH_MAX + 1)?;
            if below + height(&set, DEPTH_MAX + 1) > DEPTH_MAX {
                return Err(Errno::ELOOP);
            }
            epoll.add(&file, fd, event)?;
        }
        raw::EPOLL_CTL_ADD => epoll.add(&file, fd, event)?,
        raw::EPOLL_CTL_MOD => epoll.modify(&file, fd, event)?,
        raw::EPOLL_CTL_DEL => epoll.remove(&file, fd)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Reads a set's file and checks the arguments that all waits share.
fn wait(fd: u64, events: u64, max: i32, deadline: Option<Deadline>) -> Result<u64> {
    if max <= 0 || max as usize > i32::MAX as usize / size_of::<Event>() {
        return Err(Errno::EINVAL);
    }
    let places = UserPtr::<Event>::new(events);
    if !UserPtr::<u8>::new(events).is_user_range(max as usize * size_of::<Event>()) {
        return Err(Errno::EFAULT);
    }
    let set = super::file_at(fd)?;
    let epoll = set.ops_as::<Epoll>().ok_or(Errno::EINVAL)?;
    epoll.wait(places, max as usize, deadline)
}

/// A timeout in milliseconds: negative is for ever.
fn deadline_ms(timeout: i32) -> Option<Deadline> {
    u64::try_from(timeout).ok().map(|ms| Deadline::after_ns(ms * 1_000_000))
}

/// epoll_wait(2).
pub fn sys_epoll_wait(fd: u64, events: u64, max: i32, timeout: i32) -> Result<u64> {
    wait(fd, events, max, deadline_ms(timeout))
}

/// epoll_pwait(2).
pub fn sys_epoll_pwait(
    fd: u64,
    events: u64,
    max: i32,
    timeout: i32,
    mask: u64,
    mask_size: u64,
) -> Result<u64> {
    signals::replace_mask(mask, mask_size)?;
    wait(fd, events, max, deadline_ms(timeout))
}

/// epoll_pwait2(2): the timeout is a `struct timespec`.
pub fn sys_epoll_pwait2(
    fd: u64,
    events: u64,
    max: i32,
    timeout: u64,
    mask: u64,
    mask_size: u64,
) -> Result<u64> {
    let deadline = read_timeout(timeout)?.map(Deadline::after_ns);
    signals::replace_mask(mask, mask_size)?;
    wait(fd, events, max, deadline)
}
