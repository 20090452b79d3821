//! The guest's own page tables, walked by software: for instructions that are emulated (AMD APM 2,
//! chapter 5). The CPU has walked the same tables just before, so what it sets on the way
//! (accessed, dirty) is set already.

use crate::event::vector;
use crate::regs::{System, cr, flags};

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What is to be done with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Written.
    pub write: bool,
    /// Executed.
    pub exec: bool,
    /// By code of privilege level 3.
    pub user: bool,
}

/// Why an address leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A page fault of the guest, with its error code.
    Fault(u32),
    /// A table lies where the guest has no memory.
    NoMemory(u64),
}

impl Failure {
    /// The exception's vector, where it is one.
    pub const VECTOR: u8 = vector::PF;
}

/// Registers that decide how an address is translated.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    cr0: u64,
    cr3: u64,
    cr4: u64,
    efer: u64,
    rflags: u64,
}

impl Mode {
    /// Takes them from the system registers.
    #[must_use]
    pub fn new(system: &System, rflags: u64) -> Mode {
        let &System { cr0, cr3, cr4, efer, .. } = system;
        Mode { cr0, cr3, cr4, efer, rflags }
    }

    /// Width of entries in bytes, levels, and the bits of an index.
    fn shape(&self) -> (u64, u32, u32) {
        if self.cr4 & cr::CR4_PAE == 0 {
            (4, 2, 10)
        } else if self.efer & cr::EFER_LMA == 0 {
            (8, 3, 9)
        } else if self.cr4 & cr::CR4_LA57 == 0 {
            (8, 4, 9)
        } else {
            (8, 5, 9)
        }
    }

    /// The guest-physical address of a linear one. `read` reads an entry of 8 bytes (of 4 where
    /// told so) at a guest-physical address.
    pub fn translate(
        &self,
        linear: u64,
        access: Access,
        read: &mut dyn FnMut(u64, u64) -> Option<u64>,
    ) -> Result<u64, Failure> {
        if self.cr0 & cr::CR0_PG == 0 {
            return Ok(linear & 0xffff_ffff);
        }
        let (width, levels, bits) = self.shape();
        let is_long = self.efer & cr::EFER_LMA != 0;
        let linear = if is_long { linear } else { linear & 0xffff_ffff };
        if is_long && !is_canonical(linear, 12 + levels * bits) {
            return Err(self.fault(access, false));
        }
        let (mut write, mut user, mut exec) = (true, true, true);
        // PAE's root has 32-byte alignment, and its entries carry no rights.
        let is_pae = levels == 3;
        let mut table = if is_pae { self.cr3 & 0xffff_ffe0 } else { self.cr3 & ADDRESS };
        for level in (0..levels).rev() {
            let shift = 12 + level * bits;
            let index = linear >> shift & ((1 << bits) - 1);
            let at = table + index * width;
            let entry = read(at, width).ok_or(Failure::NoMemory(at))?;
            if entry & PRESENT == 0 {
                return Err(self.fault(access, false));
            }
            if !(is_pae && level == 2) {
                write &= entry & WRITE != 0;
                user &= entry & USER != 0;
                exec &= width == 4 || entry & NO_EXECUTE == 0 || self.efer & cr::EFER_NXE == 0;
            }
            let may_be_large =
                level == 1 && (width == 8 || self.cr4 & cr::CR4_PSE != 0) || level == 2 && is_long;
            if level == 0 || may_be_large && entry & LARGE != 0 {
                self.check(access, write, user, exec)?;
                return Ok(leaf_address(entry, width, shift) | linear & ((1 << shift) - 1));
            }
            table = entry & if width == 4 { 0xffff_f000 } else { ADDRESS };
        }
        Err(self.fault(access, false))
    }

    fn check(&self, access: Access, write: bool, user: bool, exec: bool) -> Result<(), Failure> {
        let supervisor_page = !user;
        let protects = self.cr0 & cr::CR0_WP != 0;
        let refused = access.user && supervisor_page
            || access.write && !write && (access.user || protects)
            || access.exec && !exec
            || access.exec && !access.user && user && self.cr4 & cr::CR4_SMEP != 0
            || !access.exec
                && !access.user
                && user
                && self.cr4 & cr::CR4_SMAP != 0
                && self.rflags & flags::AC == 0;
        if refused { Err(self.fault(access, true)) } else { Ok(()) }
    }

    fn fault(&self, access: Access, present: bool) -> Failure {
        let tells_fetch = self.efer & cr::EFER_NXE != 0 || self.cr4 & cr::CR4_SMEP != 0;
        let code = u32::from(present)
            | u32::from(access.write) << 1
            | u32::from(access.user) << 2
            | u32::from(access.exec && tells_fetch) << 4;
        Failure::Fault(code)
    }
}

/// Where a leaf of 2^`shift` bytes leads.
fn leaf_address(entry: u64, width: u64, shift: u32) -> u64 {
    let span = 1u64 << shift;
    if width == 4 && shift > 12 {
        // PSE-36: bits 13 to 20 are bits 32 to 39 of the address.
        return entry & 0xffc0_0000 | (entry >> 13 & 0xff) << 32;
    }
    let mask = if width == 4 { 0xffff_f000 } else { ADDRESS };
    entry & mask & !(span - 1)
}

fn is_canonical(address: u64, bits: u32) -> bool {
    let unused = 64 - bits;
    ((address << unused) as i64 >> unused) as u64 == address
}
