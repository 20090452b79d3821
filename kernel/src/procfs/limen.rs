//! /proc/limen: what this kernel counts at its boundaries. Not Linux's; tables for people and for
//! `cut`: a line of names, then one line for each CPU and row.

use core::sync::atomic::Ordering;

use abi::Result;
use entry::{IretReason, Origin};
use machine::cpu::cpu_count;

use crate::fs::pseudo::{Static, Text};

pub(super) static TABLE: &[(&str, Static)] =
    &[("exits", Static::File(exits)), ("ipi", Static::File(super::interrupts::show_ipi))];

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
