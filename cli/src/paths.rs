//! Where our own files are: the repository, the kernel image, the cache.
//!
//! Neighbours: the launcher `limen` builds what [`kernel_image`] finds.

use std::path::{Path, PathBuf};

use crate::Error;

/// Names the kernel image for all commands, as `--kernel` does for `run`.
const KERNEL_VARIABLE: &str = "LIMEN_KERNEL";
const KERNEL_IN_TARGET: &str = "x86_64-unknown-none/release/limen-kernel";

/// The kernel image: `given`, else `LIMEN_KERNEL`, else the one built beside this program.
pub(crate) fn kernel_image(given: Option<&Path>) -> Result<PathBuf, Error> {
    let path = match (given, std::env::var_os(KERNEL_VARIABLE)) {
        (Some(path), _) => path.to_owned(),
        (None, Some(path)) => PathBuf::from(path),
        (None, None) => target_dir()?.join(KERNEL_IN_TARGET),
    };
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("no kernel image at {} (--kernel names one)", path.display()).into()),
    }
}

/// Cargo's target folder that this program was built into: `target/release/limen` is ours.
pub(crate) fn target_dir() -> Result<PathBuf, Error> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent);
    Ok(target.ok_or("this program has no target folder above it")?.to_owned())
}

/// The repository: the nearest folder above this program with the workspace in it.
pub(crate) fn repository() -> Result<PathBuf, Error> {
    let program = std::env::current_exe()?;
    program
        .ancestors()
        .find(|dir| dir.join("mechanisms").is_dir() && dir.join("Cargo.toml").is_file())
        .map(Path::to_owned)
        .ok_or_else(|| "this command needs Limen's source tree around the program".into())
}

/// `$XDG_CACHE_HOME/limen` or `~/.cache/limen`, created if needed; without either, a folder of
/// this user's in the temporary directory.
pub(crate) fn cache_dir() -> Result<PathBuf, Error> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let dir = match (absolute("XDG_CACHE_HOME"), absolute("HOME")) {
        (Some(cache), _) => cache.join("limen"),
        (None, Some(home)) => home.join(".cache/limen"),
        (None, None) => {
            let uid = rustix::process::getuid().as_raw();
            std::env::temp_dir().join(format!("limen-cache-{uid}"))
        }
    };
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// Writes a file of the cache so that others see either nothing or all of it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&unfinished, bytes)?;
    std::fs::rename(&unfinished, path)
}
