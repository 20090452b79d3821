//! Each rule, against what Linux's list does.

use lsm::fold::{Answer as _, Collect, First, Fold, NOT_MINE, Offer, Select, fold};

const EPERM: i32 = -1;
const EACCES: i32 = -13;
const EINVAL: i32 = -22;
const ENOSYS: i32 = -38;
const EOPNOTSUPP: i32 = -95;

/// With every number of empty places in front, between and behind, the answer is the same.
#[track_caller]
fn gives<F: Fold<Answer = i32>>(answers: &[i32], expected: i32) {
    assert_eq!(fold::<F>(answers.iter().copied()), expected, "{answers:?}");
    for empty in 1..3 {
        let places = answers.iter().flat_map(|&answer| {
            let mut places = vec![F::NEUTRAL; empty];
            places.push(answer);
            places
        });
        let places = places.chain(vec![F::NEUTRAL; empty]);
        assert_eq!(fold::<F>(places), expected, "{answers:?}, {empty} empty places between");
    }
}

#[test]
fn the_first_that_differs_decides() {
    gives::<First<0>>(&[], 0);
    gives::<First<0>>(&[0, 0], 0);
    gives::<First<0>>(&[0, EACCES, EPERM], EACCES);
    gives::<First<EOPNOTSUPP>>(&[], EOPNOTSUPP);
    // Not zero, not the default: the two differ for these hooks.
    gives::<First<EOPNOTSUPP>>(&[EOPNOTSUPP, 0, EPERM], 0);
}

#[test]
fn nobody_is_asked_after_the_answer() {
    let mut asked = 0;
    let answers = [0, EPERM, 0].into_iter().inspect(|_| asked += 1);
    assert_eq!(fold::<First<0>>(answers), EPERM);
    assert_eq!(asked, 2);
}

#[test]
fn an_option_is_offered_until_somebody_fails() {
    gives::<Offer<ENOSYS>>(&[], ENOSYS);
    gives::<Offer<ENOSYS>>(&[ENOSYS, 0], 0);
    gives::<Offer<ENOSYS>>(&[0, EINVAL, 0], EINVAL);
    gives::<Offer<ENOSYS>>(&[0, 7], 7);
}

#[test]
fn records_are_collected() {
    gives::<Collect<EOPNOTSUPP>>(&[], EOPNOTSUPP);
    gives::<Collect<EOPNOTSUPP>>(&[1, EOPNOTSUPP, 2], 3);
    gives::<Collect<EOPNOTSUPP>>(&[0], 0);
    gives::<Collect<EOPNOTSUPP>>(&[1, EINVAL, 2], EINVAL);
}

#[test]
fn the_one_asked_for_answers_whatever_it_says() {
    gives::<Select<EINVAL>>(&[], EINVAL);
    gives::<Select<EINVAL>>(&[NOT_MINE, NOT_MINE], EINVAL);
    gives::<Select<EINVAL>>(&[NOT_MINE, EINVAL, 4], EINVAL);
    gives::<Select<EINVAL>>(&[NOT_MINE, 0, 4], 0);
    // Alone it answers without a chain.
    assert_eq!(Select::<EINVAL>::settle(NOT_MINE), EINVAL);
    assert_eq!(Select::<EINVAL>::settle(4), 4);
}

#[test]
fn void_is_another_type() {
    assert_eq!(().word(), None);
    assert_eq!(0.word(), Some(0));
    let mut told = 0;
    fold::<lsm::fold::All>([(); 3].into_iter().inspect(|()| told += 1));
    assert_eq!(told, 3);
}

/// Each hook of the table with 0, 1, 2 and 4 policies: who allows changes nothing, who denies wins
/// wherever it stands, and whoever only hears of something hears of it.
#[test]
fn each_hook_with_several_policies() {
    for hook in lsm::table::HOOKS {
        for policies in [0, 1, 2, 4] {
            let with = |neutral: i32, at: usize| {
                let mut answers = vec![neutral; policies];
                answers[at] = EACCES;
                answers
            };
            for denying in 0..policies {
                let (allowed, denied) = match (hook.rule(), hook.default) {
                    ("First", Some(0)) => {
                        (fold::<First<0>>(vec![0; policies]), fold::<First<0>>(with(0, denying)))
                    }
                    ("First", Some(EOPNOTSUPP)) => (
                        fold::<First<EOPNOTSUPP>>(vec![EOPNOTSUPP; policies]),
                        fold::<First<EOPNOTSUPP>>(with(EOPNOTSUPP, denying)),
                    ),
                    ("Collect", Some(0)) => (
                        fold::<Collect<0>>(vec![0; policies]),
                        fold::<Collect<0>>(with(0, denying)),
                    ),
                    ("Offer", Some(ENOSYS)) => (
                        fold::<Offer<ENOSYS>>(vec![ENOSYS; policies]),
                        fold::<Offer<ENOSYS>>(with(ENOSYS, denying)),
                    ),
                    ("Select", Some(EINVAL)) => (
                        fold::<Select<EINVAL>>(vec![NOT_MINE; policies]),
                        fold::<Select<EINVAL>>(with(NOT_MINE, denying)),
                    ),
                    // Forms of the above with another default, and those that cannot refuse.
                    _ => continue,
                };
                assert_eq!(Some(allowed), hook.default, "{hook:?}");
                assert_eq!(denied, EACCES, "{hook:?}, policy {denying} of {policies}");
            }
        }
    }
}
