//! The whole device in one process: the kernel's own messages go through a queue in memory, and
//! what comes back is read as the kernel reads it. Then messages and queues that no kernel sends.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use formats::fuse::{self, Caller, Entry, FuseError, Request, feature};
use proptest::prelude::*;
use vhost_user_backend::{VhostUserBackend as _, VringMutex, VringT as _};
use vm_memory::{
    Bytes as _, GuestAddress, GuestAddressSpace as _, GuestMemoryAtomic, GuestMemoryMmap,
};
use vmm_sys_util::epoll::EventSet;

use super::ALWAYS;
use super::device::Device;
use super::serve::Served;

/// What `--cache auto` of the command line means.
const AUTO: Duration = Duration::from_secs(1);

/// The guest's memory, and what lies where in it.
const MEMORY: usize = 4 << 20;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const MESSAGE: u64 = 0x1_0000;
const REPLY: u64 = 0x10_0000;
const QUEUE: u16 = 64;

/// Flags of a descriptor (virtio 1.2, 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;

const ENOENT: FuseError = FuseError::Errno(2);
const EACCES: FuseError = FuseError::Errno(13);
const EINVAL: FuseError = FuseError::Errno(22);
const EROFS: FuseError = FuseError::Errno(30);
const ENOSYS: FuseError = FuseError::Errno(38);
const ESTALE: FuseError = FuseError::Errno(116);

/// A guest with one queue.
struct Guest {
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    served: Arc<Served>,
    device: Device,
    queue: VringMutex<GuestMemoryAtomic<GuestMemoryMmap>>,
    next: u16,
    unique: u64,
}

impl Guest {
    fn of(folder: &Path, valid: Duration) -> Self {
        let regions = [(GuestAddress(0), MEMORY)];
        let memory = GuestMemoryMmap::from_ranges(&regions).expect("memory");
        let memory = GuestMemoryAtomic::new(memory);
        let served = Arc::new(Served::new(folder, valid).expect("a folder"));
        let (alarm, _) = super::alarm::pair().expect("a pair");
        let device = Device::new(served.clone(), memory.clone(), 1, alarm);
        let queue = VringMutex::new(memory.clone(), 1024).expect("a queue");
        queue.set_queue_size(QUEUE);
        queue.set_queue_info(DESCRIPTORS, AVAILABLE, USED).expect("aligned");
        queue.set_queue_ready(true);
        queue.set_enabled(true);
        Self { memory, served, device, queue, next: 0, unique: 0 }
    }

    /// A guest that has begun as the kernel does.
    fn begun(folder: &Path, valid: Duration) -> Self {
        let mut guest = Self::of(folder, valid);
        // All but the one that announces further words (FUSE_INIT_EXT).
        let features = !(1 << 30);
        let reply = guest.ask(&Request::Init { features, max_readahead: 1 << 20 }, fuse::init);
        let init = reply.expect("an answer");
        assert_eq!(init.major, 7);
        assert_eq!(init.max_pages, 256);
        for wanted in [feature::DO_READDIRPLUS, feature::NO_OPENDIR_SUPPORT, feature::ASYNC_READ] {
            assert_ne!(init.features & wanted, 0, "{wanted:x}");
        }
        guest
    }

    fn write(&self, bytes: &[u8], at: u64) {
        self.memory.memory().write_slice(bytes, GuestAddress(at)).expect("inside");
    }

    /// Rings the queue for a chain of buffers; gives how long the answer is said to be.
    fn ring(&mut self, chain: &[(u64, u32, u16)]) -> usize {
        for (index, &(at, len, flags)) in (0u64..).zip(chain) {
            let is_last = index as usize + 1 == chain.len();
            let flags = if is_last { flags } else { flags | NEXT };
            let mut descriptor = at.to_le_bytes().to_vec();
            descriptor.extend(len.to_le_bytes());
            descriptor.extend(flags.to_le_bytes());
            descriptor.extend((index as u16 + 1).to_le_bytes());
            self.write(&descriptor, DESCRIPTORS + 16 * index);
        }
        let slot = u64::from(self.next % QUEUE);
        self.write(&0u16.to_le_bytes(), AVAILABLE + 4 + 2 * slot);
        self.next = self.next.wrapping_add(1);
        self.write(&self.next.to_le_bytes(), AVAILABLE + 2);
        self.kick();
        let used: u32 =
            self.memory.memory().read_obj(GuestAddress(USED + 4 + 8 * slot + 4)).expect("inside");
        used as usize
    }

    fn kick(&self) {
        let queues = [self.queue.clone()];
        self.device.handle_event(0, EventSet::IN, &queues, 0).expect("never fails");
    }

    /// Sends a message with so much room for an answer, the latter in two pieces.
    fn send(&mut self, message: &[u8], room: u32) -> Vec<u8> {
        self.write(message, MESSAGE);
        let first = room.min(16);
        let mut chain = vec![(MESSAGE, message.len() as u32, 0)];
        chain.extend([(REPLY, first, WRITE), (REPLY + u64::from(first), room - first, WRITE)]);
        chain.retain(|(_, len, _)| *len > 0);
        let len = self.ring(&chain);
        assert!(len <= room as usize);
        let mut answer = vec![0; len];
        self.memory.memory().read_slice(&mut answer, GuestAddress(REPLY)).expect("inside");
        answer
    }

    fn body(&mut self, request: &Request<'_>, data: u32) -> Result<Vec<u8>, FuseError> {
        self.unique += 1;
        let message = request.encode(self.unique, Caller::default());
        let answer = self.send(&message, request.max_reply() as u32 + data);
        fuse::reply_body(&answer, answer.len(), self.unique).map(<[u8]>::to_vec)
    }

    fn ask<T>(
        &mut self,
        request: &Request<'_>,
        read: fn(&[u8]) -> Result<T, FuseError>,
    ) -> Result<T, FuseError> {
        self.body(request, 0).and_then(|body| read(&body))
    }

    fn look_up(&mut self, node: u64, name: &str) -> Result<Entry, FuseError> {
        self.ask(&Request::Lookup { node, name: name.as_bytes() }, fuse::entry)
    }

    fn walk(&mut self, path: &str) -> Result<u64, FuseError> {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(fuse::ROOT, |node, name| Ok(self.look_up(node, name)?.node))
    }

    fn open(&mut self, node: u64) -> Result<u64, FuseError> {
        self.ask(&Request::Open { node, flags: 0 }, fuse::handle)
    }

    fn read(&mut self, node: u64, handle: u64, offset: u64) -> Result<Vec<u8>, FuseError> {
        let count = 1 << 20;
        self.body(&Request::Read { node, handle, offset, count }, count)
    }

    /// The content of a file, opened and closed for it.
    fn content(&mut self, node: u64) -> Result<Vec<u8>, FuseError> {
        let handle = self.open(node)?;
        let content = self.read(node, handle, 0);
        self.body(&Request::Release { node, handle }, 0)?;
        content
    }

    /// One answer's names, each with its object and the position behind it.
    fn names(
        &mut self,
        node: u64,
        offset: u64,
        count: u32,
    ) -> Result<Vec<(String, u64, Entry)>, FuseError> {
        let body = self.body(&Request::ReadDirPlus { node, handle: 0, offset, count }, 0)?;
        let names = fuse::names_with_objects(&body).map(|named| {
            let (entry, name) = named?;
            if entry.node != 0 {
                assert_eq!(entry.attributes.ino, name.ino);
                assert_eq!(entry.attributes.mode >> 12, name.kind);
            }
            Ok((String::from_utf8_lossy(name.name).into_owned(), name.next, entry))
        });
        names.collect()
    }

    /// All names but `.` and `..`, by answers of `count` bytes.
    fn all_names(&mut self, node: u64, count: u32) -> Vec<(String, Entry)> {
        let (mut all, mut position) = (vec![], 0);
        loop {
            let names = self.names(node, position, count).expect("a folder");
            let Some(last) = names.last() else { return all };
            position = last.1;
            let named = names.into_iter().filter(|(name, ..)| name != "." && name != "..");
            all.extend(named.map(|(name, _, entry)| (name, entry)));
        }
    }
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(dir.path().join("a/b")).expect("made");
    std::fs::write(dir.path().join("a/b/file"), "content").expect("written");
    std::fs::write(dir.path().join("a/other"), vec![7; 3 << 20]).expect("written");
    symlink("../other", dir.path().join("a/b/link")).expect("linked");
    dir
}

#[test]
fn what_is_there_is_told_as_it_is() {
    let dir = folder();
    let mut guest = Guest::begun(dir.path(), AUTO);
    let file = guest.walk("a/b/file").expect("there");
    assert_eq!(guest.content(file).as_deref(), Ok(&b"content"[..]));
    let (valid_ns, told) = guest.ask(&Request::GetAttr { node: file }, fuse::attributes).expect("");
    let known = std::fs::metadata(dir.path().join("a/b/file")).expect("there");
    assert_eq!(valid_ns, 1_000_000_000);
    assert_eq!((told.ino, told.size, told.mode), (known.ino(), 7, known.mode()));
    assert_eq!((told.uid, told.gid, told.links), (known.uid(), known.gid(), 1));
    assert_eq!(told.mtime, (known.mtime() as u64, known.mtime_nsec() as u32));
    let link = guest.walk("a/b/link").expect("there");
    assert_eq!(guest.body(&Request::ReadLink { node: link }, 0).as_deref(), Ok(&b"../other"[..]));
    let other = guest.walk("a/other").expect("there");
    let handle = guest.open(other).expect("readable");
    assert_eq!(guest.read(other, handle, 0).map(|data| data.len()), Ok(1 << 20));
    assert_eq!(guest.read(other, handle, (3 << 20) - 5), Ok(vec![7; 5]));
    assert_eq!(guest.read(other, handle, 1 << 40), Ok(vec![]));
    assert_eq!(guest.read(other, handle, u64::MAX), Err(EINVAL));
    assert!(guest.read(other, handle + 1, 0).is_err());
    assert_eq!(guest.body(&Request::OpenDir { node: fuse::ROOT }, 0), Err(ENOSYS));
    assert!(guest.ask(&Request::StatFs, fuse::stat_fs).expect("known").block_size > 0);
    assert!(guest.body(&Request::GetXattr { node: file, name: b"user.none" }, 0).is_err());
    assert_eq!(guest.body(&Request::ListXattr { node: link }, 0).map(|_| ()), Ok(()));
}

#[test]
fn what_is_not_there_may_be_believed_as_long_as_the_rest() {
    let dir = folder();
    for (valid, valid_ns) in [(AUTO, 1_000_000_000), (ALWAYS, 4_294_967_295 * 1_000_000_000)] {
        let mut guest = Guest::begun(dir.path(), valid);
        let nothing = guest.look_up(fuse::ROOT, "nothing").expect("an answer");
        assert_eq!((nothing.node, nothing.name_valid_ns), (0, valid_ns));
        let found = guest.look_up(fuse::ROOT, "a").expect("there");
        assert_eq!((found.name_valid_ns, found.attributes_valid_ns), (valid_ns, valid_ns));
    }
    let mut guest = Guest::begun(dir.path(), Duration::ZERO);
    assert_eq!(guest.look_up(fuse::ROOT, "nothing"), Err(ENOENT));
    assert_eq!(guest.look_up(fuse::ROOT, "a").expect("there").name_valid_ns, 0);
}

#[test]
fn names_outside_are_refused() {
    let dir = folder();
    let mut guest = Guest::begun(&dir.path().join("a"), AUTO);
    let inner = guest.walk("b").expect("there");
    for name in ["..", ".", "", "b/file", "../a", "/etc"] {
        assert_eq!(guest.look_up(inner, name), Err(EINVAL), "{name}");
    }
    assert_eq!(guest.look_up(77, "b"), Err(ESTALE));
    // A link's target is a text for the guest, and leads the server nowhere.
    symlink("/etc", dir.path().join("a/out")).expect("linked");
    let out = guest.walk("out").expect("the link");
    assert!(guest.look_up(out, "passwd").is_err());
    assert!(guest.names(out, 0, 4096).is_err());
    assert_eq!(guest.open(out), Err(EACCES));
}

#[test]
fn special_files_are_seen_and_not_opened() {
    let dir = folder();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).expect("bound");
    let mut guest = Guest::begun(dir.path(), AUTO);
    for (name, kind) in [("fifo", 0o01), ("socket", 0o14)] {
        let found = guest.look_up(fuse::ROOT, name).expect("there");
        assert_eq!(found.attributes.mode >> 12, kind);
        assert_eq!(guest.open(found.node), Err(EACCES));
    }
    let node = guest.walk("a/other").expect("there");
    for flags in [1, 2, 3, 0o1000, 0o100, 0o1002] {
        let opened = guest.ask(&Request::Open { node, flags }, fuse::handle);
        assert_eq!(opened, Err(EROFS), "{flags:o}");
    }
}

#[test]
fn large_folders_are_told_whole_by_answers_of_any_size() {
    let dir = tempfile::tempdir().expect("a folder");
    let name = |n: usize| format!("{n:0width$}", width = 1 + n % 200);
    let made: BTreeSet<String> = (0..3000).map(name).collect();
    for name in &made {
        std::fs::write(dir.path().join(name), "").expect("written");
    }
    let mut guest = Guest::begun(dir.path(), AUTO);
    for count in [512, 4096, 131_072, 1 << 20] {
        let told = guest.all_names(fuse::ROOT, count);
        let names: BTreeSet<String> = told.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!((told.len(), &names), (made.len(), &made), "{count}");
        assert!(told.iter().all(|(_, entry)| entry.node > 1));
    }
    assert_eq!(guest.names(fuse::ROOT, 0, 100).map(|_| ()), Err(EINVAL), "no room for one");
    assert_eq!(guest.served.nodes_len(), 1 + made.len(), "what did not fit counts for nothing");
    let known = guest.all_names(fuse::ROOT, 1 << 20);
    let lookups: Vec<_> = known.iter().map(|(_, entry)| (entry.node, 5)).collect();
    for some in lookups.chunks(1000) {
        let message = Request::Forget(some).encode(1, Caller::default());
        assert_eq!(guest.send(&message, 0), b"");
    }
    assert_eq!(guest.served.nodes_len(), 1);
}

#[test]
fn what_stays_in_a_folder_is_told_once_while_others_come_and_go() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: String| dir.path().join(name);
    for n in 0..1000 {
        std::fs::write(path(format!("stays-{n}")), "").expect("written");
        std::fs::write(path(format!("goes-{n}")), "").expect("written");
    }
    let mut guest = Guest::begun(dir.path(), AUTO);
    let (mut told, mut position) = (vec![], 0);
    for n in 0.. {
        let names = guest.names(fuse::ROOT, position, 2000).expect("a folder");
        let Some(last) = names.last() else { break };
        position = last.1;
        told.extend(names.into_iter().map(|(name, ..)| name));
        if n < 1000 {
            std::fs::remove_file(path(format!("goes-{n}"))).expect("there");
            std::fs::write(path(format!("comes-{n}")), "").expect("written");
        }
    }
    let stays: Vec<_> = told.iter().filter(|name| name.starts_with("stays-")).collect();
    let once: BTreeSet<_> = stays.iter().collect();
    assert_eq!((stays.len(), once.len()), (1000, 1000));
}

#[test]
fn what_the_host_replaces_is_stale_and_never_from_outside() {
    let (dir, outside) = (folder(), tempfile::tempdir().expect("a folder"));
    std::fs::create_dir(outside.path().join("b")).expect("made");
    std::fs::write(outside.path().join("b/file"), "secret").expect("written");
    let (inner, aside) = (dir.path().join("a"), dir.path().join("aside"));
    let stop = AtomicBool::new(false);
    let mut guest = Guest::begun(dir.path(), AUTO);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::fs::rename(&inner, &aside).expect("moved");
                symlink(outside.path(), &inner).expect("linked");
                std::fs::remove_file(&inner).expect("removed");
                std::fs::rename(&aside, &inner).expect("moved back");
            }
        });
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let content = guest.walk("a/b/file").and_then(|node| guest.content(node));
            match content {
                Ok(content) => {
                    assert_eq!(content, b"content");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(read > 0, "{read} {refused}");
    });
    let node = guest.walk("a/b/file").expect("there again");
    std::fs::rename(&inner, outside.path().join("taken")).expect("moved out");
    assert_eq!(guest.content(node), Err(ESTALE));
}

#[test]
fn the_hosts_proc_is_not_shared() {
    let mut guest = Guest::begun(Path::new("/"), AUTO);
    let proc = guest.walk("proc").expect("a folder to mount on");
    for name in ["self", "1", "cpuinfo", "nothing"] {
        assert_eq!(guest.look_up(proc, name).map(|entry| entry.node), Ok(0), "{name}");
    }
    assert_eq!(guest.names(proc, 0, 4096).map(|_| ()), Err(EACCES));
    assert!(
        guest.names(fuse::ROOT, 0, 1 << 16).expect("names").iter().any(|(name, ..)| name == "proc")
    );
}

#[test]
fn a_session_that_ends_leaves_nothing() {
    let dir = folder();
    let mut guest = Guest::begun(dir.path(), AUTO);
    let node = guest.walk("a/b/file").expect("there");
    let handle = guest.open(node).expect("readable");
    const DESTROY: u32 = 38;
    guest.send(&message(DESTROY, fuse::ROOT, &[]), 64);
    assert!(guest.read(node, handle, 0).is_err());
    assert_eq!(guest.open(node), Err(ESTALE));
    assert_eq!(guest.served.nodes_len(), 1);
}

/// A message of any operation.
fn message(operation: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let mut message = (40 + body.len() as u32).to_le_bytes().to_vec();
    message.extend(operation.to_le_bytes());
    message.extend(1u64.to_le_bytes());
    message.extend(node.to_le_bytes());
    message.extend([0; 16]);
    message.extend(body);
    message
}

/// Everything below a folder, with contents and times.
fn snapshot(dir: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        let known = entry.metadata().expect("there");
        let path = entry.path();
        let content = known.is_file().then(|| std::fs::read(&path).map(|bytes| bytes.len()).ok());
        all.insert(format!(
            "{path:?} {:o} {} {} {content:?} {}",
            known.mode(),
            known.uid(),
            known.nlink(),
            known.mtime_nsec()
        ));
        if known.is_dir() {
            all.extend(snapshot(&path));
        }
    }
    all
}

#[test]
fn nothing_can_be_changed() {
    let dir = folder();
    let before = snapshot(dir.path());
    let mut guest = Guest::begun(dir.path(), AUTO);
    let a = guest.walk("a").expect("there");
    let file = guest.walk("a/other").expect("there");
    // SETATTR, SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, WRITE, SETXATTR, REMOVEXATTR,
    // CREATE, FALLOCATE, RENAME2 (fuse.h), with the bytes before their names.
    let operations = [
        (4, 88, false),
        (6, 0, true),
        (8, 16, true),
        (9, 8, true),
        (10, 0, true),
        (11, 0, true),
        (12, 8, true),
        (13, 8, true),
        (16, 40, false),
        (21, 8, true),
        (24, 0, true),
        (35, 16, true),
        (43, 32, false),
        (45, 16, true),
    ];
    for (operation, fixed, has_names) in operations {
        for node in [a, file] {
            let mut body = vec![0; fixed];
            if operation == 21 {
                body[0] = 6;
            }
            if has_names {
                body.extend(b"other\0other\0");
            }
            let answer = guest.send(&message(operation, node, &body), 4096);
            let refused = fuse::reply_body(&answer, answer.len(), 1).map(|_| ());
            assert_eq!(refused, Err(EROFS), "operation {operation}");
        }
    }
    assert_eq!(snapshot(dir.path()), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever comes as a message, the next one is answered, and nothing has changed.
    #[test]
    fn any_message_is_survived(
        messages in prop::collection::vec(
            (
                0u32..64,
                prop_oneof![0u64..12, any::<u64>()],
                prop::collection::vec(
                    prop_oneof![Just(0u8), Just(1), Just(b'/'), any::<u8>()],
                    0..200,
                ),
                prop_oneof![Just(0u32), 0u32..200, Just(4096), Just(300_000)],
                prop_oneof![8 => Just(None), 1 => any::<u32>().prop_map(Some)],
            ),
            1..40,
        )
    ) {
        let dir = folder();
        let before = snapshot(dir.path());
        let mut guest = Guest::begun(dir.path(), AUTO);
        for (operation, node, body, room, len) in messages {
            let mut message = message(operation, node, &body);
            if let Some(len) = len {
                message[..4].copy_from_slice(&len.to_le_bytes());
            }
            guest.send(&message, room);
        }
        prop_assert!(guest.walk("a/b/file").is_ok());
        prop_assert_eq!(snapshot(dir.path()), before);
    }

    /// The kernel's own requests with some bytes changed, and cut.
    #[test]
    fn mutated_requests_are_survived(
        changes in prop::collection::vec((0usize..12, 0usize..120, any::<u8>(), 0usize..200), 1..60)
    ) {
        let dir = folder();
        let mut guest = Guest::begun(dir.path(), Duration::ZERO);
        let node = guest.walk("a/b").expect("there");
        let handle = 1;
        let requests = [
            Request::Lookup { node, name: b"file" },
            Request::Forget(&[(2, 1), (3, 1)]),
            Request::GetAttr { node },
            Request::ReadLink { node: node + 2 },
            Request::Open { node: node + 1, flags: 0 },
            Request::Read { node, handle, offset: 0, count: 4096 },
            Request::ReadDirPlus { node, handle: 0, offset: 0, count: 4096 },
            Request::Release { node, handle },
            Request::StatFs,
            Request::GetXattr { node, name: b"user.x" },
            Request::ListXattr { node },
            Request::Init { features: 0, max_readahead: 0 },
        ];
        for (which, at, byte, keep) in changes {
            let mut message = requests[which].encode(9, Caller::default());
            if let Some(place) = message.get_mut(at) {
                *place = byte;
            }
            message.truncate(keep.max(1));
            guest.send(&message, 70_000);
        }
        prop_assert!(guest.walk("a/b/file").is_ok());
    }

    /// A queue of any bytes ends no thread, and takes no memory but the guest's.
    #[test]
    fn any_queue_is_survived(
        ring in prop::collection::vec(any::<u8>(), 1024),
        available in prop::collection::vec(any::<u8>(), 140),
        rings in 1u16..QUEUE,
        near in any::<bool>(),
    ) {
        let dir = folder();
        let guest = Guest::begun(dir.path(), AUTO);
        let mut ring = ring;
        if near {
            // Addresses and lengths that are inside more often than not.
            for descriptor in ring.chunks_exact_mut(16) {
                descriptor[3..8].fill(0);
                descriptor[2] &= 0x3f;
                descriptor[9..12].fill(0);
                descriptor[13] = 0;
                descriptor[14] &= 63;
                descriptor[15] = 0;
            }
        }
        guest.write(&ring, DESCRIPTORS);
        guest.write(&available, AVAILABLE);
        guest.write(&(1 + rings).to_le_bytes(), AVAILABLE + 2);
        guest.kick();
        guest.write(&u16::MAX.to_le_bytes(), AVAILABLE + 2);
        guest.kick();
    }
}
