//! Rows about names: many in a directory, deep paths, links.

use libc::*;

use crate::cost::Cost;
use crate::sys::{at, close, create, good, open, path};
use crate::{MANY, Row};

const NAMES: [usize; 4] = [10, 100, 1000, 100_000];

pub const ROWS: &[Row] = &[
    Row { name: "create_unlink_among_names", sizes: NAMES, run: create_unlink },
    Row { name: "stat_among_names", sizes: NAMES, run: stat },
    Row { name: "stat_missing_among_names", sizes: NAMES, run: stat_missing },
    Row { name: "rename_among_names", sizes: NAMES, run: rename },
    Row { name: "mkdir_rmdir_among_names", sizes: NAMES, run: mkdir },
    Row { name: "open_list_512_bytes_of_names", sizes: NAMES, run: list_some },
    Row { name: "list_names", sizes: MANY, run: list_all },
    Row { name: "list_names_by_512_bytes", sizes: MANY, run: list_by_512 },
    Row { name: "stat_path_of_depth", sizes: [10, 100, 500, 1000], run: depth },
    Row { name: "stat_symlinks_of_depth", sizes: [1, 10, 20, 40], run: symlinks },
    Row { name: "link_unlink_among_links", sizes: MANY, run: links },
];

/// The names in a buffer of getdents64(2): the length of an entry at 16, its name from 19.
pub fn names(mut buf: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_le_bytes([*buf.get(16)?, *buf.get(17)?]));
        let (entry, rest) = buf.split_at(length);
        buf = rest;
        entry[19..].split(|&byte| byte == 0).next()
    })
}

/// Runs it with a directory of `n` names, `dir/0` and so on.
fn among(n: usize, body: impl FnOnce()) {
    let dir = path("dir");
    good(SYS_mkdir, &[at(&dir), 0o755]);
    let name = |i: usize| path(format_args!("dir/{i}"));
    (0..n).for_each(|i| close(create(&name(i))));
    body();
    (0..n).for_each(|i| _ = good(SYS_unlink, &[at(&name(i))]));
    good(SYS_rmdir, &[at(&dir)]);
}

fn create_unlink(cost: &mut Cost, n: usize) {
    let new = path("dir/new");
    among(n, || {
        cost.repeat(|| {
            close(create(&new));
            good(SYS_unlink, &[at(&new)])
        });
    });
}

fn stat(cost: &mut Cost, n: usize) {
    let name = path(format_args!("dir/{}", n / 2));
    let mut stat = [0u64; 32];
    among(n, || cost.repeat(|| good(SYS_stat, &[at(&name), stat.as_mut_ptr() as usize])));
}

fn stat_missing(cost: &mut Cost, n: usize) {
    let name = path("dir/missing");
    let mut stat = [0u64; 32];
    let stat = stat.as_mut_ptr() as usize;
    among(n, || {
        cost.repeat(|| assert_eq!(crate::sys::call(SYS_stat, &[at(&name), stat]), -2));
    });
}

fn rename(cost: &mut Cost, n: usize) {
    let (old, new) = (path(format_args!("dir/{}", n / 2)), path("dir/new"));
    among(n, || {
        cost.repeat(|| {
            good(SYS_rename, &[at(&old), at(&new)]);
            good(SYS_rename, &[at(&new), at(&old)])
        });
    });
}

fn mkdir(cost: &mut Cost, n: usize) {
    let new = path("dir/new");
    among(n, || {
        cost.repeat(|| {
            good(SYS_mkdir, &[at(&new), 0o755]);
            good(SYS_rmdir, &[at(&new)])
        });
    });
}

fn list_some(cost: &mut Cost, n: usize) {
    let dir = path("dir");
    let mut buf = [0u8; 512];
    among(n, || {
        cost.repeat(|| {
            let fd = open(&dir, O_RDONLY | O_DIRECTORY);
            assert!(good(SYS_getdents64, &[fd, buf.as_mut_ptr() as usize, buf.len()]) > 200);
            close(fd);
        });
    });
}

fn list(cost: &mut Cost, n: usize, buf: &mut [u8]) {
    let dir = path("dir");
    let (address, size) = (buf.as_mut_ptr() as usize, buf.len());
    among(n, || {
        cost.repeat(|| {
            let fd = open(&dir, O_RDONLY | O_DIRECTORY);
            while good(SYS_getdents64, &[fd, address, size]) > 0 {}
            close(fd);
        });
    });
}

fn list_all(cost: &mut Cost, n: usize) {
    list(cost, n, &mut vec![0; 32 << 10]);
}

fn list_by_512(cost: &mut Cost, n: usize) {
    list(cost, n, &mut [0; 512]);
}

fn depth(cost: &mut Cost, n: usize) {
    let mut paths = vec![path("d")];
    for _ in 1..n {
        let deeper = format!("{}/d", paths[paths.len() - 1].to_string_lossy());
        paths.push(std::ffi::CString::new(deeper).expect("no zero"));
    }
    paths.iter().for_each(|path| _ = good(SYS_mkdir, &[at(path), 0o755]));
    let mut stat = [0u64; 32];
    let deepest = at(&paths[n - 1]);
    cost.repeat(|| good(SYS_stat, &[deepest, stat.as_mut_ptr() as usize]));
    paths.iter().rev().for_each(|path| _ = good(SYS_rmdir, &[at(path)]));
}

fn symlinks(cost: &mut Cost, n: usize) {
    close(create(&path("link-0")));
    for i in 1..=n {
        let (to, from) = (path(format_args!("link-{}", i - 1)), path(format_args!("link-{i}")));
        good(SYS_symlink, &[at(&to), at(&from)]);
    }
    let last = path(format_args!("link-{n}"));
    let mut stat = [0u64; 32];
    cost.repeat(|| good(SYS_stat, &[at(&last), stat.as_mut_ptr() as usize]));
    (0..=n).for_each(|i| _ = good(SYS_unlink, &[at(&path(format_args!("link-{i}")))]));
}

fn links(cost: &mut Cost, n: usize) {
    let new = path("dir/new");
    let first = path("dir/first");
    let name = |i: usize| path(format_args!("dir/link-{i}"));
    among(0, || {
        close(create(&first));
        (0..n).for_each(|i| _ = good(SYS_link, &[at(&first), at(&name(i))]));
        cost.repeat(|| {
            good(SYS_link, &[at(&first), at(&new)]);
            good(SYS_unlink, &[at(&new)])
        });
        (0..n).for_each(|i| _ = good(SYS_unlink, &[at(&name(i))]));
        good(SYS_unlink, &[at(&first)]);
    });
}
