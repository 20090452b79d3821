//! What is set while the machine boots and only read ever after: read-only from the seal on.
//!
//! The threat is an attacker who can write kernel data. The interrupt table, the flag that turns
//! failed checks into warnings, what was chosen about mitigations, the tables that traps are
//! looked up in: one store to any of them ends a protection. So they lie on pages of their own
//! ([`sealed!`]; the kernel's by [`ro_after_init!`](crate::ro_after_init)), and [`close`] takes the
//! right to write from these pages, at their own address, through the direct map and in programs'
//! tables, on all CPUs, before the first program starts. It is not given back: there is no function
//! for that.
//!
//! Why not all of `.data`: counters, locks and lists change. Neighbours: `memory` has the tables,
//! `boot::seal` the moment, `selftest` looks whether it is so, `link.ld` the pages.

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

/// Defines statics of the kernel on sealed pages: what is registered at boot, functions before
/// all. They are written before [`boot::seal`](crate::boot::seal); a store behind it faults. Once
/// in a module.
///
/// The kernel names no section, which would be `unsafe`: the linker takes the statics of all
/// modules with this macro's name.
#[macro_export]
macro_rules! ro_after_init {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)+) => {
        mod ro_after_init {
            use super::*;
            $($(#[$attribute])* pub(super) static $name: $type = $value;)+
        }
        use ro_after_init::{$($name),+};
    };
}

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
