//! Why CPUs interrupt each other, and which of it may wait: one table.
//!
//! What may wait concerns kernel space alone, is not needed by entry code, and is made good by
//! dropping all translations or by serialising. Everything else is sent at once.

use crate::state::{PENDING_SYNC, PENDING_TLB};

/// Why a CPU interrupts another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Kernel memory was unmapped: lazily, many addresses at once.
    Vunmap,
    /// Rights of kernel pages changed, such as text that was loaded late.
    KernelRights,
    /// The writable alias of kernel text was taken away.
    TextAlias,
    /// Kernel text was patched: execute a serialising instruction.
    CoreSync,
    /// A page table of the kernel is about to be freed.
    KernelTableFree,
    /// A program's translations changed.
    UserTlb,
    /// The target's way of entering the kernel changes.
    EntryChange,
    /// membarrier(2).
    Membarrier,
    /// Look at the run queue: a thread was put there, or the running one has work.
    Reschedule,
    /// A timer was handed over to the target.
    Timer,
    /// The watchdog asks for a sign of life.
    Watchdog,
    /// Stop, or say where you are: a panic.
    Nmi,
}

/// All causes, in the order of their numbers.
pub const CAUSES: [Cause; 12] = [
    Cause::Vunmap,
    Cause::KernelRights,
    Cause::TextAlias,
    Cause::CoreSync,
    Cause::KernelTableFree,
    Cause::UserTlb,
    Cause::EntryChange,
    Cause::Membarrier,
    Cause::Reschedule,
    Cause::Timer,
    Cause::Watchdog,
    Cause::Nmi,
];

impl Cause {
    /// Its name in `/proc/limen/ipi`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Vunmap => "vunmap",
            Cause::KernelRights => "kernel_rights",
            Cause::TextAlias => "text_alias",
            Cause::CoreSync => "core_sync",
            Cause::KernelTableFree => "kernel_table_free",
            Cause::UserTlb => "user_tlb",
            Cause::EntryChange => "entry_change",
            Cause::Membarrier => "membarrier",
            Cause::Reschedule => "reschedule",
            Cause::Timer => "timer",
            Cause::Watchdog => "watchdog",
            Cause::Nmi => "nmi",
        }
    }

    /// What to leave pending for a CPU in user mode; `None`: it must be told at once.
    #[must_use]
    pub const fn deferrable(self) -> Option<u32> {
        match self {
            // Leaf translations: user mode cannot use them, entry code does not.
            Cause::Vunmap | Cause::KernelRights | Cause::TextAlias => Some(PENDING_TLB),
            // No site is in entry text (objtool), so the first patched one comes after the
            // catch-up.
            Cause::CoreSync => Some(PENDING_SYNC),
            // A walker may use cached entries of upper levels at any time, in any mode.
            Cause::KernelTableFree => None,
            // User mode sees the difference, or the sender needs the answer.
            Cause::UserTlb | Cause::Membarrier | Cause::Reschedule | Cause::Timer => None,
            Cause::EntryChange | Cause::Watchdog | Cause::Nmi => None,
        }
    }
}

/// When deferrable work is deferred: the boot parameter `defer=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Deferred; an entry catches up if something is pending.
    #[default]
    Pending,
    /// Deferred; every entry flushes, pending or not.
    Always,
    /// Deferred, and no note left: the write of CR3 by which page-table isolation enters the kernel
    /// is the catch-up of every entry.
    Cr3,
    /// Never deferred.
    Off,
}

impl Mode {
    /// The value of `defer=`; `None` if it has no meaning.
    #[must_use]
    pub fn parse(value: &str) -> Option<Mode> {
        match value {
            "pending" => Some(Mode::Pending),
            "always" => Some(Mode::Always),
            "cr3" => Some(Mode::Cr3),
            "off" => Some(Mode::Off),
            _ => None,
        }
    }

    /// What this becomes on a machine whose entries write CR3 (`has_pti`), or do not: without that
    /// write nothing would catch up.
    #[must_use]
    pub const fn possible(self, has_pti: bool) -> Mode {
        match self {
            Mode::Cr3 if !has_pti => Mode::Pending,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_order_of_the_list() {
        for (number, cause) in CAUSES.iter().enumerate() {
            assert_eq!(*cause as usize, number);
        }
    }

    #[test]
    fn only_leaf_translations_and_text_wait() {
        let waiting: std::vec::Vec<_> =
            CAUSES.iter().filter(|cause| cause.deferrable().is_some()).collect();
        let expected = [Cause::Vunmap, Cause::KernelRights, Cause::TextAlias, Cause::CoreSync];
        assert_eq!(waiting, expected.iter().collect::<std::vec::Vec<_>>());
    }

    #[test]
    fn modes() {
        assert_eq!(Mode::parse("pending"), Some(Mode::Pending));
        assert_eq!(Mode::parse("always"), Some(Mode::Always));
        assert_eq!(Mode::parse("cr3"), Some(Mode::Cr3));
        assert_eq!(Mode::parse("off"), Some(Mode::Off));
        assert_eq!(Mode::parse("on"), None);
    }

    #[test]
    fn a_catch_up_by_cr3_needs_entries_that_write_it() {
        assert_eq!(Mode::Cr3.possible(true), Mode::Cr3);
        assert_eq!(Mode::Cr3.possible(false), Mode::Pending);
        for mode in [Mode::Pending, Mode::Always, Mode::Off] {
            assert_eq!([mode.possible(true), mode.possible(false)], [mode, mode]);
        }
    }
}
