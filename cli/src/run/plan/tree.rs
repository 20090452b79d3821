//! Programs of a folder of the host: the live root, `--root`, and `--pack`, which takes of it what
//! the program needs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::environment::{Environment, Sees};
use super::{
    RunArgs, Start, Started, callers_umask, folder, guest_cwd, not_executable, not_found, words,
};
use crate::args::{Cache, Share};
use crate::oci::user::{Names, User};
use crate::pack::files::{FileSet, Place};
use crate::run::lookup::{DEFAULT_PATH, Found, find_program};
use crate::run::qemu::SharedRoot;
use crate::run::secrets;
use crate::tree::{Tree, absolute};
use crate::{Error, pack};

pub(super) fn start(
    args: &RunArgs,
    here: &Path,
    shares: &[(PathBuf, PathBuf)],
) -> Result<Started, Error> {
    let tree = tree_of(args, here)?;
    // The guest's paths are the caller's.
    let keeps_place = args.root.is_none() && !args.pack;
    let cwd = match (&args.cwd, keeps_place) {
        (Some(cwd), true) => absolute(here, cwd),
        (None, true) => here.to_owned(),
        (_, false) => guest_cwd(args, "--root and --pack")?.unwrap_or_else(|| "/".into()),
    };
    if !args.pack {
        check_cwd(args, &tree, &cwd, shares, keeps_place)?;
    }
    let env = environment(args);
    // A packed program is the host's, looked up as the caller would.
    let (search_path, search_base) = match args.pack {
        true => (std::env::var_os("PATH"), here),
        false => (env.get("PATH").map(OsStr::to_owned), cwd.as_path()),
    };
    let search_path = search_path.unwrap_or_else(|| DEFAULT_PATH.into());
    let mut files = FileSet::default();
    files.add_arguments(here, &args.file, &args.dir, |path| place_in(args, &tree, path))?;
    let name = &args.program[0];
    // A packed program's own place is the guest's: what was added counts there, too.
    let of_cwd = absolute(&cwd, Path::new(name));
    let program = match find_program(&tree, &files, name, &search_path, search_base) {
        Found::At(path) => path,
        _ if files.file_mode(&of_cwd).is_some_and(|mode| mode & 0o111 != 0) => of_cwd,
        Found::NotExecutable(path) => return Ok(Err(not_executable(path))),
        Found::Nowhere => {
            if here.join(name).is_file() && !args.pack {
                let name = name.display();
                say!("limen: {name} is in this folder: ./{name} is its path (PATH is searched)");
            }
            return Ok(Err(not_found(name)));
        }
    };
    let packed = if args.pack { pack::packed_archive(&program, &files) } else { files.archive() };
    for (host, _) in shares {
        secrets::ensure_shareable(host, &cwd, &args.hide, &args.show)?;
    }
    let names = names(args, &tree);
    let hidden = match args.pack {
        true => vec![],
        false => {
            secrets::warn_of_nothing(&tree, &cwd, &args.hide, &args.show);
            secrets::hidden_paths(&tree, &cwd, &args.hide, &args.show)
        }
    };
    Ok(Ok(Start {
        program,
        argv: words(&args.program),
        env: env.encode(),
        cwd,
        user: user(args, &names)?,
        umask: callers_umask(),
        hidden,
        files: packed?,
        root: (!args.pack).then(|| SharedRoot {
            path: tree.root().to_owned(),
            is_mapped: false,
            served: served(args),
        }),
        names,
    }))
}

/// Where programs and their files are looked up.
fn tree_of(args: &RunArgs, here: &Path) -> Result<Tree, Error> {
    Ok(match &args.root {
        Some(root) => Tree::new(folder("--root", here, root)?),
        None => Tree::host(),
    })
}

/// Whether this program serves the root: only while it is there.
fn served(args: &RunArgs) -> Option<Cache> {
    let stays = args.detach.is_none() && !args.dry_run;
    (args.share == Share::Virtiofs && stays).then_some(args.cache)
}

/// What is at a path of the guest's already.
fn place_in(args: &RunArgs, tree: &Tree, path: &Path) -> Place {
    match (args.pack, tree.find(path)) {
        (true, _) => pack::place(path),
        (false, Err(_)) => Place::Nothing,
        (false, Ok(found)) if found.is_dir() => Place::Folder,
        (false, Ok(_)) => Place::Other,
    }
}

/// A working directory that is not there, or no folder, is known before anything starts, unless
/// something that is shared or added brings it.
fn check_cwd(
    args: &RunArgs,
    tree: &Tree,
    cwd: &Path,
    shares: &[(PathBuf, PathBuf)],
    is_callers: bool,
) -> Result<(), Error> {
    let brought = |guest: &Path| guest.starts_with(cwd) || cwd.starts_with(guest);
    let is_brought = shares.iter().any(|(_, guest)| brought(guest))
        || !args.dir.is_empty()
        || !args.file.is_empty()
        || cwd.starts_with("/proc")
        || cwd.starts_with("/sys")
        || cwd.starts_with("/dev");
    let why = match tree.find(cwd) {
        Ok(found) if found.is_dir() => return Ok(()),
        Err(_) if is_brought => return Ok(()),
        Ok(_) => "not a folder".to_owned(),
        Err(error) => error.to_string(),
    };
    let whose = if is_callers { "" } else { " of the guest" };
    Err(crate::usage(format!(
        "--cwd {}: {why}: the program starts in a folder{whose}",
        cwd.display()
    )))
}

fn environment(args: &RunArgs) -> Environment {
    let sees = match (args.pack, &args.root) {
        (true, _) => Sees::Nothing,
        (false, Some(_)) => Sees::SameUser,
        (false, None) => Sees::All,
    };
    let mut env = Environment::of_caller(args, sees);
    if args.pack {
        env.set("HOME", "/");
    }
    if sees != Sees::All {
        env.set("PATH", DEFAULT_PATH);
    }
    env.set_given(&args.env);
    env
}

/// Who the guest knows.
fn names(args: &RunArgs, tree: &Tree) -> Names {
    let text = |path: &str| {
        let bytes = tree.find(Path::new(path)).and_then(std::fs::read).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    match args.pack {
        true => Names { passwd: pack::PASSWD.to_owned(), group: pack::GROUP.to_owned() },
        false => Names { passwd: text("/etc/passwd"), group: text("/etc/group") },
    }
}

/// The caller; root where the program has the VM for itself; or who was named.
fn user(args: &RunArgs, names: &Names) -> Result<User, Error> {
    if let Some(name) = &args.user {
        return names.resolve(name);
    }
    if args.pack {
        return Ok(User::default());
    }
    let groups = rustix::process::getgroups()?;
    Ok(User {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        home: None,
    })
}
