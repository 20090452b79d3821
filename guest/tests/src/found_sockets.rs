//! What random programs found of sockets (`differ`): answers that a program can notice, mostly of
//! calls that fail, and in which order.

use crate::sys::*;
use crate::{sc, tests};

tests!("found_sockets":
    connects_and_sends, how_a_first_packet_is_set, netlink_has_its_own_level,
    what_cannot_be_sent_gives_no_name, names_come_before_the_peers, errors_are_not_data,
    broken_off_before_messages, options_of_no_length, families_of_raw_sockets,
    all_messages_count, urgent_by_either_version, who_would_wait_is_told_the_end,
    to_all_without_a_way, no_ip_for_raw_ipv6, raw_sockets_keep_no_place, what_a_receive_says_first,
    to_all_from_an_address, who_asks_for_nothing_hears_from_whom, unread_messages_break_off,
    values_of_no_length, long_requests, netlink_has_no_errors, kinds_of_icmp_before_the_way,
    who_was_refused_is_not_new, nothing_of_a_stream_is_nobodys, peers_without_a_port,
    no_ipv4_for_raw_ipv6, packets_stay_whole, what_is_held_back_takes_memory,
    urgent_bytes_passed_over, peers_of_raw_ipv6, addresses_without_a_port, no_bytes_lie_nowhere,
    ways_of_the_refused, what_could_be_of_an_interface, netlink_takes_no_descriptors,
    ports_of_a_range, who_hears_no_more_has_read, urgent_without_room, deaf_until_disconnected,
    long_packets_to_nobody, raw_packets_in_parts, parts_that_cannot_be_added, deaf_raw_sockets_send,
    windows_of_connections, several_messages_at_once, what_a_protocol_is_called, who_may_poll_more,
    numbers_that_are_nowhere, passed_on_before_it_is_read,
);

type Address = Vec<u8>;

fn socket(domain: i32, kind: i32, protocol: i32) -> i32 {
    sc!(SYS_socket, domain, kind, protocol).fd()
}

fn pair(kind: i32) -> [i32; 2] {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
    pair
}

/// An address of IPv4.
fn inet(port: u16, ip: [u8; 4]) -> Address {
    let mut at = vec![AF_INET as u8, 0];
    at.extend(port.to_be_bytes());
    at.extend(ip);
    at.resize(16, 0);
    at
}

/// An address of IPv6 whose last bytes are these.
fn inet6(port: u16, last: &[u8]) -> Address {
    let mut at = vec![0; 28];
    at[0] = AF_INET6 as u8;
    at[2..4].copy_from_slice(&port.to_be_bytes());
    at[24 - last.len()..24].copy_from_slice(last);
    at
}

/// The same address of another family.
fn of_family(family: i32, mut at: Address) -> Address {
    at[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    at
}

fn unix(name: &str) -> Address {
    let mut at = vec![AF_UNIX as u8, 0];
    at.extend(name.as_bytes());
    at.push(0);
    at
}

const LOOPBACK: [u8; 4] = [127, 0, 0, 1];
const MAPPED: [u8; 6] = [0xff, 0xff, 127, 0, 0, 1];

fn bind(socket: i32, to: &[u8]) -> Res {
    sc!(SYS_bind, socket, to.as_ptr(), to.len())
}

fn connect(socket: i32, to: &[u8]) -> Res {
    sc!(SYS_connect, socket, to.as_ptr(), to.len())
}

fn send(socket: i32, bytes: &[u8], flags: i32, to: Option<&[u8]>) -> Res {
    let flags = flags | MSG_NOSIGNAL;
    let (at, len) = to.map_or((std::ptr::null(), 0), |to| (to.as_ptr(), to.len()));
    sc!(SYS_sendto, socket, bytes.as_ptr(), bytes.len(), flags, at, len)
}

/// The same by sendmsg(2).
fn send_message(socket: i32, bytes: &[u8], flags: i32, to: Option<&[u8]>) -> Res {
    let (at, len) = to.map_or((std::ptr::null(), 0), |to| (to.as_ptr(), to.len()));
    let part = iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
    let header = [at as usize, len, &raw const part as usize, 1, 0, 0, 0];
    sc!(SYS_sendmsg, socket, header.as_ptr(), flags | MSG_NOSIGNAL)
}

fn receive(socket: i32, flags: i32) -> Result<Vec<u8>, i32> {
    let mut got = [0u8; 64];
    let flags = flags | MSG_DONTWAIT;
    let len = sc!(SYS_recvfrom, socket, got.as_mut_ptr(), got.len(), flags, 0, 0)?;
    Ok(got[..len].to_vec())
}

fn listen(socket: i32) -> Res {
    sc!(SYS_listen, socket, 5)
}

fn accept(socket: i32) -> Res {
    sc!(SYS_accept, socket, 0, 0)
}

fn name(socket: i32) -> Address {
    let (mut name, mut len) = (vec![0u8; 128], 128u32);
    sc!(SYS_getsockname, socket, name.as_mut_ptr(), &raw mut len).is(0);
    name.truncate(len as usize);
    name
}

fn set(socket: i32, level: i32, option: i32, value: i32) -> Res {
    sc!(SYS_setsockopt, socket, level, option, &raw const value, 4)
}

fn get(socket: i32, level: i32, option: i32) -> Result<i32, i32> {
    let (mut value, mut len) = (0i32, 4u32);
    sc!(SYS_getsockopt, socket, level, option, &raw mut value, &raw mut len).map(|_| value)
}

fn told(socket: i32) -> i16 {
    let mut entry = pollfd { fd: socket, events: !0, revents: 0 };
    sc!(SYS_poll, &raw mut entry, 1, 0).must();
    entry.revents & (POLLIN | POLLOUT | POLLPRI | POLLERR | POLLHUP | POLLRDHUP)
}

fn tcp_listener() -> (i32, Address) {
    let listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    bind(listener, &inet(0, LOOPBACK)).is(0);
    sc!(SYS_listen, listener, 100).is(0);
    (listener, name(listener))
}

/// MSG_FASTOPEN: a send that connects first, and says what connect(2) says.
fn connects_and_sends() {
    let (listener, at) = tcp_listener();
    let nobody = inet(1, LOOPBACK);
    for send in [send, send_message] {
        for flags in [0, SOCK_NONBLOCK] {
            let tcp = || socket(AF_INET, SOCK_STREAM | flags, 0);
            let waits = flags == 0;
            let other = tcp();
            let fails =
                |to: Option<&[u8]>, error| send(other, b"ab", MSG_FASTOPEN, to).fails(error);
            fails(None, EINVAL);
            fails(Some(&at[..8]), EINVAL);
            fails(Some(&of_family(AF_UNSPEC, at.clone())), EOPNOTSUPP);
            fails(Some(&inet6(9, &[1])), EAFNOSUPPORT);
            listen(other).is(0);
            fails(Some(&at), EISCONN);
            fails(None, EISCONN);
            let first = tcp();
            if waits {
                send(first, b"ab", MSG_FASTOPEN, Some(&at)).is(2);
            } else {
                send(first, b"ab", MSG_FASTOPEN, Some(&at)).fails(EINPROGRESS);
                send(first, b"ab", MSG_FASTOPEN, Some(&at)).is(2);
            }
            send(first, b"ab", MSG_FASTOPEN, Some(&at)).fails(EISCONN);
            send(first, b"ab", MSG_FASTOPEN, None).fails(EISCONN);
            send(first, b"c", 0, None).is(1);
            let served = accept(listener).fd();
            assert_eq!(read(served, 3), b"abc");
            let refused = tcp();
            if !waits {
                send(refused, b"ab", MSG_FASTOPEN, Some(&nobody)).fails(EINPROGRESS);
            }
            send(refused, b"ab", MSG_FASTOPEN, Some(&nobody)).fails(ECONNREFUSED);
            for socket in [other, first, served, refused] {
                close(socket);
            }
        }
    }
    // It means nothing to datagrams.
    let udp = socket(AF_INET, SOCK_DGRAM, 0);
    send(udp, b"ab", MSG_FASTOPEN, Some(&inet(9, LOOPBACK))).is(2);
}

/// TCP_FASTOPEN and its relatives belong to the time before the connection.
fn how_a_first_packet_is_set() {
    let (_listener, at) = tcp_listener();
    let tcp = socket(AF_INET, SOCK_STREAM, 0);
    for (option, value) in [(TCP_FASTOPEN, 5), (TCP_FASTOPEN_CONNECT, 1), (NO_COOKIE, 1)] {
        set(tcp, IPPROTO_TCP, option, -1).fails(EINVAL);
        set(tcp, IPPROTO_TCP, option, value).is(0);
        assert_eq!(get(tcp, IPPROTO_TCP, option), Ok(value));
    }
    set(tcp, IPPROTO_TCP, TCP_FASTOPEN_KEY, 1).fails(EINVAL);
    set(tcp, IPPROTO_TCP, NO_COOKIE, 0).is(0);
    connect(tcp, &at).is(0);
    send(tcp, b"ab", 0, None).is(2);
    for option in [TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, NO_COOKIE] {
        set(tcp, IPPROTO_TCP, option, 1).fails(EINVAL);
    }
    let listener = socket(AF_INET, SOCK_STREAM, 0);
    listen(listener).is(0);
    set(listener, IPPROTO_TCP, TCP_FASTOPEN, 5).is(0);
    set(listener, IPPROTO_TCP, NO_COOKIE, 0).is(0);
    set(listener, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0).fails(EINVAL);
}

const NO_COOKIE: i32 = 34;

/// netlink(7): a socket is disconnected by AF_UNSPEC, and has options of one level only.
fn netlink_has_its_own_level() {
    let netlink = socket(AF_NETLINK, SOCK_RAW, 0);
    connect(netlink, &[0]).fails(EINVAL);
    connect(netlink, &inet(1, LOOPBACK)).fails(EINVAL);
    let kernel = of_family(AF_NETLINK, vec![0; 12]);
    connect(netlink, &kernel[..8]).fails(EINVAL);
    connect(netlink, &[0; 2]).is(0);
    connect(netlink, &[0; 16]).is(0);
    assert_eq!(name(netlink), kernel);
    connect(netlink, &kernel).is(0);
    let bound = name(netlink);
    assert_ne!(bound, kernel);
    let mut other = kernel.clone();
    other[4] = 5;
    connect(netlink, &other).is(0);
    let (mut peer, mut len) = ([0u8; 12], 12u32);
    let mut peer = || {
        sc!(SYS_getpeername, netlink, peer.as_mut_ptr(), &raw mut len).is(0);
        peer.to_vec()
    };
    assert_eq!(peer(), other);
    connect(netlink, &[0; 16]).is(0);
    assert_eq!((peer(), name(netlink)), (kernel, bound));
    for level in [0, 6, 41, 17, 255] {
        sc!(SYS_getsockopt, netlink, level, 1, 8, 8).fails(ENOPROTOOPT);
        sc!(SYS_setsockopt, netlink, level, 1, 8, 4).fails(ENOPROTOOPT);
        sc!(SYS_setsockopt, netlink, level, 1, 8, -1i32).fails(EINVAL);
    }
    let mut value = 0i32;
    sc!(SYS_getsockopt, netlink, SOL_NETLINK, 99, &raw mut value, 8).fails(EFAULT);
    sc!(SYS_setsockopt, netlink, SOL_NETLINK, 99, 8, 4).fails(EFAULT);
    sc!(SYS_setsockopt, netlink, SOL_NETLINK, 99, 8, 2).fails(ENOPROTOOPT);
}

/// A unix socket that wants to tell who sends gets a name by the first send that could succeed.
fn what_cannot_be_sent_gives_no_name() {
    for option in [SO_PASSCRED, 76] {
        let dgram = || {
            let socket = socket(AF_UNIX, SOCK_DGRAM, 0);
            set(socket, SOL_SOCKET, option, 1).is(0);
            socket
        };
        let nobody = unix("found-nobody");
        let sends: [(i32, Option<&[u8]>, i32, bool); 6] = [
            (MSG_OOB, None, EOPNOTSUPP, false),
            (MSG_OOB, Some(&nobody), EOPNOTSUPP, false),
            (0, Some(&inet(1, LOOPBACK)), EINVAL, false),
            (0, Some(&nobody[..1]), EINVAL, false),
            (0, Some(&nobody[..2]), EINVAL, false),
            (0, Some(&nobody), ENOENT, true),
        ];
        for send in [send, send_message] {
            for (flags, to, error, is_named) in sends {
                let socket = dgram();
                send(socket, b"a", flags, to).fails(error);
                assert_eq!(name(socket).len() > 2, is_named, "{flags:#x} {error}");
            }
        }
        let [a, _b] = pair(SOCK_SEQPACKET);
        set(a, SOL_SOCKET, option, 1).is(0);
        send(a, b"a", MSG_OOB, None).fails(EOPNOTSUPP);
        assert_eq!(name(a).len(), 2);
        send(a, b"a", 0, None).is(1);
        assert!(name(a).len() > 2);
        let [a, _b] = pair(SOCK_STREAM);
        set(a, SOL_SOCKET, option, 1).is(0);
        send(a, b"a", 0, None).is(1);
        assert_eq!(name(a).len(), 2);
    }
}

/// The same by connect(2), whoever is looked for.
fn names_come_before_the_peers() {
    let nobody = unix("found-nobody");
    for option in [SO_PASSCRED, 76] {
        for kind in [SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM] {
            let new = || {
                let socket = socket(AF_UNIX, kind, 0);
                set(socket, SOL_SOCKET, option, 1).is(0);
                socket
            };
            for odd in [inet(1, LOOPBACK), nobody[..1].to_vec(), nobody[..2].to_vec()] {
                let socket = new();
                connect(socket, &odd).fails(EINVAL);
                assert_eq!(name(socket).len(), 2);
            }
            let other = new();
            connect(other, &nobody).fails(ENOENT);
            assert!(name(other).len() > 2);
            if kind != SOCK_DGRAM {
                listen(other).is(0);
            }
            let [connected, _peer] = pair(kind);
            set(connected, SOL_SOCKET, option, 1).is(0);
            connect(connected, &nobody).fails(ENOENT);
            assert!(name(connected).len() > 2);
        }
    }
}

/// poll(2) tells of data only where there is some; an error is something else.
fn errors_are_not_data() {
    let addresses = [(AF_INET, inet(9, LOOPBACK)), (AF_INET6, inet6(9, &[1]))];
    for (domain, nobody) in addresses {
        for queues in [0, 1] {
            let udp = socket(domain, SOCK_DGRAM | SOCK_NONBLOCK, 0);
            connect(udp, &nobody).is(0);
            let (level, option) = match domain {
                AF_INET => (IPPROTO_IP, IP_RECVERR),
                _ => (IPPROTO_IPV6, IPV6_RECVERR),
            };
            set(udp, level, option, queues).is(0);
            send(udp, b"a", 0, None).is(1);
            until(|| told(udp) & POLLERR != 0);
            assert_eq!(told(udp), POLLOUT | POLLERR);
            set(udp, SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1).is(0);
            assert_eq!(told(udp), POLLOUT | POLLERR | POLLPRI);
            set(udp, SOL_SOCKET, SO_SELECT_ERR_QUEUE, 0).is(0);
            assert_eq!(get(udp, SOL_SOCKET, SO_ERROR), Ok(ECONNREFUSED));
            let left = if queues == 1 { POLLERR } else { 0 };
            assert_eq!(told(udp), POLLOUT | left);
            sc!(SYS_shutdown, udp, SHUT_RD).is(0);
            assert_eq!(told(udp), POLLOUT | left | POLLIN | POLLRDHUP);
        }
    }
}

/// Who sent what the peer never read hears of it before messages, but after bytes of a stream.
fn broken_off_before_messages() {
    let reset = Err(ECONNRESET);
    let data = Ok(b"data".to_vec());
    for kind in [SOCK_STREAM, SOCK_SEQPACKET] {
        for flags in [0, MSG_PEEK] {
            let [a, b] = pair(kind);
            send(a, b"unread", 0, None).is(6);
            send(b, b"data", 0, None).is(4);
            close(b);
            let expected = match kind {
                SOCK_STREAM if flags == 0 => [&data, &reset],
                SOCK_STREAM => [&data, &data],
                _ => [&reset, &data],
            };
            assert_eq!([&receive(a, flags), &receive(a, 0)], expected);
        }
    }
    let [a, b] = pair(SOCK_DGRAM);
    send(a, b"unread", 0, None).is(6);
    send(b, b"data", 0, None).is(4);
    connect(b, &[0; 16]).is(0);
    assert_eq!([receive(a, 0), receive(a, 0)], [reset, data]);
    // A closed peer is no error of datagrams.
    let [a, b] = pair(SOCK_DGRAM);
    send(a, b"unread", 0, None).is(6);
    send(b, b"data", 0, None).is(4);
    close(b);
    assert_eq!(receive(a, 0), Ok(b"data".to_vec()));
}

/// Of an option without length nothing is read, wherever it should be.
fn options_of_no_length() {
    let (v4, v6) = (AF_INET, AF_INET6);
    let (tcp, udp) = (SOCK_STREAM, SOCK_DGRAM);
    let sockets = [(v4, tcp, 0), (v4, udp, 0), (v4, SOCK_RAW, 1), (v6, tcp, 0), (v6, udp, 0)];
    let mut odd = Vec::new();
    let mut check = |(domain, kind, protocol): (i32, i32, i32), level: i32, name: i32, error| {
        let socket = socket(domain, kind, protocol);
        let result = sc!(SYS_setsockopt, socket, level, name, !0usize << 47, 0);
        close(socket);
        if result.err().unwrap_or(0) != error {
            odd.push((domain, kind, level, name, result, error));
        }
    };
    for of in sockets {
        let (domain, kind, _) = of;
        for name in [1, 4, 6, 7, 8, 10, 11, 12, 13, 18, 20, 23, 24, 26] {
            check(of, IPPROTO_IP, name, 0);
        }
        for name in (37..=48).chain([2, 15, 19, 21, 32, 33, 34, 49, 50, 51]) {
            check(of, IPPROTO_IP, name, EINVAL);
        }
        for name in (27..=31).chain([0, 9, 14, 52, 53, 70]) {
            check(of, IPPROTO_IP, name, ENOPROTOOPT);
        }
        check(of, IPPROTO_IP, IP_RECVFRAGSIZE, if kind == tcp { EINVAL } else { 0 });
        check(of, IPPROTO_IP, IP_HDRINCL, if kind == SOCK_RAW { 0 } else { ENOPROTOOPT });
        check(of, IPPROTO_IP, IP_ADD_MEMBERSHIP, if kind == tcp { EPROTO } else { EINVAL });
        check(of, SOL_SOCKET, SO_BINDTODEVICE, 0);
        check(of, SOL_SOCKET, SO_REUSEADDR, EINVAL);
        match kind {
            SOCK_STREAM => (0..45).for_each(|name| check(of, IPPROTO_TCP, name, EINVAL)),
            SOCK_DGRAM => (0..12).for_each(|name| check(of, IPPROTO_UDP, name, EINVAL)),
            _ => {}
        }
        if domain == v4 {
            check(of, IPPROTO_IPV6, IPV6_V6ONLY, ENOPROTOOPT);
            continue;
        }
        for name in [54, 57, 59, 62, 70, 77] {
            check(of, IPPROTO_IPV6, name, 0);
        }
        let numbers =
            [1, 2, 3, 4, 5, 8, 11, 16, 19, 20, 21, 23, 24, 25, 26, 29, 30, 31, 33, 49, 50];
        for name in numbers.into_iter().chain([51, 53, 56, 58, 60, 66, 67, 72, 73, 74, 75, 76, 78])
        {
            check(of, IPPROTO_IPV6, name, EINVAL);
        }
        for name in [0, 9, 10, 12, 13, 14, 15, 61, 63, 71, 79, 83] {
            check(of, IPPROTO_IPV6, name, ENOPROTOOPT);
        }
    }
    assert_eq!(odd, []);
    // Nor of what concerns groups and is too short.
    for kind in [tcp, udp] {
        let socket = socket(v4, kind, 0);
        for name in 37..=48 {
            sc!(SYS_setsockopt, socket, IPPROTO_IP, name, 8, 1).fails(EINVAL);
        }
        sc!(SYS_setsockopt, socket, IPPROTO_IP, IP_TTL, 8, 1).fails(EFAULT);
    }
}

/// Raw sockets of IPv6 that are connected look at the family before the length; a family that is
/// none is theirs where they send.
fn families_of_raw_sockets() {
    let raw = socket(AF_INET6, SOCK_RAW | SOCK_NONBLOCK, IPPROTO_UDP);
    connect(raw, &[1]).fails(EINVAL);
    for other in [unix("sock")[..7].to_vec(), vec![1, 0], inet(0, LOOPBACK), vec![16, 0, 0]] {
        connect(raw, &other).fails(EAFNOSUPPORT);
    }
    connect(raw, &inet6(0, &[1])[..23]).fails(EINVAL);
    connect(raw, &inet6(0, &[1])).is(0);
    connect(raw, &[0; 2]).is(0);
    send(raw, &[0; 40], 0, Some(&inet(0, LOOPBACK))).fails(EINVAL);
    send(raw, &[0; 40], 0, Some(&of_family(AF_UNIX, vec![0; 28]))).fails(EAFNOSUPPORT);
    send(raw, &[0; 40], 0, Some(&of_family(AF_UNSPEC, inet6(0, &[1])))).is(40);
    let raw = socket(AF_INET, SOCK_RAW | SOCK_NONBLOCK, IPPROTO_UDP);
    connect(raw, &unix("sock")[..7]).fails(EINVAL);
    connect(raw, &inet6(0, &[1])).fails(EAFNOSUPPORT);
}

/// SIOCINQ counts all messages of a connection, and one datagram.
fn all_messages_count() {
    for (kind, expected) in [(SOCK_STREAM, 12), (SOCK_SEQPACKET, 12), (SOCK_DGRAM, 5)] {
        let [a, b] = pair(kind);
        let unread = |socket: i32| {
            let mut unread = 0i32;
            sc!(SYS_ioctl, socket, FIONREAD, &raw mut unread).map(|_| unread)
        };
        for message in [&b"first"[..], b"", b"another"] {
            send(a, message, 0, None).is(message.len());
        }
        assert_eq!(unread(b), Ok(expected));
        if kind != SOCK_DGRAM {
            let listener = socket(AF_UNIX, kind, 0);
            assert_eq!(unread(listener), Ok(0));
            bind(listener, &[1, 0]).is(0);
            listen(listener).is(0);
            assert_eq!(unread(listener), Err(EINVAL));
        }
    }
}

/// IPv4 has no urgent datagrams, also of a socket of IPv6, whose own know nothing of them.
fn urgent_by_either_version() {
    let (v4, mapped, v6) = (inet(9, LOOPBACK), inet6(9, &MAPPED), inet6(9, &[1]));
    for to in [&v4, &mapped] {
        for send in [send, send_message] {
            let udp = || socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0);
            let other = udp();
            send(other, b"a", MSG_OOB, Some(to)).fails(EOPNOTSUPP);
            connect(other, to).is(0);
            send(other, b"a", MSG_OOB, None).fails(EOPNOTSUPP);
            send(other, b"", MSG_OOB, None).fails(EOPNOTSUPP);
            let begun = udp();
            send(begun, b"a", MSG_MORE, Some(to)).is(1);
            send(begun, b"a", MSG_OOB, Some(to)).fails(EOPNOTSUPP);
            send(begun, b"a", MSG_OOB, None).fails(EOPNOTSUPP);
            let begun = udp();
            send(begun, b"a", MSG_MORE, Some(&v6)).is(1);
            send(begun, b"a", MSG_OOB, Some(to)).fails(EOPNOTSUPP);
            send(begun, b"a", 0, Some(to)).fails(EINVAL);
        }
    }
    let udp = socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    send(udp, b"a", MSG_OOB, Some(&v6)).is(1);
    let bound = socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    bind(bound, &inet6(0, &MAPPED)).is(0);
    send(bound, b"a", MSG_OOB, Some(&inet6(9, &[]))).fails(EOPNOTSUPP);
}

/// A listener that is shut down gives those who came before; then only who would wait hears that
/// nobody comes. A stream that was shut down and listens receives nothing.
fn who_would_wait_is_told_the_end() {
    for kind in [SOCK_STREAM, SOCK_SEQPACKET] {
        for (how, told_then) in [(SHUT_RD, 0), (SHUT_WR, 0), (SHUT_RDWR, POLLHUP)] {
            let (reads, listener) = (how != SHUT_WR, socket(AF_UNIX, kind | SOCK_NONBLOCK, 0));
            bind(listener, &[1, 0]).is(0);
            listen(listener).is(0);
            connect(socket(AF_UNIX, kind, 0), &name(listener)).is(0);
            sc!(SYS_shutdown, listener, how).is(0);
            let end = if reads { POLLIN | POLLRDHUP } else { 0 };
            assert_eq!(told(listener), POLLIN | end | told_then);
            accept(listener).must();
            accept(listener).fails(EAGAIN);
            assert_eq!(told(listener), end | told_then);
            if reads {
                sc!(SYS_fcntl, listener, F_SETFL, 0).is(0);
                accept(listener).fails(EINVAL);
                connect(socket(AF_UNIX, kind, 0), &name(listener)).fails(ECONNREFUSED);
            }
        }
    }
}

/// All who are on all links cannot be reached where no link is chosen, and nobody may reach those
/// of one without having asked for it.
fn to_all_without_a_way() {
    in_child(|| {
        if !is_limen() {
            sc!(SYS_unshare, CLONE_NEWNET).is(0);
        }
        for (kind, protocol) in [(SOCK_DGRAM, 0), (SOCK_RAW, IPPROTO_UDP)] {
            for own in [None, Some([0; 4]), Some([255; 4])] {
                let socket = socket(AF_INET, kind | SOCK_NONBLOCK, protocol);
                own.map_or(Ok(0), |own| bind(socket, &inet(0, own))).is(0);
                let all = inet(9, [255; 4]);
                connect(socket, &all).fails(ENETUNREACH);
                send(socket, &[0; 20], 0, Some(&all)).fails(ENETUNREACH);
                send_message(socket, &[0; 20], 0, Some(&all)).fails(ENETUNREACH);
            }
        }
    });
    for (kind, protocol) in [(SOCK_DGRAM, 0), (SOCK_RAW, IPPROTO_UDP)] {
        let socket = socket(AF_INET, kind | SOCK_NONBLOCK, protocol);
        let all = inet(9, [127, 255, 255, 255]);
        connect(socket, &all).fails(EACCES);
        send(socket, &[0; 20], 0, Some(&all)).fails(EACCES);
        set(socket, SOL_SOCKET, SO_BROADCAST, 1).is(0);
        connect(socket, &all).is(0);
        send(socket, &[0; 20], 0, None).is(20);
    }
    // What stands for many is shown as the own name, and nothing is sent from it.
    let (sender, receiver) = (socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET, SOCK_DGRAM, 0));
    bind(sender, &inet(0, [127, 255, 255, 255])).is(0);
    bind(receiver, &inet(0, LOOPBACK)).is(0);
    connect(sender, &name(receiver)).is(0);
    assert_eq!(name(sender)[4..8], [127, 255, 255, 255]);
    send(sender, b"a", 0, None).is(1);
    let (mut got, mut from, mut len) = ([0u8; 8], [0u8; 16], 16u32);
    let (got, at) = (got.as_mut_ptr(), from.as_mut_ptr());
    sc!(SYS_recvfrom, receiver, got, 8, 0, at, &raw mut len).is(1);
    assert_eq!(from[4..8], LOOPBACK);
}

/// Raw sockets keep no place for looks (SO_PEEK_OFF), whatever protocol they have.
fn raw_sockets_keep_no_place() {
    for (domain, protocol) in [(AF_INET, IPPROTO_UDP), (AF_INET6, IPPROTO_ICMPV6)] {
        let raw = socket(domain, SOCK_RAW, protocol);
        set(raw, SOL_SOCKET, SO_PEEK_OFF, 100).fails(EOPNOTSUPP);
        assert_eq!(get(raw, SOL_SOCKET, SO_PEEK_OFF), Err(EOPNOTSUPP));
    }
}

/// Raw sockets of IPv6 have no options of IPv4.
fn no_ip_for_raw_ipv6() {
    for protocol in [IPPROTO_UDP, IPPROTO_ICMPV6] {
        let raw = socket(AF_INET6, SOCK_RAW, protocol);
        for option in (0..56).chain([64, 100]) {
            set(raw, IPPROTO_IP, option, 1).fails(ENOPROTOOPT);
            sc!(SYS_setsockopt, raw, IPPROTO_IP, option, 8, 4).fails(ENOPROTOOPT);
            sc!(SYS_setsockopt, raw, IPPROTO_IP, option, 8, 0).fails(ENOPROTOOPT);
            assert_eq!(get(raw, IPPROTO_IP, option), Err(ENOPROTOOPT));
            sc!(SYS_getsockopt, raw, IPPROTO_IP, option, 8, 8).fails(ENOPROTOOPT);
        }
    }
}

/// A length that is negative is told only when an address is to be stored.
fn what_a_receive_says_first() {
    let (mut got, mut from) = ([0u8; 16], [0u8; 16]);
    let mut receive = |socket: i32| {
        let mut len = -1i32;
        let (got, at, len) = (got.as_mut_ptr(), from.as_mut_ptr(), &raw mut len);
        sc!(SYS_recvfrom, socket, got, 16, MSG_DONTWAIT, at, len)
    };
    receive(socket(AF_INET, SOCK_DGRAM, 0)).fails(EAGAIN);
    receive(socket(AF_NETLINK, SOCK_DGRAM, 0)).fails(EAGAIN);
    receive(socket(AF_UNIX, SOCK_SEQPACKET, 0)).fails(ENOTCONN);
    for domain in [AF_INET, AF_INET6] {
        let tcp = socket(domain, SOCK_STREAM, 0);
        receive(tcp).fails(ENOTCONN);
        sc!(SYS_shutdown, tcp, SHUT_RD).fails(ENOTCONN);
        receive(tcp).fails(EINVAL);
        listen(tcp).is(0);
        receive(tcp).fails(ENOTCONN);
    }
    for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
        let [a, b] = pair(kind);
        receive(b).fails(EAGAIN);
        send(a, b"lost", 0, None).is(4);
        receive(b).fails(EINVAL);
        receive(b).fails(EAGAIN);
    }
}

/// Who is connected speaks from an address of this machine, and so has a way to everybody.
fn to_all_from_an_address() {
    let all = inet(9, [255; 4]);
    for family in [AF_INET, AF_INET6] {
        let one = socket(family, SOCK_DGRAM, 0);
        connect(one, &inet(0x5000, LOOPBACK)).is(0);
        send(one, b"", 0, Some(&all)).fails(EACCES);
        connect(one, &all).fails(EACCES);
        set(one, SOL_SOCKET, SO_BROADCAST, 1).is(0);
        connect(one, &all).is(0);
        let other = socket(family, SOCK_DGRAM, 0);
        connect(other, &all).fails(ENETUNREACH);
    }
}

/// A receive of no bytes takes none, and tells the name of who sent those that wait.
fn who_asks_for_nothing_hears_from_whom() {
    let [near, far] = pair(SOCK_STREAM);
    let name = unix(&format!("{}/s", dir_in("/dev/shm")));
    bind(near, &name).is(0);
    let asked = || {
        let (mut from, mut len) = ([0u8; 128], 128u32);
        sc!(SYS_recvfrom, far, 0, 0, MSG_DONTWAIT, from.as_mut_ptr(), &raw mut len)?;
        Ok(len as usize)
    };
    assert_eq!(asked(), Err(EAGAIN));
    sc!(SYS_write, near, c"text".as_ptr(), 4).is(4);
    assert_eq!(asked(), Ok(name.len()));
    assert_eq!(receive(far, 0).unwrap(), b"text");
    assert_eq!(asked(), Err(EAGAIN));
}

/// Messages that nobody received break a connection off, also those without bytes.
fn unread_messages_break_off() {
    let [near, far] = pair(SOCK_SEQPACKET);
    send(near, b"", 0, None).is(0);
    send(near, b"", 0, None).is(0);
    close(far);
    send(near, b"x", 0, None).fails(ECONNRESET);
    send(near, b"x", 0, None).fails(EPIPE);
    let [near, far] = pair(SOCK_SEQPACKET);
    send(near, b"", 0, None).is(0);
    send(near, b"", 0, None).is(0);
    assert_eq!(receive(far, 0).unwrap(), b"");
    assert_eq!(receive(far, 0).unwrap(), b"");
    close(far);
    send(near, b"x", 0, None).fails(EPIPE);
}

/// An address at which nothing is put need not be one.
fn values_of_no_length() {
    let one = socket(AF_UNIX, SOCK_DGRAM, 0);
    for option in [SO_DOMAIN, SO_TYPE, SO_LINGER] {
        let mut len = 0u32;
        sc!(SYS_getsockopt, one, SOL_SOCKET, option, usize::MAX, &raw mut len).is(0);
        assert_eq!(len, 0);
        len = 4;
        sc!(SYS_getsockopt, one, SOL_SOCKET, option, usize::MAX, &raw mut len).fails(EFAULT);
    }
}

/// A request to the kernel may be as long as the buffer for sending.
fn long_requests() {
    let one = socket(AF_NETLINK, SOCK_RAW, 0);
    let limit = get(one, SOL_SOCKET, SO_SNDBUF).unwrap() as usize;
    let text = vec![0u8; limit];
    send(one, &text[..limit - 31], 0, None).fails(EMSGSIZE);
    send(one, &text[..10_000], 0, None).is(10_000);
    sc!(SYS_sendto, one, 8, 10_000, 0, 0, 0).fails(EFAULT);
}

fn netlink_has_no_errors() {
    let one = socket(AF_NETLINK, SOCK_RAW, 0);
    assert_eq!(receive(one, MSG_ERRQUEUE), Err(EAGAIN));
    assert_eq!(receive(one, MSG_ERRQUEUE | MSG_OOB), Err(EOPNOTSUPP));
}

/// Which way a packet of ICMP goes depends on its kind, which is looked at first.
fn kinds_of_icmp_before_the_way() {
    const ICMP: i32 = 1;
    const UDP: i32 = 17;
    let (here, all) = (inet(0, LOOPBACK), inet(0, [255; 4]));
    let bad = |socket: i32, to: &[u8]| sc!(SYS_sendto, socket, 8, 8, 0, to.as_ptr(), 16);
    let one = socket(AF_INET, SOCK_RAW, ICMP);
    send(one, &[8], 0, Some(&here)).fails(EFAULT);
    send(one, &[], 0, Some(&here)).fails(EFAULT);
    send(one, &[8], 0, Some(&all)).fails(EFAULT);
    send(one, &[8, 0], 0, Some(&all)).fails(ENETUNREACH);
    bad(one, &all).fails(EFAULT);
    bad(one, &here).fails(EFAULT);
    send(one, &[], 0, None).fails(EDESTADDRREQ);
    let other = socket(AF_INET, SOCK_RAW, UDP);
    bad(other, &all).fails(ENETUNREACH);
    bad(other, &here).fails(EFAULT);
}

/// A connection that was refused, and about which nobody was told, is in the way of others; what
/// was known of the way to there is still known.
fn who_was_refused_is_not_new() {
    const IP_MTU: i32 = 14;
    for (family, to, mtu) in
        [(AF_INET, inet(0x5001, LOOPBACK), 0xffff), (AF_INET6, inet6(0x5001, &[1]), 0x1_0000)]
    {
        let one = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
        get(one, 0, IP_MTU).unwrap_err();
        let _ = connect(one, &to);
        while told(one) & POLLHUP == 0 {}
        assert_eq!(get(one, 0, IP_MTU), Ok(mtu));
        listen(one).fails(EINVAL);
        sc!(SYS_shutdown, one, 2).fails(ENOTCONN);
        listen(one).fails(EINVAL);
        assert_eq!(get(one, 0, IP_MTU), Ok(mtu));
    }
}

/// A stream that gives nothing, or breaks off, names a sender of zeros to who asked for senders.
fn nothing_of_a_stream_is_nobodys() {
    const NONE: i32 = 0xeeee_eeee_u32 as i32;
    let asks = |kind: i32| {
        let [one, other] = pair(kind);
        set(one, SOL_SOCKET, SO_PASSCRED, 1).is(0);
        [one, other]
    };
    let named = |socket: i32, flags: i32| {
        let mut control = [0xeeu8; 32];
        let mut byte = 0u8;
        let vector = [&raw mut byte as usize, 1];
        let message = [0, 0, vector.as_ptr() as usize, 1, control.as_mut_ptr() as usize, 32, 0];
        let answer = sc!(SYS_recvmsg, socket, message.as_ptr(), flags);
        let word = |at: usize| i32::from_ne_bytes(control[at..at + 4].try_into().unwrap());
        (answer, word(0), [16, 20, 24].map(word))
    };
    let [one, other] = asks(SOCK_STREAM);
    assert_eq!(named(one, 0), (Err(EAGAIN), 28, [0; 3]));
    assert_eq!(named(one, MSG_OOB), (Err(EINVAL), NONE, [NONE; 3]));
    send(other, b"x", 0, None).is(1);
    assert_eq!(named(one, 0), (Ok(1), 28, [pid(), 0, 0]));
    close(other);
    assert_eq!(named(one, 0), (Ok(0), 28, [0; 3]));
    let [one, other] = asks(SOCK_STREAM);
    send(one, b"x", 0, None).is(1);
    close(other);
    assert_eq!(named(one, 0), (Err(ECONNRESET), 28, [0; 3]));
    assert_eq!(named(one, 0), (Ok(0), 28, [0; 3]));
    let [one, _other] = asks(SOCK_SEQPACKET);
    assert_eq!(named(one, 0), (Err(EAGAIN), NONE, [NONE; 3]));
}

/// Who is connected to port 0 sends to nobody, and hears from every port there.
fn peers_without_a_port() {
    for (family, to) in [(AF_INET, inet(0, LOOPBACK)), (AF_INET6, inet6(0, &[1]))] {
        let one = socket(family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        connect(one, &to).is(0);
        send(one, b"x", 0, Some(&to)).fails(EINVAL);
        send(one, b"x", 0, None).is(1);
        send(one, b"x", 0, None).fails(ECONNREFUSED);
        let other = socket(family, SOCK_DGRAM, 0);
        send(other, b"y", 0, Some(&name(one))).is(1);
        assert_eq!(receive(one, 0), Ok(b"y".to_vec()));
    }
    // A socket of IPv6 sends to its peer of IPv4 as if it had been named.
    for to in [inet(0, LOOPBACK), inet6(0, &MAPPED)] {
        let one = socket(AF_INET6, SOCK_DGRAM, 0);
        connect(one, &to).is(0);
        send(one, b"x", 0, None).fails(EINVAL);
        sc!(SYS_write, one, b"x".as_ptr(), 1).fails(EINVAL);
    }
}

fn no_ipv4_for_raw_ipv6() {
    let one = socket(AF_INET6, SOCK_RAW, 6);
    bind(one, &inet6(0, &MAPPED)).fails(EADDRNOTAVAIL);
    connect(one, &inet6(0, &[1])).is(0);
    bind(one, &inet6(0, &MAPPED)).fails(EADDRNOTAVAIL);
}

/// Packets say whether they may be cut, as IP_MTU_DISCOVER has it (ip(7)).
fn packets_stay_whole() {
    const IP_MTU_DISCOVER: i32 = 10;
    let one = socket(AF_INET, SOCK_RAW | SOCK_NONBLOCK, 222);
    for (choice, is_whole) in [(None, true), (Some(0), false), (Some(2), true), (Some(5), false)] {
        if let Some(choice) = choice {
            set(one, 0, IP_MTU_DISCOVER, choice).is(0);
        }
        send(one, b"x", 0, Some(&inet(0, LOOPBACK))).is(1);
        let packet = receive(one, 0).unwrap();
        assert_eq!(packet[6], if is_whole { 0x40 } else { 0 }, "{choice:?}");
    }
}

/// A datagram that waits for more takes memory, also one without bytes.
fn what_is_held_back_takes_memory() {
    const MSG_MORE: i32 = 0x8000;
    let one = socket(AF_INET, SOCK_DGRAM, 0);
    let held = || {
        let mut bytes = -1i32;
        sc!(SYS_ioctl, one, 0x5411, &raw mut bytes).is(0);
        bytes
    };
    assert_eq!(held(), 0);
    send(one, &[], MSG_MORE, Some(&inet(0x5003, LOOPBACK))).is(0);
    assert!(held() > 0);
}

/// A read that passes over the urgent byte of a stream leaves nothing of it.
fn urgent_bytes_passed_over() {
    let [one, other] = pair(SOCK_STREAM);
    let held = || {
        let mut bytes = -1i32;
        sc!(SYS_ioctl, one, 0x5411, &raw mut bytes).is(0);
        bytes
    };
    send(one, b"abc", MSG_OOB, None).is(3);
    assert_eq!(receive(other, 0), Ok(b"ab".to_vec()));
    assert!(held() > 0);
    assert_eq!(receive(other, 0), Err(EAGAIN));
    assert_eq!(held(), 0);
}

/// A raw socket of IPv6 takes no address of IPv4 for its own, and any number for a peer's port.
fn peers_of_raw_ipv6() {
    let mapped = inet6(0, &[0xff, 0xff, 127, 0, 0, 1]);
    let one = socket(AF_INET6, SOCK_RAW, 58);
    bind(one, &mapped).fails(EADDRNOTAVAIL);
    bind(one, &inet6(0, &[1])).is(0);
    let other = socket(AF_INET6, SOCK_RAW, 58);
    connect(other, &inet6(0x1234, &[1])).is(0);
    send(other, &[128; 8], 0, Some(&inet6(0x1234, &[1]))).fails(EINVAL);
    let third = socket(AF_INET6, SOCK_RAW, 58);
    connect(third, &inet6(0x1234, &[0xff, 0xff, 127, 0, 0, 1])).is(0);
    send(third, &[128; 8], 0, None).fails(ENETUNREACH);
}

/// With IP_BIND_ADDRESS_NO_PORT an address has no port before one is needed; and an address that a
/// program chose stays, where the port that the kernel chose goes.
fn addresses_without_a_port() {
    let open = inet(0, LOOPBACK);
    let (listener, server) = tcp_listener();
    let port_of = |socket: i32| u16::from_be_bytes([name(socket)[2], name(socket)[3]]);
    for kind in [SOCK_STREAM, SOCK_DGRAM] {
        let one = socket(AF_INET, kind, 0);
        set(one, 0, IP_BIND_ADDRESS_NO_PORT, 1).is(0);
        bind(one, &open).is(0);
        assert_eq!(name(one), open);
        bind(one, &inet(0, [127, 0, 0, 2])).is(0);
        assert_eq!(name(one), inet(0, [127, 0, 0, 2]));
        connect(one, &server).is(0);
        assert_ne!(port_of(one), 0);
        assert_eq!(name(one)[4..8], [127, 0, 0, 2]);
        connect(one, &of_family(AF_UNSPEC, open.clone())).is(0);
        assert_eq!(name(one)[4..8], [127, 0, 0, 2]);
        let two = socket(AF_INET, kind, 0);
        set(two, 0, IP_BIND_ADDRESS_NO_PORT, 1).is(0);
        bind(two, &inet(0, [0; 4])).is(0);
        assert_eq!(port_of(two), 0);
        match kind {
            SOCK_STREAM => listen(two).is(0),
            _ => send(two, b"x", 0, Some(&inet(9, LOOPBACK))).is(1),
        }
        assert_ne!(port_of(two), 0);
        let three = socket(AF_INET6, kind, 0);
        set(three, 0, IP_BIND_ADDRESS_NO_PORT, 1).is(0);
        bind(three, &inet6(0, &[1])).is(0);
        assert_eq!(port_of(three), 0);
        [one, two, three].into_iter().for_each(close);
    }
    let one = socket(AF_INET, SOCK_DGRAM, 0);
    bind(one, &open).is(0);
    assert_ne!(port_of(one), 0);
    connect(one, &server).is(0);
    connect(one, &of_family(AF_UNSPEC, open.clone())).is(0);
    assert_eq!(name(one), open);
    close(listener);
}

/// Where an address of no bytes lies, nobody asks.
fn no_bytes_lie_nowhere() {
    let one = socket(AF_INET, SOCK_DGRAM, 0);
    let [two, _] = pair(SOCK_STREAM);
    for fd in [one, two, socket(AF_INET6, SOCK_STREAM, 0), socket(AF_UNIX, SOCK_STREAM, 0)] {
        for nowhere in [1usize << 63, 1 << 47, 8] {
            sc!(SYS_bind, fd, nowhere, 0).fails(EINVAL);
            sc!(SYS_bind, fd, nowhere, 2).fails(EFAULT);
            sc!(SYS_connect, fd, nowhere, 0).fails(EINVAL);
        }
    }
    send(one, b"x", 0, Some(&[])).fails(EINVAL);
}

/// How long a packet may be on the way to whom a socket was refused by.
fn ways_of_the_refused() {
    let (listener, server) = tcp_listener();
    close(listener);
    let mut mapped = inet6(0, &MAPPED);
    mapped[2..4].copy_from_slice(&server[2..4]);
    let one = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(one, &mapped).fails(EINPROGRESS);
    assert_eq!(get(one, 0, IP_MTU), Ok(65535));
    let mut six = inet6(0, &[1]);
    six[2..4].copy_from_slice(&server[2..4]);
    let two = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(two, &six).fails(EINPROGRESS);
    assert_eq!(get(two, 41, IPV6_MTU), Ok(65536));
}

/// An ioctl of a socket's that none is reads first what it would say of an interface.
fn what_could_be_of_an_interface() {
    let request = [0u8; 40];
    for kind in [SOCK_DGRAM, SOCK_RAW] {
        let one = socket(AF_NETLINK, kind, 0);
        for command in [0x8905, 0x8939, 0x89ef] {
            sc!(SYS_ioctl, one, command, request.as_ptr()).fails(ENOTTY);
            sc!(SYS_ioctl, one, command, 8).fails(EFAULT);
        }
        sc!(SYS_ioctl, one, 0x8805, 8).fails(ENOTTY);
    }
    let udp = socket(AF_INET, SOCK_DGRAM, 0);
    sc!(SYS_ioctl, udp, 0x8905, request.as_ptr()).fails(ENOTTY);
    sc!(SYS_ioctl, udp, 0x8905, 8).fails(EFAULT);
}

/// By netlink a process says who it is, and passes nothing on.
fn netlink_takes_no_descriptors() {
    let one = socket(AF_NETLINK, SOCK_RAW, 0);
    let bytes = [0u8; 20];
    let send = |control: &[u32]| {
        let part = iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
        let (at, len) = (control.as_ptr() as usize, 4 * control.len());
        let header = [0, 0, &raw const part as usize, 1, at, len, 0];
        sc!(SYS_sendmsg, one, header.as_ptr(), 0)
    };
    let (level, rights, credentials) = (SOL_SOCKET as u32, 1, 2);
    send(&[20, 0, level, rights, 0, 0]).fails(EINVAL);
    send(&[28, 0, level, credentials, pid() as u32, 0, 0, 0]).is(20);
    send(&[20, 0, level, credentials, 0, 0]).fails(EINVAL);
    send(&[20, 0, level, 77, 0, 0]).fails(EINVAL);
    send(&[20, 0, 0, 77, 0, 0]).is(20);
    as_user(|| {
        send(&[28, 0, level, credentials, 1, 0, 0, 0]).fails(EPERM);
    });
}

/// A port that the kernel chooses is of the range that the program asked for.
fn ports_of_a_range() {
    const IP_LOCAL_PORT_RANGE: i32 = 51;
    let range = |lowest: u32, highest: u32| (highest << 16 | lowest) as i32;
    let port_of = |socket: i32| u32::from(u16::from_be_bytes([name(socket)[2], name(socket)[3]]));
    let (listener, server) = tcp_listener();
    for kind in [SOCK_STREAM, SOCK_DGRAM] {
        let bound: Vec<i32> = (0..4)
            .map(|_| {
                let one = socket(AF_INET, kind, 0);
                set(one, 0, IP_LOCAL_PORT_RANGE, range(41_000, 40_999)).fails(EINVAL);
                set(one, 0, IP_LOCAL_PORT_RANGE, range(41_000, 41_003)).is(0);
                bind(one, &inet(0, LOOPBACK)).is(0);
                one
            })
            .collect();
        let mut ports: Vec<u32> = bound.iter().map(|socket| port_of(*socket)).collect();
        ports.sort();
        assert_eq!(ports, [41_000, 41_001, 41_002, 41_003]);
        let other = socket(AF_INET, kind, 0);
        set(other, 0, IP_LOCAL_PORT_RANGE, range(41_000, 41_003)).is(0);
        bind(other, &inet(0, LOOPBACK)).fails(EADDRINUSE);
        bound.into_iter().for_each(close);
        set(other, 0, IP_LOCAL_PORT_RANGE, range(41_001, 41_001)).is(0);
        connect(other, &server).is(0);
        assert_eq!(port_of(other), 41_001);
        close(other);
        // What is none of the machine's range is no end of it.
        let last = socket(AF_INET, kind, 0);
        set(last, 0, IP_LOCAL_PORT_RANGE, range(5, 32_779)).is(0);
        bind(last, &inet(0, LOOPBACK)).is(0);
        assert!((32_768..=32_779).contains(&port_of(last)));
        close(last);
    }
    close(listener);
}

/// That there is nothing to send is told before that the receiver takes no more.
fn who_hears_no_more_has_read() {
    let [one, other] = pair(SOCK_DGRAM);
    sc!(SYS_shutdown, other, SHUT_RD).is(0);
    send(one, b"x", 0, None).fails(EPIPE);
    sc!(SYS_sendto, one, 8, 5, MSG_NOSIGNAL, 0, 0).fails(EFAULT);
    sc!(SYS_shutdown, one, SHUT_WR).is(0);
    sc!(SYS_sendto, one, 8, 5, MSG_NOSIGNAL, 0, 0).fails(EPIPE);
}

/// A unix stream's urgent byte counts as received where there is no room for it, too.
fn urgent_without_room() {
    let [one, other] = pair(SOCK_STREAM);
    send(other, b"abc", MSG_OOB, None).is(3);
    let receive = |flags: i32| {
        let mut header = [0usize; 7];
        let got = sc!(SYS_recvmsg, one, header.as_mut_ptr(), flags);
        (got, header[6] as i32 & (MSG_OOB | MSG_TRUNC))
    };
    assert_eq!(receive(MSG_OOB | MSG_PEEK), (Ok(1), MSG_OOB));
    assert_eq!(receive(MSG_OOB), (Ok(1), MSG_OOB));
    assert_eq!(receive(MSG_OOB).0, Err(EINVAL));
    sc!(SYS_recvfrom, one, 0, 0, MSG_OOB, 0, 0).fails(EINVAL);
}

/// A TCP socket that was told to hear no more hears again once it was disconnected.
fn deaf_until_disconnected() {
    let one = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sc!(SYS_shutdown, one, SHUT_RD).fails(ENOTCONN);
    assert_eq!(receive(one, 0), Ok(Vec::new()));
    connect(one, &of_family(AF_UNSPEC, inet(0, [0; 4]))).is(0);
    assert_eq!(receive(one, 0), Err(ENOTCONN));
    let (listener, server) = tcp_listener();
    close(listener);
    sc!(SYS_shutdown, one, SHUT_RDWR).fails(ENOTCONN);
    connect(one, &server).fails(EINPROGRESS);
    connect(one, &server).fails(ECONNREFUSED);
    assert_eq!(receive(one, 0), Err(ENOTCONN));
    bind(one, &inet(0, LOOPBACK)).is(0);
    sc!(SYS_shutdown, one, SHUT_RD).fails(ENOTCONN);
    listen(one).is(0);
    connect(one, &of_family(AF_UNSPEC, inet(0, [0; 4]))).is(0);
    assert_eq!(receive(one, 0), Err(ENOTCONN));
}

/// A raw socket of IPv6 is asked whom a packet is for before how long it is; one of IPv4 after.
fn long_packets_to_nobody() {
    let long = vec![0u8; 70_000];
    for (family, error) in [(AF_INET, EMSGSIZE), (AF_INET6, EDESTADDRREQ)] {
        let one = socket(family, SOCK_RAW, 222);
        send(one, &long, 0, None).fails(error);
    }
    let one = socket(AF_INET6, SOCK_RAW, 222);
    send(one, &long, 0, Some(&inet6(0, &[1]))).fails(EMSGSIZE);
}

const MORE: i32 = 0x8000;

/// A raw socket and one that hears what it sends.
fn raw_pair(family: i32) -> [i32; 2] {
    [0; 2].map(|_| socket(family, SOCK_RAW | SOCK_NONBLOCK, 200))
}

/// What a raw socket sends is held back where more follows (MSG_MORE).
fn raw_packets_in_parts() {
    let [near, far] = raw_pair(AF_INET);
    let [one, two] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|ip| inet(0, ip));
    let heard = || receive(far, 0);
    let held = || {
        let mut bytes = 0i32;
        sc!(SYS_ioctl, near, TIOCOUTQ, &raw mut bytes).is(0);
        bytes
    };
    send(near, b"ab", MORE, Some(&one)).is(2);
    assert_eq!(heard(), Err(EAGAIN));
    assert!(held() > 0);
    send(near, b"cd", 0, Some(&two)).is(2);
    assert_eq!(held(), 0);
    let packet = heard().unwrap();
    assert_eq!((&packet[16..20], &packet[20..]), (&two[4..8], &b"abcd"[..]), "the last's address");
    // Nothing can begin one, and end it.
    send(near, b"", MORE, Some(&one)).is(0);
    assert!(held() > 0);
    send(near, b"x", MORE, Some(&one)).is(1);
    send(near, b"", 0, Some(&one)).is(0);
    assert_eq!(heard().unwrap()[20..], *b"x");
    // Packets with headers of their own do not wait, and leave the other one alone.
    let mut whole = [0u8; 22];
    (whole[0], whole[8], whole[9]) = (0x45, 64, 200);
    for at in [12, 16] {
        whole[at..at + 4].copy_from_slice(&LOOPBACK);
    }
    send(near, b"ab", MORE, Some(&one)).is(2);
    set(near, 0, 3, 1).is(0);
    send(near, &whole, MORE, Some(&one)).is(22);
    assert_eq!(heard().unwrap().len(), 22);
    set(near, 0, 3, 0).is(0);
    send(near, b"c", 0, Some(&one)).is(1);
    assert_eq!(heard().unwrap()[20..], *b"abc");
    let [near, far] = raw_pair(AF_INET6);
    let to = inet6(0, &[1]);
    send(near, b"ab", MORE, Some(&to)).is(2);
    assert_eq!(receive(far, 0), Err(EAGAIN));
    send(near, b"cd", 0, Some(&to)).is(2);
    assert_eq!(receive(far, 0).unwrap(), b"abcd");
}

/// What cannot be added takes with it what was held back; what is refused before does not.
fn parts_that_cannot_be_added() {
    static HALF: [u8; 40_000] = [7; 40_000];
    for (family, to, room) in
        [(AF_INET, inet(0, LOOPBACK), 25_515), (AF_INET6, inet6(0, &[1]), 25_535)]
    {
        let [near, far] = raw_pair(family);
        let add = |bytes: &[u8], more| send(near, bytes, if more { MORE } else { 0 }, Some(&to));
        let header = if family == AF_INET { 20 } else { 0 };
        let heard = || receive(far, MSG_TRUNC).map(|packet| packet[header..].to_vec());
        add(&HALF, true).is(HALF.len());
        add(&HALF[..room + 1], false).fails(EMSGSIZE);
        add(b"q", false).is(1);
        assert_eq!(heard().unwrap(), b"q");
        add(&HALF, true).is(HALF.len());
        add(&HALF[..room], false).is(room);
        let mut byte = 0u8;
        let whole = HALF.len() + room + header;
        sc!(SYS_recvfrom, far, &raw mut byte, 1, MSG_TRUNC, 0, 0).is(whole);
        add(b"ab", true).is(2);
        sc!(SYS_sendto, near, 8, 5, 0, to.as_ptr(), to.len()).fails(EFAULT);
        add(b"q", false).is(1);
        assert_eq!(heard().unwrap(), b"q");
        add(b"ab", true).is(2);
        send(near, b"x", MSG_OOB, Some(&to)).fails(EOPNOTSUPP);
        add(b"c", false).is(1);
        assert_eq!(heard().unwrap(), b"abc");
        add(b"ab", true).is(2);
        let long = send(near, &vec![0; 65_536], 0, Some(&to));
        long.fails(EMSGSIZE);
        add(b"c", false).is(1);
        // IPv4 looks at a length before all else.
        assert_eq!(heard().unwrap(), if family == AF_INET { &b"abc"[..] } else { b"c" });
    }
}

/// A raw socket that was shut down sends on, but for packets with headers of their own.
fn deaf_raw_sockets_send() {
    let [near, far] = raw_pair(AF_INET);
    connect(near, &inet(0, LOOPBACK)).is(0);
    sc!(SYS_shutdown, near, SHUT_WR).is(0);
    send(near, b"ab", 0, None).is(2);
    assert_eq!(receive(far, 0).unwrap()[20..], *b"ab");
    set(near, 0, 3, 1).is(0);
    send(near, &[0x45; 40], 0, None).fails(EPIPE);
}

/// A number of IPv6 whose place is none is 0; of other levels it is not there.
fn numbers_that_are_nowhere() {
    const V6ONLY: i32 = 26;
    const UNICAST_HOPS: i32 = 16;
    const RECVHOPLIMIT: i32 = 51;
    const TCLASS: i32 = 67;
    for kind in [SOCK_STREAM, SOCK_DGRAM] {
        let one = socket(AF_INET6, kind, 0);
        let nothing = |level, name, len| sc!(SYS_setsockopt, one, level, name, 0, len);
        for name in [V6ONLY, RECVHOPLIMIT, TCLASS] {
            set(one, IPPROTO_IPV6, name, 1).is(0);
            nothing(IPPROTO_IPV6, name, 4).is(0);
            assert_eq!(get(one, IPPROTO_IPV6, name), Ok(0), "{name}");
            nothing(IPPROTO_IPV6, name, 3).fails(EINVAL);
            sc!(SYS_setsockopt, one, IPPROTO_IPV6, name, 8, 4).fails(EFAULT);
        }
        nothing(IPPROTO_IPV6, UNICAST_HOPS, 100).is(0);
        assert_eq!(get(one, IPPROTO_IPV6, UNICAST_HOPS), Ok(0));
        nothing(IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, 20).fails(if kind == SOCK_STREAM {
            EPROTO
        } else {
            EFAULT
        });
        nothing(0, 2, 4).fails(EFAULT);
        nothing(SOL_SOCKET, SO_KEEPALIVE, 4).fails(EFAULT);
    }
}

/// What a socket of IPv6 passes on to IPv4 is asked there before the address is read.
fn passed_on_before_it_is_read() {
    let one = socket(AF_INET6, SOCK_DGRAM, 0);
    let short = &inet(5, LOOPBACK)[..8];
    send(one, b"x", MSG_OOB, Some(short)).fails(EOPNOTSUPP);
    send(one, &vec![0; 65_536], 0, Some(short)).fails(EMSGSIZE);
    send(one, b"x", 0, Some(short)).fails(EINVAL);
    let only = socket(AF_INET6, SOCK_DGRAM, 0);
    set(only, IPPROTO_IPV6, 26, 1).is(0);
    send(only, b"x", MSG_OOB, Some(short)).fails(ENETUNREACH);
}

/// TCP_WINDOW_CLAMP is there while there is a connection, or it is tried.
fn windows_of_connections() {
    let clamp = |socket| get(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP).unwrap();
    let (listener, to) = tcp_listener();
    assert_eq!(clamp(listener), 0);
    let one = socket(AF_INET, SOCK_STREAM, 0);
    assert_eq!(clamp(one), 0);
    connect(one, &to).is(0);
    assert_eq!(clamp(one), 65536);
    assert_eq!(clamp(accept(listener).fd()), 65536);
    connect(one, &[0; 16]).is(0);
    assert_eq!(clamp(one), 0);
    for (buffer, expected) in [(10_000, 10_000), (100_000, 100_000), (150_000, 130_966)] {
        let one = socket(AF_INET, SOCK_STREAM, 0);
        set(one, SOL_SOCKET, SO_RCVBUF, buffer).is(0);
        assert_eq!(clamp(one), 0);
        connect(one, &to).is(0);
        assert_eq!(clamp(one), expected, "{buffer}");
    }
    let chosen = socket(AF_INET, SOCK_STREAM, 0);
    set(chosen, IPPROTO_TCP, TCP_WINDOW_CLAMP, 5000).is(0);
    connect(chosen, &to).is(0);
    assert_eq!(clamp(chosen), 5000);
    connect(chosen, &[0; 16]).is(0);
    assert_eq!(clamp(chosen), 0);
    // Whoever is refused has one until that is told.
    let nobody = name(socket_bound_to_a_port());
    let refused = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(refused, &nobody).fails(EINPROGRESS);
    until(|| told(refused) & POLLERR != 0);
    assert!(clamp(refused) > 65536);
    connect(refused, &nobody).fails(ECONNREFUSED);
    assert_eq!(clamp(refused), 0);
}

/// A socket whose port nobody listens on.
fn socket_bound_to_a_port() -> i32 {
    let one = socket(AF_INET, SOCK_STREAM, 0);
    bind(one, &inet(0, LOOPBACK)).is(0);
    one
}

/// recvmmsg(2) and sendmmsg(2) ask for a socket, and for its error, before they count messages.
fn several_messages_at_once() {
    let file = open("/dev/null", O_RDWR).fd();
    let mut bytes = [0u8; 8];
    let part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
    let header = [0, 0, &raw const part as usize, 1, 0, 0, 0, 0];
    let bad = [0, 0, 8, 1, 0, 0, 0, 0];
    sc!(SYS_recvmmsg, file, header.as_ptr(), 0, MSG_DONTWAIT, 0).fails(ENOTSOCK);
    sc!(SYS_sendmmsg, file, header.as_ptr(), 0, 0).fails(ENOTSOCK);
    let [near, far] = pair(SOCK_DGRAM);
    sc!(SYS_recvmmsg, near, header.as_ptr(), 0, MSG_DONTWAIT, 0).is(0);
    sc!(SYS_sendmmsg, near, header.as_ptr(), 0, 0).is(0);
    // What ended it before all were there is told next time.
    let two = [header, bad].concat();
    for _ in 0..2 {
        send(near, b"x", 0, None).is(1);
    }
    sc!(SYS_recvmmsg, far, two.as_ptr(), 2, MSG_DONTWAIT, 0).is(1);
    sc!(SYS_recvmmsg, far, header.as_ptr(), 0, MSG_DONTWAIT, 0).fails(EFAULT);
    sc!(SYS_recvmmsg, far, two.as_ptr(), 2, MSG_DONTWAIT, 0).is(1);
    sc!(SYS_recvmmsg, far, header.as_ptr(), 1, MSG_DONTWAIT, 0).fails(EFAULT);
    sc!(SYS_recvmmsg, far, header.as_ptr(), 1, MSG_DONTWAIT, 0).fails(EAGAIN);
    // One urgent byte is all there is.
    let [near, far] = pair(SOCK_STREAM);
    let two = [header, header].concat();
    send(near, b"x", MSG_OOB, None).is(1);
    sc!(SYS_recvmmsg, far, two.as_ptr(), 2, MSG_DONTWAIT | MSG_OOB, 0).is(1);
    assert_eq!(get(far, SOL_SOCKET, SO_ERROR), Ok(0));
}

/// Sockets have an attribute that tells their protocol.
fn what_a_protocol_is_called() {
    let told = |fd: i32| {
        let mut name = [0u8; 64];
        let attribute = c"system.sockprotoname".as_ptr();
        let len = sc!(SYS_fgetxattr, fd, attribute, name.as_mut_ptr(), 64)?;
        sc!(SYS_fgetxattr, fd, attribute, 0, 0).is(len);
        sc!(SYS_fgetxattr, fd, attribute, name.as_mut_ptr(), 2).fails(ERANGE);
        sc!(SYS_fsetxattr, fd, attribute, b"x".as_ptr(), 1, 0).fails(EOPNOTSUPP);
        sc!(SYS_fremovexattr, fd, attribute).fails(EOPNOTSUPP);
        let mut names = [0u8; 64];
        let listed = sc!(SYS_flistxattr, fd, names.as_mut_ptr(), 64).must();
        assert_eq!(names[..listed], *b"system.sockprotoname\0");
        Ok::<_, i32>(String::from_utf8_lossy(&name[..len]).into_owned())
    };
    for (family, kind, protocol, name) in [
        (AF_UNIX, SOCK_STREAM, 0, "UNIX-STREAM\0"),
        (AF_UNIX, SOCK_DGRAM, 0, "UNIX\0"),
        (AF_UNIX, SOCK_SEQPACKET, 0, "UNIX\0"),
        (AF_INET, SOCK_STREAM, 0, "TCP\0"),
        (AF_INET, SOCK_DGRAM, 0, "UDP\0"),
        (AF_INET, SOCK_RAW, 1, "RAW\0"),
        (AF_INET, SOCK_DGRAM, 136, "UDP-Lite\0"),
        (AF_INET6, SOCK_STREAM, 0, "TCPv6\0"),
        (AF_INET6, SOCK_DGRAM, 0, "UDPv6\0"),
        (AF_INET6, SOCK_RAW, 58, "RAWv6\0"),
        (AF_INET6, SOCK_DGRAM, 136, "UDPLITEv6\0"),
        (AF_NETLINK, SOCK_RAW, 0, "NETLINK\0"),
    ] {
        assert_eq!(told(socket(family, kind, protocol)).as_deref(), Ok(name));
    }
    assert_eq!(told(pipe().0), Err(EOPNOTSUPP));
}

/// How a socket is polled is kept; more than before is for CAP_NET_ADMIN.
fn who_may_poll_more() {
    const SO_PREFER_BUSY_POLL: i32 = 69;
    const SO_BUSY_POLL_BUDGET: i32 = 70;
    let one = socket(AF_INET, SOCK_DGRAM, 0);
    set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, 20).is(0);
    set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, -1).fails(EINVAL);
    set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, 65_536).fails(EINVAL);
    assert_eq!(get(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET), Err(ENOPROTOOPT));
    set(one, SOL_SOCKET, SO_PREFER_BUSY_POLL, 1).is(0);
    as_user(|| {
        set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, 21).fails(EPERM);
        set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, 65_536).fails(EPERM);
        set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, 20).is(0);
        set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, 3).is(0);
        set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, 4).fails(EPERM);
        set(one, SOL_SOCKET, SO_BUSY_POLL_BUDGET, -1).fails(EINVAL);
        assert_eq!(get(one, SOL_SOCKET, SO_PREFER_BUSY_POLL), Ok(1));
        set(one, SOL_SOCKET, SO_PREFER_BUSY_POLL, 0).is(0);
        set(one, SOL_SOCKET, SO_PREFER_BUSY_POLL, 1).fails(EPERM);
    });
}
