//! The end: a failed invariant stops all CPUs, says what and where, and leaves the machine.
//!
//! The report is made of lines that the command line knows: `limen: panic: …`, then one line for
//! each frame of the backtrace, `  #N 0xffffffff8…`, which it turns into names.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use entry::PtRegs;

use crate::context_tracking::ipi;
use crate::cpu::percpu::PerCpu;
use crate::cpu::{self, linked, log, percpu, power};
use crate::memory;
use crate::memory::stack::{self, KERNEL_STACK_SIZE};

/// The CPU that panicked first, plus one; 0: none.
static PANICKING: AtomicU32 = AtomicU32::new(0);
static STOPPED: AtomicU32 = AtomicU32::new(0);
static NESTED: AtomicBool = AtomicBool::new(false);
const MAX_FRAMES: usize = 48;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let rbp: u64;
    // SAFETY: reading RBP has no effect.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack)) };
    match info.location() {
        Some(place) => report(
            format_args!("{} at {}:{}", info.message(), place.file(), place.line()),
            rbp,
            None,
        ),
        None => report(format_args!("{}", info.message()), rbp, None),
    }
}

/// An exception of the kernel itself that nothing can repair.
pub(crate) fn kernel_exception(regs: &PtRegs, vector: u8, address: u64) -> ! {
    let hint = if stack::is_stack_guard(address) { " (kernel stack overflow)" } else { "" };
    report(
        format_args!(
            "kernel exception {vector}, error {:#x}, address {address:#x}{hint}, rip {:#x}, \
             rsp {:#x}, rax {:#x}, rdi {:#x}, rsi {:#x}, r10 {:#x}, r11 {:#x}",
            regs.orig_rax,
            linked(regs.rip),
            regs.rsp,
            regs.rax,
            regs.rdi,
            regs.rsi,
            regs.r10,
            regs.r11
        ),
        regs.rbp,
        Some(regs.rip),
    )
}

/// A failed invariant at the place where `regs` was interrupted.
pub(crate) fn at(message: fmt::Arguments<'_>, regs: &PtRegs) -> ! {
    report(message, regs.rbp, Some(regs.rip))
}

/// Logs how the kernel came to where `regs` was interrupted.
pub(crate) fn backtrace_of(regs: &PtRegs) {
    backtrace(regs.rbp, Some(regs.rip));
}

fn report(message: fmt::Arguments<'_>, rbp: u64, rip: Option<u64>) -> ! {
    cpu::irq_disable();
    let me = percpu::cpu_id() as u32 + 1;
    if let Err(first) = PANICKING.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst) {
        if first != me {
            STOPPED.fetch_add(1, Ordering::SeqCst);
            cpu::halt_forever();
        }
        if NESTED.swap(true, Ordering::SeqCst) {
            power::off(power::PANIC);
        }
    }
    let others = (0..cpu::cpu_count()).filter(|&cpu| cpu as u32 + 1 != me);
    for cpu in others.clone() {
        ipi::send_nmi(cpu);
    }
    let mut polls = 0u32;
    while (STOPPED.load(Ordering::SeqCst) as usize) < others.clone().count() && polls < 50_000_000 {
        core::hint::spin_loop();
        polls += 1;
    }
    log::force_unlock();
    log::write(format_args!("limen: panic: {message} (cpu {})", me - 1));
    backtrace(rbp, rip);
    power::off(power::PANIC)
}

/// An NMI: another CPU panicked, or somebody wants to know where this one is.
pub(crate) fn nmi(regs: &PtRegs) {
    #[cfg(feature = "ktest")]
    crate::ktest::on_nmi();
    if PANICKING.load(Ordering::SeqCst) != 0 {
        STOPPED.fetch_add(1, Ordering::SeqCst);
        cpu::halt_forever();
    }
    ASKED.get().store(false, Ordering::SeqCst);
    if WANT_TRACE.swap(false, Ordering::SeqCst) {
        log::force_unlock();
        log::write(format_args!("limen: cpu {} is at:", percpu::cpu_id()));
        if regs.cs & 3 == 0 {
            backtrace(regs.rbp, Some(regs.rip));
        } else {
            log::write(format_args!("  user rip {:#x}", regs.rip));
        }
        TRACED.store(true, Ordering::SeqCst);
    }
}

static ASKED: PerCpu<AtomicBool> =
    PerCpu::from_array([const { AtomicBool::new(false) }; cpu::MAX_CPUS]);

/// Asks CPU `cpu` for a sign of life, by an NMI: whether it gave one is [`answers`].
pub fn ask(cpu: usize) {
    ASKED.of(cpu).store(true, Ordering::SeqCst);
    ipi::send_nmi(cpu);
}

/// Whether CPU `cpu` has answered since it was asked last.
#[must_use]
pub fn answers(cpu: usize) -> bool {
    !ASKED.of(cpu).load(Ordering::SeqCst)
}

static WANT_TRACE: AtomicBool = AtomicBool::new(false);
static TRACED: AtomicBool = AtomicBool::new(false);

/// Prints where every other CPU is, then panics: for the watchdog.
pub fn stuck(message: fmt::Arguments<'_>) -> ! {
    for cpu in (0..cpu::cpu_count()).filter(|&cpu| cpu != percpu::cpu_id()) {
        TRACED.store(false, Ordering::SeqCst);
        WANT_TRACE.store(true, Ordering::SeqCst);
        ipi::send_nmi(cpu);
        let mut polls = 0u32;
        while !TRACED.load(Ordering::SeqCst) && polls < 50_000_000 {
            core::hint::spin_loop();
            polls += 1;
        }
    }
    panic!("{message}");
}

/// Follows the frame pointers, as far as they stay on a kernel stack.
fn backtrace(mut rbp: u64, rip: Option<u64>) {
    let mut number = 0;
    if let Some(rip) = rip {
        log::write(format_args!("  #{number} {:#x}", linked(rip)));
        number += 1;
    }
    while number < MAX_FRAMES && is_stack_word(rbp) && is_stack_word(rbp + 8) {
        // SAFETY: both words lie in mapped kernel memory, 8-aligned.
        let [next, address] = unsafe { (rbp as *const [u64; 2]).read() };
        if address < cpu::kernel_base() {
            break;
        }
        log::write(format_args!("  #{number} {:#x}", linked(address)));
        number += 1;
        if next <= rbp || next - rbp > KERNEL_STACK_SIZE as u64 * 4 {
            break;
        }
        rbp = next;
    }
}

fn is_stack_word(at: u64) -> bool {
    at.is_multiple_of(8) && at >= memory::USER_END && {
        let rights = memory::kernel_rights(at);
        rights.present && rights.write && !rights.exec
    }
}
