//! What a socket of UDP-Lite chose: how far checksums reach (RFC 3828; udplite(7)).
//!
//! There are no checksums here, but what programs can tell is kept: a datagram of which less is
//! covered than its receiver asks for is lost. `formats::udplite` decides; otherwise such a socket
//! is one of `udp`, with ports of its own.

use core::sync::atomic::{AtomicI32, Ordering};

use abi::udp_option;
use formats::udplite;

/// Nobody chose.
const NONE: i32 = -1;

/// UDPLITE_SEND_CSCOV and UDPLITE_RECV_CSCOV; of UDP's sockets nothing.
pub(super) struct Coverage {
    send: AtomicI32,
    receive: AtomicI32,
}

impl Coverage {
    pub(super) fn new() -> Coverage {
        Coverage { send: AtomicI32::new(NONE), receive: AtomicI32::new(NONE) }
    }

    fn of(&self, name: u32) -> &AtomicI32 {
        if name == udp_option::LITE_SEND { &self.send } else { &self.receive }
    }

    /// The number of one of the two options.
    pub(super) fn get(&self, name: u32) -> i32 {
        self.of(name).load(Ordering::Relaxed).max(0)
    }

    pub(super) fn set(&self, name: u32, given: i32) {
        self.of(name).store(udplite::kept(given).into(), Ordering::Relaxed);
    }

    /// What is covered of a datagram with so many bytes of data; None: all.
    pub(super) fn of_sent(&self, data_bytes: usize) -> Option<u16> {
        let chosen = u16::try_from(self.send.load(Ordering::Relaxed)).ok()?;
        udplite::partly(chosen, data_bytes + usize::from(udplite::HEADER_BYTES))
    }

    /// Whether a datagram of which so much is covered is received.
    pub(super) fn takes(&self, covered: Option<u16>) -> bool {
        udplite::is_taken(u16::try_from(self.receive.load(Ordering::Relaxed)).ok(), covered)
    }
}
