//! Which CPUs are left alone: `isolcpus=` and `nohz_full=`, as lists of CPUs.
//!
//! `isolcpus=[domain,][nohz,][managed_irq,]LIST`: threads run there only if their affinity names no
//! other CPU; nothing is balanced there. `nohz_full=LIST`: no tick while one thread runs, and
//! deferrable work waits. The first CPU keeps the time and cannot be either.

/// A list of CPUs that cannot be read. The word is ignored then, with a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadList {
    /// Not a number where one is needed.
    Number,
    /// A range that ends before it starts, or a group of 0.
    Range,
    /// A flag that is not known.
    Flag,
}

/// CPUs one mask can name.
const CPUS_MAX: u32 = u32::BITS;

/// Reads a list such as `1,3-5,8-15:2/4` (two of each four), `all`, or `N` for the last of `count`
/// CPUs. CPUs beyond `count` are left out without complaint: one command line fits many machines.
///
/// # Errors
/// See [`BadList`].
pub fn parse_list(text: &str, count: usize) -> Result<u32, BadList> {
    let mut mask = 0;
    for part in text.split(',').filter(|part| !part.is_empty()) {
        mask |= parse_part(part, count)?;
    }
    Ok(mask & all(count))
}

/// The mask of the first `count` CPUs.
#[must_use]
pub const fn all(count: usize) -> u32 {
    if count >= CPUS_MAX as usize { u32::MAX } else { (1 << count) - 1 }
}

fn parse_part(part: &str, count: usize) -> Result<u32, BadList> {
    if part == "all" {
        return Ok(all(count));
    }
    let (range, pattern) = match part.split_once(':') {
        Some((range, pattern)) => (range, Some(pattern)),
        None => (part, None),
    };
    let (first, last) = match range.split_once('-') {
        Some((first, last)) => (number(first, count)?, number(last, count)?),
        None => (number(range, count)?, number(range, count)?),
    };
    let (used, group) = match pattern.map(|pattern| pattern.split_once('/')) {
        None => (1, 1),
        Some(None) => return Err(BadList::Number),
        Some(Some((used, group))) => (number(used, count)?, number(group, count)?),
    };
    if first > last || group == 0 || used > group {
        return Err(BadList::Range);
    }
    let last = last.min(CPUS_MAX - 1);
    let wanted = (first..=last).filter(|cpu| (cpu - first) % group < used);
    Ok(wanted.fold(0, |mask, cpu| mask | 1 << cpu))
}

fn number(text: &str, count: usize) -> Result<u32, BadList> {
    if text == "N" {
        return Ok((count.max(1) - 1) as u32);
    }
    // `parse` would take a sign.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadList::Number);
    }
    text.parse().map_err(|_| BadList::Number)
}

/// Which CPUs are left alone, and in what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Isolation {
    /// No thread goes there that is not placed there.
    pub isolated: u32,
    /// No tick for a thread that is alone, and deferrable work waits.
    pub nohz_full: u32,
    /// What was asked for but cannot be: the first CPU.
    pub refused: u32,
}

impl Isolation {
    /// From the kernel's command line.
    ///
    /// # Errors
    /// As [`Isolation::parse`].
    pub fn from_command_line(
        line: &str,
        count: usize,
    ) -> Result<Isolation, (&'static str, BadList)> {
        Isolation::parse(last_value(line, "isolcpus"), last_value(line, "nohz_full"), count)
    }

    /// From the values of `isolcpus=` and `nohz_full=`, `None` where a word is absent.
    ///
    /// # Errors
    /// The list that cannot be read, by the name of its word.
    pub fn parse(
        isolcpus: Option<&str>,
        nohz_full: Option<&str>,
        count: usize,
    ) -> Result<Isolation, (&'static str, BadList)> {
        let mut result = Isolation::default();
        if let Some(value) = isolcpus {
            let (domain, nohz, list) = flags(value).map_err(|bad| ("isolcpus", bad))?;
            let list = parse_list(list, count).map_err(|bad| ("isolcpus", bad))?;
            // Without any flag, and with managed_irq alone, the list means the scheduler's domain.
            result.isolated = if domain || !nohz { list } else { 0 };
            result.nohz_full = if nohz { list } else { 0 };
        }
        if let Some(value) = nohz_full {
            result.nohz_full |= parse_list(value, count).map_err(|bad| ("nohz_full", bad))?;
        }
        result.refused = (result.isolated | result.nohz_full) & 1;
        result.isolated &= !1;
        result.nohz_full &= !1;
        Ok(result)
    }
}

/// The value of the last `name=value` of a command line.
#[must_use]
fn last_value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
    line.split_ascii_whitespace().rev().find_map(value)
}

/// The flags before the list: whether `domain` and `nohz` are among them, and the list.
fn flags(value: &str) -> Result<(bool, bool, &str), BadList> {
    let (mut domain, mut nohz, mut rest) = (false, false, value);
    while rest.starts_with(|first: char| first.is_ascii_lowercase()) && !is_all(rest) {
        let (flag, after) = rest.split_once(',').unwrap_or((rest, ""));
        match flag {
            "domain" => domain = true,
            "nohz" => nohz = true,
            "managed_irq" => {}
            _ => return Err(BadList::Flag),
        }
        rest = after;
    }
    Ok((domain, nohz, rest))
}

fn is_all(list: &str) -> bool {
    list == "all" || list.starts_with("all,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (text, count, expected) in [
            ("", 4, Ok(0)),
            ("2", 4, Ok(0b100)),
            ("2,3", 4, Ok(0b1100)),
            ("1-3", 4, Ok(0b1110)),
            ("1-3,0", 8, Ok(0b1111)),
            ("0-7:2/4", 8, Ok(0b0011_0011)),
            ("0-7:1/2", 8, Ok(0b0101_0101)),
            ("all", 3, Ok(0b111)),
            ("N", 4, Ok(0b1000)),
            ("2-N", 4, Ok(0b1100)),
            ("7", 4, Ok(0)),
            ("1-4000000000", 4, Ok(0b1110)),
            ("3-1", 4, Err(BadList::Range)),
            ("0-3:1/0", 4, Err(BadList::Range)),
            ("0-3:3/2", 4, Err(BadList::Range)),
            ("0-3:3", 4, Err(BadList::Number)),
            ("x", 4, Err(BadList::Number)),
            ("+1", 4, Err(BadList::Number)),
            ("-1", 4, Err(BadList::Number)),
            ("1-", 4, Err(BadList::Number)),
            ("99999999999", 4, Err(BadList::Number)),
        ] {
            assert_eq!(parse_list(text, count), expected, "{text}");
        }
    }

    #[test]
    fn words() {
        let parse = |isolcpus, nohz_full| Isolation::parse(isolcpus, nohz_full, 4);
        let of = |isolated, nohz_full, refused| Ok(Isolation { isolated, nohz_full, refused });
        assert_eq!(parse(None, None), of(0, 0, 0));
        assert_eq!(parse(Some("2,3"), Some("2,3")), of(0b1100, 0b1100, 0));
        assert_eq!(parse(Some("2,3"), None), of(0b1100, 0, 0));
        assert_eq!(parse(None, Some("1")), of(0, 0b10, 0));
        assert_eq!(parse(Some("nohz,domain,2"), None), of(0b100, 0b100, 0));
        assert_eq!(parse(Some("nohz,2"), None), of(0, 0b100, 0));
        assert_eq!(parse(Some("managed_irq,2"), None), of(0b100, 0, 0));
        assert_eq!(parse(Some("managed_irq,domain,all"), None), of(0b1110, 0, 1));
        assert_eq!(parse(None, Some("0-3")), of(0, 0b1110, 1));
        let line = "isolcpus=1 quiet nohz_full=2 isolcpus=2,3";
        let of_line = Isolation::from_command_line(line, 4);
        assert_eq!(of_line, of(0b1100, 0b100, 0), "the last one counts");
        assert_eq!(parse(Some("quiet,2"), None), Err(("isolcpus", BadList::Flag)));
        assert_eq!(parse(None, Some("domain,2")), Err(("nohz_full", BadList::Number)));
    }
}
