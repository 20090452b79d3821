//! What the guest has looked up: numbers for objects of the host, and where each was found.
//!
//! Why it is hard: the guest keeps numbers for as long as it likes, while on the host names move,
//! vanish and come back as something else. A number means one object for good: the device, the
//! number there and the time of birth. An object is found again by the names that led to it, and
//! whoever asks compares what is there now with what was meant ([`Place`]). A number whose lookups
//! have all been forgotten is never given again.
//!
//! Invariants: each node but the root has a parent that is in the table, and counts it as a child;
//! parents never form a circle, whatever order the host renames in; what is neither looked up nor a
//! parent is not in the table.
//!
//! Not chosen: a descriptor for each node, which needs as many descriptors as the tree has files.
//! Neighbours: `host.rs` finds what a [`Place`] names, `serve.rs` asks.

use std::collections::HashMap;

use rustix::io::Errno;

/// The root's number (FUSE_ROOT_ID of Linux's `fuse.h`).
pub(super) const ROOT: u64 = 1;
/// Most nodes at a time; each takes about 200 bytes.
pub(super) const NODES_MAX: usize = 1 << 20;
/// Most names from the root to an object.
pub(super) const DEPTH_MAX: usize = 4096;

/// An object of the host, the same for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Object {
    pub(super) device: (u32, u32),
    pub(super) ino: u64,
    /// Nanoseconds of its birth, where the file system knows: numbers of files are used again.
    pub(super) born_ns: i128,
}

/// Where an object was found: names from the root down, joined by `/`; empty for the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) object: Object,
    pub(super) path: Vec<u8>,
}

#[derive(Debug)]
struct Node {
    object: Object,
    parent: u64,
    name: Box<[u8]>,
    lookups: u64,
    children: u32,
    /// What the file's content was known by when it was opened last.
    opened: Option<Stamp>,
}

/// What tells one content of a file from another: size, and times of the last changes in
/// nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size: u64,
    pub(super) modified_ns: i128,
    pub(super) changed_ns: i128,
}

/// The table.
#[derive(Debug)]
pub(super) struct Nodes {
    by_number: HashMap<u64, Node>,
    by_object: HashMap<Object, u64>,
    next: u64,
    max: usize,
}

impl Nodes {
    pub(super) fn new(root: Object, max: usize) -> Self {
        let mut nodes =
            Self { by_number: HashMap::new(), by_object: HashMap::new(), next: ROOT, max };
        nodes.insert(Node {
            object: root,
            parent: ROOT,
            name: Box::default(),
            lookups: 1,
            children: 0,
            opened: None,
        });
        nodes
    }

    /// Counts one lookup of `object`, which was found as `name` in `parent`.
    ///
    /// # Errors
    /// ENFILE if the table is full; ESTALE if `parent` is not in it, or lies below `object` by what
    /// is known: then the host has moved things meanwhile.
    pub(super) fn look_up(
        &mut self,
        parent: u64,
        name: &[u8],
        object: Object,
    ) -> Result<u64, Errno> {
        if !self.by_number.contains_key(&parent) {
            return Err(Errno::STALE);
        }
        if let Some(&number) = self.by_object.get(&object) {
            self.place_at(number, parent, name)?;
            let node = self.by_number.get_mut(&number).ok_or(Errno::STALE)?;
            node.lookups = node.lookups.saturating_add(1);
            return Ok(number);
        }
        if self.by_number.len() >= self.max {
            return Err(Errno::NFILE);
        }
        self.adopt(parent);
        let node =
            Node { object, parent, name: name.into(), lookups: 1, children: 0, opened: None };
        Ok(self.insert(node))
    }

    /// Takes back `count` lookups.
    pub(super) fn forget(&mut self, number: u64, count: u64) {
        if number == ROOT {
            return;
        }
        if let Some(node) = self.by_number.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(count);
            self.drop_unused(number);
        }
    }

    /// Takes back everything: the guest has ended the session.
    pub(super) fn forget_all(&mut self) {
        self.by_number.retain(|number, _| *number == ROOT);
        self.by_object.retain(|_, number| *number == ROOT);
        if let Some(root) = self.by_number.get_mut(&ROOT) {
            root.children = 0;
        }
    }

    /// # Errors
    /// ESTALE if the number means nothing; ENAMETOOLONG if it lies deeper than [`DEPTH_MAX`].
    pub(super) fn place(&self, number: u64) -> Result<Place, Errno> {
        let node = self.by_number.get(&number).ok_or(Errno::STALE)?;
        let mut names = Vec::new();
        let (mut at, mut next) = (number, node);
        while at != ROOT {
            if names.len() == DEPTH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            names.push(&*next.name);
            at = next.parent;
            next = self.by_number.get(&at).ok_or(Errno::STALE)?;
        }
        names.reverse();
        Ok(Place { object: node.object, path: names.join(&b'/') })
    }

    /// Keeps what a file's content is known by. True if it was the same the last time.
    pub(super) fn is_unchanged(&mut self, number: u64, stamp: Stamp) -> bool {
        let node = self.by_number.get_mut(&number);
        node.is_some_and(|node| node.opened.replace(stamp) == Some(stamp))
    }

    /// The number of a node's parent; the root's is the root.
    pub(super) fn parent(&self, number: u64) -> Option<u64> {
        self.by_number.get(&number).map(|node| node.parent)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    fn insert(&mut self, node: Node) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_object.insert(node.object, number);
        self.by_number.insert(number, node);
        number
    }

    fn adopt(&mut self, parent: u64) {
        if let Some(parent) = self.by_number.get_mut(&parent) {
            parent.children += 1;
        }
    }

    /// An object that is known was found under another name: it has moved, or has several.
    fn place_at(&mut self, number: u64, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let node = self.by_number.get(&number).ok_or(Errno::STALE)?;
        let (old, is_parent) = (node.parent, node.children > 0);
        if number == ROOT || (old == parent && *node.name == *name) {
            return Ok(());
        }
        if is_parent && self.is_below(parent, number) || parent == number {
            return Err(Errno::STALE);
        }
        self.adopt(parent);
        if let Some(node) = self.by_number.get_mut(&number) {
            node.parent = parent;
            node.name = name.into();
        }
        self.release(old);
        Ok(())
    }

    /// True if `ancestor` is on the way from `number` to the root.
    fn is_below(&self, number: u64, ancestor: u64) -> bool {
        let mut at = number;
        while at != ancestor {
            match self.parent(at) {
                Some(parent) if at != ROOT => at = parent,
                _ => return false,
            }
        }
        true
    }

    /// A child of `number` is gone.
    fn release(&mut self, number: u64) {
        if let Some(node) = self.by_number.get_mut(&number) {
            node.children = node.children.saturating_sub(1);
            self.drop_unused(number);
        }
    }

    /// Removes a node that nobody needs, and its parents that were only there for it.
    fn drop_unused(&mut self, number: u64) {
        let mut at = number;
        while let Some(node) = self.by_number.get(&at) {
            if at == ROOT || node.lookups > 0 || node.children > 0 {
                return;
            }
            let (object, parent) = (node.object, node.parent);
            self.by_number.remove(&at);
            self.by_object.remove(&object);
            if let Some(parent) = self.by_number.get_mut(&parent) {
                parent.children = parent.children.saturating_sub(1);
            }
            at = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(ino: u64) -> Object {
        Object { device: (8, 1), ino, born_ns: 0 }
    }

    fn nodes() -> Nodes {
        Nodes::new(object(2), 8)
    }

    #[test]
    fn a_place_is_the_names_that_led_there() {
        let mut nodes = nodes();
        let a = nodes.look_up(ROOT, b"a", object(10)).expect("room");
        let b = nodes.look_up(a, b"b", object(11)).expect("room");
        assert_eq!(nodes.place(b).expect("there").path, b"a/b");
        assert_eq!(nodes.place(ROOT).expect("there").path, b"");
        assert_eq!(nodes.place(99), Err(Errno::STALE));
    }

    #[test]
    fn a_number_lives_until_all_lookups_are_forgotten_and_is_not_given_again() {
        let mut nodes = nodes();
        let a = nodes.look_up(ROOT, b"a", object(10)).expect("room");
        assert_eq!(nodes.look_up(ROOT, b"a", object(10)), Ok(a));
        nodes.forget(a, 1);
        assert!(nodes.place(a).is_ok());
        nodes.forget(a, 1);
        assert_eq!(nodes.place(a), Err(Errno::STALE));
        assert_ne!(nodes.look_up(ROOT, b"a", object(10)), Ok(a));
    }

    #[test]
    fn a_parent_stays_for_its_children_and_goes_with_the_last() {
        let mut nodes = nodes();
        let a = nodes.look_up(ROOT, b"a", object(10)).expect("room");
        let b = nodes.look_up(a, b"b", object(11)).expect("room");
        nodes.forget(a, u64::MAX);
        assert_eq!(nodes.place(b).expect("there").path, b"a/b");
        nodes.forget(b, 1);
        assert_eq!(nodes.len(), 1);
        nodes.forget(ROOT, 9);
        assert_eq!(nodes.len(), 1);
    }

    #[test]
    fn what_was_born_later_is_another_object() {
        let mut nodes = nodes();
        let old = nodes.look_up(ROOT, b"a", object(10)).expect("room");
        let reborn = Object { born_ns: 7, ..object(10) };
        assert_ne!(nodes.look_up(ROOT, b"a", reborn), Ok(old));
    }

    #[test]
    fn names_follow_renames_and_never_form_a_circle() {
        let mut nodes = nodes();
        let a = nodes.look_up(ROOT, b"a", object(10)).expect("room");
        let b = nodes.look_up(a, b"b", object(11)).expect("room");
        // The host moves b to the root and a into b; the guest hears of the second first.
        assert_eq!(nodes.look_up(b, b"a", object(10)), Err(Errno::STALE));
        assert_eq!(nodes.look_up(ROOT, b"b", object(11)), Ok(b));
        assert_eq!(nodes.look_up(b, b"a", object(10)), Ok(a));
        assert_eq!(nodes.place(a).expect("there").path, b"b/a");
        assert_eq!(nodes.look_up(a, b"self", object(10)), Err(Errno::STALE));
        // The root under another name (a mount of it below itself) keeps its place.
        assert_eq!(nodes.look_up(a, b"root", object(2)), Ok(ROOT));
        assert_eq!(nodes.place(ROOT).expect("there").path, b"");
    }

    #[test]
    fn a_full_table_refuses_and_recovers() {
        let mut nodes = nodes();
        let found: Vec<_> = (0..9).map(|n| nodes.look_up(ROOT, b"x", object(100 + n))).collect();
        assert_eq!(found.iter().filter(|found| found.is_ok()).count(), 7);
        assert_eq!(found[8], Err(Errno::NFILE));
        nodes.forget(found[0].expect("room"), 1);
        assert!(nodes.look_up(ROOT, b"y", object(200)).is_ok());
        nodes.forget_all();
        assert_eq!(nodes.len(), 1);
        assert!(nodes.look_up(ROOT, b"y", object(200)).is_ok());
    }

    #[test]
    fn the_same_content_is_told_from_another() {
        let mut nodes = nodes();
        let a = nodes.look_up(ROOT, b"a", object(10)).expect("room");
        let stamp = Stamp { size: 1, modified_ns: 2, changed_ns: 3 };
        assert!(!nodes.is_unchanged(a, stamp));
        assert!(nodes.is_unchanged(a, stamp));
        assert!(!nodes.is_unchanged(a, Stamp { changed_ns: 4, ..stamp }));
    }
}
