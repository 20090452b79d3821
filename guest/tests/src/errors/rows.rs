//! What a call's arguments can be, and the rows that come of it: one argument at a time replaced by
//! each wrong one of its kind, then each two by their worst.

use super::fixture::{self, KINDS, Kind, NOBODY, PATHS, SHARED_INODES};
use crate::sys::*;

const PAGE: usize = 4096;
/// Pages for each argument: what is read, what is written, what can only be read, what ends.
const LAYOUT: [&str; 4] = ["good", "readonly", "end", "hole"];
const ARGS_MAX: usize = 6;
const LOW: usize = 8;
const KERNEL: usize = 0xffff_8880_0000_0000;
const ODD: usize = 0x8000_0000_0000;
/// Bad addresses, whatever is done with them.
const BAD: [(&str, usize); 4] = [("null", 0), ("low", LOW), ("kernel", KERNEL), ("odd", ODD)];
/// Counts of bytes.
const SIZES: [(&str, usize); 6] = [
    ("0", 0),
    ("1", 1),
    ("2^31-1", 0x7fff_ffff),
    ("2^31", 0x8000_0000),
    ("2^63-1", i64::MAX as usize),
    ("-1", usize::MAX),
];

/// An argument, as it is when nothing is wrong, and so the ways it can be wrong.
#[derive(Clone, Debug)]
pub enum Arg {
    /// A number that stays.
    Number(i64),
    /// A descriptor: each kind is tried.
    Fd(Kind),
    /// A descriptor whose inode the call may change.
    OwnFd(Kind),
    /// A descriptor that stays.
    Fixed(Kind),
    /// A folder's descriptor for a path: AT_FDCWD, then each kind.
    At,
    /// Words that are read: the good ones, and the wrong ones with their names.
    In(&'static [u64], &'static [(&'static str, &'static [u64])]),
    /// A time to wait for, as words: without one the call would wait for ever.
    Limit(&'static [u64], &'static [(&'static str, &'static [u64])]),
    /// Bytes that are written.
    Out,
    /// A count of bytes.
    Size(usize),
    /// A path: each of [`PATHS`] is tried.
    Path(&'static str),
    /// A text that stays, or bad pointers.
    Text(&'static str, &'static [&'static str]),
    /// Bits: each one more is tried.
    Flags(i64),
    /// A number, and wrong ones, the worst last.
    Values(i64, &'static [i64]),
    /// A process, 0 being oneself.
    Process(i64),
    /// A vector of one buffer, which is written (true) or read.
    Vector(bool),
    /// A message header.
    Message,
}

macro_rules! from_numbers {
    ($($kind:ty)*) => {
        $(impl From<$kind> for Arg {
            fn from(number: $kind) -> Self {
                Arg::Number(number as i64)
            }
        })*
    };
}
from_numbers! { i32 i64 u32 u64 usize }

/// Who calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    User,
    Both,
    Root,
}

impl Who {
    pub fn each(self) -> &'static [Who] {
        match self {
            Who::Root => &[Who::Root],
            Who::User => &[Who::User],
            Who::Both => &[Who::Root, Who::User],
        }
    }
}

/// A call with good arguments.
pub struct Call {
    /// The call's name, and what tells it from others of that name.
    pub name: &'static str,
    pub who: Who,
    pub args: Vec<Arg>,
    /// What it changes is not undone by closing descriptors: a process for each success.
    pub keeps: bool,
    number: usize,
}

/// `row!(NAME, ARGUMENT, …)`: a call by anybody; numbers are arguments that stay.
#[macro_export]
macro_rules! row {
    ($name:literal $(, $arg:expr)* $(,)?) => {
        $crate::errors::rows::Call::new($name, vec![$($crate::errors::rows::Arg::from($arg)),*])
    };
}

/// `calls! { NAME: row!(…), … }`: a function that gives these calls.
#[macro_export]
macro_rules! calls {
    ($name:ident: $($row:expr),* $(,)?) => {
        pub fn $name() -> Vec<$crate::errors::rows::Call> {
            vec![$($row),*]
        }
    };
}

/// One way to provoke it: arguments replaced.
#[derive(Clone, Debug)]
pub struct Row {
    pub axis: String,
    pub name: String,
    wrong: Vec<(usize, Wrong)>,
}

/// A wrong argument.
#[derive(Clone, Debug)]
enum Wrong {
    Value(usize),
    Kind(Kind),
    Path(&'static str),
    Words(&'static [u64]),
    ReadOnly,
    End,
    Field(&'static str),
}

impl Call {
    pub fn new(name: &'static str, args: Vec<Arg>) -> Self {
        let word = name.split(' ').next().unwrap_or(name);
        let number = (0..1000).find(|n| abi::syscalls::name(*n) == Some(word));
        let number = number.unwrap_or_else(|| panic!("no call is named {word}")) as usize;
        Call { name, who: Who::Both, args, keeps: false, number }
    }

    /// Only the user's: root could do harm.
    pub fn user(mut self) -> Self {
        self.who = Who::User;
        self
    }

    /// A success changes what later rows see.
    pub fn keeps(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// True if a success needs a new folder or process for the next row.
    pub fn changes(&self) -> bool {
        self.keeps || self.args.iter().any(|arg| matches!(arg, Arg::Path(_) | Arg::At))
    }

    /// All rows: none wrong, each argument wrong in each way, each two in the worst way.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows =
            vec![Row { axis: "-".to_owned(), name: "good".to_owned(), wrong: Vec::new() }];
        let mut worst = Vec::new();
        for (at, arg) in self.args.iter().enumerate() {
            let wrongs = arg.wrongs();
            rows.extend(wrongs.iter().map(|(name, wrong)| Row {
                axis: at.to_string(),
                name: name.clone(),
                wrong: vec![(at, wrong.clone())],
            }));
            worst.extend(arg.worst().map(|wrong| (at, wrong)));
        }
        for (number, first) in worst.iter().enumerate() {
            for second in &worst[number + 1..] {
                rows.push(Row {
                    axis: format!("{}+{}", first.0, second.0),
                    name: "worst".to_owned(),
                    wrong: vec![first.clone(), second.clone()],
                });
            }
        }
        rows
    }
}

fn values(list: impl IntoIterator<Item = (String, usize)>) -> Vec<(String, Wrong)> {
    list.into_iter().map(|(name, value)| (name, Wrong::Value(value))).collect()
}

fn worded(more: &'static [(&'static str, &'static [u64])]) -> Vec<(&'static str, Wrong)> {
    more.iter().map(|(name, words)| (*name, Wrong::Words(words))).collect()
}

fn kinds() -> Vec<(String, Wrong)> {
    KINDS.iter().map(|(kind, name)| ((*name).to_owned(), Wrong::Kind(*kind))).collect()
}

impl Arg {
    fn wrongs(&self) -> Vec<(String, Wrong)> {
        let bad = || values(BAD.map(|(name, at)| (name.to_owned(), at)));
        let with = |mut list: Vec<(String, Wrong)>, more: &[(&str, Wrong)]| {
            list.extend(more.iter().map(|(name, wrong)| ((*name).to_owned(), wrong.clone())));
            list
        };
        match self {
            Arg::Number(_) | Arg::Fixed(_) => Vec::new(),
            Arg::Fd(_) | Arg::At => kinds(),
            Arg::OwnFd(_) => {
                let is_shared = |wrong: &Wrong| match wrong {
                    Wrong::Kind(kind) => SHARED_INODES.contains(kind),
                    _ => false,
                };
                kinds().into_iter().filter(|(_, wrong)| !is_shared(wrong)).collect()
            }
            Arg::In(_, more) => {
                let list = with(bad(), &[("hole", Wrong::End)]);
                with(list, &worded(more))
            }
            Arg::Limit(_, more) => {
                let list = with(bad()[1..].to_vec(), &[("hole", Wrong::End)]);
                with(list, &worded(more))
            }
            Arg::Out => with(bad(), &[("hole", Wrong::End), ("readonly", Wrong::ReadOnly)]),
            Arg::Size(_) => values(SIZES.map(|(name, size)| (name.to_owned(), size))),
            Arg::Path(_) => {
                let list = with(bad(), &[("hole", Wrong::End)]);
                let paths = PATHS.iter().map(|path| {
                    let name = if path.is_empty() { "empty" } else { path };
                    (name.to_owned(), Wrong::Path(path))
                });
                list.into_iter().chain(paths).collect()
            }
            Arg::Text(_, more) => {
                let list = with(bad(), &[("hole", Wrong::End)]);
                let texts = more.iter().map(|text| {
                    let name = if text.is_empty() { "empty" } else { text };
                    (name.replace(' ', "_"), Wrong::Path(text))
                });
                list.into_iter().chain(texts).collect()
            }
            Arg::Flags(good) => {
                let bits = (0..32).filter(|bit| good >> bit & 1 == 0);
                values(bits.map(|bit| (format!("b{bit}"), *good as usize | 1 << bit)))
            }
            Arg::Values(_, more) => values(more.iter().map(|v| (v.to_string(), *v as usize))),
            Arg::Process(_) => values(
                [NOBODY, i64::from(i32::MIN), 1 << 31 | 5]
                    .map(|pid| (pid.to_string(), pid as usize)),
            ),
            Arg::Vector(is_out) => {
                let list = with(bad(), &[("hole", Wrong::End)]);
                let fields = ["base-low", "base-kernel", "length--1"].map(|f| (f, Wrong::Field(f)));
                let list = with(list, &fields);
                let more = [("base-readonly", Wrong::Field("base-readonly"))];
                with(list, if *is_out { &more } else { &[] })
            }
            Arg::Message => {
                let list = with(bad(), &[("hole", Wrong::End)]);
                with(list, &MESSAGE_FIELDS.map(|field| (field, Wrong::Field(field))))
            }
        }
    }

    /// The wrong argument that stands for all in pairs.
    fn worst(&self) -> Option<Wrong> {
        Some(match self {
            Arg::Number(_) | Arg::Fixed(_) => return None,
            Arg::Fd(_) | Arg::OwnFd(_) | Arg::At => Wrong::Kind(Kind::Closed),
            Arg::In(..) | Arg::Limit(..) | Arg::Out | Arg::Path(_) | Arg::Text(..) => {
                Wrong::Value(LOW)
            }
            Arg::Vector(_) | Arg::Message => Wrong::Value(LOW),
            Arg::Size(_) => Wrong::Value(usize::MAX),
            Arg::Flags(_) => Wrong::Value(usize::MAX),
            Arg::Values(_, more) => Wrong::Value(*more.last()? as usize),
            Arg::Process(_) => Wrong::Value(NOBODY as usize),
        })
    }
}

/// Ways in which a message header is wrong.
const MESSAGE_FIELDS: [&str; 9] = [
    "name-low",
    "name-length--1",
    "name-length-200",
    "vector-low",
    "vectors-1025",
    "base-low",
    "control-low",
    "control-length--1",
    "control-short",
];

/// So far from the end of user space that a count of 2^31 does not reach it, wherever the kernel
/// puts other mappings in this run.
const PLACE: usize = 1 << 44;

/// Where arguments point.
pub struct Memory {
    base: usize,
}

impl Memory {
    pub fn new() -> Self {
        let (len, flags) = (ARGS_MAX * LAYOUT.len() * PAGE, MAP_PRIVATE | MAP_ANONYMOUS);
        let flags = flags | MAP_FIXED_NOREPLACE;
        let base = mmap(PLACE, len, PROT_READ | PROT_WRITE, flags, -1, 0).must();
        let memory = Memory { base };
        for arg in 0..ARGS_MAX {
            unmap(memory.page(arg, 3) as *mut u8, PAGE);
        }
        memory
    }

    fn page(&self, arg: usize, which: usize) -> usize {
        self.base + (arg * LAYOUT.len() + which) * PAGE
    }

    /// Puts bytes in an argument's page that is good, with zeros behind them.
    fn put(&self, arg: usize, bytes: &[u8]) -> usize {
        let at = self.page(arg, 0);
        // SAFETY: a page of this program's own; longer inputs than a page go on into the next two,
        // which are there.
        unsafe {
            std::ptr::write_bytes(at as *mut u8, 0, PAGE);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
        }
        at
    }

    /// Words in the good page, behind what else is in it.
    fn put_words(&self, arg: usize, words: &[u64]) -> usize {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(arg, &bytes)
    }

    /// The last byte before a hole: what begins there is not all there.
    fn end(&self, arg: usize) -> usize {
        let at = self.page(arg, 3) - 1;
        // SAFETY: the page in front of the hole is there.
        unsafe { (at as *mut u8).write(b'x') };
        at
    }

    fn read_only(&self, arg: usize) -> usize {
        let at = self.page(arg, 1);
        crate::sc!(SYS_mprotect, at, PAGE, PROT_READ).is(0);
        at
    }
}

impl Row {
    /// Makes the call.
    pub fn call(&self, call: &Call, memory: &Memory) -> Res {
        let mut args = [0usize; ARGS_MAX];
        for (at, arg) in call.args.iter().enumerate() {
            let wrong = self.wrong.iter().find(|(which, _)| *which == at).map(|(_, wrong)| wrong);
            args[at] = match (wrong, arg) {
                (None, arg) => good(arg, at, memory),
                (Some(Wrong::Value(value)), _) => *value,
                (Some(Wrong::Kind(kind)), _) => fixture::descriptor(*kind) as usize,
                (Some(Wrong::Path(path)), _) => memory.put(at, &fixture::path_bytes(path)),
                (Some(Wrong::Words(words)), _) => memory.put_words(at, words),
                (Some(Wrong::ReadOnly), _) => memory.read_only(at),
                (Some(Wrong::End), _) => memory.end(at),
                (Some(Wrong::Field(field)), Arg::Message) => message(at, memory, field),
                (Some(Wrong::Field(field)), _) => vector(at, memory, field),
            };
        }
        let answer = crate::sys::call(call.number, &args[..call.args.len()]);
        for (at, wrong) in &self.wrong {
            if matches!(wrong, Wrong::ReadOnly | Wrong::Field("base-readonly")) {
                let prot = PROT_READ | PROT_WRITE;
                crate::sc!(SYS_mprotect, memory.page(*at, 1), PAGE, prot).is(0);
            }
        }
        answer
    }
}

fn good(arg: &Arg, at: usize, memory: &Memory) -> usize {
    match arg {
        Arg::Number(number) | Arg::Flags(number) | Arg::Values(number, _) => *number as usize,
        Arg::Process(pid) => *pid as usize,
        Arg::Fd(kind) | Arg::OwnFd(kind) | Arg::Fixed(kind) => fixture::descriptor(*kind) as usize,
        Arg::At => AT_FDCWD as usize,
        Arg::In(words, _) | Arg::Limit(words, _) => memory.put_words(at, words),
        Arg::Out => memory.put(at, &[]),
        Arg::Size(size) => *size,
        Arg::Path(path) | Arg::Text(path, _) => memory.put(at, &fixture::path_bytes(path)),
        Arg::Vector(_) => vector(at, memory, ""),
        Arg::Message => message(at, memory, ""),
    }
}

fn vector(at: usize, memory: &Memory, field: &str) -> usize {
    let base = match field {
        "base-low" => LOW,
        "base-kernel" => KERNEL,
        "base-readonly" => memory.read_only(at),
        _ => memory.page(at, 1),
    };
    let length = if field == "length--1" { usize::MAX } else { 8 };
    memory.put_words(at, &[base as u64, length as u64])
}

/// struct msghdr (recvmsg(2)): name, its length, vector, its count, control, its length, flags.
fn message(at: usize, memory: &Memory, field: &str) -> usize {
    let page = memory.page(at, 0) as u64;
    let (inner, data, name) = (page + 256, page + 512, page + 1024);
    let mut header = [0, 0, inner, 1, 0, 0, 0];
    match field {
        "name-low" => header[..2].copy_from_slice(&[LOW as u64, 16]),
        "name-length--1" => header[..2].copy_from_slice(&[name, 0xffff_ffff]),
        "name-length-200" => header[..2].copy_from_slice(&[name, 200]),
        "vector-low" => header[2] = LOW as u64,
        "vectors-1025" => header[3] = 1025,
        "control-low" => header[4..6].copy_from_slice(&[LOW as u64, 64]),
        "control-length--1" => header[4..6].copy_from_slice(&[name, u64::MAX]),
        // A header that is longer than what it is in.
        "control-short" => header[4..6].copy_from_slice(&[data, 16]),
        _ => {}
    }
    let base = if field == "base-low" { LOW as u64 } else { data + 64 };
    let mut words = vec![0; 80];
    words[..7].copy_from_slice(&header);
    words[32..34].copy_from_slice(&[base, 8]);
    words[64..66].copy_from_slice(&[64, 1 << 32 | 1]);
    memory.put_words(at, &words)
}
