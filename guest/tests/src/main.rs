//! limen-guest-tests: what an ordinary Linux program may expect of its kernel, as one program.
//!
//! Every test is first run on the host's Linux and must pass there; then on Limen. So a test
//! states Linux's behaviour, not ours. No test needs a network beyond loopback, none depends on
//! how fast the machine is (an emulated CPU is up to fifty times slower), and each runs in a
//! process of its own. Reading order: harness.rs, sys.rs, then any subject.

mod accounts;
mod addresses;
mod agree;
mod aio;
mod areas;
mod capabilities;
mod channels;
mod child;
mod core;
mod cpus;
mod datagrams;
mod differ;
mod dispatch;
mod elf_cases;
mod entry;
mod errors;
mod exec;
mod file_rights;
mod files;
mod found;
mod found_files;
mod found_sockets;
mod frames;
mod fuzz;
mod fuzz_args;
mod handles;
mod harness;
mod hogs;
mod hooks;
mod huge_files;
mod huge_pages;
mod hugetlb;
mod inode_flags;
mod io_signals;
mod jobs;
mod landlock;
mod landlock_matrix;
mod landlock_ports;
mod landlock_scopes;
mod leases;
mod lsm;
mod mappings;
mod memory;
mod mounts;
mod mqueue;
mod nproc;
mod options;
mod order;
mod own;
mod partly;
mod peeks;
mod pkeys;
mod pointers;
mod proc_state;
mod processes;
mod procfs;
mod ptrace;
mod races;
mod raw;
mod refusals;
mod regs;
mod returns;
mod rights;
mod rseq;
mod scheduling;
mod seccomp;
mod segments;
mod settle;
mod shstk;
mod signals;
mod sizes;
mod soak;
mod sockets;
mod storm;
mod sys;
mod system;
mod sysv;
mod tcp;
mod threads;
mod tids;
mod time;
mod transfers;
mod udplite;
mod waits;
mod yama;

use harness::{Outcome, Test};

const SUBJECTS: &[&[Test]] = &[
    processes::TESTS,
    exec::TESTS,
    jobs::TESTS,
    threads::TESTS,
    tids::TESTS,
    own::TESTS,
    rseq::TESTS,
    core::TESTS,
    signals::TESTS,
    shstk::TESTS,
    io_signals::TESTS,
    memory::TESTS,
    mappings::TESTS,
    areas::TESTS,
    huge_pages::TESTS,
    huge_files::TESTS,
    hugetlb::TESTS,
    entry::TESTS,
    returns::TESTS,
    segments::TESTS,
    files::TESTS,
    races::TESTS,
    file_rights::TESTS,
    inode_flags::TESTS,
    partly::TESTS,
    leases::TESTS,
    handles::TESTS,
    transfers::TESTS,
    mounts::TESTS,
    order::TESTS,
    errors::TESTS,
    procfs::TESTS,
    proc_state::TESTS,
    cpus::TESTS,
    addresses::TESTS,
    agree::TESTS,
    aio::TESTS,
    channels::TESTS,
    sizes::TESTS,
    sockets::TESTS,
    tcp::TESTS,
    datagrams::TESTS,
    nproc::TESTS,
    options::TESTS,
    time::TESTS,
    scheduling::TESTS,
    udplite::TESTS,
    raw::TESTS,
    waits::TESTS,
    found::TESTS,
    found_files::TESTS,
    found_sockets::TESTS,
    system::TESTS,
    sysv::TESTS,
    mqueue::TESTS,
    peeks::TESTS,
    pkeys::TESTS,
    pointers::TESTS,
    ptrace::TESTS,
    rights::TESTS,
    seccomp::TESTS,
    dispatch::TESTS,
    landlock::TESTS,
    landlock_scopes::TESTS,
    lsm::TESTS,
    capabilities::TESTS,
    yama::TESTS,
    storm::TESTS,
];

const USAGE: &str = "usage: limen-guest-tests list | run NAME | run-all [FILTER] [--bound SECONDS]
         [--tmp DIR --shm DIR]
       storm NAME [--count N] [--jobs N] | fuzz [--seconds N] [--children N] [--seed S]
         [--jobs J] [--in-vm]
       differ run [--seed S] [--first N] [--count N] [--seconds N] | differ show FILE
       hogs [FILTER], in a VM only | hooks, refusals, in a VM of Limen's only | elf-cases
       errors [CALL] | errors merge FILE FILE | errors differ FILE, as root
       soak [--seconds N], programs on standard input, in a VM only
       landlock-matrix | landlock-ports, where nobody else works
       as-init run|run-all …, as the first process of a bare kernel";

fn all() -> impl Iterator<Item = &'static Test> {
    SUBJECTS.iter().flat_map(|s| s.iter())
}

/// The value after `--name`, or the default.
pub fn option(args: &[String], name: &str, default: u64) -> u64 {
    let at = args.iter().position(|a| a == name);
    at.and_then(|i| args.get(i + 1)).and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn main() {
    let mut args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|word| word == "as-init") {
        settle::as_init();
        args.remove(1);
    }
    // Rust starts with SIGPIPE ignored; the tests want what a C program would see.
    // Likewise its handlers for stack overflow.
    for sig in [sys::SIGPIPE, sys::SIGSEGV, sys::SIGBUS] {
        sys::on_signal(sig, sys::SIG_DFL, 0, 0);
    }
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    let bound_s = option(&args, "--bound", 300);
    let places = ["--tmp", "--shm"].map(|name| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|i| args.get(i + 1)).cloned()
    });
    if let [Some(tmp), Some(shm)] = &places {
        sys::set_places(tmp, shm);
    }
    let word = |i: usize| args.get(i).map_or("", String::as_str);
    let good = match word(1) {
        "list" => {
            all().for_each(|t| println!("{}", t.name));
            true
        }
        "run" => {
            settle::settle();
            run_one(word(2), bound_s)
        }
        "run-all" => {
            settle::settle();
            let filter = if word(2).starts_with("--") { "" } else { word(2) };
            harness::run_all(all(), filter, bound_s)
        }
        "fuzz" => fuzz::main(&args),
        "differ" => differ::main(&args),
        "errors" => {
            settle::settle();
            errors::main(&args[2..])
        }
        "provoke" => std::fs::write("/proc/sys/kernel/provoke", word(2)).is_ok(),
        "elf-cases" => elf_cases::print(),
        "hogs-list" => {
            hogs::TESTS.iter().for_each(|t| println!("{}", t.name));
            true
        }
        "hogs" => hogs::main(word(2)),
        "hooks" => hooks::main(),
        "refusals" => refusals::main(),
        "landlock-matrix" => landlock_matrix::main(),
        "landlock-ports" => landlock_ports::main(),
        "soak" => soak::main(option(&args, "--seconds", 0)),
        "storm" => {
            let (count, jobs) = (option(&args, "--count", 200), option(&args, "--jobs", 8));
            storm::main(word(2), count as u32, jobs as u32)
        }
        "child" => child::main(&args[2..]),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    };
    std::process::exit(i32::from(!good));
}

fn run_one(name: &str, bound_s: u64) -> bool {
    let Some(test) = all().find(|t| t.name == name) else {
        eprintln!("no test is called {name}");
        return false;
    };
    match harness::run(test, bound_s) {
        Outcome::Passed => true,
        Outcome::Failed(why) => {
            eprintln!("{name}: {why}");
            false
        }
    }
}
