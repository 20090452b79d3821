//! seccomp(2) and prctl(PR_SET_SECCOMP): what programs ask of it, what a filtered call becomes
//! ([`enter`]), and who answers for filters that leave calls to another program (`notify`). What a
//! thread has given up is `process/seccomp`.

use abi::ptrace::{SECCOMP_MODE_FILTER, SECCOMP_MODE_STRICT};
use abi::{Errno, Result};
use machine::seccomp::Filter as Code;
use seccomp::check::INSNS_MAX;
use seccomp::{Insn, Invalid, Program, action};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::seccomp::Filter;
use crate::process::seccomp::attach::{self, Attach};
use crate::security::Capability;
use notify::Listener;

pub mod enter;
mod notify;

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
        operation::SET_MODE_STRICT if flags == 0 && address == 0 => attach::set_strict(&current()),
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
        SECCOMP_MODE_STRICT => attach::set_strict(&current()),
        SECCOMP_MODE_FILTER => set_filter(0, address),
        _ => Err(Errno::EINVAL),
    }
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
    let filter = Filter::new(program, checked.into(), code, flags & flag::LOG != 0);
    let how = Attach {
        all_threads: flags & flag::TSYNC != 0,
        fails: flags & flag::TSYNC_ESRCH != 0,
        speculates: flags & flag::SPEC_ALLOW != 0,
    };
    if !listens {
        return attach::attach(&thread, filter, how);
    }
    attach_with_listener(filter, flags & flag::WAIT_KILLABLE_RECV != 0, how)
}

/// The descriptor comes first, so that nothing can fail once the filter counts.
fn attach_with_listener(mut filter: Filter, killable: bool, how: Attach) -> Result<u64> {
    let thread = current();
    let (listener, file) = Listener::new(killable);
    filter.set_supervisor(listener);
    let fd = crate::process::give_file(file, true)?;
    if let Err(error) = attach::attach(&thread, filter, how) {
        drop(thread.files().remove(fd as u32));
        return Err(error);
    }
    Ok(fd)
}
