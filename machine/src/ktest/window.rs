//! Every instruction of the entry code, interrupted: a CPU single-steps through `entry.S` from
//! SYSCALL or an interrupt's vector to the kernel, and from there back to the program. At each step
//! it is in one of the windows: the program's GS, stack or tables with the kernel's rights. There
//! the debug exception comes, and after it, by turns, a machine check or an NMI.
//!
//! Machine checks cannot be sent, and an NMI comes when it likes: so the handler of the debug
//! exception returns to their entry instead, with the frame on their stack that the CPU would have
//! put there. Everything else is as in the window. When they return, the next step comes.
//!
//! Here also: the walk of programs' page tables. The kernel's part (`kernel/src/ktest/window.rs`)
//! runs the programs.

use alloc::string::String;
use alloc::vec::Vec;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use entry::{PtRegs, flags, selector};
use mitigations::plan::Returns;

use super::Test;
use crate::context_tracking::ipi;
use crate::cpu::percpu::{self, cpu_id};
use crate::cpu::{self, MAX_CPUS, apic, shadow_stack};
use crate::ensure;
use crate::entry::shadow_stack::interrupt_token;
use crate::entry::{descriptors, vector};
use crate::memory::shadow_stack::{Frame, write};
use crate::memory::{self, Shared, Space, stack};
use crate::text::untrain;

pub(super) const TESTS: &[Test] =
    &[Test { name: "window::programs_tables_have_the_allowed_pages_only", run: shared_pages }];

/// What a window is hit by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// A debug exception alone.
    Debug,
    /// Then an NMI.
    Nmi,
    /// Then a machine check.
    MachineCheck,
}

const KINDS: usize = 3;

/// Bytes of entry code at most.
const CODE_MAX: usize = 16384;

static WANTED: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];
static STEPPING: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];
/// Runs through a window so far: they are hit by turns.
static RUNS: AtomicU64 = AtomicU64::new(0);
static HITS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
/// Handlers that found themselves without the kernel's GS or tables, or on a wrong stack.
static LOST: AtomicU64 = AtomicU64::new(0);
/// For each byte of entry code the kinds that have hit an instruction there, as bits.
static PLACES: [[AtomicBool; KINDS]; CODE_MAX] =
    [const { [const { AtomicBool::new(false) }; KINDS] }; CODE_MAX];

unsafe extern "C" {
    static __entry_text_start: u8;
    static __entry_text_end: u8;
    static context_left_sysret: u8;
    static context_left_sysret_pti: u8;
    static context_left_iret: u8;
    static context_left_iret_pti: u8;
    static sysret_window_start: u8;
    static sysret_window_end: u8;
    static sysret_pti_window_start: u8;
    static sysret_pti_window_end: u8;
    static iret_to_user: u8;
    fn paranoid_2();
    fn paranoid_18();
    static guard_ibpb: u8;
    static guard_ibrs: u8;
    static verw_before_sysret: u8;
    static verw_before_sysret_pti: u8;
    static verw_before_iret: u8;
    static unfenced_user: u8;
    static untrain_overlaid: u8;
    static untrain_safe: u8;
    static untrain_alias: u8;
    static call_depth_begin: u8;
}

/// Bytes of LFENCE (0f ae e8).
const LFENCE_BYTES: u64 = 3;

/// Says which sequence of the mitigations was stepped through and is not in the plan, or the
/// reverse: the first of them.
pub fn odd_sequence() -> Option<&'static str> {
    let plan = crate::mitigations::plan();
    let [short, long] = crate::cpu::speculation::LOOPS.map(|f| f as *const () as u64);
    let fence = (&raw const unfenced_user) as u64 - LFENCE_BYTES;
    let bhb = |counts| plan.bhb_on_entry == Some(counts);
    let places = [
        ("IBPB at entries", (&raw const guard_ibpb) as u64, plan.ibpb_on_entry),
        ("IBRS at entries", (&raw const guard_ibrs) as u64, plan.ibrs_on_entry),
        (
            "what untrains the overlaid thunk",
            (&raw const untrain_overlaid) as u64,
            plan.returns == Returns::Overlaid,
        ),
        (
            "what untrains safe returns",
            (&raw const untrain_safe) as u64,
            plan.returns == Returns::Safe,
        ),
        (
            "what untrains by the alias",
            (&raw const untrain_alias) as u64,
            plan.returns == Returns::SafeAlias,
        ),
        (
            "what begins to count calls",
            (&raw const call_depth_begin) as u64,
            plan.returns == Returns::Counted,
        ),
        ("the short BHB loop", short, bhb(mitigations::bhi::BhbLoop::SHORT)),
        ("the long BHB loop", long, bhb(mitigations::bhi::BhbLoop::LONG)),
        ("VERW before SYSRET", sysret_window().verw, plan.verw_on_exit),
        ("VERW before IRET", (&raw const verw_before_iret) as u64, plan.verw_on_exit),
        ("the fence behind SWAPGS", fence, plan.fence_swapgs_user),
    ];
    let is_odd = |&(_, at, wanted): &(&str, u64, bool)| {
        let ran = offset(at).is_some_and(|at| PLACES[at][0].load(Ordering::SeqCst));
        ran != wanted
    };
    places.iter().find(|place| is_odd(place)).map(|&(name, ..)| name)
}

/// Bytes of SWAPGS (0f 01 f8) and SYSRETQ (48 0f 07).
const SWAPGS_BYTES: u64 = 3;
const SYSRETQ_BYTES: u64 = 3;

/// Addresses of the way out by SYSRET that is in use.
struct SysretWindow {
    /// The first instruction on the program's stack.
    start: u64,
    verw: u64,
    sysret: u64,
}

fn sysret_window() -> SysretWindow {
    let [start, verw, end] = match memory::has_pti() {
        true => [
            &raw const sysret_pti_window_start,
            &raw const verw_before_sysret_pti,
            &raw const sysret_pti_window_end,
        ],
        false => [
            &raw const sysret_window_start,
            &raw const verw_before_sysret,
            &raw const sysret_window_end,
        ],
    };
    SysretWindow { start: start as u64, verw: verw as u64, sysret: end as u64 - SYSRETQ_BYTES }
}

fn last_before_iret() -> u64 {
    (&raw const iret_to_user) as u64
}

fn offset(rip: u64) -> Option<usize> {
    let start = (&raw const __entry_text_start) as u64;
    let end = (&raw const __entry_text_end) as u64;
    ((start..end).contains(&rip) && rip - start < CODE_MAX as u64).then(|| (rip - start) as usize)
}

/// Makes CPU `cpu` step through the windows from its next system call on, or leave it.
pub fn step_through(cpu: usize, on: bool) {
    WANTED[cpu].store(on, Ordering::SeqCst);
}

/// Whether CPU `cpu` steps through the windows now.
pub fn is_stepping(cpu: usize) -> bool {
    STEPPING[cpu].load(Ordering::SeqCst)
}

/// Hits of each kind so far, and how many handlers were lost.
pub fn hits() -> ([u64; KINDS], u64) {
    (HITS.each_ref().map(|n| n.load(Ordering::SeqCst)), LOST.load(Ordering::SeqCst))
}

/// Instructions that were hit, and the first of the places by name that not all kinds have hit.
pub fn covered() -> (usize, Option<&'static str>) {
    let [syscall, interrupt] = descriptors::entry_points(apic::VECTOR_TIMER);
    let places = [
        ("SYSCALL, before SWAPGS", syscall),
        ("SYSCALL, behind SWAPGS", syscall + SWAPGS_BYTES),
        ("an interrupt's first instruction", interrupt),
        ("behind the store to the state word", points()[1]),
        ("the program's stack, before SWAPGS", sysret_window().start),
        ("the program's stack and GS, before SYSRET", sysret_window().sysret),
        ("behind the store, towards IRET", points()[2]),
        ("the program's GS, before IRET", last_before_iret()),
    ];
    let is_hit = |&(_, at): &(&str, u64)| {
        let kinds = offset(at).map(|at| &PLACES[at]);
        kinds.is_some_and(|kinds| kinds.iter().all(|kind| kind.load(Ordering::SeqCst)))
    };
    let count = PLACES.iter().filter(|kinds| kinds[0].load(Ordering::SeqCst)).count();
    (count, places.iter().find(|place| !is_hit(place)).map(|&(name, _)| name))
}

/// Where stepping begins: SYSCALL's entry and a vector's, and the two ways out.
fn points() -> [u64; 4] {
    let [syscall, interrupt] = descriptors::entry_points(apic::VECTOR_TIMER);
    let [sysret, iret] = if memory::has_pti() {
        [&raw const context_left_sysret_pti, &raw const context_left_iret_pti]
    } else {
        [&raw const context_left_sysret, &raw const context_left_iret]
    };
    [syscall, sysret as u64, iret as u64, interrupt]
}

/// Called in every system call: does what [`step_through`] asks of this CPU.
pub(crate) fn follow() {
    let cpu = cpu_id();
    let wanted = WANTED[cpu].load(Ordering::SeqCst);
    if wanted == STEPPING[cpu].load(Ordering::SeqCst) {
        return;
    }
    let [first, second, third, fourth] = points();
    // DR7 (SDM 3B, 17.2.4): all four enabled globally, each for the execution of one instruction.
    let control: u64 = if wanted { 0x4aa } else { 0x400 };
    STEPPING[cpu].store(wanted, Ordering::SeqCst);
    // SAFETY: breakpoints on instructions of `entry.S`, whose handler is `step`.
    unsafe {
        asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", "mov dr7, {}",
             in(reg) first, in(reg) second, in(reg) third, in(reg) fourth, in(reg) control,
             options(nomem, nostack, preserves_flags));
    }
}

/// A debug exception in the kernel: a step, if this CPU steps.
pub(super) fn step(regs: &mut PtRegs) -> bool {
    const BREAKPOINTS: u64 = 0xf;
    if !is_stepping(cpu_id()) {
        return false;
    }
    if cpu::take_dr6() & BREAKPOINTS != 0 {
        // Or the same instruction would stop again (SDM 3B, 17.3.1.1).
        regs.rflags |= flags::RF;
        RUNS.fetch_add(1, Ordering::SeqCst);
    }
    if untrain::is_safe_return(regs.rip) {
        // One of them lies far from the rest: on to where it returns.
        regs.rflags |= flags::TF;
        return true;
    }
    let Some(at) = offset(regs.rip) else {
        // In the kernel proper.
        regs.rflags &= !flags::TF;
        return true;
    };
    // Behind the last instruction the program's own flags decide.
    if [sysret_window().sysret, last_before_iret()].contains(&regs.rip) {
        regs.rflags &= !flags::TF;
    } else {
        regs.rflags |= flags::TF;
    }
    check(regs, vector::DEBUG);
    match kind_of_run(RUNS.load(Ordering::SeqCst)) {
        0 => note(at, Hit::Debug),
        1 => deflect(regs, vector::NMI, paranoid_2),
        _ => deflect(regs, vector::MACHINE_CHECK, paranoid_18),
    }
    true
}

/// Which kind hits in this run. Not in turn: where the steps take longer than a tick, interrupts
/// wait for the return, and the same number of runs lies between any two of them.
fn kind_of_run(run: u64) -> u64 {
    // Multiplicative hashing.
    (run.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % KINDS as u64
}

fn note(at: usize, hit: Hit) {
    HITS[hit as usize].fetch_add(1, Ordering::SeqCst);
    PLACES[at][hit as usize].store(true, Ordering::SeqCst);
}

/// Makes the way back from this handler the way into another one, as if the CPU had taken `number`
/// where `regs` are (SDM 3A, 6.14.2): SS, RSP, RFLAGS, CS and RIP on that vector's own stack.
fn deflect(regs: &mut PtRegs, number: u8, handler: unsafe extern "C" fn()) {
    let Some(top) = descriptors::own_stack(number) else { return };
    let frame = [regs.rip, regs.cs, regs.rflags, regs.rsp, regs.ss];
    let at = (top & !15) - size_of_val(&frame) as u64;
    // SAFETY: the stack of that vector, on which nothing runs: its handlers leave no trace, and
    // interrupts are masked.
    unsafe { (at as *mut [u64; 5]).write(frame) };
    regs.rip = handler as *const () as u64;
    deflect_shadow_stack(number, regs.rip);
    regs.rsp = at;
    regs.cs = selector::KERNEL_CS.into();
    regs.ss = 0;
    regs.rflags = flags::FIXED;
}

/// The same for what the CPU would have put on that vector's own shadow stack.
fn deflect_shadow_stack(number: u8, handler: u64) {
    if !shadow_stack::is_on() {
        return;
    }
    let Some(stack) = descriptors::number_of_own_stack(number) else { return };
    let token = interrupt_token(stack.into());
    let own = Frame::innermost();
    write(token, token | shadow_stack::BUSY);
    let other = own.copy_to(token - Frame::SIZE);
    own.set_ssp(other);
    own.set(0, handler);
}

/// An NMI or a machine check in the kernel: whether it is one of [`step`]'s.
pub(crate) fn landed(regs: &PtRegs, number: u8) -> bool {
    let Some(at) = offset(regs.rip) else { return false };
    if !is_stepping(cpu_id()) {
        return false;
    }
    check(regs, number);
    note(at, if number == vector::NMI { Hit::Nmi } else { Hit::MachineCheck });
    true
}

/// Whether the handler that was given `regs` has all that is the kernel's.
fn check(regs: &PtRegs, number: u8) {
    let cpu = apic::id();
    let local = percpu::local();
    let is_mine = local.apic_id.get() == cpu && core::ptr::eq(local, percpu::of(cpu_id()));
    let has_tables = !crate::cpu::Cr3::read().is_user_root() || !memory::has_pti();
    let end = (&raw const *regs) as u64 + size_of::<PtRegs>() as u64;
    let on_stack = descriptors::own_stack(number).is_some_and(|top| end == top & !15);
    if !(is_mine && has_tables && on_stack) {
        LOST.fetch_add(1, Ordering::SeqCst);
    }
}

/// Hits CPU `cpu` with an NMI.
pub fn send_nmi(cpu: usize) {
    ipi::send_nmi(cpu);
}

/// What is known of two NMIs of a CPU, of which the handler of the first sends the second.
static NMIS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(NO_NMI) }; MAX_CPUS];
const NO_NMI: u64 = 0;
const SENT: u64 = 1;
/// Added to how often the CPU has gone back to a program before the first, or between both.
const FIRST: u64 = 1 << 62;
const BOTH: u64 = 1 << 63;

/// Hits CPU `cpu` with an NMI, and from its handler with the next.
pub fn send_two_nmis(cpu: usize) {
    NMIS[cpu].store(SENT, Ordering::SeqCst);
    ipi::send_nmi(cpu);
}

/// How often the CPU went back to a program between both, once the second has come.
pub fn returns_between_nmis(cpu: usize) -> Option<u64> {
    let seen = NMIS[cpu].load(Ordering::SeqCst);
    (seen & BOTH != 0).then_some(seen & !BOTH)
}

/// An NMI has come.
pub(super) fn nmi_came() {
    let cpu = cpu_id();
    let counts = crate::entry::exit_counts(cpu).iter().flatten();
    let returns: u64 = counts.map(|count| count.load(Ordering::Relaxed)).sum();
    match NMIS[cpu].load(Ordering::SeqCst) {
        SENT => {
            NMIS[cpu].store(FIRST | returns, Ordering::SeqCst);
            ipi::send_nmi(cpu);
        }
        seen if seen & FIRST != 0 => {
            NMIS[cpu].store(BOTH | (returns - (seen & !FIRST)), Ordering::SeqCst);
        }
        _ => {}
    }
}

/// Whether this CPU's SS is the kernel's, where SYSRET would give it to a program.
pub fn has_good_ss() -> bool {
    !cpu::features().sysret_keeps_ss || cpu::read_ss() == selector::KERNEL_DS
}

// ------------------------------------------------------------------------------------------------

/// The kernel half of programs' tables: entry code, entry data, and the stacks that interrupts of
/// programs begin on; each with the kernel's own frame and rights, none for programs.
fn shared_pages() -> Result<(), String> {
    let mut pages: Vec<Shared> = Vec::new();
    memory::for_each_shared(|leaf| pages.push(leaf));
    if !memory::has_pti() {
        ensure!(pages.is_empty(), "{} pages without isolation", pages.len());
        return Ok(());
    }
    let allowed = memory::entry_image();
    let stacks = stack::KERNEL_STACK_SIZE as u64 * cpu::cpu_count() as u64 * 5;
    let mut stack_bytes = 0;
    for leaf in &pages {
        let (at, bytes) = (leaf.address, leaf.bytes);
        ensure!(bytes == 4096, "{at:#x}: a large page");
        ensure!(!leaf.user, "{at:#x}: programs may use it");
        ensure!(!(leaf.write && leaf.exec), "{at:#x}: W and X");
        ensure!(leaf.is_kernels, "{at:#x}: not the kernel's own frame and rights");
        let in_text = allowed[0].contains(&at);
        let in_data = allowed[1].contains(&at);
        ensure!(in_text == leaf.exec, "{at:#x}: executable and not entry code, or the reverse");
        if !in_text && !in_data {
            ensure!(stack::is_stack(at), "{at:#x}: none of the allowed");
            stack_bytes += bytes;
        }
    }
    let image: u64 = allowed.iter().map(|range| range.end - range.start).sum();
    let want = (image + stacks) / 4096;
    ensure!(stack_bytes == stacks, "{stack_bytes} bytes of stacks, expected {stacks}");
    ensure!(pages.len() as u64 == want, "{} pages, expected {want}", pages.len());
    crate::log!("programs' tables map {} pages of the kernel", pages.len());
    Ok(())
}

/// Whether a program's tables have these pages and its own, and nothing else.
pub fn has_only_its_own(space: &Space) -> Result<(), String> {
    let odd = memory::odd_slot(space);
    ensure!(odd.is_none(), "slot {odd:?} of a program's top table");
    Ok(())
}
