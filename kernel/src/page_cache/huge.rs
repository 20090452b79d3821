//! Files in memory by 2 MiB at once (tmpfs(5), `huge=`;
//! Documentation/admin-guide/mm/transhuge.rst, "Hugepages in tmpfs/shmem").
//!
//! A run comes where nothing of the file is yet, if who keeps the file wants it so, or is made of
//! single pages when somebody asks ([`PageCache::collapse`]). What frees a part of it makes the
//! rest single pages again, without copying. Programs map a run by one large page
//! (`mm::fault`), if all of it lies in the file.

use core::sync::atomic::{AtomicI64, AtomicU8, Ordering};

use alloc::sync::Weak;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::frame::{HUGE_FRAMES, HugeFrame, PAGE_SIZE};
use machine::sync::SpinLock;

use super::pages::RUN;
use super::{PAGE, PageCache};

/// Which files come by 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HugeFiles {
    /// All.
    Always = 0,
    /// All, where the 2 MiB lie within the file; and what is asked for (MADV_HUGEPAGE).
    WithinSize = 1,
    /// What is asked for.
    Advise = 2,
    /// None.
    Never = 3,
    /// None, whatever a mount says. Not for mounts.
    Deny = 4,
    /// All, whatever a mount says. Not for mounts.
    Force = 5,
}

/// In the order of their numbers, with what names them.
const POLICIES: [(HugeFiles, &str); 6] = [
    (HugeFiles::Always, "always"),
    (HugeFiles::WithinSize, "within_size"),
    (HugeFiles::Advise, "advise"),
    (HugeFiles::Never, "never"),
    (HugeFiles::Deny, "deny"),
    (HugeFiles::Force, "force"),
];

/// Of files that no mount has: memfd_create(2), System V segments, shared memory without a file.
static POLICY: AtomicU8 = AtomicU8::new(HugeFiles::Never as u8);

/// Runs that all files have.
static RUNS: AtomicI64 = AtomicI64::new(0);

pub(super) fn note_runs(change: i64) {
    RUNS.fetch_add(change, Ordering::Relaxed);
}

/// Runs of 2 MiB that all files have.
#[must_use]
pub fn runs() -> u64 {
    RUNS.load(Ordering::Relaxed).max(0) as u64
}

/// Files whose runs may reach beyond their ends.
static TAILS: SpinLock<Vec<Weak<PageCache>>> = SpinLock::new(Vec::new());

/// Frees the parts of runs that lie behind the ends of their files: there is no room, or little
/// memory. How many pages.
pub fn trim_tails() -> usize {
    let tails = core::mem::take(&mut *TAILS.lock());
    tails.iter().filter_map(Weak::upgrade).map(|cache| cache.trim_tail()).sum()
}

impl HugeFiles {
    /// As a mount option names it.
    #[must_use]
    pub fn of_mount(name: &str) -> Option<HugeFiles> {
        POLICIES[..4].iter().find(|(_, own)| *own == name).map(|(policy, _)| *policy)
    }

    /// The mount option; None for what holds without one.
    #[must_use]
    pub fn as_option(self) -> Option<&'static str> {
        (self != HugeFiles::Never).then(|| POLICIES[self as usize].1)
    }

    /// What holds for files without a mount.
    #[must_use]
    pub fn of_nameless() -> HugeFiles {
        POLICIES[usize::from(POLICY.load(Ordering::Relaxed)) % POLICIES.len()].0
    }

    /// Sets that by its name. False if nothing has that name.
    pub fn set_of_nameless(name: &str) -> bool {
        let found = POLICIES.iter().find(|(_, own)| *own == name);
        if let Some((policy, _)) = found {
            POLICY.store(*policy as u8, Ordering::Relaxed);
        }
        found.is_some()
    }
}

/// All names, the one that holds in brackets:
/// /sys/kernel/mm/transparent_hugepage/shmem_enabled.
pub fn describe(out: &mut dyn core::fmt::Write) -> core::fmt::Result {
    for (at, (policy, name)) in POLICIES.into_iter().enumerate() {
        let space = if at == 0 { "" } else { " " };
        match policy == HugeFiles::of_nameless() {
            true => write!(out, "{space}[{name}]")?,
            false => write!(out, "{space}{name}")?,
        }
    }
    Ok(())
}

impl PageCache {
    fn policy(&self) -> HugeFiles {
        let general = HugeFiles::of_nameless();
        match (general, &self.keeper) {
            (HugeFiles::Deny, _) => HugeFiles::Never,
            (HugeFiles::Force, _) => HugeFiles::Always,
            (_, Some(keeper)) => keeper.huge().unwrap_or(general),
            (_, None) => general,
        }
    }

    /// Whether the 2 MiB around page `index` may come at once. `asks`: who wants them said so.
    pub fn wants_run(&self, index: u64, asks: bool) -> bool {
        if !self.is_only_memory() {
            return false;
        }
        match self.policy() {
            HugeFiles::Never | HugeFiles::Deny => false,
            HugeFiles::Always | HugeFiles::Force => true,
            HugeFiles::WithinSize => asks || self.has_whole_run(index),
            HugeFiles::Advise => asks,
        }
    }

    fn has_whole_run(&self, index: u64) -> bool {
        (index / RUN + 1) * RUN <= self.size().div_ceil(PAGE)
    }

    /// Brings the 2 MiB around page `index` in, if they may come at once, nothing of them is there
    /// and there is room.
    pub fn make_run(&self, index: u64, asks: bool) {
        let first = index / RUN * RUN;
        if !self.wants_run(index, asks) || self.pages.lock().has_any(first..first + RUN) {
            return;
        }
        if self.take_room(HUGE_FRAMES).is_err() {
            return;
        }
        if !self.has_whole_run(index) {
            self.note_tail();
        }
        let entered = HugeFrame::alloc_zeroed().is_some_and(|memory| {
            let mut pages = self.pages.lock();
            // Who makes a file shorter says so before it takes pages out.
            let is_free = !pages.has_any(first..first + RUN);
            if is_free {
                pages.enter_run(first, memory);
            }
            is_free
        });
        if !entered {
            self.give_room(HUGE_FRAMES);
        }
    }

    /// Enters the file among those whose runs may reach beyond their ends.
    fn note_tail(&self) {
        if !self.has_tail.swap(true, Ordering::Relaxed) {
            let mut tails = TAILS.lock();
            if tails.len() == tails.capacity() {
                tails.retain(|cache| cache.strong_count() > 0);
            }
            tails.push(self.this.clone());
        }
    }

    /// Frees what lies behind the end and nobody has; how many pages. Nothing, until the next time,
    /// if the file is just being cut.
    fn trim_tail(&self) -> usize {
        self.has_tail.store(false, Ordering::Relaxed);
        let Some(_resizing) = self.resizing.try_lock() else {
            self.note_tail();
            return 0;
        };
        let taken = {
            let mut pages = self.pages.lock();
            // Who writes there has the page until the file is longer.
            let end = self.size().div_ceil(PAGE);
            pages.take_unused(end)
        };
        self.give_room(taken.count());
        taken.count()
    }

    /// A share of the run around page `index`, if it is one and all of it lies in the file.
    pub fn run(&self, index: u64) -> Option<HugeFrame> {
        if self.has_whole_run(index) { self.pages.lock().run(index) } else { None }
    }

    /// Makes the single pages of the 2 MiB around page `index` one run, and what is missing zeros.
    /// EINVAL for a file that is not only memory, where nothing is, or behind the end; ENOMEM
    /// without memory in one piece, or room; EAGAIN while somebody has a page of it. Takes the
    /// locks of address spaces.
    pub fn collapse(&self, index: u64) -> Result<()> {
        let first = index / RUN * RUN;
        if !self.is_only_memory() || first >= self.size().div_ceil(PAGE) {
            return Err(Errno::EINVAL);
        }
        if self.pages.lock().run(first).is_some() {
            return Ok(());
        }
        let memory = HugeFrame::alloc_zeroed().ok_or(Errno::ENOMEM)?;
        let mut old: Vec<_> = Vec::new();
        old.try_reserve_exact(HUGE_FRAMES).map_err(|_| Errno::ENOMEM)?;
        self.unmap_shared(first, first + RUN);
        // Nobody takes pages out meanwhile.
        let _resizing = self.resizing.lock();
        let there = self.pages.lock().count_in(first..first + RUN) as usize;
        if self.pages.lock().run(first).is_some() {
            return Ok(());
        }
        if there == 0 {
            return Err(Errno::EINVAL);
        }
        self.take_room(HUGE_FRAMES - there).map_err(|_| Errno::ENOMEM)?;
        let begun = {
            let mut pages = self.pages.lock();
            // What has come meanwhile has its room.
            let is_same = pages.count_in(first..first + RUN) as usize == there;
            is_same.then(|| pages.begin_move(first, &mut old)).flatten()
        };
        if begun.is_none() {
            self.give_room(HUGE_FRAMES - there);
            return Err(Errno::EAGAIN);
        }
        for (at, frame) in &old {
            memory.part((at - first) as usize).copy_from(frame, PAGE_SIZE);
        }
        let replaced = self.pages.lock().end_move(first, memory);
        self.settled.wake_all(0);
        drop(replaced);
        Ok(())
    }
}
