//! What a filter sees, and what it says (seccomp(2)).

/// Bytes of [`SeccompData`].
pub(crate) const DATA_LEN: u32 = 64;

/// A system call as a filter sees it: `struct seccomp_data`. Compiled filters read it by offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SeccompData {
    /// Number of the system call.
    pub nr: u32,
    /// `AUDIT_ARCH_*`; 0xc000_003e is x86-64.
    pub arch: u32,
    /// Address behind the SYSCALL instruction.
    pub instruction_pointer: u64,
    /// The six arguments.
    pub args: [u64; 6],
}

const _: () = assert!(size_of::<SeccompData>() == DATA_LEN as usize);
const _: () = assert!(core::mem::offset_of!(SeccompData, args) == 16);

impl SeccompData {
    /// The 32-bit word at offset `4 * index`, little endian; 0 beyond the end.
    #[must_use]
    pub fn word(&self, index: u8) -> u32 {
        let half = |value: u64| (value >> (u32::from(index % 2) * 32)) as u32;
        match index {
            0 => self.nr,
            1 => self.arch,
            2 | 3 => half(self.instruction_pointer),
            _ => self
                .args
                .get(usize::from(index / 2 - 2))
                .map_or(0, |&value| half(value)),
        }
    }
}

/// What shall happen with the system call. Ordered: what is less is stricter, and wins when several
/// filters disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The process ends as by SIGSYS; also every action that nobody knows.
    KillProcess,
    /// The thread ends as by SIGSYS.
    KillThread,
    /// SIGSYS is sent to the thread; the data is its `si_errno`.
    Trap,
    /// The system call fails with the data as errno.
    Errno,
    /// A supervisor is asked.
    UserNotification,
    /// The tracer is asked; the data is its message.
    Trace,
    /// Done, and logged.
    Log,
    /// Done.
    Allow,
}

/// The value that a filter returns: an action above, 16 bits of data below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict(pub u32);

/// Largest errno that a filter can give (`MAX_ERRNO`); larger ones become it.
const ERRNO_MAX: u16 = 4095;

impl Verdict {
    /// What a process without filters gets.
    pub const ALLOW: Self = Self(0x7fff_0000);
    /// What a filter that cannot be run gives.
    pub const KILL_PROCESS: Self = Self(0x8000_0000);

    /// The action.
    #[must_use]
    pub const fn action(self) -> Action {
        match self.0 >> 16 {
            0x0000 => Action::KillThread,
            0x0003 => Action::Trap,
            0x0005 => Action::Errno,
            0x7fc0 => Action::UserNotification,
            0x7ff0 => Action::Trace,
            0x7ffc => Action::Log,
            0x7fff => Action::Allow,
            _ => Action::KillProcess,
        }
    }

    /// The data below the action.
    #[must_use]
    pub const fn data(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// The errno of [`Action::Errno`].
    #[must_use]
    pub const fn errno(self) -> u16 {
        if self.data() < ERRNO_MAX {
            self.data()
        } else {
            ERRNO_MAX
        }
    }

    /// The stricter of two. `self` is the newer filter's: of two with the same action it counts.
    ///
    /// Unknown actions are compared by their value, as signed numbers, as the known ones are: an
    /// unknown one between two known ones loses against the stricter of them.
    #[must_use]
    pub const fn or_stricter(self, older: Self) -> Self {
        const fn rank(verdict: Verdict) -> i32 {
            (verdict.0 & 0xffff_0000).cast_signed()
        }
        if rank(older) < rank(self) {
            older
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_bytes_of_the_struct() {
        let data = SeccompData {
            nr: 1,
            arch: 2,
            instruction_pointer: 0x4_0000_0003,
            args: core::array::from_fn(|i| {
                let low = 5 + 2 * i as u64;
                (low + 1) << 32 | low
            }),
        };
        let words: Vec<u32> = (0..16).map(|index| data.word(index)).collect();
        assert_eq!(words, (1..=16).collect::<Vec<_>>());
        assert_eq!([data.word(16), data.word(255)], [0, 0]);
    }

    #[test]
    fn the_stricter_verdict_wins() {
        let values = [
            (0x8000_0000, Action::KillProcess),
            (0, Action::KillThread),
            (0x0003_0000, Action::Trap),
            (0x0005_0000, Action::Errno),
            (0x7fc0_0000, Action::UserNotification),
            (0x7ff0_0000, Action::Trace),
            (0x7ffc_0000, Action::Log),
            (0x7fff_0000, Action::Allow),
        ];
        for (i, (a, action)) in values.into_iter().enumerate() {
            assert_eq!(Verdict(a | 7).action(), action);
            for (j, (b, other)) in values.into_iter().enumerate() {
                let stricter = Verdict(a | 1).or_stricter(Verdict(b | 2));
                assert_eq!(stricter.action(), action.min(other));
                assert_eq!(stricter.data(), if i <= j { 1 } else { 2 });
            }
        }
        assert_eq!(Verdict(0x0001_0000).action(), Action::KillProcess);
        assert_eq!(Verdict(0x0005_ffff).errno(), 4095);
        assert_eq!(Verdict(0x0005_0026).errno(), 38);
    }
}
