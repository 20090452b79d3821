//! Compiled filters on this host's CPU, and filters in this host's Linux: what the tests of
//! `mechanisms/seccomp` and its fuzzer compare the interpreter with.
//!
//! It is here because it cannot do without unsafe code. Reading order: [`Native`] executes,
//! [`linux`] asks the kernel, [`random`] makes programs.

pub mod linux;
pub mod random;

use seccomp::{Code, Data};

/// An executable filter.
#[derive(Debug)]
pub struct Native {
    base: *mut libc::c_void,
    len: usize,
}

impl Native {
    /// Maps the code: written first, then executable, never both.
    ///
    /// # Panics
    /// When memory is refused: a test has nothing to do then.
    #[must_use]
    pub fn new(code: &Code) -> Self {
        let bytes = code.bytes();
        let len = bytes.len();
        // SAFETY: a fresh anonymous private mapping at no particular address touches no memory that
        // anything else owns.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "no memory for the compiled filter");
        // SAFETY: `base` is the start of `len` writable bytes that were mapped just now and that
        // nothing else refers to; source and destination cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.cast(), len) };
        // SAFETY: the range is exactly the mapping made above.
        let result = unsafe { libc::mprotect(base, len, libc::PROT_READ | libc::PROT_EXEC) };
        assert_eq!(result, 0, "the compiled filter could not be made executable");
        Self { base, len }
    }

    /// Runs the filter.
    #[must_use]
    pub fn run(&self, data: &Data) -> u32 {
        // SAFETY: the mapping holds a function of this type from its first byte on, as `Code`
        // promises; it is executable and lives as long as `self`.
        let function: extern "sysv64" fn(&Data) -> u32 = unsafe { std::mem::transmute(self.base) };
        function(data)
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, and no call into it is in progress since
        // `run` borrows `self`.
        unsafe { libc::munmap(self.base, self.len) };
    }
}
