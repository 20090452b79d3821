//! What this program itself says: results on standard output, words for people on standard error.
//!
//! Why it is hard: the standard library's macros panic where a stream takes no more (a full disk, a
//! reader that has gone), and where standard output was closed from the start they write to
//! `/dev/null` without a word (`standard_streams`). Here a failure is remembered, whoever writes
//! goes on, and [`finish`] tells it and makes it the exit status.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::run::outcome::STATUS_OUTPUT_LOST;

/// A line on standard error.
macro_rules! say {
    ($($word:tt)*) => { $crate::out::err(format_args!("{}\n", format_args!($($word)*))) };
}

/// A line on standard output.
macro_rules! tell {
    () => { $crate::out::text(format_args!("\n")) };
    ($($word:tt)*) => { $crate::out::text(format_args!("{}\n", format_args!($($word)*))) };
}

/// Why standard output did not take something; nothing in it: its reader has gone, which is no
/// error.
static ENDED: OnceLock<Option<String>> = OnceLock::new();

/// Writes to standard error, errors of the system in words alone. If that fails there is nobody
/// left to tell.
pub(crate) fn err(text: Arguments<'_>) {
    if crate::children::is_ending() {
        return;
    }
    let text = crate::words::plain(&text.to_string());
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes to standard output.
pub(crate) fn text(text: Arguments<'_>) {
    bytes(text.to_string().as_bytes());
}

/// The same for what need not be text.
pub(crate) fn bytes(bytes: &[u8]) {
    if crate::children::is_ending() {
        return;
    }
    let written = match standard_streams::was_closed(1) {
        true => Err(Errno::BADF.into()),
        false => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
    };
    if let Err(error) = written {
        let is_error = error.kind() != std::io::ErrorKind::BrokenPipe;
        ENDED.get_or_init(|| is_error.then(|| error.to_string()));
    }
}

/// True once standard output has not taken something: more need not be made.
pub(crate) fn has_ended() -> bool {
    ENDED.get().is_some()
}

/// The exit status: `status`, but where that is success and output was lost.
pub(crate) fn finish(status: u8) -> u8 {
    let Some(Some(error)) = ENDED.get() else { return status };
    say!("limen: standard output: {error}: what limen wrote there is lost");
    if status == 0 { STATUS_OUTPUT_LOST } else { status }
}
