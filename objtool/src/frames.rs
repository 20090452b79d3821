//! What each function takes of the stack: a kernel stack has 16 KiB and no room to grow, and one
//! large value that the compiler moves about can take half of that without a word in the source.
//!
//! Each function is walked from its entry, and the depth of the stack is followed: pushes, `sub
//! $n, %rsp`, `and` that aligns, a stack probe, whose loop is seen by the `lea -n(%rsp)` before it,
//! and what undoes them. The frame is the most that was seen, without the return address. Two paths
//! to one place have the same depth in compiled code, so each place is visited once.
//!
//! Beyond that the deepest chain of direct calls is added up, with the return addresses. It is what
//! is certain to be too much if it is; not what is enough: calls through pointers are not followed,
//! and a function that is on the chain already is not entered again. It is told, not judged.
//!
//! What this cannot see: alloca of a length that only the running program knows, which Rust has
//! not, and assembly that moves RSP by a register.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use serde::Serialize;
use text_patching::site_table;

use crate::elf::{Image, Symbol};

/// Bytes of the stack that a function may take without being in the list: a quarter of it.
pub const LARGE: u64 = 4096;

/// A function that may take more.
struct Allowed {
    /// A part of its symbol's name.
    name: &'static str,
    /// The most that it takes.
    bytes: u64,
    #[expect(dead_code, reason = "for readers")]
    why: &'static str,
}

const BOOT: &str = "on the stack on which the first CPU boots, which has 64 KiB";

const ALLOWED: [Allowed; 4] = [
    // The command line, before it has a place; twice where it is looked at for places.
    Allowed { name: "boot_choose_places", bytes: 8192, why: BOOT },
    Allowed { name: "4boot11CommandLine", bytes: 5120, why: BOOT },
    Allowed { name: "boot_first_cpu", bytes: 7168, why: BOOT },
    // The table of interrupts, in the making.
    Allowed { name: "11descriptors5gates", bytes: 4224, why: BOOT },
];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Frames {
    /// Functions that were walked.
    pub functions: usize,
    /// Those with more than [`LARGE`] bytes.
    pub large: usize,
    /// The largest, in bytes.
    pub largest: u64,
    /// The deepest chain of direct calls from a function that nobody calls directly, in bytes, and
    /// the functions on it.
    pub deepest: (u64, Vec<String>),
}

/// Looks at every function. Those that take too much go to `wrong`, with their addresses. `None`:
/// the image is none of this kernel.
#[must_use]
pub fn prove(image: &Image<'_>, wrong: &mut Vec<(u64, String)>) -> Option<Frames> {
    image.section(site_table::SECTION)?;
    let walked: BTreeMap<u64, Walked> = functions(image)
        .filter_map(|symbol| Some((symbol.address, walk(image, symbol)?)))
        .collect();
    let mut found = Frames { functions: walked.len(), ..Frames::default() };
    for (&at, function) in &walked {
        let frame = function.frame;
        found.largest = found.largest.max(frame);
        if frame <= LARGE {
            continue;
        }
        found.large += 1;
        let name = image.symbolize(at).map_or("", |symbol| symbol.name);
        let is_allowed = |it: &Allowed| name.contains(it.name) && frame <= it.bytes;
        if !ALLOWED.iter().any(is_allowed) {
            wrong.push((at, format!("{frame} bytes of {LARGE}")));
        }
    }
    found.deepest = Chains { walked: &walked, done: BTreeMap::new() }.deepest(image);
    Some(found)
}

/// Functions with a size, one for each address.
fn functions<'a, 'b>(image: &'b Image<'a>) -> impl Iterator<Item = &'b Symbol<'a>> {
    let is_text = |at| image.piece_at(at).is_some_and(|piece| piece.executable);
    let is_one =
        move |symbol: &&Symbol<'_>| symbol.function && symbol.size > 0 && is_text(symbol.address);
    image.symbols.iter().filter(is_one)
}

/// A function's frame, and its direct calls with the depth at which they are made.
#[derive(Debug, Default)]
struct Walked {
    frame: u64,
    calls: Vec<(u64, u64)>,
}

fn walk(image: &Image<'_>, symbol: &Symbol<'_>) -> Option<Walked> {
    let piece = image.piece_at(symbol.address)?;
    let whole = symbol.address..symbol.address.checked_add(symbol.size)?;
    let mut walked = Walked::default();
    let mut seen = BTreeSet::new();
    let mut pending = vec![(whole.start, Depth::default())];
    while let Some((at, mut depth)) = pending.pop() {
        if !whole.contains(&at) {
            // A jump to another function, which has the stack as this one had it.
            if at != whole.start && depth.bytes <= 8 {
                walked.calls.push((at, depth.bytes));
            }
            continue;
        }
        if !seen.insert(at) {
            continue;
        }
        let bytes = piece.from(at)?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            continue;
        }
        walked.frame = walked.frame.max(depth.apply(&instruction)).max(depth.bytes);
        let is_near = instruction.op0_kind() == OpKind::NearBranch64;
        let target = instruction.near_branch_target();
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::IndirectCall => {
                pending.push((instruction.next_ip(), depth));
            }
            FlowControl::Call => {
                if is_near {
                    walked.calls.push((target, depth.bytes));
                }
                pending.push((instruction.next_ip(), depth));
            }
            FlowControl::UnconditionalBranch if is_near => pending.push((target, depth)),
            FlowControl::ConditionalBranch => {
                pending.extend([(target, depth), (instruction.next_ip(), depth)]);
            }
            _ => {}
        }
    }
    Some(walked)
}

/// How far the stack has grown since the function began, and where RBP points.
#[derive(Clone, Copy, Debug, Default)]
struct Depth {
    bytes: u64,
    rbp: u64,
}

impl Depth {
    /// What an instruction does to it. Gives what a probe is about to reach.
    fn apply(&mut self, instruction: &Instruction) -> u64 {
        let to_rsp = instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::RSP;
        match instruction.mnemonic() {
            Mnemonic::Push | Mnemonic::Pushfq => self.bytes += 8,
            Mnemonic::Pop | Mnemonic::Popfq if !to_rsp => {
                self.bytes = self.bytes.saturating_sub(8);
            }
            Mnemonic::Leave => self.bytes = self.rbp.saturating_sub(8),
            Mnemonic::Mov if is(instruction, Register::RBP, Register::RSP) => self.rbp = self.bytes,
            Mnemonic::Mov if is(instruction, Register::RSP, Register::RBP) => self.bytes = self.rbp,
            Mnemonic::Sub | Mnemonic::Add if to_rsp => {
                let value = instruction.try_immediate(1).unwrap_or_default().cast_signed();
                let is_sub = instruction.mnemonic() == Mnemonic::Sub;
                self.grow(if is_sub { value } else { value.saturating_neg() });
            }
            // An alignment may take that much more.
            Mnemonic::And if to_rsp => {
                let mask = instruction.try_immediate(1).unwrap_or(u64::MAX);
                self.bytes += (!mask).min(4096);
            }
            Mnemonic::Lea if instruction.code() == Code::Lea_r64_m => return self.lea(instruction),
            _ => {}
        }
        self.bytes
    }

    fn grow(&mut self, by: i64) {
        self.bytes = self.bytes.saturating_add_signed(by);
    }

    /// An address relative to the stack: where RSP is then, or where a probe will have it.
    fn lea(&mut self, instruction: &Instruction) -> u64 {
        let by = instruction.memory_displacement64().cast_signed();
        let from = match instruction.memory_base() {
            Register::RSP => self.bytes,
            Register::RBP => self.rbp,
            _ => return self.bytes,
        };
        if instruction.memory_index() != Register::None {
            return self.bytes;
        }
        let reached = from.saturating_add_signed(by.saturating_neg());
        if instruction.op0_register() == Register::RSP {
            self.bytes = reached;
        } else if instruction.memory_base() == Register::RBP || by >= 0 {
            return self.bytes;
        }
        reached
    }
}

fn is(instruction: &Instruction, to: Register, from: Register) -> bool {
    instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && (instruction.op0_register(), instruction.op1_register()) == (to, from)
}

/// The deepest chains of calls.
struct Chains<'a> {
    walked: &'a BTreeMap<u64, Walked>,
    /// Bytes from a function's entry on, and which call leads there.
    done: BTreeMap<u64, (u64, Option<u64>)>,
}

impl Chains<'_> {
    fn deepest(&mut self, image: &Image<'_>) -> (u64, Vec<String>) {
        let called: BTreeSet<u64> =
            self.walked.values().flat_map(|it| it.calls.iter().map(|&(to, _)| to)).collect();
        let roots = self.walked.keys().copied().filter(|at| !called.contains(at));
        let mut deepest = (0, None);
        for root in roots.collect::<Vec<_>>() {
            deepest = deepest.max((self.bytes(root), Some(root)));
        }
        let mut names = vec![];
        let mut next = deepest.1;
        while let Some(at) = next {
            names.push(image.symbolize(at).map_or("", |symbol| symbol.name).to_owned());
            next = self.done.get(&at).and_then(|&(_, next)| next);
        }
        (deepest.0, names)
    }

    /// Bytes that the function at `start` takes with all that it calls. Not by recursion: chains
    /// are as deep as a hostile image wants.
    fn bytes(&mut self, start: u64) -> u64 {
        let mut stack = vec![(start, 0)];
        let mut open = BTreeSet::from([start]);
        while let Some((at, call)) = stack.pop() {
            let Some(function) = self.walked.get(&at) else {
                self.done.insert(at, (0, None));
                continue;
            };
            let Some(&(to, _)) = function.calls.get(call) else {
                open.remove(&at);
                let behind = |&(to, depth): &(u64, u64)| {
                    let (bytes, _) = *self.done.get(&to)?;
                    Some((depth + 8 + bytes, Some(to)))
                };
                let calls = function.calls.iter().filter_map(behind);
                let most = calls.chain([(function.frame, None)]).max().unwrap_or_default();
                self.done.insert(at, most);
                continue;
            };
            stack.push((at, call + 1));
            if !self.done.contains_key(&to) && open.insert(to) {
                stack.push((to, 0));
            }
        }
        self.done.get(&start).map_or(0, |&(bytes, _)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Piece;

    const BASE: u64 = 0xffff_ffff_8020_0000;

    /// An image of functions, each 64 bytes behind the one before.
    fn proved(functions: &[&[u8]]) -> (Frames, Vec<String>) {
        proved_as("f", functions)
    }

    fn proved_as(name: &'static str, functions: &[&[u8]]) -> (Frames, Vec<String>) {
        let mut text = vec![0xcc; 64 * functions.len()];
        let mut symbols = vec![];
        for (code, (room, address)) in
            functions.iter().zip(text.chunks_mut(64).zip((BASE..).step_by(64)))
        {
            room[..code.len()].copy_from_slice(code);
            symbols.push(Symbol { name, address, size: code.len() as u64, function: true });
        }
        let image = Image {
            pieces: vec![
                Piece::read_only(".text", BASE, &text, true),
                Piece::read_only(site_table::SECTION, BASE + 0x10_0000, &[0; 8], false),
            ],
            symbols,
            ..Image::default()
        };
        let mut wrong = vec![];
        let found = prove(&image, &mut wrong).expect("an image of this kernel");
        (found, wrong.into_iter().map(|(_, what)| what).collect())
    }

    #[track_caller]
    fn takes(code: &[u8], bytes: u64) {
        let (found, wrong) = proved(&[code]);
        assert_eq!(found.largest, bytes);
        assert_eq!(wrong.len(), usize::from(bytes > LARGE), "{wrong:?}");
    }

    #[test]
    fn each_way_to_take_it() {
        // ret; push %rbp, mov %rsp, %rbp, sub $32, %rsp, add $32, %rsp, pop %rbp, ret
        takes(&[0xc3], 0);
        let small = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 32];
        takes(&[&small[..], &[0x48, 0x83, 0xc4, 32, 0x5d, 0xc3]].concat(), 40);
        // sub $4096, %rsp; and one word more than that by a push.
        takes(&[0x48, 0x81, 0xec, 0, 16, 0, 0, 0xc3], LARGE);
        takes(&[0x50, 0x48, 0x81, 0xec, 0, 16, 0, 0, 0xc3], LARGE + 8);
        // add $-128, %rsp
        takes(&[0x48, 0x83, 0xc4, 0x80, 0xc3], 128);
        // and $-64, %rsp
        takes(&[0x48, 0x83, 0xe4, 0xc0, 0xc3], 63);
        // Behind a branch: test %edi, %edi; je to the return; sub $8192, %rsp; ret
        takes(&[0x85, 0xff, 0x74, 8, 0x48, 0x81, 0xec, 0, 32, 0, 0, 0xc3, 0xc3], 8192);
    }

    /// What the compiler makes for large frames: steps of a page, or a loop of such.
    #[test]
    fn probes_are_followed() {
        // sub $4096, %rsp; movq $0, (%rsp); sub $904, %rsp; ret
        let touch = [0x48, 0xc7, 0x04, 0x24, 0, 0, 0, 0];
        let steps = [
            &[0x48, 0x81, 0xec, 0, 16, 0, 0],
            &touch[..],
            &[0x48, 0x81, 0xec, 0x88, 3, 0, 0, 0xc3],
        ];
        takes(&steps.concat(), 5000);
        // lea -65536(%rsp), %r11; 1: sub $4096, %rsp; movq $0, (%rsp); cmp %r11, %rsp; jne 1b
        let looped = [
            &[0x4c, 0x8d, 0x9c, 0x24, 0, 0, 0xff, 0xff, 0x48, 0x81, 0xec, 0, 16, 0, 0],
            &touch[..],
            &[0x4c, 0x39, 0xdc, 0x75, 0xe4, 0xc3],
        ];
        takes(&looped.concat(), 65536);
    }

    /// Who is in the list may take what it says there, and not more.
    #[test]
    fn the_list_has_limits_of_its_own() {
        for allowed in ALLOWED {
            assert!(allowed.bytes > LARGE, "{}", allowed.name);
            for (bytes, is_refused) in [(allowed.bytes, false), (allowed.bytes + 8, true)] {
                let bytes = u32::try_from(bytes).expect("small").to_le_bytes();
                let code = [&[0x48, 0x81, 0xec][..], &bytes, &[0xc3]].concat();
                let (found, wrong) = proved_as(allowed.name, &[&code]);
                assert_eq!((found.large, wrong.is_empty()), (1, !is_refused), "{}", allowed.name);
            }
        }
    }

    #[test]
    fn chains_are_added_up() {
        // push %rax; call the next; ret. The last one calls the first again.
        let link = [0x50, 0xe8, 58, 0, 0, 0, 0xc3];
        let back = [0x50, 0xe8, 0x7a, 0xff, 0xff, 0xff, 0xc3];
        let start = [0x50, 0xe8, 58, 0, 0, 0, 0xc3];
        let (found, _) = proved(&[&start, &link, &link, &back]);
        assert_eq!(found.functions, 4);
        // Four pushes and three return addresses; the way back leads into what is on the chain.
        assert_eq!((found.deepest.0, found.deepest.1.len()), (4 * 8 + 3 * 8, 4));
        assert_eq!(prove(&Image::default(), &mut vec![]), None);
    }
}
