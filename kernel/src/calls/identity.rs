//! The calls about the system as a whole: uname(2), sethostname(2), setdomainname(2), sysinfo(2).

use alloc::vec::Vec;

use abi::{Errno, Result};
use zerocopy::{Immutable, IntoBytes};

use crate::base::identity::{
    MACHINE, NAME_MAX, RELEASE, SYSNAME, VERSION, domainname, hostname, set_domainname,
    set_hostname,
};
use crate::base::time::{NS_PER_SEC, now_ns};
use crate::base::user::UserPtr;
use crate::process::all_processes;
use crate::process::current;
use crate::procfs::load_averages;
use crate::security::Capability;

/// `struct new_utsname` (uname(2)).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct UtsName {
    fields: [[u8; NAME_MAX + 1]; 6],
}

/// uname(2).
pub fn uname(name_at: u64) -> Result<u64> {
    let mut name = UtsName { fields: [[0; NAME_MAX + 1]; 6] };
    let (host, domain) = (hostname(), domainname());
    let values = [
        SYSNAME.as_bytes(),
        &host,
        RELEASE.as_bytes(),
        VERSION.as_bytes(),
        MACHINE.as_bytes(),
        &domain,
    ];
    for (field, value) in name.fields.iter_mut().zip(values) {
        let len = value.len().min(NAME_MAX);
        field[..len].copy_from_slice(&value[..len]);
    }
    UserPtr::new(name_at).write(&name)?;
    Ok(0)
}

fn read_name(at: UserPtr<u8>, len: i32) -> Result<Vec<u8>> {
    if !current().subject().capable(Capability::SysAdmin) {
        return Err(Errno::EPERM);
    }
    if len as usize > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    at.read_many(len as usize)
}

/// sethostname(2).
pub fn sethostname(name: UserPtr<u8>, len: i32) -> Result<u64> {
    set_hostname(&read_name(name, len)?)?;
    Ok(0)
}

/// setdomainname(2).
pub fn setdomainname(name: UserPtr<u8>, len: i32) -> Result<u64> {
    set_domainname(&read_name(name, len)?)?;
    Ok(0)
}

/// `struct sysinfo` (sysinfo(2)).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SysInfo {
    uptime_s: i64,
    loads: [u64; 3],
    total: u64,
    free: u64,
    shared: u64,
    buffers: u64,
    total_swap: u64,
    free_swap: u64,
    processes: u16,
    padding: [u8; 6],
    total_high: u64,
    free_high: u64,
    unit_bytes: u32,
    tail: [u8; 4],
}

const _: () = assert!(size_of::<SysInfo>() == 112);

/// sysinfo(2).
pub fn sysinfo(info_at: u64) -> Result<u64> {
    let (total, free) = machine::frame::usage();
    let threads: usize = all_processes().iter().map(|process| process.threads.lock().len()).sum();
    let info = SysInfo {
        uptime_s: (now_ns() / NS_PER_SEC) as i64,
        // Fixed point with 16 bits behind the point.
        loads: load_averages().map(|thousandths| (thousandths << 16) / 1000),
        total: total as u64 * 4096,
        free: free as u64 * 4096,
        shared: 0,
        buffers: 0,
        total_swap: 0,
        free_swap: 0,
        processes: threads.min(usize::from(u16::MAX)) as u16,
        padding: [0; 6],
        total_high: 0,
        free_high: 0,
        unit_bytes: 1,
        tail: [0; 4],
    };
    UserPtr::new(info_at).write(&info)?;
    Ok(0)
}
