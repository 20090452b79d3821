//! A trace of a real run, judged by what the trace event format asks for ("Trace Event Format",
//! Google, 2016), which ui.perfetto.dev and Chrome load: part of the run level.
//!
//! Each event alone has its fields; together, slices of a track lie beside or in each other, flows
//! have two ends in order, and every track has a name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::Context;
use super::run::{ensure, limen};
use crate::Error;

/// How far a slice may reach out of the one around it, in microseconds: times are rounded.
const ROUNDING_US: f64 = 0.002;

/// A run of several programs on two CPUs, with interrupts between them.
pub(super) fn format(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "echo a | cat | wc -c; ls /usr >/dev/null; sleep 0.05 & wait";
    let words = ["--smp", "2", "--trace", "t.json", "--", "sh", "-c", script];
    let output = limen(context, folder, &words).output()?;
    ensure(output.status.success(), || format!("{output:?}"))?;
    let trace: Value = serde_json::from_slice(&std::fs::read(folder.join("t.json"))?)?;
    let events = trace["traceEvents"].as_array().ok_or("no list of events")?;
    let unit = trace["displayTimeUnit"].as_str();
    ensure(matches!(unit, Some("ms" | "ns")), || format!("displayTimeUnit {unit:?}"))?;
    ensure(events.len() > 100, || format!("{} events", events.len()))?;
    for event in events {
        fields(event).map_err(|why| format!("{why}: {event}"))?;
    }
    tracks(events)?;
    flows(events)?;
    let categories: BTreeSet<&str> = events.iter().filter_map(|e| e["cat"].as_str()).collect();
    for category in ["user", "call", "exception", "interrupt"] {
        let is_there = categories.iter().any(|c| c.starts_with(category));
        ensure(is_there, || format!("no {category} among {categories:?}"))?;
    }
    Ok(())
}

/// What each kind of event must have.
fn fields(event: &Value) -> Result<(), &'static str> {
    let number = |name: &str| event[name].as_f64().filter(|n| n.is_finite() && *n >= 0.0);
    let phase = event["ph"].as_str().ok_or("no phase")?;
    event["name"].as_str().filter(|name| !name.is_empty()).ok_or("no name")?;
    event["pid"].as_u64().ok_or("no process")?;
    if phase != "M" {
        number("ts").ok_or("no time")?;
    }
    if phase != "C" {
        event["tid"].as_u64().ok_or("no thread")?;
    }
    if !event["args"].is_null() && !event["args"].is_object() {
        return Err("arguments that are no object");
    }
    match phase {
        "X" => number("dur").map(|_| ()).ok_or("no duration"),
        "i" => matches!(event["s"].as_str(), Some("t" | "p" | "g")).then_some(()).ok_or("no scope"),
        "s" | "f" => {
            event["cat"].as_str().ok_or("a flow without a category")?;
            event["id"].as_u64().map(|_| ()).ok_or("a flow without an id")
        }
        "C" => {
            let series = event["args"].as_object().ok_or("a counter without values")?;
            series.values().all(Value::is_number).then_some(()).ok_or("a value that is no number")
        }
        "M" => {
            let is_known = matches!(event["name"].as_str(), Some("process_name" | "thread_name"));
            is_known.then_some(()).ok_or("unknown metadata")?;
            event["args"]["name"].as_str().map(|_| ()).ok_or("metadata without a name")
        }
        _ => Err("an unknown phase"),
    }
}

/// Slices of a track lie beside or in each other, and each track has a name.
fn tracks(events: &[Value]) -> Result<(), Error> {
    let track = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
    let named: BTreeSet<_> =
        events.iter().filter(|e| e["name"] == "thread_name").map(track).collect();
    let mut slices: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let (from, long) = (event["ts"].as_f64(), event["dur"].as_f64());
        let from = from.unwrap_or_default();
        slices.entry(track(event)).or_default().push((from, from + long.unwrap_or_default()));
    }
    for (track, mut slices) in slices {
        ensure(named.contains(&track), || format!("track {track:?} has no name"))?;
        // The longer first where two begin together.
        slices.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut around: Vec<(f64, f64)> = Vec::new();
        for slice in slices {
            around.retain(|outer| outer.1 > slice.0 + ROUNDING_US);
            let sticks_out = around.iter().find(|outer| slice.1 > outer.1 + ROUNDING_US);
            ensure(sticks_out.is_none(), || {
                format!("track {track:?}: {slice:?} begins in {sticks_out:?} and ends behind it")
            })?;
            around.push(slice);
        }
    }
    Ok(())
}

/// Each arrow begins before it ends.
fn flows(events: &[Value]) -> Result<(), Error> {
    let mut begun = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "s") {
        begun.insert((event["cat"].as_str(), event["id"].as_u64()), event["ts"].as_f64());
    }
    for event in events.iter().filter(|event| event["ph"] == "f") {
        let from = begun.remove(&(event["cat"].as_str(), event["id"].as_u64()));
        let from = from.ok_or_else(|| format!("a flow that never began: {event}"))?;
        ensure(from <= event["ts"].as_f64(), || format!("a flow that ends first: {event}"))?;
    }
    ensure(begun.is_empty(), || format!("flows without an end: {begun:?}"))
}
