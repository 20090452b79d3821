//! What is open: files that the guest has opened, and folders it is in the middle of reading.
//!
//! Why it is hard: the guest says when it closes a file, so files are limited and counted. It does
//! not say when it has read enough of a folder (a folder is never opened, which saves two of four
//! requests for a small one): it asks for what comes behind a position. So a folder that was read
//! in part stays open here for the next request, a few of them at a time, and whoever comes later
//! opens it again and goes to the position, which is the host's own and good for every descriptor
//! of the folder (readdir(3), `d_off`).
//!
//! Neighbours: `serve.rs`.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

/// Most files that a guest may have open at a time.
const FILES_MAX: usize = 1 << 16;
/// Most folders that are kept open between two requests.
const FOLDERS_MAX: usize = 64;

/// Files by handle. A handle that was closed is never given again.
#[derive(Debug, Default)]
pub(super) struct Files {
    by_handle: HashMap<u64, Arc<File>>,
    last: u64,
}

impl Files {
    /// # Errors
    /// ENFILE if too many are open.
    pub(super) fn add(&mut self, file: OwnedFd) -> Result<u64, Errno> {
        if self.by_handle.len() >= FILES_MAX {
            return Err(Errno::NFILE);
        }
        self.last += 1;
        self.by_handle.insert(self.last, Arc::new(file.into()));
        Ok(self.last)
    }

    /// # Errors
    /// EBADF if nothing is open there.
    pub(super) fn get(&self, handle: u64) -> Result<Arc<File>, Errno> {
        self.by_handle.get(&handle).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn remove(&mut self, handle: u64) -> Option<Arc<File>> {
        self.by_handle.remove(&handle)
    }

    pub(super) fn clear(&mut self) {
        self.by_handle.clear();
    }
}

/// A folder that was read up to a position.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) node: u64,
    /// Where the next entry is: what the guest will ask for.
    pub(super) position: u64,
    /// None if nothing comes behind the position.
    pub(super) folder: Option<OwnedFd>,
}

/// The latest of them.
#[derive(Debug, Default)]
pub(super) struct Readings(Vec<Reading>);

impl Readings {
    /// Takes out who has read this folder up to this position.
    pub(super) fn take(&mut self, node: u64, position: u64) -> Option<Reading> {
        let is_it = |reading: &Reading| (reading.node, reading.position) == (node, position);
        let index = self.0.iter().rposition(is_it)?;
        Some(self.0.remove(index))
    }

    /// Keeps one, and gives back who has to go for it.
    pub(super) fn keep(&mut self, reading: Reading) -> Option<Reading> {
        let oldest = (self.0.len() >= FOLDERS_MAX).then(|| self.0.remove(0));
        self.0.push(reading);
        oldest
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        File::open("/dev/null").expect("it is there").into()
    }

    #[test]
    fn handles_are_not_given_again() {
        let mut files = Files::default();
        let first = files.add(null()).expect("room");
        assert!(files.get(first).is_ok());
        assert!(files.remove(first).is_some());
        assert_eq!(files.get(first).map(|_| ()), Err(Errno::BADF));
        assert_ne!(files.add(null()), Ok(first));
        assert!(files.get(u64::MAX).is_err());
    }

    #[test]
    fn the_oldest_reading_goes() {
        let mut readings = Readings::default();
        let reading = |node| Reading { node, position: 5, folder: None };
        for node in 0..FOLDERS_MAX as u64 {
            assert!(readings.keep(reading(node)).is_none());
        }
        assert_eq!(readings.keep(reading(1000)).map(|gone| gone.node), Some(0));
        assert!(readings.take(1, 6).is_none());
        assert!(readings.take(1, 5).is_some());
        assert!(readings.take(1, 5).is_none());
    }
}
