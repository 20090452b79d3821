//! Timers in the order of their deadlines: a heap of four branches, whose entries know their
//! places.
//!
//! Most timers are cancelled (timeouts that did not happen, alarms that are set anew), so leaving
//! from the middle has to be as cheap as coming; and most come with a later deadline than those
//! that are there, for which a heap takes one comparison. A tree of keys would search and move
//! among thousands for both.
//!
//! Entries lie in chunks of fixed size: whoever adds one holds a spin lock, and no more than a
//! chunk is ever allocated there, nor anything copied. Neighbour: `time` has one for each CPU.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Entries of a chunk.
const CHUNK: usize = 64;
/// Branches of the heap: fewer levels than with two, and the four lie in one cache line or two.
const BRANCHES: usize = 4;
/// Not in the heap; the end of the list of free slots.
const NONE: u32 = u32::MAX;

/// A vector that never moves what it holds.
struct Chunked<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
    len: usize,
}

impl<T> Chunked<T> {
    const fn new() -> Self {
        Chunked { chunks: Vec::new(), len: 0 }
    }

    #[inline]
    fn at(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    #[inline]
    fn at_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    /// Makes it one longer. The last entry has any value.
    fn grow(&mut self, empty: impl Fn() -> T) {
        if self.len == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new(core::array::from_fn(|_| empty())));
        }
        self.len += 1;
    }

    /// Makes it one shorter. One chunk too many is kept.
    fn shrink(&mut self) {
        self.len -= 1;
        if self.len + 2 * CHUNK <= self.chunks.len() * CHUNK {
            self.chunks.pop();
        }
    }
}

/// A place in the heap.
#[derive(Clone, Copy, Default)]
struct Place {
    deadline: u64,
    /// Of equal deadlines the one that came first goes first.
    sequence: u64,
    slot: u32,
}

impl Place {
    #[inline]
    fn is_before(&self, other: &Place) -> bool {
        (self.deadline, self.sequence) < (other.deadline, other.sequence)
    }
}

/// What an entry is found by.
struct Slot<T> {
    /// The sequence of the place that has it; it tells handles of former entries apart.
    sequence: u64,
    /// Its place in the heap; of a free slot the next free one.
    place: u32,
    value: Option<T>,
}

/// Finds an entry again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    slot: u32,
    sequence: u64,
}

/// See the module.
pub struct TimerQueue<T> {
    heap: Chunked<Place>,
    slots: Chunked<Slot<T>>,
    free: u32,
    sequence: u64,
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> TimerQueue<T> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        TimerQueue { heap: Chunked::new(), slots: Chunked::new(), free: NONE, sequence: 0 }
    }

    /// The earliest deadline.
    #[must_use]
    #[inline]
    pub fn first(&self) -> Option<u64> {
        (self.heap.len > 0).then(|| self.heap.at(0).deadline)
    }

    /// Enters a value.
    pub fn insert(&mut self, deadline: u64, value: T) -> Handle {
        self.sequence += 1;
        let sequence = self.sequence;
        if self.free == NONE {
            self.slots.grow(|| Slot { sequence: 0, place: NONE, value: None });
            self.free = (self.slots.len - 1) as u32;
            self.slots.at_mut(self.slots.len - 1).place = NONE;
        }
        let slot = self.free;
        let entry = self.slots.at_mut(slot as usize);
        self.free = entry.place;
        (entry.sequence, entry.value) = (sequence, Some(value));
        self.heap.grow(Place::default);
        self.rise(self.heap.len - 1, Place { deadline, sequence, slot });
        Handle { slot, sequence }
    }

    /// Takes an entry out, if it is there still.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        if handle.slot as usize >= self.slots.len {
            return None;
        }
        let entry = self.slots.at(handle.slot as usize);
        if entry.sequence != handle.sequence {
            return None;
        }
        Some(self.take(entry.place as usize))
    }

    /// Takes the first entry, if its deadline has come.
    pub fn pop_due(&mut self, now: u64) -> Option<T> {
        if self.first()? <= now { Some(self.take(0)) } else { None }
    }

    fn take(&mut self, at: usize) -> T {
        let gone = *self.heap.at(at);
        let last = *self.heap.at(self.heap.len - 1);
        self.heap.shrink();
        if at < self.heap.len {
            if last.is_before(&gone) { self.rise(at, last) } else { self.sink(at, last) }
        }
        let free = self.free;
        let entry = self.slots.at_mut(gone.slot as usize);
        (entry.sequence, entry.place) = (0, free);
        self.free = gone.slot;
        entry.value.take().expect("what is in the heap has a value")
    }

    /// Puts `place` at `at`, and tells its slot.
    #[inline]
    fn put(&mut self, at: usize, place: Place) {
        *self.heap.at_mut(at) = place;
        self.slots.at_mut(place.slot as usize).place = at as u32;
    }

    /// Puts `place`, which may belong further up, where it belongs.
    fn rise(&mut self, mut at: usize, place: Place) {
        while at > 0 {
            let up = (at - 1) / BRANCHES;
            let above = *self.heap.at(up);
            if !place.is_before(&above) {
                break;
            }
            self.put(at, above);
            at = up;
        }
        self.put(at, place);
    }

    /// Puts `place`, which may belong further down, where it belongs.
    fn sink(&mut self, mut at: usize, place: Place) {
        loop {
            let first = at * BRANCHES + 1;
            let end = (first + BRANCHES).min(self.heap.len);
            let Some(mut least) = (first < end).then_some(first) else { break };
            for other in first + 1..end {
                if self.heap.at(other).is_before(self.heap.at(least)) {
                    least = other;
                }
            }
            let below = *self.heap.at(least);
            if !below.is_before(&place) {
                break;
            }
            self.put(at, below);
            at = least;
        }
        self.put(at, place);
    }
}
