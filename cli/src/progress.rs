//! Says what is going on where it takes longer than anybody waits in silence: what it is and how
//! long it has taken, first after two seconds (in a log, where nobody waits, after half a minute)
//! and then each time it has taken twice as long.
//!
//! Why a thread: what is slow is one call of the system or one long loop, and none of them should
//! have to look at a clock. One thread tells of all; it sleeps until a line is due. It holds the
//! list while it speaks, so nothing is said of a work behind its end.
//!
//! Neighbours: `test/watch.rs` names running tests by it, benches tell their steps ([`Steps`]).

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// When work is told of first, on a terminal and in a log.
const FIRST: Duration = Duration::from_secs(2);
const FIRST_IN_LOG: Duration = Duration::from_secs(30);

/// What goes on, by number of start.
static WORKS: Mutex<BTreeMap<u64, Work>> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();
static TELLER: Once = Once::new();

struct Work {
    /// The line, by the seconds that it has taken.
    line: Box<dyn Fn(u64) -> String + Send>,
    began: Instant,
    /// How much it will have taken when it is told of next.
    next: Duration,
}

/// Work that may be slow, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Progress(u64);

impl Progress {
    /// `what` as in "packing".
    pub(crate) fn of(what: impl Into<String>) -> Self {
        let what = what.into();
        Self::telling(move || what.clone())
    }

    /// The same where it changes what there is to say.
    pub(crate) fn telling(what: impl Fn() -> String + Send + 'static) -> Self {
        Self::with(move |seconds| format!("limen: {}, {seconds} s so far", what()))
    }

    /// With a line of its own, made from the seconds that it has taken.
    pub(crate) fn with(line: impl Fn(u64) -> String + Send + 'static) -> Self {
        TELLER.call_once(|| {
            // Without it the work is silent, and done.
            let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(tell);
        });
        let is_log = !std::io::stderr().is_terminal();
        let next = if is_log { FIRST_IN_LOG } else { FIRST };
        let mut works = works();
        let number = works.last_key_value().map_or(0, |(number, _)| number + 1);
        works.insert(number, Work { line: Box::new(line), began: Instant::now(), next });
        CHANGED.notify_one();
        Self(number)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        works().remove(&self.0);
    }
}

fn works() -> MutexGuard<'static, BTreeMap<u64, Work>> {
    WORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread.
fn tell() {
    let mut works = works();
    loop {
        for line in due(&mut works, Instant::now()) {
            say!("{line}");
        }
        let next = works.values().map(|work| work.began + work.next).min();
        works = match next.map(|next| next.saturating_duration_since(Instant::now())) {
            None => CHANGED.wait(works).unwrap_or_else(PoisonError::into_inner),
            Some(rest) => {
                let waited = CHANGED.wait_timeout(works, rest);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// The lines that are due now.
fn due(works: &mut BTreeMap<u64, Work>, now: Instant) -> Vec<String> {
    let mut lines = Vec::new();
    for work in works.values_mut() {
        let elapsed = now.saturating_duration_since(work.began);
        if elapsed >= work.next {
            work.next = elapsed * 2;
            lines.push((work.line)(elapsed.as_secs()));
        }
    }
    lines
}

/// Steps of one work, each named when it begins: which one it is, and of how many.
#[derive(Debug)]
pub(crate) struct Steps {
    begun: usize,
    of: usize,
}

impl Steps {
    pub(crate) fn of(of: usize) -> Self {
        Self { begun: 0, of }
    }

    pub(crate) fn begin(&mut self, what: &str) {
        say!("limen: {}", self.next(what));
    }

    fn next(&mut self, what: &str) -> String {
        self.begun += 1;
        format!("{} ({} of {})", what.trim_end(), self.begun, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_of_when_it_is_slow_and_then_ever_more_seldom() {
        let began = Instant::now();
        let line = Box::new(|seconds| format!("packing, {seconds} s so far"));
        let mut works = BTreeMap::from([(0, Work { line, began, next: FIRST })]);
        let mut told = Vec::new();
        for second in 0..40 {
            told.extend(due(&mut works, began + Duration::from_secs(second)));
        }
        let wanted = [2, 4, 8, 16, 32].map(|seconds| format!("packing, {seconds} s so far"));
        assert_eq!(told, wanted);
    }

    #[test]
    fn a_log_hears_of_it_later_and_of_what_has_ended_nothing_is_said() {
        let ended = Progress::of("ended");
        let lives = Progress::of("lives");
        let number = ended.0;
        drop(ended);
        assert!(!works().contains_key(&number) && works().contains_key(&lives.0));
        let (began, line) = (Instant::now(), Box::new(|_| String::new()));
        let mut works = BTreeMap::from([(0, Work { line, began, next: FIRST_IN_LOG })]);
        assert!(due(&mut works, began + Duration::from_secs(29)).is_empty());
        assert_eq!(due(&mut works, began + Duration::from_secs(30)).len(), 1);
        assert!(due(&mut works, began + Duration::from_secs(59)).is_empty());
    }

    #[test]
    fn steps_say_how_many_there_are() {
        let mut steps = Steps::of(2);
        assert_eq!(steps.next("Limen "), "Limen (1 of 2)");
        assert_eq!(steps.next("Linux pti=on"), "Linux pti=on (2 of 2)");
    }
}
