//! Memory that is left for the kernel itself (`machine::frame`), and what may be done when only
//! that is left.
//!
//! Who holds memory that can be given back says so in `boot` ([`register`]): this floor knows none
//! of them by name.

use abi::{Errno, Result};
use machine::frame::{Frame, is_low, is_short};
use machine::sync::Once;

/// What gives memory back.
pub struct Givers {
    /// Drops what is only kept because it may be used again. Takes no lock that sleeps.
    pub drop_caches: fn(),
    /// Makes memory free by all means, and waits until there is some; false if there is none to be
    /// had, or the caller is to end. The caller holds no lock that an ending process needs.
    pub relieve: fn() -> bool,
}

machine::ro_after_init! {
    static GIVERS: Once<Givers> = Once::new();
}

/// Registers those who give memory back, once. Before that there is none to be had.
pub fn register(givers: Givers) {
    GIVERS.call_once(|| givers);
}

/// A new zeroed frame for a program; ENOMEM if only the kernel's reserve is left.
pub fn alloc_zeroed() -> Result<Frame> {
    check_reserve()?;
    Frame::alloc_zeroed().map_err(|_| Errno::ENOMEM)
}

/// As [`alloc_zeroed`], with what its last user has left there: see [`Frame::alloc_undefined`].
pub fn alloc_undefined() -> Result<Frame> {
    check_reserve()?;
    Frame::alloc_undefined().map_err(|_| Errno::ENOMEM)
}

/// ENOMEM if so little memory is left that programs must get no more: the kernel's own small
/// objects come from the same memory, and it cannot go on without them. Drops clean file pages
/// first. Every call that lets a program grow asks here: faults, fork, mappings, descriptors.
#[inline]
pub fn check_reserve() -> Result<()> {
    if is_short() { make_room() } else { Ok(()) }
}

#[cold]
fn make_room() -> Result<()> {
    reclaim();
    if is_short() { Err(Errno::ENOMEM) } else { Ok(()) }
}

fn drop_caches() {
    if let Some(givers) = GIVERS.get() {
        (givers.drop_caches)();
    }
}

/// Gives back what is only kept because it may be used again.
pub fn reclaim() {
    drop_caches();
    if is_short() {
        while machine::stack::trim_stacks() > 0 {}
        machine::trim_heap();
    }
}

/// See [`Givers::relieve`].
#[cold]
pub fn relieve() -> bool {
    GIVERS.get().is_some_and(|givers| (givers.relieve)())
}

/// ENOSPC if so little memory is left that what outlives its program must not grow: files in
/// memory. Killing programs would not bring it back.
#[inline]
pub fn check_room_for_files() -> Result<()> {
    if is_low() { make_room_for_files() } else { Ok(()) }
}

#[cold]
fn make_room_for_files() -> Result<()> {
    drop_caches();
    if is_low() { Err(Errno::ENOSPC) } else { Ok(()) }
}
