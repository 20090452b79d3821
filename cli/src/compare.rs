//! `limen compare`: what kernel parameters cost one program.
//!
//! The program is packed and run once for each set of parameters, in QEMU with the count of
//! instructions as the machine's clock (`bench/rig.rs`), so that a run gives the same numbers every
//! time, also on a loaded host. What is compared is from the program's start to its end: the
//! kernel says when it starts it, and at the end how much time, that is instructions, has passed.
//!
//! An instruction is not a cycle: the figures tell what work a mechanism adds, not what a CPU makes
//! of it. Neighbours: `run/plan.rs` makes the machine as for `limen run --pack`, `bench/rig.rs`
//! counts.

use std::collections::BTreeMap;
use std::path::Path;

use formats::boot_config::{BootConfig, Stdio, Want};
use formats::control::{LineBuffer, ToHost};
use serde_json::{Value, json};

use crate::args::CompareArgs;
use crate::bench::rig::{self, Clock};
use crate::pack::files::FileSet;
use crate::pack::{self, closure};
use crate::run::lookup::{DEFAULT_PATH, Found, find_program};
use crate::run::outcome::{Facts, Outcome, STATUS_NOT_FOUND};
use crate::run::qemu::{Accel, Qemu, Wires, port_file};
use crate::tree::Tree;
use crate::{Error, paths, usage};

/// Most sets of parameters of one comparison.
const SETS_MAX: usize = 16;
/// The kernel's clock at the end, which counts instructions here.
const RUN_NS: &str = "run-ns";
/// Counters of the kernel's that are rows of the table, with their names for people.
const ROWS: [(&str, &str); 3] = [
    ("exits-sysret", "system calls left by SYSRET"),
    ("exits-iret", "system calls left by IRET"),
    ("peak-memory-bytes", "peak memory, bytes"),
];
/// 2025-01-01, the date that the rig gives the machine's clock, in nanoseconds.
const REALTIME_NS: u64 = 1_735_689_600_000_000_000;

/// What one set of parameters gave.
#[derive(Clone, Debug)]
struct Column {
    parameters: String,
    outcome: Outcome,
    /// From the program's start to its end.
    instructions: u64,
    counters: BTreeMap<String, u64>,
    stdout: Vec<u8>,
}

/// Measures and prints. Status 1 if the program did not do the same in every set.
pub(crate) fn command(args: &CompareArgs) -> Result<u8, Error> {
    if !(2..=SETS_MAX).contains(&args.with.len()) {
        let text = format!("--with: two to {SETS_MAX} sets of kernel parameters are compared");
        return Err(usage(text));
    }
    let here = std::env::current_dir()?;
    let mut files = FileSet::default();
    files.add_arguments(&here, &args.file, &args.dir, pack::is_folder)?;
    let (search_path, _) = closure::callers_paths();
    let name = &args.program[0];
    let Found::At(program) = find_program(&Tree::host(), &files, name, &search_path, &here) else {
        eprintln!("limen: {}: not found, or not executable", name.display());
        return Ok(STATUS_NOT_FOUND);
    };
    let image = pack::with_config(&config(args, &program), &program, &files)?;
    let mut columns = Vec::new();
    for parameters in &args.with {
        eprintln!("limen: running with {parameters:?}");
        columns.push(measure(args, parameters, &image)?);
    }
    match args.json {
        true => println!("{:#}", as_json(&columns)),
        false => print!("{}", as_text(&columns)),
    }
    let first = &columns[0];
    let differs =
        |column: &&Column| column.outcome != first.outcome || column.stdout != first.stdout;
    if let Some(other) = columns.iter().find(differs) {
        eprintln!(
            "limen: the program did not do the same with {:?} ({}) as with {:?} ({})",
            other.parameters,
            other.outcome.word(),
            first.parameters,
            first.outcome.word()
        );
        return Ok(1);
    }
    Ok(0)
}

fn config(args: &CompareArgs, program: &Path) -> BootConfig {
    use std::os::unix::ffi::OsStrExt as _;
    BootConfig {
        program: program.as_os_str().as_bytes().to_vec(),
        argv: args.program.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: vec![format!("PATH={DEFAULT_PATH}").into_bytes(), b"HOME=/".to_vec()],
        cwd: b"/".to_vec(),
        hostname: b"limen".to_vec(),
        umask: 0o022,
        root: formats::boot_config::RootKind::Packed,
        stdio: [Stdio::Null, Stdio::Pipe, Stdio::Pipe],
        want: Want { counters: true, ..Want::default() },
        realtime_ns: REALTIME_NS,
        ..BootConfig::default()
    }
}

fn measure(args: &CompareArgs, parameters: &str, image: &[u8]) -> Result<Column, Error> {
    let dir = tempfile::tempdir()?;
    let initramfs = dir.path().join("image.cpio");
    std::fs::write(&initramfs, image)?;
    let machine = Qemu {
        kernel: paths::kernel_image(args.kernel.as_deref())?,
        append: parameters.to_owned(),
        machine: crate::args::MachineModel::Microvm,
        accel: Accel::Tcg,
        cpu: Some(args.cpu.clone()),
        smp: 1,
        memory_mib: args.memory,
        gdb: None,
        root: None,
        rw: vec![],
    };
    let command = machine.command(&Wires::Files { initramfs, dir: dir.path().to_owned() });
    rig::run_within(&command, Clock::Counted, dir.path(), args.timeout)?;
    let read = |port: &str| std::fs::read(port_file(dir.path(), port)).unwrap_or_default();
    let said = || {
        let text = |port: &str| String::from_utf8_lossy(&read(port)).into_owned();
        format!("the program did not come to its end with {parameters:?}\n{}", text("klog"))
    };
    let (facts, outcome) = report(&read("control"));
    let started = facts.boot_ns.ok_or_else(said)?;
    let ended = *facts.counters.get(RUN_NS).ok_or_else(said)?;
    Ok(Column {
        parameters: parameters.to_owned(),
        outcome: outcome.ok_or_else(said)?,
        instructions: ended.saturating_sub(started),
        counters: facts.counters,
        stdout: read("stdio"),
    })
}

/// What the lines of the control port say.
fn report(bytes: &[u8]) -> (Facts, Option<Outcome>) {
    let (mut facts, mut outcome) = (Facts::default(), None);
    LineBuffer::new().push(bytes, |line| {
        if let Some(message) = ToHost::decode(line) {
            outcome = outcome.take().or_else(|| Outcome::from_last_message(&message));
            facts.note(message);
        }
    });
    (facts, outcome)
}

fn ratio(column: &Column, first: &Column) -> f64 {
    column.instructions as f64 / first.instructions.max(1) as f64
}

fn as_text(columns: &[Column]) -> String {
    let first = &columns[0];
    let mut text = String::new();
    for column in columns {
        text += &format!(
            "{:<40} {:>16} instructions  {:>7.4}\n",
            column.parameters,
            column.instructions,
            ratio(column, first)
        );
        for (name, words) in ROWS {
            let count = column.counters.get(name).map_or("-".to_owned(), u64::to_string);
            text += &format!("    {words:<36} {count:>16}\n");
        }
    }
    text += "From the program's start to its end; the last column is relative to the first set.\n";
    text
}

fn as_json(columns: &[Column]) -> Value {
    let first = &columns[0];
    let of = |column: &Column| {
        json!({
            "parameters": column.parameters,
            "status": column.outcome.word(),
            "exit_code": column.outcome.status(),
            "instructions": column.instructions,
            "ratio": ratio(column, first),
            "counters": column.counters,
        })
    };
    json!({ "schema_version": 1, "sets": columns.iter().map(of).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_from_start_to_end() {
        let lines = b"boot-ns 100\ncounter run-ns 350\ncounter exits-sysret 3\nexit 4\n";
        let (facts, outcome) = report(lines);
        assert_eq!((facts.boot_ns, facts.counters[RUN_NS]), (Some(100), 350));
        assert_eq!(outcome, Some(Outcome::Exit(4)));
        assert_eq!(report(b"boot-ns 100\n").1, None);
    }

    #[test]
    fn tables_are_relative_to_the_first() {
        let column = |parameters: &str, instructions| Column {
            parameters: parameters.to_owned(),
            outcome: Outcome::Exit(0),
            instructions,
            counters: BTreeMap::from([("exits-sysret".to_owned(), 7)]),
            stdout: vec![],
        };
        let columns = [column("pti=off", 1000), column("pti=on", 1100)];
        assert!(as_text(&columns).contains("1.1000"));
        assert_eq!(as_json(&columns)["sets"][1]["ratio"], 1.1);
        assert_eq!(as_json(&columns)["sets"][0]["counters"]["exits-sysret"], 7);
    }
}
