//! What is known about one signal: `siginfo_t` (sigaction(2)).
//!
//! The kernel keeps the first 48 bytes, which hold every field Linux defines; a program sees 128,
//! the rest zero.

use abi::{Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::user::UserPtr;
use crate::process::Pid;

/// Bytes of `siginfo_t` as programs see it.
pub const SIGINFO_BYTES: usize = 128;

/// A signal with its origin. The layout is that of `siginfo_t`'s first 48 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SigInfo {
    /// Signal number, 1 to 64.
    pub signo: i32,
    /// An error number, or 0.
    pub errno: i32,
    /// Why it was sent: SI_USER, CLD_EXITED, SEGV_MAPERR …
    pub code: i32,
    pad: u32,
    /// What else is known; depends on signal and code.
    pub fields: [u64; 4],
}

/// The form in which a program sees it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub struct UserSigInfo {
    known: SigInfo,
    rest: [u64; 10],
}

const _: () = assert!(size_of::<UserSigInfo>() == SIGINFO_BYTES);

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl SigInfo {
    /// Nothing known but the number.
    #[must_use]
    pub fn unknown(signo: u32) -> Self {
        SigInfo { signo: signo as i32, ..Self::default() }
    }

    /// Sent by the kernel, nothing else known (SI_KERNEL).
    #[must_use]
    pub fn kernel(signo: u32) -> Self {
        SigInfo { signo: signo as i32, code: raw::SI_KERNEL as i32, ..Self::default() }
    }

    /// Sent by a process: `code` is SI_USER or SI_TKILL.
    #[must_use]
    pub fn from_process(signo: u32, code: i32, pid: Pid, uid: u32) -> Self {
        let fields = [pair(pid, uid), 0, 0, 0];
        SigInfo { signo: signo as i32, code, fields, ..Self::default() }
    }

    /// A fault of the program: `address` is where.
    #[must_use]
    pub fn fault(signo: u32, code: u32, address: u64) -> Self {
        let fields = [address, 0, 0, 0];
        SigInfo { signo: signo as i32, code: code as i32, fields, ..Self::default() }
    }

    /// The protection key `key` of the page at `address` denied an access.
    #[must_use]
    pub fn denied_by_key(address: u64, key: u8) -> Self {
        let fields = [address, 0, u64::from(key), 0];
        let (signo, code) = (raw::SIGSEGV as i32, raw::SEGV_PKUERR as i32);
        SigInfo { signo, code, fields, ..Self::default() }
    }

    /// A filter of system calls wants a signal: `address` is behind the call, `value` the filter's.
    #[must_use]
    pub fn filtered(address: u64, number: u32, arch: u32, value: u32) -> Self {
        let fields = [address, pair(number, arch), 0, 0];
        let (signo, code) = (raw::SIGSYS as i32, raw::SYS_SECCOMP as i32);
        SigInfo { signo, code, errno: value as i32, fields, ..Self::default() }
    }

    /// A call that the thread serves itself: `address` is behind it.
    #[must_use]
    pub fn dispatched(address: u64, number: u32, arch: u32) -> Self {
        let code = raw::SYS_USER_DISPATCH as i32;
        SigInfo { code, ..Self::filtered(address, number, arch, 0) }
    }

    /// A child changed state. `times_ns` are its CPU times, user and kernel.
    #[must_use]
    pub fn child(
        signo: u32,
        code: u32,
        pid: Pid,
        uid: u32,
        status: i32,
        times_ns: [u64; 2],
    ) -> Self {
        // Clock ticks of 10 ms, as sysconf(_SC_CLK_TCK) promises.
        let ticks = times_ns.map(|ns| ns / 10_000_000);
        let fields = [pair(pid, uid), u64::from(status as u32), ticks[0], ticks[1]];
        SigInfo { signo: signo as i32, code: code as i32, fields, ..Self::default() }
    }

    /// Something can be done with a file (F_SETSIG): why, what as poll(2) says it, its descriptor.
    #[must_use]
    pub fn about_file(signo: u32, code: i32, band: u32, fd: u32) -> Self {
        let fields = [band.into(), fd.into(), 0, 0];
        SigInfo { signo: signo as i32, code, fields, ..Self::default() }
    }

    /// A message came to the empty queue, sent by `pid`; `value` is what was asked for.
    #[must_use]
    pub fn of_queue(signo: u32, pid: Pid, uid: u32, value: u64) -> Self {
        let fields = [pair(pid, uid), value, 0, 0];
        SigInfo { signo: signo as i32, code: raw::SI_MESGQ, fields, ..Self::default() }
    }

    /// A POSIX timer expired: its id and the value the program gave.
    #[must_use]
    pub fn timer(signo: u32, id: u32, overruns: u32, value: u64) -> Self {
        let fields = [pair(id, overruns), value, 0, 0];
        SigInfo { signo: signo as i32, code: raw::SI_TIMER, fields, ..Self::default() }
    }

    /// Of a timer's signal: the timer's id, and its overruns.
    #[must_use]
    pub fn timer_fields(&self) -> (u32, u32) {
        (self.fields[0] as u32, (self.fields[0] >> 32) as u32)
    }

    /// Whether it tells of an expiry of the POSIX timer with this id.
    pub fn is_of_timer(&self, id: u32) -> bool {
        self.code == raw::SI_TIMER && self.timer_fields().0 == id
    }

    /// Counts further overruns in a timer's signal.
    pub fn add_overruns(&mut self, more: u32) {
        let (id, overruns) = self.timer_fields();
        let most = i32::MAX as u32;
        self.fields[0] = pair(id, overruns.saturating_add(more).min(most));
    }

    /// The signal's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.signo as u32
    }

    /// As a program sees it.
    #[must_use]
    pub fn to_user(self) -> UserSigInfo {
        UserSigInfo { known: self, rest: [0; 10] }
    }

    /// Reads what a program passes to rt_sigqueueinfo(2), with the number it asks for.
    pub fn read_from(address: u64, signo: u32) -> Result<SigInfo> {
        let mut info = UserPtr::<SigInfo>::new(address).read()?;
        info.signo = signo as i32;
        info.pad = 0;
        Ok(info)
    }
}
