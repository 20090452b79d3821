//! Static calls: a call whose target changes rarely is a direct call in text.
//!
//! A call is a type ([`StaticCall`]) that names what it is given, who may be called, and how
//! several answers become one. [`call`] is an ordinary direct call of the type's own trampoline;
//! objtool finds all of them and makes each a site. The site itself is then patched: nothing (a
//! nop, or the default into the result register) while nobody is bound, the one callee, or a
//! chain of the type's, which is compiled code that makes a direct call for each callee it has room
//! for: there is one for each length, and the shortest that has room is taken.
//! No pointer, list or indirect call is on any path.
//!
//! What makes this sound in safe code of others: the key of a call is the address of a function
//! generated for its type, so two calls cannot be confused whatever their authors write; all
//! callees are functions of one type; and a place in the chain belongs to one callee for good.
//!
//! What a call is given lies in memory, which costs something even where nobody is bound. A call
//! that only attachable callees answer has a gate at each site ([`StaticCall::GATED`], [`ask`]): a
//! nop while nobody is bound, and a jump to arguments and call, out of line, while somebody is. A
//! gate is a static branch whose key is the call's trampoline.
//!
//! Three times: until [`Binding::commit`] every call gives its default, through the trampoline.
//! `commit` binds all calls at once or none. After [`seal`] only callees that their call declares
//! attachable come and go, by whoever holds the one [`Attacher`]; the others cannot be unbound by
//! anybody.
//!
//! Neighbours: `text_patching::static_call` has the bytes, `text_poke` the protocol, `lsm::fold`
//! the rules of chains.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use lsm::fold::{Answer, Fold};
use text_patching::return_site::Return;
use text_patching::site_table::CallEntry;
use text_patching::static_call::{Target, decode, encode, update_trampoline};
use text_patching::{Anomaly, Patch, Text, What, jump_label};

use crate::cpu::static_key::GATES;
use crate::cpu::{IMAGE_LINKED, linked};
use crate::text::cfi;
use crate::text::text_poke::{self, LiveText};

/// Most callees that one call has.
pub const CALLEES_MAX: usize = 8;

/// What a call returns.
pub type AnswerOf<C> = <<C as StaticCall>::Fold as Fold>::Answer;
/// What can be called.
pub type Callee<C> = for<'a, 'b> extern "C" fn(&'a <C as StaticCall>::Args<'b>) -> AnswerOf<C>;

/// A call. The type itself is never made.
pub trait StaticCall: Sized + 'static {
    /// What callees are given, by reference.
    type Args<'a>;
    /// How the answers of several become one, and what the call gives when nobody is bound.
    type Fold: Fold;
    /// Everybody who can be bound, at most [`CALLEES_MAX`].
    const CALLEES: &'static [Callee<Self>];
    /// Which of them may come and go after [`seal`], one bit each.
    const ATTACHABLE: u32;
    /// Whether [`ask`] passes by a gate: for calls that usually nobody answers.
    const GATED: bool = false;
    /// Who is called, in builds that measure what direct calls are measured against.
    #[cfg(feature = "hooks-list")]
    fn list() -> &'static List {
        static NOBODY: List = List::new();
        &NOBODY
    }
}

/// Makes the call.
#[inline(always)]
pub fn call<C: StaticCall>(args: &C::Args<'_>) -> AnswerOf<C> {
    trampoline::<C>(args)
}

/// Makes the call of a security hook, if anybody answers it. `limen bench lsm` measures that in
/// other forms, too.
#[cfg(not(any(feature = "hooks-list", feature = "hooks-none")))]
#[inline(always)]
pub fn ask<C: StaticCall>(args: C::Args<'_>) -> AnswerOf<C> {
    if C::GATED && !is_open_gate::<C>() {
        return C::Fold::NEUTRAL;
    }
    // Here, so that nothing is put into memory where the gate is closed.
    let args = args;
    call::<C>(&args)
}

/// Makes no call: for measuring what the others cost.
#[cfg(feature = "hooks-none")]
#[inline(always)]
pub fn ask<C: StaticCall>(_: C::Args<'_>) -> AnswerOf<C> {
    C::Fold::NEUTRAL
}

/// Walks a list and calls through pointers, as hooks were called before there were static calls:
/// for measuring.
#[cfg(feature = "hooks-list")]
#[inline(always)]
pub fn ask<C: StaticCall>(args: C::Args<'_>) -> AnswerOf<C> {
    let mut fold = C::Fold::start();
    for place in &C::list().0 {
        let Some(callee) = C::CALLEES.get(usize::from(place.load(Ordering::Relaxed))) else {
            break;
        };
        if fold.step(callee(&args)).is_break() {
            break;
        }
    }
    fold.end()
}

/// The callees of a call by their numbers, up to one that does not exist.
#[cfg(feature = "hooks-list")]
pub struct List([core::sync::atomic::AtomicU8; CALLEES_MAX + 1]);

#[cfg(feature = "hooks-list")]
impl List {
    /// Nobody.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is a static's first value")]
    pub const fn new() -> Self {
        Self([const { core::sync::atomic::AtomicU8::new(u8::MAX) }; CALLEES_MAX + 1])
    }

    fn set(&self, bound: &[Option<usize>]) {
        let mut places = self.0.iter();
        for (place, callee) in places.by_ref().zip(bound.iter().flatten()) {
            place.store(*callee as u8, Ordering::Relaxed);
        }
        places.for_each(|place| place.store(u8::MAX, Ordering::Relaxed));
    }
}

/// In [`RawTrampoline::flags`]: the call may change after sealing.
const DYNAMIC: u32 = 1;
/// In [`RawTrampoline::flags`]: this is a place in a chain; `chain` is the call's own trampoline.
const PLACE: u32 = 2;

/// In [`RawTrampoline::flags`]: this is no trampoline but a chain that is shorter than the call's
/// own; `chain` is the call's trampoline, `number` its length.
const SHORT: u32 = 4;

/// An entry of `__static_call_tramps`, which the code below writes and objtool reads too.
#[repr(C)]
struct RawTrampoline {
    /// From here to the trampoline.
    trampoline: i32,
    flags: u32,
    /// From this word to the call's chain.
    chain: i32,
    /// Number of callees, or the number of a place.
    number: u32,
}

const fn flags<C: StaticCall>() -> u32 {
    if C::ATTACHABLE != 0 { DYNAMIC } else { 0 }
}

const fn count<C: StaticCall>() -> u32 {
    assert!(C::CALLEES.len() <= CALLEES_MAX, "more callees than a chain has room for");
    C::CALLEES.len() as u32
}

/// The entry of the chain of so many places, if the call has more callees than that.
macro_rules! short {
    ($len:literal) => {
        concat!(
            ".if {count} > ",
            $len,
            "\n.long {chain_",
            $len,
            "} - .\n.long {short}\n.long 2b - .\n.long ",
            $len,
            "\n.endif"
        )
    };
}

/// What every call of the type is compiled to. The signature at +5 (ud1 %esp,%ecx) tells real
/// trampolines; the section lists them.
#[unsafe(naked)]
extern "C" fn trampoline<C: StaticCall>(args: &C::Args<'_>) -> AnswerOf<C> {
    core::arch::naked_asm!(
        "2: .byte 0xe9", // jmp rel32
        ".long {nothing} - . - 4",
        ".byte 0x0f, 0xb9, 0xcc",
        ".pushsection __static_call_tramps, \"aR\", @progbits",
        ".balign 4",
        ".long 2b - .",
        ".long {flags}",
        ".long {chain} - .",
        ".long {count}",
        short!("2"),
        short!("3"),
        short!("4"),
        short!("5"),
        short!("6"),
        short!("7"),
        ".popsection",
        nothing = sym nothing::<C>,
        chain = sym chain::<C>,
        flags = const flags::<C>(),
        count = const count::<C>(),
        short = const SHORT,
        chain_2 = sym short_chain::<C, 2>,
        chain_3 = sym short_chain::<C, 3>,
        chain_4 = sym short_chain::<C, 4>,
        chain_5 = sym short_chain::<C, 5>,
        chain_6 = sym short_chain::<C, 6>,
        chain_7 = sym short_chain::<C, 7>,
    )
}
const _: () = assert!(CALLEES_MAX == 8, "shorter chains have 2 to 7 places");

/// Place `I` in the type's chain: a static call of its own.
#[unsafe(naked)]
extern "C" fn place<C: StaticCall, const I: usize>(args: &C::Args<'_>) -> AnswerOf<C> {
    core::arch::naked_asm!(
        "2: .byte 0xe9",
        ".long {nothing} - . - 4",
        ".byte 0x0f, 0xb9, 0xcc",
        ".pushsection __static_call_tramps, \"aR\", @progbits",
        ".balign 4",
        ".long 2b - .",
        ".long {flags}",
        ".long {owner} - .",
        ".long {number}",
        ".popsection",
        nothing = sym nothing::<C>,
        owner = sym trampoline::<C>,
        flags = const PLACE | flags::<C>(),
        number = const I,
    )
}

/// Whether anybody is bound: a static branch of the call's own.
#[cfg(not(any(feature = "hooks-list", feature = "hooks-none")))]
#[inline(always)]
fn is_open_gate<C: StaticCall>() -> bool {
    'open: {
        // SAFETY: as in `static_branch_unlikely`. The key is the trampoline's distance from the
        // image's base, as linked, and `GATES`, which no `StaticKey` has.
        unsafe {
            core::arch::asm!(
                "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                ".pushsection __jump_table, \"aR\", @progbits",
                ".balign 4",
                ".long 2b - .",
                ".long {open} - .",
                ".long {trampoline} - {base} + {gates}",
                ".popsection",
                open = label { break 'open true; },
                trampoline = sym trampoline::<C>,
                base = const IMAGE_LINKED,
                gates = const GATES,
                options(nomem, nostack, preserves_flags)
            );
        }
        false
    }
}

/// The key of the gates of the call with this trampoline.
fn gate_key(trampoline: u64) -> u32 {
    (linked(trampoline) - IMAGE_LINKED) as u32 + GATES
}

/// What is called while nobody is bound.
extern "C" fn nothing<C: StaticCall>(_: &C::Args<'_>) -> AnswerOf<C> {
    C::Fold::NEUTRAL
}

/// Asks everybody in turn, by direct calls.
extern "C" fn chain<C: StaticCall>(args: &C::Args<'_>) -> AnswerOf<C> {
    ask_first::<C, CALLEES_MAX>(args)
}

/// Asks who is in the first `N` places: what is not bound costs nothing behind them.
extern "C" fn short_chain<C: StaticCall, const N: usize>(args: &C::Args<'_>) -> AnswerOf<C> {
    ask_first::<C, N>(args)
}

#[inline(always)]
fn ask_first<C: StaticCall, const N: usize>(args: &C::Args<'_>) -> AnswerOf<C> {
    let mut fold = C::Fold::start();
    macro_rules! ask {
        ($($place:literal)*) => {$(
            if const { C::CALLEES.len() > $place && C::CALLEES.len() > 1 && N > $place }
                && fold.step(place::<C, $place>(args)).is_break()
            {
                return fold.end();
            }
        )*};
    }
    ask!(0 1 2 3 4 5 6 7);
    fold.end()
}
const _: () = assert!(CALLEES_MAX == 8, "the chain asks places 0 to 7");

/// The addresses that belong to a call.
struct Shape {
    trampoline: u64,
    nothing: u64,
    chain: u64,
    /// Shorter chains, of two places and more, each one longer.
    short_chains: Vec<u64>,
    /// What nobody answers; `None`: nothing is returned.
    neutral: Option<i32>,
    callees: Vec<u64>,
    places: Vec<u64>,
    attachable: u32,
}

impl Shape {
    fn of<C: StaticCall>() -> Result<Self, NotBound> {
        let mut places = Vec::new();
        macro_rules! list {
            ($($place:literal)*) => {$(
                if const { C::CALLEES.len() > $place && C::CALLEES.len() > 1 } {
                    places.push(place::<C, $place> as *const () as u64);
                }
            )*};
        }
        places.try_reserve_exact(CALLEES_MAX).map_err(|_| NotBound::Memory)?;
        list!(0 1 2 3 4 5 6 7);
        let mut short_chains = Vec::new();
        macro_rules! chains {
            ($($len:literal)*) => {$(
                if const { C::CALLEES.len() > $len } {
                    short_chains.push(short_chain::<C, $len> as *const () as u64);
                }
            )*};
        }
        short_chains.try_reserve_exact(CALLEES_MAX).map_err(|_| NotBound::Memory)?;
        chains!(2 3 4 5 6 7);
        let mut callees = Vec::new();
        callees.try_reserve_exact(C::CALLEES.len()).map_err(|_| NotBound::Memory)?;
        callees.extend(C::CALLEES.iter().map(|&callee| callee as usize as u64));
        Ok(Self {
            trampoline: trampoline::<C> as *const () as u64,
            nothing: nothing::<C> as *const () as u64,
            chain: chain::<C> as *const () as u64,
            short_chains,
            neutral: C::Fold::NEUTRAL.word(),
            callees,
            places,
            attachable: C::ATTACHABLE,
        })
    }

    /// What a site does when nobody is bound.
    fn empty(&self, tail: bool) -> Target {
        // A site that returns would do so at its own place.
        if tail && cfi::plan().is_some_and(|plan| plan.returns != Return::Plain) {
            return Target::Function(self.nothing);
        }
        match self.neutral {
            None => Target::Nothing,
            Some(0) => Target::Return(0),
            Some(_) if tail => Target::Function(self.nothing),
            Some(value) => Target::Return(value),
        }
    }

    /// What a site of the call does with these callees.
    fn target(&self, bound: &[Option<usize>], tail: bool) -> Option<Target> {
        let mut those = bound.iter().flatten();
        Some(match (those.next(), those.next()) {
            (None, _) => self.empty(tail),
            (Some(&one), None) => Target::Function(*self.callees.get(one)?),
            _ => {
                let places = bound.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                let short = places.checked_sub(2).and_then(|at| self.short_chains.get(at));
                Target::Function(short.copied().unwrap_or(self.chain))
            }
        })
    }

    /// Whether a site or place may lead there.
    fn knows(&self, target: Target) -> bool {
        match target {
            Target::Function(at) => {
                let own = [self.trampoline, self.nothing, self.chain];
                let lists = [&self.callees, &self.places, &self.short_chains];
                own.contains(&at) || lists.iter().any(|list| list.contains(&at))
            }
            other => other == self.empty(false) || other == self.empty(true),
        }
    }

    /// Who is bound where, as the text of the places says; the trampoline's if there is no chain.
    fn bound(&self) -> Result<Vec<Option<usize>>, NotBound> {
        let alone = [self.trampoline];
        let records = if self.places.is_empty() { &alone[..] } else { &self.places };
        let mut bound = Vec::new();
        bound.try_reserve_exact(CALLEES_MAX).map_err(|_| NotBound::Memory)?;
        for &at in records {
            let target = now(at).ok_or(NotBound::Text(unmapped(at)))?;
            bound.push(match target {
                Target::Function(at) => self.callees.iter().position(|&callee| callee == at),
                _ => None,
            });
        }
        bound.truncate(self.callees.len());
        Ok(bound)
    }
}

const fn unmapped(at: u64) -> Anomaly {
    Anomaly::new(at, 0, What::Unmapped)
}

/// What a trampoline does now.
fn now(trampoline: u64) -> Option<Target> {
    let mut bytes = [0; 5];
    LiveText.read(trampoline, &mut bytes).ok()?;
    decode(&own_entry(trampoline), bytes)
}

fn own_entry(trampoline: u64) -> CallEntry {
    CallEntry { site: trampoline, key: linked(trampoline) as u32, tail: true, dynamic: false }
}

/// Why nothing was bound. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBound {
    /// A site is not as it must be, or the image has no tables.
    Text(Anomaly),
    /// No memory for the list of patches.
    Memory,
    /// A callee that the call does not have, or twice, or more than it has.
    NoSuchCallee,
    /// The calls are sealed, and the change concerns a callee that is not attachable.
    Sealed,
}

impl core::fmt::Display for NotBound {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Text(anomaly) => write!(f, "{anomaly}"),
            Self::Memory => f.write_str("no memory for the list of patches"),
            Self::NoSuchCallee => f.write_str("no such callee"),
            Self::Sealed => f.write_str("sealed"),
        }
    }
}

impl From<Anomaly> for NotBound {
    fn from(anomaly: Anomaly) -> Self {
        Self::Text(anomaly)
    }
}

/// The callee that alone is bound, as text says: None if nobody is, or several are.
pub(crate) fn only_callee<C: StaticCall>() -> Option<usize> {
    let Some(Target::Function(at)) = now(trampoline::<C> as *const () as u64) else { return None };
    C::CALLEES.iter().position(|&callee| callee as usize as u64 == at)
}

/// Changes of many calls that are made together.
pub struct Binding {
    /// Places that get a callee: first, so that no chain is live before its callees are.
    fill: Vec<Patch>,
    /// Sites of the calls themselves.
    live: Vec<Patch>,
    /// Gates.
    gates: Vec<Patch>,
    /// Places that lose theirs: last.
    clear: Vec<Patch>,
    /// Whether callees that are not attachable, and places, may change.
    free: bool,
    sites: ByKey,
}

/// Where each call's sites and gates stand in their tables, which are in the order of addresses:
/// without this each call would look through all of them.
struct ByKey {
    calls: Vec<(u32, u32)>,
    gates: Vec<(u32, u32)>,
}

impl ByKey {
    fn new() -> Result<Self, NotBound> {
        let tables = cfi::tables().ok_or(NotBound::Text(unmapped(0)))?;
        Ok(Self {
            calls: sorted_keys(tables.calls().iter().map(|entry| entry.key))?,
            gates: sorted_keys(tables.branches().iter().map(|gate| gate.key))?,
        })
    }
}

/// Each key with its place, in the order of the keys.
fn sorted_keys(keys: impl Iterator<Item = u32> + Clone) -> Result<Vec<(u32, u32)>, NotBound> {
    let mut sorted = Vec::new();
    sorted.try_reserve_exact(keys.clone().count()).map_err(|_| NotBound::Memory)?;
    sorted.extend(keys.zip(0..));
    sorted.sort_unstable();
    Ok(sorted)
}

/// The places of one key.
fn places_of(sorted: &[(u32, u32)], key: u32) -> impl Iterator<Item = usize> {
    let first = sorted.partition_point(|&(other, _)| other < key);
    let those = sorted[first..].iter().take_while(move |&&(other, _)| other == key);
    those.map(|&(_, place)| place as usize)
}

impl Binding {
    /// No change yet.
    ///
    /// # Errors
    /// [`NotBound::Sealed`] once the calls are sealed; no tables, or no memory.
    pub fn new() -> Result<Self, NotBound> {
        if is_open(false) { Self::empty(true) } else { Err(NotBound::Sealed) }
    }

    fn empty(free: bool) -> Result<Self, NotBound> {
        let [fill, live, gates, clear] = [const { Vec::new() }; 4];
        Ok(Self { fill, live, gates, clear, free, sites: ByKey::new()? })
    }

    /// Adds: callee number `bound[i]` is asked as the i-th, nobody where it is `None`.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn bind<C: StaticCall>(&mut self, bound: &[Option<usize>]) -> Result<(), NotBound> {
        #[cfg(feature = "hooks-list")]
        C::list().set(bound);
        self.add(&Shape::of::<C>()?, bound)
    }

    fn add(&mut self, shape: &Shape, bound: &[Option<usize>]) -> Result<(), NotBound> {
        let old = shape.bound()?;
        check_callees(shape, bound)?;
        if !self.free {
            check_attachable(shape, &old, bound)?;
        }
        for (place, &record) in shape.places.iter().enumerate() {
            let to = bound.get(place).copied().flatten();
            let target = |tail| match to {
                Some(callee) => shape.callees.get(callee).map(|&at| Target::Function(at)),
                None => Some(shape.empty(tail)),
            };
            let list = if to.is_some() { &mut self.fill } else { &mut self.clear };
            derive(&self.sites, shape, record, &target, list)?;
        }
        let target = |tail| shape.target(bound, tail);
        derive(&self.sites, shape, shape.trampoline, &target, &mut self.live)?;
        let open = bound.iter().any(Option::is_some);
        derive_gates(&self.sites, shape.trampoline, open, &mut self.gates)
    }

    /// Makes all changes on all CPUs. When it returns no CPU starts a call as it was before; calls
    /// that are under way may end. Must not be called from an interrupt handler.
    ///
    /// # Errors
    /// The first thing that is not as it must be; nothing has changed then.
    pub fn commit(mut self) -> Result<usize, NotBound> {
        let mut changed = 0;
        for list in [&mut self.fill, &mut self.live, &mut self.gates, &mut self.clear] {
            *list = by_address(list);
        }
        let lists = [&self.fill[..], &self.live, &self.gates, &self.clear];
        text_poke::check_all(&lists)?;
        for list in lists {
            changed += text_poke::switch_all(list)?;
        }
        Ok(changed)
    }
}

/// The patches in the order of their addresses. What is sorted is small: the sort of patches
/// themselves takes several KiB of stack for each of its levels, of which a thread has 16.
fn by_address(patches: &[Patch]) -> Vec<Patch> {
    let places = patches.iter().enumerate();
    let mut order: Vec<(u64, usize)> = places.map(|(place, patch)| (patch.at, place)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, place)| patches[place]).collect()
}

/// Each callee at most once, and none that does not exist.
fn check_callees(shape: &Shape, bound: &[Option<usize>]) -> Result<(), NotBound> {
    let mut seen = 0_u32;
    for &callee in bound.iter().flatten() {
        if callee >= shape.callees.len() || seen & 1 << callee != 0 {
            return Err(NotBound::NoSuchCallee);
        }
        seen |= 1 << callee;
    }
    if bound.len() > shape.callees.len() { Err(NotBound::NoSuchCallee) } else { Ok(()) }
}

/// Only attachable callees come and go, and no callee moves.
fn check_attachable(
    shape: &Shape,
    old: &[Option<usize>],
    new: &[Option<usize>],
) -> Result<(), NotBound> {
    let at = |list: &[Option<usize>], place: usize| list.get(place).copied().flatten();
    let fixed = |callee: usize| shape.attachable & 1 << callee == 0;
    let forbidden = |place| match (at(old, place), at(new, place)) {
        (Some(a), Some(b)) => a != b,
        (Some(one), None) | (None, Some(one)) => fixed(one),
        (None, None) => false,
    };
    if (0..shape.callees.len()).any(forbidden) { Err(NotBound::Sealed) } else { Ok(()) }
}

/// Adds to `out` the patches of a trampoline and of all its sites.
fn derive(
    sites: &ByKey,
    shape: &Shape,
    trampoline: u64,
    target: &dyn Fn(bool) -> Option<Target>,
    out: &mut Vec<Patch>,
) -> Result<(), NotBound> {
    let tables = cfi::tables().ok_or(NotBound::Text(unmapped(trampoline)))?;
    let own = own_entry(trampoline);
    let from = now(trampoline).ok_or(NotBound::Text(unmapped(trampoline)))?;
    // A trampoline always leads to a function.
    let lead = |target| match target {
        Target::Function(_) => target,
        _ => Target::Function(shape.nothing),
    };
    let to = lead(target(true).ok_or(NotBound::NoSuchCallee)?);
    let patch = update_trampoline(&LiveText, &own, from, to)?;
    out.try_reserve(1).map_err(|_| NotBound::Memory)?;
    out.push(patch);
    let calls = tables.calls();
    for entry in places_of(&sites.calls, own.key).filter_map(|place| calls.get(place)) {
        let mut bytes = [0; 5];
        LiveText.read(entry.site, &mut bytes).map_err(|_| unmapped(entry.site))?;
        if !decode(&entry, bytes).is_some_and(|target| shape.knows(target)) {
            return Err(Anomaly::new(entry.site, 0, What::UnknownTail).into());
        }
        let to = target(entry.tail).ok_or(NotBound::NoSuchCallee)?;
        let new = encode(&entry, to)?;
        out.try_reserve(1).map_err(|_| NotBound::Memory)?;
        out.push(Patch::whole(entry.site, text_patching::Code::new(&bytes), new));
    }
    Ok(())
}

/// Adds to `out` the patches of a call's gates.
fn derive_gates(
    sites: &ByKey,
    trampoline: u64,
    open: bool,
    out: &mut Vec<Patch>,
) -> Result<(), NotBound> {
    let tables = cfi::tables().ok_or(NotBound::Text(unmapped(trampoline)))?;
    let branches = tables.branches();
    let gates = places_of(&sites.gates, gate_key(trampoline));
    for gate in gates.filter_map(|place| branches.get(place)) {
        out.try_reserve(1).map_err(|_| NotBound::Memory)?;
        out.push(jump_label::set(&LiveText, &gate, open)?);
    }
    Ok(())
}

static SEALED: AtomicBool = AtomicBool::new(false);

/// The right to attach and detach what is attachable, after sealing. There is one.
pub struct Attacher(());

/// From here on nothing but attachable callees can change; `None` if that was so already.
pub fn seal() -> Option<Attacher> {
    (!SEALED.swap(true, Ordering::SeqCst)).then_some(Attacher(()))
}

impl Attacher {
    /// Binds `bound` from now on. Callees keep their places.
    ///
    /// # Errors
    /// As [`Binding::commit`]; [`NotBound::Sealed`] if a callee that is not attachable, or a place,
    /// would change.
    pub fn attach<C: StaticCall>(&mut self, bound: &[Option<usize>]) -> Result<usize, NotBound> {
        self.attach_all(|binding| binding.bind::<C>(bound))
    }

    /// As [`Attacher::attach`], for what `add` binds, together.
    ///
    /// # Errors
    /// As there, or what `add` says.
    pub fn attach_all(
        &mut self,
        add: impl FnOnce(&mut Binding) -> Result<(), NotBound>,
    ) -> Result<usize, NotBound> {
        let mut binding = Binding::empty(false)?;
        add(&mut binding)?;
        binding.commit()
    }
}

/// Binds calls of the tests, which may change in any way at any time. They are attachable.
#[cfg(feature = "ktest")]
pub(crate) fn bind_for_tests<C: StaticCall>(bound: &[Option<usize>]) -> Result<usize, NotBound> {
    let mut binding = Binding::empty(true)?;
    binding.bind::<C>(bound)?;
    binding.commit()
}

/// Each trampoline of the image: its address, and whether its sites may still change.
fn trampolines() -> impl Iterator<Item = (u64, bool)> {
    unsafe extern "C" {
        static __static_call_tramps_start: [RawTrampoline; 0];
        static __static_call_tramps_end: [RawTrampoline; 0];
    }
    let start = (&raw const __static_call_tramps_start).cast::<RawTrampoline>();
    let bytes = (&raw const __static_call_tramps_end).addr() - start.addr();
    (0..bytes / size_of::<RawTrampoline>()).filter_map(move |i| {
        let entry = start.wrapping_add(i);
        // SAFETY: the linker script bounds the table, whose entries are four aligned words.
        let raw = unsafe { entry.read() };
        let at = (entry as u64).wrapping_add_signed(i64::from(raw.trampoline));
        (raw.flags & SHORT == 0).then(|| (at, is_open(raw.flags & DYNAMIC != 0)))
    })
}

/// Whether sites of a call may change now.
pub(crate) fn is_open(dynamic: bool) -> bool {
    dynamic || !SEALED.load(Ordering::SeqCst)
}

/// Whether a trampoline that may change now begins at `address`.
pub(crate) fn is_open_trampoline(address: u64) -> bool {
    trampolines().any(|(trampoline, open)| open && trampoline == address)
}
