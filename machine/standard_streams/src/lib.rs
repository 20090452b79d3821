//! Which of descriptors 0, 1 and 2 this program was started without.
//!
//! Why it is hard: a program whose standard output is closed must say that what it wrote is lost.
//! But Rust's runtime opens `/dev/null` in the place of a closed descriptor before `main`, and then
//! nothing tells it from one that the caller wanted. So this looks earlier: a function in the
//! program's `.init_array`, which the loader calls before the runtime begins (System V ABI,
//! "Initialization and Termination Functions").
//!
//! Neighbours: `limen` asks before it writes; only `machine/` may have link sections, and so this
//! crate for the host is here.

use std::sync::atomic::{AtomicU8, Ordering};

/// Bit N: descriptor N was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Descriptors that have a meaning before a program opens any.
const STANDARD: u8 = 3;

extern "C" fn look() {
    for fd in 0..STANDARD {
        // SAFETY: the call below only asks for the descriptor's flags and keeps nothing; that it
        // may be closed is what is asked, and the kernel answers EBADF.
        let descriptor = unsafe { rustix::fd::BorrowedFd::borrow_raw(i32::from(fd)) };
        if rustix::io::fcntl_getfd(descriptor) == Err(rustix::io::Errno::BADF) {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

// SAFETY: the section holds pointers to functions of the C calling convention, which is what this
// is; the function touches an atomic and makes system calls, and so needs nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// True if descriptor `fd` (0, 1 or 2) was closed when the program started.
#[must_use]
pub fn was_closed(fd: u8) -> bool {
    fd < STANDARD && CLOSED.load(Ordering::Relaxed) & (1 << fd) != 0
}
