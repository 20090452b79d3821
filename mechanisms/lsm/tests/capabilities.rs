//! What sets become, as properties of all combinations of a small world, beside the table of
//! `guest/tests/src/capabilities.rs`, which Linux has confirmed.

use lsm::capabilities::{
    Change, FileSets, Ids, Malformed, Sets, Unsafe, after_exec, after_uid_change, may_set,
    securebits,
};

const ALL: u64 = 7;

/// Every thread and file over three capabilities.
fn each(mut check: impl FnMut(&Ids, &Sets, &Ids, Option<FileSets>, Unsafe)) {
    let sets = [0, 1, 3, 7];
    for uid in [0, 5] {
        for euid in [0, 5, 6] {
            for &permitted in &sets {
                for &inheritable in &sets {
                    for &bounding in &sets {
                        for bits in [0, securebits::NOROOT] {
                            for dangers in 0..8 {
                                let old = Ids { uid, euid: uid, ..Ids::default() };
                                let new = Ids { euid, ..old };
                                let ambient = permitted & inheritable & 1;
                                let own = Sets {
                                    permitted,
                                    effective: permitted,
                                    inheritable,
                                    bounding,
                                    ambient,
                                    securebits: bits,
                                };
                                let dangers = Unsafe {
                                    no_new_privs: dangers & 1 != 0,
                                    traced: dangers & 2 != 0,
                                    has_setuid: dangers & 4 != 0,
                                };
                                check(&old, &own, &new, None, dangers);
                                for effective in [false, true] {
                                    let file = FileSets { permitted: 2, inheritable: 4, effective };
                                    check(&old, &own, &new, Some(file), dangers);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn no_exec_breaks_the_invariants() {
    let mut count = 0;
    each(|old, own, new, file, dangers| {
        let Ok(after) = after_exec((old, own), new, file.as_ref(), dangers) else {
            let needed = file.unwrap();
            assert!(needed.effective && needed.permitted & !own.bounding != 0);
            return;
        };
        count += 1;
        let sets = after.sets;
        assert_eq!(sets.effective & !sets.permitted, 0);
        assert_eq!(sets.ambient & !(sets.permitted & sets.inheritable), 0);
        assert_eq!((sets.inheritable, sets.bounding), (own.inheritable, own.bounding));
        if dangers.no_new_privs || dangers.traced {
            assert_eq!(sets.permitted & !own.permitted, 0, "nothing is gained");
        }
        assert_eq!(after.gains, sets.permitted & !own.permitted != 0);
        assert!(!after.gains || after.secure || new.uid == 0, "what gains is told so");
        let root = own.securebits & securebits::NOROOT == 0 && (new.uid == 0 || new.euid == 0);
        if file.is_none() && !root {
            assert_eq!(sets.permitted, sets.ambient);
        }
        // The bounding set limits what files give; what is inherited may pass it.
        assert_eq!(sets.permitted & !(own.bounding | own.inheritable | own.ambient), 0);
    });
    assert!(count > 3000, "{count}");
}

#[test]
fn attributes_are_read_as_they_are_written() {
    let value = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let read = |words: &[u32]| FileSets::decode(&value(words), ALL | 1 << 40);
    let sets = |permitted, inheritable, effective| {
        Ok(Some(FileSets { permitted, inheritable, effective }))
    };
    assert_eq!(read(&[0x0100_0000, 1, 2]), sets(1, 2, false));
    assert_eq!(read(&[0x0200_0001, 1, 2, 1 << 8, 0]), sets(1 | 1 << 40, 2, true));
    assert_eq!(read(&[0x0300_0001, 1, 2, 0, 0, 0]), sets(1, 2, true));
    assert_eq!(read(&[0x0300_0001, 1, 2, 0, 0, 1000]), Ok(None));
    // Capabilities that do not exist are nobody's.
    assert_eq!(read(&[0x0200_0000, 0x80, 0, 0, 0]), sets(0, 0, false));
    for words in [&[][..], &[0x0200_0000], &[0x0200_0000, 1, 2], &[0x0300_0000, 1, 2, 0, 0]] {
        assert_eq!(read(words), Err(Malformed), "{words:x?}");
    }
    assert_eq!(FileSets::decode(&[1, 2, 3], ALL), Err(Malformed));
    assert!(FileSets::may_be_set(&value(&[0x0200_0000, 0, 0, 0, 0])));
    assert!(!FileSets::may_be_set(&value(&[0x0100_0000, 0, 0])));
}

#[test]
fn ids_given_up_take_capabilities_along() {
    let root = Ids::default();
    let user = Ids { uid: 5, euid: 5, suid: 5, fsuid: 5, ..root };
    let full = Sets { permitted: 7, effective: 7, ambient: 1, bounding: 7, ..Sets::default() };
    let after = |old: &Ids, new: &Ids, change, securebits| {
        let mut sets = Sets { securebits, ..full };
        after_uid_change(old, new, change, 4, &mut sets);
        (sets.permitted, sets.effective, sets.ambient)
    };
    assert_eq!(after(&root, &user, Change::Ids, 0), (0, 0, 0));
    assert_eq!(after(&root, &user, Change::Ids, securebits::KEEP_CAPS), (7, 0, 0));
    assert_eq!(after(&root, &user, Change::Ids, securebits::NO_SETUID_FIXUP), (7, 7, 1));
    let effective_only = Ids { euid: 5, fsuid: 5, ..root };
    assert_eq!(after(&root, &effective_only, Change::Ids, 0), (7, 0, 1));
    assert_eq!(after(&effective_only, &root, Change::Ids, 0), (7, 7, 1));
    let files_only = Ids { fsuid: 5, ..root };
    assert_eq!(after(&root, &files_only, Change::FileSystem, 0), (7, 3, 1));
    assert_eq!(after(&files_only, &root, Change::FileSystem, 0), (7, 7, 1));
}

#[test]
fn what_may_be_set() {
    let own = Sets { permitted: 3, effective: 1, inheritable: 4, bounding: 3, ..Sets::default() };
    let to = |permitted, effective, inheritable| Sets { permitted, effective, inheritable, ..own };
    assert!(may_set(&own, &to(3, 3, 4), false));
    assert!(may_set(&own, &to(1, 1, 4 | 1), false));
    assert!(!may_set(&own, &to(7, 1, 4), true));
    assert!(!may_set(&own, &to(1, 3, 4), true));
    assert!(!may_set(&Sets { permitted: 1, ..own }, &to(1, 1, 2), false));
    assert!(may_set(&Sets { permitted: 1, ..own }, &to(1, 1, 2), true));
}
