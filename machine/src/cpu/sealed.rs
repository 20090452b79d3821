//! What is set while the machine boots and only read ever after: read-only from the seal on.
//!
//! The threat is an attacker who can write kernel data. The interrupt table, the flag that turns
//! failed checks into warnings, what was chosen about mitigations, the tables that traps are
//! looked up in: one store to any of them ends a protection. So they lie on pages of their own
//! ([`sealed!`]), and [`close`] takes the right to write from these pages, at their own address,
//! through the direct map and in programs' tables, on all CPUs, before the first program starts.
//! It is not given back: there is no function for that.
//!
//! Why not all of `.data`: counters, locks and lists change. Neighbours: `memory` has the tables,
//! `selftest` looks whether it is so, `link.ld` the pages.

/// Defines statics on sealed pages. Types that change through `&` (atomics, `Once`) are written
/// before the seal; a store behind it faults.
macro_rules! sealed {
    ($($(#[$attribute:meta])* $vis:vis static $name:ident: $type:ty = $value:expr;)+) => {
        $(
            $(#[$attribute])*
            // SAFETY: the section is data as any other; `link.ld` gives it pages of its own.
            #[unsafe(link_section = ".data.sealed")]
            $vis static $name: $type = $value;
        )+
    };
}
pub(crate) use sealed;

unsafe extern "C" {
    static __sealed_start: u8;
    static __sealed_end: u8;
    static __sealed_entry_start: u8;
    static __sealed_entry_end: u8;
}

/// The pages: those of [`sealed!`], and those that the CPU and entry code reach on programs'
/// tables.
pub(crate) fn ranges() -> [core::ops::Range<u64>; 2] {
    [
        (&raw const __sealed_start) as u64..(&raw const __sealed_end) as u64,
        (&raw const __sealed_entry_start) as u64..(&raw const __sealed_entry_end) as u64,
    ]
}

sealed! {
    /// Whether pages are sealed: itself on one.
    static CLOSED: spin::Once<()> = spin::Once::new();
}

/// Whether [`close`] has run.
pub(crate) fn is_closed() -> bool {
    CLOSED.is_completed()
}

/// Seals, by `seal`, which takes the right to write from pages. On the first CPU, once, when
/// everything is set and before the first program.
pub(crate) fn close(seal: fn(core::ops::Range<u64>)) {
    CLOSED.call_once(|| ());
    ranges().into_iter().for_each(seal);
}
