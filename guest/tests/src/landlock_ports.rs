//! Landlock's rights to ports, call by call, for comparing kernels: each call that binds or
//! connects is made unrestricted and under rulesets, alone, one in another, and sixteen deep. A
//! cell is the answer; nobody states what it should be, for Linux does. Neighbours: `landlock_matrix.rs` does
//! the same with rights to files, `landlock.rs` states what is known.

use crate::landlock::{add_port, restrict, ruleset};
use crate::sc;
use crate::sys::*;

const BIND: u64 = 1;
const CONNECT: u64 = 2;
const BOTH: u64 = BIND | CONNECT;

/// The port of every call, the one beside it, and one where somebody listens at both families.
const PORT: u16 = 40_001;
const BESIDE: u16 = 40_002;
const LISTENING: u16 = 40_003;

/// A call: its name, the socket that it has from before the restriction, and the call.
struct Call(&'static str, fn() -> i32, fn(i32) -> Res);

fn socket(family: i32, kind: i32, protocol: i32) -> i32 {
    sc!(SYS_socket, family, kind | SOCK_CLOEXEC, protocol).map_or(-1, |fd| fd as i32)
}

fn tcp() -> i32 {
    socket(AF_INET, SOCK_STREAM, 0)
}

fn tcp6() -> i32 {
    socket(AF_INET6, SOCK_STREAM, 0)
}

fn udp() -> i32 {
    socket(AF_INET, SOCK_DGRAM, 0)
}

fn nothing() -> i32 {
    -1
}

/// `struct sockaddr_in`, with any family and address.
fn v4(family: i32, ip: [u8; 4], port: u16) -> [u8; 16] {
    let mut address = [0; 16];
    address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&ip);
    address
}

/// `struct sockaddr_in6`, with any family and address.
fn v6(family: i32, ip: [u8; 16], port: u16) -> [u8; 28] {
    let mut address = [0; 28];
    address[..16].copy_from_slice(&v4(family, [0; 4], port));
    address[8..24].copy_from_slice(&ip);
    address
}

const HERE: [u8; 4] = [127, 0, 0, 1];
const ANY: [u8; 4] = [0; 4];
const HERE6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ANY6: [u8; 16] = [0; 16];
/// 127.0.0.1 as IPv6 writes it.
const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

fn bind(socket: i32, address: &[u8]) -> Res {
    sc!(SYS_bind, socket, address.as_ptr(), address.len())
}

fn connect(socket: i32, address: &[u8]) -> Res {
    sc!(SYS_connect, socket, address.as_ptr(), address.len())
}

fn send(socket: i32, address: &[u8]) -> Res {
    sc!(SYS_sendto, socket, c"x".as_ptr(), 1, 0, address.as_ptr(), address.len()).map(|_| 0)
}

/// The first error of several calls in turn.
fn all(answers: &[Res]) -> Res {
    answers.iter().copied().find(Result::is_err).unwrap_or(Ok(0))
}

/// Every way to bind and to connect, and what lies beside it.
const CALLS: &[Call] = &[
    Call("bind TCP", tcp, |s| bind(s, &v4(AF_INET, HERE, PORT))),
    Call("bind TCP to any address", tcp, |s| bind(s, &v4(AF_INET, ANY, PORT))),
    Call("bind TCP, the socket of afterwards", nothing, |_| bind(tcp(), &v4(AF_INET, HERE, PORT))),
    Call("bind TCP to any port", tcp, |s| bind(s, &v4(AF_INET, HERE, 0))),
    Call("bind TCP beside", tcp, |s| bind(s, &v4(AF_INET, HERE, BESIDE))),
    Call("bind TCP where somebody listens", tcp, |s| bind(s, &v4(AF_INET, HERE, LISTENING))),
    Call("bind TCP twice", tcp, |s| {
        let address = v4(AF_INET, HERE, PORT);
        all(&[bind(s, &address), bind(s, &address)])
    }),
    Call("bind TCP elsewhere", tcp, |s| bind(s, &v4(AF_INET, [192, 0, 2, 1], PORT))),
    Call("bind TCP, no family", tcp, |s| bind(s, &v4(AF_UNSPEC, ANY, PORT))),
    Call("bind TCP, no family, an address", tcp, |s| bind(s, &v4(AF_UNSPEC, HERE, PORT))),
    Call("bind TCP, the other family", tcp, |s| bind(s, &v6(AF_INET6, HERE6, PORT))),
    Call("bind TCP, a family that is not", tcp, |s| bind(s, &v4(AF_UNIX, HERE, PORT))),
    Call("bind TCP, too short", tcp, |s| bind(s, &v4(AF_INET, HERE, PORT)[..8])),
    Call("bind TCP, a family alone", tcp, |s| bind(s, &v4(AF_INET, HERE, PORT)[..2])),
    Call("bind TCP, half a family", tcp, |s| bind(s, &v4(AF_INET, HERE, PORT)[..1])),
    Call("bind TCP, nothing", tcp, |s| bind(s, &[])),
    Call("bind TCP 6", tcp6, |s| bind(s, &v6(AF_INET6, HERE6, PORT))),
    Call("bind TCP 6 to any address", tcp6, |s| bind(s, &v6(AF_INET6, ANY6, PORT))),
    Call("bind TCP 6 to any port", tcp6, |s| bind(s, &v6(AF_INET6, HERE6, 0))),
    Call("bind TCP 6, mapped", tcp6, |s| bind(s, &v6(AF_INET6, MAPPED, PORT))),
    Call("bind TCP 6, no family", tcp6, |s| bind(s, &v6(AF_UNSPEC, ANY6, PORT))),
    Call("bind TCP 6, the other family", tcp6, |s| bind(s, &v4(AF_INET, ANY, PORT))),
    Call("bind TCP 6, too short", tcp6, |s| bind(s, &v6(AF_INET6, HERE6, PORT)[..20])),
    Call("bind UDP", udp, |s| bind(s, &v4(AF_INET, HERE, PORT))),
    Call("bind UDP, no family", udp, |s| bind(s, &v4(AF_UNSPEC, ANY, PORT))),
    Call("bind by its name", || socket(AF_UNIX, SOCK_STREAM, 0), |s| bind(s, b"\x01\0\0limen")),
    Call(
        "bind no socket",
        || open("/dev/null", O_RDWR).fd(),
        |s| bind(s, &v4(AF_INET, HERE, PORT)),
    ),
    Call("listen unbound", tcp, |s| sc!(SYS_listen, s, 1)),
    Call(
        "listen, bound before",
        || {
            let socket = tcp();
            let _ = bind(socket, &v4(AF_INET, HERE, PORT));
            socket
        },
        |s| sc!(SYS_listen, s, 1),
    ),
    Call("connect TCP", tcp, |s| connect(s, &v4(AF_INET, HERE, LISTENING))),
    Call("connect TCP, the socket of afterwards", nothing, |_| {
        connect(tcp(), &v4(AF_INET, HERE, LISTENING))
    }),
    Call("connect TCP where nobody listens", tcp, |s| connect(s, &v4(AF_INET, HERE, PORT))),
    Call("connect TCP beside", tcp, |s| connect(s, &v4(AF_INET, HERE, BESIDE))),
    Call("connect TCP to port 0", tcp, |s| connect(s, &v4(AF_INET, HERE, 0))),
    Call("connect TCP to any address", tcp, |s| connect(s, &v4(AF_INET, ANY, LISTENING))),
    Call("connect TCP twice", tcp, |s| {
        let address = v4(AF_INET, HERE, LISTENING);
        all(&[connect(s, &address), connect(s, &address)])
    }),
    Call("connect TCP, apart again", tcp, |s| {
        let address = v4(AF_INET, HERE, LISTENING);
        all(&[connect(s, &address), connect(s, &v4(AF_UNSPEC, HERE, LISTENING))])
    }),
    Call("connect TCP, no family", tcp, |s| connect(s, &v4(AF_UNSPEC, HERE, LISTENING))),
    Call(
        "connect TCP, connected before",
        || {
            let socket = tcp();
            let _ = connect(socket, &v4(AF_INET, HERE, LISTENING));
            socket
        },
        |s| connect(s, &v4(AF_INET, HERE, LISTENING)),
    ),
    Call(
        "connect TCP, apart, connected before",
        || {
            let socket = tcp();
            let _ = connect(socket, &v4(AF_INET, HERE, LISTENING));
            socket
        },
        |s| connect(s, &v4(AF_UNSPEC, HERE, LISTENING)),
    ),
    Call("connect TCP, the other family", tcp, |s| connect(s, &v6(AF_INET6, HERE6, LISTENING))),
    Call("connect TCP, a family that is not", tcp, |s| connect(s, &v4(AF_UNIX, HERE, LISTENING))),
    Call("connect TCP, too short", tcp, |s| connect(s, &v4(AF_INET, HERE, LISTENING)[..8])),
    Call("connect TCP, a family alone", tcp, |s| connect(s, &v4(AF_INET, HERE, LISTENING)[..2])),
    Call("connect TCP, half a family", tcp, |s| connect(s, &v4(AF_INET, HERE, LISTENING)[..1])),
    Call("connect TCP, nothing", tcp, |s| connect(s, &[])),
    Call("connect TCP 6", tcp6, |s| connect(s, &v6(AF_INET6, HERE6, LISTENING))),
    Call("connect TCP 6, mapped", tcp6, |s| connect(s, &v6(AF_INET6, MAPPED, LISTENING))),
    Call("connect TCP 6, no family", tcp6, |s| connect(s, &v6(AF_UNSPEC, HERE6, LISTENING))),
    Call("connect TCP 6, the other family", tcp6, |s| connect(s, &v4(AF_INET, HERE, LISTENING))),
    Call("connect TCP 6, too short", tcp6, |s| connect(s, &v6(AF_INET6, HERE6, LISTENING)[..20])),
    Call("connect UDP", udp, |s| connect(s, &v4(AF_INET, HERE, PORT))),
    Call("connect UDP, no family", udp, |s| connect(s, &v4(AF_UNSPEC, HERE, PORT))),
    Call("send by UDP", udp, |s| send(s, &v4(AF_INET, HERE, BESIDE))),
    Call("send by TCP to an address", tcp, |s| send(s, &v4(AF_INET, HERE, LISTENING))),
    Call(
        "send by TCP, connected before",
        || {
            let socket = tcp();
            let _ = connect(socket, &v4(AF_INET, HERE, LISTENING));
            socket
        },
        |s| send(s, &v4(AF_INET, HERE, LISTENING)),
    ),
    Call("bind, then connect TCP", tcp, |s| {
        all(&[bind(s, &v4(AF_INET, HERE, PORT)), connect(s, &v4(AF_INET, HERE, LISTENING))])
    }),
    Call("a pair of sockets", nothing, |_| {
        let mut pair = [0_i32; 2];
        sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair.as_mut_ptr())
    }),
    Call("make a socket", nothing, |_| sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).map(|_| 0)),
    Call("ask for a socket's name", tcp, |s| {
        let (mut address, mut len) = ([0_u8; 16], 16_u32);
        sc!(SYS_getsockname, s, address.as_mut_ptr(), &raw mut len)
    }),
    Call("set an option", tcp, |s| {
        let on = 1_i32;
        sc!(SYS_setsockopt, s, SOL_SOCKET, SO_REUSEADDR, &raw const on, 4)
    }),
];

/// A ruleset: what it handles, and what it grants where.
type Rules = (u64, &'static [(u64, u16)]);

const SIXTEEN: [Rules; 16] = [(BOTH, &[(BOTH, LISTENING), (BOTH, PORT)]); 16];

/// How a process is restricted before the call: rulesets, the outermost first.
const RESTRICTIONS: &[&[Rules]] = &[
    &[],
    &[(BIND, &[])],
    &[(CONNECT, &[])],
    &[(BOTH, &[])],
    &[(BOTH, &[(BIND, PORT)])],
    &[(BOTH, &[(CONNECT, PORT)])],
    &[(BOTH, &[(BIND, LISTENING), (CONNECT, LISTENING)])],
    &[(BOTH, &[(BOTH, PORT), (BOTH, LISTENING)])],
    &[(BOTH, &[(BOTH, BESIDE)])],
    &[(BOTH, &[(BOTH, 0)])],
    &[(BIND, &[(BIND, 0), (BIND, PORT)])],
    // The same port in two rules of one ruleset: both count.
    &[(BOTH, &[(BIND, LISTENING), (BIND, PORT), (CONNECT, PORT), (CONNECT, LISTENING)])],
    // One in another: what both grant, and what the other does not handle.
    &[(BOTH, &[(BOTH, PORT), (BOTH, LISTENING)]), (BOTH, &[(BOTH, PORT)])],
    &[(BOTH, &[(BOTH, PORT)]), (BOTH, &[(BOTH, PORT), (BOTH, LISTENING)])],
    &[(BIND, &[(BIND, PORT)]), (CONNECT, &[(CONNECT, LISTENING)])],
    &[(BOTH, &[(BIND, PORT), (CONNECT, LISTENING)]), (BIND, &[(BIND, BESIDE)])],
    &[(BOTH, &[(BIND, PORT)]), (BOTH, &[(CONNECT, LISTENING)])],
    &[(BIND, &[(BIND, PORT)]), (BIND, &[(BIND, PORT)]), (BIND, &[(BIND, BESIDE)])],
    &SIXTEEN,
];

/// The answer under a restriction.
fn cell(call: &Call, restriction: &[Rules]) -> String {
    let listeners = [
        (tcp(), v4(AF_INET, HERE, LISTENING).to_vec()),
        (tcp6(), v6(AF_INET6, HERE6, LISTENING).to_vec()),
    ];
    for (socket, address) in &listeners {
        let on = 1_i32;
        sc!(SYS_setsockopt, *socket, SOL_SOCKET, SO_REUSEADDR, &raw const on, 4).is(0);
        bind(*socket, address).is(0);
        sc!(SYS_listen, *socket, 16).is(0);
    }
    let pid = fork(|| {
        let socket = call.1();
        for &(handled, grants) in restriction {
            let rules = ruleset(0, handled);
            grants.iter().for_each(|&(rights, port)| add_port(rules, rights, port.into()).is(0));
            if let Err(error) = restrict(rules) {
                return error;
            }
            close(rules);
        }
        call.2(socket).map_or_else(|error| error, |_| 0)
    });
    let answer = WEXITSTATUS(wait(pid));
    listeners.iter().for_each(|(socket, _)| close(*socket));
    answer.to_string()
}

/// Prints a line for each call: its name, and a cell for each restriction.
pub fn main() -> bool {
    for call in CALLS {
        let cells: Vec<String> = RESTRICTIONS.iter().map(|how| cell(call, how)).collect();
        println!("row {}: {}", call.0, cells.join(" "));
    }
    println!("rows {}", CALLS.len());
    true
}
