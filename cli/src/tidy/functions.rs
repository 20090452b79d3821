//! The length of functions, and the list of those that are allowed to be longer.
//!
//! The list can only shrink: an entry that names a function which is gone, short enough, or
//! shorter than the entry says, is a finding itself. Neighbour: `lex.rs`.

use super::lex::code_only;
use super::{Finding, Source};

/// Most lines of a function, from its `fn` to its closing brace.
const LINES_MAX: usize = 70;
/// `PATH FUNCTION LINES` per line; `#` begins a comment.
pub(super) const EXCEPTIONS: &str = include_str!("long_functions.txt");

/// A function of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// Of its `fn`, from 1.
    line: usize,
    length: usize,
}

pub(super) fn check(sources: &[&Source], exceptions: &str, findings: &mut Vec<Finding>) {
    let mut exceptions: Vec<(&str, &str, usize, bool)> = parse_exceptions(exceptions);
    for source in sources {
        for function in functions_of(&source.text) {
            let path = source.path.to_string_lossy();
            let exception = exceptions.iter_mut().find(|(at, name, length, used)| {
                *at == path && *name == function.name && *length >= function.length && !used
            });
            let Function { name, line, length } = &function;
            match exception {
                Some((.., allowed, used)) if *length > LINES_MAX => {
                    *used = true;
                    if *allowed > *length {
                        let text = format!("{name} has {length} lines: its exception says more");
                        findings.push(Finding::new(&source.path, *line, text));
                    }
                }
                _ if *length > LINES_MAX => {
                    let text = format!("{name} has {length} lines, at most {LINES_MAX}");
                    findings.push(Finding::new(&source.path, *line, text));
                }
                _ => {}
            }
        }
    }
    for (path, name, _, _) in exceptions.iter().filter(|(.., used)| !used) {
        let text = format!("exception for {name} is not needed any more");
        findings.push(Finding::new(path.as_ref(), 0, text));
    }
}

fn parse_exceptions(text: &str) -> Vec<(&str, &str, usize, bool)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?, words.next()?.parse().ok()?, false))
        })
        .collect()
}

/// The functions of a source that rustfmt has formatted: a function ends where a brace closes.
fn functions_of(text: &str) -> Vec<Function> {
    let code = code_only(text);
    let lines: Vec<&str> = code.lines().collect();
    let mut functions = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if let Some(name) = function_name(line)
            && let Some(length) = length_from(&lines[index..])
        {
            functions.push(Function { name: name.to_owned(), line: index + 1, length });
        }
    }
    functions
}

/// The name, if a function begins in this line.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let is_before_fn = |word: &&str| {
        matches!(*word, "pub" | "const" | "async" | "unsafe" | "extern" | "default")
            || word.starts_with("pub(")
            || word.ends_with(')') && !word.contains('(')
    };
    let name = loop {
        match words.next()? {
            "fn" => break words.next()?,
            word if is_before_fn(&word) => {}
            _ => return None,
        }
    };
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    (end > 0).then(|| &name[..end])
}

/// Lines up to the brace that closes the body; `None` if there is no body.
fn length_from(lines: &[&str]) -> Option<usize> {
    let (mut depth, mut entered) = (0usize, false);
    for (index, line) in lines.iter().enumerate() {
        for c in line.chars() {
            match c {
                '{' => (depth, entered) = (depth + 1, true),
                '}' => depth = depth.checked_sub(1)?,
                ';' if !entered && line.trim_end().ends_with(';') => return None,
                _ => {}
            }
            if entered && depth == 0 {
                return Some(index + 1);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        let body = "    x();\n".repeat(lines - 2);
        format!("//! Header.\npub(crate) fn {name}(a: &str) -> u8 {{\n{body}}}\n")
    }

    fn findings(text: String, exceptions: &str) -> Vec<String> {
        let source = Source { path: "a/b.rs".into(), text };
        let mut findings = Vec::new();
        check(&[&source], exceptions, &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lengths() {
        let text =
            "fn a() {}\nconst fn b() {\n    // }\n}\nfn c(\n    x: u8,\n) -> [u8; 2] {\n    y\n}\n";
        let lengths: Vec<_> = functions_of(text).into_iter().map(|f| (f.name, f.length)).collect();
        assert_eq!(lengths, [("a".into(), 1), ("b".into(), 3), ("c".into(), 5)]);
        assert_eq!(functions_of("trait T {\n    fn a();\n}\n// fn b() {}\ncall(fn_name);\n"), []);
    }

    #[test]
    fn the_limit() {
        assert_eq!(findings(function("f", 70), ""), [""; 0]);
        assert_eq!(findings(function("f", 71), ""), ["a/b.rs:2: f has 71 lines, at most 70"]);
    }

    #[test]
    fn exceptions_only_shrink() {
        assert_eq!(findings(function("f", 80), "# why\na/b.rs f 80\n"), [""; 0]);
        assert_eq!(findings(function("f", 81), "a/b.rs f 80\n").len(), 2);
        assert_eq!(findings(function("f", 79), "a/b.rs f 80\n").len(), 1);
        assert_eq!(findings(function("f", 70), "a/b.rs f 80\n").len(), 1);
        assert_eq!(findings(function("g", 10), "a/b.rs f 80\n").len(), 1);
    }
}
