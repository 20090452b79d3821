//! Entries of page tables (SDM 3A, 4.5; APM 2, 5.3), and what Limen keeps in the bits that are left
//! to software.
//!
//! An entry of a program's table owns a counted reference to its frame. A page with all rights
//! taken away keeps its frame in a non-present entry whose frame number is stored inverted, so that
//! a speculative walk of it (L1TF) points above installed memory.

use bitflags::bitflags;

use crate::cpu::PhysAddr;

bitflags! {
    /// What a program may do with a page, and the protection key that may take it away again
    /// ([`crate::pkey`]). x86 cannot forbid reading of a writable or executable page but by its
    /// key. Without any right the page is kept but unreachable.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Prot: u8 {
        /// May be read.
        const READ = 1;
        /// May be written.
        const WRITE = 2;
        /// May be executed.
        const EXEC = 4;
        /// Calls may push their return addresses there, and no ordinary store writes: a shadow
        /// stack. Never with WRITE.
        const SHADOW = 8;
        /// The number of the key, 0 to 15.
        const KEY = 0xf0;
    }
}

const PROT_KEY_SHIFT: u32 = 4;

impl Prot {
    /// The number of the protection key.
    #[must_use]
    #[inline]
    pub const fn key(self) -> u8 {
        self.bits() >> PROT_KEY_SHIFT
    }

    /// The same rights under this key, 0 to 15.
    #[must_use]
    #[inline]
    pub const fn with_key(self, key: u8) -> Prot {
        self.rights().union(Prot::from_bits_retain(key << PROT_KEY_SHIFT))
    }

    /// Without the key.
    #[must_use]
    #[inline]
    pub const fn rights(self) -> Prot {
        self.difference(Prot::KEY)
    }

    /// No right at all.
    #[must_use]
    #[inline]
    pub const fn is_none(self) -> bool {
        self.rights().is_empty()
    }

    /// Without any right that changes the page.
    #[must_use]
    #[inline]
    pub const fn read_only(self) -> Prot {
        self.difference(Prot::WRITE.union(Prot::SHADOW))
    }

    /// Whether the page changes, by stores or as a shadow stack.
    #[must_use]
    #[inline]
    pub const fn changes(self) -> bool {
        self.intersects(Prot::WRITE.union(Prot::SHADOW))
    }

    /// Whether a page that was `old` can do no less: a stale translation only faults again.
    #[inline]
    pub(crate) const fn keeps(self, old: Prot) -> bool {
        old.is_none() || self.key() == old.key() && self.contains(old)
    }
}

bitflags! {
    /// The bits of an entry that are not the address.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct PteFlags: u64 {
        const PRESENT = 1;
        const WRITE = 1 << 1;
        const USER = 1 << 2;
        const WRITE_THROUGH = 1 << 3;
        const CACHE_DISABLE = 1 << 4;
        const ACCESSED = 1 << 5;
        const DIRTY = 1 << 6;
        /// Above the lowest level: maps memory, and leads to no table.
        const LARGE = 1 << 7;
        const GLOBAL = 1 << 8;
        /// Software, with HIDDEN: who made it so is about to put another page here (`concurrent`).
        const CLAIMED = 1 << 9;
        /// Software: a page without any right; the frame number is inverted, PRESENT is clear.
        const HIDDEN = 1 << 10;
        const NO_EXECUTE = 1 << 63;
    }
}

/// What makes a program's page one that changes: both, or DIRTY alone for a shadow stack (SDM 3A,
/// 4.6.1). Nothing else is DIRTY: who may not write has never been able to, or has lost both.
pub(super) const CHANGES: PteFlags = PteFlags::WRITE.union(PteFlags::DIRTY);

/// What is in a program's page; what its sizes in /proc tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    /// The kernel's own, or the page of zeros: counts for nobody.
    Special = 0,
    /// The program's: no file has it.
    Anonymous = 1,
    /// A file's.
    File = 2,
    /// A file's that is nowhere but in memory.
    Shmem = 3,
    /// 2 MiB of the pool that is set aside for them. Never becomes small pages.
    Hugetlb = 4,
}

/// How many kinds there are.
pub(super) const KINDS: usize = 5;

impl PageKind {
    /// All, in the order of their numbers.
    pub(super) const ALL: [PageKind; KINDS] = [
        PageKind::Special,
        PageKind::Anonymous,
        PageKind::File,
        PageKind::Shmem,
        PageKind::Hugetlb,
    ];

    #[inline]
    fn of(number: u64) -> PageKind {
        match number {
            1 => PageKind::Anonymous,
            2 => PageKind::File,
            3 => PageKind::Shmem,
            4 => PageKind::Hugetlb,
            _ => PageKind::Special,
        }
    }
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Pte(u64);

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Software: the [`PageKind`].
const KIND_SHIFT: u32 = 52;
const KIND: u64 = 7 << KIND_SHIFT;
/// Where the CPU looks for the protection key (SDM 3A, 4.5.4).
const KEY_SHIFT: u32 = 59;

impl Pte {
    pub(crate) const EMPTY: Pte = Pte(0);

    #[inline]
    pub(crate) const fn from_raw(raw: u64) -> Pte {
        Pte(raw)
    }

    #[inline]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// An entry that leads to `to`.
    #[inline]
    pub(crate) const fn new(to: PhysAddr, flags: PteFlags) -> Pte {
        Pte(to.as_u64() | flags.bits())
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn flags(self) -> PteFlags {
        PteFlags::from_bits_retain(self.0 & !ADDRESS)
    }

    #[inline]
    pub(crate) const fn has(self, flags: PteFlags) -> bool {
        self.0 & flags.bits() == flags.bits()
    }

    #[inline]
    pub(crate) const fn is_present(self) -> bool {
        self.has(PteFlags::PRESENT)
    }

    /// Where a present entry leads.
    #[inline]
    pub(crate) const fn to(self) -> PhysAddr {
        PhysAddr::new(self.0 & ADDRESS)
    }

    #[must_use]
    #[inline]
    pub(crate) const fn with(self, flags: PteFlags) -> Pte {
        Pte(self.0 | flags.bits())
    }

    #[must_use]
    #[inline]
    pub(crate) const fn without(self, flags: PteFlags) -> Pte {
        Pte(self.0 & !flags.bits())
    }

    /// The same page, hidden from everybody; [`Pte::frame`] still tells it.
    #[inline]
    pub(crate) const fn hide(self) -> Pte {
        Pte(!self.0 & ADDRESS | PteFlags::HIDDEN.bits())
    }

    // --------------------------------------------------------------------------------------------
    // Pages of programs

    /// Maps frame `pfn` to a program.
    #[inline]
    pub(crate) fn page(pfn: u32, prot: Prot, kind: PageKind) -> Pte {
        let address = PhysAddr::of_frame(pfn).as_u64();
        let kind = (kind as u64) << KIND_SHIFT;
        if prot.is_none() {
            return Pte(!address & ADDRESS | kind | PteFlags::HIDDEN.bits());
        }
        let mut flags = PteFlags::PRESENT.union(PteFlags::USER).union(PteFlags::ACCESSED).bits();
        if prot.contains(Prot::WRITE) {
            flags |= CHANGES.bits();
        } else if prot.contains(Prot::SHADOW) {
            flags |= PteFlags::DIRTY.bits();
        }
        if !prot.contains(Prot::EXEC) {
            flags |= PteFlags::NO_EXECUTE.bits();
        }
        Pte(address | kind | flags | u64::from(prot.key()) << KEY_SHIFT)
    }

    /// Maps 2 MiB from frame `pfn` on to a program.
    #[inline]
    pub(crate) fn huge_page(pfn: u32, prot: Prot, kind: PageKind) -> Pte {
        Pte::page(pfn, prot, kind).with(PteFlags::LARGE)
    }

    /// Whether there is a page, hidden or not.
    #[inline]
    pub(crate) const fn is_page(self) -> bool {
        self.0 & (PteFlags::PRESENT.bits() | PteFlags::HIDDEN.bits()) != 0
    }

    #[inline]
    pub(crate) const fn is_large(self) -> bool {
        self.has(PteFlags::LARGE)
    }

    /// The number of the frame, also if it is hidden.
    #[inline]
    pub(crate) fn frame(self) -> Option<u32> {
        if self.is_present() {
            Some(self.to().frame())
        } else if self.has(PteFlags::HIDDEN) {
            Some(PhysAddr::new(!self.0 & ADDRESS).frame())
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn prot(self) -> Prot {
        if !self.is_present() {
            return Prot::empty();
        }
        let mut prot = Prot::READ.with_key((self.0 >> KEY_SHIFT) as u8 & 0xf);
        let is_writable = self.has(PteFlags::WRITE);
        prot.set(Prot::WRITE, is_writable);
        prot.set(Prot::SHADOW, !is_writable && self.has(PteFlags::DIRTY));
        prot.set(Prot::EXEC, !self.has(PteFlags::NO_EXECUTE));
        prot
    }

    #[inline]
    pub(crate) fn kind(self) -> PageKind {
        PageKind::of((self.0 & KIND) >> KIND_SHIFT)
    }

    /// The same page with other rights.
    #[must_use]
    #[inline]
    pub(crate) fn with_prot(self, prot: Prot) -> Pte {
        let Some(pfn) = self.frame() else { return self };
        Pte::page(pfn, prot, self.kind()).with(self.flags().intersection(PteFlags::LARGE))
    }

    /// The same page for who is about to put another one in its place: hidden from everybody.
    #[must_use]
    #[inline]
    pub(crate) fn claimed(self) -> Pte {
        Pte(self.hide().0 | self.0 & KIND | PteFlags::CLAIMED.bits())
    }

    /// The small page number `index` of a large one.
    #[must_use]
    #[inline]
    pub(crate) fn part(self, index: usize) -> Pte {
        let Some(pfn) = self.frame() else { return self };
        Pte::page(pfn + index as u32, self.prot(), self.kind())
    }
}
