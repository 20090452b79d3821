//! The register file, set and read around one `syscall` instruction.
//!
//! The entry and signal tests ask whether every register comes back. A compiler cannot be told to
//! leave all of them alone, so one assembly routine loads sixteen general registers, the flags and
//! sixteen vector registers from a block, executes `syscall`, and stores them all back.

use std::arch::global_asm;

/// Registers before and after; `rax` is the number and then the result.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regs {
    /// rax rbx rcx rdx rsi rdi rbp (unused) r8..r15.
    pub gp: [u64; 16],
    /// rflags.
    pub flags: u64,
    pad: u64,
    /// xmm0..xmm15.
    pub xmm: [u128; 16],
}

/// Index of a register in `gp`.
pub const AX: usize = 0;
/// The kernel's return address after a system call.
pub const CX: usize = 2;
/// First argument.
pub const DI: usize = 5;
/// Second argument.
pub const SI: usize = 4;
/// Third argument.
pub const DX: usize = 3;
/// Fourth argument.
pub const X10: usize = 10;
/// The kernel's copy of the flags after a system call.
pub const X11: usize = 11;

impl Regs {
    /// A block in which every register has a value of its own.
    pub fn distinct(nr: i64, args: [u64; 4]) -> Self {
        let mut r = Regs { gp: [0; 16], flags: 0x202, pad: 0, xmm: [0; 16] };
        for i in 0..16 {
            r.gp[i] = 0x1111_0000_0000_0000 + i as u64 * 0x0101_0101_0101;
            r.xmm[i] = (0xabcd_u128 << 112) | (i as u128) << 64 | (0x55aa_0000 + i as u128);
        }
        r.gp[AX] = nr as u64;
        r.gp[DI] = args[0];
        r.gp[SI] = args[1];
        r.gp[DX] = args[2];
        r.gp[X10] = args[3];
        r
    }

    /// Executes the call with these registers; the registers after it.
    pub fn syscall(mut self) -> Self {
        // SAFETY: the routine saves what the C convention wants kept; the call is the test's.
        unsafe { limen_regs_syscall(&raw mut self) };
        self
    }

    /// Fails if a register changed that must not: all but rax, rcx and r11.
    #[track_caller]
    pub fn assert_kept(&self, before: &Regs) {
        for i in 0..16 {
            if ![AX, CX, X11, 7].contains(&i) {
                assert_eq!(self.gp[i], before.gp[i], "general register {i}");
            }
            assert_eq!(self.xmm[i], before.xmm[i], "xmm{i}");
        }
        let kept = 0x0024_0cd5; // ID AC NT are tested apart; OF DF SF ZF AF PF CF
        assert_eq!(self.flags & kept, before.flags & kept, "flags");
    }
}

unsafe extern "C" {
    fn limen_regs_syscall(block: *mut Regs);
    /// The address after the `syscall` instruction: what rcx must hold.
    pub static limen_regs_after: u8;
}

global_asm!(
    ".globl limen_regs_syscall",
    "limen_regs_syscall:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    "mov rax, rdi",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movdqa xmm\\n, [rax + 144 + 16 * \\n]",
    ".endr",
    "mov rbx, [rax + 8]",
    "mov rcx, [rax + 16]",
    "mov rdx, [rax + 24]",
    "mov rsi, [rax + 32]",
    "mov rdi, [rax + 40]",
    "mov rbp, [rax + 48]",
    "mov r8, [rax + 64]",
    "mov r9, [rax + 72]",
    "mov r10, [rax + 80]",
    "mov r11, [rax + 88]",
    "mov r12, [rax + 96]",
    "mov r13, [rax + 104]",
    "mov r14, [rax + 112]",
    "mov r15, [rax + 120]",
    "push qword ptr [rax + 128]",
    "mov rax, [rax]",
    "popfq",
    "syscall",
    ".globl limen_regs_after",
    "limen_regs_after:",
    "pushfq",
    "push rax",
    "mov rax, [rsp + 16]",
    "pop qword ptr [rax]",
    "pop qword ptr [rax + 128]",
    "push 0x202",
    "popfq",
    "mov [rax + 8], rbx",
    "mov [rax + 16], rcx",
    "mov [rax + 24], rdx",
    "mov [rax + 32], rsi",
    "mov [rax + 40], rdi",
    "mov [rax + 48], rbp",
    "mov [rax + 64], r8",
    "mov [rax + 72], r9",
    "mov [rax + 80], r10",
    "mov [rax + 88], r11",
    "mov [rax + 96], r12",
    "mov [rax + 104], r13",
    "mov [rax + 112], r14",
    "mov [rax + 120], r15",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movdqa [rax + 144 + 16 * \\n], xmm\\n",
    ".endr",
    "pop rdi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);
