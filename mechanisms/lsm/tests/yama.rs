//! Every scope with every relation.

use lsm::yama::Scope;

#[test]
fn the_table_of_scopes() {
    for number in 0..5 {
        let Some(scope) = Scope::from_number(number) else {
            assert_eq!(number, 4);
            continue;
        };
        assert_eq!(scope as u32, number);
        for related in [false, true] {
            for capable in [false, true] {
                let wanted = [true, related || capable, capable, false][number as usize];
                assert_eq!(scope.may_attach(|| related, || capable), wanted, "{scope:?}");
            }
        }
        for capable in [false, true] {
            let wanted = [true, true, capable, false][number as usize];
            assert_eq!(scope.may_trace_child(|| capable), wanted, "{scope:?}");
        }
        for other in 0..4 {
            let to = Scope::from_number(other).unwrap();
            assert_eq!(scope.may_become(to), number < 3 || other == 3);
        }
    }
}
