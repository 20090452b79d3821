//! What could not be done, where, and the way out: the error of what reads and writes files of the
//! user's (images, packing, profiles, the distribution).
//!
//! Why a type: an error of the system has no path in it, so there is no conversion from one; who
//! calls says what was being done and to what. Each kind has its way out, so none can be
//! forgotten.
//!
//! Neighbours: `main.rs` prints it, `words.rs` translates what others say.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::io::Errno;

/// One failure. Its places go from the outside in: `--image x.tar`, `layer 2`, `etc/passwd`.
#[derive(Debug)]
pub(crate) struct Failure {
    places: Vec<String>,
    kind: Kind,
}

/// What failed, in words that follow the place.
#[derive(Debug)]
enum Kind {
    /// A file or folder of the host's, and what names its place: a variable or an option.
    Host { doing: Doing, error: io::Error, named_by: Option<&'static str> },
    /// Something in an image that no image needs.
    Refused(String),
    /// An image that is not what it says it is.
    Damaged(String),
    /// An image over one of the limits.
    TooLarge(String),
    /// An image that is not meant, or one among several.
    Unfit(String),
}

/// What was being done to a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doing {
    Read,
    Write,
    Make,
    Remove,
    /// A program.
    Start,
}

impl Failure {
    /// For `map_err`: what was being done, and to what.
    pub(crate) fn at(doing: Doing, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self {
            places: vec![path.display().to_string()],
            kind: Kind::Host { doing, error, named_by: variable_of(path) },
        }
    }

    /// For `map_err` behind what reads an archive: its own errors are the image's, those of the
    /// system are the host's, whose place the caller adds.
    pub(crate) fn of_archive(error: io::Error) -> Self {
        let kind = match error.kind() {
            _ if error.raw_os_error().is_some() => {
                Kind::Host { doing: Doing::Read, error, named_by: None }
            }
            ErrorKind::FileTooLarge => Kind::TooLarge(error.to_string()),
            ErrorKind::UnexpectedEof => Kind::Damaged("it ends too early".to_owned()),
            _ => Kind::Damaged(error.to_string()),
        };
        Self { places: vec![], kind }
    }

    pub(crate) fn refused(what: impl Into<String>) -> Self {
        Self { places: vec![], kind: Kind::Refused(what.into()) }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self { places: vec![], kind: Kind::Damaged(what.into()) }
    }

    pub(crate) fn too_large(what: impl Into<String>) -> Self {
        Self { places: vec![], kind: Kind::TooLarge(what.into()) }
    }

    pub(crate) fn unfit(what: impl Into<String>) -> Self {
        Self { places: vec![], kind: Kind::Unfit(what.into()) }
    }

    /// The same, in something: an option, a layer, an entry.
    pub(crate) fn within(mut self, place: impl Into<String>) -> Self {
        self.places.insert(0, place.into());
        self
    }

    /// The same, of a file that this option names: no variable moves it.
    pub(crate) fn of_output(mut self, option: &'static str) -> Self {
        if let Kind::Host { named_by, .. } = &mut self.kind {
            *named_by = Some(option);
        }
        self.within(option)
    }

    fn way_out(&self) -> String {
        let way_out = match &self.kind {
            Kind::Host { doing: Doing::Read, error, .. } => way_out_of_read(error),
            Kind::Host { doing: Doing::Start, error, .. } => way_out_of_start(error),
            Kind::Host { error, named_by, .. } => return way_out_of_change(error, *named_by),
            Kind::Refused(_) => "nothing was run; build the image without it",
            Kind::Damaged(_) => "nothing was run; pull or save the image again",
            Kind::TooLarge(_) => "nothing was run; a smaller image, or one with fewer files, works",
            Kind::Unfit(_) => "`docker save` or an OCI image layout for linux/amd64 works",
        };
        way_out.to_owned()
    }
}

/// The variable that moves the folder which `path` is in.
fn variable_of(path: &Path) -> Option<&'static str> {
    let is_below = |name: &str| {
        std::env::var_os(name).is_some_and(|dir| !dir.is_empty() && path.starts_with(dir))
    };
    let named = ["XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"];
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let cache = home.map(|home| Path::new(&home).join(".cache"));
    let unset = [
        (cache.is_some_and(|cache| path.starts_with(cache)), "XDG_CACHE_HOME"),
        (path.starts_with(std::env::temp_dir()), "TMPDIR"),
    ];
    let of_unset = || unset.into_iter().find(|(is_there, _)| *is_there).map(|(_, name)| name);
    named.into_iter().find(|name| is_below(name)).or_else(of_unset)
}

fn way_out_of_read(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "this user may not read it: `ls -l` shows who may",
        ErrorKind::NotFound => "give it, or put it there",
        ErrorKind::IsADirectory => "a file is wanted",
        ErrorKind::NotADirectory => "a folder is wanted",
        _ if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            "too many files are open: `ulimit -n` allows more"
        }
        _ => "it was there a moment ago: try again",
    }
}

fn way_out_of_start(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "install it, or put its folder in PATH",
        ErrorKind::PermissionDenied => "this user may not start it: `ls -l` shows who may",
        _ => "this host starts no more programs: end some, or `ulimit -u` allows more",
    }
}

/// Of what is written, made or removed; `named_by` is who names another place for it.
fn way_out_of_change(error: &io::Error, named_by: Option<&str>) -> String {
    let first = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "this user may not write there"
        }
        _ => "",
    };
    match (first, named_by) {
        ("", None) => "see what is there: `ls -ld` shows it".to_owned(),
        (first, None) => first.to_owned(),
        ("", Some(name)) => format!("{name} names another place"),
        (first, Some(name)) => format!("{first}, or name another place by {name}"),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in &self.places {
            write!(f, "{place}: ")?;
        }
        match &self.kind {
            Kind::Host { doing, error, .. } => {
                let doing = match doing {
                    Doing::Read => "cannot be read",
                    Doing::Write => "cannot be written",
                    Doing::Make => "cannot be made",
                    Doing::Remove => "cannot be removed",
                    Doing::Start => "cannot be started",
                };
                write!(f, "{doing}: {}", crate::words::plain(&error.to_string()))?;
            }
            Kind::Refused(what)
            | Kind::Damaged(what)
            | Kind::TooLarge(what)
            | Kind::Unfit(what) => f.write_str(what)?,
        }
        write!(f, " ({})", self.way_out())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    const ERRORS: [Errno; 9] = [
        Errno::NOENT,
        Errno::ACCESS,
        Errno::ROFS,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::IO,
        Errno::ISDIR,
        Errno::NOTDIR,
        Errno::MFILE,
    ];

    /// One of every kind; a new kind has no row until it stands here.
    fn all() -> Vec<Failure> {
        let mut all: Vec<Failure> =
            [Doing::Read, Doing::Write, Doing::Make, Doing::Remove, Doing::Start]
                .into_iter()
                .flat_map(|doing| ERRORS.map(|errno| (doing, errno)))
                .map(|(doing, errno)| Failure::at(doing, Path::new("/srv/x"))(errno.into()))
                .collect();
        let of_archive = [
            io::Error::from(Errno::IO),
            io::Error::new(ErrorKind::FileTooLarge, "more than there may be"),
            ErrorKind::UnexpectedEof.into(),
            io::Error::other("no archive"),
        ];
        all.extend(of_archive.map(|error| Failure::of_archive(error).within("/srv/x")));
        let of_image = [Failure::refused, Failure::damaged, Failure::too_large, Failure::unfit];
        all.extend(of_image.map(|of: fn(&'static str) -> Failure| of("a reason").within("/srv/x")));
        all
    }

    #[test]
    fn every_kind_says_where_and_what_helps() {
        let mut seen = std::collections::BTreeSet::new();
        for failure in all() {
            let said = failure.within("--image y").to_string();
            assert!(said.starts_with("--image y: /srv/x: "), "{said}");
            assert!(!said.contains("TMPDIR") && !said.contains("XDG_"), "{said}");
            let (what, help) = said.split_once(" (").expect("a way out");
            assert!(what.len() > "--image y: /srv/x: ".len() && help.len() > 10, "{said}");
            let of_programs = ["os error", "Err(", "Some(", "Kind", "Errno", "\n"];
            assert!(of_programs.iter().all(|part| !said.contains(part)), "{said}");
            seen.insert(help.to_owned());
        }
        assert_eq!(seen.len(), 16, "each way out is said of something: {seen:?}");
    }

    #[test]
    fn the_way_out_is_what_names_the_place() {
        let full = |path: &Path| Failure::at(Doing::Write, path)(Errno::NOSPC.into());
        let temporary = std::env::temp_dir().join("x");
        let help =
            |failure: Failure| failure.to_string().rsplit_once(" (").map(|(_, h)| h.to_owned());
        let free = "free some space";
        let other = |name: &str| Some(format!("{free}, or name another place by {name})"));
        assert_eq!(help(full(Path::new("/srv/x"))), Some(format!("{free})")));
        assert_eq!(help(full(&temporary)), other("TMPDIR"));
        let home = std::env::var("HOME").expect("a home");
        let cache = Path::new(&home).join(".cache/limen/x");
        assert_eq!(help(full(&cache)), other("XDG_CACHE_HOME"));
        // A folder of that name which is nobody's cache is not moved by it.
        assert_eq!(help(full(Path::new("/srv/.cache/x"))), Some(format!("{free})")));
        // What an option names no variable moves.
        assert_eq!(help(full(&temporary).of_output("--output")), other("--output"));
        // What an image is unpacked to is not what the option names.
        assert_eq!(help(full(&temporary).within("--image x.tar")), other("TMPDIR"));
    }
}
