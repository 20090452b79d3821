//! The Rust side of `entry.S`: each way into the kernel as one function, and the one decision about
//! the way back.
//!
//! Reading order: [`begin_call`], [`vector_from_user`], [`prepare_return`], then the kernel's own
//! faults.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};
use core::sync::atomic::Ordering;

use context_tracking::state;
use entry::{Exit, IretReason, Origin, PtRegs, decide, flags, selector};

use text_patching::call_depth;

use crate::context_tracking::ipi::{self, InterruptKind};
use crate::context_tracking::word::ALWAYS_PENDING;
use crate::cpu::percpu::{
    self, CpuContext, CpuLocal, ExitCounts, FRAME_LENT, SYSRET, TaskHead, tracking,
};
use crate::cpu::pkey::Pkru;
use crate::cpu::{self, apic, irq, msr, record};
use crate::memory::stack::KERNEL_STACK_SIZE;
use crate::memory::{USER_END, uaccess};
use crate::mitigations::behind_guests;
use crate::panic;
use crate::text::static_branch::{self, StaticKey, at_boot, static_branch_unlikely};
use crate::text::{cfi, text_poke, untrain};

mod call_regs;
pub mod descriptors;
pub(crate) mod shadow_stack;
pub mod trace;

pub use call_regs::CallRegs;

global_asm!(
    include_str!("../cpu/if_key.S"),
    include_str!("entry.S"),
    // Others that include it may lie in the same piece of assembly.
    ".purgem if_key",
    USER_RSP = const offset_of!(CpuLocal, user_rsp),
    KERNEL_STACK_TOP = const offset_of!(CpuLocal, kernel_stack_top),
    USER_RDI = const offset_of!(CpuLocal, user_rdi),
    ENTRY_STACK_TOP = const offset_of!(CpuLocal, entry_stack_top),
    PTI = const offset_of!(CpuLocal, pti),
    CHECK_SYSRET = const cfg!(feature = "ktest") as u64,
    USER_LIMIT = const offset_of!(CpuLocal, user_limit),
    NEVER_IN_R11 = const flags::TF | flags::RF | flags::VM,
    TRACKING = const offset_of!(CpuLocal, tracking),
    TRACKING_CR3 = const tracking::CR3,
    TRACKING_PENDING = const tracking::PENDING,
    CONTEXT = const offset_of!(CpuLocal, context) + offset_of!(CpuContext, state),
    IN_KERNEL = const state::IN_KERNEL,
    IN_KERNEL_BIT = const state::IN_KERNEL_BIT,
    ALWAYS_PENDING = const ALWAYS_PENDING,
    KERNEL_CR3 = const offset_of!(CpuLocal, kernel_cr3),
    USER_CR3 = const offset_of!(CpuLocal, user_cr3),
    USER_CR3_KEEP = const offset_of!(CpuLocal, user_cr3_keep),
    USER_CR3_BITS = const crate::cpu::Cr3::USER_BITS,
    RAX = const offset_of!(PtRegs, rax),
    RDI = const offset_of!(PtRegs, rdi),
    RIP = const offset_of!(PtRegs, rip),
    RSP = const offset_of!(PtRegs, rsp),
    RFLAGS = const offset_of!(PtRegs, rflags),
    ORIG_RAX = const offset_of!(PtRegs, orig_rax),
    IN_NMI = const offset_of!(CpuLocal, in_nmi),
    IRET_FRAME_SIZE = const size_of::<PtRegs>() - offset_of!(PtRegs, rip),
    USER_CS = const selector::USER_CS,
    USER_DS = const selector::USER_DS,
    MINUS_ENOSYS = const -38,
    EXIT_WORK = const offset_of!(CpuLocal, exit_work),
    RUNNING_TASK = const offset_of!(CpuLocal, task),
    WORK = const offset_of!(TaskHead, work),
    NEVER_BY_SYSRET = const entry::NEVER_BY_SYSRET,
    SYSCALL_SYSRETS = const percpu::exit_counter(Origin::Syscall as usize, SYSRET),
    CS = const offset_of!(PtRegs, cs),
    RSP_ABOVE_ORIG_RAX = const offset_of!(PtRegs, rsp) - offset_of!(PtRegs, orig_rax),
    GS_BASE_MSR = const msr::GS_BASE,
    STACK_SIZE = const KERNEL_STACK_SIZE,
    CPU_ABOVE_STACK_MASK = const -15i32,
    PT_REGS_SIZE = const size_of::<PtRegs>(),
    PT_REGS_WORDS = const size_of::<PtRegs>() / 8,
    KERNEL_DS = const selector::KERNEL_DS,
    SPEC_CTRL = const offset_of!(CpuLocal, spec_ctrl),
    SPEC_CTRL_USER = const offset_of!(CpuLocal, spec_ctrl_user),
    PRED_CMD = const offset_of!(CpuLocal, pred_cmd),
    SPEC_CTRL_MSR = const msr::SPEC_CTRL,
    PRED_CMD_MSR = const msr::PRED_CMD,
    SYSCALL_GUARD = const at_boot(static_branch::id::SYSCALL_GUARD),
    VECTOR_GUARD = const at_boot(static_branch::id::VECTOR_GUARD),
    ENTRY_IBPB = const at_boot(static_branch::id::ENTRY_IBPB),
    KERNEL_IBRS = const at_boot(static_branch::id::KERNEL_IBRS),
    ENTRY_BHB_SHORT = const at_boot(static_branch::id::ENTRY_BHB_SHORT),
    ENTRY_BHB_LONG = const at_boot(static_branch::id::ENTRY_BHB_LONG),
    NO_FENCE_USER = const at_boot(static_branch::id::NO_FENCE_USER),
    NO_FENCE_KERNEL = const at_boot(static_branch::id::NO_FENCE_KERNEL),
    NO_VERW_ON_EXIT = const at_boot(static_branch::id::NO_VERW_ON_EXIT),
    UNTRAIN = const at_boot(static_branch::id::UNTRAIN),
    UNTRAIN_SAFE = const at_boot(static_branch::id::UNTRAIN_SAFE),
    UNTRAIN_ALIAS = const at_boot(static_branch::id::UNTRAIN_ALIAS),
    COUNT_CALLS = const at_boot(static_branch::id::COUNT_CALLS),
    SAFE_RET = const text_patching::untrain::SAFE_RET,
    CALL_DEPTH = const crate::text::call_depth::COUNTER,
    ONE_CALL = const call_depth::called(call_depth::NONE).trailing_zeros(),
    SHADOW_STACK = const at_boot(static_branch::id::SHADOW_STACK),
    BUSY = const crate::cpu::shadow_stack::BUSY,
    NO_STACK_OFFSET = const at_boot(static_branch::id::NO_STACK_OFFSET),
    STACK_SECRET = const offset_of!(CpuLocal, stack_secret),
    STACK_STEP = const STACK_STEP,
    options(att_syntax)
);

/// A CPU exception that a program caused (SDM 3A, 6.15).
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// Vector number, 0 to 31.
    pub vector: u8,
    /// Error code, 0 if the exception has none.
    pub error: u64,
    /// For a page fault the address, for a debug exception DR6; else 0.
    pub address: u64,
}

/// Vectors by name.
pub mod vector {
    #![expect(missing_docs, reason = "the names of the manual")]
    pub const DIVIDE: u8 = 0;
    pub const DEBUG: u8 = 1;
    pub const NMI: u8 = 2;
    pub const BREAKPOINT: u8 = 3;
    pub const OVERFLOW: u8 = 4;
    pub const BOUND: u8 = 5;
    pub const INVALID_OPCODE: u8 = 6;
    pub const DEVICE_NOT_AVAILABLE: u8 = 7;
    pub const DOUBLE_FAULT: u8 = 8;
    pub const INVALID_TSS: u8 = 10;
    pub const SEGMENT_NOT_PRESENT: u8 = 11;
    pub const STACK: u8 = 12;
    pub const GENERAL_PROTECTION: u8 = 13;
    pub const PAGE_FAULT: u8 = 14;
    pub const X87: u8 = 16;
    pub const ALIGNMENT: u8 = 17;
    pub const MACHINE_CHECK: u8 = 18;
    pub const SIMD: u8 = 19;
    pub const CONTROL_PROTECTION: u8 = 21;
}

/// A page fault in user space, caused by a program or by the kernel on its behalf.
#[derive(Clone, Copy, Debug)]
pub struct PageFault {
    /// The address, below [`USER_END`].
    pub address: u64,
    /// It was a write; any use of a shadow stack counts as one.
    pub write: bool,
    /// It was the use of a shadow stack.
    pub shadow: bool,
    /// It was an instruction fetch.
    pub exec: bool,
    /// A page was there, without the right. False if that is not known.
    pub present: bool,
    /// What the protection keys of the program that accesses it allow.
    pub keys: Pkru,
}

impl PageFault {
    /// The kernel's own access, which no protection key keeps from a page.
    pub const fn by_kernel(address: u64, write: bool) -> PageFault {
        PageFault { address, write, shadow: false, exec: false, present: false, keys: Pkru::ALL }
    }

    /// What the CPU says of one, by its error code.
    pub fn of_code(address: u64, code: u64) -> PageFault {
        let has = |bit: u64| code & bit != 0;
        PageFault {
            address,
            write: has(fault_code::WRITE | fault_code::SHADOW_STACK),
            shadow: has(fault_code::SHADOW_STACK),
            exec: has(fault_code::FETCH),
            present: has(fault_code::PRESENT),
            keys: Pkru::read(),
        }
    }
}

// The kernel, as the machine calls it. `machine/image` binds these names.
unsafe extern "Rust" {
    /// Exit work is pending. Interrupts are enabled.
    safe fn limen_exit_work(regs: &mut PtRegs, work: u32);
    /// An exception of a program, page faults included. Interrupts are enabled.
    safe fn limen_user_exception(regs: &mut PtRegs, exception: Exception);
    /// The registers cannot be restored: the program must die or get a signal frame.
    safe fn limen_bad_return(regs: &mut PtRegs);
    /// A fault of the kernel in user space. Interrupts are enabled. Whether to try again.
    safe fn limen_kernel_page_fault(fault: PageFault) -> bool;
    /// The tick of this CPU. Interrupts are masked.
    safe fn limen_timer_tick(from_user: bool);
    /// Another CPU wants this one to look at its run queue. Interrupts are masked.
    safe fn limen_reschedule();
}

/// The begin of a system call, for `entry.S`: the image puts this and the kernel's function
/// together under the name that file calls, all inlined. What it returns is the call's result, and
/// the way out is that file's. Interrupts are masked before.
///
/// # Safety
/// Called by the entry code for the program that runs, whose way out comes behind it.
#[inline(always)]
pub unsafe fn begin_call(regs: &mut PtRegs) -> &mut CallRegs {
    #[cfg(feature = "ktest")]
    crate::ktest::entered(regs);
    cpu::irq_enable();
    // SAFETY: the frame is that of the running program's call, whose way out comes behind it.
    unsafe { CallRegs::of(regs) }
}

/// The end of a system call that has work to do or a frame that must be looked at; `entry.S` ends
/// the others. True: return by SYSRET.
#[unsafe(no_mangle)]
extern "C" fn prepare_return_from_call(regs: &mut PtRegs) -> bool {
    prepare_return::<{ Origin::Syscall as usize }>(regs)
}

/// What `entry.S` sends back by SYSRET without a look must pass the table of all frames.
#[cfg(feature = "ktest")]
#[unsafe(no_mangle)]
extern "C" fn unlent_frame(regs: &mut PtRegs) {
    let exit = decide::<{ percpu::SYSRET_END }>(regs);
    assert_eq!(exit, Exit::Sysret, "a frame that was not lent");
}

/// [`begin_call`] where calls are instrumented: counted, recorded, or sent back by IRET always.
/// Others do not pay for the questions.
///
/// # Safety
/// As [`begin_call`].
pub unsafe fn begin_instrumented_call(regs: &mut PtRegs, number: u64) -> &mut CallRegs {
    record::called(number, [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9]);
    // SAFETY: the entry code calls for the program that runs, and `end_instrumented_call` comes
    // behind it.
    unsafe { begin_call(regs) }
}

/// The end of those, with the call's result. True: return by SYSRET.
///
/// # Safety
/// Called by the entry code for the program that runs, whose return it prepares.
pub unsafe fn end_instrumented_call(regs: &mut PtRegs, result: u64) -> bool {
    regs.rax = result;
    let by_sysret = prepare_return::<{ Origin::Syscall as usize }>(regs);
    record::returned(regs.rax);
    by_sysret
}

#[unsafe(no_mangle)]
extern "C" fn vector_from_user(regs: &mut PtRegs, vector: u64) -> bool {
    uaccess::close_in_handler();
    #[cfg(feature = "ktest")]
    crate::ktest::handler::began(regs, crate::ktest::handler::Place::User);
    record::entered(vector as u8);
    #[cfg(feature = "ktest")]
    crate::ktest::defer::look(crate::ktest::defer::Look::Vector);
    if vector < 32 {
        user_exception(regs, vector as u8);
    } else {
        // Not in a system call: nothing to restart, whatever RAX holds.
        regs.orig_rax = u64::MAX;
        percpu::in_handler(|| interrupt(vector as u8, true));
    }
    let by_sysret = prepare_return::<{ Origin::Vector as usize }>(regs);
    record::exit();
    if by_sysret {
        cpu::repair_ss();
    }
    by_sysret
}

fn user_exception(regs: &mut PtRegs, number: u8) {
    let address = match number {
        vector::PAGE_FAULT => cpu::read_cr2(),
        vector::DEBUG => cpu::take_dr6(),
        _ => 0,
    };
    match number {
        vector::NMI => {
            ipi::count_received(InterruptKind::Nmi, true);
            panic::nmi(regs);
            return shadow_stack::unblock_nmi();
        }
        vector::MACHINE_CHECK => panic!("machine check while a program ran at {:#x}", regs.rip),
        _ => {}
    }
    // The error code lies where the system call number would: -1 says "not in a system call".
    let error = core::mem::replace(&mut regs.orig_rax, u64::MAX);
    cpu::irq_enable();
    limen_user_exception(regs, Exception { vector: number, error, address });
}

/// Does the exit work and decides how to return. Interrupts are masked when it returns, and stay so
/// until the program runs. True: by SYSRET.
#[inline(never)]
pub(crate) fn prepare_return<const ORIGIN: usize>(regs: &mut PtRegs) -> bool {
    loop {
        cpu::irq_disable();
        // SAFETY: what is about to return to a program is that program's thread.
        let work = unsafe { percpu::pending_work() };
        let own_work = percpu::local().exit_work.get();
        if work | own_work != 0 {
            if work & !FRAME_LENT != 0 {
                cpu::irq_enable();
                limen_exit_work(regs, work & !FRAME_LENT);
                continue;
            }
            if work != 0 {
                // SAFETY: what is about to return to a program is that program's thread.
                unsafe { percpu::forget_lent_frame() };
            }
            if own_work != 0 {
                behind_guests::before_user_mode();
            }
        }
        match decide::<USER_END>(regs) {
            Exit::Sysret if static_branch_unlikely::<SysretOff>() => {
                return count_iret(ORIGIN, IretReason::SwitchedOff);
            }
            Exit::Sysret => {
                percpu::count_exit::<ORIGIN, SYSRET>();
                return true;
            }
            Exit::Iret(reason) => {
                #[cfg(feature = "ktest")]
                crate::ktest::handler::spoil(regs);
                return count_iret(ORIGIN, reason);
            }
            Exit::Refuse => {
                cpu::irq_enable();
                limen_bad_return(regs);
            }
        }
    }
}

/// On with `sysret=off`: every return is an IRET, so that its price can be seen.
struct SysretOff;

impl StaticKey for SysretOff {
    const ID: u32 = static_branch::id::SYSRET_OFF;
}

/// Switches SYSRET off if the kernel's command line says so.
pub fn apply_options(command_line: &str) {
    if formats::params::find(command_line, "sysret") != Some("off") {
        return;
    }
    if static_branch::set::<SysretOff>(true).is_ok() {
        instrument_calls();
    } else {
        crate::log!("sysret=off: not switched off, this image has no site tables");
    }
}

/// What `stack_secret`, an odd number, is multiplied by at each call: 5 modulo 8, so that a quarter
/// of all numbers come before the first again (Knuth 2, 3.2.1.2), and no longer than an
/// instruction's immediate. Offsets take the highest bits, which nobody sees.
const STACK_STEP: i32 = 0x7ac3_9b15;

/// Off: every system call begins at the same address of its stack.
enum NoStackOffset {}

impl StaticKey for NoStackOffset {
    const ID: u32 = static_branch::id::NO_STACK_OFFSET;
}

/// Chooses whether kernel stacks have a random offset (`randomize_kstack_offset=`). On the first
/// CPU, while the door to entry text is open.
pub(crate) fn choose_stack_offset(command_line: &str) {
    let off = match formats::params::find(command_line, "randomize_kstack_offset") {
        Some("off" | "0" | "n") => true,
        None | Some("on" | "1" | "y") => false,
        Some(other) => {
            crate::log!("warning: randomize_kstack_offset: ignoring unknown value {other}");
            false
        }
    };
    if off && static_branch::set::<NoStackOffset>(true).is_err() {
        crate::log!("randomize_kstack_offset=off: this image has no site tables, it stays on");
    }
    renew_stack_secret();
}

/// Gives this CPU's offsets of kernel stacks another beginning.
pub(crate) fn renew_stack_secret() {
    percpu::local().stack_secret.set(crate::entropy::random_u64() | 1);
}

/// Makes all CPUs take the entries that instrument them, for good.
pub fn instrument_calls() {
    crate::entry::descriptors::instrument_calls();
    crate::context_tracking::tlb::reload_entries();
}

/// The counts of CPU `cpu` since it started.
pub fn exit_counts(cpu: usize) -> &'static ExitCounts {
    &percpu::of(cpu).exits
}

/// Returns to programs after one kind of entry, on all CPUs: by SYSRET, and by IRET.
pub fn exits_of(origin: Origin) -> (u64, u64) {
    let mut sums = (0, 0);
    for cpu in 0..cpu::cpu_count() {
        let row = exit_counts(cpu)[origin as usize].each_ref().map(|n| n.load(Ordering::Relaxed));
        sums.0 += row[SYSRET];
        sums.1 += row.iter().sum::<u64>() - row[SYSRET];
    }
    sums
}

#[inline(never)]
fn count_iret(origin: usize, reason: IretReason) -> bool {
    // Only this CPU writes the word, and interrupts are masked: no locked instruction is needed.
    let word = &percpu::local().exits[origin][1 + reason as usize];
    word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    false
}

#[unsafe(no_mangle)]
extern "C" fn vector_from_kernel_rust(regs: &mut PtRegs, number: u64) {
    serve_kernel(regs, number);
    untrain::finish_return(regs);
}

#[inline(always)]
fn serve_kernel(regs: &mut PtRegs, number: u64) {
    uaccess::close_in_handler();
    #[cfg(feature = "ktest")]
    crate::ktest::handler::began(regs, crate::ktest::handler::Place::Kernel);
    match number as u8 {
        vector::PAGE_FAULT => kernel_page_fault(regs),
        vector::GENERAL_PROTECTION => {
            if !fix_up(regs) && !cfi::on_fault(regs, false) {
                panic::kernel_exception(regs, number as u8, 0);
            }
        }
        vector::INVALID_OPCODE => {
            if !cfi::on_undefined(regs) {
                panic::kernel_exception(regs, vector::INVALID_OPCODE, 0);
            }
        }
        vector::CONTROL_PROTECTION => {
            if !control_protection(regs) {
                panic::kernel_exception(regs, vector::CONTROL_PROTECTION, 0);
            }
        }
        vector::BREAKPOINT => {
            if !text_poke::on_int3(regs) {
                panic::kernel_exception(regs, vector::BREAKPOINT, 0);
            }
        }
        exception @ 0..=31 => panic::kernel_exception(regs, exception, 0),
        external => {
            record::interrupt(external);
            percpu::in_handler(|| interrupt(external, false));
            record::exit();
        }
    }
}

/// A #CP of the kernel, by its error code (SDM 3A, 6.15). True: the machine goes on.
fn control_protection(regs: &mut PtRegs) -> bool {
    const NEAR_RETURN: u64 = 1;
    const NO_LANDING_PAD: u64 = 3;
    let error = regs.orig_rax;
    #[cfg(feature = "ktest")]
    if error == NEAR_RETURN && shadow_stack::claim(regs) {
        return true;
    }
    match error {
        NEAR_RETURN => panic::at(format_args!("{}", shadow_stack::Mismatch::of(regs)), regs),
        NO_LANDING_PAD => cfi::on_control_protection(regs),
        _ => false,
    }
}

/// Error code bits of a page fault (SDM 3A, 4.7).
pub mod fault_code {
    /// The page is mapped, without the right.
    pub const PRESENT: u64 = 1;
    /// The access was a write.
    pub const WRITE: u64 = 1 << 1;
    /// A program's access.
    pub const USER: u64 = 1 << 2;
    /// The access was an instruction fetch.
    pub const FETCH: u64 = 1 << 4;
    /// The access was one to a shadow stack: of a call, a return or WRUSS.
    pub const SHADOW_STACK: u64 = 1 << 6;
}

fn kernel_page_fault(regs: &mut PtRegs) {
    let address = cpu::read_cr2();
    let may_sleep = regs.rflags & flags::IF != 0 && percpu::may_sleep();
    let is_copy = uaccess::fixup(regs.rip).is_some();
    if address < USER_END && is_copy && may_sleep {
        let fault = PageFault::of_code(address, regs.orig_rax);
        cpu::irq_enable();
        let retry = limen_kernel_page_fault(fault);
        cpu::irq_disable();
        if retry {
            return;
        }
    }
    // Only copies to and from programs have an entry in the exception table, and only an address in
    // user space is theirs to miss.
    #[cfg(feature = "ktest")]
    if crate::ktest::is_probe(regs.rip) && fix_up(regs) {
        return;
    }
    let is_fetch = regs.orig_rax & fault_code::FETCH != 0;
    let is_served = address < USER_END && fix_up(regs) || cfi::on_fault(regs, is_fetch);
    if !is_served {
        panic::kernel_exception(regs, vector::PAGE_FAULT, address);
    }
}

fn fix_up(regs: &mut PtRegs) -> bool {
    let target = uaccess::fixup(regs.rip);
    if let Some(target) = target {
        regs.rip = target;
    }
    target.is_some()
}

fn interrupt(number: u8, from_user: bool) {
    ipi::count_received(kind(number), from_user);
    match number {
        apic::VECTOR_TIMER => {
            apic::end_of_interrupt();
            limen_timer_tick(from_user);
        }
        apic::VECTOR_RESCHEDULE => {
            apic::end_of_interrupt();
            limen_reschedule();
        }
        apic::VECTOR_TLB | apic::VECTOR_SYNC => {
            apic::end_of_interrupt();
            crate::context_tracking::tlb::serve();
        }
        apic::VECTOR_SPURIOUS => {}
        device => {
            irq::dispatch(device);
            apic::end_of_interrupt();
        }
    }
}

/// What an interrupt's vector stands for in the accounts.
fn kind(number: u8) -> InterruptKind {
    match number {
        apic::VECTOR_TIMER => InterruptKind::Timer,
        apic::VECTOR_RESCHEDULE => InterruptKind::Reschedule,
        apic::VECTOR_TLB => InterruptKind::Tlb,
        apic::VECTOR_SYNC => InterruptKind::Sync,
        apic::VECTOR_SPURIOUS => InterruptKind::Spurious,
        _ => InterruptKind::Device,
    }
}

#[unsafe(no_mangle)]
extern "C" fn paranoid_from_kernel(regs: &mut PtRegs, number: u64) {
    serve_paranoid(regs, number);
    untrain::finish_return(regs);
}

#[inline(always)]
fn serve_paranoid(regs: &mut PtRegs, number: u64) {
    uaccess::close_in_handler();
    #[cfg(feature = "ktest")]
    crate::ktest::handler::began(regs, crate::ktest::handler::Place::Paranoid);
    match number as u8 {
        vector::NMI => {
            // What interrupts this handler must not let the next NMI in.
            let in_nmi = percpu::local().in_nmi.replace(1);
            ipi::count_received(InterruptKind::Nmi, false);
            #[cfg(feature = "ktest")]
            crate::ktest::defer::look(crate::ktest::defer::Look::Nmi);
            #[cfg(feature = "ktest")]
            crate::ktest::window::landed(regs, vector::NMI);
            panic::nmi(regs);
            percpu::local().in_nmi.set(in_nmi);
        }
        // A single-step or data breakpoint that a program armed and the kernel hit: TF and the
        // debug registers are the program's business, and FMASK cleared TF already.
        // A stale DR6 would be taken for the cause of the program's next one.
        vector::DEBUG => {
            #[cfg(feature = "ktest")]
            if crate::ktest::step(regs) {
                return;
            }
            #[cfg(feature = "ktest")]
            crate::ktest::defer::at_point(regs);
            regs.rflags &= !flags::TF;
            cpu::take_dr6();
        }
        #[cfg(feature = "ktest")]
        vector::MACHINE_CHECK if crate::ktest::window::landed(regs, vector::MACHINE_CHECK) => {}
        other => panic::kernel_exception(regs, other, cpu::read_cr2()),
    }
}
