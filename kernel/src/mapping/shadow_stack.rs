//! map_shadow_stack(2), and what arch_prctl(2) does with shadow stacks: which a thread switches on
//! for itself, and its tracer unlocks.
//!
//! Neighbours: `mm::shadow_stack` (the memory, and what threads have of it), `entry::shadow_stack`
//! in mechanisms, which decides.

use abi::{Errno, Result};
use entry::shadow_stack::{Action, Call, Refused, Thread as State, decide, restore_token};

use crate::base::user::UserPtr;
use crate::mm::PAGE;
use crate::mm::shadow_stack::{self, LOWEST};
use crate::process::current;

/// SHADOW_STACK_SET_TOKEN: with a token at its end, by which a thread may come there.
const SET_TOKEN: u32 = 1;

/// map_shadow_stack(2).
pub fn map_shadow_stack(address: u64, size: u64, flags: u32) -> Result<u64> {
    if !machine::user_shadow_stack::exist() {
        return Err(Errno::EOPNOTSUPP);
    }
    let has_token = flags & SET_TOKEN != 0;
    if flags & !SET_TOKEN != 0 {
        return Err(Errno::EINVAL);
    }
    if has_token && size < entry::shadow_stack::WORD {
        return Err(Errno::ENOSPC);
    }
    if address != 0 && address < LOWEST {
        return Err(Errno::ERANGE);
    }
    let bytes = size.checked_next_multiple_of(PAGE).ok_or(Errno::EOVERFLOW)?;
    let process = &current().process;
    let start = shadow_stack::map(&**process, (address != 0).then_some(address), bytes)?;
    if has_token {
        let token = restore_token(start + size);
        let is_written = |(at, token)| UserPtr::new(at).write_shadow_stack(token).is_ok();
        if !token.is_some_and(is_written) {
            shadow_stack::drop_area(&**process, Some((start, bytes)));
            return Err(Errno::EINVAL);
        }
    }
    Ok(start)
}

/// arch_prctl(2) with one of these codes; None for others.
pub fn arch_prctl(code: u32, argument: u64) -> Option<Result<u64>> {
    Call::from_code(code.into()).map(|call| act(call, argument))
}

fn act(call: Call, argument: u64) -> Result<u64> {
    let thread = current();
    let (own, process) = (&thread.shadow_stack, &*thread.process);
    let state = State {
        has_cpu: machine::user_shadow_stack::exist(),
        is_own: true,
        features: own.features(),
        locked: own.locked(),
    };
    match decide(call, argument, &state).map_err(errno)? {
        Action::Nothing => {}
        Action::Start => own.begin(shadow_stack::new_area(process, 0)?),
        Action::Stop => shadow_stack::drop_area(process, own.end()),
        Action::AllowWrites(allows) => own.allow_writes(allows),
        Action::Lock(features) => own.lock(features),
        Action::Unlock(features) => own.unlock(features),
        Action::Tell => UserPtr::<u64>::new(argument).write(&own.features())?,
    }
    Ok(0)
}

fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::NotSupported => Errno::EOPNOTSUPP,
        Refused::NotPermitted => Errno::EPERM,
        Refused::Invalid => Errno::EINVAL,
    }
}
