//! Every size a program can give: what is told ends where the program said, whatever the kernel
//! has to tell, and no size ends the kernel.
//!
//! Why it is hard: a call that fills a struct of a size that the program names cuts it to that
//! size, pads it or refuses; the sizes just above the kernel's own are where a slice runs over.
//! `errors/` has a few sizes a call; here each is tried.

use crate::sc;
use crate::sys::*;
use crate::tests;

tests! { "sizes": of_structs_told, of_socket_options, of_structs_taken }

/// Every size up to here, and then the edges.
const DENSE: usize = 600;
const EDGES: [usize; 9] = [1023, 1024, 1025, 4095, 4096, 4097, 65536, 0x7fff_ffff, 0xffff_ffff];
/// Room for what is told; larger sizes are told of a room that ends.
const ROOM: usize = 3 * 4096;
const CANARY: u8 = 0xa5;

fn sizes() -> impl Iterator<Item = usize> {
    (0..=DENSE).chain(EDGES)
}

/// Room that is followed by nothing.
struct Room(*mut u8);

impl Room {
    fn new() -> Self {
        let at = anon(ROOM + 4096);
        unmap(at.wrapping_add(ROOM), 4096);
        Room(at)
    }

    fn fill(&self, byte: u8) {
        // SAFETY: a mapping of this size, of this test alone.
        unsafe { std::ptr::write_bytes(self.0, byte, ROOM) };
    }

    /// True if nothing behind the first `size` bytes was written.
    fn is_kept_behind(&self, size: usize) -> bool {
        // SAFETY: as in `fill`; nobody writes it now.
        let bytes = unsafe { std::slice::from_raw_parts(self.0, ROOM) };
        bytes.iter().skip(size).all(|byte| *byte == CANARY)
    }
}

/// A call that tells something in a room of a size.
type Tells = (&'static str, fn(at: usize, size: usize) -> Res);

/// The stopped child that ptrace asks, by its id.
fn tracee() -> i32 {
    static TRACEE: std::sync::OnceLock<i32> = std::sync::OnceLock::new();
    *TRACEE.get_or_init(|| {
        let child = fork(|| {
            sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is(0);
            sc!(SYS_kill, pid(), SIGSTOP).is(0);
            0
        });
        sc!(SYS_wait4, child, 0, WUNTRACED, 0).is(child as usize);
        sc!(SYS_ptrace, PTRACE_SETOPTIONS, child, 0, PTRACE_O_EXITKILL).is(0);
        child
    })
}

fn regset(kind: usize, at: usize, size: usize) -> Res {
    let vector = [at, size];
    sc!(SYS_ptrace, PTRACE_GETREGSET, tracee(), kind, vector.as_ptr())
}

/// A datagram socket with a message of 40 bytes in it.
fn datagram() -> i32 {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
    write(pair[1], &[7; 40]);
    close(pair[1]);
    pair[0]
}

fn with_length(call: i64, fd: i32, at: usize, size: usize) -> Res {
    let mut len = size as u32;
    let answer = sc!(call, fd, at, &raw mut len);
    close(fd);
    answer
}

fn bound() -> i32 {
    let fd = sc!(SYS_socket, AF_INET6, SOCK_DGRAM, 0).fd();
    let address = [AF_INET6 as u16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    sc!(SYS_bind, fd, address.as_ptr(), size_of_val(&address)).is(0);
    fd
}

const TELLS: &[Tells] = &[
    ("sched_getattr", |at, size| sc!(SYS_sched_getattr, 0, at, size, 0)),
    ("sched_getaffinity", |at, size| sc!(SYS_sched_getaffinity, 0, size, at)),
    ("getcwd", |at, size| sc!(SYS_getcwd, at, size)),
    ("readlink", |at, size| sc!(SYS_readlink, c"/proc/self/exe".as_ptr(), at, size)),
    ("getdents64", |at, size| {
        let fd = open("/proc/self", O_RDONLY).fd();
        let answer = sc!(SYS_getdents64, fd, at, size);
        close(fd);
        answer
    }),
    ("listxattr", |at, size| sc!(SYS_listxattr, c"/".as_ptr(), at, size)),
    ("getrandom", |at, size| sc!(SYS_getrandom, at, size, 0)),
    ("getgroups", |at, size| sc!(SYS_getgroups, size / 4, at).map(|count| count * 4)),
    ("rt_sigpending", |at, size| sc!(SYS_rt_sigpending, at, size)),
    ("modify_ldt", |at, size| sc!(SYS_modify_ldt, 0, at, size)),
    ("getsockname", |at, size| with_length(SYS_getsockname, bound(), at, size)),
    ("recv", |at, size| {
        let fd = datagram();
        let answer = sc!(SYS_recvfrom, fd, at, size, 0, 0, 0);
        close(fd);
        answer
    }),
    ("recv's length", |at, size| {
        let fd = datagram();
        let answer = sc!(SYS_recvfrom, fd, at, size, MSG_TRUNC, 0, 0);
        close(fd);
        answer
    }),
    ("PTRACE_GETREGSET general", |at, size| regset(1, at, size)),
    ("PTRACE_GETREGSET floating point", |at, size| regset(2, at, size)),
    ("PTRACE_GETREGSET state", |at, size| regset(0x202, at, size)),
    ("PTRACE_GET_SYSCALL_INFO", |at, size| {
        sc!(SYS_ptrace, PTRACE_GET_SYSCALL_INFO, tracee(), size, at)
    }),
    ("PTRACE_GET_RSEQ_CONFIGURATION", |at, size| sc!(SYS_ptrace, 0x420f, tracee(), size, at)),
    ("PTRACE_SECCOMP_GET_METADATA", |at, size| sc!(SYS_ptrace, 0x420d, tracee(), size, at)),
    ("PTRACE_GETSIGMASK", |at, size| sc!(SYS_ptrace, 0x420a, tracee(), size, at)),
    ("process_vm_readv", |at, size| {
        let (to, from) = ([at, size], [CALLS.as_ptr() as usize, size]);
        sc!(SYS_process_vm_readv, pid(), to.as_ptr(), 1, from.as_ptr(), 1, 0)
    }),
    ("name_to_handle_at", |at, size| {
        // struct file_handle: the size of what follows its eight bytes.
        let room = at as *mut u32;
        // SAFETY: the test's own room, larger than a word.
        unsafe { room.write(size.saturating_sub(8) as u32) };
        let mut mount = 0i32;
        sc!(SYS_name_to_handle_at, AT_FDCWD, c"/tmp".as_ptr(), at, &raw mut mount, 0)
    }),
];

/// Bytes to be read by others.
static CALLS: [u8; ROOM] = [0; ROOM];

fn of_structs_told() {
    tracee();
    let room = Room::new();
    for (name, tells) in TELLS {
        room.fill(CANARY);
        for size in sizes() {
            if tells(room.0 as usize, size).is_ok() {
                assert!(room.is_kept_behind(size.max(4)), "{name} of {size} wrote more");
                room.fill(CANARY);
            }
        }
    }
    sc!(SYS_kill, tracee(), SIGKILL).is(0);
}

/// Levels and the options of each.
const OPTIONS: [(i32, i32); 8] = [
    (SOL_SOCKET, 90),
    (IPPROTO_IP, 60),
    (IPPROTO_IPV6, 90),
    (IPPROTO_TCP, 50),
    (IPPROTO_UDP, 110),
    (270, 16), // SOL_NETLINK
    (263, 24), // SOL_PACKET
    (1000, 2),
];

fn each_kind_of_socket() -> Vec<i32> {
    let kinds = [
        (AF_INET, SOCK_STREAM, 0),
        (AF_INET6, SOCK_STREAM, 0),
        (AF_INET, SOCK_DGRAM, 0),
        (AF_INET6, SOCK_DGRAM, 0),
        (AF_UNIX, SOCK_STREAM, 0),
        (AF_NETLINK, SOCK_RAW, 0),
    ];
    kinds
        .iter()
        .filter_map(|(f, k, p)| sc!(SYS_socket, *f, *k, *p).ok())
        .map(|fd| fd as i32)
        .collect()
}

/// Each option of each kind of socket is asked with each size of some, and set with it.
fn of_socket_options() {
    let room = Room::new();
    in_child(|| {
        for fd in each_kind_of_socket() {
            for (level, count) in OPTIONS {
                for option in 0..count {
                    socket_option(&room, fd, level, option);
                }
            }
        }
    });
}

fn socket_option(room: &Room, fd: i32, level: i32, option: i32) {
    let sizes = [0usize, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 31, 104, 255, 256, 4096];
    room.fill(CANARY);
    for size in sizes {
        let mut len = size as u32;
        let at = room.0;
        if sc!(SYS_getsockopt, fd, level, option, at, &raw mut len).is_ok() {
            assert!(room.is_kept_behind(size), "{level} {option} of {size} wrote more");
            room.fill(CANARY);
        }
    }
    for byte in [0, 1, 0xff] {
        room.fill(byte);
        for size in sizes.into_iter().chain([ROOM, ROOM + 1, 0x7fff_ffff, 0xffff_ffff]) {
            let _ = sc!(SYS_setsockopt, fd, level, option, room.0, size);
        }
    }
}

/// Calls that take a struct of a size: what is in it, byte after byte the same.
const TAKES: &[Tells] = &[
    ("sched_setattr", |at, size| {
        // struct sched_attr begins with its size.
        // SAFETY: the test's own room, larger than a word.
        unsafe { (at as *mut u32).write(size as u32) };
        sc!(SYS_sched_setattr, 0, at, 0)
    }),
    ("openat2", |at, size| sc!(SYS_openat2, AT_FDCWD, c"/none/none".as_ptr(), at, size)),
    ("clone3", |at, size| {
        // Flags that no process can be made with: CLONE_SIGHAND without CLONE_VM.
        // SAFETY: as above, the test's own room, larger than a word.
        unsafe { (at as *mut u64).write(CLONE_SIGHAND as u64) };
        sc!(SYS_clone3, at, size)
    }),
    ("mount_setattr", |at, size| {
        sc!(SYS_mount_setattr, AT_FDCWD, c"/none/none".as_ptr(), 0, at, size)
    }),
    ("landlock_create_ruleset", |at, size| {
        sc!(SYS_landlock_create_ruleset, at, size, 0).map(|fd| {
            close(fd as i32);
            0
        })
    }),
    ("sched_setaffinity", |at, size| sc!(SYS_sched_setaffinity, 0, size, at)),
    ("setxattr", |at, size| {
        sc!(SYS_setxattr, c"/none".as_ptr(), c"user.none".as_ptr(), at, size, 0)
    }),
    ("add_key", |at, size| sc!(SYS_add_key, c"user".as_ptr(), c"none".as_ptr(), at, size, -3i32)),
    ("modify_ldt", |at, size| sc!(SYS_modify_ldt, 0x11, at, size)),
    ("set_robust_list", |at, size| sc!(SYS_set_robust_list, at, size)),
    ("rt_sigprocmask", |at, size| sc!(SYS_rt_sigprocmask, SIG_BLOCK, at, 0, size)),
    ("bpf", |at, size| sc!(SYS_bpf, 99, at, size)),
    ("PTRACE_SETREGSET general", |at, size| {
        let vector = [at, size];
        sc!(SYS_ptrace, PTRACE_SETREGSET, tracee(), 1, vector.as_ptr())
    }),
    ("PTRACE_SETREGSET state", |at, size| {
        let vector = [at, size];
        sc!(SYS_ptrace, PTRACE_SETREGSET, tracee(), 0x202, vector.as_ptr())
    }),
    ("PTRACE_SETSIGMASK", |at, size| sc!(SYS_ptrace, 0x420b, tracee(), size, at)),
    ("sendto an address", |at, size| {
        let fd = datagram();
        let answer = sc!(SYS_sendto, fd, c"m".as_ptr(), 1, MSG_DONTWAIT, at, size);
        close(fd);
        answer
    }),
    ("a control message", |at, size| {
        let fd = datagram();
        let header = [0usize, 0, 0, 0, at, size, 0];
        let answer = sc!(SYS_sendmsg, fd, header.as_ptr(), MSG_DONTWAIT);
        close(fd);
        answer
    }),
    ("a filter", |at, size| {
        let fd = datagram();
        let program = [size & 0xffff, at];
        let answer = sc!(SYS_setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, program.as_ptr(), 16);
        close(fd);
        answer
    }),
];

/// A struct is taken or refused, whatever its size and its bytes; a size above a page is none.
fn of_structs_taken() {
    in_child(|| {
        let room = Room::new();
        for (name, takes) in TAKES {
            for byte in [0u8, 1, 0x7f, 0xff] {
                room.fill(byte);
                for size in sizes() {
                    let taken = takes(room.0 as usize, size);
                    let is_extensible = ["openat2", "clone3"].contains(name);
                    if is_extensible && size > 4096 {
                        taken.fails(E2BIG);
                    }
                }
            }
        }
        sc!(SYS_kill, tracee(), SIGKILL).is(0);
    });
}
