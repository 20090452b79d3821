//! A program: calls whose arguments are numbers, results of earlier calls, or places in two fixed
//! areas of memory; and how it is written down for people.

use std::fmt;

/// Where the programs' memory begins: far from what any kernel chooses by itself.
pub const BASE: usize = 0x7_0000_0000;
/// What calls read from.
pub const INPUT: usize = BASE;
pub const INPUT_BYTES: usize = 8192;
/// What calls write to. The page behind it is not accessible.
pub const OUTPUT: usize = BASE + 0x10000;
pub const OUTPUT_BYTES: usize = 4096;
/// A page that can only be read.
pub const READ_ONLY: usize = BASE + 0x20000;
/// Where programs map: nothing is there at first.
pub const MAPS: usize = BASE + 0x10_0000;
pub const MAP_PAGES: usize = 32;
pub const PAGE: usize = 4096;

/// Results that later calls may use.
pub const SLOTS: usize = 64;

/// Who makes a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Actor {
    /// The process's first thread.
    Main,
    /// A second thread of it.
    Thread,
    /// A child, once there is one.
    Child,
}

/// What is passed.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    Number(u64),
    /// The result of an earlier call, or -1.
    Slot(u8),
    /// An actor's process id, or for the thread its thread id.
    Id(Actor),
    /// The address of the programs' signal handler.
    Handler,
    /// The address that a handler returns to.
    Restorer,
}

/// What is to be made of written memory before it is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Norm {
    Stat,
    Statx,
    Statfs,
    /// Two descriptors, which become these slots.
    Pair(u8, u8),
    /// A timer's id, which becomes this slot.
    Timer(u8),
    /// A time or a counter of this many bytes: only whether it was written.
    Time(u16),
    Siginfo,
    Sigaction,
    SignalfdInfo,
    Dents,
    Inotify,
    /// A socket address.
    Address,
    /// An address of memory, 8 bytes.
    Pointer,
    /// An amount of memory, 4 bytes: only whether there is any.
    Amount,
    /// Ancillary data of a message.
    Control,
    /// Text of a /proc file.
    Text,
    /// The state of an object of System V: this many words of times and counts behind its owner.
    IpcTimes(u8),
}

/// What the value of a call means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    Plain,
    Id,
    Address,
    /// Only whether the call succeeded.
    Any,
}

/// What is no plain call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    No,
    /// clone(2) with these flags, the new process being the child.
    Fork(u64),
    /// exit_group(2) or exit(2) of the actor, which is not the main thread.
    Exit,
    /// A load from the first argument, or a store of the second to it.
    Load,
    Store,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    pub actor: Actor,
    pub nr: u32,
    pub args: Vec<Arg>,
    pub special: Special,
    pub value: Value,
    /// Where the value goes.
    pub slot: Option<u8>,
    /// What is written to the input area first, at these offsets.
    pub input: Vec<(u16, Vec<u8>)>,
    /// Words of 4 or 8 bytes in the input area that are arguments themselves.
    pub fixes: Vec<(u16, u8, Arg)>,
    pub norms: Vec<(u16, Norm)>,
    /// Parts of the input area that the kernel may write, too.
    pub shows: Vec<(u16, u16)>,
    /// Left out of programs that have rights.
    pub only_for_user: bool,
}

/// A whole program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Without privileges.
    pub is_user: bool,
    pub calls: Vec<Call>,
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Arg::Number(n) if (n as i64) < 0 && (n as i64) > -4096 => write!(f, "{}", n as i64),
            Arg::Number(n) if n < 1000 => write!(f, "{n}"),
            Arg::Number(n) => match n as usize {
                at @ INPUT..OUTPUT => write!(f, "IN+{:#x}", at - INPUT),
                at @ OUTPUT..READ_ONLY => write!(f, "OUT+{:#x}", at - OUTPUT),
                at @ READ_ONLY..MAPS => write!(f, "READONLY+{:#x}", at - READ_ONLY),
                at if (MAPS..MAPS + MAP_PAGES * PAGE).contains(&at) => {
                    write!(f, "MAP+{:#x}", at - MAPS)
                }
                _ => write!(f, "{n:#x}"),
            },
            Arg::Slot(slot) => write!(f, "r{slot}"),
            Arg::Id(actor) => write!(f, "id({actor:?})"),
            Arg::Handler => write!(f, "HANDLER"),
            Arg::Restorer => write!(f, "RESTORER"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.actor != Actor::Main {
            write!(f, "{:?}: ", self.actor)?;
        }
        if let Some(slot) = self.slot {
            write!(f, "r{slot} = ")?;
        }
        match self.special {
            Special::No => write!(f, "{}(", abi::syscalls::name(self.nr).unwrap_or("?"))?,
            other => write!(f, "{other:?}(")?,
        }
        for (number, arg) in self.args.iter().enumerate() {
            write!(f, "{}{arg}", if number == 0 { "" } else { ", " })?;
        }
        write!(f, ")")?;
        for (at, bytes) in &self.input {
            write!(f, " IN+{at:#x}={}", quoted(bytes))?;
        }
        for (at, _, arg) in &self.fixes {
            write!(f, " IN+{at:#x}<-{arg}")?;
        }
        for (at, norm) in &self.norms {
            if let Norm::Pair(a, b) = norm {
                write!(f, " OUT+{at:#x}->r{a},r{b}")?;
            }
        }
        Ok(())
    }
}

/// Text as text, words as words.
pub fn quoted(bytes: &[u8]) -> String {
    let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if !text.is_empty() && text.iter().all(|b| (b' '..=b'~').contains(b)) {
        let text = String::from_utf8_lossy(text);
        return match text.len() {
            0..=80 => format!("{text:?}"),
            long => format!("{:?}…({long} bytes)", &text[..40]),
        };
    }
    let mut out = String::from("[");
    for (number, byte) in bytes.iter().enumerate().take(160) {
        let gap = if number % 4 == 0 && number > 0 { " " } else { "" };
        out += &format!("{gap}{byte:02x}");
    }
    out + "]"
}
