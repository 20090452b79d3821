//! AMD's guests: the machine's side of `mechanisms/svm` (AMD APM 2, chapter 15).
//!
//! Everything in the control block that leads out of the guest is written here at each entry, and
//! nowhere else: nested tables, the bitmaps, the identifier of its translations, and the intercepts
//! without which it could act on the host.
//!
//! Segments and MSRs come back with VMLOAD; what else is switched, `amd.S` does.

use core::arch::global_asm;
use core::mem::offset_of;

use alloc::sync::Arc;

use svm::asid::{Pool, Tag};
use svm::vmcb::{
    MSR_BITMAP_BYTES, PASSED_MSRS, PORT_BITMAP_BYTES, Save, Vmcb, intercept, interrupt_control,
    msr_bits, tlb_control,
};
use svm::{Extra, Left, Request, World};
use virt::regs::gpr;

use super::{NestedSpace, Xcr0, image_phys};
use crate::cpu::percpu::{self, CpuCell, CpuContext, CpuLocal, PerCpu};
use crate::cpu::sync::IrqGuard;
use crate::cpu::{self, MAX_CPUS, cpuid, msr, wrmsr};
use crate::memory::frame::{Frame, OutOfMemory};
use crate::mitigations::behind_guests;
use crate::task::debug_registers;
use crate::text::static_branch;

global_asm!(
    include_str!("../cpu/fill.S"),
    include_str!("../cpu/if_key.S"),
    include_str!("behind.S"),
    include_str!("amd.S"),
    ".purgem fill_the_return_stack",
    ".purgem drop_shadow",
    ".purgem if_key",
    ".purgem behind_guest",
    ".purgem behind_guest_out_of_line",
    R0 = const offset_of!(Extra, gprs),
    RCX = const offset_of!(Extra, gprs) + 8 * gpr::RCX,
    RDX = const offset_of!(Extra, gprs) + 8 * gpr::RDX,
    RBX = const offset_of!(Extra, gprs) + 8 * gpr::RBX,
    RBP = const offset_of!(Extra, gprs) + 8 * gpr::RBP,
    RSI = const offset_of!(Extra, gprs) + 8 * gpr::RSI,
    RDI = const offset_of!(Extra, gprs) + 8 * gpr::RDI,
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
    /// Behind VMRUN, in the host.
    static vmrun_next: u8;
    fn vmrun_switch(extra: *mut Extra, guest: u64, host: u64);
}

/// What this CPU's SVM can do.
#[derive(Clone, Copy, Debug)]
pub struct Ability {
    /// Identifiers of guests' translations, the host's included.
    asids: u32,
    /// Exits tell where the next instruction is.
    next_rip: bool,
}

/// None: there is no SVM with nested paging, or the firmware has switched it off.
pub(super) fn detect() -> Option<Ability> {
    const SVM: u32 = 1 << 2;
    const NESTED_PAGING: u32 = 1;
    const NEXT_RIP: u32 = 1 << 3;
    const DISABLED: u64 = 1 << 4;
    if cpuid(0x8000_0000, 0)[0] < 0x8000_000a || cpuid(0x8000_0001, 0)[2] & SVM == 0 {
        return None;
    }
    let [_, asids, _, bits] = cpuid(0x8000_000a, 0);
    if bits & NESTED_PAGING == 0 || asids < 2 || cpu::rdmsr(msr::VM_CR) & DISABLED != 0 {
        return None;
    }
    Some(Ability { asids, next_rip: bits & NEXT_RIP != 0 })
}

#[repr(C, align(4096))]
struct PortBitmap([u8; PORT_BITMAP_BYTES]);
#[repr(C, align(4096))]
struct MsrBitmap([u8; MSR_BITMAP_BYTES]);

/// Every port is an exit.
static PORTS: PortBitmap = PortBitmap([0xff; PORT_BITMAP_BYTES]);

/// Every MSR is an exit but those that VMLOAD and VMSAVE switch.
static MSRS: MsrBitmap = {
    let mut map = [0xff; MSR_BITMAP_BYTES];
    let mut n = 0;
    while n < PASSED_MSRS.len() {
        if let Some((byte, shift)) = msr_bits(PASSED_MSRS[n]) {
            map[byte] &= !(3 << shift);
        }
        n += 1;
    }
    MsrBitmap(map)
};

fn ability() -> Option<Ability> {
    match super::ability()? {
        super::Ability::Svm(ability) => Some(ability),
        super::Ability::Vmx(_) => None,
    }
}

/// One CPU's part.
struct Local {
    /// What VMRUN keeps the host's state in, and what VMSAVE does.
    areas: Option<(Frame, Frame)>,
    pool: Pool,
}

static LOCAL: PerCpu<CpuCell<Local>> = PerCpu::from_array(
    [const { CpuCell::new(Local { areas: None, pool: Pool::new(2) }) }; MAX_CPUS],
);

impl Local {
    /// Switches virtualisation on, on this CPU, at its first entry. Interrupts are masked.
    fn switch_on(&mut self) -> Result<&mut Local, OutOfMemory> {
        if self.areas.is_some() {
            return Ok(self);
        }
        let ability = ability().ok_or(OutOfMemory)?;
        let areas = (Frame::alloc_zeroed()?, Frame::alloc_zeroed()?);
        let efer = cpu::rdmsr(msr::EFER) | cpu::cr::EFER_SVME;
        // SAFETY: CPUID reports SVM, and VM_CR that it is not switched off.
        unsafe { wrmsr(msr::EFER, efer) };
        // SAFETY: a page that only this CPU's VMRUN uses, for ever: `areas` is never taken back.
        unsafe { wrmsr(msr::VM_HSAVE_PA, areas.0.phys()) };
        self.areas = Some(areas);
        self.pool = Pool::new(ability.asids);
        Ok(self)
    }
}

/// Where the host goes on behind VMRUN.
pub(crate) fn behind_vmrun() -> u64 {
    (&raw const vmrun_next) as u64
}

/// A virtual CPU's hardware part: its control block, and where it may run.
pub struct Vcpu {
    block: Frame,
    extra: Extra,
    space: Arc<NestedSpace>,
    /// Identifier of its translations, the CPU on which it counts, and up to which change of the
    /// nested tables they are good.
    tag: Tag,
    cpu: usize,
    seen: u64,
}

// SAFETY: nothing in it is tied to a CPU while it is not running, and `run` takes `&mut self`.
unsafe impl Send for Vcpu {}

impl Vcpu {
    /// A virtual CPU that reaches the memory of `space`. Its registers are zero.
    pub fn new(space: Arc<NestedSpace>) -> Result<Vcpu, OutOfMemory> {
        let block = Frame::alloc_zeroed()?;
        let tag = Tag::default();
        Ok(Vcpu { block, extra: Extra::default(), space, tag, cpu: 0, seen: 0 })
    }

    /// The nested tables it runs on.
    pub fn space(&self) -> &Arc<NestedSpace> {
        &self.space
    }

    fn block_mut(&mut self) -> &mut Vmcb {
        // SAFETY: the frame is this value's alone, 4096 bytes, aligned, and any bytes are a `Vmcb`.
        // The CPU uses it only in `run`, which has `&mut self`.
        unsafe { &mut *self.block.ptr().cast::<Vmcb>() }
    }

    /// Writes what a request may not decide, and what it may.
    fn prepare(&mut self, request: &Request, asid: u32, tlb_control: u32) {
        let nested_cr3 = self.space.root();
        let control = &mut self.block_mut().control;
        control.intercept_cr = request.intercept_cr & intercept::CR8_WRITE;
        control.intercept_dr = intercept::ALWAYS_DR;
        control.intercept_exceptions = intercept::ALWAYS_EXCEPTIONS;
        control.intercept_3 = intercept::ALWAYS | request.intercepts & intercept::OPTIONAL;
        control.intercept_4 = intercept::ALWAYS_4;
        control.intercept_5 = intercept::ALWAYS_5;
        control.iopm_base = image_phys(&PORTS);
        control.msrpm_base = image_phys(&MSRS);
        control.tsc_offset = request.tsc_offset;
        control.asid = asid;
        control.tlb_control = tlb_control;
        const ALLOWED: u64 = interrupt_control::TPR
            | interrupt_control::IRQ
            | interrupt_control::PRIORITY
            | interrupt_control::IGNORE_TPR;
        control.interrupt_control =
            request.interrupt_control & ALLOWED | interrupt_control::MASKING;
        control.interrupt_shadow = u64::from(request.shadow);
        control.event_injection = request.event;
        control.nested_control = 1;
        control.nested_cr3 = nested_cr3;
        control.lbr_control = 0;
        control.avic_bar = 0;
        control.ghcb = 0;
        // Nothing that the CPU has cached of the block is taken for granted.
        control.clean = 0;
    }

    /// A tag that is good on this CPU, and the word for the entry. Interrupts are masked.
    fn choose_tag(&mut self, pool: &mut Pool, changes: u64) -> u32 {
        let here = percpu::cpu_id();
        if pool.is_good(self.tag) && self.cpu == here && self.seen == changes {
            return tlb_control::KEEP;
        }
        let (tag, drops_all) = pool.take();
        (self.tag, self.cpu, self.seen) = (tag, here, changes);
        if drops_all { tlb_control::DROP_ALL } else { tlb_control::KEEP }
    }

    /// Whether the block says of the guest what is true of this CPU behind VMRUN.
    fn holds_the_host(&self) -> bool {
        self.save().rip == behind_vmrun() && self.save().cr3 == cpu::read_cr3()
    }

    /// Switches worlds. Interrupts are masked.
    fn switch(&mut self, local: &mut Local, request: &Request) -> Left {
        let changes = self.space.enter();
        let tlb_control = self.choose_tag(&mut local.pool, changes);
        self.prepare(request, self.tag.asid, tlb_control);
        let xcr0 = Xcr0::load(self.extra.xcr0);
        let watches = self.save().dr7 & 0xff != 0;
        if watches {
            let [a, b, c, d, ..] = self.extra.debug;
            debug_registers::load_guest([a, b, c, d]);
        }
        let host = local.areas.as_ref().map_or(0, |(_, area)| area.phys());
        let (extra, guest) = (&raw mut self.extra, self.block.phys());
        let held_the_host = self.holds_the_host();
        // SAFETY: virtualisation is on, on this CPU; the block was prepared just now, so the guest
        // reaches only its nested tables and exits for all that concerns the host; the host's area
        // is a page of this CPU's; interrupts are masked.
        unsafe { vmrun_switch(extra, guest, host) };
        self.space.leave();
        self.extra.xcr0 = xcr0.restore();
        debug_registers::after_guest(self.save().dr6);
        // The CPU that QEMU emulates does so rarely (seen with 7.2, several CPUs and a busy host;
        // why is not known). The guest is lost with its state, and of the host's
        // nothing may reach a VMM. A VMM that put the same words there is no sign of it.
        if self.holds_the_host() && !held_the_host {
            self.save_mut().clear();
            return Left { exit_code: svm::exit::code::LOST, ..Left::default() };
        }
        let control = &self.block_mut().control;
        Left {
            exit_code: control.exit_code,
            exit_info_1: control.exit_info_1,
            exit_info_2: control.exit_info_2,
            exit_interrupt_info: control.exit_interrupt_info,
            interrupt_control: control.interrupt_control,
            shadow: control.interrupt_shadow & 1 != 0,
            next_rip: control.next_rip,
        }
    }
}

impl World for Vcpu {
    fn save(&self) -> &Save {
        // SAFETY: as in `block_mut`, with shared access.
        unsafe { &(*self.block.ptr().cast::<Vmcb>()).save }
    }

    fn save_mut(&mut self) -> &mut Save {
        &mut self.block_mut().save
    }

    fn extra(&mut self) -> &mut Extra {
        &mut self.extra
    }

    fn flush_translations(&mut self) {
        self.tag = Tag::default();
    }

    fn has_next_rip(&self) -> bool {
        ability().is_some_and(|ability| ability.next_rip)
    }

    fn run(&mut self, request: &Request, is_busy: &mut dyn FnMut() -> bool) -> Option<Left> {
        let _irq = IrqGuard::new();
        if is_busy() {
            return None;
        }
        behind_guests::before_guest();
        // SAFETY: interrupts are masked, and nothing in `switch` reaches the cell again: it calls
        // no code of the kernel's.
        let left = unsafe {
            LOCAL.get().with(|local| Some(self.switch(local.switch_on().ok()?, request)))
        };
        // On this CPU, before the thread can go to another.
        behind_guests::guest_ran();
        let left = left.unwrap_or(Left { exit_code: u64::MAX, ..Left::default() });
        if left.exit_code == svm::exit::code::MACHINE_CHECK {
            panic!("machine check while a guest ran");
        }
        Some(left)
    }
}
