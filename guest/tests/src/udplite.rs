//! UDP-Lite: datagrams of which a checksum may cover a part only (RFC 3828, udplite(7)). By `lo`.

use crate::sys::*;
use crate::{sc, tests};

tests! { "udplite":
    which_sockets, levels, ports_of_its_own, who_takes_what_is_covered, covered_when_it_goes,
    not_cut, as_udp, of_both_versions, in_proc,
}

const UDP_CORK: i32 = 1;
const SEND_CSCOV: i32 = 10;
const RECV_CSCOV: i32 = 11;
const UDP_SEGMENT: i32 = 103;
const LO: [u8; 4] = [127, 0, 0, 1];
const LITE: i32 = IPPROTO_UDPLITE;

fn lite() -> i32 {
    lite_of(AF_INET)
}

/// A socket. A host may have none (newer kernels do not): there the test has nothing to look at.
fn lite_of(family: i32) -> i32 {
    let socket = sc!(SYS_socket, family, SOCK_DGRAM, LITE);
    if socket == Err(EPROTONOSUPPORT) && !crate::addresses::is_limen() {
        quit(0);
    }
    socket.fd()
}

fn set(fd: i32, level: i32, name: i32, value: i32) -> Res {
    sc!(SYS_setsockopt, fd, level, name, &raw const value, 4)
}

fn number(fd: i32, level: i32, name: i32) -> Result<i32, i32> {
    let (mut value, mut len) = (-1i32, 4u32);
    sc!(SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len).map(|_| value)
}

/// `struct sockaddr_in` of the loopback.
fn address(port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&LO);
    bytes
}

fn bind(fd: i32, port: u16) -> Res {
    sc!(SYS_bind, fd, address(port).as_ptr(), 16)
}

fn port_of(fd: i32) -> u16 {
    let (mut name, mut len) = ([0u8; 28], 28u32);
    sc!(SYS_getsockname, fd, name.as_mut_ptr(), &raw mut len).is(0);
    u16::from_be_bytes([name[2], name[3]])
}

/// A bound socket, and one that is connected to it.
fn pair() -> (i32, i32) {
    let (inbox, out) = (lite(), lite());
    bind(inbox, 0).is(0);
    sc!(SYS_connect, out, address(port_of(inbox)).as_ptr(), 16).is(0);
    (inbox, out)
}

fn send(fd: i32, text: &[u8]) -> Res {
    sc!(SYS_sendto, fd, text.as_ptr(), text.len(), 0, 0, 0)
}

fn heard(fd: i32) -> Result<Vec<u8>, i32> {
    let mut text = [0u8; 256];
    let got = sc!(SYS_recvfrom, fd, text.as_mut_ptr(), 256, MSG_DONTWAIT, 0, 0)?;
    Ok(text[..got].to_vec())
}

fn which_sockets() {
    for family in [AF_INET, AF_INET6] {
        let fd = lite_of(family);
        assert_eq!(number(fd, SOL_SOCKET, SO_PROTOCOL), Ok(LITE));
        assert_eq!(number(fd, SOL_SOCKET, SO_TYPE), Ok(SOCK_DGRAM));
        assert_eq!(number(fd, SOL_SOCKET, SO_DOMAIN), Ok(family));
        close(fd);
        sc!(SYS_socket, family, SOCK_STREAM, LITE).fails(EPROTONOSUPPORT);
        sc!(SYS_socket, family, SOCK_SEQPACKET, LITE).fails(ESOCKTNOSUPPORT);
    }
}

/// The levels of UDP and UDP-Lite are one; only a socket of UDP-Lite has these options.
fn levels() {
    let (fd, udp) = (lite(), sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd());
    for level in [IPPROTO_UDP, LITE] {
        set(fd, level, SEND_CSCOV, 20).is(0);
        set(fd, level, UDP_CORK, 0).is(0);
        assert_eq!(number(fd, LITE, SEND_CSCOV), Ok(20));
        assert_eq!(number(fd, IPPROTO_UDP, SEND_CSCOV), Ok(20));
        assert_eq!(number(udp, level, SEND_CSCOV), Ok(0));
        set(udp, level, SEND_CSCOV, 20).fails(ENOPROTOOPT);
        set(udp, level, UDP_SEGMENT, 7).is(0);
        assert_eq!(number(udp, LITE, UDP_SEGMENT), Ok(7));
    }
    for (given, kept) in [(7, 8), (9, 9), (65535, 65535), (65536, 65535), (i32::MIN, 8), (0, 0)] {
        set(fd, LITE, RECV_CSCOV, given).is(0);
        assert_eq!(number(fd, LITE, RECV_CSCOV), Ok(kept), "{given}");
    }
    set(fd, LITE, 12, 1).fails(ENOPROTOOPT);
    let stream = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    set(stream, LITE, SEND_CSCOV, 20).fails(ENOPROTOOPT);
    [fd, udp, stream].into_iter().for_each(close);
}

fn ports_of_its_own() {
    let (udp, first, second, out) =
        (sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd(), lite(), lite(), lite());
    bind(out, 0).is(0);
    // Not the port of `out`, which would hear itself.
    let port = (20000..20100)
        .find(|&port| port != port_of(out) && bind(udp, port).is_ok())
        .expect("a free port");
    // Nobody of UDP-Lite is there, whoever of UDP is.
    sc!(SYS_connect, out, address(port).as_ptr(), 16).is(0);
    send(out, b"lost").is(4);
    send(out, b"told").fails(ECONNREFUSED);
    bind(first, port).is(0);
    bind(second, port).fails(EADDRINUSE);
    send(out, b"text").is(4);
    assert_eq!(heard(udp), Err(EAGAIN));
    assert_eq!(heard(first), Ok(b"text".to_vec()));
    [udp, first, second, out].into_iter().for_each(close);
}

/// What a sender covers, what a receiver asks for, how long the data is, whether it comes. None:
/// not set. Lengths count a header of eight bytes.
type Case = (Option<i32>, Option<i32>, usize, bool);

fn who_takes_what_is_covered() {
    const CASES: [Case; 16] = [
        (None, None, 20, true),
        (None, Some(100), 20, true),
        (None, Some(0), 20, true),
        (Some(0), Some(100), 20, true),
        (Some(8), None, 20, true),
        (Some(8), Some(8), 20, true),
        (Some(8), Some(9), 20, false),
        (Some(8), Some(0), 20, false),
        (Some(8), Some(9), 0, true),
        (Some(1), Some(9), 1, false),
        (Some(20), Some(20), 20, true),
        (Some(20), Some(21), 20, false),
        (Some(27), Some(28), 20, false),
        (Some(28), Some(100), 20, true),
        (Some(65535), Some(65535), 20, true),
        (Some(20), Some(65535), 20, false),
    ];
    for (covered, least, len, comes) in CASES {
        let (inbox, out) = pair();
        covered.into_iter().for_each(|n| set(out, LITE, SEND_CSCOV, n).is(0));
        least.into_iter().for_each(|n| set(inbox, LITE, RECV_CSCOV, n).is(0));
        send(out, &vec![7; len]).is(len);
        let wanted = if comes { Ok(vec![7; len]) } else { Err(EAGAIN) };
        assert_eq!(heard(inbox), wanted, "{covered:?} {least:?} {len}");
        // What was not taken is in nobody's way.
        set(out, LITE, SEND_CSCOV, 0).is(0);
        send(out, b"next").is(4);
        assert_eq!(heard(inbox), Ok(b"next".to_vec()));
        [inbox, out].into_iter().for_each(close);
    }
}

/// What is put together is covered as the socket says when it goes.
fn covered_when_it_goes() {
    let (inbox, out) = pair();
    set(inbox, LITE, RECV_CSCOV, 20).is(0);
    for (at_last, comes) in [(8, false), (20, true)] {
        set(out, LITE, SEND_CSCOV, 28 - at_last).is(0);
        set(out, LITE, UDP_CORK, 1).is(0);
        send(out, b"0123456789").is(10);
        send(out, b"0123456789").is(10);
        set(out, LITE, SEND_CSCOV, at_last).is(0);
        set(out, LITE, UDP_CORK, 0).is(0);
        assert_eq!(heard(inbox).map(|text| text.len()), if comes { Ok(20) } else { Err(EAGAIN) });
    }
    // What is lost must be there all the same.
    set(out, LITE, SEND_CSCOV, 8).is(0);
    sc!(SYS_sendto, out, 8, 4, 0, 0, 0).fails(EFAULT);
    [inbox, out].into_iter().for_each(close);
}

fn not_cut() {
    let (inbox, out) = pair();
    set(out, LITE, UDP_SEGMENT, 4).is(0);
    send(out, b"0123456789").fails(EIO);
    send(out, b"012").fails(EIO);
    set(out, LITE, UDP_SEGMENT, 0).is(0);
    send(out, b"0123456789").is(10);
    assert_eq!(heard(inbox), Ok(b"0123456789".to_vec()));
    [inbox, out].into_iter().for_each(close);
}

/// Everything else is as UDP has it: poll, cut messages, who sent, what is too long.
fn as_udp() {
    let (inbox, out) = pair();
    let ready = |fd| {
        let mut one = pollfd { fd, events: POLLIN | POLLOUT, revents: 0 };
        sc!(SYS_poll, &raw mut one, 1, 0).must();
        one.revents
    };
    assert_eq!(ready(inbox), POLLOUT);
    send(out, b"0123456789").is(10);
    assert_eq!(ready(inbox), POLLIN | POLLOUT);
    let (mut text, mut name, mut len) = ([0u8; 4], [0u8; 16], 16u32);
    let mut receive = |flags: i32| {
        let (text_at, name_at) = (text.as_mut_ptr(), name.as_mut_ptr());
        sc!(SYS_recvfrom, inbox, text_at, 4, flags, name_at, &raw mut len)
    };
    receive(MSG_PEEK | MSG_TRUNC).is(10);
    receive(MSG_PEEK).is(4);
    receive(MSG_TRUNC).is(10);
    receive(MSG_DONTWAIT).fails(EAGAIN);
    assert_eq!((&text, name), (b"0123", address(port_of(out))));
    let mut waiting = -1i32;
    send(out, b"twelve").is(6);
    sc!(SYS_ioctl, inbox, FIONREAD, &raw mut waiting).is(0);
    assert_eq!(waiting, 6);
    send(out, &[0; 65508]).fails(EMSGSIZE);
    sc!(SYS_listen, inbox, 1).fails(EOPNOTSUPP);
    [inbox, out].into_iter().for_each(close);
    let unconnected = lite();
    send(unconnected, b"x").fails(EDESTADDRREQ);
    close(unconnected);
}

/// A socket of IPv6 hears both versions.
fn of_both_versions() {
    let inbox = lite_of(AF_INET6);
    let mut any = [0u8; 28];
    any[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
    sc!(SYS_bind, inbox, any.as_ptr(), 28).is(0);
    let port = port_of(inbox);
    let (four, six) = (lite(), lite_of(AF_INET6));
    let mut own = any;
    own[2..4].copy_from_slice(&port.to_be_bytes());
    own[23] = 1;
    sc!(SYS_connect, four, address(port).as_ptr(), 16).is(0);
    sc!(SYS_connect, six, own.as_ptr(), 28).is(0);
    set(inbox, LITE, RECV_CSCOV, 12).is(0);
    for (fd, text) in [(four, b"four"), (six, b"six.")] {
        set(fd, LITE, SEND_CSCOV, 11).is(0);
        send(fd, b"lost").is(4);
        set(fd, LITE, SEND_CSCOV, 12).is(0);
        send(fd, text).is(4);
        assert_eq!(heard(inbox), Ok(text.to_vec()));
        assert_eq!(heard(inbox), Err(EAGAIN));
    }
    [inbox, four, six].into_iter().for_each(close);
}

/// A counter of /proc/net/snmp.
fn counter(name: &str) -> i64 {
    let text = std::fs::read_to_string("/proc/net/snmp").expect("counters");
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("UdpLite: "));
    let (names, numbers) = (rows.next().expect("names"), rows.next().expect("numbers"));
    let at = names.split(' ').position(|known| known == name).expect("a counter");
    numbers.split(' ').nth(at).expect("its number").parse().expect("a number")
}

fn in_proc() {
    const NAMES: [&str; 4] = ["OutDatagrams", "InDatagrams", "NoPorts", "InErrors"];
    close(lite());
    let before = NAMES.map(counter);
    let (inbox, out) = pair();
    let port = port_of(inbox);
    let row = format!(": 0100007F:{port:04X} 00000000:0000 07 ");
    let told = |path: &str| std::fs::read_to_string(path).expect("a table").contains(&row);
    assert!(told("/proc/net/udplite") && !told("/proc/net/udp"));
    let header = |path: &str| {
        std::fs::read_to_string(path).expect("a table").lines().next().expect("a header").to_owned()
    };
    assert_eq!(header("/proc/net/udplite"), header("/proc/net/udp"));
    assert_eq!(header("/proc/net/udplite6"), header("/proc/net/udp6"));
    let used = std::fs::read_to_string("/proc/net/sockstat").expect("a table");
    let used = used.lines().find_map(|line| line.strip_prefix("UDPLITE: inuse ")).expect("a row");
    assert!(used.parse::<u32>().expect("a number") >= 2);
    send(out, b"text").is(4);
    assert_eq!(heard(inbox), Ok(b"text".to_vec()));
    set(inbox, LITE, RECV_CSCOV, 0).is(0);
    set(out, LITE, SEND_CSCOV, 8).is(0);
    send(out, b"text").is(4);
    close(inbox);
    send(out, b"text").is(4);
    let more: Vec<i64> = NAMES.iter().zip(before).map(|(name, old)| counter(name) - old).collect();
    assert!(more.iter().zip([3, 1, 1, 1]).all(|(more, least)| *more >= least), "{more:?}");
    close(out);
}
