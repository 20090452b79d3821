//! Kernel threads of control: a kernel stack, saved registers, and for programs the FPU image, the
//! segment bases and the address space. What to run is the kernel's choice; this module makes the
//! CPU run it.
//!
//! Reading order: [`Task`] and the assembly of the switch here, `current` (who runs on which CPU,
//! and when the switch may be), `running` (the running thread changes its own registers), `cell`
//! (what a thread alone reaches), [`part`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use entry::{Origin, PtRegs};
use text_patching::jump_label::RO_AFTER_INIT;

use crate::cpu;
use crate::cpu::percpu::{FRAME_LENT, TaskHead};
use crate::cpu::sync::SpinLock;
use crate::cpu::user_shadow_stack::UserShadowStack;
use crate::memory::Space;
use crate::memory::frame::OutOfMemory;
use crate::memory::stack::KernelStack;
use crate::task::debug_registers::DebugRegisters;
use crate::task::fpu::FpuState;
use crate::text::static_branch;
use current::claim;
use running::{read_bases, running, write_bases};

mod cell;
mod current;
pub mod debug_registers;
pub mod fpu;
pub mod part;
mod running;

pub use crate::mitigations::idle_wait;
pub use cell::{OwnedCell, ThreadCell};
pub use current::{Current, CurrentSlot, Schedulable};
#[cfg(feature = "ktest")]
pub(crate) use running::user_ip;
pub use running::{
    exchange_fpu, init_shadow_stack, init_user_bases, leave_space, reset_user_segments,
    set_debug_registers, set_fpu, set_fpu_from_user, set_shadow_stack, set_shadow_stack_pointer,
    set_space, set_speculation, set_user_bases, shadow_stack_pointer, speculation, user_bases,
};
pub(crate) use running::{load_selectors, read_selectors, reload_debug_registers};

/// The machine's part of a thread.
#[repr(C)]
pub struct Task {
    head: TaskHead,
    /// Whether a CPU's registers still hold this task.
    on_cpu: AtomicBool,
    saved: UnsafeCell<Saved>,
    user: Option<UnsafeCell<UserState>>,
    space: SpinLock<Option<Arc<Space>>>,
    stack: KernelStack,
    /// What its program chose about speculation (`mitigations::by_program::flag`).
    speculation: AtomicU32,
    /// What a floor above the scheduler has of the thread ([`part`]).
    part: part::Part,
}

/// Registers of a program that the switch saves.
struct UserState {
    fpu: FpuState,
    fs_base: u64,
    gs_base: u64,
    /// See [`read_selectors`].
    selectors: u64,
    debug: DebugRegisters,
    shadow: UserShadowStack,
}

// SAFETY: the `UnsafeCell`s are touched only by the CPU for which `on_cpu` is true, or before the
// task first runs (through `&mut` or the constructor).
unsafe impl Sync for Task {}
// SAFETY: nothing in a task is tied to a CPU while it is not running.
unsafe impl Send for Task {}

/// Where the registers are of a task that does not run.
#[repr(C)]
struct Saved {
    /// Stack pointer; the stack holds the callee-saved registers.
    rsp: u64,
    /// Address of the token by which a switch takes the task's shadow stack; 0 where there is none.
    shadow_token: u64,
}

/// What a switch pushes, lowest address first.
#[repr(C)]
struct SwitchFrame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbx: u64,
    rbp: u64,
    return_address: u64,
}

global_asm!(
    r#"
    // task_switch(rdi: &mut Saved of the one that goes, rsi: &Saved of the one that comes)
    // Interrupts are masked. Everything the C ABI does not preserve is dead here.
    .globl task_switch
    .type task_switch, @function
    task_switch:
        push %rbp
        push %rbx
        push %r12
        push %r13
        push %r14
        push %r15
        mov %rsp, {RSP}(%rdi)
        mov {RSP}(%rsi), %rsp
        // A nop, or where returns are checked, a jump.
    3:  .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        .pushsection __jump_table, "aR", @progbits
        .balign 4
        .long 3b - ., task_switch_shadow_stack - ., {shadow}
        .popsection
    task_switched_shadow_stack:
        // A nop, or where returns are predicted by what programs left, a jump.
    2:  .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        .pushsection __jump_table, "aR", @progbits
        .balign 4
        .long 2b - ., task_fill_return_stack - ., {key}
        .popsection
    task_filled_return_stack:
        pop %r15
        pop %r14
        pop %r13
        pop %r12
        pop %rbx
        pop %rbp
        jmp __x86_return_thunk
        int3
    task_fill_return_stack:
        call fill_return_stack
        jmp task_filled_return_stack
    // The token of the one that comes leaves one that leads back; by it SAVEPREVSSP puts a token
    // on the shadow stack that goes, in the word below its SSP.
    task_switch_shadow_stack:
        rdsspq %rax
        sub $8, %rax
        mov %rax, {SHADOW_TOKEN}(%rdi)
        mov {SHADOW_TOKEN}(%rsi), %rax
        rstorssp (%rax)
        saveprevssp
        jmp task_switched_shadow_stack
    .size task_switch, . - task_switch

    // First code of a new kernel thread. r12: the closure, from `Task::new_kernel`.
    .globl task_start_kernel
    .type task_start_kernel, @function
    task_start_kernel:
        mov %r12, %rdi
        xor %ebp, %ebp
        push %rbp
        call task_run_closure
        ud2
    .size task_start_kernel, . - task_start_kernel

    // First code of a new program thread: the stack holds its PtRegs.
    .globl task_start_user
    .type task_start_user, @function
    task_start_user:
        mov %rsp, %rdi
        call task_first_return
        jmp return_to_user
        int3
    .size task_start_user, . - task_start_user
    "#,
    key = const static_branch::id::FILL_RETURN_STACK | RO_AFTER_INIT,
    shadow = const static_branch::id::SHADOW_STACK | RO_AFTER_INIT,
    RSP = const offset_of!(Saved, rsp),
    SHADOW_TOKEN = const offset_of!(Saved, shadow_token),
    options(att_syntax)
);

unsafe extern "C" {
    fn task_switch(save_to: *mut Saved, next: *const Saved);
    fn task_start_kernel();
    fn task_start_user();
}

unsafe extern "Rust" {
    safe fn limen_task_started();
}

/// The closure a kernel thread runs. It must not return.
type KernelMain = Box<dyn FnOnce() + Send>;

extern "C" fn run_closure_body(main: *mut KernelMain) -> ! {
    limen_task_started();
    cpu::irq_enable();
    // SAFETY: `new_kernel` leaked this box into the start frame, and each start frame runs once.
    let main = unsafe { Box::from_raw(main) };
    main();
    panic!("a kernel thread returned");
}

#[unsafe(no_mangle)]
extern "C" fn task_run_closure(main: *mut KernelMain) -> ! {
    run_closure_body(main)
}

#[unsafe(no_mangle)]
extern "C" fn task_first_return(regs: &mut PtRegs) -> bool {
    limen_task_started();
    let by_sysret = crate::entry::prepare_return::<{ Origin::NewThread as usize }>(regs);
    crate::cpu::record::exit();
    by_sysret
}

impl Task {
    fn new(user: Option<UserState>, space: Option<Arc<Space>>) -> Result<Task, OutOfMemory> {
        Ok(Task {
            head: TaskHead { work: AtomicU32::new(0) },
            on_cpu: AtomicBool::new(false),
            saved: UnsafeCell::new(Saved { rsp: 0, shadow_token: 0 }),
            user: user.map(UnsafeCell::new),
            space: SpinLock::new(space),
            stack: KernelStack::new()?,
            speculation: AtomicU32::new(0),
            part: part::Part::default(),
        })
    }

    /// Puts `value` below `top` on the new stack and returns its address.
    fn push<T>(top: u64, value: T) -> u64 {
        let at = top - size_of::<T>() as u64;
        // SAFETY: the stack is mapped, new, and larger than the few structures pushed here.
        unsafe { (at as *mut T).write(value) };
        at
    }

    fn start_frame(address: unsafe extern "C" fn(), r12: u64) -> SwitchFrame {
        SwitchFrame {
            r15: 0,
            r14: 0,
            r13: 0,
            r12,
            rbx: 0,
            rbp: 0,
            return_address: address as usize as u64,
        }
    }

    /// Has the first switch to the task go to `address`, with its stack as it is above `at`.
    fn start_at(&mut self, at: u64, address: unsafe extern "C" fn(), r12: u64) {
        let shadow_token = self.stack.begin_shadow(address as usize as u64);
        let rsp = Self::push(at, Self::start_frame(address, r12));
        *self.saved.get_mut() = Saved { rsp, shadow_token };
    }

    /// A thread of the kernel that runs `main`, which must never return.
    pub fn new_kernel(main: impl FnOnce() + Send + 'static) -> Result<Task, OutOfMemory> {
        let mut task = Task::new(None, None)?;
        let main: Box<KernelMain> = Box::new(Box::new(main));
        let argument = Box::into_raw(main) as u64;
        task.start_at(task.stack.top(), task_start_kernel, argument);
        Ok(task)
    }

    /// A thread of a program that starts with the registers `regs` in `space`.
    pub fn new_user(regs: &PtRegs, fpu: FpuState, space: Arc<Space>) -> Result<Task, OutOfMemory> {
        let debug = DebugRegisters::default();
        let shadow = UserShadowStack::OFF;
        let user = UserState { fpu, fs_base: 0, gs_base: 0, selectors: 0, debug, shadow };
        let mut task = Task::new(Some(user), Some(space))?;
        *task.speculation.get_mut() = running().speculation.load(Ordering::Relaxed);
        let at = Self::push(task.stack.top(), *regs);
        task.start_at(at, task_start_user, 0);
        Ok(task)
    }

    /// The task of a CPU's boot thread, which already runs on the boot stack.
    pub fn adopt_boot_thread() -> Result<Task, OutOfMemory> {
        Task::new(None, None)
    }

    /// The thread that runs ends: once it is switched from, no CPU runs it again, and its part
    /// goes.
    pub fn end(&self) {
        self.part.end();
    }

    /// Gives up a thread that has never run and never will: its part goes.
    pub fn abandon(&self) {
        claim(self);
        self.part.release();
    }

    /// Sets bits of the exit-work word (bit 31 is the machine's); the program sees the kernel again
    /// before it runs on. If it runs on another CPU, that CPU also needs an interrupt.
    #[inline(always)]
    pub fn set_work(&self, bits: u32) {
        self.head.work.fetch_or(bits & !FRAME_LENT, Ordering::SeqCst);
    }

    /// Clears bits of the exit-work word and returns what it was.
    #[inline(always)]
    pub fn take_work(&self, bits: u32) -> u32 {
        self.head.work.fetch_and(!bits | FRAME_LENT, Ordering::SeqCst) & !FRAME_LENT
    }

    /// The exit-work word.
    #[inline(always)]
    pub fn work(&self) -> u32 {
        self.head.work.load(Ordering::SeqCst) & !FRAME_LENT
    }

    /// Whether a CPU runs the task right now.
    pub fn is_on_cpu(&self) -> bool {
        self.on_cpu.load(Ordering::Acquire)
    }

    /// A copy of the registers with which the program entered the kernel, of the task that runs
    /// this code or one that no CPU runs. None while another CPU has the task, and without a
    /// program. A CPU that wants to run the task meanwhile waits, or takes another one.
    pub fn entry_registers(&self) -> Option<PtRegs> {
        self.user.as_ref()?;
        if core::ptr::eq(self, running()) {
            return Some(self.copy_user_regs());
        }
        let _irq = crate::cpu::sync::IrqGuard::new();
        self.on_cpu.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let regs = self.copy_user_regs();
        self.on_cpu.store(false, Ordering::Release);
        Some(regs)
    }

    /// Only for the running task, or while `on_cpu` is the caller's.
    fn copy_user_regs(&self) -> PtRegs {
        // SAFETY: the program entered the kernel, or will start, through the frame at the top of
        // the stack. Only code of this very thread changes it, which is this code or does not run.
        // Words are copied, and no reference to the frame is made: the call holds one.
        unsafe { self.user_regs().read_volatile() }
    }

    /// The saved registers of the program, at the top of its kernel stack. Only for the task that
    /// runs, or one the caller knows to be stopped inside the kernel.
    fn user_regs(&self) -> *mut PtRegs {
        (self.stack.top() - size_of::<PtRegs>() as u64) as *mut PtRegs
    }

    fn user_state(&self) -> Option<*mut UserState> {
        self.user.as_ref().map(UnsafeCell::get)
    }

    fn save_user(&self) {
        let Some(user) = self.user_state() else { return };
        // SAFETY: this CPU runs the task (`on_cpu`), interrupts are masked: nobody else looks.
        let user = unsafe { &mut *user };
        user.fpu.save();
        (user.fs_base, user.gs_base) = read_bases();
        user.selectors = read_selectors();
        user.shadow.save();
    }

    fn load_user(&self) {
        let Some(user) = self.user_state() else { return };
        // SAFETY: as in `save_user`; `claim` made this CPU the only one with the task.
        let user = unsafe { &*user };
        user.fpu.restore();
        // Nearly all programs leave them null.
        if user.selectors | read_selectors() != 0 {
            load_selectors(user.selectors);
        }
        write_bases(user.fs_base, user.gs_base);
        user.debug.load();
        user.shadow.load();
    }
}
