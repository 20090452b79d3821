//! Timing: rounds of all variants in random order, core cycles by calibration.

use std::hint::black_box;

use crate::code::{Random, VARIANTS, row};
use crate::exec::{self, Mapped};

/// What to measure, and how much.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of call sites, and of targets that each site alternates between.
    pub points: Vec<(usize, usize)>,
    /// Random layouts per point.
    pub layouts: u64,
    /// Rounds per layout; the best of them counts, for what disturbs a round only adds to it.
    pub rounds: usize,
    /// Calls per timing.
    pub calls: usize,
}

impl Plan {
    /// The real thing: some minutes.
    #[must_use]
    pub fn full() -> Self {
        let mut points = [1, 16, 256, 4096, 8192, 16384, 32768].map(|sites| (sites, 1)).to_vec();
        for targets in [4, 16, 64] {
            points.extend([(256, targets), (32768, targets)]);
        }
        Self { points, layouts: 11, rounds: 9, calls: 65_536 }
    }

    /// Whether the figures mean nothing.
    #[must_use]
    pub fn is_tiny(&self) -> bool {
        self.calls < 10_000
    }

    /// Enough to see that everything works.
    #[must_use]
    pub fn tiny() -> Self {
        Self { points: vec![(1, 1), (64, 1), (64, 4)], layouts: 3, rounds: 3, calls: 512 }
    }
}

/// Median, lowest and highest over layouts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Lowest.
    pub low: f64,
    /// Highest.
    pub high: f64,
}

/// Result for one number of sites and targets.
#[derive(Clone, Debug)]
pub struct Point {
    /// Call sites.
    pub sites: usize,
    /// Targets that each site alternates between.
    pub targets: usize,
    /// Core cycles per call and return, by variant.
    pub cycles: Vec<Spread>,
    /// Ratio to the unchecked call with the same kind of call, paired inside each layout.
    pub ratios: Vec<Spread>,
    /// Calls that were made: the same for all variants, or the bench panics.
    pub work: u64,
}

/// Time-stamp ticks per core cycle, by a chain of dependent multiplications (3 cycles each on all
/// CPUs of Intel and AMD since 2008).
#[must_use]
pub fn ticks_per_cycle() -> f64 {
    const CHAIN: u32 = 1_000_000;
    const LATENCY_CYCLES: u32 = 3;
    let mut best = u64::MAX;
    for _ in 0..5 {
        let start = exec::ticks();
        let mut value = black_box(3_u64);
        for _ in 0..CHAIN / 8 {
            for _ in 0..8 {
                value = black_box_register(value.wrapping_mul(value));
            }
        }
        black_box(value);
        best = best.min(exec::ticks() - start);
    }
    best as f64 / f64::from(CHAIN * LATENCY_CYCLES)
}

/// Hides a value from the optimiser without sending it through memory.
#[inline(always)]
fn black_box_register(mut value: u64) -> u64 {
    // SAFETY: the assembly is empty; the register keeps its value.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags))
    };
    value
}

/// Measures one point.
#[must_use]
pub fn point(plan: &Plan, sites: usize, targets: usize, ticks_per_cycle: f64) -> Point {
    let passes = plan.calls.div_ceil(sites);
    let mut cycles = vec![Vec::new(); VARIANTS.len()];
    let mut ratios = vec![Vec::new(); VARIANTS.len()];
    let mut work = None;
    for layout in 0..plan.layouts {
        let rows: Vec<Mapped> =
            VARIANTS.iter().map(|&v| Mapped::new(&row(v, sites, targets, layout))).collect();
        let bests = bests(plan.rounds, &rows, passes, layout, &mut work);
        for (index, ticks) in bests.iter().enumerate() {
            let calls = (passes * sites) as f64;
            cycles[index].push(ticks / calls / ticks_per_cycle);
            ratios[index].push(ticks / bests[baseline(index)]);
        }
    }
    let spread = |samples: &mut Vec<Vec<f64>>| samples.iter_mut().map(|s| summarise(s)).collect();
    Point {
        sites,
        targets,
        cycles: spread(&mut cycles),
        ratios: spread(&mut ratios),
        work: work.unwrap_or_default(),
    }
}

/// The unchecked call that a variant is compared with.
fn baseline(index: usize) -> usize {
    if index >= crate::code::PLAIN_THUNK { crate::code::PLAIN_THUNK } else { crate::code::PLAIN }
}

/// The best round of each row, in ticks: `passes` runs of all rows per round, in random order.
///
/// # Panics
/// When the rows make different numbers of calls, or others than `work` says.
pub fn bests(
    rounds: usize,
    rows: &[Mapped],
    passes: usize,
    layout: u64,
    work: &mut Option<u64>,
) -> Vec<f64> {
    let mut random = Random::new(layout ^ 0xfeed);
    let mut samples = vec![Vec::new(); rows.len()];
    let mut order: Vec<usize> = (0..rows.len()).collect();
    for round in 0..=rounds {
        for i in (1..order.len()).rev() {
            let other = usize::try_from(random.below(i as u64 + 1)).unwrap_or_default();
            order.swap(i, other);
        }
        for &variant in &order {
            let row = &rows[variant];
            // Warm caches and predictors with a pass that does not count.
            let _ = row.run(0);
            let start = exec::ticks();
            let mut calls = 0;
            for turn in 0..passes {
                calls += row.run(turn);
            }
            let ticks = exec::ticks() - start;
            assert_eq!(*work.get_or_insert(calls), calls, "a variant did not make all calls");
            if round > 0 {
                samples[variant].push(ticks as f64);
            }
        }
    }
    samples.iter_mut().map(|samples| summarise(samples).low).collect()
}

/// Sorts and summarises.
pub fn summarise(samples: &mut [f64]) -> Spread {
    samples.sort_by(f64::total_cmp);
    let at = |index: usize| samples.get(index).copied().unwrap_or(f64::NAN);
    Spread { median: at(samples.len() / 2), low: at(0), high: at(samples.len().saturating_sub(1)) }
}
