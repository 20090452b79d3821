//! Bytes beside words: every byte table of the crate is decoded by somebody else's disassembler.

use iced_x86::{Decoder, DecoderOptions, Formatter as _, GasFormatter};
use text_patching::kcfi::{self, BODY_KCFI, BODY_OPT, Check, Form, HEAD_OFF};
use text_patching::site_table::{BranchEntry, CallEntry};
use text_patching::static_call::{self, Target};
use text_patching::tail::{self, BranchKind, Shape, Via};
use text_patching::{What, fineibt, jump_label, preamble};

const AT: u64 = 0xffff_ffff_8100_0000;

/// One line per instruction.
fn words(at: u64, bytes: &[u8]) -> Vec<String> {
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    let mut formatter = GasFormatter::new();
    formatter.options_mut().set_branch_leading_zeros(false);
    let mut lines = Vec::new();
    while decoder.can_decode() {
        let mut line = String::new();
        formatter.format(&decoder.decode(), &mut line);
        lines.push(line);
    }
    lines
}

fn check(form: Form) -> Check {
    Check { hash: 0x56e5_b5a5, disp: -15, register: 11, form }
}

#[test]
fn the_compilers_check() {
    let bytes = kcfi::encode(&check(Form::Kcfi));
    let golden = [0x41, 0xba, 0x5b, 0x4a, 0x1a, 0xa9, 0x45, 3, 0x53, 0xf1, 0x74, 2, 0x0f, 0x0b];
    assert_eq!(bytes, golden);
    assert_eq!(
        words(0, &bytes),
        ["mov $0xA91A4A5B,%r10d", "add -0xF(%r11),%r10d", "je 0xE", "ud2"]
    );
    assert_eq!(words(10, &BODY_KCFI), ["je 0xE", "ud2"]);
}

#[test]
fn the_optimised_check_traps_inside_the_test() {
    let bytes = kcfi::encode(&check(Form::Opt));
    let lines = words(0, &bytes);
    assert_eq!(lines[2..], ["jne 0xD", "test $0xD6,%al"]);
    assert_eq!(words(10, &BODY_OPT), ["jne 0xD", "test $0xD6,%al"]);
    // The jne lands on the last byte, which is UDB.
    assert_eq!(bytes[usize::try_from(kcfi::TRAP_UDB).unwrap()], 0xd6);
}

#[test]
fn the_check_that_is_off() {
    assert_eq!(words(0, &HEAD_OFF), ["jmp 0xE"]);
    assert_eq!(kcfi::encode(&check(Form::Off))[..2], HEAD_OFF);
}

#[test]
fn other_registers() {
    let text = |register| {
        let bytes = kcfi::encode(&Check { register, ..check(Form::Kcfi) });
        words(0, &bytes)[..2].join("; ")
    };
    assert_eq!(text(1), "mov $0xA91A4A5B,%r10d; add -0xF(%rcx),%r10d");
    assert_eq!(text(10), "mov $0xA91A4A5B,%r11d; add -0xF(%r10),%r11d");
    assert_eq!(text(15), "mov $0xA91A4A5B,%r10d; add -0xF(%r15),%r10d");
}

#[test]
fn tails() {
    let thunk = AT + 0x1000;
    let text = |kind, len, via| {
        let code = tail::encode(AT, Shape { kind, len }, via, thunk).unwrap();
        assert_eq!(code.len(), usize::from(len));
        words(AT, code.as_slice()).join("; ")
    };
    let call = "call 0xFFFFFFFF81001000";
    let jump = "jmp 0xFFFFFFFF81001000";
    assert!(text(BranchKind::Call, 6, Via::Thunk).ends_with(call));
    assert_eq!(text(BranchKind::Call, 5, Via::Thunk), call);
    assert!(text(BranchKind::Jump, 6, Via::Thunk).ends_with(jump));
    assert_eq!(text(BranchKind::Jump, 5, Via::Thunk), jump);
    assert!(text(BranchKind::Call, 6, Via::Direct).ends_with("call *%r11"));
    assert!(text(BranchKind::Call, 5, Via::Direct).ends_with("call *%r11"));
    assert_eq!(text(BranchKind::Jump, 6, Via::Direct), "jmp *%r11; int3; int3; int3");
    assert_eq!(text(BranchKind::Jump, 5, Via::Direct), "jmp *%r11; int3; int3");
    let counted = Via::Counted { call: AT + 0x1000, jump: AT + 0x2000 };
    assert!(text(BranchKind::Call, 6, counted).ends_with(call));
    assert_eq!(text(BranchKind::Call, 5, counted), call);
    assert!(text(BranchKind::Jump, 6, counted).ends_with("jmp 0xFFFFFFFF81002000"));
    assert_eq!(text(BranchKind::Jump, 5, counted), "jmp 0xFFFFFFFF81002000");
    assert_eq!(text(BranchKind::Call, 6, Via::Lfence), "lfence; call *%r11");
    assert_eq!(text(BranchKind::Jump, 6, Via::Lfence), "lfence; jmp *%r11");
}

#[test]
fn static_branches_and_calls() {
    let branch =
        BranchEntry { site: AT, target: AT - 0x100, key: 7, likely: false, ro_after_init: false };
    let text = |enabled| words(AT, jump_label::encode(&branch, enabled).unwrap().as_slice());
    assert_eq!(text(false), ["nopl (%rax,%rax)"]);
    assert_eq!(text(true), ["jmp 0xFFFFFFFF80FFFF00"]);

    let text = |tail, target| {
        let entry = CallEntry { site: AT, key: 0, tail, dynamic: false };
        words(AT, static_call::encode(&entry, target).unwrap().as_slice()).join("; ")
    };
    assert_eq!(text(false, Target::Function(AT)), "call 0xFFFFFFFF81000000");
    assert_eq!(text(true, Target::Function(AT)), "jmp 0xFFFFFFFF81000000");
    assert_eq!(text(false, Target::Nothing), "nopl (%rax,%rax)");
    assert_eq!(text(true, Target::Nothing), "ret; int3; int3; int3; int3");
    assert!(text(false, Target::Return(0)).ends_with("xor %eax,%eax"));
    assert_eq!(text(true, Target::Return(0)), "xor %eax,%eax; ret; int3; int3");
    assert_eq!(text(false, Target::Return(-95)), "mov $0xFFFFFFA1,%eax");
    let tail = CallEntry { site: AT, key: 0, tail: true, dynamic: false };
    let refused = static_call::encode(&tail, Target::Return(-95)).unwrap_err();
    assert_eq!(refused.what, What::NoRoom, "no tail site returns a value");
    assert_eq!(words(0, &static_call::SIGNATURE), ["ud1 %esp,%ecx"]);
}

#[test]
fn the_callers_and_the_landing_pad_of_fineibt() {
    let hash = 0x56e5_b5a5;
    let caller = words(0, &fineibt::caller(hash));
    assert_eq!(caller, ["mov $0x56E5B5A5,%eax", "lea -0x10(%r11),%r11", "nopl (%rax,%rax)"]);
    assert_eq!(kcfi::encode(&check(Form::FineIbt)), fineibt::caller(hash));
    let pad = fineibt::landing_pad(hash);
    let expected =
        ["endbr64", "sub $0x56E5B5A5,%eax", "jne 0xFFFFFFFFFFFFFFFF", "nopl -0x2A(%rax,%rax)"];
    assert_eq!(words(0u64.wrapping_sub(16), &pad), expected);
    // Where the jne leads is the last byte before the function: UDB.
    assert_eq!(pad[16 - usize::try_from(fineibt::TRAP).unwrap()], 0xd6);
    let at = usize::try_from(16 + i64::from(fineibt::HASH)).unwrap();
    assert_eq!(pad[at..at + 4], hash.to_le_bytes());
}

#[test]
fn preambles() {
    assert_eq!(words(0, &preamble::ENDBR64.to_le_bytes()), ["endbr64"]);
    assert_eq!(words(0, &[0xb8, 1, 0, 0, 0]), ["mov $1,%eax"]);
    assert_eq!(preamble::address(0x1010, -15), 0x1000);
}
