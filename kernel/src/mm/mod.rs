//! Address spaces of programs: what is mapped where ([`vma`]), how pages get there ([`fault`]), and
//! what changes both. The calls are in `mapping`, the contents of files in `page_cache`.
//!
//! One sleeping lock per address space guards the list of areas and the page table together. It is
//! held while a page is read from a file, so a fault may sleep; nothing that holds it touches a
//! program's memory, or it would wait for itself. Most faults do not take it: threads bring in,
//! copy and drop single pages beside each other ([`ReadMutex`], `machine::memory::PageTable`).

use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::frame::PAGE_SIZE;
use machine::memory::{HUGE_PAGE, PageKind, PageTable, USER_END};
use machine::sync::SpinLock;

use crate::base::accounts::{Counted, ObjectKind};
use crate::base::reserve::check_reserve;
use crate::base::sync::ReadMutex;
use crate::page_cache::PageCache;

pub mod areas;
pub mod attach;
pub mod elf;
pub mod fault;
pub mod huge;
pub mod huge_area;
pub mod hugetlb;
pub mod keys;
mod mapper;
pub mod remote;
mod search;
pub mod shadow_stack;
pub mod vdso;
pub mod vma;

pub use areas::{Areas, Removed};
use keys::Keys;
pub use search::STACK_GUARD;
use search::Search;
pub use vma::{Attached, Backing, Label, Vma, VmaFlags};

/// Bytes of a page, for arithmetic on addresses.
pub const PAGE: u64 = PAGE_SIZE as u64;
/// Lowest address a program may map (vm.mmap_min_addr).
pub const MMAP_MIN: u64 = 65536;
/// Most areas of one address space (vm.max_map_count).
pub const MAX_MAP_COUNT: usize = 65530;
/// Shared pages of a file that fork copies the way to: for so few that costs less than a fault.
const SHARED_AT_FORK: u64 = 16;

/// Layout of the special areas of a program, for procfs and prctl.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// First address after the program's data: where the heap starts.
    pub brk_start: u64,
    /// End of the heap.
    pub brk: u64,
    /// Top of the initial stack.
    pub stack_top: u64,
    /// Where searching for free space starts, downwards.
    pub mmap_top: u64,
}

/// What the lock of an address space guards.
pub struct MmInner {
    /// The areas, by start address; they do not overlap.
    pub vmas: Areas,
    /// The page table.
    pub table: PageTable,
    /// See [`Layout`].
    pub layout: Layout,
    /// How future mappings are locked (MCL_FUTURE).
    pub lock_future: VmaFlags,
    /// PR_SET_THP_DISABLE: no huge pages.
    pub no_huge_pages: bool,
    /// There may be areas with a seal (mseal(2)): without, nobody looks for them.
    pub has_seals: bool,
    /// Its protection keys.
    pub keys: Keys,
    /// Most resident pages before any was unmapped.
    peak_pages: AtomicU64,
    /// What is known of free space.
    search: Search,
}

/// See [`Mm::extension`].
pub type Extension = Arc<dyn Any + Send + Sync>;

/// An address space.
pub struct Mm {
    inner: ReadMutex<MmInner>,
    space: Arc<machine::memory::Space>,
    /// What a floor above hangs on it: see [`Mm::extension`].
    extension: SpinLock<Option<Extension>>,
    /// Page faults that needed no file (minor) and that did (major), for getrusage(2).
    pub faults: (AtomicU64, AtomicU64),
    _counted: Counted<{ ObjectKind::Space as usize }>,
}

/// Who a futex word belongs to (futex(2)): threads that share the key wait on the same word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct FutexKey {
    /// Identity of the address space or of the file.
    pub object: u64,
    /// Address, or offset in the file.
    pub offset: u64,
}

impl Mm {
    /// An empty address space.
    pub fn new() -> Result<Arc<Mm>> {
        let table = PageTable::new().map_err(|_| Errno::ENOMEM)?;
        let space = table.space().clone();
        let inner = MmInner {
            vmas: Areas::default(),
            table,
            layout: Layout { mmap_top: USER_END, ..Layout::default() },
            lock_future: VmaFlags::empty(),
            no_huge_pages: false,
            has_seals: false,
            keys: Keys::default(),
            peak_pages: AtomicU64::new(0),
            search: Search::new(),
        };
        Ok(Arc::new(Mm {
            inner: ReadMutex::new(inner),
            space,
            extension: SpinLock::new(None),
            faults: (AtomicU64::new(0), AtomicU64::new(0)),
            _counted: Counted::new(),
        }))
    }

    /// What tasks that run in this space refer to.
    pub fn space(&self) -> Arc<machine::memory::Space> {
        self.space.clone()
    }

    /// A copy for fork: private pages are shared until one side writes.
    pub fn duplicate(self: &Arc<Self>) -> Result<Arc<Mm>> {
        check_reserve()?;
        let child = Mm::new()?;
        let mut parent = self.inner.lock();
        let parent = &mut *parent;
        {
            let mut inner = child.inner.lock();
            inner.layout = parent.layout;
            inner.no_huge_pages = parent.no_huge_pages;
            inner.has_seals = parent.has_seals;
            inner.keys = parent.keys;
            let mut noted: Option<&Arc<PageCache>> = None;
            for (&start, vma) in parent.vmas.iter() {
                if vma.flags.contains(VmaFlags::DONT_FORK) {
                    continue;
                }
                // The areas of a program's file follow each other: one note will do.
                if let Backing::File { cache, .. } = &vma.backing
                    && !noted.is_some_and(|noted| Arc::ptr_eq(noted, cache))
                {
                    cache.add_mapper(child.clone());
                    noted = Some(cache);
                }
                let mut copy = vma.clone();
                copy.flags.remove(VmaFlags::LOCKED | VmaFlags::LOCK_ON_FAULT);
                copy.note_opened();
                copy.own_huge_pages();
                let (end, private) = (vma.end, !vma.shared);
                inner.vmas.insert(start, copy);
                if vma.flags.contains(VmaFlags::WIPE_ON_FORK) || comes_by_faults(start, vma) {
                    continue;
                }
                parent
                    .table
                    .share_with(&mut inner.table, start, end, private)
                    .map_err(|_| Errno::ENOMEM)?;
            }
        }
        parent.table.flush();
        Ok(child)
    }

    /// Calls `f` with the lock held. `f` must not touch a program's memory.
    pub fn with<R>(&self, f: impl FnOnce(&mut MmInner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Calls `f` beside others who do, if nobody has the lock. `f` must not sleep.
    pub fn try_read<R>(&self, f: impl FnOnce(&MmInner) -> R) -> Option<R> {
        self.inner.try_read(f)
    }

    /// What a floor above keeps for the programs of this address space (the contexts of
    /// io_setup(2)), if it does. It goes with what is mapped.
    pub fn extension(&self) -> Option<Extension> {
        self.extension.lock().clone()
    }

    /// The same, made if there is none.
    pub fn extension_or(&self, make: impl FnOnce() -> Extension) -> Extension {
        let new = make();
        self.extension.lock().get_or_insert(new).clone()
    }

    /// Identity of the 32-bit word at `address`. `private` skips the look at the mapping; who says
    /// it and who does not mean different words, also in private memory (futex(2),
    /// FUTEX_PRIVATE_FLAG).
    pub fn futex_key(&self, address: u64, private: bool) -> Result<FutexKey> {
        let own = FutexKey { object: core::ptr::from_ref(self) as u64, offset: address };
        if private {
            return Ok(own);
        }
        let inner = self.inner.lock();
        let (start, vma) = inner.find(address).ok_or(Errno::EFAULT)?;
        match &vma.backing {
            Backing::File { cache, page_offset, .. } if vma.shared => Ok(FutexKey {
                object: Arc::as_ptr(cache) as u64,
                offset: address - start + page_offset * PAGE,
            }),
            Backing::Hugetlb(area) if vma.shared => Ok(FutexKey {
                object: Arc::as_ptr(&area.pages) as u64,
                offset: address - start + area.first * HUGE_PAGE,
            }),
            // Words are aligned, so no other has this offset.
            _ => Ok(FutexKey { offset: address | 1, ..own }),
        }
    }

    /// Pages of this space, with those of its tables: for the choice of whom to kill.
    pub fn pages_estimate(&self) -> u64 {
        let inner = self.inner.lock();
        // An area takes a twentieth of a page or so.
        inner.resident_pages() + inner.table.tables() + inner.vmas.len() as u64 / 20
    }

    /// Most resident pages so far.
    pub fn peak_pages(&self) -> u64 {
        let inner = self.inner.lock();
        inner.note_peak();
        inner.peak_pages.load(Ordering::Relaxed)
    }

    /// Most resident pages count from now on.
    pub fn reset_peak(&self) {
        let inner = self.inner.lock();
        inner.peak_pages.store(inner.resident_pages(), Ordering::Relaxed);
    }

    /// Resident pages now.
    pub fn resident_pages(&self) -> u64 {
        self.inner.lock().resident_pages()
    }

    /// Total size of all areas, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.inner.lock().total_bytes()
    }
}

impl MmInner {
    /// The area that contains `address`, with its start.
    pub fn find(&self, address: u64) -> Option<(u64, &Vma)> {
        self.vmas.containing(address)
    }

    /// Resident pages now.
    pub fn resident_pages(&self) -> u64 {
        let kinds = [PageKind::Anonymous, PageKind::File, PageKind::Shmem];
        kinds.map(|kind| self.table.mapped(kind)).iter().sum()
    }

    fn note_peak(&self) {
        let now = self.resident_pages();
        if now > self.peak_pages.load(Ordering::Relaxed) {
            self.peak_pages.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Takes the pages of `[start, end)` from the program, whose areas stay. `unused` is as for
    /// [`PageTable::unmap`].
    pub fn zap(&mut self, start: u64, end: u64, unused: Range<u64>) {
        self.note_peak();
        self.table.unmap(start, end, unused);
    }

    /// The same beside other threads, where it is short. False if something may be left.
    pub fn try_zap(&self, start: u64, end: u64) -> bool {
        if end - start > HUGE_PAGE {
            return false;
        }
        self.note_peak();
        self.table.try_unmap(start, end)
    }

    /// Sum of the sizes of all areas, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.vmas.sums().total * PAGE
    }

    /// Whether `[start, end)` is free.
    pub fn is_free(&self, start: u64, end: u64) -> bool {
        self.vmas.range(..end).next_back().is_none_or(|(_, vma)| vma.end <= start)
    }

    /// Whether `more` bytes may be locked beside those that are, `limit` bytes in all.
    pub fn may_lock_more(&self, limit: u64, more: u64) -> bool {
        limit == u64::MAX || self.locked_bytes(0, u64::MAX).saturating_add(more) <= limit
    }

    /// Bytes of locked areas in `[start, end)`.
    pub fn locked_bytes(&self, start: u64, end: u64) -> u64 {
        let areas = self.vmas.range(..end).rev().take_while(|(_, vma)| vma.end > start);
        let locked = areas.filter(|(_, vma)| vma.flags.contains(VmaFlags::LOCKED));
        locked.map(|(&from, vma)| vma.end.min(end) - from.max(start)).sum()
    }

    fn next_start(&self, from: u64) -> Option<u64> {
        self.vmas.range(from..).next().map(|(&start, _)| start)
    }

    /// Makes sure that an area starts at `at`, if one contains it.
    pub fn split(&mut self, at: u64) {
        self.vmas.split(at);
    }

    /// Whether `[start, end)` may be unmapped: EPERM where something in it is sealed, EINVAL where
    /// it would cut a huge page of the pool.
    pub fn check_unmap(&self, start: u64, end: u64) -> Result<()> {
        let is_sealed = || {
            let mut areas = self.vmas.range(..end).rev().take_while(|(_, vma)| vma.end > start);
            areas.any(|(_, vma)| vma.is_sealed())
        };
        if self.has_seals && is_sealed() {
            return Err(Errno::EPERM);
        }
        self.check_cuts(start, end)
    }

    /// Unmaps `[start, end)`. Returns the areas, for the caller to drop without the lock.
    #[must_use]
    pub fn unmap(&mut self, start: u64, end: u64) -> Removed {
        let removed = self.vmas.cut_out(start..end);
        if !removed.is_empty() {
            let below = self.vmas.range(..start).next_back().map_or(0, |(_, vma)| vma.end);
            let above = self.next_start(end).unwrap_or(u64::MAX);
            self.zap(start, end, below..above);
            removed.iter().for_each(|(start, vma)| vma.give_back_huge(*start));
            self.note_free(below, above);
        }
        removed
    }

    /// Enters an area; joins it with its neighbours if they are alike.
    pub fn insert(&mut self, start: u64, vma: Vma) -> Result<()> {
        if self.vmas.len() >= MAX_MAP_COUNT {
            return Err(Errno::ENOMEM);
        }
        self.vmas.insert(start, vma);
        self.vmas.join(start);
        Ok(())
    }

    /// Joins what is alike in `[start, end]` and next to it.
    pub fn merge_within(&mut self, start: u64, end: u64) {
        let mut from = start;
        while let Some(at) = self.next_start(from).filter(|&at| at <= end) {
            self.vmas.join(at);
            from = at + 1;
        }
    }
}

/// Whether a child finds the shared pages of an area by faults: what the file has they find there,
/// and huge ones are few.
fn comes_by_faults(start: u64, vma: &Vma) -> bool {
    let is_file = matches!(vma.backing, Backing::File { .. });
    let is_large = vma.end - start > SHARED_AT_FORK * PAGE;
    vma.shared && (vma.is_hugetlb() || is_file && is_large)
}
