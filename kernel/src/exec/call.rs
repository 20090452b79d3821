//! execve(2) and execveat(2): the running process becomes another program.
//!
//! [`super::load`] builds everything new first; up to [`exit::become_only_thread`] every failure
//! leaves the process as it was. After it nothing fails.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use entry::PtRegs;
use machine::task::Current;

use super::{Image, READ_IMPLIES_EXEC, Request};
use crate::base::args::Args;
use crate::base::tally;
use crate::base::user::read_path;
use crate::mm::shadow_stack;
use crate::process::current;
use crate::process::hooks::{self, NextProgram};
use crate::process::{Process, Thread, exit, fork, own, ptrace, rseq, upper, user_dispatch};
use crate::security::{Credentials, Resource, Subject};
use crate::vfs::open::open_executable;
use crate::vfs::path::Context;
use crate::vfs::{File, permission};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

/// execve(2).
pub fn execve(regs: &mut Args, path: u64, arguments: u64, environment: u64) -> Result<u64> {
    execute(regs.all(), raw::AT_FDCWD, path, arguments, environment, 0)
}

/// execveat(2).
pub fn execveat(
    regs: &mut Args,
    dirfd: i32,
    path: u64,
    arguments: u64,
    environment: u64,
    flags: u32,
) -> Result<u64> {
    if flags & !(raw::AT_EMPTY_PATH | raw::AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    execute(regs.all(), dirfd, path, arguments, environment, flags)
}

fn execute(
    regs: &mut PtRegs,
    dirfd: i32,
    path: u64,
    arguments: u64,
    environment: u64,
    flags: u32,
) -> Result<u64> {
    let process = &current().process;
    let path = read_path(path)?;
    fork::check_exceeded(&current())?;
    let context = Context::current();
    let file = open_executable(&context, dirfd, &path, flags)?;
    hooks::bprm_creds_for_exec((&file,))?;
    let arguments = super::read_strings(arguments)?;
    let environment = super::read_strings(environment)?;
    let open = |path: &[u8]| open_executable(&context, raw::AT_FDCWD, path, 0);
    let by_fd = dirfd != raw::AT_FDCWD && path.first() != Some(&b'/');
    let is_closing = by_fd && process.files().close_on_exec(dirfd as u32)?;
    let personality = current().settings.personality.load(Ordering::Relaxed);
    let image = super::load(Request {
        is_closing,
        path: visible_path(dirfd, path),
        file,
        arguments,
        environment,
        raise: &|file| next_credentials(file, &context.subject),
        randomize: personality & ADDR_NO_RANDOMIZE == 0,
        stack_limit: process.limit(Resource::Stack),
        open: &open,
    });
    if image.as_ref().is_err_and(|&error| error == super::FATAL) {
        exit::exit_group(regs, raw::SIGSEGV as i32);
    }
    let image = image?;
    let old_tid = current().tid();
    exit::become_only_thread()?;
    // POINT OF NO RETURN: nothing below fails.
    become_image(process, image, regs);
    ptrace::stop::executed(regs, old_tid);
    Ok(0)
}

/// Personality: areas are where they always are.
const ADDR_NO_RANDOMIZE: u32 = 0x004_0000;
/// What a program with other rights than its caller does not inherit of its personality: also
/// ADDR_COMPAT_LAYOUT and MMAP_PAGE_ZERO.
const CLEARED_ON_SETID: u32 = READ_IMPLIES_EXEC | ADDR_NO_RANDOMIZE | 0x020_0000 | 0x010_0000;

/// The path by which scripts reopen the file (execveat(2), NOTES).
fn visible_path(dirfd: i32, path: Vec<u8>) -> Vec<u8> {
    if dirfd == raw::AT_FDCWD || path.first() == Some(&b'/') {
        return path;
    }
    let mut visible = format!("/dev/fd/{dirfd}").into_bytes();
    if !path.is_empty() {
        visible.push(b'/');
        visible.extend_from_slice(&path);
    }
    visible
}

/// What executing the file makes of the caller's credentials (execve(2), capabilities(7)), and
/// whether the new program must not trust its environment (AT_SECURE).
pub fn next_credentials(file: &Arc<File>, who: &Subject) -> Result<(Credentials, bool)> {
    let metadata = file.ops().inode().metadata()?;
    let no_suid = file.location.as_ref().is_some_and(|l| l.mount.flags() & raw::MS_NOSUID != 0);
    let mut new = Credentials::clone(who);
    if !no_suid && !current().seccomp.no_new_privs() {
        if metadata.mode & SET_UID != 0 {
            new.euid = metadata.uid;
        }
        if metadata.mode & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC {
            new.egid = metadata.gid;
        }
    }
    let next = NextProgram { credentials: new, secure: false, may_gain: !no_suid };
    let next = RefCell::new(next);
    hooks::bprm_creds_from_file((file, who, &next))?;
    let NextProgram { credentials, secure, .. } = next.into_inner();
    Ok((credentials, secure))
}

fn become_image(process: &Arc<Process>, image: Image, regs: &mut PtRegs) {
    let thread = current();
    let Image { credentials, secure, .. } = image;
    let old_credentials = process.credentials();
    shadow_stack::drop_area(&**process, thread.shadow_stack.take_area());
    upper::leaves_memory(&thread);
    let readable = image.program.file.as_ref().is_some_and(|file| {
        let who = process.subject().with(credentials.clone());
        permission::check(file.ops().inode().as_ref(), permission::READ, &who).is_ok()
    });
    let installing = process.image.lock();
    hooks::bprm_committing_creds((&credentials,));
    let no_huge_pages = process.settings.no_huge_pages.load(Ordering::Relaxed);
    image.mm.with(|inner| inner.no_huge_pages = no_huge_pages);
    let old_mm = process.mm.lock().replace(image.mm.clone());
    machine::task::set_space(image.mm.space());
    let speculation = machine::task::speculation();
    machine::task::set_speculation(mitigations::by_program::after_exec(speculation));
    let old_program = core::mem::replace(&mut *process.program.lock(), Arc::new(image.program));
    set_credentials(credentials, &old_credentials);
    process.settings.not_dumpable.store(secure || !readable, Ordering::Relaxed);
    drop(installing);
    hooks::bprm_committed_creds((&process.credentials(),));
    exit::release_vfork_parent(process);
    drop(old_mm);
    drop(old_program);
    close_on_exec(thread);
    let handlers = process.handlers.lock().without_handlers();
    let old_handlers = core::mem::replace(&mut *process.handlers.lock(), Arc::new(handlers));
    drop(old_handlers);
    thread.signals.lock().alt_stack = Default::default();
    rseq::forget(&thread);
    user_dispatch::forget();
    crate::process::timers::on_exec(process);
    *thread.name.lock() = image.name;
    crate::process::note_name(&thread);
    process.settings.has_executed.store(true, Ordering::Relaxed);
    tally::program_started();
    process.settings.membarrier.store(0, Ordering::Relaxed);
    process.settings.drop_uninherited();
    // A parent that asked for another signal asked for the old program's (clone(2)).
    process.exit_signal.store(raw::SIGCHLD, Ordering::Relaxed);
    let lost = READ_IMPLIES_EXEC | if secure { CLEARED_ON_SETID } else { 0 };
    thread.settings.personality.fetch_and(!lost, Ordering::Relaxed);
    if secure {
        thread.settings.parent_death_signal.store(0, Ordering::Relaxed);
    }
    machine::task::reset_user_segments();
    machine::fpu::reset_running();
    thread.shadow_stack.forget();
    // A tracer sees which call this was.
    let orig_rax = regs.orig_rax;
    *regs = PtRegs { orig_rax, ..image.regs };
    // The system call's result goes to RAX, which is 0 at a program's start, as `execute` returns.
}

/// A program with more rights than its tracer could be made to do anything with them: it does not
/// get them. A tracer that comes later is checked against the new credentials.
fn set_credentials(new: Credentials, old: &Credentials) {
    let raised =
        new.euid != old.euid || new.egid != old.egid || new.permitted & !old.permitted != 0;
    own::set_credentials(current(), new);
    if raised && current().trace.has_weak_tracer() {
        own::set_credentials(current(), old.clone());
    }
}

/// Closes what is marked so. Descriptors that other threads share are copied first.
fn close_on_exec(thread: Current<Thread>) {
    let shared = thread.files();
    // One reference is the thread's, one is in hand.
    let files = if Arc::strong_count(&shared) > 2
        && let Ok(copy) = shared.duplicate()
    {
        let copy = Arc::new(copy);
        drop(own::replace_files(thread, copy.clone()));
        copy
    } else {
        shared
    };
    let closed = files.remove_where(|_, close_on_exec| close_on_exec);
    drop(closed);
}
