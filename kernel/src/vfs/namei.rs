//! Changing names: make, remove, rename, link. Permissions, read-only mounts, the cache of names
//! and events are handled here once, so that system calls and bound sockets get the same.
//!
//! Why it is hard: each change must see the directory as it is (under its `names` lock), and a
//! rename needs two of them without ever making a directory its own ancestor: renames between
//! directories are one at a time, so nothing above either directory moves meanwhile.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};

use super::dentry::{self, Dentry};
use super::hooks::{self, Rename};
use super::path::{self, Context, Location, Walk, child_locked};
use super::permission::{self, EXECUTE, WRITE};
use super::{FileType, Inode, NewObject, Renaming};
use super::{flags, inotify};
use crate::base::sync::MutexGuard;
use crate::security::Capability;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct Make<'a> {
    /// Its kind.
    pub file_type: FileType,
    /// Permission bits before the umask.
    pub mode: u32,
    /// For device nodes.
    pub rdev: u64,
    /// For symbolic links.
    pub target: &'a [u8],
}

impl<'a> Make<'a> {
    /// An object that has permission bits only.
    #[must_use]
    pub const fn plain(file_type: FileType, mode: u32) -> Make<'a> {
        Make { file_type, mode, rdev: 0, target: b"" }
    }
}

/// Makes the object a path names, which must not exist yet. For mkdir(2), mknod(2), symlink(2), and
/// bind(2) of local sockets.
pub fn make(context: &Context, dirfd: i32, path: &[u8], what: &Make<'_>) -> Result<Location> {
    let walk = path::resolve_parent(context, dirfd, path, 0)?;
    let name = walk.name(Errno::EEXIST)?;
    if walk.has_trailing_slash() && what.file_type != FileType::Directory {
        let exists = walk.last_child()?.is_some();
        return Err(if exists { Errno::EEXIST } else { Errno::ENOENT });
    }
    let names = walk.at.dentry.lock_names();
    if path::child_checked(context, &walk.at, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    check_takes_names(&walk.at)?;
    walk.at.mount.check_writable()?;
    match what.file_type {
        FileType::Directory => hooks::path_mkdir((context, &walk.at, name))?,
        FileType::Symlink => hooks::path_symlink((context, &walk.at, name))?,
        kind => hooks::path_mknod((context, &walk.at, name, kind, what.rdev))?,
    }
    let dentry = make_locked(context, &walk.at, name, what)?;
    drop(names);
    let made = Location::new(walk.at.mount.clone(), dentry);
    if !matches!(what.file_type, FileType::Directory | FileType::Symlink) {
        hooks::path_post_mknod((&made,));
    }
    Ok(made)
}

/// Makes an object that is known not to exist. The directory's names are locked.
pub(super) fn make_locked(
    context: &Context,
    directory: &Location,
    name: &[u8],
    what: &Make<'_>,
) -> Result<Arc<Dentry>> {
    check_change(context, directory)?;
    let is_device = matches!(what.file_type, FileType::CharDevice | FileType::BlockDevice);
    // Device 0:0 is the mark of union file systems; anybody may make it.
    let is_mark = what.file_type == FileType::CharDevice && what.rdev == 0;
    if is_device && !is_mark && !context.subject.capable(Capability::Mknod) {
        return Err(Errno::EPERM);
    }
    let (uid, gid, mode) = owner_and_mode(context, directory, what)?;
    let new = NewObject {
        file_type: what.file_type,
        mode,
        uid,
        gid,
        rdev: what.rdev,
        target: what.target,
    };
    let parent = &directory.dentry;
    let who = &context.subject;
    match what.file_type {
        FileType::Regular => hooks::inode_create((who, directory, name, mode))?,
        FileType::Directory => hooks::inode_mkdir((who, directory, name, mode))?,
        FileType::Symlink => hooks::inode_symlink((who, directory, name, what.target))?,
        kind => hooks::inode_mknod((who, directory, name, kind))?,
    }
    let admit = |new: &dyn Inode| give_security(parent.inode().as_ref(), new);
    let inode = parent.inode().create_if(name, &new, &admit)?;
    flags::inherit(parent.inode().as_ref(), inode.as_ref());
    let dentry = if directory.mount.file_system().caches_names() {
        dentry::enter(parent, name, inode)
    } else {
        Dentry::uncached(parent, name, inode)
    };
    inotify::name_event(parent, name, raw::IN_CREATE, dentry.is_directory(), 0);
    Ok(dentry)
}

/// Lets policies hang their own on a new object.
fn give_security(directory: &dyn Inode, new: &dyn Inode) -> Result<()> {
    match hooks::inode_init_security((directory, new)) {
        // Nobody has anything to hang.
        Err(Errno::EOPNOTSUPP) => Ok(()),
        result => result,
    }
}

/// A regular file without a name (O_TMPFILE), in the file system of `directory`.
pub(super) fn make_unnamed(context: &Context, directory: &Location, mode: u32) -> Result<Location> {
    if !directory.dentry.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    check_change(context, directory)?;
    let what = Make::plain(FileType::Regular, mode);
    let (uid, gid, mode) = owner_and_mode(context, directory, &what)?;
    let new = NewObject { file_type: FileType::Regular, mode, uid, gid, rdev: 0, target: b"" };
    let inode = directory.inode().create_unnamed(&new)?;
    flags::inherit(directory.inode().as_ref(), inode.as_ref());
    give_security(directory.inode().as_ref(), inode.as_ref())?;
    hooks::inode_post_create_tmpfile((inode.as_ref(),));
    let number = inode.metadata()?.inode;
    let name = alloc::format!("#{number} (deleted)");
    let dentry = Dentry::uncached(&directory.dentry, name.as_bytes(), inode);
    Ok(Location::new(directory.mount.clone(), dentry))
}

/// Who owns a new object, and its mode: a set-group-ID directory hands its group down (inode(7)).
fn owner_and_mode(
    context: &Context,
    directory: &Location,
    what: &Make<'_>,
) -> Result<(u32, u32, u32)> {
    let who = &context.subject;
    let parent = directory.inode().metadata()?;
    let mut mode = match what.file_type {
        FileType::Symlink => 0o777,
        _ => context.masked(what.mode),
    };
    if parent.mode & 0o2000 == 0 {
        return Ok((who.fsuid, who.fsgid, mode));
    }
    if what.file_type == FileType::Directory {
        mode |= 0o2000;
    } else if what.mode & 0o2010 == 0o2010
        // Asked for, whatever the umask leaves of it: group execution may be given later.
        && !who.in_group(parent.gid)
        && !who.capable(Capability::Fsetid)
    {
        mode &= !0o2000;
    }
    Ok((who.fsuid, parent.gid, mode))
}

/// ENOENT where nothing is made at a name that is missing.
fn check_takes_names(directory: &Location) -> Result<()> {
    if directory.mount.file_system().takes_names() { Ok(()) } else { Err(Errno::ENOENT) }
}

/// EROFS, ENOENT or EACCES unless names of the directory may be changed.
fn check_change(context: &Context, directory: &Location) -> Result<()> {
    directory.mount.check_writable()?;
    if directory.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    permission::check(directory.inode().as_ref(), WRITE | EXECUTE, &context.subject)
}

/// Also EPERM, EBUSY unless this entry of it may be removed.
fn check_removal(context: &Context, directory: &Location, victim: &Dentry) -> Result<()> {
    check_change(context, directory)?;
    flags::check_not_append_only(directory.inode().as_ref())?;
    flags::check_not_guarded(victim.inode().as_ref())?;
    let who = &context.subject;
    if !who.capable(Capability::Fowner) {
        let of = directory.inode().metadata()?;
        permission::check_sticky(&of, victim.inode().as_ref(), who)?;
    }
    if victim.is_covered() { Err(Errno::EBUSY) } else { Ok(()) }
}

/// unlink(2).
pub fn unlink(context: &Context, dirfd: i32, path: &[u8]) -> Result<()> {
    let walk = path::resolve_parent(context, dirfd, path, 0)?;
    let name = walk.name(Errno::EISDIR)?;
    let victim = {
        let parent = &walk.at.dentry;
        let _names = parent.lock_names();
        let victim = path::child_checked(context, &walk.at, name)?.ok_or(Errno::ENOENT)?;
        if walk.has_trailing_slash() {
            return Err(if victim.is_directory() { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        walk.at.mount.check_writable()?;
        hooks::path_unlink((context, &walk.at, name))?;
        check_removal(context, &walk.at, &victim)?;
        if victim.is_directory() {
            return Err(Errno::EISDIR);
        }
        hooks::inode_unlink((&walk.at, victim.inode().as_ref()))?;
        parent.inode().unlink(name)?;
        dentry::removed(parent, name, walk.at.mount.file_system().caches_names());
        victim
    };
    inotify::removed(&victim, &walk.at.dentry, name);
    Ok(())
}

/// rmdir(2).
pub fn rmdir(context: &Context, dirfd: i32, path: &[u8]) -> Result<()> {
    let walk = path::resolve_parent(context, dirfd, path, 0)?;
    let name = match walk.last() {
        path::Last::Dot => return Err(Errno::EINVAL),
        path::Last::DotDot => return Err(Errno::ENOTEMPTY),
        _ => walk.name(Errno::EBUSY)?,
    };
    let victim = {
        let parent = &walk.at.dentry;
        let _names = parent.lock_names();
        let victim = path::child_checked(context, &walk.at, name)?.ok_or(Errno::ENOENT)?;
        walk.at.mount.check_writable()?;
        hooks::path_rmdir((context, &walk.at, name))?;
        check_removal(context, &walk.at, &victim)?;
        if !victim.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        hooks::inode_rmdir((&walk.at, victim.inode().as_ref()))?;
        parent.inode().rmdir(name)?;
        dentry::removed(parent, name, walk.at.mount.file_system().caches_names());
        victim
    };
    inotify::removed(&victim, &walk.at.dentry, name);
    Ok(())
}

/// Gives `target` another name (link(2)).
pub fn link(context: &Context, target: &Location, dirfd: i32, path: &[u8]) -> Result<()> {
    let walk = path::resolve_parent(context, dirfd, path, 0)?;
    let name = walk.name(Errno::EEXIST)?;
    let parent = &walk.at.dentry;
    let _names = parent.lock_names();
    if path::child_checked(context, &walk.at, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    if walk.has_trailing_slash() {
        return Err(Errno::ENOENT);
    }
    check_takes_names(&walk.at)?;
    if !Arc::ptr_eq(&walk.at.mount, &target.mount) {
        return Err(Errno::EXDEV);
    }
    walk.at.mount.check_writable()?;
    check_hardlink(context, target)?;
    hooks::path_link((context, target, &walk.at, name))?;
    check_change(context, &walk.at)?;
    flags::check_not_guarded(target.inode().as_ref())?;
    if target.dentry.is_directory() {
        return Err(Errno::EPERM);
    }
    hooks::inode_link((&walk.at, target.inode().as_ref()))?;
    parent.inode().link(name, target.inode())?;
    if walk.at.mount.file_system().caches_names() {
        dentry::enter(parent, name, target.inode().clone());
    }
    inotify::event(&target.dentry, raw::IN_ATTRIB);
    inotify::name_event(parent, name, raw::IN_CREATE, false, 0);
    Ok(())
}

/// Links only to what the caller could write itself (proc_sys_fs(5), protected_hardlinks).
fn check_hardlink(context: &Context, target: &Location) -> Result<()> {
    let of = target.inode().metadata()?;
    let who = &context.subject;
    if permission::is_owner(&of, who) {
        return Ok(());
    }
    let is_plain = of.file_type == FileType::Regular
        && of.mode & 0o4000 == 0
        && of.mode & 0o2010 != 0o2010
        && permission::check_metadata(&of, permission::READ | WRITE, who).is_ok();
    if is_plain { Ok(()) } else { Err(Errno::EPERM) }
}

/// One side of a rename: where the walk to it stands.
struct Side<'a> {
    walk: &'a Walk<'a>,
    name: &'a [u8],
}

impl Side<'_> {
    fn parent(&self) -> &Arc<Dentry> {
        &self.walk.at.dentry
    }
}

/// renameat2(2); `flags` are its RENAME flags.
pub fn rename(context: &Context, from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Result<()> {
    let old = path::resolve_parent(context, from.0, from.1, 0)?;
    let new = path::resolve_parent(context, to.0, to.1, 0)?;
    if !Arc::ptr_eq(&old.at.mount, &new.at.mount) {
        return Err(Errno::EXDEV);
    }
    let exists = if flags & raw::RENAME_NOREPLACE != 0 { Errno::EEXIST } else { Errno::EBUSY };
    let old = Side { name: old.name(Errno::EBUSY)?, walk: &old };
    let new = Side { name: new.name(exists)?, walk: &new };
    let _locks = lock_both(old.parent(), new.parent());
    rename_locked(context, &old, &new, flags)
}

/// EINVAL for flags of renameat2(2) that are unknown or do not go together.
pub fn check_rename_flags(flags: u32) -> Result<()> {
    let known = raw::RENAME_NOREPLACE | raw::RENAME_EXCHANGE | raw::RENAME_WHITEOUT;
    let keep_or_leave = flags & (raw::RENAME_NOREPLACE | raw::RENAME_WHITEOUT) != 0;
    let wrong = flags & raw::RENAME_EXCHANGE != 0 && keep_or_leave;
    if flags & !known != 0 || wrong { Err(Errno::EINVAL) } else { Ok(()) }
}

type Names<'a> = MutexGuard<'a, ()>;

/// Locks the names of both directories.
fn lock_both<'a>(
    one: &'a Arc<Dentry>,
    other: &'a Arc<Dentry>,
) -> (Option<Names<'static>>, Names<'a>, Option<Names<'a>>) {
    if Arc::ptr_eq(one, other) {
        return (None, one.lock_names(), None);
    }
    // Only who holds moves off locks two directories: their order does not matter.
    let moves = dentry::lock_moves();
    (Some(moves), one.lock_names(), Some(other.lock_names()))
}

fn rename_locked(context: &Context, old: &Side<'_>, new: &Side<'_>, flags: u32) -> Result<()> {
    let exchange = flags & raw::RENAME_EXCHANGE != 0;
    let source = path::child_checked(context, &old.walk.at, old.name)?.ok_or(Errno::ENOENT)?;
    let target = path::child_checked(context, &new.walk.at, new.name)?;
    match &target {
        Some(_) if flags & raw::RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
        None if exchange => return Err(Errno::ENOENT),
        _ => {}
    }
    check_slashes(old, new, &source, target.as_deref(), exchange)?;
    if source.is_directory() && new.parent().is_within(&source) {
        return Err(Errno::EINVAL);
    }
    if let Some(target) = &target
        && old.parent().is_within(target)
    {
        return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
    }
    hooks::path_rename((context, &change(old, new, &source, target.as_ref(), flags)))?;
    if target.as_ref().is_some_and(|target| Arc::ptr_eq(source.inode(), target.inode())) {
        // Two names of one object stay, and who may change them is not asked.
        return Ok(());
    }
    check_removal(context, &old.walk.at, &source)?;
    match &target {
        Some(target) => check_removal(context, &new.walk.at, target)?,
        None => check_change(context, &new.walk.at)?,
    }
    check_kinds(&source, target.as_deref(), exchange)?;
    let moves = !Arc::ptr_eq(old.parent(), new.parent());
    if moves && source.is_directory() {
        // Its `..` changes.
        permission::check(source.inode().as_ref(), WRITE, &context.subject)?;
    }
    hooks::inode_rename((&old.walk.at, source.inode().as_ref(), &new.walk.at))?;
    let owner = (context.subject.fsuid, context.subject.fsgid);
    let how = Renaming { flags, owner };
    old.parent().inode().rename(old.name, new.parent().inode(), new.name, &how)?;
    update_names(old, new, &source, target.as_ref(), flags);
    Ok(())
}

/// What policies are told about a rename.
fn change<'a>(
    old: &'a Side<'_>,
    new: &'a Side<'_>,
    moved: &'a Arc<Dentry>,
    replaced: Option<&'a Arc<Dentry>>,
    flags: u32,
) -> Rename<'a> {
    Rename {
        from: &old.walk.at,
        moved,
        to: &new.walk.at,
        replaced,
        exchange: flags & raw::RENAME_EXCHANGE != 0,
        leaves_mark: flags & raw::RENAME_WHITEOUT != 0,
        names: (old.name, new.name),
    }
}

/// ENOTDIR where a name that ends in a slash is no directory's.
fn check_slashes(
    old: &Side<'_>,
    new: &Side<'_>,
    source: &Dentry,
    target: Option<&Dentry>,
    exchange: bool,
) -> Result<()> {
    // Each name is to be a directory's: exchanged, the new one already is somebody's.
    let is_new_wrong = match exchange {
        true => !target.is_some_and(Dentry::is_directory),
        false => !source.is_directory(),
    };
    let is_wrong = !source.is_directory() && old.walk.has_trailing_slash()
        || is_new_wrong && new.walk.has_trailing_slash();
    if is_wrong { Err(Errno::ENOTDIR) } else { Ok(()) }
}

fn check_kinds(source: &Dentry, target: Option<&Dentry>, exchange: bool) -> Result<()> {
    match target {
        Some(target) if !exchange => match (source.is_directory(), target.is_directory()) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Tells the cache of names and whoever watches what a rename did.
fn update_names(
    old: &Side<'_>,
    new: &Side<'_>,
    source: &Arc<Dentry>,
    target: Option<&Arc<Dentry>>,
    flags: u32,
) {
    let same = target.is_some_and(|target| Arc::ptr_eq(target.inode(), source.inode()));
    let exchange = flags & raw::RENAME_EXCHANGE != 0;
    if same && !exchange {
        // Two names of one object: rename(2) does nothing.
        return;
    }
    let caches = old.walk.at.mount.file_system().caches_names();
    match target {
        Some(target) if exchange => {
            dentry::exchanged((source, old.parent(), old.name), (target, new.parent(), new.name))
        }
        _ => {
            let whiteout = flags & raw::RENAME_WHITEOUT != 0;
            dentry::moved(
                source,
                (old.parent(), old.name),
                (new.parent(), new.name),
                caches && !whiteout,
            );
        }
    }
    inotify::renamed(source, (old.parent(), old.name), (new.parent(), new.name));
    if let Some(target) = target {
        if exchange {
            inotify::renamed(target, (new.parent(), new.name), (old.parent(), old.name));
        } else {
            inotify::replaced(target);
        }
    }
}

/// The existing or new regular file under a name, for open(2) with O_CREAT; and whether it is new.
pub(super) fn find_or_make(
    context: &Context,
    directory: &Location,
    name: &[u8],
    mode: u32,
    exclusive: bool,
) -> Result<(Arc<Dentry>, bool)> {
    let _names = directory.dentry.lock_names();
    match child_locked(directory, name)? {
        Some(_) if exclusive => Err(Errno::EEXIST),
        Some(child) => Ok((child, false)),
        None => {
            check_takes_names(directory)?;
            let what = Make::plain(FileType::Regular, mode);
            directory.mount.check_writable()?;
            hooks::path_mknod((context, directory, name, FileType::Regular, 0))?;
            let dentry = make_locked(context, directory, name, &what)?;
            hooks::path_post_mknod((&Location::new(directory.mount.clone(), dentry.clone()),));
            Ok((dentry, true))
        }
    }
}
