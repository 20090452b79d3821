//! Mounts: what they allow (mount_setattr(2)), how they are made in steps (fsopen(2), fsconfig(2),
//! fsmount(2), fspick(2), open_tree(2), move_mount(2)), what is told of them (statmount(2),
//! listmount(2)).

use crate::sys::*;
use crate::{sc, tests};

tests!("mounts":
    attributes, attributes_below, attributes_refused, mounted_in_steps, steps_in_wrong_order,
    picked_and_changed, trees_are_copied, statmount_tells, listmount_lists, bound_with_all_below,
);

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

const SYS_STATMOUNT: i32 = 457;
const SYS_LISTMOUNT: i32 = 458;
const EMPTY: *const i8 = c"".as_ptr();
const SET_FLAG: i32 = 0;
const SET_STRING: i32 = 1;
const CREATE: i32 = 6;
const RECONFIGURE: i32 = 7;

fn config(fd: i32, what: i32, key: &str, value: Option<&str>) -> Res {
    let (key, value) = (c(key), value.map(c));
    let value = value.as_ref().map_or(std::ptr::null(), |value| value.as_ptr());
    sc!(SYS_fsconfig, fd, what, key.as_ptr(), value, 0)
}

fn command(fd: i32, what: i32) -> Res {
    sc!(SYS_fsconfig, fd, what, 0, 0, 0)
}

/// A tmpfs that has no place yet.
fn floating(attributes: u64) -> i32 {
    let fd = sc!(SYS_fsopen, c"tmpfs".as_ptr(), 1).fd();
    config(fd, SET_STRING, "source", Some("mine")).is(0);
    config(fd, SET_STRING, "size", Some("1m")).is(0);
    command(fd, CREATE).is(0);
    let mount = sc!(SYS_fsmount, fd, 1, attributes).fd();
    close(fd);
    mount
}

fn put(mount: i32, place: &str) -> Res {
    sc!(SYS_move_mount, mount, EMPTY, AT_FDCWD, c(place).as_ptr(), 4)
}

/// What a descriptor of a file system in the making has to tell.
fn message(fd: i32) -> Result<String, i32> {
    let mut bytes = [0u8; 256];
    let count = sc!(SYS_read, fd, bytes.as_mut_ptr(), bytes.len())?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

fn mounted_in_steps() {
    own_mounts();
    let d = dir();
    let mount = floating(NOEXEC);
    // It can be used before it has a place.
    let file = sc!(SYS_openat, mount, c"f".as_ptr(), O_CREAT | O_RDWR, 0o600).fd();
    write(file, b"x");
    close(file);
    std::fs::write(format!("{d}/below"), "").unwrap();
    put(mount, &format!("{d}/none")).fails(ENOENT);
    put(mount, &d).is(0);
    assert!(has(&d, "noexec") && has(&d, "relatime") && has(&d, "size=1024k"), "{}", options(&d));
    assert_eq!(std::fs::read(format!("{d}/f")).unwrap(), b"x");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(mounts.contains(&format!("mine {d} tmpfs ")));
    // It stays when its descriptor goes, and may be moved again.
    close(mount);
    let other = format!("{d}/other");
    std::fs::create_dir(&other).unwrap();
    let inner = floating(0);
    put(inner, &other).is(0);
    close(inner);
    unmounted(&other);
    let (from, to) = (c(&d), c(&other));
    sc!(SYS_move_mount, AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), 0).fails(ELOOP);
    sc!(SYS_move_mount, AT_FDCWD, to.as_ptr(), AT_FDCWD, from.as_ptr(), 0).fails(EINVAL);
    unmounted(&d);
}

fn steps_in_wrong_order() {
    own_mounts();
    sc!(SYS_fsopen, c"nosuchfs".as_ptr(), 0).fails(ENODEV);
    sc!(SYS_fsopen, c"tmpfs".as_ptr(), 2).fails(EINVAL);
    sc!(SYS_fsopen, 1, 0).fails(EFAULT);
    let fd = sc!(SYS_fsopen, c"tmpfs".as_ptr(), 0).fd();
    assert_eq!(message(fd), Err(ENODATA));
    sc!(SYS_fsmount, fd, 0, 0).fails(EINVAL);
    command(fd, RECONFIGURE).fails(EBUSY);
    command(fd, 99).fails(EOPNOTSUPP);
    sc!(SYS_fsconfig, -1i32, CREATE, 0, 0, 0).fails(EINVAL);
    sc!(SYS_fsconfig, 999, CREATE, 0, 0, 0).fails(EBADF);
    sc!(SYS_fsconfig, fd, CREATE, c"x".as_ptr(), 0, 0).fails(EINVAL);
    sc!(SYS_fsconfig, fd, SET_FLAG, 0, 0, 0).fails(EINVAL);
    sc!(SYS_fsconfig, fd, SET_STRING, c"size".as_ptr(), 0, 0).fails(EINVAL);
    config(fd, SET_STRING, "nothing", Some("x")).fails(EINVAL);
    assert_eq!(message(fd).unwrap().trim_end(), "e tmpfs: Unknown parameter 'nothing'");
    config(fd, SET_STRING, "size", Some("what")).fails(EINVAL);
    config(fd, SET_STRING, "source", Some("a")).is(0);
    config(fd, SET_STRING, "source", Some("b")).fails(EINVAL);
    config(fd, SET_STRING, "mode", Some("700")).is(0);
    let file = open("/proc/self/exe", O_RDONLY).fd();
    sc!(SYS_fsconfig, file, CREATE, 0, 0, 0).fails(EINVAL);
    sc!(SYS_fsmount, file, 0, 0).fails(EINVAL);
    command(fd, CREATE).is(0);
    command(fd, CREATE).fails(EBUSY);
    config(fd, SET_STRING, "mode", Some("700")).fails(EBUSY);
    sc!(SYS_fsmount, fd, 2, 0).fails(EINVAL);
    sc!(SYS_fsmount, fd, 0, 1 << 30).fails(EINVAL);
    sc!(SYS_fsmount, fd, 0, ATIME).fails(EINVAL);
    let mount = sc!(SYS_fsmount, fd, 0, RDONLY).fd();
    sc!(SYS_fsmount, fd, 0, 0).fails(EBUSY);
    sc!(SYS_openat, mount, c"f".as_ptr(), O_CREAT | O_RDWR, 0o600).fails(EROFS);
    let mut stat = [0u64; 18];
    sc!(SYS_newfstatat, mount, EMPTY, stat.as_mut_ptr(), AT_EMPTY_PATH).is(0);
    assert_eq!(stat[3] as u32 & 0o7777, 0o700);
    wait_code(
        fork(|| {
            sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
            sc!(SYS_fsopen, c"tmpfs".as_ptr(), 0).fails(EPERM);
            sc!(SYS_fsmount, fd, 0, 0).fails(EPERM);
            sc!(SYS_fspick, AT_FDCWD, c"/".as_ptr(), 0).fails(EPERM);
            sc!(SYS_open_tree, AT_FDCWD, c"/".as_ptr(), 1).fails(EPERM);
            sc!(SYS_move_mount, mount, EMPTY, AT_FDCWD, c"/".as_ptr(), 4).fails(EPERM);
            close(sc!(SYS_open_tree, AT_FDCWD, c"/".as_ptr(), 0).fd());
            0
        }),
        0,
    );
}

fn picked_and_changed() {
    let d = dir();
    mounted(&d);
    sc!(SYS_fspick, AT_FDCWD, c(&d).as_ptr(), 16).fails(EINVAL);
    std::fs::create_dir(format!("{d}/d")).unwrap();
    sc!(SYS_fspick, AT_FDCWD, c(&format!("{d}/d")).as_ptr(), 0).fails(EINVAL);
    let fd = sc!(SYS_fspick, AT_FDCWD, c(&d).as_ptr(), 1).fd();
    command(fd, CREATE).fails(EBUSY);
    sc!(SYS_fsmount, fd, 0, 0).fails(EBUSY);
    config(fd, SET_FLAG, "ro", None).is(0);
    command(fd, RECONFIGURE).is(0);
    open(&format!("{d}/f"), O_CREAT | O_RDWR).fails(EROFS);
    config(fd, SET_FLAG, "rw", None).is(0);
    command(fd, RECONFIGURE).is(0);
    close(open(&format!("{d}/f"), O_CREAT | O_RDWR).fd());
    close(fd);
    unmounted(&d);
}

fn trees_are_copied() {
    let d = dir();
    mounted(&d);
    let (below, place) = (format!("{d}/below"), format!("{d}/place"));
    std::fs::create_dir(&below).unwrap();
    std::fs::create_dir(&place).unwrap();
    fresh(&below);
    std::fs::write(format!("{below}/f"), "x").unwrap();
    let path = c(&below);
    let tree = |flags: i32| sc!(SYS_open_tree, AT_FDCWD, path.as_ptr(), flags);
    tree(2).fails(EINVAL);
    tree(AT_RECURSIVE).fails(EINVAL);
    // Without a copy it is a name, and what moves is the mount itself.
    let name = tree(0).fd();
    put(name, &place).is(0);
    assert!(!std::path::Path::new(&format!("{below}/f")).exists());
    put(name, &below).is(0);
    close(name);
    let copy = tree(1).fd();
    put(copy, &place).is(0);
    assert_eq!(std::fs::read(format!("{place}/f")).unwrap(), b"x");
    close(copy);
    unmounted(&place);
    // With what is below, or without.
    for (flags, is_there) in [(1, false), (1 | AT_RECURSIVE, true)] {
        let copy = sc!(SYS_open_tree, AT_FDCWD, c(&d).as_ptr(), flags).fd();
        let mut stat = [0u64; 18];
        let file = c"below/f".as_ptr();
        let found = sc!(SYS_newfstatat, copy, file, stat.as_mut_ptr(), 0);
        assert_eq!(found, if is_there { Ok(0) } else { Err(ENOENT) });
        // A copy that got no place goes with its descriptor.
        close(copy);
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert_eq!(mounts.matches(&d).count(), 2, "{mounts}");
    // Paths end at the top of what has no place.
    let copy = sc!(SYS_open_tree, AT_FDCWD, c(&d).as_ptr(), 1).fd();
    let inside = sc!(SYS_openat, copy, c"..".as_ptr(), O_PATH).fd();
    sc!(SYS_newfstatat, inside, c"place".as_ptr(), [0u64; 18].as_mut_ptr(), 0).is(0);
    sc!(SYS_move_mount, copy, EMPTY, AT_FDCWD, c(&format!("{d}/place")).as_ptr(), 0x400)
        .fails(EINVAL);
    sc!(SYS_move_mount, copy, EMPTY, AT_FDCWD, c(&place).as_ptr(), 0).fails(ENOENT);
    close(copy);
    close(inside);
    unmounted(&d);
}

/// The number of the mount at a place: the one that lasts.
fn number(path: &str) -> u64 {
    let mut statx = [0u64; 32];
    sc!(SYS_statx, AT_FDCWD, c(path).as_ptr(), 0, 0x4000, statx.as_mut_ptr()).is(0);
    assert_ne!(statx[0] & 0x4000, 0);
    statx[18]
}

fn statmount(id: u64, mask: u64, size: usize) -> Result<Vec<u8>, i32> {
    let request = [24u64, id, mask];
    let mut answer = vec![0u8; 4096];
    sc!(SYS_STATMOUNT, request.as_ptr(), answer.as_mut_ptr(), size, 0)?;
    Ok(answer)
}

fn word(answer: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(answer[at..at + 8].try_into().unwrap())
}

fn string(answer: &[u8], at: usize) -> String {
    let offset = word(answer, at) as u32 as usize;
    let text = &answer[512 + offset..];
    let end = text.iter().position(|&byte| byte == 0).unwrap();
    String::from_utf8_lossy(&text[..end]).into_owned()
}

fn statmount_tells() {
    let d = dir();
    mounted(&d);
    change(&d, 0, [NOEXEC, 0, 0, 0]).is(0);
    std::fs::create_dir(format!("{d}/d")).unwrap();
    let shown = format!("{d}/shown");
    std::fs::create_dir(&shown).unwrap();
    let (from, to) = (c(&format!("{d}/d")), c(&shown));
    sc!(SYS_mount, from.as_ptr(), to.as_ptr(), 0, MS_BIND, 0).is(0);
    let (parent, id) = (number(&d), number(&shown));
    let answer = statmount(id, 0xbf, 4096).unwrap();
    assert_eq!(word(&answer, 8) & 0x3b, 0x3b, "{:#x}", word(&answer, 8));
    assert_eq!(word(&answer, 24), 0x0102_1994, "the magic number of tmpfs");
    assert_eq!((word(&answer, 40), word(&answer, 48)), (id, parent));
    assert_eq!(word(&answer, 64), NOEXEC, "the attributes");
    assert_eq!(string(&answer, 36), "tmpfs");
    assert_eq!(string(&answer, 104), "/d");
    assert_eq!(string(&answer, 108), shown);
    let size = word(&answer, 0) as u32 as usize;
    assert!(size > 512);
    statmount(id, 0xbf, size - 1).map(|_| ()).unwrap_err();
    assert_eq!(statmount(id, 0xbf, size - 1), Err(EOVERFLOW));
    assert!(statmount(id, 0xbf, size).is_ok());
    // Numbers alone may be cut.
    assert_eq!(word(&statmount(id, 3, 16).unwrap(), 0) as u32, 16);
    assert_eq!(statmount(id + 1000, 1, 512), Err(ENOENT));
    assert_eq!(statmount(7, 1, 512), Err(EINVAL));
    let request = [24u64, id, 1];
    sc!(SYS_STATMOUNT, request.as_ptr(), 1, 512, 0).fails(EFAULT);
    sc!(SYS_STATMOUNT, request.as_ptr(), 0, 0, 1).fails(EINVAL);
    let short = [23u64, id, 1];
    sc!(SYS_STATMOUNT, short.as_ptr(), 0, 0, 0).fails(EINVAL);
    let long = [4097u64, id, 1];
    sc!(SYS_STATMOUNT, long.as_ptr(), 0, 0, 0).fails(E2BIG);
    unmounted(&d);
}

fn listmount(id: u64, last: u64, most: usize, flags: i32) -> Result<Vec<u64>, i32> {
    let request = [24u64, id, last];
    let mut ids = vec![0u64; 256];
    let count = sc!(SYS_LISTMOUNT, request.as_ptr(), ids.as_mut_ptr(), most, flags)?;
    ids.truncate(count);
    Ok(ids)
}

fn listmount_lists() {
    let d = dir();
    mounted(&d);
    let mut places = Vec::new();
    for name in ["a", "b", "a/c"] {
        let place = format!("{d}/{name}");
        std::fs::create_dir(&place).unwrap();
        fresh(&place);
        places.push(number(&place));
    }
    let top = number(&d);
    assert_eq!(listmount(top, 0, 256, 0).unwrap(), places);
    assert_eq!(listmount(top, 0, 2, 0).unwrap(), places[..2]);
    assert_eq!(listmount(top, places[0], 256, 0).unwrap(), places[1..]);
    assert_eq!(listmount(places[0], 0, 256, 0).unwrap(), places[2..]);
    let backwards: Vec<u64> = places.iter().rev().copied().collect();
    assert_eq!(listmount(top, 0, 256, 1).unwrap(), backwards);
    assert_eq!(listmount(top, places[2], 256, 1).unwrap(), backwards[1..]);
    let all = listmount(u64::MAX, 0, 256, 0).unwrap();
    assert!(all.contains(&top) && all.contains(&number("/")) && all.contains(&places[2]));
    assert!(all.is_sorted());
    assert_eq!(listmount(top, 1, 256, 0), Err(EINVAL));
    assert_eq!(listmount(5, 0, 256, 0), Err(EINVAL));
    assert_eq!(listmount(top + 1000, 0, 256, 0), Err(ENOENT));
    assert_eq!(listmount(top, 0, 1 << 21, 0), Err(EOVERFLOW));
    assert_eq!(listmount(top, 0, 256, 2), Err(EINVAL));
    unmounted(&d);
}

/// A bind mount with all that is mounted below (MS_BIND and MS_REC): also what was mounted before
/// what it lies in now, and nothing beside what is bound; the copy may lie in what it shows.
fn bound_with_all_below() {
    let d = dir();
    mounted(&d);
    let place = |name: &str| format!("{d}/{name}");
    for name in ["early", "top", "copy"] {
        std::fs::create_dir(place(name)).unwrap();
    }
    fresh(&place("early"));
    std::fs::write(place("early/file"), "early").unwrap();
    fresh(&place("top"));
    for name in ["top/part", "top/part/below", "top/beside", "top/part/copy"] {
        std::fs::create_dir(place(name)).unwrap();
    }
    let (early, below) = (c(&place("early")), c(&place("top/part/below")));
    sc!(SYS_mount, early.as_ptr(), below.as_ptr(), 0, MS_MOVE, 0).is(0);
    fresh(&place("top/beside"));
    let bind = |from: &str, to: &str| {
        let (from, to) = (c(&place(from)), c(&place(to)));
        sc!(SYS_mount, from.as_ptr(), to.as_ptr(), 0, MS_BIND | MS_REC, 0).is(0);
    };
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap().lines().count();
    let before = mounts();
    bind("top/part", "copy");
    assert_eq!(mounts(), before + 2);
    assert_eq!(std::fs::read_to_string(place("copy/below/file")).unwrap(), "early");
    bind("top/part", "top/part/copy");
    assert_eq!(mounts(), before + 4);
    assert_eq!(std::fs::read_to_string(place("top/part/copy/below/file")).unwrap(), "early");
    assert!(!std::path::Path::new(&place("top/part/copy/copy/below/file")).exists());
    unmounted(&place("copy"));
    unmounted(&d);
}
