//! A virtio-fs server behind the client's transport: what is asked of it, how often, and what the
//! client makes of answers that are none.
//!
//! Its tree is a folder with a link and a folder of [`FILES`] files, which a test may change. It
//! knows the messages by their bytes alone, so that it shares no mistake with `formats::fuse`.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result as Outcome};
use machine::ensure;
use machine::frame::{Frame, PAGE_SIZE};
use machine::ktest::Test;
use machine::sync::SpinLock;

use crate::base::io::Sink;
use crate::base::time::now_ns;
use crate::drivers::exchange::{Answer, Sent};
use crate::drivers::fuse_transport::Transport;
use crate::fs::overlay::OverlayFs;
use crate::fs::virtiofs::VirtioFs;
use crate::vfs::{FileSystem, FileType, Inode, NewObject};

pub(super) const TESTS: &[Test] = &[
    Test { name: "virtiofs::contents", run: contents },
    Test { name: "virtiofs::known_as_a_whole", run: known_as_a_whole },
    Test { name: "virtiofs::names_without_objects", run: names_without_objects },
    Test { name: "virtiofs::many_questions_are_one", run: many_questions_are_one },
    Test { name: "virtiofs::names_expire", run: names_expire },
    Test { name: "virtiofs::walk", run: walk },
    Test { name: "virtiofs::no_walk", run: no_walk },
    Test { name: "virtiofs::ahead_of_changes", run: ahead_of_changes },
    Test { name: "virtiofs::opened_once", run: opened_once },
    Test { name: "virtiofs::lookups_are_given_back", run: lookups_are_given_back },
    Test { name: "virtiofs::mutated_answers", run: mutations },
];

/// Files in the folder at first.
const FILES: u64 = 100;
/// Rounds of the mutator, each a connection with all operations.
const ROUNDS: u64 = 200;
/// Requests that all operations on a tree this small may take.
const REQUESTS_MAX: u32 = 3000;
/// Lookups that may be noted as given back and not be sent yet: a message's, and what one
/// listing has replaced.
const PENDING_MAX: u64 = 256 + 2 * (FILES + 3);

const HEADER: usize = 16;
const ROOT: u64 = 1;
const FOLDER: u64 = 2;
const LINK: u64 = 3;
const FIRST_FILE: u64 = 100;
/// Directories with one file each.
const FIRST_DIRECTORY: u64 = 10_000;
const FILE_BYTES: u64 = 10_000;
const FOREVER: u64 = 1 << 40;
/// Long ago, seconds since 1970: no change that could be followed by another in the same moment.
const LONG_AGO: u64 = 1_000_000_000;

struct State {
    /// The folder's names, and the files they stand for.
    names: BTreeMap<Vec<u8>, u64>,
    changed_s: u64,
    valid_s: u64,
    /// Names of directories come without what they stand for.
    hides_objects: bool,
    requests: u32,
    /// Files that were opened.
    opens: u32,
    /// Requests that nobody waited for, beside those.
    ahead: u32,
    /// Lookups that were not given back, by object.
    lookups: BTreeMap<u64, u64>,
    /// Changes about each eighth reply if it is not 0.
    random: u64,
}

struct Server(SpinLock<State>);

impl Server {
    fn new(valid_s: u64, seed: u64) -> Arc<Server> {
        let names = (0..FILES).map(|n| (file_name(n), FIRST_FILE + n)).collect();
        Arc::new(Server(SpinLock::new(State {
            names,
            changed_s: LONG_AGO,
            valid_s,
            hides_objects: false,
            requests: 0,
            ahead: 0,
            opens: 0,
            lookups: BTreeMap::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        })))
    }

    fn requests(&self) -> u32 {
        self.0.lock().requests
    }

    fn lookups(&self) -> u64 {
        self.0.lock().lookups.values().sum()
    }
}

fn file_name(number: u64) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

fn byte_at(offset: u64) -> u8 {
    (offset % 251) as u8
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(*bytes.expect("a request is whole"))
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get32(bytes, at)) | u64::from(get32(bytes, at + 4)) << 32
}

fn put32s(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

fn put64s(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

impl Transport for Server {
    fn call(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        frames: Vec<Frame>,
    ) -> Outcome<(Vec<u8>, usize)> {
        let mut state = self.0.lock();
        state.requests += 1;
        let mut reply = Vec::new();
        put32s(&mut reply, &[0, 0]);
        put64s(&mut reply, &[get64(&request, 8)]);
        let mut data = 0;
        if let Err(error) = state.body(&request, &mut reply, &frames, &mut data) {
            reply.truncate(HEADER);
            reply[4..8].copy_from_slice(&error.wrapping_neg().to_le_bytes());
        }
        let len = reply.len() + data;
        reply[..4].copy_from_slice(&(len as u32).to_le_bytes());
        if state.random != 0 {
            state.mutate(&mut reply);
        }
        reply.truncate(max_reply);
        let len = reply.len() + data;
        Ok((reply, len))
    }

    fn begin(&self, request: Vec<u8>, max_reply: usize, frames: Vec<Frame>) -> Outcome<Sent> {
        let (reply, written) = self.call(request, max_reply, frames)?;
        let mut state = self.0.lock();
        state.requests -= 1;
        state.ahead += 1;
        Ok(Sent::answered(Answer { reply, written }))
    }

    fn finish(&self, sent: &Sent) -> Outcome<(Vec<u8>, usize)> {
        let answer = sent.take().ok_or(Errno::EIO)??;
        Ok((answer.reply, answer.written))
    }

    fn send(&self, request: Vec<u8>, _room: usize) -> Outcome<()> {
        if get32(&request, 4) == 42 {
            let mut state = self.0.lock();
            for at in 0..get32(&request, 40) as usize {
                let node = get64(&request, 48 + 16 * at);
                let count = get64(&request, 56 + 16 * at);
                let left = state.lookups.entry(node).or_default();
                *left = left.saturating_sub(count);
            }
        }
        Ok(())
    }
}

const ENOENT: u32 = 2;
const ENOSYS: u32 = 38;
const ENODATA: u32 = 61;

impl State {
    /// Adds the body of the answer; an error number if there is none.
    fn body(
        &mut self,
        request: &[u8],
        reply: &mut Vec<u8>,
        frames: &[Frame],
        data: &mut usize,
    ) -> Result<(), u32> {
        let node = get64(request, 16);
        match get32(request, 4) {
            1 => {
                let name = &request[40..request.len() - 1];
                let found = self.find(node, name).ok_or(ENOENT)?;
                self.put_entry(reply, found);
            }
            3 => {
                put64s(reply, &[self.valid_s, 0]);
                self.put_attributes(reply, node);
            }
            5 => reply.extend_from_slice(b"sub/f1"),
            14 => {
                self.opens += 1;
                put64s(reply, &[77, 0]);
            }
            15 => *data = read(get64(request, 48), get32(request, 56), frames),
            17 => {
                put64s(reply, &[9, 8, 7, 6, 5]);
                put32s(reply, &[4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0]);
            }
            22 => return Err(ENODATA),
            23 => reply.extend_from_slice(b"user.ab\0"),
            26 => {
                put32s(reply, &[7, 38, 0, 1 << 13 | 1 << 22 | 1 << 24, 0, 1 << 20, 1, 256]);
                reply.resize(HEADER + 64, 0);
            }
            27 => return Err(ENOSYS),
            44 => self.put_names(reply, node, get64(request, 48), get32(request, 56)),
            _ => return Err(ENOSYS),
        }
        Ok(())
    }

    fn find(&self, folder: u64, name: &[u8]) -> Option<u64> {
        match (folder, name) {
            (ROOT, b"sub") => Some(FOLDER),
            (ROOT, b"link") => Some(LINK),
            (FIRST_DIRECTORY.., b"file") => Some(FIRST_FILE),
            (FOLDER, name) => self.names.get(name).copied(),
            _ => None,
        }
    }

    fn put_entry(&mut self, reply: &mut Vec<u8>, node: u64) {
        *self.lookups.entry(node).or_default() += 1;
        put64s(reply, &[node, 0, self.valid_s, self.valid_s, 0]);
        self.put_attributes(reply, node);
    }

    fn put_attributes(&self, reply: &mut Vec<u8>, node: u64) {
        let (mode, size) = match node {
            ROOT | FOLDER => (0o40_755, 4096),
            LINK => (0o120_777, 6),
            FIRST_DIRECTORY.. => (0o40_755, 4096),
            _ => (0o100_644, FILE_BYTES),
        };
        put64s(reply, &[node, size, 8, LONG_AGO, self.changed_s, self.changed_s]);
        put32s(reply, &[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]);
    }

    /// As many names as fit, those of the folder numbered from 1.
    fn put_names(&mut self, reply: &mut Vec<u8>, folder: u64, from: u64, room: u32) {
        let names: Vec<(Vec<u8>, u64)> = match folder {
            ROOT => [(b"sub".to_vec(), FOLDER), (b"link".to_vec(), LINK)].into(),
            FIRST_DIRECTORY.. if self.changed_s > LONG_AGO => {
                [(b"renamed".to_vec(), FIRST_FILE)].into()
            }
            FIRST_DIRECTORY.. => [(b"file".to_vec(), FIRST_FILE)].into(),
            _ => self.names.iter().map(|(name, &node)| (name.clone(), node)).collect(),
        };
        let all = (1..).zip(names).skip(from as usize);
        for (next, (name, node)) in all {
            let len = (128 + 24 + name.len()).next_multiple_of(8);
            if reply.len() - HEADER + len > room as usize {
                return;
            }
            let end = reply.len() + len;
            if self.hides_objects {
                reply.resize(reply.len() + 128, 0);
            } else {
                self.put_entry(reply, node);
            }
            put64s(reply, &[node, next]);
            // DT_REG.
            put32s(reply, &[name.len() as u32, 8]);
            reply.extend_from_slice(&name);
            reply.resize(end, 0);
        }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn mutate(&mut self, reply: &mut Vec<u8>) {
        if !self.next().is_multiple_of(8) {
            return;
        }
        let at = self.next() as usize % reply.len();
        let value = match self.next() % 3 {
            0 => self.next(),
            1 => 1 << (self.next() % 64),
            _ => (1u64 << (self.next() % 64)).wrapping_neg(),
        };
        match self.next() % 4 {
            0 => reply.truncate(at),
            // Leaves the header alone, and so gets further.
            1 => {
                let body = reply.get_mut(HEADER..).unwrap_or_default();
                let at = at % body.len().max(1);
                body.iter_mut().skip(at).zip(value.to_le_bytes()).for_each(|(old, new)| *old = new);
            }
            _ => {
                reply
                    .iter_mut()
                    .skip(at)
                    .zip(value.to_le_bytes())
                    .for_each(|(old, new)| *old = new);
            }
        }
    }
}

/// Puts the file's bytes into the frames; how many.
fn read(offset: u64, count: u32, frames: &[Frame]) -> usize {
    let end = FILE_BYTES.min(offset + u64::from(count));
    for at in offset..end {
        let place = (at - offset) as usize;
        frames[place / PAGE_SIZE].write(place % PAGE_SIZE, &[byte_at(at)]);
    }
    end.saturating_sub(offset) as usize
}

fn said(error: Errno) -> String {
    format!("{error:?}")
}

fn mounted(valid_s: u64) -> Result<(Arc<Server>, Arc<VirtioFs>, Arc<dyn Inode>), String> {
    let server = Server::new(valid_s, 0);
    let fs = VirtioFs::mount(server.clone()).map_err(said)?;
    let folder = fs.root().lookup(b"sub").map_err(said)?;
    Ok((server, fs, folder))
}

/// All names of a directory, a few at a time.
fn names(folder: &Arc<dyn Inode>) -> Outcome<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let some = folder.read_dir(from, 7)?;
        let Some(last) = some.last() else { return Ok(all) };
        from = last.next;
        all.extend(some.iter().map(|entry| entry.name.to_vec()));
    }
}

/// What a file holds, through the page cache, and that its last page is zero after the end.
fn contents() -> Result<(), String> {
    let (_server, fs, folder) = mounted(FOREVER)?;
    let file = folder.lookup(b"f7").map_err(said)?;
    let metadata = file.metadata().map_err(said)?;
    ensure!(metadata.size == FILE_BYTES && metadata.mode == 0o644, "{metadata:?}");
    let cache = file.page_cache().ok_or("no contents")?;
    let mut bytes = [0; 300];
    for offset in [0, 4000, 9900] {
        let read = cache.read(offset, &mut Sink::kernel(&mut bytes)).map_err(said)?;
        ensure!(read as u64 == (FILE_BYTES - offset).min(300), "{read} bytes at {offset}");
        for (at, &byte) in (offset..).zip(&bytes[..read]) {
            ensure!(byte == byte_at(at), "{byte} at {at}");
        }
    }
    let last = cache.page(2, false).map_err(said)?;
    let mut tail = [1; 8];
    last.read(FILE_BYTES as usize % PAGE_SIZE, &mut tail);
    ensure!(tail == [0; 8], "after the end: {tail:?}");
    let link = fs.root().lookup(b"link").map_err(said)?;
    ensure!(link.read_link() == Ok(b"sub/f1".to_vec()), "{:?}", link.read_link());
    ensure!(file.get_xattr(b"user.x") == Err(Errno::ENODATA), "an attribute");
    let new = NewObject {
        file_type: FileType::Regular,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
    };
    ensure!(folder.create(b"new", &new).is_err(), "it was made");
    Ok(())
}

/// A directory that was read answers for its names and their attributes without the server.
fn known_as_a_whole() -> Result<(), String> {
    let (server, _fs, folder) = mounted(FOREVER)?;
    let found = names(&folder).map_err(said)?;
    ensure!(found.len() as u64 == FILES, "{} names", found.len());
    let before = server.requests();
    for name in &found {
        let file = folder.lookup(name).map_err(said)?;
        ensure!(file.file_type() == FileType::Regular, "{:?}", file.file_type());
        file.metadata().map_err(said)?;
    }
    ensure!(folder.lookup(b"f1000").err() == Some(Errno::ENOENT), "a name too many");
    ensure!(names(&folder).map_err(said)? == found, "other names the second time");
    ensure!(server.requests() == before, "{} questions", server.requests() - before);
    Ok(())
}

/// A directory whose names come without objects is listed, and each object is asked for.
fn names_without_objects() -> Result<(), String> {
    let (server, _fs, folder) = mounted(FOREVER)?;
    server.0.lock().hides_objects = true;
    let entries = folder.read_dir(0, 3).map_err(said)?;
    ensure!(entries.len() == 3 && entries[0].file_type == FileType::Regular, "{entries:?}");
    let before = server.requests();
    let file = folder.lookup(&entries[1].name).map_err(said)?;
    ensure!(file.metadata().is_ok_and(|m| m.inode == entries[1].inode), "another object");
    ensure!(server.requests() > before, "nobody was asked");
    Ok(())
}

/// Single names of a directory are asked for a few times, then all of them at once.
fn many_questions_are_one() -> Result<(), String> {
    let (server, _fs, folder) = mounted(FOREVER)?;
    let before = server.requests();
    let files: Vec<_> = (0..FILES).map(|n| folder.lookup(&file_name(n))).collect();
    ensure!(files.iter().all(Result::is_ok), "not all were found");
    let asked = server.requests() - before;
    ensure!(asked <= 8, "{asked} questions");
    Ok(())
}

/// A directory that has changed has another version, and its new names; one that has not has the
/// same, though it was asked about.
fn names_expire() -> Result<(), String> {
    let (server, fs, folder) = mounted(0)?;
    ensure!(fs.names_expire(), "names are believed for ever");
    names(&folder).map_err(said)?;
    let first = folder.names_version().map_err(said)?;
    let before = server.requests();
    ensure!(folder.names_version() == Ok(first), "another version of the same names");
    ensure!(server.requests() > before, "nobody was asked");
    {
        let mut state = server.0.lock();
        state.names.remove(b"f3".as_slice());
        state.names.insert(b"new".to_vec(), 900);
        state.changed_s += 1;
    }
    ensure!(folder.names_version().map_err(said)? != first, "the same version of other names");
    ensure!(folder.lookup(b"f3").err() == Some(Errno::ENOENT), "f3 is still there");
    ensure!(folder.lookup(b"new").is_ok(), "no new name");
    let found = names(&folder).map_err(said)?;
    ensure!(found.contains(&b"new".to_vec()) && found.len() as u64 == FILES, "{found:?}");
    Ok(())
}

/// Directories in the folder for the tests of walks.
const DIRECTORIES: u64 = 40;

/// A folder with directories, d00 and so on, whose names have been read.
fn folder_of_directories(valid_s: u64) -> Result<(Arc<Server>, Arc<dyn Inode>), String> {
    let (server, _fs, folder) = mounted(valid_s)?;
    let name = |n| (format!("d{n:02}").into_bytes(), FIRST_DIRECTORY + n);
    server.0.lock().names = (0..DIRECTORIES).map(name).collect();
    names(&folder).map_err(said)?;
    Ok((server, folder))
}

fn directory(folder: &Arc<dyn Inode>, number: u64) -> Result<Arc<dyn Inode>, String> {
    folder.lookup(format!("d{number:02}").as_bytes()).map_err(said)
}

/// Who reads one directory after the other waits for the first two only, and the names are right.
fn walk() -> Result<(), String> {
    let (server, folder) = folder_of_directories(FOREVER)?;
    let mut waited = Vec::new();
    for number in 0..DIRECTORIES {
        let before = server.requests();
        let found = names(&directory(&folder, number)?).map_err(said)?;
        ensure!(found == [b"file".to_vec()], "{number}: {found:?}");
        waited.push(server.requests() - before);
    }
    let late: u32 = waited[2..].iter().sum();
    // An answer that came while nobody looked is followed by a question for more.
    ensure!(late <= DIRECTORIES as u32 / 4, "questions: {waited:?}");
    let ahead = server.0.lock().ahead;
    ensure!(u64::from(ahead) <= 2 * DIRECTORIES, "{ahead} questions for {DIRECTORIES} directories");
    Ok(())
}

/// Who reads some directory here and some there makes nobody ask for others.
fn no_walk() -> Result<(), String> {
    let (server, folder) = folder_of_directories(FOREVER)?;
    for number in [7, 3, 20, 1, 30, 28] {
        names(&directory(&folder, number)?).map_err(said)?;
    }
    let ahead = server.0.lock().ahead;
    ensure!(ahead == 0, "{ahead} questions that nobody had");
    Ok(())
}

/// Names that were asked for ahead are believed for as long as the server says, and where that is
/// no time nothing is asked for ahead.
fn ahead_of_changes() -> Result<(), String> {
    let (server, folder) = folder_of_directories(0)?;
    for number in 0..4 {
        names(&directory(&folder, number)?).map_err(said)?;
    }
    ensure!(server.0.lock().ahead == 0, "asked for what does not hold");

    let (server, folder) = folder_of_directories(1)?;
    for number in 0..2 {
        names(&directory(&folder, number)?).map_err(said)?;
    }
    ensure!(server.0.lock().ahead > 0, "nothing was asked for");
    server.0.lock().changed_s += 1;
    let end_ns = now_ns() + 1_100_000_000;
    while now_ns() < end_ns {
        core::hint::spin_loop();
    }
    let found = names(&directory(&folder, 2)?).map_err(said)?;
    ensure!(found == [b"renamed".to_vec()], "{found:?}");
    Ok(())
}

/// More files than stay open at the server.
const MANY_FILES: u64 = 600;

/// A file that has been opened is opened again without a question, until it has changed.
fn opened_once() -> Result<(), String> {
    let (server, _fs, folder) = mounted(FOREVER)?;
    let open = |file: &Arc<dyn Inode>| file.clone().open(abi::general::O_RDONLY).map_err(said);
    server.0.lock().names = (0..MANY_FILES).map(|n| (file_name(n), FIRST_FILE + n)).collect();
    let files: Vec<_> = (0..MANY_FILES).map(|n| folder.lookup(&file_name(n))).collect();
    for file in &files {
        open(file.as_ref().map_err(|&error| said(error))?)?;
    }
    let opens = server.0.lock().opens;
    ensure!(u64::from(opens) == MANY_FILES, "{opens} of {MANY_FILES} were opened");
    let file = folder.lookup(b"f7").map_err(said)?;
    open(&file)?;
    ensure!(server.0.lock().opens == opens, "the server was asked again");
    let mut byte = [0];
    let cache = file.page_cache().ok_or("no contents")?;
    let read = cache.read(0, &mut Sink::kernel(&mut byte)).map_err(said)?;
    ensure!(read == 1 && byte[0] == byte_at(0), "{read} bytes, {byte:?}");
    ensure!(server.0.lock().opens == opens + 1, "it was read without being open");

    let (server, _fs, folder) = mounted(0)?;
    let file = folder.lookup(b"f7").map_err(said)?;
    open(&file)?;
    let opens = server.0.lock().opens;
    server.0.lock().changed_s += 1;
    open(&file)?;
    ensure!(server.0.lock().opens == opens + 1, "it has changed, and was not opened again");
    Ok(())
}

/// What was looked up is given back: with names that are asked for again and again, and with all
/// of it at the end.
fn lookups_are_given_back() -> Result<(), String> {
    let (server, fs, folder) = mounted(0)?;
    for _ in 0..50 {
        server.0.lock().changed_s += 1;
        names(&folder).map_err(said)?;
        let left = server.lookups();
        ensure!(left <= PENDING_MAX, "{left} lookups for {FILES} names");
    }
    drop(folder);
    drop(fs);
    let left = server.lookups();
    ensure!(left <= PENDING_MAX, "{left} lookups of nothing");
    Ok(())
}

/// All operations, whatever they answer.
fn all(fs: &Arc<VirtioFs>) -> Outcome<()> {
    let lower: Arc<dyn FileSystem> = fs.clone();
    let overlay = OverlayFs::new(&lower)?;
    fs.statistics();
    let root = overlay.root();
    let _ = root.lookup(b"link").and_then(|link| link.read_link());
    let folder = root.lookup(b"sub")?;
    let _ = folder.names_version();
    let _ = names(&folder);
    for n in 0..10 {
        let Ok(file) = folder.lookup(&file_name(n)) else { continue };
        let _ = file.metadata();
        let _ = file.list_xattr();
        let _ = file.clone().open(abi::general::O_RDONLY);
        if let Some(cache) = file.page_cache() {
            let _ = cache.read(5000, &mut Sink::kernel(&mut [0; 64]));
        }
    }
    Ok(())
}

/// Any change of any answer: the operations end, after not too many questions.
fn mutations() -> Result<(), String> {
    for seed in 1..=ROUNDS {
        let server = Server::new(seed % 2 * FOREVER, seed);
        if let Ok(fs) = VirtioFs::mount(server.clone()) {
            let _ = all(&fs);
        }
        let requests = server.requests();
        ensure!(requests < REQUESTS_MAX, "{requests} requests with seed {seed}");
    }
    Ok(())
}
