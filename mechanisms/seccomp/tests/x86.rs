//! The compiled bytes, read by somebody else's disassembler: what they are, and what they are not.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, OpKind, Register};
use seccomp::compile::CODE_MAX;
use seccomp::{Insn, Program};

const fn plain(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}
const END: Insn = plain(0x16, 0);

fn code(filter: &[Insn], key: u32) -> Vec<u8> {
    let program = Program::check(filter).expect("a filter");
    program.compile(key).expect("a small filter").bytes().to_vec()
}

fn decode(bytes: &[u8]) -> Vec<iced_x86::Instruction> {
    let instructions: Vec<_> =
        Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).into_iter().collect();
    assert!(instructions.iter().all(|instruction| !instruction.is_invalid()));
    instructions
}

fn words(filter: &[Insn]) -> Vec<String> {
    let bytes = code(filter, 1);
    let mut formatter = GasFormatter::new();
    let text = |instruction: &iced_x86::Instruction| {
        let mut text = String::new();
        formatter.format(instruction, &mut text);
        text
    };
    decode(&bytes).iter().map(text).collect()
}

#[test]
fn golden() {
    let load = plain(0x20, 16);
    let one = |instruction| words(&[load, instruction, END]);
    let end = ["ret", "int3", "int3", "int3", "int3"];
    let cases: [(Insn, &[&str]); 10] = [
        (plain(0x04, 5), &["add $5,%eax"]),
        (plain(0x14, 0x1234), &["sub $0x1234,%eax"]),
        (plain(0x54, 0xffff_fff0), &["and $0xFFFFFFF0,%eax"]),
        (plain(0x24, 3), &["mov $3,%edx", "imul %edx,%eax"]),
        (plain(0x34, 3), &["mov $3,%r8d", "xor %edx,%edx", "div %r8d"]),
        (plain(0x64, 7), &["shl $7,%eax"]),
        (plain(0x74, 31), &["shr $0x1F,%eax"]),
        (plain(0x84, 0), &["neg %eax"]),
        (plain(0x07, 0), &["mov %eax,%ecx"]),
        (plain(0x05, 0), &[]),
    ];
    for (instruction, wanted) in cases {
        let all = [&["mov 0x10(%rdi),%eax"], wanted, &end].concat();
        assert_eq!(one(instruction), all, "{instruction:?}");
    }
    let branch = Insn { code: 0x15, jt: 0, jf: 1, k: 39 };
    let filter = [plain(0x20, 0), branch, plain(0x06, 1), plain(0x06, 0)];
    let wanted = [
        "mov (%rdi),%eax",
        "cmp $0x27,%eax",
        "jne 0x0000000000000012",
        "mov $1,%eax",
        "ret",
        "int3",
        "int3",
        "int3",
        "int3",
        "xor %eax,%eax",
        "ret",
        "int3",
        "int3",
        "int3",
        "int3",
    ];
    assert_eq!(words(&filter), wanted);
    let memory = [plain(0x02, 15), plain(0x61, 15), plain(0x16, 0)];
    let wanted = [
        "push %rbp",
        "mov %rsp,%rbp",
        "sub $0x40,%rsp",
        "xor %eax,%eax",
        "mov %eax,-4(%rbp)",
        "mov -4(%rbp),%ecx",
        "leave",
        "ret",
        "int3",
        "int3",
        "int3",
        "int3",
    ];
    assert_eq!(words(&memory), wanted);
}

/// All that a filter may do, in one; `k` is its constants.
fn everything(k: u32) -> Vec<Insn> {
    let mut filter = vec![plain(0x20, 0), plain(0x02, 0), plain(0x03, 1), plain(0x60, 0)];
    for code in [0x00, 0x01, 0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0xa4] {
        filter.push(plain(code, k));
    }
    for code in [0x0c, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c, 0x6c, 0x7c, 0xac, 0x84, 0x07, 0x87, 0x61] {
        filter.push(plain(code, 0));
    }
    for code in [0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d] {
        filter.push(Insn { code, jt: 1, jf: 2, k });
        filter.extend([plain(0x06, k), plain(0x84, 0)]);
    }
    filter.extend([plain(0x84, 0), plain(0x06, k)]);
    filter
}

/// Nothing but straight lines and jumps within, and no memory but the data and the frame.
#[test]
fn code_keeps_to_itself() {
    for k in [1, 300, 0x1234_5678] {
        let bytes = code(&everything(k), 5);
        let instructions = decode(&bytes);
        let starts: Vec<u64> = instructions.iter().map(iced_x86::Instruction::ip).collect();
        for instruction in &instructions {
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::Return | FlowControl::Interrupt => {}
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target();
                    assert!(target > instruction.ip() && starts.contains(&target));
                }
                other => panic!("{other:?} at {:#x}", instruction.ip()),
            }
            for operand in 0..instruction.op_count() {
                if instruction.op_kind(operand) != OpKind::Memory {
                    continue;
                }
                let disp = instruction.memory_displacement64().cast_signed();
                match (instruction.memory_base(), instruction.memory_index(), operand) {
                    (Register::RDI, Register::None, 1) => assert!((0..=60).contains(&disp)),
                    (Register::RBP, Register::None, _) => assert!((-64..=-4).contains(&disp)),
                    other => panic!("{other:?} at {:#x}", instruction.ip()),
                }
            }
        }
    }
}

/// What a program could put into kernel text: nothing of its choice that is longer than two bytes.
#[test]
fn constants_are_blinded() {
    for k in [0x1234_5678, 0x0001_0000, 0xc000_003e, 0x7fff_0000, 0xb812_3456] {
        let filter = everything(k);
        let has = |bytes: &[u8], k: u32| bytes.windows(4).any(|four| four == k.to_le_bytes());
        let (one, two) = (code(&filter, 1), code(&filter, 2));
        for bytes in [&one, &two] {
            assert!(!has(bytes, k) && !has(bytes, k.wrapping_neg()) && !has(bytes, !k), "{k:#x}");
        }
        assert_eq!(one.len(), two.len());
        assert_ne!(one, two, "the key changes nothing");
        assert_eq!(one, code(&filter, 1));
    }
    // One constant, twice: not blinded by the same number.
    let bytes = code(&[plain(0x00, 0x1234_5678), plain(0x01, 0x1234_5678), plain(0x87, 0), END], 1);
    let code = decode(&bytes);
    let is_constant = |i: &&iced_x86::Instruction| i.op1_kind() == OpKind::Immediate32;
    let constants = code.iter().filter(|i| i.op_count() == 2).filter(is_constant);
    let constants: Vec<u32> = constants.map(iced_x86::Instruction::immediate32).collect();
    let [a, b, c, d] = constants[..] else { panic!("{constants:x?}") };
    assert_eq!([a ^ b, c ^ d], [0x1234_5678; 2]);
    assert_ne!(a, c);
}

#[test]
fn code_that_is_too_long_is_not_made() {
    let mut filter = vec![plain(0x34, 0x1234_5678); 4095];
    filter.push(END);
    let program = Program::check(&filter).expect("a filter");
    assert!(program.compile(1).is_none());
    let mut filter = vec![plain(0x34, 0x1234_5678); CODE_MAX / 18 - 2];
    filter.push(END);
    let program = Program::check(&filter).expect("a filter");
    let len = program.compile(1).expect("just so").bytes().len();
    assert!(len <= CODE_MAX && len > CODE_MAX - 64, "{len}");
}
