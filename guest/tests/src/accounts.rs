//! The kernel's accounts before and after a test: what a test leaves behind is a leak.
//!
//! Only Limen shows them (`/proc/limen/accounts`). Objects are compared exactly, once caches have
//! been dropped; inodes, page tables and memory with room for what is kept for the next use.
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

/// Page tables: memory of the runner's own may come to lie where it has none yet.
const OWN_TABLES: i64 = 4;

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

    /// Frames of memory in use.
    pub fn frames(&self) -> i64 {
        self.0.get("used_frames").copied().unwrap_or_default()
    }

    /// What there is more than before, in words; None if nothing.
    fn difference(&self, before: &Accounts) -> Option<String> {
        let mut words = Vec::new();
        let mut heap = 0;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as i64;
        for (name, count) in &self.0 {
            let more = count - before.0.get(name).copied().unwrap_or_default();
            if let Some(("heap", size)) = name.split_once('_') {
                heap += more * size.parse::<i64>().unwrap_or_default();
            } else if more > room(name, cpus) {
                words.push(format!("{name} {more:+}"));
            }
        }
        // Objects that other CPUs cache count as used.
        if heap > HEAP_ROOM_BYTES + (cpus - 1) * 9 * HEAP_ROOM_BYTES {
            words.push(format!("heap bytes {heap:+}"));
        }
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// How many more there may be of something that is no size of the heap's.
fn room(name: &str, cpus: i64) -> i64 {
    match name {
        "mapped_bytes" => HEAP_ROOM_BYTES,
        "inodes" | "names" => KEPT_INODES,
        "tables" => OWN_TABLES,
        "used_frames" => FRAMES_ROOM + cpus * FRAMES_ROOM_EACH,
        _ => 0,
    }
}

/// The smaller of both counts, of what is compared exactly: what was about to go when the first was
/// taken is no room for more.
fn least(before: &Accounts, after: &Accounts) -> Accounts {
    let least = |(name, count): (&String, &i64)| {
        let is_exact = !name.starts_with("heap_") && room(name, 1) == 0;
        let after = after.0.get(name).filter(|_| is_exact).unwrap_or(count);
        (name.clone(), *count.min(after))
    };
    Accounts(before.0.iter().map(least).collect())
}

/// The accounts after something, and what it has left behind, if that does not go away.
pub fn settle(before: Option<Accounts>) -> (Option<Accounts>, Option<String>) {
    let Some(before) = before else { return (None, None) };
    let mut left = None;
    for _ in 0..TRIES {
        let Some(after) = Accounts::now() else { return (None, None) };
        left = after.difference(&before);
        if left.is_none() {
            // Small differences must not add up unseen.
            return (Some(least(&before, &after)), None);
        }
        nap(PAUSE_MS);
    }
    (Accounts::now(), left)
}
