//! Messages of the FUSE protocol, as virtio-fs carries them: requests are encoded, replies decoded.
//!
//! A request is a header of 40 bytes (length, operation, number, object, who), then what the
//! operation takes; a reply a header of 16 bytes (length, error, number), then what was asked for.
//! Numbers are little-endian here, as guest and host are. What makes it hard is that replies come
//! from the other side of a boundary: every length in them is checked against what is really
//! there, a reply must carry the number of its request, and kinds and times are taken as claims.
//! Nothing here panics or allocates by a number that the server chose; decoded replies borrow from
//! the bytes. Only what a client that reads needs is here: the tree it serves is never written.
//!
//! The protocol is described by fuse(4) and `linux/fuse.h` (version 7.31 and later). Neighbours:
//! the kernel's `fs/virtiofs` holds the connection; [`crate::ninep`] is the other such protocol.

use alloc::vec::Vec;

use crate::wire::{Reader, Short};

/// The version this codec speaks.
pub const VERSION: (u32, u32) = (7, 31);
/// The top of the server's tree (FUSE_ROOT_ID).
pub const ROOT: u64 = 1;
/// Bytes of a request's header.
pub const REQUEST_HEADER: usize = 40;
/// Bytes of a reply's header.
pub const REPLY_HEADER: usize = 16;
/// Bytes of an object's attributes.
const ATTRIBUTES: usize = 88;
/// Bytes of a found object: how long it may be believed, then its attributes.
const ENTRY: usize = 40 + ATTRIBUTES;
/// Bytes of a name's record before the name.
const NAME_RECORD: usize = 24;
/// Longest link, name list or value of an extended attribute that is asked for.
pub const BLOB_MAX: u32 = 65_536;

/// What the two sides can do beyond the first version (FUSE_INIT's flags).
#[expect(missing_docs, reason = "named after the protocol's FUSE_*")]
pub mod feature {
    pub const ASYNC_READ: u32 = 1;
    pub const DO_READDIRPLUS: u32 = 1 << 13;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const NO_OPENDIR_SUPPORT: u32 = 1 << 24;
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Agrees on version and features; the first request.
    Init {
        /// Bits of [`feature`].
        features: u32,
        /// Most bytes read ahead.
        max_readahead: u32,
    },
    /// The object under a name.
    Lookup {
        /// The directory.
        node: u64,
        /// Without NUL.
        name: &'a [u8],
    },
    /// Gives back what lookups have handed out: pairs of object and number of lookups. No reply.
    Forget(&'a [(u64, u64)]),
    /// An object's attributes.
    GetAttr {
        /// The object.
        node: u64,
    },
    /// Where a symbolic link points.
    ReadLink {
        /// The link.
        node: u64,
    },
    /// Prepares a regular file for reading.
    Open {
        /// The file.
        node: u64,
        /// open(2)'s.
        flags: u32,
    },
    /// Prepares a directory for reading.
    OpenDir {
        /// The directory.
        node: u64,
    },
    /// Reads from an open file.
    Read {
        /// The file.
        node: u64,
        /// From [`Request::Open`].
        handle: u64,
        /// Where, bytes.
        offset: u64,
        /// How much, bytes.
        count: u32,
    },
    /// Names of a directory with their objects, each of which counts as looked up.
    ReadDirPlus {
        /// The directory.
        node: u64,
        /// From [`Request::OpenDir`], or 0.
        handle: u64,
        /// Position: 0, or that after an entry.
        offset: u64,
        /// Most bytes of the reply.
        count: u32,
    },
    /// Gives back an open file.
    Release {
        /// The file.
        node: u64,
        /// From [`Request::Open`].
        handle: u64,
    },
    /// Gives back an open directory.
    ReleaseDir {
        /// The directory.
        node: u64,
        /// From [`Request::OpenDir`].
        handle: u64,
    },
    /// Statistics of the file system.
    StatFs,
    /// An extended attribute's value.
    GetXattr {
        /// The object.
        node: u64,
        /// Without NUL.
        name: &'a [u8],
    },
    /// The names of all extended attributes.
    ListXattr {
        /// The object.
        node: u64,
    },
}

/// What an object is, as the server says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after fuse_attr's, which are stat(2)'s")]
pub struct Attributes {
    pub ino: u64,
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    /// Seconds and nanoseconds, as the next two.
    pub atime: (u64, u32),
    pub mtime: (u64, u32),
    pub ctime: (u64, u32),
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// As Linux packs 32 bits of device number.
    pub rdev: u32,
    pub block_size: u32,
}

/// How long something may be believed, nanoseconds.
pub type ValidNs = u64;

/// A found object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The server's name for it; 0: there is none.
    pub node: u64,
    /// How long the name stands for it.
    pub name_valid_ns: ValidNs,
    /// How long the attributes hold.
    pub attributes_valid_ns: ValidNs,
    /// What it is.
    pub attributes: Attributes,
}

/// A name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// Its number.
    pub ino: u64,
    /// Position after it.
    pub next: u64,
    /// DT_* of readdir(3).
    pub kind: u32,
    /// Without NUL.
    pub name: &'a [u8],
}

/// What the server agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after fuse_init_out's")]
pub struct Init {
    pub major: u32,
    pub minor: u32,
    pub features: u32,
    /// Of 4 KiB; 0 where the server does not say.
    pub max_pages: u16,
}

/// See statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after fuse_kstatfs's")]
pub struct StatFs {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub free_files: u64,
    pub block_size: u32,
}

/// Why a message is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseError {
    /// The server answers with this error number.
    Errno(u32),
    /// The reply is not one to the request.
    Malformed,
}

impl From<Short> for FuseError {
    fn from(_: Short) -> FuseError {
        FuseError::Malformed
    }
}

mod operation {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const READLINK: u32 = 5;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const READDIRPLUS: u32 = 44;
}

/// On whose behalf: who has opened nothing on the host is nobody in particular there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after fuse_in_header's")]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

impl Request<'_> {
    /// Operation and object.
    fn head(&self) -> (u32, u64) {
        match *self {
            Request::Init { .. } => (operation::INIT, 0),
            Request::Lookup { node, .. } => (operation::LOOKUP, node),
            Request::Forget(_) => (operation::BATCH_FORGET, 0),
            Request::GetAttr { node } => (operation::GETATTR, node),
            Request::ReadLink { node } => (operation::READLINK, node),
            Request::Open { node, .. } => (operation::OPEN, node),
            Request::OpenDir { node } => (operation::OPENDIR, node),
            Request::Read { node, .. } => (operation::READ, node),
            Request::ReadDirPlus { node, .. } => (operation::READDIRPLUS, node),
            Request::Release { node, .. } => (operation::RELEASE, node),
            Request::ReleaseDir { node, .. } => (operation::RELEASEDIR, node),
            Request::StatFs => (operation::STATFS, ROOT),
            Request::GetXattr { node, .. } => (operation::GETXATTR, node),
            Request::ListXattr { node } => (operation::LISTXATTR, node),
        }
    }

    /// The message, numbered `unique`.
    #[must_use]
    pub fn encode(&self, unique: u64, caller: Caller) -> Vec<u8> {
        let (operation, node) = self.head();
        let mut out = Vec::with_capacity(REQUEST_HEADER + 64);
        let u32s = |out: &mut Vec<u8>, values: &[u32]| {
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        };
        let u64s = |out: &mut Vec<u8>, values: &[u64]| {
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        };
        u32s(&mut out, &[0, operation]);
        u64s(&mut out, &[unique, node]);
        u32s(&mut out, &[caller.uid, caller.gid, caller.pid, 0]);
        match *self {
            Request::Init { features, max_readahead } => {
                u32s(&mut out, &[VERSION.0, VERSION.1, max_readahead, features]);
            }
            Request::Lookup { name, .. } => put_name(&mut out, name),
            Request::Forget(nodes) => {
                u32s(&mut out, &[nodes.len() as u32, 0]);
                nodes.iter().for_each(|&(node, lookups)| u64s(&mut out, &[node, lookups]));
            }
            // Without an open file: no flags, no handle.
            Request::GetAttr { .. } => u64s(&mut out, &[0, 0]),
            Request::ReadLink { .. } | Request::StatFs => {}
            Request::Open { flags, .. } => u32s(&mut out, &[flags, 0]),
            Request::OpenDir { .. } => u32s(&mut out, &[0, 0]),
            Request::Read { handle, offset, count, .. }
            | Request::ReadDirPlus { handle, offset, count, .. } => {
                u64s(&mut out, &[handle, offset]);
                u32s(&mut out, &[count, 0]);
                u64s(&mut out, &[0, 0]);
            }
            Request::Release { handle, .. } | Request::ReleaseDir { handle, .. } => {
                u64s(&mut out, &[handle, 0, 0]);
            }
            Request::GetXattr { name, .. } => {
                u32s(&mut out, &[BLOB_MAX, 0]);
                put_name(&mut out, name);
            }
            Request::ListXattr { .. } => u32s(&mut out, &[BLOB_MAX, 0]),
        }
        let len = (out.len() as u32).to_le_bytes();
        out[..4].copy_from_slice(&len);
        out
    }

    /// Most bytes of its reply, header included; that of [`Request::Read`] has its data elsewhere.
    #[must_use]
    pub fn max_reply(&self) -> usize {
        REPLY_HEADER
            + match self {
                Request::Init { .. } => 64,
                Request::Lookup { .. } => ENTRY,
                Request::Forget(_) | Request::Release { .. } | Request::ReleaseDir { .. } => 0,
                Request::GetAttr { .. } => 16 + ATTRIBUTES,
                Request::ReadLink { .. } => 4096,
                Request::Open { .. } | Request::OpenDir { .. } => 16,
                Request::Read { .. } => 0,
                Request::ReadDirPlus { count, .. } => *count as usize,
                Request::StatFs => 80,
                Request::GetXattr { .. } | Request::ListXattr { .. } => BLOB_MAX as usize,
            }
    }
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(name);
    out.push(0);
}

/// The body of the reply to request `unique`: the header is checked. `len` bytes came in all, of
/// which `message` may be the beginning.
pub fn reply_body(message: &[u8], len: usize, unique: u64) -> Result<&[u8], FuseError> {
    let mut reader = Reader(message);
    let (said, error, number) = (reader.u32()?, reader.u32()?, reader.u64()?);
    if said as usize != len || number != unique {
        return Err(FuseError::Malformed);
    }
    match (error as i32).checked_neg() {
        Some(0) => Ok(reader.0),
        Some(errno @ 1..) => Err(FuseError::Errno(errno as u32)),
        _ => Err(FuseError::Malformed),
    }
}

/// The body of a reply to [`Request::Init`].
pub fn init(body: &[u8]) -> Result<Init, FuseError> {
    let mut reader = Reader(body);
    let (major, minor) = (reader.u32()?, reader.u32()?);
    let _max_readahead = reader.u32()?;
    let features = reader.u32()?;
    let _background = reader.u32()?;
    let _max_write = reader.u32()?;
    let _time_granularity = reader.u32()?;
    Ok(Init { major, minor, features, max_pages: reader.u16()? })
}

/// The body of a reply to [`Request::Lookup`].
pub fn entry(body: &[u8]) -> Result<Entry, FuseError> {
    Ok(read_entry(&mut Reader(body))?)
}

/// The body of a reply to [`Request::GetAttr`]: how long they hold, and they.
pub fn attributes(body: &[u8]) -> Result<(ValidNs, Attributes), FuseError> {
    let mut reader = Reader(body);
    let valid = (reader.u64()?, reader.u32()?);
    let _ = reader.u32()?;
    Ok((valid_ns(valid), read_attributes(&mut reader)?))
}

/// The body of a reply to [`Request::Open`] or [`Request::OpenDir`]: the handle.
pub fn handle(body: &[u8]) -> Result<u64, FuseError> {
    Ok(Reader(body).u64()?)
}

/// The body of a reply to [`Request::StatFs`].
pub fn stat_fs(body: &[u8]) -> Result<StatFs, FuseError> {
    let mut reader = Reader(body);
    Ok(StatFs {
        blocks: reader.u64()?,
        free: reader.u64()?,
        available: reader.u64()?,
        files: reader.u64()?,
        free_files: reader.u64()?,
        block_size: reader.u32()?,
    })
}

/// The names in the body of a reply to [`Request::ReadDirPlus`], with their objects; those of `.`
/// and `..` are none. Ends after the first that is cut off.
pub fn names_with_objects(
    body: &[u8],
) -> impl Iterator<Item = Result<(Entry, Name<'_>), FuseError>> {
    let mut rest = Reader(body);
    core::iter::from_fn(move || {
        if rest.0.is_empty() {
            return None;
        }
        let found = read_entry(&mut rest).and_then(|entry| Ok((entry, read_name(&mut rest)?)));
        if found.is_err() {
            rest.0 = &[];
        }
        Some(found.map_err(FuseError::from))
    })
}

fn read_entry(reader: &mut Reader<'_>) -> Result<Entry, Short> {
    let node = reader.u64()?;
    let _generation = reader.u64()?;
    let (name_s, attributes_s) = (reader.u64()?, reader.u64()?);
    let (name_ns, attributes_ns) = (reader.u32()?, reader.u32()?);
    Ok(Entry {
        node,
        name_valid_ns: valid_ns((name_s, name_ns)),
        attributes_valid_ns: valid_ns((attributes_s, attributes_ns)),
        attributes: read_attributes(reader)?,
    })
}

fn read_attributes(reader: &mut Reader<'_>) -> Result<Attributes, Short> {
    let (ino, size, blocks) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let seconds = [reader.u64()?, reader.u64()?, reader.u64()?];
    let rest = [reader.u32()?, reader.u32()?, reader.u32()?];
    let found = Attributes {
        ino,
        size,
        blocks,
        atime: (seconds[0], rest[0]),
        mtime: (seconds[1], rest[1]),
        ctime: (seconds[2], rest[2]),
        mode: reader.u32()?,
        links: reader.u32()?,
        uid: reader.u32()?,
        gid: reader.u32()?,
        rdev: reader.u32()?,
        block_size: reader.u32()?,
    };
    let _flags = reader.u32()?;
    Ok(found)
}

/// One record: it begins at a multiple of 8, and so does the next one.
fn read_name<'a>(reader: &mut Reader<'a>) -> Result<Name<'a>, Short> {
    let (ino, next) = (reader.u64()?, reader.u64()?);
    let (len, kind) = (reader.u32()? as usize, reader.u32()?);
    let name = reader.take(len)?;
    let padding = (NAME_RECORD + len).next_multiple_of(8) - (NAME_RECORD + len);
    reader.take(padding.min(reader.0.len()))?;
    Ok(Name { ino, next, kind, name })
}

fn valid_ns((seconds, nanoseconds): (u64, u32)) -> ValidNs {
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn reply(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
        let mut out = ((REPLY_HEADER + body.len()) as u32).to_le_bytes().to_vec();
        out.extend(error.to_le_bytes());
        out.extend(unique.to_le_bytes());
        out.extend(body);
        out
    }

    #[test]
    fn requests_have_the_protocols_layout() {
        let caller = Caller { uid: 1, gid: 2, pid: 3 };
        let lookup = Request::Lookup { node: 7, name: b"ab" }.encode(9, caller);
        let mut expected = vec![43, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend(b"ab\0");
        assert_eq!(lookup, expected);
        // What each takes beyond the header, bytes (linux/fuse.h).
        for (request, len) in [
            (Request::Init { features: 0, max_readahead: 0 }, 16),
            (Request::Forget(&[(1, 1), (2, 3)]), 8 + 32),
            (Request::GetAttr { node: 1 }, 16),
            (Request::ReadLink { node: 1 }, 0),
            (Request::Open { node: 1, flags: 0 }, 8),
            (Request::OpenDir { node: 1 }, 8),
            (Request::Read { node: 1, handle: 0, offset: 0, count: 1 }, 40),
            (Request::ReadDirPlus { node: 1, handle: 0, offset: 0, count: 1 }, 40),
            (Request::Release { node: 1, handle: 0 }, 24),
            (Request::ReleaseDir { node: 1, handle: 0 }, 24),
            (Request::StatFs, 0),
            (Request::GetXattr { node: 1, name: b"a" }, 8 + 2),
            (Request::ListXattr { node: 1 }, 8),
        ] {
            let bytes = request.encode(1, Caller::default());
            assert_eq!(bytes.len(), REQUEST_HEADER + len, "{request:?}");
            assert_eq!(bytes[..4], (bytes.len() as u32).to_le_bytes());
        }
    }

    #[test]
    fn a_reply_is_to_its_request() {
        let good = reply(5, 0, b"xy");
        assert_eq!(reply_body(&good, good.len(), 5), Ok(b"xy".as_slice()));
        assert_eq!(reply_body(&good, good.len(), 6), Err(FuseError::Malformed));
        assert_eq!(reply_body(&good, good.len() - 1, 5), Err(FuseError::Malformed));
        let refused = reply(5, -13, b"");
        assert_eq!(reply_body(&refused, 16, 5), Err(FuseError::Errno(13)));
        for error in [1, i32::MIN] {
            let odd = reply(5, error, b"");
            assert_eq!(reply_body(&odd, 16, 5), Err(FuseError::Malformed));
        }
        assert_eq!(reply_body(&good[..15], 15, 5), Err(FuseError::Malformed));
    }

    fn record(node: u64, next: u64, name: &[u8]) -> Vec<u8> {
        let mut out = vec![0; ENTRY];
        out[..8].copy_from_slice(&node.to_le_bytes());
        out[16..24].copy_from_slice(&2u64.to_le_bytes());
        out[36..40].copy_from_slice(&7u32.to_le_bytes());
        out[100..104].copy_from_slice(&0o100_644u32.to_le_bytes());
        out.extend(3u64.to_le_bytes());
        out.extend(next.to_le_bytes());
        out.extend((name.len() as u32).to_le_bytes());
        out.extend(8u32.to_le_bytes());
        out.extend(name);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    #[test]
    fn names_come_with_their_objects() {
        let mut body = record(4, 10, b"first");
        body.extend(record(5, 20, b"longer name"));
        let found: Vec<_> = names_with_objects(&body).collect::<Result<_, _>>().unwrap();
        assert_eq!(found.len(), 2);
        let (entry, name) = &found[0];
        assert_eq!((entry.node, entry.name_valid_ns), (4, 2_000_000_000));
        assert_eq!((entry.attributes_valid_ns, entry.attributes.mode), (7, 0o100_644));
        assert_eq!((name.ino, name.next, name.kind, name.name), (3, 10, 8, b"first".as_slice()));
        assert_eq!(found[1].1.name, b"longer name");
        // Cut off anywhere: those before it, then one error.
        for cut in record(4, 10, b"first").len() + 1..body.len() - 5 {
            let found: Vec<_> = names_with_objects(&body[..cut]).collect();
            assert_eq!(found.len(), 2);
            assert_eq!(found[1], Err(FuseError::Malformed));
        }
    }

    proptest! {
        #[test]
        fn hostile_replies_break_nothing(body in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = reply_body(&body, body.len(), 1);
            let _ = (init(&body), entry(&body), attributes(&body), handle(&body), stat_fs(&body));
            let found = names_with_objects(&body).count();
            prop_assert!(found <= body.len() / (ENTRY + NAME_RECORD) + 1);
        }
    }
}
