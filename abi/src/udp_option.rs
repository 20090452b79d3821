//! Options of the level IPPROTO_UDP (udp(7), `linux/udp.h`), which linux-raw-sys does not have.

/// UDP_CORK: what is sent waits until it is off again.
pub const CORK: u32 = 1;
/// UDP_ENCAP: packets of another protocol inside.
pub const ENCAP: u32 = 100;
/// UDP_NO_CHECK6_TX: no checksums are sent by IPv6.
pub const NO_CHECK6_TX: u32 = 101;
/// UDP_NO_CHECK6_RX: none are asked for.
pub const NO_CHECK6_RX: u32 = 102;
/// UDP_SEGMENT: what is sent at once becomes datagrams of so many bytes.
pub const SEGMENT: u32 = 103;
/// UDP_GRO: datagrams that were sent at once may come at once.
pub const GRO: u32 = 104;
/// UDPLITE_SEND_CSCOV: how far the checksums of what is sent reach (udplite(7)).
pub const LITE_SEND: u32 = 10;
/// UDPLITE_RECV_CSCOV: how far those of what is received must.
pub const LITE_RECEIVE: u32 = 11;
