//! Capabilities (capabilities(7)): capget(2), capset(2). Their rules are the policy `capability`.

use abi::{Errno, Result, general as raw};
use alloc::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::user::UserPtr;
use crate::process::{current, own};
use crate::security::{ALL_CAPABILITIES, Credentials, subject_hooks};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// One 32-bit half of the three sets.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
pub struct Data {
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
        0 => Ok(current().credentials()),
        1.. => own::credentials_of(pid as u32).ok_or(Errno::ESRCH),
        _ => Err(Errno::EINVAL),
    }
}

/// capget(2).
pub fn capget(header_at: u64, data: u64) -> Result<u64> {
    let (header, halves) = match read_header(header_at) {
        // With a null pointer for the data this is how programs ask for the version.
        Err(Errno::EINVAL) if data == 0 => return Ok(0),
        result => result?,
    };
    let credentials = credentials_of(header.pid)?;
    subject_hooks::capget((&credentials,))?;
    let half = |i: usize| Data {
        effective: (credentials.effective >> (32 * i)) as u32,
        permitted: (credentials.permitted >> (32 * i)) as u32,
        inheritable: (credentials.inheritable >> (32 * i)) as u32,
    };
    if data != 0 {
        UserPtr::<Data>::new(data).write_many(&[half(0), half(1)][..halves])?;
    }
    Ok(0)
}

/// capset(2).
pub fn capset(header_at: u64, data: UserPtr<Data>) -> Result<u64> {
    let (header, halves) = read_header(header_at)?;
    let thread = current();
    if header.pid != 0 && header.pid as u32 != thread.tid() {
        return Err(Errno::EPERM);
    }
    let data = data.read_many(halves)?;
    let join = |part: fn(&Data) -> u32| {
        let sets = data.iter().enumerate().map(|(i, half)| u64::from(part(half)) << (32 * i));
        sets.fold(0, |all, half| all | half) & ALL_CAPABILITIES
    };
    let old = thread.subject();
    let mut new = Credentials::clone(&old);
    new.effective = join(|half| half.effective);
    new.permitted = join(|half| half.permitted);
    new.inheritable = join(|half| half.inheritable);
    subject_hooks::capset((&old, &new))?;
    new.ambient &= new.permitted & new.inheritable;
    own::set_credentials(thread, new);
    Ok(0)
}
