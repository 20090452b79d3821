//! Virtio devices on PCI (4.1): the modern interface, whose registers are found through
//! vendor-specific capabilities. One MSI-X vector serves the whole device.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::queue::Doorbell;
use super::{DeviceError, OnInterrupt, QueueAddresses};
use crate::device::mmio::Registers;
use crate::device::pci::{self, Function};

const VENDOR: u16 = 0x1af4;
/// Device numbers from here on are this plus the type; below, the subsystem number is the type.
const MODERN_BASE: u16 = 0x1040;
const MODERN_LAST: u16 = 0x107f;
const TRANSITIONAL_BASE: u16 = 0x1000;
const VENDOR_SPECIFIC: u8 = 0x09;

const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;

/// Offsets in the common configuration (4.1.4.3).
const DEVICE_FEATURE_SELECT: usize = 0;
const DEVICE_FEATURE: usize = 4;
const DRIVER_FEATURE_SELECT: usize = 8;
const DRIVER_FEATURE: usize = 12;
const CONFIG_VECTOR: usize = 16;
const DEVICE_STATUS: usize = 20;
const QUEUE_SELECT: usize = 22;
const QUEUE_SIZE: usize = 24;
const QUEUE_VECTOR: usize = 26;
const QUEUE_ENABLE: usize = 28;
const QUEUE_NOTIFY_OFFSET: usize = 30;
const QUEUE_DESCRIPTORS: usize = 32;
const QUEUE_DRIVER: usize = 40;
const QUEUE_DEVICE: usize = 48;
const COMMON_BYTES: usize = 56;

const MAX_REGISTER_BYTES: usize = 64 * 1024;

/// A device of this transport.
pub(super) struct PciTransport {
    function: Function,
    device_type: u32,
    common: Registers,
    notify: Registers,
    notify_multiplier: usize,
    device: Option<Registers>,
}

/// All devices of this transport.
pub(super) fn find() -> Vec<PciTransport> {
    pci::functions().into_iter().filter_map(PciTransport::probe).collect()
}

fn device_type(function: Function) -> Option<u32> {
    match function.id() {
        (VENDOR, id @ MODERN_BASE..=MODERN_LAST) => Some(u32::from(id - MODERN_BASE)),
        (VENDOR, TRANSITIONAL_BASE..MODERN_BASE) => Some(u32::from(function.subsystem())),
        _ => None,
    }
}

impl PciTransport {
    fn probe(function: Function) -> Option<PciTransport> {
        let device_type = device_type(function)?;
        let (mut common, mut notify, mut device) = (None, None, None);
        let mut notify_multiplier = 0;
        function.enable();
        for at in function.capabilities(VENDOR_SPECIFIC) {
            let kind = (function.read(at) >> 24) as u8;
            let bar = function.read(at + 4) as u8;
            let offset = function.read(at + 8);
            let len = (function.read(at + 12) as usize).min(MAX_REGISTER_BYTES);
            let slot = match kind {
                COMMON => &mut common,
                NOTIFY => {
                    notify_multiplier = function.read(at + 16) as usize;
                    &mut notify
                }
                DEVICE => &mut device,
                _ => continue,
            };
            // The first of a kind that can be used counts (4.1.4).
            if slot.is_none() {
                *slot = function.map_bar(bar, offset, len);
            }
        }
        let common = common.filter(|common| common.len() >= COMMON_BYTES)?;
        let notify = notify?;
        Some(PciTransport { function, device_type, common, notify, notify_multiplier, device })
    }

    fn write16(&self, register: usize, value: u16) {
        // SAFETY: nothing written through here makes the device touch memory but enabling a queue,
        // whose addresses are of a ring that a `Queue` owns and never frees.
        unsafe { self.common.write16(register, value) };
    }

    fn write32(&self, register: usize, value: u32) {
        // SAFETY: as in `write16`: only the enabling of a queue has such an effect.
        unsafe { self.common.write32(register, value) };
    }

    pub(super) fn device_type(&self) -> u32 {
        self.device_type
    }

    pub(super) fn status(&self) -> u8 {
        self.common.read8(DEVICE_STATUS)
    }

    pub(super) fn set_status(&self, status: u8) {
        // SAFETY: as in `write16`: only the enabling of a queue has such an effect.
        unsafe { self.common.write8(DEVICE_STATUS, status) };
    }

    pub(super) fn features(&self) -> u64 {
        let [low, high] = [0, 1].map(|half| {
            self.write32(DEVICE_FEATURE_SELECT, half);
            u64::from(self.common.read32(DEVICE_FEATURE))
        });
        high << 32 | low
    }

    pub(super) fn set_features(&self, features: u64) {
        for half in 0..2 {
            self.write32(DRIVER_FEATURE_SELECT, half);
            self.write32(DRIVER_FEATURE, (features >> (32 * half)) as u32);
        }
    }

    pub(super) fn queue_limit(&self, index: u16) -> u16 {
        self.write16(QUEUE_SELECT, index);
        self.common.read16(QUEUE_SIZE)
    }

    pub(super) fn set_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: &QueueAddresses,
    ) -> Result<Doorbell, DeviceError> {
        self.write16(QUEUE_SELECT, index);
        if self.common.read16(QUEUE_ENABLE) != 0 {
            return Err(DeviceError::NoQueue);
        }
        self.write16(QUEUE_SIZE, size);
        // All vectors are entry 0 of the table; `route_interrupt` fills it before the device
        // starts.
        self.write16(QUEUE_VECTOR, 0);
        if self.common.read16(QUEUE_VECTOR) != 0 {
            return Err(DeviceError::NoInterrupt);
        }
        for (register, address) in [
            (QUEUE_DESCRIPTORS, addresses.descriptors),
            (QUEUE_DRIVER, addresses.driver),
            (QUEUE_DEVICE, addresses.device),
        ] {
            self.write32(register, address as u32);
            self.write32(register + 4, (address >> 32) as u32);
        }
        let offset = usize::from(self.common.read16(QUEUE_NOTIFY_OFFSET)) * self.notify_multiplier;
        let doorbell = self.notify.part(offset, 2);
        if doorbell.len() < 2 {
            return Err(DeviceError::Broken);
        }
        self.write16(QUEUE_ENABLE, 1);
        Ok(Doorbell::Narrow(doorbell, index))
    }

    pub(super) fn route_interrupt(&mut self, on_interrupt: OnInterrupt) -> bool {
        if !self.function.enable_msi_x(Box::new(move || on_interrupt())) {
            return false;
        }
        self.write16(CONFIG_VECTOR, 0);
        self.common.read16(CONFIG_VECTOR) == 0
    }

    pub(super) fn config(&self) -> Registers {
        self.device.unwrap_or(self.common.part(0, 0))
    }
}
