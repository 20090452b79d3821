//! `--trace`: what the kernel recorded at the boundary, as JSON in the trace event format that
//! Perfetto (ui.perfetto.dev) and Chrome read: one track for each CPU, a slice for each stay in the
//! kernel, an instant for each interrupt that was sent or spared, each catch-up and each switch.
//!
//! A ring keeps the latest events only, so a track may begin with the end of a stay whose beginning
//! is lost; such ends are left out. A CPU that runs in user mode has no slice.

use formats::control::{Phase, TraceEvent};
use serde_json::{Value, json};

/// Most events that are kept from a guest: all rings of the largest machine.
pub(crate) const EVENTS_MAX: usize = 16 * 16_384;

/// The file's text: one event a line.
pub(crate) fn json(events: &[TraceEvent]) -> String {
    let mut lines: Vec<Value> = vec![];
    let mut depths = [0_usize; 256];
    for event in events {
        let depth = &mut depths[usize::from(event.cpu)];
        match event.phase {
            Phase::Begin => *depth += 1,
            Phase::End if *depth == 0 => continue,
            Phase::End => *depth -= 1,
            Phase::Instant => {}
        }
        lines.push(line(event));
    }
    let cpus: std::collections::BTreeSet<u8> = events.iter().map(|event| event.cpu).collect();
    lines.extend(cpus.into_iter().map(|cpu| {
        json!({ "ph": "M", "name": "thread_name", "pid": 0, "tid": cpu,
                "args": { "name": format!("CPU {cpu}") } })
    }));
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    format!("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}

fn line(event: &TraceEvent) -> Value {
    // Microseconds, as the format wants them.
    let at = event.at_ns as f64 / 1e3;
    let mut line = json!({ "ph": event.phase.letter(), "ts": at, "pid": 0, "tid": event.cpu });
    let of_thread = |line: &mut Value| line["s"] = json!("t");
    match event.phase {
        Phase::End => return line,
        Phase::Begin => line["args"] = json!({ "number": event.number }),
        Phase::Instant if event.name == "switch" => {
            of_thread(&mut line);
            line["args"] = json!({ "thread": event.number });
        }
        Phase::Instant if event.name == "catch-up" => of_thread(&mut line),
        Phase::Instant => {
            of_thread(&mut line);
            line["args"] = json!({ "cpu": event.number });
        }
    }
    line["name"] = json!(event.name);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ns: u64, phase: Phase, name: &str) -> TraceEvent {
        TraceEvent { cpu: 1, at_ns, phase, name: name.to_owned(), number: 3 }
    }

    #[test]
    fn slices_are_balanced_and_instants_name_their_cpu() {
        let events = [
            event(1000, Phase::End, "-"),
            event(2000, Phase::Begin, "read"),
            event(2500, Phase::Instant, "vunmap-deferred-user"),
            event(3000, Phase::End, "-"),
        ];
        let trace: Value = serde_json::from_str(&json(&events)).expect("JSON");
        let lines = trace["traceEvents"].as_array().expect("a list");
        let phases: Vec<_> = lines.iter().map(|line| line["ph"].as_str()).collect();
        assert_eq!(phases, [Some("B"), Some("i"), Some("E"), Some("M")]);
        assert_eq!(lines[0]["ts"], 2.0);
        assert_eq!(lines[1]["args"]["cpu"], 3);
        assert_eq!(lines[3]["args"]["name"], "CPU 1");
    }
}
