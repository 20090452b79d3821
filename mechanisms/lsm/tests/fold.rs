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
