//! What wait(2) tells a tracer about its tracees: their stops, and their ends.

use alloc::sync::Arc;

use abi::general as raw;

use crate::process::current;
use crate::process::ptrace::{Resume, links};
use crate::process::{Process, Thread, exit};

/// What a scan of the tracees found.
pub(super) enum Seen {
    /// No tracee that is asked for.
    None,
    /// There are some, and nothing to tell about them yet.
    Nothing,
    /// Something.
    Event(Event),
}

/// What happened to a tracee.
pub(super) struct Event {
    /// The tracee.
    pub(super) thread: Arc<Thread>,
    /// CLD_ code.
    pub(super) code: u32,
    /// Exit code or signal number.
    pub(super) number: i32,
    /// As wait4(2) gives it.
    pub(super) status: i32,
    /// It has ended and is nobody's tracee any more: [`links::forget_ended`] has to follow.
    pub(super) is_taken: bool,
}

/// Looks through the tracees of `tracer` that are `wanted`. What is found is taken, unless
/// `options` have WNOWAIT.
pub(super) fn scan(tracer: &Process, options: u32, wanted: impl Fn(&Thread) -> bool) -> Seen {
    let own = current().tid();
    let mut tracees = tracer.tracees.lock();
    let mut seen = Seen::None;
    for at in 0..tracees.len() {
        let thread = tracees[at].clone();
        let mut state = thread.trace.state();
        let is_own = state.link.as_ref().is_some_and(|link| link.tid == own);
        if !wanted(&thread) || options & raw::__WNOTHREAD != 0 && !is_own {
            continue;
        }
        if let Some(status) = state.ended {
            if options & raw::WEXITED == 0 {
                continue;
            }
            let (code, number) = exit::cause(status);
            let is_taken = options & raw::WNOWAIT == 0;
            if is_taken {
                // The link names the caller's own process, which outlives it.
                drop(links::unlink(&thread, &mut state, Resume::default()));
                drop(state);
                tracees.remove(at);
            } else {
                drop(state);
            }
            return Seen::Event(Event { thread, code, number, status, is_taken });
        }
        seen = Seen::Nothing;
        let Some(stop) = &mut state.stop else { continue };
        if !stop.unreported || stop.listening {
            continue;
        }
        stop.unreported = options & raw::WNOWAIT != 0;
        let status = (stop.code << 8 | 0x7f) as i32;
        let (code, number) = (raw::CLD_TRAPPED, stop.code as i32);
        drop(state);
        return Seen::Event(Event { thread, code, number, status, is_taken: false });
    }
    seen
}
