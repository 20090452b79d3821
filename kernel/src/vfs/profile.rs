//! The policy `profile` on files: each place by its path from the machine's root, whatever root the
//! program has. Objects without a name (pipes, memory files) are everybody's own.

use abi::{Result, general as raw};
use lsm::profile::Access;
use machine::sync::Once;

use super::hooks::{self, EXEC, Rename};
use super::path::Location;
use crate::security::{Subject, profile};

/// The machine's root, which paths are told from.
static ROOT: Once<Location> = Once::new();

/// Says what paths are told from.
pub fn set_root(root: &Location) {
    ROOT.call_once(|| root.clone());
}

fn check_path(who: &Subject, access: Access, place: &Location, name: Option<&[u8]>) -> Result<()> {
    let Some(root) = ROOT.get() else { return Ok(()) };
    // The kernel's own doings, and what no directory has.
    if who.pid == 0 || place.mount.is_internal() {
        return Ok(());
    }
    let mut path = place.path(root);
    if let Some(name) = name {
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    profile::check(access, &path)
}

pub(super) fn file_open((context, place, flags, _): hooks::file_open::Given<'_>) -> Result<()> {
    let who = &context.subject;
    if flags & raw::O_PATH != 0 {
        return Ok(());
    }
    if flags & EXEC != 0 {
        return check_path(who, Access::Execute, place, None);
    }
    let mode = flags & raw::O_ACCMODE;
    if mode != raw::O_WRONLY {
        check_path(who, Access::Read, place, None)?;
    }
    if mode != raw::O_RDONLY || flags & raw::O_TRUNC != 0 {
        check_path(who, Access::Write, place, None)?;
    }
    Ok(())
}

pub(super) fn path_mknod((c, at, name, ..): hooks::path_mknod::Given<'_>) -> Result<()> {
    check_path(&c.subject, Access::Write, at, Some(name))
}

pub(super) fn path_mkdir((c, at, name): hooks::path_mkdir::Given<'_>) -> Result<()> {
    check_path(&c.subject, Access::Write, at, Some(name))
}

pub(super) fn path_symlink((c, at, name): hooks::path_symlink::Given<'_>) -> Result<()> {
    check_path(&c.subject, Access::Write, at, Some(name))
}

pub(super) fn path_unlink((c, at, name): hooks::path_unlink::Given<'_>) -> Result<()> {
    check_path(&c.subject, Access::Write, at, Some(name))
}

pub(super) fn path_rmdir((c, at, name): hooks::path_rmdir::Given<'_>) -> Result<()> {
    check_path(&c.subject, Access::Write, at, Some(name))
}

/// A second name must not give what the first does not: both are written to, and the old one is
/// read.
pub(super) fn path_link((c, of, at, name): hooks::path_link::Given<'_>) -> Result<()> {
    check_path(&c.subject, Access::Read, of, None)?;
    check_path(&c.subject, Access::Write, of, None)?;
    check_path(&c.subject, Access::Write, at, Some(name))
}

pub(super) fn path_rename((c, rename): hooks::path_rename::Given<'_>) -> Result<()> {
    let Rename { from, to, names, .. } = *rename;
    check_path(&c.subject, Access::Read, from, Some(names.0))?;
    check_path(&c.subject, Access::Write, from, Some(names.0))?;
    check_path(&c.subject, Access::Write, to, Some(names.1))
}

pub(super) fn path_truncate((c, at): hooks::path_truncate::Given<'_>) -> Result<()> {
    check_path(&c.subject, Access::Write, at, None)
}

pub(super) fn path_chmod((who, at, _): hooks::path_chmod::Given<'_>) -> Result<()> {
    check_path(who, Access::Write, at, None)
}

pub(super) fn path_chown((who, at, ..): hooks::path_chown::Given<'_>) -> Result<()> {
    check_path(who, Access::Write, at, None)
}

/// Paths mean what they meant when the profile was written: nobody moves mounts.
pub(super) fn sb_mount((_,): hooks::sb_mount::Given<'_>) -> Result<()> {
    profile::check_mounts()
}

pub(super) fn sb_umount((_,): hooks::sb_umount::Given<'_>) -> Result<()> {
    profile::check_mounts()
}

pub(super) fn sb_pivotroot((_,): hooks::sb_pivotroot::Given<'_>) -> Result<()> {
    profile::check_mounts()
}
