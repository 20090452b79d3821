//! Proof that nothing expects anything of R11 behind a return: with shadow stacks the safe return
//! of Zen 3 and 4 leaves the number there by which it drops a word (`text_patching::untrain`).
//!
//! Of the compiler's functions its conventions say so: in each of them R11 is lost in a call, and
//! is no argument. Assembly promises nothing. So behind each of its calls, and behind calls of its
//! functions, every path is walked until R11 is written, or to where one of the compiler's
//! functions begins: an instruction that reads it before is what the return would break. A call on
//! the way leads into what it calls; a return leads to what is behind another call. Threads, whose
//! first return no call has made, begin at labels that are roots as well. What was interrupted gets
//! its R11 back by IRET, or by a return that leaves it alone (`return_by_alias`).
//!
//! The compiler's own functions are not walked: it may well move a register about that means
//! nothing on the path at hand, and does so in 40 places.
//!
//! Neighbours: `untrained` has the bytes and places of the same sequences.

use std::collections::BTreeSet;

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use serde::Serialize;
use text_patching::kcfi;

use crate::audit::PREAMBLE;
use crate::elf::{Image, Symbol};
use crate::entry_text::{Broken, choices};
use crate::noreturn;
use crate::scan::{self, Call, Scan, decode};

/// The register.
const REGISTER: Register = Register::R11;
/// What the safe return is called by, if an image has it.
const SEQUENCE: &str = "untrain_alias_shadow_return";
/// First code of threads, to which a return leads without a call.
const FIRST: [&str; 2] = ["task_start_kernel", "task_start_user"];

/// What was proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Scratch {
    /// Places to which a return can lead.
    pub returned_to: usize,
    /// Instructions that are executed before the register is written again.
    pub instructions: usize,
}

/// Walks every path. `Ok(None)`: no return of the image changes the register.
///
/// # Errors
/// The first instruction that reads it.
pub fn prove(image: &Image<'_>, scan: &Scan) -> Result<Option<Scratch>, Broken> {
    if image.symbol(SEQUENCE).is_none() {
        return Ok(None);
    }
    let thunks = scan::thunks(image);
    let is_thunk = |at| thunks.contains_key(&at);
    let first = FIRST.iter().filter_map(|name| image.symbol(name));
    let returning = noreturn::returning(image, scan);
    let compiled = Compiled::of(image);
    let is_root = |call: &&Call| {
        let returns = call.target.is_none_or(|target| returning.contains(&target));
        let calls_assembly = call.target.is_some_and(|at| !compiled.made(at) && !is_thunk(at));
        returns && (calls_assembly || !compiled.made(call.behind - 1))
    };
    let behind = scan.calls.iter().filter(is_root).map(|call| call.behind);
    let roots: BTreeSet<u64> = behind.chain(first).collect();
    let choices = choices(image);
    let mut pending: Vec<u64> = roots.iter().copied().collect();
    let mut seen = BTreeSet::new();
    let mut factory = InstructionInfoFactory::new();
    while let Some(at) = pending.pop() {
        // What no instruction follows ends here, and what the compiler has made begins.
        if compiled.entries.contains(&at) {
            continue;
        }
        let Some(instruction) = decode(image, at) else { continue };
        if !seen.insert(at) {
            continue;
        }
        match effect(&mut factory, scan, &instruction) {
            Effect::Reads => {
                return Err(Broken { at, what: "reads R11 behind a return, which may change it" });
            }
            Effect::Writes => {}
            Effect::None => {
                pending.extend(choices.get(&at));
                pending.extend(follow(&instruction));
            }
        }
    }
    Ok(Some(Scratch { returned_to: roots.len(), instructions: seen.len() }))
}

/// What the compiler has made.
struct Compiled<'a> {
    image: &'a Image<'a>,
    entries: BTreeSet<u64>,
}

impl<'a> Compiled<'a> {
    /// Its functions are those with a preamble, and those with names of Rust's.
    fn of(image: &'a Image<'a>) -> Self {
        let has_preamble: BTreeSet<&str> =
            image.symbols.iter().filter_map(|symbol| symbol.name.strip_prefix(PREAMBLE)).collect();
        let is_compiled = |symbol: &&Symbol<'_>| {
            symbol.function && (symbol.name.starts_with("_R") || has_preamble.contains(symbol.name))
        };
        let entries = image.symbols.iter().filter(is_compiled).map(|symbol| symbol.address);
        Compiled { image, entries: entries.collect() }
    }

    /// Whether the instruction at `at` is in one of them.
    fn made(&self, at: u64) -> bool {
        let of = |symbol: &Symbol<'_>| self.entries.contains(&symbol.address);
        self.image.symbolize(at).is_some_and(of)
    }
}

/// On the register.
enum Effect {
    None,
    Reads,
    Writes,
}

fn effect(factory: &mut InstructionInfoFactory, scan: &Scan, instruction: &Instruction) -> Effect {
    // A check may name the register and no more: it loads R10, and compares through R11.
    if let Some(check) = scan.checks.get(&instruction.ip()) {
        return if check.register == 11 { Effect::Reads } else { Effect::None };
    }
    let used = factory.info(instruction);
    let of_it = used.used_registers().iter().filter(|it| it.register().full_register() == REGISTER);
    let mut effect = Effect::None;
    for it in of_it {
        match it.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Write => effect = Effect::Writes,
            _ if is_zeroing(instruction) => effect = Effect::Writes,
            _ => return Effect::Reads,
        }
    }
    effect
}

/// `xor %r11d, %r11d`, whatever was there.
fn is_zeroing(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Xor | Mnemonic::Sub)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register()
}

/// What is executed next.
fn follow(instruction: &Instruction) -> impl Iterator<Item = u64> + use<> {
    let is_near = instruction.op0_kind() == OpKind::NearBranch64;
    let (target, behind) = (instruction.near_branch_target(), instruction.next_ip());
    let next = match instruction.flow_control() {
        // What is behind a call is behind a return; behind SYSCALL and the like there is none.
        FlowControl::UnconditionalBranch | FlowControl::Call if is_near => [Some(target), None],
        FlowControl::ConditionalBranch => [Some(target), Some(behind)],
        FlowControl::Next | FlowControl::Call => [Some(behind), None],
        _ => [None, None],
    };
    next.into_iter().flatten()
}

const _: () = assert!(kcfi::CHECK_LEN > 5, "a check is more than the load of its hash");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Piece;
    use crate::scan::Thunks;

    const BASE: u64 = 0xffff_ffff_8020_0000;
    /// A function that calls another one, and what is behind that call.
    const CALLER: u64 = BASE + 0x20;
    const CALLEE: u64 = BASE + 0x80;
    const OTHER: u64 = BASE + 0xc0;

    fn call(at: u64, to: u64) -> Vec<u8> {
        let rel = i32::try_from(to.wrapping_sub(at + 5).cast_signed()).expect("near");
        [&[0xe8][..], &rel.to_le_bytes()].concat()
    }

    fn proved(behind: &[u8], other: &[u8]) -> Result<Option<Scratch>, Broken> {
        proved_of(["a", "b", "c"], behind, other)
    }

    fn proved_of(
        [a, b, c]: [&str; 3],
        behind: &[u8],
        other: &[u8],
    ) -> Result<Option<Scratch>, Broken> {
        let mut text = vec![0xcc; 0x100];
        for (at, bytes) in [
            (CALLER, &[&call(CALLER, CALLEE), behind].concat()[..]),
            (CALLEE, &[0xc3]),
            (OTHER, other),
        ] {
            let at = usize::try_from(at - BASE).expect("small");
            text[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let symbol = |(name, address)| Symbol { name, address, size: 0, function: true };
        let image = Image {
            pieces: vec![Piece::read_only(".text", BASE, &text, true)],
            symbols: [(SEQUENCE, BASE), (a, CALLER), (b, CALLEE), (c, OTHER)].map(symbol).into(),
            ..Image::default()
        };
        prove(&image, &scan::scan(&image, &Thunks::new()))
    }

    #[test]
    fn what_writes_it_first() {
        for behind in [
            // ret
            &[0xc3][..],
            // mov $1, %r11d; mov %r11, %rax
            &[0x41, 0xbb, 1, 0, 0, 0, 0x4c, 0x89, 0xd8],
            // xor %r11d, %r11d; push %r11
            &[0x45, 0x31, 0xdb, 0x41, 0x53],
            // pop %r11; push %r11
            &[0x41, 0x5b, 0x41, 0x53],
            // mov $1, %r11b; mov %r11d, %eax
            &[0x41, 0xb3, 1, 0x44, 0x89, 0xd8],
            // je over a return; both sides return
            &[0x74, 1, 0xc3, 0xc3],
        ] {
            let found = proved(behind, &[0xc3]).expect("none reads it").expect("a sequence");
            assert_eq!(found.returned_to, 1, "{behind:x?}");
        }
    }

    #[test]
    fn what_reads_it_first() {
        let to_other = call(CALLER + 5, OTHER);
        for (behind, other) in [
            // push %r11; mov %r11, %rax; jmp *%r11; mov (%r11), %rax
            (&[0x41, 0x53][..], &[0xc3][..]),
            (&[0x4c, 0x89, 0xd8], &[0xc3]),
            (&[0x41, 0xff, 0xe3], &[0xc3]),
            (&[0x49, 0x8b, 0x03], &[0xc3]),
            // mov %r11b, %al
            (&[0x44, 0x88, 0xd8], &[0xc3]),
            // On one side of a branch.
            (&[0x74, 1, 0xc3, 0x41, 0x53], &[0xc3]),
            // In a function that is called then.
            (&to_other, &[0x41, 0x53]),
        ] {
            let found = proved(behind, other);
            assert!(found.is_err_and(|broken| broken.what.contains("reads R11")), "{behind:x?}");
        }
        // Of the compiler's: a caller of its own kind, and of assembly; a function that is called
        // then.
        let push = [0x41, 0x53];
        assert!(proved_of(["_Ra", "_Rb", "c"], &push, &[0xc3]).is_ok());
        assert!(proved_of(["_Ra", "b", "c"], &push, &[0xc3]).is_err());
        assert!(proved_of(["a", "_Rb", "_Rc"], &to_other, &push).is_ok());
        // In one that nobody calls it may be an argument.
        assert!(proved(&[0xc3], &[0x41, 0x53]).is_ok());
    }

    #[test]
    fn an_image_without_the_sequence() {
        let scan = Scan::default();
        assert_eq!(prove(&Image::default(), &scan).ok(), Some(None));
    }
}
