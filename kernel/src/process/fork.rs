//! fork(2), vfork(2), clone(2), clone3(2): one function, by flags.
//!
//! The child starts with a copy of its parent's registers, RAX = 0. RCX and R11 hold what SYSCALL
//! left there, so that the child's first return too can leave by SYSRET.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};
use entry::PtRegs;
use entry::shadow_stack::Child;
use machine::fpu::FpuState;
use machine::memory::USER_END;
use machine::sync::{ReadMostly, SpinLock};
use machine::task::{self, Task};

use super::ptrace::{self, Event};
use super::rseq;
use super::signal::{LAST, ProcessSignals};
use super::upper::upper;
use super::{
    Own, Pid, Process, Program, Relations, Thread, allocate_pid, hooks, note_name, own, pidfd,
    relations, seccomp, threads_of_user, work,
};
use crate::base::accounts::Counted;
use crate::base::args::Args;
use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitError, WaitQueue};
use crate::base::transfers::Transfers;
use crate::base::user::UserPtr;
use crate::mm::{Mm, shadow_stack};
use crate::process::current;
use crate::security::{Capability, Credentials, Limits, Resource, UNLIMITED, subject_hooks};

/// What clone(2) and clone3(2) have in common.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "each field is the argument of that name")]
pub struct Request {
    pub flags: u64,
    pub exit_signal: u32,
    /// The child's stack pointer; 0: the parent's.
    pub stack: u64,
    pub tls: u64,
    pub parent_tid: u64,
    pub child_tid: u64,
    pub pidfd: u64,
    /// Bytes of the child's stack, where they are known: what its shadow stack gets.
    pub stack_size: u64,
    /// The child's id, if the caller chooses it.
    pub set_tid: Option<Pid>,
}

/// Flags of clone(2).
pub mod flag {
    #![expect(missing_docs, reason = "each is the flag of that name")]

    use abi::general as raw;

    pub const VM: u64 = raw::CLONE_VM as u64;
    pub const FS: u64 = raw::CLONE_FS as u64;
    pub const FILES: u64 = raw::CLONE_FILES as u64;
    pub const SIGHAND: u64 = raw::CLONE_SIGHAND as u64;
    pub const PIDFD: u64 = raw::CLONE_PIDFD as u64;
    pub const VFORK: u64 = raw::CLONE_VFORK as u64;
    pub const PARENT: u64 = raw::CLONE_PARENT as u64;
    pub const THREAD: u64 = raw::CLONE_THREAD as u64;
    pub const SETTLS: u64 = raw::CLONE_SETTLS as u64;
    pub const PARENT_SETTID: u64 = raw::CLONE_PARENT_SETTID as u64;
    pub const CHILD_CLEARTID: u64 = raw::CLONE_CHILD_CLEARTID as u64;
    pub const DETACHED: u64 = raw::CLONE_DETACHED as u64;
    pub const CHILD_SETTID: u64 = raw::CLONE_CHILD_SETTID as u64;
    pub const CLEAR_SIGHAND: u64 = raw::CLONE_CLEAR_SIGHAND;
    /// New namespaces: Limen has one of each kind.
    pub const NEW_NAMESPACES: u64 = (raw::CLONE_NEWNS
        | raw::CLONE_NEWCGROUP
        | raw::CLONE_NEWUTS
        | raw::CLONE_NEWIPC
        | raw::CLONE_NEWUSER
        | raw::CLONE_NEWPID
        | raw::CLONE_NEWNET
        | raw::CLONE_NEWTIME) as u64;
    /// Those that cannot go with shared directories.
    pub const NEW_TREES: u64 = (raw::CLONE_NEWNS | raw::CLONE_NEWUSER) as u64;
    /// Shares what SEM_UNDO takes back. The threads of a process always do.
    pub const UNDO: u64 = raw::CLONE_SYSVSEM as u64;
    pub const PTRACE: u64 = raw::CLONE_PTRACE as u64;
    pub const UNTRACED: u64 = raw::CLONE_UNTRACED as u64;
    /// Without meaning here: there are no I/O contexts.
    pub const WITHOUT_EFFECT: u64 = raw::CLONE_IO as u64;
}

use flag::*;

const KNOWN: u64 = VM
    | FS
    | FILES
    | SIGHAND
    | PIDFD
    | VFORK
    | PARENT
    | THREAD
    | SETTLS
    | PARENT_SETTID
    | CHILD_CLEARTID
    | DETACHED
    | CHILD_SETTID
    | CLEAR_SIGHAND
    | UNDO
    | PTRACE
    | UNTRACED
    | WITHOUT_EFFECT;

/// Combinations that clone(2) rejects.
fn check(request: &Request) -> Result<()> {
    let flags = request.flags;
    let has = |flag: u64| flags & flag != 0;
    if has(NEW_NAMESPACES) {
        let contradicts = has(THREAD | SIGHAND) || has(NEW_TREES) && has(FS);
        return Err(if contradicts { Errno::EINVAL } else { Errno::EPERM });
    }
    let invalid = flags & !KNOWN != 0
        || has(THREAD) && !has(SIGHAND)
        || has(SIGHAND) && !has(VM)
        || has(SIGHAND) && has(CLEAR_SIGHAND)
        || request.exit_signal > LAST;
    if invalid {
        return Err(Errno::EINVAL);
    }
    if has(SETTLS) && request.tls >= USER_END { Err(Errno::EPERM) } else { Ok(()) }
}

/// Makes the child that a call of clone(2) or its like asks for, and says its id.
pub fn clone_with(regs: &mut Args, request: &Request) -> Result<u64> {
    check(request)?;
    // A signal for the group that is on its way must reach parent and child alike: first deliver
    // it.
    if current().has_pending_signal() {
        return Err(Errno::ERESTARTNOINTR);
    }
    hooks::task_alloc((&current(), request.flags))?;
    let event = event_of(request);
    check_processes()?;
    let tid = allocate_pid(current().credentials().uid, chosen(request)?)?;
    let result = create(regs, request, tid);
    if result.is_err() {
        super::release_pid(tid);
    }
    let child = result?;
    let vforks = request.flags & VFORK != 0;
    let process = child.process.clone();
    if event.is_some() || request.flags & PTRACE != 0 {
        ptrace::links::inherit(&child);
    }
    child.start();
    drop(child);
    if let Some(event) = event {
        ptrace::stop::event(regs.all(), event, u64::from(tid));
    }
    if vforks {
        wait_for_release(&process);
        ptrace::stop::event(regs.all(), Event::VFORK_DONE, u64::from(tid));
    }
    Ok(u64::from(tid))
}

/// The chosen id, if the caller may choose: EPERM.
fn chosen(request: &Request) -> Result<Option<Pid>> {
    let may = [Capability::CheckpointRestore, Capability::SysAdmin];
    let thread = current();
    if request.set_tid.is_some() && !may.into_iter().any(|one| thread.subject().capable(one)) {
        return Err(Errno::EPERM);
    }
    Ok(request.set_tid)
}

/// The event that the caller's tracer wants to be told of, if it does.
fn event_of(request: &Request) -> Option<Event> {
    let event = if request.flags & VFORK != 0 {
        Event::VFORK
    } else if request.exit_signal == raw::SIGCHLD {
        Event::FORK
    } else {
        Event::CLONE
    };
    (request.flags & UNTRACED == 0 && ptrace::stop::wants(event)).then_some(event)
}

/// Makes the child, ready to run.
fn create(regs: &PtRegs, request: &Request, tid: Pid) -> Result<Arc<Thread>> {
    let parent = current();
    let flags = request.flags;
    let own = own_of_child(&parent, flags)?;
    let process =
        if flags & THREAD != 0 { parent.process.clone() } else { new_process(request, tid)? };
    let mut task = new_task(regs, request, &process)?;
    let kind = Child::of(parent.shadow_stack.features(), flags & VM != 0, flags & VFORK != 0);
    let shadow = &parent.shadow_stack;
    let area = shadow.for_child(&*process, kind, request.stack_size, &mut task)?;
    let child = Thread::new(tid, process.clone(), task, own);
    child.shadow_stack.inherit(&parent.shadow_stack, area);
    inherit(&parent, &child, request);
    if let Err(error) = introduce(&parent, &child, request) {
        shadow_stack::drop_area(&*process, child.shadow_stack.take_area());
        child.base.task().abandon();
        return Err(error);
    }
    Ok(child)
}

/// Makes the child known: to the caller, which may want a pidfd, and to everybody.
fn introduce(parent: &Thread, child: &Arc<Thread>, request: &Request) -> Result<()> {
    let (flags, process) = (request.flags, &child.process);
    let pidfd = match flags & (PIDFD | THREAD) {
        PIDFD => Some(pidfd::open_fd(process, 0)?),
        0 | THREAD => None,
        _ => Some(pidfd::open_thread_fd(child, 0)?),
    };
    let result = pidfd.map_or(Ok(()), |fd| UserPtr::<u32>::new(request.pidfd).write(&fd));
    if flags & PARENT_SETTID != 0 {
        // clone(2) goes on if this fails.
        let _ = UserPtr::<u32>::new(request.parent_tid).write(&child.tid());
    }
    if let Err(error) = result.and_then(|()| register_thread(child)) {
        if let Some(fd) = pidfd {
            let _ = parent.process.files().remove(fd);
        }
        return Err(if error == Errno::EINTR { Errno::ERESTARTNOINTR } else { error });
    }
    if flags & THREAD == 0 {
        let grandparent = (flags & PARENT != 0).then(|| parent.process.parent()).flatten();
        relations::adopt_or_orphan(grandparent.as_ref().unwrap_or(&parent.process), process);
    }
    Ok(())
}

/// EAGAIN if the user may have no more threads (RLIMIT_NPROC). The superuser may always.
fn check_processes() -> Result<()> {
    let thread = current();
    let who = thread.subject();
    let may_exceed = || {
        let either = [Capability::SysResource, Capability::SysAdmin];
        who.uid == 0 || either.into_iter().any(|capability| who.capable(capability))
    };
    let limit = thread.process.limit(Resource::Processes);
    if threads_of_user(who.uid) as u64 >= limit && !may_exceed() {
        return Err(Errno::EAGAIN);
    }
    Ok(())
}

/// A thread has more than its user may have threads since it became that user's (setuid(2)), where
/// it cannot be refused: programs do not look at the answer. EAGAIN if it still has and is about to
/// execute a program (execve(2)); else that is forgotten.
pub fn check_exceeded(thread: &Thread) -> Result<()> {
    if !thread.exceeds_processes.load(Ordering::Relaxed) {
        return Ok(());
    }
    let count = threads_of_user(thread.credentials().uid) as u64;
    if count > thread.process.limit(Resource::Processes) {
        return Err(Errno::EAGAIN);
    }
    thread.exceeds_processes.store(false, Ordering::Relaxed);
    Ok(())
}

/// A thread is about to become a user's: notes whether that is one too many.
pub fn note_exceeded(thread: &Thread, uid: u32) {
    let limit = thread.process.limit(Resource::Processes);
    let exceeds = uid != 0 && threads_of_user(uid) as u64 > limit;
    thread.exceeds_processes.store(exceeds, Ordering::Relaxed);
}

fn new_task(regs: &PtRegs, request: &Request, process: &Process) -> Result<Task> {
    let mut child_regs = *regs;
    ptrace::step::clear_in_child(&mut child_regs);
    child_regs.rax = 0;
    child_regs.rcx = child_regs.rip;
    child_regs.r11 = child_regs.rflags;
    if request.stack != 0 {
        child_regs.rsp = request.stack;
    }
    let fpu = FpuState::of_running().map_err(|_| Errno::ENOMEM)?;
    let space = process.mm()?.space();
    let mut task = Task::new_user(&child_regs, fpu, space).map_err(|_| Errno::ENOMEM)?;
    let (fs, gs) = task::user_bases();
    let fs = if request.flags & SETTLS != 0 { request.tls } else { fs };
    task::init_user_bases(&mut task, fs, gs);
    Ok(task)
}

/// What the new thread takes over from the one that makes it.
fn inherit(parent: &Thread, child: &Thread, request: &Request) {
    let flags = request.flags;
    *child.name.lock() = *parent.name.lock();
    child.confinement.inherit(&parent.confinement);
    child.settings.inherit(&parent.settings);
    {
        let from = parent.signals.lock();
        let mut to = child.signals.lock();
        to.blocked = from.blocked;
        // A thread has its own stack, so it needs its own alternate stack.
        if flags & (VM | VFORK) != VM {
            to.alt_stack = from.alt_stack;
        }
    }
    {
        let from = parent.base.sched.lock();
        let mut to = child.base.sched.lock();
        to.inherit(&from);
        child.base.affinity_hint.store(from.affinity, Ordering::Relaxed);
    }
    let exceeds = parent.exceeds_processes.swap(false, Ordering::Relaxed);
    child.exceeds_processes.store(exceeds, Ordering::Relaxed);
    if flags & THREAD == 0 {
        super::seccomp::inherit(parent, child);
    }
    if flags & VM == 0 {
        rseq::inherit(parent, child);
    }
    if flags & CHILD_SETTID != 0 {
        child.set_child_tid.store(request.child_tid, Ordering::Relaxed);
        child.task().set_work(work::CHILD_TID);
    }
    if flags & CHILD_CLEARTID != 0 {
        child.clear_child_tid.store(request.child_tid, Ordering::Relaxed);
    }
}

/// Files and directories: the parent's, or copies. Credentials are the parent's until one of the
/// two changes its own.
fn own_of_child(parent: &Thread, flags: u64) -> Result<Own> {
    let files = parent.files();
    let files = if flags & FILES != 0 { files } else { Arc::new(files.duplicate()?) };
    let fs = parent.try_fs().ok_or(Errno::ESRCH)?;
    let fs = if flags & FS != 0 { fs } else { Arc::new(fs.duplicate()) };
    Ok(Own::new(files, Some(fs), parent.credentials()))
}

/// In a frame of its own: the process takes 2 KiB of the stack before it has a place.
#[inline(never)]
fn new_process(request: &Request, pid: Pid) -> Result<Arc<Process>> {
    let parent = &current().process;
    let flags = request.flags;
    let mm = parent.mm()?;
    let mm = if flags & VM != 0 { mm } else { mm.duplicate()? };
    let handlers = parent.handlers.lock().clone();
    let handlers = if flags & SIGHAND != 0 {
        handlers
    } else if flags & CLEAR_SIGHAND != 0 {
        Arc::new(handlers.without_handlers())
    } else {
        Arc::new(handlers.duplicate())
    };
    let exit_signal = if flags & PARENT != 0 {
        parent.exit_signal.load(Ordering::Relaxed)
    } else {
        request.exit_signal
    };
    let settings = parent.settings.inherit();
    settings.holds_vfork_parent.store(flags & VFORK != 0, Ordering::Relaxed);
    let has_cpu_limit = parent.limit(Resource::Cpu) != UNLIMITED;
    settings.measures_cpu_time.store(has_cpu_limit, Ordering::Relaxed);
    let program = parent.program.lock().clone();
    let undo = (flags & UNDO != 0).then(|| (upper().undo_of)(parent));
    let credentials = parent.credentials();
    subject_hooks::cred_prepare((&credentials,))?;
    let process = Process {
        settings,
        undo: SpinLock::new(undo),
        program: SpinLock::new(program),
        limits: parent.limits.clone(),
        group: AtomicU32::new(parent.group()),
        session: AtomicU32::new(parent.session.load(Ordering::Relaxed)),
        exit_signal: AtomicU32::new(exit_signal),
        creator_tid: AtomicU32::new(current().tid()),
        handlers: SpinLock::new(handlers),
        ..Process::blank(pid, Some(mm), credentials)
    };
    Ok(Arc::new(process))
}

impl Process {
    /// A process that runs `program` in a session and group of its own, and is in no table yet.
    #[must_use]
    pub fn session_leader(
        pid: Pid,
        mm: Arc<Mm>,
        credentials: Arc<Credentials>,
        program: Program,
    ) -> Process {
        Process {
            program: SpinLock::new(Arc::new(program)),
            group: AtomicU32::new(pid),
            session: AtomicU32::new(pid),
            ..Process::blank(pid, Some(mm), credentials)
        }
    }

    /// A process with default settings that is in no table yet.
    #[must_use]
    pub fn blank(
        pid: Pid,
        mm: Option<Arc<crate::mm::Mm>>,
        credentials: Arc<crate::security::Credentials>,
    ) -> Process {
        Process {
            core_notes: Mutex::new(Vec::new()),
            pid,
            counted: Counted::new(),
            mm: ReadMostly::new(mm),
            image: Mutex::new(()),
            handlers: SpinLock::new(Arc::default()),
            signals: SpinLock::new(ProcessSignals::default()),
            credentials: SpinLock::new(credentials),
            limits: Limits::default(),
            relations: SpinLock::new(Relations { parent: Weak::new(), ..Relations::default() }),
            parent_pid: AtomicU32::new(0),
            threads: SpinLock::default(),
            tracees: SpinLock::default(),
            creator_tid: AtomicU32::new(0),
            group: AtomicU32::new(pid),
            membership: SpinLock::default(),
            led: super::table::Group::default(),
            session: AtomicU32::new(pid),
            program: SpinLock::default(),
            exit_status: AtomicI32::new(0),
            is_zombie: AtomicBool::new(false),
            settings: super::Settings::default(),
            exit_events: Arc::default(),
            pid_object: crate::vfs::anon::PidObject::default(),
            signal_events: Arc::default(),
            continue_events: WaitQueue::new(),
            release_events: WaitQueue::new(),
            child_events: Arc::default(),
            exit_signal: AtomicU32::new(raw::SIGCHLD),
            timers: SpinLock::default(),
            undo: SpinLock::default(),
            start_ns: crate::base::time::now_ns(),
            past_times_ns: [const { AtomicU64::new(0) }; 4],
            past_transfers: Transfers::default(),
            past_counts: SpinLock::default(),
            past_scheduling: SpinLock::default(),
            past_name: SpinLock::default(),
            children_counts: SpinLock::default(),
        }
    }
}

/// Sleeps until the vfork child has executed a program or ended. Only death ends the wait early.
fn wait_for_release(child: &Process) {
    let released = || (!child.settings.holds_vfork_parent.load(Ordering::SeqCst)).then_some(());
    match child.release_events.wait_deadline(Sleep::Killable, None, released) {
        Ok(()) | Err(WaitError::Interrupted | WaitError::TimedOut) => {}
    }
}

/// The first thing a new thread does if it was made with CLONE_CHILD_SETTID.
pub fn first_run() {
    let thread = current();
    thread.task().take_work(work::CHILD_TID);
    let address = thread.set_child_tid.swap(0, Ordering::Relaxed);
    // As in Linux, an address that cannot be written is no error.
    let _ = UserPtr::<u32>::new(address).write(&thread.tid());
}

/// unshare(2). Only a process with one thread has its memory and handlers for itself.
pub fn unshare(flags: u64) -> Result<u64> {
    let known = FS | FILES | VM | SIGHAND | THREAD | NEW_NAMESPACES | UNDO;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & NEW_NAMESPACES != 0 {
        return Err(Errno::EPERM);
    }
    let thread = current();
    let process = &thread.process;
    let alone = process.threads.lock().len() == 1;
    if flags & (VM | SIGHAND | THREAD) != 0 && !alone {
        return Err(Errno::EINVAL);
    }
    if flags & FS != 0 {
        own::replace_fs(thread, Arc::new(thread.fs().duplicate()));
    }
    if flags & FILES != 0 {
        own::unshare_files(thread)?;
    }
    if flags & UNDO != 0 {
        (upper().leave_undo)(process);
    }
    Ok(0)
}

/// Enters a thread into the table and into its process; the first one enters its process, too.
/// EINTR if the process is ending.
pub fn register_thread(thread: &Arc<Thread>) -> Result<()> {
    note_name(thread);
    let process = &thread.process;
    {
        let mut threads = process.threads.lock();
        if process.signals.lock().group_exit.is_some() {
            return Err(Errno::EINTR);
        }
        let maker = current();
        if core::ptr::eq(Arc::as_ptr(&maker.process), Arc::as_ptr(process)) {
            seccomp::inherit(&maker, thread);
        }
        threads.push(thread.clone());
    }
    super::enter_thread(thread);
    Ok(())
}
