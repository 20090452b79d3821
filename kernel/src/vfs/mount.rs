//! What is mounted where (mount(2)). There is one mount namespace.
//!
//! A [`Mount`] shows a directory of a file system at a place of another mount. A mount holds its
//! place, so places stay while something covers them; the table holds the mounts. Path walking asks
//! the table only at directories that something is mounted on
//! ([`super::dentry::Dentry::is_covered`]).
//!
//! Why it is hard: the same file system may be shown several times (bind mounts), and all of them
//! must share one cache of names; so every mount of a file system starts from the same top dentry.
//!
//! Not done: mount propagation (shared, slave) is accepted and ignored, as with one namespace
//! nobody receives it.
//!
//! Locks: [`dentry::lock_moves`] for every change, so that what is decided by where mounts are
//! stays true until it is done; inside it, and inside everything but buckets of names and places of
//! dentries, the table's lock.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::{Once, SpinLock};

use super::FileSystem;
use super::dentry::{self, Dentry, Move};
use super::path::Location;
use crate::base::poll::events;
use crate::base::sync::{MutexGuard, WaitQueue};

/// Most mounts at once.
pub const MOUNTS_MAX: usize = 4096;

/// Flags a mount keeps (mount(2)).
pub const KEPT_FLAGS: u32 = raw::MS_RDONLY
    | raw::MS_NOSUID
    | raw::MS_NODEV
    | raw::MS_NOEXEC
    | raw::MS_NOATIME
    | raw::MS_NODIRATIME
    | raw::MS_NOSYMFOLLOW
    | raw::MS_RELATIME
    | raw::MS_STRICTATIME;

/// Below this no number is one of [`Mount::unique_id`].
pub const UNIQUE_OFFSET: u64 = 1 << 31;

/// One mounted file system, or part of one.
pub struct Mount {
    id: u64,
    fs: Arc<dyn FileSystem>,
    root: Arc<Dentry>,
    /// See [`Mount::is_internal`].
    is_internal: bool,
    /// Its root is not the top of its file system.
    shows_part: bool,
    /// [`FileSystem::names_expire`].
    names_expire: bool,
    place: SpinLock<Option<Location>>,
    flags: AtomicU32,
    /// It is the top of a tree that has no place yet, and goes with who made it.
    floats: AtomicBool,
    /// Somebody has asked by MNT_EXPIRE whether it is in use.
    may_expire: AtomicBool,
    /// Open files that may be written to.
    writers: AtomicUsize,
    source: Vec<u8>,
}

/// MNT_EXPIRE (umount2(2)): the first time only marks the mount. EAGAIN.
pub fn expire(at: &Location) -> Result<()> {
    match at.mount.may_expire.swap(true, Ordering::Relaxed) {
        true => Ok(()),
        false => Err(Errno::EAGAIN),
    }
}

impl Mount {
    fn new(
        fs: Arc<dyn FileSystem>,
        root: Arc<Dentry>,
        place: Option<Location>,
        flags: u32,
        source: &[u8],
    ) -> Mount {
        Mount {
            is_internal: false,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            names_expire: fs.names_expire(),
            fs,
            shows_part: root.parent().is_some(),
            root,
            place: SpinLock::new(place),
            flags: AtomicU32::new(flags & KEPT_FLAGS),
            floats: AtomicBool::new(false),
            may_expire: AtomicBool::new(false),
            writers: AtomicUsize::new(0),
            source: source.into(),
        }
    }

    /// Its number in /proc/PID/mountinfo.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its number that tells it from all other mounts there ever were (statx(2),
    /// STATX_MNT_ID_UNIQUE): above those that are used again on other kernels.
    pub fn unique_id(&self) -> u64 {
        UNIQUE_OFFSET + self.id
    }

    /// The file system it shows.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// Whether cached names must be asked about: [`FileSystem::names_expire`].
    #[inline(always)]
    pub fn names_expire(&self) -> bool {
        self.names_expire
    }

    /// The top of what it shows.
    pub fn root(&self) -> &Arc<Dentry> {
        &self.root
    }

    /// Whether it shows this directory: of a part of a file system, directories may be moved out.
    pub fn shows(&self, directory: &Arc<Dentry>) -> bool {
        !self.shows_part || dentry::climb(|| directory.is_within(&self.root))
    }

    /// Where it is mounted; None for the root of everything, and for what is not mounted.
    pub fn place(&self) -> Option<Location> {
        self.place.lock().clone()
    }

    /// Whether it is the kernel's own, for objects that no directory has.
    pub fn is_internal(&self) -> bool {
        self.is_internal
    }

    /// The kept flags of mount(2).
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::SeqCst)
    }

    /// What was given as the device.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// EROFS on a read-only mount.
    #[inline(always)]
    pub fn check_writable(&self) -> Result<()> {
        if self.flags() & raw::MS_RDONLY == 0 { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// Somebody may write to a file of it from now on: EROFS. The count comes before the look, as
    /// [`remount`] sets the flag before it looks at the count.
    pub(super) fn enter_writer(&self) -> Result<()> {
        self.writers.fetch_add(1, Ordering::SeqCst);
        let result = self.check_writable();
        if result.is_err() {
            self.leave_writer();
        }
        result
    }

    /// Undoes [`Mount::enter_writer`].
    pub(super) fn leave_writer(&self) {
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Its top directory as a place.
    pub fn top(self: &Arc<Self>) -> Location {
        Location::new(self.clone(), self.root.clone())
    }
}

struct Table {
    /// All mounts by their ids, which is the order in which they were made.
    all: BTreeMap<u64, Arc<Mount>>,
    /// Which mounts show a file system: its identity, and their ids.
    showing: BTreeSet<(usize, u64)>,
    /// Which mount covers a directory: by the mount's id that the directory is seen in, and the
    /// dentry's.
    covering: BTreeMap<(u64, u64), Arc<Mount>>,
}

static TABLE: SpinLock<Table> = SpinLock::new(Table {
    all: BTreeMap::new(),
    showing: BTreeSet::new(),
    covering: BTreeMap::new(),
});

impl Table {
    fn add(&mut self, mount: &Arc<Mount>) {
        self.showing.insert((identity(&mount.fs), mount.id));
        self.all.insert(mount.id, mount.clone());
    }

    /// Takes a mount out; the caller has another reference to it.
    fn remove(&mut self, mount: &Mount) {
        self.showing.remove(&(identity(&mount.fs), mount.id));
        self.all.remove(&mount.id);
    }

    fn has(&self, mount: &Mount) -> bool {
        self.all.contains_key(&mount.id)
    }

    /// All that show a file system.
    fn showing(&self, fs: &Arc<dyn FileSystem>) -> impl Iterator<Item = &Arc<Mount>> {
        let of = identity(fs);
        let ids = self.showing.range((of, 0)..=(of, u64::MAX));
        ids.filter_map(|(_, id)| self.all.get(id))
    }

    /// What is mounted on places of a mount.
    fn children(&self, parent: &Mount) -> impl Iterator<Item = &Arc<Mount>> {
        self.covering.range((parent.id, 0)..=(parent.id, u64::MAX)).map(|(_, mount)| mount)
    }

    /// A mount and all that are mounted below it, parents first.
    fn tree(&self, top: &Arc<Mount>) -> Vec<Arc<Mount>> {
        let mut tree = Vec::from([top.clone()]);
        let mut index = 0;
        while index < tree.len() {
            let parent = tree[index].clone();
            tree.extend(self.children(&parent).cloned());
            index += 1;
        }
        tree
    }
}

/// What a file system is known by: its address, while a mount shows it.
fn identity(fs: &Arc<dyn FileSystem>) -> usize {
    Arc::as_ptr(fs).addr()
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// How often mounts have changed, and the queue that is woken when they do.
pub fn changes() -> (u64, &'static Arc<WaitQueue>) {
    static QUEUE: Once<Arc<WaitQueue>> = Once::new();
    (CHANGES.load(Ordering::SeqCst), QUEUE.call_once(|| Arc::new(WaitQueue::new())))
}

/// Mounts have changed: whoever waits for that is told. Under no spin lock.
fn changed() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
    changes().1.wake_all(events::PRI | events::ERR);
}

/// A file system that is mounted nowhere in the tree, and yet gives [`Location`]s: for memfd and
/// for what only descriptors name.
pub fn detached(fs: Arc<dyn FileSystem>) -> Arc<Mount> {
    let root = Dentry::detached(fs.root(), b"/");
    Arc::new(Mount { is_internal: true, ..Mount::new(fs, root, None, 0, b"none") })
}

/// The first mount: the root of everything.
pub fn mount_root(fs: Arc<dyn FileSystem>, source: &[u8]) -> Location {
    let root = Dentry::detached(fs.root(), b"/");
    let mount = Arc::new(Mount::new(fs, root, None, raw::MS_RELATIME, source));
    TABLE.lock().add(&mount);
    mount.top()
}

/// The mount that covers `dentry` as seen in `mount`.
pub fn covering(mount: &Mount, dentry: &Dentry) -> Option<Arc<Mount>> {
    TABLE.lock().covering.get(&(mount.id, dentry.id())).cloned()
}

/// All mounts, in the order they were made, for /proc/mounts and sync(2).
pub fn all() -> Vec<Arc<Mount>> {
    TABLE.lock().all.values().cloned().collect()
}

/// Whether it is the oldest mount there is.
pub fn is_oldest(mount: &Mount) -> bool {
    TABLE.lock().all.first_key_value().is_some_and(|(&id, _)| id == mount.id)
}

/// The top dentry of a file system: every mount of it shares one.
fn top_dentry(fs: &Arc<dyn FileSystem>) -> Arc<Dentry> {
    let known = TABLE.lock().showing(fs).next().map(|mount| mount.root.clone());
    match known {
        Some(mut dentry) => loop {
            match dentry.parent() {
                Some(parent) => dentry = parent,
                None => return dentry,
            }
        },
        None => Dentry::detached(fs.root(), b"/"),
    }
}

/// Mounts a file system at `place`, a directory (over what may be mounted there already).
pub fn mount(
    fs: Arc<dyn FileSystem>,
    place: &Location,
    flags: u32,
    source: &[u8],
) -> Result<Arc<Mount>> {
    let root = top_dentry(&fs);
    attach(Arc::new(Mount::new(fs, root, None, flags, source)), place)
}

/// Shows `from` at `place` too (MS_BIND); with `recursive` also what is mounted below it.
pub fn bind(from: &Location, place: &Location, recursive: bool) -> Result<()> {
    let top = attach(copy(&from.mount, &from.dentry), place)?;
    if recursive { copy_below(from, top) } else { Ok(()) }
}

fn copy(mount: &Arc<Mount>, root: &Arc<Dentry>) -> Arc<Mount> {
    Arc::new(Mount::new(mount.fs.clone(), root.clone(), None, mount.flags(), &mount.source))
}

/// Copies what is mounted below `from` to the same places below `top`, which is a copy of that.
fn copy_below(from: &Location, top: Arc<Mount>) -> Result<()> {
    // As they are before the first copy; the top one may be mounted in what it is a copy of.
    let tree = TABLE.lock().tree(&from.mount);
    let is_original = |mount: &&Arc<Mount>| mount.id != top.id;
    // By the ids of what they are copies of. What is mounted beside `from` has none, nor what is
    // mounted in that.
    let mut copies = BTreeMap::from([(from.mount.id, top.clone())]);
    for mount in tree[1..].iter().filter(is_original) {
        let Some(at) = mount.place() else { continue };
        let Some(parent) = copies.get(&at.mount.id) else { continue };
        if at.mount.id != from.mount.id || at.dentry.is_within(&parent.root) {
            let place = Location::new(parent.clone(), at.dentry.clone());
            let new = attach(copy(mount, &mount.root), &place)?;
            copies.insert(mount.id, new);
        }
    }
    Ok(())
}

/// A mount of a file system that has no place yet (fsmount(2)). ENOSPC.
pub fn float(fs: Arc<dyn FileSystem>, flags: u32, source: &[u8]) -> Result<Arc<Mount>> {
    let root = top_dentry(&fs);
    enter_floating(Arc::new(Mount::new(fs, root, None, flags, source)))
}

/// A copy of what is mounted at `from`, without a place (open_tree(2)); with `recursive` also of
/// what is mounted below. EINVAL if `from` is in no mount any more, ENOSPC.
pub fn float_copy(from: &Location, recursive: bool) -> Result<Arc<Mount>> {
    if !TABLE.lock().has(&from.mount) {
        return Err(Errno::EINVAL);
    }
    let top = enter_floating(copy(&from.mount, &from.dentry))?;
    if recursive && let Err(error) = copy_below(from, top.clone()) {
        sink(&top);
        return Err(error);
    }
    Ok(top)
}

fn enter_floating(mount: Arc<Mount>) -> Result<Arc<Mount>> {
    mount.floats.store(true, Ordering::SeqCst);
    let mut table = TABLE.lock();
    if table.all.len() >= MOUNTS_MAX {
        return Err(Errno::ENOSPC);
    }
    table.add(&mount);
    drop(table);
    Ok(mount)
}

/// Takes a mount away with all below it, if it has no place yet.
pub fn sink(mount: &Arc<Mount>) {
    let moves = dentry::lock_moves();
    if mount.floats.swap(false, Ordering::SeqCst) {
        take_away(mount, moves);
    }
}

/// Puts a mount over `place`; ENOTDIR unless both or neither are directories, EINVAL if the place
/// is in no mount any more.
fn attach(mount: Arc<Mount>, place: &Location) -> Result<Arc<Mount>> {
    if mount.root.is_directory() != place.dentry.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    if place.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    let key = (place.mount.id, place.dentry.id());
    let _moves = dentry::lock_moves();
    let change = Move::begin();
    let mut table = TABLE.lock();
    if table.all.len() >= MOUNTS_MAX {
        return Err(Errno::ENOSPC);
    }
    if !table.has(&place.mount) {
        return Err(Errno::EINVAL);
    }
    if table.covering.contains_key(&key) {
        // Path walking ends on top of what covers a place; this one was covered in between.
        return Err(Errno::EBUSY);
    }
    *mount.place.lock() = Some(place.clone());
    place.dentry.add_mounts(1);
    table.covering.insert(key, mount.clone());
    table.add(&mount);
    drop(table);
    drop(change);
    changed();
    if !place.mount.fs.caches_names() {
        // Names of this file system are not cached, but this one must lead here from now on.
        dentry::pin(&place.dentry);
    }
    Ok(mount)
}

/// Changes the flags of the mount whose top `at` is (MS_REMOUNT); EINVAL for another place.
pub fn remount(at: &Location, flags: u32) -> Result<()> {
    if !at.is_mount_top() {
        return Err(Errno::EINVAL);
    }
    let everywhere = flags & raw::MS_BIND == 0;
    set_flags(core::slice::from_ref(&at.mount), |_| flags & KEPT_FLAGS, everywhere)
}

/// Takes flags from and gives flags to the mount whose top `at` is, or (`below`) to all that are
/// mounted below it, too: all or none (mount_setattr(2)). EINVAL for another place; EBUSY where
/// somebody may write to what becomes read-only.
pub fn change_flags(at: &Location, taken: u32, given: u32, below: bool) -> Result<()> {
    if !at.is_mount_top() {
        return Err(Errno::EINVAL);
    }
    let mounts = match below {
        true => TABLE.lock().tree(&at.mount),
        false => Vec::from([at.mount.clone()]),
    };
    set_flags(&mounts, |flags| flags & !taken | given, false)
}

/// Changes the flags of mounts, of all or of none: EBUSY where somebody may write to what becomes
/// read-only, by that mount or (`everywhere`) by any of its file system.
fn set_flags(mounts: &[Arc<Mount>], of: impl Fn(u32) -> u32, everywhere: bool) -> Result<()> {
    let mut old = Vec::with_capacity(mounts.len());
    for mount in mounts {
        let change = |flags| Some(of(flags));
        let (Ok(before) | Err(before)) =
            mount.flags.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        old.push(before);
        let becomes_read_only = of(before) & !before & raw::MS_RDONLY != 0;
        if becomes_read_only && has_writers(mount, everywhere) {
            let restored = mounts.iter().zip(&old);
            restored.for_each(|(mount, flags)| mount.flags.store(*flags, Ordering::SeqCst));
            return Err(Errno::EBUSY);
        }
    }
    changed();
    Ok(())
}

/// Whether somebody may write to a file of the mount, or of any of the same file system.
fn has_writers(mount: &Arc<Mount>, everywhere: bool) -> bool {
    let writes = |mount: &Mount| mount.writers.load(Ordering::SeqCst) > 0;
    match everywhere {
        true => TABLE.lock().showing(&mount.fs).any(|mount| writes(mount)),
        false => writes(mount),
    }
}

/// Takes away the mount whose top `at` is (umount2(2)). EINVAL if it is no mount's top; EBUSY if it
/// is in use and not `detach`, which takes what is mounted below it too.
pub fn unmount(at: &Location, detach: bool) -> Result<()> {
    if !at.is_mount_top() || at.mount.place().is_none() {
        return Err(Errno::EINVAL);
    }
    // Two references to the top are the mount's and the caller's, and to the mount the caller's
    // location and the table's two. What goes beyond may be names that are only cached: they do not
    // count as use, and nothing of the file system may stay with them.
    if Arc::strong_count(&at.mount.root) > 2 || Arc::strong_count(&at.mount) > 3 {
        dentry::shrink();
    }
    let moves = dentry::lock_moves();
    let gone = TABLE.lock().tree(&at.mount);
    // In use: the caller's location, `gone`, and the two of the table are four.
    if !detach && (gone.len() > 1 || Arc::strong_count(&at.mount) > 4) {
        return Err(Errno::EBUSY);
    }
    drop(gone);
    take_away(&at.mount, moves);
    Ok(())
}

/// Takes a mount and all below it out of the table.
fn take_away(top: &Arc<Mount>, moves: MutexGuard<'static, ()>) {
    let change = Move::begin();
    let mut table = TABLE.lock();
    let mut gone = table.tree(top);
    let mut places = Vec::new();
    for mount in &gone {
        table.remove(mount);
        places.extend(mount.place.lock().take());
    }
    for place in &places {
        table.covering.remove(&(place.mount.id, place.dentry.id()));
        place.dentry.add_mounts(-1);
    }
    drop(table);
    drop(change);
    drop(moves);
    changed();
    for place in places.iter().filter(|place| !place.mount.fs.caches_names()) {
        dentry::unpin(&place.dentry);
    }
    // Children first, so that no mount drops a chain of parents.
    drop(places);
    while gone.pop().is_some() {}
}

/// Moves a mount to another place (MS_MOVE), or gives one that has none its first (move_mount(2)).
/// ELOOP below itself.
pub fn move_mount(from: &Location, to: &Location) -> Result<()> {
    let _moves = dentry::lock_moves();
    let floats = from.mount.floats.load(Ordering::SeqCst);
    if !from.is_mount_top() || from.mount.place().is_none() && !floats {
        return Err(Errno::EINVAL);
    }
    let mut above = Some(to.clone());
    while let Some(at) = above {
        if Arc::ptr_eq(&at.mount, &from.mount) {
            return Err(Errno::ELOOP);
        }
        above = at.mount.place();
    }
    if from.dentry.is_directory() != to.dentry.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let _change = Move::begin();
    let mut table = TABLE.lock();
    let key = (to.mount.id, to.dentry.id());
    if table.covering.contains_key(&key) {
        return Err(Errno::EBUSY);
    }
    if !table.has(&to.mount) {
        return Err(Errno::EINVAL);
    }
    relocate(&mut table, &from.mount, Some(to.clone()));
    from.mount.floats.store(false, Ordering::SeqCst);
    drop(table);
    changed();
    if !to.mount.fs.caches_names() {
        dentry::pin(&to.dentry);
    }
    Ok(())
}

fn relocate(table: &mut Table, mount: &Arc<Mount>, to: Option<Location>) {
    if let Some(to) = &to {
        to.dentry.add_mounts(1);
        table.covering.insert((to.mount.id, to.dentry.id()), mount.clone());
    }
    let old = core::mem::replace(&mut *mount.place.lock(), to);
    if let Some(old) = &old {
        old.dentry.add_mounts(-1);
        table.covering.remove(&(old.mount.id, old.dentry.id()));
    }
    // The place was reached through a mount that the table holds: this drop is never the last one.
    drop(old);
}

/// pivot_root(2): `new` becomes the root of everything, the old root appears at `put_old`, a place
/// in `new` (or `new` itself: the old root is then mounted over it, to be unmounted as `.`).
/// `old` is the caller's root.
pub fn pivot_root(old: &Location, new: &Location, put_old: &Location) -> Result<()> {
    let _moves = dentry::lock_moves();
    if !new.is_mount_top() || !old.is_mount_top() || !put_old.is_within(new) {
        return Err(Errno::EINVAL);
    }
    if Arc::ptr_eq(&new.mount, &old.mount) || Arc::ptr_eq(&put_old.mount, &old.mount) {
        return Err(Errno::EBUSY);
    }
    let Some(new_place) = new.mount.place() else { return Err(Errno::EINVAL) };
    if !put_old.dentry.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let _change = Move::begin();
    let mut table = TABLE.lock();
    if table.covering.contains_key(&(put_old.mount.id, put_old.dentry.id())) {
        return Err(Errno::EBUSY);
    }
    // The new root goes where the old one was: usually nowhere, being the top.
    let old_place = old.mount.place.lock().clone();
    relocate(&mut table, &new.mount, None);
    relocate(&mut table, &old.mount, Some(put_old.clone()));
    if let Some(place) = old_place {
        relocate(&mut table, &new.mount, Some(place));
    }
    drop(table);
    drop(new_place);
    changed();
    Ok(())
}

/// Makes a file system from mount(2)'s source and options.
pub type Maker = fn(&[u8], &[u8]) -> Result<Arc<dyn FileSystem>>;

/// A kind of file system as mount(2) names it.
pub type FileSystemType = (&'static str, Maker);

machine::ro_after_init! {
    static TYPES: Once<&'static [FileSystemType]> = Once::new();
}

/// Says, once, which kinds of file systems mount(2) knows.
pub fn register_types(types: &'static [FileSystemType]) {
    TYPES.call_once(|| types);
}

fn known_types() -> &'static [FileSystemType] {
    TYPES.get().copied().unwrap_or_default()
}

/// A mounted file system of this kind.
pub fn mounted(kind: &[u8]) -> Option<Arc<dyn FileSystem>> {
    let is_kind = |mount: &&Arc<Mount>| mount.fs.name().as_bytes() == kind;
    all().iter().find(is_kind).map(|mount| mount.fs.clone())
}

/// All kinds known, for /proc/filesystems.
pub fn types() -> Vec<&'static str> {
    known_types().iter().map(|(name, _)| *name).collect()
}

/// A new file system of a kind; ENODEV if the kind is not known.
pub fn make_file_system(kind: &[u8], source: &[u8], options: &[u8]) -> Result<Arc<dyn FileSystem>> {
    let known = known_types().iter().find(|(name, _)| name.as_bytes() == kind);
    let (_, maker) = known.ok_or(Errno::ENODEV)?;
    maker(source, options)
}
