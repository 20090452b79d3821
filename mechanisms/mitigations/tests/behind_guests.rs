//! The word of `behind_guests` in a small world: CPUs, and threads that run guests, are moved,
//! preempted, interrupted and return to user mode in every way there is. Whatever the order, no
//! user instruction runs on a CPU whose predictors a guest has trained; and no flush is made for
//! nothing. Each rule is needed: worlds that leave one out are found out.

use std::cell::Cell;

use mitigations::behind_guests::{self, FLUSH, spared};

const CPUS: usize = 3;
const THREADS: usize = 5;
const WORLDS: u64 = 400;
const STEPS: usize = 400;

/// The rule that a world leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The flag goes with the thread that ran the guest.
    OfTheCpu,
    /// The flag is set when the thread may have been moved.
    AtOnce,
    /// The thread that ran the guest flushes, others do not.
    AnyThread,
    /// One way back to user mode does not look.
    EveryWay,
}

/// Ways back to user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    SystemCall,
    Interrupt,
    Nmi,
    Exception,
    SignalReturn,
    ForkedChild,
    Exec,
}

const WAYS: [Way; 7] = [
    Way::SystemCall,
    Way::Interrupt,
    Way::Nmi,
    Way::Exception,
    Way::SignalReturn,
    Way::ForkedChild,
    Way::Exec,
];

#[derive(Default)]
struct Cpu {
    word: Cell<u32>,
    /// What the word stands for: a guest has run since the last flush.
    is_trained: Cell<bool>,
    exits: Cell<u64>,
    flushes: Cell<u64>,
    /// Flushes that had nothing to flush.
    needless: Cell<u64>,
    /// The thread that runs here.
    thread: Cell<usize>,
    is_user: Cell<bool>,
}

impl behind_guests::Cpu for Cpu {
    fn word(&self) -> u32 {
        self.word.get()
    }

    fn set_word(&self, word: u32) {
        self.word.set(word);
    }

    fn flush(&self) {
        self.flushes.set(self.flushes.get() + 1);
        let was = self.is_trained.replace(false);
        self.needless.set(self.needless.get() + u64::from(!was));
    }
}

/// A generator of numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

struct World {
    cpus: [Cpu; CPUS],
    /// Flags of threads, for [`Without::OfTheCpu`]; who ran a guest last on each CPU.
    of_thread: [Cell<bool>; THREADS],
    ran_last: [Cell<usize>; CPUS],
    without: Without,
}

impl World {
    fn new(without: Without) -> World {
        let world = World {
            cpus: Default::default(),
            of_thread: Default::default(),
            ran_last: Default::default(),
            without,
        };
        for (n, cpu) in world.cpus.iter().enumerate() {
            cpu.thread.set(n);
        }
        world
    }

    /// The thread of `at` runs a guest until it exits; then perhaps it is moved at once.
    fn run_guest(&self, at: usize, moved_to: Option<usize>) {
        let cpu = &self.cpus[at];
        cpu.is_user.set(false);
        cpu.is_trained.set(true);
        cpu.exits.set(cpu.exits.get() + 1);
        self.ran_last[at].set(cpu.thread.get());
        if self.without != Without::AtOnce {
            self.note(at);
        }
        if let Some(to) = moved_to {
            self.exchange(at, to);
        }
        if self.without == Without::AtOnce {
            self.note(moved_to.unwrap_or(at));
        }
    }

    fn note(&self, at: usize) {
        match self.without {
            Without::OfTheCpu => self.of_thread[self.cpus[at].thread.get()].set(true),
            _ => behind_guests::guest_ran(&self.cpus[at]),
        }
    }

    /// The threads of two CPUs change places; both are in the kernel for that.
    fn exchange(&self, a: usize, b: usize) {
        self.cpus[a].is_user.set(false);
        self.cpus[b].is_user.set(false);
        self.cpus[a].thread.swap(&self.cpus[b].thread);
    }

    /// Another thread, which ran nowhere, takes the CPU.
    fn switch(&self, at: usize, random: &mut Random) {
        let others: Vec<usize> = (0..THREADS)
            .filter(|thread| self.cpus.iter().all(|cpu| cpu.thread.get() != *thread))
            .collect();
        self.cpus[at].is_user.set(false);
        self.cpus[at].thread.set(others[random.below(others.len())]);
    }

    /// Whether the program's first instruction runs on predictors of its own.
    fn to_user(&self, at: usize, way: Way) -> bool {
        let cpu = &self.cpus[at];
        match self.without {
            Without::OfTheCpu => {
                if self.of_thread[cpu.thread.get()].replace(false) {
                    behind_guests::guest_ran(cpu);
                    behind_guests::before_user_mode(cpu);
                }
            }
            Without::AnyThread if cpu.thread.get() != self.ran_last[at].get() => {}
            Without::EveryWay if way == Way::ForkedChild => {}
            _ => behind_guests::before_user_mode(cpu),
        }
        cpu.is_user.set(true);
        !cpu.is_trained.get()
    }
}

/// Whether all of a random life is as it must be.
fn live(seed: u64, without: Without) -> bool {
    let mut random = Random(seed);
    let world = World::new(without);
    for _ in 0..STEPS {
        let at = random.below(CPUS);
        let safe = match random.below(8) {
            0..=2 => {
                let to = (at + 1 + random.below(CPUS - 1)) % CPUS;
                world.run_guest(at, (random.below(4) == 0).then_some(to));
                true
            }
            3 => {
                world.switch(at, &mut random);
                true
            }
            // In user mode the thread enters the kernel by an NMI or interrupt, and leaves it.
            _ => world.to_user(at, WAYS[random.below(WAYS.len())]),
        };
        if !safe {
            return false;
        }
    }
    world.cpus.iter().all(|cpu| {
        let (exits, flushes, word) = (cpu.exits.get(), cpu.flushes.get(), cpu.word.get());
        let waits = u64::from(word & FLUSH);
        cpu.needless.get() == 0 && exits == flushes + waits + spared(exits, flushes, word)
    })
}

#[test]
fn no_program_runs_on_what_a_guest_has_trained() {
    for seed in 1..=WORLDS {
        assert!(live(seed, Without::Nothing), "world {seed}");
    }
}

#[test]
fn each_rule_is_needed() {
    for without in [Without::OfTheCpu, Without::AtOnce, Without::AnyThread, Without::EveryWay] {
        assert!((1..=WORLDS).any(|seed| !live(seed, without)), "{without:?} is not noticed");
    }
}

#[test]
fn a_thousand_exits_and_one_return_are_one_flush() {
    for way in WAYS {
        let world = World::new(Without::Nothing);
        for _ in 0..1000 {
            world.run_guest(0, None);
        }
        assert!(world.to_user(0, way) && world.to_user(0, way));
        let cpu = &world.cpus[0];
        assert_eq!((cpu.flushes.get(), cpu.needless.get()), (1, 0));
        assert_eq!(spared(cpu.exits.get(), cpu.flushes.get(), cpu.word.get()), 999);
    }
}

/// On another CPU nothing is flushed, though the thread that ran the guest is there now.
#[test]
fn a_flush_is_of_the_cpu() {
    let world = World::new(Without::Nothing);
    world.run_guest(0, Some(1));
    assert!(world.to_user(1, Way::SystemCall));
    assert_eq!(world.cpus[1].flushes.get(), 0);
    assert!(world.to_user(0, Way::Interrupt));
    assert_eq!(world.cpus[0].flushes.get(), 1);
}
