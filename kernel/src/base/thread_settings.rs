//! What a thread has set for itself, and what of it those have that it makes: threads, and the
//! first ones of children.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How late a timer may be unless a thread says otherwise (prctl(2)).
const TIMER_SLACK_NS: u64 = 50_000;

/// Attributes of a thread that mostly calls on itself change.
pub struct ThreadSettings {
    /// PR_SET_PDEATHSIG: the signal its process gets when its parent ends, or 0.
    pub parent_death_signal: AtomicU32,
    /// personality(2).
    pub personality: AtomicU32,
    /// PR_SET_TIMERSLACK, nanoseconds.
    timer_slack_ns: AtomicU64,
    /// What that was when the thread was made.
    default_slack_ns: AtomicU64,
    /// set_mempolicy(2)'s policy: its mode, and in the upper half its node.
    pub memory_policy: AtomicU64,
    /// PR_SET_IO_FLUSHER: it writes back what others wait for.
    pub is_io_flusher: AtomicBool,
}

impl Default for ThreadSettings {
    fn default() -> ThreadSettings {
        ThreadSettings {
            parent_death_signal: AtomicU32::new(0),
            personality: AtomicU32::new(0),
            timer_slack_ns: AtomicU64::new(TIMER_SLACK_NS),
            default_slack_ns: AtomicU64::new(TIMER_SLACK_NS),
            memory_policy: AtomicU64::new(0),
            is_io_flusher: AtomicBool::new(false),
        }
    }
}

impl ThreadSettings {
    /// PR_GET_TIMERSLACK, nanoseconds.
    pub fn timer_slack(&self) -> u64 {
        self.timer_slack_ns.load(Ordering::Relaxed)
    }

    /// PR_SET_TIMERSLACK; 0 stands for what it was when the thread was made.
    pub fn set_timer_slack(&self, slack_ns: u64) {
        let default_ns = self.default_slack_ns.load(Ordering::Relaxed);
        let slack_ns = if slack_ns == 0 { default_ns } else { slack_ns };
        self.timer_slack_ns.store(slack_ns, Ordering::Relaxed);
    }

    /// Takes over what a new thread has of `creator`'s, of the same process or of another.
    pub fn inherit(&self, creator: &ThreadSettings) {
        let copy = |to: &AtomicU64, from: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&self.timer_slack_ns, &creator.timer_slack_ns);
        copy(&self.default_slack_ns, &creator.timer_slack_ns);
        copy(&self.memory_policy, &creator.memory_policy);
        let is_flusher = creator.is_io_flusher.load(Ordering::Relaxed);
        self.is_io_flusher.store(is_flusher, Ordering::Relaxed);
        self.personality.store(creator.personality.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
