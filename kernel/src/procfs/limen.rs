//! /proc/limen: what this kernel counts at its boundaries. Not Linux's; tables for people and for
//! `cut`: a line of names, then one line for each CPU and row.

use core::sync::atomic::Ordering;

use abi::Result;
use entry::{IretReason, Origin};
use machine::behind_guests;
use machine::cpu::cpu_count;

use crate::fs::pseudo::{Static, Text};

const PAGE_BYTES: usize = 4096;

pub(super) static TABLE: &[(&str, Static)] = &[
    ("accounts", Static::File(accounts)),
    ("exits", Static::File(exits)),
    ("ipi", Static::File(super::interrupts::show_ipi)),
    #[cfg(feature = "lockstat")]
    ("locks", Static::Setting(locks, restart_locks)),
    ("vmscape", Static::File(vmscape)),
];

/// By the place in the source that makes them: how often locks were taken, how often by more than
/// one CPU, and how often they were not free, since the file was written to.
#[cfg(feature = "lockstat")]
fn locks(out: &mut Text) -> Result<()> {
    writeln!(out, "made_at taken shared waited");
    for counts in machine::lockstat::counts() {
        let (file, line) = counts.made_at;
        writeln!(out, "{file}:{line} {} {} {}", counts.taken, counts.shared, counts.waited);
    }
    Ok(())
}

#[cfg(feature = "lockstat")]
fn restart_locks(_: &[u8]) -> Result<()> {
    machine::lockstat::restart();
    Ok(())
}

/// By CPU: exits of guests, and behind how many predictors were marked for a flush; flushes before
/// returns to user mode by kind, and how many of them another thread made; exits that no return had
/// to pay for.
fn vmscape(out: &mut Text) -> Result<()> {
    write!(out, "cpu exits set");
    behind_guests::KINDS.iter().for_each(|kind| write!(out, " {kind}"));
    writeln!(out, " by_others spared");
    for cpu in 0..cpu_count() {
        let counts = behind_guests::counts(cpu);
        write!(out, "{cpu} {} {}", counts.exits, counts.set);
        counts.flushes.iter().for_each(|count| write!(out, " {count}"));
        writeln!(out, " {} {}", counts.by_others, counts.spared);
    }
    Ok(())
}

/// What there is of each kind of object, of pages of tables and of memory. Some of the
/// heap's objects and of the frames are cached by CPUs.
fn accounts(out: &mut Text) -> Result<()> {
    writeln!(out, "what count");
    for (name, count) in crate::base::accounts::live() {
        writeln!(out, "{name} {count}");
    }
    let (users, charged) = crate::process::charges();
    writeln!(out, "users_with_threads {users}");
    writeln!(out, "threads_of_users {charged}");
    writeln!(out, "tables {}", machine::memory::user_tables());
    for (size, objects) in machine::heap_objects() {
        writeln!(out, "heap_{size} {objects}");
    }
    writeln!(out, "mapped_bytes {}", machine::mapped_bytes());
    let (frames, free) = machine::frame::usage();
    let idle = machine::heap_idle_bytes() + machine::stack::idle_stack_bytes();
    writeln!(out, "used_frames {}", frames.saturating_sub(free + idle / PAGE_BYTES));
    Ok(())
}

/// Returns to programs, by CPU, by how the kernel was entered, by SYSRET or the reason for IRET.
fn exits(out: &mut Text) -> Result<()> {
    write!(out, "cpu origin sysret");
    for reason in IretReason::ALL {
        write!(out, " {}", reason.name());
    }
    writeln!(out);
    for cpu in 0..cpu_count() {
        for (origin, row) in Origin::ALL.iter().zip(machine::entry::exit_counts(cpu)) {
            write!(out, "{cpu} {}", origin.name());
            for count in row {
                write!(out, " {}", count.load(Ordering::Relaxed));
            }
            writeln!(out);
        }
    }
    Ok(())
}
