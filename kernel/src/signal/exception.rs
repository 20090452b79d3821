//! Exceptions of a program's own instructions, as signals (SDM 3A chapter 6; sigaction(2)).

use abi::{Errno, general as raw};
use entry::{PtRegs, flags, selector};
use machine::entry::{Exception, PageFault, fault_code, vector};
use machine::fpu;
use machine::memory::USER_END;

use super::fault;
use crate::process::current;
use crate::process::ptrace;
use crate::process::signal::{LastFault, SigInfo, send};

/// An exception of the running program: demand paging, or a signal.
pub fn user_exception(regs: &mut PtRegs, exception: Exception) {
    if exception.vector == vector::PAGE_FAULT {
        let Err(error) = page_fault(&exception) else { return };
        note(&exception);
        return send::force(segv_or_bus(error, exception.address));
    }
    note(&exception);
    if exception.vector == vector::DEBUG {
        return debug_exception(regs, exception.address);
    }
    send::force(signal_for(regs, &exception));
}

/// The registers of the running program cannot be loaded: they stay for its handler to see, and the
/// signal is that of the fault which IRET, or the first instruction's fetch, would cause.
pub fn bad_return(regs: &mut PtRegs) {
    const UPPER_HALF: u64 = !0 << 47;
    // What no caller lets a program set.
    regs.rflags = regs.rflags & !(flags::IOPL | flags::VM) | flags::FIXED | flags::IF;
    let (cs, ss) = (regs.cs, regs.ss);
    let is_code = cs == u64::from(selector::USER_CS);
    let is_stack = ss == u64::from(selector::USER_DS);
    if is_code && is_stack && regs.rip >= UPPER_HALF {
        let error = fault_code::PRESENT | fault_code::USER | fault_code::FETCH;
        note(&Exception { vector: vector::PAGE_FAULT, error, address: regs.rip });
        return send::force(segv_or_bus(Errno::EFAULT, regs.rip));
    }
    // The error code is the selector that cannot be loaded (SDM 2A, IRET).
    let wrong = if !is_code {
        cs
    } else if !is_stack {
        ss
    } else {
        0
    };
    note(&Exception { vector: vector::GENERAL_PROTECTION, error: wrong & 0xfffc, address: 0 });
    send::force(SigInfo::kernel(raw::SIGSEGV));
}

fn page_fault(exception: &Exception) -> abi::Result<()> {
    if exception.address >= USER_END {
        return Err(Errno::EFAULT);
    }
    let fault = PageFault::of_code(exception.address, exception.error);
    fault::user_page_fault(fault)
}

fn note(exception: &Exception) {
    let fault = LastFault {
        vector: u64::from(exception.vector),
        error: exception.error,
        address: exception.address,
    };
    let thread = current();
    let mut signals = thread.signals.lock();
    // Like CR2, the address stays until the next page fault.
    let address = signals.last_fault.address;
    signals.last_fault = fault;
    if exception.vector != vector::PAGE_FAULT {
        signals.last_fault.address = address;
    }
}

fn segv_or_bus(error: Errno, address: u64) -> SigInfo {
    match error {
        Errno::EFAULT => SigInfo::fault(raw::SIGSEGV, raw::SEGV_MAPERR, address),
        Errno::EACCES => SigInfo::fault(raw::SIGSEGV, raw::SEGV_ACCERR, address),
        Errno::EKEYREJECTED => SigInfo::denied_by_key(
            address,
            current().process.mm().map_or(0, |mm| mm.key_of(address)),
        ),
        // No memory is left: as Linux's last resort does.
        Errno::ENOMEM => SigInfo::kernel(raw::SIGKILL),
        _ => SigInfo::fault(raw::SIGBUS, raw::BUS_ADRERR, address),
    }
}

/// DR6: the exception is a single step (SDM 3B, 17.2.3); the low bits are breakpoints.
const SINGLE_STEP: u64 = 1 << 14;
const BREAKPOINTS: u64 = 0xf;

/// A step of the program itself or of its tracer, a hardware breakpoint, or the instruction ICEBP.
fn debug_exception(regs: &mut PtRegs, cause: u64) {
    if current().trace.is_traced() {
        ptrace::step::note_debug_exception(regs, cause);
    }
    let code = if cause & SINGLE_STEP != 0 {
        raw::TRAP_TRACE
    } else if cause & BREAKPOINTS != 0 {
        raw::TRAP_HWBKPT
    } else {
        raw::TRAP_BRKPT
    };
    send::force(SigInfo::fault(raw::SIGTRAP, code, regs.rip));
}

/// A return that its shadow stack did not have (sigaction(2)).
const SEGV_CPERR: u32 = 10;

fn signal_for(regs: &PtRegs, exception: &Exception) -> SigInfo {
    let rip = regs.rip;
    match exception.vector {
        vector::DIVIDE => SigInfo::fault(raw::SIGFPE, raw::FPE_INTDIV, rip),
        vector::BREAKPOINT => SigInfo::kernel(raw::SIGTRAP),
        vector::INVALID_OPCODE => SigInfo::fault(raw::SIGILL, raw::ILL_ILLOPN, rip),
        vector::STACK | vector::SEGMENT_NOT_PRESENT => SigInfo::kernel(raw::SIGBUS),
        vector::ALIGNMENT => SigInfo::fault(raw::SIGBUS, raw::BUS_ADRALN, 0),
        vector::X87 => SigInfo::fault(raw::SIGFPE, x87_code(), rip),
        vector::SIMD => SigInfo::fault(raw::SIGFPE, simd_code(), rip),
        vector::CONTROL_PROTECTION => SigInfo::fault(raw::SIGSEGV, SEGV_CPERR, 0),
        _ => SigInfo::kernel(raw::SIGSEGV),
    }
}

/// Exceptions of the x87 unit that are raised and not masked (SDM 1, 8.1).
fn x87_code() -> u32 {
    let state = fpu::status();
    fpe_code(u32::from(state.x87_status & !state.x87_control & 0x3f))
}

/// The same for SSE: status in bits 0 to 5 of MXCSR, masks in 7 to 12 (SDM 1, 10.2.3).
fn simd_code() -> u32 {
    let mxcsr = fpu::status().mxcsr;
    fpe_code(mxcsr & !(mxcsr >> 7) & 0x3f)
}

/// One code for a set of exceptions: invalid, denormal, zero, overflow, underflow, precision.
fn fpe_code(raised: u32) -> u32 {
    if raised & 1 != 0 {
        raw::FPE_FLTINV
    } else if raised & 1 << 2 != 0 {
        raw::FPE_FLTDIV
    } else if raised & 1 << 3 != 0 {
        raw::FPE_FLTOVF
    } else if raised & (1 << 1 | 1 << 4) != 0 {
        raw::FPE_FLTUND
    } else if raised & 1 << 5 != 0 {
        raw::FPE_FLTRES
    } else {
        0
    }
}
