//! The kernel image as a build product: how cargo makes it, and the step after the linker.
//!
//! objtool finishes the image: it verifies every kCFI check and patch site and writes the tables
//! that the kernel boots with. An image without room for tables (`.limen_sites`) is left as it is.
//! Cargo puts its own file back whenever it runs, so finishing follows every build.
//!
//! The launcher builds the kernel that ships; [`Form`] is another, for a test or a bench.
//! Neighbours: `test/sabotage` builds broken sources; `check` audits.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSection as _};

use crate::progress::Progress;
use crate::{Error, toolchain};

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

/// For kernels that are built often, run once, and not measured.
pub(crate) fn build_quickly(cargo: &mut Command) {
    build_in_parts(cargo).args(["--features", "large-tables"]);
}

/// Makes cargo leave out the optimisation over all crates, which the kernel's profile asks for,
/// and build again only what has changed.
pub(crate) fn build_in_parts(cargo: &mut Command) -> &mut Command {
    for (setting, value) in [("LTO", "false"), ("CODEGEN_UNITS", "16"), ("INCREMENTAL", "true")] {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    cargo
}

/// A kernel that is not the one that ships.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) name: &'static str,
    /// Features of the crate `limen-image`, separated by commas.
    pub(crate) features: &'static str,
    /// Its code is what ships but for the features; otherwise it is quicker to build, and slower.
    pub(crate) is_as_shipped: bool,
}

/// The kernel that counts its locks (`limen bench scale`), and whose policies `allow1` to `allow4`
/// refuse what they are told to, where `lsm=` has them (run::refusals): one build for both.
pub(crate) const WITH_PROBES: Form =
    Form { name: "probes", features: "lockstat,hooks-probe", is_as_shipped: false };

impl Form {
    /// Builds it in `target`'s folder `forms`, where all forms share what their features leave as
    /// it is; the finished image.
    pub(crate) fn build(&self, repository: &Path, target: &Path) -> Result<PathBuf, Error> {
        let _slow = Progress::of("building the kernel");
        let forms = target.join("forms");
        fs::create_dir_all(&forms)?;
        // Cargo gives every form's image the same name: until it is copied, no other may be built.
        let lock = File::create(forms.join(".limen-lock"))?;
        lock.lock()?;
        let mut cargo = toolchain::cargo(repository)?;
        cargo.arg("build").args(CARGO_FLAGS).args(["--quiet", "--features", self.features]);
        if !self.is_as_shipped {
            build_quickly(&mut cargo);
        }
        if !cargo.arg("--target-dir").arg(&forms).status()?.success() {
            return Err(format!("the kernel with {} does not build", self.features).into());
        }
        let [built, new] = ["limen-kernel".to_owned(), format!("limen-kernel-{}.new", self.name)]
            .map(|name| forms.join("x86_64-unknown-none/release").join(name));
        fs::copy(built, &new)?;
        finish(&new)?;
        // A machine that boots the one before keeps it.
        let image = forms.join(format!("limen-kernel-{}", self.name));
        fs::rename(new, &image)?;
        Ok(image)
    }
}

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
