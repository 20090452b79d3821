//! What the kernel tells the command line at the end: the program's fate, and what it counted on
//! the way, if asked to. Where it is off, counting costs nothing (system calls, which then have an
//! entry of their own), or a load and a predicted branch.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::syscalls;
use context_tracking::state::Context;
use formats::boot_config::Want;
use formats::control::{Phase, SyscallCount, ToHost, TraceEvent};
use machine::ipi::Action;
use machine::sync::SpinLock;
use machine::trace::{self, Event};

use crate::base::io::Source;

static COUNT_CALLS: AtomicBool = AtomicBool::new(false);
static COUNT_MISSING: AtomicBool = AtomicBool::new(false);
static NOTE_FILES: AtomicBool = AtomicBool::new(false);
static TRACE: AtomicBool = AtomicBool::new(false);
static COUNTERS: AtomicBool = AtomicBool::new(false);

/// Calls by number; the last slot is for numbers beyond Linux's.
static CALLS: [AtomicU64; syscalls::END + 1] = [const { AtomicU64::new(0) }; syscalls::END + 1];
/// Calls answered with ENOSYS because nothing serves them.
static MISSING: [AtomicU64; syscalls::END] = [const { AtomicU64::new(0) }; syscalls::END];
/// Likewise, of numbers beyond Linux's.
static MISSING_NUMBERS: SpinLock<BTreeMap<u32, u64>> = SpinLock::new(BTreeMap::new());
/// Most of them that are remembered.
const NUMBERS_MAX: usize = 64;
static FILES: SpinLock<BTreeSet<Arc<[u8]>>> = SpinLock::new(BTreeSet::new());
/// Most missing files that are remembered.
const FILES_MAX: usize = 4096;
/// How long the last lines may take to reach the host.
const FLUSH_NS: u64 = 5 * crate::base::time::NS_PER_SEC;

/// Starts counting what is wanted.
pub fn init(want: &Want) {
    if want.syscall_summary {
        COUNT_CALLS.store(true, Ordering::Relaxed);
        machine::entry::watch_calls();
    }
    if want.trace && machine::trace::start().is_err() {
        machine::log!("no trace: no memory for it, or this image has no site tables");
    } else {
        TRACE.store(want.trace, Ordering::Relaxed);
    }
    COUNT_MISSING.store(want.missing_syscalls, Ordering::Relaxed);
    NOTE_FILES.store(want.missing_files, Ordering::Relaxed);
    COUNTERS.store(want.counters, Ordering::Relaxed);
}

#[inline(always)]
fn slot(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX).min(syscalls::END)
}

/// A system call was made that is watched.
pub fn watched_syscall(number: u64) {
    if COUNT_CALLS.load(Ordering::Relaxed) {
        CALLS[slot(number)].fetch_add(1, Ordering::Relaxed);
    }
}

/// A system call was made that nothing serves.
#[inline]
pub fn missing_syscall(number: u64) {
    match MISSING.get(usize::try_from(number).unwrap_or(usize::MAX)) {
        Some(count) => {
            count.fetch_add(1, Ordering::Relaxed);
        }
        None => missing_number(number as u32),
    }
}

/// A number that Linux has none of, as it was.
#[cold]
fn missing_number(number: u32) {
    let mut numbers = MISSING_NUMBERS.lock();
    if numbers.len() < NUMBERS_MAX || numbers.contains_key(&number) {
        *numbers.entry(number).or_insert(0) += 1;
    }
}

/// Whether missing files are to be noted; asked before a path is made absolute.
#[inline(always)]
pub fn wants_missing_files() -> bool {
    NOTE_FILES.load(Ordering::Relaxed)
}

/// A program asked for this absolute path, and nothing is there.
pub fn missing_file(path: &[u8]) {
    let path: Arc<[u8]> = path.into();
    let mut files = FILES.lock();
    if files.len() < FILES_MAX {
        files.insert(path);
    }
}

/// Sends one line on the control port.
pub fn send(message: &ToHost) {
    let Ok(console) = crate::drivers::console::console() else { return };
    let line = message.encode();
    // The host may be gone; there is nobody else to tell.
    let _ = console.control().write(&mut Source::kernel(&line), false);
}

fn send_counts(counts: &[AtomicU64], make: impl Fn(SyscallCount) -> ToHost) {
    for (number, count) in counts.iter().enumerate() {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            let number = number as u32;
            let name = syscalls::name(number).unwrap_or("?").to_string();
            send(&make(SyscallCount { number, name, count }));
        }
    }
}

fn send_counters() {
    let (total, free) = machine::frame::usage();
    let page = machine::frame::PAGE_SIZE as u64;
    let counters = [
        ("memory-bytes", total as u64 * page),
        ("memory-used-bytes", (total - free) as u64 * page),
        ("peak-memory-bytes", machine::frame::peak_used() as u64 * page),
        ("kernel-slab-bytes", machine::slab_bytes() as u64),
        ("run-ns", crate::base::time::now_ns()),
        ("exits-sysret", machine::entry::exits_of(entry::Origin::Syscall).0),
        ("exits-iret", machine::entry::exits_of(entry::Origin::Syscall).1),
    ];
    for (name, value) in counters {
        send(&ToHost::Counter { name: String::from(name), value });
    }
}

/// Sends what the CPUs have recorded, many lines at a time.
fn send_trace() {
    const BATCH_BYTES: usize = 8192;
    let Ok(console) = crate::drivers::console::console() else { return };
    for cpu in 0..machine::cpu::cpu_count() {
        let mut lines = Vec::new();
        // A copy first: what is sent makes entries of its own.
        let mut records = Vec::new();
        if records.try_reserve_exact(trace::EVENTS).is_err() {
            return;
        }
        trace::for_each(cpu, |record| records.push(record));
        for record in &records {
            lines.extend(ToHost::Trace(event(record)).encode());
            if lines.len() >= BATCH_BYTES {
                let _ = console.control().write(&mut Source::kernel(&lines), false);
                lines.clear();
            }
        }
        let _ = console.control().write(&mut Source::kernel(&lines), false);
        send(&ToHost::Counter {
            name: format!("trace-lost-cpu{cpu}"),
            value: trace::lost(cpu) as u64,
        });
    }
}

fn event(record: &trace::Record) -> TraceEvent {
    let vector = |number: u8| (String::from(trace::vector_name(number)), u64::from(number));
    let (phase, (name, number)) = match record.event {
        Event::Syscall(number) => {
            let name = syscalls::name(number).unwrap_or("unknown-syscall");
            (Phase::Begin, (name.to_string(), u64::from(number)))
        }
        Event::Vector(number) => (Phase::Begin, vector(number)),
        Event::Interrupt(number) => (Phase::Begin, vector(number)),
        Event::Exit => (Phase::End, (String::from("-"), 0)),
        Event::Ipi { cause, target, state, action } => {
            let action = if action == Action::Sent { "sent" } else { "deferred" };
            let state = if state == Context::User { "user" } else { "kernel" };
            (Phase::Instant, (format!("{}-{action}-{state}", cause.name()), target as u64))
        }
        Event::CatchUp => (Phase::Instant, (String::from("catch-up"), 0)),
        Event::Switch(tid) => (Phase::Instant, (String::from("switch"), u64::from(tid))),
    };
    TraceEvent { cpu: record.cpu as u8, at_ns: record.at_ns, phase, name, number }
}

/// Sends everything that was counted, then the program's fate, and ends the machine.
pub fn finish(fate: &ToHost) -> ! {
    if COUNT_MISSING.load(Ordering::Relaxed) {
        send_counts(&MISSING, ToHost::MissingSyscall);
        let numbers = core::mem::take(&mut *MISSING_NUMBERS.lock());
        for (number, count) in numbers {
            send(&ToHost::MissingSyscall(SyscallCount { number, name: "?".to_string(), count }));
        }
    }
    if COUNT_CALLS.load(Ordering::Relaxed) {
        send_counts(&CALLS, ToHost::Syscall);
    }
    if wants_missing_files() {
        let files: Vec<Arc<[u8]>> = FILES.lock().iter().cloned().collect();
        for path in files {
            send(&ToHost::MissingFile { path: path.to_vec() });
        }
    }
    if COUNTERS.load(Ordering::Relaxed) {
        send_counters();
    }
    if TRACE.load(Ordering::Relaxed) {
        send_trace();
    }
    // What programs wrote to shared folders has to be there when the command line goes on.
    for mount in crate::vfs::mount::all() {
        let _ = mount.file_system().sync();
    }
    send(fate);
    if let Ok(console) = crate::drivers::console::console() {
        for port in [console.stdio(), console.stderr(), console.control()] {
            // A host that no longer reads must not keep the machine alive.
            let _ = port.flush(FLUSH_NS);
        }
    } else {
        // No host that knows Limen: whoever has started the machine reads the log.
        let line = fate.encode();
        machine::log!("the program's end: {}", String::from_utf8_lossy(line.trim_ascii_end()));
    }
    machine::power::off(machine::power::OK)
}
