//! Pages from a backend: those that somebody waits for, and windows of pages behind them that are
//! on their way before anybody does.
//!
//! A reader is taken to go on if it misses the very page at which the last read from the backend
//! ended. Then the pages behind are asked for, too, with one window more on its way each time that
//! it comes to one: whoever reads a file's beginning gets no more than that, whoever reads all of
//! it seldom waits. Nobody looks at an answer until a reader needs one of its pages, or memory
//! gets short: the pages are being read until then.
//!
//! Invariant: a page that is being read is somebody's who will settle it: of a thread in
//! [`PageCache::read_missing`], or of a window, whose pages any thread settles that would wait for
//! one of them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::Result;
use machine::frame::{Frame, PAGE_SIZE};

use super::pages::{Look, Page, PageState};
use super::{PAGE, PageBackend, PageCache, keep_reserve, reclaimable};

/// Pages read at once from a backend: 256 KiB.
const WINDOW_PAGES: u64 = 64;
/// Most windows of one file on their way.
const WINDOWS_MAX: usize = 3;
/// Most of all files, of which some may be left by their readers: 16 MiB.
const ALL_WINDOWS_MAX: usize = 64;

/// Windows of all files.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);

/// Pages that a backend was asked for, and that nobody waits for yet.
pub trait Coming: Send {
    /// Whether [`Self::finish`] will not wait.
    fn is_here(&self) -> bool;
    /// Sleeps until the pages are as [`PageBackend::read_pages`] leaves them; what that tells.
    /// Once.
    fn finish(&self) -> Result<usize>;
}

struct Window {
    first: u64,
    frames: Vec<Frame>,
    coming: Box<dyn Coming>,
}

impl Window {
    fn new(first: u64, frames: Vec<Frame>, coming: Box<dyn Coming>) -> Window {
        WINDOWS.fetch_add(1, Ordering::Relaxed);
        Window { first, frames, coming }
    }

    fn end(&self) -> u64 {
        self.first + self.frames.len() as u64
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        WINDOWS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The windows of a file, the oldest first.
#[derive(Default)]
pub(super) struct Windows {
    all: VecDeque<Window>,
    /// Where the last read from the backend ended, or will.
    end: Option<u64>,
    /// How many are wanted.
    depth: usize,
}

impl Windows {
    /// A thread reads pages `[first, end)`, which were missing.
    fn note_read(&mut self, first: u64, end: u64) {
        self.depth = usize::from(self.end == Some(first));
        self.end = Some(end);
    }

    /// The window that a reader has come to.
    fn take(&mut self, index: u64) -> Option<Window> {
        let is_it = |window: &Window| (window.first..window.end()).contains(&index);
        let at = self.all.iter().position(is_it)?;
        self.depth = (self.depth + 1).min(WINDOWS_MAX);
        self.all.remove(at)
    }

    /// Those whose answers are here.
    fn take_here(&mut self) -> VecDeque<Window> {
        let is_here = |window: &Window| window.coming.is_here();
        let (here, rest) = self.all.drain(..).partition(is_here);
        self.all = rest;
        here
    }
}

/// The pages have nothing behind the first so many bytes: what their last users left there is
/// nobody's to see.
fn zero_behind(frames: &[Frame], filled: usize) {
    for (frame, at) in frames.iter().zip((0..).step_by(PAGE_SIZE)).skip(filled / PAGE_SIZE) {
        let kept = filled.saturating_sub(at);
        frame.zero(kept, PAGE_SIZE - kept);
    }
}

/// Whether there may be one window more. If there are too many, those that readers have left are
/// settled first.
fn is_room_for_windows() -> bool {
    let is_room = || WINDOWS.load(Ordering::Relaxed) < ALL_WINDOWS_MAX;
    if !is_room() {
        reclaimable().iter().for_each(|cache| cache.settle_windows());
    }
    is_room()
}

impl PageCache {
    /// Waits until the page is not being read: it is there, or gone. The backend's answer, or its
    /// end, ends the wait.
    pub(super) fn wait_read(&self, index: u64) {
        loop {
            let window = self.settled.wait_uninterruptible(|| {
                let window = self.windows.lock().take(index);
                let is_busy = || matches!(self.pages.lock().look(index), Look::Busy);
                (window.is_some() || !is_busy()).then_some(window)
            });
            let Some(window) = window else { return };
            self.ask_ahead();
            self.finish(&window);
        }
    }

    /// Reads the missing pages from `index` on, up to the next one that is there or on its way;
    /// nothing if that is `index` itself.
    pub(super) fn read_missing(&self, backend: &dyn PageBackend, index: u64) -> Result<()> {
        let frames = self.enter_reading(index, index + 1)?;
        if frames.is_empty() {
            return Ok(());
        }
        let (goes_on, left) = {
            let mut windows = self.windows.lock();
            windows.note_read(index, index + frames.len() as u64);
            (windows.depth > 0, windows.take_here())
        };
        // Where the reader has been, or will not come.
        left.iter().for_each(|window| self.finish(window));
        // Behind a request that is under way the others can be, too.
        let coming = if goes_on { backend.begin_pages(index, &frames) } else { None };
        let result = match coming {
            Some(coming) => {
                self.ask_ahead();
                coming.finish()
            }
            None => backend.read_pages(index, &frames),
        };
        self.settle(index, &frames, result.ok());
        result.map(|_| ())
    }

    /// Puts new pages, which are being read from here on and whose contents are undefined, in the
    /// missing places of the window that begins at `first`, up to the first that is not missing.
    /// They do not reach behind the end of the file or, if that is more, `least`. ENOMEM if there
    /// is not one.
    fn enter_reading(&self, first: u64, least: u64) -> Result<Vec<Frame>> {
        keep_reserve();
        let wanted = self.size().div_ceil(PAGE).min(first + WINDOW_PAGES).max(least);
        let mut frames = Vec::new();
        for _ in first..wanted {
            match crate::base::reserve::alloc_undefined() {
                Ok(frame) => frames.push(frame),
                Err(error) if frames.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        let mut pages = self.pages.lock();
        let end = first + frames.len() as u64;
        let end = pages.single.range(first..end).next().map_or(end, |(&next, _)| next);
        frames.truncate((end - first) as usize);
        for (at, frame) in (first..).zip(&frames) {
            let frame = frame.clone();
            let page = Page { frame, state: PageState::Reading, mapped_writable: false };
            pages.single.insert(at, page);
        }
        Ok(frames)
    }

    /// Asks for windows behind the last read, as many as are wanted and can be had without a wait.
    fn ask_ahead(&self) {
        let Some(backend) = &self.backend else { return };
        for _ in 0..WINDOWS_MAX {
            let first = {
                let windows = self.windows.lock();
                windows.end.filter(|_| windows.all.len() < windows.depth)
            };
            let Some(first) = first else { return };
            if !is_room_for_windows() {
                return;
            }
            let Ok(frames) = self.enter_reading(first, 0) else { return };
            if frames.is_empty() {
                return;
            }
            let Some(coming) = backend.begin_pages(first, &frames) else {
                self.settle(first, &frames, None);
                return;
            };
            {
                let mut windows = self.windows.lock();
                windows.end = Some(first + frames.len() as u64);
                windows.all.push_back(Window::new(first, frames, coming));
            }
            // Who waits for one of its pages has found no window.
            self.settled.wake_all(0);
        }
    }

    /// Sleeps until the window's pages have come.
    fn finish(&self, window: &Window) {
        let result = window.coming.finish();
        self.settle(window.first, &window.frames, result.ok());
    }

    /// Pages have been read, so many bytes of them, or not. What has been taken out, or replaced,
    /// meanwhile is not this read's any more.
    fn settle(&self, first: u64, frames: &[Frame], read: Option<usize>) {
        let mut failed = Vec::new();
        if let Some(filled) = read {
            zero_behind(frames, filled);
        }
        {
            let mut pages = self.pages.lock();
            let places = first..first + frames.len() as u64;
            let is_own = |at: u64, page: &Page| {
                let frame = &frames[(at - first) as usize];
                page.state == PageState::Reading && page.frame.phys() == frame.phys()
            };
            if read.is_some() {
                let all = pages.single.range_mut(places);
                let own = all.filter(|(at, page)| is_own(**at, page));
                own.for_each(|(_, page)| page.state = PageState::UpToDate);
            } else {
                let own = pages.single.extract_if(places, |at, page| is_own(*at, page));
                failed.extend(own.map(|(_, page)| page));
            }
        }
        drop(failed);
        self.settled.wake_all(0);
    }

    /// Settles the windows whose answers are here, if nobody is at them: memory is short, and only
    /// what is up to date can be dropped. Does not sleep.
    pub(super) fn settle_windows(&self) {
        let here = self.windows.try_lock().map(|mut windows| windows.take_here());
        here.iter().flatten().for_each(|window| self.finish(window));
    }
}
