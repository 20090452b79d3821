//! What a process is and does: stat, status, statm and their kin (proc(5)).

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::{Result, general as raw};
use entry::shadow_stack::feature;

use super::process_dir::{Scope, Subject, thread_count};
use super::system::{KB_PER_PAGE, NS_PER_TICK};
use machine::memory::{PageKind, Prot};

use crate::base::sched::{RunState, SchedEntity, Sleep};
use crate::base::user::PATH_MAX;
use crate::fs::pseudo::{Content, Text};
use crate::mm::{Backing, Mm, PAGE, Vma};
use crate::process::ExitState;
use crate::process::Program;
use crate::process::ptrace::access::{Ids, may_access};
use crate::process::{Process, Thread};
use crate::security::{Resource, UNLIMITED};
use crate::timers::posix;

/// Most bytes of arguments or environment shown.
const STRINGS_MAX: u64 = 2 << 20;

/// Sizes of an address space in pages.
#[derive(Default)]
struct Sizes {
    total: u64,
    /// Resident pages by kind.
    anonymous: u64,
    file: u64,
    shmem: u64,
    /// Pages in huge ones of the pool, which count for nothing else.
    hugetlb: u64,
    text: u64,
    data: u64,
    stack: u64,
    library: u64,
    locked: u64,
    /// What the page tables take.
    tables: u64,
    peak_resident: u64,
    /// Start and end of the program's own code; of its data.
    code: (u64, u64),
    brk_start: u64,
    stack_top: u64,
}

fn sizes(subject: &Subject) -> Sizes {
    let Some(mm) = subject.mm() else { return Sizes::default() };
    let mut sizes = Sizes::default();
    mm.with(|inner| {
        let sums = inner.vmas.sums();
        (sizes.total, sizes.locked) = (sums.total, sums.locked);
        (sizes.data, sizes.stack) = (sums.data, sums.stack);
        // The program itself comes first; what else is executable is a library's.
        let is_code = |(_, vma): &(&u64, &Vma)| {
            vma.prot.contains(Prot::EXEC) && matches!(vma.backing, Backing::File { .. })
        };
        if let Some((&start, vma)) = inner.vmas.iter().find(is_code) {
            sizes.code = (start, vma.end);
            sizes.text = (vma.end - start) / PAGE;
        }
        sizes.library = sums.code - sizes.text;
        sizes.tables = inner.table.tables();
        sizes.anonymous = inner.table.mapped(PageKind::Anonymous);
        sizes.file = inner.table.mapped(PageKind::File);
        sizes.shmem = inner.table.mapped(PageKind::Shmem);
        sizes.hugetlb = inner.table.mapped(PageKind::Hugetlb);
        sizes.brk_start = inner.layout.brk_start;
        sizes.stack_top = inner.layout.stack_top;
    });
    sizes.peak_resident = mm.peak_pages();
    sizes
}

impl Sizes {
    fn resident(&self) -> u64 {
        self.anonymous + self.file + self.shmem
    }
}

/// The state letter, and its word.
fn state(subject: &Subject, thread: Option<&Thread>) -> (char, &'static str) {
    if subject.process.relations.lock().exit_state != ExitState::Alive {
        return ('Z', "zombie");
    }
    let Some(thread) = thread else { return ('Z', "zombie") };
    if thread.trace.is_stopped() {
        return ('t', "tracing stop");
    }
    let run_state = thread.base.sched.lock().state;
    match run_state {
        RunState::Running(_) | RunState::Queued(_) => ('R', "running"),
        RunState::Dead => ('X', "dead"),
        RunState::Sleeping(_) if subject.process.signals.lock().stop.is_some() => ('T', "stopped"),
        RunState::Sleeping(Sleep::Interruptible) => ('S', "sleeping"),
        RunState::Sleeping(_) => ('D', "disk sleep"),
    }
}

/// The controlling terminal's device number and its foreground group; 0 and -1 without one.
fn terminal(process: &Process) -> (u64, i64) {
    let session = process.session.load(Ordering::Relaxed);
    match crate::tty::job::controlling(session) {
        Some(tty) => (tty.device(), i64::from(tty.foreground())),
        None => (0, -1),
    }
}

fn name_of(subject: &Subject, thread: Option<&Thread>) -> Vec<u8> {
    let name = match thread {
        Some(thread) => *thread.name.lock(),
        None => *subject.process.past_name.lock(),
    };
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    name[..len].to_vec()
}

pub(super) fn comm(subject: &Subject, out: &mut Text) -> Result<()> {
    out.bytes(&name_of(subject, subject.thread().as_deref()));
    out.bytes(b"\n");
    Ok(())
}

/// The thread whose part alone is shown; of one that has ended that is its process's.
fn of_thread(subject: &Subject) -> Option<Arc<Thread>> {
    subject.thread().filter(|_| subject.scope == Scope::Thread)
}

/// User and kernel time in ticks, of the thread or of the whole process.
fn ticks(subject: &Subject) -> [u64; 2] {
    let times = match of_thread(subject) {
        Some(thread) => <[u64; 2]>::from(thread.times_ns()),
        None => subject.process.times_ns(),
    };
    times.map(|ns| ns / NS_PER_TICK)
}

pub(super) fn stat(subject: &Subject, out: &mut Text) -> Result<()> {
    let process = &subject.process;
    let thread = subject.thread();
    let thread = thread.as_deref();
    let sizes = sizes(subject);
    let is_first = subject.id() == process.pid;
    out.decimal(subject.id().into(), 0);
    out.bytes(b" (");
    out.bytes(&name_of(subject, thread));
    let (group, session) = (process.group(), process.session.load(Ordering::Relaxed));
    let (terminal, foreground) = terminal(process);
    out.bytes(b") ");
    let (state, _) = state(subject, thread);
    out.bytes(&[state as u8]);
    out.decimals(&[process.parent_pid().into(), group.into(), session.into(), terminal]);
    signed(out, foreground);
    put_flags_and_times(subject, is_first, out);
    let of = |entity: &SchedEntity| (entity.nice, entity.policy, entity.priority, entity.last_cpu);
    let (nice, policy, priority, cpu) = match thread {
        Some(thread) => of(&thread.base.sched.lock()),
        None => of(&SchedEntity::of_ended(*process.past_scheduling.lock())),
    };
    // Real-time priorities count downwards from -2, nice values around 20.
    let shown = if priority > 0 { -1 - priority } else { 20 + nice };
    let threads = thread_count(process);
    signed(out, shown.into());
    signed(out, nice.into());
    // Whoever becomes the first one takes over when the process began (execve(2)).
    let start_ns = thread.filter(|_| !is_first).map_or(process.start_ns, |own| own.start_ns);
    out.decimals(&[threads as u64, 0, start_ns / NS_PER_TICK]);
    let limit = process.limit(Resource::ResidentSet);
    out.decimals(&[sizes.total * PAGE, sizes.resident(), limit]);
    // Where things are is for those who may look into the process.
    let may_inspect = may_access(process, Ids::File);
    if may_inspect {
        out.decimals(&[sizes.code.0, sizes.code.1, sizes.stack_top, 0, 0]);
    } else {
        let has_memory = u64::from(subject.mm().is_some());
        out.decimals(&[has_memory, has_memory, 0, 0, 0]);
    }
    let signals = Signals::of(subject, thread);
    // Only the first 31 signals have a place here; status has them all.
    let low = |set: u64| set & 0x7fff_ffff;
    let (pending, blocked) = (low(signals.thread_pending), low(signals.blocked));
    let tells_waiting = may_inspect && (subject.scope == Scope::Thread || threads < 2);
    let waits = u64::from(tells_waiting && !matches!(state, 'R'));
    out.decimals(&[pending, blocked, low(signals.ignored), low(signals.caught), waits, 0, 0]);
    // The others' end tells nobody.
    let exit_signal = process.exit_signal.load(Ordering::Relaxed);
    signed(out, if is_first { exit_signal.into() } else { -1 });
    out.decimals(&[cpu as u64, priority.max(0) as u64, policy.into(), 0, 0, 0]);
    match may_inspect {
        true => put_places(subject, &sizes, out),
        false => out.bytes(b" 0 0 0 0 0 0 0 0\n"),
    }
    Ok(())
}

/// Flags, faults of the process and its children, and their times.
fn put_flags_and_times(subject: &Subject, is_first: bool, out: &mut Text) {
    let process = &subject.process;
    let faults = process.mm().map_or((0, 0), |mm| {
        (mm.faults.0.load(Ordering::Relaxed), mm.faults.1.load(Ordering::Relaxed))
    });
    let [user, system] = ticks(subject);
    let [child_user, child_system] = process.children_times_ns().map(|ns| ns / NS_PER_TICK);
    out.decimals(&[
        flags(process, is_first),
        faults.0,
        0,
        faults.1,
        0,
        user,
        system,
        child_user,
        child_system,
    ]);
}

/// Where data, arguments and environment of the program are, and how it has ended.
fn put_places(subject: &Subject, sizes: &Sizes, out: &mut Text) {
    let program = subject.mm().map(|_| subject.process.program.lock().clone());
    let none = ((0, 0), (0, 0));
    let (arguments, environment) =
        program.map_or(none, |program| (program.arguments, program.environment));
    out.decimals(&[sizes.code.1, sizes.brk_start, sizes.brk_start]);
    out.decimals(&[arguments.0, arguments.1, environment.0, environment.1]);
    signed(out, subject.process.exit_status.load(Ordering::Relaxed).into());
    out.bytes(b"\n");
}

/// Flags of Linux's kernel that a program could know (proc_pid_stat(5)): its addresses are random,
/// and it was made and has not executed anything since.
fn flags(process: &Process, is_first: bool) -> u64 {
    const RANDOM_ADDRESSES: u64 = 0x40_0000;
    const FORKED: u64 = 0x40;
    let has_executed = is_first && process.settings.has_executed.load(Ordering::Relaxed);
    RANDOM_ADDRESSES | if has_executed { 0 } else { FORKED }
}

/// A blank and a number that may be negative.
fn signed(out: &mut Text, value: i64) {
    out.bytes(if value < 0 { b" -" } else { b" " });
    out.decimal(value.unsigned_abs(), 0);
}

/// The children that the thread made, in the order it made them.
pub(super) fn children(subject: &Subject, out: &mut Text) -> Result<()> {
    let creator = subject.id();
    let mut children: Vec<(u64, u32)> = {
        let relations = subject.process.relations.lock();
        let own = relations
            .children
            .values()
            .filter(|c| c.creator_tid.load(Ordering::Relaxed) == creator);
        own.map(|child| (child.start_ns, child.pid)).collect()
    };
    children.sort_unstable();
    children.iter().for_each(|(_, pid)| write!(out, "{pid} "));
    Ok(())
}

pub(super) fn statm(subject: &Subject, out: &mut Text) -> Result<()> {
    let s = sizes(subject);
    let data = s.data + s.stack;
    let shared = s.file + s.shmem;
    writeln!(out, "{} {} {shared} {} 0 {data} 0", s.total, s.resident(), s.text);
    Ok(())
}

#[derive(Default)]
struct Signals {
    thread_pending: u64,
    process_pending: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

impl Signals {
    fn of(subject: &Subject, thread: Option<&Thread>) -> Signals {
        let mut signals = Signals::default();
        if let Some(thread) = thread {
            let own = thread.signals.lock();
            signals.blocked = own.blocked;
            signals.thread_pending = own.pending.set();
        }
        signals.process_pending = subject.process.signals.lock().pending.set();
        let handlers = subject.process.handlers.lock().clone();
        (signals.ignored, signals.caught) = handlers.ignored_and_caught();
        signals
    }
}

pub(super) fn status(subject: &Subject, out: &mut Text) -> Result<()> {
    let process = &subject.process;
    let thread = subject.thread();
    let thread = thread.as_deref();
    out.bytes(b"Name:\t");
    out.bytes(&name_of(subject, thread));
    if let Some(fs) = subject.fs() {
        write!(out, "\nUmask:\t{:04o}", fs.umask.load(Ordering::Relaxed));
    }
    let (letter, word) = state(subject, thread);
    writeln!(out, "\nState:\t{letter} ({word})");
    let id = subject.id();
    out.named("Tgid:\t", process.pid.into());
    out.named("\nNgid:\t0\nPid:\t", id.into());
    let tracer = thread.map_or(0, |thread| thread.trace.tracer_tid());
    out.named("\nPPid:\t", process.parent_pid().into());
    out.named("\nTracerPid:\t", tracer.into());
    out.bytes(b"\n");
    put_ids(subject, out);
    let group = process.group();
    let session = process.session.load(Ordering::Relaxed);
    out.named("NStgid:\t", process.pid.into());
    out.named("\nNSpid:\t", id.into());
    out.named("\nNSpgid:\t", group.into());
    out.named("\nNSsid:\t", session.into());
    // The kernel's own threads are in no list of processes.
    out.bytes(b"\nKthread:\t0\n");
    if subject.mm().is_some() {
        put_memory(subject, out);
        let may_have_huge_pages = !process.settings.no_huge_pages.load(Ordering::Relaxed);
        out.named("CoreDumping:\t0\nTHP_enabled:\t", may_have_huge_pages.into());
        // No bit of an address is another's than the address's.
        out.bytes(b"\nuntag_mask:\t0xffffffffffffffff\n");
    }
    out.named("Threads:\t", thread_count(process) as u64);
    let signals = Signals::of(subject, thread);
    out.named("\nSigQ:\t0/", process.limit(Resource::PendingSignals));
    out.named_set("\nSigPnd:\t", signals.thread_pending);
    out.named_set("\nShdPnd:\t", signals.process_pending);
    out.named_set("\nSigBlk:\t", signals.blocked);
    out.named_set("\nSigIgn:\t", signals.ignored);
    out.named_set("\nSigCgt:\t", signals.caught);
    out.bytes(b"\n");
    put_capabilities(subject, out);
    let gave_up = thread.is_some_and(|thread| thread.seccomp.no_new_privs());
    out.named("NoNewPrivs:\t", gave_up.into());
    let (mode, filters) = thread.map_or((0, 0), |thread| thread.seccomp.summary());
    out.named("\nSeccomp:\t", mode.into());
    out.named("\nSeccomp_filters:\t", filters as u64);
    out.bytes(b"\n");
    let affinity = thread.map_or(u32::MAX, |thread| thread.base.sched.lock().affinity);
    put_affinity(affinity, out);
    let switches = thread.map_or((0, 0), |thread| thread.base.sched.lock().switches);
    out.named("voluntary_ctxt_switches:\t", switches.0);
    out.named("\nnonvoluntary_ctxt_switches:\t", switches.1);
    out.bytes(b"\n");
    let shadow = thread
        .map_or((0, 0), |thread| (thread.shadow_stack.features(), thread.shadow_stack.locked()));
    put_features(b"x86_Thread_features:\t", shadow.0, out);
    put_features(b"x86_Thread_features_locked:\t", shadow.1, out);
    Ok(())
}

/// What a thread has switched on of its CPU, or has locked.
fn put_features(name: &[u8], features: u64, out: &mut Text) {
    out.bytes(name);
    for (bit, word) in [(feature::SHSTK, &b"shstk "[..]), (feature::WRSS, b"wrss ")] {
        if features & bit != 0 {
            out.bytes(word);
        }
    }
    out.bytes(b"\n");
}

fn put_ids(subject: &Subject, out: &mut Text) {
    let c = subject.credentials();
    let (users, groups) = ([c.uid, c.euid, c.suid, c.fsuid], [c.gid, c.egid, c.sgid, c.fsgid]);
    for (name, [first, rest @ ..]) in [("Uid:\t", users), ("Gid:\t", groups)] {
        out.named(name, first.into());
        rest.iter().for_each(|&id| out.named("\t", id.into()));
        out.bytes(b"\n");
    }
    let slots = |thread: Arc<Thread>| {
        let last = thread.files().list().last().copied().unwrap_or(0);
        (last as usize + 1).next_power_of_two().max(64)
    };
    write!(out, "FDSize:\t{}\nGroups:\t", subject.thread().map_or(0, slots));
    c.groups.iter().for_each(|group| write!(out, "{group} "));
    out.bytes(if c.groups.is_empty() { b" \n" } else { b"\n" });
}

fn put_memory(subject: &Subject, out: &mut Text) {
    let s = sizes(subject);
    let lines = [
        ("VmPeak", s.total),
        ("VmSize", s.total),
        ("VmLck", s.locked),
        ("VmPin", 0),
        ("VmHWM", s.peak_resident),
        ("VmRSS", s.resident()),
        ("RssAnon", s.anonymous),
        ("RssFile", s.file),
        ("RssShmem", s.shmem),
        ("VmData", s.data),
        ("VmStk", s.stack),
        ("VmExe", s.text),
        ("VmLib", s.library),
        ("VmPTE", s.tables),
        ("VmSwap", 0),
        ("HugetlbPages", s.hugetlb),
    ];
    for (name, pages) in lines {
        out.bytes(name.as_bytes());
        out.bytes(b":\t");
        out.decimal(pages * KB_PER_PAGE, 8);
        out.bytes(b" kB\n");
    }
}

fn put_capabilities(subject: &Subject, out: &mut Text) {
    let c = subject.credentials();
    out.named_set("CapInh:\t", c.inheritable);
    out.named_set("\nCapPrm:\t", c.permitted);
    out.named_set("\nCapEff:\t", c.effective);
    out.named_set("\nCapBnd:\t", c.bounding);
    out.named_set("\nCapAmb:\t", c.ambient);
    out.bytes(b"\n");
}

fn put_affinity(affinity: u32, out: &mut Text) {
    let count = machine::cpu::cpu_count();
    let mask = affinity & (u32::MAX >> (32 - count.min(32)));
    out.bytes(b"Cpus_allowed:\t");
    crate::procfs::sysfs::put_cpu_mask(out, mask);
    out.bytes(b"\nCpus_allowed_list:\t");
    crate::procfs::sysfs::put_cpu_list(out, mask);
    out.bytes(b"\nMems_allowed:\t1\nMems_allowed_list:\t0\n");
}

/// Strings that lie in the program's memory.
fn put_remote(mm: &Mm, (start, end): (u64, u64), out: &mut Text) {
    let mut left = end.saturating_sub(start).min(STRINGS_MAX) as usize;
    let mut at = start;
    let mut chunk = [0; 1024];
    while left > 0 {
        let len = left.min(chunk.len());
        let Ok(read) = mm.read_remote(at, &mut chunk[..len]) else { break };
        out.bytes(&chunk[..read]);
        if read < len {
            break;
        }
        at += read as u64;
        left -= read;
    }
}

pub(super) fn cmdline(subject: &Subject, out: &mut Text) -> Result<()> {
    let program = subject.process.program.lock().clone();
    let before = out.0.len();
    // A process that has exited shows nothing.
    let Some(mm) = subject.mm() else { return Ok(()) };
    put_remote(&mm, program.arguments, out);
    if out.0.last().is_none_or(|&last| last == 0) || out.0.len() == before {
        return Ok(());
    }
    // The program has written over the end of its arguments (setproctitle(3)): what it wrote goes
    // on in the environment, up to the first NUL.
    let mut rest = Text::default();
    let (start, end) = program.environment;
    let end = end.min(start.saturating_add(PATH_MAX as u64));
    put_remote(&mm, (start, end), &mut rest);
    let len = rest.0.iter().position(|&byte| byte == 0).unwrap_or(rest.0.len());
    out.bytes(&rest.0[..len]);
    Ok(())
}

/// The environment that a program was started with, in its address space.
struct Environment(Arc<Program>, Weak<Mm>);

pub(super) fn environ(subject: Subject) -> Result<Box<dyn Content>> {
    let program = subject.process.program.lock().clone();
    Ok(Box::new(Environment(program, subject.space())))
}

impl Content for Environment {
    fn is_sequence(&self) -> bool {
        false
    }

    fn generate(&self, out: &mut Text) -> Result<()> {
        if let Some(mm) = self.1.upgrade() {
            put_remote(&mm, self.0.environment, out);
        }
        Ok(())
    }
}

/// The auxiliary vector that a program was started with; it outlives the address space.
struct AuxiliaryVector(Option<Arc<Program>>);

pub(super) fn auxv(subject: Subject) -> Result<Box<dyn Content>> {
    let program = subject.process.program.lock().clone();
    Ok(Box::new(AuxiliaryVector(subject.mm().map(|_| program))))
}

impl Content for AuxiliaryVector {
    fn is_sequence(&self) -> bool {
        false
    }

    fn generate(&self, out: &mut Text) -> Result<()> {
        let words = self.0.iter().flat_map(|program| &program.auxv);
        words.for_each(|word| out.bytes(&word.to_le_bytes()));
        Ok(())
    }
}

/// There are no disks: nothing comes from one, and nothing goes there.
pub(super) fn io(subject: &Subject, out: &mut Text) -> Result<()> {
    let totals = match of_thread(subject) {
        Some(thread) => thread.transfers.totals(),
        None => subject.process.transfers(),
    };
    writeln!(out, "rchar: {}", totals.read);
    writeln!(out, "wchar: {}", totals.written);
    writeln!(out, "syscr: {}", totals.read_calls);
    writeln!(out, "syscw: {}", totals.write_calls);
    out.bytes(b"read_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0\n");
    Ok(())
}

/// The CPU clocks of a process and of a thread to themselves, as clock_getcpuclockid(3) makes ids:
/// the complement of id 0, and what is counted.
const OWN_PROCESS: i32 = !0 << 3 | 2;
const OWN_THREAD: i32 = !0 << 3 | 6;

/// The POSIX timers (proc_pid_timers(5)).
pub(super) fn timers(subject: &Subject, out: &mut Text) -> Result<()> {
    for (timer, signal, tid) in posix::shown(&subject.process) {
        let how = match timer.notify & !raw::SIGEV_THREAD_ID {
            raw::SIGEV_NONE => "none",
            raw::SIGEV_THREAD => "thread",
            _ => "signal",
        };
        let clock = match timer.clock as u32 {
            raw::CLOCK_PROCESS_CPUTIME_ID => OWN_PROCESS,
            raw::CLOCK_THREAD_CPUTIME_ID => OWN_THREAD,
            _ => timer.clock,
        };
        let (whom, id) = tid.map_or(("pid", subject.process.pid), |tid| ("tid", tid));
        writeln!(out, "ID: {}\nsignal: {signal}/{:016x}", timer.id, timer.value);
        writeln!(out, "notify: {how}/{whom}.{id}\nClockID: {clock}");
    }
    Ok(())
}

pub(super) fn personality(subject: &Subject, out: &mut Text) -> Result<()> {
    // What has ended has none that anything could still go by.
    let thread = subject.thread();
    let personality = thread.map_or(0, |t| t.settings.personality.load(Ordering::Relaxed));
    writeln!(out, "{personality:08x}");
    Ok(())
}

const LIMITS: [(&str, &str); 16] = [
    ("Max cpu time", "seconds"),
    ("Max file size", "bytes"),
    ("Max data size", "bytes"),
    ("Max stack size", "bytes"),
    ("Max core file size", "bytes"),
    ("Max resident set", "bytes"),
    ("Max processes", "processes"),
    ("Max open files", "files"),
    ("Max locked memory", "bytes"),
    ("Max address space", "bytes"),
    ("Max file locks", "locks"),
    ("Max pending signals", "signals"),
    ("Max msgqueue size", "bytes"),
    ("Max nice priority", ""),
    ("Max realtime priority", ""),
    ("Max realtime timeout", "us"),
];

pub(super) fn limits(subject: &Subject, out: &mut Text) -> Result<()> {
    let head = ("Limit", "Soft Limit", "Hard Limit");
    writeln!(out, "{:<25} {:<20} {:<20} {:<10}", head.0, head.1, head.2, "Units");
    for ((name, unit), number) in LIMITS.iter().zip(0..) {
        let Some(resource) = Resource::from_number(number) else { continue };
        let limit = subject.process.limits.get(resource);
        write!(out, "{name:<25} ");
        for value in [limit.soft, limit.hard] {
            if value == UNLIMITED {
                write!(out, "{:<20} ", "unlimited");
            } else {
                write!(out, "{value:<20} ");
            }
        }
        // What has no unit ends there.
        let width = if unit.is_empty() { 0 } else { 10 };
        writeln!(out, "{unit:<width$}");
    }
    Ok(())
}

/// What the scheduler did for a thread; of a zombie only the sums are left.
#[derive(Default)]
struct Scheduled {
    runtime_ns: u64,
    vruntime_ns: u64,
    waited_ns: u64,
    switches: (u64, u64),
    policy: u32,
    nice: i32,
}

impl Scheduled {
    fn of(subject: &Subject) -> Scheduled {
        let Some(thread) = subject.thread() else {
            let runtime_ns = subject.process.times_ns().iter().sum();
            let left = SchedEntity::of_ended(*subject.process.past_scheduling.lock());
            let SchedEntity { policy, nice, .. } = left;
            return Scheduled { runtime_ns, policy, nice, ..Scheduled::default() };
        };
        let entity = thread.base.sched.lock();
        Scheduled {
            runtime_ns: entity.runtime_ns,
            vruntime_ns: entity.vruntime_ns(),
            waited_ns: entity.waited_ns,
            switches: entity.switches,
            policy: entity.policy,
            nice: entity.nice,
        }
    }
}

pub(super) fn sched(subject: &Subject, out: &mut Text) -> Result<()> {
    let thread = subject.thread();
    out.bytes(&name_of(subject, thread.as_deref()));
    let tid = subject.id();
    writeln!(out, " ({tid}, #threads: {})", thread_count(&subject.process));
    let Scheduled { runtime_ns, vruntime_ns, switches, policy, nice, .. } = Scheduled::of(subject);
    let milliseconds = |ns: u64| (ns / 1_000_000, ns % 1_000_000);
    let (run, virtual_run) = (milliseconds(runtime_ns), milliseconds(vruntime_ns));
    out.bytes(b"-------------------------------------------------------------------\n");
    writeln!(out, "{:<45}:{:>14}.{:06}", "se.vruntime", virtual_run.0, virtual_run.1);
    writeln!(out, "{:<45}:{:>14}.{:06}", "se.sum_exec_runtime", run.0, run.1);
    writeln!(out, "{:<45}:{:>21}", "nr_switches", switches.0 + switches.1);
    writeln!(out, "{:<45}:{:>21}", "nr_voluntary_switches", switches.0);
    writeln!(out, "{:<45}:{:>21}", "nr_involuntary_switches", switches.1);
    writeln!(out, "{:<45}:{policy:>21}\n{:<45}:{:>21}", "policy", "prio", 120 + nice);
    Ok(())
}

pub(super) fn schedstat(subject: &Subject, out: &mut Text) -> Result<()> {
    let Scheduled { runtime_ns, waited_ns, switches, .. } = Scheduled::of(subject);
    writeln!(out, "{runtime_ns} {waited_ns} {}", switches.0 + switches.1);
    Ok(())
}
