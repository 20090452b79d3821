//! Shadow stacks of programs (SDM 1, 17.2): the words that the kernel puts on them, and what
//! `arch_prctl(ARCH_SHSTK_*)` does.
//!
//! The CPU pushes every return address twice, the second time where no ordinary store writes, and
//! stops a return whose two addresses differ. What else the kernel puts there must never pass for a
//! return address, nor for a token by which the program may come to another stack: a program that
//! can be made to return to any address could otherwise use it.

/// A word, and what the alignment of SSP is where the kernel takes it.
pub const WORD: u64 = 8;

/// Of a token that RSTORSSP takes: it is for 64-bit code (SDM 1, 17.2.4).
const LONG_MODE: u64 = 1;
/// Of the word below which a signal handler's addresses begin: no address that a return could have,
/// nor a token's.
const SAVED: u64 = 1 << 63;

/// The token by which RSTORSSP makes `ssp` the stack pointer, in the word below that. None where
/// there can be no such.
#[must_use]
pub const fn restore_token(ssp: u64) -> Option<(u64, u64)> {
    if !ssp.is_multiple_of(WORD) || ssp == 0 {
        return None;
    }
    Some((ssp - WORD, ssp | LONG_MODE))
}

/// What a signal puts on the shadow stack that ends at `ssp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalFrame {
    /// Where the handler begins: there is the address to which it returns.
    pub ssp: u64,
    /// Where the interrupted stack pointer is kept, and the word that is it.
    pub saved: (u64, u64),
}

impl SignalFrame {
    /// The frame below `ssp`. None where the word below does not exist, or is not aligned.
    #[must_use]
    pub const fn below(ssp: u64) -> Option<SignalFrame> {
        if !ssp.is_multiple_of(WORD) || ssp < 2 * WORD || ssp & SAVED != 0 {
            return None;
        }
        Some(SignalFrame { ssp: ssp - 2 * WORD, saved: (ssp - WORD, ssp | SAVED) })
    }
}

/// The stack pointer that a signal's frame has kept in `word`. None where it is no such word, or a
/// pointer that no program below `limit` has.
#[must_use]
pub const fn saved_ssp(word: u64, limit: u64) -> Option<u64> {
    let ssp = word & !SAVED;
    if word & SAVED == 0 { None } else { checked_ssp(ssp, limit) }
}

/// Whether a program's stack pointer can be this, which the CPU can load again: INCSSPD moves it by
/// half a word, and behind its last word it may be `limit` (SDM 2A, INCSSPD; SDM 4, IA32_PL3_SSP).
#[must_use]
pub const fn is_of_program(ssp: u64, limit: u64) -> bool {
    ssp.is_multiple_of(WORD / 2) && ssp <= limit
}

/// A stack pointer that somebody asks for, in a frame or as a tracer: of whole words.
#[must_use]
pub const fn checked_ssp(ssp: u64, limit: u64) -> Option<u64> {
    if ssp.is_multiple_of(WORD) && ssp < limit { Some(ssp) } else { None }
}

/// What a thread can switch on: bits of a mask.
pub mod feature {
    /// A shadow stack.
    pub const SHSTK: u64 = 1;
    /// That the program may write to it by WRSS.
    pub const WRSS: u64 = 2;
}

/// What arch_prctl(2) is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// ARCH_SHSTK_ENABLE.
    Enable,
    /// ARCH_SHSTK_DISABLE.
    Disable,
    /// ARCH_SHSTK_LOCK: what is on stays on, and what is off off.
    Lock,
    /// ARCH_SHSTK_UNLOCK.
    Unlock,
    /// ARCH_SHSTK_STATUS.
    Status,
}

impl Call {
    /// By its number.
    #[must_use]
    pub const fn from_code(code: u64) -> Option<Call> {
        Some(match code {
            0x5001 => Call::Enable,
            0x5002 => Call::Disable,
            0x5003 => Call::Lock,
            0x5004 => Call::Unlock,
            0x5005 => Call::Status,
            _ => return None,
        })
    }
}

/// What is known of the thread that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// The CPU has shadow stacks, and the kernel gives them to programs.
    pub has_cpu: bool,
    /// It asks for itself, not its tracer for it.
    pub is_own: bool,
    /// What is on, as [`feature`] bits.
    pub features: u64,
    /// What it may not change any more.
    pub locked: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: it is so already.
    Nothing,
    /// A shadow stack is made.
    Start,
    /// It goes.
    Stop,
    /// WRSS works, or no more.
    AllowWrites(bool),
    /// These are locked from now on.
    Lock(u64),
    /// These are not any more.
    Unlock(u64),
    /// What is on is told.
    Tell,
}

/// Why it is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not on this machine (EOPNOTSUPP).
    NotSupported,
    /// It is locked, or there is no shadow stack to write to (EPERM).
    NotPermitted,
    /// No such feature, more than one, or not for another thread (EINVAL).
    Invalid,
}

/// Decides. As on Linux a thread that would unlock by itself is taken for one that enables.
pub const fn decide(call: Call, argument: u64, thread: &Thread) -> Result<Action, Refused> {
    match call {
        Call::Status => return Ok(Action::Tell),
        Call::Lock => return Ok(Action::Lock(argument)),
        Call::Unlock if !thread.is_own => return Ok(Action::Unlock(argument)),
        Call::Enable | Call::Disable | Call::Unlock => {}
    }
    if !thread.is_own {
        return Err(Refused::Invalid);
    }
    if argument & thread.locked != 0 {
        return Err(Refused::NotPermitted);
    }
    let on = !matches!(call, Call::Disable);
    match argument {
        feature::SHSTK => change_stack(on, thread),
        feature::WRSS => change_writes(on, thread),
        _ => Err(Refused::Invalid),
    }
}

const fn change_stack(on: bool, thread: &Thread) -> Result<Action, Refused> {
    let is_on = thread.features & feature::SHSTK != 0;
    match (on, is_on) {
        _ if !thread.has_cpu => Err(Refused::NotSupported),
        (true, false) => Ok(Action::Start),
        (false, true) => Ok(Action::Stop),
        _ => Ok(Action::Nothing),
    }
}

const fn change_writes(on: bool, thread: &Thread) -> Result<Action, Refused> {
    if !thread.has_cpu {
        return Err(Refused::NotSupported);
    }
    if thread.features & feature::SHSTK == 0 {
        return Err(Refused::NotPermitted);
    }
    let is_on = thread.features & feature::WRSS != 0;
    if is_on == on { Ok(Action::Nothing) } else { Ok(Action::AllowWrites(on)) }
}

/// Where a new thread's shadow stack comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// It has none, as who makes it.
    None,
    /// A copy of its maker's, at the same place in its own memory.
    Copy,
    /// Its maker's, which waits until it has left that.
    Lent,
    /// It gets one of its own.
    Own,
}

impl Child {
    /// Of a thread that has these features, and its child that shares its memory (CLONE_VM) and for
    /// which it waits (CLONE_VFORK), or not.
    #[must_use]
    pub const fn of(features: u64, shares_memory: bool, is_waited_for: bool) -> Child {
        if features & feature::SHSTK == 0 {
            Child::None
        } else if !shares_memory {
            Child::Copy
        } else if is_waited_for {
            Child::Lent
        } else {
            Child::Own
        }
    }
}

/// Most bytes of a thread's shadow stack that nobody gave a size.
const LARGEST: u64 = 4 << 30;

/// Bytes of a new shadow stack, whole pages of `page` bytes: as asked, or as much as the limit of
/// stacks. None where that does not exist.
#[must_use]
pub const fn bytes_of(asked: u64, stack_limit: u64, page: u64) -> Option<u64> {
    let bytes = match asked {
        0 if stack_limit < LARGEST => stack_limit,
        0 => LARGEST,
        asked => asked,
    };
    bytes.checked_next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 0x7fff_ffff_f000;

    #[test]
    fn tokens_name_the_word_above() {
        assert_eq!(restore_token(0x1_0000_2000), Some((0x1_0000_1ff8, 0x1_0000_2001)));
        for ssp in [0, 1, 4, 0x1_0000_2004, u64::MAX] {
            assert_eq!(restore_token(ssp), None, "{ssp:#x}");
        }
    }

    #[test]
    fn frames_of_signals_lead_back() {
        for ssp in [0x1_0000_2000, 0x7fff_ffff_eff8, 16] {
            let frame = SignalFrame::below(ssp).expect("a frame");
            assert_eq!((frame.ssp, frame.saved.0), (ssp - 16, ssp - 8));
            assert_eq!(saved_ssp(frame.saved.1, LIMIT), Some(ssp));
            // No return goes there, and RSTORSSP does not take it.
            assert!(frame.saved.1 >> 47 != 0);
            assert_ne!(frame.saved.1 & !7, frame.saved.0 + 8);
        }
        for ssp in [0, 8, 12, 0x1_0000_2004, 1 << 63] {
            assert_eq!(SignalFrame::below(ssp), None, "{ssp:#x}");
        }
    }

    #[test]
    fn other_words_lead_nowhere() {
        let (_, token) = restore_token(0x1_0000_2000).expect("a token");
        for word in [0, 0x40_1000, token, SAVED | 4, SAVED | LIMIT, SAVED | 1 << 62] {
            assert_eq!(saved_ssp(word, LIMIT), None, "{word:#x}");
        }
        assert_eq!(checked_ssp(LIMIT - 8, LIMIT), Some(LIMIT - 8));
        assert_eq!(checked_ssp(LIMIT, LIMIT), None);
        assert_eq!(checked_ssp(4, LIMIT), None);
        assert!([4, LIMIT - 4, LIMIT].iter().all(|&ssp| is_of_program(ssp, LIMIT)));
        assert!(!is_of_program(LIMIT + 4, LIMIT) && !is_of_program(2, LIMIT));
    }

    /// Every call, with every argument and state that differ.
    #[test]
    fn the_whole_table() {
        use feature::{SHSTK, WRSS};
        for n in 0..5 * 8 * 4 * 4 * 4 {
            let call = Call::from_code(0x5001 + n % 5).expect("a call");
            let argument = n / 5 % 8;
            let thread = Thread {
                features: n / 40 % 4,
                locked: n / 160 % 4,
                has_cpu: n / 640 % 2 == 0,
                is_own: n / 1280 % 2 == 0,
            };
            let found = decide(call, argument, &thread);
            let (stack, writes) = (thread.features & SHSTK != 0, thread.features & WRSS != 0);
            match call {
                Call::Status => assert_eq!(found, Ok(Action::Tell)),
                Call::Lock => assert_eq!(found, Ok(Action::Lock(argument))),
                Call::Unlock if !thread.is_own => assert_eq!(found, Ok(Action::Unlock(argument))),
                _ if !thread.is_own => assert_eq!(found, Err(Refused::Invalid)),
                _ if argument & thread.locked != 0 => {
                    assert_eq!(found, Err(Refused::NotPermitted));
                }
                _ if !matches!(argument, SHSTK | WRSS) => assert_eq!(found, Err(Refused::Invalid)),
                _ if !thread.has_cpu => assert_eq!(found, Err(Refused::NotSupported)),
                _ if argument == WRSS && !stack => assert_eq!(found, Err(Refused::NotPermitted)),
                Call::Disable => assert_eq!(
                    found,
                    Ok(match argument {
                        SHSTK if stack => Action::Stop,
                        WRSS if writes => Action::AllowWrites(false),
                        _ => Action::Nothing,
                    })
                ),
                Call::Enable | Call::Unlock => assert_eq!(
                    found,
                    Ok(match argument {
                        SHSTK if !stack => Action::Start,
                        WRSS if !writes => Action::AllowWrites(true),
                        _ => Action::Nothing,
                    })
                ),
            }
        }
        assert_eq!(Call::from_code(0x5000), None);
        assert_eq!(Call::from_code(0x5006), None);
    }

    #[test]
    fn children() {
        for (shares_memory, is_waited_for, child) in [
            (false, false, Child::Copy),
            (false, true, Child::Copy),
            (true, true, Child::Lent),
            (true, false, Child::Own),
        ] {
            assert_eq!(Child::of(feature::SHSTK, shares_memory, is_waited_for), child);
            assert_eq!(Child::of(0, shares_memory, is_waited_for), Child::None);
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes_of(0, 8 << 20, 4096), Some(8 << 20));
        assert_eq!(bytes_of(0, u64::MAX, 4096), Some(4 << 30));
        assert_eq!(bytes_of(0, 5000, 4096), Some(8192));
        assert_eq!(bytes_of(1, u64::MAX, 4096), Some(4096));
        assert_eq!(bytes_of(u64::MAX, 0, 4096), None);
    }
}
