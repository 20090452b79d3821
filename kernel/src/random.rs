//! Random numbers for the kernel's own use: layouts, seeds.

/// Fills with random bytes.
pub fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        let mut x = machine::cpu::rdtsc().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
        chunk.copy_from_slice(&x.to_le_bytes()[..chunk.len()]);
    }
}

/// A random number below `bound`.
pub fn below(bound: u64) -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    // The bias of the remainder is below 2^-40 for the bounds in use.
    u64::from_le_bytes(bytes) % bound.max(1)
}
