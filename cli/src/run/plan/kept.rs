//! Images that `limen pack` made: `limen run IMAGE.cpio`.
//!
//! The image says what to run; what the caller's terminal and options say comes on top. Words
//! behind the image take the place of the arguments that were packed, but for a container image's
//! entry point, which stays as it does with `--image`. Neighbour: `crate::pack`
//! makes them, the configuration first.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use formats::boot_config::BootConfig;
use formats::{cpio, ports};

use super::environment::{Environment, Sees};
use super::{RunArgs, Start, Started, guest_cwd, words};
use crate::oci::user::{Names, User};
use crate::pack::files::{FileSet, Place};
use crate::{Error, paths, usage};

/// The first bytes of every cpio archive of this form.
const MAGIC: &[u8] = b"070701";

/// The archive, if the program that is named is one.
pub(super) fn archive(args: &RunArgs) -> Result<Option<Vec<u8>>, Error> {
    let Some(name) = args.program.first() else { return Ok(None) };
    let path = Path::new(name);
    if args.pack || args.root.is_some() || !path.is_file() {
        return Ok(None);
    }
    let mut first = Vec::new();
    let file = std::fs::File::open(path).map(|file| file.take(MAGIC.len() as u64));
    if file.and_then(|mut file| file.read_to_end(&mut first)).is_err() || first != MAGIC {
        return Ok(None);
    }
    Ok(Some(paths::read(path)?))
}

pub(super) fn start(args: &RunArgs, here: &Path, archive: Vec<u8>) -> Result<Started, Error> {
    let image = PathBuf::from(&args.program[0]);
    let of_image = |error: String| usage(format!("{}: {error}", image.display()));
    if let Some(path) = args.hide.iter().chain(&args.show).next() {
        let why = "--hide and --show have no effect: only what is packed is there";
        return Err(of_image(format!("{} ({why})", path.display())));
    }
    let config = cpio::Reader::find(&archive, ports::CONFIG_PATH);
    let config = config.map_err(|error| of_image(error.to_string()))?.ok_or_else(|| {
        of_image("this archive does not say what to run; `limen pack` makes one that does".into())
    })?;
    let packed = BootConfig::decode(config).map_err(|error| {
        of_image(format!("it was made by another version of limen ({error}): pack it again"))
    })?;
    let mut env = Environment::of_caller(args, Sees::Nothing);
    packed.env.iter().for_each(|entry| env.set_entry(entry));
    env.set_given(&args.env);
    let mut argv = packed.argv;
    // Behind the image a `--` separates, as it does before a program.
    let given = &args.program[1..];
    let given = given.strip_prefix(&["--".into()]).unwrap_or(given);
    if !given.is_empty() {
        argv.truncate(packed.fixed_words.max(1) as usize);
        argv.extend(words(given));
    }
    let text = |path: &str| {
        let bytes = cpio::Reader::find(&archive, path).ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let names = Names { passwd: text("etc/passwd"), group: text("etc/group") };
    let user = match &args.user {
        Some(name) => names.resolve(name)?,
        None => User { uid: packed.uid, gid: packed.gid, groups: packed.groups, home: None },
    };
    let mut files = FileSet::default();
    files.add_arguments(here, &args.file, &args.dir, |path| place(&archive, path))?;
    let path = |bytes: Vec<u8>| {
        use std::os::unix::ffi::OsStringExt as _;
        PathBuf::from(std::ffi::OsString::from_vec(bytes))
    };
    let cwd = guest_cwd(args, "a packed image")?.unwrap_or_else(|| path(packed.cwd));
    // The new configuration stands before the one in the image, and the first one counts; of
    // files the last one does.
    let mut all = archive;
    all.extend(files.archive()?);
    Ok(Ok(Start {
        program: path(packed.program),
        argv,
        env: env.encode(),
        cwd,
        user,
        umask: packed.umask,
        hidden: vec![],
        files: all,
        root: None,
        names,
    }))
}

fn place(archive: &[u8], path: &Path) -> Place {
    use std::os::unix::ffi::OsStrExt as _;
    let wanted = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
    if wanted.is_empty() {
        return Place::Folder;
    }
    let kind = |mode: u32| mode & cpio::mode::TYPE;
    let mut entries = cpio::Reader::new(archive).flatten();
    match entries.find(|entry| entry.path == wanted).map(|entry| kind(entry.mode)) {
        None => Place::Nothing,
        // A link may lead to a folder.
        Some(cpio::mode::DIRECTORY | cpio::mode::SYMLINK) => Place::Folder,
        Some(_) => Place::Other,
    }
}
