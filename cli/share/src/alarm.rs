//! How the end of a thread of the server is heard of: by one socket, which whoever supervises the
//! VM waits for beside everything else.
//!
//! Why it is hard: the threads of queues are the library's, which tells nobody when one of them
//! ends. So each that has served something keeps a [`Bell`] among its own variables, and that rings
//! when the thread ends, however it ends.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::Error;

/// How long the threads may take to end once QEMU has ended.
const END: Duration = Duration::from_millis(500);
/// Longest reason that is read, bytes.
const REASON_MAX: usize = 1024;

/// What threads ring.
#[derive(Clone, Debug)]
pub(super) struct Alarm(Arc<UnixStream>);

/// What hears it.
#[derive(Debug)]
pub(super) struct Ends {
    socket: UnixStream,
    is_taken: bool,
}

/// Both sides.
pub(super) fn pair() -> Result<(Alarm, Ends), Error> {
    let (near, far) = UnixStream::pair()?;
    // A second ring that nobody hears must not keep a thread.
    far.set_nonblocking(true)?;
    near.set_read_timeout(Some(END))?;
    Ok((Alarm(Arc::new(far)), Ends { socket: near, is_taken: false }))
}

impl Alarm {
    /// Says that a thread has ended, and why.
    pub(super) fn ring(&self, why: &str) {
        // It fails where nobody listens any more.
        let _ = (&*self.0).write_all(why.as_bytes());
    }

    /// From now on the end of this thread rings.
    pub(super) fn watch_this_thread(&self) {
        BELL.with_borrow_mut(|bell| {
            bell.get_or_insert_with(|| Bell(self.clone()));
        });
    }
}

thread_local! {
    static BELL: RefCell<Option<Bell>> = const { RefCell::new(None) };
}

/// Rings when it goes.
struct Bell(Alarm);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.ring("a thread of its queues has ended");
    }
}

impl Ends {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Why a thread has ended; waits a moment for the first.
    pub(super) fn take(&mut self) -> String {
        let mut reason = [0; REASON_MAX];
        self.is_taken = true;
        let len = self.socket.read(&mut reason).unwrap_or(0);
        String::from_utf8_lossy(&reason[..len]).into_owned()
    }

    /// Waits a moment for the first end, unless there was one.
    pub(super) fn wait(&mut self) {
        if !self.is_taken {
            self.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_thread_that_served_is_heard() {
        for panics in [false, true] {
            let (alarm, mut ends) = pair().expect("a pair");
            let thread = std::thread::spawn(move || {
                alarm.watch_this_thread();
                alarm.watch_this_thread();
                assert!(!panics, "as a fault of the server would end it");
            });
            assert_eq!(thread.join().is_err(), panics);
            assert_eq!(ends.take(), "a thread of its queues has ended");
        }
    }

    #[test]
    fn a_thread_that_goes_on_is_silent() {
        let (alarm, mut ends) = pair().expect("a pair");
        alarm.watch_this_thread();
        assert_eq!(ends.take(), "");
    }
}
