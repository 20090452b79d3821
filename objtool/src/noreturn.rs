//! Which functions return: behind a call of one that never does the compiler puts whatever comes
//! next, and who walks what is behind calls must not take that for it.
//!
//! A function returns if some path from its entry reaches a return, a branch that is not direct, or
//! a jump to a function that does; a path goes on behind a call if what is called returns. So the
//! answer is the least set for which that is true: each path that waits for another function goes
//! on when that is found to return. Functions that only call each other do not.
//!
//! Neighbours: `scratch`, which asks.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{FlowControl, Instruction, OpKind};

use crate::elf::Image;
use crate::entry_text::choices;
use crate::scan::{Scan, decode};

/// Where every direct call leads, and of these places those that return.
#[must_use]
pub fn returning(image: &Image<'_>, scan: &Scan) -> BTreeSet<u64> {
    let entries: BTreeSet<u64> = scan.calls.iter().filter_map(|call| call.target).collect();
    let functions = image.symbols.iter().filter(|symbol| symbol.function);
    let mut walk = Walk {
        image,
        choices: choices(image),
        entries: functions.map(|symbol| symbol.address).chain(entries.iter().copied()).collect(),
        returning: BTreeSet::new(),
        waiting: BTreeMap::new(),
        seen: BTreeSet::new(),
        pending: entries.iter().map(|&entry| Path { of: entry, at: entry }).collect(),
    };
    while let Some(path) = walk.pending.pop() {
        walk.step(path);
    }
    walk.returning
}

/// A path of a function, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Path {
    of: u64,
    at: u64,
}

struct Walk<'a> {
    image: &'a Image<'a>,
    choices: BTreeMap<u64, u64>,
    entries: BTreeSet<u64>,
    returning: BTreeSet<u64>,
    /// Who goes on when a function is found to return; without a place, returns then itself.
    waiting: BTreeMap<u64, Vec<(u64, Option<u64>)>>,
    seen: BTreeSet<Path>,
    pending: Vec<Path>,
}

impl Walk<'_> {
    fn step(&mut self, path: Path) {
        let Path { of, at } = path;
        if self.returning.contains(&of) || !self.seen.insert(path) {
            return;
        }
        let Some(instruction) = decode(self.image, at) else { return };
        if let Some(&target) = self.choices.get(&at) {
            self.jump(of, target);
        }
        let target = direct(&instruction);
        let behind = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::IndirectCall => {
                self.pending.push(Path { of, at: behind });
            }
            FlowControl::Call => match target {
                Some(target) => self.wait(target, of, Some(behind)),
                None => self.pending.push(Path { of, at: behind }),
            },
            FlowControl::UnconditionalBranch => match target {
                Some(target) => self.jump(of, target),
                None => self.returns(of),
            },
            FlowControl::ConditionalBranch => {
                self.pending.push(Path { of, at: behind });
                target.into_iter().for_each(|target| self.jump(of, target));
            }
            FlowControl::Return | FlowControl::IndirectBranch => self.returns(of),
            _ => {}
        }
    }

    /// Within the function, or to another one in its place.
    fn jump(&mut self, of: u64, target: u64) {
        if self.entries.contains(&target) && target != of {
            self.pending.push(Path { of: target, at: target });
            self.wait(target, of, None);
        } else {
            self.pending.push(Path { of, at: target });
        }
    }

    fn wait(&mut self, callee: u64, of: u64, behind: Option<u64>) {
        if self.returning.contains(&callee) {
            self.go_on(of, behind);
        } else {
            self.waiting.entry(callee).or_default().push((of, behind));
        }
    }

    fn go_on(&mut self, of: u64, behind: Option<u64>) {
        match behind {
            Some(at) => self.pending.push(Path { of, at }),
            None => self.returns(of),
        }
    }

    /// Not by recursion: chains of jumps are as long as a hostile image wants.
    fn returns(&mut self, of: u64) {
        let mut found = vec![of];
        while let Some(of) = found.pop() {
            if !self.returning.insert(of) {
                continue;
            }
            for (of, behind) in self.waiting.remove(&of).into_iter().flatten() {
                match behind {
                    Some(at) => self.pending.push(Path { of, at }),
                    None => found.push(of),
                }
            }
        }
    }
}

fn direct(instruction: &Instruction) -> Option<u64> {
    let is_near = instruction.op0_kind() == OpKind::NearBranch64;
    is_near.then(|| instruction.near_branch_target())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{Piece, Symbol};
    use crate::scan::{self, Thunks};

    const BASE: u64 = 0xffff_ffff_8020_0000;

    fn at(n: u64) -> u64 {
        BASE + 16 * n
    }

    /// Functions of 16 bytes; which of those that somebody calls return.
    fn found(functions: &[Vec<u8>]) -> Vec<u64> {
        let mut text = vec![0xcc; 16 * functions.len()];
        for (room, code) in text.chunks_mut(16).zip(functions) {
            room[..code.len()].copy_from_slice(code);
        }
        let symbol = |n| Symbol { name: "f", address: at(n), size: 16, function: true };
        let image = Image {
            pieces: vec![Piece::read_only(".text", BASE, &text, true)],
            symbols: (0..functions.len() as u64).map(symbol).collect(),
            ..Image::default()
        };
        let scan = scan::scan(&image, &Thunks::new());
        returning(&image, &scan).into_iter().map(|found| (found - BASE) / 16).collect()
    }

    /// A branch to function `to`, `offset` bytes into function `from`.
    fn branch(opcode: u8, (from, offset): (u64, u64), to: u64) -> Vec<u8> {
        let rel = at(to).wrapping_sub(at(from) + offset + 5).cast_signed();
        [&[opcode][..], &i32::try_from(rel).expect("near").to_le_bytes()].concat()
    }

    #[test]
    fn who_returns() {
        let calls = |from, to| [branch(0xe8, (from, 0), to), vec![0xc3]].concat();
        let caller =
            [(2, 0_u64), (3, 5), (4, 10)].map(|(to, at)| branch(0xe8, (0, at), to)).concat();
        let functions = [
            caller,
            // Calls what calls it.
            calls(1, 5),
            // ret; and by a jump to that.
            vec![0xc3],
            branch(0xe9, (3, 0), 2),
            // Calls one that does not, and would return.
            calls(4, 6),
            calls(5, 1),
            // ud2
            vec![0x0f, 0x0b],
        ];
        assert_eq!(found(&functions), [2, 3]);
    }

    #[test]
    fn branches_that_lead_anywhere_return() {
        for code in [vec![0xff, 0xe0], vec![0x74, 1, 0xcc, 0xc3], vec![0xff, 0xd0, 0xc3]] {
            assert_eq!(found(&[branch(0xe8, (0, 0), 1), code]), [1]);
        }
        // A loop; what is behind a call of it is nobody's.
        assert_eq!(found(&[branch(0xe8, (0, 0), 1), vec![0xeb, 0xfe]]), [0; 0]);
    }
}
