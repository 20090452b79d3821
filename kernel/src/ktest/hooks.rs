//! Security hooks before they are bound to anybody, and after: the tests run before the kernel
//! reads `lsm=`, so here is that time. Last, for what is sealed stays sealed.

use alloc::string::String;
use alloc::sync::Arc;

use abi::Errno;
use machine::ensure;
use machine::ktest::Test;

use crate::security::{Capability, Credentials, Subject, hooks, subject_hooks};
use crate::{ipc, net, process};

pub(super) const TESTS: &[Test] =
    &[Test { name: "hooks::before_they_are_bound_and_after", run: before_and_after }];

/// LSM_ATTR_CURRENT.
const CURRENT: u32 = 100;

/// What hooks of each rule say while only capability and yama can be on, and answer none of these.
fn defaults() -> Result<(), String> {
    let refusals = [
        ("msg_msg_alloc_security", ipc::hooks::msg_msg_alloc_security((8,)), Ok(())),
        ("sk_alloc_security", net::hooks::sk_alloc_security((1,)), Ok(())),
    ];
    for (name, said, expected) in refusals {
        ensure!(said == expected, "{name}: {said:?}, not {expected:?}");
    }
    let numbers = [
        ("getselfattr", process::hooks::getselfattr((CURRENT,)), Errno::EOPNOTSUPP),
        ("setselfattr", process::hooks::setselfattr((0, CURRENT, b"")), Errno::EOPNOTSUPP),
        ("setprocattr", process::hooks::setprocattr((0, b"a", b"b")), Errno::EINVAL),
    ];
    for (name, said, expected) in numbers {
        ensure!(said == Err(expected), "{name}: {said:?}, not {expected:?}");
    }
    // Nothing is returned, and nothing happens.
    ipc::hooks::msg_msg_free_security((8,));
    Ok(())
}

fn before_and_after() -> Result<(), String> {
    let credentials = Arc::new(Credentials::for_user(1, 1, alloc::vec::Vec::new()));
    let user = Subject { pid: 1, credentials, domain: None };
    let capable = || subject_hooks::capable((&user, Capability::SysAdmin));
    let landlock = const { lsm::table::policy("landlock") };
    ensure!(hooks::order().indices().count() == 0, "there is an order before the boot line");
    ensure!(capable() == Ok(()), "somebody answers before the boot line: {:?}", capable());
    ensure!(hooks::attach(landlock) == Err(Errno::EOPNOTSUPP), "attached to nothing");
    defaults()?;
    crate::calls::lsm::init("lsm=landlock,yama");
    ensure!(capable() == Err(Errno::EPERM), "capability says {:?}", capable());
    defaults()?;
    // The one that is attachable can be attached now, and again.
    ensure!(hooks::attach(landlock) == Ok(()) && hooks::attach(landlock) == Ok(()), "not attached");
    defaults()?;
    let profile = const { lsm::table::policy("profile") };
    ensure!(hooks::attach(profile) == Err(Errno::EOPNOTSUPP), "attached though it is off");
    Ok(())
}
