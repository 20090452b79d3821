//! Rulesets made of hostile bytes, layer on layer: no panic, and no layer grants what another one
//! that handles it does not.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lsm::landlock::{Domain, DomainId, LAYERS_MAX, ObjectId, Ruleset, fs, net, scope};

/// Rights by object of each layer, as a slow and obvious model keeps them.
type Layer = (u64, BTreeMap<u64, u64>);

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.iter().map(|&byte| u64::from(byte));
    let mut next = || bytes.next().unwrap_or(0);
    let mut domain: Option<Arc<Domain<()>>> = None;
    let mut model: Vec<Layer> = Vec::new();
    for _ in 0..next() % 20 {
        let handled = (next() | next() << 8) & fs::ALL;
        let mut rules = Ruleset::new(handled, next() & net::ALL, next() & scope::ALL);
        let mut layer: Layer = (handled, BTreeMap::new());
        for _ in 0..next() % 8 {
            let (object, rights) = (next() % 4, (next() | next() << 8) & fs::ALL);
            let added = rules.add_object(ObjectId(0, object), rights, ());
            if added.is_ok() {
                assert!(rights != 0 && rights & !handled == 0);
                *layer.1.entry(object).or_default() |= rights;
            }
            let _ = rules.add_port(next() as u16, next() & net::ALL);
        }
        match Domain::new(domain.clone(), Arc::new(rules), DomainId(model.len() as u64)) {
            Ok(new) => {
                model.push(layer);
                domain = Some(Arc::new(new));
            }
            Err(_) => {
                assert_eq!(model.len(), LAYERS_MAX);
                break;
            }
        }
    }
    let Some(domain) = domain else { return };
    // Whatever is scoped, nobody is outside of his own domain.
    assert!(domain.fence(scope::ALL).holds(Some(&*domain)));
    // A place: objects on the way up.
    let mut granted = domain.start();
    let mut seen = Vec::new();
    for _ in 0..next() % 5 {
        let object = next() % 4;
        domain.visit(&mut granted, ObjectId(0, object));
        seen.push(object);
    }
    for right in (0..16).map(|bit| 1u64 << bit).filter(|right| right & fs::ALL & !fs::REFER != 0) {
        let by_layer = |(handled, rules): &Layer| {
            let here = |object: &u64| rules.get(object).is_some_and(|rights| rights & right != 0);
            handled & right == 0 || seen.iter().any(here)
        };
        let wanted = model.iter().all(by_layer);
        assert_eq!(granted.by_all() & right != 0, wanted, "right {right:#x}");
    }
});
