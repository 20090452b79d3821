//! Hooks: the questions that the kernel asks its policies, as direct calls.
//!
//! `lsm::table` has a line for each; [`define_hooks`] makes of it, in the module that expands it, a
//! function to call and a static call that `machine` patches: nothing while no policy answers, the
//! policy itself when one does, a chain of direct calls when more do. Which policies are on and in
//! which order `lsm=` says at boot ([`init`]); then the calls are sealed. Policies that nobody uses
//! yet are detached, and cost what no policy costs, until [`attach`]: only this module can do that,
//! there is no way to detach them again, and none at all for policies that are not attachable. The
//! tally alone, which refuses nothing, comes and goes ([`set_tally`]).
//!
//! Locks: `STATE` sleeps and is outermost.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use formats::params;
use lsm::fold::{All, Collect, First, Fold, Offer, Select};
use lsm::order::{Odd, Order};
use lsm::table::HOOKS_COUNT;
use machine::static_call::{self, Attacher, Binding, CALLEES_MAX, NotBound, StaticCall};
use machine::sync::Once;

use crate::base::sync::Mutex;

/// Binds a part of the table: who is asked in which order, of those that are attached.
pub type Binder =
    fn(&mut Binding, &Order, &dyn Fn(usize) -> bool) -> core::result::Result<(), NotBound>;

struct AttachedState {
    binders: Vec<Binder>,
    /// One bit for each policy that is asked.
    attached: u32,
    attacher: Option<Attacher>,
}

static STATE: Mutex<AttachedState> =
    Mutex::new(AttachedState { binders: Vec::new(), attached: 0, attacher: None });
static ORDER: Once<Order> = Once::new();

/// Policies that are detached until somebody uses them.
pub const ATTACHABLE: u32 = 1 << lsm::table::policy("landlock")
    | 1 << lsm::table::policy("profile")
    | 1 << lsm::table::policy(lsm::order::TALLY);

/// The policies that are on; none before [`init`].
pub fn order() -> Order {
    ORDER.get().copied().unwrap_or_default()
}

/// Reads `lsm=`, binds all hooks or none, and seals them. Before the first program.
pub fn init(command_line: &str, binders: &[Binder]) {
    let order = Order::parse(params::find(command_line, "lsm"), |odd| match odd {
        Odd::Unknown(name) => machine::log!("warning: lsm={name}: no policy has this name"),
        Odd::Duplicate(name) => machine::log!("warning: lsm={name}: named twice"),
    });
    let order = ORDER.call_once(|| order);
    let mut state = STATE.lock();
    state.binders.extend_from_slice(binders);
    for policy in order.indices().filter(|&policy| ATTACHABLE & 1 << policy == 0) {
        state.attached |= 1 << policy;
    }
    let attached = state.attached;
    let bound = Binding::new().and_then(|mut binding| {
        bind_all(&state.binders, &mut binding, order, attached)?;
        binding.commit()
    });
    if let Err(error) = bound {
        panic!("security hooks: {error}");
    }
    state.attacher = static_call::seal();
    drop(state);
    log_order(order);
}

fn log_order(order: &Order) {
    let mut names = alloc::string::String::new();
    for policy in order.policies() {
        if !names.is_empty() {
            names.push(',');
        }
        names.push_str(policy.name);
    }
    machine::log!("LSM: initializing lsm={names}");
}

fn bind_all(
    binders: &[Binder],
    binding: &mut Binding,
    order: &Order,
    attached: u32,
) -> core::result::Result<(), NotBound> {
    let is_attached = |policy: usize| attached & 1 << policy != 0;
    binders.iter().try_for_each(|bind| bind(binding, order, &is_attached))
}

/// Binds a hook to those of its policies that are on. Not inlined: what a function for dozens of
/// hooks would have on the stack at once is half of it.
#[inline(never)]
pub fn bind_one<C: StaticCall>(
    binding: &mut Binding,
    order: &Order,
    policies: &[usize],
    attached: &dyn Fn(usize) -> bool,
) -> core::result::Result<(), NotBound> {
    let (places, used) = lsm::order::places::<CALLEES_MAX>(order, policies, attached);
    binding.bind::<C>(places.get(..used).unwrap_or_default())
}

/// Has a policy asked from now on, if it is on. When it returns every CPU asks it.
///
/// # Errors
/// EOPNOTSUPP if the policy is off; ENOMEM.
pub fn attach(policy: usize) -> Result<()> {
    set_attached(policy, true)
}

/// As [`attach`]; with `on` false the policy is not asked any more. No policy that refuses anything
/// is ever given to that: see [`set_tally`].
fn set_attached(policy: usize, on: bool) -> Result<()> {
    let order = order();
    if !order.has(policy) {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut state = STATE.lock();
    let others = state.attached & !(1 << policy);
    let attached = others | u32::from(on) << policy;
    if attached == state.attached {
        return Ok(());
    }
    let AttachedState { binders, attacher, .. } = &mut *state;
    let attacher = attacher.as_mut().ok_or(Errno::EOPNOTSUPP)?;
    attacher.attach_all(|binding| bind_all(binders, binding, &order, attached)).map_err(
        |error| {
            machine::log!("warning: security hooks: {error}");
            Errno::ENOMEM
        },
    )?;
    state.attached = attached;
    Ok(())
}

/// Of a hook's callees, one bit each, those that may be attached later.
#[must_use]
pub const fn attachable(policies: &[usize]) -> u32 {
    let (mut mask, mut callee) = (0, 0);
    while callee < policies.len() {
        if ATTACHABLE & 1 << policies[callee] != 0 {
            mask |= 1 << callee;
        }
        callee += 1;
    }
    mask
}

/// Whether a hook that these policies implement is asked in vain until one of them is attached.
#[must_use]
pub const fn are_attachable(policies: &[usize]) -> bool {
    attachable(policies).count_ones() as usize == policies.len()
}

/// What a policy's function returns, as a hook's callee returns it.
pub trait Verdict {
    /// The callee's answer.
    type Word;
    /// See there.
    fn word(self) -> Self::Word;
}

impl Verdict for () {
    type Word = ();
    #[inline(always)]
    fn word(self) {}
}

impl Verdict for Result<()> {
    type Word = i32;
    #[inline(always)]
    fn word(self) -> i32 {
        match self {
            Ok(()) => 0,
            Err(errno) => -errno.number(),
        }
    }
}

impl Verdict for Result<u32> {
    type Word = i32;
    #[inline(always)]
    fn word(self) -> i32 {
        match self {
            Ok(number) => number as i32,
            Err(errno) => -errno.number(),
        }
    }
}

/// How a hook with a rule tells its caller the answer: a refusal or not, a number, or nothing.
pub trait Ruling: Fold {
    /// What the caller gets.
    type Said;
    /// From the last word. Policies answer with errors below 4096.
    fn said(answer: Self::Answer) -> Self::Said;
}

impl<const DEFAULT: i32> Ruling for First<DEFAULT> {
    type Said = Result<()>;
    #[inline(always)]
    fn said(answer: i32) -> Result<()> {
        if answer == 0 { Ok(()) } else { Err(refused(answer)) }
    }
}

impl Ruling for All {
    type Said = ();
    #[inline(always)]
    fn said((): ()) {}
}

macro_rules! numbers {
    ($($rule:ident)*) => {$(
        impl<const DEFAULT: i32> Ruling for $rule<DEFAULT> {
            type Said = Result<u32>;
            #[inline(always)]
            fn said(answer: i32) -> Result<u32> {
                u32::try_from(Self::settle(answer)).map_err(|_| refused(Self::settle(answer)))
            }
        }
    )*};
}
numbers!(Offer Collect Select);

#[cold]
fn refused(word: i32) -> Errno {
    Errno::new(word.unsigned_abs())
}

/// How often each hook was called while the tally was attached.
static CALLS: [AtomicU64; HOOKS_COUNT] = [const { AtomicU64::new(0) }; HOOKS_COUNT];

/// The tally's part in a hook.
pub fn count(hook: usize) {
    CALLS[hook].fetch_add(1, Ordering::Relaxed);
}

/// How often a hook was called.
#[must_use]
pub fn calls(hook: usize) -> u64 {
    CALLS.get(hook).map_or(0, |calls| calls.load(Ordering::Relaxed))
}

/// Begins to count, from 0, or ends it: then hooks cost what they cost before.
///
/// # Errors
/// EOPNOTSUPP if `lsm=` does not name the tally; ENOMEM.
pub fn set_tally(on: bool) -> Result<()> {
    let policy = const { lsm::table::policy(lsm::order::TALLY) };
    if on {
        CALLS.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
    }
    set_attached(policy, on)
}

/// Makes a part of `lsm::table` callable; a policy `p` implements hook `h` as `p::h`, a function of
/// the tuple of what the hook is given.
macro_rules! define_hooks {
    ($( $(#[$doc:meta])* $hook:ident($($type:ty),*) -> $rule:ty [$($policy:ident)*]; )*) => {
        $(
            $(#[$doc])*
            pub mod $hook {
                use super::*;

                /// What the hook is given.
                pub type Given<'a> = ($($type,)*);
                /// The static call.
                pub struct Hook;
                type Answer = <$rule as lsm::fold::Fold>::Answer;
                /// The policies of its callees.
                pub const POLICIES: &[usize] = &[
                    $(lsm::table::policy(stringify!($policy)),)*
                    lsm::table::policy(lsm::order::TALLY),
                    #[cfg(feature = "hooks-bench")]
                    lsm::table::policy("allow1"),
                    #[cfg(feature = "hooks-bench")]
                    lsm::table::policy("allow2"),
                    #[cfg(feature = "hooks-bench")]
                    lsm::table::policy("allow3"),
                    #[cfg(feature = "hooks-bench")]
                    lsm::table::policy("allow4"),
                ];

                impl machine::static_call::StaticCall for Hook {
                    type Args<'a> = Given<'a>;
                    type Fold = $rule;
                    const CALLEES: &'static [machine::static_call::Callee<Self>] = &[
                        $($policy,)*
                        tally,
                        #[cfg(feature = "hooks-bench")]
                        allow::<1>,
                        #[cfg(feature = "hooks-bench")]
                        allow::<2>,
                        #[cfg(feature = "hooks-bench")]
                        allow::<3>,
                        #[cfg(feature = "hooks-bench")]
                        allow::<4>,
                    ];
                    const ATTACHABLE: u32 = $crate::security::hooks::attachable(POLICIES);
                    const GATED: bool = $crate::security::hooks::are_attachable(&[
                        $(lsm::table::policy(stringify!($policy))),*
                    ]);
                    #[cfg(feature = "hooks-list")]
                    fn list() -> &'static machine::static_call::List {
                        static LIST: machine::static_call::List =
                            machine::static_call::List::new();
                        &LIST
                    }
                }

                $(
                    extern "C" fn $policy(given: &Given<'_>) -> Answer {
                        use $crate::security::hooks::Verdict;
                        super::policies::$policy::$hook(*given).word()
                    }
                )*

                #[cfg(feature = "hooks-bench")]
                extern "C" fn allow<const N: u64>(_: &Given<'_>) -> Answer {
                    #[cfg(feature = "hooks-probe")]
                    if let Some(answer) = $crate::security::probe::asked(
                        const { lsm::table::hook(stringify!($hook)) },
                        N,
                    ) {
                        return answer;
                    }
                    <$rule as lsm::fold::Fold>::NEUTRAL
                }

                extern "C" fn tally(_: &Given<'_>) -> Answer {
                    $crate::security::hooks::count(const { lsm::table::hook(stringify!($hook)) });
                    <$rule as lsm::fold::Fold>::NEUTRAL
                }
            }

            $(#[$doc])*
            #[inline(always)]
            pub fn $hook(
                given: $hook::Given<'_>,
            ) -> <$rule as $crate::security::hooks::Ruling>::Said {
                use $crate::security::hooks::Ruling;
                <$rule>::said(machine::static_call::ask::<$hook::Hook>(given))
            }
        )*

        /// Binds these hooks.
        pub fn bind(
            binding: &mut machine::static_call::Binding,
            order: &lsm::order::Order,
            attached: &dyn Fn(usize) -> bool,
        ) -> core::result::Result<(), machine::static_call::NotBound> {
            use $crate::security::hooks::bind_one;
            $(
                bind_one::<$hook::Hook>(binding, order, $hook::POLICIES, attached)?;
            )*
            Ok(())
        }
    };
}
pub(crate) use define_hooks;
