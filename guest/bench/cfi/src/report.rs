//! Table and JSON. Neighbour: `plot.rs` draws.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::code::VARIANTS;
use crate::measure::{Point, Spread};
use crate::reach;

/// The table for people: core cycles per call, and the ratio to the unchecked call.
#[must_use]
pub fn table(points: &[Point]) -> String {
    let mut out = String::from("core cycles per call and return, median over layouts\n");
    head(&mut out);
    for point in points {
        line(&mut out, point, &point.cycles, 1);
    }
    out.push_str("\nratio to the unchecked call of the same kind, paired inside each layout\n");
    head(&mut out);
    for point in points {
        line(&mut out, point, &point.ratios, 2);
    }
    out
}

fn head(out: &mut String) {
    let _ = write!(out, "{:>6} {:>7}", "sites", "targets");
    for variant in VARIANTS {
        let _ = write!(out, " {:>10}", variant.name);
    }
    out.push('\n');
}

fn line(out: &mut String, point: &Point, spreads: &[Spread], digits: usize) {
    let _ = write!(out, "{:>6} {:>7}", point.sites, point.targets);
    for spread in spreads {
        let _ = write!(out, " {:>10.digits$}", spread.median);
    }
    out.push('\n');
}

/// One object.
#[must_use]
pub fn json(points: &[Point], ticks_per_cycle: f64) -> Value {
    let spread = |s: &Spread| json!({ "median": s.median, "low": s.low, "high": s.high });
    let point = |p: &Point| {
        let variants: serde_json::Map<String, Value> = VARIANTS
            .iter()
            .zip(p.cycles.iter().zip(&p.ratios))
            .map(|(v, (c, r))| (v.name.into(), json!({ "cycles": spread(c), "ratio": spread(r) })))
            .collect();
        json!({ "sites": p.sites, "targets": p.targets, "work": p.work, "variants": variants })
    };
    let values: Vec<Value> = points.iter().map(point).collect();
    let reach: Vec<Value> = reach::judge(points)
        .iter()
        .map(|line| json!({ "claim": line.text, "met": line.met }))
        .collect();
    json!({
        "bench": "cfi", "ticks_per_cycle": ticks_per_cycle, "points": values, "reach": reach,
    })
}
