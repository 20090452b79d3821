//! The differential fuzzer: random programs of a few typed calls, the same from the same seed on
//! every kernel, and a record of all that each call gave back.
//!
//! Why it is hard: two kernels may differ in what no program can rely on (inode numbers, process
//! ids, times, addresses, ports), so the record holds them only in relation to each other; and a
//! program may wait for ever or end at any call, so whoever runs it watches from outside. The same
//! program is run on Linux and on Limen by `limen test differ`, which compares the records, asks
//! again with calls left out until nothing more can be left out, and prints what remains.
//!
//! Reading order: `program.rs` (what a program is and how it is written down), `draft.rs` (how one
//! is made from a seed), `table*.rs` (the calls), `run.rs` (how one runs), `observe.rs` (what is
//! recorded), here (the command).

mod draft;
mod observe;
mod program;
mod run;
mod table_files;
mod table_memory;
mod table_more;
mod table_process;
mod table_sockets;
mod table_sysv;

use std::io::Write as _;

/// Programs whose hashes stand in one line of output.
const PER_LINE: u64 = 8;

/// Runs programs from a seed: `differ run --seed S --first N --count N --seconds N` prints a hash
/// for each; `differ show FILE` prints, for each line `SEED INDEX KEEP` of a file, the program and
/// its record. KEEP is a mask of the calls that are not left out. True if all could be run.
pub fn main(args: &[String]) -> bool {
    // From the place on nothing of the machine's files is to be seen.
    let list = args.get(3).map_or("/dev/stdin", String::as_str);
    let list = match args.get(2).map(String::as_str) {
        Some("show") => std::fs::read_to_string(list).unwrap_or_default(),
        _ => String::new(),
    };
    let place = run::Place::settle();
    match args.get(2).map(String::as_str) {
        Some("run") => hashes(&place, args),
        Some("show") => show(&place, &list),
        _ => false,
    }
}

fn hashes(place: &run::Place, args: &[String]) -> bool {
    let seed = crate::option(args, "--seed", 1);
    let first = crate::option(args, "--first", 0);
    let count = crate::option(args, "--count", 100_000);
    let seconds = crate::option(args, "--seconds", 3600);
    let started = std::time::Instant::now();
    let mut out = std::io::stdout().lock();
    let mut index = first;
    while index < first + count && started.elapsed().as_secs() < seconds {
        let _ = write!(out, "hashes {index}");
        for index in index..(index + PER_LINE).min(first + count) {
            let program = draft::program(seed, index, u64::MAX);
            let record = run::run(place, &program);
            let _ = write!(out, " {:016x}", hash(&record));
        }
        let _ = writeln!(out);
        index += PER_LINE;
    }
    let done = index.min(first + count) - first;
    let _ = writeln!(out, "ran {done} programs in {} ms", started.elapsed().as_millis());
    true
}

fn show(place: &run::Place, list: &str) -> bool {
    let mut out = std::io::stdout().lock();
    for line in list.lines() {
        let words: Vec<u64> = line.split(' ').filter_map(|w| w.parse().ok()).collect();
        let [seed, index, keep] = words[..] else { continue };
        let program = draft::program(seed, index, keep);
        let record = run::run(place, &program);
        let _ = writeln!(out, "program {seed} {index} {keep}");
        for (number, call) in program.calls.iter().enumerate() {
            let _ = writeln!(out, "call {number} {call}");
        }
        for line in record.lines() {
            let _ = writeln!(out, "record {line}");
        }
        let _ = writeln!(out, "end {seed} {index} {keep}");
    }
    true
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}
