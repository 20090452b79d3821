//! ELF files: headers, checked, and their segments mapped into a new address space (elf(5)).
//!
//! Everything in a file is an allegation. Sizes and addresses are checked before they are used in
//! arithmetic. Whether a file that does not add up is refused with an errno ([`Elf::read`],
//! [`Elf::interpreter`]) or ends the process that executes it ([`Elf::map`]) is as on Linux, which
//! looks at the segments only when the old program is gone (`guest/tests/src/elf_cases.txt`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::entry::PageFault;
use machine::paging::{Prot, USER_END};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::fs::File;
use crate::io::Sink;
use crate::mm::page_cache::PageCache;
use crate::mm::{Backing, MMAP_MIN, Mm, PAGE, Vma};

/// `Elf64_Ehdr`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Header {
    ident: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    program_headers: u64,
    section_headers: u64,
    flags: u32,
    header_size: u16,
    program_header_size: u16,
    program_header_count: u16,
    section_header_size: u16,
    section_header_count: u16,
    section_names: u16,
}

/// `Elf64_Phdr`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

/// All that Linux looks at; class and byte order follow from the machine.
const IDENT: [u8; 4] = *b"\x7fELF";
const EXECUTABLE: u16 = 2;
const SHARED_OBJECT: u16 = 3;
const X86_64: u16 = 62;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
const PROGRAM_HEADERS: u32 = 6;
const GNU_STACK: u32 = 0x6474_e551;
const FLAG_EXEC: u32 = 1;
const FLAG_WRITE: u32 = 2;
const FLAG_READ: u32 = 4;
/// Linux's bound: 64 KiB of program headers.
const MAX_SEGMENTS: usize = 65536 / size_of::<Segment>();
const MAX_INTERPRETER: u64 = 4096;
/// End of the last page of a file that can be mapped.
const MAX_OFFSET: u64 = i64::MAX as u64;

/// Bytes of the first header.
pub const HEADER_BYTES: u64 = size_of::<Header>() as u64;

/// A checked file, not yet mapped.
pub struct Elf {
    header: Header,
    segments: Vec<Segment>,
    file: Arc<File>,
    cache: Arc<PageCache>,
}

/// Where a file was mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// What was added to the file's addresses.
    pub bias: u64,
    /// Entry point.
    pub entry: u64,
    /// Address of the program headers.
    pub headers: u64,
    /// Number of program headers.
    pub header_count: u64,
    /// First address after its data.
    pub end: u64,
}

/// Reads exactly `into.len()` bytes; ENOEXEC if the file is shorter.
pub fn read_exact(cache: &PageCache, offset: u64, into: &mut [u8]) -> Result<()> {
    let len = into.len();
    match cache.read(offset, &mut Sink::kernel(into))? {
        read if read == len => Ok(()),
        _ => Err(Errno::ENOEXEC),
    }
}

impl Elf {
    /// Reads and checks the headers.
    pub fn read(file: Arc<File>, cache: Arc<PageCache>) -> Result<Elf> {
        let mut header = Header::new_zeroed();
        read_exact(&cache, 0, header.as_mut_bytes())?;
        let count = usize::from(header.program_header_count);
        let is_ours = header.ident[..4] == IDENT
            && header.machine == X86_64
            && (header.kind == EXECUTABLE || header.kind == SHARED_OBJECT)
            && usize::from(header.program_header_size) == size_of::<Segment>()
            && (1..=MAX_SEGMENTS).contains(&count);
        if !is_ours {
            return Err(Errno::ENOEXEC);
        }
        let mut segments = Vec::new();
        segments.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        segments.resize(count, Segment::new_zeroed());
        read_exact(&cache, header.program_headers, segments.as_mut_slice().as_mut_bytes())?;
        Ok(Elf { header, segments, file, cache })
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == LOAD && segment.memory_size > 0)
    }

    /// EINVAL if a segment cannot be mapped wherever it goes.
    fn check_segments(&self) -> Result<()> {
        for segment in self.loads() {
            let stop = segment.address.checked_add(segment.memory_size);
            let fits = stop.is_some_and(|stop| stop <= USER_END)
                && segment.file_size <= segment.memory_size
                && segment.offset % PAGE == segment.address % PAGE
                && segment
                    .offset
                    .checked_add(segment.file_size)
                    .is_some_and(|end| end <= MAX_OFFSET);
            if !fits {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }

    /// Path of the program interpreter, if the file asks for one.
    pub fn interpreter(&self) -> Result<Option<Vec<u8>>> {
        let Some(segment) = self.segments.iter().find(|segment| segment.kind == INTERPRETER) else {
            return Ok(None);
        };
        if segment.file_size < 2 || segment.file_size > MAX_INTERPRETER {
            return Err(Errno::ENOEXEC);
        }
        let mut path = alloc::vec![0; segment.file_size as usize];
        if segment.offset > MAX_OFFSET {
            return Err(Errno::EINVAL);
        }
        read_exact(&self.cache, segment.offset, &mut path).map_err(|_| Errno::EIO)?;
        if path.pop() != Some(0) {
            return Err(Errno::ENOEXEC);
        }
        let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
        path.truncate(end);
        // No name is the working directory, which cannot be executed.
        if path.is_empty() {
            return Err(Errno::EACCES);
        }
        Ok(Some(path))
    }

    /// Whether it may be placed anywhere.
    pub fn is_position_independent(&self) -> bool {
        self.header.kind == SHARED_OBJECT
    }

    /// Whether it asks for an executable stack.
    pub fn wants_executable_stack(&self) -> bool {
        self.segments.iter().any(|s| s.kind == GNU_STACK && s.flags & FLAG_EXEC != 0)
    }

    /// Lowest page and bytes from there to the end of the highest segment.
    fn extent(&self) -> (u64, u64) {
        let low = self.loads().map(|s| s.address).min().unwrap_or(0) & !(PAGE - 1);
        let high = self.loads().map(|s| s.address + s.memory_size).max().unwrap_or(0);
        (low, (high - low).next_multiple_of(PAGE))
    }

    /// Maps all segments, if there are any. Position-independent files go to `at`, or where there
    /// is room for them.
    pub fn map(&self, mm: &Arc<Mm>, at: Option<u64>) -> Result<Mapped> {
        self.check_segments()?;
        let (low, len) = self.extent();
        let bias = if self.is_position_independent() {
            let place = match at {
                Some(at) => at,
                None => mm.with(|inner| inner.find_free(0, len))?,
            };
            place.wrapping_sub(low)
        } else {
            0
        };
        let start = low.wrapping_add(bias);
        let has_room =
            start >= MMAP_MIN && start.checked_add(len).is_some_and(|end| end <= USER_END);
        if len > 0 && !has_room {
            return Err(Errno::EINVAL);
        }
        self.cache.add_mapper(mm);
        let mut end = 0;
        for segment in self.loads() {
            self.map_segment(mm, segment, bias)?;
            end = end.max(bias.wrapping_add(segment.address) + segment.memory_size);
        }
        Ok(Mapped {
            bias,
            entry: self.header.entry.wrapping_add(bias),
            headers: self.headers_address().wrapping_add(bias),
            header_count: self.segments.len() as u64,
            end,
        })
    }

    fn headers_address(&self) -> u64 {
        if let Some(segment) = self.segments.iter().find(|s| s.kind == PROGRAM_HEADERS) {
            return segment.address;
        }
        let at = self.header.program_headers;
        self.loads()
            .find(|s| s.offset <= at && at - s.offset < s.file_size)
            .map_or(0, |s| s.address + (at - s.offset))
    }

    fn map_segment(&self, mm: &Arc<Mm>, segment: &Segment, bias: u64) -> Result<()> {
        let (write, exec) = (segment.flags & FLAG_WRITE != 0, segment.flags & FLAG_EXEC != 0);
        let prot = Prot { read: segment.flags & FLAG_READ != 0 || write || exec, write, exec };
        let start = segment.address.wrapping_add(bias);
        let page = start & !(PAGE - 1);
        let file_end = start + segment.file_size;
        let memory_end = (start + segment.memory_size).next_multiple_of(PAGE);
        let mapped_end =
            if segment.file_size == 0 { page } else { file_end.next_multiple_of(PAGE) };
        // What can never be there at once is not promised (proc(5), overcommit_memory).
        let (memory, _) = machine::frame::usage();
        if write && memory_end.saturating_sub(mapped_end) / PAGE > memory as u64 {
            return Err(Errno::ENOMEM);
        }
        mm.with(|inner| {
            // Segments that share a page: the later one wins, as with MAP_FIXED.
            drop(inner.unmap(page, memory_end));
            if mapped_end > page {
                let mut vma = Vma::anonymous(mapped_end, prot);
                vma.backing = Backing::File {
                    cache: self.cache.clone(),
                    page_offset: (segment.offset & !(PAGE - 1)) / PAGE,
                    file: Some(self.file.clone()),
                };
                inner.insert(page, vma)?;
            }
            if memory_end > mapped_end {
                inner.insert(mapped_end, Vma::anonymous(memory_end, prot))?;
            }
            Ok::<(), Errno>(())
        })?;
        let tail = file_end % PAGE;
        if write && tail != 0 && segment.memory_size > segment.file_size {
            mm.zero(file_end, PAGE - tail)?;
        }
        Ok(())
    }
}

impl Mm {
    /// Writes into an address space that no CPU runs yet.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address + done as u64;
            let len = ((PAGE - at % PAGE) as usize).min(bytes.len() - done);
            let part = &bytes[done..done + len];
            self.with_frame(at, |frame, offset| frame.write(offset, part))?;
            done += len;
        }
        Ok(())
    }

    /// Zeroes `len` bytes of one page.
    fn zero(&self, address: u64, len: u64) -> Result<()> {
        self.with_frame(address, |frame, offset| frame.zero(offset, len as usize))
    }

    fn with_frame(
        &self,
        address: u64,
        f: impl FnOnce(&machine::frame::Frame, usize),
    ) -> Result<()> {
        self.with(|inner| {
            inner.fault(PageFault { address, write: true, exec: false })?;
            let mapping = inner.table.lookup(address & !(PAGE - 1)).ok_or(Errno::EFAULT)?;
            f(&mapping.frame, (address % PAGE) as usize);
            Ok(())
        })
    }
}
