//! /proc/PID/map_files: a link to the file behind each area that has one, called by its addresses
//! (proc(5)). To follow one needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, since it leads to files
//! whatever the rights of their directories.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::memory::Prot;

use super::fds::file_text;
use super::maps::file_of;
use super::process_dir::Subject;
use crate::fs::pseudo::{Body, Listing, PseudoInode, Target};
use crate::process::current;
use crate::security::Capability;
use crate::vfs::anon;
use crate::vfs::path::Location;
use crate::vfs::{DirEntry, File, FileType};

pub(super) fn directory(subject: Subject) -> Box<dyn Listing> {
    Box::new(MapFiles(subject))
}

struct MapFiles(Subject);

fn name_of(start: u64, end: u64) -> Vec<u8> {
    format!("{start:x}-{end:x}").into_bytes()
}

/// The addresses of a name as [`name_of`] makes it.
fn parse(name: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = core::str::from_utf8(name).ok()?.split_once('-')?;
    let range = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (name_of(range.0, range.1) == name).then_some(range)
}

impl Listing for MapFiles {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let range = parse(name).ok_or(Errno::ENOENT)?;
        let link = MapFile { subject: self.0.clone(), range };
        let (file, prot) = link.find()?;
        drop(file);
        let read = if prot.contains(Prot::READ) { 0o500 } else { 0 };
        let write = if prot.contains(Prot::WRITE) { 0o200 } else { 0 };
        let credentials = self.0.credentials();
        let owner = (credentials.euid, credentials.egid);
        let (number, body) = (directory.child_number(name), Body::Link(Box::new(link)));
        Ok(PseudoInode::new(directory.fs(), number, read | write, owner, body))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.0.inspect(|| {
            let Some(mm) = self.0.mm() else { return Ok(Vec::new()) };
            let mut entries = Vec::new();
            mm.with(|inner| {
                let areas = inner.vmas.range(from..).filter(|(_, vma)| file_of(vma).is_some());
                entries.extend(areas.take(max).map(|(&start, vma)| {
                    let name = name_of(start, vma.end);
                    let inode = directory.child_number(&name);
                    let name = name.into();
                    DirEntry { inode, name, file_type: FileType::Symlink, next: start + 1 }
                }));
            });
            Ok(entries)
        })
    }
}

/// One of the links.
struct MapFile {
    subject: Subject,
    range: (u64, u64),
}

impl MapFile {
    fn find(&self) -> Result<(Arc<File>, Prot)> {
        let (start, end) = self.range;
        self.subject.inspect(|| {
            self.subject.mm().ok_or(Errno::ENOENT)?.with(|inner| {
                let vma = inner.vmas.get(&start).filter(|vma| vma.end == end);
                let found = vma.and_then(|vma| Some((file_of(vma)?.clone(), vma.prot)));
                found.ok_or(Errno::ENOENT)
            })
        })
    }
}

impl Target for MapFile {
    fn text(&self) -> Result<Vec<u8>> {
        Ok(file_text(&self.find()?.0))
    }

    fn location(&self) -> Option<Result<Location>> {
        let who = current().subject();
        let may = [Capability::SysAdmin, Capability::CheckpointRestore];
        if !may.into_iter().any(|capability| who.capable(capability)) {
            return Some(Err(Errno::EPERM));
        }
        Some(self.find().map(|(file, _)| match &file.location {
            Some(location) => location.clone(),
            None => anon::location(file.ops().inode()),
        }))
    }
}
