//! The server of the root (`cli/share`), and whether this QEMU can have its root from it: some are
//! built without virtio-fs, or without memory that is shared by a descriptor.
//!
//! QEMU itself is asked, once: the answer is kept in the cache, named by the program's place, size
//! and time. Neighbours: `run/vm.rs` asks and starts it, `run/accel.rs` asks the same for KVM.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use limen_share::Share;
use sha2::{Digest as _, Sha256};

use super::qemu;
use crate::Error;
use crate::args::{Cache, MachineModel};
use crate::cache::{self, Folder};
use crate::failure::{Doing, Failure};
use crate::pack::files::hex;

/// Bytes of the hash that name an answer.
const NAME_BYTES: usize = 8;

/// An answer, and whether it is the first of this QEMU's.
#[derive(Debug)]
pub(super) struct Answer {
    /// Why not, in words.
    pub(super) why_not: Option<String>,
    pub(super) is_new: bool,
}

/// Starts to serve `folder` to a guest of `smp` CPUs.
pub(crate) fn start(folder: &Path, cache: Cache, smp: u8) -> Result<Share, Error> {
    Share::start(folder, cache.valid(), smp, connected()?)
}

/// A listener at which one connection waits, and that connection's other end.
fn connected() -> Result<(UnixListener, UnixStream), Error> {
    let folder = tempfile::Builder::new().prefix("limen-share-").tempdir();
    let folder = folder.map_err(Failure::at(Doing::Make, &tempfile::env::temp_dir()))?;
    // A socket's path may be 107 bytes long (unix(7)), a temporary folder's is what it is.
    let opened = std::fs::File::open(folder.path());
    let opened = opened.map_err(Failure::at(Doing::Read, folder.path()))?;
    let path = format!("/proc/self/fd/{}/socket", opened.as_fd().as_raw_fd());
    let bound = UnixListener::bind(&path).and_then(|far| Ok((far, UnixStream::connect(&path)?)));
    let socket = folder.path().join("socket");
    Ok(bound.map_err(Failure::at(Doing::Make, &socket))?)
}

/// Asks for the server's device on a machine's bus.
pub(super) fn ask(machine: MachineModel) -> Answer {
    let kept = kept(machine).zip(Folder::of(cache::PROBES).ok());
    if let Some(known) = kept.as_ref().and_then(|(name, folder)| folder.read_text(name)) {
        let why_not = Some(known).filter(|reason| !reason.is_empty());
        return Answer { why_not, is_new: false };
    }
    let why_not = why_not(machine);
    if let Some((name, folder)) = kept {
        folder.keep(&name, why_not.clone().unwrap_or_default().as_bytes());
    }
    Answer { why_not, is_new: true }
}

/// The name under which the answer is kept; none if this QEMU is not found.
fn kept(machine: MachineModel) -> Option<String> {
    let program = qemu::program();
    let search = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&search).map(|folder| folder.join(&program));
    let place = match program.as_encoded_bytes().contains(&b'/') {
        true => Path::new(&program).canonicalize().ok()?,
        false => places.find(|place| place.is_file())?,
    };
    let meta = std::fs::metadata(&place).ok()?;
    let facts = format!(
        "{} {} {}.{} {}",
        place.display(),
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec(),
        qemu::share_device(machine)
    );
    let name = hex(&Sha256::digest(facts)[..NAME_BYTES]);
    Some(format!("virtiofs-{name}"))
}

fn why_not(machine: MachineModel) -> Option<String> {
    let memory = "memory-backend-memfd,id=memory,size=1M,share=on";
    let device = format!("{},help", qemu::share_device(machine));
    let ask = |words: &[&str]| {
        let mut command = Command::new(qemu::program());
        command.args(["-M", "none", "-nodefaults", "-display", "none"]).args(words);
        let output = command.args(["-device", &device]).stdin(Stdio::null()).output();
        output.is_ok_and(|output| output.status.success())
    };
    if ask(&["-object", memory]) {
        return None;
    }
    Some(match ask(&[]) {
        true => "this QEMU shares no memory with other programs".to_owned(),
        false => "this QEMU has no virtio-fs device".to_owned(),
    })
}
