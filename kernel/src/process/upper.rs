//! What the floors above have to do at the turns of a process's life. They say so in `boot`; this
//! floor knows none of them by name.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use abi::Result;
use entry::PtRegs;
use machine::sync::Once;

use super::signal::SigInfo;
use super::{Pid, Process, Thread};
use crate::vfs::File;

/// Something of a floor above that processes own, and may share (CLONE_SYSVSEM).
pub type Owned = Arc<dyn Any + Send + Sync>;

/// RLIMIT_CORE of a program of the kernel's own: its core is given to no other.
pub const HELPERS_CORE: u64 = 1;

/// The calls; none fails unless it says so.
pub struct Upper {
    /// The running thread gives up its memory, which is still there: it ends or executes a program.
    pub leaves_memory: fn(&Thread),
    /// The process ends by a signal of which a core file is made: writes it. Whether there is one.
    pub dump_core: fn(&PtRegs, &SigInfo) -> bool,
    /// Starts a program of the kernel's own: its words, and what its standard input is.
    pub start_helper: fn(Vec<Vec<u8>>, Arc<File>) -> Result<()>,
    /// The running thread ends, and its process's core file is to have its registers.
    pub leaves_core_notes: fn(&PtRegs),
    /// What semaphores are to take back at the process's end (semop(2)); made if it has none.
    pub undo_of: fn(&Process) -> Owned,
    /// The process ends, or leaves the undo list that it may share with others (unshare(2)).
    pub leave_undo: fn(&Process),
    /// Frees what only sockets in flight still hold.
    pub collect_garbage: fn(),
    /// A process of that session ends, without directories and descriptors by now.
    pub process_ended: fn(Pid, Pid),
}

machine::ro_after_init! {
    static UPPER: Once<Upper> = Once::new();
}

/// Registers the floors above, once, before the first program starts.
pub fn register(upper: Upper) {
    UPPER.call_once(|| upper);
}

/// The floors above. Panics before they are registered.
pub(super) fn upper() -> &'static Upper {
    UPPER.get().expect("boot registers the floors above before programs start")
}

/// See [`Upper::leaves_memory`]; for execve(2).
pub fn leaves_memory(thread: &Thread) {
    (upper().leaves_memory)(thread);
}

/// See [`Upper::dump_core`].
pub(super) fn dump_core(regs: &PtRegs, info: &SigInfo) -> bool {
    (upper().dump_core)(regs, info)
}

/// See [`Upper::start_helper`].
pub fn start_helper(words: Vec<Vec<u8>>, input: Arc<File>) -> Result<()> {
    (upper().start_helper)(words, input)
}

/// See [`Upper::collect_garbage`]; for who is short of memory.
pub fn collect_garbage() {
    (upper().collect_garbage)();
}
