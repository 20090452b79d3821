//! The program's three streams: host descriptors on one side, QEMU's sockets on the other.
//!
//! Why it is hard: the streams must be binary-safe, fast, and bounded in memory, and none may hold
//! up another. So each has a thread that copies with blocking calls: a slow reader makes its thread
//! wait, then QEMU's port, then the guest's writer. The caller's descriptors are shared with other
//! processes and therefore never made non-blocking; if somebody else did so, we poll.
//!
//! Neighbours: `vm.rs` starts the threads and joins the two that write.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use formats::control::ToGuest;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::tty::{EscapeFilter, Typed};

/// Bytes copied at once: the size of a pipe on Linux (pipe(7)).
const CHUNK: usize = 64 << 10;

/// The writing side of the control channel, shared by all who have something to say.
#[derive(Clone, Debug)]
pub(crate) struct ControlSender(Arc<Mutex<UnixStream>>);

impl ControlSender {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(socket)))
    }

    /// Sends; a guest that is gone does not matter, its end is noticed elsewhere.
    pub(crate) fn send(&self, message: &ToGuest) {
        if let Ok(mut socket) = self.0.lock() {
            let _ = socket.write_all(&message.encode());
        }
    }
}

/// Copies a port's output to descriptor `fd` (1 or 2) until the port ends. Once the descriptor
/// takes no more, the guest is told and the rest is dropped; the result is the error, unless it is
/// only that the reader has gone. `count` counts the bytes.
pub(crate) fn copy_output(
    mut port: UnixStream,
    fd: u8,
    control: &ControlSender,
    count: &AtomicU64,
) -> Option<Errno> {
    let mut buffer = vec![0; CHUNK];
    let (mut open, mut lost) = (true, None);
    loop {
        let len = match port.read(&mut buffer) {
            Ok(0) => return lost,
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return lost,
        };
        count.fetch_add(len as u64, Ordering::Relaxed);
        if !open {
            continue;
        }
        if let Err(error) = write_output(fd, &buffer[..len]) {
            open = false;
            lost = (error != Errno::PIPE).then_some(error);
            control.send(&ToGuest::OutputClosed { fd });
        }
    }
}

/// Copies stdin to the stdio port until it ends, then says how much there was. With `escape`,
/// `Ctrl-A x` calls `quit` and ends the copying.
pub(crate) fn copy_input(
    mut port: UnixStream,
    control: &ControlSender,
    escape: bool,
    quit: impl FnOnce(),
) {
    let mut buffer = vec![0; CHUNK];
    let mut filter = escape.then(EscapeFilter::default);
    let mut typed = Vec::new();
    let mut total_bytes = 0u64;
    loop {
        // An error (EIO of a lost terminal) is the end as well.
        let len = read(rustix::stdio::stdin(), &mut buffer).unwrap_or(0);
        if len == 0 {
            control.send(&ToGuest::StdinEof { total_bytes });
            return;
        }
        let mut data = &buffer[..len];
        if let Some(filter) = &mut filter {
            typed.clear();
            if filter.filter(data, &mut typed) == Typed::Quit {
                return quit();
            }
            data = &typed;
        }
        if port.write_all(data).is_err() {
            return;
        }
        total_bytes += data.len() as u64;
    }
}

fn read(from: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::read(from, &mut *buffer) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(from, PollFlags::IN),
            result => return result,
        }
    }
}

/// Writes to descriptor `fd` (1 or 2). EBADF where the caller has closed it, which the runtime
/// hides.
fn write_output(fd: u8, data: &[u8]) -> Result<(), Errno> {
    if standard_streams::was_closed(fd) {
        return Err(Errno::BADF);
    }
    write_all(if fd == 1 { rustix::stdio::stdout() } else { rustix::stdio::stderr() }, data)
}

fn write_all(to: BorrowedFd<'_>, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::write(to, data) {
            Ok(written) => data = &data[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(to, PollFlags::OUT),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait(fd: BorrowedFd<'_>, events: PollFlags) {
    // A failed poll leads back to the call that says why.
    let _ = poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), events)], None);
}
