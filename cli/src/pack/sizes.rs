//! What `limen pack` tells of an image: how large it is, and what of it is large.

use std::path::Path;

use formats::cpio::{Reader, mode};

/// How many of the largest files are named.
const SHOWN: usize = 5;

/// Says it on stderr.
pub(super) fn tell(output: &Path, image: &[u8]) {
    let mut files: Vec<(usize, String)> = Reader::new(image)
        .flatten()
        .filter(|entry| entry.mode & mode::TYPE == mode::REGULAR)
        .map(|entry| (entry.data.len(), entry.path.escape_ascii().to_string()))
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    let (count, name) = (files.len(), output.display());
    say!("limen: {name}: {}, {count} files; largest:", human(image.len()));
    for (len, path) in files.iter().take(SHOWN) {
        say!("limen: {:>10}  /{path}", human(*len));
    }
    say!("limen: limen run {name} boots it");
}

/// Of a program of the host: what looking at it cannot find.
pub(super) fn tell_limits() {
    say!(
        "limen: what the program opens while it runs is not in it: `limen run --pack \
         --missing-files` lists that, --file and --dir add it"
    );
}

/// A size with three digits.
pub(crate) fn human(bytes: usize) -> String {
    let mut value = bytes as f64;
    for unit in ["bytes", "KiB", "MiB"] {
        if value < 1024.0 {
            let decimals = usize::from(unit != "bytes" && value < 100.0);
            return format!("{value:.decimals$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} GiB")
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_short() {
        assert_eq!(human(17), "17 bytes");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(300 << 20), "300 MiB");
        assert_eq!(human(5 << 30), "5.0 GiB");
    }
}
