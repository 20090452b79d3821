//! Virtio devices whose registers lie at fixed places in memory (4.2), as in QEMU's microVM and
//! Firecracker.
//!
//! Nothing enumerates them. The command line may list them in Linux's notation,
//! `virtio_mmio.device=SIZE@ADDRESS:GSI`; without that, a machine without a PCI host bridge is
//! searched where QEMU's microVM has its slots (its own table of them is AML, see `formats::acpi`).

use alloc::boxed::Box;
use alloc::vec::Vec;

use formats::params::{self, MmioDevice};

use super::queue::Doorbell;
use super::{DeviceError, OnInterrupt, QueueAddresses};
use crate::device::mmio::Registers;
use crate::device::{ioapic, pci, platform};

const MAGIC: usize = 0x00;
const VERSION: usize = 0x04;
const DEVICE_ID: usize = 0x08;
const DEVICE_FEATURES: usize = 0x10;
const DEVICE_FEATURES_SELECT: usize = 0x14;
const DRIVER_FEATURES: usize = 0x20;
const DRIVER_FEATURES_SELECT: usize = 0x24;
const QUEUE_SELECT: usize = 0x30;
const QUEUE_SIZE_MAX: usize = 0x34;
const QUEUE_SIZE: usize = 0x38;
const QUEUE_READY: usize = 0x44;
const QUEUE_NOTIFY: usize = 0x50;
const INTERRUPT_STATUS: usize = 0x60;
const INTERRUPT_ACK: usize = 0x64;
const STATUS: usize = 0x70;
const QUEUE_DESCRIPTORS: usize = 0x80;
const QUEUE_DRIVER: usize = 0x90;
const QUEUE_DEVICE: usize = 0xa0;
const CONFIG: usize = 0x100;

const MAGIC_VALUE: u32 = 0x7472_6976;
const SLOT_BYTES: usize = 0x200;
const MAX_CONFIG_BYTES: usize = 0x1000 - CONFIG;
/// QEMU's microVM: the first slot. With a second I/O APIC there are 24 slots, on its lines.
const MICROVM_BASE: u64 = 0xfeb0_0000;
const MICROVM_IRQ_ACPI: u32 = 16;
const MICROVM_IRQ_LEGACY: u32 = 5;
const MAX_LISTED: usize = 64;

/// A device of this transport.
pub(super) struct MmioTransport {
    registers: Registers,
    gsi: u32,
}

/// All devices of this transport.
pub(super) fn find(command_line: &str) -> Vec<MmioTransport> {
    let mut places = listed(command_line);
    if places.is_empty() && !pci::has_ports() {
        places = microvm_slots();
    }
    places.into_iter().filter_map(MmioTransport::probe).collect()
}

fn listed(command_line: &str) -> Vec<MmioDevice> {
    let physical_bits = crate::cpu::features().physical_bits.clamp(32, 52);
    params::values(command_line, "virtio_mmio.device")
        .filter_map(MmioDevice::parse)
        .filter(|place| {
            (CONFIG..=1024 * 1024).contains(&place.bytes)
                && place.address % 4 == 0
                && place.address < 1 << physical_bits
        })
        .take(MAX_LISTED)
        .collect()
}

fn microvm_slots() -> Vec<MmioDevice> {
    let firmware = platform::firmware();
    let (first_gsi, slots) = match firmware.io_apics.get(1) {
        Some(second) => (second.gsi_base, 24),
        None if firmware.cpus.is_empty() => (MICROVM_IRQ_LEGACY, 8),
        None => (MICROVM_IRQ_ACPI, 8),
    };
    (0..slots)
        .map(|slot| MmioDevice {
            address: MICROVM_BASE + u64::from(slot) * SLOT_BYTES as u64,
            bytes: SLOT_BYTES,
            gsi: first_gsi + slot,
        })
        .collect()
}

impl MmioTransport {
    fn probe(place: MmioDevice) -> Option<MmioTransport> {
        let registers = Registers::map(place.address, place.bytes).ok()?;
        if registers.read32(MAGIC) != MAGIC_VALUE || registers.read32(DEVICE_ID) == 0 {
            return None;
        }
        if registers.read32(VERSION) != 2 {
            crate::log!("virtio device at {:#x} has the legacy interface: not used", place.address);
            return None;
        }
        Some(MmioTransport { registers, gsi: place.gsi })
    }

    fn write(&self, register: usize, value: u32) {
        // SAFETY: nothing written through here but queue addresses (`set_queue`) makes the device
        // touch memory.
        unsafe { self.registers.write32(register, value) };
    }

    pub(super) fn device_type(&self) -> u32 {
        self.registers.read32(DEVICE_ID)
    }

    pub(super) fn status(&self) -> u8 {
        self.registers.read32(STATUS) as u8
    }

    pub(super) fn set_status(&self, status: u8) {
        self.write(STATUS, u32::from(status));
    }

    pub(super) fn features(&self) -> u64 {
        let [low, high] = [0, 1].map(|half| {
            self.write(DEVICE_FEATURES_SELECT, half);
            u64::from(self.registers.read32(DEVICE_FEATURES))
        });
        high << 32 | low
    }

    pub(super) fn set_features(&self, features: u64) {
        for half in 0..2 {
            self.write(DRIVER_FEATURES_SELECT, half);
            self.write(DRIVER_FEATURES, (features >> (32 * half)) as u32);
        }
    }

    pub(super) fn queue_limit(&self, index: u16) -> u16 {
        self.write(QUEUE_SELECT, u32::from(index));
        self.registers.read32(QUEUE_SIZE_MAX).min(u32::from(u16::MAX)) as u16
    }

    pub(super) fn set_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: &QueueAddresses,
    ) -> Result<Doorbell, DeviceError> {
        self.write(QUEUE_SELECT, u32::from(index));
        if self.registers.read32(QUEUE_READY) != 0 {
            return Err(DeviceError::NoQueue);
        }
        self.write(QUEUE_SIZE, u32::from(size));
        for (register, address) in [
            (QUEUE_DESCRIPTORS, addresses.descriptors),
            (QUEUE_DRIVER, addresses.driver),
            (QUEUE_DEVICE, addresses.device),
        ] {
            // The addresses are of a ring that the caller's `Queue` owns and never frees.
            self.write(register, address as u32);
            self.write(register + 4, (address >> 32) as u32);
        }
        self.write(QUEUE_READY, 1);
        Ok(Doorbell::Wide(self.registers.part(QUEUE_NOTIFY, 4), u32::from(index)))
    }

    /// Acknowledges until nothing is left: a line that stays high would have no further edge.
    pub(super) fn route_interrupt(&mut self, on_interrupt: OnInterrupt) -> bool {
        const MAX_ROUNDS: u32 = 16;
        let registers = self.registers;
        let handler = move || {
            for _ in 0..MAX_ROUNDS {
                let status = registers.read32(INTERRUPT_STATUS) & 3;
                if status == 0 {
                    return;
                }
                // SAFETY: acknowledging has no effect on memory.
                unsafe { registers.write32(INTERRUPT_ACK, status) };
                on_interrupt();
            }
        };
        ioapic::route(self.gsi, Box::new(handler))
    }

    pub(super) fn config(&self) -> Registers {
        self.registers.part(CONFIG, MAX_CONFIG_BYTES)
    }
}
