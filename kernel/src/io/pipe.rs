//! Pipes and FIFOs (pipe(7), fifo(7)).
//!
//! What is hard: a write of at most [`PIPE_BUF`] bytes must go in one piece, readers and writers
//! must be woken when they can go on and not otherwise (two processes that bounce a byte are the
//! benchmark of every scheduler), and the last close of one end must wake the other.
//!
//! Data is under a sleeping lock, because copies to programs may fault. Lengths and counts of open
//! ends are mirrored in atomics, so poll takes no lock. Waiters of one kind share one queue: the
//! wake-up goes to one of them, and whoever leaves something behind wakes the next.
//!
//! A write waits until [`PIPE_BUF`] bytes are free or it fits; so a writer needs a wake-up only
//! when a read makes that true.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::frame::PAGE_SIZE;
use machine::sync::Once;

use super::ring::PageRing;
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitQueue};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::own::Own;
use crate::vfs::anon::{AnonInode, Reopen};
use crate::vfs::{File, FileOps, FileType, Inode};

/// Writes up to this many bytes are not mixed with others (limits.h).
pub const PIPE_BUF: usize = 4096;
/// Capacity of a new pipe, bytes.
pub const DEFAULT_CAPACITY: usize = 64 << 10;
/// Largest capacity (fs.pipe-max-size).
pub const MAX_CAPACITY: usize = 1 << 20;

/// A run of bytes that were written in the same mode.
struct Run {
    len: usize,
    /// One write in packet mode: one read takes it, and what does not fit is thrown away.
    is_packet: bool,
    /// What a packet's last page has besides.
    padding: usize,
}

#[derive(Default)]
struct Data {
    ring: PageRing,
    /// Covers the ring, oldest first, while it contains packets; empty otherwise.
    runs: VecDeque<Run>,
    /// That of all runs.
    padding: usize,
}

impl Data {
    /// What counts against the capacity: a packet has whole pages for itself.
    #[inline(always)]
    fn charged(&self) -> usize {
        self.ring.len() + self.padding
    }
}

/// A pipe: the data and both kinds of waiters. FIFO inodes hold one too.
pub struct Pipe {
    data: Mutex<Data>,
    /// What `data` counts for; written under its lock.
    charged: AtomicUsize,
    capacity: AtomicUsize,
    /// Open ends.
    readers: AtomicU32,
    writers: AtomicU32,
    /// How often each end was opened; for FIFOs, whose opens wait for each other.
    reader_opens: AtomicU32,
    writer_opens: AtomicU32,
    /// Somebody polled: every write is announced then, for edge-triggered epoll.
    is_polled: AtomicBool,
    read_queue: Arc<WaitQueue>,
    write_queue: Arc<WaitQueue>,
    /// The object of a pipe without a name, for opening it again.
    inode: Once<Weak<AnonInode>>,
}

impl Default for Pipe {
    fn default() -> Self {
        Pipe {
            data: Mutex::new(Data::default()),
            charged: AtomicUsize::new(0),
            capacity: AtomicUsize::new(DEFAULT_CAPACITY),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            reader_opens: AtomicU32::new(0),
            writer_opens: AtomicU32::new(0),
            is_polled: AtomicBool::new(false),
            read_queue: Arc::new(WaitQueue::new()),
            write_queue: Arc::new(WaitQueue::new()),
            inode: Once::new(),
        }
    }
}

impl Pipe {
    /// An empty pipe with no open ends.
    #[must_use]
    pub fn new() -> Arc<Pipe> {
        Arc::new(Pipe::default())
    }

    fn make_inode(self: &Arc<Self>, owner: (u32, u32)) -> Arc<AnonInode> {
        let inode = AnonInode::owned(FileType::Fifo, 0o600, "pipe", owner);
        let opener: Arc<dyn Reopen> = self.clone();
        inode.set_opener(Arc::downgrade(&opener));
        self.inode.call_once(|| Arc::downgrade(&inode));
        inode
    }

    /// Bytes that can be read.
    pub fn len(&self) -> usize {
        self.data.lock().ring.len()
    }

    /// Whether there is nothing to read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.charged.load(Ordering::Relaxed) == 0
    }

    /// Capacity, bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Whether every write gets somewhere.
    fn has_room(&self) -> bool {
        self.room() >= PIPE_BUF
    }

    /// Bytes that fit.
    pub fn room(&self) -> usize {
        self.capacity().saturating_sub(self.charged.load(Ordering::Relaxed))
    }

    /// Changes the capacity (F_SETPIPE_SZ): rounded up to a power of two of pages. EPERM above
    /// [`MAX_CAPACITY`], EBUSY if the data does not fit. Returns the new capacity.
    pub fn set_capacity(&self, bytes: u64) -> Result<u64> {
        if bytes > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let bytes = (bytes as usize).max(PIPE_BUF).next_power_of_two();
        if bytes > MAX_CAPACITY {
            return Err(Errno::EPERM);
        }
        let data = self.data.lock();
        if bytes < data.charged() {
            return Err(Errno::EBUSY);
        }
        self.capacity.store(bytes, Ordering::Relaxed);
        drop(data);
        self.write_queue.wake_all(events::WRITABLE);
        Ok(bytes as u64)
    }

    /// Copies up to `max` bytes without removing them, from position `from` (tee(2), splice(2)).
    pub fn peek(&self, from: usize, max: usize, sink: &mut Sink<'_>) -> Result<usize> {
        self.data.lock().ring.peek(from, max, sink)
    }

    /// Removes what [`Pipe::peek`] copied.
    pub fn consume(&self, len: usize) {
        let mut data = self.data.lock();
        let had_room = self.has_room();
        remove(&mut data, len);
        self.after_read(had_room, data.charged());
    }

    /// Sleeps until nobody reads it any more. EINTR.
    pub fn wait_unread(&self) -> Result<()> {
        Ok(self.write_queue.wait(|| (self.readers.load(Ordering::SeqCst) == 0).then_some(()))?)
    }

    /// Sleeps until there is data or no writer is left; false: the end. EAGAIN if `nonblocking`.
    pub fn wait_readable(&self, nonblocking: bool) -> Result<bool> {
        self.read_queue.wait(|| {
            if !self.is_empty() {
                Some(Ok(true))
            } else if self.writers.load(Ordering::Acquire) == 0 {
                Some(Ok(false))
            } else if nonblocking {
                Some(Err(Errno::EAGAIN))
            } else {
                None
            }
        })?
    }

    /// Sleeps until there is room for [`PIPE_BUF`] bytes, which is when writers are woken. EPIPE,
    /// and SIGPIPE, if nobody reads; EAGAIN if `nonblocking`; a signal.
    pub fn wait_writable(&self, nonblocking: bool) -> Result<()> {
        let waited = self.write_queue.wait(|| {
            if self.readers.load(Ordering::Acquire) == 0 {
                Some(Err(Errno::EPIPE))
            } else if self.has_room() {
                Some(Ok(()))
            } else if nonblocking {
                Some(Err(Errno::EAGAIN))
            } else {
                None
            }
        })?;
        if waited == Err(Errno::EPIPE) {
            super::signals::broken_pipe();
        }
        waited
    }

    /// Writes as much as fits without waiting; EAGAIN if nothing does (splice(2), vmsplice(2)).
    pub fn write_now(&self, source: &mut Source<'_>) -> Result<usize> {
        let written = self.try_write(true, false, true, source).unwrap_or(Err(Errno::EAGAIN));
        if written == Err(Errno::EPIPE) {
            super::signals::broken_pipe();
        }
        written
    }

    /// Reads what there is without waiting; EAGAIN if there is nothing.
    pub fn read_now(&self, sink: &mut Sink<'_>) -> Result<usize> {
        self.read(true, sink)
    }

    #[inline(always)]
    fn read(&self, nonblocking: bool, sink: &mut Sink<'_>) -> Result<usize> {
        if sink.left() == 0 {
            return Ok(0);
        }
        // Who finds nothing needs no lock for it: the next look has it.
        let first = if self.is_empty() { None } else { self.try_read(nonblocking, sink) };
        match first {
            Some(result) => result,
            None => self.read_later(nonblocking, sink),
        }
    }

    #[inline(never)]
    fn read_later(&self, nonblocking: bool, sink: &mut Sink<'_>) -> Result<usize> {
        let read = || self.try_read(nonblocking, sink);
        self.read_queue.wait_longer(Sleep::Interruptible, None, read)?
    }

    #[inline(always)]
    fn try_read(&self, nonblocking: bool, sink: &mut Sink<'_>) -> Option<Result<usize>> {
        let mut data = self.data.lock();
        if data.ring.is_empty() {
            return if self.writers.load(Ordering::Acquire) == 0 {
                Some(Ok(0))
            } else if nonblocking {
                Some(Err(Errno::EAGAIN))
            } else {
                None
            };
        }
        let had_room = self.has_room();
        let result = take(&mut data, sink);
        self.after_read(had_room, data.charged());
        Some(result)
    }

    #[inline]
    fn after_read(&self, had_room: bool, left: usize) {
        self.charged.store(left, Ordering::Relaxed);
        if left > 0 {
            self.read_queue.wake_one(events::READABLE);
        }
        if !had_room && self.has_room() {
            self.write_queue.wake_one(events::WRITABLE);
        }
    }

    #[inline]
    fn write(&self, nonblocking: bool, packets: bool, source: &mut Source<'_>) -> Result<usize> {
        if source.left() == 0 {
            return Ok(0);
        }
        let first = if packets {
            self.try_write_packet(nonblocking, source)
        } else {
            self.try_write(nonblocking, false, false, source)
        };
        // Nearly always everything goes at once.
        match first {
            Some(Ok(len)) if source.left() == 0 => Ok(len),
            first => self.write_rest(nonblocking, packets, first, source),
        }
    }

    /// Out of the way of bytes without bounds.
    #[inline(never)]
    fn try_write_packet(
        &self,
        nonblocking: bool,
        source: &mut Source<'_>,
    ) -> Option<Result<usize>> {
        self.try_write(nonblocking, true, false, source)
    }

    /// Goes on after the first try of a write.
    #[cold]
    fn write_rest(
        &self,
        nonblocking: bool,
        packets: bool,
        mut last: Option<Result<usize>>,
        source: &mut Source<'_>,
    ) -> Result<usize> {
        let mut done = 0;
        loop {
            let step = match last {
                Some(step) => step,
                None => {
                    let write = || self.try_write(nonblocking, packets, done > 0, source);
                    let wait = self.write_queue.wait_longer(Sleep::Interruptible, None, write);
                    wait.unwrap_or_else(|error| Err(error.into()))
                }
            };
            match step {
                Ok(len) => done += len,
                Err(Errno::EPIPE) => {
                    super::signals::broken_pipe();
                    return if done > 0 { Ok(done) } else { Err(Errno::EPIPE) };
                }
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
            if source.left() == 0 {
                return Ok(done);
            }
            last = None;
        }
    }

    /// Writes what fits; None: nothing may go yet.
    #[inline(always)]
    fn try_write(
        &self,
        nonblocking: bool,
        packets: bool,
        is_continued: bool,
        source: &mut Source<'_>,
    ) -> Option<Result<usize>> {
        let mut data = self.data.lock();
        if self.readers.load(Ordering::Acquire) == 0 {
            return Some(Err(Errno::EPIPE));
        }
        let free = self.capacity().saturating_sub(data.charged());
        let wanted = source.left();
        // The rest of a long write may go in any pieces; a short one, or a packet, in one.
        let is_long = is_continued || wanted > PIPE_BUF;
        let least = if is_long && !packets && nonblocking { 1 } else { wanted.min(PIPE_BUF) };
        if free < least {
            return nonblocking.then_some(Err(Errno::EAGAIN));
        }
        let was_empty = data.ring.is_empty();
        let max = if packets { wanted.min(PIPE_BUF) } else { free };
        let result = append(&mut data, packets, source, max);
        self.charged.store(data.charged(), Ordering::Relaxed);
        drop(data);
        if was_empty || self.is_polled.load(Ordering::Relaxed) {
            self.read_queue.wake_one_after_unlock(events::READABLE);
        }
        if self.write_queue.has_waiters() && self.has_room() {
            // For the next writer; nothing has become possible that was not before.
            self.write_queue.wake_one_after_unlock(0);
        }
        Some(result)
    }

    fn poll(&self, end: &End, table: &mut PollTable) -> u32 {
        if end.reads {
            table.wait_on(&self.read_queue);
        }
        if end.writes {
            table.wait_on(&self.write_queue);
        }
        if !self.is_polled.load(Ordering::Relaxed) {
            self.is_polled.store(true, Ordering::SeqCst);
        }
        let mut mask = 0;
        if end.reads {
            if !self.is_empty() {
                mask |= events::READABLE;
            }
            // A FIFO without a writer since this end was opened is waiting, not at its end.
            let writer_opens = self.writer_opens.load(Ordering::Relaxed);
            let had_writer = end.opened_before_writers != Some(writer_opens);
            if self.writers.load(Ordering::Acquire) == 0 && had_writer {
                mask |= events::HUP;
            }
        }
        if end.writes {
            if self.has_room() {
                mask |= events::WRITABLE;
            }
            if self.readers.load(Ordering::Acquire) == 0 {
                mask |= events::ERR;
            }
        }
        mask
    }

    /// Counts an open end. If nothing had the write end open, returns how often it had been.
    fn open_end(&self, reads: bool, writes: bool) -> Option<u32> {
        let before = self.writer_opens.load(Ordering::SeqCst);
        let no_writer = self.writers.load(Ordering::SeqCst) == 0;
        if reads {
            self.readers.fetch_add(1, Ordering::SeqCst);
            self.reader_opens.fetch_add(1, Ordering::SeqCst);
            self.write_queue.wake_all(0);
        }
        if writes {
            self.writers.fetch_add(1, Ordering::SeqCst);
            self.writer_opens.fetch_add(1, Ordering::SeqCst);
            self.read_queue.wake_all(0);
        }
        no_writer.then_some(before)
    }

    fn close_end(&self, end: &End) {
        if end.writes && self.writers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.read_queue.wake_all(events::READABLE | events::HUP);
        }
        if end.reads && self.readers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.write_queue.wake_all(events::WRITABLE | events::ERR);
        }
        let unused =
            self.readers.load(Ordering::SeqCst) == 0 && self.writers.load(Ordering::SeqCst) == 0;
        if unused {
            // A FIFO forgets its data when nobody has it open.
            let mut data = self.data.lock();
            *data = Data::default();
            self.charged.store(0, Ordering::Relaxed);
        }
    }
}

impl Reopen for Pipe {
    fn reopen(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        let inode = self.inode.get().and_then(Weak::upgrade).ok_or(Errno::ENXIO)?;
        // Without a name there is no other end to wait for: what is closed stays closed.
        let mode = flags & raw::O_ACCMODE;
        let (reads, writes) = (mode != raw::O_WRONLY, mode != raw::O_RDONLY);
        Ok(Arc::new(End::new(&self, inode, reads, writes)))
    }
}

/// Takes the next read's worth out of the data.
#[inline(always)]
fn take(data: &mut Data, sink: &mut Sink<'_>) -> Result<usize> {
    if data.runs.is_empty() { data.ring.take(usize::MAX, sink) } else { take_runs(data, sink) }
}

#[inline(never)]
fn take_runs(data: &mut Data, sink: &mut Sink<'_>) -> Result<usize> {
    let mut done = 0;
    while let Some(run) = data.runs.front_mut()
        && sink.left() > 0
    {
        if run.is_packet && done > 0 {
            break;
        }
        let len = match data.ring.take(run.len, sink) {
            Ok(len) => len,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        done += len;
        if run.is_packet {
            data.ring.discard(run.len - len);
            data.padding -= run.padding;
            data.runs.pop_front();
            break;
        }
        run.len -= len;
        if run.len > 0 {
            break;
        }
        data.runs.pop_front();
    }
    Ok(done)
}

/// Removes `len` bytes, whatever they belong to.
fn remove(data: &mut Data, len: usize) {
    let mut left = len.min(data.ring.len());
    data.ring.discard(left);
    while let Some(run) = data.runs.front_mut()
        && left > 0
    {
        let step = left.min(run.len);
        run.len -= step;
        left -= step;
        if run.len == 0 {
            data.padding -= run.padding;
            data.runs.pop_front();
        }
    }
}

#[inline(always)]
fn append(data: &mut Data, packet: bool, source: &mut Source<'_>, max: usize) -> Result<usize> {
    if !packet && data.runs.is_empty() {
        append_pages(data, source, max)
    } else {
        append_run(data, packet, source, max)
    }
}

/// As on Linux a page that is not all there is not written: EFAULT, if it is the first.
#[inline(always)]
fn append_pages(data: &mut Data, source: &mut Source<'_>, max: usize) -> Result<usize> {
    let (before, wanted) = (data.ring.len(), source.left().min(max));
    let len = data.ring.append(source, max)?;
    if len == wanted { Ok(len) } else { cut_to_pages(data, before, len) }
}

#[cold]
fn cut_to_pages(data: &mut Data, before: usize, len: usize) -> Result<usize> {
    let len = len / PAGE_SIZE * PAGE_SIZE;
    data.ring.truncate(before + len);
    if len == 0 { Err(Errno::EFAULT) } else { Ok(len) }
}

#[inline(never)]
fn append_run(data: &mut Data, packet: bool, source: &mut Source<'_>, max: usize) -> Result<usize> {
    data.runs.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
    if data.runs.is_empty() && !data.ring.is_empty() {
        data.runs.push_back(Run { len: data.ring.len(), is_packet: false, padding: 0 });
    }
    let len = append_pages(data, source, max)?;
    match data.runs.back_mut() {
        Some(run) if !packet && !run.is_packet => run.len += len,
        _ => {
            let padding = if packet { len.next_multiple_of(PAGE_SIZE) - len } else { 0 };
            data.padding += padding;
            data.runs.push_back(Run { len, is_packet: packet, padding });
        }
    }
    Ok(len)
}

/// An open end, or both of a FIFO opened O_RDWR.
pub struct End {
    pipe: Arc<Pipe>,
    inode: Arc<dyn Inode>,
    reads: bool,
    writes: bool,
    /// Opened while nobody wrote: how often the write end had been opened until then.
    opened_before_writers: Option<u32>,
}

impl End {
    fn new(pipe: &Arc<Pipe>, inode: Arc<dyn Inode>, reads: bool, writes: bool) -> End {
        let opened_before_writers = pipe.open_end(reads, writes);
        End { pipe: pipe.clone(), inode, reads, writes, opened_before_writers }
    }

    /// The pipe behind it.
    pub fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }
}

impl FileOps for End {
    fn has_io_signals(&self) -> bool {
        true
    }

    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let read = self.pipe.read(file.is_nonblocking() || !sink.may_wait(), sink)?;
        // Of a pipe without a name nobody asks for times.
        if file.location.is_some() && read > 0 {
            file.note_read();
        }
        Ok(read)
    }

    fn write_at(&self, file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let flags = file.flags();
        let nowait = flags & raw::O_NONBLOCK != 0 || !source.may_wait();
        let written = self.pipe.write(nowait, flags & raw::O_DIRECT != 0, source)?;
        if file.location.is_some() && written > 0 {
            file.inode().note_written();
        }
        Ok(written)
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        self.pipe.poll(self, table)
    }

    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        match command {
            abi::ioctl::FIONREAD => {
                UserPtr::<i32>::new(argument).write(&(self.pipe.len() as i32))?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }

    fn release(&self, _file: &File) {
        self.pipe.close_end(self);
    }

    fn held_bytes(&self) -> usize {
        // Asked where nobody may sleep.
        self.pipe.charged.load(Ordering::Relaxed)
    }
}

/// The pipe behind an open file, for splice(2) and fcntl(2).
pub fn of(file: &File) -> Option<&Arc<Pipe>> {
    file.ops_as::<End>().map(End::pipe)
}

/// Opens a FIFO (fifo(7)): waits for the other end, except O_RDWR and O_NONBLOCK. ENXIO for
/// writing without waiting while nobody reads, EINVAL for the access mode that is none.
pub fn open_fifo(pipe: &Arc<Pipe>, inode: Arc<dyn Inode>, flags: u32) -> Result<Arc<dyn FileOps>> {
    let mode = flags & raw::O_ACCMODE;
    let (reads, writes) = (mode != raw::O_WRONLY, mode != raw::O_RDONLY);
    let nonblocking = flags & raw::O_NONBLOCK != 0;
    if mode == raw::O_ACCMODE {
        return Err(Errno::EINVAL);
    }
    if writes && !reads && nonblocking && pipe.readers.load(Ordering::SeqCst) == 0 {
        return Err(Errno::ENXIO);
    }
    // The counts of opens say whether the other end was opened, even if it is closed again.
    let reader_opens = pipe.reader_opens.load(Ordering::SeqCst);
    let writer_opens = pipe.writer_opens.load(Ordering::SeqCst);
    let end = End::new(pipe, inode, reads, writes);
    let opened = |open: &AtomicU32, opens: &AtomicU32, before: u32| {
        let is_open = open.load(Ordering::SeqCst) > 0;
        (is_open || opens.load(Ordering::SeqCst) != before).then_some(())
    };
    let waited = if nonblocking || (reads && writes) {
        Ok(())
    } else if reads {
        pipe.read_queue.wait(|| opened(&pipe.writers, &pipe.writer_opens, writer_opens))
    } else {
        pipe.write_queue.wait(|| opened(&pipe.readers, &pipe.reader_opens, reader_opens))
    };
    if let Err(error) = waited {
        pipe.close_end(&end);
        return Err(error.into());
    }
    Ok(Arc::new(end))
}

/// Opens the FIFO that a node of a file system stands for.
pub fn open_node(inode: Arc<dyn Inode>, flags: u32) -> Result<Arc<dyn FileOps>> {
    let pipe = match inode.state().endpoint::<Pipe>() {
        Some(pipe) => pipe,
        None => inode.state().endpoint_or(Pipe::new()),
    };
    open_fifo(&pipe, inode, flags)
}

/// pipe(2).
pub fn sys_pipe(fds: u64) -> Result<u64> {
    make(fds, 0)
}

/// pipe2(2).
pub fn sys_pipe2(fds: u64, flags: u32) -> Result<u64> {
    make(fds, flags)
}

/// Asks for a pipe of notifications (pipe2(2)), of which there are none.
const O_NOTIFICATION_PIPE: u32 = raw::O_EXCL;

/// A new pipe's ends, the one to read from first; `flags` as of pipe2(2).
pub fn open_ends(owner: (u32, u32), flags: u32) -> (Arc<File>, Arc<File>) {
    let pipe = Pipe::new();
    let inode: Arc<dyn Inode> = pipe.make_inode(owner);
    let reader = Arc::new(End::new(&pipe, inode.clone(), true, false));
    let writer = Arc::new(End::new(&pipe, inode, false, true));
    let reader = File::new(reader, raw::O_RDONLY | flags & raw::O_NONBLOCK, None);
    (reader, File::new(writer, raw::O_WRONLY | flags & !raw::O_CLOEXEC, None))
}

fn make(address: u64, flags: u32) -> Result<u64> {
    if flags & !(raw::O_CLOEXEC | raw::O_NONBLOCK | raw::O_DIRECT) == O_NOTIFICATION_PIPE {
        return Err(Errno::ENOPKG);
    }
    if flags & !(raw::O_CLOEXEC | raw::O_NONBLOCK | raw::O_DIRECT) != 0 {
        return Err(Errno::EINVAL);
    }
    let owner = Own::with_credentials(current(), |own| (own.fsuid, own.fsgid));
    let (reader, writer) = open_ends(owner, flags);
    super::give_pair(reader, writer, flags & raw::O_CLOEXEC != 0, |pair| {
        UserPtr::<[i32; 2]>::new(address).write(pair)
    })
}

/// F_GETPIPE_SZ: EBADF if the file is no pipe.
pub fn fcntl_get_size(file: &File) -> Result<u64> {
    of(file).map(|pipe| pipe.capacity() as u64).ok_or(Errno::EBADF)
}

/// F_SETPIPE_SZ: EBADF if the file is no pipe.
pub fn fcntl_set_size(file: &File, bytes: u64) -> Result<u64> {
    of(file).ok_or(Errno::EBADF)?.set_capacity(bytes)
}
