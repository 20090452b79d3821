//! Options of the level IPPROTO_TCP (tcp(7)). The README of the room says of each what it does.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use abi::{Errno, Result, net_layout::TcpInfo, option_layout::tcp as names};
use machine::sync::{Once, SpinLock};
use zerocopy::IntoBytes;

use super::connect::TimeIsUp;
use super::link::Link;
use super::{Phase, TcpSocket};
use crate::base::time::{Deadline, NS_PER_SEC, Timer, now_ns, wake_at};
use crate::net::TcpState;
use crate::net::channel::{Channel, SEGMENT_BYTES};
use crate::net::options::Value;
use crate::net::stream::BACKLOG_MAX;

/// What setsockopt(2) takes.
#[derive(Clone, Copy)]
enum Takes {
    Flag,
    Range(i32, i32),
}

/// Options that are numbers: number, first value, what they take.
const RULES: [(u32, i32, Takes); 17] = [
    (names::NODELAY, 0, Takes::Flag),
    (names::CORK, 0, Takes::Flag),
    (4, 7200, Takes::Range(1, 32767)), // TCP_KEEPIDLE, s
    (5, 75, Takes::Range(1, 32767)),   // TCP_KEEPINTVL, s
    (6, 9, Takes::Range(1, 127)),      // TCP_KEEPCNT
    (SYNCNT, 6, Takes::Range(1, 127)),
    (names::QUICKACK, 1, Takes::Flag),
    (16, 0, Takes::Range(0, 1)), // TCP_THIN_LINEAR_TIMEOUTS
    (USER_TIMEOUT, 0, Takes::Range(0, i32::MAX)),
    (names::FASTOPEN, 0, Takes::Range(0, i32::MAX)),
    (25, 0, Takes::Range(i32::MIN, i32::MAX)), // TCP_NOTSENT_LOWAT
    (27, 0, Takes::Range(0, 1)),               // TCP_SAVE_SYN
    (names::FASTOPEN_CONNECT, 0, Takes::Range(0, 1)),
    (names::FASTOPEN_NO_COOKIE, 0, Takes::Range(0, 1)),
    (names::INQ, 0, Takes::Range(0, 1)),
    (names::DEFER_ACCEPT, 0, Takes::Range(i32::MIN, i32::MAX)),
    (names::MAXSEG, 0, Takes::Range(88, 32767)),
];
const SYNCNT: u32 = 7;
const USER_TIMEOUT: u32 = 18;
/// TCP_LINGER2 and its bound (tcp_fin_timeout), s.
const LINGER2: u32 = 8;
const LINGER2_FIRST: i32 = 60;
const LINGER2_MAX: i32 = 120;
/// Largest segment before there is a connection, and over the loopback interface.
const MAXSEG_FIRST: i32 = 536;
/// Least window clamp: half of the least receive buffer.
const WINDOW_MIN: i32 = 1152;
/// Lengths of one key of cookies, and of two.
const FASTOPEN_KEYS: [usize; 2] = [16, 32];
/// Names of congestion controls. There is nothing to control; the name is kept and shown.
const CONTROLS: [&str; 2] = ["cubic", "reno"];
/// Length of such a name.
const CONTROL_BYTES: usize = 16;
/// How long data is held back at most (TCP_CORK in tcp(7)).
const CORK_NS: u64 = 200_000_000;
/// Most connections that a listener does not know of yet (TCP_DEFER_ACCEPT).
const DEFERRED_MAX: usize = 4096;

/// A socket's options of TCP, and what they need.
#[derive(Default)]
pub(super) struct TcpOptions {
    values: SpinLock<Vec<(u32, i32)>>,
    is_corked: AtomicBool,
    wants_inq: AtomicBool,
    defer_s: AtomicI32,
    control: AtomicUsize,
    /// Ends the holding back of data.
    timer: SpinLock<Option<Timer>>,
    /// Connections of a listener that it is not told of before data comes.
    deferred: SpinLock<Vec<(Arc<TcpSocket>, Deadline, Timer)>>,
    /// Whose connection this is.
    listener: Once<Weak<TcpSocket>>,
}

impl TcpOptions {
    pub(super) fn inherit(&self) -> TcpOptions {
        let new = TcpOptions {
            values: SpinLock::new(self.values.lock().clone()),
            ..TcpOptions::default()
        };
        new.is_corked.store(self.is_corked(), Ordering::Relaxed);
        new.wants_inq.store(self.wants_inq(), Ordering::Relaxed);
        new.control.store(self.control.load(Ordering::Relaxed), Ordering::Relaxed);
        new
    }

    pub(super) fn is_corked(&self) -> bool {
        self.is_corked.load(Ordering::Relaxed)
    }

    /// TCP_INQ: how much is left comes with each receive.
    pub(super) fn wants_inq(&self) -> bool {
        self.wants_inq.load(Ordering::Relaxed)
    }

    fn number(&self, name: u32, first: i32) -> i32 {
        let values = self.values.lock();
        values.iter().find(|value| value.0 == name).map_or(first, |value| value.1)
    }

    fn keep(&self, name: u32, number: i32) {
        let mut values = self.values.lock();
        match values.iter_mut().find(|value| value.0 == name) {
            Some(value) => value.1 = number,
            None => values.push((name, number)),
        }
    }

    /// How long a connection is tried, for want of TCP_SYNCNT and TCP_USER_TIMEOUT `first_ns`.
    pub(super) fn give_up_ns(&self, first_ns: u64) -> u64 {
        let tries = self.number(SYNCNT, 0) as u32;
        let by_tries =
            if tries == 0 { first_ns } else { ((1 << tries.min(30)) * 2 - 1) * NS_PER_SEC };
        match self.number(USER_TIMEOUT, 0) as u64 {
            0 => by_tries,
            ms => by_tries.min(ms * 1_000_000),
        }
    }

    /// Passes on what is held back, in a while.
    pub(super) fn uncork_later(&self, channel: &Channel) {
        if let Some(waker) = channel.begin_holding() {
            let new = wake_at(Deadline::after_ns(CORK_NS), waker);
            if let Some(old) = self.timer.lock().replace(new) {
                old.cancel();
            }
        }
    }

    pub(super) fn defers_accept(&self) -> bool {
        self.defer_s.load(Ordering::Relaxed) > 0
    }

    pub(super) fn listener(&self) -> Option<Arc<TcpSocket>> {
        self.listener.get().and_then(Weak::upgrade)
    }

    /// Keeps a connection until data comes. EAGAIN if there are too many.
    pub(super) fn keep_deferred(&self, served: &Arc<TcpSocket>, owner: &TcpSocket) -> Result<()> {
        let after_ns = self.defer_s.load(Ordering::Relaxed).max(0) as u64 * NS_PER_SEC;
        let until = Deadline::after_ns(after_ns);
        served.tcp.listener.call_once(|| owner.me.clone());
        let timer = wake_at(until, Arc::new(TimeIsUp(owner.common.readers.clone())));
        let mut deferred = self.deferred.lock();
        if deferred.len() >= DEFERRED_MAX || deferred.try_reserve(1).is_err() {
            timer.cancel();
            return Err(Errno::EAGAIN);
        }
        deferred.push((served.clone(), until, timer));
        Ok(())
    }

    /// Connections whose time is over.
    pub(super) fn overdue(&self) -> Vec<Arc<TcpSocket>> {
        let deferred = self.deferred.lock();
        let overdue = deferred.iter().filter(|(_, until, _)| until.has_passed());
        overdue.map(|(served, ..)| served.clone()).collect()
    }

    pub(super) fn forget_deferred(&self, served: &Arc<TcpSocket>) {
        let mut deferred = self.deferred.lock();
        let at = deferred.iter().position(|(socket, ..)| Arc::ptr_eq(socket, served));
        let gone = at.map(|at| deferred.swap_remove(at));
        drop(deferred);
        if let Some((_, _, timer)) = gone {
            timer.cancel();
        }
    }

    /// All of them, none of which will be passed on.
    pub(super) fn take_deferred(&self) -> Vec<Arc<TcpSocket>> {
        let deferred = core::mem::take(&mut *self.deferred.lock());
        let taken = deferred.into_iter().map(|(served, _, timer)| {
            timer.cancel();
            served
        });
        taken.collect()
    }

    fn control_name(&self) -> Vec<u8> {
        let mut name = CONTROLS[self.control.load(Ordering::Relaxed)].as_bytes().to_vec();
        name.resize(CONTROL_BYTES, 0);
        name
    }

    fn set_control(&self, value: &[u8]) -> Result<()> {
        let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
        if value.is_empty() {
            return Err(Errno::EINVAL);
        }
        let at = CONTROLS.iter().position(|control| control.as_bytes() == name);
        self.control.store(at.ok_or(Errno::ENOENT)?, Ordering::Relaxed);
        Ok(())
    }
}

impl TcpSocket {
    /// The most that a window would be if there were windows (TCP_WINDOW_CLAMP): what is free for
    /// data in the receive buffer, of large ones less a segment; none without a connection.
    fn window_clamp(&self) -> i32 {
        /// While it is tried: the largest window at the scale that net.ipv4.tcp_rmem asks for.
        const TRYING: usize = 0xffff << 7;
        /// Bytes of a segment over the loopback interface less time stamps, by IPv4 and by IPv6.
        const SEGMENT: (usize, usize) = (65483, 65464);
        let clamp = match self.link() {
            Some(_) => {
                let segment = if self.common.is_v6() { SEGMENT.1 } else { SEGMENT.0 };
                let space = self.common.receive_limit() / 2;
                if space > 2 * segment { (space - segment).max(2 * segment) } else { space }
            }
            // Also where it was refused, until that is told.
            None if matches!(*self.phase.lock(), Phase::Trying(_) | Phase::Failed) => TRYING,
            None => 0,
        };
        i32::try_from(clamp).unwrap_or(i32::MAX)
    }

    /// What was chosen for a connection that is not there any more.
    pub(super) fn forget_window_clamp(&self) {
        self.tcp.keep(names::WINDOW_CLAMP, 0);
    }

    /// getsockopt(2).
    pub(super) fn get_tcp_option(&self, name: u32) -> Result<Value> {
        let number = match name {
            names::INFO => return Ok(Value::Bytes(self.info().as_bytes().to_vec())),
            names::CONGESTION => return Ok(Value::Bytes(self.tcp.control_name())),
            names::CC_INFO | names::ULP | names::SAVED_SYN | names::FASTOPEN_KEY => {
                return Ok(Value::Bytes(Vec::new()));
            }
            names::TIMESTAMP => (now_ns() / 1_000_000) as i32,
            names::MAXSEG => match self.link() {
                Some(_) => SEGMENT_BYTES as i32,
                None => self.tcp.number(name, MAXSEG_FIRST),
            },
            names::WINDOW_CLAMP => match self.tcp.number(name, 0) {
                0 => self.window_clamp(),
                chosen => chosen,
            },
            names::DEFER_ACCEPT => self.tcp.defer_s.load(Ordering::Relaxed),
            LINGER2 => self.tcp.number(name, LINGER2_FIRST),
            _ => {
                let rule = RULES.iter().find(|rule| rule.0 == name);
                let (_, first, _) = rule.ok_or(Errno::ENOPROTOOPT)?;
                self.tcp.number(name, *first)
            }
        };
        Ok(Value::Int(number))
    }

    /// setsockopt(2).
    pub(super) fn set_tcp_option(&self, name: u32, value: &[u8]) -> Result<()> {
        if name == names::CONGESTION {
            return self.tcp.set_control(value);
        }
        if name == names::ULP {
            return Err(if value.is_empty() { Errno::EINVAL } else { Errno::ENOENT });
        }
        // There are no cookies, and so no keys of theirs; but what cannot be one is told.
        if name == names::FASTOPEN_KEY && !FASTOPEN_KEYS.contains(&value.len()) {
            return Err(Errno::EINVAL);
        }
        let [a, b, c, d, ..] = *value else { return Err(Errno::EINVAL) };
        let given = i32::from_ne_bytes([a, b, c, d]);
        self.check_fast_open(name)?;
        let number = match name {
            LINGER2 if given > LINGER2_MAX => LINGER2_MAX,
            LINGER2 if given < 0 => -1,
            LINGER2 if given == 0 => LINGER2_FIRST,
            LINGER2 => given,
            names::WINDOW_CLAMP if given == 0 && self.state() != TcpState::Close => {
                return Err(Errno::EINVAL);
            }
            names::WINDOW_CLAMP if given == 0 => 0,
            names::WINDOW_CLAMP => given.max(WINDOW_MIN),
            // No more than a listener may have waiting.
            names::FASTOPEN => take(name, given)?.min(BACKLOG_MAX as i32),
            names::MAXSEG if given == 0 => MAXSEG_FIRST,
            names::DEFER_ACCEPT => rounded_up(given),
            // Only for sockets in repair, which there are none of.
            names::TIMESTAMP => return Err(Errno::EPERM),
            _ => take(name, given)?,
        };
        self.tcp.keep(name, number);
        match name {
            names::CORK => {
                self.tcp.is_corked.store(number != 0, Ordering::Relaxed);
                self.push(number == 0);
            }
            names::NODELAY => self.push(number != 0),
            names::INQ => self.tcp.wants_inq.store(number != 0, Ordering::Relaxed),
            names::DEFER_ACCEPT => self.tcp.defer_s.store(number, Ordering::Relaxed),
            _ => {}
        }
        Ok(())
    }

    /// What concerns the first packets of a connection is set before there is one. EINVAL.
    fn check_fast_open(&self, name: u32) -> Result<()> {
        let state = self.state();
        let is_early = match name {
            names::FASTOPEN | names::FASTOPEN_NO_COOKIE => {
                matches!(state, TcpState::Close | TcpState::Listen)
            }
            names::FASTOPEN_CONNECT => state == TcpState::Close,
            _ => true,
        };
        if is_early { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn push(&self, wanted: bool) {
        if wanted && let Some(link) = self.link() {
            link.tx.uncork();
        }
    }

    /// TCP_INFO.
    fn info(&self) -> TcpInfo {
        let link = self.link();
        let mut info = TcpInfo {
            state: self.state() as u8,
            rto_us: 1_000_000,
            snd_mss: MAXSEG_FIRST as u32,
            snd_ssthresh: i32::MAX as u32,
            snd_cwnd: 10,
            reordering: 3,
            ..TcpInfo::default()
        };
        if let Some(link) = link {
            self.tell_of(&link, &mut info);
        } else if self.backlog.is_listening() {
            (info.unacked, info.sacked) = self.backlog.lengths();
        }
        info
    }

    fn tell_of(&self, link: &Link, info: &mut TcpInfo) {
        /// Time stamps, selective acknowledgements, window scaling.
        const OPTIONS: u8 = 1 | 2 | 4;
        info.options = OPTIONS;
        info.window_scales = 0x77;
        info.rto_us = 201_000;
        info.ato_us = 40_000;
        info.snd_mss = SEGMENT_BYTES as u32;
        info.rcv_mss = 536;
        info.advmss = SEGMENT_BYTES as u32;
        info.pmtu = crate::net::interface::LO.mtu;
        // A round trip is a call: less than the clock's grain.
        info.rtt_us = 20;
        info.rttvar_us = 10;
        info.min_rtt_us = 10;
        let ((sent, received_by_peer), (came, taken)) = (link.tx.totals(), link.rx.totals());
        let packets = |bytes: u64| bytes.div_ceil(SEGMENT_BYTES as u64) as u32;
        info.bytes_sent = sent;
        info.bytes_acked = sent + 1;
        info.bytes_received = came;
        info.segs_out = packets(sent) + packets(came) + 2;
        info.segs_in = packets(sent) + packets(came) + 1;
        info.data_segs_out = packets(sent);
        info.data_segs_in = packets(came);
        info.delivered = packets(sent) + 1;
        info.rcv_space = (came - taken) as u32;
        info.snd_wnd = (sent - received_by_peer) as u32;
    }
}

/// Seconds as far as repetitions of a SYN-ACK reach: 1, 3, 7, 15 … (TCP_DEFER_ACCEPT).
fn rounded_up(given_s: i32) -> i32 {
    let mut reached_s = 0;
    let mut step_s = 1;
    while reached_s < given_s && reached_s < 1 << 28 {
        reached_s += step_s;
        step_s = (step_s * 2).min(120);
    }
    reached_s
}

fn take(name: u32, given: i32) -> Result<i32> {
    let rule = RULES.iter().find(|rule| rule.0 == name).ok_or(Errno::ENOPROTOOPT)?;
    match rule.2 {
        Takes::Flag => Ok(i32::from(given != 0)),
        Takes::Range(least, most) if (least..=most).contains(&given) => Ok(given),
        Takes::Range(..) => Err(Errno::EINVAL),
    }
}
