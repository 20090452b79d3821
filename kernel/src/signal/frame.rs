//! The frame of a signal handler on the program's stack, and the way back from it.
//!
//! The layout is Linux's for x86-64, which C libraries, unwinders and language runtimes know by
//! heart (sigreturn(2), `struct rt_sigframe`). From low to high addresses: return address (the
//! restorer), `ucontext_t`, `siginfo_t`, padding, then the XSAVE image with its two marks.
//!
//! The program can write anything into the frame before it returns; nothing of it is trusted: flags
//! keep their privileged bits, the FPU image goes through `FpuState::set_from_user`, and a segment
//! or a RIP that no program can have is caught at the return.

use abi::{Errno, Result, general as raw};
use alloc::vec::Vec;
use entry::{PtRegs, flags, selector};
use machine::fpu::{self, FXSAVE_BYTES, state_bytes};
use machine::pkey::Pkru;
use machine::task;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::base::user::{UserPtr, efault};
use crate::mm::shadow_stack;
use crate::process::current;
use crate::process::signal::altstack::{self, StackT};
use crate::process::signal::info::UserSigInfo;
use crate::process::signal::{Action, SigInfo, UNBLOCKABLE, send};

/// `struct sigcontext`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
struct SigContext {
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rflags: u64,
    cs: u16,
    gs: u16,
    fs: u16,
    ss: u16,
    error: u64,
    vector: u64,
    old_mask: u64,
    cr2: u64,
    fpstate: u64,
    reserved: [u64; 8],
}

/// `struct ucontext` as the kernel has it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct UContext {
    flags: u64,
    link: u64,
    stack: StackT,
    context: SigContext,
    mask: u64,
}

/// `struct rt_sigframe`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct RtSigFrame {
    return_address: u64,
    context: UContext,
    info: UserSigInfo,
}

/// `struct _fpx_sw_bytes`: says how large the image is, in bytes 464 to 511 of it, which the CPU
/// leaves to software.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct FpxSwBytes {
    magic: u32,
    extended_size: u32,
    features: u64,
    xstate_size: u32,
    padding: [u32; 7],
}

const _: () = assert!(size_of::<SigContext>() == 256);
const _: () = assert!(size_of::<UContext>() == 304);
const _: () = assert!(size_of::<FpxSwBytes>() == 48);

const SW_BYTES_AT: usize = FXSAVE_BYTES - size_of::<FpxSwBytes>();
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Bytes below the stack pointer that a function may use without moving it (psABI).
const RED_ZONE: u64 = 128;
/// `uc_flags`: there is an XSAVE image, and SS is saved and will be restored.
const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;

/// Largest frame for AT_MINSIGSTKSZ: everything above the stack pointer a handler starts with.
#[must_use]
pub fn min_stack_bytes() -> usize {
    size_of::<RtSigFrame>() + state_bytes() + size_of::<u32>() + 64 + 16
}

/// Puts the frame on the program's stack and makes `regs` enter the handler. EFAULT if it does not
/// fit there; then nothing has changed.
pub fn push(regs: &mut PtRegs, info: &SigInfo, action: &Action) -> Result<()> {
    if !action.has(raw::SA_RESTORER) {
        return Err(Errno::EFAULT);
    }
    let thread = current();
    let (alt, mask, fault) = {
        let signals = thread.signals.lock();
        (signals.alt_stack, signals.saved_mask.unwrap_or(signals.blocked), signals.last_fault)
    };
    let on_alt = alt.contains(regs.rsp);
    let mut sp = regs.rsp.wrapping_sub(RED_ZONE);
    let mut entering_alt = false;
    if action.has(raw::SA_ONSTACK)
        && !on_alt
        && let Some(top) = alt.top()
    {
        sp = top;
        entering_alt = true;
    }
    let image_bytes = state_bytes() + size_of::<u32>();
    let fpstate = sp.wrapping_sub(image_bytes as u64) & !63;
    let frame_at = (fpstate.wrapping_sub(size_of::<RtSigFrame>() as u64) & !15).wrapping_sub(8);
    // A handler that overflows its alternate stack must not write below it.
    if (on_alt || entering_alt) && !(frame_at > alt.base && frame_at - alt.base <= alt.size) {
        return Err(Errno::EFAULT);
    }
    // Only 64-bit code is known to be left with the SS that it came with.
    let strict = if regs.cs as u16 == selector::USER_CS { UC_STRICT_RESTORE_SS } else { 0 };
    let frame = RtSigFrame {
        return_address: action.restorer,
        context: UContext {
            flags: UC_FP_XSTATE | UC_SIGCONTEXT_SS | strict,
            link: 0,
            stack: alt.to_user(regs.rsp),
            context: SigContext {
                error: fault.error,
                vector: fault.vector,
                cr2: fault.address,
                old_mask: mask,
                fpstate,
                ..save(regs)
            },
            mask,
        },
        info: info.to_user(),
    };
    // The stack of a handler need not be what the program's own keys allow.
    let keys = Pkru::read();
    Pkru::ALL.load();
    let pushed =
        push_fpu(fpstate, keys).and_then(|()| UserPtr::<RtSigFrame>::new(frame_at).write(&frame));
    keys.load();
    pushed?;
    shadow_stack::push_signal(action.restorer)?;
    if alt.auto_disarm {
        thread.signals.lock().alt_stack = altstack::AltStack::default();
    }
    fpu::reset_running();
    enter(regs, info, action, frame_at);
    Ok(())
}

/// The registers with which a handler starts.
fn enter(regs: &mut PtRegs, info: &SigInfo, action: &Action, frame_at: u64) {
    let context = core::mem::offset_of!(RtSigFrame, context) as u64;
    let siginfo = core::mem::offset_of!(RtSigFrame, info) as u64;
    regs.rdi = u64::from(info.number());
    regs.rsi = frame_at + siginfo;
    regs.rdx = frame_at + context;
    regs.rax = 0;
    regs.rsp = frame_at;
    regs.rip = action.handler;
    regs.rflags &= !(flags::DF | flags::RF | flags::TF);
    regs.cs = u64::from(selector::USER_CS);
    regs.ss = u64::from(selector::USER_DS);
    regs.orig_rax = u64::MAX;
    // Dead registers at a function's entry: with these values SYSRET can go there.
    regs.rcx = regs.rip;
    regs.r11 = regs.rflags;
}

fn save(regs: &PtRegs) -> SigContext {
    SigContext {
        r8: regs.r8,
        r9: regs.r9,
        r10: regs.r10,
        r11: regs.r11,
        r12: regs.r12,
        r13: regs.r13,
        r14: regs.r14,
        r15: regs.r15,
        rdi: regs.rdi,
        rsi: regs.rsi,
        rbp: regs.rbp,
        rbx: regs.rbx,
        rdx: regs.rdx,
        rax: regs.rax,
        rcx: regs.rcx,
        rsp: regs.rsp,
        rip: regs.rip,
        rflags: regs.rflags,
        cs: regs.cs as u16,
        ss: regs.ss as u16,
        ..SigContext::default()
    }
}

/// Writes the FPU image with its marks to the program at `to`; `keys`: its rights of keys.
fn push_fpu(to: u64, keys: Pkru) -> Result<()> {
    fpu::store_to_user(to, keys).map_err(efault)?;
    let size = state_bytes();
    let marks = FpxSwBytes {
        magic: FP_XSTATE_MAGIC1,
        extended_size: (size + size_of::<u32>()) as u32,
        features: fpu::components(),
        xstate_size: size as u32,
        padding: [0; 7],
    };
    UserPtr::<FpxSwBytes>::new(to + SW_BYTES_AT as u64).write(&marks)?;
    UserPtr::<u32>::new(to + size as u64).write(&FP_XSTATE_MAGIC2)
}

/// rt_sigreturn(2): back to where the handler interrupted the program.
pub fn sigreturn(regs: &mut PtRegs) -> u64 {
    // The handler's return has popped the return address.
    let frame_at = regs.rsp.wrapping_sub(8);
    // As where it was pushed; the frame has what is loaded then.
    let keys = Pkru::read();
    Pkru::ALL.load();
    if restore(regs, frame_at).is_err() {
        keys.load();
        send::force(SigInfo::kernel(raw::SIGSEGV));
        return 0;
    }
    regs.rax
}

fn restore(regs: &mut PtRegs, frame_at: u64) -> Result<()> {
    let context_at = frame_at.wrapping_add(core::mem::offset_of!(RtSigFrame, context) as u64);
    let user = UserPtr::<UContext>::new(context_at).read()?;
    pop_fpu(user.context.fpstate)?;
    load(regs, &user.context);
    let thread = current();
    shadow_stack::pop_signal(|| thread.process.mm())?;
    // Else the frame may be that of a program which saves no SS.
    if user.flags & UC_STRICT_RESTORE_SS != 0 {
        regs.ss = u64::from(user.context.ss | 3);
    }
    {
        let mut signals = thread.signals.lock();
        signals.blocked = user.mask & !UNBLOCKABLE;
        // What the frame says about the stack is taken if it is sensible; errors mean nothing here.
        let _ = signals.alt_stack.change(&user.stack, regs.rsp);
    }
    thread.recheck_signals();
    Ok(())
}

fn load(regs: &mut PtRegs, from: &SigContext) {
    let settable = flags::SIGRETURN_SETTABLE;
    *regs = PtRegs {
        r8: from.r8,
        r9: from.r9,
        r10: from.r10,
        r11: from.r11,
        r12: from.r12,
        r13: from.r13,
        r14: from.r14,
        r15: from.r15,
        rdi: from.rdi,
        rsi: from.rsi,
        rbp: from.rbp,
        rbx: from.rbx,
        rdx: from.rdx,
        rax: from.rax,
        rcx: from.rcx,
        rsp: from.rsp,
        rip: from.rip,
        rflags: regs.rflags & !settable | from.rflags & settable,
        cs: u64::from(from.cs | 3),
        ss: u64::from(selector::USER_DS),
        // Not in a system call: nothing to restart.
        orig_rax: u64::MAX,
    };
}

/// Loads the FPU from the image at `from`; 0 means the initial state.
fn pop_fpu(from: u64) -> Result<()> {
    if from == 0 {
        fpu::reset_running();
        return Ok(());
    }
    let size = state_bytes();
    let mut marks = FpxSwBytes::new_zeroed();
    UserPtr::<u8>::new(from.wrapping_add(SW_BYTES_AT as u64)).read_bytes(marks.as_mut_bytes())?;
    let is_extended = extended_image(&marks, from, size);
    if is_extended && fpu::load_from_user(from).is_ok() {
        return Ok(());
    }
    // Only the legacy part, not aligned, or with contents that the CPU refuses as they are.
    let mut image: Vec<u8> = Vec::new();
    image.try_reserve_exact(size).map_err(|_| Errno::ENOMEM)?;
    image.resize(if is_extended { size } else { FXSAVE_BYTES }, 0);
    UserPtr::<u8>::new(from).read_bytes(&mut image)?;
    task::set_fpu_from_user(&image);
    Ok(())
}

/// Whether the marks say that a whole XSAVE image is there; else only the legacy part counts.
fn extended_image(marks: &FpxSwBytes, from: u64, size: usize) -> bool {
    let end = from.wrapping_add(size as u64);
    marks.magic == FP_XSTATE_MAGIC1
        && marks.xstate_size as usize == size
        && marks.extended_size as usize == size + size_of::<u32>()
        && UserPtr::<u32>::new(end).read() == Ok(FP_XSTATE_MAGIC2)
}
