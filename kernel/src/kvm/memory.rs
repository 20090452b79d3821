//! A guest's memory: ranges of its VMM's address space (KVM_SET_USER_MEMORY_REGION).
//!
//! Readers take a map as it is; a change makes another map. A range that has left may still be read
//! or written through an old map for the length of one instruction: it is the VMM's own memory, and
//! it asked.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::kvm::{self, UserMemoryRegion};
use abi::{Errno, Result};
use machine::entry::PageFault;
use machine::memory::USER_END;
use machine::vmrun::{MAX_SLOTS, MapError, NestedSpace, Slot};
use virt::vcpu::Mapped;

use crate::base::user::UserPtr;
use crate::mm::{Mm, PAGE};

/// Guest-physical addresses end here.
const GUEST_END: u64 = 1 << 48;
/// Pages that are looked at around one that was missed.
const AROUND: u64 = 16;

/// Pages of a range that were written since the VMM last asked: a bit for each.
pub(super) struct DirtyLog(Vec<AtomicU64>);

impl DirtyLog {
    /// `is_set`: all pages count as written.
    fn new(bytes: u64, is_set: bool) -> Result<Arc<DirtyLog>> {
        let pages = bytes / PAGE;
        let words = pages.div_ceil(64) as usize;
        let mut bits = Vec::new();
        bits.try_reserve_exact(words).map_err(|_| Errno::ENOMEM)?;
        bits.resize_with(words, || AtomicU64::new(if is_set { u64::MAX } else { 0 }));
        if let (Some(last), left @ 1..) = (bits.last_mut(), pages % 64) {
            *last.get_mut() &= (1 << left) - 1;
        }
        Ok(Arc::new(DirtyLog(bits)))
    }

    fn mark(&self, page: u64) {
        if let Some(word) = self.0.get((page / 64) as usize) {
            word.fetch_or(1 << (page % 64), Ordering::SeqCst);
        }
    }

    fn words(&self, of: impl Fn(&AtomicU64) -> u64) -> Result<Vec<u64>> {
        let mut words = Vec::new();
        words.try_reserve_exact(self.0.len()).map_err(|_| Errno::ENOMEM)?;
        words.extend(self.0.iter().map(of));
        Ok(words)
    }

    /// What was written, which counts as clean from now on.
    pub(super) fn take(&self) -> Result<Vec<u64>> {
        self.words(|word| word.swap(0, Ordering::SeqCst))
    }

    /// What was written, which still counts as such.
    pub(super) fn look(&self) -> Result<Vec<u64>> {
        self.words(|word| word.load(Ordering::SeqCst))
    }

    /// Pages from word `first` on count as clean; the first page that did not before, and the one
    /// behind the last.
    pub(super) fn clear(&self, first: usize, words: &[u64]) -> Option<(u64, u64)> {
        let mut range: Option<(u64, u64)> = None;
        for (at, &clean) in (first..).zip(words) {
            let Some(word) = self.0.get(at) else { break };
            let cleared = word.fetch_and(!clean, Ordering::SeqCst) & clean;
            if cleared != 0 {
                let start = at as u64 * 64 + u64::from(cleared.trailing_zeros());
                let end = at as u64 * 64 + 64 - u64::from(cleared.leading_zeros());
                range = Some((range.map_or(start, |(start, _)| start), end));
            }
        }
        range
    }

    /// What was taken and could not be told.
    pub(super) fn put_back(&self, words: &[u64]) {
        for (word, &written) in self.0.iter().zip(words) {
            word.fetch_or(written, Ordering::SeqCst);
        }
    }
}

#[derive(Clone)]
pub(super) struct Region {
    /// The VMM's number.
    number: u32,
    slot: Slot,
    is_read_only: bool,
    dirty: Option<Arc<DirtyLog>>,
}

impl Region {
    pub(super) fn dirty(&self) -> Option<&Arc<DirtyLog>> {
        self.dirty.as_ref()
    }

    /// Guest-physical, first address and the one behind.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.slot.guest, self.slot.guest + self.slot.bytes)
    }

    fn mark(&self, guest: u64, len: u64) {
        if let Some(dirty) = &self.dirty {
            let first = (guest - self.slot.guest) / PAGE;
            let last = (guest - self.slot.guest + len.max(1) - 1) / PAGE;
            (first..=last).for_each(|page| dirty.mark(page));
        }
    }
}

/// All ranges of one guest.
#[derive(Clone, Default)]
pub(super) struct Map {
    regions: Vec<Region>,
}

impl Map {
    fn find(&self, guest: u64) -> Option<&Region> {
        let contains = |r: &&Region| guest.wrapping_sub(r.slot.guest) < r.slot.bytes;
        self.regions.iter().find(contains)
    }

    /// By the VMM's number.
    pub(super) fn by_number(&self, number: u32) -> Option<&Region> {
        self.regions.iter().find(|region| region.number == number)
    }

    /// The range and user address where all of `[guest, guest + len)` is.
    fn resolve(&self, guest: u64, len: usize) -> Option<(&Region, u64)> {
        let region = self.find(guest)?;
        let offset = guest - region.slot.guest;
        (region.slot.bytes - offset >= len as u64).then_some((region, region.slot.user + offset))
    }

    /// Reads guest memory of the running program's; false if it is none.
    pub(super) fn read(&self, guest: u64, into: &mut [u8]) -> bool {
        let found = self.resolve(guest, into.len());
        found.is_some_and(|(_, user)| UserPtr::<u8>::new(user).read_bytes(into).is_ok())
    }

    /// Writes guest memory of the running program's; false if it is none, or read-only.
    pub(super) fn write(&self, guest: u64, from: &[u8]) -> bool {
        let Some((region, user)) = self.resolve(guest, from.len()) else { return false };
        let done = !region.is_read_only && UserPtr::<u8>::new(user).write_bytes(from).is_ok();
        if done {
            region.mark(guest, from.len() as u64);
        }
        done
    }

    /// A CPU that still had an older map has written here: a log that has begun meanwhile tells it.
    pub(super) fn written_by_old(&self, guest: u64, len: u64) {
        if let Some(region) = self.find(guest) {
            region.mark(guest, len);
        }
    }

    /// A CPU that still had an older map has mapped a page, and its neighbours: where a log has
    /// begun meanwhile, they may be written only once it knows.
    pub(super) fn mapped_by_old(&self, nested: &NestedSpace, guest: u64) {
        let Some(region) = self.find(guest).filter(|region| region.dirty.is_some()) else { return };
        let (start, end) = region.range();
        let first = guest & !(AROUND * PAGE - 1);
        let (first, last) = (first.max(start), (first + AROUND * PAGE).min(end));
        nested.write_protect(first, last);
        // Another CPU may have written in between.
        region.mark(first, last - first);
    }

    /// Brings a page in and lets the guest reach it.
    pub(super) fn map(&self, mm: &Mm, nested: &NestedSpace, guest: u64, write: bool) -> Mapped {
        let Some(region) = self.find(guest) else { return Mapped::Device };
        if write && region.is_read_only {
            return Mapped::Device;
        }
        let guest = guest & !(PAGE - 1);
        let address = guest - region.slot.guest + region.slot.user;
        let fault = PageFault::by_kernel(address, write);
        loop {
            // Pages that are clean must be missed when they are written.
            let may_write = !region.is_read_only && (write || region.dirty.is_none());
            let mapped = mm.with(|inner| {
                inner.fault(fault)?;
                let done = map_page(nested, &inner.table, guest, may_write, write);
                if done.is_ok() && region.dirty.is_none() {
                    map_around(region, nested, &inner.table, guest);
                }
                done
            });
            match mapped {
                Ok(()) => break,
                Err(Errno::ENOMEM) if crate::base::reserve::relieve() => {}
                Err(_) => return Mapped::Failed,
            }
        }
        // After the page can be written, so that a log taken in between tells it the next time.
        if write {
            region.mark(guest, 1);
        }
        Mapped::Memory
    }
}

fn map_page(
    nested: &NestedSpace,
    table: &machine::memory::PageTable,
    guest: u64,
    may_write: bool,
    must_write: bool,
) -> Result<()> {
    let convert = |error| match error {
        MapError::NotMapped => Errno::EFAULT,
        MapError::NoMemory => Errno::ENOMEM,
    };
    if may_write {
        match nested.map(table, guest, true) {
            Err(MapError::NotMapped) if !must_write => {}
            done => return done.map_err(convert),
        }
    }
    nested.map(table, guest, false).map_err(convert)
}

/// Maps those neighbours that the VMM's table has; spares their exits.
fn map_around(
    region: &Region,
    nested: &NestedSpace,
    table: &machine::memory::PageTable,
    guest: u64,
) {
    let first = guest & !(AROUND * PAGE - 1);
    for page in (first..first + AROUND * PAGE).step_by(PAGE as usize) {
        let (start, end) = region.range();
        if page != guest && (start..end).contains(&page) {
            // What is not there, or is not the guest's, is missed when it is used.
            let _ = nested
                .map(table, page, !region.is_read_only)
                .or_else(|_| nested.map(table, page, false));
        }
    }
}

fn check(region: &UserMemoryRegion) -> Result<()> {
    let UserMemoryRegion { slot, flags, guest_phys_addr, memory_size, userspace_addr } = *region;
    let aligned = (guest_phys_addr | memory_size | userspace_addr).is_multiple_of(PAGE);
    let fits = memory_size <= USER_END
        && userspace_addr <= USER_END - memory_size
        && guest_phys_addr <= GUEST_END - memory_size;
    let known = flags & !(kvm::MEM_LOG_DIRTY_PAGES | kvm::MEM_READONLY) == 0;
    if aligned && fits && known && (slot as usize) < MAX_SLOTS {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// The map after KVM_SET_USER_MEMORY_REGION, and the nested tables that follow it.
/// `set_at_first`: a log begins with all pages written.
pub(super) fn change(
    old: &Map,
    nested: &NestedSpace,
    wanted: &UserMemoryRegion,
    set_at_first: bool,
) -> Result<Map> {
    check(wanted)?;
    let at = old.regions.iter().position(|region| region.number == wanted.slot);
    let mut map = old.clone();
    if wanted.memory_size == 0 {
        map.regions.remove(at.ok_or(Errno::EINVAL)?);
        return apply(map, nested);
    }
    let slot = Slot {
        guest: wanted.guest_phys_addr,
        user: wanted.userspace_addr,
        bytes: wanted.memory_size,
    };
    let overlaps = |r: &Region| {
        r.number != wanted.slot
            && slot.guest < r.slot.guest + r.slot.bytes
            && r.slot.guest < slot.guest + slot.bytes
    };
    let is_read_only = wanted.flags & kvm::MEM_READONLY != 0;
    let logs = wanted.flags & kvm::MEM_LOG_DIRTY_PAGES != 0;
    if let Some(region) = at.map(|at| &mut map.regions[at]) {
        let is_same = region.slot.user == slot.user && region.slot.bytes == slot.bytes;
        if !is_same || region.is_read_only != is_read_only {
            return Err(Errno::EINVAL);
        }
        let moves = region.slot.guest != slot.guest;
        region.slot = slot;
        if !logs {
            region.dirty = None;
        } else if region.dirty.is_none() {
            region.dirty = Some(DirtyLog::new(slot.bytes, set_at_first)?);
        }
        if !moves {
            // Only the log has changed: the caller takes the right to write away.
            return Ok(map);
        }
    } else {
        let dirty = if logs { Some(DirtyLog::new(slot.bytes, set_at_first)?) } else { None };
        map.regions.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        map.regions.push(Region { number: wanted.slot, slot, is_read_only, dirty });
    }
    if map.regions.iter().any(overlaps) {
        return Err(Errno::EEXIST);
    }
    apply(map, nested)
}

fn apply(map: Map, nested: &NestedSpace) -> Result<Map> {
    let slots = map.regions.iter().map(|region| region.slot).collect();
    nested.set_slots(slots).map_err(|_| Errno::ENOMEM)?;
    Ok(map)
}
