//! File handles: objects of a file system that are found again without a name
//! (name_to_handle_at(2), open_by_handle_at(2)).
//!
//! A handle is the object's number, which is never given twice. Whoever was given one is remembered
//! here, by references that keep nothing alive: an object that has gone has a stale handle.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use abi::{Errno, Result};

use super::Inode;
use super::dentry::Dentry;
use super::mount::Mount;
use super::path::Location;
use crate::base::sync::Mutex;

/// Most handles of one file system whose objects are there.
const HANDLES_MAX: usize = 65_536;

/// The handles that a file system has given.
#[derive(Default)]
pub struct Handles(Mutex<Table>);

#[derive(Default)]
struct Table {
    known: BTreeMap<u64, Known>,
    /// How many there were when those that had gone were last left out.
    swept: usize,
}

struct Known {
    inode: Weak<dyn Inode>,
    /// The name that the handle was asked for by.
    dentry: Weak<Dentry>,
}

impl Handles {
    /// Remembers the object, and the name it has now, under this number. ENOMEM.
    pub fn keep(&self, number: u64, location: &Location) -> Result<()> {
        let (inode, dentry) = (location.inode(), &location.dentry);
        let known = Known { inode: Arc::downgrade(inode), dentry: Arc::downgrade(dentry) };
        let mut table = self.0.lock();
        if table.known.len() > table.swept.saturating_mul(2).max(64) {
            table.known.retain(|_, known| known.inode.strong_count() > 0);
            table.swept = table.known.len();
        }
        if table.known.len() >= HANDLES_MAX && !table.known.contains_key(&number) {
            return Err(Errno::ENOMEM);
        }
        table.known.insert(number, known);
        Ok(())
    }

    /// Where the object with this number is, in a mount of its file system; ESTALE.
    pub fn find(&self, number: u64, mount: &Arc<Mount>) -> Result<Location> {
        let table = self.0.lock();
        let known = table.known.get(&number).ok_or(Errno::ESTALE)?;
        let inode = known.inode.upgrade().ok_or(Errno::ESTALE)?;
        let named = known.dentry.upgrade().filter(|dentry| !dentry.is_unlinked());
        // Without the name it had the object is found all the same.
        let dentry = named.unwrap_or_else(|| Dentry::detached(inode, b"/"));
        Ok(Location::new(mount.clone(), dentry))
    }
}
