//! Job control's orphaned groups: who gets SIGHUP and SIGCONT when a group loses its last link to a
//! parent that could continue it (POSIX, exit; credentials(7)).
//!
//! Each case is a script over a few processes that do as they are told through shared words. The
//! driver waits until the kernel shows what a step did (a zombie, a stopped process), so nothing
//! depends on speed: Linux sends these signals before the one that ends can be seen as a zombie.

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

tests!("jobs": orphaned_groups);

/// Most processes of a case; `A` is the first of them, a child of the driver.
const ACTORS: usize = 6;
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const D: usize = 3;
const E: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The actor forks another one.
    Fork(usize, usize),
    /// The actor leads a new session.
    Setsid(usize),
    /// The first puts the second into the group that the third leads.
    Setpgid(usize, usize, usize),
    /// The actor adopts orphans among its descendants.
    Subreaper(usize),
    /// The actor is stopped by SIGSTOP.
    Stop(usize),
    /// The actor ends by itself.
    Exit(usize),
    /// The actor is killed.
    Kill(usize),
    /// The actors that have had SIGHUP by now, all once.
    HungUp(&'static [usize]),
}

use Step::*;

/// What the test tells about each: a line of words.
struct World {
    case: &'static str,
    pids: [&'static AtomicU32; ACTORS],
    orders: [&'static AtomicU32; ACTORS],
    operands: [&'static AtomicU32; ACTORS],
    hangups: [&'static AtomicU32; ACTORS],
}

static HANGUPS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_hangup(_: i32, _: usize, _: usize) {
    HANGUPS.fetch_add(1, SeqCst);
}

const FORK: u32 = 1;
const SETSID: u32 = 2;
const SETPGID: u32 = 3;
const SUBREAPER: u32 = 4;
const EXIT: u32 = 5;

impl World {
    fn new(case: &'static str) -> World {
        let words = new_shared();
        let row = |n: usize| std::array::from_fn(|i| &words[n * ACTORS + i]);
        World { case, pids: row(0), orders: row(1), operands: row(2), hangups: row(3) }
    }

    fn pid(&self, who: usize) -> i32 {
        self.pids[who].load(SeqCst) as i32
    }

    /// What an actor does until it is told to end.
    fn act(&self, who: usize) -> i32 {
        HANGUPS.store(0, SeqCst);
        on_signal(SIGHUP, count_hangup as *const () as usize, SA_RESTART, 0);
        on_signal(SIGCONT, nothing as *const () as usize, SA_RESTART, 0);
        self.pids[who].store(pid() as u32, SeqCst);
        loop {
            let order = &self.orders[who];
            until(|| {
                self.hangups[who].store(HANGUPS.load(SeqCst), SeqCst);
                order.load(SeqCst) != 0
            });
            let operand = self.operands[who].load(SeqCst) as usize;
            match order.load(SeqCst) {
                FORK => {
                    fork(|| self.act(operand));
                }
                SETSID => {
                    sc!(SYS_setsid).must();
                }
                SETPGID => {
                    let (member, leader) = (self.pid(operand / ACTORS), self.pid(operand % ACTORS));
                    sc!(SYS_setpgid, member, leader).is(0);
                }
                SUBREAPER => sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0),
                _ => return 0,
            }
            order.store(0, SeqCst);
        }
    }

    fn order(&self, who: usize, what: u32, operand: usize) {
        self.operands[who].store(operand as u32, SeqCst);
        self.orders[who].store(what, SeqCst);
        if what != EXIT {
            until(|| self.orders[who].load(SeqCst) == 0);
        }
    }

    fn step(&self, step: Step) {
        match step {
            Fork(who, child) => {
                self.order(who, FORK, child);
                until(|| self.pid(child) != 0);
            }
            Setsid(who) => self.order(who, SETSID, 0),
            Setpgid(who, member, leader) => self.order(who, SETPGID, member * ACTORS + leader),
            Subreaper(who) => self.order(who, SUBREAPER, 0),
            Stop(who) => {
                sc!(SYS_kill, self.pid(who), SIGSTOP).is(0);
                until(|| state(self.pid(who)) == 'T');
            }
            Exit(who) => {
                self.order(who, EXIT, 0);
                until(|| "Z-".contains(state(self.pid(who))));
            }
            Kill(who) => {
                sc!(SYS_kill, self.pid(who), SIGKILL).is(0);
                until(|| "Z-".contains(state(self.pid(who))));
            }
            HungUp(whom) => self.check(whom),
        }
    }

    fn end(&self) {
        for who in 0..ACTORS {
            if self.pid(who) != 0 {
                let _ = sc!(SYS_kill, self.pid(who), SIGKILL);
            }
        }
    }

    fn check(&self, whom: &[usize]) {
        for who in 0..ACTORS {
            let pid = self.pid(who);
            let is_gone = pid == 0 || "Z-".contains(state(pid));
            let expected = u32::from(whom.contains(&who));
            if !is_gone && expected == 1 {
                until(|| self.hangups[who].load(SeqCst) > 0);
                until(|| state(pid) != 'T');
            }
            let got = self.hangups[who].load(SeqCst);
            if !is_gone && got != expected {
                // They are in sessions of their own, where the runner does not look.
                self.end();
                panic!("{}: actor {who}: SIGHUP {got} times", self.case);
            }
        }
    }
}

/// The letter that /proc/PID/stat shows; `-` for a process that is gone.
fn state(pid: i32) -> char {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return '-' };
    let after = text.rsplit_once(") ").map_or("-", |(_, after)| after);
    after.chars().next().unwrap_or('-')
}

/// A name and a script. A has made a session of its own in all of them.
const CASES: &[(&str, &[Step])] = &[
    ("the parent exits", &[Fork(A, B), Setpgid(B, B, B), Stop(B), Exit(A), HungUp(&[B])]),
    ("the parent is killed", &[Fork(A, B), Setpgid(B, B, B), Stop(B), Kill(A), HungUp(&[B])]),
    (
        "every member hears it",
        &[Fork(A, B), Setpgid(B, B, B), Fork(B, C), Stop(C), Exit(A), HungUp(&[B, C])],
    ),
    ("nobody is stopped", &[Fork(A, B), Setpgid(B, B, B), Exit(A), HungUp(&[])]),
    (
        "the last linked member exits",
        &[Fork(A, B), Setpgid(B, B, B), Fork(B, C), Stop(C), Exit(B), HungUp(&[C])],
    ),
    (
        "a linked member exits and another stays",
        &[
            Fork(A, B),
            Setpgid(B, B, B),
            Fork(A, C),
            Setpgid(C, C, B),
            Stop(C),
            Exit(B),
            HungUp(&[]),
            Exit(A),
            HungUp(&[C]),
        ],
    ),
    (
        "a child exits beside a stopped sibling in the leader's group",
        &[Fork(A, B), Fork(A, C), Stop(C), Exit(B), HungUp(&[])],
    ),
    (
        "a child is killed beside a stopped sibling in the leader's group",
        &[Fork(A, B), Fork(A, C), Stop(C), Kill(B), HungUp(&[])],
    ),
    ("the leader of an orphaned group exits", &[Fork(A, B), Stop(B), Exit(A), HungUp(&[])]),
    (
        "a parent in the same group exits",
        &[Fork(A, B), Setpgid(B, B, B), Fork(B, C), Fork(C, D), Stop(D), Exit(C), HungUp(&[])],
    ),
    (
        "two parents, one after the other",
        &[
            Fork(A, B),
            Fork(A, C),
            Fork(B, D),
            Setpgid(D, D, D),
            Fork(C, E),
            Setpgid(E, E, D),
            Stop(E),
            Exit(B),
            HungUp(&[]),
            Exit(C),
            HungUp(&[D, E]),
        ],
    ),
    (
        "a parent in another session is no link",
        &[Fork(A, B), Setsid(B), Stop(B), Exit(A), HungUp(&[])],
    ),
    (
        "the child of a session's leader that another session made",
        &[
            Fork(A, B),
            Setsid(B),
            Fork(B, C),
            Setpgid(C, C, C),
            Stop(C),
            Exit(A),
            HungUp(&[]),
            Exit(B),
            HungUp(&[C]),
        ],
    ),
    (
        "a subreaper of the session in another group takes over",
        &[
            Subreaper(A),
            Fork(A, B),
            Fork(B, C),
            Setpgid(C, C, C),
            Stop(C),
            Exit(B),
            HungUp(&[]),
            Exit(A),
            HungUp(&[C]),
        ],
    ),
    (
        "a subreaper in the same group takes over",
        &[
            Subreaper(A),
            Fork(A, B),
            Fork(B, C),
            Setpgid(B, B, B),
            Stop(C),
            Exit(B),
            HungUp(&[A, C]),
        ],
    ),
    (
        "a subreaper of another session takes over",
        &[
            Subreaper(A),
            Fork(A, B),
            Setsid(B),
            Fork(B, C),
            Setpgid(C, C, C),
            Stop(C),
            Exit(B),
            HungUp(&[C]),
        ],
    ),
    (
        "setpgid takes the last link away",
        &[
            Fork(A, B),
            Fork(B, C),
            Exit(B),
            Fork(C, D),
            Setpgid(D, D, D),
            Stop(D),
            Setpgid(C, C, D),
            HungUp(&[]),
            Exit(C),
            HungUp(&[]),
            Exit(A),
            HungUp(&[]),
        ],
    ),
    (
        "setpgid makes a link, whose parent exits",
        &[Fork(A, B), Fork(B, C), Setpgid(B, B, B), Stop(C), Exit(B), HungUp(&[A, C])],
    ),
    (
        "the parent joins the group of its child",
        &[
            Fork(A, B),
            Fork(B, C),
            Setpgid(C, C, C),
            Setpgid(B, B, C),
            Stop(C),
            Exit(B),
            HungUp(&[C]),
        ],
    ),
    (
        "setsid takes the last link away",
        &[
            Fork(A, B),
            Fork(B, C),
            Setpgid(C, C, C),
            Setpgid(B, B, C),
            Stop(C),
            Setsid(B),
            HungUp(&[]),
            Exit(B),
            HungUp(&[]),
        ],
    ),
];

fn orphaned_groups() {
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    for (name, script) in CASES {
        let world = World::new(name);
        fork(|| {
            sc!(SYS_setsid).must();
            world.act(A)
        });
        until(|| world.pid(A) != 0);
        script.iter().for_each(|&step| world.step(step));
        world.end();
        while sc!(SYS_wait4, -1i32, 0, 0, 0).is_ok() {}
    }
}
