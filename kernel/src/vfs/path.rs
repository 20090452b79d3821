//! Names to objects: path walking (path_resolution(7)).
//!
//! Why it is hard: a path crosses mounts in both directions, follows links whose text replaces the
//! rest of the path, must not leave a process's root, and is what programs do most. The walk holds
//! one [`Location`] and moves it component by component; on cached names it allocates nothing and
//! takes no sleeping lock. Links are followed by rewriting the rest of the path, not by recursion.
//!
//! Directories move while somebody walks. A walk that must stay in a scope (openat2(2)) therefore
//! gives up with EAGAIN when something has moved by the time it takes `..`, for it can no more tell
//! whether it meets the scope's top on its way up; and a mount that shows a part of a file system
//! does not let a walk climb out of that part beside its top.
//!
//! Reading order: [`Location`], [`Context`], [`Walk`]. What changes names is in `namei`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::{Once, ReadMostly};

use super::dentry::{self, Cached, Dentry, Moves};
use super::file::Fd;
use super::mount::{self, Mount};
use super::permission::{self, EXECUTE};
use super::{File, FileType, Inode, hooks};
use crate::base::user::PATH_MAX;
use crate::base::{names, tally};
use crate::security::Subject;

/// Longest name of a component (limits.h).
pub const NAME_MAX: usize = 255;
/// Most links followed in one walk (path_resolution(7)).
pub const LINKS_MAX: u32 = 40;

/// Working directory, root directory, umask (CLONE_FS shares them).
pub struct FsContext {
    /// Current directory.
    pub cwd: ReadMostly<Location>,
    /// Root directory.
    pub root: ReadMostly<Location>,
    /// File mode creation mask.
    pub umask: AtomicU32,
}

impl FsContext {
    /// A copy that later changes on either side do not affect.
    #[must_use]
    pub fn duplicate(&self) -> FsContext {
        FsContext {
            cwd: ReadMostly::new(self.cwd.read(Location::clone)),
            root: ReadMostly::new(self.root.read(Location::clone)),
            umask: AtomicU32::new(self.umask.load(Ordering::Relaxed)),
        }
    }
}

/// A place in the tree of names: an object, the name it was reached by, and the mount it is seen
/// in.
#[derive(Clone)]
pub struct Location {
    /// The mount.
    pub mount: Arc<Mount>,
    /// The object under its name.
    pub dentry: Arc<Dentry>,
}

impl Location {
    /// A dentry as seen in a mount.
    #[inline(always)]
    pub fn new(mount: Arc<Mount>, dentry: Arc<Dentry>) -> Self {
        Location { mount, dentry }
    }

    /// The object.
    #[inline(always)]
    pub fn inode(&self) -> &Arc<dyn Inode> {
        self.dentry.inode()
    }

    /// What kind of object it is.
    #[inline(always)]
    pub fn file_type(&self) -> FileType {
        self.dentry.kind()
    }

    /// Whether both are the same place.
    #[inline]
    pub fn same(&self, other: &Location) -> bool {
        Arc::ptr_eq(&self.dentry, &other.dentry) && Arc::ptr_eq(&self.mount, &other.mount)
    }

    /// Whether it is the top of its mount.
    #[inline]
    pub fn is_mount_top(&self) -> bool {
        Arc::ptr_eq(&self.dentry, self.mount.root())
    }

    /// Whether it is `top` or lies below it, across mounts, at one moment.
    pub fn is_within(&self, top: &Location) -> bool {
        dentry::climb(|| {
            let mut at = self.clone();
            loop {
                if at.same(top) {
                    return true;
                }
                match at.up() {
                    Some(parent) => at = parent,
                    None => return false,
                }
            }
        })
    }

    /// The place above, leaving the mount at its top; None at the top of everything.
    pub(super) fn up(&self) -> Option<Location> {
        let mut at = self.clone();
        while at.is_mount_top() {
            at = at.mount.place()?;
        }
        let parent = at.dentry.parent()?;
        Some(Location::new(at.mount, parent))
    }

    /// As [`Location::up`], for who counts all that stands above: what was moved out of the part of
    /// a file system that its mount shows leads to the top of the file system, and from there to
    /// the mount's own top.
    pub(super) fn up_or_back(&self) -> Option<Location> {
        let mut at = self.clone();
        while at.is_mount_top() {
            at = at.mount.place()?;
        }
        if at.mount.is_internal() {
            return None;
        }
        let above = at.dentry.parent().unwrap_or_else(|| at.mount.root().clone());
        Some(Location::new(at.mount, above))
    }

    /// Goes to the top of whatever is mounted here.
    #[inline]
    fn enter_mounts(&mut self) {
        while self.dentry.is_covered()
            && let Some(mount) = mount::covering(&self.mount, &self.dentry)
        {
            let dentry = mount.root().clone();
            *self = Location { mount, dentry };
        }
    }

    /// Its absolute path as seen from `root`, as it was at one moment.
    pub fn path(&self, root: &Location) -> Vec<u8> {
        dentry::climb(|| self.path_now(root))
    }

    /// Its absolute path as seen from `root`. Names below a place that `root` does not contain
    /// begin with `(unreachable)`; a removed name ends in ` (deleted)` (getcwd(2), proc(5)).
    fn path_now(&self, root: &Location) -> Vec<u8> {
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut at = self.clone();
        let mut reached = false;
        let mut length = 0;
        loop {
            if at.same(root) {
                reached = true;
                break;
            }
            if at.is_mount_top() {
                match at.mount.place() {
                    Some(place) => at = place,
                    None => break,
                }
                continue;
            }
            let (parent, name) = at.dentry.parent_and_name();
            length += name.len() + 1;
            let Some(parent) = parent else {
                // An object without a directory: its name says it all.
                if names.is_empty() {
                    return name.to_vec();
                }
                break;
            };
            names.push(name);
            at.dentry = parent;
        }
        let mut path = Vec::with_capacity(length + 32);
        // The top of the tree of names counts as reached by whoever holds no root below it, and
        // so does the kernel's own mount, which is nowhere.
        let is_top = at.is_mount_top() && at.mount.place().is_none() && is_in_tree(&at)
            || at.mount.is_internal();
        if !reached && !is_top {
            path.extend_from_slice(b"(unreachable)");
        }
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if names.is_empty() {
            path.push(b'/');
        }
        if self.dentry.is_unlinked() {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }
}

fn is_in_tree(at: &Location) -> bool {
    mount::is_oldest(&at.mount)
}

/// On whose behalf a path is walked.
#[derive(Clone)]
pub struct Context {
    /// Root and working directory.
    pub fs: Arc<FsContext>,
    /// Permissions.
    pub subject: Subject,
}

impl Context {
    /// The kernel's own, below `root`.
    #[must_use]
    pub fn for_kernel(root: &Location) -> Context {
        let fs = FsContext {
            cwd: ReadMostly::new(root.clone()),
            root: ReadMostly::new(root.clone()),
            umask: 0.into(),
        };
        Context { fs: Arc::new(fs), subject: Subject::kernel() }
    }

    /// The working directory.
    #[inline]
    pub fn cwd(&self) -> Location {
        self.fs.cwd.read(Location::clone)
    }

    /// The root directory.
    #[inline]
    pub fn root(&self) -> Location {
        self.fs.root.read(Location::clone)
    }

    /// `mode` without what the umask takes.
    pub fn masked(&self, mode: u32) -> u32 {
        mode & 0o7777 & !self.fs.umask.load(core::sync::atomic::Ordering::Relaxed)
    }

    /// Where a relative path starts: the working directory, or an open directory. EBADF.
    pub fn start(&self, dirfd: i32, path: &[u8]) -> Result<Location> {
        if path.first() == Some(&b'/') {
            return Ok(self.root());
        }
        if dirfd == raw::AT_FDCWD {
            return Ok(self.cwd());
        }
        let fd = u32::try_from(dirfd).map_err(|_| Errno::EBADF)?;
        let file = acting_file(fd)?;
        file.location.clone().ok_or(Errno::ENOTDIR)
    }
}

/// How the open file behind a descriptor of the running process is found.
pub type FileOf = fn(Fd) -> Result<Arc<File>>;

machine::ro_after_init! {
    static FILE_OF: Once<FileOf> = Once::new();
}

/// Says how descriptors that paths start at are found, once.
pub fn register_files(file_of: FileOf) {
    FILE_OF.call_once(|| file_of);
}

/// The directory or file behind a descriptor that a path starts at; EBADF.
fn acting_file(fd: Fd) -> Result<Arc<File>> {
    FILE_OF.get().map_or(Err(Errno::EBADF), |file_of| file_of(fd))
}

/// Flags of a walk.
pub mod walk {
    /// Follow a link that is the last component.
    pub const FOLLOW: u32 = 1;
    /// The result must be a directory.
    pub const DIRECTORY: u32 = 1 << 1;
    /// The path may be empty: the result is where it starts (AT_EMPTY_PATH).
    pub const EMPTY: u32 = 1 << 2;
    /// Do not leave the mount (RESOLVE_NO_XDEV).
    pub const NO_XDEV: u32 = 1 << 3;
    /// Follow no link of procfs (RESOLVE_NO_MAGICLINKS).
    pub const NO_MAGIC: u32 = 1 << 4;
    /// Follow no link at all (RESOLVE_NO_SYMLINKS).
    pub const NO_LINKS: u32 = 1 << 5;
    /// Do not leave the start's subtree (RESOLVE_BENEATH).
    pub const BENEATH: u32 = 1 << 6;
    /// The start is the root (RESOLVE_IN_ROOT).
    pub const IN_ROOT: u32 = 1 << 7;
}

/// The object a path names, starting at `dirfd` if it is relative.
#[inline]
pub fn resolve(context: &Context, dirfd: i32, path: &[u8], flags: u32) -> Result<Location> {
    if path.is_empty() && flags & walk::EMPTY != 0 {
        return if dirfd == raw::AT_FDCWD {
            Ok(context.cwd())
        } else {
            let fd = u32::try_from(dirfd).map_err(|_| Errno::EBADF)?;
            let file = acting_file(fd)?;
            Ok(match &file.location {
                Some(location) => location.clone(),
                None => super::anon::location(file.ops().inode()),
            })
        };
    }
    Walk::new(context, dirfd, path, flags)?.finish()
}

/// Walks to the directory that holds the last component. EEXIST, EISDIR and such for paths without
/// one are the caller's to decide: see [`Walk::last`].
#[inline]
pub fn resolve_parent<'a>(
    context: &'a Context,
    dirfd: i32,
    path: &'a [u8],
    flags: u32,
) -> Result<Walk<'a>> {
    let mut walk = Walk::new(context, dirfd, path, flags)?;
    walk.to_last()?;
    Ok(walk)
}

/// What a walk has left when it stands before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Nothing: the path was `/`, or ended in a link that went straight to an object.
    Nothing,
    /// A name: its place in the text, and whether a slash follows it.
    Name(usize, usize, bool),
    /// `.`
    Dot,
    /// `..`
    DotDot,
}

enum Text<'a> {
    Given(&'a [u8]),
    Rewritten(Vec<u8>),
}

/// A walk along a path.
pub struct Walk<'a> {
    context: &'a Context,
    flags: u32,
    /// Where it stands.
    pub at: Location,
    /// The start, if the walk must stay below it, and how things stood then.
    scope: Option<(Location, Moves)>,
    /// What `/` and `..` go by, once it is known: it stays the same for the whole walk.
    root: Option<Location>,
    text: Text<'a>,
    /// What of the text is done.
    done: usize,
    links: u32,
    last: Last,
}

impl<'a> Walk<'a> {
    /// Before the first component.
    pub fn new(context: &'a Context, dirfd: i32, path: &'a [u8], flags: u32) -> Result<Walk<'a>> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        let scoped = flags & (walk::BENEATH | walk::IN_ROOT) != 0;
        if path[0] == b'/' && flags & walk::BENEATH != 0 {
            return Err(Errno::EXDEV);
        }
        let moves = Moves::now();
        let at = context.start(dirfd, if scoped { b"" } else { path })?;
        Ok(Walk {
            context,
            flags,
            scope: scoped.then(|| (at.clone(), moves)),
            root: (scoped || path[0] == b'/').then(|| at.clone()),
            at,
            text: Text::Given(path),
            done: 0,
            links: 0,
            last: Last::Nothing,
        })
    }

    fn text(&self) -> &[u8] {
        match &self.text {
            Text::Given(text) => text,
            Text::Rewritten(text) => text,
        }
    }

    /// What is left after [`Walk::to_last`].
    pub fn last(&self) -> Last {
        self.last
    }

    /// The last component's name; `none` if the path has no such.
    pub fn name(&self, none: Errno) -> Result<&[u8]> {
        match self.last {
            Last::Name(from, to, _) => Ok(&self.text()[from..to]),
            _ => Err(none),
        }
    }

    /// Whether the path ends in a slash.
    pub fn has_trailing_slash(&self) -> bool {
        matches!(self.last, Last::Name(_, _, true))
    }

    /// Splits the next component off: its kind, and whether it is the last.
    #[inline(always)]
    fn next_component(&mut self) -> (Last, bool) {
        let text = match &self.text {
            Text::Given(text) => text,
            Text::Rewritten(text) => text.as_slice(),
        };
        let mut from = self.done;
        while text.get(from) == Some(&b'/') {
            from += 1;
        }
        let len = text.get(from..).and_then(|rest| names::find(rest, b'/'));
        let to = len.map_or(text.len(), |len| from + len);
        let mut next = to;
        while text.get(next) == Some(&b'/') {
            next += 1;
        }
        let component = match &text[from..to] {
            [] => Last::Nothing,
            [b'.'] => Last::Dot,
            [b'.', b'.'] => Last::DotDot,
            _ => Last::Name(from, to, next > to),
        };
        let is_last = next == text.len();
        self.done = next;
        (component, is_last)
    }

    /// Goes on to where only the last component is left, in a directory that may be searched.
    pub fn to_last(&mut self) -> Result<()> {
        loop {
            let (component, is_last) = self.next_component();
            if component != Last::Nothing {
                self.check_search()?;
            }
            if is_last {
                self.last = component;
                return Ok(());
            }
            self.step(component, true)?;
        }
    }

    /// Goes to the end and gives the object there.
    #[inline]
    pub fn finish(mut self) -> Result<Location> {
        loop {
            self.to_last()?;
            if self.take_last()? {
                self.check_scope()?;
                return Ok(self.at);
            }
        }
    }

    /// EXDEV if what the walk came to is no more within its scope.
    #[inline]
    pub fn check_scope(&self) -> Result<()> {
        match &self.scope {
            Some((scope, _)) if !self.at.is_within(scope) => Err(Errno::EXDEV),
            _ => Ok(()),
        }
    }

    /// Takes the last component too. False if it was a link: the walk goes on, by `to_last`.
    #[inline]
    pub fn take_last(&mut self) -> Result<bool> {
        let must_be_directory = self.has_trailing_slash() || self.flags & walk::DIRECTORY != 0;
        let follow = self.flags & walk::FOLLOW != 0 || self.has_trailing_slash();
        if !self.step(self.last, follow)? {
            return Ok(false);
        }
        if must_be_directory && !self.at.dentry.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        Ok(true)
    }

    /// Takes one component of a directory that may be searched. False if it was a link whose text
    /// now comes next.
    #[inline(always)]
    fn step(&mut self, component: Last, follow: bool) -> Result<bool> {
        match component {
            Last::Nothing | Last::Dot => Ok(true),
            Last::DotDot => self.parent().map(|()| true),
            Last::Name(from, to, _) => match child_of(&self.at, &self.text()[from..to])? {
                Some(child) => self.enter(child, follow),
                None => Err(self.missing(from)),
            },
        }
    }

    /// Nothing has the name that begins at `from` of the text.
    #[cold]
    fn missing(&self, from: usize) -> Errno {
        if tally::wants_missing_files() {
            let mut path = self.at.path(&self.context.root());
            if path != b"/" {
                path.push(b'/');
            }
            path.extend_from_slice(&self.text()[from..]);
            tally::missing_file(&path);
        }
        Errno::ENOENT
    }

    #[inline(always)]
    fn check_search(&self) -> Result<()> {
        if !self.at.dentry.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        permission::check_search(self.at.inode().as_ref(), &self.context.subject)
    }

    /// Looks the last component up without moving. None: no such name.
    pub fn last_child(&self) -> Result<Option<Arc<Dentry>>> {
        match self.last {
            Last::Name(from, to, _) => child_of(&self.at, &self.text()[from..to]),
            _ => Ok(None),
        }
    }

    /// Moves to a child of the directory; follows it if it is a link and `follow`. False as `step`.
    #[inline(always)]
    pub fn enter(&mut self, child: Arc<Dentry>, follow: bool) -> Result<bool> {
        if child.kind() == FileType::Symlink && follow {
            return self.follow(&child);
        }
        let covered = child.is_covered();
        self.at.dentry = child;
        if covered { self.enter_mounts().map(|()| true) } else { Ok(true) }
    }

    /// Goes to the top of what is mounted here.
    #[inline(never)]
    fn enter_mounts(&mut self) -> Result<()> {
        let before = self.at.mount.id();
        self.at.enter_mounts();
        let leaves = self.flags & walk::NO_XDEV != 0 && self.at.mount.id() != before;
        if leaves { Err(Errno::EXDEV) } else { Ok(()) }
    }

    /// Goes where a link points. False: its text comes next.
    #[inline(never)]
    fn follow(&mut self, link: &Arc<Dentry>) -> Result<bool> {
        self.links += 1;
        let follows = self.at.mount.flags() & raw::MS_NOSYMFOLLOW == 0;
        if self.links > LINKS_MAX || self.flags & walk::NO_LINKS != 0 || !follows {
            return Err(Errno::ELOOP);
        }
        hooks::inode_follow_link((&self.context.subject, link.inode().as_ref()))?;
        if let Some(target) = link.inode().magic_link() {
            if self.flags & walk::NO_MAGIC != 0 {
                return Err(Errno::ELOOP);
            }
            if self.scope.is_some() {
                return Err(Errno::EXDEV);
            }
            let target = target?;
            self.check_same_mount(&target)?;
            self.at = target;
            return Ok(true);
        }
        let target = link.inode().read_link()?;
        link.inode().note_read();
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target[0] == b'/' {
            self.go_to_root()?;
        }
        self.rewrite(target)?;
        Ok(false)
    }

    fn root(&mut self) -> &Location {
        let context = self.context;
        self.root.get_or_insert_with(|| context.root())
    }

    fn go_to_root(&mut self) -> Result<()> {
        if self.flags & walk::BENEATH != 0 {
            return Err(Errno::EXDEV);
        }
        let root = self.root().clone();
        self.check_same_mount(&root)?;
        self.at = root;
        Ok(())
    }

    /// Puts a link's text before the rest of the path.
    fn rewrite(&mut self, mut target: Vec<u8>) -> Result<()> {
        let slash = self.done > 0 && self.text().get(self.done - 1) == Some(&b'/');
        let rest = &self.text()[self.done..];
        if target.len() + rest.len() + 1 > 2 * PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        // Mostly the link comes last.
        if slash || !rest.is_empty() {
            target.try_reserve(rest.len() + 1).map_err(|_| Errno::ENOMEM)?;
            target.extend_from_slice(if slash { b"/" } else { b"" });
            target.extend_from_slice(rest);
        }
        self.text = Text::Rewritten(target);
        self.done = 0;
        Ok(())
    }

    /// Takes `..`: stays at the root, leaves mounts at their tops. EXDEV where the walk may not go;
    /// EAGAIN if that cannot be told; ENOENT from a directory that was moved out of its mount.
    fn parent(&mut self) -> Result<()> {
        let root = self.root().clone();
        loop {
            if self.at.same(&root) {
                if self.flags & walk::BENEATH != 0 {
                    return Err(Errno::EXDEV);
                }
                break;
            }
            if !self.at.is_mount_top() {
                if let Some(parent) = self.at.dentry.parent() {
                    if !self.at.mount.shows(&parent) {
                        return Err(Errno::ENOENT);
                    }
                    self.at.dentry = parent;
                }
                break;
            }
            let Some(place) = self.at.mount.place() else { break };
            self.check_same_mount(&place)?;
            self.at = place;
        }
        let before = self.at.mount.id();
        self.at.enter_mounts();
        if self.at.mount.id() != before && self.flags & walk::NO_XDEV != 0 {
            return Err(Errno::EXDEV);
        }
        match &self.scope {
            Some((_, moves)) if !moves.is_unchanged() => Err(Errno::EAGAIN),
            _ => Ok(()),
        }
    }

    /// EXDEV if the walk may not leave its mount, and this place is in another.
    fn check_same_mount(&self, place: &Location) -> Result<()> {
        let leaves = !Arc::ptr_eq(&place.mount, &self.at.mount);
        if leaves && self.flags & walk::NO_XDEV != 0 { Err(Errno::EXDEV) } else { Ok(()) }
    }
}

/// The object under a name of a directory, from the cache or the file system; None if there is
/// none. Permissions are the caller's matter.
#[inline(always)]
pub fn child_of(directory: &Location, name: &[u8]) -> Result<Option<Arc<Dentry>>> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if directory.mount.names_expire() {
        forget_expired(directory)?;
    }
    match dentry::cached(&directory.dentry, name) {
        Cached::Found(child) => Ok(Some(child)),
        Cached::Absent => Ok(None),
        Cached::Unknown => child_unknown(directory, name),
    }
}

#[inline(never)]
fn child_unknown(directory: &Location, name: &[u8]) -> Result<Option<Arc<Dentry>>> {
    let caches = directory.mount.file_system().caches_names();
    let _names = caches.then(|| directory.dentry.lock_names());
    child_locked(directory, name)
}

/// Forgets what is cached of a directory's names, if they may be others by now.
#[inline(never)]
fn forget_expired(directory: &Location) -> Result<()> {
    let parent = &directory.dentry;
    let version = parent.inode().names_version()?;
    if parent.names_version() == version {
        return Ok(());
    }
    let _names = parent.lock_names();
    if !parent.set_names_version(version) {
        return Ok(());
    }
    dentry::forget_names(parent, |name, inode| {
        // What is in use keeps its place in the tree, if it is still there.
        parent.inode().lookup(name).is_ok_and(|now| Arc::ptr_eq(&now, inode))
    });
    Ok(())
}

/// As [`child_of`], with the directory's names locked.
pub(super) fn child_locked(directory: &Location, name: &[u8]) -> Result<Option<Arc<Dentry>>> {
    match dentry::cached(&directory.dentry, name) {
        Cached::Found(child) => return Ok(Some(child)),
        Cached::Absent => return Ok(None),
        Cached::Unknown => {}
    }
    let parent = &directory.dentry;
    let caches = directory.mount.file_system().caches_names();
    match parent.inode().lookup(name) {
        Ok(inode) if caches => Ok(Some(dentry::enter(parent, name, inode))),
        Ok(inode) => Ok(Some(Dentry::uncached(parent, name, inode))),
        Err(Errno::ENOENT) => {
            if caches {
                dentry::enter_absent(parent, name);
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// As [`child_locked`], for whoever may search the directory.
pub(super) fn child_checked(
    context: &Context,
    directory: &Location,
    name: &[u8],
) -> Result<Option<Arc<Dentry>>> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    permission::check(directory.inode().as_ref(), EXECUTE, &context.subject)?;
    child_locked(directory, name)
}
