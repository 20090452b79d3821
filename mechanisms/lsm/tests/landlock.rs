//! Rules, layers, and moves between directories.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm::landlock::{
    Domain, DomainId, LAYERS_MAX, Moved, NotAdded, NotRestricted, ObjectId, Refused, Ruleset,
    check_move, fs, net, scope,
};
use proptest::prelude::*;

type Rules = Ruleset<()>;
type Stack = Arc<Domain<()>>;

const fn object(number: u64) -> ObjectId {
    ObjectId(0, number)
}

fn rules(handled: u64, grants: &[(u64, u64)]) -> Arc<Rules> {
    let mut rules = Rules::new(handled, net::ALL, 0);
    for &(number, rights) in grants {
        rules.add_object(object(number), rights, ()).expect("a rule");
    }
    Arc::new(rules)
}

fn stack(layers: &[Arc<Rules>]) -> Stack {
    layers.iter().fold(None, |below, rules| Some(above(below, rules))).expect("one layer at least")
}

/// A domain with one layer more, and an id that no other has.
fn above(below: Option<Stack>, rules: &Arc<Rules>) -> Stack {
    Arc::new(Domain::new(below, rules.clone(), next_id()).expect("a layer"))
}

fn next_id() -> DomainId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    DomainId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// What is granted at the end of a path of objects.
fn granted(domain: &Stack, path: &[u64]) -> u64 {
    let mut granted = domain.start();
    for &number in path {
        domain.visit(&mut granted, object(number));
    }
    granted.by_all() & fs::ALL
}

#[test]
fn each_right_alone() {
    for bit in 0..16 {
        let right = 1 << bit;
        let domain = stack(&[rules(fs::ALL, &[(7, right)])]);
        assert_eq!(granted(&domain, &[7, 1]), right);
        assert_eq!(granted(&domain, &[1]), 0);
        // What a ruleset does not handle it does not refuse; moves it always does.
        let domain = stack(&[rules(right, &[])]);
        assert_eq!(granted(&domain, &[1]), fs::ALL & !right & !fs::REFER);
    }
}

#[test]
fn rights_add_up_along_the_path_and_layers_intersect() {
    let lower = rules(fs::ALL, &[(1, fs::READ_FILE), (2, fs::WRITE_FILE | fs::EXECUTE)]);
    assert_eq!(
        granted(&stack(std::slice::from_ref(&lower)), &[3, 2, 1]),
        fs::READ_FILE | fs::WRITE_FILE | fs::EXECUTE
    );
    let upper = rules(fs::WRITE_FILE | fs::EXECUTE, &[(3, fs::EXECUTE)]);
    let both = stack(&[lower, upper]);
    assert_eq!(granted(&both, &[3, 2, 1]), fs::READ_FILE | fs::EXECUTE);
    assert_eq!(granted(&both, &[2, 1]), fs::READ_FILE);
}

#[test]
fn a_rule_grants_something_that_is_handled() {
    let mut rules = Rules::new(fs::READ_FILE, net::BIND_TCP, 0);
    assert_eq!(rules.add_object(object(1), 0, ()), Err(NotAdded::Nothing));
    let more = fs::READ_FILE | fs::EXECUTE;
    assert_eq!(rules.add_object(object(1), more, ()), Err(NotAdded::NotHandled));
    assert_eq!(rules.add_port(80, 0), Err(NotAdded::Nothing));
    assert_eq!(rules.add_port(80, net::CONNECT_TCP), Err(NotAdded::NotHandled));
    rules.add_port(80, net::BIND_TCP).expect("a rule");
    let domain = stack(&[Arc::new(rules)]);
    assert!(domain.allows_port(80, net::BIND_TCP) && !domain.allows_port(81, net::BIND_TCP));
    assert!(domain.allows_port(81, net::CONNECT_TCP), "not handled");
    assert!(domain.handles_ports(net::BIND_TCP) && !domain.handles_ports(net::CONNECT_TCP));
}

#[test]
fn a_copy_leaves_the_original_alone() {
    let mut rules = Rules::new(fs::ALL, 0, 0);
    rules.add_object(object(1), fs::READ_FILE, ()).expect("a rule");
    let mut copy = rules.try_clone().expect("memory");
    copy.add_object(object(1), fs::WRITE_FILE, ()).expect("a rule");
    assert_eq!(granted(&stack(&[Arc::new(rules)]), &[1]), fs::READ_FILE);
    assert_eq!(granted(&stack(&[Arc::new(copy)]), &[1]), fs::READ_FILE | fs::WRITE_FILE);
}

#[test]
fn sixteen_layers_and_no_more() {
    let one = rules(fs::ALL, &[(1, fs::ALL)]);
    let full = stack(&vec![one.clone(); LAYERS_MAX]);
    assert_eq!(granted(&full, &[1]), fs::ALL);
    let more = Domain::new(Some(full.clone()), one.clone(), next_id()).map(|_| ()).unwrap_err();
    assert_eq!(more, NotRestricted::TooMany);
    let first = stack(&[one]);
    assert!(full.is_ancestor_of(Some(&full)) && !full.is_ancestor_of(None));
    assert!(!full.is_ancestor_of(Some(&first)) && !first.is_ancestor_of(Some(&full)));
    let mut child = first.clone();
    for _ in 1..LAYERS_MAX {
        let layer = rules(fs::ALL, &[]);
        child = above(Some(child), &layer);
        assert!(first.is_ancestor_of(Some(&child)) && !child.is_ancestor_of(Some(&first)));
    }
}

#[test]
fn what_is_scoped_stays_within_the_layer_that_says_so() {
    let scoped = |scoped| Arc::new(Rules::new(0, 0, scoped));
    let (signal, socket) = (scope::SIGNAL, scope::ABSTRACT_UNIX_SOCKET);
    let open = above(None, &scoped(0));
    let fenced = above(Some(open.clone()), &scoped(signal));
    let inner = above(Some(fenced.clone()), &scoped(socket));
    let sibling = above(Some(open.clone()), &scoped(signal));
    let inside = |who: &Stack, scope, target: Option<&Stack>| {
        who.fence(scope).holds(target.map(|target| &**target))
    };
    for target in [None, Some(&open), Some(&sibling)] {
        assert!(!inside(&fenced, signal, target) && !inside(&inner, signal, target));
        assert!(inside(&fenced, socket, target) && !inside(&inner, socket, target));
        assert!(inside(&open, signal, target) && open.fence(signal).is_open());
    }
    for target in [Some(&fenced), Some(&inner)] {
        assert!(inside(&fenced, signal, target) && inside(&inner, signal, target));
    }
    assert!(!inside(&inner, socket, Some(&fenced)) && inside(&inner, socket, Some(&inner)));
    // A fence stands when the domain that it is of has gone.
    let fence = fenced.fence(signal);
    drop((fenced, inner));
    assert!(!fence.is_open() && !fence.holds(Some(&*sibling)));
}

/// Every stack of up to four layers, each scoped or not, and every target made from some of them:
/// exactly who has all scoped layers of the one who asks is inside.
#[test]
fn fences_of_a_small_world() {
    for choice in 0_u32..16 {
        let layers: Vec<_> = (0..4)
            .scan(None, |below, bit| {
                let scoped = u64::from(choice >> bit & 1) * scope::SIGNAL;
                *below = Some(above(below.take(), &Arc::new(Rules::new(0, 0, scoped))));
                below.clone()
            })
            .collect();
        for (who, asker) in layers.iter().enumerate() {
            let fence = asker.fence(scope::SIGNAL);
            assert_eq!(fence.holds::<()>(None), choice & ((2 << who) - 1) == 0);
            for (of, target) in layers.iter().enumerate() {
                let missing = ((2 << who) - 1) & !((2 << of) - 1);
                assert_eq!(fence.holds(Some(&**target)), choice & missing == 0);
            }
        }
    }
}

#[test]
fn moves() {
    const READ: u64 = fs::READ_FILE;
    let make = (fs::REMOVE_FILE, fs::MAKE_REG);
    let names = fs::REMOVE_FILE | fs::MAKE_REG;
    let domain = stack(&[rules(fs::ALL, &[])]);
    let at = |rights: u64| {
        let mut granted = domain.start();
        stack(&[rules(fs::ALL, &[(1, rights)])]).visit(&mut granted, object(1));
        granted
    };
    let file = |rights: u64| Moved { own: at(rights), is_directory: false };
    let check = |from: u64, to: u64, own: u64, back: Option<u64>| {
        check_move(&at(from), &at(to), make, &file(own), back.map(file).as_ref())
    };
    let all = names | fs::REFER;
    let plain = |rights: u64| rights | fs::MAKE_DIR;
    assert_eq!(check(plain(all), plain(all), fs::MAKE_DIR, None), Ok(()));
    // Making and removing come first, moving second.
    assert_eq!(check(plain(fs::REFER), plain(all), fs::MAKE_DIR, None), Err(Refused::Access));
    assert_eq!(check(plain(all), plain(names), fs::MAKE_DIR, None), Err(Refused::CrossDevice));
    assert_eq!(check(plain(names), plain(names), fs::MAKE_DIR, None), Err(Refused::CrossDevice));
    // It could be read there, but not here; unless it can be read wherever it is.
    let there = plain(all | READ);
    assert_eq!(check(plain(all), there, fs::MAKE_DIR, None), Err(Refused::CrossDevice));
    assert_eq!(check(plain(all), there, plain(READ), None), Ok(()));
    assert_eq!(check(there, plain(all), fs::MAKE_DIR, None), Ok(()), "it loses");
    // What comes back gains instead.
    let back = Some(fs::MAKE_DIR);
    assert_eq!(check(there, plain(all), fs::MAKE_DIR, back), Err(Refused::CrossDevice));
    // Rights that only directories have do not count for a file.
    let there = plain(all | fs::MAKE_SYM);
    assert_eq!(check(plain(all), there, fs::MAKE_DIR, None), Ok(()));
}

/// What is granted, the slow way: each layer handles nothing that it does not grant somewhere on
/// the path.
fn model(layers: &[(u64, Vec<(u64, u64)>)], path: &[u64]) -> u64 {
    layers.iter().fold(fs::ALL, |all, (handled, grants)| {
        let here = grants.iter().filter(|(number, _)| path.contains(number));
        let granted = here.fold(0, |sum, (_, rights)| sum | rights);
        let handled = if *handled == 0 { 0 } else { handled | fs::REFER };
        all & (granted | !handled)
    })
}

proptest! {
    #[test]
    fn agrees_with_the_model(
        layers in prop::collection::vec(
            (1..=fs::ALL, prop::collection::vec((0_u64..6, 1..=fs::ALL), 0..6)), 1..5),
        path in prop::collection::vec(0_u64..6, 0..4),
    ) {
        let layers: Vec<_> = layers.into_iter().map(|(handled, grants)| {
            let grants = grants.into_iter().map(|(number, rights)| (number, rights & handled));
            (handled, grants.filter(|&(_, rights)| rights != 0).collect::<Vec<_>>())
        }).collect();
        let built: Vec<_> = layers
            .iter()
            .map(|(handled, grants)| rules(*handled, grants))
            .collect();
        prop_assert_eq!(granted(&stack(&built), &path), model(&layers, &path));
    }
}
