//! The host's side: how an object below the shared folder is found, and never one beside it.
//!
//! Why it is hard: while the server looks, whoever works on the host renames folders and puts links
//! in their place. So nothing is found by a path that the kernel walks freely: openat2(2) walks
//! below the root alone (RESOLVE_BENEATH), takes no link on the way (RESOLVE_NO_SYMLINKS, which
//! holds for the magic ones of /proc as well), and what it gives is compared with what was meant. A
//! name is one component. What may do something when it is opened (devices, pipes) is never opened:
//! everything is looked at through an O_PATH descriptor, and only a regular file or a folder is
//! opened from there.
//!
//! Neighbours: `nodes.rs` says what is meant, `serve.rs` asks.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use fuse_backend_rs::abi::fuse_abi::{Attr, stat64};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp, openat2,
    statx,
};
use rustix::io::Errno;

use super::nodes::{Object, Place, Stamp};

/// How every path is walked.
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Bytes of a path that are walked at once: PATH_MAX without its end.
const WALK_MAX: usize = 4095;
/// Bytes of a name (NAME_MAX).
pub(super) const NAME_MAX: usize = 255;

/// What is asked of an object.
const MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// An object, held by an O_PATH descriptor, and what is known of it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) fd: OwnedFd,
    pub(super) known: Known,
}

/// What is known of an object.
#[derive(Clone, Copy)]
pub(super) struct Known(Statx);

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.object(), self.kind())
    }
}

/// Finds what is at a place.
///
/// # Errors
/// ESTALE if nothing is there any more, or something else; otherwise what the host says.
pub(super) fn find(root: BorrowedFd<'_>, place: &Place) -> Result<Held, Errno> {
    let fd = walk(root, &place.path, OFlags::PATH).map_err(|error| match error {
        // The names that led there lead nowhere, or through a link.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Errno::STALE,
        other => other,
    })?;
    let known = look(fd.as_fd(), b"")?;
    match known.object() == place.object {
        true => Ok(Held { fd, known }),
        false => Err(Errno::STALE),
    }
}

/// What `name` in a folder is; with an empty name, the object itself.
pub(super) fn look(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Known, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(folder, name, flags, MASK).map(Known)
}

/// An O_PATH descriptor of `name` in a folder.
pub(super) fn hold(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    walk(folder, name, OFlags::PATH)
}

/// Opens a folder for reading its names, or a regular file.
///
/// # Errors
/// EACCES for anything else: the guest has devices, pipes and sockets of its own.
pub(super) fn open(held: &Held) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    match held.known.kind() {
        FileType::Directory => {
            let flags = flags | OFlags::DIRECTORY;
            openat2(&held.fd, ".", flags, Mode::empty(), RESOLVE)
        }
        FileType::RegularFile => {
            // The very object that was looked at, whatever its name means by now.
            let path = of_descriptor(&held.fd);
            // Reading through a share leaves no trace where the host lets us.
            match rustix::fs::open(&path, flags | OFlags::NOATIME, Mode::empty()) {
                Err(Errno::PERM) => rustix::fs::open(&path, flags, Mode::empty()),
                opened => opened,
            }
        }
        _ => Err(Errno::ACCESS),
    }
}

/// A path to what a descriptor is of, for calls that take no O_PATH descriptor (proc(5),
/// /proc/self/fd).
pub(super) fn of_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A name as the guest may ask for it: one component, and not the folder itself or its parent.
pub(super) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"" | b"." | b".." => Err(Errno::INVAL),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Errno::INVAL),
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        _ => Ok(()),
    }
}

/// Walks down from `base`, in as many steps as the path's length needs.
fn walk(base: BorrowedFd<'_>, path: &[u8], last: OFlags) -> Result<OwnedFd, Errno> {
    let mut rest = path;
    let mut at: Option<OwnedFd> = None;
    loop {
        let base = at.as_ref().map_or(base, |fd| fd.as_fd());
        let (step, after) = first_step(rest);
        let step: &[u8] = if step.is_empty() { b"." } else { step };
        let flags = last | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat2(base, step, flags, Mode::empty(), RESOLVE)?;
        match after {
            None => return Ok(fd),
            Some(after) => rest = after,
        }
        at = Some(fd);
    }
}

/// As much of a path as is walked at once, and what comes after it.
fn first_step(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    if path.len() <= WALK_MAX {
        return (path, None);
    }
    match path[..=WALK_MAX].iter().rposition(|byte| *byte == b'/') {
        Some(end) => (&path[..end], Some(&path[end + 1..])),
        // No name is that long.
        None => (path, None),
    }
}

impl Known {
    pub(super) fn object(&self) -> Object {
        let has_birth = self.0.stx_mask & StatxFlags::BTIME.bits() != 0;
        Object {
            device: (self.0.stx_dev_major, self.0.stx_dev_minor),
            ino: self.0.stx_ino,
            born_ns: if has_birth { nanoseconds(&self.0.stx_btime) } else { 0 },
        }
    }

    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.0.stx_mode.into())
    }

    pub(super) fn stamp(&self) -> Stamp {
        Stamp {
            size: self.0.stx_size,
            modified_ns: nanoseconds(&self.0.stx_mtime),
            changed_ns: nanoseconds(&self.0.stx_ctime),
        }
    }

    /// As FUSE carries it, under the guest's inode number.
    pub(super) fn attributes(&self, ino: u64) -> stat64 {
        let known = &self.0;
        Attr {
            ino,
            size: known.stx_size,
            blocks: known.stx_blocks,
            // Two's complement on the wire: times before 1970 are negative.
            atime: known.stx_atime.tv_sec as u64,
            mtime: known.stx_mtime.tv_sec as u64,
            ctime: known.stx_ctime.tv_sec as u64,
            atimensec: known.stx_atime.tv_nsec,
            mtimensec: known.stx_mtime.tv_nsec,
            ctimensec: known.stx_ctime.tv_nsec,
            mode: known.stx_mode.into(),
            nlink: known.stx_nlink,
            uid: known.stx_uid,
            gid: known.stx_gid,
            rdev: device_number(known.stx_rdev_major, known.stx_rdev_minor),
            blksize: known.stx_blksize,
            flags: 0,
        }
        .into()
    }
}

fn nanoseconds(time: &StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// A device's number in 32 bits: minor 0 to 7, major 12 bits, the rest of minor above.
fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn root_of(dir: &std::path::Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(dir, flags, Mode::empty()).expect("a folder")
    }

    fn place_of(root: &OwnedFd, path: &[u8]) -> Place {
        let fd = walk(root.as_fd(), path, OFlags::PATH).expect("it is there");
        let object = look(fd.as_fd(), b"").expect("known").object();
        Place { object, path: path.to_vec() }
    }

    #[test]
    fn names_are_one_component() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", &[b'x'; 256]] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in [&b"a"[..], b"...", b"..a", b"\xff\n", &[b'x'; 255]] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn links_lead_nowhere() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("d")).expect("made");
        std::fs::write(dir.path().join("d/f"), "x").expect("written");
        symlink("/etc", dir.path().join("out")).expect("linked");
        symlink("d", dir.path().join("in")).expect("linked");
        let root = root_of(dir.path());
        for path in [&b"out/passwd"[..], b"in/f", b"../x", b"d/../../x", b"/etc/passwd"] {
            let found = walk(root.as_fd(), path, OFlags::PATH);
            assert!(found.is_err(), "{}", String::from_utf8_lossy(path));
        }
        // A link itself is an object.
        let link = find(root.as_fd(), &place_of(&root, b"out")).expect("the link");
        assert_eq!(link.known.kind(), FileType::Symlink);
        assert_eq!(open(&link).map(|_| ()), Err(Errno::ACCESS));
    }

    #[test]
    fn what_was_replaced_is_stale() {
        let dir = tempfile::tempdir().expect("a folder");
        let (sub, outside) = (dir.path().join("sub"), tempfile::tempdir().expect("a folder"));
        std::fs::create_dir(&sub).expect("made");
        std::fs::write(sub.join("f"), "inside").expect("written");
        std::fs::write(outside.path().join("f"), "outside").expect("written");
        let root = root_of(dir.path());
        let place = place_of(&root, b"sub/f");
        assert!(find(root.as_fd(), &place).is_ok());
        std::fs::rename(&sub, dir.path().join("gone")).expect("moved");
        assert_eq!(find(root.as_fd(), &place).map(|_| ()), Err(Errno::STALE));
        symlink(outside.path(), &sub).expect("linked");
        assert_eq!(find(root.as_fd(), &place).map(|_| ()), Err(Errno::STALE));
        std::fs::remove_file(&sub).expect("removed");
        std::fs::create_dir(&sub).expect("made");
        std::fs::write(sub.join("f"), "another").expect("written");
        assert_eq!(find(root.as_fd(), &place).map(|_| ()), Err(Errno::STALE));
    }

    #[test]
    fn only_files_and_folders_are_opened() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = root_of(dir.path());
        std::fs::write(dir.path().join("f"), "x").expect("written");
        rustix::fs::mknodat(&root, "p", FileType::Fifo, Mode::RUSR, 0).ok();
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("q")).status();
        assert!(made.expect("mkfifo").success());
        let open_at = |path: &[u8]| open(&find(root.as_fd(), &place_of(&root, path))?).map(|_| ());
        assert_eq!(open_at(b"f"), Ok(()));
        assert_eq!(open_at(b""), Ok(()));
        assert_eq!(open_at(b"q"), Err(Errno::ACCESS));
    }

    #[test]
    fn long_paths_are_walked_in_steps() {
        let names = vec![vec![b'n'; 200]; 60].join(&b'/');
        let mut rest = Some(&names[..]);
        let mut joined = Vec::new();
        while let Some(path) = rest {
            let (step, after) = first_step(path);
            assert!(step.len() <= WALK_MAX && !step.is_empty());
            joined.push(step);
            rest = after;
        }
        assert_eq!(joined.join(&b'/'), names);
        assert!(joined.len() >= 3);
        assert_eq!(first_step(b""), (&b""[..], None));
    }

    #[test]
    fn devices_have_linuxs_numbers() {
        assert_eq!(device_number(1, 3), 0x103);
        assert_eq!(device_number(259, 0x12345), 0x1231_0345);
    }
}
