//! What a descriptor opened with O_PATH does: it names a place, and nothing else (open(2)).

use alloc::sync::Arc;

use abi::{Errno, Result};
use machine::sync::Once;

use super::anon::AnonInode;
use super::{File, FileOps, FileType, Inode};
use crate::base::poll::PollTable;

/// The operations of every such descriptor: they all fail with EBADF. The object itself is that of
/// the file's location.
struct PathFile {
    inode: Arc<AnonInode>,
}

/// The one value of it.
pub fn operations() -> Arc<dyn FileOps> {
    static ONLY: Once<Arc<PathFile>> = Once::new();
    let make = || Arc::new(PathFile { inode: AnonInode::new(FileType::Regular, 0, "[path]") });
    ONLY.call_once(make).clone()
}

impl FileOps for PathFile {
    fn poll(&self, _file: &File, _table: &mut PollTable) -> u32 {
        crate::base::poll::events::NVAL
    }

    fn ioctl(&self, _file: &File, _command: u32, _argument: u64) -> Result<u64> {
        Err(Errno::EBADF)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}
