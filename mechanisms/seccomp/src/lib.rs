#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod check;
pub mod compile;
mod emit;
mod instruction;
mod run;

pub use check::{Invalid, Program};
pub use compile::Code;
pub use instruction::Insn;

/// Words of [`Data`].
pub const WORDS: usize = 16;
/// Bytes of [`Data`].
pub const DATA_BYTES: u32 = 4 * WORDS as u32;

/// A system call as a filter sees it: the words of `struct seccomp_data`. Compiled filters read
/// them by offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Data(pub [u32; WORDS]);

impl Data {
    /// A call: its number, `AUDIT_ARCH_*`, the address behind the instruction, six arguments.
    // At every call of a filtered thread: written out, it is 16 stores.
    #[inline]
    #[must_use]
    pub fn new(number: u32, arch: u32, ip: u64, arguments: [u64; 6]) -> Self {
        let low = |value: u64| value as u32;
        let high = |value: u64| (value >> 32) as u32;
        let [a, b, c, d, e, f] = arguments;
        Self([
            number,
            arch,
            low(ip),
            high(ip),
            low(a),
            high(a),
            low(b),
            high(b),
            low(c),
            high(c),
            low(d),
            high(d),
            low(e),
            high(e),
            low(f),
            high(f),
        ])
    }
}

/// The upper half of an answer: what to do with the call (seccomp(2)). As signed numbers, the lower
/// one wins; what is none of these is done as [`KILL_PROCESS`](action::KILL_PROCESS).
pub mod action {
    /// The bits of the action.
    pub const MASK: u32 = 0xffff_0000;
    /// The bits of its data.
    pub const DATA: u32 = 0x0000_ffff;
    /// The process ends as by SIGSYS.
    pub const KILL_PROCESS: u32 = 0x8000_0000;
    /// The thread ends as by SIGSYS.
    pub const KILL_THREAD: u32 = 0;
    /// SIGSYS is sent to the thread; the data is its `si_errno`.
    pub const TRAP: u32 = 0x0003_0000;
    /// The call fails with the data as errno.
    pub const ERRNO: u32 = 0x0005_0000;
    /// A supervisor is asked.
    pub const USER_NOTIF: u32 = 0x7fc0_0000;
    /// The tracer is asked; the data is its message.
    pub const TRACE: u32 = 0x7ff0_0000;
    /// The call is made, and logged.
    pub const LOG: u32 = 0x7ffc_0000;
    /// The call is made.
    pub const ALLOW: u32 = 0x7fff_0000;
}

/// Whether the answer `new` goes before `old`. Between equal actions the first one asked wins.
#[inline]
#[must_use]
pub const fn outranks(new: u32, old: u32) -> bool {
    const fn rank(answer: u32) -> i32 {
        (answer & action::MASK).cast_signed()
    }
    rank(new) < rank(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_bytes_of_the_struct() {
        let pair = |low: u64| (low + 1) << 32 | low;
        let data = Data::new(1, 2, pair(3), core::array::from_fn(|i| pair(5 + 2 * i as u64)));
        assert_eq!(data.0, core::array::from_fn(|i| i as u32 + 1));
    }

    #[test]
    fn stricter_answers_win_and_data_does_not_count() {
        use action::*;
        let order = [KILL_PROCESS, KILL_THREAD, TRAP, ERRNO, USER_NOTIF, TRACE, LOG, ALLOW];
        for (i, &a) in order.iter().enumerate() {
            for (j, &b) in order.iter().enumerate() {
                assert_eq!(outranks(a | 0xffff, b), i < j, "{a:#x} {b:#x}");
            }
        }
    }
}
