//! /proc/PID/clear_refs: what is known of the use of a process's pages is forgotten
//! (proc_pid_clear_refs(5)), so that smaps tells what is used from then on.

use abi::{Errno, Result};

use super::maps::file_of;
use super::process_dir::Subject;
use crate::fs::pseudo::parse_number;
use crate::mm::{Mm, Vma};

/// Nobody reads it.
pub(super) fn show() -> Result<()> {
    Err(Errno::EINVAL)
}

/// Takes what to forget. Once the process has ended there is nothing.
pub(super) fn store(subject: &Subject, data: &[u8]) -> Result<()> {
    let what: i32 = parse_number(data)?;
    if !(1..=5).contains(&what) {
        return Err(Errno::EINVAL);
    }
    let Some(mm) = subject.mm() else { return Ok(()) };
    match what {
        1 => forget_use(&mm, |_| true),
        2 => forget_use(&mm, |vma| file_of(vma).is_none()),
        3 => forget_use(&mm, |vma| file_of(vma).is_some()),
        // Which pages were written to since is not kept: pagemap says of none that it was, as
        // where Linux is built without it.
        4 => {}
        _ => mm.reset_peak(),
    }
    Ok(())
}

fn forget_use(mm: &Mm, wanted: impl Fn(&Vma) -> bool) {
    mm.with(|inner| {
        for (&start, vma) in inner.vmas.iter().filter(|(_, vma)| wanted(vma)) {
            inner.table.forget_use(start, vma.end);
        }
        inner.table.flush();
    });
}
