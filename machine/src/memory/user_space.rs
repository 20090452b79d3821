//! What CPUs hold of a program's address space: its top table and what the shootdown knows of it.

use alloc::sync::Arc;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;

use super::isolation::{free_root, new_root, root_frames};
use super::kernel_space::kernel_root;
use super::notifiers::MmuNotifiers;
use super::walk::{ENTRIES, Slot, Table, Tables, User, Visit};
use crate::context_tracking::pcid;
use crate::context_tracking::tlb::TlbState;
use crate::cpu::percpu::{self, CpuCell, PerCpu};
use crate::cpu::sync::IrqGuard;
use crate::cpu::{MAX_CPUS, PhysAddr};
use crate::memory::frame::{self, Frame, OutOfMemory};

/// The part of an address space that CPUs refer to: its root and its TLB state. Frees the tables,
/// and the frames they still hold, with the last reference.
pub struct Space {
    root: PhysAddr,
    /// Never 0, and never another space's.
    id: u64,
    /// Tables below the root.
    tables: AtomicU64,
    tlb: TlbState,
    /// Who has translations of their own made from its tables.
    pub(crate) notifiers: MmuNotifiers,
}

static NEXT_SPACE: AtomicU64 = AtomicU64::new(1);

/// Frames that the tables of all programs take.
static USER_TABLES: AtomicU64 = AtomicU64::new(0);

/// Frames that the tables of all programs take, roots included.
pub fn user_tables() -> u64 {
    USER_TABLES.load(Ordering::Relaxed)
}

/// The half of a space that is a program's.
pub(super) const USER_HALF: Range<u64> = 0..1 << 47;

impl Space {
    /// Its number: never 0, and never another space's.
    pub(crate) fn number(&self) -> u64 {
        self.id
    }

    /// The CPUs that have it loaded, a bit each, or had a moment ago.
    pub fn cpus(&self) -> u32 {
        self.tlb.cpus()
    }

    /// An empty user half beside the kernel's.
    pub(super) fn new() -> Result<Space, OutOfMemory> {
        let root = new_root().ok_or(OutOfMemory)?;
        USER_TABLES.fetch_add(root_frames(), Ordering::Relaxed);
        Ok(Space {
            root,
            id: NEXT_SPACE.fetch_add(1, Ordering::Relaxed),
            tables: AtomicU64::new(0),
            tlb: TlbState::new(),
            notifiers: MmuNotifiers::new(),
        })
    }

    /// Makes everybody forget what this space mapped in `pages` pages from `start` on, before the
    /// call: first the guests that have it as their memory, then every CPU. Returns when all have.
    /// May be called with interrupts masked.
    pub(crate) fn flush(&self, start: u64, pages: u64) {
        self.notifiers.invalidate(start, pages);
        self.tlb.flush(start, pages);
    }

    /// The same, when tables go with what they map: CPUs forget everything of the space. Dropping
    /// single pages promises nothing about cached entries of upper levels in the program's context
    /// (SDM 3A, 4.10.4.1, INVPCID).
    pub(crate) fn flush_tables(&self, start: u64, pages: u64) {
        self.notifiers.invalidate(start, pages);
        self.tlb.flush(0, u64::MAX >> frame::PAGE_SHIFT);
    }

    pub(super) fn root(&self) -> PhysAddr {
        self.root
    }

    /// Tables below the root.
    pub(super) fn tables(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// Notes that there are more tables, or fewer. Only who holds the `PageTable` exclusively does.
    pub(super) fn count_tables(&self, change: i64) {
        self.tables.fetch_add(change as u64, Ordering::Relaxed);
        USER_TABLES.fetch_add(change as u64, Ordering::Relaxed);
    }
}

static ACTIVE: PerCpu<CpuCell<Option<Arc<Space>>>> =
    PerCpu::from_array([const { CpuCell::new(None) }; MAX_CPUS]);

/// Loads `space` into CR3 unless it is there already. Kernel threads have no space of their own:
/// they run on whichever is active.
pub(crate) fn activate(space: &Arc<Space>) {
    let _irq = IrqGuard::new();
    let cpu = percpu::cpu_id();
    let switch = |active: &mut Option<Arc<Space>>| {
        if active.as_ref().is_some_and(|old| Arc::ptr_eq(old, space)) {
            return None;
        }
        // SAFETY: `ACTIVE` holds a reference to the space until this CPU has left it.
        let is_current = unsafe { space.tlb.join(cpu) };
        // `ACTIVE` keeps the root alive.
        pcid::load(space.id, space.root, is_current);
        let old = active.replace(space.clone());
        if let Some(old) = &old {
            old.tlb.leave(cpu);
        }
        old
    };
    // SAFETY: interrupts are masked; the closure does not reach ACTIVE again.
    let old = unsafe { ACTIVE.get().with(switch) };
    drop(old);
}

/// Leaves the active space for the kernel's own root. Used by a CPU that goes idle, so that the
/// tables of programs that ended do not linger.
pub fn deactivate() {
    let _irq = IrqGuard::new();
    let cpu = percpu::cpu_id();
    let leave = |active: &mut Option<Arc<Space>>| {
        let old = active.take()?;
        pcid::load_kernel_root(kernel_root());
        old.tlb.leave(cpu);
        Some(old)
    };
    // SAFETY: interrupts are masked; the closure does not reach ACTIVE again.
    let old = unsafe { ACTIVE.get().with(leave) };
    drop(old);
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: each CPU that has the root loaded holds an `Arc<Space>`: there is none, and who
        // changed the tree is gone, too.
        let tables = unsafe { Tables::<User>::at(self.root) };
        tables.visit(USER_HALF, &mut FreeAll);
        let frames = root_frames() + self.tables();
        USER_TABLES.fetch_sub(frames, Ordering::Relaxed);
        // SAFETY: as above, no CPU has the root loaded.
        unsafe { free_root(self.root) };
    }
}

/// Frees the tables of a space that is gone, and at the leaves the frames.
struct FreeAll;

impl Visit for FreeAll {
    /// A large page: small ones come as tables.
    fn leaf(&mut self, _va: u64, slot: Slot) -> ControlFlow<()> {
        if let Some(pfn) = slot.get().frame() {
            // SAFETY: the leaf owned a reference to each frame, and the table dies with this walk.
            unsafe { frame::release_huge(pfn) };
        }
        ControlFlow::Continue(())
    }

    fn pages(&mut self, _base: u64, table: Table, range: Range<usize>) -> ControlFlow<u64> {
        let mut frames: ArrayVec<u32, ENTRIES> = ArrayVec::new();
        let gathered = table.each_used(range, |_, entry| {
            frames.extend(entry.frame());
            ControlFlow::Continue(())
        });
        // SAFETY: the leaves owned these references, and the table dies with this walk.
        unsafe { frame::release(&frames) };
        gathered
    }

    fn takes_table(&self, _part: &Range<u64>) -> bool {
        true
    }

    fn table(&mut self, _va: u64, slot: Slot) -> ControlFlow<()> {
        // SAFETY: the table's frame was given to the tree by `into_raw`, and the tree is dead. What
        // it led to was visited before.
        drop(unsafe { Frame::from_raw(slot.get().to().frame()) });
        ControlFlow::Continue(())
    }
}
