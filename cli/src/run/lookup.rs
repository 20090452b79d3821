//! Which file a program's name means: the search in PATH, as execvp(3) does it, inside a tree.
//!
//! Neighbours: `plan.rs`, and `pack/closure.rs` for `#!/usr/bin/env NAME`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::pack::files::FileSet;
use crate::tree::{Tree, absolute};

/// What PATH is where the caller's does not count.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// An executable file, absolute in the tree, links not followed (programs look at `argv[0]`
    /// and links such as busybox's have meaning).
    At(PathBuf),
    /// Something is there, but it is no executable file.
    NotExecutable(PathBuf),
    Nowhere,
}

/// Looks for `name`: with a `/` in it against `cwd`, else in the folders of `path`. What is `added`
/// to the tree counts first.
pub(crate) fn find_program(
    tree: &Tree,
    added: &FileSet,
    name: &OsStr,
    path: &OsStr,
    cwd: &Path,
) -> Found {
    if name.as_bytes().contains(&b'/') {
        return examine(tree, added, absolute(cwd, Path::new(name)));
    }
    let mut best = Found::Nowhere;
    for folder in std::env::split_paths(path).filter(|_| !name.is_empty()) {
        match examine(tree, added, absolute(cwd, &folder).join(name)) {
            found @ Found::At(_) => return found,
            Found::Nowhere => {}
            other if best == Found::Nowhere => best = other,
            Found::NotExecutable(_) => {}
        }
    }
    best
}

fn examine(tree: &Tree, added: &FileSet, candidate: PathBuf) -> Found {
    let of_tree = || {
        let meta = tree.find(&candidate).and_then(std::fs::metadata).ok()?;
        Some(if meta.is_file() { meta.permissions().mode() } else { 0 })
    };
    match added.file_mode(&candidate).or_else(of_tree) {
        Some(mode) if mode & 0o111 != 0 => Found::At(candidate),
        Some(_) => Found::NotExecutable(candidate),
        None => Found::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::files::Place;
    use std::fs;

    #[test]
    fn search_order() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let tree = Tree::new(dir.path());
        let add = |path: &str, mode| {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().expect("has one")).expect("directory");
            fs::write(&file, "").expect("file");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("mode");
        };
        add("a/plain", 0o644);
        add("a/x", 0o644);
        add("b/x", 0o755);
        fs::create_dir_all(dir.path().join("b/plain")).expect("directory");
        let mut added = FileSet::default();
        let file = dir.path().join("b/x").into_os_string();
        let arguments: Vec<std::ffi::OsString> = ["/b/own", "/a/way"]
            .map(|guest| [&file, OsStr::new(":"), OsStr::new(guest)].into_iter().collect())
            .into();
        added.add_arguments(dir.path(), &arguments, &[], |_| Place::Nothing).expect("added");
        let find = |name: &str| {
            find_program(&tree, &added, OsStr::new(name), OsStr::new("/a:/b"), Path::new("/b"))
        };
        assert_eq!(find("own"), Found::At("/b/own".into()));
        assert_eq!(find("/a/way"), Found::At("/a/way".into()));
        assert_eq!(find("x"), Found::At("/b/x".into()));
        assert_eq!(find("./x"), Found::At("/b/x".into()));
        assert_eq!(find("plain"), Found::NotExecutable("/a/plain".into()));
        assert_eq!(find("/a"), Found::NotExecutable("/a".into()));
        assert_eq!(find("none"), Found::Nowhere);
        assert_eq!(find(""), Found::Nowhere);
        assert_eq!(find("/none/x"), Found::Nowhere);
    }
}
