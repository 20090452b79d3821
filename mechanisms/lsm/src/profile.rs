//! Profiles: what a program may do with which paths and ports. All else is denied.
//!
//! The command line compiles a profile from TOML to the lines that [`Profile::decode`] reads:
//!
//! ```text
//! limen-profile 1 app.toml
//! allow 4 read /usr/lib/**
//! deny 9 write /home/*/.ssh/**
//! end
//! ```
//!
//! A number is the line of the source, so that a denial can name it. Whatever does not read like
//! this, or has no end, is no profile: the machine does not start, rather than run without one.
//! A pattern is text, `?` (a character but `/`), `*` (any number of those) and `**` (anything);
//! `DIR/**` means DIR itself, too. What is denied by a rule stays denied, whatever allows it.
//!
//! Bounds: [`RULES_MAX`] rules, [`PATTERN_MAX`] bytes each; matching is linear in a path for each
//! star.

use alloc::string::String;
use alloc::vec::Vec;

/// Most rules of a profile.
pub const RULES_MAX: usize = 4096;
/// Longest pattern, bytes.
pub const PATTERN_MAX: usize = 4096;
/// Longest text of a profile, bytes.
pub const TEXT_MAX: usize = 1 << 20;
/// What the first line begins with.
const MAGIC: &str = "limen-profile 1 ";
/// The first line's word after the name, if the program is only recorded.
const LEARN: &str = " learn";

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// A file is opened for reading, a folder listed.
    Read,
    /// A file is opened for writing, made, changed in name or attributes, or removed.
    Write,
    /// A file is executed.
    Execute,
    /// A socket connects or sends to an address: `tcp:443`, `udp:53`, `unix:/run/x`, `unix:@x`.
    Connect,
    /// A socket takes an address.
    Bind,
}

/// All of them.
pub const ACCESSES: [Access; 5] =
    [Access::Read, Access::Write, Access::Execute, Access::Connect, Access::Bind];

impl Access {
    /// Its word in a compiled profile.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Execute => "execute",
            Access::Connect => "connect",
            Access::Bind => "bind",
        }
    }

    /// The one with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Access> {
        ACCESSES.into_iter().find(|access| access.word() == word)
    }
}

/// A line of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether it allows or denies.
    pub allows: bool,
    /// Its line in the source.
    pub line: u32,
    /// What is done.
    pub access: Access,
    /// To which objects.
    pub pattern: String,
}

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The source's name, for people.
    pub name: String,
    /// Whether everything is allowed, and told.
    pub learns: bool,
    /// In the order of the source.
    pub rules: Vec<Rule>,
}

/// What a profile says to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be done.
    Allowed,
    /// The rule in this line denies it.
    DeniedBy(u32),
    /// No rule allows it.
    NotAllowed,
}

/// A text that is no profile: the line that is wrong, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The line.
    pub line: usize,
}

impl Profile {
    /// The text that [`Profile::decode`] reads. Names and patterns have no control characters.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::from(MAGIC);
        text.push_str(&self.name);
        text.push_str(if self.learns { LEARN } else { "" });
        for rule in &self.rules {
            let verb = if rule.allows { "allow" } else { "deny" };
            let (line, word) = (rule.line, rule.access.word());
            text.push_str(&alloc::format!("\n{verb} {line} {word} {}", rule.pattern));
        }
        text.push_str("\nend\n");
        text
    }

    /// Reads a compiled profile.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn decode(text: &[u8]) -> Result<Profile, Unreadable> {
        let wrong = |index: usize| Unreadable { line: index + 1 };
        let text = core::str::from_utf8(text).map_err(|_| wrong(0))?;
        if text.len() > TEXT_MAX {
            return Err(wrong(0));
        }
        let mut lines = text.split('\n').enumerate();
        let first = lines.next().and_then(|(_, line)| line.strip_prefix(MAGIC)).ok_or(wrong(0))?;
        let (name, learns) = match first.strip_suffix(LEARN) {
            Some(name) => (name, true),
            None => (first, false),
        };
        if name.is_empty() || name.contains(char::is_control) {
            return Err(wrong(0));
        }
        let mut profile = Profile { name: name.into(), learns, rules: Vec::new() };
        for (index, line) in &mut lines {
            if line == "end" {
                // Nothing but the last newline comes after it.
                let rest = (lines.next(), lines.next());
                let is_last = matches!(rest, (Some((_, "")), None));
                return if is_last { Ok(profile) } else { Err(wrong(index + 1)) };
            }
            if profile.rules.len() == RULES_MAX {
                return Err(wrong(index));
            }
            profile.rules.push(Rule::decode(line).ok_or(wrong(index))?);
        }
        Err(wrong(text.split('\n').count()))
    }

    /// What the profile says to an access. Rules that deny win.
    #[must_use]
    pub fn decide(&self, access: Access, object: &[u8]) -> Decision {
        let matching = |allows: bool| {
            let mut of = self.rules.iter().filter(|r| r.allows == allows && r.access == access);
            of.find(|rule| matches(rule.pattern.as_bytes(), object))
        };
        if self.learns {
            return Decision::Allowed;
        }
        match (matching(false), matching(true)) {
            (Some(rule), _) => Decision::DeniedBy(rule.line),
            (None, Some(_)) => Decision::Allowed,
            (None, None) => Decision::NotAllowed,
        }
    }
}

impl Rule {
    fn decode(line: &str) -> Option<Rule> {
        let mut words = line.splitn(4, ' ');
        let allows = match words.next()? {
            "allow" => true,
            "deny" => false,
            _ => return None,
        };
        let number = words.next()?;
        // One way to write a number, so that equal profiles are equal texts.
        let line = number.parse::<u32>().ok().filter(|n| alloc::format!("{n}") == number)?;
        let access = Access::from_word(words.next()?)?;
        let pattern = words.next()?;
        let good = !pattern.is_empty()
            && pattern.len() <= PATTERN_MAX
            && !pattern.contains(char::is_control);
        good.then(|| Rule { allows, line, access, pattern: pattern.into() })
    }
}

/// Whether a pattern means an object.
#[must_use]
pub fn matches(pattern: &[u8], object: &[u8]) -> bool {
    match pattern.strip_suffix(b"/**") {
        Some(folder) if !folder.is_empty() && glob(folder, object) => true,
        _ => glob(pattern, object),
    }
}

/// Where to go on if what follows a star does not match: in the pattern behind it, in the object.
type Retry = (usize, usize);

fn glob(pattern: &[u8], object: &[u8]) -> bool {
    let (mut p, mut o) = (0, 0);
    // The last star of each kind; a later `**` makes earlier stars needless, a later `*` does not
    // make an earlier `**` so.
    let (mut star, mut double): (Option<Retry>, Option<Retry>) = (None, None);
    loop {
        match pattern.get(p) {
            Some(b'*') if pattern.get(p + 1) == Some(&b'*') => {
                p += 2;
                (star, double) = (None, Some((p, o)));
                continue;
            }
            Some(b'*') => {
                p += 1;
                star = Some((p, o));
                continue;
            }
            Some(&wanted) => {
                let fits = object
                    .get(o)
                    .is_some_and(|&byte| byte == wanted || wanted == b'?' && byte != b'/');
                if fits {
                    (p, o) = (p + 1, o + 1);
                    continue;
                }
            }
            None if o == object.len() => return true,
            None => {}
        }
        // One more byte belongs to a star: to `*` unless that is a slash, else to `**`.
        if let Some((after, at)) = star
            && object.get(at).is_some_and(|&byte| byte != b'/')
        {
            star = Some((after, at + 1));
            (p, o) = (after, at + 1);
        } else if let Some((after, at)) = double
            && at < object.len()
        {
            (star, double) = (None, Some((after, at + 1)));
            (p, o) = (after, at + 1);
        } else {
            return false;
        }
    }
}
