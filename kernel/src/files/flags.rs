//! The requests of ioctl_iflags(2) and ioctl_xfs_fsgetxattr(2), which chattr(1), lsattr(1) and
//! backup programs use: flags of files and directories ([`crate::vfs::flags`]), in two forms.

use abi::{Errno, Result, general as raw, ioctl as cmd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::base::user::UserPtr;
use crate::process::current;
use crate::vfs::{File, flags};

/// `struct fsxattr` (linux/fs.h).
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct Extended {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    pad: [u8; 8],
}

/// Each flag in both forms.
const FORMS: [(u32, u32); 7] = [
    (raw::FS_IMMUTABLE_FL, raw::FS_XFLAG_IMMUTABLE),
    (raw::FS_APPEND_FL, raw::FS_XFLAG_APPEND),
    (raw::FS_NODUMP_FL, raw::FS_XFLAG_NODUMP),
    (raw::FS_NOATIME_FL, raw::FS_XFLAG_NOATIME),
    (raw::FS_SYNC_FL, raw::FS_XFLAG_SYNC),
    (raw::FS_DAX_FL, raw::FS_XFLAG_DAX),
    (raw::FS_PROJINHERIT_FL, raw::FS_XFLAG_PROJINHERIT),
];

impl Extended {
    fn of(flags: u32) -> Extended {
        let given = FORMS.iter().filter(|(flag, _)| flags & flag != 0);
        Extended { flags: given.fold(0, |all, (_, form)| all | form), ..Extended::default() }
    }

    /// EOPNOTSUPP for what no file system here has.
    fn plain_flags(&self) -> Result<u32> {
        let known = FORMS.iter().fold(0, |all, (_, form)| all | form);
        let is_plain = self.flags & !known == 0
            && (self.extent_size, self.project, self.copy_extent_size) == (0, 0, 0);
        let given = FORMS.iter().filter(|(_, form)| self.flags & form != 0);
        if is_plain {
            Ok(given.fold(0, |all, (flag, _)| all | flag))
        } else {
            Err(Errno::EOPNOTSUPP)
        }
    }
}

/// The answer to one of these requests. None for others, and for files that have no flags.
pub(super) fn ioctl(file: &File, command: u32, argument: u64) -> Option<Result<u64>> {
    let answer = match command {
        cmd::FS_IOC_GETFLAGS => {
            let tell = |flags| UserPtr::<u32>::new(argument).write(&flags);
            flags::of(file.inode().as_ref()).and_then(tell)
        }
        cmd::FS_IOC_SETFLAGS => {
            UserPtr::<u32>::new(argument).read().and_then(|flags| set(file, Ok(flags)))
        }
        cmd::FS_IOC_FSGETXATTR => {
            let tell = |flags| UserPtr::new(argument).write(&Extended::of(flags));
            flags::of(file.inode().as_ref()).and_then(tell)
        }
        cmd::FS_IOC_FSSETXATTR => {
            let extended = UserPtr::<Extended>::new(argument).read();
            extended.and_then(|extended| set(file, extended.plain_flags()))
        }
        _ => return None,
    };
    if answer == Err(Errno::ENOTTY) { None } else { Some(answer.map(|()| 0)) }
}

fn set(file: &File, wanted: Result<u32>) -> Result<()> {
    if let Some(location) = &file.location {
        location.mount.check_writable()?;
    }
    flags::set(file.inode().as_ref(), wanted, &current().subject())
}
