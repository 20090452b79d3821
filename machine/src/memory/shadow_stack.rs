//! The words of shadow stacks (`cpu::shadow_stack`), which no ordinary store reaches at their own
//! address: the kernel writes them through the direct map.
//!
//! It does so where a thread's first words are laid out, and where a handler changes what it
//! returns to: the CPU has pushed CS, the address (LIP) and SSP of what it interrupted, and IRET
//! compares them with its frame (SDM 3A, 6.14; SDM 2A, IRET).

use super::kernel_phys;
use crate::cpu::shadow_stack::{self, ShadowStack};
use crate::cpu::static_key::static_branch_unlikely;
use crate::memory::frame::PAGE_SIZE;

const WORD: u64 = 8;

/// Sets the word at `at`, in a page of shadow stack.
pub(crate) fn write(at: u64, value: u64) {
    assert!(at.is_multiple_of(WORD), "a word of a shadow stack is aligned");
    let place = kernel_phys(at).expect("shadow stacks are mapped").in_direct_map();
    // SAFETY: the direct map has the frame writable. Callers name a shadow stack that nobody uses,
    // or the words of the frame that the interrupt they handle has pushed: no code that runs
    // believes anything of either.
    unsafe { place.cast::<u64>().write_volatile(value) };
}

/// The word at `at`, in a page of shadow stack.
pub(crate) fn read(at: u64) -> u64 {
    // SAFETY: shadow stacks can be read as any memory, and are mapped as long as they are used.
    unsafe { (at as *const u64).read_volatile() }
}

/// Makes the whole page at `page` zero.
pub(super) fn clear(page: u64) {
    let place = kernel_phys(page).expect("shadow stacks are mapped").in_direct_map();
    // SAFETY: the direct map has the frame writable, and the shadow stack is nobody's.
    unsafe { core::ptr::write_bytes(place, 0, PAGE_SIZE) };
}

/// What an interrupt of the kernel has pushed, lowest address first: SSP, LIP, CS.
#[derive(Clone, Copy)]
pub(crate) struct Frame(u64);

impl Frame {
    /// Bytes of it.
    pub(crate) const SIZE: u64 = 3 * WORD;

    /// That at `at`.
    pub(crate) fn at(at: u64) -> Frame {
        Frame(at)
    }

    /// Of the interrupt of the kernel that is being handled: above the addresses of the handler's
    /// own calls comes a word that is no address.
    pub(crate) fn innermost() -> Frame {
        let start = shadow_stack::ssp();
        let end = (start | (PAGE_SIZE as u64 - 1)) + 1;
        let is_cs = |at: &u64| read(*at) == entry::selector::KERNEL_CS.into();
        let cs = (start..end).step_by(WORD as usize).find(is_cs);
        Frame(cs.expect("an interrupt of the kernel") - 2 * WORD)
    }

    /// The SSP that the interrupted code goes on with.
    pub(crate) fn ssp(self) -> u64 {
        read(self.0)
    }

    /// Has it go on with another.
    pub(crate) fn set_ssp(self, ssp: u64) {
        write(self.0, ssp);
    }

    /// Puts the same at `at`, and gives that.
    #[cfg(feature = "ktest")]
    pub(crate) fn copy_to(self, at: u64) -> u64 {
        (0..Self::SIZE).step_by(WORD as usize).for_each(|n| write(at + n, read(self.0 + n)));
        at
    }

    /// Makes it a frame `down` bytes below, which leads to `lip`.
    pub(crate) fn set(self, down: u64, lip: u64) {
        let (ssp, cs) = (self.ssp(), read(self.0 + 2 * WORD));
        for (n, word) in [ssp, lip, cs].into_iter().enumerate() {
            write(self.0 - down + n as u64 * WORD, word);
        }
    }
}

/// The handler that runs has made what it interrupted call something: one address more will be
/// there. [`Frame::ssp`] then lies within the frame, and who leaves the handler puts that right.
pub(crate) fn call_interrupted() {
    if static_branch_unlikely::<ShadowStack>() {
        let frame = Frame::innermost();
        frame.set_ssp(frame.ssp() - WORD);
    }
}

/// The handler that runs has made what it interrupted return.
pub(crate) fn return_interrupted() {
    if static_branch_unlikely::<ShadowStack>() {
        let frame = Frame::innermost();
        frame.set_ssp(frame.ssp() + WORD);
    }
}
