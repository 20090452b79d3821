//! Entries of nested page tables (AMD APM 2, 15.25.5): as in ordinary ones, where every access of
//! the guest counts as one of user mode.

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// First guest-physical address that tables of four levels cannot translate.
pub const END: u64 = 1 << 48;

/// An entry that leads to memory. Accessed and dirty are set: nobody looks at them, and the CPU
/// need not.
#[must_use]
pub const fn leaf(address: u64, write: bool) -> u64 {
    let rights = if write { WRITE | DIRTY } else { 0 };
    address & ADDRESS | PRESENT | USER | ACCESSED | rights
}

/// Where an entry leads; None: nowhere.
#[must_use]
pub const fn target(entry: u64) -> Option<u64> {
    if entry & PRESENT != 0 { Some(entry & ADDRESS) } else { None }
}

/// Whether the guest may write there.
#[must_use]
pub const fn is_writable(entry: u64) -> bool {
    entry & WRITE != 0
}

/// The entry without the right to write.
#[must_use]
pub const fn read_only(entry: u64) -> u64 {
    entry & !WRITE
}
