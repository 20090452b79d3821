//! Attributes read: stat(2), statx(2), access(2), statfs(2).

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};
use zerocopy::{Immutable, IntoBytes};

use super::{CWD, PathName, any_file, resolve_at, walk_flags};
use crate::base::args::translate;
use crate::base::user::UserPtr;
use crate::drivers::chrdev::{major, minor};
use crate::security::{Credentials, Subject};
use crate::vfs::anon::AnonInode;
use crate::vfs::path::{Context, resolve};
use crate::vfs::permission::{self, EXECUTE, WRITE};
use crate::vfs::{FileType, Inode, Metadata, flags, hooks};

const NS: i64 = 1_000_000_000;

/// `struct stat` (stat(2)).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Stat {
    dev: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    pad: u32,
    rdev: u64,
    size: i64,
    blksize: i64,
    blocks: i64,
    atime: [i64; 2],
    mtime: [i64; 2],
    ctime: [i64; 2],
    unused: [i64; 3],
}

fn split(ns: i64) -> [i64; 2] {
    [ns.div_euclid(NS), ns.rem_euclid(NS)]
}

impl From<&Metadata> for Stat {
    fn from(of: &Metadata) -> Stat {
        Stat {
            dev: of.device,
            ino: of.inode,
            nlink: of.links,
            mode: of.file_type.mode_bits() | of.mode,
            uid: of.uid,
            gid: of.gid,
            pad: 0,
            rdev: of.rdev,
            size: of.size as i64,
            blksize: of.block_size as i64,
            blocks: of.blocks as i64,
            atime: split(of.atime_ns),
            mtime: split(of.mtime_ns),
            ctime: split(of.ctime_ns),
            unused: [0; 3],
        }
    }
}

fn write_stat(inode: &Arc<dyn Inode>, at: u64) -> Result<u64> {
    hooks::inode_getattr((inode.as_ref(),))?;
    let stat = Stat::from(&inode.metadata()?);
    UserPtr::<Stat>::new(at).write(&stat)?;
    Ok(0)
}

/// stat(2).
pub fn stat(path: u64, stat: u64) -> Result<u64> {
    let (_, location) = resolve_at(CWD, path, 0, true)?;
    write_stat(location.inode(), stat)
}

/// lstat(2).
pub fn lstat(path: u64, stat: u64) -> Result<u64> {
    let (_, location) = resolve_at(CWD, path, 0, false)?;
    write_stat(location.inode(), stat)
}

/// fstat(2).
pub fn fstat(fd: u64, stat: u64) -> Result<u64> {
    write_stat(&any_file(fd)?.inode(), stat)
}

/// newfstatat(2), fstatat(3).
pub fn newfstatat(directory: u64, path: u64, stat: u64, flags: u64) -> Result<u64> {
    let known = raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH | raw::AT_NO_AUTOMOUNT;
    let flags = super::check_flags(flags, known | raw::AT_STATX_SYNC_TYPE)?;
    let inode = inode_at(directory, path, flags)?;
    write_stat(&inode, stat)
}

/// The object of an `*at` call that only looks; descriptors of any kind with AT_EMPTY_PATH.
fn inode_at(dirfd: u64, path: u64, flags: u32) -> Result<Arc<dyn Inode>> {
    let path = PathName::read_or_empty(dirfd as i32, path, flags)?;
    if path.bytes().is_empty() && flags & raw::AT_EMPTY_PATH != 0 && dirfd as i32 != raw::AT_FDCWD {
        return Ok(any_file(dirfd)?.inode());
    }
    let context = Context::current();
    let walk = walk_flags(flags, true);
    Ok(resolve(&context, dirfd as i32, path.bytes(), walk)?.inode().clone())
}

/// `struct statx` (statx(2)), with what is not filled in as spare.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub struct Statx {
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    spare0: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    atime: StatxTime,
    btime: StatxTime,
    ctime: StatxTime,
    mtime: StatxTime,
    rdev: [u32; 2],
    dev: [u32; 2],
    mnt_id: u64,
    dio: [u32; 2],
    spare: [u64; 12],
}

#[derive(IntoBytes, Immutable, Default)]
#[repr(C)]
struct StatxTime {
    sec: i64,
    nsec: u32,
    reserved: i32,
}

impl StatxTime {
    fn new(ns: i64) -> Self {
        let [sec, nsec] = split(ns);
        StatxTime { sec, nsec: nsec as u32, reserved: 0 }
    }
}

/// Flags of files that statx(2) tells: the bits are those of ioctl_iflags(2).
const TOLD_FLAGS: u64 =
    (raw::STATX_ATTR_IMMUTABLE | raw::STATX_ATTR_APPEND | raw::STATX_ATTR_NODUMP) as u64;
const _: () = {
    let flags = raw::FS_IMMUTABLE_FL | raw::FS_APPEND_FL | raw::FS_NODUMP_FL;
    assert!(TOLD_FLAGS == flags as u64, "the bits are the same");
};

/// What statx(2) tells of an object's flags, and which of them it could have: none where its file
/// system has no flags.
fn told_flags(inode: &dyn Inode) -> (u64, u64) {
    flags::of(inode).map_or((0, 0), |flags| (u64::from(flags) & TOLD_FLAGS, TOLD_FLAGS))
}

/// statx(2).
pub fn statx(
    directory: i32,
    path: u64,
    flags: u64,
    mask: u32,
    buffer: UserPtr<Statx>,
) -> Result<u64> {
    let sync = raw::AT_STATX_FORCE_SYNC | raw::AT_STATX_DONT_SYNC;
    let known = raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH | raw::AT_NO_AUTOMOUNT | sync;
    let flags = super::check_flags(flags, known)?;
    if flags & sync == sync || mask & raw::STATX__RESERVED != 0 {
        return Err(Errno::EINVAL);
    }
    let path = PathName::read_or_empty(directory, path, flags)?;
    let context = Context::current();
    let location = resolve(&context, directory, path.bytes(), walk_flags(flags, true))?;
    hooks::inode_getattr((location.inode().as_ref(),))?;
    let of = location.inode().metadata()?;
    let mount_top = u64::from(raw::STATX_ATTR_MOUNT_ROOT);
    let (told, could_tell) = told_flags(location.inode().as_ref());
    let born_ns = of.btime_ns.filter(|_| mask & raw::STATX_BTIME != 0);
    let (mount_id, mount_number) = match mask & raw::STATX_MNT_ID_UNIQUE {
        0 => (raw::STATX_MNT_ID, location.mount.id()),
        unique => (unique, location.mount.unique_id()),
    };
    let statx = Statx {
        mask: raw::STATX_BASIC_STATS
            | mount_id
            | if born_ns.is_some() { raw::STATX_BTIME } else { 0 },
        blksize: of.block_size as u32,
        attributes: if location.is_mount_top() { mount_top } else { 0 } | told,
        nlink: of.links as u32,
        uid: of.uid,
        gid: of.gid,
        mode: (of.file_type.mode_bits() | of.mode) as u16,
        spare0: 0,
        ino: of.inode,
        size: of.size,
        blocks: of.blocks,
        attributes_mask: mount_top | could_tell,
        atime: StatxTime::new(of.atime_ns),
        btime: born_ns.map_or_else(StatxTime::default, StatxTime::new),
        ctime: StatxTime::new(of.ctime_ns),
        mtime: StatxTime::new(of.mtime_ns),
        rdev: [major(of.rdev), minor(of.rdev)],
        dev: [major(of.device), minor(of.device)],
        mnt_id: mount_number,
        dio: [0; 2],
        spare: [0; 12],
    };
    const { assert!(size_of::<Statx>() == 256 && size_of::<Stat>() == 144) };
    buffer.write(&statx)?;
    Ok(0)
}

/// access(2).
pub fn access(path: u64, mode: u64) -> Result<u64> {
    check_access(CWD, path, mode, 0)
}

/// faccessat(2), which has no flags.
pub fn faccessat(directory: u64, path: u64, mode: u64) -> Result<u64> {
    check_access(directory, path, mode, 0)
}

/// faccessat2(2).
pub fn faccessat2(directory: u64, path: u64, mode: u64, flags: u64) -> Result<u64> {
    let known = raw::AT_EACCESS | raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH;
    let flags = super::check_flags(flags, known)?;
    check_access(directory, path, mode, flags)
}

fn check_access(dirfd: u64, path: u64, mode: u64, flags: u32) -> Result<u64> {
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let path = PathName::read(path)?;
    let mut context = Context::current();
    if flags & raw::AT_EACCESS == 0 {
        context.subject = context.subject.with(real(&context.subject));
    }
    let location = resolve(&context, dirfd as i32, path.bytes(), walk_flags(flags, true))?;
    let (wanted, file_type) = (mode as u32, location.file_type());
    // On the mount of objects without a name nothing is executed.
    let is_noexec = location.mount.flags() & raw::MS_NOEXEC != 0;
    if wanted & EXECUTE != 0
        && (file_type == FileType::Regular && is_noexec || file_type == FileType::Anonymous)
    {
        return Err(Errno::EACCES);
    }
    if wanted != 0 {
        permission::check(location.inode().as_ref(), wanted, &context.subject)?;
    }
    let is_data = matches!(file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
    if wanted & WRITE != 0 && is_data {
        location.mount.check_writable()?;
    }
    Ok(0)
}

/// The caller as its real user (access(2)).
fn real(who: &Subject) -> Credentials {
    let mut real = Credentials::clone(who);
    real.fsuid = real.uid;
    real.fsgid = real.gid;
    real.effective = if real.uid == 0 { real.permitted } else { 0 };
    real
}

/// `struct statfs` (statfs(2)).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Statfs {
    magic: i64,
    bsize: i64,
    blocks: u64,
    bfree: u64,
    bavail: u64,
    files: u64,
    ffree: u64,
    fsid: [i32; 2],
    namelen: i64,
    frsize: i64,
    flags: i64,
    spare: [i64; 4],
}

/// statfs(2).
pub fn statfs(path: u64, buffer: u64) -> Result<u64> {
    let (_, location) = resolve_at(CWD, path, 0, true)?;
    write_statfs(location.inode(), location.mount.flags(), buffer)
}

/// fstatfs(2).
pub fn fstatfs(fd: u64, buffer: u64) -> Result<u64> {
    let file = any_file(fd)?;
    let flags = file.location.as_ref().map_or(0, |location| location.mount.flags());
    write_statfs(&file.inode(), flags, buffer)
}

fn write_statfs(inode: &Arc<dyn Inode>, mount_flags: u32, at: u64) -> Result<u64> {
    /// Magic numbers of pipes and sockets (statfs(2)).
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    const PIPEFS_MAGIC: u64 = 0x5049_5045;
    const SOCKFS_MAGIC: u64 = 0x534f_434b;
    /// The flags are valid (ST_VALID).
    const VALID: u32 = 0x20;
    /// ST_RELATIME and ST_NOSYMFOLLOW; the other flags are mount(2)'s.
    const RELATIME: u32 = 0x1000;
    const NOSYMFOLLOW: u32 = 0x2000;
    let same = raw::MS_RDONLY | raw::MS_NOSUID | raw::MS_NODEV | raw::MS_NOEXEC | raw::MS_NOATIME;
    let same = same | raw::MS_NODIRATIME;
    hooks::sb_statfs((inode.as_ref(),))?;
    let own =
        translate(mount_flags, &[(raw::MS_RELATIME, RELATIME), (raw::MS_NOSYMFOLLOW, NOSYMFOLLOW)]);
    let mut of = inode.file_system().statistics();
    if let Some(anon) = inode.downcast_ref::<AnonInode>() {
        // Linux has a file system for each of these.
        of.magic = match inode.file_type() {
            _ if anon.is_pidfd() => PIDFS_MAGIC,
            FileType::Fifo => PIPEFS_MAGIC,
            FileType::Socket => SOCKFS_MAGIC,
            _ => of.magic,
        };
    }
    let device = inode.metadata()?.device;
    let statfs = Statfs {
        magic: of.magic as i64,
        bsize: of.block_size as i64,
        blocks: of.blocks,
        bfree: of.free,
        bavail: of.free,
        files: of.files,
        ffree: of.free_files,
        fsid: [device as i32, (device >> 32) as i32],
        namelen: crate::vfs::path::NAME_MAX as i64,
        frsize: of.block_size as i64,
        flags: i64::from(mount_flags & same | VALID | own),
        spare: [0; 4],
    };
    UserPtr::<Statfs>::new(at).write(&statfs)?;
    Ok(0)
}
