//! The address space of a process: maps, smaps, smaps_rollup (proc(5)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::Result;

use super::super::File;
use super::super::pseudo::Text;
use super::super::special::{major, minor};
use super::process_dir::Subject;
use super::{fds, gone};
use crate::mm::{Backing, PAGE, Vma};

/// Column at which names begin in maps.
const NAME_COLUMN: usize = 73;

/// One area, as it was at the moment of asking.
struct Area {
    start: u64,
    vma: Vma,
    /// Pages of it that are in memory.
    resident: u64,
}

/// Areas copied at once: there may be so many that a copy of all finds no room.
const AREAS_AT_ONCE: usize = 32;

/// Calls `f` with each area. It gets copies: names need locks that may not be taken under the address
/// space's.
fn for_each_area(subject: &Subject, mut f: impl FnMut(Area)) -> Result<()> {
    let mm = subject.process.mm().map_err(|_| gone());
    let Ok(mm) = mm else { return Ok(()) };
    let mut from = 0;
    loop {
        let some: Vec<Area> = mm.with(|inner| {
            let area = |(&start, vma): (&u64, &Vma)| Area {
                start,
                vma: vma.clone(),
                resident: inner.table.count_mapped(start, vma.end),
            };
            inner.vmas.range(from..).take(AREAS_AT_ONCE).map(area).collect()
        });
        let Some(last) = some.last() else { return Ok(()) };
        from = last.vma.end;
        some.into_iter().for_each(&mut f);
        crate::sched::yield_if_needed();
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

pub(super) fn maps(subject: &Subject, out: &mut Text) -> Result<()> {
    for_each_area(subject, |area| put_header(out, &area))
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
        let kilobytes = area.resident * (PAGE / 1024);
        self.size += (area.vma.end - area.start) / 1024;
        self.resident += kilobytes;
        if matches!(area.vma.backing, Backing::Anonymous) {
            self.anonymous += kilobytes;
            self.private_dirty += kilobytes;
        } else if area.vma.shared || !area.vma.prot.write {
            self.shared_clean += kilobytes;
        } else {
            self.private_dirty += kilobytes;
        }
        self.locked += if area.vma.locked { kilobytes } else { 0 };
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

pub(super) fn smaps(subject: &Subject, out: &mut Text) -> Result<()> {
    for_each_area(subject, |area| {
        put_header(out, &area);
        let mut sums = Sums::default();
        sums.add(&area);
        sums.put(out, true);
        out.bytes(b"THPeligible:           0\nVmFlags:");
        let prot = area.vma.prot;
        let flags = [
            (prot.read, "rd"),
            (prot.write, "wr"),
            (prot.exec, "ex"),
            (area.vma.shared, "sh"),
            (true, "mr"),
            (area.vma.may_write, "mw"),
            (true, "me"),
            (area.vma.grows_down, "gd"),
            (area.vma.locked, "lo"),
            (area.vma.dont_fork, "dc"),
            (area.vma.wipe_on_fork, "wf"),
        ];
        flags.iter().filter(|(on, _)| *on).for_each(|(_, name)| write!(out, " {name}"));
        out.bytes(b" \n");
    })
}

pub(super) fn smaps_rollup(subject: &Subject, out: &mut Text) -> Result<()> {
    let mut sums = Sums::default();
    let mut ends = None;
    for_each_area(subject, |area| {
        sums.add(&area);
        ends = Some((ends.map_or(area.start, |(first, _)| first), area.vma.end));
    })?;
    let Some((first, last)) = ends else { return Ok(()) };
    let line = out.0.len();
    write!(out, "{first:08x}-{last:08x} ---p 00000000 00:00 0");
    let blanks = NAME_COLUMN.saturating_sub(out.0.len() - line);
    out.blanks(blanks);
    out.bytes(b"[rollup]\n");
    sums.put(out, false);
    Ok(())
}
