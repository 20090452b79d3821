//! Links to objects: working directory, root, executable, and the descriptors of a process.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::process_dir::{Subject, object};
use super::{parse_id, system};
use crate::fs::pseudo::{Body, Content, Listing, PseudoInode, Target, Text};
use crate::process::current;
use crate::vfs::anon::{self, AnonInode};
use crate::vfs::leases;
use crate::vfs::locks::{self, Owner};
use crate::vfs::path::Location;
use crate::vfs::{DirEntry, Fd, File, FileType};

/// A location as the reading process sees it.
fn text_of(location: &Location) -> Vec<u8> {
    let root = current().fs().root.lock().clone();
    location.path(&root)
}

type Followed = Result<(Vec<u8>, Option<Location>)>;

fn to(location: Location) -> Followed {
    Ok((text_of(&location), Some(location)))
}

pub(super) fn cwd(subject: &Subject) -> Followed {
    let fs = subject.fs().ok_or(Errno::ENOENT)?;
    let location = fs.cwd.lock().clone();
    to(location)
}

pub(super) fn root(subject: &Subject) -> Followed {
    let fs = subject.fs().ok_or(Errno::ENOENT)?;
    let location = fs.root.lock().clone();
    to(location)
}

pub(super) fn exe(subject: &Subject) -> Followed {
    let _thread = subject.thread().ok_or(Errno::ENOENT)?;
    let program = subject.process.program.lock().clone();
    let file = program.file.as_ref().ok_or(Errno::ENOENT)?;
    to(file.location.clone().ok_or(Errno::ENOENT)?)
}

/// What an open file is called: its path, or what objects without one are called.
pub(super) fn file_text(file: &File) -> Vec<u8> {
    if let Some(location) = &file.location {
        return text_of(location);
    }
    let inode = file.ops().inode();
    match inode.downcast_ref::<AnonInode>() {
        Some(anon) => anon.link_text().into_bytes(),
        None => b"anon_inode:[unknown]".to_vec(),
    }
}

/// /proc/PID/fd, or /proc/PID/fdinfo.
struct Descriptors {
    subject: Subject,
    info: bool,
}

pub(super) fn directory(subject: Subject) -> Box<dyn Listing> {
    Box::new(Descriptors { subject, info: false })
}

pub(super) fn info_directory(subject: Subject) -> Box<dyn Listing> {
    Box::new(Descriptors { subject, info: true })
}

impl Listing for Descriptors {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        self.check()?;
        let fd = parse_id(name).ok_or(Errno::ENOENT)?;
        let file = self.subject.files().get(fd).map_err(|_| Errno::ENOENT)?;
        let subject = self.subject.clone();
        let (mode, body) = if self.info {
            (0o444, Body::File(Box::new(Info { subject, fd })))
        } else {
            let access = match file.flags() & raw::O_ACCMODE {
                _ if file.flags() & raw::O_PATH != 0 => 0o100,
                raw::O_RDONLY => 0o500,
                raw::O_WRONLY => 0o300,
                _ => 0o700,
            };
            (access, Body::Link(Box::new(Descriptor { subject, fd })))
        };
        Ok(object(directory, name, mode, &self.subject, body))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.check()?;
        let file_type = if self.info { FileType::Regular } else { FileType::Symlink };
        let Ok(from) = Fd::try_from(from) else { return Ok(Vec::new()) };
        let fds = self.subject.files().list_from(from, max);
        Ok(fds
            .into_iter()
            .map(|fd| {
                let name = fd.to_string().into_bytes();
                DirEntry {
                    inode: directory.child_number(&name),
                    name: name.into(),
                    file_type,
                    next: u64::from(fd) + 1,
                }
            })
            .collect())
    }

    /// How many descriptors there are (proc_pid_fd(5)).
    fn size(&self) -> u64 {
        if self.info { 0 } else { self.subject.files().count() as u64 }
    }

    /// A process sees its own descriptors, also where it belongs to root because of what it may
    /// have in memory.
    fn is_own(&self) -> bool {
        !self.info && self.subject.process.is_current()
    }
}

impl Descriptors {
    /// The links are for those whom the directory's permission bits let in, the rest for those who
    /// may look into the process.
    fn check(&self) -> Result<()> {
        self.subject.check_exists()?;
        if self.info { self.subject.inspect(|| Ok(())) } else { Ok(()) }
    }
}

/// A descriptor as a link.
struct Descriptor {
    subject: Subject,
    fd: Fd,
}

impl Descriptor {
    fn file(&self) -> Result<Arc<File>> {
        self.subject.inspect(|| self.subject.files().get(self.fd).map_err(|_| Errno::ENOENT))
    }
}

impl Target for Descriptor {
    fn text(&self) -> Result<Vec<u8>> {
        Ok(file_text(&*self.file()?))
    }

    fn location(&self) -> Option<Result<Location>> {
        Some(self.file().map(|file| match &file.location {
            Some(location) => location.clone(),
            None => anon::location(file.ops().inode()),
        }))
    }
}

/// A descriptor's position and flags.
struct Info {
    subject: Subject,
    fd: Fd,
}

impl Content for Info {
    fn generate(&self, out: &mut Text) -> Result<()> {
        let (file, close, table) = self.subject.inspect(|| {
            let files = self.subject.files();
            let file = files.get(self.fd).map_err(|_| Errno::ENOENT)?;
            Ok((file, files.close_on_exec(self.fd)?, files.identity()))
        })?;
        let close = if close { raw::O_CLOEXEC } else { 0 };
        let position = if file.is_seekable() { *file.position.lock() } else { 0 };
        let mount = file.location.as_ref().map_or(0, |location| location.mount.id());
        let number = file.ops().inode().metadata().map_or(0, |metadata| metadata.inode);
        writeln!(out, "pos:\t{position}\nflags:\t0{:o}", file.flags() | close);
        writeln!(out, "mnt_id:\t{mount}\nino:\t{number}");
        let holders = [Owner::Process(table), Owner::OpenFile(file.id), Owner::Flock(file.id)];
        let locks = locks::of(&*file.inode());
        let own = locks.iter().filter(|lock| holders.contains(&lock.owner) && lock.file == file.id);
        // Those of flock(2) come first.
        let (first, then): (Vec<_>, Vec<_>) =
            own.partition(|lock| matches!(lock.owner, Owner::Flock(_)));
        let mut number = 0;
        let mut next = |out: &mut Text| {
            out.bytes(b"lock:\t");
            number += 1;
            number
        };
        for lock in first.into_iter().chain(then) {
            let number = next(out);
            system::put_lock(out, number, &*file.inode(), lock);
        }
        for lease in leases::shown_of(&*file.inode(), file.id) {
            let number = next(out);
            system::put_lease(out, number, &*file.inode(), lease);
        }
        file.ops().describe(out);
        Ok(())
    }
}
