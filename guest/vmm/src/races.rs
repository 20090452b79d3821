//! Memory that changes under a guest that runs: its VMM's threads map, protect, move, copy and log
//! pages while the guest reads and writes them on another CPU.
//!
//! What is looked for is a frame that the guest still reaches and that is not its VMM's any more,
//! or a write that a log does not tell. Neither faults, so each test has an invariant that such a
//! frame or write breaks: what was read after a request is what was there when it was made;
//! what must not
//! be written stays as it is; no count is lost.

use std::os::fd::AsRawFd as _;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvm_bindings::KVM_MEM_LOG_DIRTY_PAGES;
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use crate::machine::{Guest, Memory, Result, assembled, set_region};
use crate::tests::ensure;

const PAGE: usize = 4096;
/// Longest wait for a guest's next step.
const PATIENCE: Duration = Duration::from_secs(20);

// Words in the guest's first memory. What the VMM asks, and the guest's answers; whether to end;
// where the guest's pages are.
const REQUEST: usize = 0x3000;
const SEEN: usize = 0x3008;
const ANSWER: usize = 0x3010;
const STOP: usize = 0x3018;
const BASE: usize = 0x3020;

/// Where the second memory is for the guest, and its size: huge pages fit.
const SECOND: u64 = 0x40_0000;
const SECOND_BYTES: usize = 4 << 20;
const HUGE: usize = 2 << 20;
/// Pages that a guest counts in, or writes to at random.
const COUNTED: usize = 8;
const WRITTEN: usize = 64;

// Numbers as of the constants above.
std::arch::global_asm!(
    ".pushsection .rodata",
    // Reads its page behind each request.
    "limen_vmm_echo:",
    "mov r8, [0x3020]",
    "2: mov rax, [0x3000]",
    "mov rbx, [r8]",
    "mov [0x3008], rbx",
    "mov [0x3010], rax",
    "cmp qword ptr [0x3018], 0",
    "je 2b",
    "out 0x80, al",
    "limen_vmm_echo_end:",
    // Counts in eight pages.
    "limen_vmm_count:",
    "xor ebx, ebx",
    "mov r8, [0x3020]",
    "2: mov rsi, r8",
    "mov ecx, 8",
    "3: inc qword ptr [rsi]",
    "add rsi, 4096",
    "dec ecx",
    "jnz 3b",
    "inc rbx",
    "mov [0x3008], rbx",
    "cmp qword ptr [0x3018], 0",
    "je 2b",
    "out 0x80, al",
    "limen_vmm_count_end:",
    // Writes to pages at random.
    "limen_vmm_write:",
    "xor ebx, ebx",
    "mov r8, [0x3020]",
    "mov r9, 0x5851f42d4c957f2d",
    "mov r10, 1",
    "2: imul r10, r9",
    "add r10, 12345",
    "mov rsi, r10",
    "shr rsi, 58",
    "shl rsi, 12",
    "inc qword ptr [r8+rsi]",
    "inc rbx",
    "mov [0x3008], rbx",
    "cmp qword ptr [0x3018], 0",
    "je 2b",
    "out 0x80, al",
    "limen_vmm_write_end:",
    ".popsection",
);

unsafe extern "C" {
    static limen_vmm_echo: u8;
    static limen_vmm_echo_end: u8;
    static limen_vmm_count: u8;
    static limen_vmm_count_end: u8;
    static limen_vmm_write: u8;
    static limen_vmm_write_end: u8;
}

#[derive(Clone, Copy)]
enum Program {
    Echo,
    Count,
    Write,
}

impl Program {
    fn code(self) -> &'static [u8] {
        let (start, end) = match self {
            Program::Echo => (&raw const limen_vmm_echo, &raw const limen_vmm_echo_end),
            Program::Count => (&raw const limen_vmm_count, &raw const limen_vmm_count_end),
            Program::Write => (&raw const limen_vmm_write, &raw const limen_vmm_write_end),
        };
        // SAFETY: labels around each of the programs in `.rodata`.
        unsafe { assembled(start, end) }
    }
}

/// A guest in a thread of its own, with a second memory.
struct Running {
    vm: VmFd,
    memory: Arc<Memory>,
    second: Arc<Memory>,
    thread: JoinHandle<()>,
    /// How the guest ended.
    ended: Arc<OnceLock<Result<()>>>,
}

/// Runs it to its end. Memory that is not there is a fault that its VMM may mend, so it goes on.
fn run_to_the_end(cpu: &mut VcpuFd) -> Result<()> {
    loop {
        match cpu.run() {
            Ok(VcpuExit::IoOut(0x80, _)) => return Ok(()),
            Ok(other) => return Err(format!("{other:?}")),
            Err(error) => match error.errno() {
                libc::EFAULT | libc::EAGAIN | libc::EINTR => std::thread::yield_now(),
                other => return Err(format!("KVM_RUN: error {other}")),
            },
        }
    }
}

impl Running {
    /// Starts it; `log`: with a log of what it writes to the second memory.
    fn start(program: Program) -> Result<Running> {
        let Guest { mut cpu, vm, memory, kvm: _ } = Guest::long(program.code())?;
        let (memory, second) = (Arc::new(memory), Arc::new(Memory::aligned(SECOND_BYTES, HUGE)));
        set_region(&vm, 1, SECOND, &second, SECOND_BYTES, 0)?;
        memory.store(BASE, SECOND);
        // The guest may outlive this function's caller by a failure: both memories stay with it.
        let kept = (memory.clone(), second.clone());
        let ended = Arc::new(OnceLock::new());
        let how = ended.clone();
        let thread = std::thread::spawn(move || {
            how.get_or_init(|| run_to_the_end(&mut cpu));
            drop(kept);
        });
        let running = Running { vm, memory, second, thread, ended };
        running.wait(|| running.memory.load(SEEN) > 0 || matches!(program, Program::Echo))?;
        Ok(running)
    }

    fn wait(&self, mut until: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !until() {
            ensure(!self.thread.is_finished(), || {
                format!("the guest has ended: {:?}", self.ended)
            })?;
            ensure(start.elapsed() < PATIENCE, || "the guest does not go on".into())?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Some more rounds of the guest's.
    fn let_it_go_on(&self) -> Result<()> {
        let seen = self.memory.load(SEEN);
        self.wait(|| self.memory.load(SEEN) > seen + 2)
    }

    /// What the guest reads now.
    fn ask(&self, number: u64) -> Result<u64> {
        self.memory.store(REQUEST, number);
        self.wait(|| self.memory.load(ANSWER) == number)?;
        Ok(self.memory.load(SEEN))
    }

    /// Ends it; how often it went round.
    fn end(self) -> Result<(u64, Arc<Memory>, VmFd)> {
        self.memory.store(STOP, 1);
        self.thread.join().map_err(|_| "the guest's thread panicked")?;
        self.ended.get().cloned().ok_or("it has no end")??;
        Ok((self.memory.load(SEEN), self.second, self.vm))
    }

    /// Ends it; no page has lost a count.
    fn end_with_all_counts(self) -> Result<()> {
        let (rounds, second, _) = self.end()?;
        for page in 0..COUNTED {
            let count = second.load(page * PAGE);
            ensure(count == rounds, || format!("page {page}: {count} of {rounds}"))?;
        }
        Ok(())
    }
}

/// What a guest reads is what is there, whichever way another page has come to its place.
pub fn what_is_read_is_what_is_there() -> Result<()> {
    const ROUNDS: u64 = 240;
    const OTHER: usize = HUGE;
    // SAFETY: a name and no flags.
    let file = unsafe { libc::memfd_create(c"races".as_ptr(), libc::MFD_CLOEXEC) };
    let resize = |bytes| {
        // SAFETY: ftruncate takes two numbers, and the file is this test's own.
        let done = unsafe { libc::ftruncate(file, bytes) };
        ensure(done == 0, || "ftruncate".into())
    };
    resize(PAGE as i64)?;
    let guest = Running::start(Program::Echo)?;
    let second = guest.second.clone();
    for round in 1..=ROUNDS {
        let how = round / 8 % 5;
        match how {
            0 => second.forget(0, PAGE),
            1 => second.replace(0, PAGE, None),
            2 => {
                second.store(OTHER, round);
                second.relocate(OTHER, 0, PAGE);
            }
            3 => {
                second.protect(0, PAGE, libc::PROT_NONE);
                second.protect(0, PAGE, libc::PROT_READ | libc::PROT_WRITE);
            }
            _ => {
                second.replace(0, PAGE, Some(file));
                resize(0)?;
                resize(PAGE as i64)?;
            }
        }
        second.store(0, round);
        let read = guest.ask(round)?;
        ensure(read == round, || format!("round {round} by {how}: read {read}"))?;
    }
    // SAFETY: this function's own descriptor.
    unsafe { libc::close(file) };
    guest.end().map(drop)
}

/// Pages that are read-only stay as they are, and no count is lost.
pub fn what_may_not_be_written_is_not() -> Result<()> {
    let guest = Running::start(Program::Count)?;
    let counts = || -> [u64; COUNTED] { core::array::from_fn(|n| guest.second.load(n * PAGE)) };
    for round in 0..60 {
        let rights = if round % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
        guest.second.protect(0, COUNTED * PAGE, rights);
        // Readable again, and still not writable.
        guest.second.protect(0, COUNTED * PAGE, libc::PROT_READ);
        let before = counts();
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(300) {
            std::thread::yield_now();
        }
        let after = counts();
        ensure(before == after, || format!("round {round}: {before:?}, then {after:?}"))?;
        guest.second.protect(0, COUNTED * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        guest.let_it_go_on()?;
    }
    guest.end_with_all_counts()
}

/// What a child has got by fork stays as it was, whatever the guest writes; and the guest goes on
/// in its VMM's copy.
pub fn a_child_has_its_own_copy() -> Result<()> {
    let guest = Running::start(Program::Count)?;
    for round in 0..20 {
        // SAFETY: the child only reads its own memory, yields and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let counts =
                || -> [u64; COUNTED] { core::array::from_fn(|n| guest.second.load(n * PAGE)) };
            let before = counts();
            let is_same = (0..200).all(|_| {
                // SAFETY: sched_yield takes no argument and changes no memory.
                unsafe { libc::sched_yield() };
                counts() == before
            });
            // SAFETY: nothing of the child's runs after this, no destructor either.
            unsafe { libc::_exit(i32::from(!is_same)) };
        }
        guest.let_it_go_on()?;
        let mut status = 0;
        // SAFETY: the status has room for a word.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        ensure(ended == child && status == 0, || format!("round {round}: child: {status:#x}"))?;
        guest.let_it_go_on()?;
    }
    guest.end_with_all_counts()
}

/// Small pages become huge ones and small ones again, under the guest.
pub fn no_count_is_lost_by_huge_pages() -> Result<()> {
    let guest = Running::start(Program::Count)?;
    let mut collapsed = 0;
    for round in 0..40 {
        collapsed += u32::from(guest.second.collapse(0, HUGE));
        guest.let_it_go_on()?;
        let other = (COUNTED + round) * PAGE;
        match round % 3 {
            0 => guest.second.protect(other, PAGE, libc::PROT_READ),
            1 => guest.second.forget(other, PAGE),
            _ => guest.second.replace(other, PAGE, None),
        }
        guest.let_it_go_on()?;
        guest.second.protect(other, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
    ensure(collapsed > 0, || "no page was ever huge".into())?;
    guest.end_with_all_counts()
}

/// A copy of a guest's memory that follows the log while the guest runs is the memory once it has
/// stopped, also if the log begins while it runs.
pub fn a_copy_by_the_log_is_the_memory() -> Result<()> {
    copies(|_| Ok(()), false)
}

/// The same, by a log that is cleared by a call of its own, and that begins full.
pub fn a_copy_by_a_cleared_log_is_the_memory() -> Result<()> {
    const MODES: [u64; 2] = [1, 3];
    for modes in MODES {
        let enable = |vm: &VmFd| {
            let mut asked = kvm_bindings::kvm_enable_cap {
                cap: kvm_bindings::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
                ..Default::default()
            };
            asked.args[0] = modes;
            vm.enable_cap(&asked).map_err(|error| format!("KVM_ENABLE_CAP: {error}"))
        };
        copies(enable, true)?;
    }
    Ok(())
}

/// KVM_CLEAR_DIRTY_LOG of the second memory, from a page on.
fn clear_log(vm: &VmFd, first: u64, pages: u32, bits: &[u64]) -> core::result::Result<(), i32> {
    const KVM_CLEAR_DIRTY_LOG: u64 = 3 << 30 | 24 << 16 | 0xae << 8 | 0xc0;
    let mut asked = kvm_bindings::kvm_clear_dirty_log {
        slot: 1,
        num_pages: pages,
        first_page: first,
        __bindgen_anon_1: kvm_bindings::kvm_clear_dirty_log__bindgen_ty_1 {
            dirty_bitmap: bits.as_ptr().cast_mut().cast(),
        },
    };
    // SAFETY: the call reads the structure and the bits, which are as long as `pages` says.
    let done = unsafe { libc::ioctl(vm.as_raw_fd(), KVM_CLEAR_DIRTY_LOG, &raw mut asked) };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// What a log that is cleared by its own call refuses, and that it forgets only what was named.
pub fn what_a_log_forgets() -> Result<()> {
    const PAGES: u32 = (SECOND_BYTES / PAGE) as u32;
    let guest = Running::start(Program::Write)?;
    let none = [0u64; PAGES as usize / 64];
    let not_logged = clear_log(&guest.vm, 0, PAGES, &none);
    ensure(not_logged == Err(libc::ENOENT), || format!("without a log: {not_logged:?}"))?;
    let mut asked = kvm_bindings::kvm_enable_cap {
        cap: kvm_bindings::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
        ..Default::default()
    };
    for wrong in [2, 4, 5] {
        asked.args[0] = wrong;
        ensure(guest.vm.enable_cap(&asked).is_err(), || format!("modes {wrong}"))?;
    }
    asked.args[0] = 1;
    guest.vm.enable_cap(&asked).map_err(|error| format!("KVM_ENABLE_CAP: {error}"))?;
    set_region(&guest.vm, 1, SECOND, &guest.second, SECOND_BYTES, KVM_MEM_LOG_DIRTY_PAGES)?;
    for (first, pages) in [(1, 64), (0, 65), (64, PAGES), (u64::from(PAGES) + 64, 64)] {
        let got = clear_log(&guest.vm, first, pages, &none);
        ensure(got == Err(libc::EINVAL), || format!("{pages} from {first}: {got:?}"))?;
    }
    guest.let_it_go_on()?;
    let (_, _second, vm) = guest.end()?;
    let log = || vm.get_dirty_log(1, SECOND_BYTES).map_err(|e| format!("KVM_GET_DIRTY_LOG: {e}"));
    let written = log()?;
    ensure(written[0] != 0 && log()? == written, || format!("{written:x?} was forgotten"))?;
    let (lowest, rest) = (written[0] & written[0].wrapping_neg(), written[0] & (written[0] - 1));
    let cleared = clear_log(&vm, 0, 64, &[lowest]);
    ensure(cleared.is_ok(), || format!("{cleared:?}"))?;
    ensure(log()?[0] == rest, || format!("{:x} after {lowest:x}", written[0]))
}

/// `is_cleared`: the log forgets by KVM_CLEAR_DIRTY_LOG.
fn copies(set_up: impl Fn(&VmFd) -> Result<()>, is_cleared: bool) -> Result<()> {
    const BYTES: usize = WRITTEN * PAGE;
    const LOGS: usize = 6;
    let word = |memory: &Memory, page: usize| memory.load(page * PAGE);
    for round in 0..10 {
        let guest = Running::start(Program::Write)?;
        set_up(&guest.vm)?;
        let set = |flags| set_region(&guest.vm, 1, SECOND, &guest.second, SECOND_BYTES, flags);
        let mut copy = [0; WRITTEN];
        let follow = |copy: &mut [u64; WRITTEN], vm: &VmFd, memory: &Memory| -> Result<usize> {
            let log = vm.get_dirty_log(1, SECOND_BYTES);
            let log = log.map_err(|error| format!("KVM_GET_DIRTY_LOG: {error}"))?;
            if is_cleared {
                let pages = (SECOND_BYTES / PAGE) as u32;
                let cleared = clear_log(vm, 0, pages, &log);
                ensure(cleared.is_ok(), || format!("KVM_CLEAR_DIRTY_LOG: {cleared:?}"))?;
            } else {
                let others = &log[BYTES / PAGE / 64..];
                ensure(others.iter().all(|&w| w == 0), || "others' pages".into())?;
            }
            let written = (0..WRITTEN).filter(|page| log[page / 64] >> (page % 64) & 1 != 0);
            Ok(written.map(|page| copy[page] = word(memory, page)).count())
        };
        for again in 0..2 {
            if again > 0 {
                set(0)?;
                guest.let_it_go_on()?;
            }
            set(KVM_MEM_LOG_DIRTY_PAGES)?;
            copy = core::array::from_fn(|page| word(&guest.second, page));
            for _ in 0..LOGS {
                guest.let_it_go_on()?;
                let written = follow(&mut copy, &guest.vm, &guest.second)?;
                ensure(written > 0, || "the guest has written, and no page was".into())?;
            }
        }
        let (_, second, vm) = guest.end()?;
        follow(&mut copy, &vm, &second)?;
        for (page, &count) in copy.iter().enumerate() {
            let is = word(&second, page);
            ensure(count == is, || format!("round {round}, page {page}: {count} and not {is}"))?;
        }
        let again = follow(&mut copy, &vm, &second)?;
        ensure(again == 0, || format!("{again} pages written by nobody"))?;
    }
    Ok(())
}
