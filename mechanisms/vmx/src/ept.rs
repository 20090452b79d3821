//! Extended page tables (SDM 3C, 29.3): where entries lead is as in ordinary ones, and so are the
//! bits of a table's entry (read, write, execute stand where present, write, user do). A leaf names
//! its memory type.

const READ: u64 = 1;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
/// Write-back, in bits 5:3.
const WRITE_BACK: u64 = 6 << 3;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// An entry that leads to memory, which the guest may execute, too.
#[must_use]
pub const fn leaf(address: u64, write: bool) -> u64 {
    let rights = if write { WRITE } else { 0 };
    address & ADDRESS | READ | EXECUTE | WRITE_BACK | rights
}

/// What an entry that leads to another table says beside where it is.
pub const TABLE: u64 = READ | WRITE | EXECUTE;

/// What names the tables of a guest: the top one, of four levels, walked as write-back memory.
#[must_use]
pub const fn pointer(root: u64) -> u64 {
    const LEVELS: u64 = 4;
    root & ADDRESS | (LEVELS - 1) << 3 | 6
}
