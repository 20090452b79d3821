//! What this host's Linux does with a filter: a child takes it and reports by how it ends.

use seccomp::Insn;

/// A system call that no kernel has, for filters to judge.
pub const PROBE: u32 = 0x2000;
/// `AUDIT_ARCH_X86_64`.
pub const ARCH: u32 = 0xc000_003e;
/// Exit status of a child whose filter was refused with EINVAL; with another errno it is its sum
/// with this.
const REFUSED: i32 = 0x80;

/// Whether the kernel accepts the filter; the errno if not.
///
/// # Errors
/// The errno.
///
/// # Panics
/// When there can be no child.
pub fn attach(filter: &[Insn]) -> Result<(), i32> {
    let status = in_child(filter, |_| 0);
    // A child that a signal ended had a filter that let it do nothing any more.
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(said @ REFUSED..) => Err(said - REFUSED),
        _ => Ok(()),
    }
}

/// The lowest seven bits of the errno that the filter gives [`PROBE`]; `None`: it killed the
/// child. The filter must be one that [`attach`] accepts and that lets the child end.
///
/// # Panics
/// As [`attach`].
#[must_use]
pub fn judge(filter: &[Insn], arguments: [u64; 6]) -> Option<u8> {
    let [a, b, c, d, e, f] = arguments;
    let status = in_child(filter, |errno| {
        // SAFETY: no kernel has this call, so nothing happens but what the filter says.
        let result = unsafe { libc::syscall(i64::from(PROBE), a, b, c, d, e, f) };
        // SAFETY: the pointer is this thread's errno.
        let errno = if result == -1 { unsafe { *errno } } else { 0 };
        errno & 0x7f
    });
    let said = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))?;
    assert!(said < REFUSED, "refused: {}", said - REFUSED);
    u8::try_from(said).ok()
}

/// The status of a child that takes the filter, does `then`, and ends with what it gives.
fn in_child(filter: &[Insn], then: impl FnOnce(*mut i32) -> i32) -> i32 {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(u16::MAX),
        filter: filter.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the child makes system calls only, and allocates nothing.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1, "no child");
    if child == 0 {
        // SAFETY: the call has no preconditions and takes no pointers.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: `program` describes `filter`, which outlives the call; `Insn` has the
        // layout of `struct sock_filter`.
        let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
        // SAFETY: the call has no preconditions and takes no pointers.
        let errno = unsafe { libc::__errno_location() };
        let said = if result == 0 {
            then(errno)
        } else {
            // SAFETY: `errno` is this thread's.
            REFUSED + unsafe { *errno }
        };
        // SAFETY: ends this process, or fails where the filter says so.
        unsafe { libc::syscall(libc::SYS_exit_group, said) };
        // SAFETY: the end of a child that may not make the call that ends it.
        unsafe { core::arch::asm!("ud2", options(noreturn)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a place for the status of this process's own child.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child, "the child is lost");
    status
}
