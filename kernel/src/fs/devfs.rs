//! /dev: device nodes in a tmpfs, and the devices that are only arithmetic (null(4), zero(4),
//! full(4), random(4)).
//!
//! Terminals are elsewhere: `boot` names their devices to [`crate::drivers::chrdev`], and the
//! nodes made here (tty, console, ptmx, hvcN) lead to them. Numbers are those of Linux's list of
//! devices.

use alloc::sync::Arc;

use abi::{Errno, Result};

use super::tmpfs::{Limits, TmpFs};
use crate::base::io::{Sink, Source};
use crate::base::random;
use crate::drivers::chrdev::{self, CharDevices, CharDriver, make_device};
use crate::vfs::{File, FileOps, FileSystem, FileType, Inode, MovedBy, NewObject};

/// Major number of the devices of this file.
const MEMORY_MAJOR: u32 = 1;
/// Bytes made at once.
const CHUNK: usize = 1024;

/// Name, major, minor, permission bits of each node.
const NODES: &[(&[u8], u32, u32, u32)] = &[
    (b"null", MEMORY_MAJOR, 3, 0o666),
    (b"zero", MEMORY_MAJOR, 5, 0o666),
    (b"full", MEMORY_MAJOR, 7, 0o666),
    (b"random", MEMORY_MAJOR, 8, 0o666),
    (b"urandom", MEMORY_MAJOR, 9, 0o666),
    (b"kmsg", MEMORY_MAJOR, 11, 0o644),
    (b"tty", 5, 0, 0o666),
    (b"console", 5, 1, 0o600),
    (b"ptmx", 5, 2, 0o666),
    (b"hvc0", 229, 0, 0o600),
    (b"hvc1", 229, 1, 0o600),
    (b"hvc2", 229, 2, 0o600),
    (b"hvc3", 229, 3, 0o600),
    (b"kvm", 10, 232, 0o666),
];

const LINKS: &[(&[u8], &[u8])] = &[
    (b"fd", b"/proc/self/fd"),
    (b"stdin", b"/proc/self/fd/0"),
    (b"stdout", b"/proc/self/fd/1"),
    (b"stderr", b"/proc/self/fd/2"),
];

/// Name and permission bits of each directory.
const DIRECTORIES: &[(&[u8], u32)] = &[(b"pts", 0o755), (b"shm", 0o1777)];

/// The devices of this file.
pub const DEVICES: &[CharDevices] =
    &[CharDevices { major: MEMORY_MAJOR, first: 0, count: 256, driver: &Driver }];

/// A file system for /dev with all nodes.
pub fn new() -> Result<Arc<TmpFs>> {
    let fs = TmpFs::new("devtmpfs", 0o755, Limits::default());
    let root = fs.root();
    let plain = NewObject {
        file_type: FileType::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
    };
    for &(name, major, minor, mode) in NODES {
        let rdev = make_device(major, minor);
        root.create(name, &NewObject { file_type: FileType::CharDevice, mode, rdev, ..plain })?;
    }
    for &(name, target) in LINKS {
        let file_type = FileType::Symlink;
        root.create(name, &NewObject { file_type, mode: 0o777, target, ..plain })?;
    }
    for &(name, mode) in DIRECTORIES {
        root.create(name, &NewObject { mode, ..plain })?;
    }
    Ok(fs)
}

struct Driver;

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemDevice {
    Null,
    Zero,
    Full,
    Random,
}

impl CharDriver for Driver {
    fn open(&self, node: Arc<dyn Inode>, rdev: u64, _flags: u32) -> Result<Arc<dyn FileOps>> {
        let kind = match chrdev::minor(rdev) {
            3 => MemDevice::Null,
            5 => MemDevice::Zero,
            7 => MemDevice::Full,
            8 | 9 => MemDevice::Random,
            11 => return Ok(crate::drivers::kmsg::open(node)),
            _ => return Err(Errno::ENXIO),
        };
        Ok(Arc::new(Device { kind, node }))
    }
}

struct Device {
    kind: MemDevice,
    node: Arc<dyn Inode>,
}

/// Runs `step` with what is left until it is nothing or `step` makes no progress. An error after
/// progress is progress.
fn in_chunks(mut left: usize, mut step: impl FnMut(usize) -> Result<usize>) -> Result<usize> {
    let mut done = 0;
    while left > 0 {
        let len = left.min(CHUNK);
        match step(len) {
            Ok(0) => break,
            Ok(moved) => {
                done += moved;
                left -= moved;
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        if left > 0 {
            if crate::base::sched::current().has_pending_signal() {
                break;
            }
            crate::base::sched::yield_if_needed();
        }
    }
    Ok(done)
}

impl FileOps for Device {
    fn read_at(&self, _file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        match self.kind {
            MemDevice::Null => Ok(0),
            MemDevice::Zero | MemDevice::Full => {
                in_chunks(sink.left(), |_| sink.put_zeros(sink.left().min(64 * CHUNK)))
            }
            MemDevice::Random => {
                let mut bytes = [0; CHUNK];
                in_chunks(sink.left(), |len| {
                    random::fill(&mut bytes[..len]);
                    sink.put(&bytes[..len])
                })
            }
        }
    }

    fn write_at(&self, _file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        match self.kind {
            MemDevice::Null | MemDevice::Zero => Ok(source.skip(source.left())),
            MemDevice::Full => Err(Errno::ENOSPC),
            MemDevice::Random => {
                let mut bytes = [0; CHUNK];
                in_chunks(source.left(), |len| {
                    let taken = source.take(&mut bytes[..len])?;
                    machine::entropy::add(&bytes[..taken]);
                    Ok(taken)
                })
            }
        }
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn moved_by(&self) -> MovedBy {
        MovedBy::Nothing
    }

    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        if self.kind == MemDevice::Random && command == raw_ioctl::RNDGETENTCNT {
            crate::base::user::UserPtr::<u32>::new(argument).write(&256)?;
            return Ok(0);
        }
        Err(Errno::ENOTTY)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.node.clone()
    }
}

/// random(4): bits of entropy at hand. The generator is always full.
mod raw_ioctl {
    pub(super) const RNDGETENTCNT: u32 = 0x8004_5200;
}

/// Whether a file is /dev/null, of which there is nothing to splice.
pub fn is_null(file: &File) -> bool {
    file.ops_as::<Device>().is_some_and(|device| device.kind == MemDevice::Null)
}

/// Whether a file is one of those devices that take and give at once (RWF_NOWAIT).
pub fn never_waits(file: &File) -> bool {
    file.ops_as::<Device>().is_some_and(|device| device.kind != MemDevice::Full)
}

/// Whether a file is /dev/zero, which mmap(2) treats as anonymous memory.
pub fn is_zero(file: &File) -> bool {
    file.ops_as::<Device>().is_some_and(|device| device.kind == MemDevice::Zero)
}
