//! /proc/PID/pagemap: a word for each page of a process (proc(5)), at eight times the page's
//! number. Frame numbers are told to CAP_SYS_ADMIN alone; others read 0 there.

use alloc::boxed::Box;
use alloc::sync::Weak;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::memory::{Page, PageKind, USER_END};

use super::process_dir::Subject;
use crate::base::io::{Sink, Source};
use crate::fs::pseudo::{Content, Raw, Text};
use crate::mm::{Mm, PAGE};
use crate::process::current;
use crate::security::Capability;

/// Bytes of a word.
const WORD: u64 = 8;
/// Words made at a time: those of 2 MiB.
const WORDS_AT_ONCE: u64 = 512;

const PRESENT: u64 = 1 << 63;
/// A page of a file, or of shared memory.
const OF_FILE: u64 = 1 << 61;
/// Nobody else has the page.
const EXCLUSIVE: u64 = 1 << 56;

/// The file; it is an address space's, as /proc/PID/mem.
struct Pagemap(Weak<Mm>);

/// Binds it to the address space that the process has now.
pub(super) fn open(subject: Subject) -> Result<Box<dyn Content>> {
    Ok(Box::new(Pagemap(subject.space())))
}

impl Content for Pagemap {
    fn generate(&self, _out: &mut Text) -> Result<()> {
        Err(Errno::EINVAL)
    }

    fn raw(&self) -> Option<&dyn Raw> {
        Some(self)
    }
}

fn word(page: &Page, with_frame: bool) -> u64 {
    let frame = if with_frame { u64::from(page.frame) } else { 0 };
    // The contents of a file are one reference beside those of the programs.
    let (of_file, own) = match page.kind {
        PageKind::Special => return PRESENT | frame,
        PageKind::Anonymous => (0, 1),
        // The pool's own reference is one beside those of the programs.
        PageKind::Hugetlb => (0, 2),
        PageKind::File | PageKind::Shmem => (OF_FILE, 2),
    };
    let exclusive = if page.refs == own { EXCLUSIVE } else { 0 };
    PRESENT | of_file | exclusive | frame
}

impl Raw for Pagemap {
    fn read_at(&self, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if !offset.is_multiple_of(WORD) || !(sink.left() as u64).is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        let Some(mm) = self.0.upgrade() else { return Ok(0) };
        let with_frame = current().subject().capable(Capability::SysAdmin);
        let last = USER_END / PAGE;
        let mut index = offset / WORD;
        let mut words: Vec<u64> = Vec::new();
        words.try_reserve_exact(WORDS_AT_ONCE as usize).map_err(|_| Errno::ENOMEM)?;
        let mut done = 0;
        while sink.left() > 0 && index < last {
            crate::base::sched::yield_if_needed();
            let count = (sink.left() as u64 / WORD).min(WORDS_AT_ONCE).min(last - index);
            words.clear();
            words.resize(count as usize, 0);
            let (start, end) = (index * PAGE, (index + count) * PAGE);
            mm.with(|inner| {
                inner.table.for_each(start, end, |page| {
                    words[((page.address - start) / PAGE) as usize] = word(&page, with_frame);
                });
            });
            match sink.put(zerocopy::IntoBytes::as_bytes(words.as_slice())) {
                Ok(put) => done += put,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            index += count;
        }
        Ok(done)
    }

    fn write_at(&self, _offset: u64, _source: &mut Source<'_>) -> Result<usize> {
        Err(Errno::EINVAL)
    }
}
