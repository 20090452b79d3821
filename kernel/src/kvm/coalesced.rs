//! Writes to devices that the VMM need not know of at once (KVM_REGISTER_COALESCED_MMIO): they go
//! into a ring that the VMM maps, and are read there at its next exit.
//!
//! The VMM owns the page, and may write what it wants: both ends are checked at each use, and one
//! that makes no sense is a ring that is full.
//!
//! Locks: the zones', then none; the ring's end is moved under it.

use alloc::vec::Vec;

use abi::kvm::{CoalescedEntry, CoalescedRing, CoalescedZone};
use abi::{Errno, Result};
use machine::frame::{Frame, PAGE_SIZE};
use machine::sync::SpinLock;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Most zones of one guest.
const ZONES_MAX: usize = 1000;
/// Entries of the ring; one is always free.
const ENTRIES: u32 =
    ((PAGE_SIZE - size_of::<CoalescedRing>()) / size_of::<CoalescedEntry>()) as u32;

/// See the module.
pub(super) struct Coalesced {
    zones: SpinLock<Vec<CoalescedZone>>,
    pub(super) ring: Frame,
}

impl Coalesced {
    pub(super) fn new() -> Result<Coalesced> {
        Ok(Coalesced { zones: SpinLock::default(), ring: crate::base::reserve::alloc_zeroed()? })
    }

    /// KVM_REGISTER_COALESCED_MMIO.
    pub(super) fn register(&self, zone: CoalescedZone) -> Result<u64> {
        if zone.pio > 1 {
            return Err(Errno::EINVAL);
        }
        let mut zones = self.zones.lock();
        if zones.len() == ZONES_MAX {
            return Err(Errno::ENOSPC);
        }
        zones.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        zones.push(zone);
        Ok(0)
    }

    /// KVM_UNREGISTER_COALESCED_MMIO: the zones that lie in this one.
    pub(super) fn unregister(&self, outer: CoalescedZone) -> Result<u64> {
        if outer.pio > 1 {
            return Err(Errno::EINVAL);
        }
        let bytes = u64::from(outer.size);
        let lies_in = |zone: &CoalescedZone| {
            zone.pio == outer.pio && is_within(outer.addr, bytes, zone.addr, zone.size.into())
        };
        self.zones.lock().retain(|zone| !lies_in(zone));
        Ok(0)
    }

    /// Whether the write has been left in the ring.
    pub(super) fn write(&self, is_port: bool, address: u64, from: &[u8]) -> bool {
        let zones = self.zones.lock();
        let is_meant = |zone: &CoalescedZone| {
            (zone.pio == 1) == is_port
                && is_within(zone.addr, zone.size.into(), address, from.len() as u64)
        };
        if from.len() > 8 || !zones.iter().any(is_meant) {
            return false;
        }
        let mut ends = [0; size_of::<CoalescedRing>()];
        self.ring.read(0, &mut ends);
        let Ok(ends) = CoalescedRing::read_from_bytes(&ends) else { return false };
        let next = (ends.last.wrapping_add(1)) % ENTRIES;
        if ends.last >= ENTRIES || next == ends.first {
            return false;
        }
        let (len, pio) = (from.len() as u32, u32::from(is_port));
        let mut entry = CoalescedEntry { phys_addr: address, len, pio, data: [0; 8] };
        entry.data[..from.len()].copy_from_slice(from);
        let at = size_of::<CoalescedRing>() + ends.last as usize * size_of::<CoalescedEntry>();
        self.ring.write(at, entry.as_bytes());
        // Stores are seen in their order (SDM 3A, 8.2.2), so the entry is there before its end.
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        self.ring.write(core::mem::offset_of!(CoalescedRing, last), next.as_bytes());
        true
    }
}

/// Whether `[at, at + len)` lies in `[start, start + bytes)`.
fn is_within(start: u64, bytes: u64, at: u64, len: u64) -> bool {
    at.checked_sub(start)
        .is_some_and(|from| bytes.checked_sub(from).is_some_and(|left| len <= left))
}
