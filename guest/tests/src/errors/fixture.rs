//! What a row is tried on: a descriptor of each kind, and a folder with a name of each kind.
//!
//! Why it is hard: a row must get the same answer whatever the rows before it did. So a descriptor
//! is made for one row and closed behind it, never waits, and is of this program's own; and the
//! folder is built again after each call that has succeeded.

use crate::sc;
use crate::sys::*;

/// Who tries what rows say about a user without privileges.
pub const USER: u32 = 65534;
/// A process id above any that Linux gives out (proc_sys_kernel(5), pid_max).
pub const NOBODY: i64 = 1 << 23;

macro_rules! kinds {
    ($($kind:ident $name:literal),* $(,)?) => {
        /// A kind of descriptor.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind { $($kind),* }
        /// Each kind, and what the table calls it.
        pub const KINDS: &[(Kind, &str)] = &[$((Kind::$kind, $name)),*];
    };
}

kinds! {
    Closed "closed", Minus "-1", Path "path", Folder "folder", Ro "ro", Wo "wo", Rw "rw",
    Append "append", Sealed "sealed", PipeRead "pipe-r", PipeWrite "pipe-w", Fifo "fifo",
    UnixStream "unix-stream", UnixDatagram "unix-dgram", UnixNew "unix-new", TcpNew "tcp",
    TcpListening "tcp-listen", UdpNew "udp", Netlink "netlink", Event "eventfd", Epoll "epoll",
    Timer "timerfd", Signal "signalfd", Inotify "inotify", Pid "pidfd", Master "ptmx",
    Terminal "pts", Null "null", Zero "zero", Proc "proc", ProcFolder "proc-dir",
}

/// Kinds whose inode is not this program's own: no row may change it.
pub const SHARED_INODES: &[Kind] = &[Kind::Null, Kind::Zero, Kind::Master, Kind::Terminal];

/// A descriptor of this kind; the row closes it, and what it needed beside it.
pub fn descriptor(kind: Kind) -> i32 {
    let flags = O_NONBLOCK | O_CLOEXEC;
    let opened = |path: &str, how: i32| open(path, how | flags).fd();
    let socket = |family: i32, kind: i32| sc!(SYS_socket, family, kind | flags, 0).fd();
    match kind {
        Kind::Closed => 999,
        Kind::Minus => -1,
        Kind::Path => open("file", O_PATH | O_CLOEXEC).fd(),
        Kind::Folder => opened("dir", O_RDONLY | O_DIRECTORY),
        Kind::Ro => opened("file", O_RDONLY),
        Kind::Wo => opened("file", O_WRONLY),
        Kind::Rw => opened("file", O_RDWR),
        Kind::Append => opened("file", O_RDWR | O_APPEND),
        Kind::Sealed => sealed(),
        Kind::PipeRead => pipe_flags(flags).0,
        Kind::PipeWrite => pipe_flags(flags).1,
        Kind::Fifo => opened("fifo", O_RDWR),
        Kind::UnixStream => pair(SOCK_STREAM),
        Kind::UnixDatagram => socket(AF_UNIX, SOCK_DGRAM),
        Kind::UnixNew => socket(AF_UNIX, SOCK_STREAM),
        Kind::TcpNew => socket(AF_INET, SOCK_STREAM),
        Kind::TcpListening => {
            let fd = socket(AF_INET, SOCK_STREAM);
            sc!(SYS_listen, fd, 1).is(0);
            fd
        }
        Kind::UdpNew => socket(AF_INET, SOCK_DGRAM),
        Kind::Netlink => socket(AF_NETLINK, SOCK_RAW),
        Kind::Event => sc!(SYS_eventfd2, 0, flags).fd(),
        Kind::Epoll => sc!(SYS_epoll_create1, O_CLOEXEC).fd(),
        Kind::Timer => sc!(SYS_timerfd_create, CLOCK_MONOTONIC, flags).fd(),
        Kind::Signal => sc!(SYS_signalfd4, -1i32, [bit(SIGUSR2)].as_ptr(), 8, flags).fd(),
        Kind::Inotify => sc!(SYS_inotify_init1, flags).fd(),
        Kind::Pid => sc!(SYS_pidfd_open, pid(), 0).fd(),
        Kind::Master => opened("/dev/ptmx", O_RDWR | O_NOCTTY),
        Kind::Terminal => terminal(),
        Kind::Null => opened("/dev/null", O_RDWR),
        Kind::Zero => opened("/dev/zero", O_RDWR),
        Kind::Proc => opened("/proc/self/status", O_RDONLY),
        Kind::ProcFolder => opened("/proc/self", O_RDONLY | O_DIRECTORY),
    }
}

/// Closes what rows have left open.
pub fn close_all() {
    let _ = sc!(SYS_close_range, 3, u32::MAX, 0);
}

fn pair(kind: i32) -> i32 {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.as_mut_ptr()).is(0);
    pair[0]
}

fn sealed() -> i32 {
    let fd = sc!(SYS_memfd_create, c"sealed".as_ptr(), MFD_ALLOW_SEALING | MFD_CLOEXEC).fd();
    write(fd, b"0123456789");
    let seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    sc!(SYS_fcntl, fd, F_ADD_SEALS, seals).is(0);
    fd
}

fn terminal() -> i32 {
    let master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC).fd();
    sc!(SYS_ioctl, master, TIOCSPTLCK, [0u32].as_ptr()).is(0);
    sc!(SYS_ioctl, master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC).fd()
}

/// What the table calls a path, where it is not the path itself.
pub const LONG_NAME: &str = "long-name";
pub const LONG_PATH: &str = "long-path";

/// The names that rows try for a path, beside bad pointers.
pub const PATHS: &[&str] = &[
    "",
    "none",
    "none/x",
    "none/",
    "file",
    "file/",
    "file/x",
    "dir",
    "dir/",
    "dir/.",
    ".",
    "..",
    "full",
    "loop",
    "loop/x",
    "loop/",
    "dangling",
    "dangling/",
    "link",
    "link/",
    "folder-link",
    "folder-link/",
    "folder-link/x",
    "fifo",
    "socket",
    "text",
    "busy",
    "secret/x",
    "closed/file",
    "closed/new",
    "sticky/file",
    "sticky/new",
    "others",
    "set-uid",
    LONG_NAME,
    LONG_PATH,
    "/proc/self/status",
    "/proc/none",
    "/proc/self/fd/999",
];

/// The bytes of such a name.
pub fn path_bytes(name: &str) -> Vec<u8> {
    let mut bytes = match name {
        LONG_NAME => vec![b'n'; 256],
        LONG_PATH => b"dir/../".repeat(600),
        name => name.as_bytes().to_vec(),
    };
    bytes.push(0);
    bytes
}

/// Builds the folder of the rows below this one and enters it; what was there is removed.
pub fn folder(base: &str) {
    let place = format!("{base}/rows");
    let _ = sc!(SYS_chdir, c(base).as_ptr());
    let _ = std::fs::remove_dir_all(&place);
    let made = |path: &str, mode: u32| sc!(SYS_mkdir, c(path).as_ptr(), mode).is(0);
    made(&place, 0o777);
    sc!(SYS_chdir, c(&place).as_ptr()).is(0);
    for name in ["dir", "full", "secret", "closed", "sticky", "mine"] {
        made(name, 0o777);
    }
    let files = ["file", "full/file", "secret/x", "closed/file", "sticky/file", "others"];
    for name in files {
        std::fs::write(name, b"0123456789").expect("a fresh folder takes files");
    }
    std::fs::write("text", b"no program\n").expect("a fresh folder takes files");
    std::fs::write("set-uid", b"no program\n").expect("a fresh folder takes files");
    for (target, name) in [("loop", "loop"), ("nowhere", "dangling"), ("file", "link")] {
        std::os::unix::fs::symlink(target, name).expect("a fresh folder takes links");
    }
    std::os::unix::fs::symlink("dir", "folder-link").expect("a fresh folder takes links");
    sc!(SYS_mknod, c"fifo".as_ptr(), S_IFIFO | 0o666, 0).is(0);
    sc!(SYS_mknod, c"socket".as_ptr(), S_IFSOCK | 0o666, 0).is(0);
    let program = b"#!/none/interpreter\n";
    std::fs::write("busy", program).expect("a fresh folder takes files");
    for (name, mode) in MODES {
        sc!(SYS_chmod, c(name).as_ptr(), *mode).is(0);
    }
    for name in [".", "dir", "full", "mine", "file", "link", "fifo", "socket", "text", "busy"] {
        sc!(SYS_lchown, c(name).as_ptr(), USER, USER).is(0);
    }
}

const MODES: &[(&str, u32)] = &[
    (".", 0o777),
    ("dir", 0o777),
    ("full", 0o777),
    ("file", 0o666),
    ("text", 0o755),
    ("busy", 0o755),
    ("others", 0o600),
    ("secret", 0o700),
    ("closed", 0o755),
    ("sticky", 0o1777),
    ("sticky/file", 0o644),
    ("set-uid", 0o4755),
];
