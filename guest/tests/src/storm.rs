//! Storms: the protocols of the other subjects, many at once and many times over.
//!
//! Bounded by counts, never by time. A lost wake-up shows as a hang, and the caller's bound ends
//! it. Each storm checks what it computes. Run as tests with small counts, or by
//! `storm NAME --count N --jobs N` with large ones.

use crate::sys::*;
use crate::{sc, tests};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

tests!("storm":
    hackbench_pipes, hackbench_sockets, forks, futexes, mappings, signals, execs, threads,
    tracers,
);

fn hackbench_pipes() {
    hackbench(false, 2, 50);
}

fn hackbench_sockets() {
    hackbench(true, 2, 50);
}

fn forks() {
    fork_storm(4, 30);
}

fn futexes() {
    futex_storm(4, 2000);
}

fn mappings() {
    map_storm(4, 300);
}

fn signals() {
    signal_storm(4, 300);
}

fn execs() {
    exec_storm(4, 15);
}

fn threads() {
    thread_storm(4, 100);
}

fn tracers() {
    crate::ptrace::storm(4, 3);
}

/// `storm NAME --count N --jobs N`.
pub fn main(name: &str, count: u32, jobs: u32) -> bool {
    let run = || match name {
        "hackbench-pipes" => hackbench(false, jobs, count),
        "hackbench-sockets" => hackbench(true, jobs, count),
        "forks" => fork_storm(jobs, count),
        "futexes" => futex_storm(jobs, count),
        "mappings" => map_storm(jobs, count),
        "signals" => signal_storm(jobs, count),
        "execs" => exec_storm(jobs, count),
        "threads" => thread_storm(jobs, count),
        "tracers" => crate::ptrace::storm(jobs, count),
        other => panic!("no storm is called {other}"),
    };
    let s = wait(fork(|| {
        run();
        0
    }));
    println!("storm {name} count {count} jobs {jobs}: {}", describe(s));
    s == 0
}

fn channel(sockets: bool) -> (i32, i32) {
    if !sockets {
        return pipe();
    }
    let mut p = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, p.as_mut_ptr()).is(0);
    (p[0], p[1])
}

/// Groups of ten senders and ten receivers; every sender writes `loops` messages to every
/// receiver of its group, and every receiver counts its bytes.
fn hackbench(sockets: bool, groups: u32, loops: u32) {
    const N: usize = 10;
    const SIZE: usize = 100;
    let (go_r, go_w) = pipe();
    let mut kids = Vec::new();
    for _ in 0..groups {
        let chans: Vec<(i32, i32)> = (0..N).map(|_| channel(sockets)).collect();
        for (r, w) in &chans {
            kids.push(fork(|| {
                let _ = sc!(SYS_close, *w);
                // The senders start when the last copy of this is closed.
                close(go_w);
                let mut left = N * loops as usize * SIZE;
                let mut buf = [0u8; SIZE];
                while left > 0 {
                    let n = sc!(SYS_read, *r, buf.as_mut_ptr(), SIZE.min(left)).must();
                    assert_ne!(n, 0, "a sender ended early");
                    assert!(buf[..n].iter().all(|b| *b == 0x5a));
                    left -= n;
                }
                0
            }));
        }
        for _ in 0..N {
            kids.push(fork(|| {
                close(go_w);
                let _ = read(go_r, 1);
                for _ in 0..loops {
                    chans.iter().for_each(|(_, w)| write(*w, &[0x5a; SIZE]));
                }
                0
            }));
        }
        for (r, w) in chans {
            close(r);
            close(w);
        }
    }
    close(go_w);
    kids.into_iter().for_each(|p| wait_code(p, 0));
}

fn fork_storm(jobs: u32, count: u32) {
    let page = anon(16 * 4096);
    let kids: Vec<i32> = (0..jobs)
        .map(|j| {
            fork(|| {
                for i in 0..count {
                    // SAFETY: the mapping is this test's own and lives on.
                    unsafe { page.add(4096).cast::<u32>().write_volatile(j * 1000 + i) };
                    let child = fork(|| {
                        let grandchild = fork(|| {
                            // SAFETY: as for the block above, whose objects live on.
                            let v = unsafe { page.add(4096).cast::<u32>().read_volatile() };
                            i32::from(v != j * 1000 + i)
                        });
                        i32::from(wait(grandchild) != 0)
                    });
                    wait_code(child, 0);
                }
                0
            })
        })
        .collect();
    kids.into_iter().for_each(|p| wait_code(p, 0));
}

/// A token goes round a ring of processes by shared futexes; any lost wake-up stops it.
fn futex_storm(jobs: u32, rounds: u32) {
    let w = new_shared();
    let turn = &w[0];
    let kids: Vec<i32> = (0..jobs)
        .map(|j| {
            fork(|| {
                for i in 0..rounds {
                    let mine = i * jobs + j;
                    loop {
                        let now = turn.load(SeqCst);
                        if now == mine {
                            break;
                        }
                        let _ = sc!(SYS_futex, turn.as_ptr(), FUTEX_WAIT, now, 0);
                    }
                    turn.store(mine + 1, SeqCst);
                    sc!(SYS_futex, turn.as_ptr(), FUTEX_WAKE, i32::MAX).must();
                }
                0
            })
        })
        .collect();
    kids.into_iter().for_each(|p| wait_code(p, 0));
    assert_eq!(turn.load(SeqCst), jobs * rounds);
}

/// Threads of one process map, touch, protect and unmap, while others read: every stale
/// translation would show as a wrong byte.
fn map_storm(jobs: u32, count: u32) {
    let hs: Vec<_> = (0..jobs)
        .map(|j| {
            std::thread::spawn(move || {
                for i in 0..count {
                    let n = 1 + (i % 8) as usize;
                    let p = anon(n * 4096);
                    for k in 0..n {
                        // SAFETY: the mapping is this test's own and lives on.
                        unsafe {
                            let q = p.add(k * 4096).cast::<u32>();
                            assert_eq!(q.read_volatile(), 0, "a fresh page is zero");
                            q.write_volatile(j << 16 | i);
                        }
                    }
                    sc!(SYS_mprotect, p, n * 4096, PROT_READ).is(0);
                    for k in 0..n {
                        // SAFETY: the mapping is this test's own and lives on.
                        let v = unsafe { p.add(k * 4096).cast::<u32>().read_volatile() };
                        assert_eq!(v, j << 16 | i);
                    }
                    unmap(p, n * 4096);
                }
            })
        })
        .collect();
    hs.into_iter().for_each(|h| h.join().expect("a mapping thread"));
}

static HITS: AtomicU32 = AtomicU32::new(0);

extern "C" fn hit(_: i32) {
    HITS.fetch_add(1, SeqCst);
}

/// Processes in a ring signal each other with queued signals, and each receives as many as sent.
fn signal_storm(jobs: u32, count: u32) {
    let w = new_shared();
    on_signal(40, hit as *const () as usize, SA_RESTART, 0);
    let kids: Vec<i32> = (0..jobs as usize)
        .map(|j| {
            fork(|| {
                w[j].store(pid() as u32, SeqCst);
                let next = &w[(j + 1) % jobs as usize];
                until_at_least(next, 1);
                let to = next.load(SeqCst);
                for i in 0..count {
                    // The queue has a limit: an answer of EAGAIN means to try again.
                    until(|| sc!(SYS_kill, to, 40) != Err(EAGAIN));
                    if i % 16 == 0 {
                        let _ = sc!(SYS_sched_yield);
                    }
                }
                until_at_least(&HITS, count);
                // Nobody leaves while others still send.
                w[100].fetch_add(1, SeqCst);
                until_at_least(&w[100], jobs);
                i32::from(HITS.load(SeqCst) != count)
            })
        })
        .collect();
    kids.into_iter().for_each(|p| wait_code(p, 0));
}

fn exec_storm(jobs: u32, count: u32) {
    let me = c(&own_path());
    let kids: Vec<i32> = (0..jobs)
        .map(|_| {
            fork(|| {
                for i in 0..count {
                    let want = (i % 100) as i32;
                    let child = fork(|| {
                        let code = c(&want.to_string());
                        let argv = [
                            c"x".as_ptr(),
                            c"child".as_ptr(),
                            c"exit".as_ptr(),
                            code.as_ptr(),
                            std::ptr::null(),
                        ];
                        let _ = sc!(SYS_execve, me.as_ptr(), argv.as_ptr(), 0);
                        255
                    });
                    wait_code(child, want);
                }
                0
            })
        })
        .collect();
    kids.into_iter().for_each(|p| wait_code(p, 0));
}

/// Threads come and go while the process forks: the copy has one thread and a whole heap.
fn thread_storm(jobs: u32, count: u32) {
    let stop = Arc::new(AtomicBool::new(false));
    let hs: Vec<_> = (0..jobs)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let h = std::thread::spawn(|| std::hint::black_box(3));
                    assert_eq!(h.join().expect("a short thread"), 3);
                }
            })
        })
        .collect();
    for i in 0..count {
        wait_code(fork(|| (i % 50) as i32), (i % 50) as i32);
    }
    stop.store(true, SeqCst);
    hs.into_iter().for_each(|h| h.join().expect("a thread"));
}
