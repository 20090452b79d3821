//! `limen bench lsm`: what security hooks cost, with no to four policies, and with all that ship.
//!
//! The same kernel in three builds: hooks as patched direct calls (what ships), hooks as lists of
//! pointers that are walked through checks and thunks (the form that they replace), and none. The
//! test policies answer every hook and allow everything, so what is measured is the asking.
//! Instructions are blind to what an indirect branch waits for; natively that is most of it, so the
//! forms are timed in ring 3, too (`guest/bench/hooks`).
//!
//! Neighbours: `unix.rs` has the workloads of a classic suite, `native.rs` what ring 3 says,
//! `kernel.rs` runs the operations, `machine/src/text/static_call.rs` has the three forms.

mod native;
mod unix;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::kernel::Bench;
use super::machine::Figures;
use super::table;
use crate::args::BenchArgs;
use crate::image::Form;
use crate::progress::Steps;
use crate::{Error, paths, profile};

/// Most policies that are asked.
const POLICIES_MAX: usize = 4;
/// Most that hooks with all policies may cost over none, geometric mean of the operations.
const MEAN_MAX: f64 = 1.03;
/// Most that hooks may cost that nobody answers: a nop each.
const IDLE_MAX: f64 = 1.01;
/// The program that times the forms natively.
const NATIVE: &str = "limen-bench-hooks";
/// A profile that allows everything that profiles decide.
const EVERYTHING: &str = "[paths]\nread = [\"/**\"]\nwrite = [\"/**\"]\nexecute = [\"/**\"]\n";

/// The forms of the hooks.
const FORMS: [Form; 3] = [
    Form { name: "none", features: "hooks-bench,hooks-none", is_as_shipped: true },
    Form { name: "list", features: "hooks-bench,hooks-list,large-tables", is_as_shipped: true },
    Form { name: "direct", features: "hooks-bench", is_as_shipped: true },
];
const NONE: usize = 0;
const LIST: usize = 1;
const DIRECT: usize = 2;
/// Among the columns of [`DIRECT`]: the policies that ship.
const ALL: usize = POLICIES_MAX + 1;

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
    let mut kernels = Vec::new();
    // Each form but the first has a run for each number of policies; one is with all of them.
    let runs = 1 + (FORMS.len() - 1) * (POLICIES_MAX + 1) + 1;
    let mut steps = Steps::of(FORMS.len() + runs + unix::RUNS + 1);
    for form in FORMS {
        steps.begin(&format!("building the kernel with hooks as: {}", form.name));
        kernels.push(form.build(&paths::repository()?, &paths::target_dir()?)?);
    }
    let with = |kernel: &PathBuf| BenchArgs { kernel: Some(kernel.clone()), ..args.clone() };
    let mut columns = Vec::new();
    for (form, kernel) in kernels.iter().enumerate() {
        let mut bench = Bench::new(&with(kernel))?;
        let numbers = if form == NONE { 0..=0 } else { 0..=POLICIES_MAX };
        let mut of_form = Vec::new();
        for policies in numbers {
            steps.begin(&format!("{}, {policies} policies", FORMS[form].name));
            of_form.push(bench.limen_with(&format!("lsm={}", names(policies)))?.0.figures);
        }
        if form == DIRECT {
            steps.begin(&format!("{}, all policies", FORMS[form].name));
            let everything = profile::compiled("everything.toml", EVERYTHING)?;
            of_form.push(bench.limen_with_all_policies(&everything)?);
        }
        columns.push(of_form);
    }
    let operations = operations(&columns);
    let suite = unix::measure(args, &kernels, &mut steps)?;
    let reach = judge(&operations, &suite);
    let mut native = Command::new(super::build(NATIVE)?);
    native.args(args.tiny.then_some("--tiny"));
    steps.begin("natively, on this host");
    let met = reach.iter().all(|(_, met)| *met);
    let output = native.arg("--json").stderr(Stdio::inherit()).output()?;
    let native: Value = serde_json::from_slice(&output.stdout)?;
    let saved = native::saved_cycles(&native, unix::POLICIES);
    if args.json {
        tell!("{:#}", object(&operations, &suite, &reach, &native));
    } else {
        tell!("{}\n{}", text(&operations), unix::text(&suite, saved));
        for (claim, met) in &reach {
            tell!("reach: {claim} ... {}", if *met { "met" } else { "NOT MET" });
        }
        tell!("\n{}", native::text(&native));
    }
    Ok(u8::from(!met || !output.status.success()))
}

/// So many of the test policies, as `lsm=` names them.
fn names(policies: usize) -> String {
    let names: Vec<String> = (1..=policies).map(|n| format!("allow{n}")).collect();
    names.join(",")
}

/// What must hold, and whether it does.
fn judge(operations: &[Operation], suite: &[unix::Row]) -> Vec<(String, bool)> {
    let over = |policies, form, others| {
        mean(operations, |of| of.value(DIRECT, policies) / of.value(form, others))
    };
    let all = over(ALL, NONE, 0);
    let four = over(POLICIES_MAX, LIST, POLICIES_MAX);
    let idle = over(0, NONE, 0);
    let mut lines = vec![
        (format!("all policies that ship over no hooks {all:.4}, at most {MEAN_MAX}"), {
            all <= MEAN_MAX
        }),
        (format!("four policies on every hook over lists of pointers {four:.4}, at most 1"), {
            four <= 1.0
        }),
        (format!("no policy over no hooks {idle:.4}, at most {IDLE_MAX}"), idle <= IDLE_MAX),
    ];
    lines.extend(suite.iter().filter_map(unix::Row::judge));
    lines
}

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
        (0..=POLICIES_MAX)
            .for_each(|n| _ = write!(out, "{:>9}", format!("{} {n}", FORMS[form].name)));
    }
    out += "     all  4/none  4/list all/none\n";
    for of in operations {
        _ = write!(out, "{:<30}{:>9}", of.name, of.value(NONE, 0));
        for form in [LIST, DIRECT] {
            (0..=POLICIES_MAX).for_each(|n| _ = write!(out, "{:>9}", of.value(form, n)));
        }
        let most = of.value(DIRECT, POLICIES_MAX);
        let (none, list) = (most / of.value(NONE, 0), most / of.value(LIST, POLICIES_MAX));
        let all = of.value(DIRECT, ALL);
        let over = all / of.value(NONE, 0);
        _ = writeln!(out, "{all:>8}{none:>8.3}{list:>8.3}{over:>9.3}");
    }
    out
}

fn object(
    operations: &[Operation],
    suite: &[unix::Row],
    reach: &[(String, bool)],
    native: &Value,
) -> Value {
    let row = |of: &Operation| json!({ "name": of.name, "instructions": of.by_form });
    let claim = |(claim, met): &(String, bool)| json!({ "claim": claim, "met": met });
    json!({
        "bench": "lsm",
        "forms": FORMS.map(|form| form.name),
        "rows": operations.iter().map(row).collect::<Vec<_>>(),
        "suite": suite.iter().map(unix::Row::object).collect::<Vec<_>>(),
        "native": native,
        "reach": reach.iter().map(claim).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_rows() {
        let row = |name, none, list: u64, direct: u64| Operation {
            name,
            by_form: vec![vec![none], (0..5).map(|n| list + n).collect(), vec![direct; 6]],
        };
        let operations = [row("a", 100, 100, 100), row("b", 100, 200, 121)];
        let over = mean(&operations, |of| of.value(DIRECT, 4) / of.value(NONE, 0));
        assert!((over - 1.1).abs() < 1e-9);
        let table = text(&operations);
        assert!(table.contains("1.210") && table.contains("204"), "{table}");
        let met = judge(&operations, &[]).into_iter().map(|(_, met)| met).collect::<Vec<_>>();
        assert_eq!(met, [false, true, false]);
    }
}
