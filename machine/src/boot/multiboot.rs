//! Boot by a Multiboot2 loader (GRUB): the same as by PVH, but for how the loader says what there
//! is.
//!
//! Neighbours: `formats::multiboot` decodes; `boot` goes on with the result.

use core::arch::global_asm;

use formats::multiboot;
use formats::pvh::{Error, Memory, StartInfo};

use crate::cpu::phys_to_virt;

global_asm!(include_str!("multiboot.S"), options(att_syntax, raw));

/// Whether `magic`, which the first instruction found in EAX, is that of such a loader.
pub(crate) fn is_loader(magic: u32) -> bool {
    magic == multiboot::LOADER_MAGIC
}

/// What the loader's list at `phys` says. On the boot tables, which `memory` reads.
pub(crate) fn read(phys: u64, memory: &impl Memory) -> Result<StartInfo, Error> {
    let mut start = [0; 4];
    let is_read = memory.read(phys, &mut start);
    let len = multiboot::total_bytes(&start).filter(|_| is_read).ok_or(Error::Unreadable)?;
    if phys + len as u64 > 4 << 30 {
        return Err(Error::Unreadable);
    }
    // SAFETY: the boot tables map the first 4 GiB in the direct map; the loader wrote the list
    // there, and nobody writes to it: it is kept out of the free memory.
    let list = unsafe { core::slice::from_raw_parts(phys_to_virt(phys), len) };
    multiboot::start_info(phys, list, memory)
}
