//! Random numbers for the kernel's own use: layouts, seeds. The generator is the machine's.

pub use machine::entropy::fill;

/// A random number below `bound` (at least 1).
pub fn below(bound: u64) -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    // The bias of the remainder is below 2^-40 for the bounds in use.
    u64::from_le_bytes(bytes) % bound.max(1)
}
