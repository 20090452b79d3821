//! The driver's own record of a split virtqueue (virtio 1.2, 2.7): which descriptors are free, how
//! chains go on, and what is in flight with the device.
//!
//! Why it is hard: the device can write every part of the shared ring at any time, so nothing may
//! be decided by what the ring says. All that comes from a device is a pair of numbers, an id and a
//! length; [`Chains::complete`] checks both against this record.
//!
//! Here is no shared memory and no hardware, so the rules are tested on the host; the ring itself
//! is in `machine/src/device/virtio/queue.rs`.
#![no_std]

extern crate alloc;

use alloc::vec::Vec;

/// End of a list of descriptors.
const NONE: u16 = u16::MAX;

/// The record of one queue, with a `T` for each chain in flight.
#[derive(Debug)]
pub struct Chains<T> {
    /// The descriptor after each one, in its chain or in the free list.
    links: Vec<u16>,
    free_head: u16,
    free_count: u16,
    /// By the head of the chain: what it carries, and how many bytes the device may write.
    in_flight: Vec<Option<(T, usize)>>,
}

impl<T> Chains<T> {
    /// A record of `size` free descriptors.
    ///
    /// # Panics
    /// If `size` is 65,535, which is no power of two and so no size of a queue.
    #[must_use]
    pub fn new(size: u16) -> Self {
        assert!(size != NONE);
        Chains {
            links: (1..size).chain([NONE]).take(usize::from(size)).collect(),
            free_head: if size == 0 { NONE } else { 0 },
            free_count: size,
            in_flight: (0..size).map(|_| None).collect(),
        }
    }

    /// Descriptors that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        usize::from(self.free_count)
    }

    /// Chains in flight.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.in_flight.iter().flatten().count()
    }

    /// Takes `count` descriptors for a chain that carries `value`, into which the device may write
    /// `room` bytes. Calls `descriptor` for each with its index and the index after it, if any.
    /// Returns the head; gives the value back if so many are not free, or `count` is 0.
    pub fn submit(
        &mut self,
        count: usize,
        value: T,
        room: usize,
        mut descriptor: impl FnMut(u16, Option<u16>),
    ) -> Result<u16, T> {
        if count == 0 || count > self.free() {
            return Err(value);
        }
        let head = self.free_head;
        let mut index = head;
        for left in (0..count).rev() {
            let next = self.links[usize::from(index)];
            descriptor(index, (left > 0).then_some(next));
            if left == 0 {
                self.links[usize::from(index)] = NONE;
                self.free_head = next;
            }
            index = next;
        }
        // `count` is at most `free_count`, so it fits.
        self.free_count -= count as u16;
        self.in_flight[usize::from(head)] = Some((value, room));
        Ok(head)
    }

    /// The device says that it is done with the chain `id` and wrote `written` bytes. The value and
    /// its descriptors come back; `None`, and nothing changes, if no such chain is in flight or it
    /// has not that much room.
    pub fn complete(&mut self, id: u32, written: u32) -> Option<(u16, T, usize)> {
        let head = u16::try_from(id).ok()?;
        let slot = self.in_flight.get_mut(usize::from(head))?;
        let room = slot.as_ref()?.1;
        let written = usize::try_from(written).ok().filter(|&written| written <= room)?;
        let (value, _) = slot.take()?;
        let mut last = head;
        let mut count = 1;
        // The links are this record's own, so the walk ends.
        while self.links[usize::from(last)] != NONE {
            last = self.links[usize::from(last)];
            count += 1;
        }
        self.links[usize::from(last)] = self.free_head;
        self.free_head = head;
        self.free_count += count;
        Some((head, value, written))
    }

    /// Takes out everything in flight, for a device that is given up. The record is of no use then.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.in_flight.iter_mut().filter_map(|slot| slot.take().map(|(value, _)| value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_goes_through_distinct_free_descriptors() {
        let mut chains = Chains::new(4);
        let mut seen = Vec::new();
        let head = chains.submit(3, 'a', 10, |index, next| seen.push((index, next)));
        assert_eq!(head, Ok(0));
        assert_eq!(seen, [(0, Some(1)), (1, Some(2)), (2, None)]);
        assert_eq!((chains.free(), chains.pending()), (1, 1));
    }

    #[test]
    fn what_does_not_fit_comes_back() {
        let mut chains = Chains::new(2);
        assert_eq!(chains.submit(3, 'a', 0, |_, _| ()), Err('a'));
        assert_eq!(chains.submit(0, 'b', 0, |_, _| ()), Err('b'));
        assert_eq!((chains.free(), chains.pending()), (2, 0));
    }

    #[test]
    fn a_device_cannot_complete_what_is_not_in_flight() {
        let mut chains = Chains::new(4);
        assert_eq!(chains.submit(2, 'a', 8, |_, _| ()), Ok(0));
        // Never given, inside a chain, beyond the queue, beyond 16 bits.
        for id in [2, 1, 4, 0xffff, 0x1_0000, u32::MAX] {
            assert_eq!(chains.complete(id, 0), None);
        }
        assert_eq!(chains.complete(0, 8), Some((0, 'a', 8)));
        assert_eq!(chains.complete(0, 8), None);
        assert_eq!(chains.free(), 4);
    }

    #[test]
    fn a_device_cannot_write_more_than_it_was_given() {
        let mut chains = Chains::new(4);
        assert_eq!(chains.submit(1, 'a', 8, |_, _| ()), Ok(0));
        assert_eq!(chains.complete(0, 9), None);
        assert_eq!(chains.complete(0, u32::MAX), None);
        assert_eq!(chains.pending(), 1);
    }

    proptest! {
        /// Whatever a device answers, in whatever order: descriptors in use never overlap, none is
        /// lost, and each value comes back once at most.
        #[test]
        fn a_hostile_device_breaks_nothing(
            steps in prop::collection::vec((any::<bool>(), 0..6usize, 0..20u32, 0..40u32), 0..300),
        ) {
            let mut chains = Chains::new(16);
            let mut model: Vec<(u16, usize, Vec<u16>)> = Vec::new();
            for (number, (submit, count, id, written)) in steps.into_iter().enumerate() {
                if submit {
                    let mut used = Vec::new();
                    let result = chains.submit(count, number, 20, |index, _| used.push(index));
                    let in_use: usize = model.iter().map(|(_, _, used)| used.len()).sum();
                    prop_assert_eq!(result.is_ok(), count > 0 && count <= 16 - in_use);
                    if let Ok(head) = result {
                        prop_assert_eq!(used[0], head);
                        for index in &used {
                            prop_assert!(model.iter().all(|(_, _, other)| !other.contains(index)));
                        }
                        model.push((head, number, used));
                    }
                } else {
                    let at = model.iter().position(|(head, _, _)| u32::from(*head) == id);
                    let expected = at.filter(|_| written <= 20).map(|at| model.remove(at));
                    let result = chains.complete(id, written).map(|(head, value, _)| (head, value));
                    prop_assert_eq!(result, expected.map(|(head, value, _)| (head, value)));
                }
                let in_use: usize = model.iter().map(|(_, _, used)| used.len()).sum();
                prop_assert_eq!(chains.free() + in_use, 16);
                prop_assert_eq!(chains.pending(), model.len());
            }
        }
    }
}
