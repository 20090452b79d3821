//! A stopped tracee's general registers (PTRACE_GETREGS, PTRACE_PEEKUSER …), segment bases, and
//! hardware breakpoints, by their places in `struct user`.
//!
//! What a tracer writes is checked as it is written: the frame that is made of it must be one that
//! the return to the program can load, or one it will refuse and answer with a signal. Addresses
//! outside the canonical range are refused here already.

use abi::{Errno, Result};
use entry::shadow_stack::{Action, Call, Thread as State, checked_ssp, decide, feature};
use entry::{PtRegs, flags};
use machine::memory::USER_END;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::with_stopped;
use crate::base::user::UserPtr;
use crate::process::Thread;
use crate::process::ptrace::TraceeState;

/// `struct user_regs_struct` as words: the 21 of [`PtRegs`], then `fs_base`, `gs_base` and the
/// selectors of DS, ES, FS and GS.
pub(super) const WORDS: usize = 27;
const GENERAL: usize = size_of::<PtRegs>() / 8;

/// Places in that structure.
mod place {
    pub(super) const RIP: usize = 16;
    pub(super) const CS: usize = 17;
    pub(super) const RFLAGS: usize = 18;
    pub(super) const SS: usize = 20;
    pub(super) const FS_BASE: usize = 21;
    pub(super) const GS_BASE: usize = 22;
    pub(super) const DS: usize = 23;
    pub(super) const GS: usize = 26;
}

/// `sizeof(struct user)`, and where its debug registers are.
const USER_BYTES: u64 = 928;
const DEBUG_AT: u64 = 848;

/// The general registers as an array of words, in the order of `struct pt_regs`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Frame([u64; GENERAL]);

fn to_frame(r: &PtRegs) -> Frame {
    Frame([
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx,
        r.rsi, r.rdi, r.orig_rax, r.rip, r.cs, r.rflags, r.rsp, r.ss,
    ])
}

fn general_word(regs: &mut PtRegs, index: usize) -> Option<&mut u64> {
    Some(match index {
        0 => &mut regs.r15,
        1 => &mut regs.r14,
        2 => &mut regs.r13,
        3 => &mut regs.r12,
        4 => &mut regs.rbp,
        5 => &mut regs.rbx,
        6 => &mut regs.r11,
        7 => &mut regs.r10,
        8 => &mut regs.r9,
        9 => &mut regs.r8,
        10 => &mut regs.rax,
        11 => &mut regs.rcx,
        12 => &mut regs.rdx,
        13 => &mut regs.rsi,
        14 => &mut regs.rdi,
        15 => &mut regs.orig_rax,
        16 => &mut regs.rip,
        17 => &mut regs.cs,
        18 => &mut regs.rflags,
        19 => &mut regs.rsp,
        20 => &mut regs.ss,
        _ => return None,
    })
}

pub(super) fn read_all(state: &TraceeState) -> [u64; WORDS] {
    words_of(&state.registers.general, (state.registers.fs_base, state.registers.gs_base))
}

/// Those of the running thread, which entered the kernel with `regs`.
pub(super) fn of_running(regs: &PtRegs) -> [u64; WORDS] {
    words_of(regs, machine::task::user_bases())
}

fn words_of(regs: &PtRegs, (fs_base, gs_base): (u64, u64)) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..GENERAL].copy_from_slice(&to_frame(regs).0);
    words[place::FS_BASE] = fs_base;
    words[place::GS_BASE] = gs_base;
    // The data selectors are null in every program.
    words
}

/// Whether a selector is one that a program can have: null, or of its privilege level.
fn is_user_selector(value: u64) -> bool {
    value == 0 || value <= 0xffff && value & 3 == 3
}

fn is_canonical(address: u64) -> bool {
    ((address << 16) as i64 >> 16) as u64 == address
}

/// Sets one word of the structure. EIO if a program cannot have this value there.
pub(super) fn write_one(state: &mut TraceeState, index: usize, value: u64) -> Result<()> {
    let registers = &mut state.registers;
    let allowed = match index {
        place::RIP => is_canonical(value),
        place::CS | place::SS => value != 0 && is_user_selector(value),
        place::DS..=place::GS => is_user_selector(value),
        place::FS_BASE | place::GS_BASE => value < USER_END,
        _ => index < WORDS,
    };
    if !allowed {
        return Err(Errno::EIO);
    }
    match index {
        place::FS_BASE if registers.fs_base != value => {
            (registers.fs_base, registers.bases_changed) = (value, true);
        }
        place::GS_BASE if registers.gs_base != value => {
            (registers.gs_base, registers.bases_changed) = (value, true);
        }
        place::RFLAGS => {
            let own = registers.general.rflags & !flags::USER_SETTABLE;
            registers.general.rflags = own | value & flags::USER_SETTABLE;
        }
        _ => {
            // Selectors of data segments are not kept: nothing in 64-bit mode uses them.
            if let Some(word) = general_word(&mut registers.general, index) {
                *word = value;
            }
        }
    }
    Ok(())
}

/// PTRACE_GETREGS.
pub(super) fn get_all(thread: &Thread, to: u64) -> Result<u64> {
    let words = with_stopped(thread, |state, _| Ok(read_all(state)))?;
    UserPtr::<u64>::new(to).write_many(&words)?;
    Ok(0)
}

/// PTRACE_SETREGS. As on Linux, registers before the first refused one are set.
pub(super) fn set_all(thread: &Thread, from: u64) -> Result<u64> {
    let words: [u64; WORDS] = UserPtr::new(from).read()?;
    with_stopped(thread, |state, _| write_many(state, 0, &words))?;
    Ok(0)
}

/// Sets words from place `first` on.
pub(super) fn write_many(state: &mut TraceeState, first: usize, words: &[u64]) -> Result<()> {
    words.iter().zip(first..).try_for_each(|(&word, index)| write_one(state, index, word))
}

/// PTRACE_PEEKUSER.
pub(super) fn peek_user(thread: &Thread, offset: u64, to: u64) -> Result<u64> {
    let index = user_index(offset)?;
    let word = with_stopped(thread, |state, _| {
        Ok(match (index, debug_index(offset)) {
            (index, _) if index < WORDS => read_all(state)[index],
            (_, Some(number)) => read_debug(state, number),
            // The rest of the structure was for core dumps of another age.
            _ => 0,
        })
    })?;
    UserPtr::<u64>::new(to).write(&word)?;
    Ok(0)
}

/// PTRACE_POKEUSER.
pub(super) fn poke_user(thread: &Thread, offset: u64, word: u64) -> Result<u64> {
    let index = user_index(offset)?;
    with_stopped(thread, |state, _| match (index, debug_index(offset)) {
        (index, _) if index < WORDS => write_one(state, index, word),
        (_, Some(number)) => write_debug(state, number, word),
        _ => Err(Errno::EIO),
    })?;
    Ok(0)
}

fn user_index(offset: u64) -> Result<usize> {
    if offset.is_multiple_of(8) && offset < USER_BYTES {
        Ok((offset / 8) as usize)
    } else {
        Err(Errno::EIO)
    }
}

fn debug_index(offset: u64) -> Option<usize> {
    (DEBUG_AT..DEBUG_AT + 64).contains(&offset).then(|| ((offset - DEBUG_AT) / 8) as usize)
}

fn read_debug(state: &TraceeState, number: usize) -> u64 {
    match number {
        0..=3 => state.debug.address(number),
        6 => state.debug_status,
        7 => state.debug.control(),
        _ => 0,
    }
}

/// DR4 and DR5 do not exist (EIO); EINVAL for what no program may have.
fn write_debug(state: &mut TraceeState, number: usize, value: u64) -> Result<()> {
    let done = match number {
        0..=3 => state.debug.set_address(number, value),
        6 => {
            state.debug_status = value;
            return Ok(());
        }
        7 => state.debug.set_control(value),
        _ => return Err(Errno::EIO),
    };
    state.registers.debug_changed = true;
    if done { Ok(()) } else { Err(Errno::EINVAL) }
}

/// PTRACE_ARCH_PRCTL: arch_prctl(2) of the tracee, for the segment bases and its shadow stack.
pub(super) fn arch_prctl(thread: &Thread, argument: u64, code: u64) -> Result<u64> {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    let place = if matches!(code, SET_FS | GET_FS) { place::FS_BASE } else { place::GS_BASE };
    match code {
        SET_FS | SET_GS => {
            let set = with_stopped(thread, |state, _| write_one(state, place, argument));
            set.map_err(|error| if error == Errno::EIO { Errno::EPERM } else { error })?;
        }
        GET_FS | GET_GS => {
            let word = with_stopped(thread, |state, _| Ok(read_all(state)[place]))?;
            UserPtr::<u64>::new(argument).write(&word)?;
        }
        _ => return shadow_stack(thread, Call::from_code(code).ok_or(Errno::EINVAL)?, argument),
    }
    Ok(0)
}

/// The same for its shadow stack: a tracer locks and unlocks, and switches nothing.
fn shadow_stack(thread: &Thread, call: Call, argument: u64) -> Result<u64> {
    let own = &thread.shadow_stack;
    match decide(call, argument, &State::default()) {
        Ok(Action::Lock(features)) => own.lock(features),
        Ok(Action::Unlock(features)) => own.unlock(features),
        Ok(Action::Tell) => UserPtr::<u64>::new(argument).write(&own.features())?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// ENODEV unless the tracee has a shadow stack.
fn check_shadow_stack(thread: &Thread) -> Result<()> {
    if thread.shadow_stack.features() & feature::SHSTK != 0 { Ok(()) } else { Err(Errno::ENODEV) }
}

/// Where the tracee's shadow stack ends (NT_X86_SHSTK).
pub(super) fn shadow_pointer(thread: &Thread) -> Result<u64> {
    check_shadow_stack(thread)?;
    with_stopped(thread, |state, _| state.registers.shadow.ok_or(Errno::ENODEV))
}

/// Moves that. EINVAL for what no program can have there.
pub(super) fn set_shadow_pointer(thread: &Thread, bytes: &[u8]) -> Result<()> {
    check_shadow_stack(thread)?;
    let word = bytes.try_into().map_err(|_| Errno::EINVAL)?;
    let pointer = checked_ssp(u64::from_le_bytes(word), USER_END).ok_or(Errno::EINVAL)?;
    with_stopped(thread, |state, _| {
        (state.registers.shadow, state.registers.shadow_changed) = (Some(pointer), true);
        Ok(())
    })
}
