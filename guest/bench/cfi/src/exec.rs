//! The unsafe part: executable memory, and a signal handler that catches a failed check.
//!
//! Memory is written first and then made executable; it is never both.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::Row;

/// An executable row.
#[derive(Debug)]
pub struct Mapped {
    base: *mut libc::c_void,
    len: usize,
    entry: usize,
    table: Vec<u64>,
}

impl Mapped {
    /// Maps a row; its table holds every target twice, so that it can be entered at any of them.
    ///
    /// # Panics
    /// When memory is refused: a bench has nothing to do then.
    #[must_use]
    pub fn new(row: &Row) -> Self {
        let len = row.bytes.len();
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
        assert_ne!(base, libc::MAP_FAILED, "no memory for the generated code");
        let mut bytes = row.bytes.clone();
        for &(at, to) in &row.pointers {
            bytes[at..at + 8].copy_from_slice(&(base as u64 + to as u64).to_le_bytes());
        }
        // SAFETY: `base` is the start of `len` writable bytes that were mapped just now and that
        // nothing else refers to; source and destination cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.cast(), len) };
        // SAFETY: the range is exactly the mapping made above.
        let result = unsafe { libc::mprotect(base, len, libc::PROT_READ | libc::PROT_EXEC) };
        assert_eq!(result, 0, "the generated code could not be made executable");
        let target = |offset: &usize| base as u64 + *offset as u64;
        let table = row.targets.iter().chain(&row.targets).map(target).collect();
        Self { base, len, entry: row.entry, table }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base as u64
    }

    /// Number of targets.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.table.len() / 2
    }

    /// Calls all sites once, with the table rotated by `turn`; returns the number of calls.
    #[inline(always)]
    #[must_use]
    pub fn run(&self, turn: usize) -> u64 {
        let table = &self.table[turn % self.targets()..];
        let entry = self.base() + self.entry as u64;
        // SAFETY: `entry` is the start of a function that `code::row` generated for this signature;
        // the mapping is executable and lives as long as `self`.
        let function: extern "sysv64" fn(*const u64, u64) -> u64 =
            unsafe { std::mem::transmute(entry as *const ()) };
        function(table.as_ptr(), 0)
    }

    /// As [`Self::run`], with another address in the table's first slot.
    #[must_use]
    pub fn run_with(&mut self, target: u64) -> u64 {
        self.table[0] = target;
        self.run(0)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, and no call into it is in progress since
        // `run` borrows `self`.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

static TRAP_RIP: AtomicU64 = AtomicU64::new(0);
static TRAP_R11: AtomicU64 = AtomicU64::new(0);
static RESUME: AtomicU64 = AtomicU64::new(0);
static TRAPS: AtomicU64 = AtomicU64::new(0);

/// What the CPU reported about a failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Address of the trapping instruction.
    pub rip: u64,
    /// The checked target.
    pub r11: u64,
    /// Number of traps so far.
    pub count: u64,
}

/// Runs `work` and reports the last trap; every trap goes on at `resume`, as a warning would.
pub fn with_trap<T>(resume: u64, work: impl FnOnce() -> T) -> (T, Trap) {
    RESUME.store(resume, Ordering::SeqCst);
    TRAPS.store(0, Ordering::SeqCst);
    // SAFETY: all-zero is a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_flags = libc::SA_SIGINFO;
    action.sa_sigaction = on_sigill as *const () as usize;
    // SAFETY: `action` is initialised, and the handler only uses atomics and its own context.
    let result = unsafe { libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0, "no handler for SIGILL");
    let value = work();
    let trap = Trap {
        rip: TRAP_RIP.load(Ordering::SeqCst),
        r11: TRAP_R11.load(Ordering::SeqCst),
        count: TRAPS.load(Ordering::SeqCst),
    };
    (value, trap)
}

extern "C" fn on_sigill(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: for SA_SIGINFO handlers the third argument points to the ucontext_t of the
    // interrupted thread (man 2 sigaction), which nobody else touches until the handler returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    TRAP_RIP.store(registers[libc::REG_RIP as usize].cast_unsigned(), Ordering::SeqCst);
    TRAP_R11.store(registers[libc::REG_R11 as usize].cast_unsigned(), Ordering::SeqCst);
    TRAPS.fetch_add(1, Ordering::SeqCst);
    registers[libc::REG_RIP as usize] = RESUME.load(Ordering::SeqCst).cast_signed();
}

/// Keeps this thread on the CPU it is on; a failure only makes the figures noisier.
pub fn pin() {
    // SAFETY: the call has no preconditions.
    let cpu = unsafe { libc::sched_getcpu() };
    // SAFETY: all-zero is an empty CPU set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is initialised; CPU_SET checks the number against its size.
    unsafe { libc::CPU_SET(usize::try_from(cpu).unwrap_or_default(), &mut set) };
    // SAFETY: pid 0 is the calling thread, and the size is that of the set passed.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

/// The time-stamp counter, with all earlier instructions done.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    let mut aux = 0;
    // SAFETY: RDTSCP exists on every x86-64 CPU of the last fifteen years and writes only `aux`.
    unsafe { core::arch::x86_64::__rdtscp(&raw mut aux) }
}
