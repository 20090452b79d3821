//! /proc/PID and /proc/PID/task/TID: one directory for each process and each of its threads.
//!
//! What shows more than `ps` needs (memory, descriptors, environment) only opens for those who
//! might trace the process (ptrace(2)): the same user, or CAP_SYS_PTRACE.
//!
//! Why it is hard: a descriptor outlives the right by which it was opened. The process may run a
//! program of higher rights after that, end, or be waited for. So what shows memory is bound to the
//! address space it was opened on and never sees another one; what is not bound asks again at each
//! read. [`ENTRIES`] says which is which.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use machine::cpu::features;

use super::{
    blocked, clear_refs, fds, gone, login, map_files, maps, memory, mounts, net, pagemap, parse_id,
    status,
};
use crate::fs::pseudo::{
    Body, Content, Listing, PseudoInode, StaticListing, Target, Text, parse_number,
};
use crate::mm::Mm;
use crate::process::current;
use crate::process::ptrace::access::{self, Ids};
use crate::process::{Pid, Process, Thread, find_process, find_thread, hooks};
use crate::security::Capability;
use crate::security::Credentials;
use crate::vfs::path::FsContext;
use crate::vfs::path::Location;
use crate::vfs::{DirEntry, FdTable, FileType, Inode as _};

/// A process, as one of its threads shows it.
#[derive(Clone)]
pub(super) struct Subject {
    pub(super) process: Arc<Process>,
    /// The thread, by its id, where it is not the first of the process.
    named: Option<(Pid, Weak<Thread>)>,
    pub(super) scope: Scope,
}

/// What of a thread's process its directory shows besides the thread: its name, state, registers,
/// descriptors and whatever else threads have of their own are the thread's in both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The sums of all threads, and what they have in common: /proc/PID, which is there by the id
    /// of any thread, too.
    Process,
    /// The thread's own part: /proc/PID/task/TID.
    Thread,
}

impl Subject {
    /// A thread of its process. The first one is whoever has the process's id (execve(2)).
    fn of_thread(thread: &Arc<Thread>, scope: Scope) -> Subject {
        let (process, tid) = (thread.process.clone(), thread.tid());
        let named = (tid != process.pid).then(|| (tid, Arc::downgrade(thread)));
        Subject { process, named, scope }
    }

    /// The first thread of a process, which may have ended.
    fn of_process(process: Arc<Process>, scope: Scope) -> Subject {
        Subject { process, named: None, scope }
    }

    /// Fails with ESRCH once the process has been waited for, or its thread has ended that was not
    /// the first.
    pub(super) fn check_alive(&self) -> Result<()> {
        let known = find_process(self.process.pid);
        let is_known = known.is_some_and(|known| Arc::ptr_eq(&known, &self.process));
        let is_there = is_known && (self.named.is_none() || self.thread().is_some());
        if is_there { Ok(()) } else { Err(gone()) }
    }

    /// The same for its directories, which then do not exist: ENOENT.
    pub(super) fn check_exists(&self) -> Result<()> {
        self.check_alive().map_err(|_| Errno::ENOENT)
    }

    /// The thread's id.
    pub(super) fn id(&self) -> Pid {
        self.named.as_ref().map_or(self.process.pid, |(tid, _)| *tid)
    }

    /// The thread. None once it has ended: the first one leaves a zombie behind, also where others
    /// go on.
    pub(super) fn thread(&self) -> Option<Arc<Thread>> {
        let thread = living_thread(&self.process, self.id())?;
        let is_same = |(_, named): &(Pid, Weak<Thread>)| named.as_ptr() == Arc::as_ptr(&thread);
        self.named.as_ref().is_none_or(is_same).then_some(thread)
    }

    /// The address space, of which nothing is left to a thread that has ended.
    pub(super) fn mm(&self) -> Option<Arc<Mm>> {
        self.thread().and_then(|thread| thread.process.mm().ok())
    }

    /// Its descriptors.
    pub(super) fn files(&self) -> Arc<FdTable> {
        self.thread().map_or_else(|| Arc::new(FdTable::new()), |thread| thread.files())
    }

    /// Its directories; None once it has ended.
    pub(super) fn fs(&self) -> Option<Arc<FsContext>> {
        self.thread()?.try_fs()
    }

    /// Its credentials.
    pub(super) fn credentials(&self) -> Arc<Credentials> {
        match self.thread() {
            Some(thread) => thread.credentials(),
            None => self.process.credentials(),
        }
    }

    /// Runs `f` if the current process may look into it; else EACCES.
    pub(super) fn inspect<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.inspect_as(Ids::File, f)
    }

    fn inspect_as<T>(&self, ids: Ids, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_alive()?;
        access::inspect(&self.process, ids, Errno::EACCES, f)
    }

    /// The address space it has now, weakly: what is bound to it does not keep it.
    pub(super) fn space(&self) -> Weak<Mm> {
        self.mm().map_or_else(Weak::new, |mm| Arc::downgrade(&mm))
    }
}

/// Makes the text of a file.
pub(super) type Show = fn(&Subject, &mut Text) -> Result<()>;
/// Takes what was written to a file.
type Store = fn(&Subject, &[u8]) -> Result<()>;
/// Where a link leads: its text, and the object.
pub(super) type Follow = fn(&Subject) -> Result<(Vec<u8>, Option<Location>)>;
/// Binds a file to what the process has when it is opened.
type Bind = fn(Subject) -> Result<Box<dyn Content>>;

/// What an entry is, by whose rule it opens, and what it is bound to. Where more is asked than the
/// permission bits, it is whether the caller may look into the process (ptrace(2), "Ptrace access
/// mode checking", with the ids for files).
enum Node {
    /// A file about the process as it is at each read; ESRCH once it has been waited for.
    Now(Show),
    /// The same, of what is no text that is made at once (seq_file of Linux): it has an end to seek
    /// from, and no place is wrong to write at.
    Bytes(Show),
    /// The same as [`Node::Now`], for those who may look into the process then. Others get this
    /// error.
    Inspected(Ids, Errno, Show),
    /// The same, with writing.
    Setting(Show, Store),
    /// The same, of a line that is written as a whole: nobody writes to it at a place.
    /// The last: of a write only so many bytes are looked at.
    Line(Show, Store, Option<usize>),
    /// A file about the address space that the process has when it is opened, by somebody who may
    /// look into the process then (EACCES). An exec does not take it along to the new program.
    Space(Bind),
    /// The same, of a file by which the process can be taken over.
    Memory(Bind),
    /// A file about something else that the process has when it is opened, for everybody.
    Bound(Bind),
    /// A magic link, for those who may look into the process when they follow or read it.
    Link(Follow),
    /// A directory that some code lists.
    Directory(fn(Subject) -> Box<dyn Listing>),
}

/// An entry: its name, permission bits, and what it is.
type Row = (&'static str, u32, Node);

/// Entries of both /proc/PID and /proc/PID/task/TID. guest/tests has the same table, as Linux
/// answers.
#[rustfmt::skip]
static ENTRIES: &[Row] = &[
    ("arch_status",   0o444, Node::Now(arch_status)),
    ("attr",          0o555, Node::Directory(attributes)),
    // Sessions are no groups to the scheduler, as where Linux is booted with `noautogroup`.
    ("autogroup",     0o644, Node::Line(|_, _| Ok(()), |_, _| Err(Errno::EINVAL), None)),
    ("auxv",          0o400, Node::Space(status::auxv)),
    ("cgroup",        0o444, Node::Now(cgroup)),
    ("children",      0o444, Node::Now(status::children)),
    ("clear_refs",    0o200, Node::Setting(|_, _| clear_refs::show(), clear_refs::store)),
    ("cmdline",       0o444, Node::Bytes(status::cmdline)),
    ("comm",          0o644, Node::Line(status::comm, set_comm, Some(COMM_BYTES))),
    ("cpu_resctrl_groups", 0o444, Node::Now(resource_groups)),
    ("cpuset",        0o444, Node::Now(cpuset)),
    ("cwd",           0o777, Node::Link(fds::cwd)),
    ("environ",       0o400, Node::Space(status::environ)),
    ("exe",           0o777, Node::Link(fds::exe)),
    ("fd",            0o500, Node::Directory(fds::directory)),
    ("fdinfo",        0o555, Node::Directory(fds::info_directory)),
    ("gid_map",       0o644, Node::Bound(|_| Ok(Box::new(IdMap)))),
    ("io",            0o400, Node::Inspected(Ids::File, Errno::EACCES, status::io)),
    ("ksm_merging_pages", 0o400, Node::Now(merging_pages)),
    ("ksm_stat",      0o400, Node::Now(merging)),
    ("limits",        0o444, Node::Now(status::limits)),
    ("loginuid",      0o644, Node::Setting(login::uid, login::set_uid)),
    ("map_files",     0o500, Node::Directory(map_files::directory)),
    ("maps",          0o444, Node::Space(maps::maps)),
    ("mem",           0o600, Node::Memory(memory::open)),
    ("mountinfo",     0o444, Node::Bound(|subject| mounts::open(&subject, mounts::mountinfo))),
    ("mounts",        0o444, Node::Bound(|subject| mounts::open(&subject, mounts::mounts))),
    ("mountstats",    0o400, Node::Bound(|subject| mounts::open(&subject, mounts::mountstats))),
    ("net",           0o555, Node::Directory(|_| Box::new(StaticListing(net::TABLE)))),
    ("ns",            0o511, Node::Directory(namespaces)),
    ("numa_maps",     0o444, Node::Space(maps::numa_maps)),
    ("oom_adj",       0o644, Node::Setting(oom_adj, set_oom_adj)),
    ("oom_score",     0o444, Node::Now(oom_score)),
    ("coredump_filter", 0o644, Node::Setting(core_filter, set_core_filter)),
    ("timerslack_ns", 0o666, Node::Line(timer_slack, set_timer_slack, None)),
    ("oom_score_adj", 0o644, Node::Setting(oom_score_adj, set_oom_score_adj)),
    ("pagemap",       0o400, Node::Space(pagemap::open)),
    ("patch_state",   0o400, Node::Inspected(Ids::FileToAttach, Errno::EPERM, patch_state)),
    ("personality",   0o400, Node::Inspected(Ids::FileToAttach, Errno::EPERM, status::personality)),
    ("projid_map",    0o644, Node::Bound(|_| Ok(Box::new(IdMap)))),
    ("root",          0o777, Node::Link(fds::root)),
    ("sched",         0o644, Node::Now(status::sched)),
    ("schedstat",     0o444, Node::Now(status::schedstat)),
    ("sessionid",     0o444, Node::Bytes(login::session)),
    ("setgroups",     0o644, Node::Bound(|_| Ok(Box::new(GroupsRule)))),
    ("smaps",         0o444, Node::Space(maps::smaps)),
    ("smaps_rollup",  0o444, Node::Space(maps::rollup)),
    ("stack",         0o400, Node::Inspected(Ids::FileToAttach, Errno::EPERM, blocked::stack)),
    ("stat",          0o444, Node::Now(status::stat)),
    ("statm",         0o444, Node::Now(status::statm)),
    ("status",        0o444, Node::Now(status::status)),
    ("syscall",       0o400, Node::Inspected(Ids::FileToAttach, Errno::EPERM, blocked::syscall)),
    ("task",          0o555, Node::Directory(tasks)),
    ("timens_offsets", 0o644, Node::Line(clock_offsets, set_clock_offsets, None)),
    ("timers",        0o444, Node::Now(status::timers)),
    ("uid_map",       0o644, Node::Bound(|_| Ok(Box::new(IdMap)))),
    ("wchan",         0o444, Node::Now(wchan)),
];

/// The one user namespace, which outlives every process: each id stands for itself
/// (user_namespaces(7)), and nothing else can be set.
struct IdMap;

impl Content for IdMap {
    fn generate(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "{:10} {:10} {:10}", 0, 0, u32::MAX);
        Ok(())
    }

    fn refuses_writes(&self) -> Option<Errno> {
        Some(Errno::EPERM)
    }

    fn keeps_mode(&self) -> bool {
        false
    }

    fn gives_pieces(&self) -> bool {
        false
    }
}

/// Whether setgroups(2) may be used there, which nobody can take back where ids are mapped.
struct GroupsRule;

impl Content for GroupsRule {
    fn generate(&self, out: &mut Text) -> Result<()> {
        out.bytes(b"allow\n");
        Ok(())
    }

    fn store(&self, data: &[u8]) -> Result<()> {
        match data.trim_ascii_end() {
            b"allow" => Ok(()),
            b"deny" => Err(Errno::EPERM),
            _ => Err(Errno::EINVAL),
        }
    }
}

macro_rules! attribute {
    ($name:literal) => {
        Node::Setting(|s, _| attribute(s, $name), |s, data| set_attribute(s, $name, data))
    };
}

/// What policies say of a process, each for the policies that know the attribute: /proc/PID/attr.
static ATTRIBUTES: &[Row] = &[
    ("current", 0o666, attribute!(b"current")),
    ("exec", 0o666, attribute!(b"exec")),
    ("fscreate", 0o666, attribute!(b"fscreate")),
    ("keycreate", 0o666, attribute!(b"keycreate")),
    ("prev", 0o444, Node::Bytes(|subject, _| attribute(subject, b"prev"))),
    ("sockcreate", 0o666, attribute!(b"sockcreate")),
];

fn attribute(subject: &Subject, name: &[u8]) -> Result<()> {
    // The policies of this kernel label no process: there is no text to get.
    hooks::getprocattr((0, &subject.process, name)).map(|_| ())
}

fn set_attribute(subject: &Subject, name: &[u8], data: &[u8]) -> Result<()> {
    if !subject.thread().is_some_and(|thread| thread.is_current()) {
        return Err(Errno::EACCES);
    }
    hooks::setprocattr((0, name, data)).map(|_| ())
}

/// The directory of a process; also of a thread, which is not listed but found.
pub(super) fn process_directory(top: &PseudoInode, pid: Pid) -> Result<Arc<PseudoInode>> {
    let subject = match find_process(pid) {
        Some(process) => Subject::of_process(process, Scope::Process),
        None => {
            let thread = find_thread(pid).ok_or(Errno::ENOENT)?;
            Subject::of_thread(&thread, Scope::Process)
        }
    };
    let name = pid.to_string();
    Ok(subject_directory(top, name.as_bytes(), subject))
}

fn subject_directory(parent: &PseudoInode, name: &[u8], subject: Subject) -> Arc<PseudoInode> {
    let entries = Entries { subject: subject.clone(), rows: ENTRIES };
    let directory = object(parent, name, 0o555, &subject, Body::Directory(Box::new(entries)));
    // Nobody changes anything of it, whatever the rights (ioctl_iflags(2)).
    directory.state().set_flags(raw::FS_IMMUTABLE_FL);
    directory
}

fn attributes(subject: Subject) -> Box<dyn Listing> {
    Box::new(Entries { subject, rows: ATTRIBUTES })
}

/// Who owns an entry: the process's user, unless others of that user may not look into it either.
fn owner(subject: &Subject, mode: u32, kind: FileType) -> (u32, u32) {
    let credentials = subject.credentials();
    let hidden = subject.process.settings.not_dumpable.load(Ordering::Relaxed);
    if hidden && (kind, mode) != (FileType::Directory, 0o555) {
        return (0, 0);
    }
    (credentials.euid, credentials.egid)
}

/// An object of a process's directory.
pub(super) fn object(
    directory: &PseudoInode,
    name: &[u8],
    mode: u32,
    subject: &Subject,
    body: Body,
) -> Arc<PseudoInode> {
    let owner = owner(subject, mode, body.file_type());
    hooks::task_to_inode((&subject.process,));
    PseudoInode::new(directory.fs(), directory.child_number(name), mode, owner, body)
}

struct Entries {
    subject: Subject,
    rows: &'static [Row],
}

impl Entries {
    /// Processes have threads, and much that all of those have in common; threads have the children
    /// that they made.
    fn shows(&self, name: &str) -> bool {
        match name {
            "autogroup" | "coredump_filter" | "map_files" | "mountstats" | "task"
            | "timens_offsets" | "timers" | "timerslack_ns" => self.is_of(Scope::Process),
            "children" => self.is_of(Scope::Thread),
            _ => true,
        }
    }

    fn is_of(&self, scope: Scope) -> bool {
        self.subject.scope == scope
    }

    /// It is /proc/PID.
    fn is_process(&self) -> bool {
        self.is_of(Scope::Process) && core::ptr::eq(self.rows, ENTRIES)
    }
}

impl Node {
    fn file_type(&self) -> FileType {
        match self {
            Node::Link(_) => FileType::Symlink,
            Node::Directory(_) => FileType::Directory,
            _ => FileType::Regular,
        }
    }

    fn body(&self, subject: Subject) -> Body {
        let shown = |show| Shown {
            subject: subject.clone(),
            show,
            store: None,
            is_sequence: true,
            denial: None,
            looks_at: None,
        };
        let file = |shown: Shown| Body::File(Box::new(shown));
        let unbound =
            |bind, ids| Body::File(Box::new(Unbound { subject: subject.clone(), bind, ids }));
        match *self {
            Node::Now(show) => file(shown(show)),
            Node::Bytes(show) => file(Shown { is_sequence: false, ..shown(show) }),
            Node::Inspected(ids, denial, show) => {
                file(Shown { denial: Some((ids, denial)), ..shown(show) })
            }
            Node::Setting(show, store) => {
                file(Shown { store: Some(store), is_sequence: false, ..shown(show) })
            }
            Node::Line(show, store, looks_at) => {
                file(Shown { store: Some(store), looks_at, ..shown(show) })
            }
            Node::Space(bind) => unbound(bind, Some(Ids::File)),
            Node::Memory(bind) => unbound(bind, Some(Ids::FileToAttach)),
            Node::Bound(bind) => unbound(bind, None),
            Node::Link(follow) => Body::Link(Box::new(Link { subject, follow })),
            Node::Directory(make) => Body::Directory(make(subject)),
        }
    }
}

impl Listing for Entries {
    // The directory of a process, or of a thread, is as it is; those in it are not.
    fn keeps_owner(&self) -> bool {
        core::ptr::eq(self.rows, ENTRIES)
    }

    fn links(&self) -> u32 {
        let is_directory =
            |(name, _, kind): &&Row| self.shows(name) && kind.file_type() == FileType::Directory;
        2 + self.rows.iter().filter(is_directory).count() as u32
    }

    fn stands_for(&self) -> Option<(Arc<Process>, Pid)> {
        self.is_process().then(|| (self.subject.process.clone(), self.subject.id()))
    }

    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        // Who may look into the directory of a process is asked of the process.
        match self.is_process() {
            true => self.subject.check_alive()?,
            false => self.subject.check_exists()?,
        }
        let entry = self.rows.iter().find(|(known, ..)| known.as_bytes() == name);
        let (known, mode, kind) = entry.ok_or(Errno::ENOENT)?;
        if !self.shows(known) {
            return Err(Errno::ENOENT);
        }
        Ok(object(directory, name, *mode, &self.subject, kind.body(self.subject.clone())))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.subject.check_exists()?;
        let entries = self.rows.iter().enumerate().skip(from as usize);
        Ok(entries
            .filter(|(_, (name, ..))| self.shows(name))
            .take(max)
            .map(|(index, (name, _, kind))| DirEntry {
                name: name.as_bytes().into(),
                inode: directory.child_number(name.as_bytes()),
                file_type: kind.file_type(),
                next: index as u64 + 1,
            })
            .collect())
    }
}

/// A file about the process as it is when it is read.
struct Shown {
    subject: Subject,
    show: Show,
    store: Option<Store>,
    /// Nobody writes to it at a place.
    is_sequence: bool,
    /// What those get who may not look into the process, if it is not for everybody.
    denial: Option<(Ids, Errno)>,
    /// How many bytes of a write matter, if whatever more comes counts as written.
    looks_at: Option<usize>,
}

impl Content for Shown {
    fn looks_at(&self) -> Option<usize> {
        self.looks_at
    }

    fn generate(&self, out: &mut Text) -> Result<()> {
        self.subject.check_alive()?;
        match self.denial {
            Some((ids, denial)) => access::inspect(&self.subject.process, ids, denial, || {
                (self.show)(&self.subject, out)
            }),
            None => (self.show)(&self.subject, out),
        }
    }

    fn store(&self, data: &[u8]) -> Result<()> {
        self.subject.check_alive()?;
        self.store.ok_or(Errno::EINVAL)?(&self.subject, data)
    }

    fn is_sequence(&self) -> bool {
        self.is_sequence
    }

    fn moves_when_written(&self) -> bool {
        false
    }

    fn refuses_writes(&self) -> Option<Errno> {
        self.store.is_none().then_some(Errno::EINVAL)
    }

    fn gives_pieces(&self) -> bool {
        false
    }
}

/// A file that is bound to something when it is opened.
struct Unbound {
    subject: Subject,
    bind: Bind,
    /// How the caller must be able to look into the process, if it must.
    ids: Option<Ids>,
}

impl Content for Unbound {
    fn open(&self) -> Result<Option<Box<dyn Content>>> {
        let bind = || (self.bind)(self.subject.clone());
        match self.ids {
            Some(ids) => self.subject.inspect_as(ids, bind).map(Some),
            None => bind().map(Some),
        }
    }

    fn gives_pieces(&self) -> bool {
        false
    }

    fn generate(&self, _: &mut Text) -> Result<()> {
        // Only what was opened is read.
        Err(Errno::EIO)
    }
}

/// A magic link of a process.
pub(super) struct Link {
    pub(super) subject: Subject,
    pub(super) follow: Follow,
}

impl Target for Link {
    fn text(&self) -> Result<Vec<u8>> {
        Ok(self.subject.inspect(|| (self.follow)(&self.subject))?.0)
    }

    fn location(&self) -> Option<Result<Location>> {
        match self.subject.inspect(|| (self.follow)(&self.subject)) {
            Ok((_, location)) => location.map(Ok),
            Err(error) => Some(Err(error)),
        }
    }
}

/// /proc/PID/task.
struct Tasks(Subject);

fn tasks(subject: Subject) -> Box<dyn Listing> {
    Box::new(Tasks(subject))
}

/// The thread of `process` with this id; None once it has left, if it still is somewhere or not.
fn living_thread(process: &Process, tid: Pid) -> Option<Arc<Thread>> {
    find_thread(tid).filter(|thread| process.threads.lock().has(thread))
}

/// Threads of a process. The first one counts until the process has been waited for.
pub(super) fn thread_count(process: &Process) -> usize {
    let threads = process.threads.lock();
    threads.len() + usize::from(!has_first(process, &threads))
}

fn has_first(process: &Process, threads: &[Arc<Thread>]) -> bool {
    threads.first().is_some_and(|first| first.tid() == process.pid)
}

impl Listing for Tasks {
    fn links(&self) -> u32 {
        2 + thread_count(&self.0.process) as u32
    }

    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let tid = parse_id(name).ok_or(Errno::ENOENT)?;
        self.0.check_exists()?;
        let process = &self.0.process;
        let subject = match living_thread(process, tid) {
            Some(thread) => Subject::of_thread(&thread, Scope::Thread),
            // The first thread of a zombie is there as long as that is.
            None if tid == process.pid => Subject::of_process(process.clone(), Scope::Thread),
            None => return Err(Errno::ENOENT),
        };
        Ok(subject_directory(directory, name, subject))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.0.check_exists()?;
        let first = self.0.process.pid;
        let ids = {
            let threads = self.0.process.threads.lock();
            let mut ids = threads.ids_from(from, max);
            if !has_first(&self.0.process, &threads) && u64::from(first) >= from {
                let place = ids.partition_point(|&tid| tid < first);
                ids.insert(place, first);
                ids.truncate(max);
            }
            ids
        };
        Ok(ids.iter().map(|tid| number_entry(directory, *tid)).collect())
    }
}

/// An entry of a directory whose names are ids; the position is the id after it.
fn number_entry(directory: &PseudoInode, id: u32) -> DirEntry {
    let name = id.to_string().into_bytes();
    DirEntry {
        inode: directory.child_number(&name),
        name: name.into(),
        file_type: FileType::Directory,
        next: u64::from(id) + 1,
    }
}

/// /proc/PID/ns: there is one namespace of each kind, the initial one with Linux's numbers for it.
struct Namespaces(Subject);

const NAMESPACES: &[(&str, &str, u64)] = &[
    ("cgroup", "cgroup", 0xefff_fffb),
    ("ipc", "ipc", 0xefff_ffff),
    ("mnt", "mnt", 0xf000_0000),
    ("net", "net", 0xf000_0001),
    ("pid", "pid", 0xefff_fffc),
    ("pid_for_children", "pid", 0xefff_fffc),
    ("time", "time", 0xefff_fffa),
    ("time_for_children", "time", 0xefff_fffa),
    ("user", "user", 0xefff_fffd),
    ("uts", "uts", 0xefff_fffe),
];

fn namespaces(subject: Subject) -> Box<dyn Listing> {
    Box::new(Namespaces(subject))
}

struct Namespace(Subject, &'static str, u64);

impl Target for Namespace {
    fn text(&self) -> Result<Vec<u8>> {
        self.0.inspect(|| Ok(alloc::format!("{}:[{}]", self.1, self.2).into_bytes()))
    }
}

impl Listing for Namespaces {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let entry = NAMESPACES.iter().find(|(known, ..)| known.as_bytes() == name);
        let &(_, kind, number) = entry.ok_or(Errno::ENOENT)?;
        let body = Body::Link(Box::new(Namespace(self.0.clone(), kind, number)));
        Ok(object(directory, name, 0o777, &self.0, body))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let entries = NAMESPACES.iter().enumerate().skip(from as usize).take(max);
        Ok(entries
            .map(|(index, (name, ..))| DirEntry {
                name: name.as_bytes().into(),
                inode: directory.child_number(name.as_bytes()),
                file_type: FileType::Symlink,
                next: index as u64 + 1,
            })
            .collect())
    }
}

fn cgroup(_: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(b"0::/\n");
    Ok(())
}

fn cpuset(_: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(b"/\n");
    Ok(())
}

/// What no CPU is asked for: when it last used the widest vectors, where there are such.
fn arch_status(_: &Subject, out: &mut Text) -> Result<()> {
    const WIDE_VECTORS: u64 = 0xe0;
    if features().xcr0 & WIDE_VECTORS == WIDE_VECTORS {
        out.bytes(b"AVX512_elapsed_ms:\t-1\n");
    }
    Ok(())
}

/// Caches and memory are not divided into groups.
fn resource_groups(_: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(b"res:\nmon:\n");
    Ok(())
}

/// The kernel is not replaced piece by piece: no thread is on its way from one to the next.
fn patch_state(_: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(b"-1\n");
    Ok(())
}

/// Equal pages are never merged.
fn merging_pages(subject: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(if subject.mm().is_some() { b"0\n" } else { b"" });
    Ok(())
}

fn merging(subject: &Subject, out: &mut Text) -> Result<()> {
    if subject.mm().is_some() {
        let names = ["rmap_items", "zero_pages", "merging_pages", "process_profit"];
        names.iter().for_each(|name| writeln!(out, "ksm_{name} 0"));
    }
    Ok(())
}

/// The one name space of clocks, which begin where those of the machine do (time_namespaces(7)).
fn clock_offsets(subject: &Subject, out: &mut Text) -> Result<()> {
    if subject.thread().is_some() {
        ["monotonic", "boottime"]
            .iter()
            .for_each(|name| writeln!(out, "{name:<10} {0:10} {0:9}", 0));
    }
    Ok(())
}

/// There are processes in it: it stays as it is.
fn set_clock_offsets(_: &Subject, _: &[u8]) -> Result<()> {
    let may = current().subject().capable(Capability::SysTime);
    Err(if may { Errno::EACCES } else { Errno::EPERM })
}

fn wchan(_: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(b"0");
    Ok(())
}

/// Most bytes of a thread's name, without the NUL.
const COMM_BYTES: usize = 15;

fn set_comm(subject: &Subject, data: &[u8]) -> Result<()> {
    if !subject.process.is_current() {
        return Err(Errno::EINVAL);
    }
    let data = data.strip_suffix(b"\n").unwrap_or(data);
    let mut name = [0; COMM_BYTES + 1];
    let len = data.len().min(COMM_BYTES);
    name[..len].copy_from_slice(&data[..len]);
    *subject.thread().ok_or_else(gone)?.name.lock() = name;
    Ok(())
}

fn adjustment(subject: &Subject) -> i32 {
    subject.process.settings.oom_score_adj.load(Ordering::Relaxed)
}

fn timer_slack(subject: &Subject, out: &mut Text) -> Result<()> {
    let thread = subject.thread().ok_or_else(gone)?;
    check_slack(&thread)?;
    writeln!(out, "{}", thread.settings.timer_slack());
    Ok(())
}

fn set_timer_slack(subject: &Subject, data: &[u8]) -> Result<()> {
    let slack = parse_number(data)?;
    let thread = subject.thread().ok_or_else(gone)?;
    check_slack(&thread)?;
    thread.settings.set_timer_slack(slack);
    Ok(())
}

/// The slack of a thread. Another's is for CAP_SYS_NICE to know: EPERM.
fn check_slack(thread: &Thread) -> Result<()> {
    let is_own = core::ptr::eq(thread, &raw const *current());
    if is_own || current().subject().capable(Capability::SysNice) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

fn core_filter(subject: &Subject, out: &mut Text) -> Result<()> {
    if subject.mm().is_some() {
        writeln!(out, "{:08x}", subject.process.settings.core_filter());
    }
    Ok(())
}

/// A number in any base, by its prefix (core(5)).
fn set_core_filter(subject: &Subject, data: &[u8]) -> Result<()> {
    let text = data.trim_ascii_end();
    let value = match text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) {
        Some(digits) => {
            let digits = core::str::from_utf8(digits).map_err(|_| Errno::EINVAL)?;
            u32::from_str_radix(digits, 16).map_err(|_| Errno::EINVAL)?
        }
        None => parse_number(data)?,
    };
    let _memory = subject.mm().ok_or_else(gone)?;
    subject.process.settings.set_core_filter(value);
    Ok(())
}

fn oom_score_adj(subject: &Subject, out: &mut Text) -> Result<()> {
    writeln!(out, "{}", adjustment(subject));
    Ok(())
}

fn set_oom_score_adj(subject: &Subject, data: &[u8]) -> Result<()> {
    let value: i32 = parse_number(data)?;
    if !(-1000..=1000).contains(&value) {
        return Err(Errno::EINVAL);
    }
    set_adjustment(subject, value)
}

/// Lowering needs CAP_SYS_RESOURCE; changing another user's process is refused by its file's mode.
fn set_adjustment(subject: &Subject, value: i32) -> Result<()> {
    let who = current().subject();
    if value < adjustment(subject) && !who.capable(Capability::SysResource) {
        return Err(Errno::EACCES);
    }
    subject.process.settings.oom_score_adj.store(value, Ordering::Relaxed);
    Ok(())
}

/// The older scale, -17 to 15.
fn oom_adj(subject: &Subject, out: &mut Text) -> Result<()> {
    let value = adjustment(subject);
    writeln!(out, "{}", if value == 1000 { 15 } else { value * 17 / 1000 });
    Ok(())
}

fn set_oom_adj(subject: &Subject, data: &[u8]) -> Result<()> {
    let value: i32 = parse_number(data)?;
    if !(-17..=15).contains(&value) {
        return Err(Errno::EINVAL);
    }
    set_adjustment(subject, if value == 15 { 1000 } else { value * 1000 / 17 })
}

/// The share of memory it uses in thousandths, moved by the adjustment.
fn oom_score(subject: &Subject, out: &mut Text) -> Result<()> {
    let pages = subject.process.mm().map_or(0, |mm| mm.resident_pages());
    let (all, _) = machine::frame::usage();
    let share = (pages * 1000 / all.max(1) as u64) as i32;
    writeln!(out, "{}", (share + adjustment(subject)).max(0));
    Ok(())
}
