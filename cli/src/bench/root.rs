//! `limen bench root`: how long programs take that go through the host's files in a VM, beside the
//! same programs on the host.
//!
//! This is time, not instructions, since the host's part is in it: for a quiet machine. Both sides
//! run one script over the same tree, the host first, so that the host's own cache is warm for
//! both. Each program runs twice: the first time everything comes from the host, the second time
//! from what is known of it. What the programs print must be the same before there is a ratio.
//!
//! Neighbours: `kernel/src/fs/virtiofs` is what is measured, `cli/share` the server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::args::BenchArgs;
use crate::progress::Steps;
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

/// Prints a row's name and microseconds for each program, and last a hash of what they say.
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
for turn in first again; do
    measure find_$turn find tree
    measure cat_$turn cat large
    if [ -d repository ]; then measure git_status_$turn status; fi
done
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

/// Microseconds by row, and the hash of what the programs said.
struct Times {
    rows: BTreeMap<String, u64>,
    hash: String,
}

/// Measures and prints. Status 1 if a row misses its goal.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let mut steps = Steps::of(3);
    let size = if args.tiny { &TINY } else { &WHOLE };
    let (host, limen) = measure(size, args.kernel.as_deref(), &mut |step| {
        steps.begin(step);
    })?;
    let ratio =
        |row: &str| Some(*limen.rows.get(row)? as f64 / (*host.rows.get(row)?).max(1) as f64);
    let missed = ROWS.iter().any(|&(row, goal)| ratio(row).is_some_and(|ratio| ratio > goal));
    if args.json {
        let object = ROWS.iter().filter_map(|&(row, goal)| {
            let figures = json!({ "limen_us": limen.rows.get(row)?, "host_us": host.rows.get(row)?,
                                  "ratio": ratio(row)?, "goal": goal });
            Some((row.to_owned(), figures))
        });
        tell!("{:#}", Value::Object(object.collect::<Map<_, _>>()));
        return Ok(u8::from(missed));
    }
    let mut out =
        format!("{:<18}{:>12}{:>12}{:>9}{:>7}\n", "", "Limen, ms", "host, ms", "ratio", "goal");
    for (row, goal) in ROWS {
        let Some(ratio) = ratio(row) else {
            let _ = writeln!(out, "{row:<18} not measured: there is no git");
            continue;
        };
        let ms = |times: &Times| times.rows[row] as f64 / 1000.0;
        let missed = if ratio > goal { "  missed" } else { "" };
        let (limen, host) = (ms(&limen), ms(&host));
        let _ = writeln!(out, "{row:<18}{limen:>12.1}{host:>12.1}{ratio:>9.1}{goal:>7.0}{missed}");
    }
    out += "Time of the host's clock and of the guest's: on a quiet machine only.\n";
    crate::out::bytes(out.as_bytes());
    Ok(u8::from(missed))
}

/// The smallest run: rows that were not measured.
pub(crate) fn tiny() -> Result<Vec<String>, Error> {
    let (host, limen) = measure(&TINY, None, &mut |_| ())?;
    let wanted = host.rows.into_keys();
    Ok(wanted.filter(|row| !limen.rows.contains_key(row)).collect())
}

/// The host's times, and the VM's.
fn measure(
    size: &Size,
    kernel: Option<&Path>,
    step: &mut dyn FnMut(&str),
) -> Result<(Times, Times), Error> {
    // Not in /tmp, which the VM has for itself.
    let base = crate::paths::target_dir()?;
    std::fs::create_dir_all(&base)?;
    let folder = children::scratch_in(&base)?;
    step("making the files");
    make(size, &folder)?;
    step("the host");
    let host = times(Command::new("bash").args(["-c", SCRIPT]).current_dir(&folder))?;
    step("Limen");
    let mut limen = Command::new(std::env::current_exe()?);
    limen.args(["run", "--memory", "2G", "--timeout", "15m", "--share", "virtiofs"]);
    if let Some(kernel) = kernel {
        limen.arg("--kernel").arg(kernel);
    }
    let limen = times(limen.args(["--", "bash", "-c", SCRIPT]).current_dir(&folder))?;
    std::fs::remove_dir_all(&folder)?;
    if host.hash != limen.hash {
        return Err("the programs said something else in the VM than on the host".into());
    }
    Ok((host, limen))
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
    let words = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.trim().to_owned()));
    let lines: Vec<(String, String)> = said.lines().filter_map(words).collect();
    let number = |(row, us): &(String, String)| Some((row.clone(), us.parse().ok()?));
    let rows = lines.iter().filter_map(number).collect();
    let hash = lines.last().map(|(hash, _)| hash.clone()).unwrap_or_default();
    Ok(Times { rows, hash })
}
