//! limen-guest-bench: what one kernel operation costs, in ticks of the time-stamp counter.
//!
//! Under QEMU's `-icount shift=0` one tick is one guest instruction, so the medians printed here
//! are instruction counts, equal from run to run, and comparable between Limen and Linux because
//! the same program measures both. Natively the ticks are time, and only ratios mean something.
//! The program is static and calls the kernel by the `syscall` instruction: what is between the
//! two reads of the counter is the operation, some loop instructions, and nothing else; the cost
//! of reading the counter itself is subtracted. Each operation feeds what it got from the kernel
//! into a hash that is printed at the end, so a kernel that is fast because it does nothing shows
//! a different hash. Reading order: main, then ops.rs (the operations), lib.rs and raw.rs (the
//! calls).

mod ipi;
mod ops;

use limen_guest_bench::raw::{rdtsc, syscall};
use limen_guest_bench::{furnish, power_off, report_boot, report_kernel, settle};

/// How often each operation is repeated, by weight class of the operation.
#[derive(Clone, Copy)]
pub struct Reps {
    /// For operations of some hundred or thousand instructions.
    pub light: usize,
    /// For operations of some hundred thousand instructions.
    pub heavy: usize,
}

const FULL: Reps = Reps { light: 2001, heavy: 101 };
const TINY: Reps = Reps { light: 21, heavy: 5 };

/// One line of the result.
pub struct Line {
    /// Name as printed.
    pub name: &'static str,
    /// Median cost in ticks.
    pub median_ticks: u64,
    /// If the samples lie around two values: the median of those around the other one.
    pub other_ticks: Option<u64>,
}

/// A gap between neighbouring samples that parts two modes, as a share of the lower one.
const GAP: f64 = 0.1;
/// Least share of the samples that makes a mode.
const MODE: f64 = 0.15;

/// The median of the smaller of two modes, if the sorted samples have two: a gap parts them, and
/// each has a share of them that is no accident.
fn other_mode(sorted: &[u64]) -> Option<u64> {
    let least = (sorted.len() as f64 * MODE).ceil() as usize;
    let inner = least.max(1)..=sorted.len().saturating_sub(least.max(1));
    let gap = |at: &usize| sorted[*at] - sorted[*at - 1];
    let at = inner.filter(|at| *at < sorted.len()).max_by_key(gap)?;
    let (low, high) = sorted.split_at(at);
    let is_wide = gap(&at) as f64 > GAP * low[low.len() - 1].max(1) as f64;
    let smaller = if low.len() < high.len() { low } else { high };
    is_wide.then(|| smaller[smaller.len() / 2])
}

/// Collects samples and the hash of the work.
pub struct Bench {
    reps: Reps,
    overhead_ticks: u64,
    hash: u64,
    lines: Vec<Line>,
    samples: Vec<u64>,
}

impl Bench {
    fn new(reps: Reps) -> Self {
        let mut bench = Bench {
            reps,
            overhead_ticks: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            lines: Vec::new(),
            samples: Vec::with_capacity(reps.light.max(reps.heavy)),
        };
        bench.measure("empty", reps.light, || 0);
        bench.overhead_ticks = bench.lines.pop().map_or(0, |l| l.median_ticks);
        bench
    }

    /// Mixes a value the kernel gave into the hash (FNV-1a).
    pub fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x0100_0000_01b3);
    }

    /// Measures `op` once per sample. What `op` returns must be the same on every kernel.
    pub fn measure(&mut self, name: &'static str, reps: usize, mut op: impl FnMut() -> u64) {
        self.samples.clear();
        self.mix(op());
        for _ in 0..reps {
            let start = rdtsc();
            let value = op();
            let ticks = rdtsc() - start;
            self.mix(value);
            self.samples.push(ticks.saturating_sub(self.overhead_ticks));
        }
        self.finish(name);
    }

    /// Takes the median of samples that the operation measured itself.
    pub fn measured(&mut self, name: &'static str, reps: usize, mut op: impl FnMut() -> u64) {
        self.samples.clear();
        op();
        for _ in 0..reps {
            let ticks = op();
            self.samples.push(ticks.saturating_sub(self.overhead_ticks));
        }
        self.finish(name);
    }

    fn finish(&mut self, name: &'static str) {
        self.samples.sort_unstable();
        let median_ticks = self.samples[self.samples.len() / 2];
        let other_ticks = other_mode(&self.samples);
        self.lines.push(Line { name, median_ticks, other_ticks });
    }

    /// Repetitions for cheap operations.
    pub fn light(&self) -> usize {
        self.reps.light
    }

    /// Repetitions for dear operations.
    pub fn heavy(&self) -> usize {
        self.reps.heavy
    }
}

fn main() {
    let booted_ticks = rdtsc();
    let args: Vec<String> = std::env::args().collect();
    let mut reps = FULL;
    let (mut boot, mut poweroff, mut entry, mut border) = (false, false, false, false);
    let mut calls = false;
    let mut ipi_s = 0;
    for arg in &args[1..] {
        match arg.as_str() {
            "noop" => std::process::exit(0),
            "--tiny" => reps = TINY,
            "--boot" => boot = true,
            "--poweroff" => poweroff = true,
            "--entry" => entry = true,
            "--border" => border = true,
            "--calls" => calls = true,
            "--landlock" => restrict_a_child(),
            load if load.starts_with("--ipi=") => {
                ipi_s = load["--ipi=".len()..].parse().expect("seconds");
            }
            other => {
                eprintln!(
                    "usage: limen-guest-bench [--tiny|--boot|--ipi=SECONDS|--entry|--border|\
                     --calls] [--landlock] [--poweroff], not {other}"
                );
                std::process::exit(2);
            }
        }
    }
    if boot {
        report_boot(booted_ticks);
    } else if ipi_s > 0 {
        furnish();
        settle();
        ipi::run(std::time::Duration::from_secs(ipi_s));
    } else if entry {
        ipi::entry_cost();
    } else if calls {
        furnish();
        settle();
        run(reps, ops::plain);
        report_kernel();
    } else {
        furnish();
        settle();
        run(reps, if border { ops::border } else { ops::all });
        if border {
            run_filtered(reps);
        }
    }
    if poweroff {
        power_off();
    }
}

/// Last: a filter never goes away.
fn run_filtered(reps: Reps) {
    let mut filtered = Bench::new(reps);
    ops::filtered(&mut filtered);
    filtered.lines.iter().for_each(|line| println!("{} {}", line.name, line.median_ticks));
}

/// Has a child restrict itself (landlock(7)), so that the kernel asks that policy from now on.
fn restrict_a_child() {
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // All rights to files that the first version of the interface knows.
        let handled = (1_u64 << 13) - 1;
        let at = &raw const handled as usize;
        let rules = syscall(libc::SYS_landlock_create_ruleset, [at, 8, 0, 0, 0, 0]);
        let _ = syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]);
        let done = syscall(libc::SYS_landlock_restrict_self, [rules as usize, 0, 0, 0, 0, 0]);
        let _ = syscall(libc::SYS_exit_group, [done.unsigned_abs(), 0, 0, 0, 0, 0]);
    }
    let mut status = 0;
    // SAFETY: the status has room for a word.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(ended == child && status == 0, "Landlock");
}

/// Two rounds; each line is the lower of its two medians, since the first round warms caches.
fn run(reps: Reps, ops: fn(&mut Bench)) {
    let mask = 1u64;
    let _ = syscall(libc::SYS_sched_setaffinity, [0, 8, &raw const mask as usize, 0, 0, 0]);
    let mut first = Bench::new(reps);
    ops(&mut first);
    let mut second = Bench::new(reps);
    ops(&mut second);
    for (a, b) in first.lines.iter().zip(&second.lines) {
        println!("{} {}", a.name, a.median_ticks.min(b.median_ticks));
        // Once the caches are warm.
        b.other_ticks.iter().for_each(|other| println!("bimodal_{} {other}", b.name));
    }
    assert_eq!(first.hash, second.hash, "the two rounds did different work");
    println!("hash {:016x}", first.hash);
}
