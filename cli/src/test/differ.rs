//! The differ level: random programs that must get the same answers from Linux and from Limen.
//!
//! `guest/tests/src/differ` makes programs from a seed, the same everywhere, and records what each
//! call gave back. First both kernels print a hash for each program; where hashes differ, both show
//! the records, and the first line that differs is the finding. Findings are gathered by their key
//! (the call and both answers); the shortest program of each is run again and again with calls left
//! out until each that remains is needed, and printed.
//!
//! Linux is this host's kernel where it gives the program name spaces of its own. It may be of
//! another version than Debian's, so what it says against Limen is held against Debian's kernel in
//! QEMU before it counts. `guest/differ.txt` names the differences that are borne.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Context, Summary, guest, judge};
use crate::Error;

const ALLOWED: &str = "guest/differ.txt";
const DEFAULT_SEED: u64 = 1;
const MEMORY: &str = "512M";
/// Time for a VM beyond that in which it makes programs.
const SPARE_S: u64 = 300;
/// Programs that are shown at most, and findings that are made shorter.
const SHOWN_MAX: usize = 200;
const FINDINGS_MAX: usize = 12;
/// Rounds of leaving out calls.
const ROUNDS_MAX: usize = 12;
/// Bits of a mask of calls.
const MASK_BITS: usize = 64;

/// A kernel that programs run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kernel {
    Host,
    Debian,
    Limen,
}

/// What is run.
struct Rig<'a> {
    context: &'a Context,
    program: PathBuf,
    seed: u64,
    linux: Kernel,
}

/// A program with some of its calls: its number, and the mask of them.
type Which = (u64, u64);

/// A program and what it recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shown {
    calls: Vec<String>,
    record: Vec<String>,
}

/// Where two records part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parting {
    /// The call and both answers, without what differs between programs.
    key: String,
    linux: String,
    limen: String,
    /// The call's number; none where the state at the end differs.
    call: Option<usize>,
}

/// A program that shows a finding.
struct Finding {
    which: Which,
    parting: Parting,
    calls: usize,
}

/// Runs programs for the time given, and compares.
pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    if !context.wants("differ::programs") {
        return Ok(Summary { skipped: 1, ..Summary::default() });
    }
    let seed = if context.seed == 0 { DEFAULT_SEED } else { context.seed };
    let mut rig = Rig { context, program: guest::build(context)?, seed, linux: Kernel::Host };
    let allowed = parse_allowed(&std::fs::read_to_string(context.repository.join(ALLOWED))?)?;
    let seconds = context.time.as_secs();
    let limen = hashes(&rig.say(Kernel::Limen, &words(seed, u64::MAX, seconds), "")?);
    let count = limen.len() as u64;
    let mut linux = hashes(&rig.say(Kernel::Host, &words(seed, count, u64::MAX), "")?);
    if linux.len() < limen.len() {
        tell!("differ: this host does not serve as the judge: Debian's kernel does");
        rig.linux = Kernel::Debian;
        linux = hashes(&rig.say(Kernel::Debian, &words(seed, count, u64::MAX), "")?);
    }
    if count == 0 || linux.len() < limen.len() {
        return Err("not every program was run on both kernels".into());
    }
    let differing = limen.iter().filter(|(index, hash)| linux.get(index) != Some(hash));
    let differing: Vec<Which> = differing.map(|(index, _)| (*index, u64::MAX)).collect();
    let (findings, borne, others) = rig.findings(&differing, &allowed)?;
    for finding in &findings {
        rig.print(finding)?;
    }
    tell!(
        "differ: seed {seed}: {count} programs, {} differ at first sight, {borne} of those shown \
         as {ALLOWED} says, {} findings",
        differing.len(),
        findings.len() + others
    );
    let failed = usize::from(findings.len() + others > 0);
    Ok(Summary { passed: 1 - failed, failed, skipped: 0 })
}

fn words(seed: u64, count: u64, seconds: u64) -> String {
    let count = count.min(u64::from(u32::MAX));
    format!("differ run --seed {seed} --count {count} --seconds {}", seconds.min(1 << 31))
}

impl Rig<'_> {
    /// What the program says on a kernel, started with these words and this input.
    fn say(&self, kernel: Kernel, words: &str, input: &str) -> Result<String, Error> {
        let mut command = match kernel {
            Kernel::Host => Command::new(&self.program),
            Kernel::Debian => {
                let words = words.replace("/dev/stdin", "/differ.list");
                let file = Some(("differ.list", input.as_bytes()));
                return judge::say(&self.program, "", &words, file, 1);
            }
            Kernel::Limen => {
                let mut command = Command::new(&self.context.limen);
                let limit = (self.context.time.as_secs() + SPARE_S).to_string();
                command.args(["run", "--pack", "--memory", MEMORY, "--smp", "1"]);
                command.args(["--timeout", &limit, "--"]).arg(&self.program);
                command
            }
        };
        command.args(words.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped());
        let errors = if kernel == Kernel::Host { Stdio::null() } else { Stdio::inherit() };
        let mut child = command.stderr(errors).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read it says so by what it prints.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Programs and their records.
    fn show(&self, kernel: Kernel, list: &[Which]) -> Result<BTreeMap<Which, Shown>, Error> {
        if list.is_empty() {
            return Ok(BTreeMap::new());
        }
        let seed = self.seed;
        let lines = list.iter().map(|(index, keep)| format!("{seed} {index} {keep}\n"));
        Ok(shown(&self.say(kernel, "differ show /dev/stdin", &lines.collect::<String>())?))
    }

    /// Where Linux and Limen part in these programs, by Debian's kernel too where the host was the
    /// judge.
    fn partings(&self, list: &[Which]) -> Result<BTreeMap<Which, (Parting, usize)>, Error> {
        let linux = self.show(self.linux, list)?;
        let limen = self.show(Kernel::Limen, list)?;
        let mut partings = BTreeMap::new();
        for which in list {
            let Some(linux) = linux.get(which) else { continue };
            let none = Shown::default();
            let limen = limen.get(which).unwrap_or(&none);
            if let Some(parting) = part(linux, limen) {
                partings.insert(*which, (parting, linux.calls.len()));
            }
        }
        Ok(partings)
    }

    /// One finding for each key that is not allowed, the first ones as short as can be; how many
    /// programs differ only as is allowed; and how many findings there are besides.
    fn findings(
        &self,
        differing: &[Which],
        allowed: &[String],
    ) -> Result<(Vec<Finding>, usize, usize), Error> {
        let shown = &differing[..differing.len().min(SHOWN_MAX)];
        let partings = self.partings(shown)?;
        let is_allowed = |key: &str| allowed.iter().any(|pattern| matches(pattern, key));
        let borne = partings.values().filter(|(parting, _)| is_allowed(&parting.key)).count();
        let mut by_key: BTreeMap<String, Finding> = BTreeMap::new();
        for (which, (parting, calls)) in partings {
            if is_allowed(&parting.key) {
                continue;
            }
            let finding = Finding { which, parting, calls };
            match by_key.get(&finding.parting.key) {
                Some(known) if known.calls <= finding.calls => {}
                _ => drop(by_key.insert(finding.parting.key.clone(), finding)),
            }
        }
        let mut findings: Vec<Finding> = by_key.into_values().collect();
        // The short ones first: they are soonest made shorter, and often the others' cause.
        findings.sort_by_key(|finding| finding.parting.call.unwrap_or(finding.calls));
        for finding in findings.iter().skip(FINDINGS_MAX) {
            let (key, index) = (&finding.parting.key, finding.which.0);
            tell!("differ: {key} (program {} {index})", self.seed);
        }
        let others = findings.len().saturating_sub(FINDINGS_MAX);
        findings.truncate(FINDINGS_MAX);
        self.shorten(&mut findings)?;
        if self.linux == Kernel::Host {
            self.ask_debian(&mut findings)?;
        }
        Ok((findings, borne, others))
    }

    /// Leaves calls out as long as the records part at the same key: chunks of half of the calls,
    /// of a quarter, and so on to single ones. All findings at the same time, a VM for each round.
    fn shorten(&self, findings: &mut [Finding]) -> Result<(), Error> {
        for finding in &mut *findings {
            let last = finding.parting.call.map_or(finding.calls, |call| call + 1);
            finding.which.1 = if last >= MASK_BITS { u64::MAX } else { (1 << last) - 1 };
        }
        let mut chunk = MASK_BITS / 4;
        for _ in 0..ROUNDS_MAX {
            let tries: Vec<Vec<Which>> =
                findings.iter().map(|finding| shorter(finding.which, chunk)).collect();
            let partings = self.partings(&tries.concat())?;
            let mut any = false;
            for (finding, tries) in findings.iter_mut().zip(&tries) {
                let holds = |which: &&Which| {
                    let parting = partings.get(*which).map(|(parting, _)| &parting.key);
                    parting == Some(&finding.parting.key)
                };
                if let Some(which) = tries.iter().find(holds) {
                    finding.parting = partings[which].0.clone();
                    finding.which = *which;
                    any = true;
                }
            }
            match (any, chunk) {
                (true, _) => {}
                (false, 1) => return Ok(()),
                (false, _) => chunk /= 2,
            }
        }
        Ok(())
    }

    /// Takes out the findings in which Debian's kernel agrees with Limen, or not with itself.
    fn ask_debian(&self, findings: &mut Vec<Finding>) -> Result<(), Error> {
        let list: Vec<Which> = findings.iter().map(|finding| finding.which).collect();
        let debian = self.show(Kernel::Debian, &list)?;
        let limen = self.show(Kernel::Limen, &list)?;
        findings.retain(|finding| {
            let (debian, limen) = (debian.get(&finding.which), limen.get(&finding.which));
            let Some((debian, limen)) = debian.zip(limen) else { return true };
            part(debian, limen).is_some_and(|parting| parting.key == finding.parting.key)
        });
        Ok(())
    }

    fn print(&self, finding: &Finding) -> Result<(), Error> {
        let shown = self.show(self.linux, &[finding.which])?;
        let (index, keep) = finding.which;
        tell!("differ: {}", finding.parting.key);
        tell!("    program {} {index} {keep}:", self.seed);
        let none = Shown::default();
        for call in &shown.get(&finding.which).unwrap_or(&none).calls {
            tell!("      {call}");
        }
        tell!("    Linux: {}\n    Limen: {}", finding.parting.linux, finding.parting.limen);
        Ok(())
    }
}

/// This mask with one chunk of its calls left out, in all ways.
fn shorter((index, keep): Which, chunk: usize) -> Vec<Which> {
    let bits: Vec<usize> = (0..MASK_BITS).filter(|bit| keep >> bit & 1 == 1).collect();
    let chunks = bits.chunks(chunk).filter(|chunk| chunk.len() < bits.len());
    let without = |chunk: &[usize]| chunk.iter().fold(keep, |keep, bit| keep & !(1 << bit));
    chunks.map(|chunk| (index, without(chunk))).collect()
}

/// The lines `hashes FIRST HASH…`.
fn hashes(text: &str) -> BTreeMap<u64, String> {
    let mut hashes = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.trim_end().split(' ');
        let first = (words.next() == Some("hashes")).then(|| words.next()?.parse::<u64>().ok());
        let Some(first) = first.flatten() else { continue };
        hashes.extend(words.enumerate().map(|(at, hash)| (first + at as u64, hash.to_owned())));
    }
    hashes
}

/// The lines between `program SEED INDEX KEEP` and `end`.
fn shown(text: &str) -> BTreeMap<Which, Shown> {
    let mut all = BTreeMap::new();
    let mut current: Option<(Which, Shown)> = None;
    for line in text.lines() {
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        match (word, &mut current) {
            ("program", _) => {
                let words: Vec<u64> = rest.split(' ').filter_map(|w| w.parse().ok()).collect();
                current = match words[..] {
                    [_, index, keep] => Some(((index, keep), Shown::default())),
                    _ => None,
                };
            }
            ("call", Some((_, shown))) => shown.calls.push(rest.to_owned()),
            ("record", Some((_, shown))) => shown.record.push(rest.to_owned()),
            ("end", _) => all.extend(current.take()),
            _ => {}
        }
    }
    all
}

/// The first line in which two records differ.
fn part(linux: &Shown, limen: &Shown) -> Option<Parting> {
    let length = linux.record.len().max(limen.record.len());
    let line = |shown: &Shown, at: usize| shown.record.get(at).cloned().unwrap_or_default();
    let (a, b) = (0..length).map(|at| (line(linux, at), line(limen, at))).find(|(a, b)| a != b)?;
    let number = |line: &str| line.split(' ').next().and_then(|word| word.parse::<usize>().ok());
    let call = number(&a).or(number(&b));
    let key = match call {
        Some(call) => {
            let text = linux.calls.get(call).map_or("?", String::as_str);
            format!("{} {} {}", call_name(text), answer(&a), answer(&b))
        }
        None => without_numbers(&a.split(' ').take(2).collect::<Vec<_>>().join(" ")),
    };
    Some(Parting { key, linux: a, limen: b, call })
}

/// `r3 = Thread: read(r1, …)` is about `read`.
fn call_name(call: &str) -> &str {
    let head = call.split('(').next().unwrap_or(call);
    head.rsplit(' ').next().unwrap_or(head)
}

/// The value or errno in a line of a record.
fn answer(line: &str) -> String {
    without_numbers(line.split(' ').nth(1).unwrap_or("nothing"))
}

/// Numbers become `#`.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

/// Reads [`ALLOWED`].
fn parse_allowed(text: &str) -> Result<Vec<String>, Error> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let key = |line: &str| {
        let (key, reason) = line.split_once(": ")?;
        (!reason.trim().is_empty()).then(|| key.to_owned())
    };
    lines
        .map(|line| key(line).ok_or_else(|| format!("{ALLOWED}: no reason: {line}").into()))
        .collect()
}

/// True if a key is what a pattern says, where `*` stands for any text.
fn matches(pattern: &str, key: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == key,
        Some((head, tail)) => key.strip_prefix(head).is_some_and(|rest| {
            let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            starts.any(|at| matches(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "program 1 7 255\ncall 0 r0 = openat(-100)\ncall 1 Thread: read(r0, 5)\n\
        record 0 3\nrecord 1 EBADF\nrecord fd 3 0 x\nend 1 7 255\nprogram 1 8 1\nrecord 0 1\n";

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let all = shown(SAID);
        assert_eq!(all.len(), 1);
        assert_eq!(all[&(7, 255)].record, ["0 3", "1 EBADF", "fd 3 0 x"]);
        let text = "noise\nhashes 16 aa bb\r\nran 2 programs\n";
        assert_eq!(hashes(text), BTreeMap::from([(16, "aa".into()), (17, "bb".into())]));
    }

    #[test]
    fn records_part_at_the_first_line_that_differs() {
        let linux = shown(SAID).remove(&(7, 255)).unwrap_or_default();
        let mut limen = linux.clone();
        assert_eq!(part(&linux, &limen), None);
        limen.record[1] = "1 24".into();
        let parting = part(&linux, &limen).unwrap();
        assert_eq!((parting.key.as_str(), parting.call), ("read EBADF #", Some(1)));
        limen.record.truncate(1);
        assert_eq!(part(&linux, &limen).unwrap().key, "read EBADF nothing");
        limen.record = linux.record.clone();
        limen.record[2] = "fd 3 1 x".into();
        assert_eq!(part(&linux, &limen).unwrap().key, "fd #");
    }

    #[test]
    fn each_chunk_is_left_out_once() {
        assert_eq!(shorter((3, 0b1011), 1), [(3, 0b1010), (3, 0b1001), (3, 0b0011)]);
        assert_eq!(shorter((3, 0b1011), 2), [(3, 0b1000), (3, 0b0011)]);
        assert_eq!(shorter((3, 0b1), 1), []);
    }

    #[test]
    fn differences_are_borne_for_a_reason() {
        let allowed = parse_allowed("# note\nstat # *: why\n").unwrap();
        assert!(matches(&allowed[0], "stat # EINVAL"));
        assert!(!matches(&allowed[0], "fstat # EINVAL"));
        assert!(parse_allowed("stat # *\n").is_err());
    }
}
