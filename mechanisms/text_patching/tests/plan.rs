//! Verify, then write: nothing is written unless all is right, and nothing is ever half done.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use proptest::prelude::*;
use text_patching::kcfi::{self, CHECK_LEN, Check, Expect, Form};
use text_patching::poke::{self, SliceText, What};
use text_patching::preamble::{self, ENDBR64, POISON, Prefix, Seed};
use text_patching::tail::{self, BranchKind, Shape, Via};
use text_patching::{Anomaly, Text, TextPoke, Unmapped};

const BASE: u64 = 0xffff_ffff_8000_0000;
const FORMS: [Form; 3] = [Form::Kcfi, Form::Opt, Form::Off];
const STRIDE: usize = 24;

fn image(checks: &[Check]) -> Vec<u8> {
    let mut bytes = vec![0x90; checks.len() * STRIDE];
    for (check, room) in checks.iter().zip(bytes.chunks_exact_mut(STRIDE)) {
        room[..CHECK_LEN].copy_from_slice(&kcfi::encode(check));
    }
    bytes
}

fn expects(checks: &[Check]) -> impl Iterator<Item = Expect> + Clone + use<> {
    let checks = checks.to_vec();
    (0..checks.len()).map(move |i| Expect {
        site: BASE + (i * STRIDE) as u64,
        hash: Some(checks[i].hash),
        disp: Some(checks[i].disp),
        register: Some(checks[i].register),
    })
}

fn three(form: Form, disp: i8) -> Vec<Check> {
    [0x1111_1111, 0x89ab_cdef, 0x0000_0001]
        .map(|hash| Check { hash, disp, register: 11, form })
        .into()
}

fn reform(
    bytes: &mut [u8],
    expects: impl Iterator<Item = Expect> + Clone,
    form: Form,
) -> Result<poke::Applied, Anomaly> {
    let mut text = SliceText::new(BASE, bytes);
    let pass = poke::check(&text, expects, |text: &SliceText<'_>, e| kcfi::reform(text, e, form))?;
    Ok(pass.apply(&mut text).unwrap())
}

#[test]
fn every_form_becomes_every_other_in_every_prefix_mode() {
    for prefix in Prefix::ALL {
        for from in FORMS {
            for to in FORMS {
                let checks = three(from, prefix.disp());
                let mut bytes = image(&checks);
                let applied = reform(&mut bytes, expects(&checks), to).unwrap();
                assert_eq!((applied.sites, applied.written), (3, if from == to { 0 } else { 3 }));
                let text = SliceText::new(BASE, &mut bytes);
                for expect in expects(&checks) {
                    assert_eq!(expect.decode(&text).unwrap().form, to, "{prefix:?} {from:?}");
                }
            }
        }
    }
}

#[test]
fn off_and_back_restores_every_byte() {
    for form in [Form::Kcfi, Form::Opt] {
        let checks = three(form, -15);
        let original = image(&checks);
        let mut bytes = original.clone();
        reform(&mut bytes, expects(&checks), Form::Off).unwrap();
        assert_ne!(bytes, original);
        reform(&mut bytes, expects(&checks), form).unwrap();
        assert_eq!(bytes, original);
    }
}

/// Each of the 14 bytes, each of the 255 wrong values, at the first, middle and last site.
#[test]
fn one_wrong_byte_anywhere_and_nothing_is_written() {
    for form in FORMS {
        let checks = three(form, -15);
        for site in 0..checks.len() {
            for position in 0..CHECK_LEN {
                for flip in 1..=255 {
                    let mut bytes = image(&checks);
                    bytes[site * STRIDE + position] ^= flip;
                    let before = bytes.clone();
                    for to in FORMS {
                        let error = reform(&mut bytes, expects(&checks), to).unwrap_err();
                        assert_eq!(error.site, BASE + (site * STRIDE) as u64);
                        assert_eq!(bytes, before, "{position} {flip:#x}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_anomaly_names_the_byte() {
    let good = kcfi::encode(&three(Form::Kcfi, -15)[0]);
    let at = |position: u8, value: u8| {
        let mut bytes = good;
        bytes[usize::from(position)] = value;
        kcfi::decode(BASE, &bytes).unwrap_err()
    };
    let byte = |offset, expected, found| Anomaly::new(BASE, offset, What::Byte { expected, found });
    assert_eq!(at(0, 0x40), byte(0, 0x41, 0x40));
    assert_eq!(at(1, 0xb9), byte(1, 0xba, 0xb9));
    assert_eq!(at(7, 0x2b), byte(7, 0x03, 0x2b));
    assert_eq!(at(11, 0x03), byte(11, 0x02, 0x03));
    assert_eq!(at(13, 0xd6), byte(13, 0x0b, 0xd6));
    assert_eq!(at(13, 0xd6).to_string(), "site 0xffffffff80000000+13: byte is d6, expected 0b");
}

#[test]
fn sites_must_ascend_and_stay_apart() {
    let checks = three(Form::Kcfi, -15);
    let mut bytes = image(&checks);
    let before = bytes.clone();
    let twice = [BASE, BASE].into_iter().map(Expect::any);
    assert_eq!(reform(&mut bytes, twice, Form::Opt).unwrap_err().what, What::Overlap);
    let backwards = [BASE + 24, BASE].into_iter().map(Expect::any);
    assert_eq!(reform(&mut bytes, backwards, Form::Opt).unwrap_err().what, What::Overlap);
    let outside = [BASE, BASE + 48, BASE + 70].into_iter().map(Expect::any);
    assert_eq!(reform(&mut bytes, outside, Form::Opt).unwrap_err().what, What::Unmapped);
    assert_eq!(bytes, before);
}

/// Text that runs a probe after every single store, as an NMI would.
struct Nmi<'a> {
    text: SliceText<'a>,
    site: u64,
    seen: Vec<Form>,
}

impl Text for Nmi<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        self.text.read(addr, out)
    }
}

impl TextPoke for Nmi<'_> {
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        assert!(matches!(bytes.len(), 2 | 4), "one store instruction");
        self.text.poke(addr, bytes);
        self.seen.push(kcfi::decode_at(&self.text, self.site).unwrap().form);
    }
}

#[test]
fn an_nmi_between_two_stores_sees_a_whole_form() {
    for from in FORMS {
        for to in FORMS {
            let check = Check { hash: 77, disp: -15, register: 11, form: from };
            let mut bytes = image(&[check]);
            let text = SliceText::new(BASE, &mut bytes);
            let mut nmi = Nmi { text, site: BASE, seen: Vec::new() };
            let sites = [Expect::any(BASE)].into_iter();
            let pass = poke::check(&nmi, sites, |t: &Nmi<'_>, e| kcfi::reform(t, e, to)).unwrap();
            pass.apply(&mut nmi).unwrap();
            if from != to {
                assert_eq!(nmi.seen.last(), Some(&to));
            }
            assert!(nmi.seen.iter().all(|form| *form == from || *form == to), "{from:?} {to:?}");
        }
    }
}

#[test]
fn text_that_changes_between_the_phases_is_reported() {
    let checks = three(Form::Kcfi, -15);
    let mut bytes = image(&checks);
    let mut text = SliceText::new(BASE, &mut bytes);
    let derive = |text: &SliceText<'_>, expect| kcfi::reform(text, expect, Form::Opt);
    let pass = poke::check(&text, expects(&checks), derive).unwrap();
    text.poke(BASE + STRIDE as u64 + 12, &[0x90]);
    let broken = pass.apply(&mut text).unwrap_err();
    assert_eq!((broken.site, broken.found.offset), (BASE + STRIDE as u64, 12));
}

#[test]
fn seeds_that_force_illegal_hashes() {
    for illegal in [POISON, ENDBR64, ENDBR64.wrapping_neg()] {
        for hash in [1, 0x56e5_b5a5, u32::MAX] {
            let seed = Seed::new(hash ^ illegal);
            let rehashed = seed.rehash(hash).unwrap();
            // Not by `is_legal`: a wrong one would agree with itself.
            let forbidden = [POISON, ENDBR64, ENDBR64.wrapping_neg()];
            assert!(!forbidden.contains(&rehashed), "{illegal:#x}");
            assert!(!preamble::is_legal(illegal), "{illegal:#x}");
            assert_eq!(seed.rehash(hash), Some(rehashed));
        }
    }
    assert_eq!(Seed::new(5).rehash(POISON), None);
    assert_eq!(Seed::new(0).rehash(0x56e5_b5a5), Some(0x56e5_b5a5), "cfi=norand");
    assert_eq!(format!("{:?}", Seed::new(0x1234)), "Seed(..)");
}

#[test]
fn a_poisoned_function_matches_no_check() {
    let mut bytes = vec![0x90; 64];
    bytes[..5].copy_from_slice(&[0xb8, 0x78, 0x56, 0x34, 0x12]);
    let mut text = SliceText::new(BASE, &mut bytes);
    let expect = preamble::Expect { function: BASE + 16, disp: -15, hash: 0x1234_5678 };
    let derive = |text: &SliceText<'_>, expect| preamble::set_hash(text, expect, POISON);
    let pass = poke::check(&text, [expect].into_iter(), derive).unwrap();
    pass.apply(&mut text).unwrap();
    assert_eq!(preamble::decode_at(&text, BASE + 16, -15).unwrap().hash, POISON);
    let mut zero = kcfi::encode(&three(Form::Kcfi, -15)[0]);
    zero[2..6].fill(0);
    assert_eq!(kcfi::decode(0, &zero).unwrap_err().what, What::ZeroHash);
    let wrong = preamble::Expect { hash: 1, ..expect };
    assert!(preamble::set_hash(&text, wrong, 2).is_err());
}

#[test]
fn tails_go_every_way_and_back() {
    let thunk = BASE + 0x800;
    let ways = [Via::Thunk, Via::Direct, Via::Lfence];
    for kind in [BranchKind::Call, BranchKind::Jump] {
        for len in [5, 6] {
            let expect = tail::Expect { at: BASE, shape: Shape { kind, len }, thunk };
            for (from, to) in ways.iter().flat_map(|f| ways.iter().map(move |t| (*f, *t))) {
                let Ok(code) = tail::encode(BASE, expect.shape, from, thunk) else {
                    assert_eq!((len, from), (5, Via::Lfence));
                    continue;
                };
                let mut bytes = code.as_slice().to_vec();
                let text = SliceText::new(BASE, &mut bytes);
                match tail::reroute(&text, expect, to) {
                    Ok(patch) => {
                        let want = tail::encode(BASE, expect.shape, to, thunk).unwrap();
                        assert_eq!((patch.old, patch.new), (code, want));
                        let decoded = tail::decode(BASE, patch.new.as_slice()).unwrap();
                        let tail::Tail::Known { shape, via, .. } = decoded else { panic!() };
                        assert_eq!((shape, via), (expect.shape, to));
                    }
                    Err(error) => {
                        assert_eq!((error.what, len, to), (What::NoRoom, 5, Via::Lfence));
                    }
                }
            }
        }
    }
}

#[test]
fn a_thunk_call_that_goes_elsewhere_is_refused() {
    let shape = Shape { kind: BranchKind::Call, len: 6 };
    let code = tail::encode(BASE, shape, Via::Thunk, BASE + 0x900).unwrap();
    let mut bytes = code.as_slice().to_vec();
    let text = SliceText::new(BASE, &mut bytes);
    let expect = tail::Expect { at: BASE, shape, thunk: BASE + 0x800 };
    let error = tail::reroute(&text, expect, Via::Direct).unwrap_err();
    let (expected, found) = (BASE + 0x800, BASE + 0x900);
    assert_eq!(error.what, What::Target { expected, found });
}

proptest! {
    #[test]
    fn decode_inverts_encode(
        hash in 1_u32..,
        disp in any::<i8>(),
        register in 0_u8..16,
        f in 0..3_usize,
    ) {
        prop_assume!(register & 7 != 4);
        let check = Check { hash, disp, register, form: FORMS[f] };
        prop_assert_eq!(kcfi::decode(BASE, &kcfi::encode(&check)), Ok(check));
    }

    #[test]
    fn what_decodes_is_determined(bytes in any::<[u8; 14]>()) {
        if let Ok(check) = kcfi::decode(BASE, &bytes) && check.form != Form::Off {
            prop_assert_eq!(kcfi::encode(&check), bytes);
        }
    }

    #[test]
    fn callers_and_callees_go_on_matching(hash in 1_u32.., seed in any::<u32>()) {
        let rehashed = Seed::new(seed).rehash(hash).unwrap();
        let mut bytes = image(&[Check { hash, disp: -15, register: 11, form: Form::Opt }]);
        let mut text = SliceText::new(BASE, &mut bytes);
        let expect = Expect { hash: Some(hash), ..Expect::any(BASE) };
        let derive = |text: &SliceText<'_>, e| kcfi::rehash(text, e, rehashed);
        poke::check(&text, [expect].into_iter(), derive).unwrap().apply(&mut text).unwrap();
        let check = kcfi::decode_at(&text, BASE).unwrap();
        prop_assert_eq!((check.hash, check.form), (rehashed, Form::Opt));
        prop_assert!(preamble::is_legal(rehashed));
    }
}
