//! Asynchronous I/O (io_setup(2), io_submit(2), io_getevents(2), io_cancel(2), io_destroy(2)).

use std::mem::offset_of;

use crate::sys::*;
use crate::{sc, tests};

tests! { "aio":
    contexts, contexts_end_with_their_program, reads_and_writes, vectors_and_streams,
    syncs, what_is_refused, what_fails_later, the_ring_is_the_programs, a_full_ring,
    polls, polls_that_are_cancelled, counters, waits_end, masks_for_the_wait,
}

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: i32,
    buffer: u64,
    count: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: i32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    second: i64,
}

/// `struct aio_ring`'s words.
const PLACES: usize = 1;
const HEAD: usize = 2;
const TAIL: usize = 3;
const MAGIC: usize = 4;
const HEAD_BYTES: usize = 32;

/// Which libc does not have.
const SYS_IO_PGETEVENTS: i64 = 333;

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const SYNC_DATA: u16 = 3;
const POLL: u16 = 5;
const READ_VECTOR: u16 = 7;
const WRITE_VECTOR: u16 = 8;
const HAS_EVENT_FD: u32 = 1;
const HAS_PRIORITY: u32 = 2;

/// A context, which goes with this.
struct Context(usize);

impl Drop for Context {
    fn drop(&mut self) {
        let _ = sc!(SYS_io_destroy, self.0);
    }
}

fn context(count: usize) -> Context {
    let mut id = 0usize;
    sc!(SYS_io_setup, count, &raw mut id).is(0);
    assert_ne!(id, 0);
    Context(id)
}

impl Context {
    fn submit(&self, requests: &[&Request]) -> Res {
        let list: Vec<usize> = requests.iter().map(|r| &raw const **r as usize).collect();
        sc!(SYS_io_submit, self.0, list.len(), list.as_ptr())
    }

    /// At least that many, for ever.
    fn take(&self, least: usize) -> Vec<Event> {
        let mut events = [Event::default(); 64];
        let got = sc!(SYS_io_getevents, self.0, least, events.len(), events.as_mut_ptr(), 0);
        events[..got.unwrap()].to_vec()
    }

    fn word(&self, index: usize) -> u32 {
        // SAFETY: the ring's head is mapped as long as the context is there.
        unsafe { (self.0 as *const u32).add(index).read_volatile() }
    }

    fn set_word(&self, index: usize, value: u32) {
        // SAFETY: the ring is mapped for writing as long as the context is there.
        unsafe { (self.0 as *mut u32).add(index).write_volatile(value) };
    }
}

fn request(opcode: u16, fd: i32, buffer: &mut [u8], offset: i64) -> Request {
    let (buffer, count) = (buffer.as_mut_ptr() as u64, buffer.len() as u64);
    Request { data: 7, opcode, fd, buffer, count, offset, ..Request::default() }
}

fn poll(fd: i32, events: i16) -> Request {
    Request { data: 9, opcode: POLL, fd, buffer: events as u16 as u64, ..Request::default() }
}

fn done(request: &Request, result: i64) -> Event {
    Event { data: request.data, request: &raw const *request as u64, result, second: 0 }
}

fn file() -> i32 {
    open(&format!("{}/file", dir()), O_RDWR | O_CREAT).fd()
}

fn contexts() {
    let mut id = 0usize;
    let setup = |count: usize, id: usize| sc!(SYS_io_setup, count, id);
    setup(1, 8).fails(EFAULT);
    setup(0, &raw mut id as usize).fails(EINVAL);
    setup(0x1000_0000, &raw mut id as usize).fails(EINVAL);
    setup(0x7f_ffff, &raw mut id as usize).fails(EINVAL);
    setup(0x3f_ffff, &raw mut id as usize).fails(EAGAIN);
    id = 1;
    setup(1, &raw mut id as usize).fails(EINVAL);
    let one = context(1);
    let two = context(1);
    assert_ne!(one.0, two.0);
    assert_eq!(one.word(MAGIC), 0xa10a_10a1);
    assert_eq!((one.word(HEAD), one.word(TAIL)), (0, 0));
    assert!(one.word(PLACES) > 2);
    sc!(SYS_io_destroy, one.0 + 4096).fails(EINVAL);
    sc!(SYS_io_destroy, 0).fails(EINVAL);
    sc!(SYS_io_destroy, one.0).is(0);
    sc!(SYS_io_destroy, one.0).fails(EINVAL);
    sc!(SYS_io_submit, one.0, 0, 0).fails(EINVAL);
    sc!(SYS_io_getevents, one.0, 0, 0, 0, 0).fails(EINVAL);
    sc!(SYS_io_submit, two.0, 0, 0).is(0);
    sc!(SYS_io_submit, two.0, usize::MAX, 0).fails(EINVAL);
    sc!(SYS_io_submit, two.0, 1, 8).fails(EFAULT);
    sc!(SYS_io_getevents, two.0, 0, 0, 0, 0).is(0);
    sc!(SYS_io_getevents, two.0, 2, 1, 0, 0).fails(EINVAL);
    sc!(SYS_io_getevents, two.0, usize::MAX, 1, 0, 0).fails(EINVAL);
    sc!(SYS_io_getevents, two.0, 0, 1, 0, 8).fails(EFAULT);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{:x}-", two.0);
    let line = maps.lines().find(|line| line.starts_with(&start)).expect("the ring is mapped");
    assert!(line.contains(" rw-s ") && line.contains("[aio]"), "{line}");
}

/// A child has the ring's pages and no context, and so has a program that is executed.
fn contexts_end_with_their_program() {
    let number = || {
        let text = std::fs::read_to_string("/proc/sys/fs/aio-nr").unwrap();
        text.trim().parse::<u64>().unwrap()
    };
    let context = context(100);
    in_child(|| {
        sc!(SYS_io_destroy, context.0).fails(EINVAL);
        assert_eq!(context.word(MAGIC), 0xa10a_10a1);
    });
    assert!(number() >= 100);
    // What a program leaves behind is given back.
    let before = number();
    in_child(|| {
        let mut id = 0usize;
        sc!(SYS_io_setup, 1000, &raw mut id).is(0);
        let (r, _w) = pipe();
        let waits = poll(r, POLLIN);
        let list = [&raw const waits];
        sc!(SYS_io_submit, id, 1, list.as_ptr()).is(1);
    });
    until(|| number() <= before);
}

fn reads_and_writes() {
    let (context, fd) = (context(8), file());
    let mut text = *b"asynchronous";
    let write = request(WRITE, fd, &mut text, 4);
    context.submit(&[&write]).is(1);
    assert_eq!(context.take(1), [done(&write, 12)]);
    let (mut one, mut two) = ([0; 6], [0; 100]);
    let reads = [request(READ, fd, &mut one, 2), request(READ, fd, &mut two, 8)];
    context.submit(&[&reads[0], &reads[1]]).is(2);
    assert_eq!(context.take(2), [done(&reads[0], 6), done(&reads[1], 8)]);
    assert_eq!((&one, &two[..8]), (b"\0\0asyn", &b"chronous"[..]));
    // The file's own position is not moved.
    assert_eq!(sc!(SYS_lseek, fd, 0, SEEK_CUR), Ok(0));
    let end = request(READ, fd, &mut one, 100);
    context.submit(&[&end]).is(1);
    assert_eq!(context.take(1), [done(&end, 0)]);
    let mut nothing = request(READ, fd, &mut one, 0);
    nothing.count = 0;
    context.submit(&[&nothing]).is(1);
    assert_eq!(context.take(1), [done(&nothing, 0)]);
    close(fd);
}

fn vectors_and_streams() {
    let (context, fd) = (context(8), file());
    let (mut a, mut b) = (*b"one ", *b"two");
    let mut vector = [[a.as_mut_ptr() as usize, 4], [b.as_mut_ptr() as usize, 3]];
    let mut write = request(WRITE_VECTOR, fd, &mut [], 1);
    (write.buffer, write.count) = (vector.as_mut_ptr() as u64, 2);
    context.submit(&[&write]).is(1);
    assert_eq!(context.take(1), [done(&write, 7)]);
    (a, b) = ([0; 4], [0; 3]);
    let read = Request { opcode: READ_VECTOR, ..write };
    context.submit(&[&read]).is(1);
    assert_eq!(context.take(1), [done(&read, 7)]);
    assert_eq!((&a, &b), (b"one ", b"two"));
    let bad = Request { buffer: 8, ..read };
    context.submit(&[&bad]).fails(EFAULT);
    let negative = Request { count: 1025, ..read };
    context.submit(&[&negative]).fails(EINVAL);
    // A stream has no places: the offset means nothing.
    let (r, w) = pipe();
    let mut text = *b"through";
    let into = request(WRITE, w, &mut text, 99);
    context.submit(&[&into]).is(1);
    let mut got = [0; 16];
    let out = request(READ, r, &mut got, 99);
    context.submit(&[&Request { offset: -1, ..out }]).fails(EINVAL);
    context.submit(&[&out]).is(1);
    assert_eq!(context.take(2), [done(&into, 7), done(&out, 7)]);
    assert_eq!(&got[..7], b"through");
    [fd, r, w].into_iter().for_each(close);
}

fn syncs() {
    let (context, fd) = (context(8), file());
    for opcode in [SYNC, SYNC_DATA] {
        let sync = request(opcode, fd, &mut [], 0);
        let sync = Request { buffer: 0, ..sync };
        context.submit(&[&sync]).is(1);
        assert_eq!(context.take(1), [done(&sync, 0)]);
        context.submit(&[&Request { offset: 1, ..sync }]).fails(EINVAL);
        context.submit(&[&Request { count: 1, ..sync }]).fails(EINVAL);
        context.submit(&[&Request { buffer: 1, ..sync }]).fails(EINVAL);
        context.submit(&[&Request { rw_flags: 1, ..sync }]).fails(EINVAL);
        let (r, w) = pipe();
        context.submit(&[&Request { fd: r, ..sync }]).fails(EINVAL);
        [r, w].into_iter().for_each(close);
    }
    close(fd);
}

fn what_is_refused() {
    let (context, fd) = (context(8), file());
    let mut byte = [0];
    let good = request(READ, fd, &mut byte, 0);
    let refused = |bad: Request, error: i32| context.submit(&[&bad]).fails(error);
    refused(Request { reserved: 1, ..good }, EINVAL);
    refused(Request { count: 1 << 63, ..good }, EINVAL);
    refused(Request { fd: 999, ..good }, EBADF);
    refused(Request { opcode: 4, ..good }, EINVAL);
    refused(Request { opcode: 6, ..good }, EINVAL);
    refused(Request { opcode: 9, ..good }, EINVAL);
    refused(Request { offset: -1, ..good }, EINVAL);
    refused(Request { buffer: u64::MAX - 9, count: 20, ..good }, EFAULT);
    refused(Request { rw_flags: 1 << 30, ..good }, EOPNOTSUPP);
    refused(Request { flags: HAS_EVENT_FD, event_fd: 999, ..good }, EBADF);
    refused(Request { flags: HAS_EVENT_FD, event_fd: fd, ..good }, EINVAL);
    refused(Request { flags: HAS_PRIORITY, priority: 5 << 13, ..good }, EINVAL);
    let (r, w) = pipe();
    refused(Request { fd: w, ..good }, EBADF);
    refused(Request { fd: r, opcode: WRITE, ..good }, EBADF);
    let place = open("/", O_PATH).fd();
    refused(Request { fd: place, ..good }, EBADF);
    // What comes before one that is refused was submitted.
    let list = [&raw const good as usize, 8];
    sc!(SYS_io_submit, context.0, 2, list.as_ptr()).is(1);
    assert_eq!(context.take(1).len(), 1);
    // A read-only request cannot be marked.
    let page = anon(4096).cast::<Request>();
    // SAFETY: a page of this test's own.
    unsafe { page.write(good) };
    sc!(SYS_mprotect, page, 4096, PROT_READ).is(0);
    // SAFETY: readable for the rest of the test.
    context.submit(&[unsafe { &*page }]).fails(EFAULT);
    unmap(page.cast(), 4096);
    [fd, r, w, place].into_iter().for_each(close);
}

/// What goes wrong with the data is told by the completion.
fn what_fails_later() {
    let (context, fd) = (context(8), file());
    let mut text = *b"text";
    let write = request(WRITE, fd, &mut text, 0);
    context.submit(&[&write]).is(1);
    let bad = Request { opcode: READ, buffer: 4096, ..write };
    context.submit(&[&bad]).is(1);
    assert_eq!(context.take(2), [done(&write, 4), done(&bad, -(EFAULT as i64))]);
    let (r, w) = pipe_flags(O_NONBLOCK);
    let empty = Request { opcode: READ, fd: r, ..write };
    context.submit(&[&empty]).is(1);
    assert_eq!(context.take(1), [done(&empty, -(EAGAIN as i64))]);
    [fd, r, w].into_iter().for_each(close);
}

/// A program may take completions from the ring, and the kernel sees where it is.
fn the_ring_is_the_programs() {
    let (context, fd) = (context(8), file());
    let mut byte = [0];
    let read = request(READ, fd, &mut byte, 0);
    for round in 0..1000 {
        context.submit(&[&read]).is(1);
        let (head, tail) = (context.word(HEAD), context.word(TAIL));
        assert_ne!(head, tail, "round {round}");
        let at = context.0 + HEAD_BYTES + head as usize * size_of::<Event>();
        // SAFETY: an event of the ring, which is mapped.
        let event = unsafe { (at as *const Event).read_volatile() };
        assert_eq!(event, done(&read, 0));
        context.set_word(HEAD, (head + 1) % context.word(PLACES));
    }
    sc!(SYS_io_getevents, context.0, 0, 1, 8, 0).is(0);
    // What it writes there may be anything: nothing is taken that is not there.
    context.submit(&[&read]).is(1);
    context.set_word(TAIL, 77);
    context.set_word(HEAD, u32::MAX);
    let mut events = [Event::default(); 4];
    let got = sc!(SYS_io_getevents, context.0, 0, 4, events.as_mut_ptr(), 0).unwrap();
    assert!(got <= 4);
    close(fd);
}

fn a_full_ring() {
    let (context, fd) = (context(1), file());
    let mut byte = [0];
    let read = request(READ, fd, &mut byte, 0);
    let mut taken = 0;
    while context.submit(&[&read]) == Ok(1) {
        taken += 1;
        assert!(taken < 10_000, "a ring has an end");
    }
    // Linux keeps some for other CPUs.
    assert!((64..context.word(PLACES)).contains(&taken), "{taken}");
    context.submit(&[&read]).fails(EAGAIN);
    assert_eq!(context.take(1).len(), (taken as usize).min(64));
    context.submit(&[&read]).is(1);
    // An event that cannot be written is not lost.
    while context.take(0).len() == 64 {}
    context.submit(&[&read]).is(1);
    sc!(SYS_io_getevents, context.0, 1, 1, 8, 0).fails(EFAULT);
    assert_eq!(context.take(1), [done(&read, 0)]);
    close(fd);
}

fn polls() {
    let (context, fd) = (context(8), file());
    let (r, w) = pipe();
    let waits = poll(r, POLLIN);
    context.submit(&[&waits]).is(1);
    let mut none = [Event::default()];
    sc!(SYS_io_getevents, context.0, 0, 1, none.as_mut_ptr(), 0).is(0);
    write(w, b"x");
    // What woke it is told whole.
    assert_eq!(context.take(1), [done(&waits, (POLLIN | POLLRDNORM) as i64)]);
    // Done once: more of it says nothing.
    write(w, b"y");
    sc!(SYS_io_getevents, context.0, 0, 1, none.as_mut_ptr(), 0).is(0);
    // What can be done now is done at once, and hang-ups are told unasked.
    let now = poll(w, POLLOUT);
    context.submit(&[&now]).is(1);
    assert_eq!(context.take(1), [done(&now, POLLOUT as i64)]);
    read(r, 2);
    let (other_r, other_w) = pipe();
    let closing = poll(other_r, 0);
    context.submit(&[&closing]).is(1);
    close(other_w);
    assert_eq!(context.take(1), [done(&closing, POLLHUP as i64)]);
    // Files are always ready, and never for what they do not know.
    let always = poll(fd, POLLIN);
    context.submit(&[&always]).is(1);
    assert_eq!(context.take(1), [done(&always, POLLIN as i64)]);
    context.submit(&[&poll(fd, POLLPRI)]).fails(EINVAL);
    context.submit(&[&Request { buffer: 1 << 16, ..waits }]).fails(EINVAL);
    context.submit(&[&Request { offset: 1, ..waits }]).fails(EINVAL);
    // Many wait for one, and each is told.
    let many = [poll(r, POLLIN); 6];
    context.submit(&many.iter().collect::<Vec<_>>()).is(6);
    write(w, b"z");
    assert_eq!(context.take(6).len(), 6);
    [fd, r, w, other_r].into_iter().for_each(close);
}

fn polls_that_are_cancelled() {
    let own = context(8);
    let (r, w) = pipe();
    let waits = poll(r, POLLIN);
    own.submit(&[&waits]).is(1);
    let cancel = |request: &Request| {
        let mut event = Event::default();
        sc!(SYS_io_cancel, own.0, &raw const *request, &raw mut event)
    };
    cancel(&poll(r, POLLIN)).fails(EINVAL);
    cancel(&Request { key: 1, ..waits }).fails(EINVAL);
    sc!(SYS_io_cancel, own.0, 8, 0).fails(EFAULT);
    cancel(&waits).fails(EINPROGRESS);
    assert_eq!(own.take(1), [done(&waits, 0)]);
    cancel(&waits).fails(EINVAL);
    // Nothing of it is left: the pipe's other end learns that its reader has gone.
    own.submit(&[&waits]).is(1);
    let closing = context(1);
    closing.submit(&[&waits]).is(1);
    drop(closing);
    cancel(&waits).fails(EINPROGRESS);
    close(r);
    on_signal(SIGPIPE, SIG_IGN, 0, 0);
    until(|| sc!(SYS_write, w, c"x".as_ptr(), 1) == Err(EPIPE));
    close(w);
}

fn counters() {
    let (context, fd) = (context(8), file());
    let counter = sc!(SYS_eventfd2, 0, EFD_NONBLOCK).fd();
    let mut byte = [0];
    let counted =
        Request { flags: HAS_EVENT_FD, event_fd: counter, ..request(READ, fd, &mut byte, 0) };
    context.submit(&[&counted, &counted, &counted]).is(3);
    assert_eq!(read(counter, 8), 3u64.to_ne_bytes());
    let (r, w) = pipe();
    let waits = Request { flags: HAS_EVENT_FD, event_fd: counter, ..poll(r, POLLIN) };
    context.submit(&[&waits]).is(1);
    let mut word = 0u64;
    sc!(SYS_read, counter, &raw mut word, 8).fails(EAGAIN);
    write(w, b"x");
    until(|| sc!(SYS_read, counter, &raw mut word, 8) == Ok(8));
    assert_eq!(word, 1);
    assert_eq!(context.take(4).len(), 4);
    [fd, r, w, counter].into_iter().for_each(close);
}

fn waits_end() {
    let own = context(8);
    let mut events = [Event::default(); 2];
    let mut wait = |least: usize, time: [i64; 2]| {
        sc!(SYS_io_getevents, own.0, least, 2, events.as_mut_ptr(), time.as_ptr())
    };
    wait(1, [0, 0]).is(0);
    wait(1, [0, 20_000_000]).is(0);
    wait(0, [1000, 0]).is(0);
    // One is not enough for two, and is given when time is up.
    let (r, w) = pipe();
    let waits = poll(r, POLLIN);
    own.submit(&[&waits]).is(1);
    write(w, b"x");
    wait(2, [0, 300_000_000]).is(1);
    // A signal ends it.
    on_signal(SIGALRM, nothing as *const () as usize, 0, 0);
    let again = [0i64, 20_000, 0, 20_000];
    sc!(SYS_setitimer, ITIMER_REAL, again.as_ptr(), 0).is(0);
    wait(1, [1000, 0]).fails(EINTR);
    // A time before now never comes.
    wait(1, [-1, 0]).fails(EINTR);
    wait(1, [0, -1]).fails(EINTR);
    sc!(SYS_setitimer, ITIMER_REAL, [0i64; 4].as_ptr(), 0).is(0);
    // And so does the context's end, by another thread.
    let end = std::thread::spawn({
        let id = own.0;
        move || {
            nap(50);
            sc!(SYS_io_destroy, id).is(0);
        }
    });
    wait(1, [1000, 0]).fails(EINVAL);
    end.join().unwrap();
    [r, w].into_iter().for_each(close);
}

fn masks_for_the_wait() {
    let own = context(8);
    on_signal(SIGUSR1, nothing as *const () as usize, 0, 0);
    let old = block_signal(SIGUSR1);
    sc!(SYS_kill, pid(), SIGUSR1).is(0);
    let mut events = [Event::default(); 2];
    let mut wait = |mask: &[usize; 2], time: [i64; 2]| {
        let (into, time) = (events.as_mut_ptr(), time.as_ptr());
        sc!(SYS_IO_PGETEVENTS, own.0, 1, 2, into, time, mask.as_ptr())
    };
    let (none, all) = (0u64, bit(SIGUSR1));
    wait(&[&raw const none as usize, 4], [0, 0]).fails(EINVAL);
    wait(&[8, 8], [0, 0]).fails(EFAULT);
    // Blocked for the wait, it stays pending; let through, it ends the wait.
    wait(&[&raw const all as usize, 8], [0, 20_000_000]).is(0);
    wait(&[0, 0], [0, 20_000_000]).is(0);
    wait(&[&raw const none as usize, 8], [1000, 0]).fails(EINTR);
    sigmask(SIG_SETMASK, old);
    assert_eq!(offset_of!(Request, offset), 40);
    assert_eq!(size_of::<Request>(), 64);
}
