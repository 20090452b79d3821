//! Scheduling classes, and the weights of nice values (sched(7)).

/// Weight of nice value 0. Virtual time runs as fast as real time for a thread of this weight.
pub const WEIGHT_UNIT: u32 = 1024;
/// Weight under SCHED_IDLE, whatever the nice value.
pub const WEIGHT_IDLE: u32 = 3;
/// Highest priority of the real-time policies.
pub const PRIORITY_MAX: u8 = 99;

/// What a thread of the fair class is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// SCHED_OTHER: may preempt when it is woken.
    Normal,
    /// SCHED_BATCH: waits for its turn when it is woken.
    Batch,
    /// SCHED_IDLE: weighs next to nothing, and any other thread that is woken preempts it.
    Idle,
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// SCHED_FIFO and SCHED_RR: before all fair threads, the highest priority first.
    RealTime {
        /// 1 to [`PRIORITY_MAX`].
        priority: u8,
        /// SCHED_RR: equals take turns.
        takes_turns: bool,
    },
    /// A share of what the real-time threads leave, in proportion to the weight.
    Fair {
        /// Never 0.
        weight: u32,
        /// Which policy.
        share: Share,
    },
}

impl Class {
    /// SCHED_OTHER at nice value 0.
    pub const NORMAL: Class = Class::Fair { weight: WEIGHT_UNIT, share: Share::Normal };

    /// The priority of a real-time thread; 0 for others.
    #[must_use]
    #[inline]
    pub const fn priority(self) -> u8 {
        match self {
            Class::RealTime { priority, .. } => priority,
            Class::Fair { .. } => 0,
        }
    }

    /// What the thread counts for when load is compared between CPUs.
    #[must_use]
    #[inline]
    pub const fn load(self) -> u64 {
        match self {
            // It takes a CPU for itself as a rule: as much as two threads.
            Class::RealTime { .. } => 2 * WEIGHT_UNIT as u64,
            Class::Fair { weight, .. } => weight as u64,
        }
    }
}

/// CPU share of a nice value: each step is a factor of 1.25 (sched(7)), rounded to the nearest.
const WEIGHTS: [u32; 40] = {
    let mut weights = [0; 40];
    let mut index = 0;
    while index < 40 {
        // 1024 * (5/4)^(20-index), as a fraction of powers that fits 128 bits.
        let steps = u32::abs_diff(index as u32, 20);
        let (five, four) = (5u128.pow(steps), 4u128.pow(steps));
        let (over, under) = if index < 20 { (five, four) } else { (four, five) };
        weights[index] = ((2 * WEIGHT_UNIT as u128 * over + under) / (2 * under)) as u32;
        index += 1;
    }
    weights
};

/// The weight of nice value `nice`, which is taken to the nearest from -20 to 19.
#[must_use]
pub fn weight_of_nice(nice: i32) -> u32 {
    WEIGHTS[(nice.clamp(-20, 19) + 20) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nice_step_is_a_factor_of_five_quarters() {
        assert_eq!(weight_of_nice(0), WEIGHT_UNIT);
        assert_eq!(weight_of_nice(19), 15);
        assert_eq!((weight_of_nice(-100), weight_of_nice(100)), (weight_of_nice(-20), 15));
        for nice in -20..19 {
            let (more, less) = (weight_of_nice(nice), weight_of_nice(nice + 1));
            let error = (i64::from(more) * 4 - i64::from(less) * 5).abs();
            assert!(error <= 5, "nice {nice}: {more} to {less}");
        }
    }
}
