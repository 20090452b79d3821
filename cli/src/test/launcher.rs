//! The script `limen` itself, which sets up and builds: in a folder of its own, with programs in
//! the place of Rust's. Part of the run level.
//!
//! One toolchain is used for everything, whatever comes first in PATH; who waits is told what is
//! built, how much of it there is and how long it takes; what is missing and cannot be installed is
//! named.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::Context;
use super::run::ensure;
use crate::Error;

/// A toolchain that is new enough, with its sources; its cargo builds slowly.
const CARGO: &str = r#"
case $1 in
tree) printf '%s\n' a b c d ;;
build)
    for crate in a b c d; do echo "   Compiling $crate v1.0.0" >&2; sleep 0.6; done
    case " $* " in
    *limen-cli*) out=target/tool/limen ;;
    *) out=target/x86_64-unknown-none/release/limen-kernel ;;
    esac
    mkdir -p "${out%/*}"
    printf '#!/bin/sh\necho "ran: $*"\n' >"$out"
    chmod +x "$out" ;;
esac"#;
const RUSTC: &str = r#"
case $* in
--version) echo "rustc 1.99.0 (of the test)" ;;
*sysroot*) echo "${0%/bin/*}" ;;
esac"#;
/// What a toolchain says that is not to be asked.
const OTHER: &str = "echo \"the other $0 was asked\" >&2; exit 1";
/// What the script needs of a system, but for what it is to miss.
const TOOLS: [&str; 18] = [
    "bash", "cat", "chmod", "dirname", "env", "find", "flock", "grep", "mkdir", "mktemp", "mv",
    "nproc", "readlink", "rm", "sleep", "sort", "touch", "wc",
];

/// A clone with nothing in it but the script and empty rooms.
fn clone_of(context: &Context, folder: &Path) -> Result<PathBuf, Error> {
    let clone = folder.join("clone");
    let rooms = ["abi", "formats", "mechanisms", "machine", "kernel", "objtool", "cli", ".cargo"];
    for room in rooms {
        std::fs::create_dir_all(clone.join(room))?;
    }
    for file in ["Cargo.toml", "Cargo.lock"] {
        std::fs::write(clone.join(file), "")?;
    }
    std::fs::copy(context.repository.join("limen"), clone.join("limen"))?;
    Ok(clone)
}

fn program(folder: &Path, name: &str, text: &str) -> Result<(), Error> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/bash\n{text}\n"))?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

fn start(clone: &Path, path: &str) -> Result<Output, Error> {
    start_with(clone, path, "run -- it")
}

fn start_with(clone: &Path, path: &str, words: &str) -> Result<Output, Error> {
    let mut command = Command::new(clone.join("limen"));
    command.args(words.split(' ')).env_clear().env("PATH", path).env("HOME", clone);
    command.env("LIMEN_PROGRESS_S", "1").stdin(Stdio::null());
    Ok(command.output()?)
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The toolchain that was chosen once builds, though another one comes first in PATH; each step is
/// told with its estimate and its crates; once it is built, nothing is said.
pub(super) fn builds(context: &Context, folder: &Path) -> Result<(), Error> {
    let clone = clone_of(context, folder)?;
    let (own, other) = (folder.join("own/bin"), folder.join("rustup/bin"));
    program(&own, "cargo", CARGO)?;
    program(&own, "rustc", RUSTC)?;
    let library = folder.join("own/lib/rustlib/src/rust/library/core");
    std::fs::create_dir_all(&library)?;
    std::fs::write(library.join("Cargo.toml"), "")?;
    for name in ["cargo", "rustc", "rustup", "cargo-clippy"] {
        program(&other, name, OTHER)?;
    }
    std::fs::create_dir_all(clone.join("target"))?;
    std::fs::write(clone.join("target/.limen-toolchain"), format!("{}\n", own.display()))?;
    let path = format!("{}:{}", other.display(), std::env::var("PATH")?);
    let built = start(&clone, &path)?;
    let said = err(&built);
    ensure(built.stdout == b"ran: run -- it\n", || format!("{}: {said}", built.status))?;
    for wanted in [
        "building the limen program (1 of 2, about ",
        " s on an idle machine)",
        "building the kernel (2 of 2, about ",
    ] {
        ensure(said.contains(wanted), || format!("no {wanted:?} in {said}"))?;
    }
    for what in ["limen: the limen program: ", "limen: the kernel: "] {
        // How many there are by then is the host's speed.
        let is_told =
            |line: &str| line.starts_with(what) && line.ends_with(" of about 4 crates, 1 s");
        ensure(said.lines().any(is_told), || format!("no {what:?} in {said}"))?;
    }
    ensure(!said.contains("the other"), || said.clone())?;
    let again = start(&clone, &path)?;
    ensure(again.stdout == built.stdout && again.stderr.is_empty(), || err(&again))?;
    // Help does not wait for what has changed since; a program's own does.
    std::fs::write(clone.join("cli/changed.rs"), "")?;
    for words in ["--help", "check --help", "run -h", "profile learn --help"] {
        let helped = start_with(&clone, &path, words)?;
        let is_quiet = helped.stdout == format!("ran: {words}\n").as_bytes();
        ensure(is_quiet && helped.stderr.is_empty(), || format!("{words}: {}", err(&helped)))?;
    }
    let own = start_with(&clone, &path, "run ls --help")?;
    ensure(err(&own).contains("building the limen program"), || err(&own))
}

/// Without QEMU, Rust and a way to install them: status 3, and a line for each with its package.
pub(super) fn names_what_is_missing(context: &Context, folder: &Path) -> Result<(), Error> {
    let clone = clone_of(context, folder)?;
    let tools = folder.join("tools");
    std::fs::create_dir(&tools)?;
    for tool in TOOLS {
        let places = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool));
        let place = places.iter().find(|place| place.exists()).ok_or("a tool is missing")?;
        symlink(place, tools.join(tool))?;
    }
    let output = start(&clone, &tools.display().to_string())?;
    let said = err(&output);
    ensure(output.status.code() == Some(3), || format!("{}: {said}", output.status))?;
    for wanted in ["missing: QEMU 7.2 or later for x86 (Debian package", "missing: gcc: Debian"] {
        ensure(said.contains(wanted), || format!("no {wanted:?} in {said}"))?;
    }
    Ok(())
}
