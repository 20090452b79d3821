//! Which crate may depend on which: mechanisms decide, machine acts, kernel serves, objtool
//! proves, the command line drives. An edge against that order is a finding.

use std::path::Path;

use super::{Finding, Source};

/// A crate's folder (or the folder above several), and the folders it may depend on.
const ALLOWED: [(&str, &[&str]); 11] = [
    ("abi", &[]),
    ("formats", &[]),
    ("mechanisms", &["abi", "mechanisms"]),
    // `machine/virtqueue` is the part of the machine that the host can test.
    ("machine", &["abi", "formats", "machine", "mechanisms"]),
    ("kernel", &["abi", "formats", "machine", "mechanisms"]),
    ("objtool", &["abi", "mechanisms"]),
    // Of the machine only `machine/standard_streams`, which is for the host.
    ("cli", &["abi", "formats", "machine/standard_streams", "mechanisms", "objtool"]),
    // These two are the other end of a format: a VMM that boots Limen speaks the control port's
    // lines as the command line does, and the judge's first process reads what that one wrote.
    ("guest/linux_init", &["abi", "formats", "mechanisms"]),
    ("guest/vmm", &["abi", "formats", "mechanisms"]),
    // The others judge the kernel, and must not take its tables for the truth. A bench of its own
    // byte sequences takes them from their room.
    ("guest", &["abi", "mechanisms"]),
    ("fuzz", &["abi", "formats", "guest", "machine", "mechanisms", "objtool"]),
];
/// The binding of machine and kernel into one image has edges of its own.
const IMAGE: (&str, &[&str]) =
    ("machine/image", &["abi", "formats", "kernel", "machine", "mechanisms"]);

pub(super) fn check(manifests: &[&Source], findings: &mut Vec<Finding>) {
    for manifest in manifests {
        let dir = manifest.path.parent().unwrap_or(Path::new(""));
        if dir == Path::new("") {
            continue;
        }
        let rule = ALLOWED.iter().find(|(place, _)| dir.starts_with(place));
        let rule = if dir.starts_with(IMAGE.0) { Some(&IMAGE) } else { rule };
        let Some((_, allowed)) = rule else {
            let text = "a crate in a folder that `edges.rs` does not know";
            findings.push(Finding::new(&manifest.path, 0, text));
            continue;
        };
        for (line, name) in workspace_dependencies(&manifest.text) {
            let place = place_of(name, manifests);
            let is_allowed = |place: &String| {
                let top = place.split('/').next().unwrap_or_default();
                allowed.iter().any(|allowed| *allowed == top || allowed == place)
            };
            if let Some(place) = place.filter(|place| !is_allowed(place)) {
                let text = format!("depends on {name}, which is in {place}/");
                findings.push(Finding::new(&manifest.path, line, text));
            }
        }
    }
}

/// Names in `[dependencies]` that come from the workspace, and their lines.
fn workspace_dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut section = "";
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            section = line.trim();
        } else if section == "[dependencies]"
            && line.contains("workspace")
            && let Some((name, _)) = line.split_once(['.', ' ', '='])
        {
            found.push((index + 1, name.trim()));
        }
    }
    found
}

/// The folder in the workspace of the crate with library name `name`; `None` for crates
/// from elsewhere.
fn place_of(name: &str, manifests: &[&Source]) -> Option<String> {
    let dirs = manifests.iter().filter_map(|manifest| manifest.path.parent());
    // `kernel/`, not `guest/bench/kernel/`: the crate that others depend on is the outer one.
    let dir = dirs
        .filter(|dir| dir.file_name().is_some_and(|last| last == name))
        .min_by_key(|dir| dir.components().count())?;
    Some(dir.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(manifests: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source {
            path: Path::new(path).join("Cargo.toml"),
            text: (*text).to_owned(),
        };
        let sources: Vec<Source> = manifests.iter().map(source).collect();
        let mut findings = Vec::new();
        check(&sources.iter().collect::<Vec<_>>(), &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn edges_point_one_way() {
        let machine = ("machine", "[dependencies]\nentry.workspace = true\n");
        let entry = ("mechanisms/entry", "[dependencies]\nbitflags = \"2\"\n");
        assert_eq!(findings(&[machine, entry]), [""; 0]);
        let entry = ("mechanisms/entry", "[dependencies]\nmachine = { workspace = true }\n");
        let expected = "mechanisms/entry/Cargo.toml:2: depends on machine, which is in machine/";
        assert_eq!(findings(&[machine, entry]), [expected]);
    }

    #[test]
    fn only_ends_of_a_format_share_it_with_the_kernel() {
        let user = "[dependencies]\nformats.workspace = true\n";
        let formats = ("formats", "");
        assert_eq!(findings(&[formats, ("guest/vmm", user)]), [""; 0]);
        assert_eq!(findings(&[formats, ("guest/tests", user)]).len(), 1);
    }

    #[test]
    fn tests_may_use_more_and_the_image_binds() {
        let entry = ("mechanisms/entry", "[dev-dependencies]\nmachine.workspace = true\n");
        let image = ("machine/image", "[dependencies]\nkernel.workspace = true\n");
        let machine = ("machine", "");
        assert_eq!(findings(&[machine, entry, image, ("kernel", "")]), [""; 0]);
        assert_eq!(findings(&[("utils", "")]).len(), 1);
    }
}
