//! The test policies' other half (`limen test run --filter run::refusals`): what they are asked,
//! and what they are told to refuse. Never in an image that is used.
//!
//! One hook is probed at a time. Who was asked is remembered in order; who is told to refuse does
//! so [`REFUSALS_MAX`] times. Neighbour: `hooks.rs`, whose test policies call [`asked`];
//! /sys/kernel/security/probe is how a test says what it wants.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use lsm::table::HOOKS;

/// The hook that is probed, counted from 1; 0: none.
static PROBED: AtomicU64 = AtomicU64::new(0);
/// Who is to refuse, and on top of 8 bits the error; 0: nobody.
static ARMED: AtomicU64 = AtomicU64::new(0);
/// The policies that were asked, four bits each, the last one lowest.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// [`ASKED`] when one refused first; 0: none has.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// How often one may refuse yet: whoever watches `file_permission` must be able to end it.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// Most refusals of one hook, of one call or of several.
const REFUSALS_MAX: u64 = 4;

/// An answer, from the word that a refusal is.
pub trait Refusal {
    /// The answer.
    fn of(word: i32) -> Self;
}

impl Refusal for i32 {
    fn of(word: i32) -> Self {
        word
    }
}

impl Refusal for () {
    fn of(_: i32) {}
}

/// A hook asks test policy number `policy`: its answer, if that is not the neutral one.
pub fn asked<A: Refusal>(hook: usize, policy: u64) -> Option<A> {
    if PROBED.load(Ordering::Relaxed) != hook as u64 + 1 {
        return None;
    }
    let push = |list| Some(list << 4 | policy);
    let before = ASKED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, push).unwrap_or(0);
    let armed = ARMED.load(Ordering::SeqCst);
    if armed & 0xff != policy {
        return None;
    }
    LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).ok()?;
    let first = before << 4 | policy;
    let _ = REFUSED.compare_exchange(0, first, Ordering::SeqCst, Ordering::SeqCst);
    Some(A::of(-((armed >> 8) as i32)))
}

/// `HOOK POLICY ERRNO`: watches the hook, and has the policy refuse (0: nobody). `- 0 0` ends
/// it and keeps what was seen.
///
/// # Errors
/// EINVAL for anything else.
pub fn tell(text: &str) -> Result<()> {
    let mut words = text.split_ascii_whitespace();
    let name = words.next().ok_or(Errno::EINVAL)?;
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let (policy, errno) = number().zip(number()).ok_or(Errno::EINVAL)?;
    PROBED.store(0, Ordering::SeqCst);
    ARMED.store(0, Ordering::SeqCst);
    if name == "-" {
        return Ok(());
    }
    let hook = HOOKS.iter().position(|hook| hook.name == name).ok_or(Errno::EINVAL)?;
    ASKED.store(0, Ordering::SeqCst);
    REFUSED.store(0, Ordering::SeqCst);
    LEFT.store(REFUSALS_MAX, Ordering::SeqCst);
    ARMED.store(if policy == 0 { 0 } else { errno << 8 | policy }, Ordering::SeqCst);
    PROBED.store(hook as u64 + 1, Ordering::SeqCst);
    Ok(())
}

/// How often one has refused, and who was asked until it first did, or at all.
pub fn seen() -> (u64, u64) {
    let refusals = REFUSALS_MAX - LEFT.load(Ordering::SeqCst).min(REFUSALS_MAX);
    match REFUSED.load(Ordering::SeqCst) {
        0 => (0, ASKED.load(Ordering::SeqCst)),
        asked => (refusals, asked),
    }
}
