//! Shadow stacks at the boundary: each CPU's own, and the returns that no call made.
//!
//! An interrupt of a program takes the shadow stack that `PL0_SSP` names, and the return to the
//! program gives it back; SYSCALL and SYSRET do neither, so `entry.S` does (SETSSBSY, CLRSSBSY).
//! Vectors with a stack of their own have a shadow stack of their own, by a table. Interrupts of
//! the kernel go on with the shadow stack that is there.
//!
//! A handler that returns elsewhere than it came from ([`shadow_stack_settle`]), and one that must
//! not return by IRET ([`shadow_stack_before_return`]), change what the CPU has pushed.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::fmt;
#[cfg(feature = "ktest")]
use core::sync::atomic::{AtomicBool, Ordering};

use entry::PtRegs;

use super::descriptors::IST_STACKS;
use crate::cpu::shadow_stack::{self, ShadowStack};
use crate::cpu::static_key::static_branch_unlikely;
use crate::cpu::{self, MAX_CPUS, percpu};
use crate::memory::frame::OutOfMemory;
use crate::memory::shadow_stack::{Frame, read, write};
use crate::memory::stack::KernelStack;
use crate::memory::{self, kernel_phys};

/// Tokens of the shadow stacks of one CPU's interrupt stacks, by their number (SDM 3A, 6.14.5). Of
/// number 0, which is none, that of the boot thread.
#[repr(C, align(64))]
struct Table(UnsafeCell<[u64; 8]>);

const _: () = assert!(IST_STACKS < 8);

// SAFETY: each is written before it is in use, by its own CPU, or before that is started.
unsafe impl Sync for Table {}

#[unsafe(link_section = ".data.sealed_entry")]
static TABLES: [Table; MAX_CPUS] = [const { Table(UnsafeCell::new([0; 8])) }; MAX_CPUS];

/// Notes the shadow stack of this CPU's interrupt stack `number`.
pub(super) fn set_interrupt_stack(number: usize, stack: &KernelStack) {
    let table = TABLES[percpu::cpu_id()].0.get();
    // SAFETY: this CPU's own table, which is not in use yet.
    unsafe { (*table)[number] = stack.shadow_token() };
}

/// Where the token of this CPU's interrupt stack `number` is.
#[cfg(feature = "ktest")]
pub(crate) fn interrupt_token(number: usize) -> u64 {
    // SAFETY: this CPU's own table, which does not change any more.
    unsafe { (*TABLES[percpu::cpu_id()].0.get())[number] }
}

/// Where this CPU's table is.
fn table() -> u64 {
    TABLES[percpu::cpu_id()].0.get() as u64
}

/// Prepares the first CPU, and says whether there are shadow stacks: the caller goes on with
/// `cpu::shadow_stack::begin`. Before text is changed: the thunk that returns then go to wants one.
pub(crate) fn prepare() -> Result<bool, OutOfMemory> {
    if !shadow_stack::is_on() {
        return Ok(false);
    }
    let stack = KernelStack::new()?;
    let table = prepare_other(percpu::cpu_id(), &stack);
    shadow_stack::prepare(stack.shadow_token(), table);
    // The boot thread has the shadow stack for ever.
    core::mem::forget(stack);
    Ok(true)
}

/// Notes the stack of CPU `cpu`'s boot thread, which does not run yet. Gives the address of its
/// table, with which it begins (`boot::smp`); 0 where there are no shadow stacks.
pub(crate) fn prepare_other(cpu: usize, stack: &KernelStack) -> u64 {
    if !shadow_stack::is_on() {
        return 0;
    }
    let table = TABLES[cpu].0.get();
    // SAFETY: the CPU does not use its table before it has been started.
    unsafe { (*table)[0] = stack.shadow_token() };
    table as u64
}

/// Stops the boot unless this CPU holds what was chosen.
pub(crate) fn verify() {
    if !shadow_stack::is_on() {
        return;
    }
    // SAFETY: this CPU's own table, of which this word does not change any more.
    let token = unsafe { (*TABLES[percpu::cpu_id()].0.get())[0] };
    let difference = shadow_stack::difference(token, table());
    assert!(difference.is_none(), "shadow stacks: {} is not as it was chosen", difference.unwrap());
    let is_busy = read(token) == token | shadow_stack::BUSY;
    assert!(is_busy, "shadow stacks: this CPU's token is not taken");
}

/// A test expects that a return is stopped.
#[cfg(feature = "ktest")]
pub(crate) static IS_EXPECTED: AtomicBool = AtomicBool::new(false);

/// Takes a return that was stopped, if a test expects it: on top of the stack is a word that the
/// test has pushed there. Without that the return is good.
#[cfg(feature = "ktest")]
pub(super) fn claim(regs: &mut PtRegs) -> bool {
    let is_expected = IS_EXPECTED.swap(false, Ordering::SeqCst);
    if is_expected {
        regs.rsp += 8;
    }
    is_expected
}

/// A return that does not lead where its call came from.
pub(super) struct Mismatch {
    at: u64,
    to: Option<u64>,
    from: u64,
}

impl Mismatch {
    /// The return at which `regs` were interrupted, which was not made.
    pub(super) fn of(regs: &PtRegs) -> Mismatch {
        let mut bytes = [0; 8];
        let read_all = (regs.rsp..)
            .zip(&mut bytes)
            .all(|(at, byte)| memory::peek(at).map(|found| *byte = found).is_some());
        let to = read_all.then(|| u64::from_le_bytes(bytes));
        Mismatch { at: regs.rip, to, from: read(Frame::innermost().ssp()) }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [at, from] = [self.at, self.from].map(cpu::linked);
        write!(f, "shadow stack: the return at {at:#x} was called from {from:#x} and leads to ")?;
        match self.to {
            Some(to) => write!(f, "{:#x}", cpu::linked(to)),
            None => write!(f, "nowhere"),
        }
    }
}

/// Before the IRET of a handler whose frame leads elsewhere than the one at `frame`: makes the
/// second lead there. True: an address was added, and the frame lies one word lower.
#[unsafe(no_mangle)]
extern "C" fn shadow_stack_settle(regs: &PtRegs, frame: u64) -> bool {
    let found = Frame::at(frame);
    let is_call = found.ssp() == frame + Frame::SIZE - 8;
    found.set(if is_call { 8 } else { 0 }, regs.rip);
    if is_call {
        // SAFETY: the handler that made a call of this has pushed its return address there.
        let return_to = unsafe { (regs.rsp as *const u64).read() };
        write(frame + Frame::SIZE - 8, return_to);
    }
    is_call
}

/// Before a handler returns by RET instead of IRET: makes the word below the SSP to go on with that
/// return's, and says how many words lie before it. `frame` is SSP, and leads where `regs` do.
#[unsafe(no_mangle)]
extern "C" fn shadow_stack_before_return(regs: &PtRegs, frame: u64) -> u64 {
    let at = Frame::at(frame).ssp() - 8;
    write(at, regs.rip);
    (at - frame) / 8
}

/// `cpu::unblock_nmi`, whose IRET wants words on the shadow stack.
pub(super) fn unblock_nmi() {
    if !static_branch_unlikely::<ShadowStack>() {
        return cpu::unblock_nmi();
    }
    let ssp = shadow_stack::ssp();
    let alias = kernel_phys(ssp).expect("shadow stacks are mapped").in_direct_map() as u64;
    // SAFETY: the second address of the shadow stack's page; the function writes three words below
    // SSP, which nothing uses, and leaves SSP as it is.
    unsafe { shadow_unblock_nmi(alias.wrapping_sub(ssp)) };
}

unsafe extern "C" {
    fn shadow_unblock_nmi(to_alias: u64);
}

global_asm!(
    r#"
    // shadow_unblock_nmi(rdi: from an address of the shadow stack to the same in the direct map)
    // An IRET to the next instruction. IF as it is, SSP as it was.
    .globl shadow_unblock_nmi
    .type shadow_unblock_nmi, @function
    shadow_unblock_nmi:
        rdsspq %r8
        // None to the next byte: such a call leaves no word there (SDM 2A, CALL).
        call 1f
        int3
    1:  call 2f
        int3
    2:  call 3f
        int3
    3:  add $24, %rsp
        // SSP is three words lower: SSP, LIP, CS.
        lea (%r8,%rdi), %r9
        lea 4f(%rip), %rax
        mov %cs, %ecx
        mov %r8, -24(%r9)
        mov %rax, -16(%r9)
        mov %rcx, -8(%r9)
        mov %rsp, %rdx
        mov %ss, %r10d
        push %r10
        push %rdx
        pushfq
        push %rcx
        push %rax
        iretq
    4:  jmp __x86_return_thunk
        int3
    .size shadow_unblock_nmi, . - shadow_unblock_nmi
    "#,
    options(att_syntax)
);
