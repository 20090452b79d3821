//! One area of an address space: a range with the same rights and the same origin of pages.

use alloc::sync::Arc;

use machine::frame::Frame;
use machine::paging::Prot;

use super::PAGE;
use crate::vfs::File;
use crate::vfs::page_cache::PageCache;

/// Where the pages of an area come from.
#[derive(Clone)]
pub enum Backing {
    /// Zero pages.
    Anonymous,
    /// A file; private areas copy a page when they write to it.
    File {
        /// The contents.
        cache: Arc<PageCache>,
        /// Page of the file at the area's start.
        page_offset: u64,
        /// The open file, for its name; None for shared anonymous memory.
        file: Option<Arc<File>>,
    },
    /// Frames of the kernel that every program sees: the vDSO and its data.
    Special {
        /// Name in /proc/PID/maps.
        name: &'static str,
        /// The pages.
        frames: Arc<[Frame]>,
    },
}

/// An area; its start address is its key in the address space.
#[derive(Clone)]
pub struct Vma {
    /// First address after it.
    pub end: u64,
    /// What the program may do.
    pub prot: Prot,
    /// MAP_SHARED.
    pub shared: bool,
    /// The file was opened for writing, so that a shared mapping may become writable.
    pub may_write: bool,
    /// MAP_GROWSDOWN: a stack.
    pub grows_down: bool,
    /// mlock(2).
    pub locked: bool,
    /// MADV_DONTFORK.
    pub dont_fork: bool,
    /// MADV_WIPEONFORK.
    pub wipe_on_fork: bool,
    /// Where pages come from.
    pub backing: Backing,
    /// Name in /proc/PID/maps, such as `[heap]`.
    pub name: Option<&'static str>,
}

impl Vma {
    /// A private anonymous area.
    #[must_use]
    pub fn anonymous(end: u64, prot: Prot) -> Vma {
        Vma {
            end,
            prot,
            shared: false,
            may_write: true,
            grows_down: false,
            locked: false,
            dont_fork: false,
            wipe_on_fork: false,
            backing: Backing::Anonymous,
            name: None,
        }
    }

    /// Whether `next`, which starts where this area (from `start`) ends, could be one with it.
    #[must_use]
    pub fn is_continued_by(&self, start: u64, next: &Vma) -> bool {
        let alike = self.prot == next.prot
            && self.shared == next.shared
            && self.may_write == next.may_write
            && self.grows_down == next.grows_down
            && self.locked == next.locked
            && self.dont_fork == next.dont_fork
            && self.wipe_on_fork == next.wipe_on_fork
            && self.name == next.name;
        alike
            && match (&self.backing, &next.backing) {
                (Backing::Anonymous, Backing::Anonymous) => !self.grows_down,
                (
                    Backing::File { cache, page_offset, file },
                    Backing::File { cache: other, page_offset: other_offset, file: other_file },
                ) => {
                    Arc::ptr_eq(cache, other)
                        && page_offset + (self.end - start) / PAGE == *other_offset
                        && file.as_ref().map(Arc::as_ptr) == other_file.as_ref().map(Arc::as_ptr)
                }
                _ => false,
            }
    }
}
