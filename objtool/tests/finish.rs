//! The last link step on an image with every kind of site.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use objtool::elf::Image;
use objtool::static_calls::TRAMPOLINES;
use objtool::{Error, FindingKind, FinishOptions, Form, Options, audit, finish, sequence};
use text_patching::jump_label;
use text_patching::preamble::{self, POISON};
use text_patching::site_table::{SECTION, SiteTables};
use text_patching::tail::BranchKind;

const SITES: &[u8] = include_bytes!("fixtures/sites.elf");

/// File offset of `address`.
fn offset(image: &Image<'_>, address: u64) -> usize {
    let piece = image.piece_at(address).unwrap();
    usize::try_from(piece.file_offset + address - piece.address).unwrap()
}

fn finished() -> Vec<u8> {
    finish(SITES, &FinishOptions::default()).unwrap().data
}

#[test]
fn all_tables_are_there() {
    let data = finished();
    let image = Image::parse(&data).unwrap();
    let symbol = |name| image.symbol(name).unwrap();
    let tables = SiteTables::parse(image.section(SECTION).unwrap().bytes).unwrap();
    assert_eq!((tables.disp(), tables.form()), (-15, Form::Opt));
    assert_eq!(tables.thunk(), Some(symbol("__x86_indirect_thunk_r11")));
    assert_eq!((tables.checks().len(), tables.thunks().len()), (3, 0));
    assert!(
        tables.checks().iter().all(|check| check.thunk && check.shape.kind == BranchKind::Call)
    );

    // Two copies of the branch (one inlined into _start), each with the key of the source.
    let branches: Vec<_> = tables.branches().iter().collect();
    assert_eq!(branches.len(), 2);
    assert!(branches.iter().all(|branch| branch.key == 7 && !branch.likely));
    assert_eq!(branches[0].site, symbol("with_branch") + 2);

    // with_call, with_many, the chain and _start (with its inlined copies) call; with_tail and the
    // chain's last call jump.
    let calls: Vec<_> = tables.calls().iter().collect();
    let tails: Vec<_> = calls.iter().filter(|call| call.tail).collect();
    assert_eq!((calls.len(), tails.len()), (10, 2));
    let key = |name| u32::try_from(symbol(name) & 0xffff_ffff).unwrap();
    assert_eq!((tails[0].site, tails[0].key), (symbol("with_tail"), key("sct_hook")));
    let of = |name| calls.iter().filter(move |call| call.key == key(name));
    assert_eq!(of("sct_event").count(), 2);
    assert!(calls.iter().all(|call| call.dynamic == (call.key == key("sct_event"))));
    assert_eq!(
        of("sct_many0").map(|call| call.site).collect::<Vec<_>>(),
        [symbol("many_chain") + 3]
    );
}

#[test]
fn only_functions_whose_address_is_taken_keep_their_hash() {
    let data = finished();
    let image = Image::parse(&data).unwrap();
    let hash =
        |name: &str| preamble::decode_at(&image, image.symbol(name).unwrap(), -15).unwrap().hash;
    for name in ["real_hook", "twice"] {
        assert_ne!(hash(name), POISON, "{name}");
    }
    for name in ["real_event", "slow_path", "with_tail", "_start"] {
        assert_eq!(hash(name), POISON, "{name}");
    }
    let options = FinishOptions { poison: false, ..FinishOptions::default() };
    let unpoisoned = finish(SITES, &options).unwrap();
    assert_eq!(unpoisoned.poisoned, 0);
    assert_eq!(unpoisoned.report.counts.poisonable, 8);
}

#[test]
fn chains_make_one_direct_call_for_each_callee() {
    let totals = audit(SITES, &Options::default()).unwrap().static_calls;
    assert_eq!((totals.calls, totals.callees, totals.alone), (3, 3, [1, 1]));
    assert_eq!((totals.chained, totals.chain_calls, totals.sites), (2, 2, 8));

    let image = Image::parse(SITES).unwrap();
    let at = |name: &str| offset(&image, image.symbol(name).unwrap());
    let table = usize::try_from(image.section(TRAMPOLINES).unwrap().file_offset).unwrap();
    let wrong = |change: &dyn Fn(&mut Vec<u8>), what: &str| {
        let mut bad = SITES.to_vec();
        change(&mut bad);
        let report = audit(&bad, &Options::default()).unwrap();
        let mut found = report.violations().filter(|f| f.kind == FindingKind::StaticCall);
        assert!(found.any(|f| f.detail.contains(what)), "{what}: {report}");
    };
    let call = at("many_chain") + 3;
    // Another function, the other place, nothing, an indirect call instead.
    wrong(&|bad| bad[call + 1] ^= 0x40, "leaves a chain");
    wrong(&|bad| bad[call + 1] += 0x10, "not place 0");
    wrong(&|bad| bad[call..call + 5].copy_from_slice(&jump_label::NOP5), "not place 0");
    let indirect = [0xff, 0xd0, 0x90, 0x90, 0x90];
    wrong(&|bad| bad[call..call + 5].copy_from_slice(&indirect), "call *reg in a chain");
    // A callee more or less than the chain calls.
    wrong(&|bad| bad[table + 2 * 16 + 12] = 3, "2 places for 3 callees");
    wrong(&|bad| bad[table + 2 * 16 + 12] = 1, "0 callees");
    // A place of somebody else's chain, and one that is there twice.
    wrong(&|bad| bad[table + 3 * 16 + 8] -= 0x20, "1 places for 2 callees");
    wrong(&|bad| bad[table + 4 * 16 + 12] = 0, "not place 1");
    wrong(&|bad| bad[table + 4 * 16] -= 0x10, "listed twice");
}

#[test]
fn finishing_is_deterministic_and_idempotent() {
    let once = finished();
    assert!(once == finished());
    assert!(once == finish(&once, &FinishOptions::default()).unwrap().data);
    assert_eq!(once.len(), SITES.len());
    assert!(audit(&once, &Options::default()).unwrap().is_clean());
}

#[test]
fn the_sequence_is_that_of_the_sites() {
    let sequence = sequence(&finished()).unwrap();
    assert_eq!((sequence.same, sequence.calls), (3, 3));
    let hex: Vec<u8> = sequence.bytes.into();
    assert_eq!(
        (&hex[..2], &hex[6..16]),
        (&[0x41, 0xba][..], &[0x45, 0x03, 0x53, 0xf1, 0x75, 0x01, 0xa8, 0xd6, 0x2e, 0xe8][..],)
    );
}

fn refused(data: &[u8]) -> String {
    match finish(data, &FinishOptions::default()) {
        Err(Error::Refused(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn what_cannot_be_patched_fails_the_build() {
    let image = Image::parse(SITES).unwrap();
    let at = |name: &str| offset(&image, image.symbol(name).unwrap());

    let mut bad = SITES.to_vec();
    bad[at("with_branch") + 2] = 0x90; // no longer the five-byte nop
    assert!(refused(&bad).contains("with_branch"));

    let mut bad = SITES.to_vec();
    bad[at("sct_hook") + 5] = 0x90; // signature
    assert!(refused(&bad).contains("no static-call trampoline"));

    let traps = image.section(".kcfi_traps").unwrap().file_offset;
    let mut bad = SITES.to_vec();
    bad[usize::try_from(traps).unwrap()] ^= 1;
    assert!(refused(&bad).contains("trap entry"));
}

/// The fixture with [start, end) as its entry text: two of its symbols get the names and values
/// that a linker script would give them.
fn with_entry_text(start: u64, end: u64) -> Vec<u8> {
    fn word(data: &[u8], at: usize) -> usize {
        usize::try_from(u64::from_le_bytes(data[at..at + 8].try_into().unwrap())).unwrap()
    }
    const SECTION_HEADER: usize = 64;
    const SYMBOL: usize = 24;
    let mut data = SITES.to_vec();
    let headers = word(&data, 0x28);
    // .symtab is section 15 of the fixture, and .strtab the last one, 17.
    let [symtab, strtab] = [15, 17].map(|index| headers + index * SECTION_HEADER);
    let (old, size) = (word(&data, strtab + 24), word(&data, strtab + 32));
    let mut names = data[old..old + size].to_vec();
    let new = data.len();
    for (symbol, (name, value)) in
        [("__entry_text_start", start), ("__entry_text_end", end)].into_iter().enumerate()
    {
        let at = word(&data, symtab + 24) + (2 + symbol) * SYMBOL;
        data[at..at + 4].copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
        data[at + 8..at + 16].copy_from_slice(&value.to_le_bytes());
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    data[strtab + 24..strtab + 32].copy_from_slice(&(new as u64).to_le_bytes());
    data[strtab + 32..strtab + 40].copy_from_slice(&(names.len() as u64).to_le_bytes());
    data.extend(names);
    data
}

#[test]
fn entry_text_must_not_change_at_run_time() {
    let image = Image::parse(SITES).unwrap();
    let symbol = |name| image.symbol(name).unwrap();
    let between = |from, to| with_entry_text(symbol(from), symbol(to));
    let neither = between("twice", "__cfi_slow_path");
    assert!(finish(&neither, &FinishOptions::default()).is_ok());
    let call = between("with_call", "__cfi_with_tail");
    assert!(refused(&call).contains("static call in entry text"));
    let branch = between("with_branch", "__cfi_with_call");
    assert!(refused(&branch).contains("static branch in entry text"));

    // A key that keeps its value after boot may be there: all CPUs have seen it.
    let table = image.section("__jump_table").unwrap();
    let from = usize::try_from(table.file_offset).unwrap();
    let mut after_init = branch;
    for entry in (from..from + table.bytes.len()).step_by(jump_label::RAW_LEN) {
        let flags = (jump_label::RO_AFTER_INIT >> 24).to_le_bytes()[0];
        after_init[entry + 11] |= flags;
    }
    let data = finish(&after_init, &FinishOptions::default()).unwrap().data;
    let image = Image::parse(&data).unwrap();
    let tables = SiteTables::parse(image.section(SECTION).unwrap().bytes).unwrap();
    assert!(tables.branches().iter().all(|branch| branch.ro_after_init && branch.key == 7));
}

#[test]
fn the_room_must_be_there_and_large_enough() {
    let none = include_bytes!("fixtures/calls-11.elf");
    assert!(matches!(finish(none, &FinishOptions::default()), Err(Error::NoSection)));
}

#[test]
fn without_the_tables_the_report_says_so() {
    let report = audit(SITES, &Options::default()).unwrap();
    assert!(report.not_proved.iter().any(|line| line.contains("not filled")));
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["clean"], true);
    assert_eq!(json["counts"]["checks"], 3);
}
