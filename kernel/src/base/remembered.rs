//! Things by number that are remembered and not kept: a number whose thing has gone is nobody's.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use abi::{Errno, Result};

use super::sync::Mutex;

/// Most numbers of one table whose things are there.
const MOST: usize = 65_536;

/// A table of things, and of what was seen beside each, which may go before it.
pub struct Remembered<T: ?Sized, B>(Mutex<Table<T, B>>);

struct Table<T: ?Sized, B> {
    known: BTreeMap<u64, (Weak<T>, Weak<B>)>,
    /// How many there were when those that had gone were last left out.
    swept: usize,
}

impl<T: ?Sized, B> Default for Remembered<T, B> {
    fn default() -> Self {
        Remembered(Mutex::new(Table { known: BTreeMap::new(), swept: 0 }))
    }
}

impl<T: ?Sized, B> Remembered<T, B> {
    /// Remembers both under this number. ENOMEM.
    pub fn remember(&self, number: u64, thing: &Arc<T>, beside: &Arc<B>) -> Result<()> {
        let mut table = self.0.lock();
        if table.known.len() > table.swept.saturating_mul(2).max(64) {
            table.known.retain(|_, (thing, _)| thing.strong_count() > 0);
            table.swept = table.known.len();
        }
        if table.known.len() >= MOST && !table.known.contains_key(&number) {
            return Err(Errno::ENOMEM);
        }
        table.known.insert(number, (Arc::downgrade(thing), Arc::downgrade(beside)));
        Ok(())
    }

    /// What has this number, and what was beside it, as far as it is there.
    pub fn find(&self, number: u64) -> Option<(Arc<T>, Option<Arc<B>>)> {
        let table = self.0.lock();
        let (thing, beside) = table.known.get(&number)?;
        Some((thing.upgrade()?, beside.upgrade()))
    }
}
