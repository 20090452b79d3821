//! The policies as programs see them: lsm_list_modules(2), lsm_get_self_attr(2),
//! lsm_set_self_attr(2); and their start.

use abi::{Errno, Result};

use crate::base::user::UserPtr;
use crate::process::hooks as process_hooks;
use crate::security::hooks;

/// Binds all hooks and seals them.
pub fn init(command_line: &str) {
    let binders: [hooks::Binder; 5] = [
        crate::security::subject_hooks::bind,
        crate::vfs::hooks::bind,
        crate::process::hooks::bind,
        crate::ipc::hooks::bind,
        crate::net::hooks::bind,
    ];
    hooks::init(command_line, &binders);
}

/// lsm_list_modules(2): the ids of the policies that are on, first asked first.
pub fn list_modules(ids_at: UserPtr<u64>, size_at: UserPtr<u32>, flags: u32) -> Result<u64> {
    let (ids, size) = (ids_at, size_at);
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let room = size.read()?;
    let order = hooks::order();
    let count = order.policies().count();
    let needed = (count * size_of::<u64>()) as u32;
    size.write(&needed)?;
    if room < needed {
        return Err(Errno::E2BIG);
    }
    for (index, policy) in order.policies().enumerate() {
        ids.nth(index).write(&policy.id)?;
    }
    Ok(count as u64)
}

/// The attributes that exist (LSM_ATTR_*): current, exec, fscreate, keycreate, prev, sockcreate.
const ATTRIBUTES: core::ops::RangeInclusive<u32> = 100..=105;
/// LSM_FLAG_SINGLE.
const SINGLE: u32 = 1;

/// lsm_get_self_attr(2). No policy of this kernel labels processes.
pub fn get_self_attr(attribute: u32, buffer: u64, size: u64, flags: u32) -> Result<u64> {
    if attribute == 0 || size == 0 || flags & !SINGLE != 0 || flags & SINGLE != 0 && buffer == 0 {
        return Err(Errno::EINVAL);
    }
    // Nothing is written, but the room must be told.
    UserPtr::<u32>::new(size).read()?;
    process_hooks::getselfattr((attribute,)).map(u64::from)
}

/// lsm_set_self_attr(2).
pub fn set_self_attr(
    attribute: u32,
    buffer: UserPtr<[u64; 4]>,
    size: u32,
    flags: u32,
) -> Result<u64> {
    /// Bytes of `struct lsm_ctx` without its context, and of a page.
    const HEADER: u32 = 32;
    const PAGE: u32 = 4096;
    if flags != 0 || size < HEADER {
        return Err(Errno::EINVAL);
    }
    if size > PAGE {
        return Err(Errno::E2BIG);
    }
    let [policy, _, _, _] = buffer.read()?;
    if !ATTRIBUTES.contains(&attribute) {
        return Err(Errno::EINVAL);
    }
    process_hooks::setselfattr((policy, attribute, &[])).map(u64::from)
}
