#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod allow;
pub mod audit;
pub mod call_depth;
pub mod elf;
pub mod entry_text;
pub mod file_text;
pub mod finish;
pub mod frames;
pub mod landing;
pub mod noreturn;
pub mod ordering;
pub mod relocs;
pub mod report;
pub mod returns;
pub mod rewrite;
pub mod scan;
pub mod scratch;
pub mod sequence;
pub mod static_calls;
pub mod untrained;

use std::path::{Path, PathBuf};

pub use allow::Allow;
pub use audit::{Options, audit};
pub use finish::{FinishOptions, Finished, finish};
pub use report::{Finding, FindingKind, Report};
pub use rewrite::{Rewritten, rewrite};
pub use sequence::{Sequence, sequence};
pub use text_patching::kcfi::Form;

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
    /// Something about the image forbids writing. Nothing was written.
    Refused(String),
    /// The linker script has reserved no `.limen_sites`.
    NoSection,
    /// The site tables could not be written.
    Table(text_patching::site_table::TableError),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Elf(what) => write!(f, "not a usable ELF image: {what}"),
            Self::TooLarge(what) => write!(f, "{what} is larger than objtool accepts"),
            Self::Refused(what) => write!(f, "nothing written: {what}"),
            Self::NoSection => write!(f, "the image reserves no .limen_sites section"),
            Self::Table(error) => write!(f, "nothing written: {error}"),
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
    audit(&read(path)?, &Options { frames: true, ..Options::default() })
}

/// Looks at the places of the image in a file whose order no emulator violates ([`ordering`]).
///
/// # Errors
/// When the file cannot be read or is no x86-64 image.
pub fn ordering_file(path: &Path) -> Result<ordering::Ordering> {
    Ok(ordering::prove(&elf::Image::parse(&read(path)?)?))
}

/// Rewrites the checks of the image in `input` and writes the result to `output`.
///
/// # Errors
/// As [`rewrite()`]; then `output` is as it was.
pub fn rewrite_file(input: &Path, output: &Path, form: Form) -> Result<Rewritten> {
    let rewritten = rewrite(&read(input)?, form, &Options::default())?;
    replace(output, &rewritten.data)?;
    Ok(rewritten)
}

/// Finishes the image in `path` in place ([`finish()`]).
///
/// # Errors
/// As [`finish()`]; then the file is as it was.
pub fn finish_file(path: &Path, options: &FinishOptions) -> Result<Finished> {
    let finished = finish(&read(path)?, options)?;
    replace(path, &finished.data)?;
    Ok(finished)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::Io(path.into(), error))
}

/// Writes beside `path` and renames: a reader sees the old file or the whole new one.
fn replace(path: &Path, data: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".objtool-tmp");
    let temporary = path.with_file_name(name);
    let io = |error| Error::Io(path.into(), error);
    std::fs::write(&temporary, data).map_err(io)?;
    if let Ok(old) = std::fs::metadata(path) {
        std::fs::set_permissions(&temporary, old.permissions()).map_err(io)?;
    }
    std::fs::rename(&temporary, path).map_err(io)
}
