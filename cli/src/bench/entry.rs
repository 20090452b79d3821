//! `limen bench entry`: what the border costs, in guest instructions.
//!
//! Few operations in many settings: returns by SYSRET and, with `sysret=off`, all by IRET; page
//! tables isolated or not; with `syscall_work=on` every call takes the slow path that tracing
//! takes, with nothing to do there; and with a filter of four instructions. Linux's slow path is
//! that of `audit=1`, which is the work at each call that its own parameter turns on.
//!
//! An instruction is not a cycle: SYSRET and IRET count as one each, and differ by a hundred cycles
//! on CPUs. The table shows what the kernel does around them.
//!
//! Neighbours: `kernel.rs` runs, `rig.rs` counts.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::kernel::{Bench, Column};
use crate::Error;
use crate::args::BenchArgs;
use crate::progress::Steps;

/// Limen's settings; the first two are compared.
const LIMEN: [&str; 6] = [
    "pti=off",
    "pti=off syscall_work=on",
    "pti=off sysret=off",
    "pti=off sysret=off syscall_work=on",
    "pti=on",
    "pti=on syscall_work=on",
];
/// Linux's: as it comes on this CPU, without mitigations, with work at each call, with isolation.
const LINUX: [&str; 4] = ["pti=off", "mitigations=off", "pti=off audit=1", "pti=on"];
/// The operations, as the program calls them.
const ROWS: [&str; 4] =
    ["getpid", "getpid_filtered", "signal_delivery_return", "fork_exit_wait_500_pages"];
/// Most that a call on the slow path may cost, as a ratio to the fast one.
const SLOW_MAX: f64 = 1.3;

/// A setting of a kernel, and its figures in the order of [`ROWS`].
struct Setting {
    name: String,
    values: [Option<u64>; ROWS.len()],
}

/// Measures and prints. Status 1 if the slow path is dearer than it may be.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let mut bench = Bench::for_border(args)?;
    let linux = super::linux_beside(args);
    let mut steps = Steps::of(LIMEN.len() + linux.as_ref().map_or(0, |_| LINUX.len()));
    let mut settings = Vec::new();
    for append in LIMEN {
        steps.begin(&format!("Limen {append}"));
        let (column, _) = bench.limen_with(append)?;
        settings.push(setting(format!("Limen {append}"), &column));
    }
    for (linux, append) in linux.iter().flat_map(|linux| LINUX.map(|append| (linux, append))) {
        steps.begin(&format!("Linux {append}"));
        let column = bench.linux(linux, append)?;
        settings.push(setting(format!("Linux {append}"), &column));
    }
    let slow = slow_ratio(&settings).ok_or("the bench did not say what getpid costs")?;
    let met = slow <= SLOW_MAX;
    if args.json {
        tell!("{:#}", object(&settings, slow));
    } else {
        crate::out::bytes(text(&settings).as_bytes());
        tell!("reach: slow-path getpid {slow:.3} of the fast path, at most {SLOW_MAX}");
        tell!("{}", if met { "met" } else { "NOT MET" });
    }
    Ok(u8::from(!met))
}

fn setting(name: String, column: &Column) -> Setting {
    Setting { name, values: ROWS.map(|row| column.figures.get(row).copied()) }
}

/// Limen's getpid with work at each call, as a ratio to that without.
fn slow_ratio(settings: &[Setting]) -> Option<f64> {
    let getpid = |index: usize| settings.get(index)?.values[0].filter(|&value| value > 0);
    Some(getpid(1)? as f64 / getpid(0)? as f64)
}

fn text(settings: &[Setting]) -> String {
    let mut out = format!("{:<42}", "guest instructions");
    ROWS.iter().for_each(|row| _ = write!(out, "{row:>26}"));
    out.push('\n');
    for setting in settings {
        _ = write!(out, "{:<42}", setting.name);
        for value in setting.values {
            let cell = value.map_or("-".to_owned(), |value| value.to_string());
            _ = write!(out, "{cell:>26}");
        }
        out.push('\n');
    }
    out
}

fn object(settings: &[Setting], slow: f64) -> Value {
    let row =
        |setting: &Setting| json!({ "setting": setting.name, "instructions": setting.values });
    json!({
        "bench": "entry",
        "operations": ROWS,
        "settings": settings.iter().map(row).collect::<Vec<_>>(),
        "slow_ratio": slow,
        "met": slow <= SLOW_MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slow_path_is_compared_with_the_fast_one() {
        let setting = |getpid| Setting { name: "x".to_owned(), values: [getpid, None, None, None] };
        let ratio = slow_ratio(&[setting(Some(100)), setting(Some(125))]);
        assert_eq!(ratio, Some(1.25));
        assert_eq!(slow_ratio(&[setting(Some(0)), setting(Some(1))]), None);
        assert!(text(&[setting(Some(7))]).contains("  7"));
    }
}
