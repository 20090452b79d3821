//! Names to objects: mounts, the cache of names, and path walking.

use alloc::sync::Arc;

use super::Inode;

/// A place in the tree of names: an object, and how it was reached.
#[derive(Clone)]
pub struct Location {
    /// The object.
    pub inode: Arc<dyn Inode>,
}
