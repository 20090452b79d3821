//! The form of a Debian package (deb(5)): an `ar` archive of a version, the control files and the
//! tree, the latter two as compressed tar archives.
//!
//! Why without dpkg-deb: the command gives the same bytes on any machine.

use super::{Item, gzip, tar};
use crate::Error;

/// `debian/copyright` in its machine-readable form.
pub(super) const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: limen

Files: *
Copyright: the authors of Limen
License: Apache-2.0 or Expat
 The texts are beside this file: LICENSE-APACHE and LICENSE-MIT.
";

/// What the program needs of the system's C library, in its symbols.
const LIBC_SYMBOL: &[u8] = b"GLIBC_2.";

/// The package.
pub(super) fn package(items: &[Item], version: &str, time_s: u64) -> Result<Vec<u8>, Error> {
    let size_kib: usize = items.iter().map(|item| item.bytes.len().div_ceil(1024)).sum();
    let libc = items.iter().find(|item| item.path == "bin/limen");
    let libc = libc.map_or(0, |item| newest_libc(&item.bytes));
    let control = Item {
        path: "control".to_owned(),
        mode: 0o644,
        bytes: control(version, size_kib, libc).into_bytes(),
    };
    let mut package = b"!<arch>\n".to_vec();
    put(&mut package, "debian-binary", time_s, b"2.0\n");
    let control = gzip(&tar(&[control], "./", time_s)?)?;
    put(&mut package, "control.tar.gz", time_s, &control);
    put(&mut package, "data.tar.gz", time_s, &gzip(&tar(items, "./usr/", time_s)?)?);
    Ok(package)
}

fn control(version: &str, size_kib: usize, libc_minor: u32) -> String {
    format!(
        "\
Package: limen
Version: {version}
Architecture: amd64
Maintainer: the authors of Limen <limen@localhost>
Installed-Size: {size_kib}
Depends: libc6 (>= 2.{libc_minor}), libgcc-s1, qemu-system-x86 (>= 1:7.2)
Section: admin
Priority: optional
Description: run Linux programs in hardened microVMs
 Limen boots a microVM in a tenth of a second on the caller's own file system,
 copy-on-write, or on a container image, and runs one program in it. Every
 crossing of a boundary of its kernel is hardened, and what that costs is
 measured: limen compare tells it of any program.
"
    )
}

/// The newest version of glibc whose symbols a program uses: N of 2.N.
fn newest_libc(program: &[u8]) -> u32 {
    let minor = |rest: &[u8]| -> Option<u32> {
        let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
    };
    let found = program.windows(LIBC_SYMBOL.len()).enumerate();
    let found = found.filter(|(_, window)| *window == LIBC_SYMBOL);
    found.filter_map(|(at, _)| minor(&program[at + LIBC_SYMBOL.len()..])).max().unwrap_or(0)
}

/// A member of an `ar` archive: a header of 60 bytes, the data, a newline to an even place.
fn put(archive: &mut Vec<u8>, name: &str, time_s: u64, data: &[u8]) {
    let len = data.len();
    let header = format!("{name:<16}{time_s:<12}{:<6}{:<6}{:<8}{len:<10}`\n", 0, 0, 100_644);
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(data);
    if len % 2 == 1 {
        archive.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::newest_libc;

    #[test]
    fn the_newest_symbol_counts() {
        assert_eq!(newest_libc(b"..GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0"), 34);
        assert_eq!(newest_libc(b"static"), 0);
    }
}
