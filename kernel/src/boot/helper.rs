//! Programs that the kernel starts for itself, as root and in the first root: who takes core files
//! (core(5), "Piping core dumps to a program").

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use formats::boot_config::BootConfig;
use machine::sync::{Once, ReadMostly};

use super::start;
use crate::init::{self, First};
use crate::security::{Credentials, Subject};
use crate::vfs::path::{Context, FsContext, Location};
use crate::vfs::{FdTable, File};

const ENVIRONMENT: [&[u8]; 2] = [b"HOME=/", b"PATH=/sbin:/bin:/usr/sbin:/usr/bin"];
const UMASK: u32 = 0o22;

static ROOT: Once<Location> = Once::new();

/// Says where these programs find themselves and everything else.
pub(super) fn set_root(root: &Location) {
    ROOT.call_once(|| root.clone());
}

/// Starts one as a child of the first process, which takes its end; `words` are its path and its
/// arguments, `input` is its standard input and all that it has open. ENOENT, ENOEXEC, EACCES …
pub(super) fn start(words: Vec<Vec<u8>>, input: Arc<File>) -> Result<()> {
    let root = ROOT.get().ok_or(Errno::ESRCH)?;
    let program = words.first().filter(|path| path.starts_with(b"/")).ok_or(Errno::ENOENT)?;
    let fs = Arc::new(FsContext {
        cwd: ReadMostly::new(root.clone()),
        root: ReadMostly::new(root.clone()),
        umask: UMASK.into(),
    });
    let subject = Subject { pid: 0, credentials: Arc::new(Credentials::root()), domain: None };
    let context = Context { fs: fs.clone(), subject };
    let config = BootConfig {
        program: program.clone(),
        env: ENVIRONMENT.map(<[u8]>::to_vec).to_vec(),
        argv: words,
        ..BootConfig::default()
    };
    let image = start::load(&context, &config)?;
    let files = FdTable::new();
    files.insert(input, false, 0, 1)?;
    init::start_helper(First { image, files: Arc::new(files), fs })
}
