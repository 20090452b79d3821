//! Static branches and calls, and patching them while other CPUs execute them.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;

use text_patching::int3::{self, Action, BATCH_MAX, Batch, INT3, Step};
use text_patching::jump_label::{self, LIKELY, NOP5};
use text_patching::poke::{self, Code, Patch, SliceText, What};
use text_patching::site_table::{BranchEntry, CallEntry};
use text_patching::static_call::{self, SIGNATURE, Target};
use text_patching::{Anomaly, TextPoke};

const BASE: u64 = 0xffff_ffff_8000_0000;
const LEN: u64 = 5;

fn branch(likely: bool) -> BranchEntry {
    BranchEntry { site: BASE, target: BASE + 0x40, key: 1, likely, ro_after_init: false }
}

#[test]
fn a_branch_follows_its_key() {
    for likely in [false, true] {
        for (from, to) in [(false, true), (true, false), (true, true)] {
            let entry = branch(likely);
            let mut bytes = jump_label::encode(&entry, from).unwrap().as_slice().to_vec();
            assert_eq!(bytes == NOP5, from == likely, "the hot side is the nop");
            let mut text = SliceText::new(BASE, &mut bytes);
            let derive = |text: &SliceText<'_>, entry| jump_label::set(text, &entry, to);
            let pass = poke::check(&text, [entry].into_iter(), derive).unwrap();
            pass.apply(&mut text).unwrap();
            assert_eq!(bytes, jump_label::encode(&entry, to).unwrap().as_slice());
        }
    }
}

#[test]
fn a_branch_with_other_bytes_is_refused() {
    for enabled in [false, true] {
        let good = jump_label::encode(&branch(false), enabled).unwrap();
        for position in 0..5 {
            for flip in 1..=255 {
                let mut bytes = good.as_slice().to_vec();
                bytes[position] ^= flip;
                let text = SliceText::new(BASE, &mut bytes);
                assert!(jump_label::set(&text, &branch(false), true).is_err());
            }
        }
    }
    let other = BranchEntry { target: BASE + 0x50, ..branch(false) };
    let mut bytes = jump_label::encode(&other, true).unwrap().as_slice().to_vec();
    let error =
        jump_label::set(&SliceText::new(BASE, &mut bytes), &branch(false), true).unwrap_err();
    assert_eq!(error.what, What::Target { expected: BASE + 0x40, found: BASE + 0x50 });
    let far = BranchEntry { target: 0x10_0000_0000, ..branch(false) };
    assert_eq!(jump_label::encode(&far, true).unwrap_err().what, What::OutOfReach);
}

#[test]
fn the_compilers_entry() {
    let raw = [0xf0, 0xff, 0xff, 0xff, 0x0c, 0, 0, 0, 7, 0, 0, 0x80];
    let entry = jump_label::decode_raw(BASE + 0x100, raw);
    let (site, target) = (BASE + 0xf0, BASE + 0x110);
    assert_eq!(entry, BranchEntry { site, target, key: 7, likely: true, ro_after_init: false });
    assert_eq!(LIKELY, 0x8000_0000);
}

const TARGETS: [Target; 5] = [
    Target::Function(BASE + 0x1000),
    Target::Function(BASE - 0x1000),
    Target::Nothing,
    Target::Return(0),
    Target::Return(-95),
];

/// Whether a site can have the target.
fn fits(tail: bool, target: Target) -> bool {
    static_call::encode(&site(tail), target).is_ok()
}

fn site(tail: bool) -> CallEntry {
    CallEntry { site: BASE, key: 0, tail, dynamic: false }
}

#[test]
fn a_call_becomes_every_target() {
    for tail in [false, true] {
        for from in TARGETS.into_iter().filter(|&target| fits(tail, target)) {
            for to in TARGETS.into_iter().filter(|&target| fits(tail, target)) {
                let entry = site(tail);
                let mut bytes = static_call::encode(&entry, from).unwrap().as_slice().to_vec();
                let now: [u8; 5] = bytes.clone().try_into().unwrap();
                assert_eq!(static_call::decode(&entry, now), Some(from));
                let text = SliceText::new(BASE, &mut bytes);
                let patch = static_call::update(&text, &entry, from, to).unwrap();
                assert_eq!(patch.new, static_call::encode(&entry, to).unwrap());
                assert_eq!(patch.is_noop(), from == to);
                // A site that is neither old nor new is somebody else's.
                let others = |wrong: &Target| from != to && ![from, to].contains(wrong);
                for wrong in TARGETS.into_iter().filter(others) {
                    assert!(static_call::update(&text, &entry, wrong, to).is_err());
                }
            }
        }
    }
}

#[test]
fn only_real_trampolines_are_patched() {
    let from = Target::Function(BASE + 0x1000);
    let mut bytes = static_call::encode(&site(true), from).unwrap().as_slice().to_vec();
    bytes.extend(SIGNATURE);
    let patch = |bytes: &mut [u8]| {
        let text = SliceText::new(BASE, bytes);
        static_call::update_trampoline(&text, &site(true), from, Target::Nothing)
    };
    assert!(patch(&mut bytes).is_ok());
    for position in 5..8 {
        let mut bytes = bytes.clone();
        bytes[position] ^= 1;
        assert_eq!(usize::from(patch(&mut bytes).unwrap_err().offset), position);
    }
}

/// Every byte string that a CPU may fetch: per byte any value since it last serialised.
struct Views(Vec<BTreeSet<u8>>);

impl Views {
    fn new(bytes: &[u8]) -> Self {
        Self(bytes.iter().map(|&byte| BTreeSet::from([byte])).collect())
    }

    fn all(&self) -> Vec<[u8; 5]> {
        let mut out = vec![[0; 5]];
        for (i, values) in self.0.iter().enumerate() {
            out = out
                .iter()
                .flat_map(|prefix| {
                    values.iter().map(move |&value| {
                        let mut bytes = *prefix;
                        bytes[i] = value;
                        bytes
                    })
                })
                .collect();
        }
        out
    }
}

/// Text that remembers what a CPU may see, and checks every possible fetch after every byte.
struct Fetching<'a> {
    text: SliceText<'a>,
    views: Views,
    patch: Patch,
    mixtures: usize,
    fetches: usize,
}

impl text_patching::Text for Fetching<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), text_patching::Unmapped> {
        self.text.read(addr, out)
    }
}

impl TextPoke for Fetching<'_> {
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        for (at, &byte) in (addr..).zip(bytes) {
            self.text.poke(at, &[byte]);
            self.views.0[usize::try_from(at - BASE).unwrap()].insert(byte);
            for fetched in self.views.all() {
                let code = Code::new(&fetched);
                let whole = code == self.patch.old || code == self.patch.new || fetched[0] == INT3;
                self.fetches += 1;
                self.mixtures += usize::from(!whole);
            }
        }
    }
}

fn run(patch: Patch, sync: [bool; 3]) -> (usize, usize) {
    let mut bytes = patch.old.as_slice().to_vec();
    let views = Views::new(&bytes);
    let text = SliceText::new(BASE, &mut bytes);
    let mut world = Fetching { text, views, patch, mixtures: 0, fetches: 0 };
    let patches = [patch];
    let mut batch = Batch::new(&world, &patches).unwrap();
    for sync in sync {
        assert_eq!(batch.advance(&mut world), Step::SyncCores);
        if sync {
            let mut now = [0; 5];
            text_patching::Text::read(&world, BASE, &mut now).unwrap();
            world.views = Views::new(&now);
        }
    }
    assert_eq!(batch.advance(&mut world), Step::Done);
    let (mixtures, fetches) = (world.mixtures, world.fetches);
    assert_eq!(bytes, patch.new.as_slice());
    (mixtures, fetches)
}

fn patches() -> Vec<Patch> {
    let mut out = Vec::new();
    for tail in [false, true] {
        let code = |target| static_call::encode(&site(tail), target).unwrap();
        let all = TARGETS.iter().flat_map(|f| TARGETS.iter().map(move |t| (*f, *t)));
        for (from, to) in all.filter(|&(from, to)| fits(tail, from) && fits(tail, to)) {
            out.push(Patch::whole(BASE, code(from), code(to)));
        }
    }
    for (from, to) in [(false, true), (true, false)] {
        let code = |enabled| jump_label::encode(&branch(false), enabled).unwrap();
        out.push(Patch::whole(BASE, code(from), code(to)));
    }
    out
}

#[test]
fn no_cpu_ever_fetches_a_mixture() {
    for patch in patches() {
        let (mixtures, fetches) = run(patch, [true; 3]);
        assert_eq!(mixtures, 0, "{patch:?}");
        assert!(fetches >= 6);
    }
}

#[test]
fn the_model_notices_a_missing_sync() {
    let patch = patches().into_iter().find(|p| p.old != p.new).unwrap();
    assert!(run(patch, [false, true, true]).0 > 0);
    assert!(run(patch, [true, false, true]).0 > 0);
}

/// Registers of a toy CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cpu {
    rip: u64,
    rax: u64,
    stack: Vec<u64>,
}

/// Executes one site as a CPU does: written from the instruction set, not from the crate.
fn execute(cpu: &mut Cpu, bytes: &[u8]) {
    let next = cpu.rip + LEN;
    let target =
        next.wrapping_add_signed(i64::from(i32::from_le_bytes(bytes[1..5].try_into().unwrap())));
    match bytes[0] {
        0xe8 => (cpu.stack.push(next), cpu.rip = target).1,
        0xe9 => cpu.rip = target,
        0x0f => cpu.rip = next,
        0xc3 => cpu.rip = cpu.stack.pop().unwrap(),
        0x2e => (cpu.rax = 0, cpu.rip = next).1,
        0xb8 => {
            cpu.rax = u64::from(u32::from_le_bytes(bytes[1..5].try_into().unwrap()));
            cpu.rip = next;
        }
        0x31 => (cpu.rax = 0, cpu.rip = cpu.stack.pop().unwrap()).1,
        other => panic!("{other:#x}"),
    }
}

fn act(cpu: &mut Cpu, action: Action) {
    match action {
        Action::Jump(to) | Action::Retry(to) => cpu.rip = to,
        Action::Call { target, return_to } => {
            cpu.stack.push(return_to);
            cpu.rip = target;
        }
        Action::Return => cpu.rip = cpu.stack.pop().unwrap(),
        Action::SetThenJump { value, to } => (cpu.rax, cpu.rip) = (value.into(), to),
        Action::ZeroThenReturn => (cpu.rax, cpu.rip) = (0, cpu.stack.pop().unwrap()),
    }
}

#[test]
fn the_handler_does_what_the_new_instruction_does() {
    for patch in patches() {
        let start = Cpu { rip: BASE, rax: u64::MAX, stack: vec![1, 2] };
        let mut executed = start.clone();
        execute(&mut executed, patch.new.as_slice());
        let mut bytes = patch.old.as_slice().to_vec();
        let mut text = SliceText::new(BASE, &mut bytes);
        let patches = [patch];
        let mut batch = Batch::new(&text, &patches).unwrap();
        for round in 0..4 {
            batch.advance(&mut text);
            let mut trapped = start.clone();
            act(&mut trapped, batch.on_int3(BASE + 1).unwrap());
            if round >= 2 {
                // The site is whole again: the handler runs it.
                assert_eq!(trapped, start);
            } else {
                assert_eq!(trapped, executed, "{patch:?}");
            }
            assert_eq!(batch.on_int3(BASE), None);
            assert_eq!(batch.on_int3(BASE + 2), None);
        }
    }
    assert_eq!(int3::on_late_int3(BASE + 1, 0xe8), Some(Action::Retry(BASE)));
    assert_eq!(int3::on_late_int3(BASE + 1, INT3), None, "a real breakpoint");
    assert_eq!(int3::on_late_int3(0, INT3), None);
}

#[test]
fn a_batch_checks_before_it_writes() {
    let nop = Code::new(&NOP5);
    let good = Patch::whole(BASE, nop, Code::new(&[0xe9, 0, 0, 0, 0]));
    let mut bytes = [NOP5, NOP5].concat();
    let text = SliceText::new(BASE, &mut bytes);
    let at = |at, old, new| Patch::whole(at, old, new);
    let refused = |patches: &[Patch]| Batch::new(&text, patches).map(|_| ()).unwrap_err();
    assert_eq!(refused(&[good, good]).what, What::Overlap);
    assert_eq!(refused(&[at(BASE + 5, nop, nop), good]).what, What::Overlap);
    assert_eq!(refused(&[at(BASE + 6, nop, nop)]).what, What::Unmapped);
    assert_eq!(refused(&[at(BASE, good.new, nop)]).what, What::UnknownTail);
    // An instruction that the handler cannot do.
    assert_eq!(refused(&[at(BASE, nop, Code::new(&[0x90; 5]))]).what, What::UnknownTail);
    let long = Code::new(&[0x90; 6]);
    assert_eq!(refused(&[at(BASE, long, long)]).what, What::Overlap);
    let many: Vec<_> = (0..=BATCH_MAX as u64).map(|i| at(BASE + i * 5, nop, nop)).collect();
    let last = BASE + BATCH_MAX as u64 * 5;
    assert_eq!(refused(&many), Anomaly::new(last, 0, What::NoRoom));
}
