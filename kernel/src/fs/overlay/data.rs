//! Contents of files: the lower file's until the first write, then a page cache of their own that
//! takes from the lower one what was not written yet.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};
use machine::frame::{Frame, PAGE_SIZE};

use super::Node;
use crate::base::io::{Sink, Source};
use crate::page_cache::{MAX_FILE_SIZE, PageBackend, PageCache};
use crate::vfs::{File, FileOps, FileType, Inode};

const PAGE: u64 = PAGE_SIZE as u64;
/// Zeros written at once where lower data is punched out.
const ZEROS: usize = 16 * PAGE_SIZE;

/// Contents that differ from the lower file's.
pub(super) struct Data {
    pub(super) cache: Arc<PageCache>,
    below: Option<Arc<Below>>,
}

/// The part of the lower file that still shows through.
struct Below {
    cache: Arc<PageCache>,
    /// Bytes from here on were cut off at some time, and are zero.
    limit: AtomicU64,
}

impl Data {
    /// No contents.
    pub(super) fn empty() -> Arc<Data> {
        Arc::new(Data { cache: PageCache::new(None, 0), below: None })
    }

    /// The contents of a lower file.
    fn over(cache: Arc<PageCache>, size: u64) -> Arc<Data> {
        let below = Arc::new(Below { cache, limit: AtomicU64::new(size) });
        let cache = PageCache::new(Some(below.clone()), size);
        Arc::new(Data { cache, below: Some(below) })
    }

    /// Bytes of the lower file that show through at most.
    fn limit(&self) -> u64 {
        self.below.as_ref().map_or(0, |below| below.limit.load(Ordering::Acquire))
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.cache.set_size(size)?;
        if let Some(below) = &self.below {
            below.limit.fetch_min(size, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Makes a range zero. What shows through from below has to be written over.
    fn zero(&self, offset: u64, end: u64) -> Result<()> {
        let zeros = [0u8; 256];
        let covered = self.limit().min(end).max(offset);
        let mut at = offset;
        while at < covered {
            let len = (covered - at).min(zeros.len() as u64) as usize;
            at += self.cache.write(at, &mut Source::kernel(&zeros[..len]))? as u64;
            if at.is_multiple_of(ZEROS as u64) {
                crate::base::sched::yield_if_needed();
            }
        }
        if covered < end {
            self.cache.punch(covered, end - covered);
        }
        Ok(())
    }
}

impl PageBackend for Below {
    fn read_pages(&self, first: u64, frames: &[Frame]) -> Result<usize> {
        let limit = self.limit.load(Ordering::Acquire);
        let mut filled = 0;
        for (index, frame) in (first..).zip(frames) {
            let len = limit.saturating_sub(index * PAGE).min(PAGE) as usize;
            if len == 0 {
                break;
            }
            match self.cache.page(index, false) {
                Ok(page) => frame.copy_from(&page, len),
                // The lower file became shorter meanwhile.
                Err(Errno::ENXIO) => break,
                Err(error) => return Err(error),
            }
            filled += len;
        }
        Ok(filled)
    }

    /// Written pages stay: nothing below is ever changed.
    fn write_pages(&self, _first: u64, _frames: &[Frame], _len: usize) -> Result<()> {
        Err(Errno::EROFS)
    }
}

impl Node {
    /// Its own contents, in which writes are allowed; takes the lower file's over the first time.
    pub(super) fn own_data(&self) -> Result<Arc<Data>> {
        if let Some(data) = &*self.data.lock() {
            return Ok(data.clone());
        }
        let _writing = self.writing.lock();
        self.own_data_locked(|lower| {
            // The server may refuse to read: better now than at the first page.
            lower.clone().open(raw::O_RDONLY)?;
            let size = lower.metadata()?.size;
            Ok(Data::over(lower.page_cache().ok_or(Errno::EIO)?, size))
        })
    }

    /// As above, with `writing` held, and `make` for what the contents begin as.
    fn own_data_locked(
        &self,
        make: impl FnOnce(&Arc<dyn Inode>) -> Result<Arc<Data>>,
    ) -> Result<Arc<Data>> {
        if let Some(data) = &*self.data.lock() {
            return Ok(data.clone());
        }
        if self.file_type() != FileType::Regular {
            return Err(Errno::EINVAL);
        }
        let data = make(self.lower.as_ref().ok_or(Errno::EIO)?)?;
        self.change(|_| ())?;
        *self.data.lock() = Some(data.clone());
        Ok(data)
    }

    /// Changes the size. To nothing: no data of the lower file is ever looked at.
    pub(super) fn truncate(&self, size: u64) -> Result<()> {
        if self.file_type() == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        if size > MAX_FILE_SIZE {
            return Err(Errno::EFBIG);
        }
        if size > 0 {
            let data = self.own_data()?;
            let _writing = self.writing.lock();
            return data.set_size(size);
        }
        let _writing = self.writing.lock();
        self.own_data_locked(|_| Ok(Data::empty()))?.set_size(0)
    }

    /// fallocate(2).
    pub(super) fn allocate_data(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        if self.file_type() != FileType::Regular {
            return Err(Errno::ENODEV);
        }
        let end = offset.checked_add(len).filter(|&end| end <= MAX_FILE_SIZE);
        let end = end.ok_or(Errno::EFBIG)?;
        let keep_size = mode & raw::FALLOC_FL_KEEP_SIZE != 0;
        let data = self.own_data()?;
        let _writing = self.writing.lock();
        match mode & !raw::FALLOC_FL_KEEP_SIZE {
            0 => {
                let (all, _) = machine::frame::usage();
                if len / PAGE > all as u64 {
                    return Err(Errno::ENOSPC);
                }
                self.fs.check_room()?;
                data.cache.reserve(offset, len.min(data.cache.size().saturating_sub(offset)))?;
            }
            raw::FALLOC_FL_PUNCH_HOLE if keep_size => {
                return data.zero(offset, end.min(data.cache.size()).max(offset));
            }
            raw::FALLOC_FL_ZERO_RANGE => {
                data.zero(offset, end.min(data.cache.size()).max(offset))?;
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        if !keep_size && end > data.cache.size() {
            data.cache.set_size(end)?;
        }
        Ok(())
    }
}

/// An open file or directory.
pub(super) struct OverlayFile {
    node: Arc<Node>,
}

impl OverlayFile {
    /// Opens a regular file; for writing it gets contents of its own.
    pub(super) fn open(node: Arc<Node>, flags: u32) -> Result<Arc<OverlayFile>> {
        if flags & raw::O_ACCMODE != raw::O_RDONLY {
            if flags & raw::O_TRUNC != 0 {
                // The caller truncates next: what is there need not be looked at.
                node.truncate(0)?;
            }
            node.own_data()?;
        } else if node.data.lock().is_none()
            && let Some(lower) = &node.lower
        {
            lower.clone().open(raw::O_RDONLY)?;
        }
        Ok(Arc::new(OverlayFile { node }))
    }

    /// Opens a directory.
    pub(super) fn directory(node: Arc<Node>) -> Arc<OverlayFile> {
        Arc::new(OverlayFile { node })
    }
}

impl FileOps for OverlayFile {
    fn read_at(&self, _file: &File, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if self.node.file_type() == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        let own = self.node.data.lock().clone();
        if let Some(data) = own {
            return data.cache.read(offset, sink);
        }
        let lower = self.node.lower.as_ref().ok_or(Errno::EIO)?;
        // Asking for the attributes notices changes of the host.
        lower.metadata()?;
        lower.page_cache().ok_or(Errno::EIO)?.read(offset, sink)
    }

    fn write_at(&self, file: &File, offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let node = &self.node;
        if node.file_type() != FileType::Regular {
            return Err(Errno::EISDIR);
        }
        let data = node.own_data()?;
        let written = {
            let _writing = node.writing.lock();
            let append = source.appends(file.flags());
            let offset = if append { data.cache.size() } else { offset };
            node.fs.check_room()?;
            data.cache.write(offset, source)?
        };
        if written > 0 {
            let now_ns = crate::base::time::realtime_ns() as i64;
            node.change(|m| {
                m.mtime_ns = now_ns;
                m.ctime_ns = now_ns;
            })?;
        }
        Ok(written)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.node.clone()
    }
}
