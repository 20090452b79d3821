//! From exit reasons to [`Exit`] (SDM 3D, appendix C; qualifications: SDM 3C, 28.2.1).

use virt::exit::{Exit, Io};

use crate::Left;

/// Reasons by name.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod reason {
    pub const EXCEPTION: u32 = 0;
    pub const INTERRUPT: u32 = 1;
    pub const TRIPLE_FAULT: u32 = 2;
    pub const INIT: u32 = 3;
    pub const SMI: u32 = 6;
    pub const INTERRUPT_WINDOW: u32 = 7;
    pub const NMI_WINDOW: u32 = 8;
    pub const TASK_SWITCH: u32 = 9;
    pub const CPUID: u32 = 10;
    pub const GETSEC: u32 = 11;
    pub const HLT: u32 = 12;
    pub const INVD: u32 = 13;
    pub const RDPMC: u32 = 15;
    pub const RSM: u32 = 17;
    pub const VMCALL: u32 = 18;
    pub const VMCLEAR: u32 = 19;
    pub const VMXON: u32 = 27;
    pub const CONTROL_REGISTER: u32 = 28;
    pub const DEBUG_REGISTER: u32 = 29;
    pub const PORT: u32 = 30;
    pub const RDMSR: u32 = 31;
    pub const WRMSR: u32 = 32;
    pub const BAD_GUEST_STATE: u32 = 33;
    pub const BAD_MSRS: u32 = 34;
    pub const MWAIT: u32 = 36;
    pub const MONITOR: u32 = 39;
    pub const PAUSE: u32 = 40;
    pub const MACHINE_CHECK: u32 = 41;
    pub const EPT_VIOLATION: u32 = 48;
    pub const INVEPT: u32 = 50;
    pub const RDTSCP: u32 = 51;
    pub const TIMER: u32 = 52;
    pub const INVVPID: u32 = 53;
    pub const WBINVD: u32 = 54;
    pub const XSETBV: u32 = 55;
    pub const INVPCID: u32 = 58;
    pub const VMFUNC: u32 = 59;
    pub const ENCLS: u32 = 60;
    pub const PCONFIG: u32 = 65;
    /// Set beside the reason: the entry itself failed.
    pub const ENTRY_FAILED: u32 = 1 << 31;
}

/// Vector and type of what an exit says of an event (SDM 3C, 25.9.2).
pub const VALID: u32 = 1 << 31;
/// Its type is that of an NMI.
pub const IS_NMI: u32 = 2 << 8;
/// The bits of the type.
pub const TYPE: u32 = 7 << 8;

/// Whether the host must take an NMI: it is what the guest was left for, and is not pending.
#[must_use]
pub fn is_nmi(left: &Left) -> bool {
    left.reason == reason::EXCEPTION && left.event & (VALID | TYPE) == VALID | IS_NMI
}

/// Whether the guest was left for a machine check.
#[must_use]
pub fn is_machine_check(left: &Left) -> bool {
    let vector = left.event & 0xff;
    left.reason & !reason::ENTRY_FAILED == reason::MACHINE_CHECK
        || left.reason == reason::EXCEPTION && vector == u32::from(virt::event::vector::MC)
}

/// What an exit means. `rip`: where the guest is.
#[must_use]
pub fn decode(left: &Left, rip: u64) -> Exit {
    use reason as r;
    let qualification = left.qualification;
    if left.reason & r::ENTRY_FAILED != 0 {
        return Exit::Invalid;
    }
    match left.reason & 0xffff {
        r::EXCEPTION if is_nmi(left) || is_machine_check(left) => Exit::Host,
        r::EXCEPTION => {
            Exit::Exception { vector: left.event as u8 & 0x1f, error: left.event_error }
        }
        r::INTERRUPT | r::INIT..=r::SMI | r::TIMER => Exit::Host,
        r::TRIPLE_FAULT => Exit::Shutdown,
        r::INTERRUPT_WINDOW => Exit::InterruptWindow,
        r::NMI_WINDOW => Exit::NmiWindow,
        r::TASK_SWITCH => Exit::TaskSwitch,
        r::CPUID => Exit::Cpuid,
        r::HLT => Exit::Halt,
        r::INVD | r::WBINVD => Exit::CacheFlush,
        r::RDPMC => Exit::ReadCounter,
        r::VMCALL => Exit::Hypercall,
        r::CONTROL_REGISTER => Exit::ControlRegister {
            number: qualification as u8 & 15,
            // MOV to it, CLTS and LMSW write, MOV from it reads.
            write: qualification >> 4 & 3 != 1,
        },
        r::DEBUG_REGISTER => Exit::DebugRegister {
            number: qualification as u8 & 7,
            write: qualification & 1 << 4 == 0,
        },
        r::PORT => io(qualification, rip.wrapping_add(u64::from(left.length))),
        r::RDMSR => Exit::ReadMsr,
        r::WRMSR => Exit::WriteMsr,
        r::BAD_GUEST_STATE | r::BAD_MSRS => Exit::Invalid,
        r::MWAIT | r::MONITOR => Exit::Monitor,
        r::PAUSE => Exit::Pause,
        r::EPT_VIOLATION => Exit::NestedFault {
            address: left.guest_physical,
            write: qualification & 1 << 1 != 0,
            exec: qualification & 1 << 2 != 0,
        },
        r::XSETBV => Exit::SetXcr,
        r::GETSEC | r::RSM | r::VMCLEAR..=r::VMXON | r::INVEPT | r::RDTSCP | r::INVVPID => {
            Exit::Undefined
        }
        r::INVPCID | r::VMFUNC | r::ENCLS | r::PCONFIG => Exit::Undefined,
        other => Exit::Unknown(other.into()),
    }
}

/// Port, width and direction (SDM 3C, table 28-5).
fn io(qualification: u64, next_rip: u64) -> Exit {
    let size = match qualification & 7 {
        0 => 1,
        1 => 2,
        _ => 4,
    };
    Exit::Io(Io {
        port: (qualification >> 16) as u16,
        size,
        is_in: qualification & 1 << 3 != 0,
        is_string: qualification & 1 << 4 != 0,
        next_rip,
    })
}
