//! `limen-vmm branches`: how many branches a function takes, by stepping through it.
//!
//! The bytes of the function come on stdin: they are those of a kernel image, and lead nowhere but
//! to themselves. A child executes them, this process steps it (ptrace(2)) and says
//! `taken N deep N instructions N`: taken branches that lead to another place of the function, and
//! calls without their returns, at most.
//!
//! `limen-vmm ticks` calls the function instead, and says `ticks N`: of this CPU's TSC, for one
//! call more than for one of a function that only returns. The least of many tries, since whatever
//! comes between makes it more.

use std::io::Read as _;

use limen_guest_bench::raw::rdtsc;

use crate::machine::Result;

/// Steps at most: the longest loop needs a few hundred.
const STEPS_MAX: u32 = 100_000;
/// Bytes at most.
const BYTES_MAX: usize = 4096;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    taken: u32,
    deep: u64,
    instructions: u32,
}

/// Tries of [`ticks`], and calls in each: one is less than the counter's own price.
const TRIES: u32 = 4000;
const CALLS: u64 = 64;

/// Reads the bytes, and prints what was seen.
pub fn command() -> Result<()> {
    let seen = count(&function()?)?;
    println!("taken {} deep {} instructions {}", seen.taken, seen.deep, seen.instructions);
    Ok(())
}

/// Reads the bytes, and prints what a call costs.
pub fn ticks() -> Result<()> {
    const RETURN: [u8; 1] = [0xc3];
    let [of_function, of_return] = [time(&function()?)?, time(&RETURN)?];
    println!("ticks {}", of_function.saturating_sub(of_return));
    Ok(())
}

fn function() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut input = std::io::stdin().take(BYTES_MAX as u64 + 1);
    input.read_to_end(&mut bytes).map_err(|error| format!("stdin: {error}"))?;
    if bytes.is_empty() || bytes.len() > BYTES_MAX {
        return Err(format!("{} bytes", bytes.len()));
    }
    Ok(bytes)
}

fn time(bytes: &[u8]) -> Result<u64> {
    // SAFETY: see `map`: the bytes are a function without arguments.
    let function = unsafe { core::mem::transmute::<u64, extern "C" fn()>(map(bytes)?) };
    let try_once = |_| {
        let start = rdtsc();
        (0..CALLS).for_each(|_| function());
        rdtsc() - start
    };
    Ok((0..TRIES).map(try_once).min().unwrap_or_default() / CALLS)
}

fn count(bytes: &[u8]) -> Result<Seen> {
    let at = map(bytes)?;
    // SAFETY: the child makes only calls that are safe behind fork, executes the bytes, and ends.
    match unsafe { libc::fork() } {
        -1 => Err("fork".into()),
        0 => {
            // SAFETY: see `map`: the bytes are a function without arguments.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
                core::mem::transmute::<u64, extern "C" fn()>(at)();
                libc::_exit(0)
            }
        }
        child => {
            let seen = step(child, at, bytes);
            // SAFETY: the child is this process's; it may have ended.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, core::ptr::null_mut(), 0);
            }
            seen
        }
    }
}

/// An executable copy of the bytes, at the start of a page.
fn map(bytes: &[u8]) -> Result<u64> {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new anonymous mapping.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), BYTES_MAX, rights, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err("mmap".into());
    }
    // SAFETY: the mapping has room for all of the bytes, and nothing else is there.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast(), bytes.len()) };
    // SAFETY: the mapping is this function's.
    match unsafe { libc::mprotect(at, BYTES_MAX, libc::PROT_READ | libc::PROT_EXEC) } {
        0 => Ok(at as u64),
        _ => Err("mprotect".into()),
    }
}

fn step(child: i32, at: u64, bytes: &[u8]) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut last: Option<(u64, u64)> = None;
    let mut entered = None;
    for _ in 0..STEPS_MAX {
        let mut status = 0;
        // SAFETY: the child is this process's.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
            return Err("waitpid".into());
        }
        if !libc::WIFSTOPPED(status) {
            return match entered {
                Some(_) if libc::WIFEXITED(status) => Ok(seen),
                _ => Err(format!("the child ended with {status:#x}")),
            };
        }
        let mut regs = core::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
        // SAFETY: the child is stopped; the kernel fills the structure.
        let regs = unsafe {
            libc::ptrace(libc::PTRACE_GETREGS, child, 0, regs.as_mut_ptr());
            regs.assume_init()
        };
        let inside = regs.rip.wrapping_sub(at) < bytes.len() as u64;
        if let Some((rip, next)) = last.filter(|_| inside) {
            let is_taken = next != regs.rip && rip != regs.rip;
            seen.taken += u32::from(is_taken);
        }
        last = None;
        if inside {
            let stack = *entered.get_or_insert(regs.rsp);
            seen.instructions += 1;
            let offset = (regs.rip - at) as usize;
            last = length(&bytes[offset..]).map(|length| (regs.rip, regs.rip + length));
            // The frame pointer that the function saves is no call.
            let frames = (stack - regs.rsp) / 8;
            seen.deep = seen.deep.max(frames.saturating_sub(1));
        }
        // SAFETY: the child is stopped.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0) };
    }
    Err("it does not end".into())
}

/// The length of a branch; None: it is none.
fn length(code: &[u8]) -> Option<u64> {
    match code.first()? {
        0xe8 | 0xe9 => Some(5),
        0xeb | 0x70..=0x7f => Some(2),
        0xc3 => Some(1),
        _ => None,
    }
}
