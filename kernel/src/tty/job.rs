//! Job control: which terminal controls which session, who may read, who gets signals
//! (credentials(7), tcsetpgrp(3), setsid(2)).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;

use super::Tty;
use crate::drivers::chrdev::CharDriver;
use crate::process::current;
use crate::process::signal::{self, SigInfo, bit};
use crate::process::{Pid, find_process, group_members, relations, work};
use crate::security::Capability;
use crate::vfs::{FileOps, Inode};

/// Major number of /dev/tty, /dev/console and /dev/ptmx.
pub(super) const TTY_MAJOR: u32 = 5;

/// Controlling terminals by session.
static TERMINALS: SpinLock<BTreeMap<Pid, Weak<Tty>>> = SpinLock::new(BTreeMap::new());

/// The terminal that controls a session.
#[must_use]
pub fn controlling(session: Pid) -> Option<Arc<Tty>> {
    TERMINALS.lock().get(&session).and_then(Weak::upgrade)
}

fn current_session() -> Pid {
    current().process.session.load(Ordering::Relaxed)
}

fn is_leader() -> bool {
    current().process.pid == current_session()
}

/// Whether the running thread must leave as soon as it can.
pub(super) fn is_dying() -> bool {
    current().task().work() & work::EXIT != 0
}

/// Sends a signal to a process group, if there is one.
pub(super) fn signal_group(group: Pid, number: u32) {
    if group != 0 {
        // The group may have ended meanwhile.
        let _ = signal::send_to_group(group, SigInfo::kernel(number));
    }
}

/// Whether the running process does not want to hear of `number`.
fn is_blocked_or_ignored(number: u32) -> bool {
    let thread = current();
    let is_blocked = thread.signals.lock().blocked & bit(number) != 0;
    is_blocked || thread.process.action(number).ignores(number)
}

/// Stops a background process that reads (SIGTTIN) or changes (SIGTTOU) its controlling terminal.
/// EIO if it cannot be stopped.
pub(super) fn check_background(tty: &Tty, number: u32) -> Result<()> {
    let process = &current().process;
    let group = process.group();
    {
        let state = tty.state.lock();
        let is_own = state.session != 0 && state.session == current_session();
        if !is_own || state.foreground == 0 || state.foreground == group {
            return Ok(());
        }
    }
    if is_blocked_or_ignored(number) {
        return if number == raw::SIGTTIN { Err(Errno::EIO) } else { Ok(()) };
    }
    if relations::is_orphaned_group(process) {
        return Err(Errno::EIO);
    }
    signal_group(group, number);
    Err(Errno::ERESTARTSYS)
}

/// A session leader without terminal opened this one: it becomes the controlling one, unless it
/// has a session already.
pub(super) fn adopt(tty: &Arc<Tty>) {
    if is_leader() && controlling(current_session()).is_none() && tty.state.lock().session == 0 {
        set_controlling(tty, current_session(), current().process.group());
    }
}

/// Makes the terminal control a session, with a foreground group.
pub(super) fn set_controlling(tty: &Arc<Tty>, session: Pid, foreground: Pid) {
    TERMINALS.lock().insert(session, Arc::downgrade(tty));
    let mut state = tty.state.lock();
    state.session = session;
    state.foreground = foreground;
}

/// TIOCSCTTY. EPERM unless a session leader without terminal asks; `steal` takes the terminal from
/// another session.
pub(super) fn take(tty: &Arc<Tty>, steal: bool) -> Result<u64> {
    let session = current_session();
    let owner = tty.state.lock().session;
    if is_leader() && owner == session {
        return Ok(0);
    }
    if !is_leader() || controlling(session).is_some() {
        return Err(Errno::EPERM);
    }
    if owner != 0 {
        if !steal || !current().subject().capable(Capability::SysAdmin) {
            return Err(Errno::EPERM);
        }
        TERMINALS.lock().remove(&owner);
    }
    set_controlling(tty, session, current().process.group());
    Ok(0)
}

/// TIOCNOTTY: a leader gives the terminal up for its whole session.
pub(super) fn give_up(tty: &Tty) -> Result<u64> {
    let session = current_session();
    if tty.state.lock().session != session {
        return Err(Errno::ENOTTY);
    }
    if is_leader() {
        release(session);
    }
    Ok(0)
}

/// The session has no terminal any more; its foreground hears SIGHUP and SIGCONT.
fn release(session: Pid) {
    let tty = TERMINALS.lock().remove(&session).and_then(|tty| tty.upgrade());
    let Some(tty) = tty else { return };
    let foreground = {
        let mut state = tty.state.lock();
        state.session = 0;
        core::mem::take(&mut state.foreground)
    };
    signal_group(foreground, raw::SIGHUP);
    signal_group(foreground, raw::SIGCONT);
}

/// A process is ending. If it leads a session with a terminal, the terminal is free again.
pub fn process_ended(pid: Pid, session: Pid) {
    if pid == session {
        release(session);
    }
}

/// The terminal is hung up: the session's leader and foreground group hear it.
pub(super) fn hang_up(tty: &Tty) {
    let (session, foreground) = {
        let mut state = tty.state.lock();
        (core::mem::take(&mut state.session), core::mem::take(&mut state.foreground))
    };
    if session == 0 {
        return;
    }
    TERMINALS.lock().remove(&session);
    let leader_group = find_process(session).map(|leader| {
        for number in [raw::SIGHUP, raw::SIGCONT] {
            // The leader may have ended meanwhile.
            let _ = signal::send_to_process(&leader, SigInfo::kernel(number));
        }
        leader.group()
    });
    if leader_group != Some(foreground) {
        signal_group(foreground, raw::SIGHUP);
        signal_group(foreground, raw::SIGCONT);
    }
}

/// TIOCSPGRP: makes a process group of the session the foreground one.
pub(super) fn set_foreground(tty: &Tty, group: i32) -> Result<u64> {
    check_background(tty, raw::SIGTTOU)?;
    let session = current_session();
    if tty.state.lock().session != session {
        return Err(Errno::ENOTTY);
    }
    let group = Pid::try_from(group).map_err(|_| Errno::EINVAL)?;
    let members = group_members(group);
    let Some(member) = members.first() else { return Err(Errno::ESRCH) };
    if member.session.load(Ordering::Relaxed) != session {
        return Err(Errno::EPERM);
    }
    tty.state.lock().foreground = group;
    Ok(0)
}

/// TIOCGPGRP and TIOCGSID: foreground group and session. ENOTTY unless it is the controlling
/// terminal of the caller; a master may always ask.
pub(super) fn ids(tty: &Tty, is_master: bool) -> Result<(Pid, Pid)> {
    let state = tty.state.lock();
    if !is_master && (state.session == 0 || state.session != current_session()) {
        return Err(Errno::ENOTTY);
    }
    Ok((state.foreground, state.session))
}

/// /dev/tty: the controlling terminal of whoever opens it. ENXIO if it has none.
pub(super) struct CurrentTty;

impl CharDriver for CurrentTty {
    fn open(&self, node: Arc<dyn Inode>, _device: u64, _flags: u32) -> Result<Arc<dyn FileOps>> {
        let tty = controlling(current_session()).ok_or(Errno::ENXIO)?;
        super::pty::open_program_side(&tty, node, raw::O_NOCTTY)
    }
}

/// vhangup(2): hangs up the controlling terminal, if there is one. EPERM.
pub fn vhangup() -> Result<u64> {
    if !current().subject().capable(Capability::SysTtyConfig) {
        return Err(Errno::EPERM);
    }
    if let Some(tty) = controlling(current_session()) {
        tty.hang_up();
    }
    Ok(0)
}
