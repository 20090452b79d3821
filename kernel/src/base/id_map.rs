//! A map from small numbers to values: processes by id, timers of a process.
//!
//! Numbers that are given out in order lie close together, so each step of a look-up takes six bits
//! of the number as the place in a table of 64: ten thousand processes are three steps, however
//! many came and went, where a tree of comparisons searches a node's keys at each level, and moves
//! its neighbours when one goes. A table that becomes empty leaves the tree; one of each kind is
//! kept for the next number that needs one, since a single child, or watch, that comes and goes
//! would else make and free tables each time.
//!
//! Nothing here locks. Neighbours: `process` and `process::timers` keep theirs in it.

use alloc::boxed::Box;

/// Bits of a number that choose a place in a table.
const BITS: u32 = 6;
/// Places of a table.
const PLACES: usize = 1 << BITS;

/// A table, and which of its places are taken.
struct Table<T> {
    used: u64,
    places: [Option<T>; PLACES],
}

#[expect(
    clippy::large_enum_variant,
    reason = "a node is boxed, and most hold values of eight bytes"
)]
enum Node<V> {
    Values(Table<V>),
    Tables(Table<Box<Node<V>>>),
}

/// See the module.
pub struct IdMap<V> {
    root: Option<Box<Node<V>>>,
    /// Levels of tables below the root.
    height: u32,
    len: usize,
    /// Empty tables, which the next numbers take.
    spare_values: Option<Box<Node<V>>>,
    spare_tables: Option<Box<Node<V>>>,
}

impl<T> Table<T> {
    const EMPTY: Table<T> = Table { used: 0, places: [const { None }; PLACES] };

    /// The taken places from `from` on.
    #[inline]
    fn used_from(&self, from: usize) -> u64 {
        self.used & u64::MAX << from
    }

    fn put(&mut self, at: usize, value: T) -> Option<T> {
        self.used |= 1 << at;
        self.places[at].replace(value)
    }

    fn take(&mut self, at: usize) -> Option<T> {
        self.used &= !(1 << at);
        self.places[at].take()
    }
}

/// The place of `id` in a table whose places stand for `1 << shift` numbers each.
#[inline]
fn place(id: u32, shift: u32) -> usize {
    (u64::from(id) >> shift) as usize % PLACES
}

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> IdMap<V> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        IdMap { root: None, height: 0, len: 0, spare_values: None, spare_tables: None }
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a tree of this height has a place for `id`.
    #[inline]
    fn has_place(&self, id: u32) -> bool {
        u64::from(id) >> (BITS * (self.height + 1)) == 0
    }

    /// The value of `id`.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u32) -> Option<&V> {
        if !self.has_place(id) {
            return None;
        }
        let mut node = self.root.as_deref()?;
        let mut shift = BITS * self.height;
        loop {
            match node {
                Node::Values(table) => return table.places[place(id, 0)].as_ref(),
                Node::Tables(table) => node = table.places[place(id, shift)].as_deref()?,
            }
            shift -= BITS;
        }
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut V> {
        if !self.has_place(id) {
            return None;
        }
        let mut node = self.root.as_deref_mut()?;
        let mut shift = BITS * self.height;
        loop {
            match node {
                Node::Values(table) => return table.places[place(id, 0)].as_mut(),
                Node::Tables(table) => node = table.places[place(id, shift)].as_deref_mut()?,
            }
            shift -= BITS;
        }
    }

    /// Enters a value; the one that was there.
    pub fn insert(&mut self, id: u32, value: V) -> Option<V> {
        let (table, len) = self.values_for(id);
        let old = table.put(place(id, 0), value);
        *len += usize::from(old.is_none());
        old
    }

    /// The value of `id`, made if there is none.
    pub fn get_or_insert_with(&mut self, id: u32, make: impl FnOnce() -> V) -> &mut V {
        let (table, len) = self.values_for(id);
        let at = place(id, 0);
        *len += usize::from(table.used >> at & 1 == 0);
        table.used |= 1 << at;
        table.places[at].get_or_insert_with(make)
    }

    /// The table that has, or shall have, the value of `id`; and the count of all values.
    fn values_for(&mut self, id: u32) -> (&mut Table<V>, &mut usize) {
        while !self.has_place(id) {
            self.height += 1;
            let Some(root) = self.root.take() else { continue };
            // Only a single table stays where it is when it becomes empty, one of values.
            if root.is_empty() {
                self.spare_values = Some(root);
            } else {
                let mut above = Node::of_level(self.height, &mut self.spare_tables);
                if let Node::Tables(table) = &mut *above {
                    table.put(0, root);
                }
                self.root = Some(above);
            }
        }
        let mut level = self.height;
        let (values, tables) = (&mut self.spare_values, &mut self.spare_tables);
        let mut make = |level| match level {
            0 => Node::of_level(0, values),
            _ => Node::of_level(level, tables),
        };
        let mut node = &mut **self.root.get_or_insert_with(|| make(level));
        loop {
            match node {
                Node::Values(table) => return (table, &mut self.len),
                Node::Tables(table) => {
                    let at = place(id, BITS * level);
                    level -= 1;
                    table.used |= 1 << at;
                    node = table.places[at].get_or_insert_with(|| make(level));
                }
            }
        }
    }

    /// Takes a value out.
    pub fn remove(&mut self, id: u32) -> Option<V> {
        if !self.has_place(id) {
            return None;
        }
        let mut node = self.root.as_deref_mut()?;
        let mut shift = BITS * self.height;
        let table = loop {
            match node {
                Node::Values(table) => break table,
                Node::Tables(table) => node = table.places[place(id, shift)].as_deref_mut()?,
            }
            shift -= BITS;
        };
        let removed = table.take(place(id, 0))?;
        let is_empty = table.used == 0;
        self.len -= 1;
        // The one table of a map of few small numbers stays where it is.
        if is_empty && self.height > 0 {
            self.free_empty(id);
        }
        Some(removed)
    }

    /// Takes the empty tables on the way to `id` out of the tree.
    fn free_empty(&mut self, id: u32) {
        let shift = BITS * self.height;
        let Some(root) = self.root.as_deref_mut() else { return };
        root.free_empty(id, shift, &mut |node| match &*node {
            Node::Values(_) => self.spare_values = Some(node),
            Node::Tables(_) => self.spare_tables = Some(node),
        });
        if self.len == 0 {
            (self.spare_tables, self.height) = (self.root.take(), 0);
        }
    }

    /// The first value whose number is `from` or above.
    #[must_use]
    pub fn first_from(&self, from: u32) -> Option<(u32, &V)> {
        if !self.has_place(from) {
            return None;
        }
        self.root.as_deref()?.first_from(from, BITS * self.height)
    }

    /// The values whose numbers are `from` or above, in order.
    pub fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &V)> {
        let mut next = Some(from);
        core::iter::from_fn(move || {
            let (id, value) = self.first_from(next?)?;
            next = id.checked_add(1);
            Some((id, value))
        })
    }

    /// The highest number that has a value.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        let (mut node, mut shift, mut id) = (self.root.as_deref()?, BITS * self.height, 0);
        loop {
            match node {
                Node::Values(table) => return Some(id | table.used.checked_ilog2()?),
                Node::Tables(table) => {
                    let at = table.used.checked_ilog2()?;
                    id |= at << shift;
                    node = table.places[at as usize].as_deref()?;
                    shift -= BITS;
                }
            }
        }
    }

    /// All values, in the order of their numbers.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter_from(0).map(|(_, value)| value)
    }
}

impl<V> Node<V> {
    /// An empty table of values (level 0) or of tables: `spare`, if there is one.
    fn of_level(level: u32, spare: &mut Option<Box<Node<V>>>) -> Box<Node<V>> {
        spare.take().unwrap_or_else(|| {
            Box::new(match level {
                0 => Node::Values(Table::EMPTY),
                _ => Node::Tables(Table::EMPTY),
            })
        })
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Values(table) => table.used == 0,
            Node::Tables(table) => table.used == 0,
        }
    }

    /// Gives `free` the empty tables below it on the way to `id`.
    fn free_empty(&mut self, id: u32, shift: u32, free: &mut impl FnMut(Box<Node<V>>)) {
        let Node::Tables(table) = self else { return };
        let at = place(id, shift);
        let Some(below) = table.places[at].as_deref_mut() else { return };
        below.free_empty(id, shift.saturating_sub(BITS), free);
        if below.is_empty()
            && let Some(below) = table.take(at)
        {
            free(below);
        }
    }

    fn first_from(&self, from: u32, shift: u32) -> Option<(u32, &V)> {
        let start = place(from, shift);
        // The number without this table's bits and those below.
        let base = (u64::from(from) >> (shift + BITS) << (shift + BITS)) as u32;
        match self {
            Node::Values(table) => {
                let at = table.used_from(start).trailing_zeros();
                let value = table.places.get(at as usize)?.as_ref()?;
                Some((base + at, value))
            }
            Node::Tables(table) => {
                let mut used = table.used_from(start);
                while used != 0 {
                    let at = used.trailing_zeros();
                    used &= used - 1;
                    let first = if at as usize == start { from } else { base + (at << shift) };
                    let below = table.places[at as usize].as_deref();
                    let found = below.and_then(|below| below.first_from(first, shift - BITS));
                    if found.is_some() {
                        return found;
                    }
                }
                None
            }
        }
    }
}
