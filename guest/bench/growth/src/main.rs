//! limen-guest-growth: what one kernel operation costs among few and among many of something.
//!
//! Each row is an operation, and a number of things that exist while it is measured: processes,
//! areas, pages, names. Under QEMU's `-icount shift=0` a tick of the time-stamp counter is an
//! instruction (see limen-guest-bench). Why it is hard: what one row leaves behind must not change
//! the next, so each row and size runs in a process of its own, and a row that fails (a limit, a
//! call that is not there) says so and ends nothing else. Medians of samples that the row takes;
//! whatever prepares a sample stands outside of it.
//!
//! Prints `ROW_SIZE TICKS` lines. Neighbours: `cost.rs` (samples), limen-guest-bench's `sys`
//! (calls), and one file of rows for each part of the kernel.

mod cost;
mod dirs;
mod events;
mod files;
mod memory;
mod net;
mod processes;
mod queues;
mod threads;

use limen_guest_bench::raw::rdtsc;
use limen_guest_bench::{furnish, power_off, report_boot, settle, sys};

use cost::Cost;

/// An operation among many of something.
pub struct Row {
    /// As printed: what is done, and among what.
    pub name: &'static str,
    /// How many there are.
    pub sizes: [usize; 4],
    /// Prepares that many, and takes samples.
    pub run: fn(&mut Cost, usize),
}

/// The usual sizes.
pub const MANY: [usize; 4] = [10, 100, 1000, 10_000];
/// Where things are dear or limited.
pub const SOME: [usize; 4] = [10, 100, 1000, 4000];

const USAGE: &str = "usage: limen-guest-growth [--tiny|--boot] [--only=WORD,...] [--poweroff]";
/// Idle time between rows, for what a kernel frees late.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);
/// Sizes and samples of a run that only shows that the rows work.
const TINY_SIZES: usize = 2;

fn main() {
    let booted_ticks = rdtsc();
    let (mut tiny, mut boot, mut poweroff, mut only) = (false, false, false, String::new());
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "noop" => std::process::exit(0),
            "--tiny" => tiny = true,
            "--boot" => boot = true,
            "--poweroff" => poweroff = true,
            word if word.starts_with("--only=") => word["--only=".len()..].clone_into(&mut only),
            other => {
                eprintln!("{USAGE}, not {other}");
                std::process::exit(2);
            }
        }
    }
    if boot {
        report_boot(booted_ticks);
    } else {
        furnish();
        prepare();
        settle();
        run(tiny, &only);
    }
    if poweroff {
        power_off();
    }
}

/// Limits out of the way, a tmpfs to work in, the loopback interface up. What cannot be had shows
/// in the rows that need it.
fn prepare() {
    for limit in [libc::RLIMIT_NOFILE, libc::RLIMIT_SIGPENDING, libc::RLIMIT_MSGQUEUE] {
        sys::raise_limit(limit as usize, 1 << 20);
    }
    let scratch = sys::at(sys::SCRATCH);
    let _ = sys::call(libc::SYS_mkdir, &[scratch, 0o755]);
    // Alone in a machine, and not started by hand on somebody's.
    if std::process::id() == 1 {
        let tmpfs = sys::at(c"tmpfs");
        sys::good(libc::SYS_mount, &[tmpfs, scratch, tmpfs, 0, 0]);
        net::loopback_up();
    }
    sys::one_cpu();
}

fn run(tiny: bool, only: &str) {
    let parts = [
        processes::ROWS,
        threads::ROWS,
        memory::ROWS,
        files::ROWS,
        dirs::ROWS,
        events::ROWS,
        net::ROWS,
        queues::ROWS,
    ];
    let is_wanted = |row: &&Row| only.split(',').any(|word| row.name.contains(word));
    for row in parts.into_iter().flatten().filter(is_wanted) {
        let sizes = if tiny { &row.sizes[..TINY_SIZES] } else { &row.sizes };
        for &size in sizes {
            let measured = sys::in_child(|| {
                let mut cost = Cost::new(tiny);
                (row.run)(&mut cost, size);
                println!("{}_{size} {}", row.name, cost.median());
            });
            if !measured {
                println!("failed: {} among {size}", row.name);
            }
            std::thread::sleep(PAUSE);
        }
    }
    println!("done 1");
}
