//! What a Multiboot2 loader such as GRUB leaves for the kernel (Multiboot2 Specification 2.0, 3.6):
//! a list of tags in memory.
//!
//! Why it is hard: the lengths come from outside. Each is checked against what is left of the list,
//! a tag that does not fit ends it, and the list itself is bounded by [`MAX_BYTES`].
//!
//! Neighbours: [`crate::pvh`], which has the form that the rest of boot takes; and
//! `machine/src/boot/multiboot.rs`, which finds the list.

use crate::pvh::{Error, Memory, MemoryMap, StartInfo};

/// What a loader puts into EAX.
pub const LOADER_MAGIC: u32 = 0x36d7_6289;
/// Longest list read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Bytes of one entry of the memory map: address, length, kind, reserved.
pub const MEMORY_ENTRY_BYTES: usize = 24;

/// Bytes before the first tag: the total size, and a reserved word.
const LIST_HEADER_BYTES: usize = 8;
const TAG_HEADER_BYTES: usize = 8;
const TAG_ALIGNMENT: usize = 8;

mod tag {
    pub(super) const END: u32 = 0;
    pub(super) const COMMAND_LINE: u32 = 1;
    pub(super) const MODULE: u32 = 3;
    pub(super) const MEMORY_MAP: u32 = 6;
    pub(super) const ACPI_OLD: u32 = 14;
    pub(super) const ACPI_NEW: u32 = 15;
}

/// Where in the list things are: byte offsets from its beginning; 0: not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Total length of the list, bytes.
    pub bytes: usize,
    /// The command line, which ends with a zero byte inside the list.
    pub command_line: usize,
    /// The first entry of the memory map, [`MEMORY_ENTRY_BYTES`] each.
    pub memory_map: usize,
    /// Number of entries in the memory map.
    pub memory_map_entries: u32,
    /// A copy of the ACPI root pointer, the one of the newest revision.
    pub rsdp: usize,
    /// Physical addresses of the first module's first byte, and of the one after its last.
    pub module: Option<(u64, u64)>,
}

/// What the list at physical address `at` says, in the form of a PVH loader. The list itself stays
/// out of the free memory, since the result refers to it.
///
/// # Errors
/// [`Error`], if there is no memory map or it cannot be read.
pub fn start_info(at: u64, list: &[u8], memory: &impl Memory) -> Result<StartInfo, Error> {
    let info = read(list);
    let place = |offset: usize| if offset == 0 { 0 } else { at + offset as u64 };
    let entries = (place(info.memory_map), info.memory_map_entries);
    let mut memory = MemoryMap::read(entries, memory)?;
    memory.reserve(at, at + list.len() as u64);
    Ok(StartInfo {
        memory,
        initrd: info.module,
        command_line: place(info.command_line),
        rsdp: place(info.rsdp),
    })
}

fn word(list: &[u8], at: usize) -> Option<u32> {
    list.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The length that a list says it has, from its first bytes; `None` if it cannot be one.
#[must_use]
pub fn total_bytes(start: &[u8]) -> Option<usize> {
    let bytes = word(start, 0)? as usize;
    (LIST_HEADER_BYTES..=MAX_BYTES).contains(&bytes).then_some(bytes)
}

/// Reads a list. What is cut off, or of a shape that is not known, counts as not there.
#[must_use]
pub fn read(list: &[u8]) -> Info {
    let mut info = Info { bytes: list.len(), ..Info::default() };
    let mut at = LIST_HEADER_BYTES;
    while let (Some(kind), Some(size)) = (word(list, at), word(list, at + 4)) {
        let Some(tag) = list.get(at..at.saturating_add(size as usize)) else { break };
        if kind == tag::END || tag.len() < TAG_HEADER_BYTES {
            break;
        }
        note(&mut info, kind, at, tag);
        at += tag.len().next_multiple_of(TAG_ALIGNMENT);
    }
    info
}

/// Takes what `tag`, which begins `at` bytes into the list, says.
fn note(info: &mut Info, kind: u32, at: usize, tag: &[u8]) {
    let body = at + TAG_HEADER_BYTES;
    match kind {
        tag::COMMAND_LINE if tag[TAG_HEADER_BYTES..].contains(&0) => info.command_line = body,
        tag::MODULE if info.module.is_none() => {
            if let (Some(start), Some(end)) = (word(tag, 8), word(tag, 12))
                && start < end
            {
                info.module = Some((start.into(), end.into()));
            }
        }
        tag::MEMORY_MAP if word(tag, 8) == Some(MEMORY_ENTRY_BYTES as u32) && tag.len() >= 16 => {
            // Behind the size of an entry comes the version of its form; later ones only add.
            let entries = (tag.len() - 16) / MEMORY_ENTRY_BYTES;
            info.memory_map = at + 16;
            info.memory_map_entries = u32::try_from(entries).unwrap_or(0);
        }
        tag::ACPI_NEW => info.rsdp = body,
        tag::ACPI_OLD if info.rsdp == 0 => info.rsdp = body,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    fn list(tags: &[(u32, &[u8])]) -> Vec<u8> {
        let mut list = std::vec![0; LIST_HEADER_BYTES];
        for (kind, body) in tags.iter().chain([&(tag::END, &[][..])]) {
            list.extend(kind.to_le_bytes());
            list.extend((TAG_HEADER_BYTES as u32 + body.len() as u32).to_le_bytes());
            list.extend(*body);
            list.resize(list.len().next_multiple_of(TAG_ALIGNMENT), 0);
        }
        let bytes = list.len() as u32;
        list[..4].copy_from_slice(&bytes.to_le_bytes());
        list
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn everything_is_found() {
        let mut map = words(&[24, 0]);
        map.extend(words(&[0, 0, 0x9_fc00, 0, 1, 0]));
        map.extend(words(&[0x10_0000, 0, 0x7f0_0000, 0, 1, 0]));
        let mut module = words(&[0x80_0000, 0x80_1234]);
        module.extend(b"name\0");
        let list = list(&[
            (tag::COMMAND_LINE, b"pti=on\0"),
            (2, b"GRUB\0"),
            (tag::MODULE, &module),
            (tag::MODULE, &words(&[1, 2])),
            (tag::MEMORY_MAP, &map),
            (tag::ACPI_OLD, b"RSD PTR old"),
            (tag::ACPI_NEW, b"RSD PTR new"),
        ]);
        let info = read(&list);
        assert_eq!(total_bytes(&list), Some(list.len()));
        assert_eq!(&list[info.command_line..][..7], b"pti=on\0");
        assert_eq!(info.module, Some((0x80_0000, 0x80_1234)));
        assert_eq!(info.memory_map_entries, 2);
        assert_eq!(word(&list, info.memory_map + 24), Some(0x10_0000));
        assert_eq!(&list[info.rsdp..][..11], b"RSD PTR new");
    }

    #[test]
    fn the_list_is_no_free_memory() {
        struct At(u64, Vec<u8>);
        impl Memory for At {
            fn read(&self, phys: u64, bytes: &mut [u8]) -> bool {
                let from = self.1.get((phys - self.0) as usize..).unwrap_or_default();
                let from = from.get(..bytes.len());
                from.inspect(|from| bytes.copy_from_slice(from)).is_some()
            }
        }
        let mut map = words(&[24, 0]);
        map.extend(words(&[0x10_0000, 0, 0x10_0000, 0, 1, 0]));
        let list = list(&[(tag::COMMAND_LINE, b"a\0"), (tag::MEMORY_MAP, &map)]);
        let memory = At(0x18_0000, list.clone());
        let info = start_info(0x18_0000, &list, &memory).unwrap();
        assert_eq!(info.memory.ranges(), [(0x10_0000, 0x18_0000), (0x18_1000, 0x20_0000)]);
        assert_eq!((info.command_line, info.rsdp), (0x18_0010, 0));
    }

    #[test]
    fn what_is_not_there_is_zero() {
        let list = list(&[]);
        assert_eq!(read(&list), Info { bytes: list.len(), ..Info::default() });
    }

    #[test]
    fn a_cut_list_is_read_up_to_the_cut() {
        let whole = list(&[(tag::COMMAND_LINE, b"a\0"), (tag::MODULE, &words(&[16, 32, 0]))]);
        for len in 0..whole.len() {
            let info = read(&whole[..len]);
            assert_eq!(info.command_line != 0, len >= 18, "{len}");
            assert_eq!(info.module.is_some(), len >= 44, "{len}");
        }
    }

    #[test]
    fn odd_tags_count_for_nothing() {
        // No end of the command line, an empty module, entries of another size.
        let odd = [
            (tag::COMMAND_LINE, &b"abc"[..]),
            (tag::MODULE, &words(&[32, 32, 0])),
            (tag::MEMORY_MAP, &words(&[20, 0, 0, 0, 0, 0, 0])),
        ];
        let list = list(&odd);
        assert_eq!(read(&list), Info { bytes: list.len(), ..Info::default() });
        // A tag shorter than its header would never end the list.
        assert_eq!(read(&words(&[16, 0, 1, 0])), Info { bytes: 16, ..Info::default() });
    }

    #[test]
    fn lengths_of_lists() {
        assert_eq!(total_bytes(&words(&[7])), None);
        assert_eq!(total_bytes(&words(&[MAX_BYTES as u32 + 1])), None);
        assert_eq!(total_bytes(&[8, 0, 0]), None);
    }

    proptest! {
        /// Whatever the bytes: an end, and everything named lies in the list.
        #[test]
        fn hostile_lists(mut bytes in prop::collection::vec(0u8..32, 0..200)) {
            // Sizes become small ones, so that many tags fit.
            for at in (5..bytes.len()).filter(|at| at % 4 != 0) {
                bytes[at] = 0;
            }
            let info = read(&bytes);
            let map_bytes = info.memory_map_entries as usize * MEMORY_ENTRY_BYTES;
            prop_assert!(info.memory_map + map_bytes <= bytes.len());
            prop_assert!(info.rsdp <= bytes.len());
            prop_assert!(info.command_line == 0 || bytes[info.command_line..].contains(&0));
        }
    }
}
