//! The machine of the search. Stores go through a buffer for each CPU and become visible in order;
//! a TLB (and what was fetched of text) may be filled at any time, by nobody's wish, from memory as
//! it is then; interrupts and NMIs come between any two operations that allow them.
//!
//! One kernel address per sender stands for what it changes: 0 is the old translation, 1 the new.

use context_tracking::state::AT_BOOT;

/// Most CPUs in a case.
pub(crate) const CPUS: usize = 3;

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The state word of a CPU.
    Word(usize),
    /// The page-table entry that a sender changes; text if the case is about text.
    Entry(usize),
}

/// Where a CPU is, by what it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    User,
    /// In the kernel before the word says so, or after it has ceased to: no interrupts.
    Zone,
    /// In the kernel, interrupts allowed.
    Kernel,
    /// In a handler, interrupts masked.
    Handler,
}

/// What a CPU asks of the machine next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Load(usize),
    CompareExchange(usize, u32, u32),
    Or(usize, u32),
    And(usize, u32),
    /// A plain store, through the buffer.
    Store(Place, u32),
    Barrier,
    Send(usize),
    /// Drops all translations, and all that was fetched.
    Flush,
    /// Uses every kernel address.
    Use,
    /// The CPU is somewhere else now.
    Mark(Mode),
    /// Takes the requests that were sent to this CPU, as a mask of senders.
    Take,
    Acknowledge(u32),
    /// Blocks until these CPUs have acknowledged.
    Wait(u32),
    /// The sender's change counts from here: nobody may use the old.
    Done,
    /// Which CR3 this is, as a careless NMI would ask: 1 the kernel's.
    ReadCr3,
}

/// One program on a CPU's stack: the thread, or a handler above it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    /// What its operations returned so far; it is run again from the start to find the next one.
    pub(crate) log: Vec<u32>,
    pub(crate) mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FrameKind {
    Thread,
    /// From user mode: an entry like any other.
    InterruptOfUser,
    InterruptOfKernel,
    Nmi,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cpu {
    pub(crate) frames: Vec<Frame>,
    pub(crate) buffer: Vec<(Place, u32)>,
    /// Cached translation of each sender's address.
    pub(crate) tlb: [Option<u32>; CPUS],
    /// Senders whose change was there at the last flush, one bit each.
    pub(crate) fresh: u32,
    /// Senders that wait for this CPU.
    pub(crate) asked: u32,
    pub(crate) nmis: u8,
    /// Whether the program's tables are loaded.
    pub(crate) user_cr3: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) words: [u32; CPUS],
    pub(crate) entries: [u32; CPUS],
    pub(crate) done: u32,
    /// For each sender, who has acknowledged.
    pub(crate) acknowledged: [u32; CPUS],
    pub(crate) cpus: Vec<Cpu>,
}

impl World {
    pub(crate) fn new(in_user: &[bool], nmis: u8) -> World {
        let cpu = |&user: &bool| Cpu {
            frames: vec![Frame {
                kind: FrameKind::Thread,
                log: vec![],
                mode: if user { Mode::User } else { Mode::Kernel },
            }],
            buffer: vec![],
            tlb: [None; CPUS],
            fresh: 0,
            asked: 0,
            nmis: if user { nmis } else { 0 },
            user_cr3: user,
        };
        let mut words = [AT_BOOT; CPUS];
        for (word, &user) in words.iter_mut().zip(in_user) {
            *word = if user { 0 } else { AT_BOOT };
        }
        World {
            words,
            entries: [0; CPUS],
            done: 0,
            acknowledged: [0; CPUS],
            cpus: in_user.iter().map(cpu).collect(),
        }
    }

    pub(crate) fn mode(&self, cpu: usize) -> Mode {
        self.cpus[cpu].frames.last().map_or(Mode::User, |frame| frame.mode)
    }

    fn memory(&mut self, place: Place) -> &mut u32 {
        match place {
            Place::Word(cpu) => &mut self.words[cpu],
            Place::Entry(sender) => &mut self.entries[sender],
        }
    }

    /// The value as `cpu` sees it: its own buffered stores first.
    pub(crate) fn read(&mut self, cpu: usize, place: Place) -> u32 {
        let buffered = self.cpus[cpu].buffer.iter().rev().find(|(at, _)| *at == place);
        buffered.map(|(_, value)| *value).unwrap_or_else(|| *self.memory(place))
    }

    /// Makes the oldest buffered store of `cpu` visible.
    pub(crate) fn drain_one(&mut self, cpu: usize) {
        let (place, value) = self.cpus[cpu].buffer.remove(0);
        *self.memory(place) = value;
    }

    pub(crate) fn drain(&mut self, cpu: usize) {
        while !self.cpus[cpu].buffer.is_empty() {
            self.drain_one(cpu);
        }
    }

    /// What must be visible before an atomic operation of `cpu` on `place`: everything, or (on a
    /// machine weaker than x86) what went to that place.
    pub(crate) fn before_atomic(&mut self, cpu: usize, place: Place, drains: bool) {
        let is_buffered = |world: &World| world.cpus[cpu].buffer.iter().any(|(at, _)| *at == place);
        if drains {
            self.drain(cpu);
        }
        while is_buffered(self) {
            self.drain_one(cpu);
        }
    }

    /// A walk by nobody's wish.
    pub(crate) fn fill(&mut self, cpu: usize, sender: usize) {
        let value = self.entries[sender];
        self.cpus[cpu].tlb[sender] = Some(value);
    }

    pub(crate) fn flush(&mut self, cpu: usize) {
        self.cpus[cpu].tlb = [None; CPUS];
        for sender in 0..CPUS {
            if self.entries[sender] == 1 {
                self.cpus[cpu].fresh |= 1 << sender;
            }
        }
    }
}
