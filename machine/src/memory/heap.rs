//! The kernel heap: per-CPU caches of small objects over the frame allocator.
//!
//! Sizes up to 2 KiB are rounded to a class and served from a list that belongs to the CPU, without
//! a lock; lists are refilled from, and drained to, one shared list for each class. Larger sizes
//! are blocks of frames, or, from [`VMAP_BYTES`] on and when no block is left, mapped frames
//! (`vmap`). Memory of a class stays in that class, so there is nothing to search;
//! [`trim`] gives slabs that are not used back when memory is short.
//!
//! Drivers may hand any of it to devices, which `virtio::queue` tells of each page if need be.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::MAX_CPUS;
use crate::cpu::percpu::{CpuCell, PerCpu};
use crate::cpu::sync::{IrqGuard, SpinLock};
use crate::memory::frame::{self, MAX_ORDER, PAGE_SHIFT, PAGE_SIZE, phys_to_virt, virt_to_phys};
use crate::memory::vmap;

/// Object sizes, bytes. Each divides the slab that it is carved from.
const CLASSES: [usize; 9] = [16, 32, 64, 96, 128, 256, 512, 1024, 2048];
/// A CPU's list that grows past this many bytes gives half of itself back.
const CACHE_BYTES: usize = 32 * 1024;
/// From here on sizes are never sought in one block: memory that runs has few of them.
const VMAP_BYTES: usize = 1 << 20;
/// Frames of one slab: 2^0, so that scattered frames will do when memory is short.
const SLAB_ORDER: usize = 0;

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// A free object holds the address of the next one.
struct FreeList {
    head: *mut FreeObject,
    count: usize,
}

struct FreeObject {
    next: *mut FreeObject,
}

// SAFETY: the objects of a list belong to the list alone, wherever the list goes.
unsafe impl Send for FreeList {}

impl FreeList {
    const fn new() -> Self {
        FreeList { head: core::ptr::null_mut(), count: 0 }
    }

    fn pop(&mut self) -> Option<*mut FreeObject> {
        let object = self.head;
        if object.is_null() {
            return None;
        }
        // SAFETY: a listed object is free memory of at least 16 bytes that `push` initialised.
        self.head = unsafe { (*object).next };
        self.count -= 1;
        Some(object)
    }

    /// # Safety
    /// `object` is free memory of the list's class that nothing else refers to.
    unsafe fn push(&mut self, object: *mut FreeObject) {
        // SAFETY: the caller gives the memory away, aligned for its class (at least 16).
        unsafe { object.write(FreeObject { next: self.head }) };
        self.head = object;
        self.count += 1;
    }
}

type Lists = [FreeList; CLASSES.len()];

static CACHES: PerCpu<CpuCell<Lists>> = PerCpu::from_array(
    [const { CpuCell::new([const { FreeList::new() }; CLASSES.len()]) }; MAX_CPUS],
);
static SHARED: [SpinLock<FreeList>; CLASSES.len()] =
    [const { SpinLock::new(FreeList::new()) }; CLASSES.len()];
/// By class.
static SLAB_BYTES: [AtomicUsize; CLASSES.len()] = [const { AtomicUsize::new(0) }; CLASSES.len()];

/// All classes are multiples of this.
const GRANULE: usize = CLASSES[0];

/// The smallest class with room for so many granules.
static CLASS_OF: [u8; CLASSES[CLASSES.len() - 1] / GRANULE + 1] = {
    let mut classes = [0; _];
    let mut granules = 0;
    while granules < classes.len() {
        let mut class = 0;
        while CLASSES[class] < granules * GRANULE {
            class += 1;
        }
        classes[granules] = class as u8;
        granules += 1;
    }
    classes
};

#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let granules = layout.size().max(layout.align()).div_ceil(GRANULE);
    let class = usize::from(*CLASS_OF.get(granules)?);
    // The class of 96 bytes is aligned to 32 only.
    let is_aligned = CLASSES[class].is_power_of_two() || layout.align() <= 32;
    Some(if is_aligned { class } else { class + 1 })
}

fn order_of(size: usize) -> Option<usize> {
    let order = (size.div_ceil(PAGE_SIZE)).next_power_of_two().ilog2() as usize;
    (order <= MAX_ORDER).then_some(order)
}

/// Moves objects from the shared list, or from a new slab, to a CPU's empty list.
fn refill(class: usize, list: &mut FreeList) {
    let want = (CACHE_BYTES / 4 / CLASSES[class]).max(2);
    let mut shared = SHARED[class].lock();
    while list.count < want {
        let Some(object) = shared.pop() else { break };
        // SAFETY: it came off the shared list of the same class.
        unsafe { list.push(object) };
    }
    drop(shared);
    if list.count > 0 {
        return;
    }
    let Some(pfn) = frame::alloc_block(SLAB_ORDER) else { return };
    let slab_bytes = PAGE_SIZE << SLAB_ORDER;
    SLAB_BYTES[class].fetch_add(slab_bytes, Ordering::Relaxed);
    frame::owner_mark(pfn).store(0, Ordering::Relaxed);
    let base = phys_to_virt(u64::from(pfn) << PAGE_SHIFT);
    for i in 0..slab_bytes / CLASSES[class] {
        // SAFETY: the slab is ours, and the objects tile it without overlap.
        unsafe { list.push(base.wrapping_add(i * CLASSES[class]).cast()) };
    }
}

fn alloc_large(layout: Layout) -> *mut u8 {
    let size = layout.size().max(layout.align());
    let may_be_mapped = layout.align() <= PAGE_SIZE && size > PAGE_SIZE;
    let order = order_of(size).filter(|_| size < VMAP_BYTES || !may_be_mapped);
    let at_frame = |pfn| phys_to_virt(u64::from(pfn) << PAGE_SHIFT);
    if let Some(pfn) = order.and_then(frame::try_block) {
        return at_frame(pfn);
    }
    if may_be_mapped && let Ok(at) = vmap::alloc(size) {
        return at;
    }
    order.and_then(frame::alloc_block).map_or(core::ptr::null_mut(), at_frame)
}

// SAFETY: blocks come from the frame allocator or tile a slab of it, each is handed out once until
// it is freed, and sizes and alignments are at least the layout's (`class_of`, natural alignment of
// buddy blocks).
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return alloc_large(layout);
        };
        let _irq = IrqGuard::new();
        let take = |lists: &mut Lists| {
            if lists[class].head.is_null() {
                refill(class, &mut lists[class]);
            }
            lists[class].pop().map_or(core::ptr::null_mut(), |object| object.cast())
        };
        // SAFETY: interrupts are masked and `refill` does not allocate from the heap.
        unsafe { CACHES.get().with(take) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            let size = layout.size().max(layout.align());
            if vmap::contains(at) {
                // SAFETY: it came from `alloc_large` with the same layout and is given up.
                return unsafe { vmap::free(at, size) };
            }
            let pfn = (virt_to_phys(at) >> PAGE_SHIFT) as u32;
            let order = order_of(size).expect("allocated, so the order exists");
            // SAFETY: the block came from `alloc` with the same layout and is given up.
            unsafe { frame::free_block(pfn, order) };
            return;
        };
        let _irq = IrqGuard::new();
        let give = |lists: &mut Lists| {
            let list = &mut lists[class];
            // SAFETY: the caller gives the object up; it has the class of its layout.
            unsafe { list.push(at.cast()) };
            if list.count * CLASSES[class] > CACHE_BYTES {
                let keep = list.count / 2;
                let mut shared = SHARED[class].lock();
                while list.count > keep {
                    let Some(object) = list.pop() else { break };
                    // SAFETY: it came off a list of the same class.
                    unsafe { shared.push(object) };
                }
            }
        };
        // SAFETY: interrupts are masked, and nothing in `give` allocates.
        unsafe { CACHES.get().with(give) };
    }
}

/// A slab all of whose objects are being given up; the rest of the mark counts those that still
/// have to be met.
const MARK_WHOLE: u32 = 1 << 31;

/// Gives slabs of which no object is in use back to the frames. Slow: walks all free objects that
/// are not cached by a CPU. Returns bytes.
pub fn trim() -> usize {
    (0..CLASSES.len()).map(trim_class).sum::<usize>() + vmap::trim()
}

fn slab_of(object: *mut FreeObject) -> u32 {
    (virt_to_phys(object.cast()) >> PAGE_SHIFT) as u32
}

/// Nobody else knows the objects of `list`, so a slab of which all are there is free.
fn trim_class(class: usize) -> usize {
    let whole = (PAGE_SIZE / CLASSES[class]) as u32;
    let mut list = core::mem::replace(&mut *SHARED[class].lock(), FreeList::new());
    let mut object = list.head;
    while !object.is_null() {
        frame::owner_mark(slab_of(object)).fetch_add(1, Ordering::Relaxed);
        // SAFETY: a listed object is free memory that `push` initialised.
        object = unsafe { (*object).next };
    }
    let (mut keep, mut last, mut freed) = (FreeList::new(), core::ptr::null_mut(), 0);
    while let Some(object) = list.pop() {
        let slab = slab_of(object);
        let mark = frame::owner_mark(slab);
        let count = mark.load(Ordering::Relaxed);
        if count == whole || count & MARK_WHOLE != 0 {
            let left = (count & !MARK_WHOLE) - 1;
            mark.store(if left == 0 { 0 } else { left | MARK_WHOLE }, Ordering::Relaxed);
            if left == 0 {
                freed += PAGE_SIZE;
                // SAFETY: all objects of the slab have been taken off the only list they were on.
                unsafe { frame::free_block(slab, SLAB_ORDER) };
            }
            continue;
        }
        mark.store(0, Ordering::Relaxed);
        last = if keep.head.is_null() { object } else { last };
        // SAFETY: it came off a list of the same class.
        unsafe { keep.push(object) };
    }
    let mut shared = SHARED[class].lock();
    if !last.is_null() {
        // SAFETY: `last` was pushed first, so it ends the list `keep`, which is ours.
        unsafe { (*last).next = shared.head };
        shared.head = keep.head;
        shared.count += keep.count;
    }
    drop(shared);
    SLAB_BYTES[class].fetch_sub(freed, Ordering::Relaxed);
    freed
}

/// Bytes of free objects and unmapped blocks that [`trim`] may give back.
pub fn idle_bytes() -> usize {
    let listed = |class: usize| SHARED[class].lock().count * CLASSES[class];
    (0..CLASSES.len()).map(listed).sum::<usize>() + vmap::usage().1
}

/// Bytes in slabs of small objects, used or cached.
pub fn slab_bytes() -> usize {
    SLAB_BYTES.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
}

/// Each class: its size in bytes, and how many objects of it are in use or cached by another CPU.
pub fn objects() -> [(usize, usize); CLASSES.len()] {
    core::array::from_fn(|class| {
        let _irq = IrqGuard::new();
        let carved = SLAB_BYTES[class].load(Ordering::Relaxed) / CLASSES[class];
        let shared = SHARED[class].lock().count;
        // SAFETY: interrupts are masked, and a number is read.
        let own = unsafe { CACHES.get().with(|lists: &mut Lists| lists[class].count) };
        (CLASSES[class], carved.saturating_sub(shared + own))
    })
}

/// Bytes of larger blocks that are mapped from single frames, in use.
pub fn mapped_bytes() -> usize {
    vmap::usage().0
}
