//! What an epoll set watches, by descriptor and file.
//!
//! A descriptor mostly stands for one file for as long as the set watches it, and descriptors are
//! small numbers: they are found in a few steps however many there are. One that was closed, while
//! its file lives on, and was given to another file, has two; those that come second are in a tree.

use alloc::collections::BTreeMap;

use crate::base::id_map::IdMap;
use crate::vfs::Fd;

/// See the module. A file is known by its [`crate::vfs::File::id`].
pub struct Watched<T> {
    first: IdMap<(u64, T)>,
    others: BTreeMap<(Fd, u64), T>,
}

impl<T> Default for Watched<T> {
    fn default() -> Self {
        Watched { first: IdMap::new(), others: BTreeMap::new() }
    }
}

impl<T> Watched<T> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.first.len() + self.others.len()
    }

    /// What stands for a file under a descriptor.
    pub fn get(&self, file: u64, fd: Fd) -> Option<&T> {
        match self.first.get(fd) {
            Some((id, value)) if *id == file => Some(value),
            _ => self.others.get(&(fd, file)),
        }
    }

    /// Enters what is not there yet.
    pub fn insert(&mut self, file: u64, fd: Fd, value: T) {
        if self.first.get(fd).is_none() {
            self.first.insert(fd, (file, value));
        } else {
            self.others.insert((fd, file), value);
        }
    }

    /// Takes out what stands for a file under a descriptor.
    pub fn remove(&mut self, file: u64, fd: Fd) -> Option<T> {
        match self.first.get(fd) {
            Some((id, _)) if *id == file => self.first.remove(fd).map(|(_, value)| value),
            _ => self.others.remove(&(fd, file)),
        }
    }

    /// All, with their descriptors.
    pub fn iter(&self) -> impl Iterator<Item = (Fd, &T)> {
        let first = self.first.iter_from(0).map(|(fd, (_, value))| (fd, value));
        first.chain(self.others.iter().map(|(&(fd, _), value)| (fd, value)))
    }

    /// Keeps those for which `keeps` holds.
    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        let mut from = 0;
        while let Some((fd, (_, value))) = self.first.first_from(from) {
            if !keeps(value) {
                self.first.remove(fd);
            }
            let Some(next) = fd.checked_add(1) else { break };
            from = next;
        }
        self.others.retain(|_, value| keeps(value));
    }
}
