//! Where the dynamic loader looks for libraries: `/etc/ld.so.cache`, or `/etc/ld.so.conf` where
//! there is no cache, and the built-in folders (ld.so(8), ldconfig(8)); musl has its own list.
//!
//! The cache's form ("new format", glibc's dl-cache): the text `glibc-ld.so.cache1.1`, the number
//! of entries and the length of the strings (u32 each), 20 bytes of other matters; then per entry
//! flags, name, path (u32 each), 12 bytes of other matters. Name and path are offsets of
//! NUL-terminated strings from where the text begins. Neighbour: `closure.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::tree::{Tree, absolute};

const CACHE: &str = "/etc/ld.so.cache";
const CONF: &str = "/etc/ld.so.conf";
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const CACHE_HEADER_LEN: usize = 48;
const CACHE_ENTRY_LEN: usize = 24;
/// Longest path (PATH_MAX): entries may share strings, and a long one many times is much memory.
const STRING_MAX: usize = 4096;
/// Entry flags: library for glibc (3) on x86-64 (0x300).
const FLAGS_X86_64: u32 = 0x303;
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

fn parse_cache(bytes: &[u8]) -> Option<BTreeMap<String, Vec<PathBuf>>> {
    // A cache in the old format may come first.
    let at = bytes.windows(CACHE_MAGIC.len()).position(|window| window == CACHE_MAGIC)?;
    let cache = &bytes[at..];
    let word = |at: usize| {
        cache.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    };
    let string = |at: u32| {
        let rest = cache.get(at as usize..)?;
        let len = rest.iter().take(STRING_MAX).position(|&byte| byte == 0)?;
        String::from_utf8(rest[..len].to_vec()).ok()
    };
    let mut entries = BTreeMap::<String, Vec<PathBuf>>::new();
    for index in 0..word(CACHE_MAGIC.len())? as usize {
        let at = CACHE_HEADER_LEN + index.checked_mul(CACHE_ENTRY_LEN)?;
        if word(at)? == FLAGS_X86_64 {
            let (name, path) = (string(word(at + 4)?)?, string(word(at + 8)?)?);
            entries.entry(name).or_default().push(path.into());
        }
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

    /// A cache with these entries.
    pub(crate) fn cache_of(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let strings_at = CACHE_HEADER_LEN + entries.len() * CACHE_ENTRY_LEN;
        let mut table = Vec::new();
        for (flags, name, path) in entries {
            let mut put = |text: &str| {
                let at = (strings_at + strings.len()) as u32;
                strings.extend_from_slice(text.as_bytes());
                strings.push(0);
                at
            };
            let words = [*flags, put(name), put(path), 0, 0, 0];
            table.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let mut cache = CACHE_MAGIC.to_vec();
        cache.extend((entries.len() as u32).to_le_bytes());
        cache.extend((strings.len() as u32).to_le_bytes());
        cache.resize(CACHE_HEADER_LEN, 0);
        cache.extend(table);
        cache.extend(strings);
        cache
    }

    /// Any change of two words of a cache, and any cut.
    #[test]
    fn hostile_caches_are_read_or_refused() {
        let entry = (FLAGS_X86_64, "liba.so.1", "/opt/liba.so.1");
        let good = cache_of(&[entry, entry]);
        let edges = [0, 1, 0x7fff_ffff, u32::MAX, u32::MAX - 3, good.len() as u32];
        for (first, second) in (0..good.len()).flat_map(|a| (a..good.len()).map(move |b| (a, b))) {
            let mut bad = good.clone();
            for (at, edge) in [(first, edges[second % 6]), (second, edges[first % 6])] {
                let end = bad.len().min(at + 4);
                bad[at..end].copy_from_slice(&edge.to_le_bytes()[..end - at]);
            }
            let found = parse_cache(&bad).unwrap_or_default();
            assert!(found.values().map(Vec::len).sum::<usize>() <= bad.len() / CACHE_ENTRY_LEN);
            let _ = parse_cache(&bad[..second]);
        }
        let mut long = cache_of(&[(FLAGS_X86_64, "liba.so.1", "/a")]);
        long.pop();
        long.resize(long.len() + STRING_MAX, b'a');
        long.push(0);
        assert_eq!(parse_cache(&long), None);
    }

    #[test]
    fn cache_entries_of_this_machine_only() {
        let entries = [(FLAGS_X86_64, "liba.so.1", "/opt/liba.so.1"), (3, "liba.so.1", "/i386/a")];
        let mut bytes = b"ld.so-1.7.0 old".to_vec();
        bytes.extend(cache_of(&entries));
        let cache = parse_cache(&bytes).expect("a cache");
        assert_eq!(cache["liba.so.1"], [PathBuf::from("/opt/liba.so.1")]);
        for len in 0..bytes.len() {
            assert!(parse_cache(&bytes[..len]).is_none_or(|cache| cache.len() < 2));
        }
    }

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
