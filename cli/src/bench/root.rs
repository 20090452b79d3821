//! `limen bench root`: how long programs take that go through the host's files in a VM, beside the
//! same programs on the host.
//!
//! This is time, not instructions, since the host's part is in it: for a quiet machine. All sides
//! run one script over the same tree, the host first, so that the host's own cache is warm for
//! all. Each program runs several times: the first time everything comes from the host, then from
//! what is known of it; of the later ones the shortest counts, so that others on the machine are
//! less in it. What the programs print must be the same before there is a ratio.
//! Debian's kernel, with its own virtio-fs on the same server in the same QEMU, is the fair peer:
//! in emulation a program's own instructions cost more than the host's already. How much is shown
//! beside it: the same programs on the same files in the VM's own memory (tmpfs), which is a bound
//! for whatever a live root could do.
//!
//! Neighbours: `kernel/src/fs/virtiofs` is what is measured, `cli/share` the server,
//! `guest/linux_init` the first process on Linux.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use formats::boot_config::{BootConfig, RootKind};
use formats::{cpio, ports};
use serde_json::{Map, Value, json};

use crate::args::{BenchArgs, Cache};
use crate::compare::linux::Beside;
use crate::progress::Steps;
use crate::run::lookup::DEFAULT_PATH;
use crate::run::outcome::Outcome;
use crate::run::share;
use crate::{Error, children};

/// Rows, and the most that each may take beside the host.
const ROWS: [(&str, f64); 6] = [
    ("find_first", 20.0),
    ("find_again", 5.0),
    ("cat_first", 3.0),
    ("cat_again", 2.0),
    ("git_status_first", 5.0),
    ("git_status_again", 5.0),
];

/// Prints a row's name and microseconds for each program, and last a hash of what they say. With an
/// argument, also on a copy in that folder.
const SCRIPT: &str = r#"
export LC_ALL=C GIT_OPTIONAL_LOCKS=0
measure() {
    local name=$1 from=$EPOCHREALTIME
    shift
    "$@" > /dev/null || exit 1
    local to=$EPOCHREALTIME
    echo "$name $(( ${to/./} - ${from/./} ))"
}
status() { git -c safe.directory='*' -C repository status --short; }
turn() {
    measure find_$1 find tree
    measure cat_$1 cat large
    if [ -d repository ]; then measure git_status_$1 status; fi
}
for turn in first again again again; do turn $turn; done
if [ $# -gt 0 ]; then
    from=$PWD
    cp -a . "$1" && cd "$1" || exit 1
    if [ -d repository ]; then GIT_OPTIONAL_LOCKS=1 status > /dev/null; fi
    for turn in memory memory memory; do turn $turn; done
    cd "$from"
fi
{ find tree | sort; cat large; if [ -d repository ]; then status; fi; } | sha256sum
"#;

/// How much there is of everything.
struct Size {
    folders: usize,
    files_in_each: usize,
    large_mib: usize,
    /// Of files in git, in folders of 100.
    tracked_folders: usize,
}

/// 65,000 names, 500 MiB, 10,000 files.
const WHOLE: Size = Size { folders: 5000, files_in_each: 12, large_mib: 500, tracked_folders: 100 };
const TINY: Size = Size { folders: 20, files_in_each: 3, large_mib: 2, tracked_folders: 1 };

/// Memory of both kernels' machines, in MiB: all that is read fits.
const MEMORY_MIB: u64 = 2048;
const LIMIT: Duration = Duration::from_mins(15);

/// The folder in the VM's memory.
const MEMORY: &str = "/tmp/memory";

/// Least microseconds by row, and the hash of what the programs said.
struct Times {
    rows: BTreeMap<String, u64>,
    hash: String,
}

/// The same on all sides.
struct Sides {
    host: Times,
    limen: Times,
    linux: Option<Times>,
}

impl Sides {
    /// How many times as long as on the host, if it was measured.
    fn ratio(&self, row: &str) -> Option<f64> {
        Some(*self.limen.rows.get(row)? as f64 / (*self.host.rows.get(row)?).max(1) as f64)
    }

    fn json(&self, row: &str, goal: f64) -> Option<Value> {
        let linux_us = self.linux.as_ref().and_then(|linux| linux.rows.get(row));
        Some(json!({ "limen_us": self.limen.rows.get(row)?, "host_us": self.host.rows.get(row)?,
                     "linux_us": linux_us, "memory_us": self.in_memory(row),
                     "ratio": self.ratio(row)?, "goal": goal }))
    }

    /// What the row's program takes on files in the VM's memory, on Limen.
    fn in_memory(&self, row: &str) -> Option<u64> {
        let (program, _) = row.rsplit_once('_')?;
        self.limen.rows.get(&format!("{program}_memory")).copied()
    }

    /// A line of the table.
    fn line(&self, row: &str, goal: f64) -> String {
        let Some(ratio) = self.ratio(row) else {
            return format!("{row:<18} not measured: there is no git");
        };
        let in_ms = |us: u64| format!("{:.1}", us as f64 / 1000.0);
        let ms = |times: &Times| in_ms(times.rows[row]);
        let (limen, host) = (ms(&self.limen), ms(&self.host));
        let linux = self.linux.as_ref().map_or("-".to_owned(), ms);
        let memory = self.in_memory(row).map_or("-".to_owned(), in_ms);
        let missed = if ratio > goal { "  missed" } else { "" };
        format!(
            "{row:<18}{limen:>12}{memory:>12}{linux:>12}{host:>12}{ratio:>9.1}{goal:>7.0}{missed}"
        )
    }
}

/// Measures and prints. Status 1 if a row misses its goal.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let beside = match args.no_linux {
        true => None,
        false => Some(Beside::find(args.linux.as_deref())?),
    };
    let size = if args.tiny { &TINY } else { &WHOLE };
    let mut steps = Steps::of(if beside.is_some() { 4 } else { 3 });
    let sides = measure(size, args.kernel.as_deref(), beside.as_ref(), &mut |step| {
        steps.begin(step);
    })?;
    let missed = ROWS.iter().any(|&(row, goal)| sides.ratio(row).is_some_and(|got| got > goal));
    if args.json {
        let rows = ROWS.iter();
        let object = rows.filter_map(|&(row, goal)| Some((row.to_owned(), sides.json(row, goal)?)));
        tell!("{:#}", Value::Object(object.collect::<Map<_, _>>()));
        return Ok(u8::from(missed));
    }
    let mut out = format!(
        "{:<18}{:>12}{:>12}{:>12}{:>12}{:>9}{:>7}\n",
        "", "Limen, ms", "tmpfs, ms", "Linux, ms", "host, ms", "to host", "goal"
    );
    for (row, goal) in ROWS {
        let _ = writeln!(out, "{}", sides.line(row, goal));
    }
    if let Some(beside) = &beside {
        let _ = writeln!(out, "Linux {} has the same root from the same server.", beside.name());
    }
    out += "tmpfs: the same on files in Limen's own memory, a bound for any live root here.\n\
            Time of the host's clock and of the guests': on a quiet machine only.\n";
    crate::out::bytes(out.as_bytes());
    Ok(u8::from(missed))
}

/// The smallest run: rows that were not measured.
pub(crate) fn tiny() -> Result<Vec<String>, Error> {
    let beside = Beside::find(None)?;
    let sides = measure(&TINY, None, Some(&beside), &mut |_| ())?;
    let has = |times: &Times, row: &String| times.rows.contains_key(row);
    let is_whole = |row: &String| {
        has(&sides.limen, row) && sides.linux.as_ref().is_some_and(|linux| has(linux, row))
    };
    Ok(sides.host.rows.keys().filter(|row| !is_whole(row)).cloned().collect())
}

fn measure(
    size: &Size,
    kernel: Option<&Path>,
    beside: Option<&Beside>,
    step: &mut dyn FnMut(&str),
) -> Result<Sides, Error> {
    // Not in /tmp, which the VM has for itself.
    let base = crate::paths::target_dir()?;
    std::fs::create_dir_all(&base)?;
    let folder = children::scratch_in(&base)?;
    step("making the files");
    make(size, &folder)?;
    step("the host");
    let host = times(Command::new("bash").args(["-c", SCRIPT]).current_dir(&folder))?;
    step("Limen");
    let limen = on_limen(kernel, &folder)?;
    let linux = match beside {
        Some(beside) => {
            step("Linux");
            Some(on_linux(beside, &folder)?)
        }
        None => None,
    };
    std::fs::remove_dir_all(&folder)?;
    let differs = |times: &Times| times.hash != host.hash;
    if differs(&limen) || linux.as_ref().is_some_and(differs) {
        return Err("the programs said something else in the VM than on the host".into());
    }
    Ok(Sides { host, limen, linux })
}

fn on_limen(kernel: Option<&Path>, folder: &Path) -> Result<Times, Error> {
    let mut limen = Command::new(std::env::current_exe()?);
    let (memory, limit) = (format!("{MEMORY_MIB}M"), format!("{}s", LIMIT.as_secs()));
    limen.args(["run", "--memory", &memory, "--timeout", &limit, "--share", "virtiofs"]);
    if let Some(kernel) = kernel {
        limen.arg("--kernel").arg(kernel);
    }
    times(limen.args(["--", "bash", "-c", SCRIPT, "bench", MEMORY]).current_dir(folder))
}

/// Debian's kernel has the same root from the same server, in the same QEMU.
fn on_linux(beside: &Beside, folder: &Path) -> Result<Times, Error> {
    let words = ["bash", "-c", SCRIPT].map(|word| word.as_bytes().to_vec());
    let config = BootConfig {
        program: b"/bin/bash".to_vec(),
        argv: words.to_vec(),
        env: vec![format!("PATH={DEFAULT_PATH}").into_bytes(), b"HOME=/".to_vec()],
        cwd: folder.as_os_str().as_encoded_bytes().to_vec(),
        root: RootKind::Live,
        ..BootConfig::default()
    };
    let encoded = config.encode();
    let mut image = cpio::Writer::new();
    image.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    let image = image.finish().map_err(|_| "the configuration does not fit an archive")?;
    let mut share = share::start(Path::new("/"), Cache::Auto, 1)?;
    let qemu = share.qemu().ok_or("the server has no socket for QEMU")?;
    let measured = beside.on_live_root(&image, qemu, MEMORY_MIB, LIMIT)?;
    share.let_go();
    share.finish();
    let said = String::from_utf8_lossy(&measured.stdout);
    match measured.outcome {
        Outcome::Exit(0) => Ok(parse(&said)),
        other => Err(format!("the script failed on Linux ({}): {said}", other.word()).into()),
    }
}

fn make(size: &Size, folder: &Path) -> Result<(), Error> {
    for n in 0..size.folders {
        // A hundred in each of those above.
        let path = folder.join(format!("tree/{}/{n}", n / 100));
        std::fs::create_dir_all(&path)?;
        (0..size.files_in_each).try_for_each(|n| std::fs::write(path.join(n.to_string()), ""))?;
    }
    let large: Vec<u8> = (0..size.large_mib << 20).map(|n| (n % 251) as u8).collect();
    std::fs::write(folder.join("large"), large)?;
    let repository = folder.join("repository");
    for n in 0..size.tracked_folders {
        let path = repository.join(n.to_string());
        std::fs::create_dir_all(&path)?;
        (0..100).try_for_each(|n| std::fs::write(path.join(n.to_string()), n.to_string()))?;
    }
    // Git reads again what was changed in the second of its index.
    std::thread::sleep(Duration::from_millis(1100));
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-C"]);
        git.arg(&repository).args(words).stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    let has_git = git(&["init"]).is_ok_and(|status| status.success());
    let is_tracked = || {
        Ok::<_, Error>(git(&["add", "."])?.success() && git(&["commit", "-m", "all"])?.success())
    };
    if !has_git || !is_tracked()? {
        std::fs::remove_dir_all(&repository)?;
    }
    Ok(())
}

fn times(command: &mut Command) -> Result<Times, Error> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the script failed ({}): {said}{stderr}", output.status).into());
    }
    Ok(parse(&said))
}

/// What the script has printed.
fn parse(said: &str) -> Times {
    let words = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.trim().to_owned()));
    let lines: Vec<(String, String)> = said.lines().filter_map(words).collect();
    let mut rows = BTreeMap::new();
    for (row, us) in &lines {
        let Ok(us) = us.parse::<u64>() else { continue };
        let least = rows.entry(row.clone()).or_insert(us);
        *least = us.min(*least);
    }
    let hash = lines.last().map(|(hash, _)| hash.clone()).unwrap_or_default();
    Times { rows, hash }
}
