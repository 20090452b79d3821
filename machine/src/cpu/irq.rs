//! Device interrupts: vectors given out at boot, handlers that only ever note and wake.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;

use crate::cpu::MAX_CPUS;
use crate::cpu::sync::Once;

/// First vector for devices; they end below the APIC's own.
const FIRST: u8 = 0x30;
const COUNT: usize = 0xa0;

pub(crate) type Handler = Box<dyn Fn() + Send + Sync>;

struct Slot {
    handler: Once<Handler>,
    /// Taken so far, by CPU.
    counts: [AtomicU64; MAX_CPUS],
}

static SLOTS: [Slot; COUNT] =
    [const { Slot { handler: Once::new(), counts: [const { AtomicU64::new(0) }; MAX_CPUS] } };
        COUNT];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Gives out a vector whose interrupts call `handler`, on whichever CPU takes them, with interrupts
/// masked. The handler must not sleep. None if all vectors are taken.
pub(crate) fn allocate(handler: Handler) -> Option<u8> {
    let slot = NEXT.fetch_add(1, Ordering::Relaxed);
    SLOTS.get(slot)?.handler.call_once(|| handler);
    Some(FIRST + slot as u8)
}

pub(crate) fn dispatch(vector: u8) {
    let Some(slot) = SLOTS.get(usize::from(vector).wrapping_sub(usize::from(FIRST))) else {
        return;
    };
    slot.counts[crate::cpu::percpu::cpu_id()].fetch_add(1, Ordering::Relaxed);
    if let Some(handler) = slot.handler.get() {
        handler();
    }
}

/// Interrupts taken so far, for each device vector given out, by CPU.
pub fn counts() -> impl Iterator<Item = (u8, [u64; MAX_CPUS])> {
    let given = NEXT.load(Ordering::Relaxed).min(COUNT);
    let by_cpu = |slot: &Slot| slot.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    SLOTS[..given].iter().enumerate().map(move |(i, slot)| (FIRST + i as u8, by_cpu(slot)))
}
