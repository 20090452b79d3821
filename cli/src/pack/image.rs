//! `limen pack --image`: a container image as one archive, with its owners, modes and times.
//!
//! Neighbours: `crate::oci` unpacks the image, `run/plan/image.rs` runs it without packing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use formats::boot_config::{BootConfig, RootKind};
use formats::cpio::{self, Attributes};
use formats::ports;

use crate::Error;
use crate::args::{Cli, Command};
use crate::failure::{Doing, Failure};
use crate::oci::{Image, NodeKind};
use crate::progress::Progress;
use crate::run::plan::Plan;

/// The archive: what to run comes first, then all files.
pub(super) fn archive(given: &Path, program: &[OsString]) -> Result<Vec<u8>, Error> {
    let image = Image::open(given)?;
    let entry_words = u32::try_from(image.settings.entrypoint.len())?;
    let config = BootConfig { fixed_words: entry_words, ..config(given, program)? };
    let rootfs = image.rootfs;
    let _slow = Progress::of("packing the image");
    let mut files = Vec::new();
    for (path, meta, mtime_s) in rootfs.walk()? {
        let data = match meta.kind {
            NodeKind::File | NodeKind::Link => {
                let host = rootfs.on_host(&path);
                std::fs::read(&host).map_err(Failure::at(Doing::Read, &host))?
            }
            NodeKind::Folder | NodeKind::Fifo => vec![],
        };
        let (uid, gid) = (meta.uid, meta.gid);
        files.push((path, Attributes { mode: meta.mode(), uid, gid, mtime_s }, data));
    }
    let encoded = config.encode();
    let mut first = cpio::Writer::new();
    first.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    let mut rest = cpio::Writer::new();
    for (path, attributes, data) in &files {
        rest.entry(path.as_os_str().as_bytes(), *attributes, data);
    }
    let too_big = |path: Vec<u8>| format!("{}: too big", path.escape_ascii());
    let mut archive = first.finish().map_err(too_big)?;
    archive.extend(rest.finish().map_err(too_big)?);
    Ok(archive)
}

/// As `limen run --image` would run it, without anything of the caller's.
fn config(given: &Path, program: &[OsString]) -> Result<BootConfig, Error> {
    use clap::Parser as _;
    let words = ["limen".into(), "run".into(), "--image".into(), given.into(), "--".into()];
    let words = words.into_iter().chain(program.iter().cloned());
    let Command::Run(args) = Cli::try_parse_from(words)?.command else {
        return Err("limen run is another command".into());
    };
    let plan = Plan::make(&args)?;
    let config = plan.map_err(|outcome| outcome.explanation().unwrap_or_default())?.config;
    let of_caller = [b"TERM=".as_slice(), b"LANG=", b"TZ=", b"LC_"];
    let env = config.env.into_iter();
    Ok(BootConfig {
        env: env.filter(|entry| !of_caller.iter().any(|name| entry.starts_with(name))).collect(),
        root: RootKind::Packed,
        stdio: Default::default(),
        winsize: Default::default(),
        want: Default::default(),
        realtime_ns: 0,
        ..config
    })
}
