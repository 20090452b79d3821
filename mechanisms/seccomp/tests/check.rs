//! Every rule of the check, both ways, and the meaning of what has no operands.
//! (That Linux has the same rules is tested in `guest/seccomp_native`.)

use seccomp::check::INSNS_MAX;
use seccomp::{Data, Insn, Invalid, Program, action};

const fn plain(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}
const fn jump(code: u16, jt: u8, jf: u8) -> Insn {
    Insn { code, jt, jf, k: 0 }
}
const END: Insn = plain(0x16, 0);

fn refused(filter: &[Insn]) -> Option<Invalid> {
    Program::check(filter).err()
}

fn result(filter: &[Insn]) -> u32 {
    let data = Data::new(7, 0, 0, [0; 6]);
    Program::check(filter).expect("a filter").run(&data)
}

#[test]
fn lengths_and_ends() {
    assert_eq!(refused(&[]), Some(Invalid::Length));
    assert_eq!(refused(&vec![END; INSNS_MAX]), None);
    assert_eq!(refused(&vec![END; INSNS_MAX + 1]), Some(Invalid::Length));
    assert_eq!(refused(&[END, plain(0x07, 0)]), Some(Invalid::NoReturn));
    assert_eq!(refused(&[plain(0x06, 9)]), None);
}

#[test]
fn loads() {
    for k in (0..64).step_by(4) {
        assert_eq!(refused(&[plain(0x20, k), END]), None);
    }
    for k in [1, 2, 3, 62, 64, 68, 1024, u32::MAX, 0xffff_f000] {
        assert_eq!(refused(&[plain(0x20, k), END]), Some(Invalid::Offset), "{k}");
    }
    // Halves, bytes, and loads relative to X are for packets.
    for code in [0x28, 0x30, 0x40, 0x48, 0x50, 0xb1] {
        assert_eq!(refused(&[plain(code, 0), END]), Some(Invalid::Code), "{code:#x}");
    }
    assert_eq!(result(&[plain(0x20, 0), END]), 7);
    assert_eq!(result(&[plain(0x80, 0), END]), 64);
    assert_eq!(result(&[plain(0x81, 0), plain(0x87, 0), END]), 64);
}

#[test]
fn constants() {
    let rule = |code, k| refused(&[plain(code, k), END]);
    assert_eq!(rule(0x34, 0), Some(Invalid::Operand));
    assert_eq!(rule(0x34, 1), None);
    for code in [0x64, 0x74] {
        assert_eq!(rule(code, 31), None);
        assert_eq!(rule(code, 32), Some(Invalid::Operand));
        // By X anything goes, modulo 32.
        assert_eq!(rule(code | 8, 32), None);
    }
    for code in [0x02, 0x03] {
        assert_eq!(rule(code, 15), None);
        assert_eq!(rule(code, 16), Some(Invalid::Offset));
    }
    // The remainder, and what nobody has.
    for code in [0x94, 0x9c, 0xb4, 0xc4, 0x55, 0x0e, 0x17, 0x100, 0xffff] {
        assert_eq!(rule(code, 1), Some(Invalid::Code), "{code:#x}");
    }
}

#[test]
fn jumps() {
    let out = Some(Invalid::Jump);
    assert_eq!(refused(&[plain(0x05, 0), END]), None);
    for k in [1, 2, 0xffff, 0x1_0000, 0x8000_0000, u32::MAX] {
        assert_eq!(refused(&[plain(0x05, k), END]), out, "{k}");
    }
    assert_eq!(refused(&[plain(0x05, 1), END, END]), None);
    for code in [0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d] {
        assert_eq!(refused(&[jump(code, 1, 0), END, END]), None);
        assert_eq!(refused(&[jump(code, 0, 1), END, END]), None);
        assert_eq!(refused(&[jump(code, 2, 0), END, END]), out);
        assert_eq!(refused(&[jump(code, 0, 255), END, END]), out);
    }
}

#[test]
fn memory_is_read_only_where_it_was_written() {
    let unwritten = Some(Invalid::Unwritten);
    for load in [0x60, 0x61] {
        assert_eq!(refused(&[plain(load, 3), END]), unwritten);
        assert_eq!(refused(&[plain(0x02, 3), plain(load, 3), END]), None);
        assert_eq!(refused(&[plain(0x03, 3), plain(load, 4), END]), unwritten);
        // On one way only.
        assert_eq!(refused(&[jump(0x15, 1, 0), plain(0x02, 3), plain(load, 3), END]), unwritten);
        // On both.
        let both =
            [jump(0x15, 2, 0), plain(0x02, 3), plain(0x05, 1), plain(0x03, 3), plain(load, 3), END];
        assert_eq!(refused(&both), None);
        // Nobody comes there.
        assert_eq!(refused(&[plain(0x05, 1), plain(load, 3), END]), None);
        assert_eq!(refused(&[END, plain(load, 3), END]), unwritten);
    }
}

#[test]
fn a_division_by_zero_kills_the_thread() {
    let filter = [plain(0x00, 5), plain(0x3c, 0), plain(0x06, 0x7fff_0000)];
    let program = Program::check(&filter).expect("a filter");
    assert_eq!(program.run(&Data::default()), action::KILL_THREAD);
}

/// A pseudo-random mess of bytes is refused or runs; it never panics.
#[test]
fn any_bytes() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut legal = 0;
    for _ in 0..200_000 {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut filter = vec![Insn::from_bytes(next().to_le_bytes())];
        filter.extend((0..next() % 3).map(|_| {
            let [code, jt, k, ..] = next().to_le_bytes();
            Insn { code: code.into(), jt: jt % 4, jf: 0, k: k.into() }
        }));
        filter.push(END);
        if let Ok(program) = Program::check(&filter) {
            legal += 1;
            _ = program.run(&Data::default());
        }
    }
    assert!(legal > 0);
}

#[test]
fn calls_that_are_always_allowed() {
    const ARCH: u32 = 0xc000_003e;
    const ALLOW: Insn = plain(0x06, action::ALLOW);
    const REFUSE: Insn = plain(0x06, action::ERRNO);
    let program = |insns: &[Insn]| Program::check(insns).expect("a filter");
    let number = plain(0x20, 0);
    let is = |k, jt, jf| Insn { code: 0x15, jt, jf, k };
    assert!(program(&[ALLOW]).always_allows(1, ARCH));
    assert!(!program(&[REFUSE]).always_allows(1, ARCH));
    // By number, and by architecture.
    let one = program(&[number, is(7, 0, 1), ALLOW, REFUSE]);
    assert!(one.always_allows(7, ARCH) && !one.always_allows(8, ARCH));
    let native = program(&[plain(0x20, 4), is(ARCH, 1, 0), REFUSE, ALLOW]);
    assert!(native.always_allows(7, ARCH) && !native.always_allows(7, 3));
    // What looks at an argument or the address, even to allow it either way, is asked each time.
    for offset in [8, 12, 16, 60] {
        let looks = program(&[number, is(7, 0, 2), plain(0x20, offset), ALLOW, REFUSE]);
        assert!(!looks.always_allows(7, ARCH), "{offset}");
    }
    // An answer that is computed.
    let computed = program(&[plain(0x00, action::ALLOW), plain(0x16, 0)]);
    assert!(computed.always_allows(7, ARCH));
    // Logged calls are allowed, and not without a word.
    assert!(!program(&[plain(0x06, action::LOG)]).always_allows(7, ARCH));
}
