//! The connection to a virtio-fs server: requests out, checked replies in, and what has to be given
//! back to it: objects that were looked up ([`Node`]) and files that were opened ([`Handle`]).
//!
//! Both are dropped wherever the last reference goes, also where nothing may sleep. So dropping
//! only notes the number, and later requests take the notes along; neither has a reply that anybody
//! waits for.
//!
//! The server is not trusted. What it answers that is no reply to the request becomes EIO.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::{Errno, Result};
use formats::fuse::{self, Caller, FuseError, REPLY_HEADER, Request, feature};
use machine::frame::{Frame, PAGE_SIZE};
use machine::sync::SpinLock;

use super::ahead::Ahead;
use crate::drivers::exchange::Sent;
use crate::drivers::fuse_transport::Transport;

/// Objects given back in one message.
const FORGETS: usize = 256;
/// Pages that one read may bring where the server does not say.
const READ_PAGES: usize = 32;
/// Most that one read brings: 1 MiB.
const READ_PAGES_MAX: usize = 256;
/// Bytes of names asked for at once.
const NAMES_BYTES: u32 = 128 * 1024;
/// The same where nobody waits for them.
const NAMES_AHEAD_BYTES: u32 = 32 * 1024;

/// A connection.
pub(super) struct Client {
    transport: Arc<dyn Transport>,
    next: AtomicU64,
    /// Objects to be given back, with the number of lookups.
    forgets: SpinLock<Vec<(u64, u64)>>,
    /// Files to be given back: object and handle.
    released: SpinLock<Vec<(u64, u64)>>,
    read_pages: usize,
    /// Directories are read without being opened.
    opens_no_directories: AtomicBool,
}

/// The server's name for an object, given back when dropped.
pub(super) struct Node {
    client: Arc<Client>,
    id: u64,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.client.forgets.lock().push((self.id, 1));
    }
}

/// An open file of the server, given back when dropped.
pub(super) struct Handle {
    node: Arc<Node>,
    handle: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.node.client.released.lock().push((self.node.id, self.handle));
    }
}

/// A request whose reply is got later.
pub(super) struct Asked {
    unique: u64,
    sent: Sent,
}

impl Asked {
    /// Whether nobody has to wait for the reply.
    pub(super) fn is_answered(&self) -> bool {
        self.sent.is_answered()
    }
}

/// A name that a directory has, neither `.` nor `..`, and what it stands for.
pub(super) struct Named<'a> {
    pub(super) name: &'a [u8],
    pub(super) number: u64,
    /// DT_* of readdir(3).
    pub(super) kind: u32,
    pub(super) next: u64,
    /// None where the server does not say: who may read a directory may not be allowed to look at
    /// what is in it, and a name may go while it is read.
    pub(super) found: Option<(Node, fuse::Entry)>,
}

fn to_errno(error: FuseError) -> Errno {
    match error {
        FuseError::Errno(number) => crate::fs::server_errno(number),
        FuseError::Malformed => Errno::EIO,
    }
}

impl Client {
    /// Agrees with the server on version and features. EIO if it speaks something else, or cannot
    /// give objects with names.
    pub(super) fn connect(transport: Arc<dyn Transport>) -> Result<Arc<Client>> {
        let mut client = Client {
            transport,
            next: AtomicU64::new(1),
            forgets: SpinLock::new(Vec::new()),
            released: SpinLock::new(Vec::new()),
            read_pages: READ_PAGES,
            opens_no_directories: AtomicBool::new(false),
        };
        let features = feature::ASYNC_READ
            | feature::DO_READDIRPLUS
            | feature::PARALLEL_DIROPS
            | feature::MAX_PAGES
            | feature::NO_OPENDIR_SUPPORT;
        let max_readahead = (READ_PAGES_MAX * PAGE_SIZE) as u32;
        let request = Request::Init { features, max_readahead };
        let init = client.call(&request, fuse::init)?;
        let (major, minor) = fuse::VERSION;
        let can = init.features & feature::DO_READDIRPLUS != 0;
        if init.major != major || init.minor < minor || !can {
            return Err(Errno::EIO);
        }
        if init.features & feature::MAX_PAGES != 0 && init.max_pages > 0 {
            client.read_pages = usize::from(init.max_pages).min(READ_PAGES_MAX);
        }
        Ok(Arc::new(client))
    }

    /// The top of the server's tree: looked up by nobody, so never given back.
    pub(super) fn root(self: &Arc<Self>) -> Arc<Node> {
        let root = Arc::new(Node { client: self.clone(), id: fuse::ROOT });
        core::mem::forget(root.clone());
        root
    }

    fn call<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(&[u8]) -> core::result::Result<T, FuseError>,
    ) -> Result<T> {
        self.give_back();
        let unique = self.number();
        let message = request.encode(unique, Caller::default());
        let (reply, len) = self.transport.call(message, request.max_reply(), Vec::new())?;
        let body = fuse::reply_body(&reply, len, unique).map_err(to_errno)?;
        read(body).map_err(to_errno)
    }

    /// As [`Self::call`], for [`Self::finish`].
    fn begin(&self, request: &Request<'_>) -> Result<Asked> {
        let unique = self.number();
        let message = request.encode(unique, Caller::default());
        let sent = self.transport.begin(message, request.max_reply(), Vec::new())?;
        Ok(Asked { unique, sent })
    }

    fn finish(&self, asked: &Asked) -> Result<Vec<u8>> {
        let (reply, len) = self.transport.finish(&asked.sent)?;
        fuse::reply_body(&reply, len, asked.unique).map_err(to_errno).map(<[u8]>::to_vec)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends what was noted as dropped. What cannot be sent is lost: the server is, too.
    fn give_back(&self) {
        let released = core::mem::take(&mut *self.released.lock());
        for (node, handle) in released {
            self.send(&Request::Release { node, handle });
        }
        let forgets = {
            let mut forgets = self.forgets.lock();
            if forgets.len() < FORGETS {
                return;
            }
            core::mem::take(&mut *forgets)
        };
        for some in forgets.chunks(FORGETS) {
            self.send(&Request::Forget(some));
        }
    }

    fn send(&self, request: &Request<'_>) {
        let message = request.encode(self.number(), Caller::default());
        let room = match request {
            Request::Forget(_) => 0,
            _ => REPLY_HEADER,
        };
        if let Err(error) = self.transport.send(message, room) {
            machine::log!("virtiofs: nothing can be given back: {error:?}");
        }
    }

    /// The object of an entry, which counts as looked up; None if there is none.
    fn found(self: &Arc<Self>, entry: fuse::Entry) -> Option<(Node, fuse::Entry)> {
        let is_one = entry.node != 0 && entry.node != fuse::ROOT;
        is_one.then(|| (Node { client: self.clone(), id: entry.node }, entry))
    }

    /// Pages that one [`Handle::read`] may bring.
    pub(super) fn read_pages(&self) -> usize {
        self.read_pages
    }

    /// Statistics of the file system.
    pub(super) fn statistics(&self) -> Result<fuse::StatFs> {
        self.call(&Request::StatFs, fuse::stat_fs)
    }
}

impl Node {
    /// The server's number.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The object under a name of this directory. ENOENT.
    pub(super) fn lookup(&self, name: &[u8]) -> Result<(Node, fuse::Entry)> {
        let entry = self.client.call(&Request::Lookup { node: self.id, name }, fuse::entry)?;
        self.client.found(entry).ok_or(Errno::ENOENT)
    }

    /// Its attributes, and how long they hold.
    pub(super) fn attributes(&self) -> Result<(fuse::ValidNs, fuse::Attributes)> {
        self.client.call(&Request::GetAttr { node: self.id }, fuse::attributes)
    }

    /// The target of a symbolic link.
    pub(super) fn read_link(&self) -> Result<Vec<u8>> {
        let target =
            self.client.call(&Request::ReadLink { node: self.id }, |body| Ok(body.to_vec()))?;
        if target.is_empty() || target.contains(&0) { Err(Errno::EIO) } else { Ok(target) }
    }

    /// Opens a regular file for reading.
    pub(super) fn open(self: &Arc<Self>) -> Result<Handle> {
        let flags = abi::general::O_RDONLY;
        let handle = self.client.call(&Request::Open { node: self.id, flags }, fuse::handle)?;
        Ok(Handle { node: self.clone(), handle })
    }

    /// Asks for names of this directory from position `from` on; [`Self::finish_names`] gets them.
    /// EAGAIN if that would have to wait.
    pub(super) fn begin_names(&self, from: u64) -> Result<Asked> {
        if !self.client.opens_no_directories.load(Ordering::Relaxed) {
            return Err(Errno::EAGAIN);
        }
        let count = NAMES_AHEAD_BYTES;
        self.client.begin(&Request::ReadDirPlus { node: self.id, handle: 0, offset: from, count })
    }

    /// The names, as the server put them. They are to be gone through, or given back.
    pub(super) fn finish_names(&self, asked: &Asked) -> Result<Vec<u8>> {
        self.client.finish(asked)
    }

    /// Gives back the objects that have come with names that nobody wants.
    pub(super) fn give_back_names(&self, body: &[u8]) {
        for (entry, _) in fuse::names_with_objects(body).flatten() {
            drop(self.client.found(entry));
        }
    }

    /// Gives the names of this directory from position `from` on to `each`, until it wants no more
    /// (false) or there are none; those that were asked for `ahead` come first. EIO for `.` or `..`
    /// more than once, and positions in circles.
    pub(super) fn names(
        &self,
        from: u64,
        mut ahead: Option<Ahead>,
        mut each: impl FnMut(Named<'_>) -> Result<bool>,
    ) -> Result<()> {
        let handle = self.open_directory()?;
        let result = self.names_of(handle, from, ahead.as_mut(), &mut each);
        if let Some(handle) = handle {
            self.client.send(&Request::ReleaseDir { node: self.id, handle });
        }
        result
    }

    fn names_of(
        &self,
        handle: Option<u64>,
        mut from: u64,
        mut ahead: Option<&mut Ahead>,
        each: &mut dyn FnMut(Named<'_>) -> Result<bool>,
    ) -> Result<()> {
        let handle = handle.unwrap_or(0);
        let mut dots = 0;
        loop {
            let (node, offset) = (self.id, from);
            let request = Request::ReadDirPlus { node, handle, offset, count: NAMES_BYTES };
            let body = match ahead.as_mut().and_then(|ahead| ahead.next()) {
                Some(body) => body,
                None => self.client.call(&request, |body| Ok(body.to_vec()))?,
            };
            if body.is_empty() {
                return Ok(());
            }
            // To the end also when it is of no use any more: each counts as looked up.
            let mut goes_on = Ok(true);
            for named in fuse::names_with_objects(&body) {
                let (entry, name) = named.map_err(to_errno)?;
                let fuse::Name { name, ino: number, next, kind } = name;
                let found = self.client.found(entry);
                let is_dot = name == b"." || name == b"..";
                dots += usize::from(is_dot);
                if let Ok(true) = goes_on {
                    // A position that does not move would be asked for again and again.
                    goes_on = match (next == from || dots > 2, is_dot) {
                        (true, _) => Err(Errno::EIO),
                        (false, true) => Ok(true),
                        _ => each(Named { name, number, kind, next, found }),
                    };
                }
                from = next;
            }
            if !goes_on? {
                return Ok(());
            }
        }
    }

    /// The handle for reading this directory, if the server wants one.
    fn open_directory(&self) -> Result<Option<u64>> {
        if self.client.opens_no_directories.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.client.call(&Request::OpenDir { node: self.id }, fuse::handle) {
            Err(Errno::ENOSYS) => {
                self.client.opens_no_directories.store(true, Ordering::Relaxed);
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// The value of an extended attribute.
    pub(super) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.client.call(&Request::GetXattr { node: self.id, name }, |body| Ok(body.to_vec()))
    }

    /// The names of all extended attributes, each with a NUL.
    pub(super) fn xattrs(&self) -> Result<Vec<u8>> {
        self.client.call(&Request::ListXattr { node: self.id }, |body| Ok(body.to_vec()))
    }
}

impl Handle {
    /// Reads at `offset` into frames, at most [`Client::read_pages`] of them. Bytes that came.
    pub(super) fn read(&self, offset: u64, frames: &[Frame]) -> Result<usize> {
        let client = &self.node.client;
        client.give_back();
        let (unique, message) = self.read_request(offset, frames);
        let (reply, len) = client.transport.call(message, REPLY_HEADER, frames.to_vec())?;
        fuse::reply_body(&reply, len, unique).map_err(to_errno)?;
        Ok((len - REPLY_HEADER).min(frames.len() * PAGE_SIZE))
    }

    /// As [`Self::read`], for [`Self::finish_read`]. EAGAIN if that would have to wait.
    pub(super) fn begin_read(&self, offset: u64, frames: &[Frame]) -> Result<Asked> {
        let (unique, message) = self.read_request(offset, frames);
        let sent = self.node.client.transport.begin(message, REPLY_HEADER, frames.to_vec())?;
        Ok(Asked { unique, sent })
    }

    /// Sleeps until the frames are filled as far as the file goes. Bytes that came.
    pub(super) fn finish_read(&self, asked: &Asked) -> Result<usize> {
        let (reply, len) = self.node.client.transport.finish(&asked.sent)?;
        fuse::reply_body(&reply, len, asked.unique).map_err(to_errno)?;
        Ok(len - REPLY_HEADER)
    }

    fn read_request(&self, offset: u64, frames: &[Frame]) -> (u64, Vec<u8>) {
        let count = (frames.len() * PAGE_SIZE) as u32;
        let request = Request::Read { node: self.node.id, handle: self.handle, offset, count };
        let unique = self.node.client.number();
        (unique, request.encode(unique, Caller::default()))
    }
}
