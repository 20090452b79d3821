//! A virtual CPU of Intel's: its registers, and one entry.

use virt::exit::{Entered, Exit, Vmrun, Windows};
use virt::msr;
use virt::regs::{CodeSize, Gprs, Segment, System, gpr, seg};
use virt::{Event, event};

use crate::guest::blocked;
use crate::{Controls, Guest, exit};

/// What one entry asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Exit once an interrupt can be taken.
    pub interrupt_window: bool,
    /// Exit once an NMI can be taken.
    pub nmi_window: bool,
    /// The word of an event to deliver, and its error code.
    pub event: (u32, u32),
    /// Added to the TSC.
    pub tsc_offset: u64,
}

/// What an exit left beside the guest's registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the manual")]
pub struct Left {
    pub reason: u32,
    pub qualification: u64,
    pub guest_physical: u64,
    /// The event that caused the exit.
    pub event: u32,
    pub event_error: u32,
    /// The event during whose delivery the guest was left.
    pub vectoring: u32,
    pub vectoring_error: u32,
    /// Bytes of the instruction that caused the exit.
    pub length: u32,
}

/// Registers that the world switches by itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// General registers; RSP is the structure's.
    pub gprs: Gprs,
    /// Address of the last page fault.
    pub cr2: u64,
    /// Debug registers; DR7 is the structure's, DR6 nobody's: an exit tells what would be in it.
    pub debug: [u64; 8],
    /// What XSAVE manages.
    pub xcr0: u64,
}

/// What executes VMLAUNCH.
pub trait World {
    /// The guest's registers.
    fn guest(&self) -> &Guest;
    /// The same, to be changed.
    fn guest_mut(&mut self) -> &mut Guest;
    /// The others.
    fn extra(&mut self) -> &mut Extra;
    /// The same.
    fn extra_ref(&self) -> &Extra;
    /// What guests are run with.
    fn controls(&self) -> &Controls;
    /// The next entry forgets this CPU's translations of the guest.
    fn flush_translations(&mut self);
    /// Enters, unless `is_busy` says otherwise when nothing can come between any more.
    fn run(&mut self, request: &Request, is_busy: &mut dyn FnMut() -> bool) -> Option<Left>;
}

/// A virtual CPU of Intel's.
pub struct Vmx<W: World> {
    /// What runs it.
    pub world: W,
    left: Left,
    event: (u32, u32),
    shadow: bool,
    priority: u8,
    tsc_offset: u64,
    /// The entries that the CPU keeps of PAE paging are to be read from the guest's memory.
    pdptes_due: bool,
}

/// Types of events (SDM 3C, 25.8.3).
mod kind {
    pub(super) const INTERRUPT: u32 = 0;
    pub(super) const NMI: u32 = 2;
    pub(super) const EXCEPTION: u32 = 3;
    pub(super) const SOFTWARE: u32 = 4;
    /// INT1, then INT3 and INTO.
    pub(super) const SOFTWARE_EXCEPTIONS: [u32; 2] = [5, 6];
}
const HAS_CODE: u32 = 1 << 11;

/// The words that have an entry deliver an event.
#[must_use]
pub fn encode_event(event: Event) -> (u32, u32) {
    let (kind, vector, code) = match event {
        Event::Interrupt(vector) => (kind::INTERRUPT, vector, None),
        Event::Nmi => (kind::NMI, event::vector::NMI, None),
        Event::Exception(vector, code) => (kind::EXCEPTION, vector & 31, code),
        Event::Software(vector) => (kind::SOFTWARE, vector, None),
    };
    let has_code = if code.is_some() { HAS_CODE } else { 0 };
    (exit::VALID | kind << 8 | u32::from(vector) | has_code, code.unwrap_or(0))
}

/// The event whose delivery an exit cut short.
#[must_use]
pub fn decode_event((word, error): (u32, u32)) -> Option<Event> {
    if word & exit::VALID == 0 {
        return None;
    }
    let vector = word as u8;
    match word >> 8 & 7 {
        kind::INTERRUPT => Some(Event::Interrupt(vector)),
        kind::NMI => Some(Event::Nmi),
        kind::EXCEPTION => {
            Some(Event::Exception(vector & 31, (word & HAS_CODE != 0).then_some(error)))
        }
        // The guest comes to the instruction again.
        kind if kind == kind::SOFTWARE || kind::SOFTWARE_EXCEPTIONS.contains(&kind) => {
            Some(Event::Software(vector))
        }
        _ => None,
    }
}

impl<W: World> Vmx<W> {
    /// A virtual CPU whose registers are yet to be set.
    pub fn new(mut world: W) -> Self {
        world.guest_mut().pat = 0x0007_0406_0007_0406;
        let left = Left::default();
        Vmx {
            world,
            left,
            event: (0, 0),
            shadow: false,
            priority: 0,
            tsc_offset: 0,
            pdptes_due: false,
        }
    }

    /// What is blocked at the next entry. An event that is delivered ends a shadow; STI's needs IF.
    fn interruptibility(&self, windows: Windows, event: u32) -> u32 {
        let kind = event >> 8 & 7;
        let delivers = event & exit::VALID != 0;
        let is_shadow = self.shadow && !(delivers && matches!(kind, kind::INTERRUPT | kind::NMI));
        let interrupts = self.world.guest().rflags & virt::regs::flags::IF != 0;
        let by = if interrupts { blocked::BY_STI } else { blocked::BY_MOV_SS };
        let shadow = if is_shadow { by } else { 0 };
        // Delivering one, the CPU blocks others by itself.
        let is_in_nmi = windows.nmi && !(delivers && kind == kind::NMI);
        shadow | if is_in_nmi { blocked::BY_NMI } else { 0 }
    }

    fn msr_field(&mut self, number: u32) -> Option<&mut u64> {
        let guest = self.world.guest_mut();
        Some(match number {
            msr::STAR => &mut guest.star,
            msr::LSTAR => &mut guest.lstar,
            msr::CSTAR => &mut guest.cstar,
            msr::SYSCALL_MASK => &mut guest.syscall_mask,
            msr::KERNEL_GS_BASE => &mut guest.kernel_gs_base,
            msr::FS_BASE => &mut guest.segments[seg::FS].base,
            msr::GS_BASE => &mut guest.segments[seg::GS].base,
            msr::SYSENTER_CS => &mut guest.sysenter_cs,
            msr::SYSENTER_ESP => &mut guest.sysenter_esp,
            msr::SYSENTER_EIP => &mut guest.sysenter_eip,
            msr::PAT => &mut guest.pat,
            _ => return None,
        })
    }

    /// What follows from an exit before anybody looks at it.
    fn take(&mut self, left: Left) -> Exit {
        self.left = left;
        let guest = self.world.guest();
        let (rip, rsp, dr7) = (guest.rip, guest.rsp, guest.dr7);
        self.shadow = guest.interruptibility & (blocked::BY_STI | blocked::BY_MOV_SS) != 0;
        let exit = exit::decode(&left, rip);
        let extra = self.world.extra();
        extra.gprs[gpr::RSP] = rsp;
        extra.debug[7] = dr7;
        if matches!(exit, Exit::Exception { vector: event::vector::DB, .. }) {
            // B0 to B3, BD, BS: what the CPU would have put into DR6 (SDM 3B, 17.2.3).
            const CAUSES: u64 = 0xf | 1 << 13 | 1 << 14;
            extra.debug[6] = extra.debug[6] & !0xf | left.qualification & CAUSES;
        }
        exit
    }
}

impl<W: World> Vmrun for Vmx<W> {
    fn gprs(&mut self) -> &mut Gprs {
        &mut self.world.extra().gprs
    }

    fn rip(&self) -> u64 {
        self.world.guest().rip
    }

    fn set_rip(&mut self, rip: u64) {
        self.world.guest_mut().rip = rip;
    }

    fn rflags(&self) -> u64 {
        self.world.guest().rflags
    }

    fn set_rflags(&mut self, rflags: u64) {
        self.world.guest_mut().rflags = rflags;
    }

    fn system(&self) -> System {
        let Guest { segments, gdt, idt, cr0, cr3, cr4, efer, .. } = *self.world.guest();
        System { segments, gdt, idt, cr0, cr2: self.world.extra_ref().cr2, cr3, cr4, efer }
    }

    fn set_system(&mut self, system: &System) {
        let System { segments, gdt, idt, cr0, cr2, cr3, cr4, efer } = *system;
        self.world.extra().cr2 = cr2;
        let g = self.world.guest_mut();
        (g.segments, g.gdt, g.idt) = (segments, gdt, idt);
        let paging = (g.cr0, g.cr3, g.cr4, g.efer);
        (g.cr0, g.cr3, g.cr4, g.efer) = (cr0, cr3, cr4, efer);
        let changed = paging != (cr0, cr3, cr4, efer);
        self.pdptes_due = g.has_pdptes() && (changed || self.pdptes_due);
        self.world.flush_translations();
    }

    fn segment(&self, index: usize) -> Segment {
        self.world.guest().segments[index & 7]
    }

    fn cpl(&self) -> u8 {
        self.world.guest().cpl()
    }

    fn shadow(&self) -> bool {
        self.shadow
    }

    fn set_shadow(&mut self, shadow: bool) {
        self.shadow = shadow;
    }

    fn msr(&self, number: u32) -> Option<u64> {
        let guest = self.world.guest();
        Some(match number {
            msr::STAR => guest.star,
            msr::LSTAR => guest.lstar,
            msr::CSTAR => guest.cstar,
            msr::SYSCALL_MASK => guest.syscall_mask,
            msr::KERNEL_GS_BASE => guest.kernel_gs_base,
            msr::FS_BASE => guest.segments[seg::FS].base,
            msr::GS_BASE => guest.segments[seg::GS].base,
            msr::SYSENTER_CS => guest.sysenter_cs,
            msr::SYSENTER_ESP => guest.sysenter_esp,
            msr::SYSENTER_EIP => guest.sysenter_eip,
            msr::PAT => guest.pat,
            _ => return None,
        })
    }

    fn set_msr(&mut self, number: u32, value: u64) -> bool {
        self.msr_field(number).map(|field| *field = value).is_some()
    }

    fn debug_registers(&mut self) -> &mut [u64; 8] {
        &mut self.world.extra().debug
    }

    fn tsc_offset(&mut self) -> &mut u64 {
        &mut self.tsc_offset
    }

    fn xcr0(&mut self) -> &mut u64 {
        &mut self.world.extra().xcr0
    }

    fn priority(&self) -> u8 {
        self.priority
    }

    fn set_priority(&mut self, priority: u8) {
        self.priority = priority & 15;
    }

    fn next_rip(&self) -> Option<u64> {
        let guest = self.world.guest();
        let next = guest.rip.wrapping_add(u64::from(self.left.length));
        let is_64_bit = self.system().code_size(guest.rflags) == CodeSize::Bits64;
        Some(if is_64_bit { next } else { next & 0xffff_ffff })
    }

    fn inject(&mut self, event: Event) {
        self.event = encode_event(event);
    }

    fn cut_short(&mut self) -> Option<Event> {
        decode_event((core::mem::take(&mut self.left.vectoring), self.left.vectoring_error))
    }

    fn flush_translations(&mut self) {
        self.world.flush_translations();
    }

    fn cr4_allowed(&self) -> u64 {
        self.world.controls().cr4_allowed
    }

    fn pdptes_due(&self) -> Option<u64> {
        self.pdptes_due.then(|| self.world.guest().cr3 & 0xffff_ffe0)
    }

    fn set_pdptes(&mut self, entries: [u64; 4]) {
        self.world.guest_mut().pdptes = entries;
        self.pdptes_due = false;
    }

    fn enter(&mut self, windows: Windows, is_busy: &mut dyn FnMut() -> bool) -> Entered {
        let event = core::mem::take(&mut self.event);
        let extra = self.world.extra();
        let (rsp, dr7) = (extra.gprs[gpr::RSP], extra.debug[7]);
        let interruptibility = self.interruptibility(windows, event.0);
        let allowed = self.world.controls().cr4_allowed;
        let guest = self.world.guest_mut();
        (guest.rsp, guest.dr7, guest.interruptibility) = (rsp, dr7, interruptibility);
        if guest.cr4 & !allowed != 0 {
            self.left = Left { vectoring: event.0, vectoring_error: event.1, ..Left::default() };
            return Entered::Left(Exit::Invalid);
        }
        let request = Request {
            interrupt_window: windows.interrupt,
            nmi_window: windows.nmi,
            event,
            tsc_offset: self.tsc_offset,
        };
        let Some(mut left) = self.world.run(&request, is_busy) else {
            // Not delivered: as if it had been cut short at once.
            self.left = Left { vectoring: event.0, vectoring_error: event.1, ..Left::default() };
            return Entered::Busy;
        };
        if left.reason & exit::reason::ENTRY_FAILED != 0 {
            (left.vectoring, left.vectoring_error) = event;
        }
        Entered::Left(self.take(left))
    }
}
