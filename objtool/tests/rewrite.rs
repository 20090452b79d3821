//! Rewriting: all or nothing, and nothing but the form.

use objtool::{Error, FinishOptions, Form, Options, audit, finish, rewrite};
use text_patching::kcfi::{BODY_KCFI, BODY_OPT, CHECK_LEN, HEAD_OFF};

const IMAGES: [(&str, &[u8], usize); 5] = [
    ("none", include_bytes!("fixtures/calls-none.elf"), 10),
    ("11,11", include_bytes!("fixtures/calls-11.elf"), 10),
    ("16,16", include_bytes!("fixtures/calls-16.elf"), 10),
    ("fmt", include_bytes!("fixtures/fmt.elf"), 48),
    ("sites", include_bytes!("fixtures/sites.elf"), 3),
];

fn opt(image: &[u8]) -> Result<objtool::Rewritten, Error> {
    rewrite(image, Form::Opt, &Options::default())
}

/// File offsets of the checks, found without objtool: the compiler's body behind its head.
fn checks(image: &[u8]) -> Vec<usize> {
    let is_check = |at: usize| {
        let bytes = &image[at..at + CHECK_LEN];
        bytes.starts_with(&[0x41, 0xba])
            && bytes[6..9] == [0x45, 3, 0x53]
            && bytes[10..] == BODY_KCFI
    };
    (0..image.len() - CHECK_LEN).filter(|&at| is_check(at)).collect()
}

#[test]
fn only_four_bytes_of_every_check_change() {
    for (name, image, count) in IMAGES {
        let sites = checks(image);
        assert_eq!(sites.len(), count, "{name}");
        let mut golden = image.to_vec();
        for at in sites {
            golden[at + 10..at + 14].copy_from_slice(&BODY_OPT);
        }
        let rewritten = opt(image).unwrap();
        assert!(rewritten.data == golden, "{name}");
        assert_eq!((rewritten.applied.sites, rewritten.applied.written), (count, count));
        assert_eq!(rewritten.report.counts.form_opt, count);
        let again = opt(&rewritten.data).unwrap();
        assert_eq!((again.applied.sites, again.applied.written), (count, 0));
        let back = rewrite(&rewritten.data, Form::Kcfi, &Options::default()).unwrap();
        assert!(back.data == image, "{name}");
    }
}

#[test]
fn off_is_a_jump_over_the_check() {
    for (name, image, _) in IMAGES {
        let off = rewrite(image, Form::Off, &Options::default()).unwrap();
        for at in checks(image) {
            assert_eq!(off.data[at..at + 2], HEAD_OFF, "{name}");
        }
        let report = audit(&off.data, &Options::default()).unwrap();
        assert!(report.is_clean(), "{name}: {report}");
        let back = rewrite(&off.data, Form::Kcfi, &Options::default()).unwrap();
        assert!(back.data == image, "{name}");
    }
}

#[test]
fn an_image_that_does_not_know_udb_is_named() {
    let rewritten = opt(IMAGES[1].1).unwrap();
    assert!(rewritten.warnings.iter().any(|warning| warning.contains("UDB")));
}

/// Every position of every check; all eight single-bit errors and an inverted byte.
#[test]
fn a_corrupt_check_stops_the_rewrite() {
    for (name, image, _) in IMAGES.into_iter().take(3) {
        for at in checks(image) {
            for position in 0..CHECK_LEN {
                for flip in (0..8).map(|bit| 1 << bit).chain([0xff]) {
                    let mut bad = image.to_vec();
                    bad[at + position] ^= flip;
                    let result = opt(&bad);
                    // Four bytes are the type's hash, which may be any number: without tables a
                    // wrong one is only visible as one that no function carries.
                    if (2..6).contains(&position) {
                        let counts = result.unwrap().report.counts;
                        assert_eq!(counts.orphans, 1, "{name} {position} {flip:#x}");
                    } else {
                        let error = result.unwrap_err();
                        assert!(matches!(error, Error::Refused(_)), "{name} {position}: {error}");
                    }
                }
            }
        }
    }
}

/// A finished image knows its hashes: there all fourteen bytes count.
#[test]
fn a_finished_image_notices_every_byte() {
    let image = finish(IMAGES[4].1, &FinishOptions::default()).unwrap().data;
    let bodies = (10..image.len() - 4).filter(|&at| image[at..at + 4] == BODY_OPT);
    let sites: Vec<_> = bodies.map(|at| at - 10).collect();
    assert_eq!(sites.len(), 3);
    for at in sites {
        for position in 0..CHECK_LEN {
            for flip in (0..8).map(|bit| 1 << bit).chain([0xff]) {
                let mut bad = image.clone();
                bad[at + position] ^= flip;
                assert!(!audit(&bad, &Options::default()).unwrap().is_clean());
                let error = rewrite(&bad, Form::Kcfi, &Options::default()).unwrap_err();
                assert!(matches!(error, Error::Refused(_)), "{position} {flip:#x}");
            }
        }
    }
}

#[test]
fn a_finished_image_keeps_its_tables_in_step() {
    let finished = finish(IMAGES[4].1, &FinishOptions::default()).unwrap().data;
    for form in [Form::Kcfi, Form::Off, Form::Opt] {
        let rewritten = rewrite(&finished, form, &Options::default()).unwrap();
        assert!(rewritten.report.is_clean(), "{}", rewritten.report);
    }
}

/// Without section headers there are no symbols, no relocations and no trap table.
#[test]
fn a_stripped_image_can_still_be_rewritten() {
    for (name, image, count) in IMAGES {
        let mut bare = image.to_vec();
        bare[0x28..0x30].fill(0); // e_shoff
        bare[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
        let report = audit(&bare, &Options::default()).unwrap();
        assert_eq!(report.counts.checks, count, "{name}: {report}");
        assert!(!report.not_proved.is_empty());
        let rewritten = opt(&bare).unwrap();
        assert_eq!(rewritten.applied.written, count, "{name}");
        assert!(rewritten.warnings.iter().any(|warning| warning.contains("kcfi_traps")));
    }
}
