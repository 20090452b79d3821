//! Locks on files: record locks of processes and of open files (fcntl(2)), and flock(2).
//!
//! Why it is hard: three kinds of owners with three life times. A process's record locks go when it
//! closes any descriptor of the file; those of an open file, and flocks, when the last descriptor
//! of that open file is closed. Closing must cost nothing where no lock exists, so both begin with
//! a load of a counter.
//!
//! Locks of one file are kept by the object's address; the table holds the object while it has any.
//! Waiters all wait on one queue and look again when any lock goes: file locks are rare.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::Inode;
use crate::base::sync::WaitQueue;

/// Most locks in the system.
const LOCKS_MAX: usize = 8192;
/// Longest chain of waiters looked at for a deadlock.
const CHAIN_MAX: usize = 64;

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A process, named by its table of descriptors.
    Process(usize),
    /// An open file, by its number (F_OFD_SETLK).
    OpenFile(u64),
    /// An open file, by flock(2).
    Flock(u64),
}

/// A lock on bytes `start..=end`.
#[derive(Clone, Copy, Debug)]
pub struct Lock {
    /// Who holds it.
    pub owner: Owner,
    /// Whether it excludes all others.
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// Process id to report; -1 for open files.
    pub pid: i32,
}

struct Held {
    inode: Arc<dyn Inode>,
    locks: Vec<Lock>,
}

static HELD: SpinLock<BTreeMap<usize, Held>> = SpinLock::new(BTreeMap::new());
/// How many locks there are; an upper bound where no lock is taken.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static RELEASED: WaitQueue = WaitQueue::new();
/// Who waits for whom, for deadlocks among processes.
static WAITING: SpinLock<BTreeMap<Owner, Owner>> = SpinLock::new(BTreeMap::new());

fn key(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).addr()
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Flocks only meet flocks, record locks only record locks.
    fn is_same_kind(&self, other: &Lock) -> bool {
        matches!(self.owner, Owner::Flock(_)) == matches!(other.owner, Owner::Flock(_))
    }

    fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.is_same_kind(other)
            && self.overlaps(other)
    }
}

/// The first lock in the way of `wanted` (F_GETLK).
pub fn conflict(inode: &Arc<dyn Inode>, wanted: &Lock) -> Option<Lock> {
    let held = HELD.lock();
    let locks = &held.get(&key(inode))?.locks;
    locks.iter().filter(|lock| lock.conflicts(wanted)).min_by_key(|lock| lock.start).copied()
}

/// Takes a lock, in place of what the owner holds of these bytes. EAGAIN if it is held by another
/// and not `wait`; EDEADLK if waiting could never end; ENOLCK if there are too many.
pub fn acquire(inode: &Arc<dyn Inode>, wanted: &Lock, wait: bool) -> Result<()> {
    match try_acquire(inode, wanted)? {
        None => return Ok(()),
        Some(_) if !wait => return Err(Errno::EAGAIN),
        Some(_) => {}
    }
    let result = RELEASED.wait(|| match try_acquire(inode, wanted) {
        Ok(None) => Some(Ok(())),
        Ok(Some(blocker)) => note_wait(wanted.owner, blocker.owner).err().map(Err),
        Err(error) => Some(Err(error)),
    });
    WAITING.lock().remove(&wanted.owner);
    result?
}

/// Remembers who waits for whom; EDEADLK if that closes a circle of processes.
fn note_wait(waiter: Owner, blocker: Owner) -> Result<()> {
    if !matches!(waiter, Owner::Process(_)) {
        return Ok(());
    }
    let mut waiting = WAITING.lock();
    let mut at = blocker;
    for _ in 0..CHAIN_MAX {
        if at == waiter {
            return Err(Errno::EDEADLK);
        }
        match waiting.get(&at) {
            Some(&next) => at = next,
            None => break,
        }
    }
    waiting.insert(waiter, blocker);
    Ok(())
}

/// The lock in the way, or None: it is taken.
fn try_acquire(inode: &Arc<dyn Inode>, wanted: &Lock) -> Result<Option<Lock>> {
    let mut held = HELD.lock();
    let entry =
        held.entry(key(inode)).or_insert_with(|| Held { inode: inode.clone(), locks: Vec::new() });
    if let Some(blocker) = entry.locks.iter().find(|lock| lock.conflicts(wanted)) {
        return Ok(Some(*blocker));
    }
    if COUNT.load(Ordering::Relaxed) >= LOCKS_MAX {
        return Err(Errno::ENOLCK);
    }
    // What it adds, and the pieces that a later release may cut it into.
    entry.locks.try_reserve(4).map_err(|_| Errno::ENOLCK)?;
    let before = entry.locks.len();
    let weakened = cut(&mut entry.locks, wanted);
    join(&mut entry.locks, *wanted);
    count(before, entry.locks.len());
    drop(held);
    if weakened {
        RELEASED.wake_all(0);
    }
    Ok(None)
}

/// Gives back what the owner of `range` holds of its bytes.
pub fn release(inode: &Arc<dyn Inode>, range: &Lock) {
    let mut held = HELD.lock();
    let Some(entry) = held.get_mut(&key(inode)) else { return };
    let before = entry.locks.len();
    let changed = cut(&mut entry.locks, range);
    count(before, entry.locks.len());
    let empty = entry.locks.is_empty();
    let unused = if empty { held.remove(&key(inode)) } else { None };
    drop(held);
    drop(unused);
    if changed {
        RELEASED.wake_all(0);
    }
}

fn count(before: usize, after: usize) {
    COUNT.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
}

/// Takes the bytes of `range` away from the owner's locks. Whether that changed any.
fn cut(locks: &mut Vec<Lock>, range: &Lock) -> bool {
    let mut pieces = Vec::new();
    let before = locks.len();
    locks.retain(|lock| {
        if lock.owner != range.owner || !lock.overlaps(range) {
            return true;
        }
        if lock.start < range.start {
            pieces.push(Lock { end: range.start - 1, ..*lock });
        }
        if lock.end > range.end {
            pieces.push(Lock { start: range.end + 1, ..*lock });
        }
        false
    });
    let changed = locks.len() != before;
    locks.extend(pieces);
    changed
}

/// Adds a lock, joined with the owner's neighbours of the same kind.
fn join(locks: &mut Vec<Lock>, mut new: Lock) {
    locks.retain(|lock| {
        let touches = lock.end.checked_add(1) == Some(new.start)
            || new.end.checked_add(1) == Some(lock.start);
        let joins = touches && lock.owner == new.owner && lock.exclusive == new.exclusive;
        if joins {
            new.start = new.start.min(lock.start);
            new.end = new.end.max(lock.end);
        }
        !joins
    });
    locks.push(new);
}

/// A descriptor of the file was closed by the process with this table of descriptors.
#[inline(always)]
pub fn descriptor_closed(table: usize, inode: impl FnOnce() -> Arc<dyn Inode>) {
    if COUNT.load(Ordering::Relaxed) != 0 {
        release_all(&inode(), &[Owner::Process(table)]);
    }
}

/// The last descriptor of an open file was closed.
#[inline(always)]
pub fn file_closed(id: u64, inode: impl FnOnce() -> Arc<dyn Inode>) {
    if COUNT.load(Ordering::Relaxed) != 0 {
        release_all(&inode(), &[Owner::OpenFile(id), Owner::Flock(id)]);
    }
}

#[cold]
fn release_all(inode: &Arc<dyn Inode>, owners: &[Owner]) {
    for &owner in owners {
        release(inode, &Lock { owner, exclusive: false, start: 0, end: u64::MAX, pid: 0 });
    }
}

/// Every lock, with its object, for /proc/locks.
pub fn all() -> Vec<(Arc<dyn Inode>, Lock)> {
    let held = HELD.lock();
    let each = |held: &Held| {
        let inode = held.inode.clone();
        held.locks.iter().map(move |lock| (inode.clone(), *lock)).collect::<Vec<_>>()
    };
    held.values().flat_map(each).collect()
}
