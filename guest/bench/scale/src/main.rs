//! limen-guest-scale: what CPUs that do the same thing at the same time share in the kernel.
//!
//! Each row is an operation, done by one, two, four and eight workers, each on a CPU of its own and
//! with things of its own (a file, a pipe, a mapping), or all with one thing. Why it is hard: time
//! says nothing on an emulator with few cores, so locks are counted: how often one was taken, how
//! often one that another CPU takes, too (its line would move between their caches), how often
//! somebody had to wait; and interrupts between CPUs. A Limen that is built with `lockstat` counts
//! locks in /proc/limen/locks; interrupts both kernels count in /proc/interrupts. Whatever
//! synchronises the workers does so without the kernel.
//!
//! Prints `ROW_WORKERS_WHAT COUNT` lines, and where shared locks are made. Neighbours: `rows.rs`
//! (what is done), `counts.rs` (what is counted).

mod counts;
mod rows;

use std::sync::atomic::{AtomicU32, Ordering};

use limen_guest_bench::{furnish, power_off, settle, sys};

use counts::Counts;
use rows::Row;

const USAGE: &str = "usage: limen-guest-scale [--tiny] [--only=WORD] [--poweroff]";
/// Workers, as far as there are CPUs.
const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Operations of a worker, counted and before.
const OPERATIONS: usize = 200;
const TINY_OPERATIONS: usize = 20;
const WARM_UP: usize = 8;

fn main() {
    let (mut tiny, mut poweroff, mut only) = (false, false, String::new());
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "noop" => std::process::exit(0),
            "--tiny" => tiny = true,
            "--poweroff" => poweroff = true,
            word if word.starts_with("--only=") => word["--only=".len()..].clone_into(&mut only),
            other => {
                eprintln!("{USAGE}, not {other}");
                std::process::exit(2);
            }
        }
    }
    furnish();
    prepare();
    settle();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let operations = if tiny { TINY_OPERATIONS } else { OPERATIONS };
    for row in rows::ROWS.iter().filter(|row| row.name.contains(only.as_str())) {
        for workers in WORKERS.into_iter().filter(|&workers| workers <= cpus) {
            if !sys::in_child(|| measure(row, workers, operations)) {
                println!("failed: {} with {workers}", row.name);
            }
        }
    }
    println!("done 1");
    if poweroff {
        power_off();
    }
}

/// A tmpfs to work in.
fn prepare() {
    let scratch = sys::at(sys::SCRATCH);
    let _ = sys::call(libc::SYS_mkdir, &[scratch, 0o755]);
    if std::process::id() == 1 {
        let tmpfs = sys::at(c"tmpfs");
        sys::good(libc::SYS_mount, &[tmpfs, scratch, tmpfs, 0, 0]);
    }
}

/// What the workers and who counts tell each other, in memory that all share.
#[repr(C)]
struct Meeting {
    ready: AtomicU32,
    warm: AtomicU32,
    go: AtomicU32,
    done: AtomicU32,
}

impl Meeting {
    /// Waits without the kernel.
    fn wait(word: &AtomicU32, value: u32) {
        while word.load(Ordering::Acquire) < value {
            std::hint::spin_loop();
        }
    }
}

/// Keeps this worker on its CPU.
fn pin(cpu: usize) {
    let mask = 1u64 << cpu;
    sys::good(libc::SYS_sched_setaffinity, &[0, 8, &raw const mask as usize]);
}

fn measure(row: &Row, workers: usize, operations: usize) {
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let page = sys::good(libc::SYS_mmap, &[0, 4096, prot, shared as usize, usize::MAX, 0]);
    // SAFETY: a zeroed page of its own that is never unmapped, aligned for the words.
    let meeting = unsafe { &*(page as *const Meeting) };
    pin(0);
    let common = (row.common)();
    let work = |own: usize| {
        pin(own);
        let mut operation = (row.prepare)(own, common);
        (0..WARM_UP).for_each(|_| operation());
        meeting.ready.fetch_add(1, Ordering::AcqRel);
        Meeting::wait(&meeting.go, 1);
        (0..operations).for_each(|_| operation());
        meeting.done.fetch_add(1, Ordering::AcqRel);
        // Its end is not counted.
        Meeting::wait(&meeting.go, 2);
    };
    std::thread::scope(|scope| {
        let mut children = Vec::new();
        for own in 1..workers {
            match row.threads {
                true => _ = scope.spawn(move || work(own)),
                false => children.push(sys::fork(|| work(own))),
            }
        }
        // The first worker counts, too.
        let mut operation = (row.prepare)(0, common);
        (0..WARM_UP).for_each(|_| operation());
        Meeting::wait(&meeting.ready, workers as u32 - 1);
        let before = Counts::begin();
        meeting.go.store(1, Ordering::Release);
        (0..operations).for_each(|_| operation());
        Meeting::wait(&meeting.done, workers as u32 - 1);
        let counts = Counts::since(&before);
        meeting.go.store(2, Ordering::Release);
        counts.print(&format!("{}_{workers}", row.name), operations * workers);
        children.into_iter().for_each(|child| _ = sys::wait(child));
    });
}
