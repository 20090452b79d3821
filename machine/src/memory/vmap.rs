//! Large blocks of kernel memory that are contiguous only as addresses: single frames, mapped one
//! after the other. The heap takes what is too large, or what memory has become too scattered for,
//! from here.
//!
//! A block that is given back is unmapped at once, but its frames and addresses are used again only
//! after a flush on all CPUs, for many blocks together. That flush concerns the kernel alone, so
//! isolated CPUs in user mode are not interrupted for it (`context`): they meet no such address
//! before they have caught up, since entry code reaches none.
//!
//! Behind each block is at least one page that is never mapped: running over its end faults.
//!
//! Lock order: `BLOCKS`, then the kernel's tables, then frames. Neighbours: `stack` does the same
//! for kernel stacks, which come and go too fast for this.

use context_tracking::work::Cause;

use crate::context_tracking::tlb;
use crate::cpu::sync::SpinLock;
use crate::cpu::vmap_base;
use crate::memory;
use crate::memory::frame::{Frame, OutOfMemory, PAGE_SIZE};

/// Where blocks lie, behind all stacks.
fn base() -> u64 {
    vmap_base() + (16 << 30)
}
/// Addresses are given out in units of 64 KiB.
const UNIT_PAGES: usize = 16;
const UNIT: u64 = (UNIT_PAGES * PAGE_SIZE) as u64;
const UNITS: usize = 128 * 1024;
const WORD: usize = u64::BITS as usize;
/// Largest block, pages: 64 MiB.
const MAX_PAGES: usize = 16 * 1024;

/// Unmapped blocks, and pages in them, for which one flush is worth its price.
const LAZY_MAX: usize = 32;
const LAZY_PAGES: usize = 2048;

#[derive(Clone, Copy)]
struct Block {
    base: u64,
    pages: usize,
}

impl Block {
    /// With the guard.
    fn units(self) -> core::ops::Range<usize> {
        let first = ((self.base - base()) / UNIT) as usize;
        first..first + (self.pages + 1).div_ceil(UNIT_PAGES)
    }

    fn addresses(self) -> impl Iterator<Item = u64> {
        (0..self.pages as u64).map(move |page| self.base + page * PAGE_SIZE as u64)
    }
}

struct Blocks {
    /// A bit for each unit: set if a block has it, or had it and was not flushed yet.
    used: [u64; UNITS / WORD],
    /// Where the search for free units begins.
    next: usize,
    lazy: [Option<Block>; LAZY_MAX],
    lazy_pages: usize,
    mapped_pages: usize,
}

static BLOCKS: SpinLock<Blocks> = SpinLock::new(Blocks {
    used: [0; UNITS / WORD],
    next: 0,
    lazy: [None; LAZY_MAX],
    lazy_pages: 0,
    mapped_pages: 0,
});

impl Blocks {
    fn is_used(&self, unit: usize) -> bool {
        self.used[unit / WORD] & 1 << (unit % WORD) != 0
    }

    fn set_used(&mut self, units: core::ops::Range<usize>, used: bool) {
        for unit in units {
            let bit = 1 << (unit % WORD);
            let word = &mut self.used[unit / WORD];
            *word = if used { *word | bit } else { *word & !bit };
        }
    }

    /// Takes addresses for `pages` and a guard: the first that fit from `next` on, or from the
    /// start.
    fn take(&mut self, pages: usize) -> Option<Block> {
        let want = (pages + 1).div_ceil(UNIT_PAGES);
        let first = self.search(self.next, want).or_else(|| self.search(0, want))?;
        self.next = first + want;
        self.mapped_pages += pages;
        let block = Block { base: base() + first as u64 * UNIT, pages };
        self.set_used(block.units(), true);
        Some(block)
    }

    fn search(&self, from: usize, want: usize) -> Option<usize> {
        let mut first = from;
        let mut unit = from;
        while unit < UNITS {
            if self.is_used(unit) {
                first = unit + 1;
            } else if unit + 1 - first == want {
                return Some(first);
            }
            unit += 1;
        }
        None
    }

    /// Notes an unmapped block; false if it is time for a flush.
    fn put_off(&mut self, block: Block) -> bool {
        self.mapped_pages -= block.pages;
        if self.lazy_pages + block.pages > LAZY_PAGES {
            return false;
        }
        let Some(slot) = self.lazy.iter_mut().find(|slot| slot.is_none()) else { return false };
        *slot = Some(block);
        self.lazy_pages += block.pages;
        true
    }

    fn take_lazy(&mut self) -> [Option<Block>; LAZY_MAX] {
        self.lazy_pages = 0;
        core::mem::replace(&mut self.lazy, [None; LAZY_MAX])
    }
}

/// A block of at least `bytes`, page-aligned, contents zero.
pub(crate) fn alloc(bytes: usize) -> Result<*mut u8, OutOfMemory> {
    let pages = bytes.div_ceil(PAGE_SIZE);
    if pages > MAX_PAGES {
        return Err(OutOfMemory);
    }
    let block = BLOCKS.lock().take(pages).ok_or(OutOfMemory)?;
    for va in block.addresses() {
        let mapped = Frame::alloc_zeroed().and_then(|frame| memory::map_kernel_memory(va, frame));
        if mapped.is_err() {
            // A CPU may have looked ahead into what was mapped: it takes the usual way back.
            give_back(block);
            return Err(OutOfMemory);
        }
    }
    Ok(block.base as *mut u8)
}

/// Gives back a block of [`alloc()`]: `bytes` as there.
///
/// # Safety
/// The block came from [`alloc()`] with the same size, and nothing refers to it any more.
pub(crate) unsafe fn free(at: *mut u8, bytes: usize) {
    give_back(Block { base: at as u64, pages: bytes.div_ceil(PAGE_SIZE) });
}

fn give_back(block: Block) {
    for va in block.addresses() {
        memory::retire_kernel(va);
    }
    let due = {
        let mut blocks = BLOCKS.lock();
        if blocks.put_off(block) {
            return;
        }
        blocks.take_lazy()
    };
    purge(due.into_iter().flatten().chain([block]));
}

/// Frees these after the flush.
fn purge(due: impl Iterator<Item = Block>) {
    tlb::flush_kernel(Cause::Vunmap);
    for block in due {
        block.addresses().for_each(|va| drop(memory::take_retired(va)));
        BLOCKS.lock().set_used(block.units(), false);
    }
}

/// Gives the memory of unmapped blocks back, for when there is no other. Returns bytes.
pub(crate) fn trim() -> usize {
    let (due, pages) = {
        let mut blocks = BLOCKS.lock();
        let pages = blocks.lazy_pages;
        (blocks.take_lazy(), pages)
    };
    if pages > 0 {
        purge(due.into_iter().flatten());
    }
    pages * PAGE_SIZE
}

/// Bytes of blocks in use, and of unmapped blocks that [`trim`] gives back.
pub fn usage() -> (usize, usize) {
    let blocks = BLOCKS.lock();
    (blocks.mapped_pages * PAGE_SIZE, blocks.lazy_pages * PAGE_SIZE)
}

/// Whether `at` lies where blocks are.
pub(crate) fn contains(at: *const u8) -> bool {
    (base()..base() + UNITS as u64 * UNIT).contains(&(at as u64))
}
