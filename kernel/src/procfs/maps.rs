//! The address space of a process: maps, smaps, smaps_rollup, numa_maps (proc(5)).
//!
//! A process may have tens of thousands of areas, so the texts are made piece by piece: the
//! position of a piece is the address from which it tells. They are about the address space that
//! the process had when they were opened: later it may be another program's.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};

use super::fds;
use super::process_dir::Subject;
use machine::memory::{HUGE_PAGE, Page, PageKind, Prot};

use crate::drivers::chrdev::{major, minor};
use crate::fs::pseudo::{Content, Text};
use crate::mm::huge_area::HugeArea;
use crate::mm::{Backing, Label, Mm, PAGE, Vma, VmaFlags};
use crate::vfs::File;

/// Areas that are looked at under the lock at once.
const AREAS_AT_ONCE: usize = 32;
/// A piece ends with the area that reaches this length: most fit a reader's page.
const PIECE_BYTES: usize = 3072;
/// Column at which names begin in maps.
const NAME_COLUMN: usize = 73;

/// One area, as it was at the moment of asking.
pub(super) struct Area {
    start: u64,
    vma: Vma,
    /// It gets huge pages by itself; asked with its pages.
    wants_huge: bool,
    /// What of it is in memory.
    sums: Sums,
}

/// A copy of the first areas from an address on: names need locks that may not be taken under the
/// address space's. `with_pages`: pages are looked at, too.
fn areas_from(mm: &Mm, address: u64, with_pages: bool) -> Vec<Area> {
    mm.with(|inner| {
        let area = |(&start, vma): (&u64, &Vma)| {
            let mut sums = Sums { size: vma.end - start, ..Sums::default() };
            if with_pages {
                inner.table.for_each(start, vma.end, |page| sums.add_page(vma, &page));
            }
            let wants_huge = with_pages && inner.wants_huge(vma);
            Area { start, vma: vma.clone(), wants_huge, sums }
        };
        // The range does not know how many it has: the vector would grow again and again.
        let mut areas = Vec::with_capacity(AREAS_AT_ONCE);
        areas.extend(inner.vmas.range(address..).take(AREAS_AT_ONCE).map(area));
        areas
    })
}

/// Tells about one area.
type ShowArea = fn(&Subject, &Area, &mut Text);

/// A file about all areas, in order.
struct Areas {
    subject: Subject,
    space: Weak<Mm>,
    show: ShowArea,
    /// It tells about pages, too.
    with_pages: bool,
}

/// Binds a file about areas to the address space that the process has now.
fn areas(subject: Subject, show: ShowArea, with_pages: bool) -> Result<Box<dyn Content>> {
    Ok(Box::new(Areas { space: subject.space(), subject, show, with_pages }))
}

/// Binds maps.
pub(super) fn maps(subject: Subject) -> Result<Box<dyn Content>> {
    areas(subject, map, false)
}

/// Binds numa_maps.
pub(super) fn numa_maps(subject: Subject) -> Result<Box<dyn Content>> {
    areas(subject, numa_map, true)
}

/// Binds smaps.
pub(super) fn smaps(subject: Subject) -> Result<Box<dyn Content>> {
    areas(subject, smap, true)
}

impl Content for Areas {
    fn generate(&self, out: &mut Text) -> Result<()> {
        let mut position = Some(0);
        while let Some(at) = position {
            position = self.generate_piece(at, out)?;
        }
        Ok(())
    }

    fn generate_piece(&self, position: u64, out: &mut Text) -> Result<Option<u64>> {
        self.subject.check_alive()?;
        // Without the address space there are no areas.
        let Some(mm) = self.space.upgrade() else { return Ok(None) };
        let areas = areas_from(&mm, position, self.with_pages);
        for area in &areas {
            (self.show)(&self.subject, area, out);
            if out.0.len() >= PIECE_BYTES {
                return Ok(Some(area.vma.end));
            }
        }
        let is_end = areas.len() < AREAS_AT_ONCE;
        Ok(areas.last().filter(|_| !is_end).map(|area| area.vma.end))
    }
}

pub(super) fn file_of(vma: &Vma) -> Option<&Arc<File>> {
    match &vma.backing {
        Backing::File { file, .. } | Backing::Hugetlb(HugeArea { file, .. }) => file.as_ref(),
        _ => match &vma.label {
            Some(Label::Zeros(file, _)) => Some(file),
            _ => None,
        },
    }
}

fn put_header(out: &mut Text, area: &Area) {
    let vma = &area.vma;
    let line = out.0.len();
    let flag = |right: Prot, letter: u8| if vma.prot.contains(right) { letter } else { b'-' };
    out.hex(area.start, 8);
    out.bytes(b"-");
    out.hex(vma.end, 8);
    out.bytes(&[
        b' ',
        flag(Prot::READ, b'r'),
        if vma.prot.changes() { b'w' } else { b'-' },
        flag(Prot::EXEC, b'x'),
        if vma.shared { b's' } else { b'p' },
        b' ',
    ]);
    let (mut offset, mut device, mut number) = (0, 0, 0);
    match &vma.backing {
        Backing::File { page_offset, .. } => offset = page_offset * PAGE,
        Backing::Hugetlb(area) => offset = area.first * HUGE_PAGE,
        _ => {}
    }
    if let Some(Label::Zeros(_, first)) = &vma.label {
        offset = first * PAGE;
    }
    if let Some(file) = file_of(vma)
        && let Ok(metadata) = file.ops().inode().metadata()
    {
        (device, number) = (metadata.device, metadata.inode);
    }
    if (offset, device, number) == (0, 0, 0) {
        // Most areas are of no file.
        out.bytes(b"00000000 00:00 0");
    } else {
        out.hex(offset, 8);
        out.bytes(b" ");
        out.hex(major(device).into(), 2);
        out.bytes(b":");
        out.hex(minor(device).into(), 2);
        out.bytes(b" ");
        out.decimal(number, 0);
    }
    if let Some(name) = name_of(vma) {
        let width = out.0.len() - line;
        let blanks = NAME_COLUMN.saturating_sub(width).max(1);
        out.blanks(blanks);
        // A name may hold anything; a line must stay one line.
        for (i, part) in name.split(|&byte| byte == b'\n').enumerate() {
            out.bytes(if i > 0 { b"\\012" } else { b"" });
            out.bytes(part);
        }
    }
    out.bytes(b"\n");
}

fn name_of(vma: &Vma) -> Option<Vec<u8>> {
    let given = match &vma.label {
        Some(Label::Name(name)) => Some(name),
        _ => None,
    };
    let in_brackets = |kind: &str, name: &[u8]| [kind.as_bytes(), b":", name, b"]"].concat();
    match (&vma.backing, file_of(vma)) {
        (_, Some(file)) => Some(fds::file_text(file)),
        (Backing::Special { name, .. }, _) => Some(name.as_bytes().to_vec()),
        (Backing::Hugetlb(_), None) => Some(b"/anon_hugepage (deleted)".to_vec()),
        (Backing::File { .. }, None) => Some(match given {
            Some(name) => in_brackets("[anon_shmem", name),
            None => b"/dev/zero (deleted)".to_vec(),
        }),
        _ => match vma.name {
            Some(name) => Some(name.as_bytes().to_vec()),
            None => given.map(|name| in_brackets("[anon", name)),
        },
    }
}

/// A line of maps.
fn map(_: &Subject, area: &Area, out: &mut Text) {
    put_header(out, area);
}

/// Bytes that count for an area: resident ones, divided as smaps divides them.
#[derive(Default)]
struct Sums {
    size: u64,
    resident: u64,
    /// Each page divided by how many have it.
    proportional: u64,
    proportional_dirty: u64,
    shared_clean: u64,
    shared_dirty: u64,
    private_clean: u64,
    private_dirty: u64,
    anonymous: u64,
    /// Used since somebody asked to forget it (clear_refs).
    referenced: u64,
    /// Most address spaces that have one of the pages.
    mappers_max: u32,
    /// In huge pages, anonymous and of files in memory.
    huge: [u64; 2],
    locked: u64,
    /// In huge pages of the pool, which count for nothing else: shared and private ones.
    hugetlb: [u64; 2],
}

impl Sums {
    fn add_page(&mut self, vma: &Vma, page: &Page) {
        // The contents of a file are one reference beside those of the programs.
        let (is_anonymous, mappers) = match page.kind {
            PageKind::Special => return,
            PageKind::Hugetlb => {
                // The pool's own reference is one beside those of the programs.
                self.hugetlb[usize::from(page.refs <= 2)] += PAGE;
                return;
            }
            PageKind::Anonymous => (true, page.refs),
            PageKind::File | PageKind::Shmem => (false, page.refs.saturating_sub(1)),
        };
        let is_dirty = is_anonymous || page.prot.changes();
        let share = PAGE / u64::from(mappers.max(1));
        self.resident += PAGE;
        self.proportional += share;
        self.proportional_dirty += if is_dirty { share } else { 0 };
        self.anonymous += if is_anonymous { PAGE } else { 0 };
        self.referenced += if page.is_used { PAGE } else { 0 };
        self.mappers_max = self.mappers_max.max(mappers);
        self.huge[usize::from(!is_anonymous)] += if page.is_huge { PAGE } else { 0 };
        self.locked += if vma.flags.contains(VmaFlags::LOCKED) { share } else { 0 };
        *match (mappers > 1, is_dirty) {
            (true, true) => &mut self.shared_dirty,
            (true, false) => &mut self.shared_clean,
            (false, true) => &mut self.private_dirty,
            (false, false) => &mut self.private_clean,
        } += PAGE;
    }

    fn add(&mut self, other: &Sums) {
        self.size += other.size;
        self.resident += other.resident;
        self.proportional += other.proportional;
        self.proportional_dirty += other.proportional_dirty;
        self.shared_clean += other.shared_clean;
        self.shared_dirty += other.shared_dirty;
        self.private_clean += other.private_clean;
        self.private_dirty += other.private_dirty;
        self.anonymous += other.anonymous;
        self.referenced += other.referenced;
        self.mappers_max = self.mappers_max.max(other.mappers_max);
        self.huge[0] += other.huge[0];
        self.huge[1] += other.huge[1];
        self.locked += other.locked;
        self.hugetlb[0] += other.hugetlb[0];
        self.hugetlb[1] += other.hugetlb[1];
    }

    fn put(&self, out: &mut Text) {
        let lines = [
            ("Rss", self.resident),
            ("Pss", self.proportional),
            ("Pss_Dirty", self.proportional_dirty),
            ("Shared_Clean", self.shared_clean),
            ("Shared_Dirty", self.shared_dirty),
            ("Private_Clean", self.private_clean),
            ("Private_Dirty", self.private_dirty),
            ("Referenced", self.referenced),
            ("Anonymous", self.anonymous),
            ("KSM", 0),
            ("LazyFree", 0),
            ("AnonHugePages", self.huge[0]),
            ("ShmemPmdMapped", self.huge[1]),
            ("FilePmdMapped", 0),
            ("Shared_Hugetlb", self.hugetlb[0]),
            ("Private_Hugetlb", self.hugetlb[1]),
            ("Swap", 0),
            ("SwapPss", 0),
            ("Locked", self.locked),
        ];
        lines.iter().for_each(|(name, value)| put_kilobytes(out, name, *value));
    }
}

fn put_kilobytes(out: &mut Text, name: &str, bytes: u64) {
    out.amount(name, bytes / 1024, " kB");
}

/// The line of numa_maps for one area (numa(7)): there is one node, on which everything is. Which
/// pages are active is not kept.
fn numa_map(subject: &Subject, area: &Area, out: &mut Text) {
    let (vma, sums) = (&area.vma, &area.sums);
    write!(out, "{:08x} ", area.start);
    put_policy(subject, out);
    match (file_of(vma), vma.name) {
        (Some(file), _) => {
            out.bytes(b" file=");
            put_escaped(out, &fds::file_text(file));
        }
        (None, Some("[heap]")) => out.bytes(b" heap"),
        (None, Some("[stack]")) => out.bytes(b" stack"),
        _ => {}
    }
    let (page_size, pages, anonymous, dirty) = if vma.is_hugetlb() {
        out.bytes(b" huge");
        let pages = (sums.hugetlb[0] + sums.hugetlb[1]) / HUGE_PAGE;
        (HUGE_PAGE, pages, if vma.shared { 0 } else { pages }, pages)
    } else {
        let dirty = (sums.shared_dirty + sums.private_dirty) / PAGE;
        (PAGE, sums.resident / PAGE, sums.anonymous / PAGE, dirty)
    };
    let put = |out: &mut Text, name: &str, value: u64, is_told: bool| {
        if is_told {
            out.named(name, value);
        }
    };
    put(out, " anon=", anonymous, anonymous > 0);
    put(out, " dirty=", dirty, dirty > 0);
    put(out, " mapped=", pages, pages != anonymous && pages != dirty);
    put(out, " mapmax=", sums.mappers_max.into(), sums.mappers_max > 1);
    put(out, " N0=", pages, pages > 0);
    put(out, " kernelpagesize_kB=", page_size / 1024, pages > 0);
    out.bytes(b"\n");
}

/// The process's policy (set_mempolicy(2)), as it is written: what is set for an area alone is not
/// kept. The mode may have flags; with nodes it has the one there is.
fn put_policy(subject: &Subject, out: &mut Text) {
    let thread = subject.thread();
    let policy = thread.map_or(0, |thread| thread.settings.memory_policy.load(Ordering::Relaxed));
    out.bytes(match policy & 0x1fff {
        0 => b"default",
        1 => b"prefer",
        2 => b"bind",
        3 => b"interleave",
        4 => b"local",
        5 => b"prefer (many)",
        _ => b"weighted interleave",
    });
    let flags: [(u64, &[u8]); 2] = [(1 << 15, b"=static"), (1 << 14, b"=relative")];
    flags.iter().filter(|(flag, _)| policy & flag != 0).for_each(|(_, name)| out.bytes(name));
    out.bytes(if policy >> 32 != 0 { b":0" } else { b"" });
}

/// A path, with what ends a word in its line as octal numbers.
fn put_escaped(out: &mut Text, path: &[u8]) {
    for &byte in path {
        match byte {
            b'\n' | b'\t' | b' ' | b'=' => write!(out, "\\{byte:03o}"),
            _ => out.bytes(&[byte]),
        }
    }
}

/// The lines of smaps for one area.
fn smap(_: &Subject, area: &Area, out: &mut Text) {
    put_header(out, area);
    let vma = &area.vma;
    let page_size = if vma.is_hugetlb() { HUGE_PAGE } else { PAGE };
    put_kilobytes(out, "Size", area.sums.size);
    put_kilobytes(out, "KernelPageSize", page_size);
    put_kilobytes(out, "MMUPageSize", page_size);
    area.sums.put(out);
    let has_room = area.start.next_multiple_of(HUGE_PAGE) + HUGE_PAGE <= vma.end;
    let is_eligible = u8::from(has_room && area.wants_huge);
    writeln!(out, "THPeligible:           {is_eligible}");
    if machine::pkey::exist() {
        writeln!(out, "ProtectionKey:  {:8}", vma.prot.key());
    }
    write!(out, "VmFlags:");
    let has = |flag: VmaFlags| vma.flags.contains(flag);
    let flags = [
        (vma.prot.contains(Prot::READ), "rd"),
        (vma.prot.changes(), "wr"),
        (vma.prot.contains(Prot::EXEC), "ex"),
        (vma.shared, "sh"),
        (true, "mr"),
        (has(VmaFlags::MAY_WRITE), "mw"),
        (has(VmaFlags::MAY_EXEC), "me"),
        (vma.shared, "ms"),
        (has(VmaFlags::GROWS_DOWN), "gd"),
        (has(VmaFlags::LOCKED), "lo"),
        (has(VmaFlags::LOCK_ON_FAULT), "lf"),
        (has(VmaFlags::SEQUENTIAL), "sr"),
        (has(VmaFlags::RANDOM), "rr"),
        (has(VmaFlags::DONT_FORK), "dc"),
        (has(VmaFlags::FIXED_SIZE), "de"),
        (vma.is_hugetlb(), "ht"),
        (has(VmaFlags::WIPE_ON_FORK), "wf"),
        (has(VmaFlags::DONT_DUMP), "dd"),
        (has(VmaFlags::HUGE), "hg"),
        (has(VmaFlags::NO_HUGE), "nh"),
        (has(VmaFlags::MERGEABLE), "mg"),
        (has(VmaFlags::SHADOW_STACK), "ss"),
        (has(VmaFlags::DROPPABLE), "dp"),
        (has(VmaFlags::SEALED), "sl"),
    ];
    for (_, name) in flags.iter().filter(|(on, _)| *on) {
        out.bytes(b" ");
        out.bytes(name.as_bytes());
    }
    out.bytes(b" \n");
}

/// The sums over all areas.
struct Rollup(Subject, Weak<Mm>);

/// As [`areas`], for smaps_rollup.
pub(super) fn rollup(subject: Subject) -> Result<Box<dyn Content>> {
    let space = subject.space();
    Ok(Box::new(Rollup(subject, space)))
}

impl Content for Rollup {
    fn generate(&self, out: &mut Text) -> Result<()> {
        self.0.check_alive()?;
        put_rollup(&*self.1.upgrade().ok_or(Errno::ESRCH)?, out)
    }
}

fn put_rollup(mm: &Mm, out: &mut Text) -> Result<()> {
    let mut sums = Sums::default();
    let mut areas = areas_from(mm, 0, true);
    let Some(first) = areas.first().map(|area| area.start) else { return Ok(()) };
    let mut end = first;
    while let Some(last) = areas.last() {
        end = last.vma.end;
        areas.iter().for_each(|area| sums.add(&area.sums));
        crate::base::sched::yield_if_needed();
        areas = areas_from(mm, end, true);
    }
    let line = out.0.len();
    write!(out, "{first:08x}-{end:08x} ---p 00000000 00:00 0");
    let blanks = NAME_COLUMN.saturating_sub(out.0.len() - line);
    out.blanks(blanks);
    out.bytes(b"[rollup]\n");
    sums.put(out);
    Ok(())
}
