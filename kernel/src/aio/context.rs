//! A context: the ring that its program maps, and who waits for completions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering, fence};

use abi::aio::{IoEvent, RING_MAGIC, RingHead};
use abi::{Errno, Result, general as raw};
use machine::frame::{Frame, PAGE_SIZE};
use machine::memory::Prot;
use machine::sync::SpinLock;
use zerocopy::IntoBytes;

use super::polled::Polls;
use super::{PLACES, SYSTEM_PLACES_MAX};
use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitError, WaitQueue};
use crate::base::time::Deadline;
use crate::base::user::UserPtr;
use crate::io::eventfd::EventFd;
use crate::mm::Mm;
use crate::mm::attach::{self, Attachment};
use crate::page_cache::PageCache;
use crate::process::current;
use crate::security::Resource;
use crate::vfs::anon::AnonInode;
use crate::vfs::{File, FileOps, FileType, Inode};

const EVENT_BYTES: usize = size_of::<IoEvent>();
/// Completions of a page, none of which lies in two; the head takes the place of one.
const PAGE_EVENTS: usize = PAGE_SIZE / EVENT_BYTES;
const _: () = assert!(size_of::<RingHead>() == EVENT_BYTES);

/// Completions that are copied to a program at once.
const TAKEN_AT_ONCE: usize = 32;

/// What is said when a request is done.
pub(super) struct Completion {
    /// Where the program's request is, and what it wants back.
    pub(super) request: u64,
    pub(super) data: u64,
    /// An eventfd(2) that counts it.
    pub(super) counter: Option<Arc<File>>,
}

struct RingState {
    /// Where the next completion goes.
    tail: u32,
    /// Requests that will be completed.
    under_way: u32,
}

/// See the module.
pub(super) struct Context {
    id: u64,
    file: Arc<File>,
    /// What the program asked for, as the system counts it.
    asked: u64,
    places: u32,
    ring: Vec<Frame>,
    state: SpinLock<RingState>,
    /// Who takes completions.
    reading: Mutex<()>,
    readers: WaitQueue,
    ended: AtomicBool,
    pub(super) polls: Polls,
}

impl Context {
    /// A context with its ring mapped. EAGAIN: the system has no more; ENOMEM.
    pub(super) fn new(mm: &Arc<Mm>, asked: u32) -> Result<Arc<Context>> {
        // Twice, and two more, as Linux has: programs that count on it keep more under way.
        let wanted = asked.max(4 * machine::cpu::cpu_count() as u32) as usize * 2 + 2;
        let pages = (wanted + 1).div_ceil(PAGE_EVENTS);
        let charge = Charge::new(asked.into())?;
        let cache = PageCache::new(None, (pages * PAGE_SIZE) as u64);
        let mut ring = Vec::new();
        ring.try_reserve_exact(pages).map_err(|_| Errno::ENOMEM)?;
        for page in 0..pages {
            ring.push(cache.page_for_mapping(page as u64)?);
        }
        let places = (pages * PAGE_EVENTS - 1) as u32;
        let head = RingHead {
            id: 0,
            places,
            head: 0,
            tail: 0,
            magic: RING_MAGIC,
            compatible: 1,
            incompatible: 0,
            bytes: size_of::<RingHead>() as u32,
        };
        ring[0].write(0, head.as_bytes());
        let file = ring_file(cache);
        let id = map_ring(mm, file.clone(), pages)?;
        charge.keep();
        Ok(Arc::new(Context {
            id,
            file,
            asked: asked.into(),
            places,
            ring,
            state: SpinLock::new(RingState { tail: 0, under_way: 0 }),
            reading: Mutex::new(()),
            readers: WaitQueue::new(),
            ended: AtomicBool::new(false),
            polls: Polls::default(),
        }))
    }

    /// What the program calls it: the address of its ring.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Completions that the ring has places for.
    pub(super) fn places(&self) -> usize {
        self.places as usize
    }

    fn head_word(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.ring[0].read(offset, &mut word);
        u32::from_ne_bytes(word)
    }

    /// The next completion to take: the program's word, whatever it has written there.
    fn head(&self) -> u32 {
        self.head_word(offset_of!(RingHead, head)) % self.places
    }

    /// Completions between the program's head and `tail`.
    fn waiting(&self, tail: u32) -> u32 {
        (tail + self.places - self.head()) % self.places
    }

    fn place(&self, index: u32) -> (&Frame, usize) {
        let at = index as usize + 1;
        (&self.ring[at / PAGE_EVENTS], at % PAGE_EVENTS * EVENT_BYTES)
    }

    /// One more request is under way: EAGAIN if its completion would find no place.
    pub(super) fn begin(&self) -> Result<()> {
        let mut state = self.state.lock();
        // One place stays free: a full ring is not an empty one.
        if state.under_way + self.waiting(state.tail) + 1 >= self.places {
            return Err(Errno::EAGAIN);
        }
        state.under_way += 1;
        Ok(())
    }

    /// A request that was begun was refused: nothing is said about it.
    pub(super) fn forget(&self) {
        self.state.lock().under_way -= 1;
    }

    /// A request is done. Callable from interrupts.
    pub(super) fn complete(&self, completion: &Completion, result: Result<u64>) {
        let result = match result {
            Ok(value) => value as i64,
            Err(error) => final_error(error).to_raw() as i64,
        };
        let (data, request) = (completion.data, completion.request);
        let event = IoEvent { data, request, result, second: 0 };
        let mut state = self.state.lock();
        let (frame, offset) = self.place(state.tail);
        frame.write(offset, event.as_bytes());
        // Stores are seen in their order (SDM 3A, 8.2.2): the completion is there before its end.
        fence(Ordering::Release);
        state.tail = (state.tail + 1) % self.places;
        state.under_way -= 1;
        self.ring[0].write(offset_of!(RingHead, tail), state.tail.as_bytes());
        drop(state);
        let counter = completion.counter.as_ref();
        if let Some(counter) = counter.and_then(|file| file.ops_as::<EventFd>()) {
            counter.signal();
        }
        self.readers.wake_all(0);
    }

    /// Takes completions for the program until there are `least`, time is up or a signal comes; at
    /// most `most`. EINTR and EINVAL (the context has ended) if there are none.
    pub(super) fn take(
        &self,
        least: usize,
        most: usize,
        events: UserPtr<IoEvent>,
        deadline: Option<Deadline>,
    ) -> Result<usize> {
        let mut taken = 0;
        loop {
            match self.take_now(most - taken, events.nth(taken)) {
                Ok(more) => taken += more,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => return Ok(taken),
            }
            if taken >= least {
                return Ok(taken);
            }
            let ready = || {
                let ended = self.ended.load(Ordering::SeqCst);
                (ended || self.waiting(self.state.lock().tail) != 0).then_some(ended)
            };
            let why = match self.readers.wait_deadline(Sleep::Interruptible, deadline, ready) {
                Ok(false) => continue,
                Ok(true) => Errno::EINVAL,
                Err(WaitError::TimedOut) => return Ok(taken),
                Err(WaitError::Interrupted) => Errno::EINTR,
            };
            return if taken == 0 { Err(why) } else { Ok(taken) };
        }
    }

    /// Takes what is there. A completion that cannot be written stays in the ring.
    fn take_now(&self, most: usize, into: UserPtr<IoEvent>) -> Result<usize> {
        let _reading = self.reading.lock();
        let mut taken = 0;
        while taken < most {
            let tail = self.state.lock().tail;
            let head = self.head();
            let count = (self.waiting(tail) as usize).min(most - taken).min(TAKEN_AT_ONCE);
            if count == 0 {
                break;
            }
            let mut events = [[0; EVENT_BYTES]; TAKEN_AT_ONCE];
            for (index, event) in events[..count].iter_mut().enumerate() {
                let (frame, offset) = self.place((head + index as u32) % self.places);
                frame.read(offset, event);
            }
            let to = UserPtr::<u8>::new(into.nth(taken).address());
            to.write_bytes(events[..count].as_flattened())?;
            let head = (head + count as u32) % self.places;
            self.ring[0].write(offset_of!(RingHead, head), head.as_bytes());
            taken += count;
        }
        Ok(taken)
    }

    /// Nobody finds it any more: what is under way is cancelled, who waits goes.
    pub(super) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        PLACES.fetch_sub(self.asked, Ordering::Relaxed);
        self.polls.end(self);
        self.readers.wake_all(0);
    }

    /// Takes the ring from its program, if it is still where it was.
    pub(super) fn unmap(&self, mm: &Arc<Mm>) {
        let bytes = (self.ring.len() * PAGE_SIZE) as u64;
        let is_ring = |file: &Arc<File>| Arc::ptr_eq(file, &self.file).then_some(bytes);
        // A program that has unmapped it, or moved it, has done that itself.
        drop(attach::detach(mm, self.id(), is_ring));
    }
}

/// A request is not made again: an interrupted one says so.
fn final_error(error: Errno) -> Errno {
    match error {
        Errno::ERESTARTSYS
        | Errno::ERESTARTNOINTR
        | Errno::ERESTARTNOHAND
        | Errno::ERESTART_RESTARTBLOCK => Errno::EINTR,
        other => other,
    }
}

/// Places that are counted for the system, and given back unless they are kept.
struct Charge(u64);

impl Charge {
    fn new(places: u64) -> Result<Charge> {
        let most = SYSTEM_PLACES_MAX.load(Ordering::Relaxed);
        let add = |now: u64| now.checked_add(places).filter(|&sum| sum <= most);
        let added = PLACES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map(|_| Charge(places)).map_err(|_| Errno::EAGAIN)
    }

    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        PLACES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What the ring's mapping holds.
struct RingFile(Arc<AnonInode>);

impl FileOps for RingFile {
    fn inode(&self) -> Arc<dyn Inode> {
        self.0.clone()
    }
}

fn ring_file(cache: Arc<PageCache>) -> Arc<File> {
    let inode = AnonInode::mapped(FileType::Regular, 0o600, "/[aio]", cache);
    File::new(Arc::new(RingFile(inode)), raw::O_RDWR, None)
}

fn map_ring(mm: &Arc<Mm>, file: Arc<File>, pages: usize) -> Result<u64> {
    let attachment = Attachment {
        file,
        huge: None,
        noted: None,
        len: (pages * PAGE_SIZE) as u64,
        prot: Prot::READ | Prot::WRITE,
        address: 0,
        replace: false,
        space_bytes: current().process.limit(Resource::AddressSpace),
    };
    attach::attach(mm, attachment)
}
