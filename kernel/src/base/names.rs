//! Names as keys: a hash that nobody outside can steer, a comparison, and a map.
//!
//! Why not a tree of names: each step of a search would compare two strings, with a call and a loop
//! of bytes, and a directory of a hundred thousand names is seventeen such steps deep. Numbers
//! compare in one instruction, and the name itself is looked at once.
//!
//! Who gives the names is a program, and may look for names of equal hash. The hash is keyed with a
//! secret of the boot, and each step mixes by a multiplication of 64 by 64 bits of which both
//! halves count, so that no difference between two names is known to vanish whatever the key.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use machine::sync::Once;

/// The two halves of the secret; the second is odd.
static KEY: Once<[u64; 2]> = Once::new();

#[cold]
fn make_key() -> [u64; 2] {
    let mut bytes = [0; 16];
    super::random::fill(&mut bytes);
    let word = |at: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(half)
    };
    [word(0), word(8) | 1]
}

#[inline(always)]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

/// Up to eight bytes as a number, by at most two loads. Names of one length that differ give
/// different numbers.
#[inline(always)]
fn short_word(name: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last));
    }
    match name {
        [] => 0,
        [first, .., last] => {
            let middle = name[name.len() / 2];
            u64::from(*first) << 16 | u64::from(middle) << 8 | u64::from(*last)
        }
        [only] => u64::from(*only),
    }
}

/// The hash of a name; `seed` tells maps apart that are kept in one.
#[inline]
#[must_use]
pub fn hash(seed: u64, name: &[u8]) -> u64 {
    let [start, factor] = *KEY.call_once(make_key);
    // The length goes in by a step of its own: a word takes all bits.
    let mut state = fold(seed ^ start ^ (name.len() as u64) << 48, factor);
    if name.len() > TAIL {
        // The last word overlaps the one before, unless the length is a multiple of eight.
        for word in name[..name.len() - 1].as_chunks::<TAIL>().0 {
            state = fold(state ^ u64::from_le_bytes(*word), factor);
        }
    }
    fold(state ^ tail(name), factor)
}

/// Bytes of a [`tail`].
const TAIL: usize = 8;

/// The last bytes of a name as a number: of one that has no more, all. It is another one for names
/// of one length that differ in them.
#[inline(always)]
#[must_use]
pub fn tail(name: &[u8]) -> u64 {
    name.last_chunk::<TAIL>().map_or_else(|| short_word(name), |last| u64::from_le_bytes(*last))
}

/// Whether two names of one length and one tail are the same.
#[inline(always)]
#[must_use]
pub fn same_before_tail(one: &[u8], other: &[u8]) -> bool {
    let (words, others) = (one.as_chunks::<TAIL>().0, other.as_chunks::<TAIL>().0);
    one.len() <= TAIL || words.iter().zip(others).all(|(word, other)| word == other)
}

/// Where a byte stands first: without a call, and eight bytes at a time.
#[inline]
#[must_use]
pub fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = LOW << 7;
    let pattern = u64::from(byte) * LOW;
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let differs = u64::from_le_bytes(*word) ^ pattern;
        // The lowest bit that is set is that of the first byte of zero; others may be wrong.
        let zeros = differs.wrapping_sub(LOW) & !differs & HIGH;
        if zeros != 0 {
            return Some(at * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&other| other == byte)?;
    Some(words.len() * 8 + at)
}

/// Whether two names are the same: without a call, for they are short.
#[inline]
#[must_use]
pub fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && tail(one) == tail(other) && same_before_tail(one, other)
}

/// A map from names, which the values carry themselves. Nothing here locks.
pub struct NameMap<V> {
    by_hash: BTreeMap<u64, V>,
    /// Those whose hash another name had when they came: as good as never one.
    others: Vec<V>,
}

/// What has a name.
pub trait Named {
    /// It.
    fn name(&self) -> &[u8];
}

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        NameMap { by_hash: BTreeMap::new(), others: Vec::new() }
    }
}

impl<V: Named> NameMap<V> {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty() && self.others.is_empty()
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_hash.len() + self.others.len()
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&V> {
        self.get_hashed(hash(0, name), name)
    }

    /// Enters a value, whose name has none.
    pub fn insert(&mut self, value: V) {
        self.insert_hashed(hash(0, value.name()), value);
    }

    /// Takes the value of a name out.
    pub fn remove(&mut self, name: &[u8]) -> Option<V> {
        self.remove_hashed(hash(0, name), name)
    }

    /// All values, in no order.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.by_hash.into_values().chain(self.others)
    }

    /// As [`NameMap::get`], for who knows the hash.
    #[must_use]
    pub fn get_hashed(&self, hash: u64, name: &[u8]) -> Option<&V> {
        match self.by_hash.get(&hash) {
            Some(value) if same(value.name(), name) => Some(value),
            _ => self.others.iter().find(|value| same(value.name(), name)),
        }
    }

    /// As [`NameMap::insert`], for who knows the hash.
    pub fn insert_hashed(&mut self, hash: u64, value: V) {
        match self.by_hash.entry(hash) {
            Entry::Vacant(place) => {
                place.insert(value);
            }
            Entry::Occupied(_) => self.others.push(value),
        }
    }

    /// As [`NameMap::remove`], for who knows the hash.
    pub fn remove_hashed(&mut self, hash: u64, name: &[u8]) -> Option<V> {
        if let Entry::Occupied(place) = self.by_hash.entry(hash)
            && same(place.get().name(), name)
        {
            return Some(place.remove());
        }
        let at = self.others.iter().position(|value| same(value.name(), name))?;
        Some(self.others.swap_remove(at))
    }
}
