//! The caller's terminal: raw mode while the VM runs, its size, and the `Ctrl-A` key.
//!
//! Why it is hard: whatever happens (exit, error, panic of this program, a signal) the terminal
//! must come back as it was. [`RawMode`] restores on drop and from the panic hook; signals that
//! would end this program are handled in `vm.rs` and end it through the same path.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use formats::boot_config::WinSize;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// `Ctrl-A`.
const ESCAPE: u8 = 0x01;

/// The mode to return to, for the panic hook as well.
static SAVED: OnceLock<Termios> = OnceLock::new();

/// Raw mode, until dropped.
pub(crate) struct RawMode(());

impl RawMode {
    /// Switches the terminal at stdin; `None` if stdin or stdout is not one.
    pub(crate) fn enter() -> Option<Self> {
        if !is_interactive() {
            return None;
        }
        let saved = tcgetattr(stdin()).ok()?;
        let mut raw = saved.clone();
        raw.make_raw();
        if SAVED.set(saved).is_ok() {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                previous(info);
            }));
        }
        tcsetattr(stdin(), OptionalActions::Drain, &raw).ok()?;
        Some(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(saved) = SAVED.get() {
        // Nothing better can be done if this fails: the terminal is gone.
        let _ = tcsetattr(stdin(), OptionalActions::Now, saved);
    }
}

/// True if the program gets a terminal to talk with: stdin and stdout are one.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// The size of the terminal at stdout.
pub(crate) fn window_size() -> Option<WinSize> {
    let size = tcgetwinsize(stdout()).ok()?;
    Some(WinSize { rows: size.ws_row, cols: size.ws_col })
}

/// Finds `Ctrl-A x` in what is typed. `Ctrl-A Ctrl-A` is one `Ctrl-A`; before any other key
/// `Ctrl-A` passes on with it.
#[derive(Debug, Default)]
pub(crate) struct EscapeFilter {
    after_escape: bool,
}

/// What a filter found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// Pass on what was appended.
    Data,
    /// The user wants to quit; what follows does not count.
    Quit,
}

impl EscapeFilter {
    /// Appends to `out` what the guest shall see of `typed`.
    pub(crate) fn filter(&mut self, typed: &[u8], out: &mut Vec<u8>) -> Typed {
        for &byte in typed {
            match (self.after_escape, byte) {
                (false, ESCAPE) => self.after_escape = true,
                (true, b'x' | b'X') => return Typed::Quit,
                (true, ESCAPE) => {
                    self.after_escape = false;
                    out.push(ESCAPE);
                }
                (true, other) => {
                    self.after_escape = false;
                    out.extend_from_slice(&[ESCAPE, other]);
                }
                (false, other) => out.push(other),
            }
        }
        Typed::Data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pieces: &[&[u8]]) -> (Typed, Vec<u8>) {
        let (mut filter, mut out) = (EscapeFilter::default(), Vec::new());
        for piece in pieces {
            if filter.filter(piece, &mut out) == Typed::Quit {
                return (Typed::Quit, out);
            }
        }
        (Typed::Data, out)
    }

    #[test]
    fn quit_also_when_cut() {
        assert_eq!(run(&[b"ab\x01x"]), (Typed::Quit, b"ab".to_vec()));
        assert_eq!(run(&[b"ab\x01", b"xcd"]), (Typed::Quit, b"ab".to_vec()));
    }

    #[test]
    fn other_keys_pass() {
        assert_eq!(run(&[b"\x01\x01x"]), (Typed::Data, b"\x01x".to_vec()));
        assert_eq!(run(&[b"\x01", b"d"]), (Typed::Data, b"\x01d".to_vec()));
        assert_eq!(run(&[b"x\x03\x04"]), (Typed::Data, b"x\x03\x04".to_vec()));
    }
}
