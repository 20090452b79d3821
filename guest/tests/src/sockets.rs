//! AF_UNIX sockets in all three types, and pseudo-terminals.
//!
//! Manual pages: unix(7), socketpair(2), sendmsg(2), cmsg(3), pty(7), termios(3).

use crate::sys::*;
use crate::{sc, tests};

tests!("sockets":
    pair_stream, pair_dgram, pair_seqpacket, named_stream, abstract_names, dgram_addresses,
    bind_connect_errors, accept_flags, shutdown_halves, peer_close, sigpipe_and_nosignal,
    pass_descriptors, passed_descriptor_in_flight, pass_credentials, peercred,
    a_descriptor_of_the_sender, socket_options,
    peek_and_trunc, nonblocking_stream, connect_waits_for_backlog, big_stream_transfer,
    sendmmsg_recvmmsg, poll_states, unsupported_families, getsockname_forms,
    pty_basic, pty_line_discipline, pty_window_size, pty_control_characters, pty_hangup,
    pty_job_control, tables_of_sockets_and_locks, what_a_stream_gives_at_once,
    senders_of_a_stream, names_of_peers, groups_of_peers, peers_by_pidfd, ends_of_records,
    abstract_names_are_of_a_type,
);

fn pair(kind: i32) -> (i32, i32) {
    let mut p = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind, 0, p.as_mut_ptr()).is(0);
    (p[0], p[1])
}

fn pair_stream() {
    let (a, b) = pair(SOCK_STREAM);
    write(a, b"one");
    write(a, b"two");
    assert_eq!(read(b, 4), b"onet");
    assert_eq!(read(b, 9), b"wo");
    write(b, b"back");
    assert_eq!(read(a, 9), b"back");
    in_child(|| write(b, b"child"));
    assert_eq!(read(a, 9), b"child");
}

fn pair_dgram() {
    let (a, b) = pair(SOCK_DGRAM);
    write(a, b"one");
    sc!(SYS_write, a, c"".as_ptr(), 0).is(0);
    write(a, b"three");
    assert_eq!(read(b, 9), b"one");
    let mut buf = [0u8; 9];
    sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 9, 0, 0, 0).is(0);
    assert_eq!(read(b, 2), b"th", "the rest of a datagram is lost");
}

fn pair_seqpacket() {
    let (a, b) = pair(SOCK_SEQPACKET);
    write(a, b"one");
    write(a, b"two");
    assert_eq!(read(b, 9), b"one");
    assert_eq!(read(b, 9), b"two");
    close(a);
    assert_eq!(read(b, 9), b"");
}

fn addr(path: &[u8]) -> (Vec<u8>, usize) {
    let mut v = (AF_UNIX as u16).to_le_bytes().to_vec();
    v.extend_from_slice(path);
    let n = v.len();
    (v, n)
}

fn socket(kind: i32) -> i32 {
    sc!(SYS_socket, AF_UNIX, kind, 0).fd()
}

fn named(kind: i32, path: &[u8]) -> i32 {
    let s = socket(kind);
    let (a, n) = addr(path);
    sc!(SYS_bind, s, a.as_ptr(), n).is(0);
    s
}

fn connect(s: i32, path: &[u8]) -> Res {
    let (a, n) = addr(path);
    sc!(SYS_connect, s, a.as_ptr(), n)
}

fn serve(path: &[u8]) {
    let l = named(SOCK_STREAM, path);
    sc!(SYS_listen, l, 5).is(0);
    let child = fork(|| {
        let s = socket(SOCK_STREAM);
        connect(s, path).is(0);
        write(s, b"ping");
        i32::from(read(s, 9) != b"pong")
    });
    let s = sc!(SYS_accept, l, 0, 0).fd();
    assert_eq!(read(s, 9), b"ping");
    write(s, b"pong");
    wait_code(child, 0);
}

fn named_stream() {
    let path = format!("{}/s", dir());
    serve(path.as_bytes());
    let m = std::fs::metadata(&path).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(m.mode() & 0o170000, S_IFSOCK);
    connect(socket(SOCK_STREAM), b"/tmp/limen-none").fails(ENOENT);
    connect(socket(SOCK_STREAM), b"/proc/self/exe").fails(ECONNREFUSED);
    open(&path, O_RDONLY).fails(ENXIO);
}

fn abstract_names() {
    let name = format!("\0limen-{}\0odd", pid());
    serve(name.as_bytes());
    let again = named(SOCK_STREAM, format!("\0limen-{}\0odd2", pid()).as_bytes());
    let (a, n) = addr(format!("\0limen-{}\0odd2", pid()).as_bytes());
    sc!(SYS_bind, socket(SOCK_STREAM), a.as_ptr(), n).fails(EADDRINUSE);
    close(again);
    connect(socket(SOCK_STREAM), &a[2..]).fails(ECONNREFUSED);
    sc!(SYS_bind, socket(SOCK_STREAM), a.as_ptr(), n).is(0);
}

fn dgram_addresses() {
    let d = dir();
    let (pa, pb) = (format!("{d}/a\0"), format!("{d}/b\0"));
    let (a, b) = (named(SOCK_DGRAM, pa.as_bytes()), named(SOCK_DGRAM, pb.as_bytes()));
    let (to, n) = addr(pb.as_bytes());
    sc!(SYS_sendto, a, c"hi".as_ptr(), 2, 0, to.as_ptr(), n).is(2);
    let (mut buf, mut from, mut len) = ([0u8; 9], [0u8; 110], 110u32);
    let r = sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 9, 0, from.as_mut_ptr(), &raw mut len);
    r.is(2);
    assert_eq!(&from[2..len as usize], pa.as_bytes());
    sc!(SYS_sendto, a, c"hi".as_ptr(), 2, 0, 0, 0).fails(ENOTCONN);
    connect(a, pb.as_bytes()).is(0);
    write(a, b"x");
    close(b);
    sc!(SYS_write, a, c"y".as_ptr(), 1).fails(ECONNREFUSED);
}

fn bind_connect_errors() {
    let s = socket(SOCK_STREAM);
    let (a, n) = addr(format!("{}/s", dir()).as_bytes());
    sc!(SYS_bind, s, a.as_ptr(), n).is(0);
    let (other, m) = addr(format!("{}/t", dir()).as_bytes());
    sc!(SYS_bind, s, other.as_ptr(), m).fails(EINVAL);
    sc!(SYS_bind, socket(SOCK_STREAM), a.as_ptr(), n).fails(EADDRINUSE);
    sc!(SYS_bind, socket(SOCK_STREAM), a.as_ptr(), 1).fails(EINVAL);
    sc!(SYS_bind, socket(SOCK_STREAM), a.as_ptr(), 200).fails(EINVAL);
    sc!(SYS_connect, socket(SOCK_STREAM), a.as_ptr(), n).fails(ECONNREFUSED);
    sc!(SYS_accept, s, 0, 0).fails(EINVAL);
    sc!(SYS_listen, pipe().0, 1).fails(ENOTSOCK);
    let dg = named(SOCK_DGRAM, format!("{}/d", dir()).as_bytes());
    sc!(SYS_listen, dg, 1).fails(EOPNOTSUPP);
}

fn accept_flags() {
    let name = format!("\0limen-af-{}", pid());
    let l = named(SOCK_STREAM | SOCK_NONBLOCK, name.as_bytes());
    sc!(SYS_listen, l, 5).is(0);
    sc!(SYS_accept4, l, 0, 0, 0).fails(EAGAIN);
    connect(socket(SOCK_STREAM), name.as_bytes()).is(0);
    let s = sc!(SYS_accept4, l, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC).fd();
    sc!(SYS_fcntl, s, F_GETFD).is(1);
    assert_ne!(sc!(SYS_fcntl, s, F_GETFL).must() & O_NONBLOCK as usize, 0);
    sc!(SYS_accept4, l, 0, 0, 0x100).fails(EINVAL);
}

fn shutdown_halves() {
    let (a, b) = pair(SOCK_STREAM);
    write(a, b"last");
    sc!(SYS_shutdown, a, SHUT_WR).is(0);
    assert_eq!(read(b, 9), b"last");
    assert_eq!(read(b, 9), b"");
    write(b, b"still");
    assert_eq!(read(a, 9), b"still");
    on_signal(SIGPIPE, SIG_IGN, 0, 0);
    sc!(SYS_write, a, c"x".as_ptr(), 1).fails(EPIPE);
    sc!(SYS_shutdown, b, SHUT_RD).is(0);
    sc!(SYS_shutdown, a, 7).fails(EINVAL);
}

fn peer_close() {
    let (a, b) = pair(SOCK_STREAM);
    write(b, b"bye");
    close(b);
    assert_eq!(read(a, 9), b"bye");
    assert_eq!(read(a, 9), b"");
    // Closing with unread data resets the other side.
    let (a, b) = pair(SOCK_STREAM);
    write(a, b"unread");
    close(b);
    let mut x = 0u8;
    sc!(SYS_read, a, &raw mut x, 1).fails(ECONNRESET);
}

fn sigpipe_and_nosignal() {
    let (a, b) = pair(SOCK_STREAM);
    close(b);
    sc!(SYS_sendto, a, c"x".as_ptr(), 1, MSG_NOSIGNAL, 0, 0).fails(EPIPE);
    let child = fork(|| i32::from(sc!(SYS_sendto, a, c"x".as_ptr(), 1, 0, 0, 0).is_ok()));
    wait_signal(child, SIGPIPE);
}

#[repr(C)]
struct Msg {
    name: usize,
    namelen: usize,
    iov: usize,
    iovlen: usize,
    control: usize,
    controllen: usize,
    flags: usize,
}

fn send_control(s: i32, byte: u8, kind: i32, payload: &[u8]) -> Res {
    let mut c = vec![0u64; (16 + payload.len()).div_ceil(8)];
    c[0] = 16 + payload.len() as u64;
    c[1] = SOL_SOCKET as u64 | (kind as u64) << 32;
    // SAFETY: the vector has room for the payload behind its two words.
    unsafe {
        std::ptr::copy_nonoverlapping(
            payload.as_ptr(),
            c.as_mut_ptr().add(2).cast(),
            payload.len(),
        );
    }
    let iov = [&raw const byte as usize, 1];
    let m = Msg {
        name: 0,
        namelen: 0,
        iov: iov.as_ptr() as usize,
        iovlen: 1,
        control: c.as_ptr() as usize,
        controllen: 16 + payload.len(),
        flags: 0,
    };
    sc!(SYS_sendmsg, s, &raw const m, 0)
}

/// (bytes read, control words as i32, flags)
fn recv_control(s: i32, room: usize) -> (usize, Vec<i32>, i32) {
    let mut byte = 0u8;
    let iov = [&raw mut byte as usize, 1];
    let mut c = [0i32; 64];
    let mut m = Msg {
        name: 0,
        namelen: 0,
        iov: iov.as_ptr() as usize,
        iovlen: 1,
        control: c.as_mut_ptr() as usize,
        controllen: room,
        flags: 0,
    };
    let n = sc!(SYS_recvmsg, s, &raw mut m, 0).must();
    (n, c[..m.controllen / 4].to_vec(), m.flags as i32)
}

fn pass_descriptors() {
    let (a, b) = pair(SOCK_STREAM);
    let (r, w) = pipe();
    let fds: Vec<u8> = [r, w].iter().flat_map(|f| f.to_le_bytes()).collect();
    in_child(|| {
        send_control(a, 1, SCM_RIGHTS, &fds).is(1);
    });
    let (n, ctl, _) = recv_control(b, 256);
    assert_eq!((n, ctl[0], ctl[3]), (1, 24, SCM_RIGHTS));
    let (r2, w2) = (ctl[4], ctl[5]);
    assert!(r2 != r && w2 != w);
    write(w2, b"via");
    assert_eq!(read(r, 9), b"via");
    send_control(a, 1, SCM_RIGHTS, &9999i32.to_le_bytes()).fails(EBADF);
    // One that only names a place, too (open(2), O_PATH).
    let place = open("/", O_PATH).fd();
    send_control(a, 1, SCM_RIGHTS, &place.to_le_bytes()).is(1);
    let (_, ctl, _) = recv_control(b, 256);
    assert_eq!(sc!(SYS_fcntl, ctl[4], F_GETFL).must() as i32 & O_PATH, O_PATH);
    send_control(a, 1, SCM_RIGHTS, &r.to_le_bytes()).is(1);
    // No room for it: the descriptor is dropped, and the flag says so.
    let (_, ctl, flags) = recv_control(b, 0);
    assert!(ctl.is_empty() && flags & MSG_CTRUNC != 0);
}

fn passed_descriptor_in_flight() {
    let (a, b) = pair(SOCK_DGRAM);
    let (r, w) = pipe();
    send_control(a, 1, SCM_RIGHTS, &w.to_le_bytes()).is(1);
    close(w);
    let mut p = pollfd { fd: r, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, 0).is(0);
    // The socket goes with the descriptor in it: that was the last writer.
    close(a);
    close(b);
    sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
    assert_eq!(p.revents, POLLHUP);
    // A socket sent over itself, then dropped: the kernel must find this cycle in the end, and
    // must not crash if it does not.
    let (a, b) = pair(SOCK_STREAM);
    send_control(a, 1, SCM_RIGHTS, &b.to_le_bytes()).is(1);
    close(a);
    close(b);
}

fn pass_credentials() {
    let (a, b) = pair(SOCK_STREAM);
    let on = 1i32;
    sc!(SYS_setsockopt, b, SOL_SOCKET, SO_PASSCRED, &raw const on, 4).is(0);
    let child = fork(|| {
        write(a, b"x");
        0
    });
    let (_, ctl, _) = recv_control(b, 256);
    let (uid, gid) = (sc!(SYS_getuid).must() as i32, sc!(SYS_getgid).must() as i32);
    assert_eq!((ctl[0], ctl[3]), (28, SCM_CREDENTIALS));
    assert_eq!(ctl[4..7], [child, uid, gid]);
    wait_code(child, 0);
    let cred: Vec<u8> = [pid(), uid, gid].iter().flat_map(|v| v.to_le_bytes()).collect();
    send_control(a, 1, SCM_CREDENTIALS, &cred).is(1);
    assert_eq!(recv_control(b, 256).1[4], pid());
}

/// SO_PASSPIDFD (unix(7)): with each message comes a descriptor of its sender.
fn a_descriptor_of_the_sender() {
    const SO_PASSPIDFD: i32 = 76;
    const SCM_PIDFD: i32 = 4;
    let (a, b) = pair(SOCK_STREAM);
    let on = 1i32;
    assert_eq!(opt(b, SO_PASSPIDFD), Ok(0));
    sc!(SYS_setsockopt, b, SOL_SOCKET, SO_PASSPIDFD, &raw const on, 4).is(0);
    assert_eq!(opt(b, SO_PASSPIDFD), Ok(1));
    let (hold, release) = pipe();
    let child = fork(|| {
        write(a, b"x");
        read(hold, 1);
        0
    });
    let (_, ctl, _) = recv_control(b, 256);
    assert_eq!((ctl[0], ctl[3]), (20, SCM_PIDFD));
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", ctl[4])).unwrap();
    assert!(info.contains(&format!("Pid:\t{child}\n")), "{info}");
    sc!(SYS_fcntl, ctl[4], F_GETFD).is(FD_CLOEXEC as usize);
    // Behind the ids, if those are wanted, too.
    sc!(SYS_setsockopt, b, SOL_SOCKET, SO_PASSCRED, &raw const on, 4).is(0);
    write(a, b"y");
    let (_, ctl, _) = recv_control(b, 256);
    assert_eq!((ctl[0], ctl[3], ctl[4]), (28, SCM_CREDENTIALS, pid()));
    assert_eq!((ctl[8], ctl[11]), (20, SCM_PIDFD));
    // There is no room for it.
    write(a, b"z");
    let (_, ctl, flags) = recv_control(b, 34);
    assert_eq!((ctl[3], flags & MSG_CTRUNC), (SCM_CREDENTIALS, MSG_CTRUNC));
    write(release, b"g");
    wait_code(child, 0);
}

fn peercred() {
    let (a, _b) = pair(SOCK_STREAM);
    let (mut cred, mut len) = ([0i32; 3], 12u32);
    sc!(SYS_getsockopt, a, SOL_SOCKET, SO_PEERCRED, cred.as_mut_ptr(), &raw mut len).is(0);
    assert_eq!(cred[0], pid());
}

fn opt(s: i32, name: i32) -> Result<i32, i32> {
    let (mut v, mut len) = (-1i32, 4u32);
    sc!(SYS_getsockopt, s, SOL_SOCKET, name, &raw mut v, &raw mut len).map(|_| v)
}

fn socket_options() {
    let (a, _b) = pair(SOCK_SEQPACKET);
    assert_eq!(opt(a, SO_TYPE), Ok(SOCK_SEQPACKET));
    assert_eq!(opt(a, SO_DOMAIN), Ok(AF_UNIX));
    assert_eq!(opt(a, SO_ERROR), Ok(0));
    assert_eq!(opt(a, SO_ACCEPTCONN), Ok(0));
    assert!(opt(a, SO_SNDBUF).unwrap() >= 4096 && opt(a, SO_RCVBUF).unwrap() >= 2048);
    assert_eq!(opt(a, 9999), Err(ENOPROTOOPT));
    let tv = [0i64, 20_000];
    sc!(SYS_setsockopt, a, SOL_SOCKET, SO_RCVTIMEO, tv.as_ptr(), 16).is(0);
    let mut b = 0u8;
    sc!(SYS_read, a, &raw mut b, 1).fails(EAGAIN);
}

fn peek_and_trunc() {
    let (a, b) = pair(SOCK_DGRAM);
    write(a, b"message");
    let mut buf = [0u8; 4];
    sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 4, MSG_PEEK, 0, 0).is(4);
    sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 4, MSG_TRUNC, 0, 0).is(7);
    sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 4, MSG_DONTWAIT, 0, 0).fails(EAGAIN);
    let (a, b) = pair(SOCK_STREAM);
    write(a, b"ab");
    sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 4, MSG_PEEK, 0, 0).is(2);
    write(a, b"cd");
    sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 4, MSG_WAITALL, 0, 0).is(4);
    assert_eq!(&buf, b"abcd");
}

fn nonblocking_stream() {
    let (a, b) = pair(SOCK_STREAM | SOCK_NONBLOCK);
    let block = [5u8; 8192];
    let mut sent = 0;
    while let Ok(n) = sc!(SYS_write, a, block.as_ptr(), 8192) {
        sent += n;
    }
    assert!(sent >= 16384);
    let mut got = 0;
    let mut buf = [0u8; 8192];
    while let Ok(n) = sc!(SYS_read, b, buf.as_mut_ptr(), 8192) {
        got += n;
    }
    assert_eq!(sent, got);
}

fn connect_waits_for_backlog() {
    let name = format!("\0limen-bl-{}", pid());
    let l = named(SOCK_STREAM, name.as_bytes());
    sc!(SYS_listen, l, 0).is(0);
    connect(socket(SOCK_STREAM), name.as_bytes()).is(0);
    connect(socket(SOCK_STREAM | SOCK_NONBLOCK), name.as_bytes()).fails(EAGAIN);
    let child = fork(|| i32::from(connect(socket(SOCK_STREAM), name.as_bytes()).is_err()));
    close(sc!(SYS_accept, l, 0, 0).fd());
    close(sc!(SYS_accept, l, 0, 0).fd());
    wait_code(child, 0);
}

fn big_stream_transfer() {
    let (a, b) = pair(SOCK_STREAM);
    let data: Vec<u8> = (0..4usize << 20).map(|i| ((i * 13) >> 4) as u8).collect();
    let child = fork(|| {
        close(b);
        write(a, &data);
        0
    });
    close(a);
    let mut got = Vec::new();
    loop {
        let part = read(b, 65_537);
        if part.is_empty() {
            break;
        }
        got.extend(part);
    }
    assert!(got == data);
    wait_code(child, 0);
}

fn sendmmsg_recvmmsg() {
    let (a, b) = pair(SOCK_DGRAM);
    let mut bufs = [[0u8; 8]; 2];
    let iov: Vec<[usize; 2]> = bufs.iter_mut().map(|b| [b.as_mut_ptr() as usize, 3]).collect();
    let mut m = [[0usize; 8]; 2];
    for i in 0..2 {
        m[i][2] = iov[i].as_ptr() as usize;
        m[i][3] = 1;
    }
    sc!(SYS_sendmmsg, a, m.as_ptr(), 2, 0).is(2);
    sc!(SYS_recvmmsg, b, m.as_mut_ptr(), 2, MSG_DONTWAIT, 0).is(2);
    assert_eq!((m[0][7], m[1][7]), (3, 3));
}

fn poll_states() {
    let (a, b) = pair(SOCK_STREAM);
    let ev = |fd: i32| {
        let mut p = pollfd { fd, events: POLLIN | POLLOUT | POLLRDHUP, revents: 0 };
        sc!(SYS_poll, &raw mut p, 1, 0).must();
        p.revents
    };
    assert_eq!(ev(a), POLLOUT);
    write(b, b"x");
    assert_eq!(ev(a), POLLIN | POLLOUT);
    sc!(SYS_shutdown, b, SHUT_WR).is(0);
    assert_eq!(ev(a), POLLIN | POLLOUT | POLLRDHUP);
    close(b);
    assert_eq!(ev(a), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
}

fn unsupported_families() {
    sc!(SYS_socket, 9999, SOCK_STREAM, 0).fails(EAFNOSUPPORT);
    sc!(SYS_socket, AF_UNIX, 99, 0).fails(EINVAL);
    sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 77).fails(EPROTONOSUPPORT);
    let mut p = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, 8).fails(EFAULT);
    sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM | 0x4_0000, 0, p.as_mut_ptr()).fails(EINVAL);
}

fn getsockname_forms() {
    let name = format!("\0limen-gn-{}", pid());
    let s = named(SOCK_STREAM, name.as_bytes());
    let (mut b, mut n) = ([0u8; 110], 110u32);
    sc!(SYS_getsockname, s, b.as_mut_ptr(), &raw mut n).is(0);
    assert_eq!(&b[2..n as usize], name.as_bytes());
    let (p, _q) = pair(SOCK_STREAM);
    n = 110;
    sc!(SYS_getpeername, p, b.as_mut_ptr(), &raw mut n).is(0);
    assert_eq!(n, 2, "unnamed");
    sc!(SYS_getpeername, s, b.as_mut_ptr(), &raw mut n).fails(ENOTCONN);
    // Bound with the family alone: the kernel chooses an abstract name.
    let auto = named(SOCK_STREAM, b"");
    n = 110;
    sc!(SYS_getsockname, auto, b.as_mut_ptr(), &raw mut n).is(0);
    assert_eq!((n, b[2]), (8, 0));
}

fn pty() -> (i32, i32) {
    let m = open("/dev/ptmx", O_RDWR | O_NOCTTY).fd();
    let (mut n, zero) = (0u32, 0i32);
    sc!(SYS_ioctl, m, TIOCGPTN, &raw mut n).is(0);
    sc!(SYS_ioctl, m, TIOCSPTLCK, &raw const zero).is(0);
    (m, open(&format!("/dev/pts/{n}"), O_RDWR | O_NOCTTY).fd())
}

fn tty_flags(s: i32) -> [u32; 4] {
    let mut t = [0u32; 16];
    sc!(SYS_ioctl, s, TCGETS, t.as_mut_ptr()).is(0);
    [t[0], t[1], t[2], t[3]]
}

fn set_raw(s: i32) {
    let mut t = [0u8; 64];
    sc!(SYS_ioctl, s, TCGETS, t.as_mut_ptr()).is(0);
    let lflag = u32::from_le_bytes(t[12..16].try_into().unwrap());
    let raw = lflag & !(ICANON | ECHO | ISIG);
    t[12..16].copy_from_slice(&raw.to_le_bytes());
    t[4..8].fill(0);
    sc!(SYS_ioctl, s, TCSETS, t.as_ptr()).is(0);
}

fn pty_basic() {
    let (m, s) = pty();
    set_raw(s);
    write(m, b"in\x03\n");
    assert_eq!(read(s, 9), b"in\x03\n");
    write(s, b"out\n");
    assert_eq!(read(m, 9), b"out\n");
    sc!(SYS_ioctl, pipe().0, TCGETS, [0u8; 64].as_ptr()).fails(ENOTTY);
}

fn pty_line_discipline() {
    let (m, s) = pty();
    let [_, o, _, l] = tty_flags(s);
    assert_ne!(l & (ICANON | ECHO | ISIG), 0);
    assert_ne!(o & OPOST, 0);
    write(m, b"helxo\x7f\x7flo\n");
    assert_eq!(read(s, 99), b"hello\n", "erase works, and a line comes when it is whole");
    let mut echo = Vec::new();
    while !echo.ends_with(b"\r\n") {
        echo.extend(read(m, 99));
    }
    assert!(echo.starts_with(b"helxo\x08 \x08"), "{echo:?}");
    write(s, b"a\n");
    assert_eq!(read(m, 9), b"a\r\n");
    write(m, b"\x04");
    assert_eq!(read(s, 9), b"", "end of file");
    write(m, b"ab\x15cd\n");
    assert_eq!(read(s, 9), b"cd\n", "kill line");
}

fn pty_window_size() {
    let (m, s) = pty();
    let (set, mut got) = ([24u16, 80, 1, 2], [0u16; 4]);
    sc!(SYS_ioctl, m, TIOCSWINSZ, set.as_ptr()).is(0);
    sc!(SYS_ioctl, s, TIOCGWINSZ, got.as_mut_ptr()).is(0);
    assert_eq!(set, got);
}

fn session_on(s: i32) {
    sc!(SYS_setsid).must();
    sc!(SYS_ioctl, s, TIOCSCTTY, 0).is(0);
}

fn pty_control_characters() {
    for (byte, sig) in [(3u8, SIGINT), (28, SIGQUIT)] {
        let (m, s) = pty();
        let ready = new_shared();
        let child = fork(|| {
            session_on(s);
            ready[0].store(1, std::sync::atomic::Ordering::SeqCst);
            loop {
                let _ = sc!(SYS_pause);
            }
        });
        until_at_least(&ready[0], 1);
        write(m, &[byte]);
        wait_signal(child, sig);
    }
}

fn pty_hangup() {
    let (m, s) = pty();
    let ready = new_shared();
    let child = fork(|| {
        close(m);
        session_on(s);
        ready[0].store(1, std::sync::atomic::Ordering::SeqCst);
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    until_at_least(&ready[0], 1);
    close(m);
    wait_signal(child, SIGHUP);
    assert_eq!(sc!(SYS_read, s, &raw const ready[1], 1), Ok(0), "hung up: end of file");
    let (m, s) = pty();
    close(s);
    sc!(SYS_read, m, &raw const ready[1], 1).fails(EIO);
}

fn pty_job_control() {
    let (_m, s) = pty();
    in_child(|| {
        session_on(s);
        let me = pid();
        let mut fg = 0i32;
        sc!(SYS_ioctl, s, TIOCGPGRP, &raw mut fg).is(0);
        assert_eq!(fg, me);
        // A background job that reads is stopped by SIGTTIN.
        let job = fork(|| {
            sc!(SYS_setpgid, 0, 0).is(0);
            let mut b = 0u8;
            i32::from(sc!(SYS_read, s, &raw mut b, 1).is_ok())
        });
        let mut status = 0;
        sc!(SYS_wait4, job, &raw mut status, WUNTRACED, 0).is(job as usize);
        assert!(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTIN, "{}", describe(status));
        sc!(SYS_ioctl, s, TIOCSPGRP, &raw const job).is(0);
        sc!(SYS_ioctl, s, TIOCGPGRP, &raw mut fg).is(0);
        assert_eq!(fg, job);
        sc!(SYS_kill, job, SIGKILL).is(0);
        wait_signal(job, SIGKILL);
    });
}

/// /proc/net/tcp and /proc/net/unix name sockets by their inodes, /proc/locks names the locks.
fn tables_of_sockets_and_locks() {
    use std::os::fd::AsRawFd as _;
    let rows = |file: &str| -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(file).expect(file);
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let inode = |fd: i32| {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("a link");
        let text = link.to_string_lossy().into_owned();
        text.trim_start_matches("socket:[").trim_end_matches(']').to_owned()
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let near = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let tcp = rows("/proc/net/tcp");
    let row = |fd: i32| tcp.iter().find(|row| row.get(9) == Some(&inode(fd))).expect("a row");
    let listens = row(listener.as_raw_fd());
    assert_eq!(listens[1], format!("0100007F:{port:04X}"));
    assert_eq!(listens[2..4], ["00000000:0000", "0A"]);
    let connected = row(near.as_raw_fd());
    assert_eq!(connected[2..4], [format!("0100007F:{port:04X}"), "01".to_owned()]);

    let name = format!("limen-table-{}", pid());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            &name,
        )
        .expect("a name");
    let unix = std::os::unix::net::UnixListener::bind_addr(&address).expect("bound");
    let all = rows("/proc/net/unix");
    let row = all.iter().find(|row| row.get(6) == Some(&inode(unix.as_raw_fd()))).expect("a row");
    assert_eq!(row[3..6], ["00010000", "0001", "01"]);
    assert_eq!(row[7], format!("@{name}"));

    let path = format!("/tmp/{name}");
    let file = std::fs::File::create(&path).expect("a file");
    sc!(SYS_flock, file.as_raw_fd(), LOCK_EX).is(0);
    let number = std::os::unix::fs::MetadataExt::ino(&file.metadata().expect("metadata"));
    let is_ours = |row: &&Vec<String>| row[5].ends_with(&format!(":{number}"));
    let lock = rows("/proc/locks").iter().find(is_ours).expect("a row").clone();
    assert_eq!(lock[1..4], ["FLOCK", "ADVISORY", "WRITE"]);
    assert_eq!(lock[6..8], ["0", "EOF"]);
    std::fs::remove_file(path).expect("removed");
}

fn what_a_stream_gives_at_once() {
    use crate::options::receive;
    let (a, b) = pair(SOCK_STREAM);
    let fd = 0i32.to_le_bytes();
    write(a, b"plain");
    send_control(a, b'1', SCM_RIGHTS, &fd).is(1);
    write(a, b"more");
    send_control(a, b'2', SCM_RIGHTS, &fd).is(1);
    // Up to the first descriptors, and no further.
    let (data, beside) = receive(b);
    assert_eq!((&data[..], beside.len(), beside[0].1), (&b"plain1"[..], 1, SCM_RIGHTS));
    let (data, beside) = receive(b);
    assert_eq!((&data[..], beside.len()), (&b"more2"[..], 1));
}

fn senders_of_a_stream() {
    use crate::options::receive;
    let (a, b) = pair(SOCK_STREAM);
    let on = 1i32;
    sc!(SYS_setsockopt, b, SOL_SOCKET, SO_PASSCRED, &raw const on, 4).is(0);
    write(a, b"one");
    write(a, b"two");
    in_child(|| write(a, b"three"));
    // What one process sent comes together, what another one sent comes apart.
    let (data, beside) = receive(b);
    assert_eq!((&data[..], beside[0].1), (&b"onetwo"[..], SCM_CREDENTIALS));
    assert_eq!(beside[0].2[..4], pid().to_le_bytes());
    // The sender comes with each part of a message.
    let mut buf = [0u8; 2];
    sc!(SYS_recvfrom, b, buf.as_mut_ptr(), 2, 0, 0, 0).is(2);
    let (data, beside) = receive(b);
    assert_eq!(data, b"ree");
    assert_ne!(beside[0].2[..4], 0i32.to_le_bytes());
}

fn names_of_peers() {
    for kind in [SOCK_STREAM, SOCK_SEQPACKET] {
        let server = format!("\0limen-{}-{kind}-server", pid());
        let client = format!("\0limen-{}-{kind}-client", pid());
        let l = named(kind, server.as_bytes());
        sc!(SYS_listen, l, 1).is(0);
        let c = named(kind, client.as_bytes());
        connect(c, server.as_bytes()).is(0);
        let s = sc!(SYS_accept, l, 0, 0).fd();
        let from = |s: i32| {
            let (mut byte, mut name, mut n) = (0u8, [0u8; 110], 110u32);
            sc!(SYS_recvfrom, s, &raw mut byte, 1, 0, name.as_mut_ptr(), &raw mut n).is(1);
            name[2..n as usize].to_vec()
        };
        write(c, b"x");
        assert_eq!(from(s), client.as_bytes());
        write(s, b"x");
        assert_eq!(from(c), server.as_bytes());
        // Who has no name is not told.
        let (a, b) = pair(kind);
        write(a, b"x");
        let (mut byte, mut name, mut n) = (0u8, [0u8; 110], 110u32);
        sc!(SYS_recvfrom, b, &raw mut byte, 1, 0, name.as_mut_ptr(), &raw mut n).is(1);
        assert_eq!(n, 0);
    }
}

fn groups_of_peers() {
    let groups = |s: i32, room: u32| {
        let (mut list, mut n) = ([0u32; 64], room);
        let result =
            sc!(SYS_getsockopt, s, SOL_SOCKET, SO_PEERGROUPS, list.as_mut_ptr(), &raw mut n);
        (result, list[..n as usize / 4].to_vec(), n)
    };
    in_child(|| {
        let mine = [7u32, 9];
        sc!(SYS_setgroups, 2, mine.as_ptr()).is(0);
        let (a, _b) = pair(SOCK_STREAM);
        sc!(SYS_setgroups, 0, 0).is(0);
        assert_eq!(groups(a, 256), (Ok(0), vec![7, 9], 8), "as they were then");
        let (result, _, n) = groups(a, 4);
        assert_eq!((result, n), (Err(ERANGE), 8));
        assert_eq!(groups(socket(SOCK_STREAM), 256).0, Err(ENODATA));
    });
}

fn ends_of_records() {
    let (a, b) = pair(SOCK_SEQPACKET);
    sc!(SYS_sendto, a, c"x".as_ptr(), 1, MSG_EOR, 0, 0).is(1);
    let (n, _, flags) = recv_control(b, 0);
    assert_eq!((n, flags & MSG_EOR), (1, 0), "every message is one; Linux does not say so");
}

/// SO_PEERPIDFD (unix(7)): a descriptor of the peer's process, as it was when the pair was made.
fn peers_by_pidfd() {
    const SO_PEERPIDFD: i32 = 77;
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair.as_mut_ptr()).is(0);
    let maker = pid();
    in_child(|| {
        let (mut fd, mut len) = (-1i32, 4u32);
        let option = (SOL_SOCKET, SO_PEERPIDFD);
        sc!(SYS_getsockopt, pair[1], option.0, option.1, &raw mut fd, &raw mut len).is(0);
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("fdinfo");
        assert!(info.contains(&format!("Pid:\t{maker}\n")), "{info}");
        assert_eq!(sc!(SYS_fcntl, fd, F_GETFD).must() as i32, FD_CLOEXEC);
    });
    let alone = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    let (mut fd, mut len) = (-1i32, 4u32);
    sc!(SYS_getsockopt, alone, SOL_SOCKET, SO_PEERPIDFD, &raw mut fd, &raw mut len).fails(ENODATA);
}

/// Sockets of different types may have the same abstract name, and are found by both.
fn abstract_names_are_of_a_type() {
    let mut name = (AF_UNIX as u16).to_ne_bytes().to_vec();
    name.extend_from_slice(format!("\0limen type {} {}", pid(), test_number()).as_bytes());
    let socket = |kind: i32| sc!(SYS_socket, AF_UNIX, kind, 0).fd();
    let kinds = [SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM];
    let bound = kinds.map(|kind| {
        let connect = || sc!(SYS_connect, socket(kind), name.as_ptr(), name.len());
        connect().fails(ECONNREFUSED);
        let server = socket(kind);
        sc!(SYS_bind, server, name.as_ptr(), name.len()).is(0);
        sc!(SYS_bind, socket(kind), name.as_ptr(), name.len()).fails(EADDRINUSE);
        if kind != SOCK_DGRAM {
            sc!(SYS_listen, server, 4).is(0);
        }
        connect().is(0);
        server
    });
    close(bound[0]);
    let connect = |kind: i32| sc!(SYS_connect, socket(kind), name.as_ptr(), name.len());
    connect(SOCK_STREAM).fails(ECONNREFUSED);
    connect(SOCK_SEQPACKET).is(0);
    connect(SOCK_DGRAM).is(0);
}
