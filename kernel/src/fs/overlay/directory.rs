//! Directories: the names that were added, removed or moved here, over those of the lower
//! directory.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::Node;
use crate::vfs::{DirEntry, FileType, Inode, NewObject};

/// Positions of the names made here start here; the lower directory's positions are below. Hosts
/// use up to 63 bits (hashes of names), so this is as far up as an `off_t` goes.
const OWN_POSITIONS: u64 = i64::MAX as u64 - (1 << 32);
/// Batches of lower names in a row of which none is shown. A server whose positions go in circles
/// would never end; half a million names that were removed are served.
const HIDDEN_BATCHES_MAX: usize = 4096;

/// What a name stands for.
pub(super) enum OverlayEntry {
    /// The lower object of this name, unchanged: known as long as somebody uses it.
    Clean(Weak<Node>),
    /// The lower object of this name, changed, or a directory on the way to a change.
    Same(Arc<Node>),
    /// An object that was made or moved here. `covers`: the lower directory has the name too.
    New { node: Arc<Node>, covers: bool, position: u64 },
    /// The lower object of this name is gone.
    Whiteout,
}

impl OverlayEntry {
    /// Whether the lower directory has this name.
    fn covers_lower(&self) -> bool {
        !matches!(self, OverlayEntry::New { covers: false, .. })
    }
}

/// The names of one directory.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) by_name: BTreeMap<Arc<[u8]>, OverlayEntry>,
    /// Names of `OverlayEntry::New`, by position.
    by_position: BTreeMap<u64, Arc<[u8]>>,
    next_position: u64,
    /// Was removed: nothing may be made in it any more.
    dead: bool,
    /// The lower directory's names do not count.
    pub(super) opaque: bool,
}

impl Entries {
    /// Puts an object made or moved here under a name. Returns what was there, for a later drop.
    fn put_new(&mut self, name: &Arc<[u8]>, node: Arc<Node>, covers: bool) -> Option<OverlayEntry> {
        let old = self.remove(name);
        let position = self.next_position;
        self.next_position += 1;
        self.by_position.insert(position, name.clone());
        self.by_name.insert(name.clone(), OverlayEntry::New { node, covers, position });
        old
    }

    fn remove(&mut self, name: &[u8]) -> Option<OverlayEntry> {
        let old = self.by_name.remove(name);
        if let Some(OverlayEntry::New { position, .. }) = &old {
            self.by_position.remove(position);
        }
        old
    }

    /// Takes a name away, so that a lower object of this name stays hidden. `in_lower`: there is
    /// one, as far as the entry does not tell.
    fn take(&mut self, name: &Arc<[u8]>, in_lower: bool) -> Option<OverlayEntry> {
        let covers =
            self.by_name.get(name).map_or(in_lower, OverlayEntry::covers_lower) && !self.opaque;
        let old = self.remove(name);
        if covers {
            self.by_name.insert(name.clone(), OverlayEntry::Whiteout);
        }
        old
    }
}

impl Node {
    pub(super) fn lower_directory(&self) -> Option<&Arc<dyn Inode>> {
        if self.entries.lock().opaque { None } else { self.lower.as_ref() }
    }

    fn check_directory(&self) -> Result<()> {
        if self.file_type() == FileType::Directory { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    /// The object under a name; ENOENT.
    pub(super) fn child(&self, name: &[u8]) -> Result<Arc<Node>> {
        self.check_directory()?;
        match self.entries.lock().by_name.get(name) {
            Some(OverlayEntry::Same(node) | OverlayEntry::New { node, .. }) => {
                return Ok(node.clone());
            }
            Some(OverlayEntry::Whiteout) => return Err(Errno::ENOENT),
            Some(OverlayEntry::Clean(known)) => {
                if let Some(node) = known.upgrade()
                    && !self.fs.names_expire
                {
                    return Ok(node);
                }
            }
            None => {}
        }
        let lower = self.lower_directory().ok_or(Errno::ENOENT)?.lookup(name)?;
        if let Some(node) = self.clean_child(name, &lower) {
            return Ok(node);
        }
        let metadata = lower.metadata()?;
        let name: Arc<[u8]> = name.into();
        let node = self.fs.node_for(lower, &metadata, (self.me(), name.clone()))?;
        if !node.is_shared_link() {
            let mut entries = self.entries.lock();
            match entries.by_name.get(&name) {
                None => {}
                // Gone, or another object than the name stands for now.
                Some(OverlayEntry::Clean(_)) => {}
                Some(_) => return Ok(node),
            }
            entries.by_name.insert(name, OverlayEntry::Clean(Arc::downgrade(&node)));
        }
        Ok(node)
    }

    /// The unchanged node of a name, if it shows this lower object.
    fn clean_child(&self, name: &[u8], lower: &Arc<dyn Inode>) -> Option<Arc<Node>> {
        let known = match self.entries.lock().by_name.get(name) {
            Some(OverlayEntry::Clean(known)) => known.upgrade()?,
            _ => return None,
        };
        known.lower.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, lower)).then_some(known)
    }

    /// Makes every directory up to the top hold its child, this one first.
    pub(super) fn pin(&self) {
        if self.pinned() {
            return;
        }
        let mut dropped = Vec::new();
        let _tree = self.fs.tree.lock();
        let mut at = self.me();
        while !at.set_pinned() {
            if at.is_shared_link() {
                let mut linked = self.fs.linked.lock();
                if let Some(link) = linked.get_mut(&at.number()) {
                    link.pinned = Some(at.clone());
                }
                break;
            }
            let Some((parent, name)) = at.place.lock().clone() else { break };
            {
                let mut entries = parent.entries.lock();
                if matches!(entries.by_name.get(&name), None | Some(OverlayEntry::Clean(_))) {
                    dropped.push(entries.by_name.insert(name, OverlayEntry::Same(at.clone())));
                }
            }
            let done = core::mem::replace(&mut at, parent);
            // The parent holds it now; and if not, the caller does.
            drop(done);
        }
    }

    /// Hides the lower object of this name.
    pub(super) fn cover(&self, name: &[u8]) {
        self.pin();
        let old = self.entries.lock().take(&name.into(), true);
        drop(old);
    }

    /// Makes the directory forget the lower one's names.
    pub(super) fn make_opaque(&self) -> Result<()> {
        self.change(|_| ())?;
        let mut entries = self.entries.lock();
        entries.opaque = true;
        let old = core::mem::take(&mut entries.by_name);
        entries.by_position.clear();
        drop(entries);
        drop(old);
        Ok(())
    }

    /// Changes the number of links by `links`, and the times of change; for the parent of a name
    /// that changed.
    fn names_changed(&self, links: i64) -> Result<()> {
        let now_ns = crate::base::time::realtime_ns() as i64;
        self.change(|m| {
            m.links = m.links.saturating_add_signed(links);
            m.mtime_ns = now_ns;
            m.ctime_ns = now_ns;
        })
    }

    /// As [`Node::names_changed`], for the object whose name changed.
    fn links_changed(&self, links: i64) -> Result<()> {
        let now_ns = crate::base::time::realtime_ns() as i64;
        let left = self.change(|m| {
            m.links = m.links.saturating_add_signed(links);
            m.ctime_ns = now_ns;
            m.links
        })?;
        if left == 0 && self.is_shared_link() {
            let old = self.fs.linked.lock().remove(&self.number());
            drop(old);
        }
        Ok(())
    }

    pub(super) fn create_entry(
        &self,
        name: &[u8],
        new: &NewObject<'_>,
        admit: &dyn Fn(&dyn Inode) -> Result<()>,
    ) -> Result<Arc<Node>> {
        self.check_directory()?;
        self.fs.check_room()?;
        let is_directory = new.file_type == FileType::Directory;
        let name: Arc<[u8]> = name.into();
        let links = if is_directory { 2 } else { 1 };
        let node = Node::make(&self.fs, new, links, Some((self.me(), name.clone())));
        admit(node.as_ref())?;
        // First, so that nothing can fail once the name is there.
        self.change(|_| ())?;
        self.enter(&name, &node)?;
        self.names_changed(i64::from(is_directory))?;
        Ok(node)
    }

    /// Puts an object that is made here under a name that is free.
    fn enter(&self, name: &Arc<[u8]>, node: &Arc<Node>) -> Result<()> {
        let old = {
            let _tree = self.fs.tree.lock();
            let mut entries = self.entries.lock();
            if entries.dead {
                return Err(Errno::ENOENT);
            }
            let covers = match entries.by_name.get(name) {
                None => false,
                Some(OverlayEntry::Whiteout) => true,
                Some(OverlayEntry::Clean(known)) if known.strong_count() == 0 => true,
                Some(_) => return Err(Errno::EEXIST),
            };
            entries.put_new(name, node.clone(), covers)
        };
        drop(old);
        Ok(())
    }

    pub(super) fn link_entry(&self, name: &[u8], node: &Arc<Node>) -> Result<()> {
        self.check_directory()?;
        if node.file_type() == FileType::Directory {
            return Err(Errno::EPERM);
        }
        self.fs.check_room()?;
        // First, so that both are pinned where they are, and nothing can fail later.
        self.change(|_| ())?;
        node.change(|_| ())?;
        self.enter(&name.into(), node)?;
        node.links_changed(1)?;
        self.names_changed(0)
    }

    pub(super) fn remove_entry(&self, name: &[u8], directory: bool) -> Result<()> {
        let node = self.child(name)?;
        match (node.file_type() == FileType::Directory, directory) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) => node.check_empty()?,
            (false, false) => {}
        }
        self.names_changed(-i64::from(directory))?;
        node.links_changed(if directory { -2 } else { -1 })?;
        let name: Arc<[u8]> = name.into();
        let (old, place) = {
            let _tree = self.fs.tree.lock();
            node.entries.lock().dead |= directory;
            let old = self.entries.lock().take(&name, true);
            (old, node.leave(self, &name))
        };
        drop((old, place));
        Ok(())
    }

    /// Forgets its place, if this is it; the caller drops what is returned, without locks.
    fn leave(&self, parent: &Node, name: &[u8]) -> Option<(Arc<Node>, Arc<[u8]>)> {
        let mut place = self.place.lock();
        let here = place.as_ref().is_some_and(|(at, as_name)| {
            core::ptr::eq(&raw const **at, parent) && **as_name == *name
        });
        if here { place.take() } else { None }
    }

    fn check_empty(&self) -> Result<()> {
        if self.list(0, 1)?.is_empty() { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }

    pub(super) fn rename_entry(
        &self,
        name: &[u8],
        to: &Node,
        new: &[u8],
        flags: u32,
    ) -> Result<()> {
        to.check_directory()?;
        if flags & !(raw::RENAME_NOREPLACE | raw::RENAME_EXCHANGE) != 0 {
            return Err(Errno::EINVAL);
        }
        let source = self.child(name)?;
        let target = match to.child(new) {
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        match target {
            Some(target) if flags & raw::RENAME_EXCHANGE != 0 => {
                self.exchange(&source, name, to, &target, new)
            }
            None if flags & raw::RENAME_EXCHANGE != 0 => Err(Errno::ENOENT),
            Some(_) if flags & raw::RENAME_NOREPLACE != 0 => Err(Errno::EEXIST),
            Some(target) if Arc::ptr_eq(&source, &target) => Ok(()),
            target => self.replace(&source, name, to, target, new),
        }
    }

    fn replace(
        &self,
        source: &Arc<Node>,
        name: &[u8],
        to: &Node,
        target: Option<Arc<Node>>,
        new: &[u8],
    ) -> Result<()> {
        let is_directory = source.file_type() == FileType::Directory;
        if let Some(target) = &target {
            match (is_directory, target.file_type() == FileType::Directory) {
                (false, true) => return Err(Errno::EISDIR),
                (true, false) => return Err(Errno::ENOTDIR),
                (true, true) => target.check_empty()?,
                (false, false) => {}
            }
        }
        let directories = i64::from(is_directory);
        self.names_changed(-directories)?;
        to.names_changed(if target.is_some() { 0 } else { directories })?;
        source.links_changed(0)?;
        if let Some(target) = &target {
            target.links_changed(if is_directory { -2 } else { -1 })?;
        }
        let (name, new): (Arc<[u8]>, Arc<[u8]>) = (name.into(), new.into());
        let dropped = {
            let _tree = self.fs.tree.lock();
            if to.entries.lock().dead {
                return Err(Errno::ENOENT);
            }
            let taken = self.entries.lock().take(&name, true);
            let replaced = target.as_ref().map(|target| {
                target.entries.lock().dead |= is_directory;
                target.leave(to, &new)
            });
            let old = {
                let mut entries = to.entries.lock();
                let covers =
                    entries.by_name.get(&new).map_or(target.is_some(), OverlayEntry::covers_lower);
                entries.put_new(&new, source.clone(), covers)
            };
            let place = source.place.lock().replace((to.me(), new));
            (taken, replaced, old, place)
        };
        drop(dropped);
        Ok(())
    }

    fn exchange(
        &self,
        source: &Arc<Node>,
        name: &[u8],
        to: &Node,
        target: &Arc<Node>,
        new: &[u8],
    ) -> Result<()> {
        let is_directory = |node: &Node| i64::from(node.file_type() == FileType::Directory);
        let moved = is_directory(source) - is_directory(target);
        self.names_changed(-moved)?;
        to.names_changed(moved)?;
        source.links_changed(0)?;
        target.links_changed(0)?;
        let (name, new): (Arc<[u8]>, Arc<[u8]>) = (name.into(), new.into());
        let put = |directory: &Node, name: &Arc<[u8]>, node: &Arc<Node>| {
            let old = {
                let mut entries = directory.entries.lock();
                let covers = entries.by_name.get(name).is_none_or(OverlayEntry::covers_lower);
                entries.put_new(name, node.clone(), covers)
            };
            let place = node.place.lock().replace((directory.me(), name.clone()));
            (old, place)
        };
        let dropped = {
            let _tree = self.fs.tree.lock();
            (put(self, &name, target), put(to, &new, source))
        };
        drop(dropped);
        Ok(())
    }

    /// Up to `max` names from position `from` on: first the lower directory's that still count, in
    /// its order, then those made here, in theirs.
    pub(super) fn list(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.check_directory()?;
        let mut found = Vec::new();
        let mut from = from;
        if let Some(lower) = self.lower_directory().filter(|_| from < OWN_POSITIONS) {
            let mut batches = 0;
            while found.is_empty() && from < OWN_POSITIONS {
                batches += 1;
                if batches > HIDDEN_BATCHES_MAX {
                    return Err(Errno::EIO);
                }
                found = lower.read_dir(from, max)?;
                from = found.last().map_or(OWN_POSITIONS, |last| last.next.min(OWN_POSITIONS));
                self.keep_shown(&mut found);
            }
            // The last lower position may be any number; the own ones follow it.
            for entry in &mut found {
                entry.next = entry.next.min(OWN_POSITIONS);
            }
            if from < OWN_POSITIONS || found.len() >= max {
                return Ok(found);
            }
        }
        let first = from.saturating_sub(OWN_POSITIONS);
        let room = max - found.len();
        let entries = self.entries.lock();
        for (&position, name) in entries.by_position.range(first..).take(room) {
            if let Some(OverlayEntry::New { node, .. }) = entries.by_name.get(name) {
                found.push(DirEntry {
                    name: name.clone(),
                    inode: node.number(),
                    file_type: node.file_type(),
                    next: OWN_POSITIONS + position + 1,
                });
            }
        }
        Ok(found)
    }

    /// Of names of the lower directory, those that still count.
    fn keep_shown(&self, names: &mut Vec<DirEntry>) {
        {
            let hidden = self.fs.hidden.lock();
            names.retain(|entry| !hidden.contains(&entry.inode));
        }
        let entries = self.entries.lock();
        if entries.by_name.is_empty() {
            return;
        }
        names.retain(|entry| {
            let covering = entries.by_name.get(&entry.name);
            matches!(covering, None | Some(OverlayEntry::Clean(_) | OverlayEntry::Same(_)))
        });
    }
}
