//! The differ level: random programs that must get the same answers from Linux and from Limen.
//!
//! `guest/tests/src/differ` makes programs from a seed, the same everywhere, and records what each
//! call gave back. First this host's Linux and Limen print a hash for each program, at the same
//! time; where hashes differ, both and Debian's kernel in QEMU show the records. Limen must answer
//! as one of the two Linuxes, whose versions differ; the first line that is neither's is the
//! finding. Findings are gathered by their key (the call and both answers); the shortest program of
//! each is run again and again with calls left out until each that remains is needed, and printed.
//!
//! `guest/differ.txt` names the differences that are borne, each with a reason and a program that
//! shows it: one that shows nothing any more fails the test, as a difference that is not there
//! does. Behind a difference between two errors, which change nothing, the comparison goes on.

use std::collections::{BTreeMap, BTreeSet};
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
/// Programs are made in this part of the level's time: then records are shown and made shorter.
const MAKING: u64 = 2;
/// Programs that are made where the level was not asked for by name.
const COUNT_BESIDE_OTHERS: u64 = 2500;
/// Programs whose records are shown by one VM, and findings that are made shorter.
const SHOWN_MAX: usize = 2000;
const FINDINGS_MAX: usize = 80;
/// Rounds of leaving out calls.
const ROUNDS_MAX: usize = 12;
/// Bits of a mask of calls.
const MASK_BITS: usize = 64;

/// Whether this host's Linux has protection keys (OSPKE). Where it has none neither Linux answers
/// as if there were some, and Limen must have none to be compared.
fn has_keys() -> bool {
    std::arch::x86_64::__cpuid_count(7, 0).ecx >> 4 & 1 != 0
}

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
    /// This host's kernel serves as a judge, too.
    has_host: bool,
    list: Vec<Borne>,
}

/// A difference that is borne.
#[derive(Clone, Debug)]
struct Borne {
    /// Its key, where `*` stands for any text.
    pattern: String,
    /// The seed and the program that show it.
    witness: (u64, u64),
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

/// A program that shows a finding, and its calls as text.
struct Finding {
    which: Which,
    parting: Parting,
    calls: Vec<String>,
}

/// What comparing programs gave.
#[derive(Default)]
struct Outcome {
    by_key: BTreeMap<String, Finding>,
    /// Entries of the list that were seen, and the first program that showed each.
    fired: BTreeMap<usize, u64>,
    /// Programs that part only as the list says.
    borne: usize,
    /// Programs that part otherwise.
    parted: usize,
}

/// Runs programs for the time given, and compares.
pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    if !context.wants("differ::programs") {
        return Ok(Summary { skipped: 1, ..Summary::default() });
    }
    let seed = if context.seed == 0 { DEFAULT_SEED } else { context.seed };
    let list = parse_allowed(&std::fs::read_to_string(context.repository.join(ALLOWED))?)?;
    let program = guest::build(context)?;
    let mut rig = Rig { context, program, seed, has_host: true, list };
    let (count, differing) = rig.compare_hashes()?;
    let mut outcome = Outcome::default();
    for some in differing.chunks(SHOWN_MAX) {
        rig.look(seed, some, &mut outcome)?;
    }
    let silent = rig.silent(&outcome.fired)?;
    if context.verbose {
        for (number, program) in &outcome.fired {
            tell!("differ: program {seed} {program} shows {}", rig.list[*number].pattern);
        }
    }
    for pattern in &silent {
        failed!("differ: {ALLOWED}: its program does not show it any more: {pattern}");
    }
    let (borne, parted) = (outcome.borne, outcome.parted);
    let mut findings: Vec<Finding> = outcome.by_key.into_values().collect();
    let found = findings.len();
    // The short ones first: they are soonest made shorter, and often the others' cause.
    findings.sort_by_key(|finding| finding.parting.call.unwrap_or(finding.calls.len()));
    for finding in findings.iter().skip(FINDINGS_MAX) {
        tell!("differ: {} (program {seed} {})", finding.parting.key, finding.which.0);
    }
    findings.truncate(FINDINGS_MAX);
    rig.shorten(&mut findings)?;
    for finding in &findings {
        finding.print(seed);
    }
    tell!(
        "differ: seed {seed}: {count} programs: {} agree, {borne} but for what {ALLOWED} says; \
         {parted} differ, in {found} ways",
        count - parted as u64,
    );
    let failed = usize::from(found + silent.len() > 0);
    Ok(Summary { passed: 1 - failed, failed, skipped: 0 })
}

fn words(seed: u64, count: u64, seconds: u64) -> String {
    let count = count.min(u64::from(u32::MAX));
    format!("differ run --seed {seed} --count {count} --seconds {}", seconds.min(1 << 31))
}

impl Rig<'_> {
    /// Has both kernels make programs: how many, and those whose hashes differ.
    fn compare_hashes(&mut self) -> Result<(u64, Vec<Which>), Error> {
        // Beside the other levels always the same: what is found does not depend on the host.
        let most = if self.context.is_named { u64::MAX } else { COUNT_BESIDE_OTHERS };
        let asked = words(self.seed, most, self.context.time.as_secs() / MAKING);
        let (limen, mut linux) = std::thread::scope(|scope| {
            let host = scope.spawn(|| self.say(Kernel::Host, &asked, "").unwrap_or_default());
            let limen = self.say(Kernel::Limen, &asked, "");
            (limen, hashes(&host.join().unwrap_or_default()))
        });
        let limen = hashes(&limen?);
        if linux.is_empty() {
            tell!("differ: this host does not serve as a judge: Debian's kernel does alone");
            self.has_host = false;
            let asked = words(self.seed, limen.len() as u64, u64::MAX);
            linux = hashes(&self.say(Kernel::Debian, &asked, "")?);
        }
        let count = limen.len().min(linux.len()) as u64;
        if count == 0 {
            return Err("no program was run on both kernels".into());
        }
        let both = limen.iter().filter(|(index, _)| **index < count);
        let differing = both.filter(|(index, hash)| linux.get(index) != Some(hash));
        Ok((count, differing.map(|(index, _)| (*index, u64::MAX)).collect()))
    }

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
                if !has_keys() {
                    command.args(["--cpu", "max,-pku"]);
                }
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
    fn show(
        &self,
        kernel: Kernel,
        seed: u64,
        list: &[Which],
    ) -> Result<BTreeMap<Which, Shown>, Error> {
        if list.is_empty() || kernel == Kernel::Host && !self.has_host {
            return Ok(BTreeMap::new());
        }
        let lines = list.iter().map(|(index, keep)| format!("{seed} {index} {keep}\n"));
        Ok(shown(&self.say(kernel, "differ show /dev/stdin", &lines.collect::<String>())?))
    }

    /// Compares these programs, and adds what is found.
    fn look(&self, seed: u64, list: &[Which], outcome: &mut Outcome) -> Result<(), Error> {
        let [debian, host, limen] = self.show_all(seed, list)?;
        for which in list {
            let Some(debian) = debian.get(which) else { continue };
            let none = Shown::default();
            let limen = limen.get(which).unwrap_or(&none);
            let (parting, fired) = compare(debian, host.get(which), limen, &self.list);
            outcome.borne += usize::from(parting.is_none() && !fired.is_empty());
            for number in fired {
                outcome.fired.entry(number).or_insert(which.0);
            }
            let Some(parting) = parting else { continue };
            outcome.parted += 1;
            let finding = Finding { which: *which, parting, calls: debian.calls.clone() };
            match outcome.by_key.get(&finding.parting.key) {
                Some(known) if known.calls.len() <= finding.calls.len() => {}
                _ => drop(outcome.by_key.insert(finding.parting.key.clone(), finding)),
            }
        }
        Ok(())
    }

    fn show_all(&self, seed: u64, list: &[Which]) -> Result<[BTreeMap<Which, Shown>; 3], Error> {
        let debian = self.show(Kernel::Debian, seed, list)?;
        let host = self.show(Kernel::Host, seed, list)?;
        Ok([debian, host, self.show(Kernel::Limen, seed, list)?])
    }

    /// Entries of the list whose programs do not show them.
    fn silent(&self, fired: &BTreeMap<usize, u64>) -> Result<Vec<String>, Error> {
        let others =
            || self.list.iter().enumerate().filter(|(number, _)| !fired.contains_key(number));
        let mut outcome = Outcome::default();
        let seeds: BTreeSet<u64> = others().map(|(_, borne)| borne.witness.0).collect();
        for seed in seeds {
            let of_seed = others().filter(|(_, borne)| borne.witness.0 == seed);
            let list: BTreeSet<Which> =
                of_seed.map(|(_, borne)| (borne.witness.1, u64::MAX)).collect();
            self.look(seed, &list.into_iter().collect::<Vec<_>>(), &mut outcome)?;
        }
        let silent = others().filter(|(number, _)| !outcome.fired.contains_key(number));
        Ok(silent.map(|(_, borne)| borne.pattern.clone()).collect())
    }

    /// Leaves calls out as long as the records part at the same key: chunks of half of the calls,
    /// of a quarter, and so on to single ones. All findings at the same time, a VM for each round.
    fn shorten(&self, findings: &mut [Finding]) -> Result<(), Error> {
        for finding in &mut *findings {
            let last = finding.parting.call.map_or(finding.calls.len(), |call| call + 1);
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
                    let key = partings.get(*which).map(|(parting, _)| &parting.key);
                    key == Some(&finding.parting.key)
                };
                if let Some(which) = tries.iter().find(holds) {
                    (finding.parting, finding.calls) = partings[which].clone();
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

    /// Where these programs part, and their calls.
    fn partings(&self, list: &[Which]) -> Result<BTreeMap<Which, (Parting, Vec<String>)>, Error> {
        let [debian, host, limen] = self.show_all(self.seed, list)?;
        let none = Shown::default();
        let parting = |which: &Which| {
            let (debian, limen) = (debian.get(which)?, limen.get(which).unwrap_or(&none));
            let parting = compare(debian, host.get(which), limen, &self.list).0?;
            Some((*which, (parting, debian.calls.clone())))
        };
        Ok(list.iter().filter_map(parting).collect())
    }
}

impl Finding {
    fn print(&self, seed: u64) {
        let (index, keep) = self.which;
        let Parting { key, linux, limen, .. } = &self.parting;
        let calls: String = self.calls.iter().map(|call| format!("      {call}\n")).collect();
        failed!(
            "differ: {key}\n    Linux: {linux}\n    Limen: {limen}\n    \
             program {seed} {index} {keep}:\n{calls}"
        );
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

/// Compares what Limen recorded with two Linuxes. The first line that is neither's and is not
/// borne, and the entries of the list that were met before it.
fn compare(
    debian: &Shown,
    host: Option<&Shown>,
    limen: &Shown,
    list: &[Borne],
) -> (Option<Parting>, BTreeSet<usize>) {
    let mut fired = BTreeSet::new();
    if host.is_some_and(|host| host.record == limen.record) {
        return (None, fired);
    }
    let length = debian.record.len().max(limen.record.len());
    for at in 0..length {
        let line = |shown: &Shown| shown.record.get(at).cloned().unwrap_or_default();
        let (a, b) = (line(debian), line(limen));
        if a == b {
            continue;
        }
        // The two Linuxes differ here, and behind it nothing can be compared with either.
        if host.is_some_and(|host| line(host) == b) {
            return (None, fired);
        }
        let are_errors = answer(&a).starts_with('E') && answer(&b).starts_with('E');
        let parting = part(debian, a, b);
        match list.iter().position(|borne| matches(&borne.pattern, &parting.key)) {
            None => return (Some(parting), fired),
            Some(number) => drop(fired.insert(number)),
        }
        if !are_errors {
            return (None, fired);
        }
    }
    (None, fired)
}

/// What a difference is called: `a` is the line that Linux has, `b` Limen's.
fn part(linux: &Shown, a: String, b: String) -> Parting {
    let number = |line: &str| line.split(' ').next().and_then(|word| word.parse::<usize>().ok());
    let call = number(&a).or(number(&b));
    let key = match call {
        Some(call) => {
            let text = linux.calls.get(call).map_or("?", String::as_str);
            format!("{} {} {}", call_name(text), answer(&a), answer(&b))
        }
        None => {
            let begin = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
            without_numbers(&begin(if a.is_empty() { &b } else { &a }))
        }
    };
    Parting { key, linux: a, limen: b, call }
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

/// Numbers become `#`, those of base 16 too.
fn without_numbers(text: &str) -> String {
    let (mut out, mut is_hex) = (String::new(), false);
    for c in text.chars() {
        is_hex = is_hex && c.is_ascii_hexdigit() || c == 'x' && out.ends_with('#');
        match c.is_ascii_digit() || is_hex {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

/// Reads [`ALLOWED`]: `KEY | PROGRAM | REASON`.
fn parse_allowed(text: &str) -> Result<Vec<Borne>, Error> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [pattern, witness, reason] = fields[..] else { return None };
        let is_whole = !pattern.is_empty() && !reason.is_empty();
        let (seed, program) = match witness.split_once(' ') {
            Some((seed, program)) => (seed.parse().ok()?, program.parse().ok()?),
            None => (DEFAULT_SEED, witness.parse().ok()?),
        };
        is_whole.then_some(Borne { pattern: pattern.to_owned(), witness: (seed, program) })
    };
    let error = |line| format!("{ALLOWED}: not KEY | PROGRAM | REASON: {line}").into();
    lines.map(|line| entry(line).ok_or_else(|| error(line))).collect()
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

    fn borne(pattern: &str) -> Vec<Borne> {
        vec![Borne { pattern: pattern.to_owned(), witness: (1, 0) }]
    }

    #[test]
    fn records_part_at_the_first_line_that_differs() {
        let linux = shown(SAID).remove(&(7, 255)).unwrap_or_default();
        let key = |limen: &Shown| compare(&linux, None, limen, &[]).0.map(|parting| parting.key);
        let mut limen = linux.clone();
        assert_eq!(key(&limen), None);
        limen.record[1] = "1 24".into();
        assert_eq!(key(&limen).as_deref(), Some("read EBADF #"));
        assert_eq!(without_numbers("MAP+0x1b000"), "MAP+#");
        limen.record.truncate(1);
        assert_eq!(key(&limen).as_deref(), Some("read EBADF nothing"));
        limen.record = linux.record.clone();
        limen.record[2] = "fd 3 1 x".into();
        assert_eq!(key(&limen).as_deref(), Some("fd #"));
    }

    #[test]
    fn either_linux_is_right() {
        let debian = shown(SAID).remove(&(7, 255)).unwrap_or_default();
        let mut host = debian.clone();
        host.record[1] = "1 EINVAL".into();
        assert!(compare(&debian, Some(&host), &host, &[]).0.is_none());
        let mut limen = host.clone();
        limen.record[0] = "0 4".into();
        assert!(compare(&debian, Some(&host), &limen, &[]).0.is_some());
    }

    #[test]
    fn what_is_borne_hides_nothing_behind_it_but_what_follows_from_it() {
        let linux = shown(SAID).remove(&(7, 255)).unwrap_or_default();
        let mut limen = linux.clone();
        limen.record[1] = "1 EINVAL".into();
        let list = borne("read EBADF EINVAL");
        let (parting, fired) = compare(&linux, None, &limen, &list);
        assert!(parting.is_none() && fired.contains(&0));
        // Two errors change nothing: the state behind them is compared.
        limen.record[2] = "fd 3 1 x".into();
        assert!(compare(&linux, None, &limen, &list).0.is_some());
        limen.record[1] = "1 7".into();
        assert!(compare(&linux, None, &limen, &borne("read * #")).0.is_none());
    }

    #[test]
    fn each_chunk_is_left_out_once() {
        assert_eq!(shorter((3, 0b1011), 1), [(3, 0b1010), (3, 0b1001), (3, 0b0011)]);
        assert_eq!(shorter((3, 0b1011), 2), [(3, 0b1000), (3, 0b0011)]);
        assert_eq!(shorter((3, 0b1), 1), []);
    }

    #[test]
    fn differences_are_borne_for_a_reason() {
        let allowed = parse_allowed("# note\nstat # * | 17 | why\n").unwrap();
        assert!(matches(&allowed[0].pattern, "stat # EINVAL"));
        assert!(!matches(&allowed[0].pattern, "fstat # EINVAL"));
        assert_eq!(allowed[0].witness, (1, 17));
        for wrong in ["stat # *\n", "stat # * | 17 |\n", "stat | x | why\n"] {
            assert!(parse_allowed(wrong).is_err());
        }
    }
}
