//! The policy `profile`: what the programs of this machine may do, as the command line was told
//! (`limen run --profile`). `lsm::profile` decides; what it is asked about files is in
//! `vfs/profile`, about sockets in `net/hooks`.
//!
//! There is one profile for all programs, put in place before the first of them. A profile that
//! cannot be read, or that `lsm=` switches off, ends the boot: a program that was to be restricted
//! never runs unrestricted. The first denial of each kind is told to the user, in a line that says
//! how to allow it.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use abi::{Errno, Result};
use lsm::profile::{Access, Decision, Profile};
use machine::sync::{Once, SpinLock};

use super::hooks;

static PROFILE: Once<Profile> = Once::new();
/// How the user is told of denials. This floor knows neither.
pub struct User {
    /// Tells a line.
    pub tell: fn(&[u8]),
    /// The id and the name of the program that runs.
    pub program: fn() -> (u32, Vec<u8>),
}

static USER: Once<User> = Once::new();
/// What was denied and told, or used while learning.
static SEEN: SpinLock<BTreeSet<(Access, Vec<u8>)>> = SpinLock::new(BTreeSet::new());
/// Most that is remembered; what comes after it is denied in silence, or not learned.
const SEEN_MAX: usize = 16_384;

/// Reads a compiled profile; an empty text is none.
///
/// # Errors
/// EINVAL for a text that is no profile; EPERM if `lsm=` has switched the policy off.
pub fn set(text: &[u8], user: User) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let profile = Profile::decode(text).map_err(|unreadable| {
        machine::log!("profile: line {} cannot be read", unreadable.line);
        Errno::EINVAL
    })?;
    if !hooks::order().has(policy()) {
        machine::log!("profile: the parameter lsm= does not name the policy \"profile\"");
        return Err(Errno::EPERM);
    }
    PROFILE.call_once(|| profile);
    USER.call_once(|| user);
    Ok(())
}

fn policy() -> usize {
    const { lsm::table::policy("profile") }
}

/// From here on the profile is asked, if there is one.
///
/// # Errors
/// ENOMEM.
pub fn enforce() -> Result<()> {
    if PROFILE.get().is_some() { hooks::attach(policy()) } else { Ok(()) }
}

/// EACCES unless the profile allows this; the user is told if not.
pub fn check(access: Access, object: &[u8]) -> Result<()> {
    let Some(profile) = PROFILE.get() else { return Ok(()) };
    if profile.learns {
        remember(access, object);
        return Ok(());
    }
    let decision = profile.decide(access, object);
    if decision == Decision::Allowed {
        return Ok(());
    }
    if remember(access, object) {
        tell(profile, decision, access, object);
    }
    Err(Errno::EACCES)
}

/// EPERM for who would change what paths mean; while learning it may be done.
pub fn check_mounts() -> Result<()> {
    match PROFILE.get() {
        Some(profile) if !profile.learns => Err(Errno::EPERM),
        _ => Ok(()),
    }
}

/// Whether it is new, and there is room for it.
fn remember(access: Access, object: &[u8]) -> bool {
    let entry = (access, object.to_vec());
    let mut seen = SEEN.lock();
    seen.len() < SEEN_MAX && seen.insert(entry)
}

#[cold]
fn tell(profile: &Profile, decision: Decision, access: Access, object: &[u8]) {
    let Some(user) = USER.get() else { return };
    let (pid, program) = (user.program)();
    let (object, program) = (object.escape_ascii(), program.escape_ascii());
    let (word, name) = (access.word(), &profile.name);
    let (list, kind) = match access {
        Access::Read => ("read", "paths"),
        Access::Write => ("write", "paths"),
        Access::Execute => ("execute", "paths"),
        Access::Connect => ("connect", "network"),
        Access::Bind => ("bind", "network"),
    };
    let why = match decision {
        Decision::DeniedBy(line) => alloc::format!("{name}:{line} denies it"),
        _ => alloc::format!("to allow it, add \"{object}\" to {list} in [{kind}] of {name}"),
    };
    let line = alloc::format!("denied: {program} ({pid}): {word} {object}: {why}");
    (user.tell)(line.as_bytes());
}

/// What was used, if this profile learns.
pub fn used() -> Vec<(String, Vec<u8>)> {
    if !PROFILE.get().is_some_and(|profile| profile.learns) {
        return Vec::new();
    }
    let seen = core::mem::take(&mut *SEEN.lock());
    seen.into_iter().map(|(access, object)| (access.word().into(), object)).collect()
}
