//! ELF files: headers read, and their segments mapped into a new address space (elf(5)).
//!
//! Everything in a file is an allegation; `formats::elf` checks it and does the sums. Whether a
//! file that does not add up is refused with an errno ([`Elf::read`], [`Elf::interpreter`]) or
//! ends the process that executes it ([`Elf::map`]) is as on Linux, which looks at the segments
//! only when the old program is gone (`guest/tests/src/elf_cases.txt`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use formats::elf::{Header, Image, Pages, Segment};
use machine::entry::PageFault;
use machine::memory::{Prot, USER_END};

use super::{Backing, MMAP_MIN, Mm, PAGE, Vma};
use crate::base::io::Sink;
use crate::page_cache::PageCache;
use crate::vfs::File;

const MAX_INTERPRETER: u64 = 4096;

/// Bytes of the first header.
pub const HEADER_BYTES: u64 = Header::BYTES as u64;

/// A checked file, not yet mapped.
pub struct Elf {
    image: Image,
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
        let mut bytes = [0; Header::BYTES];
        read_exact(&cache, 0, &mut bytes)?;
        let header = Header::parse(&bytes).ok_or(Errno::ENOEXEC)?;
        let mut table = Vec::new();
        table.try_reserve_exact(header.table_bytes()).map_err(|_| Errno::ENOMEM)?;
        table.resize(header.table_bytes(), 0);
        read_exact(&cache, header.table, &mut table)?;
        let image = Image::new(header, &table).ok_or(Errno::ENOMEM)?;
        Ok(Elf { image, file, cache })
    }

    /// Path of the program interpreter, if the file asks for one.
    pub fn interpreter(&self) -> Result<Option<Vec<u8>>> {
        let Some(segment) = self.image.interpreter() else { return Ok(None) };
        if segment.file_size < 2 || segment.file_size > MAX_INTERPRETER {
            return Err(Errno::ENOEXEC);
        }
        let mut path = alloc::vec![0; segment.file_size as usize];
        if segment.offset > i64::MAX as u64 {
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
        self.image.is_position_independent()
    }

    /// Whether it asks for an executable stack.
    pub fn wants_executable_stack(&self) -> bool {
        self.image.wants_executable_stack()
    }

    /// Maps all segments, if there are any. Position-independent files go to `at`, or where there
    /// is room for them.
    pub fn map(&self, mm: &Arc<Mm>, at: Option<u64>) -> Result<Mapped> {
        if !self.image.is_mappable(USER_END) {
            return Err(Errno::EINVAL);
        }
        let place = match at {
            _ if !self.is_position_independent() => None,
            Some(at) => Some(self.image.align_place(at)),
            None => Some(self.free_place(mm)?),
        };
        let bias = self.image.bias(place, MMAP_MIN, USER_END).ok_or(Errno::EINVAL)?;
        self.cache.add_mapper(mm.clone());
        let mut end = 0;
        for segment in self.image.loads() {
            self.map_segment(mm, segment, bias)?;
            end = end.max(bias.wrapping_add(segment.address) + segment.memory_size);
        }
        Ok(Mapped {
            bias,
            entry: self.image.header.entry.wrapping_add(bias),
            headers: self.image.headers_address().wrapping_add(bias),
            header_count: self.image.header.count.into(),
            end,
        })
    }

    /// Where the whole file fits, aligned as its segments ask.
    fn free_place(&self, mm: &Mm) -> Result<u64> {
        let (_, len) = self.image.extent();
        let slack = self.image.alignment() - PAGE;
        let len = len.checked_add(slack).ok_or(Errno::ENOMEM)?;
        let at = mm.with(|inner| inner.find_free(0, len))?;
        Ok(self.image.align_place(at + slack))
    }

    fn map_segment(&self, mm: &Arc<Mm>, segment: &Segment, bias: u64) -> Result<()> {
        let (write, exec) = (segment.is_writable(), segment.is_executable());
        let mut prot = Prot::empty();
        prot.set(Prot::READ, segment.is_readable());
        prot.set(Prot::WRITE, write);
        prot.set(Prot::EXEC, exec);
        let pages = segment.pages(bias);
        let Pages { start: page, file_end, mapped_end, end: memory_end } = pages;
        // What can never be there at once is not promised (proc(5), overcommit_memory).
        let (memory, _) = machine::frame::usage();
        if write && memory_end.saturating_sub(mapped_end) / PAGE > memory as u64 {
            return Err(Errno::ENOMEM);
        }
        mm.with(|inner| {
            if prot == Prot::EXEC {
                prot = prot.with_key(inner.keys.execute_only());
            }
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
            inner.fault(PageFault::by_kernel(address, true))?;
            let mapping = inner.table.lookup(address & !(PAGE - 1)).ok_or(Errno::EFAULT)?;
            f(&mapping.frame, (address % PAGE) as usize);
            Ok(())
        })
    }
}
