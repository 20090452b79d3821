//! The first line of a script: `#!INTERPRETER [ARGUMENT]` (execve(2)).
//!
//! Neighbours: `kernel/src/exec` follows such lines, and `limen pack` packs what they
//! name.

/// As much of a script as is looked at, `#!` and all (BINPRM_BUF_SIZE, execve(2)).
pub const START_MAX: usize = 256;

/// What a first line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// The interpreter's path.
    pub interpreter: &'a [u8],
    /// All that follows it, as one argument.
    pub argument: Option<&'a [u8]>,
}

impl<'a> Script<'a> {
    /// From the start of a file, up to [`START_MAX`] bytes of it. `None` if it is no script, or
    /// names no interpreter, or if that is not known to be whole.
    #[must_use]
    pub fn parse(start: &'a [u8]) -> Option<Self> {
        let is_cut = start.len() >= START_MAX;
        let line = start[..start.len().min(START_MAX)].strip_prefix(b"#!")?;
        let end = line.iter().position(|&byte| byte == b'\n' || byte == 0);
        let line = trim(&line[..end.unwrap_or(line.len())]);
        let blank = line.iter().position(is_blank);
        let (interpreter, rest) = line.split_at(blank.unwrap_or(line.len()));
        if interpreter.is_empty() || is_cut && end.is_none() && blank.is_none() {
            return None;
        }
        let rest = trim(rest);
        Some(Self { interpreter, argument: (!rest.is_empty()).then_some(rest) })
    }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Without blanks around it. A carriage return is none: it is a part of the name.
fn trim(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(start: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
        Script::parse(start).map(|script| (script.interpreter, script.argument))
    }

    #[test]
    fn interpreter_and_one_argument() {
        assert_eq!(parsed(b"#!/bin/sh\nx"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(parsed(b"#!\t/bin/sh -e  x \n"), Some((&b"/bin/sh"[..], Some(&b"-e  x"[..]))));
        assert_eq!(parsed(b"#! a\0b"), Some((&b"a"[..], None)));
        assert_eq!(parsed(b"#!/bin/sh\r\n"), Some((&b"/bin/sh\r"[..], None)));
        assert_eq!(parsed(b"#!a"), Some((&b"a"[..], None)));
        for none in [&b"#!\n"[..], b"#!  \n/x", b"#", b"", b"\x7fELF", b"#!\0"] {
            assert_eq!(parsed(none), None);
        }
    }

    #[test]
    fn a_cut_path_is_none_and_a_cut_argument_counts() {
        let line = |separator: &[u8]| [&b"#!/b"[..], separator, &[b'x'; START_MAX]].concat();
        assert_eq!(parsed(&line(b"")[..START_MAX]), None);
        assert_eq!(parsed(&line(b"")), None);
        let cut = line(b" ");
        assert_eq!(parsed(&cut).map(|(path, _)| path), Some(&b"/b"[..]));
    }
}
