//! A guest's registers in the control block, and one entry.

use virt::exit::{Entered, Exit, Vmrun, Windows};
use virt::msr;
use virt::regs::{Gprs, Segment, System, Table, attribute, cr, gpr, seg};
use virt::{Event, event};

use crate::exit::decode;
use crate::vmcb::{self, Save, intercept, interrupt_control};

/// What one entry asks for, beside what is intercepted always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`intercept::OPTIONAL`].
    pub intercepts: u32,
    /// CR8 writes, too.
    pub intercept_cr: u32,
    /// V_TPR, V_IRQ, its priority, V_IGN_TPR.
    pub interrupt_control: u64,
    /// The word of an event to deliver.
    pub event: u64,
    /// Interrupts wait for one more instruction.
    pub shadow: bool,
    /// Added to the TSC.
    pub tsc_offset: u64,
}

/// What an exit left in the control area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in `vmcb::Control`")]
pub struct Left {
    pub exit_code: u64,
    pub exit_info_1: u64,
    pub exit_info_2: u64,
    pub exit_interrupt_info: u64,
    pub interrupt_control: u64,
    pub shadow: bool,
    pub next_rip: u64,
}

/// Registers that the world switches by itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// General registers; RAX and RSP are the save area's.
    pub gprs: Gprs,
    /// Debug registers; DR6 and DR7 are the save area's.
    pub debug: [u64; 8],
    /// What XSAVE manages.
    pub xcr0: u64,
}

/// What executes VMRUN.
pub trait World {
    /// The guest's registers in the control block.
    fn save(&self) -> &Save;
    /// The same, to be changed.
    fn save_mut(&mut self) -> &mut Save;
    /// The others.
    fn extra(&mut self) -> &mut Extra;
    /// The next entry forgets this CPU's translations of the guest.
    fn flush_translations(&mut self);
    /// Whether [`Left::next_rip`] is told.
    fn has_next_rip(&self) -> bool;
    /// Enters, unless `is_busy` says otherwise when nothing can come between any more.
    fn run(&mut self, request: &Request, is_busy: &mut dyn FnMut() -> bool) -> Option<Left>;
}

/// A virtual CPU of AMD's.
pub struct Svm<W: World> {
    /// What runs it.
    pub world: W,
    left: Left,
    event: u64,
    shadow: bool,
    priority: u8,
    tsc_offset: u64,
    /// EFER.LME as the guest has it. In the block it stands only beside CR0.PG, and while it is set
    /// CR0 is written by software. So no exit finds LME without paging: the CPU that QEMU emulates
    /// (seen with 7.2) then takes the host's CR0 while EFER and CR4 are the guest's still, and
    /// where that CR4 has no PAE it keeps the guest's CR0 for the host.
    long_mode: bool,
}

/// Types in the word of an event (AMD APM 2, 15.20).
mod kind {
    pub(super) const INTERRUPT: u64 = 0;
    pub(super) const NMI: u64 = 2;
    pub(super) const EXCEPTION: u64 = 3;
    pub(super) const SOFTWARE: u64 = 4;
}
const VALID: u64 = 1 << 31;
const HAS_CODE: u64 = 1 << 11;

/// The word that has VMRUN deliver an event.
#[must_use]
pub fn encode_event(event: Event) -> u64 {
    let (kind, vector, code) = match event {
        Event::Interrupt(vector) => (kind::INTERRUPT, vector, None),
        Event::Nmi => (kind::NMI, event::vector::NMI, None),
        Event::Exception(vector, code) => (kind::EXCEPTION, vector & 31, code),
        Event::Software(vector) => (kind::SOFTWARE, vector, None),
    };
    let code = code.map_or(0, |code| HAS_CODE | u64::from(code) << 32);
    VALID | kind << 8 | u64::from(vector) | code
}

/// The event whose delivery an exit cut short.
#[must_use]
pub fn decode_event(word: u64) -> Option<Event> {
    if word & VALID == 0 {
        return None;
    }
    let vector = word as u8;
    let code = (word & HAS_CODE != 0).then_some((word >> 32) as u32);
    match word >> 8 & 7 {
        kind::INTERRUPT => Some(Event::Interrupt(vector)),
        kind::NMI => Some(Event::Nmi),
        kind::EXCEPTION => Some(Event::Exception(vector & 31, code)),
        kind::SOFTWARE => Some(Event::Software(vector)),
        _ => None,
    }
}

fn load(from: &vmcb::Segment) -> Segment {
    let vmcb::Segment { selector, attributes, limit, base } = *from;
    Segment { base, limit, selector, attributes: attributes & 0xfff }
}

fn store(from: &Segment) -> vmcb::Segment {
    let Segment { base, limit, selector, attributes } = *from;
    vmcb::Segment { selector, attributes: attributes & 0xfff, limit, base }
}

impl<W: World> Svm<W> {
    /// A virtual CPU whose registers are yet to be set.
    pub fn new(mut world: W) -> Self {
        world.save_mut().pat = 0x0007_0406_0007_0406;
        let left = Left::default();
        Svm { world, left, event: 0, shadow: false, priority: 0, tsc_offset: 0, long_mode: false }
    }

    fn request(&mut self, windows: Windows) -> Request {
        let mut request = Request {
            interrupt_control: u64::from(self.priority),
            event: core::mem::take(&mut self.event),
            shadow: self.shadow,
            tsc_offset: self.tsc_offset,
            ..Request::default()
        };
        if windows.interrupt {
            request.intercepts |= intercept::VINTR;
            request.interrupt_control |= interrupt_control::IRQ
                | interrupt_control::PRIORITY
                | interrupt_control::IGNORE_TPR;
        }
        if self.long_mode {
            request.intercepts |= intercept::CR0_SELECTIVE;
        }
        if windows.nmi {
            request.intercepts |= intercept::IRET;
        }
        if windows.priority {
            request.intercept_cr |= intercept::CR8_WRITE;
        }
        request
    }

    fn segments(save: &mut Save) -> [&mut vmcb::Segment; 8] {
        let Save { es, cs, ss, ds, fs, gs, ldtr, tr, .. } = save;
        [es, cs, ss, ds, fs, gs, ldtr, tr]
    }

    fn msr_field(&mut self, number: u32) -> Option<&mut u64> {
        let save = self.world.save_mut();
        Some(match number {
            msr::STAR => &mut save.star,
            msr::LSTAR => &mut save.lstar,
            msr::CSTAR => &mut save.cstar,
            msr::SYSCALL_MASK => &mut save.syscall_mask,
            msr::KERNEL_GS_BASE => &mut save.kernel_gs_base,
            msr::FS_BASE => &mut save.fs.base,
            msr::GS_BASE => &mut save.gs.base,
            msr::SYSENTER_CS => &mut save.sysenter_cs,
            msr::SYSENTER_ESP => &mut save.sysenter_esp,
            msr::SYSENTER_EIP => &mut save.sysenter_eip,
            msr::PAT => &mut save.pat,
            _ => return None,
        })
    }
}

impl<W: World> Vmrun for Svm<W> {
    fn gprs(&mut self) -> &mut Gprs {
        &mut self.world.extra().gprs
    }

    fn rip(&self) -> u64 {
        self.world.save().rip
    }

    fn set_rip(&mut self, rip: u64) {
        self.world.save_mut().rip = rip;
    }

    fn rflags(&self) -> u64 {
        self.world.save().rflags
    }

    fn set_rflags(&mut self, rflags: u64) {
        self.world.save_mut().rflags = rflags;
    }

    fn system(&self) -> System {
        let s = self.world.save();
        let table = |t: &vmcb::Segment| Table { base: t.base, limit: t.limit as u16 };
        let long_mode = if self.long_mode { cr::EFER_LME } else { 0 };
        System {
            segments: [&s.es, &s.cs, &s.ss, &s.ds, &s.fs, &s.gs, &s.ldtr, &s.tr].map(load),
            gdt: table(&s.gdtr),
            idt: table(&s.idtr),
            cr0: s.cr0,
            cr2: s.cr2,
            cr3: s.cr3,
            cr4: s.cr4,
            efer: s.efer & !(cr::EFER_SVME | cr::EFER_LME) | long_mode,
        }
    }

    fn set_system(&mut self, system: &System) {
        self.long_mode = system.efer & cr::EFER_LME != 0;
        let s = self.world.save_mut();
        for (to, from) in Self::segments(s).into_iter().zip(&system.segments) {
            *to = store(from);
        }
        let table = |t: &Table| vmcb::Segment {
            base: t.base,
            limit: t.limit.into(),
            ..vmcb::Segment::default()
        };
        s.gdtr = table(&system.gdt);
        s.idtr = table(&system.idt);
        (s.cr0, s.cr2, s.cr4) = (system.cr0, system.cr2, system.cr4);
        // The CPU runs a guest only with this bit; the guest does not see it.
        s.efer = system.efer | cr::EFER_SVME;
        if system.cr0 & cr::CR0_PG == 0 {
            s.efer &= !cr::EFER_LME;
        }
        let stack = system.segments[seg::SS].attributes;
        s.cpl = (stack >> attribute::DPL_SHIFT & 3) as u8;
        if s.cr3 != system.cr3 {
            s.cr3 = system.cr3;
        }
        self.world.flush_translations();
    }

    fn segment(&self, index: usize) -> Segment {
        let s = self.world.save();
        load([&s.es, &s.cs, &s.ss, &s.ds, &s.fs, &s.gs, &s.ldtr, &s.tr][index & 7])
    }

    fn cpl(&self) -> u8 {
        self.world.save().cpl & 3
    }

    fn shadow(&self) -> bool {
        self.shadow
    }

    fn set_shadow(&mut self, shadow: bool) {
        self.shadow = shadow;
    }

    fn msr(&self, number: u32) -> Option<u64> {
        let s = self.world.save();
        Some(match number {
            msr::STAR => s.star,
            msr::LSTAR => s.lstar,
            msr::CSTAR => s.cstar,
            msr::SYSCALL_MASK => s.syscall_mask,
            msr::KERNEL_GS_BASE => s.kernel_gs_base,
            msr::FS_BASE => s.fs.base,
            msr::GS_BASE => s.gs.base,
            msr::SYSENTER_CS => s.sysenter_cs,
            msr::SYSENTER_ESP => s.sysenter_esp,
            msr::SYSENTER_EIP => s.sysenter_eip,
            msr::PAT => s.pat,
            _ => return None,
        })
    }

    fn set_msr(&mut self, number: u32, value: u64) -> bool {
        match self.msr_field(number) {
            Some(field) => {
                *field = value;
                true
            }
            None => false,
        }
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
        self.world.has_next_rip().then_some(self.left.next_rip)
    }

    fn inject(&mut self, event: Event) {
        self.event = encode_event(event);
    }

    fn cut_short(&mut self) -> Option<Event> {
        decode_event(core::mem::take(&mut self.left.exit_interrupt_info))
    }

    fn flush_translations(&mut self) {
        self.world.flush_translations();
    }

    fn enter(&mut self, windows: Windows, is_busy: &mut dyn FnMut() -> bool) -> Entered {
        let request = self.request(windows);
        let extra = self.world.extra();
        let (rax, rsp) = (extra.gprs[gpr::RAX], extra.gprs[gpr::RSP]);
        let (dr6, dr7) = (extra.debug[6], extra.debug[7]);
        let save = self.world.save_mut();
        (save.rax, save.rsp, save.dr6, save.dr7) = (rax, rsp, dr6, dr7);
        let Some(left) = self.world.run(&request, is_busy) else {
            // Not delivered: as if it had been cut short at once.
            self.left = Left { exit_interrupt_info: request.event, ..Left::default() };
            return Entered::Busy;
        };
        self.left = left;
        // Taken by the CPU, unless the entry itself failed.
        let exit = decode(left.exit_code, left.exit_info_1, left.exit_info_2);
        if exit == Exit::Invalid {
            self.left.exit_interrupt_info = request.event;
        }
        self.shadow = left.shadow;
        self.priority = (left.interrupt_control & interrupt_control::TPR) as u8;
        let save = self.world.save();
        let (rax, rsp, dr6, dr7) = (save.rax, save.rsp, save.dr6, save.dr7);
        let extra = self.world.extra();
        (extra.gprs[gpr::RAX], extra.gprs[gpr::RSP]) = (rax, rsp);
        (extra.debug[6], extra.debug[7]) = (dr6, dr7);
        Entered::Left(exit)
    }
}
