//! What is known of a directory: all its names, with what they stand for and the attributes of
//! that, as the server said at one time.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::{Errno, Result};
use formats::fuse::Attributes;

use super::client::{Named, Node};
use crate::base::time::now_ns;
use crate::fs::is_name;
use crate::vfs::FileType;

/// Where a mode has the kind of object that DT_* of readdir(3) names.
const MODE_SHIFT: u32 = 12;
/// Most names that are kept of one directory.
const NAMES_MAX: usize = 131_072;
/// No place of a directory.
const NONE_WALKED: usize = usize::MAX;

/// An object that a name stands for.
pub(super) struct Found {
    pub(super) node: Arc<Node>,
    pub(super) attributes: Attributes,
    /// Until when they hold, by `now_ns`.
    pub(super) valid_until_ns: u64,
}

/// A name of a directory.
pub(super) struct Known {
    pub(super) name: Arc<[u8]>,
    pub(super) kind: FileType,
    pub(super) number: u64,
    /// Position after it.
    pub(super) next: u64,
    /// None: the server has to be asked.
    pub(super) found: Option<Found>,
}

/// All names of a directory.
pub(super) struct Listing {
    /// In the server's order.
    pub(super) entries: Vec<Known>,
    /// Places in `entries`, by name.
    by_name: Box<[u32]>,
    /// Place of the entry that was given out last.
    last: AtomicUsize,
    /// Places in `entries` of directories.
    directories: Box<[u32]>,
    /// Place in `directories` of the one whose names were read last.
    walked: AtomicUsize,
}

/// A listing that is being read.
pub(super) struct Builder {
    entries: Vec<Known>,
    begun_ns: u64,
}

impl Builder {
    /// Of no names yet.
    pub(super) fn new() -> Builder {
        Self::since(now_ns())
    }

    /// Of no names yet, that were asked for at a time.
    pub(super) fn since(begun_ns: u64) -> Builder {
        Builder { entries: Vec::new(), begun_ns }
    }

    /// Names so far.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes a name. False: it is one too many. EIO for what cannot be a name.
    pub(super) fn add(&mut self, named: Named<'_>) -> Result<bool> {
        let known = self.known(named)?;
        if self.entries.len() == NAMES_MAX {
            return Ok(false);
        }
        self.entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.entries.push(known);
        Ok(true)
    }

    fn known(&self, named: Named<'_>) -> Result<Known> {
        if !is_name(named.name) {
            return Err(Errno::EIO);
        }
        let found = named.found.map(|(node, entry)| Found {
            node: Arc::new(node),
            attributes: entry.attributes,
            valid_until_ns: self.begun_ns.saturating_add(entry.attributes_valid_ns),
        });
        let (mode, number) = match &found {
            Some(found) => (found.attributes.mode, found.attributes.ino),
            None => (named.kind << MODE_SHIFT, named.number),
        };
        let kind = FileType::from_mode(mode).ok_or(Errno::EIO)?;
        Ok(Known { name: named.name.into(), kind, number, next: named.next, found })
    }

    /// All names have been taken.
    pub(super) fn finish(self) -> Listing {
        let entries = self.entries;
        let mut by_name: Vec<u32> = (0..entries.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| entries[a as usize].name.cmp(&entries[b as usize].name));
        let is_directory = |&at: &u32| entries[at as usize].kind == FileType::Directory;
        let directories = (0..entries.len() as u32).filter(is_directory).collect();
        Listing {
            by_name: by_name.into(),
            last: AtomicUsize::new(0),
            directories,
            walked: AtomicUsize::new(NONE_WALKED),
            entries,
        }
    }

    /// The names so far, for who wants no listing.
    pub(super) fn into_entries(self) -> Vec<Known> {
        self.entries
    }
}

impl Listing {
    /// The entry of a name.
    pub(super) fn find(&self, name: &[u8]) -> Option<&Known> {
        let entry = |&at: &u32| &self.entries[at as usize];
        let at = self.by_name.binary_search_by(|at| (*entry(at).name).cmp(name)).ok()?;
        Some(entry(&self.by_name[at]))
    }

    /// The entries from position `from` on; None if there is no such position.
    pub(super) fn after_position(&self, from: u64) -> Option<&[Known]> {
        if from == 0 {
            return Some(&self.entries);
        }
        let is_here = |at: usize| self.entries.get(at).is_some_and(|entry| entry.next == from);
        let last = self.last.load(Ordering::Relaxed);
        let at = match is_here(last) {
            true => last,
            false => self.entries.iter().position(|entry| entry.next == from)?,
        };
        Some(&self.entries[at + 1..])
    }

    /// Notes that the entries up to this many before the end were given out: who goes on there
    /// finds the place at once.
    pub(super) fn note_left(&self, left: usize) {
        self.last.store((self.entries.len() - left).saturating_sub(1), Ordering::Relaxed);
    }

    /// Notes that the names of a directory are read, the one at this place among the directories.
    /// Whether it follows the one that was read last.
    pub(super) fn walks_to(&self, place: usize) -> bool {
        self.walked.swap(place, Ordering::Relaxed).checked_add(1) == Some(place)
    }

    /// The place among the directories of the one that the server calls `id`.
    pub(super) fn directory_place(&self, id: u64) -> Option<usize> {
        let is_it = |place: usize| self.directory(place).is_some_and(|it| it.node.id() == id);
        let next = self.walked.load(Ordering::Relaxed).wrapping_add(1);
        match is_it(next) {
            true => Some(next),
            false => (0..self.directories.len()).find(|&place| is_it(place)),
        }
    }

    /// The directories from a place among them on.
    pub(super) fn directories_from(&self, place: usize) -> impl Iterator<Item = &Found> {
        (place..self.directories.len()).filter_map(|place| self.directory(place))
    }

    fn directory(&self, place: usize) -> Option<&Found> {
        let &at = self.directories.get(place)?;
        self.entries[at as usize].found.as_ref()
    }
}
