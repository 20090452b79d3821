//! What the kernel says it is (uname(2), /proc/version, /proc/sys/kernel), and the two names that
//! programs can set.

use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::sync::SpinLock;
use zerocopy::{Immutable, IntoBytes};

use crate::base::args::Args;
use crate::base::sched::current;
use crate::base::time::{NS_PER_SEC, now_ns};
use crate::base::user::UserPtr;

/// System name: programs ask for it to know which system calls there are.
pub const SYSNAME: &str = "Linux";
/// Release: the version of Linux whose interface is served.
pub const RELEASE: &str = "6.12.0-limen";
/// Version.
pub const VERSION: &str = "#1 SMP PREEMPT";
/// Hardware.
pub const MACHINE: &str = "x86_64";
/// Longest host and domain name, bytes (uname(2)).
pub const NAME_MAX: usize = 64;

static HOST: SpinLock<Vec<u8>> = SpinLock::new(Vec::new());
static DOMAIN: SpinLock<Vec<u8>> = SpinLock::new(Vec::new());

fn get(name: &SpinLock<Vec<u8>>, default: &[u8]) -> Vec<u8> {
    let name = name.lock();
    if name.is_empty() { default.to_vec() } else { name.clone() }
}

fn set(name: &SpinLock<Vec<u8>>, to: &[u8]) -> Result<()> {
    if to.len() > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    let old = core::mem::replace(&mut *name.lock(), to.to_vec());
    drop(old);
    Ok(())
}

/// The host name.
pub fn hostname() -> Vec<u8> {
    get(&HOST, b"limen")
}

/// Changes the host name; EINVAL if it is longer than [`NAME_MAX`].
pub fn set_hostname(name: &[u8]) -> Result<()> {
    set(&HOST, name)
}

/// The domain name.
pub fn domainname() -> Vec<u8> {
    get(&DOMAIN, b"(none)")
}

/// Changes the domain name; EINVAL if it is longer than [`NAME_MAX`].
pub fn set_domainname(name: &[u8]) -> Result<()> {
    set(&DOMAIN, name)
}

/// `struct new_utsname` (uname(2)).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct UtsName {
    fields: [[u8; NAME_MAX + 1]; 6],
}

/// uname(2).
pub fn uname(args: &Args) -> Result<u64> {
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
    UserPtr::new(args.a0()).write(&name)?;
    Ok(0)
}

fn name_argument(args: &Args) -> Result<Vec<u8>> {
    const CAP_SYS_ADMIN: u32 = 21;
    if !current().process.credentials().has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if args.a1() as i32 as usize > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    UserPtr::<u8>::new(args.a0()).read_many(args.a1() as i32 as usize)
}

/// sethostname(2).
pub fn sethostname(args: &Args) -> Result<u64> {
    set_hostname(&name_argument(args)?)?;
    Ok(0)
}

/// setdomainname(2).
pub fn setdomainname(args: &Args) -> Result<u64> {
    set_domainname(&name_argument(args)?)?;
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
pub fn sysinfo(args: &Args) -> Result<u64> {
    let (total, free) = machine::frame::usage();
    let threads: usize =
        crate::process::all_processes().iter().map(|process| process.threads.lock().len()).sum();
    let info = SysInfo {
        uptime_s: (now_ns() / NS_PER_SEC) as i64,
        // Fixed point with 16 bits behind the point.
        loads: crate::procfs::load_averages().map(|thousandths| (thousandths << 16) / 1000),
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
    UserPtr::new(args.a0()).write(&info)?;
    Ok(0)
}
