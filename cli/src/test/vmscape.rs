//! VMSCAPE on guests that run: `limen-vmm vmscape` in Limen on facts of CPUs that are met in
//! different ways, and the loop that clears branch history, stepped through in the very bytes of
//! the kernel image.
//!
//! Neighbours: `guest.rs`, whose level this belongs to; `guest/vmm/src/vmscape.rs` has the tests.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use mitigations::bhi::BhbLoop;
use mitigations::profiles;
use objtool::elf::Image;

use super::guest::{Gaps, Results, judge, listed, results_of_guests, vm_of};
use super::{Context, Summary};
use crate::Error;

/// A flush, the CPU whose facts lead to it, and parameters.
const KINDS: [(&str, Option<&str>, &str); 4] = [
    ("none", None, ""),
    ("none", Some("zen4"), "vmscape=off"),
    ("ibpb", Some("zen4"), "vmscape=force"),
    ("bhb_long", Some("alderlake-e-core"), "vmscape=force"),
];
/// Loops of the image, their counts, and the branches that the histories are long.
const LOOPS: [(&str, BhbLoop, u32); 2] =
    [("short", BhbLoop::SHORT, 62), ("long", BhbLoop::LONG, 194)];
const BRANCHES: &str = "vmscape::branches_of_the_image";
const SWITCH: &str = "vmscape::no_return_before_the_return_stack_is_filled";

/// A look at the kernel image, with the program that steps.
type Look = fn(&[u8], &Path) -> Result<(), Error>;

pub(super) fn run(context: &Context, vmm: &Path) -> Result<Summary, Error> {
    let mut total = Summary::default();
    for (name, look) in [(BRANCHES, branches as Look), (SWITCH, world_switch)] {
        if context.wants(name) {
            let done = look(&std::fs::read(&context.kernel)?, vmm);
            if let Err(why) = &done {
                failed!("test {name} ... FAILED: {why}");
            }
            total.passed += usize::from(done.is_ok());
            total.failed += usize::from(done.is_err());
        }
    }
    let wanted = listed(vmm, "vmscape-list")?;
    let wanted = wanted.iter().filter(|name| context.wants(name));
    let wanted: Results = wanted.map(|name| (name.clone(), true)).collect();
    if wanted.is_empty() {
        return Ok(total);
    }
    for &smp in &context.smp {
        for (kind, cpu, parameters) in KINDS {
            let mut append = parameters.to_owned();
            if let Some(cpu) = cpu {
                let profile = profiles::find(cpu).ok_or_else(|| format!("no CPU {cpu}"))?;
                append += &format!(" cpu-facts={}", profile.facts);
            }
            let place = format!("kvm, {kind} by {}, smp {smp}", cpu.unwrap_or("the CPU's own"));
            let mut command = vm_of(context, smp, &["--append", &append]);
            command.arg(vmm).args(["vmscape", kind, &context.filter]);
            let got = results_of_guests(&mut command, &place)?;
            total += judge(&place, &wanted, &got, &Gaps::new());
        }
    }
    Ok(total)
}

/// The names of what [`run`] runs.
pub(super) fn names(vmm: &Path) -> Result<Vec<String>, Error> {
    let mut names = listed(vmm, "vmscape-list")?;
    names.extend([BRANCHES, SWITCH].map(str::to_owned));
    Ok(names)
}

/// What `limen-vmm` says of each loop that clears branch history, in the bytes of a kernel image.
pub(crate) fn of_loops(kernel: &[u8], vmm: &Path, word: &str) -> Result<Vec<String>, Error> {
    let image = Image::parse(kernel)?;
    let line = |(name, ..): &(&str, BhbLoop, u32)| {
        let (start, end) = place(&image, name)?;
        let code = image.between(start, end).ok_or("the loop is in no section")?;
        Ok(format!("{name}: {}", say_of(vmm, word, code)?))
    };
    LOOPS.iter().map(line).collect()
}

/// Where a loop is: its two functions lie one behind the other.
fn place(image: &Image<'_>, name: &str) -> Result<(u64, u64), Error> {
    let symbol = |kind: &str| {
        let name = format!("clear_bhb_{name}_{kind}");
        image.symbol(&name).ok_or_else(|| format!("no {name}"))
    };
    Ok((symbol("unfenced")?, symbol("fenced")?))
}

/// Steps through both loops, and looks who calls them.
fn branches(kernel: &[u8], vmm: &Path) -> Result<(), Error> {
    let image = Image::parse(kernel)?;
    for (name, counts, length) in LOOPS {
        let (start, end) = place(&image, name)?;
        let code = image.between(start, end).ok_or("the loop is in no section")?;
        for count in [counts.outer, counts.inner] {
            // mov $count, %ecx; mov $count, %eax
            let moves = [0xb9, 0xb8].map(|op| [&[op][..], &count.to_le_bytes()].concat());
            let found = moves.iter().any(|bytes| code.windows(5).any(|at| at == bytes));
            check(found, || format!("{name}: {count} is no 32-bit immediate"))?;
        }
        let said = say_of(vmm, "branches", code)?;
        let (deep, steps) = (counts.outer, counts.instructions() - 1);
        let wanted = format!("taken {length} deep {deep} instructions {steps}");
        check(said == wanted, || format!("{name}: {said:?}, not {wanted:?}"))?;
        check(counts.taken_branches() == length, || format!("{name}: other counts"))?;
        let entry = image.section(".entry.text").ok_or("no .entry.text")?;
        let callers = leads_to(entry.bytes, entry.address, start);
        check(callers == [end], || {
            format!("{name}: entry code leads to the loop without a fence: {callers:x?}")
        })?;
    }
    Ok(())
}

/// Between VMRUN or VMLAUNCH and the places where the return stack is filled, no byte is that of a
/// return or of a direct call: not even as an operand.
fn world_switch(kernel: &[u8], _: &Path) -> Result<(), Error> {
    const WORLDS: [(&str, &str, [u8; 3]); 2] = [
        ("vmrun_switch", "vmrun_behind_barrier", [0x0f, 0x01, 0xd8]),
        ("vmx_switch", "vmx_behind_barrier", [0x0f, 0x01, 0xc2]),
    ];
    const CALLS_AND_RETURNS: [u8; 3] = [0xc2, 0xc3, 0xe8];
    let image = Image::parse(kernel)?;
    let symbol = |name| image.symbol(name).ok_or_else(|| format!("no {name}"));
    for (world, filled, enter) in WORLDS {
        let (start, filled) = (symbol(world)?, symbol(filled)?);
        let code = image.between(start, filled).ok_or("the switch is in no section")?;
        let entered = code.windows(3).position(|at| at == enter);
        let behind = entered.ok_or_else(|| format!("{world} enters no guest"))?;
        let odd =
            code[behind + enter.len()..].iter().position(|byte| CALLS_AND_RETURNS.contains(byte));
        check(odd.is_none(), || format!("{world}: a call or return {odd:?} bytes behind"))?;
    }
    Ok(())
}

fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(why().into()) }
}

/// Where code calls or jumps to `target`, as far as a rel32 says so.
fn leads_to(code: &[u8], address: u64, target: u64) -> Vec<u64> {
    let is_one = |(n, bytes): (usize, &[u8])| {
        let at = address + n as u64;
        let &[0xe8 | 0xe9, a, b, c, d] = bytes else { return None };
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        (at.wrapping_add(5).wrapping_add_signed(distance) == target).then_some(at)
    };
    code.windows(5).enumerate().filter_map(is_one).collect()
}

fn say_of(vmm: &Path, word: &str, code: &[u8]) -> Result<String, Error> {
    let mut child =
        Command::new(vmm).arg(word).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(code)?;
    let output = child.wait_with_output()?;
    check(output.status.success(), || format!("limen-vmm {word} failed"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_jumps_are_seen() {
        // nop; call 0x1010; jmp 0x1010; call 0x1011
        let code = [0x90, 0xe8, 10, 0, 0, 0, 0xe9, 5, 0, 0, 0, 0xe8, 1, 0, 0, 0];
        assert_eq!(leads_to(&code, 0x1000, 0x1010), [0x1001, 0x1006]);
        assert_eq!(leads_to(&code, 0x1000, 0x1012), [0_u64; 0]);
    }
}
