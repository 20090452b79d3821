//! Relations between processes: parents, children, orphans, process groups and sessions
//! (credentials(7), setpgid(2), setsid(2)).
//!
//! Each process has one lock for its own relations. A child's lock may be taken under its parent's,
//! never the other way round; and a child's parent changes only under the locks of the new parent
//! and the child. Whoever finds a child's parent first and then locks it has to look again whether
//! the child is still there.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::general as raw;

use super::signal::{self, SigInfo};
use super::{Pid, Process, all_processes, init_process, unregister_process};

/// Whether a process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// It has threads.
    #[default]
    Alive,
    /// It has exited, and waits to be waited for.
    Zombie,
    /// Somebody has taken its status.
    Reaped,
}

/// A change of state for wait(2), other than the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It was stopped by this signal.
    Stopped(u32),
    /// It goes on.
    Continued,
}

/// Relations of a process: under one lock per process.
#[derive(Default)]
pub struct Family {
    /// Who is told when this process ends.
    pub parent: Weak<Process>,
    /// Its children, dead ones included until they are waited for.
    pub children: Vec<Arc<Process>>,
    /// Whether it lives.
    pub life: Life,
    /// What the parent has not been told by wait(2) yet.
    pub report: Option<Report>,
    /// It has ended, and its tracer, not being the parent, has to wait for it first.
    pub held_by_tracer: bool,
    /// Threads of it that have ended, and that their tracers have not waited for: the process's own
    /// end is told after theirs.
    pub unreaped_threads: u32,
    /// It has given its children away and takes no more.
    pub is_closed: bool,
}

impl Family {
    /// Whether a tracer has to wait for the process or its threads before the parent may.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.life == Life::Zombie && (self.held_by_tracer || self.unreaped_threads > 0)
    }
}

impl Process {
    /// The parent.
    #[must_use]
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.family.lock().parent.upgrade()
    }

    /// The parent's id; 0 without one.
    #[must_use]
    pub fn parent_pid(&self) -> Pid {
        self.parent().map_or(0, |parent| parent.pid)
    }
}

/// Makes `child` a child of `parent`; false if `parent` takes no more children.
pub fn adopt(parent: &Arc<Process>, child: &Arc<Process>) -> bool {
    let mut family = parent.family.lock();
    if family.is_closed {
        return false;
    }
    child.family.lock().parent = Arc::downgrade(parent);
    family.children.push(child.clone());
    true
}

/// Makes `child` a child of `parent`, or of the first process if that is ending.
pub fn adopt_or_orphan(parent: &Arc<Process>, child: &Arc<Process>) {
    if !adopt(parent, child)
        && let Some(init) = init_process()
    {
        adopt(&init, child);
    }
}

/// Takes a process away from its parent; true for the one caller that did. The process then belongs
/// to nobody and can be forgotten.
pub fn detach(child: &Arc<Process>) -> bool {
    loop {
        let Some(parent) = child.parent() else { return false };
        let mut family = parent.family.lock();
        let at = family.children.iter().position(|c| Arc::ptr_eq(c, child));
        if let Some(at) = at {
            let removed = family.children.swap_remove(at);
            removed.family.lock().life = Life::Reaped;
            drop(family);
            return true;
        }
        drop(family);
        let same = child.parent().is_some_and(|now| Arc::ptr_eq(&now, &parent));
        if same {
            return false;
        }
    }
}

/// Forgets a zombie that has been detached, and gives its id back.
pub fn forget(process: &Arc<Process>) {
    unregister_process(process.pid);
    super::release_pid(process.pid);
}

/// Who adopts the children of `process`: its nearest ancestor that asked to be a subreaper
/// (PR_SET_CHILD_SUBREAPER), else the first process.
fn reaper_for(process: &Process) -> Option<Arc<Process>> {
    let mut ancestor = process.parent();
    while let Some(candidate) = ancestor {
        if candidate.pid <= 1 {
            break;
        }
        let alive = candidate.family.lock().life == Life::Alive;
        if alive && candidate.settings.is_subreaper.load(Ordering::Relaxed) {
            return Some(candidate);
        }
        ancestor = candidate.parent();
    }
    init_process()
}

/// Gives the children of an ending process to others.
pub fn give_children_away(process: &Arc<Process>) {
    let children = {
        let mut family = process.family.lock();
        family.is_closed = true;
        core::mem::take(&mut family.children)
    };
    if children.is_empty() {
        return;
    }
    let reaper = reaper_for(process);
    for child in children {
        let death_signal = child.settings.parent_death_signal.load(Ordering::Relaxed);
        if death_signal != 0 {
            let uid = process.credentials().uid;
            let code = raw::SI_USER as i32;
            let info = SigInfo::from_process(death_signal, code, process.pid, uid);
            let _ = signal::send_to_process(&child, info);
        }
        if let Some(reaper) = &reaper {
            adopt_or_orphan(reaper, &child);
        }
        // Whatever signal the old parent wanted, the new one is told as usual.
        child.exit_signal.store(raw::SIGCHLD, Ordering::Relaxed);
        let (is_zombie, is_held) = {
            let family = child.family.lock();
            (family.life == Life::Zombie, family.is_held())
        };
        if is_held {
            // Its tracer will pass it on.
        } else if is_zombie {
            // It had told its old parent; nobody will ask that one any more.
            super::exit::tell_parent(&child);
        } else {
            hang_up_if_orphaned(&child, process);
        }
    }
}

/// Whether no member of the process's group has a parent in another group of the same session: then
/// nobody can continue it after a terminal's stop signal (POSIX "orphaned process group").
#[must_use]
pub fn is_orphaned_group(process: &Process) -> bool {
    let group = process.group.load(Ordering::Relaxed);
    is_group_orphaned_without(group, None)
}

fn is_group_orphaned_without(group: Pid, leaving: Option<Pid>) -> bool {
    !all_processes().iter().any(|member| {
        let in_group = member.group.load(Ordering::Relaxed) == group;
        in_group
            && Some(member.pid) != leaving
            && member.family.lock().life == Life::Alive
            && member.parent().is_some_and(|parent| {
                parent.pid > 1
                    && parent.group.load(Ordering::Relaxed) != group
                    && parent.session.load(Ordering::Relaxed)
                        == member.session.load(Ordering::Relaxed)
            })
    })
}

/// The end of `parent` may have orphaned the group of `child`: stopped members would never go on,
/// so they get SIGHUP and SIGCONT.
fn hang_up_if_orphaned(child: &Arc<Process>, parent: &Process) {
    let group = child.group.load(Ordering::Relaxed);
    let was_linked = parent.group.load(Ordering::Relaxed) != group
        && parent.session.load(Ordering::Relaxed) == child.session.load(Ordering::Relaxed);
    if was_linked {
        hang_up_stopped(group, None);
    }
}

/// Sends SIGHUP and SIGCONT to a group that is orphaned now and has a stopped member. `leaving` is
/// ending and counts no more.
pub fn hang_up_stopped(group: Pid, leaving: Option<Pid>) {
    let has_stopped = signal::send::group_members(group)
        .iter()
        .any(|member| member.signals.lock().stop.is_some());
    if has_stopped && is_group_orphaned_without(group, leaving) {
        let _ = signal::send_to_group(group, SigInfo::kernel(raw::SIGHUP));
        let _ = signal::send_to_group(group, SigInfo::kernel(raw::SIGCONT));
    }
}
