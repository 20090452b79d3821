//! prctl(2) and arch_prctl(2), and other settings of a process or thread.

use core::sync::atomic::Ordering;

use abi::{Errno, Result, prctl as pr};
use machine::memory::USER_END;
use mitigations::by_program;

use super::capabilities::securebits;
use crate::base::args::Args;
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::signal::LAST;
use crate::security::{ALL_CAPABILITIES, Capability, Credentials, Subject};

/// The slack with which a thread's timers may fire unless PR_SET_TIMERSLACK says otherwise.
const DEFAULT_SLACK_NS: u64 = 50_000;
/// Last capability that exists.
const LAST_CAPABILITY: u64 = ALL_CAPABILITIES.ilog2() as u64;

fn must_be_zero(arguments: &[u64]) -> Result<()> {
    if arguments.iter().all(|&argument| argument == 0) { Ok(()) } else { Err(Errno::EINVAL) }
}

fn edit_credentials(edit: impl FnOnce(&mut Credentials) -> Result<()>) -> Result<u64> {
    let process = &current().process;
    let mut new = Credentials::clone(&process.credentials());
    edit(&mut new)?;
    process.set_credentials(new);
    Ok(0)
}

/// prctl(2).
pub fn prctl(args: &Args) -> Result<u64> {
    let settings = &current().process.settings;
    let value = args.a1();
    match args.a0() as u32 {
        pr::PR_SET_NAME => set_name(value),
        pr::PR_GET_NAME => {
            let name = *current().name.lock();
            UserPtr::new(value).write(&name)?;
            Ok(0)
        }
        pr::PR_SET_PDEATHSIG if value <= u64::from(LAST) => {
            settings.parent_death_signal.store(value as u32, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_PDEATHSIG => {
            let signal = settings.parent_death_signal.load(Ordering::Relaxed);
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
            settings.timer_slack_ns.store(value, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_TIMERSLACK => match settings.timer_slack_ns.load(Ordering::Relaxed) {
            0 => Ok(DEFAULT_SLACK_NS),
            slack_ns => Ok(slack_ns),
        },
        pr::PR_SET_THP_DISABLE => {
            must_be_zero(&[args.a2(), args.a3(), args.a4()])?;
            settings.no_huge_pages.store(value != 0, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_THP_DISABLE => {
            must_be_zero(&[value, args.a2(), args.a3(), args.a4()])?;
            Ok(u64::from(settings.no_huge_pages.load(Ordering::Relaxed)))
        }
        pr::PR_GET_TID_ADDRESS => {
            UserPtr::new(value).write(&current().clear_child_tid.load(Ordering::Relaxed))?;
            Ok(0)
        }
        // Names of anonymous areas only show in /proc/PID/maps.
        pr::PR_SET_VMA => Err(Errno::EINVAL),
        _ => privileges(args),
    }
}

fn set_name(address: u64) -> Result<u64> {
    let mut name = [0u8; 16];
    let given = read_name(address)?;
    name[..given.len()].copy_from_slice(&given);
    *current().name.lock() = name;
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
fn privileges(args: &Args) -> Result<u64> {
    let who = current().process.subject();
    let value = args.a1();
    match args.a0() as u32 {
        pr::PR_SET_NO_NEW_PRIVS => {
            must_be_zero(&[args.a2(), args.a3(), args.a4()])?;
            must_be_zero(&[value ^ 1])?;
            current().seccomp.set_no_new_privs();
            Ok(0)
        }
        pr::PR_GET_NO_NEW_PRIVS => {
            must_be_zero(&[value, args.a2(), args.a3(), args.a4()])?;
            Ok(current().seccomp.no_new_privs().into())
        }
        pr::PR_GET_SECCOMP => Ok(current().seccomp.summary().0.into()),
        pr::PR_SET_SECCOMP => crate::process::seccomp::attach::set_by_prctl(value, args.a2()),
        pr::PR_GET_KEEPCAPS => Ok(u64::from(who.securebits & securebits::KEEP_CAPS != 0)),
        pr::PR_SET_KEEPCAPS => set_keep_caps(value),
        pr::PR_GET_SECUREBITS => Ok(who.securebits.into()),
        pr::PR_SET_SECUREBITS => set_securebits(&who, value),
        pr::PR_CAPBSET_READ if value <= LAST_CAPABILITY => Ok(who.bounding >> value & 1),
        pr::PR_CAPBSET_DROP => {
            if !who.capable(Capability::Setpcap) {
                return Err(Errno::EPERM);
            }
            edit_credentials(|new| {
                must_be_zero(&[u64::from(value > LAST_CAPABILITY)])?;
                new.bounding &= !(1 << value);
                Ok(())
            })
        }
        pr::PR_CAP_AMBIENT => ambient(args, &who),
        pr::PR_GET_SPECULATION_CTRL => {
            must_be_zero(&[args.a2(), args.a3(), args.a4()])?;
            speculation(value, None)
        }
        pr::PR_SET_SPECULATION_CTRL => {
            must_be_zero(&[args.a3(), args.a4()])?;
            speculation(value, Some(args.a2()))
        }
        _ => Err(Errno::EINVAL),
    }
}

fn set_keep_caps(value: u64) -> Result<u64> {
    if value > 1 {
        return Err(Errno::EINVAL);
    }
    edit_credentials(|new| {
        if new.securebits & securebits::KEEP_CAPS << 1 != 0 {
            return Err(Errno::EPERM);
        }
        new.securebits &= !securebits::KEEP_CAPS;
        new.securebits |= if value == 1 { securebits::KEEP_CAPS } else { 0 };
        Ok(())
    })
}

fn set_securebits(who: &Subject, value: u64) -> Result<u64> {
    edit_credentials(|new| {
        let (old, bits) = (new.securebits, value as u32);
        // Locked bits stay, and so do the locks.
        let locked = old & securebits::LOCKS;
        let frozen = locked | locked >> 1;
        if value > u64::from(securebits::ALL) || (old ^ bits) & frozen != 0 {
            return Err(Errno::EPERM);
        }
        if !who.capable(Capability::Setpcap) {
            return Err(Errno::EPERM);
        }
        new.securebits = bits;
        Ok(())
    })
}

fn ambient(args: &Args, who: &Subject) -> Result<u64> {
    let (command, capability) = (args.a1() as u32, args.a2());
    if command == pr::PR_CAP_AMBIENT_CLEAR_ALL {
        must_be_zero(&[args.a2(), args.a3(), args.a4()])?;
        return edit_credentials(|new| {
            new.ambient = 0;
            Ok(())
        });
    }
    must_be_zero(&[args.a3(), args.a4(), u64::from(capability > LAST_CAPABILITY)])?;
    let bit = 1u64 << capability;
    match command {
        pr::PR_CAP_AMBIENT_IS_SET => Ok(u64::from(who.ambient & bit != 0)),
        pr::PR_CAP_AMBIENT_RAISE => edit_credentials(|new| {
            let has = new.permitted & new.inheritable & bit != 0;
            if !has || new.securebits & securebits::NO_CAP_AMBIENT_RAISE != 0 {
                return Err(Errno::EPERM);
            }
            new.ambient |= bit;
            Ok(())
        }),
        pr::PR_CAP_AMBIENT_LOWER => edit_credentials(|new| {
            new.ambient &= !bit;
            Ok(())
        }),
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
const ARCH_SET_CPUID: u32 = 0x1012;

/// arch_prctl(2).
pub fn arch_prctl(args: &Args) -> Result<u64> {
    let (fs, gs) = machine::task::user_bases();
    let check = |base: u64| if base < USER_END { Ok(()) } else { Err(Errno::EPERM) };
    match args.a0() as u32 {
        ARCH_SET_FS => {
            check(args.a1())?;
            machine::task::set_user_bases(args.a1(), gs);
            Ok(0)
        }
        ARCH_SET_GS => {
            check(args.a1())?;
            machine::task::set_user_bases(fs, args.a1());
            Ok(0)
        }
        ARCH_GET_FS => {
            UserPtr::new(args.a1()).write(&fs)?;
            Ok(0)
        }
        ARCH_GET_GS => {
            UserPtr::new(args.a1()).write(&gs)?;
            Ok(0)
        }
        // CPUID always works, and cannot be made to fault.
        ARCH_GET_CPUID => Ok(1),
        ARCH_SET_CPUID => Err(Errno::ENODEV),
        _ => Err(Errno::EINVAL),
    }
}

/// set_tid_address(2).
pub fn set_tid_address(args: &Args) -> Result<u64> {
    let thread = current();
    thread.clear_child_tid.store(args.a0(), Ordering::Relaxed);
    Ok(thread.tid().into())
}

/// personality(2). ADDR_NO_RANDOMIZE and READ_IMPLIES_EXEC have the effect that they say; others
/// are kept for those who ask.
pub fn personality(args: &Args) -> Result<u64> {
    const ASK: u32 = u32::MAX;
    let setting = &current().process.settings.personality;
    let old = setting.load(Ordering::Relaxed);
    if args.a0() as u32 != ASK {
        setting.store(args.a0() as u32, Ordering::Relaxed);
    }
    Ok(old.into())
}
