//! `limen dist`: what is installed on machines that do not build it: a Debian package and a
//! relocatable archive.
//!
//! Both hold the same tree below a prefix, and the program finds the rest relative to itself
//! (`paths.rs`): `bin/limen`, `lib/limen/limen-kernel` without symbols and `limen-kernel.debug`
//! with them beside it, `share/` with the manual page and the completions of three shells. The same
//! sources give the same bytes: files are sorted, and their time is SOURCE_DATE_EPOCH's or the
//! last commit's.
//!
//! Reading order: [`command`], `deb` (the package's form), `manual` (the page, the completions).
//! Neighbour: `test/dist.rs` installs both where nothing of the sources is.

mod deb;
pub(crate) mod manual;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap_complete::Shell;

use crate::args::DistArgs;
use crate::failure::{Doing, Failure};
use crate::progress::Progress;
use crate::{Error, bench, linux, pack, paths, usage};

/// What a file of the distribution may be.
const PROGRAM: u32 = 0o755;
const DATA: u32 = 0o644;
/// Documents of the repository that are installed, too.
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// A file below the prefix.
#[derive(Debug)]
struct Item {
    /// Without a `/` at its start.
    path: String,
    mode: u32,
    bytes: Vec<u8>,
}

pub(crate) fn command(args: &DistArgs) -> Result<u8, Error> {
    let repository = paths::repository()?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => paths::target_dir()?.join("dist"),
    };
    std::fs::create_dir_all(&output)
        .map_err(|error| usage(format!("--output {}: {error}", output.display())))?;
    say!("limen: collecting the files");
    let items = items(&repository)?;
    let time_s = time_s(&repository);
    let version = env!("CARGO_PKG_VERSION");
    let package = output.join(format!("limen_{version}_amd64.deb"));
    say!("limen: writing {}", package.display());
    write(&package, &deb::package(&items, version, time_s)?)?;
    let name = format!("limen-{version}-x86_64");
    let archive = output.join(format!("{name}.tar.gz"));
    say!("limen: writing {}", archive.display());
    write(&archive, &gzip(&tar(&items, &format!("{name}/"), time_s)?)?)?;
    Ok(0)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    std::fs::write(path, bytes).map_err(Failure::at(Doing::Write, path))?;
    tell!("{} {}", path.display(), pack::sizes::human(bytes.len()));
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(Failure::at(Doing::Read, path))
}

/// All files, sorted by path.
fn items(repository: &Path) -> Result<Vec<Item>, Error> {
    let temporary = std::env::temp_dir();
    let scratch = tempfile::tempdir_in(&temporary);
    let scratch = scratch.map_err(Failure::at(Doing::Make, &temporary))?;
    let kernel = paths::kernel_image(None)?;
    let at = |name: &str| scratch.path().join(name);
    binutils("strip", &["--strip-all", "-o"], &at("program"), &std::env::current_exe()?)?;
    binutils("strip", &["--strip-all", "-o"], &at("kernel"), &kernel)?;
    binutils("objcopy", &["--only-keep-debug"], &kernel, &at("debug"))?;
    let init = read(&bench::build(linux::INIT)?)?;
    let mut items = Vec::new();
    let mut add = |path: &str, mode: u32, bytes: Vec<u8>| {
        items.push(Item { path: path.to_owned(), mode, bytes });
    };
    add("bin/limen", PROGRAM, read(&at("program"))?);
    add("lib/limen/limen-kernel", DATA, read(&at("kernel"))?);
    add("lib/limen/limen-kernel.debug", DATA, read(&at("debug"))?);
    add(&format!("lib/limen/{}", linux::INIT), PROGRAM, init);
    for (shell, path) in [
        (Shell::Bash, "share/bash-completion/completions/limen"),
        (Shell::Zsh, "share/zsh/vendor-completions/_limen"),
        (Shell::Fish, "share/fish/vendor_completions.d/limen.fish"),
    ] {
        add(path, DATA, manual::completions(shell));
    }
    add("share/man/man1/limen.1.gz", DATA, gzip(&manual::page()?)?);
    for name in DOCUMENTS {
        add(&format!("share/doc/limen/{name}"), DATA, read(&repository.join(name))?);
    }
    add("share/doc/limen/copyright", DATA, deb::COPYRIGHT.into());
    items.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(items)
}

/// A program of binutils, which come with every C compiler: `TOOL WORDS FIRST SECOND`.
fn binutils(tool: &str, words: &[&str], first: &Path, second: &Path) -> Result<(), Error> {
    let output = Command::new(tool).args(words).arg(first).arg(second).output();
    let output = output.map_err(|error| format!("{tool}: {error} (Debian package binutils)"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{tool}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The time of all files, in seconds since the epoch.
fn time_s(repository: &Path) -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let of_commit = || {
        let mut git = Command::new("git");
        let output = git.args(["log", "-1", "--format=%ct"]).current_dir(repository).output();
        output.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    given.or_else(of_commit).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A tar archive of the files below `prefix`, with all folders, owned by root.
fn tar(items: &[Item], prefix: &str, time_s: u64) -> Result<Vec<u8>, Error> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut folders = std::collections::BTreeSet::new();
    let mut put = |kind, path: &str, mode: u32, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(time_s);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, path, bytes)
    };
    for item in items {
        let path = PathBuf::from(format!("{prefix}{}", item.path));
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for folder in above.into_iter().rev().filter(|folder| folder.components().count() > 0) {
            if folder != Path::new(".") && folders.insert(folder.to_owned()) {
                let name = format!("{}/", folder.display());
                put(tar::EntryType::Directory, &name, 0o755, b"")?;
            }
        }
        put(tar::EntryType::Regular, &path.display().to_string(), item.mode, &item.bytes)?;
    }
    Ok(archive.into_inner()?)
}

/// Without a time or a name in it.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let _slow = Progress::of(format!("compressing {}", pack::sizes::human(bytes.len())));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> Vec<Item> {
        let item = |path: &str, mode| Item { path: path.into(), mode, bytes: b"x".to_vec() };
        vec![item("bin/limen", PROGRAM), item("lib/limen/k", DATA)]
    }

    #[test]
    fn archives_have_their_folders_and_are_the_same_each_time() {
        let bytes = tar(&items(), "limen-1/", 7).expect("into memory");
        assert_eq!(bytes, tar(&items(), "limen-1/", 7).expect("into memory"));
        let mut archive = tar::Archive::new(&bytes[..]);
        let names: Vec<String> = archive
            .entries()
            .expect("own archive")
            .map(|entry| entry.expect("own entry").path().expect("a path").display().to_string())
            .collect();
        let wanted = ["limen-1/", "limen-1/bin/", "limen-1/bin/limen"];
        assert_eq!(names[..3], wanted);
        assert_eq!(names[3..], ["limen-1/lib/", "limen-1/lib/limen/", "limen-1/lib/limen/k"]);
    }

    #[test]
    fn packages_are_what_dpkg_reads() {
        let package = deb::package(&items(), "1.2.3", 7).expect("into memory");
        assert!(package.starts_with(b"!<arch>\ndebian-binary   "));
        // Members begin at even places, each with its end mark.
        let mut at = 8;
        let mut names = Vec::new();
        while at < package.len() {
            let header = &package[at..at + 60];
            assert_eq!(&header[58..], b"`\n");
            let text = |range: std::ops::Range<usize>| {
                String::from_utf8_lossy(&header[range]).trim().to_owned()
            };
            names.push(text(0..16));
            let len: usize = text(48..58).parse().expect("a length");
            at += 60 + len.next_multiple_of(2);
        }
        assert_eq!(names, ["debian-binary", "control.tar.gz", "data.tar.gz"]);
    }
}
