//! Devices as registers, queues and interrupts: what `platform` finds by the firmware's tables and
//! `pci` on the bus, virtio, and the clocks' hardware. What bytes mean to a program is the kernel's
//! (`kernel/src/drivers`).

pub mod entropy;
pub(crate) mod ioapic;
pub(crate) mod mmio;
pub(crate) mod pci;
pub(crate) mod platform;
pub(crate) mod time;
pub mod virtio;
