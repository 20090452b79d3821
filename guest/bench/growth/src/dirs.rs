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
    Row { name: "list_unlink_all_names", sizes: MANY, run: unlink_all },
    Row { name: "getcwd_of_depth", sizes: [10, 100, 500, 1000], run: getcwd },
    Row { name: "open_close_among_landlock_rules", sizes: MANY, run: landlock },
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

/// Runs it with the path of a directory that lies `n` deep.
fn at_depth(n: usize, body: impl FnOnce(usize)) {
    let mut paths = vec![path("d")];
    for _ in 1..n {
        let deeper = format!("{}/d", paths[paths.len() - 1].to_string_lossy());
        paths.push(std::ffi::CString::new(deeper).expect("no zero"));
    }
    paths.iter().for_each(|path| _ = good(SYS_mkdir, &[at(path), 0o755]));
    body(at(&paths[n - 1]));
    paths.iter().rev().for_each(|path| _ = good(SYS_rmdir, &[at(path)]));
}

fn depth(cost: &mut Cost, n: usize) {
    let mut stat = [0u64; 32];
    at_depth(n, |deepest| {
        cost.repeat(|| good(SYS_stat, &[deepest, stat.as_mut_ptr() as usize]));
    });
}

fn getcwd(cost: &mut Cost, n: usize) {
    let mut buf = [0u8; 4096];
    at_depth(n, |deepest| {
        good(SYS_chdir, &[deepest]);
        cost.repeat(|| good(SYS_getcwd, &[buf.as_mut_ptr() as usize, buf.len()]));
        good(SYS_chdir, &[at(c"/")]);
    });
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

/// As rm(1) does it: lists the names, and removes each.
fn unlink_all(cost: &mut Cost, n: usize) {
    let dir = path("dir");
    good(SYS_mkdir, &[at(&dir), 0o755]);
    let mut buf = vec![0u8; 32 << 10];
    for _ in 0..cost.few() {
        (0..n).for_each(|i| close(create(&path(format_args!("dir/{i}")))));
        cost.time(|| {
            let fd = open(&dir, O_RDONLY | O_DIRECTORY);
            let mut left = n;
            while left > 0 {
                let got = good(SYS_getdents64, &[fd, buf.as_mut_ptr() as usize, buf.len()]);
                assert!(got > 0, "names were left out");
                for name in names(&buf[..got]).filter(|name| name[0] != b'.') {
                    good(SYS_unlinkat, &[fd, name.as_ptr() as usize, 0]);
                    left -= 1;
                }
            }
            close(fd);
        });
    }
    good(SYS_rmdir, &[at(&dir)]);
}

/// Each rule lets one file be read; the last file is opened.
fn landlock(cost: &mut Cost, n: usize) {
    const PATH_BENEATH: usize = 1;
    // LANDLOCK_ACCESS_FS_READ_FILE
    let read = 1u64 << 2;
    let ruleset = good(SYS_landlock_create_ruleset, &[&raw const read as usize, 8, 0]);
    let name = |i: usize| path(format_args!("dir/{i}"));
    among(n, || {
        for i in 0..n {
            let fd = open(&name(i), O_PATH);
            // struct landlock_path_beneath_attr: rights, and a descriptor right behind them.
            let rule = [read, fd as u64];
            let rule = rule.as_ptr() as usize;
            good(SYS_landlock_add_rule, &[ruleset, PATH_BENEATH, rule, 0]);
            close(fd);
        }
        good(SYS_prctl, &[PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0]);
        good(SYS_landlock_restrict_self, &[ruleset, 0]);
        let last = name(n - 1);
        cost.repeat(|| close(open(&last, O_RDONLY)));
    });
}
