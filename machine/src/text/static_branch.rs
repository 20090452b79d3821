//! Switching static keys: the places of a key are patched while all CPUs run (`text_poke`).
//!
//! objtool has proved the places and sorted them into the site tables. Entry text must have none,
//! unless the key keeps its value after boot: code there may run on a CPU that has not yet
//! synchronised. Neighbour: `cpu::static_key` has the keys and the places.

use text_patching::jump_label;

use crate::text::{cfi, text_poke};

pub(crate) use crate::cpu::static_key::at_boot;
use crate::cpu::static_key::own_id;
pub use crate::cpu::static_key::{StaticKey, id, static_branch_likely, static_branch_unlikely};

/// The key was not switched: the image has no site tables, or a place is not as they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSwitched;

/// Switches the key on all CPUs; when it returns no CPU executes the old side any more. Must not be
/// called from an interrupt handler.
///
/// # Errors
/// [`NotSwitched`]; nothing has changed then.
pub fn set<K: StaticKey>(enabled: bool) -> Result<(), NotSwitched> {
    let tables = cfi::tables().ok_or(NotSwitched)?;
    let mut sites = tables.branches().iter().filter(|branch| branch.key == const { own_id::<K>() });
    let next = |text: &text_poke::LiveText, _| {
        sites.next().map(|branch| jump_label::set(text, &branch, enabled))
    };
    text_poke::switch(next).map(|_| ()).map_err(|anomaly| {
        crate::log!("static key {}: {anomaly}", K::ID);
        NotSwitched
    })
}
