//! Calls about the machine as a whole: reboot(2), syslog(2), getrandom(2) … Its names are in
//! `identity`.

use abi::{Errno, Result, general as raw};

use crate::base::io::Sink;
use crate::base::user::UserPtr;
use crate::drivers::kmsg;
use crate::process::current;
use crate::security::{Capability, subject_hooks};

/// reboot(2): every command that stops or restarts ends the machine, since a microVM is not started
/// twice, and that is the program's good end.
pub fn reboot(first: u32, second: u32, command: u32) -> Result<u64> {
    if !current().subject().capable(Capability::SysBoot) {
        return Err(Errno::EPERM);
    }
    let magic = [
        raw::LINUX_REBOOT_MAGIC2,
        raw::LINUX_REBOOT_MAGIC2A,
        raw::LINUX_REBOOT_MAGIC2B,
        raw::LINUX_REBOOT_MAGIC2C,
    ];
    if first != raw::LINUX_REBOOT_MAGIC1 || !magic.contains(&second) {
        return Err(Errno::EINVAL);
    }
    match command {
        raw::LINUX_REBOOT_CMD_CAD_ON | raw::LINUX_REBOOT_CMD_CAD_OFF => Ok(0),
        raw::LINUX_REBOOT_CMD_RESTART
        | raw::LINUX_REBOOT_CMD_RESTART2
        | raw::LINUX_REBOOT_CMD_HALT
        | raw::LINUX_REBOOT_CMD_POWER_OFF => crate::init::power_off(),
        _ => Err(Errno::EINVAL),
    }
}

/// syslog(2), of the lines that the log keeps. What reads the log away (SYSLOG_ACTION_READ) finds
/// nothing: there is one log, and it is /dev/kmsg's.
pub fn syslog(command: i32, buffer: u64, length: i32) -> Result<u64> {
    // Reading all and asking for the size are open to everybody, as where dmesg is not restricted.
    let open = command == 3 || command == 10;
    if !open && !current().subject().capable(Capability::Syslog) {
        return Err(Errno::EPERM);
    }
    subject_hooks::syslog((&current().subject(), command as u32))?;
    match command {
        2..=4 if length < 0 || buffer == 0 => Err(Errno::EINVAL),
        3 | 4 => {
            let lines = kmsg::last_lines(length as usize);
            UserPtr::<u8>::new(buffer).write_bytes(&lines)?;
            if command == 4 {
                kmsg::clear();
            }
            Ok(lines.len() as u64)
        }
        5 => {
            kmsg::clear();
            Ok(0)
        }
        10 => Ok(machine::log::KEPT_BYTES as u64),
        0 | 1 | 2 | 6 | 7 | 9 => Ok(0),
        8 if (1..=8).contains(&length) => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// Random bytes made at a time.
const RANDOM_CHUNK: usize = 256;

/// getrandom(2). The generator is seeded before the first program runs, so it never blocks.
pub fn getrandom(buffer: u64, count: u64, flags: u32) -> Result<u64> {
    let both = raw::GRND_RANDOM | raw::GRND_INSECURE;
    if flags & !(both | raw::GRND_NONBLOCK) != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    let len = count.min(crate::base::io::MAX_TRANSFER as u64) as usize;
    let mut done = 0;
    let mut chunk = [0u8; RANDOM_CHUNK];
    while done < len {
        let part = &mut chunk[..(len - done).min(RANDOM_CHUNK)];
        crate::base::random::fill(part);
        let mut sink = Sink::user(buffer.wrapping_add(done as u64), part.len());
        match sink.put(part) {
            Ok(put) if put == part.len() => done += put,
            Ok(put) if done + put > 0 => return Ok((done + put) as u64),
            Err(_) if done > 0 => return Ok(done as u64),
            _ => return Err(Errno::EFAULT),
        }
        if done < len && current().has_pending_signal() {
            break;
        }
        crate::base::sched::yield_if_needed();
    }
    Ok(done as u64)
}

/// getcpu(2).
pub fn getcpu(cpu_at: UserPtr<u32>, node: UserPtr<u32>) -> Result<u64> {
    let cpu = machine::percpu::cpu_id() as u32;
    cpu_at.write_if_some(&cpu)?;
    node.write_if_some(&0)?;
    Ok(0)
}

/// acct(2): no process accounting, as a Linux that was built without it.
pub fn acct(path: u64) -> Result<u64> {
    match current().subject().capable(Capability::SysPacct) {
        false => Err(Errno::EPERM),
        true if path == 0 => Ok(0),
        true => Err(Errno::ENOSYS),
    }
}

/// setns(2): there is one namespace of each kind, and no other to enter. That of another process,
/// by its pidfd, is the caller's own: there is nothing to do for who may enter one. EINVAL for
/// those that are entered with a root of their own or cannot be the own (mounts, users), and for
/// what is no pidfd. EPERM.
pub fn setns(fd: u32, kinds: u32) -> Result<u64> {
    const ALIKE: u32 = raw::CLONE_NEWCGROUP
        | raw::CLONE_NEWUTS
        | raw::CLONE_NEWIPC
        | raw::CLONE_NEWPID
        | raw::CLONE_NEWNET;
    let file = crate::io::file_at(fd.into())?;
    if kinds == 0 || kinds & !ALIKE != 0 {
        return Err(Errno::EINVAL);
    }
    crate::process::pidfd::process_of(&file).map_err(|_| Errno::EINVAL)?;
    let may = current().subject().capable(Capability::SysAdmin);
    if may { Ok(0) } else { Err(Errno::EPERM) }
}
