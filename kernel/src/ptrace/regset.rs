//! Register sets by their names in core files (PTRACE_GETREGSET, PTRACE_SETREGSET): the general
//! registers, the legacy FPU image, the whole XSAVE image, and the end of the shadow stack.
//!
//! The image that a switch saves may lack components that were in their initial state (XSAVEOPT
//! does not write them, SDM 1, 13.7); a tracer is given them in full.

use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::fpu::{FXSAVE_BYTES, components, state_bytes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{registers, with_stopped};
use crate::base::user::UserPtr;
use crate::process::Thread;
use crate::process::ptrace::TraceeState;

/// General registers; the legacy FPU image; the XSAVE image (elf.h).
const NT_PRSTATUS: u64 = 1;
const NT_PRFPREG: u64 = 2;
const NT_X86_XSTATE: u64 = 0x202;
/// Where the shadow stack ends.
const NT_X86_SHSTK: u64 = 0x204;

/// Bytes that every size is a multiple of.
const UNIT: usize = 8;
/// Where the image leaves room for software: Linux puts the mask of enabled components there.
const ENABLED_AT: usize = 464;
/// XSTATE_BV: which components are not in their initial state.
const PRESENT_AT: usize = 512;
const HEADER_END: usize = 576;
const X87: u64 = 1;
const SSE: u64 = 2;
const FCW_INITIAL: u16 = 0x37f;
/// MXCSR bits that exist.
const MXCSR_MASK: u32 = 0xffff;
const MXCSR_AT: usize = 24;

/// `struct iovec`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Vector {
    base: u64,
    len: u64,
}

fn size_of_set(kind: u64) -> Result<usize> {
    match kind {
        NT_PRSTATUS => Ok(registers::WORDS * 8),
        NT_PRFPREG => Ok(FXSAVE_BYTES),
        NT_X86_XSTATE if machine::cpu::features().xsave => Ok(state_bytes()),
        NT_X86_SHSTK => Ok(UNIT),
        _ => Err(Errno::EINVAL),
    }
}

/// The tracer's buffer, its length cut to the set's.
fn read_vector(kind: u64, data: u64) -> Result<(UserPtr<Vector>, Vector)> {
    let pointer = UserPtr::<Vector>::new(data);
    let mut vector = pointer.read()?;
    let size = size_of_set(kind)?;
    if !vector.len.is_multiple_of(UNIT as u64) {
        return Err(Errno::EINVAL);
    }
    vector.len = vector.len.min(size as u64);
    Ok((pointer, vector))
}

/// PTRACE_GETREGSET.
pub(super) fn get(thread: &Thread, kind: u64, data: u64) -> Result<u64> {
    let (pointer, vector) = read_vector(kind, data)?;
    let bytes = match kind {
        NT_PRSTATUS => {
            let words = with_stopped(thread, |state, _| Ok(registers::read_all(state)))?;
            let mut bytes = Vec::new();
            bytes.extend_from_slice(words.as_bytes());
            bytes
        }
        NT_X86_SHSTK => registers::shadow_pointer(thread)?.to_le_bytes().to_vec(),
        _ => fpu_image(thread)?,
    };
    let len = (vector.len as usize).min(bytes.len());
    UserPtr::<u8>::new(vector.base).write_many(&bytes[..len])?;
    pointer.write(&vector)?;
    Ok(0)
}

/// PTRACE_SETREGSET.
pub(super) fn set(thread: &Thread, kind: u64, data: u64) -> Result<u64> {
    let (pointer, vector) = read_vector(kind, data)?;
    let bytes = UserPtr::<u8>::new(vector.base).read_many(vector.len as usize)?;
    match kind {
        NT_PRSTATUS => with_stopped(thread, |state, _| {
            let words = bytes.chunks_exact(8).map(|word| {
                let mut value = [0; 8];
                value.copy_from_slice(word);
                u64::from_le_bytes(value)
            });
            words.enumerate().try_for_each(|(at, word)| registers::write_one(state, at, word))
        })?,
        NT_PRFPREG => set_legacy(thread, &bytes)?,
        NT_X86_SHSTK => registers::set_shadow_pointer(thread, &bytes)?,
        // Only a whole image says what it means.
        _ if bytes.len() < state_bytes() => return Err(Errno::EFAULT),
        _ => set_image(thread, &bytes)?,
    }
    pointer.write(&vector)?;
    Ok(0)
}

/// PTRACE_GETFPREGS.
pub(super) fn get_legacy_fpu(thread: &Thread, to: u64) -> Result<u64> {
    let image = fpu_image(thread)?;
    UserPtr::<u8>::new(to).write_many(&image[..FXSAVE_BYTES])?;
    Ok(0)
}

/// PTRACE_SETFPREGS.
pub(super) fn set_legacy_fpu(thread: &Thread, from: u64) -> Result<u64> {
    let bytes = UserPtr::<u8>::new(from).read_many(FXSAVE_BYTES)?;
    set_legacy(thread, &bytes)?;
    Ok(0)
}

/// The tracee's image, complete.
fn fpu_image(thread: &Thread) -> Result<Vec<u8>> {
    with_stopped(thread, |state, _| {
        let fpu = state.fpu.as_ref().ok_or(Errno::ENOMEM)?;
        whole_image(fpu.bytes())
    })
}

/// What a switch saved, with what it left out. ENOMEM.
pub(super) fn whole_image(saved: &[u8]) -> Result<Vec<u8>> {
    let mut image = Vec::new();
    image.try_reserve_exact(saved.len()).map_err(|_| Errno::ENOMEM)?;
    image.extend_from_slice(saved);
    complete(&mut image);
    image[ENABLED_AT..ENABLED_AT + 8].copy_from_slice(&components().to_le_bytes());
    Ok(image)
}

/// Writes the initial state of the components that the image says are in it.
fn complete(image: &mut [u8]) {
    let present = present(image);
    if present & X87 == 0 {
        image[..MXCSR_AT].fill(0);
        image[..2].copy_from_slice(&FCW_INITIAL.to_le_bytes());
        image[32..160].fill(0);
    }
    if present & SSE == 0 {
        image[160..416].fill(0);
    }
    if !machine::cpu::features().xsave {
        return;
    }
    for component in (2..63).filter(|bit| components() & 1 << bit != 0 && present & 1 << bit == 0) {
        // Size and place of a component (SDM 2A, CPUID leaf 0DH).
        let [size, offset, ..] = machine::cpu::cpuid(0xd, component);
        let end = (offset as usize + size as usize).min(image.len());
        if let Some(part) = image.get_mut(offset as usize..end) {
            part.fill(0);
        }
    }
}

fn present(image: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&image[PRESENT_AT..PRESENT_AT + 8]);
    u64::from_le_bytes(word)
}

/// Replaces the x87 and SSE registers, in whole or in the part that `bytes` covers.
fn set_legacy(thread: &Thread, bytes: &[u8]) -> Result<()> {
    let mut image = fpu_image(thread)?;
    let len = bytes.len().min(FXSAVE_BYTES);
    image[..len].copy_from_slice(&bytes[..len]);
    let present = present(&image) | X87 | SSE;
    image[PRESENT_AT..PRESENT_AT + 8].copy_from_slice(&present.to_le_bytes());
    set_image(thread, &image)
}

/// EINVAL for what the CPU would not load: bits of MXCSR, components or header bytes that do not
/// exist.
fn set_image(thread: &Thread, image: &[u8]) -> Result<()> {
    let mut mxcsr = [0; 4];
    mxcsr.copy_from_slice(&image[MXCSR_AT..MXCSR_AT + 4]);
    let header = &image[PRESENT_AT + 8..HEADER_END];
    if u32::from_le_bytes(mxcsr) & !MXCSR_MASK != 0
        || present(image) & !components() != 0
        || header.iter().any(|&byte| byte != 0)
    {
        return Err(Errno::EINVAL);
    }
    with_stopped(thread, |state: &mut TraceeState, _| {
        state.fpu.as_mut().ok_or(Errno::ENOMEM)?.set_from_user(image);
        state.registers.fpu_changed = true;
        Ok(())
    })
}
