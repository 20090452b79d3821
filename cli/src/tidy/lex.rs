//! Takes comments and strings out of Rust source, so that rules see code alone.
//!
//! Not a parser: it knows comments (nested), strings (raw, byte), characters and lifetimes, which
//! is what it takes to tell code from text. Neighbours: `rules.rs`, `functions.rs`.

/// The source with the contents of comments, strings and characters replaced by spaces. Lines
/// stay where they are.
pub(super) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match text_end(&chars, at) {
            Some(end) => end.min(chars.len()),
            None => {
                out.push(chars[at]);
                at += 1;
                continue;
            }
        };
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// If a comment, string or character begins at `at`: where it ends.
fn text_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match (chars[at], next) {
        ('/', Some('/')) => Some(find(chars, at, |c| c == '\n')),
        ('/', Some('*')) => Some(block_comment_end(chars, at)),
        ('"', _) => Some(string_end(chars, at + 1)),
        ('r', Some('"' | '#')) if !follows_word(chars, at) => raw_string_end(chars, at + 1),
        ('\'', Some('\\')) => Some(find(chars, at + 3, |c| c == '\'') + 1),
        // A lifetime has no second quote.
        ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => Some(at + 3),
        _ => None,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    // `br"` begins a raw string as well.
    let before = |distance: usize| at.checked_sub(distance).map(|index| chars[index]);
    match before(1) {
        Some('b' | 'c') => before(2).is_some_and(|c| c.is_alphanumeric() || c == '_'),
        Some(c) => c.is_alphanumeric() || c == '_',
        None => false,
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|&index| wanted(chars[index])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// `at` is behind the `r`. `None` for a raw identifier.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let open = find(chars, at, |c| c != '#');
    let hashes = open - at;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let mut at = open + 1;
    loop {
        at = find(chars, at, |c| c == '"') + 1;
        let closing = chars.iter().skip(at).take(hashes);
        if at > chars.len() || closing.filter(|&&c| c == '#').count() == hashes {
            return Some(at + hashes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        code_only(source).split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn text_vanishes_and_code_stays() {
        assert_eq!(words("a // b\nc"), ["a", "c"]);
        assert_eq!(words("a /* b /* c */ d */ e"), ["a", "e"]);
        assert_eq!(words(r#"a "b \" c" d"#), ["a", "d"]);
        assert_eq!(words(r##"a r#"b " c"# d"##), ["a", "d"]);
        assert_eq!(words("a '\"' b '\\'' c 'd e"), ["a", "b", "c", "'d", "e"]);
        assert_eq!(words("r#type br\"x\" bar\"y\""), ["r#type", "b", "bar"]);
    }

    #[test]
    fn lines_stay_and_broken_sources_end() {
        assert_eq!(code_only("\"a\nb\"\nc").matches('\n').count(), 2);
        for broken in ["\"", "/*", "'\\", "r#\"", "r#", "'", "\"\\"] {
            assert!(code_only(broken).len() <= broken.len(), "{broken}");
        }
    }
}
