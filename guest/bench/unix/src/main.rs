//! limen-bench-unix: the workloads of byte-UnixBench's system rows, written afresh.
//!
//! A row repeats what its namesake repeats, a fixed number of times instead of a fixed time, and
//! prints ticks of the time-stamp counter per round: guest instructions in a counted QEMU. With
//! `--hooks` it prints how many security hooks a round asks instead (Limen's
//! /sys/kernel/security/hooks, where `lsm=` names the tally). Reading order: [`ROWS`], [`main`].

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::process::{Command, Stdio};

use limen_guest_bench::raw::{rdtsc, syscall};
use limen_guest_bench::{furnish, power_off, settle};

/// Where hooks and their counts are, and the tally's switch.
const HOOKS: &str = "/sys/kernel/security/hooks";
/// The shell of the shell row, and the tools that its script needs, which are links to it.
const SHELL: &str = "/bin/busybox";
const TOOLS: [&str; 7] = ["sh", "sort", "od", "grep", "tee", "wc", "rm"];
const SCRIPT: &str = "/tmp/script";
const WORDS: &str = "/tmp/words";
/// Blocks after which a file is written from its start again.
const BLOCKS_MAX: usize = 2000;

/// A row: its name, how many rounds are counted, and what does that many.
type Row = (&'static str, usize, fn(usize));

const ROWS: [Row; 8] = [
    ("execl", 200, execl),
    ("file_write_1024_2000", 4000, file_write),
    ("file_copy_1024_2000", 4000, file_copy),
    ("pipe", 10_000, pipe),
    ("pipe_context_switch", 4000, context_switch),
    ("process_creation", 400, process_creation),
    ("shell_1", 12, shell),
    ("syscall", 10_000, system_calls),
];

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut divisor, mut hooks, mut off) = (1, false, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "again" => return execute_again(args.next().and_then(|left| left.parse().ok())),
            "--tiny" => divisor = 10,
            "--hooks" => hooks = true,
            "--poweroff" => off = true,
            other => {
                eprintln!("usage: limen-bench-unix [--tiny] [--hooks] [--poweroff], not {other}");
                std::process::exit(2);
            }
        }
    }
    furnish();
    furnish_shell();
    settle();
    for (name, rounds, work) in ROWS {
        let rounds = rounds / divisor;
        // The caches are warm then, and the files are there.
        work(1);
        let spent = if hooks { asked(|| work(rounds)) } else { ticks(|| work(rounds)) };
        println!("{name} {}", spent / rounds as u64);
    }
    if off {
        power_off();
    }
}

fn ticks(work: impl FnOnce()) -> u64 {
    let start = rdtsc();
    work();
    rdtsc() - start
}

/// How many hooks are asked meanwhile. Reading the counts adds some, of thousands.
fn asked(work: impl FnOnce()) -> u64 {
    std::fs::write(HOOKS, "1").expect("lsm= names the tally");
    work();
    let text = std::fs::read_to_string(HOOKS).expect("the counts");
    std::fs::write(HOOKS, "0").expect("the tally ends");
    text.lines().filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok()).sum()
}

/// A program replaces itself by itself, again and again.
fn execl(rounds: usize) {
    let mut child = own().args(["again", &rounds.to_string()]).spawn().expect("a child");
    assert!(child.wait().expect("its end").success(), "execl");
}

fn own() -> Command {
    Command::new(std::env::args().next().unwrap_or_default())
}

fn execute_again(left: Option<usize>) {
    use std::os::unix::process::CommandExt as _;
    let left = left.expect("how often");
    if left > 0 {
        let error = own().args(["again", &(left - 1).to_string()]).exec();
        panic!("exec: {error}");
    }
}

fn scratch(name: &str) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).open(format!("/tmp/{name}")).expect("a file")
}

fn file_write(rounds: usize) {
    let mut file = scratch("written");
    for block in 0..rounds {
        if block % BLOCKS_MAX == 0 {
            file.rewind().expect("a start");
        }
        file.write_all(&[0x5a; 1024]).expect("room");
    }
}

fn file_copy(rounds: usize) {
    let (mut from, mut to) = (scratch("written"), scratch("copied"));
    from.set_len(BLOCKS_MAX as u64 * 1024).expect("a length");
    let mut block = [0; 1024];
    for at in 0..rounds {
        if at % BLOCKS_MAX == 0 {
            from.rewind().expect("a start");
            to.rewind().expect("a start");
        }
        from.read_exact(&mut block).expect("a block");
        to.write_all(&block).expect("room");
    }
}

fn pipe_ends() -> (File, File) {
    let mut ends = [0_i32; 2];
    // SAFETY: the array has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0, "pipe");
    // SAFETY: the kernel has just made both, and nobody else has them.
    ends.map(|fd| unsafe { File::from_raw_fd(fd) }).into()
}

/// 512 bytes through a pipe and back out, in one process.
fn pipe(rounds: usize) {
    let (mut read, mut write) = pipe_ends();
    let mut bytes = [0; 512];
    for _ in 0..rounds {
        write.write_all(&bytes).expect("room");
        read.read_exact(&mut bytes).expect("bytes");
    }
}

/// A number that grows goes back and forth between two processes.
fn context_switch(rounds: usize) {
    let (mut ping_read, mut ping_write) = pipe_ends();
    let (mut pong_read, mut pong_write) = pipe_ends();
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    let mut number = [0; 4];
    for round in 0..rounds as u32 {
        if child == 0 {
            ping_read.read_exact(&mut number).expect("a number");
            pong_write.write_all(&number).expect("room");
        } else {
            ping_write.write_all(&round.to_le_bytes()).expect("room");
            pong_read.read_exact(&mut number).expect("a number");
            assert_eq!(u32::from_le_bytes(number), round, "another number came back");
        }
    }
    end_of(child);
}

/// Ends the child; waits for it in the parent.
fn end_of(child: i32) {
    if child == 0 {
        let _ = syscall(libc::SYS_exit_group, [0; 6]);
    }
    let mut status = 0;
    // SAFETY: the status has room for a word.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child, "waitpid");
    assert_eq!(status, 0, "the child failed");
}

fn process_creation(rounds: usize) {
    for _ in 0..rounds {
        // SAFETY: this program has one thread.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        end_of(child);
    }
}

/// Links the shell's tools, and writes its script and what that works on.
fn furnish_shell() {
    for tool in TOOLS {
        let _ = std::os::unix::fs::symlink(SHELL, format!("/bin/{tool}"));
    }
    let script = "cd /tmp && sort words >sorted.$$\nod -c sorted.$$ | sort -n >dump.$$\n\
                  grep men sorted.$$ | tee found.$$ | wc >count.$$\n\
                  read lines rest <count.$$\n\
                  rm sorted.$$ dump.$$ found.$$ count.$$\n[ $lines = 40 ]\n";
    std::fs::write(SCRIPT, script).expect("a script");
    let words: String = (0..200)
        .map(|n| {
            format!("{} word {n} of {}\n", n * 7919 % 200, {
                if n % 5 == 0 { "limen" } else { "others" }
            })
        })
        .collect();
    std::fs::write(WORDS, words).expect("words");
}

fn shell(rounds: usize) {
    for _ in 0..rounds {
        let mut script = Command::new("/bin/sh");
        let status = script.arg(SCRIPT).env("PATH", "/bin").stdin(Stdio::null()).status();
        assert!(status.expect("a shell").success(), "the script found other words");
    }
}

/// The calls that do least: each enters the kernel and leaves it.
fn system_calls(rounds: usize) {
    let file = scratch("written");
    let fd = file.as_raw_fd() as usize;
    for _ in 0..rounds {
        let other = syscall(libc::SYS_dup, [fd, 0, 0, 0, 0, 0]);
        assert!(other >= 0, "dup");
        let _ = syscall(libc::SYS_close, [other as usize, 0, 0, 0, 0, 0]);
        let _ = syscall(libc::SYS_getpid, [0; 6]);
        let _ = syscall(libc::SYS_getuid, [0; 6]);
        let _ = syscall(libc::SYS_umask, [0o22, 0, 0, 0, 0, 0]);
    }
}
