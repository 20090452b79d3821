//! kcmp(2): whether two processes share something, told without an address of the kernel, and only
//! of those that the caller might trace. Neighbour: `process::ptrace::access`, which has that rule.

use alloc::sync::Arc;

use abi::{Errno, Result};
use machine::sync::Once;

use crate::base::random;
use crate::process::ptrace::access::{self, Ids};
use crate::process::{Process, Thread, find_by_tid, find_thread};

/// kcmp(2). The order of unequal objects is that of their
/// addresses, turned by a constant that is different on every boot.
pub fn kcmp(pid1: u64, pid2: u64, kind: u64, index1: u64, index2: u64) -> Result<u64> {
    const FILE: u64 = 0;
    const VM: u64 = 1;
    const FILES: u64 = 2;
    const FS: u64 = 3;
    const SIGHAND: u64 = 4;
    const IO: u64 = 5;
    const UNDO: u64 = 6;
    let known = |id: u64| find_by_tid(id as u32).ok_or(Errno::ESRCH);
    // That there is no such process comes before all rights.
    let processes = (known(pid1)?, known(pid2)?);
    // Of the first thread of a process that has ended there is none.
    let target = |process: Arc<Process>, id: u64| {
        let thread = find_thread(id as u32);
        access::inspect(&process, Ids::Real, Errno::EPERM, || Ok((process.clone(), thread)))
    };
    let (first, second) = (target(processes.0, pid1)?, target(processes.1, pid2)?);
    let identity = |(process, thread): &(Arc<Process>, Option<Arc<Thread>>), fd: u64| {
        let thread = thread.as_ref();
        Ok(match kind {
            FILE => thread.ok_or(Errno::EBADF)?.files().get(fd as u32)?.id,
            VM => Arc::as_ptr(&process.mm()?) as u64,
            FILES => thread.map_or(0, |own| Arc::as_ptr(&own.files()) as u64),
            FS => thread.and_then(|own| own.try_fs()).map_or(0, |fs| Arc::as_ptr(&fs) as u64),
            // Nobody has queues of requests of their own.
            IO => 0,
            UNDO => process.undo.lock().as_ref().map_or(0, |list| Arc::as_ptr(list).addr() as u64),
            SIGHAND => Arc::as_ptr(&*process.handlers.lock()) as u64,
            _ => return Err(Errno::EINVAL),
        })
    };
    let (a, b) = (identity(&first, index1)?, identity(&second, index2)?);
    let turn = kcmp_cookie();
    Ok(match (a ^ turn).cmp(&(b ^ turn)) {
        core::cmp::Ordering::Equal => 0,
        core::cmp::Ordering::Less => 1,
        core::cmp::Ordering::Greater => 2,
    })
}

fn kcmp_cookie() -> u64 {
    static COOKIE: Once<u64> = Once::new();
    *COOKIE.call_once(|| random::below(u64::MAX))
}
