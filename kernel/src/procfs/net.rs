//! /proc/net: sockets and the one interface, in the forms that netstat(8) and ss(8) read (proc(5)).
//!
//! Why it is hard: no table names all sockets. They are found as the descriptors of processes, each
//! once; one that is only on its way in a message is not shown. There is no device and no packet,
//! so counters of those are 0 and stay so.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Result, net as raw};

use super::net_tables as tables;
use crate::base::counters::{self, Counted};
use crate::fs::pseudo::{Static, Text};
use crate::inet::tcp;
use crate::net::TcpState;
use crate::net::address::Address;
use crate::net::interface;
use crate::net::{Socket, SocketFile, SocketKind};
use crate::process;
use crate::vfs::File;

pub(super) static TABLE: &[(&str, Static)] = &[
    ("anycast6", Static::File(|_| Ok(()))),
    ("arp", Static::File(arp)),
    ("dev", Static::File(dev)),
    ("dev_mcast", Static::File(|_| Ok(()))),
    ("icmp", Static::File(|out| inet(out, raw::AF_INET, PING))),
    ("icmp6", Static::File(|out| inet(out, raw::AF_INET6, PING))),
    ("if_inet6", Static::File(if_inet6)),
    ("igmp", Static::File(tables::igmp)),
    ("igmp6", Static::File(tables::igmp6)),
    ("ip6_flowlabel", Static::File(tables::flow_labels)),
    ("ipv6_route", Static::File(tables::ipv6_route)),
    ("mcfilter", Static::File(tables::sources)),
    ("mcfilter6", Static::File(tables::sources6)),
    ("netlink", Static::File(tables::netlink)),
    ("netstat", Static::File(tables::netstat)),
    ("packet", Static::File(tables::packet)),
    ("protocols", Static::File(tables::protocols)),
    ("psched", Static::File(tables::psched)),
    ("ptype", Static::File(tables::ptype)),
    ("raw", Static::File(|out| inet(out, raw::AF_INET, RAW))),
    ("raw6", Static::File(|out| inet(out, raw::AF_INET6, RAW))),
    ("route", Static::File(route)),
    ("rt_cache", Static::File(tables::rt_cache)),
    ("snmp", Static::File(snmp)),
    ("snmp6", Static::File(tables::snmp6)),
    ("sockstat", Static::File(sockstat)),
    ("sockstat6", Static::File(tables::sockstat6)),
    ("softnet_stat", Static::File(tables::softnet_stat)),
    ("tcp", Static::File(|out| inet(out, raw::AF_INET, TCP))),
    ("tcp6", Static::File(|out| inet(out, raw::AF_INET6, TCP))),
    ("udp", Static::File(|out| inet(out, raw::AF_INET, UDP))),
    ("udp6", Static::File(|out| inet(out, raw::AF_INET6, UDP))),
    ("udplite", Static::File(|out| inet(out, raw::AF_INET, UDPLITE))),
    ("udplite6", Static::File(|out| inet(out, raw::AF_INET6, UDPLITE))),
    ("unix", Static::File(unix)),
];

/// The sockets of a file: their kind, and protocol if it has several.
type Wanted = (SocketKind, Option<u32>);

const TCP: Wanted = (SocketKind::Stream, None);
const UDP: Wanted = (SocketKind::Dgram, Some(raw::IPPROTO_UDP as u32));
const UDPLITE: Wanted = (SocketKind::Dgram, Some(raw::IPPROTO_UDPLITE as u32));
const RAW: Wanted = (SocketKind::Raw, None);
/// Sockets that send echo requests without rights: of a kind that there is not.
const PING: Wanted = (SocketKind::Dgram, Some(raw::IPPROTO_ICMP as u32));

/// How many of the sockets are of the kind that /proc/net/protocols calls so.
pub(super) fn count_of(sockets: &Sockets, name: &str) -> usize {
    let (domain, wanted) = match name {
        "TCP" => (raw::AF_INET, TCP),
        "TCPv6" => (raw::AF_INET6, TCP),
        "UDP" => (raw::AF_INET, UDP),
        "UDPv6" => (raw::AF_INET6, UDP),
        "UDP-Lite" => (raw::AF_INET, UDPLITE),
        "UDPLITEv6" => (raw::AF_INET6, UDPLITE),
        "RAW" => (raw::AF_INET, RAW),
        "RAWv6" => (raw::AF_INET6, RAW),
        "UNIX-STREAM" => (raw::AF_UNIX, (SocketKind::Stream, None)),
        "UNIX" => {
            let other = [SocketKind::Dgram, SocketKind::SeqPacket];
            let of = |kind| of_kind(sockets, raw::AF_UNIX, (kind, None)).len();
            return other.map(of).iter().sum();
        }
        _ => (raw::AF_NETLINK, (SocketKind::Raw, None)),
    };
    of_kind(sockets, domain, wanted).len()
}

/// TCP's states, as other protocols show theirs, too.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// A unix socket's states (`socket_state` of the kernel's header of that name).
const UNCONNECTED: u8 = 1;
const CONNECTED: u8 = 3;
/// A listening unix socket's flag.
const ACCEPTS: u32 = 1 << 16;

/// The counters of Linux's tables (RFC 1213), whose names netstat(8) reads. Connections and
/// datagrams count; there are no packets, so what counts those is 0.
fn snmp(out: &mut Text) -> Result<()> {
    const TABLES: [(&str, &str, &str); 5] = [
        (
            "Ip",
            "Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams \
             InUnknownProtos InDiscards InDelivers OutRequests OutDiscards OutNoRoutes \
             ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates \
             OutTransmits",
            "2 64",
        ),
        (
            "Icmp",
            "InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs InSrcQuenchs \
             InRedirects InEchos InEchoReps InTimestamps InTimestampReps InAddrMasks \
             InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal OutRateLimitHost \
             OutDestUnreachs OutTimeExcds OutParmProbs OutSrcQuenchs OutRedirects OutEchos \
             OutEchoReps OutTimestamps OutTimestampReps OutAddrMasks OutAddrMaskReps",
            "0",
        ),
        (
            "Tcp",
            "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails \
             EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors",
            "1 200 120000 -1",
        ),
        (
            "Udp",
            "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors \
             IgnoredMulti MemErrors",
            "",
        ),
        (
            "UdpLite",
            "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors \
             IgnoredMulti MemErrors",
            "",
        ),
    ];
    let established = established() as u64;
    for (table, names, known) in TABLES {
        write!(out, "{table}:");
        let names = || names.split_ascii_whitespace();
        names().for_each(|name| write!(out, " {name}"));
        write!(out, "\n{table}:");
        let known = || known.split_ascii_whitespace();
        known().for_each(|number| write!(out, " {number}"));
        let rest = names().skip(known().count());
        for name in rest {
            let number = if name == "CurrEstab" { established } else { counted(table, name) };
            write!(out, " {number}");
        }
        out.bytes(b"\n");
    }
    Ok(())
}

/// What a counter of a table stands at.
fn counted(table: &str, name: &str) -> u64 {
    const COUNTED: [(&str, &str, Counted); 16] = [
        ("Tcp", "ActiveOpens", Counted::ActiveOpens),
        ("Tcp", "PassiveOpens", Counted::PassiveOpens),
        ("Tcp", "AttemptFails", Counted::AttemptFails),
        ("Tcp", "EstabResets", Counted::EstabResets),
        ("Tcp", "OutRsts", Counted::OutRsts),
        ("Udp", "InDatagrams", Counted::InDatagrams),
        ("Udp", "NoPorts", Counted::NoPorts),
        ("Udp", "OutDatagrams", Counted::OutDatagrams),
        ("Udp", "InErrors", Counted::NoRoom),
        ("Udp", "RcvbufErrors", Counted::NoRoom),
        ("UdpLite", "InDatagrams", Counted::LiteInDatagrams),
        ("UdpLite", "NoPorts", Counted::LiteNoPorts),
        ("UdpLite", "OutDatagrams", Counted::LiteOutDatagrams),
        ("UdpLite", "InErrors", Counted::LiteNoRoom),
        ("UdpLite", "InErrors", Counted::LiteUncovered),
        ("UdpLite", "RcvbufErrors", Counted::LiteNoRoom),
    ];
    let known = COUNTED.iter().filter(|known| (known.0, known.1) == (table, name));
    known.map(|known| counters::total(known.2)).sum()
}

/// Connections of TCP that are established.
fn established() -> usize {
    let sockets = sockets();
    let of = |domain| of_kind(&sockets, domain, TCP);
    let all = of(raw::AF_INET).into_iter().chain(of(raw::AF_INET6));
    all.filter(|(_, _, socket)| matches!(socket.tcp_state(), Some(TcpState::Established))).count()
}

/// Open sockets in the order of their inode numbers.
pub(super) type Sockets = Vec<(u64, Arc<File>)>;

pub(super) fn sockets() -> Sockets {
    let mut found = Sockets::new();
    for process in process::all_processes() {
        let files = process.files();
        for fd in files.list() {
            let Ok(file) = files.get(fd) else { continue };
            if file.ops_as::<SocketFile>().is_some()
                && let Ok(number) = file.inode().number()
            {
                found.push((number, file));
            }
        }
    }
    found.sort_unstable_by_key(|&(number, _)| number);
    found.dedup_by_key(|&mut (number, _)| number);
    found
}

/// The sockets of a family and kind, with their inode numbers and owners.
fn of_kind<'a>(
    sockets: &'a Sockets,
    domain: u32,
    (kind, protocol): Wanted,
) -> Vec<(u64, u32, &'a Arc<dyn Socket>)> {
    let wanted = |(number, file): &'a (u64, Arc<File>)| {
        let socket = file.ops_as::<SocketFile>()?.socket();
        let common = socket.common();
        let is_kind = common.domain == domain && common.kind == kind;
        let is_protocol = protocol.is_none_or(|protocol| common.protocol == protocol);
        let uid = || file.inode().metadata().map_or(0, |metadata| metadata.uid);
        (is_kind && is_protocol).then(|| (*number, uid(), socket))
    };
    sockets.iter().filter_map(wanted).collect()
}

/// A row of /proc/net/tcp or udp.
struct Row {
    local: SocketAddr,
    peer: SocketAddr,
    state: u8,
    /// Bytes to be sent, bytes to be received; of a listener, how many wait and how many may.
    queues: (usize, usize),
    /// Which timer runs, and in how many hundredths of a second it is due.
    timer: (u8, u64),
    uid: u32,
    inode: u64,
}

/// Width of a row of IPv4, as on Linux; those of IPv6 are as long as they are.
const TCP_WIDTH: usize = 149;
const UDP_WIDTH: usize = 127;

fn inet(out: &mut Text, domain: u32, wanted: Wanted) -> Result<()> {
    let is_v6 = domain == raw::AF_INET6;
    let is_tcp = wanted == TCP;
    let has_wide_slots = !is_tcp && !is_v6 && wanted != RAW && wanted != PING;
    let first = if !has_wide_slots { "  sl  local_address " } else { "   sl  local_address " };
    let mut header = Text::default();
    write!(header, "{first}{}rem", if is_v6 { " ".repeat(24) } else { "".into() });
    write!(
        header,
        "{}_address {}",
        if is_v6 { "ote" } else { "" },
        " ".repeat(if is_v6 { 23 } else { 2 })
    );
    write!(header, "st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode");
    if !is_tcp {
        header.bytes(b" ref pointer drops");
    }
    let width = match (is_v6, is_tcp) {
        (true, _) => 0,
        (false, true) => TCP_WIDTH,
        (false, false) if wanted == RAW => 0,
        (false, false) => UDP_WIDTH,
    };
    put_line(out, &header, width);
    let sockets = sockets();
    let rows = of_kind(&sockets, domain, wanted).into_iter().filter_map(row_of);
    let waiting = if is_tcp { waiting_rows(is_v6) } else { Vec::new() };
    let slot = if is_tcp || wanted == RAW && !is_v6 { 4 } else { 5 };
    let mut line = Text::default();
    for (number, row) in rows.chain(waiting).enumerate() {
        line.0.clear();
        line.decimal(number as u64, slot);
        line.bytes(b": ");
        put_row(&mut line, domain, &row, is_tcp);
        put_line(out, &line, width);
    }
    Ok(())
}

fn put_line(out: &mut Text, line: &Text, width: usize) {
    out.bytes(&line.0);
    out.blanks(width.saturating_sub(line.0.len()));
    out.bytes(b"\n");
}

fn row_of((inode, uid, socket): (u64, u32, &Arc<dyn Socket>)) -> Option<Row> {
    let Address::Inet(local) = socket.local_address() else { return None };
    let peer = match socket.peer_address() {
        Ok(Address::Inet(peer)) => Some(peer),
        _ => None,
    };
    let nobody = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let (to_receive, to_send) = socket.queued();
    let state = match socket.tcp_state() {
        // Bound, and no more.
        Some(TcpState::Close) => return None,
        Some(state) => state as u8,
        None if local.port() == 0 && socket.common().kind != SocketKind::Raw => return None,
        None => {
            if peer.is_some() {
                ESTABLISHED
            } else {
                CLOSE
            }
        }
    };
    let queues =
        if socket.is_listening() { (0, socket.backlog_len()) } else { (to_send, to_receive) };
    Some(Row { local, peer: peer.unwrap_or(nobody), state, queues, timer: (0, 0), uid, inode })
}

/// Ends of connections that have no socket any more.
fn waiting_rows(is_v6: bool) -> Vec<Row> {
    /// The number of the timer that ends them.
    const TIMER: u8 = 3;
    let ends = tcp::waiting().into_iter().filter(|end| end.local.is_ipv6() == is_v6);
    let rows = ends.map(|end| Row {
        local: end.local,
        peer: end.peer,
        state: if end.is_time_wait { TcpState::TimeWait } else { TcpState::FinWait2 } as u8,
        queues: (0, 0),
        timer: (TIMER, end.left_ns / 10_000_000),
        uid: 0,
        inode: 0,
    });
    rows.collect()
}

fn put_row(out: &mut Text, domain: u32, row: &Row, is_tcp: bool) {
    put_address(out, domain, row.local);
    out.bytes(b" ");
    put_address(out, domain, row.peer);
    let ((to_send, to_receive), (timer, when)) = (row.queues, row.timer);
    let numbers = [
        (" ", row.state.into(), 2),
        (" ", to_send as u64, 8),
        (":", to_receive as u64, 8),
        (" ", timer.into(), 2),
        (":", when, 8),
    ];
    for (before, number, width) in numbers {
        out.bytes(before.as_bytes());
        out.hex_capitals(number, width);
    }
    out.bytes(b" 00000000 ");
    out.decimal(row.uid.into(), 5);
    out.bytes(b"        0 ");
    out.decimal(row.inode, 0);
    // Of the socket's address nothing is told.
    out.bytes(match row.state {
        _ if !is_tcp => b" 2 0000000000000000 0",
        LISTEN => b" 1 0000000000000000 100 0 0 10 0",
        _ if row.inode == 0 => b" 3 0000000000000000",
        _ => b" 1 0000000000000000 20 4 30 10 -1",
    });
}

/// Words of the address as the machine has them, and the port.
fn put_address(out: &mut Text, domain: u32, address: SocketAddr) {
    let mut put = |word: [u8; 4]| out.hex_capitals(u32::from_ne_bytes(word).into(), 8);
    let v6 = match address.ip() {
        IpAddr::V4(ip) if domain == raw::AF_INET => {
            put(ip.octets());
            None
        }
        IpAddr::V4(ip) if ip.is_unspecified() => Some(Ipv6Addr::UNSPECIFIED),
        IpAddr::V4(ip) => Some(ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => Some(ip),
    };
    let octets = v6.map(|ip| ip.octets());
    octets.iter().flat_map(|octets| octets.as_chunks().0).for_each(|&word| put(word));
    out.bytes(b":");
    out.hex_capitals(address.port().into(), 4);
}

fn unix(out: &mut Text) -> Result<()> {
    out.bytes(b"Num       RefCount Protocol Flags    Type St Inode Path\n");
    let sockets = sockets();
    for kind in [SocketKind::Stream, SocketKind::Dgram, SocketKind::SeqPacket] {
        for (number, _, socket) in of_kind(&sockets, raw::AF_UNIX, (kind, None)) {
            let flags = if socket.is_listening() { ACCEPTS } else { 0 };
            let state = if socket.peer_address().is_ok() { CONNECTED } else { UNCONNECTED };
            out.bytes(b"0000000000000000: 00000002 00000000 ");
            out.hex_capitals(flags.into(), 8);
            out.bytes(b" ");
            out.hex_capitals(kind as u64, 4);
            out.bytes(b" ");
            out.hex_capitals(state.into(), 2);
            out.bytes(b" ");
            out.decimal(number, 5);
            if let Address::Unix(Some(name)) = socket.local_address() {
                out.bytes(b" ");
                // An abstract name begins with NUL, which shows as @.
                let shown: Vec<u8> =
                    name.iter().map(|&byte| if byte == 0 { b'@' } else { byte }).collect();
                out.bytes(&shown);
            }
            out.bytes(b"\n");
        }
    }
    Ok(())
}

fn sockstat(out: &mut Text) -> Result<()> {
    let sockets = sockets();
    let count = |wanted| of_kind(&sockets, raw::AF_INET, wanted).len();
    writeln!(out, "sockets: used {}", sockets.len());
    let (waiting, tcp) = (tcp::waiting().len(), count(TCP));
    writeln!(out, "TCP: inuse {tcp} orphan 0 tw {waiting} alloc {tcp} mem 0");
    writeln!(out, "UDP: inuse {} mem 0", count(UDP));
    writeln!(out, "UDPLITE: inuse {}", count(UDPLITE));
    writeln!(out, "RAW: inuse {}", count(RAW));
    writeln!(out, "FRAG: inuse 0 memory 0");
    Ok(())
}

fn arp(out: &mut Text) -> Result<()> {
    out.bytes(b"IP address       HW type     Flags       HW address            Mask     Device\n");
    Ok(())
}

fn dev(out: &mut Text) -> Result<()> {
    out.bytes(b"Inter-|   Receive                                                |  Transmit\n");
    out.bytes(
        b" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets ",
    );
    out.bytes(b"errs drop fifo colls carrier compressed\n    lo:");
    for width in [8, 8, 5, 5, 5, 6, 11, 10, 9, 8, 5, 5, 5, 6, 8, 11] {
        write!(out, "{:width$}", 0);
    }
    out.bytes(b"\n");
    Ok(())
}

fn if_inet6(out: &mut Text) -> Result<()> {
    // Address, index, length of the prefix, scope (the host), flags (permanent), name.
    writeln!(out, "{:032x} {:02x} 80 10 80       lo", 1, interface::LO.index);
    Ok(())
}

fn route(out: &mut Text) -> Result<()> {
    /// Width of every line.
    const WIDTH: usize = 127;
    let names =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";
    writeln!(out, "{names:<WIDTH$}");
    Ok(())
}
