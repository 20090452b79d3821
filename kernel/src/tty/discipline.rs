//! The line discipline: what happens between the keyboard and read(2), and between write(2) and the
//! screen (termios(3)). A pure state machine: bytes go in, bytes and signals come out; it knows no
//! device, no process and no lock.
//!
//! What is hard: erasing must undo on the screen what echo put there (tabs and control characters
//! are wider than one column, a UTF-8 character is several bytes), and completed lines must keep
//! their borders, the empty line that end-of-file makes included.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::general as raw;

use super::termios::Termios;

/// Most bytes of input that are kept, the line being edited included (N_TTY_BUF_SIZE).
pub const INPUT_MAX: usize = 4096;
/// Columns between tab stops.
const TAB: usize = 8;

/// What a byte of input asks of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A signal for the foreground process group.
    Signal(u32),
    /// Output is to stop (false) or to go on (true).
    Flow(bool),
}

/// A completed line, or a run of raw input.
struct Line {
    len: usize,
    /// Raw bytes: a read may take more than one such run.
    is_raw: bool,
}

/// The state of a terminal's input and output.
#[derive(Default)]
pub struct Discipline {
    /// Settings; change them with [`Discipline::set_termios`].
    termios: Termios,
    /// The line being edited.
    line: Vec<u8>,
    /// Column where that line began.
    line_column: usize,
    ready: VecDeque<u8>,
    /// Covers `ready`.
    lines: VecDeque<Line>,
    /// The next byte is taken literally (VLNEXT).
    literal: bool,
    /// Column of the cursor.
    column: usize,
}

/// Whether a byte goes on with a UTF-8 character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

impl Discipline {
    /// The settings.
    #[must_use]
    pub fn termios(&self) -> &Termios {
        &self.termios
    }

    /// Changes the settings. Leaving canonical mode makes the unfinished line readable.
    pub fn set_termios(&mut self, termios: Termios) {
        let was_canonical = self.termios.is_canonical();
        self.termios = termios;
        if was_canonical != termios.is_canonical() {
            let unfinished = core::mem::take(&mut self.line);
            self.ready.extend(unfinished);
            self.lines.clear();
            if !self.ready.is_empty() {
                self.lines.push_back(Line { len: self.ready.len(), is_raw: true });
            }
            self.literal = false;
        }
    }

    /// Bytes that a read can have now: of the first line, or all raw ones. None: no line is
    /// complete.
    #[must_use]
    pub fn available(&self) -> Option<usize> {
        let first = self.lines.front()?;
        let more_raw = self.lines.iter().take_while(|line| line.is_raw && first.is_raw);
        Some(if first.is_raw { more_raw.map(|line| line.len).sum() } else { first.len })
    }

    /// All bytes of input that are kept for reads (FIONREAD).
    #[must_use]
    pub fn queued(&self) -> usize {
        self.ready.len()
    }

    /// Whether the keyboard should wait until something has been read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // An unfinished line that is full does not stop the keyboard: the rest is thrown away, so
        // that the end of the line can still be typed.
        self.ready.len() >= INPUT_MAX
    }

    /// Bytes of input that are sure to find room.
    #[must_use]
    pub fn room(&self) -> usize {
        INPUT_MAX.saturating_sub(self.ready.len() + self.line.len())
    }

    /// Takes up to `max` bytes: of one line in canonical mode.
    pub fn read(&mut self, max: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some(first) = self.lines.front_mut() {
            let is_raw = first.is_raw;
            let len = first.len.min(max - taken.len());
            first.len -= len;
            if first.len == 0 {
                self.lines.pop_front();
            }
            taken.extend(self.ready.drain(..len));
            let next_is_raw = self.lines.front().is_some_and(|line| line.is_raw);
            if !is_raw || !next_is_raw || taken.len() == max {
                break;
            }
        }
        taken
    }

    /// Throws input away (TCIFLUSH).
    pub fn flush_input(&mut self) {
        self.line.clear();
        self.ready.clear();
        self.lines.clear();
        self.literal = false;
    }

    // --------------------------------------------------------------------------------------------
    // Input

    /// One byte from the keyboard. Echo is appended to `echo`.
    pub fn input(&mut self, byte: u8, echo: &mut Vec<u8>) -> Option<Event> {
        let byte = self.translate(byte)?;
        if core::mem::take(&mut self.literal) {
            self.keep(byte, echo);
            return None;
        }
        if let Some(event) = self.flow(byte).or_else(|| self.signal(byte, echo)) {
            return Some(event);
        }
        if self.termios.is_canonical() {
            self.edit(byte, echo);
        } else {
            self.keep_raw(byte);
            self.echo(byte, echo);
        }
        None
    }

    /// What the input flags make of a byte; None: it is ignored.
    fn translate(&self, byte: u8) -> Option<u8> {
        let mut byte = byte;
        if self.termios.input(raw::ISTRIP) {
            byte &= 0x7f;
        }
        match byte {
            b'\r' if self.termios.input(raw::IGNCR) => None,
            b'\r' if self.termios.input(raw::ICRNL) => Some(b'\n'),
            b'\n' if self.termios.input(raw::INLCR) => Some(b'\r'),
            _ if self.termios.input(raw::IUCLC) && self.termios.local(raw::IEXTEN) => {
                Some(byte.to_ascii_lowercase())
            }
            _ => Some(byte),
        }
    }

    fn flow(&self, byte: u8) -> Option<Event> {
        if !self.termios.input(raw::IXON) {
            return None;
        }
        if self.termios.is(raw::VSTART, byte) {
            return Some(Event::Flow(true));
        }
        self.termios.is(raw::VSTOP, byte).then_some(Event::Flow(false))
    }

    fn signal(&mut self, byte: u8, echo: &mut Vec<u8>) -> Option<Event> {
        if !self.termios.local(raw::ISIG) {
            return None;
        }
        let signals =
            [(raw::VINTR, raw::SIGINT), (raw::VQUIT, raw::SIGQUIT), (raw::VSUSP, raw::SIGTSTP)];
        let (_, signal) = *signals.iter().find(|(index, _)| self.termios.is(*index, byte))?;
        if !self.termios.local(raw::NOFLSH) {
            self.flush_input();
        }
        self.echo(byte, echo);
        Some(Event::Signal(signal))
    }

    /// A byte of canonical input.
    fn edit(&mut self, byte: u8, echo: &mut Vec<u8>) {
        let extended = self.termios.local(raw::IEXTEN);
        let is = |index: u32| self.termios.is(index, byte);
        if is(raw::VERASE) {
            self.erase_character(echo);
        } else if is(raw::VKILL) {
            self.kill_line(echo);
        } else if extended && is(raw::VWERASE) {
            self.erase_word(echo);
        } else if extended && is(raw::VREPRINT) && self.termios.local(raw::ECHO) {
            self.reprint(byte, echo);
        } else if extended && is(raw::VLNEXT) {
            self.literal = true;
            if self.termios.local(raw::ECHO) && self.termios.local(raw::ECHOCTL) {
                echo.extend_from_slice(b"^\x08");
            }
        } else if is(raw::VEOF) {
            self.finish_line(None);
        } else if byte == b'\n' {
            if self.termios.local(raw::ECHO) || self.termios.local(raw::ECHONL) {
                self.put(b'\n', echo);
            }
            self.finish_line(Some(byte));
        } else if is(raw::VEOL) || extended && is(raw::VEOL2) {
            self.echo(byte, echo);
            self.finish_line(Some(byte));
        } else {
            self.keep(byte, echo);
        }
    }

    /// Adds a byte to the line, or to raw input.
    fn keep(&mut self, byte: u8, echo: &mut Vec<u8>) {
        if !self.termios.is_canonical() {
            self.keep_raw(byte);
        } else {
            // One place is for the end of the line.
            if self.line.len() + 1 >= INPUT_MAX {
                if self.termios.input(raw::IMAXBEL) {
                    echo.push(0x07);
                }
                return;
            }
            if self.line.is_empty() {
                self.line_column = self.column;
            }
            self.line.push(byte);
        }
        self.echo(byte, echo);
    }

    fn keep_raw(&mut self, byte: u8) {
        if self.ready.len() >= INPUT_MAX {
            return;
        }
        self.ready.push_back(byte);
        match self.lines.back_mut() {
            Some(line) if line.is_raw => line.len += 1,
            _ => self.lines.push_back(Line { len: 1, is_raw: true }),
        }
    }

    fn finish_line(&mut self, end: Option<u8>) {
        let mut line = core::mem::take(&mut self.line);
        line.extend(end);
        self.lines.push_back(Line { len: line.len(), is_raw: false });
        self.ready.extend(line);
    }

    // --------------------------------------------------------------------------------------------
    // Echo and erasing

    fn echo(&mut self, byte: u8, echo: &mut Vec<u8>) {
        if !self.termios.local(raw::ECHO) {
            return;
        }
        let is_control = byte < 0x20 && byte != b'\t' && byte != b'\n' || byte == 0x7f;
        if is_control && self.termios.local(raw::ECHOCTL) {
            echo.extend_from_slice(&[b'^', byte ^ 0x40]);
            self.column += 2;
        } else {
            self.put(byte, echo);
        }
    }

    /// Columns that echo used for `bytes`, which began in column `start`.
    fn width(&self, bytes: &[u8], start: usize) -> usize {
        let mut column = start;
        for &byte in bytes {
            column += match byte {
                b'\t' => TAB - column % TAB,
                byte if byte < 0x20 || byte == 0x7f => {
                    if self.termios.local(raw::ECHOCTL) {
                        2
                    } else {
                        0
                    }
                }
                byte if self.termios.input(raw::IUTF8) && is_continuation(byte) => 0,
                _ => 1,
            };
        }
        column - start
    }

    /// Removes the end of the line from `keep` on, and its echo.
    fn cut(&mut self, keep: usize, echo: &mut Vec<u8>) {
        let before = self.width(&self.line[..keep], self.line_column);
        let columns = self.width(&self.line[keep..], self.line_column + before);
        self.line.truncate(keep);
        for _ in 0..columns {
            echo.extend_from_slice(b"\x08 \x08");
        }
        self.column = self.column.saturating_sub(columns);
    }

    /// Start of the last character of the line.
    fn last_character(&self, end: usize) -> usize {
        let mut at = end.saturating_sub(1);
        while self.termios.input(raw::IUTF8) && at > 0 && is_continuation(self.line[at]) {
            at -= 1;
        }
        at
    }

    fn erase_character(&mut self, echo: &mut Vec<u8>) {
        if self.line.is_empty() {
            return;
        }
        self.erase_to(self.last_character(self.line.len()), echo);
    }

    fn erase_word(&mut self, echo: &mut Vec<u8>) {
        let mut at = self.line.len();
        while at > 0 && !is_word(self.line[at - 1]) {
            at -= 1;
        }
        while at > 0 && is_word(self.line[at - 1]) {
            at -= 1;
        }
        self.erase_to(at, echo);
    }

    fn erase_to(&mut self, keep: usize, echo: &mut Vec<u8>) {
        if !self.termios.local(raw::ECHO) {
            self.line.truncate(keep);
        } else if self.termios.local(raw::ECHOE) {
            self.cut(keep, echo);
        } else {
            self.line.truncate(keep);
            self.echo(self.termios.cc[raw::VERASE as usize], echo);
        }
    }

    fn kill_line(&mut self, echo: &mut Vec<u8>) {
        let visibly = self.termios.local(raw::ECHOK)
            && self.termios.local(raw::ECHOKE)
            && self.termios.local(raw::ECHOE);
        if !self.termios.local(raw::ECHO) {
            self.line.clear();
        } else if visibly {
            self.cut(0, echo);
        } else {
            self.line.clear();
            self.echo(self.termios.cc[raw::VKILL as usize], echo);
            if self.termios.local(raw::ECHOK) {
                self.put(b'\n', echo);
            }
        }
    }

    fn reprint(&mut self, byte: u8, echo: &mut Vec<u8>) {
        self.echo(byte, echo);
        self.put(b'\n', echo);
        self.line_column = self.column;
        let line = core::mem::take(&mut self.line);
        for &byte in &line {
            self.echo(byte, echo);
        }
        self.line = line;
    }

    // --------------------------------------------------------------------------------------------
    // Output

    /// What the output flags make of a byte, appended to `out`.
    pub fn put(&mut self, byte: u8, out: &mut Vec<u8>) {
        if !self.termios.output(raw::OPOST) {
            out.push(byte);
            return;
        }
        match byte {
            b'\n' => {
                if self.termios.output(raw::ONLRET) {
                    self.column = 0;
                }
                if self.termios.output(raw::ONLCR) {
                    out.push(b'\r');
                    self.column = 0;
                }
                out.push(b'\n');
            }
            b'\r' if self.termios.output(raw::ONOCR) && self.column == 0 => {}
            b'\r' if self.termios.output(raw::OCRNL) => {
                out.push(b'\n');
                self.column = if self.termios.output(raw::ONLRET) { 0 } else { self.column };
            }
            b'\r' => {
                out.push(b'\r');
                self.column = 0;
            }
            b'\t' => {
                let spaces = TAB - self.column % TAB;
                self.column += spaces;
                if self.termios.oflag & raw::TABDLY == raw::TABDLY {
                    out.extend(core::iter::repeat_n(b' ', spaces));
                } else {
                    out.push(b'\t');
                }
            }
            0x08 => {
                out.push(byte);
                self.column = self.column.saturating_sub(1);
            }
            _ => {
                let byte =
                    if self.termios.output(raw::OLCUC) { byte.to_ascii_uppercase() } else { byte };
                out.push(byte);
                let is_part = self.termios.input(raw::IUTF8) && is_continuation(byte);
                self.column += usize::from(byte >= 0x20 && byte != 0x7f && !is_part);
            }
        }
    }
}
