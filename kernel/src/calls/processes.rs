//! Processes and threads begin and end: fork(2), vfork(2), clone(2), clone3(2), _exit(2),
//! exit_group(2).

use abi::{Errno, Result, general as raw};
use machine::memory::USER_END;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::args::Args;
use crate::base::user::{UserPtr, read_extensible};
use crate::process::fork::flag::{
    DETACHED, NEW_NAMESPACES, PARENT, PARENT_SETTID, PIDFD, THREAD, VFORK, VM,
};
use crate::process::fork::{Request, clone_with};
use crate::process::signal::LAST;
use crate::process::{PID_MAX, Pid, exit};

/// `struct clone_args`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Most name spaces of processes in each other (clone(2)).
const MAX_PID_NS_LEVEL: u64 = 32;

/// fork(2).
pub fn fork(regs: &mut Args) -> Result<u64> {
    clone_with(regs, &Request { exit_signal: raw::SIGCHLD, ..Request::default() })
}

/// vfork(2).
pub fn vfork(regs: &mut Args) -> Result<u64> {
    let flags = VM | VFORK;
    clone_with(regs, &Request { flags, exit_signal: raw::SIGCHLD, ..Request::default() })
}

/// clone(2).
pub fn clone(
    regs: &mut Args,
    word: u32,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
) -> Result<u64> {
    let flags = u64::from(word & !raw::CSIGNAL);
    // One argument serves both, so a program can ask for one of them only.
    if flags & PIDFD != 0 && flags & (PARENT_SETTID | DETACHED) != 0 {
        return Err(Errno::EINVAL);
    }
    let request = Request {
        flags: flags & !DETACHED,
        exit_signal: word & raw::CSIGNAL,
        stack,
        parent_tid,
        child_tid,
        tls,
        pidfd: parent_tid,
        stack_size: 0,
        set_tid: None,
    };
    clone_with(regs, &request)
}

/// clone3(2).
pub fn clone3(regs: &mut Args, address: u64, size: u64) -> Result<u64> {
    if size < u64::from(raw::CLONE_ARGS_SIZE_VER0) {
        return Err(Errno::EINVAL);
    }
    let given: CloneArgs = read_extensible(address, size)?;
    let set_tid = chosen_tid(&given)?;
    let cgroup = given.flags & raw::CLONE_INTO_CGROUP != 0;
    if given.exit_signal > u64::from(LAST)
        || given.flags & (u64::from(raw::CSIGNAL) & !NEW_NAMESPACES | DETACHED) != 0
        || (given.stack == 0) != (given.stack_size == 0)
        || cgroup
    {
        return Err(Errno::EINVAL);
    }
    let top = given.stack.checked_add(given.stack_size).filter(|&top| top <= USER_END);
    if given.flags & (THREAD | PARENT) != 0 && given.exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    clone_with(
        regs,
        &Request {
            flags: given.flags,
            exit_signal: given.exit_signal as u32,
            stack: top.ok_or(Errno::EINVAL)?,
            tls: given.tls,
            parent_tid: given.parent_tid,
            child_tid: given.child_tid,
            pidfd: given.pidfd,
            stack_size: given.stack_size,
            set_tid,
        },
    )
}

/// The id that the caller chooses for the child, by its name spaces of processes: there is one.
fn chosen_tid(given: &CloneArgs) -> Result<Option<Pid>> {
    if given.set_tid_size > MAX_PID_NS_LEVEL || (given.set_tid == 0) != (given.set_tid_size == 0) {
        return Err(Errno::EINVAL);
    }
    if given.set_tid == 0 {
        return Ok(None);
    }
    let tid = UserPtr::<i32>::new(given.set_tid).read()?;
    if given.set_tid_size > 1 || !(1..PID_MAX as i32).contains(&tid) {
        return Err(Errno::EINVAL);
    }
    Ok(Some(tid as Pid))
}

/// _exit(2) of one thread.
pub fn exit(regs: &mut Args, code: i32) -> Result<u64> {
    exit::exit_thread(regs.all(), (code & 0xff) << 8)
}

/// exit_group(2).
pub fn exit_group(regs: &mut Args, code: i32) -> Result<u64> {
    exit::exit_group(regs.all(), (code & 0xff) << 8)
}
