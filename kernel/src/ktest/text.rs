//! Static keys and calls, switched while threads on all CPUs execute them. Readers note what they
//! see together with an epoch: odd while a switch is in progress. What a reader sees within one
//! even epoch must be what was switched to, or the old instruction was executed after the switch
//! had returned. Then checks that fail on several CPUs while text changes, and late text that comes
//! and goes meanwhile.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use machine::ensure;
use machine::ktest::{self, FailingPiece, Test};
use machine::ktest::{flip_call, flip_key, read_call, read_key, read_likely_key};

use crate::base::{sched, time};
use crate::process::spawn_kernel;

pub(super) const TESTS: &[Test] = &[
    Test { name: "static_key::flips_while_others_run_it", run: key_flips },
    Test { name: "static_call::old_target_is_never_called", run: call_flips },
    Test { name: "cfi::fails_while_another_cpu_patches", run: failures_while_patching },
    Test { name: "late_text::traps_find_it_while_others_come_and_go", run: late_text_race },
    Test { name: "long::static_key_1e8_executions", run: key_flips_long },
    Test { name: "long::static_call_1e8_executions", run: call_flips_long },
];

/// Least executions of a site, over all CPUs, in a run that nobody asked for by name.
const EXECUTIONS: u64 = 1_000_000;
const EXECUTIONS_LONG: u64 = 100_000_000;
/// Least switches meanwhile.
const FLIPS: u64 = 60;
/// No test takes that long.
const LIMIT_NS: u64 = 200 * time::NS_PER_SEC;

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
        const BLOCK: u64 = 1000;
        while !self.stop.load(Ordering::Relaxed) {
            for _ in 0..BLOCK {
                let before = self.epoch.load(Ordering::SeqCst);
                let expected = self.value.load(Ordering::SeqCst);
                let seen = look();
                let after = self.epoch.load(Ordering::SeqCst);
                if before == after && before % 2 == 0 && seen != expected {
                    self.wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.reads.fetch_add(BLOCK, Ordering::Relaxed);
            sched::yield_if_needed();
        }
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

/// Waits until `done`, letting other threads run.
fn wait_until(mut done: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = time::now_ns() + LIMIT_NS;
    while !done() {
        ensure!(time::now_ns() < deadline, "no end after {} s", LIMIT_NS / time::NS_PER_SEC);
        sched::yield_now();
    }
    Ok(())
}

fn race(
    executions: u64,
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
    let mut flips = 0;
    let result = wait_until(|| {
        flips += 1;
        let value = values[flips as usize % values.len()];
        let switched = race.switch(value, act).is_ok();
        !switched || flips >= FLIPS && race.reads.load(Ordering::Relaxed) >= executions
    });
    race.stop.store(true, Ordering::SeqCst);
    wait_until(|| race.running.load(Ordering::SeqCst) == 0)?;
    result?;
    let (reads, wrong) = (race.reads.load(Ordering::SeqCst), race.wrong.load(Ordering::SeqCst));
    machine::log!("{flips} switches, {reads} executions on {others} other CPUs, {wrong} wrong");
    ensure!(reads >= executions, "a switch failed");
    ensure!(wrong == 0, "{wrong} executions of an old instruction");
    Ok(())
}

fn keys(executions: u64) -> Result<(), String> {
    let look = || u64::from(read_key()) + 2 * u64::from(read_likely_key());
    race(executions, look, &[0, 3], |value| flip_key(value == 3))?;
    flip_key(false)
}

fn calls(executions: u64) -> Result<(), String> {
    race(executions, read_call, &[1, 2, 0], flip_call)?;
    flip_call(1)
}

fn key_flips() -> Result<(), String> {
    keys(EXECUTIONS)
}

fn call_flips() -> Result<(), String> {
    calls(EXECUTIONS)
}

fn key_flips_long() -> Result<(), String> {
    keys(EXECUTIONS_LONG)
}

fn call_flips_long() -> Result<(), String> {
    calls(EXECUTIONS_LONG)
}

/// Runs `fail` over and over on the other CPUs until `main` is done; each time it must be caught
/// exactly once.
fn failures_beside(
    fail: impl Fn() + Send + Sync + 'static,
    main: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let fail = Arc::new(fail);
    let (stop, running) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let made = Arc::new(AtomicU64::new(0));
    let mut result = Ok(());
    let caught = ktest::survive_failures(|| {
        for _ in 0..machine::cpu::cpu_count().saturating_sub(1).max(1) {
            let (fail, made) = (fail.clone(), made.clone());
            let (stop, here) = (stop.clone(), running.clone());
            here.fetch_add(1, Ordering::SeqCst);
            let thread = move || {
                while !stop.load(Ordering::SeqCst) {
                    fail();
                    made.fetch_add(1, Ordering::SeqCst);
                    sched::yield_if_needed();
                }
                here.fetch_sub(1, Ordering::SeqCst);
            };
            if spawn_kernel("failing", thread).is_err() {
                running.fetch_sub(1, Ordering::SeqCst);
            }
        }
        result = wait_until(|| made.load(Ordering::SeqCst) > 0).and_then(|()| main());
        stop.store(true, Ordering::SeqCst);
        result = result.clone().and(wait_until(|| running.load(Ordering::SeqCst) == 0));
    });
    result?;
    let made = made.load(Ordering::SeqCst);
    machine::log!("{made} checks failed meanwhile");
    ensure!(caught == Some(made), "{made} checks failed, {caught:?} were caught");
    Ok(())
}

fn failures_while_patching() -> Result<(), String> {
    failures_beside(ktest::fail_check, || {
        for flip in 0..FLIPS {
            flip_key(flip % 2 == 0)?;
            flip_call(flip % 3)?;
            sched::yield_now();
        }
        flip_key(false)?;
        flip_call(1)
    })
}

fn late_text_race() -> Result<(), String> {
    let piece = Arc::new(FailingPiece::load()?);
    let failing = piece.clone();
    failures_beside(
        move || failing.fail_once(),
        || {
            (0..FLIPS).try_for_each(|_| {
                sched::yield_now();
                ktest::load_and_unload()
            })
        },
    )
}
