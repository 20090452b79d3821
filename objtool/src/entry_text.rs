//! Proof that entry code works on a CPU that has not caught up: between a vector and the catch-up,
//! and between the exit's store and the program, the kernel runs with text and translations that
//! may be old (mechanisms/context_tracking). What is proved of every instruction there, along every
//! path:
//!
//! - it lies in `.entry.text`, and so does whatever it calls;
//! - it makes no indirect branch, which would end who knows where;
//! - it reaches memory only by GS, by the stack, by registers that were loaded from those, or at a
//!   fixed address of the image: nothing whose mapping changes while the kernel runs;
//! - no place there is patched at run time (`finish` refuses static branches and calls; what boot
//!   changes, it changes before any CPU is in user mode, and both sides of it are walked).
//!
//! Where a path begins and ends the code says itself, by the labels below.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, UsedMemory,
};

use serde::Serialize;
use text_patching::jump_label::{self, RAW_LEN};

use crate::elf::Image;
use crate::finish::JUMP_TABLE;

/// Where entries begin: SYSCALL's, and those of paranoid vectors.
const ENTRIES: [&str; 2] = ["syscall_entry", "paranoid_"];
/// The stubs of all vectors, and their size.
pub(crate) const STUBS: &str = "vector_stubs";
pub(crate) const STUB_BYTES: u64 = 16;
pub(crate) const VECTORS: u64 = 256;
/// Where an entry has caught up.
const ENTERED: &str = "context_entered_";
/// An interrupt of the kernel: there is nothing to catch up with.
pub(crate) const NO_ENTRY: &str = "vector_from_kernel";
/// Where an exit has said that the CPU is in user mode.
const LEFT: &str = "context_left_";
/// Addresses that come and go, although they are in the image.
const LATE: [&str; 2] = ["__late_text_start", "__late_text_end"];

/// What was proved: places where paths begin, by their kind, and what lies on the paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proved {
    /// Entries of SYSCALL.
    pub calls: usize,
    /// Entries of interrupts and exceptions.
    pub vectors: usize,
    /// Entries of vectors that may hit any instruction.
    pub paranoid: usize,
    /// Ways out, from the store that says that the CPU is in user mode.
    pub exits: usize,
    /// Instructions on those paths.
    pub instructions: usize,
}

/// An instruction that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Where it is.
    pub at: u64,
    /// What it does.
    pub what: &'static str,
}

/// Walks every path. `Ok(None)`: the image has no such labels, so it is not this kernel's.
///
/// # Errors
/// The first instruction that breaks a rule.
pub fn prove(image: &Image<'_>, entry_text: &[Range<u64>]) -> Result<Option<Proved>, Broken> {
    let mut walk = Walk {
        image,
        entry_text,
        late: late(image),
        known: BTreeMap::new(),
        choices: choices(image),
        pending: vec![],
        info: InstructionInfoFactory::new(),
    };
    let inside = |at: u64| entry_text.iter().any(|range| range.contains(&at));
    let symbols = image.symbols.iter().filter(|symbol| inside(symbol.address));
    let mut proved = Proved::default();
    for symbol in symbols {
        let begins = |prefix: &str| symbol.name.starts_with(prefix);
        let is_vector = symbol.name.ends_with(|c: char| c.is_ascii_digit());
        if begins(ENTRIES[0]) {
            // The stack is the program's until it is loaded.
            walk.pending.push((symbol.address, 0));
            proved.calls += 1;
        } else if begins(ENTRIES[1]) && is_vector {
            walk.pending.push((symbol.address, bit(Register::RSP)));
            proved.paranoid += 1;
        } else if begins(LEFT) {
            walk.pending.push((symbol.address, bit(Register::RSP)));
            proved.exits += 1;
        } else if symbol.name == STUBS {
            proved.vectors += VECTORS as usize;
            let stubs = (0..VECTORS).map(|n| symbol.address + n * STUB_BYTES);
            walk.pending.extend(stubs.map(|at| (at, bit(Register::RSP))));
        }
    }
    if proved.vectors == 0 {
        return Ok(None);
    }
    while let Some((at, safe)) = walk.pending.pop() {
        walk.step(at, safe)?;
    }
    proved.instructions = walk.known.len();
    Ok(Some(proved))
}

/// Static branches of the image: each site and its other side.
pub(crate) fn choices(image: &Image<'_>) -> BTreeMap<u64, u64> {
    let Some(piece) = image.section(JUMP_TABLE) else { return BTreeMap::new() };
    let (raws, _) = piece.bytes.as_chunks::<RAW_LEN>();
    let addresses = (piece.address..).step_by(RAW_LEN);
    let branches = raws.iter().zip(addresses).map(|(raw, at)| jump_label::decode_raw(at, *raw));
    branches.map(|branch| (branch.site, branch.target)).collect()
}

fn late(image: &Image<'_>) -> Range<u64> {
    let [start, end] = LATE.map(|name| image.symbol(name).unwrap_or_default());
    start..end
}

/// Registers that hold an address on the stack in use or in this CPU's data: one bit each.
type Safe = u16;

fn bit(register: Register) -> Safe {
    let full = register.full_register();
    if full.is_gpr64() { 1 << full.number() } else { 0 }
}

/// What a callee keeps (System V ABI).
fn kept_by_calls() -> Safe {
    use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
    [RSP, RBP, RBX, R12, R13, R14, R15].into_iter().map(bit).fold(0, |all, one| all | one)
}

/// Into a guest and back (AMD APM 3, VMRUN, VMLOAD, VMSAVE; SDM 3C, VMLAUNCH, behind which only a
/// refusal goes on: where exits lead is a label of its own).
fn is_world_switch(instruction: &Instruction) -> bool {
    let mnemonic = instruction.mnemonic();
    matches!(mnemonic, Mnemonic::Vmrun | Mnemonic::Vmload | Mnemonic::Vmsave | Mnemonic::Vmlaunch)
}

struct Walk<'a> {
    image: &'a Image<'a>,
    entry_text: &'a [Range<u64>],
    late: Range<u64>,
    /// What is safe before an instruction, on all paths to it so far.
    known: BTreeMap<u64, Safe>,
    /// Where nops become jumps at boot, and to where.
    choices: BTreeMap<u64, u64>,
    pending: Vec<(u64, Safe)>,
    info: InstructionInfoFactory,
}

impl Walk<'_> {
    fn step(&mut self, at: u64, safe: Safe) -> Result<(), Broken> {
        if self.is_end(at) {
            return Ok(());
        }
        let safe = match self.known.get(&at) {
            Some(known) if known & safe == *known => return Ok(()),
            Some(known) => known & safe,
            None => safe,
        };
        self.known.insert(at, safe);
        if let Some(&target) = self.choices.get(&at) {
            self.pending.push((target, safe));
        }
        let instruction = self.decode(at)?;
        let next = instruction.next_ip();
        if is_world_switch(&instruction) {
            // By physical addresses; every register but RAX and RSP is another world's behind it.
            self.pending.push((next, safe & bit(Register::RSP)));
            return Ok(());
        }
        self.check_memory(&instruction, safe)?;
        let after = self.after(&instruction, safe);
        match instruction.flow_control() {
            FlowControl::Next => self.pending.push((next, after)),
            FlowControl::UnconditionalBranch => self.go(&instruction, after)?,
            FlowControl::ConditionalBranch => {
                self.go(&instruction, after)?;
                self.pending.push((next, after));
            }
            FlowControl::Call => {
                // SYSCALL and its kind count as calls, too; there are none here.
                self.go(&instruction, after)?;
                self.pending.push((next, after & kept_by_calls()));
            }
            FlowControl::Return => {}
            FlowControl::Interrupt | FlowControl::Exception => {}
            FlowControl::IndirectBranch | FlowControl::IndirectCall => {
                return Err(self.refuse(at, "branches indirectly"));
            }
            FlowControl::XbeginXabortXend => return Err(self.refuse(at, "is no such code")),
        }
        Ok(())
    }

    /// Follows a direct branch.
    fn go(&mut self, instruction: &Instruction, safe: Safe) -> Result<(), Broken> {
        let direct = matches!(instruction.op0_kind(), OpKind::NearBranch64);
        if !direct {
            return Err(self.refuse(instruction.ip(), "leaves by another way"));
        }
        self.pending.push((instruction.near_branch_target(), safe));
        Ok(())
    }

    /// Whether the rules end here: the entry has caught up, or none was made.
    fn is_end(&self, at: u64) -> bool {
        let first = self.image.symbols.partition_point(|symbol| symbol.address < at);
        let here = self.image.symbols.get(first..).unwrap_or_default();
        let mut here = here.iter().take_while(|symbol| symbol.address == at);
        here.any(|symbol| symbol.name.starts_with(ENTERED) || symbol.name == NO_ENTRY)
    }

    fn decode(&self, at: u64) -> Result<Instruction, Broken> {
        let inside = self.entry_text.iter().any(|range| range.contains(&at));
        if !inside {
            return Err(self.refuse(at, "is reached before the catch-up, outside entry text"));
        }
        let bytes = self.image.piece_at(at).and_then(|piece| piece.from(at));
        let mut decoder = Decoder::with_ip(64, bytes.unwrap_or_default(), at, DecoderOptions::NONE);
        let instruction = decoder.decode();
        match instruction.is_invalid() {
            true => Err(self.refuse(at, "is no instruction")),
            false => Ok(instruction),
        }
    }

    fn check_memory(&mut self, instruction: &Instruction, safe: Safe) -> Result<(), Broken> {
        let used: Vec<UsedMemory> = self.info.info(instruction).used_memory().to_vec();
        let touches = |memory: &&UsedMemory| memory.access() != OpAccess::NoMemAccess;
        for memory in used.iter().filter(touches) {
            if memory.segment() == Register::GS {
                continue;
            }
            let by_stack = matches!(memory.base(), Register::RSP) || bit(memory.base()) & safe != 0;
            let right = match memory.base() {
                Register::None | Register::RIP => {
                    let address = if instruction.is_ip_rel_memory_operand() {
                        instruction.ip_rel_memory_address()
                    } else {
                        memory.displacement()
                    };
                    memory.index() == Register::None && self.stays(address)
                }
                base => by_stack && bit(base) & safe != 0,
            };
            if !right {
                let what = "uses memory by other ways than GS and the stack before the catch-up";
                return Err(self.refuse(instruction.ip(), what));
            }
        }
        Ok(())
    }

    /// Whether a fixed address is mapped for as long as the kernel runs.
    fn stays(&self, address: u64) -> bool {
        !self.late.contains(&address) && self.image.piece_at(address).is_some()
    }

    /// What is safe behind the instruction.
    fn after(&mut self, instruction: &Instruction, safe: Safe) -> Safe {
        let target = instruction.op0_register();
        let to_register = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register;
        let source =
            if instruction.op_count() > 1 { instruction.op1_kind() } else { OpKind::NearBranch16 };
        let given = |yes: bool| if yes { safe | bit(target) } else { safe & !bit(target) };
        match instruction.mnemonic() {
            Mnemonic::Mov if to_register && target.is_gpr64() => given(match source {
                OpKind::Register => bit(instruction.op1_register()) & safe != 0,
                OpKind::Memory => instruction.memory_segment() == Register::GS,
                _ => false,
            }),
            Mnemonic::Lea => given(
                bit(instruction.memory_base()) & safe != 0
                    && instruction.memory_index() == Register::None,
            ),
            // The shadow stack in use is mapped as long as the stack.
            Mnemonic::Rdsspq => given(true),
            // An address moved by a constant stays where it was: stacks are aligned to their size.
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And | Mnemonic::Or
                if to_register && target.is_gpr64() && source != OpKind::Register =>
            {
                safe
            }
            _ => {
                let stack = safe & bit(Register::RSP);
                let moves =
                    instruction.is_string_instruction() || instruction.is_stack_instruction();
                let used = self.info.info(instruction).used_registers();
                let written = used.iter().filter(|used| {
                    let writes = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                    let walks = matches!(used.register(), Register::RSI | Register::RDI)
                        && instruction.is_string_instruction();
                    writes && !walks
                });
                let lost = written.fold(0, |all, used| all | bit(used.register()));
                let keeps_stack = moves && target.full_register() != Register::RSP;
                safe & !lost | if keeps_stack { stack } else { 0 }
            }
        }
    }

    fn refuse(&self, at: u64, what: &'static str) -> Broken {
        Broken { at, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{Piece, Symbol};

    const BASE: u64 = 0x1000;
    const STUB: u64 = 0x2000;
    const DATA: u64 = 0x8000;

    /// An entry made of these bytes, which end with the catch-up; stubs that go nowhere.
    fn prove_entry(code: &[u8]) -> Result<Option<Proved>, Broken> {
        prove_named("syscall_entry_x", code)
    }

    fn prove_named(name: &'static str, code: &[u8]) -> Result<Option<Proved>, Broken> {
        let text = [code, &[0xc3]].concat();
        // int3 in each stub.
        let stubs = vec![0xcc; usize::try_from(STUB_BYTES * VECTORS).expect("4 KiB")];
        let data = [0; 64];
        let piece = |name: &str, address, bytes| Piece {
            name: name.to_owned(),
            address,
            bytes,
            file_offset: 0,
            executable: address != DATA,
            writable: address == DATA,
        };
        let symbol = |name, address| Symbol { name, address, size: 0, function: false };
        let image = Image {
            pieces: vec![
                piece(".entry.text", BASE, &text),
                piece(".entry.text", STUB, &stubs),
                piece(".data", DATA, &data),
            ],
            symbols: vec![
                symbol(name, BASE),
                symbol("context_entered_x", BASE + code.len() as u64),
                symbol(STUBS, STUB),
                symbol(LATE[0], DATA + 32),
                symbol(LATE[1], DATA + 64),
            ],
            ..Image::default()
        };
        prove(&image, &[BASE..BASE + text.len() as u64, STUB..STUB + stubs.len() as u64])
    }

    /// mov gs:[0x18], rsp; push rax; mov gs:[0], rcx; inc dword [rcx]
    const GOOD: [u8; 21] = [
        0x65, 0x48, 0x8b, 0x24, 0x25, 0x18, 0, 0, 0, 0x50, 0x65, 0x48, 0x8b, 0x0c, 0x25, 0, 0, 0,
        0, 0xff, 0x01,
    ];

    #[track_caller]
    fn refused(code: &[u8], why: &str) {
        match prove_entry(code) {
            Err(broken) => assert!(broken.what.contains(why), "{broken:?}"),
            Ok(proved) => panic!("not refused: {proved:?}"),
        }
    }

    #[test]
    fn an_entry_that_keeps_to_its_own() {
        let proved = prove_entry(&GOOD).expect("good").expect("an entry");
        // Four instructions, and an int3 in each stub.
        let instructions = 4 + 256;
        assert_eq!(proved, Proved { calls: 1, vectors: 256, instructions, ..Proved::default() });
    }

    /// An entry that may hit any instruction, or a way out, keeps to the same rules.
    #[test]
    fn every_kind_of_path_is_walked() {
        // jmp *rax: no path may hold it.
        let code = [GOOD.as_slice(), &[0xff, 0xe0]].concat();
        for name in ["syscall_entry_x", "paranoid_2", "context_left_x"] {
            match prove_named(name, &code) {
                Err(broken) => assert!(broken.what.contains("indirectly"), "{broken:?}"),
                Ok(proved) => panic!("{name}: not refused: {proved:?}"),
            }
        }
        let proved = prove_named("paranoid_2", &GOOD).expect("good").expect("an entry");
        assert_eq!((proved.calls, proved.paranoid, proved.exits), (0, 1, 0));
        let proved = prove_named("context_left_x", &GOOD).expect("good").expect("an exit");
        assert_eq!((proved.calls, proved.paranoid, proved.exits), (0, 0, 1));
    }

    #[test]
    fn each_rule_is_needed() {
        refused(&GOOD[9..], "memory"); // push before the stack is loaded
        refused(&[GOOD.as_slice(), &[0x8b, 0x02]].concat(), "memory"); // mov [rdx], eax
        // mov [rcx], rcx; mov [rcx], eax: what memory says is no place of its own
        refused(&[GOOD.as_slice(), &[0x48, 0x8b, 0x09, 0x8b, 0x01]].concat(), "memory");
        refused(&[GOOD.as_slice(), &[0xff, 0xe0]].concat(), "indirectly"); // jmp *rax
        refused(&[GOOD.as_slice(), &[0xff, 0xd0]].concat(), "indirectly"); // call *rax
        refused(&[GOOD.as_slice(), &[0xe8, 0, 0x10, 1, 0]].concat(), "outside entry text"); // call
        refused(&[GOOD.as_slice(), &[0x0f, 0x84, 0, 0x10, 1, 0]].concat(), "outside"); // je
    }

    /// Where the shadow stack is the CPU itself says.
    #[test]
    fn a_shadow_stack_is_as_good_as_a_stack() {
        let clear = [0xf3, 0x0f, 0xae, 0x30]; // clrssbsy [rax]
        let read = [0xf3, 0x48, 0x0f, 0x1e, 0xc8]; // rdsspq rax
        assert!(prove_entry(&[GOOD.as_slice(), &read, &clear].concat()).is_ok());
        refused(&[GOOD.as_slice(), &clear].concat(), "memory");
    }

    #[test]
    fn fixed_addresses_must_stay() {
        let load = |at: u64| {
            let mut code = GOOD.to_vec();
            // mov eax, [at]
            code.extend([0x8b, 0x04, 0x25]);
            code.extend(u32::try_from(at).expect("low").to_le_bytes());
            code
        };
        assert!(prove_entry(&load(DATA)).is_ok());
        refused(&load(DATA + 32), "memory"); // late text
        refused(&load(0x10_0000), "memory"); // not in the image
    }

    #[test]
    fn images_of_others_are_left_alone() {
        assert_eq!(prove(&Image::default(), &[]).ok(), Some(None));
    }
}
