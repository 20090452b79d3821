//! procfs (proc(5)): what the kernel tells about itself and about processes, as text that existing
//! programs take apart, so spaces and tabs are where they expect them.
//!
//! Reading order: this file (the top directory), `system` and `cpuinfo` (the machine), `sysctl`
//! (/proc/sys), `process` (/proc/PID), then what it shows: `status`, `maps`, `fds`, `mounts`,
//! `blocked`, `login`; `clear_refs` is only written.
//! Neighbour: [`crate::fs::pseudo`], on which all of it is built.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};

use crate::fs::pseudo::{Listing, PseudoFs, PseudoInode, Static, StaticListing};
use crate::ipc::sysv;
use crate::process::current;
use crate::process::{self, Pid};
use crate::vfs::{DirEntry, FileType};

mod blocked;
mod caches;
mod clear_refs;
mod cpuinfo;
mod cpus;
mod fds;
mod interrupts;
mod limen;
mod login;
mod map_files;
mod maps;
mod memory;
pub mod mounts;
mod net;
mod net_tables;
mod pagemap;
mod process_dir;
mod status;
mod sysctl;
pub mod sysfs;
mod system;

pub use system::load_averages;

/// PROC_SUPER_MAGIC (statfs(2)).
const MAGIC: u64 = 0x9fa0;

/// A new procfs.
pub fn new() -> Arc<PseudoFs> {
    PseudoFs::new("proc", MAGIC, false, Box::new(Top))
}

static TOP: &[(&str, Static)] = &[
    ("cgroups", Static::File(system::cgroups)),
    ("cmdline", Static::File(system::cmdline)),
    ("cpuinfo", Static::File(cpuinfo::show)),
    ("devices", Static::File(system::devices)),
    ("diskstats", Static::File(system::empty)),
    ("execdomains", Static::File(system::execdomains)),
    ("filesystems", Static::File(system::filesystems)),
    ("interrupts", Static::File(interrupts::show)),
    ("limen", Static::Directory(limen::TABLE)),
    ("loadavg", Static::File(system::loadavg)),
    ("locks", Static::File(system::locks)),
    ("meminfo", Static::File(system::meminfo)),
    ("misc", Static::File(system::misc)),
    ("modules", Static::File(system::empty)),
    ("mounts", Static::Link(|| Ok(b"self/mounts".to_vec()))),
    ("net", Static::Link(|| Ok(b"self/net".to_vec()))),
    ("partitions", Static::File(system::partitions)),
    ("self", Static::Link(own_process)),
    ("stat", Static::File(system::stat)),
    ("swaps", Static::File(system::swaps)),
    ("sys", Static::Directory(sysctl::TABLE)),
    ("sysvipc", Static::Directory(SYSVIPC)),
    ("thread-self", Static::Link(own_thread)),
    ("tty", Static::Directory(&[("drivers", Static::File(system::tty_drivers))])),
    ("uptime", Static::File(system::uptime)),
    ("version", Static::File(system::version)),
    ("vmstat", Static::File(system::vmstat)),
];

static SYSVIPC: &[(&str, Static)] = &[
    ("msg", Static::File(sysv::msg::list)),
    ("sem", Static::File(sysv::sem::list)),
    ("shm", Static::File(sysv::shm::list)),
];

fn own_process() -> Result<Vec<u8>> {
    Ok(current().process.pid.to_string().into_bytes())
}

fn own_thread() -> Result<Vec<u8>> {
    let thread = current();
    Ok(alloc::format!("{}/task/{}", thread.process.pid, thread.tid()).into_bytes())
}

/// The top directory: the table, then one directory for each process.
struct Top;

/// Positions of processes come after those of the table, at this plus the process's id.
const FIRST_PROCESS: u64 = 1 << 16;

impl Listing for Top {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        match parse_id(name) {
            Some(pid) => process_dir::process_directory(directory, pid),
            None => StaticListing(TOP).lookup(directory, name),
        }
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let mut found = Vec::new();
        if from < FIRST_PROCESS {
            found = StaticListing(TOP).list(directory, from, max)?;
        }
        let first = from.saturating_sub(FIRST_PROCESS);
        let first = Pid::try_from(first).unwrap_or(Pid::MAX);
        let processes = process::processes_from(first, max.saturating_sub(found.len()));
        found.extend(processes.iter().map(|process| {
            let name = process.pid.to_string().into_bytes();
            DirEntry {
                inode: directory.child_number(&name),
                name: name.into(),
                file_type: FileType::Directory,
                next: FIRST_PROCESS + u64::from(process.pid) + 1,
            }
        }));
        Ok(found)
    }
}

/// A process or thread id or a descriptor as it stands in a path: digits, no leading zero.
fn parse_id(name: &[u8]) -> Option<Pid> {
    if name.first() == Some(&b'0') && name.len() > 1 || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(name).ok()?.parse().ok()
}

/// An error of a process that has gone: its directory does not exist any more.
fn gone() -> Errno {
    Errno::ESRCH
}
