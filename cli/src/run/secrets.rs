//! Which paths of the live root the program must not see.
//!
//! The guest's kernel enforces it: a hidden path is ENOENT there. It keeps a program from reading
//! keys by accident or malice; it is no wall against a broken kernel, for QEMU itself could read
//! them (`--pack` or `--root` is that wall). Neighbours: `plan.rs`.

use std::path::{Path, PathBuf};

use crate::tree::{Tree, absolute};
use crate::{Error, usage};

/// What is hidden: a path a line, and lines of explanation.
pub(crate) const LIST: &str = include_str!("hidden.txt");

/// The hidden paths, absolute in the guest and sorted: the known secrets that exist, and `hide`,
/// without those at or below a path of `show`. A path through a link is there with and without it.
pub(crate) fn hidden_paths(
    tree: &Tree,
    cwd: &Path,
    hide: &[PathBuf],
    show: &[PathBuf],
) -> Vec<PathBuf> {
    let show: Vec<PathBuf> = show.iter().flat_map(|path| both_names(tree, cwd, path)).collect();
    let mut hidden: Vec<PathBuf> = known(tree)
        .into_iter()
        .flat_map(|path| both_names(tree, cwd, &path))
        .filter(|path| !show.iter().any(|shown| path.starts_with(shown)))
        .chain(hide.iter().flat_map(|path| both_names(tree, cwd, path)))
        .collect();
    hidden.sort();
    hidden.dedup();
    hidden
}

/// Tells of options that change nothing: a misspelt path is seen, or not seen, as if the option was
/// not there.
pub(crate) fn warn_of_nothing(tree: &Tree, cwd: &Path, hide: &[PathBuf], show: &[PathBuf]) {
    for path in hide.iter().filter(|path| tree.resolve(&absolute(cwd, path)).is_err()) {
        say!("limen: --hide {}: nothing is there", path.display());
    }
    let hidden = hidden_paths(tree, cwd, hide, &[]);
    for path in show {
        let names = both_names(tree, cwd, path);
        if !hidden.iter().any(|hidden| names.iter().any(|name| hidden.starts_with(name))) {
            say!("limen: --show {}: nothing is hidden there", path.display());
        }
    }
}

/// The paths of [`LIST`] that are there.
fn known(tree: &Tree) -> Vec<PathBuf> {
    let homes = homes(tree);
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let paths = lines.flat_map(|line| match line.strip_prefix("~/") {
        Some(name) => homes.iter().map(|home| home.join(name)).collect(),
        None => expand(tree, Path::new(line)),
    });
    paths.filter(|path| tree.resolve(path).is_ok()).collect()
}

/// The paths that a `*` in the last name stands for.
fn expand(tree: &Tree, pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((start, end)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let parent = pattern.parent().unwrap_or(Path::new("/"));
    let entries = tree.find(parent).and_then(std::fs::read_dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with(start) && name.ends_with(end))
        .map(|name| parent.join(name))
        .collect()
}

/// Fails if a folder of the host that is to be shared for writing has something hidden in it: the
/// program would see it there.
pub(crate) fn ensure_shareable(
    host: &Path,
    cwd: &Path,
    hide: &[PathBuf],
    show: &[PathBuf],
) -> Result<(), Error> {
    let hidden = hidden_paths(&Tree::host(), cwd, hide, show);
    match hidden.iter().find(|path| path.starts_with(host) || host.starts_with(path)) {
        None => Ok(()),
        Some(path) => Err(usage(format!(
            "--rw {} would share {}, which is hidden: name a folder without it, or --show {}",
            host.display(),
            path.display(),
            path.display()
        ))),
    }
}

/// The path as named, and where it really is.
fn both_names(tree: &Tree, cwd: &Path, path: &Path) -> Vec<PathBuf> {
    let named = absolute(cwd, path);
    let real = tree.resolve(&named).map(|resolved| resolved.path);
    let mut names = vec![named];
    names.extend(real.ok().filter(|real| *real != names[0]));
    names
}

/// Home directories of all users of the tree (passwd(5)), and the caller's.
fn homes(tree: &Tree) -> Vec<PathBuf> {
    let passwd = tree.find(Path::new("/etc/passwd")).and_then(std::fs::read).unwrap_or_default();
    let passwd = String::from_utf8_lossy(&passwd).into_owned();
    let mut homes: Vec<PathBuf> =
        passwd.lines().filter_map(|line| line.split(':').nth(5)).map(PathBuf::from).collect();
    homes.push("/root".into());
    homes.extend(std::env::var_os("HOME").map(PathBuf::from));
    homes.retain(|home| home.is_absolute() && home.components().count() > 1);
    homes.sort();
    homes.dedup();
    homes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn secrets_are_hidden_unless_shown() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("etc")).expect("directory");
        fs::create_dir_all(at("data/u/.ssh")).expect("directory");
        fs::create_dir_all(at("data/u/.gnupg")).expect("directory");
        fs::write(at("etc/passwd"), "u:x:1:1::/home/u:/bin/sh\nbad\n").expect("file");
        std::os::unix::fs::symlink("data", at("home")).expect("link");
        let tree = Tree::new(dir.path());
        let hidden = |hide: &[&str], show: &[&str]| {
            let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
            hidden_paths(&tree, Path::new("/w"), &paths(hide), &paths(show))
        };
        let all = ["/data/u/.gnupg", "/data/u/.ssh", "/home/u/.gnupg", "/home/u/.ssh"];
        assert_eq!(hidden(&[], &[]), all.map(PathBuf::from));
        let rest = ["/data/u/.gnupg", "/home/u/.gnupg"];
        assert_eq!(hidden(&[], &["/home/u/.ssh"]), rest.map(PathBuf::from));
        assert_eq!(hidden(&["x"], &["/home/u"]), [PathBuf::from("/w/x")]);
        fs::create_dir(at("etc/ssh")).expect("directory");
        fs::write(at("etc/ssh/ssh_host_rsa_key"), "").expect("file");
        fs::write(at("etc/ssh/ssh_host_rsa_key.pub"), "").expect("file");
        fs::write(at("etc/shadow"), "").expect("file");
        let etc = ["/etc/shadow", "/etc/ssh/ssh_host_rsa_key"];
        assert_eq!(hidden(&[], &["/home/u"]), etc.map(PathBuf::from));
    }
}
