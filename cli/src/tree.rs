//! Paths inside a root: resolution of symbolic links as the guest will see them.
//!
//! Why it is hard: with `--root DIR` an absolute link in DIR means DIR's own file, so
//! `canonicalize` gives the wrong answer; and packing must know every link on the way, because
//! each becomes an entry of the archive. Neighbours: `run/lookup.rs` and `pack/closure.rs`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Linux follows at most 40 symbolic links (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// A directory that is somebody's `/`.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Absolute path inside the tree, without links, `.` and `..`.
    pub(crate) path: PathBuf,
    /// The links on the way: absolute path inside the tree and the link's text.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

impl Tree {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The caller's own `/`.
    pub(crate) fn host() -> Self {
        Self::new("/")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where `path` (absolute in the tree, links not followed) is on the host.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Follows every link of the absolute `path`. What it leads to must exist.
    pub(crate) fn resolve(&self, path: &Path) -> io::Result<Resolved> {
        let mut done = PathBuf::from("/");
        let mut todo: Vec<OsString> = components(path);
        let mut links = Vec::new();
        while let Some(name) = todo.pop() {
            if name == OsStr::new("..") {
                done.pop();
                continue;
            }
            let next = done.join(&name);
            if !self.on_host(&next).symlink_metadata()?.is_symlink() {
                done = next;
                continue;
            }
            if links.len() == LINKS_MAX {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = self.on_host(&next).read_link()?;
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            todo.extend(components(&target));
            links.push((next, target));
        }
        Ok(Resolved { path: done, links })
    }

    /// The host's path of what `path` leads to.
    pub(crate) fn find(&self, path: &Path) -> io::Result<PathBuf> {
        self.resolve(path).map(|resolved| self.on_host(&resolved.path))
    }

    /// True if `path` leads to a regular file.
    #[cfg(test)]
    pub(crate) fn is_file(&self, path: &Path) -> bool {
        self.find(path).is_ok_and(|found| found.is_file())
    }
}

/// The names of a path, last first, without `/` and `.`.
pub(crate) fn components(path: &Path) -> Vec<OsString> {
    let wanted = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(wanted).map(|part| part.as_os_str().to_owned()).collect()
}

/// `path` made absolute against `base` without looking at the file system: `.` and `//` vanish,
/// `..` stays (it may follow a link).
pub(crate) fn absolute(base: &Path, path: &Path) -> PathBuf {
    base.join(path).components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn absolute_links_stay_inside() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("usr/bin")).expect("directory");
        fs::write(at("usr/bin/real"), "").expect("file");
        symlink("/usr/bin", at("bin")).expect("link");
        symlink("../bin/real", at("usr/sh")).expect("link");
        let tree = Tree::new(dir.path());
        let found = tree.resolve(Path::new("/usr/./sh")).expect("exists");
        assert_eq!(found.path, Path::new("/usr/bin/real"));
        let links: Vec<_> = found.links.iter().map(|(link, _)| link.as_path()).collect();
        assert_eq!(links, [Path::new("/usr/sh"), Path::new("/bin")]);
        // `..` above the root is the root.
        assert!(tree.is_file(Path::new("/../../bin/real")));
        assert!(!tree.is_file(Path::new("/bin")));
    }

    #[test]
    fn loops_end() {
        let dir = tempfile::tempdir().expect("temporary directory");
        symlink("b", dir.path().join("a")).expect("link");
        symlink("a", dir.path().join("b")).expect("link");
        let error = Tree::new(dir.path()).resolve(Path::new("/a")).expect_err("a loop");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()));
    }
}
