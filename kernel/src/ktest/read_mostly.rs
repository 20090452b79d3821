//! What many read and few write, read and written on every CPU at the same time: no reader sees
//! half of a change, and no change is lost. `mechanisms/context_tracking/tests/read_mostly.rs` goes
//! through all interleavings of the protocol; this runs the code that is built of it.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use machine::cpu::cpu_count;
use machine::ensure;
use machine::ktest::Test;
use machine::sync::{ReadMostly, TryReadMostly};

use super::defer::wait_until;
use crate::base::sched;
use crate::process::spawn_kernel;

pub(super) const TESTS: &[Test] = &[Test {
    name: "read_mostly::readers_and_writers_on_all_cpus_exclude_each_other",
    run: readers_and_writers,
}];

/// What each CPU does.
const ROUNDS: u32 = 20_000;
/// Of so many rounds one writes: few enough that readers meet readers, too.
const WRITES_EVERY: u32 = 8;

/// Words that are the same but amid a change.
type Words = [AtomicU64; 8];

fn add_one(words: &Words) {
    for word in words {
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        core::hint::spin_loop();
    }
}

fn are_equal(words: &Words) -> bool {
    let first = words[0].load(Ordering::Relaxed);
    words.iter().all(|word| {
        core::hint::spin_loop();
        word.load(Ordering::Relaxed) == first
    })
}

/// What the CPUs share.
struct Shared {
    spun: ReadMostly<Words>,
    tried: TryReadMostly<Words>,
    running: AtomicU32,
    reads: AtomicU64,
    writes: AtomicU64,
    tried_writes: AtomicU64,
    torn: AtomicU64,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            spun: ReadMostly::default(),
            tried: TryReadMostly::new(Words::default()),
            running: AtomicU32::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            tried_writes: AtomicU64::new(0),
            torn: AtomicU64::new(0),
        }
    }

    /// One round: reads of each, one of them amid the other, or a change of each.
    fn round(&self, round: u32) {
        if round.is_multiple_of(WRITES_EVERY) {
            add_one(&self.spun.lock());
            self.writes.fetch_add(1, Ordering::Relaxed);
            if let Some(words) = self.tried.try_lock() {
                add_one(&words);
                self.tried_writes.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        // The second begins while this CPU reads: it takes the lock, or is refused.
        let amid = || self.tried.try_read(are_equal);
        let seen = [
            self.tried.try_read(are_equal),
            Some(self.spun.read(are_equal)),
            self.spun.read(|words| amid().map(|equal| equal && are_equal(words))),
            self.tried.try_read(|words| self.spun.read(are_equal) && are_equal(words)),
        ];
        let (mut reads, mut torn) = (0, 0);
        for is_whole in seen.into_iter().flatten() {
            reads += 1;
            torn += u64::from(!is_whole);
        }
        self.reads.fetch_add(reads, Ordering::Relaxed);
        self.torn.fetch_add(torn, Ordering::Relaxed);
    }

    fn run(&self) {
        for round in 0..ROUNDS {
            self.round(round);
            if round.is_multiple_of(256) {
                sched::yield_now();
            }
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn readers_and_writers() -> Result<(), String> {
    let shared = Arc::new(Shared::new());
    // More than there are CPUs, so that each has one whatever else runs.
    for _ in 0..cpu_count() + 1 {
        let own = shared.clone();
        shared.running.fetch_add(1, Ordering::SeqCst);
        spawn_kernel("read-mostly", move || own.run()).map_err(|e| format!("{e:?}"))?;
    }
    wait_until("a CPU has not ended", || shared.running.load(Ordering::SeqCst) == 0)?;
    let count = |of: &AtomicU64| of.load(Ordering::SeqCst);
    let (reads, torn) = (count(&shared.reads), count(&shared.torn));
    let (writes, tried_writes) = (count(&shared.writes), count(&shared.tried_writes));
    machine::log!("{reads} reads, {writes} and {tried_writes} changes");
    ensure!(torn == 0, "{torn} of {reads} reads saw half a change");
    ensure!(reads > u64::from(ROUNDS), "only {reads} reads");
    let all = |words: &Words, of: &AtomicU64| are_equal(words) && count(&words[0]) == count(of);
    ensure!(shared.spun.read(|words| all(words, &shared.writes)), "a change was lost");
    let tried = shared.tried.try_read(|words| all(words, &shared.tried_writes));
    ensure!(tried == Some(true), "a change under the lock that is only tried was lost: {tried:?}");
    ensure!(tried_writes > 0, "the lock that is only tried was never free");
    Ok(())
}
