//! A timeline as JSON in the trace event format, which ui.perfetto.dev and Chrome read.
//!
//! A process "CPUs", a track for each with slices that never overlap; and the guest's processes,
//! with a track for each thread: its calls, with arguments and results, exceptions and interrupts
//! as it saw them. Flows are arrows between CPUs; a counter for each CPU says how much deferred
//! work waits for it. Times are microseconds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::timeline::Timeline;
use super::{Names, arguments};

/// The process that the CPUs are shown as: no program has this number (PID_MAX_LIMIT).
pub(super) const CPUS: u64 = 4_194_305;
/// Threads of the kernel, and those that nobody has named.
const KERNEL: u64 = 0;

/// The whole: one event after the other.
pub(super) fn trace(timeline: &Timeline, threads: &Names) -> Value {
    let process = |thread: &u64| threads.get(thread).map_or(KERNEL, |(process, _)| *process);
    let mut lines = names(timeline, threads);
    for stay in &timeline.stays {
        let mut line = slice(CPUS, u64::from(stay.cpu), stay.from_ns, stay.to_ns, &stay.name);
        line["cat"] = json!(stay.kind.name());
        let name = stay.thread.and_then(|thread| Some(&threads.get(&thread)?.1));
        line["args"] = json!({ "thread": stay.thread, "name": name });
        lines.push(line);
    }
    for visit in &timeline.visits {
        let mut line =
            slice(process(&visit.thread), visit.thread, visit.from_ns, visit.to_ns, &visit.name);
        line["cat"] = json!(visit.kind.name());
        if let Some(args) = arguments::of(visit) {
            line["args"] = args;
        }
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
    json!({ "displayTimeUnit": "ns", "traceEvents": lines })
}

/// The file's text: one event a line.
pub(super) fn text(trace: &Value) -> String {
    let lines = trace["traceEvents"].as_array().map_or(&[][..], Vec::as_slice);
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

/// What processes and tracks are called.
fn names(timeline: &Timeline, threads: &Names) -> Vec<Value> {
    let name = |kind: &str, pid: u64, tid: u64, name: String| {
        let args = json!({ "name": name });
        json!({ "ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args })
    };
    let of_stays = timeline.stays.iter().map(|stay| stay.cpu);
    let cpus: BTreeSet<u8> = of_stays.chain(timeline.marks.iter().map(|mark| mark.cpu)).collect();
    let shown: BTreeSet<u64> = timeline.visits.iter().map(|visit| visit.thread).collect();
    let mut lines = vec![name("process_name", CPUS, 0, "CPUs".to_owned())];
    let of_cpu = |cpu: u8| name("thread_name", CPUS, u64::from(cpu), format!("CPU {cpu}"));
    lines.extend(cpus.into_iter().map(of_cpu));
    let mut processes = BTreeSet::new();
    for thread in shown {
        let known = threads.get(&thread);
        let process = known.map_or(KERNEL, |(process, _)| *process);
        if processes.insert(process) {
            // A process has its first thread's name.
            let first = threads.get(&process).map_or("kernel", |(_, name)| name);
            let first = if process == KERNEL { "kernel" } else { first };
            lines.push(name("process_name", process, 0, first.to_owned()));
        }
        let own = known.map_or_else(|| format!("thread {thread}"), |(_, name)| name.clone());
        lines.push(name("thread_name", process, thread, own));
    }
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
    use formats::control::{Phase, TraceEvent};

    /// What the format's description asks of every event ("Trace Event Format", 2016).
    #[test]
    fn every_event_has_what_the_format_asks_for() {
        let timeline = Timeline::of(&[
            event(1, 1, Phase::Instant, "switch", 9),
            event(0, 5, Phase::Instant, "tlb-sent-user", 1),
            event(0, 6, Phase::Instant, "vunmap-deferred-user", 1),
            event(1, 8, Phase::Begin, "tlb", 252),
            event(1, 9, Phase::Instant, "catch-up", 0),
            event(1, 12, Phase::End, "-", 0),
            TraceEvent { values: vec![1, 0x7f00, 5], ..event(1, 20, Phase::Begin, "write", 1) },
            TraceEvent { values: vec![5], ..event(1, 30, Phase::End, "-", 0) },
        ]);
        let threads = Names::from([(9, (8, "worker".to_owned())), (8, (8, "app".to_owned()))]);
        let text = text(&trace(&timeline, &threads));
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
        let is_call = |line: &&Value| line["name"] == "write" && line["pid"] != CPUS;
        let write = lines.iter().find(is_call).expect("a call of the thread's");
        assert_eq!((&write["pid"], &write["tid"]), (&json!(8), &json!(9)));
        assert_eq!(write["args"], json!({ "fd": 1, "buf": "0x7f00", "count": 5, "result": 5 }));
        let called = |kind: &str, pid: u64| {
            let mut named = lines.iter().filter(|line| line["name"] == kind && line["pid"] == pid);
            named.next().expect("a name")["args"]["name"].clone()
        };
        assert_eq!(
            (called("process_name", 8), called("thread_name", 8)),
            (json!("app"), json!("worker"))
        );
        assert_eq!((phases["s"], phases["f"], phases["C"], phases["i"]), (2, 2, 2, 4));
    }
}
