//! A set of files for the guest, by guest path, and the archive made of it.
//!
//! Why it is hard: the archive must be the same bytes for the same files (sorted, no times, no
//! owners; `formats::cpio` sees to that), and links stay links. Neighbours: `--file` and `--dir`
//! fill it in `run/plan`, programs in `closure.rs`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use formats::cpio;
use sha2::{Digest as _, Sha256};

use crate::failure::{Doing, Failure};
use crate::progress::Progress;
use crate::tree::{Tree, absolute};
use crate::{Error, usage};

/// Most entries of an archive.
const ENTRIES_MAX: usize = 1 << 20;

/// What is at a guest path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Dir {
        perm: u32,
    },
    Link {
        target: PathBuf,
    },
    /// A file of the host, read when the archive is made.
    File {
        host: PathBuf,
        perm: u32,
    },
    Text {
        text: &'static str,
    },
}

/// Files by absolute guest path.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSet {
    nodes: BTreeMap<PathBuf, Node>,
}

/// What is at a path of the guest before anything is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Nothing,
    Folder,
    /// A file, or anything else that has nothing below it.
    Other,
}

/// Places where the guest mounts file systems of the kernel's: what is added there is not seen.
pub(crate) const OF_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Whether a path of the guest is one of the kernel's places or below one.
pub(crate) fn is_of_kernel(guest: &Path) -> bool {
    OF_KERNEL.iter().any(|place| guest.starts_with(place))
}

/// Fails where a path of the guest cannot be what an option asks for: a `..` in it, a file on the
/// way, a place of the kernel's.
fn ensure_addable(
    option: &str,
    text: &OsStr,
    guest: &Path,
    place: &impl Fn(&Path) -> Place,
) -> Result<(), Error> {
    let refuse = |why: String| Err(usage(format!("{option} {}: {why}", text.display())));
    if guest.components().any(|part| part == std::path::Component::ParentDir) {
        return refuse(format!("{}: write the guest's path without `..`", guest.display()));
    }
    if is_of_kernel(guest) {
        return refuse(format!(
            "{} is the kernel's in the guest: nothing can be added there",
            guest.display()
        ));
    }
    match guest.ancestors().skip(1).find(|above| place(above) == Place::Other) {
        Some(above) => refuse(format!("{} of the guest is a file, not a folder", above.display())),
        None => Ok(()),
    }
}

impl FileSet {
    /// Adds what `--file` and `--dir` name. A file goes into what `place` says is a folder in the
    /// guest, and into what is written with a `/` at its end.
    pub(crate) fn add_arguments(
        &mut self,
        here: &Path,
        files: &[OsString],
        dirs: &[OsString],
        place: impl Fn(&Path) -> Place,
    ) -> Result<(), Error> {
        for text in files {
            let (host, mut guest) = host_and_guest(here, text);
            let goes_into = text.as_bytes().ends_with(b"/") || place(&guest) == Place::Folder;
            if host != guest && goes_into {
                guest.push(host.file_name().unwrap_or_default());
            }
            let meta = metadata(&host).map_err(|error| usage(format!("--file {error}")))?;
            if !meta.is_file() {
                return Err(usage(format!("--file {}: not a file", host.display())));
            }
            ensure_addable("--file", text, &guest, &place)?;
            if self.nodes.contains_key(&guest) {
                let (text, guest) = (text.display(), guest.display());
                let why = format!("another --file puts something at {guest} of the guest");
                return Err(usage(format!("--file {text}: {why}")));
            }
            self.add(guest, Node::File { host, perm: meta.permissions().mode() });
        }
        for text in dirs {
            let (host, guest) = host_and_guest(here, text);
            let meta = metadata(&host).map_err(|error| usage(format!("--dir {error}")))?;
            if !meta.is_dir() {
                return Err(usage(format!("--dir {}: not a folder", host.display())));
            }
            ensure_addable("--dir", text, &guest, &place)?;
            let is_file = matches!(self.nodes.get(&guest), Some(Node::File { .. }));
            if is_file || place(&guest) == Place::Other {
                let (text, guest) = (text.display(), guest.display());
                return Err(usage(format!("--dir {text}: {guest} of the guest is a file")));
            }
            self.add_folder(&host, &guest)?;
        }
        Ok(())
    }

    /// Adds a folder with everything below it. Sockets, pipes and devices are left out, and that is
    /// said: none of them means the same in the guest.
    fn add_folder(&mut self, folder: &Path, guest: &Path) -> Result<(), Error> {
        let mut todo = vec![(folder.to_owned(), guest.to_owned())];
        let mut left_out: Vec<PathBuf> = vec![];
        while let Some((host, guest)) = todo.pop() {
            let perm = metadata(&host)?.permissions().mode();
            self.add(guest.clone(), Node::Dir { perm });
            let entries = fs::read_dir(&host);
            for entry in entries.map_err(Failure::at(Doing::Read, &host))? {
                let entry = entry.map_err(Failure::at(Doing::Read, &host))?;
                let (host, meta) = (entry.path(), entry.metadata());
                let meta = meta.map_err(Failure::at(Doing::Read, &host))?;
                let guest = guest.join(host.file_name().unwrap_or_default());
                if meta.is_dir() {
                    todo.push((host, guest));
                } else if meta.is_symlink() {
                    let target = fs::read_link(&host);
                    let target = target.map_err(Failure::at(Doing::Read, &host))?;
                    self.add(guest, Node::Link { target });
                } else if meta.is_file() {
                    self.add(guest, Node::File { host, perm: meta.permissions().mode() });
                } else {
                    left_out.push(host);
                }
            }
            if self.nodes.len() > ENTRIES_MAX {
                return Err(format!("more than {ENTRIES_MAX} files for the guest").into());
            }
        }
        if let Some(first) = left_out.first() {
            let (folder, first, count) = (folder.display(), first.display(), left_out.len());
            say!(
                "limen: --dir {folder}: left out, as only files, folders and links can be given: \
                  {first} ({count} in all)"
            );
        }
        Ok(())
    }

    /// Adds the file that `path` of the tree leads to, and the links on the way. The result is
    /// where it really is in the tree.
    pub(crate) fn add_from(&mut self, tree: &Tree, path: &Path) -> Result<PathBuf, Failure> {
        let resolved = tree.resolve(path).map_err(Failure::at(Doing::Read, path))?;
        let host = tree.on_host(&resolved.path);
        let meta = fs::metadata(&host).map_err(Failure::at(Doing::Read, path))?;
        let perm = meta.permissions().mode();
        for (link, target) in resolved.links {
            self.add(link, Node::Link { target });
        }
        self.add(resolved.path.clone(), Node::File { host, perm });
        Ok(resolved.path)
    }

    /// Adds or replaces.
    pub(crate) fn add(&mut self, guest: PathBuf, node: Node) {
        self.nodes.insert(guest, node);
    }

    /// Takes out what is at this guest path.
    pub(crate) fn remove(&mut self, guest: &Path) {
        self.nodes.remove(guest);
    }

    /// The programs, scripts and shared libraries of the set: guest path and file of the host.
    pub(crate) fn programs(&self) -> Vec<(&Path, &Path)> {
        let is_program = |(guest, node): (&PathBuf, &Node)| -> bool {
            let Node::File { host, perm } = node else { return false };
            let name = guest.file_name().unwrap_or_default().to_string_lossy();
            (perm & 0o111 != 0 || name.ends_with(".so") || name.contains(".so."))
                && first_bytes(host, 4)
                    .is_ok_and(|first| first.starts_with(b"\x7fELF") || first.starts_with(b"#!"))
        };
        let programs = self.nodes.iter().filter(|entry| is_program((entry.0, entry.1)));
        programs
            .filter_map(|(guest, node)| match node {
                Node::File { host, .. } => Some((guest.as_path(), host.as_path())),
                _ => None,
            })
            .collect()
    }

    /// Adds all of `other`, which wins.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.nodes.extend(other.nodes.iter().map(|(path, node)| (path.clone(), node.clone())));
    }

    /// The mode of the file at this absolute guest path, if the set has one there.
    pub(crate) fn file_mode(&self, guest: &Path) -> Option<u32> {
        match self.nodes.get(guest) {
            Some(Node::File { perm, .. }) => Some(*perm),
            _ => None,
        }
    }

    /// The archive; empty if the set is.
    pub(crate) fn archive(&self) -> Result<Vec<u8>, Error> {
        if self.nodes.is_empty() {
            return Ok(vec![]);
        }
        let _slow = Progress::of(format!("copying {} files", self.nodes.len()));
        let mut contents = BTreeMap::new();
        for (guest, node) in &self.nodes {
            if let Node::File { host, .. } = node {
                let bytes = fs::read(host);
                let bytes = bytes.map_err(Failure::at(Doing::Read, host))?;
                contents.insert(guest, bytes);
            }
        }
        let mut writer = cpio::Writer::new();
        for (guest, node) in &self.nodes {
            let path = guest.as_os_str().as_bytes();
            match node {
                Node::Dir { perm } => writer.dir(path, *perm),
                Node::Link { target } => writer.symlink(path, target.as_os_str().as_bytes()),
                Node::Text { text } => writer.file(path, 0o644, text.as_bytes()),
                Node::File { perm, .. } => writer.file(path, *perm, &contents[guest]),
            }
        }
        let too_big = |path: Vec<u8>| format!("{}: too big", path.escape_ascii());
        Ok(writer.finish().map_err(too_big)?)
    }

    /// A hash that changes whenever the archive would: of each file's place, identity, size and
    /// times instead of its contents, so it is quick.
    pub(crate) fn stat_hash(&self) -> Result<String, Error> {
        let mut hash = Sha256::new();
        for (guest, node) in &self.nodes {
            let stat = match node {
                Node::File { host, .. } => {
                    let meta = metadata(host)?;
                    format!(
                        "{} {} {} {} {}",
                        meta.dev(),
                        meta.ino(),
                        meta.size(),
                        i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
                        i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec()),
                    )
                }
                _ => String::new(),
            };
            hash.update(format!("{guest:?} {node:?} {stat}\n"));
        }
        Ok(hex(&hash.finalize()))
    }
}

/// A hash's digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn metadata(host: &Path) -> Result<fs::Metadata, Error> {
    Ok(fs::metadata(host).map_err(|error| format!("{}: {error}", host.display()))?)
}

/// `HOST[:GUEST]`: both absolute; without GUEST the guest's path is the host's.
pub(crate) fn host_and_guest(here: &Path, text: &OsStr) -> (PathBuf, PathBuf) {
    let bytes = text.as_bytes();
    let colon = bytes.iter().rposition(|&byte| byte == b':');
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    match colon {
        Some(at) if at + 1 < bytes.len() => {
            let host = absolute(here, &path(&bytes[..at]));
            (host, absolute(Path::new("/"), &path(&bytes[at + 1..])))
        }
        _ => (absolute(here, Path::new(text)), absolute(here, Path::new(text))),
    }
}

/// The first bytes of a file, for looking at its kind.
pub(crate) fn first_bytes(host: &Path, len: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(host)?.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_guest_forms() {
        let split = |text: &str| {
            let (host, guest) = host_and_guest(Path::new("/h"), OsStr::new(text));
            (host.display().to_string(), guest.display().to_string())
        };
        assert_eq!(split("./a:/b"), ("/h/a".into(), "/b".into()));
        assert_eq!(split("a"), ("/h/a".into(), "/h/a".into()));
        assert_eq!(split("/x:y"), ("/x".into(), "/y".into()));
        assert_eq!(split("a:b:/c"), ("/h/a:b".into(), "/c".into()));
    }

    #[test]
    fn archives_are_the_same_for_the_same_files() {
        let archive = || {
            let dir = tempfile::tempdir().expect("temporary directory");
            fs::create_dir(dir.path().join("d")).expect("directory");
            fs::write(dir.path().join("d/f"), "text").expect("file");
            std::os::unix::fs::symlink("f", dir.path().join("d/l")).expect("link");
            let mut files = FileSet::default();
            let folder = OsString::from(format!("{}:/to", dir.path().join("d").display()));
            files.add_arguments(dir.path(), &[], &[folder], |_| Place::Nothing).expect("added");
            files.archive().expect("archive")
        };
        let first = archive();
        assert_eq!(first, archive());
        let paths: Vec<_> = cpio::Reader::new(&first)
            .map(|entry| entry.map(|e| String::from_utf8_lossy(e.path).into_owned()))
            .collect::<Result<_, _>>()
            .expect("own archive");
        assert_eq!(paths, ["to", "to/f", "to/l"]);
    }

    #[test]
    fn wrong_kinds_are_errors() {
        let mut files = FileSet::default();
        let root = Path::new("/");
        let add = |files: &mut FileSet, file: &[OsString], dir: &[OsString]| {
            files.add_arguments(root, file, dir, |_| Place::Nothing).is_err()
        };
        assert!(add(&mut files, &["/etc".into()], &[]));
        assert!(add(&mut files, &[], &["/etc/passwd".into()]));
        assert!(add(&mut files, &["/none".into()], &[]));
        // Into a folder.
        assert!(!add(&mut files, &["/etc/passwd:/".into(), "/etc/group:/srv/".into()], &[]));
        assert!(files.file_mode(Path::new("/passwd")).is_some());
        assert!(files.file_mode(Path::new("/srv/group")).is_some());
    }
}
