//! Filters of system calls: their code on this CPU against the interpreter.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use seccomp::{Data, Insn, Program};

use super::Test;
use crate::ensure;
use crate::text::late_text;
use crate::text::seccomp::Filter;

pub(super) const TESTS: &[Test] = &[
    Test { name: "seccomp::code_and_interpreter_agree", run: || compare(100) },
    Test { name: "seccomp::filters_go_without_a_trace", run: room },
    Test { name: "long::seccomp::code_and_interpreter_agree", run: || compare(100_000) },
];

/// Codes of instructions, most of them without a condition (linux/bpf_common.h).
const CODES: [u16; 36] = [
    0x20, 0x20, 0x20, 0x80, 0x81, 0x00, 0x01, 0x02, 0x03, 0x60, 0x61, 0x07, 0x87, 0x84, 0x04, 0x0c,
    0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0xa4, 0x15, 0x1d,
    0x25, 0x35, 0x3d, 0x45,
];
const RETURN_A: Insn = Insn { code: 0x16, jt: 0, jf: 0, k: 0 };

/// A small generator: the same filters in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        // Knuth's multiplier; the upper half is the better one.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn insn(&mut self) -> Insn {
        let code = CODES[self.next() as usize % CODES.len()];
        let (r, small) = (self.next(), self.next() % 3 != 0);
        let k = match code {
            0x02 | 0x03 | 0x60 | 0x61 => r % 16,
            0x20 => r % 16 * 4,
            0x64 | 0x74 => r % 32,
            0x34 => r.max(1),
            _ if small => r % 64,
            _ => r,
        };
        Insn { code, jt: (self.next() % 4) as u8, jf: (self.next() % 4) as u8, k }
    }

    fn filter(&mut self) -> Vec<Insn> {
        let slots = (0..16).map(|k| Insn { code: 0x02, k, ..Insn::default() });
        let mut insns: Vec<_> = slots.collect();
        for _ in 0..self.next() % 40 {
            insns.push(self.insn());
        }
        // Jumps near the end need somewhere to go.
        insns.extend([RETURN_A; 4]);
        insns
    }
}

fn compare(filters: u32) -> Result<(), String> {
    let mut random = Random(1);
    for _ in 0..filters {
        let insns = random.filter();
        let program = Program::check(&insns).map_err(|why| format!("{why:?}: {insns:?}"))?;
        let code = program.compile(random.next()).ok_or("no memory")?;
        let filter = Filter::load(&code).ok_or("not loaded")?;
        for _ in 0..20 {
            let mut data = Data::default();
            data.0.iter_mut().for_each(|word| *word = random.next() >> (random.next() % 32));
            let (compiled, expected) = (filter.run(&data), program.run(&data));
            ensure!(compiled == expected, "{compiled:#x}, not {expected:#x}: {insns:?} {data:?}");
        }
    }
    Ok(())
}

/// More filters than there is room for: the others are refused, and all room comes back.
fn room() -> Result<(), String> {
    let before = late_text::pages_in_use();
    let program = Program::check(&[RETURN_A]).map_err(|why| format!("{why:?}"))?;
    let code = program.compile(1).ok_or("no memory")?;
    let loaded: Vec<_> = (0..70).map_while(|_| Filter::load(&code)).collect();
    ensure!((32..70).contains(&loaded.len()), "{} filters were loaded", loaded.len());
    drop(loaded);
    ensure!(late_text::pages_in_use() == before, "pages were lost");
    Ok(())
}
