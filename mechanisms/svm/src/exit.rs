//! From exit codes to [`Exit`] (AMD APM 2, appendix C).

use virt::exit::{Exit, Io};

/// Codes by name.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod code {
    pub const CR_READ: u64 = 0x00;
    pub const CR_WRITE: u64 = 0x10;
    pub const DR_READ: u64 = 0x20;
    pub const DR_WRITE: u64 = 0x30;
    pub const EXCEPTION: u64 = 0x40;
    pub const MACHINE_CHECK: u64 = 0x52;
    pub const INTR: u64 = 0x60;
    pub const NMI: u64 = 0x61;
    pub const SMI: u64 = 0x62;
    pub const INIT: u64 = 0x63;
    pub const VINTR: u64 = 0x64;
    pub const CR0_SELECTIVE: u64 = 0x65;
    pub const RDPMC: u64 = 0x6f;
    pub const CPUID: u64 = 0x72;
    pub const RSM: u64 = 0x73;
    pub const IRET: u64 = 0x74;
    pub const INVD: u64 = 0x76;
    pub const PAUSE: u64 = 0x77;
    pub const HLT: u64 = 0x78;
    pub const INVLPGA: u64 = 0x7a;
    pub const IO: u64 = 0x7b;
    pub const MSR: u64 = 0x7c;
    pub const TASK_SWITCH: u64 = 0x7d;
    pub const SHUTDOWN: u64 = 0x7f;
    pub const VMRUN: u64 = 0x80;
    pub const VMMCALL: u64 = 0x81;
    pub const RDTSCP: u64 = 0x87;
    pub const WBINVD: u64 = 0x89;
    pub const MONITOR: u64 = 0x8a;
    pub const MWAIT: u64 = 0x8b;
    pub const MWAIT_ARMED: u64 = 0x8c;
    pub const XSETBV: u64 = 0x8d;
    pub const RDPRU: u64 = 0x8e;
    pub const INVLPGB: u64 = 0xa0;
    pub const INVLPGB_ILLEGAL: u64 = 0xa1;
    pub const MCOMMIT: u64 = 0xa3;
    pub const TLBSYNC: u64 = 0xa4;
    pub const NESTED_FAULT: u64 = 0x400;
    pub const INVALID: u64 = u64::MAX;
    /// The same as QEMU writes it, which gives the field 32 bits.
    pub const INVALID_32: u64 = u32::MAX as u64;
    /// None of the manual's: a world's, of a CPU that left its own state in the block.
    pub const LOST: u64 = u64::MAX - 1;
}

/// What an exit code and its two words of information mean.
#[must_use]
pub fn decode(code: u64, info_1: u64, info_2: u64) -> Exit {
    match code {
        code::CR_READ..0x10 => Exit::ControlRegister { number: code as u8 & 15, write: false },
        code::CR_WRITE..0x20 => Exit::ControlRegister { number: code as u8 & 15, write: true },
        code::DR_READ..0x30 => Exit::DebugRegister { number: code as u8 & 15, write: false },
        code::DR_WRITE..0x40 => Exit::DebugRegister { number: code as u8 & 15, write: true },
        // A machine check is the host's, and was dealt with.
        code::MACHINE_CHECK => Exit::Host,
        code::EXCEPTION..0x60 => {
            Exit::Exception { vector: code as u8 & 0x1f, error: info_1 as u32 }
        }
        code::INTR | code::NMI | code::SMI | code::INIT => Exit::Host,
        code::VINTR => Exit::InterruptWindow,
        code::CR0_SELECTIVE => Exit::ControlRegister { number: 0, write: true },
        code::RDPMC => Exit::ReadCounter,
        code::CPUID => Exit::Cpuid,
        code::IRET => Exit::NmiReturn,
        code::INVD | code::WBINVD => Exit::CacheFlush,
        code::PAUSE => Exit::Pause,
        code::HLT => Exit::Halt,
        code::IO => io(info_1, info_2),
        code::MSR if info_1 & 1 == 0 => Exit::ReadMsr,
        code::MSR => Exit::WriteMsr,
        code::TASK_SWITCH => Exit::TaskSwitch,
        code::SHUTDOWN => Exit::Shutdown,
        code::VMMCALL => Exit::Hypercall,
        code::MONITOR | code::MWAIT | code::MWAIT_ARMED => Exit::Monitor,
        code::XSETBV => Exit::SetXcr,
        code::RSM | code::INVLPGA | code::VMRUN..=code::RDTSCP | code::RDPRU => Exit::Undefined,
        code::INVLPGB | code::INVLPGB_ILLEGAL | code::MCOMMIT | code::TLBSYNC => Exit::Undefined,
        code::NESTED_FAULT => Exit::NestedFault {
            address: info_2,
            write: info_1 & 1 << 1 != 0,
            exec: info_1 & 1 << 4 != 0,
        },
        code::INVALID | code::INVALID_32 => Exit::Invalid,
        code::LOST => Exit::Lost,
        other => Exit::Unknown(other),
    }
}

/// Port, width and direction (AMD APM 2, 15.10.2).
fn io(info: u64, next_rip: u64) -> Exit {
    let size = match info >> 4 & 7 {
        1 => 1,
        2 => 2,
        _ => 4,
    };
    Exit::Io(Io {
        port: (info >> 16) as u16,
        size,
        is_in: info & 1 != 0,
        is_string: info & 1 << 2 != 0,
        next_rip,
    })
}
