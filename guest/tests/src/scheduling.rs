//! Who gets the CPU: how long a thread that becomes runnable waits beside others that spin, and who
//! gets how much (sched(7), proc(5) on schedstat).
//!
//! What is judged is not the clock, which an emulator or a busy host stretches, but what the kernel
//! itself counted: how many times the spinning ones were given the CPU meanwhile, and their CPU
//! time. Only most of the rounds must keep to the latter: a host that stops a whole CPU looks, from
//! inside, like a program that ran on.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use crate::sys::*;
use crate::{sc, tests};

tests!("scheduling":
    woken_beside_spinners, moved_beside_spinners, reniced_beside_spinners, forked_beside_spinners,
    wake_up_burst, spinning_barrier, yielding_barrier, nice_shares, real_time_first,
    real_time_leaves_a_rest, policy_changes_in_every_state, round_robin_interval,
    a_group_is_made_nicer,
);

/// Spinning processes on one CPU.
const SPINNERS: u32 = 5;
/// Rounds of each test.
const ROUNDS: usize = 20;
/// A thread's turn: of Limen 4 ms, of Linux about 3 ms.
const SLICE_MS: u64 = 4;
/// A thread that becomes runnable runs within this many rounds of all threads of its CPU.
const FAIR_ROUNDS: u64 = 3;

fn pin_other(pid: i32, cpu: usize) {
    let mut mask = [0u64; 16];
    mask[cpu / 64] = 1 << (cpu % 64);
    sc!(SYS_sched_setaffinity, pid, 128, mask.as_ptr()).is(0);
}

fn spinner(cpu: usize) -> i32 {
    fork(|| {
        pin(cpu).is(0);
        loop {
            std::hint::spin_loop();
        }
    })
}

fn end(pids: &[i32]) {
    for &pid in pids {
        sc!(SYS_kill, pid, SIGKILL).is(0);
    }
    for &pid in pids {
        wait_signal(pid, SIGKILL);
    }
}

/// CPU time in nanoseconds, and how often it was given the CPU.
fn schedstat(pid: i32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
    let numbers: Vec<u64> =
        text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    (numbers[0], numbers[2])
}

/// The same, of several together.
fn schedstats(pids: &[i32]) -> (u64, u64) {
    pids.iter().map(|&pid| schedstat(pid)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// How often the caller has been given a CPU.
fn own_turns() -> u64 {
    schedstat(pid()).1
}

/// `schedstats` of a look between whose begin and end the caller has kept its CPU, so that what it
/// does next comes right behind it.
fn undisturbed(pids: &[i32]) -> (u64, u64) {
    loop {
        let turns = own_turns();
        let stats = schedstats(pids);
        if own_turns() == turns {
            return stats;
        }
    }
}

/// What the spinning ones had in each round, until somebody ran who was to run beside them.
struct Waits {
    slices: Vec<u64>,
    run_ms: Vec<u64>,
}

impl Waits {
    fn new() -> Self {
        Waits { slices: Vec::new(), run_ms: Vec::new() }
    }

    fn note(&mut self, before: (u64, u64), after: (u64, u64)) {
        self.run_ms.push((after.0 - before.0) / 1_000_000);
        self.slices.push(after.1 - before.1);
    }

    /// `turns`: of how many threads, beside the one that waited or in several turns of its own.
    fn judge(mut self, turns: u64) {
        let slices = FAIR_ROUNDS * turns;
        self.slices.sort_unstable();
        self.run_ms.sort_unstable();
        let most = self.slices.len() * 3 / 4;
        assert!(self.slices[most] <= slices, "more than {slices} slices: {:?}", self.slices);
        // Slices that a slow host stretches to five times their length.
        let run_ms = 5 * slices * SLICE_MS;
        assert!(self.run_ms[most] <= run_ms, "more than {run_ms} ms: {:?}", self.run_ms);
    }
}

/// For each CPU: starts spinners there and lets `round` measure. `turns`: how often whoever is
/// measured may have to wait for all of them.
fn beside_spinners(turns: u64, round: impl Fn(usize, &[i32]) -> ((u64, u64), (u64, u64))) {
    let all = cpus();
    let rounds = (ROUNDS / all.len()).max(4);
    let mut waits = Waits::new();
    for cpu in all {
        let spinners: Vec<i32> = (0..SPINNERS).map(|_| spinner(cpu)).collect();
        until(|| spinners.iter().all(|&pid| schedstat(pid).1 > 0));
        for _ in 0..rounds {
            let (before, after) = round(cpu, &spinners);
            waits.note(before, after);
        }
        end(&spinners);
    }
    waits.judge((u64::from(SPINNERS) + 1) * turns);
}

/// The numbers in the shared words where a process leaves what it saw when it ran.
fn leave(words: &[AtomicU32], (run_ns, slices): (u64, u64)) {
    words[1].store(run_ns as u32, SeqCst);
    words[2].store((run_ns >> 32) as u32, SeqCst);
    words[3].store(slices as u32, SeqCst);
    words[0].store(1, SeqCst);
}

fn left(words: &[AtomicU32]) -> (u64, u64) {
    until(|| words[0].compare_exchange(1, 0, SeqCst, SeqCst).is_ok());
    let high = u64::from(words[2].load(SeqCst)) << 32;
    (high | u64::from(words[1].load(SeqCst)), words[3].load(SeqCst).into())
}

fn woken_beside_spinners() {
    let words = &new_shared()[..4];
    beside_spinners(1, |cpu, spinners| {
        let (from, to) = pipe();
        let sleeper = fork(|| {
            pin(cpu).is(0);
            read(from, 1);
            leave(words, schedstats(spinners));
            0
        });
        until_asleep(sleeper);
        let before = undisturbed(spinners);
        write(to, b"x");
        let after = left(words);
        wait_code(sleeper, 0);
        close(from);
        close(to);
        (before, after)
    });
}

fn moved_beside_spinners() {
    let words = &new_shared()[..4];
    beside_spinners(1, |cpu, spinners| {
        let here = cpus();
        let from = *here.iter().find(|&&other| other != cpu).unwrap_or(&cpu);
        let mover = fork(|| {
            pin(from).is(0);
            words[0].store(2, SeqCst);
            // SAFETY: no arguments; glibc's word or a system call.
            while words[0].load(SeqCst) != 3 || unsafe { sched_getcpu() } as usize != cpu {
                std::hint::spin_loop();
            }
            leave(words, schedstats(spinners));
            0
        });
        until(|| words[0].load(SeqCst) == 2);
        let before = undisturbed(spinners);
        words[0].store(3, SeqCst);
        pin_other(mover, cpu);
        let after = left(words);
        wait_code(mover, 0);
        (before, after)
    });
}

fn reniced_beside_spinners() {
    let (words, runs) = new_shared().split_at(4);
    beside_spinners(1, |cpu, spinners| {
        let runs = &runs[0];
        runs.store(0, SeqCst);
        let nicer = fork(|| {
            pin(cpu).is(0);
            runs.store(1, SeqCst);
            while words[0].load(SeqCst) != 3 {
                std::hint::spin_loop();
            }
            leave(words, schedstats(spinners));
            0
        });
        until(|| runs.load(SeqCst) > 0);
        // Nicer by one, still far above what would make it wait for long.
        let nice = 20 - sc!(SYS_getpriority, PRIO_PROCESS, nicer).must();
        let before = undisturbed(spinners);
        sc!(SYS_setpriority, PRIO_PROCESS, nicer, 19.min(nice + 1)).is(0);
        words[0].store(3, SeqCst);
        let after = left(words);
        wait_code(nicer, 0);
        (before, after)
    });
}

fn forked_beside_spinners() {
    let words = new_shared();
    // The parent is on that CPU, too: it looks, forks, and the child has first to fault in its
    // pages. How many turns that takes both depends on the host; each is to come in time.
    beside_spinners(1, |cpu, spinners| {
        let parent = fork(|| {
            pin(cpu).is(0);
            let turns = own_turns();
            let before = schedstats(spinners);
            words[9].store(before.0 as u32, SeqCst);
            words[10].store((before.0 >> 32) as u32, SeqCst);
            words[11].store(before.1 as u32, SeqCst);
            let child = fork(|| {
                let after = schedstats(spinners);
                words[12].store(own_turns() as u32, SeqCst);
                leave(&words[..4], after);
                0
            });
            words[13].store((own_turns() - turns + 1) as u32, SeqCst);
            wait_code(child, 0);
            0
        });
        let after = left(&words[..4]);
        wait_code(parent, 0);
        let high = u64::from(words[10].load(SeqCst)) << 32;
        let run_ns = high | u64::from(words[9].load(SeqCst));
        let turns = u64::from(words[12].load(SeqCst) + words[13].load(SeqCst));
        let slices = after.1 - u64::from(words[11].load(SeqCst));
        ((0, 0), ((after.0 - run_ns) / turns, slices / turns))
    });
}

/// Many wake up at once, and the last of them is judged.
fn wake_up_burst() {
    const BURST: u32 = 8;
    let (words, awake) = new_shared().split_at(4);
    let awake = &awake[0];
    beside_spinners(3, |cpu, spinners| {
        let (from, to) = pipe();
        awake.store(0, SeqCst);
        let sleepers: Vec<i32> = (0..BURST)
            .map(|_| {
                fork(|| {
                    pin(cpu).is(0);
                    awake.fetch_add(1, SeqCst);
                    read(from, 1);
                    if awake.fetch_add(1, SeqCst) == 2 * BURST - 1 {
                        leave(words, schedstats(spinners));
                    }
                    0
                })
            })
            .collect();
        until(|| awake.load(SeqCst) == BURST);
        let before = undisturbed(spinners);
        write(to, &[0; BURST as usize]);
        let after = left(words);
        sleepers.into_iter().for_each(|pid| wait_code(pid, 0));
        close(from);
        close(to);
        (before, after)
    });
}

/// More threads than CPUs meet again and again. All run all the time: how much CPU time a round
/// costs says how long the last one of each was left waiting.
fn barrier(wait: impl Fn() + Copy) {
    const MEMBERS: u32 = 10;
    const MEETINGS: u32 = 40;
    let [arrived, meeting, run_us, ..] = new_shared();
    let all = cpus().len();
    let members: Vec<i32> = (0..MEMBERS)
        .map(|_| {
            fork(|| {
                for round in 1..=MEETINGS {
                    if arrived.fetch_add(1, SeqCst) + 1 == MEMBERS * round {
                        meeting.store(round, SeqCst);
                    }
                    while meeting.load(SeqCst) < round {
                        wait();
                    }
                }
                let (run_ns, _) = schedstat(pid());
                run_us.fetch_add((run_ns / 1000) as u32, SeqCst);
                0
            })
        })
        .collect();
    members.into_iter().for_each(|pid| wait_code(pid, 0));
    let run_us = run_us.load(SeqCst);
    let run_ms = u64::from(run_us / 1000);
    let fair_ms = FAIR_ROUNDS * u64::from(MEMBERS) * SLICE_MS * u64::from(MEETINGS);
    assert!(run_us > 0, "nobody has said what it had");
    assert!(run_ms < 5 * fair_ms, "{run_ms} ms of {all} CPUs for {MEETINGS} meetings");
}

fn spinning_barrier() {
    barrier(std::hint::spin_loop);
}

fn yielding_barrier() {
    barrier(|| {
        sc!(SYS_sched_yield).is(0);
    });
}

/// Two that spin on one CPU: five steps of nice are a factor of three (1.25^5).
fn nice_shares() {
    let cpu = cpus()[0];
    let plain = spinner(cpu);
    let nicer = spinner(cpu);
    let nice = (20 - sc!(SYS_getpriority, PRIO_PROCESS, plain).must() as i64).min(14);
    sc!(SYS_setpriority, PRIO_PROCESS, plain, nice).is(0);
    sc!(SYS_setpriority, PRIO_PROCESS, nicer, nice + 5).is(0);
    let before = (schedstat(plain).0, schedstat(nicer).0);
    until(|| schedstat(plain).0 - before.0 > 1_200_000_000);
    let (more, less) = (schedstat(plain).0 - before.0, schedstat(nicer).0 - before.1);
    end(&[plain, nicer]);
    let ratio = more as f64 / less as f64;
    assert!((2.0..4.5).contains(&ratio), "{more} ns to {less} ns: {ratio}");
}

/// Whether this process may use real-time policies.
fn set_fifo(pid: i32, priority: i32) -> bool {
    let done = sc!(SYS_sched_setscheduler, pid, SCHED_FIFO, &raw const priority);
    done.is_ok()
}

/// A thread of SCHED_FIFO that wakes does not wait for a slice of anybody else.
fn real_time_first() {
    if !in_child_ok(|| set_fifo(0, 10)) {
        return;
    }
    let words = &new_shared()[..4];
    let cpu = cpus()[0];
    let spinners: Vec<i32> = (0..SPINNERS).map(|_| spinner(cpu)).collect();
    until(|| spinners.iter().all(|&pid| schedstat(pid).1 > 0));
    let mut slices = Vec::new();
    for _ in 0..ROUNDS {
        let (from, to) = pipe();
        let sleeper = fork(|| {
            pin(cpu).is(0);
            assert!(set_fifo(0, 10));
            words[0].store(2, SeqCst);
            read(from, 1);
            leave(words, schedstats(&spinners));
            0
        });
        until(|| words[0].load(SeqCst) == 2);
        until_asleep(sleeper);
        words[0].store(0, SeqCst);
        let before = undisturbed(&spinners);
        write(to, b"x");
        slices.push(left(words).1 - before.1);
        wait_code(sleeper, 0);
        close(from);
        close(to);
    }
    end(&spinners);
    slices.sort_unstable();
    // Between the look's last file and the write a slice may end.
    assert!(slices[ROUNDS * 3 / 4] <= 2, "{slices:?}");
}

/// Runs it in a child and gives what it said.
fn in_child_ok(f: impl FnOnce() -> bool) -> bool {
    let child = fork(|| i32::from(!f()));
    let status = wait(child);
    status == 0
}

/// A spinning thread of SCHED_FIFO leaves others of its CPU a twentieth (sched_rt_runtime_us).
fn real_time_leaves_a_rest() {
    if !in_child_ok(|| set_fifo(0, 10)) {
        return;
    }
    let [first, .., last] = cpus()[..] else { return };
    pin(first).is(0);
    let plain = spinner(last);
    let greedy = fork(|| {
        pin(last).is(0);
        assert!(set_fifo(0, 10));
        loop {
            std::hint::spin_loop();
        }
    });
    until(|| schedstat(greedy).0 > 300_000_000);
    let before = (schedstat(greedy).0, schedstat(plain).0);
    until(|| schedstat(greedy).0 - before.0 > 3_000_000_000);
    let rest = schedstat(plain).0 - before.1;
    end(&[greedy, plain]);
    assert!(rest > 20_000_000, "the other one had {rest} ns beside 3 s");
}

/// Every policy, of a thread that runs, that waits for a CPU, and that sleeps.
fn policy_changes_in_every_state() {
    let may = in_child_ok(|| set_fifo(0, 1));
    let cpu = cpus()[0];
    let running = spinner(cpu);
    let waiting = spinner(cpu);
    let (from, to) = pipe();
    let asleep = fork(|| {
        pin(cpu).is(0);
        read(from, 1);
        0
    });
    let policies = [(SCHED_BATCH, 0), (SCHED_RR, 3), (SCHED_IDLE, 0), (SCHED_FIFO, 2), (0, 0)];
    for _ in 0..10 {
        for (policy, priority) in policies {
            if priority > 0 && !may {
                continue;
            }
            for pid in [running, waiting, asleep] {
                sc!(SYS_sched_setscheduler, pid, policy, &raw const priority).is(0);
                sc!(SYS_sched_getscheduler, pid).is(policy as usize);
            }
        }
    }
    write(to, b"x");
    wait_code(asleep, 0);
    end(&[running, waiting]);
}

/// sched_rr_get_interval(2): none for SCHED_FIFO, a tenth of a second for SCHED_RR.
fn round_robin_interval() {
    if !in_child_ok(|| set_fifo(0, 1)) {
        return;
    }
    in_child(|| {
        let mut time = [9i64; 2];
        let priority = 1;
        sc!(SYS_sched_setscheduler, 0, SCHED_RR, &raw const priority).is(0);
        sc!(SYS_sched_rr_get_interval, 0, time.as_mut_ptr()).is(0);
        assert!(time[0] == 0 && (1_000_000..=100_000_000).contains(&time[1]), "{time:?}");
        sc!(SYS_sched_setscheduler, 0, SCHED_FIFO, &raw const priority).is(0);
        sc!(SYS_sched_rr_get_interval, 0, time.as_mut_ptr()).is(0);
        assert_eq!(time, [0, 0]);
    });
}

/// setpriority(2) of a group: each member that may be changed is, also where another is not, which
/// is told.
fn a_group_is_made_nicer() {
    in_child(|| {
        sc!(SYS_setpgid, 0, 0).is(0);
        let (r, w) = pipe();
        let member = |as_user: bool| {
            fork(|| {
                close(w);
                if as_user {
                    become_user();
                }
                // Until the pipe's other ends are closed.
                sc!(SYS_read, r, [0u8; 1].as_mut_ptr(), 1).is(0);
                0
            })
        };
        let (mine, others, mine_too) = (member(true), member(false), member(true));
        let nice = |pid: i32| 20 - sc!(SYS_getpriority, PRIO_PROCESS, pid).must() as i32;
        let before = nice(others);
        // They are that user's when they say so.
        let is_users = |pid: i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            status.contains("\nUid:\t1234\t1234\t1234\t1234")
        };
        until(|| is_users(mine) && is_users(mine_too));
        become_user();
        sc!(SYS_setpriority, PRIO_PGRP, 0, before + 5).fails(EPERM);
        assert_eq!([nice(mine), nice(others), nice(mine_too)], [before + 5, before, before + 5]);
        assert_eq!(nice(0), before + 5);
        close(w);
        [mine, others, mine_too].into_iter().for_each(|pid| wait_code(pid, 0));
    });
}
