//! /proc/PID/mem: a process's memory as a file, for its tracer and whoever else may look into it
//! (proc(5)). The offset is the address; the rights of the areas do not matter.
//!
//! The file is an address space's: once that is gone, by an exec or the process's end, there is
//! nothing in it.

use alloc::boxed::Box;
use alloc::sync::Weak;
use alloc::vec::Vec;

use abi::{Errno, Result};

use super::process_dir::Subject;
use crate::base::io::{Sink, Source};
use crate::fs::pseudo::{Content, Raw, Text};
use crate::mm::Mm;

/// Bytes copied at a time.
const CHUNK: usize = 4096;

/// The file.
struct Memory(Weak<Mm>);

/// Binds it to the address space that the process has now.
pub(super) fn open(subject: Subject) -> Result<Box<dyn Content>> {
    Ok(Box::new(Memory(subject.space())))
}

impl Content for Memory {
    fn generate(&self, _out: &mut Text) -> Result<()> {
        Err(Errno::EIO)
    }

    fn raw(&self) -> Option<&dyn Raw> {
        Some(self)
    }
}

fn chunk(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// What was copied before an error counts.
fn partly(done: usize, error: Errno) -> Result<usize> {
    if done > 0 { Ok(done) } else { Err(error) }
}

impl Raw for Memory {
    fn read_at(&self, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let Some(mm) = self.0.upgrade() else { return Ok(0) };
        let mut bytes = chunk(sink.left().min(CHUNK))?;
        let mut done = 0;
        while sink.left() > 0 {
            crate::base::sched::yield_if_needed();
            let len = sink.left().min(CHUNK);
            let address = offset.wrapping_add(done as u64);
            let Ok(read) = mm.peek(address, &mut bytes[..len]) else {
                return partly(done, Errno::EIO);
            };
            match sink.put(&bytes[..read]) {
                Ok(put) => done += put,
                Err(error) => return partly(done, error),
            }
            if read < len {
                break;
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let Some(mm) = self.0.upgrade() else { return Ok(0) };
        let mut bytes = chunk(source.left().min(CHUNK))?;
        let mut done = 0;
        while source.left() > 0 {
            crate::base::sched::yield_if_needed();
            let len = source.left().min(CHUNK);
            let taken = match source.take(&mut bytes[..len]) {
                Ok(taken) => taken,
                Err(error) => return partly(done, error),
            };
            let address = offset.wrapping_add(done as u64);
            let Ok(written) = mm.poke(address, &bytes[..taken]) else {
                return partly(done, Errno::EIO);
            };
            done += written;
            if written < taken {
                break;
            }
        }
        Ok(done)
    }
}
