//! What semaphore operations with SEM_UNDO take back when their process ends (semop(2)).
//!
//! The adjustments themselves are kept with each set, by the number of the process's list; the list
//! only says which sets to look at. So SETVAL can clear those of everybody, and a removed set takes
//! its adjustments along. clone(2) with CLONE_SYSVSEM shares a list, and the last user applies it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::Object;
use super::sem::Set;
use crate::process::Process;

type Sets = Vec<Weak<Object<Set>>>;

/// The sets on which a process, or several that share this, may have adjustments.
pub struct UndoList {
    /// Under which the sets keep the adjustments.
    pub number: u64,
    sets: SpinLock<Sets>,
}

impl UndoList {
    fn new() -> Arc<UndoList> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(UndoList { number, sets: SpinLock::new(Vec::new()) })
    }

    /// Notes that there may be adjustments on `set`. ENOMEM.
    pub fn note(&self, set: &Arc<Object<Set>>) -> Result<()> {
        let mut sets = self.sets.lock();
        if sets.iter().any(|known| core::ptr::eq(known.as_ptr(), Arc::as_ptr(set))) {
            return Ok(());
        }
        let mut gone = Sets::new();
        if sets.len() == sets.capacity() {
            gone = sets.extract_if(.., |known| known.strong_count() == 0).collect();
        }
        sets.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        sets.push(Arc::downgrade(set));
        drop(sets);
        drop(gone);
        Ok(())
    }
}

/// The list of the process; made if it has none.
pub fn list_of(process: &Process) -> Arc<UndoList> {
    let mut undo = process.undo.lock();
    let known = undo.clone().and_then(|owned| owned.downcast().ok());
    known.unwrap_or_else(|| {
        let list = UndoList::new();
        *undo = Some(list.clone());
        list
    })
}

/// The process ends or leaves its list (unshare(2)): the last one applies it.
pub fn leave(process: &Process) {
    let list = process.undo.lock().take();
    let list = list.and_then(|owned| owned.downcast::<UndoList>().ok());
    let Some(list) = list.and_then(Arc::into_inner) else { return };
    for set in list.sets.into_inner() {
        if let Some(set) = set.upgrade() {
            set.content.undo(list.number, process.pid);
        }
    }
}
