//! Numbers and lengths of options of sockets that Linux's headers give (ip(7), tcp(7)).

use crate::net as raw;

/// Numbers of the options (the kernel's header `tcp.h`).
pub mod tcp {
    /// TCP_NODELAY.
    pub const NODELAY: u32 = 1;
    /// TCP_MAXSEG.
    pub const MAXSEG: u32 = 2;
    /// TCP_CORK.
    pub const CORK: u32 = 3;
    /// TCP_DEFER_ACCEPT.
    pub const DEFER_ACCEPT: u32 = 9;
    /// TCP_WINDOW_CLAMP.
    pub const WINDOW_CLAMP: u32 = 10;
    /// TCP_INFO.
    pub const INFO: u32 = 11;
    /// TCP_QUICKACK.
    pub const QUICKACK: u32 = 12;
    /// TCP_CONGESTION.
    pub const CONGESTION: u32 = 13;
    /// TCP_FASTOPEN.
    pub const FASTOPEN: u32 = 23;
    /// TCP_CC_INFO.
    pub const CC_INFO: u32 = 26;
    /// TCP_ULP.
    pub const ULP: u32 = 31;
    /// TCP_TIMESTAMP.
    pub const TIMESTAMP: u32 = 24;
    /// TCP_SAVED_SYN.
    pub const SAVED_SYN: u32 = 28;
    /// TCP_FASTOPEN_CONNECT.
    pub const FASTOPEN_CONNECT: u32 = 30;
    /// TCP_FASTOPEN_KEY.
    pub const FASTOPEN_KEY: u32 = 33;
    /// TCP_FASTOPEN_NO_COOKIE.
    pub const FASTOPEN_NO_COOKIE: u32 = 34;
    /// TCP_INQ.
    pub const INQ: u32 = 36;
}

/// Bytes that an option of IPv4 about groups has at least: of fewer nothing is read.
#[must_use]
pub const fn least_bytes(name: u32) -> usize {
    match name {
        raw::IP_ADD_MEMBERSHIP | raw::IP_DROP_MEMBERSHIP => 8,
        raw::IP_ADD_SOURCE_MEMBERSHIP
        | raw::IP_DROP_SOURCE_MEMBERSHIP
        | raw::IP_BLOCK_SOURCE
        | raw::IP_UNBLOCK_SOURCE => 12,
        raw::IP_MSFILTER => 16,
        raw::MCAST_JOIN_GROUP | raw::MCAST_LEAVE_GROUP => 136,
        raw::MCAST_JOIN_SOURCE_GROUP
        | raw::MCAST_LEAVE_SOURCE_GROUP
        | raw::MCAST_BLOCK_SOURCE
        | raw::MCAST_UNBLOCK_SOURCE => 264,
        raw::MCAST_MSFILTER => 144,
        _ => 0,
    }
}
