//! From options to a virtual machine: the boot configuration, the initramfs, the devices.
//!
//! Why it is hard: every path has two sides. A program, a working directory or a shared folder is
//! named by the caller on the host and must mean the same in the guest, which sees the caller's
//! tree, another tree, an image, or only what was packed. Each of these has a file that says how
//! the program starts there ([`Start`]); the rest is the same for all and is here.
//!
//! Reading order: [`Plan::make`]; `tree` (live root, `--root`, `--pack`), `image` (`--image`),
//! `kept` (what `limen pack` made); `environment`. Neighbours: `../mod.rs` runs what is planned;
//! `formats::boot_config` is its form.

pub(crate) mod environment;
mod image;
mod kept;
mod tree;

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use formats::boot_config::{BootConfig, RootKind, RwMount, Stdio, Want};
use formats::{cpio, ports};

use super::outcome::Outcome;
use super::qemu::{Qemu, SharedRoot};
use super::{accel, tty};
use crate::args::RunArgs;
use crate::oci::user::{Names, User};
use crate::{Error, pack, paths, profile, usage};

/// A guest's name, where nothing else is said.
const HOSTNAME: &[u8] = b"limen";

/// A VM ready to start.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) qemu: Qemu,
    pub(crate) config: BootConfig,
    /// A cpio archive: the configuration, and the files that go into the guest.
    pub(crate) initramfs: Vec<u8>,
    /// Who there is in the guest.
    pub(crate) names: Names,
}

/// Either a plan, or how the run has ended before it began.
pub(crate) type Planned = Result<Plan, Outcome>;

/// How a program starts in a guest of one kind.
struct Start {
    /// Absolute in the guest.
    program: PathBuf,
    argv: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    cwd: PathBuf,
    user: User,
    umask: u32,
    hidden: Vec<PathBuf>,
    /// What goes into the guest as files: a cpio archive without a configuration.
    files: Vec<u8>,
    /// The folder of the host that is the guest's root; none if `files` is all.
    root: Option<SharedRoot>,
    /// Who there is in the guest.
    names: Names,
}

/// The same as [`Planned`], one step before.
type Started = Result<Start, Outcome>;

impl Plan {
    /// Decides everything. Wrong usage (a folder that is not there) is an error; a program that
    /// is not there is an outcome.
    pub(crate) fn make(args: &RunArgs) -> Result<Planned, Error> {
        check_words(args)?;
        check_cpu(args)?;
        let profile = profile::of(args)?;
        let here = paths::here()?;
        let shares = shares(&here, &args.rw)?;
        let started = match (&args.image, kept::archive(args)?) {
            (Some(image), _) => image::start(args, &here, image)?,
            (None, Some(archive)) => kept::start(args, &here, archive)?,
            (None, None) => tree::start(args, &here, &shares)?,
        };
        let start = match started {
            Ok(start) => start,
            Err(outcome) => return Ok(Err(outcome)),
        };
        let (files, root, names) = (start.files.clone(), start.root.clone(), start.names.clone());
        let config = BootConfig { profile, ..boot_config(args, start, &shares) };
        let initramfs = join(&config, &files)?;
        let qemu = qemu(args, root, shares)?;
        check_size(&initramfs, args.memory)?;
        Ok(Ok(Self { qemu, config, initramfs, names }))
    }
}

/// QEMU's CPU models without 64-bit mode: no kernel of this kind starts on them.
const CPUS_OF_32_BIT: [&str; 9] =
    ["486", "athlon", "coreduo", "kvm32", "n270", "pentium", "pentium2", "pentium3", "qemu32"];

/// What nobody can have meant, and would be done without a word.
fn check_words(args: &RunArgs) -> Result<(), Error> {
    if args.program.first().is_some_and(|name| name.is_empty()) {
        return Err(usage("the program's name is empty: limen run -- PROGRAM"));
    }
    let empty = |word: &OsString| word.is_empty() || word.as_encoded_bytes().starts_with(b":");
    for (option, words) in [("--file", &args.file), ("--dir", &args.dir), ("--rw", &args.rw)] {
        if let Some(word) = words.iter().find(|word| empty(word)) {
            let text = format!("{option} {:?}: want HOST or HOST:GUEST", word.display());
            return Err(usage(text));
        }
    }
    if args.cpu.as_deref().is_some_and(|model| model.trim().is_empty()) {
        return Err(usage("--cpu \"\": want a CPU model, such as EPYC"));
    }
    if let Some(path) = args.hide.iter().find(|path| args.show.contains(path)) {
        let path = path.display();
        return Err(usage(format!("--hide {path} --show {path}: give one of the two")));
    }
    for word in &args.env {
        if word.is_empty() {
            return Err(usage("--env \"\": want NAME=VALUE, or NAME"));
        }
        match word.to_string_lossy().split_once('=') {
            Some(("", _)) => {
                return Err(usage(format!("--env {}: want NAME=VALUE, or NAME", word.display())));
            }
            None if std::env::var_os(word).is_none() => {
                say!("limen: --env {}: this variable is not set here", word.display());
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_cpu(args: &RunArgs) -> Result<(), Error> {
    let model = args.cpu.as_deref().unwrap_or_default().split(',').next().unwrap_or_default();
    match CPUS_OF_32_BIT.contains(&model.trim_end_matches("-v1")) {
        false => Ok(()),
        true => {
            Err(usage(format!("--cpu {model}: this CPU has no 64-bit mode, which Limen needs")))
        }
    }
}

/// The kernel's command line. A debugger sets breakpoints where the image was linked.
fn append(args: &RunArgs) -> String {
    match args.gdb {
        Some(_) => format!("{} nokaslr", args.append).trim_start().to_owned(),
        None => args.append.clone(),
    }
}

fn qemu(
    args: &RunArgs,
    root: Option<SharedRoot>,
    shares: Vec<(PathBuf, PathBuf)>,
) -> Result<Qemu, Error> {
    super::qemu::ensure_there()?;
    Ok(Qemu {
        kernel: paths::kernel_image(args.kernel.as_deref())?,
        append: append(args),
        machine: args.machine,
        accel: accel::choose(args.accel)?,
        cpu: args.cpu.clone(),
        smp: args.smp,
        memory_mib: args.memory,
        gdb: args.gdb,
        root,
        rw: shares.into_iter().map(|(host, _)| host).collect(),
    })
}

fn boot_config(args: &RunArgs, start: Start, shares: &[(PathBuf, PathBuf)]) -> BootConfig {
    let tags = (0..).map(|n| format!("{}{n}", ports::RW_TAG_PREFIX).into_bytes());
    let rw_mounts =
        tags.zip(shares).map(|(tag, (_, guest))| RwMount { tag, path: bytes(guest.clone()) });
    BootConfig {
        program: bytes(start.program),
        argv: start.argv,
        env: start.env,
        cwd: bytes(start.cwd),
        uid: start.user.uid,
        gid: start.user.gid,
        groups: start.user.groups,
        hostname: HOSTNAME.to_vec(),
        umask: start.umask,
        root: if start.root.is_some() { RootKind::Live } else { RootKind::Packed },
        rw_mounts: rw_mounts.collect(),
        hidden: start.hidden.into_iter().map(bytes).collect(),
        stdio: match args.detach {
            Some(_) => [Stdio::Null, Stdio::Pipe, Stdio::Pipe],
            None => stdio_kinds(),
        },
        winsize: tty::window_size().unwrap_or_default(),
        want: Want {
            missing_syscalls: args.missing_syscalls || args.json.is_some(),
            syscall_summary: args.syscall_summary,
            missing_files: args.missing_files,
            counters: args.json.is_some(),
            trace: args.trace.is_some(),
            // Nobody answers a command that is pasted into a shell, or left alone.
            clock: !args.dry_run && args.detach.is_none(),
        },
        realtime_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos() as u64),
        ..BootConfig::default()
    }
}

/// The caller's file mode mask, from /proc because umask(2) can only be read by changing it.
fn callers_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    value.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

/// What descriptors 0, 1 and 2 look like to the program.
pub(crate) fn stdio_kinds() -> [Stdio; 3] {
    let interactive = tty::is_interactive();
    let out_is_tty = std::io::stdout().is_terminal();
    let input = match interactive {
        true => Stdio::Tty,
        false if is_null(0) => Stdio::Null,
        false => Stdio::Pipe,
    };
    let output = |fd: u8, is_tty: bool| match is_tty {
        true => Stdio::Tty,
        false if is_null(fd) => Stdio::Null,
        false => Stdio::Pipe,
    };
    // The tty's output arrives at stdout: stderr may only be a tty if it is the same one.
    let err_is_tty = out_is_tty && std::io::stderr().is_terminal() && device(1) == device(2);
    [input, output(1, out_is_tty), output(2, err_is_tty)]
}

/// Device number of a character device at one of our descriptors.
fn device(fd: u8) -> Option<u64> {
    std::fs::metadata(format!("/proc/self/fd/{fd}")).ok().map(|meta| meta.rdev())
}

fn is_null(fd: u8) -> bool {
    let null = std::fs::metadata("/dev/null").ok().map(|meta| meta.rdev());
    // What the runtime has opened in the place of a closed one loses what is written: no null.
    null.is_some() && device(fd) == null && (fd == 0 || !standard_streams::was_closed(fd))
}

/// `HOST[:GUEST]` of `--rw`: both sides absolute.
fn shares(here: &Path, given: &[OsString]) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    if given.len() > ports::RW_SHARES_MAX {
        return Err(usage(format!("--rw: at most {} folders", ports::RW_SHARES_MAX)));
    }
    let mut shares: Vec<(PathBuf, PathBuf)> = Vec::new();
    for text in given {
        let (host, guest) = pack::files::host_and_guest(here, text);
        let refuse = |why: &str| {
            let (text, guest) = (text.display(), guest.display());
            Err(usage(format!(
                "--rw {text}: {guest} of the guest cannot be shared for writing: {why}"
            )))
        };
        if guest.components().any(|part| part == std::path::Component::ParentDir) {
            return refuse("write it without `..`");
        }
        if guest == Path::new("/") {
            return refuse("name a folder below it");
        }
        if pack::files::is_of_kernel(&guest) {
            return refuse("it is the kernel's; name another place");
        }
        if shares.iter().any(|(_, other)| *other == guest) {
            return refuse("another --rw is there already");
        }
        shares.push((folder("--rw", here, &host)?, guest));
    }
    Ok(shares)
}

/// A folder that exists, absolute and without links (QEMU's 9p server refuses a link as root).
fn folder(option: &str, here: &Path, path: &Path) -> Result<PathBuf, Error> {
    let found = std::fs::canonicalize(here.join(path));
    let found = found.map_err(|error| usage(format!("{option} {}: {error}", path.display())))?;
    match found.is_dir() {
        true => Ok(found),
        false => Err(usage(format!("{option} {}: not a folder", path.display()))),
    }
}

/// `--cwd` where the guest's paths are not the caller's.
fn guest_cwd(args: &RunArgs, option: &str) -> Result<Option<PathBuf>, Error> {
    match &args.cwd {
        Some(cwd) if cwd.is_relative() => {
            let text = format!("--cwd {}: with {option} it must begin with /", cwd.display());
            Err(usage(text))
        }
        cwd => Ok(cwd.clone()),
    }
}

/// The configuration's archive and `files`, one after the other, as the format allows.
fn join(config: &BootConfig, files: &[u8]) -> Result<Vec<u8>, Error> {
    let encoded = config.encode();
    BootConfig::decode(&encoded)?;
    let mut writer = cpio::Writer::new();
    writer.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    let archive = writer.finish();
    let mut archive = archive.map_err(|_| "the configuration does not fit an archive")?;
    archive.extend_from_slice(files);
    Ok(archive)
}

/// QEMU would only say that the initramfs does not fit; say by how much.
fn check_size(initramfs: &[u8], memory_mib: u64) -> Result<(), Error> {
    let size_mib = (initramfs.len() >> 20) as u64;
    match size_mib * 2 > memory_mib {
        false => Ok(()),
        true => Err(format!(
            "the files for the guest are {size_mib} MiB: --memory must be at least {}M",
            size_mib * 2
        )
        .into()),
    }
}

fn words(words: &[OsString]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.clone().into_vec()).collect()
}

fn bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

/// How a run ends whose program is there and no executable file.
fn not_executable(path: PathBuf) -> Outcome {
    Outcome::NotExecutable(bytes(path), "Permission denied (not an executable file)".to_owned())
}

/// How a run ends whose program is nowhere.
fn not_found(name: &OsStr) -> Outcome {
    Outcome::NotFound(name.to_owned().into_vec())
}
