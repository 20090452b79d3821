//! A TLB with PCIDs and global pages, in software (SDM 3A, 4.10): which ways to flush drop every
//! kernel translation, and which leave a hole.

use std::collections::BTreeMap;

use context_tracking::flush::{Features, Method};
use context_tracking::pcid::Load;
use proptest::prelude::*;

/// What a kernel address leads to: the number of the mapping.
type Tag = u32;

/// Translations of one CPU. The key's PCID is `None` for global translations.
#[derive(Clone, Debug, Default)]
struct Tlb {
    entries: BTreeMap<(Option<u16>, u64), Tag>,
    pcid: u16,
    features: Features,
}

impl Tlb {
    fn new(features: Features) -> Tlb {
        Tlb { features, ..Tlb::default() }
    }

    /// An access: what is cached, else what the tables say, cached from now on. With global pages
    /// kernel translations are global.
    fn access(&mut self, va: u64, tables: &BTreeMap<u64, Tag>) -> Tag {
        let cached =
            [None, Some(self.pcid)].into_iter().find_map(|pcid| self.entries.get(&(pcid, va)));
        if let Some(&tag) = cached {
            return tag;
        }
        let tag = tables[&va];
        let context = if self.features.global_pages { None } else { Some(self.pcid) };
        self.entries.insert((context, va), tag);
        tag
    }

    /// MOV to CR3. Without PCIDs there is one context, and bit 63 does not exist.
    fn write_cr3(&mut self, pcid: u16, noflush: bool) {
        self.pcid = if self.features.pcid { pcid } else { 0 };
        if !(noflush && self.features.pcid) {
            let dropped = Some(self.pcid);
            self.entries.retain(|(context, _), _| *context != dropped);
        }
    }

    fn invpcid_single(&mut self, pcid: u16) {
        self.entries.retain(|(context, _), _| *context != Some(pcid));
    }

    fn invpcid_all_but_global(&mut self) {
        self.entries.retain(|(context, _), _| context.is_none());
    }

    fn flush(&mut self, method: Method) {
        match method {
            Method::InvpcidAll | Method::PgeToggle => self.entries.clear(),
            Method::Cr3Reload => self.write_cr3(self.pcid, false),
        }
    }
}

/// Two spaces used the address; it changes; the CPU catches up in one space by `flush` and goes on
/// in the other, keeping its translations. What it then reads there: the new mapping is 2.
fn after(features: Features, flush: impl Fn(&mut Tlb)) -> Tag {
    const VA: u64 = 0xffff_c000_0000_0000;
    let mut tables = BTreeMap::from([(VA, 1)]);
    let mut tlb = Tlb::new(features);
    for pcid in [1, 2] {
        tlb.write_cr3(pcid, true);
        tlb.access(VA, &tables);
    }
    tlb.write_cr3(1, true);
    tables.insert(VA, 2);
    flush(&mut tlb);
    let here = tlb.access(VA, &tables);
    tlb.write_cr3(2, true);
    here.min(tlb.access(VA, &tables))
}

const PLAIN: Features = Features { invpcid: false, global_pages: false, pcid: false };
const GLOBAL: Features = Features { global_pages: true, ..PLAIN };
const PCID: Features = Features { pcid: true, ..PLAIN };
const BOTH: Features = Features { pcid: true, global_pages: true, invpcid: true };

#[test]
fn a_cr3_write_with_noflush_drops_nothing() {
    assert_eq!(after(PCID, |tlb| tlb.write_cr3(1, true)), 1);
}

#[test]
fn a_cr3_write_leaves_other_pcids_and_global_pages() {
    assert_eq!(after(PLAIN, |tlb| tlb.write_cr3(1, false)), 2);
    assert_eq!(after(PCID, |tlb| tlb.write_cr3(1, false)), 1);
    assert_eq!(after(GLOBAL, |tlb| tlb.write_cr3(1, false)), 1);
}

#[test]
fn lesser_forms_of_invpcid_leave_a_hole() {
    assert_eq!(after(PCID, |tlb| tlb.invpcid_single(1)), 1);
    assert_eq!(after(BOTH, Tlb::invpcid_all_but_global), 1);
    assert_eq!(after(PCID, Tlb::invpcid_all_but_global), 2);
}

fn every_cpu() -> impl Iterator<Item = Features> {
    (0..8).map(|bits: u8| Features {
        invpcid: bits & 1 != 0,
        global_pages: bits & 2 != 0,
        pcid: bits & 4 != 0,
    })
}

#[test]
fn the_chosen_way_leaves_none() {
    for features in every_cpu() {
        let method = Method::choose(features);
        assert_eq!(after(features, |tlb| tlb.flush(method)), 2, "{features:?}: {method:?}");
        // INVPCID only where it exists; PGE can be toggled where either feature implies it.
        assert!(method != Method::InvpcidAll || features.invpcid);
        assert!(method != Method::PgeToggle || features.pcid || features.global_pages);
    }
}

/// With isolated tables no kernel translation is global (`memory::kernel_space`).
const ISOLATED: [Features; 2] = [PLAIN, PCID];

/// What a CPU of `defer=cr3` does, and what is done behind its back.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Comes from the program, uses an address, goes back.
    Enter(u64),
    /// Comes from the program, uses an address, loads another space, uses it there, goes back.
    Switch(u16, u64),
    /// In user mode: what the address leads to has changed.
    Change(u64),
}

/// Whether an access meets what is gone. `drops`: whether entries, and switches, drop what their
/// context has.
fn is_stale_by_cr3(features: Features, drops: [bool; 2], acts: &[Act]) -> bool {
    let mut tables: BTreeMap<u64, Tag> = (0..4).map(|va| (va, 0)).collect();
    let mut tlb = Tlb::new(features);
    acts.iter().any(|&act| {
        let va = match act {
            Act::Change(va) => {
                *tables.entry(va).or_default() += 1;
                return false;
            }
            Act::Enter(va) => {
                tlb.write_cr3(tlb.pcid, !drops[0]);
                va
            }
            Act::Switch(space, va) => {
                // Out of user mode, where the address is used, and to another space.
                tlb.write_cr3(tlb.pcid, !drops[0]);
                if tlb.access(va, &tables) != tables[&va] {
                    return true;
                }
                tlb.write_cr3(space, !drops[1]);
                va
            }
        };
        tlb.access(va, &tables) != tables[&va]
    })
}

#[test]
fn an_entry_that_keeps_its_context_leaves_a_hole() {
    let acts = [Act::Enter(0), Act::Change(0), Act::Enter(0)];
    assert!(is_stale_by_cr3(PCID, [false, true], &acts));
    assert!(!is_stale_by_cr3(PCID, [true, true], &acts));
}

/// The second hole of a write of CR3: other contexts.
#[test]
fn a_switch_that_keeps_its_context_leaves_a_hole() {
    let acts = [Act::Switch(2, 0), Act::Switch(1, 0), Act::Change(0), Act::Switch(2, 0)];
    let kept = Load { slot: 2, flush: false, flush_user: false };
    assert!(is_stale_by_cr3(PCID, [true, kept.flush], &acts));
    assert!(!is_stale_by_cr3(PCID, [true, kept.by_cr3().flush], &acts));
    // Without contexts there is no such hole.
    assert!(!is_stale_by_cr3(PLAIN, [false, false], &acts));
}

proptest! {
    /// Whatever a CPU does that is told nothing, no entry and no switch meets what is gone.
    #[test]
    fn writes_of_cr3_leave_nothing_stale(
        acts in prop::collection::vec(
            prop_oneof![
                (0u64..4).prop_map(Act::Enter),
                (0u16..4, 0u64..4).prop_map(|(space, va)| Act::Switch(space, va)),
                (0u64..4).prop_map(Act::Change),
            ],
            1..60,
        ),
    ) {
        let load = Load { slot: 0, flush: false, flush_user: false }.by_cr3();
        for features in ISOLATED {
            prop_assert!(!is_stale_by_cr3(features, [true, load.flush], &acts));
        }
    }

    /// Whatever the CPU did before in whichever space, after the chosen flush nothing old is left.
    #[test]
    fn no_history_hides_a_stale_translation(
        bits in 0u8..8,
        history in prop::collection::vec((0u16..4, any::<bool>(), 0u64..4), 0..30),
        future in prop::collection::vec((0u16..4, any::<bool>(), 0u64..4), 1..30),
    ) {
        let features = Features {
            invpcid: bits & 1 != 0,
            global_pages: bits & 2 != 0,
            pcid: bits & 4 != 0,
        };
        let mut tables: BTreeMap<u64, Tag> = (0..4).map(|va| (va, 1)).collect();
        let mut tlb = Tlb::new(features);
        for (pcid, noflush, va) in history {
            tlb.write_cr3(pcid, noflush);
            tlb.access(va, &tables);
        }
        tables.values_mut().for_each(|tag| *tag = 2);
        tlb.flush(Method::choose(features));
        for (pcid, noflush, va) in future {
            tlb.write_cr3(pcid, noflush);
            prop_assert_eq!(tlb.access(va, &tables), 2);
        }
    }
}
