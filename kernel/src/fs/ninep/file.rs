//! Open files of the server, and how their data gets into the page cache and back.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use machine::frame::{Frame, PAGE_SIZE};

use super::inode::NinepInode;
use crate::base::io::{Sink, Source};
use crate::page_cache::{PageBackend, PageCache};
use crate::vfs::{File, FileOps, FileType, Inode};

/// Written bytes that may wait for write-back.
const DIRTY_MAX: usize = 4 << 20;

/// A regular file or directory, open.
pub(super) struct NinepFile {
    inode: Arc<NinepInode>,
    writes: bool,
}

impl NinepFile {
    /// Opens at the server what the flags need, so that a refusal comes from open(2).
    pub(super) fn open(inode: Arc<NinepInode>, flags: u32) -> Result<Arc<NinepFile>> {
        let access = flags & raw::O_ACCMODE;
        let writes = access != raw::O_RDONLY;
        if writes {
            if inode.file_type() == FileType::Directory {
                return Err(Errno::EISDIR);
            }
            inode.writer()?;
        }
        if access != raw::O_WRONLY {
            inode.reader()?;
        }
        if writes {
            inode.writers.fetch_add(1, Ordering::Relaxed);
            inode.fs.written.lock().insert(inode.number, inode.clone());
        }
        Ok(Arc::new(NinepFile { inode, writes }))
    }
}

impl FileOps for NinepFile {
    fn read_at(&self, _file: &File, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if self.inode.file_type() == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        // Asking for the attributes notices changes of the host.
        self.inode.metadata()?;
        self.inode.cached_data().read(offset, sink)
    }

    fn write_at(&self, file: &File, offset: u64, source: &mut Source<'_>) -> Result<usize> {
        self.inode.fs.check_writable()?;
        let written = {
            // The host may have made the file longer; what is appended goes after that.
            let size = self.inode.metadata()?.size;
            let _writing = self.inode.writing.lock();
            let cache = self.inode.cached_data();
            let append = source.appends(file.flags());
            let offset = if append { cache.size().max(size) } else { offset };
            cache.write(offset, source)?
        };
        let dirty = self.inode.dirty_bytes.fetch_add(written, Ordering::Relaxed) + written;
        if dirty >= DIRTY_MAX {
            self.inode.write_back()?;
        }
        Ok(written)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }

    /// The last descriptor has gone, and with it whoever could be told of an error: it is the user
    /// who hears of it, from the log.
    fn release(&self, file: &File) {
        if !self.writes {
            return;
        }
        let Err(error) = self.inode.write_back() else { return };
        let name = file.location.as_ref().map(|location| location.dentry.parent_and_name().1);
        let name = name.unwrap_or_default();
        let why = match error {
            Errno::ENOSPC | Errno::EDQUOT => "the host has no space left for it",
            _ => "the host does not take it",
        };
        machine::log!("warning: {}: what was written is lost: {why}", name.escape_ascii());
    }
}

impl Drop for NinepFile {
    /// The last user of the open file, a mapping perhaps, has gone: what it wrote goes out.
    fn drop(&mut self) {
        if !self.writes {
            return;
        }
        if let Err(error) = self.inode.write_back() {
            machine::log!("9p: written data of a closed file is lost: {error:?}");
        }
        if self.inode.writers.fetch_sub(1, Ordering::Relaxed) == 1 {
            let known = self.inode.fs.written.lock().remove(&self.inode.number);
            drop(known);
            let writer = self.inode.writer.lock().take();
            drop(writer);
        }
    }
}

impl NinepInode {
    /// The page cache; made at the first use.
    pub(super) fn cached_data(&self) -> &Arc<PageCache> {
        self.cache.call_once(|| {
            let size = self.known_size();
            PageCache::new(Some(Arc::new(Backend(self.me.clone()))), size)
        })
    }

    /// Sends dirty pages to the server.
    pub(super) fn write_back(&self) -> Result<()> {
        let Some(cache) = self.cache.get() else { return Ok(()) };
        let was_dirty = self.dirty_bytes.swap(0, Ordering::Relaxed) > 0;
        let result = cache.write_back();
        if was_dirty && result.is_ok() {
            self.refresh_after_own_change()?;
        }
        result
    }
}

struct Backend(alloc::sync::Weak<NinepInode>);

impl PageBackend for Backend {
    fn read_pages(&self, first: u64, frames: &[Frame]) -> Result<usize> {
        let inode = self.0.upgrade().ok_or(Errno::EIO)?;
        // The locks may not be held while the server is asked.
        let (reader, writer) = (inode.reader.lock().clone(), inode.writer.lock().clone());
        let fid = match reader.or(writer) {
            Some(fid) => fid,
            None => inode.reader()?,
        };
        let wanted = frames.len() * PAGE_SIZE;
        let mut at = 0;
        while at < wanted {
            let offset = first * PAGE_SIZE as u64 + at as u64;
            let got = fid.read(offset, wanted - at, |data| {
                fill(frames, at, data);
                Ok(data.len())
            })?;
            // The end of the file.
            if got == 0 {
                break;
            }
            at += got;
        }
        Ok(at)
    }

    fn write_pages(&self, first: u64, frames: &[Frame], len: usize) -> Result<()> {
        let inode = self.0.upgrade().ok_or(Errno::EIO)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(len, 0);
        for (part, frame) in bytes.chunks_mut(PAGE_SIZE).zip(frames) {
            frame.read(0, part);
        }
        inode.writer()?.write(first * PAGE_SIZE as u64, &bytes)
    }
}

/// Puts data into frames, from byte `at` of them on.
fn fill(frames: &[Frame], mut at: usize, mut data: &[u8]) {
    while !data.is_empty() {
        let Some(frame) = frames.get(at / PAGE_SIZE) else { return };
        let start = at % PAGE_SIZE;
        let len = data.len().min(PAGE_SIZE - start);
        frame.write(start, &data[..len]);
        data = &data[len..];
        at += len;
    }
}
