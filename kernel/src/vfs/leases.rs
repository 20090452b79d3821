//! Leases on files (fcntl(2), F_SETLEASE): who holds one is told before another may open or
//! truncate the file, which waits until the lease is given up, or its time is over.
//!
//! Why it is hard: a lease is granted only while nobody else has the file open, and who opens it
//! later must see the lease. So an opener counts itself before it looks for leases, and a lease is
//! entered before the counts are looked at: of two that come at once, at least one sees the other.
//! Readers are counted from the first lease on that excludes them: until then opening costs two
//! loads, and who has opened a file uncounted is looked for among all descriptors.
//!
//! Neighbours: `open` and truncate(2) break leases, [`super::File`]'s end removes its own,
//! `io::io_signals` tells the holder.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;

use super::anon::AnonInode;
use super::{File, FileType, Inode};
use crate::base::sched::Sleep;
use crate::base::sync::{WaitError, WaitQueue};
use crate::base::time::{Deadline, NS_PER_SEC};

/// Who is told that a lease is to be given up. Called without locks.
pub trait Holder: Send + Sync {
    /// Somebody wants to use the file.
    fn tell(&self);
}

/// What a lease excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseKind {
    /// Nothing any more: it is to be given up.
    None,
    /// That others write.
    Read,
    /// That others use it at all.
    Write,
}

struct Lease {
    /// The open file that holds it.
    file: u64,
    /// Its holder's process, for /proc/locks.
    pid: u32,
    kind: LeaseKind,
    /// To what it is to shrink, and when it does so by itself.
    breaking: Option<(LeaseKind, Option<Deadline>)>,
    holder: Arc<dyn Holder>,
}

/// The leases of one object.
#[derive(Default)]
pub struct Leases {
    held: SpinLock<Vec<Lease>>,
    changed: WaitQueue,
}

/// How many leases there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Somebody has asked for a lease that excludes readers.
static COUNTS_READERS: AtomicBool = AtomicBool::new(false);
/// Seconds until a lease that is broken ends by itself (fs.lease-break-time); 0: never.
static BREAK_TIME_S: AtomicI32 = AtomicI32::new(45);
/// Whether there may be any (fs.leases-enable).
static IS_ENABLED: AtomicI32 = AtomicI32::new(1);

/// Whether who opens a file to read it is counted ([`super::deny_write::ReadAccess`]).
#[inline(always)]
pub fn counts_readers() -> bool {
    COUNTS_READERS.load(Ordering::SeqCst)
}

/// fs.lease-break-time.
pub fn break_time() -> &'static AtomicI32 {
    &BREAK_TIME_S
}

/// fs.leases-enable.
pub fn is_enabled() -> &'static AtomicI32 {
    &IS_ENABLED
}

impl Lease {
    /// What is left of it when it is given up as asked.
    fn target(&self) -> LeaseKind {
        self.breaking.map_or(self.kind, |(to, _)| to)
    }

    fn conflicts(&self, writes: bool) -> bool {
        self.kind == LeaseKind::Write || writes && self.kind == LeaseKind::Read
    }

    fn is_over(&self) -> bool {
        self.breaking.is_some_and(|(_, until)| until.is_some_and(Deadline::has_passed))
    }
}

/// Ends what was broken and not given up in time.
fn expire(held: &mut Vec<Lease>) {
    let before = held.len();
    held.retain_mut(|lease| {
        if lease.is_over() {
            lease.kind = lease.target();
            lease.breaking = None;
        }
        lease.kind != LeaseKind::None
    });
    COUNT.fetch_sub(before - held.len(), Ordering::SeqCst);
}

impl Leases {
    /// The lease that an open file holds, as F_GETLEASE tells.
    fn of(&self, file: u64) -> LeaseKind {
        let mut held = self.held.lock();
        expire(&mut held);
        held.iter().find(|lease| lease.file == file).map_or(LeaseKind::None, Lease::target)
    }

    /// Enters or changes a lease. EAGAIN.
    fn enter(&self, new: Lease) -> Result<()> {
        let mut held = self.held.lock();
        expire(&mut held);
        let is_free = |other: &Lease| {
            new.kind != LeaseKind::Write
                && other.breaking.is_none_or(|(to, _)| to != LeaseKind::None)
        };
        let mut others = held.iter().filter(|lease| lease.file != new.file);
        if !others.all(is_free) {
            return Err(Errno::EAGAIN);
        }
        match held.iter_mut().find(|lease| lease.file == new.file) {
            Some(own) => {
                own.kind = new.kind;
                // Only what it becomes less than answers the break.
                if own.breaking.is_some_and(|(to, _)| new.kind <= to) {
                    own.breaking = None;
                }
            }
            None => {
                held.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                held.push(new);
                COUNT.fetch_add(1, Ordering::SeqCst);
            }
        }
        drop(held);
        self.changed.wake_all(0);
        Ok(())
    }

    /// Whether it had one.
    fn remove(&self, file: u64) -> bool {
        let mut held = self.held.lock();
        let at = held.iter().position(|lease| lease.file == file);
        let removed = at.map(|at| held.swap_remove(at));
        drop(held);
        if removed.is_some() {
            COUNT.fetch_sub(1, Ordering::SeqCst);
            self.changed.wake_all(0);
        }
        removed.is_some()
    }

    /// Asks the holders whose leases are in the way to give them up; none is left: None. Else when
    /// the first of them ends by itself.
    fn ask(&self, writes: bool) -> Option<Option<Deadline>> {
        let seconds = BREAK_TIME_S.load(Ordering::Relaxed).max(0) as u64;
        let until = (seconds > 0).then(|| Deadline::after_ns(seconds * NS_PER_SEC));
        let to = if writes { LeaseKind::None } else { LeaseKind::Read };
        let mut told: Vec<Arc<dyn Holder>> = Vec::new();
        let mut held = self.held.lock();
        expire(&mut held);
        for lease in held.iter_mut().filter(|lease| lease.conflicts(writes)) {
            if lease.breaking.is_none_or(|(now, _)| now > to) {
                lease.breaking = Some((to, until));
                told.push(lease.holder.clone());
            }
        }
        let first = held.iter().find(|lease| lease.conflicts(writes));
        let wait = first.map(|lease| lease.breaking.and_then(|(_, until)| until));
        drop(held);
        told.iter().for_each(|holder| holder.tell());
        wait
    }
}

/// Breaks the leases that opening with these `flags` meets, and waits until they are given up.
/// EAGAIN with O_NONBLOCK.
#[inline]
pub fn break_for(inode: &dyn Inode, flags: u32) -> Result<()> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return Ok(());
    }
    break_slow(inode, flags)
}

#[cold]
fn break_slow(inode: &dyn Inode, flags: u32) -> Result<()> {
    let writes = flags & raw::O_ACCMODE != raw::O_RDONLY;
    let Some(leases) = inode.state().known_leases() else { return Ok(()) };
    while let Some(until) = leases.ask(writes) {
        if flags & raw::O_NONBLOCK != 0 {
            return Err(Errno::EAGAIN);
        }
        let is_free = || {
            let held = leases.held.lock();
            held.iter().all(|lease| !lease.conflicts(writes) || lease.is_over()).then_some(())
        };
        match leases.changed.wait_deadline(Sleep::Interruptible, until, is_free) {
            Ok(()) | Err(WaitError::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether there are leases on such an object: regular files, and pidfds.
pub fn has_leases(inode: &dyn Inode) -> bool {
    let is_pidfd = || inode.downcast_ref::<AnonInode>().is_some_and(AnonInode::is_pidfd);
    inode.file_type() == FileType::Regular || is_pidfd()
}

/// F_GETLEASE.
pub fn get(file: &File) -> LeaseKind {
    file.inode().state().known_leases().map_or(LeaseKind::None, |leases| leases.of(file.id))
}

/// F_SETLEASE with F_RDLCK or F_WRLCK. The caller owns the file, or has CAP_LEASE. `uncounted`:
/// how many open files read it that were never counted. EINVAL, EAGAIN.
pub fn set(
    file: &File,
    pid: u32,
    kind: LeaseKind,
    holder: Arc<dyn Holder>,
    uncounted: &dyn Fn(&Arc<dyn Inode>) -> usize,
) -> Result<()> {
    let inode = file.inode();
    if !has_leases(&*inode) || IS_ENABLED.load(Ordering::Relaxed) == 0 {
        return Err(Errno::EINVAL);
    }
    if kind == LeaseKind::Write {
        COUNTS_READERS.store(true, Ordering::SeqCst);
    }
    let check = || check_others(file, &inode, kind, uncounted);
    check()?;
    super::locks::list(&inode)?;
    let leases = inode.state().leases();
    let before = leases.of(file.id);
    leases.enter(Lease { file: file.id, pid, kind, breaking: None, holder })?;
    // Who has opened it since the look above did so without seeing the lease.
    if let Err(error) = check() {
        if before == LeaseKind::None {
            leases.remove(file.id);
        }
        return Err(error);
    }
    Ok(())
}

/// EAGAIN if somebody else has the file open in a way that the lease excludes.
fn check_others(
    file: &File,
    inode: &Arc<dyn Inode>,
    kind: LeaseKind,
    uncounted: &dyn Fn(&Arc<dyn Inode>) -> usize,
) -> Result<()> {
    let state = inode.state();
    let writers = state.writers.count();
    let is_free = match kind {
        LeaseKind::Write => {
            let own_writer = i32::from(file.check_writable().is_ok());
            let readers = state.readers.load(Ordering::SeqCst) + uncounted(inode) as i32;
            writers == own_writer && readers == 1 - own_writer
        }
        _ => writers <= 0,
    };
    if is_free { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// F_SETLEASE with F_UNLCK. EAGAIN if there is none.
pub fn remove(file: &File) -> Result<()> {
    let inode = file.inode();
    let removed = inode.state().known_leases().is_some_and(|leases| leases.remove(file.id));
    if removed { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// The last descriptor of an open file was closed.
#[inline(always)]
pub fn file_closed(file: &File) {
    if COUNT.load(Ordering::Relaxed) != 0 {
        let _ = remove(file);
    }
}

/// A lease for /proc/locks: its kind, whether it is being broken, and its process.
pub type Shown = (LeaseKind, bool, u32);

/// The leases of an object.
pub fn shown(inode: &dyn Inode) -> Vec<Shown> {
    shown_if(inode, |_| true)
}

/// Those that an open file holds.
pub fn shown_of(inode: &dyn Inode, file: u64) -> Vec<Shown> {
    shown_if(inode, |lease| lease.file == file)
}

fn shown_if(inode: &dyn Inode, wanted: impl Fn(&Lease) -> bool) -> Vec<Shown> {
    let Some(leases) = inode.state().known_leases() else { return Vec::new() };
    let held = leases.held.lock();
    let told = |lease: &Lease| (lease.kind, lease.breaking.is_some(), lease.pid);
    held.iter().filter(|lease| wanted(lease)).map(told).collect()
}
