//! POSIX message queues (mq_overview(7), mq_open(2), mq_send(3), mq_notify(3), mq_getsetattr(2)).
//!
//! Names are the machine's: each test uses its process id in them, and removes what it made.

use crate::sys::*;
use crate::{sc, tests};

tests! { "mqueue":
    names_and_flags, attributes, order_and_sizes, who_may_use_what, a_waiter_gets_it_directly,
    waits_end, told_by_a_signal, told_once_to_one, told_by_a_thread, waiting_for_many,
    it_is_a_file, limits_of_a_user,
}

const PRIORITIES: usize = 32768;

/// A queue with a name of its own, which goes with it.
struct Queue {
    name: std::ffi::CString,
    fd: i32,
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = sc!(SYS_mq_unlink, self.name.as_ptr());
        let _ = sc!(SYS_close, self.fd);
    }
}

/// `struct mq_attr`: flags, messages, bytes of one, messages now.
fn asked(messages: i64, bytes: i64) -> [i64; 8] {
    [0, messages, bytes, 0, 0, 0, 0, 0]
}

fn name(tag: &str) -> std::ffi::CString {
    c(&format!("limen-{}-{tag}", pid()))
}

fn queue(flags: i32, messages: i64, bytes: i64) -> Queue {
    let name = name("queue");
    let attr = asked(messages, bytes);
    let flags = O_CREAT | O_EXCL | flags;
    let fd = sc!(SYS_mq_open, name.as_ptr(), flags, 0o600, attr.as_ptr()).fd();
    Queue { name, fd }
}

fn send(fd: i32, text: &[u8], priority: usize) -> Res {
    sc!(SYS_mq_timedsend, fd, text.as_ptr(), text.len(), priority, 0)
}

fn receive(fd: i32) -> Result<(Vec<u8>, u32), i32> {
    let mut text = vec![0u8; 8192];
    let mut priority = u32::MAX;
    let into = text.as_mut_ptr();
    let got = sc!(SYS_mq_timedreceive, fd, into, text.len(), &raw mut priority, 0)?;
    text.truncate(got);
    Ok((text, priority))
}

fn attr_of(fd: i32) -> [i64; 8] {
    let mut attr = [-1i64; 8];
    sc!(SYS_mq_getsetattr, fd, 0, attr.as_mut_ptr()).is(0);
    attr
}

/// `struct sigevent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    value: u64,
    signal: i32,
    notify: i32,
    rest: [u32; 12],
}

fn event(notify: i32, signal: i32, value: u64) -> Event {
    Event { value, signal, notify, rest: [0; 12] }
}

fn names_and_flags() {
    let q = queue(O_RDWR, 4, 16);
    let open = |name: &std::ffi::CStr, flags: i32| sc!(SYS_mq_open, name.as_ptr(), flags, 0o600, 0);
    open(&q.name, O_CREAT | O_EXCL | O_RDWR).fails(EEXIST);
    open(c"", O_CREAT | O_RDWR).fails(ENOENT);
    open(c"/leading", O_CREAT | O_RDWR).fails(EACCES);
    open(c"in/it", O_CREAT | O_RDWR).fails(EACCES);
    open(c".", O_RDONLY).fails(EACCES);
    open(c"..", O_RDONLY).fails(EACCES);
    open(&c(&"n".repeat(256)), O_RDONLY).fails(ENAMETOOLONG);
    open(&name("none"), O_RDWR).fails(ENOENT);
    open(&q.name, O_RDWR | O_WRONLY).fails(EINVAL);
    sc!(SYS_mq_open, 8, O_RDONLY, 0, 0).fails(EFAULT);
    sc!(SYS_mq_open, q.name.as_ptr(), O_RDONLY, 0, 8).fails(EFAULT);
    // A descriptor of a queue is closed by exec, asked for or not.
    let again = open(&q.name, O_RDONLY | O_NONBLOCK).fd();
    sc!(SYS_fcntl, again, F_GETFD).is(FD_CLOEXEC as usize);
    sc!(SYS_fcntl, again, F_GETFL).is((O_RDONLY | O_NONBLOCK) as usize);
    // Its other descriptors stay when the name goes.
    sc!(SYS_mq_unlink, q.name.as_ptr()).is(0);
    sc!(SYS_mq_unlink, q.name.as_ptr()).fails(ENOENT);
    sc!(SYS_mq_unlink, c"a/b".as_ptr()).fails(EACCES);
    send(q.fd, b"left", 0).is(0);
    assert_eq!(receive(again), Ok((b"left".to_vec(), 0)));
    close(again);
}

fn attributes() {
    let q = queue(O_RDWR | O_NONBLOCK, 3, 100);
    assert_eq!(attr_of(q.fd), [i64::from(O_NONBLOCK), 3, 100, 0, 0, 0, 0, 0]);
    send(q.fd, b"x", 0).is(0);
    assert_eq!(attr_of(q.fd)[3], 1);
    let mut new = [0i64, 99, 99, 99, 0, 0, 0, 0];
    let mut old = [0i64; 8];
    sc!(SYS_mq_getsetattr, q.fd, new.as_ptr(), old.as_mut_ptr()).is(0);
    assert_eq!(old[0], i64::from(O_NONBLOCK));
    assert_eq!(attr_of(q.fd), [0, 3, 100, 1, 0, 0, 0, 0]);
    new[0] = 1;
    sc!(SYS_mq_getsetattr, q.fd, new.as_ptr(), 0).fails(EINVAL);
    sc!(SYS_mq_getsetattr, q.fd, 8, 0).fails(EFAULT);
    sc!(SYS_mq_getsetattr, q.fd, 0, 8).fails(EFAULT);
    sc!(SYS_mq_getsetattr, -1i32, 0, 0).fails(EBADF);
    let (out, into) = pipe();
    sc!(SYS_mq_getsetattr, out, 0, 0).fails(EBADF);
    send(into, b"x", 0).fails(EBADF);
    sc!(SYS_mq_notify, into, 0).fails(EBADF);
    // Nothing asked: what is usual, within what may be at most.
    let usual = name("usual");
    let fd = sc!(SYS_mq_open, usual.as_ptr(), O_CREAT | O_RDWR, 0o600, 0).fd();
    sc!(SYS_mq_unlink, usual.as_ptr()).is(0);
    let setting = |name: &str| -> i64 {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/mqueue/{name}")).unwrap();
        text.trim().parse().unwrap()
    };
    assert_eq!(attr_of(fd)[1], setting("msg_default").min(setting("msg_max")));
    assert_eq!(attr_of(fd)[2], setting("msgsize_default").min(setting("msgsize_max")));
    assert!(setting("queues_max") > 0);
    for (messages, bytes) in [(0, 1), (1, 0), (-1, 8), (8, -1), (65537, 8), (1, (16 << 20) + 1)] {
        let attr = asked(messages, bytes);
        let fresh = name("odd");
        sc!(SYS_mq_open, fresh.as_ptr(), O_CREAT | O_RDWR, 0o600, attr.as_ptr()).fails(EINVAL);
        sc!(SYS_mq_open, fresh.as_ptr(), O_RDWR, 0, 0).fails(ENOENT);
    }
}

fn order_and_sizes() {
    let q = queue(O_RDWR | O_NONBLOCK, 4, 8);
    for (text, priority) in [("low", 1), ("high", 9), ("low2", 1), ("top", PRIORITIES - 1)] {
        send(q.fd, text.as_bytes(), priority).is(0);
    }
    send(q.fd, b"full", 0).fails(EAGAIN);
    send(q.fd, b"too long!", 0).fails(EMSGSIZE);
    send(q.fd, b"x", PRIORITIES).fails(EINVAL);
    let mut room = [0u8; 8];
    sc!(SYS_mq_timedreceive, q.fd, room.as_mut_ptr(), 7, 0, 0).fails(EMSGSIZE);
    let next = || receive(q.fd).map(|(text, _)| String::from_utf8(text).unwrap());
    assert_eq!(receive(q.fd), Ok((b"top".to_vec(), PRIORITIES as u32 - 1)));
    assert_eq!([next(), next(), next()].map(Result::unwrap), ["high", "low", "low2"]);
    assert_eq!(next(), Err(EAGAIN));
    // Nothing is a message, too.
    send(q.fd, b"", 5).is(0);
    assert_eq!(receive(q.fd), Ok((Vec::new(), 5)));
    // What cannot be read is not sent; what cannot be stored is lost.
    sc!(SYS_mq_timedsend, q.fd, 8, 8, 0, 0).fails(EFAULT);
    assert_eq!(attr_of(q.fd)[3], 0);
    send(q.fd, b"lost", 0).is(0);
    sc!(SYS_mq_timedreceive, q.fd, 8, 8, 0, 0).fails(EFAULT);
    assert_eq!(attr_of(q.fd)[3], 0);
}

fn who_may_use_what() {
    let q = queue(O_WRONLY | O_NONBLOCK, 2, 8);
    assert_eq!(receive(q.fd), Err(EBADF));
    let reader = sc!(SYS_mq_open, q.name.as_ptr(), O_RDONLY, 0, 0).fd();
    send(reader, b"x", 0).fails(EBADF);
    close(reader);
    let mine = q.name.clone();
    in_child(move || {
        sc!(SYS_setgroups, 0, 0).is(0);
        sc!(SYS_setresgid, 64321, 64321, 64321).is(0);
        sc!(SYS_setresuid, 64321, 64321, 64321).is(0);
        sc!(SYS_mq_open, mine.as_ptr(), O_RDONLY, 0, 0).fails(EACCES);
        // The directory is sticky.
        sc!(SYS_mq_unlink, mine.as_ptr()).fails(EPERM);
        // Beyond what everybody may have.
        let attr = asked(65536, 8);
        let own = name("own");
        sc!(SYS_mq_open, own.as_ptr(), O_CREAT | O_RDWR, 0o600, attr.as_ptr()).fails(EINVAL);
        let fd = sc!(SYS_mq_open, own.as_ptr(), O_CREAT | O_RDWR, 0o600, 0).fd();
        send(fd, b"x", 0).is(0);
        sc!(SYS_mq_unlink, own.as_ptr()).is(0);
    });
}

fn a_waiter_gets_it_directly() {
    let q = queue(O_RDWR, 1, 8);
    let words = new_shared();
    let fd = q.fd;
    // Two receivers, one after the other: the first that waited gets the first message.
    let receivers = [0, 1].map(|which| {
        let child = fork(|| {
            words[0].store(which + 1, std::sync::atomic::Ordering::SeqCst);
            let (text, _) = receive(fd).unwrap();
            i32::from(text != [b'a' + which as u8])
        });
        until_at_least(&words[0], which + 1);
        asleep(child);
        child
    });
    send(fd, b"a", 0).is(0);
    send(fd, b"b", 0).is(0);
    receivers.iter().for_each(|&child| wait_code(child, 0));
    // A sender that waits for room puts its message where one was taken.
    send(fd, b"first", 0).is(0);
    let sender = fork(|| {
        send(fd, b"second", 7).is(0);
        0
    });
    asleep(sender);
    assert_eq!(receive(fd), Ok((b"first".to_vec(), 0)));
    assert_eq!(attr_of(fd)[3], 1);
    wait_code(sender, 0);
    assert_eq!(receive(fd), Ok((b"second".to_vec(), 7)));
}

/// Waits until a process sleeps.
fn asleep(child: i32) {
    until(|| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"))
    });
}

fn waits_end() {
    let q = queue(O_RDWR, 1, 8);
    let mut room = [0u8; 8];
    let past = [1i64, 0];
    let at = room.as_mut_ptr();
    sc!(SYS_mq_timedreceive, q.fd, at, 8, 0, past.as_ptr()).fails(ETIMEDOUT);
    for odd in [[0i64, -1], [0, 1_000_000_000], [-1, 0]] {
        sc!(SYS_mq_timedreceive, q.fd, at, 8, 0, odd.as_ptr()).fails(EINVAL);
        sc!(SYS_mq_timedsend, q.fd, at, 1, 0, odd.as_ptr()).fails(EINVAL);
    }
    sc!(SYS_mq_timedsend, q.fd, at, 1, 0, 8).fails(EFAULT);
    let mut soon = [0i64; 2];
    sc!(SYS_clock_gettime, CLOCK_REALTIME, soon.as_mut_ptr()).is(0);
    soon[1] += 20_000_000;
    if soon[1] >= 1_000_000_000 {
        soon = [soon[0] + 1, soon[1] - 1_000_000_000];
    }
    sc!(SYS_mq_timedreceive, q.fd, at, 8, 0, soon.as_ptr()).fails(ETIMEDOUT);
    send(q.fd, b"x", 0).is(0);
    sc!(SYS_mq_timedsend, q.fd, at, 1, 0, past.as_ptr()).fails(ETIMEDOUT);
    // Time does not matter where there is no wait.
    sc!(SYS_mq_timedreceive, q.fd, at, 8, 0, past.as_ptr()).is(1);
    // A handler ends the wait.
    let fd = q.fd;
    let child = fork(|| {
        on_signal(SIGUSR1, nothing as *const () as usize, 0, 0);
        i32::from(receive(fd) != Err(EINTR))
    });
    asleep(child);
    sc!(SYS_kill, child, SIGUSR1).is(0);
    wait_code(child, 0);
    // Who was interrupted waits no more: the message is not for it.
    send(q.fd, b"later", 0).is(0);
    assert_eq!(receive(q.fd), Ok((b"later".to_vec(), 0)));
}

fn told_by_a_signal() {
    let q = queue(O_RDWR | O_NONBLOCK, 4, 8);
    let set = block_signal(SIGRTMIN() + 1);
    let wanted = event(SIGEV_SIGNAL, SIGRTMIN() + 1, 0x1122_3344_5566);
    sc!(SYS_mq_notify, q.fd, &raw const wanted).is(0);
    sc!(SYS_mq_notify, q.fd, &raw const wanted).fails(EBUSY);
    in_child(|| {
        sc!(SYS_mq_notify, q.fd, &raw const wanted).fails(EBUSY);
        // Of another's registration it takes nothing away.
        sc!(SYS_mq_notify, q.fd, 0).is(0);
        send(q.fd, b"x", 0).is(0);
    });
    let info = taken_signal(set, 0).expect("a signal");
    assert_eq!((info.signo, info.code), (SIGRTMIN() + 1, SI_MESGQ));
    assert_ne!(info.pid, pid());
    assert_eq!((info.uid, info.status as u32, info.rest[0]), (0, 0x3344_5566, 0x1122));
    // Once is enough: one registers again.
    let _ = receive(q.fd);
    send(q.fd, b"y", 0).is(0);
    assert!(taken_signal(set, 0).is_none());
    // A queue that has messages already tells nothing.
    sc!(SYS_mq_notify, q.fd, &raw const wanted).is(0);
    send(q.fd, b"z", 0).is(0);
    assert!(taken_signal(set, 0).is_none());
    let _ = (receive(q.fd), receive(q.fd));
    // Taken back.
    sc!(SYS_mq_notify, q.fd, 0).is(0);
    send(q.fd, b"z", 0).is(0);
    assert!(taken_signal(set, 0).is_none());
    for (kind, signal) in [(SIGEV_SIGNAL, 65), (SIGEV_SIGNAL, -1), (7, 1), (SIGEV_THREAD_ID, 1)] {
        let odd = event(kind, signal, 0);
        sc!(SYS_mq_notify, q.fd, &raw const odd).fails(EINVAL);
    }
    sc!(SYS_mq_notify, q.fd, 8).fails(EFAULT);
    sc!(SYS_mq_notify, -1i32, &raw const wanted).fails(EBADF);
}

fn told_once_to_one() {
    let q = queue(O_RDWR | O_NONBLOCK, 4, 8);
    let set = block_signal(SIGUSR2);
    let wanted = event(SIGEV_SIGNAL, SIGUSR2, 0);
    // The end of any of its descriptors ends the registration.
    let other = sc!(SYS_dup, q.fd).fd();
    sc!(SYS_mq_notify, q.fd, &raw const wanted).is(0);
    close(other);
    send(q.fd, b"x", 0).is(0);
    assert!(taken_signal(set, 0).is_none());
    let _ = receive(q.fd);
    // So does the end of the process.
    in_child(|| {
        let nothing = event(SIGEV_NONE, 0, 0);
        sc!(SYS_mq_notify, q.fd, &raw const nothing).is(0);
        sc!(SYS_mq_notify, q.fd, &raw const wanted).fails(EBUSY);
    });
    sc!(SYS_mq_notify, q.fd, &raw const wanted).is(0);
    // Who waits for the message gets it, and nobody is told.
    let reader = sc!(SYS_mq_open, q.name.as_ptr(), O_RDONLY, 0, 0).fd();
    let child = fork(|| i32::from(receive(reader).is_err()));
    asleep(child);
    send(q.fd, b"x", 0).is(0);
    wait_code(child, 0);
    assert!(taken_signal(set, 0).is_none());
    send(q.fd, b"x", 0).is(0);
    assert_eq!(taken_signal(set, 0).map(|info| info.pid), Some(pid()));
}

fn told_by_a_thread() {
    let q = queue(O_RDWR | O_NONBLOCK, 4, 8);
    // What a C library does: it is told by 32 bytes through a socket.
    let socket = sc!(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0).fd();
    let mut cookie = [7u8; 32];
    let wanted = event(SIGEV_THREAD, socket, cookie.as_ptr() as u64);
    let heard = |flags: i32| {
        let mut heard = [0u8; 64];
        let got = sc!(SYS_recvfrom, socket, heard.as_mut_ptr(), 64, flags, 0, 0);
        got.map(|got| heard[..got].to_vec())
    };
    sc!(SYS_mq_notify, q.fd, &raw const wanted).is(0);
    send(q.fd, b"x", 0).is(0);
    cookie[31] = 1;
    assert_eq!(heard(0), Ok(cookie.to_vec()));
    let _ = receive(q.fd);
    // A registration that is taken back is told, too.
    sc!(SYS_mq_notify, q.fd, &raw const wanted).is(0);
    sc!(SYS_mq_notify, q.fd, 0).is(0);
    cookie[31] = 2;
    assert_eq!(heard(0), Ok(cookie.to_vec()));
    assert_eq!(heard(MSG_DONTWAIT), Err(EAGAIN));
    let (out, _) = pipe();
    let unix = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    for (fd, cookie, error) in [
        (out, wanted.value, ENOTSOCK),
        (unix, wanted.value, EINVAL),
        (-1, wanted.value, EBADF),
        (socket, 8, EFAULT),
    ] {
        let odd = event(SIGEV_THREAD, fd, cookie);
        sc!(SYS_mq_notify, q.fd, &raw const odd).fails(error);
    }
}

fn waiting_for_many() {
    let q = queue(O_RDWR, 1, 8);
    let ready = || {
        let mut entry = pollfd { fd: q.fd, events: POLLIN | POLLOUT, revents: 0 };
        sc!(SYS_poll, &raw mut entry, 1, 0).must();
        entry.revents
    };
    assert_eq!(ready(), POLLOUT);
    let epoll = sc!(SYS_epoll_create1, 0).fd();
    let mut interest = epoll_event { events: EPOLLIN as u32, u64: 5 };
    sc!(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, q.fd, &raw mut interest).is(0);
    let mut found = epoll_event { events: 0, u64: 0 };
    sc!(SYS_epoll_wait, epoll, &raw mut found, 1, 0).is(0);
    in_child(|| send(q.fd, b"x", 0).is(0));
    sc!(SYS_epoll_wait, epoll, &raw mut found, 1, -1i32).is(1);
    assert_eq!(ready(), POLLIN);
    let _ = receive(q.fd);
    assert_eq!(ready(), POLLOUT);
}

fn it_is_a_file() {
    let q = queue(O_RDWR, 4, 8);
    // SAFETY: a structure of numbers.
    let mut stat: stat = unsafe { std::mem::zeroed() };
    sc!(SYS_fstat, q.fd, &raw mut stat).is(0);
    assert_eq!((stat.st_mode, stat.st_nlink, stat.st_size), (S_IFREG | 0o600, 1, 80));
    assert_eq!((stat.st_uid, stat.st_gid, stat.st_blocks), (0, 0, 0));
    let wanted = event(SIGEV_SIGNAL, SIGUSR1, 0);
    sc!(SYS_mq_notify, q.fd, &raw const wanted).is(0);
    let told =
        format!("QSIZE:0          NOTIFY:0     SIGNO:{SIGUSR1:<5} NOTIFY_PID:{:<6}\n", pid());
    assert_eq!(String::from_utf8(read(q.fd, 100)).unwrap(), told);
    assert_eq!(read(q.fd, 100), b"");
    // Messages that come below tell nobody.
    sc!(SYS_mq_notify, q.fd, 0).is(0);
    sc!(SYS_lseek, q.fd, 6, SEEK_SET).is(6);
    assert_eq!(read(q.fd, 3), b"0  ");
    sc!(SYS_write, q.fd, b"x".as_ptr(), 1).fails(EINVAL);
    mmap(0, 4096, PROT_READ, MAP_SHARED, q.fd, 0).fails(ENODEV);
    let link = std::fs::read_link(format!("/proc/self/fd/{}", q.fd)).unwrap();
    assert_eq!(link.to_str(), Some(format!("/{}", q.name.to_str().unwrap()).as_str()));
    // SAFETY: a structure of numbers.
    let mut fs: statfs = unsafe { std::mem::zeroed() };
    sc!(SYS_fstatfs, q.fd, &raw mut fs).is(0);
    assert_eq!(fs.f_type, 0x1980_0202);
    // Where the names are shown they can be listed and removed.
    let path = format!("/dev/mqueue/{}", q.name.to_str().unwrap());
    if std::path::Path::new(&path).exists() {
        let names = std::fs::read_dir("/dev/mqueue").unwrap();
        assert!(names.filter_map(Result::ok).any(|entry| entry.path().to_str() == Some(&path)));
        let by_path = open(&path, O_RDWR | O_NONBLOCK).fd();
        send(by_path, b"x", 0).is(0);
        assert_eq!(attr_of(q.fd)[3], 1);
        std::fs::rename(&path, format!("{path}2")).unwrap_err();
        std::fs::create_dir(format!("{path}3")).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        sc!(SYS_mq_unlink, q.name.as_ptr()).fails(ENOENT);
    }
}

fn limits_of_a_user() {
    in_child(|| {
        // Another user's count does not matter.
        sc!(SYS_setresuid, 64322, 64322, 64322).is(0);
        // What a queue counts (getrlimit(2)): 4 messages of 8 bytes.
        let one = 4u64 * 8 + 4 * 48 + 4 * 48;
        let limit = [2 * one + 1; 2];
        sc!(SYS_prlimit64, 0, RLIMIT_MSGQUEUE, limit.as_ptr(), 0).is(0);
        let attr = asked(4, 8);
        let make = |tag: &str| {
            let name = name(tag);
            let flags = O_CREAT | O_EXCL | O_RDWR;
            let made = sc!(SYS_mq_open, name.as_ptr(), flags, 0o600, attr.as_ptr());
            made.map(|fd| (fd as i32, name))
        };
        let (first, second) = (make("1").unwrap(), make("2").unwrap());
        assert_eq!(make("3").unwrap_err(), EMFILE);
        // A name that goes gives nothing back while a descriptor is left.
        sc!(SYS_mq_unlink, first.1.as_ptr()).is(0);
        assert_eq!(make("3").unwrap_err(), EMFILE);
        close(first.0);
        let third = make("3").unwrap();
        for (fd, name) in [second, third] {
            sc!(SYS_mq_unlink, name.as_ptr()).is(0);
            close(fd);
        }
        let none = [0u64; 2];
        sc!(SYS_prlimit64, 0, RLIMIT_NOFILE, none.as_ptr(), 0).is(0);
        sc!(SYS_mq_open, c"/bad".as_ptr(), O_RDONLY, 0, 0).fails(EMFILE);
    });
}
