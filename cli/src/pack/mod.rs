//! Packing: a program and what it needs as one archive, for `run --pack` and `limen pack`.
//!
//! Archives are kept in the cache by the hash of their contents; a second index from the files'
//! identities and times to that hash saves reading them again. Reading order: `closure` (what is
//! needed), `files` (the set and its archive), `elf` and `ldso` (the formats), `image` (container
//! images), `sizes` (what to tell of the result).

pub(crate) mod closure;
mod elf;
pub(crate) mod files;
mod image;
mod ldso;
pub(crate) mod sizes;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use formats::boot_config::{BootConfig, RootKind};
use formats::{cpio, ports};
use sha2::{Digest as _, Sha256};

use crate::args::PackArgs;
use crate::cache::{self, Folder};
use crate::failure::{Doing, Failure};
use crate::run::lookup::{DEFAULT_PATH, Found, find_program};
use crate::run::outcome::{STATUS_BOOT_FAILURE, STATUS_NOT_FOUND};
use crate::tree::Tree;
use crate::{Error, paths};
use files::{FileSet, Node, Place, hex};

/// Folders of every root, some of which the kernel mounts on. Modes as on any Linux system.
pub(crate) const SKELETON: [(&str, u32); 6] = [
    ("/dev", 0o755),
    ("/etc", 0o755),
    ("/proc", 0o555),
    ("/run", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
];
/// Links that a merged-/usr system has, kept where the host has them: programs start `/bin/sh`.
const LINKS: [&str; 4] = ["/bin", "/lib", "/lib64", "/sbin"];
const SKELETON_FILES: [(&str, &str); 3] = [
    ("/etc/hosts", "127.0.0.1\tlocalhost limen\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
    ("/etc/passwd", PASSWD),
    ("/etc/group", GROUP),
];
/// Who a packed image knows.
pub(crate) const PASSWD: &str =
    "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
pub(crate) const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// What a packed image has at this path anyway.
pub(crate) fn place(path: &Path) -> Place {
    match path == Path::new("/") || SKELETON.iter().any(|(dir, _)| path == Path::new(dir)) {
        true => Place::Folder,
        false => Place::Nothing,
    }
}

/// `limen pack`.
pub(crate) fn command(args: &PackArgs) -> Result<u8, Error> {
    paths::ensure_writable("--output", &args.output)?;
    let image = match &args.image {
        Some(given) => image::archive(given, &args.program)?,
        None => match of_program(args)? {
            Ok(image) => image,
            Err(status) => return Ok(status),
        },
    };
    fs::write(&args.output, &image)
        .map_err(|error| Failure::at(Doing::Write, &args.output)(error).of_output("--output"))?;
    sizes::tell(&args.output, &image);
    if args.image.is_none() {
        sizes::tell_limits();
    }
    Ok(0)
}

/// The image of a program of the host, or the exit status if there is no such program.
fn of_program(args: &PackArgs) -> Result<Result<Vec<u8>, u8>, Error> {
    let here = paths::here()?;
    let mut files = FileSet::default();
    files.add_arguments(&here, &args.file, &args.dir, place)?;
    let (search_path, _) = closure::callers_paths();
    let name = &args.program[0];
    let program = match find_program(&Tree::host(), &files, name, &search_path, &here) {
        Found::At(program) => program,
        Found::NotExecutable(path) => {
            say!("limen: {}: Permission denied (not an executable file)", path.display());
            return Ok(Err(STATUS_BOOT_FAILURE));
        }
        Found::Nowhere => {
            say!("limen: {}: not found", name.display());
            return Ok(Err(STATUS_NOT_FOUND));
        }
    };
    warn_of_script(&program);
    let config = packed_config(&program, &args.program);
    with_config(&config, &program, &files).map(Ok)
}

/// How a packed program starts, with these words, in a root of its own and with nothing of the
/// caller's.
pub(crate) fn packed_config(program: &Path, words: &[OsString]) -> BootConfig {
    use std::os::unix::ffi::OsStrExt as _;
    BootConfig {
        program: program.as_os_str().as_bytes().to_vec(),
        argv: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: vec![format!("PATH={DEFAULT_PATH}").into_bytes(), b"HOME=/".to_vec()],
        cwd: b"/".to_vec(),
        hostname: b"limen".to_vec(),
        umask: 0o022,
        root: RootKind::Packed,
        ..BootConfig::default()
    }
}

/// Many programs in PATH are scripts that start another one, which nobody would find missing before
/// the image runs.
fn warn_of_script(program: &Path) {
    let file = Tree::host().find(program).unwrap_or_else(|_| program.to_owned());
    let is_script = files::first_bytes(&file, 2).is_ok_and(|first| first == b"#!");
    if is_script {
        say!(
            "limen: {} is a script: it is packed with its interpreter, but not with what it \
             starts or reads (--file and --dir add that; `limen run --pack --missing-files` lists \
             what is missing)",
            program.display()
        );
    }
}

/// An image that runs `program` as `config` says, with `extra` files.
pub(crate) fn with_config(
    config: &BootConfig,
    program: &Path,
    extra: &FileSet,
) -> Result<Vec<u8>, Error> {
    let encoded = config.encode();
    let mut writer = cpio::Writer::new();
    writer.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    let mut image = writer.finish().map_err(|_| "the configuration does not fit an archive")?;
    image.extend(packed_archive(program, extra)?);
    Ok(image)
}

/// The archive of a host's program with its closure and `extra` with theirs, from the cache where
/// possible.
/// What was not found is named on stderr.
pub(crate) fn packed_archive(program: &Path, extra: &FileSet) -> Result<Vec<u8>, Error> {
    let (path, library_path) = closure::callers_paths();
    let mut files = FileSet::default();
    for (dir, perm) in SKELETON {
        files.add(dir.into(), Node::Dir { perm });
    }
    for link in LINKS {
        if let Ok(target) = fs::read_link(link) {
            files.add(link.into(), Node::Link { target });
        }
    }
    for (file, text) in SKELETON_FILES {
        files.add(file.into(), Node::Text { text });
    }
    // Programs and libraries that were added need theirs, too.
    let added = extra.programs();
    let mut wanted: Vec<&Path> = added.iter().map(|(_, host)| *host).collect();
    if extra.file_mode(program).is_none() {
        wanted.push(program);
    }
    let closure = closure::closure_of_all(&Tree::host(), &wanted, &path, &library_path)?;
    for missing in &closure.missing {
        say!("limen: not packed: {missing}");
    }
    files.extend(&closure.files);
    for (_, host) in added.iter().filter(|(guest, host)| guest != host && *host != program) {
        // It goes to another place, and only there.
        files.remove(host);
    }
    files.extend(extra);
    cached(&files)
}

/// The set's archive, `HASH.cpio`; what has its name is called by the hash of the files' states.
fn cached(files: &FileSet) -> Result<Vec<u8>, Error> {
    let (archives, names) = (Folder::of(cache::PACKED)?, Folder::of(cache::PACKED_BY_STATE)?);
    let state = files.stat_hash()?;
    if let Some(archive) = names.read_text(&state).and_then(|name| archives.read(&name)) {
        return Ok(archive);
    }
    let archive = files.archive()?;
    let name = format!("{}.cpio", hex(&Sha256::digest(&archive)));
    // The archive first: who finds its name finds it.
    let _ = archives.keep(&name, &archive) && names.keep(&state, name.as_bytes());
    Ok(archive)
}
