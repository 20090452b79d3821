//! Datagrams of IPv4 and IPv6 beyond one sender and one receiver: multicast groups (ip(7),
//! ipv6(7)), several datagrams of one send (udp(7), UDP_SEGMENT and UDP_GRO). By `lo` only.

use crate::sys::*;
use crate::{sc, tests};

tests! { "datagrams":
    a_group_hears, who_is_no_member, errors_of_groups, sources_of_a_group, groups_by_number,
    groups_of_ipv6, sent_in_segments, own_options, corked, corked_by_a_flag, corked_in_vain,
    what_ends_a_send_first, what_is_counted, a_port_that_nobody_asked_for,
    of_equals_the_last_hears, who_is_connected_hears, a_flow_stays_with_a_member,
}

const IP_MULTICAST_IF: i32 = 32;
const IP_MULTICAST_TTL: i32 = 33;
const IP_MULTICAST_LOOP: i32 = 34;
const IP_ADD_MEMBERSHIP: i32 = 35;
const IP_DROP_MEMBERSHIP: i32 = 36;
const IP_UNBLOCK_SOURCE: i32 = 37;
const IP_BLOCK_SOURCE: i32 = 38;
const IP_ADD_SOURCE_MEMBERSHIP: i32 = 39;
const IP_DROP_SOURCE_MEMBERSHIP: i32 = 40;
const MCAST_JOIN_GROUP: i32 = 42;
const MCAST_LEAVE_GROUP: i32 = 45;
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_JOIN_GROUP: i32 = 20;
const IPV6_LEAVE_GROUP: i32 = 21;
const UDP_CORK: i32 = 1;
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

const LO: [u8; 4] = [127, 0, 0, 1];
const ANY: [u8; 4] = [0; 4];

fn set(fd: i32, level: i32, name: i32, value: &[u8]) -> Res {
    sc!(SYS_setsockopt, fd, level, name, value.as_ptr(), value.len())
}

fn number(fd: i32, level: i32, name: i32) -> Result<i32, i32> {
    let (mut value, mut len) = (-1i32, 4u32);
    sc!(SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len).map(|_| value)
}

/// `struct sockaddr_in`.
fn address(ip: [u8; 4], port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip);
    bytes
}

/// A socket bound to this address, and its port.
fn bound(ip: [u8; 4]) -> (i32, u16) {
    let fd = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    sc!(SYS_bind, fd, address(ip, 0).as_ptr(), 16).is(0);
    (fd, name_of(fd, SYS_getsockname).1)
}

fn name_of(fd: i32, call: i64) -> ([u8; 4], u16) {
    let (mut name, mut len) = ([0u8; 16], 16u32);
    sc!(call, fd, name.as_mut_ptr(), &raw mut len).is(0);
    ([name[4], name[5], name[6], name[7]], u16::from_be_bytes([name[2], name[3]]))
}

/// A socket that sends to groups by `lo`.
fn sender() -> i32 {
    let fd = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    set(fd, IPPROTO_IP, IP_MULTICAST_IF, &LO).is(0);
    fd
}

fn send(fd: i32, text: &[u8], ip: [u8; 4], port: u16) -> Res {
    sc!(SYS_sendto, fd, text.as_ptr(), text.len(), 0, address(ip, port).as_ptr(), 16)
}

/// What is there, and who sent it.
fn heard(fd: i32) -> Result<(Vec<u8>, [u8; 4]), i32> {
    let (mut text, mut from, mut len) = ([0u8; 256], [0u8; 28], 28u32);
    let (text_at, from_at) = (text.as_mut_ptr(), from.as_mut_ptr());
    let got = sc!(SYS_recvfrom, fd, text_at, 256, MSG_DONTWAIT, from_at, &raw mut len)?;
    Ok((text[..got].to_vec(), [from[4], from[5], from[6], from[7]]))
}

fn request(group: [u8; 4], interface: [u8; 4]) -> Vec<u8> {
    [group, interface].concat()
}

/// A group that no other test uses.
fn group(last: u8) -> [u8; 4] {
    [239, 77, tid() as u8, last]
}

fn a_group_hears() {
    let group = group(1);
    let (first, port) = bound(ANY);
    // Several members may have one port.
    let second = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    let one = 1i32.to_ne_bytes();
    for fd in [first, second] {
        set(fd, SOL_SOCKET, SO_REUSEADDR, &one).is(0);
    }
    sc!(SYS_bind, second, address(group, port).as_ptr(), 16).is(0);
    assert_eq!(name_of(second, SYS_getsockname), (group, port));
    let out = sender();
    assert_eq!(number(out, IPPROTO_IP, IP_MULTICAST_IF), Ok(i32::from_ne_bytes(LO)));
    // Nobody is a member: it is lost.
    send(out, b"early", group, port).is(5);
    assert_eq!(heard(first), Err(EAGAIN));
    for fd in [first, second] {
        set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request(group, LO)).is(0);
    }
    send(out, b"news", group, port).is(4);
    for fd in [first, second] {
        assert_eq!(heard(fd), Ok((b"news".to_vec(), LO)));
        assert_eq!(heard(fd), Err(EAGAIN));
    }
    // By `lo` it is heard whatever the sender says of its own machine.
    set(out, IPPROTO_IP, IP_MULTICAST_LOOP, &[0]).is(0);
    set(out, IPPROTO_IP, IP_MULTICAST_TTL, &[0]).is(0);
    send(out, b"again", group, port).is(5);
    assert_eq!(heard(first), Ok((b"again".to_vec(), LO)));
    // Connected, with an address of its own.
    sc!(SYS_connect, out, address(group, port).as_ptr(), 16).is(0);
    assert_eq!(name_of(out, SYS_getpeername), (group, port));
    assert_eq!(name_of(out, SYS_getsockname).0, LO);
    sc!(SYS_write, out, b"c".as_ptr(), 1).is(1);
    assert_eq!(heard(first), Ok((b"c".to_vec(), LO)));
    // Where it was sent to comes with it, and where from an answer goes.
    set(first, IPPROTO_IP, IP_PKTINFO, &one).is(0);
    sc!(SYS_write, out, b"i".as_ptr(), 1).is(1);
    let (text, control) = with_control(first);
    assert_eq!(text, b"i");
    assert_eq!(control, [(IPPROTO_IP, IP_PKTINFO, [&one[..], &LO, &group].concat())]);
    set(first, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request(group, LO)).is(0);
    set(first, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request(group, LO)).fails(EADDRNOTAVAIL);
}

/// Of ancillary data: level, kind, payload.
type Ancillary = (i32, i32, Vec<u8>);

/// A datagram and its ancillary data.
fn with_control(fd: i32) -> (Vec<u8>, Vec<Ancillary>) {
    let (mut text, mut control) = ([0u8; 256], [0u64; 32]);
    let mut part = iovec { iov_base: text.as_mut_ptr().cast(), iov_len: 256 };
    // SAFETY: a structure of pointers and numbers.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 256);
    let got = sc!(SYS_recvmsg, fd, &raw mut header, MSG_DONTWAIT).must();
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let (mut at, mut found) = (0, Vec::new());
    while at + 16 <= header.msg_controllen {
        let len = u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let word = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        found.push((word(at + 8), word(at + 12), bytes[at + 16..at + len].to_vec()));
        at += len.next_multiple_of(8);
    }
    (text[..got].to_vec(), found)
}

fn who_is_no_member() {
    let group = group(2);
    let (member, port) = bound(LO);
    let out = sender();
    set(member, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request(group, LO)).is(0);
    // Bound to another address it gets nothing, as a member or not.
    send(out, b"x", group, port).is(1);
    assert_eq!(heard(member), Err(EAGAIN));
    // Who is bound to any address hears what others have joined, unless it says no.
    let (other, other_port) = bound(ANY);
    assert_eq!(number(other, IPPROTO_IP, IP_MULTICAST_ALL), Ok(1));
    send(out, b"y", group, other_port).is(1);
    assert_eq!(heard(other), Ok((b"y".to_vec(), LO)));
    set(other, IPPROTO_IP, IP_MULTICAST_ALL, &[0; 4]).is(0);
    send(out, b"z", group, other_port).is(1);
    assert_eq!(heard(other), Err(EAGAIN));
    // With the last member the group is gone.
    set(other, IPPROTO_IP, IP_MULTICAST_ALL, &1i32.to_ne_bytes()).is(0);
    close(member);
    send(out, b"gone", group, other_port).is(4);
    assert_eq!(heard(other), Err(EAGAIN));
}

fn errors_of_groups() {
    let group = group(3);
    let (fd, _) = bound(ANY);
    let join = |value: &[u8]| set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, value);
    join(&request(group, LO)).is(0);
    join(&request(group, LO)).fails(EADDRINUSE);
    join(&[&request(group, ANY)[..], &1u32.to_ne_bytes()].concat()).fails(EADDRINUSE);
    join(&request([10, 0, 0, 1], LO)).fails(EINVAL);
    join(&request(group, [10, 254, 254, 254])).fails(ENODEV);
    join(&[&request(group, ANY)[..], &9999u32.to_ne_bytes()].concat()).fails(ENODEV);
    join(&group).fails(EINVAL);
    for last in 100..119 {
        let group = [group[0], group[1], group[2], last];
        join(&[&request(group, ANY)[..], &1u32.to_ne_bytes()].concat()).is(0);
    }
    join(&request([group[0], group[1], group[2], 200], LO)).fails(ENOBUFS);
    let choose = |value: &[u8]| set(fd, IPPROTO_IP, IP_MULTICAST_IF, value);
    choose(&[10, 254, 254, 254]).fails(EADDRNOTAVAIL);
    choose(&[127, 0, 0]).fails(EINVAL);
    choose(&[&request(ANY, ANY)[..], &1u32.to_ne_bytes()].concat()).is(0);
    choose(&ANY).is(0);
    assert_eq!(number(fd, IPPROTO_IP, IP_MULTICAST_IF), Ok(0));
    let stream = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    set(stream, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request(group, LO)).fails(EPROTO);
    set(stream, IPPROTO_IP, IP_MULTICAST_IF, &LO).fails(EINVAL);
    assert_eq!(number(stream, IPPROTO_IP, IP_MULTICAST_IF), Ok(0));
    sc!(SYS_connect, stream, address(group, 9).as_ptr(), 16).fails(ENETUNREACH);
}

fn sources_of_a_group() {
    let group = group(4);
    let (fd, port) = bound(ANY);
    let out = sender();
    let change =
        |name: i32, source: [u8; 4]| set(fd, IPPROTO_IP, name, &[group, LO, source].concat());
    let hears = || {
        send(out, b"s", group, port).is(1);
        heard(fd).is_ok()
    };
    let other = [127, 0, 0, 9];
    change(IP_ADD_SOURCE_MEMBERSHIP, LO).is(0);
    assert!(hears());
    change(IP_ADD_SOURCE_MEMBERSHIP, LO).fails(EADDRNOTAVAIL);
    change(IP_BLOCK_SOURCE, other).fails(EINVAL);
    change(IP_DROP_SOURCE_MEMBERSHIP, other).fails(EADDRNOTAVAIL);
    change(IP_ADD_SOURCE_MEMBERSHIP, other).is(0);
    change(IP_DROP_SOURCE_MEMBERSHIP, LO).is(0);
    assert!(!hears());
    // Without a source that it takes it is no member.
    change(IP_DROP_SOURCE_MEMBERSHIP, other).is(0);
    change(IP_DROP_SOURCE_MEMBERSHIP, other).fails(EINVAL);
    set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request(group, LO)).is(0);
    assert!(hears());
    change(IP_BLOCK_SOURCE, LO).is(0);
    assert!(!hears());
    change(IP_UNBLOCK_SOURCE, LO).is(0);
    assert!(hears());
    change(IP_UNBLOCK_SOURCE, LO).fails(EADDRNOTAVAIL);
    set(fd, IPPROTO_IP, IP_BLOCK_SOURCE, &request(group, LO)).fails(EINVAL);
}

/// `struct group_req` of `lo`.
fn by_number(address: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 136];
    bytes[..4].copy_from_slice(&1u32.to_ne_bytes());
    bytes[8..8 + address.len()].copy_from_slice(address);
    bytes
}

fn groups_by_number() {
    let group = group(5);
    let (fd, port) = bound(ANY);
    let wanted = by_number(&address(group, 0));
    set(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &wanted).is(0);
    set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request(group, LO)).fails(EADDRINUSE);
    send(sender(), b"n", group, port).is(1);
    assert_eq!(heard(fd), Ok((b"n".to_vec(), LO)));
    set(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &wanted).is(0);
    set(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &wanted).fails(EADDRNOTAVAIL);
    set(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &wanted[..100]).fails(EINVAL);
    set(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &by_number(&[9; 16])).fails(EINVAL);
}

fn groups_of_ipv6() {
    let fd = sc!(SYS_socket, AF_INET6, SOCK_DGRAM, 0).fd();
    let request = |first: u8, index: u32| {
        let mut bytes = vec![0u8; 20];
        (bytes[0], bytes[1], bytes[15]) = (first, 2, 0x77);
        bytes[16..].copy_from_slice(&index.to_ne_bytes());
        bytes
    };
    set(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request(0xff, 1)).is(0);
    set(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request(0xff, 1)).fails(EADDRINUSE);
    set(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request(0x20, 1)).fails(EINVAL);
    set(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request(0xff, 9999)).fails(ENODEV);
    set(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request(0xff, 1)[..16]).fails(EINVAL);
    set(fd, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &request(0xff, 1)).is(0);
    set(fd, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &request(0xff, 1)).fails(EADDRNOTAVAIL);
    let stream = sc!(SYS_socket, AF_INET6, SOCK_STREAM, 0).fd();
    set(stream, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request(0xff, 1)).fails(EPROTO);
    // A group of IPv4 by a socket that takes both.
    let group = group(6);
    let any = [0u8; 28];
    let mut name = any;
    name[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
    sc!(SYS_bind, fd, name.as_ptr(), 28).is(0);
    let mut len = 28u32;
    sc!(SYS_getsockname, fd, name.as_mut_ptr(), &raw mut len).is(0);
    let port = u16::from_be_bytes([name[2], name[3]]);
    set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &[group, LO].concat()).is(0);
    send(sender(), b"both", group, port).is(4);
    assert_eq!(heard(fd).map(|heard| heard.0), Ok(b"both".to_vec()));
}

fn sent_in_segments() {
    let (inbox, port) = bound(LO);
    let out = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    set(out, IPPROTO_UDP, UDP_SEGMENT, &4i32.to_ne_bytes()).is(0);
    assert_eq!(number(out, IPPROTO_UDP, UDP_SEGMENT), Ok(4));
    send(out, b"aaaabbbbcc", LO, port).is(10);
    let texts: Vec<_> = std::iter::from_fn(|| heard(inbox).ok()).map(|heard| heard.0).collect();
    assert_eq!(texts, [&b"aaaa"[..], b"bbbb", b"cc"]);
    // Who takes them at once is told how long each is; one alone is told nothing.
    set(inbox, IPPROTO_UDP, UDP_GRO, &1i32.to_ne_bytes()).is(0);
    send(out, b"aaaabbbbcc", LO, port).is(10);
    let length = 4i32.to_ne_bytes().to_vec();
    let all = (b"aaaabbbbcc".to_vec(), vec![(IPPROTO_UDP, UDP_GRO, length)]);
    assert_eq!(with_control(inbox), all);
    send(out, b"aaaa", LO, port).is(4);
    assert_eq!(with_control(inbox), (b"aaaa".to_vec(), vec![]));
    set(inbox, IPPROTO_UDP, UDP_GRO, &[0; 4]).is(0);
    // More than goes into one send.
    set(out, IPPROTO_UDP, UDP_SEGMENT, &1i32.to_ne_bytes()).is(0);
    send(out, &[7; 200], LO, port).fails(EINVAL);
    set(out, IPPROTO_UDP, UDP_SEGMENT, &[0; 4]).is(0);
    // For one send.
    let said = |len: usize| {
        let mut control = [0u8; 24];
        control[..8].copy_from_slice(&(16 + len).to_ne_bytes());
        control[8..12].copy_from_slice(&IPPROTO_UDP.to_ne_bytes());
        control[12..16].copy_from_slice(&UDP_SEGMENT.to_ne_bytes());
        control[16] = 2;
        let mut name = address(LO, port);
        let mut part = iovec { iov_base: b"xxyyz".as_ptr() as *mut c_void, iov_len: 5 };
        // SAFETY: a structure of pointers and numbers.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        (header.msg_name, header.msg_namelen) = (name.as_mut_ptr().cast(), 16);
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 24);
        sc!(SYS_sendmsg, out, &raw const header, 0)
    };
    said(2).is(5);
    let texts: Vec<_> = std::iter::from_fn(|| heard(inbox).ok()).map(|heard| heard.0).collect();
    assert_eq!(texts, [&b"xx"[..], b"yy", b"z"]);
    said(4).fails(EINVAL);
}

fn own_options() {
    let fd = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    for name in [UDP_CORK, 101, 102, UDP_SEGMENT, UDP_GRO] {
        assert_eq!(number(fd, IPPROTO_UDP, name), Ok(0), "{name}");
        set(fd, IPPROTO_UDP, name, &1i32.to_ne_bytes()).is(0);
        assert_eq!(number(fd, IPPROTO_UDP, name), Ok(1), "{name}");
        set(fd, IPPROTO_UDP, name, &[1]).fails(EINVAL);
        set(fd, IPPROTO_UDP, name, &[0; 4]).is(0);
    }
    for odd in [-1i32, 65536] {
        set(fd, IPPROTO_UDP, UDP_SEGMENT, &odd.to_ne_bytes()).fails(EINVAL);
    }
    set(fd, IPPROTO_UDP, 99, &[0; 4]).fails(ENOPROTOOPT);
    assert_eq!(number(fd, IPPROTO_UDP, 99), Err(ENOPROTOOPT));
}

/// Texts that wait in a socket.
fn texts(inbox: i32) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| heard(inbox).ok()).map(|heard| heard.0).collect()
}

fn cork(fd: i32, is_on: bool) {
    set(fd, IPPROTO_UDP, UDP_CORK, &i32::from(is_on).to_ne_bytes()).is(0);
}

/// UDP_CORK: several sends become one datagram, which goes where the first said (udp(7)).
fn corked() {
    let ((inbox, port), (other, other_port)) = (bound(LO), bound(LO));
    let out = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    cork(out, true);
    send(out, b"one ", LO, port).is(4);
    send(out, b"two ", LO, other_port).is(4);
    sc!(SYS_write, out, b"three".as_ptr(), 5).is(5);
    assert_eq!(texts(inbox), [b""; 0]);
    cork(out, false);
    assert_eq!(texts(inbox), [b"one two three"]);
    assert_eq!(texts(other), [b""; 0]);
    // Off again: one send, one datagram; and what is begun at the end goes with the socket.
    send(out, b"four", LO, port).is(4);
    assert_eq!(texts(inbox), [b"four"]);
    cork(out, true);
    send(out, b"five", LO, port).is(4);
    close(out);
    assert_eq!(texts(inbox), [b""; 0]);
}

/// MSG_MORE: the same for one send, until one without it (send(2)).
fn corked_by_a_flag() {
    let (inbox, port) = bound(LO);
    let out = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    sc!(SYS_connect, out, address(LO, port).as_ptr(), 16).is(0);
    let more = |text: &[u8], flags: i32| {
        sc!(SYS_sendto, out, text.as_ptr(), text.len(), flags, 0, 0).is(text.len());
    };
    more(b"a", MSG_MORE);
    more(b"", MSG_MORE);
    more(b"b", MSG_MORE);
    assert_eq!(texts(inbox), [b""; 0]);
    more(b"c", 0);
    assert_eq!(texts(inbox), [b"abc"]);
    more(b"", MSG_MORE);
    more(b"", 0);
    assert_eq!(texts(inbox), [b""]);
}

/// What cannot be added takes with it what was begun.
fn corked_in_vain() {
    let (inbox, port) = bound(LO);
    let out = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    cork(out, true);
    let large = vec![7u8; 40_000];
    send(out, &large, LO, port).is(40_000);
    send(out, &large, LO, port).fails(EMSGSIZE);
    cork(out, false);
    assert_eq!(texts(inbox), [b""; 0]);
    cork(out, true);
    send(out, b"begun", LO, port).is(5);
    sc!(SYS_sendto, out, 8, 4, 0, 0, 0).fails(EFAULT);
    send(out, b"anew", LO, port).is(4);
    cork(out, false);
    assert_eq!(texts(inbox), [b"anew"]);
    // Begun by IPv6, it is not gone on with by IPv4.
    let six = sc!(SYS_socket, AF_INET6, SOCK_DGRAM, 0).fd();
    cork(six, true);
    let mut name = [0u8; 28];
    name[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
    name[2..4].copy_from_slice(&port.to_be_bytes());
    name[23] = 1;
    sc!(SYS_sendto, six, b"x".as_ptr(), 1, 0, name.as_ptr(), 28).is(1);
    send(six, b"y", LO, port).fails(EINVAL);
}

/// Of several things that are wrong with a datagram, which is told.
fn what_ends_a_send_first() {
    const ODD: usize = 8;
    let none = address([192, 0, 2, 1], 9);
    let out = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    let send_to = |fd: i32, at: usize, flags: i32, name: &[u8]| {
        sc!(SYS_sendto, fd, at, 4, flags, name.as_ptr(), name.len())
    };
    // EMSGSIZE, then MSG_OOB, then the name, the way, what is pending, the bytes.
    send_to(out, ODD, MSG_OOB, &none[..4]).fails(EOPNOTSUPP);
    send_to(out, ODD, 0, &none[..4]).fails(EINVAL);
    let here = address(LO, 1);
    sc!(SYS_connect, out, here.as_ptr(), 16).is(0);
    sc!(SYS_shutdown, out, SHUT_WR).is(0);
    send_to(out, ODD, 0, &here).fails(EPIPE);
    let local = sc!(SYS_socket, AF_UNIX, SOCK_DGRAM, 0).fd();
    let nobody = [1, 0, 0, b'n', b'o', b'b', b'o', b'd', b'y', b'9'];
    send_to(local, ODD, 0, &nobody).fails(EFAULT);
    send_to(local, b"text".as_ptr() as usize, 0, &nobody).fails(ECONNREFUSED);
    // Bound to an address of IPv6, a socket has nothing to do with IPv4.
    let six = sc!(SYS_socket, AF_INET6, SOCK_DGRAM, 0).fd();
    let mut own = [0u8; 28];
    own[0] = AF_INET6 as u8;
    own[23] = 1;
    sc!(SYS_bind, six, own.as_ptr(), 28).is(0);
    sc!(SYS_connect, six, here.as_ptr(), 16).fails(EAFNOSUPPORT);
    send_to(six, b"text".as_ptr() as usize, 0, &here).fails(ENETUNREACH);
}

/// /proc/net/snmp counts connections and datagrams (RFC 1213).
fn what_is_counted() {
    let counters = |table: &str| -> Vec<(String, i64)> {
        let text = std::fs::read_to_string("/proc/net/snmp").expect("counters");
        let mut rows = text.lines().filter_map(|line| line.strip_prefix(table));
        let (names, numbers) = (rows.next().expect("names"), rows.next().expect("numbers"));
        let numbers = numbers.split_ascii_whitespace().map(|number| number.parse().expect("one"));
        names.split_ascii_whitespace().map(String::from).zip(numbers).collect()
    };
    let of = |all: &[(String, i64)], name: &str| {
        all.iter().find(|known| known.0 == name).expect("a counter").1
    };
    let (udp, tcp) = (counters("Udp:"), counters("Tcp:"));
    let (inbox, port) = bound(LO);
    let out = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    for _ in 0..3 {
        send(out, b"text", LO, port).is(4);
    }
    assert_eq!(texts(inbox).len(), 3);
    close(inbox);
    send(out, b"text", LO, port).is(4);
    let after = counters("Udp:");
    let more = |name: &str| of(&after, name) - of(&udp, name);
    assert!(more("OutDatagrams") >= 4 && more("InDatagrams") >= 3 && more("NoPorts") >= 1);
    let listener = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_listen, listener, 1).is(0);
    let (_, port) = name_of(listener, SYS_getsockname);
    let connect = || {
        let client = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
        (client, sc!(SYS_connect, client, address(LO, port).as_ptr(), 16))
    };
    let (client, connected) = connect();
    connected.is(0);
    let served = sc!(SYS_accept, listener, 0, 0).fd();
    // Closed with bytes that nobody has read: broken off.
    write(client, b"text");
    close(served);
    close(listener);
    connect().1.fails(ECONNREFUSED);
    let after = counters("Tcp:");
    let more = |name: &str| of(&after, name) - of(&tcp, name);
    assert!(more("ActiveOpens") >= 2 && more("PassiveOpens") >= 1, "{after:?}");
    assert!(more("AttemptFails") >= 1 && more("EstabResets") >= 1 && more("OutRsts") >= 2);
}

/// A port that a socket was given by connect(2) is nobody's once it is connected to nobody; one
/// that bind(2) named stays.
fn a_port_that_nobody_asked_for() {
    let none = [0u8; 16];
    let (peer, peer_port) = bound(LO);
    let fd = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    for _ in 0..2 {
        sc!(SYS_connect, fd, address(LO, peer_port).as_ptr(), 16).is(0);
        let (ip, port) = name_of(fd, SYS_getsockname);
        assert!(ip == LO && port != 0, "{ip:?} {port}");
        sc!(SYS_connect, fd, none.as_ptr(), 16).is(0);
        assert_eq!(name_of(fd, SYS_getsockname), (ANY, 0));
        // It is free for others, and for the socket itself.
        let other = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
        sc!(SYS_bind, other, address(LO, port).as_ptr(), 16).is(0);
        sc!(SYS_close, other).is(0);
    }
    // Sending gives it one again, that stays while nobody connects it.
    sc!(SYS_sendto, fd, c"x".as_ptr(), 1, 0, address(LO, peer_port).as_ptr(), 16).is(1);
    let (ip, port) = name_of(fd, SYS_getsockname);
    assert!(ip == ANY && port != 0, "{ip:?} {port}");
    sc!(SYS_connect, fd, none.as_ptr(), 16).is(0);
    let free = name_of(peer, SYS_getsockname).1;
    sc!(SYS_close, peer).is(0);
    sc!(SYS_bind, fd, address(ANY, free).as_ptr(), 16).is(0);
    for to in [address(LO, free), none, none] {
        sc!(SYS_connect, fd, to.as_ptr(), 16).is(0);
    }
    assert_eq!(name_of(fd, SYS_getsockname), (ANY, free));
    sc!(SYS_close, fd).is(0);
}

/// A socket with this option, bound to this address.
fn bound_with(option: i32, ip: [u8; 4], port: u16) -> i32 {
    let fd = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    set(fd, SOL_SOCKET, option, &1i32.to_ne_bytes()).is(0);
    sc!(SYS_bind, fd, address(ip, port).as_ptr(), 16).is(0);
    fd
}

/// A port that several sockets have (SO_REUSEADDR): one of them hears, the last that came, or who
/// is bound to the very address.
fn of_equals_the_last_hears() {
    let first = bound_with(SO_REUSEADDR, ANY, 0);
    let port = name_of(first, SYS_getsockname).1;
    let others: Vec<i32> = (0..3).map(|_| bound_with(SO_REUSEADDR, ANY, port)).collect();
    let last = others[2];
    let (out, _) = bound(LO);
    for _ in 0..4 {
        send(out, b"x", LO, port).is(1);
        assert_eq!(heard(last), Ok((b"x".to_vec(), LO)));
    }
    close(last);
    send(out, b"y", LO, port).is(1);
    assert_eq!(heard(others[1]), Ok((b"y".to_vec(), LO)));
    let exact = bound_with(SO_REUSEADDR, LO, port);
    let later = bound_with(SO_REUSEADDR, ANY, port);
    send(out, b"z", LO, port).is(1);
    assert_eq!(heard(exact), Ok((b"z".to_vec(), LO)));
    assert!([first, others[0], others[1], later].into_iter().all(|fd| heard(fd) == Err(EAGAIN)));
}

/// A server with a socket for each peer: what a peer sends comes to its socket, all else to the
/// one that is not connected, whoever came last (udp(7), connect(2)).
fn who_is_connected_hears() {
    for option in [SO_REUSEADDR, SO_REUSEPORT] {
        let own = bound_with(option, ANY, 0);
        let port = name_of(own, SYS_getsockname).1;
        let ((peer, peer_port), (other, _)) = (bound(LO), bound(LO));
        let its = bound_with(option, ANY, port);
        sc!(SYS_connect, its, address(LO, peer_port).as_ptr(), 16).is(0);
        let last = bound_with(option, ANY, port);
        close(own);
        for _ in 0..8 {
            send(peer, b"mine", LO, port).is(4);
            assert_eq!(heard(its), Ok((b"mine".to_vec(), LO)));
            send(other, b"any", LO, port).is(3);
            assert_eq!(heard(last), Ok((b"any".to_vec(), LO)));
        }
        // Whom it is connected to no more sends it nothing more.
        sc!(SYS_connect, its, [0u8; 16].as_ptr(), 16).is(0);
        close(last);
        send(other, b"any", LO, port).is(3);
        assert_eq!(heard(its), Ok((b"any".to_vec(), LO)));
    }
}

/// A group (SO_REUSEPORT): what one sender sends comes to the same member each time, and not all
/// senders to the same.
fn a_flow_stays_with_a_member() {
    let first = bound_with(SO_REUSEPORT, LO, 0);
    let port = name_of(first, SYS_getsockname).1;
    let mut group = vec![first];
    group.extend((0..7).map(|_| bound_with(SO_REUSEPORT, LO, port)));
    let whose = |out: i32| {
        send(out, b"x", LO, port).is(1);
        let has: Vec<usize> = (0..group.len()).filter(|&at| heard(group[at]).is_ok()).collect();
        assert_eq!(has.len(), 1, "one has it");
        has[0]
    };
    let mut counts = [0; 8];
    for _ in 0..64 {
        let (out, _) = bound(LO);
        let member = whose(out);
        counts[member] += 1;
        assert!((0..4).all(|_| whose(out) == member), "a flow moved");
        close(out);
    }
    // Sixty-four that choose among eight at random leave more than three out once in 10^8 times.
    assert!(counts.iter().filter(|&&count| count > 0).count() >= 5, "{counts:?}");
}
