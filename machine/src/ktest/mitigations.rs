//! Mitigations: the sequences do what they are for, at the crossings where they were chosen, and
//! nowhere else. The facts may be another CPU's (`cpu-facts=`): every test asks the plan what to
//! expect. Which sequence ran where is seen by stepping (`window`).

use alloc::string::String;
use alloc::vec::Vec;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use entry::{PtRegs, flags};
use mitigations::bhi::BhbLoop;
use mitigations::by_program::flag;
use mitigations::plan::{Branches, Flush, Returns};
use mitigations::spectre_v2_user::For;
use text_patching::return_site::Return;
use text_patching::{Text, call_depth};

use super::Test;
use crate::cpu::percpu::{self, cpu_id};
use crate::cpu::speculation::{self, mask_index, mask_user};
use crate::cpu::sync::IrqGuard;
use crate::cpu::{self, MAX_CPUS, apic, clock, shadow_stack};
use crate::ensure;
use crate::memory::USER_END;
use crate::mitigations::{self as machine_mitigations, behind_guests, plan};
use crate::text::call_depth::COUNTER;
use crate::text::text_poke::LiveText;
use crate::text::untrain;

pub(super) const TESTS: &[Test] = &[
    Test { name: "mitigations::loops_are_as_long_as_histories", run: loops },
    Test { name: "mitigations::masks_leave_nothing_outside", run: masks },
    Test { name: "mitigations::returns_and_branches_are_made_where_it_was_chosen", run: places },
    Test { name: "mitigations::calls_and_returns_count", run: counted },
    Test { name: "mitigations::an_interrupted_return_is_finished", run: finished },
    Test { name: "mitigations::interrupted_anywhere_both_stacks_agree", run: both_stacks },
    Test { name: "mitigations::ticks_in_safe_returns", run: ticks_in_returns },
    Test { name: "mitigations::text_is_as_it_was_chosen", run: text },
    Test { name: "mitigations::a_guest_is_followed_by_one_flush", run: flush },
    Test { name: "mitigations::a_barrier_stands_between_those_who_ask", run: barriers },
    Test { name: "mitigations::bits_follow_the_thread", run: bits },
];

// ------------------------------------------------------------------------------------------------
// Branches, counted by stepping

static COUNTING: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];
/// Taken branches so far.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// Where a conditional jump that is being executed goes on if it is not taken; 0: none is.
static UNDECIDED: AtomicU64 = AtomicU64::new(0);
/// Calls without their returns, and the most of them at once.
static DEPTH: AtomicU32 = AtomicU32::new(0);
static DEEPEST: AtomicU32 = AtomicU32::new(0);

/// Instructions of the loop, and returns of it in the lower half of a cache line.
static INSTRUCTIONS: AtomicU32 = AtomicU32::new(0);
static LOW_RETURNS: AtomicU32 = AtomicU32::new(0);

/// Returns, those of them that the thunk made, and those in the lower half of a line.
static RETURNS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
/// Steps in the middle of a safe return: before what takes away the thunk's own address, behind it.
static IN_SAFE: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Branches to r11, and those of them in the lower half of a line.
static BRANCHES: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Calls that have counted, and returns that have taken away.
static COUNTED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Adds to each counter whose condition is true.
fn count(counters: &[AtomicU32], conditions: &[bool]) {
    for (counter, &is_so) in counters.iter().zip(conditions) {
        counter.fetch_add(u32::from(is_so), Ordering::SeqCst);
    }
}

fn is_low(rip: u64) -> bool {
    rip % 64 < 32
}

/// Bytes of a loop, at most.
const LOOP_BYTES: u64 = 128;

fn is_loop(rip: u64) -> bool {
    let starts = speculation::LOOPS.map(|f| f as *const () as u64);
    starts.into_iter().any(|start| (start..start + LOOP_BYTES).contains(&rip))
}

/// A debug exception in the kernel: one of [`count`]'s steps?
pub(super) fn step(regs: &mut PtRegs) -> bool {
    if !COUNTING[cpu_id()].load(Ordering::SeqCst) {
        return false;
    }
    cpu::take_dr6();
    INSTRUCTIONS.fetch_add(u32::from(is_loop(regs.rip)), Ordering::SeqCst);
    let undecided = UNDECIDED.swap(0, Ordering::SeqCst);
    if undecided != 0 && undecided != regs.rip {
        TAKEN.fetch_add(1, Ordering::SeqCst);
    }
    let mut opcode = [0; 6];
    let _ = LiveText.read(regs.rip, &mut opcode);
    // A direct call is padded by prefixes.
    if let [0x41, 0xff, 0xd3 | 0xe3, ..] | [0x2e, 0x2e, 0x2e, 0x41, 0xff, 0xd3] = opcode {
        count(&BRANCHES, &[true, is_low(regs.rip)]);
    }
    let is_thunk = machine_mitigations::returns() == Return::Thunk(regs.rip);
    let is_count = opcode[..5] == call_depth::count(0)[..5];
    count(&COUNTED, &[is_count, is_thunk && plan().returns == Returns::Counted]);
    if untrain::is_safe_return(regs.rip) {
        let is_first = untrain::starts().contains(&regs.rip);
        count(&IN_SAFE, &[is_first, !is_first]);
    }
    match opcode[0] {
        // The call of a thunk whose return is not seen: the step in the middle has it made.
        0xe8 if is_thunk => count(&RETURNS, &[true, true, false]),
        0xe8 => {
            TAKEN.fetch_add(1, Ordering::SeqCst);
            let depth = DEPTH.fetch_add(1, Ordering::SeqCst) + 1;
            DEEPEST.fetch_max(depth, Ordering::SeqCst);
        }
        0xc3 => {
            TAKEN.fetch_add(1, Ordering::SeqCst);
            let is_loop = is_loop(regs.rip);
            LOW_RETURNS.fetch_add(u32::from(is_loop && is_low(regs.rip)), Ordering::SeqCst);
            count(&RETURNS, &[true, is_thunk, is_low(regs.rip)]);
            DEPTH.fetch_sub(1, Ordering::SeqCst);
        }
        0xe9 | 0xeb => {
            TAKEN.fetch_add(1, Ordering::SeqCst);
        }
        // Jcc rel8: two bytes.
        0x70..=0x7f => UNDECIDED.store(regs.rip + 2, Ordering::SeqCst),
        _ => {}
    }
    regs.rflags |= flags::TF;
    true
}

/// Steps through one call of a loop, by the name of its symbol.
macro_rules! stepped {
    ($name:literal) => {{
        let _irq = IrqGuard::new();
        let counters = [&TAKEN, &DEPTH, &DEEPEST, &INSTRUCTIONS, &LOW_RETURNS];
        for counter in
            counters.into_iter().chain(&RETURNS).chain(&BRANCHES).chain(&IN_SAFE).chain(&COUNTED)
        {
            counter.store(0, Ordering::SeqCst);
        }
        COUNTING[cpu_id()].store(true, Ordering::SeqCst);
        // SAFETY: the function clobbers what the C ABI lets it; TF makes every instruction behind
        // the first POPF a step, up to the one behind the second.
        unsafe {
            asm!(
                "pushfq",
                "or dword ptr [rsp], 0x100",
                "popfq",
                concat!("call ", $name),
                "pushfq",
                "and dword ptr [rsp], ~0x100",
                "popfq",
                clobber_abi("C"),
            );
        }
        COUNTING[cpu_id()].store(false, Ordering::SeqCst);
    }};
}

fn loops() -> Result<(), String> {
    stepped!("clear_bhb_short_unfenced");
    judge(BhbLoop::SHORT)?;
    stepped!("clear_bhb_long_unfenced");
    judge(BhbLoop::LONG)
}

/// Three returns of Rust and a call through a pointer, to be stepped through.
#[unsafe(no_mangle)]
extern "C" fn ktest_places() -> u32 {
    let one: fn(u32) -> u32 = one_more;
    core::hint::black_box(core::hint::black_box(one)(1)) + core::hint::black_box(one_more(2))
}

#[inline(never)]
fn one_more(to: u32) -> u32 {
    core::hint::black_box(to) + 1
}

/// Where returns and indirect branches are made: at their own places, or at the thunks', which lie
/// in the upper half of a cache line.
fn places() -> Result<(), String> {
    stepped!("ktest_places");
    let [returns, thunked, low] = RETURNS.each_ref().map(|n| n.load(Ordering::SeqCst));
    let [branches, low_branches] = BRANCHES.each_ref().map(|n| n.load(Ordering::SeqCst));
    let plan = plan();
    // A retpoline branches by a return of its own.
    let retpolines = u32::from(plan.branches == Branches::Thunk);
    let is_counted = plan.returns == Returns::Counted;
    // The thunk that counts does not begin with its return, which may be either of two.
    let is_elsewhere = plan.returns == Returns::Plain || is_counted;
    let wanted = if is_elsewhere { 0 } else { 3 + retpolines };
    ensure!(returns == 3 + retpolines, "{returns} returns");
    ensure!(thunked == wanted, "{thunked} returns by the thunk, not {wanted}");
    ensure!(branches == 1 - retpolines, "{branches} indirect branches");
    let counted = COUNTED.each_ref().map(|n| n.load(Ordering::SeqCst));
    // The retpoline's own call and return take no part.
    let wanted_counted = [if is_counted { 3 } else { 0 }; 2];
    ensure!(counted == wanted_counted, "{counted:?} calls and returns have counted");
    let is_aligned = plan.returns == Returns::Aligned;
    ensure!(!is_aligned || low == 0, "{low} returns in the lower half of a line");
    ensure!(!is_aligned || low_branches == 0, "a branch in the lower half of a line");
    // Each step in a safe return is an interrupt of it: none has made its own return after that.
    let in_safe = IN_SAFE.each_ref().map(|n| n.load(Ordering::SeqCst));
    let wanted = if plan.returns.are_safe() { wanted } else { 0 };
    ensure!(in_safe == [wanted, 0], "{in_safe:?} steps in safe returns, not {wanted} and none");
    Ok(())
}

/// `more` calls, each inside the one before.
#[unsafe(no_mangle)]
extern "C" fn ktest_deep(more: u64) -> u64 {
    if more == 0 { 0 } else { core::hint::black_box(ktest_deep(more - 1)) + 1 }
}

/// The counter behind calls and their returns, however deep, is that of the model, which is shown
/// never to leave a return without an entry of the return stack; or nothing counts.
fn counted() -> Result<(), String> {
    let is_counted = plan().returns == Returns::Counted;
    let _irq = IrqGuard::new();
    for depth in [1_u32, 2, 11, 12, 13, 14, 30, 60] {
        let (deepest, left): (u64, u64);
        // SAFETY: the function clobbers what the C ABI lets it; the counter is this CPU's own.
        unsafe {
            asm!(
                "mov gs:[{counter}], rdx",
                "call ktest_deep",
                "mov rcx, gs:[{counter}]",
                counter = const COUNTER,
                in("rdx") call_depth::NONE,
                lateout("rcx") left,
                in("rdi") u64::from(depth) - 1,
                lateout("rax") deepest,
                clobber_abi("C"),
            );
        }
        let behind_calls = (0..depth).fold(call_depth::NONE, |n, _| call_depth::called(n));
        let modelled = (0..depth).fold(behind_calls, |n, _| call_depth::returned(n).0);
        let wanted = if is_counted { modelled } else { call_depth::NONE };
        ensure!(deepest == u64::from(depth) - 1, "{deepest} calls of {depth}");
        ensure!(left == wanted, "{depth} calls and returns leave {left:#x}, not {wanted:#x}");
    }
    Ok(())
}

/// Places of the safe return that was chosen at which the CPU can be interrupted.
fn interruptible() -> Vec<u64> {
    let [safe, alias] = untrain::starts();
    let start = if plan().returns == Returns::SafeAlias { alias } else { safe };
    (start..start + 32).filter(|&at| untrain::is_safe_return(at)).collect()
}

/// Steps through returns, of which each is interrupted at every instruction and finished at one of
/// them: the stack and the shadow stack are as without that, and all lead where they were called.
fn both_stacks() -> Result<(), String> {
    if !plan().returns.are_safe() {
        return Ok(());
    }
    let places = interruptible();
    let wanted = if shadow_stack::is_on() { 4 } else { 2 };
    ensure!(places.len() == wanted, "{} instructions of a safe return", places.len());
    for at in places {
        untrain::observed::ONLY_AT.store(at, Ordering::SeqCst);
        untrain::observed::FINISHED.store(0, Ordering::SeqCst);
        let before = shadow_stack::ssp();
        stepped!("ktest_places");
        let after = shadow_stack::ssp();
        untrain::observed::ONLY_AT.store(0, Ordering::SeqCst);
        let finished = untrain::observed::FINISHED.load(Ordering::SeqCst);
        let returns = RETURNS[0].load(Ordering::SeqCst);
        ensure!(before == after, "{at:#x}: SSP was {before:#x} and is {after:#x}");
        // A retpoline branches by a return of its own.
        let wanted = 3 + u64::from(plan().branches == Branches::Thunk);
        ensure!(finished == wanted, "{at:#x}: {finished} of {wanted} returns were finished");
        ensure!(returns >= 3, "{at:#x}: {returns} returns");
    }
    Ok(())
}

/// Most interrupts that the test waits for, and how long it is to the next.
const MAX_TICKS: u64 = 2000;
const TICK_NS: u64 = 50_000;
/// Returns that they are to find in the middle.
const FOUND: u64 = 5;

/// The timer interrupts a loop of returns, on the stack that the loop runs on.
fn ticks_in_returns() -> Result<(), String> {
    if !plan().returns.are_safe() {
        return Ok(());
    }
    untrain::observed::FINISHED.store(0, Ordering::SeqCst);
    let before = shadow_stack::ssp();
    for tick in 0..MAX_TICKS {
        // Not in step with the loop.
        let end = clock::now_ns() + TICK_NS + tick * 7;
        apic::arm_timer(TICK_NS + tick * 7);
        while clock::now_ns() < end + TICK_NS {
            for n in 0..20 {
                ensure!(one_more(n) == n + 1, "a return brought something else");
            }
        }
        let after = shadow_stack::ssp();
        ensure!(before == after, "SSP was {before:#x} and is {after:#x}");
        if untrain::observed::FINISHED.load(Ordering::SeqCst) >= FOUND {
            return Ok(());
        }
    }
    Err("no tick came in the middle of a return".into())
}

/// Frames of a CPU that was interrupted in and beside a safe return.
fn finished() -> Result<(), String> {
    if shadow_stack::is_on() {
        // No interrupt has made this frame, and there is none to change: `both_stacks` does.
        return Ok(());
    }
    // The thunk's return address, the function's, and what is behind it.
    let stack = [1_u64, 2, 3];
    let at = stack.as_ptr() as u64;
    for start in untrain::safe_returns() {
        for (offset, rsp, wanted) in [
            (0, at, (2, at + 16)),
            (5, at + 8, (2, at + 16)),
            (6, at, (start + 6, at)),
            (1, at, (start + 1, at)),
        ] {
            let mut regs = PtRegs { rip: start + offset, rsp, ..PtRegs::default() };
            untrain::finish(&mut regs);
            let found = (regs.rip, regs.rsp);
            ensure!(found == wanted, "at byte {offset}: {found:x?}, not {wanted:x?}");
        }
    }
    Ok(())
}

/// Whether what was stepped through is a loop with these counts.
fn judge(counts: BhbLoop) -> Result<(), String> {
    let seen = [&TAKEN, &DEEPEST, &INSTRUCTIONS].map(|counter| counter.load(Ordering::SeqCst));
    // The call that begins it is executed before the first step; its return is one.
    let wanted = [counts.taken_branches() + 1, counts.outer, counts.instructions() - 1];
    ensure!(seen == wanted, "{counts:?}: branches, depth, instructions {seen:?}, not {wanted:?}");
    let low = LOW_RETURNS.load(Ordering::SeqCst);
    ensure!(low == 0, "{counts:?}: {low} returns in the lower half of a line");
    Ok(())
}

// ------------------------------------------------------------------------------------------------

fn masks() -> Result<(), String> {
    for at in [0, 1, 4096, USER_END - 1, USER_END] {
        ensure!(mask_user(at) == at, "{at:#x} becomes {:#x}", mask_user(at));
    }
    for at in [USER_END + 1, 1 << 47, 1 << 63, u64::MAX] {
        ensure!(mask_user(at) == USER_END, "{at:#x} becomes {:#x}", mask_user(at));
    }
    for (index, len, masked) in [(0, 1, 0), (5, 6, 5), (6, 6, 0), (usize::MAX, 6, 0), (0, 0, 0)] {
        let found = mask_index(index, len);
        ensure!(found == masked, "{index} of {len} becomes {found}");
    }
    Ok(())
}

fn text() -> Result<(), String> {
    machine_mitigations::verify_text();
    Ok(())
}

/// A guest's exits here, as many as told, and then one return to user mode and another.
fn flush() -> Result<(), String> {
    let _irq = IrqGuard::new();
    let cpu = cpu_id();
    let wanted = u64::from(plan().guest.exit_to_user != Flush::None);
    let flushes = || behind_guests::counts(cpu).flushes.iter().sum::<u64>();
    let before = (flushes(), machine_mitigations::barriers(cpu), behind_guests::counts(cpu));
    behind_guests::before_user_mode();
    ensure!(flushes() == before.0, "a flush without a guest");
    for _ in 0..1000 {
        behind_guests::guest_ran();
    }
    let word = percpu::local().exit_work.get();
    ensure!(u64::from(word) == wanted, "the CPU's word is {word}");
    behind_guests::before_user_mode();
    behind_guests::before_user_mode();
    let made = flushes() - before.0;
    ensure!(made == wanted, "{made} flushes behind 1000 exits, expected {wanted}");
    let after = behind_guests::counts(cpu);
    let (exits, spared) = (after.exits - before.2.exits, after.spared - before.2.spared);
    ensure!((exits, spared) == (1000, 999 * wanted), "{exits} exits, {spared} spared");
    let barriers = machine_mitigations::barriers(cpu) - before.1;
    let by_barrier = u64::from(plan().guest.exit_to_user == Flush::Ibpb);
    ensure!(barriers == by_barrier, "{barriers} barriers, expected {by_barrier}");
    Ok(())
}

/// Two programs, by number.
const ONE: u64 = 1 << 40;
const TWO: u64 = ONE + 1;

fn barriers() -> Result<(), String> {
    let _irq = IrqGuard::new();
    let local = percpu::local();
    let owner = local.predictor_owner.replace(ONE);
    let asks = flag::BRANCHES_OFF;
    let (always, conditional) = match plan().ibpb_on_switch {
        For::Nobody => (0, 0),
        For::Prctl | For::Seccomp => (0, 1),
        For::Everybody | For::EverybodyPreferred => (1, 1),
    };
    // From a thread to a thread: the second's flags, and the barriers between them.
    let steps = [
        (ONE, 0, 0),
        (TWO, 0, always),
        (0, 0, 0),
        (TWO, 0, 0),
        (ONE, asks, conditional),
        (ONE, asks, 0),
        (TWO, 0, conditional),
        (ONE, 0, always),
    ];
    let mut result = Ok(());
    for (number, (space, flags, wanted)) in steps.into_iter().enumerate() {
        let before = machine_mitigations::barriers(cpu_id());
        machine_mitigations::switched(space, flags);
        let found = machine_mitigations::barriers(cpu_id()) - before;
        if found != wanted {
            result = Err(alloc::format!("step {number}: {found} barriers, expected {wanted}"));
        }
    }
    local.predictor_owner.set(owner);
    machine_mitigations::switched(ONE, 0);
    local.predictor_owner.set(owner);
    result
}

/// What a thread chose is in the register while it runs, and not behind it.
fn bits() -> Result<(), String> {
    use mitigations::plan::spec_ctrl::{IBRS, SSBD, STIBP};
    use mitigations::spec_store_bypass::Control;
    let _irq = IrqGuard::new();
    let local = percpu::local();
    let base = plan().spec_ctrl;
    machine_mitigations::switched(ONE, flag::SSB_OFF | flag::BRANCHES_OFF);
    let with = local.spec_ctrl.get();
    let user = local.spec_ctrl_user.get();
    machine_mitigations::switched(TWO, 0);
    local.predictor_owner.set(0);
    let ssbd = plan().ssbd_by_program && plan().ssbd == Some(Control::SpecCtrl);
    let wanted =
        base | if ssbd { SSBD } else { 0 } | if plan().stibp.is_by_program() { STIBP } else { 0 };
    ensure!(with == wanted, "SPEC_CTRL {with:#x} with both, expected {wanted:#x}");
    ensure!(user == wanted & !IBRS, "SPEC_CTRL {user:#x} for the program");
    ensure!(local.spec_ctrl.get() == base, "SPEC_CTRL {:#x} behind it", local.spec_ctrl.get());
    Ok(())
}
