//! Who has which id: processes, threads, and the members of process groups.
//!
//! All that is asked by id takes the same few steps however many there are, and so does a change of
//! group: members are a list, whose links are ids. Whoever holds the table drops nothing that may
//! be a last reference: what is taken out is handed to the caller.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use super::{Pid, Process, Thread};
use crate::base::id_map::IdMap;

/// No member of a list: nobody has this id.
const NOBODY: Pid = 0;

/// Who has an id.
#[derive(Default)]
struct IdEntry {
    /// Zombies included.
    process: Option<Arc<Process>>,
    /// The thread, or that the id is kept for one, or for a zombie.
    thread: Option<Weak<Thread>>,
    /// The user whom it is charged to, as long as there is that thread.
    uid: u32,
    /// The members of the process's group before and after it, or [`NOBODY`].
    before: Pid,
    after: Pid,
    /// The members of the group with this id, which keep the id from being given out again.
    members: Members,
}

/// The first and the last member of a group, in the order in which they joined, and the session
/// that all of them are of; [`NOBODY`] if it has none.
#[derive(Clone, Copy, Default)]
struct Members {
    first: Pid,
    last: Pid,
    session: Pid,
}

impl IdEntry {
    fn is_unused(&self) -> bool {
        self.process.is_none() && self.thread.is_none() && self.members.first == NOBODY
    }

    /// Whether there is a group with this id, of this session.
    fn is_group_of(&self, session: Pid) -> bool {
        self.members.first != NOBODY && self.members.session == session
    }

    /// A process becomes the last member of the group with this id; the one before it.
    fn append(&mut self, pid: Pid, session: Pid) -> Pid {
        let before = core::mem::replace(&mut self.members.last, pid);
        if before == NOBODY {
            (self.members.first, self.members.session) = (pid, session);
        }
        before
    }
}

/// See the module. A thread group leader's thread has the process's id.
pub(super) struct Table {
    ids: IdMap<IdEntry>,
    /// Ids that threads have, or that are kept.
    threads: usize,
    /// How many of them are charged to each user who has any (RLIMIT_NPROC).
    users: IdMap<usize>,
    next: Pid,
}

impl Table {
    pub(super) const fn new() -> Table {
        Table { ids: IdMap::new(), threads: 0, users: IdMap::new(), next: 1 }
    }

    /// Ids that threads have, or that are kept for some.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// The id that is tried next.
    pub(super) fn next(&self) -> Pid {
        self.next
    }

    /// Keeps a free id, charged to a user. Some is free: there are fewer threads than ids.
    pub(super) fn keep_next(&mut self, uid: u32) -> Pid {
        loop {
            let pid = self.next;
            self.next = if pid >= super::PID_MAX { 300 } else { pid + 1 };
            if self.keep(pid, uid) {
                return pid;
            }
        }
    }

    /// Keeps an id, charged to a user. False if it is not free.
    pub(super) fn keep(&mut self, pid: Pid, uid: u32) -> bool {
        let is_free = self.ids.get(pid).is_none();
        if is_free {
            self.set_thread(pid, Weak::new());
            self.entry(pid).uid = uid;
            self.count(uid);
        }
        is_free
    }

    fn entry(&mut self, pid: Pid) -> &mut IdEntry {
        self.ids.get_or_insert_with(pid, IdEntry::default)
    }

    fn forget_if_unused(&mut self, pid: Pid) {
        if self.ids.get(pid).is_some_and(IdEntry::is_unused) {
            self.ids.remove(pid);
        }
    }

    /// The thread has this id, which is kept for it.
    pub(super) fn set_thread(&mut self, tid: Pid, thread: Weak<Thread>) {
        let old = self.entry(tid).thread.replace(thread);
        self.threads += usize::from(old.is_none());
    }

    /// The thread with an id has another one, which is kept for it: its user goes with it.
    pub(super) fn renumber(&mut self, old: Pid, new: Pid, thread: Weak<Thread>) {
        if let Some(uid) = self.ids.get(old).map(|entry| entry.uid) {
            self.charge(new, uid);
        }
        self.release_thread(old);
        self.set_thread(new, thread);
    }

    /// Charges the thread with this id, or what it is kept for, to a user and no longer to another.
    pub(super) fn charge(&mut self, tid: Pid, uid: u32) {
        let kept = self.ids.get_mut(tid).filter(|entry| entry.thread.is_some());
        let Some(old) = kept.map(|entry| core::mem::replace(&mut entry.uid, uid)) else { return };
        self.count(uid);
        self.discount(old);
    }

    /// How many threads, and zombies, are charged to a user.
    pub(super) fn charged(&self, uid: u32) -> usize {
        self.users.get(uid).copied().unwrap_or_default()
    }

    /// How many users are charged, and how many threads to all of them.
    pub(super) fn charges(&self) -> (usize, usize) {
        (self.users.len(), self.users.iter_from(0).map(|(_, count)| count).sum())
    }

    fn count(&mut self, uid: u32) {
        *self.users.get_or_insert_with(uid, || 0) += 1;
    }

    fn discount(&mut self, uid: u32) {
        let Some(count) = self.users.get_mut(uid) else { return };
        *count -= 1;
        if *count == 0 {
            self.users.remove(uid);
        }
    }

    /// No thread has this id any longer, nor is it kept.
    pub(super) fn release_thread(&mut self, tid: Pid) {
        let taken = |entry: &mut IdEntry| entry.thread.take().map(|_| entry.uid);
        if let Some(uid) = self.ids.get_mut(tid).and_then(taken) {
            self.threads -= 1;
            self.discount(uid);
            self.forget_if_unused(tid);
        }
    }

    /// The living thread.
    pub(super) fn thread(&self, tid: Pid) -> Option<Arc<Thread>> {
        self.ids.get(tid)?.thread.as_ref()?.upgrade()
    }

    /// The process.
    pub(super) fn process(&self, pid: Pid) -> Option<&Arc<Process>> {
        self.ids.get(pid)?.process.as_ref()
    }

    /// The processes whose ids are `first` or above, by id.
    pub(super) fn processes_from(&self, first: Pid) -> impl Iterator<Item = &Arc<Process>> {
        self.ids.iter_from(first).filter_map(|(_, entry)| entry.process.as_ref())
    }

    /// Enters a process with its first thread, whose id is the same, as a member of its group.
    pub(super) fn add(&mut self, process: &Arc<Process>, first: Weak<Thread>) {
        self.set_thread(process.pid, first);
        let session = process.session.load(Ordering::Relaxed);
        let before = self.append(process.pid, process.group(), session);
        self.change(process.pid, |own| {
            own.process = Some(process.clone());
            own.before = before;
        });
    }

    /// Takes a process out.
    pub(super) fn remove(&mut self, pid: Pid) -> Option<Arc<Process>> {
        let own = self.ids.get_mut(pid)?;
        let process = own.process.take()?;
        let (before, after) = (own.before, own.after);
        self.close_gap(process.group(), before, after);
        self.forget_if_unused(pid);
        Some(process)
    }

    /// A process that is here, or was, goes from one group to another: to its own, or to one that
    /// has members, which are of `session`; false if it has none.
    pub(super) fn regroup(&mut self, pid: Pid, old: Pid, new: Pid, session: Pid) -> bool {
        let mut last = NOBODY;
        if new != pid {
            match self.ids.get(new).filter(|entry| entry.is_group_of(session)) {
                Some(entry) => last = entry.members.last,
                None => return false,
            }
        }
        let is_here = |own: &&mut IdEntry| own.process.is_some() && old != new;
        let Some(own) = self.ids.get_mut(pid).filter(is_here) else { return true };
        let (before, after) = (own.before, own.after);
        // What is in the process's own entry is changed while that is at hand.
        if new == pid {
            last = own.append(pid, session);
        }
        (own.before, own.after) = (last, NOBODY);
        if old == pid && (before, after) == (NOBODY, NOBODY) {
            own.members = Members::default();
        } else {
            self.close_gap(old, before, after);
        }
        if new != pid {
            self.append(pid, new, session);
        } else if last != NOBODY {
            self.change(last, |entry| entry.after = pid);
        }
        true
    }

    /// The session of a group that has a process: all its members are of one.
    pub(super) fn session(&self, group: Pid) -> Option<Pid> {
        let members = self.ids.get(group)?.members;
        (members.first != NOBODY).then_some(members.session)
    }

    /// The members of a group, zombies included.
    pub(super) fn members(&self, group: Pid) -> impl Iterator<Item = &Arc<Process>> {
        let mut next = self.ids.get(group).map_or(NOBODY, |entry| entry.members.first);
        core::iter::from_fn(move || {
            // Nobody has the id NOBODY.
            let entry = self.ids.get(next)?;
            next = entry.after;
            entry.process.as_ref()
        })
    }

    /// Makes a process the last member of a group; the one before it, which has it behind it now.
    fn append(&mut self, pid: Pid, group: Pid, session: Pid) -> Pid {
        let entry = self.entry(group);
        let last = entry.append(pid, session);
        if last == group {
            entry.after = pid;
        } else if last != NOBODY {
            self.change(last, |entry| entry.after = pid);
        }
        last
    }

    /// `before` and `after` were the neighbours of a member that has left the group.
    fn close_gap(&mut self, group: Pid, before: Pid, after: Pid) {
        if before == NOBODY && after == NOBODY {
            let Some(entry) = self.ids.get_mut(group) else { return };
            entry.members = Members::default();
            if entry.is_unused() {
                self.ids.remove(group);
            }
            return;
        }
        // The last one behind the one whose id the group has: one entry has both.
        if before == group && after == NOBODY {
            return self.change(group, |entry| {
                entry.after = NOBODY;
                entry.members.last = before;
            });
        }
        match before {
            NOBODY => self.change(group, |entry| entry.members.first = after),
            _ => self.change(before, |entry| entry.after = after),
        }
        match after {
            NOBODY => self.change(group, |entry| entry.members.last = before),
            _ => self.change(after, |entry| entry.before = before),
        }
    }

    fn change(&mut self, id: Pid, change: impl FnOnce(&mut IdEntry)) {
        if let Some(entry) = self.ids.get_mut(id) {
            change(entry);
        }
    }
}
