//! Physical memory: 4 KiB frames with reference counts, on a buddy allocator.
//!
//! A [`Frame`] is a counted reference to one frame, as `Arc` is to a value: cloning it shares the
//! frame (copy-on-write, page cache), dropping the last one frees it. Contents are reached only by
//! copies ([`Frame::read`], [`Frame::write`]), never by Rust references, because programs that have
//! the frame mapped write to it at any moment.
//!
//! The buddy allocator is our own, against the rule to prefer a crate: reference counts need one
//! record per frame anyway, and with it merging is O(1) per order, where the crates of the field
//! search their free lists.
//!
//! Neighbours: `heap` carves small kernel objects out of these frames; `memory` maps them.

use core::num::NonZeroU32;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::cpu::percpu::{CpuCell, PerCpu};
use crate::cpu::sync::{IrqGuard, SpinLock};
pub use crate::cpu::{PAGE_SHIFT, PAGE_SIZE};
pub(crate) use crate::cpu::{direct_map_base, phys_to_virt};
use crate::cpu::{image_phys, kernel_base};

/// Largest block the buddy hands out: 2^12 frames, 16 MiB.
pub(crate) const MAX_ORDER: usize = 12;

/// Physical memory is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// The record of one physical frame. Frame 0 is never handed out, so 0 serves as "none".
struct FrameInfo {
    refs: AtomicU32,
    /// Neighbours in the free list of `order`; meaningful only while `state` says free.
    next: AtomicU32,
    prev: AtomicU32,
    /// `FREE | order` at the first frame of a free block; 0 elsewhere.
    state: AtomicU32,
}

const FREE: u32 = 0x100;

static INFO: AtomicPtr<FrameInfo> = AtomicPtr::new(core::ptr::null_mut());
static INFO_COUNT: AtomicUsize = AtomicUsize::new(0);
static TOTAL_FRAMES: AtomicUsize = AtomicUsize::new(0);
/// Copy of `Buddy::free_frames` for those who take no lock.
static FREE_FRAMES: AtomicUsize = AtomicUsize::new(0);
/// Whether that is less than `LEAST_FREE`: every system call asks.
static IS_SHORT: AtomicU32 = AtomicU32::new(0);
/// The least that `Buddy::free_frames` has been since boot; written under the lock.
static FEWEST_FREE: AtomicUsize = AtomicUsize::new(usize::MAX);

fn info(pfn: u32) -> &'static FrameInfo {
    assert!((pfn as usize) < INFO_COUNT.load(Ordering::Relaxed), "frame number out of range");
    // SAFETY: `init` put INFO_COUNT zeroed records there, which is a valid state, and they stay.
    unsafe { &*INFO.load(Ordering::Relaxed).wrapping_add(pfn as usize) }
}

struct Buddy {
    heads: [u32; MAX_ORDER + 1],
    free_frames: usize,
    /// Largest block it makes by merging.
    max_order: usize,
}

impl Buddy {
    const fn new() -> Self {
        Buddy { heads: [0; MAX_ORDER + 1], free_frames: 0, max_order: MAX_ORDER }
    }
}

static BUDDY: SpinLock<Buddy> = SpinLock::new(Buddy::new());

/// What only the kernel's heap may use, and only when `BUDDY` has nothing: a call that has begun
/// must be able to end. It is one block, since programs would leave only scattered frames.
static EMERGENCY: SpinLock<Buddy> = SpinLock::new(Buddy::new());
/// First frame of that block, and the one behind it.
static EMERGENCY_START: AtomicU32 = AtomicU32::new(0);
static EMERGENCY_END: AtomicU32 = AtomicU32::new(0);

fn is_emergency(pfn: u32) -> bool {
    let start = EMERGENCY_START.load(Ordering::Relaxed);
    (start..EMERGENCY_END.load(Ordering::Relaxed)).contains(&pfn)
}

impl Buddy {
    fn push(&mut self, pfn: u32, order: usize) {
        let block = info(pfn);
        let head = self.heads[order];
        block.state.store(FREE | order as u32, Ordering::Relaxed);
        block.prev.store(0, Ordering::Relaxed);
        block.next.store(head, Ordering::Relaxed);
        if head != 0 {
            info(head).prev.store(pfn, Ordering::Relaxed);
        }
        self.heads[order] = pfn;
    }

    fn unlink(&mut self, pfn: u32, order: usize) {
        let block = info(pfn);
        let next = block.next.load(Ordering::Relaxed);
        let prev = block.prev.load(Ordering::Relaxed);
        block.state.store(0, Ordering::Relaxed);
        if prev == 0 {
            assert_eq!(self.heads[order], pfn, "free list is corrupt");
            self.heads[order] = next;
        } else {
            info(prev).next.store(next, Ordering::Relaxed);
        }
        if next != 0 {
            info(next).prev.store(prev, Ordering::Relaxed);
        }
    }

    fn alloc(&mut self, order: usize) -> Option<u32> {
        let from = (order..=MAX_ORDER).find(|&o| self.heads[o] != 0)?;
        let pfn = self.heads[from];
        self.unlink(pfn, from);
        for smaller in (order..from).rev() {
            self.push(pfn + (1 << smaller), smaller);
        }
        self.free_frames -= 1 << order;
        Some(pfn)
    }

    fn free(&mut self, mut pfn: u32, mut order: usize) {
        assert_eq!(info(pfn).state.load(Ordering::Relaxed) & FREE, 0, "frame freed twice");
        self.free_frames += 1 << order;
        while order < self.max_order {
            let buddy = pfn ^ 1 << order;
            if buddy as usize >= INFO_COUNT.load(Ordering::Relaxed)
                || info(buddy).state.load(Ordering::Relaxed) != FREE | order as u32
                || is_emergency(buddy) != is_emergency(pfn)
            {
                break;
            }
            self.unlink(buddy, order);
            pfn = pfn.min(buddy);
            order += 1;
        }
        self.push(pfn, order);
    }
}

/// Frames each CPU keeps at hand, so that most allocations take no lock.
const MAGAZINE: usize = 64;

struct Magazine {
    count: usize,
    pfns: [u32; MAGAZINE],
}

impl Magazine {
    /// Half fills an empty one: whole small blocks first, and of a larger one what fits.
    fn fill(&mut self) {
        let mut buddy = BUDDY.lock();
        while self.count < MAGAZINE / 2 {
            let room = (MAGAZINE / 2 - self.count).ilog2() as usize;
            let smallest = (0..=MAX_ORDER).find(|&order| buddy.heads[order] != 0);
            let Some(order) = smallest.map(|order| order.min(room)) else { break };
            let Some(pfn) = buddy.alloc(order) else { break };
            // The last one is taken first.
            for offset in (0..1 << order).rev() {
                self.pfns[self.count] = pfn + offset;
                self.count += 1;
            }
        }
        note_free(&buddy);
    }

    fn put(&mut self, pfn: u32) {
        if self.count == MAGAZINE {
            self.drain();
        }
        self.pfns[self.count] = pfn;
        self.count += 1;
    }

    /// Gives half of a full one back. Neighbours go back as blocks.
    fn drain(&mut self) {
        self.count -= MAGAZINE / 2;
        let given = &mut self.pfns[self.count..];
        given.sort_unstable();
        let mut buddy = BUDDY.lock();
        let mut rest = &*given;
        while let Some(&first) = rest.first() {
            let neighbours = (first..).zip(rest).take_while(|(next, pfn)| next == *pfn).count();
            let order = neighbours.ilog2().min(first.trailing_zeros()) as usize;
            buddy.free(first, order);
            rest = &rest[1 << order..];
        }
        publish_free(&buddy);
    }
}

static MAGAZINES: PerCpu<CpuCell<Magazine>> = PerCpu::from_array(
    [const { CpuCell::new(Magazine { count: 0, pfns: [0; MAGAZINE] }) }; crate::cpu::MAX_CPUS],
);

fn alloc_one() -> Option<u32> {
    let _irq = IrqGuard::new();
    // SAFETY: interrupts are masked, the cell is this CPU's, and the buddy never calls back.
    unsafe {
        MAGAZINES.get().with(|magazine| {
            if magazine.count == 0 {
                magazine.fill();
            }
            magazine.count = magazine.count.checked_sub(1)?;
            Some(magazine.pfns[magazine.count])
        })
    }
}

fn free_one(pfn: u32) {
    let _irq = IrqGuard::new();
    // SAFETY: as in `alloc_one`: interrupts are masked meanwhile.
    unsafe {
        MAGAZINES.get().with(|magazine| magazine.put(pfn));
    }
}

/// How many references there are to a frame in use.
pub(crate) fn references(pfn: u32) -> u32 {
    info(pfn).refs.load(Ordering::Acquire)
}

/// Drops one reference to each of these frames.
///
/// # Safety
/// The caller owns a counted reference for each and gives it up.
pub(crate) unsafe fn release(pfns: &[u32]) {
    let _irq = IrqGuard::new();
    let drop_all = |magazine: &mut Magazine| {
        for &pfn in pfns {
            let refs = &info(pfn).refs;
            // Who has the only reference needs no locked instruction: nobody can add one.
            let is_last = if refs.load(Ordering::Acquire) == 1 {
                refs.store(0, Ordering::Relaxed);
                true
            } else {
                refs.fetch_sub(1, Ordering::AcqRel) == 1
            };
            if is_last {
                magazine.put(pfn);
            }
        }
    };
    // SAFETY: as in `alloc_one`: interrupts are masked meanwhile.
    unsafe { MAGAZINES.get().with(drop_all) };
}

/// log2 of the frames of a [`HugeFrame`].
const HUGE_ORDER: usize = 9;
/// Frames of a [`HugeFrame`].
pub const HUGE_FRAMES: usize = 1 << HUGE_ORDER;

/// A naturally aligned run of [`HUGE_FRAMES`] frames: what a large page of 2 MiB maps.
///
/// Large pages share the frames as a whole: all of them together hold one reference to each frame,
/// and are counted themselves, at the first one ([`sharers`]). So fork counts once for 2 MiB, and
/// yet each frame counts for itself: a large page that becomes small ones takes references of its
/// own, and goes its own way.
#[derive(Debug)]
pub struct HugeFrame(u32);

impl HugeFrame {
    /// A new one, filled with zeros. None if there is none in one piece, or so little memory is
    /// left that it is better given out in small pieces.
    #[must_use]
    pub fn alloc_zeroed() -> Option<HugeFrame> {
        let huge = Self::alloc_undefined()?;
        let at = phys_to_virt(u64::from(huge.0) << PAGE_SHIFT);
        // SAFETY: the frames are new, so this is the only access to their bytes.
        unsafe { core::ptr::write_bytes(at.cast::<u64>(), 0, HUGE_FRAMES * PAGE_SIZE / 8) };
        Some(huge)
    }

    /// The same with undefined contents, all of which the caller overwrites.
    pub(crate) fn alloc_undefined() -> Option<HugeFrame> {
        if is_low() {
            return None;
        }
        let first = try_block(HUGE_ORDER)?;
        for pfn in huge_range(first) {
            let before = info(pfn).refs.swap(1, Ordering::Relaxed);
            assert_eq!(before, 0, "free frame had references");
        }
        sharers(first).store(1, Ordering::Relaxed);
        Some(HugeFrame(first))
    }

    /// Another share of the same memory.
    #[must_use]
    pub fn share(&self) -> HugeFrame {
        // SAFETY: this value owns a share; the new one is the result's.
        unsafe { share_huge(self.0) };
        HugeFrame(self.0)
    }

    /// Whether this is the only share, and nobody has a reference to a single frame. It stays so:
    /// only who finds the memory in a page table could add one.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        is_sole_huge(self.0)
    }

    /// A reference of its own to one of the frames.
    #[must_use]
    pub fn part(&self, at: usize) -> Frame {
        assert!(at < HUGE_FRAMES, "not a frame of 2 MiB");
        of_huge(self.0 + at as u32)
    }

    /// Whether there is no other share.
    #[must_use]
    pub fn is_unshared(&self) -> bool {
        sharers(self.0).load(Ordering::Acquire) == 1
    }

    /// Fills it with zeros.
    pub fn zero(&self) {
        huge_range(self.0).for_each(|pfn| of_huge(pfn).zero(0, PAGE_SIZE));
    }

    /// Copies all of another one here.
    pub fn copy_from(&self, other: &HugeFrame) {
        for (to, from) in huge_range(self.0).zip(huge_range(other.0)) {
            of_huge(to).copy_from(&of_huge(from), PAGE_SIZE);
        }
    }

    /// The number of its first frame.
    pub(crate) fn first(&self) -> u32 {
        self.0
    }

    /// Gives the share away, to a page table. Returns the number of the first frame.
    pub(crate) fn into_raw(self) -> u32 {
        let first = self.0;
        core::mem::forget(self);
        first
    }
}

impl Drop for HugeFrame {
    fn drop(&mut self) {
        // SAFETY: the share is this value's.
        unsafe { release_huge(self.0) };
    }
}

/// A reference of its own to a frame of a [`HugeFrame`], which the caller has a share of.
fn of_huge(pfn: u32) -> Frame {
    // SAFETY: the shares hold a reference to each frame together, and the caller has one.
    unsafe { Frame::clone_raw(pfn) }
}

fn huge_range(first: u32) -> core::ops::Range<u32> {
    first..first + HUGE_FRAMES as u32
}

/// How many large pages share the run that begins with this frame. The place is free while the
/// frame is in use.
fn sharers(first: u32) -> &'static AtomicU32 {
    &info(first).prev
}

/// How many pages have frame `pfn` of the run that begins with `first`, large ones included.
pub(crate) fn references_in_huge(first: u32, pfn: u32) -> u32 {
    references(pfn) + sharers(first).load(Ordering::Relaxed).saturating_sub(1)
}

/// Whether nobody but one large page has any of the frames.
pub(crate) fn is_sole_huge(first: u32) -> bool {
    sharers(first).load(Ordering::Acquire) == 1 && huge_range(first).all(|pfn| references(pfn) == 1)
}

/// Adds a large page that shares the run.
///
/// # Safety
/// The caller owns a share during the call.
pub(crate) unsafe fn share_huge(first: u32) {
    sharers(first).fetch_add(1, Ordering::Relaxed);
}

/// Takes a reference to each frame in place of a share.
///
/// # Safety
/// The caller owns a share and gives it up, and owns the references afterwards.
pub(crate) unsafe fn split_huge(first: u32) {
    // The only share: what all hold together becomes the caller's.
    if sharers(first).load(Ordering::Acquire) == 1 {
        sharers(first).store(0, Ordering::Relaxed);
        return;
    }
    for pfn in huge_range(first) {
        info(pfn).refs.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the caller's share, as a whole.
    unsafe { release_huge(first) };
}

/// Gives up a share.
///
/// # Safety
/// The caller owns it.
pub(crate) unsafe fn release_huge(first: u32) {
    if sharers(first).fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    if huge_range(first).all(|pfn| references(pfn) == 1) {
        huge_range(first).for_each(|pfn| info(pfn).refs.store(0, Ordering::Relaxed));
        // SAFETY: it was allocated as a block, and nothing refers to any frame of it any more.
        return unsafe { free_block(first, HUGE_ORDER) };
    }
    for pfn in huge_range(first) {
        // SAFETY: the references that the shares held together.
        unsafe { release(&[pfn]) };
    }
}

fn with_buddy<R>(f: impl FnOnce(&mut Buddy) -> R) -> R {
    let mut buddy = BUDDY.lock();
    let result = f(&mut buddy);
    note_free(&buddy);
    result
}

/// Tells those who take no lock how much is free. The lock of `buddy` is held.
fn publish_free(buddy: &Buddy) {
    FREE_FRAMES.store(buddy.free_frames, Ordering::Relaxed);
    let is_short = u32::from(buddy.free_frames < LEAST_FREE.load(Ordering::Relaxed));
    if is_short != IS_SHORT.load(Ordering::Relaxed) {
        IS_SHORT.store(is_short, Ordering::Relaxed);
    }
}

/// The same after memory was taken.
fn note_free(buddy: &Buddy) {
    publish_free(buddy);
    if buddy.free_frames < FEWEST_FREE.load(Ordering::Relaxed) {
        FEWEST_FREE.store(buddy.free_frames, Ordering::Relaxed);
    }
}

/// Takes a naturally aligned block of `2^order` frames for the kernel itself, from what is kept for
/// it if need be; contents undefined. Returns its frame number.
pub(crate) fn alloc_block(order: usize) -> Option<u32> {
    try_block(order).or_else(|| EMERGENCY.lock().alloc(order))
}

/// The same for those who can do without: not from what is kept.
pub(crate) fn try_block(order: usize) -> Option<u32> {
    if order == 0 { alloc_one() } else { with_buddy(|buddy| buddy.alloc(order)) }
}

/// A counter for the owner of an allocated frame: the heap counts free objects of a slab with it.
pub(crate) fn owner_mark(pfn: u32) -> &'static AtomicU32 {
    &info(pfn).next
}

/// Gives a block back.
///
/// # Safety
/// The block came from [`alloc_block`] with the same order, and nothing refers to it any more.
pub(crate) unsafe fn free_block(pfn: u32, order: usize) {
    if is_emergency(pfn) {
        EMERGENCY.lock().free(pfn, order);
    } else if order == 0 {
        free_one(pfn);
    } else {
        with_buddy(|buddy| buddy.free(pfn, order));
    }
}

/// Physical address of memory inside the direct map (heap objects, frames; not stacks or statics).
pub(crate) fn virt_to_phys(virt: *const u8) -> u64 {
    let phys = (virt as u64).wrapping_sub(direct_map_base());
    assert!(phys < (INFO_COUNT.load(Ordering::Relaxed) as u64) << PAGE_SHIFT, "not direct-mapped");
    phys
}

/// A counted reference to one 4 KiB physical frame.
#[derive(PartialEq, Eq, Debug)]
pub struct Frame(NonZeroU32);

impl Frame {
    /// A new frame, filled with zeros.
    pub fn alloc_zeroed() -> Result<Frame, OutOfMemory> {
        let frame = Frame::alloc_undefined()?;
        let at = frame.ptr();
        // SAFETY: the frame is new, so this is the only access to its 4096 bytes.
        unsafe { core::ptr::write_bytes(at.cast::<u64>(), 0, PAGE_SIZE / 8) };
        Ok(frame)
    }

    /// A new frame with the contents of this one.
    pub fn duplicate(&self) -> Result<Frame, OutOfMemory> {
        let copy = Frame::alloc_undefined()?;
        // SAFETY: `copy` is new; a racing program tears only what it is writing. Both are 4096
        // bytes in the direct map, and differ.
        unsafe { copy_bytes(self.ptr(), copy.ptr(), PAGE_SIZE) };
        Ok(copy)
    }

    /// A new frame with what its last user has left there: for who fills it, or takes that away,
    /// before a program can see it.
    pub fn alloc_undefined() -> Result<Frame, OutOfMemory> {
        let pfn = alloc_one().and_then(NonZeroU32::new).ok_or(OutOfMemory)?;
        let before = info(pfn.get()).refs.swap(1, Ordering::Relaxed);
        assert_eq!(before, 0, "free frame had references");
        Ok(Frame(pfn))
    }

    /// Takes over one reference that a page table held.
    ///
    /// # Safety
    /// The caller owns one counted reference to this frame and gives it up.
    pub(crate) unsafe fn from_raw(pfn: u32) -> Frame {
        Frame(NonZeroU32::new(pfn).expect("frame 0 is never handed out"))
    }

    /// Gives the counted reference away, to a page table.
    pub(crate) fn into_raw(self) -> u32 {
        let pfn = self.0.get();
        core::mem::forget(self);
        pfn
    }

    /// The frame of a page of the kernel's image, which stays the image's: one reference more than
    /// is handed out keeps it from ever being free.
    pub(crate) fn of_image(va: u64) -> Frame {
        let phys = va - kernel_base();
        assert!(image_phys().contains(&phys), "no page of the image");
        let pfn = (phys >> PAGE_SHIFT) as u32;
        let before = info(pfn).refs.swap(2, Ordering::Relaxed);
        assert_eq!(before, 0, "a page of the image has been handed out already");
        // SAFETY: one of the two references just counted is the one handed over.
        unsafe { Frame::from_raw(pfn) }
    }

    /// Adds a reference to a frame that is known to be alive, by number.
    ///
    /// # Safety
    /// Somebody holds a reference to `pfn` during the call.
    pub(crate) unsafe fn clone_raw(pfn: u32) -> Frame {
        info(pfn).refs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the reference just counted is the one handed over.
        unsafe { Frame::from_raw(pfn) }
    }

    #[inline(always)]
    pub(crate) fn ptr(&self) -> *mut u8 {
        phys_to_virt(self.phys())
    }

    /// Physical address, bytes.
    #[inline(always)]
    pub fn phys(&self) -> u64 {
        u64::from(self.0.get()) << PAGE_SHIFT
    }

    /// How many references to the frame exist; 1 means that nobody else can see it.
    pub fn refs(&self) -> u32 {
        info(self.0.get()).refs.load(Ordering::Acquire)
    }

    /// Copies bytes out, from `offset` on. Panics if the range leaves the frame.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset <= PAGE_SIZE && into.len() <= PAGE_SIZE - offset);
        // SAFETY: the range was checked; `into` is a kernel buffer and cannot overlap a frame that
        // is held by count. A racing program tears only what it is writing.
        unsafe { copy_bytes(self.ptr().wrapping_add(offset), into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes in, at `offset`. Panics if the range leaves the frame.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset <= PAGE_SIZE && from.len() <= PAGE_SIZE - offset);
        // SAFETY: as in `read`: the range was checked just now.
        unsafe { copy_bytes(from.as_ptr(), self.ptr().wrapping_add(offset), from.len()) };
    }

    /// Copies the first `len` bytes of another frame here. Panics if that is more than a frame.
    pub fn copy_from(&self, other: &Frame, len: usize) {
        assert!(len <= PAGE_SIZE);
        if self != other {
            // SAFETY: both frames are held by count and differ, and `len` lies in both; a racing
            // program tears only what it is writing.
            unsafe { copy_bytes(other.ptr(), self.ptr(), len) };
        }
    }

    /// Fills `len` bytes from `offset` on with zeros. Panics if the range leaves the frame.
    pub fn zero(&self, offset: usize, len: usize) {
        assert!(offset <= PAGE_SIZE && len <= PAGE_SIZE - offset);
        // SAFETY: the range was checked, as in `read`; the instruction is opaque to the compiler,
        // so a program that writes there too is no race between Rust accesses. DF is clear.
        unsafe {
            core::arch::asm!("rep stosq", "mov ecx, edx", "rep stosb",
                inout("rcx") len / 8 => _, in("edx") len % 8, in("rax") 0u64,
                inout("rdi") self.ptr().wrapping_add(offset) => _,
                options(nostack, preserves_flags));
        }
    }
}

/// Copies by the string instruction, opaque to the compiler, so that concurrent writes by programs
/// are not a data race between Rust accesses.
///
/// # Safety
/// Both ranges are `len` bytes of mapped kernel memory and do not overlap.
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's contract; DF is clear in the kernel.
    unsafe {
        core::arch::asm!("rep movsq", "mov ecx, edx", "rep movsb",
            inout("rcx") len / 8 => _, in("edx") len % 8,
            inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

impl Clone for Frame {
    fn clone(&self) -> Frame {
        let before = info(self.0.get()).refs.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "frame reference count overflow");
        Frame(self.0)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if info(self.0.get()).refs.fetch_sub(1, Ordering::Release) == 1 {
            core::sync::atomic::fence(Ordering::Acquire);
            free_one(self.0.get());
        }
    }
}

/// Memory in frames: (all that the kernel manages, free). Free frames in the CPUs' magazines count
/// as used, at most 64 for each CPU.
pub fn usage() -> (usize, usize) {
    let kept = EMERGENCY.lock().free_frames;
    (TOTAL_FRAMES.load(Ordering::Relaxed), BUDDY.lock().free_frames + kept)
}

/// All frames that the kernel manages. Takes no lock.
pub fn total() -> usize {
    TOTAL_FRAMES.load(Ordering::Relaxed)
}

/// Most frames that were in use at once since boot, as [`usage`] counts them.
pub fn peak_used() -> usize {
    let kept = EMERGENCY.lock().free_frames;
    let fewest = FEWEST_FREE.load(Ordering::Relaxed);
    TOTAL_FRAMES.load(Ordering::Relaxed).saturating_sub(fewest.saturating_add(kept))
}

/// Least free frames for programs to get more: a 64th of all, at most 4 MiB. As much again is kept
/// for the heap alone.
static LEAST_FREE: AtomicUsize = AtomicUsize::new(0);

/// Whether so little memory is left that only the kernel itself should take more. Takes no lock.
#[inline]
pub fn is_short() -> bool {
    IS_SHORT.load(Ordering::Relaxed) != 0
}

/// Whether [`is_short`], or `word` is not 0: with memory in the second instruction, and one branch.
/// For the question of every system call.
#[inline(always)]
pub fn is_short_or(word: u32) -> bool {
    'yes: {
        // SAFETY: an aligned load of a live word, which tears nothing; the label is in this
        // function.
        unsafe {
            core::arch::asm!("or {word:e}, dword ptr [rip + {short}]",
                 "jnz {yes}",
                 word = inout(reg) word => _,
                 short = sym IS_SHORT,
                 yes = label { break 'yes true; },
                 options(nostack, readonly));
        }
        false
    }
}

/// Whether less than an eighth of all memory is free: what outlives the programs that made it, such
/// as files in memory, must leave that. Takes no lock.
pub fn is_low() -> bool {
    FREE_FRAMES.load(Ordering::Relaxed) < TOTAL_FRAMES.load(Ordering::Relaxed) / 8
}

/// Sets up the records and frees all usable memory.
///
/// # Safety
/// Called once, before any other function here. `usable` are page-aligned physical ranges of RAM
/// (start, end) that are in the direct map and used by nobody; `records` is memory for one zeroed
/// record for each frame below `limit_pfn`.
pub(crate) unsafe fn init(records: *mut u8, limit_pfn: usize, usable: &[(u64, u64)]) {
    // SAFETY: the caller gives this memory to the records.
    unsafe { core::ptr::write_bytes(records, 0, records_bytes(limit_pfn)) };
    INFO.store(records.cast(), Ordering::Relaxed);
    INFO_COUNT.store(limit_pfn, Ordering::Relaxed);
    let mut buddy = BUDDY.lock();
    for &(start, end) in usable {
        let mut pfn = (start >> PAGE_SHIFT).max(1) as u32;
        let end = (end >> PAGE_SHIFT) as u32;
        while pfn < end {
            let order = (pfn.trailing_zeros() as usize).min(MAX_ORDER);
            let order = order.min((end - pfn).ilog2() as usize);
            buddy.free(pfn, order);
            pfn += 1 << order;
        }
    }
    let total = buddy.free_frames;
    TOTAL_FRAMES.store(total, Ordering::Relaxed);
    let least = (total / 64).clamp(1, 1024);
    LEAST_FREE.store(least, Ordering::Relaxed);
    // The largest block that is not more than that.
    for order in (0..=least.ilog2() as usize).rev() {
        let Some(pfn) = buddy.alloc(order) else { continue };
        EMERGENCY_START.store(pfn, Ordering::Relaxed);
        EMERGENCY_END.store(pfn + (1 << order), Ordering::Relaxed);
        let mut emergency = EMERGENCY.lock();
        emergency.max_order = order;
        emergency.free(pfn, order);
        break;
    }
    publish_free(&buddy);
}

/// Bytes that the records of `limit_pfn` frames take.
pub(crate) fn records_bytes(limit_pfn: usize) -> usize {
    limit_pfn * size_of::<FrameInfo>()
}
