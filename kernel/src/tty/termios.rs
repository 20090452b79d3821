//! Terminal settings (termios(3)).

use abi::general as raw;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct termios2` (ioctl_tty(2)); its first 36 bytes are `struct termios` of TCGETS.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "termios(3) describes each")]
pub struct Termios {
    pub iflag: u32,
    pub oflag: u32,
    pub cflag: u32,
    pub lflag: u32,
    pub line: u8,
    pub cc: [u8; 19],
    pub ispeed: u32,
    pub ospeed: u32,
}

/// Bytes of `struct termios`, without speeds.
pub const TERMIOS_BYTES: usize = 36;

/// A control character that is switched off.
pub const DISABLED: u8 = 0;

/// The byte that Ctrl and this letter give.
const fn ctrl(letter: u8) -> u8 {
    letter & 0x1f
}

impl Default for Termios {
    /// What a new terminal has on Linux: canonical mode with echo, 38400 baud.
    fn default() -> Self {
        let mut cc = [DISABLED; 19];
        cc[raw::VINTR as usize] = ctrl(b'C');
        cc[raw::VQUIT as usize] = ctrl(b'\\');
        cc[raw::VERASE as usize] = 0x7f;
        cc[raw::VKILL as usize] = ctrl(b'U');
        cc[raw::VEOF as usize] = ctrl(b'D');
        cc[raw::VMIN as usize] = 1;
        cc[raw::VSTART as usize] = ctrl(b'Q');
        cc[raw::VSTOP as usize] = ctrl(b'S');
        cc[raw::VSUSP as usize] = ctrl(b'Z');
        cc[raw::VREPRINT as usize] = ctrl(b'R');
        cc[raw::VDISCARD as usize] = ctrl(b'O');
        cc[raw::VWERASE as usize] = ctrl(b'W');
        cc[raw::VLNEXT as usize] = ctrl(b'V');
        Termios {
            iflag: raw::ICRNL | raw::IXON,
            oflag: raw::OPOST | raw::ONLCR,
            // B38400, 8 bits, receiver on.
            cflag: 0o17 | raw::CS8 | raw::CREAD,
            lflag: raw::ISIG
                | raw::ICANON
                | raw::ECHO
                | raw::ECHOE
                | raw::ECHOK
                | raw::ECHOCTL
                | raw::ECHOKE
                | raw::IEXTEN,
            line: 0,
            cc,
            ispeed: 38400,
            ospeed: 38400,
        }
    }
}

impl Termios {
    /// Whether an input flag is set.
    #[must_use]
    pub fn input(&self, flag: u32) -> bool {
        self.iflag & flag != 0
    }

    /// Whether an output flag is set.
    #[must_use]
    pub fn output(&self, flag: u32) -> bool {
        self.oflag & flag != 0
    }

    /// Whether a local flag is set.
    #[must_use]
    pub fn local(&self, flag: u32) -> bool {
        self.lflag & flag != 0
    }

    /// Whether `byte` is the control character with this index, and that is switched on.
    #[must_use]
    pub fn is(&self, index: u32, byte: u8) -> bool {
        let character = self.cc[index as usize];
        character == byte && character != DISABLED
    }

    /// Lines, or bytes as they come?
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        self.local(raw::ICANON)
    }
}
