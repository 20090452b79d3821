//! `limen bench lsm`: what security hooks cost, in guest instructions, with no to four policies.
//!
//! The same kernel in three builds: hooks as patched direct calls (what ships), hooks as lists of
//! pointers that are walked through checks and thunks (the form that they replace), and none. The
//! policies answer every hook and allow everything, so what is measured is the asking. Instructions
//! are blind to what an indirect branch waits for; natively that is most of it.
//!
//! Neighbours: `kernel.rs` runs the operations, `machine/src/text/static_call.rs` has the three
//! forms.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::kernel::Bench;
use super::table;
use crate::args::BenchArgs;
use crate::{Error, image, paths, toolchain};

/// Most policies that are asked.
const POLICIES_MAX: usize = 4;
/// Most that hooks with all policies may cost over none, geometric mean of the operations.
const MEAN_MAX: f64 = 1.03;

/// A form of the hooks: its name, and the features of its build.
const FORMS: [(&str, &str); 3] = [
    ("none", "hooks-bench,hooks-none"),
    ("list", "hooks-bench,hooks-list"),
    ("direct", "hooks-bench"),
];
const NONE: usize = 0;
const LIST: usize = 1;
const DIRECT: usize = 2;

/// Instructions of each operation: by form, then by the number of policies.
struct Operation {
    name: &'static str,
    by_form: Vec<Vec<u64>>,
}

impl Operation {
    fn value(&self, form: usize, policies: usize) -> f64 {
        let of = &self.by_form[form];
        of[policies.min(of.len() - 1)] as f64
    }
}

/// Measures and prints. Status 1 if hooks cost more than they may, or more than lists.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let mut columns = Vec::new();
    for (form, (name, features)) in FORMS.into_iter().enumerate() {
        eprintln!("limen: building the kernel with hooks as: {name}");
        let kernel = build(name, features)?;
        let mut bench = Bench::new(&BenchArgs { kernel: Some(kernel), ..args.clone() })?;
        let numbers = if form == NONE { 0..=0 } else { 0..=POLICIES_MAX };
        let mut of_form = Vec::new();
        for policies in numbers {
            eprintln!("limen: {name}, {policies} policies");
            let names: Vec<String> = (1..=policies).map(|n| format!("allow{n}")).collect();
            of_form.push(bench.limen_with(&format!("lsm={}", names.join(",")))?.0.figures);
        }
        columns.push(of_form);
    }
    let operations = operations(&columns);
    let over_none = mean(&operations, |of| of.value(DIRECT, POLICIES_MAX) / of.value(NONE, 0));
    let over_list =
        mean(&operations, |of| of.value(DIRECT, POLICIES_MAX) / of.value(LIST, POLICIES_MAX));
    let met = over_none <= MEAN_MAX && over_list <= 1.0;
    if args.json {
        println!("{:#}", object(&operations, over_none, over_list, met));
    } else {
        print!("{}", text(&operations));
        println!("reach: four policies over no hooks {over_none:.4}, at most {MEAN_MAX}");
        println!("reach: four policies over lists of pointers {over_list:.4}, at most 1");
        println!("{}", if met { "met" } else { "NOT MET" });
    }
    Ok(u8::from(!met))
}

/// Builds a form in a target folder of its own.
fn build(name: &str, features: &str) -> Result<PathBuf, Error> {
    let target = paths::target_dir()?.join("hooks").join(name);
    let mut cargo = toolchain::cargo(&paths::repository()?)?;
    cargo.arg("build").args(image::CARGO_FLAGS).args(["--quiet", "--features", features]);
    if !cargo.arg("--target-dir").arg(&target).status()?.success() {
        return Err(format!("the kernel with {features} does not build").into());
    }
    let built = target.join("x86_64-unknown-none/release/limen-kernel");
    image::finish(&built)?;
    Ok(built)
}

type Figures = std::collections::BTreeMap<String, u64>;

fn operations(columns: &[Vec<Figures>]) -> Vec<Operation> {
    let of = |name: &'static str| {
        let form = |figures: &Vec<Figures>| -> Option<Vec<u64>> {
            figures.iter().map(|figures| figures.get(name).copied()).collect()
        };
        Some(Operation { name, by_form: columns.iter().map(form).collect::<Option<_>>()? })
    };
    table::operations().filter_map(of).collect()
}

fn mean(operations: &[Operation], ratio: impl Fn(&Operation) -> f64) -> f64 {
    let logs: f64 = operations.iter().map(|of| ratio(of).ln()).sum();
    (logs / operations.len().max(1) as f64).exp()
}

fn text(operations: &[Operation]) -> String {
    let mut out = format!("{:<30}{:>9}", "guest instructions", "none");
    for form in [LIST, DIRECT] {
        (0..=POLICIES_MAX).for_each(|n| _ = write!(out, "{:>9}", format!("{} {n}", FORMS[form].0)));
    }
    out += "  direct/none  direct/list\n";
    for of in operations {
        _ = write!(out, "{:<30}{:>9}", of.name, of.value(NONE, 0));
        for form in [LIST, DIRECT] {
            (0..=POLICIES_MAX).for_each(|n| _ = write!(out, "{:>9}", of.value(form, n)));
        }
        let most = of.value(DIRECT, POLICIES_MAX);
        let (none, list) = (most / of.value(NONE, 0), most / of.value(LIST, POLICIES_MAX));
        _ = writeln!(out, "{none:>13.3}{list:>13.3}");
    }
    out
}

fn object(operations: &[Operation], over_none: f64, over_list: f64, met: bool) -> Value {
    let row = |of: &Operation| json!({ "name": of.name, "instructions": of.by_form });
    json!({
        "bench": "lsm",
        "forms": FORMS.map(|form| form.0),
        "rows": operations.iter().map(row).collect::<Vec<_>>(),
        "direct_over_none": over_none,
        "direct_over_list": over_list,
        "met": met,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_rows() {
        let row = |name, none, list: u64, direct: u64| Operation {
            name,
            by_form: vec![vec![none], (0..5).map(|n| list + n).collect(), vec![direct; 5]],
        };
        let operations = [row("a", 100, 100, 100), row("b", 100, 200, 121)];
        let over = mean(&operations, |of| of.value(DIRECT, 4) / of.value(NONE, 0));
        assert!((over - 1.1).abs() < 1e-9);
        let table = text(&operations);
        assert!(table.contains("1.210") && table.contains("204"), "{table}");
    }
}
