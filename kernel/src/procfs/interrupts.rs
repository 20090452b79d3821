//! /proc/interrupts (proc(5)), one column for each CPU, and /proc/limen/ipi: who interrupted whom,
//! why, and whom it spared.

use abi::Result;
use machine::cpu::cpu_count;
use machine::ipi::{self, Action, InterruptKind, KINDS};

use crate::fs::pseudo::Text;

/// Rows of the CPUs' own interrupts, with Linux's names and explanations.
const LOCAL: [(&str, InterruptKind, &str); 6] = [
    ("NMI", InterruptKind::Nmi, "Non-maskable interrupts"),
    ("LOC", InterruptKind::Timer, "Local timer interrupts"),
    ("SPU", InterruptKind::Spurious, "Spurious interrupts"),
    ("RES", InterruptKind::Reschedule, "Rescheduling interrupts"),
    ("CAL", InterruptKind::Sync, "Function call interrupts"),
    ("TLB", InterruptKind::Tlb, "TLB shootdowns"),
];

pub(super) fn show(out: &mut Text) -> Result<()> {
    out.bytes(b"    ");
    for cpu in 0..cpu_count() {
        write!(out, "       CPU{cpu:<3}");
    }
    out.bytes(b"\n");
    for (vector, counts) in machine::irq::counts() {
        write!(out, "{vector:>3}:");
        for count in &counts[..cpu_count()] {
            write!(out, " {count:>12}");
        }
        out.bytes(b"   APIC   device\n");
    }
    for (name, kind, text) in LOCAL {
        write!(out, "{name:>3}:");
        for cpu in 0..cpu_count() {
            write!(out, " {:>12}", ipi::received(cpu, kind).0);
        }
        writeln!(out, "   {text}");
    }
    Ok(())
}

/// Lines that begin with what they are about: `ipi CAUSE SENDER TARGET STATE ACTION COUNT`,
/// `received CPU KIND COUNT FROM_USER`, `catch_up CPU FLUSHES SERIALISATIONS`.
pub(super) fn show_ipi(out: &mut Text) -> Result<()> {
    for row in ipi::rows() {
        let state = row.state.name();
        let action = match row.action {
            Action::Sent => "sent",
            Action::Deferred => "deferred",
        };
        let (cause, count) = (row.cause.name(), row.count);
        writeln!(out, "ipi {cause} {} {} {state} {action} {count}", row.sender, row.target);
    }
    for cpu in 0..cpu_count() {
        for kind in KINDS {
            let (all, from_user) = ipi::received(cpu, kind);
            writeln!(out, "received {cpu} {} {all} {from_user}", kind.name());
        }
    }
    for cpu in 0..cpu_count() {
        let (flushes, serialisations) = machine::context::catch_ups(cpu);
        writeln!(out, "catch_up {cpu} {flushes} {serialisations}");
    }
    Ok(())
}
