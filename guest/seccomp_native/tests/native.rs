//! Compiled code does what the interpreter does.

use seccomp::{Data, Insn, Program, action};
use seccomp_native::Native;
use seccomp_native::random::Random;

const fn plain(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}

/// Both ways of running must agree; returns what they say.
fn agree(program: &Program, native: &Native, data: &Data) -> u32 {
    let (interpreted, compiled) = (program.run(data), native.run(data));
    assert_eq!(interpreted, compiled, "{program:?}\n{data:?}");
    interpreted
}

#[test]
fn random_filters() {
    let mut random = Random::new(1);
    let (mut legal, mut answers) = (0, std::collections::BTreeSet::new());
    for round in 0..6000 {
        let len = 1 + random.below(if round % 100 == 0 { 900 } else { 40 });
        let filter = random.filter(len);
        let Ok(program) = Program::check(&filter) else {
            continue;
        };
        let Some(code) = program.compile(random.number() as u32) else {
            continue;
        };
        legal += 1;
        let native = Native::new(&code);
        for _ in 0..12 {
            let data = random.data(&filter);
            answers.insert(agree(&program, &native, &data));
        }
    }
    assert!(legal > 2500, "only {legal} filters were legal");
    assert!(answers.len() > 4000, "only {} different answers", answers.len());
}

/// Every operation, with every pair of values at the edges, by constant and by X.
#[test]
fn every_operation_at_its_edges() {
    let small = [0, 1, 2, 5, 31, 32, 33, 127, 128, 255, 256];
    let values = [&small[..], &[0xffff, 0x1_0000, 1 << 31, u32::MAX - 1, u32::MAX]].concat();
    let operations = [0x00_u16, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0];
    let conditions = [0x10_u16, 0x20, 0x30, 0x40];
    let mut tried = 0;
    let mut run = |filter: &[Insn], a: u32, b: u32| {
        let Ok(program) = Program::check(filter) else {
            return;
        };
        let native = Native::new(&program.compile(7).expect("a small filter"));
        let mut data = Data::default();
        (data.0[4], data.0[5]) = (a, b);
        agree(&program, &native, &data);
        tried += 1;
    };
    for &a in &values {
        for &b in &values {
            // X = the second word, A = the first.
            let load = [plain(0x20, 20), plain(0x07, 0), plain(0x20, 16)];
            for source in [0, 8] {
                for operation in operations {
                    let alu = plain(0x04 | operation | source, b);
                    run(&[&load[..], &[alu, plain(0x16, 0)]].concat(), a, b);
                }
                for condition in conditions {
                    for (jt, jf) in [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)] {
                        let jump = Insn { code: 0x05 | condition | source, jt, jf, k: b };
                        let ends = [1, 2, 3].map(|k| plain(0x06, k));
                        run(&[&load[..], &[jump], &ends].concat(), a, b);
                    }
                }
            }
        }
    }
    assert!(tried > 14_000, "{tried}");
}

/// Jumps at the lengths where their form changes, and a filter that is as long as can be.
#[test]
fn jumps_of_all_lengths() {
    for between in (0..70).chain(250..=255) {
        for k in [1, 0x1_0001] {
            let jump = Insn { code: 0x15, jt: between, jf: 0, k: 0 };
            let mut filter = vec![plain(0x20, 16), jump];
            filter.extend((0..between).map(|_| plain(0x04, k)));
            filter.push(plain(0x16, 0));
            let program = Program::check(&filter).expect("a filter");
            let native = Native::new(&program.compile(9).expect("a small filter"));
            for arg in [0, 1] {
                let data = Data::new(0, 0, 0, [arg, 0, 0, 0, 0, 0]);
                let sum = u32::from(between).wrapping_mul(k).wrapping_add(1);
                let wanted = if arg == 0 { 0 } else { sum };
                assert_eq!(agree(&program, &native, &data), wanted);
            }
        }
    }
    // Every instruction jumps to the end, over all the others.
    let mut filter: Vec<_> = (0..2000).map(|i| plain(0x05, 2000 - i)).collect();
    filter.extend([plain(0x06, 1), plain(0x06, 2)]);
    let program = Program::check(&filter).expect("a filter");
    let native = Native::new(&program.compile(9).expect("a long filter"));
    assert_eq!(agree(&program, &native, &Data::default()), 2);
}

/// What programs use: a list of numbers to allow, with an architecture in front.
#[test]
fn a_list_of_system_calls() {
    let mut filter = vec![
        plain(0x20, 4),
        Insn { code: 0x15, jt: 1, jf: 0, k: 0xc000_003e },
        plain(0x06, 0x8000_0000),
        plain(0x20, 0),
    ];
    let allowed: Vec<u32> = (0..100).map(|i| i * 3).collect();
    for (left, &nr) in (0..100_u8).rev().zip(&allowed) {
        filter.push(Insn { code: 0x15, jt: left + 1, jf: 0, k: nr });
    }
    filter.extend([plain(0x06, 0x0005_0001), plain(0x06, 0x7fff_0000)]);
    let program = Program::check(&filter).expect("a filter");
    let native = Native::new(&program.compile(3).expect("a filter"));
    for nr in 0..400 {
        let data = Data::new(nr, 0xc000_003e, 0, [0; 6]);
        let wanted = if allowed.contains(&nr) { 0x7fff_0000 } else { 0x0005_0001 };
        assert_eq!(agree(&program, &native, &data), wanted);
    }
    assert_eq!(agree(&program, &native, &Data::default()), action::KILL_PROCESS);
}
