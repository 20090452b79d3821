//! KVM's interface for x86: ioctl numbers, capabilities, reasons for exits, and structures
//! (linux/kvm.h, asm/kvm.h; Documentation/virt/kvm/api.rst).
//!
//! Sizes are asserted: an ioctl's number contains the size of what it is given.

#![expect(missing_docs, reason = "the names of linux/kvm.h")]

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// KVM_GET_API_VERSION's answer.
pub const API_VERSION: u64 = 12;

const KVMIO: u32 = 0xae;
const WRITE: u32 = 1;
const READ: u32 = 2;

const fn number(direction: u32, nr: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | KVMIO << 8 | nr
}
const fn io(nr: u32) -> u32 {
    number(0, nr, 0)
}
const fn iow<T>(nr: u32) -> u32 {
    number(WRITE, nr, size_of::<T>())
}
const fn ior<T>(nr: u32) -> u32 {
    number(READ, nr, size_of::<T>())
}
const fn iowr<T>(nr: u32) -> u32 {
    number(READ | WRITE, nr, size_of::<T>())
}

pub const KVM_GET_API_VERSION: u32 = io(0x00);
pub const KVM_CREATE_VM: u32 = io(0x01);
pub const KVM_GET_MSR_INDEX_LIST: u32 = iowr::<u32>(0x02);
pub const KVM_CHECK_EXTENSION: u32 = io(0x03);
pub const KVM_GET_VCPU_MMAP_SIZE: u32 = io(0x04);
pub const KVM_GET_SUPPORTED_CPUID: u32 = iowr::<Cpuid2>(0x05);
pub const KVM_GET_EMULATED_CPUID: u32 = iowr::<Cpuid2>(0x09);
pub const KVM_GET_MSR_FEATURE_INDEX_LIST: u32 = iowr::<u32>(0x0a);
pub const KVM_CREATE_VCPU: u32 = io(0x41);
pub const KVM_GET_DIRTY_LOG: u32 = iow::<DirtyLog>(0x42);
pub const KVM_SET_USER_MEMORY_REGION: u32 = iow::<UserMemoryRegion>(0x46);
pub const KVM_SET_USER_MEMORY_REGION2: u32 = iow::<UserMemoryRegion2>(0x49);
pub const KVM_SET_TSS_ADDR: u32 = io(0x47);
pub const KVM_SET_IDENTITY_MAP_ADDR: u32 = iow::<u64>(0x48);
pub const KVM_CREATE_IRQCHIP: u32 = io(0x60);
pub const KVM_IRQ_LINE: u32 = iow::<IrqLevel>(0x61);
pub const KVM_GET_IRQCHIP: u32 = iowr::<IrqChip>(0x62);
pub const KVM_SET_IRQCHIP: u32 = ior::<IrqChip>(0x63);
pub const KVM_IRQ_LINE_STATUS: u32 = iowr::<IrqLevel>(0x67);
pub const KVM_REGISTER_COALESCED_MMIO: u32 = iow::<CoalescedZone>(0x67);
pub const KVM_UNREGISTER_COALESCED_MMIO: u32 = iow::<CoalescedZone>(0x68);
pub const KVM_SET_GSI_ROUTING: u32 = iow::<IrqRouting>(0x6a);
pub const KVM_REINJECT_CONTROL: u32 = io(0x71);
pub const KVM_IRQFD: u32 = iow::<IrqFd>(0x76);
pub const KVM_CREATE_PIT2: u32 = iow::<PitConfig>(0x77);
pub const KVM_SET_BOOT_CPU_ID: u32 = io(0x78);
pub const KVM_IOEVENTFD: u32 = iow::<IoEventFd>(0x79);
pub const KVM_SET_CLOCK: u32 = iow::<ClockData>(0x7b);
pub const KVM_GET_CLOCK: u32 = ior::<ClockData>(0x7c);
pub const KVM_RUN: u32 = io(0x80);
pub const KVM_GET_REGS: u32 = ior::<Regs>(0x81);
pub const KVM_SET_REGS: u32 = iow::<Regs>(0x82);
pub const KVM_GET_SREGS: u32 = ior::<Sregs>(0x83);
pub const KVM_SET_SREGS: u32 = iow::<Sregs>(0x84);
pub const KVM_TRANSLATE: u32 = iowr::<Translation>(0x85);
pub const KVM_INTERRUPT: u32 = iow::<u32>(0x86);
pub const KVM_GET_MSRS: u32 = iowr::<Msrs>(0x88);
pub const KVM_SET_MSRS: u32 = iow::<Msrs>(0x89);
pub const KVM_SET_SIGNAL_MASK: u32 = iow::<u32>(0x8b);
pub const KVM_GET_FPU: u32 = ior::<Fpu>(0x8c);
pub const KVM_SET_FPU: u32 = iow::<Fpu>(0x8d);
pub const KVM_GET_LAPIC: u32 = ior::<LapicState>(0x8e);
pub const KVM_SET_LAPIC: u32 = iow::<LapicState>(0x8f);
pub const KVM_SET_CPUID2: u32 = iow::<Cpuid2>(0x90);
pub const KVM_GET_CPUID2: u32 = iowr::<Cpuid2>(0x91);
pub const KVM_SET_VAPIC_ADDR: u32 = iow::<u64>(0x93);
pub const KVM_GET_MP_STATE: u32 = ior::<u32>(0x98);
pub const KVM_SET_MP_STATE: u32 = iow::<u32>(0x99);
pub const KVM_NMI: u32 = io(0x9a);
pub const KVM_GET_PIT2: u32 = ior::<PitState2>(0x9f);
pub const KVM_SET_PIT2: u32 = iow::<PitState2>(0xa0);
pub const KVM_GET_VCPU_EVENTS: u32 = ior::<VcpuEvents>(0x9f);
pub const KVM_SET_VCPU_EVENTS: u32 = iow::<VcpuEvents>(0xa0);
pub const KVM_GET_DEBUGREGS: u32 = ior::<DebugRegs>(0xa1);
pub const KVM_SET_DEBUGREGS: u32 = iow::<DebugRegs>(0xa2);
pub const KVM_SET_TSC_KHZ: u32 = io(0xa2);
pub const KVM_GET_TSC_KHZ: u32 = io(0xa3);
pub const KVM_ENABLE_CAP: u32 = iow::<EnableCap>(0xa3);
pub const KVM_GET_XSAVE: u32 = ior::<Xsave>(0xa4);
pub const KVM_SET_XSAVE: u32 = iow::<Xsave>(0xa5);
pub const KVM_SIGNAL_MSI: u32 = iow::<Msi>(0xa5);
pub const KVM_GET_XCRS: u32 = ior::<Xcrs>(0xa6);
pub const KVM_SET_XCRS: u32 = iow::<Xcrs>(0xa7);
pub const KVM_KVMCLOCK_CTRL: u32 = io(0xad);
pub const KVM_CLEAR_DIRTY_LOG: u32 = iowr::<ClearDirtyLog>(0xc0);
pub const KVM_GET_SREGS2: u32 = ior::<Sregs2>(0xcc);
pub const KVM_SET_SREGS2: u32 = iow::<Sregs2>(0xcd);

/// Capabilities (KVM_CHECK_EXTENSION).
pub mod cap {
    #![expect(missing_docs, reason = "the names of linux/kvm.h")]
    pub const NR_VCPUS: u32 = 9;
    pub const NR_MEMSLOTS: u32 = 10;
    pub const COALESCED_MMIO: u32 = 15;
    pub const IRQ_ROUTING: u32 = 25;
    pub const ADJUST_CLOCK: u32 = 39;
    pub const MAX_VCPUS: u32 = 66;
    pub const SPLIT_IRQCHIP: u32 = 121;
    pub const MAX_VCPU_ID: u32 = 128;
    pub const MANUAL_DIRTY_LOG_PROTECT2: u32 = 168;
}

/// Reasons in [`run::EXIT_REASON`].
pub mod exit {
    #![expect(missing_docs, reason = "the names of linux/kvm.h")]
    pub const UNKNOWN: u32 = 0;
    pub const IO: u32 = 2;
    pub const HLT: u32 = 5;
    pub const MMIO: u32 = 6;
    pub const IRQ_WINDOW_OPEN: u32 = 7;
    pub const SHUTDOWN: u32 = 8;
    pub const FAIL_ENTRY: u32 = 9;
    pub const INTR: u32 = 10;
    pub const INTERNAL_ERROR: u32 = 17;
    pub const IOAPIC_EOI: u32 = 26;
}

/// Offsets in `struct kvm_run`, which a VMM maps.
pub mod run {
    #![expect(missing_docs, reason = "the names of linux/kvm.h")]
    pub const REQUEST_INTERRUPT_WINDOW: usize = 0;
    pub const IMMEDIATE_EXIT: usize = 1;
    pub const EXIT_REASON: usize = 8;
    pub const READY_FOR_INTERRUPT_INJECTION: usize = 12;
    pub const IF_FLAG: usize = 13;
    pub const CR8: usize = 16;
    pub const APIC_BASE: usize = 24;
    /// What belongs to the reason.
    pub const EXIT: usize = 32;
    pub const PAGES: u64 = 3;
    /// Data of port transfers.
    pub const PORT_PAGE: u64 = 1;
    /// `struct kvm_coalesced_mmio_ring`.
    pub const COALESCED_PAGE: u64 = 2;
}

/// KVM_GET_CLOCK: the clock goes with the TSC, on all CPUs.
pub const CLOCK_TSC_STABLE: u32 = 2;
/// Bits of CPUID leaf 0x4000_0001, EAX.
pub const FEATURE_CLOCKSOURCE: u32 = 1;
pub const FEATURE_NOP_IO_DELAY: u32 = 1 << 1;
pub const FEATURE_CLOCKSOURCE2: u32 = 1 << 3;
pub const FEATURE_CLOCKSOURCE_STABLE: u32 = 1 << 24;
pub const MEM_LOG_DIRTY_PAGES: u32 = 1;
pub const MEM_READONLY: u32 = 2;
pub const DIRTY_LOG_MANUAL_PROTECT_ENABLE: u64 = 1;
pub const DIRTY_LOG_INITIALLY_SET: u64 = 2;
/// Reasons of the hardware's in KVM_EXIT_FAIL_ENTRY: it refused the state, or it lost the guest (of
/// Limen's; no CPU says so).
pub const FAIL_ENTRY_REFUSED: u64 = u64::MAX;
pub const FAIL_ENTRY_LOST: u64 = 0x6c6f_7374;
pub const INTERNAL_ERROR_EMULATION: u32 = 1;
pub const INTERNAL_ERROR_UNEXPECTED_EXIT_REASON: u32 = 4;
pub const CPUID_FLAG_SIGNIFCANT_INDEX: u32 = 1;
pub const VCPUEVENT_VALID_NMI_PENDING: u32 = 1;
pub const VCPUEVENT_VALID_SIPI_VECTOR: u32 = 2;
pub const VCPUEVENT_VALID_SHADOW: u32 = 4;
pub const VCPUEVENT_VALID_SMM: u32 = 8;
pub const IRQFD_FLAG_DEASSIGN: u32 = 1;
pub const IRQFD_FLAG_RESAMPLE: u32 = 2;
pub const IOEVENTFD_FLAG_DATAMATCH: u32 = 1;
pub const IOEVENTFD_FLAG_PIO: u32 = 2;
pub const IOEVENTFD_FLAG_DEASSIGN: u32 = 4;
pub const IRQ_ROUTING_IRQCHIP: u32 = 1;
pub const IRQ_ROUTING_MSI: u32 = 2;
pub const IRQCHIP_PIC_MASTER: u32 = 0;
pub const IRQCHIP_PIC_SLAVE: u32 = 1;
pub const IRQCHIP_IOAPIC: u32 = 2;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind),* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}

layouts! {
    UserMemoryRegion, 32 {
        slot: u32, flags: u32, guest_phys_addr: u64, memory_size: u64, userspace_addr: u64,
    }
    UserMemoryRegion2, 160 {
        slot: u32, flags: u32, guest_phys_addr: u64, memory_size: u64, userspace_addr: u64,
        guest_memfd_offset: u64, guest_memfd: u32, padding: u32, padding2: [u64; 14],
    }
    Regs, 144 {
        rax: u64, rbx: u64, rcx: u64, rdx: u64, rsi: u64, rdi: u64, rsp: u64, rbp: u64,
        r8: u64, r9: u64, r10: u64, r11: u64, r12: u64, r13: u64, r14: u64, r15: u64,
        rip: u64, rflags: u64,
    }
    Segment, 24 {
        base: u64, limit: u32, selector: u16, kind: u8, present: u8, dpl: u8, db: u8, s: u8, l: u8,
        g: u8, avl: u8, unusable: u8, padding: u8,
    }
    DescriptorTable, 16 { base: u64, limit: u16, padding: [u16; 3] }
    Sregs, 312 {
        cs: Segment, ds: Segment, es: Segment, fs: Segment, gs: Segment, ss: Segment, tr: Segment,
        ldt: Segment, gdt: DescriptorTable, idt: DescriptorTable,
        cr0: u64, cr2: u64, cr3: u64, cr4: u64, cr8: u64, efer: u64, apic_base: u64,
        interrupt_bitmap: [u64; 4],
    }
    Sregs2, 320 {
        cs: Segment, ds: Segment, es: Segment, fs: Segment, gs: Segment, ss: Segment, tr: Segment,
        ldt: Segment, gdt: DescriptorTable, idt: DescriptorTable,
        cr0: u64, cr2: u64, cr3: u64, cr4: u64, cr8: u64, efer: u64, apic_base: u64,
        flags: u64, pdptrs: [u64; 4],
    }
    Fpu, 416 {
        fpr: [[u8; 16]; 8], fcw: u16, fsw: u16, ftwx: u8, pad1: u8, last_opcode: u16,
        last_ip: u64, last_dp: u64, xmm: [[u8; 16]; 16], mxcsr: u32, pad2: u32,
    }
    Translation, 24 {
        linear_address: u64, physical_address: u64, valid: u8, writeable: u8, usermode: u8,
        pad: [u8; 5],
    }
    /// Followed by entries.
    Msrs, 8 { nmsrs: u32, pad: u32 }
    MsrEntry, 16 { index: u32, reserved: u32, data: u64 }
    /// Followed by entries.
    Cpuid2, 8 { nent: u32, padding: u32 }
    CpuidEntry2, 40 {
        function: u32, index: u32, flags: u32, eax: u32, ebx: u32, ecx: u32, edx: u32,
        padding: [u32; 3],
    }
    VcpuEvents, 64 {
        exception_injected: u8, exception_nr: u8, exception_has_error_code: u8,
        exception_pending: u8, exception_error_code: u32,
        interrupt_injected: u8, interrupt_nr: u8, interrupt_soft: u8, interrupt_shadow: u8,
        nmi_injected: u8, nmi_pending: u8, nmi_masked: u8, nmi_pad: u8,
        sipi_vector: u32, flags: u32, smi: [u8; 4], triple_fault_pending: u8,
        reserved: [u8; 26], exception_has_payload: u8, exception_payload: u64,
    }
    DebugRegs, 128 { db: [u64; 4], dr6: u64, dr7: u64, flags: u64, reserved: [u64; 9] }
    Xsave, 4096 { region: [u8; 4096] }
    Xcr, 16 { xcr: u32, reserved: u32, value: u64 }
    Xcrs, 392 { nr_xcrs: u32, flags: u32, xcrs: [Xcr; 16], padding: [u64; 16] }
    LapicState, 1024 { regs: [u8; 1024] }
    IrqLevel, 8 { irq: u32, level: u32 }
    IrqChip, 520 { chip_id: u32, pad: u32, chip: [u8; 512] }
    CoalescedZone, 16 { addr: u64, size: u32, pio: u32 }
    /// Followed by entries.
    IrqRouting, 8 { nr: u32, flags: u32 }
    /// `data`: chip and pin, or address (low, high) and data of a message.
    IrqRoutingEntry, 48 { gsi: u32, kind: u32, flags: u32, pad: u32, data: [u32; 8] }
    IrqFd, 32 { fd: u32, gsi: u32, flags: u32, resamplefd: u32, pad: [u8; 16] }
    PitConfig, 64 { flags: u32, pad: [u32; 15] }
    PitChannel, 24 {
        count: u32, latched_count: u16, count_latched: u8, status_latched: u8, status: u8,
        read_state: u8, write_state: u8, write_latch: u8, rw_mode: u8, mode: u8, bcd: u8, gate: u8,
        count_load_time: i64,
    }
    PitState2, 112 { channels: [PitChannel; 3], flags: u32, reserved: [u32; 9] }
    IoEventFd, 64 {
        datamatch: u64, addr: u64, len: u32, fd: i32, flags: u32, pad: [u8; 36],
    }
    ClockData, 48 {
        clock: u64, flags: u32, pad0: u32, realtime: u64, host_tsc: u64, pad: [u32; 4],
    }
    Msi, 32 {
        address_lo: u32, address_hi: u32, data: u32, flags: u32, devid: u32, pad: [u8; 12],
    }
    DirtyLog, 16 { slot: u32, padding: u32, dirty_bitmap: u64 }
    ClearDirtyLog, 24 { slot: u32, num_pages: u32, first_page: u64, dirty_bitmap: u64 }
    EnableCap, 104 { cap: u32, flags: u32, args: [u64; 4], pad: [u8; 64] }
    CoalescedRing, 8 { first: u32, last: u32 }
    CoalescedEntry, 24 { phys_addr: u64, len: u32, pio: u32, data: [u8; 8] }
}

/// Reasons for exits that carry no more than themselves; in `struct kvm_run` at [`run::EXIT`].
#[derive(IntoBytes, Immutable, Clone, Copy, Debug)]
#[repr(C)]
pub struct RunIo {
    /// 0: IN, 1: OUT.
    pub direction: u8,
    pub size: u8,
    pub port: u16,
    pub count: u32,
    pub data_offset: u64,
}

#[derive(IntoBytes, Immutable, Clone, Copy, Debug)]
#[repr(C)]
pub struct RunMmio {
    pub phys_addr: u64,
    pub data: [u8; 8],
    pub len: u32,
    pub is_write: u8,
    pub pad: [u8; 3],
}
