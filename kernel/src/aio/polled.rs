//! Polls (IOCB_CMD_POLL): requests that are done when their file can do something.
//!
//! A file wakes a [`Poll`] from wherever it is, an interrupt perhaps, and under the lock of its
//! queue: the file cannot be asked there, nor left. So a poll that is woken is put on a list, and a
//! thread of the kernel, which each context with polls has one of, leaves the queue; where the file
//! did not say why it woke, the thread asks it first. What ends the thread's wait: a poll on the
//! list, or the context's end.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::context::{Completion, Context};
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Mutex, WaitQueue, Wake};
use crate::process::spawn_kernel;
use crate::vfs::File;

/// A poll under way.
struct Poll {
    me: Weak<Poll>,
    /// Its place among those that wait.
    place: u32,
    context: Weak<Context>,
    completion: Completion,
    file: Arc<File>,
    events: u32,
    is_listed: AtomicBool,
    /// What woke it, as far as its file said.
    happened: AtomicU32,
    /// It stays on its file's queues as long as this is there.
    registration: Mutex<Option<PollTable>>,
}

impl Wake for Poll {
    fn wake(&self, happened: u32) -> bool {
        if happened != 0 && happened & self.events == 0
            || self.is_listed.swap(true, Ordering::SeqCst)
        {
            return false;
        }
        self.happened.store(happened, Ordering::SeqCst);
        if let (Some(context), Some(me)) = (self.context.upgrade(), self.me.upgrade()) {
            // There is room: as much as there are polls.
            context.polls.state.lock().woken.push_back(me);
            context.polls.work.wake_all(0);
        }
        // It uses up nobody's exclusive wake-up.
        false
    }
}

#[derive(Default)]
struct PollState {
    /// At their places, so that one is found whatever there are.
    waiting: Vec<Option<Arc<Poll>>>,
    /// Places that nobody has.
    free: Vec<u32>,
    woken: VecDeque<Arc<Poll>>,
    has_thread: bool,
    ended: bool,
}

/// The polls of a context.
#[derive(Default)]
pub(super) struct Polls {
    state: SpinLock<PollState>,
    work: WaitQueue,
}

impl Polls {
    /// The context has ended: all are cancelled.
    pub(super) fn end(&self, context: &Context) {
        let mut state = self.state.lock();
        state.ended = true;
        let (waiting, woken) =
            (core::mem::take(&mut state.waiting), core::mem::take(&mut state.woken));
        drop(state);
        drop(woken);
        for poll in waiting.into_iter().flatten() {
            drop(poll.registration.lock().take());
            context.complete(&poll.completion, Ok(0));
        }
        self.work.wake_all(0);
    }

    /// A place for one more, with room for it wherever it is listed.
    fn reserve(&self) -> Result<u32> {
        let mut state = self.state.lock();
        let places = state.waiting.len() + 1;
        state.woken.try_reserve(places).map_err(|_| Errno::ENOMEM)?;
        if let Some(place) = state.free.pop() {
            return Ok(place);
        }
        state.waiting.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        state.free.try_reserve(places).map_err(|_| Errno::ENOMEM)?;
        state.waiting.push(None);
        Ok(places as u32 - 1)
    }

    /// Puts a poll at its place. EINVAL: the context has ended.
    fn enter(&self, poll: &Arc<Poll>) -> Result<()> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(Errno::EINVAL);
        }
        state.waiting[poll.place as usize] = Some(poll.clone());
        Ok(())
    }

    /// Whether `poll` still waited: who takes it completes it.
    fn take(&self, poll: &Poll) -> bool {
        let mut state = self.state.lock();
        let place = state.waiting.get_mut(poll.place as usize);
        let is_it = |other: &mut Arc<Poll>| core::ptr::eq(&**other, poll);
        let taken = place.and_then(|place| place.take_if(is_it));
        if taken.is_some() {
            state.free.push(poll.place);
        }
        taken.is_some()
    }

    fn find(&self, request: u64) -> Option<Arc<Poll>> {
        let state = self.state.lock();
        let mut polls = state.waiting.iter().flatten();
        polls.find(|poll| poll.completion.request == request).cloned()
    }
}

impl Poll {
    /// Leaves the file's queues, and says what has become of it; whether nobody else did.
    fn finish(&self, context: &Context, ready: u32) -> bool {
        if !context.polls.take(self) {
            return false;
        }
        drop(self.registration.lock().take());
        context.complete(&self.completion, Ok(ready.into()));
        true
    }
}

/// Makes a poll that was begun. EINVAL: the file can do none of it, and tells nobody when it can.
pub(super) fn submit(
    context: &Arc<Context>,
    completion: Completion,
    file: Arc<File>,
    wanted: u32,
) -> Result<()> {
    start_thread(context)?;
    let place = context.polls.reserve()?;
    let poll = Arc::new_cyclic(|me| Poll {
        me: me.clone(),
        place,
        context: Arc::downgrade(context),
        completion,
        file,
        events: wanted | events::ERR | events::HUP,
        is_listed: AtomicBool::new(false),
        happened: AtomicU32::new(0),
        registration: Mutex::new(None),
    });
    // Whoever finishes it waits until it is on the file's queues, and takes it from there.
    let mut registration = poll.registration.lock();
    context.polls.enter(&poll)?;
    let mut table = PollTable::register(poll.clone(), false);
    let ready = poll.file.ops().poll(&poll.file, &mut table) & poll.events;
    let refusal = match table.check() {
        Ok(()) if table.is_empty() => Err(Errno::EINVAL),
        checked => checked,
    };
    *registration = Some(table);
    drop(registration);
    if ready != 0 {
        poll.finish(context, ready);
        return Ok(());
    }
    if refusal.is_ok() || !context.polls.take(&poll) {
        return Ok(());
    }
    drop(poll.registration.lock().take());
    refusal
}

/// Cancels the poll of the program's request at `request`; whether there is one.
pub(super) fn cancel(context: &Context, request: u64) -> bool {
    context.polls.find(request).is_some_and(|poll| poll.finish(context, 0))
}

/// The first poll of a context starts the thread that asks its files.
fn start_thread(context: &Arc<Context>) -> Result<()> {
    if core::mem::replace(&mut context.polls.state.lock().has_thread, true) {
        return Ok(());
    }
    let own = context.clone();
    let started = spawn_kernel("aio", move || while look(&own) {});
    if started.is_err() {
        context.polls.state.lock().has_thread = false;
    }
    started.map(drop)
}

/// What is told of a poll for `wanted`: readable and writable have two names each.
fn with_aliases(wanted: u32) -> u32 {
    let both = |names: u32| if wanted & names == 0 { 0 } else { names };
    wanted | both(events::READABLE) | both(events::WRITABLE)
}

/// Asks the file of the next poll that was woken; false once the context has ended.
fn look(context: &Context) -> bool {
    let next = context.polls.work.wait_uninterruptible(|| {
        let mut state = context.polls.state.lock();
        match state.woken.pop_front() {
            _ if state.ended => Some(None),
            Some(poll) => Some(Some(poll)),
            None => None,
        }
    });
    let Some(poll) = next else { return false };
    // First the mark: what happens from now on lists it again.
    poll.is_listed.store(false, Ordering::SeqCst);
    let ready = match poll.happened.swap(0, Ordering::SeqCst) {
        0 => poll.file.ops().poll(&poll.file, &mut PollTable::ask()) & poll.events,
        happened => happened & with_aliases(poll.events),
    };
    if ready != 0 {
        poll.finish(context, ready);
    }
    true
}
