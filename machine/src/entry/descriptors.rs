//! Segment and interrupt descriptors: GDT, TSS and IDT (SDM 3A, chapters 3, 6 and 7), one GDT and
//! TSS for each CPU, one IDT for all.
//!
//! IDT and GDTs are sealed once the machine runs (`sealed`): accessed and busy bits, which the CPU
//! would write, are set by then. A TSS is sealed only with page-table isolation, where interrupts
//! of programs begin on one stack for ever; otherwise each switch of threads writes to it.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, Ordering};

use entry::{flags, selector};

use crate::context_tracking::{pcid, word};
use crate::cpu::percpu::{self, CpuLocal, tracking};
use crate::cpu::sealed::sealed;
use crate::cpu::{self, MAX_CPUS, has_pti, msr, wrmsr};
use crate::entry::shadow_stack;
use crate::memory;
use crate::memory::frame::OutOfMemory;
use crate::memory::stack::{KERNEL_STACK_SIZE, KernelStack};

/// Vectors that run on stacks of their own, and the number of that stack (1 to 7).
const IST_VECTORS: [(u8, u8); 4] = [(1, 1), (2, 2), (8, 3), (18, 4)];
pub(super) const IST_STACKS: usize = 4;

#[repr(C, packed(4))]
struct Tss {
    reserved0: u32,
    rsp: [u64; 3],
    reserved1: u64,
    ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    io_map: u16,
}

/// One CPU's own.
#[repr(C, align(64))]
struct Own<T>(UnsafeCell<T>);

// SAFETY: each is written by its own CPU only (`init`, `set_kernel_stack`).
unsafe impl<T> Sync for Own<T> {}

/// Slots of a GDT. Tests have one more.
const GDT_SLOTS: usize = if cfg!(feature = "ktest") { 11 } else { 10 };
type Gdt = [u64; GDT_SLOTS];

const EMPTY_GDT: Gdt = {
    let mut gdt = [0; GDT_SLOTS];
    gdt[2] = 0x00af_9b00_0000_ffff; // 0x10 kernel code, 64-bit, accessed
    gdt[3] = 0x00cf_9300_0000_ffff; // 0x18 kernel data
    // 0x20 would be 32-bit user code; there is none, so no program leaves 64-bit mode
    gdt[5] = 0x00cf_f300_0000_ffff; // 0x28 user data
    gdt[6] = 0x00af_fb00_0000_ffff; // 0x30 user code, 64-bit
    // 0x40 TSS, two slots, filled at run time
    #[cfg(feature = "ktest")]
    {
        gdt[7] = 0x00cf_7300_0000_ffff; // 0x38 user data that is not present
        gdt[10] = 0x00af_7b00_0000_ffff; // 0x50 user code that is not present
    }
    gdt
};

/// User segments that are not present: IRET to one faults by another vector.
#[cfg(feature = "ktest")]
pub(crate) const ABSENT_DS: u64 = 0x38 | 3;
#[cfg(feature = "ktest")]
pub(crate) const ABSENT_CS: u64 = 0x50 | 3;

const EMPTY_TSS: Tss = Tss {
    reserved0: 0,
    rsp: [0; 3],
    reserved1: 0,
    ist: [0; 7],
    reserved2: 0,
    reserved3: 0,
    io_map: size_of::<Tss>() as u16,
};

#[unsafe(link_section = ".data.sealed_entry")]
static GDTS: [Own<Gdt>; MAX_CPUS] = [const { Own(UnsafeCell::new(EMPTY_GDT)) }; MAX_CPUS];
/// Those in use with page-table isolation, and those without.
#[unsafe(link_section = ".data.sealed_entry")]
static SEALED_TSS: [Own<Tss>; MAX_CPUS] = [const { Own(UnsafeCell::new(EMPTY_TSS)) }; MAX_CPUS];
#[unsafe(link_section = ".data.cpu_entry")]
static OPEN_TSS: [Own<Tss>; MAX_CPUS] = [const { Own(UnsafeCell::new(EMPTY_TSS)) }; MAX_CPUS];

/// The TSS that CPU `cpu` uses.
fn tss_of(cpu: usize) -> *mut Tss {
    if memory::has_pti() { SEALED_TSS[cpu].0.get() } else { OPEN_TSS[cpu].0.get() }
}

/// Where this CPU's task state is.
pub(crate) fn tss_base() -> u64 {
    tss_of(percpu::cpu_id()) as u64
}

/// What stands in GDTR and IDTR.
#[repr(C, packed)]
#[derive(Clone, Copy, Default)]
pub(crate) struct TablePointer {
    pub(crate) limit: u16,
    pub(crate) base: u64,
}

#[repr(C, align(4096))]
struct Idt(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: written once by the first CPU before the others start and before it is loaded.
unsafe impl Sync for Idt {}

// On sealed pages (`sealed`) that programs' tables map too.
#[unsafe(link_section = ".data.sealed_entry")]
static IDT: Idt = Idt(UnsafeCell::new([[0; 2]; 256]));

unsafe extern "C" {
    static vector_stubs: [[u8; VECTOR_STUB_SIZE]; 256];
    fn paranoid_1();
    fn paranoid_2();
    fn paranoid_8();
    fn paranoid_18();
    static syscall_entry: u8;
    pub(crate) static syscall_entry_pending: u8;
    static syscall_entry_always: u8;
    static syscall_entry_instrumented: u8;
    static syscall_entry_shadow_told: u8;
    pub(crate) static syscall_entry_shadow_pending: u8;
    static syscall_entry_shadow_always: u8;
    static syscall_entry_shadow_instrumented: u8;
    static syscall_entry_pti: u8;
    pub(crate) static syscall_entry_pti_pending: u8;
    static syscall_entry_pti_always: u8;
    pub(crate) static syscall_entry_pti_cr3: u8;
    static syscall_entry_pti_instrumented: u8;
}

/// Bytes from one stub to the next in `entry.S` (`.balign 16`).
const VECTOR_STUB_SIZE: usize = 16;

/// An interrupt gate (SDM 3A, 6.14.1): IF is cleared on entry.
fn gate(handler: u64, ist: u8, user: bool) -> [u64; 2] {
    let kind = 0x8e00 | if user { 0x6000 } else { 0 };
    let low = handler & 0xffff
        | u64::from(selector::KERNEL_CS) << 16
        | u64::from(ist) << 32
        | kind << 32
        | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}

/// Bytes of ENDBR64, which stands before each entry. It is skipped unless the CPU looks for it.
const ENDBR_SIZE: u64 = 4;

sealed! {
    /// Entries are entered at their ENDBR64.
    static LANDS: AtomicBool = AtomicBool::new(false);
}

/// Where an entry begins whose code behind its ENDBR64 is at `code`.
pub(crate) fn landing(code: u64) -> u64 {
    code - if LANDS.load(Ordering::Relaxed) { ENDBR_SIZE } else { 0 }
}

/// From now on interrupts and SYSCALL land on ENDBR64: for CPUs that track indirect branches. On
/// the first CPU, interrupts masked, before others start; NMIs may come, and each gate changes by
/// one store, since an entry and its ENDBR64 lie in the same 16 bytes.
pub(crate) fn land_on_endbr() {
    LANDS.store(true, Ordering::SeqCst);
    for (vector, new) in gates().into_iter().enumerate() {
        // SAFETY: there are as many gates as vectors, and each is two words: the first one's place.
        let gate = unsafe { IDT.0.get().cast::<u64>().add(2 * vector) };
        // SAFETY: only the first CPU runs; the gate differs from the one in use by its address.
        unsafe { gate.write_volatile(new[0]) };
    }
    choose_syscall_entry();
}

/// Fills the IDT. On the first CPU, before `init`.
pub(crate) fn init_idt() {
    // SAFETY: only the first CPU runs, and the table is not loaded yet.
    unsafe { *IDT.0.get() = gates() };
}

fn gates() -> [[u64; 2]; 256] {
    let mut table = [[0u64; 2]; 256];
    for (vector, entry) in table.iter_mut().enumerate() {
        // SAFETY: only the address is taken.
        let stub = landing(unsafe { &raw const vector_stubs[vector] } as u64 + ENDBR_SIZE);
        // INT3 and INTO may be executed by programs.
        *entry = gate(stub, 0, vector == 3 || vector == 4);
    }
    let paranoid: [u64; 4] = [
        paranoid_1 as *const () as u64,
        paranoid_2 as *const () as u64,
        paranoid_8 as *const () as u64,
        paranoid_18 as *const () as u64,
    ];
    for ((vector, ist), handler) in IST_VECTORS.into_iter().zip(paranoid) {
        table[usize::from(vector)] = gate(landing(handler), ist, false);
    }
    table
}

/// Loads this CPU's descriptors and system call registers. Once per CPU, after `percpu::init`.
pub(crate) fn init() -> Result<(), OutOfMemory> {
    let cpu = percpu::cpu_id();
    let ist = make_own_stacks()?;
    let entry_stack = KernelStack::new()?;
    let entry_top = entry_stack.top();
    memory::share_with_programs(entry_top - KERNEL_STACK_SIZE as u64, KERNEL_STACK_SIZE)?;
    percpu::local().entry_stack_top.set(entry_top);
    core::mem::forget(entry_stack);
    let tss = tss_of(cpu);
    // SAFETY: this CPU's own element; no reference to it lives elsewhere.
    unsafe { tss.write(Tss { ist, ..EMPTY_TSS }) };
    let base = tss as u64;
    let limit = size_of::<Tss>() as u64 - 1;
    let slot = usize::from(selector::TSS) / 8;
    let mut gdt = EMPTY_GDT;
    gdt[slot] = limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
    gdt[slot + 1] = base >> 32;
    // SAFETY: this CPU's own element, before it is loaded and before pages are sealed.
    unsafe { GDTS[cpu].0.get().write(gdt) };
    let gdt = TablePointer { limit: size_of::<Gdt>() as u16 - 1, base: GDTS[cpu].0.get() as u64 };
    let idt =
        TablePointer { limit: size_of::<[[u64; 2]; 256]>() as u16 - 1, base: IDT.0.get() as u64 };
    // SAFETY: the tables are statics; the selectors name kernel segments of the same kind as the
    // ones in use; GS keeps its base, since its selector is not reloaded.
    unsafe {
        asm!(
            "lgdt [{gdt}]",
            // A far return takes words from a shadow stack, which has none such. CPUs that have one
            // by now come with the selector (`boot.S`), and what it stands for is the same.
            "mov {scratch:e}, cs",
            "cmp {scratch:e}, {cs:e}",
            "je 2f",
            "push {cs}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ss, {ds:e}",
            "mov ds, {null:e}",
            "mov es, {null:e}",
            "mov fs, {null:e}",
            "ltr {tss:x}",
            "lidt [{idt}]",
            // After a reset the LDT is a table of 64 KiB at address 0: a program could map it.
            "lldt {null:x}",
            gdt = in(reg) &gdt,
            idt = in(reg) &idt,
            cs = in(reg) u64::from(selector::KERNEL_CS),
            ds = in(reg) u32::from(selector::KERNEL_DS),
            null = in(reg) 0u32,
            tss = in(reg) selector::TSS,
            scratch = out(reg) _,
        );
    }
    init_syscall();
    if has_pti() {
        percpu::local().pti.set(1);
        set_interrupt_stack(entry_top);
    }
    Ok(())
}

/// The stacks of this CPU's `IST_VECTORS`, for ever.
fn make_own_stacks() -> Result<[u64; 7], OutOfMemory> {
    let mut ist = [0u64; 7];
    for (n, slot) in ist.iter_mut().take(IST_STACKS).enumerate() {
        let stack = KernelStack::new()?;
        let top = stack.top() - 16;
        // The last words of the stack name this CPU, for the paranoid entry.
        // SAFETY: the stack is mapped and new.
        unsafe { (top as *mut *const CpuLocal).write(percpu::local()) };
        *slot = top;
        memory::share_with_programs(top & !(KERNEL_STACK_SIZE as u64 - 1), KERNEL_STACK_SIZE)?;
        shadow_stack::set_interrupt_stack(n + 1, &stack);
        // The CPU uses the stack for ever.
        core::mem::forget(stack);
    }
    Ok(ist)
}

fn init_syscall() {
    let star = u64::from(selector::KERNEL_CS) << 32 | u64::from(selector::USER_CS32) << 48;
    let efer = cpu::rdmsr(msr::EFER) | cpu::cr::EFER_SCE | cpu::cr::EFER_NXE;
    choose_syscall_entry();
    for (register, value) in
        [(msr::STAR, star), (msr::FMASK, flags::SYSCALL_MASK), (msr::EFER, efer)]
    {
        // SAFETY: architectural registers of 64-bit mode; the selectors are valid.
        unsafe { wrmsr(register, value) };
    }
}

static INSTRUMENTED: AtomicBool = AtomicBool::new(false);

/// From now on [`choose_syscall_entry`] takes the entries of instrumented calls.
pub(crate) fn instrument_calls() {
    INSTRUMENTED.store(true, Ordering::SeqCst);
}

/// Sets this CPU's entry for SYSCALL: the one of its way of tracking; and whether its writes of CR3
/// keep anything.
pub(crate) fn choose_syscall_entry() {
    pcid::follow_tracking();
    let [plain, pending, always, instrumented] = if has_pti() {
        [
            &raw const syscall_entry_pti,
            &raw const syscall_entry_pti_pending,
            &raw const syscall_entry_pti_always,
            &raw const syscall_entry_pti_instrumented,
        ]
    } else if cpu::shadow_stack::is_on() {
        [
            &raw const syscall_entry_shadow_told,
            &raw const syscall_entry_shadow_pending,
            &raw const syscall_entry_shadow_always,
            &raw const syscall_entry_shadow_instrumented,
        ]
    } else {
        [
            &raw const syscall_entry,
            &raw const syscall_entry_pending,
            &raw const syscall_entry_always,
            &raw const syscall_entry_instrumented,
        ]
    };
    let entry = match word::tracking_here() {
        _ if INSTRUMENTED.load(Ordering::SeqCst) => instrumented,
        tracking::PENDING => pending,
        tracking::ALWAYS => always,
        tracking::CR3 if has_pti() => &raw const syscall_entry_pti_cr3,
        _ => plain,
    };
    let entry = landing(entry as u64);
    // CSTAR is unreachable: without a 32-bit code segment there is no compatibility mode.
    for register in [msr::LSTAR, msr::CSTAR] {
        // SAFETY: an entry of `entry.S` for the tables in use.
        unsafe { wrmsr(register, entry) };
    }
}

/// The number of the stack on which CPUs take `vector`, one of those with a stack of their own.
#[cfg(feature = "ktest")]
pub(crate) fn number_of_own_stack(vector: u8) -> Option<u8> {
    IST_VECTORS.into_iter().find(|&(of, _)| of == vector).map(|(_, slot)| slot)
}

/// Top of the stack on which this CPU takes `vector`, one of those with a stack of their own.
#[cfg(feature = "ktest")]
pub(crate) fn own_stack(vector: u8) -> Option<u64> {
    let slot = number_of_own_stack(vector)?;
    // SAFETY: this CPU's element, written once in `init`; copied, since it is not aligned.
    let ist = unsafe { (&raw const (*tss_of(percpu::cpu_id())).ist).read_unaligned() };
    Some(ist[usize::from(slot) - 1])
}

/// Where this CPU's own GDT and TSS are, as the registers say: of the second the base that the GDT
/// names.
#[cfg(feature = "ktest")]
pub(crate) fn tables_in_use() -> [u64; 2] {
    let mut gdt = TablePointer { limit: 0, base: 0 };
    // SAFETY: stores ten bytes to where it is told.
    unsafe { asm!("sgdt [{}]", in(reg) &mut gdt, options(nostack, preserves_flags)) };
    let base = gdt.base;
    let slot = (base + u64::from(selector::TSS)) as *const [u64; 2];
    // SAFETY: the table that this CPU uses has the slot.
    let [low, high] = unsafe { slot.read_unaligned() };
    [base, low >> 16 & 0xff_ffff | low >> 56 << 24 | high << 32]
}

/// Where this CPU's SYSCALL and the vectors' stubs begin.
#[cfg(feature = "ktest")]
pub(crate) fn entry_points(vector: u8) -> [u64; 2] {
    // SAFETY: only the address is taken.
    let stub = unsafe { &raw const vector_stubs[usize::from(vector)] } as u64 + ENDBR_SIZE;
    [cpu::rdmsr(msr::LSTAR), landing(stub)]
}

/// Sets where interrupts from programs put their frame: the running thread's stack. With page-table
/// isolation they come through the entry stack always.
pub(crate) fn set_kernel_stack(top: u64) {
    if !has_pti() {
        set_interrupt_stack(top);
    }
}

fn set_interrupt_stack(top: u64) {
    let tss = tss_of(percpu::cpu_id());
    // SAFETY: the pointer is to a static's element; the place is named, not read.
    let field = unsafe { &raw mut (*tss).rsp };
    // SAFETY: this CPU's own TSS; callers have interrupts masked; the field may be unaligned.
    unsafe { field.cast::<u64>().write_unaligned(top) };
}
