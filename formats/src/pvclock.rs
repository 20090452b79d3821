//! The page in which KVM tells a guest what its TSC means (Linux's
//! Documentation/virt/kvm/x86/msr.rst,
//! `pvclock_vcpu_time_info`): 32 bytes, written while the guest may look.
//!
//! Why it is hard: the writer makes the version odd, writes, and makes it even again. A reader
//! whose two looks at the version differ, or are odd, has seen a mixture and looks again, a bounded
//! number of times.
//!
//! Neighbours: `machine/src/device/time/calibrate.rs` asks for the page and takes the TSC's rate
//! from it.

/// Bytes of the structure.
pub const BYTES: usize = 32;
/// How often a reader looks before it gives up: a writer takes less than a microsecond.
const LOOKS_MAX: usize = 1000;
/// Flag: the TSC is alike on all CPUs.
const TSC_STABLE: u8 = 1;
const NS_PER_S: u128 = 1_000_000_000;

/// What the page says, of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// TSC at that moment.
    pub tsc: u64,
    /// Nanoseconds since the VM's start at that moment.
    pub system_ns: u64,
    /// Nanoseconds per tick are `mult * 2^shift / 2^32`.
    pub mult: u32,
    /// See `mult`; -31 to 31.
    pub shift: i8,
    /// The TSC is alike on all CPUs.
    pub is_stable: bool,
}

/// The page, as a reader sees it: memory that may change between two looks.
pub trait Page {
    /// The 32-bit word `index`, 0 to 7, as it is now. Looks come in the order of the calls.
    fn word(&self, index: usize) -> u32;
}

/// Reads one consistent state; `None` if the writer never comes to an end, or what it writes has no
/// meaning.
pub fn read(page: &impl Page) -> Option<Info> {
    for _ in 0..LOOKS_MAX {
        let version = page.word(0);
        let words: [u32; BYTES / 4] =
            core::array::from_fn(|i| if i == 0 { 0 } else { page.word(i) });
        if version.is_multiple_of(2) && page.word(0) == version {
            return decode(&words);
        }
    }
    None
}

fn decode(words: &[u32; BYTES / 4]) -> Option<Info> {
    let pair = |i: usize| u64::from(words[i + 1]) << 32 | u64::from(words[i]);
    let [shift, flags, ..] = words[7].to_le_bytes();
    let info = Info {
        tsc: pair(2),
        system_ns: pair(4),
        mult: words[6],
        shift: i8::from_le_bytes([shift]),
        is_stable: flags & TSC_STABLE != 0,
    };
    (info.mult != 0 && (-31..=31).contains(&info.shift)).then_some(info)
}

impl Info {
    /// TSC ticks per second.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        // ns = tsc * 2^shift * mult / 2^32, so a second has 10^9 * 2^32 / (mult * 2^shift) ticks.
        let per_second = (NS_PER_S << 63) / u128::from(self.mult);
        let hz = per_second >> (31 + i32::from(self.shift));
        u64::try_from(hz).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};

    use super::*;

    /// 2.4 GHz: 0.41666 ns per tick.
    const STATE: [u32; 8] = [2, 0, 0x1000, 1, 0x2000, 2, 0xd555_5555, 0x0000_01ff];

    /// A writer that works between the looks: it goes on by one step before each look whose number
    /// is in `moves`.
    struct Model {
        words: RefCell<[u32; 8]>,
        looks: Cell<u32>,
        moves: u32,
        step: Cell<usize>,
    }

    impl Model {
        /// Version odd, then each word of the next state, then version even.
        fn write(&self) {
            let step = self.step.get();
            let mut words = self.words.borrow_mut();
            match step {
                0 => words[0] += 1,
                1..=7 => words[step] = next_state()[step],
                8 => words[0] += 1,
                _ => return,
            }
            self.step.set(step + 1);
        }
    }

    fn next_state() -> [u32; 8] {
        [4, 0, 0x9000, 9, 0xa000, 8, 0x8000_0000, 0x0000_0101]
    }

    impl Page for Model {
        fn word(&self, index: usize) -> u32 {
            let look = self.looks.get();
            self.looks.set(look + 1);
            // Beyond the chosen looks the writer goes on at every one, and so comes to its end.
            if look >= 18 || self.moves & 1 << look != 0 {
                self.write();
            }
            self.words.borrow()[index]
        }
    }

    #[test]
    fn no_mixture_is_taken() {
        let [old, new] = [STATE, next_state()].map(|state| decode(&state).unwrap());
        let mut seen = [0; 2];
        for moves in 0..1 << 18 {
            let model = Model {
                words: RefCell::new(STATE),
                looks: Cell::new(0),
                moves,
                step: Cell::new(0),
            };
            let info = read(&model).unwrap();
            assert!(info == old || info == new, "{moves:#x}: {info:?}");
            seen[usize::from(info == new)] += 1;
        }
        assert!(seen[0] > 0 && seen[1] > 0);
    }

    #[test]
    fn a_writer_without_end() {
        struct Odd;
        impl Page for Odd {
            fn word(&self, _index: usize) -> u32 {
                3
            }
        }
        assert_eq!(read(&Odd), None);
    }

    #[test]
    fn rates() {
        let info = decode(&STATE).unwrap();
        assert!((2_399_999_000..2_400_001_000).contains(&info.tsc_hz()), "{}", info.tsc_hz());
        assert!(info.is_stable);
        assert_eq!((info.tsc, info.system_ns), (0x1_0000_1000, 0x2_0000_2000));
        // One nanosecond per tick, half a one, two.
        for (mult, shift, hz) in [
            (0x8000_0000, 1, 1_000_000_000),
            (0x8000_0000, 0, 2_000_000_000),
            (1 << 31, 2, 500_000_000),
        ] {
            assert_eq!(Info { mult, shift, ..info }.tsc_hz(), hz);
        }
        // No rate that is real, and no panic.
        for (mult, shift) in [(1, -31), (u32::MAX, 31), (1, 31)] {
            let _ = Info { mult, shift, ..info }.tsc_hz();
        }
    }

    #[test]
    fn what_has_no_meaning() {
        let mut words = STATE;
        words[6] = 0;
        assert_eq!(decode(&words), None);
        words = STATE;
        words[7] = 32;
        assert_eq!(decode(&words), None);
    }
}
