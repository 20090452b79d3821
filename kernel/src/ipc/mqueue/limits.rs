//! How many queues there may be and how large (mq_overview(7), /proc/sys/fs/mqueue), and what each
//! counts for its user (RLIMIT_MSGQUEUE, getrlimit(2)).

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::PRIORITY_MAX;
use crate::process::current;
use crate::security::{Capability, Resource};

/// A setting that root may change, within bounds.
pub struct Setting {
    value: AtomicU64,
    least: u64,
    most: u64,
}

impl Setting {
    const fn new(value: u64, least: u64, most: u64) -> Setting {
        Setting { value: AtomicU64::new(value), least, most }
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// EINVAL beyond its bounds.
    pub fn set(&self, value: u64) -> Result<()> {
        if !(self.least..=self.most).contains(&value) {
            return Err(Errno::EINVAL);
        }
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// Most messages of a queue, whoever makes it.
const MESSAGES_HARD: u64 = 65536;
/// Most bytes of a message, whoever makes the queue.
const BYTES_HARD: u64 = 16 << 20;

/// Queues (queues_max).
pub static QUEUES: Setting = Setting::new(256, 0, i32::MAX as u64);
/// Messages of a queue (msg_max).
pub static MESSAGES: Setting = Setting::new(10, 1, MESSAGES_HARD);
/// Bytes of a message (msgsize_max).
pub static BYTES: Setting = Setting::new(8192, 128, BYTES_HARD);
/// Messages of a queue whose maker does not say (msg_default).
pub static MESSAGES_DEFAULT: Setting = Setting::new(10, 1, MESSAGES_HARD);
/// Bytes of a message of such a queue (msgsize_default).
pub static BYTES_DEFAULT: Setting = Setting::new(8192, 128, BYTES_HARD);

static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Bytes by user.
static USERS: SpinLock<BTreeMap<u32, u64>> = SpinLock::new(BTreeMap::new());

/// What getrlimit(2) counts for each message that a queue may hold, and for each priority that
/// may be in use: the sizes of Linux's structures.
const PER_MESSAGE_BYTES: u64 = 48;
const PER_PRIORITY_BYTES: u64 = 48;

/// What a queue counts, until it goes.
pub(super) struct Charge {
    uid: u32,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        let mut users = USERS.lock();
        if let Some(held) = users.get_mut(&self.uid) {
            *held -= self.bytes;
            if *held == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

impl Charge {
    /// For a new queue of the current process. ENOSPC, EINVAL, EOVERFLOW, EMFILE.
    pub(super) fn new(messages: i64, bytes: i64) -> Result<Charge> {
        let thread = current();
        let is_privileged = thread.subject().capable(Capability::SysResource);
        if COUNT.load(Ordering::Relaxed) as u64 >= QUEUES.get() && !is_privileged {
            return Err(Errno::ENOSPC);
        }
        let (most_messages, most_bytes) =
            if is_privileged { (MESSAGES_HARD, BYTES_HARD) } else { (MESSAGES.get(), BYTES.get()) };
        let (messages, bytes) = (messages.max(0) as u64, bytes.max(0) as u64);
        if !(1..=most_messages).contains(&messages) || !(1..=most_bytes).contains(&bytes) {
            return Err(Errno::EINVAL);
        }
        let priorities = messages.min(PRIORITY_MAX.into());
        let all = messages * (bytes + PER_MESSAGE_BYTES) + priorities * PER_PRIORITY_BYTES;
        let uid = thread.credentials().uid;
        let limit = thread.process.limit(Resource::MessageQueues);
        let mut users = USERS.lock();
        let held = users.get(&uid).copied().unwrap_or(0);
        if held + all > limit {
            return Err(Errno::EMFILE);
        }
        users.insert(uid, held + all);
        COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(Charge { uid, bytes: all })
    }
}
