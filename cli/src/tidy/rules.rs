//! Rules that look at one file: header, width, unsafe, safety.

use std::path::Path;

use super::lex::code_only;
use super::{Finding, Source};

/// Longest line, in characters.
const COLUMNS_MAX: usize = 100;
/// Where unsafe code may be: the kernel's machine layer, and programs for the guest.
const UNSAFE_PLACES: [&str; 2] = ["machine", "guest"];
/// Words of the code that only the machine layer may use.
const UNSAFE_WORDS: [&str; 6] =
    ["unsafe", "asm!", "global_asm!", "naked_asm!", "no_mangle", "link_section"];
/// Where the kernel may name the machine's functions for a program's memory.
const UACCESS_PLACES: [&str; 2] = ["kernel/src/base", "kernel/src/ktest"];
/// What a SAFETY comment says when it says nothing.
const EMPTY_PHRASES: [&str; 8] = [
    "this is safe",
    "trust me",
    "should be fine",
    "should be safe",
    "is obviously safe",
    "we know what we are doing",
    "see above",
    "todo",
];
/// An argument has at least that many words.
const ARGUMENT_WORDS_MIN: usize = 4;

/// All rules of this file, for Rust.
pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    header(source, findings);
    width(source, findings);
    unsafe_place(source, findings);
    safety(source, findings);
    typed_pointers(source, findings);
    leaks(source, findings);
}

/// The rules that hold for assembly as well.
pub(super) fn check_assembly(source: &Source, findings: &mut Vec<Finding>) {
    width(source, findings);
    if !may_be_unsafe(&source.path) {
        findings.push(Finding::new(&source.path, 0, "assembly outside machine/ and guest/"));
    }
}

/// A leaked `machine::task::Current` would lend its thread for longer than it lives.
fn leaks(source: &Source, findings: &mut Vec<Finding>) {
    if !source.path.starts_with("kernel") {
        return;
    }
    for (index, line) in code_only(&source.text).lines().enumerate() {
        if line.contains("::leak(") || line.contains(".leak(") {
            let text = "leaks: what the machine lends for a moment could live for ever";
            findings.push(Finding::new(&source.path, index + 1, text));
        }
    }
}

fn header(source: &Source, findings: &mut Vec<Finding>) {
    let first = source.text.lines().find(|line| !line.starts_with("#!/") && !line.is_empty());
    let first = first.unwrap_or_default();
    if !first.starts_with("//!") && !first.starts_with("#![doc = include_str!(") {
        findings.push(Finding::new(&source.path, 1, "no header: the first line is not `//!`"));
    }
}

fn width(source: &Source, findings: &mut Vec<Finding>) {
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let text = format!("{columns} columns, at most {COLUMNS_MAX}");
            findings.push(Finding::new(&source.path, index + 1, text));
        }
    }
}

fn may_be_unsafe(path: &Path) -> bool {
    UNSAFE_PLACES.iter().any(|place| path.starts_with(place))
}

fn unsafe_place(source: &Source, findings: &mut Vec<Finding>) {
    if may_be_unsafe(&source.path) {
        return;
    }
    for (index, line) in code_only(&source.text).lines().enumerate() {
        if let Some(word) = UNSAFE_WORDS.iter().find(|word| has_word(line, word)) {
            let text = format!("`{word}` outside machine/ and guest/");
            findings.push(Finding::new(&source.path, index + 1, text));
        }
    }
}

/// A program's memory is reached by `UserPtr` and by requests: who names the machine's functions
/// has lost the pointer's type.
fn typed_pointers(source: &Source, findings: &mut Vec<Finding>) {
    let is_kernel = source.path.starts_with("kernel/src");
    if !is_kernel || UACCESS_PLACES.iter().any(|place| source.path.starts_with(place)) {
        return;
    }
    for (index, line) in code_only(&source.text).lines().enumerate() {
        if has_word(line, "uaccess") {
            let text = "`uaccess` outside kernel/src/base: use `UserPtr`";
            findings.push(Finding::new(&source.path, index + 1, text));
        }
    }
}

/// True if `word` occurs in `line` and is not a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let after = line[at + word.len()..].chars().next();
        let ends = word.ends_with('!') || !is_part(after);
        ends && !is_part(line[..at].chars().next_back())
    })
}

fn safety(source: &Source, findings: &mut Vec<Finding>) {
    let lines: Vec<&str> = source.text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(first) = line.trim_start().strip_prefix("// SAFETY:") else {
            continue;
        };
        let rest = lines[index + 1..].iter().map_while(|line| line.trim_start().strip_prefix("//"));
        let argument = rest.fold(first.to_owned(), |text, line| text + " " + line).to_lowercase();
        let empty = EMPTY_PHRASES.iter().any(|phrase| argument.contains(phrase));
        if empty || argument.split_whitespace().count() < ARGUMENT_WORDS_MIN {
            let text = "SAFETY without an argument: name the invariant it rests on";
            findings.push(Finding::new(&source.path, index + 1, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(path: &str, text: &str, rule: fn(&Source, &mut Vec<Finding>)) -> Vec<usize> {
        let mut findings = Vec::new();
        rule(&Source { path: path.into(), text: text.into() }, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn headers() {
        assert_eq!(lines_of("a.rs", "//! What.\n", header), [0; 0]);
        assert_eq!(lines_of("a.rs", "#![doc = include_str!(\"README.md\")]\n", header), [0; 0]);
        assert_eq!(lines_of("a.rs", "use std::fs;\n//! Late.\n", header), [1]);
        assert_eq!(lines_of("a.rs", "", header), [1]);
    }

    #[test]
    fn widths() {
        let text = format!("{}\n{}\n{}", "x".repeat(100), "x".repeat(101), "\u{e9}".repeat(100));
        assert_eq!(lines_of("a.rs", &text, width), [2]);
    }

    #[test]
    fn unsafe_places() {
        let text =
            "#![forbid(unsafe_code)]\n// unsafe\nunsafe fn f() {}\ncore::arch::asm!(\"\");\n";
        assert_eq!(lines_of("kernel/src/a.rs", text, unsafe_place), [3, 4]);
        assert_eq!(lines_of("machine/src/a.rs", text, unsafe_place), [0; 0]);
        assert_eq!(lines_of("guest/x/a.rs", text, unsafe_place), [0; 0]);
    }

    #[test]
    fn pointers_of_programs() {
        let text = "use machine::uaccess;\n// uaccess\nuaccess::read(at);\n";
        assert_eq!(lines_of("kernel/src/net/a.rs", text, typed_pointers), [1, 3]);
        assert_eq!(lines_of("kernel/src/base/a.rs", text, typed_pointers), [0; 0]);
        assert_eq!(lines_of("machine/src/a.rs", text, typed_pointers), [0; 0]);
    }

    #[test]
    fn leaked_references() {
        let text = "// Box::leak(x)\nlet a = Box::leak(x);\nx.leak();\nleak(x);\n";
        assert_eq!(lines_of("kernel/src/a.rs", text, leaks), [2, 3]);
        assert_eq!(lines_of("machine/src/a.rs", text, leaks), [0; 0]);
    }

    #[test]
    fn safety_arguments() {
        let good = "// SAFETY: the frame is owned by this table until drop\n// (invariant 2).\n";
        assert_eq!(lines_of("a.rs", good, safety), [0; 0]);
        assert_eq!(lines_of("a.rs", "  // SAFETY: ok\n", safety), [1]);
        assert_eq!(
            lines_of("a.rs", "// SAFETY: this is safe\n// as everybody knows\n", safety),
            [1]
        );
        assert_eq!(lines_of("a.rs", "// SAFETY:\n// the lock is held by us\n", safety), [0; 0]);
    }
}
