//! The alternate signal stack (sigaltstack(2)).

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::args::Args;
use crate::base::user::UserPtr;
use crate::process::current;

/// `stack_t`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct StackT {
    /// Lowest address.
    pub base: u64,
    /// SS_ flags.
    pub flags: u32,
    pad: u32,
    /// Bytes.
    pub size: u64,
}

/// A thread's alternate stack; size 0: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct AltStack {
    /// Lowest address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// SS_AUTODISARM.
    pub auto_disarm: bool,
}

impl AltStack {
    /// Whether a stack pointer lies in it. Never for one that disarms itself: the handler may have
    /// left it by swapping contexts.
    #[must_use]
    pub fn contains(&self, sp: u64) -> bool {
        !self.auto_disarm && sp > self.base && sp - self.base <= self.size
    }

    /// End of the stack, where a handler starts; None if there is no stack.
    #[must_use]
    pub fn top(&self) -> Option<u64> {
        (self.size > 0).then(|| self.base.wrapping_add(self.size))
    }

    /// As sigaltstack(2) and the signal frame show it.
    #[must_use]
    pub fn to_user(self, sp: u64) -> StackT {
        let state = if self.size == 0 {
            raw::SS_DISABLE
        } else if self.contains(sp) {
            raw::SS_ONSTACK
        } else {
            0
        };
        let auto = if self.auto_disarm { raw::SS_AUTODISARM } else { 0 };
        StackT { base: self.base, flags: state | auto, pad: 0, size: self.size }
    }

    /// Checks what a program asks for: EPERM on the stack itself, EINVAL, ENOMEM if too small.
    pub fn change(&mut self, new: &StackT, sp: u64) -> Result<()> {
        if self.contains(sp) {
            return Err(Errno::EPERM);
        }
        let auto_disarm = new.flags & raw::SS_AUTODISARM != 0;
        match new.flags & !raw::SS_AUTODISARM {
            raw::SS_DISABLE => *self = AltStack { auto_disarm, ..AltStack::default() },
            0 | raw::SS_ONSTACK => {
                if new.size < u64::from(raw::MINSIGSTKSZ) {
                    return Err(Errno::ENOMEM);
                }
                *self = AltStack { base: new.base, size: new.size, auto_disarm };
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}

/// sigaltstack(2).
pub fn sigaltstack(regs: &mut Args, new: UserPtr<StackT>, old_at: u64) -> Result<u64> {
    let new = new.non_null().map(UserPtr::read).transpose()?;
    let thread = current();
    let old = {
        let mut signals = thread.signals.lock();
        let old = signals.alt_stack.to_user(regs.rsp);
        if let Some(new) = new {
            signals.alt_stack.change(&new, regs.rsp)?;
        }
        old
    };
    UserPtr::new(old_at).write_if_some(&old)?;
    Ok(0)
}
