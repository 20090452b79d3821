//! Structures of the kernel's lowest floor against what they replace: the standard library's trees,
//! over many random steps.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use machine::ensure;
use machine::entropy::random_u64;
use machine::ktest::Test;

use crate::base::id_map::IdMap;
use crate::base::lists::Lists;
use crate::base::names::{self, NameMap, Named};
use crate::base::timer_queue::TimerQueue;

pub(super) const TESTS: &[Test] = &[
    Test { name: "structures::an_id_map_is_a_map", run: id_map },
    Test { name: "structures::a_name_map_is_a_map", run: names },
    Test { name: "structures::lists_lose_members_anywhere", run: lists },
    Test { name: "structures::timers_go_by_deadline_and_age", run: timer_queue },
];

const STEPS: usize = 20_000;

/// Numbers as they come: close together, now and then far away, and at the borders of tables.
fn id() -> u32 {
    let random = random_u64();
    let spread = [6, 8, 13, 20, 32][(random >> 32) as usize % 5];
    (random & ((1 << spread) - 1)) as u32
}

fn id_map() -> Result<(), String> {
    let (mut map, mut model) = (IdMap::new(), BTreeMap::new());
    for step in 0..STEPS {
        let id = id();
        if random_u64().is_multiple_of(3) {
            ensure!(map.insert(id, step) == model.insert(id, step), "insert of {id}");
        } else if random_u64().is_multiple_of(4) {
            let (found, expected) = (map.get_or_insert_with(id, || step), model.entry(id));
            ensure!(found == expected.or_insert(step), "insert of {id}, if there is none");
        } else {
            let id = model.range(id..).next().map_or(id, |(&id, _)| id);
            ensure!(map.remove(id) == model.remove(&id), "remove of {id}");
        }
        ensure!(map.len() == model.len(), "{} values, not {}", map.len(), model.len());
        ensure!(map.get(id) == model.get(&id), "look-up of {id}");
        ensure!(map.get_mut(id).map(|value| *value) == model.get(&id).copied(), "change of {id}");
        let next = model.range(id..).next().map(|(&id, value)| (id, value));
        ensure!(map.first_from(id) == next, "first from {id}");
    }
    ensure!(map.iter_from(0).eq(model.iter().map(|(&id, value)| (id, value))), "order");
    ensure!(map.last() == model.last_key_value().map(|(&id, _)| id), "the last one");
    let last = map.insert(u32::MAX, 0);
    ensure!(last == model.insert(u32::MAX, 0), "the last number");
    ensure!(map.iter_from(u32::MAX).count() == 1, "values from the last number on");
    for id in model.keys() {
        ensure!(map.remove(*id).is_some(), "{id} was lost");
    }
    ensure!(map.is_empty() && map.first_from(0).is_none(), "something is left");
    Ok(())
}

/// A name of few letters and any length up to 19: many are alike, and all ends of words occur.
fn name() -> Vec<u8> {
    let random = random_u64();
    (0..random % 20).map(|at| b'a' + (random >> (8 + 2 * at) & 1) as u8).collect()
}

struct NamedStep(Vec<u8>, usize);

impl Named for NamedStep {
    fn name(&self) -> &[u8] {
        &self.0
    }
}

fn names() -> Result<(), String> {
    for _ in 0..STEPS {
        let (one, other) = (name(), name());
        ensure!(names::same(&one, &other) == (one == other), "{one:?} and {other:?}");
        let hashes = (names::hash(7, &one), names::hash(7, &other));
        ensure!((hashes.0 == hashes.1) == (one == other), "hashes of {one:?} and {other:?}");
        // With 0x80 and 0, which a borrow from a neighbour would be taken for.
        let any = |_| [0, 1, 0x80, 0xff][random_u64() as usize % 4];
        let mixed: Vec<u8> = one.iter().chain(&other).map(any).collect();
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let found = names::find(&mixed, byte);
            let first = mixed.iter().position(|&at| at == byte);
            ensure!(found == first, "{byte} in {mixed:?}: {found:?}");
        }
    }
    // Once by the real hash, and once by one that most names share.
    for hash in [|name: &[u8]| names::hash(0, name), |name: &[u8]| name.len() as u64 % 2] {
        let (mut map, mut model) = (NameMap::default(), BTreeMap::new());
        for step in 0..STEPS / 4 {
            let name = name();
            let at = hash(&name);
            let found = map.get_hashed(at, &name).map(|found: &NamedStep| found.1);
            ensure!(found == model.get(&name).copied(), "look-up of {name:?}");
            if found.is_none() {
                map.insert_hashed(at, NamedStep(name.clone(), step));
                model.insert(name, step);
            } else if random_u64().is_multiple_of(2) {
                let removed = map.remove_hashed(at, &name).map(|removed| removed.1);
                ensure!(removed == model.remove(&name), "remove of {name:?}");
            }
            ensure!(map.len() == model.len(), "{} names, not {}", map.len(), model.len());
        }
        ensure!(!map.is_empty(), "nothing is left");
        let mut left: Vec<usize> = map.into_values().map(|value| value.1).collect();
        let mut expected: Vec<usize> = model.into_values().collect();
        (left.sort_unstable(), expected.sort_unstable());
        ensure!(left == expected, "other values are left");
    }
    Ok(())
}

/// Two lists of one block against two vectors.
fn lists() -> Result<(), String> {
    let mut lists: Lists<usize, 2> = Lists::new();
    let mut model = [Vec::new(), Vec::new()];
    for step in 0..STEPS {
        let (list, random) = (random_u64() as usize % 2, random_u64());
        // Long times of growing and of shrinking, so that all slots are free now and then.
        let grows = step / 500 % 2 == 0;
        match random % 8 {
            0..3 => model[list].push((lists.push_back(list, step), step)),
            3 if grows => model[list].push((lists.push_back(list, step), step)),
            3..7 if !model[list].is_empty() => {
                let at = (random >> 32) as usize % model[list].len();
                let (place, value) = model[list].remove(at);
                ensure!(lists.remove(list, place) == Some(value), "remove of {value}");
            }
            _ => {
                let first = (!model[list].is_empty()).then(|| model[list].remove(0).1);
                ensure!(lists.pop_front(list) == first, "not {first:?} is the first");
            }
        }
        lists.shrink_if_empty();
        for (list, model) in model.iter().enumerate() {
            let expected = model.iter().map(|(_, value)| value);
            ensure!(step % 16 != 0 || lists.iter(list).eq(expected), "order of list {list}");
        }
        let len: usize = model.iter().map(Vec::len).sum();
        ensure!(lists.len() == len && lists.is_empty() == (len == 0), "{} members", lists.len());
    }
    Ok(())
}

fn timer_queue() -> Result<(), String> {
    let (mut queue, mut model) = (TimerQueue::new(), BTreeMap::new());
    let mut handles = Vec::new();
    for step in 0..STEPS as u64 {
        let deadline = random_u64() % 1000;
        match random_u64() % 8 {
            0..4 => {
                handles.push((queue.insert(deadline, step), (deadline, step)));
                model.insert((deadline, step), ());
            }
            4..6 if !handles.is_empty() => {
                // Some have fired: their handles find nobody, whoever has the slot now.
                let at = random_u64() as usize % handles.len();
                let (handle, key) = handles[at];
                let expected = model.remove(&key).map(|()| key.1);
                ensure!(queue.remove(handle) == expected, "cancelling {key:?}");
            }
            _ => {
                let due = model.first_key_value().map(|(&key, ())| key);
                let due = due.filter(|key| key.0 <= deadline / 8);
                due.map(|key| model.remove(&key));
                ensure!(queue.pop_due(deadline / 8) == due.map(|key| key.1), "not {due:?} is due");
            }
        }
        ensure!(queue.first() == model.keys().next().map(|key| key.0), "the first deadline");
    }
    while let Some(((_, step), ())) = model.pop_first() {
        ensure!(queue.pop_due(u64::MAX) == Some(step), "{step} does not come next");
    }
    ensure!(queue.first().is_none() && queue.pop_due(u64::MAX).is_none(), "something is left");
    Ok(())
}
