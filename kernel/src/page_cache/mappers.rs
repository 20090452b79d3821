//! Which address spaces map a file: those that lose its pages when it becomes shorter.
//!
//! Why it is hard: fork(2) enters the child's space for each file that the parent maps, and that is
//! one file, the program, for all CPUs that fork. So a file that more than a few spaces map has a
//! list for each CPU, and a space is entered into that of the CPU that runs; whoever asks for all
//! looks through them. Few files have so many, so these lists are made when they are needed.
//!
//! Nobody leaves at the end of a space. What is gone is looked for when a list has doubled.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use machine::cpu::cpu_count;
use machine::percpu::cpu_id;
use machine::sync::{Once, SpinLock};

use super::Mapper;

/// Spaces, living or gone, from which on each CPU has a list.
const FEW: usize = 8;

/// See the module.
#[derive(Default)]
pub(super) struct Mappers {
    /// All, or those that came while there were few.
    first: SpinLock<Spaces>,
    of_cpus: Once<Box<[SpinLock<Spaces>]>>,
}

/// Address spaces, by where they lie in memory.
#[derive(Default)]
struct Spaces {
    all: BTreeMap<usize, Weak<dyn Mapper>>,
    /// How many were ever entered.
    entered: u64,
    /// With so many it is time to look for those that are gone.
    purge_at: usize,
}

impl Spaces {
    /// How many there are, with `mm`.
    fn add(&mut self, mm: &Arc<dyn Mapper>) -> usize {
        // A space that is gone leaves no memory behind while it is here: addresses are its own.
        if self.all.insert(Arc::as_ptr(mm).addr(), Arc::downgrade(mm)).is_none() {
            self.entered += 1;
            if self.all.len() > self.purge_at {
                self.purge();
            }
        }
        self.all.len()
    }

    fn purge(&mut self) {
        const LEAST: usize = 8;
        self.all.retain(|_, mm| mm.strong_count() > 0);
        self.purge_at = 2 * self.all.len() + LEAST;
    }
}

impl Mappers {
    /// A space maps the file from now on.
    pub(super) fn add(&self, mm: &Arc<dyn Mapper>) {
        if let Some(lists) = self.of_cpus.get() {
            lists[cpu_id()].lock().add(mm);
            return;
        }
        let count = self.first.lock().add(mm);
        if count > FEW && cpu_count() > 1 {
            self.of_cpus.call_once(|| (0..cpu_count()).map(|_| SpinLock::default()).collect());
        }
    }

    /// The spaces that live, each once.
    pub(super) fn living(&self) -> Vec<Arc<dyn Mapper>> {
        self.look(false).0
    }

    /// Calls `f` with each space that maps the file, also with those that begin to meanwhile: a
    /// child has what its parent had when it was made. It ends, for who was visited has nothing
    /// left to hand on.
    pub(super) fn visit(&self, f: impl Fn(&dyn Mapper)) {
        loop {
            let (spaces, entered) = self.look(true);
            spaces.iter().for_each(|mm| f(&**mm));
            if spaces.is_empty() || self.entered() == entered {
                return;
            }
        }
    }

    /// The spaces that live, and how many were ever entered. `purges`: those that are gone are
    /// forgotten.
    fn look(&self, purges: bool) -> (Vec<Arc<dyn Mapper>>, u64) {
        let (mut living, mut entered) = (Vec::new(), 0);
        let mut take = |list: &SpinLock<Spaces>| {
            let mut spaces = list.lock();
            if purges {
                spaces.purge();
            }
            living.extend(spaces.all.values().filter_map(Weak::upgrade));
            entered += spaces.entered;
        };
        take(&self.first);
        if let Some(lists) = self.of_cpus.get() {
            lists.iter().for_each(take);
            // A space whose threads map the file on several CPUs is on several lists.
            living.sort_unstable_by_key(|mm| Arc::as_ptr(mm).addr());
            living.dedup_by_key(|mm| Arc::as_ptr(mm).addr());
        }
        (living, entered)
    }

    fn entered(&self) -> u64 {
        let of_cpus = self.of_cpus.get().map(|lists| &**lists).unwrap_or_default();
        let lists = core::iter::once(&self.first).chain(of_cpus);
        lists.map(|list| list.lock().entered).sum()
    }
}
