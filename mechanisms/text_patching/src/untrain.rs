//! Returns that a program cannot have trained, for Zen 1 to 4: sequences that untrain, and the
//! thunks that they are laid over.
//!
//! These CPUs predict a return by what lies in the branch target buffer for its address, before it
//! is decoded (AMD, "Technical guidance for mitigating branch type confusion"). So all returns of
//! the kernel are one return, at one address, and each entry takes from the buffer what a program
//! has left for that address. There are three forms:
//!
//! | Form | CPUs | Untrained by | The thunk |
//! |---|---|---|---|
//! | overlaid | Zen 1, 2 (retbleed) | `f6` before: with two bytes `test $0xcc, %bl` | ret; int3 |
//! | safe | Zen 1, 2 (SRSO) | `48 b8` before: with eight bytes `movabs` | a call, then a trap |
//! | alias | Zen 3, 4 (SRSO) | code at an address that is one to the buffer | the same, there |
//!
//! What the thunk calls is `lea 8(%rsp), %rsp; ret`. Zen 3 and 4 can have shadow stacks, where the
//! thunk's call has left its address, too: there another thunk calls what lies right before these
//! two instructions, `mov $1, %r11d; incsspq %r11`, and goes on with them. It is the same return at
//! the same address. R11 is what nobody expects anything of behind a return, which objtool proves.
//!
//! The first two execute the thunk's bytes as part of an instruction that does not branch: what was
//! predicted there is found wrong, and forgotten. The third executes something else where the
//! buffer sees the same place (AMD, "Technical update regarding speculative return stack overflow":
//! addresses that differ in bits 2, 8, 14 and 20 and in no other). In the second and third the
//! return is behind a call of the thunk's own, so that the return stack, too, predicts a trap and
//! nothing that a program has put there.
//!
//! An interrupt between that call and its return takes the prediction that the call has made: so
//! the handler makes the rest of the sequence itself ([`rest_of_return`]), on both stacks.
//!
//! objtool compares the image with these bytes, boot compares memory with them.

use crate::jump_label::JMP32;
use crate::poke::Text;
use crate::return_site::RET;

/// The bits in which two addresses that are one to the branch target buffer of Zen 3 and 4 differ.
pub const ALIAS_BITS: u64 = 1 << 2 | 1 << 8 | 1 << 14 | 1 << 20;
/// A thunk begins a line of so many bytes where it is laid over what untrains it.
pub const LINE: u64 = 64;

/// What makes the thunk's `ret; int3` a `test $0xcc, %bl`.
pub const OVERLAID_PREFIX: [u8; 1] = [0xf6];
/// ret; int3; and behind them the fence that waits for the test, lfence.
pub const OVERLAID: [u8; 5] = [0xc3, 0xcc, 0x0f, 0xae, 0xe8];
/// What makes the safe return's eight bytes the operand of a `movabs`.
pub const SAFE_PREFIX: [u8; 2] = [0x48, 0xb8];
/// lea 8(%rsp), %rsp; ret; int3; int3; and behind them lfence.
pub const SAFE: [u8; 11] = [0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3, 0xcc, 0xcc, 0x0f, 0xae, 0xe8];
/// lea 8(%rsp), %rsp; ret; int3.
pub const ALIAS_RETURN: [u8; 7] = [0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3, 0xcc];
/// mov $1, %r11d; incsspq %r11: before the alias's return where there are shadow stacks.
pub const SHADOW_FRONT: [u8; 11] = [0x41, 0xbb, 1, 0, 0, 0, 0xf3, 0x49, 0x0f, 0xae, 0xeb];
/// Where the second instruction of that is.
const SHADOW_DROP: u64 = 6;
/// A nop of two bytes, lfence. What follows is the jump to the thunk, which lies where the other
/// address has its return. It is a return of the image as all others are: plain until boot has
/// sent it where they go.
pub const ALIAS: [u8; 5] = [0x66, 0x90, 0x0f, 0xae, 0xe8];
/// Where a safe return has its return, behind the lea.
pub const SAFE_RET: u64 = 5;

/// Whether the buffer of Zen 3 and 4 takes the two addresses for one.
#[must_use]
pub const fn is_alias(a: u64, b: u64) -> bool {
    a ^ b == ALIAS_BITS
}

/// Whether one address can have the other as its alias above it, at a distance that no carry
/// changes.
#[must_use]
pub const fn has_alias_above(at: u64) -> bool {
    at & ALIAS_BITS == 0
}

/// What is left of a safe return: how many words go from each stack before the return address.
/// Until then it is the thunk's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// From the stack.
    pub words: u64,
    /// From the shadow stack, if there is one.
    pub shadow_words: u64,
}

/// What the rest of a safe return at `start` would do, if the CPU was interrupted at `rip`. `None`:
/// it was not interrupted there.
#[must_use]
pub const fn rest_of_return(start: u64, rip: u64) -> Option<Rest> {
    Some(match rip.wrapping_sub(start) {
        0 => Rest { words: 1, shadow_words: 0 },
        SAFE_RET => Rest { words: 0, shadow_words: 0 },
        _ => return None,
    })
}

/// The same of the return behind what drops the word of the shadow stack.
#[must_use]
pub const fn rest_of_shadowed_return(start: u64, rip: u64) -> Option<Rest> {
    let front = start.wrapping_sub(SHADOW_FRONT.len() as u64);
    match rip.wrapping_sub(front) {
        0 | SHADOW_DROP => Some(Rest { words: 1, shadow_words: 1 }),
        _ => rest_of_return(start, rip),
    }
}

/// The places of the sequences in an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// `ret; int3`, the overlaid thunk.
    pub overlaid: u64,
    /// The safe return that is laid over.
    pub safe_return: u64,
    /// What untrains by the alias.
    pub alias: u64,
    /// The safe return at the other address.
    pub alias_return: u64,
}

/// Checks the alias as well as [`check`].
///
/// # Errors
/// What is wrong first, and where.
pub fn check_alias(text: &impl Text, places: &Places) -> Result<(), (u64, &'static str)> {
    check(text, places)?;
    if is_alias(places.alias, places.alias_return) {
        Ok(())
    } else {
        Err((places.alias_return, "is no alias of what untrains it"))
    }
}

/// Checks bytes, and places but for the alias: an image that is moved to where no CPU needs it may
/// have none.
///
/// # Errors
/// What is wrong first, and where.
pub fn check(text: &impl Text, places: &Places) -> Result<(), (u64, &'static str)> {
    let Places { overlaid, safe_return, alias, alias_return } = *places;
    for (start, before) in [(overlaid, &OVERLAID_PREFIX[..]), (safe_return, &SAFE_PREFIX)] {
        if start % LINE != 0 {
            return Err((start, "does not begin a cache line"));
        }
        if !has(text, start.wrapping_sub(before.len() as u64), before) {
            return Err((start, "is not part of what untrains it"));
        }
    }
    let whole = [
        (overlaid, &OVERLAID[..]),
        (safe_return, &SAFE),
        (alias, &ALIAS),
        (alias_return, &ALIAS_RETURN),
        (alias_return.wrapping_sub(SHADOW_FRONT.len() as u64), &SHADOW_FRONT),
    ];
    if let Some(&(at, _)) = whole.iter().find(|(at, bytes)| !has(text, *at, bytes)) {
        return Err((at, "is not the sequence that untrains or returns"));
    }
    let last = alias.wrapping_add(ALIAS.len() as u64);
    if ![RET, JMP32].into_iter().any(|opcode| has(text, last, &[opcode])) {
        return Err((last, "is no return of the image"));
    }
    Ok(())
}

fn has(text: &impl Text, at: u64, bytes: &[u8]) -> bool {
    let mut found = [0; SAFE.len()];
    let Some(found) = found.get_mut(..bytes.len()) else { return false };
    text.read(at, found).is_ok() && found == bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poke::SliceText;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};
    use std::vec::Vec;

    const BASE: u64 = 0xffff_ffff_8020_0000;
    const PLACES: Places = Places {
        overlaid: BASE + 0x1040,
        safe_return: BASE + 0x1080,
        alias: BASE + 0x1000,
        alias_return: BASE + 0x1000 + ALIAS_BITS,
    };

    fn mnemonics(bytes: &[u8]) -> Vec<Mnemonic> {
        let mut decoder = Decoder::with_ip(64, bytes, BASE, DecoderOptions::NONE);
        decoder.iter().map(|instruction| instruction.mnemonic()).collect()
    }

    /// From its beginning each sequence has no branch but the one behind its fence; from the
    /// thunk's it returns.
    #[test]
    fn bytes_are_two_things() {
        use Mnemonic::{Int3, Jmp, Lea, Lfence, Mov, Nop, Ret, Test};
        let with = |before: &[u8], bytes: &[u8]| mnemonics(&[before, bytes].concat());
        assert_eq!(mnemonics(&OVERLAID), [Ret, Int3, Lfence]);
        assert_eq!(with(&OVERLAID_PREFIX, &OVERLAID), [Test, Lfence]);
        assert_eq!(mnemonics(&SAFE), [Lea, Ret, Int3, Int3, Lfence]);
        assert_eq!(with(&SAFE_PREFIX, &SAFE), [Mov, Lfence]);
        assert_eq!(mnemonics(&ALIAS_RETURN), [Lea, Ret, Int3]);
        assert_eq!(with(&ALIAS, &[JMP32, 0, 0, 0, 0]), [Nop, Lfence, Jmp]);
        // Jump and return are at one place of the line.
        assert_eq!(ALIAS.len() as u64, SAFE_RET);
        for bytes in [&SAFE[..], &ALIAS_RETURN] {
            assert_eq!(bytes[SAFE_RET as usize], crate::return_site::RET);
        }
    }

    #[test]
    fn aliases_differ_in_four_bits() {
        assert_eq!(ALIAS_BITS, 0x10_4104);
        for slide in (0..1_u64 << 22).step_by(4096) {
            let (a, b) = (BASE + slide, BASE + slide + ALIAS_BITS);
            assert_eq!(is_alias(a, b), has_alias_above(a), "{slide:#x}");
        }
        assert!(!is_alias(BASE, BASE) && !is_alias(BASE, BASE + (1 << 20)));
    }

    /// One word goes, by the register that objtool looks for, and the two instructions are those
    /// between which the CPU can be interrupted.
    #[test]
    fn the_front_drops_one_word() {
        use iced_x86::{Code, Register};
        let mut decoder = Decoder::with_ip(64, &SHADOW_FRONT, BASE, DecoderOptions::NONE);
        let [first, second] = [decoder.decode(), decoder.decode()];
        assert_eq!((first.code(), first.immediate32()), (Code::Mov_r32_imm32, 1));
        assert_eq!(first.op0_register(), Register::R11D);
        assert_eq!((second.code(), second.op0_register()), (Code::Incsspq_r64, Register::R11));
        assert_eq!(second.ip(), BASE + SHADOW_DROP);
        assert_eq!(second.next_ip(), BASE + SHADOW_FRONT.len() as u64);
    }

    /// Every byte of both forms, against what the instructions before it have done: the thunk's
    /// call has left a word on each stack, which the lea and the INCSSPQ take.
    #[test]
    fn what_is_left_of_a_return() {
        let start = BASE + SHADOW_FRONT.len() as u64;
        for is_shadowed in [false, true] {
            let (begin, rest): (_, fn(u64, u64) -> _) = match is_shadowed {
                true => (BASE, rest_of_shadowed_return),
                false => (start, rest_of_return),
            };
            let bytes = [&SHADOW_FRONT[..], &ALIAS_RETURN].concat();
            let mut decoder = Decoder::with_ip(64, &bytes, BASE, DecoderOptions::NONE);
            let mut wanted = std::collections::BTreeMap::new();
            let mut left = Rest { words: 1, shadow_words: u64::from(is_shadowed) };
            for instruction in decoder.iter().filter(|it| it.ip() >= begin) {
                match instruction.mnemonic() {
                    Mnemonic::Int3 => break,
                    _ => _ = wanted.insert(instruction.ip(), left),
                }
                match instruction.mnemonic() {
                    Mnemonic::Incsspq => left.shadow_words = 0,
                    Mnemonic::Lea => left.words = 0,
                    _ => {}
                }
            }
            assert_eq!(wanted.len(), if is_shadowed { 4 } else { 2 });
            for at in BASE - 2..BASE + 24 {
                assert_eq!(rest(start, at), wanted.get(&at).copied(), "{at:#x} {is_shadowed}");
            }
        }
    }

    fn image() -> Vec<u8> {
        let mut bytes = std::vec![0xcc; 0x20_0000];
        let mut put = |at: u64, what: &[u8]| {
            let at = usize::try_from(at - BASE).expect("small");
            bytes[at..at + what.len()].copy_from_slice(what);
        };
        put(PLACES.overlaid - 1, &[&OVERLAID_PREFIX[..], &OVERLAID].concat());
        put(PLACES.safe_return - 2, &[&SAFE_PREFIX[..], &SAFE].concat());
        put(PLACES.alias, &[&ALIAS[..], &[JMP32]].concat());
        put(PLACES.alias_return - 11, &[&SHADOW_FRONT[..], &ALIAS_RETURN].concat());
        bytes
    }

    /// Any other byte of any sequence, and any other place, is refused.
    #[test]
    fn each_byte_counts() {
        let mut bytes = image();
        assert_eq!(check_alias(&SliceText::new(BASE, &mut bytes), &PLACES), Ok(()));
        let starts = [
            (PLACES.overlaid - 1, 6),
            (PLACES.safe_return - 2, 13),
            (PLACES.alias, 6),
            (PLACES.alias_return - 11, 18),
        ];
        for (start, len) in starts {
            for at in start..start + len {
                let at = usize::try_from(at - BASE).expect("small");
                bytes[at] ^= 1;
                let found = check_alias(&SliceText::new(BASE, &mut bytes), &PLACES);
                assert!(found.is_err(), "{at:#x}");
                bytes[at] ^= 1;
            }
        }
        for moved in [
            Places { overlaid: PLACES.overlaid + 1, ..PLACES },
            Places { safe_return: PLACES.safe_return + 4, ..PLACES },
            Places { alias: PLACES.alias + 4, ..PLACES },
            Places { alias_return: PLACES.alias_return + 0x1000, ..PLACES },
            Places::default(),
        ] {
            assert!(check_alias(&SliceText::new(BASE, &mut bytes), &moved).is_err(), "{moved:x?}");
        }
        // The same bytes where the buffer sees another place.
        let mut bytes = [image(), image()].concat();
        let far = PLACES.alias_return + 0x20_0000;
        let found =
            check_alias(&SliceText::new(BASE, &mut bytes), &Places { alias_return: far, ..PLACES });
        assert_eq!(found, Err((far, "is no alias of what untrains it")));
        let moved = Places { alias_return: far, ..PLACES };
        assert_eq!(check(&SliceText::new(BASE, &mut bytes), &moved), Ok(()));
    }
}
