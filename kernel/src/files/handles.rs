//! File handles: name_to_handle_at(2), open_by_handle_at(2).
//!
//! Neighbour: a file system has a table of those that it has given (`vfs::Handles`).

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{PathName, any_file, check_flags, walk_flags};
use crate::base::user::UserPtr;
use crate::process::{current, give_file};
use crate::security::Capability;
use crate::vfs::dentry::Dentry;
use crate::vfs::open::{open_known, taken_flags};
use crate::vfs::path::{Context, Location, resolve};

/// `struct file_handle` before its bytes.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Header {
    bytes: u32,
    kind: i32,
}

/// The bytes of a handle: the file system's device number, and the object's, which nothing there
/// had before it and nothing has after.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Handle {
    device: u32,
    number: [u32; 2],
}

/// Most bytes of a handle (MAX_HANDLE_SZ).
const BYTES_MAX: u32 = 128;
const BYTES: u32 = size_of::<Handle>() as u32;
/// What a handle is: one to open by, one that only tells objects apart, none.
const TO_OPEN: i32 = 1;
const TO_COMPARE: i32 = 0x81;
const NONE: i32 = 0xff;

/// name_to_handle_at(2).
pub fn name_to_handle_at(
    dirfd: u64,
    path: u64,
    handle: u64,
    mount_id: u64,
    flags: u64,
) -> Result<u64> {
    let walks = raw::AT_SYMLINK_FOLLOW | raw::AT_EMPTY_PATH;
    let flags = check_flags(flags, walks | raw::AT_HANDLE_FID | raw::AT_HANDLE_MNT_ID_UNIQUE)?;
    let path = PathName::read(path)?;
    let context = Context::current();
    let location = resolve(&context, dirfd as i32, path.bytes(), walk_flags(flags, false))?;
    let handles = location.mount.file_system().handles();
    if handles.is_none() && flags & raw::AT_HANDLE_FID == 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let room = UserPtr::<Header>::new(handle).read()?.bytes;
    if room > BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    let metadata = location.inode().metadata()?;
    let number = metadata.inode;
    let kind = match handles {
        _ if room < BYTES => NONE,
        Some(handles) => {
            handles.remember(number, location.inode(), &location.dentry)?;
            TO_OPEN
        }
        None => TO_COMPARE,
    };
    match flags & raw::AT_HANDLE_MNT_ID_UNIQUE {
        0 => UserPtr::<i32>::new(mount_id).write(&(location.mount.id() as i32))?,
        _ => UserPtr::<u64>::new(mount_id).write(&location.mount.unique_id())?,
    }
    UserPtr::<Header>::new(handle).write(&Header { bytes: BYTES, kind })?;
    if kind == NONE {
        return Err(Errno::EOVERFLOW);
    }
    let number = [number as u32, (number >> 32) as u32];
    let at = handle.wrapping_add(size_of::<Header>() as u64);
    UserPtr::<Handle>::new(at).write(&Handle { device: metadata.device as u32, number })?;
    Ok(0)
}

/// open_by_handle_at(2).
pub fn open_by_handle_at(mount: i32, handle: u64, flags: u32) -> Result<u64> {
    let context = Context::current();
    let mount = match mount {
        raw::AT_FDCWD => context.cwd().mount,
        fd => {
            let file = any_file(fd as u64)?;
            // A pipe or a socket is in no file system with handles.
            file.location.as_ref().ok_or(Errno::ESTALE)?.mount.clone()
        }
    };
    if !current().subject().capable(Capability::DacReadSearch) {
        return Err(Errno::EPERM);
    }
    let Header { bytes, kind } = UserPtr::<Header>::new(handle).read()?;
    if bytes == 0 || bytes > BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    let handles = mount.file_system().handles().ok_or(Errno::ESTALE)?;
    let at = handle.wrapping_add(size_of::<Header>() as u64);
    let rest = UserPtr::<u8>::new(at).read_many(bytes as usize)?;
    let (found, _) = Handle::read_from_prefix(&rest).map_err(|_| Errno::ESTALE)?;
    let device = mount.file_system().root().metadata()?.device as u32;
    if kind != TO_OPEN || found.device != device {
        return Err(Errno::ESTALE);
    }
    let number = u64::from(found.number[0]) | u64::from(found.number[1]) << 32;
    let (inode, dentry) = handles.find(number).ok_or(Errno::ESTALE)?;
    // Without the name it had the object is found all the same.
    let dentry = dentry.filter(|dentry| !dentry.is_unlinked());
    let dentry = dentry.unwrap_or_else(|| Dentry::detached(inode, b"/"));
    let location = Location::new(mount, dentry);
    let flags = taken_flags(flags & !raw::O_CREAT);
    let file = open_known(&context, location, flags)?;
    give_file(file, flags & raw::O_CLOEXEC != 0)
}
