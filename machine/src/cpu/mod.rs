//! The CPU: its identity, and the few instructions that have no Rust name.
//!
//! Every wrapper here is one instruction. Policy does not live here: which protections to switch on
//! is decided by [`Features`] (`features`) and applied once per CPU by [`init`].
//! References: Intel SDM volumes 2 and 3, AMD APM volume 3.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::{AtomicU32, Ordering};

mod address;
pub mod apic;
pub mod clock;
mod cr3;
mod features;
pub mod irq;
#[cfg(feature = "lockstat")]
pub mod lockstat;
pub mod log;
pub mod percpu;
pub mod pkey;
pub mod power;
mod read_mostly;
pub(crate) mod record;
pub(crate) mod sealed;
pub(crate) mod shadow_stack;
pub mod speculation;
pub(crate) mod static_key;
pub mod sync;
pub mod user_shadow_stack;

pub(crate) use address::{
    IMAGE_LINKED, KERNEL_HALF_START, VMAP_BYTES, direct_map_base, image_phys, kernel_base, linked,
    phys_to_virt, vmap_base,
};
pub use address::{PAGE_SHIFT, PAGE_SIZE, PhysAddr, USER_END};
pub use cr3::has_pti;
pub(crate) use cr3::{Cr3, USER_ROOT_BIT, set_pti, user_root};
pub(crate) use features::XCR0_PKRU;
pub use features::{Features, features, is_emulated};

/// The most CPUs one machine may have (`--smp` stops here).
pub const MAX_CPUS: usize = 16;

/// Model-specific registers that Limen touches (SDM volume 4).
pub mod msr {
    /// Local APIC base and mode.
    pub const APIC_BASE: u32 = 0x1b;
    /// Extended feature enable register.
    pub const EFER: u32 = 0xc000_0080;
    /// Segment selectors for SYSCALL and SYSRET.
    pub const STAR: u32 = 0xc000_0081;
    /// RIP for SYSCALL from 64-bit mode.
    pub const LSTAR: u32 = 0xc000_0082;
    /// RIP for SYSCALL from compatibility mode (AMD).
    pub const CSTAR: u32 = 0xc000_0083;
    /// Flags that SYSCALL clears.
    pub const FMASK: u32 = 0xc000_0084;
    /// Base of FS.
    pub const FS_BASE: u32 = 0xc000_0100;
    /// Base of GS.
    pub const GS_BASE: u32 = 0xc000_0101;
    /// The GS base that SWAPGS brings in.
    pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
    /// Where SYSENTER leads: segment, stack, address. The kernel has none.
    pub const SYSENTER_CS: u32 = 0x174;
    /// See [`SYSENTER_CS`].
    pub const SYSENTER_ESP: u32 = 0x175;
    /// See [`SYSENTER_CS`].
    pub const SYSENTER_EIP: u32 = 0x176;
    /// Page attribute table.
    pub const PAT: u32 = 0x277;
    /// What RDTSCP and RDPID return beside the time: this CPU's id.
    pub const TSC_AUX: u32 = 0xc000_0103;
    /// TSC deadline of the local APIC timer.
    pub const TSC_DEADLINE: u32 = 0x6e0;
    /// What control-flow enforcement does in programs (SDM 1, 17.1.2).
    pub const U_CET: u32 = 0x6a0;
    /// What it does in the kernel.
    pub const S_CET: u32 = 0x6a2;
    /// A program's shadow stack while the kernel runs.
    pub const PL3_SSP: u32 = 0x6a7;
    /// The shadow stack of entries from programs (SDM 1, 17.2).
    pub const PL0_SSP: u32 = 0x6a4;
    /// The table of the shadow stacks of interrupt stacks.
    pub const INT_SSP_TAB: u32 = 0x6a8;
    /// Whether SVM may be used (AMD).
    pub const VM_CR: u32 = 0xc001_0114;
    /// Where VMRUN keeps the host's state (AMD).
    pub const VM_HSAVE_PA: u32 = 0xc001_0117;
    /// What this CPU is not vulnerable to (Intel).
    pub const ARCH_CAPABILITIES: u32 = 0x10a;
    /// Restrictions of speculation that stay.
    pub const SPEC_CTRL: u32 = 0x48;
    /// Barriers for predictors.
    pub const PRED_CMD: u32 = 0x49;
    /// Revision of the microcode.
    pub const BIOS_SIGN_ID: u32 = 0x8b;
    /// Switches transactions off (Intel).
    pub const TSX_CTRL: u32 = 0x122;
    /// Switches what microcode mitigates (Intel).
    pub const MCU_OPT_CTRL: u32 = 0x123;
    /// Speculative store bypass, as a hypervisor offers it (AMD).
    pub const VIRT_SPEC_CTRL: u32 = 0xc001_011f;
    /// Configuration of loads and stores (AMD).
    pub const LS_CFG: u32 = 0xc001_1020;
}

/// Reads an MSR that is known to exist.
pub(crate) fn rdmsr(number: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: callers name architectural MSRs, or ones whose CPUID bit they checked; RDMSR of an
    // existing register changes nothing.
    unsafe {
        asm!("rdmsr", in("ecx") number, out("eax") low, out("edx") high,
             options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes an MSR.
///
/// # Safety
/// The register must exist, and the value must keep every assumption the compiler and this kernel
/// make: bases point to live structures, EFER keeps long mode and NX.
pub(crate) unsafe fn wrmsr(number: u32, value: u64) {
    // SAFETY: the caller's contract is that of this instruction.
    unsafe {
        asm!("wrmsr", in("ecx") number, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}

/// The time-stamp counter, in TSC ticks. Not ordered with other instructions.
#[inline(always)]
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: RDTSC is allowed at CPL 0 and touches only EDX:EAX.
    unsafe {
        asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The time-stamp counter, read after every earlier instruction has completed (SDM 2B, RDTSC).
#[inline(always)]
pub fn rdtsc_ordered() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: as `rdtsc`; LFENCE only waits.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high,
             options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// A random number from the CPU's generator, if it has one and that has one ready (SDM 1, 7.3.17).
pub(crate) fn rdrand() -> Option<u64> {
    // SAFETY: CPUID reports the instruction.
    if features().rdrand { unsafe { take_rdrand() } } else { None }
}

/// # Safety
/// The CPU has RDRAND.
unsafe fn take_rdrand() -> Option<u64> {
    let (value, ready): (u64, u8);
    // SAFETY: the caller says that the CPU has the instruction.
    unsafe {
        asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) ready, options(nomem, nostack));
    }
    (ready != 0).then_some(value)
}

/// A seed from the CPU's entropy source, if it has one and that has one ready (SDM 1, 7.3.17).
pub(crate) fn rdseed() -> Option<u64> {
    // SAFETY: CPUID reports the instruction.
    if features().rdseed { unsafe { take_rdseed() } } else { None }
}

/// A random number of both generators, for boot code that runs before [`init`].
pub(crate) fn early_random() -> [Option<u64>; 2] {
    let has_rdrand = cpuid(1, 0)[2] & 1 << 30 != 0;
    let has_rdseed = cpuid(0, 0)[0] >= 7 && cpuid(7, 0)[1] & 1 << 18 != 0;
    [
        // SAFETY: CPUID reports the instruction.
        if has_rdrand { unsafe { take_rdrand() } } else { None },
        // SAFETY: CPUID reports this instruction as well.
        if has_rdseed { unsafe { take_rdseed() } } else { None },
    ]
}

/// # Safety
/// The CPU has RDSEED.
unsafe fn take_rdseed() -> Option<u64> {
    let (value, ready): (u64, u8);
    // SAFETY: the caller says that the CPU has the instruction.
    unsafe {
        asm!("rdseed {}", "setc {}", out(reg) value, out(reg_byte) ready, options(nomem, nostack));
    }
    (ready != 0).then_some(value)
}

pub(crate) fn read_cr0() -> u64 {
    let value;
    // SAFETY: reading CR0 has no effect.
    unsafe { asm!("mov {}, cr0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

pub(crate) fn read_cr2() -> u64 {
    let value;
    // SAFETY: reading CR2 has no effect.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads DR6, which says why a debug exception came, and clears it: the CPU only ever sets its
/// bits.
pub(crate) fn take_dr6() -> u64 {
    let value;
    // SAFETY: reading DR6 has no effect; its cleared form (SDM 3B, 17.2.3) says "no cause".
    unsafe {
        asm!("mov {0}, dr6", "mov dr6, {1}", out(reg) value, in(reg) 0xffff_0ff0u64,
             options(nomem, nostack, preserves_flags));
    }
    value
}

/// Lets NMIs come again, in the handler of one: the CPU holds them back until an IRET (SDM 3A,
/// 6.7.1), and the way back to the program may be SYSRET.
pub(crate) fn unblock_nmi() {
    // SAFETY: IRET to the next instruction with the registers, flags and stack there are.
    unsafe {
        asm!("mov {stack}, rsp", "mov {code:e}, ss", "push {code}", "push {stack}", "pushfq",
             "mov {code:e}, cs", "push {code}", "lea {code}, [rip + 2f]", "push {code}", "iretq",
             "2:", stack = out(reg) _, code = out(reg) _);
    }
}

/// After interrupts of programs, where SYSRET would keep it: loads the null SS anew.
#[inline(always)]
pub(crate) fn repair_ss() {
    if features().sysret_keeps_ss && read_ss() != entry::selector::KERNEL_DS {
        // SAFETY: the selector of the GDT's own data segment.
        unsafe {
            asm!("mov ss, {:e}", in(reg) u32::from(entry::selector::KERNEL_DS),
                 options(nostack, preserves_flags));
        }
    }
}

pub(crate) fn read_ss() -> u16 {
    let value: u32;
    // SAFETY: reading a selector has no effect.
    unsafe { asm!("mov {:e}, ss", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value as u16
}

pub(crate) fn read_cr3() -> u64 {
    let value;
    // SAFETY: reading CR3 has no effect.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

pub(crate) fn read_cr4() -> u64 {
    let value;
    // SAFETY: reading CR4 has no effect.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// # Safety
/// The bits must keep paging, write protection and long mode on.
pub(crate) unsafe fn write_cr0(value: u64) {
    // SAFETY: the caller's contract is that of this instruction.
    unsafe { asm!("mov cr0, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// # Safety
/// The root must map the kernel exactly as the present one does.
pub(crate) unsafe fn write_cr3(value: u64) {
    // SAFETY: the caller's contract is that of this instruction.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// # Safety
/// PAE stays on, and only features that CPUID reports are switched on.
pub(crate) unsafe fn write_cr4(value: u64) {
    // SAFETY: the caller's contract is that of this instruction.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// CR0, CR4 and XCR0 bits by name (SDM 3A, 2.5 and 2.6).
pub(crate) mod cr {
    pub(crate) const CR0_MP: u64 = 1 << 1;
    pub(crate) const CR0_EM: u64 = 1 << 2;
    pub(crate) const CR0_TS: u64 = 1 << 3;
    pub(crate) const CR0_NE: u64 = 1 << 5;
    pub(crate) const CR0_WP: u64 = 1 << 16;
    pub(crate) const CR4_MCE: u64 = 1 << 6;
    pub(crate) const CR4_PGE: u64 = 1 << 7;
    pub(crate) const CR4_OSFXSR: u64 = 1 << 9;
    pub(crate) const CR4_OSXMMEXCPT: u64 = 1 << 10;
    pub(crate) const CR4_UMIP: u64 = 1 << 11;
    pub(crate) const CR4_FSGSBASE: u64 = 1 << 16;
    pub(crate) const CR4_PCIDE: u64 = 1 << 17;
    pub(crate) const CR4_OSXSAVE: u64 = 1 << 18;
    pub(crate) const CR4_SMEP: u64 = 1 << 20;
    pub(crate) const CR4_SMAP: u64 = 1 << 21;
    pub(crate) const CR4_PKE: u64 = 1 << 22;
    pub(crate) const CR4_CET: u64 = 1 << 23;
    /// Of `S_CET`: returns are checked, and nothing but calls writes what they are checked by.
    pub(crate) const S_CET_SHADOW_STACK: u64 = 1;
    /// All that `S_CET` says about shadow stacks: the second bit lets WRSS write them.
    pub(crate) const S_CET_SHADOW: u64 = 0b11;
    /// Of `U_CET`: returns of the program are checked, and WRSS writes what they are checked by.
    pub(crate) const U_CET_SHADOW_STACK: u64 = 1;
    pub(crate) const U_CET_WRSS: u64 = 1 << 1;
    /// Of `S_CET`: indirect branches must land on ENDBR64.
    pub(crate) const S_CET_ENDBR: u64 = 1 << 2;
    pub(crate) const EFER_SCE: u64 = 1;
    pub(crate) const EFER_NXE: u64 = 1 << 11;
    pub(crate) const EFER_SVME: u64 = 1 << 12;
}

/// Writes one byte to an I/O port.
///
/// # Safety
/// The device behind the port must not write memory or reset the machine in answer, unless meant.
pub(crate) unsafe fn outb(port: u16, value: u8) {
    // SAFETY: the caller's contract is that of this instruction.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") value,
             options(nomem, nostack, preserves_flags));
    }
}

/// Reads one byte from an I/O port.
///
/// # Safety
/// Reading the port must have no effect that the caller does not mean.
pub(crate) unsafe fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: the caller's contract is that of this instruction.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags));
    }
    value
}

/// Writes 32 bits to an I/O port. # Safety: as [`outb`].
///
/// # Safety
/// As [`outb`].
pub(crate) unsafe fn outl(port: u16, value: u32) {
    // SAFETY: the caller's contract is that of this instruction.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value,
             options(nomem, nostack, preserves_flags));
    }
}

/// Reads 32 bits from an I/O port.
///
/// # Safety
/// As [`inb`].
pub(crate) unsafe fn inl(port: u16) -> u32 {
    let value;
    // SAFETY: the caller's contract is that of this instruction.
    unsafe {
        asm!("in eax, dx", in("dx") port, out("eax") value,
             options(nomem, nostack, preserves_flags));
    }
    value
}

/// RFLAGS.
#[inline(always)]
pub(crate) fn read_flags() -> u64 {
    let flags: u64;
    // SAFETY: PUSHF and POP touch only the stack word they make.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags
}

/// Whether interrupts are enabled on this CPU.
#[inline(always)]
pub fn interrupts_enabled() -> bool {
    read_flags() & 1 << 9 != 0
}

#[inline(always)]
pub(crate) fn irq_disable() {
    // SAFETY: masking interrupts is always sound. Not `nomem`: memory accesses stay on their side.
    unsafe { asm!("cli", options(nostack, preserves_flags)) };
}

#[inline(always)]
pub(crate) fn irq_enable() {
    // SAFETY: handlers are installed before the first call (`boot`), and touch only data that is
    // behind locks which mask interrupts. Not `nomem`, as above.
    unsafe { asm!("sti", options(nostack, preserves_flags)) };
}

/// Stops this CPU for good.
pub fn halt_forever() -> ! {
    loop {
        // SAFETY: with interrupts masked nothing wakes the CPU but NMI, after which it halts again.
        unsafe { asm!("cli", "hlt", options(nostack)) };
    }
}

/// Executes CPUID. Registers of the answer, in the order EAX, EBX, ECX, EDX.
pub fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = __cpuid_count(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// Switches on, on this CPU, every protection and feature it has. Runs once per CPU, before the
/// CPU executes anything on behalf of a program.
pub(crate) fn init() {
    let f = *features::detected();
    let mut cr4 = read_cr4() | cr::CR4_OSFXSR | cr::CR4_OSXMMEXCPT;
    for (has, bit) in [
        // Else a machine check resets the CPU without a word (SDM 3B, 15.3).
        (f.mce, cr::CR4_MCE),
        (f.pge, cr::CR4_PGE),
        (f.umip, cr::CR4_UMIP),
        (f.fsgsbase, cr::CR4_FSGSBASE),
        (f.xsave, cr::CR4_OSXSAVE),
        (f.smep, cr::CR4_SMEP),
        (f.smap, cr::CR4_SMAP),
        (f.pku, cr::CR4_PKE),
    ] {
        if has {
            cr4 |= bit;
        }
    }
    // SAFETY: only bits whose CPUID flag is set are added; nothing is removed.
    unsafe { write_cr4(cr4) };
    let cr0 = (read_cr0() | cr::CR0_MP | cr::CR0_NE | cr::CR0_WP) & !(cr::CR0_EM | cr::CR0_TS);
    // SAFETY: paging and protection bits are kept; WP is added; EM and TS only concern the FPU.
    unsafe { write_cr0(cr0) };
    if f.rdtscp || f.rdpid {
        // SAFETY: the register exists with either instruction, and only they read it.
        unsafe { wrmsr(msr::TSC_AUX, percpu::cpu_id() as u64) };
    }
    if f.xsave {
        set_xcr0(f.xcr0);
    }
}

/// What XSAVE manages, where there is XSAVE.
pub(crate) fn xcr0() -> u64 {
    assert!(features().xsave, "no XSAVE");
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE was set by `init`.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
             options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Sets what XSAVE manages: a valid subset of what `features` has, where there is XSAVE.
pub(crate) fn set_xcr0(value: u64) {
    assert!(features().xsave && value & !features().xcr0 == 0, "no such components");
    // SAFETY: OSXSAVE was set by `init`, and the value is a subset of what CPUID.0DH reports.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nomem, nostack, preserves_flags));
    }
}

/// Executes a serialising instruction (SDM 3A, 9.3): what this CPU fetches next is what is in
/// memory. A function of its own, for the audit looks whether it serialises.
#[inline(never)]
pub(crate) fn serialize() {
    let _ = cpuid(0, 0);
}

static CPU_COUNT: AtomicU32 = AtomicU32::new(1);

/// CPUs that are running the kernel, at least 1. They have the ids 0 to `cpu_count() - 1`.
pub fn cpu_count() -> usize {
    CPU_COUNT.load(Ordering::Acquire) as usize
}

/// The APIC id of the CPU with this id, by which the CPU itself says where it sits (SDM 3A, 9.9).
pub fn apic_id(cpu: usize) -> u32 {
    percpu::of(cpu).apic_id.get()
}

pub(crate) fn set_cpu_count(count: u32) {
    CPU_COUNT.store(count, Ordering::Release);
}
