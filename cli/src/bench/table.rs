//! What the bench prints: one line per figure, Limen's beside Linux's, and the ratio to the goal.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::kernel::{Column, Results};

/// A figure, its unit and the most that it may be of Linux's.
struct Row {
    name: &'static str,
    unit: &'static str,
    goal: f64,
}

const fn row(name: &'static str, goal: f64) -> Row {
    Row { name, unit: "instructions", goal }
}

/// In the order of the table.
const ROWS: [Row; 26] = [
    row("getpid", 0.35),
    row("unknown_syscall", 0.6),
    row("read_zero_1", 0.6),
    row("write_null_1", 0.6),
    row("read_file_1", 0.6),
    row("write_file_1", 0.6),
    row("stat", 0.6),
    row("open_close", 0.6),
    row("pipe_write_read_1", 0.4),
    row("pipe_write_read_512", 0.4),
    row("eventfd_write_read", 0.4),
    row("eventfd_close", 0.6),
    row("socketpair_close", 0.6),
    row("mmap_touch_munmap", 0.6),
    row("page_fault", 0.6),
    row("fork_exit_wait_500_pages", 0.6),
    row("fork_exec_wait", 0.6),
    row("pipe_round_trip_2_processes", 0.6),
    row("sched_yield", 0.6),
    row("futex_wake_none", 0.6),
    row("futex_wake_sleeper", 0.6),
    row("futex_wake_sleeper_runs", 0.6),
    row("signal_delivery_return", 0.6),
    row("boot_ticks", 0.05),
    Row { name: "idle_memory_bytes", unit: "bytes", goal: 0.6 },
    Row { name: "boot_wall_us", unit: "us", goal: 0.1 },
];

/// Names of the rows that are operations of the kernel.
pub(super) fn operations() -> impl Iterator<Item = &'static str> {
    let counted = |row: &&Row| row.unit == "instructions" && row.name != "boot_ticks";
    ROWS.iter().filter(counted).map(|row| row.name)
}

type Figures = BTreeMap<String, u64>;

fn figure(column: Option<&Column>, name: &str) -> Option<u64> {
    column.and_then(|column| column.figures.get(name)).copied()
}

/// Limen's share of Linux's, where both are known.
fn ratio(limen: Option<u64>, linux: Option<u64>) -> Option<f64> {
    Some(limen? as f64 / linux.filter(|&value| value > 0)? as f64)
}

/// For people.
pub(super) fn text(results: &Results) -> String {
    let (linux, off) = (results.linux.as_ref(), results.linux_off.as_ref());
    let head = ["", "Limen", "Limen, off", "Linux", "Linux, off", "ratio", "goal"];
    let mut out = line(&head.map(str::to_owned), "");
    for row in &ROWS {
        let limen = figure(Some(&results.limen), row.name);
        let ratio = ratio(limen, figure(linux, row.name));
        let cells = [
            row.name.to_owned(),
            cell(limen),
            cell(figure(results.limen_off.as_ref(), row.name)),
            cell(figure(linux, row.name)),
            cell(figure(off, row.name)),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            format!("{:.2}", row.goal),
        ];
        let over = if ratio.is_some_and(|ratio| ratio > row.goal) { "  over" } else { "" };
        let mark = [Some(&results.limen), linux].map(|column| bimodal(column, row.name)).concat();
        out += &line(&cells, &format!("{over}{mark}"));
    }
    out += &format!(
        "Guest instructions (medians) in QEMU, -cpu {}; boot_wall_us is host time.\n",
        results.cpu
    );
    out += "off: mitigations=off; for Limen also randomize_kstack_offset=off.\n";
    match linux {
        Some(linux) => out += &format!("Linux: {} by PVH.\n", linux.kernel),
        None => out += "Linux was not measured.\n",
    }
    out
}

/// Says so if a column's samples lie around two values, and the other one.
fn bimodal(column: Option<&Column>, name: &str) -> String {
    let other = figure(column, &format!("bimodal_{name}"));
    let kernel = column.map_or("", |column| &column.kernel);
    other.map_or(String::new(), |other| format!("  bimodal on {kernel}: also {other}"))
}

fn line(cells: &[String; 7], mark: &str) -> String {
    let [name, limen, limen_off, linux, linux_off, ratio, goal] = cells;
    let limen = format!("{limen:>12}{limen_off:>12}");
    format!("{name:<28}{limen}{linux:>14}{linux_off:>14}{ratio:>8}{goal:>6}{mark}\n")
}

fn cell(value: Option<u64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// For programs.
pub(super) fn json(results: &Results) -> Value {
    let (linux, off) = (results.linux.as_ref(), results.linux_off.as_ref());
    let rows = ROWS.iter().map(|row| {
        let (limen, linux) = (figure(Some(&results.limen), row.name), figure(linux, row.name));
        json!({
            "name": row.name, "unit": row.unit, "goal": row.goal, "limen": limen,
            "limen_other_mode": figure(Some(&results.limen), &format!("bimodal_{}", row.name)),
            "limen_off": figure(results.limen_off.as_ref(), row.name),
            "linux": linux, "linux_off": figure(off, row.name), "ratio": ratio(limen, linux),
        })
    });
    json!({
        "cpu": results.cpu,
        "hash": format!("{:016x}", hash(&results.limen.figures)),
        "linux": linux.map(|linux| &linux.kernel),
        "rows": rows.collect::<Vec<_>>(),
    })
}

fn hash(figures: &Figures) -> u64 {
    figures.get("hash").copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(getpid: u64) -> Column {
        let figures = [("getpid".to_owned(), getpid)].into();
        Column { kernel: "k".to_owned(), figures }
    }

    #[test]
    fn a_line_above_its_goal_is_marked() {
        let mut results = Results {
            cpu: "EPYC".to_owned(),
            limen: column(100),
            limen_off: None,
            linux: Some(column(300)),
            linux_off: None,
        };
        let getpid = |results: &Results| {
            let text = text(results);
            text.lines().find(|line| line.starts_with("getpid")).map(str::to_owned)
        };
        assert!(getpid(&results).is_some_and(|line| line.contains("0.333")));
        assert!(getpid(&results).is_some_and(|line| !line.ends_with("over")));
        results.limen = column(200);
        assert!(getpid(&results).is_some_and(|line| line.ends_with("over")));
        results.limen.figures.insert("bimodal_getpid".to_owned(), 50);
        assert!(getpid(&results).is_some_and(|line| line.ends_with("bimodal on k: also 50")));
        assert_eq!(json(&results)["rows"][0]["limen"], 200);
    }
}
