//! Memory of a program that is not the running one: for procfs, and for whoever traces it.
//!
//! Pages are brought in as the program itself would. [`Mm::read_remote`] and [`Mm::write_remote`]
//! go where the program may go; a tracer ([`Mm::peek`], [`Mm::poke`]; ptrace(2), /proc/PID/mem)
//! goes everywhere: text can be written, and the program gets a page of its own for it. The lock of
//! the address space is held for one page at a time.

use abi::{Errno, Result};
use machine::entry::PageFault;
use machine::frame::{Frame, PAGE_SIZE};
use machine::memory::Prot;

use super::{Mm, PAGE};

impl Mm {
    /// Copies memory of the program out; returns how many bytes there were before the first page
    /// that does not exist or may not be read. EFAULT if there were none.
    pub fn read_remote(&self, address: u64, into: &mut [u8]) -> Result<usize> {
        self.each_page(address, into.len(), false, reader(into))
    }

    /// Copies into memory of the program; as [`Mm::read_remote`]. Only where the program may write.
    pub fn write_remote(&self, address: u64, from: &[u8]) -> Result<usize> {
        self.each_page(address, from.len(), true, writer(from))
    }

    /// How many of the `len` bytes from `address` on the program itself may read, or write. EFAULT
    /// if it is none.
    pub fn accessible(&self, address: u64, len: usize, write: bool) -> Result<usize> {
        self.with(|inner| {
            let end = address.checked_add(len as u64).ok_or(Errno::EFAULT)?;
            let mut at = address;
            while at < end
                && let Some((_, vma)) = inner.find(at)
                && (if write {
                    vma.prot.contains(Prot::WRITE)
                } else {
                    vma.prot.contains(Prot::READ)
                })
            {
                at = vma.end;
            }
            match at.min(end) - address {
                0 if len > 0 => Err(Errno::EFAULT),
                bytes => Ok(bytes as usize),
            }
        })
    }

    /// Copies memory out for a tracer; as [`Mm::read_remote`], whatever the program may read.
    pub fn peek(&self, address: u64, into: &mut [u8]) -> Result<usize> {
        self.force(address, into.len(), false, reader(into))
    }

    /// Copies into memory, as [`Mm::peek`]. EIO where it is shared and read-only.
    pub fn poke(&self, address: u64, from: &[u8]) -> Result<usize> {
        self.force(address, from.len(), true, writer(from))
    }

    fn each_page(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut copy: impl FnMut(&Frame, usize, usize, usize),
    ) -> Result<usize> {
        in_pages(address, len, |page, offset, done, part| {
            // Under the lock no longer: the frame is held by count.
            copy(&self.remote_page(page, write)?, offset, done, part);
            Ok(())
        })
    }

    fn force(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut copy: impl FnMut(&Frame, usize, usize, usize),
    ) -> Result<usize> {
        in_pages(address, len, |page, offset, done, part| {
            // Under the lock, so that no fork shares the page with a child before it is written.
            self.with(|inner| {
                copy(&inner.force_in(page, write)?, offset, done, part);
                Ok(())
            })
        })
    }

    fn remote_page(&self, page: u64, write: bool) -> Result<Frame> {
        self.with(|inner| {
            let mapping = inner.table.lookup(page);
            if let Some(mapping) =
                mapping.filter(|mapping| !write || mapping.prot.contains(Prot::WRITE))
            {
                return Ok(mapping.frame);
            }
            inner.fault(PageFault::by_kernel(page, write))?;
            Ok(inner.table.lookup(page).ok_or(Errno::EFAULT)?.frame)
        })
    }
}

/// Copies parts of frames out: frame, offset in it, what was copied before, length.
fn reader(into: &mut [u8]) -> impl FnMut(&Frame, usize, usize, usize) {
    |frame, offset, done, len| frame.read(offset, &mut into[done..done + len])
}

/// Copies into parts of frames.
fn writer(from: &[u8]) -> impl FnMut(&Frame, usize, usize, usize) {
    |frame, offset, done, len| frame.write(offset, &from[done..done + len])
}

/// Calls `step` for each page of a range with the page's address, the offset in it, the bytes done
/// before and the bytes there. Returns how many bytes went well; an error only if none did.
fn in_pages(
    address: u64,
    len: usize,
    mut step: impl FnMut(u64, usize, usize, usize) -> Result<()>,
) -> Result<usize> {
    let mut done = 0;
    while done < len {
        let Some(at) = address.checked_add(done as u64) else { break };
        let offset = (at % PAGE) as usize;
        let part = (PAGE_SIZE - offset).min(len - done);
        match step(at - at % PAGE, offset, done, part) {
            Ok(()) => done += part,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
