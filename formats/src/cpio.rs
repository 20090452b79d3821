//! cpio archives in the "newc" format, as Linux's initramfs takes them, uncompressed.
//!
//! Why it is hard: the reader borrows from the image that the loader left in memory and must hold
//! for any bytes (a truncated archive is an error that names its offset, never a panic), and the
//! writer must give the same bytes for the same input on every machine: entries sorted by path,
//! inode numbers in order, and unless [`Writer::entry`] says so time 0 and owner root.
//!
//! Format (cpio(5), "New ASCII Format"): a header of `070701` and 13 fields of 8 hexadecimal
//! digits, the name with its NUL padded so that header and name together are a multiple of 4, the
//! data padded to a multiple of 4; the entry named `TRAILER!!!` ends the archive. Several archives
//! may follow each other, with zero bytes between; the reader goes on after a trailer if a further
//! header follows. Hard links are not used: each entry holds its own data.
//!
//! Neighbours: `cli/src/pack` writes, the kernel's rootfs reads.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

/// `S_IFMT` and its values (inode(7)).
pub mod mode {
    /// Mask of the file type.
    pub const TYPE: u32 = 0o170_000;
    /// Regular file.
    pub const REGULAR: u32 = 0o100_000;
    /// Directory.
    pub const DIRECTORY: u32 = 0o040_000;
    /// Symbolic link; the data is the target.
    pub const SYMLINK: u32 = 0o120_000;
}

/// Bytes of a header: the magic and 13 fields.
pub const HEADER_LEN: usize = 6 + 13 * 8;
/// Longest name with its NUL: PATH_MAX (limits.h).
pub const NAME_MAX: usize = 4096;

const MAGIC: &[u8; 6] = b"070701";
const TRAILER: &[u8] = b"TRAILER!!!";

/// One entry, borrowed from the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Path as stored, without leading `/` or `./` and never empty except for the root (`.`).
    pub path: &'a [u8],
    /// File type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, in seconds since the epoch.
    pub mtime_s: u32,
    /// Device number (major, minor) if the entry is a device node.
    pub rdev: (u32, u32),
    /// Contents, or the target of a symbolic link.
    pub data: &'a [u8],
}

/// Why bytes are not a cpio archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpioError {
    /// Where, in bytes from the start of the archive.
    pub offset: usize,
    /// What is wrong there.
    pub kind: CpioErrorKind,
}

/// Kinds of [`CpioError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpioErrorKind {
    /// No `070701` where a header must be.
    BadMagic,
    /// A header field is not 8 hexadecimal digits.
    BadField,
    /// The name is empty, too long, or does not end in its only NUL.
    BadName,
    /// The archive ends inside an entry, or before the trailer.
    Truncated,
}

impl fmt::Display for CpioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            CpioErrorKind::BadMagic => "not a cpio newc header",
            CpioErrorKind::BadField => "header field is not hexadecimal",
            CpioErrorKind::BadName => "bad entry name",
            CpioErrorKind::Truncated => "archive is truncated",
        };
        write!(f, "initramfs: {what} at offset {}", self.offset)
    }
}

impl core::error::Error for CpioError {}

/// Iterates over the entries of an archive. After an error it ends.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    archive: &'a [u8],
    offset: usize,
    done: bool,
}

impl<'a> Reader<'a> {
    /// Reads from the first byte of `archive`, which a loader may have padded with zero bytes.
    pub const fn new(archive: &'a [u8]) -> Self {
        Self { archive, offset: 0, done: false }
    }

    /// Finds the contents of one regular file, for instance [`crate::ports::CONFIG_PATH`].
    pub fn find(archive: &'a [u8], path: &str) -> Result<Option<&'a [u8]>, CpioError> {
        for entry in Self::new(archive) {
            let entry = entry?;
            if entry.path == path.as_bytes() && entry.mode & mode::TYPE == mode::REGULAR {
                return Ok(Some(entry.data));
            }
        }
        Ok(None)
    }

    fn error<T>(&self, kind: CpioErrorKind) -> Result<T, CpioError> {
        Err(CpioError { offset: self.offset, kind })
    }

    /// One entry, or `None` for a trailer. On success `offset` is behind the entry's padding.
    fn entry(&mut self) -> Result<Option<ArchiveEntry<'a>>, CpioError> {
        let at = self.archive.get(self.offset..).unwrap_or_default();
        let Some(header) = at.get(..HEADER_LEN) else {
            return self.error(CpioErrorKind::Truncated);
        };
        let Some(digits) = header.strip_prefix(MAGIC.as_slice()) else {
            return self.error(CpioErrorKind::BadMagic);
        };
        let Some(fields) = hex_fields(digits) else {
            return self.error(CpioErrorKind::BadField);
        };
        let [_ino, mode, uid, gid, _nlink, mtime_s, len, _, _, major, minor, name_len, _] = fields;
        let (len, name_len) = (len as usize, name_len as usize);
        if !(2..=NAME_MAX).contains(&name_len) {
            return self.error(CpioErrorKind::BadName);
        }
        let data_at = align4(HEADER_LEN + name_len);
        let Some(data) = data_at.checked_add(len).and_then(|end| at.get(data_at..end)) else {
            return self.error(CpioErrorKind::Truncated);
        };
        let [name @ .., 0] = &at[HEADER_LEN..HEADER_LEN + name_len] else {
            return self.error(CpioErrorKind::BadName);
        };
        if name.contains(&0) {
            return self.error(CpioErrorKind::BadName);
        }
        self.offset = (self.offset + align4(data_at + len)).min(self.archive.len());
        if name == TRAILER {
            return Ok(None);
        }
        let path = clean(name);
        Ok(Some(ArchiveEntry { path, mode, uid, gid, mtime_s, rdev: (major, minor), data }))
    }

    /// After a trailer: skips zero bytes. True if another archive follows.
    fn skip_to_next_archive(&mut self) -> bool {
        let rest = self.archive.get(self.offset..).unwrap_or_default();
        match rest.iter().position(|&byte| byte != 0) {
            Some(zeros) => {
                self.offset += zeros;
                true
            }
            None => false,
        }
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<ArchiveEntry<'a>, CpioError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Bounded: every turn but the last moves `offset` forward by at least a header.
        while !self.done {
            match self.entry() {
                Ok(Some(entry)) => return Some(Ok(entry)),
                Ok(None) => self.done = !self.skip_to_next_archive(),
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Builds an archive in memory. The order of calls does not matter; the last call for a path wins.
/// Parent directories that were not added appear with mode 0755.
#[derive(Clone, Debug, Default)]
pub struct Writer<'a> {
    entries: BTreeMap<Vec<u8>, (Attributes, &'a [u8])>,
}

/// What an entry says of itself beside its name and its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// File type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, in seconds since the epoch.
    pub mtime_s: u32,
}

impl Attributes {
    /// Of the superuser, at time 0.
    const fn plain(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0, mtime_s: 0 }
    }
}

impl<'a> Writer<'a> {
    /// An empty archive.
    pub const fn new() -> Self {
        Self { entries: BTreeMap::new() }
    }

    /// Adds a regular file with permissions `perm` (the low 12 bits count).
    pub fn file(&mut self, path: &[u8], perm: u32, data: &'a [u8]) {
        self.add(path, mode::REGULAR | perm & 0o7777, data);
    }

    /// Adds a directory.
    pub fn dir(&mut self, path: &[u8], perm: u32) {
        self.add(path, mode::DIRECTORY | perm & 0o7777, b"");
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &[u8], target: &'a [u8]) {
        self.add(path, mode::SYMLINK | 0o777, target);
    }

    /// True if the path was added.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.entries.contains_key(clean(path))
    }

    fn add(&mut self, path: &[u8], mode: u32, data: &'a [u8]) {
        self.entry(path, Attributes::plain(mode), data);
    }

    /// Adds anything, with an owner and a time: a file of that type with these contents, or a link
    /// with this target.
    pub fn entry(&mut self, path: &[u8], attributes: Attributes, data: &'a [u8]) {
        let path = clean(path);
        for (at, _) in path.iter().enumerate().filter(|&(_, &byte)| byte == b'/') {
            let parent = (Attributes::plain(mode::DIRECTORY | 0o755), b"".as_slice());
            self.entries.entry(path[..at].to_vec()).or_insert(parent);
        }
        self.entries.insert(path.to_vec(), (attributes, data));
    }

    /// The archive. Data over 4 GiB or a name over [`NAME_MAX`] cannot be stored: the path is the
    /// error.
    pub fn finish(&self) -> Result<Vec<u8>, Vec<u8>> {
        let total: usize =
            self.entries.iter().map(|(path, (_, data))| path.len() + data.len() + 128).sum();
        let mut out = Vec::with_capacity(total + 128);
        for (index, (path, (attributes, data))) in self.entries.iter().enumerate() {
            let len = u32::try_from(data.len()).map_err(|_| path.clone())?;
            if path.len() >= NAME_MAX || path.is_empty() {
                return Err(path.clone());
            }
            put_entry(&mut out, index as u32 + 1, *attributes, path, len, data);
        }
        put_entry(&mut out, 0, Attributes::default(), TRAILER, 0, b"");
        Ok(out)
    }
}

fn put_entry(
    out: &mut Vec<u8>,
    ino: u32,
    attributes: Attributes,
    path: &[u8],
    len: u32,
    data: &[u8],
) {
    let Attributes { mode, uid, gid, mtime_s } = attributes;
    let nlink = if mode & mode::TYPE == mode::DIRECTORY { 2 } else { 1 };
    let name_len = path.len() as u32 + 1;
    out.extend_from_slice(MAGIC);
    for field in [ino, mode, uid, gid, nlink, mtime_s, len, 0, 0, 0, 0, name_len, 0] {
        for shift in (0..8).rev().map(|digit| digit * 4) {
            out.push(b"0123456789abcdef"[(field >> shift) as usize & 15]);
        }
    }
    out.extend_from_slice(path);
    out.push(0);
    out.resize(align4(out.len()), 0);
    out.extend_from_slice(data);
    out.resize(align4(out.len()), 0);
}

/// `path` without leading `/` and `./` and without trailing `/`; `.` for the root itself.
fn clean(mut path: &[u8]) -> &[u8] {
    loop {
        path = match path {
            [b'/', rest @ ..] | [b'.', b'/', rest @ ..] | [rest @ .., b'/'] => rest,
            [] => return b".",
            _ => return path,
        }
    }
}

const fn align4(len: usize) -> usize {
    len.saturating_add(3) & !3
}

/// The 13 fields of a header; `None` if a digit is not hexadecimal.
fn hex_fields(digits: &[u8]) -> Option<[u32; 13]> {
    let mut fields = [0u32; 13];
    for (field, digits) in fields.iter_mut().zip(digits.chunks_exact(8)) {
        for &digit in digits {
            *field = *field << 4 | (digit as char).to_digit(16)?;
        }
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn sample() -> Vec<u8> {
        let mut writer = Writer::new();
        writer.symlink(b"lib", b"usr/lib");
        writer.file(b"/usr/bin/true", 0o755, b"\x7fELF");
        writer.dir(b"tmp/", 0o1777);
        writer.file(b"./empty", 0o644, b"");
        writer.finish().expect("small")
    }

    #[test]
    fn entries_come_back_sorted_with_parents() {
        let archive = sample();
        let entries: Result<Vec<_>, _> = Reader::new(&archive).collect();
        let entries = entries.expect("own archive");
        let paths: Vec<&[u8]> = entries.iter().map(|entry| entry.path).collect();
        let expected: Vec<&[u8]> =
            vec![b"empty", b"lib", b"tmp", b"usr", b"usr/bin", b"usr/bin/true"];
        assert_eq!(paths, expected);
        assert_eq!((entries[1].mode, entries[1].data), (0o120_777, b"usr/lib".as_slice()));
        assert_eq!(entries[2].mode, 0o041_777);
        assert_eq!(entries[5].data, b"\x7fELF");
        assert!(entries.iter().all(|entry| entry.mtime_s == 0 && entry.uid == 0));
    }

    #[test]
    fn every_truncation_is_named_with_its_offset() {
        let archive = sample();
        let trailer_at = archive.len() - align4(HEADER_LEN + TRAILER.len() + 1);
        for len in 0..archive.len() - 1 {
            let result: Result<Vec<_>, _> = Reader::new(&archive[..len]).collect();
            match result {
                Err(error) => {
                    assert_eq!(error.kind, CpioErrorKind::Truncated, "length {len}");
                    assert!(error.offset <= len);
                }
                // Only the padding behind the trailer's name may be missing.
                Ok(_) => assert!(len > trailer_at + HEADER_LEN + TRAILER.len()),
            }
        }
    }

    #[test]
    fn archives_and_padding_may_follow() {
        let mut two = sample();
        two.resize(two.len() + 512, 0);
        two.extend_from_slice(&sample());
        assert_eq!(Reader::new(&two).filter(Result::is_ok).count(), 12);
        two.extend_from_slice(b"junk");
        let last = Reader::new(&two).last().expect("an error");
        assert_eq!(last.expect_err("junk").kind, CpioErrorKind::Truncated);
    }

    #[test]
    fn huge_lengths_do_not_wrap() {
        let mut archive = sample();
        archive[6 + 6 * 8..6 + 7 * 8].copy_from_slice(b"ffffffff");
        let first = Reader::new(&archive).next().expect("an item");
        assert_eq!(first.expect_err("too long").kind, CpioErrorKind::Truncated);
    }

    #[test]
    fn find_takes_regular_files_only() {
        let archive = sample();
        assert_eq!(Reader::find(&archive, "usr/bin/true"), Ok(Some(b"\x7fELF".as_slice())));
        assert_eq!(Reader::find(&archive, "lib"), Ok(None));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(at in 0usize..2000, bytes: [u8; 8]) {
            let mut archive = sample();
            let at = at % (archive.len() - 8);
            archive[at..at + 8].copy_from_slice(&bytes);
            prop_assert!(Reader::new(&archive).count() <= archive.len() / HEADER_LEN + 1);
        }

        #[test]
        fn any_files_round_trip(files: BTreeMap<[u8; 3], Vec<u8>>) {
            let mut writer = Writer::new();
            let named: Vec<(Vec<u8>, Vec<u8>)> = files
                .into_iter()
                .map(|(name, data)| (name.map(|byte| b'a' + byte % 26).to_vec(), data))
                .collect();
            let last: BTreeMap<_, _> = named.iter().map(|(n, d)| (n.clone(), d.clone())).collect();
            named.iter().for_each(|(name, data)| writer.file(name, 0o644, data));
            let archive = writer.finish().expect("small");
            let back: Result<BTreeMap<_, _>, _> = Reader::new(&archive)
                .map(|entry| entry.map(|entry| (entry.path.to_vec(), entry.data.to_vec())))
                .collect();
            prop_assert_eq!(back, Ok(last));
        }
    }
}
