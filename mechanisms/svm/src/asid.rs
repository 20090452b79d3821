//! Identifiers of guests' translations: each CPU hands its own out, and a guest that must forget
//! what it has simply takes a new one. When they are used up, all are dropped and begun again.

/// An identifier, good on one CPU until that CPU begins again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    round: u64,
    /// What the control block gets; 0 is the host's own and never handed out.
    pub asid: u32,
}

/// One CPU's.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// The first round is 1, so that no tag of nobody's is good.
    round: u64,
    next: u32,
    /// How many there are, with that of the host (CPUID 8000_000A EBX).
    count: u32,
}

impl Pool {
    /// `count` as CPUID tells; at least 2.
    #[must_use]
    pub const fn new(count: u32) -> Pool {
        Pool { round: 1, next: 1, count: if count < 2 { 2 } else { count } }
    }

    /// Whether a guest on this CPU may go on with `tag`.
    #[must_use]
    pub const fn is_good(&self, tag: Tag) -> bool {
        tag.round == self.round && tag.asid != 0
    }

    /// A tag that nothing is known of. True: only if every translation is dropped with the entry.
    pub fn take(&mut self) -> (Tag, bool) {
        let begins_again = self.next >= self.count;
        if begins_again {
            self.round += 1;
            self.next = 1;
        }
        let tag = Tag { round: self.round, asid: self.next };
        self.next += 1;
        (tag, begins_again)
    }
}
