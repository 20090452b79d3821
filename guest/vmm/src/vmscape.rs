//! `limen-vmm vmscape KIND`: predictors are flushed behind guests that have really run, as often as
//! they must be and no more often (/proc/limen/vmscape). KIND is the flush that the kernel was
//! started for, or `none`.
//!
//! Counts are exact where nothing else can return to user mode on the CPU: the thread is bound to
//! one, and says how often it was switched.

use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::machine::{Guest, Result};
use crate::tests::{ensure, expect, finish, step};

const COUNTS: &str = "/proc/limen/vmscape";
const REPORT: &str = "/sys/devices/system/cpu/vulnerabilities/vmscape";
/// Exits of one run that the kernel handles.
const EXITS: u64 = 1000;

type Test = (&'static str, fn(&str) -> Result<()>);

const TESTS: [Test; 6] = [
    ("vmscape::report", report),
    ("vmscape::exits_in_the_kernel_are_spared", exits_in_the_kernel_are_spared),
    ("vmscape::each_return_is_one_flush", each_return_is_one_flush),
    ("vmscape::other_cpus_do_not_flush", other_cpus_do_not_flush),
    ("vmscape::a_cpu_that_was_left_flushes", a_cpu_that_was_left_flushes),
    ("vmscape::every_way_back", every_way_back),
];

pub fn list() {
    TESTS.iter().for_each(|(name, _)| println!("{name}"));
}

pub fn run_all(kind: &str, filter: &str) -> ExitCode {
    let wanted = TESTS.iter().filter(|(name, _)| name.contains(filter));
    finish(wanted.map(|(name, run)| (*name, run(kind))))
}

/// One CPU's line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    exits: u64,
    set: u64,
    ibpb: u64,
    bhb_short: u64,
    bhb_long: u64,
    by_others: u64,
    spared: u64,
}

impl Counts {
    fn flushes(&self) -> u64 {
        self.ibpb + self.bhb_short + self.bhb_long
    }

    fn since(&self, before: &Counts) -> Counts {
        Counts {
            exits: self.exits - before.exits,
            set: self.set - before.set,
            ibpb: self.ibpb - before.ibpb,
            bhb_short: self.bhb_short - before.bhb_short,
            bhb_long: self.bhb_long - before.bhb_long,
            by_others: self.by_others - before.by_others,
            spared: self.spared - before.spared,
        }
    }

    /// Flushes of the one kind there may be; an error if there are others.
    fn of_kind(&self, kind: &str) -> Result<u64> {
        let count = match kind {
            "ibpb" => self.ibpb,
            "bhb_short" => self.bhb_short,
            "bhb_long" => self.bhb_long,
            _ => 0,
        };
        ensure(count == self.flushes(), || format!("flushes of another kind: {self:?}"))?;
        Ok(count)
    }
}

fn counts() -> Result<Vec<Counts>> {
    let text = std::fs::read_to_string(COUNTS).map_err(|error| format!("{COUNTS}: {error}"))?;
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let place = |name| names.iter().position(|n| *n == name).ok_or(format!("no column {name}"));
    let mut all = Vec::new();
    for line in lines {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let of = |name| -> Result<u64> {
            numbers.get(place(name)?).copied().ok_or_else(|| format!("{COUNTS}: {line}"))
        };
        all.push(Counts {
            exits: of("exits")?,
            set: of("set")?,
            ibpb: of("ibpb")?,
            bhb_short: of("bhb_short")?,
            bhb_long: of("bhb_long")?,
            by_others: of("by_others")?,
            spared: of("spared")?,
        });
    }
    Ok(all)
}

/// Binds a thread (0: this one) to a CPU.
fn bind(thread: i32, cpu: usize) -> Result<()> {
    // SAFETY: a set of zeros is one.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the set is this function's, and the number is small.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the kernel reads the set.
    let done = unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) };
    ensure(done == 0, || format!("sched_setaffinity to {cpu}"))
}

/// How often this thread was switched so far.
fn switches() -> u64 {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the structure, all of whose values are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_nvcsw + usage.ru_nivcsw) as u64
}

/// A guest that makes `EXITS` exits by CPUID, which the kernel handles, and then one by HLT.
fn counting_guest() -> Result<Guest> {
    // mov di,EXITS; cpuid; dec di; jnz cpuid; hlt; jmp to the start
    let [low, high] = (EXITS as u16).to_le_bytes();
    Guest::real(&[0xbf, low, high, 0x0f, 0xa2, 0x4f, 0x75, 0xfb, 0xf4, 0xeb, 0xf5])
}

fn report(kind: &str) -> Result<()> {
    let said = std::fs::read_to_string(REPORT).map_err(|error| format!("{REPORT}: {error}"))?;
    let wanted: &[&str] = match kind {
        "ibpb" => &["Mitigation: IBPB before exit to userspace\n"],
        "none" => &["Vulnerable\n", "Not affected\n"],
        _ => &["Mitigation: Clear BHB before exit to userspace\n"],
    };
    ensure(wanted.contains(&said.as_str()), || format!("{said:?}, not {wanted:?}"))
}

/// What one run of the counting guest adds on the CPU it is bound to, with switches of the thread.
fn one_run(guest: &mut Guest, cpu: usize) -> Result<(Counts, u64)> {
    let (before, switched) = (counts()?[cpu], switches());
    expect(guest, "hlt")?;
    let switched = switches() - switched;
    Ok((counts()?[cpu].since(&before), switched))
}

fn exits_in_the_kernel_are_spared(kind: &str) -> Result<()> {
    /// Runs, of which one must go undisturbed.
    const TRIES: u32 = 20;
    bind(0, 0)?;
    let mut guest = counting_guest()?;
    one_run(&mut guest, 0)?;
    let mut is_exact = false;
    for _ in 0..TRIES {
        let (added, switched) = one_run(&mut guest, 0)?;
        ensure(added.exits > EXITS, || format!("{added:?}"))?;
        let flushes = added.of_kind(kind)?;
        if kind == "none" {
            ensure(flushes + added.set == 0, || format!("none was asked for: {added:?}"))?;
            is_exact = true;
            continue;
        }
        ensure(added.set == added.exits, || format!("not every exit is noted: {added:?}"))?;
        // The return of KVM_RUN, and one for each other thread that ran in between.
        let most = 1 + switched;
        ensure((1..=most).contains(&flushes), || format!("{flushes}, not 1 to {most}"))?;
        ensure(added.spared == added.exits - flushes, || format!("spared: {added:?}"))?;
        is_exact |= flushes == 1;
    }
    ensure(is_exact, || "never a single flush".into())
}

fn each_return_is_one_flush(kind: &str) -> Result<()> {
    const RETURNS: u64 = 100;
    bind(0, 0)?;
    // out 0x80,al; jmp out
    let mut guest = Guest::real(&[0xe6, 0x80, 0xeb, 0xfc])?;
    let (before, switched) = (counts()?[0], switches());
    for _ in 0..RETURNS {
        expect(&mut guest, "out 0x80 [0]")?;
    }
    let switched = switches() - switched;
    let added = counts()?[0].since(&before);
    let flushes = added.of_kind(kind)?;
    let least = if kind == "none" { 0 } else { RETURNS };
    let most = if kind == "none" { 0 } else { RETURNS + switched };
    ensure((least..=most).contains(&flushes), || format!("{flushes}, not {least} to {most}"))
}

fn other_cpus_do_not_flush(_: &str) -> Result<()> {
    let before = counts()?;
    bind(0, 0)?;
    expect(&mut counting_guest()?, "hlt")?;
    let after = counts()?;
    for (cpu, (before, after)) in before.iter().zip(&after).enumerate().skip(1) {
        let added = after.since(before);
        ensure(added == Counts::default(), || format!("CPU {cpu} ran no guest: {added:?}"))?;
    }
    Ok(())
}

extern "C" fn on_signal(_: i32) {}

/// A guest's thread is moved while the guest runs; the first one of others that returns to user
/// mode on the CPU it left flushes.
fn a_cpu_that_was_left_flushes(kind: &str) -> Result<()> {
    if counts()?.len() < 2 {
        return Ok(());
    }
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    bind(0, 0)?;
    let done = AtomicBool::new(false);
    let (sender, receiver) = std::sync::mpsc::channel();
    let before = counts()?;
    std::thread::scope(|scope| {
        let done = &done;
        let runner = scope.spawn(move || -> Result<()> {
            bind(0, 1)?;
            // cpuid; jmp cpuid
            let mut guest = Guest::real(&[0x0f, 0xa2, 0xeb, 0xfc])?;
            // SAFETY: both are of this thread.
            let ids = unsafe { (libc::gettid(), libc::pthread_self()) };
            sender.send(ids).map_err(|_| "nobody listens")?;
            while !done.load(Ordering::SeqCst) {
                expect(&mut guest, "error 4")?;
            }
            Ok(())
        });
        let (tid, thread) = receiver.recv().map_err(|_| "the guest does not run")?;
        let moved = (0..20).try_for_each(|turn| -> Result<()> {
            std::thread::sleep(std::time::Duration::from_millis(5));
            bind(tid, turn % 2)?;
            // Another one returns to user mode where it was.
            bind(0, (turn + 1) % 2)
        });
        done.store(true, Ordering::SeqCst);
        while !runner.is_finished() {
            // SAFETY: the thread is not joined before its end.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        runner.join().map_err(|_| "the thread panicked")??;
        moved
    })?;
    let after = counts()?;
    let mut by_others = 0;
    for (before, after) in before.iter().zip(&after) {
        let added = after.since(before);
        let flushes = added.of_kind(kind)?;
        ensure(flushes <= added.exits, || format!("more flushes than exits: {added:?}"))?;
        by_others += added.by_others;
    }
    ensure((by_others > 0) == (kind != "none"), || format!("{by_others} by others: {after:?}"))
}

/// Guests on all CPUs, and beside them children, programs, signals and interrupts: each CPU has
/// flushed at least once, at most as often as guests have left it, and once more does nothing.
fn every_way_back(kind: &str) -> Result<()> {
    let before = counts()?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let runners: Vec<_> = (0..before.len())
            .map(|cpu| {
                let done = &done;
                scope.spawn(move || -> Result<()> {
                    bind(0, cpu)?;
                    let mut guest = counting_guest()?;
                    let interrupted = format!("error {}", libc::EINTR);
                    loop {
                        // A child that ends while the thread that made it still blocks SIGCHLD
                        // has another thread take the signal, which does nothing there.
                        let got = step(&mut guest)?;
                        ensure(got == "hlt" || got == interrupted, || got)?;
                        if done.load(Ordering::SeqCst) {
                            return Ok(());
                        }
                    }
                })
            })
            .collect();
        let own = std::env::current_exe().map_err(|error| format!("own name: {error}"))?;
        let beside = (0..10).try_for_each(|_| -> Result<()> {
            let child = Command::new(&own).arg("list").stdout(std::process::Stdio::null()).status();
            ensure(child.is_ok_and(|status| status.success()), || "a child".into())?;
            // SAFETY: the handler does nothing, and the signal is this thread's.
            unsafe {
                libc::signal(libc::SIGUSR1, on_signal as *const () as usize);
                libc::raise(libc::SIGUSR1);
            }
            Ok(())
        });
        done.store(true, Ordering::SeqCst);
        for runner in runners {
            runner.join().map_err(|_| "the thread panicked")??;
        }
        beside
    })?;
    for (cpu, (before, after)) in before.iter().zip(&counts()?).enumerate() {
        let added = after.since(before);
        let flushes = added.of_kind(kind)?;
        let least = u64::from(kind != "none");
        ensure((least..=added.exits).contains(&flushes), || format!("CPU {cpu}: {added:?}"))?;
    }
    Ok(())
}
