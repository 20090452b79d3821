//! A queue of bytes in page frames: what pipes and stream sockets hold.
//!
//! Pages come when they are filled and go when they are drained, so an idle connection costs one
//! page at most. The owner keeps the limit: a ring only counts. Copies go straight between the
//! frames and the program, so the owner's lock must be one that sleeps.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::frame::{Frame, PAGE_SIZE};

use crate::base::io::{Sink, Source};

/// Drained pages that are kept for the next write.
const SPARE_PAGES: usize = 4;

/// Bytes in page frames that belong to no queue: on their way in or out.
#[derive(Default)]
pub struct Bulk {
    pages: Vec<Frame>,
    /// Where the first byte is, in the first page.
    start: usize,
    len: usize,
}

impl Bulk {
    /// Fills whole frames with up to `max` bytes of `source`. An error only if not one byte went.
    pub fn fill(source: &mut Source<'_>, max: usize) -> Result<Bulk> {
        let mut bulk = Bulk::default();
        while bulk.len < max && source.left() > 0 {
            match bulk.fill_page(source, max - bulk.len) {
                Ok(len) if len == PAGE_SIZE => {}
                Ok(_) => break,
                Err(error) if bulk.len == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(bulk)
    }

    fn fill_page(&mut self, source: &mut Source<'_>, max: usize) -> Result<usize> {
        self.pages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let page = Frame::alloc_zeroed().map_err(|_| Errno::ENOMEM)?;
        let len = source.take_frame(&page, 0, max.min(PAGE_SIZE))?;
        self.pages.push(page);
        self.len += len;
        Ok(len)
    }

    /// Copies the bytes out. Returns how many went; an error only if not one did.
    pub fn copy_to(&self, sink: &mut Sink<'_>) -> Result<usize> {
        let mut done = 0;
        for page in &self.pages {
            let offset = (self.start + done) % PAGE_SIZE;
            let step = (self.len - done).min(PAGE_SIZE - offset);
            match sink.put_frame(page, offset, step) {
                Ok(len) if len == step => done += len,
                Ok(len) => return Ok(done + len),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the first `len` bytes.
    pub fn skip(&mut self, len: usize) {
        let end = self.start + len.min(self.len);
        self.pages.drain(..end / PAGE_SIZE);
        self.start = end % PAGE_SIZE;
        self.len -= len.min(self.len);
    }
}

/// A queue of bytes.
#[derive(Default)]
pub struct PageRing {
    /// Pages with data, the oldest first, then spare ones.
    pages: VecDeque<Frame>,
    /// Where the first byte is, in the first page.
    start: usize,
    len: usize,
}

impl PageRing {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        PageRing { pages: VecDeque::new(), start: 0, len: 0 }
    }

    /// Bytes in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends up to `max` bytes of `source`. An error only if not one byte went.
    #[inline(always)]
    pub fn append(&mut self, source: &mut Source<'_>, max: usize) -> Result<usize> {
        let end = self.start + self.len;
        let offset = end % PAGE_SIZE;
        let room = max.min(PAGE_SIZE - offset);
        let Some(page) = self.pages.get(end / PAGE_SIZE) else {
            return self.append_pages(source, max, 0);
        };
        let len = source.take_frame(page, offset, room)?;
        self.len += len;
        // Mostly that was all.
        if len < room { Ok(len) } else { self.append_pages(source, max, len) }
    }

    /// Goes on after `done` bytes.
    #[inline(never)]
    fn append_pages(
        &mut self,
        source: &mut Source<'_>,
        max: usize,
        mut done: usize,
    ) -> Result<usize> {
        while done < max && source.left() > 0 {
            match self.append_piece(source, max - done) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn append_piece(&mut self, source: &mut Source<'_>, max: usize) -> Result<usize> {
        let end = self.start + self.len;
        let page = end / PAGE_SIZE;
        if page == self.pages.len() {
            self.pages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            self.pages.push_back(Frame::alloc_zeroed().map_err(|_| Errno::ENOMEM)?);
        }
        let offset = end % PAGE_SIZE;
        let room = max.min(PAGE_SIZE - offset);
        let len = source.take_frame(&self.pages[page], offset, room)?;
        self.len += len;
        Ok(len)
    }

    /// Copies bytes from position `from` on, without removing them. An error only if not one went.
    pub fn peek(&self, from: usize, max: usize, sink: &mut Sink<'_>) -> Result<usize> {
        let max = max.min(self.len.saturating_sub(from));
        let mut done = 0;
        while done < max && sink.left() > 0 {
            let at = self.start + from + done;
            let offset = at % PAGE_SIZE;
            let step = (max - done).min(PAGE_SIZE - offset);
            match sink.put_frame(&self.pages[at / PAGE_SIZE], offset, step) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Removes the first `len` bytes, or as many as there are.
    #[inline]
    pub fn discard(&mut self, len: usize) {
        let len = len.min(self.len);
        self.start += len;
        self.len -= len;
        if self.len == 0 {
            self.start = 0;
            if self.pages.len() > SPARE_PAGES {
                self.pages.truncate(SPARE_PAGES);
            }
        } else if self.start >= PAGE_SIZE {
            self.drop_pages();
        }
    }

    /// Bytes up to which the newest page has room; 0 if the next byte begins a page.
    #[must_use]
    pub fn tail_room(&self) -> usize {
        (self.start + self.len).wrapping_neg() % PAGE_SIZE
    }

    /// Appends what was filled elsewhere; the next byte must begin a page. ENOMEM: nothing went.
    pub fn append_bulk(&mut self, bulk: Bulk) -> Result<()> {
        debug_assert!(self.tail_room() == 0 && bulk.start == 0, "a bulk begins a page");
        let spare = (self.start + self.len) / PAGE_SIZE;
        self.pages.try_reserve(bulk.pages.len()).map_err(|_| Errno::ENOMEM)?;
        self.pages.truncate(spare);
        self.pages.extend(bulk.pages);
        self.len += bulk.len;
        Ok(())
    }

    /// Takes whole pages out at the front, up to `max` bytes.
    pub fn detach(&mut self, max: usize) -> Bulk {
        let end = (self.start + max.min(self.len)) / PAGE_SIZE;
        let mut pages = Vec::new();
        if end == 0 || pages.try_reserve(end).is_err() {
            return Bulk::default();
        }
        pages.extend(self.pages.drain(..end));
        let bulk = Bulk { len: end * PAGE_SIZE - self.start, start: self.start, pages };
        self.len -= bulk.len;
        self.start = 0;
        bulk
    }

    /// Puts what is left of a detached bulk back to the front.
    pub fn attach(&mut self, bulk: Bulk) {
        for page in bulk.pages.into_iter().rev() {
            self.pages.push_front(page);
        }
        self.start = bulk.start;
        self.len += bulk.len;
    }

    fn drop_pages(&mut self) {
        while self.start >= PAGE_SIZE {
            self.start -= PAGE_SIZE;
            if let Some(page) = self.pages.pop_front() {
                let used = (self.start + self.len).div_ceil(PAGE_SIZE);
                if self.pages.len() < used + SPARE_PAGES {
                    self.pages.push_back(page);
                }
            }
        }
    }

    /// Removes the newest bytes so that `len` are left.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Copies up to `max` bytes out and removes them. An error only if not one went.
    #[inline(always)]
    pub fn take(&mut self, max: usize, sink: &mut Sink<'_>) -> Result<usize> {
        let Some(page) = self.pages.front() else { return Ok(0) };
        let first = max.min(self.len).min(PAGE_SIZE - self.start);
        let len = sink.put_frame(page, self.start, first)?;
        self.discard(len);
        // Mostly that was all, of the data or of the sink.
        if len < first || self.len == 0 { Ok(len) } else { Ok(self.take_pages(max, len, sink)) }
    }

    /// Goes on after `done` bytes.
    #[inline(never)]
    fn take_pages(&mut self, max: usize, done: usize, sink: &mut Sink<'_>) -> usize {
        let len = self.peek(0, max - done, sink).unwrap_or(0);
        self.discard(len);
        done + len
    }
}
