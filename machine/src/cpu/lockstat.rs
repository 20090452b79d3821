//! Who takes which lock, in an image that is built with `lockstat`: for `limen bench scale` and for
//! people who look for the lock that CPUs meet at.
//!
//! Why it is hard: on an emulator with few cores CPUs run in turns, and hardly ever meet. So what
//! is counted does not depend on when they run: a lock that one CPU takes after another has taken
//! it, since the counts were begun, is shared, whether anybody had to wait or not. Its line would
//! move between their caches each time.
//!
//! Locks that are made at the same place in the source are counted together. Counting takes no
//! lock.

use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Once;

use crate::cpu::percpu;

/// Places in the source where locks are made: far more than there are.
const SITES: usize = 1024;
/// Bits of [`LockStat::seen`] that are CPUs; above them is when they were seen.
const CPU_BITS: u32 = 48;

/// The counts of the locks that one place makes.
pub struct Site {
    made_at: Once<&'static Location<'static>>,
    taken: AtomicU64,
    shared: AtomicU64,
    waited: AtomicU64,
}

/// What was counted at a [`Site`].
#[derive(Clone, Copy, Debug)]
pub struct LockCounts {
    /// Where the locks are made: file and line.
    pub made_at: (&'static str, u32),
    /// How often one was taken.
    pub taken: u64,
    /// How often one was that another CPU had taken, too.
    pub shared: u64,
    /// How often one was not free.
    pub waited: u64,
}

static TABLE: [Site; SITES] = [const {
    Site {
        made_at: Once::new(),
        taken: AtomicU64::new(0),
        shared: AtomicU64::new(0),
        waited: AtomicU64::new(0),
    }
}; SITES];
/// How often the counts were begun.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// What a lock has for it.
pub(super) struct LockStat {
    made_at: &'static Location<'static>,
    /// The CPUs that took it, and in which epoch.
    seen: AtomicU64,
    /// The CPUs that read it since it was taken last, and in which epoch; the CPU that took it is
    /// among them.
    current: AtomicU64,
}

impl LockStat {
    #[track_caller]
    pub(super) const fn new() -> LockStat {
        let (seen, current) = (AtomicU64::new(0), AtomicU64::new(0));
        LockStat { made_at: Location::caller(), seen, current }
    }

    /// It is taken by this CPU, which holds it.
    pub(super) fn note_taken(&self) {
        let own = 1 << (percpu::cpu_id() as u32 % CPU_BITS);
        let epoch = EPOCH.load(Ordering::Relaxed) << CPU_BITS;
        let seen = self.seen.load(Ordering::Relaxed);
        let others =
            if seen >> CPU_BITS << CPU_BITS == epoch { seen & ((1 << CPU_BITS) - 1) } else { 0 };
        self.seen.store(epoch | others | own, Ordering::Relaxed);
        self.current.store(epoch | own, Ordering::Relaxed);
        let site = site(self.made_at);
        site.taken.fetch_add(1, Ordering::Relaxed);
        site.shared.fetch_add(u64::from(others & !own != 0), Ordering::Relaxed);
    }

    /// This CPU reads the value beside others (`read_mostly`). That is shared once after each time
    /// that another CPU has taken it.
    pub(super) fn note_read(&self) {
        let own = 1 << (percpu::cpu_id() as u32 % CPU_BITS);
        let epoch = EPOCH.load(Ordering::Relaxed) << CPU_BITS;
        let current = self.current.fetch_or(own, Ordering::Relaxed);
        let is_new = current >> CPU_BITS << CPU_BITS == epoch && current & own == 0;
        let site = site(self.made_at);
        site.taken.fetch_add(1, Ordering::Relaxed);
        site.shared.fetch_add(u64::from(is_new), Ordering::Relaxed);
    }

    /// It was not free.
    pub(super) fn note_waited(&self) {
        site(self.made_at).waited.fetch_add(1, Ordering::Relaxed);
    }
}

/// The counts of a place: found by its address, or the first free ones after that.
fn site(made_at: &'static Location<'static>) -> &'static Site {
    let start = core::ptr::from_ref(made_at).addr() / align_of::<Location<'_>>();
    for step in 0..SITES {
        let site = &TABLE[(start + step) % SITES];
        if core::ptr::eq(*site.made_at.call_once(|| made_at), made_at) {
            return site;
        }
    }
    &TABLE[start % SITES]
}

/// Begins the counts anew.
pub fn restart() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    for site in &TABLE {
        for count in [&site.taken, &site.shared, &site.waited] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// What was counted since, where it is not nothing.
pub fn counts() -> impl Iterator<Item = LockCounts> {
    TABLE.iter().filter_map(|site| {
        let made_at = site.made_at.get()?;
        let [taken, shared, waited] =
            [&site.taken, &site.shared, &site.waited].map(|count| count.load(Ordering::Relaxed));
        let counts =
            LockCounts { made_at: (made_at.file(), made_at.line()), taken, shared, waited };
        (taken + waited > 0).then_some(counts)
    })
}
