//! A timeline as JSON in the trace event format, which ui.perfetto.dev and Chrome read.
//!
//! Two processes: "CPUs", a track for each with slices that never overlap; and "threads", a track
//! for each with its calls, exceptions and interrupts as it saw them. Flows are arrows between
//! CPUs; a counter for each CPU says how much deferred work waits for it. Times are microseconds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::timeline::Timeline;

/// The processes' numbers.
pub(super) const CPUS: u64 = 0;
pub(super) const THREADS: u64 = 1;

pub(super) fn json(timeline: &Timeline) -> String {
    let mut lines = names(timeline);
    for stay in &timeline.stays {
        let mut line = slice(CPUS, u64::from(stay.cpu), stay.from_ns, stay.to_ns, &stay.name);
        line["cat"] = json!(stay.kind.name());
        line["args"] = json!({ "thread": stay.thread });
        lines.push(line);
    }
    for visit in &timeline.visits {
        let mut line = slice(THREADS, visit.thread, visit.from_ns, visit.to_ns, &visit.name);
        line["cat"] = json!(visit.kind.name());
        lines.push(line);
    }
    for mark in &timeline.marks {
        let args = match mark.name.as_str() {
            "switch" => json!({ "thread": mark.number }),
            "catch-up" => json!({}),
            _ => json!({ "cpu": mark.number }),
        };
        lines.push(json!({
            "ph": "i", "s": "t", "pid": CPUS, "tid": mark.cpu, "ts": us(mark.at_ns),
            "name": mark.name, "cat": "mark", "args": args }));
    }
    for (id, flow) in timeline.flows.iter().enumerate() {
        let cat = if flow.is_deferred { "deferred" } else { "ipi" };
        let end = |ph: &str, (cpu, at_ns): (u8, u64)| {
            json!({ "ph": ph, "id": id, "pid": CPUS, "tid": cpu, "ts": us(at_ns),
                    "name": flow.cause, "cat": cat })
        };
        lines.push(end("s", flow.from));
        let mut to = end("f", flow.to);
        to["bp"] = json!("e");
        lines.push(to);
    }
    lines.extend(waiting(timeline));
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    format!("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn slice(pid: u64, tid: u64, from_ns: u64, to_ns: u64, name: &str) -> Value {
    json!({ "ph": "X", "pid": pid, "tid": tid, "ts": us(from_ns), "dur": us(to_ns - from_ns),
            "name": name })
}

/// What the tracks are called.
fn names(timeline: &Timeline) -> Vec<Value> {
    let name = |kind: &str, pid: u64, tid: u64, name: String| {
        let args = json!({ "name": name });
        json!({ "ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args })
    };
    let of_stays = timeline.stays.iter().map(|stay| stay.cpu);
    let cpus: BTreeSet<u8> = of_stays.chain(timeline.marks.iter().map(|mark| mark.cpu)).collect();
    let threads: BTreeSet<u64> = timeline.visits.iter().map(|visit| visit.thread).collect();
    let mut lines = vec![
        name("process_name", CPUS, 0, "CPUs".to_owned()),
        name("process_name", THREADS, 0, "threads".to_owned()),
    ];
    let of_cpu = |cpu: u8| name("thread_name", CPUS, u64::from(cpu), format!("CPU {cpu}"));
    lines.extend(cpus.into_iter().map(of_cpu));
    let of_thread = |thread| name("thread_name", THREADS, thread, format!("thread {thread}"));
    lines.extend(threads.into_iter().map(of_thread));
    lines
}

/// How much deferred work waits for each CPU.
fn waiting(timeline: &Timeline) -> Vec<Value> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut lines = Vec::new();
    for mark in &timeline.marks {
        let (cpu, count) = match mark.name.as_str() {
            "catch-up" => (u64::from(mark.cpu), 0),
            name if name.contains("-deferred-") => {
                (mark.number, counts.get(&mark.number).copied().unwrap_or(0) + 1)
            }
            _ => continue,
        };
        counts.insert(cpu, count);
        lines.push(json!({ "ph": "C", "pid": CPUS, "ts": us(mark.at_ns),
            "name": format!("deferred work of CPU {cpu}"), "args": { "waiting": count } }));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::event;
    use super::*;
    use formats::control::Phase;

    /// What the format's description asks of every event ("Trace Event Format", 2016).
    #[test]
    fn every_event_has_what_the_format_asks_for() {
        let text = json(&Timeline::of(&[
            event(1, 1, Phase::Instant, "switch", 9),
            event(0, 5, Phase::Instant, "tlb-sent-user", 1),
            event(0, 6, Phase::Instant, "vunmap-deferred-user", 1),
            event(1, 8, Phase::Begin, "tlb", 252),
            event(1, 9, Phase::Instant, "catch-up", 0),
            event(1, 12, Phase::End, "-", 0),
        ]));
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        let lines = trace["traceEvents"].as_array().expect("a list");
        let mut phases = BTreeMap::new();
        for line in lines {
            let phase = line["ph"].as_str().expect("a phase");
            *phases.entry(phase).or_insert(0) += 1;
            assert!(line["pid"].is_u64() && line["name"].is_string(), "{line}");
            assert!(phase == "M" || line["ts"].is_f64(), "{line}");
            match phase {
                "X" => assert!(line["dur"].as_f64().is_some_and(|dur| dur > 0.0), "{line}"),
                "s" | "f" => assert!(line["id"].is_u64() && line["cat"].is_string(), "{line}"),
                "C" => assert!(line["args"]["waiting"].is_u64(), "{line}"),
                "i" => assert_eq!(line["s"], "t"),
                "M" => assert!(line["args"]["name"].is_string(), "{line}"),
                other => panic!("{other}"),
            }
        }
        assert_eq!((phases["s"], phases["f"], phases["C"], phases["i"]), (2, 2, 2, 4));
    }
}
