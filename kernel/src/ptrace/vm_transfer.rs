//! process_vm_readv(2) and process_vm_writev(2): copies between the caller's memory and another
//! process's.
//!
//! The bytes go through a buffer of the kernel, because no lock of an address space may be held
//! while the caller's own memory is touched: that access may fault, and the other process may be
//! the caller.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};

use crate::base::io::{IOV_MAX, IoVec, Sink, Source, read_buffers};
use crate::base::user::UserPtr;
use crate::mm::Mm;
use crate::process::find_thread;
use crate::process::ptrace::access::{self, Ids};

/// Bytes copied at once.
const CHUNK: usize = 16 << 10;

/// process_vm_readv(2).
pub fn process_vm_readv(
    pid: u32,
    local: u64,
    local_count: u64,
    remote: UserPtr<IoVec>,
    remote_count: u64,
    flags: u64,
) -> Result<u64> {
    check_flags(flags)?;
    // Before all that is wrong with the other side.
    let Some(local) = read_buffers(local, local_count)? else { return Ok(0) };
    let Some((remote, mm)) = other_side(pid, remote, remote_count)? else { return Ok(0) };
    let mut sink = Sink::user_vector(&local);
    transfer(&remote, |address, len, buffer| {
        let buffer = &mut buffer[..len.min(sink.left())];
        let allowed = mm.accessible(address, buffer.len(), false)?;
        let got = mm.read_remote(address, &mut buffer[..allowed]).map_err(unreachable)?;
        sink.put(&buffer[..got])
    })
}

/// process_vm_writev(2).
pub fn process_vm_writev(
    pid: u32,
    local: u64,
    local_count: u64,
    remote: UserPtr<IoVec>,
    remote_count: u64,
    flags: u64,
) -> Result<u64> {
    check_flags(flags)?;
    // Before all that is wrong with the other side.
    let Some(local) = read_buffers(local, local_count)? else { return Ok(0) };
    let Some((remote, mm)) = other_side(pid, remote, remote_count)? else { return Ok(0) };
    let mut source = Source::user_vector(&local);
    transfer(&remote, |address, len, buffer| {
        let buffer = &mut buffer[..len.min(source.left())];
        let allowed = mm.accessible(address, buffer.len(), true)?;
        let got = source.take(&mut buffer[..allowed])?;
        mm.write_remote(address, &buffer[..got]).map_err(unreachable)
    })
}

/// Whatever keeps a page of the other side away, it is not there.
fn unreachable(_: Errno) -> Errno {
    Errno::EFAULT
}

fn check_flags(flags: u64) -> Result<()> {
    if flags == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The other side's buffers, and its memory; none where there is nothing to move, whosever it is.
/// EINVAL, EFAULT, ESRCH, EPERM.
fn other_side(
    pid: u32,
    vector: UserPtr<IoVec>,
    count: u64,
) -> Result<Option<(Vec<IoVec>, Arc<Mm>)>> {
    if count > IOV_MAX as u64 {
        return Err(Errno::EINVAL);
    }
    // Its addresses are checked when they are used.
    let remote = vector.read_many(count as usize)?;
    if remote.iter().any(|part| part.len > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
    if remote.iter().all(|part| part.len == 0) {
        return Ok(None);
    }
    let thread = find_thread(pid).ok_or(Errno::ESRCH)?;
    let mm = access::memory(&thread.process, Ids::RealToAttach, Errno::EPERM)?;
    let mm = mm.ok_or(Errno::ESRCH)?;
    Ok(Some((remote, mm)))
}

/// Calls `step` with pieces of the other side, until one is not done in full. What was copied
/// before an error counts.
fn transfer(
    remote: &[IoVec],
    mut step: impl FnMut(u64, usize, &mut [u8]) -> Result<usize>,
) -> Result<u64> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(CHUNK).map_err(|_| Errno::ENOMEM)?;
    buffer.resize(CHUNK, 0u8);
    let mut total = 0;
    for part in remote {
        let mut done = 0;
        while done < part.len {
            let len = (part.len - done).min(CHUNK as u64) as usize;
            match step(part.base.wrapping_add(done), len, &mut buffer) {
                Ok(moved) => {
                    done += moved as u64;
                    total += moved as u64;
                    if moved < len {
                        return Ok(total);
                    }
                }
                Err(error) if total == 0 => return Err(error),
                Err(_) => return Ok(total),
            }
            crate::base::sched::yield_if_needed();
        }
    }
    Ok(total)
}
