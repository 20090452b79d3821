//! A program's memory as its tracer reaches it (ptrace(2), /proc/PID/mem): whatever rights the
//! program itself has there. Text can be written; the program gets a page of its own for it.

use abi::Result;
use machine::frame::{Frame, PAGE_SIZE};

use super::{Mm, PAGE};

impl Mm {
    /// Copies memory out; returns how many bytes there were before the first page that does not
    /// exist. EFAULT if there were none.
    pub fn peek(&self, address: u64, into: &mut [u8]) -> Result<usize> {
        self.force(address, into.len(), false, |frame, offset, done, len| {
            frame.read(offset, &mut into[done..done + len]);
        })
    }

    /// Copies into memory, as [`Mm::peek`]. EIO where it is shared and read-only.
    pub fn poke(&self, address: u64, from: &[u8]) -> Result<usize> {
        self.force(address, from.len(), true, |frame, offset, done, len| {
            frame.write(offset, &from[done..done + len]);
        })
    }

    fn force(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut copy: impl FnMut(&Frame, usize, usize, usize),
    ) -> Result<usize> {
        let mut done = 0;
        while done < len {
            let Some(at) = address.checked_add(done as u64) else { break };
            let offset = (at % PAGE) as usize;
            let part = (PAGE_SIZE - offset).min(len - done);
            // Under the lock, so that no fork shares the page with a child before it is written.
            let copied = self.with(|inner| {
                copy(&inner.force_in(at - at % PAGE, write)?, offset, done, part);
                Ok(())
            });
            match copied {
                Ok(()) => done += part,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
