//! Files. Reading order: this file (the three traits), `file` (open files and descriptors), `path`
//! (names to objects), then the file systems.
//!
//! - [`FileSystem`]: what is mounted.
//! - [`Inode`]: an object of a file system, found by name: file, directory, link, device node.
//! - [`FileOps`]: what an open file does: regular file, pipe, socket, event counter, terminal.
//!
//! Locks: a file system's own locks, then page cache, then wait queues. No file system calls back
//! into path lookup with its locks held.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result};

use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::remembered::Remembered;
use crate::page_cache::PageCache;

pub mod anon;
pub mod attributes;
pub(crate) mod capability;
pub mod dentry;
pub mod deny_write;
pub mod file;
pub mod flags;
pub mod hooks;
pub mod inotify;
pub mod landlock;
pub mod leases;
pub mod locks;
pub mod mount;
pub mod namei;
pub mod open;
pub mod path;
pub mod path_file;
pub mod permission;
pub mod profile;
pub mod state;

pub use file::{Fd, FdTable, File};
pub use state::InodeState;

/// Kinds of objects, with the numbers of `st_mode >> 12` and `d_type` (inode(7), readdir(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "inode(7) describes each")]
pub enum FileType {
    /// What eventfd(2) and its kin are: no kind that a mode has bits for.
    Anonymous = 0,
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    Regular = 8,
    Symlink = 10,
    Socket = 12,
}

impl FileType {
    /// The S_IFMT bits of a mode.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }

    /// The type in a mode's S_IFMT bits; 0 counts as regular, as mknod(2) has it.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode >> 12 & 0xf {
            1 => FileType::Fifo,
            2 => FileType::CharDevice,
            4 => FileType::Directory,
            6 => FileType::BlockDevice,
            0 | 8 => FileType::Regular,
            10 => FileType::Symlink,
            12 => FileType::Socket,
            _ => return None,
        })
    }
}

/// Attributes of an object (stat(2)).
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "stat(2) and inode(7) describe each")]
pub struct Metadata {
    /// Device number of the file system, as makedev(3) packs it.
    pub device: u64,
    pub inode: u64,
    pub file_type: FileType,
    /// Permission bits, 0 to 0o7777.
    pub mode: u32,
    pub links: u64,
    pub uid: u32,
    pub gid: u32,
    /// For device nodes: the device they name, as makedev(3) packs it.
    pub rdev: u64,
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    pub block_size: u64,
    /// Nanoseconds since 1970.
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// When it was made, if that is known.
    pub btime_ns: Option<i64>,
}

/// Attributes to change; `None` keeps the old value. Times are nanoseconds since 1970. The caller
/// has checked permissions.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "as in Metadata")]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime_ns: Option<i64>,
    pub mtime_ns: Option<i64>,
}

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Its name; where the directory keeps names it is the same one.
    pub name: Arc<[u8]>,
    /// Inode number.
    pub inode: u64,
    /// What it is.
    pub file_type: FileType,
    /// Position after this entry: give it to `read_dir` to go on from here.
    pub next: u64,
}

/// How a name is moved, for [`Inode::rename`].
#[derive(Clone, Copy, Debug)]
pub struct Renaming {
    /// renameat2(2)'s.
    pub flags: u32,
    /// User and group of a whiteout that is left behind.
    pub owner: (u32, u32),
}

/// A new object, for [`Inode::create`].
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// What to make.
    pub file_type: FileType,
    /// Permission bits, umask already applied.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// For device nodes.
    pub rdev: u64,
    /// For symbolic links.
    pub target: &'a [u8],
}

/// An object of a file system. The defaults are right for objects that do not have the operation.
/// Names are single components, never empty, `.` or `..`, at most 255 bytes.
pub trait Inode: Send + Sync + Any {
    /// Its attributes.
    fn metadata(&self) -> Result<Metadata>;
    /// The number that its attributes have, for those who want no more.
    fn number(&self) -> Result<u64> {
        Ok(self.metadata()?.inode)
    }
    /// Changes attributes; a changed size truncates or extends.
    fn set_attributes(&self, changes: &SetAttributes) -> Result<()>;
    /// Kind, without asking the device for all attributes.
    fn file_type(&self) -> FileType;
    /// What the kernel hangs on it.
    fn state(&self) -> &InodeState;
    /// The file system it belongs to.
    fn file_system(&self) -> Arc<dyn FileSystem>;

    /// Opens it. Regular files and directories return themselves behind `FileOps`; device nodes and
    /// FIFOs what they stand for. `flags` are open(2)'s.
    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>>;

    /// Finds an entry of a directory.
    fn lookup(&self, _name: &[u8]) -> Result<Arc<dyn Inode>> {
        Err(Errno::ENOTDIR)
    }
    /// Makes an entry; EEXIST if there is one.
    fn create(&self, name: &[u8], new: &NewObject<'_>) -> Result<Arc<dyn Inode>> {
        self.create_if(name, new, &|_| Ok(()))
    }
    /// The same, if the new object is admitted before it has its name. Where the name comes with
    /// the object it is taken away again.
    fn create_if(
        &self,
        _name: &[u8],
        _new: &NewObject<'_>,
        _admit: &dyn Fn(&dyn Inode) -> Result<()>,
    ) -> Result<Arc<dyn Inode>> {
        Err(Errno::ENOTDIR)
    }
    /// Makes a regular file without a name in this directory's file system (O_TMPFILE); `link` can
    /// give it one.
    fn create_unnamed(&self, _new: &NewObject<'_>) -> Result<Arc<dyn Inode>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Makes another name for `target`, an object of the same file system.
    fn link(&self, _name: &[u8], _target: &Arc<dyn Inode>) -> Result<()> {
        Err(Errno::ENOTDIR)
    }
    /// Removes a name of a non-directory.
    fn unlink(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::ENOTDIR)
    }
    /// Removes an empty directory.
    fn rmdir(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::ENOTDIR)
    }
    /// Moves an entry to a directory of the same file system.
    fn rename(
        &self,
        _name: &[u8],
        _to: &Arc<dyn Inode>,
        _new: &[u8],
        _how: &Renaming,
    ) -> Result<()> {
        Err(Errno::ENOTDIR)
    }
    /// A number that is another one when a directory's names may be others, for a file system whose
    /// [`FileSystem::names_expire`]. Not 0 there. May sleep.
    fn names_version(&self) -> Result<u64> {
        Ok(0)
    }
    /// Up to `max` entries from position `from` on (0: the first), without `.` and `..`.
    fn read_dir(&self, _from: u64, _max: usize) -> Result<Vec<DirEntry>> {
        Err(Errno::ENOTDIR)
    }
    /// The position behind all entries, if that is the same for every directory.
    fn directory_end(&self) -> Option<u64> {
        None
    }
    /// The target of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }
    /// The object a "magic" link of procfs stands for: lookup goes there instead of by text.
    fn magic_link(&self) -> Option<Result<path::Location>> {
        None
    }
    /// The contents of a regular file, for reading, writing, executing and mapping.
    fn page_cache(&self) -> Option<Arc<PageCache>> {
        None
    }
    /// Whether its contents may not be changed through shared mappings any more (F_SEAL_WRITE).
    fn is_write_sealed(&self) -> bool {
        false
    }
    /// Reserves, punches or zeroes a range of a regular file (fallocate(2)).
    fn allocate(&self, _mode: u32, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// It has been read: its names, its target, what came through a FIFO. For its access time.
    fn note_read(&self) {}
    /// Something was written to a FIFO. For its time of change.
    fn note_written(&self) {}
    /// Writes what is only in memory to where it lasts (fsync(2)).
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Reads an extended attribute (xattr(7)).
    fn get_xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Writes an extended attribute; `flags` are setxattr(2)'s.
    fn set_xattr(&self, _name: &[u8], _value: &[u8], _flags: u32) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Names of all extended attributes, each with a NUL.
    fn list_xattr(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    /// Removes an extended attribute.
    fn remove_xattr(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Whether the current thread may do with it what its permission bits forbid.
    fn is_own(&self) -> bool {
        false
    }
}

impl dyn Inode {
    /// It as what one file system has, if it is that.
    #[inline]
    #[must_use]
    pub fn downcast_ref<T: Inode>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }

    /// Whether it is that.
    #[inline]
    #[must_use]
    pub fn is<T: Inode>(&self) -> bool {
        self.downcast_ref::<T>().is_some()
    }
}

/// What moves the position of a seekable file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedBy {
    /// It stays 0: of devices like /dev/null it does not matter where they are read.
    Nothing,
    /// Settings of a process are written as a whole, wherever the file stands (proc_pid_comm(5)).
    Reads,
    /// Whatever moves data.
    ReadsAndWrites,
}

/// Objects that are found again by their numbers, and the names that these were asked for by.
pub type Handles = Remembered<dyn Inode, dentry::Dentry>;

/// What is mounted.
pub trait FileSystem: Send + Sync {
    /// Its top directory.
    fn root(&self) -> Arc<dyn Inode>;
    /// Its name in /proc/mounts.
    fn name(&self) -> &'static str;
    /// statfs(2): magic number, block size, blocks, free blocks, files, free files.
    fn statistics(&self) -> Statistics;
    /// Whether names only change through this kernel, so that they may be cached (present ones and
    /// missing ones). False for procfs, whose names come and go by themselves.
    fn caches_names(&self) -> bool {
        true
    }
    /// Whether a name that is missing may be made, as far as rights go. False for procfs: there a
    /// missing name is ENOENT whatever it is looked up for.
    fn takes_names(&self) -> bool {
        true
    }
    /// Whether cached names must be asked about ([`Inode::names_version`]), because others change
    /// them.
    fn names_expire(&self) -> bool {
        false
    }
    /// Whether its regular files and directories have flags ([`flags`]).
    fn has_inode_flags(&self) -> bool {
        false
    }
    /// The handles it has given (name_to_handle_at(2)); `None`: it gives none.
    fn handles(&self) -> Option<&Handles> {
        None
    }
    /// Writes everything to where it lasts (sync(2)).
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Its own options in /proc/mounts, beginning with a comma; empty if there are none.
    fn options(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// A device number of its own for a file system that is on no device (major number 0).
pub fn anonymous_device() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    crate::base::device_number::make_device(0, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// See statfs(2).
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "statfs(2) describes each")]
pub struct Statistics {
    pub magic: u64,
    pub block_size: u64,
    pub blocks: u64,
    pub free: u64,
    pub files: u64,
    pub free_files: u64,
}

/// What an open file does. `file` is the open file description the call came through: its flags
/// (O_NONBLOCK, O_APPEND) matter. The defaults are right for files that do not have the operation.
pub trait FileOps: Send + Sync + Any {
    /// Whether O_ASYNC makes it signal (fcntl(2)).
    fn has_io_signals(&self) -> bool {
        false
    }

    /// Reads at `offset` (ignored by streams). 0 at the end. May sleep; EAGAIN with O_NONBLOCK, and
    /// `sync::WaitError::Interrupted` becomes ERESTARTSYS through `?`.
    fn read_at(&self, _file: &File, _offset: u64, _sink: &mut Sink<'_>) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// Writes at `offset` (ignored by streams).
    fn write_at(&self, _file: &File, _offset: u64, _source: &mut Source<'_>) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// Whether it can be read and written at all: read(2) and write(2) of what cannot are EINVAL.
    fn has_data(&self) -> (bool, bool) {
        (true, true)
    }
    /// Whether pwrite(2) and its like have a place to write at, if the file has a position.
    fn is_written_at_places(&self) -> bool {
        true
    }
    /// Whether the file has a position: regular files and directories. Streams give ESPIPE.
    fn is_seekable(&self) -> bool {
        false
    }
    /// What moves its position, if it has one.
    fn moved_by(&self) -> MovedBy {
        MovedBy::ReadsAndWrites
    }
    /// Whether sendfile(2) and splice(2) take data from it.
    fn gives_pieces(&self) -> bool {
        true
    }
    /// lseek(2), where positions are not bytes: the call's result. `None`: they are.
    fn seek(&self, _offset: i64, _whence: u32) -> Option<Result<u64>> {
        None
    }
    /// Whether epoll(7) takes it: what is always ready it refuses.
    fn is_pollable(&self) -> bool {
        !self.is_seekable()
    }
    /// What /proc/PID/fdinfo says of it beside what it says of every file (proc(5)).
    fn describe(&self, _out: &mut dyn core::fmt::Write) {}
    /// Registers with `table` and tells what can be done now.
    fn poll(&self, _file: &File, _table: &mut PollTable) -> u32 {
        events::READABLE | events::WRITABLE
    }
    /// ioctl(2).
    fn ioctl(&self, _file: &File, _command: u32, _argument: u64) -> Result<u64> {
        Err(Errno::ENOTTY)
    }
    /// The object behind it, for fstat and mapping. Anonymous files (pipes, sockets, epoll) make
    /// one up through `anon`.
    fn inode(&self) -> Arc<dyn Inode>;
    /// The last descriptor of this open file was closed.
    fn release(&self, _file: &File) {}
    /// A process with this table of descriptors has closed one of them. Called only once somebody
    /// wants to know ([`file::watch_closing`]).
    fn descriptor_closed(&self, _table: usize) {}
    /// Bytes of the kernel's memory that are queued behind it, for the choice of whom to kill when
    /// memory runs out. Takes no sleeping lock.
    fn held_bytes(&self) -> usize {
        0
    }
}
