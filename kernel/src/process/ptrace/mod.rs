//! ptrace(2): one thread, the tracer, stops another, the tracee, looks at it and changes it.
//!
//! Why it is hard: two threads edit one state at moments that neither chooses alone, and either may
//! die at any of them. So a tracee stops only where nothing of it is half done (before and after a
//! system call, when it is about to get a signal, at events, when job control stops it), and it
//! stops *by itself*, in [`stop`]: it puts a copy of its registers under the lock of its
//! [`Trace`], sleeps, and takes back what is there when it goes on. The tracer never reaches into a
//! running thread, a stack or a CPU, only into that copy; so all of this is safe code, and a tracee
//! that is killed just leaves its copy behind.
//!
//! Nothing here says how the tracee leaves the kernel: the frame decides (`entry::decide`). One
//! that was only looked at leaves by SYSRET as if nobody had.
//!
//! Reading order: this file (the state), [`stop`] (the tracee's side), [`links`] (who traces whom),
//! [`access`] (who may). What the tracer's wait(2) sees is `wait::tracees`; the tracer's side,
//! ptrace(2) itself, is `crate::ptrace`.
//!
//! Locks: a tracer's `tracees`, then a tracee's `state`. The latter also comes after a process's
//! `signals` and a thread's `signals`, and before the scheduler's. Nothing is sent or freed under
//! either.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::ptrace as raw;
use entry::PtRegs;
use machine::debug_registers::DebugRegisters;
use machine::fpu::FpuState;
use machine::sync::{SpinGuard, SpinLock};

use super::signal::SigInfo;
use super::{Pid, Process, Thread};
use crate::base::sync::WaitQueue;

pub mod access;
pub mod links;
pub mod step;
pub mod stop;

/// What a system call of a thread has to do besides itself, at its begin and end
/// (`Thread::syscall_work`). Only the thread itself changes the bits of tracing.
pub mod syscall_work {
    /// Stop before and after (PTRACE_SYSCALL).
    pub const TRACE: u32 = 1;
    /// Stop before, and do not make the call (PTRACE_SYSEMU).
    pub const EMULATE: u32 = 1 << 1;
    /// The tracer steps: a call counts as one instruction.
    pub const STEP: u32 = 1 << 2;
    /// All of tracing.
    pub const TRACING: u32 = TRACE | EMULATE | STEP;
    /// Nothing: the slow path for its own sake (`syscall_work=on`), so that its price can be seen.
    pub const FORCED: u32 = 1 << 4;
    /// Filters have to be asked (`process::seccomp`). Never goes.
    pub const SECCOMP: u32 = 1 << 3;
    /// They are not those that the thread knows of.
    pub const SECCOMP_CHANGED: u32 = 1 << 5;
    /// The thread serves its calls itself (`process::user_dispatch`).
    pub const DISPATCH: u32 = 1 << 6;
}

/// What a new thread's `syscall_work` begins with.
static FIRST_WORK: AtomicU32 = AtomicU32::new(0);

/// Reads `syscall_work=on` from the kernel's command line, before the first program.
pub fn apply_options(command_line: &str) {
    if crate::base::params::find(command_line, "syscall_work") == Some("on") {
        FIRST_WORK.store(syscall_work::FORCED, Ordering::Relaxed);
    }
}

/// What a new thread's `syscall_work` begins with.
#[must_use]
pub fn first_work() -> u32 {
    FIRST_WORK.load(Ordering::Relaxed)
}

/// Threads that a process traces.
pub type Tracees = SpinLock<Vec<Arc<Thread>>>;

/// A thread's part in tracing: as tracee, and (`is_closed`) as tracer.
#[derive(Default)]
pub struct Trace {
    /// Whether somebody traces it; readable without the lock.
    pub(crate) is_traced: AtomicBool,
    /// As a tracer it is ending and takes no more tracees. Written under its process's `tracees`.
    pub(crate) is_closed: AtomicBool,
    pub(crate) state: SpinLock<TraceeState>,
    /// Woken when a stop may be over.
    pub(crate) resumed: WaitQueue,
}

/// Everything about a tracee.
#[derive(Default)]
pub struct TraceeState {
    /// Who traces it.
    pub(crate) link: Option<Link>,
    /// PTRACE_O_ bits.
    pub(crate) options: u32,
    /// A PTRACE_EVENT_STOP is due: PTRACE_INTERRUPT, or a tracee's new child.
    pub(crate) trap: bool,
    /// Job control has changed, which a tracer that used PTRACE_SEIZE wants to know.
    pub(crate) notify: bool,
    /// Present while the thread is in a ptrace stop.
    pub(crate) stop: Option<Stop>,
    /// The thread has ended with this wait(2) status, and its tracer has not waited for it yet.
    pub(crate) ended: Option<i32>,
    /// The thread has ended: nobody can begin to trace it.
    pub(crate) is_gone: bool,
    /// The stop of job control (`signal::stop::Stop::sequence`) it has been through.
    pub(crate) stop_seen: u64,
    /// TF in the thread's flags is the tracer's and not its own.
    pub(crate) forced_trap_flag: bool,
    /// Valid during a stop.
    pub(crate) registers: Registers,
    /// Valid during a stop. None before the first one, or if there was no memory for it.
    pub(crate) fpu: Option<FpuState>,
    /// Hardware breakpoints.
    pub(crate) debug: DebugRegisters,
    /// DR6 as the tracer sees it.
    pub(crate) debug_status: u64,
}

/// Who traces a thread.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) tracer: Arc<Process>,
    /// The tracer's thread: no other one may give orders.
    pub(crate) tid: Pid,
    /// By PTRACE_SEIZE: stops of job control are told apart.
    pub(crate) seized: bool,
    /// The tracer had CAP_SYS_PTRACE.
    pub(crate) privileged: bool,
}

/// A ptrace stop.
pub(crate) struct Stop {
    /// Bits 8 and up of the wait(2) status.
    pub(crate) code: u32,
    /// The tracer has not taken it by wait(2) yet.
    pub(crate) unreported: bool,
    /// PTRACE_LISTEN: stopped, but not for ptrace(2).
    pub(crate) listening: bool,
    /// For PTRACE_GETEVENTMSG.
    pub(crate) message: u64,
    /// For PTRACE_GETSIGINFO.
    pub(crate) info: Option<SigInfo>,
    /// How to go on.
    pub(crate) resumed: Option<Resume>,
}

/// The copy of a stopped tracee's registers.
#[derive(Default)]
pub(crate) struct Registers {
    pub(crate) general: PtRegs,
    pub(crate) fs_base: u64,
    pub(crate) gs_base: u64,
    /// The tracer changed the bases, the FPU image, or hardware breakpoints.
    pub(crate) bases_changed: bool,
    pub(crate) fpu_changed: bool,
    pub(crate) debug_changed: bool,
    /// Where its shadow stack ends, if it has one, and whether the tracer has moved that.
    pub(crate) shadow: Option<u64>,
    pub(crate) shadow_changed: bool,
}

/// How a tracee goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resume {
    /// The signal to get, or 0.
    pub(crate) signal: u32,
    /// [`syscall_work`] bits; `STEP` also stops after the next instruction.
    pub(crate) work: u32,
}

impl Trace {
    /// Whether somebody traces the thread.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.is_traced.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> SpinGuard<'_, TraceeState> {
        self.state.lock()
    }

    /// The tracer's thread; 0 without one (/proc/PID/status).
    pub fn tracer_tid(&self) -> Pid {
        self.state().link.as_ref().map_or(0, |link| link.tid)
    }

    /// Whether the thread is in a ptrace stop.
    pub fn is_stopped(&self) -> bool {
        self.is_traced() && self.state().stop.is_some()
    }

    /// Whether the stop of job control with this number is nothing new to the thread: it has
    /// stopped for it, and its tracer made it go on.
    pub fn has_seen(&self, sequence: u64) -> bool {
        self.is_traced() && self.state().stop_seen == sequence
    }

    /// Whether a PTRACE_EVENT_STOP is due.
    pub fn has_trap(&self) -> bool {
        if !self.is_traced() {
            return false;
        }
        let state = self.state();
        state.link.is_some() && (state.trap || state.notify)
    }

    /// Whether `process` is the tracer's.
    pub fn is_traced_by(&self, process: &Process) -> bool {
        self.is_traced() && self.state().is_traced_by(process)
    }

    /// Whether the tracer lacks the capability that would let it trace a program with more rights.
    pub fn has_weak_tracer(&self) -> bool {
        self.is_traced() && self.state().link.as_ref().is_some_and(|link| !link.privileged)
    }

    /// Job control stops or continues the process. True if the thread has to look: its tracer wants
    /// to know.
    pub fn job_control_changed(&self) -> bool {
        if !self.is_traced() {
            return false;
        }
        let mut state = self.state();
        let wanted = state.link.as_ref().is_some_and(|link| link.seized);
        state.notify |= wanted;
        let listening = state.stop.as_ref().is_some_and(|stop| stop.listening);
        drop(state);
        if listening {
            self.resumed.wake_all(0);
        }
        wanted
    }
}

impl TraceeState {
    pub(crate) fn is_traced_by(&self, process: &Process) -> bool {
        self.link.as_ref().is_some_and(|link| core::ptr::eq(Arc::as_ptr(&link.tracer), process))
    }

    pub(crate) fn is_seized(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.seized)
    }

    /// Whether this option (PTRACE_O_…) is on.
    pub(crate) fn wants(&self, option: u32) -> bool {
        self.link.is_some() && self.options & option != 0
    }
}

/// The option that asks for an event, and the event's number.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    number: u32,
    option: u32,
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $number:ident, $option:ident;)*) => {
        impl Event {
            $($(#[$doc])* pub const $name: Event =
                Event { number: raw::$number, option: raw::$option };)*
        }
    };
}

events! {
    /// fork(2), or clone(2) with SIGCHLD.
    FORK = PTRACE_EVENT_FORK, PTRACE_O_TRACEFORK;
    /// vfork(2).
    VFORK = PTRACE_EVENT_VFORK, PTRACE_O_TRACEVFORK;
    /// Any other clone(2).
    CLONE = PTRACE_EVENT_CLONE, PTRACE_O_TRACECLONE;
    /// The child of vfork(2) has let go of the memory.
    VFORK_DONE = PTRACE_EVENT_VFORK_DONE, PTRACE_O_TRACEVFORKDONE;
    /// execve(2) has succeeded.
    EXEC = PTRACE_EVENT_EXEC, PTRACE_O_TRACEEXEC;
    /// A filter leaves a call to the tracer (SECCOMP_RET_TRACE).
    SECCOMP = PTRACE_EVENT_SECCOMP, PTRACE_O_TRACESECCOMP;
    /// The thread is about to end.
    EXIT = PTRACE_EVENT_EXIT, PTRACE_O_TRACEEXIT;
}
