//! Registers of a device in memory, as a block whose every access is checked against its length.
//!
//! Lengths come from firmware and devices, so an access outside is no bug of this kernel: it reads
//! all ones and writes nothing, like a bus without a device.

use core::ptr;

use crate::memory;
use crate::memory::frame::OutOfMemory;

/// A mapped block of registers. The mapping stays for ever, so copies are free.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    at: *mut u8,
    len: usize,
}

// SAFETY: the mapping is the same on all CPUs, and accesses are single volatile instructions.
unsafe impl Send for Registers {}
// SAFETY: as above; `&Registers` only reads, by single instructions.
unsafe impl Sync for Registers {}

impl Registers {
    /// Maps `len` bytes at `phys`, uncached.
    pub(crate) fn map(phys: u64, len: usize) -> Result<Registers, OutOfMemory> {
        Ok(Registers { at: memory::map_mmio(phys, len)?, len })
    }

    /// The part from `offset` on, at most `len` bytes.
    pub(crate) fn part(self, offset: usize, len: usize) -> Registers {
        let offset = offset.min(self.len);
        Registers { at: self.at.wrapping_add(offset), len: len.min(self.len - offset) }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The register at `offset`, if it is inside and aligned.
    fn get<T>(self, offset: usize) -> Option<*mut T> {
        let inside = offset.checked_add(size_of::<T>())? <= self.len;
        let at = self.at.wrapping_add(offset).cast::<T>();
        (inside && at.is_aligned()).then_some(at)
    }

    pub(crate) fn read8(self, offset: usize) -> u8 {
        // SAFETY: `get` checked that the register is in the mapping.
        self.get(offset).map_or(u8::MAX, |at| unsafe { ptr::read_volatile(at) })
    }

    pub(crate) fn read16(self, offset: usize) -> u16 {
        // SAFETY: as in `read8`: the offset was checked against the window.
        self.get(offset).map_or(u16::MAX, |at| unsafe { ptr::read_volatile(at) })
    }

    pub(crate) fn read32(self, offset: usize) -> u32 {
        // SAFETY: as in `read8`: the offset was checked against the window.
        self.get(offset).map_or(u32::MAX, |at| unsafe { ptr::read_volatile(at) })
    }

    /// # Safety
    /// What the device does when this is written must not break memory safety: addresses given to
    /// it are of memory that it may write. The same for the two below.
    pub(crate) unsafe fn write8(self, offset: usize, value: u8) {
        if let Some(at) = self.get(offset) {
            // SAFETY: `get` checked the place; the effect is the caller's contract.
            unsafe { ptr::write_volatile(at, value) };
        }
    }

    /// # Safety
    /// As [`Registers::write8`].
    pub(crate) unsafe fn write16(self, offset: usize, value: u16) {
        if let Some(at) = self.get(offset) {
            // SAFETY: as in `write8`: the offset was checked against the window.
            unsafe { ptr::write_volatile(at, value) };
        }
    }

    /// # Safety
    /// As [`Registers::write8`].
    pub(crate) unsafe fn write32(self, offset: usize, value: u32) {
        if let Some(at) = self.get(offset) {
            // SAFETY: as in `write8`: the offset was checked against the window.
            unsafe { ptr::write_volatile(at, value) };
        }
    }
}
