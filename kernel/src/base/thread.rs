//! A thread as the scheduler knows it: what runs, sleeps and is woken.
//!
//! What the thread is to a program (its process, signals, tracer) is its *part* on a floor above
//! (`process::Thread`), which owns this and is found from it by the switch (`machine::task::part`).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use machine::sync::SpinLock;
use machine::task::{Schedulable, Task, ThreadCell};

use super::accounts::{Counted, ObjectKind};
use super::sched::{SchedEntity, default_affinity};
use super::sync::Waiter;

/// Exit-work bits of a thread (`machine::task::Task::set_work`).
pub mod work {
    /// Another thread should run.
    pub const RESCHEDULE: u32 = 1;
    /// A signal may be pending.
    pub const SIGNAL: u32 = 1 << 1;
    /// The signal mask to restore after a call that replaced it (sigsuspend, ppoll …).
    pub const RESTORE_MASK: u32 = 1 << 2;
    /// The process is ending: this thread must exit.
    pub const EXIT: u32 = 1 << 3;
    /// The thread has not run yet and has to write its id (CLONE_CHILD_SETTID).
    pub const CHILD_TID: u32 = 1 << 4;
    /// A tracer that stopped the thread in the middle of a system call wants to see its end, which
    /// it did not when the call began (PTRACE_SYSCALL at an event).
    pub const SYSCALL_EXIT: u32 = 1 << 5;
    /// The thread's program wants to be told which CPU it runs on, and that may have changed.
    pub const RSEQ: u32 = 1 << 6;
}

/// A thread, as far as CPUs are concerned.
pub struct Thread {
    /// Its number; changes once if a thread that is not the first one executes a program.
    pub tid: AtomicU32,
    /// The scheduler's part.
    pub sched: SpinLock<SchedEntity>,
    /// Copy of the affinity mask for CPUs that look for work without the lock.
    pub affinity_hint: AtomicU32,
    /// CPU time in nanoseconds: in user mode, in the kernel.
    pub cpu_time_ns: (AtomicU64, AtomicU64),
    /// Whether somebody measures the CPU time that it and others use together, and wants to be told
    /// at each tick ([`super::sched::on_measured_tick`]).
    pub is_measured: Arc<AtomicBool>,
    /// Its program is told which CPU it runs on (rseq(2)).
    pub watches_cpu: AtomicBool,
    /// It was switched from; whoever wants to know clears it first.
    pub was_switched: AtomicBool,
    /// The waiter of its last wait, for the next one.
    pub(super) spare_waiter: ThreadCell<Option<Arc<Waiter>>>,
    task: Task,
    _counted: Counted<{ ObjectKind::Thread as usize }>,
}

impl Schedulable for Thread {
    #[inline(always)]
    fn task(&self) -> &Task {
        &self.task
    }
}

impl Thread {
    /// A thread around a machine task. It does not run until it is unparked.
    #[must_use]
    pub fn new(tid: u32, task: Task, is_measured: Arc<AtomicBool>) -> Arc<Thread> {
        Arc::new(Thread {
            tid: AtomicU32::new(tid),
            sched: SpinLock::new(SchedEntity::new()),
            affinity_hint: AtomicU32::new(default_affinity()),
            cpu_time_ns: (AtomicU64::new(0), AtomicU64::new(0)),
            is_measured,
            watches_cpu: AtomicBool::new(false),
            was_switched: AtomicBool::new(false),
            spare_waiter: ThreadCell::new(None),
            _counted: Counted::new(),
            task,
        })
    }

    /// The machine's part.
    #[inline(always)]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Whether something should end an interruptible sleep: a signal that is not blocked, or the
    /// end of the process. Cheap: looks at one word.
    #[inline(always)]
    pub fn has_pending_signal(&self) -> bool {
        self.task.work() & (work::SIGNAL | work::EXIT) != 0
    }

    /// Charges CPU time.
    pub(super) fn charge(&self, ns: u64, user: bool) {
        let (user_ns, kernel_ns) = &self.cpu_time_ns;
        (if user { user_ns } else { kernel_ns }).fetch_add(ns, Ordering::Relaxed);
    }
}
