//! A virtual CPU: what the hardware's virtualisation leaves to software, whoever made it.
//!
//! The hardware runs guest code until something has to be decided; [`Vmrun`] is all that is asked
//! of it, and `mechanisms/svm` is one of it. Everything between two entries is decided here, in
//! safe code without hardware: what an exit means ([`vcpu`]), instructions on device memory
//! ([`decode`], [`emulate`]), the guest's page tables ([`paging`]), events and their order
//! ([`event`]), interrupt controllers ([`lapic`], [`ioapic`], [`pic`]) and the timer ([`pit`]).
//!
//! Guests are hostile: any value of any register, any bytes as instructions and tables. Nothing
//! here panics or loops without end because of them; the tests and `fuzz/` try.
//!
//! Reading order: [`regs`], [`exit`], [`vcpu`].

#![no_std]

extern crate alloc;

pub mod clock;
pub mod cpuid;
pub mod decode;
pub mod emulate;
pub mod event;
pub mod exit;
pub mod ioapic;
pub mod lapic;
pub mod msr;
pub mod paging;
pub mod pic;
pub mod pit;
pub mod regs;
pub mod vcpu;

pub use event::Event;
pub use exit::{Entered, Exit, Vmrun, Windows};
