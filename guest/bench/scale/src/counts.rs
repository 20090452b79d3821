//! What the kernel counts: locks, where it counts them, and interrupts between CPUs.

/// Where a Limen built with `lockstat` counts locks.
const LOCKS: &str = "/proc/limen/locks";
/// Interrupts of one CPU by another, in /proc/interrupts.
const BETWEEN_CPUS: [&str; 3] = ["RES:", "CAL:", "TLB:"];
/// Places that are printed for a row.
const PLACES: usize = 8;

/// What was counted at a moment, or since one.
#[derive(Default)]
pub struct Counts {
    interrupts: u64,
    /// Taken, shared, waited.
    locks: [u64; 3],
    /// Where shared locks are made, and how often they were taken.
    shared: Vec<(u64, String)>,
}

fn interrupts() -> u64 {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let rows = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        BETWEEN_CPUS.contains(&name).then_some(words)
    });
    rows.flat_map(|words| words.map_while(|word| word.parse::<u64>().ok())).sum()
}

impl Counts {
    /// Begins to count.
    pub fn begin() -> Counts {
        let interrupts = interrupts();
        // Nothing there: nothing is counted.
        let _ = std::fs::write(LOCKS, "0");
        Counts { interrupts, ..Counts::default() }
    }

    /// What there was since then.
    pub fn since(begun: &Counts) -> Counts {
        let text = std::fs::read_to_string(LOCKS).unwrap_or_default();
        let mut counts =
            Counts { interrupts: interrupts() - begun.interrupts, ..Counts::default() };
        for line in text.lines().skip(1) {
            let Some((place, numbers)) = line.split_once(' ') else { continue };
            let numbers: Vec<u64> = numbers.split(' ').filter_map(|n| n.parse().ok()).collect();
            let &[taken, shared, waited] = numbers.as_slice() else { continue };
            for (sum, number) in counts.locks.iter_mut().zip([taken, shared, waited]) {
                *sum += number;
            }
            if shared > 0 {
                counts.shared.push((shared, place.to_owned()));
            }
        }
        counts.shared.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    /// Prints them for a row, with the number of operations that they are for.
    pub fn print(&self, row: &str, operations: usize) {
        println!("{row}_operations {operations}");
        println!("{row}_interrupts {}", self.interrupts);
        for (what, count) in ["taken", "shared", "waited"].iter().zip(self.locks) {
            println!("{row}_{what} {count}");
        }
        for (count, place) in self.shared.iter().take(PLACES) {
            println!("place: {row} {count} {place}");
        }
    }
}
