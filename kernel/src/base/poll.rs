//! Readiness: how files tell poll, select and epoll that something can be done now, or wake them
//! when it can.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::Result;

use crate::base::lists::Place;
use crate::base::sync::{WaitQueue, Wake};

/// Poll masks (poll(2)); epoll(7) uses the same numbers.
#[expect(missing_docs, reason = "poll(2) describes each")]
pub mod events {
    pub const IN: u32 = 0x1;
    pub const PRI: u32 = 0x2;
    pub const OUT: u32 = 0x4;
    pub const ERR: u32 = 0x8;
    pub const HUP: u32 = 0x10;
    pub const NVAL: u32 = 0x20;
    pub const RDNORM: u32 = 0x40;
    pub const RDBAND: u32 = 0x80;
    pub const WRNORM: u32 = 0x100;
    pub const WRBAND: u32 = 0x200;
    pub const RDHUP: u32 = 0x2000;
    /// Readable, in both spellings.
    pub const READABLE: u32 = IN | RDNORM;
    /// Writable, in both spellings.
    pub const WRITABLE: u32 = OUT | WRNORM;
}

/// A queue, and the place there.
type Queued = (Arc<WaitQueue>, Place);

/// Collects the queues that one poll, select or epoll item waits on. A file's `poll` first
/// registers every queue that can change its answer, then computes the answer; so no change is
/// missed.
pub struct PollTable {
    waker: Option<Arc<dyn Wake>>,
    /// Most files have two at most, and need no allocation.
    few: [Option<Queued>; 2],
    more: Vec<Queued>,
    exclusive: bool,
    refusal: Result<()>,
}

impl PollTable {
    fn new(waker: Option<Arc<dyn Wake>>, exclusive: bool) -> Self {
        let (few, more) = ([None, None], Vec::new());
        PollTable { waker, few, more, exclusive, refusal: Ok(()) }
    }

    fn keep(&mut self, queued: Queued) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(queued),
            None => self.more.push(queued),
        }
    }

    /// Only asks, registers nowhere.
    #[must_use]
    pub fn ask() -> Self {
        Self::new(None, false)
    }

    /// Registers `waker` with every queue named, until dropped.
    #[must_use]
    pub fn register(waker: Arc<dyn Wake>, exclusive: bool) -> Self {
        Self::new(Some(waker), exclusive)
    }

    /// Names a queue that will be woken when the file's readiness changes.
    #[inline]
    pub fn wait_on(&mut self, queue: &Arc<WaitQueue>) {
        if let Some(waker) = &self.waker {
            self.register_with(queue, waker.clone());
        }
    }

    /// Out of line: most only ask.
    #[cold]
    fn register_with(&mut self, queue: &Arc<WaitQueue>, waker: Arc<dyn Wake>) {
        match queue.try_add(waker, self.exclusive) {
            Ok(place) => self.keep((queue.clone(), place)),
            Err(error) => self.refusal = Err(error),
        }
    }

    /// Whether no queue was named: nothing will tell of a change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.few[0].is_none()
    }

    /// ENOMEM if some queue had no room: a change could be missed.
    pub fn check(&self) -> Result<()> {
        self.refusal
    }
}

impl Drop for PollTable {
    fn drop(&mut self) {
        // Two loops and no chain of iterators: most tables end here, with one or two queues.
        for queued in &self.few {
            let Some((queue, place)) = queued else { return };
            queue.remove(*place, self.exclusive);
        }
        for (queue, place) in &self.more {
            queue.remove(*place, self.exclusive);
        }
    }
}
