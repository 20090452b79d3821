//! Ids that are given out on all CPUs at a time, and what is known by each.
//!
//! Why it is hard: who comes and goes on one CPU mostly has nothing to do with who does on another,
//! but a counter and a map would bring all together. So each CPU gives out ids from a block of its
//! own, and ids lie by blocks in shards with a lock each: what one CPU needs is in one shard, and
//! another CPU's in another.
//!
//! Nobody drops what may be a last reference with a shard locked: what is taken out is handed on.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use machine::cpu::MAX_CPUS;
use machine::percpu::PerCpu;
use machine::sync::ReadMostly;

use super::id_map::IdMap;

/// Ids that a CPU takes at once; as many as a table of an [`IdMap`] has places.
const BLOCK: u32 = 64;
/// Shards: twice as many as there can be CPUs, so that CPUs seldom meet in one.
const SHARDS: usize = 2 * MAX_CPUS;
/// No id.
const NONE: u32 = u32::MAX;

/// What is known by an id.
pub trait Entry {
    /// Whether it is nothing: the id is free then.
    fn is_unused(&self) -> bool;
}

/// A part of the ids, on cache lines of its own.
#[repr(align(128))]
struct Shard<V> {
    /// How many there are, for who looks through all shards.
    len: AtomicU32,
    ids: ReadMostly<IdMap<V>>,
}

/// See the module.
pub struct IdShards<V> {
    shards: [Shard<V>; SHARDS],
    /// The id that each CPU tries next; at the begin of a block: it needs one.
    next: PerCpu<AtomicU32>,
    /// The block that the next CPU takes.
    next_block: AtomicU32,
    /// The highest id that is given out, and the one that comes after it.
    last: u32,
    first_again: u32,
}

/// The place of an id in its shard: those of a block lie together.
#[inline]
const fn place(id: u32) -> u32 {
    id / BLOCK / SHARDS as u32 * BLOCK + id % BLOCK
}

/// The id with this place.
const fn id_at(shard: usize, place: u32) -> u32 {
    (place / BLOCK * SHARDS as u32 + shard as u32) * BLOCK + place % BLOCK
}

/// Each place is one id's, and those of a block lie together.
const _: () = {
    let mut id = 0;
    while id < 1 << 23 {
        let (block, first) = (id / BLOCK, id / BLOCK * BLOCK);
        assert!(id_at(block as usize % SHARDS, place(id)) == id);
        assert!(place(id) - place(first) == id - first);
        // Prime to all powers of two.
        id += 8191;
    }
};

impl<V: Entry + Sync> IdShards<V> {
    /// Empty ones, for ids from 1 to `last`, and then from about `first_again` on.
    pub const fn new(last: u32, first_again: u32) -> Self {
        IdShards {
            shards: [const { Shard { len: AtomicU32::new(0), ids: ReadMostly::new(IdMap::new()) } };
                SHARDS],
            next: PerCpu::from_array([const { AtomicU32::new(0) }; MAX_CPUS]),
            next_block: AtomicU32::new(0),
            last,
            first_again,
        }
    }

    #[inline]
    fn shard(&self, id: u32) -> &Shard<V> {
        &self.shards[(id / BLOCK) as usize % SHARDS]
    }

    /// The id that this CPU tries next: it may be taken. Nothing preempts it meanwhile.
    pub fn next_id(&self) -> u32 {
        let own = self.next.get();
        let mut id = own.load(Ordering::Relaxed);
        if id.is_multiple_of(BLOCK) {
            let again = self.first_again.div_ceil(BLOCK);
            let after = |block| Some(if block + 1 < self.last / BLOCK { block + 1 } else { again });
            let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
            let block = self.next_block.fetch_update(set, fetch, after).unwrap_or(again);
            // Nobody has the id 0.
            id = (block * BLOCK).max(1);
        }
        own.store(id + 1, Ordering::Relaxed);
        id
    }

    /// Enters what is known by an id. False if there is something already.
    pub fn insert(&self, id: u32, value: V) -> bool {
        let shard = self.shard(id);
        let mut ids = shard.ids.lock();
        if ids.get(place(id)).is_some() {
            return false;
        }
        ids.insert(place(id), value);
        shard.len.store(ids.len() as u32, Ordering::Relaxed);
        true
    }

    /// Calls `f` with each that has an id of `first` or above, in order, and puts together what it
    /// gives, up to `max` of these.
    pub fn collect_from<R>(&self, first: u32, max: usize, f: impl Fn(&V) -> Option<R>) -> Vec<R> {
        if first > self.last {
            return Vec::new();
        }
        // The lowest id of each shard that is still to come.
        let mut heads = [NONE; SHARDS];
        for (shard, head) in heads.iter_mut().enumerate() {
            *head = self.head_from(shard, first);
        }
        let mut found = Vec::new();
        while found.len() < max
            && let Some((shard, &head)) = heads.iter().enumerate().min_by_key(|&(_, head)| head)
            && head != NONE
        {
            let end = (head / BLOCK + 1) * BLOCK;
            let room = max - found.len();
            let of_block = place(head)..place(head) + (end - head);
            self.shards[shard].ids.read(|ids| {
                let entries = ids.iter_from(of_block.start);
                let entries = entries.take_while(|&(at, _)| at < of_block.end);
                found.extend(entries.filter_map(|(_, value)| f(value)).take(room));
            });
            heads[shard] = self.head_from(shard, end);
        }
        found
    }

    /// The first id of a shard that is `first` or above and has something; [`NONE`].
    fn head_from(&self, shard: usize, first: u32) -> u32 {
        let at = &self.shards[shard];
        if at.len.load(Ordering::Relaxed) == 0 {
            return NONE;
        }
        let (block, shards) = (first / BLOCK, SHARDS as u32);
        // The next block of this shard, which may be the one of `first`.
        let ahead = (shard as u32 + shards - block % shards) % shards;
        let from = if ahead == 0 { place(first) } else { place((block + ahead) * BLOCK) };
        let head = at.ids.read(|ids| ids.first_from(from).map(|(at, _)| at));
        head.map_or(NONE, |at| id_at(shard, at))
    }

    /// Changes what is known by an id, and forgets it if that is nothing then.
    pub fn change<R>(&self, id: u32, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let shard = self.shard(id);
        let mut ids = shard.ids.lock();
        let value = ids.get_mut(place(id))?;
        let result = change(value);
        if value.is_unused() {
            ids.remove(place(id));
            shard.len.store(ids.len() as u32, Ordering::Relaxed);
        }
        Some(result)
    }

    /// What `f` gives of what is known by an id.
    #[inline]
    pub fn read<R>(&self, id: u32, f: impl FnOnce(&V) -> Option<R>) -> Option<R> {
        self.shard(id).ids.read(|ids| f(ids.get(place(id))?))
    }
}
