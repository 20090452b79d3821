//! Raw sockets over loopback (raw(7)), and the files of /proc/net that are about no socket.

use crate::sys::*;
use crate::{sc, tests};

tests!("raw":
    echo_is_answered, echo_of_ipv6_is_answered, headers_of_the_sender, filters_and_addresses,
    raw_is_refused, files_of_proc_net,
);

const ICMP: i32 = 1;
const ICMP6: i32 = 58;
const RAW: i32 = 255;
const LOOPBACK: u32 = 0x0100_007f;
/// A protocol that nobody has.
const NOBODYS: i32 = 253;

fn raw(family: i32, protocol: i32) -> i32 {
    sc!(SYS_socket, family, SOCK_RAW, protocol).fd()
}

/// An address of IPv4: the family, no port.
fn to(ip: u32) -> [u32; 4] {
    [AF_INET as u32, ip, 0, 0]
}

fn send(fd: i32, bytes: &[u8], ip: u32) -> Res {
    let address = to(ip);
    sc!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), 0, address.as_ptr(), 16)
}

/// What comes next, and from whom.
fn next(fd: i32) -> (Vec<u8>, [u32; 7]) {
    let (mut bytes, mut from, mut len) = ([0u8; 512], [0u32; 7], 28u32);
    let (at, room) = (bytes.as_mut_ptr(), bytes.len());
    let count =
        sc!(SYS_recvfrom, fd, at, room, MSG_DONTWAIT, from.as_mut_ptr(), &raw mut len).must();
    (bytes[..count].to_vec(), from)
}

fn nothing(fd: i32) {
    sc!(SYS_recvfrom, fd, [0u8; 8].as_mut_ptr(), 8, MSG_DONTWAIT, 0, 0).fails(EAGAIN);
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A request with this number.
fn request(number: u8) -> Vec<u8> {
    let mut bytes = vec![8, 0, 0, 0, 0x12, number, 0, 1, 1, 2, 3, 4];
    let sum = checksum(&bytes).to_be_bytes();
    bytes[2..4].copy_from_slice(&sum);
    bytes
}

fn echo_is_answered() {
    let fd = raw(AF_INET, ICMP);
    let sent = request(0x34);
    send(fd, &sent, LOOPBACK).is(sent.len());
    // The socket sees the request, too.
    let (seen, from) = next(fd);
    assert_eq!((seen[0], seen[9], &seen[20..]), (0x45, 1, &sent[..]));
    assert_eq!((from[0], from[1]), (AF_INET as u32, LOOPBACK));
    assert_eq!(usize::from(u16::from_be_bytes([seen[2], seen[3]])), seen.len());
    assert_eq!(checksum(&seen[..20]), 0);
    assert_eq!((&seen[12..16], &seen[16..20]), (&[127, 0, 0, 1][..], &[127, 0, 0, 1][..]));
    let (answer, _) = next(fd);
    assert_eq!((answer[20], &answer[24..]), (0, &sent[4..]));
    assert_eq!((answer[8], checksum(&answer[20..])), (64, 0));
    nothing(fd);
    // A wrong checksum is not answered.
    let mut wrong = request(1);
    wrong[2] ^= 1;
    send(fd, &wrong, LOOPBACK).is(wrong.len());
    assert_eq!(next(fd).0[20..], wrong);
    nothing(fd);
}

fn echo_of_ipv6_is_answered() {
    let fd = raw(AF_INET6, ICMP6);
    let mut local = [0u32; 7];
    (local[0], local[5]) = (AF_INET6 as u32, 0x0100_0000);
    // The kernel makes the checksum.
    let sent = [128u8, 0, 0, 0, 0x12, 0x34, 0, 1, 9, 9];
    sc!(SYS_sendto, fd, sent.as_ptr(), sent.len(), 0, local.as_ptr(), 28).is(sent.len());
    let (seen, from) = next(fd);
    assert_eq!((seen[0], &seen[4..]), (128, &sent[4..]));
    assert_eq!(from[2..6], local[2..6]);
    let (answer, _) = next(fd);
    assert_eq!((answer[0], &answer[4..]), (129, &sent[4..]));
    nothing(fd);
}

fn headers_of_the_sender() {
    let (fd, other) = (raw(AF_INET, RAW), raw(AF_INET, NOBODYS));
    let mut is_on = 0i32;
    let mut len = 4u32;
    sc!(SYS_getsockopt, fd, 0, 3, &raw mut is_on, &raw mut len).is(0);
    assert_eq!(is_on, 1, "IP_HDRINCL");
    let mut packet = [0u8; 24];
    (packet[0], packet[8], packet[9]) = (0x45, 7, NOBODYS as u8);
    packet[16..20].copy_from_slice(&[127, 0, 0, 1]);
    packet[20..].copy_from_slice(b"data");
    send(fd, &packet, LOOPBACK).is(24);
    let (seen, from) = next(other);
    assert_eq!((seen[8], &seen[20..], from[1]), (7, &b"data"[..], LOOPBACK));
    assert_eq!((u16::from_be_bytes([seen[2], seen[3]]), checksum(&seen[..20])), (24, 0));
    assert_ne!(&seen[4..6], &[0, 0], "the identification is given");
    nothing(fd);
    send(fd, &packet[..19], LOOPBACK).fails(EINVAL);
    packet[0] = 0x4f;
    send(fd, &packet, LOOPBACK).fails(EINVAL);
    // Another socket may ask for the same.
    sc!(SYS_setsockopt, other, 0, 3, &raw const is_on, 4).is(0);
    packet[0] = 0x45;
    send(other, &packet, LOOPBACK).is(24);
    assert_eq!(next(other).0[20..], *b"data");
}

fn filters_and_addresses() {
    let fd = raw(AF_INET, ICMP);
    // Only replies.
    let filter = !1u32;
    sc!(SYS_setsockopt, fd, RAW, 1, &raw const filter, 4).is(0);
    let (mut kept, mut len) = (0u32, 4u32);
    sc!(SYS_getsockopt, fd, RAW, 1, &raw mut kept, &raw mut len).is(0);
    assert_eq!((kept, len), (filter, 4));
    let sent = request(5);
    send(fd, &sent, LOOPBACK).is(sent.len());
    assert_eq!(next(fd).0[20], 0);
    nothing(fd);
    let other = raw(AF_INET, NOBODYS);
    sc!(SYS_setsockopt, other, RAW, 1, &raw const filter, 4).fails(EOPNOTSUPP);
    // The protocol stands for the port.
    let (mut name, mut len) = ([0u16; 8], 16u32);
    sc!(SYS_getsockname, other, name.as_mut_ptr(), &raw mut len).is(0);
    assert_eq!((name[1].swap_bytes(), name[2]), (NOBODYS as u16, 0));
    sc!(SYS_sendto, other, b"x".as_ptr(), 1, 0, 0, 0).fails(EDESTADDRREQ);
    // Bound to an address, it gets what is for that one.
    let second = 0x0200_007f;
    sc!(SYS_bind, other, to(second).as_ptr(), 16).is(0);
    let sender = raw(AF_INET, NOBODYS);
    sc!(SYS_connect, sender, to(LOOPBACK).as_ptr(), 16).is(0);
    sc!(SYS_sendto, sender, b"1".as_ptr(), 1, 0, 0, 0).is(1);
    nothing(other);
    send(sender, b"2", second).is(1);
    assert_eq!(next(other).0[20..], *b"2");
    let unknown = to(0x0100_00c6);
    sc!(SYS_bind, raw(AF_INET, NOBODYS), unknown.as_ptr(), 16).fails(EADDRNOTAVAIL);
    let listed = std::fs::read_to_string("/proc/net/raw").unwrap();
    assert!(listed.contains(" 0200007F:00FD 00000000:0000 07 "), "{listed}");
}

fn raw_is_refused() {
    sc!(SYS_socket, AF_INET, SOCK_RAW, 0).fails(EPROTONOSUPPORT);
    sc!(SYS_socket, AF_INET, SOCK_RAW, 300).fails(EINVAL);
    let fd = raw(AF_INET, NOBODYS);
    let big = vec![0u8; 65536];
    send(fd, &big, LOOPBACK).fails(EMSGSIZE);
    sc!(SYS_sendto, fd, b"x".as_ptr(), 1, MSG_OOB, to(LOOPBACK).as_ptr(), 16).fails(EOPNOTSUPP);
    in_child(|| {
        sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
        sc!(SYS_socket, AF_INET, SOCK_RAW, ICMP).fails(EPERM);
        sc!(SYS_socket, AF_INET6, SOCK_RAW, ICMP6).fails(EPERM);
    });
}

/// What programs that take these files apart rely on.
fn files_of_proc_net() {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap();
    let heads = [
        ("icmp", "  sl  local_address rem_address   st "),
        ("igmp", "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n1\tlo        : "),
        ("ip6_flowlabel", "Label S Owner  Users  Linger Expires  Dst"),
        ("mcfilter", "Idx Device        MCA        SRC    INC    EXC\n"),
        ("mcfilter6", "Idx Device                Multicast Address                   Source"),
        ("netlink", "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks"),
        ("netstat", "TcpExt: SyncookiesSent SyncookiesRecv SyncookiesFailed EmbryonicRsts "),
        ("packet", "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n"),
        ("protocols", "protocol  size sockets  memory press maxhdr  slab module     cl co di "),
        ("ptype", "Type Device      Function\n"),
        ("raw", "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt"),
        ("snmp6", "Ip6InReceives                   \t"),
        ("sockstat6", "TCP6: inuse "),
    ];
    for (name, head) in heads {
        let text = read(name);
        assert!(text.starts_with(head), "{name}: {text}");
    }
    // As many numbers as names.
    let text = read("netstat");
    for pair in text.lines().collect::<Vec<_>>().chunks(2) {
        assert_eq!(pair[0].split(' ').count(), pair[1].split(' ').count(), "{}", pair[0]);
    }
    let route = read("ipv6_route");
    let line = route.lines().find(|line| line.trim_end().ends_with(" lo")).unwrap();
    assert!(line.starts_with("00000000000000000000000000000001 80 0000"), "{line}");
    assert_eq!((line.len(), line.split_whitespace().count()), (149, 10), "{line}");
    assert!(read("igmp6").contains("1    lo              ff02000000000000000000000000"));
    for line in read("softnet_stat").lines() {
        assert!(line.split(' ').count() >= 13 && line.split(' ').all(|word| word.len() == 8));
    }
    let head = read("route");
    assert_eq!(head.lines().next().unwrap().len(), 127);
    let _fd = raw(AF_INET, NOBODYS);
    let protocols = read("protocols");
    let line = protocols.lines().find(|line| line.starts_with("RAW ")).unwrap();
    assert_ne!(line.split_whitespace().nth(2), Some("0"), "{line}");
}
