//! Locks on files: record locks of processes and of open files (fcntl(2)), and flock(2).
//!
//! Why it is hard: three kinds of owners with three life times. A process's record locks go when it
//! closes any descriptor of the file; those of an open file, and flocks, when the last descriptor
//! of that open file is closed. Closing must cost nothing where no lock exists, so both begin with
//! a load of a counter.
//!
//! An object has its own locks and its own waiters ([`super::state::InodeState`]): who unlocks
//! wakes those who wait for the same file and no others. Each owner's ranges are in order and do
//! not overlap, and where there are several owners an index knows where those of all lie, so that a
//! file with thousands of locks, of one owner or of many, is served by a few steps. What is shared
//! by all is asked for rarely: who waits for whom (when somebody waits), and which objects have
//! locks (when one gets its first, and for /proc/locks).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::Inode;
use crate::base::sync::WaitQueue;

/// Most locks in the system.
const LOCKS_MAX: usize = 8192;
/// Longest chain of waiters looked at for a deadlock.
const CHAIN_MAX: usize = 64;
/// Objects in [`LISTED`] before the first that are gone are taken out.
const LISTED_MIN: usize = 64;

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
    /// The open file by which it was taken, by its number: there /proc/PID/fdinfo shows it.
    pub file: u64,
}

/// Locked bytes `start..=end` of one owner.
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    end: u64,
    exclusive: bool,
    pid: i32,
    file: u64,
}

/// What one owner has locked: in order, without overlap, neighbours of one kind joined.
#[derive(Default)]
struct Holder {
    ranges: Vec<Range>,
    /// How many owners have come before it: locks are shown in this order.
    after: u64,
}

/// Where the ranges of all owners lie, so that who wants one need not ask every owner.
#[derive(Default)]
struct Index {
    /// Exclusive ranges by their first byte, each with its last one. No other range overlaps one,
    /// so what covers a byte can only be the last that begins before it.
    exclusive: BTreeMap<u64, (Owner, u64)>,
    /// Shared ranges, of which many may cover a byte.
    shared: BTreeMap<(u64, Owner), u64>,
    /// No shared range is longer, in bytes less one: those that begin before a byte by more do not
    /// cover it.
    longest_shared: u64,
}

/// A wait for a lock. Whoever waits has the object, so that this is never its last reference.
struct Wait {
    inode: Arc<dyn Inode>,
    wanted: Lock,
}

/// Locks that may meet each other.
#[derive(Default)]
struct Owned {
    holders: BTreeMap<Owner, Holder>,
    /// How many owners have come.
    came: u64,
    /// None as long as there is one owner, who is asked.
    index: Option<Index>,
}

/// The locks of one object. Flocks only meet flocks, record locks only record locks.
#[derive(Default)]
struct Held {
    records: Owned,
    flocks: Owned,
}

/// The locks of one object, and who waits for them.
#[derive(Default)]
pub struct FileLocks {
    held: SpinLock<Held>,
    released: WaitQueue,
    /// It is in [`LISTED`].
    is_listed: AtomicBool,
}

/// How many locks there are; an upper bound where no lock is taken.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// What processes wait for, for deadlocks among them: by the process, and its wait's own address.
/// For whom they wait is asked of the objects, since a lock that was given back is no wait any more
/// although who waited has not run yet.
static WAITING: SpinLock<BTreeMap<(Owner, usize), Wait>> = SpinLock::new(BTreeMap::new());
/// Objects that have had locks.
static LISTED: SpinLock<Vec<Weak<dyn Inode>>> = SpinLock::new(Vec::new());

impl Holder {
    /// The ranges that have bytes of `start..=end`.
    fn overlapping(&self, start: u64, end: u64) -> core::ops::Range<usize> {
        let first = self.ranges.partition_point(|range| range.end < start);
        let last = self.ranges.partition_point(|range| range.start <= end);
        first..last.max(first)
    }

    /// Locks (`new`), or unlocks, bytes `start..=end` in place of what was there. Whether others
    /// may get more than before. `moves` sees each range that goes, and each that comes (true).
    /// Room for two more ranges is there.
    fn set(
        &mut self,
        (start, end): (u64, u64),
        new: Option<Range>,
        mut moves: impl FnMut(&Range, bool),
    ) -> bool {
        let mut old = self.overlapping(start, end);
        let changed = !old.is_empty();
        let mut pieces: [Option<Range>; 3] = [None, new, None];
        if changed {
            let (first, last) = (self.ranges[old.start], self.ranges[old.end - 1]);
            pieces[0] = (first.start < start).then(|| Range { end: start - 1, ..first });
            pieces[2] = (last.end > end).then(|| Range { start: end + 1, ..last });
        }
        if let Some(mut new) = new {
            // Of those that become one, the first stays the one that is shown.
            let same = |range: &&Range| range.exclusive == new.exclusive;
            if let Some(first) = self.ranges[old.clone()].iter().find(same) {
                new.file = first.file;
            }
            if pieces[0].is_none() && old.start > 0 && self.ranges[old.start - 1].end + 1 == start {
                old.start -= 1;
                pieces[0] = Some(self.ranges[old.start]);
            }
            let next = self.ranges.get(old.end).copied();
            if pieces[2].is_none() && next.is_some_and(|next| next.start - 1 == end) {
                old.end += 1;
                pieces[2] = next;
            }
            if let Some(before) = pieces[0].take_if(|piece| piece.exclusive == new.exclusive) {
                new.start = before.start;
                new.file = before.file;
            }
            if let Some(after) = pieces[2].take_if(|piece| piece.exclusive == new.exclusive) {
                new.end = after.end;
            }
            pieces[1] = Some(new);
        }
        self.ranges[old.clone()].iter().for_each(|range| moves(range, false));
        pieces.iter().flatten().for_each(|range| moves(range, true));
        self.ranges.splice(old, pieces.into_iter().flatten());
        changed
    }
}

impl Index {
    /// A range of `owner` comes, or goes.
    fn change(&mut self, owner: Owner, range: &Range, comes: bool) {
        match (range.exclusive, comes) {
            (true, true) => _ = self.exclusive.insert(range.start, (owner, range.end)),
            (true, false) => _ = self.exclusive.remove(&range.start),
            (false, true) => {
                self.longest_shared = self.longest_shared.max(range.end - range.start);
                self.shared.insert((range.start, owner), range.end);
            }
            (false, false) => {
                self.shared.remove(&(range.start, owner));
                if self.shared.is_empty() {
                    self.longest_shared = 0;
                }
            }
        }
    }

    /// Owner and first byte of the first range in the way of `wanted`, which is another owner's.
    fn conflict(&self, wanted: &Lock) -> Option<(Owner, u64)> {
        let before = self.exclusive.range(..wanted.start).next_back();
        let before = before.filter(|(_, (_, end))| *end >= wanted.start);
        let inside = self.exclusive.range(wanted.start..=wanted.end);
        let exclusive = before
            .into_iter()
            .chain(inside)
            .map(|(&start, &(owner, _))| (owner, start))
            .find(|(owner, _)| *owner != wanted.owner);
        if !wanted.exclusive {
            return exclusive;
        }
        /// Comes before all owners.
        const FIRST: Owner = Owner::Process(0);
        let from = wanted.start.saturating_sub(self.longest_shared);
        let shared = self
            .shared
            .range((from, FIRST)..)
            .take_while(|((start, _), _)| *start <= wanted.end)
            .find(|((_, owner), end)| **end >= wanted.start && *owner != wanted.owner)
            .map(|(&(start, owner), _)| (owner, start));
        exclusive.into_iter().chain(shared).min_by_key(|(_, start)| *start)
    }
}

impl Owned {
    /// Locks (`new`), or unlocks, bytes of an owner: whether others may get more than before, and
    /// the owner's entry if nothing is left in it. ENOLCK.
    fn set(&mut self, lock: &Lock, new: bool) -> Result<(bool, Option<Holder>)> {
        let Lock { owner, exclusive, start, end, pid, file } = *lock;
        if new && self.index.is_none() {
            self.index_others(owner);
        }
        let index = &mut self.index;
        let holder = match self.holders.get_mut(&owner) {
            Some(holder) => holder,
            None if new => {
                self.came += 1;
                let fresh = Holder { ranges: Vec::new(), after: self.came };
                self.holders.entry(owner).or_insert(fresh)
            }
            None => return Ok((false, None)),
        };
        let new = new.then_some(Range { start, end, exclusive, pid, file });
        // What it adds, and the pieces that a later release may cut it into.
        if new.is_some() && holder.ranges.try_reserve(4).is_err() {
            if holder.ranges.is_empty() {
                self.holders.remove(&owner);
            }
            return Err(Errno::ENOLCK);
        }
        let before = holder.ranges.len();
        let moves = |range: &Range, comes| {
            if let Some(index) = index {
                index.change(owner, range, comes);
            }
        };
        let changed = holder.set((start, end), new, moves);
        count(before, holder.ranges.len());
        if !holder.ranges.is_empty() {
            return Ok((changed, None));
        }
        let unused = self.holders.remove(&owner);
        if self.holders.is_empty() {
            self.index = None;
        }
        Ok((changed, unused))
    }

    /// Makes the index if somebody else than `owner` has locks.
    fn index_others(&mut self, owner: Owner) {
        if self.holders.keys().all(|known| *known == owner) {
            return;
        }
        let mut index = Index::default();
        for (&owner, holder) in &self.holders {
            holder.ranges.iter().for_each(|range| index.change(owner, range, true));
        }
        self.index = Some(index);
    }

    /// Owner and first byte of the first range in the way of `wanted`, which is another owner's.
    fn conflict(&self, wanted: &Lock) -> Option<(Owner, u64)> {
        if let Some(index) = &self.index {
            return index.conflict(wanted);
        }
        let (owner, holder) = self.holders.first_key_value()?;
        if *owner == wanted.owner {
            return None;
        }
        let met = &holder.ranges[holder.overlapping(wanted.start, wanted.end)];
        let in_way = met.iter().find(|range| wanted.exclusive || range.exclusive)?;
        Some((*owner, in_way.start))
    }
}

impl Held {
    fn of(&mut self, owner: Owner) -> &mut Owned {
        if matches!(owner, Owner::Flock(_)) { &mut self.flocks } else { &mut self.records }
    }

    /// The first lock in the way of `wanted`.
    fn conflict(&mut self, wanted: &Lock) -> Option<Lock> {
        let (owner, start) = self.of(wanted.owner).conflict(wanted)?;
        self.first(owner, start, start)
    }

    /// The first lock of an owner that has one of the bytes `start..=end`.
    fn first(&mut self, owner: Owner, start: u64, end: u64) -> Option<Lock> {
        let holder = self.of(owner).holders.get(&owner)?;
        let &Range { start, end, exclusive, pid, file } =
            holder.ranges[holder.overlapping(start, end)].first()?;
        Some(Lock { owner, exclusive, start, end, pid, file })
    }
}

impl FileLocks {
    /// The lock in the way, or None: it is taken.
    fn try_acquire(&self, wanted: &Lock) -> Result<Option<Lock>> {
        let (weakened, _) = {
            let mut held = self.held.lock();
            if let Some(blocker) = held.conflict(wanted) {
                return Ok(Some(blocker));
            }
            if COUNT.load(Ordering::Relaxed) >= LOCKS_MAX {
                return Err(Errno::ENOLCK);
            }
            held.of(wanted.owner).set(wanted, true)?
        };
        if weakened {
            self.released.wake_all(0);
        }
        Ok(None)
    }

    fn release(&self, range: &Lock) {
        // Nothing is reserved for a release: it cannot fail.
        let Ok((changed, unused)) = self.held.lock().of(range.owner).set(range, false) else {
            return;
        };
        drop(unused);
        if changed {
            self.released.wake_all(0);
        }
    }
}

fn count(before: usize, after: usize) {
    COUNT.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
}

/// The first lock in the way of `wanted` (F_GETLK).
pub fn conflict(inode: &dyn Inode, wanted: &Lock) -> Option<Lock> {
    inode.state().known_locks()?.held.lock().conflict(wanted)
}

/// The first lock of the same owner that has one of these bytes (F_OFD_GETLK with F_UNLCK).
pub fn own(inode: &dyn Inode, range: &Lock) -> Option<Lock> {
    inode.state().known_locks()?.held.lock().first(range.owner, range.start, range.end)
}

/// Takes a lock, in place of what the owner holds of these bytes. EAGAIN if it is held by another
/// and not `wait`; EDEADLK if waiting could never end; ENOLCK if there are too many.
///
/// The wait ends when the lock is free: each release of a lock of this object looks again.
pub fn acquire(inode: &Arc<dyn Inode>, wanted: &Lock, wait: bool) -> Result<()> {
    list(inode)?;
    let locks = inode.state().locks();
    match locks.try_acquire(wanted)? {
        None => return Ok(()),
        Some(_) if !wait => return Err(Errno::EAGAIN),
        Some(_) => {}
    }
    let result = locks.released.wait(|| match locks.try_acquire(wanted) {
        Ok(None) => Some(Ok(())),
        Ok(Some(blocker)) => note_wait(inode, wanted, blocker.owner).err().map(Err),
        Err(error) => Some(Err(error)),
    });
    let noted = WAITING.lock().remove(&wait_key(wanted));
    drop(noted);
    result?
}

/// Remembers that the object has locks or leases. ENOLCK.
pub(super) fn list(inode: &Arc<dyn Inode>) -> Result<()> {
    let locks = inode.state().locks();
    if locks.is_listed.load(Ordering::Relaxed) || locks.is_listed.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let mut listed = LISTED.lock();
    if listed.len() >= LISTED_MIN && listed.len() == listed.capacity() {
        listed.retain(|inode| inode.strong_count() > 0);
    }
    let reserved = listed.try_reserve(1);
    if reserved.is_ok() {
        listed.push(Arc::downgrade(&super::anon::lasting(inode)));
        return Ok(());
    }
    drop(listed);
    locks.is_listed.store(false, Ordering::Relaxed);
    Err(Errno::ENOLCK)
}

/// The place of the wait for `wanted` in [`WAITING`].
fn wait_key(wanted: &Lock) -> (Owner, usize) {
    let this: *const Lock = wanted;
    (wanted.owner, this.addr())
}

/// Remembers what is waited for; EDEADLK if that closes a circle of processes.
fn note_wait(inode: &Arc<dyn Inode>, wanted: &Lock, blocker: Owner) -> Result<()> {
    if !matches!(wanted.owner, Owner::Process(_)) {
        return Ok(());
    }
    let mut waiting = WAITING.lock();
    let wait = || Wait { inode: inode.clone(), wanted: *wanted };
    waiting.entry(wait_key(wanted)).or_insert_with(wait);
    let mut at = blocker;
    for _ in 0..CHAIN_MAX {
        if at == wanted.owner {
            return Err(Errno::EDEADLK);
        }
        let first = waiting.range((at, 0)..).next().filter(|((owner, _), _)| *owner == at);
        let Some(next) = first.and_then(|(_, wait)| wait.blocker()) else { break };
        at = next;
    }
    Ok(())
}

impl Wait {
    /// Who has the lock now.
    fn blocker(&self) -> Option<Owner> {
        let mut held = self.inode.state().locks().held.lock();
        held.of(self.wanted.owner).conflict(&self.wanted).map(|(owner, _)| owner)
    }
}

/// Gives back what the owner of `range` holds of its bytes.
pub fn release(inode: &dyn Inode, range: &Lock) {
    if let Some(locks) = inode.state().known_locks() {
        locks.release(range);
    }
}

/// Whether there is a lock on any file: otherwise who closes one has nothing to release.
#[inline(always)]
pub fn any_exist() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// A descriptor of the file was closed by the process with this table of descriptors.
pub fn descriptor_closed(table: usize, inode: &dyn Inode) {
    release_all(inode, &[Owner::Process(table)]);
}

/// The last descriptor of an open file was closed.
#[inline(always)]
pub fn file_closed(id: u64, inode: impl FnOnce() -> Arc<dyn Inode>) {
    if any_exist() {
        release_all(&*inode(), &[Owner::OpenFile(id), Owner::Flock(id)]);
    }
}

#[cold]
fn release_all(inode: &dyn Inode, owners: &[Owner]) {
    for &owner in owners {
        let all = Lock { owner, exclusive: false, start: 0, end: u64::MAX, pid: 0, file: 0 };
        release(inode, &all);
    }
}

/// Every lock of an object.
pub fn of(inode: &dyn Inode) -> Vec<Lock> {
    let mut all = Vec::new();
    let Some(locks) = inode.state().known_locks() else { return all };
    let held = locks.held.lock();
    for owned in [&held.flocks, &held.records] {
        let mut holders: Vec<_> = owned.holders.iter().collect();
        holders.sort_unstable_by_key(|(_, holder)| holder.after);
        for (&owner, holder) in holders {
            let shown = |&Range { start, end, exclusive, pid, file }: &Range| Lock {
                owner,
                exclusive,
                start,
                end,
                pid,
                file,
            };
            all.extend(holder.ranges.iter().map(shown));
        }
    }
    all
}

/// Every object that has had locks or leases, for /proc/locks.
pub fn listed() -> Vec<Arc<dyn Inode>> {
    LISTED.lock().iter().filter_map(Weak::upgrade).collect()
}
