//! A folder of the host for the guest, read-only, over virtio-fs: the server is a part of the
//! program that runs the VM, and a crate of its own, so that it is optimised where the command line
//! is not.
//!
//! Why it is hard: 9P asks for each name by itself, and its server is QEMU, which then has to see
//! the host's files. Here a folder's names come by the thousand with all that is known of them, the
//! guest may believe them for a while (`--cache`), files are read straight into its memory, and
//! QEMU sees none of it. In exchange the guest's messages are decoded in the process of whoever
//! started the VM. So (1) nothing is ever opened for writing, (2) nothing beside the folder is
//! reached, whatever the host renames meanwhile (`host.rs`), (3) the threads keep themselves to it
//! by Landlock (`sandbox.rs`), (4) whatever the guest sends, tables have limits and nothing ends
//! the program.
//!
//! How the two meet: QEMU inherits one end of a socket, over which it gives the other the guest's
//! memory and its queues (vhost-user). When QEMU ends, however it ends, its end is closed, and so
//! do the threads. Should one of them end while QEMU runs, the guest would wait for its root for
//! ever: whoever supervises the VM hears of each end (`alarm.rs`) and ends the run.
//!
//! Reading order: [`Share`]; `serve.rs` (what is answered), `nodes.rs`, `host.rs`; `device.rs`.
//! Neighbours: `run/share.rs` of the command line starts it, `run/qemu.rs` has QEMU's side.

mod alarm;
mod device;
mod host;
mod nodes;
mod numbers;
mod open;
mod sandbox;
mod serve;
#[cfg(test)]
mod tests;

use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vhost::vhost_user::{Error as ProtocolError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use alarm::{Alarm, Ends};
use device::Device;
use serve::Served;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// For good: more than a hundred years.
pub const ALWAYS: Duration = Duration::from_secs(u32::MAX as u64);

/// Most queues for requests: one for each CPU of the guest, up to this many.
const QUEUES_MAX: u8 = 4;
/// Most descriptors that are asked for.
const DESCRIPTORS_MAX: u64 = 1 << 17;

/// How many queues for requests a guest of so many CPUs has.
pub fn queues(smp: u8) -> u8 {
    smp.clamp(1, QUEUES_MAX)
}

/// A server that runs.
#[derive(Debug)]
pub struct Share {
    /// QEMU's end of the socket, until QEMU has it.
    qemu: Option<OwnedFd>,
    sandbox: String,
    ends: Ends,
}

impl Share {
    /// Starts to serve `folder` to a guest of `smp` CPUs, which may believe for so long what it has
    /// seen. `sockets`: a listener at which one connection waits, and that connection's other end,
    /// which QEMU inherits.
    ///
    /// # Errors
    /// What it was that failed, as a reason to do without.
    pub fn start(
        folder: &Path,
        valid: Duration,
        smp: u8,
        sockets: (UnixListener, UnixStream),
    ) -> Result<Self, Error> {
        let served =
            Served::new(folder, valid).map_err(|error| format!("{}: {error}", folder.display()))?;
        raise_descriptor_limit();
        let (listener, qemu) = sockets;
        let listener = Listener::from(listener);
        rustix::io::fcntl_setfd(&qemu, rustix::io::FdFlags::empty())?;
        let (started, result) = mpsc::channel();
        let (alarm, ends) = alarm::pair()?;
        let requests = queues(smp).into();
        std::thread::Builder::new().name("share".to_owned()).spawn(move || {
            run(served, requests, listener, &started, &alarm);
        })?;
        let sandbox = result.recv().map_err(|_| "the server's thread has ended")??;
        Ok(Self { qemu: Some(qemu.into()), sandbox, ends })
    }

    /// QEMU's end of the socket, which survives exec.
    pub fn qemu(&self) -> Option<i32> {
        self.qemu.as_ref().map(|fd| fd.as_raw_fd())
    }

    /// QEMU has inherited its end: with it the server ends.
    pub fn let_go(&mut self) {
        self.qemu = None;
    }

    /// How the server is restricted, for people.
    pub fn sandbox(&self) -> &str {
        &self.sandbox
    }

    /// Readable once a thread has ended.
    pub fn end_fd(&self) -> BorrowedFd<'_> {
        self.ends.fd()
    }

    /// Why a thread has ended, once [`Self::end_fd`] is readable.
    pub fn end(&mut self) -> String {
        self.ends.take()
    }

    /// Waits until the threads have ended, for a moment: one may wait for a file of the host.
    pub fn finish(mut self) {
        self.let_go();
        self.ends.wait();
    }
}

/// A thread's life: restricts itself, starts those of the queues, and serves until QEMU has gone.
fn run(
    served: Served,
    requests: usize,
    mut listener: Listener,
    started: &mpsc::Sender<Result<String, Error>>,
    alarm: &Alarm,
) {
    let sandbox = sandbox::enter(served.root());
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let device = Arc::new(Device::new(Arc::new(served), memory.clone(), requests, alarm.clone()));
    let daemon = VhostUserDaemon::new("share socket".to_owned(), device, memory);
    let daemon = daemon.and_then(|mut daemon| daemon.start(&mut listener).map(|()| daemon));
    let mut daemon = match daemon {
        Ok(daemon) => daemon,
        Err(error) => {
            let _ = started.send(Err(error.to_string().into()));
            return;
        }
    };
    let _ = started.send(Ok(sandbox));
    alarm.ring(&why_ended(daemon.wait()));
}

/// Why the thread that speaks with QEMU has ended, in words.
fn why_ended(result: Result<(), DaemonError>) -> String {
    match result {
        // As when QEMU has ended.
        Ok(())
        | Err(DaemonError::HandleRequest(
            ProtocolError::Disconnected | ProtocolError::PartialMessage,
        )) => "QEMU has closed its connection".to_owned(),
        Err(error) => format!("QEMU and the server do not understand each other: {error}"),
    }
}

/// A guest may have as many files open as the host lets this program have.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), ..limit };
        // Without it fewer files can be open, and the guest hears of it when it opens one.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}
