//! The local APIC of each CPU: interrupts between CPUs and the tick (SDM 3A, chapter 11). x2APIC
//! where the CPU has it, registers in memory otherwise.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::cpu::{features, msr, percpu, rdmsr, wrmsr};

/// The tick.
pub(crate) const VECTOR_TIMER: u8 = 0xec;
/// Execute a serialising instruction: text was patched.
pub(crate) const VECTOR_SYNC: u8 = 0xfb;
/// TLB shootdown.
pub(crate) const VECTOR_TLB: u8 = 0xfc;
/// Look at your run queue.
pub(crate) const VECTOR_RESCHEDULE: u8 = 0xfd;
/// The APIC's own "nothing after all".
pub(crate) const VECTOR_SPURIOUS: u8 = 0xff;

const ID: u32 = 0x20;
const TPR: u32 = 0x80;
const EOI: u32 = 0xb0;
const SPURIOUS: u32 = 0xf0;
const ICR_LOW: u32 = 0x300;
const ICR_HIGH: u32 = 0x310;
const LVT_TIMER: u32 = 0x320;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDE: u32 = 0x3e0;

const DIVIDE_BY_1: u32 = 0b1011;
const X2APIC_BASE: u32 = 0x800;
const ICR_PENDING: u32 = 1 << 12;
const LVT_MASKED: u32 = 1 << 16;
const LVT_DEADLINE: u32 = 2 << 17;
const DELIVERY_NMI: u32 = 4 << 8;
const DELIVERY_INIT: u32 = 5 << 8;
const DELIVERY_STARTUP: u32 = 6 << 8;
const LEVEL_ASSERT: u32 = 1 << 14;

static REGISTERS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static X2APIC: AtomicBool = AtomicBool::new(false);
/// Timer ticks (after division by 1) per nanosecond, in units of 2^-32; 0 until calibrated.
static TICKS_PER_NS: AtomicU64 = AtomicU64::new(0);

fn read(register: u32) -> u32 {
    if X2APIC.load(Ordering::Relaxed) {
        return rdmsr(X2APIC_BASE + (register >> 4)) as u32;
    }
    let at = REGISTERS.load(Ordering::Relaxed).wrapping_add(register as usize);
    // SAFETY: `init` mapped the 4 KiB of registers; reading these has no effect.
    unsafe { at.cast::<u32>().read_volatile() }
}

fn write(register: u32, value: u32) {
    if X2APIC.load(Ordering::Relaxed) {
        // SAFETY: x2APIC mode is on, and the registers are the architectural ones above.
        return unsafe { wrmsr(X2APIC_BASE + (register >> 4), u64::from(value)) };
    }
    write_mapped(register, value);
}

/// The same in xAPIC mode.
fn write_mapped(register: u32, value: u32) {
    let at = REGISTERS.load(Ordering::Relaxed).wrapping_add(register as usize);
    // SAFETY: `init` mapped the registers; what is written concerns interrupts only.
    unsafe { at.cast::<u32>().write_volatile(value) };
}

/// Maps the 4 KiB of registers by `map` (first CPU) and switches this CPU's APIC on. Returns its
/// id.
pub(crate) fn init(map: fn(u64) -> Option<*mut u8>) -> u32 {
    let base = rdmsr(msr::APIC_BASE);
    if features().x2apic {
        // SAFETY: CPUID reports x2APIC; enabling it keeps the APIC's state.
        unsafe { wrmsr(msr::APIC_BASE, base | 1 << 11 | 1 << 10) };
        X2APIC.store(true, Ordering::Relaxed);
    } else {
        // SAFETY: the global enable bit.
        unsafe { wrmsr(msr::APIC_BASE, base | 1 << 11) };
        if REGISTERS.load(Ordering::Relaxed).is_null() {
            let at = map(base & 0xf_ffff_f000).expect("memory for the APIC");
            REGISTERS.store(at, Ordering::Relaxed);
        }
    }
    write(TPR, 0);
    write(SPURIOUS, 0x100 | u32::from(VECTOR_SPURIOUS));
    init_timer();
    id()
}

/// Makes this CPU's timer one that interrupts once when it is armed, and stops it. What depends on
/// the mode is written here alone: a write to the APIC is an exit from many a virtual machine.
pub(crate) fn init_timer() {
    write(TIMER_INITIAL, 0);
    write(TIMER_DIVIDE, DIVIDE_BY_1);
    let mode = if features().tsc_deadline { LVT_DEADLINE } else { 0 };
    write(LVT_TIMER, u32::from(VECTOR_TIMER) | mode);
    stop_timer();
}

/// This CPU's APIC id.
pub(crate) fn id() -> u32 {
    if X2APIC.load(Ordering::Relaxed) { read(ID) } else { read(ID) >> 24 }
}

pub(crate) fn end_of_interrupt() {
    write(EOI, 0);
}

fn send(apic_id: u32, command: u32) {
    if X2APIC.load(Ordering::Relaxed) {
        // SAFETY: the x2APIC's interrupt command register. WRMSR to it is not serialising: MFENCE
        // makes earlier stores visible, LFENCE lets the WRMSR begin behind that (SDM 3A, 11.12.3).
        // One piece, so that nothing comes between them. It does no more than interrupt a CPU.
        unsafe {
            core::arch::asm!("mfence", "lfence", "mov $0x830, %ecx", "wrmsr",
                in("eax") command, in("edx") apic_id, out("ecx") _,
                options(att_syntax, nostack, preserves_flags));
        };
        return;
    }
    let _irq = crate::cpu::sync::IrqGuard::new();
    while read(ICR_LOW) & ICR_PENDING != 0 {
        core::hint::spin_loop();
    }
    write_mapped(ICR_HIGH, apic_id << 24);
    write_mapped(ICR_LOW, command);
}

/// Interrupts CPU `cpu` with `vector`.
pub(crate) fn send_ipi(cpu: usize, vector: u8) {
    send(percpu::of(cpu).apic_id.get(), u32::from(vector) | LEVEL_ASSERT);
}

/// Interrupts CPU `cpu` unmaskably.
pub(crate) fn send_nmi(cpu: usize) {
    send(percpu::of(cpu).apic_id.get(), DELIVERY_NMI | LEVEL_ASSERT);
}

pub(crate) fn send_init(apic_id: u32) {
    send(apic_id, DELIVERY_INIT | LEVEL_ASSERT);
}

/// Starts the CPU in real mode at `page << 12`.
pub(crate) fn send_startup(apic_id: u32, page: u8) {
    send(apic_id, DELIVERY_STARTUP | LEVEL_ASSERT | u32::from(page));
}

/// Lets this CPU's timer count down from `u32::MAX` at its full rate, without interrupts, until
/// [`init_timer`].
pub(crate) fn start_free_running() {
    write(LVT_TIMER, LVT_MASKED);
    write(TIMER_DIVIDE, DIVIDE_BY_1);
    write(TIMER_INITIAL, u32::MAX);
}

/// What is left of this CPU's timer.
pub(crate) fn timer_count() -> u32 {
    read(TIMER_CURRENT)
}

/// Sets the timer's rate, for machines without the TSC deadline.
pub(crate) fn set_timer_rate(hz: u64) {
    let rate = (u128::from(hz.max(1)) << 32) / 1_000_000_000;
    TICKS_PER_NS.store(u64::try_from(rate).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Arms this CPU's timer to interrupt once, `ns` nanoseconds from now; replaces what was armed.
pub fn arm_timer(ns: u64) {
    if features().tsc_deadline {
        return set_deadline(crate::cpu::clock::tsc_deadline(ns));
    }
    // Without a division, which takes more than all the rest.
    let rate = u128::from(TICKS_PER_NS.load(Ordering::Relaxed));
    let ticks = ((u128::from(ns) * rate) >> 32).clamp(1, u128::from(u32::MAX));
    write(TIMER_INITIAL, ticks as u32);
}

/// Lets this CPU's timer interrupt it when the TSC is there; 0: not at all. In its deadline mode.
fn set_deadline(tsc: u64) {
    // SAFETY: CPUID reports the deadline timer; it only raises our own vector. A deadline that
    // the mode's store overtakes would be ignored: MFENCE (SDM 3A, 11.5.4.1).
    unsafe {
        core::arch::asm!("mfence", "mov ${deadline}, %ecx", "wrmsr",
            deadline = const msr::TSC_DEADLINE,
            in("eax") tsc as u32, in("edx") (tsc >> 32) as u32, out("ecx") _,
            options(att_syntax, nostack, preserves_flags));
    }
}

/// Stops this CPU's timer.
pub fn stop_timer() {
    match features().tsc_deadline {
        true => set_deadline(0),
        false => write(TIMER_INITIAL, 0),
    }
}
