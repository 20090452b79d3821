//! The trap: which check failed, told from the instruction pointer of a fault.
//!
//! | Fault | RIP | Means |
//! |---|---|---|
//! | #UD | S+12, bytes `0f 0b` | mismatch, compiler's form |
//! | #UD | S+13, byte `d6` | mismatch, optimised form |
//! | #PF, #GP | S+6 | the hash word itself cannot be read: target unmapped, user or non-canonical |
//! | #UD | function - 1, byte `d6` | FineIBT: EAX is the caller's hash less the callee's |
//! | #CP, #PF | the target | FineIBT: no landing pad there, or nothing that can be executed |
//! | #GP | S+14 and on | FineIBT: the target is not canonical |
//!
//! Why this is hard: everything is decoded relative to S, which only the site table knows. Reading
//! "twelve bytes before RIP" gives, for the optimised form, the immediate shifted by a byte and
//! the wrong register. And while another CPU rewrites the sites, text may have either form, so the
//! answer rests on the table; the text is asked only for the hash that is in force (re-seeding
//! changes it), and if it does not decode at that instant the table's own hash is reported.

use crate::fineibt;
use crate::kcfi::{self, CHECK_LEN, Check, TAIL, TRAP_UD2, TRAP_UDB};
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

/// The function whose landing pad has trapped at `rip`, and the hash that it wants.
#[must_use]
pub fn on_landing_pad(rip: u64, tables: &SiteTables<'_>, text: &impl Text) -> Option<(u64, u32)> {
    let function = rip.checked_add(fineibt::TRAP)?;
    tables.functions().find(function)?;
    Some((function, fineibt::decode_landing_pad(text, function).ok()?))
}

/// The check whose call or jump ends at `end`, the return address behind it.
#[must_use]
pub fn check_before(end: u64, tables: &SiteTables<'_>) -> Option<u64> {
    let sites = (TAIL..=TAIL + CALL_MAX).filter_map(|length| end.checked_sub(length));
    let ends_there = |site: &u64| {
        let entry = tables.checks().find(*site);
        entry.is_some_and(|check| site.wrapping_add(TAIL + u64::from(check.shape.len)) == end)
    };
    sites.into_iter().find(ends_there)
}

/// The check whose own call or jump is at `rip`.
#[must_use]
pub fn check_at_call(rip: u64, tables: &SiteTables<'_>) -> Option<u64> {
    // Prefixes or a fence may stand before the branch.
    let mut sites = (TAIL..TAIL + CALL_MAX).filter_map(|length| rip.checked_sub(length));
    sites.find(|&site| tables.checks().find(site).is_some())
}

/// Longest call or jump behind a check.
const CALL_MAX: u64 = 6;
const _: () = assert!(CHECK_LEN as u64 == TAIL);

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
