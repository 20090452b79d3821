//! This host's Linux accepts the same filters, and they mean the same there.

use seccomp::{Data, Insn, Program, action};
use seccomp_native::linux::{ARCH, PROBE, attach, judge};
use seccomp_native::random::Random;

const fn plain(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}
const ALLOW: Insn = plain(0x06, 0x7fff_0000);
const EINVAL: i32 = 22;

/// Whether filters can be attached here at all; a sandbox may forbid it.
fn can_ask() -> bool {
    let can = attach(&[ALLOW]).is_ok();
    if !can {
        eprintln!("this host lets nobody attach filters: nothing is compared");
    }
    can
}

fn same_opinion(filter: &[Insn]) -> bool {
    let ours = Program::check(filter);
    match attach(filter) {
        Ok(()) => assert!(ours.is_ok(), "Linux accepts, we say {ours:?}: {filter:x?}"),
        Err(EINVAL) => assert!(ours.is_err(), "Linux refuses: {filter:x?}"),
        Err(errno) => panic!("Linux says {errno}: {filter:x?}"),
    }
    ours.is_ok()
}

/// All codes by themselves, with constants at the edges of every rule.
#[test]
fn all_codes() {
    if !can_ask() {
        return;
    }
    for code in (0..0x100).chain([0x120, 0x1006, 0x8020]) {
        for k in [0, 1, 15, 16, 31, 32, 60, 61, 64, u32::MAX] {
            same_opinion(&[plain(code, k), plain(0x02, 3), ALLOW, ALLOW]);
        }
        same_opinion(&[plain(code, 0)]);
    }
    same_opinion(&[]);
    for len in [4095, 4096, 4097] {
        assert_eq!(same_opinion(&vec![ALLOW; len]), len <= 4096);
    }
}

#[test]
fn random_filters() {
    if !can_ask() {
        return;
    }
    let mut random = Random::new(2);
    let mut legal = 0;
    for round in 0..1500 {
        let len = 1 + random.below(30);
        let mut filter = random.filter(len);
        if round % 2 == 0 {
            random.damage(&mut filter);
        }
        legal += u32::from(same_opinion(&filter));
    }
    assert!((300..1200).contains(&legal), "{legal} filters were legal");
}

/// The meaning: A becomes the errno of a system call that nobody has, seven bits at a time.
#[test]
fn answers() {
    if !can_ask() {
        return;
    }
    let mut random = Random::new(3);
    let (mut compared, mut killed) = (0, 0);
    while compared < 300 {
        let len = 1 + random.below(30);
        // The address behind the system call is the child's own business.
        let body = random.body(len).into_iter();
        let body: Vec<_> = body.filter(|i| i.code != 0x20 || ![8, 12].contains(&i.k)).collect();
        let shift = [0, 7, 14, 21, 25][compared % 5];
        let probe = Insn { code: 0x15, jt: 1, jf: 0, k: PROBE };
        let head = [plain(0x20, 0), probe, ALLOW];
        let errno = [plain(0x54, 0x7f), plain(0x44, 0x0005_0000), plain(0x16, 0)];
        let tail = [&[plain(0x74, shift)], &errno[..]].concat();
        let filter = [&head[..], &body, &tail].concat();
        let Ok(program) = Program::check(&filter) else {
            continue;
        };
        let arguments = core::array::from_fn(|_| {
            let [low, high, ..] = random.data(&filter).0;
            u64::from(high) << 32 | u64::from(low)
        });
        let data = Data::new(PROBE, ARCH, 0, arguments);
        let ours = match program.run(&data) {
            action::KILL_THREAD => None,
            answer => u8::try_from(answer & action::DATA).ok(),
        };
        assert_eq!(ours, judge(&filter, arguments), "{filter:x?}\n{data:x?}");
        compared += 1;
        killed += u32::from(ours.is_none());
    }
    assert!(killed > 3, "no division by 0 was made");
}
