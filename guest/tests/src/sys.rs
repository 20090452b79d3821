//! Raw system calls and the few helpers every test uses.
//!
//! The tests call the kernel by the `syscall` instruction and not through the C library, because
//! the library repairs, caches and emulates: a kernel that answers wrongly must be seen. `sc!`
//! takes anything that casts to `usize`; `Answer` turns the result into a test failure that
//! names the line of the test. The wrappers are safe functions by convention of this program
//! only: it is a C-like test program, and passing wild pointers is what it is for.

// Own names (fork, read, …) shadow the library's; its types and constants come through here.
pub use libc::*;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// What a system call gave: its value, or a positive errno.
pub type Res = Result<usize, i32>;

/// One system call with up to six arguments.
pub fn call(nr: usize, args: &[usize]) -> Res {
    crate::refusals::watched(nr, args).unwrap_or_else(|| raw_call(nr, args))
}

/// The same, whoever watches.
pub fn raw_call(nr: usize, args: &[usize]) -> Res {
    let mut a = [0usize; 6];
    a[..args.len()].copy_from_slice(args);
    let ret: isize;
    // SAFETY: the System V system call convention; the test decides what the call may touch.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") nr => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if (-4095..0).contains(&ret) { Err(-ret as i32) } else { Ok(ret as usize) }
}

/// `sc!(SYS_x, args…)`: a raw system call.
#[macro_export]
macro_rules! sc {
    // One expression: what the arguments point to must live until the call is done.
    ($nr:expr $(, $a:expr)* $(,)?) => {
        $crate::sys::call($nr as usize, &[$($a as usize),*])
    };
}

/// Expectations about a result, failing at the caller's line.
pub trait Answer {
    /// The value; an errno fails the test.
    fn must(self) -> usize;
    /// The errno must be this one.
    fn fails(self, errno: i32);
    /// The value must be this one.
    fn is(self, value: usize);
    /// The value as a descriptor.
    fn fd(self) -> i32;
}

impl Answer for Res {
    #[track_caller]
    fn must(self) -> usize {
        match self {
            Ok(v) => v,
            Err(e) => panic!("failed with {}", errno_name(e)),
        }
    }
    #[track_caller]
    fn fails(self, errno: i32) {
        match self {
            Err(e) if e == errno => {}
            Err(e) => panic!("gave {}, expected {}", errno_name(e), errno_name(errno)),
            Ok(v) => panic!("gave {v:#x}, expected {}", errno_name(errno)),
        }
    }
    #[track_caller]
    fn is(self, value: usize) {
        match self {
            Ok(v) if v == value => {}
            Ok(v) => panic!("gave {v:#x}, expected {value:#x}"),
            Err(e) => panic!("failed with {}, expected {value:#x}", errno_name(e)),
        }
    }
    #[track_caller]
    fn fd(self) -> i32 {
        self.must() as i32
    }
}

/// An errno with its text.
pub fn errno_name(e: i32) -> String {
    format!("errno {e} ({})", std::io::Error::from_raw_os_error(e))
}

/// Forks; the child runs `f` and exits with its value, without unwinding or flushing.
#[track_caller]
pub fn fork(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: single-threaded callers, or children that only make system calls.
    let pid = match crate::refusals::watches() {
        false => unsafe { libc::fork() },
        true => sc!(SYS_fork).map_or(-1, |pid| pid as i32),
    };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let code = f();
        quit(code);
    }
    pid
}

/// exit_group(2).
pub fn quit(code: i32) -> ! {
    let _ = sc!(SYS_exit_group, code);
    unreachable!("exit_group returned")
}

/// wait4(2) for one child; its raw status.
#[track_caller]
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    loop {
        match sc!(SYS_wait4, pid, &raw mut status, 0, 0) {
            Err(EINTR) => {}
            r => {
                r.is(pid as usize);
                return status;
            }
        }
    }
}

/// The child must exit with this code.
#[track_caller]
pub fn wait_code(pid: i32, code: i32) {
    let s = wait(pid);
    assert!(WIFEXITED(s) && WEXITSTATUS(s) == code, "{}, expected exit {code}", describe(s));
}

/// The child must die from this signal.
#[track_caller]
pub fn wait_signal(pid: i32, sig: i32) {
    let s = wait(pid);
    assert!(WIFSIGNALED(s) && WTERMSIG(s) == sig, "{}, expected signal {sig}", describe(s));
}

/// Runs `f` in a child which must exit with 0.
#[track_caller]
pub fn in_child(f: impl FnOnce()) {
    let pid = fork(|| {
        f();
        0
    });
    wait_code(pid, 0);
}

/// Makes this process another user's (1234), who has no capabilities.
pub fn become_user() {
    sc!(SYS_setgroups, 0, 0).is(0);
    sc!(SYS_setresgid, 1234, 1234, 1234).is(0);
    sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
}

/// Runs `f` as that user, in a child which must exit with 0.
#[track_caller]
pub fn as_user(f: impl FnOnce()) {
    in_child(|| {
        become_user();
        f();
    });
}

/// A wait status in words.
pub fn describe(s: i32) -> String {
    if WIFEXITED(s) {
        format!("exit {}", WEXITSTATUS(s))
    } else if WIFSIGNALED(s) {
        format!("signal {}", WTERMSIG(s))
    } else {
        format!("status {s:#x}")
    }
}

/// pipe2(2): read end, write end.
#[track_caller]
pub fn pipe_flags(flags: i32) -> (i32, i32) {
    let mut p = [0i32; 2];
    sc!(SYS_pipe2, p.as_mut_ptr(), flags).is(0);
    (p[0], p[1])
}

/// A blocking pipe.
#[track_caller]
pub fn pipe() -> (i32, i32) {
    pipe_flags(0)
}

/// read(2) into a vector of at most `n` bytes.
#[track_caller]
pub fn read(fd: i32, n: usize) -> Vec<u8> {
    let mut v = vec![0; n];
    let got = sc!(SYS_read, fd, v.as_mut_ptr(), n).must();
    v.truncate(got);
    v
}

/// write(2), all of it.
#[track_caller]
pub fn write(fd: i32, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        done += sc!(SYS_write, fd, bytes[done..].as_ptr(), bytes.len() - done).must();
    }
}

/// Whether this runs in Limen, and not in Linux.
pub fn is_limen() -> bool {
    std::path::Path::new("/proc/limen/exits").exists()
}

/// Whether the machine is this program's own, so that it may change what all processes share:
/// Limen, or a kernel whose first process it is.
pub fn has_the_machine() -> bool {
    let exe = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    is_limen() || exe("1").is_some_and(|first| Some(first) == exe("self"))
}

/// close(2).
#[track_caller]
pub fn close(fd: i32) {
    sc!(SYS_close, fd).is(0);
}

/// A zero-terminated copy of a path.
pub fn c(path: &str) -> std::ffi::CString {
    std::ffi::CString::new(path).expect("no zero byte in a path")
}

/// open(2) by openat with mode 0644.
pub fn open(path: &str, flags: i32) -> Res {
    let p = c(path);
    sc!(SYS_openat, AT_FDCWD, p.as_ptr(), flags, 0o644)
}

/// mmap(2).
pub fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, off: usize) -> Res {
    sc!(SYS_mmap, addr, len, prot, flags, fd, off)
}

/// A private anonymous read-write mapping.
#[track_caller]
pub fn anon(len: usize) -> *mut u8 {
    mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must() as *mut u8
}

/// munmap(2).
#[track_caller]
pub fn unmap(p: *mut u8, len: usize) {
    sc!(SYS_munmap, p, len).is(0);
}

/// 1024 zeroed words shared with every child forked later: other ones at each call.
#[track_caller]
pub fn new_shared() -> &'static [AtomicU32; 1024] {
    let p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0).must();
    // SAFETY: a fresh mapping of exactly this size that is never unmapped.
    unsafe { &*(p as *const [AtomicU32; 1024]) }
}

/// Mounts that are only this process's own, where there are namespaces.
pub fn own_mounts() {
    if sc!(SYS_unshare, CLONE_NEWNS).is_ok() {
        let private = MS_REC | MS_PRIVATE;
        sc!(SYS_mount, c"none".as_ptr(), c"/".as_ptr(), 0, private, 0).is(0);
    }
}

/// The words that fault handlers report in. They are mapped before a test begins: a mapping made
/// later could land in the very hole whose fault a test wants to see.
pub fn fault_words() -> &'static [AtomicU32; 1024] {
    static WORDS: std::sync::OnceLock<&'static [AtomicU32; 1024]> = std::sync::OnceLock::new();
    WORDS.get_or_init(new_shared)
}

/// Sleeps about `ms` milliseconds: only ever inside a loop that waits for a condition.
pub fn nap(ms: i64) {
    let ts = timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let _ = sc!(SYS_nanosleep, &raw const ts, 0);
}

/// Waits for a condition that another process or thread brings about.
pub fn until(mut cond: impl FnMut() -> bool) {
    let mut tries = 0u32;
    while !cond() {
        tries += 1;
        if tries < 50 {
            let _ = sc!(SYS_sched_yield);
        } else {
            nap(1);
        }
    }
}

/// Waits until a shared word has at least this value.
pub fn until_at_least(w: &AtomicU32, value: u32) {
    until(|| w.load(SeqCst) >= value);
}

/// Waits until a thread sleeps in a system call, or is gone.
pub fn until_asleep(tid: i32) {
    let path = format!("/proc/{tid}/task/{tid}/stat");
    until(|| {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
    });
}

/// The CPUs that this thread may run on.
pub fn cpus() -> Vec<usize> {
    let mut mask = [0u64; 16];
    let n = sc!(SYS_sched_getaffinity, 0, 128, mask.as_mut_ptr()).must();
    assert!(n >= 8 && n.is_multiple_of(8));
    (0..1024).filter(|i| mask[i / 64] >> (i % 64) & 1 == 1).collect()
}

/// Lets this thread run on one CPU only.
pub fn pin(cpu: usize) -> Res {
    let mut mask = [0u64; 16];
    mask[cpu / 64] = 1 << (cpu % 64);
    sc!(SYS_sched_setaffinity, 0, 128, mask.as_ptr())
}

/// A fresh directory, removed by the runner when the test is over.
pub fn dir() -> String {
    dir_in("/tmp")
}

/// Where the runner lets tests work in place of `/tmp` and `/dev/shm`.
static PLACES: std::sync::OnceLock<[String; 2]> = std::sync::OnceLock::new();
/// The process of the test that runs, by which the runner knows what it has left; 0 where another
/// program has taken its place.
static TEST: AtomicU32 = AtomicU32::new(0);

/// Sets the places once, before any test.
pub fn set_places(tmp: &str, shm: &str) {
    PLACES.set([tmp.to_owned(), shm.to_owned()]).expect("set once");
}

/// What stands for `/tmp` or `/dev/shm`; any other folder stands for itself.
pub fn place(base: &str) -> &str {
    match (PLACES.get(), base) {
        (Some([tmp, _]), "/tmp") => tmp,
        (Some([_, shm]), "/dev/shm") => shm,
        _ => base,
    }
}

/// From here on this process is a test: what it makes, and its children, has its number.
pub fn begin_test() {
    TEST.store(std::process::id(), SeqCst);
}

/// The number that names of files of this test begin with.
pub fn test_number() -> u32 {
    match TEST.load(SeqCst) {
        // A test leads its group.
        0 => sc!(SYS_getpgrp).must() as u32,
        number => number,
    }
}

/// A fresh directory on a file system of the test's choice.
pub fn dir_in(base: &str) -> String {
    static N: AtomicU32 = AtomicU32::new(0);
    let base = place(base);
    loop {
        let (test, own) = (test_number(), std::process::id());
        let d = format!("{base}/limen-{test}-{own}-{}", N.fetch_add(1, SeqCst));
        match sc!(SYS_mkdir, c(&d).as_ptr(), 0o755) {
            // Left by a run that was killed, whose process had the same number.
            Err(EEXIST) => {}
            made => {
                made.is(0);
                return d;
            }
        }
    }
}

/// The path of this program.
pub fn own_path() -> String {
    std::fs::read_link("/proc/self/exe").expect("/proc/self/exe").to_string_lossy().into_owned()
}

/// Kernel's view of sigaction (rt_sigaction(2)), which the C library hides.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct KernelSigaction {
    /// Handler address, 0 default, 1 ignore.
    pub handler: usize,
    /// SA_* flags; SA_RESTORER is required on x86-64.
    pub flags: u64,
    /// Address of code that calls rt_sigreturn.
    pub restorer: usize,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

std::arch::global_asm!(
    ".globl limen_restorer",
    ".type limen_restorer, @function",
    "limen_restorer:",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".size limen_restorer, . - limen_restorer",
);

unsafe extern "C" {
    fn limen_restorer();
}

/// The address of code that ends a handler, as sigaction's SA_RESTORER wants it.
pub fn restorer() -> usize {
    limen_restorer as *const () as usize
}

/// A handler for signals that only have to come.
pub extern "C" fn nothing(_: i32) {}

/// Installs a handler `fn(signal, siginfo, ucontext)` by address; the old action.
#[track_caller]
pub fn on_signal(sig: i32, handler: usize, flags: i32, mask: u64) -> KernelSigaction {
    let new = KernelSigaction {
        handler,
        flags: flags as u32 as u64 | 0x0400_0000,
        restorer: limen_restorer as *const () as usize,
        mask,
    };
    let mut old = KernelSigaction::default();
    sc!(SYS_rt_sigaction, sig, &raw const new, &raw mut old, 8).is(0);
    old
}

/// rt_sigprocmask(2): sets the mask, gives the old one.
#[track_caller]
pub fn sigmask(how: i32, set: u64) -> u64 {
    let mut old = 0u64;
    sc!(SYS_rt_sigprocmask, how, &raw const set, &raw mut old, 8).is(0);
    old
}

/// Blocks a signal; the set of it alone.
#[track_caller]
pub fn block_signal(signal: i32) -> u64 {
    sigmask(SIG_BLOCK, bit(signal));
    bit(signal)
}

/// The next of these signals, if it comes within so many seconds.
pub fn taken_signal(set: u64, seconds: i64) -> Option<Siginfo> {
    let mut info = Siginfo::default();
    let time = [seconds, 0];
    sc!(SYS_rt_sigtimedwait, &raw const set, &raw mut info, time.as_ptr(), 8).ok().map(|_| info)
}

/// The mask bit of a signal.
pub fn bit(sig: i32) -> u64 {
    1 << (sig - 1)
}

/// getpid(2).
pub fn pid() -> i32 {
    sc!(SYS_getpid).must() as i32
}

/// gettid(2).
pub fn tid() -> i32 {
    sc!(SYS_gettid).must() as i32
}

/// siginfo_t as the kernel writes it: the fields for kill, SIGCHLD, timers and queued values.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Siginfo {
    /// si_signo.
    pub signo: i32,
    /// si_errno.
    pub errno: i32,
    /// si_code.
    pub code: i32,
    /// Not used.
    pub pad: i32,
    /// si_pid, or the timer's id, or the low half of si_addr.
    pub pid: i32,
    /// si_uid, or the overrun count, or the high half of si_addr.
    pub uid: u32,
    /// si_status, or the low half of si_value.
    pub status: i32,
    /// The high half of si_value, and what follows.
    pub rest: [i32; 25],
}

impl Default for Siginfo {
    fn default() -> Self {
        // SAFETY: a structure of integers.
        unsafe { std::mem::zeroed() }
    }
}

impl Siginfo {
    /// si_addr of a fault.
    pub fn addr(&self) -> usize {
        self.pid as u32 as usize | (self.uid as usize) << 32
    }
}

/// What a thread of a C library shares with its maker.
pub const THREAD_FLAGS: i32 =
    CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

/// Starts a thread that runs `f` on a stack of its own; its id.
pub fn raw_thread(flags: i32, f: extern "C" fn()) -> i32 {
    let stack = anon(65536) as u64 + 65536 - 56;
    // SAFETY: the memory was mapped just now and is the test's own.
    unsafe { (stack as *mut u64).write(f as *const () as u64) };
    let ret: i64;
    // SAFETY: the new thread has its own stack and calls only `f`, which does not return.
    unsafe {
        std::arch::asm!("syscall", "test rax, rax", "jnz 2f", "pop rax", "call rax", "ud2", "2:",
             inlateout("rax") SYS_clone => ret, in("rdi") flags, in("rsi") stack, in("rdx") 0,
             in("r10") 0, in("r8") 0, lateout("rcx") _, lateout("r11") _);
    }
    assert!(ret > 0, "clone: {ret}");
    ret as i32
}
