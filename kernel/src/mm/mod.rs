//! Address spaces of programs.

pub mod page_cache;

use abi::{Errno, Result};
use machine::entry::PageFault;

/// An address space.
pub struct Mm {}

/// A fault of the running program. EFAULT: no such mapping (SIGSEGV); EIO: no such page (SIGBUS).
pub fn user_page_fault(_fault: PageFault) -> Result<()> {
    Err(Errno::EFAULT)
}

/// A fault of the kernel on behalf of the running program. Whether to try again.
pub fn kernel_page_fault(fault: PageFault) -> bool {
    user_page_fault(fault).is_ok()
}
