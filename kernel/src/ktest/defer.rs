//! Deferred work for CPUs in user mode, with programs that do nothing but enter the kernel, or
//! nothing but stay out of it, while this thread remaps a kernel page that every entry looks at.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::general as raw;
use context_tracking::state::Context;
use context_tracking::work::Mode;
use entry::{PtRegs, flags, selector};
use machine::cpu::cpu_count;
use machine::ensure;
use machine::fpu::FpuState;
use machine::ipi::{self, Action, KINDS, Row, received};
use machine::ktest::Test;
use machine::ktest::defer::{self, Look, Program, Seen, Sender};
use machine::ktest::vmrun::Spinning;
use machine::memory::Prot;
use machine::sync::SpinLock;
use machine::task::Task;

use crate::base::{sched, time};
use crate::mm::{Mm, Vma};
use crate::process::signal::{SigInfo, send_to_process};
use crate::process::{self, Process, Thread};
use crate::security::Credentials;

pub(super) const TESTS: &[Test] = &[
    Test { name: "defer::entry_storm_pending", run: || storm(Mode::Pending) },
    Test { name: "defer::entry_storm_always", run: || storm(Mode::Always) },
    Test { name: "defer::entry_storm_off", run: || storm(Mode::Off) },
    Test { name: "defer::entry_storm_cr3", run: || storm(Mode::Cr3) },
    Test { name: "defer::cr3_keeps_nothing_where_it_catches_up", run: cr3_of_entries },
    Test { name: "defer::spinning_cpu_is_left_alone", run: || spin(Mode::Pending) },
    Test { name: "defer::spinning_cpu_is_left_alone_by_cr3", run: || spin(Mode::Cr3) },
    Test { name: "defer::guests_are_left_alone", run: guest },
    Test { name: "defer::times_without_ticks", run: times },
    Test { name: "defer::nmi_storm", run: || nmi_storm(Mode::Pending) },
    Test { name: "defer::nmi_storm_by_cr3", run: || nmi_storm(Mode::Cr3) },
    Test { name: "defer::labelled_points", run: || points(Mode::Pending) },
    Test { name: "defer::labelled_points_by_cr3", run: || points(Mode::Cr3) },
    Test { name: "defer::a_missing_catch_up_is_seen", run: broken },
];

/// Remaps in each test.
const REMAPS: u64 = 1000;
const CODE: u64 = 0x1000_0000;
/// What every register has that no instruction needs: none of it may be left behind an entry.
const MARK: u64 = 0x5eed_0000_5eed_0001;
/// How long a program may take to come, and to go.
const PATIENCE_NS: u64 = 30 * time::NS_PER_SEC;

/// A program that runs alone on the last CPU.
pub(super) struct Running {
    pub(super) process: Arc<Process>,
    pub(super) cpu: usize,
}

impl Running {
    pub(super) fn start(program: Program) -> Result<Running, String> {
        let said = |error: abi::Errno| format!("no program: {}", error.name());
        let cpu = cpu_count() - 1;
        let mm = Mm::new().map_err(said)?;
        let prot = Prot::READ | Prot::WRITE | Prot::EXEC;
        let end = CODE + defer::PROGRAM_BYTES as u64;
        mm.with(|inner| inner.insert(CODE, Vma::anonymous(end, prot))).map_err(said)?;
        mm.write_remote(CODE, program.code()).map_err(said)?;
        let pid = process::allocate_pid(0, None).map_err(said)?;
        let space = mm.space();
        let root = Arc::new(Credentials::root());
        let new = Process::blank(pid, Some(mm), root);
        let new = Arc::new(new);
        let fpu = FpuState::new().map_err(|_| "no memory")?;
        let task = Task::new_user(&registers(), fpu, space).map_err(|_| "no memory")?;
        let thread = Thread::new(pid, new.clone(), task, process::Own::of_kernel());
        thread.base.sched.lock().affinity = 1 << cpu;
        thread.base.affinity_hint.store(1 << cpu, Ordering::SeqCst);
        process::fork::register_thread(&thread).map_err(said)?;
        thread.start();
        Ok(Running { process: new, cpu })
    }

    fn mask(&self) -> u32 {
        1 << self.cpu
    }

    /// Ends it, and waits until it has gone.
    pub(super) fn stop(self) -> Result<(), String> {
        send_to_process(&self.process, SigInfo::kernel(raw::SIGKILL))
            .map_err(|error| format!("SIGKILL: {}", error.name()))?;
        wait_until("the program has not ended", || {
            self.process.is_zombie.load(Ordering::SeqCst)
                || process::find_process(self.process.pid).is_none()
        })
    }
}

fn registers() -> PtRegs {
    let rflags = flags::FIXED | flags::IF;
    PtRegs {
        rdi: MARK,
        rsi: MARK,
        rdx: MARK,
        r8: MARK,
        r9: MARK,
        r10: MARK,
        rbx: MARK,
        rbp: MARK,
        r12: MARK,
        r13: MARK,
        r14: MARK,
        r15: MARK,
        rip: CODE,
        rcx: CODE,
        rsp: CODE,
        rflags,
        r11: rflags,
        cs: selector::USER_CS.into(),
        ss: selector::USER_DS.into(),
        orig_rax: u64::MAX,
        ..PtRegs::default()
    }
}

pub(super) fn wait_until(what: &str, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = time::now_ns() + PATIENCE_NS;
    while !done() {
        ensure!(time::now_ns() < deadline, "{what} after 30 s");
        sched::yield_now();
    }
    Ok(())
}

/// Looks of a kind since `before`.
fn looks(before: &Seen, kind: Look) -> u64 {
    defer::seen().looks[kind as usize] - before.looks[kind as usize]
}

/// Remaps until there were enough remaps and looks of that kind, and `done` says so.
fn remap_until(
    sender: &mut Sender,
    before: &Seen,
    (kind, wanted): (Look, u64),
    done: impl Fn() -> bool,
) -> Result<(), String> {
    let mut remaps = 0;
    let result = wait_until("too few looks", || {
        for _ in 0..50 {
            sender.remap();
        }
        remaps += 50;
        remaps >= REMAPS && looks(before, kind) >= wanted && done()
    });
    machine::log!("{remaps} remaps, {} looks, {:?}", looks(before, kind), kind);
    result
}

/// Runs a program and spares its CPU while `body` runs; then ends it.
fn beside(
    program: Program,
    mode: Mode,
    body: impl FnOnce(&mut Sender, &Seen, usize) -> Result<(), String>,
) -> Result<(), String> {
    if cpu_count() < 2 {
        machine::log!("nobody to spare: one CPU");
        return Ok(());
    }
    if mode != mode.possible(machine::memory::has_pti()) {
        machine::log!("entries write no CR3: not without pti=on");
        return Ok(());
    }
    let mut sender = Sender::new()?;
    let running = Running::start(program)?;
    defer::spare(running.mask(), mode);
    let before = defer::seen();
    let result = body(&mut sender, &before, running.cpu);
    defer::spare(0, Mode::Pending);
    result.and(running.stop())
}

/// Every entry sees what the sender has published, whichever way it learns of it.
fn storm(mode: Mode) -> Result<(), String> {
    beside(Program::Storm, mode, |sender, before, cpu| {
        let (start, left) = (defer::catch_ups(cpu), left_to(cpu, Context::User));
        // The program is in the kernel most of the time: how many remaps meet it in user mode is up
        // to the host, one at least has to.
        let deferred = || mode == Mode::Off || left_to(cpu, Context::User) > left;
        let leaves_notes = matches!(mode, Mode::Pending | Mode::Always);
        let done = || deferred() && (!leaves_notes || defer::catch_ups(cpu) > start);
        remap_until(sender, before, (Look::Syscall, 1000), done)?;
        defer::expect_fresh(before)?;
        let caught_up = defer::catch_ups(cpu) - start;
        let left = left_to(cpu, Context::User) - left;
        machine::log!("{left} left to it, {caught_up} catch-ups");
        ensure!((caught_up > 0) == leaves_notes, "{caught_up} catch-ups with {mode:?}");
        ensure!((left > 0) == (mode != Mode::Off), "{left} left to it with {mode:?}");
        Ok(())
    })
}

/// Where CR3 is the catch-up its value drops what the context has, at the next entry and after a
/// switch; and no longer when the CPU is told again.
fn cr3_of_entries() -> Result<(), String> {
    if !machine::memory::has_pti() {
        machine::log!("entries write no CR3: not without pti=on");
        return Ok(());
    }
    let every = (1u32 << cpu_count()) - 1;
    // Of this CPU, too, which may not be isolated: whoever is spared catches up.
    for (cpus, is) in [(every, true), (0, false)] {
        defer::spare(cpus, Mode::Cr3);
        // As the interrupt has left it, then as switches have.
        let looked = defer::expect_cr3(is).and_then(|()| {
            let running = Running::start(Program::Spin)?;
            (0..10).for_each(|_| sched::yield_now());
            defer::expect_cr3(is).and(running.stop())
        });
        if looked.is_err() {
            defer::spare(0, Mode::Cr3);
        }
        looked?;
    }
    Ok(())
}

/// A CPU that stays in user mode is told nothing, and catches up once when it comes back.
fn spin(mode: Mode) -> Result<(), String> {
    let alone = machine::context::isolation().nohz_full != 0;
    beside(Program::Spin, mode, |sender, before, cpu| {
        wait_until("the program does not run", || machine::context::of(cpu) == Context::User)?;
        let interrupts = || KINDS.iter().map(|&kind| received(cpu, kind).0).sum::<u64>();
        let (had, caught_up) = (interrupts(), defer::catch_ups(cpu));
        for _ in 0..REMAPS {
            sender.remap();
        }
        let came = interrupts() - had;
        ensure!(!alone || came == 0, "{came} interrupts of a CPU that is spared");
        ensure!(!alone || defer::catch_ups(cpu) == caught_up, "it was in the kernel");
        defer::expect_fresh(before)?;
        // The interrupt that changes its entry back makes it catch up: by the way, without notes.
        defer::spare(1 << cpu, mode);
        let now = defer::catch_ups(cpu) - caught_up;
        let wanted = u64::from(mode == Mode::Pending);
        ensure!(!alone || now == wanted, "{now} catch-ups for {REMAPS} remaps");
        defer::expect_fresh(before)
    })
}

/// A CPU in a guest is told nothing that may wait, and catches up when it comes back.
fn guest() -> Result<(), String> {
    let Some(mut spinning) = Spinning::new()? else { return Ok(()) };
    if cpu_count() < 2 {
        machine::log!("nobody to spare: one CPU");
        return Ok(());
    }
    let mut sender = Sender::new()?;
    let cpu = cpu_count() - 1;
    let (goes_on, result) = (Arc::new(AtomicBool::new(true)), Arc::new(SpinLock::new(None)));
    let (goes_on_there, result_there) = (goes_on.clone(), result.clone());
    let body = move || {
        let ended = spinning.run_while(|| goes_on_there.load(Ordering::SeqCst));
        *result_there.lock() = Some(ended);
        sched::exit_current();
    };
    let task = Task::new_kernel(body).map_err(|_| "no memory")?;
    let thread = process::kernel_thread("guest", task);
    thread.base.sched.lock().affinity = 1 << cpu;
    thread.base.affinity_hint.store(1 << cpu, Ordering::SeqCst);
    thread.start();
    defer::spare(1 << cpu, Mode::Pending);
    let before = defer::seen();
    let deferred = || left_to(cpu, Context::Guest);
    let (had, caught_up) = (deferred(), defer::catch_ups(cpu));
    let met = wait_until("nothing was left to a guest", || {
        (0..50).for_each(|_| sender.remap());
        defer::send_nmi(cpu);
        deferred() > had && defer::catch_ups(cpu) > caught_up
    });
    goes_on.store(false, Ordering::SeqCst);
    // An interrupt that does not wait.
    defer::spare(0, Mode::Pending);
    let ended = wait_until("the guest does not end", || result.lock().is_some());
    met.and(ended)?;
    result.lock().take().unwrap_or(Ok(()))?;
    machine::log!("{} left to the guest", deferred() - had);
    defer::expect_fresh(&before)
}

/// What was left to CPU `cpu` while it was there.
fn left_to(cpu: usize, place: Context) -> u64 {
    let is_meant =
        |row: &Row| row.target == cpu && row.state == place && row.action == Action::Deferred;
    ipi::rows().filter(is_meant).map(|row| row.count).sum()
}

/// Who asks for the time that a CPU without tick has spent gets what the clock says, be it alone
/// with a program or asleep.
fn times() -> Result<(), String> {
    const WHILE_NS: u64 = 200_000_000;
    let cpu = cpu_count() - 1;
    let pass = || {
        let start = time::now_ns();
        let mut last = (0, 0);
        // Neither goes back, however often and whenever they are asked for.
        let mut is_rising = true;
        wait_until("time stands still", || {
            let now = (sched::idle_ns(cpu), sched::user_ns(cpu));
            is_rising &= now.0 >= last.0 && now.1 >= last.1;
            last = now;
            time::now_ns() - start >= WHILE_NS
        })?;
        ensure!(is_rising, "idle or user time went back");
        Ok::<u64, String>(time::now_ns() - start)
    };
    if machine::context::isolation().nohz_full & 1 << cpu == 0 {
        machine::log!("every CPU ticks");
        return Ok(());
    }
    wait_until("the CPU does not sleep", || sched::is_idle(cpu))?;
    let (idle, user) = (sched::idle_ns(cpu), sched::user_ns(cpu));
    let passed = pass()?;
    let (idle, user) = (sched::idle_ns(cpu) - idle, sched::user_ns(cpu) - user);
    ensure!(idle >= passed / 2 && user <= passed / 2, "{idle} ns idle, {user} ns not");
    let running = Running::start(Program::Spin)?;
    wait_until("the program does not run", || machine::context::of(cpu) == Context::User)?;
    let used = || running.process.times_ns().iter().sum::<u64>();
    let (before, user) = (used(), sched::user_ns(cpu));
    let passed = pass()?;
    let (used, user) = (used() - before, sched::user_ns(cpu) - user);
    machine::log!("{used} ns used, {user} ns of the CPU in user mode, while {passed} ns passed");
    ensure!(used >= passed - passed / 10, "{used} ns used of {passed}");
    ensure!(user >= passed - passed / 10, "{user} ns in user mode of {passed}");
    running.stop()
}

/// NMIs hit every part of the way in and out, danger zones included.
fn nmi_storm(mode: Mode) -> Result<(), String> {
    beside(Program::Storm, mode, |sender, before, cpu| {
        let mut sent = 0u64;
        wait_until("too few NMIs hit the kernel", || {
            sender.remap();
            defer::send_nmi(cpu);
            sent += 1;
            sent >= REMAPS && looks(before, Look::Nmi) >= 200
        })?;
        machine::log!("{sent} NMIs, {} in the kernel", looks(before, Look::Nmi));
        defer::expect_fresh(before)
    })
}

/// The same at the points where a wrong order would show, each time.
fn points(mode: Mode) -> Result<(), String> {
    beside(Program::Storm, mode, |sender, before, cpu| {
        defer::stop_at_points(cpu);
        remap_until(sender, before, (Look::Point, 4000), || true)?;
        defer::expect_fresh(before)
    })
}

/// Test of the test: without catch-ups the detector must go off.
fn broken() -> Result<(), String> {
    if defer::is_blind() {
        machine::log!("not seen with page-table isolation: its loads of CR3 flush everything");
        return Ok(());
    }
    beside(Program::Storm, Mode::Pending, |sender, before, cpu| {
        defer::break_catch_up(1 << cpu);
        let result = remap_until(sender, before, (Look::Syscall, 1000), || true);
        let stale = defer::seen().stale - before.stale;
        machine::log!("{stale} looks met an old translation");
        ensure!(stale > 0, "the detector sees nothing");
        result
    })
}
