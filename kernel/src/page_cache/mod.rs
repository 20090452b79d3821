//! The contents of files in memory: one [`PageCache`] for each file, whatever reads, writes, maps
//! or executes it. Without a backend the cache *is* the file (tmpfs, shared anonymous memory); with
//! one it is filled from, and written back to, where the data lasts (9P).
//!
//! A page is a reference-counted frame. Programs that map the file share the cache's frame, so
//! reads, writes and mappings always agree.
//!
//! Why it is hard: the backend may take as long as it likes, and nobody else's page waits for it.
//! So no lock is held while it is asked. A page says itself what is going on with it
//! ([`PageState`]): who finds one that is being read waits for that page and then looks again,
//! since it may be gone by then; who dirties one that is being written back leaves it dirty.
//!
//! Locks: `resizing` (sleeps; held while the file gets shorter, and while single pages become a run
//! of 2 MiB), then `pages` (a spin lock, never held over a copy). The lock of an address space may
//! be held by callers of `page`; `set_size` and `punch` take it themselves and must be called
//! without it.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::frame::{Frame, PAGE_SIZE, is_low};
use machine::sync::SpinLock;

use crate::base::io::{Sink, Source};
use crate::base::sync::{Mutex, WaitQueue};

pub mod huge;
mod mappers;
mod pages;
mod reading;

use huge::HugeFiles;
use mappers::Mappers;
use pages::{Look, Page, PageState, Pages, Taken};
pub use reading::Coming;
use reading::Windows;

/// Where the data of a file lasts.
pub trait PageBackend: Send + Sync {
    /// Fills the pages from index `first` on, whose contents are undefined, from their beginning as
    /// far as the file goes; how many bytes. May sleep.
    fn read_pages(&self, first: u64, frames: &[Frame]) -> Result<usize>;
    /// The same without the wait. None if that cannot be now, or never.
    fn begin_pages(&self, _first: u64, _frames: &[Frame]) -> Option<Box<dyn Coming>> {
        None
    }
    /// Writes `len` bytes, which end in the last of these pages, from page `first` on. May sleep.
    fn write_pages(&self, first: u64, frames: &[Frame], len: usize) -> Result<()>;
}

/// Who keeps files in memory: how much they may take, and in which pieces.
pub trait Keeper: Send + Sync {
    /// Takes room for so many pages. False, and nothing done, if there is less.
    fn take_room(&self, pages: usize) -> bool;
    /// Gives it back.
    fn give_room(&self, pages: usize);
    /// How many pages there is room for.
    fn room(&self) -> u64;
    /// Whether files come by 2 MiB; None if that is as for files without a mount.
    fn huge(&self) -> Option<HugeFiles>;
}

/// How often a page may be gone again when it has been read, before that counts as an error.
const READS_MAX: usize = 64;

/// Pages written at once to a backend: 256 KiB.
const WRITE_BACK_PAGES: usize = 64;
const PAGE: u64 = PAGE_SIZE as u64;
/// Largest file: what fits the offsets of a mapping and of read(2).
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// See the module.
pub struct PageCache {
    this: Weak<PageCache>,
    backend: Option<Arc<dyn PageBackend>>,
    /// Of what is nowhere but here; None if nobody counts.
    keeper: Option<Arc<dyn Keeper>>,
    size: AtomicU64,
    pages: SpinLock<Pages>,
    /// Never held with `pages`.
    windows: SpinLock<Windows>,
    /// Woken when pages have been read or written back, or have become a run.
    settled: WaitQueue,
    resizing: Mutex<()>,
    mappers: Mappers,
    /// A run reaches beyond the end, or did.
    has_tail: AtomicBool,
}

/// An address space, as files see it.
pub trait Mapper: Send + Sync {
    /// Takes pages `[first, end)` of the file away from the program, with its private copies or
    /// else only where it shares them. Sleeps.
    fn unmap_file_pages(&self, file: &PageCache, first: u64, end: u64, with_private: bool);
    /// Whether it shares the file by a mapping that is or may become writable.
    fn may_write_file(&self, file: &PageCache) -> bool;
    /// How many areas map the file.
    fn areas_of_file(&self, file: &PageCache) -> u64;
}

/// Caches with a backend, whose clean pages can be dropped when memory is short.
static RECLAIMABLE: SpinLock<Vec<Weak<PageCache>>> = SpinLock::new(Vec::new());

impl PageCache {
    /// An empty file, or one of `size` bytes behind `backend`.
    #[must_use]
    pub fn new(backend: Option<Arc<dyn PageBackend>>, size: u64) -> Arc<PageCache> {
        let reclaimable = backend.is_some();
        let cache = Self::make(backend, None, size);
        if reclaimable {
            let mut all = RECLAIMABLE.lock();
            if all.len() == all.capacity() {
                all.retain(|cache| cache.strong_count() > 0);
            }
            all.push(Arc::downgrade(&cache));
        }
        cache
    }

    /// An empty file in memory, which `keeper` has room for.
    #[must_use]
    pub fn kept_by(keeper: Arc<dyn Keeper>) -> Arc<PageCache> {
        Self::make(None, Some(keeper), 0)
    }

    fn make(
        backend: Option<Arc<dyn PageBackend>>,
        keeper: Option<Arc<dyn Keeper>>,
        size: u64,
    ) -> Arc<PageCache> {
        Arc::new_cyclic(|this| PageCache {
            this: this.clone(),
            backend,
            keeper,
            size: AtomicU64::new(size),
            pages: SpinLock::new(Pages::default()),
            windows: SpinLock::new(Windows::default()),
            settled: WaitQueue::new(),
            resizing: Mutex::new(()),
            mappers: Mappers::default(),
            has_tail: AtomicBool::new(false),
        })
    }

    /// ENOSPC if who keeps the file has no room for so many pages more.
    fn take_room(&self, pages: usize) -> Result<()> {
        match &self.keeper {
            Some(keeper) if !keeper.take_room(pages) => Err(Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    fn give_room(&self, pages: usize) {
        if let Some(keeper) = &self.keeper {
            keeper.give_room(pages);
        }
    }

    /// Size of the file, bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Tells the cache that the file behind it has another size; pages past it are dropped.
    pub fn set_size(&self, size: u64) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(Errno::EFBIG);
        }
        let resizing = self.resizing.lock();
        let old = self.size.swap(size, Ordering::AcqRel);
        if size < old {
            self.zero_part(size, size.next_multiple_of(PAGE));
            let removed = self.take_range(size.div_ceil(PAGE), u64::MAX);
            drop(resizing);
            self.unmap(size.div_ceil(PAGE), u64::MAX);
            drop(removed);
        }
        Ok(())
    }

    /// Forgets clean pages, and those that are being read, because the file behind the cache has
    /// changed.
    pub fn invalidate(&self) {
        let clean: Vec<u64> = {
            let pages = self.pages.lock();
            let is_old = |page: &Page| page.is_clean() || page.state == PageState::Reading;
            let old = pages.single.iter().filter(|(_, page)| is_old(page));
            old.map(|(&index, _)| index).collect()
        };
        for index in clean {
            let removed = self.take_range(index, index + 1);
            self.unmap(index, index + 1);
            drop(removed);
        }
    }

    /// Takes pages `[first, end)` out. The caller unmaps them from programs, without holding
    /// `resizing`: unmapping takes the locks of address spaces. A page that a fault brings in
    /// meanwhile loses its mapping and is mapped again.
    fn take_range(&self, first: u64, end: u64) -> Taken {
        let taken = self.pages.lock().take(first, end);
        self.give_room(taken.count());
        taken
    }

    /// Frees a page that was made for a write that failed, if it lies behind the end. For who keeps
    /// others from writing.
    pub fn forget_behind_end(&self, index: u64) {
        let resizing = self.resizing.lock();
        if self.backend.is_none() && index >= self.size().div_ceil(PAGE) {
            let removed = self.take_range(index, index + 1);
            drop(resizing);
            drop(removed);
        }
    }

    fn unmap(&self, first: u64, end: u64) {
        self.mappers.visit(|mm| mm.unmap_file_pages(self, first, end, true));
    }

    /// Takes the pages from programs that share them: they fault and have them again.
    fn unmap_shared(&self, first: u64, end: u64) {
        self.mappers.visit(|mm| mm.unmap_file_pages(self, first, end, false));
    }

    /// Notes that `mm` maps the file.
    pub fn add_mapper(&self, mm: Arc<dyn Mapper>) {
        self.mappers.add(&mm);
    }

    /// Zeroes bytes `[from, to)` of one page, if it is there. One that is being read may come with
    /// what was there before: it is forgotten, and read again.
    fn zero_part(&self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let index = from / PAGE;
        let (frame, forgotten) = {
            let mut pages = self.pages.lock();
            match pages.look(index) {
                Look::Single(page) => {
                    page.touch(true);
                    (Some(page.frame.clone()), None)
                }
                Look::Huge(frame) => (Some(frame), None),
                // No run is made meanwhile: the caller holds `resizing`.
                Look::Busy => (None, pages.single.remove(&index)),
                Look::Missing => (None, None),
            }
        };
        drop(forgotten);
        if let Some(frame) = frame {
            frame.zero((from % PAGE) as usize, (to - from) as usize);
        }
    }

    /// The page at `index`, if its contents are in memory.
    pub fn resident(&self, index: u64) -> Option<Frame> {
        match self.pages.lock().look(index) {
            Look::Single(page) => Some(page.frame.clone()),
            Look::Huge(frame) => Some(frame),
            Look::Busy | Look::Missing => None,
        }
    }

    /// Whether the page at `index` is in memory, or will be in a moment, and is more than reserved.
    pub fn has_data(&self, index: u64) -> bool {
        self.pages.lock().has_data(index)
    }

    /// Whether the page at `index` is in memory, or will be in a moment.
    pub fn contains(&self, index: u64) -> bool {
        self.pages.lock().contains(index)
    }

    /// The same of a file that is only memory, where a hole is nothing: None.
    fn resident_or_hole(&self, index: u64) -> Option<Frame> {
        loop {
            match self.pages.lock().look(index) {
                Look::Single(page) => return Some(page.frame.clone()),
                Look::Huge(frame) => return Some(frame),
                Look::Missing => return None,
                Look::Busy => {}
            }
            self.wait_read(index);
        }
    }

    /// The pages from `index` on that are in memory and not past the end, each in its place.
    pub fn resident_run(&self, index: u64, run: &mut [Option<Frame>]) {
        let end = self.size().div_ceil(PAGE).min(index + run.len() as u64);
        if index < end {
            self.pages.lock().copy_run(index, &mut run[..(end - index) as usize]);
        }
    }

    /// How many pages of `places` are in memory, and of those how many are to be written back, and
    /// are being written back.
    pub fn count(&self, places: RangeInclusive<u64>) -> (u64, u64, u64) {
        let pages = self.pages.lock();
        let all = pages.count_in(*places.start()..places.end().saturating_add(1));
        let (mut dirty, mut writeback) = (0, 0);
        for (_, page) in pages.single.range(places) {
            let is_dirty = matches!(page.state, PageState::Dirty | PageState::WritebackDirty);
            dirty += u64::from(is_dirty && self.backend.is_some());
            writeback += u64::from(page.is_in_writeback());
        }
        (all, dirty, writeback)
    }

    /// Whether the file is nowhere but here.
    pub fn is_only_memory(&self) -> bool {
        self.backend.is_none()
    }

    /// Number of pages in memory.
    pub fn resident_pages(&self) -> usize {
        self.pages.lock().count()
    }

    /// Blocks of 512 bytes that the contents take: what is there, or with a backend all of it.
    pub fn blocks(&self) -> u64 {
        match self.backend {
            Some(_) => self.size().div_ceil(512),
            None => self.resident_pages() as u64 * (PAGE / 512),
        }
    }

    /// The page at `index`, read or made if needed. `for_write` marks it dirty. ENXIO past the end.
    pub fn page(&self, index: u64, for_write: bool) -> Result<Frame> {
        if self.is_behind_end(index) {
            return Err(Errno::ENXIO);
        }
        self.get_or_fill(index, for_write, true)
    }

    /// Makes this frame the page at `index` of a file that is only memory, unless there is one: two
    /// files may share a page so. What is there afterwards.
    pub fn share_page(&self, index: u64, frame: Frame) -> Result<Frame> {
        assert!(self.is_only_memory(), "a page of a file that has a backend");
        Ok(self.get_or_insert(index, frame, PageState::Dirty)?.0)
    }

    /// The page for a writable shared mapping: counts as dirty from now on.
    pub fn page_for_mapping(&self, index: u64) -> Result<Frame> {
        if let Some(frame) = self.try_page_for_mapping(index) {
            return Ok(frame);
        }
        let frame = self.page(index, true)?;
        if let Some(page) = self.pages.lock().single.get_mut(&index) {
            page.mapped_writable = true;
        }
        Ok(frame)
    }

    /// The same without a wait: None if it is not in memory, and has to be read, or there is too
    /// little room for it.
    pub fn try_page_for_mapping(&self, index: u64) -> Option<Frame> {
        if self.is_behind_end(index) {
            return None;
        }
        match self.pages.lock().look(index) {
            Look::Single(page) => {
                page.touch(true);
                page.mapped_writable = true;
                return Some(page.frame.clone());
            }
            Look::Huge(frame) => return Some(frame),
            Look::Busy => return None,
            Look::Missing => {}
        }
        if !self.is_only_memory() || is_low() {
            return None;
        }
        let frame = Frame::alloc_zeroed().ok()?;
        self.take_room(1).ok()?;
        let page = Page { frame, state: PageState::Dirty, mapped_writable: true };
        let entered = {
            let mut pages = self.pages.lock();
            // Who makes a file shorter says so before it takes pages out.
            let is_inside = !self.is_behind_end(index);
            is_inside.then(|| pages.enter(index, page)).flatten()
        };
        if !entered.as_ref().is_some_and(|(_, is_new, _)| *is_new) {
            self.give_room(1);
        }
        entered.map(|(frame, ..)| frame)
    }

    fn is_behind_end(&self, index: u64) -> bool {
        index >= self.size().div_ceil(PAGE)
    }

    /// The page, read or made if it is not there. EIO if it is gone each time, or does not come.
    fn get_or_fill(&self, index: u64, for_write: bool, read: bool) -> Result<Frame> {
        let reader = self.backend.as_deref().filter(|_| read);
        for _ in 0..=READS_MAX {
            let is_missing = match self.pages.lock().look(index) {
                Look::Single(page) => {
                    page.touch(for_write);
                    return Ok(page.frame.clone());
                }
                Look::Huge(frame) => return Ok(frame),
                Look::Missing => true,
                Look::Busy => false,
            };
            match reader {
                _ if !is_missing => self.wait_read(index),
                Some(backend) => self.read_missing(backend, index)?,
                None => break,
            }
        }
        match &self.backend {
            Some(_) if read => Err(Errno::EIO),
            Some(_) => {
                let frame = crate::base::reserve::alloc_zeroed()?;
                Ok(self.get_or_insert(index, frame, used(for_write))?.0)
            }
            None => self.make_page(index, used(for_write)),
        }
    }

    /// The page of a file that is only memory, made if there is none.
    fn make_page(&self, index: u64, state: PageState) -> Result<Frame> {
        // The cache is the file: it stays when the program that writes to it is gone.
        crate::base::reserve::check_room_for_files()?;
        let frame = crate::base::reserve::alloc_zeroed()?;
        if self.take_room(1).is_err() {
            huge::trim_tails();
            self.take_room(1)?;
        }
        let result = self.get_or_insert(index, frame, state);
        if !result.as_ref().is_ok_and(|(_, is_new)| *is_new) {
            self.give_room(1);
        }
        Ok(result?.0)
    }

    /// The page that is there, or else this one, and whether it is. One that is being read is
    /// replaced: its reader finds that out.
    fn get_or_insert(&self, index: u64, frame: Frame, state: PageState) -> Result<(Frame, bool)> {
        loop {
            let page = Page { frame: frame.clone(), state, mapped_writable: false };
            // Also past the end: who writes there makes the file longer afterwards.
            let entered = self.pages.lock().enter(index, page);
            if let Some((frame, is_new, replaced)) = entered {
                drop(replaced);
                return Ok((frame, is_new));
            }
            self.wait_read(index);
        }
    }

    /// Reads at `offset` as far as the file and `sink` go. 0 at the end of the file.
    pub fn read(&self, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let mut at = offset;
        let end = self.size().min(offset.saturating_add(sink.left() as u64));
        while at < end {
            let index = at / PAGE;
            let start = (at % PAGE) as usize;
            let len = (PAGE_SIZE - start).min((end - at) as usize);
            let frame = match self.resident(index) {
                Some(frame) => Some(frame),
                None if self.backend.is_none() => self.resident_or_hole(index),
                None if !sink.may_wait() && at == offset => return Err(Errno::EAGAIN),
                None if !sink.may_wait() => break,
                None => match self.get_or_fill(index, false, true) {
                    Ok(frame) => Some(frame),
                    Err(error) if at == offset => return Err(error),
                    Err(_) => break,
                },
            };
            let copied = match frame {
                Some(frame) => sink.put_frame(&frame, start, len),
                None => sink.put_zeros(len),
            };
            match copied {
                Ok(copied) => {
                    at += copied as u64;
                    if copied < len {
                        break;
                    }
                }
                Err(error) if at == offset => return Err(error),
                Err(_) => break,
            }
            crate::base::sched::yield_if_needed();
        }
        Ok(at.saturating_sub(offset) as usize)
    }

    /// Writes at `offset`, extending the file as needed. EFBIG past [`MAX_FILE_SIZE`].
    pub fn write(&self, offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let wanted = source.left() as u64;
        if offset.checked_add(wanted).is_none_or(|end| end > MAX_FILE_SIZE) {
            return Err(Errno::EFBIG);
        }
        let (mut at, end) = (offset, offset + wanted);
        while at < end {
            let start = (at % PAGE) as usize;
            let len = (PAGE_SIZE - start).min((end - at) as usize);
            match self.write_in_page(at, start, len, source) {
                Ok(copied) => {
                    at += copied as u64;
                    // What stopped it is tried again: it may lie in what was written meanwhile.
                    if copied == 0 {
                        break;
                    }
                }
                Err(error) if at == offset => return Err(error),
                Err(_) => break,
            }
            crate::base::sched::yield_if_needed();
        }
        Ok((at - offset) as usize)
    }

    fn write_in_page(
        &self,
        at: u64,
        start: usize,
        len: usize,
        source: &mut Source<'_>,
    ) -> Result<usize> {
        // A page past the end holds nothing to keep, a page that is fully replaced neither; but the
        // source may fault half way, so only the former can skip reading.
        let must_read = at / PAGE < self.size().div_ceil(PAGE);
        if !self.contains(at / PAGE) {
            source.probe()?;
            self.make_run(at / PAGE, false);
        }
        let frame = self.get_or_fill(at / PAGE, true, must_read)?;
        let copied = source.take_frame(&frame, start, len)?;
        // Before the page is let go: what lies behind the end and nobody has may be freed.
        self.size.fetch_max(at + copied as u64, Ordering::AcqRel);
        Ok(copied)
    }

    /// Makes bytes `[offset, offset + len)` zero, freeing whole pages (FALLOC_FL_PUNCH_HOLE).
    pub fn punch(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let (first, last) = (offset.div_ceil(PAGE), end / PAGE);
        let resizing = self.resizing.lock();
        if first > last {
            self.zero_part(offset, end);
            return;
        }
        self.zero_part(offset, first * PAGE);
        self.zero_part(last * PAGE, end);
        if first < last {
            let removed = self.take_range(first, last);
            drop(resizing);
            self.unmap(first, last);
            drop(removed);
        }
    }

    /// Whether a program shares the file by a mapping that is or may become writable.
    pub fn is_mapped_writable(&self) -> bool {
        self.mappers.living().iter().any(|mm| mm.may_write_file(self))
    }

    /// How many areas of all programs map the file.
    pub fn count_areas(&self) -> u64 {
        self.mappers.living().iter().map(|mm| mm.areas_of_file(self)).sum()
    }

    /// Reserves memory for `[offset, offset + len)`, so that writing there cannot run out of it.
    pub fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        let end =
            offset.checked_add(len).filter(|&end| end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
        let places = offset / PAGE..end.div_ceil(PAGE);
        if let Some(keeper) = &self.keeper {
            // All or nothing: first the look that is short.
            let wanted = places.end - places.start;
            let there = self.pages.lock().count_in(places.clone());
            if wanted - there > keeper.room() {
                huge::trim_tails();
            }
            if wanted - there > keeper.room() {
                return Err(Errno::ENOSPC);
            }
        }
        for index in places {
            self.make_run(index, false);
            if self.is_only_memory() && !self.contains(index) {
                self.make_page(index, PageState::Blank)?;
            } else {
                // What was reserved before is used by that, as on Linux.
                self.get_or_fill(index, true, index < self.size().div_ceil(PAGE))?;
            }
        }
        Ok(())
    }

    /// The first byte at or after `offset` that lies in a page (SEEK_DATA); ENXIO if none.
    pub fn next_data(&self, offset: u64) -> Result<u64> {
        let size = self.size();
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        if self.backend.is_some() {
            return Ok(offset);
        }
        let pages = self.pages.lock();
        let is_inside = |index: &u64| *index < size.div_ceil(PAGE);
        let index = pages.next_page(offset / PAGE).filter(is_inside).ok_or(Errno::ENXIO)?;
        Ok(offset.max(index * PAGE))
    }

    /// The first byte at or after `offset` in a hole, the end of the file counting as one
    /// (SEEK_HOLE).
    pub fn next_hole(&self, offset: u64) -> Result<u64> {
        let size = self.size();
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        if self.backend.is_some() {
            return Ok(size);
        }
        let index = self.pages.lock().next_missing(offset / PAGE);
        Ok(offset.max(index * PAGE).min(size))
    }

    /// Writes every dirty page to the backend. The first error is returned after all were tried.
    pub fn write_back(&self) -> Result<()> {
        let Some(backend) = &self.backend else { return Ok(()) };
        // Two writes of one page could arrive in either order: one write-back at a time.
        let dirty: Vec<(u64, Frame)> = self.settled.wait_uninterruptible(|| {
            let mut pages = self.pages.lock();
            if pages.single.values().any(Page::is_in_writeback) {
                return None;
            }
            let dirty = pages.single.iter_mut().filter(|(_, page)| page.state == PageState::Dirty);
            let send = |(&index, page): (&u64, &mut Page)| {
                page.state = PageState::Writeback;
                (index, page.frame.clone())
            };
            Some(dirty.map(send).collect())
        });
        let mut result = Ok(());
        let mut rest = dirty.as_slice();
        while let Some(&(first, _)) = rest.first() {
            let count = (1..rest.len().min(WRITE_BACK_PAGES))
                .find(|&i| rest[i].0 != first + i as u64)
                .unwrap_or(rest.len().min(WRITE_BACK_PAGES));
            let (run, later) = rest.split_at(count);
            rest = later;
            let frames: Vec<Frame> = run.iter().map(|(_, frame)| frame.clone()).collect();
            let left = self.size().saturating_sub(first * PAGE);
            let len = left.min(count as u64 * PAGE) as usize;
            let frames = &frames[..len.div_ceil(PAGE_SIZE)];
            let written = if len > 0 { backend.write_pages(first, frames, len) } else { Ok(()) };
            self.settle_written(run, written.is_ok());
            result = result.and(written);
        }
        result
    }

    /// Pages have been written back, or not.
    fn settle_written(&self, run: &[(u64, Frame)], written: bool) {
        {
            let mut pages = self.pages.lock();
            for (index, _) in run {
                if let Some(page) = pages.single.get_mut(index).filter(|p| p.is_in_writeback()) {
                    let is_dirty =
                        !written || page.mapped_writable || page.state == PageState::WritebackDirty;
                    page.state = if is_dirty { PageState::Dirty } else { PageState::UpToDate };
                }
            }
        }
        self.settled.wake_all(0);
    }

    /// Drops clean pages that nobody else refers to; returns how many.
    fn reclaim(&self) -> usize {
        self.settle_windows();
        let Some(mut pages) = self.pages.try_lock() else { return 0 };
        let before = pages.single.len();
        pages.single.retain(|_, page| !page.is_clean() || page.frame.refs() > 1);
        before - pages.single.len()
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        self.give_room(self.resident_pages());
    }
}

fn reclaimable() -> Vec<Arc<PageCache>> {
    RECLAIMABLE.lock().iter().filter_map(Weak::upgrade).collect()
}

/// A page that is made to be used.
fn used(for_write: bool) -> PageState {
    if for_write { PageState::Dirty } else { PageState::UpToDate }
}

/// Pages of files that lie behind a backend, for /proc/meminfo.
pub fn cached_pages() -> usize {
    reclaimable().iter().map(|cache| cache.resident_pages()).sum()
}

/// Part of memory that pages of files leave free: the kernel's own objects have to come from it.
const RESERVE: usize = 16;

/// Drops clean pages when memory gets short, before the kernel's own allocations would fail.
fn keep_reserve() {
    let (all, free) = machine::frame::usage();
    if free < all / RESERVE {
        reclaim_all();
    }
}

/// Frees memory that can be read again from a backend; returns how many frames.
pub fn reclaim_all() -> usize {
    let tails = huge::trim_tails();
    tails + reclaimable().iter().map(|cache| cache.reclaim()).sum::<usize>()
}
