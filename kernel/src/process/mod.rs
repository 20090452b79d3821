//! Processes and threads: what they are made of, and how to find them.
//!
//! A [`Process`] is what shares a pid: address space, descriptors, signal handlers, credentials. A
//! [`Thread`] is what the scheduler runs. Parts that clone(2) can share between processes are behind
//! an `Arc` of their own.
//!
//! Reading order: this file, `fork`, `exec`, `exit`, `signal`, `futex`.
//!
//! Locks, outermost first: `TABLE`, a process's `family`, its `threads`, its `signals`, a thread's
//! `signals`, the scheduler's. Never two processes' `family` at once except parent before child.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;
use machine::task::{Schedulable, Task};

use crate::fs::{FdTable, path::Location};
use crate::mm::Mm;
use crate::sched::{SchedEntity, current};
use crate::sync::WaitQueue;

pub mod elf;
pub mod exec;
pub mod exit;
pub mod signal;

pub use signal::{bad_return, user_exception};

/// Process, thread, group and session ids.
pub type Pid = u32;

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
}

/// A thread.
pub struct Thread {
    /// Its id; the process id for the first thread.
    pub tid: Pid,
    /// The process it belongs to.
    pub process: Arc<Process>,
    /// The scheduler's part.
    pub sched: SpinLock<SchedEntity>,
    /// Copy of the affinity mask for CPUs that look for work without the lock.
    pub affinity_hint: AtomicU32,
    /// Signal mask, pending signals, alternate stack.
    pub signals: SpinLock<signal::ThreadSignals>,
    /// Where to write 0 and wake a futex at exit (set_tid_address(2)).
    pub clear_child_tid: AtomicU64,
    /// Head of the robust futex list (set_robust_list(2)).
    pub robust_list: AtomicU64,
    /// Name (PR_SET_NAME), NUL-padded.
    pub name: SpinLock<[u8; 16]>,
    /// CPU time in nanoseconds: in user mode, in the kernel.
    pub cpu_time_ns: (AtomicU64, AtomicU64),
    task: Task,
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
    pub fn new(tid: Pid, process: Arc<Process>, task: Task) -> Arc<Thread> {
        Arc::new(Thread {
            tid,
            process,
            sched: SpinLock::new(SchedEntity::new()),
            affinity_hint: AtomicU32::new(u32::MAX),
            signals: SpinLock::new(signal::ThreadSignals::default()),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            name: SpinLock::new([0; 16]),
            cpu_time_ns: (AtomicU64::new(0), AtomicU64::new(0)),
            task,
        })
    }

    /// The machine's part.
    #[inline(always)]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Whether something should end an interruptible sleep: a signal that is not blocked, or the end
    /// of the process. Cheap: looks at one word.
    #[inline(always)]
    pub fn has_pending_signal(&self) -> bool {
        self.task.work() & (work::SIGNAL | work::EXIT) != 0
    }

    /// Charges CPU time, from the tick.
    pub fn charge(&self, ns: u64, user: bool) {
        let (user_ns, kernel_ns) = &self.cpu_time_ns;
        (if user { user_ns } else { kernel_ns }).fetch_add(ns, Ordering::Relaxed);
    }
}

/// User and group ids, and capabilities (credentials(7), capabilities(7)).
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "credentials(7) describes each")]
pub struct Credentials {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    pub groups: Vec<u32>,
    /// Capability sets, one bit each.
    pub permitted: u64,
    pub effective: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
    /// PR_SET_SECUREBITS.
    pub securebits: u32,
    /// PR_SET_NO_NEW_PRIVS.
    pub no_new_privs: bool,
}

/// All capabilities that Linux 6.12 knows: 0 to CAP_CHECKPOINT_RESTORE (40).
pub const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

impl Credentials {
    /// The superuser.
    #[must_use]
    pub fn root() -> Self {
        Self::for_user(0, 0, Vec::new())
    }

    /// A user; all capabilities if it is the superuser.
    #[must_use]
    pub fn for_user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        let capabilities = if uid == 0 { ALL_CAPABILITIES } else { 0 };
        Credentials {
            uid,
            euid: uid,
            suid: uid,
            fsuid: uid,
            gid,
            egid: gid,
            sgid: gid,
            fsgid: gid,
            groups,
            permitted: capabilities,
            effective: capabilities,
            inheritable: 0,
            bounding: ALL_CAPABILITIES,
            ambient: 0,
            securebits: 0,
            no_new_privs: false,
        }
    }

    /// Whether the effective set has the capability with this number.
    #[must_use]
    pub fn has(&self, capability: u32) -> bool {
        self.effective & 1 << capability != 0
    }

    /// Whether `gid` is the file system group or a supplementary one.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups.contains(&gid)
    }
}

/// Working directory, root directory, umask (CLONE_FS shares them).
pub struct FsContext {
    /// Current directory.
    pub cwd: SpinLock<Location>,
    /// Root directory.
    pub root: SpinLock<Location>,
    /// File mode creation mask.
    pub umask: AtomicU32,
}

/// Relations between processes: under one lock per process.
#[derive(Default)]
pub struct Family {
    /// Who is told when this process ends.
    pub parent: Weak<Process>,
    /// Its children, dead ones included until they are waited for.
    pub children: Vec<Arc<Process>>,
}

/// One soft and one hard limit (getrlimit(2)).
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "getrlimit(2)")]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;
/// RLIMIT_NOFILE's index.
pub const LIMIT_NOFILE: usize = 7;
/// RLIMIT_STACK's index.
pub const LIMIT_STACK: usize = 3;

/// A new system's limits, as Linux has them.
#[must_use]
pub fn default_limits() -> [Limit; 16] {
    let unlimited = Limit { soft: UNLIMITED, hard: UNLIMITED };
    let mut limits = [unlimited; 16];
    limits[LIMIT_STACK] = Limit { soft: 8 << 20, hard: UNLIMITED };
    limits[4].soft = 0; // core
    limits[6] = Limit { soft: 32768, hard: 32768 }; // processes
    limits[LIMIT_NOFILE] = Limit { soft: 1024, hard: 1 << 20 };
    limits[8] = Limit { soft: 8 << 20, hard: 8 << 20 }; // locked memory
    limits[11] = Limit { soft: 32768, hard: 32768 }; // pending signals
    limits[12] = Limit { soft: 819_200, hard: 819_200 }; // message queues
    limits[13] = Limit { soft: 0, hard: 0 }; // nice
    limits[14] = Limit { soft: 0, hard: 0 }; // real-time priority
    limits
}

/// A process.
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// Its address space; exec replaces it. None once it has exited.
    pub mm: SpinLock<Option<Arc<Mm>>>,
    /// Its descriptors; exec may unshare them.
    pub files: SpinLock<Arc<FdTable>>,
    /// Directories and umask.
    pub fs: SpinLock<Option<Arc<FsContext>>>,
    /// Signal dispositions.
    pub handlers: SpinLock<Arc<signal::Handlers>>,
    /// Signals pending for the process as a whole.
    pub signals: SpinLock<signal::ProcessSignals>,
    /// Credentials; replaced as a whole.
    pub credentials: SpinLock<Arc<Credentials>>,
    /// Resource limits, by RLIMIT number.
    pub limits: SpinLock<[Limit; 16]>,
    /// Parent and children.
    pub family: SpinLock<Family>,
    /// Living threads.
    pub threads: SpinLock<Vec<Arc<Thread>>>,
    /// Process group and session.
    pub group: AtomicU32,
    /// See `group`.
    pub session: AtomicU32,
    /// The program that runs: path for /proc/PID/exe and command line area (start, end addresses).
    pub program: SpinLock<exec::Program>,
    /// wait(2) status once the process is a zombie; see `exit`.
    pub exit_status: AtomicI32,
    /// Whether it has exited and waits to be waited for.
    pub is_zombie: AtomicBool,
    /// exit_group(2) or a fatal signal has started.
    pub is_exiting: AtomicBool,
    /// Woken when a child changes state.
    pub child_events: Arc<WaitQueue>,
    /// Signal sent to the parent at exit (clone(2)'s low byte), usually SIGCHLD.
    pub exit_signal: AtomicU32,
    /// When it started, nanoseconds since boot.
    pub start_ns: u64,
    /// CPU time of threads that ended, and of children waited for: user, kernel (nanoseconds).
    pub past_times_ns: [AtomicU64; 4],
}

/// All processes and threads by id. A thread group leader's thread has the process's id.
struct Table {
    processes: BTreeMap<Pid, Arc<Process>>,
    threads: BTreeMap<Pid, Weak<Thread>>,
    next: Pid,
}

/// Largest id, as Linux on 64-bit machines.
pub const PID_MAX: Pid = 4_194_304;
/// Most threads in the system.
pub const THREADS_MAX: usize = 16_384;

static TABLE: SpinLock<Table> =
    SpinLock::new(Table { processes: BTreeMap::new(), threads: BTreeMap::new(), next: 1 });

/// Reserves a fresh id for a thread; EAGAIN when there are too many.
pub fn allocate_pid() -> Result<Pid> {
    let mut table = TABLE.lock();
    if table.threads.len() >= THREADS_MAX {
        return Err(Errno::EAGAIN);
    }
    loop {
        let pid = table.next;
        table.next = if pid >= PID_MAX { 300 } else { pid + 1 };
        if !table.threads.contains_key(&pid) && !table.processes.contains_key(&pid) {
            table.threads.insert(pid, Weak::new());
            return Ok(pid);
        }
    }
}

/// Gives an id back.
pub fn release_pid(pid: Pid) {
    TABLE.lock().threads.remove(&pid);
}

/// Enters a process into the table.
pub fn register_process(process: &Arc<Process>) {
    TABLE.lock().processes.insert(process.pid, process.clone());
}

/// Takes a process out of the table, once it has been waited for.
pub fn unregister_process(pid: Pid) {
    let removed = TABLE.lock().processes.remove(&pid);
    drop(removed);
}

/// Enters a thread into the table and into its process.
pub fn register_thread(thread: &Arc<Thread>) {
    TABLE.lock().threads.insert(thread.tid, Arc::downgrade(thread));
    thread.process.threads.lock().push(thread.clone());
}

/// The process with this id, zombies included.
#[must_use]
pub fn find_process(pid: Pid) -> Option<Arc<Process>> {
    TABLE.lock().processes.get(&pid).cloned()
}

/// The living thread with this id.
#[must_use]
pub fn find_thread(tid: Pid) -> Option<Arc<Thread>> {
    TABLE.lock().threads.get(&tid).and_then(Weak::upgrade)
}

/// All processes, by id.
#[must_use]
pub fn all_processes() -> Vec<Arc<Process>> {
    TABLE.lock().processes.values().cloned().collect()
}

/// The first process of the machine: adopts orphans.
#[must_use]
pub fn init_process() -> Option<Arc<Process>> {
    find_process(1)
}

impl Process {
    /// The address space; ESRCH once the process has exited.
    pub fn mm(&self) -> Result<Arc<Mm>> {
        self.mm.lock().clone().ok_or(Errno::ESRCH)
    }

    /// The descriptors.
    #[inline]
    pub fn files(&self) -> Arc<FdTable> {
        self.files.lock().clone()
    }

    /// The credentials.
    #[inline]
    pub fn credentials(&self) -> Arc<Credentials> {
        self.credentials.lock().clone()
    }

    /// Directories and umask. Every process that runs a program has them.
    pub fn fs(&self) -> Arc<FsContext> {
        self.fs.lock().clone().expect("only kernel threads have no directories")
    }

    /// The soft limit with this RLIMIT number.
    pub fn limit(&self, number: usize) -> u64 {
        self.limits.lock()[number].soft
    }

    /// Whether the program that runs is its own image of the process (a thread's view).
    pub fn is_current(&self) -> bool {
        core::ptr::eq(self, Arc::as_ptr(&current().process))
    }
}

/// Exit work of the current thread: everything that must happen before it runs its program again.
pub fn exit_work(regs: &mut entry::PtRegs, pending: u32) {
    let thread = current();
    if pending & work::EXIT != 0 {
        exit::exit_thread(0);
    }
    if pending & work::RESCHEDULE != 0 {
        crate::sched::schedule();
    }
    if pending & (work::SIGNAL | work::RESTORE_MASK) != 0 {
        thread.task().take_work(work::SIGNAL);
        signal::deliver(regs);
    }
}

/// The process that kernel threads belong to: id 0, no program, never in the table.
fn kernel_process() -> Arc<Process> {
    static KERNEL: machine::sync::Once<Arc<Process>> = machine::sync::Once::new();
    KERNEL
        .call_once(|| {
            Arc::new(Process {
                pid: 0,
                mm: SpinLock::new(None),
                files: SpinLock::new(Arc::new(FdTable::new())),
                fs: SpinLock::new(None),
                handlers: SpinLock::new(Arc::default()),
                signals: SpinLock::default(),
                credentials: SpinLock::new(Arc::new(Credentials::root())),
                limits: SpinLock::new(default_limits()),
                family: SpinLock::default(),
                threads: SpinLock::default(),
                group: AtomicU32::new(0),
                session: AtomicU32::new(0),
                program: SpinLock::default(),
                exit_status: AtomicI32::new(0),
                is_zombie: AtomicBool::new(false),
                is_exiting: AtomicBool::new(false),
                child_events: Arc::new(WaitQueue::new()),
                exit_signal: AtomicU32::new(0),
                start_ns: 0,
                past_times_ns: [const { AtomicU64::new(0) }; 4],
            })
        })
        .clone()
}

/// A thread of the kernel around `task`. Kernel threads have ids above those of programs.
pub fn kernel_thread(name: &str, task: Task) -> Arc<Thread> {
    static NEXT: AtomicU32 = AtomicU32::new(PID_MAX + 1);
    let tid = NEXT.fetch_add(1, Ordering::Relaxed);
    let thread = Thread::new(tid, kernel_process(), task);
    let len = name.len().min(15);
    thread.name.lock()[..len].copy_from_slice(&name.as_bytes()[..len]);
    thread
}

/// Starts a thread of the kernel. When `main` returns, the thread ends.
pub fn spawn_kernel(name: &str, main: impl FnOnce() + Send + 'static) -> Result<Arc<Thread>> {
    let body = move || {
        main();
        crate::sched::exit_current();
    };
    let task = Task::new_kernel(body).map_err(|_| Errno::ENOMEM)?;
    let thread = kernel_thread(name, task);
    crate::sched::unpark(&thread);
    Ok(thread)
}
