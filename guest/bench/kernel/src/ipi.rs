//! What reaches CPUs that should be left alone: CPUs 2 and 3 spin in user mode, while CPUs 0 and 1
//! do everything that makes a kernel interrupt all CPUs.
//!
//! The load: groups of processes that send each other messages; processes that come and go in
//! crowds, so that their kernel stacks are unmapped; threads that map and unmap; a static key that
//! is flipped (`sched_schedstats`); socket and seccomp filters that are attached and go, where the
//! kernel has them. The verdict is /proc/interrupts' own, before and after, the same on each
//! kernel.
//!
//! Whoever loads stops by a word in shared memory; nobody is killed. After them comes one more
//! round of filters, alone, while the others still spin: a trace keeps the last events of each CPU,
//! and so has something that was deferred among them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use limen_guest_bench::raw::{rdtsc, syscall};

/// The CPUs to be left alone, and those that do the work.
const QUIET: [usize; 2] = [2, 3];
const BUSY: usize = 0b11;
/// Groups of senders and receivers, and of each in a group.
const GROUPS: usize = 2;
const PAIRS: usize = 2;
const MESSAGE: usize = 100;
/// Processes of a crowd; more than any kernel keeps stacks for.
const CROWD: usize = 96;
/// How long kernels may take to find out that the spinning CPUs need no tick.
const SETTLE: Duration = Duration::from_secs(3);

/// Shared by all processes of the load.
#[derive(Default)]
struct Shared {
    stop: AtomicU64,
    spinning: AtomicU64,
    released: AtomicU64,
    messages: AtomicU64,
    processes: AtomicU64,
    unmaps: AtomicU64,
    flips: AtomicU64,
    filters: AtomicU64,
}

impl Shared {
    fn goes_on(&self) -> bool {
        self.stop.load(SeqCst) == 0
    }
}

fn shared() -> &'static Shared {
    // SAFETY: an anonymous shared mapping, zeroed and never unmapped; zeros are a valid `Shared`.
    unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANON);
        let at = libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), prot, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED, "no shared memory");
        &*at.cast::<Shared>()
    }
}

fn pin(mask: usize) {
    let ret = syscall(libc::SYS_sched_setaffinity, [0, 8, &raw const mask as usize, 0, 0, 0]);
    assert!(ret >= 0, "CPUs {mask:#b}: errno {}", -ret);
}

/// A child that runs `work` and exits.
fn child(work: impl FnOnce()) -> i32 {
    // SAFETY: this process has one thread, so the child may do anything.
    match unsafe { libc::fork() } {
        0 => {
            work();
            std::process::exit(0);
        }
        pid => {
            assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
            pid
        }
    }
}

fn wait(pid: i32) {
    let mut status = 0;
    // SAFETY: a pointer to a local.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "a process of the load failed");
}

/// The whole bench: prints `cpuN_total`, `cpuN_ROW` for what changed, and how much load there was.
pub fn run(time: Duration) {
    let shared = shared();
    pin(BUSY);
    let spinners = QUIET.map(|cpu| {
        child(|| {
            pin(1 << cpu);
            shared.spinning.fetch_add(1, SeqCst);
            while shared.released.load(SeqCst) == 0 {
                std::hint::spin_loop();
            }
        })
    });
    while shared.spinning.load(SeqCst) < QUIET.len() as u64 {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(SETTLE);
    let (before, sent_before) = (interrupts(), sent());
    let mut load = vec![
        child(|| crowds(shared)),
        child(|| maps(shared)),
        child(|| flips(shared)),
        child(|| filters(shared)),
    ];
    for _ in 0..GROUPS {
        load.push(child(|| group(shared)));
    }
    std::thread::sleep(time);
    let (after, sent_after) = (interrupts(), sent());
    shared.stop.store(1, SeqCst);
    load.into_iter().for_each(wait);
    wait(child(|| attach_filters(shared)));
    shared.released.store(1, SeqCst);
    spinners.into_iter().for_each(wait);
    for (row, now) in &after {
        let was = before.get(row).copied().unwrap_or_default();
        for (cpu, (now, was)) in
            now.iter().zip(was).enumerate().filter(|(_, (now, was))| *now > was)
        {
            println!("cpu{cpu}_{row} {}", now - was);
        }
    }
    for cpu in 0..4 {
        let sum = |rows: &Rows| rows.values().map(|counts| counts[cpu]).sum::<u64>();
        println!("cpu{cpu}_total {}", sum(&after) - sum(&before));
    }
    for (what, now) in &sent_after {
        println!("{what} {}", now - sent_before.get(what).unwrap_or(&0));
    }
    for (name, count) in [
        ("messages", &shared.messages),
        ("processes", &shared.processes),
        ("unmaps", &shared.unmaps),
        ("flips", &shared.flips),
        ("filters", &shared.filters),
    ] {
        println!("{name} {}", count.load(SeqCst));
    }
}

/// Counts of /proc/interrupts by row, for the first four CPUs. Rows without columns for them
/// (errors of the machine as a whole) are left out.
type Rows = BTreeMap<String, [u64; 4]>;

fn interrupts() -> Rows {
    let text = std::fs::read_to_string("/proc/interrupts").expect("/proc/interrupts");
    let row = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let mut numbers = rest.split_whitespace().map_while(|word| word.parse().ok());
        let counts = [numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?];
        Some((name.trim().to_lowercase(), counts))
    };
    text.lines().filter_map(row).collect()
}

/// What was sent to the quiet CPUs or spared them, by cause; only Limen says.
fn sent() -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let text = std::fs::read_to_string("/proc/limen/ipi").unwrap_or_default();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["ipi", cause, _, target, _, action, count] = words[..] else { continue };
        if QUIET.iter().any(|cpu| cpu.to_string() == target) {
            let count: u64 = count.parse().unwrap_or_default();
            *sums.entry(format!("{action}_{cause}")).or_default() += count;
        }
    }
    sums
}

// ------------------------------------------------------------------------------------------------
// The load

/// Senders and receivers over socket pairs.
fn group(shared: &Shared) {
    let mut members = vec![];
    for _ in 0..PAIRS {
        let mut ends = [0; 2];
        // SAFETY: a pointer to two integers.
        let ret =
            unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
        assert_eq!(ret, 0, "socketpair");
        members.push(child(|| {
            close(ends[1]);
            let message = [0u8; MESSAGE];
            while shared.goes_on() {
                // SAFETY: the buffer is as long as said. MSG_NOSIGNAL: the receiver may have gone.
                unsafe {
                    libc::send(ends[0], message.as_ptr().cast(), MESSAGE, libc::MSG_NOSIGNAL)
                };
            }
        }));
        members.push(child(|| {
            close(ends[0]);
            let mut message = [0u8; MESSAGE];
            // SAFETY: the buffer is as long as said.
            while unsafe { libc::read(ends[1], message.as_mut_ptr().cast(), MESSAGE) } > 0 {
                shared.messages.fetch_add(1, SeqCst);
            }
        }));
        ends.into_iter().for_each(close);
    }
    members.into_iter().for_each(wait);
}

fn close(fd: i32) {
    // SAFETY: nothing else uses the descriptor any more.
    unsafe { libc::close(fd) };
}

/// Crowds of processes that live at the same time, then go.
fn crowds(shared: &Shared) {
    while shared.goes_on() {
        let mut gate = [0; 2];
        // SAFETY: a pointer to two integers.
        assert_eq!(unsafe { libc::pipe(gate.as_mut_ptr()) }, 0, "pipe");
        let crowd: Vec<i32> = (0..CROWD)
            .map(|_| {
                child(|| {
                    close(gate[1]);
                    let mut byte = 0u8;
                    // SAFETY: a pointer to one byte. Ends when the last writer has closed.
                    unsafe { libc::read(gate[0], (&raw mut byte).cast(), 1) };
                    // SAFETY: nothing to clean up.
                    unsafe { libc::_exit(0) };
                })
            })
            .collect();
        gate.into_iter().for_each(close);
        crowd.into_iter().for_each(wait);
        shared.processes.fetch_add(CROWD as u64, SeqCst);
    }
}

/// Two threads of one process, so that what one unmaps the other must forget.
fn maps(shared: &'static Shared) {
    const LEN: usize = 64 << 10;
    let work = || {
        while shared.goes_on() {
            // SAFETY: a new mapping that nobody else knows is written to and taken away.
            unsafe {
                let (prot, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
                let at = libc::mmap(std::ptr::null_mut(), LEN, prot, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED, "mmap");
                at.cast::<u8>().write_volatile(1);
                libc::munmap(at, LEN);
            }
            shared.unmaps.fetch_add(1, SeqCst);
        }
    };
    let other = std::thread::spawn(work);
    work();
    other.join().expect("the other thread");
}

/// A static key on and off.
fn flips(shared: &Shared) {
    const KEY: &str = "/proc/sys/kernel/sched_schedstats";
    let mut on = false;
    while shared.goes_on() {
        on = !on;
        if std::fs::write(KEY, if on { "1\n" } else { "0\n" }).is_ok() {
            shared.flips.fetch_add(1, SeqCst);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = std::fs::write(KEY, "0\n");
}

fn filters(shared: &Shared) {
    while shared.goes_on() {
        attach_filters(shared);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A filter for a socket, and one for the calls of a process that ends at once.
fn attach_filters(shared: &Shared) {
    // "Accept all": return the whole packet; for seccomp the same word allows the call.
    let mut code = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 }];
    let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    // SAFETY: the program lives until the calls return.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0);
        let len = size_of::<libc::sock_fprog>() as u32;
        let at = (&raw const program).cast();
        if libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) == 0 {
            shared.filters.fetch_add(1, SeqCst);
        }
        libc::close(socket);
    }
    wait(child(|| {
        // SAFETY: as for the block above, whose objects live on.
        let attached = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) == 0
        };
        if attached {
            shared.filters.fetch_add(1, SeqCst);
        }
    }));
}

// ------------------------------------------------------------------------------------------------
// The price

/// What a system call costs on CPU 0 and on CPU 1, of which the caller has isolated the second:
/// ticks of a counted run. The lowest of many, since the other CPU's instructions count as well.
pub fn entry_cost() {
    for cpu in [0, 1] {
        pin(1 << cpu);
        let mut best = u64::MAX;
        let start = Instant::now();
        for _ in 0..2001 {
            let before = rdtsc();
            let pid = syscall(libc::SYS_getpid, [0; 6]);
            best = best.min(rdtsc() - before);
            assert!(pid > 0, "getpid");
        }
        assert!(start.elapsed() < Duration::from_secs(60), "not a counted run");
        println!("getpid_cpu{cpu} {best}");
    }
}
