//! Kernel threads of control: a kernel stack, saved registers, and for programs the FPU image, the
//! segment bases and the address space. What to run is the kernel's choice; this module makes the
//! CPU run it.
//!
//! A switch happens in [`CurrentSlot::switch_to`]. The task that goes may at once be picked by
//! another CPU, before its registers are saved here: `on_cpu` makes that CPU wait for the moment
//! the stack is free. The reference to the task that went is dropped by the one that came, because
//! the last reference frees the very stack the switch ran on.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::arch::global_asm;
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use entry::{Origin, PtRegs};
use text_patching::jump_label::RO_AFTER_INIT;

use crate::cpu::percpu::{self, FRAME_LENT, TaskHead};
use crate::cpu::shadow_stack::ShadowStack;
use crate::cpu::sync::{Once, SpinLock};
use crate::cpu::user_shadow_stack::UserShadowStack;
use crate::cpu::{self, MAX_CPUS, features, msr, wrmsr};
use crate::memory::frame::OutOfMemory;
use crate::memory::stack::KernelStack;
use crate::memory::{self, Space};
use crate::task::debug_registers::DebugRegisters;
use crate::task::fpu::FpuState;
use crate::text::static_branch::{self, static_branch_unlikely};

pub use crate::mitigations::idle_wait;

pub mod debug_registers;
pub mod fpu;
pub mod part;

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

/// The FS base, and the GS base that the program has (the inactive one while in the kernel).
fn read_bases() -> (u64, u64) {
    let fs = if features().fsgsbase {
        let fs;
        // SAFETY: FSGSBASE is enabled in CR4; reading has no effect.
        unsafe {
            core::arch::asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags));
        }
        fs
    } else {
        cpu::rdmsr(msr::FS_BASE)
    };
    (fs, cpu::rdmsr(msr::KERNEL_GS_BASE))
}

/// DS, ES, FS and GS, from the lowest 16 bits on.
#[inline(always)]
pub(crate) fn read_selectors() -> u64 {
    let (ds, es, fs, gs): (u64, u64, u64, u64);
    // SAFETY: reading selectors has no effect.
    unsafe {
        core::arch::asm!("mov {:e}, ds", "mov {:e}, es", "mov {:e}, fs", "mov {:e}, gs",
                         out(reg) ds, out(reg) es, out(reg) fs, out(reg) gs,
                         options(nomem, nostack, preserves_flags));
    }
    ds | es << 16 | fs << 32 | gs << 48
}

/// Loads what [`read_selectors`] gave. The program's bases must be loaded after it. Interrupts are
/// masked.
#[cold]
pub(crate) fn load_selectors(selectors: u64) {
    let [ds, es, fs, gs] = [0, 16, 32, 48].map(|at| (selectors >> at) as u32 & 0xffff);
    // SAFETY: a program had loaded them, from a GDT that never changes, so they do not fault; the
    // kernel uses no segment but GS, whose base is out of the way in between.
    unsafe {
        core::arch::asm!("mov ds, {:e}", "mov es, {:e}", "mov fs, {:e}",
                         "swapgs", "mov gs, {:e}", "swapgs",
                         in(reg) ds, in(reg) es, in(reg) fs, in(reg) gs,
                         options(nostack, preserves_flags));
    }
}

fn write_bases(fs: u64, gs: u64) {
    let (fs, gs) = (canonical(fs), canonical(gs));
    if features().fsgsbase {
        // SAFETY: FSGSBASE is enabled; the value is canonical.
        unsafe {
            core::arch::asm!("wrfsbase {}", in(reg) fs, options(nomem, nostack, preserves_flags));
        }
    } else {
        // SAFETY: FS is the program's; the kernel does not use it. Canonical as above.
        unsafe { wrmsr(msr::FS_BASE, fs) };
    }
    // SAFETY: the inactive GS base is the program's; canonical as above.
    unsafe { wrmsr(msr::KERNEL_GS_BASE, gs) };
}

/// A thread of the kernel, as far as the switch is concerned.
pub trait Schedulable: Send + Sync + 'static {
    /// Its machine part: a field of the value itself, always the same. The switch checks it.
    fn task(&self) -> &Task;
}

/// Where in a thread of type `T` its task lies. Panics if it lies elsewhere: then two threads could
/// have one task.
fn place_of_task<T: Schedulable>(thread: &T) -> usize {
    let start: *const T = thread;
    let task: *const Task = thread.task();
    let place = task.addr().wrapping_sub(start.addr());
    assert!(place < size_of::<T>(), "a task outside its thread");
    place
}

/// A value inside a thread's structure that only the thread itself reaches: no lock, and no count
/// of the value's own.
pub struct ThreadCell<T> {
    /// Calls of `with` that have not returned. Each has a frame on the thread's stack, so it does
    /// not overflow.
    readers: Cell<usize>,
    value: UnsafeCell<T>,
}

// SAFETY: `owner` lets only the thread in whose structure the cell lies reach the value; `T: Send`
// because the structure, and the value with it, may be dropped by another thread.
unsafe impl<T: Send> Sync for ThreadCell<T> {}

impl<T> ThreadCell<T> {
    /// A cell with a value.
    pub const fn new(value: T) -> Self {
        ThreadCell { readers: Cell::new(0), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value. Panics if the cell is not in `thread`.
    #[inline(always)]
    pub fn with<Th, R>(&self, thread: Current<Th>, f: impl FnOnce(&T) -> R) -> R {
        assert!(self.is_in(&thread), "a cell of another thread");
        // SAFETY: the cell is the running thread's.
        unsafe { self.with_own(f) }
    }

    /// Puts a value there and returns the one before. Panics as `with`, or from inside `with`.
    pub fn replace<Th>(&self, thread: Current<Th>, value: T) -> T {
        assert!(self.is_in(&thread), "a cell of another thread");
        assert!(self.readers.get() == 0, "a value that is being read");
        // SAFETY: no other thread gets here, and this one is in no `with_own`, which alone give
        // out references.
        unsafe { core::mem::replace(&mut *self.value.get(), value) }
    }

    /// # Safety
    /// The cell lies in the structure of the running thread.
    #[inline(always)]
    unsafe fn with_own<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        self.readers.set(self.readers.get().wrapping_add(1));
        // SAFETY: only `replace` changes the value, and not while `readers` counts this call. If
        // `f` does not return, it counts for ever.
        let result = f(unsafe { &*self.value.get() });
        self.readers.set(self.readers.get().wrapping_sub(1));
        result
    }

    /// Whether the cell is part of the running thread's structure. `Current` cannot leave its
    /// thread.
    #[inline(always)]
    fn is_in<Th>(&self, thread: &Current<Th>) -> bool {
        let start: *const Th = &**thread;
        let offset = (&raw const *self).addr().wrapping_sub(start.addr());
        offset < size_of::<Th>()
    }
}

/// A value inside a thread's structure that only the thread itself changes, and reads without a
/// lock; others read it, too.
pub struct OwnedCell<T> {
    value: ThreadCell<T>,
    /// Held by others that read, and by the owner while it changes the value.
    change: SpinLock<()>,
}

// SAFETY: others get shared references alone, which `T: Sync` allows, and only while `change` keeps
// the owner from changing the value; `T: Send` as in `ThreadCell`.
unsafe impl<T: Send + Sync> Sync for OwnedCell<T> {}

impl<T> OwnedCell<T> {
    /// A cell with a value.
    pub const fn new(value: T) -> Self {
        OwnedCell { value: ThreadCell::new(value), change: SpinLock::new(()) }
    }

    /// Calls `f` with the value. `reader` is the running thread; if it is not the owner, `f` runs
    /// under a spin lock.
    #[inline(always)]
    pub fn read<Th, R>(&self, reader: Current<Th>, f: impl FnOnce(&T) -> R) -> R {
        if self.value.is_in(&reader) {
            // SAFETY: the cell lies in the structure of the running thread.
            return unsafe { self.value.with_own(f) };
        }
        let _change = self.change.lock();
        // SAFETY: only `replace` changes the value, and waits for `change`.
        f(unsafe { &*self.value.value.get() })
    }

    /// Puts a value there and returns the one before. Panics if the cell is not in `thread`, or
    /// from inside `read`.
    pub fn replace<Th>(&self, thread: Current<Th>, value: T) -> T {
        let _change = self.change.lock();
        self.value.replace(thread, value)
    }
}

/// What each CPU runs. The kernel has one static of it.
pub struct CurrentSlot<T> {
    current: [AtomicPtr<T>; MAX_CPUS],
    previous: [AtomicPtr<T>; MAX_CPUS],
    /// Where in each thread its task lies.
    place: Once<usize>,
    _owns: PhantomData<Arc<T>>,
}

/// The thread that runs this code. Tied to the thread: it cannot be sent or stored elsewhere. Nor
/// may one be leaked (`Box::leak`), which would let a reference to the thread outlive it; no type
/// can say that, so `limen check` forbids leaking to the kernel.
pub struct Current<T: 'static> {
    thread: &'static T,
    _not_send: PhantomData<*const ()>,
}

impl<T> Current<T> {
    /// # Safety
    /// `thread` was made by `Arc::into_raw`, belongs to the thread that runs this code and to no
    /// other, and is owned until that thread has been switched from for the last time.
    unsafe fn new(thread: *const T) -> Self {
        // SAFETY: alive for as long as this code runs, by the caller's contract.
        Current { thread: unsafe { &*thread }, _not_send: PhantomData }
    }
}

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Current<T> {}

impl<T> Deref for Current<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.thread
    }
}

impl<T> Current<T> {
    /// A counted reference to the thread.
    pub fn to_arc(self) -> Arc<T> {
        // SAFETY: the slot holds a reference made by `Arc::into_raw` while the thread runs, and
        // `Current` exists only on the running thread.
        unsafe { Arc::increment_strong_count(self.thread) };
        // SAFETY: the count was just taken for this value.
        unsafe { Arc::from_raw(self.thread) }
    }
}

impl<T: Schedulable> CurrentSlot<T> {
    /// No CPU runs anything yet.
    #[expect(clippy::new_without_default, reason = "only made once, in a static")]
    pub const fn new() -> Self {
        CurrentSlot {
            current: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS],
            previous: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS],
            place: Once::new(),
            _owns: PhantomData,
        }
    }

    /// The task of a thread. Panics if it is not where the first thread's was.
    fn task_of<'a>(&self, thread: &'a T) -> &'a Task {
        let task = thread.task();
        let start: *const T = thread;
        let place = (task as *const Task).addr().wrapping_sub(start.addr());
        assert!(self.place.get() == Some(&place), "a task elsewhere in its thread");
        task
    }

    /// The thread that runs this code. Panics before [`CurrentSlot::adopt`] on this CPU.
    #[inline(always)]
    pub fn get(&'static self) -> Current<T> {
        let thread = self.current[percpu::cpu_id()].load(Ordering::Relaxed);
        assert!(!thread.is_null(), "no current thread yet");
        // SAFETY: the slot owns a reference, made by `Arc::into_raw`, while the thread runs.
        unsafe { Current::new(thread) }
    }

    /// Whether this CPU has a current thread already.
    pub fn is_set(&self) -> bool {
        !self.current[percpu::cpu_id()].load(Ordering::Relaxed).is_null()
    }

    /// Makes the code that runs now, on the boot stack, the thread `boot`. Panics if this CPU runs
    /// a thread already, or another CPU runs `boot`.
    pub fn adopt(&self, boot: Arc<T>) {
        let cpu = percpu::cpu_id();
        assert!(percpu::running_task().is_null(), "this CPU has a current thread");
        self.place.call_once(|| place_of_task(&*boot));
        let task = self.task_of(&boot);
        let is_free = !task.on_cpu.swap(true, Ordering::Acquire);
        assert!(is_free, "a thread that another CPU runs");
        let task: *const Task = task;
        percpu::local().task.store(task.cast_mut().cast(), Ordering::Relaxed);
        boot.task().part.becomes_current(cpu);
        let old = self.current[cpu].swap(Arc::into_raw(boot).cast_mut(), Ordering::Relaxed);
        assert!(old.is_null(), "this CPU has a current thread");
    }

    /// Runs `next` on this CPU; returns when the calling thread is chosen again, maybe on another
    /// CPU. Interrupts must be masked. `next` must not be queued anywhere or run by another CPU.
    pub fn switch_to(&'static self, next: Arc<T>) {
        let cpu = percpu::cpu_id();
        let old = self.current[cpu].load(Ordering::Relaxed);
        if core::ptr::eq(old, Arc::as_ptr(&next)) {
            return;
        }
        assert!(!old.is_null(), "no current thread yet");
        let next = Arc::into_raw(next);
        // SAFETY: the slot owns a reference to `old` until `finish_switch`.
        let old_task = self.task_of(unsafe { &*old });
        // SAFETY: the slot owns the reference that was made raw just now.
        let next_task = self.task_of(unsafe { &*next });
        // Behind `Schedulable::task`, which is the kernel's: nothing of it runs from here on.
        assert!(!cpu::interrupts_enabled(), "switching with interrupts enabled");
        claim(next_task);
        self.current[cpu].store(next.cast_mut(), Ordering::Relaxed);
        next_task.part.becomes_current(cpu);
        let local = percpu::local();
        local.task.store((next_task as *const Task).cast_mut().cast(), Ordering::Relaxed);
        local.kernel_stack_top.set(next_task.stack.top());
        crate::entry::descriptors::set_kernel_stack(next_task.stack.top());
        if static_branch_unlikely::<ShadowStack>() && next_task.user.is_some() {
            cpu::shadow_stack::set_entry_token(next_task.stack.shadow_token());
        }
        old_task.save_user();
        let mut space_id = 0;
        if let Some(space) = &*next_task.space.lock() {
            memory::activate(space);
            space_id = space.number();
        }
        next_task.load_user();
        crate::mitigations::switched(space_id, next_task.speculation.load(Ordering::Relaxed));
        cpu::repair_ss();
        // Last: whoever finds it here takes the registers for saved.
        self.previous[cpu].store(old, Ordering::Relaxed);
        // SAFETY: both tasks are alive. `claim` waited until `next`'s registers were saved, and
        // nobody writes where now: to a frame that `task_switch` or a constructor made.
        unsafe { task_switch(old_task.saved.get(), next_task.saved.get()) };
        self.finish_switch();
    }

    /// The first thing a thread does after it was switched to: lets go of the one before.
    pub fn finish_switch(&self) {
        let cpu = percpu::cpu_id();
        let previous = self.previous[cpu].swap(core::ptr::null_mut(), Ordering::Relaxed);
        if previous.is_null() {
            return;
        }
        // SAFETY: `switch_to` left the slot's reference here for exactly this call.
        let previous = unsafe { Arc::from_raw(previous) };
        if previous.task().part.has_ended() {
            // It stays on this CPU for ever, so that nothing can switch to it again.
            previous.task().part.release();
            return;
        }
        previous.task().on_cpu.store(false, Ordering::Release);
    }
}

/// Waits until no CPU's registers hold the task, then marks it as this CPU's.
fn claim(task: &Task) {
    while task.on_cpu.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        crate::cpu::sync::spin_wait();
    }
}

// ------------------------------------------------------------------------------------------------
// The running program's registers

fn running() -> &'static Task {
    let task = percpu::running_task();
    assert!(!task.is_null(), "no thread runs yet");
    // SAFETY: the head is the first field of a `Task` (`repr(C)`), where the switch took it from.
    // The slot's reference keeps the running task alive, and only its own code calls this; callers
    // do not let the reference escape a function.
    unsafe { &*task.cast() }
}

/// Replaces the address space of the running thread (exec).
pub fn set_space(space: Arc<Space>) {
    let task = running();
    let old = task.space.lock().replace(space.clone());
    memory::activate(&space);
    drop(old);
}

/// What the running thread's program chose about speculation (`mitigations::by_program::flag`).
pub fn speculation() -> u32 {
    running().speculation.load(Ordering::Relaxed)
}

/// Changes that, at once.
pub fn set_speculation(flags: u32) {
    let before = running().speculation.swap(flags, Ordering::Relaxed);
    crate::mitigations::flags_changed(before, flags);
}

/// Leaves the address space of the running thread (exit), so that it can be freed.
pub fn leave_space() {
    let old = running().space.lock().take();
    memory::deactivate();
    drop(old);
}

/// Copies of the running program's FS and GS bases.
pub fn user_bases() -> (u64, u64) {
    read_bases()
}

/// Sets the running program's FS and GS bases. Callers that take them from a program check for user
/// space first.
pub fn set_user_bases(fs: u64, gs: u64) {
    write_bases(fs, gs);
}

/// Null segments with base 0, for a new program.
pub fn reset_user_segments() {
    let _irq = crate::cpu::sync::IrqGuard::new();
    if read_selectors() != 0 {
        load_selectors(0);
    }
    write_bases(0, 0);
}

/// With the 16 upper bits like bit 47, as any base is that a program can have. Emulators let
/// WRGSBASE load others, which must not fault in the kernel.
fn canonical(address: u64) -> u64 {
    ((address << 16) as i64 >> 16) as u64
}

/// Sets the bases of a program thread that has not run yet; the running program's selectors are its
/// own, too.
pub fn init_user_bases(task: &mut Task, fs: u64, gs: u64) {
    if let Some(user) = &mut task.user {
        let user = user.get_mut();
        (user.fs_base, user.gs_base, user.selectors) = (fs, gs, read_selectors());
    }
}

/// Where the running program's shadow stack ends; None where it has none.
pub fn shadow_stack_pointer() -> Option<u64> {
    // Entries have put it where a switch keeps it: whatever comes between, it is this thread's.
    own_shadow_stack().is_on().then(UserShadowStack::pointer)
}

/// Gives the running program this shadow stack, or takes its own.
pub fn set_shadow_stack(shadow: UserShadowStack) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).shadow = shadow };
    shadow.load();
}

/// Moves the end of the running program's shadow stack, which it has.
pub fn set_shadow_stack_pointer(pointer: u64) {
    let shadow = own_shadow_stack();
    assert!(shadow.is_on(), "no shadow stack");
    set_shadow_stack(shadow.at(pointer));
}

/// What the running program has, as it last was saved or set.
fn own_shadow_stack() -> UserShadowStack {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return UserShadowStack::OFF };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).shadow }
}

/// Gives a program thread that has not run yet the running program's shadow stack, or another one
/// of its kind that ends at `own`.
pub fn init_shadow_stack(task: &mut Task, own: Option<u64>) {
    let Some(pointer) = shadow_stack_pointer() else { return };
    if let Some(user) = &mut task.user {
        user.get_mut().shadow = own_shadow_stack().at(own.unwrap_or(pointer));
    }
}

/// Sets the hardware breakpoints of the running program.
pub fn set_debug_registers(registers: &DebugRegisters) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).debug = *registers };
    registers.load();
}

/// Arms the running program's hardware breakpoints anew. Interrupts are masked.
pub(crate) fn reload_debug_registers() {
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).debug.load() };
}

/// Exchanges the running program's registers with the image `other`, which the CPU has then: a
/// guest's, while the program is in the kernel for it.
pub fn exchange_fpu(other: &mut FpuState) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    let user = unsafe { &mut *user };
    user.fpu.save();
    core::mem::swap(&mut user.fpu, other);
    user.fpu.restore();
}

/// Gives the running program the registers of `image`.
pub fn set_fpu(image: &FpuState) {
    change_fpu(|own| own.copy_from(image));
}

/// Gives the running program the registers of an image that a program wrote
/// ([`FpuState::set_from_user`]).
pub fn set_fpu_from_user(image: &[u8]) {
    change_fpu(|own| own.set_from_user(image));
}

/// `change` is this module's own: it reaches no other reference to the running task's state.
fn change_fpu(change: impl FnOnce(&mut FpuState)) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile, and
    // `change` does not get at it by another way.
    let user = unsafe { &mut *user };
    change(&mut user.fpu);
    user.fpu.restore();
}

/// Where the running program entered the kernel.
#[cfg(feature = "ktest")]
pub(crate) fn user_ip() -> u64 {
    let task = running();
    assert!(task.user.is_some(), "a kernel thread has no user registers");
    // SAFETY: the running program entered the kernel through the frame at the top of its stack, and
    // only this thread changes it. The field is copied, and no reference to the frame is made: the
    // call that is running holds one.
    unsafe { (&raw const (*task.user_regs()).rip).read_volatile() }
}
