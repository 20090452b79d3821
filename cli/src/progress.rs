//! Says what is going on where it takes longer than anybody waits in silence: nothing for the first
//! two seconds, then what it is, then how long it has taken.
//!
//! Why a thread: what is slow is one call of the system or one long loop, and none of them should
//! have to look at a clock. It has ended when the value is dropped, so nothing is said behind the
//! work's own result, and no thread is left where a process is about to be made.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long nothing is said, and then how often something is.
const SILENT: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_secs(10);

/// Work that may be slow, for as long as this lives.
pub(crate) struct Progress {
    /// Dropped first: its end is the thread's.
    work: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// `what` as in "packing".
    pub(crate) fn of(what: impl Into<String>) -> Self {
        Self::with(what.into(), SILENT, EVERY, |line| say!("limen: {line}"))
    }

    fn with(
        what: String,
        silent: Duration,
        every: Duration,
        say: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let (work, end) = mpsc::channel::<()>();
        let start = Instant::now();
        let speak = move || {
            let mut wait = silent;
            while end.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                say(&format!("{what}, {} s so far", start.elapsed().as_secs()));
                wait = every;
            }
        };
        // Without a thread the work is silent, and done.
        let thread = std::thread::Builder::new().name("progress".into()).spawn(speak).ok();
        Self { work: Some(work), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.work = None;
        // Its panic has been told.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of work that goes on until `lines` lines were said.
    fn said(silent: Duration, lines: usize) -> Vec<String> {
        let (to, from) = mpsc::channel();
        let progress =
            Progress::with("packing".into(), silent, Duration::from_millis(1), move |line| {
                // Nobody listens any more once the work is done.
                let _ = to.send(line.to_owned());
            });
        let said = from.iter().take(lines).collect();
        drop(progress);
        said
    }

    #[test]
    fn quick_work_is_silent_and_slow_work_is_not() {
        assert_eq!(said(Duration::from_secs(3600), 0), Vec::<String>::new());
        assert_eq!(said(Duration::ZERO, 2), ["packing, 0 s so far", "packing, 0 s so far"]);
    }
}
