//! From options to a virtual machine: the boot configuration, the initramfs, the devices.
//!
//! Why it is hard: every path has two sides. A program, a working directory or a shared folder is
//! named by the caller on the host and must mean the same in the guest, which sees the caller's
//! tree, another tree, or only what was packed.
//!
//! Neighbours: `mod.rs` runs what [`Plan::make`] makes; `formats::boot_config` is its form.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use formats::boot_config::{BootConfig, RootKind, RwMount, Stdio, Want};
use formats::{cpio, ports};

use super::lookup::{DEFAULT_PATH, Found, find_program, variable};
use super::outcome::Outcome;
use super::qemu::Qemu;
use super::{accel, secrets, tty};
use crate::args::RunArgs;
use crate::pack::files::FileSet;
use crate::tree::{Tree, absolute};
use crate::{Error, pack, paths, usage};

/// Variables that a program gets from the caller; all others may be keys and tokens.
const VARIABLES: [&str; 7] = ["PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "TZ"];
/// And those that begin so.
const LOCALE_PREFIX: &[u8] = b"LC_";
/// Those that mean the host's files, which a packed program does not see.
const OF_THE_HOST: [&str; 4] = ["PATH", "HOME", "USER", "SHELL"];
/// Places in the guest that cannot be a shared folder: the root, and what the kernel mounts.
const NOT_SHARED: [&str; 4] = ["/", "/proc", "/sys", "/dev"];
/// A guest's name, where nothing else is said.
const HOSTNAME: &[u8] = b"limen";

/// A VM ready to start.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) qemu: Qemu,
    pub(crate) config: BootConfig,
    /// A cpio archive: the configuration, and the files that go into the guest.
    pub(crate) initramfs: Vec<u8>,
}

/// Either a plan, or how the run has ended before it began.
pub(crate) type Planned = Result<Plan, Outcome>;

impl Plan {
    /// Decides everything. Wrong usage (a folder that is not there) is an error; a program that
    /// is not there is an outcome.
    pub(crate) fn make(args: &RunArgs) -> Result<Planned, Error> {
        check_cpu(args)?;
        let here = std::env::current_dir()?;
        let tree = match &args.root {
            Some(root) => Tree::new(folder(&here, root)?),
            None => Tree::host(),
        };
        let keeps_place = args.root.is_none() && !args.pack;
        if let Some(cwd) = args.cwd.as_ref().filter(|cwd| !keeps_place && cwd.is_relative()) {
            let text =
                format!("--cwd {}: with --root and --pack it must begin with /", cwd.display());
            return Err(usage(text));
        }
        let cwd = match (&args.cwd, keeps_place) {
            (Some(cwd), _) => absolute(if keeps_place { &here } else { Path::new("/") }, cwd),
            (None, true) => here.clone(),
            (None, false) => PathBuf::from("/"),
        };
        let env = environment(args, keeps_place);
        // A packed program is the host's, looked up as the caller would.
        let (search_path, search_base) = match args.pack {
            true => (std::env::var_os("PATH"), here.as_path()),
            false => (variable(&env, "PATH").map(OsStr::to_owned), cwd.as_path()),
        };
        let search_path = search_path.unwrap_or_else(|| DEFAULT_PATH.into());
        let mut files = FileSet::default();
        files.add_arguments(&here, &args.file, &args.dir, |path| match args.pack {
            true => pack::is_folder(path),
            false => tree.find(path).is_ok_and(|found| found.is_dir()),
        })?;
        let name = &args.program[0];
        // A packed program's own place is the guest's: what was added counts there, too.
        let of_cwd = absolute(&cwd, Path::new(name));
        let program = match find_program(&tree, &files, name, &search_path, search_base) {
            Found::At(path) => path,
            _ if files.file_mode(&of_cwd).is_some_and(|mode| mode & 0o111 != 0) => of_cwd,
            Found::NotExecutable(path) => {
                let reason = "Permission denied (not an executable file)".to_owned();
                return Ok(Err(Outcome::NotExecutable(bytes(path), reason)));
            }
            Found::Nowhere => return Ok(Err(Outcome::NotFound(name.as_bytes().to_vec()))),
        };
        let packed = match args.pack {
            true => pack::packed_archive(&program, &files)?,
            false => files.archive()?,
        };
        let shares = shares(&here, &args.rw)?;
        for (host, _) in &shares {
            secrets::ensure_shareable(host, &cwd, &args.hide, &args.show)?;
        }
        let config = boot_config(args, &tree, &program, cwd, env, &shares)?;
        let initramfs = join(&config, &packed)?;
        let qemu = qemu(args, &tree, shares)?;
        check_size(&initramfs, args.memory)?;
        Ok(Ok(Self { qemu, config, initramfs }))
    }
}

/// QEMU's CPU models without 64-bit mode: no kernel of this kind starts on them.
const CPUS_OF_32_BIT: [&str; 9] =
    ["486", "athlon", "coreduo", "kvm32", "n270", "pentium", "pentium2", "pentium3", "qemu32"];

fn check_cpu(args: &RunArgs) -> Result<(), Error> {
    let model = args.cpu.as_deref().unwrap_or_default().split(',').next().unwrap_or_default();
    match CPUS_OF_32_BIT.contains(&model.trim_end_matches("-v1")) {
        false => Ok(()),
        true => {
            Err(usage(format!("--cpu {model}: this CPU has no 64-bit mode, which Limen needs")))
        }
    }
}

fn qemu(args: &RunArgs, tree: &Tree, shares: Vec<(PathBuf, PathBuf)>) -> Result<Qemu, Error> {
    Ok(Qemu {
        kernel: paths::kernel_image(args.kernel.as_deref())?,
        append: args.append.clone(),
        machine: args.machine,
        accel: accel::choose(args.accel)?,
        cpu: args.cpu.clone(),
        smp: args.smp,
        memory_mib: args.memory,
        gdb: args.gdb,
        root: (!args.pack).then(|| tree.root().to_owned()),
        rw: shares.into_iter().map(|(host, _)| host).collect(),
    })
}

fn boot_config(
    args: &RunArgs,
    tree: &Tree,
    program: &Path,
    cwd: PathBuf,
    env: Vec<OsString>,
    shares: &[(PathBuf, PathBuf)],
) -> Result<BootConfig, Error> {
    let process = rustix::process::getgroups()?;
    let groups: Vec<u32> = process.into_iter().map(rustix::process::Gid::as_raw).collect();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // What is packed belongs to root and the program has the VM for itself.
    let (uid, gid, groups) = if args.pack { (0, 0, vec![]) } else { (uid, gid, groups) };
    let hidden = match args.pack {
        true => vec![],
        false => secrets::hidden_paths(tree, &cwd, &args.hide, &args.show),
    };
    let tags = (0..).map(|n| format!("{}{n}", ports::RW_TAG_PREFIX).into_bytes());
    let rw_mounts = tags.zip(shares).map(|(tag, (_, guest))| RwMount { tag, path: path(guest) });
    Ok(BootConfig {
        program: path(program),
        argv: args.program.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: env.into_iter().map(OsString::into_vec).collect(),
        cwd: bytes(cwd),
        uid,
        gid,
        groups,
        hostname: HOSTNAME.to_vec(),
        umask: umask(),
        root: if args.pack { RootKind::Packed } else { RootKind::Live },
        rw_mounts: rw_mounts.collect(),
        hidden: hidden.into_iter().map(bytes).collect(),
        stdio: stdio_kinds(),
        winsize: tty::window_size().unwrap_or_default(),
        want: Want {
            missing_syscalls: args.missing_syscalls || args.json.is_some(),
            syscall_summary: args.syscall_summary,
            missing_files: args.missing_files,
            counters: args.json.is_some(),
            trace: args.trace.is_some(),
            // Nobody answers a command that is pasted into a shell.
            clock: !args.dry_run,
        },
        realtime_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos() as u64),
    })
}

/// The caller's file mode mask, from /proc because umask(2) can only be read by changing it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    value.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

/// The guest's environment. A variable given twice keeps its last value.
fn environment(args: &RunArgs, keeps_place: bool) -> Vec<OsString> {
    let wanted = |name: &OsStr| {
        args.env_all
            || VARIABLES.iter().any(|variable| name == *variable)
            || name.as_bytes().starts_with(LOCALE_PREFIX)
    };
    let mut env: Vec<(OsString, OsString)> =
        std::env::vars_os().filter(|(name, _)| wanted(name)).collect();
    if args.pack {
        env.retain(|(name, _)| OF_THE_HOST.iter().all(|variable| name != *variable));
        env.push(("HOME".into(), "/".into()));
    }
    if !keeps_place {
        env.retain(|(name, _)| name != "PATH" && name != "PWD" && name != "OLDPWD");
        env.push(("PATH".into(), DEFAULT_PATH.into()));
    }
    for given in &args.env {
        let text = given.as_bytes();
        let (name, value) = match text.iter().position(|&byte| byte == b'=') {
            Some(at) => (&text[..at], Some(OsStr::from_bytes(&text[at + 1..]).to_owned())),
            None => (text, std::env::var_os(given)),
        };
        let name = OsStr::from_bytes(name).to_owned();
        env.retain(|(other, _)| *other != name);
        env.extend(value.map(|value| (name, value)));
    }
    let join = |(mut entry, value): (OsString, OsString)| {
        entry.push("=");
        entry.push(value);
        entry
    };
    env.into_iter().map(join).collect()
}

/// What descriptors 0, 1 and 2 look like to the program.
fn stdio_kinds() -> [Stdio; 3] {
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
    null.is_some() && device(fd) == null
}

/// `HOST[:GUEST]` of `--rw`: both sides absolute.
fn shares(here: &Path, given: &[OsString]) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    if given.len() > ports::RW_SHARES_MAX {
        return Err(usage(format!("--rw: at most {} folders", ports::RW_SHARES_MAX)));
    }
    let share = |text: &OsString| {
        let (host, guest) = pack::files::host_and_guest(here, text);
        if NOT_SHARED.iter().any(|place| guest == Path::new(place)) {
            let text = format!(
                "--rw {}: {} of the guest cannot be shared for writing: name a folder below it",
                text.display(),
                guest.display()
            );
            return Err(usage(text));
        }
        Ok((folder(here, &host)?, guest))
    };
    given.iter().map(share).collect()
}

/// A folder that exists, absolute and without links (QEMU's 9p server refuses a link as root).
fn folder(here: &Path, path: &Path) -> Result<PathBuf, Error> {
    let found = std::fs::canonicalize(here.join(path));
    let found = found.map_err(|error| format!("{}: {error}", path.display()))?;
    match found.is_dir() {
        true => Ok(found),
        false => Err(format!("{}: not a folder", path.display()).into()),
    }
}

/// The configuration's archive and `packed`, one after the other, as the format allows.
fn join(config: &BootConfig, packed: &[u8]) -> Result<Vec<u8>, Error> {
    let encoded = config.encode();
    BootConfig::decode(&encoded)?;
    let mut writer = cpio::Writer::new();
    writer.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    let archive = writer.finish();
    let mut archive = archive.map_err(|_| "the configuration does not fit an archive")?;
    archive.extend_from_slice(packed);
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

fn path(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

fn bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}
