//! How a program is made from a seed: an opening in which it gets descriptors of several kinds, and
//! then calls from the table with arguments that mostly fit.
//!
//! Most errors are found with arguments that fit but for one, so a call's arguments mostly come
//! from what exists: a descriptor of the right kind, a path of the tree (`observe.rs` makes it), an
//! address of the map area.

use super::program::*;
use super::{table_files, table_memory, table_more, table_process, table_sockets, table_sysv};
use crate::fuzz_args::Rng;
use crate::sys::*;

/// Programs of this seed and those after it have the calls of `table_more`, too: those of the seeds
/// before stay what they are, as guest/differ.txt names them.
pub const WIDE_FROM: u64 = 9;
/// Most calls of a program.
const CALLS_MAX: u64 = 50;

/// What a descriptor is, as far as the generator knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Dir,
    Path,
    Proc,
    PipeRead,
    PipeWrite,
    Event,
    Timer,
    Signal,
    Memory,
    Epoll,
    Inotify,
    Unix,
    Tcp,
    Udp,
    Pid,
    Watch,
    PosixTimer,
    Area,
    Queue,
    Semaphores,
    Segment,
    MessageQueue,
}

/// What has a descriptor.
pub const IO: &[Kind] = &[
    Kind::File,
    Kind::Memory,
    Kind::PipeRead,
    Kind::PipeWrite,
    Kind::Unix,
    Kind::Event,
    Kind::Udp,
    Kind::Tcp,
    Kind::Timer,
    Kind::Inotify,
    Kind::Signal,
    Kind::Proc,
];
pub const FILES: &[Kind] = &[Kind::File, Kind::Memory];
pub const PIPES: &[Kind] = &[Kind::PipeRead, Kind::PipeWrite];
pub const SOCKETS: &[Kind] = &[Kind::Unix, Kind::Tcp, Kind::Udp];
pub const DIRS: &[Kind] = &[Kind::Dir];
/// What is no descriptor, but an id.
const IDS: &[Kind] = &[Kind::Queue, Kind::Semaphores, Kind::Segment];

/// A row of the table: the call, how often it is chosen, and what fills its arguments.
pub type Row = (i64, u32, fn(&mut Draft));
/// Flags and modes to choose from.
pub type Flags = &'static [i32];

/// A program in the making.
pub struct Draft {
    pub rng: Rng,
    pub index: u64,
    pub call: Call,
    slots: Vec<Kind>,
    input_at: u16,
    output_at: u16,
    has_child: bool,
    has_thread: bool,
}

/// Program `index` of a seed, with the calls whose bits are set in `keep`; from the 64th on each
/// shares a bit with one before it.
pub fn program(seed: u64, index: u64, keep: u64) -> Program {
    let mixed = (seed << 32 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draft = Draft {
        rng: Rng::new(mixed ^ mixed >> 29),
        index,
        call: blank(),
        slots: vec![],
        input_at: 0,
        output_at: 0,
        has_child: false,
        has_thread: false,
    };
    let is_user = draft.rng.below(2) == 0;
    // A third of all programs have one subject; the others mix.
    let subjects = [
        table_files::ROWS,
        table_memory::ROWS,
        table_process::ROWS,
        table_sockets::ROWS,
        table_sysv::ROWS,
    ];
    let is_wide = seed >= WIDE_FROM;
    let more = if is_wide { table_more::ROWS } else { &[] };
    let rows: Vec<Row> = match draft.rng.below(if is_wide { 12 } else { 9 }) {
        0..2 => table_files::ROWS.to_vec(),
        2 => table_memory::ROWS.to_vec(),
        3 => table_process::ROWS.to_vec(),
        4 => table_sockets::ROWS.to_vec(),
        5 => table_sysv::ROWS.to_vec(),
        9..11 => more.to_vec(),
        _ => [&subjects.concat()[..], more].concat(),
    };
    let mut openers: Vec<Row> = table_files::OPENERS.to_vec();
    openers.extend(table_sockets::OPENERS);
    draft.has_thread = draft.rng.below(5) == 0;
    let forks = draft.rng.below(4) == 0;
    let mut calls = Vec::new();
    for _ in 0..draft.rng.below(9) {
        calls.push(draft.make(&openers, false));
    }
    let wanted = 1 + draft.rng.below(CALLS_MAX - calls.len() as u64);
    let fork_at = draft.rng.below(wanted);
    for number in 0..wanted {
        if forks && number == fork_at {
            calls.push(draft.fork());
        }
        calls.push(draft.make(&rows, true));
    }
    let kept = |number: usize| keep >> (number % 64) & 1 == 1;
    let calls = calls
        .into_iter()
        .enumerate()
        .filter(|(number, call)| kept(*number) && (is_user || !call.only_for_user));
    Program { is_user, calls: calls.map(|(_, call)| call).collect() }
}

fn blank() -> Call {
    Call {
        actor: Actor::Main,
        nr: 0,
        args: vec![],
        special: Special::No,
        value: Value::Plain,
        slot: None,
        input: vec![],
        fixes: vec![],
        norms: vec![],
        shows: vec![],
        only_for_user: false,
    }
}

impl Draft {
    fn make(&mut self, rows: &[Row], any_actor: bool) -> Call {
        self.call = blank();
        (self.input_at, self.output_at) = (0, 0);
        let sum: u32 = rows.iter().map(|row| row.1).sum();
        let mut at = self.rng.below(u64::from(sum)) as u32;
        let row = rows.iter().find(|row| {
            let found = at < row.1;
            at = at.wrapping_sub(row.1);
            found
        });
        let row = row.unwrap_or(&rows[0]);
        self.call.nr = row.0 as u32;
        if any_actor {
            self.call.actor = match self.rng.below(10) {
                0..3 if self.has_child => Actor::Child,
                3..5 if self.has_thread => Actor::Thread,
                _ => Actor::Main,
            };
        }
        (row.2)(self);
        std::mem::replace(&mut self.call, blank())
    }

    fn fork(&mut self) -> Call {
        self.has_child = true;
        let more = [0, 0, 0, 0, CLONE_FILES, CLONE_FS, CLONE_FILES | CLONE_FS, CLONE_SYSVSEM];
        // None that ends the parent: when a child that was killed is gone is not fixed.
        let signal = self.rng.of(&[SIGCHLD, SIGCHLD, SIGCHLD, 0, SIGURG]);
        let flags = (self.rng.of(&more) | signal) as u64;
        let args = vec![Arg::Number(flags)];
        Call { special: Special::Fork(flags), value: Value::Id, args, ..blank() }
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }

    /// Passes this number.
    pub fn num(&mut self, value: i64) {
        self.call.args.push(Arg::Number(value as u64));
    }

    /// Passes one of these.
    pub fn of(&mut self, choices: &[i64]) {
        let value = self.rng.of(choices);
        self.num(value);
    }

    /// One of these alone.
    pub fn one(&mut self, choices: Flags) {
        let value = match self.rng.below(40) {
            0 => 0x7777_7777,
            1 => 1 << self.rng.below(31),
            _ => self.rng.of(choices),
        };
        self.num(i64::from(value));
    }

    /// Some of these together, seldom one that is unknown.
    pub fn flags(&mut self, choices: Flags) {
        let mut value = 0;
        for _ in 0..self.rng.below(4) {
            value |= self.rng.of(choices);
        }
        if self.chance(40) {
            value |= 1 << self.rng.below(31);
        }
        self.num(i64::from(value));
    }

    /// A descriptor of one of these kinds, mostly.
    pub fn pick(&mut self, kinds: &[Kind]) -> Arg {
        let all = 0..self.slots.len();
        let fits: Vec<usize> =
            all.clone().filter(|&slot| kinds.contains(&self.slots[slot])).collect();
        // Ids of System V are other numbers on each kernel: they are nothing but ids.
        let others: Vec<usize> = all.filter(|&slot| !IDS.contains(&self.slots[slot])).collect();
        let is_id = kinds.first().is_some_and(|kind| IDS.contains(kind));
        match self.rng.below(40) {
            0 => Arg::Number(self.rng.of(&[u64::MAX, 999, 1 << 31, 0, AT_FDCWD as u64])),
            1..5 if !is_id && !others.is_empty() => Arg::Slot(self.rng.of(&others) as u8),
            _ if !fits.is_empty() => Arg::Slot(self.rng.of(&fits) as u8),
            _ if !is_id && !others.is_empty() => Arg::Slot(self.rng.of(&others) as u8),
            _ => Arg::Number(u64::MAX),
        }
    }

    pub fn fd(&mut self, kinds: &[Kind]) {
        let fd = self.pick(kinds);
        self.call.args.push(fd);
    }

    /// What the first argument is, if it is a result.
    pub fn kind_of_first(&self) -> Option<Kind> {
        match self.call.args.first() {
            Some(Arg::Slot(slot)) => self.slots.get(usize::from(*slot)).copied(),
            _ => None,
        }
    }

    /// Some of these together with what keeps the call from waiting.
    pub fn flags_with(&mut self, always: i32, choices: Flags) {
        self.flags(choices);
        if let Some(Arg::Number(flags)) = self.call.args.last_mut() {
            *flags |= always as u64;
        }
    }

    /// Flags of open(2): no FIFO without O_NONBLOCK, which would wait.
    pub fn flags_nonblocking(&mut self, choices: Flags) {
        self.flags_with(if self.has_fifo_path() { O_NONBLOCK } else { 0 }, choices);
    }

    fn has_fifo_path(&self) -> bool {
        self.call.input.iter().any(|(_, bytes)| bytes.contains(&b'p') || bytes.contains(&b'w'))
    }

    /// The words there are read back: what the kernel writes into a call's input is recorded.
    pub fn shows(&mut self, at: u16, bytes: u16) {
        self.call.shows.push((at, bytes));
    }

    pub fn shows_words(&mut self, at: u16, offsets: &[u16]) {
        for offset in offsets {
            self.shows(at + offset, 8);
        }
    }

    /// A path, something between, and flags.
    pub fn path_flags_swapped(&mut self, between: fn(&mut Draft), choices: Flags) {
        self.path_flags(choices);
        let flags = self.call.args.pop();
        between(self);
        self.call.args.extend(flags);
    }

    /// A path at which no open waits.
    pub fn path_without_fifo(&mut self) {
        self.path();
        let bytes = self.call.input.last_mut();
        if let Some((_, bytes)) = bytes.filter(|(_, bytes)| bytes.contains(&b'p')) {
            bytes.iter_mut().filter(|b| **b == b'p').for_each(|b| *b = b'q');
        }
    }

    /// No time at all, or a bad time.
    pub fn short_zero(&mut self) {
        let words = self.rng.of(&[[0u64, 0], [0, 0], [0, 0], [0, 1_000_000_000], [u64::MAX, 0]]);
        self.words(&words);
    }

    /// A timer's id comes back in memory.
    pub fn makes_timer(&mut self) {
        let at = self.out(4);
        if let Some(slot) = self.slot(Kind::PosixTimer) {
            self.call.norms.push((at, Norm::Timer(slot)));
        }
    }

    /// An id, or one of these.
    pub fn id_or(&mut self, choices: &[i64]) {
        match self.chance(2) {
            true => self.of(choices),
            false => self.id(),
        }
    }

    /// The call would change the machine if it were allowed: only programs without rights make it.
    pub fn only_for_user(&mut self) {
        self.call.only_for_user = true;
    }

    /// Any descriptor.
    pub fn any_fd(&mut self) {
        self.fd(&[]);
    }

    /// Where a path begins: mostly the working directory.
    pub fn dirfd(&mut self) {
        match self.rng.below(4) {
            0 => self.fd(DIRS),
            _ => self.num(i64::from(AT_FDCWD)),
        }
    }

    /// The value becomes a result of this kind.
    pub fn makes(&mut self, kind: Kind) {
        self.call.slot = self.slot(kind);
    }

    /// A new result, while there is room.
    pub fn slot(&mut self, kind: Kind) -> Option<u8> {
        if self.slots.len() == SLOTS {
            return None;
        }
        self.slots.push(kind);
        Some(self.slots.len() as u8 - 1)
    }

    /// Two descriptors come back in memory.
    pub fn makes_pair(&mut self, first: Kind, second: Kind) {
        let at = self.out(8);
        if let (Some(a), Some(b)) = (self.slot(first), self.slot(second)) {
            self.call.norms.push((at, Norm::Pair(a, b)));
        }
    }

    /// Puts bytes into the input area; their offset.
    pub fn put(&mut self, bytes: &[u8]) -> u16 {
        let at = self.input_at;
        if usize::from(at) + bytes.len() + 8 > INPUT_BYTES {
            return 0;
        }
        self.call.input.push((at, bytes.to_vec()));
        self.input_at += (bytes.len() as u16 + 7) & !7;
        at
    }

    /// An argument becomes part of what was put.
    pub fn fix(&mut self, at: u16, bytes: u8, arg: Arg) {
        self.call.fixes.push((at, bytes, arg));
    }

    /// Passes the address of these bytes, seldom a bad one.
    pub fn input(&mut self, bytes: &[u8]) -> u16 {
        let at = self.put(bytes);
        let good = INPUT + usize::from(at);
        let address = match self.rng.below(60) {
            0 => self.bad_address(),
            1 => good + INPUT_BYTES,
            _ => good,
        };
        self.num(address as i64);
        at
    }

    pub fn words(&mut self, words: &[u64]) -> u16 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.input(&bytes)
    }

    /// As [`Self::words`] where NULL means something.
    pub fn words_or_null(&mut self, words: &[u64]) {
        match self.chance(3) {
            true => self.num(0),
            false => drop(self.words(words)),
        }
    }

    fn bad_address(&mut self) -> usize {
        let bad = [0, 8, OUTPUT + OUTPUT_BYTES, 0xffff_8000_0000_0000, 1 << 47, usize::MAX];
        self.rng.of(&bad)
    }

    /// Room for this many bytes of output; its offset.
    pub fn room(&mut self, bytes: usize) -> u16 {
        let at = self.output_at;
        let end = usize::from(at) + bytes;
        self.output_at = (end.min(OUTPUT_BYTES - 64) as u16 + 7) & !7;
        at
    }

    /// Passes the address of room for output; seldom a bad one, or one whose end is bad.
    pub fn out(&mut self, bytes: usize) -> u16 {
        let mut at = self.room(bytes);
        if self.chance(60) {
            // Its end lies in the page that is not accessible.
            at = (OUTPUT_BYTES - (bytes / 2).min(2048)) as u16;
        }
        let address = match self.rng.below(60) {
            0 => self.bad_address(),
            1 => READ_ONLY,
            _ => OUTPUT + usize::from(at),
        };
        self.num(address as i64);
        at
    }

    pub fn out_as(&mut self, bytes: usize, norm: Norm) {
        let at = self.out(bytes);
        self.call.norms.push((at, norm));
    }

    pub fn out_or_null(&mut self, bytes: usize, norm: Norm) {
        match self.chance(3) {
            true => self.num(0),
            false => self.out_as(bytes, norm),
        }
    }

    /// A length of something to transfer.
    pub fn a_length(&mut self) -> u64 {
        match self.rng.below(16) {
            0 => 0,
            1 => self.rng.of(&[u64::MAX, 1 << 31, i64::MAX as u64, 0x7fff_f000, 1 << 63]),
            2..5 => self.rng.of(&[4096, 4095, 4097, 2048, 8192, 65536, 5000]),
            5..8 => self.rng.below(4096),
            _ => self.rng.below(40),
        }
    }

    pub fn length(&mut self) {
        let length = self.a_length();
        self.num(length as i64);
    }

    /// A position in a file.
    pub fn offset(&mut self) {
        let value = match self.rng.below(16) {
            0 => self.rng.of(&[-1, i64::MIN, i64::MAX, -4096, 1 << 40]),
            1..4 => self.rng.of(&[4096, 8192, 65536, 4095, 6000, 1 << 20]),
            4..8 => self.rng.below(8000) as i64,
            _ => self.rng.below(100) as i64,
        };
        self.num(value);
    }

    /// Passes memory to read from and its length.
    pub fn data(&mut self) {
        let length = self.a_length();
        let text: Vec<u8> =
            (0..length.min(2048)).map(|at| b'a' + ((at + self.index) % 26) as u8).collect();
        self.input(&text);
        self.num(length.min(1 << 32) as i64);
    }

    /// Passes memory to write to and its length.
    pub fn buffer(&mut self) -> u16 {
        let length = self.a_length();
        let length = if length > 1 << 20 { length } else { length.min(OUTPUT_BYTES as u64 - 1024) };
        let at = self.out(length.min(2048) as usize);
        self.num(length as i64);
        at
    }

    /// Passes an iovec array and its length.
    pub fn iovecs(&mut self, is_output: bool) {
        let count = match self.rng.below(20) {
            0 => 0,
            1 => self.rng.of(&[1025, u64::MAX, 1 << 31]),
            _ => 1 + self.rng.below(4),
        };
        let mut words = Vec::new();
        for _ in 0..count.min(5) {
            let bytes = match self.rng.below(12) {
                0 => 0,
                1 => self.rng.of(&[u64::MAX, i64::MAX as u64, 1 << 31]),
                _ => 1 + self.rng.below(300),
            };
            let room = match is_output {
                true => OUTPUT + usize::from(self.room(bytes.min(300) as usize)),
                false => INPUT + usize::from(self.put(b"0123456789abcdefghijklmnopqrstuvwxyz")),
            };
            let bad = if self.chance(24) { self.bad_address() } else { room };
            words.extend([bad as u64, bytes]);
        }
        self.words(&words);
        self.num(count as i64);
    }

    /// A path, as bytes.
    pub fn a_path(&mut self) -> Vec<u8> {
        let name = self.rng.of(PATHS);
        let mut path = match self.rng.below(24) {
            0 => format!("./{name}"),
            1 => format!("d/../{name}"),
            2 => format!("{name}/"),
            3 => format!("d//.//../{name}"),
            4 => format!("{name}/."),
            5 => format!("{name}/.."),
            6 => format!("{name}/x"),
            7 => format!("/tmp/differ/w/{name}"),
            8 => format!("ld/{name}"),
            9 => format!("../w/{name}"),
            _ => name.to_owned(),
        };
        if self.chance(80) {
            let bytes = self.rng.of(&[255, 256, 4095, 4096, 4097]);
            path = "n".repeat(bytes);
            if bytes > 256 {
                path = "./".repeat(bytes / 2) + if bytes % 2 == 1 { "f" } else { "" };
            }
        }
        let mut bytes = path.into_bytes();
        bytes.push(0);
        bytes
    }

    pub fn path(&mut self) {
        let path = self.a_path();
        self.input(&path);
    }

    /// A path, or nothing and AT_EMPTY_PATH.
    pub fn path_flags(&mut self, choices: Flags) {
        if self.chance(5) {
            self.input(b"\0");
            let more = if self.chance(4) { self.rng.of(choices) } else { 0 };
            self.num(i64::from(AT_EMPTY_PATH | more));
        } else {
            self.path();
            self.flags(choices);
        }
    }

    pub fn mode(&mut self) {
        let modes =
            [0o644, 0o755, 0o777, 0, 0o400, 0o4755, 0o2755, 0o1777, 0o200, 0o2644, 0o100_644];
        self.of(&modes);
    }

    /// A page of the map area, and the length of some pages.
    pub fn pages(&mut self) {
        self.page();
        self.page_length();
    }

    pub fn page(&mut self) {
        let page = MAPS + self.rng.below(MAP_PAGES as u64) as usize * PAGE;
        let address = match self.rng.below(60) {
            0 => page + 1,
            1 => self.rng.of(&[0, 1 << 47, usize::MAX & !4095, (1 << 47) - PAGE, INPUT + 3 * PAGE]),
            2 => page + 0x800,
            _ => page,
        };
        self.num(address as i64);
    }

    pub fn page_length(&mut self) {
        let length = match self.rng.below(40) {
            0 => 0,
            1 => self.rng.of(&[-1, -4096]),
            2 => 1 + self.rng.below(4095) as i64,
            _ => (1 + self.rng.below(6) as i64) * PAGE as i64,
        };
        self.num(length);
    }

    /// An id of a process of the program, or of nobody.
    pub fn id(&mut self) {
        let arg = match self.rng.below(12) {
            0 => Arg::Number(1 << 22 | 5),
            1 => Arg::Number(self.rng.of(&[u64::MAX << 31, 1 << 31])),
            2..4 => Arg::Number(0),
            4..8 => Arg::Id(Actor::Main),
            8 => Arg::Id(Actor::Thread),
            _ => Arg::Id(Actor::Child),
        };
        self.call.args.push(arg);
    }

    /// A signal that a program can live with.
    pub fn signal(&mut self) {
        let signals =
            [SIGUSR1, SIGUSR1, SIGUSR2, SIGCHLD, SIGWINCH, SIGURG, 40, 41, SIGALRM, SIGIO];
        let value = match self.rng.below(30) {
            0 => 0,
            1 => self.rng.of(&[65, -1, 64 + 32, 1 << 20]),
            2 => self.rng.of(&[SIGTERM, SIGCONT, SIGPIPE, SIGHUP, SIGINT]),
            _ => self.rng.of(&signals),
        };
        self.num(i64::from(value));
    }

    /// A set of signals, never that of the watcher.
    pub fn a_signal_set(&mut self) -> u64 {
        let some = bit(SIGUSR1) | bit(SIGUSR2) | bit(SIGCHLD) | bit(40);
        let sets = [0, some, bit(SIGUSR1), bit(40) | bit(41), bit(SIGIO), !0, bit(SIGUSR2)];
        self.rng.of(&sets) & !bit(super::run::WATCHER_SIGNAL) & !bit(SIGSEGV) & !bit(SIGBUS)
    }
}

/// What is in the tree, was not in it, or becomes part of it.
const PATHS: &[&str] = &[
    "f",
    "f",
    "f",
    "e",
    "h",
    "d",
    "d",
    "d/g",
    "d/s",
    "d/s/t",
    "l",
    "ld",
    "ld/g",
    "dangling",
    "loop",
    "p",
    "ro",
    "none",
    "sp",
    "sticky",
    "rooted",
    "x",
    "new",
    "new2",
    "d/new",
    "d/s/new",
    "missing",
    "missing/x",
    "f/x",
    ".",
    "..",
    "d/.",
    "d/..",
    "big",
    "big2",
    "sock",
    "/dev/null",
    "/dev/zero",
];
