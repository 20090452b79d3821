//! The file system that the guest sees: each request of FUSE answered from the shared folder.
//!
//! Why it is hard: the guest may ask for anything in any order, and the host changes meanwhile.
//! Numbers are only claims until `nodes.rs` knows them; what they name is found anew for each
//! request and compared (`host.rs`); what would change something is refused here, before anything
//! is looked at, and could not be done anyway, since nothing is ever opened for writing.
//!
//! | Request | What happens on the host |
//! |---|---|
//! | LOOKUP, GETATTR | openat2 of the folder or the object, statx, close |
//! | READDIRPLUS | the folder opened once for several requests, getdents64, a statx for each name |
//! | OPEN | opened for reading, as the caller: a refusal comes here |
//! | READ | preadv into the guest's memory |
//! | anything that changes | nothing: EROFS |
//!
//! Locks: `nodes`, `numbers`, `files` and `readings` are held for look-ups in a table, never across
//! a call of the host that may wait, and never two at a time.
//!
//! Reading order: [`Served`], its own methods, then the trait. Neighbours: `device.rs` brings the
//! requests, `fuse_backend_rs` decodes them.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuse_backend_rs::abi::fuse_abi::{CreateIn, FsOptions, OpenOptions, SetattrValid};
use fuse_backend_rs::abi::fuse_abi::{stat64, statvfs64};
use fuse_backend_rs::api::filesystem::{
    Context, DirEntry, Entry, FileSystem, GetxattrReply, ListxattrReply, ZeroCopyReader,
    ZeroCopyWriter,
};
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::ALWAYS;
use super::host::{self, Held, Known};
use super::nodes::{NODES_MAX, Nodes, Object};
use super::numbers::{self, Numbers};
use super::open::{Files, Reading, Readings};

/// Bytes of names that are read from a folder at once.
const NAMES_BYTES: usize = 32 << 10;
/// Longest target of a link (PATH_MAX).
const LINK_MAX: usize = 4096;
/// Largest value, and largest list of names, of extended attributes (XATTR_SIZE_MAX,
/// XATTR_LIST_MAX).
const XATTR_MAX: usize = 64 << 10;

/// Access modes of open(2), and its flags that change the file.
const ACCESS_MODE: u32 = 3;
const CHANGING: u32 = OFlags::TRUNC.bits() | OFlags::CREATE.bits();

/// A folder as a file system.
#[derive(Debug)]
pub(super) struct Served {
    root: OwnedFd,
    valid: Duration,
    nodes: Mutex<Nodes>,
    numbers: Mutex<Numbers>,
    files: Mutex<Files>,
    readings: Mutex<Readings>,
}

/// What is told of one name in a folder.
struct Named<'a> {
    name: &'a [u8],
    /// The position behind it.
    position: u64,
    /// What getdents64(2) says of it.
    ino: u64,
    kind: u32,
}

impl Served {
    /// # Errors
    /// If the folder is none, or the host's kernel lacks openat2(2) (before Linux 5.6).
    pub(super) fn new(folder: &Path, valid: Duration) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(folder, flags, Mode::empty())?;
        let known = host::look(host::hold(root.as_fd(), b"")?.as_fd(), b"")?;
        Ok(Self {
            root,
            valid,
            nodes: Mutex::new(Nodes::new(known.object(), NODES_MAX)),
            numbers: Mutex::new(Numbers::new(known.object().device)),
            files: Mutex::default(),
            readings: Mutex::default(),
        })
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    #[cfg(test)]
    pub(super) fn nodes_len(&self) -> usize {
        lock(&self.nodes).len()
    }

    /// What a node is now.
    fn find(&self, node: u64) -> Result<Held, Errno> {
        let place = lock(&self.nodes).place(node)?;
        host::find(self.root.as_fd(), &place)
    }

    /// The same, of something whose content may be seen.
    fn find_open(&self, node: u64) -> Result<Held, Errno> {
        let held = self.find(node)?;
        match self.is_concealed(&held.known.object(), || held.fd.try_clone())? {
            true => Err(Errno::ACCESS),
            false => Ok(held),
        }
    }

    /// Whether an object's device is one that is not shared; `hold` gives a descriptor of it.
    fn is_concealed(
        &self,
        object: &Object,
        hold: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> Result<bool, Errno> {
        if let Some(known) = lock(&self.numbers).known(object.device) {
            return Ok(known);
        }
        let held = hold().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let is_concealed = numbers::is_concealed(&rustix::fs::fstatfs(&held)?);
        // Between the two looks another device may have been mounted there.
        if host::look(held.as_fd(), b"")?.object().device == object.device {
            lock(&self.numbers).learn(object.device, is_concealed);
        }
        Ok(is_concealed)
    }

    fn attributes(&self, known: &Known) -> Result<stat64, Errno> {
        let ino = lock(&self.numbers).guests(&known.object())?;
        Ok(known.attributes(ino))
    }

    /// Counts a lookup of what is in a folder under a name, and tells what it is.
    fn enter(&self, parent: u64, name: &[u8], known: &Known) -> Result<Entry, Errno> {
        let attr = self.attributes(known)?;
        let inode = lock(&self.nodes).look_up(parent, name, known.object())?;
        Ok(Entry {
            inode,
            attr,
            attr_timeout: self.valid,
            entry_timeout: self.valid,
            ..Entry::default()
        })
    }

    /// Reads a folder from a position on, until `take` says that it has enough.
    fn read_folder(
        &self,
        node: u64,
        position: u64,
        take: &mut dyn FnMut(BorrowedFd<'_>, &Named<'_>) -> io::Result<bool>,
    ) -> io::Result<()> {
        let reading = lock(&self.readings).take(node, position);
        if reading.as_ref().is_some_and(|reading| reading.folder.is_none()) {
            return Ok(());
        }
        // Where it lies now counts, also for a folder that was opened before.
        let held = self.find_open(node)?;
        if held.known.kind() != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let folder = match reading.and_then(|reading| reading.folder) {
            Some(folder) => folder,
            None => {
                let folder = host::open(&held)?;
                if position != 0 {
                    rustix::fs::seek(&folder, SeekFrom::Start(position))?;
                }
                folder
            }
        };
        let (position, is_whole) = read_names(&folder, position, take)?;
        let folder = if is_whole {
            None
        } else {
            // The host has read further than the guest.
            rustix::fs::seek(&folder, SeekFrom::Start(position))?;
            Some(folder)
        };
        drop(lock(&self.readings).keep(Reading { node, position, folder }));
        Ok(())
    }

    /// What is told with a name: everything, if it can be had.
    fn entry_of(
        &self,
        node: u64,
        folder: BorrowedFd<'_>,
        named: &Named<'_>,
    ) -> io::Result<Option<Entry>> {
        if is_dot(named.name) {
            return Ok(Some(Entry::default()));
        }
        let known = match host::look(folder, named.name) {
            Ok(known) => known,
            // Gone since its name was read.
            Err(Errno::NOENT) => return Ok(None),
            // The name is known and nothing else: the guest asks when it needs more.
            Err(_) => return Ok(Some(Entry::default())),
        };
        Ok(Some(self.enter(node, named.name, &known).unwrap_or_default()))
    }

    /// The guest's number of what `.` and `..` are.
    fn number_of_dot(&self, node: u64, name: &[u8]) -> u64 {
        let place = {
            let nodes = lock(&self.nodes);
            let of = if name == b".." { nodes.parent(node).unwrap_or(node) } else { node };
            nodes.place(of)
        };
        let object = place.map(|place| place.object);
        object.and_then(|object| lock(&self.numbers).guests(&object)).unwrap_or(node)
    }
}

/// Reads names until `take` has enough. Gives the position behind the last that was taken, and
/// whether that was the end.
fn read_names(
    folder: &OwnedFd,
    from: u64,
    take: &mut dyn FnMut(BorrowedFd<'_>, &Named<'_>) -> io::Result<bool>,
) -> io::Result<(u64, bool)> {
    let mut position = from;
    let mut buffer = vec![MaybeUninit::uninit(); NAMES_BYTES];
    let mut names = RawDir::new(folder, &mut buffer);
    while let Some(entry) = names.next() {
        let entry = entry?;
        let named = Named {
            name: entry.file_name().to_bytes(),
            position: entry.next_entry_cookie(),
            ino: entry.ino(),
            kind: entry.file_type().as_raw_mode() >> 12,
        };
        if !take(folder.as_fd(), &named)? {
            return Ok((position, false));
        }
        position = named.position;
    }
    Ok((position, true))
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_only<T>() -> io::Result<T> {
    Err(Errno::ROFS.into())
}

/// Gives `statvfs64` a value: the type has fields that are not public.
struct Blank;

impl FileSystem for Blank {
    type Inode = u64;
    type Handle = u64;
}

impl FileSystem for Served {
    type Inode = u64;
    type Handle = u64;

    fn init(&self, capable: FsOptions) -> io::Result<FsOptions> {
        self.destroy();
        let wanted = FsOptions::ASYNC_READ
            | FsOptions::PARALLEL_DIROPS
            | FsOptions::BIG_WRITES
            | FsOptions::MAX_PAGES
            | FsOptions::DO_READDIRPLUS
            | FsOptions::AUTO_INVAL_DATA
            | FsOptions::CACHE_SYMLINKS
            // Folders are read without being opened.
            | FsOptions::ZERO_MESSAGE_OPENDIR;
        Ok(wanted & capable)
    }

    fn destroy(&self) {
        lock(&self.nodes).forget_all();
        lock(&self.files).clear();
        lock(&self.readings).clear();
    }

    fn lookup(&self, _: &Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        let name = name.to_bytes();
        host::check_name(name)?;
        let folder = self.find(parent)?;
        let found = match self.is_concealed(&folder.known.object(), || folder.fd.try_clone())? {
            true => Err(Errno::NOENT),
            false => host::look(folder.fd.as_fd(), name),
        };
        match found {
            Ok(known) => Ok(self.enter(parent, name, &known)?),
            // That there is nothing may be believed as long as what there is.
            Err(Errno::NOENT) if !self.valid.is_zero() => {
                Ok(Entry { entry_timeout: self.valid, ..Entry::default() })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn forget(&self, _: &Context, inode: u64, count: u64) {
        lock(&self.nodes).forget(inode, count);
    }

    fn getattr(
        &self,
        _: &Context,
        inode: u64,
        handle: Option<u64>,
    ) -> io::Result<(stat64, Duration)> {
        let file = handle.map(|handle| lock(&self.files).get(handle)).transpose()?;
        let known = match file {
            // Also of a file that has no name any more.
            Some(file) => host::look(file.as_fd(), b"")?,
            None => self.find(inode)?.known,
        };
        Ok((self.attributes(&known)?, self.valid))
    }

    fn readlink(&self, _: &Context, inode: u64) -> io::Result<Vec<u8>> {
        let held = self.find_open(inode)?;
        let target = rustix::fs::readlinkat(&held.fd, "", Vec::with_capacity(LINK_MAX))?;
        Ok(target.into_bytes())
    }

    fn open(
        &self,
        _: &Context,
        inode: u64,
        flags: u32,
        _: u32,
    ) -> io::Result<(Option<u64>, OpenOptions, Option<u32>)> {
        if flags & ACCESS_MODE != 0 || flags & CHANGING != 0 {
            return read_only();
        }
        let held = self.find_open(inode)?;
        if held.known.kind() == FileType::Directory {
            return Err(Errno::ISDIR.into());
        }
        let file = host::open(&held)?;
        let is_unchanged = lock(&self.nodes).is_unchanged(inode, held.known.stamp());
        let handle = lock(&self.files).add(file)?;
        let options = match is_unchanged || self.valid == ALWAYS {
            true => OpenOptions::KEEP_CACHE,
            false => OpenOptions::empty(),
        };
        Ok((Some(handle), options, None))
    }

    fn read(
        &self,
        _: &Context,
        _: u64,
        handle: u64,
        w: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        _: Option<u64>,
        _: u32,
    ) -> io::Result<usize> {
        let file = lock(&self.files).get(handle)?;
        let size = w.available_bytes().min(size as usize);
        // Whoever reads has the file for itself, and several read at the same time.
        w.write_from(&mut file.try_clone()?, size, offset)
    }

    fn release(
        &self,
        _: &Context,
        _: u64,
        _: u32,
        handle: u64,
        _: bool,
        _: bool,
        _: Option<u64>,
    ) -> io::Result<()> {
        let file = lock(&self.files).remove(handle);
        file.map(drop).ok_or_else(|| Errno::BADF.into())
    }

    fn opendir(&self, _: &Context, _: u64, _: u32) -> io::Result<(Option<u64>, OpenOptions)> {
        Err(Errno::NOSYS.into())
    }

    fn releasedir(&self, _: &Context, _: u64, _: u32, _: u64) -> io::Result<()> {
        Err(Errno::NOSYS.into())
    }

    fn readdir(
        &self,
        _: &Context,
        inode: u64,
        _: u64,
        _: u32,
        offset: u64,
        add_entry: &mut dyn FnMut(DirEntry<'_>) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut count = 0;
        self.read_folder(inode, offset, &mut |folder, named| {
            let known = || host::look(folder, named.name).and_then(|known| self.attributes(&known));
            let ino = match is_dot(named.name) {
                true => self.number_of_dot(inode, named.name),
                false => known().map_or(named.ino, |attr| attr.st_ino),
            };
            let fits = add_entry(entry_in_folder(named, ino, named.kind))? > 0;
            count += usize::from(fits);
            fits_or_too_small(fits, count)
        })
    }

    fn readdirplus(
        &self,
        ctx: &Context,
        inode: u64,
        _: u64,
        _: u32,
        offset: u64,
        add_entry: &mut dyn FnMut(DirEntry<'_>, Entry) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut count = 0;
        self.read_folder(inode, offset, &mut |folder, named| {
            let Some(entry) = self.entry_of(inode, folder, named)? else {
                return Ok(true);
            };
            let (ino, kind) = match entry.inode {
                0 if is_dot(named.name) => (self.number_of_dot(inode, named.name), named.kind),
                0 => (named.ino, named.kind),
                _ => (entry.attr.st_ino, entry.attr.st_mode >> 12),
            };
            let fits = add_entry(entry_in_folder(named, ino, kind), entry)? > 0;
            if !fits && entry.inode != 0 {
                // It was not told, so it was not looked up.
                self.forget(ctx, entry.inode, 1);
            }
            count += usize::from(fits);
            fits_or_too_small(fits, count)
        })
    }

    fn statfs(&self, ctx: &Context, inode: u64) -> io::Result<statvfs64> {
        let known = rustix::fs::fstatvfs(&self.find(inode)?.fd)?;
        let mut told = Blank.statfs(ctx, inode)?;
        told.f_bsize = known.f_bsize;
        told.f_frsize = known.f_frsize;
        told.f_blocks = known.f_blocks;
        told.f_bfree = known.f_bfree;
        told.f_bavail = known.f_bavail;
        told.f_files = known.f_files;
        told.f_ffree = known.f_ffree;
        told.f_favail = known.f_favail;
        told.f_namemax = known.f_namemax;
        Ok(told)
    }

    fn getxattr(
        &self,
        _: &Context,
        inode: u64,
        name: &CStr,
        size: u32,
    ) -> io::Result<GetxattrReply> {
        let held = self.find_open(inode)?;
        let mut value = Vec::with_capacity(XATTR_MAX);
        let path = host::of_descriptor(&held.fd);
        rustix::fs::getxattr(&path, name, rustix::buffer::spare_capacity(&mut value))?;
        Ok(match fitting(value, size)? {
            Fitting::Count(count) => GetxattrReply::Count(count),
            Fitting::Bytes(bytes) => GetxattrReply::Value(bytes),
        })
    }

    fn listxattr(&self, _: &Context, inode: u64, size: u32) -> io::Result<ListxattrReply> {
        let held = self.find_open(inode)?;
        let mut names = Vec::with_capacity(XATTR_MAX);
        let path = host::of_descriptor(&held.fd);
        rustix::fs::listxattr(&path, rustix::buffer::spare_capacity(&mut names))?;
        Ok(match fitting(names, size)? {
            Fitting::Count(count) => ListxattrReply::Count(count),
            Fitting::Bytes(bytes) => ListxattrReply::Names(bytes),
        })
    }

    fn setattr(
        &self,
        _: &Context,
        _: u64,
        _: stat64,
        _: Option<u64>,
        _: SetattrValid,
    ) -> io::Result<(stat64, Duration)> {
        read_only()
    }

    fn symlink(&self, _: &Context, _: &CStr, _: u64, _: &CStr) -> io::Result<Entry> {
        read_only()
    }

    fn mknod(&self, _: &Context, _: u64, _: &CStr, _: u32, _: u32, _: u32) -> io::Result<Entry> {
        read_only()
    }

    fn mkdir(&self, _: &Context, _: u64, _: &CStr, _: u32, _: u32) -> io::Result<Entry> {
        read_only()
    }

    fn unlink(&self, _: &Context, _: u64, _: &CStr) -> io::Result<()> {
        read_only()
    }

    fn rmdir(&self, _: &Context, _: u64, _: &CStr) -> io::Result<()> {
        read_only()
    }

    fn rename(&self, _: &Context, _: u64, _: &CStr, _: u64, _: &CStr, _: u32) -> io::Result<()> {
        read_only()
    }

    fn link(&self, _: &Context, _: u64, _: u64, _: &CStr) -> io::Result<Entry> {
        read_only()
    }

    fn create(
        &self,
        _: &Context,
        _: u64,
        _: &CStr,
        _: CreateIn,
    ) -> io::Result<(Entry, Option<u64>, OpenOptions, Option<u32>)> {
        read_only()
    }

    fn write(
        &self,
        _: &Context,
        _: u64,
        _: u64,
        _: &mut dyn ZeroCopyReader,
        _: u32,
        _: u64,
        _: Option<u64>,
        _: bool,
        _: u32,
        _: u32,
    ) -> io::Result<usize> {
        read_only()
    }

    fn fallocate(&self, _: &Context, _: u64, _: u64, _: u32, _: u64, _: u64) -> io::Result<()> {
        read_only()
    }

    fn setxattr(&self, _: &Context, _: u64, _: &CStr, _: &[u8], _: u32) -> io::Result<()> {
        read_only()
    }

    fn removexattr(&self, _: &Context, _: u64, _: &CStr) -> io::Result<()> {
        read_only()
    }
}

fn entry_in_folder<'a>(named: &Named<'a>, ino: u64, kind: u32) -> DirEntry<'a> {
    DirEntry { ino, offset: named.position, type_: kind, name: named.name }
}

/// Whether reading goes on behind an entry. An answer without any entry would mean the end.
fn fits_or_too_small(fits: bool, count: usize) -> io::Result<bool> {
    match fits || count > 0 {
        true => Ok(fits),
        false => Err(Errno::INVAL.into()),
    }
}

enum Fitting {
    Count(u32),
    Bytes(Vec<u8>),
}

/// What is answered to a request that has room for `size` bytes, or asks for their number with 0.
fn fitting(bytes: Vec<u8>, size: u32) -> io::Result<Fitting> {
    match size as usize {
        0 => Ok(Fitting::Count(bytes.len() as u32)),
        size if size < bytes.len() => Err(Errno::RANGE.into()),
        _ => Ok(Fitting::Bytes(bytes)),
    }
}
