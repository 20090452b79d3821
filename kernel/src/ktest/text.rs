//! Static keys and calls, switched while threads on all CPUs execute them. Readers note what they
//! see together with an epoch: odd while a switch is in progress. What a reader sees within one
//! even epoch must be what was switched to, or the old instruction was executed after the switch
//! had returned.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use machine::ensure;
use machine::ktest::{Test, flip_call, flip_key, read_call, read_key, read_likely_key};

use crate::process::spawn_kernel;
use crate::{sched, time};

pub(super) const TESTS: &[Test] = &[
    Test { name: "static_key::flips_while_others_run_it", run: key_flips },
    Test { name: "static_call::old_target_is_never_called", run: call_flips },
];

const FLIPS: u64 = 60;

/// Shared by the thread that switches and those that read.
struct Race {
    /// Odd: in transition. Else: the value is `value`.
    epoch: AtomicU64,
    value: AtomicU64,
    stop: AtomicBool,
    running: AtomicU32,
    reads: AtomicU64,
    wrong: AtomicU64,
}

impl Race {
    fn read(&self, look: fn() -> u64) {
        let mut reads = 0;
        while !self.stop.load(Ordering::Relaxed) {
            for _ in 0..1000 {
                let before = self.epoch.load(Ordering::SeqCst);
                let expected = self.value.load(Ordering::SeqCst);
                let seen = look();
                let after = self.epoch.load(Ordering::SeqCst);
                if before == after && before % 2 == 0 && seen != expected {
                    self.wrong.fetch_add(1, Ordering::Relaxed);
                }
                reads += 1;
            }
            sched::yield_if_needed();
        }
        self.reads.fetch_add(reads, Ordering::Relaxed);
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    fn switch(&self, value: u64, act: fn(u64) -> Result<(), String>) -> Result<(), String> {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        act(value)?;
        self.value.store(value, Ordering::SeqCst);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn race(
    look: fn() -> u64,
    values: &[u64],
    act: fn(u64) -> Result<(), String>,
) -> Result<(), String> {
    let race = Arc::new(Race {
        epoch: AtomicU64::new(0),
        value: AtomicU64::new(values[0]),
        stop: AtomicBool::new(false),
        running: AtomicU32::new(0),
        reads: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
    });
    act(values[0])?;
    let others = machine::cpu::cpu_count().saturating_sub(1).max(1);
    for _ in 0..others {
        let race = race.clone();
        race.running.fetch_add(1, Ordering::SeqCst);
        spawn_kernel("reader", move || race.read(look)).map_err(|e| format!("{e:?}"))?;
    }
    let mut result = Ok(());
    for flip in 0..FLIPS {
        let value = values[(flip as usize + 1) % values.len()];
        result = result.and_then(|()| race.switch(value, act));
        sched::yield_now();
    }
    race.stop.store(true, Ordering::SeqCst);
    let deadline = time::now_ns() + 20 * time::NS_PER_SEC;
    while race.running.load(Ordering::SeqCst) != 0 && time::now_ns() < deadline {
        sched::yield_now();
    }
    result?;
    let (reads, wrong) = (race.reads.load(Ordering::SeqCst), race.wrong.load(Ordering::SeqCst));
    machine::log!("{FLIPS} switches, {reads} executions on {others} CPUs");
    ensure!(race.running.load(Ordering::SeqCst) == 0, "a reader did not end");
    ensure!(reads > 0, "nothing was executed");
    ensure!(wrong == 0, "{wrong} executions of an old instruction");
    Ok(())
}

fn key_flips() -> Result<(), String> {
    let look = || u64::from(read_key()) + 2 * u64::from(read_likely_key());
    race(look, &[0, 3], |value| flip_key(value == 3))?;
    flip_key(false)
}

fn call_flips() -> Result<(), String> {
    race(read_call, &[1, 2, 0], flip_call)?;
    flip_call(1)
}
