//! Reading and writing a program's memory.
//!
//! A user address is an allegation: it is checked to lie in user space, then tried, with SMAP open
//! for just the copy. A page fault meanwhile is handled as if the program had touched the page
//! (demand paging, copy-on-write, even sleeping for a file); if that fails, the exception table
//! sends the copy to its error exit. All copies are single assembly loops, opaque to the compiler,
//! because the program may change the memory at any moment.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::sealed::sealed;
use crate::memory::USER_END;
use crate::memory::frame::{Frame, PAGE_SIZE};

/// A user address was not accessible. What a program sees is EFAULT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

sealed! {
    static SMAP: AtomicBool = AtomicBool::new(false);
}

pub(crate) fn init() {
    SMAP.store(crate::cpu::features().smap, Ordering::Relaxed);
}

/// Closes user memory to the kernel at the start of a handler: exceptions, unlike SYSCALL, keep the
/// AC flag of what they interrupt, a program's or that of a copy. The return restores it.
#[inline(always)]
pub(crate) fn close_in_handler() {
    if SMAP.load(Ordering::Relaxed) {
        // SAFETY: SMAP exists; clearing AC only narrows what this CPU may touch.
        unsafe { asm!("clac", options(nostack)) };
    }
}

/// Opens user memory to the kernel while it lives.
pub(crate) struct SmapOpen(bool);

impl SmapOpen {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let smap = SMAP.load(Ordering::Relaxed);
        if smap {
            // SAFETY: SMAP exists; AC only widens what this CPU may touch until `drop`.
            unsafe { asm!("stac", options(nostack)) };
        }
        SmapOpen(smap)
    }
}

impl Drop for SmapOpen {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: SMAP exists, and clearing AC only narrows what this CPU may touch.
            unsafe { asm!("clac", options(nostack)) };
        }
    }
}

// Each entry of .extable: where a fault may happen, where to go on then; both relative to their
// own place.
//   uaccess_copy(rdi: to, rsi: from, rdx: bytes) -> eax: 0, or 1 after a fault
//   uaccess_cmpxchg32(rdi: at, esi: expected, edx: new) -> rax: the value found, or -1
//   uaccess_load32(rdi: at) -> rax: the value, or -1
global_asm!(
    r#"
    // With the room that the compiler leaves, for what counts calls (text/call_depth.rs).
    .macro counted name
        .fill 11, 1, 0x90
        .globl \name
        .type \name, @function
    .endm

    .macro extable at, to
        .pushsection .extable, "a", @progbits
        .balign 4
        .long \at - ., \to - .
        .popsection
    .endm

    counted uaccess_copy
    uaccess_copy:
        mov %rdx, %rcx
        shr $3, %rcx
        and $7, %edx
    uaccess_copy_words:
        rep movsq
        mov %edx, %ecx
    uaccess_copy_bytes:
        rep movsb
        xor %eax, %eax
        jmp __x86_return_thunk
        int3
    .size uaccess_copy, . - uaccess_copy

    counted uaccess_zero
    uaccess_zero:
        mov %rsi, %rcx
        shr $3, %rcx
        and $7, %esi
        xor %eax, %eax
    uaccess_zero_words:
        rep stosq
        mov %esi, %ecx
    uaccess_zero_bytes:
        rep stosb
        jmp __x86_return_thunk
        int3
    .size uaccess_zero, . - uaccess_zero

    counted uaccess_cmpxchg32
    uaccess_cmpxchg32:
        mov %esi, %eax
    uaccess_cmpxchg32_at:
        lock cmpxchg %edx, (%rdi)
        jmp __x86_return_thunk
        int3
    .size uaccess_cmpxchg32, . - uaccess_cmpxchg32

    counted uaccess_load32
    uaccess_load32:
        mov (%rdi), %eax
        jmp __x86_return_thunk
        int3
    .size uaccess_load32, . - uaccess_load32

    uaccess_failed:
        mov $1, %eax
        jmp __x86_return_thunk
        int3
    uaccess_failed_value:
        mov $-1, %rax
        jmp __x86_return_thunk
        int3

    extable uaccess_copy_words, uaccess_failed
    extable uaccess_copy_bytes, uaccess_failed
    extable uaccess_zero_words, uaccess_failed
    extable uaccess_zero_bytes, uaccess_failed
    extable uaccess_cmpxchg32_at, uaccess_failed_value
    extable uaccess_load32, uaccess_failed_value
    "#,
    options(att_syntax)
);

unsafe extern "C" {
    fn uaccess_copy(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn uaccess_zero(to: *mut u8, len: usize) -> u32;
    fn uaccess_cmpxchg32(at: *mut u32, expected: u32, new: u32) -> u64;
    fn uaccess_load32(at: *const u32) -> u64;
    static __extable_start: [i32; 0];
    static __extable_end: [i32; 0];
}

/// Whether `[at, at + len)` lies in user space. Says nothing about what is mapped.
#[inline(always)]
pub fn is_user_range(at: u64, len: usize) -> bool {
    at <= USER_END && len as u64 <= USER_END - at
}

/// An address of `len` bytes in user space: what code that runs ahead of the check sees is in user
/// space, too (spectre_v1).
#[inline(always)]
fn checked(at: u64, len: usize) -> Result<u64, Fault> {
    if is_user_range(at, len) { Ok(crate::cpu::speculation::mask_user(at)) } else { Err(Fault) }
}

/// Copies from the program at `from`. May sleep. After a fault `into` holds undefined parts.
#[inline]
pub fn read_bytes(from: u64, into: &mut [u8]) -> Result<(), Fault> {
    let from = checked(from, into.len())?;
    let _open = SmapOpen::new();
    // SAFETY: the destination is a kernel buffer of that length; faults on the user side are in the
    // exception table.
    let failed = unsafe { uaccess_copy(into.as_mut_ptr(), from as *const u8, into.len()) };
    if failed == 0 { Ok(()) } else { Err(Fault) }
}

/// Copies to the program at `to`. May sleep. After a fault part of it may be written.
#[inline]
pub fn write_bytes(to: u64, from: &[u8]) -> Result<(), Fault> {
    let to = checked(to, from.len())?;
    let _open = SmapOpen::new();
    // SAFETY: as in `read_bytes`, with the sides exchanged.
    let failed = unsafe { uaccess_copy(to as *mut u8, from.as_ptr(), from.len()) };
    if failed == 0 { Ok(()) } else { Err(Fault) }
}

/// Writes `len` zero bytes at `to`. May sleep.
pub fn write_zeros(to: u64, len: usize) -> Result<(), Fault> {
    let to = checked(to, len)?;
    let _open = SmapOpen::new();
    // SAFETY: the range is the program's; faults are in the exception table.
    let failed = unsafe { uaccess_zero(to as *mut u8, len) };
    if failed == 0 { Ok(()) } else { Err(Fault) }
}

/// Reads an aligned 32-bit word in one access.
pub fn read_u32(at: u64) -> Result<u32, Fault> {
    let at = checked(at, 4)?;
    if !at.is_multiple_of(4) {
        return Err(Fault);
    }
    let _open = SmapOpen::new();
    // SAFETY: the range is the program's; faults are in the exception table.
    let value = unsafe { uaccess_load32(at as *const u32) };
    u32::try_from(value).map_err(|_| Fault)
}

/// Executes one instruction that touches the program's memory, with SMAP open, and with the
/// operands given as for `asm!`. A fault, by the address or by contents that the CPU refuses, ends
/// in `Fault`. The caller has checked that the memory lies in user space, and vouches for all that
/// the instruction does beside.
macro_rules! guarded {
    ($instruction:literal, $($operands:tt)*) => {{
        let _open = $crate::memory::uaccess::SmapOpen::new();
        $crate::memory::uaccess::guarded_in_open!($instruction, $($operands)*)
    }};
}
pub(crate) use guarded;

/// As [`guarded`], with SMAP open already.
macro_rules! guarded_in_open {
    ($instruction:literal, $($operands:tt)*) => {{
        let failed: u32;
        // SAFETY: as the macro promises, the memory lies in user space; a fault goes on behind the
        // instruction with `failed` still set.
        unsafe {
            core::arch::asm!(
                concat!("2: ", $instruction),
                "xor {failed:e}, {failed:e}",
                "3:",
                ".pushsection .extable, \"a\", @progbits",
                ".balign 4",
                ".long 2b - ., 3b - .",
                ".popsection",
                $($operands)*
                failed = inout(reg) 1u32 => failed,
                options(nostack),
            );
        }
        if failed == 0 { Ok(()) } else { Err($crate::memory::uaccess::Fault) }
    }};
}
pub(crate) use guarded_in_open;

/// Reads a 64-bit word, of any alignment. May sleep.
#[inline(always)]
pub fn read_u64(at: u64) -> Result<u64, Fault> {
    let at = checked(at, 8)?;
    let value: u64;
    guarded!("mov {value}, [{at}]", at = in(reg) at, value = out(reg) value,).map(|()| value)
}

/// Writes a 64-bit word, of any alignment. May sleep; after a fault part of it may be written.
#[inline(always)]
pub fn write_u64(at: u64, value: u64) -> Result<(), Fault> {
    let at = checked(at, 8)?;
    guarded!("mov [{at}], {value}", at = in(reg) at, value = in(reg) value,)
}

/// Writes a word to the running program's shadow stack: a fault unless it is one (SDM 2D, WRUSS),
/// as the program's own access, whatever SMAP says. May sleep.
pub fn write_shadow_stack(at: u64, value: u64) -> Result<(), Fault> {
    let at = checked(at, 8)?;
    if !crate::cpu::user_shadow_stack::exist() || !at.is_multiple_of(8) {
        return Err(Fault);
    }
    guarded!("wrussq [{at}], {value}", at = in(reg) at, value = in(reg) value,)
}

/// Writes one word of each of many records to the program, whose array of such records begins at
/// `to`; what else is in them there stays as it is. May sleep; after a fault part of it may be
/// written.
pub fn write_column<const COLUMN: usize>(to: u64, records: &[[u16; 4]]) -> Result<(), Fault> {
    const { assert!(COLUMN < 4) };
    let to = checked(to, size_of_val(records))?;
    let _open = SmapOpen::new();
    for (index, record) in records.iter().enumerate() {
        let at = to + (index * size_of_val(record) + COLUMN * size_of::<u16>()) as u64;
        // SAFETY: the range is the program's; a fault goes on at the label, which is declared to
        // the compiler, with no register changed.
        unsafe {
            core::arch::asm!(
                "2: mov [{at}], {value:x}",
                ".pushsection .extable, \"a\", @progbits",
                ".balign 4",
                ".long 2b - ., {fault} - .",
                ".popsection",
                at = in(reg) at,
                value = in(reg) record[COLUMN],
                fault = label { return Err(Fault) },
                options(nostack, preserves_flags),
            );
        }
    }
    Ok(())
}

/// Atomically replaces an aligned 32-bit word if it equals `expected`; returns what was there.
pub fn compare_exchange_u32(at: u64, expected: u32, new: u32) -> Result<u32, Fault> {
    let at = checked(at, 4)?;
    if !at.is_multiple_of(4) {
        return Err(Fault);
    }
    let _open = SmapOpen::new();
    // SAFETY: the range is the program's; faults are in the exception table.
    let value = unsafe { uaccess_cmpxchg32(at as *mut u32, expected, new) };
    u32::try_from(value).map_err(|_| Fault)
}

/// Copies `len` bytes of a frame to the program at `to`. May sleep. Panics if the range leaves the
/// frame.
#[inline]
pub fn copy_from_frame(to: u64, frame: &Frame, offset: usize, len: usize) -> Result<(), Fault> {
    assert!(offset <= PAGE_SIZE && len <= PAGE_SIZE - offset);
    let to = checked(to, len)?;
    let _open = SmapOpen::new();
    // SAFETY: the source lies in the held frame; faults on the user side are in the exception
    // table.
    let failed = unsafe { uaccess_copy(to as *mut u8, frame.ptr().wrapping_add(offset), len) };
    if failed == 0 { Ok(()) } else { Err(Fault) }
}

/// Copies `len` bytes of the program at `from` into a frame. May sleep. Panics if the range leaves
/// the frame.
#[inline]
pub fn copy_to_frame(frame: &Frame, offset: usize, from: u64, len: usize) -> Result<(), Fault> {
    assert!(offset <= PAGE_SIZE && len <= PAGE_SIZE - offset);
    let from = checked(from, len)?;
    let _open = SmapOpen::new();
    // SAFETY: as in `copy_from_frame`, with the sides exchanged.
    let failed = unsafe { uaccess_copy(frame.ptr().wrapping_add(offset), from as *const u8, len) };
    if failed == 0 { Ok(()) } else { Err(Fault) }
}

/// Where to continue after a fault at kernel address `at`, if the table has an entry.
pub(crate) fn fixup(at: u64) -> Option<u64> {
    let start = (&raw const __extable_start).cast::<[i32; 2]>();
    let end = (&raw const __extable_end).cast::<[i32; 2]>();
    let mut entry = start;
    while entry < end {
        // SAFETY: the linker script bounds the table; entries are two 32-bit words, 4-aligned.
        let [fault, target] = unsafe { entry.read() };
        let fault_at = (entry as u64).wrapping_add_signed(i64::from(fault));
        if fault_at == at {
            return Some((entry as u64 + 4).wrapping_add_signed(i64::from(target)));
        }
        entry = entry.wrapping_add(1);
    }
    None
}
