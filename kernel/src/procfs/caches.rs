//! The caches of a CPU, as CPUID tells of them: Intel's by leaf 4 (SDM 2A, CPUID), AMD's by leaf
//! 0x8000001d or, where that is not, by the older 0x80000005 and 0x80000006 (APM 3, appendix E.4).
//! Where none of them says anything no cache is known. All CPUs are taken to be alike.

use alloc::vec::Vec;

use machine::cpu::cpuid;

/// More kinds of caches than any CPU has.
const CACHES_MAX: u32 = 16;

/// A cache.
#[derive(Clone, Copy)]
pub(super) struct Cache {
    /// 1 is next to the CPU.
    pub(super) level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub(super) kind: &'static str,
    pub(super) line_bytes: u32,
    /// Lines that have one tag.
    pub(super) partitions: u32,
    pub(super) ways: u32,
    pub(super) sets: u32,
    /// CPUs whose APIC ids differ in these lowest bits alone share it.
    pub(super) shared_bits: u32,
}

impl Cache {
    pub(super) fn kib(&self) -> u32 {
        (self.line_bytes * self.partitions * self.ways / 64 * self.sets) / 16
    }
}

/// How many bits number `count` of something.
pub(super) fn bits_for(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

/// Largest leaf of the range that `leaf` is in.
pub(super) fn has_leaf(leaf: u32) -> bool {
    cpuid(leaf & 0x8000_0000, 0)[0] >= leaf
}

pub(super) fn is_amd() -> bool {
    let [_, b, _, _] = cpuid(0, 0);
    b == u32::from_le_bytes(*b"Auth") || b == u32::from_le_bytes(*b"Hygo")
}

/// All caches, in the order in which the CPU lists them. `thread_bits` and `package_bits`: as in
/// [`super::cpus::Shape`].
pub(super) fn caches(thread_bits: u32, package_bits: u32) -> Vec<Cache> {
    const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
    if !is_amd() {
        return if has_leaf(4) { listed(4) } else { Vec::new() };
    }
    let has_list = has_leaf(0x8000_001d) && cpuid(0x8000_0001, 0)[2] & TOPOLOGY_EXTENSIONS != 0;
    let list = if has_list { listed(0x8000_001d) } else { Vec::new() };
    if list.is_empty() { by_level(thread_bits, package_bits) } else { list }
}

/// Those that a leaf lists, one for each subleaf.
fn listed(leaf: u32) -> Vec<Cache> {
    let cache = |subleaf| {
        let [a, b, c, _] = cpuid(leaf, subleaf);
        let kind = match a & 0x1f {
            1 => "Data",
            2 => "Instruction",
            3 => "Unified",
            _ => return None,
        };
        Some(Cache {
            level: a >> 5 & 7,
            kind,
            line_bytes: (b & 0xfff) + 1,
            partitions: (b >> 12 & 0x3ff) + 1,
            ways: (b >> 22) + 1,
            sets: c.wrapping_add(1).max(1),
            shared_bits: bits_for((a >> 14 & 0xfff) + 1),
        })
    };
    (0..CACHES_MAX).map_while(cache).collect()
}

/// Those of AMD's older leaves: a core's own, but for the third level, which a package shares.
fn by_level(thread_bits: u32, package_bits: u32) -> Vec<Cache> {
    let first = if has_leaf(0x8000_0005) { cpuid(0x8000_0005, 0) } else { [0; 4] };
    let next = if has_leaf(0x8000_0006) { cpuid(0x8000_0006, 0) } else { [0; 4] };
    // The first level has its ways as a number, the others as a code.
    let rows = [
        (1, "Data", first[2] >> 24, first[2] >> 16 & 0xff, first[2], thread_bits),
        (1, "Instruction", first[3] >> 24, first[3] >> 16 & 0xff, first[3], thread_bits),
        (2, "Unified", next[2] >> 16, ways_of_code(next[2] >> 12 & 0xf), next[2], thread_bits),
        (
            3,
            "Unified",
            (next[3] >> 18) * 512,
            ways_of_code(next[3] >> 12 & 0xf),
            next[3],
            package_bits,
        ),
    ];
    let cache = |(level, kind, kib, ways, register, shared_bits): (_, _, u32, u32, u32, _)| {
        let line_bytes = register & 0xff;
        let partitions = (register >> 8 & 0xf).max(1);
        let lines = (kib * 1024).checked_div(line_bytes * partitions)?;
        // All ways: one set.
        let ways = if ways == u32::MAX || level == 1 && ways == 0xff { lines } else { ways };
        let sets = lines.checked_div(ways).filter(|&sets| sets > 0)?;
        Some(Cache { level, kind, line_bytes, partitions, ways, sets, shared_bits })
    };
    rows.into_iter().filter_map(cache).collect()
}

/// Ways by their code in leaf 0x80000006; 0 where there is no cache, `u32::MAX` where a line may be
/// anywhere.
fn ways_of_code(code: u32) -> u32 {
    match code {
        1..=4 => code,
        5 => 6,
        6 => 8,
        8 => 16,
        0xa => 32,
        0xb => 48,
        0xc => 64,
        0xd => 96,
        0xe => 128,
        0xf => u32::MAX,
        _ => 0,
    }
}
