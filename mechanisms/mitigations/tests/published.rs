//! Reports that Linux gave on real machines, as people have published them (`lscpu`, boot logs, the
//! files themselves), against what this room says Linux 6.18 would do there. Lines that are not
//! published, or not of a kernel as new as this, are left out.

use mitigations::profiles::find;
use mitigations::{Built, Options, select};

type Report = &'static [(&'static str, &'static str)];

/// Core i7-7700T, transactions switched off by microcode; lscpu under Linux 6.18.
const KABY_LAKE: Report = &[
    ("gather_data_sampling", "Mitigation: Microcode"),
    ("indirect_target_selection", "Not affected"),
    ("itlb_multihit", "KVM: Mitigation: Split huge pages"),
    ("l1tf", "Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT vulnerable"),
    ("mds", "Mitigation: Clear CPU buffers; SMT vulnerable"),
    ("meltdown", "Mitigation: PTI"),
    ("mmio_stale_data", "Mitigation: Clear CPU buffers; SMT vulnerable"),
    ("old_microcode", "Not affected"),
    ("retbleed", "Mitigation: IBRS"),
    ("spec_store_bypass", "Mitigation: Speculative Store Bypass disabled via prctl"),
    ("spectre_v1", "Mitigation: usercopy/swapgs barriers and __user pointer sanitization"),
    (
        "spectre_v2",
        "Mitigation: IBRS; IBPB: conditional; STIBP: conditional; RSB filling; PBRSB-eIBRS: Not \
         affected; BHI: Not affected",
    ),
    ("srbds", "Mitigation: Microcode"),
    ("tsa", "Not affected"),
    ("vmscape", "Mitigation: IBPB before exit to userspace"),
];

/// A Xeon of Cascade Lake; lscpu.
const CASCADE_LAKE: Report = &[
    ("l1tf", "Not affected"),
    ("mds", "Not affected"),
    ("meltdown", "Not affected"),
    ("mmio_stale_data", "Mitigation: Clear CPU buffers; SMT vulnerable"),
    ("retbleed", "Mitigation: Enhanced IBRS"),
    (
        "spectre_v2",
        "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; PBRSB-eIBRS: SW sequence; BHI: \
         SW loop, KVM: SW loop",
    ),
    ("srbds", "Not affected"),
    ("tsx_async_abort", "Mitigation: TSX disabled"),
    ("vmscape", "Mitigation: IBPB before exit to userspace"),
];

/// A Core of Comet Lake; boot log.
const COMET_LAKE: Report = &[
    ("gather_data_sampling", "Mitigation: Microcode"),
    ("indirect_target_selection", "Mitigation: Aligned branch/return thunks"),
    ("mmio_stale_data", "Mitigation: Clear CPU buffers; SMT vulnerable"),
    ("retbleed", "Mitigation: Enhanced IBRS"),
    ("spec_store_bypass", "Mitigation: Speculative Store Bypass disabled via prctl"),
    ("srbds", "Mitigation: Microcode"),
    ("tsx_async_abort", "Not affected"),
    ("vmscape", "Mitigation: IBPB before exit to userspace"),
];

/// A Xeon of Ice Lake; inxi.
const ICE_LAKE: Report = &[
    ("gather_data_sampling", "Mitigation: Microcode"),
    ("ghostwrite", "Not affected"),
    ("indirect_target_selection", "Mitigation: Aligned branch/return thunks"),
    ("itlb_multihit", "Not affected"),
    ("l1tf", "Not affected"),
    ("mds", "Not affected"),
    ("meltdown", "Not affected"),
    ("mmio_stale_data", "Mitigation: Clear CPU buffers; SMT vulnerable"),
    ("reg_file_data_sampling", "Not affected"),
    ("retbleed", "Not affected"),
    (
        "spectre_v2",
        "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; PBRSB-eIBRS: SW sequence; BHI: \
         SW loop, KVM: SW loop",
    ),
    ("vmscape", "Not affected"),
];

/// A Core of Alder Lake, mobile; lscpu.
const ALDER_LAKE: Report = &[
    ("itlb_multihit", "Not affected"),
    ("reg_file_data_sampling", "Mitigation: Clear Register File"),
    ("retbleed", "Not affected"),
    ("spec_rstack_overflow", "Not affected"),
    (
        "spectre_v2",
        "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; PBRSB-eIBRS: SW sequence; BHI: \
         BHI_DIS_S",
    ),
    ("srbds", "Not affected"),
    ("tsa", "Not affected"),
    ("vmscape", "Mitigation: IBPB before exit to userspace"),
];

/// A Ryzen of Zen 2; lscpu under Linux 6.17.
const ZEN2: Report = &[
    ("itlb_multihit", "Not affected"),
    ("mds", "Not affected"),
    ("meltdown", "Not affected"),
    ("retbleed", "Mitigation: untrained return thunk; SMT enabled with STIBP protection"),
    ("spec_rstack_overflow", "Mitigation: Safe RET"),
    ("spec_store_bypass", "Mitigation: Speculative Store Bypass disabled via prctl"),
    (
        "spectre_v2",
        "Mitigation: Retpolines; IBPB: conditional; STIBP: always-on; RSB filling; PBRSB-eIBRS: \
         Not affected; BHI: Not affected",
    ),
    ("tsa", "Not affected"),
    ("vmscape", "Mitigation: IBPB before exit to userspace"),
];

/// A cloud's guest on EPYC 7763; lscpu.
const ZEN3_GUEST: Report = &[
    ("retbleed", "Not affected"),
    ("spec_rstack_overflow", "Vulnerable: Safe RET, no microcode"),
    ("spec_store_bypass", "Vulnerable"),
    (
        "spectre_v2",
        "Mitigation: Retpolines; STIBP: disabled; RSB filling; PBRSB-eIBRS: Not affected; BHI: Not \
         affected",
    ),
    ("tsa", "Vulnerable: No microcode"),
    ("vmscape", "Not affected"),
];

/// A microVM's guest on Zen 5 under Linux 6.18: its files, all of them.
const ZEN5_GUEST: Report = &[
    ("gather_data_sampling", "Not affected"),
    ("ghostwrite", "Not affected"),
    ("indirect_target_selection", "Not affected"),
    ("itlb_multihit", "Not affected"),
    ("l1tf", "Not affected"),
    ("mds", "Not affected"),
    ("meltdown", "Not affected"),
    ("mmio_stale_data", "Not affected"),
    ("old_microcode", "Not affected"),
    ("reg_file_data_sampling", "Not affected"),
    ("retbleed", "Not affected"),
    ("spec_rstack_overflow", "Vulnerable: Safe RET, no microcode"),
    ("spec_store_bypass", "Vulnerable"),
    ("spectre_v1", "Mitigation: usercopy/swapgs barriers and __user pointer sanitization"),
    (
        "spectre_v2",
        "Mitigation: Retpolines; STIBP: disabled; RSB filling; PBRSB-eIBRS: Not affected; BHI: Not \
         affected",
    ),
    ("srbds", "Not affected"),
    ("tsa", "Not affected"),
    ("tsx_async_abort", "Not affected"),
    ("vmscape", "Not affected"),
];

fn compare(profile: &str, report: Report) {
    compare_with(profile, report, &Built::LINUX);
}

fn compare_with(profile: &str, report: Report, built: &Built) {
    let profile = find(profile).expect("a profile of this name");
    let selection = select(&profile.facts, &Options::default(), built);
    for (name, published) in report {
        let file = selection.files().into_iter().find(|(file, _)| file == name);
        let (_, said) = file.expect("a file of this name");
        assert_eq!(said.to_string(), *published, "{}: {name}", profile.name);
    }
}

#[test]
fn intel() {
    compare("kabylake", KABY_LAKE);
    compare("cascadelake", CASCADE_LAKE);
    compare("cometlake", COMET_LAKE);
    compare("icelake-sp", ICE_LAKE);
    compare("alderlake-mobile", ALDER_LAKE);
}

/// This kernel has all means that Linux takes there, so it says the same.
#[test]
fn amd() {
    for built in [&Built::LINUX, &Built::LIMEN] {
        compare_with("zen2", ZEN2, built);
        compare_with("zen2-mobile", ZEN2, built);
        compare_with("zen3-guest", ZEN3_GUEST, built);
        compare_with("zen5-guest", ZEN5_GUEST, built);
    }
}
