//! Which policies are on, and in which order they are asked: the parameter `lsm=`.
//!
//! capability is always on and always first. The others are asked in the order in which the
//! parameter names them; without it in the order of [`POLICIES`]. What it does not name is off, as
//! are without it those that are not usual: tools, which nobody pays for who does not ask.
//! Names that no policy has, and names given twice, are reported and otherwise ignored.

/// A policy of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// In `lsm=` and /sys/kernel/security/lsm.
    pub name: &'static str,
    /// For the lsm_* system calls (LSM_ID_*).
    pub id: u64,
    /// On and first whatever the parameter says.
    pub first: bool,
    /// On without the parameter.
    pub usual: bool,
}

/// Number of policies.
pub const POLICIES_MAX: usize = if cfg!(feature = "bench") { 9 } else { 5 };

/// All policies, in the order that holds without `lsm=`.
pub const POLICIES: [Policy; POLICIES_MAX] = [
    Policy { name: "capability", id: 100, first: true, usual: true },
    Policy { name: "landlock", id: 110, first: false, usual: true },
    Policy { name: "yama", id: 107, first: false, usual: true },
    Policy { name: "profile", id: 1001, first: false, usual: true },
    Policy { name: TALLY, id: 1000, first: false, usual: false },
    #[cfg(feature = "bench")]
    Policy { name: "allow1", id: 2001, first: false, usual: false },
    #[cfg(feature = "bench")]
    Policy { name: "allow2", id: 2002, first: false, usual: false },
    #[cfg(feature = "bench")]
    Policy { name: "allow3", id: 2003, first: false, usual: false },
    #[cfg(feature = "bench")]
    Policy { name: "allow4", id: 2004, first: false, usual: false },
];

/// The policy that has every hook, refuses nothing, and counts the calls.
pub const TALLY: &str = "tally";

/// What is wrong with a word of the parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd<'a> {
    /// No policy has this name.
    Unknown(&'a str),
    /// It was named before.
    Duplicate(&'a str),
}

/// Policies that are on, in order: indices of [`POLICIES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    list: [u8; POLICIES_MAX],
    count: usize,
}

impl Order {
    /// From the parameter's value; `odd` is told what is wrong with it.
    pub fn parse<'a>(value: Option<&'a str>, mut odd: impl FnMut(Odd<'a>)) -> Self {
        let mut order = Self::default();
        for index in (0..POLICIES_MAX).filter(|&index| is_first(index)) {
            order.push(index);
        }
        let Some(value) = value else {
            let usual = |&index: &usize| POLICIES.get(index).is_some_and(|policy| policy.usual);
            for index in (0..POLICIES_MAX).filter(|&index| !is_first(index)).filter(usual) {
                order.push(index);
            }
            return order;
        };
        let mut named = [false; POLICIES_MAX];
        for word in value.split(',').filter(|word| !word.is_empty()) {
            let index = POLICIES.iter().position(|policy| policy.name == word);
            match index.and_then(|index| named.get_mut(index).map(|named| (index, named))) {
                None => odd(Odd::Unknown(word)),
                Some((_, true)) => odd(Odd::Duplicate(word)),
                Some((index, named)) => {
                    *named = true;
                    if !is_first(index) {
                        order.push(index);
                    }
                }
            }
        }
        order
    }

    fn push(&mut self, index: usize) {
        if let Some(slot) = self.list.get_mut(self.count) {
            *slot = index as u8;
            self.count += 1;
        }
    }

    /// The policies, first asked first.
    pub fn policies(&self) -> impl Iterator<Item = Policy> + '_ {
        self.indices().filter_map(|index| POLICIES.get(index).copied())
    }

    /// As [`Order::policies`], by index.
    pub fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.list.iter().take(self.count).map(|&index| usize::from(index))
    }

    /// Whether a policy is on.
    #[must_use]
    pub fn has(&self, index: usize) -> bool {
        self.indices().any(|on| on == index)
    }
}

fn is_first(index: usize) -> bool {
    POLICIES.get(index).is_some_and(|policy| policy.first)
}

/// The places of one hook: for each policy that is on, in order, which of the hook's callees it is,
/// and nobody where it is not `attached`. `implementers` are the policies of the callees. Places
/// of policies without a callee do not exist, so a callee keeps its place whoever else is attached.
pub fn places<const N: usize>(
    order: &Order,
    implementers: &[usize],
    attached: impl Fn(usize) -> bool,
) -> ([Option<usize>; N], usize) {
    let mut places = [None; N];
    let mut used = 0;
    for policy in order.indices() {
        let Some(callee) = implementers.iter().position(|&of| of == policy) else { continue };
        if let Some(place) = places.get_mut(used) {
            *place = attached(policy).then_some(callee);
            used += 1;
        }
    }
    (places, used)
}
