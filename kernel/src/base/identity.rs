//! What the kernel says it is (uname(2), /proc/version, /proc/sys/kernel), and the two names that
//! programs can set.

use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::sync::SpinLock;

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
