//! The states of a TCP socket.

/// States as programs see them (tcp(7), TCP_INFO; /proc/net/tcp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Both may send.
    Established = 1,
    /// A connection is asked for.
    SynSent = 2,
    /// This end sends no more.
    FinWait2 = 5,
    /// Both have ended; this one first.
    TimeWait = 6,
    /// There is no connection.
    Close = 7,
    /// The peer sends no more.
    CloseWait = 8,
    /// Takes connections.
    Listen = 10,
}
