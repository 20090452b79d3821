#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod allow;
pub mod audit;
pub mod elf;
pub mod report;
pub mod scan;

use std::path::{Path, PathBuf};

pub use allow::Allow;
pub use audit::{Options, audit};
pub use report::{Finding, FindingKind, Report};

/// Why objtool could not do its work. A bad image is not an error but a [`Report`] with findings.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read or written.
    Io(PathBuf, std::io::Error),
    /// No x86-64 image, or a malformed one.
    Elf(String),
    /// A limit of [`elf`] is exceeded.
    TooLarge(&'static str),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Elf(what) => write!(f, "not a usable ELF image: {what}"),
            Self::TooLarge(what) => write!(f, "{what} is larger than objtool accepts"),
        }
    }
}

impl std::error::Error for Error {}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Audits the image in a file with Limen's own allow list.
///
/// # Errors
/// When the file cannot be read or is no x86-64 image.
pub fn audit_file(path: &Path) -> Result<Report> {
    let data = std::fs::read(path).map_err(|error| Error::Io(path.into(), error))?;
    audit(&data, &Options::default())
}
