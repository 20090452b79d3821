//! limen-bench-hooks: what the forms of a security hook cost on this CPU, in ring 3.
//!
//! An emulator counts a retpoline as three instructions; what it costs is a predictor's. So the
//! forms are generated (form.rs), and timed side by side in random code layouts: paired in each
//! layout, in rounds of random order, at a few sites that the predictors know and at more than
//! they hold. In an emulator the cycles are void.

mod form;

use std::fmt::Write as _;
use std::process::ExitCode;

use form::{FORMS, Form, Shape};
use limen_bench_cfi::exec::{self, Mapped};
use limen_bench_cfi::measure::{Spread, bests, summarise, ticks_per_cycle};
use limen_bench_cfi::warn_if_busy;
use serde_json::{Value, json};

const HELP: &str = "\
usage: limen-bench-hooks [--tiny] [--json]
  --tiny  a few calls only: shows that everything works, not what it costs
  --json  one JSON object instead of the table
exit status: 0 the reach is met, 1 it is not, 2 wrong arguments";

/// Numbers of policies that are asked.
const POLICIES: [usize; 4] = [0, 1, 2, 4];
/// Most of a list with thunks that a patched site may cost while hot: with one policy, and four.
const HOT_MAX: [(usize, f64); 2] = [(1, 0.11), (4, 0.17)];
/// Call sites that count as hot, and those that exceed the predictors.
const HOT: usize = 64;
const MANY: usize = 16_384;
/// What two runs of the same code differ by, in core cycles and as a part: below is noise. With
/// several policies a chain and a site are the same code.
const NOISE_CYCLES: f64 = 1.0;
const NOISE_PART: f64 = 0.02;

/// How much is measured.
struct Plan {
    many: usize,
    layouts: u64,
    rounds: usize,
    /// Calls per timing.
    calls: usize,
}

const FULL: Plan = Plan { many: MANY, layouts: 11, rounds: 9, calls: 65_536 };
const TINY: Plan = Plan { many: 256, layouts: 3, rounds: 3, calls: 512 };

/// One line of the table.
struct Point {
    shape: Shape,
    /// Core cycles per asking, by form.
    cycles: Vec<Spread>,
    /// Ratio to a list with thunks, paired inside each layout.
    ratios: Vec<Spread>,
}

fn main() -> ExitCode {
    let (mut plan, mut as_json) = (FULL, false);
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--tiny" => plan = TINY,
            "--json" => as_json = true,
            _ => {
                eprintln!("{HELP}");
                return ExitCode::from(2);
            }
        }
    }
    warn_if_busy();
    exec::pin();
    let cycle = ticks_per_cycle();
    let mut points = Vec::new();
    for (sites, own_hooks) in [(HOT, false), (plan.many, false), (plan.many, true)] {
        for policies in POLICIES {
            let shape = Shape { sites, own_hooks, policies };
            eprintln!("{}", name(&shape));
            points.push(point(&plan, shape, cycle));
        }
    }
    let reach = judge(&points);
    if as_json {
        println!("{}", object(&points, &reach));
    } else {
        print!("{}", table(&points));
        for (text, met) in &reach {
            println!("reach: {text} ... {}", if *met { "met" } else { "NOT MET" });
        }
    }
    let met = plan.calls < FULL.calls || reach.iter().all(|(_, met)| *met);
    ExitCode::from(u8::from(!met))
}

fn name(shape: &Shape) -> String {
    let hooks = if shape.own_hooks { "own hooks" } else { "one hook" };
    format!("{} sites, {hooks}, {} policies", shape.sites, shape.policies)
}

/// Measures one point.
fn point(plan: &Plan, shape: Shape, cycle: f64) -> Point {
    let passes = plan.calls.div_ceil(shape.sites);
    let mut cycles = vec![Vec::new(); FORMS.len()];
    let mut ratios = vec![Vec::new(); FORMS.len()];
    let mut work = Some((passes * shape.sites * shape.policies) as u64);
    for layout in 0..plan.layouts {
        let map = |&(form, _): &(Form, _)| Mapped::new(&form::row(form, shape, layout));
        let rows: Vec<Mapped> = FORMS.iter().map(map).collect();
        let ticks = bests(plan.rounds, &rows, passes, layout, &mut work);
        for (form, best) in ticks.iter().enumerate() {
            cycles[form].push(best / (passes * shape.sites) as f64 / cycle);
            ratios[form].push(best / ticks[0]);
        }
    }
    let spread = |samples: Vec<Vec<f64>>| samples.into_iter().map(|mut s| summarise(&mut s));
    Point { shape, cycles: spread(cycles).collect(), ratios: spread(ratios).collect() }
}

/// What must hold, and whether it does.
fn judge(points: &[Point]) -> Vec<(String, bool)> {
    let of = |form| FORMS.iter().position(|&(other, _)| other == form).unwrap_or_default();
    let site = of(Form::Site);
    let mut lines = Vec::new();
    for (policies, most) in HOT_MAX {
        let hot = |p: &&Point| p.shape.sites == HOT && p.shape.policies == policies;
        let ratio = points.iter().find(hot).map_or(f64::NAN, |p| p.ratios[site].median);
        let text = format!("hot, {policies} policies: {ratio:.3} of list+thunk, at most {most}");
        lines.push((text, ratio <= most));
    }
    for point in points.iter().filter(|point| point.shape.sites != HOT) {
        let own = point.cycles[site].median;
        let mut text = format!("{}: slower than no other form", name(&point.shape));
        let mut met = true;
        // A gate is for hooks that only attachable policies answer: there a site is not the choice.
        let others = FORMS.iter().enumerate().filter(|(_, (form, _))| *form != Form::Gate);
        for (form, (_, other)) in others {
            let cycles = point.cycles[form].median;
            if own > cycles * (1.0 + NOISE_PART) + NOISE_CYCLES {
                met = false;
                _ = write!(text, "; {other} takes {cycles:.1} cycles, a site {own:.1}");
            }
        }
        lines.push((text, met));
    }
    lines
}

fn table(points: &[Point]) -> String {
    let mut out = String::new();
    type Column = fn(&Point) -> &[Spread];
    let parts: [(&str, Column, usize); 2] = [
        ("core cycles per asking, median over layouts", |p| &p.cycles, 1),
        ("ratio to list+thunk, paired inside each layout", |p| &p.ratios, 3),
    ];
    for (title, column, digits) in parts {
        _ = write!(out, "{title:<50}");
        FORMS.iter().for_each(|(_, form)| _ = write!(out, "{form:>12}"));
        out.push('\n');
        for point in points {
            _ = write!(out, "{:<50}", name(&point.shape));
            column(point).iter().for_each(|s| _ = write!(out, "{:>12.digits$}", s.median));
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

fn object(points: &[Point], reach: &[(String, bool)]) -> Value {
    let spread = |s: &Spread| json!({ "median": s.median, "low": s.low, "high": s.high });
    let rows = points.iter().map(|point| {
        let forms: serde_json::Map<String, Value> = FORMS
            .iter()
            .zip(point.cycles.iter().zip(&point.ratios))
            .map(|((_, form), (cycles, ratio))| {
                let value = json!({ "cycles": spread(cycles), "ratio": spread(ratio) });
                ((*form).to_owned(), value)
            })
            .collect();
        let Shape { sites, own_hooks, policies } = point.shape;
        json!({ "sites": sites, "own_hooks": own_hooks, "policies": policies, "forms": forms })
    });
    let reach = reach.iter().map(|(claim, met)| json!({ "claim": claim, "met": met }));
    json!({
        "bench": "hooks",
        "points": rows.collect::<Vec<_>>(),
        "reach": reach.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_asks_each_policy_once() {
        for (own_hooks, policies) in [(false, 0), (false, 1), (true, 2), (true, 4), (false, 4)] {
            let shape = Shape { sites: 7, own_hooks, policies };
            for (form, name) in FORMS {
                let asked = Mapped::new(&form::row(form, shape, 1)).run(0);
                assert_eq!(asked, 7 * policies as u64, "{name}, {shape:?}");
            }
        }
    }

    fn point_of(sites: usize, policies: usize, site: f64) -> Point {
        let spread = |value| Spread { median: value, low: value, high: value };
        let mut cycles = [spread(100.0); FORMS.len()].to_vec();
        let mut ratios = [spread(1.0); FORMS.len()].to_vec();
        cycles[FORMS.len() - 1] = spread(site * 100.0);
        ratios[FORMS.len() - 1] = spread(site);
        Point { shape: Shape { sites, own_hooks: false, policies }, cycles, ratios }
    }

    #[test]
    fn each_claim_can_fail() {
        let judge = |one, four, many| {
            let points = [point_of(HOT, 1, one), point_of(HOT, 4, four), point_of(MANY, 2, many)];
            judge(&points).into_iter().map(|(_, met)| met).collect::<Vec<_>>()
        };
        assert_eq!(judge(0.1, 0.1, 1.0), [true; 3]);
        assert_eq!(judge(0.12, 0.18, 1.2), [false; 3]);
    }

    #[test]
    fn reports_have_every_form() {
        let points = [point_of(HOT, 1, 0.1)];
        let (text, json) = (table(&points), object(&points, &judge(&points)));
        for (_, form) in FORMS {
            assert!(text.contains(form) && json["points"][0]["forms"][form].is_object(), "{form}");
        }
    }
}
