//! The address space of a process: maps, smaps, smaps_rollup (proc(5)).
//!
//! A process may have tens of thousands of areas, so the texts are made piece by piece: the
//! position of a piece is the address from which it tells. They are about the address space that the
//! process had when they were opened: later it may be another program's.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::{Errno, Result};

use super::fds;
use super::process_dir::Subject;
use crate::fs::pseudo::{Content, Text};
use crate::mm::{Backing, Mm, PAGE, Vma, VmaFlags};
use crate::vfs::File;
use crate::vfs::chrdev::{major, minor};

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
    /// Pages of it that are in memory.
    resident: u64,
}

/// A copy of the first areas from an address on: names need locks that may not be taken under the
/// address space's.
fn areas_from(mm: &Mm, address: u64) -> Vec<Area> {
    mm.with(|inner| {
        let area = |(&start, vma): (&u64, &Vma)| Area {
            start,
            vma: vma.clone(),
            resident: inner.table.count_mapped(start, vma.end),
        };
        inner.vmas.range(address..).take(AREAS_AT_ONCE).map(area).collect()
    })
}

/// Tells about one area.
pub(super) type ShowArea = fn(&Area, &mut Text);

/// A file about all areas, in order.
struct Areas {
    subject: Subject,
    space: Weak<Mm>,
    show: ShowArea,
}

/// Binds a file about areas to the address space that the process has now.
pub(super) fn areas(subject: Subject, show: ShowArea) -> Result<Box<dyn Content>> {
    Ok(Box::new(Areas { space: subject.space(), subject, show }))
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
        let areas = areas_from(&mm, position);
        for area in &areas {
            (self.show)(area, out);
            if out.0.len() >= PIECE_BYTES {
                return Ok(Some(area.vma.end));
            }
        }
        let is_end = areas.len() < AREAS_AT_ONCE;
        Ok(areas.last().filter(|_| !is_end).map(|area| area.vma.end))
    }
}

fn file_of(vma: &Vma) -> Option<&Arc<File>> {
    match &vma.backing {
        Backing::File { file, .. } => file.as_ref(),
        _ => None,
    }
}

fn put_header(out: &mut Text, area: &Area) {
    let vma = &area.vma;
    let line = out.0.len();
    let flag = |on: bool, letter: char| if on { letter } else { '-' };
    write!(
        out,
        "{:08x}-{:08x} {}{}{}{}",
        area.start,
        vma.end,
        flag(vma.prot.read, 'r'),
        flag(vma.prot.write, 'w'),
        flag(vma.prot.exec, 'x'),
        if vma.shared { 's' } else { 'p' },
    );
    let (mut offset, mut device, mut number) = (0, 0, 0);
    if let (Backing::File { page_offset, .. }, Some(file)) = (&vma.backing, file_of(vma)) {
        offset = page_offset * PAGE;
        if let Ok(metadata) = file.ops().inode().metadata() {
            (device, number) = (metadata.device, metadata.inode);
        }
    }
    write!(out, " {offset:08x} {:02x}:{:02x} {number}", major(device), minor(device));
    let name = match (&vma.backing, file_of(vma)) {
        (_, Some(file)) => Some(fds::file_text(file)),
        (Backing::Special { name, .. }, _) => Some(name.as_bytes().to_vec()),
        (Backing::File { .. }, None) => Some(b"/dev/zero (deleted)".to_vec()),
        _ => vma.name.map(|name| name.as_bytes().to_vec()),
    };
    if let Some(name) = name {
        let width = out.0.len() - line;
        let blanks = NAME_COLUMN.saturating_sub(width).max(1);
        out.blanks(blanks);
        for &byte in &name {
            // A name may hold anything; a line must stay one line.
            if byte == b'\n' { out.bytes(b"\\012") } else { out.bytes(&[byte]) }
        }
    }
    out.bytes(b"\n");
}

/// A line of maps.
pub(super) fn map(area: &Area, out: &mut Text) {
    put_header(out, area);
}

/// Kilobytes that count for an area: resident ones, divided as smaps divides them. Pages are not
/// tracked one by one, so all of a private area counts as private.
#[derive(Default)]
struct Sums {
    size: u64,
    resident: u64,
    shared_clean: u64,
    private_dirty: u64,
    anonymous: u64,
    locked: u64,
}

impl Sums {
    fn add(&mut self, area: &Area) {
        let vma = &area.vma;
        let kilobytes = area.resident * (PAGE / 1024);
        self.size += (vma.end - area.start) / 1024;
        self.resident += kilobytes;
        if matches!(vma.backing, Backing::Anonymous) {
            self.anonymous += kilobytes;
            self.private_dirty += kilobytes;
        } else if vma.shared || !vma.prot.write {
            self.shared_clean += kilobytes;
        } else {
            self.private_dirty += kilobytes;
        }
        self.locked += if vma.flags.contains(VmaFlags::LOCKED) { kilobytes } else { 0 };
    }

    fn put(&self, out: &mut Text, with_size: bool) {
        if with_size {
            put_kilobytes(out, "Size", self.size);
            put_kilobytes(out, "KernelPageSize", PAGE / 1024);
            put_kilobytes(out, "MMUPageSize", PAGE / 1024);
        }
        let lines = [
            ("Rss", self.resident),
            ("Pss", self.resident),
            ("Pss_Dirty", self.private_dirty),
            ("Shared_Clean", self.shared_clean),
            ("Shared_Dirty", 0),
            ("Private_Clean", 0),
            ("Private_Dirty", self.private_dirty),
            ("Referenced", self.resident),
            ("Anonymous", self.anonymous),
            ("KSM", 0),
            ("LazyFree", 0),
            ("AnonHugePages", 0),
            ("ShmemPmdMapped", 0),
            ("FilePmdMapped", 0),
            ("Shared_Hugetlb", 0),
            ("Private_Hugetlb", 0),
            ("Swap", 0),
            ("SwapPss", 0),
            ("Locked", self.locked),
        ];
        lines.iter().for_each(|(name, value)| put_kilobytes(out, name, *value));
    }
}

fn put_kilobytes(out: &mut Text, name: &str, value: u64) {
    let width = 23usize.saturating_sub(name.len());
    writeln!(out, "{name}:{value:>width$} kB");
}

/// The lines of smaps for one area.
pub(super) fn smap(area: &Area, out: &mut Text) {
    put_header(out, area);
    let vma = &area.vma;
    let mut sums = Sums::default();
    sums.add(area);
    sums.put(out, true);
    out.bytes(b"THPeligible:           0\nVmFlags:");
    let has = |flag: VmaFlags| vma.flags.contains(flag);
    let flags = [
        (vma.prot.read, "rd"),
        (vma.prot.write, "wr"),
        (vma.prot.exec, "ex"),
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
        (has(VmaFlags::WIPE_ON_FORK), "wf"),
        (has(VmaFlags::DONT_DUMP), "dd"),
        (has(VmaFlags::HUGE), "hg"),
        (has(VmaFlags::NO_HUGE), "nh"),
        (has(VmaFlags::DROPPABLE), "dp"),
    ];
    flags.iter().filter(|(on, _)| *on).for_each(|(_, name)| write!(out, " {name}"));
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
    let mut areas = areas_from(mm, 0);
    let Some(first) = areas.first().map(|area| area.start) else { return Ok(()) };
    let mut end = first;
    while let Some(last) = areas.last() {
        end = last.vma.end;
        areas.iter().for_each(|area| sums.add(area));
        crate::base::sched::yield_if_needed();
        areas = areas_from(mm, end);
    }
    let line = out.0.len();
    write!(out, "{first:08x}-{end:08x} ---p 00000000 00:00 0");
    let blanks = NAME_COLUMN.saturating_sub(out.0.len() - line);
    out.blanks(blanks);
    out.bytes(b"[rollup]\n");
    sums.put(out, false);
    Ok(())
}
