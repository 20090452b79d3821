//! `--trace`: what the kernel recorded at the boundary, and what that means.
//!
//! | File | What |
//! |---|---|
//! | `timeline` | who has each CPU when: user space, a call, an exception, an interrupt, idle |
//! | `perfetto` | the file, in the trace event format that ui.perfetto.dev and Chrome read |
//! | `summary` | `limen trace FILE`: time by kind, calls, longest stays, interrupts between CPUs |
//!
//! A ring keeps the latest events only, so each CPU's timeline begins where its ring does.

mod perfetto;
mod summary;
mod timeline;

use formats::control::TraceEvent;

use crate::Error;
use crate::args::TraceArgs;

/// Most events that are kept from a guest: all rings of the largest machine.
pub(crate) const EVENTS_MAX: usize = 16 * 16_384;

/// The file's text: one event a line.
pub(crate) fn json(events: &[TraceEvent]) -> String {
    perfetto::json(&timeline::Timeline::of(events))
}

/// `limen trace`.
pub(crate) fn command(args: &TraceArgs) -> Result<u8, Error> {
    let of_file = |error: String| Error::from(format!("{}: {error}", args.file.display()));
    let text = std::fs::read(&args.file).map_err(|error| of_file(error.to_string()))?;
    let trace = serde_json::from_slice(&text).map_err(|error| of_file(error.to_string()))?;
    let summary = summary::of(&trace);
    let summary = summary.ok_or_else(|| of_file("not a trace of limen run --trace".to_owned()))?;
    Ok(crate::print(summary.as_bytes()))
}
