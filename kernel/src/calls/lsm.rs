//! The policies as programs see them: lsm_list_modules(2), lsm_get_self_attr(2),
//! lsm_set_self_attr(2); and their start.

use abi::{Errno, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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

/// LSM_ATTR_UNDEF, LSM_ID_UNDEF.
const UNDEFINED: u64 = 0;
/// LSM_FLAG_SINGLE.
const SINGLE: u32 = 1;
/// Most bytes of a context with its header.
const CONTEXT_MAX: u32 = 4096;

/// What stands before a context (`struct lsm_ctx`).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub struct ContextHeader {
    id: u64,
    flags: u64,
    /// Bytes of header and context.
    len: u64,
    /// Bytes of the context.
    context_len: u64,
}

const HEADER_BYTES: usize = size_of::<ContextHeader>();

/// lsm_get_self_attr(2). No policy of this kernel labels processes.
pub fn get_self_attr(
    attribute: u32,
    buffer: UserPtr<ContextHeader>,
    size: UserPtr<u32>,
    flags: u32,
) -> Result<u64> {
    if u64::from(attribute) == UNDEFINED || size.is_null() {
        return Err(Errno::EINVAL);
    }
    size.read()?;
    if flags & !SINGLE != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & SINGLE != 0 && (buffer.is_null() || buffer.read()?.id == UNDEFINED) {
        return Err(Errno::EINVAL);
    }
    let answer = process_hooks::getselfattr((attribute,)).map(u64::from);
    // Nothing is written to the buffer, and that is told, whatever the answer.
    size.write(&0)?;
    answer
}

/// lsm_set_self_attr(2).
pub fn set_self_attr(
    attribute: u32,
    buffer: UserPtr<ContextHeader>,
    size: u32,
    flags: u32,
) -> Result<u64> {
    if flags != 0 || (size as usize) < HEADER_BYTES {
        return Err(Errno::EINVAL);
    }
    if size > CONTEXT_MAX {
        return Err(Errno::E2BIG);
    }
    let bytes = buffer.cast::<u8>().read_many(size as usize)?;
    let (header, context) = ContextHeader::read_from_prefix(&bytes).map_err(|_| Errno::EINVAL)?;
    let needed = header.context_len.checked_add(HEADER_BYTES as u64);
    if u64::from(size) < header.len || needed.is_none_or(|needed| needed > header.len) {
        return Err(Errno::EINVAL);
    }
    let context = &context[..header.context_len as usize];
    process_hooks::setselfattr((header.id, attribute, context)).map(u64::from)
}
