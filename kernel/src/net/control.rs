//! What travels beside the data: descriptors and credentials (unix(7), "Ancillary messages";
//! cmsg(3)).
//!
//! Why it is hard: a descriptor in flight keeps its file alive, the file may be a socket with
//! descriptors in flight, and so on. Closing such a chain must not recurse on the kernel's stack:
//! files that come out of a dropped message are closed one after the other from a list. Circles
//! (a socket that travels through itself) are found by `garbage`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::{Errno, Result, net as raw};
use machine::sync::SpinLock;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::packet::Said;
use crate::base::user::UserPtr;
use crate::process::{Process, Thread, find_by_tid, find_process, pidfd};
use crate::security::{Capability, Subject};
use crate::vfs::File;

const IP: u32 = raw::IPPROTO_IP as u32;
const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
const UDP: u32 = raw::IPPROTO_UDP as u32;

/// A descriptor of the sender's process (unix(7), SO_PASSPIDFD).
const SCM_PIDFD: u32 = 4;
/// Most descriptors in one message.
const FILES_MAX: usize = 253;
/// Most files in flight in the whole system.
const IN_FLIGHT_MAX: usize = 65_536;
/// Most bytes of ancillary data (net.core.optmem_max).
const CONTROL_MAX: u64 = 128 << 10;

static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// `struct ucred` (unix(7)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "unix(7)")]
pub struct Ucred {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

impl Ucred {
    /// A process, as it is now.
    #[must_use]
    pub fn of(process: &Process) -> Ucred {
        let credentials = process.credentials();
        Ucred { pid: process.pid as i32, uid: credentials.euid, gid: credentials.egid }
    }

    /// A sender that is not known: the overflow ids.
    pub const UNKNOWN: Ucred = Ucred { pid: 0, uid: 65534, gid: 65534 };

    /// Whether `who` may claim to be this (unix(7), SCM_CREDENTIALS): EPERM; ESRCH for a process
    /// that is not.
    fn check(self, who: &Subject) -> Result<()> {
        let is_own = self.pid == who.pid as i32;
        let pid_ok = is_own || who.capable(Capability::SysAdmin);
        let uid_ok =
            [who.uid, who.euid, who.suid].contains(&self.uid) || who.capable(Capability::Setuid);
        let gid_ok =
            [who.gid, who.egid, who.sgid].contains(&self.gid) || who.capable(Capability::Setgid);
        if !(pid_ok && uid_ok && gid_ok) {
            return Err(Errno::EPERM);
        }
        let exists = is_own || self.pid > 0 && find_by_tid(self.pid as u32).is_some();
        if exists { Ok(()) } else { Err(Errno::ESRCH) }
    }
}

/// Files in flight.
#[derive(Default)]
pub struct Files(Vec<Arc<File>>);

impl Files {
    fn new(files: Vec<Arc<File>>) -> Result<Files> {
        if files.is_empty() {
            return Ok(Files(files));
        }
        let before = IN_FLIGHT.fetch_add(files.len(), Ordering::Relaxed);
        super::garbage::take_off(&files);
        let files = Files(files);
        if super::garbage::is_due() {
            super::garbage::collect();
        }
        if before + files.0.len() > IN_FLIGHT_MAX {
            return Err(Errno::ETOOMANYREFS);
        }
        Ok(files)
    }

    /// Calls `f` with each.
    pub fn each(&self, f: &mut dyn FnMut(&Arc<File>)) {
        self.0.iter().for_each(f);
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Clone for Files {
    fn clone(&self) -> Self {
        IN_FLIGHT.fetch_add(self.0.len(), Ordering::Relaxed);
        super::garbage::take_off(&self.0);
        Files(self.0.clone())
    }
}

/// Files to close, and whether somebody is at it.
static GARBAGE: SpinLock<(Vec<Arc<File>>, bool)> = SpinLock::new((Vec::new(), false));

impl Drop for Files {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        IN_FLIGHT.fetch_sub(self.0.len(), Ordering::Relaxed);
        super::garbage::land(&self.0);
        let mut next = {
            let mut garbage = GARBAGE.lock();
            garbage.0.append(&mut self.0);
            if core::mem::replace(&mut garbage.1, true) {
                return;
            }
            garbage.0.pop()
        };
        // Closing may drop more messages; those find the mark set and only add to the list.
        while let Some(file) = next {
            drop(file);
            let mut garbage = GARBAGE.lock();
            next = garbage.0.pop();
            garbage.1 = next.is_some();
        }
    }
}

/// Ancillary data of one message.
#[derive(Clone, Default)]
pub struct Control {
    /// Descriptors.
    pub files: Files,
    /// The sender, if it said so or the receiver wants to know.
    pub credentials: Option<Ucred>,
    /// What is said of a datagram's headers.
    pub said: Said,
    /// What is wrong with it, where that is told only after what is wrong with the connection.
    pub error: Option<Errno>,
}

/// `struct cmsghdr` (cmsg(3)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Header {
    len: u64,
    level: u32,
    kind: u32,
}

const HEADER_BYTES: u64 = size_of::<Header>() as u64;

/// What of a process a family of sockets passes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Descriptors and credentials (unix(7)).
    All,
    /// Who sends, and nothing else (netlink(7)): descriptors are refused.
    Credentials,
    /// Neither is looked at.
    Nothing,
}

impl Passes {
    /// That of a family.
    pub fn of(domain: u32) -> Passes {
        match domain {
            abi::net::AF_UNIX => Passes::All,
            abi::net::AF_NETLINK => Passes::Credentials,
            _ => Passes::Nothing,
        }
    }
}

/// Reads the ancillary data of `who`'s sendmsg(2): `len` bytes at `address`.
pub fn read(who: &Thread, address: u64, len: u64, passes: Passes) -> Result<Control> {
    if len > CONTROL_MAX {
        return Err(Errno::ENOBUFS);
    }
    let mut files = Vec::new();
    let mut credentials = None;
    let mut said = Said::default();
    let mut at = 0;
    while len - at >= HEADER_BYTES {
        let header = UserPtr::<Header>::new(address.wrapping_add(at)).read()?;
        if header.len < HEADER_BYTES || header.len > len - at {
            return Err(Errno::EINVAL);
        }
        let payload = address.wrapping_add(at + HEADER_BYTES);
        let bytes = header.len - HEADER_BYTES;
        if header.level == raw::SOL_SOCKET {
            match header.kind {
                raw::SCM_RIGHTS | raw::SCM_CREDENTIALS if passes == Passes::Nothing => {}
                raw::SCM_RIGHTS if passes == Passes::Credentials => return Err(Errno::EINVAL),
                raw::SCM_RIGHTS => read_files(who, payload, bytes, &mut files)?,
                raw::SCM_CREDENTIALS if bytes == size_of::<Ucred>() as u64 => {
                    let claimed = UserPtr::<Ucred>::new(payload).read()?;
                    claimed.check(&who.subject())?;
                    credentials = Some(claimed);
                }
                _ => return Err(Errno::EINVAL),
            }
        } else if passes == Passes::Nothing && matches!(header.level, IP | IPV6 | UDP) {
            said.read(header.level, header.kind, payload, bytes)?;
        }
        at = (at + header.len).next_multiple_of(8).min(len);
    }
    Ok(Control { files: Files::new(files)?, credentials, said, error: None })
}

fn read_files(who: &Thread, address: u64, bytes: u64, files: &mut Vec<Arc<File>>) -> Result<()> {
    let count = (bytes / 4) as usize;
    if files.len() + count > FILES_MAX {
        return Err(Errno::EINVAL);
    }
    let table = who.files();
    for fd in UserPtr::<i32>::new(address).read_many(count)? {
        let fd = u32::try_from(fd).map_err(|_| Errno::EBADF)?;
        // Also one that only names a place (open(2), O_PATH).
        files.push(table.get(fd)?);
    }
    Ok(())
}

/// A program's buffer for ancillary data, being filled.
pub struct Writer {
    address: u64,
    left: u64,
    /// Bytes written, paddings included.
    pub used: u64,
    /// Something did not fit (MSG_CTRUNC).
    pub truncated: bool,
}

impl Writer {
    /// A buffer of `len` bytes at `address`.
    #[must_use]
    pub fn new(address: u64, len: u64) -> Writer {
        Writer { address, left: if address == 0 { 0 } else { len }, used: 0, truncated: false }
    }

    /// Adds one message, cut if it does not fit.
    pub fn put(&mut self, level: u32, kind: u32, payload: &[u8]) -> Result<()> {
        if self.left < HEADER_BYTES {
            self.truncated = true;
            return Ok(());
        }
        let wanted = HEADER_BYTES + payload.len() as u64;
        let len = wanted.min(self.left);
        self.truncated |= len < wanted;
        let at = self.address + self.used;
        UserPtr::<Header>::new(at).write(&Header { len, level, kind })?;
        let fits = &payload[..(len - HEADER_BYTES) as usize];
        UserPtr::<u8>::new(at + HEADER_BYTES).write_bytes(fits)?;
        let step = len.next_multiple_of(8).min(self.left);
        self.used += step;
        self.left -= step;
        Ok(())
    }

    /// Gives the process a descriptor of the sender's process, or the error's number.
    pub fn put_process(&mut self, pid: i32) -> Result<()> {
        if self.left < HEADER_BYTES + size_of::<i32>() as u64 {
            self.truncated = true;
            return Ok(());
        }
        let process = u32::try_from(pid).ok().and_then(find_process);
        let opened = process.ok_or(Errno::ESRCH).and_then(|process| pidfd::open_fd(&process, 0));
        let number = opened.map_or_else(|error| -error.number(), |fd| fd as i32);
        self.put(raw::SOL_SOCKET, SCM_PIDFD, number.as_bytes())
    }

    /// Gives `process` the descriptors, as many as fit.
    pub fn put_files(
        &mut self,
        process: &Process,
        files: &Files,
        close_on_exec: bool,
    ) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let room = (self.left.saturating_sub(HEADER_BYTES) / 4) as usize;
        let table = process.files();
        let limit = process.fd_limit();
        let mut numbers = Vec::new();
        for file in files.0.iter().take(room) {
            if crate::vfs::hooks::file_receive((file,)).is_err() {
                break;
            }
            match table.insert(file.clone(), close_on_exec, 0, limit) {
                Ok(fd) => numbers.push(fd as i32),
                Err(_) => break,
            }
        }
        self.truncated |= numbers.len() < files.0.len();
        if numbers.is_empty() {
            return Ok(());
        }
        self.put(raw::SOL_SOCKET, raw::SCM_RIGHTS, numbers.as_bytes())
    }
}
