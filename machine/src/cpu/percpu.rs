//! What each CPU has for itself. In the kernel GS points to this CPU's [`CpuLocal`]; assembly
//! reaches its fields by the offsets exported to `entry.S`.
//!
//! Kernel code stays on its CPU between two calls of the scheduler, so a value read through GS is
//! this CPU's until then.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use context_tracking::flush::Method;
use context_tracking::state;
use entry::{IretReason, Origin};

use crate::cpu::{Cr3, MAX_CPUS, USER_END, msr, wrmsr};

/// What entries of a CPU do. Vectors compare with these in `entry.S`; for SYSCALL each has an entry
/// of its own.
pub(crate) mod tracking {
    /// Senders interrupt it always: the word is for the accounts.
    pub(crate) const OFF: u32 = 0;
    /// Senders leave no notes; every entry sets its word, then writes CR3.
    pub(crate) const CR3: u32 = 1;
    /// Senders leave notes; an entry catches up if there is one.
    pub(crate) const PENDING: u32 = 2;
    /// Senders leave notes; every entry flushes.
    pub(crate) const ALWAYS: u32 = 3;
}

/// One CPU's part, on cache lines of its own: senders write the word of others.
#[repr(C, align(128))]
pub(crate) struct CpuContext {
    /// The word of the protocol.
    pub(crate) state: AtomicU32,
    /// How this CPU drops everything.
    pub(crate) method: Cell<Method>,
    /// Catch-ups so far that flushed, and that serialised.
    pub(crate) flushed: AtomicU64,
    pub(crate) serialized: AtomicU64,
}

impl CpuContext {
    pub(crate) const fn new() -> Self {
        CpuContext {
            state: AtomicU32::new(state::AT_BOOT),
            method: Cell::new(Method::PgeToggle),
            flushed: AtomicU64::new(0),
            serialized: AtomicU64::new(0),
        }
    }
}

/// Columns of [`ExitCounts`]: SYSRET, then the reasons for IRET in the order of their numbers.
pub(crate) const EXIT_KINDS: usize = 1 + IretReason::ALL.len();

pub(crate) const SYSRET: usize = 0;

/// Returns to programs on one CPU, by [`Origin`] (rows), and by SYSRET or the reason for IRET.
pub type ExitCounts = [[AtomicU64; EXIT_KINDS]; Origin::ALL.len()];
/// What this floor knows of a task; `task::Task` begins with it.
#[repr(C)]
pub(crate) struct TaskHead {
    /// Exit work: bits that make the return to user mode call the kernel first. Read by `entry.S`.
    pub(crate) work: AtomicU32,
}

/// SYSRET goes to addresses below. A call whose instruction is the last of user space returns to
/// its end, which is canonical.
pub(crate) const SYSRET_END: u64 = USER_END + 1;

/// The bit of [`TaskHead::work`] that is the machine's: the call that runs has its frame lent.
pub(crate) const FRAME_LENT: u32 = 1 << 31;

/// One CPU's own data. Fields that assembly uses come first.
#[repr(C, align(128))]
pub(crate) struct CpuLocal {
    /// Address of this structure: `mov %gs:0, reg` gives a pointer to it.
    pub(crate) this: Cell<*const CpuLocal>,
    /// This CPU's id, 0 to `MAX_CPUS - 1`.
    pub(crate) cpu_id: Cell<usize>,
    /// Spin locks held, plus interrupt handlers entered. Sleeping needs 0.
    pub(crate) atomic_depth: Cell<u32>,
    /// Top of the running task's kernel stack, where SYSCALL lands.
    pub(crate) kernel_stack_top: Cell<u64>,
    /// Scratch for SYSCALL entry: the user's RSP.
    pub(crate) user_rsp: Cell<u64>,
    /// Scratch for the way back with page-table isolation: the user's RDI.
    pub(crate) user_rdi: Cell<u64>,
    /// Top of this CPU's entry stack, which the program's page tables map too.
    pub(crate) entry_stack_top: Cell<u64>,
    /// With page-table isolation what the way in loads into CR3.
    pub(crate) kernel_cr3: Cell<Cr3>,
    /// What the next way back to the program loads, and those after it: see `pcid`.
    pub(crate) user_cr3: Cell<Cr3>,
    pub(crate) user_cr3_keep: Cell<Cr3>,
    /// 1 with page-table isolation, else 0.
    pub(crate) pti: Cell<u64>,
    /// [`SYSRET_END`], for the check before SYSRET in builds with tests.
    pub(crate) user_limit: Cell<u64>,
    /// What an entry does with `context`: see `word::tracking`.
    pub(crate) tracking: AtomicU32,
    /// Where the CPU is, and what waits for it.
    pub(crate) context: CpuContext,
    /// The running task; null before the scheduler starts.
    pub(crate) task: AtomicPtr<TaskHead>,
    /// `SPEC_CTRL` of the running thread: in the kernel, and in its program (`mitigations`).
    pub(crate) spec_ctrl: Cell<u64>,
    pub(crate) spec_ctrl_user: Cell<u64>,
    /// What entry code writes to `PRED_CMD`.
    pub(crate) pred_cmd: Cell<u64>,
    /// Calls without their returns, where they are counted (`text::call_depth`).
    pub(crate) call_depth: Cell<u64>,
    /// Whose branches this CPU's predictors know, see `mitigations`.
    pub(crate) predictor_owner: Cell<u64>,
    /// Speculative store bypass is off, by a register of its own.
    pub(crate) ssbd: Cell<bool>,
    /// What the next offsets of kernel stacks come from (`entry.S`).
    pub(crate) stack_secret: Cell<u64>,
    /// 1 in the handler of an NMI that runs on the stack of NMIs, else 0.
    pub(crate) in_nmi: Cell<u32>,
    /// What this CPU does before it returns to user mode, whatever thread runs
    /// (`behind_guests`): looked at together with the thread's own word.
    pub(crate) exit_work: Cell<u32>,
    /// Exits of guests, and the thread whose guest it was last.
    pub(crate) guest_exits: AtomicU64,
    pub(crate) guest_task: Cell<*const TaskHead>,
    /// What this CPU's DR7 enables (`debug_registers`).
    pub(crate) debug_control: Cell<u64>,
    /// What this CPU's `U_CET` is (`user_shadow_stack`).
    pub(crate) user_cet: Cell<u64>,
    /// The local APIC id of this CPU.
    pub(crate) apic_id: Cell<u32>,
    /// TLB shootdown state, see `tlb`.
    pub(crate) tlb_wanted: AtomicU32,
    /// What this CPU reads beside others, see `read_mostly`; 0: nothing.
    pub(crate) reading: AtomicUsize,
    /// Returns to programs, see `entry`.
    pub(crate) exits: ExitCounts,
}

// SAFETY: `Cell` fields are written only by the CPU that owns the structure (through GS) or before
// that CPU runs; the fields other CPUs write are atomics.
unsafe impl Sync for CpuLocal {}

impl CpuLocal {
    const fn new() -> Self {
        CpuLocal {
            this: Cell::new(core::ptr::null()),
            cpu_id: Cell::new(0),
            atomic_depth: Cell::new(0),
            kernel_stack_top: Cell::new(0),
            user_rsp: Cell::new(0),
            user_rdi: Cell::new(0),
            entry_stack_top: Cell::new(0),
            kernel_cr3: Cell::new(Cr3::NONE),
            user_cr3: Cell::new(Cr3::NONE),
            user_cr3_keep: Cell::new(Cr3::NONE),
            pti: Cell::new(0),
            user_limit: Cell::new(SYSRET_END),
            tracking: AtomicU32::new(tracking::OFF),
            context: CpuContext::new(),
            task: AtomicPtr::new(core::ptr::null_mut()),
            spec_ctrl: Cell::new(0),
            spec_ctrl_user: Cell::new(0),
            pred_cmd: Cell::new(0),
            call_depth: Cell::new(0),
            predictor_owner: Cell::new(0),
            ssbd: Cell::new(false),
            stack_secret: Cell::new(0),
            in_nmi: Cell::new(0),
            exit_work: Cell::new(0),
            guest_exits: AtomicU64::new(0),
            guest_task: Cell::new(core::ptr::null()),
            debug_control: Cell::new(0),
            user_cet: Cell::new(0),
            apic_id: Cell::new(0),
            tlb_wanted: AtomicU32::new(0),
            reading: AtomicUsize::new(0),
            exits: [const { [const { AtomicU64::new(0) }; _] }; _],
        }
    }
}

#[unsafe(link_section = ".data.cpu_entry")]
static CPUS: [CpuLocal; MAX_CPUS] = [const { CpuLocal::new() }; MAX_CPUS];

/// The structure of the CPU with this id.
pub(crate) fn of(cpu: usize) -> &'static CpuLocal {
    &CPUS[cpu]
}

/// This CPU's structure.
#[inline(always)]
pub(crate) fn local() -> &'static CpuLocal {
    let this: *const CpuLocal;
    // SAFETY: `init` pointed GS at this CPU's element of CPUS, whose first field is its address.
    unsafe {
        asm!("mov {}, gs:0", out(reg) this, options(pure, readonly, nostack, preserves_flags))
    };
    // SAFETY: the pointer is to a static.
    unsafe { &*this }
}

/// This CPU's id.
#[inline(always)]
pub fn cpu_id() -> usize {
    let id: usize;
    // SAFETY: as `local`; the offset is that of `cpu_id`.
    unsafe {
        asm!("mov {}, gs:{}", out(reg) id, const core::mem::offset_of!(CpuLocal, cpu_id),
             options(pure, readonly, nostack, preserves_flags));
    }
    // SAFETY: `init` panics for an id that has no structure, so no other value is ever stored.
    unsafe { core::hint::assert_unchecked(id < MAX_CPUS) };
    id
}

/// The running task; null before the scheduler starts.
#[inline(always)]
pub(crate) fn running_task() -> *const TaskHead {
    let task;
    // SAFETY: as `local`; the offset is that of `task`.
    unsafe {
        asm!("mov {}, gs:{}", out(reg) task, const core::mem::offset_of!(CpuLocal, task),
             options(readonly, nostack, preserves_flags));
    }
    task
}

/// Adds one to an element of this CPU's `exits`. Interrupts are masked.
#[inline(always)]
pub(crate) fn count_exit<const ORIGIN: usize, const KIND: usize>() {
    // SAFETY: the offset is that of a counter, which only this CPU writes.
    unsafe {
        asm!("inc qword ptr gs:{}", const exit_counter(ORIGIN, KIND), options(nostack));
    }
}

/// Where in the structure an element of `exits` lies.
pub(crate) const fn exit_counter(origin: usize, kind: usize) -> usize {
    assert!(origin < Origin::ALL.len() && kind < EXIT_KINDS);
    core::mem::offset_of!(CpuLocal, exits) + (origin * EXIT_KINDS + kind) * size_of::<u64>()
}

/// Adds one to this CPU's exits of guests. Interrupts are masked.
#[inline(always)]
pub(crate) fn count_guest_exit() {
    // SAFETY: the offset is that of a counter, which only this CPU writes.
    unsafe {
        asm!("inc qword ptr gs:{}", const core::mem::offset_of!(CpuLocal, guest_exits),
             options(nostack));
    }
}

/// The exit-work word of the running task.
///
/// # Safety
/// A program's thread runs: the CPU is about to return to it.
#[inline(always)]
pub(crate) unsafe fn pending_work() -> u32 {
    // SAFETY: the slot's reference keeps the running task alive, and the caller knows there is one.
    unsafe { &*running_task() }.work.load(Ordering::SeqCst)
}

/// The running thread's call has its frame lent, or no more. No way out looks in between: it is
/// this thread's own.
#[inline(always)]
pub(crate) fn note_lent_frame() {
    // SAFETY: only a program's thread has a frame, and its slot's reference keeps its task alive.
    unsafe { &*running_task() }.work.fetch_or(FRAME_LENT, Ordering::Relaxed);
}

/// See [`note_lent_frame`].
///
/// # Safety
/// As [`pending_work`].
#[inline(always)]
pub(crate) unsafe fn forget_lent_frame() {
    // SAFETY: the slot's reference keeps the running task alive, and the caller knows there is one.
    unsafe { &*running_task() }.work.fetch_and(!FRAME_LENT, Ordering::Relaxed);
}

/// Points GS at the structure of CPU `cpu`. First thing a CPU does in Rust.
///
/// # Safety
/// Called once on each CPU, with that CPU's own id.
pub(crate) unsafe fn init(cpu: usize, apic_id: u32) {
    let local = &CPUS[cpu];
    local.this.set(local);
    local.cpu_id.set(cpu);
    local.apic_id.set(apic_id);
    // SAFETY: the base is a static that lives for ever.
    unsafe { wrmsr(msr::GS_BASE, local as *const CpuLocal as u64) };
    // SAFETY: KERNEL_GS_BASE holds the user's base while in the kernel; 0 is a valid one.
    unsafe { wrmsr(msr::KERNEL_GS_BASE, 0) };
}

#[inline(always)]
pub(crate) fn atomic_enter() {
    // SAFETY: one instruction on this CPU's own word, so an interrupt cannot split it.
    unsafe {
        asm!("inc dword ptr gs:{}", const core::mem::offset_of!(CpuLocal, atomic_depth),
             options(nostack));
    }
}

#[inline(always)]
pub(crate) fn atomic_exit() {
    // SAFETY: as `atomic_enter`: one instruction on this CPU's own word.
    unsafe {
        asm!("dec dword ptr gs:{}", const core::mem::offset_of!(CpuLocal, atomic_depth),
             options(nostack));
    }
}

/// Whether this CPU holds no spin lock and is not in an interrupt handler.
#[inline(always)]
pub fn may_sleep() -> bool {
    local().atomic_depth.get() == 0
}

/// Runs `f` as an interrupt handler runs: sleeping in it is a bug that is caught.
pub(crate) fn in_handler(f: impl FnOnce()) {
    atomic_enter();
    f();
    atomic_exit();
}

/// One `T` for each CPU, each on cache lines of its own.
pub struct PerCpu<T>([Padded<T>; MAX_CPUS]);

#[repr(align(128))]
struct Padded<T>(T);

impl<T> PerCpu<T> {
    /// Makes the values by calling `make` with each CPU id. For statics use [`PerCpu::from_array`].
    pub fn new(mut make: impl FnMut(usize) -> T) -> Self {
        PerCpu(core::array::from_fn(|cpu| Padded(make(cpu))))
    }

    /// Wraps one value for each CPU; usable in a static: `PerCpu::from_array([const { … }; 16])`.
    pub const fn from_array(values: [T; MAX_CPUS]) -> Self {
        let values = core::mem::ManuallyDrop::new(values);
        let mut padded = [const { core::mem::MaybeUninit::<Padded<T>>::uninit() }; MAX_CPUS];
        let mut cpu = 0;
        while cpu < MAX_CPUS {
            // SAFETY: `values` is never used again nor dropped, so each element moves out once.
            let value = unsafe { (&raw const values).cast::<T>().wrapping_add(cpu).read() };
            padded[cpu] = core::mem::MaybeUninit::new(Padded(value));
            cpu += 1;
        }
        // SAFETY: the loop above initialised every element; the layouts are the same.
        PerCpu(unsafe { core::ptr::read((&raw const padded).cast::<[Padded<T>; MAX_CPUS]>()) })
    }

    /// The value of this CPU. With shared access only: other CPUs may look at it too.
    #[inline(always)]
    pub fn get(&self) -> &T {
        &self.0[cpu_id()].0
    }

    /// The value of CPU `cpu`.
    #[inline(always)]
    pub fn of(&self, cpu: usize) -> &T {
        &self.0[cpu].0
    }

    /// The values of all CPUs, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }
}

/// A cell that only its own CPU touches, inside a [`PerCpu`].
pub(crate) struct CpuCell<T>(UnsafeCell<T>);

// SAFETY: the only access is `with`, whose contract confines it to the owning CPU.
unsafe impl<T> Sync for CpuCell<T> {}

impl<T> CpuCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        CpuCell(UnsafeCell::new(value))
    }

    /// Calls `f` with the value.
    ///
    /// # Safety
    /// Interrupts are masked, the cell is this CPU's, and `f` does not reach the cell again.
    pub(crate) unsafe fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller's contract makes this the only reference.
        f(unsafe { &mut *self.0.get() })
    }
}
