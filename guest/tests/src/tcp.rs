//! TCP as programs see it, over the loopback addresses: states, ends, errors, ports.
//!
//! Manual pages: tcp(7), ip(7), ipv6(7), socket(7), connect(2), send(2), recv(2), shutdown(2).

use crate::sys::*;
use crate::{sc, tests};

tests!("tcp":
    first_send_after_close, much_sent_after_close, connect_without_waiting, connect_refused,
    backlog_counts, bind_conflicts, accepted_connections_hold_the_port, time_wait_is_seen, resets,
    truncation_discards,
    connected_with_itself, more_and_cork, cork_ends_by_itself, mapped_addresses, v6_only,
    urgent_data, urgent_data_inline, shutdown_matrix, poll_of_each_state, disconnect,
    receive_low_water, peek_and_wait_for_all, information, congestion_control, deferred_accept,
    listener_shut_down, send_before_connected, table_of_connections, bulk_both_ways,
    many_connections_in_a_row,
);

/// An address of 127.0.0.1.
pub fn v4(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: in_addr { s_addr: 0x7f00_0001u32.to_be() },
        sin_zero: [0; 8],
    }
}

/// An address of IPv6.
pub fn v6(ip: [u8; 16], port: u16) -> sockaddr_in6 {
    sockaddr_in6 {
        sin6_family: AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: in6_addr { s6_addr: ip },
        sin6_scope_id: 0,
    }
}

const ANY6: [u8; 16] = [0; 16];
const LOOPBACK6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

fn tcp() -> i32 {
    sc!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0).fd()
}

fn tcp6() -> i32 {
    sc!(SYS_socket, AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0).fd()
}

/// bind(2) to a port of 127.0.0.1.
pub fn bind(s: i32, port: u16) -> Res {
    let a = v4(port);
    sc!(SYS_bind, s, &raw const a, size_of::<sockaddr_in>())
}

/// connect(2) to a port of 127.0.0.1.
pub fn connect(s: i32, port: u16) -> Res {
    let a = v4(port);
    sc!(SYS_connect, s, &raw const a, size_of::<sockaddr_in>())
}

fn bind6(s: i32, ip: [u8; 16], port: u16) -> Res {
    let a = v6(ip, port);
    sc!(SYS_bind, s, &raw const a, size_of::<sockaddr_in6>())
}

fn connect6(s: i32, ip: [u8; 16], port: u16) -> Res {
    let a = v6(ip, port);
    sc!(SYS_connect, s, &raw const a, size_of::<sockaddr_in6>())
}

/// The port a socket is bound to.
pub fn port(s: i32) -> u16 {
    let mut a = [0u16; 14];
    let mut n = 28u32;
    sc!(SYS_getsockname, s, a.as_mut_ptr(), &raw mut n).is(0);
    u16::from_be(a[1])
}

fn listener(backlog: i32) -> (i32, u16) {
    let l = tcp();
    bind(l, 0).is(0);
    sc!(SYS_listen, l, backlog).is(0);
    (l, port(l))
}

fn accept(l: i32) -> i32 {
    sc!(SYS_accept4, l, 0, 0, SOCK_CLOEXEC).fd()
}

/// A connection: the side that asked and the side that accepted, and the port of the latter.
fn pair_and_port() -> (i32, i32, u16) {
    let (l, p) = listener(5);
    let c = tcp();
    connect(c, p).is(0);
    let s = accept(l);
    close(l);
    (c, s, p)
}

fn pair() -> (i32, i32) {
    let (c, s, _) = pair_and_port();
    (c, s)
}

/// setsockopt(2) with a number.
pub fn set(s: i32, level: i32, name: i32, value: i32) -> Res {
    sc!(SYS_setsockopt, s, level, name, &raw const value, 4)
}

/// getsockopt(2) of a number.
pub fn get(s: i32, level: i32, name: i32) -> i32 {
    let (mut value, mut n) = (0i32, 4u32);
    sc!(SYS_getsockopt, s, level, name, &raw mut value, &raw mut n).is(0);
    value
}

fn pending(s: i32) -> i32 {
    get(s, SOL_SOCKET, SO_ERROR)
}

fn send(s: i32, data: &[u8], flags: i32) -> Res {
    sc!(SYS_sendto, s, data.as_ptr(), data.len(), flags, 0, 0)
}

fn recv(s: i32, n: usize, flags: i32) -> Result<Vec<u8>, i32> {
    let mut buf = vec![0; n];
    let got = sc!(SYS_recvfrom, s, buf.as_mut_ptr(), n, flags, 0, 0)?;
    buf.truncate(got);
    Ok(buf)
}

fn poll_within(s: i32, ms: i32) -> i32 {
    let all = POLLIN | POLLPRI | POLLOUT | POLLRDHUP;
    let mut p = pollfd { fd: s, events: all, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, ms).must();
    i32::from(p.revents)
}

fn poll(s: i32) -> i32 {
    poll_within(s, 0)
}

/// Waits until poll tells of at least these events.
#[track_caller]
fn poll_until(s: i32, wanted: i32) {
    for _ in 0..2000 {
        if poll(s) & wanted == wanted {
            return;
        }
        nap(1);
    }
    panic!("poll gives {:#x}, never {wanted:#x}", poll(s));
}

fn shutdown(s: i32, how: i32) -> Res {
    sc!(SYS_shutdown, s, how)
}

fn nonblocking(s: i32) {
    sc!(SYS_fcntl, s, F_SETFL, O_NONBLOCK | O_RDWR).is(0);
}

fn linger(s: i32, seconds: i32) {
    let value = [1, seconds];
    sc!(SYS_setsockopt, s, SOL_SOCKET, SO_LINGER, value.as_ptr(), 8).is(0);
}

/// Who sends much to an end that has closed is told so by how much went: what the buffer held, and
/// not all of it, however much that is.
fn much_sent_after_close() {
    const PIECE: usize = 1 << 20;
    let piece = vec![1u8; PIECE];
    let vector: Vec<[usize; 2]> = vec![[piece.as_ptr() as usize, PIECE]; 1024];
    for flags in [0, O_NONBLOCK] {
        let (c, s) = pair();
        sc!(SYS_fcntl, c, F_SETFL, flags | O_RDWR).is(0);
        close(s);
        poll_until(c, i32::from(POLLRDHUP));
        let sent = sc!(SYS_writev, c, vector.as_ptr(), vector.len()).expect("the first goes");
        assert!((1..64 << 20).contains(&sent), "{sent} bytes went to nobody");
        poll_until(c, i32::from(POLLHUP));
        send(c, b"two", MSG_NOSIGNAL).fails(EPIPE);
        close(c);
    }
    // Nothing goes from memory that is not there.
    let (c, s) = pair();
    close(s);
    poll_until(c, i32::from(POLLRDHUP));
    sc!(SYS_write, c, 8, 100).fails(EFAULT);
    send(c, b"one", MSG_NOSIGNAL).is(3);
}

fn first_send_after_close() {
    let (c, s) = pair();
    close(s);
    poll_until(c, i32::from(POLLRDHUP));
    send(c, b"one", MSG_NOSIGNAL).is(3);
    poll_until(c, i32::from(POLLHUP));
    send(c, b"two", MSG_NOSIGNAL).fails(EPIPE);
    assert_eq!(recv(c, 9, 0), Ok(vec![]), "the end came before the reset");
    let (c, s) = pair();
    close(s);
    poll_until(c, i32::from(POLLRDHUP));
    write(c, b"one");
    poll_until(c, i32::from(POLLHUP));
    let child = fork(|| {
        let _ = sc!(SYS_write, c, c"two".as_ptr(), 3);
        7
    });
    wait_signal(child, SIGPIPE);
}

fn connect_without_waiting() {
    let (l, p) = listener(5);
    let c = tcp();
    nonblocking(c);
    connect(c, p).fails(EINPROGRESS);
    poll_until(c, i32::from(POLLOUT));
    assert_eq!(pending(c), 0);
    connect(c, p).is(0);
    connect(c, p).fails(EISCONN);
    let s = accept(l);
    write(c, b"x");
    assert_eq!(recv(s, 9, 0), Ok(b"x".to_vec()));
}

fn connect_refused() {
    let (l, p) = listener(5);
    close(l);
    connect(tcp(), p).fails(ECONNREFUSED);
    let c = tcp();
    nonblocking(c);
    connect(c, p).fails(EINPROGRESS);
    let all = POLLERR | POLLHUP | POLLIN | POLLOUT | POLLRDHUP;
    poll_until(c, i32::from(all));
    assert_eq!(pending(c), ECONNREFUSED);
    assert_eq!(pending(c), 0);
    assert_eq!(recv(c, 1, 0), Ok(vec![]), "a socket that failed is at its end");
    connect(c, p).fails(ECONNABORTED);
    connect(c, p).fails(EINPROGRESS);
    poll_until(c, i32::from(POLLERR));
    connect(c, p).fails(ECONNREFUSED);
    // A socket that failed may try again.
    let (l, p) = listener(1);
    connect(c, p).fails(EINPROGRESS);
    poll_until(c, i32::from(POLLOUT));
    connect(c, p).is(0);
    close(l);
}

fn backlog_counts() {
    let (l, p) = listener(1);
    let clients: Vec<i32> = (0..4).map(|_| tcp()).collect();
    for &c in &clients {
        nonblocking(c);
        connect(c, p).fails(EINPROGRESS);
    }
    for &c in &clients[..2] {
        poll_until(c, i32::from(POLLOUT));
    }
    nap(100);
    assert_eq!(poll(clients[2]), 0, "one more than the backlog was taken");
    connect(clients[3], p).fails(EALREADY);
    send(clients[3], b"x", MSG_NOSIGNAL).fails(EAGAIN);
    assert_eq!(recv(clients[3], 1, 0), Err(EAGAIN));
    accept(l);
    accept(l);
    for &c in &clients[2..] {
        let mut tries = 0;
        while poll_within(c, 100) & i32::from(POLLOUT) == 0 {
            tries += 1;
            assert!(tries < 100, "never connected");
        }
    }
}

fn bind_conflicts() {
    let (l, p) = listener(5);
    bind(tcp(), p).fails(EADDRINUSE);
    let other = tcp();
    set(other, SOL_SOCKET, SO_REUSEADDR, 1).is(0);
    bind(other, p).fails(EADDRINUSE);
    close(l);
    bind(tcp(), p).is(0);
    // Two that do not listen may share, if both say so.
    let (a, b) = (tcp(), tcp());
    set(a, SOL_SOCKET, SO_REUSEADDR, 1).is(0);
    bind(a, 0).is(0);
    bind(b, port(a)).fails(EADDRINUSE);
    set(b, SOL_SOCKET, SO_REUSEADDR, 1).is(0);
    bind(b, port(a)).is(0);
    bind(b, 0).fails(EINVAL);
    // Only one of them can listen then.
    sc!(SYS_listen, a, 1).is(0);
    sc!(SYS_listen, b, 1).fails(EADDRINUSE);
    // With SO_REUSEPORT both can.
    let (a, b) = (tcp(), tcp());
    for s in [a, b] {
        set(s, SOL_SOCKET, SO_REUSEPORT, 1).is(0);
        bind(s, if s == a { 0 } else { port(a) }).is(0);
        sc!(SYS_listen, s, 1).is(0);
    }
    // A port that a connection chose is not free.
    let (c, _s) = pair();
    bind(tcp(), port(c)).fails(EADDRINUSE);
}

fn accepted_connections_hold_the_port() {
    let (c, s, p) = pair_and_port();
    bind(tcp(), p).fails(EADDRINUSE);
    let again = tcp();
    set(again, SOL_SOCKET, SO_REUSEADDR, 1).is(0);
    bind(again, p).fails(EADDRINUSE);
    set(s, SOL_SOCKET, SO_REUSEADDR, 1).is(0);
    bind(again, p).is(0);
    write(c, b"x");
    assert_eq!(recv(s, 9, 0), Ok(b"x".to_vec()));
}

/// Rows of /proc/net/tcp with this port: state, inode and timer.
fn rows(p: u16) -> Vec<(u8, u64, u8)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_it = |row: &&str| row.split_whitespace().nth(1).unwrap().ends_with(&format!(":{p:04X}"));
    let row = |row: &str| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let hex = |word: &str| u8::from_str_radix(word, 16).unwrap();
        (hex(words[3]), words[9].parse().unwrap(), hex(&words[5][..2]))
    };
    table.lines().skip(1).filter(is_it).map(row).collect()
}

#[track_caller]
fn rows_become(p: u16, states: &[u8]) {
    let mut seen = vec![];
    for _ in 0..2000 {
        seen = rows(p).iter().map(|row| row.0).collect();
        if seen == states {
            return;
        }
        nap(1);
    }
    panic!("port {p}: states {seen:?}, expected {states:?}");
}

fn time_wait_is_seen() {
    // Who closes first waits.
    let (c, s, p) = pair_and_port();
    let own = port(c);
    rows_become(own, &[1]);
    close(s);
    rows_become(p, &[5]);
    rows_become(own, &[8]);
    close(c);
    rows_become(p, &[6]);
    rows_become(own, &[]);
    let row = rows(p)[0];
    assert_eq!((row.1, row.2), (0, 3), "a waiting end has a timer and no inode");
    bind(tcp(), p).fails(EADDRINUSE);
    let again = tcp();
    set(again, SOL_SOCKET, SO_REUSEADDR, 1).is(0);
    bind(again, p).fails(EADDRINUSE);
    // Both had to allow it.
    let l = tcp();
    set(l, SOL_SOCKET, SO_REUSEADDR, 1).is(0);
    bind(l, 0).is(0);
    sc!(SYS_listen, l, 1).is(0);
    let c = tcp();
    connect(c, port(l)).is(0);
    let s = accept(l);
    let p = port(l);
    for fd in [l, s, c] {
        close(fd);
    }
    rows_become(p, &[6]);
    bind(again, p).is(0);
}

fn resets() {
    // SO_LINGER of 0.
    let (c, s, p) = pair_and_port();
    write(s, b"before");
    linger(s, 0);
    close(s);
    poll_until(c, i32::from(POLLHUP | POLLERR));
    assert_eq!(recv(c, 9, 0), Ok(b"before".to_vec()), "what came before the reset is there");
    assert_eq!(recv(c, 9, 0), Err(ECONNRESET));
    assert_eq!(recv(c, 9, 0), Ok(vec![]));
    send(c, b"x", MSG_NOSIGNAL).fails(EPIPE);
    rows_become(p, &[]);
    // Data that was not received.
    let (c, s) = pair();
    write(c, b"never read");
    poll_until(s, i32::from(POLLIN));
    close(s);
    poll_until(c, i32::from(POLLERR));
    send(c, b"x", MSG_NOSIGNAL).fails(ECONNRESET);
    send(c, b"x", MSG_NOSIGNAL).fails(EPIPE);
    // Who was not accepted.
    let (l, p) = listener(5);
    let c = tcp();
    connect(c, p).is(0);
    close(l);
    poll_until(c, i32::from(POLLERR));
    assert_eq!(pending(c), ECONNRESET);
    // A receiver that waits.
    let (c, s) = pair();
    let child = fork(|| {
        close(s);
        i32::from(recv(c, 1, 0) != Err(ECONNRESET))
    });
    nap(50);
    linger(s, 0);
    close(s);
    wait_code(child, 0);
}

fn truncation_discards() {
    let (c, s) = pair();
    write(c, b"abcdef");
    poll_until(s, i32::from(POLLIN));
    let mut buf = *b"......";
    sc!(SYS_recvfrom, s, buf.as_mut_ptr(), 4, MSG_TRUNC, 0, 0).is(4);
    assert_eq!(&buf, b"......", "MSG_TRUNC copies nothing");
    assert_eq!(recv(s, 9, 0), Ok(b"ef".to_vec()));
    write(c, b"gh");
    poll_until(s, i32::from(POLLIN));
    sc!(SYS_recvfrom, s, 0, 9, MSG_TRUNC, 0, 0).is(2);
}

fn connected_with_itself() {
    let s = tcp();
    bind(s, 0).is(0);
    connect(s, port(s)).is(0);
    write(s, b"echo");
    assert_eq!(recv(s, 9, 0), Ok(b"echo".to_vec()));
    let mut a = v4(0);
    let mut n = 16u32;
    sc!(SYS_getpeername, s, &raw mut a, &raw mut n).is(0);
    assert_eq!(u16::from_be(a.sin_port), port(s));
    shutdown(s, SHUT_WR).is(0);
    assert_eq!(recv(s, 9, 0), Ok(vec![]));
}

fn more_and_cork() {
    let (c, s) = pair();
    send(c, b"one", MSG_MORE).is(3);
    nap(20);
    assert_eq!(recv(s, 9, MSG_DONTWAIT), Err(EAGAIN), "more was announced");
    send(c, b"two", 0).is(3);
    poll_until(s, i32::from(POLLIN));
    assert_eq!(recv(s, 9, 0), Ok(b"onetwo".to_vec()));
    set(c, IPPROTO_TCP, TCP_CORK, 1).is(0);
    write(c, b"a");
    write(c, b"b");
    nap(20);
    assert_eq!(poll(s) & i32::from(POLLIN), 0);
    set(c, IPPROTO_TCP, TCP_CORK, 0).is(0);
    poll_until(s, i32::from(POLLIN));
    assert_eq!(recv(s, 9, 0), Ok(b"ab".to_vec()));
    // The end passes on what is held back.
    set(c, IPPROTO_TCP, TCP_CORK, 1).is(0);
    write(c, b"last");
    shutdown(c, SHUT_WR).is(0);
    assert_eq!(recv(s, 9, MSG_WAITALL), Ok(b"last".to_vec()));
}

fn cork_ends_by_itself() {
    let (c, s) = pair();
    set(c, IPPROTO_TCP, TCP_CORK, 1).is(0);
    write(c, b"late");
    let start = std::time::Instant::now();
    assert_eq!(recv(s, 9, 0), Ok(b"late".to_vec()));
    assert!(start.elapsed().as_millis() >= 100, "held back for {:?}", start.elapsed());
}

fn mapped_addresses() {
    let l = tcp6();
    bind6(l, ANY6, 0).is(0);
    sc!(SYS_listen, l, 5).is(0);
    bind(tcp(), port(l)).fails(EADDRINUSE);
    let c = tcp();
    connect(c, port(l)).is(0);
    let s = accept(l);
    let mut a = v6(ANY6, 0);
    let mut n = 28u32;
    sc!(SYS_getpeername, s, &raw mut a, &raw mut n).is(0);
    assert_eq!(a.sin6_addr.s6_addr, MAPPED);
    let c6 = tcp6();
    connect6(c6, MAPPED, port(l)).is(0);
    sc!(SYS_getsockname, c6, &raw mut a, &raw mut n).is(0);
    assert_eq!(a.sin6_addr.s6_addr, MAPPED);
    let c6 = tcp6();
    connect6(c6, LOOPBACK6, port(l)).is(0);
    let s6 = tcp6();
    bind6(s6, MAPPED, 0).is(0);
    connect(tcp(), port(s6)).fails(ECONNREFUSED);
    bind(tcp(), port(s6)).fails(EADDRINUSE);
    bind6(tcp6(), LOOPBACK6, port(s6)).is(0);
}

fn v6_only() {
    let l = tcp6();
    set(l, IPPROTO_IPV6, IPV6_V6ONLY, 1).is(0);
    bind6(tcp6(), MAPPED, 0).is(0);
    bind6(l, MAPPED, 0).fails(EINVAL);
    bind6(l, ANY6, 0).is(0);
    set(l, IPPROTO_IPV6, IPV6_V6ONLY, 0).fails(EINVAL);
    assert_eq!(get(l, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    sc!(SYS_listen, l, 1).is(0);
    connect(tcp(), port(l)).fails(ECONNREFUSED);
    bind(tcp(), port(l)).is(0);
    let c = tcp6();
    set(c, IPPROTO_IPV6, IPV6_V6ONLY, 1).is(0);
    connect6(c, MAPPED, port(l)).fails(ENETUNREACH);
    connect6(c, LOOPBACK6, port(l)).is(0);
}

const SIOCATMARK: i32 = 0x8905;

fn at_mark(s: i32) -> i32 {
    let mut value = -1;
    sc!(SYS_ioctl, s, SIOCATMARK, &raw mut value).is(0);
    value
}

fn urgent_data() {
    let (c, s) = pair();
    assert_eq!(recv(s, 1, MSG_OOB), Err(EINVAL));
    send(c, b"abX", MSG_OOB).is(3);
    send(c, b"cd", 0).is(2);
    poll_until(s, i32::from(POLLPRI | POLLIN));
    assert_eq!(at_mark(s), 0);
    assert_eq!(recv(s, 9, 0), Ok(b"ab".to_vec()), "a receive ends at the mark");
    assert_eq!(at_mark(s), 1);
    assert_eq!(recv(s, 9, MSG_OOB | MSG_PEEK), Ok(b"X".to_vec()));
    assert_eq!(recv(s, 9, MSG_OOB), Ok(b"X".to_vec()));
    assert_eq!(recv(s, 9, MSG_OOB), Err(EINVAL));
    assert_eq!(poll(s) & i32::from(POLLPRI), 0);
    assert_eq!(recv(s, 9, 0), Ok(b"cd".to_vec()), "the urgent byte is not in the stream");
    assert_eq!(at_mark(s), 0);
    // One that nobody fetched is lost once the stream has passed it.
    send(c, b"Y", MSG_OOB).is(1);
    send(c, b"z", 0).is(1);
    poll_until(s, i32::from(POLLPRI));
    poll_until(s, i32::from(POLLIN));
    assert_eq!(recv(s, 9, 0), Ok(b"z".to_vec()));
    assert_eq!(recv(s, 9, MSG_OOB), Err(EINVAL));
    // Alone it is no data.
    send(c, b"W", MSG_OOB).is(1);
    poll_until(s, i32::from(POLLPRI));
    assert_eq!(poll(s) & i32::from(POLLIN), 0);
    assert_eq!(recv(s, 9, MSG_DONTWAIT), Err(EAGAIN));
}

fn urgent_data_inline() {
    let (c, s) = pair();
    set(s, SOL_SOCKET, SO_OOBINLINE, 1).is(0);
    send(c, b"abX", MSG_OOB).is(3);
    send(c, b"cd", 0).is(2);
    poll_until(s, i32::from(POLLPRI | POLLIN));
    assert_eq!(recv(s, 9, MSG_OOB), Err(EINVAL));
    assert_eq!(recv(s, 9, 0), Ok(b"ab".to_vec()));
    assert_eq!(at_mark(s), 1);
    poll_until(s, i32::from(POLLIN));
    assert_eq!(recv(s, 9, 0), Ok(b"Xcd".to_vec()));
    assert_eq!(at_mark(s), 0);
}

fn shutdown_matrix() {
    shutdown(tcp(), SHUT_RD).fails(ENOTCONN);
    // Reading: what comes is still received, but nobody waits for it.
    let (c, s) = pair();
    shutdown(s, SHUT_RD).is(0);
    assert_eq!(recv(s, 9, 0), Ok(vec![]));
    write(c, b"late");
    nap(20);
    assert_eq!(recv(s, 9, 0), Ok(b"late".to_vec()));
    assert_eq!(recv(s, 9, 0), Ok(vec![]));
    write(s, b"back");
    assert_eq!(recv(c, 9, 0), Ok(b"back".to_vec()));
    // Writing: the peer gets the end and may go on.
    let (c, s) = pair();
    shutdown(c, SHUT_WR).is(0);
    shutdown(c, SHUT_WR).is(0);
    send(c, b"x", MSG_NOSIGNAL).fails(EPIPE);
    assert_eq!(recv(s, 9, 0), Ok(vec![]));
    write(s, b"still");
    assert_eq!(recv(c, 9, 0), Ok(b"still".to_vec()));
    shutdown(s, SHUT_WR).is(0);
    assert_eq!(recv(c, 9, 0), Ok(vec![]));
    poll_until(c, i32::from(POLLHUP));
    poll_until(s, i32::from(POLLHUP));
    shutdown(c, SHUT_RD).fails(ENOTCONN);
    let mut a = v4(0);
    let mut n = 16u32;
    sc!(SYS_getpeername, c, &raw mut a, &raw mut n).fails(ENOTCONN);
    // Both: what the peer sends then is answered by a reset.
    let (c, s) = pair();
    shutdown(s, SHUT_RDWR).is(0);
    poll_until(c, i32::from(POLLRDHUP));
    send(c, b"x", MSG_NOSIGNAL).is(1);
    poll_until(c, i32::from(POLLHUP));
    send(c, b"x", MSG_NOSIGNAL).fails(EPIPE);
    poll_until(s, i32::from(POLLERR));
    assert_eq!(pending(s), ECONNRESET);
    sc!(SYS_shutdown, s, 3).fails(EINVAL);
}

fn poll_of_each_state() {
    let (i, o, h) = (i32::from(POLLIN), i32::from(POLLOUT), i32::from(POLLHUP));
    let (r, e) = (i32::from(POLLRDHUP), i32::from(POLLERR));
    assert_eq!(poll(tcp()), o | h, "new");
    let (l, p) = listener(5);
    assert_eq!(poll(l), 0, "listening");
    let c = tcp();
    connect(c, p).is(0);
    poll_until(l, i);
    assert_eq!(poll(l), i, "a connection waits");
    let s = accept(l);
    assert_eq!((poll(c), poll(s)), (o, o), "ESTABLISHED");
    write(c, b"x");
    poll_until(s, i);
    assert_eq!(poll(s), i | o, "data");
    recv(s, 1, 0).unwrap();
    shutdown(c, SHUT_WR).is(0);
    poll_until(s, r);
    assert_eq!((poll(c), poll(s)), (o, i | o | r), "FIN_WAIT2 and CLOSE_WAIT");
    shutdown(c, SHUT_RD).is(0);
    assert_eq!(poll(c), i | o | r | h, "shut down for both");
    shutdown(s, SHUT_WR).is(0);
    poll_until(s, h);
    assert_eq!((poll(c), poll(s)), (i | o | r | h, i | o | r | h), "over");
    let (c, s) = pair();
    linger(s, 0);
    close(s);
    poll_until(c, e);
    assert_eq!(poll(c), i | o | r | h | e, "reset");
    assert_eq!(pending(c), ECONNRESET);
    assert_eq!(poll(c), i | o | r | h, "the error is told once");
}

fn disconnect() {
    let (c, s) = pair();
    let unspec = [0u16; 8];
    sc!(SYS_connect, c, unspec.as_ptr(), 16).is(0);
    poll_until(s, i32::from(POLLERR));
    assert_eq!(recv(s, 9, 0), Err(ECONNRESET));
    let _ = pending(c);
    assert_eq!(recv(c, 9, 0), Err(ENOTCONN));
    let (l, p) = listener(1);
    connect(c, p).is(0);
    let s = accept(l);
    write(c, b"again");
    assert_eq!(recv(s, 9, 0), Ok(b"again".to_vec()));
}

fn receive_low_water() {
    let (c, s) = pair();
    set(s, SOL_SOCKET, SO_RCVLOWAT, 4).is(0);
    assert_eq!(get(s, SOL_SOCKET, SO_RCVLOWAT), 4);
    write(c, b"abc");
    nap(20);
    assert_eq!(poll(s) & i32::from(POLLIN), 0, "fewer than wanted");
    assert_eq!(recv(s, 2, 0), Ok(b"ab".to_vec()), "what fits the buffer is enough");
    let child = fork(|| {
        nap(50);
        write(c, b"defg");
        0
    });
    assert_eq!(recv(s, 9, 0), Ok(b"cdefg".to_vec()));
    wait_code(child, 0);
    write(c, b"hi");
    nap(20);
    assert_eq!(
        recv(s, 9, MSG_DONTWAIT),
        Ok(b"hi".to_vec()),
        "who does not wait gets what is there"
    );
    set(s, SOL_SOCKET, SO_RCVLOWAT, 0).is(0);
    assert_eq!(get(s, SOL_SOCKET, SO_RCVLOWAT), 1);
}

fn peek_and_wait_for_all() {
    let (c, s) = pair();
    write(c, b"ab");
    let child = fork(|| {
        nap(50);
        write(c, b"cd");
        0
    });
    assert_eq!(recv(s, 4, MSG_PEEK | MSG_WAITALL), Ok(b"abcd".to_vec()));
    assert_eq!(recv(s, 4, MSG_PEEK), Ok(b"abcd".to_vec()));
    wait_code(child, 0);
    assert_eq!(recv(s, 9, 0), Ok(b"abcd".to_vec()));
}

fn information() {
    let state = |s: i32| {
        let (mut info, mut n) = ([0u8; 104], 104u32);
        sc!(SYS_getsockopt, s, IPPROTO_TCP, TCP_INFO, info.as_mut_ptr(), &raw mut n).is(0);
        assert_eq!(n, 104);
        let total_retrans = u32::from_ne_bytes(info[100..104].try_into().unwrap());
        assert_eq!(total_retrans, 0);
        info[0]
    };
    assert_eq!(state(tcp()), 7);
    let (l, p) = listener(3);
    assert_eq!(state(l), 10);
    let c = tcp();
    connect(c, p).is(0);
    let s = accept(l);
    assert_eq!((state(c), state(s)), (1, 1));
    shutdown(c, SHUT_WR).is(0);
    poll_until(s, i32::from(POLLRDHUP));
    // The acknowledgement may take a moment.
    for _ in 0..1000 {
        if state(c) != 4 {
            break;
        }
        nap(1);
    }
    assert_eq!((state(c), state(s)), (5, 8));
    let (mut info, mut n) = ([0u8; 104], 104u32);
    sc!(SYS_getsockopt, l, IPPROTO_TCP, TCP_INFO, info.as_mut_ptr(), &raw mut n).is(0);
    assert_eq!(u32::from_ne_bytes(info[28..32].try_into().unwrap()), 3, "the backlog's bound");
}

fn congestion_control() {
    let s = tcp();
    sc!(SYS_setsockopt, s, IPPROTO_TCP, TCP_CONGESTION, c"reno".as_ptr(), 4).is(0);
    let (mut name, mut n) = ([0u8; 32], 32u32);
    sc!(SYS_getsockopt, s, IPPROTO_TCP, TCP_CONGESTION, name.as_mut_ptr(), &raw mut n).is(0);
    assert_eq!((n, &name[..5]), (16, &b"reno\0"[..]));
    sc!(SYS_setsockopt, s, IPPROTO_TCP, TCP_CONGESTION, c"none!".as_ptr(), 5).fails(ENOENT);
    sc!(SYS_setsockopt, s, IPPROTO_TCP, TCP_CONGESTION, c"".as_ptr(), 0).fails(EINVAL);
}

fn deferred_accept() {
    let (l, p) = listener(5);
    set(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 10).is(0);
    assert_eq!(get(l, IPPROTO_TCP, TCP_DEFER_ACCEPT), 15, "seconds as repetitions reach");
    let c = tcp();
    connect(c, p).is(0);
    nap(50);
    assert_eq!(poll(l), 0, "told before there was data");
    nonblocking(l);
    sc!(SYS_accept, l, 0, 0).fails(EAGAIN);
    write(c, b"now");
    poll_until(l, i32::from(POLLIN));
    let s = accept(l);
    assert_eq!(recv(s, 9, 0), Ok(b"now".to_vec()));
}

fn listener_shut_down() {
    let (l, p) = listener(5);
    let c = tcp();
    connect(c, p).is(0);
    shutdown(l, SHUT_WR).is(0);
    connect(tcp(), p).is(0);
    shutdown(l, SHUT_RD).is(0);
    sc!(SYS_accept, l, 0, 0).fails(EINVAL);
    connect(tcp(), p).fails(ECONNREFUSED);
    poll_until(c, i32::from(POLLERR));
    assert_eq!(pending(c), ECONNRESET);
    assert_eq!(port(l), p, "it keeps its port");
    sc!(SYS_listen, l, 1).is(0);
    connect(l, p).fails(EISCONN);
}

fn send_before_connected() {
    send(tcp(), b"x", MSG_NOSIGNAL).fails(EPIPE);
    assert_eq!(recv(tcp(), 1, 0), Err(ENOTCONN));
    let (l, _) = listener(1);
    send(l, b"x", MSG_NOSIGNAL).fails(EPIPE);
    assert_eq!(recv(l, 1, 0), Err(ENOTCONN));
    let child = fork(|| {
        let _ = sc!(SYS_write, tcp(), c"x".as_ptr(), 1);
        7
    });
    wait_signal(child, SIGPIPE);
}

fn table_of_connections() {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                  uid  timeout inode";
    assert_eq!(table.lines().next().unwrap().trim_end(), header);
    let bound = tcp();
    bind(bound, 0).is(0);
    assert_eq!(rows(port(bound)), [], "only bound");
    let (l, p) = listener(5);
    let c = tcp();
    connect(c, p).is(0);
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    assert!(table.lines().all(|line| line.len() == 149), "a width of 149");
    let row = table.lines().find(|line| line.contains(&format!("0100007F:{p:04X} 00000000:0000")));
    let words: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(words[3], "0A");
    assert_eq!(words[4], "00000000:00000001", "one connection waits");
    accept(l);
    assert_eq!(rows(port(c))[0].0, 1);
}

fn bulk_both_ways() {
    // More than all buffers hold, in pieces that end at no page's end, while the other side does
    // the same.
    const TOTAL: usize = 3_000_017;
    let byte = |i: usize| (i % 251) as u8;
    let (c, s) = pair();
    let data: Vec<u8> = (0..TOTAL).map(byte).collect();
    let pump = |fd: i32, out: bool| {
        let mut at = 0;
        let mut piece = 1;
        while at < TOTAL {
            let len = piece.min(TOTAL - at);
            piece = (piece * 7 + 3) % 90_001 + 1;
            if out {
                at += send(fd, &data[at..at + len], 0).must();
            } else {
                let got = recv(fd, len, 0).unwrap();
                assert!(!got.is_empty() && got[..] == data[at..at + got.len()], "at {at}");
                at += got.len();
            }
        }
        0
    };
    let jobs = [(c, true), (c, false), (s, true), (s, false)];
    let children: Vec<i32> = jobs.iter().map(|&(fd, out)| fork(|| pump(fd, out))).collect();
    for child in children {
        wait_code(child, 0);
    }
}

fn many_connections_in_a_row() {
    let (l, p) = listener(16);
    for round in 0..600 {
        let c = tcp();
        connect(c, p).is(0);
        let s = accept(l);
        write(c, b"ping");
        assert_eq!(recv(s, 4, 0), Ok(b"ping".to_vec()), "round {round}");
        // Now one side, now the other keeps waiting.
        let (first, second) = if round % 2 == 0 { (c, s) } else { (s, c) };
        close(first);
        close(second);
    }
}
