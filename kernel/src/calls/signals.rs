//! The system calls on signals.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::args::Args;
use crate::base::sched::Sleep;
use crate::base::sync::WaitError;
use crate::base::time::{Deadline, TimeSpec};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::pidfd;
use crate::process::signal::{Action, LAST, SigInfo, SignalSet, UNBLOCKABLE, bit, mask, send};
use crate::process::{
    Own, Pid, Process, Thread, all_processes, find_by_tid, find_process, find_thread,
    group_members, hooks,
};
use crate::security::Capability;

/// `struct sigaction` as the kernel has it on x86-64.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub struct KernelSigaction {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// Flags of sigaction(2) that Linux knows on x86-64; others are dropped, so that programs can find
/// out which ones exist.
const KNOWN_FLAGS: u64 = (raw::SA_NOCLDSTOP
    | raw::SA_NOCLDWAIT
    | raw::SA_SIGINFO
    | raw::SA_EXPOSE_TAGBITS
    | raw::SA_ONSTACK
    | raw::SA_RESTART
    | raw::SA_NODEFER
    | raw::SA_RESETHAND
    | raw::SA_RESTORER) as u64;

fn check_set_size(size: u64) -> Result<()> {
    if size == size_of::<SignalSet>() as u64 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// A signal number argument: 1 to 64, EINVAL otherwise.
fn signal_number(argument: u64) -> Result<u32> {
    let number = argument as u32;
    if (1..=LAST).contains(&number) { Ok(number) } else { Err(Errno::EINVAL) }
}

/// rt_sigaction(2).
pub fn rt_sigaction(
    signal: u64,
    action_at: UserPtr<KernelSigaction>,
    old_at: u64,
    set_size: u64,
) -> Result<u64> {
    check_set_size(set_size)?;
    let new = action_at.non_null().map(UserPtr::read).transpose()?;
    let number = signal_number(signal)?;
    if new.is_some() && UNBLOCKABLE & bit(number) != 0 {
        return Err(Errno::EINVAL);
    }
    let process = &current().process;
    let handlers = process.handlers.lock().clone();
    let old = handlers.get(number);
    if let Some(new) = new {
        let action = Action {
            handler: new.handler,
            flags: new.flags & KNOWN_FLAGS,
            restorer: new.restorer,
            mask: new.mask & !UNBLOCKABLE,
        };
        handlers.set(number, action);
        if action.ignores(number) {
            send::flush(process, bit(number));
        }
    }
    let old = KernelSigaction {
        handler: old.handler,
        flags: old.flags,
        restorer: old.restorer,
        mask: old.mask,
    };
    UserPtr::new(old_at).write_if_some(&old)?;
    Ok(0)
}

/// rt_sigprocmask(2).
pub fn rt_sigprocmask(
    how: u32,
    set_at: UserPtr<SignalSet>,
    old_at: u64,
    set_size: u64,
) -> Result<u64> {
    check_set_size(set_size)?;
    let thread = current();
    let old = thread.signals.lock().blocked;
    if let Some(set) = set_at.non_null() {
        let set = set.read()?;
        let new = match how {
            raw::SIG_BLOCK => old | set,
            raw::SIG_UNBLOCK => old & !set,
            raw::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        mask::set_blocked(new);
    }
    UserPtr::new(old_at).write_if_some(&old)?;
    Ok(0)
}

/// rt_sigpending(2).
pub fn rt_sigpending(set_at: u64, set_size: u64) -> Result<u64> {
    if set_size > size_of::<SignalSet>() as u64 {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    let blocked = thread.signals.lock().blocked;
    let set = thread.pending_signals() & blocked;
    let bytes = &set.to_le_bytes()[..set_size as usize];
    if !bytes.is_empty() {
        UserPtr::<u8>::new(set_at).write_bytes(bytes)?;
    }
    Ok(0)
}

/// Sleeps until a signal is delivered; never returns a value.
fn sleep_until_signal() -> Result<u64> {
    let never = crate::base::sync::WaitQueue::new();
    never.wait(|| None::<()>).map_err(|_| Errno::ERESTARTNOHAND)?;
    Err(Errno::ERESTARTNOHAND)
}

/// pause(2).
pub fn pause() -> Result<u64> {
    sleep_until_signal()
}

/// rt_sigsuspend(2).
pub fn rt_sigsuspend(set: UserPtr<SignalSet>, set_size: u64) -> Result<u64> {
    check_set_size(set_size)?;
    let set = set.read()?;
    mask::set_temporary_mask(set);
    sleep_until_signal()
}

/// rt_sigtimedwait(2).
pub fn rt_sigtimedwait(
    set: UserPtr<SignalSet>,
    info: u64,
    timeout: UserPtr<TimeSpec>,
    set_size: u64,
) -> Result<u64> {
    check_set_size(set_size)?;
    let wanted = set.read()? & !UNBLOCKABLE;
    let timeout = timeout.non_null().map(UserPtr::read).transpose()?;
    let deadline = match timeout {
        Some(timeout) => Some(Deadline::after_ns(timeout.to_ns()?)),
        None => None,
    };
    let thread = current();
    let queue = thread.process.signal_events.clone();
    let taken = queue
        .wait_deadline(Sleep::Interruptible, deadline, || thread.take_signal(wanted))
        .map_err(|error| match error {
            WaitError::TimedOut => Errno::EAGAIN,
            WaitError::Interrupted => Errno::EINTR,
        })?;
    if info != 0 {
        UserPtr::new(info).write(&taken.to_user())?;
    }
    Ok(u64::from(taken.number()))
}

// ------------------------------------------------------------------------------------------------
// Sending

/// Whether `sender` may send `number` (0: only ask) to `target`, or to one thread of it (kill(2)).
fn check_permission(
    sender: &Thread,
    target: &Process,
    thread: Option<&Thread>,
    number: u32,
) -> Result<()> {
    if core::ptr::eq(&raw const *sender.process, target) {
        return hooks::task_kill((sender, target, thread, number));
    }
    let own = sender.subject();
    let other = target.credentials();
    let same_user = [own.euid, own.uid].iter().any(|id| [other.suid, other.uid].contains(id));
    let same_session =
        sender.process.session.load(Ordering::Relaxed) == target.session.load(Ordering::Relaxed);
    if same_user || own.capable(Capability::Kill) || number == raw::SIGCONT && same_session {
        hooks::task_kill((sender, target, thread, number))
    } else {
        Err(Errno::EPERM)
    }
}

fn own_info(number: u32, code: i32) -> SigInfo {
    let thread = current();
    let uid = Own::with_credentials(thread, |own| own.uid);
    SigInfo::from_process(number, code, thread.process.pid, uid)
}

/// Sends `info` if the caller may. Number 0 only checks.
fn send_checked(target: &Arc<Process>, info: SigInfo) -> Result<()> {
    check_sending(target, info)?;
    if info.signo == 0 { Ok(()) } else { send::send_to_process(target, info) }
}

/// The same to the process of the thread with this id, which takes it if it can.
fn send_by_id(target: &Arc<Process>, id: Pid, info: SigInfo) -> Result<()> {
    check_sending(target, info)?;
    if info.signo == 0 {
        return Ok(());
    }
    let named = find_thread(id).filter(|_| target.pid != id);
    send::send_to_process_by(target, named.as_ref(), info)
}

/// EINVAL for a signal that is none, EPERM.
fn check_sending(target: &Arc<Process>, info: SigInfo) -> Result<()> {
    number_or_zero(info.signo as u64)?;
    check_permission(&current(), target, None, info.number())
}

fn send_thread_checked(target: &Arc<Thread>, info: SigInfo) -> Result<()> {
    number_or_zero(info.signo as u64)?;
    check_permission(&current(), &target.process, Some(target), info.number())?;
    if info.signo == 0 { Ok(()) } else { send::send_to_thread(target, info) }
}

/// A signal number argument where 0 is allowed.
fn number_or_zero(argument: u64) -> Result<u32> {
    let number = argument as u32;
    if number <= LAST { Ok(number) } else { Err(Errno::EINVAL) }
}

/// kill(2).
pub fn kill(pid: i32, signal: u64) -> Result<u64> {
    // Whom it is for comes before what it is: a number that is none is checked with the right.
    let info = own_info(signal as u32, raw::SI_USER as i32);
    match pid {
        1.. => {
            let process = find_by_tid(pid as Pid).ok_or(Errno::ESRCH)?;
            send_by_id(&process, pid as Pid, info)?;
        }
        0 => kill_group(current().process.group(), info)?,
        -1 => kill_all(info)?,
        i32::MIN => return Err(Errno::ESRCH),
        _ => kill_group(pid.unsigned_abs(), info)?,
    }
    Ok(0)
}

/// Success if at least one member could be sent to.
fn kill_group(group: Pid, info: SigInfo) -> Result<()> {
    let mut result = Err(Errno::ESRCH);
    for process in group_members(group) {
        let one = send_checked(&process, info);
        if result != Ok(()) {
            result = one;
        }
    }
    result
}

/// Everybody but the first process and the caller's own.
fn kill_all(info: SigInfo) -> Result<()> {
    let mut result = Err(Errno::ESRCH);
    for process in all_processes() {
        if process.pid > 1 && !process.is_current() {
            let one = send_checked(&process, info);
            if result != Ok(()) {
                result = one;
            }
        }
    }
    result
}

/// A thread argument: EINVAL for 0 and negative ids.
fn thread_by_id(argument: u64) -> Result<Arc<Thread>> {
    let tid = argument as i32;
    if tid <= 0 {
        return Err(Errno::EINVAL);
    }
    find_thread(tid as Pid).ok_or(Errno::ESRCH)
}

/// The thread `tid` of process `pid`.
fn thread_of(pid: u64, tid: u64) -> Result<Arc<Thread>> {
    if pid as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    let thread = thread_by_id(tid)?;
    if thread.process.pid == pid as Pid { Ok(thread) } else { Err(Errno::ESRCH) }
}

/// Sends to the thread `tid`, of process `group` if that is named. To one that has ended, and whose
/// process was not waited for, nothing is sent, and that is no error.
fn send_by_tid(group: Option<u64>, tid: u64, info: SigInfo) -> Result<u64> {
    let found = match group {
        None => thread_by_id(tid),
        Some(group) => thread_of(group, tid),
    };
    match found {
        Ok(thread) => send_thread_checked(&thread, info)?,
        Err(Errno::ESRCH) => {
            let is_named = |p: &Arc<Process>| group.is_none_or(|group| group as Pid == p.pid);
            let ended = find_process(tid as Pid).filter(is_named).ok_or(Errno::ESRCH)?;
            check_sending(&ended, info)?;
        }
        Err(error) => return Err(error),
    }
    Ok(0)
}

/// tkill(2).
pub fn tkill(tid: u64, signal: u64) -> Result<u64> {
    send_by_tid(None, tid, own_info(signal as u32, raw::SI_TKILL))
}

/// tgkill(2).
pub fn tgkill(group: u64, tid: u64, signal: u64) -> Result<u64> {
    send_by_tid(Some(group), tid, own_info(signal as u32, raw::SI_TKILL))
}

/// Only the kernel, kill and tgkill may use their codes, except of a thread towards itself.
fn check_code(info: &SigInfo, to_self: bool) -> Result<()> {
    let forged = info.code >= 0 || info.code == raw::SI_TKILL;
    if forged && !to_self { Err(Errno::EPERM) } else { Ok(()) }
}

/// rt_sigqueueinfo(2).
pub fn rt_sigqueueinfo(pid: u64, signal: u64, info: u64) -> Result<u64> {
    let info = SigInfo::read_from(info, signal as u32)?;
    let pid = pid as Pid;
    check_code(&info, pid == current().tid())?;
    let process = find_by_tid(pid).ok_or(Errno::ESRCH)?;
    send_by_id(&process, pid, info)?;
    Ok(0)
}

/// rt_tgsigqueueinfo(2).
pub fn rt_tgsigqueueinfo(group: u64, tid: u64, signal: u64, info: u64) -> Result<u64> {
    let info = SigInfo::read_from(info, signal as u32)?;
    if group as i32 <= 0 || tid as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    check_code(&info, tid as Pid == current().tid())?;
    send_by_tid(Some(group), tid, info)
}

/// Whom a signal through a pidfd reaches (pidfd_send_signal(2)).
const PIDFD_SIGNAL_THREAD: u32 = 1;
const PIDFD_SIGNAL_PROCESS_GROUP: u32 = 4;
const PIDFD_SCOPES: u32 = 7;

/// pidfd_send_signal(2).
pub fn pidfd_send_signal(fd: u32, signal: u64, info_at: u64, flags: u64) -> Result<u64> {
    let scope = flags as u32;
    if scope & !PIDFD_SCOPES != 0 || scope.count_ones() > 1 {
        return Err(Errno::EINVAL);
    }
    let file = current().files().get(fd)?;
    let (process, id) = pidfd::target(&file)?;
    let number = signal as u32;
    let is_to_thread =
        scope == PIDFD_SIGNAL_THREAD || scope == 0 && pidfd::stands_for_thread(&file);
    let info = if info_at == 0 {
        own_info(number, if is_to_thread { raw::SI_TKILL } else { raw::SI_USER as i32 })
    } else {
        if UserPtr::<u32>::new(info_at).read()? != number {
            return Err(Errno::EINVAL);
        }
        let info = SigInfo::read_from(info_at, number)?;
        check_code(&info, id == current().tid())?;
        info
    };
    match scope {
        0 | PIDFD_SIGNAL_THREAD if let Some(thread) = pidfd::thread_of(&file)? => {
            send_thread_checked(&thread, info)?;
        }
        PIDFD_SIGNAL_THREAD => {
            send_thread_checked(&find_thread(id).ok_or(Errno::ESRCH)?, info)?;
        }
        PIDFD_SIGNAL_PROCESS_GROUP => kill_group(id, info)?,
        _ => send_by_id(&process, id, info)?,
    }
    Ok(0)
}

/// rt_sigreturn(2).
pub fn rt_sigreturn(regs: &mut Args) -> Result<u64> {
    Ok(crate::signal::frame::sigreturn(regs.all()))
}
