//! Where a process stands: whether it lives, who its parent and children are, and what wait(2)
//! has not told of it yet. Who changes that: [`super::relations`].

use alloc::collections::BTreeSet;
use alloc::sync::{Arc, Weak};

use super::{Pid, Process};
use crate::base::id_map::IdMap;

/// Whether a process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitState {
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
pub enum WaitEvent {
    /// It was stopped by this signal.
    Stopped(u32),
    /// It goes on.
    Continued,
}

/// Relations of a process: under one lock per process.
#[derive(Default)]
pub struct Relations {
    /// Who is told when this process ends.
    pub parent: Weak<Process>,
    /// Its children by id, dead ones included until they are waited for.
    pub children: IdMap<Arc<Process>>,
    /// Children that something may have happened to which wait(2) tells of: every one of those is
    /// here, and perhaps others.
    pub news: BTreeSet<Pid>,
    /// Whether it lives.
    pub exit_state: ExitState,
    /// What the parent has not been told by wait(2) yet.
    pub wait_event: Option<WaitEvent>,
    /// It has ended, and its tracer, not being the parent, has to wait for it first.
    pub held_by_tracer: bool,
    /// Threads of it that have ended, and that their tracers have not waited for: the process's own
    /// end is told after theirs.
    pub unreaped_threads: u32,
    /// It is ending: it has given its children away and takes no more, and does not count for its
    /// group any longer.
    pub is_closed: bool,
}

impl Relations {
    /// Whether a tracer has to wait for the process or its threads before the parent may.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.exit_state == ExitState::Zombie && (self.held_by_tracer || self.unreaped_threads > 0)
    }

    /// A child is one no longer. Whoever calls has another reference to it, so that nothing is
    /// freed under the lock. False if it was none.
    pub fn remove_child(&mut self, child: Pid) -> bool {
        self.news.remove(&child);
        self.children.remove(child).is_some()
    }
}
