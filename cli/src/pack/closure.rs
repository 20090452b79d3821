//! The closure of a program: its file and all that is needed to start it.
//!
//! Why it is hard: the search for a library depends on who asks. DT_RPATH counts for a file and
//! for all that it loads, unless the file has DT_RUNPATH, which counts for the file alone;
//! `$ORIGIN` is the folder of the file that says it; then LD_LIBRARY_PATH, the cache, the built-in
//! folders (ld.so(8)). Scripts need their `#!` interpreter (execve(2)), which may be a script
//! again, and
//! `/usr/bin/env NAME` looks NAME up in PATH.
//!
//! What a program opens by itself later (plug-ins, modules, data) is not seen here; `--file`,
//! `--dir` and `--missing-files` are for that. One exception: glibc opens libgcc_s when a thread
//! is cancelled, so it comes with libc where it exists.
//!
//! Neighbours: `elf.rs` reads files, `ldso.rs` knows the system's folders, `files.rs` collects.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use formats::script::{self, Script};

use super::elf::{self, Needs};
use super::files::{FileSet, first_bytes};
use super::ldso::{self, SystemLibraries};
use crate::run::lookup::{Found, find_program};
use crate::tree::{Tree, absolute};

/// Files of one closure.
const FILES_MAX: usize = 4096;
/// What glibc opens by itself.
const OPENED_BY_LIBC: (&str, &str) = ("libc.so.6", "libgcc_s.so.1");

/// What was found, and what was not.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    pub(crate) files: FileSet,
    /// Libraries: name and path, in the order they were found.
    pub(crate) libraries: Vec<(String, PathBuf)>,
    /// What was needed and not found, with who needed it.
    pub(crate) missing: Vec<String>,
}

/// A search in progress.
struct Search<'a> {
    tree: &'a Tree,
    system: SystemLibraries,
    path: &'a OsStr,
    library_path: Vec<PathBuf>,
    closure: Closure,
    seen: BTreeSet<PathBuf>,
    todo: VecDeque<Task>,
}

/// A file to look at.
struct Task {
    path: PathBuf,
    /// RPATH folders of those that load it.
    inherited_rpath: Vec<PathBuf>,
    musl: bool,
}

/// Finds the closure of the file at `program` (absolute in the tree). `path` and `library_path`
/// are the values of PATH and LD_LIBRARY_PATH.
pub(crate) fn closure_of(
    tree: &Tree,
    program: &Path,
    path: &OsStr,
    library_path: &OsStr,
) -> std::io::Result<Closure> {
    closure_of_all(tree, &[program], path, library_path)
}

/// The closure of several files together.
pub(crate) fn closure_of_all(
    tree: &Tree,
    programs: &[&Path],
    path: &OsStr,
    library_path: &OsStr,
) -> std::io::Result<Closure> {
    let mut search = Search {
        tree,
        system: SystemLibraries::of(tree),
        path,
        library_path: std::env::split_paths(library_path).filter(|p| p.is_absolute()).collect(),
        closure: Closure::default(),
        seen: BTreeSet::new(),
        todo: VecDeque::new(),
    };
    for program in programs {
        tree.resolve(program)?;
        search.want((*program).to_owned(), vec![], false);
    }
    while let Some(task) = search.todo.pop_front() {
        search.look_at(task);
    }
    Ok(search.closure)
}

impl Search<'_> {
    fn want(&mut self, path: PathBuf, inherited_rpath: Vec<PathBuf>, musl: bool) {
        if self.seen.len() < FILES_MAX && self.seen.insert(path.clone()) {
            self.todo.push_back(Task { path, inherited_rpath, musl });
        }
    }

    fn look_at(&mut self, task: Task) {
        let real = match self.closure.files.add_from(self.tree, &task.path) {
            Ok(real) => real,
            Err(error) => {
                return self.closure.missing.push(error.to_string());
            }
        };
        let host = self.tree.on_host(&real);
        let Ok(first) = first_bytes(&host, script::START_MAX as u64) else {
            return;
        };
        if first.starts_with(b"#!") {
            self.want_interpreter(&first, &task.path);
        } else if let Some(needs) = elf::needs(&host) {
            self.want_needs(&needs, &real, task);
        }
    }

    /// `#!INTERPRETER [ARGUMENT]`.
    fn want_interpreter(&mut self, first: &[u8], script: &Path) {
        let Some(Script { interpreter, argument }) = Script::parse(first) else {
            let text = format!("interpreter of {}: not found", script.display());
            return self.closure.missing.push(text);
        };
        let interpreter = OsStr::from_bytes(interpreter);
        self.want(absolute(Path::new("/"), Path::new(interpreter)), vec![], false);
        let is_env = Path::new(interpreter).file_name() == Some(OsStr::new("env"));
        let name = argument.filter(|_| is_env).and_then(env_program);
        let Some(name) = name else { return };
        match find_program(self.tree, &FileSet::default(), name, self.path, Path::new("/")) {
            Found::At(program) => self.want(program, vec![], false),
            _ => self.miss(&name.to_string_lossy(), script),
        }
    }

    fn want_needs(&mut self, needs: &Needs, real: &Path, task: Task) {
        let origin = real.parent().unwrap_or(Path::new("/"));
        let expand = |folder: &String| expand_origin(folder, origin);
        let musl =
            task.musl || needs.interpreter.as_ref().is_some_and(|path| path.contains("/ld-musl-"));
        if let Some(interpreter) = &needs.interpreter {
            self.want(interpreter.into(), vec![], musl);
        }
        let runpath: Vec<PathBuf> = needs.runpath.iter().map(expand).collect();
        let rpath = match runpath.is_empty() || musl {
            true => needs.rpath.iter().map(expand).chain(task.inherited_rpath).collect(),
            false => Vec::new(),
        };
        for name in &needs.libraries {
            let own: [&[PathBuf]; 3] = [&rpath, &self.library_path, &runpath];
            let own = own.concat();
            if let Some(path) = self.find_library(name, own, origin, musl) {
                if self.seen.len() < FILES_MAX && !self.seen.contains(&path) {
                    self.closure.libraries.push((name.clone(), path.clone()));
                }
                self.want(path, rpath.clone(), musl);
            } else if !(musl && name.starts_with("libc.")) {
                self.miss(name, &task.path);
            }
            if name == OPENED_BY_LIBC.0
                && let Some(path) = self.find_library(OPENED_BY_LIBC.1, vec![], origin, musl)
            {
                self.want(path, vec![], musl);
            }
        }
    }

    /// The first file for this machine among the candidates.
    fn find_library(
        &mut self,
        name: &str,
        own: Vec<PathBuf>,
        origin: &Path,
        musl: bool,
    ) -> Option<PathBuf> {
        let fits = |path: &PathBuf| {
            let first = self.tree.find(path).and_then(|host| first_bytes(&host, 64));
            first.is_ok_and(|first| elf::is_ours(&first))
        };
        if name.contains('/') {
            return Some(expand_origin(name, origin)).filter(fits);
        }
        if let Some(path) = own.iter().map(|folder| folder.join(name)).find(fits) {
            return Some(path);
        }
        let system = self.system.candidates(name, musl);
        let (path, cached) = system.into_iter().find(|(path, _)| fits(path))?;
        let cache = self.system.cache_file().filter(|_| cached && !ldso::is_built_in(&path));
        if let Some(cache) = cache {
            // The guest's loader finds it through the cache as well.
            self.want(cache.to_owned(), vec![], false);
        }
        Some(path)
    }

    fn miss(&mut self, what: &str, needed_by: &Path) {
        let needed_by = needed_by.display();
        self.closure.missing.push(format!("{what}: not found (needed by {needed_by})"));
    }
}

/// `$ORIGIN` and `${ORIGIN}`; `$LIB` and `$PLATFORM` as Debian's loader has them.
fn expand_origin(text: &str, origin: &Path) -> PathBuf {
    let mut text = text.to_owned();
    let origin = origin.to_string_lossy();
    for (name, value) in
        [("ORIGIN", origin.as_ref()), ("LIB", "lib/x86_64-linux-gnu"), ("PLATFORM", "x86_64")]
    {
        text = text.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
    }
    absolute(Path::new("/"), Path::new(&text))
}

/// The program that env(1) will start: the first word that is no option and no assignment.
fn env_program(argument: &[u8]) -> Option<&OsStr> {
    let words = argument.split(|byte| b" \t".contains(byte));
    let program = words
        .filter(|word| !word.is_empty() && !word.starts_with(b"-"))
        .find(|word| !word.contains(&b'='));
    program.map(OsStr::from_bytes)
}

/// What has to start this program: an ELF file's PT_INTERP, a script's `#!`. `None` if nothing.
pub(crate) fn interpreter(host: &Path) -> Option<String> {
    let first = first_bytes(host, script::START_MAX as u64).ok()?;
    if elf::is_ours(&first) {
        return elf::needs(host)?.interpreter;
    }
    let script = Script::parse(&first)?;
    Some(String::from_utf8_lossy(script.interpreter).into_owned())
}

/// PATH and LD_LIBRARY_PATH of the caller.
pub(crate) fn callers_paths() -> (OsString, OsString) {
    let path = std::env::var_os("PATH").unwrap_or_else(|| crate::run::lookup::DEFAULT_PATH.into());
    (path, std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default())
}

#[cfg(test)]
#[path = "closure_tests.rs"]
mod tests;
