//! landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2): a thread restricts
//! itself and whomever it makes or starts, for good.
//!
//! The first program that does so has Landlock asked from then on; before, its hooks are nops.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};
use lsm::landlock::{ABI, DomainId, ERRATA, NotAdded, NotRestricted, fs, grants, net, scope};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::sync::Mutex;
use crate::base::user::{UserPtr, read_extensible};
use crate::process::current;
use crate::process::{own_file, own_open_file};
use crate::security::landlock::{Domain, Ruleset};
use crate::security::{Capability, hooks};
use crate::vfs::anon::AnonInode;
use crate::vfs::landlock::identity;
use crate::vfs::{Fd, FileOps, FileType, Inode};

/// `flags` of landlock_create_ruleset(2): which version is this, and what was mended in it.
const VERSION: u32 = 1;
const ERRATA_FLAG: u32 = 1 << 1;
/// `flags` of landlock_restrict_self(2): which denials are told to an audit log, of which there is
/// none here, as in a Linux without one.
const LOG_SAME_EXEC_OFF: u32 = 1;
const LOG_NEW_EXEC_ON: u32 = 1 << 1;
const LOG_SUBDOMAINS_OFF: u32 = 1 << 2;
/// Kinds of rules.
const PATH_BENEATH: u32 = 1;
const NET_PORT: u32 = 2;

/// `struct landlock_ruleset_attr`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct RulesetAttributes {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`, which is packed: rights, descriptor.
type PathBeneath = [u32; 3];

/// `struct landlock_net_port_attr`: rights, port.
type NetPort = [u64; 2];

/// A ruleset behind a descriptor: it can be added to, also after it was used.
struct RulesetFile {
    rules: Mutex<Arc<Ruleset>>,
    inode: Arc<AnonInode>,
}

impl FileOps for RulesetFile {
    fn has_data(&self) -> (bool, bool) {
        (false, false)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}

static NEXT_DOMAIN: AtomicU64 = AtomicU64::new(1);

fn policy() -> usize {
    lsm::table::policy("landlock")
}

/// EOPNOTSUPP unless the policy is on.
fn check_on() -> Result<()> {
    if hooks::order().has(policy()) { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// landlock_create_ruleset(2).
pub fn create_ruleset(address: u64, size: u64, flags: u32) -> Result<u64> {
    check_on()?;
    match flags {
        0 => {}
        _ if address != 0 || size != 0 => return Err(Errno::EINVAL),
        VERSION => return Ok(ABI.into()),
        ERRATA_FLAG => return Ok(ERRATA.into()),
        _ => return Err(Errno::EINVAL),
    }
    if address == 0 {
        return Err(Errno::EFAULT);
    }
    if size < size_of::<u64>() as u64 {
        return Err(Errno::EINVAL);
    }
    let wanted = read_extensible::<RulesetAttributes>(address, size)?;
    let RulesetAttributes { handled_fs, handled_net, scoped } = wanted;
    if handled_fs & !fs::ALL | handled_net & !net::ALL | scoped & !scope::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    if handled_fs | handled_net | scoped == 0 {
        return Err(Errno::ENOMSG);
    }
    let rules = Arc::new(Ruleset::new(handled_fs, handled_net, scoped));
    let inode = AnonInode::new(FileType::Anonymous, 0o600, "[landlock-ruleset]");
    let file = RulesetFile { rules: Mutex::new(rules), inode };
    crate::io::give_ops(Arc::new(file), raw::O_RDWR, true)
}

/// The ruleset behind a descriptor: EBADF without an open file, EBADFD if it is something else.
fn ruleset<T>(fd: u64, with: impl FnOnce(&RulesetFile) -> Result<T>) -> Result<T> {
    let file = own_open_file(fd as Fd)?;
    with(file.ops_as::<RulesetFile>().ok_or(Errno::EBADFD)?)
}

fn not_added(why: NotAdded) -> Errno {
    match why {
        NotAdded::Nothing => Errno::ENOMSG,
        NotAdded::NotHandled => Errno::EINVAL,
        NotAdded::TooMany => Errno::E2BIG,
        NotAdded::Memory => Errno::ENOMEM,
    }
}

/// Changes a ruleset; domains made from it stay as they are.
fn change(file: &RulesetFile, add: impl FnOnce(&mut Ruleset) -> Result<()>) -> Result<u64> {
    let mut rules = file.rules.lock();
    if Arc::get_mut(&mut rules).is_none() {
        *rules = Arc::new(rules.try_clone().map_err(not_added)?);
    }
    add(Arc::get_mut(&mut rules).ok_or(Errno::ENOMEM)?)?;
    Ok(0)
}

/// landlock_add_rule(2).
pub fn add_rule(ruleset_word: u64, kind: u32, rule: u64, flags: u32) -> Result<u64> {
    check_on()?;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    ruleset(ruleset_word, |file| match kind {
        PATH_BENEATH => add_path(file, rule),
        NET_PORT => add_port(file, rule),
        _ => Err(Errno::EINVAL),
    })
}

fn add_path(file: &RulesetFile, address: u64) -> Result<u64> {
    let [low, high, fd] = UserPtr::<PathBeneath>::new(address).read()?;
    let rights = u64::from(low) | u64::from(high) << 32;
    grants(rights, file.rules.lock().handled().0).map_err(not_added)?;
    let place = own_file(fd as Fd)?.location.clone().ok_or(Errno::EBADFD)?;
    if place.mount.is_internal() {
        return Err(Errno::EBADFD);
    }
    if place.file_type() != FileType::Directory && rights & !fs::OF_FILES != 0 {
        return Err(Errno::EINVAL);
    }
    let object = identity(&place)?;
    change(file, |rules| rules.add_object(object, rights, place.dentry).map_err(not_added))
}

fn add_port(file: &RulesetFile, address: u64) -> Result<u64> {
    let [rights, port] = UserPtr::<NetPort>::new(address).read()?;
    grants(rights, file.rules.lock().handled().1).map_err(not_added)?;
    let port = u16::try_from(port).map_err(|_| Errno::EINVAL)?;
    change(file, |rules| rules.add_port(port, rights).map_err(not_added))
}

/// landlock_restrict_self(2).
pub fn restrict_self(ruleset_word: u64, flags: u32) -> Result<u64> {
    check_on()?;
    let thread = current();
    let may = || thread.subject().capable(Capability::SysAdmin);
    if !thread.seccomp.no_new_privs() && !may() {
        return Err(Errno::EPERM);
    }
    if flags & !(LOG_SAME_EXEC_OFF | LOG_NEW_EXEC_ON | LOG_SUBDOMAINS_OFF) != 0 {
        return Err(Errno::EINVAL);
    }
    if ruleset_word as i32 == -1 && flags == LOG_SUBDOMAINS_OFF {
        // About the log alone.
        return Ok(0);
    }
    let rules = ruleset(ruleset_word, |file| Ok(file.rules.lock().clone()))?;
    let id = DomainId(NEXT_DOMAIN.fetch_add(1, Ordering::Relaxed));
    let domain = Domain::new(thread.confinement.get(), rules, id).map_err(|why| match why {
        NotRestricted::TooMany => Errno::E2BIG,
        NotRestricted::Memory => Errno::ENOMEM,
    })?;
    hooks::attach(policy())?;
    thread.confinement.set(Arc::new(domain));
    Ok(0)
}
