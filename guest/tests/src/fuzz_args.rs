//! What the fuzzer passes to calls: descriptors of every kind, pages whose words look like
//! structures, paths, and numbers at the borders.
//!
//! Random words alone die at the first check of a call. So the page that most pointers lead to is
//! filled with words of the same distribution, pointers into itself among them: what a call reads
//! there may be an iovec, a sigaction or a message header whose fields are plausible. Neighbour:
//! `fuzz.rs`, which makes the calls.

use abi::syscalls::ArgumentKind;

use crate::sc;
use crate::sys::*;

/// xorshift64*: small, and the same everywhere.
pub struct Rng(u64);

impl Rng {
    /// A generator; seed 0 is replaced.
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next value.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A value below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

const EDGES: [u64; 22] = [
    0,
    1,
    2,
    7,
    8,
    15,
    4095,
    4096,
    4097,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    0x7fff_ffff_e000,
    0x7fff_ffff_f000,
    1 << 47,
    0xffff_8000_0000_0000,
    0xffff_ffff_8100_0000,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX,
];

/// Descriptors that a child opens; it owns about as many as this, from 3 on.
pub const FDS: u64 = 40;
const PAGE: usize = 4096;

const PATHS: [&str; 24] = [
    "f0",
    "f1",
    "f2",
    "sub",
    ".",
    "..",
    "sub/x",
    "",
    "new",
    "link",
    "/",
    "/dev/null",
    "/dev/zero",
    "/dev/ptmx",
    "/dev/full",
    "/proc/self/maps",
    "/proc/self/mem",
    "/proc/self/fd/4",
    "/proc/self/task",
    "/proc/meminfo",
    "/sys/devices/system/cpu/online",
    "tmpfs",
    "user.x",
    "/dev/shm/limen-fuzz",
];

/// The surroundings of a child.
pub struct World {
    /// Two pages, the second of which is not mapped.
    pub page: usize,
    paths: Vec<std::ffi::CString>,
}

impl World {
    /// Opens descriptors of every kind, and maps the page.
    pub fn new() -> World {
        for i in 0..4 {
            let _ = open(&format!("f{i}"), O_CREAT | O_RDWR);
        }
        let _ = sc!(SYS_mkdir, c"sub".as_ptr(), 0o755);
        let _ = sc!(SYS_symlink, c"f1".as_ptr(), c"link".as_ptr());
        write(3, &[0x5a; 3000]);
        open_others();
        let page = anon(2 * PAGE);
        unmap(page.wrapping_add(PAGE), PAGE);
        World { page: page as usize, paths: PATHS.iter().map(|p| c(p)).collect() }
    }

    /// One argument.
    pub fn argument(&self, r: &mut Rng) -> usize {
        (match r.below(14) {
            0 | 1 => r.below(FDS + 4),
            2 => r.below(16),
            3 => r.of(&EDGES),
            4..=6 => self.page as u64 + (r.below(512) * 8),
            7 => self.page as u64 + PAGE as u64 - r.below(64),
            8 => self.paths[r.below(self.paths.len() as u64) as usize].as_ptr() as u64,
            9 => 1 << r.below(64),
            10 => (1 << r.below(20)) | (1 << r.below(20)),
            11 => r.below(0x1_0000),
            12 => (r.below(240) as i64 - 220) as u64,
            _ => r.next(),
        }) as usize
    }

    /// Six arguments for call `nr`. Most are what the table of calls says an argument is, since a
    /// call that gets one word of the wrong kind ends at its first check.
    pub fn arguments(&self, nr: usize, r: &mut Rng) -> Vec<usize> {
        let call = u32::try_from(nr).ok().and_then(abi::syscalls::call);
        let kinds = call.and_then(|call| call.arguments).unwrap_or_default();
        let one = |at: usize| match kinds.get(at) {
            Some(&(_, kind)) if r.below(4) != 0 => self.argument_of(kind, r),
            _ => self.argument(r),
        };
        (0..6).map(one).collect()
    }

    /// A plausible argument of this kind.
    fn argument_of(&self, kind: ArgumentKind, r: &mut Rng) -> usize {
        (match kind {
            ArgumentKind::Fd => r.below(FDS + 4),
            ArgumentKind::Path => {
                self.paths[r.below(self.paths.len() as u64) as usize].as_ptr() as u64
            }
            ArgumentKind::Pointer => self.page as u64 + r.below(512) * 8,
            ArgumentKind::Size => {
                [r.below(16), r.below(4097), 1 << r.below(32)][r.below(3) as usize]
            }
            ArgumentKind::Int => {
                [r.below(16), r.below(0x1_0000), r.of(&EDGES)][r.below(3) as usize]
            }
            ArgumentKind::Long => [r.below(0x1_0000), r.of(&EDGES), r.next()][r.below(3) as usize],
            ArgumentKind::Flags => {
                [0, 1 << r.below(32), (1 << r.below(20)) | (1 << r.below(20))][r.below(3) as usize]
            }
            ArgumentKind::Mode => r.below(0o1_0000),
            ArgumentKind::Pid => {
                [0, u64::from(std::process::id()), r.below(1 << 22)][r.below(3) as usize]
            }
        }) as usize
    }

    /// Fills a part of the page with words that are arguments themselves, or halves of them.
    pub fn refill(&self, r: &mut Rng) {
        // A call may have unmapped or protected it.
        let (prot, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED);
        if mmap(self.page, PAGE, prot, flags, -1, 0).is_err() {
            return;
        }
        for i in 0..PAGE / 8 {
            let low = self.argument(r);
            let word = match r.below(4) {
                0 => (low as u32 as u64 | (self.argument(r) as u64) << 32) as usize,
                1 => 0,
                _ => low,
            };
            // SAFETY: the page was just mapped, and only this process can unmap it; a thread of it
            // that does so ends the process, which is as good as any other end.
            unsafe { (self.page as *mut usize).add(i).write_volatile(word) };
        }
    }
}

/// One of each kind of file that is no file; failures do not matter.
fn open_others() {
    let mut pair = [0i32; 2];
    let two = pair.as_mut_ptr();
    let _ = sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, two);
    let _ = sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, two);
    let _ = sc!(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET, 0, two);
    let _ = sc!(SYS_pipe2, two, 0);
    let _ = sc!(SYS_pipe2, two, O_NONBLOCK);
    let _ = sc!(SYS_eventfd2, 3, EFD_SEMAPHORE);
    let epoll = sc!(SYS_epoll_create1, 0).unwrap_or(0);
    for fd in 7..12 {
        let event = [EPOLLIN as u32 | EPOLLOUT as u32, fd, 0];
        let _ = sc!(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, event.as_ptr());
    }
    let _ = sc!(SYS_timerfd_create, CLOCK_MONOTONIC, 0);
    let mask = bit(SIGUSR1) | bit(40);
    let _ = sc!(SYS_signalfd4, -1i32, &raw const mask, 8, 0);
    let _ = sc!(SYS_inotify_init1, 0);
    let _ = sc!(SYS_memfd_create, c"fuzz".as_ptr(), MFD_ALLOW_SEALING);
    let _ = sc!(SYS_pidfd_open, pid(), 0);
    for path in ["/dev/ptmx", "/dev/zero", ".", "sub", "/proc/self/mem", "/proc/self/maps"] {
        let _ = open(path, if path.starts_with("/dev") { O_RDWR } else { O_RDONLY });
    }
    let _ = open("f2", O_PATH);
    for (family, kind) in [
        (AF_UNIX, SOCK_STREAM),
        (AF_INET, SOCK_STREAM),
        (AF_INET, SOCK_DGRAM),
        (AF_INET6, SOCK_STREAM),
        (AF_NETLINK, SOCK_RAW),
    ] {
        let _ = sc!(SYS_socket, family, kind, 0);
    }
    let listener = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).unwrap_or(0);
    let _ = sc!(SYS_listen, listener, 4);
}
