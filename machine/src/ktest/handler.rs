//! What handlers find when they begin: the AC flag. Exceptions and interrupts keep that of what
//! they interrupt, and while it is set SMAP guards nothing. A program may set it; a copy from a
//! program does.
//!
//! And how they end: an exception in the handler of an NMI must not let the next NMI in, and an
//! IRET to a program whose frame is bad becomes the program's fault.
//!
//! That registers are clear is asked by `entry.S` itself, in the kernel of the tests.

use alloc::string::String;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use entry::{PtRegs, flags};

use super::{Test, probe_write, run_in_nmi};
use crate::context_tracking::ipi::{self, InterruptKind};
use crate::cpu::percpu::cpu_id;
use crate::cpu::{self, MAX_CPUS};
use crate::ensure;
use crate::entry::descriptors;
use crate::memory::uaccess::SmapOpen;

pub(super) const TESTS: &[Test] =
    &[Test { name: "handler::an_exception_in_an_nmi_keeps_nmis_out", run: exception_in_nmi }];

/// Which handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An interrupt or exception of a program.
    User,
    /// One of the kernel.
    Kernel,
    /// One that may hit anything.
    Paranoid,
}

const PLACES: usize = 3;

/// Handlers that interrupted something with AC, by place.
static OPEN_BEFORE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// Those of them that had it still.
static STILL_OPEN: AtomicU64 = AtomicU64::new(0);

/// A handler has begun, and has done what it does first.
#[inline(always)]
pub(crate) fn began(regs: &PtRegs, place: Place) {
    if regs.rflags & flags::AC != 0 {
        look(place);
    }
}

#[cold]
fn look(place: Place) {
    OPEN_BEFORE[place as usize].fetch_add(1, Ordering::SeqCst);
    let still = cpu::read_flags() & flags::AC != 0;
    STILL_OPEN.fetch_add(u64::from(still), Ordering::SeqCst);
}

/// Handlers that have interrupted something with AC so far, by [`Place`], and how many kept it.
pub fn seen() -> ([u64; PLACES], u64) {
    (OPEN_BEFORE.each_ref().map(|n| n.load(Ordering::SeqCst)), STILL_OPEN.load(Ordering::SeqCst))
}

/// Whether this CPU has SMAP, without which the flag opens nothing.
pub fn has_smap() -> bool {
    cpu::features().smap
}

/// Offsets of the kernel's frames from that of the program, in units of 16 bytes: one bit each.
static STACK_OFFSETS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// A system call has begun, with this frame of the program.
#[inline(always)]
pub(crate) fn called(regs: &PtRegs) {
    let rsp: u64;
    // SAFETY: reading RSP has no effect.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack)) };
    let distance = (&raw const *regs as u64 - rsp) / 16;
    STACK_OFFSETS.fetch_or(1 << (distance % 64), Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// System calls so far.
pub fn calls() -> u64 {
    CALLS.load(Ordering::SeqCst)
}

/// How many offsets were seen since the last look.
pub fn stack_offsets() -> u32 {
    STACK_OFFSETS.swap(0, Ordering::SeqCst).count_ones()
}

/// Looks that are given up after so many.
const PATIENCE: u64 = 4_000_000_000;

/// Waits with user memory open for an interrupt and an NMI of this CPU. False: none came.
pub fn interrupt_while_open() -> bool {
    let before = seen().0;
    let open = SmapOpen::new();
    let came = |place: Place| seen().0[place as usize] > before[place as usize];
    let is_hit = run_in_nmi(|| {}) && (0..PATIENCE).any(|_| came(Place::Kernel));
    drop(open);
    is_hit && came(Place::Paranoid)
}

/// Exceptions in the handler of one NMI.
const EXCEPTIONS: usize = 20;
/// NMIs that came in the middle of a handler.
static NESTED: AtomicU64 = AtomicU64::new(0);
/// Faults that were seen there.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// In an NMI: the next one is on its way, and an exception comes and goes.
fn fault_in_nmi() {
    let nmis = || ipi::received(cpu_id(), InterruptKind::Nmi).0;
    let before = nmis();
    for _ in 0..EXCEPTIONS {
        ipi::send_nmi(cpu_id());
        // The page of the alias of text is not mapped.
        FAULTS.fetch_add(u64::from(!probe_write(crate::memory::text_alias())), Ordering::SeqCst);
    }
    NESTED.fetch_add(nmis() - before, Ordering::SeqCst);
}

fn exception_in_nmi() -> Result<(), String> {
    let before = ipi::received(cpu_id(), InterruptKind::Nmi).0;
    ensure!(run_in_nmi(fault_in_nmi), "the NMI did not come");
    let faults = FAULTS.load(Ordering::SeqCst);
    ensure!(faults >= EXCEPTIONS as u64, "{faults} faults in the handler");
    let nested = NESTED.load(Ordering::SeqCst);
    ensure!(nested == 0, "{nested} NMIs came in the middle of a handler");
    let came = || ipi::received(cpu_id(), InterruptKind::Nmi).0 >= before + 2;
    ensure!((0..PATIENCE).any(|_| came()), "the NMI that waited has not come");
    Ok(())
}

/// What is wrong with a frame that IRET is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Bad {
    /// The code segment's selector: #GP.
    Selector = 1,
    /// The code segment is not present: #NP.
    Code = 2,
    /// The stack segment is not present: #SS.
    Stack = 3,
}

/// CPUs whose next IRET to a program is to fault: 0, or a [`Bad`].
static SPOIL: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// A selector beyond the end of the GDT: IRET gives #GP (SDM 2A).
const NO_SELECTOR: u64 = 0xff03;

/// Makes the next return to a program by IRET on CPU `cpu` one that faults.
pub fn spoil_next(cpu: usize, how: Bad) {
    SPOIL[cpu].store(how as u32, Ordering::SeqCst);
}

/// Whether [`spoil_next`] still waits for its IRET.
pub fn is_to_be_spoiled(cpu: usize) -> bool {
    SPOIL[cpu].load(Ordering::SeqCst) != 0
}

/// The frame was found good, and IRET is next.
pub(crate) fn spoil(regs: &mut PtRegs) {
    match SPOIL[cpu_id()].swap(0, Ordering::SeqCst) {
        1 => regs.cs = NO_SELECTOR,
        2 => regs.cs = descriptors::ABSENT_CS,
        3 => regs.ss = descriptors::ABSENT_DS,
        _ => {}
    }
}
