//! What the kernel tells the command line at the end: the program's fate, and what it counted on
//! the way (`base::tally`), if asked to.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::syscalls;
use formats::boot_config::Want;
use formats::control::{Phase, SyscallCount, ToHost, TraceEvent};
use machine::ipi::{self, Action};
use machine::trace::{self, Event};

use crate::base::io::Source;
use crate::base::tally;
use crate::process::current;
use crate::security::profile::User;

static TRACE: AtomicBool = AtomicBool::new(false);
static COUNTERS: AtomicBool = AtomicBool::new(false);

/// How long the last lines may take to reach the host.
const FLUSH_NS: u64 = 5 * crate::base::time::NS_PER_SEC;

/// Starts counting what is wanted.
pub fn init(want: &Want) {
    if want.syscall_summary {
        tally::count_calls();
        machine::entry::instrument_calls();
    }
    if want.trace && machine::trace::start().is_err() {
        machine::log!("no trace: no memory for it, or this image has no site tables");
    } else {
        TRACE.store(want.trace, Ordering::Relaxed);
        tally::note_names(want.trace);
        // This one had its name before anybody asked.
        crate::process::note_name(&current());
    }
    tally::count_missing(want.missing_syscalls);
    tally::note_files(want.missing_files);
    COUNTERS.store(want.counters, Ordering::Relaxed);
}

/// Sends one line on the control port.
pub fn send(message: &ToHost) {
    let Ok(console) = crate::drivers::console::console() else { return };
    let line = message.encode();
    // The host may be gone; there is nobody else to tell.
    let _ = console.control().write(&mut Source::kernel(&line), false);
}

/// How the user is told of what a profile denies.
pub fn user() -> User {
    let tell = |text: &[u8]| send(&ToHost::Log { text: text.to_vec() });
    let program = || {
        let thread = current();
        let name = *thread.name.lock();
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        (thread.process.pid, name[..len].to_vec())
    };
    User { tell, program }
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

/// Exceptions of programs, page faults nearly all of them: whatever came by a vector while one ran,
/// without the interrupts.
fn exceptions() -> u64 {
    let (by_sysret, by_iret) = machine::entry::exits_of(entry::Origin::Vector);
    let kinds = [
        ipi::InterruptKind::Timer,
        ipi::InterruptKind::Reschedule,
        ipi::InterruptKind::Tlb,
        ipi::InterruptKind::Sync,
        ipi::InterruptKind::Nmi,
        ipi::InterruptKind::Spurious,
        ipi::InterruptKind::Device,
    ];
    let of_cpu = |cpu| kinds.iter().map(|kind| ipi::received(cpu, *kind).1).sum::<u64>();
    let interrupts: u64 = (0..machine::cpu::cpu_count()).map(of_cpu).sum();
    (by_sysret + by_iret).saturating_sub(interrupts)
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
        ("execs", tally::programs_started()),
        ("context-switches", crate::base::sched::switches()),
        ("exceptions", exceptions()),
    ];
    for (name, value) in counters {
        send(&ToHost::Counter { name: String::from(name), value });
    }
    for (name, value) in interrupts() {
        send(&ToHost::Counter { name, value });
    }
}

/// Interrupts that came, by kind, and those between CPUs, by cause and by whether they were sent or
/// spared; of all CPUs.
fn interrupts() -> Vec<(String, u64)> {
    let cpus = 0..machine::cpu::cpu_count();
    let came = |kind| cpus.clone().map(|cpu| ipi::received(cpu, kind).0).sum();
    let mut counts = alloc::vec![
        (String::from("interrupts-timer"), came(ipi::InterruptKind::Timer)),
        (String::from("interrupts-device"), came(ipi::InterruptKind::Device)),
    ];
    for row in ipi::rows() {
        let action = if row.action == Action::Sent { "sent" } else { "deferred" };
        let name = format!("ipis-{}-{action}", row.cause.name());
        match counts.iter_mut().find(|(other, _)| *other == name) {
            Some((_, count)) => *count += row.count,
            None => counts.push((name, row.count)),
        }
    }
    counts
}

/// Sends what the CPUs have recorded, many lines at a time.
fn send_trace() {
    const BATCH_BYTES: usize = 8192;
    let Ok(console) = crate::drivers::console::console() else { return };
    for (tid, (pid, name)) in tally::names() {
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        send(&ToHost::Thread { tid, pid, name: name[..len].to_vec() });
    }
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
    let mut values = Vec::new();
    let (phase, (name, number)) = match record.event {
        Event::Syscall(number, arguments) => {
            let name = syscalls::name(number).unwrap_or("unknown-syscall");
            values = arguments.to_vec();
            (Phase::Begin, (name.to_string(), u64::from(number)))
        }
        Event::Vector(number) => (Phase::Begin, vector(number)),
        Event::Interrupt(number) => (Phase::Begin, vector(number)),
        Event::Exit => (Phase::End, (String::from("-"), 0)),
        Event::Return(result) => {
            values = alloc::vec![result];
            (Phase::End, (String::from("-"), 0))
        }
        Event::Ipi { cause, target, state, action } => {
            let action = if action == Action::Sent { "sent" } else { "deferred" };
            let name = format!("{}-{action}-{}", cause.name(), state.name());
            (Phase::Instant, (name, target as u64))
        }
        Event::CatchUp => (Phase::Instant, (String::from("catch-up"), 0)),
        Event::GuestExit => (Phase::Instant, (String::from("guest-exit"), 0)),
        Event::Flush => (Phase::Instant, (String::from("flush-behind-guest"), 0)),
        Event::Switch(tid) => (Phase::Instant, (String::from("switch"), u64::from(tid))),
    };
    TraceEvent { cpu: record.cpu as u8, at_ns: record.at_ns, phase, name, number, values }
}

/// Sends everything that was counted, then the program's fate, and ends the machine.
pub fn finish(fate: &ToHost) -> ! {
    if tally::counts_missing() {
        send_counts(tally::missing_calls(), ToHost::MissingSyscall);
        for (number, count) in tally::missing_numbers() {
            send(&ToHost::MissingSyscall(SyscallCount { number, name: "?".to_string(), count }));
        }
    }
    if let Some(calls) = tally::calls() {
        send_counts(calls, ToHost::Syscall);
    }
    if tally::wants_missing_files() {
        for path in tally::missing_files() {
            send(&ToHost::MissingFile { path: path.to_vec() });
        }
    }
    for (access, object) in crate::security::profile::used() {
        send(&ToHost::Used { access, object });
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
