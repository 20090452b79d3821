//! The first process of the machine: a thread of the kernel that starts the program, adopts
//! orphans, and ends the machine with the program's status when the program ends.
//!
//! The program itself has id 2. Were it the first process, signals without handler would not reach
//! it (as in Linux), and every orphan would stay a zombie for ever, since few programs expect any.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use machine::fpu::FpuState;
use machine::sync::{Once, SpinLock};
use machine::task::Task;

use crate::base::sched;
use crate::base::sync::WaitQueue;
use crate::exec::Image;
use crate::mm::Mm;
use crate::process::{Own, Process, Program, Thread, exit, relations, upper};
use crate::security::{Credentials, Limit, Resource};
use crate::vfs::FdTable;
use crate::vfs::path::FsContext;
use crate::wait;

/// The id of the first process.
pub const INIT_PID: u32 = 1;

/// The id of the program, and of its process group and session.
pub const PROGRAM_PID: u32 = 2;

/// What the first program starts with.
pub struct First {
    /// The program, from `exec::load`, and who runs it.
    pub image: Image,
    /// Its descriptors.
    pub files: Arc<FdTable>,
    /// Its directories and umask.
    pub fs: Arc<FsContext>,
}

machine::ro_after_init! {
    static POWER_OFF: Once<fn() -> !> = Once::new();
}

/// Says what ends the machine when a program asks for it.
pub fn set_power_off(end: fn() -> !) {
    POWER_OFF.call_once(|| end);
}

/// Ends the machine because a program asked for it.
pub fn power_off() -> ! {
    match POWER_OFF.get() {
        Some(end) => end(),
        None => machine::power::off(machine::power::OK),
    }
}

/// Makes process 1. Its thread runs `prepare`, which may sleep, starts what that returns as process
/// 2, and then waits: `ended` is called with the program's wait(2) status, or with the error that
/// kept it from starting.
pub fn start(
    prepare: impl FnOnce() -> Result<First> + Send + 'static,
    ended: impl FnOnce(Result<i32>) + Send + 'static,
) -> Result<()> {
    let root = Arc::new(Credentials::root());
    let init = Arc::new(Process::blank(INIT_PID, None, root));
    let body = move || {
        ended(prepare().and_then(|first| spawn(first, |_| {})).map(serve));
        sched::exit_current();
    };
    let task = Task::new_kernel(body).map_err(|_| Errno::ENOMEM)?;
    if crate::process::allocate_pid(0, None)? != INIT_PID {
        return Err(Errno::EEXIST);
    }
    let thread = Thread::new(INIT_PID, init.clone(), task, Own::of_kernel());
    thread.name.lock()[..4].copy_from_slice(b"init");
    crate::process::fork::register_thread(&thread)?;
    thread.start();
    Ok(())
}

/// Programs beside the first whose ends somebody waits for, with their wait(2) statuses once they
/// have ended.
static ENDS: SpinLock<BTreeMap<u32, Option<i32>>> = SpinLock::new(BTreeMap::new());
static ENDED: WaitQueue = WaitQueue::new();

/// Starts another program beside the first one, in a session of its own; `begins` is told its id
/// before it runs. Whoever calls this calls [`end_of`], too.
pub fn start_beside(first: First, begins: impl FnOnce(u32)) -> Result<u32> {
    spawn(first, |pid| {
        ENDS.lock().insert(pid, None);
        begins(pid);
    })
}

/// The same where nobody waits for its end: a program of the kernel's own.
pub fn start_helper(first: First) -> Result<()> {
    let limited = |pid| {
        if let Some(process) = crate::process::find_process(pid) {
            let core = Limit { soft: upper::HELPERS_CORE, hard: upper::HELPERS_CORE };
            process.limits.change(Resource::Core, |limit| *limit = core);
        }
    };
    spawn(first, limited).map(|_| ())
}

/// Waits for the end of what [`start_beside`] has started: its wait(2) status.
pub fn end_of(pid: u32) -> i32 {
    let status = ENDED.wait_uninterruptible(|| ENDS.lock().get(&pid).copied().flatten());
    ENDS.lock().remove(&pid);
    status
}

/// Starts the program as a child of the first process.
fn spawn(first: First, begins: impl FnOnce(u32)) -> Result<u32> {
    let pid = crate::process::allocate_pid(first.image.credentials.uid, None)?;
    let spawned = spawn_as(pid, first, begins);
    if spawned.is_err() {
        crate::process::release_pid(pid);
    }
    spawned.map(|()| pid)
}

fn spawn_as(pid: u32, first: First, begins: impl FnOnce(u32)) -> Result<()> {
    let parent = crate::process::init_process().ok_or(Errno::ESRCH)?;
    let Image { mm, regs, program, name, credentials, secure } = first.image;
    let space = mm.space();
    let credentials = Arc::new(credentials);
    let own = Own::new(first.files, Some(first.fs), credentials.clone());
    let process = leader(pid, mm, credentials, program);
    process.settings.has_executed.store(true, Ordering::Relaxed);
    process.settings.not_dumpable.store(secure, Ordering::Relaxed);
    let fpu = FpuState::new().map_err(|_| Errno::ENOMEM)?;
    let task = Task::new_user(&regs, fpu, space).map_err(|_| Errno::ENOMEM)?;
    let thread = Thread::new(pid, process.clone(), task, own);
    *thread.name.lock() = name;
    crate::process::fork::register_thread(&thread)?;
    relations::adopt_or_orphan(&parent, &process);
    begins(pid);
    thread.start();
    Ok(())
}

/// A session of its own, so that a terminal can become its controlling one. In a frame of its own,
/// too, for the process takes 2 KiB of the stack before it has a place.
#[inline(never)]
fn leader(pid: u32, mm: Arc<Mm>, credentials: Arc<Credentials>, program: Program) -> Arc<Process> {
    Arc::new(Process::session_leader(pid, mm, credentials, program))
}

/// Reaps children until the program ends; its wait(2) status.
fn serve(program: u32) -> i32 {
    loop {
        // None: no children, which only happens if the program was taken by somebody else.
        match wait::reap_any() {
            Some((pid, status)) if pid == program => return status,
            Some((pid, status)) => {
                if let Some(end) = ENDS.lock().get_mut(&pid) {
                    *end = Some(status);
                }
                ENDED.wake_all(!0);
            }
            None => return exit::NO_STATUS,
        }
    }
}
