//! /proc/PID and /proc/PID/task/TID: one directory for each process and each of its threads.
//!
//! What shows more than `ps` needs (memory, descriptors, environment) only opens for those who
//! might trace the process (ptrace(2)): the same user, or CAP_SYS_PTRACE.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};

use super::{fds, gone, maps, memory, mounts, net, parse_id, status};
use crate::base::sched::current;
use crate::fs::pseudo::{
    Body, Content, Listing, PseudoInode, StaticListing, Target, Text, parse_number,
};
use crate::process::ptrace::access::{Ids, may_access};
use crate::process::{Pid, Process, Thread, find_process, find_thread};
use crate::security::Capability;
use crate::vfs::path::Location;
use crate::vfs::{DirEntry, FileType};

/// A process, as one of its threads shows it.
#[derive(Clone)]
pub(super) struct Subject {
    pub(super) process: Arc<Process>,
    /// The thread of /proc/PID/task/TID; None for /proc/PID.
    pub(super) thread: Option<Arc<Thread>>,
}

impl Subject {
    /// Fails with ESRCH once the process has been waited for.
    pub(super) fn check_alive(&self) -> Result<()> {
        match find_process(self.process.pid) {
            Some(known) if Arc::ptr_eq(&known, &self.process) => Ok(()),
            _ => Err(gone()),
        }
    }

    /// The thread that stands for it: the one asked for, or the first.
    pub(super) fn main_thread(&self) -> Option<Arc<Thread>> {
        match &self.thread {
            Some(thread) => Some(thread.clone()),
            None => self.process.threads.lock().first().cloned(),
        }
    }

    /// EACCES unless the current process may look into it.
    pub(super) fn check_inspect(&self) -> Result<()> {
        self.check_alive()?;
        if may_access(&current().process.subject(), &self.process, Ids::File) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }
}

/// Makes the text of a file.
pub(super) type Show = fn(&Subject, &mut Text) -> Result<()>;
/// Takes what was written to a file.
type Store = fn(&Subject, &[u8]) -> Result<()>;
/// Where a link leads: its text, and the object.
pub(super) type Follow = fn(&Subject) -> Result<(Vec<u8>, Option<Location>)>;

/// What an entry is.
enum Kind {
    /// A file for everybody.
    Open(Show),
    /// A file for those who may inspect the process.
    Private(Show),
    /// A file about each area of memory, likewise.
    Areas(maps::ShowArea),
    /// A file that can be written.
    Setting(Show, Store),
    /// The process's memory.
    Memory,
    /// A magic link.
    Link(Follow),
    /// A directory that some code lists.
    Directory(fn(Subject) -> Box<dyn Listing>),
}

/// Entries of both /proc/PID and /proc/PID/task/TID.
static ENTRIES: &[(&str, Kind)] = &[
    ("auxv", Kind::Private(status::auxv)),
    ("cgroup", Kind::Open(cgroup)),
    ("cmdline", Kind::Open(status::cmdline)),
    ("comm", Kind::Setting(status::comm, set_comm)),
    ("cwd", Kind::Link(fds::cwd)),
    ("environ", Kind::Private(status::environ)),
    ("exe", Kind::Link(fds::exe)),
    ("fd", Kind::Directory(fds::directory)),
    ("fdinfo", Kind::Directory(fds::info_directory)),
    ("io", Kind::Private(status::io)),
    ("limits", Kind::Open(status::limits)),
    ("maps", Kind::Areas(maps::map)),
    ("mem", Kind::Memory),
    ("mountinfo", Kind::Open(mounts::mountinfo)),
    ("mounts", Kind::Open(mounts::mounts)),
    ("net", Kind::Directory(|_| Box::new(StaticListing(net::TABLE)))),
    ("ns", Kind::Directory(namespaces)),
    ("oom_adj", Kind::Setting(oom_adj, set_oom_adj)),
    ("oom_score", Kind::Open(oom_score)),
    ("oom_score_adj", Kind::Setting(oom_score_adj, set_oom_score_adj)),
    ("personality", Kind::Private(status::personality)),
    ("root", Kind::Link(fds::root)),
    ("sched", Kind::Open(status::sched)),
    ("schedstat", Kind::Open(status::schedstat)),
    ("smaps", Kind::Areas(maps::smap)),
    ("smaps_rollup", Kind::Private(maps::smaps_rollup)),
    ("stat", Kind::Open(status::stat)),
    ("statm", Kind::Open(status::statm)),
    ("status", Kind::Open(status::status)),
    ("task", Kind::Directory(tasks)),
    ("wchan", Kind::Open(wchan)),
];

/// The directory of a process; also of a thread, which is not listed but found.
pub(super) fn process_directory(top: &PseudoInode, pid: Pid) -> Result<Arc<PseudoInode>> {
    let process = match find_process(pid) {
        Some(process) => process,
        None => find_thread(pid).ok_or(Errno::ENOENT)?.process.clone(),
    };
    let subject = Subject { process, thread: None };
    let name = pid.to_string();
    Ok(subject_directory(top, name.as_bytes(), subject))
}

fn subject_directory(parent: &PseudoInode, name: &[u8], subject: Subject) -> Arc<PseudoInode> {
    let owner = owner(&subject);
    let body = Body::Directory(Box::new(Entries(subject)));
    PseudoInode::new(parent.fs(), parent.child_number(name), 0o555, owner, body)
}

fn owner(subject: &Subject) -> (u32, u32) {
    let credentials = subject.process.credentials();
    (credentials.euid, credentials.egid)
}

struct Entries(Subject);

impl Kind {
    fn file_type(&self) -> FileType {
        match self {
            Kind::Open(_)
            | Kind::Private(_)
            | Kind::Areas(_)
            | Kind::Setting(..)
            | Kind::Memory => FileType::Regular,
            Kind::Link(_) => FileType::Symlink,
            Kind::Directory(_) => FileType::Directory,
        }
    }

    fn body(&self, subject: Subject) -> (u32, Body) {
        match *self {
            Kind::Open(show) => (0o444, file(subject, show, None, false)),
            Kind::Private(show) => (0o444, file(subject, show, None, true)),
            Kind::Areas(show) => (0o444, Body::File(Box::new(maps::Areas { subject, show }))),
            Kind::Setting(show, store) => (0o644, file(subject, show, Some(store), false)),
            Kind::Memory => (0o600, Body::File(Box::new(memory::Memory(subject)))),
            Kind::Link(follow) => (0o777, Body::Link(Box::new(Link { subject, follow }))),
            Kind::Directory(make) => (0o555, Body::Directory(make(subject))),
        }
    }
}

fn file(subject: Subject, show: Show, store: Option<Store>, private: bool) -> Body {
    Body::File(Box::new(Shown { subject, show, store, private }))
}

impl Listing for Entries {
    fn process(&self) -> Option<&Arc<Process>> {
        self.0.thread.is_none().then_some(&self.0.process)
    }

    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        self.0.check_alive().map_err(|_| Errno::ENOENT)?;
        let entry = ENTRIES.iter().find(|(known, _)| known.as_bytes() == name);
        let (name, kind) = entry.ok_or(Errno::ENOENT)?;
        if *name == "task" && self.0.thread.is_some() {
            return Err(Errno::ENOENT);
        }
        let (mode, body) = kind.body(self.0.clone());
        let number = directory.child_number(name.as_bytes());
        Ok(PseudoInode::new(directory.fs(), number, mode, owner(&self.0), body))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.0.check_alive()?;
        let shown = |name: &str| name != "task" || self.0.thread.is_none();
        let entries = ENTRIES.iter().enumerate().skip(from as usize);
        Ok(entries
            .filter(|(_, (name, _))| shown(name))
            .take(max)
            .map(|(index, (name, kind))| DirEntry {
                name: name.as_bytes().to_vec(),
                inode: directory.child_number(name.as_bytes()),
                file_type: kind.file_type(),
                next: index as u64 + 1,
            })
            .collect())
    }
}

struct Shown {
    subject: Subject,
    show: Show,
    store: Option<Store>,
    private: bool,
}

impl Content for Shown {
    fn generate(&self, out: &mut Text) -> Result<()> {
        self.subject.check_alive()?;
        if self.private {
            self.subject.check_inspect()?;
        }
        (self.show)(&self.subject, out)
    }

    fn store(&self, data: &[u8]) -> Result<()> {
        self.subject.check_alive()?;
        self.store.ok_or(Errno::EINVAL)?(&self.subject, data)
    }
}

/// A magic link of a process.
pub(super) struct Link {
    pub(super) subject: Subject,
    pub(super) follow: Follow,
}

impl Target for Link {
    fn text(&self) -> Result<Vec<u8>> {
        self.subject.check_inspect()?;
        Ok((self.follow)(&self.subject)?.0)
    }

    fn location(&self) -> Option<Result<Location>> {
        let found = self.subject.check_inspect().and_then(|()| (self.follow)(&self.subject));
        match found {
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

impl Listing for Tasks {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let tid = parse_id(name).ok_or(Errno::ENOENT)?;
        let threads = self.0.process.threads.lock();
        let thread = threads.iter().find(|thread| thread.tid() == tid).cloned();
        drop(threads);
        let thread = thread.ok_or(Errno::ENOENT)?;
        let subject = Subject { process: self.0.process.clone(), thread: Some(thread) };
        Ok(subject_directory(directory, name, subject))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.0.check_alive()?;
        let mut ids: Vec<Pid> =
            self.0.process.threads.lock().iter().map(|thread| thread.tid()).collect();
        ids.retain(|&tid| u64::from(tid) >= from);
        ids.sort_unstable();
        Ok(ids.iter().take(max).map(|tid| number_entry(directory, *tid)).collect())
    }
}

/// An entry of a directory whose names are ids; the position is the id after it.
fn number_entry(directory: &PseudoInode, id: u32) -> DirEntry {
    let name = id.to_string().into_bytes();
    DirEntry {
        inode: directory.child_number(&name),
        name,
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
        self.0.check_inspect()?;
        Ok(alloc::format!("{}:[{}]", self.1, self.2).into_bytes())
    }
}

impl Listing for Namespaces {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let entry = NAMESPACES.iter().find(|(known, ..)| known.as_bytes() == name);
        let &(_, kind, number) = entry.ok_or(Errno::ENOENT)?;
        let body = Body::Link(Box::new(Namespace(self.0.clone(), kind, number)));
        let inode = directory.child_number(name);
        Ok(PseudoInode::new(directory.fs(), inode, 0o777, owner(&self.0), body))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let entries = NAMESPACES.iter().enumerate().skip(from as usize).take(max);
        Ok(entries
            .map(|(index, (name, ..))| DirEntry {
                name: name.as_bytes().to_vec(),
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

fn wchan(_: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(b"0");
    Ok(())
}

fn set_comm(subject: &Subject, data: &[u8]) -> Result<()> {
    if !subject.process.is_current() {
        return Err(Errno::EINVAL);
    }
    let data = data.strip_suffix(b"\n").unwrap_or(data);
    let mut name = [0; 16];
    let len = data.len().min(15);
    name[..len].copy_from_slice(&data[..len]);
    *subject.main_thread().ok_or_else(gone)?.name.lock() = name;
    Ok(())
}

fn adjustment(subject: &Subject) -> i32 {
    subject.process.settings.oom_score_adj.load(core::sync::atomic::Ordering::Relaxed)
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
    let who = current().process.subject();
    if value < adjustment(subject) && !who.capable(Capability::SysResource) {
        return Err(Errno::EACCES);
    }
    subject.process.settings.oom_score_adj.store(value, core::sync::atomic::Ordering::Relaxed);
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
