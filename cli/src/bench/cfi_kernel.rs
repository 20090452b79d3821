//! `limen bench cfi-kernel`: what kCFI costs the kernel itself, in guest instructions.
//!
//! The operations of `bench kernel`, with the checks off, as compiled, and optimised, on one image:
//! the boot pass makes the difference. Instructions are blind to what the optimised form is for
//! (a branch not taken), which `bench cfi` measures natively; they are a guard against growth.
//! The boot pass itself is counted by the kernel (`cfi=debug`): in a counted run a cycle of the
//! time-stamp counter is an instruction.
//!
//! Neighbours: `kernel.rs` runs, `rig.rs` counts.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::kernel::{Bench, Column};
use super::table;
use crate::Error;
use crate::args::BenchArgs;
use crate::progress::Steps;

/// What is asked of the kernel; the first is what the others are compared with.
const MODES: [&str; 4] = ["cfi=off", "cfi=kcfi", "cfi=opt", "cfi=opt,norand"];
const OFF: usize = 0;
const OPT: usize = 2;
/// Most that the optimised form may cost, as a ratio to none, geometric mean over all operations.
const MEAN_MAX: f64 = 1.02;
/// Most instructions of the boot pass.
const PASS_MAX: u64 = 2_000_000;

/// One mode's figures.
struct Mode {
    column: Column,
    /// Instructions of the boot pass.
    pass: u64,
}

/// Measures and prints. Status 1 if the kernel is dearer than it may be.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let mut bench = Bench::new(args)?;
    let mut modes = Vec::new();
    let mut steps = Steps::of(MODES.len());
    for mode in MODES {
        steps.begin(mode);
        let (column, log) = bench.limen_with(&format!("{mode},debug"))?;
        let pass = pass_instructions(&log).ok_or("the kernel did not say what its pass costs")?;
        modes.push(Mode { column, pass });
    }
    let operations = operations(&modes);
    let mean = mean(&operations, OPT);
    let passes: Vec<u64> = modes.iter().map(|mode| mode.pass).collect();
    let dearest = passes.iter().copied().max().unwrap_or_default();
    let met = mean <= MEAN_MAX && dearest < PASS_MAX;
    if args.json {
        tell!("{:#}", object(&operations, &passes, met));
    } else {
        crate::out::bytes(text(&operations, &passes).as_bytes());
        tell!("reach: cfi=opt {mean:.4} of cfi=off, geometric mean, at most {MEAN_MAX}");
        tell!("reach: boot pass {dearest} instructions, below {PASS_MAX}");
        tell!("{}", if met { "met" } else { "NOT MET" });
    }
    Ok(u8::from(!met))
}

/// An operation and its instructions in each mode.
type Operation = (&'static str, Vec<u64>);

fn operations(modes: &[Mode]) -> Vec<Operation> {
    let value = |mode: &Mode, name| mode.column.figures.get(name).copied();
    let values = |name| modes.iter().map(|mode| value(mode, name)).collect::<Option<_>>();
    table::operations().filter_map(|name| Some((name, values(name)?))).collect()
}

fn ratio(values: &[u64], mode: usize) -> Option<f64> {
    let (&value, &off) = (values.get(mode)?, values.get(OFF).filter(|&&off| off > 0)?);
    Some(value as f64 / off as f64)
}

/// Geometric mean of a mode's ratios to none. Checks cannot make an operation cheaper, so what is
/// below 1 (a thread that was woken on another path) counts as 1, and does not hide what costs.
fn mean(operations: &[Operation], mode: usize) -> f64 {
    let log = |(_, values): &Operation| Some(ratio(values, mode)?.max(1.0).ln());
    let logs: Vec<f64> = operations.iter().filter_map(log).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

fn text(operations: &[Operation], passes: &[u64]) -> String {
    let mut out = format!("{:<30}", "guest instructions");
    MODES.iter().for_each(|mode| _ = write!(out, "{mode:>16}"));
    out += "   opt/off\n";
    for (name, values) in operations {
        _ = write!(out, "{name:<30}");
        values.iter().for_each(|value| _ = write!(out, "{value:>16}"));
        _ = writeln!(out, "{:>10.3}", ratio(values, OPT).unwrap_or(f64::NAN));
    }
    _ = write!(out, "{:<30}", "boot pass");
    passes.iter().for_each(|pass| _ = write!(out, "{pass:>16}"));
    out + "\n"
}

fn object(operations: &[Operation], passes: &[u64], met: bool) -> Value {
    let row = |(name, values): &Operation| json!({ "name": name, "instructions": values });
    json!({
        "bench": "cfi-kernel",
        "modes": MODES,
        "rows": operations.iter().map(row).collect::<Vec<_>>(),
        "mean_opt": mean(operations, OPT),
        "boot_pass": passes,
        "met": met,
    })
}

/// `CFI: verified N checks and N functions, N stores, N cycles, via X`.
fn pass_instructions(log: &str) -> Option<u64> {
    let line = log.lines().find(|line| line.contains("CFI: verified "))?;
    line.split(", ").find_map(|part| part.strip_suffix(" cycles"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_the_pass_costs() {
        let log = "limen: x\nlimen: CFI: verified 5 checks and 9 functions, 3 stores, 1400 cycles, \
                   via Thunk\n";
        assert_eq!(pass_instructions(log), Some(1400));
        assert_eq!(pass_instructions("limen: CFI: disabled"), None);
    }

    #[test]
    fn means_and_ratios() {
        let operations = vec![("a", vec![100, 100, 104]), ("b", vec![100, 100, 50])];
        assert!((mean(&operations, OPT) - 1.0198).abs() < 1e-4);
        assert!(ratio(&[0, 1, 2], OPT).is_none());
        assert!(text(&operations, &[1, 2, 3]).contains("1.040"));
    }
}
