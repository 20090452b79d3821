//! How the answers of several policies to one hook become one.
//!
//! Linux walks a list and stops at the first answer that differs from the hook's default; a dozen
//! hooks have rules of their own. Here a rule is a type: the chain of direct calls is generated for
//! it, and an empty slot of the chain gives [`Fold::NEUTRAL`], which every rule passes over.
//!
//! Neighbours: `table` names each hook's rule, the machine's static calls execute it.

use core::ops::ControlFlow;

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for () {}
}

/// What a hook returns: a verdict (0 or a negative errno, or a count) or nothing. A void hook can
/// refuse nothing, so it is another type and is never cut short.
pub trait Answer: sealed::Sealed + Copy + 'static {
    /// The word in the result register; `None`: there is none.
    fn word(self) -> Option<i32>;
}

impl Answer for i32 {
    fn word(self) -> Option<i32> {
        Some(self)
    }
}

impl Answer for () {
    fn word(self) -> Option<i32> {
        None
    }
}

/// A rule.
pub trait Fold: Sized {
    /// What the hook and each of its policies return.
    type Answer: Answer;
    /// What a policy that is not there answers; [`Fold::step`] ignores it.
    const NEUTRAL: Self::Answer;
    /// What the hook answers when nobody is asked; `None`: nothing.
    const DEFAULT: Option<i32>;
    /// Before the first answer.
    fn start() -> Self;
    /// Takes one answer; `Break`: nobody else is asked.
    fn step(&mut self, answer: Self::Answer) -> ControlFlow<()>;
    /// The hook's answer.
    fn end(self) -> Self::Answer;
    /// The last word about an answer that came without a chain: of one policy, or of none.
    #[must_use]
    fn settle(answer: Self::Answer) -> Self::Answer {
        answer
    }
}

/// The first answer that is not `DEFAULT`, and nobody is asked after it. With the default 0: the
/// first refusal.
#[derive(Debug)]
pub struct First<const DEFAULT: i32>(i32);

impl<const DEFAULT: i32> Fold for First<DEFAULT> {
    type Answer = i32;
    const NEUTRAL: i32 = DEFAULT;
    const DEFAULT: Option<i32> = Some(DEFAULT);
    #[inline(always)]
    fn start() -> Self {
        Self(DEFAULT)
    }
    #[inline(always)]
    fn step(&mut self, answer: i32) -> ControlFlow<()> {
        self.0 = answer;
        if answer == DEFAULT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
    #[inline(always)]
    fn end(self) -> i32 {
        self.0
    }
}

/// Everybody is told.
#[derive(Debug)]
pub struct All;

impl Fold for All {
    type Answer = ();
    const NEUTRAL: () = ();
    const DEFAULT: Option<i32> = None;
    #[inline(always)]
    fn start() -> Self {
        All
    }
    #[inline(always)]
    fn step(&mut self, (): ()) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    #[inline(always)]
    fn end(self) {}
}

/// `task_prctl`: asked until one knows the option and fails; 0 of one that knows it stands unless
/// a later one says otherwise.
#[derive(Debug)]
pub struct Offer<const DEFAULT: i32>(i32);

impl<const DEFAULT: i32> Fold for Offer<DEFAULT> {
    type Answer = i32;
    const NEUTRAL: i32 = DEFAULT;
    const DEFAULT: Option<i32> = Some(DEFAULT);
    #[inline(always)]
    fn start() -> Self {
        Self(DEFAULT)
    }
    #[inline(always)]
    fn step(&mut self, answer: i32) -> ControlFlow<()> {
        if answer == DEFAULT {
            return ControlFlow::Continue(());
        }
        self.0 = answer;
        if answer == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
    #[inline(always)]
    fn end(self) -> i32 {
        self.0
    }
}

/// `fs_context_parse_param`: 0 means "mine" and is remembered while the others are still told; an
/// error other than `DEFAULT` ends it.
pub type Parse<const DEFAULT: i32> = Offer<DEFAULT>;

/// `getselfattr`: every policy adds its records; counts are summed, `DEFAULT` (not supported) is
/// passed over, an error ends it.
#[derive(Debug)]
pub struct Collect<const DEFAULT: i32>(i32);

impl<const DEFAULT: i32> Fold for Collect<DEFAULT> {
    type Answer = i32;
    const NEUTRAL: i32 = DEFAULT;
    const DEFAULT: Option<i32> = Some(DEFAULT);
    #[inline(always)]
    fn start() -> Self {
        Self(DEFAULT)
    }
    #[inline(always)]
    fn step(&mut self, answer: i32) -> ControlFlow<()> {
        if answer == DEFAULT {
            return ControlFlow::Continue(());
        }
        let sum = if self.0 == DEFAULT { 0 } else { self.0 };
        self.0 = if answer < 0 { answer } else { sum.saturating_add(answer) };
        if answer < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
    #[inline(always)]
    fn end(self) -> i32 {
        self.0
    }
}

/// What a policy answers that was not the one asked for by id ([`Select`]). No errno, no count.
pub const NOT_MINE: i32 = i32::MIN;

/// `getprocattr`, `setprocattr`, `setselfattr`: only the policy whose id is asked for answers (0:
/// the first), whatever it says; the others say [`NOT_MINE`]. If all do, the answer is `DEFAULT`.
#[derive(Debug)]
pub struct Select<const DEFAULT: i32>(i32);

impl<const DEFAULT: i32> Fold for Select<DEFAULT> {
    type Answer = i32;
    const NEUTRAL: i32 = NOT_MINE;
    const DEFAULT: Option<i32> = Some(DEFAULT);
    #[inline(always)]
    fn start() -> Self {
        Self(NOT_MINE)
    }
    #[inline(always)]
    fn step(&mut self, answer: i32) -> ControlFlow<()> {
        self.0 = answer;
        if answer == NOT_MINE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
    #[inline(always)]
    fn end(self) -> i32 {
        self.0
    }
    #[inline(always)]
    fn settle(answer: i32) -> i32 {
        if answer == NOT_MINE { DEFAULT } else { answer }
    }
}

/// Folds what `answers` gives, as a chain of calls does: for tests and for the plan's own checks.
pub fn fold<F: Fold>(answers: impl IntoIterator<Item = F::Answer>) -> F::Answer {
    let mut fold = F::start();
    for answer in answers {
        if fold.step(answer).is_break() {
            break;
        }
    }
    F::settle(fold.end())
}
