//! Mounts and what they allow (mount_setattr(2)).

use crate::sys::*;
use crate::{sc, tests};

tests! { "mounts": attributes, attributes_below, attributes_refused }

const AT_RECURSIVE: i32 = 0x8000;
const RDONLY: u64 = 1;
const NOEXEC: u64 = 8;
const ATIME: u64 = 0x70;
const NOATIME: u64 = 0x10;
const NOSYMFOLLOW: u64 = 0x20_0000;

/// `struct mount_attr`: what is set, cleared, how it propagates, a user namespace.
fn change(path: &str, flags: i32, attributes: [u64; 4]) -> Result<usize, i32> {
    let path = c(path);
    sc!(SYS_mount_setattr, AT_FDCWD, path.as_ptr(), flags, attributes.as_ptr(), 32)
}

/// A file system of its own at this place, in a namespace of its own where there are such.
fn mounted(path: &str) {
    own_mounts();
    fresh(path);
}

fn fresh(path: &str) {
    sc!(SYS_mount, c"t".as_ptr(), c(path).as_ptr(), c"tmpfs".as_ptr(), 0, 0).is(0);
}

fn unmounted(path: &str) {
    sc!(SYS_umount2, c(path).as_ptr(), MNT_DETACH).is(0);
}

/// The options of the mount at a place, as /proc/mounts has them.
fn options(path: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = text.lines().rev().find(|line| line.split(' ').nth(1) == Some(path)).unwrap();
    line.split(' ').nth(3).unwrap().to_owned()
}

fn has(path: &str, option: &str) -> bool {
    options(path).split(',').any(|own| own == option)
}

fn attributes() {
    let d = dir();
    mounted(&d);
    let (file, link) = (format!("{d}/f"), format!("{d}/l"));
    std::fs::write(&file, "x").unwrap();
    std::os::unix::fs::symlink("f", &link).unwrap();
    assert!(has(&d, "rw") && has(&d, "relatime"), "{}", options(&d));
    change(&d, 0, [RDONLY, 0, 0, 0]).is(0);
    assert!(has(&d, "ro") && has(&d, "relatime"), "{}", options(&d));
    open(&file, O_RDWR).fails(EROFS);
    change(&d, 0, [NOEXEC, RDONLY, 0, 0]).is(0);
    assert!(has(&d, "rw") && has(&d, "noexec"), "{}", options(&d));
    let writer = open(&file, O_RDWR).fd();
    change(&d, 0, [RDONLY | NOSYMFOLLOW, 0, 0, 0]).fails(EBUSY);
    assert!(has(&d, "rw") && !has(&d, "nosymfollow"), "all or nothing: {}", options(&d));
    close(writer);
    change(&d, 0, [NOATIME, ATIME, 0, 0]).is(0);
    assert!(has(&d, "noatime") && has(&d, "noexec") && !has(&d, "relatime"), "{}", options(&d));
    change(&d, 0, [NOSYMFOLLOW, NOEXEC, 0, 0]).is(0);
    assert!(has(&d, "nosymfollow") && !has(&d, "noexec"), "{}", options(&d));
    open(&link, O_RDONLY).fails(ELOOP);
    let mut of = [0u64; 15];
    sc!(SYS_statfs, c(&d).as_ptr(), of.as_mut_ptr()).is(0);
    assert_eq!(of[10] & 0x3400, 0x2400, "ST_NOSYMFOLLOW and ST_NOATIME: {:#x}", of[10]);
    let mut text = [0u8; 8];
    sc!(SYS_readlink, c(&link).as_ptr(), text.as_mut_ptr(), 8).is(1);
    change(&d, 0, [0, NOSYMFOLLOW, 0, 0]).is(0);
    close(open(&link, O_RDONLY).fd());
    unmounted(&d);
}

fn attributes_below() {
    let d = dir();
    mounted(&d);
    let below = format!("{d}/below");
    std::fs::create_dir(&below).unwrap();
    fresh(&below);
    change(&d, 0, [NOEXEC, 0, 0, 0]).is(0);
    assert!(has(&d, "noexec") && !has(&below, "noexec"));
    change(&d, AT_RECURSIVE, [RDONLY, 0, 0, 0]).is(0);
    assert!(has(&d, "ro") && has(&below, "ro") && !has(&below, "noexec"));
    change(&d, AT_RECURSIVE, [0, RDONLY, 0, 0]).is(0);
    let writer = open(&format!("{below}/f"), O_RDWR | O_CREAT).fd();
    change(&d, AT_RECURSIVE, [RDONLY, 0, 0, 0]).fails(EBUSY);
    assert!(has(&d, "rw") && has(&below, "rw"), "all or nothing");
    close(writer);
    unmounted(&d);
}

fn attributes_refused() {
    let d = dir();
    mounted(&d);
    std::fs::create_dir(format!("{d}/d")).unwrap();
    let path = c(&d);
    let nothing = [0u64; 8];
    let mut more = nothing;
    more[4] = 1;
    let of =
        |at: *const u64, size: usize| sc!(SYS_mount_setattr, AT_FDCWD, path.as_ptr(), 0, at, size);
    of(nothing.as_ptr(), 31).fails(EINVAL);
    of(nothing.as_ptr(), 4097).fails(E2BIG);
    of(more.as_ptr(), 40).fails(E2BIG);
    of(nothing.as_ptr(), 64).is(0);
    of(std::ptr::null(), 32).fails(EFAULT);
    change(&d, 1, [RDONLY, 0, 0, 0]).fails(EINVAL);
    change(&d, 0, [1 << 40, 0, 0, 0]).fails(EINVAL);
    change(&d, 0, [NOATIME, 0, 0, 0]).fails(EINVAL);
    change(&d, 0, [NOATIME, NOATIME, 0, 0]).fails(EINVAL);
    change(&d, 0, [ATIME, ATIME, 0, 0]).fails(EINVAL);
    change(&d, 0, [0, 0, 3, 0]).fails(EINVAL);
    change(&d, 0, [0x10_0000, 0, 0, 1 << 20]).fails(EBADF);
    change(&format!("{d}/d"), 0, [RDONLY, 0, 0, 0]).fails(EINVAL);
    change(&format!("{d}/none"), 0, [RDONLY, 0, 0, 0]).fails(ENOENT);
    change(&format!("{d}/none"), 0, [0, 0, 0, 0]).is(0);
    wait_code(
        fork(|| {
            sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
            change("/", 0, [RDONLY, 0, 0, 0]).fails(EPERM);
            0
        }),
        0,
    );
    unmounted(&d);
}
