//! Messages of the 9P2000.L protocol: requests are encoded, replies decoded.
//!
//! 9P carries a host's files to the guest. Each message is `size[4] type[1] tag[2] body`, numbers
//! little-endian, strings a 16-bit length and bytes. What makes it hard is that the replies come
//! from the other side of a boundary: every length in them is checked against what is really there,
//! a reply must be of the type and tag that was asked for, and counts may not exceed what the
//! request allowed. Nothing here panics or allocates by a number that the server chose; decoded
//! replies borrow from the bytes.
//!
//! The protocol is described by diod's `protocol.md` (9P2000.L) and intro(5) of Plan 9. Neighbour:
//! the kernel's `fs/ninep` holds the connection and gives out tags and fids.

use alloc::vec::Vec;

use crate::wire::{Reader, Short};

/// The version this codec speaks.
pub const VERSION: &[u8] = b"9P2000.L";
/// A tag that no request has; Tversion carries it.
pub const NO_TAG: u16 = 0xffff;
/// A fid that names nothing.
pub const NO_FID: u32 = 0xffff_ffff;
/// Bytes before a message's body.
pub const HEADER_BYTES: usize = 7;
/// Bytes of a read's or write's message that are not data, rounded up: what to take off `msize`.
pub const IO_HEADER_BYTES: usize = 24;
/// Most names in one walk (MAXWELEM).
pub const WALK_MAX: usize = 16;
/// Longest string in a message.
const STRING_MAX: usize = 0xffff;

/// Everything a getattr may ask for that Linux calls "basic" (P9_GETATTR_BASIC).
pub const GETATTR_BASIC: u64 = 0x7ff;

/// Which fields of [`SetAttr`] count (P9_SETATTR_*).
#[expect(missing_docs, reason = "named after the fields")]
pub mod set {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 2;
    pub const GID: u32 = 4;
    pub const SIZE: u32 = 8;
    pub const ATIME: u32 = 0x10;
    pub const MTIME: u32 = 0x20;
    pub const CTIME: u32 = 0x40;
    pub const ATIME_SET: u32 = 0x80;
    pub const MTIME_SET: u32 = 0x100;
}

/// The server's identity of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qid {
    /// Bits: [`Qid::DIRECTORY`], [`Qid::SYMLINK`].
    pub kind: u8,
    /// Changes when the object does.
    pub version: u32,
    /// Unique among the server's objects.
    pub path: u64,
}

impl Qid {
    /// The object is a directory.
    pub const DIRECTORY: u8 = 0x80;
    /// The object is a symbolic link.
    pub const SYMLINK: u8 = 0x02;
}

/// Attributes of an object (Rgetattr). Times are seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "stat(2) describes each")]
pub struct Attributes {
    pub qid: Qid,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub rdev: u64,
    pub size: u64,
    pub block_size: u64,
    pub blocks: u64,
    pub atime: (u64, u64),
    pub mtime: (u64, u64),
    pub ctime: (u64, u64),
}

/// Attributes to change (Tsetattr); `valid` says which, see [`set`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "stat(2) describes each")]
pub struct SetAttr {
    pub valid: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: (u64, u64),
    pub mtime: (u64, u64),
}

/// Statistics of a file system (Rstatfs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "statfs(2) describes each")]
pub struct StatFs {
    pub kind: u32,
    pub block_size: u32,
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub free_files: u64,
    pub id: u64,
    pub name_max: u32,
}

/// A request. Fields are named as the protocol's descriptions name them.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the protocol describes each")]
pub enum Request<'a> {
    StatFs { fid: u32 },
    Open { fid: u32, flags: u32 },
    Create { fid: u32, name: &'a [u8], flags: u32, mode: u32, gid: u32 },
    Symlink { fid: u32, name: &'a [u8], target: &'a [u8], gid: u32 },
    MakeNode { fid: u32, name: &'a [u8], mode: u32, major: u32, minor: u32, gid: u32 },
    ReadLink { fid: u32 },
    GetAttr { fid: u32, mask: u64 },
    SetAttr { fid: u32, changes: SetAttr },
    XattrWalk { fid: u32, new_fid: u32, name: &'a [u8] },
    XattrCreate { fid: u32, name: &'a [u8], size: u64, flags: u32 },
    ReadDir { fid: u32, offset: u64, count: u32 },
    Sync { fid: u32, data_only: bool },
    Link { directory: u32, fid: u32, name: &'a [u8] },
    MakeDir { directory: u32, name: &'a [u8], mode: u32, gid: u32 },
    Rename { old: u32, old_name: &'a [u8], new: u32, new_name: &'a [u8] },
    Unlink { directory: u32, name: &'a [u8], flags: u32 },
    Version { max_message: u32 },
    Attach { fid: u32, user: &'a [u8], tree: &'a [u8], uid: u32 },
    Flush { old_tag: u16 },
    Walk { fid: u32, new_fid: u32, names: &'a [&'a [u8]] },
    Read { fid: u32, offset: u64, count: u32 },
    Write { fid: u32, offset: u64, data: &'a [u8] },
    Clunk { fid: u32 },
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The operation was done and has no result (setattr, fsync, link, rename, unlink, clunk …).
    Done,
    /// Rversion: largest message, and the version the server chose.
    Version(u32, &'a [u8]),
    /// One object was made, attached or opened.
    Qid(Qid),
    /// Rwalk: one for each name that was found.
    Walk(Vec<Qid>),
    /// Rgetattr.
    Attributes(Attributes),
    /// Rstatfs.
    StatFs(StatFs),
    /// Rread, Rreaddir: the bytes. Entries of a directory are read with [`entries`].
    Data(&'a [u8]),
    /// Rwrite: bytes written.
    Written(u32),
    /// Rreadlink.
    Target(&'a [u8]),
    /// Rxattrwalk: size of the attribute, bytes.
    Size(u64),
}

/// Why there is no reply to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The server answered with this Linux error number (Rlerror).
    Errno(u32),
    /// The bytes are not a reply to the request: the server is to blame.
    Malformed,
    /// The request does not fit the protocol (a string longer than 65535 bytes): ours to blame.
    TooLong,
}

const R_LERROR: u8 = 7;

impl Request<'_> {
    /// The type byte of the request; a good reply has the next number.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Request::StatFs { .. } => 8,
            Request::Open { .. } => 12,
            Request::Create { .. } => 14,
            Request::Symlink { .. } => 16,
            Request::MakeNode { .. } => 18,
            Request::ReadLink { .. } => 22,
            Request::GetAttr { .. } => 24,
            Request::SetAttr { .. } => 26,
            Request::XattrWalk { .. } => 30,
            Request::XattrCreate { .. } => 32,
            Request::ReadDir { .. } => 40,
            Request::Sync { .. } => 50,
            Request::Link { .. } => 70,
            Request::MakeDir { .. } => 72,
            Request::Rename { .. } => 74,
            Request::Unlink { .. } => 76,
            Request::Version { .. } => 100,
            Request::Attach { .. } => 104,
            Request::Flush { .. } => 108,
            Request::Walk { .. } => 110,
            Request::Read { .. } => 116,
            Request::Write { .. } => 118,
            Request::Clunk { .. } => 120,
        }
    }

    /// The largest reply the request can have, bytes: room to give the transport.
    #[must_use]
    pub fn max_reply(&self) -> usize {
        match self {
            Request::Read { count, .. } | Request::ReadDir { count, .. } => {
                (*count as usize).saturating_add(HEADER_BYTES + 4)
            }
            Request::ReadLink { .. } => HEADER_BYTES + 2 + 4096,
            _ => 512,
        }
    }

    /// The message. [`WireError::TooLong`] if a string does not fit.
    pub fn encode(&self, tag: u16) -> Result<Vec<u8>, WireError> {
        let data_len = if let Request::Write { data, .. } = self { data.len() } else { 0 };
        let mut out = Writer(Vec::with_capacity(128 + data_len), true);
        out.u32(0);
        out.u8(self.kind());
        out.u16(tag);
        self.encode_body(&mut out);
        let Writer(mut bytes, fits) = out;
        let size = u32::try_from(bytes.len()).ok().filter(|_| fits).ok_or(WireError::TooLong)?;
        bytes[..4].copy_from_slice(&size.to_le_bytes());
        Ok(bytes)
    }

    fn encode_body(&self, out: &mut Writer) {
        match *self {
            Request::StatFs { fid } | Request::ReadLink { fid } | Request::Clunk { fid } => {
                out.u32(fid);
            }
            Request::Open { fid, flags } => out.u32s(&[fid, flags]),
            Request::Create { fid, name, flags, mode, gid } => {
                out.u32(fid);
                out.string(name);
                out.u32s(&[flags, mode, gid]);
            }
            Request::Symlink { fid, name, target, gid } => {
                out.u32(fid);
                out.string(name);
                out.string(target);
                out.u32(gid);
            }
            Request::MakeNode { fid, name, mode, major, minor, gid } => {
                out.u32(fid);
                out.string(name);
                out.u32s(&[mode, major, minor, gid]);
            }
            Request::GetAttr { fid, mask } => {
                out.u32(fid);
                out.u64(mask);
            }
            Request::SetAttr { fid, changes: c } => {
                out.u32s(&[fid, c.valid, c.mode, c.uid, c.gid]);
                for value in [c.size, c.atime.0, c.atime.1, c.mtime.0, c.mtime.1] {
                    out.u64(value);
                }
            }
            Request::Version { max_message } => {
                out.u32(max_message);
                out.string(VERSION);
            }
            Request::Attach { fid, user, tree, uid } => {
                out.u32s(&[fid, NO_FID]);
                out.string(user);
                out.string(tree);
                out.u32(uid);
            }
            Request::Flush { old_tag } => out.u16(old_tag),
            Request::Walk { fid, new_fid, names } => {
                out.u32s(&[fid, new_fid]);
                out.1 &= names.len() <= WALK_MAX;
                out.u16(names.len() as u16);
                names.iter().for_each(|name| out.string(name));
            }
            Request::Read { fid, offset, count } | Request::ReadDir { fid, offset, count } => {
                out.u32(fid);
                out.u64(offset);
                out.u32(count);
            }
            Request::Write { fid, offset, data } => {
                out.u32(fid);
                out.u64(offset);
                out.1 &= u32::try_from(data.len()).is_ok();
                out.u32(data.len() as u32);
                out.0.extend_from_slice(data);
            }
            _ => self.encode_rare(out),
        }
    }

    fn encode_rare(&self, out: &mut Writer) {
        match *self {
            Request::XattrWalk { fid, new_fid, name } => {
                out.u32s(&[fid, new_fid]);
                out.string(name);
            }
            Request::XattrCreate { fid, name, size, flags } => {
                out.u32(fid);
                out.string(name);
                out.u64(size);
                out.u32(flags);
            }
            Request::Sync { fid, data_only } => out.u32s(&[fid, u32::from(data_only)]),
            Request::Link { directory, fid, name } => {
                out.u32s(&[directory, fid]);
                out.string(name);
            }
            Request::MakeDir { directory, name, mode, gid } => {
                out.u32(directory);
                out.string(name);
                out.u32s(&[mode, gid]);
            }
            Request::Rename { old, old_name, new, new_name } => {
                out.u32(old);
                out.string(old_name);
                out.u32(new);
                out.string(new_name);
            }
            Request::Unlink { directory, name, flags } => {
                out.u32(directory);
                out.string(name);
                out.u32(flags);
            }
            _ => {}
        }
    }

    /// Reads the reply to this request, which was sent with `tag`. Bytes after the message that its
    /// size names are ignored: a transport may hand over its whole buffer.
    pub fn decode<'r>(&self, tag: u16, reply: &'r [u8]) -> Result<Reply<'r>, WireError> {
        let mut header = Reader(reply);
        let size = header.u32()? as usize;
        if size < HEADER_BYTES || size > reply.len() {
            return Err(WireError::Malformed);
        }
        let mut body = Reader(&reply[..size]);
        body.u32()?;
        let kind = body.u8()?;
        if body.u16()? != tag {
            return Err(WireError::Malformed);
        }
        if kind == R_LERROR {
            return match body.u32()? {
                number @ 1..=4095 => Err(WireError::Errno(number)),
                _ => Err(WireError::Malformed),
            };
        }
        if kind != self.kind() + 1 {
            return Err(WireError::Malformed);
        }
        self.decode_body(body)
    }

    fn decode_body<'r>(&self, mut body: Reader<'r>) -> Result<Reply<'r>, WireError> {
        Ok(match self {
            Request::Version { max_message } => {
                let size = body.u32()?.min(*max_message);
                Reply::Version(size, body.string()?)
            }
            Request::Attach { .. }
            | Request::Open { .. }
            | Request::Create { .. }
            | Request::Symlink { .. }
            | Request::MakeNode { .. }
            | Request::MakeDir { .. } => Reply::Qid(body.qid()?),
            Request::Walk { names, .. } => {
                let count = usize::from(body.u16()?);
                if count > names.len() {
                    return Err(WireError::Malformed);
                }
                Reply::Walk((0..count).map(|_| body.qid()).collect::<Result<_, _>>()?)
            }
            Request::GetAttr { .. } => Reply::Attributes(body.attributes()?),
            Request::StatFs { .. } => Reply::StatFs(body.stat_fs()?),
            Request::Read { count, .. } | Request::ReadDir { count, .. } => {
                let len = body.u32()?;
                if len > *count {
                    return Err(WireError::Malformed);
                }
                Reply::Data(body.take(len as usize)?)
            }
            Request::Write { data, .. } => match body.u32()? {
                written if written as usize <= data.len() => Reply::Written(written),
                _ => return Err(WireError::Malformed),
            },
            Request::ReadLink { .. } => Reply::Target(body.string()?),
            Request::XattrWalk { .. } => Reply::Size(body.u64()?),
            _ => Reply::Done,
        })
    }
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The object.
    pub qid: Qid,
    /// Offset to read from to get the next one.
    pub next: u64,
    /// Kind, as readdir(3) numbers it (DT_*).
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
}

/// The entries in the data of an Rreaddir. Ends with an error at the first that is not whole.
pub fn entries(data: &[u8]) -> impl Iterator<Item = Result<DirEntry<'_>, WireError>> {
    let mut rest = Reader(data);
    core::iter::from_fn(move || {
        if rest.0.is_empty() {
            return None;
        }
        let entry = rest.entry();
        if entry.is_err() {
            rest.0 = &[];
        }
        Some(entry)
    })
}

/// Bytes, and whether everything fitted so far.
struct Writer(Vec<u8>, bool);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u32s(&mut self, values: &[u32]) {
        values.iter().for_each(|&value| self.u32(value));
    }
    fn string(&mut self, value: &[u8]) {
        let len = value.len().min(STRING_MAX);
        self.1 &= len == value.len();
        self.u16(len as u16);
        self.0.extend_from_slice(&value[..len]);
    }
}

impl From<Short> for WireError {
    fn from(_: Short) -> WireError {
        WireError::Malformed
    }
}

impl<'a> Reader<'a> {
    fn string(&mut self) -> Result<&'a [u8], WireError> {
        let len = usize::from(self.u16()?);
        Ok(self.take(len)?)
    }
    fn qid(&mut self) -> Result<Qid, WireError> {
        Ok(Qid { kind: self.u8()?, version: self.u32()?, path: self.u64()? })
    }
    fn time(&mut self) -> Result<(u64, u64), WireError> {
        Ok((self.u64()?, self.u64()?))
    }

    fn attributes(&mut self) -> Result<Attributes, WireError> {
        let _valid = self.u64()?;
        Ok(Attributes {
            qid: self.qid()?,
            mode: self.u32()?,
            uid: self.u32()?,
            gid: self.u32()?,
            links: self.u64()?,
            rdev: self.u64()?,
            size: self.u64()?,
            block_size: self.u64()?,
            blocks: self.u64()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
        })
    }

    fn stat_fs(&mut self) -> Result<StatFs, WireError> {
        Ok(StatFs {
            kind: self.u32()?,
            block_size: self.u32()?,
            blocks: self.u64()?,
            free: self.u64()?,
            available: self.u64()?,
            files: self.u64()?,
            free_files: self.u64()?,
            id: self.u64()?,
            name_max: self.u32()?,
        })
    }

    fn entry(&mut self) -> Result<DirEntry<'a>, WireError> {
        Ok(DirEntry { qid: self.qid()?, next: self.u64()?, kind: self.u8()?, name: self.string()? })
    }
}
