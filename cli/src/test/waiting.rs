//! Nobody waits in silence: a bench names its steps as they begin, and says how many there are.
//! Part of the run level.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Context;
use super::run::ensure;
use crate::Error;

/// Benches in their smallest form; those that build kernels of their own take minutes.
const BENCHES: [&[&str]; 6] = [
    &["kernel"],
    &["entry"],
    &["cfi-kernel"],
    &["calls"],
    &["growth", "--rows", "boot"],
    &["ipi", "--only", "off"],
];

pub(super) fn bench_steps(context: &Context, folder: &Path) -> Result<(), Error> {
    for words in BENCHES {
        let mut command = Command::new(&context.limen);
        command.arg("bench").args(words).args(["--tiny", "--no-linux"]);
        let output = command.current_dir(folder).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let all = || format!("bench {words:?}: {}: {said}", output.status);
        // 1: something costs more than it may, which is not what is asked here.
        ensure(matches!(output.status.code(), Some(0 | 1)), all)?;
        let steps: Vec<(usize, usize)> = said.lines().filter_map(step).collect();
        let in_order = steps.iter().enumerate().all(|(at, step)| *step == (at + 1, steps.len()));
        ensure(!steps.is_empty() && in_order, || format!("{steps:?}: {}", all()))?;
    }
    Ok(())
}

/// `limen: WHAT (N of M)`.
fn step(line: &str) -> Option<(usize, usize)> {
    let (_, count) = line.strip_prefix("limen: ")?.strip_suffix(')')?.rsplit_once(" (")?;
    let (number, of) = count.split_once(" of ")?;
    Some((number.parse().ok()?, of.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_from_other_lines() {
        assert_eq!(step("limen: Limen pti=on (2 of 3)"), Some((2, 3)));
        assert_eq!(step("limen: without Linux: none (try 2 of them)"), None);
    }
}
