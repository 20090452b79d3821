//! One area of an address space: a range with the same rights and the same origin of pages.

use alloc::sync::Arc;

use bitflags::bitflags;
use machine::frame::Frame;
use machine::memory::{HUGE_PAGE, Prot};

use super::PAGE;
use super::huge_area::HugeArea;
use crate::page_cache::PageCache;
use crate::vfs::File;

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
    /// The pool of huge pages.
    Hugetlb(HugeArea),
    /// Frames of the kernel that every program sees: the vDSO and its data.
    Special {
        /// Name in /proc/PID/maps.
        name: &'static str,
        /// The pages.
        frames: Arc<[Frame]>,
    },
}

bitflags! {
    /// Properties of an area beside rights and backing; madvise(2) and mlock(2) set most of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct VmaFlags: u32 {
        /// A shared mapping may become writable: the file was opened for writing. Private ones
        /// always may.
        const MAY_WRITE = 1;
        /// May become executable: not of a file on a mount with MS_NOEXEC.
        const MAY_EXEC = 1 << 1;
        /// MAP_GROWSDOWN: a stack.
        const GROWS_DOWN = 1 << 2;
        /// mlock(2).
        const LOCKED = 1 << 3;
        /// MLOCK_ONFAULT: locked, but not brought in.
        const LOCK_ON_FAULT = 1 << 4;
        /// MADV_DONTFORK.
        const DONT_FORK = 1 << 5;
        /// MADV_WIPEONFORK.
        const WIPE_ON_FORK = 1 << 6;
        /// MADV_DONTDUMP.
        const DONT_DUMP = 1 << 7;
        /// MADV_RANDOM.
        const RANDOM = 1 << 8;
        /// MADV_SEQUENTIAL.
        const SEQUENTIAL = 1 << 9;
        /// MADV_HUGEPAGE.
        const HUGE = 1 << 10;
        /// MADV_NOHUGEPAGE.
        const NO_HUGE = 1 << 11;
        /// MAP_DROPPABLE: contents may be lost, and are not inherited.
        const DROPPABLE = 1 << 12;
        /// Keeps its size: areas of the kernel.
        const FIXED_SIZE = 1 << 13;
        /// mseal(2): stays where it is, with the rights that it has.
        const SEALED = 1 << 14;
        /// MAP_NORESERVE, which is kept: areas with it are not one with areas without.
        const NO_RESERVE = 1 << 15;
        /// A shadow stack: its right to change is [`Prot::SHADOW`].
        const SHADOW_STACK = 1 << 16;
        /// MADV_MERGEABLE.
        const MERGEABLE = 1 << 17;
        /// What mbind(2) has set, as a number: [`VmaFlags::policy`].
        const POLICY = 0x7f << 18;
    }
}

impl VmaFlags {
    /// The memory policy, which `mapping::policy` reads; 0: none.
    pub fn policy(self) -> u32 {
        (self & Self::POLICY).bits() >> Self::POLICY.bits().trailing_zeros()
    }

    /// The same with a memory policy.
    pub fn with_policy(self, policy: u32) -> Self {
        let bits = policy << Self::POLICY.bits().trailing_zeros();
        (self - Self::POLICY) | (Self::from_bits_retain(bits) & Self::POLICY)
    }
}

/// What /proc tells of an area whose pages come from nowhere.
#[derive(Clone)]
pub enum Label {
    /// What the program calls it (PR_SET_VMA_ANON_NAME).
    Name(Arc<[u8]>),
    /// It is a private mapping of this file, /dev/zero, from this page on.
    Zeros(Arc<File>, u64),
}

/// What is told of areas that come and go: a shared memory segment (shmat(2)). Called with the lock
/// of the address space: by no address space must anything be done.
pub trait Attached: Send + Sync {
    /// There is another area, by fork(2) or because one was cut in two.
    fn opened(&self);
    /// An area has gone.
    fn closed(&self);
}

/// An area; its start address is its key in the address space.
#[derive(Clone)]
pub struct Vma {
    /// First address after it.
    pub end: u64,
    /// What the program asked for; what the CPU cannot forbid is more ([`Vma::is_accessible`]).
    pub prot: Prot,
    /// MAP_SHARED.
    pub shared: bool,
    /// What else it is and may become.
    pub flags: VmaFlags,
    /// Where pages come from.
    pub backing: Backing,
    /// How many pages memory without a file is from where its first page was made: what has been
    /// moved (mremap(2)) is not one with what was made beside its new place.
    pub moved_pages: i64,
    /// Name in /proc/PID/maps, such as `[heap]`.
    pub name: Option<&'static str>,
    /// What else is told of it there.
    pub label: Option<Label>,
    /// Who is told of copies of it and of its end.
    pub attached: Option<Arc<dyn Attached>>,
}

impl Vma {
    /// Tells whoever is to know that there is another such area.
    pub fn note_opened(&self) {
        if let Some(attached) = &self.attached {
            attached.opened();
        }
    }

    /// The same of its end.
    pub fn note_closed(&self) {
        if let Some(attached) = &self.attached {
            attached.closed();
        }
    }

    /// A private anonymous area.
    #[must_use]
    pub fn anonymous(end: u64, prot: Prot) -> Vma {
        Vma {
            end,
            prot,
            shared: false,
            flags: VmaFlags::MAY_WRITE | VmaFlags::MAY_EXEC,
            backing: Backing::Anonymous,
            moved_pages: 0,
            name: None,
            label: None,
            attached: None,
        }
    }

    /// Whether the program may do anything with it. The CPU lets who may write or execute read.
    #[must_use]
    pub fn is_accessible(&self) -> bool {
        !self.prot.is_none()
    }

    /// What the CPU is to allow in its pages, at most.
    #[must_use]
    pub fn page_prot(&self) -> Prot {
        if self.is_accessible() { self.prot | Prot::READ } else { self.prot }
    }

    /// Whether it is a shadow stack, whatever its rights.
    #[must_use]
    pub fn is_shadow_stack(&self) -> bool {
        self.flags.contains(VmaFlags::SHADOW_STACK)
    }

    /// What its rights become where a program asks for these: a shadow stack stays one.
    #[must_use]
    pub fn asked(&self, prot: Prot) -> Prot {
        if self.is_shadow_stack() && prot.contains(Prot::WRITE) {
            return (prot - Prot::WRITE) | Prot::SHADOW;
        }
        prot
    }

    /// Whether it is private memory without a file.
    #[must_use]
    pub fn is_private_anonymous(&self) -> bool {
        !self.shared && matches!(self.backing, Backing::Anonymous)
    }

    /// Whether no file was named when it was mapped.
    #[must_use]
    pub fn is_without_file(&self) -> bool {
        !matches!(self.label, Some(Label::Zeros(..)))
            && match &self.backing {
                Backing::Anonymous | Backing::Special { .. } => true,
                Backing::File { file, .. } => file.is_none(),
                Backing::Hugetlb(_) => false,
            }
    }

    /// Whether it is sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.flags.contains(VmaFlags::SEALED)
    }

    /// Whether its seal keeps what it holds from being dropped: who may write may destroy anyhow.
    #[must_use]
    pub fn keeps_contents(&self) -> bool {
        self.is_sealed()
            && self.is_private_anonymous()
            && self.is_without_file()
            && !self.prot.changes()
    }

    /// What begins `bytes` further on: the rest of an area that is cut.
    pub fn advance(&mut self, bytes: u64) {
        if let Some(Label::Zeros(_, first)) = &mut self.label {
            *first += bytes / PAGE;
        }
        match &mut self.backing {
            Backing::File { page_offset, .. } => *page_offset += bytes / PAGE,
            Backing::Hugetlb(area) => area.first += bytes / HUGE_PAGE,
            Backing::Anonymous | Backing::Special { .. } => {}
        }
    }

    /// Whether `next`, which starts where this area (from `start`) ends, could be one with it.
    #[must_use]
    pub fn is_continued_by(&self, start: u64, next: &Vma) -> bool {
        let alike = self.prot == next.prot
            && self.shared == next.shared
            && self.flags == next.flags
            && self.name == next.name
            && self.has_label_continued_by(start, next);
        alike
            && match (&self.backing, &next.backing) {
                (Backing::Anonymous, Backing::Anonymous) => self.moved_pages == next.moved_pages,
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

    fn has_label_continued_by(&self, start: u64, next: &Vma) -> bool {
        match (&self.label, &next.label) {
            (None, None) => true,
            (Some(Label::Name(name)), Some(Label::Name(other))) => name == other,
            (Some(Label::Zeros(file, first)), Some(Label::Zeros(other, other_first))) => {
                Arc::ptr_eq(file, other) && first + (self.end - start) / PAGE == *other_first
            }
            _ => false,
        }
    }
}
