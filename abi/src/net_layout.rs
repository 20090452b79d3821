//! Structures that sockets tell programs (ip(7), ipv6(7), tcp(7)), which linux-raw-sys does not
//! have as plain bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct in_pktinfo` (ip(7)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "ip(7), ipv6(7)")]
pub struct PacketInfo {
    pub index: u32,
    pub local: [u8; 4],
    pub to: [u8; 4],
}

/// `struct in6_pktinfo` (ipv6(7)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "ip(7), ipv6(7)")]
pub struct PacketInfo6 {
    pub to: [u8; 16],
    pub index: u32,
}

/// `struct sock_extended_err` (ip(7), IP_RECVERR).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
#[expect(missing_docs, reason = "ip(7)")]
pub struct ExtendedError {
    pub errno: u32,
    pub origin: u8,
    pub kind: u8,
    pub code: u8,
    pub pad: u8,
    pub info: u32,
    pub data: u32,
}

/// `struct tcp_info` (the kernel's header `tcp.h`); times in microseconds.
#[derive(IntoBytes, Immutable, Default, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "tcp.h")]
pub struct TcpInfo {
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    pub window_scales: u8,
    pub flags: u8,
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub fackets: u32,
    pub last_data_sent: u32,
    pub last_ack_sent: u32,
    pub last_data_recv: u32,
    pub last_ack_recv: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    pub min_rtt_us: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate: u64,
    pub busy_time_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub rehash: u32,
    pub total_rto: u16,
    pub total_rto_recoveries: u16,
    pub total_rto_time: u32,
}
