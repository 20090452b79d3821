//! `limen mitigations`: the table of CPU vulnerabilities, for this host's CPU, any CPU by name, or
//! facts from a file: what Limen does about each with the given kernel parameters, what the machine
//! does for that, and what a crossing costs. On a Linux host also where that kernel says something
//! else than Linux 6.18 would, on this CPU with the options it was booted with.
//!
//! The decisions are `mechanisms/mitigations`', which boots. Neighbour: `args`.

use std::arch::x86_64::__cpuid_count;
use std::fmt::Write as _;
use std::path::Path;

use mitigations::profiles::{self, PROFILES};
use mitigations::{Built, Facts, Options, Plan, select};

use crate::args::MitigationsArgs;
use crate::{Error, usage};

const FILES: &str = "/sys/devices/system/cpu/vulnerabilities";

pub(crate) fn command(args: &MitigationsArgs) -> Result<u8, Error> {
    let mut out = String::new();
    if args.list {
        list(&mut out)?;
    } else {
        let line = args.append.join(" ");
        let (title, facts) = cpu(args)?;
        table(&mut out, &title, &facts, &line)?;
        if args.cpu.is_none() && args.facts.is_none() {
            compare(&mut out, &facts)?;
        }
    }
    crate::out::bytes(out.as_bytes());
    Ok(0)
}

fn list(out: &mut String) -> Result<(), Error> {
    for profile in PROFILES {
        writeln!(out, "{:<22} {}", profile.name, profile.sold_as)?;
    }
    Ok(())
}

/// The CPU that was asked for, and its name.
fn cpu(args: &MitigationsArgs) -> Result<(String, Facts), Error> {
    if let Some(name) = &args.cpu {
        let found = profiles::find(name);
        let profile = found.ok_or_else(|| {
            usage(format!(
                "--cpu {name}: not a CPU that is known here; --list names those that are"
            ))
        })?;
        return Ok((format!("{} ({})", profile.name, profile.sold_as), profile.facts));
    }
    if let Some(path) = &args.facts {
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(format!("--facts {}: {error}", path.display())))?;
        let facts = Facts::parse(&text)
            .map_err(|bad| usage(format!("--facts {}: {bad}", path.display())))?;
        return Ok((path.display().to_string(), facts));
    }
    let facts = own_facts();
    let title = match facts.has_arch_capabilities() && facts.arch_capabilities == 0 {
        true => "this CPU, without IA32_ARCH_CAPABILITIES, which only root may read",
        false => "this CPU",
    };
    Ok((title.to_owned(), facts))
}

fn table(out: &mut String, title: &str, facts: &Facts, line: &str) -> Result<(), Error> {
    let options = Options::parse(line, |bad| {
        say!("limen: --append: ignoring {}={}: no such value", bad.name, bad.value);
    });
    for word in line.split_whitespace() {
        let (name, has_value) =
            word.split_once('=').map_or((word, false), |(name, _)| (name, true));
        if !mitigations::options::is_known(name, has_value) {
            say!("limen: --append: {word} is no parameter of mitigations");
        }
    }
    let selection = select(facts, &options, &Built::LIMEN);
    let plan = Plan::new(&selection, facts, &options);
    writeln!(out, "CPU: {title}\n     {facts}")?;
    if !line.is_empty() {
        writeln!(out, "with {line}")?;
    }
    for (name, state) in selection.files() {
        writeln!(out, "  {name:<26} {state}")?;
    }
    writeln!(out, "The machine: {plan}")?;
    writeln!(out, "Added to a system call:     {}", plan.system_call())?;
    writeln!(out, "Added to an interrupt:      {}", plan.interrupt())?;
    writeln!(out, "Added to a switch, at most: {}", plan.switch())?;
    writeln!(out, "Added to each return:       {}", plan.one_return())?;
    if plan.returns == mitigations::plan::Returns::Counted {
        writeln!(out, "Added to each call:         {}", plan.one_call())?;
    }
    Ok(())
}

/// What this host's Linux says, where it is not what Linux 6.18 is expected to say.
fn compare(out: &mut String, facts: &Facts) -> Result<(), Error> {
    if !Path::new(FILES).is_dir() {
        return Ok(());
    }
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let options = Options::parse(&line, |_| ());
    let selection = select(facts, &options, &Built::LINUX);
    let mut agree = 0;
    for (name, state) in selection.files() {
        let Ok(said) = std::fs::read_to_string(Path::new(FILES).join(name)) else { continue };
        if said.trim_end() == state.to_string() {
            agree += 1;
        } else {
            writeln!(out, "This kernel on {name}: {}", said.trim_end())?;
            writeln!(out, "          expected: {state}")?;
        }
    }
    writeln!(
        out,
        "This host's kernel agrees in {agree} files with what is expected of Linux 6.18."
    )?;
    Ok(())
}

/// CPUID of the CPU that runs this, and what root may read of its registers.
fn own_facts() -> Facts {
    let mut facts = Facts::from_cpuid(|leaf, sub| {
        let answer = __cpuid_count(leaf, sub);
        [answer.eax, answer.ebx, answer.ecx, answer.edx]
    });
    if facts.has_arch_capabilities() {
        facts.arch_capabilities = read_msr(0x10a).unwrap_or(0);
    }
    facts
}

/// A register of CPU 0, by msr(4).
fn read_msr(number: u64) -> Option<u64> {
    use std::os::unix::fs::FileExt as _;
    let mut value = [0; 8];
    let file = std::fs::File::open("/dev/cpu/0/msr").ok()?;
    file.read_exact_at(&mut value, number).ok()?;
    Some(u64::from_le_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_all_files_and_its_prices() {
        let profile = profiles::find("icelake-sp").expect("known");
        let mut out = String::new();
        table(&mut out, "x", &profile.facts, "spectre_bhi=on").expect("a string");
        assert_eq!(out.lines().filter(|line| line.starts_with("  ")).count(), 20);
        assert!(out.contains("vmscape                    Not affected"));
        assert!(out.contains("BHB loop 5/5 at system calls"));
        assert!(out.contains("Added to a system call:     128 instructions\n"), "{out}");
    }

    #[test]
    fn this_host_is_some_cpu() {
        let facts = own_facts();
        assert!(facts.vendor != mitigations::Vendor::Other && facts.family >= 6);
    }
}
