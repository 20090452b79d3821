//! Applies layers, one after the other, to a folder in the form of `rootfs.rs`.
//!
//! Why it is hard: a layer is an archive that anybody may have made. What no image needs is
//! refused, and the error names the layer, the entry and the reason: names with `..`, links whose
//! folders lead out of the image, hard links to what is not there, and archives that unpack to far
//! more than they are. Device nodes are left out, and that is told: /dev is the kernel's. What an
//! archive says about itself (the length of a name, of a header) is read within a budget, so that
//! it cannot fill memory either.
//!
//! A layer takes away with whiteouts: a file `.wh.NAME` removes NAME of the layers below, and
//! `.wh..wh..opq` everything of theirs in its folder (OCI image specification, "layer.md").
//!
//! Neighbours: `store.rs` has the bytes, `manifest.rs` their hashes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use tar::EntryType;

use super::manifest::Layer;
use super::rootfs::{LINKS_MAX, META_FOLDER, META_OF_ROOT, Meta, NodeKind};
use super::store::Store;
use crate::failure::{Doing, Failure};
use crate::pack::SKELETON;
use crate::pack::files::hex;
use crate::tree::components;

/// Most entries of an image.
const ENTRIES_MAX: usize = 1 << 20;
/// Most bytes that an image unpacks to.
const BYTES_MAX: u64 = 64 << 30;
/// A layer may unpack to so many times its size, or to [`FREE_BYTES`].
const RATIO_MAX: u64 = 200;
/// What any layer may unpack to, whatever its size.
pub(super) const FREE_BYTES: u64 = 256 << 20;
/// Most folders above an entry, and longest name and link (limits.h).
const DEPTH_MAX: usize = 256;
const NAME_MAX: usize = 255;
const TARGET_MAX: usize = 4095;
/// Bytes that one entry's headers may take.
const HEADERS_MAX: u64 = 1 << 20;
/// Why a layer over its limit is refused.
const BOMB: &str = "it unpacks to far more than it is (a bomb?)";
/// Bytes copied at once.
const CHUNK: usize = 64 << 10;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Something in the image, and the layer that it is from.
#[derive(Clone, Copy, Debug)]
struct Node {
    meta: Meta,
    layer: usize,
    mtime_s: u64,
}

/// An image's root file system in the making.
#[derive(Debug)]
pub(super) struct Builder {
    dir: PathBuf,
    /// By absolute path in the image; the root is `/`.
    nodes: BTreeMap<PathBuf, Node>,
    layers: usize,
    bytes: u64,
    /// How much any layer may unpack to.
    free_bytes: u64,
    /// How much more may be unpacked of this one.
    room: u64,
    /// Files with attributes that are not kept.
    extended: usize,
    /// Device nodes that were left out.
    devices: usize,
}

/// A directory that nobody described.
fn implied(layer: usize) -> Node {
    Node { meta: Meta { kind: NodeKind::Folder, perm: 0o755, uid: 0, gid: 0 }, layer, mtime_s: 0 }
}

impl Builder {
    pub(super) fn new(dir: &Path, free_bytes: u64) -> Self {
        let nodes = BTreeMap::from([(PathBuf::from("/"), implied(0))]);
        let dir = dir.to_owned();
        Self { dir, nodes, layers: 0, bytes: 0, free_bytes, room: 0, extended: 0, devices: 0 }
    }

    /// Unpacks one layer over the ones before it, and checks its hashes.
    pub(super) fn apply(&mut self, store: &Store, layer: &Layer) -> Result<(), Failure> {
        self.layers += 1;
        let number = self.layers;
        let named = |failure: Failure| failure.within(format!("layer {number}"));
        let of_archive = |error| named(Failure::of_archive(error));
        let (stored, len) = store.read(&layer.name).map_err(named)?;
        let stored_hash = Rc::default();
        let stored = Hashing { from: stored, hash: Rc::clone(&stored_hash) };
        let tar_hash = Rc::default();
        let limit = Rc::new(Cell::new(0));
        let unpacked =
            Hashing { from: decompressed(stored).map_err(named)?, hash: Rc::clone(&tar_hash) };
        let whole = self.free_bytes.max(len.saturating_mul(RATIO_MAX));
        self.room = whole;
        let limited = Limited { from: unpacked, left: Rc::clone(&limit), whole };
        let mut archive = tar::Archive::new(limited);
        self.entries(&mut archive, &limit).map_err(named)?;
        // Behind the archive's end there is padding, which the hashes cover.
        limit.set(u64::MAX);
        let mut rest = archive.into_inner();
        io::copy(&mut rest, &mut io::sink()).map_err(of_archive)?;
        let is = |hash: &Rc<std::cell::RefCell<Sha256>>, want: &str| {
            hex(&hash.borrow().clone().finalize()) == want
        };
        if !is(&tar_hash, &layer.tar_hash)
            || layer.stored_hash.as_deref().is_some_and(|want| !is(&stored_hash, want))
        {
            return Err(named(Failure::damaged("its hash is another than the image says")));
        }
        Ok(())
    }

    fn entries<R: Read>(
        &mut self,
        archive: &mut tar::Archive<R>,
        limit: &Cell<u64>,
    ) -> Result<(), Failure> {
        limit.set(HEADERS_MAX);
        for entry in archive.entries().map_err(Failure::of_archive)? {
            let mut entry = entry.map_err(Failure::of_archive)?;
            let name = entry.path_bytes().into_owned();
            let of_entry = |failure: Failure| failure.within(name.escape_ascii().to_string());
            // The padding behind the contents and the next entry's headers come on top.
            limit.set(entry.size().saturating_add(HEADERS_MAX));
            self.entry(&mut entry, &name).map_err(of_entry)?;
            let rest = io::copy(&mut entry, &mut io::sink());
            rest.map_err(|error| of_entry(Failure::of_archive(error)))?;
            limit.set(HEADERS_MAX);
        }
        Ok(())
    }

    fn entry<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        name: &[u8],
    ) -> Result<(), Failure> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let Some(path) = self.place(name)? else {
            // The root itself.
            let meta = attributes(entry, NodeKind::Folder)?;
            self.nodes.insert("/".into(), Node { meta, ..implied(self.layers) });
            return Ok(());
        };
        let last = path.file_name().unwrap_or_default().as_bytes();
        if let Some(removed) = last.strip_prefix(WHITEOUT) {
            return self.whiteout(&path, last, removed);
        }
        self.note_extended(entry)?;
        let mtime_s = entry.header().mtime().map_err(Failure::of_archive)?;
        let kind = match kind {
            EntryType::Directory => NodeKind::Folder,
            EntryType::Symlink => NodeKind::Link,
            EntryType::Fifo => NodeKind::Fifo,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => NodeKind::File,
            EntryType::Link => return self.hard_link(entry, &path),
            EntryType::Char | EntryType::Block => {
                self.devices += 1;
                return self.remove(&path, usize::MAX);
            }
            other => {
                let kind = other.as_byte().escape_ascii();
                return Err(Failure::refused(format!("an entry of unknown kind {kind}")));
            }
        };
        let node = Node { meta: attributes(entry, kind)?, layer: self.layers, mtime_s };
        let is_folder = |node: &Node| node.meta.kind == NodeKind::Folder;
        if kind == NodeKind::Folder && self.nodes.get(&path).is_some_and(is_folder) {
            self.nodes.insert(path, node);
            return Ok(());
        }
        self.remove(&path, usize::MAX)?;
        match kind {
            NodeKind::Folder => make_folder(&self.on_host(&path))?,
            NodeKind::File => self.write(&path, entry)?,
            NodeKind::Fifo => self.write(&path, &mut io::empty())?,
            NodeKind::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
                    return Err(Failure::refused(
                        "a link without a target, or with an impossible one",
                    ));
                }
                self.write(&path, &mut &*target)?;
            }
        }
        self.insert(path, node)
    }

    /// Where an entry's name leads: its folder with links followed, made if need be. `None` for the
    /// root.
    fn place(&mut self, name: &[u8]) -> Result<Option<PathBuf>, Failure> {
        let path = Path::new(OsStr::from_bytes(name));
        let mut names = components(path);
        if names.iter().any(|name| name == "..") {
            return Err(Failure::refused("a name with `..` in it"));
        }
        if names.iter().any(|name| name.len() > NAME_MAX) || names.len() > DEPTH_MAX {
            return Err(Failure::refused("a name that is too long"));
        }
        if name.contains(&0) || names.iter().any(|name| name == META_FOLDER || name == META_OF_ROOT)
        {
            return Err(Failure::refused("a name that is not allowed"));
        }
        if names.is_empty() {
            return Ok(None);
        }
        let last = names.remove(0);
        self.folder(names, true).map(|folder| Some(folder.join(last)))
    }

    /// Follows the names (last first) through the folders and links of the image. What is missing
    /// is made, or is an error.
    fn folder(&mut self, mut todo: Vec<OsString>, make: bool) -> Result<PathBuf, Failure> {
        let mut done = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                if !done.pop() {
                    return Err(Failure::refused("a link of its path leads out of the image"));
                }
                continue;
            }
            let next = done.join(&name);
            match self.nodes.get(&next).map(|node| node.meta.kind) {
                Some(NodeKind::Folder) => {}
                Some(NodeKind::Link) => {
                    links += 1;
                    let host = self.on_host(&next);
                    let bytes = fs::read(&host).map_err(Failure::at(Doing::Read, &host))?;
                    let target = PathBuf::from(OsString::from_vec(bytes));
                    let names = components(&target);
                    if links > LINKS_MAX || todo.len() + names.len() > DEPTH_MAX {
                        return Err(Failure::refused("too many links in its path"));
                    }
                    if target.is_absolute() {
                        done = "/".into();
                    }
                    todo.extend(names);
                    continue;
                }
                Some(_) => {
                    return Err(Failure::damaged(format!("{} is no folder", next.display())));
                }
                None if make => {
                    make_folder(&self.on_host(&next))?;
                    self.insert(next.clone(), implied(self.layers))?;
                }
                None => return Err(Failure::damaged(format!("{} is not there", next.display()))),
            }
            done = next;
        }
        Ok(done)
    }

    fn hard_link<R: Read>(
        &mut self,
        entry: &tar::Entry<'_, R>,
        path: &Path,
    ) -> Result<(), Failure> {
        let target = entry.link_name_bytes().unwrap_or_default().into_owned();
        let shown = target.escape_ascii().to_string();
        let mut names = components(Path::new(OsStr::from_bytes(&target)));
        if names.is_empty() || names.iter().any(|name| name == "..") {
            let what = format!("a link to {shown}, which leads out of the image");
            return Err(Failure::refused(what));
        }
        let last = names.remove(0);
        let target = self.folder(names, false)?.join(last);
        let node = self.nodes.get(&target).copied();
        let Some(node) = node.filter(|node| node.meta.kind != NodeKind::Folder) else {
            let what = format!("a link to {shown}, which is no file of the image");
            return Err(Failure::refused(what));
        };
        if target != path {
            self.remove(path, usize::MAX)?;
            let host = self.on_host(path);
            let made = fs::hard_link(self.on_host(&target), &host);
            made.map_err(Failure::at(Doing::Make, &host))?;
        }
        self.insert(path.to_owned(), Node { layer: self.layers, ..node })
    }

    fn whiteout(&mut self, path: &Path, last: &[u8], removed: &[u8]) -> Result<(), Failure> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        if last == OPAQUE {
            let below: Vec<PathBuf> = self.below(folder).skip(1).cloned().collect();
            for path in below.iter().filter(|path| path.parent() == Some(folder)) {
                self.remove(path, self.layers)?;
            }
            return Ok(());
        }
        // Others that begin so are notes of the tools that made the layer.
        if removed.is_empty() || removed == b"." || removed == b".." || removed.starts_with(b".wh.")
        {
            return Ok(());
        }
        self.remove(&folder.join(OsStr::from_bytes(removed)), self.layers)
    }

    /// Removes what is at and below a path, as far as it is of a layer before `before`.
    fn remove(&mut self, path: &Path, before: usize) -> Result<(), Failure> {
        let of_it: Vec<PathBuf> = self.below(path).cloned().collect();
        // What is in a folder comes behind it.
        for path in of_it.iter().rev() {
            let Some(node) = self.nodes.get(path).filter(|node| node.layer < before) else {
                continue;
            };
            let host = self.on_host(path);
            if node.meta.kind == NodeKind::Folder {
                // A folder stays if this layer has put something into it.
                if self.below(path).nth(1).is_some() {
                    continue;
                }
                fs::remove_dir(&host).map_err(Failure::at(Doing::Remove, &host))?;
            } else {
                fs::remove_file(&host).map_err(Failure::at(Doing::Remove, &host))?;
            }
            self.nodes.remove(path);
        }
        Ok(())
    }

    /// A path and everything below it, in order; paths are ordered name by name.
    fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        let from = self.nodes.range(path.to_owned()..).map(|(path, _)| path);
        from.take_while(move |other| other.starts_with(path))
    }

    fn insert(&mut self, path: PathBuf, node: Node) -> Result<(), Failure> {
        self.nodes.insert(path, node);
        match self.nodes.len() > ENTRIES_MAX {
            false => Ok(()),
            true => Err(Failure::too_large(format!("more than {ENTRIES_MAX} files in the image"))),
        }
    }

    /// A new file with all that `from` has.
    fn write(&mut self, path: &Path, from: &mut dyn Read) -> Result<(), Failure> {
        let host = self.on_host(path);
        let file = fs::File::create_new(&host);
        let mut file = file.map_err(Failure::at(Doing::Make, &host))?;
        let mut buffer = vec![0; CHUNK];
        loop {
            let len = from.read(&mut buffer).map_err(Failure::of_archive)?;
            if len == 0 {
                return Ok(());
            }
            self.bytes += len as u64;
            // An archive's holes are contents without bytes of its own.
            let room = self.room.checked_sub(len as u64);
            self.room = room.ok_or_else(|| Failure::too_large(BOMB))?;
            if self.bytes > BYTES_MAX {
                let most =
                    crate::pack::sizes::human(usize::try_from(BYTES_MAX).unwrap_or(usize::MAX));
                return Err(Failure::too_large(format!("it unpacks to more than {most}")));
            }
            file.write_all(&buffer[..len]).map_err(Failure::at(Doing::Write, &host))?;
        }
    }

    fn note_extended<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), Failure> {
        if let Some(extensions) = entry.pax_extensions().map_err(Failure::of_archive)? {
            let named = extensions
                .flatten()
                .any(|extension| extension.key_bytes().starts_with(b"SCHILY.xattr."));
            self.extended += usize::from(named);
        }
        Ok(())
    }

    fn on_host(&self, path: &Path) -> PathBuf {
        self.dir.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Adds what every root has, and writes down owners, modes and times.
    pub(super) fn finish(mut self, working_dir: &str) -> Result<(), Failure> {
        for (folder, perm) in SKELETON {
            if self.nodes.contains_key(Path::new(folder)) {
                continue;
            }
            self.folder(components(Path::new(folder)), true)?;
            if let Some(node) = self.nodes.get_mut(Path::new(folder)) {
                node.meta.perm = perm;
            }
        }
        self.folder(components(Path::new(working_dir)), true)
            .map_err(|failure| failure.within(format!("working directory {working_dir}")))?;
        if self.extended > 0 {
            let count = self.extended;
            say!("limen: {count} files of the image have extended attributes: not kept");
        }
        if self.devices > 0 {
            let count = self.devices;
            say!("limen: {count} device nodes of the image are left out: /dev has the VM's own");
        }
        // Deepest first: a folder's time changes when something is put into it.
        for (path, node) in self.nodes.iter().rev() {
            let host = self.on_host(path);
            if node.meta.kind == NodeKind::Folder {
                make_folder(&host.join(META_FOLDER))?;
            }
        }
        for (path, node) in self.nodes.iter().rev() {
            let meta = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => self.on_host(parent).join(META_FOLDER).join(name),
                _ => self.dir.join(META_OF_ROOT),
            };
            let written = fs::write(&meta, node.meta.encode());
            written.map_err(Failure::at(Doing::Write, &meta))?;
            let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(node.mtime_s));
            let times = fs::FileTimes::new().set_modified(time.unwrap_or(SystemTime::UNIX_EPOCH));
            let host = self.on_host(path);
            let set = fs::File::open(&host).and_then(|file| file.set_times(times));
            set.map_err(Failure::at(Doing::Write, &host))?;
        }
        Ok(())
    }
}

fn attributes<R: Read>(entry: &tar::Entry<'_, R>, kind: NodeKind) -> Result<Meta, Failure> {
    let header = entry.header();
    let id = |id: io::Result<u64>| {
        let id = id.map_err(Failure::of_archive)?;
        u32::try_from(id).map_err(|_| Failure::refused("an owner that cannot be"))
    };
    let perm = header.mode().map_err(Failure::of_archive)? & 0o7777;
    Ok(Meta { kind, perm, uid: id(header.uid())?, gid: id(header.gid())? })
}

fn make_folder(host: &Path) -> Result<(), Failure> {
    fs::create_dir(host).map_err(Failure::at(Doing::Make, host))
}

/// The tar archive in a layer, however it is compressed.
fn decompressed(from: impl Read + 'static) -> Result<Box<dyn Read>, Failure> {
    let mut from = BufReader::with_capacity(CHUNK, from);
    let start = from.fill_buf().map_err(Failure::of_archive)?;
    if start.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(from)));
    }
    if start.starts_with(&ZSTD_MAGIC) {
        let decoder = ruzstd::decoding::StreamingDecoder::new(from);
        let decoder = decoder.map_err(|_| Failure::damaged("no Zstandard archive"))?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(from))
}

/// Hashes what is read through it.
struct Hashing<R> {
    from: R,
    hash: Rc<std::cell::RefCell<Sha256>>,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.from.read(buffer)?;
        self.hash.borrow_mut().update(&buffer[..len]);
        Ok(len)
    }
}

/// Ends with an error where an entry or the whole is larger than it may be.
struct Limited<R> {
    from: R,
    /// For the entry at hand.
    left: Rc<Cell<u64>>,
    whole: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.from.read(buffer)?;
        let within = |limit: u64| limit.checked_sub(len as u64);
        let Some(whole) = within(self.whole) else {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, BOMB));
        };
        let Some(left) = within(self.left.get()) else {
            return Err(io::Error::other("headers that are too long"));
        };
        (self.whole, _) = (whole, self.left.set(left));
        Ok(len)
    }
}
