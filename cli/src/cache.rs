//! What is only kept to be quicker the next time: folders of the cache, each with a limit.
//!
//! Why limits: nobody looks into a cache. What was used longest ago goes first, by the time of the
//! last change, which each use sets; what was made last stays, however large it is. That something
//! cannot be kept is told, and no reason to fail.
//!
//! Neighbours: `paths.rs` says where the cache is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::SystemTime;

use crate::failure::{Doing, Failure};
use crate::{Error, paths};

/// Packed programs, by the hash of the archive.
pub(crate) const PACKED: Limit = Limit { folder: "packed", entries: 32, bytes: 2 << 30 };
/// Names of packed programs, by the hash of what the files were.
pub(crate) const PACKED_BY_STATE: Limit =
    Limit { folder: "packed-by-state", entries: 256, bytes: 1 << 20 };
/// Unpacked container images.
pub(crate) const IMAGES: Limit = Limit { folder: "images", entries: 16, bytes: 16 << 30 };
/// Kernels with names for gdb.
pub(crate) const GDB: Limit = Limit { folder: "gdb", entries: 4, bytes: 1 << 30 };
/// What Linux was measured to take.
pub(crate) const LINUX_FIGURES: Limit = Limit { folder: "figures", entries: 256, bytes: 16 << 20 };
/// What this host's QEMU and KVM can do.
pub(crate) const PROBES: Limit = Limit { folder: "probes", entries: 16, bytes: 1 << 20 };

/// One line says it for all that cannot be kept.
static TOLD: Once = Once::new();

/// How much a folder of the cache may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    folder: &'static str,
    entries: usize,
    bytes: u64,
}

/// A folder of the cache.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    limit: Limit,
}

impl Folder {
    /// The folder, which there may not be yet.
    pub(crate) fn of(limit: Limit) -> Result<Self, Error> {
        Ok(Self { path: paths::cache_dir()?.join(limit.folder), limit })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it; for who puts something into it by other means than [`Folder::keep`].
    pub(crate) fn make(&self) -> Result<(), Failure> {
        fs::create_dir_all(&self.path).map_err(Failure::at(Doing::Make, &self.path))
    }

    /// What is kept under this name, used now.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        let path = self.path.join(name);
        let file = fs::File::open(&path).ok()?;
        // Where the time cannot be set it goes early, and is made again.
        let _ = file.set_times(fs::FileTimes::new().set_modified(SystemTime::now()));
        Some(path)
    }

    /// The bytes kept under this name, used now.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.find(name)?).ok()
    }

    /// The same for words.
    pub(crate) fn read_text(&self, name: &str) -> Option<String> {
        String::from_utf8(self.read(name)?).ok()
    }

    /// Keeps it, and lets go what is over the limit. Whether it is kept; if not, that is told.
    pub(crate) fn keep(&self, name: &str, bytes: &[u8]) -> bool {
        // Without the folder the file cannot be written, which says why.
        let _ = fs::create_dir_all(&self.path);
        let kept = paths::write_atomically(&self.path.join(name), bytes);
        self.prune();
        if let Err(failure) = &kept {
            TOLD.call_once(|| say!("limen: not kept for the next time: {failure}"));
        }
        kept.is_ok()
    }

    /// Removes what was used longest ago, until the limit holds; folders in it whose names begin
    /// with a dot are being made, and not looked at.
    pub(crate) fn prune(&self) {
        let mut bytes = 0;
        for (index, (_, path)) in self.newest_first().into_iter().enumerate() {
            bytes += bytes_of(&path);
            if index == 0 || index < self.limit.entries && bytes <= self.limit.bytes {
                continue;
            }
            // Somebody else may have been faster, and who looks for it makes it again.
            let _ = match path.is_dir() {
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            };
        }
    }

    fn newest_first(&self) -> Vec<(SystemTime, PathBuf)> {
        let mut kept: Vec<_> = fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        kept.sort_by(|a, b| b.cmp(a));
        kept
    }
}

/// What a file, or all files of a folder, take on the disk.
fn bytes_of(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(meta) = path.symlink_metadata() else { return 0 };
    let inside = match meta.is_dir() {
        true => fs::read_dir(path).into_iter().flatten().flatten().collect(),
        false => Vec::new(),
    };
    meta.blocks() * 512 + inside.iter().map(|entry| bytes_of(&entry.path())).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn folder(entries: usize, bytes: u64) -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().to_owned();
        (dir, Folder { path, limit: Limit { folder: "of a test", entries, bytes } })
    }

    /// Puts it there as if it had been used so many seconds after the others.
    fn put(folder: &Folder, name: &str, bytes: usize, second: u64) {
        let path = folder.path.join(name);
        fs::write(&path, vec![1; bytes]).expect("written");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let file = fs::File::options().write(true).open(path).expect("there");
        file.set_times(fs::FileTimes::new().set_modified(time)).expect("a time");
    }

    fn names(folder: &Folder) -> Vec<String> {
        let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
        let mut names: Vec<_> =
            folder.newest_first().into_iter().filter_map(|(_, path)| name(path)).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let (_dir, folder) = folder(3, 1 << 30);
        for (second, name) in ["a", "b", "c"].into_iter().enumerate() {
            put(&folder, name, 1, second as u64);
        }
        assert!(folder.find("a").is_some());
        assert!(folder.keep("d", b"new"));
        assert_eq!(names(&folder), ["a", "c", "d"]);
        assert_eq!(folder.read_text("d").as_deref(), Some("new"));
    }

    #[test]
    fn bytes_are_limited_but_for_the_last() {
        let (_dir, folder) = folder(9, 100 << 10);
        for (second, name) in ["a", "b", "c"].into_iter().enumerate() {
            put(&folder, name, 40 << 10, second as u64);
        }
        folder.prune();
        assert_eq!(names(&folder), ["b", "c"]);
        put(&folder, "d", 400 << 10, 9);
        folder.prune();
        assert_eq!(names(&folder), ["d"]);
    }

    #[test]
    fn folders_count_by_what_is_in_them_and_those_being_made_stay() {
        let (_dir, folder) = folder(9, 100 << 10);
        fs::create_dir(folder.path.join(".unpacking-x")).expect("made");
        put(&folder, ".unpacking-x/big", 400 << 10, 0);
        fs::create_dir(folder.path.join("image")).expect("made");
        put(&folder, "image/big", 400 << 10, 0);
        std::thread::sleep(Duration::from_millis(20));
        assert!(folder.keep("new", b"x"));
        assert_eq!(names(&folder), ["new"]);
        assert!(folder.path.join(".unpacking-x/big").exists());
    }
}
