//! The watchdog's decisions.

use scheduler::watch::{Asked, DEAF_NS, GAP_MAX_NS, GRACE_NS, LIMIT_NS, Probe, Verdict, of_silent};

const MS: u64 = 1_000_000;

/// How many ticks, so far apart, a CPU that is asked has until it counts as stuck.
fn ticks_until_stuck(gap_ns: u64) -> u64 {
    let mut asked = Asked::default().tick(true, gap_ns);
    let mut ticks = 0;
    while !asked.is_stuck() {
        asked = asked.tick(true, gap_ns);
        ticks += 1;
    }
    ticks
}

#[test]
fn a_loop_is_seen_after_the_limit() {
    assert_eq!(ticks_until_stuck(4 * MS), LIMIT_NS / (4 * MS));
    assert_eq!(ticks_until_stuck(GAP_MAX_NS), LIMIT_NS / GAP_MAX_NS);
}

#[test]
fn time_without_ticks_is_not_the_cpus_own() {
    // One long gap alone never does it, nor do a few.
    assert_eq!(ticks_until_stuck(100 * LIMIT_NS), LIMIT_NS / GAP_MAX_NS);
    let once = Asked::default().tick(true, MS).tick(true, 100 * LIMIT_NS);
    assert!(!once.is_stuck());
}

#[test]
fn who_is_not_asked_is_not_watched() {
    let mut asked = Asked::default();
    for _ in 0..100_000 {
        asked = asked.tick(false, GAP_MAX_NS);
    }
    assert_eq!(asked, Asked::default());
    // Asked once, it stays asked until a pass of the scheduler, whatever becomes of the mark.
    assert!((0..100).fold(asked.tick(true, 0), |a, _| a.tick(false, GAP_MAX_NS)).is_stuck());
    assert_eq!(Asked::from_word(Asked::default().tick(true, 0).word()).word(), 1);
}

#[test]
fn a_silent_cpu_is_asked_first() {
    let probes = [Probe::None, Probe::Sent, Probe::Answered(0), Probe::Answered(GRACE_NS + 1)];
    for probe in probes {
        assert_eq!(of_silent(LIMIT_NS, probe), Verdict::Fine);
    }
    let silent = LIMIT_NS + 1;
    let verdicts = probes.map(|probe| of_silent(silent, probe));
    assert_eq!(verdicts, [Verdict::Ask, Verdict::Fine, Verdict::Fine, Verdict::Stuck]);
    assert_eq!(of_silent(DEAF_NS, Probe::Sent), Verdict::Fine);
    assert_eq!(of_silent(DEAF_NS + 1, Probe::Sent), Verdict::Deaf);
    assert_eq!(of_silent(DEAF_NS + 1, Probe::Answered(GRACE_NS)), Verdict::Fine);
}
