//! Walks the instructions of an image and names every branch that kCFI is about.
//!
//! Byte patterns lie: `41 ff d3` may be half of an immediate. So every executable piece is decoded
//! instruction by instruction, started afresh at every symbol (functions are bounded by symbols,
//! and an assembly label is an instruction boundary too). A check is recognised as a whole, all 14
//! bytes, by the decoder that the kernel itself uses, and what follows it is judged as checked only
//! if it is the very next instruction and branches to the register that was checked.
//!
//! What this cannot see: code that is reached by jumping into the middle of an instruction, and
//! tables inside text that no symbol marks; bytes that decode to nothing are counted.

use std::collections::BTreeMap;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use text_patching::kcfi::{self, CHECK_LEN, Check};

use crate::elf::{Image, Piece};

/// The opcode of UDB.
const UDB_BYTE: u64 = 0xd6;
/// The first byte of UD2, and UD2 as a word.
const UD2_BYTES: [u64; 2] = [0x0f, 0x0b0f];
/// How far apart a handler's comparisons with the two opcodes may be, in bytes.
const HANDLER_MAX: u64 = 256;

/// What an unchecked indirect branch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BranchKind {
    /// `call *%reg`.
    CallRegister,
    /// `jmp *%reg`.
    JumpRegister,
    /// `call *mem`.
    CallMemory,
    /// `jmp *mem`.
    JumpMemory,
    /// `call *foo@GOTPCREL(%rip)` or a jump of that kind.
    Got,
    /// `call __x86_indirect_thunk_*`.
    ThunkCall,
    /// `jmp __x86_indirect_thunk_*`.
    ThunkJump,
    /// `jcc __x86_indirect_thunk_*`: the compiler has dropped the check.
    ThunkJcc,
    /// A far call or jump.
    Far,
}

impl BranchKind {
    /// How the report calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CallRegister => "call *reg",
            Self::JumpRegister => "jmp *reg",
            Self::CallMemory => "call *mem",
            Self::JumpMemory => "jmp *mem",
            Self::Got => "via GOT",
            Self::ThunkCall => "call thunk",
            Self::ThunkJump => "jmp thunk",
            Self::ThunkJcc => "jcc thunk",
            Self::Far => "far",
        }
    }

    /// Whether it goes through a thunk.
    #[must_use]
    pub const fn is_thunk(self) -> bool {
        matches!(self, Self::ThunkCall | Self::ThunkJump | Self::ThunkJcc)
    }
}

/// An indirect branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Address of the instruction, prefixes included.
    pub at: u64,
    /// Its length in bytes.
    pub len: u8,
    /// What it is.
    pub kind: BranchKind,
    /// Start of the check right in front of it.
    pub check: Option<u64>,
}

/// A near call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Where a return of what it calls leads.
    pub behind: u64,
    /// What it calls, if it says so itself.
    pub target: Option<u64>,
}

/// What the walk found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Checks by address.
    pub checks: BTreeMap<u64, Check>,
    /// Indirect branches, in address order.
    pub branches: Vec<Branch>,
    /// Addresses that instructions compute relative to RIP without reading them (`lea`).
    pub lea_targets: Vec<u64>,
    /// Targets of direct calls and jumps with the address of the instruction: `(at, target)`.
    pub direct: Vec<(u64, u64)>,
    /// Targets of direct calls and jumps right behind a check of r11: the thunk, under any name.
    pub behind_checks: Vec<u64>,
    /// Near returns.
    pub returns: Vec<u64>,
    /// Near calls.
    pub calls: Vec<Call>,
    /// Comparisons with 0xd6, the opcode of UDB.
    pub udb_compares: Vec<u64>,
    /// Comparisons with the first byte of UD2 or with both.
    pub ud2_compares: Vec<u64>,
    /// Bytes that decode to no instruction.
    pub undecodable: u64,
    /// Instructions seen.
    pub instructions: u64,
}

impl Scan {
    /// Whether some code tells UDB from UD2, as a #UD handler that knows both must. A guess: it
    /// looks for comparisons with both opcodes near each other.
    #[must_use]
    pub fn knows_udb(&self) -> bool {
        self.udb_compares.iter().any(|&at| {
            let first =
                self.ud2_compares.partition_point(|&ud2| ud2.saturating_add(HANDLER_MAX) < at);
            self.ud2_compares.get(first).is_some_and(|&ud2| ud2 < at.saturating_add(HANDLER_MAX))
        })
    }
}

/// The instruction at `at`, if there is one.
pub(crate) fn decode(image: &Image<'_>, at: u64) -> Option<Instruction> {
    let bytes = image.piece_at(at).filter(|piece| piece.executable)?.from(at)?;
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// `__x86_indirect_thunk_*` by address.
pub type Thunks<'a> = BTreeMap<u64, &'a str>;

/// The image's indirect thunks.
#[must_use]
pub fn thunks<'a>(image: &Image<'a>) -> Thunks<'a> {
    let is_thunk =
        |name: &str| name.starts_with("__x86_indirect_thunk_") && !name.ends_with("_array");
    let thunks = image.symbols.iter().filter(|symbol| is_thunk(symbol.name));
    thunks.map(|symbol| (symbol.address, symbol.name)).collect()
}

/// The thunk of an image without symbols: where most of the calls behind checks go.
#[must_use]
pub fn infer_thunk(scan: &Scan) -> Thunks<'static> {
    let mut counts = BTreeMap::new();
    for &target in &scan.behind_checks {
        *counts.entry(target).or_insert(0_usize) += 1;
    }
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    most.map(|(target, _)| (target, "__x86_indirect_thunk_r11")).into_iter().collect()
}

/// Walks all executable pieces.
#[must_use]
pub fn scan(image: &Image<'_>, thunks: &Thunks<'_>) -> Scan {
    let starts: Vec<u64> = image.symbol_addresses().into_keys().collect();
    let got: Vec<_> = image.pieces.iter().filter(|p| p.name.starts_with(".got")).collect();
    let in_got = |address: u64| got.iter().any(|p| (p.address..p.end()).contains(&address));
    let mut scan = Scan::default();
    for piece in image.text() {
        walk_piece(piece, &starts, thunks, &in_got, &mut scan);
    }
    scan.lea_targets.sort_unstable();
    scan.lea_targets.dedup();
    scan
}

fn walk_piece(
    piece: &Piece<'_>,
    starts: &[u64],
    thunks: &Thunks<'_>,
    in_got: &dyn Fn(u64) -> bool,
    scan: &mut Scan,
) {
    let mut at = piece.address;
    while at < piece.end() {
        // A region ends where the next symbol begins: an instruction may not cross it.
        let next = starts.partition_point(|&start| start <= at);
        let end = starts.get(next).copied().unwrap_or(u64::MAX).min(piece.end());
        let len = usize::try_from(end - at).unwrap_or_default();
        // A check that a label cuts in two (clang names the ud2) is still a check.
        let Some(rest) = piece.from(at) else { return };
        let Some(region) = rest.get(..len) else {
            return;
        };
        at = walk_region(at, region, rest, thunks, in_got, scan).max(end);
    }
}

/// Walks one region; returns where the walk of the piece goes on.
fn walk_region(
    start: u64,
    region: &[u8],
    rest: &[u8],
    thunks: &Thunks<'_>,
    in_got: &dyn Fn(u64) -> bool,
    scan: &mut Scan,
) -> u64 {
    let mut offset = 0;
    let mut guard: Option<(u64, Check)> = None;
    let mut instruction = Instruction::default();
    while offset < rest.len() && (offset < region.len() || guard.is_some()) {
        let at = start + offset as u64;
        let Some(whole) = rest.get(offset..) else {
            break;
        };
        if let Some(check) = check_at(at, whole) {
            scan.checks.insert(at, check);
            guard = Some((at, check));
            offset += CHECK_LEN;
            continue;
        }
        // Only what belongs to a check may cross a label.
        let inside = region.get(offset..).unwrap_or_default();
        let bytes = if guard.is_some() { whole } else { inside };
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        decoder.decode_out(&mut instruction);
        let udb = bytes.first() == Some(&0xd6);
        if instruction.is_invalid() && !udb {
            scan.undecodable += 1;
            offset += 1;
            guard = None;
            continue;
        }
        let len = if udb { 1 } else { instruction.len() };
        scan.instructions += 1;
        if !udb {
            classify(&instruction, &mut guard, thunks, in_got, scan);
        }
        offset += len;
    }
    start + offset as u64
}

fn check_at(at: u64, bytes: &[u8]) -> Option<Check> {
    // Cheap first: every check begins with one of two bytes.
    if !matches!(bytes.first(), Some(0x41 | 0xeb)) {
        return None;
    }
    let bytes = bytes.first_chunk::<CHECK_LEN>()?;
    kcfi::decode(at, bytes).ok()
}

/// Files one instruction; `guard` is the check directly in front of it and is used up here.
fn classify(
    instruction: &Instruction,
    guard: &mut Option<(u64, Check)>,
    thunks: &Thunks<'_>,
    in_got: &dyn Fn(u64) -> bool,
    scan: &mut Scan,
) {
    let at = instruction.ip();
    if instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand() {
        scan.lea_targets.push(instruction.ip_rel_memory_address());
    }
    if compares_with(instruction, &[UDB_BYTE]) {
        scan.udb_compares.push(at);
    } else if compares_with(instruction, &UD2_BYTES) {
        scan.ud2_compares.push(at);
    }
    if instruction.mnemonic() == Mnemonic::Ret {
        scan.returns.push(at);
    }
    let flow = instruction.flow_control();
    if instruction.mnemonic() == Mnemonic::Call {
        let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
        let target = is_direct.then(|| instruction.near_branch_target());
        scan.calls.push(Call { behind: instruction.next_ip(), target });
    }
    let (kind, register) = match flow {
        FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            let target = instruction.near_branch_target();
            scan.direct.push((at, target));
            let conditional = flow == FlowControl::ConditionalBranch;
            if guard.is_some_and(|(_, check)| check.register == 11) && !conditional {
                scan.behind_checks.push(target);
            }
            if !thunks.contains_key(&target) {
                *guard = None;
                return;
            }
            // All thunks of a checked image are for r11; another one fails the register test.
            let r11 = thunks.get(&target).is_some_and(|name| name.ends_with("_r11"));
            (thunk_kind(flow), r11.then_some(11))
        }
        FlowControl::IndirectCall | FlowControl::IndirectBranch => indirect(instruction, in_got),
        // lfence between check and branch is one of the tail's forms.
        _ if instruction.code() == Code::Lfence => return,
        _ => {
            *guard = None;
            return;
        }
    };
    let checked = guard
        .take()
        .filter(|(_, check)| register == Some(check.register) && kind != BranchKind::ThunkJcc);
    scan.branches.push(Branch {
        at,
        len: u8::try_from(instruction.len()).unwrap_or_default(),
        kind,
        check: checked.map(|(site, _)| site),
    });
}

/// `cmp $value, ...` in any width, for one of the values.
fn compares_with(instruction: &Instruction, values: &[u64]) -> bool {
    let immediate = |operand| {
        let value = instruction.try_immediate(operand).ok()?;
        let byte = instruction.op_kind(operand) == OpKind::Immediate8;
        Some(if byte { value & 0xff } else { value })
    };
    instruction.mnemonic() == Mnemonic::Cmp
        && (0..instruction.op_count()).filter_map(immediate).any(|value| values.contains(&value))
}

fn thunk_kind(flow: FlowControl) -> BranchKind {
    match flow {
        FlowControl::Call => BranchKind::ThunkCall,
        FlowControl::ConditionalBranch => BranchKind::ThunkJcc,
        _ => BranchKind::ThunkJump,
    }
}

/// Kind of an indirect branch, and the hardware number of its register.
fn indirect(instruction: &Instruction, in_got: &dyn Fn(u64) -> bool) -> (BranchKind, Option<u8>) {
    let call = instruction.flow_control() == FlowControl::IndirectCall;
    let near = matches!(instruction.code(), Code::Call_rm64 | Code::Jmp_rm64);
    if !near {
        return (BranchKind::Far, None);
    }
    if instruction.op0_kind() == OpKind::Register {
        let number = instruction.op0_register().number();
        let kind = if call { BranchKind::CallRegister } else { BranchKind::JumpRegister };
        return (kind, u8::try_from(number).ok());
    }
    let relative = instruction.memory_base() == Register::RIP;
    if relative && in_got(instruction.ip_rel_memory_address()) {
        return (BranchKind::Got, None);
    }
    (if call { BranchKind::CallMemory } else { BranchKind::JumpMemory }, None)
}
