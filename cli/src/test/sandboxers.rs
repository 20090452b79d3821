//! Sandboxers that others wrote, unmodified, under Landlock: part of the run level.
//!
//! The sample and the own tests of the crate `landlock`, and setpriv(1) of a util-linux that knows
//! Landlock, which is newer than the Debian that this runs on: cargo and apt fetch them, into the
//! target folder. Where nothing may be installed (`packages.rs`), these say so and pass over.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::run::{ensure, output};
use super::{Context, packages};
use crate::{Error, paths, toolchain};

/// The crate, and the version of the interface that its tests are told to expect.
const CRATE: (&str, &str) = ("0.4.8", "LANDLOCK_CRATE_TEST_ABI=7");
/// The release whose util-linux has `setpriv --landlock-access`, and what that program needs.
const RELEASE: &str = "trixie";
const PACKAGES: [&str; 3] = ["util-linux", "libc6", "libcap-ng0"];
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The crate's own tests pass, and its sample restricts a shell to what it was told.
pub(super) fn of_crate(context: &Context, folder: &Path) -> Result<(), Error> {
    if packages::is_forbidden() {
        say!("limen: the crate landlock is not fetched");
        return Ok(());
    }
    let manifest = fetched()?;
    let tests = built(&manifest, &["test", "--no-run", "--lib"])?;
    let tests = tests.display().to_string();
    let ran = output(context, folder, &["--env", CRATE.1, "--", &tests])?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    ensure(ran.status.success() && said.contains(" 0 failed"), || format!("{ran:?}"))?;
    let sample = sample()?.display().to_string();
    let script = "cat /usr/lib/os-release >/dev/null && echo reads; echo x >/tmp/x && echo writes; \
                  cat /etc/passwd; ls /; echo x >/usr/x; rm /tmp/x && echo removes";
    let words = [
        "--env=LL_FS_RO=/bin:/lib:/lib64:/usr",
        "--env=LL_FS_RW=/tmp:/dev/null",
        "--env=LL_TCP_BIND=9418",
        "--env=LL_TCP_CONNECT=80",
        "--",
        &sample,
        "sh",
        "-c",
        script,
    ];
    let ran = output(context, folder, &words)?;
    let denied = String::from_utf8_lossy(&ran.stderr).matches("ermission denied").count();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    ensure(said == "reads\nwrites\nremoves\n" && denied == 3, || format!("{ran:?}"))
}

/// `setpriv --landlock-access --landlock-rule`, of Debian's own package.
pub(super) fn setpriv(context: &Context, folder: &Path) -> Result<(), Error> {
    if packages::is_forbidden() {
        say!("limen: setpriv of Debian {RELEASE} is not fetched");
        return Ok(());
    }
    let root = debian(folder)?.display().to_string();
    let rule = |rights: &str, path: &str| format!("--landlock-rule=path-beneath:{rights}:{path}");
    let script = "ls /usr >/dev/null && echo lists; echo x >/tmp/x && echo writes; ls /; rm /tmp/x";
    let (read, write) =
        (rule("execute,read-file,read-dir", "/usr"), rule("write-file,make-reg", "/tmp"));
    let shell = rule("execute,read-file", "/bin");
    let null = rule("write-file", "/dev/null");
    let words = [
        "--root",
        &root,
        "--file=/bin/busybox:/bin/busybox",
        "--",
        "/usr/lib64/ld-linux-x86-64.so.2",
        "--library-path",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/bin/setpriv",
        "--no-new-privs",
        "--landlock-access=fs",
        &read,
        &write,
        &shell,
        &null,
        "/bin/busybox",
        "sh",
        "-c",
        script,
    ];
    let ran = output(context, folder, &words)?;
    let denied = String::from_utf8_lossy(&ran.stderr).matches("Permission denied").count();
    ensure(ran.stdout == b"lists\nwrites\n" && denied == 2, || format!("{ran:?}"))
}

/// The sample of the crate: a program that restricts itself as variables say, and becomes another.
pub(super) fn sample() -> Result<PathBuf, Error> {
    built(&fetched()?, &["build", "--example", "sandboxer"])
}

/// The manifest of the crate, where cargo keeps it.
fn fetched() -> Result<PathBuf, Error> {
    let project = paths::target_dir()?.join("sandboxers");
    std::fs::create_dir_all(project.join("src"))?;
    std::fs::write(project.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[package]\nname = \"sandboxers\"\nedition = \"2024\"\n\n[dependencies]\nlandlock = \
         \"={}\"\n\n[workspace]\n",
        CRATE.0
    );
    let path = project.join("Cargo.toml");
    std::fs::write(&path, manifest)?;
    let mut cargo = toolchain::cargo(&paths::repository()?)?;
    cargo.args(["metadata", "--quiet", "--format-version", "1", "--manifest-path"]).arg(&path);
    let output = cargo.output()?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)))?;
    let packages = said["packages"].as_array().into_iter().flatten();
    let found = packages
        .filter(|package| package["name"] == "landlock")
        .find_map(|package| package["manifest_path"].as_str().map(PathBuf::from));
    found.ok_or_else(|| "cargo knows no crate landlock".into())
}

/// What cargo builds of the crate with these words: the one program.
fn built(manifest: &Path, words: &[&str]) -> Result<PathBuf, Error> {
    let mut cargo = toolchain::cargo(&paths::repository()?)?;
    cargo.env("RUSTFLAGS", "-Ctarget-feature=+crt-static").args(words);
    cargo.args(["--quiet", "--locked", "--message-format=json", "--target", TARGET]);
    cargo.arg("--manifest-path").arg(manifest);
    cargo.arg("--target-dir").arg(paths::target_dir()?.join("sandboxers/target"));
    let output = cargo.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut programs = said.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    let error = || format!("cargo {words:?}: {}", String::from_utf8_lossy(&output.stderr)).into();
    programs.next_back().filter(|_| output.status.success()).ok_or_else(error)
}

/// A root folder of that release's packages.
fn debian(folder: &Path) -> Result<PathBuf, Error> {
    for dir in ["lists/partial", "cache/archives/partial", "root/tmp", "root/bin", "root/dev"] {
        std::fs::create_dir_all(folder.join(dir))?;
    }
    let source = format!(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
         http://deb.debian.org/debian {RELEASE} main\n"
    );
    std::fs::write(folder.join("sources.list"), source)?;
    let here = folder.display();
    let options = [
        format!("Dir::Etc::sourcelist={here}/sources.list"),
        "Dir::Etc::sourceparts=-".to_owned(),
        format!("Dir::State::lists={here}/lists"),
        format!("Dir::Cache={here}/cache"),
    ];
    for words in [&["update"][..], &[&["download"][..], &PACKAGES].concat()] {
        let mut apt = Command::new("apt-get");
        options.iter().for_each(|option| _ = apt.args(["-o", option]));
        let output = apt.arg("--quiet").args(words).current_dir(folder).output()?;
        let said = || String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(output.status.success(), || format!("apt-get {words:?}: {}", said()))?;
    }
    let root = folder.join("root");
    let entries = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    for package in entries.filter(|path| path.extension().is_some_and(|kind| kind == "deb")) {
        let status = Command::new("dpkg-deb").arg("-x").args([&package, &root]).status()?;
        ensure(status.success(), || format!("{} cannot be unpacked", package.display()))?;
    }
    Ok(root)
}
