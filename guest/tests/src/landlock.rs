//! Programs that restrict themselves: landlock(7).
//!
//! Each test restricts a child, since restrictions never go away. A host whose kernel was built
//! without Landlock passes by having nothing to compare with; Limen must have it.

use crate::sys::*;
use crate::{sc, tests};

tests!("landlock":
    errors_and_their_numbers, each_right_to_files, rights_stack_and_are_inherited, sixteen_layers,
    moves_between_directories, ports, mounts_and_tracing, a_ruleset_can_grow,
    a_thread_restricts_itself, out_of_a_bind_mount, marks_are_files,
);

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK: u64 = 1 << 11;
const MAKE_SYM: u64 = 1 << 12;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// Every right to files.
pub const ALL_FS: u64 = (1 << 16) - 1;
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 2;

const PATH_BENEATH: u32 = 1;
const NET_PORT: u32 = 2;

/// The version of the interface; `None` where there is none, which Limen may not say.
pub fn version() -> Option<usize> {
    match sc!(SYS_landlock_create_ruleset, 0, 0, 1) {
        Err(ENOSYS | EOPNOTSUPP) => {
            let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default();
            assert!(!kernel.contains("limen"), "this kernel has Landlock");
            None
        }
        version => Some(version.must()),
    }
}

/// Whether the interface has everything that is tested here.
fn is_there() -> bool {
    version().is_some_and(|version| version >= 5)
}

/// A ruleset that handles these rights to files and ports.
pub fn ruleset(fs: u64, net: u64) -> i32 {
    let attributes = [fs, net];
    sc!(SYS_landlock_create_ruleset, attributes.as_ptr(), 16, 0).fd()
}

fn add_path(ruleset: i32, rights: u64, parent: i32) -> Res {
    let rule = [rights as u32, (rights >> 32) as u32, parent as u32];
    sc!(SYS_landlock_add_rule, ruleset, PATH_BENEATH, rule.as_ptr(), 0)
}

/// Adds a rule: rights at a TCP port.
pub fn add_port(ruleset: i32, rights: u64, port: u64) -> Res {
    let rule = [rights, port];
    sc!(SYS_landlock_add_rule, ruleset, NET_PORT, rule.as_ptr(), 0)
}

/// Grants rights below a path.
pub fn grant(ruleset: i32, rights: u64, path: &str) {
    let fd = open(path, O_PATH | O_CLOEXEC).fd();
    add_path(ruleset, rights, fd).is(0);
    close(fd);
}

/// Restricts the caller.
pub fn restrict(ruleset: i32) -> Res {
    sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
    sc!(SYS_landlock_restrict_self, ruleset, 0)
}

fn errors_and_their_numbers() {
    if !is_there() {
        return;
    }
    let create = |attributes: &[u64], size: usize| {
        sc!(SYS_landlock_create_ruleset, attributes.as_ptr(), size, 0)
    };
    create(&[READ_FILE], 7).fails(EINVAL);
    for size in [1, 8, 4097] {
        sc!(SYS_landlock_create_ruleset, 0, size, 0).fails(EFAULT);
    }
    create(&[0, 0], 16).fails(ENOMSG);
    create(&[1 << 63, 0], 16).fails(EINVAL);
    create(&[READ_FILE, 1 << 63], 16).fails(EINVAL);
    create(&[READ_FILE, 0, 0, 1], 32).fails(E2BIG);
    create(&[READ_FILE, 0, 1 << 63], 24).fails(if version() == Some(5) { E2BIG } else { EINVAL });
    sc!(SYS_landlock_create_ruleset, 8, 16, 0).fails(EFAULT);
    sc!(SYS_landlock_create_ruleset, 8, 16, 1).fails(EINVAL);
    sc!(SYS_landlock_create_ruleset, 0, 0, 1 << 31).fails(EINVAL);
    close(create(&[READ_FILE], 8).fd());

    let rules = ruleset(READ_FILE | READ_DIR, BIND_TCP);
    assert_eq!(sc!(SYS_fcntl, rules, F_GETFD).must() as i32 & FD_CLOEXEC, FD_CLOEXEC);
    let tmp = open("/tmp", O_PATH).fd();
    add_path(rules, 0, tmp).fails(ENOMSG);
    add_path(rules, WRITE_FILE, tmp).fails(EINVAL);
    add_path(rules, READ_FILE, 1 << 20).fails(EBADF);
    add_path(rules, READ_FILE, rules).fails(EBADFD);
    add_path(rules, READ_FILE, pipe().0).fails(EBADFD);
    let memory = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    add_path(rules, READ_FILE, memory).fails(EBADFD);
    add_path(tmp, READ_FILE, tmp).fails(EBADF);
    add_path(pipe().0, READ_FILE, tmp).fails(EBADFD);
    add_path(1 << 20, READ_FILE, tmp).fails(EBADF);
    let file = open(&own_path(), O_RDONLY).fd();
    add_path(rules, READ_DIR, file).fails(EINVAL);
    add_path(rules, READ_FILE, file).is(0);
    add_port(rules, 0, 80).fails(ENOMSG);
    add_port(rules, CONNECT_TCP, 80).fails(EINVAL);
    add_port(rules, BIND_TCP, 65536).fails(EINVAL);
    sc!(SYS_landlock_add_rule, rules, PATH_BENEATH, 8, 0).fails(EFAULT);
    sc!(SYS_landlock_add_rule, rules, 99, 8, 0).fails(EINVAL);
    sc!(SYS_landlock_add_rule, rules, PATH_BENEATH, 8, 1).fails(EINVAL);
    in_child(|| {
        sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
        sc!(SYS_landlock_restrict_self, rules, 0).fails(EPERM);
        sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
        sc!(SYS_landlock_restrict_self, rules, 1 << 31).fails(EINVAL);
        sc!(SYS_landlock_restrict_self, tmp, 0).fails(EBADF);
        sc!(SYS_landlock_restrict_self, file, 0).fails(EBADFD);
        sc!(SYS_landlock_restrict_self, 1 << 20, 0).fails(EBADF);
        sc!(SYS_landlock_restrict_self, rules, 0).is(0);
    });
}

/// A program without an interpreter that ends with status 0.
fn tiny_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    // mov $60, %eax; xor %edi, %edi; syscall
    let code = [0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];
    let size = 120 + code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let mut put = |bytes: &[u8]| elf.extend_from_slice(bytes);
    // e_type, e_machine, e_version; e_entry, e_phoff, e_shoff; e_flags; sizes and counts.
    [2_u16, 62, 1, 0].iter().for_each(|half| put(&half.to_le_bytes()));
    [BASE + 120, 64, 0].iter().for_each(|word| put(&word.to_le_bytes()));
    [0_u16, 0, 64, 56, 1, 0, 0, 0].iter().for_each(|half| put(&half.to_le_bytes()));
    // p_type PT_LOAD, p_flags r-x; p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
    [1_u32, 5].iter().for_each(|word| put(&word.to_le_bytes()));
    [0, BASE, BASE, size, size, 4096].iter().for_each(|word: &u64| put(&word.to_le_bytes()));
    put(&code);
    elf
}

/// Makes what the operations below need.
pub fn furnish(d: &str) {
    for name in ["file", "remove", "grow", "program"] {
        std::fs::write(format!("{d}/{name}"), b"text").expect("a file");
    }
    for name in ["empty", "into"] {
        std::fs::create_dir(format!("{d}/{name}")).expect("a directory");
    }
    let program = format!("{d}/program");
    std::fs::write(&program, tiny_program()).expect("a program");
    sc!(SYS_chmod, c(&program).as_ptr(), 0o755).is(0);
    let null = c(&format!("{d}/null"));
    sc!(SYS_mknod, null.as_ptr(), S_IFCHR | 0o666, makedev(1, 3)).is(0);
}

fn mknod(path: &str, kind: u32, device: u64) -> Res {
    sc!(SYS_mknod, c(path).as_ptr(), kind | 0o600, device)
}

/// Opens, and closes again.
fn opens(path: &str, flags: i32) -> Res {
    open(path, flags).map(|fd| {
        close(fd as i32);
        0
    })
}

/// Executes a program that does nothing, in a child: 0 or the error.
fn execute(path: &str) -> Res {
    let pid = fork(|| {
        let path = c(path);
        let argv = [path.as_ptr(), std::ptr::null()];
        let nothing = [std::ptr::null::<u8>()];
        sc!(SYS_execve, path.as_ptr(), argv.as_ptr(), nothing.as_ptr()).unwrap_err()
    });
    match WEXITSTATUS(wait(pid)) {
        0 => Ok(0),
        error => Err(error),
    }
}

/// Does, in a directory, what needs the right and no other.
fn needs(right: u64, d: &str) -> Res {
    let at = |name: &str| format!("{d}/{name}");
    match right {
        EXECUTE => execute(&at("program")),
        WRITE_FILE => opens(&at("file"), O_WRONLY),
        READ_FILE => opens(&at("file"), O_RDONLY),
        READ_DIR => opens(d, O_RDONLY | O_DIRECTORY),
        REMOVE_DIR => sc!(SYS_rmdir, c(&at("empty")).as_ptr()),
        REMOVE_FILE => sc!(SYS_unlink, c(&at("remove")).as_ptr()),
        MAKE_CHAR => mknod(&at("char"), S_IFCHR, makedev(1, 3)),
        MAKE_DIR => sc!(SYS_mkdir, c(&at("directory")).as_ptr(), 0o700),
        MAKE_REG => mknod(&at("regular"), S_IFREG, 0),
        MAKE_SOCK => mknod(&at("socket"), S_IFSOCK, 0),
        MAKE_FIFO => mknod(&at("fifo"), S_IFIFO, 0),
        MAKE_BLOCK => mknod(&at("block"), S_IFBLK, makedev(1, 0)),
        MAKE_SYM => sc!(SYS_symlink, c"file".as_ptr(), c(&at("link")).as_ptr()),
        REFER => sc!(SYS_link, c(&at("file")).as_ptr(), c(&at("into/name")).as_ptr()),
        TRUNCATE => sc!(SYS_truncate, c(&at("grow")).as_ptr(), 1),
        _ => {
            assert_eq!(right, IOCTL_DEV);
            let null = at("null");
            let fd = open(&null, O_RDONLY).or_else(|_| open(&null, O_WRONLY)).fd();
            // An answer of the device itself means that it was asked.
            let answer = sc!(SYS_ioctl, fd, TCGETS, 8);
            close(fd);
            if answer == Err(ENOTTY) { Ok(0) } else { answer }
        }
    }
}

fn each_right_to_files() {
    if !is_there() {
        return;
    }
    for right in (0..16).map(|bit| 1_u64 << bit) {
        let (granted, denied) = (dir(), dir());
        [&granted, &denied].into_iter().for_each(|d| furnish(d));
        in_child(|| {
            let rules = ruleset(right, 0);
            grant(rules, right, &granted);
            restrict(rules).is(0);
            assert_eq!(needs(right, &granted), Ok(0), "right {right:#x} where it is granted");
            let refused = if right == REFER { EXDEV } else { EACCES };
            assert_eq!(needs(right, &denied), Err(refused), "right {right:#x} where it is not");
            // Nothing was changed, and nothing else is refused.
            for other in (0..16).map(|bit| 1_u64 << bit).filter(|&other| other != right) {
                let expected = match (other, right) {
                    // A link is a new name of a file, too, and that is what is told first.
                    (REFER, MAKE_REG) => Err(EACCES),
                    (REFER, _) => Err(EXDEV),
                    // Who executes a program reads it.
                    (EXECUTE, READ_FILE) => Err(EACCES),
                    _ => Ok(0),
                };
                assert_eq!(needs(other, &denied), expected, "{other:#x} with {right:#x} handled");
            }
        });
    }
}

/// The same through descriptors and flags that need a right besides.
fn rights_stack_and_are_inherited() {
    if !is_there() {
        return;
    }
    let (one, other) = (dir(), dir());
    [&one, &other].into_iter().for_each(|d| furnish(d));
    let file = |d: &str| format!("{d}/file");
    in_child(|| {
        let before = open(&file(&other), O_RDWR).fd();
        let rules = ruleset(READ_FILE | WRITE_FILE | TRUNCATE, 0);
        grant(rules, READ_FILE | WRITE_FILE, &one);
        grant(rules, READ_FILE, &other);
        restrict(rules).is(0);
        open(&file(&other), O_RDWR).fails(EACCES);
        open(&file(&one), O_WRONLY | O_TRUNC).fails(EACCES);
        let fd = open(&file(&one), O_RDWR).fd();
        sc!(SYS_ftruncate, fd, 0).fails(EACCES);
        // What was open before stays as it was, and a path is not a file.
        sc!(SYS_ftruncate, before, 0).is(0);
        close(open(&file(&other), O_PATH).fd());
        in_child(|| {
            let rules = ruleset(READ_FILE, 0);
            grant(rules, READ_FILE, &one);
            restrict(rules).is(0);
            close(open(&file(&one), O_RDWR).fd());
            open(&file(&other), O_RDONLY).fails(EACCES);
            in_child(|| open(&file(&other), O_RDONLY).fails(EACCES));
        });
        // The child's own restriction was its own.
        close(open(&file(&other), O_RDONLY).fd());
    });
    in_child(|| {
        let rules = ruleset(EXECUTE, 0);
        grant(rules, EXECUTE, &one);
        restrict(rules).is(0);
        assert_eq!(execute(&format!("{one}/program")), Ok(0));
        assert_eq!(execute(&format!("{other}/program")), Err(EACCES));
    });
}

fn sixteen_layers() {
    if !is_there() {
        return;
    }
    in_child(|| {
        let rules = ruleset(MAKE_SYM, 0);
        (0..16).for_each(|_| {
            restrict(rules).is(0);
        });
        restrict(rules).fails(E2BIG);
        close(open("/tmp", O_RDONLY).fd());
    });
}

fn moves_between_directories() {
    if !is_there() {
        return;
    }
    let top = dir();
    for name in ["a", "b", "c", "d"] {
        std::fs::create_dir(format!("{top}/{name}")).expect("a directory");
        std::fs::write(format!("{top}/{name}/{name}"), b"x").expect("a file");
    }
    let rename = |from: &str, to: &str, flags: u32| {
        let (from, to) = (c(&format!("{top}/{from}")), c(&format!("{top}/{to}")));
        sc!(SYS_renameat2, AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), flags)
    };
    in_child(|| {
        let names = MAKE_REG | REMOVE_FILE;
        let rules = ruleset(names | REFER | READ_FILE, 0);
        for name in ["a", "b", "c"] {
            grant(rules, names | REFER, &format!("{top}/{name}"));
        }
        grant(rules, names, &format!("{top}/d"));
        grant(rules, READ_FILE, &format!("{top}/c"));
        restrict(rules).is(0);
        rename("a/a", "b/moved", 0).is(0);
        rename("b/moved", "b/again", 0).is(0);
        // Where it would become readable; where moves are not granted; where no name may be made.
        rename("b/again", "c/moved", 0).fails(EXDEV);
        rename("b/again", "d/moved", 0).fails(EXDEV);
        rename("d/d", "a/moved", 0).fails(EXDEV);
        rename("b/again", "outside", 0).fails(EACCES);
        rename("b/again", "c/c", RENAME_EXCHANGE).fails(EXDEV);
        // The other way it loses a right, which is no harm.
        rename("c/c", "b/moved", 0).is(0);
        rename("b/none", "c/none", 0).fails(ENOENT);
    });
}

fn inet(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

fn ports() {
    if !is_there() {
        return;
    }
    let tcp = || sc!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0).fd();
    let bind = |socket: i32, port| sc!(SYS_bind, socket, core::ptr::from_ref(&inet(port)), 16);
    // Two free ports, found by asking for any.
    let free = || {
        let socket = tcp();
        bind(socket, 0).is(0);
        sc!(SYS_listen, socket, 1).is(0);
        let (mut address, mut len) = (inet(0), 16_u32);
        sc!(SYS_getsockname, socket, &raw mut address, &raw mut len).is(0);
        (socket, u16::from_be(address.sin_port))
    };
    let ((granted_socket, granted), (_other_socket, other)) = (free(), free());
    in_child(|| {
        let rules = ruleset(0, BIND_TCP | CONNECT_TCP);
        add_port(rules, CONNECT_TCP, granted.into()).is(0);
        add_port(rules, BIND_TCP, 0).is(0);
        restrict(rules).is(0);
        let connect = |port| sc!(SYS_connect, tcp(), core::ptr::from_ref(&inet(port)), 16);
        connect(granted).is(0);
        connect(other).fails(EACCES);
        bind(tcp(), granted).fails(EACCES);
        bind(tcp(), 0).is(0);
        // Not TCP, not concerned.
        let udp = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
        bind(udp, other).is(0);
        // Files are not, either.
        close(open("/tmp", O_RDONLY).fd());
    });
    close(granted_socket);
}

fn mounts_and_tracing() {
    if !is_there() {
        return;
    }
    let d = dir();
    let (parent_ready, child_done) = (pipe(), pipe());
    let free = fork(|| {
        read(parent_ready.0, 1);
        0
    });
    in_child(|| {
        let rules = ruleset(ALL_FS, 0);
        grant(rules, ALL_FS, "/");
        restrict(rules).is(0);
        let (tmpfs, at) = (c("tmpfs"), c(&d));
        sc!(SYS_mount, tmpfs.as_ptr(), at.as_ptr(), tmpfs.as_ptr(), 0, 0).fails(EPERM);
        sc!(SYS_umount2, c("/proc").as_ptr(), 0).fails(EPERM);
        // Who is restricted less is not looked into; who is restricted as much is.
        sc!(SYS_ptrace, PTRACE_ATTACH, free, 0, 0).fails(EPERM);
        let equal = fork(|| {
            read(child_done.0, 1);
            0
        });
        sc!(SYS_ptrace, PTRACE_ATTACH, equal, 0, 0).is(0);
        let mut status = 0;
        sc!(SYS_wait4, equal, &raw mut status, __WALL, 0).is(equal as usize);
        sc!(SYS_ptrace, PTRACE_DETACH, equal, 0, 0).is(0);
        write(child_done.1, b"x");
        wait_code(equal, 0);
    });
    write(parent_ready.1, b"x");
    wait_code(free, 0);
}

fn a_ruleset_can_grow() {
    if !is_there() {
        return;
    }
    let d = dir();
    in_child(|| {
        let rules = ruleset(READ_DIR, 0);
        let tmp = open(&d, O_PATH).fd();
        in_child(|| {
            restrict(rules).is(0);
            open(&d, O_RDONLY).fails(EACCES);
            // A rule that comes now is for those who come later.
            add_path(rules, READ_DIR, tmp).is(0);
            open(&d, O_RDONLY).fails(EACCES);
        });
        restrict(rules).is(0);
        close(open(&d, O_RDONLY).fd());
        open("/tmp", O_RDONLY).fails(EACCES);
    });
}

/// A thread restricts itself, and the threads and processes that it makes; no other.
fn a_thread_restricts_itself() {
    if !is_there() {
        return;
    }
    let file = format!("{}/file", dir());
    std::fs::write(&file, "text").unwrap();
    let reads = |file: &str| open(file, O_RDONLY).map(|fd| close(fd as i32));
    in_child(|| {
        std::thread::scope(|scope| {
            let restricted = scope.spawn(|| {
                let rules = ruleset(READ_FILE, 0);
                restrict(rules).is(0);
                assert_eq!(reads(&file), Err(EACCES), "itself");
                let made = std::thread::scope(|scope| scope.spawn(|| reads(&file)).join().unwrap());
                assert_eq!(made, Err(EACCES), "a thread that it makes");
                in_child(|| assert_eq!(reads(&file), Err(EACCES), "a process that it makes"));
            });
            restricted.join().unwrap();
            assert_eq!(reads(&file), Ok(()), "another thread");
            in_child(|| assert_eq!(reads(&file), Ok(()), "a process of another thread"));
        });
    });
}

/// What was moved out of what a bind mount shows has the rights that are granted above it where it
/// is now, and those above the mount that it is reached by.
fn out_of_a_bind_mount() {
    let knows = || sc!(SYS_landlock_create_ruleset, 0, 0, 2).is_ok_and(|errata| errata & 4 != 0);
    if !is_there() || !knows() {
        return;
    }
    let rules = [
        ("away", Ok(())),
        ("from/shown", Ok(())),
        ("at", Ok(())),
        ("from", Err(EACCES)),
        ("", Ok(())),
    ];
    for (rule, expected) in rules {
        let top = dir();
        let in_top = |name: &str| format!("{top}/{name}");
        for name in ["from", "from/shown", "from/shown/moved", "at", "at/here", "away"] {
            std::fs::create_dir(in_top(name)).expect("a directory");
        }
        std::fs::write(in_top("from/shown/moved/file"), "text").expect("a file");
        in_child(|| {
            // A host's own mounts stay as they are.
            let own = sc!(SYS_unshare, CLONE_NEWNS).and_then(|_| {
                let (none, root) = (c("none"), c("/"));
                sc!(SYS_mount, none.as_ptr(), root.as_ptr(), 0, MS_REC | MS_PRIVATE, 0)
            });
            let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default();
            if own.is_err() && !kernel.contains("limen") {
                return;
            }
            let (from, at) = (c(&in_top("from/shown")), c(&in_top("at/here")));
            sc!(SYS_mount, from.as_ptr(), at.as_ptr(), 0, MS_BIND, 0).is(0);
            let moved = open(&in_top("at/here/moved"), O_PATH | O_DIRECTORY).fd();
            std::fs::rename(in_top("from/shown/moved"), in_top("away/moved")).expect("a move");
            let rules = ruleset(READ_FILE, 0);
            grant(rules, READ_FILE, &in_top(rule));
            restrict(rules).is(0);
            let opened = sc!(SYS_openat, moved, c("file").as_ptr(), O_RDONLY, 0).map(|_| ());
            assert_eq!(opened, expected, "a rule at {rule:?}");
        });
        // Where there are no namespaces of mounts it is everybody's.
        let _ = sc!(SYS_umount2, c(&in_top("at/here")).as_ptr(), MNT_DETACH);
    }
}

/// Device 0:0, the mark of union file systems, is made by anybody and by renames: who may make no
/// file makes none.
fn marks_are_files() {
    const RENAME_EXCHANGE: u32 = 2;
    const RENAME_WHITEOUT: u32 = 4;
    if !is_there() {
        return;
    }
    let (granted, denied) = (dir(), dir());
    for d in [&granted, &denied] {
        mknod(&format!("{d}/fifo"), S_IFIFO, 0).is(0);
        mknod(&format!("{d}/mark"), S_IFCHR, 0).is(0);
        sc!(SYS_mkdir, c(&format!("{d}/below")).as_ptr(), 0o700).is(0);
        mknod(&format!("{d}/below/fifo"), S_IFIFO, 0).is(0);
    }
    // Not every Linux guards them.
    let child = fork(|| {
        restrict(ruleset(MAKE_REG, 0)).is(0);
        i32::from(mknod(&format!("{denied}/any"), S_IFCHR, 0) == Err(EACCES))
    });
    if WEXITSTATUS(wait(child)) == 0 && !is_limen() {
        return;
    }
    in_child(|| {
        let rules = ruleset(MAKE_REG | REFER, 0);
        grant(rules, MAKE_REG, &granted);
        for d in [&granted, &denied] {
            grant(rules, REFER, d);
        }
        restrict(rules).is(0);
        for (d, refused) in [(&granted, false), (&denied, true)] {
            let rename = |from: &str, to: &str, flags: u32| {
                let (from, to) = (c(&format!("{d}/{from}")), c(&format!("{d}/{to}")));
                sc!(SYS_renameat2, AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), flags)
            };
            let expected = if refused { Err(EACCES) } else { Ok(0) };
            assert_eq!(mknod(&format!("{d}/new"), S_IFCHR, 0), expected, "made");
            let (old, new) = (c(&format!("{d}/mark")), c(&format!("{d}/link")));
            assert_eq!(sc!(SYS_link, old.as_ptr(), new.as_ptr()), expected, "linked");
            assert_eq!(rename("mark", "below/fifo", RENAME_EXCHANGE), expected, "moved");
            assert_eq!(rename("fifo", "moved", RENAME_WHITEOUT), expected, "left");
            assert_eq!(rename("below", "further", 0), Ok(0), "what makes no mark");
        }
    });
}
