//! The policy `capability` on files: the attribute that gives capabilities to who executes one, and
//! others that are not everybody's (xattr(7), capabilities(7)).

use abi::{Errno, Result};
use lsm::capabilities::FileSets;

use super::{FileType, Inode, hooks};
use crate::security::{Capability, Subject};

/// Extended attribute with the capabilities that a file gives who executes it (capabilities(7)).
pub(crate) const ATTRIBUTE: &[u8] = b"security.capability";

/// EPERM unless the caller may change an attribute of this name.
fn check(who: &Subject, name: &[u8]) -> Result<()> {
    let needed = match name {
        ATTRIBUTE => Capability::Setfcap,
        _ if name.starts_with(b"security.") => Capability::SysAdmin,
        _ => return Ok(()),
    };
    if who.capable(needed) { Ok(()) } else { Err(Errno::EPERM) }
}

pub(super) fn inode_setxattr(
    (who, _, name, value): hooks::inode_setxattr::Given<'_>,
) -> Result<()> {
    if name == ATTRIBUTE && !FileSets::may_be_set(value) {
        return Err(Errno::EINVAL);
    }
    check(who, name)
}

pub(super) fn inode_removexattr((who, _, name): hooks::inode_removexattr::Given<'_>) -> Result<()> {
    check(who, name)
}

pub(super) fn inode_need_killpriv((inode,): hooks::inode_need_killpriv::Given<'_>) -> Result<u32> {
    let has = inode.file_type() == FileType::Regular && inode.get_xattr(ATTRIBUTE).is_ok();
    Ok(has.into())
}

/// Takes away what `inode_need_killpriv` has found, once every policy has agreed.
pub(super) fn remove_file_sets(inode: &dyn Inode) -> Result<()> {
    match inode.remove_xattr(ATTRIBUTE) {
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        result => result,
    }
}
