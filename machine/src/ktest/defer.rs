//! The detector of missed catch-ups: a kernel page that is remapped over and over, and a look at it
//! at every entry. Whoever sees an older tag than was published before it looked has used a
//! translation that the sender believes gone.
//!
//! With page-table isolation every entry loads CR3, which emulators take for a flush of everything:
//! then this sees nothing, and only counts. What such loads keep on hardware is searched in
//! `mechanisms/context_tracking/tests/tlb.rs`, and here what is loaded is looked at.
//!
//! Also here: debug registers that stop a CPU at labelled points of `entry.S`, where it looks as
//! well, and catch-ups that are left out on purpose, so that the detector itself is tested. The
//! kernel's part (`kernel/src/ktest/defer.rs`) runs the programs.

use alloc::format;
use alloc::string::String;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use context_tracking::work::{Cause, Mode};
use entry::{PtRegs, flags, selector};

use crate::context_tracking::{ipi, tlb, word};
use crate::cpu::percpu::{self, cpu_id, tracking};
use crate::cpu::{self, Cr3, shadow_stack, vmap_base};
use crate::entry::descriptors::{
    self, syscall_entry_pending, syscall_entry_pti_cr3, syscall_entry_pti_pending,
    syscall_entry_shadow_pending,
};
use crate::memory;
use crate::memory::frame::{Frame, PAGE_SIZE};

/// Where the page is: between stacks and devices.
fn place() -> u64 {
    vmap_base() + (8 << 30)
}
/// Frames take turns, so that an old one keeps its old tag for long.
const FRAMES: usize = 64;

/// How a CPU came to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A system call.
    Syscall,
    /// An interrupt or exception of a program.
    Vector,
    /// An NMI that hit the kernel, maybe a danger zone.
    Nmi,
    /// A breakpoint at a labelled point.
    Point,
}

const KINDS: usize = 4;

/// The address, once it is mapped; 0 before.
static PAGE: AtomicU64 = AtomicU64::new(0);
/// Every look that begins from now on must see this tag, or a newer one.
static PUBLISHED: AtomicU64 = AtomicU64::new(0);
static LOOKS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
static STALE: AtomicU64 = AtomicU64::new(0);
/// The CPU that is to set its debug registers.
static WANTS_POINTS: [AtomicBool; cpu::MAX_CPUS] =
    [const { AtomicBool::new(false) }; cpu::MAX_CPUS];

/// Called by every entry after its catch-up.
#[inline]
pub(crate) fn look(kind: Look) {
    let at = PAGE.load(Ordering::SeqCst);
    if at == 0 {
        return;
    }
    let published = PUBLISHED.load(Ordering::SeqCst);
    // SAFETY: mapped since before `PAGE` was set, to one frame or another, for ever.
    let tag = unsafe { (at as *const u64).read_volatile() };
    LOOKS[kind as usize].fetch_add(1, Ordering::Relaxed);
    if tag < published {
        STALE.fetch_add(1, Ordering::Relaxed);
    }
    if kind == Look::Syscall && WANTS_POINTS[cpu_id()].swap(false, Ordering::SeqCst) {
        set_points();
    }
}

/// A debug exception in the kernel: a labelled point, if the detector has set any.
pub(crate) fn at_point(regs: &mut PtRegs) {
    if cpu::take_dr6() & 0xf != 0 {
        look(Look::Point);
        // Or the same instruction would stop again (SDM 3B, 17.3.1.1).
        regs.rflags |= flags::RF;
    }
}

/// The sender's half.
#[derive(Debug)]
pub struct Sender {
    frames: [u64; FRAMES],
    tag: u64,
}

impl Sender {
    /// Maps the page, and starts the detector. Its memory is never given back.
    pub fn new() -> Result<Sender, String> {
        let mut frames = [0; FRAMES];
        for frame in &mut frames {
            let new = Frame::alloc_zeroed().map_err(|_| "no memory")?;
            *frame = new.phys();
            new.into_raw();
        }
        let first = Frame::alloc_zeroed().map_err(|_| "no memory")?;
        if PAGE.load(Ordering::SeqCst) == 0 {
            memory::map_kernel_memory(place(), first).map_err(|_| "no memory")?;
        }
        let tag = PUBLISHED.load(Ordering::SeqCst);
        let mut sender = Sender { frames, tag };
        sender.remap();
        PAGE.store(place(), Ordering::SeqCst);
        Ok(sender)
    }

    /// Remaps the page once, and has everybody forget the old translation.
    pub fn remap(&mut self) {
        self.tag += 1;
        let phys = self.frames[self.tag as usize % FRAMES];
        let alias = crate::memory::frame::phys_to_virt(phys).cast::<u64>();
        // SAFETY: the frame is this sender's, and at most read by others.
        unsafe { alias.write_volatile(self.tag) };
        memory::remap_kernel(place(), phys);
        tlb::flush_kernel(Cause::Vunmap);
        PUBLISHED.store(self.tag, Ordering::SeqCst);
    }
}

/// What the detector has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Looks by kind.
    pub looks: [u64; KINDS],
    /// Looks that met an old translation.
    pub stale: u64,
}

/// What the detector has seen since boot.
pub fn seen() -> Seen {
    Seen {
        looks: LOOKS.each_ref().map(|n| n.load(Ordering::SeqCst)),
        stale: STALE.load(Ordering::SeqCst),
    }
}

/// Spares these CPUs from now on; 0 puts back what the command line says.
pub fn spare(cpus: u32, mode: Mode) {
    if cpus == 0 {
        word::spare(word::isolation().nohz_full, word::mode());
    } else {
        word::spare(cpus, mode);
    }
}

/// Leaves the catch-up of these CPUs out, while senders still spare them.
pub fn break_catch_up(cpus: u32) {
    word::spare(cpus, Mode::Pending);
    for cpu in (0..cpu::cpu_count()).filter(|cpu| cpus & 1 << cpu != 0) {
        percpu::of(cpu).tracking.store(tracking::OFF, Ordering::SeqCst);
    }
    tlb::reload_entries();
}

/// Hits CPU `cpu` with an NMI.
pub fn send_nmi(cpu: usize) {
    ipi::send_nmi(cpu);
}

/// Has CPU `cpu` stop at the labelled points from its next system call on.
pub fn stop_at_points(cpu: usize) {
    WANTS_POINTS[cpu].store(true, Ordering::SeqCst);
}

/// Whether page-table isolation is on, which hides missing flushes from emulators.
pub fn is_blind() -> bool {
    memory::has_pti()
}

/// What is wrong with this CPU's way in and its loads of CR3 for one that catches up by them
/// (`is`), or does not.
pub fn expect_cr3(is: bool) -> Result<(), String> {
    let [entry, _] = descriptors::entry_points(0);
    let is_entry = entry == descriptors::landing(&raw const syscall_entry_pti_cr3 as u64);
    let noted = percpu::local().kernel_cr3.get();
    let keeps = !noted.is_stale();
    // Before the first program nothing is noted.
    let may_keep = !is && crate::context_tracking::pcid::in_use() && noted != Cr3::NONE;
    let right = is_entry == is && keeps == may_keep;
    let what = format!("catches up by CR3: {is}; its entry: {is_entry}; its CR3 keeps: {keeps}");
    if right { Ok(()) } else { Err(what) }
}

/// Catch-ups that CPU `cpu` has done.
pub fn catch_ups(cpu: usize) -> u64 {
    word::catch_ups(cpu).0
}

/// The page of code that [`Program`] means, to be mapped anywhere, and where its loop begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Makes system calls for ever.
    Storm,
    /// Never leaves user mode.
    Spin,
    /// One instruction, at which every interrupt finds a frame that SYSRET could have made.
    Still,
    /// Makes system calls, and dies if one changes a register that it must not.
    Careful,
    /// Sets AC, and never leaves user mode.
    Open,
    /// Has calls change its registers (rt_sigreturn(2)), and dies if they are not as it asked.
    Lending,
}

// All of the general registers but four have one value, or the program ends by #UD.
core::arch::global_asm!(
    r#"
    .pushsection .rodata.ktest_careful, "a", @progbits
    ktest_careful:
    1:  mov $110, %eax
        syscall
        cmp %rbx, %rdx
        jne 2f
        cmp %rbx, %rsi
        jne 2f
        cmp %rbx, %rdi
        jne 2f
        cmp %rbx, %rbp
        jne 2f
        cmp %rbx, %r8
        jne 2f
        cmp %rbx, %r9
        jne 2f
        cmp %rbx, %r10
        jne 2f
        cmp %rbx, %r12
        jne 2f
        cmp %rbx, %r13
        jne 2f
        cmp %rbx, %r14
        jne 2f
        cmp %rbx, %r15
        jne 2f
        // Long enough for interrupts to find it elsewhere than behind the call.
        mov $200000, %ecx
    3:  dec %ecx
        jnz 3b
        jmp 1b
    2:  ud2
    ktest_careful_end:
    .popsection
    "#,
    options(att_syntax)
);

// The frame asks for an RCX and an R11 that no SYSRET gives. `ucontext_t` is that of the kernel:
// flags, link, stack (40 bytes), R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP, RFLAGS,
// segments, and the rest 0: no FPU image, no signal blocked.
core::arch::global_asm!(
    r#"
    .pushsection .rodata.ktest_lending, "a", @progbits
    ktest_lending:
        lea 3f(%rip), %rax
        mov %rax, 5f(%rip)
    1:  lea 4f(%rip), %rsp
        mov $15, %eax
        syscall
    2:  ud2
    3:  cmp %rbx, %rcx
        jne 2b
        cmp %rbx, %r11
        jne 2b
        jmp 1b
    .balign 8
    4:  .skip 40
        .skip 24
        .quad 0x5eed00005eed0001
        .skip 56
        .quad 0x5eed00005eed0001
        .skip 16
        .quad 0x5eed00005eed0001
        .quad 0
    5:  .quad 0
        .quad 0x202
        .short {CS}, 0, 0, {SS}
        .skip 152
    ktest_lending_end:
    .popsection
    "#,
    CS = const selector::USER_CS,
    SS = const selector::USER_DS,
    options(att_syntax)
);

impl Program {
    /// Its code.
    pub fn code(self) -> &'static [u8] {
        match self {
            // 1: mov $110 (getppid), %eax; syscall; jmp 1b
            Program::Storm => &[0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7],
            // 1: pause; jmp 1b
            Program::Spin => &[0xf3, 0x90, 0xeb, 0xfc],
            // 1: jmp 1b
            Program::Still => &[0xeb, 0xfe],
            // lea 0x800(%rip), %rsp; pushfq; orl $AC, (%rsp); popfq; 1: pause; jmp 1b
            Program::Open => &[
                0x48, 0x8d, 0x25, 0, 8, 0, 0, 0x9c, 0x81, 0x0c, 0x24, 0, 0, 4, 0, 0x9d, 0xf3, 0x90,
                0xeb, 0xfc,
            ],
            Program::Careful => {
                between_labels(&raw const ktest_careful, &raw const ktest_careful_end)
            }
            Program::Lending => {
                between_labels(&raw const ktest_lending, &raw const ktest_lending_end)
            }
        }
    }
}

fn between_labels(start: *const u8, end: *const u8) -> &'static [u8] {
    // SAFETY: both callers name two labels of one piece of read-only data, in their order.
    unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

unsafe extern "C" {
    static ktest_careful: u8;
    static ktest_careful_end: u8;
    static ktest_lending: u8;
    static ktest_lending_end: u8;
    static context_entering_syscall_entry_pending: u8;
    static context_entering_syscall_entry_shadow_pending: u8;
    static context_entering_syscall_entry_pti_pending: u8;
    static context_said_syscall_entry_pti_cr3: u8;
    static context_left_sysret: u8;
    static context_left_sysret_pti: u8;
    static sysret_window_start: u8;
    static sysret_pti_window_start: u8;
}

/// Sets this CPU's debug registers: the program's GS and stack; the kernel's, before the word is
/// set, or where CR3 catches up once it is; behind the exit's store; before SYSRET, on the
/// program's stack.
fn set_points() {
    let points = match (memory::has_pti(), word::catches_up_by_cr3()) {
        (false, _) if shadow_stack::is_on() => [
            &raw const syscall_entry_shadow_pending,
            &raw const context_entering_syscall_entry_shadow_pending,
            &raw const context_left_sysret,
            &raw const sysret_window_start,
        ],
        (false, _) => [
            &raw const syscall_entry_pending,
            &raw const context_entering_syscall_entry_pending,
            &raw const context_left_sysret,
            &raw const sysret_window_start,
        ],
        (true, false) => [
            &raw const syscall_entry_pti_pending,
            &raw const context_entering_syscall_entry_pti_pending,
            &raw const context_left_sysret_pti,
            &raw const sysret_pti_window_start,
        ],
        (true, true) => [
            &raw const syscall_entry_pti_cr3,
            &raw const context_said_syscall_entry_pti_cr3,
            &raw const context_left_sysret_pti,
            &raw const sysret_pti_window_start,
        ],
    }
    .map(|label| label as u64);
    // DR7 (SDM 3B, 17.2.4): all four enabled globally, each for the execution of one instruction.
    const ALL: u64 = 0x4aa;
    // SAFETY: breakpoints on instructions of `entry.S`, whose handler (`at_point`) steps over them.
    unsafe {
        asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", "mov dr7, {}",
             in(reg) points[0], in(reg) points[1], in(reg) points[2], in(reg) points[3],
             in(reg) ALL, options(nomem, nostack, preserves_flags));
    }
}

/// One page, for the program.
pub const PROGRAM_BYTES: usize = PAGE_SIZE;

/// Fails with both numbers unless nothing stale was seen.
pub fn expect_fresh(before: &Seen) -> Result<(), String> {
    let stale = seen().stale - before.stale;
    if stale == 0 { Ok(()) } else { Err(format!("{stale} looks met an old translation")) }
}
