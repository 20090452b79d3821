//! `--limit`: how much of the host a VM may take before it is ended.
//!
//! The supervisor looks ten times a second (`vm.rs`), and counts output as it copies it: what a
//! guest does in between is more than the limit, but not by much. Neighbour: `args.rs` parses.

use std::time::Duration;

/// How often to look.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// The limits that were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// CPU time of the VM on the host.
    pub(crate) cpu: Option<Duration>,
    /// Memory of the host that it takes, the emulator's own included, in bytes.
    pub(crate) memory: Option<u64>,
    /// Bytes on standard output and standard error together.
    pub(crate) output: Option<u64>,
}

impl Limits {
    /// Adds `cpu=30s,memory=512M,output=1M`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or("want NAME=VALUE, such as cpu=30s")?;
            let was_given = match name {
                "cpu" => limits.cpu.replace(crate::args::parse_duration(value)?).is_some(),
                "memory" => limits.memory.replace(parse_bytes(value)?).is_some(),
                "output" => limits.output.replace(parse_bytes(value)?).is_some(),
                _ => return Err(format!("{name}: there are cpu, memory and output")),
            };
            if was_given {
                return Err(format!("{name} is given twice"));
            }
        }
        Ok(limits)
    }

    /// Several options together; the later one counts.
    pub(crate) fn all(given: &[Self]) -> Self {
        given.iter().fold(Self::default(), |sum, limits| Self {
            cpu: limits.cpu.or(sum.cpu),
            memory: limits.memory.or(sum.memory),
            output: limits.output.or(sum.output),
        })
    }

    /// True if somebody has to look.
    pub(crate) fn needs_looks(&self) -> bool {
        *self != Self::default()
    }

    /// Which limit is reached by what was taken, in words.
    pub(crate) fn exceeded(&self, taken: &Taken) -> Option<String> {
        if self.cpu.is_some_and(|most| taken.cpu > most) {
            return Some(format!("cpu={:?} of CPU time", self.cpu.unwrap_or_default()));
        }
        let over = |most: Option<u64>, taken: u64| most.is_some_and(|most| taken > most);
        if over(self.memory, taken.memory) {
            let most = short(self.memory.unwrap_or(0));
            return Some(format!("memory={most} of the host's memory"));
        }
        if over(self.output, taken.output) {
            return Some(format!("output={} bytes", short(self.output.unwrap_or(0))));
        }
        None
    }
}

/// What a VM has taken so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) cpu: Duration,
    pub(crate) memory: u64,
    pub(crate) output: u64,
}

impl Taken {
    /// Of a process, by proc(5); nothing where it has ended.
    pub(crate) fn of_process(pid: u32, output: u64) -> Self {
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let stat = read("stat");
        // Behind the name, which may have anything in it, utime and stime are fields 12 and 13.
        let behind = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 =
            behind.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        let pages = read("statm").split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let page = rustix::param::page_size() as u64;
        Self {
            cpu: Duration::from_millis(ticks * 1000 / per_second),
            memory: pages.unwrap_or(0) * page,
            output,
        }
    }
}

/// A size as it is given.
fn short(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let fits = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    fits.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// `4096`, `64K`, `1M`, `2G`: bytes.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: u64 = digits.parse().map_err(|_| "want a number, such as 64M".to_owned())?;
    let shift = match unit.trim_end_matches(['i', 'B', 'b']) {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err("unit is K, M or G".to_owned()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named_and_added_up() {
        let first = Limits::parse("cpu=1.5s,output=4K").expect("valid");
        let second = Limits::parse("memory=1G,cpu=2s").expect("valid");
        let all = Limits::all(&[first, second]);
        assert_eq!(all.cpu, Some(Duration::from_secs(2)));
        assert_eq!((all.memory, all.output), (Some(1 << 30), Some(4096)));
        for wrong in ["", "cpu", "cpu=", "time=3", "memory=1T", "output=99999999999G"] {
            assert!(Limits::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_limit_that_is_reached_is_named() {
        let limits = Limits::parse("cpu=1s,memory=64M,output=10").expect("valid");
        let taken = Taken { memory: 1 << 30, ..Taken::default() };
        let said = limits.exceeded(&taken).unwrap_or_default();
        assert_eq!(said, "memory=64M of the host's memory");
        let taken = Taken { output: 11, ..Taken::default() };
        assert!(limits.exceeded(&taken).is_some_and(|text| text.starts_with("output=10")));
        assert_eq!(limits.exceeded(&Taken { output: 10, ..Taken::default() }), None);
        assert!(Limits::default().exceeded(&taken).is_none());
    }

    #[test]
    fn what_this_process_takes_is_found() {
        let taken = Taken::of_process(std::process::id(), 7);
        assert!(taken.memory > 100_000 && taken.output == 7);
        assert_eq!(Taken::of_process(u32::MAX, 0).memory, 0);
    }
}
