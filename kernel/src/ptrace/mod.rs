//! ptrace(2) itself: from the request to what it does to a stopped tracee. Beside it is what else
//! one process does with another's memory and files: core files, process_vm_readv(2), kcmp(2) and
//! pidfd_getfd(2).

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw, ptrace as nr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::ptrace::{Stop, TraceeState, links};
use crate::process::signal::info::{SIGINFO_BYTES, SigInfo};
use crate::process::signal::{self, SignalSet, UNBLOCKABLE, send};
use crate::process::{Thread, find_process, find_thread, user_dispatch};

pub mod core;
mod filters;
pub mod getfd;
pub mod kcmp;
mod memory;
mod registers;
mod regset;
mod resume;
mod syscall_info;
pub mod vm_transfer;

/// ptrace(2), the system call: what glibc returns from PTRACE_PEEK* is written to `data` here.
pub fn ptrace(request_at: u64, pid: u32, address: u64, data: u64) -> Result<u64> {
    let request = request_at;
    if request == u64::from(nr::PTRACE_TRACEME) {
        return links::trace_me();
    }
    let Some(thread) = find_thread(pid) else {
        return Err(without_thread(request, pid, address, data));
    };
    let request = u32::try_from(request).map_err(|_| Errno::EIO)?;
    match request {
        nr::PTRACE_ATTACH => return links::attach(&thread, None),
        nr::PTRACE_SEIZE => return seize(&thread, address, data),
        _ => {}
    }
    check_tracer(&thread)?;
    match request {
        nr::PTRACE_KILL => return kill(&thread),
        nr::PTRACE_INTERRUPT => return interrupt(&thread),
        _ => with_stopped(&thread, |_, _| Ok(0))?,
    };
    match request {
        nr::PTRACE_DETACH => links::detach(&thread, resume::valid_signal(data)?),
        nr::PTRACE_LISTEN => listen(&thread),
        nr::PTRACE_SETOPTIONS | nr::PTRACE_OLDSETOPTIONS => set_options(&thread, data),
        nr::PTRACE_GETEVENTMSG => event_message(&thread, data),
        nr::PTRACE_GETSIGINFO => get_siginfo(&thread, data),
        nr::PTRACE_SETSIGINFO => set_siginfo(&thread, data),
        nr::PTRACE_PEEKSIGINFO => peek_siginfo(&thread, address, data),
        nr::PTRACE_GETSIGMASK => get_mask(&thread, address, data),
        nr::PTRACE_SETSIGMASK => set_mask(&thread, address, data),
        nr::PTRACE_GET_SYSCALL_INFO => syscall_info::get(&thread, address, data),
        nr::PTRACE_PEEKTEXT | nr::PTRACE_PEEKDATA => memory::peek(&thread, address, data),
        nr::PTRACE_POKETEXT | nr::PTRACE_POKEDATA => memory::poke(&thread, address, data),
        nr::PTRACE_PEEKUSR => registers::peek_user(&thread, address, data),
        nr::PTRACE_POKEUSR => registers::poke_user(&thread, address, data),
        nr::PTRACE_GETREGS => registers::get_all(&thread, data),
        nr::PTRACE_SETREGS => registers::set_all(&thread, data),
        nr::PTRACE_ARCH_PRCTL => registers::arch_prctl(&thread, address, data),
        nr::PTRACE_GETFPREGS => regset::get_legacy_fpu(&thread, data),
        nr::PTRACE_SETFPREGS => regset::set_legacy_fpu(&thread, data),
        filters::GET_FILTER => filters::get_filter(&thread, address, data),
        filters::GET_METADATA => filters::get_metadata(&thread, address, data),
        nr::PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG => get_dispatch(&thread, address, data),
        nr::PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG => set_dispatch(&thread, address, data),
        nr::PTRACE_GETREGSET => regset::get(&thread, address, data),
        nr::PTRACE_SETREGSET => regset::set(&thread, address, data),
        _ => resume::resume(&thread, request, data),
    }
}

/// ESRCH unless the running thread traces `thread`.
fn check_tracer(thread: &Thread) -> Result<()> {
    if is_own(&thread.trace.state()) { Ok(()) } else { Err(Errno::ESRCH) }
}

fn is_own(state: &TraceeState) -> bool {
    let own = current();
    state.is_traced_by(&own.process) && state.link.as_ref().is_some_and(|l| l.tid == own.tid())
}

/// Calls `f` with the state and the stop of a tracee of the running thread. ESRCH unless it is
/// stopped. `f` must not touch a program's memory.
pub(super) fn with_stopped<R>(
    thread: &Thread,
    f: impl FnOnce(&mut TraceeState, &mut Stop) -> Result<R>,
) -> Result<R> {
    let mut state = thread.trace.state();
    let own = is_own(&state);
    // Taken out for the moment, so that `f` can have both.
    let Some(mut stop) = state.stop.take() else { return Err(Errno::ESRCH) };
    let waits = own && stop.resumed.is_none() && !stop.listening;
    let result = if waits { f(&mut state, &mut stop) } else { Err(Errno::ESRCH) };
    state.stop = Some(stop);
    result
}

fn seize(thread: &Arc<Thread>, address: u64, data: u64) -> Result<u64> {
    links::attach(thread, Some(seize_options(address, data)?))
}

/// What is told of a process that has no thread: nobody traces a zombie that does not already.
fn without_thread(request: u64, pid: u32, address: u64, data: u64) -> Errno {
    let (attach, seize) = (u64::from(nr::PTRACE_ATTACH), u64::from(nr::PTRACE_SEIZE));
    match find_process(pid) {
        Some(_) if request == attach => Errno::EPERM,
        Some(_) if request == seize => seize_options(address, data).err().unwrap_or(Errno::EPERM),
        _ => Errno::ESRCH,
    }
}

fn seize_options(address: u64, data: u64) -> Result<u32> {
    if address != 0 || data & !u64::from(nr::PTRACE_O_MASK) != 0 {
        return Err(Errno::EIO);
    }
    valid_options(data)
}

fn valid_options(data: u64) -> Result<u32> {
    let allowed = nr::PTRACE_O_MASK & !nr::PTRACE_O_SUSPEND_SECCOMP;
    if data & !u64::from(allowed) != 0 { Err(Errno::EINVAL) } else { Ok(data as u32) }
}

fn set_options(thread: &Thread, data: u64) -> Result<u64> {
    let options = valid_options(data)?;
    with_stopped(thread, |state, _| {
        state.options = options;
        Ok(0)
    })
}

/// PTRACE_KILL. Succeeds whatever the tracee does.
fn kill(thread: &Arc<Thread>) -> Result<u64> {
    let _ = signal::send_to_thread(thread, SigInfo::kernel(raw::SIGKILL));
    Ok(0)
}

/// PTRACE_INTERRUPT: a stop without a signal.
fn interrupt(thread: &Arc<Thread>) -> Result<u64> {
    {
        let mut state = thread.trace.state();
        if !state.is_seized() {
            return Err(Errno::EIO);
        }
        state.trap = true;
    }
    thread.trace.resumed.wake_all(0);
    send::alert(thread);
    Ok(0)
}

/// PTRACE_LISTEN: stays stopped, and tells when job control goes on.
fn listen(thread: &Thread) -> Result<u64> {
    with_stopped(thread, |state, stop| {
        if !state.is_seized() || stop.code >> 8 != nr::PTRACE_EVENT_STOP {
            return Err(Errno::EIO);
        }
        stop.listening = true;
        Ok(0)
    })?;
    // What came in the meantime ends the listening at once.
    thread.trace.resumed.wake_all(0);
    Ok(0)
}

fn event_message(thread: &Thread, data: u64) -> Result<u64> {
    let message = with_stopped(thread, |_, stop| Ok(stop.message))?;
    UserPtr::<u64>::new(data).write(&message)?;
    Ok(0)
}

fn get_siginfo(thread: &Thread, data: u64) -> Result<u64> {
    let info = with_stopped(thread, |_, stop| stop.info.ok_or(Errno::EINVAL))?;
    UserPtr::new(data).write(&info.to_user())?;
    Ok(0)
}

fn set_siginfo(thread: &Thread, data: u64) -> Result<u64> {
    const _: () = assert!(SIGINFO_BYTES == 128);
    let number = UserPtr::<u32>::new(data).read()?;
    let info = SigInfo::read_from(data, number)?;
    with_stopped(thread, |_, stop| {
        let old = stop.info.as_mut().ok_or(Errno::EINVAL)?;
        *old = info;
        Ok(0)
    })
}

/// `struct ptrace_peeksiginfo_args`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct PeekRequest {
    /// The first signal to tell about.
    offset: u64,
    flags: u32,
    /// How many at most.
    count: i32,
}

/// PTRACE_PEEKSIGINFO: pending signals in the order they came, of the thread or of its process; how
/// many were written. They stay pending.
fn peek_siginfo(thread: &Thread, address: u64, data: u64) -> Result<u64> {
    let request = UserPtr::<PeekRequest>::new(address).read()?;
    if request.flags & !nr::PTRACE_PEEKSIGINFO_SHARED != 0 || request.count < 0 {
        return Err(Errno::EINVAL);
    }
    let is_shared = request.flags & nr::PTRACE_PEEKSIGINFO_SHARED != 0;
    let look = |at: usize| match is_shared {
        true => thread.process.signals.lock().pending.get(at),
        false => thread.signals.lock().pending.get(at),
    };
    let mut done = 0;
    while done < request.count as u64 {
        let at = usize::try_from(request.offset.saturating_add(done)).unwrap_or(usize::MAX);
        let Some(info) = look(at) else { break };
        let to = data.wrapping_add(done * SIGINFO_BYTES as u64);
        match UserPtr::new(to).write(&info.to_user()) {
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
            Ok(()) => done += 1,
        }
        if current().has_pending_signal() {
            break;
        }
    }
    Ok(done)
}

fn check_mask_size(size: u64) -> Result<()> {
    if size == size_of::<SignalSet>() as u64 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// PTRACE_GETSIGMASK. The mask that a call has replaced for a while is the one to come back.
fn get_mask(thread: &Thread, size: u64, data: u64) -> Result<u64> {
    check_mask_size(size)?;
    let mask = {
        let signals = thread.signals.lock();
        signals.saved_mask.unwrap_or(signals.blocked)
    };
    UserPtr::<SignalSet>::new(data).write(&mask)?;
    Ok(0)
}

fn set_mask(thread: &Thread, size: u64, data: u64) -> Result<u64> {
    check_mask_size(size)?;
    let mask = UserPtr::<SignalSet>::new(data).read()? & !UNBLOCKABLE;
    {
        let mut signals = thread.signals.lock();
        signals.blocked = mask;
        signals.saved_mask = None;
    }
    thread.recheck_signals();
    Ok(0)
}

fn get_dispatch(thread: &Thread, size: u64, data: u64) -> Result<u64> {
    check_config_size(size)?;
    let config = with_stopped(thread, |_, _| Ok(user_dispatch::get(thread)))?;
    UserPtr::new(data).write(&config)?;
    Ok(0)
}

fn set_dispatch(thread: &Thread, size: u64, data: u64) -> Result<u64> {
    check_config_size(size)?;
    let config = UserPtr::<user_dispatch::Config>::new(data).read()?;
    with_stopped(thread, |_, _| user_dispatch::set(thread, &config).map(|()| 0))
}

fn check_config_size(size: u64) -> Result<()> {
    if size == size_of::<user_dispatch::Config>() as u64 { Ok(()) } else { Err(Errno::EINVAL) }
}
