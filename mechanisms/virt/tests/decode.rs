//! The decoder against another one, on random bytes: where it knows an instruction, length, memory
//! operand and immediate are the same; nothing makes it panic.

use iced_x86::{Decoder, DecoderOptions, OpKind, Register};
use proptest::prelude::*;
use virt::decode::{DecodeError, Instruction, Rm, decode};
use virt::regs::CodeSize;

fn bits(code: CodeSize) -> u32 {
    match code {
        CodeSize::Bits16 => 16,
        CodeSize::Bits32 => 32,
        CodeSize::Bits64 => 64,
    }
}

fn gpr(register: Register) -> Option<u8> {
    register.is_gpr().then(|| register.number() as u8)
}

fn compare(bytes: &[u8], code: CodeSize) -> Result<(), String> {
    let mut decoder = Decoder::with_ip(bits(code), bytes, 0, DecoderOptions::AMD);
    let theirs = decoder.decode();
    let ours = match decode(bytes, code) {
        Ok(ours) => ours,
        Err(DecodeError::Unknown) => return Ok(()),
        Err(DecodeError::Short) => {
            let wants_more = decoder.last_error() == iced_x86::DecoderError::NoMoreBytes;
            let is_short = wants_more || is_refused_whole(bytes, code);
            return if is_short { Ok(()) } else { Err("is not too short".into()) };
        }
    };
    if theirs.is_invalid() {
        // What the other one refuses and the CPU would, too, never reaches an emulator.
        return Ok(());
    }
    if theirs.len() != usize::from(ours.len) {
        return Err(format!("{} bytes, not {}: {theirs}", ours.len, theirs.len()));
    }
    memory(&theirs, &ours)
}

/// Whether the other one refuses the instruction that begins so: it does not ask for its rest.
fn is_refused_whole(bytes: &[u8], code: CodeSize) -> bool {
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().max(15), 0);
    let mut decoder = Decoder::with_ip(bits(code), &whole, 0, DecoderOptions::AMD);
    let is_invalid = decoder.decode().is_invalid();
    is_invalid && decoder.last_error() == iced_x86::DecoderError::InvalidInstruction
}

fn memory(theirs: &iced_x86::Instruction, ours: &Instruction) -> Result<(), String> {
    let Some(Rm::Memory(m)) = ours.rm else { return Ok(()) };
    let has_memory = (0..theirs.op_count()).any(|n| theirs.op_kind(n) == OpKind::Memory);
    if !has_memory {
        return Ok(());
    }
    let base = theirs.memory_base();
    let rip = matches!(base, Register::RIP | Register::EIP);
    let mut same = rip == m.rip_relative;
    if !rip {
        same &= gpr(base) == m.base;
        let end = theirs.memory_displacement64();
        let width = u32::from(ours.address) * 8;
        let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        same &= end & mask == m.displacement as u64 & mask;
    }
    let scale = theirs.memory_index_scale().trailing_zeros() as u8;
    same &= gpr(theirs.memory_index()) == m.index.map(|(index, _)| index);
    same &= m.index.is_none_or(|(_, shift)| shift == scale);
    let segment = match theirs.memory_segment() {
        Register::ES => 0,
        Register::CS => 1,
        Register::SS => 2,
        Register::DS => 3,
        Register::FS => 4,
        _ => 5,
    };
    // In 64-bit mode only FS and GS count.
    same &= ours.address == 8 || segment == m.segment || segment < 4 && m.segment < 4;
    if same { Ok(()) } else { Err(format!("{m:?}, not {theirs}")) }
}

/// Every opcode that is known, with every ModRM byte, under every prefix and size.
#[test]
fn every_form() {
    let prefixes: [&[u8]; 8] =
        [&[], &[0x66], &[0x67], &[0x48], &[0x41], &[0x46], &[0x4f], &[0x66, 0x67, 0x64]];
    let mut known = 0;
    for code in [CodeSize::Bits16, CodeSize::Bits32, CodeSize::Bits64] {
        for prefix in prefixes.iter().filter(|p| {
            code == CodeSize::Bits64 || p.first().is_none_or(|byte| byte & 0xf0 != 0x40)
        }) {
            for opcode in 0..512u32 {
                for modrm in 0..=255u8 {
                    let mut bytes = prefix.to_vec();
                    if opcode > 255 {
                        bytes.push(0x0f);
                    }
                    bytes.extend([opcode as u8, modrm, 0x25, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85]);
                    bytes.resize(15, 0x17);
                    known += usize::from(decode(&bytes, code).is_ok());
                    if let Err(why) = compare(&bytes, code) {
                        panic!("{code:?} {bytes:02x?}: {why}");
                    }
                }
            }
        }
    }
    assert!(known > 100_000, "{known} forms were known");
}

/// Every opcode with every ModRM byte, and nothing or too little behind it.
#[test]
fn every_end() {
    for code in [CodeSize::Bits16, CodeSize::Bits32, CodeSize::Bits64] {
        for opcode in 0..512u32 {
            for modrm in 0..=255u8 {
                let escape: &[u8] = if opcode > 255 { &[0x0f] } else { &[] };
                let bytes = [escape, &[opcode as u8, modrm, 0x25, 0x80, 0x81]].concat();
                for len in 0..=bytes.len() {
                    if let Err(why) = compare(&bytes[..len], code) {
                        panic!("{code:?} {:02x?}: {why}", &bytes[..len]);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..16), size in 0..3usize) {
        let code = [CodeSize::Bits16, CodeSize::Bits32, CodeSize::Bits64][size];
        if let Err(why) = compare(&bytes, code) {
            panic!("{code:?} {bytes:02x?}: {why}");
        }
    }
}
