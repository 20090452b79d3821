//! AMD's virtualisation as a [`virt::Vmrun`]: the control block that VMRUN reads and writes
//! ([`vmcb`]), what its exit codes mean ([`exit`]), how events are put into it, the identifiers of
//! guests' translations ([`asid`]) and entries of nested tables ([`npt`]).
//!
//! Nothing here executes VMRUN: that is [`World`], which `machine/src/vmrun` is, and the tests
//! script. The world keeps for itself whatever could reach the host: addresses of tables and
//! bitmaps, the identifier, and the intercepts of [`vmcb::intercept::ALWAYS`].
//!
//! Why it is hard: without next-RIP saving and decode assists (QEMU's emulation has neither) the
//! block does not tell how long an instruction was or which register it named; and an exit during
//! the delivery of an event leaves the event in the block, to be delivered again.
//!
//! Reference: AMD APM volume 2, chapter 15 and appendices B and C.

#![no_std]

pub mod asid;
pub mod exit;
pub mod npt;
mod state;
pub mod vmcb;

pub use state::{Extra, Left, Request, Svm, World, decode_event, encode_event};
