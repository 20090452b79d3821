//! Between the structures of KVM's interface and the registers of a virtual CPU.

use abi::kvm::{DebugRegs, DescriptorTable, Fpu, Regs, Segment, Sregs, Sregs2, VcpuEvents};
use abi::{Errno, Result, kvm};
use machine::fpu::{FXSAVE_BYTES, FpuState, state_bytes};
use virt::Event;
use virt::event::Pending;
use virt::exit::Vmrun;
use virt::regs::{self, System, Table, cr, flags, gpr, seg};

use alloc::vec::Vec;

/// All registers of a virtual CPU that programs ask for by KVM_GET_REGS.
pub(super) fn regs(cpu: &mut impl Vmrun) -> Regs {
    let (rip, rflags) = (cpu.rip(), cpu.rflags());
    let g = cpu.gprs();
    Regs {
        rax: g[gpr::RAX],
        rbx: g[gpr::RBX],
        rcx: g[gpr::RCX],
        rdx: g[gpr::RDX],
        rsi: g[gpr::RSI],
        rdi: g[gpr::RDI],
        rsp: g[gpr::RSP],
        rbp: g[gpr::RBP],
        r8: g[8],
        r9: g[9],
        r10: g[10],
        r11: g[11],
        r12: g[12],
        r13: g[13],
        r14: g[14],
        r15: g[15],
        rip,
        rflags,
    }
}

pub(super) fn set_regs(cpu: &mut impl Vmrun, r: &Regs) {
    *cpu.gprs() = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
    cpu.set_rip(r.rip);
    cpu.set_rflags(r.rflags | flags::FIXED);
}

fn segment(s: &regs::Segment) -> Segment {
    let bit = |n: u32| (s.attributes >> n & 1) as u8;
    Segment {
        base: s.base,
        limit: s.limit,
        selector: s.selector,
        kind: (s.attributes & 15) as u8,
        present: bit(7),
        dpl: (s.attributes >> 5 & 3) as u8,
        db: bit(10),
        s: bit(4),
        l: bit(9),
        g: bit(11),
        avl: bit(8),
        unusable: 1 - bit(7),
        padding: 0,
    }
}

fn set_segment(s: &Segment) -> regs::Segment {
    let bit = |on: u8, n: u32| u16::from(on & 1) << n;
    let present = s.present & 1 != 0 && s.unusable == 0;
    let attributes = u16::from(s.kind & 15)
        | bit(s.s, 4)
        | u16::from(s.dpl & 3) << 5
        | bit(present.into(), 7)
        | bit(s.avl, 8)
        | bit(s.l, 9)
        | bit(s.db, 10)
        | bit(s.g, 11);
    regs::Segment { base: s.base, limit: s.limit, selector: s.selector, attributes }
}

fn table(t: &Table) -> DescriptorTable {
    DescriptorTable { base: t.base, limit: t.limit, padding: [0; 3] }
}

fn set_table(t: &DescriptorTable) -> Table {
    Table { base: t.base, limit: t.limit }
}

/// KVM_GET_SREGS. `apic_base` is the interrupt controller's.
pub(super) fn sregs(cpu: &impl Vmrun, pending: &Pending, apic_base: u64) -> Sregs {
    let s = cpu.system();
    let at = |index: usize| segment(&s.segments[index]);
    let mut sregs = Sregs {
        cs: at(seg::CS),
        ds: at(seg::DS),
        es: at(seg::ES),
        fs: at(seg::FS),
        gs: at(seg::GS),
        ss: at(seg::SS),
        tr: at(seg::TR),
        ldt: at(seg::LDTR),
        gdt: table(&s.gdt),
        idt: table(&s.idt),
        cr0: s.cr0,
        cr2: s.cr2,
        cr3: s.cr3,
        cr4: s.cr4,
        cr8: cpu.priority().into(),
        efer: s.efer,
        apic_base,
        interrupt_bitmap: [0; 4],
    };
    if let Some(vector) = pending.external {
        sregs.interrupt_bitmap[usize::from(vector / 64)] |= 1 << (vector % 64);
    }
    sregs
}

/// KVM_SET_SREGS; EINVAL for modes that no CPU has.
pub(super) fn set_sregs(
    cpu: &mut impl Vmrun,
    pending: &mut Pending,
    s: &Sregs,
    cr4_allowed: u64,
) -> Result<()> {
    let long = s.efer & cr::EFER_LMA != 0;
    let paged = s.cr0 & cr::CR0_PG != 0;
    let is_bad = s.cr0 >> 32 != 0
        || paged && s.cr0 & cr::CR0_PE == 0
        || long && (!paged || s.cr4 & cr::CR4_PAE == 0 || s.efer & cr::EFER_LME == 0)
        || !long && s.efer & cr::EFER_LME != 0 && paged
        || s.cr0 & (cr::CR0_CD | cr::CR0_NW) == cr::CR0_NW
        || s.cr4 & !cr4_allowed != 0
        || s.efer & !0xffff != 0
        || s.cr8 > 15;
    if is_bad {
        return Err(Errno::EINVAL);
    }
    let mut system = System {
        gdt: set_table(&s.gdt),
        idt: set_table(&s.idt),
        cr0: s.cr0,
        cr2: s.cr2,
        cr3: s.cr3,
        cr4: s.cr4,
        efer: s.efer & !cr::EFER_SVME,
        ..System::default()
    };
    for (index, from) in [
        (seg::CS, &s.cs),
        (seg::DS, &s.ds),
        (seg::ES, &s.es),
        (seg::FS, &s.fs),
        (seg::GS, &s.gs),
        (seg::SS, &s.ss),
        (seg::TR, &s.tr),
        (seg::LDTR, &s.ldt),
    ] {
        system.segments[index] = set_segment(from);
    }
    cpu.set_system(&system);
    cpu.set_priority(s.cr8 as u8);
    let vector =
        (0..=255u8).rev().find(|v| s.interrupt_bitmap[usize::from(v / 64)] >> (v % 64) & 1 != 0);
    pending.external = vector;
    Ok(())
}

/// KVM_GET_SREGS2: the same, without what is pending.
pub(super) fn sregs2(s: &Sregs) -> Sregs2 {
    let &Sregs { cs, ds, es, fs, gs, ss, tr, ldt, gdt, idt, cr0, cr2, cr3, cr4, cr8, efer, .. } = s;
    let apic_base = s.apic_base;
    Sregs2 {
        cs,
        ds,
        es,
        fs,
        gs,
        ss,
        tr,
        ldt,
        gdt,
        idt,
        cr0,
        cr2,
        cr3,
        cr4,
        cr8,
        efer,
        apic_base,
        flags: 0,
        pdptrs: [0; 4],
    }
}

pub(super) fn from_sregs2(s: &Sregs2) -> Sregs {
    let &Sregs2 {
        cs, ds, es, fs, gs, ss, tr, ldt, gdt, idt, cr0, cr2, cr3, cr4, cr8, efer, ..
    } = s;
    let apic_base = s.apic_base;
    Sregs {
        cs,
        ds,
        es,
        fs,
        gs,
        ss,
        tr,
        ldt,
        gdt,
        idt,
        cr0,
        cr2,
        cr3,
        cr4,
        cr8,
        efer,
        apic_base,
        interrupt_bitmap: [0; 4],
    }
}

pub(super) fn debug_registers(cpu: &mut impl Vmrun) -> DebugRegs {
    let [a, b, c, d, _, _, dr6, dr7] = *cpu.debug_registers();
    DebugRegs { db: [a, b, c, d], dr6, dr7, ..DebugRegs::default() }
}

pub(super) fn set_debug_registers(cpu: &mut impl Vmrun, d: &DebugRegs) -> Result<()> {
    if d.flags != 0 || d.dr6 >> 32 != 0 || d.dr7 >> 32 != 0 {
        return Err(Errno::EINVAL);
    }
    let [a, b, c, e] = d.db;
    *cpu.debug_registers() = [a, b, c, e, 0, 0, d.dr6, d.dr7];
    Ok(())
}

// ------------------------------------------------------------------------------------------------
// Events

/// KVM_GET_VCPU_EVENTS.
pub(super) fn events(cpu: &impl Vmrun, pending: &Pending) -> VcpuEvents {
    let mut events = VcpuEvents {
        interrupt_shadow: cpu.shadow().into(),
        nmi_pending: pending.nmis.min(1),
        nmi_masked: pending.nmi_masked.into(),
        flags: kvm::VCPUEVENT_VALID_NMI_PENDING | kvm::VCPUEVENT_VALID_SHADOW,
        ..VcpuEvents::default()
    };
    let mut exception = pending.exception;
    match pending.cut_short {
        Some(Event::Interrupt(vector)) => {
            (events.interrupt_injected, events.interrupt_nr) = (1, vector);
        }
        Some(Event::Software(vector)) => {
            (events.interrupt_injected, events.interrupt_nr) = (1, vector);
            events.interrupt_soft = 1;
        }
        Some(Event::Nmi) => events.nmi_injected = 1,
        Some(Event::Exception(vector, error)) => exception = Some((vector, error)),
        None => {}
    }
    if let (None, Some(vector)) = (pending.cut_short, pending.external) {
        (events.interrupt_injected, events.interrupt_nr) = (1, vector);
    }
    if let Some((vector, error)) = exception {
        (events.exception_injected, events.exception_nr) = (1, vector);
        events.exception_has_error_code = error.is_some().into();
        events.exception_error_code = error.unwrap_or(0);
    }
    events
}

/// KVM_SET_VCPU_EVENTS.
pub(super) fn set_events(
    cpu: &mut impl Vmrun,
    pending: &mut Pending,
    e: &VcpuEvents,
) -> Result<()> {
    let known = kvm::VCPUEVENT_VALID_NMI_PENDING
        | kvm::VCPUEVENT_VALID_SIPI_VECTOR
        | kvm::VCPUEVENT_VALID_SHADOW
        | kvm::VCPUEVENT_VALID_SMM;
    let is_in_smm = e.flags & kvm::VCPUEVENT_VALID_SMM != 0 && e.smi[0] != 0;
    let bad_exception = e.exception_injected != 0 && (e.exception_nr > 31 || e.exception_nr == 2);
    if e.flags & !known != 0 || bad_exception || is_in_smm {
        return Err(Errno::EINVAL);
    }
    *pending = Pending { nmis: pending.nmis, ..Pending::default() };
    if e.exception_injected != 0 {
        let error = (e.exception_has_error_code != 0).then_some(e.exception_error_code);
        pending.exception = Some((e.exception_nr, error));
    }
    if e.interrupt_injected != 0 {
        pending.cut_short = Some(match e.interrupt_soft {
            0 => Event::Interrupt(e.interrupt_nr),
            _ => Event::Software(e.interrupt_nr),
        });
    }
    if e.nmi_injected != 0 {
        pending.cut_short = Some(Event::Nmi);
    }
    if e.flags & kvm::VCPUEVENT_VALID_NMI_PENDING != 0 {
        pending.nmis = e.nmi_pending.min(1);
    }
    if e.flags & kvm::VCPUEVENT_VALID_SHADOW != 0 {
        cpu.set_shadow(e.interrupt_shadow != 0);
    }
    pending.nmi_masked = e.nmi_masked != 0;
    Ok(())
}

// ------------------------------------------------------------------------------------------------
// Floating point

/// An XSAVE image in which components that XSAVE left out, being in their initial state, are
/// written out; at least [`state_bytes`] long.
pub(super) fn full_image(fpu: &FpuState) -> Result<Vec<u8>> {
    let mut image = Vec::new();
    image.try_reserve_exact(state_bytes()).map_err(|_| Errno::ENOMEM)?;
    image.extend_from_slice(fpu.bytes());
    let present = image[512];
    if present & 1 == 0 {
        image[..24].fill(0);
        image[..2].copy_from_slice(&0x37fu16.to_le_bytes());
        image[32..160].fill(0);
    }
    if present & 2 == 0 {
        image[160..416].fill(0);
    }
    Ok(image)
}

/// KVM_GET_FPU, from a full image.
pub(super) fn fpu(image: &[u8]) -> Fpu {
    let half = |at: usize| u16::from_le_bytes([image[at], image[at + 1]]);
    let wide = |at: usize| image[at..at + 8].iter().rev().fold(0, |v, &b| v << 8 | u64::from(b));
    let mut fpu = Fpu {
        fcw: half(0),
        fsw: half(2),
        ftwx: image[4],
        last_opcode: half(6),
        last_ip: wide(8),
        last_dp: wide(16),
        mxcsr: wide(24) as u32,
        ..Fpu::default()
    };
    for (register, from) in fpu.fpr.iter_mut().zip(image[32..160].chunks_exact(16)) {
        register.copy_from_slice(from);
    }
    for (register, from) in fpu.xmm.iter_mut().zip(image[160..416].chunks_exact(16)) {
        register.copy_from_slice(from);
    }
    fpu
}

/// KVM_SET_FPU, into a full image.
pub(super) fn set_fpu(image: &mut [u8], fpu: &Fpu) {
    image[..2].copy_from_slice(&fpu.fcw.to_le_bytes());
    image[2..4].copy_from_slice(&fpu.fsw.to_le_bytes());
    image[4] = fpu.ftwx;
    image[6..8].copy_from_slice(&fpu.last_opcode.to_le_bytes());
    image[8..16].copy_from_slice(&fpu.last_ip.to_le_bytes());
    image[16..24].copy_from_slice(&fpu.last_dp.to_le_bytes());
    image[24..28].copy_from_slice(&fpu.mxcsr.to_le_bytes());
    image[32..160].copy_from_slice(fpu.fpr.as_flattened());
    image[160..416].copy_from_slice(fpu.xmm.as_flattened());
    image[FXSAVE_BYTES] |= 3;
}
