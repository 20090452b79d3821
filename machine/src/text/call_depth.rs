//! Calls that are counted (`retbleed=stuff`, `indirect_target_selection=stuff`): how and why is in
//! `text_patching::call_depth`. Here stand the counting thunks, the room for objtool's list of
//! direct calls, and the pass that makes them count, behind that of `cfi`.
//!
//! The counter is each CPU's own and lies in its entry data, so GS is the kernel's wherever
//! something calls or returns: on ways in objtool proves it with what comes before it
//! (`objtool/src/untrained.rs`), and other CPUs get theirs before their first Rust (`boot.S`). It
//! says nothing of a call yet ([`NONE`]) behind entries, guests and sleep, and is full behind what
//! fills the return stack. Flags do not outlive a return: the one that gives back flags
//! (`return_without_iret`) counts nothing.
//!
//! Neighbours: `thunk` has the thunks of other CPUs, `mitigations` chooses.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};

use text_patching::call_depth::{self, Calls, ENTRIES, NONE, SHIFT};
use text_patching::tail::Via;

use crate::cpu;
use crate::cpu::percpu::{self, CpuLocal};
use crate::cpu::sealed::sealed;
use crate::cpu::static_key::{StaticKey, id, static_branch_unlikely};
use crate::text::text_poke::{self, LiveText};

/// Bytes of the room: a call takes one, seldom five.
const ROOM: usize = if cfg!(feature = "large-tables") { 128 << 10 } else { 64 << 10 };
/// Where the counter is, in GS.
pub(crate) const COUNTER: usize = offset_of!(CpuLocal, call_depth);
/// What the return stack's entries take of the stack.
const FILL_BYTES: usize = 8 * ENTRIES as usize;

sealed! {
    static IS_ON: AtomicBool = AtomicBool::new(false);
}

global_asm!(
    r#"
    .pushsection .limen_calls, "a", @progbits
    .zero {ROOM}
    .popsection

    // Where all returns go. RSP is the kernel's, GS too. Clobbers flags.
    .pushsection .entry.text.call_depth, "ax", @progbits
    .balign 64, 0xcc
    .globl call_depth_return_thunk
    .type call_depth_return_thunk, @function
    call_depth_return_thunk:
        shlq ${SHIFT}, %gs:{COUNTER}
        jz 1f
        ret
        int3
    // Each of the calls leaves an entry that leads to a trap.
    1:
        .rept {ENTRIES}
        call 2f
        int3
    2:
        .endr
        add ${FILL_BYTES}, %rsp
        movq $-1, %gs:{COUNTER}
        ret
        int3
    .size call_depth_return_thunk, . - call_depth_return_thunk
    .popsection

    // The retpolines: a call counts, a jump pushes nothing. What predicts the return is the call
    // before it.
    .pushsection .text.call_depth_indirect, "ax", @progbits
    .balign 64, 0xcc
    .globl call_depth_indirect_call
    .type call_depth_indirect_call, @function
    call_depth_indirect_call:
        sarq ${SHIFT}, %gs:{COUNTER}
    .globl call_depth_indirect_jump
    .type call_depth_indirect_jump, @function
    call_depth_indirect_jump:
        call 2f
    1:  pause
        lfence
        jmp 1b
    2:  mov %r11, (%rsp)
        ret
        int3
    .size call_depth_indirect_jump, . - call_depth_indirect_jump
    .popsection
    "#,
    ROOM = const ROOM,
    SHIFT = const SHIFT,
    ENTRIES = const ENTRIES,
    FILL_BYTES = const FILL_BYTES,
    COUNTER = const COUNTER,
    options(att_syntax)
);

unsafe extern "C" {
    static __limen_calls_start: u8;
    static __limen_calls_end: u8;
    static call_depth_return_thunk: u8;
    static call_depth_indirect_call: u8;
    static call_depth_indirect_jump: u8;
}

/// Where returns go that take away.
pub(crate) fn return_thunk() -> u64 {
    (&raw const call_depth_return_thunk) as u64
}

/// How indirect branches are made.
pub(crate) fn branches() -> Via {
    Via::Counted {
        call: (&raw const call_depth_indirect_call) as u64,
        jump: (&raw const call_depth_indirect_jump) as u64,
    }
}

/// Calls are counted.
pub(crate) struct CountCalls;
impl StaticKey for CountCalls {
    const ID: u32 = id::COUNT_CALLS;
}

/// Whether all direct calls count.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// This CPU's return stack may be empty: it has slept.
#[inline(always)]
pub(crate) fn forget_calls() {
    if static_branch_unlikely::<CountCalls>() {
        percpu::local().call_depth.set(NONE);
    }
}

/// The list of direct calls, as objtool has written it; all zero in an image that it has not
/// finished.
fn list() -> &'static [u8] {
    let start = &raw const __limen_calls_start;
    let len = (&raw const __limen_calls_end).addr() - start.addr();
    // SAFETY: the linker script puts both symbols around one read-only section that is mapped for
    // as long as the kernel runs, and nobody writes it.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// Has every direct call count. On the first CPU, before the others start, with interrupts masked,
/// behind the pass that makes returns and indirect branches count.
pub(crate) fn boot_pass(is_debug: bool) {
    let calls = Calls::parse(list(), text_poke::text_range().start)
        .unwrap_or_else(|error| panic!("list of calls: {error}"));
    let mut window = text_poke::boot_window().expect("the boot pass comes before the door closes");
    let start = cpu::rdtsc_ordered();
    let checked = call_depth::check(&LiveText, calls, COUNTER as u32)
        .unwrap_or_else(|anomaly| panic!("text: {anomaly}"));
    let done = checked.apply(&mut window);
    let cycles = cpu::rdtsc_ordered() - start;
    drop(window);
    let done = done.unwrap_or_else(|broken| panic!("text is broken: {}", broken.found));
    IS_ON.store(true, Ordering::Relaxed);
    if is_debug {
        let (calls, functions) = (done.calls, done.functions);
        crate::log!("CFI: {calls} calls of {functions} functions count, {cycles} cycles");
    }
}
