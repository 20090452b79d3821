//! What happens when a policy refuses, and when several are asked: in a VM of a kernel built with
//! policies that refuse what they are told to (`limen test run --filter run::refusals`).
//!
//! For every hook, the call that reaches it (`hooks.rs`) is made with the policies of `lsm=`: each
//! is asked, in that order. Then each in turn refuses: the call fails with that policy's error,
//! who comes later is not asked, and nothing that a program can see of itself, of its files and of
//! the machine is different afterwards. Neighbours: `hooks.rs`, whose rows these are; `sys.rs`,
//! whose calls come by [`watched`] while one of these runs; /sys/kernel/security/probe.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::hooks::{DIR, FILE, FOLDER, ROWS, Row};
use crate::sc;
use crate::sys::*;

/// Where a hook is watched, and told to refuse.
const PROBE: &str = "/sys/kernel/security/probe";
/// What refuses: an error that no call gives of its own.
const REFUSED: i32 = ELIBBAD;

/// Calls that return twice, and not first to the new process.
const FORKS: [i64; 3] = [SYS_fork, SYS_clone, SYS_clone3];

/// Key of what the rows make of System V.
const KEY: i32 = 7;
/// Hooks whose refusal is not the call's error, and what it is instead.
const OTHERWISE: &[(&str, Outcome)] = &[
    ("capable", Outcome::Error(EPERM)),
    // The signal does not come.
    ("file_send_sigiotask", Outcome::GoesOn),
    // The message comes without the file (unix(7), MSG_CTRUNC).
    ("file_receive", Outcome::GoesOn),
    // Who may not look at a process's memory may not open its map (proc(5)).
    ("ptrace_access_check", Outcome::Error(EACCES)),
    // The connection is refused like one that nobody listens for.
    ("inet_conn_request", Outcome::Error(ECONNREFUSED)),
];

/// What a call does that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It fails with this.
    Error(i32),
    /// It goes on without what was refused.
    GoesOn,
}

/// What this process, and those that it forks, watch: read by every call.
struct Watched {
    hook: String,
    policy: usize,
    errno: i32,
}

static WATCHED: AtomicPtr<Watched> = AtomicPtr::new(std::ptr::null_mut());
static PROBE_FD: AtomicI32 = AtomicI32::new(-1);
/// On a page that children share: how many calls were refused, how many of them not as they must
/// be, and how many calls have been looked at, refused or not.
static SHARED: AtomicPtr<[AtomicU32; 3]> = AtomicPtr::new(std::ptr::null_mut());

fn shared() -> &'static [AtomicU32; 3] {
    // SAFETY: `main` has put the address of a page there that is mapped for good.
    unsafe { &*SHARED.load(Ordering::SeqCst) }
}

/// Tells the kernel; false if that was refused itself, which forgets it.
fn tell(hook: &str, policy: usize, errno: i32) -> bool {
    let text = format!("{hook} {policy} {errno}");
    let fd = PROBE_FD.load(Ordering::SeqCst) as usize;
    raw_call(SYS_pwrite64 as usize, &[fd, text.as_ptr() as usize, text.len(), 0]).is_ok()
}

/// How often the hook has refused, and who was asked until it first did, or at all: a digit each.
fn told() -> (usize, String) {
    let text = std::fs::read_to_string(PROBE).expect("the probe");
    let (fired, asked) = text.trim_end().split_once(' ').expect("two words");
    (fired.parse().expect("a number"), asked.trim_start_matches('-').to_owned())
}

/// Whether [`watched`] makes the calls.
pub fn watches() -> bool {
    !WATCHED.load(Ordering::SeqCst).is_null()
}

/// Called by every system call of the tests: whether it is made here, and with what result.
pub fn watched(nr: usize, args: &[usize]) -> Option<Res> {
    // SAFETY: only `refuse` stores an address there, of a value that is never freed.
    let watched = unsafe { WATCHED.load(Ordering::Relaxed).as_ref() }?;
    // Who ends is not there afterwards, and while one waits others make their own calls.
    if [SYS_exit_group, SYS_wait4, SYS_pause].map(|nr| nr as usize).contains(&nr) {
        return None;
    }
    // The first look makes room in the heap that the second needs.
    drop(snapshot());
    let before = snapshot();
    assert!(tell(&watched.hook, watched.policy, watched.errno), "the probe cannot be armed");
    let [refused, wrong, judged] = shared();
    let turn = judged.load(Ordering::SeqCst);
    let result = raw_call(nr, args);
    // There is one probe: a new process makes no call before its parent has read it.
    if result == Ok(0) && FORKS.map(|nr| nr as usize).contains(&nr) {
        while judged.load(Ordering::SeqCst) == turn {
            std::thread::yield_now();
        }
        return Some(result);
    }
    let mut own = 0;
    while !tell("-", 0, 0) {
        own += 1;
        assert!(own < 8, "the probe cannot be disarmed");
    }
    let (refusals, asked) = told();
    judged.fetch_add(1, Ordering::SeqCst);
    if refusals <= own {
        return Some(result);
    }
    refused.fetch_add(1, Ordering::SeqCst);
    let mut good = judge(watched, nr, result, &asked);
    let after = snapshot();
    for (what, was) in &before {
        let is = after.get(what);
        if is != Some(was) {
            good = false;
            println!("{}: {what} was {was:?}, is {is:?}", watched.hook);
        }
    }
    for what in after.keys().filter(|what| !before.contains_key(*what)) {
        good = false;
        println!("{}: {what} is new", watched.hook);
    }
    wrong.fetch_add(u32::from(!good), Ordering::SeqCst);
    quit(0)
}

/// Whether the call failed as it must, and nobody was asked after who refused.
fn judge(watched: &Watched, nr: usize, result: Res, asked: &str) -> bool {
    let listed = OTHERWISE.iter().find(|(hook, _)| *hook == watched.hook);
    let expected = listed.map_or(Outcome::Error(watched.errno), |(_, outcome)| *outcome);
    let as_must_be = match (expected, result) {
        (Outcome::Error(errno), result) => result == Err(errno),
        (Outcome::GoesOn, result) => result.is_ok(),
    };
    if !as_must_be {
        println!("{}: call {nr} gave {result:?}, expected {expected:?}", watched.hook);
    }
    let order = order();
    let until = order.find(&watched.policy.to_string()).map_or(0, |at| at + 1);
    // The hook may have been asked before, by the same call, and refused nothing yet.
    let last = asked.len() - asked.len().min(until);
    if asked[last..] != order[..until] {
        println!("{}: asked {asked} until {} refused, of {order}", watched.hook, watched.policy);
        return false;
    }
    as_must_be
}

/// The numbers of the test policies in `lsm=`, in order.
fn order() -> String {
    let list = std::fs::read_to_string("/sys/kernel/security/lsm").expect("the policies");
    list.split(',').filter_map(|name| name.strip_prefix("allow")).collect()
}

type State = BTreeMap<String, Vec<u8>>;

/// Lines of /proc/self/status that are the program's own doing.
const STATUS: &[&str] = &[
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Umask",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "PPid",
    "TracerPid",
    "Threads",
    "Cpus_allowed",
];
/// Files that say what else there is.
const TOLD: &[&str] = &[
    "/proc/self/limits",
    "/proc/self/mountinfo",
    "/proc/sysvipc/msg",
    "/proc/sysvipc/sem",
    "/proc/sysvipc/shm",
    "/proc/net/unix",
    "/proc/net/udp",
    "/proc/locks",
    "/proc/sys/kernel/hostname",
    "/proc/self/oom_score_adj",
    "/proc/self/task",
];

/// All that a program can see of itself, of its files, and of what is everybody's.
fn snapshot() -> State {
    let mut state = State::new();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines().filter(|l| STATUS.contains(&l.split(':').next().unwrap_or(""))) {
        state.insert(format!("status {}", line.split(':').next().unwrap_or("")), line.into());
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let maps = maps.lines().filter(|line| !line.ends_with("[heap]"));
    state.insert("maps".into(), maps.collect::<Vec<_>>().join("\n").into());
    for file in TOLD {
        state.insert((*file).into(), std::fs::read(file).unwrap_or_default());
    }
    for fd in 0..24 {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let info = std::fs::read(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        if let Ok(link) = link {
            state.insert(format!("fd {fd}"), [link.as_os_str().as_bytes(), &info].concat());
        }
    }
    for (name, nr, args) in [
        ("nice", SYS_getpriority, [PRIO_PROCESS as usize, 0]),
        ("policy", SYS_sched_getscheduler, [0, 0]),
        ("ioprio", SYS_ioprio_get, [1, 0]),
        ("session", SYS_getsid, [0, 0]),
        ("group", SYS_getpgid, [0, 0]),
    ] {
        state.insert(name.into(), format!("{:?}", raw_call(nr as usize, &args)).into());
    }
    for (path, node) in tree() {
        state.insert(path.display().to_string(), format!("{node:?}").into());
    }
    state
}

/// What a name in the tests' folder is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    /// Of contents and of the inode.
    changed: [(i64, i64); 2],
    contents: Vec<u8>,
    attributes: Vec<(String, Vec<u8>)>,
}

fn tree() -> BTreeMap<PathBuf, Node> {
    let mut out = BTreeMap::new();
    let mut todo = vec![PathBuf::from(FOLDER)];
    while let Some(path) = todo.pop() {
        let Ok(meta) = path.symlink_metadata() else { continue };
        let contents = match meta.file_type() {
            kind if kind.is_dir() => {
                let entries = std::fs::read_dir(&path).into_iter().flatten();
                todo.extend(entries.flatten().map(|entry| entry.path()));
                Vec::new()
            }
            kind if kind.is_symlink() => std::fs::read_link(&path)
                .map(|to| to.as_os_str().as_bytes().to_vec())
                .unwrap_or_default(),
            kind if kind.is_file() => std::fs::read(&path).unwrap_or_default(),
            _ => Vec::new(),
        };
        let changed = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
        let (mode, owner, links) = (meta.mode(), (meta.uid(), meta.gid()), meta.nlink());
        let attributes = attributes(&path);
        out.insert(path, Node { mode, owner, links, changed, contents, attributes });
    }
    out
}

fn attributes(path: &Path) -> Vec<(String, Vec<u8>)> {
    let name = c(&path.display().to_string());
    let mut list = [0u8; 256];
    let arguments = [name.as_ptr() as usize, list.as_mut_ptr() as usize, list.len()];
    let len = raw_call(SYS_llistxattr as usize, &arguments).unwrap_or(0);
    let names = list[..len].split(|&b| b == 0).filter(|name| !name.is_empty());
    let value = |attribute: &[u8]| {
        let attribute = String::from_utf8_lossy(attribute).into_owned();
        let (key, mut value) = (c(&attribute), [0u8; 64]);
        let room = [key.as_ptr() as usize, value.as_mut_ptr() as usize, value.len()];
        let arguments = [name.as_ptr() as usize, room[0], room[1], room[2]];
        let len = raw_call(SYS_lgetxattr as usize, &arguments).unwrap_or(0);
        (attribute, value[..len].to_vec())
    };
    names.map(value).collect()
}

/// Makes the folder, and what outlives a process, what they were.
fn restore(then: &BTreeMap<PathBuf, Node>) {
    let _ = sc!(SYS_umount2, c(DIR).as_ptr(), MNT_DETACH);
    let remove = IPC_RMID as usize;
    for (get, control, arguments) in [
        (SYS_msgget, SYS_msgctl, [remove, 0]),
        (SYS_semget, SYS_semctl, [0, remove]),
        (SYS_shmget, SYS_shmctl, [remove, 0]),
    ] {
        if let Ok(id) = sc!(get, KEY, 0, 0) {
            sc!(control, id, arguments[0], arguments[1], 0).is(0);
        }
    }
    for path in tree().keys().rev().filter(|path| !then.contains_key(*path)) {
        let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path));
    }
    for (path, node) in then {
        let here = path.symlink_metadata().is_ok();
        match node.mode & S_IFMT {
            S_IFDIR if !here => std::fs::create_dir(path).expect("a folder"),
            S_IFLNK if !here => {
                let to = std::ffi::OsStr::from_bytes(&node.contents);
                std::os::unix::fs::symlink(to, path).expect("a link");
            }
            S_IFREG => std::fs::write(path, &node.contents).expect("a file"),
            _ => {}
        }
        let name = c(&path.display().to_string());
        for (attribute, _) in attributes(path) {
            sc!(SYS_lremovexattr, name.as_ptr(), c(&attribute).as_ptr()).is(0);
        }
        for (attribute, value) in &node.attributes {
            let (key, len) = (c(attribute), value.len());
            sc!(SYS_lsetxattr, name.as_ptr(), key.as_ptr(), value.as_ptr(), len, 0).is(0);
        }
    }
}

/// Runs a row in a child in which a policy refuses at a hook.
fn refuse(hook: &str, policy: usize, row: &Row) -> bool {
    let [refused, wrong, _] = shared();
    let before = refused.load(Ordering::SeqCst);
    let child = fork(|| {
        // What a refused call leaves undone makes the row fail later on.
        std::panic::set_hook(Box::new(|_| ()));
        let watched = Watched { hook: hook.to_owned(), policy, errno: REFUSED };
        WATCHED.store(Box::leak(Box::new(watched)), Ordering::SeqCst);
        let _ = std::panic::catch_unwind(|| (row.1)());
        0
    });
    wait(child);
    if refused.load(Ordering::SeqCst) == before {
        println!("{hook}: policy {policy} could refuse nothing");
        return false;
    }
    wrong.swap(0, Ordering::SeqCst) == 0
}

/// Whether the row asks each policy at the hook, in order, and no other.
fn asks(hook: &str, row: &Row) -> bool {
    assert!(tell(hook, 0, 0), "the probe");
    let child = fork(|| {
        std::panic::set_hook(Box::new(|_| ()));
        let _ = std::panic::catch_unwind(|| (row.1)());
        0
    });
    wait(child);
    assert!(tell("-", 0, 0), "the probe");
    let (asked, order) = (told().1, order());
    let rounds = asked.len() / order.len().max(1);
    // The probe remembers the last sixteen; of more, whole rounds at the end.
    let whole = rounds * order.len();
    let good = match order.len() {
        0 => asked.is_empty(),
        _ => rounds > 0 && asked[asked.len() - whole..] == order.repeat(rounds),
    };
    if !good {
        println!("{hook}: asked {asked:?}, of {order:?}");
    }
    good
}

/// Hooks that tell policies something, and can refuse nothing.
fn are_told() -> Vec<String> {
    let text = std::fs::read_to_string("/sys/kernel/security/hooks").expect("the hooks");
    let lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.filter(|words| words.get(2) == Some(&"All")).map(|words| words[0].to_owned()).collect()
}

/// Prints what is wrong; whether nothing is.
pub fn main() -> bool {
    std::fs::create_dir_all(FOLDER).expect("a folder");
    close(open(FILE, O_RDWR | O_CREAT).fd());
    PROBE_FD.store(open(PROBE, O_WRONLY).fd(), Ordering::SeqCst);
    let page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0).must();
    SHARED.store(page as *mut [AtomicU32; 3], Ordering::SeqCst);
    let (told, order) = (are_told(), order());
    let (mut good, mut asked, mut refusals) = (true, 0, 0);
    for row in ROWS {
        let then = tree();
        for &hook in row.0 {
            good &= asks(hook, row);
            restore(&then);
            asked += 1;
            if told.iter().any(|name| name == hook) {
                continue;
            }
            for policy in order.bytes().map(|digit| usize::from(digit - b'0')) {
                good &= refuse(hook, policy, row);
                restore(&then);
                refusals += 1;
            }
        }
        (row.1)();
    }
    let verdict = if good { "ok" } else { "FAILED" };
    println!("refusals: {} policies, {asked} hooks, {refusals} refusals, {verdict}", order.len());
    good
}
