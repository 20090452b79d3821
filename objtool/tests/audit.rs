//! The audit on images whose truth is known.

use objtool::{FindingKind, Options, audit};

const CALLS: [(&str, &[u8], i8); 3] = [
    ("none", include_bytes!("fixtures/calls-none.elf"), -4),
    ("11,11", include_bytes!("fixtures/calls-11.elf"), -15),
    ("16,16", include_bytes!("fixtures/calls-16.elf"), -20),
];
const FMT: &[u8] = include_bytes!("fixtures/fmt.elf");

#[test]
fn three_prefix_modes_agree_with_the_source() {
    for (name, image, disp) in CALLS {
        let report = audit(image, &Options { strict_hashes: true, ..Options::default() }).unwrap();
        assert!(report.is_clean(), "{name}: {report}");
        let counts = report.counts;
        assert_eq!((counts.checks, counts.traps, counts.checks_by_relocation), (10, 10, 10));
        assert_eq!((counts.thunk_calls, counts.thunk_jumps, counts.unchecked), (7, 3, 0));
        assert_eq!((counts.preambles, counts.orphans), (7, 0));
        assert_eq!(report.hash_displacement, Some(disp), "{name}");
    }
}

#[test]
fn what_the_compiler_does_not_call_a_preamble_is_none() {
    let mut image = CALLS[1].1.to_vec();
    let name = image.windows(6).position(|bytes| bytes == b"__cfi_").unwrap();
    image[name] = b'a';
    let report = audit(&image, &Options::default()).unwrap();
    assert_eq!(report.counts.preambles, 6, "{report}");
}

#[test]
fn core_fmt_is_checked_everywhere() {
    let report = audit(FMT, &Options::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.counts.checks, report.counts.traps), (48, 48));
    assert_eq!(report.counts.checks_by_relocation, 48);
}

#[test]
fn a_removed_check_is_found_by_every_witness() {
    // The first check becomes nops: the trap entry dangles, and the call is unchecked.
    let mut image = CALLS[1].1.to_vec();
    let site = image.windows(2).position(|pair| pair == [0x41, 0xba]).unwrap();
    image[site..site + 14].fill(0x90);
    let report = audit(&image, &Options::default()).unwrap();
    let kinds: Vec<_> = report.violations().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&FindingKind::BadTrap), "{report}");
    assert!(kinds.contains(&FindingKind::UncheckedBranch), "{report}");
    assert_eq!(report.counts.unchecked, 1);
    assert_eq!(report.counts.checks_by_relocation, 9);
}
