//! A root file system in a folder of an ordinary user: QEMU's `mapped-file` form.
//!
//! Why this form: without root nobody can give files to other owners, and a symbolic link of an
//! image's would be a link of the host's. In this form every file is a regular file of the user's,
//! also a link (its contents are the target) and a FIFO; owner, group and mode are a small text in
//! a folder beside it, `.virtfs_metadata/NAME`, which QEMU's 9P server reads and never shows (its
//! documentation: "-fsdev local,security_model=mapped-file"). The root's own are in
//! `.virtfs_metadata_root`.
//!
//! Neighbours: `layer.rs` writes it, `run/plan` and `pack` look things up in it.

use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use formats::cpio::mode;

use crate::failure::{Doing, Failure};
use crate::tree::components;

/// Where attributes are, in each folder; and those of the root.
pub(super) const META_FOLDER: &str = ".virtfs_metadata";
pub(super) const META_OF_ROOT: &str = ".virtfs_metadata_root";
/// Linux follows at most 40 symbolic links (path_resolution(7)).
pub(super) const LINKS_MAX: usize = 40;
/// `S_IFIFO`.
const FIFO: u32 = 0o010_000;
/// Most entries that [`Rootfs::walk`] visits.
const ENTRIES_MAX: usize = 1 << 20;

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Folder,
    File,
    Link,
    Fifo,
}

/// What the guest sees of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) kind: NodeKind,
    /// The low twelve bits.
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Meta {
    /// `st_mode`.
    pub(crate) fn mode(self) -> u32 {
        let kind = match self.kind {
            NodeKind::Folder => mode::DIRECTORY,
            NodeKind::File => mode::REGULAR,
            NodeKind::Link => mode::SYMLINK,
            NodeKind::Fifo => FIFO,
        };
        kind | self.perm
    }

    pub(super) fn encode(self) -> String {
        format!("virtfs.uid={}\nvirtfs.gid={}\nvirtfs.mode={}\n", self.uid, self.gid, self.mode())
    }

    fn decode(text: &str) -> Option<Self> {
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let mode: u32 = field("virtfs.mode=")?;
        let kind = match mode & mode::TYPE {
            mode::DIRECTORY => NodeKind::Folder,
            mode::REGULAR => NodeKind::File,
            mode::SYMLINK => NodeKind::Link,
            FIFO => NodeKind::Fifo,
            _ => return None,
        };
        let (uid, gid) = (field("virtfs.uid=")?, field("virtfs.gid=")?);
        Some(Self { kind, perm: mode & 0o7777, uid, gid })
    }
}

/// An unpacked root file system.
#[derive(Clone, Debug)]
pub(crate) struct Rootfs {
    dir: PathBuf,
}

impl Rootfs {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The folder for QEMU.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is at `path`, whose folders are real ones.
    fn meta(&self, path: &Path) -> Option<Meta> {
        let text = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.on_host(parent).join(META_FOLDER).join(name),
            _ => self.dir.join(META_OF_ROOT),
        };
        Meta::decode(&std::fs::read_to_string(text).ok()?)
    }

    /// Where the bytes of `path` are, whose folders are real ones.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        self.dir.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A link's target.
    pub(crate) fn target(&self, path: &Path) -> Option<PathBuf> {
        let bytes = std::fs::read(self.on_host(path)).ok()?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
    }

    /// Follows the links of an absolute path: where it leads, and what is there.
    pub(crate) fn find(&self, path: &Path) -> Option<(PathBuf, Meta)> {
        let mut done = PathBuf::from("/");
        let mut todo = components(path);
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                done.pop();
                continue;
            }
            let next = done.join(&name);
            if self.meta(&next)?.kind != NodeKind::Link {
                done = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            let target = self.target(&next)?;
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            todo.extend(components(&target));
        }
        let meta = self.meta(&done)?;
        Some((done, meta))
    }

    /// A text of the image's, such as `/etc/passwd`; empty if it is not there.
    pub(crate) fn text(&self, path: &str) -> String {
        let found = self.find(Path::new(path)).filter(|(_, meta)| meta.kind == NodeKind::File);
        let bytes = found.and_then(|(path, _)| std::fs::read(self.on_host(&path)).ok());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    /// Everything, folders before what is in them; with the time of its last change, in seconds.
    pub(crate) fn walk(&self) -> Result<Vec<(PathBuf, Meta, u32)>, Failure> {
        let mut found = Vec::new();
        let mut todo = vec![PathBuf::from("/")];
        while let Some(path) = todo.pop() {
            let host = self.on_host(&path);
            let lost = || {
                let what = format!("{}: the unpacked image is damaged", path.display());
                Failure::damaged(what).within(self.dir.display().to_string())
            };
            let meta = self.meta(&path).ok_or_else(lost)?;
            let changed = std::fs::symlink_metadata(&host);
            let changed = changed.map_err(Failure::at(Doing::Read, &host))?.mtime();
            if meta.kind == NodeKind::Folder {
                let entries = std::fs::read_dir(&host).map_err(Failure::at(Doing::Read, &host))?;
                for entry in entries {
                    let name = entry.map_err(Failure::at(Doing::Read, &host))?.file_name();
                    if name != META_FOLDER && name != META_OF_ROOT {
                        todo.push(path.join(name));
                    }
                }
            }
            found.push((path, meta, u32::try_from(changed).unwrap_or(0)));
            if found.len() > ENTRIES_MAX {
                let what = format!("more than {ENTRIES_MAX} files in the image");
                return Err(Failure::too_large(what));
            }
        }
        Ok(found)
    }
}
