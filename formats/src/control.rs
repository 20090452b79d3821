//! The control channel: one message per line, both ways, over the port
//! [`crate::ports::CONTROL_PORT_NAME`].
//!
//! Host to guest: [`ToGuest`]. Guest to host: [`ToHost`]. A line is a keyword, then arguments
//! separated by one space, then `\n`; the last argument of `not-found`, `missing-file` and `log`
//! is the rest of the line. Bytes that would break a line (control characters and backslash) and
//! bytes outside ASCII travel as `\xNN`.
//!
//! Why it is hard: stdin's end. The data port has no end-of-file, so the host says after the last
//! byte how many there were ([`ToGuest::StdinEof`]), and the guest delivers EOF once it has taken
//! that many. And the program's end: the guest sends [`ToHost::Exit`] or its siblings as its very
//! last line, after the device has given back every output buffer of the stdio and stderr ports,
//! and then writes to [`crate::ports::DEBUG_EXIT_PORT`]; the host reads all ports to their end.
//!
//! Bounds: a line is at most [`LINE_MAX`] bytes; [`LineBuffer`] drops what is longer.
//!
//! Neighbours: `cli/src/run/outcome.rs` and `kernel/src/boot/host_channel.rs`.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

/// Longest line in bytes with its `\n`: a path of PATH_MAX with every byte escaped, and a keyword.
pub const LINE_MAX: usize = 4 * 4096 + 64;

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// `stdin-eof TOTAL`: standard input ended after this many bytes since the start.
    StdinEof {
        /// All bytes of standard input.
        total_bytes: u64,
    },
    /// `winsize ROWS COLS`: the terminal's size changed; SIGWINCH to its foreground group.
    Winsize {
        /// Rows, in characters.
        rows: u16,
        /// Columns, in characters.
        cols: u16,
    },
    /// `output-closed FD`: nobody reads descriptor 1 or 2 any more; later writes to it are EPIPE
    /// and SIGPIPE (pipe(7)).
    OutputClosed {
        /// 1 or 2.
        fd: u8,
    },
    /// `realtime NS`: the host's clock as the line was written, the answer to
    /// [`ToHost::AskTime`].
    Realtime {
        /// Nanoseconds since 1970.
        ns: u64,
    },
    /// `signal N`: the host's user sent this signal to the program (signal(7) number).
    Signal {
        /// Signal number, 1 to 64.
        number: u8,
    },
    /// `exec LENGTH`: start another program ([`crate::ports::exec_ports`]). What to start is a boot
    /// configuration of this many bytes, the first on the session's stdio port; the input follows.
    Exec {
        /// Bytes of the configuration.
        length: u32,
    },
}

/// What the guest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    /// `exit CODE`: the program exited; last line.
    Exit {
        /// The low eight bits of its status.
        code: u8,
    },
    /// `signaled N`: a signal ended the program; last line.
    Signaled {
        /// Signal number, 1 to 64.
        number: u8,
    },
    /// `not-found PATH`: the program's file does not exist; last line.
    NotFound {
        /// The path.
        path: Vec<u8>,
    },
    /// `not-executable ERRNO PATH`: it exists but execve(2) failed; last line.
    NotExecutable {
        /// Linux error number, for instance 8 (ENOEXEC) or 13 (EACCES).
        errno: u16,
        /// The path.
        path: Vec<u8>,
    },
    /// `ask-time`: what does the host's clock say? Asked before the program starts, if
    /// `Want::clock` says that somebody answers.
    AskTime,
    /// `ready`: the guest listens on the ports of a session. What came before it was another's.
    Ready,
    /// `boot-ns N`: time from the kernel's entry to the first user instruction.
    BootNs(u64),
    /// `counter NAME VALUE`: for instance `peak-memory-bytes`.
    Counter {
        /// Lower-case letters, digits and `-`; the unit is part of the name.
        name: String,
        /// The value at the program's end.
        value: u64,
    },
    /// `missing-syscall NR NAME COUNT`: answered with ENOSYS that often.
    MissingSyscall(SyscallCount),
    /// `syscall NR NAME COUNT`: called that often.
    Syscall(SyscallCount),
    /// `missing-file PATH`: asked for and not found.
    MissingFile {
        /// The path as the program gave it, made absolute.
        path: Vec<u8>,
    },
    /// `used ACCESS OBJECT`: what a program did that is only recorded (`lsm::profile`).
    Used {
        /// What was done: lower-case letters.
        access: String,
        /// To what: a path or an address.
        object: Vec<u8>,
    },
    /// `trace CPU NS PHASE NAME NUMBER VALUE...`: what happened at the boundary, each CPU's in
    /// order.
    Trace(TraceEvent),
    /// `thread TID PID NAME`: what a thread of the trace is called.
    Thread {
        /// The thread, as in a `switch` of the trace.
        tid: u32,
        /// Its process; 0: the kernel.
        pid: u32,
        /// Its name (prctl(2), PR_SET_NAME).
        name: Vec<u8>,
    },
    /// `log TEXT`: a line for the user, such as a warning about a kernel parameter.
    Log {
        /// The text, without newline; at most 4096 bytes, or the line may be too long to arrive.
        text: Vec<u8>,
    },
}

/// Something that happened on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The CPU.
    pub cpu: u8,
    /// Nanoseconds since boot.
    pub at_ns: u64,
    /// Whether something begins or ends here.
    pub phase: Phase,
    /// Lower-case letters, digits, `-` and `_`; what ends has no name of its own.
    pub name: String,
    /// What the name's meaning needs: a vector, a target, a thread; or 0.
    pub number: u64,
    /// A call's arguments, or its result where it ends; at most [`VALUES_MAX`].
    pub values: Vec<u64>,
}

/// Most values of a [`TraceEvent`]: the arguments of a system call.
pub const VALUES_MAX: usize = 6;

/// The part of a [`TraceEvent`] in time. What begins ends on the same CPU, the latest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `B`.
    Begin,
    /// `E`.
    End,
    /// `i`.
    Instant,
}

impl Phase {
    /// The letter, which is that of the trace event format as well.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Begin => "B",
            Self::End => "E",
            Self::Instant => "i",
        }
    }

    fn decode(word: &str) -> Option<Self> {
        [Self::Begin, Self::End, Self::Instant].into_iter().find(|phase| phase.letter() == word)
    }
}

/// How often a syscall was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyscallCount {
    /// Number on x86-64.
    pub number: u32,
    /// Linux's name; `?` where the guest knows none.
    pub name: String,
    /// Calls.
    pub count: u64,
}

impl ToGuest {
    /// The line, with its newline.
    pub fn encode(&self) -> Vec<u8> {
        let mut line = String::new();
        // Writing to a String cannot fail.
        let _ = match self {
            Self::StdinEof { total_bytes } => writeln!(line, "stdin-eof {total_bytes}"),
            Self::Winsize { rows, cols } => writeln!(line, "winsize {rows} {cols}"),
            Self::OutputClosed { fd } => writeln!(line, "output-closed {fd}"),
            Self::Realtime { ns } => writeln!(line, "realtime {ns}"),
            Self::Signal { number } => writeln!(line, "signal {number}"),
            Self::Exec { length } => writeln!(line, "exec {length}"),
        };
        line.into_bytes()
    }

    /// Decodes one line without its newline; `None` if it is no message.
    pub fn decode(line: &[u8]) -> Option<Self> {
        let mut words = Words::new(line)?;
        let message = match words.word()? {
            "stdin-eof" => Self::StdinEof { total_bytes: words.number()? },
            "winsize" => Self::Winsize { rows: words.number()?, cols: words.number()? },
            "output-closed" => {
                let fd = words.number()?;
                Self::OutputClosed { fd: (1..=2).contains(&fd).then_some(fd)? }
            }
            "realtime" => Self::Realtime { ns: words.number()? },
            "signal" => Self::Signal { number: signal_number(words.number()?)? },
            "exec" => Self::Exec { length: words.number()? },
            _ => return None,
        };
        words.end().then_some(message)
    }
}

impl ToHost {
    /// The line, with its newline.
    pub fn encode(&self) -> Vec<u8> {
        let mut line = String::new();
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Exit { code } => writeln!(line, "exit {code}"),
            Self::Signaled { number } => writeln!(line, "signaled {number}"),
            Self::NotFound { path } => writeln!(line, "not-found {}", escape(path)),
            Self::NotExecutable { errno, path } => {
                writeln!(line, "not-executable {errno} {}", escape(path))
            }
            Self::AskTime => writeln!(line, "ask-time"),
            Self::Ready => writeln!(line, "ready"),
            Self::BootNs(ns) => writeln!(line, "boot-ns {ns}"),
            Self::Counter { name, value } => writeln!(line, "counter {name} {value}"),
            Self::MissingSyscall(SyscallCount { number, name, count }) => {
                writeln!(line, "missing-syscall {number} {name} {count}")
            }
            Self::Syscall(SyscallCount { number, name, count }) => {
                writeln!(line, "syscall {number} {name} {count}")
            }
            Self::MissingFile { path } => writeln!(line, "missing-file {}", escape(path)),
            Self::Used { access, object } => writeln!(line, "used {access} {}", escape(object)),
            Self::Trace(TraceEvent { cpu, at_ns, phase, name, number, values }) => {
                let _ = write!(line, "trace {cpu} {at_ns} {} {name} {number}", phase.letter());
                for value in values {
                    let _ = write!(line, " {value}");
                }
                writeln!(line)
            }
            Self::Thread { tid, pid, name } => {
                writeln!(line, "thread {tid} {pid} {}", escape(name))
            }
            Self::Log { text } => writeln!(line, "log {}", escape(text)),
        };
        line.into_bytes()
    }

    /// Decodes one line without its newline; `None` if it is no message.
    pub fn decode(line: &[u8]) -> Option<Self> {
        let mut words = Words::new(line)?;
        let message = match words.word()? {
            "exit" => Self::Exit { code: words.number()? },
            "signaled" => Self::Signaled { number: signal_number(words.number()?)? },
            "not-found" => Self::NotFound { path: words.rest()? },
            "not-executable" => Self::NotExecutable { errno: words.number()?, path: words.rest()? },
            "ask-time" => Self::AskTime,
            "ready" => Self::Ready,
            "boot-ns" => Self::BootNs(words.number()?),
            "counter" => Self::Counter { name: words.word()?.into(), value: words.number()? },
            "missing-syscall" => Self::MissingSyscall(words.syscall_count()?),
            "syscall" => Self::Syscall(words.syscall_count()?),
            "missing-file" => Self::MissingFile { path: words.rest()? },
            "used" => Self::Used { access: words.word()?.into(), object: words.rest()? },
            "trace" => Self::Trace(TraceEvent {
                cpu: words.number()?,
                at_ns: words.number()?,
                phase: Phase::decode(words.word()?)?,
                name: words.word()?.into(),
                number: words.number()?,
                values: words.values()?,
            }),
            "thread" => {
                Self::Thread { tid: words.number()?, pid: words.number()?, name: words.rest()? }
            }
            "log" => Self::Log { text: words.rest()? },
            _ => return None,
        };
        words.end().then_some(message)
    }

    /// True for the message that is the guest's last.
    pub const fn is_last(&self) -> bool {
        matches!(
            self,
            Self::Exit { .. }
                | Self::Signaled { .. }
                | Self::NotFound { .. }
                | Self::NotExecutable { .. }
        )
    }
}

/// Cuts a byte stream into lines of at most [`LINE_MAX`] bytes.
#[derive(Clone, Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// The current line was too long: drop bytes up to its newline.
    skipping: bool,
}

impl LineBuffer {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), skipping: false }
    }

    /// Takes bytes as they came and calls `line` for each line that they complete, without its
    /// newline. A line that is too long is dropped whole.
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (body, ends) = match piece {
                [body @ .., b'\n'] => (body, true),
                body => (body, false),
            };
            if self.bytes.len() + body.len() >= LINE_MAX {
                self.skipping = true;
                self.bytes.clear();
            }
            if !self.skipping {
                self.bytes.extend_from_slice(body);
            }
            if ends {
                if !core::mem::take(&mut self.skipping) {
                    line(&self.bytes);
                }
                self.bytes.clear();
            }
        }
    }
}

/// The words of a line.
struct Words<'a> {
    rest: Option<&'a str>,
}

impl<'a> Words<'a> {
    fn new(line: &'a [u8]) -> Option<Self> {
        let text = (line.len() < LINE_MAX).then(|| core::str::from_utf8(line).ok())??;
        Some(Self { rest: Some(text) })
    }

    fn word(&mut self) -> Option<&'a str> {
        let rest = self.rest?;
        let (word, after) = match rest.split_once(' ') {
            Some((word, after)) => (word, Some(after)),
            None => (rest, None),
        };
        self.rest = after;
        (!word.is_empty()).then_some(word)
    }

    fn number<N: core::str::FromStr>(&mut self) -> Option<N> {
        let word = self.word()?;
        // `from_str` would also take a sign.
        word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
    }

    /// All numbers that are left.
    fn values(&mut self) -> Option<Vec<u64>> {
        let mut values = Vec::new();
        while !self.end() {
            values.push(self.number()?);
        }
        (values.len() <= VALUES_MAX).then_some(values)
    }

    fn syscall_count(&mut self) -> Option<SyscallCount> {
        let number = self.number()?;
        let name = self.word()?.into();
        Some(SyscallCount { number, name, count: self.number()? })
    }

    /// Everything that is left, with its escapes undone.
    fn rest(&mut self) -> Option<Vec<u8>> {
        unescape(self.rest.take()?)
    }

    fn end(&self) -> bool {
        self.rest.is_none()
    }
}

fn signal_number(number: u8) -> Option<u8> {
    (1..=64).contains(&number).then_some(number)
}

/// Printable ASCII stays, all else and the backslash become `\xNN`.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte != b'\\' && (byte == b' ' || byte.is_ascii_graphic()) {
            text.push(byte as char);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        rest = match rest {
            [] => return Some(bytes),
            [b'\\', b'x', high, low, rest @ ..] => {
                let digit = |byte: u8| (byte as char).to_digit(16);
                bytes.push((digit(*high)? << 4 | digit(*low)?) as u8);
                rest
            }
            [b'\\', ..] => return None,
            [byte, rest @ ..] => {
                bytes.push(*byte);
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn without_newline(line: Vec<u8>) -> Vec<u8> {
        let (last, body) = line.split_last().expect("not empty");
        assert_eq!(*last, b'\n');
        assert!(!body.contains(&b'\n'));
        body.to_vec()
    }

    #[test]
    fn to_guest_round_trips() {
        for message in [
            ToGuest::StdinEof { total_bytes: u64::MAX },
            ToGuest::Winsize { rows: 24, cols: 80 },
            ToGuest::OutputClosed { fd: 1 },
            ToGuest::Signal { number: 64 },
            ToGuest::Exec { length: u32::MAX },
        ] {
            let line = without_newline(message.encode());
            assert_eq!(ToGuest::decode(&line), Some(message));
        }
    }

    #[test]
    fn to_host_round_trips() {
        let count = SyscallCount { number: 334, name: "rseq".into(), count: 3 };
        for message in [
            ToHost::Exit { code: 255 },
            ToHost::Signaled { number: 11 },
            ToHost::NotFound { path: b"/a b\n\\\xff".to_vec() },
            ToHost::NotExecutable { errno: 8, path: b"/x".to_vec() },
            ToHost::Ready,
            ToHost::BootNs(1),
            ToHost::Counter { name: "peak-memory-bytes".into(), value: 1 << 40 },
            ToHost::MissingSyscall(count.clone()),
            ToHost::Syscall(count),
            ToHost::MissingFile { path: vec![] },
            ToHost::Used { access: "read".into(), object: b"/a b".to_vec() },
            ToHost::Trace(TraceEvent {
                cpu: 3,
                at_ns: 1 << 50,
                phase: Phase::Instant,
                name: "vunmap-deferred".into(),
                number: 2,
                values: vec![],
            }),
            ToHost::Trace(TraceEvent {
                cpu: 0,
                at_ns: 1,
                phase: Phase::Begin,
                name: "mmap".into(),
                number: 9,
                values: vec![0, u64::MAX, 3, 4, 5, 6],
            }),
            ToHost::Thread { tid: 7, pid: 5, name: b"a b".to_vec() },
            ToHost::Log { text: b"unknown kernel parameter foo=1".to_vec() },
        ] {
            let line = without_newline(message.encode());
            assert_eq!(ToHost::decode(&line), Some(message));
        }
    }

    #[test]
    fn other_lines_are_no_messages() {
        for line in [
            "",
            "exit",
            "exit 256",
            "exit -1",
            "exit +1",
            "exit 1 2",
            "exit  1",
            "output-closed 0",
            "signaled 0",
            "signal 65",
            "winsize 1",
            "log",
            "not-found a\\",
            "trace 0 1 B mmap 9 1 2 3 4 5 6 7",
            "trace 0 1 B mmap 9 x",
            "not-found \\xg0",
            "Exit 1",
        ] {
            assert_eq!(ToHost::decode(line.as_bytes()), None, "{line}");
            assert_eq!(ToGuest::decode(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn lines_survive_any_cutting_and_long_ones_are_dropped() {
        let mut stream = b"exit 1\n".to_vec();
        stream.resize(stream.len() + 3 * LINE_MAX, b'x');
        stream.extend_from_slice(b"\nboot-ns 5\n");
        for size in [1, 2, 3, 7, 1000, stream.len()] {
            let mut lines = LineBuffer::new();
            let mut seen = vec![];
            for chunk in stream.chunks(size) {
                lines.push(chunk, |line| seen.push(line.to_vec()));
                assert!(lines.bytes.len() < LINE_MAX);
            }
            assert_eq!(seen, [b"exit 1".to_vec(), b"boot-ns 5".to_vec()]);
        }
    }

    #[test]
    fn the_longest_path_fits() {
        let path = vec![0xff; 4095];
        let line = ToHost::NotExecutable { errno: 65535, path }.encode();
        assert!(line.len() <= LINE_MAX);
    }

    proptest! {
        #[test]
        fn any_path_round_trips(path: Vec<u8>) {
            let message = ToHost::MissingFile { path };
            let line = without_newline(message.encode());
            prop_assert_eq!(ToHost::decode(&line), Some(message));
        }

        #[test]
        fn hostile_lines_never_panic(line: Vec<u8>) {
            let _ = (ToHost::decode(&line), ToGuest::decode(&line));
        }
    }
}
