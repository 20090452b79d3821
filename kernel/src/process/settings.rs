//! What a process has set for itself, and what of it a child has. A thread's is
//! `base::thread_settings`.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use machine::sync::SpinLock;

use super::Process;
use crate::security::Login;
/// Attributes of a process that only calls on itself change.
#[derive(Default)]
pub struct Settings {
    /// PR_SET_CHILD_SUBREAPER: it adopts orphans among its descendants.
    pub is_subreaper: AtomicBool,
    /// PR_SET_DUMPABLE, inverted so that the default is 0.
    pub not_dumpable: AtomicBool,
    /// Whether it has executed a program since fork (setpgid(2)).
    pub has_executed: AtomicBool,
    /// Whether its vfork parent still waits.
    pub holds_vfork_parent: AtomicBool,
    /// PR_SET_THP_DISABLE.
    pub no_huge_pages: AtomicBool,
    /// PR_SET_MEMORY_MERGE: equal pages of it may become one, which none ever do.
    pub merges_memory: AtomicBool,
    /// PR_SET_MDWE: what it never maps to be executed, as bits of prctl(2).
    pub deny_write_exec: AtomicU32,
    /// How much rather (or not) it is chosen when memory runs out: -1000 to 1000 (proc(5)).
    pub oom_score_adj: AtomicI32,
    /// Its registrations for membarrier(2), as the commands that made them. A child has them, too;
    /// a new program has none.
    pub membarrier: AtomicU32,
    /// Which areas a core file has (/proc/PID/coredump_filter), as the bits that differ from
    /// [`CORE_FILTER`].
    core_filter: AtomicU32,
    /// Who has logged in.
    pub login: Login,
    /// A core file is being made of it.
    pub dumps_core: AtomicBool,
    /// PR_SET_PTRACER: who else may trace it. Not inherited.
    pub named_tracer: SpinLock<NamedTracer>,
    /// The tick has to look at timers on its CPU time, or at RLIMIT_CPU.
    pub measures_cpu_time: Arc<AtomicBool>,
}

/// PR_SET_MDWE: a child begins without it.
pub const PR_MDWE_NO_INHERIT: u32 = 2;

/// Whom a process lets trace it besides those above it.
#[derive(Clone, Default)]
pub enum NamedTracer {
    /// Nobody.
    #[default]
    Nobody,
    /// Whoever else may (PR_SET_PTRACER_ANY).
    Anybody,
    /// This process, and those below it.
    Process(Weak<Process>),
}

/// What a core file has unless the process says otherwise: anonymous memory, and the headers of
/// mapped executables (core(5)).
const CORE_FILTER: u32 = 0x33;
/// Bits of it that exist.
const CORE_FILTER_MASK: u32 = 0x1ff;

impl Settings {
    /// Which areas a core file has.
    pub fn core_filter(&self) -> u32 {
        self.core_filter.load(Ordering::Relaxed) ^ CORE_FILTER
    }

    /// Sets [`Settings::core_filter`]; bits that do not exist are dropped.
    pub fn set_core_filter(&self, value: u32) {
        self.core_filter.store(value & CORE_FILTER_MASK ^ CORE_FILTER, Ordering::Relaxed);
    }

    /// What neither a child has nor a new program.
    pub fn drop_uninherited(&self) {
        if self.deny_write_exec.load(Ordering::Relaxed) & PR_MDWE_NO_INHERIT != 0 {
            self.deny_write_exec.store(0, Ordering::Relaxed);
        }
    }

    /// What a child inherits.
    #[must_use]
    pub fn inherit(&self) -> Settings {
        let settings = Settings {
            not_dumpable: self.not_dumpable.load(Ordering::Relaxed).into(),
            no_huge_pages: self.no_huge_pages.load(Ordering::Relaxed).into(),
            merges_memory: self.merges_memory.load(Ordering::Relaxed).into(),
            oom_score_adj: self.oom_score_adj.load(Ordering::Relaxed).into(),
            deny_write_exec: self.deny_write_exec.load(Ordering::Relaxed).into(),
            core_filter: self.core_filter.load(Ordering::Relaxed).into(),
            membarrier: self.membarrier.load(Ordering::Relaxed).into(),
            ..Settings::default()
        };
        settings.drop_uninherited();
        settings.login.set(self.login.get());
        settings
    }
}
