//! The boot-time rewrite of a whole image, checked after every store.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use text_patching::boot::BootPlan;
use text_patching::fineibt;
use text_patching::kcfi::{self, Check, Form};
use text_patching::options::{CfiOptions, Ignored, parse};
use text_patching::poke::SliceText;
use text_patching::preamble::{self, ENDBR64, POISON, Seed};
use text_patching::return_site::{self, PLAIN, Return};
use text_patching::site_table::{
    CheckEntry, Contents, FunctionEntry, ReturnEntry, SiteTables, ThunkEntry,
};
use text_patching::tail::{self, BranchKind, Shape, Via};
use text_patching::{Text, TextPoke, Unmapped};

const BASE: u64 = 0xffff_ffff_8100_0000;
const THUNK: u64 = BASE + 0x800;
const FORMS: [Form; 3] = [Form::Kcfi, Form::Opt, Form::Off];
const HASHES: [u32; 3] = [0x1234_5678, 0x89ab_cdef, 7];
const CALL: Shape = Shape { kind: BranchKind::Call, len: 6 };
const FUNCTIONS_AT: u64 = 0x200;
const RETURNS_AT: [u64; 2] = [0x300, 0x305];
const BY_THUNK: Return = Return::Thunk(BASE + 0x820);

/// Three callers at 0, 0x40, 0x80, each with its callee at 0x210, 0x250, 0x290; one poisoned
/// function behind them; one allowed thunk call at 0x100; two returns at 0x300.
struct World {
    text: Vec<u8>,
    table: Vec<u8>,
}

fn world(form: Form) -> World {
    let mut text = vec![0xcc; 0x400];
    let mut put = |offset: u64, bytes: &[u8]| {
        let at = usize::try_from(offset).unwrap();
        text[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let mut checks = Vec::new();
    let mut functions = Vec::new();
    for (offset, hash) in (0..).step_by(0x40).zip(HASHES) {
        let site = BASE + offset;
        put(offset, &kcfi::encode(&Check { hash, disp: -15, register: 11, form }));
        put(offset + 14, tail::encode(site + 14, CALL, Via::Thunk, THUNK).unwrap().as_slice());
        checks.push(CheckEntry { site, hash, shape: CALL, thunk: true });
        put(FUNCTIONS_AT + offset, &[0xb8]);
        put(FUNCTIONS_AT + offset + 1, &hash.to_le_bytes());
        put(FUNCTIONS_AT + offset + 5, &fineibt::ROOM);
        functions.push(FunctionEntry {
            function: BASE + FUNCTIONS_AT + offset + 16,
            hash,
            taken: true,
        });
    }
    put(FUNCTIONS_AT + 0xc0, &[0xb8, 0, 0, 0, 0]);
    put(FUNCTIONS_AT + 0xc5, &fineibt::ROOM);
    let function = BASE + FUNCTIONS_AT + 0xd0;
    functions.push(FunctionEntry { function, hash: POISON, taken: false });
    put(0x100, tail::encode(BASE + 0x100, CALL, Via::Thunk, THUNK).unwrap().as_slice());
    let thunks = [ThunkEntry { at: BASE + 0x100, shape: CALL }];
    RETURNS_AT.iter().for_each(|&at| put(at, &PLAIN));
    let returns = RETURNS_AT.map(|at| ReturnEntry { site: BASE + at });
    let contents = Contents {
        base: BASE,
        thunk: Some(THUNK),
        disp: -15,
        form: Some(form),
        checks: &checks,
        functions: &functions,
        thunks: &thunks,
        returns: &returns,
        ..Contents::default()
    };
    let mut table = vec![0; contents.size()];
    contents.write(&mut table).unwrap();
    World { text, table }
}

/// After every store every good call must still go through: the check is off, or it is whole and
/// carries its callee's hash.
struct Observed<'a> {
    text: SliceText<'a>,
    stores: usize,
}

impl Text for Observed<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        self.text.read(addr, out)
    }
}

impl TextPoke for Observed<'_> {
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        assert!(matches!(bytes.len(), 1 | 2 | 4 | 5 | 6 | 8));
        self.text.poke(addr, bytes);
        self.stores += 1;
        for site in RETURNS_AT.map(|at| BASE + at) {
            let mut bytes = [0; 5];
            self.text.read(site, &mut bytes).unwrap();
            let thunk = return_site::encode(site, BY_THUNK).unwrap();
            assert!(bytes[0] == PLAIN[0] || bytes == thunk.as_slice(), "half a return");
        }
        for offset in (0..).step_by(0x40).take(HASHES.len()) {
            let callee = BASE + FUNCTIONS_AT + offset + 16;
            let mut head = [0; 2];
            self.text.read(BASE + offset, &mut head).unwrap();
            if head == kcfi::HEAD_OFF {
                continue;
            }
            let check = kcfi::decode_at(&self.text, BASE + offset).unwrap();
            let carried = match check.form {
                Form::FineIbt => fineibt::decode_landing_pad(&self.text, callee).unwrap(),
                _ => preamble::decode_at(&self.text, callee, -15).unwrap().hash,
            };
            assert_eq!(check.hash, carried, "a good call would trap");
        }
    }
}

#[test]
fn every_plan_from_every_form() {
    let seeds =
        [0, 1, 0xdead_beef, HASHES[0], HASHES[1] ^ ENDBR64, HASHES[2] ^ ENDBR64.wrapping_neg()];
    let goals = [Form::Kcfi, Form::Opt, Form::Off, Form::FineIbt];
    for (from, to) in FORMS.iter().flat_map(|from| goals.map(|to| (*from, to))) {
        for seed in seeds {
            let counted = Via::Counted { call: BASE + 0x860, jump: BASE + 0x880 };
            let ways = [Via::Thunk, Via::Direct, Via::Lfence, Via::Aligned(BASE + 0x860), counted];
            for (via, returns) in
                ways.iter().flat_map(|via| [Return::Plain, BY_THUNK].map(|returns| (*via, returns)))
            {
                let mut world = world(from);
                let tables = SiteTables::parse(&world.table).unwrap();
                let text = SliceText::new(BASE, &mut world.text);
                let mut text = Observed { text, stores: 0 };
                let plan = BootPlan { form: to, seed: Seed::new(seed), via, returns };
                let done = plan.check(&text, tables).unwrap().apply(&mut text).unwrap();
                assert_eq!((done.checks, done.functions), (3, 4));
                assert_eq!(done.stores, text.stores);
                for (offset, hash) in (0..).step_by(0x40).zip(HASHES) {
                    let check = kcfi::decode_at(&text, BASE + offset).unwrap();
                    assert_eq!((check.form, Some(check.hash)), (to, Seed::new(seed).rehash(hash)));
                    let mut bytes = [0; 6];
                    text.read(BASE + offset + 14, &mut bytes).unwrap();
                    let wanted = tail::encode(BASE + offset + 14, CALL, via, THUNK).unwrap();
                    assert_eq!(bytes, wanted.as_slice());
                }
                for site in RETURNS_AT.map(|at| BASE + at) {
                    let mut bytes = [0; 5];
                    text.read(site, &mut bytes).unwrap();
                    assert_eq!(bytes, return_site::encode(site, returns).unwrap().as_slice());
                }
                assert_eq!(done.returns, if returns == Return::Plain { 0 } else { 2 });
                let poisoned = BASE + FUNCTIONS_AT + 0xd0;
                assert_eq!(preamble::decode_at(&text, poisoned, -15).unwrap().hash, POISON);
                if (from, seed, via, returns) == (to, 0, Via::Thunk, Return::Plain) {
                    assert_eq!(done.stores, 0, "a finished image costs a verification only");
                }
            }
        }
    }
}

/// Text that loses one store.
struct Lossy<'a> {
    text: SliceText<'a>,
    left: usize,
}

impl Text for Lossy<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        self.text.read(addr, out)
    }
}

impl TextPoke for Lossy<'_> {
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        let is_lost = self.left == 0;
        self.left = self.left.wrapping_sub(1);
        if !is_lost {
            self.text.poke(addr, bytes);
        }
    }
}

/// Whichever store of landing pads or returns does not arrive, the verification sees it.
#[test]
fn a_store_that_is_lost_is_noticed() {
    let plan =
        BootPlan { form: Form::FineIbt, seed: Seed::new(9), via: Via::Thunk, returns: BY_THUNK };
    // The first three switch checks off, which the last ones replace.
    let stores = 3 + 3 * 2 + 3 * 3 + 2;
    for left in 3..=stores {
        let mut world = world(Form::Opt);
        let tables = SiteTables::parse(&world.table).unwrap();
        let mut text = Lossy { text: SliceText::new(BASE, &mut world.text), left };
        let result = plan.check(&text, tables).unwrap().apply(&mut text);
        assert_eq!(result.is_ok(), left == stores, "store {left}");
    }
}

#[test]
fn any_wrong_byte_of_any_site_stops_the_boot() {
    // All bytes of checks, of preambles' opcode and hash, and of the tails (when rerouted).
    let starts = (0..).step_by(0x40).take(3);
    let checks = starts.clone().flat_map(|start| start..start + 20);
    let hashes = starts.flat_map(|start| start + 0x200..start + 0x205);
    for at in checks.chain(hashes).chain(0x100..0x106).chain(0x300..0x30a) {
        for flip in [1, 0x80, 0xff] {
            let mut world = world(Form::Opt);
            world.text[at] ^= flip;
            let tables = SiteTables::parse(&world.table).unwrap();
            let text = SliceText::new(BASE, &mut world.text);
            let plan = BootPlan {
                form: Form::Kcfi,
                seed: Seed::new(9),
                via: Via::Direct,
                returns: BY_THUNK,
            };
            let result = plan.check(&text, tables);
            // The register field of a preamble's opcode is the arity: any of eight is legal.
            let arity = at & 0x3f == 0 && (0x200..0x300).contains(&at) && flip == 1;
            assert_eq!(result.is_err(), !arity, "{at:#x} {flip:#x}");
        }
    }
}

/// One wrong byte of the room that a landing pad takes, or a check that FineIBT cannot have.
#[test]
fn what_cannot_be_fineibt_stops_the_boot() {
    let plan = BootPlan {
        form: Form::FineIbt,
        seed: Seed::new(9),
        via: Via::Direct,
        returns: Return::Plain,
    };
    let check = |world: &mut World| {
        let tables = SiteTables::parse(&world.table).unwrap();
        plan.check(&SliceText::new(BASE, &mut world.text), tables).is_ok()
    };
    assert!(check(&mut world(Form::Opt)));
    for start in [0x200, 0x240, 0x280, 0x2c0] {
        for at in start + 5..start + 16 {
            let mut world = world(Form::Opt);
            world.text[at] ^= 0x40;
            assert!(!check(&mut world), "{at:#x}");
        }
    }
}

/// A finished pass, then one byte of a landing pad or a caller changed: the verification sees it.
#[test]
fn a_landing_pad_is_verified_whole() {
    for at in (0x200..0x210).chain(0..14) {
        let mut world = world(Form::Opt);
        let tables = SiteTables::parse(&world.table).unwrap();
        let mut text = SliceText::new(BASE, &mut world.text);
        let plan = BootPlan {
            form: Form::FineIbt,
            seed: Seed::new(9),
            via: Via::Direct,
            returns: Return::Plain,
        };
        plan.check(&text, tables).unwrap().apply(&mut text).unwrap();
        let hash = Seed::new(9).rehash(HASHES[0]).unwrap();
        let is_right = |text: &SliceText<'_>| {
            let pad = fineibt::decode_landing_pad(text, BASE + FUNCTIONS_AT + 16);
            let caller = kcfi::decode_at(text, BASE);
            pad.is_ok_and(|found| found == hash)
                && caller.is_ok_and(|check| (check.form, check.hash) == (Form::FineIbt, hash))
        };
        assert!(is_right(&text));
        let mut byte = [0];
        text.read(BASE + at, &mut byte).unwrap();
        text.poke(BASE + at, &[byte[0] ^ 0x10]);
        assert!(!is_right(&text), "{at:#x}");
    }
}

#[test]
fn the_image_must_have_the_form_that_its_table_names() {
    let mut opt = world(Form::Opt);
    let kcfi = world(Form::Kcfi);
    let tables = SiteTables::parse(&kcfi.table).unwrap();
    let text = SliceText::new(BASE, &mut opt.text);
    let plan =
        BootPlan { form: Form::Opt, seed: Seed::new(0), via: Via::Thunk, returns: Return::Plain };
    assert_eq!(plan.check(&text, tables).unwrap_err().offset, 10);
}

#[test]
fn the_parameter() {
    let quiet = |value| parse(value, false, |word, _| panic!("{word}"));
    assert_eq!(quiet(""), CfiOptions::auto(false));
    assert_eq!(quiet("auto"), CfiOptions::auto(false));
    let with_ibt = |value| parse(value, true, |word, _| panic!("{word}"));
    assert_eq!(with_ibt("").form, Form::FineIbt);
    assert_eq!(with_ibt("opt,auto").describe(), "CFI: Using rehashed FineIBT");
    assert_eq!(with_ibt("fineibt,norand").describe(), "CFI: Using FineIBT");
    assert_eq!(with_ibt("opt").form, Form::Opt, "who asks for another form gets it");
    let all = CfiOptions { form: Form::Kcfi, rand: false, warn: true, debug: true };
    assert_eq!(quiet("kcfi,norand,,warn,debug"), all);
    assert_eq!(quiet("off").describe(), "CFI: disabled");
    assert_eq!(quiet("off,opt").form, Form::Opt, "the last one counts");
    let mut seen = Vec::new();
    let words = "fineibt,Off,paranoid,norand";
    let options = parse(words, false, |word, why| seen.push((word.to_owned(), why)));
    let ignored = [
        ("fineibt".into(), Ignored::NoIbt),
        ("Off".into(), Ignored::Unknown),
        ("paranoid".into(), Ignored::NotBuilt),
    ];
    assert_eq!(seen, ignored);
    assert_eq!(options, CfiOptions { rand: false, ..CfiOptions::auto(false) });
    let long = "x,".repeat(1000);
    let mut count = 0;
    parse(&long, false, |_, _| count += 1);
    assert_eq!(count, 1000);
}
