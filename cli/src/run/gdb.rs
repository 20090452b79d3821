//! The file that `--gdb` suggests: the kernel with names that gdb takes as they are written.
//!
//! Why it is needed: the image's symbols are mangled in Rust's v0 form, whose crate hashes gdb
//! shows (`kernel[45c4…]::main`), and its debug information has lines only; so `break kernel::main`
//! finds nothing. Here the symbols are renamed to their plain paths, by objcopy(1) of binutils,
//! once for each kernel. Neighbour: `backtrace.rs` finds the same symbols.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::{Object as _, ObjectSymbol as _};
use sha2::{Digest as _, Sha256};

use super::backtrace;
use crate::cache::{self, Folder};
use crate::failure::{Doing, Failure};
use crate::pack::files::hex;
use crate::{Error, paths};

/// The file for this kernel; made where it is not in the cache yet.
pub(crate) fn file(kernel: &Path) -> Result<PathBuf, Error> {
    let source = backtrace::with_symbols(kernel);
    let image = paths::read(&source)?;
    let hash = hex(&Sha256::digest(&image));
    let kept = Folder::of(cache::GDB)?;
    if let Some(file) = kept.find(&hash[..16]) {
        return Ok(file);
    }
    kept.make()?;
    let temporary = || {
        let file = tempfile::Builder::new().prefix(".").tempfile_in(kept.path());
        file.map_err(Failure::at(Doing::Make, kept.path()))
    };
    let (map, made) = (temporary()?, temporary()?);
    paths::write(map.path(), renames(&image)?)?;
    let mut command = Command::new("objcopy");
    command.arg(format!("--redefine-syms={}", map.path().display())).arg(&source).arg(made.path());
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("objcopy: {error} (Debian package binutils)"))?;
    if !output.status.success() {
        return Err(format!("objcopy: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let file = kept.path().join(&hash[..16]);
    made.persist(&file).map_err(|error| Failure::at(Doing::Write, &file)(error.error))?;
    kept.prune();
    Ok(file)
}

/// What objcopy takes in a name, and people write: no closures, no types' arguments.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// `OLD NEW` a line, for each function whose plain path is its own alone.
fn renames(image: &[u8]) -> Result<String, Error> {
    let parsed = object::File::parse(image).map_err(|_| "the kernel is not an ELF image")?;
    let mut plain: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for symbol in parsed.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text) {
        let Ok(name) = symbol.name() else { continue };
        let path = format!("{:#}", rustc_demangle::demangle(name));
        if path != name && path.chars().all(is_plain) {
            plain.entry(path).or_default().push(name);
        }
    }
    let alone = plain.iter().filter_map(|(path, names)| Some((path, names.first()?, names.len())));
    let lines = alone.filter(|(.., count)| *count == 1);
    Ok(lines.map(|(path, name, _)| format!("{name} {path}\n")).collect())
}
