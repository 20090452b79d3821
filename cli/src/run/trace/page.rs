//! A trace as one page that needs no network: the timeline, to move in by mouse and keyboard, and
//! the summary below it as text.
//!
//! Why it is hard: tens of thousands of slices are too many for elements of a page, so they are
//! drawn; and what is only drawn is nothing to whoever does not see it, so the slice that is chosen
//! by key is told in words. The trace travels inside the page in a short form: names once, slices
//! as numbers.
//!
//! Neighbours: `page.js` draws; `perfetto.rs` makes the trace; `crate::page` has the frame.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::perfetto::CPUS;
use super::summary;
use crate::page::{escape, page};

const SCRIPT: &str = include_str!("page.js");
/// Kinds in the order of their colours.
const KINDS: [&str; 6] = ["user", "call", "exception", "interrupt", "kernel", "idle"];

const STYLE: &str = "\
:root { --user: #2f6f9f; --call: #8a5a00; --exception: #a33; --interrupt: #6d3fa0;
  --kernel: #4a6b3a; --idle: #d1d9e0; }
@media (prefers-color-scheme: dark) { :root { --user: #6db3e8; --call: #e0a840;
  --exception: #ff8a8a; --interrupt: #c39bf0; --kernel: #9cc987; --idle: #343b43; } }
canvas { display: block; width: 100%; touch-action: pan-y; background: var(--paper); }
canvas:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
.tools { display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; }
button { font: inherit; color: inherit; background: var(--shade); border: 1px solid var(--line);
  border-radius: .25rem; padding: .35rem .7rem; min-height: 2.5rem; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0; }
.legend span { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
#chosen { min-height: 4.5rem; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--shade); padding: .75rem; font-size: .8rem; }
";

/// The page of a trace in the trace event format.
pub(super) fn html(trace: &Value) -> String {
    let legend: String = KINDS
        .iter()
        .map(|kind| format!("<li><span style=\"background:var(--{kind})\"></span>{kind}</li>"))
        .collect();
    let summary = summary::of(trace).unwrap_or_default();
    // A name of a program must not end the script.
    let data = short(trace).to_string().replace('<', "\\u003c");
    let body = format!(
        "<h1>What happened at the boundary</h1>\n\
         <p class=\"soft\">Who had each CPU, and what threads were in. Arrows lead from interrupts \
         and deferred work to where they were received and caught up with.</p>\n\
         <ul class=\"legend\" aria-label=\"Colours\">{legend}</ul>\n\
         <div class=\"tools\" role=\"toolbar\" aria-label=\"Timeline\">\
         <button id=\"in\">Zoom in</button><button id=\"out\">Zoom out</button>\
         <button id=\"all\">Show all</button><button id=\"previous\">Previous</button>\
         <button id=\"next\">Next</button></div>\n\
         <canvas id=\"timeline\" tabindex=\"0\" role=\"application\" \
         aria-describedby=\"keys chosen\" aria-label=\"Timeline\"></canvas>\n\
         <p id=\"chosen\" aria-live=\"polite\">Nothing is chosen.</p>\n\
         <p id=\"keys\" class=\"soft\">Keys in the timeline: left and right move, plus and minus \
         zoom, 0 shows all, up and down choose a track, n and p the next and the previous slice in \
         it. \
         With the mouse: drag, turn the wheel with Ctrl, click.</p>\n\
         <h2>Summary</h2>\n<pre tabindex=\"0\" aria-label=\"Summary\">{}</pre>\n\
         <script type=\"application/json\" id=\"trace\">{data}</script>\n\
         <script>\n{SCRIPT}</script>",
        escape(&summary)
    );
    page("limen trace", STYLE, &body)
}

/// Tracks with their slices, and flows between them, with each name once.
fn short(trace: &Value) -> Value {
    let events = trace["traceEvents"].as_array().map_or(&[][..], Vec::as_slice);
    let mut words = Words::default();
    let mut titles: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut processes: BTreeMap<u64, String> = BTreeMap::new();
    let mut slices: BTreeMap<(bool, u64, u64), Vec<Value>> = BTreeMap::new();
    let mut flows: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for event in events {
        let number = |key: &str| event[key].as_u64().unwrap_or(0);
        let (pid, tid) = (number("pid"), number("tid"));
        let name = event["name"].as_str().unwrap_or_default();
        let ts = &event["ts"];
        match event["ph"].as_str() {
            Some("M") => {
                let title = event["args"]["name"].as_str().unwrap_or_default().to_owned();
                match name {
                    "process_name" => processes.insert(pid, title),
                    _ => titles.insert((pid, tid), title),
                };
            }
            Some("X") => {
                let kind = KINDS.iter().position(|kind| event["cat"] == *kind).unwrap_or(0);
                let args = &event["args"];
                let more = if args.is_null() { String::new() } else { in_words(args) };
                let slice =
                    json!([ts, event["dur"], words.number(name), kind, words.number(&more)]);
                slices.entry((pid != CPUS, pid, tid)).or_default().push(slice);
            }
            Some("s" | "f") => {
                flows.entry(number("id")).or_default().extend([json!(tid), ts.clone()]);
            }
            _ => {}
        }
    }
    let tracks: Vec<Value> = slices
        .into_iter()
        .map(|((_, pid, tid), slices)| {
            let own = titles.get(&(pid, tid)).cloned().unwrap_or_default();
            let title = match processes.get(&pid).filter(|_| pid != CPUS) {
                Some(process) if *process != own => format!("{process} {pid}: {own} {tid}"),
                Some(_) => format!("{own} {tid}"),
                None => own,
            };
            json!({ "title": title, "cpu": (pid == CPUS).then_some(tid), "slices": slices })
        })
        .collect();
    let flows: Vec<Vec<Value>> = flows.into_values().filter(|ends| ends.len() == 4).collect();
    json!({ "words": words.all, "kinds": KINDS, "tracks": tracks, "flows": flows })
}

/// Arguments as text.
fn in_words(args: &Value) -> String {
    let of = |(name, value): (&String, &Value)| match value {
        Value::Null => None,
        Value::String(text) => Some(format!("{name}: {text}")),
        other => Some(format!("{name}: {other}")),
    };
    let all = args.as_object().into_iter().flatten().filter_map(of);
    all.collect::<Vec<_>>().join(", ")
}

/// Words by number, each once.
#[derive(Default)]
struct Words {
    all: Vec<String>,
    numbers: BTreeMap<String, usize>,
}

impl Words {
    fn number(&mut self, word: &str) -> usize {
        if let Some(number) = self.numbers.get(word) {
            return *number;
        }
        self.numbers.insert(word.to_owned(), self.all.len());
        self.all.push(word.to_owned());
        self.all.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(name: &str) -> Value {
        json!({ "traceEvents": [
            { "ph": "M", "name": "thread_name", "pid": CPUS, "tid": 0,
              "args": { "name": "CPU 0" } },
            { "ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": { "name": name } },
            { "ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": { "name": name } },
            { "ph": "X", "name": "user", "cat": "user", "pid": CPUS, "tid": 0, "ts": 1.5,
              "dur": 2.0 },
            { "ph": "X", "name": "read", "cat": "call", "pid": 7, "tid": 7, "ts": 2.0, "dur": 1.0,
              "args": { "fd": 3, "result": 5 } },
            { "ph": "s", "id": 0, "pid": CPUS, "tid": 0, "ts": 1.0, "name": "tlb", "cat": "ipi" },
            { "ph": "f", "id": 0, "pid": CPUS, "tid": 1, "ts": 2.0, "name": "tlb", "cat": "ipi" },
        ] })
    }

    #[test]
    fn cpus_come_first_and_names_are_kept_once() {
        let short = short(&trace("cat"));
        assert_eq!(short["tracks"][0]["title"], "CPU 0");
        assert_eq!(short["tracks"][1]["title"], "cat 7");
        assert_eq!(short["tracks"][1]["slices"][0], json!([2.0, 1.0, 2, 1, 3]));
        assert_eq!(short["words"], json!(["user", "", "read", "fd: 3, result: 5"]));
        assert_eq!(short["flows"], json!([[0, 1.0, 1, 2.0]]));
    }

    #[test]
    fn a_programs_name_is_no_markup() {
        let page = html(&trace("</script><b>"));
        assert!(!page.contains("</script><b>") && page.matches("</script>").count() == 2);
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("src="));
    }
}
