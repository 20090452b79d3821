//! PCI: finding the functions of bus 0, their registers in memory, and their interrupts by MSI-X.
//!
//! Configuration space is reached through memory where the firmware's tables say so (ECAM), through
//! ports 0xcf8 and 0xcfc otherwise. Interrupts are messages: a write that the device makes to the
//! local APIC (PCI 3.0, 6.8.2; SDM 3A, 10.11). They need no knowledge of how a board wires its
//! interrupt pins, and no two devices share one.
//!
//! Only bus 0 is searched: the machines this kernel is for put their devices there.

use alloc::vec::Vec;

use crate::cpu::sync::{Once, SpinLock};
use crate::cpu::{inl, irq, outl, percpu};
use crate::device::mmio::Registers;
use crate::device::platform;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;

const VENDOR: u16 = 0x00;
const COMMAND: u16 = 0x04;
const HEADER_TYPE: u16 = 0x0c;
const BAR_0: u16 = 0x10;
const SUBSYSTEM: u16 = 0x2c;
const CAPABILITIES: u16 = 0x34;

const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_BUS_MASTER: u32 = 1 << 2;
const COMMAND_NO_INTX: u32 = 1 << 10;
const STATUS_CAPABILITIES: u32 = 1 << 20;
const MSI_X: u8 = 0x11;
/// Capabilities have 4 bytes at least, in 192 bytes.
const MAX_CAPABILITIES: usize = 48;
/// Where writes of messages go, with the APIC id in bits 12 to 19.
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;
/// Registers mapped of one BAR at most, bytes.
const MAX_BAR_BYTES: usize = 1 << 20;

/// A function of a device on bus 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    device: u8,
    function: u8,
}

static ECAM: Once<Option<Registers>> = Once::new();
/// Guards the pair of ports.
static PORTS: SpinLock<()> = SpinLock::new(());

fn ecam() -> Option<Registers> {
    const BUS_BYTES: usize = 1 << 20;
    *ECAM.call_once(|| {
        let ecam = platform::firmware().ecam.filter(|ecam| ecam.first_bus == 0)?;
        Registers::map(ecam.base, BUS_BYTES).ok()
    })
}

/// Whether there is a host bridge behind the ports, as every PC but a microVM has.
pub(crate) fn has_ports() -> bool {
    Function { device: 0, function: 0 }.read_by_ports(VENDOR) & 0xffff != 0xffff
}

impl Function {
    fn select(self, offset: u16) -> u32 {
        1 << 31
            | u32::from(self.device) << 11
            | u32::from(self.function) << 8
            | u32::from(offset & 0xfc)
    }

    fn read_by_ports(self, offset: u16) -> u32 {
        let _guard = PORTS.lock();
        // SAFETY: selects what the next access is to.
        unsafe { outl(ADDRESS_PORT, self.select(offset)) };
        // SAFETY: reads of configuration space have no effect that matters here.
        unsafe { inl(DATA_PORT) }
    }

    fn ecam_offset(self, offset: u16) -> usize {
        usize::from(self.device) << 15
            | usize::from(self.function) << 12
            | usize::from(offset & 0xffc)
    }

    /// The 32-bit word of configuration space at `offset`, a multiple of 4 below 256.
    pub(crate) fn read(self, offset: u16) -> u32 {
        match ecam() {
            Some(ecam) => ecam.read32(self.ecam_offset(offset)),
            None => self.read_by_ports(offset),
        }
    }

    fn read_byte(self, offset: u16) -> u8 {
        (self.read(offset & !3) >> (8 * (offset & 3))) as u8
    }

    /// # Safety
    /// The device must not be made to write memory that it has not been given.
    unsafe fn write(self, offset: u16, value: u32) {
        if let Some(ecam) = ecam() {
            // SAFETY: the caller's contract is that of this instruction.
            return unsafe { ecam.write32(self.ecam_offset(offset), value) };
        }
        let _guard = PORTS.lock();
        // SAFETY: selects what the next access is to.
        unsafe { outl(ADDRESS_PORT, self.select(offset)) };
        // SAFETY: the caller's contract is that of this instruction.
        unsafe { outl(DATA_PORT, value) };
    }

    /// Vendor and device number.
    pub(crate) fn id(self) -> (u16, u16) {
        let word = self.read(VENDOR);
        (word as u16, (word >> 16) as u16)
    }

    /// The subsystem's device number.
    pub(crate) fn subsystem(self) -> u16 {
        (self.read(SUBSYSTEM) >> 16) as u16
    }

    /// Offsets of the capabilities with the number `id` (PCI 3.0, 6.7).
    pub(crate) fn capabilities(self, id: u8) -> impl Iterator<Item = u16> {
        let listed = self.read(COMMAND) & STATUS_CAPABILITIES != 0;
        let mut next = if listed { self.read_byte(CAPABILITIES) & 0xfc } else { 0 };
        let mut left = MAX_CAPABILITIES;
        core::iter::from_fn(move || {
            while next >= 0x40 && left > 0 {
                let at = u16::from(next);
                next = self.read_byte(at + 1) & 0xfc;
                left -= 1;
                if self.read_byte(at) == id {
                    return Some(at);
                }
            }
            None
        })
    }

    /// Maps `len` bytes from `offset` in the memory of base address register `bar`.
    pub(crate) fn map_bar(self, bar: u8, offset: u32, len: usize) -> Option<Registers> {
        const IO: u32 = 1;
        const IS_64_BIT: u32 = 4;
        if bar > 5 || len > MAX_BAR_BYTES {
            return None;
        }
        let at = BAR_0 + 4 * u16::from(bar);
        let low = self.read(at);
        let high = if low & IS_64_BIT != 0 && bar < 5 { self.read(at + 4) } else { 0 };
        let base = u64::from(high) << 32 | u64::from(low & !0xf);
        let phys = base.checked_add(u64::from(offset))?;
        let limit = 1 << crate::cpu::features().physical_bits.clamp(32, 52);
        if low & IO != 0 || base == 0 || phys >= limit {
            return None;
        }
        Registers::map(phys, len).ok()
    }

    /// Lets the device answer in memory and make writes of its own.
    pub(crate) fn enable(self) {
        let command = self.read(COMMAND) & 0xffff;
        let command = command | COMMAND_MEMORY | COMMAND_BUS_MASTER | COMMAND_NO_INTX;
        // SAFETY: the device writes only what its driver gives it, and messages of `enable_msi_x`.
        unsafe { self.write(COMMAND, command) };
    }

    /// Gives entry 0 of the MSI-X table to `handler` and switches MSI-X on, all other entries
    /// masked. False if the device has none, or no vector is left. Call after [`Function::enable`].
    pub(crate) fn enable_msi_x(self, handler: irq::Handler) -> bool {
        self.try_enable_msi_x(handler).is_some()
    }

    fn try_enable_msi_x(self, handler: irq::Handler) -> Option<()> {
        const ENABLE: u32 = 1 << 31;
        const MASK_ALL: u32 = 1 << 30;
        const ENTRY_BYTES: usize = 16;
        let at = self.capabilities(MSI_X).next()?;
        let control = self.read(at);
        let entries = (control >> 16 & 0x7ff) as usize + 1;
        let place = self.read(at + 4);
        let table = self.map_bar(place as u8 & 7, place & !7, entries * ENTRY_BYTES)?;
        let vector = irq::allocate(handler)?;
        let address = MESSAGE_ADDRESS | percpu::of(0).apic_id.get() << 12;
        let words = [address, 0, u32::from(vector), 0];
        for entry in (0..entries).rev() {
            // Word 3 is the mask. Entry 0 is last, and its own mask is written last.
            let words = if entry == 0 { words } else { [0, 0, 0, 1] };
            for (i, word) in words.into_iter().enumerate() {
                // SAFETY: the entry makes the device write one vector number to the local APIC.
                unsafe { table.write32(entry * ENTRY_BYTES + 4 * i, word) };
            }
        }
        // SAFETY: switches on what the table says, and the function-wide mask off.
        unsafe { self.write(at, (control | ENABLE) & !MASK_ALL) };
        Some(())
    }
}

/// All functions of bus 0.
pub(crate) fn functions() -> Vec<Function> {
    const MULTI_FUNCTION: u32 = 1 << 23;
    let mut found = Vec::new();
    if ecam().is_none() && !has_ports() {
        return found;
    }
    for device in 0..32 {
        let first = Function { device, function: 0 };
        if first.id().0 == 0xffff {
            continue;
        }
        found.push(first);
        if first.read(HEADER_TYPE) & MULTI_FUNCTION != 0 {
            let others = (1..8).map(|function| Function { device, function });
            found.extend(others.filter(|other| other.id().0 != 0xffff));
        }
    }
    found
}
