//! `limen trace FILE`: what a trace says, in a screenful.

use std::collections::BTreeMap;

use serde_json::Value;

use super::perfetto::CPUS;

/// Rows of each table.
const SHOWN: usize = 10;
/// Kinds in the order of the first table.
const KINDS: [&str; 6] = ["user", "call", "exception", "interrupt", "kernel", "idle"];

/// How often something was, and for how long.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    total_us: f64,
    longest_us: f64,
}

impl Sum {
    fn add(&mut self, us: f64) {
        self.count += 1;
        self.total_us += us;
        self.longest_us = self.longest_us.max(us);
    }
}

/// The text; `None` if this is no trace of ours.
pub(super) fn of(trace: &Value) -> Option<String> {
    let events = trace["traceEvents"].as_array()?;
    let slices = |of_cpus: bool| {
        let is_one = move |event: &&Value| event["ph"] == "X" && (event["pid"] == CPUS) == of_cpus;
        events.iter().filter(is_one)
    };
    slices(true).next()?;
    let us = |event: &Value| event["dur"].as_f64().unwrap_or(0.0);
    let mut kinds: BTreeMap<(u64, &str), f64> = BTreeMap::new();
    for event in slices(true) {
        let key = (event["tid"].as_u64()?, event["cat"].as_str()?);
        *kinds.entry(key).or_default() += us(event);
    }
    let mut visits: BTreeMap<(&str, &str), Sum> = BTreeMap::new();
    for event in slices(false) {
        let key = (event["cat"].as_str()?, event["name"].as_str()?);
        visits.entry(key).or_default().add(us(event));
    }
    let mut text = by_kind(&kinds);
    let row = |((kind, name), sum): (&(&str, &str), &Sum)| {
        let mean = sum.total_us / sum.count.max(1) as f64;
        let Sum { count, total_us, longest_us } = sum;
        format!(
            "{name:<24} {kind:<10} {count:>8} {total_us:>14.1} {mean:>12.2} {longest_us:>12.1}\n"
        )
    };
    let mut longest: Vec<_> = visits.iter().collect();
    longest.sort_by(|a, b| b.1.total_us.total_cmp(&a.1.total_us));
    text += "\nWhat threads were in, waiting included (microseconds)\n";
    text += &format!(
        "{:<24} {:<10} {:>8} {:>14} {:>12} {:>12}\n",
        "", "", "count", "total", "mean", "longest"
    );
    longest.iter().take(SHOWN).for_each(|entry| text += &row(*entry));
    text += &flows(events);
    Some(text)
}

/// Time of each CPU by kind, in milliseconds.
fn by_kind(kinds: &BTreeMap<(u64, &str), f64>) -> String {
    let mut text = "Time by kind (milliseconds)\n       ".to_owned();
    KINDS.iter().for_each(|kind| text += &format!(" {kind:>10}"));
    text += "\n";
    let mut cpus: Vec<u64> = kinds.keys().map(|(cpu, _)| *cpu).collect();
    cpus.dedup();
    for cpu in cpus {
        text += &format!("CPU {cpu:<3}");
        for kind in KINDS {
            let us = kinds.get(&(cpu, kind)).copied().unwrap_or(0.0);
            text += &format!(" {:>10.3}", us / 1e3);
        }
        text += "\n";
    }
    text
}

/// From sending to receiving, and from deferring to catching up.
fn flows(events: &[Value]) -> String {
    let mut begun: BTreeMap<u64, f64> = BTreeMap::new();
    let mut sums: BTreeMap<(&str, &str), Sum> = BTreeMap::new();
    for event in events {
        let (Some(id), Some(at)) = (event["id"].as_u64(), event["ts"].as_f64()) else { continue };
        match event["ph"].as_str() {
            Some("s") => {
                begun.insert(id, at);
            }
            Some("f") => {
                let key = (event["cat"].as_str(), event["name"].as_str());
                if let ((Some(cat), Some(name)), Some(from)) = (key, begun.get(&id)) {
                    sums.entry((cat, name)).or_default().add(at - from);
                }
            }
            _ => {}
        }
    }
    if sums.is_empty() {
        return String::new();
    }
    let mut text = "\nBetween CPUs (microseconds from sent to received, from deferred to caught \
                    up)\n"
        .to_owned();
    for ((cat, name), sum) in sums {
        let mean = sum.total_us / sum.count.max(1) as f64;
        let what = if cat == "ipi" { "sent" } else { "deferred" };
        let (count, longest) = (sum.count, sum.longest_us);
        text += &format!("{name:<24} {what:<10} {count:>8} {mean:>12.2} {longest:>12.1}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Names;
    use super::super::timeline::Timeline;
    use super::super::timeline::tests::event;
    use super::*;
    use formats::control::Phase;

    #[test]
    fn calls_are_added_up() {
        let mut events = vec![event(0, 0, Phase::Instant, "switch", 7)];
        for turn in 0..4 {
            let at = 1_000_000 * (turn + 1);
            events.push(event(0, at, Phase::Begin, "read", 0));
            events.push(event(0, at + 250_000, Phase::End, "-", 0));
        }
        let trace = super::super::perfetto::trace(&Timeline::of(&events), &Names::new());
        let text = of(&trace).expect("a trace");
        let row = text.lines().find(|line| line.starts_with("read ")).expect("a row");
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words, ["read", "call", "4", "1000.0", "250.00", "250.0"]);
        let row = text.lines().find(|line| line.starts_with("CPU 0")).expect("a row");
        assert!(row.split_whitespace().any(|word| word == "2.250"), "{row}");
        assert!(of(&serde_json::json!({ "traceEvents": [] })).is_none());
    }
}
