//! The connection to a 9P server: requests out, checked replies in, and the fids that name the
//! server's objects for us.
//!
//! Why it is hard: a fid must be given back (clunked), which takes a round trip, but a [`Fid`] is
//! dropped wherever the last reference goes, also where nothing may sleep. So dropping only notes
//! the number, and later calls send the clunks.
//!
//! The server is not trusted. It may answer nothing, too much, or something else than was asked
//! for; that becomes EIO, as does an error number that Linux does not have: 512 and its neighbours
//! would make the kernel restart the system call. `ktest/ninep.rs` plays such a server.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result};
use formats::ninep::{
    Attributes, GETATTR_BASIC, IO_HEADER_BYTES, NO_TAG, Qid, Reply, Request, SetAttr, StatFs,
    VERSION, WireError,
};
use machine::sync::SpinLock;

use crate::drivers::ninep_transport::Transport;

/// Most fids in use at once.
const MAX_FIDS: u32 = 65_536;
/// Clunks sent before one other request: enough to keep up, few enough not to be felt.
const CLUNKS_PER_CALL: usize = 2;
/// Smallest message size that is of any use.
const MIN_MESSAGE: u32 = 4096;

/// A connection.
pub struct Client {
    transport: Arc<dyn Transport>,
    max_message: u32,
    next_tag: AtomicU32,
    fids: SpinLock<FidPool>,
}

#[derive(Default)]
struct FidPool {
    /// Numbers below it have been used.
    next: u32,
    /// Used before and clunked.
    free: Vec<u32>,
    /// Dropped, to be clunked.
    dropped: Vec<u32>,
}

/// The server's name for an object, given back when dropped.
pub struct Fid {
    client: Arc<Client>,
    number: u32,
}

impl Drop for Fid {
    fn drop(&mut self) {
        self.client.fids.lock().dropped.push(self.number);
    }
}

fn to_errno(error: WireError) -> Errno {
    match error {
        WireError::Errno(number) => crate::fs::server_errno(number),
        WireError::Malformed => Errno::EIO,
        WireError::TooLong => Errno::ENAMETOOLONG,
    }
}

impl Client {
    /// Agrees with the server on version and message size. EIO if it speaks something else.
    pub fn connect(transport: Arc<dyn Transport>, max_message: u32) -> Result<Arc<Client>> {
        let mut client = Client {
            transport,
            max_message,
            next_tag: AtomicU32::new(0),
            fids: SpinLock::new(FidPool::default()),
        };
        let request = Request::Version { max_message };
        client.max_message = client.exchange(NO_TAG, &request, |reply| match reply {
            Reply::Version(size, VERSION) if size >= MIN_MESSAGE => Ok(size),
            _ => Err(Errno::EIO),
        })?;
        Ok(Arc::new(client))
    }

    /// Most bytes one read or write can carry.
    pub fn max_data(&self) -> usize {
        self.max_message as usize - IO_HEADER_BYTES
    }

    /// Sends a request and gives its reply to `read`.
    fn call<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        self.send_clunks();
        self.exchange(self.tag(), request, read)
    }

    /// Tags only need to differ among requests that are under way, which are far fewer.
    fn tag(&self) -> u16 {
        (self.next_tag.fetch_add(1, Ordering::Relaxed) % u32::from(NO_TAG)) as u16
    }

    fn exchange<T>(
        &self,
        tag: u16,
        request: &Request<'_>,
        read: impl FnOnce(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        let message = request.encode(tag).map_err(to_errno)?;
        let bytes = self.transport.call(message, request.max_reply())?;
        if bytes.len() > request.max_reply() {
            return Err(Errno::EIO);
        }
        read(request.decode(tag, &bytes).map_err(to_errno)?)
    }

    fn send_clunks(&self) {
        for _ in 0..CLUNKS_PER_CALL {
            let Some(number) = self.fids.lock().dropped.pop() else { return };
            // Whatever the server says, the fid is gone (clunk(5)); if it said nothing that makes
            // sense, the number is not used again.
            let _ = self.clunk(number);
        }
    }

    fn clunk(&self, number: u32) -> Result<()> {
        let result = self.exchange(self.tag(), &Request::Clunk { fid: number }, |_| Ok(()));
        if result != Err(Errno::EIO) {
            self.fids.lock().free.push(number);
        }
        result
    }

    fn new_fid(self: &Arc<Self>) -> Result<Fid> {
        let mut pool = self.fids.lock();
        let number = match pool.free.pop() {
            Some(number) => number,
            None if pool.next >= MAX_FIDS => return Err(Errno::ENFILE),
            None => {
                pool.next += 1;
                pool.next - 1
            }
        };
        drop(pool);
        Ok(Fid { client: self.clone(), number })
    }

    /// Makes a fid for which `request` asks the server. If the server refuses, there is nothing to
    /// clunk, and the number is free at once. After EIO nobody knows: the number is not used again.
    fn fid_for<T>(self: &Arc<Self>, request: impl FnOnce(u32) -> Result<T>) -> Result<(Fid, T)> {
        let fid = self.new_fid()?;
        match request(fid.number) {
            Ok(value) => Ok((fid, value)),
            Err(error) => {
                let number = fid.number;
                core::mem::forget(fid);
                if error != Errno::EIO {
                    self.fids.lock().free.push(number);
                }
                Err(error)
            }
        }
    }

    /// The top of the server's tree.
    pub fn attach(self: &Arc<Self>) -> Result<(Fid, Qid)> {
        self.fid_for(|fid| {
            let request = Request::Attach { fid, user: b"root", tree: b"", uid: 0 };
            self.call(&request, qid)
        })
    }
}

fn qid(reply: Reply<'_>) -> Result<Qid> {
    let Reply::Qid(qid) = reply else { return Err(Errno::EIO) };
    Ok(qid)
}

fn done(_: Reply<'_>) -> Result<()> {
    Ok(())
}

impl Fid {
    /// A new fid for the entry `name` of this directory.
    pub fn walk(&self, name: &[u8]) -> Result<(Fid, Qid)> {
        self.client.fid_for(|new_fid| {
            let request = Request::Walk { fid: self.number, new_fid, names: &[name] };
            self.client.call(&request, |reply| match reply {
                Reply::Walk(found) => found.first().copied().ok_or(Errno::ENOENT),
                _ => Err(Errno::EIO),
            })
        })
    }

    /// A new fid for the same object, not opened.
    pub fn duplicate(&self) -> Result<Fid> {
        let made = self.client.fid_for(|new_fid| {
            let request = Request::Walk { fid: self.number, new_fid, names: &[] };
            self.client.call(&request, done)
        })?;
        Ok(made.0)
    }

    /// Prepares the object for reading or writing; `flags` are open(2)'s.
    pub fn open(&self, flags: u32) -> Result<Qid> {
        self.client.call(&Request::Open { fid: self.number, flags }, qid)
    }

    /// Makes a regular file in this directory; afterwards the fid names that file, opened.
    pub fn create(&self, name: &[u8], flags: u32, mode: u32, gid: u32) -> Result<Qid> {
        let request = Request::Create { fid: self.number, name, flags, mode, gid };
        self.client.call(&request, qid)
    }

    /// Makes a directory.
    pub fn make_directory(&self, name: &[u8], mode: u32, gid: u32) -> Result<Qid> {
        let request = Request::MakeDir { directory: self.number, name, mode, gid };
        self.client.call(&request, qid)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, name: &[u8], target: &[u8], gid: u32) -> Result<Qid> {
        self.client.call(&Request::Symlink { fid: self.number, name, target, gid }, qid)
    }

    /// Makes a device node, FIFO or socket.
    pub fn make_node(
        &self,
        name: &[u8],
        mode: u32,
        (major, minor): (u32, u32),
        gid: u32,
    ) -> Result<Qid> {
        let request = Request::MakeNode { fid: self.number, name, mode, major, minor, gid };
        self.client.call(&request, qid)
    }

    /// Makes another name for `target`.
    pub fn link(&self, name: &[u8], target: &Fid) -> Result<()> {
        let request = Request::Link { directory: self.number, fid: target.number, name };
        self.client.call(&request, done)
    }

    /// Removes a name; `flags` are unlinkat(2)'s.
    pub fn unlink(&self, name: &[u8], flags: u32) -> Result<()> {
        self.client.call(&Request::Unlink { directory: self.number, name, flags }, done)
    }

    /// Moves the entry `old_name` of this directory.
    pub fn rename(&self, old_name: &[u8], to: &Fid, new_name: &[u8]) -> Result<()> {
        let request = Request::Rename { old: self.number, old_name, new: to.number, new_name };
        self.client.call(&request, done)
    }

    /// Its attributes.
    pub fn attributes(&self) -> Result<Attributes> {
        let request = Request::GetAttr { fid: self.number, mask: GETATTR_BASIC };
        self.client.call(&request, |reply| match reply {
            Reply::Attributes(attributes) => Ok(attributes),
            _ => Err(Errno::EIO),
        })
    }

    /// Changes attributes.
    pub fn set_attributes(&self, changes: SetAttr) -> Result<()> {
        self.client.call(&Request::SetAttr { fid: self.number, changes }, done)
    }

    /// Statistics of its file system.
    pub fn statistics(&self) -> Result<StatFs> {
        self.client.call(&Request::StatFs { fid: self.number }, |reply| match reply {
            Reply::StatFs(statistics) => Ok(statistics),
            _ => Err(Errno::EIO),
        })
    }

    /// The target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.client.call(&Request::ReadLink { fid: self.number }, |reply| match reply {
            Reply::Target(target) if !target.is_empty() && !target.contains(&0) => {
                Ok(target.to_vec())
            }
            _ => Err(Errno::EIO),
        })
    }

    /// Reads up to `count` bytes and gives them to `read`. The fid is open for reading.
    pub fn read<T>(
        &self,
        offset: u64,
        count: usize,
        read: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let count = count.min(self.client.max_data()) as u32;
        self.data(&Request::Read { fid: self.number, offset, count }, read)
    }

    /// Reads entries of a directory, up to `count` bytes of them. The fid is open for reading.
    pub fn read_dir<T>(
        &self,
        offset: u64,
        count: usize,
        read: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let count = count.min(self.client.max_data()) as u32;
        self.data(&Request::ReadDir { fid: self.number, offset, count }, read)
    }

    fn data<T>(&self, request: &Request<'_>, read: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        self.client.call(request, |reply| match reply {
            Reply::Data(data) => read(data),
            _ => Err(Errno::EIO),
        })
    }

    /// Writes all of `data`. EIO if the server takes nothing without saying why.
    pub fn write(&self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let part = &data[..data.len().min(self.client.max_data())];
            let request = Request::Write { fid: self.number, offset, data: part };
            let written = self.client.call(&request, |reply| match reply {
                Reply::Written(written @ 1..) => Ok(written as usize),
                _ => Err(Errno::EIO),
            })?;
            data = &data[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Makes what was written last.
    pub fn sync(&self) -> Result<()> {
        self.client.call(&Request::Sync { fid: self.number, data_only: false }, done)
    }

    /// The value of an extended attribute; of all their names, each with a NUL, if `name` is empty.
    pub fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let (value, size) = self.client.fid_for(|new_fid| {
            let request = Request::XattrWalk { fid: self.number, new_fid, name };
            self.client.call(&request, |reply| match reply {
                Reply::Size(size) => Ok(size),
                _ => Err(Errno::EIO),
            })
        })?;
        // Looked at only now, when the new fid will be clunked.
        let size = if size <= XATTR_MAX { size as usize } else { return Err(Errno::E2BIG) };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| Errno::ENOMEM)?;
        while bytes.len() < size {
            let wanted = size - bytes.len();
            let got = value.read(bytes.len() as u64, wanted, |data| {
                bytes.extend_from_slice(data);
                Ok(data.len())
            })?;
            if got == 0 {
                return Err(Errno::EIO);
            }
        }
        Ok(bytes)
    }

    /// Sets an extended attribute, or removes it if `value` is empty, as the protocol has it.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let fid = self.duplicate()?;
        let size = value.len() as u64;
        let request = Request::XattrCreate { fid: fid.number, name, size, flags };
        self.client.call(&request, done)?;
        fid.write(0, value)?;
        // The server acts, and says whether it could, when the fid is clunked.
        let number = fid.number;
        core::mem::forget(fid);
        self.client.clunk(number)
    }
}

/// Largest extended attribute, and largest list of their names (xattr(7)).
const XATTR_MAX: u64 = 65_536;
