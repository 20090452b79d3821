//! What has failed, said once more behind all levels: whoever reads the end of a long log, as of
//! CI, learns what to look for.

use std::sync::{Mutex, PoisonError};

/// Lines of one failure that are said again; what is left out stands where it failed.
const LINES: usize = 15;

/// What the section begins with.
const HEADING: &str = "failures:\n";

/// What the level that runs has told by `failed!`.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Tells that something failed, like `tell!`, and remembers it.
macro_rules! failed {
    ($($word:tt)*) => {{
        let text = format!($($word)*);
        tell!("{text}");
        $crate::test::failures::remember(text);
    }};
}

pub(super) fn remember(text: String) {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).push(text);
}

/// What failed in all levels.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<String>);

impl Failures {
    /// Takes over what a level has told, which has counted so many failures.
    pub(super) fn take(&mut self, level: &str, count: usize) {
        let told = std::mem::take(&mut *TOLD.lock().unwrap_or_else(PoisonError::into_inner));
        self.add(level, count, &told);
    }

    /// Takes over what another process has said so of its levels.
    pub(super) fn take_over(&mut self, text: String) {
        self.0.extend((!text.is_empty()).then_some(text));
    }

    fn add(&mut self, level: &str, count: usize, told: &[String]) {
        if told.is_empty() && count > 0 {
            self.0.push(format!("{level}: {count}, as said there"));
        }
        self.0.extend(told.iter().map(|text| format!("{level}: {}", shortened(text))));
    }

    /// The section to print; none where nothing failed.
    pub(super) fn text(&self) -> Option<String> {
        let lines = self.0.iter().flat_map(|text| text.lines()).map(|line| format!("  {line}\n"));
        (!self.0.is_empty()).then(|| format!("{HEADING}{}", lines.collect::<String>()))
    }
}

/// A run's output without the section, and what the section says.
pub(super) fn split(output: &str) -> (&str, String) {
    let (before, section) = output.split_once(&format!("\n{HEADING}")).unwrap_or((output, ""));
    let lines = section.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
    (before, lines.collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

fn shortened(text: &str) -> String {
    let rest = text.lines().count().saturating_sub(LINES);
    let mut lines: Vec<&str> = text.lines().take(LINES).collect();
    let more = format!("… {rest} lines more");
    if rest > 0 {
        lines.push(&more);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_named_with_its_level_and_its_first_lines() {
        let mut all = Failures::default();
        all.add("host", 0, &[]);
        assert_eq!(all.text(), None);
        let long: Vec<String> = (0..40).map(|line| format!("line {line}")).collect();
        all.add("guest", 2, &["test a::b ... FAILED: it is not".to_owned(), long.join("\n")]);
        all.add("audit", 1, &[]);
        let text = all.text().unwrap_or_default();
        assert!(
            text.starts_with("failures:\n  guest: test a::b ... FAILED: it is not\n"),
            "{text}"
        );
        assert!(text.contains("  line 14\n  … 25 lines more\n"), "{text}");
        assert!(text.ends_with("  audit: 1, as said there\n"), "{text}");
    }
}
