//! Table, JSON and plot.

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

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 9] = [
    "#7f7f7f", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#17becf", "#e377c2", "#8c564b",
    "#bcbd22",
];

/// Cycles over the number of sites (one target), a line per variant, as SVG.
#[must_use]
pub fn svg(points: &[Point]) -> String {
    let points: Vec<&Point> = points.iter().filter(|point| point.targets == 1).collect();
    let all = || points.iter().flat_map(|p| &p.cycles).map(|s| s.median);
    let top = all().fold(1.0, f64::max) * 1.05;
    let widest = points.iter().map(|p| p.sites).max().unwrap_or(1).max(2) as f64;
    let x = |sites: usize| LEFT + (sites as f64).log2() / widest.log2() * (WIDTH - LEFT - 140.0);
    let y = |cycles: f64| HEIGHT - BOTTOM - cycles / top * (HEIGHT - BOTTOM - 20.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"14\">core cycles per call and return over call sites</text>\n"
    );
    for point in &points {
        let (x, y) = (x(point.sites), HEIGHT - BOTTOM + 18.0);
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            point.sites
        );
    }
    for step in 0..=4 {
        let cycles = top * f64::from(step) / 4.0;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{cycles:.0}</text>\
            <line x1=\"{LEFT}\" x2=\"{}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"#ddd\"/>",
            LEFT - 6.0,
            WIDTH - 130.0,
            y(cycles)
        );
    }
    for (index, variant) in VARIANTS.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let line: Vec<String> = points
            .iter()
            .map(|p| format!("{:.1},{:.1}", x(p.sites), y(p.cycles[index].median)))
            .collect();
        let legend = 30.0 + 18.0 * index as f64;
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{}\"/>\
            <text x=\"{}\" y=\"{legend}\" fill=\"{colour}\">{}</text>",
            line.join(" "),
            WIDTH - 120.0,
            variant.name
        );
    }
    out.push_str("</svg>\n");
    out
}
