//! The trap: which check failed, told from the instruction pointer of a fault.
//!
//! | Fault | RIP | Means |
//! |---|---|---|
//! | #UD | S+12, bytes `0f 0b` | mismatch, compiler's form |
//! | #UD | S+13, byte `d6` | mismatch, optimised form |
//! | #PF, #GP | S+6 | the hash word itself cannot be read: target unmapped, user or non-canonical |
//!
//! Why this is hard: everything is decoded relative to S, which only the site table knows. Reading
//! "twelve bytes before RIP" gives, for the optimised form, the immediate shifted by a byte and
//! the wrong register. And while another CPU rewrites the sites, text may have either form, so the
//! answer rests on the table; the text is asked only for the hash that is in force (re-seeding
//! changes it), and if it does not decode at that instant the table's own hash is reported.

use crate::kcfi::{self, Check, TAIL, TRAP_UD2, TRAP_UDB};
use crate::poke::Text;
use crate::site_table::SiteTables;

/// Where the `add` stands that reads the callee's hash.
pub const HASH_READ: u64 = 6;

/// An undefined instruction that means something to the kernel. Intel SDM volume 2, "UD".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undefined {
    /// `0f 0b`.
    Ud2,
    /// `d6`, 64-bit mode only.
    Udb,
    /// `0f b9 /r`: warnings, and the signature of static-call trampolines.
    Ud1,
}

impl Undefined {
    /// Which of them begins with these bytes.
    #[must_use]
    pub const fn decode(bytes: [u8; 2]) -> Option<Self> {
        match bytes {
            [0x0f, 0x0b] => Some(Self::Ud2),
            [0x0f, 0xb9] => Some(Self::Ud1),
            [0xd6, _] => Some(Self::Udb),
            _ => None,
        }
    }
}

/// How a check failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The callee's hash is another one.
    Mismatch,
    /// The callee's hash could not be read.
    Unreadable,
}

/// A failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CfiFailure {
    /// Start of the check.
    pub site: u64,
    /// Why it failed.
    pub cause: Cause,
    /// Hash that the callee should have had.
    pub expected: u32,
    /// Hardware number of the register that holds the target (11 is r11).
    pub register: u8,
    /// Where the callee's hash is, relative to the target.
    pub disp: i8,
    /// The call: where a machine that only warns goes on.
    pub resume: u64,
}

impl CfiFailure {
    /// Where the found hash is read from, given the value of [`Self::register`]. The address is the
    /// attacker's: read it with a fault-tolerant load.
    #[must_use]
    pub const fn hash_address(&self, target: u64) -> u64 {
        target.wrapping_add_signed(self.disp as i64)
    }
}

/// The check behind a #UD at `rip`, if it is one. Not every #UD is: the caller goes on with its
/// other users (static-call trampolines, bugs).
#[must_use]
pub fn on_undefined(rip: u64, tables: &SiteTables<'_>, text: &impl Text) -> Option<CfiFailure> {
    // Both places are tried whatever the text says now: it may have been rewritten since the trap.
    [TRAP_UD2, TRAP_UDB]
        .into_iter()
        .find_map(|offset| failure_at(rip.checked_sub(offset)?, Cause::Mismatch, tables, text))
}

/// The check behind a #PF or #GP at `rip`, if the faulting instruction is a check's read.
#[must_use]
pub fn on_bad_read(rip: u64, tables: &SiteTables<'_>, text: &impl Text) -> Option<CfiFailure> {
    failure_at(rip.checked_sub(HASH_READ)?, Cause::Unreadable, tables, text)
}

fn failure_at(
    site: u64,
    cause: Cause,
    tables: &SiteTables<'_>,
    text: &impl Text,
) -> Option<CfiFailure> {
    let entry = tables.checks().find(site)?;
    let check = kcfi::decode_at(text, site).ok();
    let known = |field: fn(&Check) -> u8| check.as_ref().map(field);
    Some(CfiFailure {
        site,
        cause,
        expected: check.map_or(entry.hash, |check| check.hash),
        register: known(|check| check.register).unwrap_or(11),
        disp: check.map_or(tables.disp(), |check| check.disp),
        resume: site.wrapping_add(TAIL),
    })
}
