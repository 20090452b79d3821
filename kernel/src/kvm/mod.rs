//! /dev/kvm: guests for programs, by KVM's interface (Documentation/virt/kvm/api.rst).
//!
//! A program opens the device, makes a guest ([`vm`]) with memory out of its own ([`memory`]) and
//! virtual CPUs ([`vcpu`]), and lets a thread run each. What a virtual CPU does is decided in
//! `mechanisms/virt`; [`host`] is its view of the rest; the machine enters the guest.
//!
//! What is hard: programs are as hostile as guests. Every ioctl may come at any time, from any
//! thread and with any values; what reaches the CPU as a guest's register is the guest's business
//! (`machine::vmrun`), and all other values are checked here.
//!
//! KVM_CHECK_EXTENSION tells the truth: `abi::kvm_capabilities` has what works and what does not.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::kvm::{self, cap};
use abi::kvm_capabilities::{Answer, CAPABILITIES};
use abi::{Errno, Result, general as raw};

use crate::base::user::UserPtr;
use crate::drivers::chrdev::{CharDevices, CharDriver};
use crate::process::current;
use crate::vfs::{File, FileOps, Inode};

mod clock;
mod coalesced;
mod cpuid;
mod events;
mod host;
mod irqchip;
mod memory;
mod run_area;
mod state;
mod vcpu;
mod vm;

/// misc devices, and kvm among them (Linux's list of devices).
pub const MAJOR: u32 = 10;
/// See [`MAJOR`].
pub const MINOR: u32 = 232;

/// Most virtual CPUs of one guest.
const MAX_VCPUS: u64 = 64;

/// /dev/kvm: ENODEV where the CPU cannot run guests.
pub const DEVICES: &[CharDevices] =
    &[CharDevices { major: MAJOR, first: MINOR, count: 1, driver: &Driver }];

struct Driver;

impl CharDriver for Driver {
    fn open(&self, node: Arc<dyn Inode>, _rdev: u64, _flags: u32) -> Result<Arc<dyn FileOps>> {
        machine::vmrun::ability().ok_or(Errno::ENODEV)?;
        Ok(Arc::new(Device { node }))
    }
}

struct Device {
    node: Arc<dyn Inode>,
}

impl FileOps for Device {
    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        match command {
            kvm::KVM_GET_API_VERSION if argument == 0 => Ok(kvm::API_VERSION),
            kvm::KVM_CREATE_VM if argument == 0 => vm::create(),
            kvm::KVM_CHECK_EXTENSION => Ok(capability(argument)),
            kvm::KVM_GET_VCPU_MMAP_SIZE if argument == 0 => Ok(kvm::run::PAGES * crate::mm::PAGE),
            kvm::KVM_GET_MSR_INDEX_LIST => write_list(argument, &virt::msr::LIST),
            kvm::KVM_GET_MSR_FEATURE_INDEX_LIST => write_list(argument, &[]),
            kvm::KVM_GET_SUPPORTED_CPUID => cpuid::write_supported(argument),
            kvm::KVM_GET_EMULATED_CPUID => cpuid::write_entries(argument, &[]),
            // Of features there are no model-specific registers to tell of.
            kvm::KVM_GET_MSRS => Ok(0),
            kvm::KVM_GET_API_VERSION | kvm::KVM_CREATE_VM | kvm::KVM_GET_VCPU_MMAP_SIZE => {
                Err(Errno::EINVAL)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.node.clone()
    }
}

/// What KVM_CHECK_EXTENSION answers: 0 is "no".
fn capability(number: u64) -> u64 {
    let row = CAPABILITIES.iter().find(|row| u64::from(row.number) == number);
    match row.map(|row| row.answer) {
        Some(Answer::Yes) => 1,
        Some(Answer::Number) => value(number as u32),
        Some(Answer::No) | None => 0,
    }
}

/// The answer where it is a number.
fn value(capability: u32) -> u64 {
    match capability {
        // Where its ring is in what a virtual CPU maps.
        cap::COALESCED_MMIO => kvm::run::COALESCED_PAGE,
        cap::ADJUST_CLOCK => kvm::CLOCK_TSC_STABLE.into(),
        cap::NR_VCPUS | cap::MAX_VCPUS | cap::MAX_VCPU_ID => MAX_VCPUS,
        cap::MANUAL_DIRTY_LOG_PROTECT2 => {
            kvm::DIRTY_LOG_MANUAL_PROTECT_ENABLE | kvm::DIRTY_LOG_INITIALLY_SET
        }
        cap::IRQ_ROUTING => irqchip::MAX_ROUTES as u64,
        cap::NR_MEMSLOTS => machine::vmrun::MAX_SLOTS as u64,
        _ => 0,
    }
}

/// Writes a counted list of numbers; E2BIG, with the count told, if there is no room.
fn write_list(at: u64, list: &[u32]) -> Result<u64> {
    let count = UserPtr::<u32>::new(at);
    let room = count.read()? as usize;
    count.write(&(list.len() as u32))?;
    if room < list.len() {
        return Err(Errno::E2BIG);
    }
    count.nth(1).write_many(list)?;
    Ok(0)
}

/// Reads `count` elements behind the head of a list.
fn read_entries<H, T>(at: u64, count: u32, most: usize) -> Result<Vec<T>>
where
    T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable,
{
    if count as usize > most {
        return Err(Errno::E2BIG);
    }
    UserPtr::<T>::new(at.wrapping_add(size_of::<H>() as u64)).read_many(count as usize)
}

/// EIO unless the running program is the one the guest was made by, whose memory it has.
fn check_owner(of: &Arc<crate::mm::Mm>) -> Result<()> {
    let own = current().process.mm()?;
    if Arc::ptr_eq(&own, of) { Ok(()) } else { Err(Errno::EIO) }
}

/// open(2)'s flags of the descriptors that ioctls give.
const OPEN: u32 = raw::O_RDWR;
