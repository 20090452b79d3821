//! What a tracer learns of its tracee's seccomp filters (ptrace(2), PTRACE_SECCOMP_GET_FILTER and
//! PTRACE_SECCOMP_GET_METADATA): what a program that is saved and restored needs.
//!
//! Neighbour: `process::seccomp` has the filters.

use abi::{Errno, Result, ptrace as raw};
use zerocopy::IntoBytes;

use crate::base::user::UserPtr;
use crate::process::{Thread, current};
use crate::security::Capability;

pub(super) const GET_FILTER: u32 = 0x420c;
pub(super) const GET_METADATA: u32 = 0x420d;

/// EACCES for who has filters itself, or may not administrate.
fn check_tracer() -> Result<()> {
    let own = current();
    let is_free = own.seccomp.summary().0 == raw::SECCOMP_MODE_DISABLED;
    let may = own.process.subject().capable(Capability::SysAdmin);
    if is_free && may { Ok(()) } else { Err(Errno::EACCES) }
}

/// Copies the instructions of a filter to `to`, unless that is 0; how many there are. The oldest
/// filter is number 0. EACCES, EINVAL where there are none, ENOENT.
pub(super) fn get_filter(thread: &Thread, number: u64, to: u64) -> Result<u64> {
    check_tracer()?;
    let (instructions, _) = thread.seccomp.filter(number)?;
    if to != 0 {
        let bytes: alloc::vec::Vec<[u8; 8]> = instructions.iter().map(encoded).collect();
        UserPtr::<[u8; 8]>::new(to).write_many(&bytes)?;
    }
    Ok(instructions.len() as u64)
}

/// `struct sock_filter`.
fn encoded(insn: &seccomp::Insn) -> [u8; 8] {
    let [c0, c1] = insn.code.to_ne_bytes();
    let [k0, k1, k2, k3] = insn.k.to_ne_bytes();
    [c0, c1, insn.jt, insn.jf, k0, k1, k2, k3]
}

/// Fills `struct seccomp_metadata`: a filter's number in, its flags out, as far as `size` goes.
pub(super) fn get_metadata(thread: &Thread, size: u64, at: u64) -> Result<u64> {
    check_tracer()?;
    let size = size.min(16) as usize;
    if size < size_of::<u64>() {
        return Err(Errno::EINVAL);
    }
    let number = UserPtr::<u64>::new(at).read()?;
    let (_, logs) = thread.seccomp.filter(number)?;
    let flags = if logs { u64::from(raw::SECCOMP_FILTER_FLAG_LOG) } else { 0 };
    UserPtr::<u8>::new(at).write_bytes(&[number, flags].as_bytes()[..size])?;
    Ok(size as u64)
}
