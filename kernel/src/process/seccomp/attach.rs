//! seccomp(2) and prctl(PR_SET_SECCOMP): into strict mode, and one more filter.

use alloc::sync::Arc;

use abi::ptrace::{SECCOMP_MODE_FILTER, SECCOMP_MODE_STRICT};
use abi::{Errno, Result};
use machine::sync::SpinGuard;
use mitigations::by_program;
use seccomp::check::INSNS_MAX;
use seccomp::{Insn, Invalid, Program, action};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::notify::{self, Listener};
use super::{Code, Filter, Mode, set};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::{Pid, Thread};
use crate::security::Capability;

/// Most instructions of a chain, and what each filter of it counts besides its own.
const PATH_INSNS_MAX: usize = 32_768;
const PATH_INSNS_EACH: usize = 4;

mod operation {
    pub(super) const SET_MODE_STRICT: u64 = 0;
    pub(super) const SET_MODE_FILTER: u64 = 1;
    pub(super) const GET_ACTION_AVAIL: u64 = 2;
    pub(super) const GET_NOTIF_SIZES: u64 = 3;
}

mod flag {
    pub(super) const TSYNC: u64 = 1;
    pub(super) const LOG: u64 = 1 << 1;
    pub(super) const SPEC_ALLOW: u64 = 1 << 2;
    pub(super) const TSYNC_ESRCH: u64 = 1 << 4;
    pub(super) const NEW_LISTENER: u64 = 1 << 3;
    pub(super) const WAIT_KILLABLE_RECV: u64 = 1 << 5;
    pub(super) const KNOWN: u64 =
        TSYNC | LOG | SPEC_ALLOW | TSYNC_ESRCH | NEW_LISTENER | WAIT_KILLABLE_RECV;
}

/// `struct sock_fprog`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct UserProgram {
    len: u16,
    pad: [u16; 3],
    insns: u64,
}

/// `struct sock_filter`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct UserInsn {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// seccomp(2).
pub fn seccomp(operation: u64, flag_word: u64, argument: u64) -> Result<u64> {
    let (flags, address) = (flag_word & u64::from(u32::MAX), argument);
    match operation & u64::from(u32::MAX) {
        operation::SET_MODE_STRICT if flags == 0 && address == 0 => set_strict(),
        operation::SET_MODE_FILTER => set_filter(flags, address),
        operation::GET_ACTION_AVAIL if flags == 0 => {
            let asked = UserPtr::<u32>::new(address).read()?;
            match asked {
                action::KILL_PROCESS
                | action::KILL_THREAD
                | action::TRAP
                | action::ERRNO
                | action::USER_NOTIF
                | action::TRACE
                | action::LOG
                | action::ALLOW => Ok(0),
                _ => Err(Errno::EOPNOTSUPP),
            }
        }
        operation::GET_NOTIF_SIZES if flags == 0 => {
            UserPtr::<[u16; 3]>::new(address).write(&notify::SIZES)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// prctl(PR_SET_SECCOMP).
pub fn set_by_prctl(mode: u64, address: u64) -> Result<u64> {
    match mode as u32 {
        SECCOMP_MODE_STRICT => set_strict(),
        SECCOMP_MODE_FILTER => set_filter(0, address),
        _ => Err(Errno::EINVAL),
    }
}

fn set_strict() -> Result<u64> {
    let thread = current();
    // Its own TSYNC cannot be under way, but that of another thread can.
    let _threads = thread.process.threads.lock();
    match &*thread.seccomp.mode.lock() {
        Mode::Filter(_) => return Err(Errno::EINVAL),
        Mode::Disabled | Mode::Strict => {}
    }
    set(&thread, Mode::Strict);
    Ok(0)
}

fn set_filter(flags: u64, address: u64) -> Result<u64> {
    let listens = flags & flag::NEW_LISTENER != 0;
    // One number cannot be a thread and a descriptor.
    let ambiguous = listens && flags & (flag::TSYNC | flag::TSYNC_ESRCH) == flag::TSYNC;
    let vain = !listens && flags & flag::WAIT_KILLABLE_RECV != 0;
    if flags & !flag::KNOWN != 0 || ambiguous || vain {
        return Err(Errno::EINVAL);
    }
    let given = UserPtr::<UserProgram>::new(address).read()?;
    let len = usize::from(given.len);
    if len == 0 || len > INSNS_MAX {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    let is_allowed =
        thread.seccomp.no_new_privs() || thread.process.subject().capable(Capability::SysAdmin);
    if !is_allowed {
        return Err(Errno::EACCES);
    }
    let insns = UserPtr::<UserInsn>::new(given.insns).read_many(len)?;
    let mut checked = alloc::vec::Vec::new();
    checked.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    checked.extend(insns.iter().map(|i| Insn { code: i.code, jt: i.jt, jf: i.jf, k: i.k }));
    let program = Program::check(&checked).map_err(|why| match why {
        Invalid::Memory => Errno::ENOMEM,
        _ => Errno::EINVAL,
    })?;
    // Whatever fails here, the program itself can be run.
    let key = machine::entropy::random_u64() as u32;
    let code = program.compile(key).and_then(|code| Code::load(&code));
    let filter = Filter {
        program,
        code,
        logs: flags & flag::LOG != 0,
        listener: None,
        path_insns: len,
        depth: 1,
        previous: None,
        allowed: Default::default(),
    };
    if listens { attach_with_listener(filter, flags) } else { attach(filter, flags) }
}

/// The descriptor comes first, so that nothing can fail once the filter counts.
fn attach_with_listener(mut filter: Filter, flags: u64) -> Result<u64> {
    let (listener, file) = Listener::new(flags & flag::WAIT_KILLABLE_RECV != 0);
    filter.listener = Some(listener);
    let fd = crate::process::give_file(file, true)?;
    if let Err(error) = attach(filter, flags) {
        drop(current().files().remove(fd as u32));
        return Err(error);
    }
    Ok(fd)
}

/// Puts the filter in front of the running thread's, and with TSYNC in front of all threads'.
fn attach(mut filter: Filter, flags: u64) -> Result<u64> {
    let thread = current();
    // Of another chain, or too long a one, nothing is left: it goes when no lock is held.
    let threads = thread.process.threads.lock();
    let result = extend(&thread, &mut filter);
    let result = result.and_then(|()| {
        let stranger = if flags & flag::TSYNC != 0 { stranger(&thread, &threads) } else { None };
        match stranger {
            None => Ok(()),
            Some(_) if flags & flag::TSYNC_ESRCH != 0 => Err(Err(Errno::ESRCH)),
            Some(tid) => Err(Ok(u64::from(tid))),
        }
    });
    if let Err(failed) = result {
        return give_up(threads, filter, failed);
    }
    filter.note_allowed();
    let filter = Arc::new(filter);
    set(&thread, Mode::Filter(filter.clone()));
    if flags & flag::SPEC_ALLOW == 0 {
        restrict_speculation();
    }
    if flags & flag::TSYNC != 0 {
        for other in threads.iter().filter(|other| other.tid() != thread.tid()) {
            set(other, Mode::Filter(filter.clone()));
            if thread.seccomp.no_new_privs() {
                other.seccomp.set_no_new_privs();
            }
        }
    }
    drop(threads);
    Ok(0)
}

/// Where the boot says so, who filters its calls does not trust its code.
fn restrict_speculation() {
    let flags = machine::task::speculation();
    let selection = machine::mitigations::selection();
    machine::task::set_speculation(by_program::under_seccomp(selection, flags));
}

/// Lets go of the lock, then of the filter.
fn give_up<T>(lock: SpinGuard<'_, T>, filter: Filter, result: Result<u64>) -> Result<u64> {
    drop(lock);
    drop(filter);
    result
}

/// Makes the thread's chain the one that `filter` stands in front of.
fn extend(thread: &Thread, filter: &mut Filter) -> core::result::Result<(), Result<u64>> {
    let previous = match thread.seccomp.mode() {
        Mode::Disabled => return Ok(()),
        Mode::Strict => return Err(Err(Errno::EINVAL)),
        Mode::Filter(previous) => previous,
    };
    let insns = filter.path_insns + PATH_INSNS_EACH + previous.path_insns;
    (filter.path_insns, filter.depth) = (insns, previous.depth + 1);
    let has_listener = previous.chain().any(|filter| filter.listener.is_some());
    filter.previous = Some(previous);
    if filter.listener.is_some() && has_listener {
        return Err(Err(Errno::EBUSY));
    }
    if insns > PATH_INSNS_MAX { Err(Err(Errno::ENOMEM)) } else { Ok(()) }
}

/// A thread whose filters are not a part of the running thread's: it cannot be given those.
fn stranger(own: &Thread, threads: &[Arc<Thread>]) -> Option<Pid> {
    let Mode::Filter(chain) = own.seccomp.mode() else {
        return strange_without(own, threads);
    };
    let found = threads.iter().find(|other| match &*other.seccomp.mode.lock() {
        Mode::Disabled => false,
        Mode::Strict => true,
        Mode::Filter(theirs) => !chain.chain().any(|f| core::ptr::eq(f, Arc::as_ptr(theirs))),
    });
    found.map(|other| other.tid())
}

/// The same if the running thread has no filter yet.
fn strange_without(own: &Thread, threads: &[Arc<Thread>]) -> Option<Pid> {
    let is_filtered = |other: &Thread| !matches!(&*other.seccomp.mode.lock(), Mode::Disabled);
    threads.iter().find(|o| o.tid() != own.tid() && is_filtered(o)).map(|other| other.tid())
}
