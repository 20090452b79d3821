//! /sys/devices/system/cpu/cpuN: where CPUs sit and which caches they have, beside what CPUID and
//! /proc/cpuinfo say.

use std::arch::x86_64::__cpuid_count;
use std::fs::read_to_string;

use crate::sys::*;
use crate::tests;

tests!("cpus":
    seats_agree, masks_and_lists_agree, cpuinfo_agrees, caches_are_those_of_cpuid,
    caches_are_shared,
);

const CPUS: &str = "/sys/devices/system/cpu";

fn text(path: &str) -> String {
    let text = read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.strip_suffix('\n').unwrap_or_else(|| panic!("{path}: no newline")).to_string()
}

/// A list such as `0-2,5`.
fn list(path: &str) -> Vec<usize> {
    let number = |digits: &str| digits.parse::<usize>().unwrap();
    let each = |part: &str| match part.split_once('-') {
        Some((first, last)) => (number(first)..=number(last)).collect::<Vec<_>>(),
        None => vec![number(part)],
    };
    text(path).split(',').flat_map(each).collect()
}

fn all() -> Vec<usize> {
    list(&format!("{CPUS}/online"))
}

fn topology(cpu: usize, name: &str) -> String {
    format!("{CPUS}/cpu{cpu}/topology/{name}")
}

/// The sets of CPUs among which one sits, from the smallest.
const SETS: [&str; 4] = ["thread_siblings", "core_cpus", "die_cpus", "package_cpus"];

fn seats_agree() {
    for cpu in all() {
        let set = |name: &str| list(&topology(cpu, &format!("{name}_list")));
        for pair in SETS.windows(2) {
            assert!(set(pair[0]).iter().all(|cpu| set(pair[1]).contains(cpu)), "{pair:?}");
        }
        assert!(set("thread_siblings").contains(&cpu));
        assert!(set("cluster_cpus").contains(&cpu));
        assert_eq!(set("core_siblings"), set("package_cpus"));
        assert_eq!(set("thread_siblings"), set("core_cpus"));
        text(&topology(cpu, "cluster_id")).parse::<i32>().unwrap();
        // Who has the same numbers sits in the same place.
        let place = |cpu| {
            ["physical_package_id", "die_id", "core_id"].map(|name| text(&topology(cpu, name)))
        };
        let same = |depth: usize| -> Vec<usize> {
            let is_beside = |&other: &usize| place(other)[..depth] == place(cpu)[..depth];
            all().into_iter().filter(is_beside).collect()
        };
        assert_eq!(same(1), set("package_cpus"));
        assert_eq!(same(2), set("die_cpus"));
        assert_eq!(same(3), set("core_cpus"));
    }
}

fn masks_and_lists_agree() {
    let digits = text(&topology(0, "package_cpus")).len();
    for cpu in all().into_iter().filter(|&cpu| cpu < 32) {
        for name in SETS.iter().chain(&["cluster_cpus", "core_siblings"]) {
            let mask = text(&topology(cpu, name));
            assert_eq!(mask.len(), digits, "{name}: {mask}");
            let low = u64::from_str_radix(mask.rsplit(',').next().unwrap(), 16).unwrap();
            let listed = list(&topology(cpu, &format!("{name}_list")));
            let as_mask =
                listed.iter().filter(|&&cpu| cpu < 32).fold(0, |mask, cpu| mask | 1 << cpu);
            assert_eq!(low, as_mask, "{name}");
        }
    }
}

fn cpuinfo_agrees() {
    let info = read_to_string("/proc/cpuinfo").unwrap();
    for block in info.split("\n\n").filter(|block| !block.is_empty()) {
        let value = |name: &str| {
            let mut lines = block.lines().filter_map(|line| line.split_once(':'));
            let line = lines.find(|(known, _)| known.trim() == name);
            line.map(|(_, value)| value.trim().to_string())
        };
        let cpu: usize = value("processor").unwrap().parse().unwrap();
        // Linux leaves these out where there is one CPU.
        let Some(package) = value("physical id") else { continue };
        assert_eq!(package, text(&topology(cpu, "physical_package_id")));
        assert_eq!(value("core id").unwrap(), text(&topology(cpu, "core_id")));
        let inside = list(&topology(cpu, "package_cpus_list"));
        assert_eq!(value("siblings").unwrap(), inside.len().to_string());
        let mut cores: Vec<String> =
            inside.iter().map(|&cpu| text(&topology(cpu, "core_cpus_list"))).collect();
        cores.sort();
        cores.dedup();
        assert_eq!(value("cpu cores").unwrap(), cores.len().to_string());
    }
}

/// Directories of caches of a CPU; there may be none.
fn caches(cpu: usize) -> Vec<String> {
    let path = |index| format!("{CPUS}/cpu{cpu}/cache/index{index}");
    (0..).map(path).take_while(|path| std::path::Path::new(path).exists()).collect()
}

fn number(cache: &str, name: &str) -> u32 {
    text(&format!("{cache}/{name}")).parse().unwrap()
}

/// The leaf that lists caches, if this CPU has one.
fn leaf_of_caches() -> Option<u32> {
    let [has_4, has_1d] = [0, 0x8000_0000].map(|range| __cpuid_count(range, 0).eax);
    let is_intel = __cpuid_count(0, 0).ebx == u32::from_le_bytes(*b"Genu");
    let has_extensions = __cpuid_count(0x8000_0001, 0).ecx & 1 << 22 != 0;
    match is_intel {
        true => (has_4 >= 4).then_some(4),
        false => (has_1d >= 0x8000_001d && has_extensions).then_some(0x8000_001d),
    }
}

fn caches_are_those_of_cpuid() {
    let Some(leaf) = leaf_of_caches() else { return };
    for cpu in all() {
        if pin(cpu).is_err() {
            continue;
        }
        let subleaf = |index| __cpuid_count(leaf, index);
        let count = (0..16).take_while(|&index| subleaf(index).eax & 0x1f != 0).count();
        assert_eq!(caches(cpu).len(), count);
        for (index, cache) in (0..).zip(caches(cpu)) {
            let told = subleaf(index);
            let kinds = ["", "Data", "Instruction", "Unified"];
            assert_eq!(text(&format!("{cache}/type")), kinds[(told.eax & 0x1f) as usize]);
            assert_eq!(number(&cache, "level"), told.eax >> 5 & 7);
            assert_eq!(number(&cache, "coherency_line_size"), (told.ebx & 0xfff) + 1);
            assert_eq!(number(&cache, "physical_line_partition"), (told.ebx >> 12 & 0x3ff) + 1);
            assert_eq!(number(&cache, "ways_of_associativity"), (told.ebx >> 22) + 1);
            assert_eq!(number(&cache, "number_of_sets"), told.ecx + 1);
        }
    }
}

fn caches_are_shared() {
    for cpu in all() {
        let package = list(&topology(cpu, "package_cpus_list"));
        for (index, cache) in caches(cpu).into_iter().enumerate() {
            let parts = ["coherency_line_size", "physical_line_partition"];
            let line: u32 = parts.iter().map(|name| number(&cache, name)).product();
            let lines = number(&cache, "ways_of_associativity") * number(&cache, "number_of_sets");
            let size = text(&format!("{cache}/size"));
            assert_eq!(size, format!("{}K", line / 16 * lines / 64), "{cache}");
            let sharers = list(&format!("{cache}/shared_cpu_list"));
            assert!(sharers.contains(&cpu) && sharers.iter().all(|cpu| package.contains(cpu)));
            let same = |of: usize| {
                let other = format!("{CPUS}/cpu{of}/cache/index{index}");
                ["id", "shared_cpu_map", "size"].map(|name| text(&format!("{other}/{name}")))
            };
            sharers.iter().for_each(|&other| assert_eq!(same(other), same(cpu)));
        }
    }
}
