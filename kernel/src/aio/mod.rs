//! Asynchronous I/O (io_setup(2), io_submit(2), io_getevents(2), io_cancel(2), io_destroy(2)):
//! requests whose completion the program takes later.
//!
//! A [`Context`] is a ring of completions in memory that it shares with its program, and what is
//! under way. It belongs to an address space, as its ring does ([`Contexts`]), and goes with it.
//! [`request`] makes a request: what files can do is done at once, as Linux does it without direct
//! I/O, and completed; a poll ([`polled`]) waits for its file, and the thread that has submitted it
//! goes on.
//!
//! Why it is hard: the ring is the program's, which may write anything there, and takes completions
//! without a call if it likes. So the kernel keeps the end itself, takes the head modulo the ring,
//! and counts what is under way as if it were in the ring: no completion is ever without a place.
//!
//! Locks: a context's reading lock, which copies to the program under it, then its state. Neither
//! is held when a file is asked.

mod context;
mod polled;
mod request;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::aio::{IoEvent, SignalMask};
use abi::{Errno, Result};
use machine::sync::SpinLock;

use crate::base::time::{Deadline, NS_PER_SEC, TimeSpec};
use crate::base::user::UserPtr;
use crate::io::signals;
use crate::mm::Mm;
use crate::process::current;
use context::Context;

/// Most requests of one context: its ring, which has twice as many places, has room for no more.
const REQUESTS_MAX: u32 = 0x1000_0000 / size_of::<IoEvent>() as u32 / 2;

/// Places that programs have asked for together (fs.aio-nr), and the most (fs.aio-max-nr).
static PLACES: AtomicU64 = AtomicU64::new(0);
static SYSTEM_PLACES_MAX: AtomicU64 = AtomicU64::new(65_536);

/// Places that programs have asked for together.
pub fn places() -> u64 {
    PLACES.load(Ordering::Relaxed)
}

/// The most of them.
pub fn system_places_max() -> &'static AtomicU64 {
    &SYSTEM_PLACES_MAX
}

/// The contexts of an address space, by the addresses of their rings.
#[derive(Default)]
struct Contexts {
    sorted: SpinLock<Vec<Arc<Context>>>,
}

impl Contexts {
    /// Those of an address space, made if there are none.
    fn of(mm: &Mm) -> Result<Arc<Contexts>> {
        let shared = mm.extension_or(|| Arc::new(Contexts::default()));
        shared.downcast().map_err(|_| Errno::EINVAL)
    }

    /// EINVAL for an address that is no context's.
    fn find(id: u64) -> Result<Arc<Context>> {
        let shared = current().process.mm()?.extension().ok_or(Errno::EINVAL)?;
        let contexts = shared.downcast_ref::<Contexts>().ok_or(Errno::EINVAL)?;
        let sorted = contexts.sorted.lock();
        let at = sorted.binary_search_by_key(&id, |context| context.id());
        at.map(|at| sorted[at].clone()).map_err(|_| Errno::EINVAL)
    }

    fn insert(&self, context: Arc<Context>) -> Result<()> {
        let mut sorted = self.sorted.lock();
        sorted.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let at = sorted.partition_point(|other| other.id() < context.id());
        sorted.insert(at, context);
        Ok(())
    }

    fn remove(&self, id: u64) -> Result<Arc<Context>> {
        let mut sorted = self.sorted.lock();
        let at = sorted.binary_search_by_key(&id, |context| context.id());
        at.map(|at| sorted.remove(at)).map_err(|_| Errno::EINVAL)
    }
}

/// The address space is gone, or its program executes another.
impl Drop for Contexts {
    fn drop(&mut self) {
        for context in self.sorted.get_mut().drain(..) {
            context.end();
        }
    }
}

/// io_setup(2): a context for `count` requests at a time. Its number goes to `into`, which must be
/// 0 before.
pub fn io_setup(count: u32, into: UserPtr<u64>) -> Result<u64> {
    if into.read()? != 0 || count == 0 || count > REQUESTS_MAX {
        return Err(Errno::EINVAL);
    }
    let mm = current().process.mm()?;
    let contexts = Contexts::of(&mm)?;
    let context = Context::new(&mm, count)?;
    let id = context.id();
    let result = contexts.insert(context.clone()).and_then(|()| into.write(&id));
    if result.is_err() {
        drop(contexts.remove(id));
        context.end();
        context.unmap(&mm);
    }
    result.map(|()| 0)
}

/// io_destroy(2): what is under way is cancelled, who waits for it gets EINVAL.
pub fn io_destroy(id: u64) -> Result<u64> {
    let mm = current().process.mm()?;
    let context = Contexts::of(&mm)?.remove(id)?;
    context.end();
    context.unmap(&mm);
    Ok(0)
}

/// io_submit(2): how many of the requests were taken; the error of the first if none was.
pub fn io_submit(id: u64, count: i64, requests: u64) -> Result<u64> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    let context = Contexts::find(id)?;
    let count = count.min(context.places());
    let list = UserPtr::<u64>::new(requests);
    for done in 0..count {
        let submitted = list.nth(done).read().and_then(|at| request::submit(&context, at));
        if let Err(error) = submitted {
            return if done == 0 { Err(error) } else { Ok(done as u64) };
        }
    }
    Ok(count as u64)
}

/// io_cancel(2): EINPROGRESS if the request will be completed as cancelled, EINVAL if it cannot be.
pub fn io_cancel(id: u64, request: u64, _event: u64) -> Result<u64> {
    request::check_key(request)?;
    let context = Contexts::find(id)?;
    Err(if polled::cancel(&context, request) { Errno::EINPROGRESS } else { Errno::EINVAL })
}

/// io_getevents(2): takes at least `least` completions, or what there is when time is up.
pub fn io_getevents(id: u64, least: i64, most: i64, events: u64, timeout: u64) -> Result<u64> {
    let deadline = read_deadline(timeout)?;
    take(id, least, most, events, deadline)
}

/// io_pgetevents(2): the same with a signal mask for the wait.
pub fn io_pgetevents(
    id: u64,
    least: i64,
    most: i64,
    events: u64,
    timeout: u64,
    mask: UserPtr<SignalMask>,
) -> Result<u64> {
    let deadline = read_deadline(timeout)?;
    if let Some(mask) = mask.non_null() {
        let mask = mask.read()?;
        signals::replace_mask(mask.set, mask.bytes)?;
    }
    let result = take(id, least, most, events, deadline);
    result.map_err(|error| if error == Errno::EINTR { Errno::ERESTARTNOHAND } else { error })
}

fn take(id: u64, least: i64, most: i64, events: u64, deadline: Option<Deadline>) -> Result<u64> {
    let context = Contexts::find(id)?;
    let (Ok(least), Ok(most)) = (usize::try_from(least), usize::try_from(most)) else {
        return Err(Errno::EINVAL);
    };
    if least > most {
        return Err(Errno::EINVAL);
    }
    context.take(least, most, UserPtr::new(events), deadline).map(|taken| taken as u64)
}

/// When to give up waiting; None: never, which is also what a time before now says, as on Linux.
fn read_deadline(timeout: u64) -> Result<Option<Deadline>> {
    let Some(timeout) = UserPtr::<TimeSpec>::new(timeout).non_null() else { return Ok(None) };
    let time = timeout.read()?;
    let ns = i128::from(time.sec) * i128::from(NS_PER_SEC) + i128::from(time.nsec);
    let ns = (ns >= 0).then(|| u64::try_from(ns).unwrap_or(u64::MAX));
    Ok(ns.map(Deadline::after_ns))
}
