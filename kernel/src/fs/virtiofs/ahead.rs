//! Names of directories before a program asks for them: who walks through a tree (find(1), du(1),
//! git-status(1)) reads one directory after the other, and would wait for the server at each, and
//! again for its word that there are no more names.
//!
//! A walk shows when the names are read of the directory that follows the one read last in theirs,
//! or of one that was foreseen. Then the next ones are asked for, in the order in which such
//! programs go: what is in it, what follows it, what follows the directory that it is in. Nobody
//! waits for the answers; a server that fails is noticed by who asks it for something.
//!
//! Invariant: names that were asked for ahead are used only if the directory's times of change are
//! what they were before, and only as long as the server's attributes hold.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use formats::fuse;

use super::client::{Asked, Node};
use super::inode::ChangedAt;
use crate::base::sync::Mutex;
use crate::base::time::now_ns;

/// Most directories asked about ahead.
const DIRECTORIES_MAX: usize = 12;
/// Answers with names that are kept of one.
const ANSWERS_MAX: usize = 2;

/// A directory that is asked about ahead.
pub(super) struct Ahead {
    node: Arc<Node>,
    /// When it had changed last, at a time before its names were asked for.
    changed: ChangedAt,
    begun_ns: u64,
    /// Answers that nobody has gone through; one without names comes last.
    answers: VecDeque<Vec<u8>>,
    asked: Option<Asked>,
}

impl Ahead {
    fn begin(node: Arc<Node>, changed: ChangedAt) -> Option<Ahead> {
        let begun_ns = now_ns();
        let asked = Some(node.begin_names(0).ok()?);
        Some(Ahead { node, changed, begun_ns, answers: VecDeque::new(), asked })
    }

    /// When the names were asked for, by `now_ns`, if they may be used for a directory that changed
    /// at this time and whose attributes hold so long.
    pub(super) fn valid_since_ns(&self, changed: ChangedAt, valid_ns: u64) -> Option<u64> {
        let is_valid = now_ns() < self.begun_ns.saturating_add(valid_ns);
        (is_valid && self.changed == changed).then_some(self.begun_ns)
    }

    /// Takes the answer, if it has come, and asks on where it ends.
    fn advance(&mut self) {
        if !self.asked.as_ref().is_some_and(Asked::is_answered) {
            return;
        }
        let Some(answer) = self.finish() else { return };
        let last = fuse::names_with_objects(&answer).last();
        // Nothing comes after what is no name, or none.
        let next = last.and_then(core::result::Result::ok).map(|(_, name)| name.next);
        self.answers.push_back(answer);
        if let Some(next) = next
            && self.answers.len() < ANSWERS_MAX
        {
            self.asked = self.node.begin_names(next).ok();
        }
    }

    fn finish(&mut self) -> Option<Vec<u8>> {
        self.node.finish_names(&self.asked.take()?).ok()
    }

    /// The next answer; waits for it if it is on its way. None: the server is to be asked.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        self.answers.pop_front().or_else(|| self.finish())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // The objects of an answer that has not come are the server's to forget.
        if self.asked.as_ref().is_some_and(Asked::is_answered) {
            let answer = self.finish();
            self.answers.extend(answer);
        }
        for answer in &self.answers {
            self.node.give_back_names(answer);
        }
    }
}

/// The directories that are asked about ahead, of one server.
#[derive(Default)]
pub(super) struct AllAhead(Mutex<VecDeque<Ahead>>);

impl AllAhead {
    /// What was asked for about a directory, which the server calls `id`.
    pub(super) fn take(&self, id: u64) -> Option<Ahead> {
        let mut all = self.0.lock();
        all.iter_mut().for_each(Ahead::advance);
        let at = all.iter().position(|ahead| ahead.node.id() == id)?;
        all.remove(at)
    }

    /// Asks about these directories, with their times of change, as many as there is room for.
    /// Those that were foreseen and that nobody came for make room, the oldest first.
    pub(super) fn begin(&self, wanted: &[(Arc<Node>, ChangedAt)]) {
        let mut all = self.0.lock();
        let is_wanted = |id: u64| wanted.iter().any(|(node, _)| node.id() == id);
        for (node, changed) in wanted {
            if all.iter().any(|ahead| ahead.node.id() == node.id()) {
                continue;
            }
            if all.len() >= DIRECTORIES_MAX {
                let is_free = |ahead: &Ahead| ahead.asked.is_none() && !is_wanted(ahead.node.id());
                let Some(at) = all.iter().position(is_free) else { return };
                all.remove(at);
            }
            let Some(ahead) = Ahead::begin(node.clone(), *changed) else { return };
            all.push_back(ahead);
        }
    }
}
