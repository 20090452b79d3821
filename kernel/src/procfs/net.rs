//! /proc/net: sockets and the one interface, in the forms that netstat(8) and ss(8) read (proc(5)).
//!
//! Why it is hard: no table names all sockets. They are found as the descriptors of processes, each
//! once; one that is only on its way in a message is not shown. There is no device and no packet,
//! so counters of those are 0 and stay so.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Result, net as raw};

use crate::fs::pseudo::{Static, Text};
use crate::net::address::Address;
use crate::net::inet::interface;
use crate::net::{Kind, Socket, SocketFile};
use crate::process;
use crate::vfs::File;

pub(super) static TABLE: &[(&str, Static)] = &[
    ("arp", Static::File(arp)),
    ("dev", Static::File(dev)),
    ("if_inet6", Static::File(if_inet6)),
    ("raw", Static::File(|out| inet(out, raw::AF_INET, Kind::Raw))),
    ("raw6", Static::File(|out| inet(out, raw::AF_INET6, Kind::Raw))),
    ("route", Static::File(route)),
    ("sockstat", Static::File(sockstat)),
    ("tcp", Static::File(|out| inet(out, raw::AF_INET, Kind::Stream))),
    ("tcp6", Static::File(|out| inet(out, raw::AF_INET6, Kind::Stream))),
    ("udp", Static::File(|out| inet(out, raw::AF_INET, Kind::Dgram))),
    ("udp6", Static::File(|out| inet(out, raw::AF_INET6, Kind::Dgram))),
    ("unix", Static::File(unix)),
];

/// TCP's states, as other protocols show theirs, too.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// A unix socket's states (`socket_state` of the kernel's header of that name).
const UNCONNECTED: u8 = 1;
const CONNECTED: u8 = 3;
/// A listening unix socket's flag.
const ACCEPTS: u32 = 1 << 16;

/// Open sockets by inode number.
type Sockets = BTreeMap<u64, Arc<File>>;

fn sockets() -> Sockets {
    let mut found = Sockets::new();
    for process in process::all_processes() {
        let files = process.files();
        for fd in files.list() {
            let Ok(file) = files.get(fd) else { continue };
            if file.ops_as::<SocketFile>().is_some()
                && let Ok(metadata) = file.inode().metadata()
            {
                found.entry(metadata.inode).or_insert(file);
            }
        }
    }
    found
}

/// The sockets of a family and kind, with their inode numbers and owners.
fn of_kind<'a>(
    sockets: &'a Sockets,
    domain: u32,
    kind: Kind,
) -> Vec<(u64, u32, &'a Arc<dyn Socket>)> {
    let wanted = |(number, file): (&u64, &'a Arc<File>)| {
        let socket = file.ops_as::<SocketFile>()?.socket();
        let common = socket.common();
        let uid = file.inode().metadata().map_or(0, |metadata| metadata.uid);
        (common.domain == domain && common.kind == kind).then_some((*number, uid, socket))
    };
    sockets.iter().filter_map(wanted).collect()
}

fn inet(out: &mut Text, domain: u32, kind: Kind) -> Result<()> {
    let wide = if domain == raw::AF_INET6 { " ".repeat(24) } else { "".into() };
    write!(out, "  sl  local_address {wide}rem_address  {wide} st tx_queue rx_queue tr tm->when ");
    writeln!(out, "retrnsmt   uid  timeout inode");
    let sockets = sockets();
    let mut line = 0;
    for (number, uid, socket) in of_kind(&sockets, domain, kind) {
        let Address::Inet(local) = socket.local_address() else { continue };
        if local.port() == 0 && kind != Kind::Raw {
            continue;
        }
        let peer = match socket.peer_address() {
            Ok(Address::Inet(peer)) => Some(peer),
            _ => None,
        };
        let state = match peer {
            Some(_) => ESTABLISHED,
            None if socket.is_listening() => LISTEN,
            None => CLOSE,
        };
        let (to_receive, to_send) = socket.queued();
        write!(out, "{line:4}: ");
        put_address(out, domain, local);
        out.bytes(b" ");
        put_address(out, domain, peer.unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)));
        write!(out, " {state:02X} {to_send:08X}:{to_receive:08X} 00:00000000 00000000 ");
        writeln!(out, "{uid:5}        0 {number} 2 0000000000000000 0");
        line += 1;
    }
    Ok(())
}

/// Words of the address as the machine has them, and the port.
fn put_address(out: &mut Text, domain: u32, address: SocketAddr) {
    let octets = match address.ip() {
        IpAddr::V4(ip) if domain == raw::AF_INET => ip.octets().to_vec(),
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED.octets().to_vec(),
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    for word in octets.as_chunks().0 {
        write!(out, "{:08X}", u32::from_ne_bytes(*word));
    }
    write!(out, ":{:04X}", address.port());
}

fn unix(out: &mut Text) -> Result<()> {
    out.bytes(b"Num       RefCount Protocol Flags    Type St Inode Path\n");
    let sockets = sockets();
    for kind in [Kind::Stream, Kind::Dgram, Kind::SeqPacket] {
        for (number, _, socket) in of_kind(&sockets, raw::AF_UNIX, kind) {
            let flags = if socket.is_listening() { ACCEPTS } else { 0 };
            let state = if socket.peer_address().is_ok() { CONNECTED } else { UNCONNECTED };
            let kind = kind as u32;
            write!(out, "{:016x}: 00000002 00000000 {flags:08X} {kind:04X} ", 0);
            write!(out, "{state:02X} {number:5}");
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
    let count = |domain, kind| of_kind(&sockets, domain, kind).len();
    writeln!(out, "sockets: used {}", sockets.len());
    writeln!(out, "TCP: inuse {} orphan 0 tw 0 alloc 0 mem 0", count(raw::AF_INET, Kind::Stream));
    writeln!(out, "UDP: inuse {} mem 0", count(raw::AF_INET, Kind::Dgram));
    writeln!(out, "RAW: inuse {}", count(raw::AF_INET, Kind::Raw));
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
    writeln!(out, "{:032x} {:02x} 80 10 80       lo", 1, interface::INDEX);
    Ok(())
}

fn route(out: &mut Text) -> Result<()> {
    out.bytes(
        b"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
    );
    Ok(())
}
