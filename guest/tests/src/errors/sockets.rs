//! Calls on sockets.

use super::fixture::Kind;
use super::rows::Arg;
use crate::sys::*;
use crate::{calls, row};
use Arg::{Fd, Fixed, Flags, In, Message, Out, Size, Values};

/// struct sockaddr_in: family, port, address, from the lowest byte.
const fn internet(family: u64, port: u16, address: [u8; 4]) -> u64 {
    family | (port.to_be() as u64) << 16 | (u32::from_ne_bytes(address) as u64) << 32
}

const HERE: &[u64] = &[internet(2, 0, [127, 0, 0, 1]), 0];
const NOWHERE: &[u64] = &[internet(2, 1, [127, 0, 0, 1]), 0];
const ADDRESSES: &[(&str, &[u64])] = &[
    ("family-0", &[internet(0, 0, [127, 0, 0, 1]), 0]),
    ("family-1", &[internet(1, 0, [127, 0, 0, 1]), 0]),
    ("family-10", &[internet(10, 0, [0; 4]), 0]),
    ("family-99", &[internet(99, 0, [127, 0, 0, 1]), 0]),
    ("not-ours", &[internet(2, 0, [192, 0, 2, 1]), 0]),
    ("broadcast", &[internet(2, 9, [255; 4]), 0]),
    ("any", &[internet(2, 9, [0; 4]), 0]),
];
/// AF_UNIX and a path, from the lowest byte.
const NAME: &[u64] = &[0x656e_6f6e_2f2e_0001, 0];
const NAMES: &[(&str, &[u64])] = &[
    ("family-2", &[0x656e_6f6e_2f2e_0002, 0]),
    ("family-0", &[0x656e_6f6e_2f2e_0000, 0]),
    // "./file", which is no socket; "./dir"; "none/x".
    ("file", &[0x656c_6966_2f2e_0001, 0]),
    ("folder", &[0x0072_6964_2f2e_0001, 0]),
    ("socket", &[0x6b63_6f73_2f2e_0001, 0x7465]),
];
const LENGTH: &[(&str, &[u64])] = &[("0", &[0]), ("-1", &[0xffff_ffff])];
const LENGTHS: &[i64] = &[0, 1, 2, 3, 7, 15, 110, 111, 128, 129, 1 << 31, -1];

const LEVELS: &[i64] = &[0, 1, 6, 17, 41, 58, 99, 270, -1];
calls! { sockets:
    row!("socket", Values(AF_INET as i64, &[0, 1, 10, 16, 46, 99, -1]), Values(SOCK_STREAM as i64,
        &[0, 2, 3, 4, 5, 10, 0x10_0001, -1]), Values(0, &[6, 17, 1, 99, 256, -1])),
    row!("socket raw", AF_INET, SOCK_RAW, Values(1, &[0, 255, 256, -1])),
    row!("socket unix", AF_UNIX, Values(SOCK_STREAM as i64, &[0, 2, 3, 4, 5, -1]), Values(0, &[1, 2,
        -1])),
    row!("socketpair", Values(AF_UNIX as i64, &[0, 2, 10, 16, 99, -1]), Values(SOCK_STREAM as i64,
        &[0, 3, 5, 6, -1]), Values(0, &[1, 2, -1]), Out),
    row!("bind", Fd(Kind::TcpNew), In(HERE, ADDRESSES), Values(16, LENGTHS)),
    row!("bind udp", Fixed(Kind::UdpNew), In(HERE, ADDRESSES), Values(16, LENGTHS)),
    row!("bind port-1", Fixed(Kind::TcpNew), In(NOWHERE, &[]), 16).user(),
    row!("bind unix", Fd(Kind::UnixNew), In(NAME, NAMES), Values(10, LENGTHS)).keeps(),
    row!("connect", Fd(Kind::TcpListening), In(NOWHERE, ADDRESSES), Values(16, LENGTHS)),
    row!("connect udp", Fixed(Kind::UdpNew), In(NOWHERE, ADDRESSES), Values(16, LENGTHS)),
    row!("connect unix", Fd(Kind::UnixNew), In(NAME, NAMES), Values(10, LENGTHS)),
    row!("listen", Fd(Kind::TcpNew), Values(1, &[0, i32::MAX as i64, -1])),
    row!("accept", Fd(Kind::TcpListening), Out, In(&[16], LENGTH)),
    row!("accept4", Fd(Kind::TcpListening), Out, In(&[16], LENGTH), Flags(0)),
    row!("getsockname", Fd(Kind::TcpNew), Out, In(&[16], LENGTH)),
    row!("getpeername", Fd(Kind::UnixStream), Out, In(&[16], LENGTH)),
    row!("shutdown", Fd(Kind::UnixStream), Values(0, &[1, 2, 3, -1])),
    row!("sendto", Fd(Kind::UnixStream), In(&[1], &[]), Size(8), Flags(0x4040), 0, 0),
    row!("sendto address", Fd(Kind::UdpNew), In(&[1], &[]), Values(8, &[65508, -1]), Flags(0x4040),
        In(NOWHERE, ADDRESSES), Values(16, LENGTHS)),
    row!("recvfrom", Fd(Kind::UnixStream), Out, Size(8), Flags(0x40), Out, In(&[16], LENGTH)),
    row!("sendmsg", Fd(Kind::UnixStream), Message, Flags(0x4040)),
    row!("sendmsg udp", Fixed(Kind::UdpNew), Message, Flags(0x4040)),
    row!("recvmsg", Fd(Kind::UnixStream), Message, Flags(0x40)),
    row!("sendmmsg", Fd(Kind::UnixStream), Message, Values(1, &[0]), Flags(0x4040)),
    row!("recvmmsg", Fd(Kind::UnixStream), Message, Values(1, &[0]), Flags(0x40), In(&[0, 0],
        &[("nanoseconds-10^9", &[0, 1_000_000_000]), ("seconds--1", &[u64::MAX, 0])])),
    row!("setsockopt", Fd(Kind::TcpNew), Values(SOL_SOCKET as i64, LEVELS),
        Values(SO_REUSEADDR as i64, &[0, 1, 3, 4, 14, 99, 250, -1]), In(&[0], &[]), Values(4, &[0,
        1, 3, 5, 1 << 20, 1 << 31, -1])),
    row!("getsockopt", Fd(Kind::TcpNew), Values(SOL_SOCKET as i64, LEVELS), Values(SO_TYPE as i64,
        &[0, 1, 99, 250, -1]), Out, In(&[16], LENGTH)),
    row!("setsockopt TCP", Fd(Kind::TcpNew), IPPROTO_TCP, Values(TCP_NODELAY as i64, &[0, 99, 250,
        -1]), In(&[1], &[]), Values(4, &[0, 3, -1])),
    row!("getsockopt TCP", Fd(Kind::TcpNew), IPPROTO_TCP, Values(TCP_NODELAY as i64, &[0, 99, 250,
        -1]), Out, In(&[16], LENGTH)),
    row!("setsockopt IP", Fd(Kind::UdpNew), IPPROTO_IP, Values(IP_TTL as i64, &[0, 99, 250, -1]),
        In(&[64], &[("0", &[0]), ("256", &[256])]), Values(4, &[0, -1])),
    row!("getsockopt IP", Fd(Kind::UdpNew), IPPROTO_IP, Values(IP_TTL as i64, &[0, 99, 250, -1]),
        Out, In(&[16], LENGTH)),
    row!("setsockopt TIMEO", Fd(Kind::UnixStream), SOL_SOCKET, SO_RCVTIMEO, In(&[0, 0],
        &[("microseconds-10^6", &[0, 1_000_000]), ("microseconds--1", &[0, u64::MAX])]), Values(16,
        &[8, -1])),
    row!("setsockopt LINGER", Fd(Kind::TcpNew), SOL_SOCKET, SO_LINGER, In(&[0], &[]), Values(8, &[4,
        -1])),
    row!("setsockopt PASSCRED", Fd(Kind::UnixStream), SOL_SOCKET, SO_PASSCRED, In(&[1], &[]), 4),
    row!("getsockopt PEERCRED", Fd(Kind::UnixStream), SOL_SOCKET, SO_PEERCRED, Out, In(&[12],
        &[("0", &[0]), ("-1", &[0xffff_ffff])])),
    row!("getsockopt PEERSEC", Fd(Kind::UnixStream), SOL_SOCKET, SO_PEERSEC, Out, In(&[12], &[])),
    row!("setsockopt PEEK_OFF", Fd(Kind::UnixStream), SOL_SOCKET, SO_PEEK_OFF, In(&[1], &[("-2",
        &[0xffff_fffe])]), 4),
    row!("setsockopt MARK", Fixed(Kind::UdpNew), SOL_SOCKET, SO_MARK, In(&[1], &[]), 4),
    row!("setsockopt RCVBUFFORCE", Fixed(Kind::UdpNew), SOL_SOCKET, SO_RCVBUFFORCE, In(&[4096],
        &[]), 4),
    row!("setsockopt PRIORITY", Fixed(Kind::UdpNew), SOL_SOCKET, SO_PRIORITY, In(&[1], &[("7",
        &[7])]), 4),
}
