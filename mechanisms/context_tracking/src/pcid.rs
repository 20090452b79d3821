//! Process-context identifiers (SDM 3A, 4.10.1): which of a CPU's few contexts an address space
//! gets, and what must be dropped before it may be used.
//!
//! Each CPU keeps the translations of the last [`SLOTS`] spaces it ran. A space that comes back to
//! its slot, and has lost no translation meanwhile, is loaded without a flush. With page-table
//! isolation a slot is a pair of contexts: the kernel's, and the program's, which the kernel cannot
//! drop by loading CR3. What is stale in the program's is therefore noted, and dropped by the load
//! of CR3 on the way to the program.
//!
//! Why it is hard: nobody tells a CPU of changes to spaces that it does not run. The space's count
//! of changes (`machine/src/context_tracking/tlb.rs`) says whether there were any, and
//! `tests/pcid.rs` searches all orders for one in which a program uses a translation that is gone.

/// Spaces whose translations a CPU keeps.
pub const SLOTS: usize = 6;
/// Bit of a value for CR3: keep what the context has.
pub const NOFLUSH: u64 = 1 << 63;
/// Bit of CR3 that tells the program's context of a pair from the kernel's.
pub const USER: u64 = 1 << 11;

/// A CPU's contexts: who has each. `N` is [`SLOTS`], but for tests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slots<const N: usize = SLOTS> {
    /// The space's identity, which no later space has again; 0: none.
    spaces: [u64; N],
    /// The program's context of the slot has translations that are gone.
    user_stale: [bool; N],
    /// The slot that is given away next.
    next: usize,
    /// The slot in use.
    active: Option<usize>,
}

/// How to load a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The slot: 0 to `N - 1`.
    pub slot: usize,
    /// Drop what the kernel's context has, now.
    pub flush: bool,
    /// Drop what the program's context has, on the way to the program.
    pub flush_user: bool,
}

impl Load {
    /// The same on a CPU that is told nothing of the kernel's translations and drops them whenever
    /// it writes CR3 (`work::Mode::Cr3`): an entry drops one context, so what the others have is
    /// dropped when they come into use.
    #[must_use]
    pub const fn by_cr3(self) -> Load {
        Load { flush: true, ..self }
    }
}

impl<const N: usize> Slots<N> {
    /// Nobody has a slot.
    #[must_use]
    pub const fn new() -> Self {
        Slots { spaces: [0; N], user_stale: [false; N], next: 0, active: None }
    }

    /// The space `space` (not 0) is about to be loaded. `is_current`: it has lost no translation
    /// since it was loaded here last, or had all such changes made good here. [`Slots::leave`]
    /// comes first.
    pub fn enter(&mut self, space: u64, is_current: bool) -> Load {
        let (slot, is_kept) = match self.spaces.iter().position(|&owner| owner == space) {
            Some(slot) => (slot, is_current),
            None => {
                let slot = self.next;
                self.next = (slot + 1) % N;
                self.spaces[slot] = space;
                (slot, false)
            }
        };
        self.active = Some(slot);
        Load { slot, flush: !is_kept, flush_user: !is_kept || self.user_stale[slot] }
    }

    /// The active space is left. `user_stale`: the program's context still waits for its flush.
    pub fn leave(&mut self, user_stale: bool) {
        if let Some(slot) = self.active.take() {
            self.user_stale[slot] = user_stale;
        }
    }
}

impl<const N: usize> Default for Slots<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The PCID of the kernel's context of a slot. 0 is for tables without a program.
#[must_use]
pub const fn kernel_pcid(slot: usize) -> u64 {
    slot as u64 + 1
}

/// The PCID of the program's context of a slot.
#[must_use]
pub const fn user_pcid(slot: usize) -> u64 {
    kernel_pcid(slot) | USER
}

/// The value that loads the top table at `root` with a PCID.
#[must_use]
pub const fn cr3(root: u64, pcid: u64, flush: bool) -> u64 {
    root | pcid | if flush { 0 } else { NOFLUSH }
}

/// What CR3 holds of a PCID.
pub const PCID_MASK: u64 = 0xfff;
const _: () = assert!(user_pcid(SLOTS - 1) <= PCID_MASK && kernel_pcid(SLOTS - 1) < USER);

/// Whether PCIDs are used, by what the CPU has and the command line (`nopcid`). A CPU without
/// global pages is none that Limen knows with PCIDs.
#[must_use]
pub fn wanted(has_pcid: bool, has_global_pages: bool, command_line: &str) -> bool {
    let forbidden = command_line.split_ascii_whitespace().any(|word| word == "nopcid");
    has_pcid && has_global_pages && !forbidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_comes_back_to_its_slot() {
        let mut slots = Slots::<2>::new();
        let first = slots.enter(7, true);
        assert_eq!(first, Load { slot: 0, flush: true, flush_user: true });
        slots.leave(false);
        assert_eq!(slots.enter(8, true).slot, 1);
        slots.leave(false);
        assert_eq!(slots.enter(7, true), Load { slot: 0, flush: false, flush_user: false });
        slots.leave(false);
        assert_eq!(slots.enter(8, false), Load { slot: 1, flush: true, flush_user: true });
    }

    #[test]
    fn a_slot_that_is_given_away_is_dropped() {
        let mut slots = Slots::<2>::new();
        for space in 1..=3 {
            assert!(slots.enter(space, true).flush);
            slots.leave(false);
        }
        // The third has taken the first one's.
        assert_eq!(slots.enter(1, true), Load { slot: 1, flush: true, flush_user: true });
    }

    #[test]
    fn what_the_program_has_waits_for_the_program() {
        let mut slots = Slots::<2>::new();
        slots.enter(1, true);
        slots.leave(true);
        slots.enter(2, true);
        slots.leave(false);
        assert_eq!(slots.enter(1, true), Load { slot: 0, flush: false, flush_user: true });
    }

    #[test]
    fn a_cpu_that_is_told_nothing_keeps_nothing_of_the_kernels() {
        for flush in [false, true] {
            for flush_user in [false, true] {
                let load = Load { slot: 3, flush, flush_user };
                assert_eq!(load.by_cr3(), Load { slot: 3, flush: true, flush_user });
            }
        }
    }

    #[test]
    fn values_for_cr3() {
        // Physical address, PCID, and bit 63 (SDM 3A, table 4-12 and 4.10.4.1).
        assert_eq!(cr3(0x12_3000, kernel_pcid(0), true), 0x12_3001);
        assert_eq!(cr3(0x12_3000, user_pcid(5), false), 0x8000_0000_0012_3806);
    }

    #[test]
    fn when_wanted() {
        assert!(wanted(true, true, "pti=on quiet"));
        assert!(!wanted(true, true, "quiet nopcid"));
        assert!(!wanted(false, true, "") && !wanted(true, false, ""));
    }
}
