//! The calls on sockets, all on this machine's loopback or without any network.

use super::draft::{Draft, Kind, Row, SOCKETS};
use super::observe::{PORT_PROGRAMS, PORTS};
use super::program::{INPUT, Norm, OUTPUT};
use crate::sys::*;

const STREAM: i32 = SOCK_STREAM | SOCK_NONBLOCK;
const DGRAM: i32 = SOCK_DGRAM | SOCK_NONBLOCK;
const SEQ: i32 = SOCK_SEQPACKET | SOCK_NONBLOCK;
const MESSAGE: &[i32] = &[
    MSG_DONTWAIT,
    MSG_PEEK,
    MSG_TRUNC,
    MSG_NOSIGNAL,
    MSG_MORE,
    MSG_OOB,
    MSG_WAITALL,
    MSG_ERRQUEUE,
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    MSG_DONTWAIT,
    MSG_DONTWAIT,
];

/// What gives a program its first sockets.
pub const OPENERS: &[Row] = &[
    (SYS_socketpair, 8, |d| {
        d.num(i64::from(AF_UNIX));
        d.of(&[i64::from(STREAM), i64::from(DGRAM), i64::from(SEQ), i64::from(STREAM)]);
        d.num(0);
        d.makes_pair(Kind::Unix, Kind::Unix);
    }),
    (SYS_socket, 4, |d| {
        d.num(i64::from(AF_UNIX));
        d.of(&[i64::from(STREAM), i64::from(DGRAM), i64::from(SEQ)]);
        d.num(0);
        d.makes(Kind::Unix);
    }),
    (SYS_socket, 4, |d| {
        d.of(&[i64::from(AF_INET), i64::from(AF_INET), i64::from(AF_INET6)]);
        d.num(i64::from(STREAM));
        d.num(0);
        d.makes(Kind::Tcp);
    }),
    (SYS_socket, 3, |d| {
        d.of(&[i64::from(AF_INET), i64::from(AF_INET6)]);
        d.num(i64::from(DGRAM));
        d.num(0);
        d.makes(Kind::Udp);
    }),
];

/// An address as bytes, mostly of the kind that the socket takes.
fn address(d: &mut Draft) -> Vec<u8> {
    let kind = d.kind_of_first();
    let is_unix = kind == Some(Kind::Unix) || d.chance(12);
    if is_unix {
        let name = d.rng.of(&[
            &b"sock\0"[..],
            b"sock\0",
            b"sock2\0",
            b"d/sock\0",
            b"f\0",
            b"missing/s\0",
            b"\0abc",
            b"\0abd",
            b"",
        ]);
        let mut bytes = (AF_UNIX as u16).to_ne_bytes().to_vec();
        bytes.extend(name);
        if name.starts_with(b"\0") {
            bytes.extend(d.index.to_ne_bytes());
        }
        return bytes;
    }
    let port = (PORTS + d.index % PORT_PROGRAMS * 4 + d.rng.below(3)) as u16;
    let port = if d.chance(12) { 0 } else { port };
    if d.chance(4) {
        let mut bytes = (AF_INET6 as u16).to_ne_bytes().to_vec();
        bytes.extend(port.to_be_bytes());
        bytes.extend([0; 4]);
        let ip: [u8; 16] = d.rng.of(&[
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            [0; 16],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1],
        ]);
        bytes.extend(ip);
        bytes.extend([0; 4]);
        return bytes;
    }
    let family =
        d.rng.of(&[AF_INET, AF_INET, AF_INET, AF_INET, AF_INET, AF_INET, AF_UNSPEC, 77]) as u16;
    let mut bytes = family.to_ne_bytes().to_vec();
    bytes.extend(port.to_be_bytes());
    let ip: [u8; 4] = d.rng.of(&[
        [127, 0, 0, 1],
        [127, 0, 0, 1],
        [127, 0, 0, 1],
        [0; 4],
        [127, 0, 0, 2],
        [192, 0, 2, 1],
        [255; 4],
    ]);
    bytes.extend(ip);
    bytes.extend([0; 8]);
    bytes
}

fn name(d: &mut Draft) {
    let bytes = address(d);
    d.input(&bytes);
    match d.chance(20) {
        true => d.of(&[0, 1, 2, 8, 15, 110, 111, 128, 129, -1]),
        false => d.num(bytes.len() as i64),
    }
}

/// Room for an address and the length of the room.
fn name_out(d: &mut Draft) {
    if d.chance(5) {
        d.num(0);
        d.num(0);
        return;
    }
    d.out_as(128, Norm::Address);
    let length = d.rng.of(&[128u32, 128, 128, 16, 4, 2, 0, u32::MAX]);
    let at = d.input(&length.to_ne_bytes());
    d.shows(at, 4);
}

/// A message header with data, and seldom a name or descriptors.
fn message(d: &mut Draft, is_output: bool) {
    let count = d.rng.below(4);
    let mut vectors = Vec::new();
    for _ in 0..count {
        let bytes = d.rng.of(&[0u64, 1, 5, 36, 100, 30]);
        let at = match is_output {
            true => OUTPUT + usize::from(d.room(104)),
            false => INPUT + usize::from(d.put(&[b'm'; 104])),
        };
        let at = if d.chance(30) { 0x10 } else { at };
        vectors.extend([at as u64, bytes]);
    }
    let vectors: Vec<u8> = vectors.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let vectors = INPUT as u64 + u64::from(d.put(&vectors));
    let (mut name, mut name_bytes) = (0, 0);
    let (mut control, mut control_bytes) = (0, 0);
    if is_output {
        if d.chance(2) {
            let at = d.room(128);
            (name, name_bytes) = (OUTPUT + usize::from(at), 128);
            d.call.norms.push((at, Norm::Address));
        }
        if d.chance(2) {
            let at = d.room(64);
            (control, control_bytes) =
                (OUTPUT + usize::from(at), d.rng.of(&[64u64, 24, 20, 16, 10]));
            d.call.norms.push((at, Norm::Control));
        }
    } else {
        if d.chance(4) {
            let bytes = address(d);
            (name, name_bytes) = (INPUT + usize::from(d.put(&bytes)), bytes.len() as u64);
        }
        if d.chance(4) {
            let kind = d.rng.of(&[1u64, 1, 1, 9]);
            let words = [d.rng.of(&[20u64, 20, 20, 24, 16, 15, 100]), 1 | kind << 32, 0];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let at = d.put(&bytes);
            let fd = d.pick(&[Kind::File, Kind::PipeRead, Kind::Event]);
            d.fix(at + 16, 4, fd);
            (control, control_bytes) = (INPUT + usize::from(at), 24);
        }
    }
    let header = [name as u64, name_bytes, vectors, count, control as u64, control_bytes, 0];
    let at = d.words(&header);
    d.shows_words(at, &[8, 40, 48]);
}

fn option(d: &mut Draft) {
    let (level, names): (i32, &[i64]) = d.rng.of(&[
        (
            SOL_SOCKET,
            &[
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 16, 18, 19, 20, 21, 29, 30, 35, 38, 39,
                40, 42, 49, 99,
            ][..],
        ),
        (SOL_SOCKET, &[2, 4, 9, 16, 18][..]),
        (IPPROTO_TCP, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 18, 23, 25, 99][..]),
        (IPPROTO_IP, &[1, 2, 6, 8, 10, 11, 12, 13, 14, 15, 19, 24, 32, 33, 34, 49, 99][..]),
        (IPPROTO_IPV6, &[16, 17, 18, 19, 23, 24, 25, 26, 49, 51, 66, 67, 99][..]),
        (77, &[1][..]),
    ]);
    d.num(i64::from(level));
    d.of(names);
}

/// The table.
pub const ROWS: &[Row] = &[
    (SYS_socket, 8, |d| {
        d.of(&[1, 2, 10, 2, 1, 99, 0, 16, 17]);
        d.of(&[
            i64::from(STREAM),
            i64::from(DGRAM),
            i64::from(SEQ),
            i64::from(STREAM),
            2048 | 3,
            2048 | 7,
        ]);
        d.of(&[0, 0, 0, 6, 17, 1, 999]);
        d.makes(Kind::Tcp)
    }),
    (SYS_socketpair, 6, |d| {
        d.of(&[1, 1, 1, 1, 2, 99]);
        d.of(&[i64::from(STREAM), i64::from(DGRAM), i64::from(SEQ), 77]);
        d.of(&[0, 0, 0, 1, 5]);
        d.makes_pair(Kind::Unix, Kind::Unix)
    }),
    (SYS_bind, 18, |d| {
        d.fd(SOCKETS);
        name(d)
    }),
    (SYS_listen, 12, |d| {
        d.fd(SOCKETS);
        d.of(&[0, 1, 5, -1])
    }),
    (SYS_connect, 18, |d| {
        d.fd(SOCKETS);
        name(d)
    }),
    (SYS_accept, 5, |d| {
        d.fd(SOCKETS);
        name_out(d);
        d.makes(Kind::Unix)
    }),
    (SYS_accept4, 12, |d| {
        d.fd(SOCKETS);
        name_out(d);
        d.of(&[2048, 2048, 2048 | 0x80000, 2048 | 1]);
        d.makes(Kind::Unix)
    }),
    (SYS_getsockname, 8, |d| {
        d.fd(SOCKETS);
        name_out(d)
    }),
    (SYS_getpeername, 8, |d| {
        d.fd(SOCKETS);
        name_out(d)
    }),
    (SYS_sendto, 18, |d| {
        d.fd(SOCKETS);
        d.data();
        d.flags_with(MSG_DONTWAIT | MSG_NOSIGNAL, MESSAGE);
        if d.chance(2) {
            d.num(0);
            d.num(0)
        } else {
            name(d)
        }
    }),
    (SYS_recvfrom, 18, |d| {
        d.fd(SOCKETS);
        d.buffer();
        d.flags_with(MSG_DONTWAIT, MESSAGE);
        name_out(d)
    }),
    (SYS_sendmsg, 16, |d| {
        d.fd(SOCKETS);
        message(d, false);
        d.flags_with(MSG_DONTWAIT | MSG_NOSIGNAL, MESSAGE)
    }),
    (SYS_recvmsg, 16, |d| {
        d.fd(SOCKETS);
        message(d, true);
        d.flags_with(MSG_DONTWAIT, MESSAGE)
    }),
    (SYS_shutdown, 10, |d| {
        d.fd(SOCKETS);
        d.of(&[0, 1, 2, 3, -1])
    }),
    (SYS_setsockopt, 20, |d| {
        d.fd(SOCKETS);
        option(d);
        let v = d.rng.of(&[0u64, 1, 1, 2, 100, 4096, 0xffff_ffff, 1 << 20]);
        d.words(&[v, 0]);
        d.of(&[4, 4, 4, 4, 8, 16, 3, 1, 0, -1])
    }),
    (SYS_getsockopt, 20, |d| {
        d.fd(SOCKETS);
        option(d);
        d.out(64);
        let n = d.rng.of(&[4u32, 4, 4, 8, 16, 64, 0, 2, u32::MAX]);
        let at = d.input(&n.to_ne_bytes());
        d.shows(at, 4)
    }),
    (SYS_read, 10, |d| {
        d.fd(SOCKETS);
        d.buffer();
    }),
    (SYS_write, 10, |d| {
        d.fd(SOCKETS);
        d.data()
    }),
    (SYS_close, 4, |d| d.fd(SOCKETS)),
    (SYS_poll, 8, |d| {
        let fd = d.pick(SOCKETS);
        let at = d.words(&[0x2055 << 32]);
        d.fix(at, 4, fd);
        d.num(1);
        d.num(0);
        d.shows(at, 8)
    }),
    (SYS_ioctl, 6, |d| {
        d.fd(SOCKETS);
        d.of(&[0x541b, 0x8905, 0x8906, 0x894c]);
        d.out(8);
    }),
    (SYS_ioctl, 2, |d| {
        d.fd(SOCKETS);
        d.num(0x5411);
        d.out_as(8, Norm::Amount);
    }),
    (SYS_fstat, 2, |d| {
        d.fd(SOCKETS);
        d.out_as(144, Norm::Stat)
    }),
];
