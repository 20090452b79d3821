//! The kernel image as a build product: how cargo makes it, and the step after the linker.
//!
//! objtool finishes the image: it verifies every kCFI check and patch site and writes the tables
//! that the kernel boots with. An image without room for tables (`.limen_sites`) is left as it is.
//! Cargo puts its own file back whenever it runs, so finishing follows every build.
//!
//! Neighbours: the launcher and `test/kernel.rs` build and then finish; `check` audits.

use std::path::Path;

use object::{Object as _, ObjectSection as _};

use crate::Error;

/// First argument that makes this program finish an image: for the launcher, not for people.
pub(crate) const FINISH: &str = "__finish";
/// Where objtool's tables go.
const TABLES_SECTION: &str = ".limen_sites";

/// Flags that make the kernel image, for any cargo command; `.cargo/config.toml` has the rest.
pub(crate) const CARGO_FLAGS: [&str; 5] = [
    "--release",
    "--package=limen-image",
    "--target=x86_64-unknown-none",
    "-Zbuild-std=core,alloc",
    "-Zbuild-std-features=compiler-builtins-mem",
];

/// Finishes the image in place. An image that objtool refuses is an error and stays as it was.
pub(crate) fn finish(image: &Path) -> Result<(), Error> {
    let data = std::fs::read(image).map_err(|error| format!("{}: {error}", image.display()))?;
    let file = object::read::elf::ElfFile64::<object::Endianness>::parse(&*data)?;
    let tables = file.section_by_name(TABLES_SECTION);
    if tables.is_some_and(|section| section.size() > 0) {
        let finished = objtool::finish_file(image, &objtool::FinishOptions::default())?;
        if finished.entry_text.is_none() {
            return Err(format!("{}: its entry text has no labels", image.display()).into());
        }
    }
    Ok(())
}
