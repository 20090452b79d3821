//! A tracee's memory, a word at a time (PTRACE_PEEKDATA, PTRACE_POKEDATA).

use abi::{Errno, Result};

use crate::base::user::UserPtr;
use crate::process::Thread;

/// Reads the word at `address` of the tracee and writes it to `to` of the tracer. EIO if it cannot
/// be read.
pub(super) fn peek(thread: &Thread, address: u64, to: u64) -> Result<u64> {
    let mut word = [0; 8];
    let mm = thread.process.mm()?;
    if mm.peek(address, &mut word).map_err(|_| Errno::EIO)? < word.len() {
        return Err(Errno::EIO);
    }
    UserPtr::<[u8; 8]>::new(to).write(&word)?;
    Ok(0)
}

/// Writes a word, into text too: a private copy of the page takes it.
pub(super) fn poke(thread: &Thread, address: u64, word: u64) -> Result<u64> {
    let mm = thread.process.mm()?;
    let word = word.to_le_bytes();
    if mm.poke(address, &word).map_err(|_| Errno::EIO)? < word.len() {
        return Err(Errno::EIO);
    }
    Ok(0)
}
