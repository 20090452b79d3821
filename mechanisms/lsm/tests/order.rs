//! `lsm=`, the table, and who is asked in which place.

use lsm::order::{Odd, Order, POLICIES, POLICIES_MAX, places};
use lsm::table::{self, HOOKS, policy};

/// The order and the warnings of a parameter's value.
fn parse(value: Option<&str>) -> (String, String) {
    let mut warnings = Vec::new();
    let order = Order::parse(value, |odd| {
        warnings.push(match odd {
            Odd::Unknown(name) => format!("?{name}"),
            Odd::Duplicate(name) => format!("2{name}"),
        });
    });
    let names: Vec<_> = order.policies().map(|policy| policy.name).collect();
    (names.join(","), warnings.join(" "))
}

#[test]
fn golden_orders() {
    let cases = [
        (None, "capability,landlock,yama,profile", ""),
        (Some("yama,landlock"), "capability,yama,landlock", ""),
        (Some("yama,tally"), "capability,yama,tally", ""),
        (Some("tally"), "capability,tally", ""),
        (Some(""), "capability", ""),
        (Some(","), "capability", ""),
        (Some("landlock"), "capability,landlock", ""),
        (Some("capability"), "capability", ""),
        (Some("capability,landlock"), "capability,landlock", ""),
        // Last in the list, first in the order: nothing is asked before it.
        (Some("landlock,capability"), "capability,landlock", ""),
        (Some("landlock,,landlock"), "capability,landlock", "2landlock"),
        (Some("capability,capability"), "capability", "2capability"),
        (Some("selinux"), "capability", "?selinux"),
        (Some("Landlock"), "capability", "?Landlock"),
        (Some("landlock,apparmor,landlock,bpf"), "capability,landlock", "?apparmor 2landlock ?bpf"),
        (Some(" landlock"), "capability", "? landlock"),
    ];
    for (value, order, warnings) in cases {
        assert_eq!(parse(value), (order.into(), warnings.into()), "lsm={value:?}");
    }
}

/// Who is asked at a hook, first to last, for values of `lsm=`.
#[test]
fn golden_chains() {
    let cases = [
        ("ptrace_access_check", None, "capability landlock yama"),
        ("ptrace_access_check", Some("yama,landlock"), "capability yama landlock"),
        ("ptrace_access_check", Some("yama"), "capability yama"),
        ("ptrace_traceme", Some("profile"), "capability"),
        ("file_open", None, "landlock profile"),
        ("file_open", Some("profile,landlock,yama"), "profile landlock"),
        ("file_open", Some("profile"), "profile"),
        ("file_open", Some("yama"), ""),
        ("socket_bind", Some("profile,profile,landlock"), "profile landlock"),
        ("task_prctl", Some("landlock,yama"), "capability yama"),
        ("capable", Some("landlock"), "capability"),
        ("capable", Some(""), "capability"),
        ("file_permission", None, ""),
    ];
    for (hook, value, expected) in cases {
        let order = Order::parse(value, |_| ());
        let names = HOOKS[table::hook(hook)].policies;
        let implementers: Vec<usize> = names.iter().map(|name| policy(name)).collect();
        let (asked, used) = places::<8>(&order, &implementers, |_| true);
        let asked: Vec<&str> = asked[..used].iter().flatten().map(|&at| names[at]).collect();
        assert_eq!(asked.join(" "), expected, "{hook}, lsm={value:?}");
    }
}

#[test]
fn ids_and_names_are_their_own() {
    for (index, one) in POLICIES.iter().enumerate() {
        assert_eq!(policy(one.name), index);
        // 0 means nobody, and Linux keeps those below 100.
        assert!(one.id >= 100);
        assert_eq!(POLICIES.iter().filter(|p| p.id == one.id || p.name == one.name).count(), 1);
    }
}

#[test]
fn lines_of_the_table_are_sound() {
    let hooks = HOOKS;
    assert!(hooks.len() >= 90, "{} hooks", hooks.len());
    for hook in &hooks {
        assert_eq!(hooks.iter().filter(|other| other.name == hook.name).count(), 1, "{hook:?}");
        assert!(hook.policies.len() <= POLICIES_MAX, "{hook:?}");
        assert_eq!(table::hook(hook.name), hooks.iter().position(|h| h == hook).unwrap());
        for (index, name) in hook.policies.iter().enumerate() {
            assert!(POLICIES.iter().any(|policy| policy.name == *name), "{hook:?}");
            assert!(!hook.policies[..index].contains(name), "{hook:?}");
        }
    }
}

/// What Linux answers where nobody is asked. All others: it may be done, or nothing.
#[test]
fn rules_and_defaults_are_linuxs() {
    let others = [
        ("inode_init_security", "First", table::NOT_SUPPORTED),
        ("inode_need_killpriv", "Collect", 0),
        ("task_prctl", "Offer", table::NOT_KNOWN),
        ("getprocattr", "Select", table::NO_ATTRIBUTE),
        ("setprocattr", "Select", table::NO_ATTRIBUTE),
        ("getselfattr", "Collect", table::NOT_SUPPORTED),
        ("setselfattr", "Select", table::NOT_SUPPORTED),
        ("socket_getpeersec_stream", "First", table::NO_OPTION),
    ];
    let nothing = [
        "bprm_committed_creds",
        "bprm_committing_creds",
        "cred_free",
        "file_release",
        "inet_conn_established",
        "inode_post_create_tmpfile",
        "inode_post_removexattr",
        "inode_post_setattr",
        "inode_post_setxattr",
        "msg_msg_free_security",
        "msg_queue_free_security",
        "path_post_mknod",
        "sem_free_security",
        "shm_free_security",
        "sk_clone_security",
        "sk_free_security",
        "task_free",
        "task_to_inode",
    ];
    for hook in HOOKS {
        let (rule, default) = match others.iter().find(|(name, ..)| *name == hook.name) {
            Some(&(_, rule, default)) => (rule, Some(default)),
            None if nothing.contains(&hook.name) => ("All", None),
            None => ("First", Some(0)),
        };
        assert_eq!((hook.rule(), hook.default), (rule, default), "{hook:?}");
    }
}

#[test]
fn a_callee_keeps_its_place() {
    let all = Order::parse(None, |_| {});
    let [first, second] = [policy("capability"), policy("landlock")];
    // The callees of the hook are in another order than the policies.
    let implementers = [second, first];
    let place = |attached: &dyn Fn(usize) -> bool| places::<8>(&all, &implementers, attached);
    assert_eq!(place(&|_| true), ([Some(1), Some(0), None, None, None, None, None, None], 2));
    assert_eq!(place(&|policy| policy == second).0[..2], [None, Some(0)]);
    assert_eq!(place(&|policy| policy == first).0[..2], [Some(1), None]);
    assert_eq!(place(&|_| false), ([None; 8], 2));
    // A policy without a callee has no place, nor has one that is off.
    assert_eq!(
        places::<8>(&all, &[second], |_| true),
        ([Some(0), None, None, None, None, None, None, None], 1)
    );
    let off = Order::parse(Some(""), |_| {});
    assert_eq!(places::<8>(&off, &implementers, |_| true).1, 1);
}
