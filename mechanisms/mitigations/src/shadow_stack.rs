//! Shadow stacks of the kernel (SDM 1, 17.2): the CPU keeps a second copy of every return address,
//! on pages that no ordinary store changes, and stops a return that leads elsewhere. Whether they
//! are used: `kernel_shstk=`.
//!
//! Why it is hard: a return that no call made is stopped, too, and a call that never returns leaves
//! a word that the next return is compared with. Some means against speculation are such returns or
//! calls. Where one of them was chosen that cannot do without, it stays, and there is no shadow
//! stack: holes of the CPU can be used by any program, and a changed return address needs a bug of
//! the kernel first.
//!
//! | Sequence | Calls that are not returned to | With shadow stacks |
//! |---|---|---|
//! | safe return, Zen 3 and 4 | one for each return | another thunk drops its word (`untrain`) |
//! | safe return, Zen 1 and 2 | one for each return | excluded: none of these CPUs has any |
//! | overlaid return | none | as it is |
//! | aligned return and branch | none | as they are |
//! | retpoline | one, whose return goes to the target | excluded: no store changes the word |
//! | return that counts calls | 16 where it fills the stack | excluded: only with retpolines |
//! | filling at switches and behind guests | 32 | INCSSPQ drops them (`cpu/fill.S`) |
//! | one call behind guests | one | INCSSPQ drops it |
//! | loops that clear branch history | none: each call has its return | as they are |
//! | return from within an NMI | one, where it goes by the safe return | INCSSPQ drops it |
//! | int3 that stands for a call or a return | none | the handler changes both stacks |
//!
//! INCSSPQ is an invalid opcode without a shadow stack. So the sequences that run anywhere ask
//! first (RDSSPQ), and returns go to the thunk that drops on CPUs that have theirs already: the
//! first one begins before text is changed, the others before they run Rust.

use core::fmt;

use crate::Plan;
use crate::plan::{Branches, Returns};

/// The parameter's name.
pub const NAME: &str = "kernel_shstk";

/// What `kernel_shstk=` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// Where the CPU has them.
    #[default]
    Auto,
    /// The same, and whoever asked is warned where they are not.
    On,
    /// Not at all.
    Off,
}

impl Asked {
    /// Parses a value; `None`: nobody knows it.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "auto" => Some(Self::Auto),
            "on" => Some(Self::On),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
}

/// What the CPU itself says; not the facts that a command line puts in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// It has shadow stacks (CPUID.7:ECX, bit 7).
    pub has_shadow_stacks: bool,
    /// It is a hypervisor's.
    pub is_virtual: bool,
    /// Nothing but page faults can leave a token busy that is not in use (CPUID.7.1:EDX, bit 18;
    /// SDM 1, 17.2.3). A hypervisor that does not promise it may do so by its exits.
    pub keeps_tokens: bool,
}

/// Whether shadow stacks are used, and why not. Its words are the boot report's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// They are.
    On,
    /// `kernel_shstk=off`.
    SwitchedOff,
    /// The CPU has none.
    NoCpu,
    /// A hypervisor does not promise that tokens stay as they are.
    Hypervisor,
    /// Programs run on tables that do not map the kernel's stacks.
    Isolation,
    /// The retpoline is a return that no call made.
    Retpoline,
    /// A safe return drops an address that a shadow stack keeps: the form of CPUs without any.
    SafeReturns,
    /// What counts calls fills the return stack.
    CountedCalls,
}

impl Choice {
    /// Whether they are used.
    #[must_use]
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "shadow stacks: returns of the kernel are checked",
            Self::SwitchedOff => "shadow stacks: off, as asked for",
            Self::NoCpu => "shadow stacks: off, the CPU has none",
            Self::Hypervisor => {
                "shadow stacks: off, the hypervisor does not promise to keep tokens"
            }
            Self::Isolation => "shadow stacks: off, page tables are isolated",
            Self::Retpoline => "shadow stacks: off, retpolines are returns without calls",
            Self::SafeReturns => "shadow stacks: off, safe returns drop return addresses",
            Self::CountedCalls => "shadow stacks: off, counted calls leave return addresses",
        })
    }
}

/// Decides.
#[must_use]
pub const fn choose(asked: Asked, cpu: Cpu, plan: &Plan) -> Choice {
    match asked {
        Asked::Off => Choice::SwitchedOff,
        Asked::Auto | Asked::On if !cpu.has_shadow_stacks => Choice::NoCpu,
        Asked::Auto | Asked::On if cpu.is_virtual && !cpu.keeps_tokens => Choice::Hypervisor,
        Asked::Auto | Asked::On if plan.pti => Choice::Isolation,
        Asked::Auto | Asked::On if matches!(plan.branches, Branches::Thunk) => Choice::Retpoline,
        Asked::Auto | Asked::On => match plan.returns {
            Returns::Safe => Choice::SafeReturns,
            Returns::Counted => Choice::CountedCalls,
            Returns::Plain | Returns::Aligned | Returns::Overlaid | Returns::SafeAlias => {
                Choice::On
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Built, Options, profiles, select};

    const CPU: Cpu = Cpu { has_shadow_stacks: true, is_virtual: false, keeps_tokens: false };

    /// The plan of a CPU of the profiles with this command line.
    fn plan(profile: &str, line: &str) -> Plan {
        let facts = profiles::find(profile).expect("a profile").facts;
        let options = Options::parse(line, |bad| panic!("{}={}", bad.name, bad.value));
        Plan::new(&select(&facts, &options, &Built::LIMEN), &facts, &options)
    }

    #[test]
    fn the_cpu_and_what_else_it_needs() {
        let plan = plan("alderlake-e-core", "");
        assert_eq!(choose(Asked::Auto, CPU, &plan), Choice::On);
        assert_eq!(choose(Asked::On, CPU, &plan), Choice::On);
        assert_eq!(choose(Asked::Off, CPU, &plan), Choice::SwitchedOff);
        assert_eq!(choose(Asked::On, Cpu::default(), &plan), Choice::NoCpu);
        let guest = Cpu { is_virtual: true, ..CPU };
        assert_eq!(choose(Asked::On, guest, &plan), Choice::Hypervisor);
        let kept = Cpu { keeps_tokens: true, ..guest };
        assert_eq!(choose(Asked::Auto, kept, &plan), Choice::On);
    }

    #[test]
    fn what_excludes_them() {
        let good = plan("alderlake-e-core", "");
        for (plan, why) in [
            (Plan { pti: true, ..good }, Choice::Isolation),
            (Plan { branches: Branches::Thunk, ..good }, Choice::Retpoline),
            (Plan { returns: Returns::Safe, ..good }, Choice::SafeReturns),
            (Plan { returns: Returns::Counted, ..good }, Choice::CountedCalls),
            (Plan { returns: Returns::SafeAlias, ..good }, Choice::On),
            (Plan { returns: Returns::Overlaid, ..good }, Choice::On),
            (Plan { returns: Returns::Aligned, ..good }, Choice::On),
            (Plan { branches: Branches::Lfence, ..good }, Choice::On),
        ] {
            for asked in [Asked::Auto, Asked::On] {
                assert_eq!(choose(asked, CPU, &plan), why);
            }
        }
        let retpoline = plan("alderlake-e-core", "spectre_v2=retpoline");
        assert_eq!(choose(Asked::On, CPU, &retpoline), Choice::Retpoline);
    }

    const ROCKET_LAKE: (&str, &str) =
        ("rocketlake", "spectre_v2=eibrs,retpoline indirect_target_selection=stuff");

    /// What the CPUs have that are affected: safe returns and shadow stacks go together on Zen 4,
    /// and on Zen 3 without the retpolines that it has for indirect branches; who counts calls has
    /// those.
    #[test]
    fn what_goes_together() {
        for (profile, line, returns, choice) in [
            ("zen4", "", Returns::SafeAlias, Choice::On),
            ("zen3", "", Returns::SafeAlias, Choice::Retpoline),
            ("zen3", "spectre_v2=off", Returns::SafeAlias, Choice::On),
            ("zen2", "spectre_v2=off", Returns::Safe, Choice::SafeReturns),
            ("zen2", "spectre_v2=off spec_rstack_overflow=off", Returns::Overlaid, Choice::On),
            (ROCKET_LAKE.0, ROCKET_LAKE.1, Returns::Counted, Choice::Retpoline),
        ] {
            let plan = plan(profile, line);
            assert_eq!(plan.returns, returns, "{profile} {line}");
            assert_eq!(choose(Asked::Auto, CPU, &plan), choice, "{profile} {line}");
        }
    }

    #[test]
    fn values() {
        assert_eq!(Asked::parse("on"), Some(Asked::On));
        assert_eq!(Asked::parse("auto"), Some(Asked::default()));
        assert_eq!(Asked::parse("off"), Some(Asked::Off));
        assert_eq!(Asked::parse("maybe"), None);
    }
}
