//! Who has which id: processes, threads, and the members of process groups (setpgid(2)).
//!
//! All that is asked by id takes the same few steps however many there are, and so does a change of
//! group.
//!
//! Why it is hard: each fork(2) joins a group and each end leaves one, on all CPUs at a time, and
//! what two groups do has nothing to do with each other. So each group has a lock of its own, and a
//! child finds its parent's by its parent. A group is begun by the process whose id it has, and is
//! a part of that, which its members keep in memory: to change groups allocates next to nothing.
//! By id a group is found as that process is.
//!
//! A leader that has been waited for leaves its id to its group, as long as that has members; then
//! the group is retired, and nobody joins it who still knew it.
//!
//! Locks: two groups' by their places in memory, then a process's `membership`, or a shard of ids.
//! Users' counts have their own, under none. Whoever holds one drops nothing that may be a last
//! reference: what is taken out is handed on.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::sync::{ReadMostly, SpinGuard, SpinLock};

use super::{PID_MAX, Pid, Process, THREADS_MAX, Thread};
use crate::base::id_map::IdMap;
use crate::base::id_shards::{Entry, IdShards};
use crate::base::lists::{Lists, Place};

/// Who has an id.
struct IdEntry {
    /// Zombies included; of a group, who led it.
    process: Option<Arc<Process>>,
    /// The thread, or that the id is kept for one, or for a zombie.
    thread: Option<Weak<Thread>>,
    /// The user whom it is charged to, as long as there is that thread.
    uid: u32,
    /// The process is no more here, but has left its id to the group that it led.
    is_group: bool,
}

impl Entry for IdEntry {
    fn is_unused(&self) -> bool {
        self.process.is_none() && self.thread.is_none()
    }
}

static IDS: IdShards<IdEntry> = IdShards::new(PID_MAX, 300);
/// How many threads are charged to each user who has any (RLIMIT_NPROC).
static USERS: ReadMostly<IdMap<AtomicUsize>> = ReadMostly::new(IdMap::new());
/// Ids that threads have, or that are kept.
static THREADS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicU32 = AtomicU32::new(0);

/// Counts one more thread; how many there are then. None if there are too many.
pub(super) fn admit() -> Option<usize> {
    let before = THREADS.fetch_add(1, Ordering::Relaxed);
    if before >= THREADS_MAX {
        dismiss();
        return None;
    }
    Some(before + 1)
}

/// Counts one thread less.
pub(super) fn dismiss() {
    THREADS.fetch_sub(1, Ordering::Relaxed);
}

/// The id given out last, for /proc/loadavg.
#[must_use]
pub fn last_pid() -> Pid {
    LAST.load(Ordering::Relaxed)
}

/// Keeps a free id for a thread that is counted, charged to a user. Some is free: there are fewer
/// threads than ids.
pub(super) fn keep_next(uid: u32) -> Pid {
    loop {
        let pid = IDS.next_id();
        if keep(pid, uid) {
            LAST.store(pid, Ordering::Relaxed);
            return pid;
        }
    }
}

/// Keeps an id for a thread that is counted, charged to a user. False if it is not free.
pub(super) fn keep(pid: Pid, uid: u32) -> bool {
    let (process, thread, is_group) = (None, Some(Weak::new()), false);
    let is_free = IDS.insert(pid, IdEntry { process, thread, uid, is_group });
    if is_free {
        count(uid);
    }
    is_free
}

/// The thread has this id, which is kept for it.
pub(super) fn set_thread(tid: Pid, thread: Weak<Thread>) {
    let old = IDS.change(tid, |entry| entry.thread.replace(thread));
    drop(old);
}

/// The thread with an id has another one, which is kept for it: its user goes with it.
pub(super) fn renumber(old: Pid, new: Pid, thread: Weak<Thread>) {
    if let Some(uid) = IDS.read(old, |entry| Some(entry.uid)) {
        charge_thread(new, uid);
    }
    release_pid(old);
    set_thread(new, thread);
}

/// A thread, if it is in the table, or what its id is kept for, is charged to another user from now
/// on.
pub(super) fn charge_thread(tid: Pid, uid: u32) {
    let charge = |entry: &mut IdEntry| {
        entry.thread.is_some().then(|| core::mem::replace(&mut entry.uid, uid))
    };
    if let Some(old) = IDS.change(tid, charge).flatten() {
        count(uid);
        discount(old);
    }
}

/// How many threads a user has, zombies included (RLIMIT_NPROC). The first user's are counted, too.
#[must_use]
pub fn threads_of_user(uid: u32) -> usize {
    USERS.read(|users| users.get(uid).map_or(0, |count| count.load(Ordering::Relaxed)))
}

/// For the accounts: how many users have threads, and how many they have together.
#[must_use]
pub fn charges() -> (usize, usize) {
    USERS.read(|users| {
        (users.len(), users.values().map(|count| count.load(Ordering::Relaxed)).sum())
    })
}

fn count(uid: u32) {
    let add = |count: &AtomicUsize| count.fetch_add(1, Ordering::Relaxed);
    if USERS.read(|users| users.get(uid).map(add)).is_none() {
        add(USERS.lock().get_or_insert_with(uid, || AtomicUsize::new(0)));
    }
}

fn discount(uid: u32) {
    let take = |count: &AtomicUsize| count.fetch_sub(1, Ordering::Relaxed);
    if USERS.read(|users| users.get(uid).map(take)) == Some(1) {
        let mut users = USERS.lock();
        // It may have got another one meanwhile.
        if users.get(uid).is_some_and(|count| count.load(Ordering::Relaxed) == 0) {
            users.remove(uid);
        }
    }
}

/// Gives an id back: no thread has it any longer, nor is it kept.
pub fn release_pid(tid: Pid) {
    let take = |entry: &mut IdEntry| entry.thread.take().map(|thread| (thread, entry.uid));
    if let Some((thread, uid)) = IDS.change(tid, take).flatten() {
        drop(thread);
        dismiss();
        discount(uid);
    }
}

/// The living thread with this id.
#[must_use]
pub fn find_thread(tid: Pid) -> Option<Arc<Thread>> {
    IDS.read(tid, |entry| entry.thread.as_ref()?.upgrade())
}

/// The process with this id, zombies included.
#[must_use]
pub fn find_process(pid: Pid) -> Option<Arc<Process>> {
    IDS.read(pid, living)
}

fn living(entry: &IdEntry) -> Option<Arc<Process>> {
    if entry.is_group { None } else { entry.process.clone() }
}

/// At most `max` processes whose ids are `first` or above, by id.
#[must_use]
pub fn processes_from(first: Pid, max: usize) -> Vec<Arc<Process>> {
    IDS.collect_from(first, max, living)
}

/// Enters a process with its first thread, whose id is the same, and into its group.
pub(super) fn add(process: &Arc<Process>, first: Weak<Thread>, parent: &Process) {
    let old = IDS.change(process.pid, |own| {
        own.process = Some(process.clone());
        own.thread.replace(first)
    });
    drop(old);
    enter_group(process, parent);
}

/// Takes a process out of the table, once it has been waited for, and gives its id back. A group
/// that it led keeps the id as long as it has members.
pub fn unregister_process(process: &Process) {
    let mut members = leave_group(process);
    members.is_left = true;
    // With the lock: the last member that leaves finds the id left to the group.
    let is_group = !members.list.is_empty();
    let taken = IDS.change(process.pid, |own| {
        own.is_group = is_group;
        let process = if is_group { None } else { own.process.take() };
        (process, own.thread.take(), own.uid)
    });
    drop(members);
    if let Some((_, Some(_), uid)) = taken {
        dismiss();
        discount(uid);
    }
}

/// Who leads the group with this id, or could, or did.
fn group_leader(id: Pid) -> Option<Arc<Process>> {
    IDS.read(id, |entry| entry.process.clone())
}

/// The group with this id has lost its last member, after its leader; that, to be dropped.
fn forget_group(id: Pid) -> Option<Arc<Process>> {
    IDS.change(id, |entry| if entry.is_group { entry.process.take() } else { None })?
}

/// The group that a process may lead.
#[derive(Default)]
pub(super) struct Group(SpinLock<Members>);

#[derive(Default)]
struct Members {
    /// In the order in which they joined.
    list: Lists<Arc<Process>, 1>,
    /// That all of them are of.
    session: Pid,
    /// The leader has been waited for.
    is_left: bool,
}

/// Who leads the group that a process is in, and its place there, which changes under that group's
/// lock.
#[derive(Default)]
pub(super) struct Membership(Option<(Arc<Process>, Place)>);

impl Membership {
    /// The place, if it is in this group, whose members are locked: else it may be another soon.
    fn place_in(&self, leader: &Arc<Process>) -> Option<Place> {
        self.0.as_ref().filter(|(now, _)| Arc::ptr_eq(now, leader)).map(|&(_, place)| place)
    }
}

impl Members {
    /// Nobody will be a member again.
    fn is_retired(&self) -> bool {
        self.is_left && self.list.is_empty()
    }

    /// Makes a process the last member; its membership.
    fn join(&mut self, process: &Arc<Process>, leader: &Arc<Process>, session: Pid) -> Membership {
        if self.list.is_empty() {
            self.session = session;
        }
        Membership(Some((leader.clone(), self.list.push_back(0, process.clone()))))
    }

    /// Takes the member at a place out; what is to be dropped without the lock.
    fn leave(&mut self, leader: &Process, place: Place) -> [Option<Arc<Process>>; 2] {
        let member = self.list.remove(0, place);
        [member, if self.is_retired() { forget_group(leader.pid) } else { None }]
    }
}

fn members_of(leader: &Process) -> SpinGuard<'_, Members> {
    leader.led.0.lock()
}

/// Who leads the group that a process is in.
fn leader_of(process: &Process) -> Option<Arc<Process>> {
    process.membership.lock().0.as_ref().map(|(leader, _)| leader.clone())
}

/// A new process becomes a member of its own group, if that is said to be its, or of the one that
/// `parent` is in now.
fn enter_group(process: &Arc<Process>, parent: &Process) {
    loop {
        let is_own = process.group() == process.pid;
        let of_parent = if is_own { None } else { leader_of(parent) };
        let leader = of_parent.unwrap_or_else(|| process.clone());
        let mut members = members_of(&leader);
        // The parent has gone to another one meanwhile.
        if members.is_retired() {
            continue;
        }
        let membership = members.join(process, &leader, process.session.load(Ordering::Relaxed));
        process.group.store(leader.pid, Ordering::Relaxed);
        process.session.store(members.session, Ordering::Relaxed);
        *process.membership.lock() = membership;
        return;
    }
}

/// A process that has been waited for leaves its group. The members of the one that it leads.
fn leave_group(process: &Process) -> SpinGuard<'_, Members> {
    // Each turn means that somebody has moved it meanwhile.
    while let Some(leader) = leader_of(process) {
        let mut members = members_of(&leader);
        let mut membership = process.membership.lock();
        let Some(place) = membership.place_in(&leader) else { continue };
        let old = core::mem::take(&mut *membership);
        drop(membership);
        let left = members.leave(&leader, place);
        drop(members);
        drop((left, old));
        break;
    }
    members_of(process)
}

/// The locks of two groups.
fn lock_both<'a>(
    one: &'a Process,
    other: &'a Process,
) -> (SpinGuard<'a, Members>, SpinGuard<'a, Members>) {
    if core::ptr::from_ref(one) < core::ptr::from_ref(other) {
        let first = members_of(one);
        (first, members_of(other))
    } else {
        let first = members_of(other);
        (members_of(one), first)
    }
}

/// Makes a process a member of a group, and of no other: of its own, or of one that has members,
/// which are of `session`. EPERM.
pub fn join_group(process: &Arc<Process>, id: Pid, session: Pid) -> Result<()> {
    loop {
        let is_own = id == process.pid;
        let new = if is_own { Some(process.clone()) } else { group_leader(id) };
        let (Some(new), Some(old)) = (new, leader_of(process)) else {
            // Of one that has been waited for nobody sees what it does.
            return if is_own { Ok(()) } else { Err(Errno::EPERM) };
        };
        if Arc::ptr_eq(&old, &new) {
            return Ok(());
        }
        let (mut old_members, mut new_members) = lock_both(&old, &new);
        let is_there = !new_members.list.is_empty() && new_members.session == session;
        if !is_own && !is_there {
            return Err(Errno::EPERM);
        }
        let mut membership = process.membership.lock();
        // Somebody has moved it meanwhile.
        let Some(place) = membership.place_in(&old) else { continue };
        let left = old_members.leave(&old, place);
        let before = core::mem::replace(&mut *membership, new_members.join(process, &new, session));
        process.group.store(id, Ordering::Relaxed);
        drop((membership, old_members, new_members));
        drop((left, before));
        return Ok(());
    }
}

/// The session of a group that has a process, zombies included: all its members are of one.
#[must_use]
pub fn session_of_group(id: Pid) -> Option<Pid> {
    let leader = group_leader(id)?;
    let members = members_of(&leader);
    (!members.list.is_empty()).then_some(members.session)
}

/// The processes of a group, zombies included, in the order in which they joined it.
#[must_use]
pub fn group_members(id: Pid) -> Vec<Arc<Process>> {
    let Some(leader) = group_leader(id) else { return Vec::new() };
    let members = members_of(&leader);
    let mut all = Vec::with_capacity(members.list.len());
    all.extend(members.list.iter(0).cloned());
    all
}
