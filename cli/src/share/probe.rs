//! Whether this QEMU can have its root from the server: some are built without virtio-fs, or
//! without memory that is shared by a descriptor.
//!
//! QEMU itself is asked, once: the answer is kept in the cache, named by the program's place, size
//! and time. Neighbours: `run/vm.rs` asks, `run/accel.rs` does the same for KVM.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use crate::args::MachineModel;
use crate::cache::{self, Folder};
use crate::pack::files::hex;
use crate::run::qemu;

/// Bytes of the hash that name an answer.
const NAME_BYTES: usize = 8;

/// An answer, and whether it is the first of this QEMU's.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Why not, in words.
    pub(crate) why_not: Option<String>,
    pub(crate) is_new: bool,
}

/// Asks for the server's device on a machine's bus.
pub(crate) fn ask(machine: MachineModel) -> Answer {
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
