//! The cache of names: which object a name of a directory stands for, or that it stands for none.
//!
//! Why it is hard: nearly every call that takes a path ends here once per component, so a hit reads
//! beside all others who do ([`ReadMostly`]) and allocates nothing; and what is cached must never
//! contradict the file system.
//! The rule: whoever changes a directory's names, or asks the file system for one, holds that
//! directory's [`Dentry::names`] lock; hits need no more than the bucket's lock.
//!
//! The table holds a name's object strongly, an object holds its parent strongly, never the
//! reverse. So dropping a name is always safe, and only names nobody else holds are dropped when
//! the table is full. Missing names are entries without an object. Entries are found by the
//! parent's identity, a number that is never used twice: what remains of a parent that is gone is
//! merely old.
//!
//! Not chosen: a map per directory (most directories have few names; the allocations cost more),
//! and reading what is freed later (RCU: nothing would say when a name has gone).
//!
//! Who climbs by [`Dentry::parent`] sees each step at a moment of its own, and a directory that is
//! moved meanwhile takes it to places that never were above its start. So moves of directories and
//! of mounts are counted ([`Moves`]): a climb that must be true ends with a look at the count.
//!
//! Locks: [`lock_moves`], then a directory's `names` (two at once only under the former), then a
//! bucket, then a dentry's `place`. Nothing is dropped under a bucket's lock.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use machine::sync::{ReadMostly, SpinLock};

use super::{FileType, Inode};
use crate::base::accounts::{Counted, ObjectKind};
use crate::base::names;
use crate::base::sync::{Mutex, MutexGuard};

/// Buckets of the table; a power of two.
const BUCKETS: usize = 4096;
/// Most names kept, those in use apart.
const MAX_NAMES: usize = 32_768;
/// Buckets looked at when room is made for a name.
const SWEEP: usize = 64;
/// Climbs that a move of a directory may spoil before one is done with moves held off.
const CLIMBS_MAX: usize = 8;
/// Rounds in which parents lose the last of their unused children: deeper ones are kept.
const DEPTH_MAX: usize = 64;

/// An object under one of its names.
pub struct Dentry {
    id: u64,
    kind: FileType,
    inode: Arc<dyn Inode>,
    place: SpinLock<Place>,
    names: Mutex<()>,
    /// [`Inode::names_version`] of what is cached of its names; 0: nothing is.
    names_version: AtomicU64,
    /// How many mounts cover it.
    mounts: AtomicU32,
    unlinked: AtomicBool,
    _counted: Counted<{ ObjectKind::Name as usize }>,
}

#[derive(Clone)]
struct Place {
    parent: Option<Arc<Dentry>>,
    name: Arc<[u8]>,
}

struct CachedName {
    hash: u64,
    parent: u64,
    /// The name's [`names::tail`]: most names are no longer, and need not be looked at.
    tail: u64,
    name: Arc<[u8]>,
    /// None: the directory has no such name.
    dentry: Option<Arc<Dentry>>,
    /// Used since the last sweep.
    recent: AtomicBool,
}

/// What the table knows about a name.
pub enum Cached {
    /// The object.
    Found(Arc<Dentry>),
    /// There is no such name.
    Absent,
    /// Ask the file system.
    Unknown,
}

type Bucket = ReadMostly<Vec<CachedName>>;

static TABLE: [Bucket; BUCKETS] = [const { ReadMostly::new(Vec::new()) }; BUCKETS];
/// Buckets that may have names, a bit each: who goes through all names goes through few buckets.
/// Changed under the bucket's lock, and cleared only by who goes through all.
static OCCUPIED: [AtomicU64; BUCKETS.div_ceil(64)] =
    [const { AtomicU64::new(0) }; BUCKETS.div_ceil(64)];
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static HAND: AtomicUsize = AtomicUsize::new(0);

/// Held while a name moves between two directories, and while mounts change.
static MOVING: Mutex<()> = Mutex::new(());
/// Moves of directories and changes of mounts, begun and ended: odd while there is one.
static MOVES: AtomicU64 = AtomicU64::new(0);

/// Keeps every directory and every mount where it is.
pub fn lock_moves() -> MutexGuard<'static, ()> {
    MOVING.lock()
}

/// How directories and mounts stood at a moment.
#[derive(Clone, Copy)]
pub struct Moves(u64);

impl Moves {
    /// Now. A move that is under way counts as one that comes later.
    #[inline]
    pub fn now() -> Moves {
        Moves(MOVES.load(Ordering::Acquire) & !1)
    }

    /// Whether every directory is where it was then.
    #[inline]
    pub fn is_unchanged(self) -> bool {
        fence(Ordering::Acquire);
        MOVES.load(Ordering::Relaxed) == self.0
    }
}

/// The time in which a directory's names and its parent, or a mount and its place, disagree:
/// [`lock_moves`] is held.
pub(super) struct Move;

impl Move {
    /// From now until it is dropped.
    pub(super) fn begin() -> Move {
        MOVES.fetch_add(1, Ordering::SeqCst);
        Move
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        MOVES.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs a climb until nothing has moved during it. Not for who is amid a move.
pub fn climb<T>(mut climb: impl FnMut() -> T) -> T {
    for _ in 0..CLIMBS_MAX {
        let moves = Moves::now();
        let result = climb();
        if moves.is_unchanged() {
            return result;
        }
    }
    let _moves = lock_moves();
    climb()
}

impl Dentry {
    /// The top of a tree, or an object that has no name in any directory; `name` is for display.
    pub fn detached(inode: Arc<dyn Inode>, name: &[u8]) -> Arc<Dentry> {
        Self::make(inode, None, name.into())
    }

    /// An object under a name, outside the table: for file systems whose names may not be cached.
    pub fn uncached(parent: &Arc<Dentry>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Dentry> {
        Self::make(inode, Some(parent.clone()), name.into())
    }

    fn make(inode: Arc<dyn Inode>, parent: Option<Arc<Dentry>>, name: Arc<[u8]>) -> Arc<Dentry> {
        Arc::new(Dentry {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            _counted: Counted::new(),
            kind: inode.file_type(),
            inode,
            place: SpinLock::new(Place { parent, name }),
            names: Mutex::new(()),
            names_version: AtomicU64::new(0),
            mounts: AtomicU32::new(0),
            unlinked: AtomicBool::new(false),
        })
    }

    /// Its identity: never used twice.
    #[inline(always)]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What kind of object it is.
    #[inline(always)]
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// Whether it is a directory.
    #[inline(always)]
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, FileType::Directory)
    }

    /// The object.
    #[inline(always)]
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// The directory it is in; None for a top directory.
    pub fn parent(&self) -> Option<Arc<Dentry>> {
        self.place.lock().parent.clone()
    }

    /// Its name in that directory.
    pub fn name(&self) -> Arc<[u8]> {
        self.place.lock().name.clone()
    }

    /// Parent and name, as they are at one moment.
    pub fn parent_and_name(&self) -> (Option<Arc<Dentry>>, Arc<[u8]>) {
        let place = self.place.lock().clone();
        (place.parent, place.name)
    }

    /// Whether its name was removed while it was in use.
    pub fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Relaxed)
    }

    /// Whether something is mounted on it, in any of the places it appears.
    #[inline(always)]
    pub fn is_covered(&self) -> bool {
        self.mounts.load(Ordering::Relaxed) != 0
    }

    /// Counts mounts on it; `mount` holds the table of mounts.
    pub(super) fn add_mounts(&self, change: i32) {
        self.mounts.fetch_add(change as u32, Ordering::Relaxed);
    }

    /// Keeps the names of this directory as they are.
    pub fn lock_names(&self) -> MutexGuard<'_, ()> {
        self.names.lock()
    }

    /// [`Inode::names_version`] of what is cached of its names.
    #[inline]
    pub(super) fn names_version(&self) -> u64 {
        self.names_version.load(Ordering::Acquire)
    }

    /// What is cached of its names is of this version from now on, once what is of another has been
    /// forgotten: whether there is any. Its names are locked.
    pub(super) fn set_names_version(&self, version: u64) -> bool {
        ![0, version].contains(&self.names_version.swap(version, Ordering::AcqRel))
    }

    /// Whether it is `other` or lies below it; true for good only with moves held off.
    pub fn is_within(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        let mut at = self.clone();
        loop {
            if Arc::ptr_eq(&at, other) {
                return true;
            }
            let Some(parent) = at.parent() else { return false };
            at = parent;
        }
    }
}

impl Drop for Dentry {
    /// Parents that go with the last of their children go one by one: a chain of directories is as
    /// long as a program likes, and the stack is not.
    fn drop(&mut self) {
        let mut parent = self.place.get_mut().parent.take();
        while let Some(mut dentry) = parent.and_then(Arc::into_inner) {
            parent = dentry.place.get_mut().parent.take();
        }
    }
}

impl CachedName {
    #[inline(always)]
    fn is(&self, hash: u64, parent: u64, name: &[u8]) -> bool {
        self.hash == hash
            && self.parent == parent
            && self.name.len() == name.len()
            && self.tail == names::tail(name)
            && names::same_before_tail(&self.name, name)
    }
}

#[inline(always)]
fn bucket(hash: u64) -> &'static Bucket {
    &TABLE[hash as usize % BUCKETS]
}

/// The word of [`OCCUPIED`] and the bit in it that a bucket has.
#[inline]
fn occupied_bit(bucket: usize) -> (&'static AtomicU64, u64) {
    (&OCCUPIED[bucket / 64], 1 << (bucket % 64))
}

/// The buckets that may have names.
fn occupied() -> impl Iterator<Item = usize> {
    (0..).zip(&OCCUPIED).flat_map(|(word, bits)| {
        let mut left = bits.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let bit = left.checked_ilog2()?;
            left ^= 1 << bit;
            Some(word * 64 + bit as usize)
        })
    })
}

/// Looks a name up. Takes no sleeping lock and allocates nothing.
#[inline(always)]
pub fn cached(parent: &Dentry, name: &[u8]) -> Cached {
    let hash = names::hash(parent.id, name);
    bucket(hash).read(|entries| {
        let Some(entry) = entries.iter().find(|entry| entry.is(hash, parent.id, name)) else {
            return Cached::Unknown;
        };
        // Mostly it is: then nothing is written.
        if !entry.recent.load(Ordering::Relaxed) {
            entry.recent.store(true, Ordering::Relaxed);
        }
        match &entry.dentry {
            Some(dentry) => Cached::Found(dentry.clone()),
            None => Cached::Absent,
        }
    })
}

/// Enters the object that the file system found under a name. The parent's names are locked.
pub fn enter(parent: &Arc<Dentry>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Dentry> {
    let name: Arc<[u8]> = name.into();
    let dentry = Dentry::make(inode, Some(parent.clone()), name.clone());
    put(parent.id, name, Some(dentry.clone()));
    dentry
}

/// Remembers that a directory has no such name. The parent's names are locked.
pub fn enter_absent(parent: &Dentry, name: &[u8]) {
    put(parent.id, name.into(), None);
}

/// Takes a name out of the table: it was removed, and its object is told. Locked as above.
pub fn removed(parent: &Dentry, name: &[u8], cache_absence: bool) {
    let old = if cache_absence { put(parent.id, name.into(), None) } else { forget(parent, name) };
    if let Some(dentry) = old {
        dentry.unlinked.store(true, Ordering::Relaxed);
    }
}

/// Forgets what is known about a name.
pub fn forget(parent: &Dentry, name: &[u8]) -> Option<Arc<Dentry>> {
    let hash = names::hash(parent.id, name);
    let entry = {
        let mut entries = bucket(hash).lock();
        let at = entries.iter().position(|entry| entry.is(hash, parent.id, name))?;
        COUNT.fetch_sub(1, Ordering::Relaxed);
        entries.swap_remove(at)
    };
    entry.dentry
}

/// Forgets the names of a directory, but for those in use that `stays` (name, object) says are
/// still there, and those that something is mounted on. The others that are in use have lost their
/// names. The parent's names are locked; `stays` may sleep.
pub fn forget_names(parent: &Dentry, stays: impl Fn(&[u8], &Arc<dyn Inode>) -> bool) {
    let mut in_use = Vec::new();
    for bucket in occupied() {
        let is_of = |entry: &mut CachedName| entry.parent == parent.id;
        prune(bucket, is_of);
        let entries = TABLE[bucket].lock();
        let left = entries.iter().filter(|entry| entry.parent == parent.id);
        in_use.extend(left.filter_map(|entry| Some((entry.name.clone(), entry.dentry.clone()?))));
    }
    for (name, dentry) in in_use {
        if !dentry.is_covered() && !stays(&name, dentry.inode()) {
            removed(parent, &name, false);
        }
    }
}

/// Enters an object made by [`Dentry::uncached`], because something is mounted on it.
pub fn pin(dentry: &Arc<Dentry>) {
    if let (Some(parent), name) = dentry.parent_and_name() {
        put(parent.id, name, Some(dentry.clone()));
    }
}

/// Undoes [`pin`].
pub fn unpin(dentry: &Arc<Dentry>) {
    if let (Some(parent), name) = dentry.parent_and_name() {
        forget(&parent, &name);
    }
}

/// Moves an object to another name; what was there before is unlinked. Both directories' names are
/// locked, and moves if they are two.
pub fn moved(
    dentry: &Arc<Dentry>,
    from: (&Arc<Dentry>, &[u8]),
    to: (&Arc<Dentry>, &[u8]),
    cache_absence: bool,
) {
    let name: Arc<[u8]> = to.1.into();
    let moves = dentry.is_directory() && !Arc::ptr_eq(from.0, to.0);
    let guard = moves.then(Move::begin);
    let left =
        if cache_absence { put(from.0.id, from.1.into(), None) } else { forget(from.0, from.1) };
    let place = set_place(dentry, to.0, name.clone());
    let replaced = put(to.0.id, name, Some(dentry.clone()));
    if let Some(old) = replaced.as_ref().filter(|old| !Arc::ptr_eq(old, dentry)) {
        old.unlinked.store(true, Ordering::Relaxed);
    }
    drop(guard);
    drop((left, place, replaced));
}

/// Exchanges the names of two objects. Both directories' names are locked, and moves if they are
/// two.
pub fn exchanged(
    one: (&Arc<Dentry>, &Arc<Dentry>, &[u8]),
    other: (&Arc<Dentry>, &Arc<Dentry>, &[u8]),
) {
    let moves = (one.0.is_directory() || other.0.is_directory()) && !Arc::ptr_eq(one.1, other.1);
    let guard = moves.then(Move::begin);
    let places =
        [set_place(one.0, other.1, other.2.into()), set_place(other.0, one.1, one.2.into())];
    let entries = [
        put(other.1.id, other.2.into(), Some(one.0.clone())),
        put(one.1.id, one.2.into(), Some(other.0.clone())),
    ];
    drop(guard);
    drop((places, entries));
}

/// Gives a dentry its place. Returns the old one, which the caller drops when nobody waits.
fn set_place(dentry: &Arc<Dentry>, parent: &Arc<Dentry>, name: Arc<[u8]>) -> Place {
    let new = Place { parent: Some(parent.clone()), name };
    core::mem::replace(&mut *dentry.place.lock(), new)
}

/// Puts an entry, in place of an older one for the same name, whose object is returned.
fn put(parent: u64, name: Arc<[u8]>, dentry: Option<Arc<Dentry>>) -> Option<Arc<Dentry>> {
    let hash = names::hash(parent, &name);
    let old = {
        let mut entries = bucket(hash).lock();
        match entries.iter_mut().find(|entry| entry.is(hash, parent, &name)) {
            Some(entry) => core::mem::replace(&mut entry.dentry, dentry),
            None => {
                let recent = AtomicBool::new(true);
                let tail = names::tail(&name);
                entries.push(CachedName { hash, parent, tail, name, dentry, recent });
                let (word, bit) = occupied_bit(hash as usize % BUCKETS);
                if word.load(Ordering::Relaxed) & bit == 0 {
                    word.fetch_or(bit, Ordering::Release);
                }
                COUNT.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    };
    if COUNT.load(Ordering::Relaxed) > MAX_NAMES {
        sweep();
    }
    old
}

/// Drops names that nobody uses and nobody has looked up since the last time round.
fn sweep() {
    for _ in 0..SWEEP {
        let at = HAND.fetch_add(1, Ordering::Relaxed) % BUCKETS;
        prune(at, |entry| !core::mem::take(entry.recent.get_mut()));
    }
}

/// Forgets every unused name: for unmounting, and when memory is short.
pub fn shrink() {
    for bucket in occupied() {
        prune(bucket, |_| true);
    }
}

/// Forgets every unused name, and those whose last use that was. Returns how many.
pub fn shrink_all() -> usize {
    let before = COUNT.load(Ordering::Relaxed);
    for _ in 0..DEPTH_MAX {
        let count = COUNT.load(Ordering::Relaxed);
        shrink();
        if COUNT.load(Ordering::Relaxed) >= count {
            break;
        }
    }
    before.saturating_sub(COUNT.load(Ordering::Relaxed))
}

/// Drops those of a bucket's unused names that are `wanted` away.
fn prune(bucket: usize, mut wanted: impl FnMut(&mut CachedName) -> bool) {
    let mut dropped = Vec::new();
    {
        let mut entries = TABLE[bucket].lock();
        let before = entries.len();
        entries.retain_mut(|entry| {
            // Under the lock, a count of one is the table's own: nobody can be getting another.
            let unused = entry.dentry.as_ref().is_none_or(|dentry| Arc::strong_count(dentry) == 1);
            let keep = !unused || !wanted(entry);
            if !keep {
                dropped.extend(entry.dentry.take());
            }
            keep
        });
        COUNT.fetch_sub(before - entries.len(), Ordering::Relaxed);
        if entries.is_empty() {
            let (word, bit) = occupied_bit(bucket);
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
    drop(dropped);
}
