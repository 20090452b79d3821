//! Patching text that other CPUs execute: three rounds with an int3 in front.
//!
//! A CPU may have fetched any mixture of old and new bytes until it executes a serialising
//! instruction. So no instruction is ever replaced in one go:
//!
//! | Round | Store at every site | Then | A CPU at the site executes |
//! |---|---|---|---|
//! | 1 | byte 0 := `cc` | all CPUs serialise | the old instruction, or int3 |
//! | 2 | bytes 1.. := new ones | all CPUs serialise | int3 |
//! | 3 | byte 0 := new one | all CPUs serialise | int3, or the new instruction |
//!
//! A CPU that runs into the int3 does what the *new* instruction will do ([`Batch::on_int3`]) and
//! goes on. Between round 1 and the end of round 3 old and new behaviour therefore coexist, as they
//! would for a store to a pointer; once [`Batch::advance`] has answered [`Step::Done`] the old
//! target is never called again.
//!
//! A late case: a CPU took the int3, and before its handler ran the batch was finished. Then the
//! byte at the site is no int3 any more, and the handler simply executes the site again:
//! [`Action::Retry`].
//!
//! Nothing here sends interrupts: the caller serialises the CPUs between two steps.

use crate::jump_label::{JMP32, NOP5, SITE_LEN};
use crate::poke::{Anomaly, Code, Patch, Text, TextPoke, What, read_site};
use crate::static_call::{CALL32, MOV_EAX, RETURN0, TAIL_NOTHING, TAIL_RETURN0};
use crate::tail::rel32_target;

/// int3, one byte.
pub const INT3: u8 = 0xcc;
/// Most sites of a batch: bounds the time between the first int3 and the last.
pub const BATCH_MAX: usize = 256;

/// What to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make every CPU execute a serialising instruction, then call [`Batch::advance`] again.
    SyncCores,
    /// All sites have their new bytes and all CPUs know.
    Done,
}

/// What the int3 handler does to the interrupted registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// RIP := the address.
    Jump(u64),
    /// Push the return address, RIP := the target.
    Call {
        /// Callee.
        target: u64,
        /// Pushed.
        return_to: u64,
    },
    /// Pop RIP.
    Return,
    /// EAX := the value (which clears the rest of RAX), then RIP := the address.
    SetThenJump {
        /// Of EAX.
        value: u32,
        /// Behind the site.
        to: u64,
    },
    /// EAX := 0, then pop RIP.
    ZeroThenReturn,
    /// RIP := the site: it is patched already.
    Retry(u64),
}

/// The next thing that [`Batch::advance`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    Trap,
    Body,
    Head,
    Done,
}

/// Sites that are patched together.
#[derive(Debug)]
pub struct Batch<'a> {
    patches: &'a [Patch],
    round: Round,
}

impl<'a> Batch<'a> {
    /// Accepts patches: sorted, apart, five bytes each, and every new instruction one that the
    /// handler can do. All of this is checked before the first store.
    ///
    /// # Errors
    /// The first patch that cannot be part of a batch.
    pub fn new(text: &impl Text, patches: &'a [Patch]) -> Result<Self, Anomaly> {
        if let Some(patch) = patches.get(BATCH_MAX) {
            return Err(Anomaly::new(patch.at, 0, What::NoRoom));
        }
        let mut end = 0;
        for patch in patches {
            if patch.at < end || patch.old.len() != SITE_LEN || patch.new.len() != SITE_LEN {
                return Err(Anomaly::new(patch.at, 0, What::Overlap));
            }
            end = patch.at.saturating_add(SITE_LEN as u64);
            let now: [u8; SITE_LEN] = read_site(text, patch.at)?;
            if Code::new(&now) != patch.old || action(patch).is_none() {
                return Err(Anomaly::new(patch.at, 0, What::UnknownTail));
            }
        }
        Ok(Self { patches, round: Round::Trap })
    }

    /// Does one round of stores.
    pub fn advance(&mut self, text: &mut impl TextPoke) -> Step {
        for patch in self.patches {
            match (self.round, patch.new.as_slice()) {
                (Round::Trap, _) => text.poke(patch.at, &[INT3]),
                (Round::Body, [_, body @ ..]) => text.poke(patch.at.wrapping_add(1), body),
                (Round::Head, [head, ..]) => text.poke(patch.at, &[*head]),
                (Round::Done, _) | (_, []) => {}
            }
        }
        let done = self.round == Round::Done;
        self.round = match self.round {
            Round::Trap => Round::Body,
            Round::Body => Round::Head,
            Round::Head | Round::Done => Round::Done,
        };
        if done { Step::Done } else { Step::SyncCores }
    }

    /// What a CPU does whose int3 handler was entered with `rip` (the address behind the int3).
    /// `None`: the int3 is none of this batch's.
    #[must_use]
    pub fn on_int3(&self, rip: u64) -> Option<Action> {
        // After round 3 the site can be executed; before, only the handler may do its work.
        let action = on_int3(self.patches, rip)?;
        if self.round == Round::Done {
            Some(Action::Retry(rip.wrapping_sub(1)))
        } else {
            Some(action)
        }
    }
}

/// As [`Batch::on_int3`], for handlers on other CPUs, which see the patches and not the round.
/// Valid in every round: what the new instruction does is right even where it could be executed
/// already.
#[must_use]
pub fn on_int3(patches: &[Patch], rip: u64) -> Option<Action> {
    let site = rip.checked_sub(1)?;
    let index = patches.binary_search_by_key(&site, |patch| patch.at).ok()?;
    action(patches.get(index)?)
}

/// What a CPU does when no batch is active any more: `byte` is what stands at `rip - 1` now.
#[must_use]
pub fn on_late_int3(rip: u64, byte: u8) -> Option<Action> {
    (byte != INT3).then_some(Action::Retry(rip.wrapping_sub(1)))
}

/// The effect of a patch's new instruction.
fn action(patch: &Patch) -> Option<Action> {
    let next = patch.at.wrapping_add(SITE_LEN as u64);
    let new: &[u8; SITE_LEN] = patch.new.as_slice().try_into().ok()?;
    match *new {
        [CALL32, rel @ ..] => {
            Some(Action::Call { target: rel32_target(next, rel), return_to: next })
        }
        [JMP32, rel @ ..] => Some(Action::Jump(rel32_target(next, rel))),
        NOP5 => Some(Action::Jump(next)),
        TAIL_NOTHING => Some(Action::Return),
        RETURN0 => Some(Action::SetThenJump { value: 0, to: next }),
        [MOV_EAX, value @ ..] => {
            Some(Action::SetThenJump { value: u32::from_le_bytes(value), to: next })
        }
        TAIL_RETURN0 => Some(Action::ZeroThenReturn),
        _ => None,
    }
}
