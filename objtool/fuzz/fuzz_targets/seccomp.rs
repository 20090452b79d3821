//! Filters: whatever passes the check runs, and compiled it says the same.
//!
//! Input: 64 bytes of data, then instructions of 8 bytes; a return is put behind them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seccomp::{Instruction, Program, SeccompData, compile};
use seccomp_native::Native;

fuzz_target!(|data: &[u8]| {
    let Some((data, code)) = data.split_first_chunk::<64>() else {
        return;
    };
    let half = |at: usize| u64::from_le_bytes(*data[at..].first_chunk().unwrap_or(&[0; 8]));
    let data = SeccompData {
        nr: half(0) as u32,
        arch: (half(0) >> 32) as u32,
        instruction_pointer: half(8),
        args: core::array::from_fn(|i| half(16 + 8 * i)),
    };
    let mut filter: Vec<Instruction> = code
        .as_chunks()
        .0
        .iter()
        .map(|bytes| Instruction::from_bytes(*bytes))
        .collect();
    filter.push(Instruction {
        code: 0x16,
        ..Instruction::default()
    });
    let Ok(program) = Program::check(&filter) else {
        return;
    };
    let verdict = program.run(&data);
    if let Some(code) = compile(&program, half(0)) {
        assert_eq!(Native::new(&code).run(&data), verdict, "{program:?}");
    }
});
