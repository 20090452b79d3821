//! prctl(2) and arch_prctl(2), and other settings of a process or thread.

use core::sync::atomic::Ordering;

use abi::{Errno, Result, prctl as pr};
use machine::cpu::features;
use machine::memory::USER_END;
use mitigations::by_program;

use crate::base::user::UserPtr;
use crate::mapping::{self, shadow_stack};
use crate::process::hooks;
use crate::process::settings::PR_MDWE_NO_INHERIT;
use crate::process::signal::LAST;
use crate::process::{current, user_dispatch};
use crate::security::Capability;

fn must_be_zero(arguments: &[u64]) -> Result<()> {
    if arguments.iter().all(|&argument| argument == 0) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// prctl(2).
pub fn prctl(option: u32, a1: u64, a2: u64, a3: u64, a4: u64) -> Result<u64> {
    let thread = current();
    let others = [a1, a2, a3, a4];
    match hooks::task_prctl((&thread, option, &others)) {
        // No policy knows the option.
        Err(Errno::ENOSYS) => {}
        answer => return answer.map(u64::from),
    }
    let settings = &thread.process.settings;
    let value = a1;
    match option {
        pr::PR_SET_NAME => set_name(value),
        pr::PR_GET_NAME => {
            let name = *current().name.lock();
            UserPtr::new(value).write(&name)?;
            Ok(0)
        }
        pr::PR_SET_PDEATHSIG if value <= u64::from(LAST) => {
            thread.settings.parent_death_signal.store(value as u32, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_PDEATHSIG => {
            let signal = thread.settings.parent_death_signal.load(Ordering::Relaxed);
            UserPtr::new(value).write(&signal)?;
            Ok(0)
        }
        pr::PR_SET_DUMPABLE if value <= 1 => {
            settings.not_dumpable.store(value == 0, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_DUMPABLE => Ok(u64::from(!settings.not_dumpable.load(Ordering::Relaxed))),
        pr::PR_SET_CHILD_SUBREAPER => {
            settings.is_subreaper.store(value != 0, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_CHILD_SUBREAPER => {
            let on = i32::from(settings.is_subreaper.load(Ordering::Relaxed));
            UserPtr::new(value).write(&on)?;
            Ok(0)
        }
        pr::PR_SET_TIMERSLACK => {
            thread.settings.set_timer_slack(value);
            Ok(0)
        }
        pr::PR_GET_TIMERSLACK => Ok(thread.settings.timer_slack()),
        pr::PR_SET_THP_DISABLE
        | pr::PR_GET_THP_DISABLE
        | pr::PR_SET_MEMORY_MERGE
        | pr::PR_GET_MEMORY_MERGE => memory(option, &others),
        pr::PR_SET_IO_FLUSHER | pr::PR_GET_IO_FLUSHER => io_flusher(option, &others),
        pr::PR_GET_TID_ADDRESS => {
            UserPtr::new(value).write(&current().clear_child_tid.load(Ordering::Relaxed))?;
            Ok(0)
        }
        pr::PR_SET_VMA if value == u64::from(pr::PR_SET_VMA_ANON_NAME) => {
            mapping::name::set_name(a2, a3, a4)
        }
        pr::PR_SET_SYSCALL_USER_DISPATCH => {
            let config = user_dispatch::Config { mode: a1, selector: a4, offset: a2, len: a3 };
            user_dispatch::set(&thread, &config).map(|()| 0)
        }
        pr::PR_SET_VMA => Err(Errno::EINVAL),
        _ => fixed(option, &others),
    }
}

/// What is said of all memory of the process: whether by huge pages, and whether equal pages may
/// become one.
fn memory(option: u32, others: &[u64; 4]) -> Result<u64> {
    let process = &current().process;
    let settings = &process.settings;
    let setting = match option {
        pr::PR_SET_THP_DISABLE | pr::PR_GET_THP_DISABLE => &settings.no_huge_pages,
        _ => &settings.merges_memory,
    };
    if matches!(option, pr::PR_GET_THP_DISABLE | pr::PR_GET_MEMORY_MERGE) {
        must_be_zero(others)?;
        return Ok(u64::from(setting.load(Ordering::Relaxed)));
    }
    must_be_zero(&others[1..])?;
    let is_on = others[0] != 0;
    setting.store(is_on, Ordering::Relaxed);
    if option == pr::PR_SET_THP_DISABLE {
        process.mm()?.with(|inner| inner.no_huge_pages = is_on);
    }
    Ok(0)
}

/// PR_SET_IO_FLUSHER and PR_GET_IO_FLUSHER, for CAP_SYS_RESOURCE: kept and told. No call of the
/// kernel waits for such a thread.
fn io_flusher(option: u32, others: &[u64; 4]) -> Result<u64> {
    let thread = current();
    if !thread.subject().capable(Capability::SysResource) {
        return Err(Errno::EPERM);
    }
    let is_flusher = &thread.settings.is_io_flusher;
    if option == pr::PR_GET_IO_FLUSHER {
        must_be_zero(others)?;
        return Ok(u64::from(is_flusher.load(Ordering::Relaxed)));
    }
    must_be_zero(&others[1..])?;
    match others[0] {
        on @ (0 | 1) => is_flusher.store(on == 1, Ordering::Relaxed),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// PR_SET_MDWE. EINVAL; EPERM for what would take a refusal back.
fn deny_write_exec(bits: u64) -> Result<u64> {
    const KNOWN: u64 = (pr::PR_MDWE_REFUSE_EXEC_GAIN | PR_MDWE_NO_INHERIT) as u64;
    if bits & !KNOWN != 0 || bits == u64::from(PR_MDWE_NO_INHERIT) {
        return Err(Errno::EINVAL);
    }
    let setting = &current().process.settings.deny_write_exec;
    let old = setting.load(Ordering::Relaxed);
    if old != 0 && u64::from(old) != bits {
        return Err(Errno::EPERM);
    }
    setting.store(bits as u32, Ordering::Relaxed);
    Ok(0)
}

/// Options with one answer.
fn fixed(option: u32, others: &[u64; 4]) -> Result<u64> {
    let value = others[0];
    match option {
        // Where parts of the program lie is not told to the kernel later.
        pr::PR_SET_MM if !current().subject().capable(Capability::SysResource) => Err(Errno::EPERM),
        // Times are always measured, not sampled; that is what 0 asks for, and all there is.
        pr::PR_GET_TIMING => Ok(0),
        pr::PR_SET_TIMING if value == 0 => Ok(0),
        pr::PR_GET_TSC => UserPtr::new(value).write(&pr::PR_TSC_ENABLE).map(|()| 0),
        _ => privileges(option, others),
    }
}

fn set_name(address: u64) -> Result<u64> {
    let mut name = [0u8; 16];
    let given = read_name(address)?;
    name[..given.len()].copy_from_slice(&given);
    let thread = current();
    *thread.name.lock() = name;
    crate::process::note_name(&thread);
    Ok(0)
}

/// Up to 15 bytes before a NUL; longer names are cut.
fn read_name(address: u64) -> Result<alloc::vec::Vec<u8>> {
    let mut name = alloc::vec::Vec::new();
    for i in 0..15 {
        match UserPtr::<u8>::new(address).nth(i).read()? {
            0 => break,
            byte => name.push(byte),
        }
    }
    Ok(name)
}

/// The operations about privileges.
fn privileges(option: u32, others: &[u64; 4]) -> Result<u64> {
    let [value, second, ..] = *others;
    match option {
        pr::PR_SET_NO_NEW_PRIVS => {
            must_be_zero(&others[1..])?;
            must_be_zero(&[value ^ 1])?;
            current().seccomp.set_no_new_privs();
            Ok(0)
        }
        pr::PR_GET_NO_NEW_PRIVS => {
            must_be_zero(others)?;
            Ok(current().seccomp.no_new_privs().into())
        }
        pr::PR_SET_MDWE => {
            must_be_zero(&others[1..])?;
            deny_write_exec(value)
        }
        pr::PR_GET_MDWE => {
            must_be_zero(others)?;
            Ok(current().process.settings.deny_write_exec.load(Ordering::Relaxed).into())
        }
        pr::PR_GET_SECCOMP => Ok(current().seccomp.summary().0.into()),
        pr::PR_SET_SECCOMP => crate::seccomp::set_by_prctl(value, second),
        pr::PR_GET_SPECULATION_CTRL => {
            must_be_zero(&others[1..])?;
            speculation(value, None)
        }
        pr::PR_SET_SPECULATION_CTRL => {
            must_be_zero(&others[2..])?;
            speculation(value, Some(second))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// PR_GET_SPECULATION_CTRL and PR_SET_SPECULATION_CTRL, whose choice `wanted` is.
fn speculation(which: u64, wanted: Option<u64>) -> Result<u64> {
    let selection = machine::mitigations::selection();
    let what = by_program::What::from_number(which).ok_or(Errno::ENODEV)?;
    let flags = machine::task::speculation();
    let Some(wanted) = wanted else {
        return Ok(by_program::get(selection, what, flags).into());
    };
    let flags =
        by_program::set(selection, what, wanted, flags).map_err(|refused| match refused {
            by_program::Refused::NotByProgram => Errno::ENXIO,
            by_program::Refused::Fixed => Errno::EPERM,
            by_program::Refused::Unknown => Errno::ERANGE,
        })?;
    machine::task::set_speculation(flags);
    Ok(0)
}

const ARCH_SET_GS: u32 = 0x1001;
const ARCH_SET_FS: u32 = 0x1002;
const ARCH_GET_FS: u32 = 0x1003;
const ARCH_GET_GS: u32 = 0x1004;
const ARCH_GET_CPUID: u32 = 0x1011;
/// Which extended state there is, may be used, and is asked for by its number (arch_prctl(2),
/// Documentation/arch/x86/xstate).
const ARCH_GET_XCOMP_SUPP: u32 = 0x1021;
const ARCH_GET_XCOMP_PERM: u32 = 0x1022;
const ARCH_REQ_XCOMP_PERM: u32 = 0x1023;
const STATE_COMPONENTS: u64 = 19;
const ARCH_SET_CPUID: u32 = 0x1012;

/// arch_prctl(2).
pub fn arch_prctl(code: u32, address: u64) -> Result<u64> {
    let (fs, gs) = machine::task::user_bases();
    let check = |base: u64| if base < USER_END { Ok(()) } else { Err(Errno::EPERM) };
    match code {
        ARCH_SET_FS => {
            check(address)?;
            machine::task::set_user_bases(address, gs);
            Ok(0)
        }
        ARCH_SET_GS => {
            check(address)?;
            machine::task::set_user_bases(fs, address);
            Ok(0)
        }
        ARCH_GET_FS => {
            UserPtr::new(address).write(&fs)?;
            Ok(0)
        }
        ARCH_GET_GS => {
            UserPtr::new(address).write(&gs)?;
            Ok(0)
        }
        // CPUID always works, and cannot be made to fault.
        ARCH_GET_CPUID => Ok(1),
        ARCH_SET_CPUID => Err(Errno::ENODEV),
        ARCH_GET_XCOMP_SUPP | ARCH_GET_XCOMP_PERM => {
            UserPtr::new(address).write(&features().xcr0)?;
            Ok(0)
        }
        // All of the extended state that there is may be used without asking.
        ARCH_REQ_XCOMP_PERM if address < STATE_COMPONENTS => Err(Errno::EOPNOTSUPP),
        _ => shadow_stack::arch_prctl(code, address).unwrap_or(Err(Errno::EINVAL)),
    }
}

/// set_tid_address(2).
pub fn set_tid_address(at: u64) -> Result<u64> {
    let thread = current();
    thread.clear_child_tid.store(at, Ordering::Relaxed);
    Ok(thread.tid().into())
}

/// personality(2). ADDR_NO_RANDOMIZE and READ_IMPLIES_EXEC have the effect that they say; others
/// are kept for those who ask.
pub fn personality(persona: u32) -> Result<u64> {
    const ASK: u32 = u32::MAX;
    let setting = &current().settings.personality;
    let old = setting.load(Ordering::Relaxed);
    if persona != ASK {
        setting.store(persona, Ordering::Relaxed);
    }
    Ok(old.into())
}
