//! What one CPU does to the others: translations that are gone for all of them, interrupts that
//! are accounted for on both sides, handlers that begin with user memory closed, and ways out that
//! judge a frame which a call has changed.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use context_tracking::work::Cause;
use entry::{IretReason, Origin};
use machine::cpu::cpu_count;
use machine::ensure;
use machine::ipi::{Action, InterruptKind, received, rows};
use machine::ktest::defer::Program;
use machine::ktest::handler::{self, Place};
use machine::ktest::stale::Stale;
use machine::ktest::{Test, window};

use super::defer::{Running, wait_until};
use crate::process::spawn_kernel;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "stale::the_patchers_alias_is_gone_on_every_cpu",
        run: || with_all_cpus(Stale::alias),
    },
    Test {
        name: "stale::purged_blocks_are_gone_on_every_cpu",
        run: || with_all_cpus(Stale::blocks),
    },
    Test { name: "ipi::accounts_add_up", run: accounts },
    Test { name: "handler::user_memory_is_closed", run: user_memory_is_closed },
    Test { name: "handler::stacks_have_offsets", run: stack_offsets },
    Test { name: "handler::a_bad_iret_is_the_programs_fault", run: bad_iret },
    Test { name: "returns::a_lent_frame_is_judged_again", run: lent_frames },
];

/// Runs `test` while a thread on each other CPU follows what it maps and takes away.
fn with_all_cpus(test: fn(&Stale, u32) -> Result<(), String>) -> Result<(), String> {
    let stale = Arc::new(Stale::default());
    let others = cpu_count() as u32 - 1;
    for _ in 0..others {
        let stale = stale.clone();
        spawn_kernel("follower", move || stale.follow()).map_err(|e| format!("{e:?}"))?;
    }
    let result = wait_until("not every CPU follows", || stale.running() == others)
        .and_then(|()| test(&stale, others));
    stale.stop();
    wait_until("a CPU follows still", || stale.running() == 0)?;
    result
}

/// Requests of each kind.
const REQUESTS: u64 = 100;

/// How a cause interrupts.
fn kind_of(cause: Cause) -> InterruptKind {
    match cause {
        Cause::Reschedule | Cause::Timer | Cause::Watchdog => InterruptKind::Reschedule,
        Cause::Nmi => InterruptKind::Nmi,
        _ => InterruptKind::Tlb,
    }
}

/// Interrupts of a kind that CPU `cpu` was sent, and those that it received.
fn account(cpu: usize, kind: InterruptKind) -> (u64, u64) {
    let sent = rows().filter(|row| {
        row.target == cpu && row.action == Action::Sent && kind_of(row.cause) == kind
    });
    let sent = sent.map(|row| row.count).sum();
    let sync = if kind == InterruptKind::Tlb { received(cpu, InterruptKind::Sync).0 } else { 0 };
    (sent, received(cpu, kind).0 + sync)
}

/// Nobody receives what nobody sent: two requests may become one interrupt, and one may have been
/// on its way.
fn accounts() -> Result<(), String> {
    const KINDS: [InterruptKind; 3] =
        [InterruptKind::Tlb, InterruptKind::Reschedule, InterruptKind::Nmi];
    let cpus = || (0..cpu_count()).flat_map(|cpu| KINDS.map(|kind| (cpu, kind)));
    let before: alloc::vec::Vec<_> = cpus().map(|(cpu, kind)| account(cpu, kind)).collect();
    for _ in 0..REQUESTS {
        machine::ktest::ask_all_cpus();
        for cpu in 1..cpu_count() {
            let received_before = received(cpu, InterruptKind::Nmi).0;
            window::send_nmi(cpu);
            machine::ipi::send_reschedule(cpu, Cause::Reschedule);
            wait_until("an NMI has not come", || {
                received(cpu, InterruptKind::Nmi).0 > received_before
            })?;
        }
    }
    let mut sent_in_all = [0; KINDS.len()];
    for ((cpu, kind), before) in cpus().zip(before) {
        // What was received is read last, so that nothing is received behind the look at what was
        // sent but what was in flight.
        let (_, received) = account(cpu, kind);
        let (sent, _) = account(cpu, kind);
        let (sent, received) = (sent - before.0, received - before.1);
        ensure!(received <= sent + 1, "CPU {cpu}: {sent} {kind:?} sent, {received} received");
        let place = KINDS.iter().position(|&of| of == kind).unwrap_or_default();
        sent_in_all[place] += sent;
    }
    let is_counted = cpu_count() == 1 || sent_in_all.iter().all(|&sent| sent >= REQUESTS);
    ensure!(is_counted, "{REQUESTS} of each were asked for, {sent_in_all:?} are accounted for");
    Ok(())
}

fn user_memory_is_closed() -> Result<(), String> {
    if !handler::has_smap() {
        machine::log!("this CPU has no SMAP: the flag opens nothing");
        return Ok(());
    }
    let (before, _) = handler::seen();
    let running = Running::start(Program::Open)?;
    let from_user = || handler::seen().0[Place::User as usize] > before[Place::User as usize] + 3;
    let came = wait_until("no interrupt found a program with AC", from_user);
    running.stop()?;
    came?;
    ensure!(handler::interrupt_while_open(), "nothing interrupted an open copy");
    let (_, still) = handler::seen();
    ensure!(still == 0, "{still} handlers ran with user memory open");
    Ok(())
}

/// Kernel stacks begin at many addresses, or with `randomize_kstack_offset=off` at one.
fn stack_offsets() -> Result<(), String> {
    const ALL: u32 = 64;
    let line = machine::boot::info().command_line;
    let is_off = crate::base::params::find(line, "randomize_kstack_offset") == Some("off");
    let running = Running::start(Program::Storm)?;
    handler::stack_offsets();
    let before = handler::calls();
    wait_until("the program makes no calls", || handler::calls() > before + 2000)?;
    let seen = handler::stack_offsets();
    running.stop()?;
    let wanted = if is_off { 1 } else { ALL };
    ensure!(seen == wanted, "{seen} offsets of {wanted}");
    Ok(())
}

/// Returns that fault, one program each.
const BAD_RETURNS: usize = 9;

fn bad_iret() -> Result<(), String> {
    use core::sync::atomic::Ordering;
    use handler::Bad;
    const SIGNAL: i32 = 0x7f;
    // As Linux answers these faults of a program.
    let (segv, bus) = (abi::general::SIGSEGV, abi::general::SIGBUS);
    let kinds = [(Bad::Selector, segv), (Bad::Code, bus), (Bad::Stack, bus)];
    for (how, wanted) in kinds.into_iter().cycle().take(BAD_RETURNS) {
        let running = Running::start(Program::Spin)?;
        let process = running.process.clone();
        handler::spoil_next(running.cpu, how);
        // Its frames are those of interrupts: IRET takes them back.
        wait_until("no IRET was spoiled", || !handler::is_to_be_spoiled(running.cpu))?;
        wait_until("the program has not ended", || process.is_zombie.load(Ordering::SeqCst))?;
        let status = process.exit_status.load(Ordering::SeqCst);
        let signal = status & SIGNAL;
        ensure!(signal == wanted as i32, "{how:?}: it ended with status {status:#x}");
    }
    Ok(())
}

/// Calls whose frame was lent, at least.
const LENT: u64 = 1000;

/// A call that changes the program's registers leaves by IRET where SYSRET cannot express them. The
/// program looks at each of them and ends where one is another.
fn lent_frames() -> Result<(), String> {
    use core::sync::atomic::Ordering;
    let running = Running::start(Program::Lending)?;
    let counts = &machine::entry::exit_counts(running.cpu)[Origin::Syscall as usize];
    let by_iret = || counts[1 + IretReason::RcxDiffers as usize].load(Ordering::Relaxed);
    let before = by_iret();
    let has_ended = || running.process.is_zombie.load(Ordering::SeqCst);
    let came = wait_until("too few calls", || has_ended() || by_iret() >= before + LENT);
    ensure!(!has_ended(), "a call has not given the registers that it was asked for");
    came?;
    running.stop()
}
