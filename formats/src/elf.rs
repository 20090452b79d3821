//! ELF64 files as execve(2) needs them: header, program headers, places of segments (elf(5)).
//!
//! Why it is hard: everything in a file is an allegation, and each number takes part in sums. A
//! sum is made only after the check that it fits: [`Image::is_mappable`] comes before
//! [`Image::extent`], and [`Image::bias`] before [`Segment::pages`].
//!
//! Neighbour: `kernel/src/mm/elf.rs` reads the files and maps the segments.

use alloc::vec::Vec;

const IDENT: &[u8; 4] = b"\x7fELF";
const EXECUTABLE: u16 = 2;
const SHARED_OBJECT: u16 = 3;
const X86_64: u16 = 62;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
const PROGRAM_HEADERS: u32 = 6;
const GNU_STACK: u32 = 0x6474_e551;
const PAGE: u64 = 4096;
/// End of the last page of a file that can be mapped.
const MAX_OFFSET: u64 = i64::MAX as u64;
/// Linux's bound: 64 KiB of program headers.
const MAX_SEGMENTS: u16 = (65536 / Segment::BYTES) as u16;

/// The file's header (`Elf64_Ehdr`), checked for what Linux looks at; class and byte order follow
/// from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u16,
    /// Entry point, before the bias is added.
    pub entry: u64,
    /// Offset of the program headers in the file.
    pub table: u64,
    /// Number of program headers.
    pub count: u16,
}

/// A program header (`Elf64_Phdr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "elf(5) describes each")]
pub struct Segment {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub align: u64,
}

/// The headers of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Of the file.
    pub header: Header,
    segments: Vec<Segment>,
}

/// Where a segment goes. All but `file_end` are at page boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// First address.
    pub start: u64,
    /// End of what comes from the file.
    pub file_end: u64,
    /// End of the pages that come from the file.
    pub mapped_end: u64,
    /// End of all.
    pub end: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(number(bytes, at))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(bytes, at))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

impl Header {
    /// Its length in the file.
    pub const BYTES: usize = 64;

    /// Reads it; None if the file is not for execve on x86-64.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Header> {
        let (kind, count) = (half(bytes, 16), half(bytes, 56));
        let is_ours = bytes.starts_with(IDENT)
            && half(bytes, 18) == X86_64
            && (kind == EXECUTABLE || kind == SHARED_OBJECT)
            && usize::from(half(bytes, 54)) == Segment::BYTES
            && (1..=MAX_SEGMENTS).contains(&count);
        let (entry, table) = (long(bytes, 24), long(bytes, 32));
        is_ours.then_some(Header { kind, entry, table, count })
    }

    /// Bytes of all program headers.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        usize::from(self.count) * Segment::BYTES
    }
}

impl Segment {
    /// The length of a program header in the file.
    pub const BYTES: usize = 56;

    fn parse(bytes: &[u8]) -> Segment {
        Segment {
            kind: word(bytes, 0),
            flags: word(bytes, 4),
            offset: long(bytes, 8),
            address: long(bytes, 16),
            file_size: long(bytes, 32),
            memory_size: long(bytes, 40),
            align: long(bytes, 48),
        }
    }

    /// The program may execute it (PF_X).
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.flags & 1 != 0
    }

    /// The program may write it (PF_W).
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.flags & 2 != 0
    }

    /// The program may read it (PF_R).
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.flags & 4 != 0
    }

    /// Where it goes with a bias that [`Image::bias`] gave.
    #[must_use]
    pub fn pages(&self, bias: u64) -> Pages {
        let at = self.address.wrapping_add(bias);
        let (start, file_end) = (at & !(PAGE - 1), at + self.file_size);
        let mapped_end = if self.file_size == 0 { start } else { file_end.next_multiple_of(PAGE) };
        let end = (at + self.memory_size).next_multiple_of(PAGE);
        Pages { start, file_end, mapped_end, end }
    }
}

impl Image {
    /// Header and program headers, of which `table` has the bytes. None if there is no memory.
    #[must_use]
    pub fn new(header: Header, table: &[u8]) -> Option<Image> {
        let mut segments = Vec::new();
        segments.try_reserve_exact(usize::from(header.count)).ok()?;
        let all = table.chunks_exact(Segment::BYTES).take(usize::from(header.count));
        segments.extend(all.map(Segment::parse));
        Some(Image { header, segments })
    }

    /// The segments that take up memory.
    pub fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == LOAD && segment.memory_size > 0)
    }

    /// The segment that names the program interpreter.
    #[must_use]
    pub fn interpreter(&self) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.kind == INTERPRETER)
    }

    /// Whether it may be placed anywhere.
    #[must_use]
    pub fn is_position_independent(&self) -> bool {
        self.header.kind == SHARED_OBJECT
    }

    /// Whether it asks for an executable stack.
    #[must_use]
    pub fn wants_executable_stack(&self) -> bool {
        self.segments.iter().any(|s| s.kind == GNU_STACK && s.is_executable())
    }

    /// Whether each segment can be mapped somewhere below `user_end`.
    #[must_use]
    pub fn is_mappable(&self, user_end: u64) -> bool {
        self.loads().all(|segment| {
            let stop = segment.address.checked_add(segment.memory_size);
            let file_stop = segment.offset.checked_add(segment.file_size);
            stop.is_some_and(|stop| stop <= user_end)
                && segment.file_size <= segment.memory_size
                && segment.offset % PAGE == segment.address % PAGE
                && file_stop.is_some_and(|stop| stop <= MAX_OFFSET)
        })
    }

    /// Lowest page, and bytes from there to the end of the highest segment, whole pages. Only for
    /// images that are mappable.
    #[must_use]
    pub fn extent(&self) -> (u64, u64) {
        let low = self.loads().map(|s| s.address).min().unwrap_or(0) & !(PAGE - 1);
        let high = self.loads().map(|s| s.address + s.memory_size).max().unwrap_or(0);
        (low, (high - low).next_multiple_of(PAGE))
    }

    /// What its addresses are to be multiples of: the largest alignment of a segment that is a
    /// power of two, at least a page.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        let aligns = self.loads().map(|s| s.align).filter(|align| align.is_power_of_two());
        aligns.max().unwrap_or(PAGE).max(PAGE)
    }

    /// The highest place up to `at` where the image is aligned as it asks; where it is mapped, its
    /// addresses move by a multiple of [`Image::alignment`].
    #[must_use]
    pub fn align_place(&self, at: u64) -> u64 {
        let (low, _) = self.extent();
        (at.wrapping_sub(low) & !(self.alignment() - 1)).wrapping_add(low)
    }

    /// What to add to its addresses so that it begins at `place`, or where it says if that is None.
    /// None if it does not lie between `first` and `end` then. Only for images that are mappable.
    #[must_use]
    pub fn bias(&self, place: Option<u64>, first: u64, end: u64) -> Option<u64> {
        let (low, len) = self.extent();
        let bias = place.map_or(0, |place| place.wrapping_sub(low));
        let start = low.wrapping_add(bias);
        let fits = start >= first && start.checked_add(len).is_some_and(|stop| stop <= end);
        (len == 0 || fits).then_some(bias)
    }

    /// Address of the program headers, before the bias is added; 0 if they are in no segment.
    #[must_use]
    pub fn headers_address(&self) -> u64 {
        if let Some(segment) = self.segments.iter().find(|s| s.kind == PROGRAM_HEADERS) {
            return segment.address;
        }
        let at = self.header.table;
        self.loads()
            .find(|s| s.offset <= at && at - s.offset < s.file_size)
            .map_or(0, |s| s.address + (at - s.offset))
    }
}
