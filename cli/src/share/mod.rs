//! A folder of the host for the guest, read-only, over virtio-fs: the server is a part of this
//! program.
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
//! do the threads.
//!
//! Reading order: [`Share`]; `serve.rs` (what is answered), `nodes.rs`, `host.rs`; `device.rs`.
//! Neighbours: `run/vm.rs` starts it, `run/qemu.rs` has QEMU's side.

mod device;
mod host;
mod nodes;
mod numbers;
mod open;
mod sandbox;
mod serve;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vhost::vhost_user::Listener;
use vhost_user_backend::VhostUserDaemon;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::Error;
use crate::args::Cache;
use device::Device;
use serve::Served;

/// Most queues for requests: one for each CPU of the guest, up to this many.
const QUEUES_MAX: u8 = 4;
/// How long the threads may take to end once QEMU has ended.
const END: Duration = Duration::from_millis(500);
/// Most descriptors that are asked for.
const DESCRIPTORS_MAX: u64 = 1 << 17;

/// How many queues for requests a guest of so many CPUs has.
pub(crate) fn queues(smp: u8) -> u8 {
    smp.clamp(1, QUEUES_MAX)
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Share {
    /// QEMU's end of the socket, until QEMU has it.
    qemu: Option<OwnedFd>,
    sandbox: String,
    ended: mpsc::Receiver<()>,
}

impl Share {
    /// Starts to serve `folder` to a guest of `smp` CPUs.
    ///
    /// # Errors
    /// What it was that failed, as a reason to do without.
    pub(crate) fn start(folder: &Path, cache: Cache, smp: u8) -> Result<Self, Error> {
        let served =
            Served::new(folder, cache).map_err(|error| format!("{}: {error}", folder.display()))?;
        raise_descriptor_limit();
        let (listener, qemu) = connected()?;
        rustix::io::fcntl_setfd(&qemu, rustix::io::FdFlags::empty())?;
        let (started, result) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let requests = queues(smp).into();
        std::thread::Builder::new().name("share".to_owned()).spawn(move || {
            run(served, requests, listener, &started);
            // Nobody waits any more if the run was cut short.
            let _ = end.send(());
        })?;
        let sandbox = result.recv().map_err(|_| "the server's thread has ended")??;
        Ok(Self { qemu: Some(qemu.into()), sandbox, ended })
    }

    /// QEMU's end of the socket, which survives exec.
    pub(crate) fn qemu(&self) -> Option<i32> {
        self.qemu.as_ref().map(|fd| fd.as_raw_fd())
    }

    /// QEMU has inherited its end: with it the server ends.
    pub(crate) fn let_go(&mut self) {
        self.qemu = None;
    }

    /// How the server is restricted, for people.
    pub(crate) fn sandbox(&self) -> &str {
        &self.sandbox
    }

    /// Waits until the threads have ended, for a moment: one may wait for a file of the host.
    pub(crate) fn finish(mut self) {
        self.let_go();
        // What has not ended by then ends with this program.
        let _ = self.ended.recv_timeout(END);
    }
}

/// A thread's life: restricts itself, starts those of the queues, and serves until QEMU has gone.
fn run(
    served: Served,
    requests: usize,
    mut listener: Listener,
    started: &mpsc::Sender<Result<String, Error>>,
) {
    let sandbox = sandbox::enter(served.root());
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let device = Arc::new(Device::new(Arc::new(served), memory.clone(), requests));
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
    // QEMU's end is the only way this ends, and is no error.
    let _ = daemon.wait();
}

/// A listener at which one connection waits, and that connection's other end.
fn connected() -> Result<(Listener, UnixStream), Error> {
    let folder = tempfile::Builder::new().prefix("limen-share-").tempdir()?;
    // A socket's path may be 107 bytes long (unix(7)), a temporary folder's is what it is.
    let opened = std::fs::File::open(folder.path())?;
    let path = format!("/proc/self/fd/{}/socket", opened.as_fd().as_raw_fd());
    let listener = UnixListener::bind(&path)?;
    let near = UnixStream::connect(&path)?;
    Ok((Listener::from(listener), near))
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
