//! The system rows of byte-UnixBench on the three builds: what the source's table shows.
//!
//! Linux's change from lists to static calls was judged by that suite, with two policies on: so are
//! these, beside what the change gained there. Its gains were time, of which most is what a
//! retpoline waits; these are instructions, of which a retpoline is few. So each row also says how
//! many hooks a round asks, which `guest/bench/hooks` prices natively.
//!
//! Neighbours: `guest/bench/unix` is the program, `mod.rs` builds the kernels.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::{DIRECT, LIST, NONE, names};
use crate::Error;
use crate::args::BenchArgs;
use crate::bench::kernel::MEMORY_MIB;
use crate::bench::machine::{Extra, Figures, Machine, Work};
use crate::bench::rig::Clock;
use crate::progress::Steps;

const PACKAGE: &str = "limen-bench-unix";
/// The shell and the tools of the shell row.
const BUSYBOX: &str = "/bin/busybox";
/// Policies that are asked, as in the source: SELinux and BPF there.
pub(super) const POLICIES: usize = 2;
/// No counted run takes that long, even on a loaded host.
const LIMIT: Duration = Duration::from_secs(600);

/// The program's rows, what the suite calls them, and what the source gained, in percent.
const ROWS: [(&str, &str, Option<f64>); 8] = [
    ("execl", "Execl Throughput", Some(1.9356)),
    ("file_write_1024_2000", "File Write 1024 bufsize 2000 maxblocks", Some(6.5953)),
    ("file_copy_1024_2000", "File Copy 1024 bufsize 2000 maxblocks", None),
    ("pipe", "Pipe Throughput", Some(9.5499)),
    ("pipe_context_switch", "Pipe-based Context Switching", Some(3.0209)),
    ("process_creation", "Process Creation", Some(2.3246)),
    ("shell_1", "Shell Scripts (1 concurrent)", Some(1.4975)),
    ("syscall", "System Call Overhead", Some(2.7815)),
];

/// A row's figures.
pub(super) struct Row {
    title: &'static str,
    source_percent: Option<f64>,
    /// Guest instructions per round: by form, the last with [`POLICIES`].
    by_form: [u64; 3],
    /// Hooks that a round asks.
    hooks: u64,
}

impl Row {
    fn over_list_percent(&self) -> f64 {
        (self.by_form[LIST] as f64 / self.by_form[DIRECT] as f64 - 1.0) * 100.0
    }

    /// What a round gains where its hooks take so many cycles less and every instruction one: an
    /// estimate, for the kernel cannot run natively here.
    fn natively_percent(&self, saved: f64) -> f64 {
        let direct = self.by_form[DIRECT] as f64;
        self.hooks as f64 * saved / direct * 100.0
    }

    /// The claim about the row: direct calls take no more instructions than lists.
    pub(super) fn judge(&self) -> Option<(String, bool)> {
        let gain = self.over_list_percent();
        let claim = format!("{}: {gain:+.2} % over lists, at least 0", self.title);
        (self.hooks > 0).then_some((claim, gain >= 0.0))
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "name": self.title,
            "instructions": { "none": self.by_form[NONE], "list": self.by_form[LIST],
                "direct": self.by_form[DIRECT] },
            "policies": POLICIES,
            "hooks": self.hooks,
            "over_list_percent": self.over_list_percent(),
            "source_percent": self.source_percent,
        })
    }
}

/// How many runs [`measure`] takes.
pub(super) const RUNS: usize = 4;

/// Runs the suite on each kernel, and once to count the hooks.
pub(super) fn measure(
    args: &BenchArgs,
    kernels: &[PathBuf],
    steps: &mut Steps,
) -> Result<Vec<Row>, Error> {
    let program = std::fs::read(crate::bench::build(PACKAGE)?)?;
    let busybox = std::fs::read(BUSYBOX).map_err(|error| {
        format!("{BUSYBOX}: {error}; the shell row needs the package busybox-static")
    })?;
    let mut run = |form: usize, lsm: &str, word: &str| -> Result<Figures, Error> {
        let args = BenchArgs { kernel: kernels.get(form).cloned(), ..args.clone() };
        let mut machine = Machine::new(&args, MEMORY_MIB, LIMIT)?;
        machine.append = format!("lsm={lsm}");
        let words: Vec<&str> = [word, if args.tiny { "--tiny" } else { "" }]
            .into_iter()
            .filter(|w| !w.is_empty())
            .collect();
        let extra = Extra { tool: Some(("bin/busybox", &busybox)), ..Extra::default() };
        let work = Work { program: &program, words: &words, extra };
        steps.begin(&format!("workloads, lsm={lsm}"));
        Ok(machine.limen(&work, Clock::Counted)?.figures())
    };
    let two = names(POLICIES);
    let columns = [run(NONE, "", "")?, run(LIST, &two, "")?, run(DIRECT, &two, "")?];
    let hooks = run(DIRECT, "tally", "--hooks")?;
    let row = |&(name, title, source_percent): &(&str, &'static str, _)| {
        let value =
            |of: &Figures| of.get(name).copied().ok_or_else(|| format!("no figure for {name}"));
        let by_form = [value(&columns[NONE])?, value(&columns[LIST])?, value(&columns[DIRECT])?];
        Ok(Row { title, source_percent, by_form, hooks: value(&hooks)? })
    };
    ROWS.iter().map(row).collect()
}

/// A gain as a part of the source's.
fn part(gain: f64, source: Option<f64>) -> String {
    source.map_or_else(|| "-".to_owned(), |source| format!("{:.2}", gain / source))
}

/// For people; `saved`: core cycles that a hook with [`POLICIES`] takes less, by `native.rs`.
pub(super) fn text(rows: &[Row], saved: Option<f64>) -> String {
    let mut out = format!(
        "{:<40}{:>10}{:>10}{:>10}{:>7}{:>12}{:>12}{:>8}{:>12}{:>8}\n",
        "instructions per round, 2 policies",
        "none",
        "list",
        "direct",
        "hooks",
        "over list",
        "source",
        "part",
        "natively",
        "part"
    );
    for row in rows {
        let [none, list, direct] = row.by_form;
        _ = write!(out, "{:<40}{none:>10}{list:>10}{direct:>10}{:>7}", row.title, row.hooks);
        _ = write!(out, "{:>+10.2} %", row.over_list_percent());
        match row.source_percent {
            Some(percent) => _ = write!(out, "{percent:>+10.2} %"),
            None => _ = write!(out, "{:>12}", "-"),
        }
        _ = write!(out, "{:>8}", part(row.over_list_percent(), row.source_percent));
        let natively = saved.map_or(f64::NAN, |saved| row.natively_percent(saved));
        _ = writeln!(out, "{natively:>+10.2} %{:>8}", part(natively, row.source_percent));
    }
    let saved = saved.unwrap_or(f64::NAN);
    _ = writeln!(
        out,
        "over list: instructions; part: of what the source gained in time; natively: what \
         {saved:.1} core cycles saved\nper hook in ring 3 (list+thunk, {POLICIES} policies, hot) \
         come to where each instruction takes one cycle."
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_gain_and_lose() {
        let row = |list, direct| Row {
            title: "a row",
            source_percent: Some(2.0),
            by_form: [90, list, direct],
            hooks: 3,
        };
        let gains = row(110, 100);
        assert!(gains.judge().is_some_and(|(text, met)| met && text.contains("+10.00 %")));
        assert!(row(99, 100).judge().is_some_and(|(_, met)| !met));
        let text = text(&[gains], Some(10.0));
        // A tenth in instructions, five times the source's; 3 hooks of 10 cycles are 30 of 100.
        for cell in ["+2.00 %", "+10.00 %", " 5.00 ", "+30.00 %", "15.00"] {
            assert!(text.contains(cell), "{cell}: {text}");
        }
    }
}
