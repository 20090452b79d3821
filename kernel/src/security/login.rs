//! Who has logged in, as the audit of Linux counts it: programs that let users in say it once, and
//! all that comes of them has it (pam_loginuid(8)). It gives no right.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A user, and in the upper half the number of the session.
pub struct Login(AtomicU64);

impl Login {
    /// No user and no session.
    pub const NOBODY: u64 = u64::MAX;

    /// User and session.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes over another's.
    pub fn set(&self, login: u64) {
        self.0.store(login, Ordering::Relaxed);
    }

    /// Another user begins a session; u32::MAX: nobody.
    pub fn begin(&self, uid: u32) {
        static SESSIONS: AtomicU32 = AtomicU32::new(0);
        self.set(match uid {
            u32::MAX => Self::NOBODY,
            uid => u64::from(SESSIONS.fetch_add(1, Ordering::Relaxed) + 1) << 32 | u64::from(uid),
        });
    }
}

impl Default for Login {
    fn default() -> Self {
        Login(AtomicU64::new(Self::NOBODY))
    }
}
