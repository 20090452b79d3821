//! The protocol of `context_tracking::state`, the functions that the kernel runs, in every
//! interleaving of two and three CPUs; then with one thing broken at a time, which must be found.
//!
//! `world` is the machine: memory, store buffers, TLBs, interrupts. `programs` are what the CPUs
//! do, and how each mutant does it wrong. `explore` goes through all states.

mod explore;
mod programs;
mod world;

use explore::{Verdict, explore};
use programs::{Mutant, Role, Rules};

/// A small case: what each CPU does, and how many NMIs may come to each target.
struct Case {
    name: &'static str,
    roles: &'static [Role],
    nmis: u8,
}

/// Both manners of every case: with notes, and without (`defer=cr3`).
fn manners(mutant: Mutant) -> [Rules; 2] {
    [false, true].map(|by_cr3| Rules { mutant, by_cr3 })
}

const CASES: &[Case] = &[
    Case { name: "sender, target", roles: &[Role::Sender, Role::Target(2)], nmis: 0 },
    Case { name: "sender, target with NMI", roles: &[Role::Sender, Role::Target(1)], nmis: 1 },
    Case { name: "sender, target in kernel", roles: &[Role::Sender, Role::Leaver], nmis: 1 },
    Case { name: "two senders", roles: &[Role::Sender, Role::Sender, Role::Target(1)], nmis: 0 },
    Case { name: "two targets", roles: &[Role::Sender, Role::Target(1), Role::Target(1)], nmis: 0 },
    Case { name: "sender, guest", roles: &[Role::Sender, Role::Guest(2)], nmis: 1 },
    Case {
        name: "sender, guest, target",
        roles: &[Role::Sender, Role::Guest(1), Role::Target(1)],
        nmis: 0,
    },
    Case { name: "senders of each other", roles: &[Role::Sender, Role::Sender], nmis: 0 },
];

#[test]
fn no_interleaving_breaks_the_protocol() {
    for case in CASES {
        for (drains, rules) in [true, false]
            .into_iter()
            .flat_map(|drains| manners(Mutant::None).map(|rules| (drains, rules)))
        {
            let found = explore(case.roles, case.nmis, rules, drains);
            let name = format!("{}, by CR3: {}", case.name, rules.by_cr3);
            assert!(matches!(found, Verdict::Holds(_)), "{name}: {found:#?}");
            if let Verdict::Holds(states) = found {
                println!("{name}: {states} states, locked operations drain: {drains}");
                assert!(states > 50, "{name}: the search did not search");
            }
        }
    }
}

/// A search that finds nothing proves something only if it would have found something.
#[test]
fn every_mutant_is_found() {
    for &mutant in programs::MUTANTS {
        let rules = mutant.rules();
        let found = CASES.iter().find_map(|case| {
            // The weaker machine first: a missing barrier shows only where nothing else is one.
            [false, true].into_iter().find_map(|drains| {
                match explore(case.roles, case.nmis, rules, drains) {
                    Verdict::Holds(_) => None,
                    broken => Some((case.name, drains, broken)),
                }
            })
        });
        match found {
            Some((case, _, Verdict::Broken { why, steps })) => {
                println!("{mutant:?}: {why}, in \"{case}\", after {} steps", steps.len());
            }
            _ => panic!("{mutant:?} breaks nothing"),
        }
    }
}

/// What breaks notes must break the other manner too, where it is the same act.
#[test]
fn the_same_mistakes_break_the_way_without_notes() {
    for mutant in [
        Mutant::NoBarrier,
        Mutant::ChangeAfterRequest,
        Mutant::NoWait,
        Mutant::ExitEarly,
        Mutant::NmiKeepsState,
        Mutant::GuestForgets,
    ] {
        let rules = Rules { mutant, by_cr3: true };
        let is_found = CASES.iter().any(|case| {
            let broken = |drains| {
                matches!(explore(case.roles, case.nmis, rules, drains), Verdict::Broken { .. })
            };
            broken(false) || broken(true)
        });
        assert!(is_found, "{mutant:?} breaks nothing without notes");
    }
}

/// On x86 a locked operation empties the store buffer. Which of the mutants that machine forgives.
#[test]
fn what_a_locked_operation_forgives() {
    let forgiven: Vec<_> = programs::MUTANTS
        .iter()
        .filter(|&&mutant| {
            CASES.iter().all(|case| {
                matches!(explore(case.roles, case.nmis, mutant.rules(), true), Verdict::Holds(_))
            })
        })
        .collect();
    println!("forgiven where locked operations drain: {forgiven:?}");
    assert!(forgiven.is_empty(), "{forgiven:?}: the case list is too small");
}
