//! How a program runs: up to three actors that take turns, and a watcher outside.
//!
//! Turns make programs of several threads and processes deterministic: one actor makes its call
//! while the others wait on futexes, and after each call every other actor is asked once, so that
//! the signals it got have been handled before anything else is recorded. What an actor cannot tell
//! by itself (it waits for ever, it was stopped, it has died) the watcher sees from outside: it
//! interrupts a call that sleeps by a signal of its own, and ends programs that make no progress.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::observe;
use super::program::*;
use crate::sc;
use crate::sys::*;

/// Interrupts a call that sleeps; programs never use it.
pub const WATCHER_SIGNAL: i32 = 64;
/// How often the watcher looks, and how many looks without progress it bears.
const LOOK_NS: i64 = 2_000_000;
const LOOKS_BEFORE_SIGNAL: u32 = 3;
const LOOKS_BEFORE_REAP: u32 = 50;
const LOOKS_BEFORE_END: u32 = 5000;
/// How long a child is waited for that is within its last call.
const LAST_CALL_MS: u32 = 50;
const LOG_BYTES: usize = 256 << 10;
const EVENTS: usize = 32;
/// An actor is asked for nothing but an answer.
const PING: u32 = u32::MAX;
const LEAVE: u32 = u32::MAX - 1;
const THREAD_STACK: usize = 256 << 10;
const UNPRIVILEGED: u32 = 1000;

/// Largest file of a program.
const FILE_MAX: u64 = 16 << 20;
/// Limits that programs start with, whatever the host's hard limits are. That of files keeps those
/// that are nowhere but in memory (memfd_create(2), fallocate(2)) from taking all of the host's.
const LIMITS: [(u32, [u64; 2]); 6] = [
    (RLIMIT_FSIZE, [FILE_MAX, FILE_MAX]),
    (RLIMIT_NPROC, [4000, 4000]),
    (RLIMIT_NOFILE, [1024, 4096]),
    (RLIMIT_SIGPENDING, [100, 100]),
    (RLIMIT_MEMLOCK, [64 << 10, 64 << 10]),
    (RLIMIT_MSGQUEUE, [8192, 8192]),
];

/// A signal that a handler got.
#[derive(Default)]
pub struct Event {
    pub words: [AtomicI32; 6],
}

/// What the processes of a program and the watcher share.
pub struct Shared {
    /// Counts calls begun and ended.
    progress: AtomicU32,
    /// The actor whose call runs.
    running: AtomicU32,
    pub tids: [AtomicI32; 3],
    turn: [AtomicU32; 3],
    what: [AtomicU32; 3],
    done: [AtomicU32; 3],
    gone: [AtomicU32; 3],
    stopped: [AtomicU32; 3],
    /// Cleared by the kernel when the thread ends.
    thread_id: AtomicU32,
    event_count: [AtomicU32; 3],
    events: [[Event; EVENTS]; 3],
    pub slots: [AtomicI64; SLOTS],
    /// Inode numbers, device numbers and the like in the order of their first sight.
    pub seen: [AtomicU64; 256],
    log_bytes: AtomicU32,
    log: [std::cell::UnsafeCell<u8>; LOG_BYTES],
}

/// Where programs run: the runner's own process, settled.
pub struct Place {
    pub shared: &'static Shared,
    null: i32,
}

/// Appends to the record.
pub struct Log<'a>(pub &'a Shared);

impl fmt::Write for Log<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let at = self.0.log_bytes.load(SeqCst) as usize;
        let bytes = text.as_bytes();
        let bytes = &bytes[..bytes.len().min(LOG_BYTES - at)];
        // SAFETY: in bounds, and whoever has the turn is the only one that writes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.log[at].get(), bytes.len());
        }
        self.0.log_bytes.store((at + bytes.len()).min(LOG_BYTES - 1) as u32, SeqCst);
        Ok(())
    }
}

impl Place {
    /// Makes a world that is the same everywhere: where this is not a machine of its own, name
    /// spaces of its own, so that no mount, port or queue is anybody else's.
    pub fn settle() -> Self {
        crate::settle::settle();
        let mut spaces = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
        if sc!(SYS_unshare, spaces).is_err() {
            spaces = 0;
        }
        assert!(spaces != 0 || pid() < 100, "no name spaces: a machine of its own is needed");
        if spaces != 0 {
            let _ = sc!(SYS_mount, c"none".as_ptr(), c"/".as_ptr(), 0, MS_REC | MS_PRIVATE, 0);
            loopback_up();
        }
        jail();
        let bytes = std::mem::size_of::<Shared>();
        let flags = MAP_SHARED | MAP_ANONYMOUS;
        let at = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0).must();
        // SAFETY: fresh zeroed memory of this size, of atomics, that is never unmapped.
        let shared = unsafe { &*(at as *const Shared) };
        let _ = sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        sigmask(SIG_BLOCK, bit(SIGCHLD));
        observe::clean();
        let null = open("/dev/null", O_RDWR | O_CLOEXEC).fd();
        Place { shared, null }
    }
}

/// A root of its own, in memory: programs have all rights and take any path.
fn jail() {
    let (kind, root) = (c"tmpfs".as_ptr(), c"/tmp".as_ptr());
    sc!(SYS_mount, kind, root, kind, 0, c"mode=755,size=64m".as_ptr()).is(0);
    for name in [c"/tmp/dev", c"/tmp/proc", c"/tmp/tmp"] {
        sc!(SYS_mkdir, name.as_ptr(), 0o755).is(0);
    }
    let proc = c"proc".as_ptr();
    sc!(SYS_mount, proc, c"/tmp/proc".as_ptr(), proc, 0, 0).is(0);
    sc!(SYS_chdir, root).is(0);
    sc!(SYS_chroot, root).is(0);
    sc!(SYS_chdir, c"/".as_ptr()).is(0);
}

fn loopback_up() {
    let socket = sc!(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0).fd();
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16..18].copy_from_slice(&(IFF_UP as u16).to_ne_bytes());
    sc!(SYS_ioctl, socket, SIOCSIFFLAGS, request.as_ptr()).is(0);
    close(socket);
}

/// Runs a program in a process of its own; the record.
pub fn run(place: &Place, program: &Program) -> String {
    let shared = place.shared;
    observe::tree_of_root();
    shared.reset();
    let first = fork(|| {
        prepare(place, program);
        let actors = Actors { shared, program, me: Actor::Main };
        actors.coordinate();
        observe::end(shared);
        0
    });
    let status = shared.watch(first);
    let _ = writeln!(Log(shared), "status {}", describe(status));
    let child = shared.tids[2].load(SeqCst);
    if child > 0 {
        let _ = sc!(SYS_kill, child, SIGKILL);
    }
    while sc!(SYS_wait4, -1i32, 0, __WALL, 0).is_ok() {}
    let _ = sc!(SYS_chdir, c"/".as_ptr());
    observe::clean();
    let _ = sc!(SYS_rt_sigtimedwait, &raw const SIGCHLD_SET, 0, [0u64, 0].as_ptr(), 8);
    let bytes = shared.log_bytes.load(SeqCst) as usize;
    // SAFETY: in bounds, and everybody who wrote has ended.
    let log = unsafe { std::slice::from_raw_parts(shared.log.as_ptr().cast::<u8>(), bytes) };
    String::from_utf8_lossy(log).into_owned()
}

static SIGCHLD_SET: u64 = 1 << (SIGCHLD - 1);

/// Without CAP_SYS_RESOURCE, which containers do not give their root.
fn drop_resource() {
    let _ = sc!(SYS_prctl, PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
    let (header, mut data) = ([CAP_VERSION_3, 0u32], [0u32; 6]);
    let _ = sc!(SYS_capget, header.as_ptr(), data.as_mut_ptr());
    data[0] &= !(1 << CAP_SYS_RESOURCE);
    data[1] &= !(1 << CAP_SYS_RESOURCE);
    let _ = sc!(SYS_capset, header.as_ptr(), data.as_ptr());
}

const CAP_SYS_RESOURCE: u32 = 24;
const CAP_VERSION_3: u32 = 0x2008_0522;

/// Where a Linux lets programs change event counters and their like, those are one object that
/// keeps what an earlier program has set.
fn forget_anonymous() {
    let fd = sc!(SYS_eventfd2, 0, 0).fd();
    let _ = sc!(SYS_fchmod, fd, 0o600);
    let _ = sc!(SYS_fchown, fd, 0, 0);
    close(fd);
}

/// The program's process before its first call.
fn prepare(place: &Place, program: &Program) {
    place.shared.tids[0].store(pid(), SeqCst);
    let _ = sc!(SYS_setsid);
    for fd in 0..3 {
        let _ = sc!(SYS_dup2, place.null, fd);
    }
    let _ = sc!(SYS_close_range, 3, u32::MAX, 0);
    forget_anonymous();
    for sig in (1..=64).filter(|sig| ![SIGKILL, SIGSTOP].contains(sig)) {
        // Of one that goes beyond its limit there is more to be seen than its end.
        if [SIGPIPE, SIGXFSZ].contains(&sig) {
            on_signal(sig, SIG_IGN, 0, 0);
        } else if sig == WATCHER_SIGNAL {
            on_signal(sig, watcher_handler(), 0, 0);
        }
    }
    on_signal(SIGSEGV, fault_handler(), SA_SIGINFO, 0);
    on_signal(SIGBUS, fault_handler(), SA_SIGINFO, 0);
    // Hard limits are the host's own otherwise.
    for (which, [soft, hard]) in LIMITS {
        let _ = sc!(SYS_setrlimit, which, [soft, hard].as_ptr());
    }
    drop_resource();
    let _ = sc!(SYS_sigaltstack, [0usize, SS_DISABLE as usize, 0].as_ptr(), 0);
    SHARED.store(std::ptr::from_ref(place.shared) as usize, SeqCst);
    sigmask(SIG_SETMASK, 0);
    if program.is_user {
        let _ = sc!(SYS_setgroups, 0, 0);
        sc!(SYS_setresgid, UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED).is(0);
        sc!(SYS_setresuid, UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED).is(0);
        let _ = sc!(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0);
    }
    observe::tree();
    let (both, fixed) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED);
    mmap(INPUT, INPUT_BYTES, both, fixed, -1, 0).is(INPUT);
    mmap(OUTPUT, OUTPUT_BYTES, both, fixed, -1, 0).is(OUTPUT);
    mmap(READ_ONLY, PAGE, PROT_READ, fixed, -1, 0).is(READ_ONLY);
}

impl Shared {
    fn reset(&self) {
        self.tids.iter().for_each(|word| word.store(0, SeqCst));
        for words in
            [&self.turn, &self.what, &self.done, &self.gone, &self.stopped, &self.event_count]
        {
            words.iter().for_each(|word| word.store(0, SeqCst));
        }
        self.progress.store(0, SeqCst);
        self.running.store(0, SeqCst);
        self.thread_id.store(0, SeqCst);
        self.slots.iter().for_each(|slot| slot.store(-1, SeqCst));
        self.seen.iter().for_each(|seen| seen.store(0, SeqCst));
        self.log_bytes.store(0, SeqCst);
    }

    /// A number for something that has another on each kernel, in the order of first sight.
    pub fn intern(&self, value: u64) -> u64 {
        if value == 0 {
            return 0;
        }
        for (number, seen) in self.seen.iter().enumerate() {
            match seen.load(SeqCst) {
                0 => seen.store(value, SeqCst),
                old if old != value => continue,
                _ => {}
            }
            return number as u64 + 1;
        }
        0
    }

    /// An actor's letter for its process or thread id.
    pub fn letter(&self, id: i64) -> String {
        let names = ["M", "T", "C"];
        if id <= 0 {
            return id.to_string();
        }
        for (tid, name) in self.tids.iter().zip(names) {
            match tid.load(SeqCst) {
                tid if i64::from(tid) == id => return name.to_owned(),
                tid if i64::from(tid) == -id => return format!("-{name}"),
                _ => {}
            }
        }
        "other".to_owned()
    }

    /// Waits for the program's end and helps where it cannot go on; the wait status.
    fn watch(&self, first: i32) -> i32 {
        let (mut last, mut idle, mut status) = (0, 0, 0);
        let a_while = [0, LOOK_NS];
        loop {
            let _ = sc!(SYS_rt_sigtimedwait, &raw const SIGCHLD_SET, 0, a_while.as_ptr(), 8);
            if sc!(SYS_wait4, first, &raw mut status, WNOHANG, 0) != Ok(0) {
                self.let_child_finish();
                return status;
            }
            let progress = self.progress.load(SeqCst);
            idle = if progress == last { idle + 1 } else { 0 };
            last = progress;
            if idle > 0 {
                self.help(first, idle);
            }
        }
    }

    /// The call by which a child ended the program may not have returned yet: what it answers is
    /// recorded on one kernel and not on the other, unless it is given a moment.
    fn let_child_finish(&self) {
        let at = Actor::Child as usize;
        for _ in 0..LAST_CALL_MS {
            let child = self.tids[at].load(SeqCst);
            let is_done = self.done[at].load(SeqCst) == self.turn[at].load(SeqCst);
            if child <= 0 || is_done || !matches!(state(child, child), 'R' | 'S' | 'D') {
                return;
            }
            nap(1);
        }
    }

    fn help(&self, first: i32, idle: u32) {
        let child = self.tids[2].load(SeqCst);
        if child > 0 {
            match state(child, child) {
                'Z' | 'X' | '?' => self.gone[2].store(1, SeqCst),
                'T' | 't' => self.stopped[2].store(1, SeqCst),
                _ => {}
            }
        }
        for word in &self.done {
            let _ = sc!(SYS_futex, word.as_ptr(), FUTEX_WAKE, 1, 0, 0, 0);
        }
        let actor = self.running.load(SeqCst) as usize % 3;
        let tid = self.tids[actor].load(SeqCst);
        let group = if actor == 2 { tid } else { first };
        if idle >= LOOKS_BEFORE_SIGNAL && tid > 0 {
            match state(group, tid) {
                'S' | 'D' => drop(sc!(SYS_tgkill, group, tid, WATCHER_SIGNAL)),
                'T' | 't' => drop(sc!(SYS_kill, group, SIGCONT)),
                _ => {}
            }
        }
        // The child traces it, and a zombie is its tracer's first: who waits for a turn that nobody
        // gives any more has to go.
        if idle >= LOOKS_BEFORE_REAP && child > 0 && state(first, first) == 'Z' {
            let _ = sc!(SYS_kill, child, SIGKILL);
        }
        if idle == LOOKS_BEFORE_END {
            let _ = writeln!(Log(self), "no progress");
            let _ = sc!(SYS_kill, first, SIGKILL);
        }
    }
}

/// The state letter of a thread (proc_pid_stat(5)).
fn state(group: i32, tid: i32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{group}/task/{tid}/stat"));
    let text = text.unwrap_or_default();
    let rest = text.rsplit_once(") ").map_or("?", |(_, rest)| rest);
    rest.chars().next().unwrap_or('?')
}

/// The actors' side.
struct Actors<'a> {
    shared: &'a Shared,
    program: &'a Program,
    me: Actor,
}

impl Actors<'_> {
    /// The main thread: makes its own calls and gives the others their turns.
    fn coordinate(&self) {
        for (number, call) in self.program.calls.iter().enumerate() {
            let made = match call.actor {
                Actor::Main => self.make(number, call),
                Actor::Thread => {
                    self.have_thread();
                    self.order(Actor::Thread, number as u32)
                }
                Actor::Child => self.order(Actor::Child, number as u32),
            };
            if !made {
                let _ = writeln!(Log(self.shared), "{number} nobody there");
                continue;
            }
            if call.special == Special::Exit {
                self.bury(call.actor);
            }
            for other in [Actor::Thread, Actor::Child] {
                if other != call.actor && self.shared.tids[other as usize].load(SeqCst) > 0 {
                    self.order(other, PING);
                }
            }
            let _ = sc!(SYS_getpid);
            self.tell_events();
        }
        self.order(Actor::Thread, LEAVE);
        self.bury(Actor::Thread);
    }

    /// Gives an actor its turn and waits until it is over; false if it cannot take it.
    fn order(&self, actor: Actor, what: u32) -> bool {
        let (shared, at) = (self.shared, actor as usize);
        if shared.tids[at].load(SeqCst) <= 0 || shared.gone[at].load(SeqCst) != 0 {
            return false;
        }
        if what == PING {
            shared.stopped[at].store(0, SeqCst);
        } else if shared.stopped[at].load(SeqCst) != 0 {
            return false;
        }
        shared.what[at].store(what, SeqCst);
        let turn = shared.turn[at].fetch_add(1, SeqCst) + 1;
        wake(&shared.turn[at]);
        // One that exits gives no answer.
        let exits =
            self.program.calls.get(what as usize).is_some_and(|c| c.special == Special::Exit);
        if exits || what == LEAVE {
            return true;
        }
        loop {
            let done = shared.done[at].load(SeqCst);
            if done == turn {
                break;
            }
            if shared.gone[at].load(SeqCst) != 0 || shared.stopped[at].load(SeqCst) != 0 {
                return what == PING;
            }
            let _ = sc!(SYS_futex, shared.done[at].as_ptr(), FUTEX_WAIT, done, 0, 0, 0);
        }
        true
    }

    /// Waits until an actor that exits is gone for everybody.
    fn bury(&self, actor: Actor) {
        let (shared, at) = (self.shared, actor as usize);
        let tid = shared.tids[at].load(SeqCst);
        if actor == Actor::Main || tid <= 0 || shared.gone[at].load(SeqCst) != 0 {
            return;
        }
        if actor == Actor::Child {
            let how = WEXITED | WNOWAIT | __WALL;
            while sc!(SYS_waitid, P_PID, tid, 0, how, 0) == Err(EINTR) {}
        } else {
            while sc!(SYS_tgkill, pid(), tid, 0) == Ok(0) {
                let _ = sc!(SYS_sched_yield);
            }
        }
        shared.gone[at].store(1, SeqCst);
    }

    fn have_thread(&self) {
        if self.shared.tids[1].load(SeqCst) != 0 {
            return;
        }
        let (both, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        let stack = mmap(0, THREAD_STACK, both, flags, -1, 0).must();
        let actors = Box::leak(Box::new(Actors {
            // SAFETY: shared memory outlives the process.
            shared: unsafe { &*std::ptr::from_ref(self.shared) },
            // SAFETY: the thread ends before the program is dropped (coordinate, then exit).
            program: unsafe { &*std::ptr::from_ref(self.program) },
            me: Actor::Thread,
        }));
        let flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
        let flags = flags | CLONE_SYSVSEM | CLONE_PARENT_SETTID;
        let tid_at = self.shared.tids[1].as_ptr();
        // SAFETY: a stack of its own; the memory of thread-local data is shared with the main
        // thread, which waits while this one runs.
        let tid = unsafe {
            clone(
                thread_main,
                (stack + THREAD_STACK) as *mut c_void,
                flags,
                std::ptr::from_ref(actors) as *mut c_void,
                tid_at,
            )
        };
        assert!(tid > 0, "clone");
    }

    /// Takes turns until told to leave.
    fn serve(&self) {
        let (shared, at) = (self.shared, self.me as usize);
        let mut last = 0;
        loop {
            let turn = shared.turn[at].load(SeqCst);
            if turn == last {
                let _ = sc!(SYS_futex, shared.turn[at].as_ptr(), FUTEX_WAIT, turn, 0, 0, 0);
                continue;
            }
            last = turn;
            match shared.what[at].load(SeqCst) {
                PING => {}
                LEAVE => return,
                number => {
                    self.make(number as usize, &self.program.calls[number as usize]);
                }
            }
            shared.done[at].store(turn, SeqCst);
            wake(&shared.done[at]);
        }
    }

    /// Makes a call and records it.
    fn make(&self, number: usize, call: &Call) -> bool {
        let shared = self.shared;
        shared.running.store(self.me as u32, SeqCst);
        shared.progress.fetch_add(1, SeqCst);
        observe::lay_out(shared, call);
        let mut args: Vec<usize> =
            call.args.iter().map(|arg| observe::value(shared, *arg)).collect();
        bound_slack(call, &mut args);
        let result = match call.special {
            Special::No => crate::sys::call(call.nr as usize, &args),
            Special::Fork(flags) => self.fork(flags),
            Special::Exit => {
                let _ = writeln!(Log(shared), "{number} exits");
                shared.progress.fetch_add(1, SeqCst);
                let _ = crate::sys::call(call.nr as usize, &args);
                Ok(0)
            }
            Special::Load | Special::Store => touch(args[0], call.special == Special::Store),
        };
        hide_unsent(call, &args);
        hide_packet_numbers(call, &args, result);
        drop_what_is_free(call, &args, result);
        let _ = write!(Log(shared), "{number} ");
        observe::record(shared, call, &args, result);
        if call.nr == SYS_vmsplice as u32 {
            renew_input();
        }
        shared.progress.fetch_add(1, SeqCst);
        true
    }

    fn fork(&self, flags: u64) -> Res {
        if self.me != Actor::Main || self.shared.tids[2].load(SeqCst) != 0 {
            return Err(EBUSY);
        }
        let made = sc!(SYS_clone, flags, 0, 0, 0, 0);
        if made == Ok(0) {
            self.shared.tids[2].store(tid(), SeqCst);
            Actors { shared: self.shared, program: self.program, me: Actor::Child }.serve();
            quit(0);
        }
        if let Ok(child) = made {
            self.shared.tids[2].store(child as i32, SeqCst);
        }
        made
    }

    /// Records the signals that have been handled since.
    fn tell_events(&self) {
        for (actor, name) in ["M", "T", "C"].iter().enumerate() {
            let count = self.shared.event_count[actor].swap(0, SeqCst) as usize;
            for event in &self.shared.events[actor][..count.min(EVENTS)] {
                let word = |at: usize| event.words[at].load(SeqCst);
                let (signal, code) = (word(0), word(1));
                let id = if code == SI_TIMER {
                    "timer".into()
                } else {
                    self.shared.letter(word(2).into())
                };
                let _ = writeln!(
                    Log(self.shared),
                    "  {name} got {signal} code {code} id {id} {} {} mask {:#x}",
                    if code == SI_TIMER { 0 } else { word(3) },
                    word(4),
                    word(5)
                );
            }
        }
    }
}

extern "C" fn thread_main(actors: *mut c_void) -> c_int {
    // SAFETY: a leaked box (have_thread).
    let actors = unsafe { &*(actors as *const Actors<'_>) };
    actors.serve();
    let _ = sc!(SYS_exit, 0);
    0
}

fn wake(word: &AtomicU32) {
    let _ = sc!(SYS_futex, word.as_ptr(), FUTEX_WAKE, i32::MAX, 0, 0, 0);
}

/// Where the handlers find what is shared.
static SHARED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn on_watcher(_: i32) {}

fn watcher_handler() -> usize {
    on_watcher as *const () as usize
}

fn fault_handler() -> usize {
    on_fault as *const () as usize
}

/// The handler that programs install.
pub fn handler() -> usize {
    on_event as *const () as usize
}

extern "C" fn on_event(signal: i32, info: &Siginfo, context: &ucontext_t) {
    // SAFETY: set before any program has a handler, and never unmapped.
    let shared = unsafe { &*(SHARED.load(SeqCst) as *const Shared) };
    let me = tid();
    let Some(actor) = shared.tids.iter().position(|tid| tid.load(SeqCst) == me) else { return };
    let at = shared.event_count[actor].fetch_add(1, SeqCst) as usize;
    if at >= EVENTS {
        return;
    }
    let masked = std::ptr::from_ref(&context.uc_sigmask).cast::<u64>();
    // SAFETY: the mask in a signal frame has at least 8 bytes.
    let mask = unsafe { masked.read() } as i32;
    let words = [signal, info.code, info.pid, info.uid as i32, info.status, mask];
    for (word, value) in shared.events[actor][at].words.iter().zip(words) {
        word.store(value, SeqCst);
    }
}

static FAULT: AtomicI64 = AtomicI64::new(0);

/// A fault at a load or store of a program: goes on behind it.
extern "C" fn on_fault(signal: i32, info: &Siginfo, context: &mut ucontext_t) {
    let resume = RESUME.load(SeqCst);
    if resume == 0 {
        quit(99);
    }
    FAULT.store(i64::from(signal) << 8 | i64::from(info.code & 0xff), SeqCst);
    context.uc_mcontext.gregs[REG_RIP as usize] = resume as i64;
}

static RESUME: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Timers of a thread with a slack of centuries expire when another one happens to.
fn bound_slack(call: &Call, args: &mut [usize]) {
    const SLACK_MAX_NS: usize = 1_000_000;
    let is_prctl = call.nr as usize == SYS_prctl as usize;
    let is_slack = is_prctl && args[0] == PR_SET_TIMERSLACK as usize;
    if is_slack && args[1] > SLACK_MAX_NS {
        args[1] = SLACK_MAX_NS;
    }
}

/// What of a connection that is no more counts as unsent is nobody's promise.
fn hide_unsent(call: &Call, args: &[usize]) {
    const TIOCOUTQ: usize = 0x5411;
    if call.nr as usize != SYS_ioctl as usize || args[1] != TIOCOUTQ {
        return;
    }
    if socket_option(args[0], SO_PROTOCOL) == Some(IPPROTO_TCP) {
        observe::blank();
    }
}

fn socket_option(socket: usize, option: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, 4u32);
    let (at, len_at) = (&raw mut value, &raw mut len);
    sc!(SYS_getsockopt, socket, SOL_SOCKET, option, at, len_at).ok().map(|_| value)
}

/// Packets of IPv4 have random numbers, which the checksums of their headers cover.
fn hide_packet_numbers(call: &Call, args: &[usize], result: Res) {
    const NUMBER: std::ops::Range<usize> = 4..6;
    const CHECKSUM: std::ops::Range<usize> = 10..12;
    let Ok(len) = result else { return };
    let is_raw = || {
        socket_option(args[0], SO_TYPE) == Some(SOCK_RAW)
            && socket_option(args[0], SO_DOMAIN) == Some(AF_INET)
    };
    let is = |nr: i64| i64::from(call.nr) == nr;
    let receives = [SYS_read, SYS_recvfrom, SYS_readv, SYS_recvmsg].into_iter().any(is);
    if !receives || !is_raw() {
        return;
    }
    let parts = if is(SYS_readv) {
        parts(args[1], args[2])
    } else if is(SYS_recvmsg) {
        parts(word(args[1] + 16), word(args[1] + 24))
    } else {
        vec![[args[1], args[2]]]
    };
    let places = parts.iter().flat_map(|&[base, len]| base..base.saturating_add(len));
    for (at, place) in places.take(len.min(CHECKSUM.end)).enumerate() {
        if NUMBER.contains(&at) || CHECKSUM.contains(&at) {
            // SAFETY: the call has just written there, and only this actor has the turn.
            unsafe { (place as *mut u8).write(0) };
        }
    }
}

/// What becomes of pages that may be freed any time is nobody's promise (madvise(2), MADV_FREE):
/// they go at once.
fn drop_what_is_free(call: &Call, args: &[usize], result: Res) {
    let is_free = call.nr as usize == SYS_madvise as usize && args[2] == MADV_FREE as usize;
    if is_free && matches!(result, Ok(_) | Err(ENOMEM)) {
        let _ = sc!(SYS_madvise, args[0], args[1], MADV_DONTNEED);
    }
}

/// A vector of places and lengths that a call has just taken.
fn parts(at: usize, count: usize) -> Vec<[usize; 2]> {
    (0..count).map(|number| [word(at + 16 * number), word(at + 16 * number + 8)]).collect()
}

fn word(at: usize) -> usize {
    // SAFETY: the kernel has just read it there; it may lie anywhere.
    unsafe { (at as *const usize).read_unaligned() }
}

/// Puts other memory with the same bytes where calls read: what is in a pipe by vmsplice(2) is the
/// program's memory itself on Linux, and what later calls find there is not the pipe's matter.
fn renew_input() {
    let mut bytes = [0u8; INPUT_BYTES];
    // SAFETY: both are mapped for as long as the process lives, and do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(INPUT as *const u8, bytes.as_mut_ptr(), INPUT_BYTES);
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        mmap(INPUT, INPUT_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0).is(INPUT);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), INPUT as *mut u8, INPUT_BYTES);
    }
}

/// One load or store: the byte, or signal and code of the fault as an error.
fn touch(at: usize, is_store: bool) -> Res {
    FAULT.store(0, SeqCst);
    let mut value: u8 = b'S';
    // SAFETY: the address is the program's own; a fault goes on at the label.
    unsafe {
        std::arch::asm!(
            "lea {scratch}, [rip + 2f]",
            "mov [{resume}], {scratch}",
            "test {store}, {store}",
            "jnz 3f",
            "mov {value}, byte ptr [{at}]",
            "jmp 2f",
            "3:", "mov byte ptr [{at}], {value}",
            "2:", "mov qword ptr [{resume}], 0",
            scratch = out(reg) _, resume = in(reg) RESUME.as_ptr(),
            store = in(reg) usize::from(is_store),
            value = inout(reg_byte) value, at = in(reg) at,
        );
    }
    match FAULT.load(SeqCst) {
        0 => Ok(usize::from(value)),
        fault => Err(fault as i32),
    }
}
