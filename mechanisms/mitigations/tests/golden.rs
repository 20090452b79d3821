//! Every CPU of `profiles` with a dozen command lines, against `golden.txt`: all files with no
//! option, and for each option the files that it changes. A change of the table, of an option or
//! of a word shows as a difference of lines, to be looked at. `GOLDEN=write cargo test` writes the
//! file.

use std::fmt::Write as _;

use mitigations::profiles::PROFILES;
use mitigations::{Built, Options, Plan, select};

const LINES: [&str; 16] = [
    "mitigations=off",
    "mitigations=auto,nosmt",
    "mitigations=auto;no_user_kernel,no_user_user",
    "mitigations=auto;no_guest_host,no_guest_guest",
    "nosmt=force",
    "pti=on nospectre_v1 spec_store_bypass_disable=on",
    "spectre_v2=retpoline spectre_v2_user=on",
    "spectre_v2=eibrs,lfence spectre_bhi=vmexit",
    "mds=off tsx=on tsx_async_abort=off mmio_stale_data=off reg_file_data_sampling=off tsa=off",
    "retbleed=ibpb,nosmt spec_rstack_overflow=ibpb-vmexit",
    "retbleed=unret spec_rstack_overflow=off",
    "retbleed=off spec_rstack_overflow=ibpb",
    "retbleed=stuff spectre_v2=retpoline",
    "indirect_target_selection=stuff spectre_v2=eibrs,retpoline",
    "srbds=off gather_data_sampling=off l1tf=full indirect_target_selection=off",
    "vmscape=force spectre_v2_user=seccomp,ibpb spec_store_bypass_disable=seccomp",
];

fn files(profile: &mitigations::profiles::Profile, line: &str) -> Vec<(String, String)> {
    let options = Options::parse(line, |bad| panic!("{bad:?}"));
    let selection = select(&profile.facts, &options, &Built::LIMEN);
    let plan = Plan::new(&selection, &profile.facts, &options);
    let mut files: Vec<(String, String)> = selection
        .files()
        .iter()
        .map(|(name, said)| ((*name).to_owned(), said.to_string()))
        .collect();
    files.push(("machine".to_owned(), plan.to_string()));
    files
}

fn table() -> String {
    let mut out = String::new();
    for profile in PROFILES {
        writeln!(out, "= {} ({})", profile.name, profile.sold_as).expect("a string");
        writeln!(out, "{}", profile.facts).expect("a string");
        let plain = files(profile, "");
        for (name, said) in &plain {
            writeln!(out, "  {name}: {said}").expect("a string");
        }
        for line in LINES {
            writeln!(out, "- {line}").expect("a string");
            for (before, after) in plain.iter().zip(files(profile, line)) {
                if *before != after {
                    writeln!(out, "  {}: {}", after.0, after.1).expect("a string");
                }
            }
        }
    }
    out
}

#[test]
fn the_table_is_the_golden_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");
    let table = table();
    if std::env::var_os("GOLDEN").is_some() {
        std::fs::write(path, &table).expect("the golden file");
    }
    let golden = std::fs::read_to_string(path).expect("the golden file");
    let differs = golden.lines().zip(table.lines()).enumerate().find(|(_, (a, b))| a != b);
    if let Some((line, (wanted, found))) = differs {
        panic!("golden.txt:{}\n wanted: {wanted}\n found:  {found}", line + 1);
    }
    assert_eq!(golden.lines().count(), table.lines().count());
}

/// What holds for every CPU and every line.
#[test]
fn reports_and_plans_agree() {
    for profile in PROFILES {
        for line in LINES.into_iter().chain([""]) {
            let options = Options::parse(line, |bad| panic!("{bad:?}"));
            let selection = select(&profile.facts, &options, &Built::LIMEN);
            let plan = Plan::new(&selection, &profile.facts, &options);
            let said = |name| {
                let file = selection.files().into_iter().find(|(file, _)| *file == name);
                file.expect("a file").1.to_string()
            };
            let context = format!("{} {line}", profile.name);
            assert_eq!(
                said("meltdown") == "Mitigation: PTI",
                plan.pti && said("meltdown") != "Not affected",
                "{context}"
            );
            let v2 = said("spectre_v2");
            assert_eq!(v2.contains("RSB filling"), plan.fills_return_stack, "{context}");
            assert_eq!(v2.contains("BHI_DIS_S"), plan.spec_ctrl & 1 << 10 != 0, "{context}");
            assert_eq!(v2.contains("SW loop, KVM"), plan.bhb_on_entry.is_some(), "{context}");
            assert_eq!(v2.contains("IBPB: always-on"), plan.ibpb_on_switch.is_everybody());
            let clears = ["mds", "tsx_async_abort"].map(said);
            let clears = clears.iter().any(|text| text.contains("Clear CPU buffers"))
                || said("reg_file_data_sampling").starts_with("Mitigation")
                || said("tsa").starts_with("Mitigation")
                    && said("tsa")
                        != "Mitigation: Clear CPU \
                    buffers: VM";
            assert_eq!(clears, plan.verw_on_exit, "{context}");
            let every_entry = said("retbleed").starts_with("Mitigation: IBPB")
                || said("spec_rstack_overflow") == "Mitigation: IBPB";
            assert_eq!(every_entry, plan.ibpb_on_entry, "{context}");
            let safe = said("spec_rstack_overflow").contains("Safe RET");
            assert_eq!(safe, plan.returns.are_safe(), "{context}");
            let untrained = said("retbleed").contains("untrained return thunk");
            assert_eq!(safe || untrained, plan.returns.untrains(), "{context}");
            // The loop's own returns are plain.
            let loops = plan.bhb_on_entry.is_some() || plan.guest.bhb.is_some();
            assert!(!(loops && plan.returns.untrains()), "{context}");
            assert!(plan.pred_cmd != 0 || !plan.ibpb_on_entry, "{context}");
            assert!(plan.has_spec_ctrl || plan.spec_ctrl == 0, "{context}");
        }
    }
}
