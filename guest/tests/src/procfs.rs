//! The files of /proc/PID: who may open which, what an open one is bound to, and what becomes of it
//! when the process executes another program, ends, and is waited for.
//!
//! Manual pages: proc(5) and its parts, ptrace(2) ("Ptrace access mode checking"), execve(2).

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::sys::*;
use crate::{sc, tests};

tests!("procfs":
    permission_bits, who_may_open, open_files_over_exec, open_files_over_the_end,
    memory_of_a_set_user_id_program, memory_at_exec_under_fire, own_files_when_not_dumpable,
    threads_have_the_same_files, children_of_threads, descriptor_info, mounts_tell_of_changes,
    a_zombie_has_a_thread,
    writes_of_settings_do_not_move, ends_of_text, an_expired_timer,
    owners_are_taken, tables_of_devices, lists_come_by_pieces,
);

/// What comes of an attempt to open a file of another process and read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Got {
    /// There is text.
    Text,
    /// It is empty.
    Empty,
    /// It opens; reading fails.
    Fails(i32),
    /// It does not open.
    Closed(i32),
}
use Got::*;

/// One file of /proc/PID.
struct Row {
    name: &'static str,
    mode: u32,
    /// Opened and read by another user, while the process lets itself be looked into.
    by_other: Got,
    /// By the same user, while it does not.
    by_same_when_hidden: Got,
    /// Opened before and read after: an exec, the process's end, its being waited for.
    after_exec: Got,
    after_end: Got,
    after_wait: Got,
}

const fn row(name: &'static str, mode: u32, answers: [Got; 5]) -> Row {
    let [by_other, by_same_when_hidden, after_exec, after_end, after_wait] = answers;
    Row { name, mode, by_other, by_same_when_hidden, after_exec, after_end, after_wait }
}

const NO: Got = Closed(EACCES);
const GONE: Got = Fails(ESRCH);

#[rustfmt::skip]
const FILES: &[Row] = &[
    //                            other hidden exec   end    waited for
    row("auxv",          0o400, [NO,   NO,   Text,  Text,  Text]),
    row("cgroup",        0o444, [Text, Text, Text,  Text,  GONE]),
    row("cmdline",       0o444, [Text, Text, Text,  Empty, GONE]),
    row("comm",          0o644, [Text, Text, Text,  Text,  GONE]),
    row("cpuset",        0o444, [Text, Text, Text,  Text,  GONE]),
    row("environ",       0o400, [NO,   NO,   Empty, Empty, Empty]),
    row("gid_map",       0o644, [Text, Text, Text,  Text,  Text]),
    row("io",            0o400, [NO,   NO,   Text,  Text,  GONE]),
    row("ksm_merging_pages", 0o400, [NO, NO, Text,  Empty, GONE]),
    row("ksm_stat",      0o400, [NO,   NO,   Text,  Empty, GONE]),
    row("limits",        0o444, [Text, Text, Text,  Text,  GONE]),
    row("loginuid",      0o644, [Text, Text, Text,  Text,  GONE]),
    row("maps",          0o444, [NO,   NO,   Empty, Empty, GONE]),
    row("mem",           0o600, [NO,   NO,   Empty, Empty, Empty]),
    row("mountinfo",     0o444, [Text, Text, Text,  Text,  Text]),
    row("mounts",        0o444, [Text, Text, Text,  Text,  Text]),
    row("mountstats",    0o400, [NO,   NO,   Text,  Text,  Text]),
    row("numa_maps",     0o444, [NO,   NO,   Empty, Empty, GONE]),
    row("oom_adj",       0o644, [Text, Text, Text,  Text,  GONE]),
    row("oom_score",     0o444, [Text, Text, Text,  Text,  GONE]),
    row("oom_score_adj", 0o644, [Text, Text, Text,  Text,  GONE]),
    row("pagemap",       0o400, [NO,   NO,   Empty, Empty, Empty]),
    row("personality",   0o400, [NO,   NO,   Text,  Text,  GONE]),
    row("projid_map",    0o644, [Text, Text, Text,  Text,  Text]),
    row("sched",         0o644, [Text, Text, Text,  Text,  GONE]),
    row("schedstat",     0o444, [Text, Text, Text,  Text,  GONE]),
    row("sessionid",     0o444, [Text, Text, Text,  Text,  GONE]),
    row("setgroups",     0o644, [Text, Text, Text,  Text,  Text]),
    row("smaps",         0o444, [NO,   NO,   Empty, Empty, GONE]),
    row("smaps_rollup",  0o444, [NO,   NO,   GONE,  GONE,  GONE]),
    row("stat",          0o444, [Text, Text, Text,  Text,  GONE]),
    row("statm",         0o444, [Text, Text, Text,  Text,  GONE]),
    row("status",        0o444, [Text, Text, Text,  Text,  GONE]),
    row("syscall",       0o400, [NO,   NO,   Text,  Text,  GONE]),
    row("timens_offsets", 0o644, [Text, Text, Text, Empty, GONE]),
    row("uid_map",       0o644, [Text, Text, Text,  Text,  Text]),
    row("wchan",         0o444, [Text, Text, Text,  Text,  GONE]),
];

/// Links, which open for those who may look into the process.
const LINKS: [&str; 5] = ["cwd", "exe", "root", "ns/uts", "fd/0"];
/// Directories, and their permission bits.
const DIRECTORIES: [(&str, u32); 6] = [
    ("fd", 0o500),
    ("fdinfo", 0o555),
    ("map_files", 0o500),
    ("ns", 0o511),
    ("task", 0o555),
    ("net", 0o555),
];

/// Two users who are not the superuser.
const ONE: u32 = 4321;
const TWO: u32 = 8765;

/// A word that both the old and the new image have somewhere: where the old one has it is told.
static WORD: [u8; 16] = *b"a word in memory";

fn become_user(id: u32) {
    sc!(SYS_setgroups, 0, 0).is(0);
    sc!(SYS_setresgid, id, id, id).is(0);
    sc!(SYS_setresuid, id, id, id).is(0);
    // Another user's memory is not for the new one to see, says the kernel; here it is.
    sc!(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0).is(0);
}

/// A process of user `id` that stays until it is told by a byte to go on to `then`.
struct Subject {
    pid: i32,
    go: i32,
    ready: i32,
}

impl Subject {
    fn new(id: u32, then: impl FnOnce(i32) -> i32) -> Subject {
        let (go_out, go) = pipe();
        let (ready, ready_in) = pipe();
        let pid = fork(|| {
            become_user(id);
            write(ready_in, b"1");
            assert_eq!(read(go_out, 1), b"g");
            then(ready_in)
        });
        close(ready_in);
        close(go_out);
        assert_eq!(read(ready, 1), b"1");
        Subject { pid, go, ready }
    }

    /// Tells it to go on, and waits until it says so.
    fn go_on(&self) {
        write(self.go, b"g");
        assert_eq!(read(self.ready, 1), b"2");
    }

    fn path(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid)
    }

    fn end(self) {
        sc!(SYS_kill, self.pid, SIGKILL).is(0);
        wait(self.pid);
        close(self.go);
        close(self.ready);
    }
}

/// Executes this program again: it writes to `ready`, and waits for its end.
fn execute(program: &str, ready: i32) -> i32 {
    let words = [c("program"), c("child"), c("say-and-pause"), c(&ready.to_string())];
    let argv: Vec<_> = words.iter().map(|w| w.as_ptr()).chain([std::ptr::null()]).collect();
    let environment = [c"A=1".as_ptr(), std::ptr::null()];
    sc!(SYS_execve, c(program).as_ptr(), argv.as_ptr(), environment.as_ptr()).err().unwrap_or(0)
}

/// Reads an open file: from the word's place if it is memory, else from the start.
fn try_read(name: &str, fd: i32) -> Got {
    let mut bytes = [0u8; 64];
    let at = if name == "mem" { WORD.as_ptr() as usize } else { 0 };
    match sc!(SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), at) {
        Ok(0) => Empty,
        Ok(_) => Text,
        Err(error) => Fails(error),
    }
}

fn try_open(name: &str, path: &str) -> Got {
    match open(path, O_RDONLY) {
        Ok(fd) => {
            let answer = try_read(name, fd as i32);
            close(fd as i32);
            answer
        }
        Err(error) => Closed(error),
    }
}

/// Compares answers row by row; all that differ are told at once.
fn compare(what: &str, wanted: fn(&Row) -> Got, mut got: impl FnMut(&Row) -> Got) {
    let differ = |row: &Row| {
        let (wanted, got) = (wanted(row), got(row));
        (wanted != got).then(|| format!("{}: {got:?}, not {wanted:?}", row.name))
    };
    let different: Vec<String> = FILES.iter().filter_map(differ).collect();
    assert!(different.is_empty(), "{what}: {different:#?}");
}

fn permission_bits() {
    let subject = Subject::new(ONE, |_| 0);
    for row in FILES {
        let of = std::fs::metadata(subject.path(row.name)).unwrap();
        assert_eq!(of.permissions().mode() & 0o7777, row.mode, "{}", row.name);
        assert_eq!((of.uid(), of.gid()), (ONE, ONE), "{}", row.name);
    }
    for (name, mode) in DIRECTORIES {
        let of = std::fs::metadata(subject.path(name)).unwrap();
        assert_eq!(of.permissions().mode() & 0o7777, mode, "{name}");
    }
    subject.end();
}

fn who_may_open() {
    let subject = Subject::new(ONE, |ready| {
        sc!(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0).is(0);
        write(ready, b"2");
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let links = |wanted: Option<i32>| {
        let mut text = [0u8; 64];
        for name in LINKS {
            let path = c(&subject.path(name));
            let got = sc!(SYS_readlink, path.as_ptr(), text.as_mut_ptr(), 64).err();
            assert_eq!(got, wanted, "{name}");
        }
    };
    in_child(|| {
        become_user(ONE);
        compare("same user", |_| Text, |row| try_open(row.name, &subject.path(row.name)));
        links(None);
    });
    in_child(|| {
        become_user(TWO);
        compare("other user", |r| r.by_other, |row| try_open(row.name, &subject.path(row.name)));
        links(Some(EACCES));
        open(&subject.path("fd"), O_RDONLY).fails(EACCES);
        open(&subject.path("fdinfo/0"), O_RDONLY).fails(EACCES);
    });
    subject.go_on();
    in_child(|| {
        become_user(ONE);
        let hidden = |row: &Row| row.by_same_when_hidden;
        compare("not dumpable", hidden, |row| try_open(row.name, &subject.path(row.name)));
        links(Some(EACCES));
        open(&subject.path("fd"), O_RDONLY).fails(EACCES);
    });
    for row in FILES {
        let of = std::fs::metadata(subject.path(row.name)).unwrap();
        assert_eq!((of.uid(), of.gid()), (0, 0), "{}", row.name);
    }
    assert_eq!(std::fs::metadata(subject.path("")).unwrap().uid(), ONE);
    // Who may look into everything still may.
    compare("superuser", |_| Text, |row| try_open(row.name, &subject.path(row.name)));
    links(None);
    subject.end();
}

/// Opens every file of the process.
fn open_all(subject: &Subject) -> Vec<i32> {
    FILES.iter().map(|row| open(&subject.path(row.name), O_RDONLY).fd()).collect()
}

fn compare_open(what: &str, wanted: fn(&Row) -> Got, files: &[i32]) {
    let mut files = files.iter();
    compare(what, wanted, |row| try_read(row.name, *files.next().unwrap()));
}

fn open_files_over_exec() {
    let program = own_path();
    let subject = Subject::new(ONE, |ready| execute(&program, ready));
    let files = open_all(&subject);
    compare_open("before", |_| Text, &files);
    let memory = open(&subject.path("mem"), O_RDWR).fd();
    sc!(SYS_pwrite64, memory, WORD.as_ptr(), 1, WORD.as_ptr()).is(1);
    subject.go_on();
    compare_open("after exec", |row| row.after_exec, &files);
    sc!(SYS_pwrite64, memory, WORD.as_ptr(), 1, WORD.as_ptr()).is(0);
    // What is opened now is the new program's.
    compare(
        "anew",
        |_| Text,
        |row| match row.name {
            // The word may be elsewhere.
            "mem" => Text,
            name => try_open(name, &subject.path(name)),
        },
    );
    subject.end();
}

fn open_files_over_the_end() {
    let subject = Subject::new(ONE, |ready| {
        write(ready, b"2");
        0
    });
    let files = open_all(&subject);
    let directory = open(&subject.path("fd"), O_RDONLY).fd();
    subject.go_on();
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, subject.pid, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    compare_open("zombie", |row| row.after_end, &files);
    let zombie = |name: &str| std::fs::read_link(subject.path(name)).err().unwrap();
    assert_eq!(zombie("exe").raw_os_error(), Some(ENOENT));
    assert_eq!(zombie("cwd").raw_os_error(), Some(ENOENT));
    wait(subject.pid);
    compare_open("waited for", |row| row.after_wait, &files);
    let mut names = [0u8; 256];
    sc!(SYS_getdents64, directory, names.as_mut_ptr(), names.len()).fails(ENOENT);
    open(&subject.path("status"), O_RDONLY).fails(ENOENT);
}

/// The attack that binding to the address space is for: what was opened on a program of one's own
/// must not show the set-user-ID program that it becomes.
fn memory_of_a_set_user_id_program() {
    let d = dir();
    sc!(SYS_chmod, c(&d).as_ptr(), 0o755).is(0);
    let program = format!("{d}/raised");
    std::fs::copy(own_path(), &program).unwrap();
    sc!(SYS_chmod, c(&program).as_ptr(), 0o4755).is(0);
    let subject = Subject::new(ONE, |ready| execute(&program, ready));
    in_child(|| {
        become_user(ONE);
        let files = open_all(&subject);
        let memory = open(&subject.path("mem"), O_RDWR).fd();
        subject.go_on();
        assert_eq!(
            std::fs::metadata(subject.path("mem")).unwrap().uid(),
            0,
            "it has no more rights"
        );
        for (row, &fd) in FILES.iter().zip(&files) {
            let wanted = match row.name {
                "io" => Fails(EACCES),
                "personality" | "syscall" => Fails(EPERM),
                _ => row.after_exec,
            };
            assert_eq!(try_read(row.name, fd), wanted, "{}", row.name);
        }
        sc!(SYS_pwrite64, memory, WORD.as_ptr(), 1, WORD.as_ptr()).is(0);
        open(&subject.path("mem"), O_RDWR).fails(EACCES);
        open(&subject.path("maps"), O_RDONLY).fails(EACCES);
    });
    subject.end();
}

/// Opens against an exec that raises the rights: what opens is the old program's for ever.
fn memory_at_exec_under_fire() {
    let d = dir();
    sc!(SYS_chmod, c(&d).as_ptr(), 0o755).is(0);
    let program = format!("{d}/raised");
    std::fs::copy(own_path(), &program).unwrap();
    sc!(SYS_chmod, c(&program).as_ptr(), 0o4755).is(0);
    for round in 0..40 {
        let subject = Subject::new(ONE, |ready| execute(&program, ready));
        in_child(|| {
            become_user(ONE);
            let path = c(&subject.path("maps"));
            let mut opened = Vec::new();
            write(subject.go, b"g");
            // Until the set-user-ID program is there.
            for _ in 0..200 {
                match sc!(SYS_open, path.as_ptr(), O_RDONLY) {
                    Ok(fd) => opened.push(fd as i32),
                    Err(error) => {
                        assert_eq!(error, EACCES);
                        break;
                    }
                }
            }
            assert_eq!(read(subject.ready, 1), b"2");
            for fd in opened {
                assert_eq!(try_read("maps", fd), Empty, "round {round}");
            }
        });
        subject.end();
    }
}

fn own_files_when_not_dumpable() {
    in_child(|| {
        become_user(ONE);
        sc!(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0).is(0);
        // The descriptors are its own whatever the owner; what only the bits guard is not.
        assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 0);
        assert!(std::fs::read_link("/proc/self/exe").is_ok());
        assert!(std::fs::read("/proc/self/maps").is_ok_and(|text| !text.is_empty()));
        open("/proc/self/environ", O_RDONLY).fails(EACCES);
        open("/proc/self/mem", O_RDONLY).fails(EACCES);
    });
}

fn threads_have_the_same_files() {
    let subject = Subject::new(ONE, |_| 0);
    let only_processes = ["mounts", "mountinfo", "mountstats", "timens_offsets"];
    for row in FILES.iter().filter(|row| !only_processes.contains(&row.name)) {
        let path = subject.path(&format!("task/{}/{}", subject.pid, row.name));
        let of = std::fs::metadata(&path).unwrap();
        assert_eq!(of.permissions().mode() & 0o7777, row.mode, "{path}");
        assert_eq!(try_open(row.name, &path), Text, "{path}");
    }
    subject.end();
}

/// The children that a thread made, in the order it made them.
fn children_of_threads() {
    let own = format!("/proc/self/task/{}/children", tid());
    let children = || std::fs::read_to_string(&own).unwrap();
    assert_eq!(children(), "");
    let pids = [(); 3].map(|()| {
        fork(|| {
            loop {
                let _ = sc!(SYS_pause);
            }
        })
    });
    assert_eq!(children(), pids.map(|pid| format!("{pid} ")).concat());
    let of_thread = std::thread::spawn(|| {
        let pid = fork(|| 0);
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/children", tid()));
        wait_code(pid, 0);
        (pid, text.unwrap())
    });
    let (pid, text) = of_thread.join().unwrap();
    assert_eq!(text, format!("{pid} "));
    for pid in pids {
        sc!(SYS_kill, pid, SIGKILL).is(0);
        wait(pid);
    }
    assert_eq!(children(), "");
    assert!(std::fs::metadata("/proc/self/children").is_err(), "only threads have it");
}

fn info(fd: i32) -> String {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap()
}

/// What fdinfo tells beside position and flags (proc(5)).
fn descriptor_info() {
    let says = |fd: i32, line: &str| {
        let text = info(fd);
        assert!(text.lines().any(|l| l.starts_with(line)), "{line:?} is not in {text:?}");
    };
    let counter = sc!(SYS_eventfd2, 26, 0).fd();
    says(counter, "eventfd-count:               1a");
    let set = sc!(SYS_epoll_create1, 0).fd();
    let event = epoll_event { events: (EPOLLIN | EPOLLET) as u32, u64: 0xabc };
    sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, counter, &raw const event).is(0);
    says(set, &format!("tfd: {counter:8} events: {:8x} data: {:16x}", 0x8000_0019u32, 0xabc));
    let pidfd = sc!(SYS_pidfd_open, pid(), 0).fd();
    says(pidfd, &format!("Pid:\t{}", pid()));
    says(pidfd, &format!("NSpid:\t{}", pid()));
    let mask = bit(SIGUSR1) | bit(SIGHUP);
    let signals = sc!(SYS_signalfd4, -1i32, &raw const mask, 8, 0).fd();
    says(signals, "sigmask:\t0000000000000201");
    let d = dir_in("/dev/shm");
    let watcher = sc!(SYS_inotify_init1, 0).fd();
    sc!(SYS_inotify_add_watch, watcher, c(&d).as_ptr(), IN_CREATE | IN_DELETE).must();
    let inode = std::fs::metadata(&d).unwrap().ino();
    says(watcher, &format!("inotify wd:1 ino:{inode:x} sdev:"));
    let file = open(&format!("{d}/f"), O_RDWR | O_CREAT).fd();
    let lock = [F_WRLCK as u64 & 0xffff, 3, 4, 0];
    sc!(SYS_fcntl, file, F_SETLK, lock.as_ptr()).is(0);
    says(file, "lock:\t1: POSIX  ADVISORY  WRITE ");
    sc!(SYS_flock, file, LOCK_SH).is(0);
    says(file, "lock:\t1: FLOCK  ADVISORY  READ ");
    says(file, "lock:\t2: POSIX  ADVISORY  WRITE ");
}

/// Whoever waits for /proc/mounts hears of mounts that come and go.
fn mounts_tell_of_changes() {
    own_mounts();
    let mnt = c(&dir());
    for name in ["/proc/self/mounts", "/proc/self/mountinfo"] {
        let fd = open(name, O_RDONLY).fd();
        let ready = |timeout_ms: i32| {
            let mut entry = pollfd { fd, events: POLLPRI, revents: 0 };
            sc!(SYS_poll, &raw mut entry, 1, timeout_ms).must();
            entry.revents
        };
        assert_eq!(ready(0), 0);
        sc!(SYS_mount, c"t".as_ptr(), mnt.as_ptr(), c"tmpfs".as_ptr(), 0, 0).is(0);
        assert_eq!(ready(0), POLLPRI | POLLERR);
        assert_eq!(ready(0), 0, "told once");
        let set = sc!(SYS_epoll_create1, 0).fd();
        let event = epoll_event { events: EPOLLPRI as u32, u64: 1 };
        sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &raw const event).is(0);
        let pid = fork(|| {
            nap(30);
            sc!(SYS_umount2, mnt.as_ptr(), 0).is(0);
            0
        });
        let mut found = [event; 2];
        sc!(SYS_epoll_wait, set, found.as_mut_ptr(), 2, 5000).is(1);
        wait_code(pid, 0);
        assert_eq!(found[0].events & EPOLLPRI as u32, EPOLLPRI as u32);
        close(set);
        close(fd);
    }
    // A file of the process that has nothing to wait for is refused, as any regular file.
    let set = sc!(SYS_epoll_create1, 0).fd();
    let event = epoll_event { events: EPOLLIN as u32, u64: 1 };
    let status = open("/proc/self/status", O_RDONLY).fd();
    sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, status, &raw const event).fails(EPERM);
}

/// A setting of a process is written as a whole, and the position stays; a read moves it.
fn writes_of_settings_do_not_move() {
    let rows = [
        ("comm", "a name"),
        ("oom_score_adj", "500"),
        ("oom_adj", "10"),
        ("coredump_filter", "0x33"),
        ("timerslack_ns", "50000"),
    ];
    wait_code(
        fork(|| {
            for (name, text) in rows {
                let fd = open(&format!("/proc/self/{name}"), O_RDWR).fd();
                for _ in 0..2 {
                    sc!(SYS_write, fd, text.as_ptr(), text.len()).is(text.len());
                    sc!(SYS_lseek, fd, 0, SEEK_CUR).is(0);
                }
                let mut byte = 0u8;
                sc!(SYS_read, fd, &raw mut byte, 1).is(1);
                sc!(SYS_write, fd, text.as_ptr(), text.len()).is(text.len());
                assert_eq!(sc!(SYS_lseek, fd, 0, SEEK_CUR), Ok(1), "{name}");
                close(fd);
            }
            0
        }),
        0,
    );
}

fn a_zombie_has_a_thread() {
    let pid = fork(|| 0);
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, pid, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("\nThreads:\t1\n") && status.contains("State:\tZ"), "{status}");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    assert_eq!(after.split_whitespace().nth(17), Some("1"), "{stat}");
    wait(pid);
}

/// Text that is made when it is read has no end to seek from; what takes settings has, at 0.
fn ends_of_text() {
    const NONE: [Result<usize, i32>; 4] = [Err(EINVAL); 4];
    const EMPTY: [Result<usize, i32>; 4] = [Ok(0), Ok(5), Err(ENXIO), Err(ENXIO)];
    for (name, wanted) in [
        ("self/coredump_filter", EMPTY),
        ("self/oom_score_adj", EMPTY),
        ("self/auxv", EMPTY),
        ("self/environ", EMPTY),
        ("self/attr/current", EMPTY),
        ("sys/kernel/core_pattern", EMPTY),
        ("self/comm", NONE),
        ("self/status", NONE),
        ("self/maps", NONE),
        ("self/timerslack_ns", NONE),
        ("self/uid_map", NONE),
        ("self/mem", NONE),
        ("self/pagemap", NONE),
        ("self/io", NONE),
        ("uptime", NONE),
        ("net/dev", NONE),
    ] {
        let fd = open(&format!("/proc/{name}"), O_RDONLY).fd();
        let ways = [(SEEK_END, 0), (SEEK_END, 5), (SEEK_DATA, 0), (SEEK_HOLE, 0x10000)];
        let told = ways.map(|(whence, offset)| sc!(SYS_lseek, fd, offset, whence));
        assert_eq!(told, wanted, "{name}");
        close(fd);
    }
}

/// A timer that has expired and was not read yet has no time left, whatever its interval.
fn an_expired_timer() {
    const ABSOLUTE: i32 = 1;
    let fd = sc!(SYS_timerfd_create, CLOCK_MONOTONIC, 0).fd();
    // The interval, and the first time: long ago.
    let times = [1000u64, 0, 0, 1];
    sc!(SYS_timerfd_settime, fd, ABSOLUTE, times.as_ptr(), 0).is(0);
    until(|| {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        text.contains("ticks: 1\n") && text.contains("it_value: (0, 0)\n")
    });
    let mut left = [0u64; 4];
    sc!(SYS_timerfd_gettime, fd, left.as_mut_ptr()).is(0);
    assert!(left[0] == 1000 && left[2] <= 1000, "{left:?}");
    assert_ne!([left[2], left[3]], [0, 0], "asked for, it goes on");
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    assert!(!text.contains("it_value: (0, 0)\n"), "{text}");
    close(fd);
}

/// The superuser may say who owns what of a process: it is taken, and forgotten when the name is
/// looked up again. Settings keep their owner, and all of them their mode.
fn owners_are_taken() {
    if sc!(SYS_geteuid) != Ok(0) {
        return;
    }
    let own = ["/proc/self/status", "/proc/self/fd", "/proc/self/exe", "/proc/self/uid_map"];
    for path in own {
        let name = c(path);
        assert_eq!(sc!(SYS_lchown, name.as_ptr(), 0, 0), Ok(0), "{path}");
    }
    let thread = format!("/proc/self/task/{}", pid());
    for path in ["/proc/self/", &thread, "/proc/sys"] {
        let name = c(path);
        assert_eq!(sc!(SYS_chown, name.as_ptr(), 0, 0), Err(EPERM), "{path}");
    }
    let before = std::fs::metadata("/proc/self/status").unwrap();
    sc!(SYS_chown, c"/proc/self/status".as_ptr(), 1, 1).is(0);
    let after = std::fs::metadata("/proc/self/status").unwrap();
    assert_eq!((before.uid(), before.gid()), (after.uid(), after.gid()));
    let fd = open("/proc/self/status", O_RDONLY).fd();
    sc!(SYS_fchown, fd, 0, 0).is(0);
    sc!(SYS_fchmod, fd, 0o400).fails(EPERM);
    close(fd);
    let setting = c"/proc/sys/kernel/ostype".as_ptr();
    sc!(SYS_chown, setting, 0, 0).fails(EPERM);
    sc!(SYS_chmod, setting, 0o400).fails(EPERM);
    in_child(|| {
        sc!(SYS_setresuid, 1000, 1000, 1000).is(0);
        sc!(SYS_chown, c"/proc/self/status".as_ptr(), 0, u32::MAX).fails(EPERM);
    });
}

fn tables_of_devices() {
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(format!("/proc/{name}")).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    assert_eq!(lines("execdomains"), ["0-0\tLinux           \t[kernel]"]);
    assert_eq!(lines("cgroups")[0], "#subsys_name\thierarchy\tnum_cgroups\tenabled");
    let drivers = lines("tty/drivers");
    assert!(
        drivers
            .contains(&"/dev/tty             /dev/tty        5       0 system:/dev/tty".to_owned())
    );
    assert!(
        drivers.contains(&"pty_slave            /dev/pts      136 0-1048575 pty:slave".to_owned())
    );
    // Each kind of device that a terminal may have has a driver here, and its number there.
    let devices = lines("devices");
    for number in ["  5 /dev/tty", " 10 misc", "136 pts"] {
        assert!(devices.iter().any(|line| line == number), "{devices:?}");
    }
    for line in lines("misc") {
        let (minor, name) = line.trim_start().split_once(' ').unwrap();
        assert!(minor.parse::<u32>().is_ok_and(|minor| minor < 1 << 20), "{line}");
        assert!(!name.is_empty() && line.len() >= 5, "{line}");
    }
    for line in lines("diskstats") {
        assert!(line.split_whitespace().count() >= 14, "{line}");
    }
}

/// Descriptors and threads are listed a few at a time: all of them, each once, in order, also where
/// some in the middle are gone.
fn lists_come_by_pieces() {
    let listed = |path: &str| {
        let dir = open(path, O_RDONLY | O_DIRECTORY).fd();
        let (mut names, mut buf) = (Vec::<u32>::new(), [0u8; 120]);
        loop {
            let got = sc!(SYS_getdents64, dir, buf.as_mut_ptr(), buf.len()).must();
            let mut rest = &buf[..got];
            while let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, a, b, ..] = *rest {
                let (entry, others) = rest.split_at(u16::from_le_bytes([a, b]).into());
                let name = entry[19..].split(|&byte| byte == 0).next().unwrap();
                names.extend(std::str::from_utf8(name).unwrap().parse::<u32>().ok());
                rest = others;
            }
            if got == 0 {
                close(dir);
                return names;
            }
        }
    };
    let fds: Vec<i32> = (0..60).map(|_| sc!(SYS_dup, 1).fd()).collect();
    fds.iter().step_by(3).for_each(|&fd| close(fd));
    let found = listed("/proc/self/fd");
    assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
    for (at, &fd) in fds.iter().enumerate() {
        // The one for the list itself takes a free place, too.
        let is_open = at % 3 != 0 || at == 0;
        assert_eq!(found.contains(&(fd as u32)), is_open, "{fd} in {found:?}");
    }
    fds.iter().enumerate().filter(|(at, _)| at % 3 != 0).for_each(|(_, &fd)| close(fd));
    let gates: Vec<_> = (0..40).map(|_| std::sync::mpsc::channel::<()>()).collect();
    let (tell, told) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    for (gate, wait) in gates {
        let tell = tell.clone();
        let thread = std::thread::spawn(move || {
            tell.send(tid()).unwrap();
            let _ = wait.recv();
        });
        threads.push((Some(gate), Some(thread), told.recv().unwrap()));
    }
    for (gate, thread, _) in threads.iter_mut().skip(5).step_by(4) {
        drop(gate.take());
        thread.take().unwrap().join().unwrap();
    }
    let living = || threads.iter().filter(|one| one.1.is_some()).map(|one| one.2 as u32);
    let wanted: Vec<u32> = std::iter::once(tid() as u32).chain(living()).collect();
    until(|| {
        let found = listed("/proc/self/task");
        assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
        // A thread that was joined may be there for a moment.
        found.len() >= wanted.len() && wanted.iter().all(|id| found.contains(id))
    });
    for (gate, thread, _) in threads {
        drop(gate);
        thread.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
