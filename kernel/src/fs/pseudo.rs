//! File systems whose contents are made when they are read: what procfs and sysfs are built of.
//!
//! A [`PseudoInode`] is a file with a [`Content`], a directory with a [`Listing`] or a link with a
//! [`Target`]. A file's text is made when it is read from its start and kept for that open file, so
//! that a reader that takes it in pieces sees one state, as proc(5) readers rely on. Only texts
//! that can become very long are made piece by piece, and change between the pieces.
//!
//! What never changes is a table of [`Static`] entries; what comes and goes (processes,
//! descriptors) implements the traits itself.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;

use abi::{Errno, Result};
use machine::sync::Once;

use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::Mutex;
use crate::process::Process;
use crate::vfs::path::Location;
use crate::vfs::{
    DirEntry, File, FileOps, FileSystem, FileType, Inode, InodeState, Metadata, MovedBy,
    SetAttributes, Statistics,
};

/// Most bytes one write to such a file takes.
const WRITE_MAX: usize = 4096;

/// Most bytes of a number with what goes with it.
const TAIL_MAX: usize = 32;
/// What may be copied beyond them.
const PIECE: usize = 32;

/// The eight hexadecimal digits of a word, all at once: each half byte in a byte of its own, and
/// then to each `'0'`, and to those above 9 the way from there to `'a'`.
#[inline]
fn hex_digits(word: u32, ten: u8) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut spread = u64::from(word);
    spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff;
    spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
    spread = (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (spread + 6 * ONES) >> 4 & ONES;
    let to_letter = u64::from(ten - b'9' - 1);
    (spread + u64::from(b'0') * ONES + letters * to_letter).to_be_bytes()
}

/// Text under construction, and whether memory was too short for all of it.
#[derive(Default)]
pub struct Text(pub Vec<u8>, bool);

impl Text {
    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if self.1 || self.0.try_reserve(bytes.len()).is_err() {
            self.1 = true;
            return;
        }
        self.0.extend_from_slice(bytes);
    }

    /// Appends `count` blanks.
    pub fn blanks(&mut self, count: usize) {
        const MANY: [u8; 64] = [b' '; 64];
        let mut left = count;
        while left > 0 {
            let now = left.min(MANY.len());
            self.bytes(&MANY[..now]);
            left -= now;
        }
    }

    /// Appends the last `len` bytes of a short piece, by a copy of a fixed size: a call for so few
    /// would take longer than the copy.
    #[inline]
    fn tail(&mut self, piece: &[u8; PIECE + TAIL_MAX], len: usize) {
        let start = TAIL_MAX - len.min(TAIL_MAX);
        let Some(chunk) = piece[start..].first_chunk::<TAIL_MAX>() else { return };
        if self.1 || self.0.try_reserve(TAIL_MAX).is_err() {
            self.1 = true;
            return;
        }
        let end = self.0.len() + len;
        self.0.extend_from_slice(chunk);
        self.0.truncate(end);
    }

    /// Appends a number in decimal, with blanks before it where it is shorter than `width`. What is
    /// formatted by thousands comes here: `write!` takes several times as long.
    pub fn decimal(&mut self, value: u64, width: usize) {
        self.framed("", value, width);
    }

    /// The same behind a few bytes.
    #[inline]
    fn framed(&mut self, before: &str, mut value: u64, width: usize) {
        let mut piece = [b' '; PIECE + TAIL_MAX];
        let mut at = TAIL_MAX;
        loop {
            at -= 1;
            piece[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        let in_piece = TAIL_MAX - before.len();
        if width > in_piece {
            self.bytes(before.as_bytes());
            self.blanks(width - (TAIL_MAX - at));
            return self.tail(&piece, TAIL_MAX - at);
        }
        at = at.min(TAIL_MAX - width);
        for &byte in before.as_bytes().iter().rev() {
            at -= 1;
            piece[at] = byte;
        }
        self.tail(&piece, TAIL_MAX - at);
    }

    /// Appends each number in decimal, with a blank before it.
    pub fn decimals(&mut self, values: &[u64]) {
        values.iter().for_each(|&value| self.framed(" ", value, 0));
    }

    /// Appends a number in decimal behind its name.
    pub fn named(&mut self, name: &str, value: u64) {
        self.bytes(name.as_bytes());
        self.framed("", value, 0);
    }

    /// Appends a number in 16 hexadecimal digits behind its name.
    pub fn named_set(&mut self, name: &str, value: u64) {
        self.bytes(name.as_bytes());
        self.hex(value, 16);
    }

    /// Appends a number in hexadecimal, with zeros before it where it is shorter than `width`.
    pub fn hex(&mut self, value: u64, width: usize) {
        self.hexadecimal(value, width, b'a');
    }

    /// The same in capitals.
    pub fn hex_capitals(&mut self, value: u64, width: usize) {
        self.hexadecimal(value, width, b'A');
    }

    fn hexadecimal(&mut self, value: u64, width: usize, ten: u8) {
        let needed = (16 - value.leading_zeros() as usize / 4).max(width.clamp(1, 16));
        let mut piece = [0; PIECE + TAIL_MAX];
        piece[TAIL_MAX - 16..TAIL_MAX - 8].copy_from_slice(&hex_digits((value >> 32) as u32, ten));
        piece[TAIL_MAX - 8..TAIL_MAX].copy_from_slice(&hex_digits(value as u32, ten));
        self.tail(&piece, needed);
    }

    /// Appends a line of /proc/meminfo: name, colon, number and unit.
    pub fn amount(&mut self, name: &str, value: u64, unit: &str) {
        const WIDTH: usize = 23;
        self.bytes(name.as_bytes());
        self.framed(":", value, WIDTH.saturating_sub(name.len()));
        self.bytes(unit.as_bytes());
        self.bytes(b"\n");
    }

    /// Appends formatted text: `write!` and `writeln!` come here.
    pub fn write_fmt(&mut self, text: fmt::Arguments<'_>) {
        // Writing to memory has no error to give.
        let _ = fmt::Write::write_fmt(self, text);
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

/// What a file says, and what it does with what is written to it.
pub trait Content: Send + Sync {
    /// Somebody opens it. What is returned stands for that open file from then on: for what
    /// belongs to something that the name does not go on to mean.
    fn open(&self) -> Result<Option<Box<dyn Content>>> {
        Ok(None)
    }
    /// Makes the text.
    fn generate(&self, out: &mut Text) -> Result<()>;
    /// Makes the piece of the text at `position`, a number of the content's own; the first is at 0.
    /// Returns the next piece's position, which is higher, or None at the end.
    fn generate_piece(&self, _position: u64, out: &mut Text) -> Result<Option<u64>> {
        self.generate(out).map(|()| None)
    }
    /// Takes what one write(2) brought.
    fn store(&self, _data: &[u8]) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// Whether nobody may open it for writing: EACCES, for the superuser too.
    fn is_fixed(&self) -> bool {
        false
    }
    /// What every write answers, before what it brings is looked at.
    fn refuses_writes(&self) -> Option<Errno> {
        None
    }
    /// Whether sendfile(2) and splice(2) take data from it.
    fn gives_pieces(&self) -> bool {
        true
    }
    /// Whether it is text that is made at once, which nobody writes to at a place: as seq_file of
    /// Linux.
    fn is_sequence(&self) -> bool {
        self.raw().is_none()
    }
    /// How many bytes of a write it looks at, if it takes whatever more comes for written.
    fn looks_at(&self) -> Option<usize> {
        None
    }
    /// Whether a write moves the position, as a read does.
    fn moves_when_written(&self) -> bool {
        true
    }
    /// Whether nobody changes its mode.
    fn keeps_mode(&self) -> bool {
        true
    }
    /// Whether nobody changes its owner either.
    fn keeps_owner(&self) -> bool {
        false
    }
    /// For a file that tells of changes: registers with `table`, and tells what can be done now.
    fn poll(&self, _table: &mut PollTable) -> Option<u32> {
        None
    }
    /// Bytes that no call may move at once: ENOMEM.
    fn too_many(&self) -> usize {
        usize::MAX
    }
    /// Whether it tells of changes.
    fn is_pollable(&self) -> bool {
        false
    }
    /// For a file that is no text but bytes at offsets.
    fn raw(&self) -> Option<&dyn Raw> {
        None
    }
}

/// A file whose bytes are looked up one read or write at a time.
pub trait Raw {
    /// As `FileOps::read_at`.
    fn read_at(&self, offset: u64, sink: &mut Sink<'_>) -> Result<usize>;
    /// As `FileOps::write_at`.
    fn write_at(&self, offset: u64, source: &mut Source<'_>) -> Result<usize>;
}

/// What a directory holds.
pub trait Listing: Send + Sync {
    /// The entry of this name; ENOENT.
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>>;
    /// Up to `max` entries from position `from` on.
    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>>;
    /// Its link count.
    fn links(&self) -> u32 {
        2
    }
    /// Its size, as stat(2) tells; to lseek(2) it is empty.
    fn size(&self) -> u64 {
        0
    }
    /// The process that the directory stands for, as /proc/PID does, and by the id of which of its
    /// threads.
    fn stands_for(&self) -> Option<(Arc<Process>, u32)> {
        None
    }
    /// Whether nobody changes its owner; nobody changes its mode.
    fn keeps_owner(&self) -> bool {
        false
    }
    /// Whether the current thread may list it and look names up whatever its permission bits say.
    fn is_own(&self) -> bool {
        false
    }
}

/// Where a link leads.
pub trait Target: Send + Sync {
    /// The text of the link.
    fn text(&self) -> Result<Vec<u8>>;
    /// For "magic" links: the object itself.
    fn location(&self) -> Option<Result<Location>> {
        None
    }
}

/// What an object of a pseudo file system is.
pub enum Body {
    /// A regular file.
    File(Box<dyn Content>),
    /// A directory.
    Directory(Box<dyn Listing>),
    /// A symbolic link.
    Link(Box<dyn Target>),
}

impl Body {
    /// What kind of object has it.
    pub fn file_type(&self) -> FileType {
        match self {
            Body::File(_) => FileType::Regular,
            Body::Directory(_) => FileType::Directory,
            Body::Link(_) => FileType::Symlink,
        }
    }
}

/// Makes the text of a file of a table.
pub type Show = fn(&mut Text) -> Result<()>;

/// An entry of a table of things that never change.
pub enum Static {
    /// A file for reading.
    File(Show),
    /// The same; nobody opens it for writing, whatever the rights.
    Fixed(Show),
    /// A file that can be written too.
    Setting(Show, fn(&[u8]) -> Result<()>),
    /// A directory.
    Directory(&'static [(&'static str, Static)]),
    /// A directory that some code lists.
    Dynamic(fn() -> Box<dyn Listing>),
    /// A symbolic link with this text.
    Link(fn() -> Result<Vec<u8>>),
}

impl Content for Show {
    fn generate(&self, out: &mut Text) -> Result<()> {
        self(out)
    }
    fn refuses_writes(&self) -> Option<Errno> {
        Some(Errno::EIO)
    }
    fn keeps_mode(&self) -> bool {
        false
    }
    // As on Linux, which asks a file of the system itself whether it can be waited for.
    fn is_pollable(&self) -> bool {
        true
    }
}

struct Fixed(Show);

impl Content for Fixed {
    fn generate(&self, out: &mut Text) -> Result<()> {
        (self.0)(out)
    }
    fn is_pollable(&self) -> bool {
        true
    }
    fn is_fixed(&self) -> bool {
        true
    }
    fn is_sequence(&self) -> bool {
        false
    }
    fn keeps_owner(&self) -> bool {
        true
    }
    fn too_many(&self) -> usize {
        SETTING_MAX
    }
}

/// What Linux allocates in one piece, which limits what is read or written of a setting at once.
const SETTING_MAX: usize = 4 << 20;

struct Setting(Show, fn(&[u8]) -> Result<()>);

impl Content for Setting {
    fn generate(&self, out: &mut Text) -> Result<()> {
        (self.0)(out)
    }
    fn store(&self, data: &[u8]) -> Result<()> {
        (self.1)(data)
    }
    fn keeps_owner(&self) -> bool {
        true
    }
    fn too_many(&self) -> usize {
        SETTING_MAX
    }
    fn is_sequence(&self) -> bool {
        false
    }
    fn is_pollable(&self) -> bool {
        true
    }
}

impl Target for fn() -> Result<Vec<u8>> {
    fn text(&self) -> Result<Vec<u8>> {
        self()
    }
}

/// A directory from a table.
pub struct StaticListing(pub &'static [(&'static str, Static)]);

impl Static {
    fn file_type(&self) -> FileType {
        match self {
            Static::File(_) | Static::Fixed(_) | Static::Setting(..) => FileType::Regular,
            Static::Directory(_) | Static::Dynamic(_) => FileType::Directory,
            Static::Link(_) => FileType::Symlink,
        }
    }

    fn instantiate(&self, fs: &Arc<PseudoFs>, number: u64) -> Arc<PseudoInode> {
        let (mode, body) = match self {
            Static::File(show) => (0o444, Body::File(Box::new(*show))),
            Static::Fixed(show) => (0o444, Body::File(Box::new(Fixed(*show)))),
            Static::Setting(show, store) => (0o644, Body::File(Box::new(Setting(*show, *store)))),
            Static::Directory(table) => (0o555, Body::Directory(Box::new(StaticListing(table)))),
            Static::Dynamic(make) => (0o555, Body::Directory(make())),
            Static::Link(text) => (0o777, Body::Link(Box::new(*text))),
        };
        PseudoInode::new(fs, number, mode, (0, 0), body)
    }
}

impl Listing for StaticListing {
    fn keeps_owner(&self) -> bool {
        true
    }

    fn links(&self) -> u32 {
        let is_directory = |(_, entry): &&(_, Static)| entry.file_type() == FileType::Directory;
        2 + self.0.iter().filter(is_directory).count() as u32
    }

    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let entry = self.0.iter().find(|(known, _)| known.as_bytes() == name);
        let (_, entry) = entry.ok_or(Errno::ENOENT)?;
        Ok(entry.instantiate(directory.fs(), directory.child_number(name)))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let entries = self.0.iter().enumerate().skip(from as usize).take(max);
        Ok(entries
            .map(|(index, (name, entry))| DirEntry {
                name: name.as_bytes().into(),
                inode: directory.child_number(name.as_bytes()),
                file_type: entry.file_type(),
                next: index as u64 + 1,
            })
            .collect())
    }
}

/// A file system of such objects.
pub struct PseudoFs {
    me: Weak<PseudoFs>,
    name: &'static str,
    magic: u64,
    device: u64,
    caches_names: bool,
    boot_ns: i64,
    root: Once<Arc<PseudoInode>>,
}

impl PseudoFs {
    /// A file system with `root` as its top directory. `magic`: see statfs(2). `caches_names`:
    /// whether names stay what they are.
    pub fn new(
        name: &'static str,
        magic: u64,
        caches_names: bool,
        root: Box<dyn Listing>,
    ) -> Arc<PseudoFs> {
        let fs = Arc::new_cyclic(|me| PseudoFs {
            me: me.clone(),
            name,
            magic,
            device: crate::vfs::anonymous_device(),
            caches_names,
            boot_ns: crate::base::time::realtime_ns() as i64,
            root: Once::new(),
        });
        let root = PseudoInode::new(&fs, 1, 0o555, (0, 0), Body::Directory(root));
        fs.root.call_once(|| root);
        fs
    }
}

impl FileSystem for PseudoFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.get().expect("set by `new`").clone()
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn statistics(&self) -> Statistics {
        Statistics { magic: self.magic, block_size: 4096, ..Statistics::default() }
    }

    fn caches_names(&self) -> bool {
        self.caches_names
    }

    fn takes_names(&self) -> bool {
        self.caches_names
    }
}

/// An object of a pseudo file system.
pub struct PseudoInode {
    fs: Arc<PseudoFs>,
    number: u64,
    mode: u32,
    owner: (u32, u32),
    state: InodeState,
    body: Body,
}

impl PseudoInode {
    /// The process that it stands for, and by the id of which thread: it is /proc/PID.
    pub fn stands_for(&self) -> Option<(Arc<Process>, u32)> {
        match &self.body {
            Body::Directory(listing) => listing.stands_for(),
            Body::File(_) | Body::Link(_) => None,
        }
    }

    /// An object with permission bits `mode`, owned by user and group `owner`.
    pub fn new(
        fs: &Arc<PseudoFs>,
        number: u64,
        mode: u32,
        owner: (u32, u32),
        body: Body,
    ) -> Arc<PseudoInode> {
        Arc::new(PseudoInode {
            fs: fs.clone(),
            number,
            mode,
            owner,
            state: InodeState::default(),
            body,
        })
    }

    /// Its file system.
    pub fn fs(&self) -> &Arc<PseudoFs> {
        &self.fs
    }

    /// The inode number of its entry `name`: the same whenever it is asked for.
    pub fn child_number(&self, name: &[u8]) -> u64 {
        // FNV-1a, on 48 bits so that every program can hold it.
        let start = 0xcbf2_9ce4_8422_2325 ^ self.number;
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        (name.iter().fold(start, mix) & 0xffff_ffff_ffff) | 1 << 32
    }
}

impl Inode for PseudoInode {
    fn metadata(&self) -> Result<Metadata> {
        let file_type = self.file_type();
        Ok(Metadata {
            device: self.fs.device,
            inode: self.number,
            file_type,
            mode: self.mode,
            links: match &self.body {
                Body::Directory(listing) => listing.links().into(),
                _ => 1,
            },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            size: match &self.body {
                Body::Directory(listing) => listing.size(),
                _ => 0,
            },
            blocks: 0,
            block_size: 1024,
            atime_ns: self.fs.boot_ns,
            mtime_ns: self.fs.boot_ns,
            ctime_ns: self.fs.boot_ns,
            btime_ns: None,
        })
    }

    fn state(&self) -> &InodeState {
        &self.state
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        // Opening with O_TRUNC is how shells write settings. What is set is as before when the name
        // is looked up again.
        let (keeps_mode, keeps_owner) = match &self.body {
            Body::File(content) => (content.keeps_mode(), content.keeps_owner()),
            Body::Directory(listing) => (true, listing.keeps_owner()),
            Body::Link(_) => (true, false),
        };
        let changes_owner = changes.uid.is_some() || changes.gid.is_some();
        if changes.mode.is_some() && keeps_mode || changes_owner && keeps_owner {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    fn file_type(&self) -> FileType {
        self.body.file_type()
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.me.upgrade().expect("an object holds its file system")
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        let writes = flags & abi::general::O_ACCMODE != abi::general::O_RDONLY;
        let bound = match &self.body {
            Body::File(content) if writes && content.is_fixed() => return Err(Errno::EACCES),
            Body::File(content) => content.open()?,
            Body::Directory(_) => None,
            Body::Link(_) => return Err(Errno::ELOOP),
        };
        Ok(Arc::new(PseudoFile { inode: self, bound, kept: Mutex::new(None) }))
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        match &self.body {
            Body::Directory(listing) => Ok(listing.lookup(self, name)?),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn create_if(
        &self,
        _: &[u8],
        _: &crate::vfs::NewObject<'_>,
        _: &dyn Fn(&dyn Inode) -> Result<()>,
    ) -> Result<Arc<dyn Inode>> {
        Err(Errno::ENOENT)
    }

    fn unlink(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }

    fn rmdir(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }

    fn read_dir(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        match &self.body {
            Body::Directory(listing) => listing.list(self, from, max),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.body {
            Body::Link(target) => target.text(),
            _ => Err(Errno::EINVAL),
        }
    }

    fn magic_link(&self) -> Option<Result<Location>> {
        match &self.body {
            Body::Link(target) => target.location(),
            _ => None,
        }
    }

    fn is_own(&self) -> bool {
        matches!(&self.body, Body::Directory(listing) if listing.is_own())
    }
}

/// An open file with the text it was opened on.
struct PseudoFile {
    inode: Arc<PseudoInode>,
    bound: Option<Box<dyn Content>>,
    kept: Mutex<Option<Piece>>,
}

/// The piece of the text that was read last.
struct Piece {
    /// Where it is in the whole text.
    start: u64,
    text: Vec<u8>,
    next: Option<u64>,
}

impl Piece {
    fn make(content: &dyn Content, start: u64, position: u64) -> Result<Piece> {
        let mut text = Text::default();
        let next = content.generate_piece(position, &mut text)?;
        if text.1 {
            return Err(Errno::ENOMEM);
        }
        Ok(Piece { start, text: text.0, next: next.filter(|&next| next > position) })
    }

    fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }
}

impl PseudoFile {
    fn content(&self) -> Result<&dyn Content> {
        match (&self.bound, &self.inode.body) {
            (Some(bound), _) => Ok(bound.as_ref()),
            (None, Body::File(content)) => Ok(content.as_ref()),
            _ => Err(Errno::EISDIR),
        }
    }
}

/// Whether text that is made when it is read has an end to seek from: what takes settings has, at
/// 0, other text has none. None for all other files.
pub fn has_end(file: &File) -> Option<bool> {
    let content = file.ops_as::<PseudoFile>()?.content().ok()?;
    Some(content.raw().is_none() && !content.is_sequence())
}

impl PseudoFile {
    /// Whether it is a setting below /proc/sys.
    fn is_sysctl(&self, content: &dyn Content) -> bool {
        content.too_many() == SETTING_MAX && self.inode.fs().name() == "proc"
    }

    /// Whether it is a setting of numbers below /proc/sys (proc_sys(5)), which are told from the
    /// beginning on only.
    fn tells_numbers(&self, content: &dyn Content, text: &[u8]) -> bool {
        self.is_sysctl(content)
            && text.iter().all(|byte| byte.is_ascii_digit() || b"\t\n-".contains(byte))
    }
}

impl FileOps for PseudoFile {
    fn read_at(&self, _file: &File, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let content = self.content()?;
        if let Some(raw) = content.raw() {
            return raw.read_at(offset, sink);
        }
        if sink.left() >= content.too_many() {
            return Err(Errno::ENOMEM);
        }
        let mut kept = self.kept.lock();
        let mut piece = match kept.take() {
            Some(piece) if offset > 0 && offset >= piece.start => piece,
            _ => Piece::make(content, 0, 0)?,
        };
        // As on Linux, a read ends with the piece, before the buffer is full.
        while offset >= piece.end()
            && let Some(position) = piece.next
        {
            piece = Piece::make(content, piece.end(), position)?;
        }
        let piece = kept.insert(piece);
        if offset > 0 && self.tells_numbers(content, &piece.text) {
            return Ok(0);
        }
        let len = piece.text.len();
        let from = usize::try_from(offset - piece.start).map_or(len, |from| from.min(len));
        sink.put(&piece.text[from..])
    }

    fn write_at(&self, _file: &File, offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let content = self.content()?;
        if let Some(raw) = content.raw() {
            return raw.write_at(offset, source);
        }
        if source.left() >= content.too_many() {
            return Err(Errno::ENOMEM);
        }
        if let Some(error) = content.refuses_writes() {
            return Err(error);
        }
        let whole = source.left();
        if whole == 0 && self.is_sysctl(content) {
            return Ok(0);
        }
        let looks_at = content.looks_at();
        let mut data = alloc::vec![0; whole.min(looks_at.unwrap_or(WRITE_MAX))];
        let len = source.take_whole(&mut data)?;
        content.store(&data[..len])?;
        Ok(if looks_at.is_some() { whole } else { len })
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn gives_pieces(&self) -> bool {
        self.content().is_ok_and(Content::gives_pieces)
    }

    fn has_data(&self) -> (bool, bool) {
        let refusal = self.content().ok().and_then(|content| content.refuses_writes());
        (true, refusal != Some(Errno::EINVAL))
    }

    fn is_written_at_places(&self) -> bool {
        self.content().map_or(true, |content| !content.is_sequence())
    }

    fn moved_by(&self) -> MovedBy {
        match self.content() {
            Ok(content) if !content.moves_when_written() => MovedBy::Reads,
            _ => MovedBy::ReadsAndWrites,
        }
    }

    fn is_pollable(&self) -> bool {
        self.content().is_ok_and(Content::is_pollable)
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        let content = self.content().ok();
        let told = content.and_then(|content| content.poll(table));
        told.unwrap_or(events::READABLE | events::WRITABLE)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}

/// Reads a number as settings take it: blanks around it are ignored. EINVAL.
pub fn parse_number<T: core::str::FromStr>(data: &[u8]) -> Result<T> {
    let text = core::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
    text.trim_matches(['\n', ' ', '\t', '\0']).parse().map_err(|_| Errno::EINVAL)
}
