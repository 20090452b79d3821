//! sysfs (sysfs(5)): the little of it that programs look at: CPUs, memory nodes, and the places of
//! what other parts of the kernel report there.
//!
//! /sys/devices/system/cpu/vulnerabilities is `mechanisms/mitigations`' own report, whose claims
//! the boot has compared with the CPU.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::cpu::{MAX_CPUS, cpu_count};
use machine::memory::HUGE_PAGE;

use super::cpus;
use super::sysctl::pool_setting;
use crate::fs::pseudo::{PseudoFs, Static, StaticListing, Text, parse_number};
use crate::khugepaged;
use crate::mm::{PAGE, huge, hugetlb};
use crate::net::interface;
use crate::page_cache;
use crate::process::current;
use crate::security::{self, Capability};

/// SYSFS_MAGIC (statfs(2)).
const MAGIC: u64 = 0x6265_6572;

/// A new sysfs.
pub fn new() -> Arc<PseudoFs> {
    PseudoFs::new("sysfs", MAGIC, true, Box::new(StaticListing(TOP)))
}

static EMPTY: &[(&str, Static)] = &[];

static TOP: &[(&str, Static)] = &[
    ("block", Static::Directory(EMPTY)),
    ("bus", Static::Directory(EMPTY)),
    (
        "class",
        Static::Directory(&[("net", Static::Directory(&[("lo", Static::Directory(LOOPBACK))]))]),
    ),
    ("dev", Static::Directory(EMPTY)),
    ("devices", Static::Directory(&[("system", Static::Directory(SYSTEM))])),
    ("fs", Static::Directory(&[("cgroup", Static::Directory(EMPTY))])),
    ("kernel", Static::Directory(KERNEL)),
    (
        "module",
        Static::Directory(&[(
            "kvm",
            Static::Directory(&[("parameters", Static::Directory(KVM_PARAMETERS))]),
        )]),
    ),
];

/// How /dev/kvm works, for those who ask before they use it: no counters of events for guests, no
/// prefix that forces emulation.
static KVM_PARAMETERS: &[(&str, Static)] = &[
    ("enable_pmu", Static::File(|out| line(out, "N"))),
    ("force_emulation_prefix", Static::File(|out| line(out, "0"))),
];

/// The loopback interface (sysfs-class-net of Linux's ABI documents).
static LOOPBACK: &[(&str, Static)] = &[
    ("addr_len", Static::File(|out| line(out, "6"))),
    ("address", Static::File(|out| line(out, "00:00:00:00:00:00"))),
    ("broadcast", Static::File(|out| line(out, "00:00:00:00:00:00"))),
    ("carrier", Static::File(|out| line(out, "1"))),
    ("flags", Static::File(|out| line(out, "0x9"))),
    ("ifindex", Static::File(|out| line(out, &interface::LO.index.to_string()))),
    ("iflink", Static::File(|out| line(out, &interface::LO.index.to_string()))),
    ("mtu", Static::File(|out| line(out, &interface::LO.mtu.to_string()))),
    ("operstate", Static::File(|out| line(out, "unknown"))),
    ("tx_queue_len", Static::File(|out| line(out, "1000"))),
    ("type", Static::File(|out| line(out, &interface::LO.hardware.to_string()))),
];

static SYSTEM: &[(&str, Static)] = &[
    (
        "clocksource",
        Static::Directory(&[(
            "clocksource0",
            Static::Directory(&[
                ("available_clocksource", Static::File(|out| line(out, "tsc "))),
                ("current_clocksource", Static::File(|out| line(out, "tsc"))),
            ]),
        )]),
    ),
    ("cpu", Static::Dynamic(cpus::directory)),
    (
        "node",
        Static::Directory(&[
            ("has_cpu", Static::File(zero)),
            ("has_memory", Static::File(zero)),
            ("has_normal_memory", Static::File(zero)),
            ("node0", Static::Directory(NODE)),
            ("online", Static::File(zero)),
            ("possible", Static::File(zero)),
        ]),
    ),
];

static NODE: &[(&str, Static)] = &[
    ("cpulist", Static::File(online)),
    ("cpumap", Static::File(map_of_all)),
    ("distance", Static::File(|out| line(out, "10"))),
    ("meminfo", Static::File(node_memory)),
];

static KERNEL: &[(&str, Static)] = &[
    (
        "mm",
        Static::Directory(&[
            ("hugepages", Static::Directory(&[("hugepages-2048kB", Static::Directory(HUGETLB))])),
            // Equal pages are never merged: what may be (MADV_MERGEABLE) need not.
            (
                "ksm",
                Static::Directory(&[
                    ("pages_shared", Static::File(|out| line(out, "0"))),
                    ("pages_sharing", Static::File(|out| line(out, "0"))),
                    ("run", Static::File(|out| line(out, "0"))),
                ]),
            ),
            (
                "transparent_hugepage",
                Static::Directory(&[
                    // Memory in one piece is taken where it is: nothing is moved to make some.
                    (
                        "defrag",
                        Static::File(|out| line(out, "always defer defer+madvise madvise [never]")),
                    ),
                    ("enabled", Static::Setting(huge_pages, set_huge_pages)),
                    ("hpage_pmd_size", Static::File(|out| line(out, "2097152"))),
                    ("khugepaged", Static::Directory(KHUGEPAGED)),
                    ("shmem_enabled", Static::Setting(huge_files, set_huge_files)),
                    ("use_zero_page", Static::File(|out| line(out, "0"))),
                ]),
            ),
        ]),
    ),
    ("security", Static::Directory(SECURITY)),
];

/// A number that khugepaged goes by, at most so large.
macro_rules! tunable {
    ($name:ident, $most:expr) => {
        (
            stringify!($name),
            Static::Setting(
                |out| {
                    writeln!(out, "{}", khugepaged::TUNABLES.$name.load(Ordering::Relaxed));
                    Ok(())
                },
                |data| {
                    let value: u64 = parse_number(data)?;
                    if value > $most {
                        return Err(Errno::EINVAL);
                    }
                    khugepaged::TUNABLES.$name.store(value, Ordering::Relaxed);
                    khugepaged::note_change();
                    Ok(())
                },
            ),
        )
    };
}

/// What of 2 MiB may be missing, or shared.
const MOST_PTES: u64 = HUGE_PAGE / PAGE - 1;
/// Numbers of 32 bits.
const MOST: u64 = u32::MAX as u64;

static KHUGEPAGED: &[(&str, Static)] = &[
    tunable!(alloc_sleep_millisecs, MOST),
    // As above: nothing is moved.
    ("defrag", Static::File(|out| line(out, "0"))),
    ("full_scans", Static::File(|out| count(out, &khugepaged::FULL_SCANS))),
    tunable!(max_ptes_none, MOST_PTES),
    tunable!(max_ptes_shared, MOST_PTES),
    ("pages_collapsed", Static::File(|out| count(out, &khugepaged::PAGES_COLLAPSED))),
    tunable!(pages_to_scan, MOST),
    tunable!(scan_sleep_millisecs, MOST),
];

fn count(out: &mut Text, counter: &AtomicU64) -> Result<()> {
    writeln!(out, "{}", counter.load(Ordering::Relaxed));
    Ok(())
}

/// The pool of huge pages (sysfs-kernel-mm-hugepages of Linux's ABI documents).
static HUGETLB: &[(&str, Static)] = &[
    ("free_hugepages", Static::File(|out| line(out, &hugetlb::counts().free.to_string()))),
    ("nr_hugepages", pool_setting!(total, set_total)),
    ("nr_overcommit_hugepages", pool_setting!(overcommit, set_overcommit)),
    ("resv_hugepages", Static::File(|out| line(out, &hugetlb::counts().reserved.to_string()))),
    ("surplus_hugepages", Static::File(|out| line(out, &hugetlb::counts().surplus.to_string()))),
];

/// What Linux has in a file system of its own, securityfs; `hooks` is Limen's.
static SECURITY: &[(&str, Static)] = &[
    ("hooks", Static::Setting(hooks, set_tally)),
    ("lsm", Static::File(policies)),
    #[cfg(feature = "hooks-probe")]
    ("probe", Static::Setting(probe, set_probe)),
];

#[cfg(feature = "hooks-probe")]
fn probe(out: &mut Text) -> Result<()> {
    let (refused, asked) = security::probe::seen();
    match asked {
        0 => writeln!(out, "0 -"),
        _ => writeln!(out, "{refused} {asked:x}"),
    }
    Ok(())
}

#[cfg(feature = "hooks-probe")]
fn set_probe(data: &[u8]) -> Result<()> {
    security::probe::tell(core::str::from_utf8(data).map_err(|_| Errno::EINVAL)?)
}

/// The policies that are on, first asked first. As on Linux no newline ends the list.
fn policies(out: &mut Text) -> Result<()> {
    for (index, policy) in security::hooks::order().policies().enumerate() {
        write!(out, "{}{}", if index > 0 { "," } else { "" }, policy.name);
    }
    Ok(())
}

/// One line for each hook: its name, how often it was called since the tally was switched on, its
/// rule, and the policies that implement it.
fn hooks(out: &mut Text) -> Result<()> {
    for (index, hook) in lsm::table::HOOKS.iter().enumerate() {
        let calls = security::hooks::calls(index);
        writeln!(out, "{} {calls} {} {}", hook.name, hook.rule(), hook.policies.join(","));
    }
    Ok(())
}

/// `1` counts all calls of hooks from now on, `0` ends it.
fn set_tally(data: &[u8]) -> Result<()> {
    if !current().subject().capable(Capability::SysAdmin) {
        return Err(Errno::EPERM);
    }
    match parse_number::<u32>(data)? {
        value @ 0..=1 => security::hooks::set_tally(value == 1),
        _ => Err(Errno::EINVAL),
    }
}

/// Files of the directory of all CPUs.
pub(super) static CPUS: &[(&str, Static)] = &[
    ("isolated", Static::File(|out| list(out, machine::context::isolation().isolated))),
    ("kernel_max", Static::File(|out| line(out, &(MAX_CPUS - 1).to_string()))),
    ("nohz_full", Static::File(nohz_full)),
    ("offline", Static::File(|out| line(out, ""))),
    ("online", Static::File(online)),
    ("possible", Static::File(online)),
    ("present", Static::File(online)),
    ("smt", Static::Directory(SMT)),
    (
        "vulnerabilities",
        Static::Directory(&[
            ("gather_data_sampling", Static::File(|out| vulnerability(out, 0))),
            ("ghostwrite", Static::File(|out| vulnerability(out, 1))),
            ("indirect_target_selection", Static::File(|out| vulnerability(out, 2))),
            ("itlb_multihit", Static::File(|out| vulnerability(out, 3))),
            ("l1tf", Static::File(|out| vulnerability(out, 4))),
            ("mds", Static::File(|out| vulnerability(out, 5))),
            ("meltdown", Static::File(|out| vulnerability(out, 6))),
            ("mmio_stale_data", Static::File(|out| vulnerability(out, 7))),
            ("old_microcode", Static::File(|out| vulnerability(out, 8))),
            ("reg_file_data_sampling", Static::File(|out| vulnerability(out, 9))),
            ("retbleed", Static::File(|out| vulnerability(out, 10))),
            ("spec_rstack_overflow", Static::File(|out| vulnerability(out, 11))),
            ("spec_store_bypass", Static::File(|out| vulnerability(out, 12))),
            ("spectre_v1", Static::File(|out| vulnerability(out, 13))),
            ("spectre_v2", Static::File(|out| vulnerability(out, 14))),
            ("srbds", Static::File(|out| vulnerability(out, 15))),
            ("tsa", Static::File(|out| vulnerability(out, 16))),
            ("tsx_async_abort", Static::File(|out| vulnerability(out, 17))),
            ("vmscape", Static::File(|out| vulnerability(out, 18))),
        ]),
    ),
];

/// Whether cores have several threads that run: nothing switches it.
static SMT: &[(&str, Static)] = &[
    ("active", Static::File(|out| line(out, if cpus::has_siblings() { "1" } else { "0" }))),
    (
        "control",
        Static::File(|out| line(out, if cpus::has_siblings() { "on" } else { "notsupported" })),
    ),
];

/// What is done about the vulnerability that is file number `index` of its directory.
fn vulnerability(out: &mut Text, index: usize) -> Result<()> {
    let selection = machine::mitigations::selection();
    let (_, state) = selection.files()[index];
    writeln!(out, "{state}");
    Ok(())
}

fn huge_pages(out: &mut Text) -> Result<()> {
    huge::describe(out).map_err(|_| Errno::EIO)?;
    line(out, "")
}

fn set_huge_pages(data: &[u8]) -> Result<()> {
    let name = core::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
    let is_known = huge::set_policy(name.trim_end());
    khugepaged::note_change();
    if is_known { Ok(()) } else { Err(Errno::EINVAL) }
}

fn huge_files(out: &mut Text) -> Result<()> {
    page_cache::huge::describe(out).map_err(|_| Errno::EIO)?;
    line(out, "")
}

fn set_huge_files(data: &[u8]) -> Result<()> {
    let name = core::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
    let is_known = page_cache::huge::HugeFiles::set_of_nameless(name.trim_end());
    khugepaged::note_change();
    if is_known { Ok(()) } else { Err(Errno::EINVAL) }
}

fn line(out: &mut Text, text: &str) -> Result<()> {
    writeln!(out, "{text}");
    Ok(())
}

fn zero(out: &mut Text) -> Result<()> {
    line(out, "0")
}

fn mask_of_all() -> u32 {
    u32::MAX >> (32 - cpu_count().clamp(1, 32))
}

/// A set of CPUs as a list of ranges, such as `0-2,5`.
pub fn put_cpu_list(out: &mut Text, mask: u32) {
    let has = |cpu: u32| cpu < 32 && mask & 1 << cpu != 0;
    let mut cpu = 0;
    let mut separator = "";
    while cpu < 32 {
        if !has(cpu) {
            cpu += 1;
            continue;
        }
        let first = cpu;
        while has(cpu) {
            cpu += 1;
        }
        match cpu - 1 {
            last if last == first => write!(out, "{separator}{first}"),
            last => write!(out, "{separator}{first}-{last}"),
        }
        separator = ",";
    }
}

fn online(out: &mut Text) -> Result<()> {
    list(out, mask_of_all())
}

fn list(out: &mut Text, mask: u32) -> Result<()> {
    put_cpu_list(out, mask);
    out.bytes(b"\n");
    Ok(())
}

/// Linux says `(null)` where no CPU is named.
fn nohz_full(out: &mut Text) -> Result<()> {
    match machine::context::isolation().nohz_full {
        0 => line(out, "(null)"),
        mask => list(out, mask),
    }
}

fn map_of_all(out: &mut Text) -> Result<()> {
    put_cpu_mask(out, mask_of_all());
    out.bytes(b"\n");
    Ok(())
}

/// A set of CPUs as a hexadecimal number, with a digit for each four CPUs there are.
pub fn put_cpu_mask(out: &mut Text, mask: u32) {
    out.hex(mask.into(), cpu_count().div_ceil(4));
}

fn node_memory(out: &mut Text) -> Result<()> {
    let (total, free) = machine::frame::usage();
    let lines = [("MemTotal", total), ("MemFree", free), ("MemUsed", total - free)];
    for (name, pages) in lines {
        let width = 23usize.saturating_sub(name.len());
        writeln!(out, "Node 0 {name}:{:>width$} kB", pages * 4);
    }
    Ok(())
}
