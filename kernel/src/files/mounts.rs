//! Mounts: mount(2), umount2(2), pivot_root(2), mount_setattr(2).

use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use machine::frame::PAGE_SIZE;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{CWD, resolve_at};
use crate::base::args::translate;
use crate::base::user::{PATH_MAX, UserPtr, read_c_string, read_extensible};
use crate::process::all_processes;
use crate::process::current;
use crate::security::Capability;
use crate::vfs::path::Location;
use crate::vfs::{hooks, mount};

/// The upper half of the flags of very old programs (mount(2)).
const MAGIC: u32 = 0xc0ed_0000;
const MAGIC_MASK: u32 = 0xffff_0000;
const PROPAGATION: u32 = raw::MS_SHARED | raw::MS_PRIVATE | raw::MS_SLAVE | raw::MS_UNBINDABLE;

pub(super) fn check_admin() -> Result<()> {
    let who = current().subject();
    if who.capable(Capability::SysAdmin) { Ok(()) } else { Err(Errno::EPERM) }
}

/// mount(2).
pub fn mount(source: u64, target: u64, kind: u64, flags: u32, options: u64) -> Result<u64> {
    // What is given as text is read before anything is asked.
    let text = Texts::read(source, kind, options)?;
    let place = place_of(target)?;
    check_admin()?;
    hooks::sb_mount((&current().subject(),))?;
    let mut flags = flags;
    if flags & MAGIC_MASK == MAGIC {
        flags &= !MAGIC_MASK;
    }
    if flags & raw::MS_REMOUNT != 0 {
        hooks::sb_remount((&place, flags))?;
        mount::remount(&place, flags)?;
    } else if flags & raw::MS_BIND != 0 {
        let from = place_of(source)?;
        mount::bind(&from, &place, flags & raw::MS_REC != 0)?;
    } else if flags & PROPAGATION != 0 {
        // One namespace: there is nobody to propagate to.
        if !place.is_mount_top() {
            return Err(Errno::EINVAL);
        }
    } else if flags & raw::MS_MOVE != 0 {
        mount::move_mount(&place_of(source)?, &place)?;
    } else {
        new_mount(text, &place, flags)?;
    }
    Ok(0)
}

/// What mount(2) is given as text; what is NULL is not there.
struct Texts {
    kind: Option<Vec<u8>>,
    source: Vec<u8>,
    options: Vec<u8>,
}

impl Texts {
    /// EFAULT, EINVAL for a name that is too long.
    fn read(source: u64, kind: u64, options: u64) -> Result<Texts> {
        let text = |address: u64, limit| {
            let at = UserPtr::<u8>::new(address).non_null();
            at.map(|at| read_c_string(at.address(), limit, Errno::EINVAL)).transpose()
        };
        Ok(Texts {
            kind: text(kind, PATH_MAX)?,
            source: text(source, PATH_MAX)?.unwrap_or_default(),
            options: text(options, PATH_MAX)?.unwrap_or_default(),
        })
    }
}

/// EINVAL without a kind of file system, ENODEV for one that is not there.
fn new_mount(text: Texts, place: &Location, flags: u32) -> Result<()> {
    let Texts { kind, source, options } = text;
    let kind = kind.ok_or(Errno::EINVAL)?;
    hooks::sb_alloc_security((&kind,))?;
    let fs = mount::make_file_system(&kind, &source, &options)?;
    let source = if source.is_empty() { b"none".as_slice() } else { &source };
    let access =
        if flags & (raw::MS_NOATIME | raw::MS_STRICTATIME) == 0 { raw::MS_RELATIME } else { 0 };
    hooks::sb_kern_mount((place,))?;
    mount::mount(fs, place, flags | access, source)?;
    Ok(())
}

fn place_of(path: u64) -> Result<Location> {
    Ok(resolve_at(CWD, path, 0, true)?.1)
}

/// umount2(2).
pub fn umount2(target: u64, flags: u64) -> Result<u64> {
    let known = raw::MNT_FORCE | raw::MNT_DETACH | raw::MNT_EXPIRE | raw::UMOUNT_NOFOLLOW;
    let flags = super::check_flags(flags, known)?;
    let others = raw::MNT_FORCE | raw::MNT_DETACH;
    if flags & raw::MNT_EXPIRE != 0 && flags & others != 0 {
        return Err(Errno::EINVAL);
    }
    let (context, at) = resolve_at(CWD, target, 0, flags & raw::UMOUNT_NOFOLLOW == 0)?;
    check_admin()?;
    if at.same(&context.root()) && flags & raw::MNT_DETACH == 0 {
        return Err(Errno::EBUSY);
    }
    hooks::sb_umount((&context.subject,))?;
    if flags & raw::MNT_EXPIRE != 0 {
        mount::expire(&at)?;
    }
    mount::unmount(&at, flags & raw::MNT_DETACH != 0)?;
    Ok(0)
}

/// pivot_root(2).
pub fn pivot_root(new: u64, old: u64) -> Result<u64> {
    check_admin()?;
    let new = place_of(new)?;
    let (context, put_old) = resolve_at(CWD, old, 0, true)?;
    let old = context.root();
    hooks::sb_pivotroot((&context.subject,))?;
    mount::pivot_root(&old, &new, &put_old)?;
    // Whoever had the old root has the new one.
    let threads = all_processes().into_iter().flat_map(|process| process.threads.lock().to_vec());
    for thread in threads {
        let Some(fs) = thread.try_fs() else { continue };
        for place in [&fs.root, &fs.cwd] {
            let mut at = place.lock();
            let replaced = at.same(&old).then(|| core::mem::replace(&mut *at, new.clone()));
            drop(at);
            drop(replaced);
        }
    }
    Ok(0)
}

/// `struct mount_attr` (mount_setattr(2)).
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Its attributes that are flags of mount(2).
pub(super) const ATTRIBUTES: [(u32, u32); 6] = [
    (raw::MOUNT_ATTR_RDONLY, raw::MS_RDONLY),
    (raw::MOUNT_ATTR_NOSUID, raw::MS_NOSUID),
    (raw::MOUNT_ATTR_NODEV, raw::MS_NODEV),
    (raw::MOUNT_ATTR_NOEXEC, raw::MS_NOEXEC),
    (raw::MOUNT_ATTR_NODIRATIME, raw::MS_NODIRATIME),
    (raw::MOUNT_ATTR_NOSYMFOLLOW, raw::MS_NOSYMFOLLOW),
];
const ACCESS_TIMES: u32 = raw::MS_RELATIME | raw::MS_NOATIME | raw::MS_STRICTATIME;

impl MountAttributes {
    /// The flags that they take, and those that they give. EINVAL; EBADF, because no descriptor
    /// stands for a user namespace that ids could be mapped by.
    fn flags(&self) -> Result<(u32, u32)> {
        let one_way = [0, raw::MS_PRIVATE, raw::MS_SHARED, raw::MS_SLAVE, raw::MS_UNBINDABLE];
        let known = ATTRIBUTES.iter().fold(raw::MOUNT_ATTR__ATIME, |all, (bit, _)| all | bit);
        let known = u64::from(known | raw::MOUNT_ATTR_IDMAP);
        let is_known = (self.set | self.clear) & !known == 0;
        if !is_known || !one_way.iter().any(|&way| u64::from(way) == self.propagation) {
            return Err(Errno::EINVAL);
        }
        let (set, clear) = (self.set as u32, self.clear as u32);
        let times = match (set & raw::MOUNT_ATTR__ATIME, clear & raw::MOUNT_ATTR__ATIME) {
            (0, 0) => None,
            (raw::MOUNT_ATTR_RELATIME, raw::MOUNT_ATTR__ATIME) => Some(raw::MS_RELATIME),
            (raw::MOUNT_ATTR_NOATIME, raw::MOUNT_ATTR__ATIME) => Some(raw::MS_NOATIME),
            (raw::MOUNT_ATTR_STRICTATIME, raw::MOUNT_ATTR__ATIME) => Some(0),
            _ => return Err(Errno::EINVAL),
        };
        if (set | clear) & raw::MOUNT_ATTR_IDMAP != 0 {
            let is_wrong = clear & raw::MOUNT_ATTR_IDMAP != 0;
            return Err(if is_wrong { Errno::EINVAL } else { Errno::EBADF });
        }
        let taken = translate(clear, &ATTRIBUTES) | times.map_or(0, |_| ACCESS_TIMES);
        Ok((taken, translate(set, &ATTRIBUTES) | times.unwrap_or(0)))
    }
}

/// mount_setattr(2).
pub fn mount_setattr(dirfd: u64, path: u64, flags: u64, at: u64, size: u64) -> Result<u64> {
    let known =
        raw::AT_EMPTY_PATH | raw::AT_RECURSIVE | raw::AT_SYMLINK_NOFOLLOW | raw::AT_NO_AUTOMOUNT;
    let flags = super::check_flags(flags, known)?;
    if size > PAGE_SIZE as u64 {
        return Err(Errno::E2BIG);
    }
    if size < size_of::<MountAttributes>() as u64 {
        return Err(Errno::EINVAL);
    }
    check_admin()?;
    let attributes: MountAttributes = read_extensible(at, size)?;
    if attributes.set | attributes.clear | attributes.propagation == 0 {
        return Ok(0);
    }
    let (taken, given) = attributes.flags()?;
    let (_, place) = resolve_at(dirfd, path, flags, true)?;
    mount::change_flags(&place, taken, given, flags & raw::AT_RECURSIVE != 0)?;
    Ok(0)
}
