//! PTRACE_GET_SYSCALL_INFO: which system call a tracee stopped at, without looking at registers.

use abi::{Result, general as raw, ptrace as nr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::with_stopped;
use crate::base::user::UserPtr;
use crate::process::Thread;

/// `struct ptrace_syscall_info` where a filter asks the tracer, the longest form.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
struct SyscallInfo {
    op: u8,
    reserved: u8,
    flags: u16,
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    /// At the begin the number and the arguments, at the end the result and whether it is an error.
    /// A filter's data come last.
    words: [u64; 8],
}

/// Bytes before `words`.
const HEAD: usize = core::mem::offset_of!(SyscallInfo, words);
/// AUDIT_ARCH_X86_64: the ELF machine, 64-bit, little-endian.
const ARCH: u32 = 62 | 1 << 31 | 1 << 30;
/// Largest error number.
const MAX_ERRNO: u64 = 4095;

/// Writes what fits into `size` bytes at `to`; returns how many bytes there are.
pub(super) fn get(thread: &Thread, size: u64, to: u64) -> Result<u64> {
    let (info, len) = with_stopped(thread, |state, stop| {
        let regs = &state.registers.general;
        let mut info = SyscallInfo {
            arch: ARCH,
            instruction_pointer: regs.rip,
            stack_pointer: regs.rsp,
            ..SyscallInfo::default()
        };
        let is_syscall = stop.info.is_some_and(|info| info.code == (raw::SIGTRAP | 0x80) as i32);
        let which = if is_syscall { stop.message as u32 } else { 0 };
        let call = [regs.orig_rax, regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        let len = match which {
            _ if stop.code >> 8 == nr::PTRACE_EVENT_SECCOMP => {
                info.op = nr::PTRACE_SYSCALL_INFO_SECCOMP as u8;
                info.words[..7].copy_from_slice(&call);
                info.words[7] = stop.message;
                HEAD + size_of_val(&call) + 4
            }
            nr::PTRACE_EVENTMSG_SYSCALL_ENTRY => {
                info.op = nr::PTRACE_SYSCALL_INFO_ENTRY as u8;
                info.words[..7].copy_from_slice(&call);
                HEAD + size_of_val(&call)
            }
            nr::PTRACE_EVENTMSG_SYSCALL_EXIT => {
                info.op = nr::PTRACE_SYSCALL_INFO_EXIT as u8;
                info.words[0] = regs.rax;
                info.words[1] = u64::from(regs.rax >= MAX_ERRNO.wrapping_neg());
                HEAD + 9
            }
            _ => {
                info.op = nr::PTRACE_SYSCALL_INFO_NONE as u8;
                HEAD
            }
        };
        Ok((info, len))
    })?;
    let fits = usize::try_from(size).map_or(len, |size| size.min(len));
    UserPtr::<u8>::new(to).write_many(&info.as_bytes()[..fits])?;
    Ok(len as u64)
}
