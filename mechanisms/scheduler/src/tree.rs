//! A balanced tree (AVL) over nodes in one vector, ordered by deadline, in which each node knows
//! the least virtual time below it. So "the earliest deadline among those whose virtual time is not
//! above a limit" takes O(log n) steps, and no step allocates: nodes are reserved beforehand.
//!
//! Not an intrusive tree, which needs pointers that outlive borrows; not `BTreeMap`, which cannot
//! carry the least virtual time and allocates where it must not (with a spin lock held).

use alloc::vec::Vec;

/// No node.
pub(crate) const NIL: u32 = u32::MAX;

/// What the tree orders by: the deadline, and a number that no two nodes share.
pub(crate) type Key = (u64, u64);

/// A place in the vector, in a tree or free.
#[derive(Clone, Debug)]
pub(crate) struct Node<D> {
    key: Key,
    vruntime: u64,
    /// The least `vruntime` of the subtree.
    least: u64,
    left: u32,
    right: u32,
    height: u8,
    /// None: free, and `left` is the next free one.
    data: Option<D>,
}

/// The nodes of all trees of one queue. A tree is the index of its root.
#[derive(Clone, Debug)]
pub(crate) struct Nodes<D> {
    all: Vec<Node<D>>,
    free: u32,
}

impl<D> Nodes<D> {
    pub(crate) const fn new() -> Self {
        Nodes { all: Vec::new(), free: NIL }
    }

    /// How many there can be without an allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.all.capacity()
    }

    /// Moves into a larger vector, which is empty, and gives back the one that was used so far.
    pub(crate) fn move_to(&mut self, mut larger: Vec<Node<D>>) -> Vec<Node<D>> {
        larger.append(&mut self.all);
        core::mem::replace(&mut self.all, larger)
    }

    /// The node at `index`, if it is still the one with this key.
    pub(crate) fn data_mut(&mut self, index: u32, key: Key) -> Option<&mut D> {
        let node = self.all.get_mut(index as usize)?;
        if node.key == key { node.data.as_mut() } else { None }
    }

    pub(crate) fn data(&self, index: u32) -> Option<&D> {
        self.all.get(index as usize)?.data.as_ref()
    }

    pub(crate) fn key(&self, index: u32) -> Key {
        self.at(index).key
    }

    fn at(&self, index: u32) -> &Node<D> {
        &self.all[index as usize]
    }

    fn height(&self, index: u32) -> u8 {
        if index == NIL { 0 } else { self.at(index).height }
    }

    fn least(&self, index: u32) -> u64 {
        if index == NIL { u64::MAX } else { self.at(index).least }
    }

    /// Enters a new node into the tree at `root`, and returns its index.
    pub(crate) fn insert(&mut self, root: &mut u32, key: Key, vruntime: u64, data: D) -> u32 {
        let node = Node {
            key,
            vruntime,
            least: vruntime,
            left: NIL,
            right: NIL,
            height: 1,
            data: Some(data),
        };
        let index = self.free;
        let index = if index == NIL {
            self.all.push(node);
            (self.all.len() - 1) as u32
        } else {
            self.free = self.at(index).left;
            self.all[index as usize] = node;
            index
        };
        *root = if *root == NIL { index } else { self.link(*root, index, key) };
        index
    }

    /// Hangs a new node into a tree; the tree's root. Of the nodes on the way only those below the
    /// last one that leans (whose subtrees differ in height) grow, and that one alone may have to
    /// be turned (Knuth, The Art of Computer Programming 3, 6.2.3, algorithm A): nothing is done on
    /// a way back up.
    #[inline(never)]
    fn link(&mut self, root: u32, new: u32, key: Key) -> u32 {
        let vruntime = self.at(new).vruntime;
        let (mut at, mut parent) = (root, NIL);
        // The last one that leans, if it leans to this side; what is above it; what grows first.
        let (mut turned, mut above, mut grows) = (NIL, NIL, root);
        loop {
            let node = &mut self.all[at as usize];
            node.least = node.least.min(vruntime);
            let (left, right) = (node.left, node.right);
            let is_before = key < node.key;
            let next = if is_before { left } else { right };
            let (left, right) = (self.height(left), self.height(right));
            if left != right {
                turned = if is_before == (left > right) { at } else { NIL };
                (above, grows) = (parent, if next == NIL { new } else { next });
            }
            if next == NIL {
                let node = &mut self.all[at as usize];
                *(if is_before { &mut node.left } else { &mut node.right }) = new;
                break;
            }
            (parent, at) = (at, next);
        }
        while grows != new {
            self.all[grows as usize].height += 1;
            grows = *self.towards(grows, key);
        }
        if turned == NIL {
            return root;
        }
        let top = self.balance(turned);
        if above == NIL {
            return top;
        }
        *self.towards(above, key) = top;
        root
    }

    /// The child of a node on whose side a key lies.
    fn towards(&mut self, index: u32, key: Key) -> &mut u32 {
        let node = &mut self.all[index as usize];
        if key < node.key { &mut node.left } else { &mut node.right }
    }

    /// Takes the node at `index` out of the tree at `root`, which it must be in.
    pub(crate) fn remove(&mut self, root: &mut u32, index: u32) -> D {
        let alone = *root == index && self.at(index).height == 1;
        *root = if alone { NIL } else { self.unlink(*root, self.at(index).key) };
        let free = self.free;
        let node = &mut self.all[index as usize];
        node.left = free;
        self.free = index;
        node.data.take().expect("a node in a tree has data")
    }

    fn unlink(&mut self, root: u32, key: Key) -> u32 {
        assert!(root != NIL, "the node is not in this tree");
        let (at, left, right) = {
            let node = self.at(root);
            (node.key, node.left, node.right)
        };
        if key < at {
            let left = self.unlink(left, key);
            self.all[root as usize].left = left;
        } else if key > at {
            let right = self.unlink(right, key);
            self.all[root as usize].right = right;
        } else if left == NIL {
            return right;
        } else if right == NIL {
            return left;
        } else {
            // Its successor takes its place.
            let (rest, first) = self.unlink_first(right);
            let successor = &mut self.all[first as usize];
            (successor.left, successor.right) = (left, rest);
            return self.balance(first);
        }
        self.balance(root)
    }

    /// The tree without its first node, and that node.
    fn unlink_first(&mut self, root: u32) -> (u32, u32) {
        let (left, right) = (self.at(root).left, self.at(root).right);
        if left == NIL {
            return (right, root);
        }
        let (rest, first) = self.unlink_first(left);
        self.all[root as usize].left = rest;
        (self.balance(root), first)
    }

    /// Restores height, least and balance of a node whose subtrees are right.
    fn balance(&mut self, root: u32) -> u32 {
        let (left, right) = (self.at(root).left, self.at(root).right);
        let (left_height, right_height) = (self.height(left), self.height(right));
        if left_height > right_height + 1 {
            if self.height(self.at(left).left) < self.height(self.at(left).right) {
                self.all[root as usize].left = self.rotate_left(left);
            }
            return self.rotate_right(root);
        }
        if right_height > left_height + 1 {
            if self.height(self.at(right).right) < self.height(self.at(right).left) {
                self.all[root as usize].right = self.rotate_right(right);
            }
            return self.rotate_left(root);
        }
        self.update(root);
        root
    }

    fn rotate_right(&mut self, root: u32) -> u32 {
        let up = self.at(root).left;
        self.all[root as usize].left = self.at(up).right;
        self.all[up as usize].right = root;
        self.update(root);
        self.update(up);
        up
    }

    fn rotate_left(&mut self, root: u32) -> u32 {
        let up = self.at(root).right;
        self.all[root as usize].right = self.at(up).left;
        self.all[up as usize].left = root;
        self.update(root);
        self.update(up);
        up
    }

    fn update(&mut self, index: u32) {
        let (left, right) = (self.at(index).left, self.at(index).right);
        let height = 1 + self.height(left).max(self.height(right));
        let least = self.least(left).min(self.least(right));
        let node = &mut self.all[index as usize];
        node.height = height;
        node.least = least.min(node.vruntime);
    }

    /// The first node with a virtual time of at most `limit` that `wanted` accepts. `patience` is
    /// how many may be asked.
    pub(crate) fn first(
        &self,
        root: u32,
        limit: u64,
        patience: &mut u32,
        wanted: &impl Fn(&D) -> bool,
    ) -> Option<u32> {
        if root == NIL || self.at(root).least > limit || *patience == 0 {
            return None;
        }
        let node = self.at(root);
        if node.left != NIL
            && let Some(found) = self.first(node.left, limit, patience, wanted)
        {
            return Some(found);
        }
        if node.vruntime <= limit && *patience > 0 {
            *patience -= 1;
            if node.data.as_ref().is_some_and(wanted) {
                return Some(root);
            }
        }
        self.first(node.right, limit, patience, wanted)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Heights, order and the least virtual times of a subtree; gives (height, least, size).
    fn check(nodes: &Nodes<u64>, root: u32, low: Key, high: Key) -> (u8, u64, usize) {
        if root == NIL {
            return (0, u64::MAX, 0);
        }
        let node = nodes.at(root);
        assert!(low < node.key && node.key < high);
        let left = check(nodes, node.left, low, node.key);
        let right = check(nodes, node.right, node.key, high);
        assert!(left.0.abs_diff(right.0) <= 1);
        let height = 1 + left.0.max(right.0);
        let least = left.1.min(right.1).min(node.vruntime);
        assert_eq!((node.height, node.least), (height, least));
        (height, least, left.2 + right.2 + 1)
    }

    proptest! {
        #[test]
        fn is_a_sorted_map_with_a_limit(
            steps in prop::collection::vec((any::<bool>(), 0u64..30, 0u64..30, 0u64..32), 1..200)
        ) {
            let mut nodes = Nodes::new();
            let mut root = NIL;
            let mut model: BTreeMap<Key, (u64, u32)> = BTreeMap::new();
            for (sequence, (inserts, deadline, vruntime, limit)) in steps.into_iter().enumerate() {
                let key = (deadline, sequence as u64 + 1);
                if inserts || model.is_empty() {
                    let index = nodes.insert(&mut root, key, vruntime, key.1);
                    model.insert(key, (vruntime, index));
                } else {
                    let nth = vruntime as usize % model.len();
                    let (key, (_, index)) = model.iter().nth(nth).map(|(k, v)| (*k, *v)).unwrap();
                    model.remove(&key);
                    assert_eq!(nodes.remove(&mut root, index), key.1);
                }
                let (_, _, size) = check(&nodes, root, (0, 0), (u64::MAX, u64::MAX));
                assert_eq!(size, model.len());
                let odd = |data: &u64| data % 2 == 1;
                let found = nodes.first(root, limit, &mut u32::MAX.clone(), &odd);
                let expected =
                    model.iter().find(|(key, value)| value.0 <= limit && key.1 % 2 == 1);
                assert_eq!(found, expected.map(|(_, value)| value.1));
            }
        }
    }
}
