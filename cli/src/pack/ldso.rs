//! Where the dynamic loader looks for libraries: `/etc/ld.so.cache`, or `/etc/ld.so.conf` where
//! there is no cache, and the built-in folders (ld.so(8), ldconfig(8)); musl has its own list.
//!
//! Neighbours: `closure.rs`; `formats::library_cache` reads the cache.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::tree::{Tree, absolute};

const CACHE: &str = "/etc/ld.so.cache";
const CONF: &str = "/etc/ld.so.conf";
/// How deep `include` lines of ld.so.conf may go.
const INCLUDE_DEPTH_MAX: u32 = 8;

const GLIBC_FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
const MUSL_FOLDERS: [&str; 3] = ["/lib", "/usr/local/lib", "/usr/lib"];
const MUSL_LIST: &str = "/etc/ld-musl-x86_64.path";

/// The system-wide places of a tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct SystemLibraries {
    cache: BTreeMap<String, Vec<PathBuf>>,
    has_cache: bool,
    configured: Vec<PathBuf>,
    musl: Vec<PathBuf>,
}

impl SystemLibraries {
    pub(crate) fn of(tree: &Tree) -> Self {
        let read = |path: &str| tree.find(Path::new(path)).and_then(fs::read);
        let cache = read(CACHE).ok().and_then(|bytes| parse_cache(&bytes));
        let mut configured = Vec::new();
        if cache.is_none() {
            read_conf(tree, Path::new(CONF), INCLUDE_DEPTH_MAX, &mut configured);
        }
        let musl = match read(MUSL_LIST) {
            Ok(bytes) => String::from_utf8_lossy(&bytes)
                .split([':', '\n'])
                .filter(|path| path.starts_with('/'))
                .map(PathBuf::from)
                .collect(),
            Err(_) => MUSL_FOLDERS.map(PathBuf::from).to_vec(),
        };
        Self { has_cache: cache.is_some(), cache: cache.unwrap_or_default(), configured, musl }
    }

    /// Candidates for the library `name`, best first, and whether one comes from the cache.
    pub(crate) fn candidates(&self, name: &str, musl: bool) -> Vec<(PathBuf, bool)> {
        if musl {
            return self.musl.iter().map(|dir| (dir.join(name), false)).collect();
        }
        let cached = self.cache.get(name).into_iter().flatten().map(|path| (path.clone(), true));
        let configured = self.configured.iter().map(|dir| (dir.join(name), false));
        let built_in = GLIBC_FOLDERS.iter().map(|dir| (Path::new(dir).join(name), false));
        cached.chain(configured).chain(built_in).collect()
    }

    /// The cache file, where there is one.
    pub(crate) fn cache_file(&self) -> Option<&'static Path> {
        self.has_cache.then_some(Path::new(CACHE))
    }
}

/// True if the loader would find `path` without a cache.
pub(crate) fn is_built_in(path: &Path) -> bool {
    path.parent().is_some_and(|dir| GLIBC_FOLDERS.iter().any(|known| Path::new(known) == dir))
}

/// Paths by name; `None` if it is no cache.
fn parse_cache(bytes: &[u8]) -> Option<BTreeMap<String, Vec<PathBuf>>> {
    let mut entries = BTreeMap::<String, Vec<PathBuf>>::new();
    for (name, path) in formats::library_cache::parse(bytes)? {
        let (name, path) = (str::from_utf8(name).ok()?, str::from_utf8(path).ok()?);
        entries.entry(name.to_owned()).or_default().push(path.into());
    }
    Some(entries)
}

/// Appends the folders that a configuration file names, with its `include` lines followed.
fn read_conf(tree: &Tree, conf: &Path, depth: u32, folders: &mut Vec<PathBuf>) {
    let Ok(text) = tree.find(conf).and_then(fs::read_to_string) else {
        return;
    };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.strip_prefix("include ") {
            Some(pattern) if depth > 0 => {
                let base = conf.parent().unwrap_or(Path::new("/"));
                for included in glob_last(tree, &absolute(base, Path::new(pattern.trim()))) {
                    read_conf(tree, &included, depth - 1, folders);
                }
            }
            None if line.starts_with('/') => folders.push(line.into()),
            _ => {}
        }
    }
}

/// Files that match a pattern with at most one `*`, in its last part; sorted.
fn glob_last(tree: &Tree, pattern: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (pattern.parent(), pattern.file_name()) else {
        return vec![];
    };
    let name = name.to_string_lossy();
    let Some((before, after)) = name.split_once('*') else {
        return vec![pattern.to_owned()];
    };
    let entries = tree.find(dir).and_then(fs::read_dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let matches = |name: &String| {
        let rest = name.strip_prefix(before);
        rest.is_some_and(|rest| rest.ends_with(after)) && !name.starts_with('.')
    };
    let mut found: Vec<PathBuf> = names.filter(matches).map(|name| dir.join(name)).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conf_with_includes() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("etc/ld.so.conf.d")).expect("directory");
        fs::write(at("etc/ld.so.conf"), "include ld.so.conf.d/*.conf\n/last # x\n").expect("file");
        fs::write(at("etc/ld.so.conf.d/b.conf"), "/b\ninclude /etc/ld.so.conf\n").expect("file");
        fs::write(at("etc/ld.so.conf.d/a.conf"), "/a\n").expect("file");
        fs::write(at("etc/ld.so.conf.d/c.txt"), "/c\n").expect("file");
        let libraries = SystemLibraries::of(&Tree::new(dir.path()));
        // b.conf includes everything again: the depth is bounded.
        assert_eq!(libraries.configured[..3], ["/a", "/b", "/a"].map(PathBuf::from));
        assert_eq!(libraries.configured.last(), Some(&PathBuf::from("/last")));
        assert!(!libraries.configured.contains(&PathBuf::from("/c")));
    }
}
