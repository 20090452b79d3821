//! Capabilities (capabilities(7)): capget(2), capset(2), and what changes of user ids do to them.

use abi::{Errno, Result, general as raw};
use alloc::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::args::Args;
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::find_by_tid;
use crate::security::{ALL_CAPABILITIES, Capability, CapabilitySet, Credentials};

/// Secure bits (capabilities(7)): each has a lock bit above it.
pub mod securebits {
    /// The superuser's id gives no capabilities at exec.
    pub const NOROOT: u32 = 1;
    /// Changes of ids change no capabilities.
    pub const NO_SETUID_FIXUP: u32 = 1 << 2;
    /// Giving up id 0 keeps the permitted set.
    pub const KEEP_CAPS: u32 = 1 << 4;
    /// The ambient set cannot grow.
    pub const NO_CAP_AMBIENT_RAISE: u32 = 1 << 6;
    /// The bits that can be set.
    pub const ALL: u32 = 0xff;
    /// The lock bits.
    pub const LOCKS: u32 = 0xaa;
}

/// Capabilities that go with the file system's user id (setfsuid(2)).
const FILE_SYSTEM: CapabilitySet = Capability::Chown.bit()
    | Capability::DacOverride.bit()
    | Capability::DacReadSearch.bit()
    | Capability::Fowner.bit()
    | Capability::Fsetid.bit()
    | Capability::LinuxImmutable.bit()
    | Capability::Mknod.bit()
    | Capability::MacOverride.bit();

/// Adjusts the capability sets to a change of user ids (capabilities(7), "Effect of user ID
/// changes").
pub fn after_uid_change(old: &Credentials, new: &mut Credentials) {
    if new.securebits & securebits::NO_SETUID_FIXUP != 0 {
        return;
    }
    let has_root = |c: &Credentials| [c.uid, c.euid, c.suid].contains(&0);
    if has_root(old) && !has_root(new) {
        if new.securebits & securebits::KEEP_CAPS == 0 {
            new.permitted = 0;
            new.effective = 0;
        }
        new.ambient = 0;
    }
    if old.euid == 0 && new.euid != 0 {
        new.effective = 0;
    } else if old.euid != 0 && new.euid == 0 {
        new.effective = new.permitted;
    }
    if old.fsuid == 0 && new.fsuid != 0 {
        new.effective &= !FILE_SYSTEM;
    } else if old.fsuid != 0 && new.fsuid == 0 {
        new.effective |= new.permitted & FILE_SYSTEM;
    }
}

/// Capabilities after execve(2) of a file without capabilities of its own, run by these ids.
pub fn after_exec(new: &mut Credentials) {
    let is_root = new.securebits & securebits::NOROOT == 0 && (new.uid == 0 || new.euid == 0);
    if is_root {
        new.permitted = new.inheritable | new.bounding;
        new.effective = if new.euid == 0 { new.permitted } else { 0 };
        new.ambient = 0;
    } else {
        new.permitted = new.ambient;
        new.effective = new.ambient;
    }
    new.securebits &= !securebits::KEEP_CAPS;
    new.suid = new.euid;
    new.sgid = new.egid;
    (new.fsuid, new.fsgid) = (new.euid, new.egid);
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// One 32-bit half of the three sets.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Reads the header; how many halves the data has. An unknown version is answered with the one
/// preferred, EINVAL.
fn read_header(address: u64) -> Result<(Header, usize)> {
    let pointer = UserPtr::<Header>::new(address);
    let header = pointer.read()?;
    match header.version {
        raw::_LINUX_CAPABILITY_VERSION_1 => Ok((header, 1)),
        raw::_LINUX_CAPABILITY_VERSION_2 | raw::_LINUX_CAPABILITY_VERSION_3 => Ok((header, 2)),
        _ => {
            pointer.cast().write(&raw::_LINUX_CAPABILITY_VERSION_3)?;
            Err(Errno::EINVAL)
        }
    }
}

fn credentials_of(pid: i32) -> Result<Arc<Credentials>> {
    match pid {
        0 => Ok(current().process.credentials()),
        1.. => find_by_tid(pid as u32).map(|process| process.credentials()).ok_or(Errno::ESRCH),
        _ => Err(Errno::EINVAL),
    }
}

/// capget(2).
pub fn capget(args: &Args) -> Result<u64> {
    let (header, halves) = match read_header(args.a0()) {
        // With a null pointer for the data this is how programs ask for the version.
        Err(Errno::EINVAL) if args.a1() == 0 => return Ok(0),
        result => result?,
    };
    let credentials = credentials_of(header.pid)?;
    let half = |i: usize| Data {
        effective: (credentials.effective >> (32 * i)) as u32,
        permitted: (credentials.permitted >> (32 * i)) as u32,
        inheritable: (credentials.inheritable >> (32 * i)) as u32,
    };
    if args.a1() != 0 {
        UserPtr::<Data>::new(args.a1()).write_many(&[half(0), half(1)][..halves])?;
    }
    Ok(0)
}

/// capset(2).
pub fn capset(args: &Args) -> Result<u64> {
    let (header, halves) = read_header(args.a0())?;
    let process = &current().process;
    let own =
        header.pid == 0 || header.pid as u32 == process.pid || header.pid as u32 == current().tid();
    if !own {
        return Err(Errno::EPERM);
    }
    let data = UserPtr::<Data>::new(args.a1()).read_many(halves)?;
    let join = |part: fn(&Data) -> u32| {
        let sets = data.iter().enumerate().map(|(i, half)| u64::from(part(half)) << (32 * i));
        sets.fold(0, |all, half| all | half) & ALL_CAPABILITIES
    };
    let old = process.subject();
    let mut new = Credentials::clone(&old);
    new.effective = join(|half| half.effective);
    new.permitted = join(|half| half.permitted);
    new.inheritable = join(|half| half.inheritable);
    let may_add = old.permitted | if old.capable(Capability::Setpcap) { old.bounding } else { 0 };
    let grows = |set: u64, limit: u64| set & !limit != 0;
    if grows(new.inheritable, old.inheritable | may_add)
        || grows(new.inheritable, old.inheritable | old.bounding)
        || grows(new.permitted, old.permitted)
        || grows(new.effective, new.permitted)
    {
        return Err(Errno::EPERM);
    }
    new.ambient &= new.permitted & new.inheritable;
    process.set_credentials(new);
    Ok(0)
}
