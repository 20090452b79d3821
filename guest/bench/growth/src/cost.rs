//! Samples of one operation.

use limen_guest_bench::raw::rdtsc;

const SAMPLES: usize = 21;
const TINY_SAMPLES: usize = 3;
/// Of operations that take millions of instructions, or cannot be repeated often.
const FEW: usize = 5;

/// Ticks of one row at one size.
pub struct Cost {
    ticks: Vec<u64>,
    overhead: u64,
    samples: usize,
    few: usize,
}

impl Cost {
    /// Without samples; knows what reading the counter costs.
    pub fn new(tiny: bool) -> Self {
        let (samples, few) = if tiny { (TINY_SAMPLES, 1) } else { (SAMPLES, FEW) };
        let mut cost = Cost { ticks: Vec::with_capacity(SAMPLES), overhead: 0, samples, few };
        for _ in 0..SAMPLES {
            cost.time(|| ());
        }
        cost.overhead = cost.median();
        cost.ticks.clear();
        cost
    }

    /// How many samples to take.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The same for what is dear.
    pub fn few(&self) -> usize {
        self.few
    }

    /// One sample.
    #[inline(always)]
    pub fn time<T>(&mut self, op: impl FnOnce() -> T) -> T {
        let start = rdtsc();
        let value = op();
        let ticks = rdtsc() - start;
        self.ticks.push(ticks.saturating_sub(self.overhead));
        value
    }

    /// As many samples of an operation that leaves everything as it was; the first, which warms
    /// caches, does not count.
    pub fn repeat<T>(&mut self, mut op: impl FnMut() -> T) {
        op();
        for _ in 0..self.samples {
            self.time(&mut op);
        }
    }

    /// The median of all samples.
    pub fn median(&self) -> u64 {
        let mut sorted = self.ticks.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }
}
