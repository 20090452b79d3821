//! Restartable sequences (rseq(2)): a few instructions of a program that work on data of its CPU,
//! and begin again if the thread was taken off that CPU in their midst.
//!
//! Why it is hard: the thread's area tells the CPU, so it must be right whenever the program runs;
//! and what has to begin again is known only when the thread is about to return to it, from an
//! interrupt that preempted it or into a signal's handler. So two events leave work for the return:
//! the switch to a thread that ran on another CPU last
//! ([`crate::base::thread::Thread::watches_cpu`]), and a preemption, which is itself part of that
//! work (`signal::return_work`). A wait in a page fault leaves it, too (`signal::fault`); one in a
//! system call on the same CPU does not: calls are not allowed in a sequence.

use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use entry::PtRegs;
use machine::memory::USER_END;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Thread, current, work};
use crate::base::user::UserPtr;
use crate::process::signal::{SigInfo, send};

/// `struct rseq` as the first programs knew it: 32 bytes, of which 28 are used.
pub const AREA_BYTES: u32 = 32;
/// Bytes with a meaning, and how the area is aligned (AT_RSEQ_FEATURE_SIZE, AT_RSEQ_ALIGN).
pub const FEATURE_BYTES: u32 = 28;
/// See [`FEATURE_BYTES`].
pub const ALIGN: u32 = 32;
/// The flag of rseq(2) that ends a registration.
const UNREGISTER: u32 = 1;
/// What the area says of the CPU before it is known.
const UNINITIALIZED: u32 = u32::MAX;
/// Where in the area the current sequence stands, and the flags behind it.
const SEQUENCE_AT: u64 = 8;
const FLAGS_AT: u64 = 16;
const NODE_AT: u64 = 20;

/// `struct rseq_cs`: where a sequence begins, how long it is, where to go if it is given up.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Sequence {
    version: u32,
    flags: u32,
    start: u64,
    length: u64,
    abort: u64,
}

/// rseq(2).
pub fn rseq(area: u64, length: u32, flags: u32, signature: u32) -> Result<u64> {
    let thread = current();
    let known = thread.rseq.area.load(Ordering::Relaxed);
    let is_same = area == known && length == thread.rseq.length.load(Ordering::Relaxed);
    let is_signed = signature == thread.rseq.signature.load(Ordering::Relaxed);
    if flags & UNREGISTER != 0 {
        return match () {
            () if flags != UNREGISTER || known == 0 || !is_same => Err(Errno::EINVAL),
            () if !is_signed => Err(Errno::EPERM),
            () => unregister(&thread, area),
        };
    }
    match () {
        () if flags != 0 || known != 0 && !is_same => return Err(Errno::EINVAL),
        () if known != 0 && !is_signed => return Err(Errno::EPERM),
        () if known != 0 => return Err(Errno::EBUSY),
        () if length < FEATURE_BYTES.max(AREA_BYTES) || !area.is_multiple_of(ALIGN.into()) => {
            return Err(Errno::EINVAL);
        }
        () => {}
    }
    if !UserPtr::<u8>::new(area).is_user_range(length as usize) {
        return Err(Errno::EFAULT);
    }
    thread.rseq.length.store(length, Ordering::Relaxed);
    thread.rseq.signature.store(signature, Ordering::Relaxed);
    thread.rseq.area.store(area, Ordering::Relaxed);
    watch(&thread, true);
    Ok(0)
}

/// Has the scheduler tell of other CPUs; the first of them is where the thread is now.
fn watch(thread: &Thread, watches: bool) {
    thread.rseq.told_cpu.store(UNINITIALIZED, Ordering::Relaxed);
    thread.base.watches_cpu.store(watches, Ordering::Relaxed);
    if watches {
        thread.task().set_work(work::RSEQ);
    }
}

fn unregister(thread: &Thread, area: u64) -> Result<u64> {
    write_cpu(area, 0, UNINITIALIZED, 0)?;
    forget(thread);
    Ok(0)
}

/// The thread has no area: it has none any more, or executes another program.
pub fn forget(thread: &Thread) {
    thread.rseq.area.store(0, Ordering::Relaxed);
    watch(thread, false);
}

/// A child's memory is a copy of its parent's, and so the area is there, too.
pub fn inherit(parent: &Thread, child: &Thread) {
    let area = parent.rseq.area.load(Ordering::Relaxed);
    if area == 0 {
        return;
    }
    child.rseq.length.store(parent.rseq.length.load(Ordering::Relaxed), Ordering::Relaxed);
    child.rseq.signature.store(parent.rseq.signature.load(Ordering::Relaxed), Ordering::Relaxed);
    child.rseq.area.store(area, Ordering::Relaxed);
    watch(child, true);
}

/// Writes the CPU by both of its names, the node, and the id that no other running thread of the
/// process has, which is the CPU's.
fn write_cpu(area: u64, start: u32, cpu: u32, concurrency: u32) -> Result<()> {
    UserPtr::<[u32; 2]>::new(area).write(&[start, cpu])?;
    UserPtr::<[u32; 2]>::new(area + NODE_AT).write(&[0, concurrency])
}

/// The thread goes back to its program after it was preempted, came to another CPU, or has a signal
/// to handle: what it was in the midst of begins again, and the area is made right. A program whose
/// area cannot be used gets SIGSEGV.
pub fn before_return(regs: &mut PtRegs) {
    let thread = current();
    let area = thread.rseq.area.load(Ordering::Relaxed);
    if area == 0 {
        return;
    }
    let signature = thread.rseq.signature.load(Ordering::Relaxed);
    let done = give_up(area, signature, regs).and_then(|()| tell_cpu(&thread, area));
    if done.is_err() {
        send::force(SigInfo::kernel(abi::general::SIGSEGV));
    }
}

/// Makes the area say where the thread is, unless it does.
fn tell_cpu(thread: &Thread, area: u64) -> Result<()> {
    let cpu = machine::percpu::cpu_id() as u32;
    if thread.rseq.told_cpu.load(Ordering::Relaxed) == cpu {
        return Ok(());
    }
    write_cpu(area, cpu, cpu, cpu)?;
    thread.rseq.told_cpu.store(cpu, Ordering::Relaxed);
    Ok(())
}

/// Sends the thread to where its sequence is given up, if it is within one; forgets the sequence.
fn give_up(area: u64, signature: u32, regs: &mut PtRegs) -> Result<()> {
    let field = UserPtr::<u64>::new(area + SEQUENCE_AT);
    let at = field.read()?;
    if at == 0 {
        return Ok(());
    }
    let sequence = UserPtr::<Sequence>::new(at).read()?;
    let end = sequence.start.checked_add(sequence.length).filter(|&end| end <= USER_END);
    let is_inside = |ip: u64| ip.wrapping_sub(sequence.start) < sequence.length;
    let is_bad = end.is_none()
        || sequence.version != 0
        || sequence.start >= USER_END
        || sequence.abort >= USER_END
        || is_inside(sequence.abort);
    if is_bad {
        return Err(Errno::EINVAL);
    }
    let before = UserPtr::<u32>::new(sequence.abort.wrapping_sub(4)).read()?;
    let flags = sequence.flags | UserPtr::<u32>::new(area + FLAGS_AT).read()?;
    if before != signature {
        return Err(Errno::EINVAL);
    }
    if !is_inside(regs.rip) {
        return field.write(&0);
    }
    // Flags once kept a sequence going; nobody may want that any more.
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    field.write(&0)?;
    regs.rip = sequence.abort;
    Ok(())
}
