//! What must hold of the figures, on any CPU: the optimised form costs nothing where branch targets
//! do not fit the predictor any more, and is never slower than the compiler's.

use std::fmt;

use crate::code::{KCFI, PLAIN, PLAIN_THUNK, VARIANTS};
use crate::measure::Point;

/// Most that the optimised form may cost, as a ratio to no check, past the predictor's capacity.
const OPT_MAX: f64 = 1.03;
/// The capacity is exceeded where the compiler's form, with its additional taken branch, costs at
/// least this.
const EXCEEDED: f64 = 1.3;
/// What two layouts of the same code differ by, in core cycles: below is noise.
const NOISE_CYCLES: f64 = 1.0;

/// One claim.
#[derive(Clone, Debug)]
pub struct Line {
    /// What is claimed and measured.
    pub text: String,
    /// Whether it holds.
    pub met: bool,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reach: {} ... {}", self.text, if self.met { "met" } else { "NOT MET" })
    }
}

/// All claims about these points.
#[must_use]
pub fn judge(points: &[Point]) -> Vec<Line> {
    let mut lines = Vec::new();
    for base in [PLAIN, PLAIN_THUNK] {
        let kcfi = base + KCFI - PLAIN;
        let (opt, name) = (kcfi + 1, VARIANTS[kcfi + 1].name);
        let past = points.iter().filter(|point| point.ratios[kcfi].median >= EXCEEDED);
        let worst = past.map(|point| point.ratios[opt].median).reduce(f64::max);
        let past = "of no check, at worst, past the predictor's capacity";
        // Behind a thunk there is no goal: the yardstick, a jump to a cold ud2, costs the same.
        let goal = (base == PLAIN).then_some(OPT_MAX);
        lines.push(Line {
            text: match (worst, goal) {
                (Some(worst), Some(goal)) => format!("{name} {worst:.3} {past}; at most {goal}"),
                (Some(worst), None) => format!("{name} {worst:.3} {past}; no goal"),
                (None, _) => format!("{name}: no point exceeds this predictor's capacity"),
            },
            met: worst.zip(goal).is_none_or(|(worst, goal)| worst <= goal),
        });
        let slower =
            |point: &&Point| point.cycles[opt].median > point.cycles[kcfi].median + NOISE_CYCLES;
        let worst: Vec<String> = points
            .iter()
            .filter(slower)
            .map(|point| format!("{}x{}", point.sites, point.targets))
            .collect();
        lines.push(Line {
            text: format!(
                "{name} never slower than {} beyond noise ({NOISE_CYCLES} cycle){}{}",
                VARIANTS[kcfi].name,
                if worst.is_empty() { "" } else { "; slower at " },
                worst.join(", ")
            ),
            met: worst.is_empty(),
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    fn point(kcfi: f64, opt: f64) -> Point {
        let spread = |value| Spread { median: value, low: value, high: value };
        let values = VARIANTS.map(|variant| match variant.name {
            "kcfi" | "kcfi+thunk" => kcfi,
            "opt" | "opt+thunk" => opt,
            _ => 1.0,
        });
        Point {
            sites: 1,
            targets: 1,
            cycles: values.map(|value| spread(value * 10.0)).to_vec(),
            ratios: values.map(spread).to_vec(),
            work: 1,
        }
    }

    #[test]
    fn each_claim_can_fail() {
        let met = |points: &[Point]| judge(points).iter().map(|l| l.met).collect::<Vec<_>>();
        assert_eq!(met(&[point(1.05, 1.06), point(1.8, 1.02)]), [true; 4]);
        assert_eq!(met(&[point(1.05, 1.05)]), [true; 4]);
        assert_eq!(met(&[point(1.8, 1.05)]), [false, true, true, true]);
        assert_eq!(met(&[point(1.8, 1.02), point(1.8, 1.05)]), [false, true, true, true]);
        assert_eq!(met(&[point(1.05, 1.3)]), [true, false, true, false]);
    }
}
