//! Starting the other CPUs: INIT, SIPI, SIPI (SDM 3A, 9.4), one after the other.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::cpu::{self, MAX_CPUS, apic, clock, cr, msr, percpu};
use crate::device::platform;
use crate::entry::shadow_stack;
use crate::memory::frame::{OutOfMemory, phys_to_virt};
use crate::memory::stack::KernelStack;
use crate::{boot, memory};

/// The page below 1 MiB that the trampoline is copied to; `boot` keeps the first MiB unused.
const TRAMPOLINE: u64 = 0x8000;
/// How long to wait for a CPU to arrive, in steps of 100 microseconds: 5 s, emulation is slow.
const MAX_WAIT_STEPS: u32 = 50_000;

static ARRIVED: AtomicU32 = AtomicU32::new(1);

/// Where the table of shadow stacks of the CPU that starts is; its first word is the token of that
/// with which it begins. 0: there are none.
static SHADOW_STACKS: AtomicU64 = AtomicU64::new(0);

global_asm!(
    r#"
    // smp_other_cpu(rdi: number of this CPU), from the trampoline
    // On its own empty stack, GS its own, no IDT, IF=0. Checks returns before the first of them,
    // for they may go to a thunk that wants a shadow stack (text/untrain.rs). As
    // `cpu::shadow_stack::prepare` and `begin`, which return.
    .pushsection .text.smp_other_cpu, "ax", @progbits
    .globl smp_other_cpu
    .type smp_other_cpu, @function
    smp_other_cpu:
        mov {SHADOW_STACKS}(%rip), %rsi
        test %rsi, %rsi
        jz 1f
        mov (%rsi), %rax
        mov %rax, %rdx
        shr $32, %rdx
        mov ${PL0_SSP}, %ecx
        wrmsr
        mov %rsi, %rax
        mov %rsi, %rdx
        shr $32, %rdx
        mov ${INT_SSP_TAB}, %ecx
        wrmsr
        mov %cr4, %rax
        or ${CR4_CET}, %rax
        mov %rax, %cr4
        mov ${SHADOW_STACK}, %eax
        xor %edx, %edx
        mov ${S_CET}, %ecx
        wrmsr
        setssbsy
    1:  jmp {boot_other_cpu}
        int3
    .size smp_other_cpu, . - smp_other_cpu
    .popsection
    "#,
    SHADOW_STACKS = sym SHADOW_STACKS,
    boot_other_cpu = sym boot::boot_other_cpu,
    PL0_SSP = const msr::PL0_SSP,
    INT_SSP_TAB = const msr::INT_SSP_TAB,
    S_CET = const msr::S_CET,
    CR4_CET = const cr::CR4_CET,
    SHADOW_STACK = const cr::S_CET_SHADOW_STACK,
    options(att_syntax)
);

unsafe extern "C" {
    static smp_other_cpu: u8;
    static ap_trampoline_start: u8;
    static ap_trampoline_end: u8;
    static ap_gdt: u8;
    static ap_gdt_base: u8;
    static ap_protected_mode: u8;
    static ap_long_mode: u8;
    static ap_jump_32: u8;
    static ap_jump_64: u8;
    static ap_mailbox_cr3: u8;
    static ap_mailbox_stack: u8;
    static ap_mailbox_cpu: u8;
    static ap_mailbox_gs: u8;
    static ap_mailbox_entry: u8;
}

/// Starts every CPU the platform lists, up to [`MAX_CPUS`]. One that does not answer is left out,
/// with a warning.
pub(crate) fn start_others() {
    let mine = apic::id();
    let others = platform::cpus().iter().copied().filter(|&id| id != mine && may_run(id));
    if others.clone().next().is_none() {
        return;
    }
    let Ok(root) = memory::trampoline_root() else {
        crate::log!("no memory to start other CPUs");
        return;
    };
    for (i, apic_id) in others.enumerate() {
        let cpu = cpu::cpu_count();
        if cpu == MAX_CPUS {
            crate::log!("more than {MAX_CPUS} CPUs: {} and later are not used", i + 1);
            break;
        }
        percpu::of(cpu).apic_id.set(apic_id);
        match start(cpu, apic_id, root) {
            Ok(true) => {}
            Ok(false) => crate::log!("CPU with APIC id {apic_id} does not start; going on without"),
            Err(OutOfMemory) => {
                crate::log!("no memory to start more than {cpu} CPUs");
                break;
            }
        }
    }
}

/// Whether the CPU may run beside the others: with `nosmt`, only the first thread of each core. The
/// lowest bits of an APIC id number the threads of a core (SDM 3A, 9.9.3; CPUID leaf 0xb).
fn may_run(apic_id: u32) -> bool {
    if !crate::mitigations::plan().one_thread_per_core {
        return true;
    }
    let thread_bits = if cpu::cpuid(0, 0)[0] >= 0xb { cpu::cpuid(0xb, 0)[0] & 0x1f } else { 0 };
    apic_id & ((1 << thread_bits) - 1) == 0
}

/// Called by a CPU when it has its own descriptors and APIC.
pub(crate) fn arrived() {
    ARRIVED.fetch_add(1, Ordering::Release);
}

fn start(cpu: usize, apic_id: u32, root: u64) -> Result<bool, OutOfMemory> {
    let stack = KernelStack::new()?;
    SHADOW_STACKS.store(shadow_stack::prepare_other(cpu, &stack), Ordering::Relaxed);
    fill_trampoline(root, stack.top(), cpu);
    // The CPU keeps the stack as its boot thread's.
    core::mem::forget(stack);
    let before = ARRIVED.load(Ordering::Acquire);
    cpu::set_cpu_count(cpu as u32 + 1);
    apic::send_init(apic_id);
    clock::busy_wait_us(10_000);
    for _ in 0..2 {
        apic::send_startup(apic_id, (TRAMPOLINE >> 12) as u8);
        clock::busy_wait_us(200);
        if ARRIVED.load(Ordering::Acquire) > before {
            break;
        }
    }
    for _ in 0..MAX_WAIT_STEPS {
        if ARRIVED.load(Ordering::Acquire) > before {
            return Ok(true);
        }
        clock::busy_wait_us(100);
    }
    cpu::set_cpu_count(cpu as u32);
    Ok(false)
}

fn fill_trampoline(root: u64, stack: u64, cpu: usize) {
    let start = &raw const ap_trampoline_start;
    let page = phys_to_virt(TRAMPOLINE);
    let at = |symbol: *const u8| (symbol as u64 - start as u64) as usize;
    // The boot section lies at its physical address, which only the direct map reaches now.
    let source = phys_to_virt(start as u64);
    let len = at(&raw const ap_trampoline_end);
    assert!(len <= 4096, "the trampoline is larger than its page");
    // SAFETY: the page is below 1 MiB, which nobody else uses, and the code fits (checked).
    unsafe { core::ptr::copy_nonoverlapping(source, page, len) };
    let put32 = |symbol: *const u8, value: u64| {
        let word = page.wrapping_add(at(symbol)).cast::<u32>();
        // SAFETY: the word lies inside the page; the CPU that reads it starts after these stores.
        unsafe { word.write_unaligned(value as u32) };
    };
    let put64 = |symbol: *const u8, value: u64| {
        let word = page.wrapping_add(at(symbol)).cast::<u64>();
        // SAFETY: as in `put32`: the word lies inside the page.
        unsafe { word.write_unaligned(value) };
    };
    let phys = |symbol: *const u8| TRAMPOLINE + at(symbol) as u64;
    put32(&raw const ap_gdt_base, phys(&raw const ap_gdt));
    put32(&raw const ap_jump_32, phys(&raw const ap_protected_mode));
    put32(&raw const ap_jump_64, phys(&raw const ap_long_mode));
    put64(&raw const ap_mailbox_cr3, root);
    put64(&raw const ap_mailbox_stack, stack);
    put64(&raw const ap_mailbox_cpu, cpu as u64);
    put64(&raw const ap_mailbox_gs, core::ptr::from_ref(percpu::of(cpu)) as u64);
    put64(&raw const ap_mailbox_entry, (&raw const smp_other_cpu) as u64);
}
