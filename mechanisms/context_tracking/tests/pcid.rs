//! Every order of a small machine's steps: CPUs that switch between spaces, go to programs and come
//! back, and change pages, with a TLB in software that keeps one translation for each context. In
//! no state may a program, or the kernel on its behalf, use a translation that its sender believes
//! gone. With any one of the rules taken out, the search must find such a use.
//!
//! The decisions are [`Slots`] itself; what surrounds them here is the protocol of
//! `machine/src/context_tracking/tlb.rs` and the loads of CR3 of
//! `machine/src/context_tracking/pcid.rs` and `entry.S`.

use std::collections::{HashSet, VecDeque};

use context_tracking::pcid::{Load, Slots};

const CPUS: usize = 2;
const SPACES: usize = 3;
const SLOTS: usize = 2;
/// What is searched through. Both CPUs at once have more states than fit into memory: they walk at
/// random instead (`both_cpus_at_random`).
#[derive(Clone, Copy, Debug)]
struct Size {
    /// CPUs that run spaces; the others only change pages.
    runs: [bool; CPUS],
    /// CPUs that change pages.
    changes: [bool; CPUS],
    /// The first so many spaces change, once each.
    changing: usize,
}

/// A CPU that hears of another's changes, and one that makes its own.
const SIZES: [Size; 2] = [
    Size { runs: [false, true], changes: [true, false], changing: 1 },
    Size { runs: [true, false], changes: [true, false], changing: 2 },
];
const BOTH: Size = Size { runs: [true; CPUS], changes: [true; CPUS], changing: SPACES };

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A space that takes another one's slot keeps what is there.
    FlushOfNewOwner,
    /// A space that comes back does not look at its count.
    Generation,
    /// The program's context is not dropped when a space is loaded.
    UserFlushAtLoad,
    /// A CPU that is told of a change drops the kernel's context only.
    UserFlushAtCatchUp,
    /// A CPU that is told of a change drops the program's context only.
    KernelFlushAtCatchUp,
    /// What waits to be dropped is forgotten when the space is left.
    StaleMark,
    /// The load of CR3 on the way to the program always keeps.
    UserFlushAtExit,
    /// A space is marked as active only after its count was read.
    EarlyJoin,
}

/// A cached translation: whose page, and after how many changes it was walked.
type TlbEntry = Option<(usize, u8)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Runs the active space, or nothing.
    Idle,
    /// Has looked at the count of a space, and will load it.
    Joined { space: usize, is_current: bool },
    /// Has changed a page of a space, and waits for the others in the set.
    Waiting { space: usize, others: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cpu {
    slots: Slots<SLOTS>,
    active: Option<usize>,
    slot: usize,
    in_user: bool,
    /// The program's context waits for its flush.
    user_stale: bool,
    /// By slot: the kernel's context and the program's.
    tlb: [[TlbEntry; 2]; SLOTS],
    told: bool,
    step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Space {
    /// Changes made, and changes that every CPU must know of.
    generation: u8,
    published: u8,
    active: u8,
    seen: [u8; CPUS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    cpus: [Cpu; CPUS],
    spaces: [Space; SPACES],
}

impl World {
    fn new() -> World {
        let cpu = Cpu {
            slots: Slots::new(),
            active: None,
            slot: 0,
            in_user: false,
            user_stale: false,
            tlb: [[None; 2]; SLOTS],
            told: false,
            step: Step::Idle,
        };
        // As in `TlbState::new`: the count begins above what any CPU has seen.
        let space = Space { generation: 1, published: 1, active: 0, seen: [0; CPUS] };
        World {
            cpus: std::array::from_fn(|_| cpu.clone()),
            spaces: std::array::from_fn(|_| space.clone()),
        }
    }

    /// An access with the tables in use; false: it used what is gone.
    fn access(&mut self, c: usize) -> bool {
        let cpu = &mut self.cpus[c];
        let Some(space) = cpu.active else { return true };
        let now = &self.spaces[space];
        let entry = &mut cpu.tlb[cpu.slot][usize::from(cpu.in_user)];
        let (owner, version) = *entry.get_or_insert((space, now.generation));
        owner == space && version >= now.published
    }

    fn join(&mut self, c: usize, space: usize, without: Without) {
        let of_space = &mut self.spaces[space];
        if without != Without::EarlyJoin {
            of_space.active |= 1 << c;
        }
        let is_current = of_space.seen[c] == of_space.generation || without == Without::Generation;
        of_space.seen[c] = of_space.generation;
        self.cpus[c].step = Step::Joined { space, is_current };
    }

    fn load(&mut self, c: usize, space: usize, is_current: bool, without: Without) {
        let cpu = &mut self.cpus[c];
        cpu.slots.leave(cpu.user_stale && without != Without::StaleMark);
        let known = cpu.slots.clone();
        let mut load: Load = cpu.slots.enter(space as u64 + 1, is_current);
        if without == Without::FlushOfNewOwner && known != cpu.slots && load.flush && is_current {
            load = Load { flush: false, flush_user: false, ..load };
        }
        if without == Without::UserFlushAtLoad {
            load.flush_user = false;
        }
        if load.flush {
            cpu.tlb[load.slot][0] = None;
        }
        cpu.slot = load.slot;
        cpu.user_stale = load.flush_user;
        cpu.step = Step::Idle;
        let old = cpu.active.replace(space);
        self.spaces[space].active |= 1 << c;
        if let Some(old) = old {
            self.spaces[old].active &= !(1 << c);
        }
    }

    /// This CPU drops what its active space had.
    fn drop_all(&mut self, c: usize, without: Without) {
        let cpu = &mut self.cpus[c];
        if without != Without::KernelFlushAtCatchUp {
            cpu.tlb[cpu.slot][0] = None;
        }
        if without != Without::UserFlushAtCatchUp {
            cpu.user_stale = true;
        }
        if let Some(space) = cpu.active {
            let of_space = &mut self.spaces[space];
            of_space.seen[c] = of_space.generation;
        }
    }

    fn change(&mut self, c: usize, space: usize, without: Without) {
        let of_space = &mut self.spaces[space];
        of_space.generation += 1;
        let active = of_space.active;
        if active & 1 << c != 0 && self.cpus[c].active == Some(space) {
            self.drop_all(c, without);
        }
        let others = active & !(1 << c);
        for (other, cpu) in self.cpus.iter_mut().enumerate() {
            cpu.told |= others & 1 << other != 0;
        }
        self.cpus[c].step = Step::Waiting { space, others };
    }

    /// What the sender waits for has come.
    fn is_answered(&self, space: usize, others: u8) -> bool {
        let of_space = &self.spaces[space];
        (0..CPUS).all(|other| {
            others & 1 << other == 0
                || of_space.active & 1 << other == 0
                || of_space.seen[other] == of_space.generation
        })
    }

    fn serve(&mut self, c: usize, without: Without) {
        self.cpus[c].told = false;
        self.cpus[c].in_user = false;
        if let Some(space) = self.cpus[c].active
            && self.spaces[space].seen[c] < self.spaces[space].generation
        {
            self.drop_all(c, without);
        }
    }

    fn exit(&mut self, c: usize, without: Without) {
        let cpu = &mut self.cpus[c];
        if cpu.user_stale && without != Without::UserFlushAtExit {
            cpu.tlb[cpu.slot][1] = None;
        }
        cpu.user_stale = false;
        cpu.in_user = true;
    }

    /// All that CPU `c` can do next.
    fn steps(&self, c: usize, size: Size, without: Without, into: &mut Vec<World>) {
        let mut push = |step: &dyn Fn(&mut World)| {
            let mut next = self.clone();
            step(&mut next);
            into.push(next);
        };
        let cpu = &self.cpus[c];
        match cpu.step {
            // Interrupts are masked between the look and the load.
            Step::Joined { space, is_current } => {
                push(&|next| next.load(c, space, is_current, without));
            }
            Step::Waiting { space, others } => {
                if self.is_answered(space, others) {
                    push(&|next| {
                        let of_space = &mut next.spaces[space];
                        of_space.published = of_space.generation;
                        next.cpus[c].step = Step::Idle;
                    });
                }
                // A CPU that waits serves.
                if cpu.told {
                    push(&|next| next.serve(c, without));
                }
            }
            Step::Idle => {
                if cpu.told {
                    push(&|next| next.serve(c, without));
                }
                if cpu.in_user {
                    push(&|next| next.cpus[c].in_user = false);
                    return;
                }
                if cpu.active.is_some() {
                    push(&|next| next.exit(c, without));
                }
                let others = (0..SPACES).filter(|&space| cpu.active != Some(space));
                for space in others.filter(|_| size.runs[c]) {
                    push(&|next| next.join(c, space, without));
                }
                for space in (0..size.changing).filter(|_| size.changes[c]) {
                    if self.spaces[space].generation == 1 {
                        push(&|next| next.change(c, space, without));
                    }
                }
            }
        }
    }
}

/// Looks at every state. Their number, or `None` after a use of what is gone.
fn search(size: Size, without: Without) -> Option<usize> {
    let mut seen = HashSet::from([World::new()]);
    let mut todo = VecDeque::from([World::new()]);
    let mut next = Vec::new();
    while let Some(world) = todo.pop_front() {
        for c in 0..CPUS {
            world.steps(c, size, without, &mut next);
            // An access is a step of its own: a CPU may have cached nothing, or something.
            if !matches!(world.cpus[c].step, Step::Joined { .. }) {
                let mut after = world.clone();
                if !after.access(c) {
                    return None;
                }
                next.push(after);
            }
        }
        for world in next.drain(..) {
            if !seen.contains(&world) {
                seen.insert(world.clone());
                todo.push_back(world);
            }
        }
    }
    Some(seen.len())
}

#[test]
fn no_order_of_steps_uses_what_is_gone() {
    for size in SIZES {
        let states = search(size, Without::Nothing).expect("something that is gone was used");
        println!("{size:?}: {states} states");
        assert!(states > 1000, "the search is empty: {states} states");
    }
}

/// Steps of a walk; each changes one of a few things, so that whatever a walk can find it finds in
/// far fewer.
const WALK_STEPS: usize = 200;
const WALKS: u64 = 3000;

#[test]
fn both_cpus_at_random() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = Vec::new();
    for walk in 0..WALKS {
        let mut world = World::new();
        for step in 0..WALK_STEPS {
            // Marsaglia's xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let c = (random >> 32) as usize % CPUS;
            if !matches!(world.cpus[c].step, Step::Joined { .. }) {
                assert!(world.access(c), "walk {walk}, step {step}: {world:?}");
            }
            world.steps(c, BOTH, Without::Nothing, &mut next);
            if !next.is_empty() {
                world = next.swap_remove((random >> 40) as usize % next.len());
                next.clear();
            }
        }
    }
}

#[test]
fn every_rule_is_needed() {
    for without in [
        Without::FlushOfNewOwner,
        Without::Generation,
        Without::UserFlushAtLoad,
        Without::UserFlushAtCatchUp,
        Without::KernelFlushAtCatchUp,
        Without::StaleMark,
        Without::UserFlushAtExit,
        Without::EarlyJoin,
    ] {
        let is_found = SIZES.into_iter().any(|size| search(size, without).is_none());
        assert!(is_found, "nothing is lost without {without:?}");
    }
}
