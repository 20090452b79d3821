//! seccomp(2): threads that give up system calls, for good.
//!
//! A thread has a mode, and in filter mode a chain of filters, newest first, of which all are asked
//! at every call ([`enter`]). Chains are shared: a fork's child has its parent's, a thread of the
//! same process may be given another's ([`attach`], TSYNC), and what is shared only ever gets
//! another filter in front. Being filtered is a bit of the thread's `syscall_work`, so threads
//! without pay nothing beyond what tracing costs them.
//!
//! Why it is hard: a filter's code goes when its last user does, and that waits for all CPUs, so no
//! reference may end under a spin lock, or with a thread that the scheduler lets go of: threads
//! give theirs back when they end ([`release`]). And chains are long: they end without recursion.
//!
//! Locks: a process's `threads`, then a thread's mode.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::ptrace as raw;
use machine::seccomp::Filter as Code;
use machine::sync::SpinLock;
use machine::task::ThreadCell;
use seccomp::{Data, Program, action, outranks};

use super::Thread;
use super::ptrace::syscall_work;
use crate::process::current;

pub mod attach;
pub mod enter;
mod notify;

/// AUDIT_ARCH_X86_64: the ELF machine, 64-bit, little-endian.
pub const ARCH: u32 = 62 | 1 << 31 | 1 << 30;

/// The actions there are, as /proc/sys/kernel/seccomp/actions_avail says it.
pub const ACTIONS: &str = "kill_process kill_thread trap errno user_notif trace log allow";

/// What a thread may still do. Never becomes more.
#[derive(Clone, Default)]
enum Mode {
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

/// A filter in a chain.
pub struct Filter {
    program: Program,
    /// None if there was no room for it: then the program is interpreted.
    code: Option<Code>,
    /// SECCOMP_FILTER_FLAG_LOG.
    logs: bool,
    /// Who answers for SECCOMP_RET_USER_NOTIF.
    listener: Option<Arc<notify::Listener>>,
    /// Instructions of the chain, with what Linux adds for each filter.
    path_insns: usize,
    /// Filters of the chain.
    depth: usize,
    previous: Option<Arc<Filter>>,
}

impl Filter {
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
    fn ask(&self, data: &Data) -> (u32, bool) {
        let mut result = (action::ALLOW, false);
        for filter in self.chain() {
            let answer = filter.answer(data);
            if outranks(answer, result.0) {
                result = (answer, filter.logs);
            }
        }
        result
    }

    /// Who answers, if `answer` is the chain's: the listener of the filter that gave it.
    fn listener(&self, data: &Data, answer: u32) -> Option<Arc<notify::Listener>> {
        self.chain().find(|filter| filter.answer(data) == answer)?.listener.clone()
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.forsake();
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
fn with_own_mode<R>(f: impl FnOnce(&Mode) -> R) -> R {
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
