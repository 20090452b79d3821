//! What single programs choose for themselves: prctl(2), PR_GET_SPECULATION_CTRL and
//! PR_SET_SPECULATION_CTRL, and seccomp(2). Pure: a thread's flags in, answers and new flags out.

use crate::select::Selection;
use crate::spec_store_bypass::{Mode, SpecStoreBypass};
use crate::spectre_v2_user::{For, SpectreV2User};

/// A thread's choices, one bit each. Children inherit them.
pub mod flag {
    /// Speculative store bypass is off.
    pub const SSB_OFF: u32 = 1;
    /// And stays off.
    pub const SSB_OFF_FOR_GOOD: u32 = 1 << 1;
    /// And comes back with execve(2).
    pub const SSB_OFF_UNTIL_EXEC: u32 = 1 << 2;
    /// Predictions of indirect branches are not shared.
    pub const BRANCHES_OFF: u32 = 1 << 3;
    /// And stay so.
    pub const BRANCHES_OFF_FOR_GOOD: u32 = 1 << 4;
}

/// What can be chosen about (the numbers of prctl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// PR_SPEC_STORE_BYPASS.
    StoreBypass,
    /// PR_SPEC_INDIRECT_BRANCH.
    IndirectBranch,
    /// PR_SPEC_L1D_FLUSH, which this kernel does not do.
    L1dFlush,
}

impl What {
    /// From the number of prctl(2).
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::StoreBypass, Self::IndirectBranch, Self::L1dFlush].get(number as usize).copied()
    }
}

/// The numbers of prctl(2): what is answered, and what can be asked for.
pub mod state {
    #![expect(missing_docs, reason = "the names of prctl(2), without PR_SPEC_")]
    pub const NOT_AFFECTED: u32 = 0;
    pub const PRCTL: u32 = 1;
    pub const ENABLE: u32 = 1 << 1;
    pub const DISABLE: u32 = 1 << 2;
    pub const FORCE_DISABLE: u32 = 1 << 3;
    pub const DISABLE_NOEXEC: u32 = 1 << 4;
}

/// Why a choice was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// ENXIO: programs do not choose about this here.
    NotByProgram,
    /// EPERM: it was switched off for good, or always is.
    Fixed,
    /// ERANGE: no such choice.
    Unknown,
}

/// PR_GET_SPECULATION_CTRL.
#[must_use]
pub fn get(selection: &Selection, what: What, flags: u32) -> u32 {
    match what {
        What::StoreBypass => store_bypass(&selection.spec_store_bypass, flags),
        What::IndirectBranch => {
            indirect_branch(&selection.spectre_v2.user, selection.spectre_v2.is_affected(), flags)
        }
        What::L1dFlush => state::FORCE_DISABLE,
    }
}

fn store_bypass(chosen: &SpecStoreBypass, flags: u32) -> u32 {
    match chosen.mode {
        Mode::None if chosen.affected => state::ENABLE,
        Mode::None => state::NOT_AFFECTED,
        Mode::Everybody => state::DISABLE,
        Mode::Prctl | Mode::Seccomp => {
            state::PRCTL
                | if flags & flag::SSB_OFF_FOR_GOOD != 0 {
                    state::FORCE_DISABLE
                } else if flags & flag::SSB_OFF_UNTIL_EXEC != 0 {
                    state::DISABLE_NOEXEC
                } else if flags & flag::SSB_OFF != 0 {
                    state::DISABLE
                } else {
                    state::ENABLE
                }
        }
    }
}

fn indirect_branch(user: &SpectreV2User, affected: bool, flags: u32) -> u32 {
    if !affected {
        state::NOT_AFFECTED
    } else if is_nobody(user) {
        state::ENABLE
    } else if !user.is_by_program() {
        state::DISABLE
    } else if flags & flag::BRANCHES_OFF_FOR_GOOD != 0 {
        state::PRCTL | state::FORCE_DISABLE
    } else if flags & flag::BRANCHES_OFF != 0 {
        state::PRCTL | state::DISABLE
    } else {
        state::PRCTL | state::ENABLE
    }
}

fn is_nobody(user: &SpectreV2User) -> bool {
    user.ibpb == For::Nobody && user.stibp == For::Nobody
}

/// PR_SET_SPECULATION_CTRL: the thread's new flags.
///
/// # Errors
/// See [`Refused`].
pub fn set(selection: &Selection, what: What, wanted: u64, flags: u32) -> Result<u32, Refused> {
    let wanted = u32::try_from(wanted).map_err(|_| Refused::Unknown)?;
    match what {
        What::StoreBypass => set_store_bypass(selection, wanted, flags),
        What::IndirectBranch => set_indirect_branch(&selection.spectre_v2.user, wanted, flags),
        What::L1dFlush => Err(Refused::Fixed),
    }
}

fn set_store_bypass(selection: &Selection, wanted: u32, flags: u32) -> Result<u32, Refused> {
    if !matches!(selection.spec_store_bypass.mode, Mode::Prctl | Mode::Seccomp) {
        return Err(Refused::NotByProgram);
    }
    let for_good = flags & flag::SSB_OFF_FOR_GOOD != 0;
    let rest = flags & !(flag::SSB_OFF | flag::SSB_OFF_UNTIL_EXEC);
    match wanted {
        state::ENABLE | state::DISABLE_NOEXEC if for_good => Err(Refused::Fixed),
        state::ENABLE => Ok(rest),
        state::DISABLE => Ok(rest | flag::SSB_OFF),
        state::FORCE_DISABLE => Ok(rest | flag::SSB_OFF | flag::SSB_OFF_FOR_GOOD),
        state::DISABLE_NOEXEC => Ok(rest | flag::SSB_OFF | flag::SSB_OFF_UNTIL_EXEC),
        _ => Err(Refused::Unknown),
    }
}

fn set_indirect_branch(user: &SpectreV2User, wanted: u32, flags: u32) -> Result<u32, Refused> {
    let for_good = flags & flag::BRANCHES_OFF_FOR_GOOD != 0;
    match wanted {
        state::ENABLE if is_nobody(user) => Ok(flags),
        state::ENABLE if !user.is_by_program() || for_good => Err(Refused::Fixed),
        state::ENABLE => Ok(flags & !flag::BRANCHES_OFF),
        state::DISABLE | state::FORCE_DISABLE if is_nobody(user) => Err(Refused::Fixed),
        state::DISABLE | state::FORCE_DISABLE if !user.is_by_program() => Ok(flags),
        state::DISABLE => Ok(flags | flag::BRANCHES_OFF),
        state::FORCE_DISABLE => Ok(flags | flag::BRANCHES_OFF | flag::BRANCHES_OFF_FOR_GOOD),
        _ => Err(Refused::Unknown),
    }
}

/// The flags of a thread that put itself under seccomp(2) without asking for speculation.
#[must_use]
pub fn under_seccomp(selection: &Selection, flags: u32) -> u32 {
    let mut flags = flags;
    if selection.spec_store_bypass.mode == Mode::Seccomp {
        flags |= flag::SSB_OFF | flag::SSB_OFF_FOR_GOOD;
    }
    let user = &selection.spectre_v2.user;
    if user.ibpb == For::Seccomp || user.stibp == For::Seccomp {
        flags |= flag::BRANCHES_OFF | flag::BRANCHES_OFF_FOR_GOOD;
    }
    flags
}

/// The flags behind execve(2).
#[must_use]
pub fn after_exec(flags: u32) -> u32 {
    if flags & flag::SSB_OFF_UNTIL_EXEC == 0 {
        return flags;
    }
    flags & !(flag::SSB_OFF | flag::SSB_OFF_UNTIL_EXEC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::find;
    use crate::{Built, Options, select};

    fn chosen(profile: &str, line: &str) -> Selection {
        let facts = find(profile).expect("a profile").facts;
        select(&facts, &Options::parse(line, |_| ()), &Built::LIMEN)
    }

    #[test]
    fn store_bypass() {
        let by_program = chosen("skylake", "");
        let what = What::StoreBypass;
        let mut flags = 0;
        assert_eq!(get(&by_program, what, flags), state::PRCTL | state::ENABLE);
        for (wanted, answer) in [
            (state::DISABLE, state::DISABLE),
            (state::DISABLE_NOEXEC, state::DISABLE_NOEXEC),
            (state::ENABLE, state::ENABLE),
            (state::FORCE_DISABLE, state::FORCE_DISABLE),
        ] {
            flags = set(&by_program, what, wanted.into(), flags).expect("taken");
            assert_eq!(get(&by_program, what, flags), state::PRCTL | answer);
        }
        for wanted in [state::ENABLE, state::DISABLE_NOEXEC] {
            assert_eq!(set(&by_program, what, wanted.into(), flags), Err(Refused::Fixed));
        }
        assert_eq!(set(&by_program, what, 3, 0), Err(Refused::Unknown));
        assert_eq!(set(&by_program, what, 1 << 33, 0), Err(Refused::Unknown));
        let always = chosen("skylake", "spec_store_bypass_disable=on");
        assert_eq!(get(&always, what, 0), state::DISABLE);
        assert_eq!(set(&always, what, 2, 0), Err(Refused::NotByProgram));
        assert_eq!(get(&chosen("zen5-guest", ""), what, 0), state::ENABLE);
        assert_eq!(get(&chosen("silvermont", ""), what, 0), state::NOT_AFFECTED);
    }

    #[test]
    fn branches() {
        let what = What::IndirectBranch;
        let by_program = chosen("skylake", "");
        let off = set(&by_program, what, state::DISABLE.into(), 0).expect("taken");
        assert_eq!(get(&by_program, what, off), state::PRCTL | state::DISABLE);
        assert_eq!(set(&by_program, what, state::ENABLE.into(), off), Ok(0));
        let good = set(&by_program, what, state::FORCE_DISABLE.into(), 0).expect("taken");
        assert_eq!(set(&by_program, what, state::ENABLE.into(), good), Err(Refused::Fixed));
        let always = chosen("skylake", "spectre_v2_user=on");
        assert_eq!(get(&always, what, 0), state::DISABLE);
        assert_eq!(set(&always, what, state::ENABLE.into(), 0), Err(Refused::Fixed));
        assert_eq!(set(&always, what, state::DISABLE.into(), 0), Ok(0));
        let never = chosen("skylake", "spectre_v2_user=off");
        assert_eq!(get(&never, what, 0), state::ENABLE);
        assert_eq!(set(&never, what, state::DISABLE.into(), 0), Err(Refused::Fixed));
        assert_eq!(set(&never, what, state::DISABLE_NOEXEC.into(), 0), Err(Refused::Unknown));
        assert_eq!(get(&by_program, What::L1dFlush, 0), state::FORCE_DISABLE);
    }

    #[test]
    fn seccomp_and_exec() {
        let asks = chosen("skylake", "spectre_v2_user=seccomp spec_store_bypass_disable=seccomp");
        let flags = under_seccomp(&asks, 0);
        let forced = state::PRCTL | state::FORCE_DISABLE;
        assert_eq!(get(&asks, What::StoreBypass, flags), forced);
        assert_eq!(get(&asks, What::IndirectBranch, flags), forced);
        assert_eq!(after_exec(flags), flags);
        assert_eq!(under_seccomp(&chosen("skylake", ""), 0), 0);
        let until = flag::SSB_OFF | flag::SSB_OFF_UNTIL_EXEC | flag::BRANCHES_OFF;
        assert_eq!(after_exec(until), flag::BRANCHES_OFF);
    }
}
