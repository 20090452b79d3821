//! A call of a thread with a filter: whether to make it, and what happens instead.

use core::fmt::Arguments;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, general as raw};
use entry::PtRegs;
use seccomp::{Data, action};

use crate::base::args::Args;
use crate::process::current;
use crate::process::seccomp::{ARCH, Answer, Mode, with_own_mode};
use crate::process::signal::{self, SigInfo, send};
use crate::process::{exit, ptrace, work};

/// Lines that programs can make the kernel log.
const LOG_LINES_MAX: u32 = 100;
/// Largest error number.
const ERRNO_MAX: u32 = 4095;

/// Whether the running thread may make the call in `regs`. If not, RAX has the result.
pub fn may_call(regs: &mut Args) -> bool {
    match ask(regs) {
        Asked::Nobody => true,
        Asked::Strict => is_strict_call(regs.all()),
        Asked::Filters(action::ALLOW, _) => true,
        Asked::Filters(answer, logs) => act(regs.all(), answer, logs, false),
    }
}

/// What a thread's mode says to a call.
enum Asked {
    Nobody,
    Strict,
    Filters(u32, bool),
}

/// Nothing of the chain is in hand when this returns: nobody comes back from the end of a thread.
fn ask(regs: &PtRegs) -> Asked {
    with_own_mode(|mode| match mode {
        Mode::Disabled => Asked::Nobody,
        Mode::Strict => Asked::Strict,
        Mode::Filter(filter) if filter.always_allows(regs.orig_rax as u32) => Asked::Nobody,
        Mode::Filter(filter) => {
            let (answer, logs) = filter.ask(&data_of(regs));
            Asked::Filters(answer, logs)
        }
    })
}

fn data_of(regs: &PtRegs) -> Data {
    let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    Data::new(regs.orig_rax as u32, ARCH, regs.rip, arguments)
}

fn is_strict_call(regs: &mut PtRegs) -> bool {
    let number = regs.orig_rax as u32;
    if matches!(number, raw::__NR_read | raw::__NR_write | raw::__NR_exit | raw::__NR_rt_sigreturn)
    {
        return true;
    }
    exit::exit_thread(regs, raw::SIGKILL as i32)
}

/// Does what the filters want. `asked_again`: the tracer has had its say.
fn act(regs: &mut PtRegs, answer: u32, logs: bool, asked_again: bool) -> bool {
    let value = answer & action::DATA;
    match answer & action::MASK {
        action::ALLOW => return true,
        action::TRACE if asked_again => return true,
        action::LOG => {
            log(regs, answer);
            return true;
        }
        _ => {}
    }
    if logs {
        log(regs, answer);
    }
    match answer & action::MASK {
        action::ERRNO => regs.rax = u64::from(value.min(ERRNO_MAX)).wrapping_neg(),
        action::TRAP => {
            let number = regs.orig_rax as u32;
            // As if the call had not begun: the handler may make it.
            regs.rax = regs.orig_rax;
            send::force(SigInfo::filtered(regs.rip, number, ARCH, value));
        }
        action::TRACE => return trace(regs, value),
        action::USER_NOTIF => return notify(regs, answer),
        other => kill(regs, other, value),
    }
    false
}

/// Lets the tracer decide: it may change the call, or skip it by the number -1.
fn trace(regs: &mut PtRegs, value: u32) -> bool {
    if !ptrace::stop::wants(ptrace::Event::SECCOMP) {
        regs.rax = Errno::ENOSYS.to_raw();
        return false;
    }
    ptrace::stop::event(regs, ptrace::Event::SECCOMP, value.into());
    if current().task().work() & work::EXIT != 0 || (regs.orig_rax as i32) < 0 {
        return false;
    }
    match ask(regs) {
        Asked::Filters(answer, logs) => act(regs, answer, logs, true),
        Asked::Nobody => true,
        Asked::Strict => false,
    }
}

/// Lets the listener's supervisor decide; without one the call is not there.
#[cold]
fn notify(regs: &mut PtRegs, answer: u32) -> bool {
    let data = data_of(regs);
    let supervisor = with_own_mode(|mode| match mode {
        Mode::Filter(filter) => filter.supervisor(&data, answer),
        Mode::Disabled | Mode::Strict => None,
    });
    let none = Answer::Result(Errno::ENOSYS.to_raw());
    match supervisor.map_or(none, |supervisor| supervisor.ask(&data)) {
        Answer::Continue => return true,
        Answer::Result(value) => regs.rax = value,
    }
    false
}

/// KILL_THREAD, and everything that is no action, which kills the process: as SIGSYS would, with a
/// core that has the registers from before the call.
fn kill(regs: &mut PtRegs, action: u32, value: u32) -> ! {
    log(regs, action);
    let is_alone = current().process.threads.lock().len() == 1;
    if action == action::KILL_THREAD && !is_alone {
        exit::exit_thread(regs, raw::SIGSYS as i32);
    }
    let number = regs.orig_rax as u32;
    regs.rax = regs.orig_rax;
    let core = signal::dump_core(regs, &SigInfo::filtered(regs.rip, number, ARCH, value));
    exit::exit_group(regs, raw::SIGSYS as i32 | core)
}

fn log(regs: &PtRegs, answer: u32) {
    static LINES: AtomicU32 = AtomicU32::new(0);
    let take = |lines: u32| (lines < LOG_LINES_MAX).then_some(lines + 1);
    if LINES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        write(regs, format_args!("{answer:#x}"));
    }
}

fn write(regs: &PtRegs, answer: Arguments<'_>) {
    let (pid, number, ip) = (current().process.pid, regs.orig_rax as u32, regs.rip);
    machine::log!("seccomp: process {pid}, call {number} at {ip:#x}: {answer}");
}
