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

/// One failure. Its places go from the outside in: `--image x.tar`, `layer 2`, `etc/passwd`.
#[derive(Debug)]
pub(crate) struct Failure {
    places: Vec<String>,
    kind: Kind,
}

/// What failed, in words that follow the place.
#[derive(Debug)]
enum Kind {
    /// A file or folder of the host's.
    Host { doing: Doing, error: io::Error },
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
}

impl Failure {
    /// For `map_err`: what was being done, and to what.
    pub(crate) fn at(doing: Doing, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self {
            places: vec![path.display().to_string()],
            kind: Kind::Host { doing, error },
        }
    }

    /// For `map_err` behind what reads an archive: its own errors are the image's, those of the
    /// system are the host's, whose place the caller adds.
    pub(crate) fn of_archive(error: io::Error) -> Self {
        let kind = match error.kind() {
            _ if error.raw_os_error().is_some() => Kind::Host { doing: Doing::Read, error },
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

    fn way_out(&self) -> &'static str {
        match &self.kind {
            Kind::Host { doing, error } => way_out_of_host(*doing, error.kind()),
            Kind::Refused(_) => "nothing was run; build the image without it",
            Kind::Damaged(_) => "nothing was run; pull or save the image again",
            Kind::TooLarge(_) => "nothing was run; a smaller image, or one with fewer files, works",
            Kind::Unfit(_) => "`docker save` or an OCI image layout for linux/amd64 works",
        }
    }
}

fn way_out_of_host(doing: Doing, error: ErrorKind) -> &'static str {
    match (error, doing) {
        (ErrorKind::StorageFull | ErrorKind::QuotaExceeded, _) => {
            "free some space; XDG_CACHE_HOME and TMPDIR name other folders"
        }
        (ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem, Doing::Read) => {
            "this user may not read it: `ls -l` shows who may"
        }
        (ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem, _) => {
            "this user may not write there; XDG_CACHE_HOME and TMPDIR name other folders"
        }
        (ErrorKind::NotFound, Doing::Read) => "give it, or put it there",
        (_, Doing::Read) => "it was there a moment ago: try again",
        (_, Doing::Write | Doing::Make | Doing::Remove) => {
            "XDG_CACHE_HOME and TMPDIR name other folders"
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in &self.places {
            write!(f, "{place}: ")?;
        }
        match &self.kind {
            Kind::Host { doing, error } => {
                let doing = match doing {
                    Doing::Read => "cannot be read",
                    Doing::Write => "cannot be written",
                    Doing::Make => "cannot be made",
                    Doing::Remove => "cannot be removed",
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
    use rustix::io::Errno;

    const ERRORS: [Errno; 8] = [
        Errno::NOENT,
        Errno::ACCESS,
        Errno::ROFS,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::IO,
        Errno::ISDIR,
        Errno::MFILE,
    ];

    /// One of every kind; a new kind has no row until it stands here.
    fn all() -> Vec<Failure> {
        let mut all: Vec<Failure> = [Doing::Read, Doing::Write, Doing::Make, Doing::Remove]
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
            let (what, help) = said.split_once(" (").expect("a way out");
            assert!(what.len() > "--image y: /srv/x: ".len() && help.len() > 10, "{said}");
            let of_programs = ["os error", "Err(", "Some(", "Kind", "Errno", "\n"];
            assert!(of_programs.iter().all(|part| !said.contains(part)), "{said}");
            seen.insert(help.to_owned());
        }
        assert_eq!(seen.len(), 10, "each way out is said of something: {seen:?}");
    }
}
