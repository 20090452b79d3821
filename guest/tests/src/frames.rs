//! Register frames that a program may cause its kernel to return to: what each must look like to
//! the program, and which way Limen must go back to it. The tables are in returns.rs.
//!
//! Each frame leads to two bytes of code, `nop; int3`, so that a signal tells what arrived: every
//! register, every flag, and with TF whether one instruction was executed or none. The expected way
//! comes from the decision's own code, the real one from `/proc/limen/exits`.

use crate::sc;
use crate::sys::*;
use ::entry::{Exit, IretReason, PtRegs, decide};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// End of user space: the last page below 2^47 is nobody's.
pub const LIMIT: u64 = (1 << 47) - 4096;
pub const CS64: u64 = 0x33;
pub const CS32: u64 = 0x23;
pub const DATA: u64 = 0x2b;
pub const MAPERR: i32 = 1;
pub const OF_KERNEL: i32 = 0x80;
pub const TRAP_TRACE: i32 = 2;

pub const TF: u64 = 1 << 8;
pub const DF: u64 = 1 << 10;
pub const IOPL: u64 = 3 << 12;
pub const NT: u64 = 1 << 14;
pub const RF: u64 = 1 << 16;
pub const AC: u64 = 1 << 18;
pub const ID: u64 = 1 << 21;
/// Each alone, none, and all.
pub const FLAGS: [u64; 9] = [0, TF, RF, NT, AC, IOPL, ID, DF, TF | RF | NT | AC | IOPL | ID | DF];
/// What sigreturn takes from its frame; a tracer may also set NT.
pub const SIGRETURN_SETS: u64 = 0x8d5 | TF | DF | RF | AC;
pub const TRACER_SETS: u64 = SIGRETURN_SETS | NT;

/// Addresses to go to besides the landing: end of user space, not canonical, the kernel's half.
pub const FAR: [u64; 5] = [LIMIT, 1 << 47, 1 << 56, !0 << 47, 0xffff_ffff_8100_0000];

// ------------------------------------------------------------------------------------------------
// Frames

/// Places of `gregset_t` (sigaction(2), `ucontext_t`).
pub const GREGS: usize = 23;
pub const G_R11: usize = 3;
pub const G_RDI: usize = 8;
pub const G_RBX: usize = 11;
pub const G_RAX: usize = 13;
pub const G_RCX: usize = 14;
pub const G_RSP: usize = 15;
pub const G_RIP: usize = 16;
pub const G_FLAGS: usize = 17;
pub const G_SEGMENTS: usize = 18;
pub const G_VECTOR: usize = 20;

pub type Gregs = [u64; GREGS];

/// All registers different from each other, and these.
pub fn frame(rip: u64, flags: u64, cs: u64, ss: u64, as_sysret: bool) -> Gregs {
    let mut g: Gregs = std::array::from_fn(|i| 0x0101_0101_0101 * (i as u64 + 1));
    g[G_RSP] = 0x7ff0_1234_5678;
    (g[G_RIP], g[G_FLAGS], g[G_SEGMENTS]) = (rip, flags, cs | ss << 48);
    if as_sysret {
        (g[G_RCX], g[G_R11]) = (rip, flags);
    }
    g
}

/// How Limen must return with such registers.
pub fn model(g: &Gregs) -> Exit {
    decide::<LIMIT>(&PtRegs {
        rip: g[G_RIP],
        rcx: g[G_RCX],
        r11: g[G_R11],
        rflags: g[G_FLAGS],
        cs: g[G_SEGMENTS] & 0xffff,
        ss: g[G_SEGMENTS] >> 48,
        ..PtRegs::default()
    })
}

/// What came of a frame: the signal, its code and address, and the registers at that point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    pub signal: i32,
    pub code: i32,
    pub address: u64,
    pub regs: Gregs,
}

/// Checks what came of a frame whose flags are those that it can have.
#[track_caller]
pub fn judge(wanted: &Gregs, seen: &Seen) {
    let (rip, flags, cs) = (wanted[G_RIP], wanted[G_FLAGS], wanted[G_SEGMENTS] & 0xffff);
    let ss = wanted[G_SEGMENTS] >> 48;
    let trap = flags & TF != 0;
    let mut expected = Seen { signal: SIGSEGV, code: OF_KERNEL, address: 0, regs: *wanted };
    if cs == CS64 && ss == DATA && rip == landing() {
        let (code, done) = if trap { (TRAP_TRACE, 1) } else { (OF_KERNEL, 2) };
        expected.regs[G_RIP] += done;
        // The address of a single step is where it ended.
        let address = if trap { rip + 1 } else { 0 };
        expected = Seen { signal: SIGTRAP, code, address, ..expected };
    } else if cs == CS64 && ss == DATA && (rip == LIMIT || rip >= !0 << 47) {
        expected = Seen { code: MAPERR, address: rip, ..expected };
    }
    let mut seen = *seen;
    // The instruction that ends the matter may or may not have RF.
    seen.regs[G_FLAGS] &= !RF;
    expected.regs[G_FLAGS] &= !RF;
    for i in (0..=G_FLAGS).chain([G_SEGMENTS]) {
        let mask = if i == G_SEGMENTS { 0xffff_0000_0000_ffff } else { !0 };
        let (is, want) = (seen.regs[i] & mask, expected.regs[i] & mask);
        assert_eq!(is, want, "word {i}: {is:#x}, expected {want:#x}, of {wanted:x?}: {seen:x?}");
    }
    let what = |s: &Seen| (s.signal, s.code, s.address);
    assert_eq!(what(&seen), what(&expected), "of {wanted:x?}: {seen:x?}");
    let is_general = seen.signal == SIGSEGV && seen.code == OF_KERNEL;
    assert_eq!(
        is_general,
        seen.signal == SIGSEGV && seen.regs[G_VECTOR] != 14,
        "vector: {seen:x?}"
    );
}

/// `nop; int3`, with `syscall` and an endless loop elsewhere on its page.
pub fn landing() -> u64 {
    static PAGE: AtomicU64 = AtomicU64::new(0);
    if PAGE.load(SeqCst) == 0 {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT;
        let p = mmap(0, 4096, PROT_READ | PROT_WRITE, flags, -1, 0).must();
        put_code(p as u64, &[0x90, 0xcc]);
        PAGE.store(p as u64, SeqCst);
    }
    PAGE.load(SeqCst)
}

/// Code on a page that is not executable yet.
pub fn put_code(at: u64, code: &[u8]) {
    // SAFETY: the page was mapped by this test for this.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
    sc!(SYS_mprotect, at & !4095, 4096, PROT_READ | PROT_EXEC).is(0);
}

// ------------------------------------------------------------------------------------------------
// Paths: the counters of /proc/limen/exits, where there are any

/// Rows of the table.
#[derive(Clone, Copy)]
pub enum Row {
    Syscall,
    Vector,
    NewThread,
}

/// SYSRET, then the reasons for IRET.
pub type Counts = [u64; 1 + IretReason::ALL.len()];

pub struct Exits(pub Option<std::fs::File>);

impl Exits {
    pub fn new() -> Exits {
        Exits(std::fs::File::open("/proc/limen/exits").ok())
    }

    /// All CPUs together.
    pub fn row(&self, row: Row) -> Counts {
        let mut counts = Counts::default();
        let Some(file) = &self.0 else { return counts };
        let mut text = [0u8; 8192];
        let n = file.read_at(&mut text, 0).expect("/proc/limen/exits");
        let name = ["syscall", "vector", "new-thread"][row as usize];
        for line in std::str::from_utf8(&text[..n]).expect("text").lines() {
            let mut words = line.split(' ').skip(1);
            if words.next() == Some(name) {
                let more = words.map(|word| word.parse::<u64>().expect("a number"));
                counts.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
            }
        }
        counts
    }

    /// Runs `f`; the growth of a row must be: of system calls exactly one IRET for `exit`'s reason
    /// or none; of others, that others use as well, at least one return of that kind.
    #[track_caller]
    pub fn expect<R>(&self, row: Row, exit: Exit, f: impl FnOnce() -> R) -> R {
        self.expect_all(row, &[exit], f)
    }

    /// The same with several returns.
    #[track_caller]
    pub fn expect_all<R>(&self, row: Row, exits: &[Exit], f: impl FnOnce() -> R) -> R {
        let before = self.row(row);
        let result = f();
        let after = self.row(row);
        let grown: Counts = std::array::from_fn(|i| after[i] - before[i]);
        let mut wanted = Counts::default();
        for exit in exits {
            match *exit {
                Exit::Sysret => wanted[0] += 1,
                Exit::Iret(reason) => wanted[1 + reason as usize] += 1,
                Exit::Refuse => {}
            }
        }
        if self.0.is_some() {
            let good = match row {
                Row::Syscall => grown[0] >= wanted[0] && grown[1..] == wanted[1..],
                _ => grown.iter().zip(&wanted).all(|(grown, wanted)| grown >= wanted),
            };
            assert!(good, "returns {grown:?}, expected {exits:?}");
        }
        result
    }
}
