//! The kernel's accounts before and after a test: what a test leaves behind is a leak.
//!
//! Only Limen shows them (`/proc/limen/accounts`). Objects and page tables are compared exactly,
//! once caches have been dropped; inodes and memory with room for what is kept for the next use.
//! The accounts are those from before the first test as long as they agree, so what each test
//! leaves a little of adds up until it is seen. What ends behind a test (a killed process, a
//! connection that closes) is waited for.

use std::collections::BTreeMap;

use crate::sys::nap;

const ACCOUNTS: &str = "/proc/limen/accounts";
/// How often the accounts are read until they agree, and the pause between.
const TRIES: u32 = 300;
const PAUSE_MS: i64 = 10;
/// Heap that all tests together may leave with the kernel's tables, which grow and do not shrink.
const HEAP_ROOM_BYTES: i64 = 4 << 20;
/// Frames that may lie in caches of the CPUs, for each of them, and in what has grown for good.
const FRAMES_ROOM_EACH: i64 = 64;
const FRAMES_ROOM: i64 = 2048;
/// Objects of file systems that are kept for the next use: there is no leak as long as there are
/// not more and more.
const KEPT_INODES: i64 = 4;

/// Counts by name.
pub struct Accounts(BTreeMap<String, i64>);

impl Accounts {
    /// Now, caches dropped; None where the kernel has none.
    pub fn now() -> Option<Accounts> {
        // Nobody else's caches are dropped.
        std::fs::metadata(ACCOUNTS).ok()?;
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
        let text = std::fs::read_to_string(ACCOUNTS).ok()?;
        let lines = text.lines().skip(1).filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        Some(Accounts(lines.collect()))
    }

    /// What there is more, or less, than before, in words; None if nothing.
    fn difference(&self, before: &Accounts) -> Option<String> {
        let mut words = Vec::new();
        let mut heap = 0;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as i64;
        for (name, count) in &self.0 {
            let more = count - before.0.get(name).copied().unwrap_or_default();
            let room = match name.split_once('_') {
                Some(("heap", size)) => {
                    heap += more * size.parse::<i64>().unwrap_or_default();
                    continue;
                }
                _ if name == "mapped_bytes" => HEAP_ROOM_BYTES,
                _ if name == "inodes" || name == "names" => KEPT_INODES,
                _ if name == "used_frames" => FRAMES_ROOM + cpus * FRAMES_ROOM_EACH,
                _ => 0,
            };
            if more.abs() > room {
                words.push(format!("{name} {more:+}"));
            }
        }
        // Objects that other CPUs cache count as used.
        if heap.abs() > HEAP_ROOM_BYTES + (cpus - 1) * 9 * HEAP_ROOM_BYTES {
            words.push(format!("heap bytes {heap:+}"));
        }
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// The accounts after something, and what it has left behind, if that does not go away.
pub fn settle(before: Option<Accounts>) -> (Option<Accounts>, Option<String>) {
    let Some(before) = before else { return (None, None) };
    let mut left = None;
    for _ in 0..TRIES {
        let after = Accounts::now();
        left = after.as_ref().and_then(|after| after.difference(&before));
        if left.is_none() {
            // Small differences must not add up unseen.
            return (Some(before), None);
        }
        nap(PAUSE_MS);
    }
    (Accounts::now(), left)
}
