//! The dynamic loader's cache, `/etc/ld.so.cache` (ldconfig(8)): which library is where.
//!
//! Its form ("new format", glibc's dl-cache): the text `glibc-ld.so.cache1.1`, the number of
//! entries and the length of the strings (u32 each), 20 bytes of other matters; then per entry
//! flags, name, path (u32 each), 12 bytes of other matters. Name and path are offsets of
//! NUL-terminated strings from where the text begins. Neighbour: `cli/src/pack/ldso.rs`.

use alloc::vec::Vec;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// Longest path (PATH_MAX): entries may share strings, and a long one many times takes long.
const STRING_MAX: usize = 4096;
/// Entry flags: library for glibc (3) on x86-64 (0x300).
const FLAGS_X86_64: u32 = 0x303;

/// A library's name and path.
pub type Library<'a> = (&'a [u8], &'a [u8]);

/// The libraries for x86-64, in the cache's order. `None` if it is no cache, or not whole.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Vec<Library<'_>>> {
    // A cache in the old format may come first.
    let at = bytes.windows(MAGIC.len()).position(|window| window == MAGIC)?;
    let cache = &bytes[at..];
    let count = word(cache, MAGIC.len())? as usize;
    let table = cache.get(HEADER_BYTES..)?.get(..count.checked_mul(ENTRY_BYTES)?)?;
    let ours = |entry: &&[u8]| word(entry, 0) == Some(FLAGS_X86_64);
    let library =
        |entry: &[u8]| Some((string(cache, word(entry, 4)?)?, string(cache, word(entry, 8)?)?));
    table.chunks_exact(ENTRY_BYTES).filter(ours).map(library).collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn string(cache: &[u8], at: u32) -> Option<&[u8]> {
    let rest = cache.get(at as usize..)?;
    let len = rest.iter().take(STRING_MAX).position(|&byte| byte == 0)?;
    Some(&rest[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// A cache with these entries.
    fn cache_of(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let strings_at = HEADER_BYTES + entries.len() * ENTRY_BYTES;
        let mut table = Vec::new();
        for (flags, name, path) in entries {
            let mut put = |text: &str| {
                let at = (strings_at + strings.len()) as u32;
                strings.extend_from_slice(text.as_bytes());
                strings.push(0);
                at
            };
            let words = [*flags, put(name), put(path), 0, 0, 0];
            table.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let mut cache = MAGIC.to_vec();
        cache.extend((entries.len() as u32).to_le_bytes());
        cache.extend((strings.len() as u32).to_le_bytes());
        cache.resize(HEADER_BYTES, 0);
        cache.extend(table);
        cache.extend(strings);
        cache
    }

    /// Any change of two words of a cache, and any cut.
    #[test]
    fn hostile_caches_are_read_or_refused() {
        let entry = (FLAGS_X86_64, "liba.so.1", "/opt/liba.so.1");
        let good = cache_of(&[entry, entry]);
        let edges = [0, 1, 0x7fff_ffff, u32::MAX, u32::MAX - 3, good.len() as u32];
        for (first, second) in (0..good.len()).flat_map(|a| (a..good.len()).map(move |b| (a, b))) {
            let mut bad = good.clone();
            for (at, edge) in [(first, edges[second % 6]), (second, edges[first % 6])] {
                let end = bad.len().min(at + 4);
                bad[at..end].copy_from_slice(&edge.to_le_bytes()[..end - at]);
            }
            assert!(parse(&bad).is_none_or(|found| found.len() <= bad.len() / ENTRY_BYTES));
            let _ = parse(&bad[..second]);
        }
        let mut long = cache_of(&[(FLAGS_X86_64, "liba.so.1", "/a")]);
        long.pop();
        long.resize(long.len() + STRING_MAX, b'a');
        long.push(0);
        assert_eq!(parse(&long), None);
    }

    #[test]
    fn entries_of_this_machine_only() {
        let entries = [(FLAGS_X86_64, "liba.so.1", "/opt/liba.so.1"), (3, "liba.so.1", "/i386/a")];
        let mut bytes = b"ld.so-1.7.0 old".to_vec();
        bytes.extend(cache_of(&entries));
        assert_eq!(parse(&bytes), Some(vec![(&b"liba.so.1"[..], &b"/opt/liba.so.1"[..])]));
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_none_or(|found| found.len() < 2));
        }
    }
}
