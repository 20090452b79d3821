//! Rows about what waits in queues: messages, bytes, descriptors in flight, events, requests.

use libc::*;

use crate::cost::Cost;
use crate::sys::{at, call, close, create, good, open, path};
use crate::{MANY, Row, SOME};

pub const ROWS: &[Row] = &[
    Row { name: "mq_send_receive_among_messages", sizes: SOME, run: mq },
    Row { name: "msgrcv_by_type_among_messages", sizes: SOME, run: msgrcv },
    Row { name: "unix_send_recv_among_queued", sizes: SOME, run: unix_queued },
    Row { name: "udp_send_recv_among_queued", sizes: SOME, run: udp_queued },
    Row { name: "scm_rights_of_descriptors", sizes: [1, 10, 100, 250], run: rights_of },
    Row { name: "scm_rights_among_in_flight", sizes: SOME, run: rights_among },
    Row { name: "inotify_event_among_queued", sizes: MANY, run: inotify_among },
    Row { name: "inotify_read_of_events", sizes: MANY, run: inotify_read },
    Row { name: "epoll_wait_of_ready_files", sizes: MANY, run: epoll_ready },
    Row { name: "timer_expire_take_among_expired", sizes: MANY, run: timers_expired },
    Row { name: "signalfd_read_of_signals", sizes: [1, 10, 100, 1000], run: signalfd },
    Row { name: "aio_submit_take_of_reads", sizes: [1, 10, 100, 1000], run: aio },
];

fn mq(cost: &mut Cost, n: usize) {
    let name = c"growth";
    // struct mq_attr: flags, most messages, bytes of each, messages.
    let attributes = [0usize, n + 1, 8, 0, 0, 0, 0, 0];
    let flags = (O_CREAT | O_RDWR | O_EXCL) as usize;
    let queue = good(SYS_mq_open, &[at(name), flags, 0o600, attributes.as_ptr() as usize]);
    good(SYS_mq_unlink, &[at(name)]);
    let mut message = 1u64;
    let message = &raw mut message as usize;
    let send = |priority| good(SYS_mq_timedsend, &[queue, message, 8, priority, 0]);
    (0..n).for_each(|i| _ = send(i % 100));
    cost.repeat(|| {
        send(50);
        good(SYS_mq_timedreceive, &[queue, message, 8, 0, 0])
    });
}

fn msgrcv(cost: &mut Cost, n: usize) {
    let queue = good(SYS_msgget, &[0x10, IPC_CREAT as usize | 0o600]);
    let mut message = [1u64, 0];
    let message = message.as_mut_ptr();
    let send = |kind: u64| {
        // SAFETY: the array of this function; nobody else uses it now.
        unsafe { message.write(kind) };
        good(SYS_msgsnd, &[queue, message as usize, 1, 0])
    };
    (0..n).for_each(|_| _ = send(1));
    cost.repeat(|| {
        send(2);
        good(SYS_msgrcv, &[queue, message as usize, 1, 2, 0])
    });
    good(SYS_msgctl, &[queue, IPC_RMID as usize, 0]);
}

/// Both ends of a pair of stream sockets.
fn pair() -> [usize; 2] {
    let mut ends = [0i32; 2];
    let at = ends.as_mut_ptr() as usize;
    good(SYS_socketpair, &[AF_UNIX as usize, SOCK_STREAM as usize, 0, at]);
    let ends = ends.map(|fd| fd as usize);
    ends.into_iter().for_each(make_roomy);
    ends
}

/// Buffers that no row fills.
fn make_roomy(fd: usize) {
    let bytes = 64i32 << 20;
    for option in [SO_SNDBUFFORCE, SO_RCVBUFFORCE] {
        let (level, option) = (SOL_SOCKET as usize, option as usize);
        good(SYS_setsockopt, &[fd, level, option, &raw const bytes as usize, 4]);
    }
}

fn unix_queued(cost: &mut Cost, n: usize) {
    let [a, b] = pair();
    let mut byte = 1u8;
    let byte = &raw mut byte as usize;
    (0..n).for_each(|_| _ = good(SYS_write, &[a, byte, 1]));
    cost.repeat(|| {
        good(SYS_write, &[a, byte, 1]);
        good(SYS_read, &[b, byte, 1])
    });
}

fn udp_queued(cost: &mut Cost, n: usize) {
    let a = crate::net::udp(5000);
    let b = crate::net::udp(5001);
    [a, b].into_iter().for_each(make_roomy);
    crate::net::connect(a, 5001);
    let mut byte = 1u8;
    let byte = &raw mut byte as usize;
    (0..n).for_each(|_| _ = good(SYS_write, &[a, byte, 1]));
    cost.repeat(|| {
        good(SYS_write, &[a, byte, 1]);
        good(SYS_read, &[b, byte, 1])
    });
}

/// A message of a byte and descriptors (unix(7)), to be sent or to be received into.
struct Message {
    header: [usize; 7],
    vector: [usize; 2],
    control: Vec<u64>,
    byte: u8,
}

impl Message {
    fn new(fds: &[usize]) -> Box<Message> {
        // struct cmsghdr: length, level, kind; then the descriptors.
        let mut control = vec![0u64; 2 + fds.len().div_ceil(2)];
        control[0] = 16 + 4 * fds.len() as u64;
        control[1] = (SCM_RIGHTS as u64) << 32 | SOL_SOCKET as u64;
        for (i, &fd) in fds.iter().enumerate() {
            control[2 + i / 2] |= (fd as u64) << (32 * (i % 2));
        }
        let mut message = Box::new(Message { header: [0; 7], vector: [0; 2], control, byte: 1 });
        message.vector = [&raw mut message.byte as usize, 1];
        message.header[2] = message.vector.as_ptr() as usize;
        message.header[3] = 1;
        message.header[4] = message.control.as_ptr() as usize;
        message
    }

    /// The address of its struct msghdr, which a call may have changed.
    fn at(&mut self) -> usize {
        self.header[5] = self.control.len() * 8;
        self.header.as_ptr() as usize
    }

    /// Descriptors that it has.
    fn fds(&self) -> impl Iterator<Item = usize> {
        let count = (self.control[0] as usize).saturating_sub(16) / 4;
        (0..count).map(|i| (self.control[2 + i / 2] >> (32 * (i % 2)) & 0xffff_ffff) as usize)
    }
}

/// Sends descriptors, takes them and closes them.
fn send_take(cost: &mut Cost, [a, b]: [usize; 2], fds: &[usize]) {
    let (mut sent, mut taken) = (Message::new(fds), Message::new(fds));
    cost.repeat(|| {
        good(SYS_sendmsg, &[a, sent.at(), 0]);
        good(SYS_recvmsg, &[b, taken.at(), 0]);
        taken.fds().for_each(close);
    });
}

fn rights_of(cost: &mut Cost, n: usize) {
    let fd = open(c"/dev/null", O_RDONLY);
    send_take(cost, pair(), &vec![fd; n]);
}

fn rights_among(cost: &mut Cost, n: usize) {
    let (fd, [a, _b]) = (open(c"/dev/null", O_RDONLY), pair());
    let mut message = Message::new(&[fd]);
    (0..n).for_each(|_| _ = good(SYS_sendmsg, &[a, message.at(), 0]));
    send_take(cost, pair(), &[fd]);
}

/// Runs it with an inotify descriptor, and two files that it watches: events of one alone would
/// be one event.
fn watching_two(body: impl FnOnce(usize, [usize; 2])) {
    let inotify = good(SYS_inotify_init1, &[IN_NONBLOCK as usize]);
    let names = [path("watched-0"), path("watched-1")];
    let fds = [create(&names[0]), create(&names[1])];
    for name in &names {
        good(SYS_inotify_add_watch, &[inotify, at(name), IN_MODIFY as usize]);
    }
    body(inotify, fds);
    close(inotify);
    names.iter().for_each(|name| _ = good(SYS_unlink, &[at(name)]));
}

fn modify(fds: [usize; 2], i: usize) {
    let byte = 1u8;
    good(SYS_pwrite64, &[fds[i % 2], &raw const byte as usize, 1, 0]);
}

fn inotify_among(cost: &mut Cost, n: usize) {
    let mut event = [0u8; 16];
    let event = event.as_mut_ptr() as usize;
    watching_two(|inotify, fds| {
        (0..n).for_each(|i| modify(fds, i));
        let mut i = n;
        cost.repeat(|| {
            modify(fds, i);
            i += 1;
            good(SYS_read, &[inotify, event, 16])
        });
    });
}

fn inotify_read(cost: &mut Cost, n: usize) {
    let mut events = vec![0u8; 16 * n];
    let (address, size) = (events.as_mut_ptr() as usize, events.len());
    watching_two(|inotify, fds| {
        for _ in 0..cost.few() {
            (0..n).for_each(|i| modify(fds, i));
            let got = cost.time(|| good(SYS_read, &[inotify, address, size]));
            assert_eq!(got, size);
        }
    });
}

fn epoll_ready(cost: &mut Cost, n: usize) {
    let epoll = good(SYS_epoll_create1, &[0]);
    for _ in 0..n {
        let fd = good(SYS_eventfd2, &[1, 0]);
        let event = epoll_event { events: EPOLLIN as u32, u64: fd as u64 };
        let args = [epoll, EPOLL_CTL_ADD as usize, fd, &raw const event as usize];
        good(SYS_epoll_ctl, &args);
    }
    let mut events = vec![epoll_event { events: 0, u64: 0 }; n];
    let events = events.as_mut_ptr() as usize;
    cost.repeat(|| assert_eq!(good(SYS_epoll_wait, &[epoll, events, n, 0]), n));
}

/// Timers whose signals wait; one more expires, and its signal is taken.
fn timers_expired(cost: &mut Cost, n: usize) {
    const MANY_OF: usize = 40;
    const ONE: usize = 41;
    const PAST: usize = TIMER_ABSTIME as usize;
    let mask = 1u64 << (MANY_OF - 1) | 1 << (ONE - 1);
    good(SYS_rt_sigprocmask, &[SIG_BLOCK as usize, &raw const mask as usize, 0, 8]);
    let timer = |signal: usize| {
        let mut event = [0u64; 8];
        event[1] = signal as u64 | (SIGEV_SIGNAL as u64) << 32;
        let mut id = 0i32;
        let args = [CLOCK_MONOTONIC as usize, event.as_ptr() as usize, &raw mut id as usize];
        good(SYS_timer_create, &args);
        id as usize
    };
    // At the clock's first nanosecond, once: at once.
    let when = [0usize, 0, 0, 1];
    let expire = |timer: usize| good(SYS_timer_settime, &[timer, PAST, when.as_ptr() as usize, 0]);
    (0..n).for_each(|_| _ = expire(timer(MANY_OF)));
    let (one, wanted) = (timer(ONE), 1u64 << (ONE - 1));
    cost.repeat(|| {
        expire(one);
        assert_eq!(good(SYS_rt_sigtimedwait, &[&raw const wanted as usize, 0, 0, 8]), ONE);
    });
}

fn signalfd(cost: &mut Cost, n: usize) {
    const SIGNAL: usize = 40;
    let mask = 1u64 << (SIGNAL - 1);
    let mask = &raw const mask as usize;
    good(SYS_rt_sigprocmask, &[SIG_BLOCK as usize, mask, 0, 8]);
    let fd = good(SYS_signalfd4, &[usize::MAX, mask, 8, 0]);
    let mut info = [0i32; 32];
    info[2] = SI_QUEUE;
    let (pid, info) = (good(SYS_getpid, &[]), info.as_ptr() as usize);
    let mut taken = vec![0u8; 128 * n];
    let (address, size) = (taken.as_mut_ptr() as usize, taken.len());
    for _ in 0..cost.few() {
        (0..n).for_each(|_| _ = good(SYS_rt_sigqueueinfo, &[pid, SIGNAL, info]));
        assert_eq!(cost.time(|| good(SYS_read, &[fd, address, size])), size);
    }
}

fn aio(cost: &mut Cost, n: usize) {
    const READ: u64 = 0;
    let fd = create(&path("aio"));
    let mut page = [1u8; 4096];
    let page = page.as_mut_ptr() as usize;
    good(SYS_pwrite64, &[fd, page, 4096, 0]);
    let mut context = 0usize;
    good(SYS_io_setup, &[n, &raw mut context as usize]);
    // struct iocb: data, key and flags, kind and priority and descriptor, buffer, size, offset.
    let request = [0u64, 0, READ | (fd as u64) << 32, page as u64, 512, 0, 0, 0];
    let requests = vec![request; n];
    let pointers: Vec<usize> = requests.iter().map(|it| it.as_ptr() as usize).collect();
    let mut events = vec![[0u64; 4]; n];
    let (pointers, events) = (pointers.as_ptr() as usize, events.as_mut_ptr() as usize);
    cost.repeat(|| {
        assert_eq!(good(SYS_io_submit, &[context, n, pointers]), n);
        assert_eq!(good(SYS_io_getevents, &[context, n, n, events, 0]), n);
    });
    call(SYS_io_destroy, &[context]);
}
