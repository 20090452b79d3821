//! Options of sockets, one by one: the table in the README of the kernel's sockets says what each
//! is at first and what becomes of it. Linux agrees with that table, or this test fails there.
//!
//! Manual pages: socket(7), ip(7), ipv6(7), tcp(7), getsockopt(2).

use crate::sys::*;
use crate::{sc, tests};

tests!("options":
    table, bytes_of_a_name, stamps_exclude_each_other, forced_buffers, devices, cookies,
    headers_of_datagrams, headers_of_datagrams_of_ipv6, times_of_messages, what_is_left,
    addresses_of_others,
);

const README: &str = include_str!("../../../kernel/src/net/README.md");

/// What the column "After" sets: numbers, then no bytes, then a byte.
const SET: [&[u8]; 7] = [
    &1i32.to_ne_bytes(),
    &0i32.to_ne_bytes(),
    &(-1i32).to_ne_bytes(),
    &5i32.to_ne_bytes(),
    &300i32.to_ne_bytes(),
    &[],
    &[1],
];

fn new(kind: &str) -> i32 {
    let (family, kind) = match kind {
        "t4" => (AF_INET, SOCK_STREAM),
        "u4" => (AF_INET, SOCK_DGRAM),
        "u6" => (AF_INET6, SOCK_DGRAM),
        "l4" => return sc!(SYS_socket, AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE).fd(),
        "xs" => (AF_UNIX, SOCK_STREAM),
        other => panic!("sockets {other}"),
    };
    sc!(SYS_socket, family, kind, 0).fd()
}

fn level(name: &str) -> i32 {
    match name {
        "SOL_SOCKET" => SOL_SOCKET,
        "IPPROTO_IP" => IPPROTO_IP,
        "IPPROTO_IPV6" => IPPROTO_IPV6,
        "IPPROTO_TCP" => IPPROTO_TCP,
        "IPPROTO_UDPLITE" => IPPROTO_UDPLITE,
        other => panic!("level {other}"),
    }
}

fn word(errno: i32) -> String {
    let known = [
        (EINVAL, "EINVAL"),
        (ENOPROTOOPT, "ENOPROTOOPT"),
        (EOPNOTSUPP, "EOPNOTSUPP"),
        (ENOTCONN, "ENOTCONN"),
        (ENODEV, "ENODEV"),
        (EADDRNOTAVAIL, "EADDRNOTAVAIL"),
        (ENOENT, "ENOENT"),
        (ENODATA, "ENODATA"),
    ];
    let name = known.iter().find(|(number, _)| *number == errno);
    name.map_or_else(|| errno_name(errno), |(_, name)| (*name).to_owned())
}

/// The value of an option, or the error, as the table writes them.
fn told(s: i32, level: i32, name: i32) -> String {
    let (mut value, mut n) = ([0u8; 64], 64u32);
    match sc!(SYS_getsockopt, s, level, name, value.as_mut_ptr(), &raw mut n) {
        Ok(_) if n == 4 => i32::from_ne_bytes(value[..4].try_into().unwrap()).to_string(),
        Ok(_) => format!("{n} bytes"),
        Err(errno) => word(errno),
    }
}

fn after(s: i32, level: i32, name: i32, value: &[u8]) -> String {
    match sc!(SYS_setsockopt, s, level, name, value.as_ptr(), value.len()) {
        Ok(_) => told(s, level, name),
        Err(errno) => word(errno),
    }
}

fn table() {
    let rows =
        README.lines().filter(|line| line.starts_with("| SOL_") || line.starts_with("| IPP"));
    let mut wrong = vec![];
    let mut tried = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [level_name, option, number, sockets, first, afters, _] = cells[..] else {
            panic!("seven cells: {row}");
        };
        let (level, number) = (level(level_name), number.parse().unwrap());
        for kind in sockets.split(' ') {
            let mut check = |what: &str, got: String, wanted: &str| {
                tried += 1;
                if wanted != "*" && got != wanted {
                    wrong.push(format!("{option} of {kind} {what}: {got}, expected {wanted}"));
                }
            };
            let s = new(kind);
            check("at first", told(s, level, number), first);
            close(s);
            for (value, wanted) in SET.iter().zip(afters.split(' ')) {
                let s = new(kind);
                check(&format!("after {value:?}"), after(s, level, number, value), wanted);
                close(s);
            }
        }
    }
    assert!(tried > 1000, "only {tried} tries");
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}

fn bytes_of_a_name() {
    // A small number of IPv4's goes into a byte; a short buffer cuts others.
    let s = new("u4");
    let (mut value, mut n) = ([0xffu8; 4], 1u32);
    sc!(SYS_getsockopt, s, IPPROTO_IP, IP_TTL, value.as_mut_ptr(), &raw mut n).is(0);
    assert_eq!((value, n), ([64, 0xff, 0xff, 0xff], 1));
    let mut n = u32::MAX;
    sc!(SYS_getsockopt, s, IPPROTO_IP, IP_TTL, value.as_mut_ptr(), &raw mut n).fails(EINVAL);
    sc!(SYS_setsockopt, s, IPPROTO_IP, IP_TTL, value.as_ptr(), -1i32).fails(EINVAL);
    sc!(SYS_setsockopt, s, IPPROTO_IP, IP_TTL, 8, 4).fails(EFAULT);
}

fn stamps_exclude_each_other() {
    let s = new("u4");
    crate::tcp::set(s, SOL_SOCKET, SO_TIMESTAMPNS, 1).is(0);
    assert_eq!(crate::tcp::get(s, SOL_SOCKET, SO_TIMESTAMPNS), 1);
    crate::tcp::set(s, SOL_SOCKET, SO_TIMESTAMP, 1).is(0);
    assert_eq!(crate::tcp::get(s, SOL_SOCKET, SO_TIMESTAMPNS), 0);
    assert_eq!(crate::tcp::get(s, SOL_SOCKET, SO_TIMESTAMP), 1);
}

fn forced_buffers() {
    let s = new("u4");
    crate::tcp::set(s, SOL_SOCKET, SO_RCVBUFFORCE, 20 << 20).is(0);
    assert_eq!(crate::tcp::get(s, SOL_SOCKET, SO_RCVBUF), 40 << 20);
    in_child(|| {
        sc!(SYS_setresuid, 1000, 1000, 1000).is(0);
        let s = new("u4");
        crate::tcp::set(s, SOL_SOCKET, SO_RCVBUFFORCE, 20 << 20).fails(EPERM);
        crate::tcp::set(s, SOL_SOCKET, SO_MARK, 1).fails(EPERM);
        crate::tcp::set(s, SOL_SOCKET, SO_PRIORITY, 6).is(0);
        crate::tcp::set(s, SOL_SOCKET, SO_PRIORITY, 7).fails(EPERM);
    });
}

fn devices() {
    let s = new("u4");
    sc!(SYS_setsockopt, s, SOL_SOCKET, SO_BINDTODEVICE, c"lo".as_ptr(), 3).is(0);
    let (mut name, mut n) = ([0u8; 16], 16u32);
    sc!(SYS_getsockopt, s, SOL_SOCKET, SO_BINDTODEVICE, name.as_mut_ptr(), &raw mut n).is(0);
    assert_eq!((&name[..3], n), (&b"lo\0"[..], 3));
    let mut n = 2u32;
    sc!(SYS_getsockopt, s, SOL_SOCKET, SO_BINDTODEVICE, name.as_mut_ptr(), &raw mut n)
        .fails(EINVAL);
    sc!(SYS_setsockopt, s, SOL_SOCKET, SO_BINDTODEVICE, c"none".as_ptr(), 4).fails(ENODEV);
}

fn cookies() {
    let cookie = |s: i32| {
        let (mut value, mut n) = (0u64, 8u32);
        sc!(SYS_getsockopt, s, SOL_SOCKET, SO_COOKIE, &raw mut value, &raw mut n).is(0);
        value
    };
    let (a, b) = (new("u4"), new("t4"));
    assert_eq!(cookie(a), cookie(a));
    assert_ne!(cookie(a), cookie(b));
}

/// Messages beside the data: level, type and payload.
pub type Beside = Vec<(i32, i32, Vec<u8>)>;

/// Receives up to 64 bytes and what comes beside them.
pub fn receive(s: i32) -> (Vec<u8>, Beside) {
    let (mut data, mut control) = ([0u8; 64], [0u64; 64]);
    let mut part = iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 64 };
    // SAFETY: all bytes zero are a valid msghdr.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = 512;
    let n = sc!(SYS_recvmsg, s, &raw mut header, 0).must();
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut beside = vec![];
    let mut at = 0;
    while at + 16 <= header.msg_controllen {
        let number = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let len = number(at) as usize;
        beside.push((number(at + 8), number(at + 12), bytes[at + 16..at + len].to_vec()));
        at += len.next_multiple_of(8);
    }
    (data[..n].to_vec(), beside)
}

/// Sends to `to` with one message beside the data.
fn send_with<A>(s: i32, to: &A, level: i32, kind: i32, payload: &[u8]) -> Res {
    let mut control = [0u8; 64];
    let len = 16 + payload.len();
    control[..8].copy_from_slice(&len.to_ne_bytes());
    control[8..12].copy_from_slice(&level.to_ne_bytes());
    control[12..16].copy_from_slice(&kind.to_ne_bytes());
    control[16..len].copy_from_slice(payload);
    let mut part = iovec { iov_base: c"x".as_ptr() as *mut c_void, iov_len: 1 };
    // SAFETY: all bytes zero are a valid msghdr.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = std::ptr::from_ref(to) as *mut c_void;
    header.msg_namelen = size_of::<A>() as u32;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = len.next_multiple_of(8);
    sc!(SYS_sendmsg, s, &raw const header, 0)
}

fn number(value: i32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn headers_of_datagrams() {
    use crate::tcp::{bind, port, set, v4};
    let (a, b) = (new("u4"), new("u4"));
    bind(b, 0).is(0);
    let to = v4(port(b));
    for option in [IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR] {
        set(b, IPPROTO_IP, option, 1).is(0);
    }
    set(a, IPPROTO_IP, IP_TTL, 9).is(0);
    set(a, IPPROTO_IP, IP_TOS, 0x10).is(0);
    sc!(SYS_sendto, a, c"x".as_ptr(), 1, 0, &raw const to, 16).is(1);
    let (_, beside) = receive(b);
    let local = [127, 0, 0, 1];
    let info = [&1i32.to_ne_bytes()[..], &local, &local].concat();
    assert_eq!(beside[0], (IPPROTO_IP, IP_PKTINFO, info));
    assert_eq!(beside[1], (IPPROTO_IP, IP_TTL, number(9)));
    assert_eq!(beside[2], (IPPROTO_IP, IP_TOS, vec![0x10]));
    assert_eq!((beside[3].1, &beside[3].2[4..8]), (IP_RECVORIGDSTADDR, &local[..]));
    // For one datagram.
    send_with(a, &to, IPPROTO_IP, IP_TTL, &number(33)).is(1);
    assert_eq!(receive(b).1[1].2, number(33));
    send_with(a, &to, IPPROTO_IP, IP_TOS, &number(0x20)).is(1);
    let (_, beside) = receive(b);
    assert_eq!((&beside[1].2, &beside[2].2), (&number(9), &vec![0x20]));
    send_with(a, &to, IPPROTO_IP, IP_TTL, &number(0)).fails(EINVAL);
    send_with(a, &to, IPPROTO_IP, IP_TTL, &number(256)).fails(EINVAL);
    send_with(a, &to, IPPROTO_IP, IP_TTL, &[1, 2]).fails(EINVAL);
    send_with(a, &to, IPPROTO_IP, 200, &number(1)).fails(EINVAL);
    // From another address of this machine.
    let other = [&0i32.to_ne_bytes()[..], &[127, 0, 0, 7], &[0; 4]].concat();
    send_with(a, &to, IPPROTO_IP, IP_PKTINFO, &other).is(1);
    let (mut from, mut n, mut byte) = (v4(0), 16u32, 0u8);
    sc!(SYS_recvfrom, b, &raw mut byte, 1, 0, &raw mut from, &raw mut n).is(1);
    assert_eq!(from.sin_addr.s_addr.to_ne_bytes(), [127, 0, 0, 7]);
}

fn headers_of_datagrams_of_ipv6() {
    use crate::tcp::{port, set, v6};
    let loopback = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let (a, b) = (new("u6"), new("u6"));
    let at = v6(loopback, 0);
    sc!(SYS_bind, b, &raw const at, 28).is(0);
    let to = v6(loopback, port(b));
    for option in [IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS] {
        set(b, IPPROTO_IPV6, option, 1).is(0);
    }
    set(a, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 5).is(0);
    set(a, IPPROTO_IPV6, IPV6_TCLASS, 0x28).is(0);
    sc!(SYS_sendto, a, c"x".as_ptr(), 1, 0, &raw const to, 28).is(1);
    let info = [&loopback[..], &1i32.to_ne_bytes()].concat();
    let wanted = vec![
        (IPPROTO_IPV6, IPV6_PKTINFO, info),
        (IPPROTO_IPV6, IPV6_HOPLIMIT, number(5)),
        (IPPROTO_IPV6, IPV6_TCLASS, number(0x28)),
    ];
    assert_eq!(receive(b).1, wanted);
    send_with(a, &to, IPPROTO_IPV6, IPV6_HOPLIMIT, &number(77)).is(1);
    assert_eq!(receive(b).1[1].2, number(77));
    send_with(a, &to, IPPROTO_IPV6, IPV6_TCLASS, &number(3)).is(1);
    assert_eq!(receive(b).1[2].2, number(3));
    send_with(a, &to, IPPROTO_IPV6, IPV6_HOPLIMIT, &number(256)).fails(EINVAL);
}

fn times_of_messages() {
    use crate::tcp::{bind, port, set, v4};
    let b = new("u4");
    bind(b, 0).is(0);
    let to = v4(port(b));
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()).is(0);
    let now = || {
        let mut time = [0i64; 2];
        sc!(SYS_clock_gettime, CLOCK_REALTIME, time.as_mut_ptr()).is(0);
        time
    };
    for (option, unit) in [(SO_TIMESTAMP, 1000), (SO_TIMESTAMPNS, 1)] {
        for s in [b, pair[1]] {
            set(s, SOL_SOCKET, option, 1).is(0);
            let before = now();
            match s == b {
                true => sc!(SYS_sendto, new("u4"), c"x".as_ptr(), 1, 0, &raw const to, 16).is(1),
                false => sc!(SYS_write, pair[0], c"x".as_ptr(), 1).is(1),
            }
            let (_, beside) = receive(s);
            let after = now();
            assert_eq!((beside.len(), beside[0].0, beside[0].1), (1, SOL_SOCKET, option));
            let part = |at: usize| i64::from_ne_bytes(beside[0].2[at..at + 8].try_into().unwrap());
            let ns = |sec: i64, ns: i64| sec * 1_000_000_000 + ns;
            let told = ns(part(0), part(8) * unit);
            let earliest = ns(before[0], before[1] / unit * unit);
            assert!((earliest..=ns(after[0], after[1])).contains(&told), "{option}: {told}");
        }
    }
}

fn what_is_left() {
    use crate::tcp::{bind, connect, port, set};
    const TCP_INQ: i32 = 36;
    let (l, c) = (new("t4"), new("t4"));
    bind(l, 0).is(0);
    sc!(SYS_listen, l, 1).is(0);
    connect(c, port(l)).is(0);
    let s = sc!(SYS_accept, l, 0, 0).fd();
    set(s, IPPROTO_TCP, TCP_INQ, 1).is(0);
    let data = [7u8; 100];
    sc!(SYS_write, c, data.as_ptr(), 100).is(100);
    let (got, beside) = receive(s);
    assert_eq!((got.len(), beside), (64, vec![(IPPROTO_TCP, TCP_INQ, number(36))]));
}

fn addresses_of_others() {
    use crate::tcp::{set, v4};
    let mut there = v4(0);
    there.sin_addr.s_addr = u32::from_ne_bytes([192, 0, 2, 1]);
    let bind = |s: i32| sc!(SYS_bind, s, &raw const there, 16);
    for kind in ["u4", "t4"] {
        let s = new(kind);
        bind(s).fails(EADDRNOTAVAIL);
        set(s, IPPROTO_IP, IP_FREEBIND, 1).is(0);
        bind(s).is(0);
    }
}
