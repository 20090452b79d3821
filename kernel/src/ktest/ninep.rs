//! A 9P server that lies, behind the client's transport, and a device that answers late or
//! never, behind the driver's ring. The lies start from an honest server: [`super::ninep_server`].
//!
//! Each row of [`CASES`] changes one kind of reply in one way, and says what the operation that
//! meets it must give. `mutations` then changes any reply in any way, from a fixed seed. In all of
//! them the kernel must come back, soon, with an error number that Linux has.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use abi::{Errno, Result as Outcome};
use machine::ensure;
use machine::ktest::Test;
use machine::sync::SpinLock;
use machine::virtio::SubmitError;

use super::ninep_server::{Lie, RequestKind, Server};
use crate::base::io::{Sink, Source};
use crate::base::time::{self, NS_PER_SEC};
use crate::drivers::exchange::{Exchange, Messages, Ring, Timeouts};
use crate::drivers::ninep_transport::check_reply;
use crate::fs::ninep::NinepFs;
use crate::fs::overlay::OverlayFs;
use crate::process::spawn_kernel;
use crate::vfs::{FileSystem, FileType, Inode, NewObject, Renaming, SetAttributes};

pub(super) const TESTS: &[Test] = &[
    Test { name: "ninep::honest_server", run: honest },
    Test { name: "ninep::lying_server", run: lies },
    Test { name: "ninep::mutated_answers", run: mutations },
    Test { name: "ninep::silent_device", run: silent },
    Test { name: "ninep::full_ring", run: full },
    Test { name: "ninep::broken_device", run: broken },
];

/// Largest message that the client may ask for.
const MAX_MESSAGE: u32 = 64 * 1024;
/// Rounds of the mutator, each a connection with all operations.
const ROUNDS: u64 = 200;
/// Requests that one operation on a tree this small may take.
const REQUESTS_MAX: u32 = 3000;

/// And with a server that gives single bytes, or goes in circles.
const LYING_REQUESTS_MAX: u32 = 20_000;

type Act = fn(&Arc<NinepFs>) -> Outcome<()>;

/// What a case must come to.
#[derive(Clone, Copy, Debug)]
enum Want {
    Good,
    Bad(Errno),
}

/// Name, the reply that is changed, how, the operation, and its result.
type Case = (&'static str, RequestKind, Lie, Act, Want);

const EIO: Want = Want::Bad(Errno::EIO);

/// Where a reply's body begins.
const BODY: usize = 7;

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("nothing at all", RequestKind::Version, Lie::Cut(0), nothing, EIO),
    ("half a header", RequestKind::Version, Lie::Cut(3), nothing, EIO),
    ("a header and nothing else", RequestKind::Version, Lie::Short(BODY), nothing, EIO),
    ("another version", RequestKind::Version, Lie::Put(13, b"9P2000.u"), nothing, EIO),
    ("version unknown", RequestKind::Version, Lie::Body(b"\0\0\x01\0\x07\0unknown"), nothing, EIO),
    ("messages of 0 bytes", RequestKind::Version, Lie::Put(BODY, &[0; 4]), nothing, EIO),
    ("messages too small for a header", RequestKind::Version, Lie::Put(BODY, &[23, 0, 0, 0]),
        nothing, EIO),
    ("messages larger than offered", RequestKind::Version, Lie::Put(BODY, &[0xff; 4]), read,
        Want::Good),
    ("another tag", RequestKind::GetAttr, Lie::Put(5, &[0xfe, 0xff]), nothing, EIO),
    ("a tag for the version", RequestKind::Version, Lie::Put(5, &[0, 0]), nothing, EIO),
    ("the request itself", RequestKind::Attach, Lie::Put(4, &[104]), nothing, EIO),
    ("the reply to another request", RequestKind::Attach, Lie::Put(4, &[13]),
        nothing, Want::Bad(Errno::EIO)),
    ("an error without a number", RequestKind::Attach, Lie::Error(b""), nothing, EIO),
    ("error 0", RequestKind::Attach, Lie::Error(&[0; 4]), nothing, EIO),
    ("the error that restarts calls", RequestKind::Attach, Lie::Error(&[0, 2, 0, 0]), nothing, EIO),
    ("an error beyond errno(3)", RequestKind::Attach, Lie::Error(&[134, 0, 0, 0]), nothing, EIO),
    ("a negative error", RequestKind::Attach, Lie::Error(&[0xff; 4]), nothing, EIO),
    ("an honest error", RequestKind::Attach, Lie::Error(&[13, 0, 0, 0]),
        nothing, Want::Bad(Errno::EACCES)),
    ("a size below the header's", RequestKind::Walk, Lie::Put(0, &[6, 0, 0, 0]), look, EIO),
    ("a size beyond the bytes", RequestKind::Walk, Lie::Put(0, &[0xff, 0, 0, 0]), look, EIO),
    ("a size beyond everything", RequestKind::Walk, Lie::Put(0, &[0xff; 4]), look, EIO),
    ("more bytes than asked for", RequestKind::Walk, Lie::Grow(8192), look, EIO),
    ("two objects for one name", RequestKind::Walk, Lie::Put(BODY, &[2, 0]), look, EIO),
    ("65535 objects for one name", RequestKind::Walk, Lie::Put(BODY, &[0xff; 2]), look, EIO),
    ("no object for one name", RequestKind::Walk, Lie::Body(&[0, 0]), look,
        Want::Bad(Errno::ENOENT)),
    ("half an object", RequestKind::Walk, Lie::Short(14), look, EIO),
    ("attributes cut short", RequestKind::GetAttr, Lie::Short(60), nothing, EIO),
    ("a mode without a type", RequestKind::GetAttr, Lie::Put(28, &[0; 4]), nothing, EIO),
    ("a mode with an unknown type", RequestKind::GetAttr, Lie::Put(28, &[0, 0xf0, 0, 0]), nothing,
        EIO),
    ("a folder whose qid is a file's", RequestKind::GetAttr, Lie::Put(15, &[0]), nothing, EIO),
    ("a folder that became a file", RequestKind::GetAttr, Lie::AFile, nothing,
        Want::Bad(Errno::ENOTDIR)),
    ("a file that becomes a folder", RequestKind::GetAttr, Lie::Later(2, &Lie::AFolder),
        change, Want::Bad(Errno::ESTALE)),
    ("a file without end", RequestKind::GetAttr, Lie::Put(56, &[0xff; 8]), read, Want::Good),
    ("blocks of 0 bytes", RequestKind::GetAttr, Lie::Put(64, &[0; 8]), read, Want::Good),
    ("times without end", RequestKind::GetAttr, Lie::Put(80, &[0xff; 48]), read, Want::Good),
    ("all objects have one number", RequestKind::GetAttr, Lie::Put(20, &[1, 0, 0, 0, 0, 0, 0, 0]),
        all, Want::Good),
    ("more data than asked for", RequestKind::Read, Lie::Put(BODY, &[1, 0, 2, 0]), read, EIO),
    ("data that is not there", RequestKind::Read, Lie::Put(BODY, &[0xff; 4]), read, EIO),
    ("more bytes than the buffer", RequestKind::Read, Lie::Grow(256 * 1024), read, EIO),
    ("a file that ends early", RequestKind::Read, Lie::Body(&[0; 4]), read, Want::Good),
    ("one byte at a time", RequestKind::Read, Lie::Body(&[1, 0, 0, 0, 7]), read_little, Want::Good),
    ("an open file of the wrong type", RequestKind::Open, Lie::Put(4, &[15]), read, EIO),
    ("more written than sent", RequestKind::Write, Lie::Put(BODY, &[0xff; 4]), write, EIO),
    ("nothing written", RequestKind::Write, Lie::Put(BODY, &[0; 4]), write, EIO),
    ("one byte written", RequestKind::Write, Lie::Put(BODY, &[1, 0, 0, 0]), write_little,
        Want::Good),
    ("an entry that comes again", RequestKind::ReadDir, Lie::Entries(&[(b"file", 0)]), list, EIO),
    ("dots in circles", RequestKind::ReadDir, Lie::Entries(&[(b".", 1), (b"..", 2)]), list, EIO),
    ("removed entries in circles", RequestKind::ReadDir, Lie::Entries(&[(b"file", 1), (b"file",
        2)]),
        list_removed, EIO),
    ("an entry with a slash", RequestKind::ReadDir, Lie::Entries(&[(b"../etc", 1)]), list, EIO),
    ("an entry with a NUL", RequestKind::ReadDir, Lie::Entries(&[(b"fi\0le", 1)]), list, EIO),
    ("an entry without a name", RequestKind::ReadDir, Lie::Entries(&[(b"", 1)]), list, EIO),
    ("an entry with a long name", RequestKind::ReadDir, Lie::Entries(&[(&[b'x'; 256], 1)]), list,
        EIO),
    ("an entry that is not whole", RequestKind::ReadDir, Lie::Body(&[5, 0, 0, 0, 0, 1, 0, 0, 0]),
        list, EIO),
    ("a name beyond the reply", RequestKind::ReadDir, Lie::Put(BODY + 4 + 22, &[0xff; 2]), list,
        EIO),
    ("a link to nothing", RequestKind::ReadLink, Lie::Body(&[0, 0]), follow, EIO),
    ("a link with a NUL", RequestKind::ReadLink, Lie::Body(b"\x03\0a\0b"), follow, EIO),
    ("a link beyond the reply", RequestKind::ReadLink, Lie::Put(BODY, &[0xff; 2]), follow, EIO),
    ("an attribute without end", RequestKind::XattrWalk, Lie::Put(BODY, &[0xff; 8]),
        xattr, Want::Bad(Errno::E2BIG)),
    ("an attribute that ends early", RequestKind::XattrWalk, Lie::Put(BODY, &[9]), xattr, EIO),
    ("a clunk that fails", RequestKind::Clunk, Lie::Error(&[9, 0, 0, 0]), all, Want::Good),
    ("a clunk with the wrong answer", RequestKind::Clunk, Lie::Put(4, &[13]), all, Want::Good),
    ("statistics cut short", RequestKind::StatFs, Lie::Short(20), statistics, Want::Good),
    ("a folder made with half a qid", RequestKind::MakeDir, Lie::Short(12), make, EIO),
    ("a removal answered by nothing", RequestKind::Unlink, Lie::Cut(0), remove, EIO),
    ("an error as a rename's end", RequestKind::Rename, Lie::Error(&[39, 0, 0, 0]),
        rename, Want::Bad(Errno::ENOTEMPTY)),
];

fn mount(server: &Arc<Server>) -> Outcome<Arc<NinepFs>> {
    NinepFs::mount(server.clone(), MAX_MESSAGE, true)
}

fn honest() -> Result<(), String> {
    let server = Server::honest();
    let fs = mount(&server).map_err(|error| format!("mount: {error:?}"))?;
    for (name, act) in ACTS {
        act(&fs).map_err(|error| format!("{name}: {error:?}"))?;
    }
    let file = fs.root().lookup(b"file").map_err(|error| format!("lookup: {error:?}"))?;
    let mut bytes = [0; 16];
    let cache = file.page_cache().ok_or("a file without pages")?;
    let got = cache.read(4090, &mut Sink::kernel(&mut bytes));
    ensure!(got == Ok(16), "read: {got:?}");
    let right = (4090..4106).map(Server::byte_at);
    ensure!(right.eq(bytes), "wrong bytes: {bytes:?}");
    let missing = fs.root().lookup(b"none").map(|_| ());
    ensure!(missing == Err(Errno::ENOENT), "a name that is not there: {missing:?}");
    Ok(())
}

fn lies() -> Result<(), String> {
    let mut wrong = 0;
    for (name, kind, lie, act, want) in CASES {
        let server = Server::lying(*kind, lie);
        let before = time::now_ns();
        let got = mount(&server).and_then(|fs| act(&fs));
        let right = match (got, want) {
            (Ok(()), Want::Good) => true,
            (Err(error), Want::Bad(wanted)) => error == *wanted,
            _ => false,
        };
        if !right || !server.has_lied() || server.requests() > LYING_REQUESTS_MAX {
            wrong += 1;
            let (lied, requests) = (server.has_lied(), server.requests());
            machine::log!("{name}: {got:?} for {want:?}, lied: {lied}, {requests} requests");
        }
        let took = time::now_ns() - before;
        ensure!(took < 20 * NS_PER_SEC, "{name}: took {took} ns");
    }
    ensure!(CASES.len() >= 30 && wrong == 0, "{wrong} of {} cases", CASES.len());
    Ok(())
}

fn mutations() -> Result<(), String> {
    let mut mounted = 0;
    for seed in 1..=ROUNDS {
        let server = Server::mutating(seed);
        let fs = match mount(&server) {
            Ok(fs) => fs,
            Err(error) => {
                check(seed, "mount", Err(error))?;
                continue;
            }
        };
        mounted += 1;
        for (name, act) in ACTS {
            let before = server.requests();
            check(seed, name, act(&fs))?;
            let made = server.requests() - before;
            ensure!(made <= REQUESTS_MAX, "seed {seed}, {name}: {made} requests");
        }
    }
    machine::log!("{mounted} of {ROUNDS} rounds went past the mount");
    ensure!(mounted > ROUNDS / 8, "{mounted} mounts of {ROUNDS}: the lies are too coarse");
    Ok(())
}

fn check(seed: u64, name: &str, got: Outcome<()>) -> Result<(), String> {
    let Err(error) = got else { return Ok(()) };
    ensure!(error.name() != "E?", "seed {seed}, {name}: {error:?}");
    Ok(())
}

const ACTS: &[(&str, Act)] = &[
    ("look", look),
    ("read", read),
    ("write", write),
    ("list", list),
    ("follow", follow),
    ("xattr", xattr),
    ("change", change),
    ("statistics", statistics),
    ("make", make),
    ("rename", rename),
    ("remove", remove),
];

fn nothing(_: &Arc<NinepFs>) -> Outcome<()> {
    Ok(())
}

fn all(fs: &Arc<NinepFs>) -> Outcome<()> {
    // What is done is not what matters here.
    ACTS.iter().for_each(|(_, act)| _ = act(fs));
    Ok(())
}

fn look(fs: &Arc<NinepFs>) -> Outcome<()> {
    fs.root().lookup(b"file")?.metadata().map(drop)
}

fn read_bytes(fs: &Arc<NinepFs>, len: usize) -> Outcome<()> {
    let file = fs.root().lookup(b"file")?;
    // Open, as a program would.
    let open = file.clone().open(abi::general::O_RDONLY)?;
    let mut bytes = vec![0; len];
    if let Some(cache) = file.page_cache() {
        cache.read(0, &mut Sink::kernel(&mut bytes))?;
    }
    drop(open);
    Ok(())
}

fn read(fs: &Arc<NinepFs>) -> Outcome<()> {
    read_bytes(fs, 12_000)
}

fn read_little(fs: &Arc<NinepFs>) -> Outcome<()> {
    read_bytes(fs, 10)
}

fn write_bytes(fs: &Arc<NinepFs>, len: usize) -> Outcome<()> {
    let file = fs.root().lookup(b"new")?;
    let cache = file.page_cache().ok_or(Errno::EISDIR)?;
    let bytes = vec![7; len];
    cache.write(0, &mut Source::kernel(&bytes))?;
    let synced = file.sync();
    // Nobody would write the pages later.
    cache.invalidate();
    synced
}

fn write(fs: &Arc<NinepFs>) -> Outcome<()> {
    write_bytes(fs, 5000)
}

fn write_little(fs: &Arc<NinepFs>) -> Outcome<()> {
    write_bytes(fs, 200)
}

/// Lists a folder, which may go in circles, as far as a program with some timeouts would.
fn list_all(directory: &Arc<dyn Inode>) -> Outcome<()> {
    let mut from = 0;
    for _ in 0..64 {
        let entries = directory.read_dir(from, 128)?;
        let Some(last) = entries.last() else { return Ok(()) };
        from = last.next;
    }
    Ok(())
}

fn list(fs: &Arc<NinepFs>) -> Outcome<()> {
    list_all(&fs.root())
}

fn list_removed(fs: &Arc<NinepFs>) -> Outcome<()> {
    let lower: Arc<dyn FileSystem> = fs.clone();
    let root = OverlayFs::new(&lower)?.root();
    root.unlink(b"file")?;
    list_all(&root)
}

fn follow(fs: &Arc<NinepFs>) -> Outcome<()> {
    fs.root().lookup(b"link")?.read_link().map(drop)
}

fn xattr(fs: &Arc<NinepFs>) -> Outcome<()> {
    let file = fs.root().lookup(b"file")?;
    file.get_xattr(b"user.a")?;
    file.list_xattr()?;
    file.set_xattr(b"user.a", b"value", 0)
}

fn change(fs: &Arc<NinepFs>) -> Outcome<()> {
    let changes = SetAttributes { mode: Some(0o600), size: Some(100), ..SetAttributes::default() };
    fs.root().lookup(b"file")?.set_attributes(&changes)
}

fn statistics(fs: &Arc<NinepFs>) -> Outcome<()> {
    let _ = fs.statistics();
    Ok(())
}

fn make(fs: &Arc<NinepFs>) -> Outcome<()> {
    let object =
        |file_type| NewObject { file_type, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"file" };
    fs.root().create(b"sub", &object(FileType::Directory))?;
    fs.root().create(b"link", &object(FileType::Symlink))?;
    fs.root().create(b"new", &object(FileType::Regular)).map(drop)
}

fn rename(fs: &Arc<NinepFs>) -> Outcome<()> {
    fs.root().rename(b"file", &fs.root(), b"new", &Renaming { flags: 0, owner: (0, 0) })
}

fn remove(fs: &Arc<NinepFs>) -> Outcome<()> {
    fs.root().unlink(b"file")?;
    fs.root().rmdir(b"sub")
}

// --- the device

/// A ring whose other end is the test.
struct FakeRing {
    size: usize,
    taken: Vec<Option<Messages>>,
    /// Completed, not popped.
    done: Vec<(usize, Messages)>,
    broken: bool,
}

/// Shared with the exchange that owns it.
#[derive(Clone)]
struct Shared(Arc<SpinLock<FakeRing>>);

impl Shared {
    fn new(size: usize) -> Shared {
        let taken = (0..size).map(|_| None).collect();
        Shared(Arc::new(SpinLock::new(FakeRing { size, taken, done: Vec::new(), broken: false })))
    }

    /// Answers all requests there are with `reply`; how many.
    fn answer(&self, reply: &[u8]) -> usize {
        let mut ring = self.0.lock();
        let size = ring.size;
        let mut answered = 0;
        for number in 0..size {
            if let Some(mut messages) = ring.taken[number].take() {
                messages.reply = reply.to_vec();
                messages.written = reply.len();
                ring.done.push((number, messages));
                answered += 1;
            }
        }
        answered
    }
}

impl Ring for Shared {
    fn size(&self) -> usize {
        self.0.lock().size
    }

    fn submit(&mut self, messages: Messages) -> Result<usize, (SubmitError, Messages)> {
        let mut ring = self.0.lock();
        if ring.broken {
            return Err((SubmitError::Broken, messages));
        }
        match ring.taken.iter().position(Option::is_none) {
            Some(number) => {
                ring.taken[number] = Some(messages);
                Ok(number)
            }
            None => Err((SubmitError::Full, messages)),
        }
    }

    fn notify(&self) {}

    fn pop_completed(&mut self) -> Option<(usize, Messages)> {
        self.0.lock().done.pop()
    }

    fn is_broken(&self) -> bool {
        self.0.lock().broken
    }
}

const SHORT: Timeouts = Timeouts { answering_ns: NS_PER_SEC / 5, silent_ns: NS_PER_SEC / 100 };
/// Rclunk for tag 0.
const RCLUNK: &[u8] = &[7, 0, 0, 0, 121, 0, 0];

/// One call that must end with EIO, and how long it took.
fn failing_call(exchange: &Exchange<Shared>) -> Result<u64, String> {
    let before = time::now_ns();
    let answer = exchange.call(vec![0; 11], 512, Vec::new());
    let got = answer.and_then(|answer| check_reply(answer.reply));
    ensure!(got == Err(Errno::EIO), "{got:?}");
    Ok(time::now_ns() - before)
}

/// No answer: EIO after the timeouts, sooner the next time; an answer to anything restores it.
fn silent() -> Result<(), String> {
    let ring = Shared::new(4);
    let exchange = Exchange::new(ring.clone(), SHORT);
    let first = failing_call(&exchange)?;
    ensure!(first >= SHORT.answering_ns, "given up after {first} ns");
    let second = failing_call(&exchange)?;
    ensure!(second >= SHORT.silent_ns, "given up after {second} ns");
    ensure!(ring.answer(RCLUNK) == 2, "the requests have gone");
    // Nobody waits for these any more.
    exchange.on_interrupt();
    let third = failing_call(&exchange)?;
    ensure!(third >= SHORT.answering_ns, "given up after {third} ns although it answers");
    Ok(())
}

/// A full ring is waited for no longer than an answer; a late answer makes room.
fn full() -> Result<(), String> {
    let ring = Shared::new(2);
    let exchange = Exchange::new(ring.clone(), SHORT);
    for _ in 0..2 {
        failing_call(&exchange)?;
    }
    let waited = failing_call(&exchange)?;
    ensure!(waited >= SHORT.silent_ns, "given up after {waited} ns");
    ensure!(ring.answer(RCLUNK) == 2, "the third request was taken");
    exchange.on_interrupt();
    failing_call(&exchange)?;
    ensure!(ring.answer(RCLUNK) == 1, "no room after the answers");
    Ok(())
}

/// A device that breaks the protocol ends all waits, and a reply that is none is EIO.
fn broken() -> Result<(), String> {
    for reply in [&[][..], &[7, 0, 0], &[6, 0, 0, 0, 121, 0, 0], &[8, 0, 0, 0, 121, 0, 0]] {
        let ring = Shared::new(1);
        let patient = Timeouts { answering_ns: 60 * NS_PER_SEC, silent_ns: NS_PER_SEC };
        let exchange = Arc::new(Exchange::new(ring.clone(), patient));
        let (device, side) = (exchange.clone(), ring.clone());
        let body = move || {
            while side.answer(reply) == 0 {
                crate::base::sched::yield_now();
            }
            device.on_interrupt();
        };
        spawn_kernel("device", body).map_err(|error| format!("{error:?}"))?;
        let took = failing_call(&exchange)?;
        ensure!(took < 30 * NS_PER_SEC, "{took} ns for {reply:?}");
    }
    let ring = Shared::new(1);
    ring.0.lock().broken = true;
    let exchange = Exchange::new(ring, Timeouts { answering_ns: 60 * NS_PER_SEC, silent_ns: 0 });
    let took = failing_call(&exchange)?;
    ensure!(took < 30 * NS_PER_SEC, "{took} ns");
    Ok(())
}
