//! Who has which id: processes, threads, and the members of process groups.
//!
//! All that is asked by id takes the same few steps however many there are, and so does a change of
//! group: members are a list, whose links are ids. Whoever holds the table drops nothing that may
//! be a last reference: what is taken out is handed to the caller.

use alloc::sync::{Arc, Weak};

use super::{Pid, Process, Thread};
use crate::base::id_map::IdMap;

/// No member of a list: nobody has this id.
const NOBODY: Pid = 0;

/// Who has an id.
#[derive(Default)]
struct Entry {
    /// Zombies included.
    process: Option<Arc<Process>>,
    /// The thread, or that the id is kept for one, or for a zombie.
    thread: Option<Weak<Thread>>,
    /// The members of the process's group before and after it, or [`NOBODY`].
    before: Pid,
    after: Pid,
}

/// The members of a group, in the order in which they joined.
#[derive(Clone, Copy)]
struct Members {
    first: Pid,
    last: Pid,
}

/// See the module. A thread group leader's thread has the process's id.
pub(super) struct Table {
    ids: IdMap<Entry>,
    groups: IdMap<Members>,
    /// Ids that threads have, or that are kept.
    threads: usize,
    next: Pid,
}

impl Table {
    pub(super) const fn new() -> Table {
        Table { ids: IdMap::new(), groups: IdMap::new(), threads: 0, next: 1 }
    }

    /// Ids that threads have, or that are kept for some.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// The id that is tried next.
    pub(super) fn next(&self) -> Pid {
        self.next
    }

    /// Keeps a free id. Some is free: there are fewer threads than ids.
    pub(super) fn keep_next(&mut self) -> Pid {
        loop {
            let pid = self.next;
            self.next = if pid >= super::PID_MAX { 300 } else { pid + 1 };
            if self.ids.get(pid).is_none() {
                self.set_thread(pid, Weak::new());
                return pid;
            }
        }
    }

    fn entry(&mut self, pid: Pid) -> &mut Entry {
        if self.ids.get(pid).is_none() {
            self.ids.insert(pid, Entry::default());
        }
        self.ids.get_mut(pid).expect("entered just now")
    }

    fn forget_if_unused(&mut self, pid: Pid) {
        let is_unused = |entry: &Entry| entry.process.is_none() && entry.thread.is_none();
        if self.ids.get(pid).is_some_and(is_unused) {
            self.ids.remove(pid);
        }
    }

    /// The thread has this id.
    pub(super) fn set_thread(&mut self, tid: Pid, thread: Weak<Thread>) {
        let old = self.entry(tid).thread.replace(thread);
        self.threads += usize::from(old.is_none());
    }

    /// No thread has this id any longer, nor is it kept.
    pub(super) fn release_thread(&mut self, tid: Pid) {
        let released = self.ids.get_mut(tid).and_then(|entry| entry.thread.take());
        if released.is_some() {
            self.threads -= 1;
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

    /// Enters a process, as a member of its group.
    pub(super) fn add(&mut self, process: &Arc<Process>) {
        self.entry(process.pid).process = Some(process.clone());
        self.link(process.pid, process.group());
    }

    /// Takes a process out.
    pub(super) fn remove(&mut self, pid: Pid) -> Option<Arc<Process>> {
        let process = self.ids.get_mut(pid)?.process.take()?;
        self.unlink(pid, process.group());
        self.forget_if_unused(pid);
        Some(process)
    }

    /// A process goes from one group to another, if it is here still.
    pub(super) fn regroup(&mut self, pid: Pid, old: Pid, new: Pid) {
        if self.process(pid).is_some() {
            self.unlink(pid, old);
            self.link(pid, new);
        }
    }

    /// The members of a group, zombies included.
    pub(super) fn members(&self, group: Pid) -> impl Iterator<Item = &Arc<Process>> {
        let mut next = self.groups.get(group).map_or(NOBODY, |members| members.first);
        core::iter::from_fn(move || {
            // Nobody has the id NOBODY.
            let entry = self.ids.get(next)?;
            next = entry.after;
            entry.process.as_ref()
        })
    }

    /// Makes a process the last member of a group.
    fn link(&mut self, pid: Pid, group: Pid) {
        let before = match self.groups.get_mut(group) {
            Some(members) => core::mem::replace(&mut members.last, pid),
            None => {
                self.groups.insert(group, Members { first: pid, last: pid });
                NOBODY
            }
        };
        if let Some(entry) = self.ids.get_mut(before) {
            entry.after = pid;
        }
        let own = self.entry(pid);
        (own.before, own.after) = (before, NOBODY);
    }

    /// A process is no member of `group` any longer, of which it was one.
    fn unlink(&mut self, pid: Pid, group: Pid) {
        let own = self.entry(pid);
        let (before, after) = (own.before, own.after);
        if before == NOBODY && after == NOBODY {
            self.groups.remove(group);
            return;
        }
        match self.ids.get_mut(before) {
            Some(entry) => entry.after = after,
            None => self.change_group(group, |members| members.first = after),
        }
        match self.ids.get_mut(after) {
            Some(entry) => entry.before = before,
            None => self.change_group(group, |members| members.last = before),
        }
    }

    fn change_group(&mut self, group: Pid, change: impl FnOnce(&mut Members)) {
        if let Some(members) = self.groups.get_mut(group) {
            change(members);
        }
    }
}
