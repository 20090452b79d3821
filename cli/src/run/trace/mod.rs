//! `--trace`: what the kernel recorded at the boundary, and what that means.
//!
//! | File | What |
//! |---|---|
//! | `timeline` | who has each CPU when: user space, a call, an exception, an interrupt, idle |
//! | `perfetto` | the file, in the trace event format that ui.perfetto.dev and Chrome read |
//! | `arguments` | what calls take and give, for people |
//! | `page` | the timeline as a page that needs no network |
//! | `summary` | `limen trace FILE`: time by kind, calls, longest stays, interrupts between CPUs |
//!
//! A ring keeps the latest events only, so each CPU's timeline begins where its ring does.

mod arguments;
mod page;
mod perfetto;
mod summary;
mod timeline;

use std::collections::BTreeMap;
use std::path::Path;

use formats::control::TraceEvent;

use crate::args::TraceArgs;
use crate::{Error, paths, usage};

/// Most events that are kept from a guest: all rings of the largest machine.
pub(crate) const EVENTS_MAX: usize = 16 * 16_384;

/// Process and name of threads, by their numbers.
pub(crate) type Names = BTreeMap<u64, (u64, String)>;

/// Writes a trace: as a page where the file is called so, else in the trace event format.
pub(crate) fn write(file: &Path, events: &[TraceEvent], names: &Names) -> std::io::Result<()> {
    let trace = perfetto::trace(&timeline::Timeline::of(events), names);
    match is_page(file) {
        true => std::fs::write(file, page::html(&trace)),
        false => std::fs::write(file, perfetto::text(&trace)),
    }
}

fn is_page(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "html" || end == "htm")
}

/// `limen trace`.
pub(crate) fn command(args: &TraceArgs) -> Result<u8, Error> {
    let of_file = |error: String| usage(format!("{}: {error}", args.file.display()));
    if let Some(page) = &args.html {
        paths::ensure_writable("--html", page)?;
    }
    let text = std::fs::read(&args.file).map_err(|error| of_file(error.to_string()))?;
    let no_trace = "not a trace of limen run --trace FILE.json";
    let trace = serde_json::from_slice(&text).map_err(|_| of_file(no_trace.to_owned()))?;
    let summary = summary::of(&trace).ok_or_else(|| of_file(no_trace.to_owned()))?;
    if let Some(page) = &args.html {
        let written = std::fs::write(page, page::html(&trace));
        written.map_err(|error| format!("--html {}: {error}", page.display()))?;
    }
    Ok(crate::print(summary.as_bytes()))
}
