//! /proc/cpuinfo: what CPUID says, in the words of proc(5).

use abi::Result;
use machine::cpu::{apic_id, cpu_count, cpuid, features};

use super::caches::{Cache, caches, has_leaf, is_amd};
use super::cpus::Shape;
use crate::fs::pseudo::Text;

/// Names of the feature bits of one CPUID register, lowest bit first; empty where a bit has none.
struct Word {
    leaf: u32,
    subleaf: u32,
    /// 0 to 3: EAX, EBX, ECX, EDX.
    register: usize,
    names: &'static str,
}

/// In the order in which the flags are listed. `-` stands for a bit without a name.
const WORDS: &[Word] = &[
    Word {
        leaf: 1,
        subleaf: 0,
        register: 3,
        names: "fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn \
                clflush - dts acpi mmx fxsr sse sse2 ss ht tm ia64 pbe",
    },
    Word {
        leaf: 0x8000_0001,
        subleaf: 0,
        register: 3,
        names: "- - - - - - - - - - - syscall - - - - - - - mp nx - mmxext - - fxsr_opt pdpe1gb \
                rdtscp - lm 3dnowext 3dnow",
    },
    Word { leaf: 0x8000_0007, subleaf: 0, register: 3, names: "- - - - - - - - constant_tsc" },
    Word {
        leaf: 1,
        subleaf: 0,
        register: 2,
        names: "pni pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 cid sdbg fma cx16 xtpr \
                pdcm - pcid dca sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave - \
                avx f16c rdrand hypervisor",
    },
    Word {
        leaf: 0x8000_0001,
        subleaf: 0,
        register: 2,
        names: "lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw \
                ibs xop skinit wdt - lwp fma4 tce - nodeid_msr - tbm topoext perfctr_core \
                perfctr_nb - bpext ptsc perfctr_llc mwaitx",
    },
    Word {
        leaf: 7,
        subleaf: 0,
        register: 1,
        names: "fsgsbase tsc_adjust sgx bmi1 hle avx2 - smep bmi2 erms invpcid rtm cqm - mpx rdt_a \
                avx512f avx512dq rdseed adx smap avx512ifma - clflushopt clwb intel_pt avx512pf \
                avx512er avx512cd sha_ni avx512bw avx512vl",
    },
    Word { leaf: 0xd, subleaf: 1, register: 0, names: "xsaveopt xsavec xgetbv1 -" },
    Word { leaf: 7, subleaf: 1, register: 0, names: "- - - - avx_vnni avx512_bf16" },
    Word {
        leaf: 0x8000_0008,
        subleaf: 0,
        register: 1,
        names: "clzero irperf xsaveerptr - rdpru - - - - wbnoinvd - - - - - - - - - - - - - \
                amd_ppin - virt_ssbd - cppc",
    },
    Word {
        leaf: 7,
        subleaf: 0,
        register: 2,
        names: "- avx512vbmi umip - - waitpkg avx512_vbmi2 - gfni vaes vpclmulqdq avx512_vnni \
                avx512_bitalg tme avx512_vpopcntdq - - - - - - - rdpid - - cldemote - movdiri \
                movdir64b",
    },
    Word {
        leaf: 7,
        subleaf: 0,
        register: 3,
        names: "- - - - fsrm - - - avx512_vp2intersect - md_clear - - - serialize - tsxldtrk - - - \
                - - - - - - - - flush_l1d arch_capabilities",
    },
];

/// Calls `use_name` for each feature, in the order of Linux's list. Features of the vector state
/// count only if this kernel saves that state, PCIDs if it uses them.
fn each_flag(mut use_name: impl FnMut(&str)) {
    let (avx, avx512) = (features().xcr0 & 4 != 0, features().xcr0 & 0xe0 == 0xe0);
    for word in WORDS.iter().filter(|word| has_leaf(word.leaf)) {
        let bits = cpuid(word.leaf, word.subleaf)[word.register];
        for (bit, name) in word.names.split_ascii_whitespace().enumerate() {
            let is_usable = match name {
                "-" => false,
                name if name.starts_with("avx512") => avx512,
                "pcid" => machine::pcid::in_use(),
                "avx" | "avx2" | "fma" | "f16c" | "vaes" | "vpclmulqdq" | "avx_vnni" => avx,
                _ => true,
            };
            if bits & 1 << bit != 0 && is_usable {
                use_name(name);
            }
        }
    }
    if machine::user_shadow_stack::exist() {
        use_name("user_shstk");
    }
    if cpuid(0x8000_0007, 0)[3] & 1 << 8 != 0 && has_leaf(0x8000_0007) {
        use_name("nonstop_tsc");
    }
}

/// Bytes of a register as text.
fn put_registers(out: &mut Text, registers: &[u32]) {
    for register in registers {
        let bytes = register.to_le_bytes();
        out.bytes(&bytes[..bytes.iter().position(|&b| b == 0).unwrap_or(4)]);
    }
}

/// Family, model, stepping (SDM 2A, CPUID, leaf 1).
fn signature() -> (u32, u32, u32) {
    let eax = cpuid(1, 0)[0];
    let (base, stepping) = (eax >> 8 & 0xf, eax & 0xf);
    let family = if base == 0xf { base + (eax >> 20 & 0xff) } else { base };
    let extended = if base >= 6 { (eax >> 16 & 0xf) << 4 } else { 0 };
    (family, extended | eax >> 4 & 0xf, stepping)
}

fn put_model_name(out: &mut Text) {
    out.bytes(b"model name\t: ");
    if has_leaf(0x8000_0004) {
        let start = out.0.len();
        (0x8000_0002..=0x8000_0004).for_each(|leaf| put_registers(out, &cpuid(leaf, 0)));
        let name = out.0.split_off(start);
        out.bytes(name.trim_ascii());
    } else {
        out.bytes(b"unknown");
    }
    out.bytes(b"\n");
}

/// The size of the largest cache, KiB, if the CPU tells it; of AMD's the second level's, which is
/// what Linux shows.
fn cache_kib(shape: &Shape) -> Option<u32> {
    let all = caches(shape.thread_bits, shape.package_bits);
    let shown = all.iter().filter(|cache| !is_amd() || cache.level == 2);
    shown.map(Cache::kib).max()
}

pub(super) fn show(out: &mut Text) -> Result<()> {
    let max_leaf = cpuid(0, 0)[0];
    let [_, b, c, d] = cpuid(0, 0);
    let (family, model, stepping) = signature();
    let count = cpu_count();
    let shape = Shape::new();
    let cache_kib = cache_kib(&shape);
    let khz = machine::time::tsc_hz() / 1000;
    let line = (cpuid(1, 0)[1] >> 8 & 0xff) * 8;
    // Four levels of page tables, whatever the CPU could do.
    let virtual_bits = 48;
    for cpu in 0..count {
        write!(out, "processor\t: {cpu}\nvendor_id\t: ");
        put_registers(out, &[b, d, c]);
        writeln!(out, "\ncpu family\t: {family}\nmodel\t\t: {model}");
        put_model_name(out);
        writeln!(out, "stepping\t: {stepping}\ncpu MHz\t\t: {}.{:03}", khz / 1000, khz % 1000);
        if let Some(kib) = cache_kib {
            writeln!(out, "cache size\t: {kib} KB");
        }
        let (id, cores) = (apic_id(cpu), shape.cores(apic_id(cpu)));
        let siblings = Shape::sharers(id, shape.package_bits).count_ones();
        writeln!(out, "physical id\t: {}\nsiblings\t: {siblings}", shape.package(id));
        writeln!(out, "core id\t\t: {}\ncpu cores\t: {cores}", shape.core(id));
        writeln!(out, "apicid\t\t: {id}\ninitial apicid\t: {id}");
        writeln!(out, "fpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: {max_leaf}\nwp\t\t: yes");
        out.bytes(b"flags\t\t:");
        each_flag(|name| write!(out, " {name}"));
        // Twice the TSC's rate, as it is where the delay loop counts TSC ticks.
        writeln!(out, "\nbogomips\t: {}.{:02}", khz / 500, khz / 5 % 100);
        writeln!(out, "clflush size\t: {line}\ncache_alignment\t: {line}");
        let physical_bits = features().physical_bits;
        let sizes = format_args!("{physical_bits} bits physical, {virtual_bits} bits virtual");
        writeln!(out, "address sizes\t: {sizes}\npower management:\n");
    }
    Ok(())
}
