//! Where our own files are: the repository, the kernel image, the cache.
//!
//! Neighbours: the launcher `limen` builds what [`kernel_image`] finds.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::path::{Path, PathBuf};

use crate::failure::{Doing, Failure};
use crate::{Error, usage};

/// Names the kernel image for all commands, as `--kernel` does for `run`.
const KERNEL_VARIABLE: &str = "LIMEN_KERNEL";
const KERNEL_INSTALLED: &str = "limen-kernel";
const KERNEL_IN_TARGET: &str = "x86_64-unknown-none/release/limen-kernel";

/// The kernel image: `given`, else `LIMEN_KERNEL`, else the one installed with this program, else
/// the one built beside it.
pub(crate) fn kernel_image(given: Option<&Path>) -> Result<PathBuf, Error> {
    let path = match (given, std::env::var_os(KERNEL_VARIABLE)) {
        (Some(path), _) => path.to_owned(),
        (None, Some(path)) => PathBuf::from(path),
        (None, None) => {
            let installed = installed(KERNEL_INSTALLED).filter(|path| path.is_file());
            installed.map_or_else(|| Ok::<_, Error>(target_dir()?.join(KERNEL_IN_TARGET)), Ok)?
        }
    };
    if !path.is_file() {
        return Err(usage(format!("--kernel {}: there is no kernel image", path.display())));
    }
    match is_bootable(&path) {
        true => Ok(path),
        false => Err(usage(format!(
            "--kernel {}: not a kernel of Limen's (limen-kernel, an ELF image with a PVH entry)",
            path.display()
        ))),
    }
}

/// Whether QEMU finds an entry point in it: an ELF note of Xen's for machines without firmware.
fn is_bootable(kernel: &Path) -> bool {
    const PHYS32_ENTRY: u32 = 18;
    use object::read::elf::{FileHeader as _, ProgramHeader as _};
    let Ok(file) = File::open(kernel) else { return false };
    let cache = object::ReadCache::new(file);
    let is_entry = || {
        let header = object::elf::FileHeader64::<object::LittleEndian>::parse(&cache).ok()?;
        let segments = header.program_headers(object::LittleEndian, &cache).ok()?;
        let notes = segments
            .iter()
            .filter_map(|segment| segment.notes(object::LittleEndian, &cache).ok().flatten());
        let mut all = Vec::new();
        for mut notes in notes {
            while let Ok(Some(note)) = notes.next() {
                all.push((note.name().to_owned(), note.n_type(object::LittleEndian)));
            }
        }
        all.iter().any(|(name, kind)| name == b"Xen" && *kind == PHYS32_ENTRY).then_some(())
    };
    is_entry().is_some()
}

/// The folder that this program was started in.
pub(crate) fn here() -> Result<PathBuf, Error> {
    let here = std::env::current_dir();
    here.map_err(|error| usage(format!("the folder that limen was started in: {error}")))
}

/// Where a file of `limen dist`'s is, if this program was installed from there: `bin/limen` has
/// `lib/limen` beside it, wherever that is.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?.parent()?.join("lib/limen");
    folder.is_dir().then(|| folder.join(name))
}

/// Cargo's target folder that this program was built into: `target/tool/limen` is ours.
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

/// `$XDG_CACHE_HOME/limen` or `~/.cache/limen`, created if needed; where neither can be written, a
/// folder of this user's in the temporary directory. A home is never made: Debian's `/nonexistent`
/// is there to be none, and root could.
pub(crate) fn cache_dir() -> Result<PathBuf, Error> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = absolute("XDG_CACHE_HOME").map(|cache| cache.join("limen"));
    let home = absolute("HOME").filter(|home| home.is_dir());
    let own = own.or_else(|| home.map(|home| home.join(".cache/limen")));
    if let Some(dir) = own.filter(|dir| is_usable(dir)) {
        return Ok(dir);
    }
    let uid = rustix::process::getuid().as_raw();
    let dir = std::env::temp_dir().join(format!("limen-cache-{uid}"));
    // Whoever else has made it could put a kernel there.
    let is_own =
        |dir: &Path| dir.symlink_metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
    match is_usable(&dir) && is_own(&dir) {
        true => Ok(dir),
        false => Err(format!("{}: no folder for the cache can be written", dir.display()).into()),
    }
}

fn is_usable(dir: &Path) -> bool {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.is_ok() && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Fails unless a file can be written at `path`, which `option` names; so it is known before there
/// is something to write.
pub(crate) fn ensure_writable(option: &'static str, path: &Path) -> Result<(), Error> {
    let exists = path.exists();
    let opened = File::options().append(true).create(true).open(path);
    let file = opened.map_err(|error| usage(format!("{option} {}: {error}", path.display())))?;
    let tried = takes_bytes(&file);
    if !exists {
        std::fs::remove_file(path).map_err(Failure::at(Doing::Remove, path))?;
    }
    Ok(tried.map_err(|error| Failure::at(Doing::Write, path)(error).of_output(option))?)
}

/// Fails where an empty file can be opened and nothing be written to it: a full disk, `/dev/full`.
/// What the file has stays; what somebody reads from (a pipe, a terminal) is not tried.
fn takes_bytes(mut file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    let kind = meta.file_type();
    if kind.is_file() {
        file.write_all(&[b'\n'; 4096])?;
        return file.set_len(meta.len());
    }
    match kind.is_char_device() && !file.is_terminal() {
        true => file.write_all(b"\n"),
        false => Ok(()),
    }
}

/// A folder for temporary files, which goes with the value.
pub(crate) fn scratch() -> Result<tempfile::TempDir, Failure> {
    tempfile::tempdir().map_err(Failure::at(Doing::Make, &tempfile::env::temp_dir()))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(Failure::at(Doing::Read, path))
}

pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(Failure::at(Doing::Write, path))
}

/// Writes a file of the cache so that others see either nothing or all of it, and only this user
/// can read it: there may be an environment in it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    let opened =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished);
    let written = opened.and_then(|mut file| file.write_all(bytes));
    let renamed = written.and_then(|()| std::fs::rename(&unfinished, path));
    renamed.map_err(|error| {
        // Half a file takes what space there is.
        let _ = std::fs::remove_file(&unfinished);
        Failure::at(Doing::Write, path)(error)
    })
}
