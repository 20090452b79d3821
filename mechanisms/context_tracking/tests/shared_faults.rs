//! How threads of one program change its page table at a time (`machine/src/memory/concurrent.rs`),
//! with the shootdown (`machine/src/context_tracking/tlb.rs`), in every interleaving of a small
//! world; then with one thing done wrong at a time, which must be found.
//!
//! Two pages are shared with another program, or are not. Threads of one program use one of them
//! each, on CPUs of their own: they read it, write to it, or drop it (MADV_DONTNEED). A write that
//! faults claims the entry, shoots the page down, copies it, enters the copy and releases the old
//! frame. TLBs fill by themselves at any moment, with either page. No CPU that runs the program may
//! reach a frame that is free, nor read what was there before a write that is done; the references
//! must add up; and all must come to their end.
//!
//! There are no store buffers: each look at what another CPU wrote comes behind a locked
//! instruction of the one who looks, and a store of an entry that comes late is one more moment at
//! which it is claimed.

use std::collections::HashSet;

/// What a thread does with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Write,
    Read,
    Drop,
}

/// A thread: what it does, and with which page.
type Thread = (Act, usize);

const PAGES: usize = 2;

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    None,
    /// The entry is looked at, and claimed by a plain store.
    PlainClaim,
    /// What is claimed stays readable until the copy is entered.
    Readable,
    /// The copy is entered before the shootdown.
    EntersFirst,
    /// The old frame is released before the shootdown.
    ReleasesFirst,
    /// Nobody is told.
    NoShootdown,
    /// A thread that drops pages takes claimed ones.
    DropsClaimed,
    /// The shootdown masks interrupts after it has counted.
    MasksLate,
    /// A CPU drops its own page alone, whatever else it has missed.
    OnePageAlways,
}

const MUTANTS: [Mutant; 8] = [
    Mutant::PlainClaim,
    Mutant::Readable,
    Mutant::EntersFirst,
    Mutant::ReleasesFirst,
    Mutant::NoShootdown,
    Mutant::DropsClaimed,
    Mutant::MasksLate,
    Mutant::OnePageAlways,
];

/// An entry of the page table, or a translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Entry {
    #[default]
    Empty,
    /// Of a frame, and whether it may be written to.
    Page(usize, bool),
    Claimed(usize),
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Step {
    /// About to use the page, or to drop it.
    #[default]
    Use,
    /// Has looked at the entry, which was this.
    Seen(Entry),
    /// Has taken the entry's page out: of this frame.
    Taken(usize),
    /// Of the shootdown: interrupts are masked, or not yet.
    Mask(usize),
    Count(usize),
    Counted(usize),
    Local(usize),
    Waits(usize),
    /// All CPUs have forgotten the frame.
    Shot(usize),
    /// The copy is in place.
    Entered(usize),
    Done,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Cpu {
    step: Step,
    tlb: [Entry; PAGES],
    masked: bool,
    wanted: bool,
    seen: u8,
    /// What its shootdown has counted.
    target: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    entries: [Entry; PAGES],
    generation: u8,
    cpus: Vec<Cpu>,
    /// References to each frame, and whether the write is in it.
    refs: Vec<u8>,
    written: Vec<bool>,
    /// A write to the page is done, so whoever reads from now on reads it.
    is_written: [bool; PAGES],
}

type Failure = &'static str;

impl World {
    /// Frame 0 is page 0, frame 1 is page 1.
    fn new(threads: usize, shared: bool) -> World {
        World {
            entries: [Entry::Page(0, false), Entry::Page(1, false)],
            generation: 1,
            cpus: vec![Cpu { seen: 1, ..Cpu::default() }; threads],
            refs: vec![1 + u8::from(shared); PAGES],
            written: vec![false; PAGES],
            is_written: [false; PAGES],
        }
    }

    fn release(&mut self, frame: usize) -> Result<(), Failure> {
        let left = self.refs[frame].checked_sub(1);
        self.refs[frame] = left.ok_or("a reference too many is given up")?;
        Ok(())
    }

    /// A new frame, with what is in the page.
    fn new_frame(&mut self, page: usize) -> usize {
        self.refs.push(1);
        self.written.push(self.is_written[page]);
        self.refs.len() - 1
    }

    /// Compare-exchange of an entry.
    fn exchange(&mut self, page: usize, from: Entry, to: Entry) -> bool {
        let fits = self.entries[page] == from;
        if fits {
            self.entries[page] = to;
        }
        fits
    }

    /// An access of the program. A translation that cannot serve it leads to a fault, which drops
    /// that translation.
    fn access(&mut self, of: usize, page: usize, write: bool) -> bool {
        if self.cpus[of].tlb[page] == Entry::Empty {
            self.cpus[of].tlb[page] = self.translation(page);
        }
        match self.cpus[of].tlb[page] {
            Entry::Page(frame, writable) if writable || !write => {
                self.written[frame] |= write;
                self.is_written[page] |= write;
                true
            }
            _ => {
                self.cpus[of].tlb[page] = Entry::Empty;
                false
            }
        }
    }

    fn translation(&self, page: usize) -> Entry {
        Some(self.entries[page])
            .filter(|entry| matches!(entry, Entry::Page(..)))
            .unwrap_or_default()
    }

    /// What a CPU has that runs the program may be used at any moment.
    fn check(&self) -> Result<(), Failure> {
        let running = |cpu: &&Cpu| matches!(cpu.step, Step::Use | Step::Done);
        for cpu in self.cpus.iter().filter(running) {
            for (page, entry) in cpu.tlb.into_iter().enumerate() {
                let Entry::Page(frame, _) = entry else { continue };
                if self.refs[frame] == 0 {
                    return Err("a program reaches a frame that is free");
                }
                if self.is_written[page] && !self.written[frame] {
                    return Err("a program reads what was there before a write that is done");
                }
            }
        }
        Ok(())
    }

    /// A CPU whose interrupts are not masked, or that spins, answers.
    fn serve(&mut self, of: usize) {
        let generation = self.generation;
        let cpu = &mut self.cpus[of];
        cpu.wanted = false;
        if cpu.seen < generation {
            cpu.tlb = [Entry::Empty; PAGES];
            cpu.seen = generation;
        }
    }

    /// One step of a thread. False if it cannot take one now.
    fn step(&mut self, of: usize, (act, page): Thread, mutant: Mutant) -> Result<bool, Failure> {
        let step = self.cpus[of].step;
        self.cpus[of].step = match (step, act) {
            (Step::Use, Act::Drop) => Step::Seen(self.entries[page]),
            (Step::Use, _) => match self.access(of, page, act == Act::Write) {
                true => Step::Done,
                false => Step::Seen(self.entries[page]),
            },
            (Step::Seen(entry), Act::Drop) => self.take_out(page, entry, mutant),
            (Step::Seen(entry), Act::Read) => self.bring_in(page, entry, false),
            (Step::Seen(entry), Act::Write) => self.claim(page, entry, mutant),
            (Step::Taken(frame), _) => {
                match mutant {
                    Mutant::EntersFirst if act == Act::Write => self.enter_copy(page),
                    Mutant::ReleasesFirst => self.release(frame)?,
                    _ => {}
                }
                if mutant == Mutant::NoShootdown { Step::Shot(frame) } else { Step::Mask(frame) }
            }
            (Step::Shot(frame), Act::Write) => {
                if mutant != Mutant::EntersFirst {
                    self.enter_copy(page);
                }
                Step::Entered(frame)
            }
            (Step::Shot(frame) | Step::Entered(frame), _) => {
                if mutant != Mutant::ReleasesFirst {
                    self.release(frame)?;
                }
                if act == Act::Drop { Step::Done } else { Step::Use }
            }
            (Step::Done, _) => return Ok(false),
            _ => return Ok(self.shoot_down(of, page, mutant)),
        };
        Ok(true)
    }

    /// One step of a shootdown.
    fn shoot_down(&mut self, of: usize, page: usize, mutant: Mutant) -> bool {
        let generation = self.generation;
        let mut cpu = self.cpus[of].clone();
        cpu.step = match cpu.step {
            Step::Mask(frame) => {
                cpu.masked = mutant != Mutant::MasksLate;
                Step::Count(frame)
            }
            Step::Count(frame) => {
                cpu.target = generation + 1;
                self.generation += 1;
                Step::Counted(frame)
            }
            Step::Counted(frame) => {
                cpu.masked = true;
                Step::Local(frame)
            }
            Step::Local(frame) => {
                if cpu.seen + 1 == cpu.target || mutant == Mutant::OnePageAlways {
                    cpu.tlb[page] = Entry::Empty;
                } else {
                    cpu.tlb = [Entry::Empty; PAGES];
                }
                cpu.seen = cpu.target;
                for other in (0..self.cpus.len()).filter(|&other| other != of) {
                    self.cpus[other].wanted = true;
                }
                Step::Waits(frame)
            }
            Step::Waits(frame) => {
                let target = cpu.target;
                if self.cpus.iter().any(|cpu| cpu.seen < target) {
                    return false;
                }
                cpu.masked = false;
                Step::Shot(frame)
            }
            _ => unreachable!("no step of a shootdown"),
        };
        self.cpus[of] = cpu;
        true
    }

    /// A page comes where none is. Whatever has happened meanwhile: the access is tried again.
    fn bring_in(&mut self, page: usize, seen: Entry, writable: bool) -> Step {
        if seen == Entry::Empty && self.entries[page] == Entry::Empty {
            self.entries[page] = Entry::Page(self.new_frame(page), writable);
        }
        Step::Use
    }

    /// The entry for a write: the page is the program's own, or is claimed to be copied.
    fn claim(&mut self, page: usize, seen: Entry, mutant: Mutant) -> Step {
        let Entry::Page(frame, false) = seen else { return self.bring_in(page, seen, true) };
        if self.refs[frame] == 1 {
            self.exchange(page, seen, Entry::Page(frame, true));
            return Step::Use;
        }
        let claimed = if mutant == Mutant::Readable { seen } else { Entry::Claimed(frame) };
        if mutant == Mutant::PlainClaim {
            self.entries[page] = claimed;
        } else if !self.exchange(page, seen, claimed) {
            return Step::Use;
        }
        Step::Taken(frame)
    }

    /// A copy is made of what was claimed, and takes its place.
    fn enter_copy(&mut self, page: usize) {
        self.entries[page] = Entry::Page(self.new_frame(page), true);
    }

    fn take_out(&mut self, page: usize, seen: Entry, mutant: Mutant) -> Step {
        match seen {
            Entry::Empty => Step::Done,
            Entry::Claimed(frame) if mutant == Mutant::DropsClaimed => {
                self.entries[page] = Entry::Empty;
                Step::Taken(frame)
            }
            Entry::Page(frame, _) if self.exchange(page, seen, Entry::Empty) => Step::Taken(frame),
            // It is looked at again; what is claimed, behind those who share the table.
            _ => Step::Use,
        }
    }

    /// All are done: each frame has the references that are left to it.
    fn check_end(&self, shared: bool) -> Result<(), Failure> {
        for (frame, &refs) in self.refs.iter().enumerate() {
            let is_here = |entry: &&Entry| matches!(entry, Entry::Page(of, _) if *of == frame);
            let of_entries = self.entries.iter().filter(is_here).count();
            let of_other = usize::from(shared && frame < PAGES);
            if usize::from(refs) != of_entries + of_other {
                return Err("references do not add up");
            }
        }
        Ok(())
    }
}

/// Goes through all that can happen. How many states there are, or what went wrong.
fn explore(threads: &[Thread], shared: bool, mutant: Mutant) -> Result<usize, Failure> {
    let drops = threads.iter().any(|(act, _)| *act == Act::Drop);
    let mut known = HashSet::new();
    let mut left = vec![World::new(threads.len(), shared)];
    while let Some(mut world) = left.pop() {
        if drops {
            // What is dropped is gone with what was written.
            world.is_written = [false; PAGES];
        }
        if !known.insert(world.clone()) {
            continue;
        }
        world.check()?;
        if world.cpus.iter().all(|cpu| cpu.step == Step::Done) {
            world.check_end(shared)?;
            continue;
        }
        let before = left.len();
        for (of, &thread) in threads.iter().enumerate() {
            let cpu = &world.cpus[of];
            let answers = !cpu.masked || matches!(cpu.step, Step::Waits(_));
            if cpu.wanted && answers {
                let mut next = world.clone();
                next.serve(of);
                left.push(next);
            }
            let mut next = world.clone();
            if next.step(of, thread, mutant)? {
                left.push(next);
            }
        }
        if left.len() == before {
            return Err("nobody can go on");
        }
        fill(&world, &mut left);
    }
    Ok(known.len())
}

/// TLBs fill by themselves.
fn fill(world: &World, left: &mut Vec<World>) {
    for of in 0..world.cpus.len() {
        for page in 0..PAGES {
            let translation = world.translation(page);
            if world.cpus[of].tlb[page] == Entry::Empty && translation != Entry::Empty {
                let mut next = world.clone();
                next.cpus[of].tlb[page] = translation;
                left.push(next);
            }
        }
    }
}

/// Worlds small enough for all of their states.
const WORLDS: [&[Thread]; 8] = [
    &[(Act::Write, 0), (Act::Write, 0)],
    &[(Act::Write, 0), (Act::Write, 1)],
    &[(Act::Write, 0), (Act::Read, 0)],
    &[(Act::Write, 0), (Act::Drop, 0)],
    &[(Act::Drop, 0), (Act::Drop, 1)],
    &[(Act::Write, 0), (Act::Write, 1), (Act::Read, 0)],
    &[(Act::Write, 0), (Act::Drop, 0), (Act::Read, 0)],
    &[(Act::Write, 0), (Act::Write, 0), (Act::Read, 0)],
];

fn every_world() -> impl Iterator<Item = (&'static [Thread], bool)> {
    WORLDS.into_iter().flat_map(|threads| [(threads, true), (threads, false)])
}

#[test]
fn nothing_goes_wrong() {
    for (threads, shared) in every_world() {
        let result = explore(threads, shared, Mutant::None);
        assert!(result.is_ok(), "{threads:?}, shared {shared}: {result:?}");
        println!("{threads:?}, shared {shared}: {} states", result.unwrap_or_default());
    }
}

#[test]
fn what_is_wrong_is_found() {
    for mutant in MUTANTS {
        let found = every_world().find_map(|(threads, shared)| {
            let failure = explore(threads, shared, mutant).err()?;
            Some((threads, shared, failure))
        });
        assert!(found.is_some(), "{mutant:?} is not found");
        println!("{mutant:?}: {found:?}");
    }
}
