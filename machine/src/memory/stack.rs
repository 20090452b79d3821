//! Kernel stacks: mapped memory with an unmapped guard below, so that an overflow faults; and where
//! returns are checked a page of shadow stack (`cpu::shadow_stack`) in the middle of that guard.
//!
//! Threads come and go faster than mappings should: a stack that is given back stays mapped in a
//! small pool, one on the CPU itself, and is cleared when the next one takes it. Beyond that its
//! memory goes back too, lazily: pages are unmapped, but their frames and addresses are used again
//! only after one flush for many stacks. That flush concerns the kernel alone, so isolated CPUs in
//! user mode are not interrupted for it (`context`).
//!
//! Why a stale translation of a stack can do no harm there: a CPU runs on a new stack only after it
//! has entered the kernel, and so has caught up; and the stack of the thread that runs on it, onto
//! which an entry pushes before it has caught up, was mapped before and is not unmapped meanwhile.
//!
//! Lock order: `STACKS`, then the kernel's tables, then frames and heap.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use context_tracking::work::Cause;

use crate::context_tracking::tlb;
use crate::cpu::percpu::PerCpu;
use crate::cpu::sync::SpinLock;
use crate::cpu::{MAX_CPUS, shadow_stack, vmap_base};
use crate::memory;
use crate::memory::frame::{Frame, OutOfMemory, PAGE_SIZE};
use crate::memory::shadow_stack as words;

/// Stacks lie in slots of 32 KiB, the lower half of each a guard.
const SLOT: u64 = 32 * 1024;
const SLOTS: u64 = 65536;
/// Bytes of a kernel stack.
pub(crate) const KERNEL_STACK_SIZE: usize = 16 * 1024;
const PAGES: usize = KERNEL_STACK_SIZE / PAGE_SIZE;
/// Where shadow stacks are used that of a stack is a page in its guard: it has room for 512 calls,
/// and on both sides a guard remains.
const SHADOW_BELOW: u64 = 12 * 1024;

/// Free stacks that stay mapped.
const POOL_MAX: usize = 16;
/// Unmapped stacks for which one flush is worth its price.
const LAZY_MAX: usize = 32;

/// Lowest addresses of stacks that were unmapped; some CPU may still reach their frames.
type Lazy = [Option<u64>; LAZY_MAX];

struct Stacks {
    /// Slots that were ever used.
    slots: u64,
    /// Free and mapped.
    pool: Vec<u64>,
    /// Free addresses that no CPU has translations of.
    clean: Vec<u64>,
    lazy: Lazy,
}

static STACKS: SpinLock<Stacks> =
    SpinLock::new(Stacks { slots: 0, pool: Vec::new(), clean: Vec::new(), lazy: [None; LAZY_MAX] });

/// A free stack that stays mapped, for the next thread that this CPU makes; 0: none.
static HERE: PerCpu<AtomicU64> = PerCpu::from_array([const { AtomicU64::new(0) }; MAX_CPUS]);

/// A kernel stack. Given back when dropped.
pub(crate) struct KernelStack {
    base: u64,
}

impl KernelStack {
    pub(crate) fn new() -> Result<KernelStack, OutOfMemory> {
        if let Some(base) = take_mapped() {
            clear(base);
            return Ok(KernelStack::with_token(base));
        }
        let mut stacks = STACKS.lock();
        let base = match stacks.clean.pop() {
            Some(base) => base,
            None => stacks.new_slot()?,
        };
        if let Err(error) = map(base) {
            stacks.clean.push(base);
            return Err(error);
        }
        Ok(KernelStack::with_token(base))
    }

    /// The stack at `base`, which is mapped and clear. No CPU uses its shadow stack.
    fn with_token(base: u64) -> KernelStack {
        let stack = KernelStack { base };
        if shadow_stack::is_on() {
            words::write(stack.shadow_token(), stack.shadow_token());
        }
        stack
    }

    /// Where the token of its shadow stack is, the last word of that.
    pub(crate) fn shadow_token(&self) -> u64 {
        shadow_page(self.base) + (PAGE_SIZE - size_of::<u64>()) as u64
    }

    /// Lays out the shadow stack of a thread that starts in the kernel with a return to `start`.
    /// Gives the address of the token by which a switch takes it; 0 where there are none.
    pub(crate) fn begin_shadow(&self, start: u64) -> u64 {
        if !shadow_stack::is_on() {
            return 0;
        }
        let token = self.shadow_token();
        let [first, restore] = [token - 8, token - 16];
        words::write(token, token | shadow_stack::BUSY);
        words::write(first, start);
        words::write(restore, first | shadow_stack::LONG_MODE);
        restore
    }

    /// First address above the stack, 16-byte aligned.
    pub(crate) fn top(&self) -> u64 {
        self.base + KERNEL_STACK_SIZE as u64
    }
}

/// A stack that is mapped already, with what its last thread has left there.
fn take_mapped() -> Option<u64> {
    let base = HERE.get().swap(0, Ordering::Acquire);
    if base != 0 {
        return Some(base);
    }
    purge_if_due();
    STACKS.lock().pool.pop()
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        let here = HERE.get();
        if here.compare_exchange(0, self.base, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        let mut stacks = STACKS.lock();
        let pooled = stacks.pool.len() < POOL_MAX;
        match stacks.lazy.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) if !pooled => *slot = Some(unmap(self.base)),
            // The next stack that is wanted brings the flush.
            _ => stacks.pool.push(self.base),
        }
    }
}

impl Stacks {
    fn take_lazy(&mut self) -> Lazy {
        core::mem::replace(&mut self.lazy, [None; LAZY_MAX])
    }

    /// The base of a slot that was never used.
    fn new_slot(&mut self) -> Result<u64, OutOfMemory> {
        if self.slots == SLOTS {
            return Err(OutOfMemory);
        }
        self.slots += 1;
        // Room for every stack there is, so that returning one never allocates.
        let slots = self.slots as usize;
        for list in [&mut self.pool, &mut self.clean] {
            list.try_reserve(slots - list.len()).map_err(|_| OutOfMemory)?;
        }
        Ok(vmap_base() + self.slots * SLOT - KERNEL_STACK_SIZE as u64)
    }
}

/// Takes away what the last user of a stack has left there.
fn clear(base: u64) {
    // SAFETY: a stack out of the pool is mapped, and nobody's.
    unsafe { core::ptr::write_bytes(base as *mut u8, 0, KERNEL_STACK_SIZE) };
    if shadow_stack::is_on() {
        words::clear(shadow_page(base));
    }
}

/// Where the page of the shadow stack is.
fn shadow_page(base: u64) -> u64 {
    base - SHADOW_BELOW
}

/// Bytes of memory of a stack.
fn bytes_of_one() -> usize {
    KERNEL_STACK_SIZE + if shadow_stack::is_on() { PAGE_SIZE } else { 0 }
}

fn pages(base: u64) -> impl Iterator<Item = u64> {
    (0..PAGES as u64).map(move |page| base + page * PAGE_SIZE as u64)
}

/// With that of the shadow stack.
fn all_pages(base: u64) -> impl Iterator<Item = u64> {
    pages(base).chain(shadow_stack::is_on().then(|| shadow_page(base)))
}

/// Maps new frames, or nothing: all pages are in one table, so if any mapping fails it is the
/// first.
fn map(base: u64) -> Result<(), OutOfMemory> {
    let frames: [_; PAGES] = core::array::from_fn(|_| Frame::alloc_zeroed().ok());
    if frames.iter().any(Option::is_none) {
        return Err(OutOfMemory);
    }
    let shadow = if shadow_stack::is_on() { Some(Frame::alloc_zeroed()?) } else { None };
    if let Some(frame) = shadow {
        memory::map_shadow_stack(shadow_page(base), frame)?;
    }
    for (va, frame) in pages(base).zip(frames.into_iter().flatten()) {
        memory::map_kernel_memory(va, frame)?;
    }
    Ok(())
}

fn unmap(base: u64) -> u64 {
    all_pages(base).for_each(memory::retire_kernel);
    base
}

/// Flushes for all unmapped stacks together, if there are enough.
fn purge_if_due() {
    let due = {
        let mut stacks = STACKS.lock();
        if stacks.lazy.iter().any(Option::is_none) {
            return;
        }
        stacks.take_lazy()
    };
    purge(due);
}

/// Frees these after the flush. Returns how many they were.
fn purge(due: Lazy) -> usize {
    if due.iter().all(Option::is_none) {
        return 0;
    }
    tlb::flush_kernel(Cause::Vunmap);
    let mut stacks = STACKS.lock();
    let mut count = 0;
    for base in due.into_iter().flatten() {
        all_pages(base).for_each(|va| drop(memory::take_retired(va)));
        stacks.clean.push(base);
        count += 1;
    }
    count
}

/// Bytes of stacks that no task uses, and that [`trim_stacks`] can give back or keeps in the pool.
pub fn idle_stack_bytes() -> usize {
    let here = HERE.iter().filter(|stack| stack.load(Ordering::Relaxed) != 0).count();
    let stacks = STACKS.lock();
    (here + stacks.pool.len() + stacks.lazy.iter().flatten().count()) * bytes_of_one()
}

/// Gives the memory of unused stacks back, for when there is no other. Returns how many there were;
/// call again until it is 0.
pub fn trim_stacks() -> usize {
    let due = {
        let mut stacks = STACKS.lock();
        let Stacks { pool, lazy, .. } = &mut *stacks;
        for slot in lazy.iter_mut().filter(|slot| slot.is_none()) {
            if pool.len() > POOL_MAX
                && let Some(base) = pool.pop()
            {
                *slot = Some(unmap(base));
            }
        }
        stacks.take_lazy()
    };
    purge(due)
}

/// Whether `address` lies in the guard of a kernel stack slot.
pub(crate) fn is_stack_guard(address: u64) -> bool {
    (vmap_base()..vmap_base() + SLOTS * SLOT).contains(&address)
        && (address - vmap_base()) % SLOT < SLOT - KERNEL_STACK_SIZE as u64
}

/// Whether `address` lies in a kernel stack (of any slot).
pub(crate) fn is_stack(address: u64) -> bool {
    (vmap_base()..vmap_base() + SLOTS * SLOT).contains(&address) && !is_stack_guard(address)
}

/// Whether `address` lies in a page of shadow stack (of any slot).
#[cfg(feature = "ktest")]
pub(crate) fn is_shadow_stack(address: u64) -> bool {
    let page = SLOT - KERNEL_STACK_SIZE as u64 - SHADOW_BELOW;
    is_stack_guard(address)
        && (address - vmap_base()) % SLOT / PAGE_SIZE as u64 == page / PAGE_SIZE as u64
}
