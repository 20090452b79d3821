//! Rows about sockets: unix and loopback.

use libc::*;

use crate::cost::Cost;
use crate::sys::{call, close, good, read_all};
use crate::{MANY, Row, SOME};

pub const ROWS: &[Row] = &[
    Row { name: "unix_connect_accept_among_names", sizes: SOME, run: unix_names },
    Row { name: "unix_accept_from_backlog", sizes: SOME, run: unix_backlog },
    Row { name: "unix_round_trip_among_pairs", sizes: SOME, run: unix_pairs },
    Row { name: "tcp_connect_accept_among_connections", sizes: SOME, run: tcp_connect },
    Row { name: "tcp_round_trip_among_connections", sizes: SOME, run: tcp_round_trip },
    Row { name: "tcp_listen_among_listeners", sizes: SOME, run: tcp_listen },
    Row { name: "udp_bind_any_among_sockets", sizes: MANY, run: udp_bind },
    Row { name: "udp_round_trip_among_sockets", sizes: MANY, run: udp_round_trip },
    Row { name: "udp_send_recv_of_group", sizes: SOME, run: udp_group },
    Row { name: "tcp_accept_from_backlog", sizes: SOME, run: tcp_backlog },
    Row { name: "tcp_connect_among_time_wait", sizes: SOME, run: tcp_time_wait },
    Row { name: "proc_net_tcp_of_connections", sizes: SOME, run: proc_tcp },
    Row { name: "proc_net_unix_of_sockets", sizes: SOME, run: proc_unix },
];

/// Below what listen(2) takes (net.core.somaxconn).
const BACKLOG: usize = 4096;

/// Brings the loopback interface up (netdevice(7)); on Limen it is.
pub fn loopback_up() {
    let fd = call(SYS_socket, &[AF_INET as usize, SOCK_DGRAM as usize, 0]);
    let Ok(fd) = usize::try_from(fd) else { return };
    // struct ifreq: 16 bytes of name, then the flags.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = IFF_UP as u8;
    let _ = call(SYS_ioctl, &[fd, SIOCSIFFLAGS as usize, request.as_ptr() as usize]);
    close(fd);
}

fn socket(family: i32, kind: i32) -> usize {
    good(SYS_socket, &[family as usize, kind as usize, 0])
}

/// An abstract unix address, and its length.
fn unix_address(i: usize) -> ([u8; 16], usize) {
    let mut address = [0u8; 16];
    address[0] = AF_UNIX as u8;
    address[3..11].copy_from_slice(&format!("{i:08}").into_bytes());
    (address, 11)
}

fn at_address(nr: c_long, fd: usize, (address, length): &([u8; 16], usize)) -> usize {
    good(nr, &[fd, address.as_ptr() as usize, *length])
}

fn unix_listener(i: usize) -> usize {
    let fd = socket(AF_UNIX, SOCK_STREAM);
    at_address(SYS_bind, fd, &unix_address(i));
    good(SYS_listen, &[fd, BACKLOG]);
    fd
}

fn accept(fd: usize) -> usize {
    good(SYS_accept4, &[fd, 0, 0, 0])
}

fn unix_names(cost: &mut Cost, n: usize) {
    let listeners: Vec<usize> = (0..n).map(unix_listener).collect();
    let (listener, address) = (listeners[n / 2], unix_address(n / 2));
    cost.repeat(|| {
        let client = socket(AF_UNIX, SOCK_STREAM);
        at_address(SYS_connect, client, &address);
        close(accept(listener));
        close(client);
    });
}

fn unix_backlog(cost: &mut Cost, n: usize) {
    let listener = unix_listener(0);
    let address = unix_address(0);
    let connect = || at_address(SYS_connect, socket(AF_UNIX, SOCK_STREAM), &address);
    (0..n).for_each(|_| _ = connect());
    for _ in 0..cost.samples() {
        cost.time(|| accept(listener));
        connect();
    }
}

/// One byte there and back.
fn round_trip(a: usize, b: usize) {
    let mut byte = 1u8;
    let byte = &raw mut byte as usize;
    for (from, to) in [(a, b), (b, a)] {
        good(SYS_write, &[from, byte, 1]);
        good(SYS_read, &[to, byte, 1]);
    }
}

fn unix_pairs(cost: &mut Cost, n: usize) {
    let pair = |_| {
        let mut ends = [0i32; 2];
        let at = ends.as_mut_ptr() as usize;
        good(SYS_socketpair, &[AF_UNIX as usize, SOCK_STREAM as usize, 0, at]);
        ends.map(|fd| fd as usize)
    };
    let pairs: Vec<[usize; 2]> = (0..n).map(pair).collect();
    let [a, b] = pairs[n / 2];
    cost.repeat(|| round_trip(a, b));
}

/// 127.0.0.1 and a port, in the kernel's layout, and its length.
fn inet_address(port: u16) -> ([u8; 16], usize) {
    let mut address = [0u8; 16];
    address[0] = AF_INET as u8;
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    (address, 16)
}

fn tcp_listener(port: u16) -> usize {
    let fd = socket(AF_INET, SOCK_STREAM);
    let on = 1i32;
    let (level, option) = (SOL_SOCKET as usize, SO_REUSEADDR as usize);
    good(SYS_setsockopt, &[fd, level, option, &raw const on as usize, 4]);
    at_address(SYS_bind, fd, &inet_address(port));
    good(SYS_listen, &[fd, BACKLOG]);
    fd
}

/// A connection's two ends.
fn connection(listener: usize, port: u16) -> (usize, usize) {
    let client = socket(AF_INET, SOCK_STREAM);
    at_address(SYS_connect, client, &inet_address(port));
    (client, accept(listener))
}

const PORT: u16 = 5000;

fn tcp_connect(cost: &mut Cost, n: usize) {
    let listener = tcp_listener(PORT);
    (0..n).for_each(|_| _ = connection(listener, PORT));
    cost.repeat(|| {
        let (client, server) = connection(listener, PORT);
        close(client);
        close(server);
    });
}

fn tcp_round_trip(cost: &mut Cost, n: usize) {
    let listener = tcp_listener(PORT);
    let all: Vec<(usize, usize)> = (0..n).map(|_| connection(listener, PORT)).collect();
    let (client, server) = all[n / 2];
    cost.repeat(|| round_trip(client, server));
}

fn tcp_listen(cost: &mut Cost, n: usize) {
    (0..n).for_each(|i| _ = tcp_listener(10_000 + i as u16));
    cost.repeat(|| close(tcp_listener(PORT)));
}

/// A socket that is bound to a port of 127.0.0.1; 0 is any.
pub fn udp(port: u16) -> usize {
    let fd = socket(AF_INET, SOCK_DGRAM);
    at_address(SYS_bind, fd, &inet_address(port));
    fd
}

fn udp_bind(cost: &mut Cost, n: usize) {
    (0..n).for_each(|_| _ = udp(0));
    cost.repeat(|| close(udp(0)));
}

fn udp_round_trip(cost: &mut Cost, n: usize) {
    (0..n).for_each(|_| _ = udp(0));
    let (a, b) = (udp(PORT), udp(PORT + 1));
    connect(a, PORT + 1);
    connect(b, PORT);
    cost.repeat(|| round_trip(a, b));
}

/// Connects a socket to a port of 127.0.0.1.
pub fn connect(fd: usize, port: u16) {
    at_address(SYS_connect, fd, &inet_address(port));
}

/// Sockets of one port: a datagram comes to one of them (SO_REUSEPORT, socket(7)).
fn udp_group(cost: &mut Cost, n: usize) {
    let member = |_| {
        let fd = socket(AF_INET, SOCK_DGRAM);
        let on = 1i32;
        let (level, option) = (SOL_SOCKET as usize, SO_REUSEPORT as usize);
        good(SYS_setsockopt, &[fd, level, option, &raw const on as usize, 4]);
        at_address(SYS_bind, fd, &inet_address(PORT));
        fd
    };
    let members: Vec<usize> = (0..n).map(member).collect();
    let client = udp(0);
    connect(client, PORT);
    let mut byte = 1u8;
    let byte = &raw mut byte as usize;
    good(SYS_write, &[client, byte, 1]);
    // Each datagram of this client comes to the same one.
    let take = |fd: &&usize| call(SYS_recvfrom, &[**fd, byte, 1, MSG_DONTWAIT as usize, 0, 0]) == 1;
    let chosen = *members.iter().find(take).expect("one has it");
    cost.repeat(|| {
        good(SYS_write, &[client, byte, 1]);
        good(SYS_read, &[chosen, byte, 1])
    });
}

fn tcp_backlog(cost: &mut Cost, n: usize) {
    let listener = tcp_listener(PORT);
    let come = || connect(socket(AF_INET, SOCK_STREAM), PORT);
    (0..n).for_each(|_| come());
    for _ in 0..cost.samples() {
        cost.time(|| accept(listener));
        come();
    }
}

/// Connections that the client has closed first: they wait for stray segments (RFC 9293, 3.6.1).
fn tcp_time_wait(cost: &mut Cost, n: usize) {
    let listener = tcp_listener(PORT);
    let come_and_go = || {
        let (client, server) = connection(listener, PORT);
        close(client);
        close(server);
    };
    (0..n).for_each(|_| come_and_go());
    cost.repeat(come_and_go);
}

fn proc_tcp(cost: &mut Cost, n: usize) {
    let listener = tcp_listener(PORT);
    (0..n).for_each(|_| _ = connection(listener, PORT));
    let mut buf = vec![0u8; 16 << 10];
    for _ in 0..cost.few() {
        assert!(cost.time(|| read_all(c"/proc/net/tcp", &mut buf)) > 2 * n);
    }
}

fn proc_unix(cost: &mut Cost, n: usize) {
    (0..n).for_each(|i| _ = unix_listener(i));
    let mut buf = vec![0u8; 16 << 10];
    for _ in 0..cost.few() {
        assert!(cost.time(|| read_all(c"/proc/net/unix", &mut buf)) > n);
    }
}
