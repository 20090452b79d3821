//! What may hit the windows of the entry code, on a CPU whose program checks its registers after
//! every system call. The machine's part (`machine/src/ktest/window.rs`) steps and hits.

use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;

use context_tracking::state::Context;
use entry::Origin;
use machine::cpu::cpu_count;
use machine::ensure;
use machine::ipi::{InterruptKind, received};
use machine::ktest::Test;
use machine::ktest::defer::Program;
use machine::ktest::window;

use super::defer::{Running, wait_until};
use crate::base::sched;

pub(super) const TESTS: &[Test] = &[
    Test { name: "window::every_instruction_survives_every_hit", run: every_instruction },
    Test { name: "window::an_nmi_lets_the_next_one_come", run: nmi_after_nmi },
    Test { name: "window::sysret_finds_a_good_ss", run: good_ss },
];

/// Hits of each kind, at least.
const HITS: u64 = 20_000;

fn every_instruction() -> Result<(), String> {
    let running = Running::start(Program::Careful)?;
    let mm = running.process.mm().map_err(|_| "the program has ended")?;
    window::has_only_its_own(&mm.space())?;
    let (before, lost) = window::hits();
    window::step_through(running.cpu, true);
    let all_hit = || {
        let (now, _) = window::hits();
        now.iter().zip(before).all(|(now, before)| now - before >= HITS)
            && window::covered().1.is_none()
            && window::odd_sequence().is_none()
    };
    let result = wait_until("not all was hit", || all_hit() || has_ended(&running));
    let (now, now_lost) = window::hits();
    let (instructions, missed) = window::covered();
    window::step_through(running.cpu, false);
    machine::log!("{instructions} instructions, hits {now:?} from {before:?}");
    ensure!(!has_ended(&running), "a register has changed");
    ensure!(now_lost == lost, "{} handlers were lost", now_lost - lost);
    ensure!(result.is_ok(), "{result:?}; missed: {missed:?}");
    let odd = window::odd_sequence();
    ensure!(odd.is_none(), "{odd:?} ran and was not chosen, or was chosen and did not run");
    wait_until("the CPU still steps", || !window::is_stepping(running.cpu))?;
    running.stop()
}

/// Returns from interrupts while an NMI is on its way, at most: if it is held back, hundreds.
const RETURNS: u64 = 30;

fn has_ended(running: &Running) -> bool {
    running.process.is_zombie.load(Ordering::SeqCst)
}

/// SYSRET does not let NMIs come again, IRET does: the second NMI shows that the handler of the
/// first has seen to it, for the program's registers are always those of a SYSRET.
fn nmi_after_nmi() -> Result<(), String> {
    if cpu_count() < 2 {
        machine::log!("nobody to send them: one CPU");
        return Ok(());
    }
    let running = Running::start(Program::Still)?;
    let cpu = running.cpu;
    wait_until("the program does not run", || machine::context::of(cpu) == Context::User)?;
    // Where NMIs are held back, a tick of this CPU that hits the kernel lets them in at last.
    let returns = || {
        let counts = &machine::entry::exit_counts(cpu)[Origin::Vector as usize];
        counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>()
    };
    let mut late = 0;
    for number in 1..=10 {
        let (before, start) = (received(cpu, InterruptKind::Nmi).0, returns());
        window::send_nmi(cpu);
        let came = || received(cpu, InterruptKind::Nmi).0 > before;
        wait_until(&format!("NMI number {number} has not come"), came)?;
        late += u32::from(returns() - start > RETURNS);
    }
    // Each that comes late lets the next one in. This CPU may have been stopped while it waited.
    ensure!(late <= 2, "{late} of 10 NMIs were held back");
    running.stop()
}

/// An interrupt of a program makes SS null; who runs next may return by SYSRET.
fn good_ss() -> Result<(), String> {
    let running = Running::start(Program::Spin)?;
    for _ in 0..200 {
        sched::yield_now();
        ensure!(window::has_good_ss(), "SS is null behind a switch");
    }
    running.stop()
}
