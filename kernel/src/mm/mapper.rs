//! An address space as the files see it that it maps: what truncation and locks ask of it.

use alloc::sync::Arc;

use super::{Backing, Mm, MmInner, PAGE, Vma, VmaFlags};
use crate::page_cache::{Mapper, PageCache};

impl Mapper for Mm {
    fn unmap_file_pages(&self, file: &PageCache, first: u64, end: u64, with_private: bool) {
        let mut inner = self.inner.lock();
        inner.note_peak();
        let MmInner { vmas, table, .. } = &mut *inner;
        for (&start, vma) in vmas.iter() {
            let Backing::File { cache, page_offset, .. } = &vma.backing else { continue };
            if !core::ptr::eq(Arc::as_ptr(cache), file) || !vma.shared && !with_private {
                continue;
            }
            let pages = (vma.end - start) / PAGE;
            let from = first.clamp(*page_offset, page_offset + pages) - page_offset;
            let to = end.clamp(*page_offset, page_offset + pages) - page_offset;
            if from < to {
                // Private copies stay on Linux too only until truncation: they go as well.
                let (from, to) = (start + from * PAGE, start + to * PAGE);
                table.unmap(from, to, from..to);
            }
        }
    }

    fn may_write_file(&self, file: &PageCache) -> bool {
        let inner = self.inner.lock();
        inner.vmas.values().any(|vma| match &vma.backing {
            Backing::File { cache, .. } => {
                vma.shared
                    && vma.flags.contains(VmaFlags::MAY_WRITE)
                    && core::ptr::eq(Arc::as_ptr(cache), file)
            }
            _ => false,
        })
    }

    fn areas_of_file(&self, file: &PageCache) -> u64 {
        let maps = |vma: &&Vma| match &vma.backing {
            Backing::File { cache, .. } => core::ptr::eq(Arc::as_ptr(cache), file),
            _ => false,
        };
        self.inner.lock().vmas.values().filter(maps).count() as u64
    }
}
