//! Translations that must be gone: an address is mapped, every other CPU uses it, and it is taken
//! away as the kernel takes it away; then every CPU tries again. One that does not fault has used
//! what is gone. On an emulator, too: QEMU keeps a translation until it is told.
//!
//! Neighbours: `kernel::ktest` runs the threads of the other CPUs.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::probe_write;
use crate::memory::frame::PAGE_SIZE;
use crate::text::text_poke::{self, late_range};
use crate::{ensure, memory};

/// What the CPUs share.
#[derive(Debug, Default)]
pub struct Stale {
    /// The address, and the number of the round: even while it is to be used, odd when it is gone.
    at: AtomicU64,
    phase: AtomicU32,
    /// CPUs that have used it.
    used: AtomicU32,
    /// CPUs that have tried it, and those for whom it was not gone.
    tried: AtomicU32,
    stale: AtomicU32,
    /// CPUs that take part.
    running: AtomicU32,
    stop: AtomicBool,
}

/// How long a CPU is waited for, in looks.
const PATIENCE: u64 = 100_000_000;
const ROUNDS: usize = 20;

impl Stale {
    /// CPUs that take part now.
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::SeqCst)
    }

    /// Ends [`Stale::follow`] everywhere.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// The part of the other CPUs: uses what there is to use, and tries what is gone, without ever
    /// leaving its CPU in between.
    pub fn follow(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
        let mut done = 0;
        while !self.stop.load(Ordering::SeqCst) {
            core::hint::spin_loop();
            let phase = self.phase.load(Ordering::SeqCst);
            if phase == done {
                continue;
            }
            done = phase;
            let can_write = probe_write(self.at.load(Ordering::SeqCst));
            if phase % 2 == 0 {
                self.used.fetch_add(u32::from(can_write), Ordering::SeqCst);
            } else {
                self.stale.fetch_add(u32::from(can_write), Ordering::SeqCst);
                self.tried.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// One round: `at` is mapped; `take_away` unmaps it, when all have used it.
    fn round(&self, others: u32, at: u64, take_away: impl FnOnce()) -> Result<(), String> {
        for count in [&self.used, &self.tried, &self.stale] {
            count.store(0, Ordering::SeqCst);
        }
        let all = |count: &AtomicU32| (0..PATIENCE).any(|_| count.load(Ordering::SeqCst) == others);
        ensure!(probe_write(at), "{at:#x} cannot be written");
        self.at.store(at, Ordering::SeqCst);
        // From 0 on: the first round is 2.
        self.phase.fetch_add(2 - self.phase.load(Ordering::SeqCst) % 2, Ordering::SeqCst);
        let all_used = all(&self.used);
        take_away();
        ensure!(all_used, "not every CPU has used {at:#x}");
        let here = probe_write(at);
        self.phase.fetch_add(1, Ordering::SeqCst);
        let all_tried = all(&self.tried);
        ensure!(all_tried, "not every CPU has tried {at:#x} again");
        let stale = self.stale.load(Ordering::SeqCst);
        ensure!(!here && stale == 0, "{at:#x}: gone, but not here ({here}) and on {stale} CPUs");
        Ok(())
    }

    /// The patcher's alias of text, each time a window is closed.
    pub fn alias(&self, others: u32) -> Result<(), String> {
        let page = late_range().end - PAGE_SIZE as u64;
        for _ in 0..ROUNDS {
            let window = text_poke::open_for_test(page);
            self.round(others, memory::text_alias(), || drop(window))?;
        }
        Ok(())
    }

    /// Large blocks, when they are given back for good.
    pub fn blocks(&self, others: u32) -> Result<(), String> {
        const BYTES: usize = 3 << 20;
        for _ in 0..ROUNDS {
            let mut block: Vec<u8> = Vec::new();
            block.try_reserve_exact(BYTES).map_err(|_| format!("no {BYTES} bytes"))?;
            let at = block.as_ptr() as u64 + (BYTES / 2) as u64;
            ensure!(crate::memory::vmap::contains(block.as_ptr()), "{at:#x} is no mapped block");
            self.round(others, at, || {
                drop(block);
                crate::trim_heap();
            })?;
        }
        Ok(())
    }
}
