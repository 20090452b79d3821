//! A small 9P server for tests: honest, honest but for one kind of reply, or changing any reply in
//! any way from a seed.
//!
//! Its tree is one folder with a file, another one to write to, a link and an empty folder. It
//! knows the requests by their bytes alone, so that it shares no mistake with `formats::ninep`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use crate::drivers::ninep_transport::Transport;

/// Requests, by their type byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    StatFs = 8,
    Open = 12,
    ReadLink = 22,
    GetAttr = 24,
    XattrWalk = 30,
    ReadDir = 40,
    MakeDir = 72,
    Rename = 74,
    Unlink = 76,
    Version = 100,
    Attach = 104,
    Walk = 110,
    Read = 116,
    Write = 118,
    Clunk = 120,
}

/// How a reply differs from the honest one.
#[derive(Debug)]
pub(super) enum Lie {
    /// Only its first bytes, under the old size.
    Cut(usize),
    /// Only its first bytes, with a size that says so.
    Short(usize),
    /// Other bytes at an offset.
    Put(usize, &'static [u8]),
    /// Another body.
    Body(&'static [u8]),
    /// Rlerror with this body.
    Error(&'static [u8]),
    /// So many bytes more, with a size that says so.
    Grow(usize),
    /// These entries of a folder, and the positions after them, whatever was asked.
    Entries(&'static [(&'static [u8], u64)]),
    /// Attributes of a file.
    AFile,
    /// Attributes of a folder.
    AFolder,
    /// Honest so many times first.
    Later(u32, &'static Lie),
}

const HEADER: usize = 7;
const R_LERROR: u8 = 7;
const ENOENT: u32 = 2;
const ROOT: u64 = 1;
const FILE: u64 = 2;
const LINK: u64 = 3;
const FOLDER: u64 = 4;
const NEW: u64 = 5;
/// What an Rxattrwalk's fid names.
const XATTR: u64 = 6;
const FILE_BYTES: u64 = 10_000;
const XATTR_BYTES: &[u8; 8] = b"user.ab\0";
/// A client that asks for more is in a loop: it gets nothing any more.
const REQUESTS_MAX: u32 = 50_000;

enum Manner {
    Honest,
    Lies(RequestKind, &'static Lie),
    Mutates,
}

struct ServerState {
    /// What each fid names.
    fids: BTreeMap<u32, u64>,
    /// Replies of the kind that is lied about.
    seen: u32,
    random: u64,
}

/// The server.
pub(super) struct Server {
    manner: Manner,
    state: SpinLock<ServerState>,
    requests: AtomicU32,
    lied: AtomicBool,
}

impl Transport for Server {
    fn call(&self, request: Vec<u8>, _max_reply: usize) -> Result<Vec<u8>> {
        if self.requests.fetch_add(1, Ordering::Relaxed) > REQUESTS_MAX {
            return Err(Errno::EIO);
        }
        let mut state = self.state.lock();
        let honest = state.answer(&request);
        Ok(match self.manner {
            Manner::Honest => honest,
            Manner::Lies(kind, lie) if request[4] == kind as u8 => {
                state.seen += 1;
                let (reply, lied) = tell(lie, state.seen, honest);
                self.lied.fetch_or(lied, Ordering::Relaxed);
                reply
            }
            Manner::Lies(..) => honest,
            Manner::Mutates => state.mutate(honest),
        })
    }
}

impl Server {
    pub(super) fn honest() -> Arc<Server> {
        Self::new(Manner::Honest, 1)
    }

    /// Lies in each reply to requests of this kind.
    pub(super) fn lying(kind: RequestKind, lie: &'static Lie) -> Arc<Server> {
        Self::new(Manner::Lies(kind, lie), 1)
    }

    /// Changes about each eighth reply.
    pub(super) fn mutating(seed: u64) -> Arc<Server> {
        Self::new(Manner::Mutates, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn new(manner: Manner, random: u64) -> Arc<Server> {
        let state = SpinLock::new(ServerState { fids: BTreeMap::new(), seen: 0, random });
        Arc::new(Server {
            manner,
            state,
            requests: AtomicU32::new(0),
            lied: AtomicBool::new(false),
        })
    }

    /// Requests so far.
    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether a reply was changed on purpose.
    pub(super) fn has_lied(&self) -> bool {
        self.lied.load(Ordering::Relaxed)
    }

    /// What the file holds at an offset.
    pub(super) fn byte_at(offset: u64) -> u8 {
        (offset % 251) as u8
    }
}

impl ServerState {
    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        put32(&mut reply, 0);
        reply.push(request[4] + 1);
        reply.extend_from_slice(&request[5..HEADER]);
        if !self.body(request, &mut reply) {
            reply.truncate(HEADER);
            reply[4] = R_LERROR;
            put32(&mut reply, ENOENT);
        }
        set_size(&mut reply);
        reply
    }

    /// Adds the body of the answer; false if there is no such thing.
    fn body(&mut self, request: &[u8], reply: &mut Vec<u8>) -> bool {
        let (first, second) = (get32(request, 7), get32(request, 11));
        let object = self.fids.get(&first).copied().unwrap_or(ROOT);
        match request[4] {
            8 => {
                [1, 4096].iter().for_each(|&value| put32(reply, value));
                [9u64; 6].iter().for_each(|&value| put64(reply, value));
                put32(reply, 255);
            }
            // A file that was created takes the folder's fid.
            12 => put_opened(reply, object),
            14 => {
                self.fids.insert(first, NEW);
                put_opened(reply, NEW);
            }
            16 => put_qid(reply, LINK),
            18 | 72 => put_qid(reply, FOLDER),
            22 => put_string(reply, b"file"),
            24 => put_attributes(reply, object),
            30 => {
                self.fids.insert(second, XATTR);
                put64(reply, XATTR_BYTES.len() as u64);
            }
            40 => put_entries(reply, get64(request, 11)),
            100 => {
                put32(reply, first);
                put_string(reply, b"9P2000.L");
            }
            104 => {
                self.fids.insert(first, ROOT);
                put_qid(reply, ROOT);
            }
            110 => return self.walk(request, object, reply),
            116 => put_data(reply, object, get64(request, 11), get32(request, 19)),
            118 => put32(reply, get32(request, 19)),
            120 => _ = self.fids.remove(&first),
            _ => {}
        }
        true
    }

    fn walk(&mut self, request: &[u8], from: u64, reply: &mut Vec<u8>) -> bool {
        let found = match request.get(19..) {
            Some(name) if !name.is_empty() => match name {
                b"file" => FILE,
                b"link" => LINK,
                b"sub" => FOLDER,
                b"new" => NEW,
                _ => return false,
            },
            _ => from,
        };
        let names = request[15];
        reply.extend_from_slice(&[names, 0]);
        if names > 0 {
            put_qid(reply, found);
        }
        self.fids.insert(get32(request, 11), found);
        true
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn mutate(&mut self, mut reply: Vec<u8>) -> Vec<u8> {
        if self.below(8) != 0 {
            return reply;
        }
        for _ in 0..=self.below(3) {
            let at = self.below(reply.len());
            match self.below(8) {
                0 => reply.truncate(at),
                1 => {
                    reply.truncate(at);
                    set_size(&mut reply);
                }
                2 => reply = tell(&Lie::Grow(self.below(70_000)), 1, reply).0,
                3 => overwrite(&mut reply, at, &self.next().to_le_bytes()),
                // Numbers at the edges of what fits.
                4 => overwrite(&mut reply, at, &(1u64 << self.below(64)).to_le_bytes()),
                5 => {
                    let edge = (1u64 << self.below(64)).wrapping_neg();
                    overwrite(&mut reply, at, &edge.to_le_bytes());
                }
                6 => overwrite(&mut reply, at, &[0; 8][..1 + self.below(8)]),
                // Leaves the header alone, and so gets further.
                _ => {
                    let (at, value) = (HEADER + self.below(40), self.next() as u8);
                    overwrite(&mut reply, at, &[value]);
                }
            }
        }
        reply
    }
}

/// The changed reply, and whether it was changed.
fn tell(lie: &Lie, seen: u32, mut reply: Vec<u8>) -> (Vec<u8>, bool) {
    match *lie {
        Lie::Cut(len) => reply.truncate(len),
        Lie::Short(len) => {
            reply.truncate(len);
            set_size(&mut reply);
        }
        Lie::Put(at, bytes) => overwrite(&mut reply, at, bytes),
        Lie::Body(bytes) => replace_body(&mut reply, bytes),
        Lie::Error(bytes) => {
            replace_body(&mut reply, bytes);
            reply[4] = R_LERROR;
        }
        Lie::Grow(len) => {
            reply.resize(reply.len() + len, 0);
            set_size(&mut reply);
        }
        Lie::Entries(entries) => {
            let mut body = Vec::new();
            put32(&mut body, 0);
            entries.iter().for_each(|(name, next)| put_entry(&mut body, FILE, name, *next));
            let len = body.len() as u32 - 4;
            overwrite(&mut body, 0, &len.to_le_bytes());
            replace_body(&mut reply, &body);
        }
        Lie::AFile => put_type(&mut reply, 0, 0o100_644),
        Lie::AFolder => put_type(&mut reply, 0x80, 0o40_755),
        Lie::Later(times, _) if seen <= times => return (reply, false),
        Lie::Later(_, lie) => return tell(lie, seen, reply),
    }
    (reply, true)
}

fn put_type(reply: &mut [u8], qid: u8, mode: u32) {
    overwrite(reply, HEADER + 8, &[qid]);
    overwrite(reply, HEADER + 21, &mode.to_le_bytes());
}

fn replace_body(reply: &mut Vec<u8>, body: &[u8]) {
    reply.truncate(HEADER);
    reply.extend_from_slice(body);
    set_size(reply);
}

/// As far as there is something to overwrite.
fn overwrite(reply: &mut [u8], at: usize, bytes: &[u8]) {
    let tail = reply.get_mut(at..).unwrap_or_default();
    tail.iter_mut().zip(bytes).for_each(|(old, new)| *old = *new);
}

fn set_size(reply: &mut [u8]) {
    let size = reply.len() as u32;
    overwrite(reply, 0, &size.to_le_bytes());
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b))
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b))
}

fn put32(to: &mut Vec<u8>, value: u32) {
    to.extend_from_slice(&value.to_le_bytes());
}

fn put64(to: &mut Vec<u8>, value: u64) {
    to.extend_from_slice(&value.to_le_bytes());
}

fn put_string(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    to.extend_from_slice(bytes);
}

fn put_qid(to: &mut Vec<u8>, object: u64) {
    to.push(match object {
        ROOT | FOLDER => 0x80,
        LINK => 2,
        _ => 0,
    });
    put32(to, 0);
    put64(to, object);
}

fn put_opened(to: &mut Vec<u8>, object: u64) {
    put_qid(to, object);
    // No size that reads and writes should have.
    put32(to, 0);
}

fn put_attributes(to: &mut Vec<u8>, object: u64) {
    let (mode, size) = match object {
        ROOT | FOLDER => (0o40_755, 4096),
        LINK => (0o120_777, 4),
        FILE => (0o100_644, FILE_BYTES),
        _ => (0o100_644, 0),
    };
    put64(to, 0x7ff);
    put_qid(to, object);
    [mode, 0, 0].iter().for_each(|&value| put32(to, value));
    // Links, device, size, size of a block, blocks; four times of two words; generation, version.
    [1, 0, size, 4096, size / 512].iter().for_each(|&value| put64(to, value));
    [0; 10].iter().for_each(|&value| put64(to, value));
}

fn put_entry(to: &mut Vec<u8>, object: u64, name: &[u8], next: u64) {
    put_qid(to, object);
    put64(to, next);
    to.push(0);
    put_string(to, name);
}

fn put_entries(to: &mut Vec<u8>, from: u64) {
    const NAMES: [(&[u8], u64); 6] = [
        (b".", ROOT),
        (b"..", ROOT),
        (b"file", FILE),
        (b"link", LINK),
        (b"sub", FOLDER),
        (b"new", NEW),
    ];
    let at = to.len();
    put32(to, 0);
    for (next, (name, object)) in (1..).zip(NAMES).filter(|(next, _)| *next > from) {
        put_entry(to, object, name, next);
    }
    let len = (to.len() - at - 4) as u32;
    overwrite(to, at, &len.to_le_bytes());
}

fn put_data(to: &mut Vec<u8>, object: u64, offset: u64, count: u32) {
    let end = match object {
        FILE => FILE_BYTES,
        XATTR => XATTR_BYTES.len() as u64,
        _ => 0,
    };
    let len = end.saturating_sub(offset).min(u64::from(count));
    put32(to, len as u32);
    for at in offset..offset + len {
        let xattr = (object == XATTR).then(|| XATTR_BYTES[at as usize]);
        to.push(xattr.unwrap_or_else(|| Server::byte_at(at)));
    }
}
