//! Intel's virtualisation as a [`virt::Vmrun`]: which controls a CPU's capabilities allow
//! ([`controls`]), the fields of the control structure ([`field`]) and a guest's registers in them
//! ([`Guest`]), what exit reasons mean ([`exit`]), and entries of extended page tables ([`ept`]).
//!
//! Nothing here executes VMLAUNCH: that is [`World`], which `machine/src/vmrun` is, and the
//! tests script. The world keeps for itself whatever could reach the host: tables, bitmaps,
//! identifiers, the host's own state, and the words of controls.
//!
//! Why it is hard: the CPU refuses more states than AMD's, and switches less: CR0 and CR4 have bits
//! that the host must own ([`Guest::store`] says which the guest sees instead), some MSRs, CR2 and
//! half of the debug registers stay for software.
//!
//! Reference: Intel SDM volume 3C, chapters 24 to 29, and 3D, appendices A to C.

#![no_std]

pub mod controls;
pub mod ept;
pub mod exit;
pub mod field;
mod guest;
mod state;

pub use controls::Controls;
pub use guest::Guest;
pub use state::{Extra, Left, Request, Vmx, World, decode_event, encode_event};
