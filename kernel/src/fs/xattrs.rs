//! Extended attributes that are kept in memory (xattr(7)): for file systems that are only memory,
//! and for what programs change of those that are read only.
//!
//! How much a set holds is counted as it changes: one attribute more must not cost a look at all
//! others.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

/// Most bytes of names and values of one object.
const TOTAL_MAX: usize = 128 * 1024;

/// Bytes of a name that are compared by words.
const HEAD: usize = 32;

/// A name, in the order of its bytes: most names are decided by a few words, since a comparison by
/// bytes takes ten times as long as what is around it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    /// Its beginning, with zeros behind what is shorter; no name has a zero.
    head: [u64; HEAD / 8],
    rest: Vec<u8>,
}

impl Name {
    fn new(name: &[u8]) -> Name {
        let (head, rest) = name.split_at(name.len().min(HEAD));
        let mut bytes = [0; HEAD];
        bytes[..head.len()].copy_from_slice(head);
        let mut words = [0; HEAD / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Name { head: words, rest: rest.to_vec() }
    }

    fn put(&self, to: &mut Vec<u8>) {
        let end = to.len() + HEAD;
        self.head.iter().for_each(|word| to.extend_from_slice(&word.to_be_bytes()));
        let last = self.head.iter().rposition(|&word| word != 0).unwrap_or(0);
        let zeros = self.head[last].trailing_zeros() as usize / 8;
        to.truncate(end - (HEAD - 8 - last * 8) - zeros);
        to.extend_from_slice(&self.rest);
    }
}

/// The attributes of an object.
#[derive(Default)]
pub(super) struct Xattrs {
    values: BTreeMap<Name, Vec<u8>>,
    /// Of all names and values.
    bytes: usize,
}

impl Xattrs {
    /// The value of an attribute: ENODATA.
    pub(super) fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.values.get(&Name::new(name)).cloned().ok_or(Errno::ENODATA)
    }

    /// Gives an attribute its value, with the flags of setxattr(2); the old one, which may be
    /// large, is the caller's to drop. EEXIST, ENODATA, ENOSPC.
    pub(super) fn set(&mut self, name: &[u8], value: &[u8], flags: u32) -> Result<Option<Vec<u8>>> {
        let key = Name::new(name);
        let old = self.values.get(&key);
        match old {
            Some(_) if flags & raw::XATTR_CREATE != 0 => return Err(Errno::EEXIST),
            None if flags & raw::XATTR_REPLACE != 0 => return Err(Errno::ENODATA),
            _ => {}
        }
        let freed = old.map_or(0, |old| name.len() + old.len());
        let bytes = self.bytes - freed + name.len() + value.len();
        if bytes > TOTAL_MAX {
            return Err(Errno::ENOSPC);
        }
        self.bytes = bytes;
        Ok(self.values.insert(key, value.to_vec()))
    }

    /// Takes an attribute away; its value. ENODATA.
    pub(super) fn remove(&mut self, name: &[u8]) -> Result<Vec<u8>> {
        let value = self.values.remove(&Name::new(name)).ok_or(Errno::ENODATA)?;
        self.bytes -= name.len() + value.len();
        Ok(value)
    }

    /// All names, each with a NUL.
    pub(super) fn names(&self) -> Vec<u8> {
        let mut names = Vec::with_capacity(self.bytes + self.values.len() + HEAD);
        for name in self.values.keys() {
            name.put(&mut names);
            names.push(0);
        }
        names
    }
}

/// What a server says are names, as names each with a NUL.
pub(super) fn names_of_server(said: &[u8]) -> Vec<u8> {
    let mut names = Vec::with_capacity(said.len() + 1);
    for name in said.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        names.extend_from_slice(name);
        names.push(0);
    }
    names
}
