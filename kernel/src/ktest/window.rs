//! What may hit the windows of the entry code, on a CPU whose program checks its registers after
//! every system call. The machine's part (`machine/src/ktest/window.rs`) steps and hits.

use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;

use context_tracking::state::Context;
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

fn has_ended(running: &Running) -> bool {
    running.process.is_zombie.load(Ordering::SeqCst)
}

/// SYSRET does not let NMIs come again, IRET does: the second NMI shows that the handler of the
/// first has seen to it before it goes back, for the program's registers are always those of a
/// SYSRET. Where it has not, the second waits for an interrupt of the kernel.
fn nmi_after_nmi() -> Result<(), String> {
    if cpu_count() < 2 {
        machine::log!("nobody to send them: one CPU");
        return Ok(());
    }
    let running = Running::start(Program::Still)?;
    let cpu = running.cpu;
    wait_until("the program does not run", || machine::context::of(cpu) == Context::User)?;
    let of_program = || received(cpu, InterruptKind::Nmi).1;
    let before = of_program();
    for number in 1..=NMIS {
        window::send_two_nmis(cpu);
        let mut returns = None;
        wait_until(&format!("NMI number {number} has no second one"), || {
            returns = window::returns_between_nmis(cpu);
            returns.is_some()
        })?;
        ensure!(returns == Some(0), "NMI number {number}: {returns:?} returns before the next");
    }
    ensure!(of_program() > before, "none of {NMIS} NMIs has hit the program");
    running.stop()
}

/// Pairs of NMIs.
const NMIS: u32 = 10;

/// An interrupt of a program makes SS null; who runs next may return by SYSRET.
fn good_ss() -> Result<(), String> {
    let running = Running::start(Program::Spin)?;
    for _ in 0..200 {
        sched::yield_now();
        ensure!(window::has_good_ss(), "SS is null behind a switch");
    }
    running.stop()
}
