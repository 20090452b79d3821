//! Processes and threads: what they are made of, and how to find them.
//!
//! A [`Process`] is what shares a pid: address space, descriptors, signal handlers, credentials. A
//! [`Thread`] is what the scheduler runs. Parts that clone(2) can share between processes are
//! behind an `Arc` of their own.
//!
//! Reading order: this file, `fork`, `exit`, `relations`, `signal`; then the floors above: `wait`,
//! `signal` (how it reaches the program), `timers`, `exec`.
//!
//! Locks, outermost first: those of `table`, a process's `relations`, its `threads`, its
//! `signals`, a thread's `signals`, the scheduler's. Never two processes' `relations` at once
//! except parent before child.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::sync::{ReadMostly, SpinLock};
use machine::task::part::PartSlot;
use machine::task::{Current, Task};

use crate::base;
use crate::base::accounts::{Counted, ObjectKind};
use crate::base::sched;
use crate::base::sync::{Mutex, WaitQueue};
use crate::base::thread_settings::ThreadSettings;
use crate::base::transfers::Transfers;
use crate::mm::Mm;
use crate::mm::shadow_stack::ShadowStack;
use crate::security::landlock::Confinement;
use crate::security::{Capability, Credentials, Limits, Resource};
use crate::vfs::File;
use crate::vfs::anon::PidObject;

pub mod acting;
mod capability;
pub mod clock;
pub mod exit;
pub mod fork;
pub mod hooks;
pub mod own;
pub mod pidfd;
pub mod program;
pub mod ptrace;
pub mod relations;
pub mod restart;
pub mod rseq;
pub mod seccomp;
pub mod settings;
pub mod signal;
mod state;
mod table;
pub mod timers;
pub mod upper;
pub mod usage;
pub mod user_dispatch;
pub mod yama;

use table::charge_thread;
pub use table::{
    charges, find_process, find_thread, group_members, join_group, last_pid, processes_from,
    release_pid, session_of_group, threads_of_user, unregister_process,
};

pub use own::{Own, file_of, own_file, own_open_file};
pub use program::Program;
use settings::Settings;
pub use state::{ExitState, Relations, WaitEvent};

/// Process, thread, group and session ids.
pub type Pid = u32;

pub use crate::base::sched::THREADS_MAX;
pub use crate::base::thread::work;

/// A thread, as programs know it.
pub struct Thread {
    /// What the scheduler knows of it.
    pub base: Arc<base::thread::Thread>,
    /// The process it belongs to.
    pub process: Arc<Process>,
    /// Signal mask, pending signals, alternate stack.
    pub signals: SpinLock<signal::ThreadSignals>,
    /// Where to write 0 and wake a futex at exit (set_tid_address(2)).
    pub clear_child_tid: AtomicU64,
    /// Head of the robust futex list (set_robust_list(2)).
    pub robust_list: AtomicU64,
    /// Where it is told its CPU (rseq(2)).
    pub rseq: program::RseqArea,
    /// Name (PR_SET_NAME), NUL-padded.
    pub name: SpinLock<[u8; 16]>,
    /// Where the thread writes its id before it first runs (CLONE_CHILD_SETTID), or 0.
    set_child_tid: AtomicU64,
    /// What system calls of the thread do besides themselves (`ptrace::syscall_work`).
    pub syscall_work: AtomicU32,
    /// Which calls it has given up.
    pub seccomp: seccomp::Seccomp,
    /// Which calls it serves itself.
    pub dispatch: user_dispatch::Dispatch,
    /// Its part in tracing.
    pub trace: ptrace::Trace,
    /// How far it has restricted itself.
    pub confinement: Confinement,
    /// Became a user's who had too many threads by then (`fork::check_exceeded`).
    exceeds_processes: AtomicBool,
    /// What it has chosen for itself.
    pub settings: ThreadSettings,
    /// When it was made, nanoseconds since boot.
    pub start_ns: u64,
    /// Its shadow stack, if it has one.
    pub shadow_stack: ShadowStack,
    /// What it has read and written.
    pub transfers: Transfers,
    /// How restart_syscall(2) goes on with an interrupted call.
    pub restart: SpinLock<Option<restart::Restart>>,
    /// Files, directories, credentials.
    own: Own,
    /// What all pidfds of it alone are.
    pub pid_object: PidObject,
    /// Its place in its process's list, whose lock guards it.
    place: AtomicUsize,
}

/// The threads of a process: the first one first while it lives, the others in no order. To leave
/// takes the same steps however many there are.
#[derive(Default)]
pub struct ThreadList {
    list: Vec<Arc<Thread>>,
    /// They may not stand in the order of their ids, in which they come.
    is_mixed: bool,
}

impl core::ops::Deref for ThreadList {
    type Target = [Arc<Thread>];

    fn deref(&self) -> &[Arc<Thread>] {
        &self.list
    }
}

impl ThreadList {
    /// A thread joins.
    fn push(&mut self, thread: Arc<Thread>) {
        thread.place.store(self.list.len(), Ordering::Relaxed);
        // Ids begin anew where they end.
        self.is_mixed |= self.list.last().is_some_and(|last| last.tid() > thread.tid());
        self.list.push(thread);
    }

    /// Whether a thread is in.
    pub fn has(&self, thread: &Arc<Thread>) -> bool {
        let place = thread.place.load(Ordering::Relaxed);
        self.get(place).is_some_and(|found| Arc::ptr_eq(found, thread))
    }

    /// The lowest `max` ids from `from` on. A list that is read by pieces goes through all threads
    /// for a piece only if they are mixed.
    pub fn ids_from(&self, from: u64, max: usize) -> Vec<Pid> {
        let id = |thread: &Arc<Thread>| thread.tid();
        if !self.is_mixed {
            let first = self.partition_point(|thread| u64::from(thread.tid()) < from);
            return self[first..].iter().take(max).map(id).collect();
        }
        let mut ids: Vec<Pid> = self.iter().map(id).filter(|&id| u64::from(id) >= from).collect();
        ids.sort_unstable();
        ids.truncate(max);
        ids
    }

    /// A thread leaves, if it was in. The caller has another reference to it.
    fn remove(&mut self, thread: &Arc<Thread>) {
        let place = thread.place.load(Ordering::Relaxed);
        if self.has(thread) {
            self.list.swap_remove(place);
            if let Some(moved) = self.list.get(place) {
                moved.place.store(place, Ordering::Relaxed);
                self.is_mixed = true;
            }
            self.is_mixed &= self.list.len() > 1;
        }
    }
}

static CURRENT: PartSlot<Thread> = PartSlot::new();

/// The running thread.
#[inline(always)]
pub fn current() -> Current<Thread> {
    CURRENT.get()
}

/// Whether this CPU runs a thread already; false only early in boot.
pub fn has_current() -> bool {
    CURRENT.is_set()
}

/// Enters a file into the running process: the lowest free descriptor. EMFILE.
pub fn give_file(file: Arc<File>, close_on_exec: bool) -> Result<u64> {
    let thread = current();
    let limit = thread.process.fd_limit();
    Own::with_files(thread, |files| files.insert(file, close_on_exec, 0, limit)).map(u64::from)
}

impl Thread {
    /// Whether it runs this code.
    #[must_use]
    pub fn is_current(&self) -> bool {
        core::ptr::eq(self, &raw const *current())
    }

    /// A thread around a machine task. It does not run until it is unparked.
    #[must_use]
    pub fn new(tid: Pid, process: Arc<Process>, task: Task, own: Own) -> Arc<Thread> {
        let is_measured = process.settings.measures_cpu_time.clone();
        let base = base::thread::Thread::new(tid, task, is_measured);
        let part = Thread {
            base: base.clone(),
            process,
            signals: SpinLock::new(signal::ThreadSignals::default()),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            rseq: program::RseqArea::default(),
            name: SpinLock::new([0; 16]),
            set_child_tid: AtomicU64::new(0),
            syscall_work: AtomicU32::new(ptrace::first_work()),
            seccomp: seccomp::Seccomp::default(),
            trace: ptrace::Trace::default(),
            dispatch: user_dispatch::Dispatch::default(),
            confinement: Confinement::default(),
            exceeds_processes: AtomicBool::new(false),
            settings: ThreadSettings::default(),
            start_ns: base::time::now_ns(),
            shadow_stack: ShadowStack::default(),
            transfers: Transfers::default(),
            restart: SpinLock::new(None),
            own,
            pid_object: PidObject::default(),
            place: AtomicUsize::new(0),
        };
        CURRENT.attach(base.task(), part)
    }

    /// Lets it run for the first time.
    pub fn start(&self) {
        base::sched::unpark(&self.base);
    }

    /// Its id; the process id for the first thread (gettid(2)).
    #[inline(always)]
    pub fn tid(&self) -> Pid {
        self.base.tid.load(Ordering::Relaxed)
    }

    /// The machine's part.
    #[inline(always)]
    pub fn task(&self) -> &Task {
        self.base.task()
    }

    /// Whether something should end an interruptible sleep: a signal that is not blocked, or the
    /// end of the process. Cheap: looks at one word.
    #[inline(always)]
    pub fn has_pending_signal(&self) -> bool {
        self.base.has_pending_signal()
    }
}

/// A process.
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// Its address space; exec replaces it. None once it has exited.
    pub mm: ReadMostly<Option<Arc<Mm>>>,
    /// Held while exec puts memory, program and credentials in place, and by whoever is let in by
    /// the credentials to what came with them (`ptrace::access`).
    pub image: Mutex<()>,
    /// Signal dispositions.
    pub handlers: SpinLock<Arc<signal::Handlers>>,
    /// Signals pending for the process as a whole.
    pub signals: SpinLock<signal::ProcessSignals>,
    /// Credentials of its first thread, which outlive that; replaced as a whole.
    credentials: SpinLock<Arc<Credentials>>,
    /// Resource limits.
    pub limits: Limits,
    /// Parent and children.
    pub relations: SpinLock<Relations>,
    /// Its parent's id, which getppid(2) asks for; 0 without one.
    parent_pid: AtomicU32,
    /// Living threads.
    pub threads: SpinLock<ThreadList>,
    /// Threads, of any process, that threads of this one trace.
    pub tracees: ptrace::Tracees,
    /// The thread that made this process.
    pub creator_tid: AtomicU32,
    /// Process group; [`join_group`] changes it.
    group: AtomicU32,
    /// Its place in that group.
    membership: SpinLock<table::Membership>,
    /// The group with its id.
    led: table::Group,
    /// Session.
    pub session: AtomicU32,
    /// The program that runs: path for /proc/PID/exe and command line area (start, end addresses).
    pub program: SpinLock<Arc<Program>>,
    /// wait(2) status once the process is a zombie; see `exit`.
    pub exit_status: AtomicI32,
    /// Whether it has exited and waits to be waited for.
    pub is_zombie: AtomicBool,
    /// Settings of prctl(2) and the like.
    pub settings: Settings,
    /// What its threads left for the core file that is being made of it.
    pub core_notes: Mutex<Vec<Vec<u8>>>,
    /// Woken when it may have become a zombie, for pidfd_open(2).
    pub exit_events: Arc<WaitQueue>,
    /// What all its pidfds are.
    pub pid_object: PidObject,
    /// Woken when a signal has become pending, for signalfd(2) and sigtimedwait(2).
    pub signal_events: Arc<WaitQueue>,
    /// Woken when a stopped process goes on.
    pub continue_events: WaitQueue,
    /// Woken when it no longer uses the address space of its vfork parent, and when threads end.
    pub release_events: WaitQueue,
    /// Woken when a child changes state.
    pub child_events: Arc<WaitQueue>,
    /// Signal sent to the parent at exit (clone(2)'s low byte), usually SIGCHLD.
    pub exit_signal: AtomicU32,
    /// Interval timers and POSIX timers.
    pub timers: SpinLock<timers::Timers>,
    /// Sets of semaphores on which its end takes operations back (semop(2)).
    pub undo: SpinLock<Option<upper::Owned>>,
    /// When it started, nanoseconds since boot.
    pub start_ns: u64,
    /// CPU time of threads that ended, and of children waited for: user, kernel (nanoseconds).
    pub past_times_ns: [AtomicU64; 4],
    /// What threads that ended, and children waited for, have read and written.
    pub past_transfers: Transfers,
    /// Faults and switches of threads that ended.
    pub past_counts: SpinLock<usage::Counts>,
    /// How its first thread was scheduled, once that has ended.
    pub past_scheduling: SpinLock<sched::Left>,
    /// What its first thread was called, once that has ended.
    pub past_name: SpinLock<[u8; 16]>,
    /// Faults and switches of children waited for.
    pub children_counts: SpinLock<usage::Counts>,
    /// For the accounts.
    pub counted: Counted<{ ObjectKind::Process as usize }>,
}

/// Largest id, as Linux on 64-bit machines.
pub const PID_MAX: Pid = 4_194_304;

/// Reserves a fresh id for a thread, or the `chosen` one, which is charged to a user until the id
/// is given back; EAGAIN when there are too many, EEXIST if somebody has the chosen one.
pub fn allocate_pid(uid: u32, chosen: Option<Pid>) -> Result<Pid> {
    crate::base::reserve::check_reserve()?;
    let threads = table::admit().ok_or(Errno::EAGAIN)?;
    let pid = match chosen {
        None => table::keep_next(uid),
        Some(pid) if table::keep(pid, uid) => pid,
        Some(_) => {
            table::dismiss();
            return Err(Errno::EEXIST);
        }
    };
    if let Err(error) = crate::base::sched::reserve(threads) {
        release_pid(pid);
        return Err(error);
    }
    Ok(pid)
}

/// Enters a thread into the table, and with its first one its process.
pub(super) fn enter_thread(thread: &Arc<Thread>) {
    let (tid, process, weak) = (thread.tid(), &thread.process, Arc::downgrade(thread));
    if tid == process.pid {
        table::add(process, weak, &current().process);
    } else {
        table::set_thread(tid, weak);
    }
}

/// Gives a thread that is in the table another id.
pub(super) fn renumber_thread(thread: &Arc<Thread>, tid: Pid) {
    table::renumber(thread.tid(), tid, Arc::downgrade(thread));
    thread.base.tid.store(tid, Ordering::Relaxed);
}

/// The process with this id, or that of the living thread with it: kill(2), prlimit(2) and others
/// take either.
#[must_use]
pub fn find_by_tid(id: Pid) -> Option<Arc<Process>> {
    find_process(id).or_else(|| find_thread(id).map(|thread| thread.process.clone()))
}

/// All processes, by id.
#[must_use]
pub fn all_processes() -> Vec<Arc<Process>> {
    processes_from(0, usize::MAX)
}

/// The first process of the machine: adopts orphans.
#[must_use]
pub fn init_process() -> Option<Arc<Process>> {
    find_process(1)
}

impl Process {
    /// The id of its process group.
    pub fn group(&self) -> Pid {
        self.group.load(Ordering::Relaxed)
    }

    /// The address space; ESRCH once the process has exited.
    pub fn mm(&self) -> Result<Arc<Mm>> {
        self.mm.read(Clone::clone).ok_or(Errno::ESRCH)
    }

    /// A soft limit.
    #[inline]
    pub fn limit(&self, resource: Resource) -> u64 {
        self.limits.soft(resource)
    }

    /// Most bytes of memory that may be locked (mlock(2)), whole pages; `u64::MAX`: no limit.
    pub fn lock_limit(&self) -> u64 {
        if self.subject().capable(Capability::IpcLock) {
            return u64::MAX;
        }
        self.limit(Resource::LockedMemory) & !(crate::mm::PAGE - 1)
    }

    /// RLIMIT_NOFILE: descriptors are below it.
    pub fn fd_limit(&self) -> usize {
        self.limit(Resource::OpenFiles) as usize
    }

    /// Whether the program that runs is its own image of the process (a thread's view).
    pub fn is_current(&self) -> bool {
        core::ptr::eq(self, Arc::as_ptr(&current().process))
    }

    /// exit_group(2) or a fatal signal has started.
    pub fn is_exiting(&self) -> bool {
        self.signals.lock().group_exit.is_some()
    }
}

/// The process that kernel threads belong to: id 0, no program, never in the table.
fn kernel_process() -> Arc<Process> {
    static KERNEL: machine::sync::Once<Arc<Process>> = machine::sync::Once::new();
    KERNEL.call_once(|| Arc::new(Process::blank(0, None, Arc::new(Credentials::root())))).clone()
}

/// A thread of the kernel around `task`. Kernel threads have ids above those of programs.
pub fn kernel_thread(name: &str, task: Task) -> Arc<Thread> {
    static NEXT: AtomicU32 = AtomicU32::new(PID_MAX + 1);
    let tid = NEXT.fetch_add(1, Ordering::Relaxed);
    let thread = Thread::new(tid, kernel_process(), task, Own::of_kernel());
    let len = name.len().min(15);
    thread.name.lock()[..len].copy_from_slice(&name.as_bytes()[..len]);
    note_name(&thread);
    thread
}

/// The thread has its name, or another one: for a trace.
pub fn note_name(thread: &Thread) {
    if !crate::base::tally::wants_names() {
        return;
    }
    let name = *thread.name.lock();
    let tid = thread.base.tid.load(Ordering::Relaxed);
    crate::base::tally::named(tid, thread.process.pid, &name);
}

/// Starts a thread of the kernel. When `main` returns, the thread ends.
pub fn spawn_kernel(name: &str, main: impl FnOnce() + Send + 'static) -> Result<Arc<Thread>> {
    let body = move || {
        main();
        crate::base::sched::exit_current();
    };
    let task = Task::new_kernel(body).map_err(|_| Errno::ENOMEM)?;
    let thread = kernel_thread(name, task);
    thread.start();
    Ok(thread)
}
