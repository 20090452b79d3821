//! What QEMU may do on the host beside running the VM: as little as the host lets us arrange.
//!
//! | Wall | When |
//! |---|---|
//! | filter of system calls: no new processes, no privileges | always (`qemu.rs`, `-sandbox`) |
//! | no new privileges by exec(2) | always (`shim.rs`) |
//! | namespaces of its own for network, IPC and host name | unless a debugger's port is wanted |
//! | a user namespace of its own, in which it is nobody else | if it opens no folder of the host |
//!
//! Why not more: with folders of the host the guest sees their owners, and in a user namespace all
//! owners but one are nobody. And an ordinary user gets no namespace without a user namespace.
//!
//! How: unshare(1) of util-linux arranges it and becomes the next program, since the calls
//! themselves need code that this crate does not have. Neighbour: `vm.rs` starts QEMU behind
//! [`Jail::prefix`].

use std::ffi::OsString;
use std::process::{Command, Stdio};

use super::qemu::{Qemu, Wires};

/// Namespaces that QEMU has no use for.
const NAMESPACES: [&str; 3] = ["--net", "--ipc", "--uts"];
/// A user namespace with the caller as its only user.
const USER: [&str; 2] = ["--user", "--map-current-user"];

/// What was arranged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Jail {
    /// A command to put before QEMU's; empty if there is nothing to arrange.
    pub(crate) prefix: Vec<OsString>,
    has_user: bool,
    has_network: bool,
    /// Why there is less than there could be.
    missing: Option<String>,
}

impl Jail {
    /// Finds out what works here: a try of a few milliseconds.
    pub(crate) fn find(qemu: &Qemu, wires: &Wires) -> Self {
        if qemu.gdb.is_some() {
            let missing = Some("a debugger needs its port (--gdb)".to_owned());
            return Self { missing, ..Self::default() };
        }
        let shares = qemu.opens_folders(wires);
        let is_root = rustix::process::geteuid().is_root();
        let (has_user, missing) = match (shares, is_root) {
            (false, _) => (true, None),
            (true, true) => (false, Some("folders of the host are shared")),
            (true, false) => {
                let text =
                    "folders of the host are shared, and only root has other namespaces then";
                return Self { missing: Some(text.to_owned()), ..Self::default() };
            }
        };
        let mut words = vec!["unshare"];
        words.extend(USER.iter().filter(|_| has_user));
        words.extend(NAMESPACES);
        words.push("--");
        let mut attempt = Command::new(words[0]);
        attempt.args(&words[1..]).arg("true").stdin(Stdio::null()).stdout(Stdio::null());
        match attempt.stderr(Stdio::piped()).output() {
            Ok(output) if output.status.success() => Self {
                prefix: words.iter().map(OsString::from).collect(),
                has_user,
                has_network: true,
                missing: missing.map(str::to_owned),
            },
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Self { missing: Some(said), ..Self::default() }
            }
            Err(error) => Self { missing: Some(format!("unshare: {error}")), ..Self::default() },
        }
    }

    /// For people.
    pub(crate) fn explanation(&self) -> String {
        let mut walls = vec!["a filter of system calls", "no new privileges"];
        if self.has_network {
            walls.push("no network");
        }
        if self.has_user {
            walls.push("a user namespace of its own");
        }
        let missing = self.missing.as_ref().map(|why| format!("; not more: {why}"));
        format!("QEMU is jailed by {}{}", walls.join(", "), missing.unwrap_or_default())
    }
}
