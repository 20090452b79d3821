//! Intel's guests: the machine's side of `mechanisms/vmx` (SDM 3C, chapters 24 to 29).
//!
//! The control structure is loaded for one entry and cleared behind it: so a virtual CPU may run on
//! any CPU next, its frame is nobody's when it goes, and its registers are read and written as a
//! whole (`vmx::Guest`). What leads out of the guest (tables, bitmaps, the identifier, controls,
//! the host's state) is written here and nowhere else.
//!
//! What an exit does not give back of the host's is restored here: limits of GDTR and IDTR, the
//! program's selectors, MSRs of system calls. An NMI that ends a guest's run is not pending any
//! more: it is taken by INT 2.

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};

use alloc::sync::Arc;

use ::entry::selector;
use svm::asid::{Pool, Tag};
use virt::regs::{flags, gpr};
use vmx::controls::{
    self, Controls, ENABLED, LOCKED, MSR_BITMAP_BYTES, PASSED_MSRS, entry, msr_bit, pin, primary,
};
use vmx::{Extra, Guest, Left, Request, World, ept, exit, field};

use super::{NestedSpace, Xcr0, image_phys};
use crate::cpu::percpu::{self, CpuCell, CpuContext, CpuLocal, PerCpu};
use crate::cpu::sync::IrqGuard;
use crate::cpu::{self, MAX_CPUS, cpuid, msr, wrmsr};
use crate::entry::descriptors::{TablePointer, tss_base};
use crate::memory::frame::{Frame, OutOfMemory};
use crate::mitigations::behind_guests;
use crate::task::{self, debug_registers};
use crate::text::static_branch;

global_asm!(
    include_str!("../cpu/fill.S"),
    include_str!("../cpu/if_key.S"),
    include_str!("behind.S"),
    include_str!("intel.S"),
    ".purgem fill_the_return_stack",
    ".purgem drop_shadow",
    ".purgem if_key",
    ".purgem behind_guest",
    ".purgem behind_guest_out_of_line",
    R0 = const offset_of!(Extra, gprs),
    RAX = const offset_of!(Extra, gprs) + 8 * gpr::RAX,
    RCX = const offset_of!(Extra, gprs) + 8 * gpr::RCX,
    RDX = const offset_of!(Extra, gprs) + 8 * gpr::RDX,
    RBX = const offset_of!(Extra, gprs) + 8 * gpr::RBX,
    RBP = const offset_of!(Extra, gprs) + 8 * gpr::RBP,
    RSI = const offset_of!(Extra, gprs) + 8 * gpr::RSI,
    RDI = const offset_of!(Extra, gprs) + 8 * gpr::RDI,
    CR2 = const offset_of!(Extra, cr2),
    HOST_RSP = const field::HOST_RSP,
    IBPB_BEHIND_GUESTS = const static_branch::at_boot(static_branch::id::IBPB_BEHIND_GUESTS),
    FILL_BEHIND_GUESTS = const static_branch::at_boot(static_branch::id::FILL_BEHIND_GUESTS),
    CALL_BEHIND_GUESTS = const static_branch::at_boot(static_branch::id::CALL_BEHIND_GUESTS),
    UNTRAIN = const static_branch::at_boot(static_branch::id::UNTRAIN),
    PRED_CMD = const offset_of!(CpuLocal, pred_cmd),
    PRED_CMD_MSR = const msr::PRED_CMD,
    CONTEXT = const offset_of!(CpuLocal, context) + offset_of!(CpuContext, state),
    IN_GUEST = const context_tracking::state::IN_GUEST,
    options(att_syntax)
);

unsafe extern "C" {
    fn vmx_switch(extra: *mut Extra) -> u64;
    static context_left_vmx_exit: u8;
}

/// None: there is no VMX that guests can run with, or the firmware has switched it off.
pub(super) fn detect() -> Option<Controls> {
    const VMX: u32 = 1 << 5;
    if cpuid(1, 0)[2] & VMX == 0 {
        return None;
    }
    // CPUID reports VMX, so the capability MSRs exist; those that a capability announces are read
    // behind it.
    Controls::choose(cpu::rdmsr)
}

#[repr(C, align(4096))]
struct MsrBitmap([u8; MSR_BITMAP_BYTES]);

/// Every MSR is an exit but those that are switched.
static MSRS: MsrBitmap = {
    const WRITES: usize = 2048;
    let mut map = [0xff; MSR_BITMAP_BYTES];
    let mut n = 0;
    while n < PASSED_MSRS.len() {
        if let Some((byte, bit)) = msr_bit(PASSED_MSRS[n]) {
            map[byte] &= !(1 << bit);
            map[byte + WRITES] &= !(1 << bit);
        }
        n += 1;
    }
    MsrBitmap(map)
};

/// Vectors whose exceptions are exits: #DB and #AC, whose delivery can fault by the same cause for
/// ever without an interrupt's getting in (CVE-2015-8104, CVE-2015-5307), and #MC.
const EXCEPTIONS: u64 = 1 << 1 | 1 << 17 | 1 << 18;

// ------------------------------------------------------------------------------------------------
// Instructions

/// An instruction of VMX on a structure's address. True: done.
macro_rules! on_structure {
    ($name:ident, $instruction:literal) => {
        /// # Safety
        /// VMX is on, on this CPU, but for VMXON; the frame has the revision in its first word and
        /// is nobody else's.
        unsafe fn $name(phys: u64) -> bool {
            let failed: u8;
            // SAFETY: the caller's contract is that of this instruction.
            unsafe {
                asm!(concat!($instruction, " qword ptr [{}]"), "setna {}", in(reg) &phys,
                     out(reg_byte) failed, options(nostack));
            }
            failed == 0
        }
    };
}
on_structure!(vmxon, "vmxon");
on_structure!(vmclear, "vmclear");
on_structure!(vmptrld, "vmptrld");

/// # Safety
/// A structure is loaded, and the CPU may do with the guest what the value makes of it.
unsafe fn vmwrite(number: u32, value: u64) -> bool {
    let failed: u8;
    // SAFETY: the caller's contract is that of this instruction.
    unsafe {
        asm!("vmwrite {}, {}", "setna {}", in(reg) u64::from(number), in(reg) value,
             out(reg_byte) failed, options(nostack));
    }
    failed == 0
}

/// A field of the structure that is loaded; 0 where there is none such.
fn vmread(number: u32) -> u64 {
    let mut value = 0;
    // SAFETY: reading a field changes nothing. Called where VMX is on: elsewhere it is #UD.
    unsafe {
        asm!("vmread {}, {}", inout(reg) value, in(reg) u64::from(number), options(nostack));
    }
    value
}

/// What is forgotten of translations: of one guest's tables or identifier, or of all.
#[derive(Clone, Copy)]
enum Forget {
    One = 1,
    All = 2,
}

/// Forgets what follows from extended tables: the tables' pointer.
fn invept(what: Forget, pointer: u64) {
    let operand = [pointer, 0];
    // SAFETY: only translations are forgotten. VMX is on, and `Controls` wants both kinds.
    unsafe { asm!("invept {}, [{}]", in(reg) what as u64, in(reg) &operand, options(nostack)) };
}

/// Forgets the translations of an identifier.
fn invvpid(what: Forget, vpid: u16) {
    let operand = [u64::from(vpid), 0];
    // SAFETY: only translations are forgotten. VMX is on, and with `has_vpid` both kinds are there.
    unsafe { asm!("invvpid {}, [{}]", in(reg) what as u64, in(reg) &operand, options(nostack)) };
}

// ------------------------------------------------------------------------------------------------
// One CPU

struct Local {
    /// What VMXON was given.
    area: Option<Frame>,
    pool: Pool,
}

static LOCAL: PerCpu<CpuCell<Local>> = PerCpu::from_array(
    [const { CpuCell::new(Local { area: None, pool: Pool::new(1 << 16) }) }; MAX_CPUS],
);

/// A frame with the revision in its first word.
fn structure(controls: &Controls) -> Result<Frame, OutOfMemory> {
    let frame = Frame::alloc_zeroed()?;
    frame.write(0, &controls.revision.to_le_bytes());
    Ok(frame)
}

impl Local {
    /// Switches virtualisation on, on this CPU, at its first entry. Interrupts are masked.
    fn switch_on(&mut self, controls: &Controls) -> Result<&mut Local, OutOfMemory> {
        if self.area.is_some() {
            return Ok(self);
        }
        let area = structure(controls)?;
        if cpu::rdmsr(controls::msr::FEATURE_CONTROL) & LOCKED == 0 {
            // SAFETY: CPUID reports VMX, so the register exists, and it is not locked.
            unsafe { wrmsr(controls::msr::FEATURE_CONTROL, LOCKED | ENABLED) };
        }
        // SAFETY: CPUID reports VMX. The bits that it wants set besides are those of long mode.
        unsafe { cpu::write_cr4(cpu::read_cr4() | controls.cr4_fixed) };
        // SAFETY: the frame is this CPU's for ever: `area` is never taken back.
        let is_on = unsafe { vmxon(area.phys()) };
        assert!(is_on, "VMXON was refused");
        invept(Forget::All, 0);
        self.area = Some(area);
        Ok(self)
    }
}

/// What stands in a descriptor-table register.
fn table_registers() -> (TablePointer, TablePointer) {
    let (mut gdt, mut idt) = (TablePointer::default(), TablePointer::default());
    // SAFETY: each stores ten bytes to where it is told.
    unsafe {
        asm!("sgdt [{}]", "sidt [{}]", in(reg) &mut gdt, in(reg) &mut idt,
             options(nostack, preserves_flags));
    }
    (gdt, idt)
}

/// What an entry changes of the host that an exit does not give back.
struct Host {
    gdt: TablePointer,
    idt: TablePointer,
    selectors: u64,
    fs_base: u64,
    /// STAR, LSTAR, FMASK, KERNEL_GS_BASE.
    msrs: [u64; 4],
}

/// The MSRs of [`Host::msrs`].
const SWITCHED: [u32; 4] = [msr::STAR, msr::LSTAR, msr::FMASK, msr::KERNEL_GS_BASE];

impl Host {
    fn of_here() -> Host {
        let (gdt, idt) = table_registers();
        Host {
            gdt,
            idt,
            selectors: task::read_selectors(),
            fs_base: cpu::rdmsr(msr::FS_BASE),
            msrs: SWITCHED.map(cpu::rdmsr),
        }
    }

    /// Gives the guest its MSRs. Interrupts are masked.
    fn lend(&self, guest: &Guest) {
        let values = [guest.star, guest.lstar, guest.syscall_mask, guest.kernel_gs_base];
        for (number, value) in SWITCHED.into_iter().zip(values) {
            // SAFETY: the kernel uses none of them before `restore`: nothing returns to user mode,
            // and no entry from the kernel swaps GS. Addresses are canonical (`canonical`).
            unsafe { wrmsr(number, canonical(number, value)) };
        }
    }

    /// Takes back what is the host's; what the guest has left in KERNEL_GS_BASE.
    fn restore(&self) -> u64 {
        let left = cpu::rdmsr(msr::KERNEL_GS_BASE);
        // An exit leaves limits of 64 KiB, and what is behind the tables is no descriptor.
        // SAFETY: the tables that were in use before.
        unsafe {
            asm!("lgdt [{}]", "lidt [{}]", in(reg) &self.gdt, in(reg) &self.idt,
                 options(nostack, preserves_flags));
        }
        if self.selectors != 0 {
            task::load_selectors(self.selectors);
            // SAFETY: the program's own base, as it was.
            unsafe { wrmsr(msr::FS_BASE, self.fs_base) };
        }
        for (number, value) in SWITCHED.into_iter().zip(self.msrs) {
            // SAFETY: what stood there before.
            unsafe { wrmsr(number, value) };
        }
        left
    }
}

/// A value that WRMSR takes: those of addresses have 48 bits and their sign.
fn canonical(number: u32, value: u64) -> u64 {
    match number {
        msr::LSTAR | msr::KERNEL_GS_BASE => ((value << 16) as i64 >> 16) as u64,
        // Its upper half is reserved.
        msr::FMASK => value & 0xffff_ffff,
        _ => value,
    }
}

// ------------------------------------------------------------------------------------------------
// A virtual CPU

/// A virtual CPU's hardware part: its control structure, and where it may run.
pub struct Vcpu {
    structure: Frame,
    controls: Controls,
    guest: Guest,
    extra: Extra,
    space: Arc<NestedSpace>,
    /// Identifier of its translations, the CPU on which it counts, and up to which change of the
    /// nested tables they are good.
    tag: Tag,
    cpu: usize,
    seen: u64,
    /// The CPU whose state the structure has for the host.
    host: Option<usize>,
    /// VMWRITE has refused a field.
    is_odd: bool,
}

// SAFETY: nothing in it is tied to a CPU while it is not running, and `run` takes `&mut self`.
unsafe impl Send for Vcpu {}

static REFUSAL_LOGGED: AtomicBool = AtomicBool::new(false);

impl Vcpu {
    /// A virtual CPU that reaches the memory of `space`. Its registers are zero.
    pub(super) fn new(space: Arc<NestedSpace>, controls: Controls) -> Result<Vcpu, OutOfMemory> {
        Ok(Vcpu {
            structure: structure(&controls)?,
            controls,
            guest: Guest::default(),
            extra: Extra::default(),
            space,
            tag: Tag::default(),
            cpu: 0,
            seen: 0,
            host: None,
            is_odd: false,
        })
    }

    /// Writes a field of the structure, which is loaded.
    fn write(&mut self, number: u32, value: u64) {
        // SAFETY: what is written is the guest's own state, or what keeps it to its memory.
        self.is_odd |= !unsafe { vmwrite(number, value) };
    }

    /// Forgets translations that are not good any more. Interrupts are masked.
    fn forget(&mut self, pool: &mut Pool, changes: u64) {
        let here = percpu::cpu_id();
        let moved = self.cpu != here;
        if moved || self.seen != changes {
            invept(Forget::One, ept::pointer(self.space.root()));
        }
        if !pool.is_good(self.tag) || moved {
            let (tag, begins_again) = pool.take();
            self.tag = tag;
            if begins_again && self.controls.has_vpid {
                invvpid(Forget::All, 0);
            }
        }
        (self.cpu, self.seen) = (here, changes);
    }

    /// Writes what no request decides, where the structure has that of another CPU.
    fn write_host(&mut self, host: &Host) {
        for number in [
            field::HOST_ES_SELECTOR,
            field::HOST_DS_SELECTOR,
            field::HOST_FS_SELECTOR,
            field::HOST_GS_SELECTOR,
            field::PAGE_FAULT_MASK,
            field::PAGE_FAULT_MATCH,
            field::CR3_TARGET_COUNT,
            field::EXIT_MSR_STORE_COUNT,
            field::EXIT_MSR_LOAD_COUNT,
            field::ENTRY_MSR_LOAD_COUNT,
            field::GUEST_DEBUGCTL,
            field::GUEST_ACTIVITY,
        ] {
            self.write(number, 0);
        }
        let sysenter = [msr::SYSENTER_CS, msr::SYSENTER_ESP, msr::SYSENTER_EIP].map(cpu::rdmsr);
        let exit = &raw const context_left_vmx_exit;
        for (number, value) in [
            (field::HOST_CS_SELECTOR, selector::KERNEL_CS.into()),
            (field::HOST_SS_SELECTOR, selector::KERNEL_DS.into()),
            (field::HOST_TR_SELECTOR, selector::TSS.into()),
            (field::HOST_TR_BASE, tss_base()),
            (field::HOST_GS_BASE, cpu::rdmsr(msr::GS_BASE)),
            (field::HOST_GDTR_BASE, host.gdt.base),
            (field::HOST_IDTR_BASE, host.idt.base),
            (field::HOST_PAT, cpu::rdmsr(msr::PAT)),
            (field::HOST_EFER, cpu::rdmsr(msr::EFER)),
            (field::HOST_SYSENTER_CS, sysenter[0]),
            (field::HOST_SYSENTER_ESP, sysenter[1]),
            (field::HOST_SYSENTER_EIP, sysenter[2]),
            (field::HOST_RIP, exit as u64),
            (field::SECONDARY_CONTROLS, self.controls.secondary.into()),
            (field::EXIT_CONTROLS, self.controls.exit.into()),
            (field::EXCEPTION_BITMAP, EXCEPTIONS),
            (field::MSR_BITMAP, image_phys(&MSRS)),
            (field::EPT_POINTER, ept::pointer(self.space.root())),
            (field::LINK_POINTER, u64::MAX),
        ] {
            self.write(number, value);
        }
        for (control, bitmap) in [
            (controls::secondary::ENCLS, field::ENCLS_BITMAP),
            (controls::secondary::PCONFIG, field::PCONFIG_BITMAP),
        ] {
            if self.controls.secondary & control != 0 {
                self.write(bitmap, u64::MAX);
            }
        }
        self.host = Some(percpu::cpu_id());
    }

    /// Pin-based controls, and the timer's start if it is among them. Interrupts end a guest's run
    /// whatever its IF says; but the CPU that Bochs has (seen with 2.7) holds them back where host
    /// and guest both have it clear at the entry. Such a guest is left after a while by the timer,
    /// which hardware hardly ever comes to.
    fn timer(&self) -> (u32, u32) {
        const RUNS_PER_SECOND: u64 = 1000;
        match self.controls.timer_shift {
            Some(shift) if self.guest.rflags & flags::IF == 0 => {
                let ticks = (crate::cpu::clock::tsc_hz() / RUNS_PER_SECOND) >> shift;
                (self.controls.pin | pin::TIMER, ticks.clamp(1, u32::MAX.into()) as u32)
            }
            _ => (self.controls.pin, 0),
        }
    }

    /// Writes the structure, which is loaded.
    fn prepare(&mut self, request: &Request, host: &Host) {
        if self.host != Some(percpu::cpu_id()) {
            self.write_host(host);
        }
        let mut primary = self.controls.primary;
        if request.interrupt_window {
            primary |= primary::INTERRUPT_WINDOW;
        }
        if request.nmi_window {
            primary |= primary::NMI_WINDOW;
        }
        let (pin, ticks) = self.timer();
        let long_mode = if self.guest.is_long() { entry::LONG_MODE } else { 0 };
        let (event, error) = request.event;
        for (number, value) in [
            (field::HOST_CR0, cpu::read_cr0()),
            (field::HOST_CR3, cpu::read_cr3()),
            (field::HOST_CR4, cpu::read_cr4()),
            (field::HOST_FS_BASE, host.fs_base),
            (field::PIN_CONTROLS, pin.into()),
            (field::PRIMARY_CONTROLS, primary.into()),
            (field::ENTRY_CONTROLS, (self.controls.entry | long_mode).into()),
            (field::ENTRY_EVENT, event.into()),
            (field::ENTRY_EVENT_ERROR, error.into()),
            (field::ENTRY_INSTRUCTION_LENGTH, 0),
            (field::TSC_OFFSET, request.tsc_offset),
        ] {
            self.write(number, value);
        }
        if pin != self.controls.pin {
            self.write(field::TIMER, ticks.into());
        }
        if self.controls.has_vpid {
            self.write(field::VPID, self.tag.asid.into());
        }
        let mut is_odd = false;
        // SAFETY: the guest's own registers, as `Guest::store` lets the CPU have them.
        self.guest.store(&self.controls, |number, value| unsafe {
            is_odd |= !vmwrite(number, value);
        });
        self.is_odd |= is_odd;
    }

    /// Switches worlds. Interrupts are masked, and VMX is on.
    fn switch(&mut self, local: &mut Local, request: &Request) -> Left {
        let changes = self.space.enter();
        self.forget(&mut local.pool, changes);
        let phys = self.structure.phys();
        // SAFETY: the frame is this value's, and no CPU has it loaded.
        let is_clear = self.host.is_some() || unsafe { vmclear(phys) };
        // SAFETY: as above; it is cleared behind the exit.
        let is_loaded = is_clear && unsafe { vmptrld(phys) };
        assert!(is_loaded, "a control structure was refused");
        let host = Host::of_here();
        self.prepare(request, &host);
        let xcr0 = Xcr0::load(self.extra.xcr0);
        if self.guest.dr7 & 0xff != 0 {
            let [a, b, c, d, ..] = self.extra.debug;
            debug_registers::load_guest([a, b, c, d]);
        }
        host.lend(&self.guest);
        let extra = &raw mut self.extra;
        // SAFETY: the structure was prepared just now, so the guest reaches only its nested tables
        // and exits for all that concerns the host; interrupts are masked.
        let failed = self.is_odd || unsafe { vmx_switch(extra) } != 0;
        self.guest.kernel_gs_base = host.restore();
        let left = if failed { self.refused() } else { self.left() };
        // SAFETY: the structure that was loaded above.
        let is_stored = unsafe { vmclear(phys) };
        assert!(is_stored, "a control structure was not given back");
        self.space.leave();
        self.extra.xcr0 = xcr0.restore();
        // An exit leaves DR7 disarmed, and DR6 was not the guest's.
        debug_registers::after_guest(0);
        left
    }

    /// VMLAUNCH or VMWRITE was refused, which no guest and no VMM can bring about.
    fn refused(&mut self) -> Left {
        if !REFUSAL_LOGGED.swap(true, Ordering::Relaxed) {
            let error = vmread(field::INSTRUCTION_ERROR);
            crate::log!("a guest was not entered: error {error}, odd fields: {}", self.is_odd);
        }
        let reason = exit::reason::ENTRY_FAILED | exit::reason::BAD_GUEST_STATE;
        Left { reason, ..Left::default() }
    }

    /// What the exit has left in the structure.
    fn left(&mut self) -> Left {
        let reason = vmread(field::EXIT_REASON) as u32;
        if reason & exit::reason::ENTRY_FAILED == 0 {
            self.guest.load(&self.controls, vmread);
        }
        Left {
            reason,
            qualification: vmread(field::EXIT_QUALIFICATION),
            guest_physical: vmread(field::GUEST_PHYSICAL_ADDRESS),
            event: vmread(field::EXIT_EVENT) as u32,
            event_error: vmread(field::EXIT_EVENT_ERROR) as u32,
            vectoring: vmread(field::VECTORING_EVENT) as u32,
            vectoring_error: vmread(field::VECTORING_EVENT_ERROR) as u32,
            length: vmread(field::EXIT_INSTRUCTION_LENGTH) as u32,
        }
    }
}

impl World for Vcpu {
    fn guest(&self) -> &Guest {
        &self.guest
    }

    fn guest_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }

    fn extra(&mut self) -> &mut Extra {
        &mut self.extra
    }

    fn extra_ref(&self) -> &Extra {
        &self.extra
    }

    fn controls(&self) -> &Controls {
        &self.controls
    }

    fn flush_translations(&mut self) {
        self.tag = Tag::default();
    }

    fn run(&mut self, request: &Request, is_busy: &mut dyn FnMut() -> bool) -> Option<Left> {
        let _irq = IrqGuard::new();
        if is_busy() {
            return None;
        }
        behind_guests::before_guest();
        let controls = self.controls;
        // SAFETY: interrupts are masked, and nothing in `switch` reaches the cell again: it calls
        // no code of the kernel's.
        let left = unsafe {
            LOCAL.get().with(|local| Some(self.switch(local.switch_on(&controls).ok()?, request)))
        };
        // On this CPU, before the thread can go to another.
        behind_guests::guest_ran();
        let failed = exit::reason::ENTRY_FAILED | exit::reason::BAD_GUEST_STATE;
        let left = left.unwrap_or(Left { reason: failed, ..Left::default() });
        if exit::is_machine_check(&left) {
            panic!("machine check while a guest ran");
        }
        if exit::is_nmi(&left) {
            // SAFETY: the handler of the vector is the NMI's, and IRET at its end lets NMIs come
            // again, which the exit has blocked.
            unsafe { asm!("int 2") };
        }
        Some(left)
    }
}
