//! seccomp(2): threads that give up system calls, for good.
//!
//! A thread has a mode, and in filter mode a chain of filters, newest first, of which all are asked
//! at every call (`seccomp/enter.rs`). Chains are shared: a fork's child has its parent's, a thread
//! of the same process may be given another's ([`attach`], TSYNC), and what is shared only ever
//! gets another filter in front. Being filtered is a bit of the thread's `syscall_work`, so threads
//! without pay nothing beyond what tracing costs them.
//!
//! Why it is hard: a filter's code goes when its last user does, and that waits for all CPUs, so no
//! reference may end under a spin lock, or with a thread that the scheduler lets go of: threads
//! give theirs back when they end ([`release`]). And chains are long: they end without recursion.
//!
//! Locks: a process's `threads`, then a thread's mode.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, ptrace as raw};
use machine::seccomp::Filter as Code;
use machine::sync::SpinLock;
use machine::task::ThreadCell;
use seccomp::{Data, Insn, Program, action, outranks};

use super::Thread;
use super::ptrace::syscall_work;
use crate::process::current;

pub mod attach;

/// AUDIT_ARCH_X86_64: the ELF machine, 64-bit, little-endian.
pub const ARCH: u32 = 62 | 1 << 31 | 1 << 30;

/// The actions there are, as /proc/sys/kernel/seccomp/actions_avail says it.
pub const ACTIONS: &str = "kill_process kill_thread trap errno user_notif trace log allow";

/// What a thread may still do. Never becomes more.
#[derive(Clone, Default)]
pub enum Mode {
    /// Everything.
    #[default]
    Disabled,
    /// Four calls.
    Strict,
    /// What this filter and those before it allow.
    Filter(Arc<Filter>),
}

/// A thread's part.
pub struct Seccomp {
    mode: SpinLock<Mode>,
    /// The thread's own copy, which its calls read without a lock.
    own: ThreadCell<Mode>,
    /// No program that the thread executes gives it more rights, and so it may filter itself
    /// (prctl(2), PR_SET_NO_NEW_PRIVS). Never cleared.
    no_new_privs: AtomicBool,
}

impl Seccomp {
    /// Whether the thread has given up new privileges.
    pub fn no_new_privs(&self) -> bool {
        self.no_new_privs.load(Ordering::Acquire)
    }

    /// The thread gives up new privileges, for good.
    pub fn set_no_new_privs(&self) {
        self.no_new_privs.store(true, Ordering::Release);
    }
}

impl Default for Seccomp {
    fn default() -> Self {
        Seccomp {
            mode: SpinLock::default(),
            own: ThreadCell::new(Mode::Disabled),
            no_new_privs: AtomicBool::new(false),
        }
    }
}

/// What becomes of a call that a filter leaves to a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is made.
    Continue,
    /// It gives this, an error as its negative number.
    Result(u64),
}

/// Who answers for SECCOMP_RET_USER_NOTIF.
pub trait Supervisor: Send + Sync {
    /// Asks about a call of the running thread, and waits for the answer.
    fn ask(&self, data: &Data) -> Answer;
    /// No thread has the filter any more. Not under a spin lock.
    fn forsake(&self);
}

/// A filter in a chain.
pub struct Filter {
    program: Program,
    /// None if there was no room for it: then the program is interpreted.
    code: Option<Code>,
    /// SECCOMP_FILTER_FLAG_LOG.
    logs: bool,
    /// What the program was made of (PTRACE_SECCOMP_GET_FILTER).
    source: Arc<[Insn]>,
    /// Who answers for SECCOMP_RET_USER_NOTIF.
    supervisor: Option<Arc<dyn Supervisor>>,
    /// Instructions of the chain, with what Linux adds for each filter.
    path_insns: usize,
    /// Filters of the chain.
    depth: usize,
    previous: Option<Arc<Filter>>,
    /// Calls that the whole chain allows whatever their arguments are: a bit for each number.
    allowed: [u64; CALLS / 64],
}

/// Numbers of calls that a chain notes what it always allows of.
const CALLS: usize = 512;

impl Filter {
    /// A chain of this filter alone: its program, the instructions that is made of, what it was
    /// compiled to. `logs`: SECCOMP_FILTER_FLAG_LOG.
    #[must_use]
    pub fn new(program: Program, source: Arc<[Insn]>, code: Option<Code>, logs: bool) -> Filter {
        Filter {
            path_insns: source.len(),
            source,
            program,
            code,
            logs,
            supervisor: None,
            depth: 1,
            previous: None,
            allowed: Default::default(),
        }
    }

    /// Gives the filter who answers for it, before it stands in a chain.
    pub fn set_supervisor(&mut self, supervisor: Arc<dyn Supervisor>) {
        self.supervisor = Some(supervisor);
    }

    /// Whether the chain allows the call with this number, without being asked.
    #[inline]
    pub fn always_allows(&self, number: u32) -> bool {
        let word = self.allowed.get(number as usize / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Notes what the chain always allows, once it is whole.
    fn note_allowed(&mut self) {
        for number in 0..CALLS as u32 {
            let others = self.previous.as_ref().is_none_or(|p| p.always_allows(number));
            if others && self.program.always_allows(number, ARCH) {
                self.allowed[number as usize / 64] |= 1 << (number % 64);
            }
        }
    }

    fn answer(&self, data: &Data) -> u32 {
        match &self.code {
            Some(code) => code.run(data),
            None => self.program.run(data),
        }
    }

    /// This filter and those before it.
    fn chain(&self) -> impl Iterator<Item = &Filter> {
        core::iter::successors(Some(self), |filter| filter.previous.as_deref())
    }

    /// Asks all: the strictest answer, and whether its filter wants it logged.
    pub fn ask(&self, data: &Data) -> (u32, bool) {
        let mut result = (action::ALLOW, false);
        for filter in self.chain() {
            let answer = filter.answer(data);
            if outranks(answer, result.0) {
                result = (answer, filter.logs);
            }
        }
        result
    }

    /// Who answers, if `answer` is the chain's: the supervisor of the filter that gave it.
    pub fn supervisor(&self, data: &Data, answer: u32) -> Option<Arc<dyn Supervisor>> {
        self.chain().find(|filter| filter.answer(data) == answer)?.supervisor.clone()
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.forsake();
        }
        // One after the other: a chain is longer than the stack is deep.
        let mut next = self.previous.take();
        while let Some(filter) = next {
            next = Arc::into_inner(filter).and_then(|mut filter| filter.previous.take());
        }
    }
}

impl Seccomp {
    /// The mode's number (PR_GET_SECCOMP), and how many filters there are.
    #[must_use]
    pub fn summary(&self) -> (u32, usize) {
        match &*self.mode.lock() {
            Mode::Disabled => (raw::SECCOMP_MODE_DISABLED, 0),
            Mode::Strict => (raw::SECCOMP_MODE_STRICT, 0),
            Mode::Filter(filter) => (raw::SECCOMP_MODE_FILTER, filter.depth),
        }
    }

    /// A filter, of which the oldest is number 0: its instructions, and whether it logs. EINVAL
    /// where there are none, ENOENT.
    pub fn filter(&self, number: u64) -> Result<(Arc<[Insn]>, bool)> {
        let Mode::Filter(newest) = self.mode() else { return Err(Errno::EINVAL) };
        let from_newest =
            (newest.depth as u64).checked_sub(number.saturating_add(1)).ok_or(Errno::ENOENT)?;
        let filter = newest.chain().nth(from_newest as usize).ok_or(Errno::ENOENT)?;
        Ok((filter.source.clone(), filter.logs))
    }

    fn mode(&self) -> Mode {
        self.mode.lock().clone()
    }
}

/// The running thread ends. Not under a spin lock.
pub fn release() {
    let thread = current();
    let old = core::mem::take(&mut *thread.seccomp.mode.lock());
    drop(old);
    drop(thread.seccomp.own.replace(thread, Mode::Disabled));
}

/// Calls `f` with the running thread's mode.
pub fn with_own_mode<R>(f: impl FnOnce(&Mode) -> R) -> R {
    let thread = current();
    let word = &thread.syscall_work;
    if word.load(Ordering::Relaxed) & syscall_work::SECCOMP_CHANGED != 0 {
        // First the bit: a change that comes now is seen next time.
        word.fetch_and(!syscall_work::SECCOMP_CHANGED, Ordering::Acquire);
        drop(thread.seccomp.own.replace(thread, thread.seccomp.mode()));
    }
    thread.seccomp.own.with(thread, f)
}

/// A new thread gets its maker's mode and no_new_privs, before it can be seen or run; if it belongs
/// to the same process, under the lock of `threads`, so that no TSYNC passes by.
pub fn inherit(parent: &Thread, child: &Thread) {
    let mode = parent.seccomp.mode();
    if !matches!(mode, Mode::Disabled) {
        set(child, mode);
    }
    if parent.seccomp.no_new_privs() {
        child.seccomp.set_no_new_privs();
    }
}

/// Sets a thread's mode. What it had must still be in use elsewhere, or nothing.
fn set(thread: &Thread, mode: Mode) {
    *thread.seccomp.mode.lock() = mode;
    let bits = syscall_work::SECCOMP | syscall_work::SECCOMP_CHANGED;
    thread.syscall_work.fetch_or(bits, Ordering::Release);
}
