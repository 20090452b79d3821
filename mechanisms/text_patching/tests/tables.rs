//! The site tables and the trap that reads them.

use proptest::prelude::*;
use text_patching::fineibt;
use text_patching::kcfi::{self, Check, Form};
use text_patching::poke::SliceText;
use text_patching::site_table::{
    BranchEntry, CallEntry, CheckEntry, Contents, FunctionEntry, OFFSET_MAX, ReturnEntry,
    SiteTables, TableError, ThunkEntry,
};
use text_patching::tail::{BranchKind, Shape};
use text_patching::trap::{self, Cause, Undefined};
use text_patching::{Text, Unmapped};

const BASE: u64 = 0xffff_ffff_8000_0000;
const CALL: Shape = Shape { kind: BranchKind::Call, len: 6 };

fn check_entry(offset: u64) -> CheckEntry {
    CheckEntry { site: BASE + offset, hash: 0x1234_5678, shape: CALL, thunk: true }
}

fn written(contents: &Contents<'_>) -> Vec<u8> {
    let mut bytes = vec![0xaa; contents.size() + 64];
    assert_eq!(contents.write(&mut bytes), Ok(contents.size()));
    bytes
}

#[test]
fn everything_comes_back() {
    let checks = [
        check_entry(0x10),
        CheckEntry {
            shape: Shape { kind: BranchKind::Jump, len: 5 },
            hash: 9,
            ..check_entry(0x40)
        },
        CheckEntry { thunk: false, ..check_entry(u64::from(OFFSET_MAX)) },
    ];
    let functions = [FunctionEntry { function: BASE + 0x100, hash: 5, taken: true }];
    let thunks = [ThunkEntry { at: BASE + 8, shape: CALL }];
    let branches = [BranchEntry {
        site: BASE + 1,
        target: BASE + 99,
        key: 3,
        likely: true,
        ro_after_init: false,
    }];
    let calls = [CallEntry { site: BASE + 2, key: u32::MAX, tail: true, dynamic: true }];
    let returns = [0, 5, 0x7fff].map(|at| ReturnEntry { site: BASE + at });
    let contents = Contents {
        base: BASE,
        thunk: Some(BASE + 0x800),
        disp: -15,
        form: Some(Form::Opt),
        checks: &checks,
        functions: &functions,
        thunks: &thunks,
        branches: &branches,
        calls: &calls,
        returns: &returns,
    };
    let bytes = written(&contents);
    let tables = SiteTables::parse(&bytes).unwrap();
    assert_eq!(tables.checks().iter().collect::<Vec<_>>(), checks);
    assert_eq!(tables.functions().iter().collect::<Vec<_>>(), functions);
    assert_eq!(tables.thunks().iter().collect::<Vec<_>>(), thunks);
    assert_eq!(tables.branches().iter().collect::<Vec<_>>(), branches);
    assert_eq!(tables.calls().iter().collect::<Vec<_>>(), calls);
    assert_eq!(tables.returns().iter().collect::<Vec<_>>(), returns);
    assert_eq!(
        (tables.thunk(), tables.disp(), tables.form()),
        (Some(BASE + 0x800), -15, Form::Opt)
    );
    for check in checks {
        assert_eq!(tables.checks().find(check.site), Some(check));
        assert_eq!(tables.checks().find(check.site + 1), None);
    }
}

#[test]
fn what_is_refused() {
    assert_eq!(SiteTables::parse(&[0; 4096]).unwrap_err(), TableError::NotFilled);
    assert_eq!(SiteTables::parse(&[0; 31]).unwrap_err(), TableError::Truncated);
    assert_eq!(SiteTables::parse(&[1; 64]).unwrap_err(), TableError::Unknown);
    let twice = [check_entry(0x10), check_entry(0x10)];
    let contents = Contents { base: BASE, checks: &twice, ..Contents::default() };
    assert_eq!(contents.write(&mut vec![0; 4096]), Err(TableError::Unsorted));
    let far = [check_entry(u64::from(OFFSET_MAX) + 1)];
    let contents = Contents { checks: &far, ..contents };
    assert_eq!(contents.write(&mut vec![0; 4096]), Err(TableError::OutOfReach(far[0].site)));
    let mut small = vec![0; contents.size() - 1];
    assert_eq!(contents.write(&mut small), Err(TableError::NoRoom(contents.size())));
    // With a base this high addresses wrap, and a search by address misses entries.
    let high = u64::MAX - 0x20;
    let checks =
        [0, 0x40].map(|offset| CheckEntry { site: high.wrapping_add(offset), ..check_entry(0) });
    let contents = Contents { base: high, checks: &checks, ..Contents::default() };
    assert_eq!(contents.write(&mut vec![0; 4096]), Err(TableError::Field));
}

/// One check at BASE+0x10 in the given form, and its table.
fn trap_world(form: Form, register: u8) -> (Vec<u8>, Vec<u8>) {
    let mut text = vec![0x90; 0x40];
    let check = Check { hash: 0x1234_5678, disp: -15, register, form };
    text[0x10..0x1e].copy_from_slice(&kcfi::encode(&check));
    let checks = [check_entry(0x10)];
    let contents = Contents { base: BASE, disp: -15, checks: &checks, ..Contents::default() };
    (text, written(&contents))
}

#[test]
fn both_traps_name_site_hash_and_register() {
    for (form, offset) in [(Form::Kcfi, 12), (Form::Opt, 13)] {
        for register in [11, 3] {
            let (mut text, table) = trap_world(form, register);
            let text = SliceText::new(BASE, &mut text);
            let tables = SiteTables::parse(&table).unwrap();
            let site = BASE + 0x10;
            let failure = trap::on_undefined(site + offset, &tables, &text).unwrap();
            assert_eq!((failure.site, failure.resume), (site, site + 14));
            assert_eq!((failure.expected, failure.register), (0x1234_5678, register));
            assert_eq!((failure.cause, failure.hash_address(0x1000)), (Cause::Mismatch, 0xff1));
            for other in (0..32).filter(|other| ![12, 13].contains(other)) {
                assert_eq!(trap::on_undefined(site + other, &tables, &text), None, "{other}");
            }
            let failure = trap::on_bad_read(site + 6, &tables, &text).unwrap();
            assert_eq!((failure.cause, failure.site), (Cause::Unreadable, site));
            assert_eq!(trap::on_bad_read(site + 12, &tables, &text), None);
        }
    }
    let (_, table) = trap_world(Form::Kcfi, 11);
    let tables = SiteTables::parse(&table).unwrap();
    for rip in [0, 6, 12, 13, u64::MAX] {
        assert_eq!(trap::on_undefined(rip, &tables, &SliceText::new(0, &mut [])), None);
        assert_eq!(trap::on_bad_read(rip, &tables, &SliceText::new(0, &mut [])), None);
    }
}

/// With FineIBT the trap is the callee's, and what lies on the stack tells whose call it was.
#[test]
fn the_trap_of_a_landing_pad() {
    let hash = 0x1234_5678;
    let function = BASE + 0x30;
    let (mut text, _) = trap_world(Form::FineIbt, 11);
    text[0x20..0x30].copy_from_slice(&fineibt::landing_pad(hash));
    let functions = [FunctionEntry { function, hash, taken: true }];
    let checks = [check_entry(0x10)];
    let (checks, functions) = (&checks, &functions);
    let contents = Contents { base: BASE, disp: -15, checks, functions, ..Contents::default() };
    let table = written(&contents);
    let tables = SiteTables::parse(&table).unwrap();
    let text = SliceText::new(BASE, &mut text);
    for rip in BASE..BASE + 0x40 {
        let found = trap::on_landing_pad(rip, &tables, &text);
        assert_eq!(found, (rip == function - 1).then_some((function, hash)), "{rip:#x}");
    }
    assert_eq!(trap::on_landing_pad(u64::MAX, &tables, &text), None);
    assert_eq!(trap::on_landing_pad(function - 1, &tables, &Gone), None);
    let site = BASE + 0x10;
    for at in 0..0x40 {
        let is_behind = at == 0x10 + 14 + 6;
        assert_eq!(trap::check_before(BASE + at, &tables), is_behind.then_some(site), "{at:#x}");
        let is_call = (0x10 + 14..0x10 + 14 + 6).contains(&at);
        assert_eq!(trap::check_at_call(BASE + at, &tables), is_call.then_some(site), "{at:#x}");
    }
}

struct Gone;
impl Text for Gone {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }
}

#[test]
fn a_site_that_is_being_rewritten_is_reported_from_the_table() {
    let (_, table) = trap_world(Form::Opt, 11);
    let tables = SiteTables::parse(&table).unwrap();
    let failure = trap::on_undefined(BASE + 0x10 + 13, &tables, &Gone).unwrap();
    assert_eq!((failure.expected, failure.register, failure.disp), (0x1234_5678, 11, -15));
    // The trap was taken in one form, and the text has the other one by now.
    let (mut text, _) = trap_world(Form::Opt, 11);
    let text = SliceText::new(BASE, &mut text);
    assert!(trap::on_undefined(BASE + 0x10 + 12, &tables, &text).is_some());
}

#[test]
fn undefined_opcodes() {
    assert_eq!(Undefined::decode([0x0f, 0x0b]), Some(Undefined::Ud2));
    assert_eq!(Undefined::decode([0xd6, 0x0b]), Some(Undefined::Udb));
    assert_eq!(Undefined::decode([0x0f, 0xb9]), Some(Undefined::Ud1));
    assert_eq!(Undefined::decode([0x0b, 0x0f]), None);
}

proptest! {
    #[test]
    fn sorted_sites_are_found(
        offsets in proptest::collection::btree_set(0..=u64::from(OFFSET_MAX), 0..200),
    ) {
        let checks: Vec<_> = offsets.iter().map(|&offset| check_entry(offset)).collect();
        let bytes = written(&Contents { base: BASE, checks: &checks, ..Contents::default() });
        let tables = SiteTables::parse(&bytes).unwrap();
        prop_assert_eq!(tables.checks().len(), checks.len());
        for check in &checks {
            prop_assert_eq!(tables.checks().find(check.site), Some(*check));
        }
    }

    /// Any bytes, and any three changed bytes of a good section: no panic, and what parses can be
    /// walked to its end in order.
    #[test]
    fn hostile_tables(
        changes in proptest::collection::vec((0..200_usize, any::<u8>()), 0..4),
        cut in 0..400_usize,
    ) {
        let checks = [check_entry(1), check_entry(20), check_entry(300)];
        let mut bytes = written(&Contents { base: BASE, checks: &checks, ..Contents::default() });
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(cut);
        if let Ok(tables) = SiteTables::parse(&bytes) {
            let offsets: Vec<_> = tables.checks().iter().map(|e| e.site.wrapping_sub(
                u64::from_le_bytes(bytes[16..24].try_into().unwrap()))).collect();
            prop_assert!(offsets.is_sorted());
            prop_assert!(tables.functions().iter().count() <= bytes.len());
        }
    }
}
