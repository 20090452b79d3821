//! A copy of the sources that rows change. It stays from one run to the next, and only files that
//! differ are written, so that cargo builds again what was touched and nothing else.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Row;
use crate::Error;

/// The copy, and what was changed in it.
pub(super) struct Copy {
    root: PathBuf,
    /// Files as they were before the first change, in the order of the changes.
    changed: Vec<(PathBuf, Vec<u8>)>,
}

impl Copy {
    /// Makes the copy, or brings an old one up to date: every file that git knows or would take.
    pub(super) fn of(repository: &Path, root: PathBuf) -> Result<Copy, Error> {
        fs::create_dir_all(&root)?;
        let files = listed(repository)?;
        for file in &files {
            let (from, to) = (repository.join(file), root.join(file));
            // A file that was removed and is still known.
            let Ok(bytes) = fs::read(&from) else { continue };
            write_if_other(&to, &bytes)?;
        }
        remove_others(&root, &root, &files)?;
        Ok(Copy { root, changed: vec![] })
    }

    /// Where it is.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Does what a row says.
    pub(super) fn change(&mut self, row: &Row) -> Result<(), Error> {
        let path = self.root.join(&row.file);
        let before = fs::read(&path)?;
        let text = String::from_utf8(before.clone())?;
        if text.matches(&row.from).count() != 1 {
            return Err(format!("{:?} is not once in {}", row.from, row.file.display()).into());
        }
        fs::write(&path, text.replace(&row.from, &row.to))?;
        self.changed.push((path, before));
        Ok(())
    }

    /// Undoes all changes.
    pub(super) fn restore(&mut self) -> Result<(), Error> {
        while let Some((path, before)) = self.changed.pop() {
            fs::write(path, before)?;
        }
        Ok(())
    }
}

/// The repository's files, as git lists them.
fn listed(repository: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let mut git = Command::new("git");
    git.current_dir(repository).args(["ls-files", "-z", "--cached", "--others"]);
    let output = git.arg("--exclude-standard").output()?;
    if !output.status.success() {
        return Err("git does not list the sources".into());
    }
    let names = output.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| PathBuf::from(OsStr::from_bytes(name))).collect())
}

fn write_if_other(to: &Path, bytes: &[u8]) -> Result<(), Error> {
    if fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(to, bytes)?)
}

/// Removes what an earlier copy had and this one has not.
fn remove_others(root: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, files)?;
        } else if !files.contains(path.strip_prefix(root)?) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
