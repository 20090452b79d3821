//! What a PVH loader hands over (`hvm_start_info`, Xen's public header of that name), and the
//! memory that is left.
//!
//! Why it is hard: it is read before there is a heap, and everything else rests on it. Whatever
//! the loader says, no page of the map is given out twice: entries that overlap are cut, what is
//! not RAM wins over RAM, sums that overflow are left out, and what does not fit the table is
//! memory lost, no more. Neighbour: `machine/src/boot/mod.rs`.

use core::fmt;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Most ranges of RAM, with the holes cut into them.
const RANGES_MAX: usize = 64;
/// Most entries of the loader's memory map that are looked at.
const ENTRIES_MAX: u32 = 512;
/// No memory is looked for above: 46 bits are what the kernel's direct map covers.
const PHYSICAL_END: u64 = 1 << 46;
const MAGIC: u32 = 0x336e_c578;
const ENTRY_BYTES: u64 = 24;
/// The kind of an entry that is RAM.
const RAM: u32 = 1;

/// Why a kernel cannot start from what it was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The loader's structures are not where it says.
    Unreadable,
    /// The magic number is another.
    NotPvh,
    /// The map holds no RAM.
    NoMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "the loader's structures cannot be read",
            Self::NotPvh => "not started by a PVH loader",
            Self::NoMemory => "the loader gave no memory map",
        })
    }
}

/// Physical memory: `true` if all the bytes were read.
pub trait Memory {
    /// Copies from the physical address.
    fn read(&self, phys: u64, bytes: &mut [u8]) -> bool;
}

/// What the loader said.
#[derive(Clone, Debug)]
pub struct StartInfo {
    /// RAM.
    pub memory: MemoryMap,
    /// Physical start and end of the first module, the initramfs.
    pub initrd: Option<(u64, u64)>,
    /// Physical address of the command line; 0: none.
    pub command_line: u64,
    /// Physical address of ACPI's root pointer; 0: none.
    pub rsdp: u64,
}

impl StartInfo {
    /// Reads it at a physical address.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(at: u64, memory: &impl Memory) -> Result<Self, Error> {
        let info: [u8; 56] = bytes(memory, at)?;
        if u32_at(&info, 0) != MAGIC {
            return Err(Error::NotPvh);
        }
        let entries = (u64_at(&info, 40), u32_at(&info, 48));
        let modules = (u32_at(&info, 12), u64_at(&info, 16));
        Ok(Self {
            memory: MemoryMap::read(entries, memory)?,
            initrd: if modules.0 > 0 { module(modules.1, memory)? } else { None },
            command_line: u64_at(&info, 24),
            rsdp: u64_at(&info, 32),
        })
    }
}

/// The first module; `None` if it lies where no memory is.
fn module(at: u64, memory: &impl Memory) -> Result<Option<(u64, u64)>, Error> {
    let module: [u8; 16] = bytes(memory, at)?;
    let start = u64_at(&module, 0);
    let end = start.checked_add(u64_at(&module, 8));
    Ok(end.filter(|end| *end <= PHYSICAL_END).map(|end| (start, end)))
}

/// Physical ranges of RAM, page-aligned, which never overlap, without what is in use.
#[derive(Clone, Debug)]
pub struct MemoryMap {
    ranges: [(u64, u64); RANGES_MAX],
    count: usize,
}

impl MemoryMap {
    pub(crate) fn read((at, count): (u64, u32), memory: &impl Memory) -> Result<Self, Error> {
        let mut map = Self { ranges: [(0, 0); RANGES_MAX], count: 0 };
        for wants_ram in [true, false] {
            for index in 0..u64::from(count.min(ENTRIES_MAX)) {
                let at = at.checked_add(index * ENTRY_BYTES).ok_or(Error::Unreadable)?;
                let entry: [u8; ENTRY_BYTES as usize] = bytes(memory, at)?;
                let start = u64_at(&entry, 0).min(PHYSICAL_END);
                let end = start.saturating_add(u64_at(&entry, 8)).min(PHYSICAL_END);
                match u32_at(&entry, 16) == RAM {
                    true if wants_ram => map.add(start.next_multiple_of(PAGE), end & !(PAGE - 1)),
                    false if !wants_ram => map.reserve(start, end),
                    _ => {}
                }
            }
        }
        if map.ranges().iter().all(|range| range.0 == range.1) {
            return Err(Error::NoMemory);
        }
        Ok(map)
    }

    /// Adds RAM, without what is there already.
    fn add(&mut self, mut start: u64, mut end: u64) {
        for &(from, to) in self.ranges() {
            if start < to && from < end {
                if from <= start { start = to } else { end = from }
            }
        }
        self.push(start, end);
    }

    fn push(&mut self, start: u64, end: u64) {
        if start < end && self.count < RANGES_MAX {
            self.ranges[self.count] = (start, end);
            self.count += 1;
        }
    }

    /// Takes the pages of `start..end` out of the map.
    pub fn reserve(&mut self, start: u64, end: u64) {
        let start = start & !(PAGE - 1);
        let end = end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        for i in 0..self.count {
            let (from, to) = self.ranges[i];
            if start >= end || end <= from || to <= start {
                continue;
            }
            self.ranges[i] = (from, start.max(from));
            self.push(end, to);
        }
    }

    /// Takes `bytes`, rounded up to pages, below `limit`, from the largest range.
    pub fn take(&mut self, bytes: u64, limit: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let limit = limit & !(PAGE - 1);
        let room = |range: &(u64, u64)| range.1.min(limit).saturating_sub(range.0);
        let best = self.ranges[..self.count].iter_mut().max_by_key(|range| room(range))?;
        if room(best) < bytes {
            None
        } else if best.1 <= limit {
            best.1 -= bytes;
            Some(best.1)
        } else {
            best.0 += bytes;
            Some(best.0 - bytes)
        }
    }

    /// Where the highest range ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ranges().iter().map(|range| range.1).max().unwrap_or(0)
    }

    /// The ranges, start and end, in no order; some may be empty.
    #[must_use]
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges[..self.count]
    }
}

fn bytes<const N: usize>(memory: &impl Memory, at: u64) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    if memory.read(at, &mut bytes) { Ok(bytes) } else { Err(Error::Unreadable) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    struct Flat(Vec<u8>);

    impl Memory for Flat {
        fn read(&self, phys: u64, bytes: &mut [u8]) -> bool {
            let from = usize::try_from(phys).ok().and_then(|at| self.0.get(at..));
            let from = from.and_then(|rest| rest.get(..bytes.len()));
            from.inspect(|from| bytes.copy_from_slice(from)).is_some()
        }
    }

    /// A start info at 0, its map at 64: start, size, kind.
    fn loader(entries: &[(u64, u64, u32)]) -> Flat {
        let mut memory = Vec::new();
        for word in [MAGIC, 1, 0, 0] {
            memory.extend(word.to_le_bytes());
        }
        for word in [0u64, 0x111, 0x222, 64] {
            memory.extend(word.to_le_bytes());
        }
        memory.extend((entries.len() as u64).to_le_bytes());
        memory.resize(64, 0);
        for (start, size, kind) in entries {
            memory.extend(start.to_le_bytes());
            memory.extend(size.to_le_bytes());
            memory.extend(u64::from(*kind).to_le_bytes());
        }
        Flat(memory)
    }

    #[test]
    fn ram_without_what_is_reserved() {
        let memory = loader(&[(0, 0x9_fc00, 1), (0x9_fc00, 0x400, 2), (0x10_0000, 0x30_0000, 1)]);
        let mut info = StartInfo::read(0, &memory).expect("a start info");
        assert_eq!((info.command_line, info.rsdp, info.initrd), (0x111, 0x222, None));
        assert_eq!(info.memory.ranges(), [(0, 0x9_f000), (0x10_0000, 0x40_0000)]);
        info.memory.reserve(0x20_0001, 0x20_0002);
        let expected = [(0, 0x9_f000), (0x10_0000, 0x20_0000), (0x20_1000, 0x40_0000)];
        assert_eq!(info.memory.ranges(), expected);
        assert_eq!(info.memory.take(1, u64::MAX), Some(0x3f_f000));
        assert_eq!(info.memory.take(0x10_0000, 0x30_0000), Some(0x10_0000));
        assert_eq!(info.memory.take(1 << 40, u64::MAX), None);
        assert_eq!(info.memory.end(), 0x3f_f000);
    }

    #[test]
    fn overlaps_are_given_once() {
        let ram = [(0x1000, 0x4000, 1), (0x2000, 0x1000, 1), (0, 0x2000, 1), (0x4000, u64::MAX, 1)];
        let mut entries = ram.to_vec();
        entries.push((0x3000, 0x1000, 2));
        let info = StartInfo::read(0, &loader(&entries)).expect("a start info");
        let expected = [(0x1000, 0x3000), (0, 0x1000), (0x5000, PHYSICAL_END), (0x4000, 0x5000)];
        assert_eq!(info.memory.ranges(), expected);
    }

    #[test]
    fn refusals() {
        let error = |memory: &Flat, at| StartInfo::read(at, memory).map(|_| ()).unwrap_err();
        assert_eq!(error(&loader(&[]), 0), Error::NoMemory);
        assert_eq!(error(&loader(&[(0, 4096, 2)]), 0), Error::NoMemory);
        assert_eq!(error(&loader(&[(0, 4096, 1)]), 4), Error::NotPvh);
        assert_eq!(error(&loader(&[(0, 4096, 1)]), u64::MAX), Error::Unreadable);
        let mut cut = loader(&[(0, 4096, 1)]);
        cut.0.pop();
        assert_eq!(error(&cut, 0), Error::Unreadable);
    }
}
