//! KVM_CHECK_EXTENSION against its table (`abi::kvm_capabilities`), and against the calls that are
//! really there.

use std::os::fd::AsRawFd as _;

use abi::kvm_capabilities::{Answer, CAPABILITIES};
use kvm_bindings as raw;
use kvm_ioctls::VmFd;

use crate::machine::{Guest, Result};
use crate::tests::ensure;

/// An address where nothing is: what a call reads or writes there fails, once the call is one.
const NOWHERE: u64 = 1 << 62;

/// Of a guest, or of a virtual CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Guest,
    Cpu,
}

/// Capabilities with a call: direction (1: written, 2: read), number and size of it.
const CALLS: [(u32, Of, [u64; 3]); 24] = [
    (raw::KVM_CAP_IRQFD, Of::Guest, [1, 0x76, 32]),
    (raw::KVM_CAP_PIT2, Of::Guest, [1, 0x77, 64]),
    (raw::KVM_CAP_IOEVENTFD, Of::Guest, [1, 0x79, 64]),
    (raw::KVM_CAP_ADJUST_CLOCK, Of::Guest, [1, 0x7b, 48]),
    (raw::KVM_CAP_SIGNAL_MSI, Of::Guest, [1, 0xa5, 32]),
    (raw::KVM_CAP_ENABLE_CAP_VM, Of::Guest, [1, 0xa3, 104]),
    (raw::KVM_CAP_COALESCED_MMIO, Of::Guest, [1, 0x67, 16]),
    (raw::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, Of::Guest, [3, 0xc0, 24]),
    (raw::KVM_CAP_USER_MEMORY2, Of::Guest, [1, 0x49, 160]),
    (raw::KVM_CAP_MEMORY_ATTRIBUTES, Of::Guest, [1, 0xd2, 32]),
    (raw::KVM_CAP_GUEST_MEMFD, Of::Guest, [3, 0xd4, 64]),
    (raw::KVM_CAP_DEVICE_CTRL, Of::Guest, [3, 0xe0, 12]),
    (raw::KVM_CAP_MP_STATE, Of::Cpu, [2, 0x98, 4]),
    (raw::KVM_CAP_VCPU_EVENTS, Of::Cpu, [2, 0x9f, 64]),
    (raw::KVM_CAP_DEBUGREGS, Of::Cpu, [2, 0xa1, 128]),
    (raw::KVM_CAP_XSAVE, Of::Cpu, [2, 0xa4, 4096]),
    (raw::KVM_CAP_XCRS, Of::Cpu, [2, 0xa6, 392]),
    (raw::KVM_CAP_SREGS2, Of::Cpu, [2, 0xcc, 320]),
    (raw::KVM_CAP_GET_TSC_KHZ, Of::Cpu, [0, 0xa3, 0]),
    (raw::KVM_CAP_TSC_CONTROL, Of::Cpu, [0, 0xa2, 0]),
    (raw::KVM_CAP_KVMCLOCK_CTRL, Of::Cpu, [0, 0xad, 0]),
    (raw::KVM_CAP_X86_SMM, Of::Cpu, [0, 0xb7, 0]),
    (raw::KVM_CAP_MCE, Of::Cpu, [1, 0x9c, 8]),
    (raw::KVM_CAP_NESTED_STATE, Of::Cpu, [3, 0xbe, 128]),
];

fn name(capability: u32) -> &'static str {
    CAPABILITIES.iter().find(|row| row.number == capability).map_or("none", |row| row.name)
}

/// The answer of the device and of a guest are the same, and as the table says.
pub fn as_the_table_says() -> Result<()> {
    let guest = Guest::real(&[0xf4])?;
    let of_vm = |vm: &VmFd, number: u32| vm.check_extension_raw(number.into());
    for number in 0..300 {
        let answer = guest.kvm.check_extension_raw(number.into());
        let same = of_vm(&guest.vm, number) == answer;
        let row = CAPABILITIES.iter().find(|row| row.number == number);
        let is_right = match row.map_or(Answer::No, |row| row.answer) {
            Answer::Yes => answer == 1,
            Answer::Number => answer > 0,
            Answer::No => answer == 0,
        };
        ensure(same && is_right, || format!("{number}, {}: {answer}", name(number)))?;
    }
    Ok(())
}

/// A capability is told if and only if its call is one.
pub fn have_their_calls() -> Result<()> {
    for (capability, of, [direction, number, size]) in CALLS {
        let guest = Guest::real(&[0xf4])?;
        let fd = if of == Of::Guest { guest.vm.as_raw_fd() } else { guest.cpu.as_raw_fd() };
        let command = direction << 30 | size << 16 | 0xae << 8 | number;
        // SAFETY: calls that take an address fail at this one; the others change this guest alone.
        let done = unsafe { libc::ioctl(fd, command, NOWHERE) };
        let error = std::io::Error::last_os_error().raw_os_error();
        let is_call = done >= 0 || error != Some(libc::ENOTTY);
        let told = guest.kvm.check_extension_raw(capability.into()) > 0;
        ensure(told == is_call, || format!("{}: told {told}, {error:?}", name(capability)))?;
    }
    Ok(())
}
