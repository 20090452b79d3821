//! statmount(2) and listmount(2): what is mounted, by numbers and without text to take apart.
//! /proc/PID/mountinfo (`procfs::mounts`) tells the same.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::mounts::ATTRIBUTES;
use crate::base::args::check_flags;
use crate::base::user::{UserPtr, read_extensible};
use crate::drivers::chrdev::{major, minor};
use crate::procfs::mounts::path_in_fs;
use crate::security::Capability;
use crate::vfs::mount::{self, Mount, UNIQUE_OFFSET};
use crate::vfs::path::{Context, Location};

/// `struct mnt_id_req`.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    /// What is wanted, or the mount behind which the list goes on.
    parameter: u64,
    namespace: u64,
}

/// `struct statmount` without its strings, which follow it.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Answer {
    size: u32,
    options: u32,
    mask: u64,
    device: [u32; 2],
    magic: u64,
    fs_flags: u32,
    kind: u32,
    id: u64,
    parent: u64,
    old_id: u32,
    old_parent: u32,
    attributes: u64,
    propagation: u64,
    peer_group: u64,
    master: u64,
    propagated_from: u64,
    root: u32,
    point: u32,
    namespace: u64,
    rest: [u64; 49],
}

const _: () = assert!(size_of::<Answer>() == 512);

/// Bytes of the shortest request.
const REQUEST_MIN: u32 = 24;
const REQUEST_MAX: u32 = 4096;
/// Most mounts asked for at once.
const LIST_MAX: u64 = 1_000_000;
/// LSMT_ROOT: the caller's root in the place of a mount.
const ROOT: u64 = u64::MAX;

fn read_request(at: u64) -> Result<Request> {
    let size = UserPtr::<u32>::new(at).read()?;
    if size > REQUEST_MAX {
        return Err(Errno::E2BIG);
    }
    if size < REQUEST_MIN {
        return Err(Errno::EINVAL);
    }
    let request: Request = read_extensible(at, size.into())?;
    if request.spare != 0 || request.mount <= UNIQUE_OFFSET {
        return Err(Errno::EINVAL);
    }
    // The one namespace that there is has no number that could be asked for.
    if request.namespace != 0 { Err(Errno::ENOENT) } else { Ok(request) }
}

/// EPERM unless the caller may know of a mount that its root does not lead to.
fn check_reach(context: &Context, place: &Location) -> Result<()> {
    let may_all = || context.subject.capable(Capability::SysAdmin);
    if place.is_within(&context.root()) || may_all() { Ok(()) } else { Err(Errno::EPERM) }
}

fn find(unique_id: u64) -> Result<Arc<Mount>> {
    let found = mount::all().into_iter().find(|mount| mount.unique_id() == unique_id);
    found.ok_or(Errno::ENOENT)
}

/// statmount(2).
pub fn statmount(request: u64, to: u64, size: u64, flags: u32) -> Result<u64> {
    check_flags(flags.into(), 0)?;
    let request = read_request(request)?;
    let target = UserPtr::<u8>::new(to);
    if !target.is_user_range(size as usize) {
        return Err(Errno::EFAULT);
    }
    let mount = find(request.mount)?;
    let context = Context::current();
    check_reach(&context, &mount.top())?;
    let (mut answer, strings) = describe(&mount, &context, request.parameter as u32);
    let fixed = size_of::<Answer>();
    let copied = (size as usize).min(fixed);
    if !strings.is_empty() && (size as usize) < fixed + strings.len() {
        return Err(Errno::EOVERFLOW);
    }
    answer.size = (copied + strings.len()) as u32;
    target.byte_at(fixed).write_bytes(&strings)?;
    target.write_bytes(&answer.as_bytes()[..copied])?;
    Ok(0)
}

/// What is `wanted` of a mount (STATMOUNT_ bits), and the strings that it refers to.
fn describe(mount: &Arc<Mount>, context: &Context, wanted: u32) -> (Answer, Vec<u8>) {
    let mut answer = Answer::new_zeroed();
    let fs = mount.file_system();
    if wanted & raw::STATMOUNT_SB_BASIC != 0 {
        let device = mount.root().inode().metadata().map_or(0, |metadata| metadata.device);
        answer.device = [major(device), minor(device)];
        answer.magic = fs.statistics().magic;
        answer.fs_flags = mount.flags() & raw::MS_RDONLY;
        answer.mask |= u64::from(raw::STATMOUNT_SB_BASIC);
    }
    if wanted & raw::STATMOUNT_MNT_BASIC != 0 {
        let parent = mount.place().map_or_else(|| mount.clone(), |place| place.mount);
        (answer.id, answer.parent) = (mount.unique_id(), parent.unique_id());
        (answer.old_id, answer.old_parent) = (mount.id() as u32, parent.id() as u32);
        answer.attributes = attributes(mount.flags());
        answer.propagation = raw::MS_PRIVATE.into();
        answer.mask |= u64::from(raw::STATMOUNT_MNT_BASIC);
    }
    if wanted & raw::STATMOUNT_PROPAGATE_FROM != 0 {
        answer.mask |= u64::from(raw::STATMOUNT_PROPAGATE_FROM);
    }
    let mut strings = Vec::new();
    let mut put = |bit: u32, text: &dyn Fn() -> Vec<u8>| {
        let at = strings.len() as u32;
        let text = if wanted & bit != 0 { text() } else { Vec::new() };
        if !text.is_empty() {
            strings.extend_from_slice(&text);
            strings.push(0);
            answer.mask |= u64::from(bit);
        }
        at
    };
    answer.kind = put(raw::STATMOUNT_FS_TYPE, &|| fs.name().into());
    answer.root = put(raw::STATMOUNT_MNT_ROOT, &|| path_in_fs(mount));
    answer.point = put(raw::STATMOUNT_MNT_POINT, &|| mount.top().path(&context.root()));
    answer.options = put(raw::STATMOUNT_MNT_OPTS, &|| {
        let options = fs.options();
        options.strip_prefix(b",").unwrap_or(&options).to_vec()
    });
    (answer, strings)
}

/// MOUNT_ATTR_ bits for flags of mount(2).
fn attributes(flags: u32) -> u64 {
    let known = ATTRIBUTES.iter().filter(|(_, flag)| flags & flag != 0);
    let times = match flags {
        _ if flags & raw::MS_NOATIME != 0 => raw::MOUNT_ATTR_NOATIME,
        _ if flags & raw::MS_RELATIME != 0 => raw::MOUNT_ATTR_RELATIME,
        _ => raw::MOUNT_ATTR_STRICTATIME,
    };
    known.fold(times, |all, (bit, _)| all | bit).into()
}

/// listmount(2): the mounts below one, in the order in which they were made.
pub fn listmount(request: u64, to: UserPtr<u64>, count: u64, flags: u32) -> Result<u64> {
    let reverse = check_flags(flags.into(), raw::LISTMOUNT_REVERSE)? != 0;
    if count > LIST_MAX {
        return Err(Errno::EOVERFLOW);
    }
    if !UserPtr::<u8>::new(to.address()).is_user_range(count as usize * size_of::<u64>()) {
        return Err(Errno::EFAULT);
    }
    let request = read_request(request)?;
    let last = request.parameter;
    if last != 0 && last <= UNIQUE_OFFSET {
        return Err(Errno::EINVAL);
    }
    let context = Context::current();
    let top = match request.mount {
        ROOT => context.root().clone(),
        id => find(id)?.top(),
    };
    check_reach(&context, &top)?;
    let mut all = mount::all();
    if reverse {
        all.reverse();
    }
    let is_next = |id: u64| match (last, reverse) {
        (0, _) => true,
        (last, false) => id > last,
        (last, true) => id < last,
    };
    let ids = all.iter().filter(|mount| {
        let id = mount.unique_id();
        id != request.mount && is_next(id) && mount.top().is_within(&top)
    });
    let ids: Vec<u64> = ids.map(|mount| mount.unique_id()).take(count as usize).collect();
    to.write_many(&ids)?;
    Ok(ids.len() as u64)
}
