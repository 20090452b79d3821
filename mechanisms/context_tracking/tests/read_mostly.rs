//! The protocol of locks that many CPUs read (`machine/src/cpu/read_mostly.rs`), in every
//! interleaving of two and three CPUs with store buffers; then with one thing broken at a time,
//! which must be found.
//!
//! A reader marks itself in the set of CPUs that ever read, says in its own word that it reads, and
//! looks at the lock. A writer takes the lock, looks at the set, and waits for the words of those
//! in it. No reader may be inside beside a writer, no two writers, and all come to their end.

use std::collections::{BTreeSet, VecDeque};

/// What a CPU does, again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Reader,
    Writer,
}

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    None,
    /// The reader looks at the lock before it says that it reads.
    LooksFirst,
    /// The reader's word is set by a plain store, which the look may overtake.
    PlainWord,
    /// The reader's mark comes after its look.
    MarksLast,
    /// The lock is taken by a plain store.
    PlainLock,
    /// The writer looks at the set before it has the lock.
    SetFirst,
    /// The writer waits for nobody.
    NoWait,
    /// The reader that finds the lock held keeps saying that it reads, and waits.
    KeepsWord,
}

const MUTANTS: [Mutant; 7] = [
    Mutant::LooksFirst,
    Mutant::PlainWord,
    Mutant::MarksLast,
    Mutant::PlainLock,
    Mutant::SetFirst,
    Mutant::NoWait,
    Mutant::KeepsWord,
];

/// Rounds of each CPU: the second meets what the first has left.
const ROUNDS: u8 = 2;
const CPUS: usize = 3;

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Place {
    #[default]
    Held,
    Word(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Cpu {
    step: u8,
    rounds: u8,
    inside: bool,
    /// What a writer still waits for, or what it saw of the set too early.
    waits: u8,
    free: bool,
    /// Stores that memory has not seen.
    buffer: VecDeque<(Place, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
struct World {
    held: u8,
    words: [u8; CPUS],
    /// The set of CPUs that ever read; changed by locked operations alone.
    marks: u8,
    cpus: Vec<Cpu>,
}

impl World {
    fn memory(&mut self, place: Place) -> &mut u8 {
        match place {
            Place::Held => &mut self.held,
            Place::Word(cpu) => &mut self.words[cpu],
        }
    }

    /// A load of CPU `of`, which sees its own stores first (SDM 3A, 9.2.3.5).
    fn load(&mut self, of: usize, place: Place) -> u8 {
        let own = self.cpus[of].buffer.iter().rev().find(|(at, _)| *at == place);
        own.map(|&(_, value)| value).unwrap_or(*self.memory(place))
    }

    fn store(&mut self, of: usize, place: Place, value: u8) {
        self.cpus[of].buffer.push_back((place, value));
    }

    /// Before a locked operation: memory sees all stores (SDM 3A, 9.2.3.9).
    fn drain(&mut self, of: usize) {
        while self.drain_one(of) {}
    }

    fn drain_one(&mut self, of: usize) -> bool {
        let Some((place, value)) = self.cpus[of].buffer.pop_front() else { return false };
        *self.memory(place) = value;
        true
    }

    fn exchange(&mut self, of: usize, place: Place, value: u8) -> u8 {
        self.drain(of);
        std::mem::replace(self.memory(place), value)
    }

    fn mark(&mut self, of: usize) {
        self.drain(of);
        self.marks |= 1 << of;
    }

    /// A step of a reader. False if it cannot take one now.
    fn read(&mut self, of: usize, mutant: Mutant) -> bool {
        let word = Place::Word(of);
        // The order of: mark, say, look.
        let order: [u8; 3] = match mutant {
            Mutant::LooksFirst => [0, 2, 1],
            Mutant::MarksLast => [1, 2, 0],
            _ => [0, 1, 2],
        };
        match self.cpus[of].step {
            at @ 0..=2 => match order[usize::from(at)] {
                0 => self.mark(of),
                1 if mutant == Mutant::PlainWord => self.store(of, word, 1),
                1 => _ = self.exchange(of, word, 1),
                _ => self.cpus[of].free = self.load(of, Place::Held) == 0,
            },
            3 if self.cpus[of].free => self.cpus[of].inside = true,
            3 => {
                // Again from the start, once the lock is free.
                if mutant != Mutant::KeepsWord {
                    self.store(of, word, 0);
                }
                self.cpus[of].step = 5;
                return true;
            }
            4 => {
                self.cpus[of].inside = false;
                self.store(of, word, 0);
                return self.end_round(of);
            }
            _ => {
                if self.load(of, Place::Held) != 0 {
                    return false;
                }
                self.cpus[of].step = 0;
                return true;
            }
        }
        self.cpus[of].step += 1;
        true
    }

    /// A step of a writer. False if it cannot take one now.
    fn write(&mut self, of: usize, mutant: Mutant) -> bool {
        let set_first = mutant == Mutant::SetFirst;
        match self.cpus[of].step {
            0 => self.cpus[of].waits = if set_first { self.marks } else { 0 },
            1 if mutant == Mutant::PlainLock => {
                if self.load(of, Place::Held) != 0 {
                    return false;
                }
                self.store(of, Place::Held, 1);
            }
            1 => {
                if self.exchange(of, Place::Held, 1) != 0 {
                    return false;
                }
            }
            2 if set_first => {}
            2 => self.cpus[of].waits = self.marks,
            3 => {
                let waits = if mutant == Mutant::NoWait { 0 } else { self.cpus[of].waits };
                if (0..CPUS)
                    .any(|cpu| waits & 1 << cpu != 0 && self.load(of, Place::Word(cpu)) != 0)
                {
                    return false;
                }
                self.cpus[of].inside = true;
            }
            _ => {
                self.cpus[of].inside = false;
                self.store(of, Place::Held, 0);
                return self.end_round(of);
            }
        }
        self.cpus[of].step += 1;
        true
    }

    fn end_round(&mut self, of: usize) -> bool {
        self.cpus[of].rounds += 1;
        self.cpus[of].step = 0;
        true
    }
}

/// Goes through all states. The number of them, or what is wrong in one.
fn explore(roles: &[Role], mutant: Mutant) -> Result<usize, String> {
    let start = World { cpus: vec![Cpu::default(); roles.len()], ..World::default() };
    let (mut seen, mut todo) = (BTreeSet::from([start.clone()]), vec![start]);
    while let Some(world) = todo.pop() {
        let inside = |role| {
            let cpus = world.cpus.iter().zip(roles);
            cpus.filter(|(cpu, own)| cpu.inside && **own == role).count()
        };
        let (readers, writers) = (inside(Role::Reader), inside(Role::Writer));
        if writers > 1 || writers == 1 && readers > 0 {
            return Err(format!("{readers} readers beside {writers} writers"));
        }
        let before = todo.len();
        let mut is_stuck = true;
        for (of, role) in roles.iter().enumerate() {
            let mut drained = world.clone();
            let mut acted = world.clone();
            let moved = world.cpus[of].rounds < ROUNDS
                && match role {
                    Role::Reader => acted.read(of, mutant),
                    Role::Writer => acted.write(of, mutant),
                };
            for next in [drained.drain_one(of).then_some(drained), moved.then_some(acted)]
                .into_iter()
                .flatten()
            {
                is_stuck = false;
                if seen.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
        let done = world.cpus.iter().all(|cpu| cpu.rounds == ROUNDS);
        if is_stuck && !done && todo.len() == before {
            return Err("nobody can go on".to_owned());
        }
    }
    Ok(seen.len())
}

const CASES: [&[Role]; 5] = [
    &[Role::Reader, Role::Writer],
    &[Role::Writer, Role::Writer],
    &[Role::Reader, Role::Reader, Role::Writer],
    &[Role::Reader, Role::Writer, Role::Writer],
    &[Role::Writer, Role::Writer, Role::Writer],
];

#[test]
fn no_interleaving_lets_a_writer_in_beside_others() {
    for roles in CASES {
        match explore(roles, Mutant::None) {
            Ok(states) => assert!(states > 50, "{roles:?}: {states} states: no search"),
            Err(why) => panic!("{roles:?}: {why}"),
        }
    }
}

/// A search that finds nothing proves something only if it would have found something.
#[test]
fn every_mutant_is_found() {
    for mutant in MUTANTS {
        let found = CASES.iter().find_map(|roles| explore(roles, mutant).err());
        match found {
            Some(why) => println!("{mutant:?}: {why}"),
            None => panic!("{mutant:?} breaks nothing"),
        }
    }
}
