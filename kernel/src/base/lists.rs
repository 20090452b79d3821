//! Lists whose members leave from any place at the same price: who waits on a queue, what watches a
//! file, what is ready in an epoll set.
//!
//! All lists of one [`Lists`] share a block of slots, and links are numbers of slots. A member is
//! known by its [`Place`], which whoever put it there keeps. Nothing here locks.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// Where a member is, from its entry to its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// That of no member.
    pub const NONE: Place = Place(u32::MAX);

    /// As a number, to be kept in an atomic one.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// From its number.
    #[must_use]
    pub const fn of_number(number: u32) -> Place {
        Place(number)
    }
}

/// So many slots are kept when the last member has gone.
const KEPT: usize = 16;

/// A member and its neighbours, or a free slot and the next one.
struct Slot<T> {
    value: Option<T>,
    before: Place,
    after: Place,
}

/// The first and the last member of a list.
#[derive(Clone, Copy)]
struct Ends {
    first: Place,
    last: Place,
}

/// `N` lists; see the module.
pub struct Lists<T, const N: usize> {
    slots: Vec<Slot<T>>,
    ends: [Ends; N],
    free: Place,
    len: u32,
}

impl<T, const N: usize> Default for Lists<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Lists<T, N> {
    /// Empty ones.
    #[must_use]
    pub const fn new() -> Self {
        const EMPTY: Ends = Ends { first: Place::NONE, last: Place::NONE };
        Lists { slots: Vec::new(), ends: [EMPTY; N], free: Place::NONE, len: 0 }
    }

    /// Members of all lists.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether all lists are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Members that there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Makes room for one more.
    pub fn try_reserve_one(&mut self) -> Result<(), TryReserveError> {
        if self.free == Place::NONE { self.slots.try_reserve(1) } else { Ok(()) }
    }

    /// Empty ones with room for so many.
    pub fn try_with_capacity(members: usize) -> Result<Self, TryReserveError> {
        let mut lists = Self::new();
        lists.slots.try_reserve_exact(members)?;
        Ok(lists)
    }

    /// Puts a member at the end of a list.
    #[inline]
    pub fn push_back(&mut self, list: usize, value: T) -> Place {
        let before = self.ends[list].last;
        let place = self.fill(Slot { value: Some(value), before, after: Place::NONE });
        self.ends[list].last = place;
        match self.slots.get_mut(before.0 as usize) {
            Some(before) => before.after = place,
            None => self.ends[list].first = place,
        }
        self.len += 1;
        place
    }

    /// Puts a member before all others of a list.
    pub fn push_front(&mut self, list: usize, value: T) -> Place {
        let after = self.ends[list].first;
        let place = self.fill(Slot { value: Some(value), before: Place::NONE, after });
        self.ends[list].first = place;
        match self.slots.get_mut(after.0 as usize) {
            Some(after) => after.before = place,
            None => self.ends[list].last = place,
        }
        self.len += 1;
        place
    }

    /// Where the next one that is put on a list will be.
    #[inline]
    pub fn next_place(&self) -> Place {
        if (self.free.0 as usize) < self.slots.len() {
            return self.free;
        }
        // 2^32 slots do not fit into memory.
        Place(self.slots.len() as u32)
    }

    #[inline]
    fn fill(&mut self, slot: Slot<T>) -> Place {
        let place = self.next_place();
        if let Some(free) = self.slots.get_mut(place.0 as usize) {
            self.free = free.after;
            *free = slot;
            place
        } else {
            self.slots.push(slot);
            place
        }
    }

    /// Takes a member out of the list that it is on. None if nobody is there.
    pub fn remove(&mut self, list: usize, place: Place) -> Option<T> {
        let slot = self.slots.get_mut(place.0 as usize)?;
        let value = slot.value.take()?;
        let (before, after) = (slot.before, slot.after);
        slot.after = self.free;
        self.free = place;
        match self.slots.get_mut(before.0 as usize) {
            Some(before) => before.after = after,
            None => self.ends[list].first = after,
        }
        match self.slots.get_mut(after.0 as usize) {
            Some(after) => after.before = before,
            None => self.ends[list].last = before,
        }
        self.len -= 1;
        Some(value)
    }

    /// Gives the room back that many members had, if there is none any more.
    pub fn shrink_if_empty(&mut self) {
        if self.len == 0 && self.slots.capacity() > KEPT {
            *self = Self::new();
        }
    }

    /// Takes out the first member of a list.
    pub fn pop_front(&mut self, list: usize) -> Option<T> {
        self.remove(list, self.ends[list].first)
    }

    /// The members of a list, in the order in which they came.
    pub fn iter(&self, list: usize) -> impl Iterator<Item = &T> {
        let mut next = self.ends[list].first;
        core::iter::from_fn(move || {
            let slot = self.slots.get(next.0 as usize)?;
            next = slot.after;
            slot.value.as_ref()
        })
    }
}
