//! Filters: whatever passes the check runs, and compiled it says the same.
//!
//! Input: 64 bytes of data, then instructions of 8 bytes; a return is put behind them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seccomp::{Data, Insn, Program};
use seccomp_native::Native;

fuzz_target!(|data: &[u8]| {
    let Some((data, code)) = data.split_first_chunk::<64>() else {
        return;
    };
    let words = data.as_chunks().0;
    let data = Data(core::array::from_fn(|i| u32::from_le_bytes(words[i])));
    let mut filter: Vec<Insn> =
        code.as_chunks().0.iter().map(|bytes| Insn::from_bytes(*bytes)).collect();
    filter.push(Insn { code: 0x16, ..Insn::default() });
    let Ok(program) = Program::check(&filter) else {
        return;
    };
    let answer = program.run(&data);
    if let Some(code) = program.compile(data.0[0]) {
        assert_eq!(Native::new(&code).run(&data), answer, "{program:?}");
    }
});
