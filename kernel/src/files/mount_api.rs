//! Mounts in steps, each of which has a descriptor: a file system that is being described
//! (fsopen(2), fspick(2), fsconfig(2)), a mount that is nowhere yet (fsmount(2), open_tree(2)), and
//! its place (move_mount(2)).
//!
//! A mount that is nowhere goes with the descriptor that made it, unless it has got a place.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::mounts::{ATTRIBUTES, check_admin};
use super::resolve_at;
use crate::base::args::{check_flags, translate};
use crate::base::io::Sink;
use crate::base::sync::Mutex;
use crate::base::user::{UserPtr, read_c_string};
use crate::process::{give_file, own_open_file};
use crate::vfs::anon::AnonInode;
use crate::vfs::mount::{self, Mount};
use crate::vfs::path::Location;
use crate::vfs::{File, FileOps, FileSystem, FileType, Inode, hooks};

/// Longest name of a kind of file system, and longest key and value, with their NULs.
const KIND_MAX: usize = 4096;
const TEXT_MAX: usize = 256;
/// Most bytes of a value that is no text.
const BINARY_MAX: i32 = 1 << 20;
/// Messages kept for who reads them.
const MESSAGES_MAX: usize = 8;

/// Where the description of a file system has got to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It gets its parameters.
    Create,
    /// It is there, and has no mount yet.
    AwaitingMount,
    /// It is mounted: what comes next changes it.
    Reconfigure,
    /// It could not be made.
    Failed,
}

struct Description {
    kind: Vec<u8>,
    phase: Phase,
    source: Option<Vec<u8>>,
    /// Parameters as mount(2) takes them.
    options: Vec<u8>,
    read_only: bool,
    fs: Option<Arc<dyn FileSystem>>,
    /// What fspick(2) picked, or fsmount(2) made.
    picked: Option<Location>,
    messages: Vec<String>,
}

/// What stands behind the descriptor of fsopen(2) and fspick(2).
struct FsContext {
    description: Mutex<Description>,
    inode: Arc<AnonInode>,
}

impl FsContext {
    fn give(description: Description, close_on_exec: bool) -> Result<u64> {
        let inode = AnonInode::new(FileType::Regular, 0o600, "[fscontext]");
        let ops = Arc::new(FsContext { description: Mutex::new(description), inode });
        give_file(File::new(ops, raw::O_RDWR, None), close_on_exec)
    }
}

impl FileOps for FsContext {
    /// One message at a time; ENODATA if there is none.
    fn read_at(&self, _file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let mut description = self.description.lock();
        let message = description.messages.first().ok_or(Errno::ENODATA)?;
        if message.len() > sink.left() {
            description.messages.remove(0);
            return Err(Errno::EMSGSIZE);
        }
        sink.put(message.as_bytes())?;
        Ok(description.messages.remove(0).len())
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}

/// fsopen(2).
pub fn fsopen(kind: u64, flags: u32) -> Result<u64> {
    check_admin()?;
    let flags = check_flags(flags.into(), raw::FSOPEN_CLOEXEC)?;
    let kind = read_c_string(kind, KIND_MAX, Errno::EINVAL)?;
    if !mount::types().iter().any(|known| known.as_bytes() == kind) {
        return Err(Errno::ENODEV);
    }
    hooks::sb_alloc_security((&kind,))?;
    FsContext::give(Description::new(kind, Phase::Create), flags != 0)
}

/// fspick(2).
pub fn fspick(dirfd: u64, path: u64, flags: u32) -> Result<u64> {
    check_admin()?;
    let known = raw::FSPICK_CLOEXEC
        | raw::FSPICK_SYMLINK_NOFOLLOW
        | raw::FSPICK_NO_AUTOMOUNT
        | raw::FSPICK_EMPTY_PATH;
    let flags = check_flags(flags.into(), known)?;
    let empty = if flags & raw::FSPICK_EMPTY_PATH != 0 { raw::AT_EMPTY_PATH } else { 0 };
    let follow = flags & raw::FSPICK_SYMLINK_NOFOLLOW == 0;
    let (_, place) = resolve_at(dirfd, path, empty, follow)?;
    if !place.is_mount_top() {
        return Err(Errno::EINVAL);
    }
    let fs = place.mount.file_system().clone();
    let mut description = Description::new(fs.name().into(), Phase::Reconfigure);
    description.fs = Some(fs);
    description.picked = Some(place);
    FsContext::give(description, flags & raw::FSPICK_CLOEXEC != 0)
}

/// Commands of fsconfig(2).
mod command {
    pub(super) const SET_FLAG: u32 = 0;
    pub(super) const SET_STRING: u32 = 1;
    pub(super) const SET_BINARY: u32 = 2;
    pub(super) const SET_PATH: u32 = 3;
    pub(super) const SET_PATH_EMPTY: u32 = 4;
    pub(super) const SET_FD: u32 = 5;
    pub(super) const CREATE: u32 = 6;
    pub(super) const RECONFIGURE: u32 = 7;
    pub(super) const CREATE_EXCL: u32 = 8;
}

/// EINVAL where a command of fsconfig(2) has other arguments than it takes, EOPNOTSUPP for one that
/// is not known.
fn check_arguments(what: u32, key: u64, value: u64, aux: i32) -> Result<()> {
    let (has_key, has_value) = (key != 0, value != 0);
    let is_fit = match what {
        command::SET_FLAG => has_key && !has_value && aux == 0,
        command::SET_STRING => has_key && has_value && aux == 0,
        command::SET_BINARY => has_key && has_value && (1..=BINARY_MAX).contains(&aux),
        command::SET_PATH | command::SET_PATH_EMPTY => {
            has_key && has_value && (aux >= 0 || aux == raw::AT_FDCWD)
        }
        command::SET_FD => has_key && !has_value && aux >= 0,
        command::CREATE | command::RECONFIGURE | command::CREATE_EXCL => {
            !has_key && !has_value && aux == 0
        }
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if is_fit { Ok(()) } else { Err(Errno::EINVAL) }
}

/// fsconfig(2).
pub fn fsconfig(fd: i32, what: u32, key: u64, value: u64, aux: i32) -> Result<u64> {
    let fd = u32::try_from(fd).map_err(|_| Errno::EINVAL)?;
    check_arguments(what, key, value, aux)?;
    let file = own_open_file(fd)?;
    let context = file.ops_as::<FsContext>().ok_or(Errno::EINVAL)?;
    let text = |at: u64| {
        let at = UserPtr::<u8>::new(at).non_null();
        at.map(|at| read_c_string(at.address(), TEXT_MAX, Errno::EINVAL)).transpose()
    };
    let key = text(key)?.unwrap_or_default();
    let value = if what == command::SET_STRING { text(value)? } else { None };
    let mut description = context.description.lock();
    match what {
        command::CREATE | command::CREATE_EXCL => description.create(what)?,
        command::RECONFIGURE => description.reconfigure()?,
        _ if !description.takes_parameters() => return Err(Errno::EBUSY),
        command::SET_FLAG | command::SET_STRING => description.set(&key, value.as_deref())?,
        // No parameter of any kind is a file or anything else.
        _ => {
            let key = String::from_utf8_lossy(&key).into_owned();
            return description.refuse(format!("Bad value for '{key}'"));
        }
    }
    Ok(0)
}

impl Description {
    fn new(kind: Vec<u8>, phase: Phase) -> Description {
        Description {
            kind,
            phase,
            source: None,
            options: Vec::new(),
            read_only: false,
            fs: None,
            picked: None,
            messages: Vec::new(),
        }
    }

    fn takes_parameters(&self) -> bool {
        matches!(self.phase, Phase::Create | Phase::Reconfigure)
    }

    /// Keeps a message about an error for who reads the descriptor: EINVAL.
    fn refuse<T>(&mut self, message: String) -> Result<T> {
        if self.messages.len() == MESSAGES_MAX {
            self.messages.remove(0);
        }
        let kind = String::from_utf8_lossy(&self.kind);
        let message = format!("e {kind}: {message}\n");
        self.messages.push(message);
        Err(Errno::EINVAL)
    }

    fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match (key, value) {
            (b"ro", None) => self.read_only = true,
            (b"rw", None) => self.read_only = false,
            (b"sync" | b"async" | b"dirsync" | b"lazytime" | b"nolazytime", None) => {}
            (b"mand" | b"nomand", None) => {}
            (b"source", None) => return self.refuse("Non-string source".into()),
            (b"source", Some(_)) if self.source.is_some() => {
                return self.refuse("Multiple sources".into());
            }
            (b"source", Some(value)) => self.source = Some(value.into()),
            _ => self.set_own(key, value)?,
        }
        Ok(())
    }

    /// A parameter of the kind's own: the kind says at once whether it knows it.
    fn set_own(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let option = match value {
            Some(value) => [key, b"=", value].concat(),
            None => key.to_vec(),
        };
        let takes_any = matches!(&*self.kind, b"ramfs" | b"devpts");
        let is_known = match &*self.kind {
            b"tmpfs" | b"devtmpfs" => mount::make_file_system(b"tmpfs", b"", &option).is_ok(),
            b"proc" => matches!(key, b"gid" | b"hidepid" | b"subset") && value.is_some(),
            _ => takes_any,
        };
        if !is_known || option.contains(&b',') {
            let key = String::from_utf8_lossy(key).into_owned();
            return self.refuse(format!("Unknown parameter '{key}'"));
        }
        if !takes_any {
            if !self.options.is_empty() {
                self.options.push(b',');
            }
            self.options.extend_from_slice(&option);
        }
        Ok(())
    }

    /// FSCONFIG_CMD_CREATE and FSCONFIG_CMD_CREATE_EXCL, which refuses one that is there already.
    fn create(&mut self, what: u32) -> Result<()> {
        if self.phase != Phase::Create {
            return Err(Errno::EBUSY);
        }
        check_admin()?;
        self.phase = Phase::Failed;
        let source = self.source.as_deref().unwrap_or_default();
        let fs = mount::make_file_system(&self.kind, source, &self.options)?;
        let is_there = mount::all().iter().any(|mount| Arc::ptr_eq(mount.file_system(), &fs));
        if what == command::CREATE_EXCL && is_there {
            return Err(Errno::EBUSY);
        }
        self.fs = Some(fs);
        self.phase = Phase::AwaitingMount;
        Ok(())
    }

    /// FSCONFIG_CMD_RECONFIGURE: of what a file system is told later, only whether it may be
    /// written to has an effect.
    fn reconfigure(&mut self) -> Result<()> {
        if self.phase != Phase::Reconfigure {
            return Err(Errno::EBUSY);
        }
        check_admin()?;
        if let Some(place) = &self.picked {
            let flags = place.mount.flags() & !raw::MS_RDONLY;
            let flags = if self.read_only { flags | raw::MS_RDONLY } else { flags };
            hooks::sb_remount((place, flags))?;
            mount::remount(place, flags)?;
        }
        Ok(())
    }
}

/// fsmount(2).
pub fn fsmount(fd: u32, flags: u32, attributes: u32) -> Result<u64> {
    check_admin()?;
    let flags = check_flags(flags.into(), raw::FSMOUNT_CLOEXEC)?;
    let known = ATTRIBUTES.iter().fold(raw::MOUNT_ATTR__ATIME, |all, (bit, _)| all | bit);
    let attributes = check_flags(attributes.into(), known)?;
    let times = match attributes & raw::MOUNT_ATTR__ATIME {
        raw::MOUNT_ATTR_RELATIME => raw::MS_RELATIME,
        raw::MOUNT_ATTR_NOATIME => raw::MS_NOATIME,
        raw::MOUNT_ATTR_STRICTATIME => 0,
        _ => return Err(Errno::EINVAL),
    };
    let file = own_open_file(fd)?;
    let context = file.ops_as::<FsContext>().ok_or(Errno::EINVAL)?;
    let mut description = context.description.lock();
    let fs = description.fs.clone().ok_or(Errno::EINVAL)?;
    if description.phase != Phase::AwaitingMount {
        return Err(Errno::EBUSY);
    }
    let mut mount_flags = translate(attributes, &ATTRIBUTES) | times;
    if description.read_only {
        mount_flags |= raw::MS_RDONLY;
    }
    let source = description.source.take().unwrap_or_else(|| b"none".to_vec());
    let top = mount::float(fs, mount_flags, &source)?;
    description.phase = Phase::Reconfigure;
    description.picked = Some(top.top());
    drop(description);
    Tree::give(top, flags != 0)
}

/// What a descriptor of a mount that was nowhere does: as one of O_PATH, it names a place; and at
/// its end the mount goes, if it still has none.
struct Tree {
    mount: Arc<Mount>,
    inode: Arc<AnonInode>,
}

impl Tree {
    fn give(mount: Arc<Mount>, close_on_exec: bool) -> Result<u64> {
        let inode = AnonInode::new(FileType::Regular, 0, "[path]");
        let place = mount.top();
        let ops = Arc::new(Tree { mount, inode });
        give_file(File::new(ops, raw::O_PATH, Some(place)), close_on_exec)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        mount::sink(&self.mount);
    }
}

impl FileOps for Tree {
    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}

/// open_tree(2): a place, or (OPEN_TREE_CLONE) a copy of what is mounted from there on.
pub fn open_tree(dirfd: u64, path: u64, flags: u32) -> Result<u64> {
    let walks =
        raw::AT_EMPTY_PATH | raw::AT_NO_AUTOMOUNT | raw::AT_RECURSIVE | raw::AT_SYMLINK_NOFOLLOW;
    let flags = check_flags(flags.into(), walks | raw::OPEN_TREE_CLONE | raw::OPEN_TREE_CLOEXEC)?;
    let clones = flags & raw::OPEN_TREE_CLONE != 0;
    if flags & raw::AT_RECURSIVE != 0 && !clones {
        return Err(Errno::EINVAL);
    }
    if clones {
        check_admin()?;
    }
    let close_on_exec = flags & raw::OPEN_TREE_CLOEXEC != 0;
    let (context, place) = resolve_at(dirfd, path, flags & raw::AT_EMPTY_PATH, follows(flags))?;
    if !clones {
        let file = crate::vfs::open::open_known(&context, place, raw::O_PATH)?;
        return give_file(file, close_on_exec);
    }
    hooks::sb_mount((&context.subject,))?;
    let top = mount::float_copy(&place, flags & raw::AT_RECURSIVE != 0)?;
    Tree::give(top, close_on_exec)
}

fn follows(flags: u32) -> bool {
    flags & raw::AT_SYMLINK_NOFOLLOW == 0
}

/// move_mount(2). Nobody is told of mounts, so no group can be shared (MOVE_MOUNT_SET_GROUP), and
/// nothing is put below what is mounted already (MOVE_MOUNT_BENEATH).
pub fn move_mount(from_fd: u64, from: u64, to_fd: u64, to: u64, flags: u32) -> Result<u64> {
    check_admin()?;
    let flags = check_flags(flags.into(), raw::MOVE_MOUNT__MASK)?;
    let others = raw::MOVE_MOUNT_SET_GROUP | raw::MOVE_MOUNT_BENEATH;
    if flags & others == others {
        return Err(Errno::EINVAL);
    }
    let resolve = |fd: u64, path: u64, empty: u32, links: u32| {
        let empty = if flags & empty != 0 { raw::AT_EMPTY_PATH } else { 0 };
        resolve_at(fd, path, empty, flags & links != 0)
    };
    let from = resolve(from_fd, from, raw::MOVE_MOUNT_F_EMPTY_PATH, raw::MOVE_MOUNT_F_SYMLINKS)?.1;
    let (context, to) =
        resolve(to_fd, to, raw::MOVE_MOUNT_T_EMPTY_PATH, raw::MOVE_MOUNT_T_SYMLINKS)?;
    hooks::sb_mount((&context.subject,))?;
    if flags & others != 0 {
        return Err(Errno::EINVAL);
    }
    mount::move_mount(&from, &to)?;
    Ok(0)
}
