//! Loading address spaces with process-context identifiers: the machine's side of
//! `context_tracking::pcid`. Without them (no PCID, or `nopcid`) every load of CR3 drops
//! everything, and this file only notes the values that `entry.S` loads.
//!
//! With page-table isolation the program's context is not the one in use while the kernel drops
//! translations. So it is marked, by taking NOFLUSH from the value that the way back loads
//! (`CpuLocal::user_cr3`); `entry.S` puts it back once loaded. An NMI may come between, but its
//! handlers change no program's translations.
//!
//! Neighbours: `memory` switches, `tlb` says when a space is behind.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use context_tracking::pcid::{self, Slots};

use crate::context_tracking::{local, word};
use crate::cpu::percpu::{self, CpuCell, PerCpu};
use crate::cpu::{self, Cr3, MAX_CPUS, PhysAddr, cr, features, has_pti, user_root};

static IN_USE: AtomicBool = AtomicBool::new(false);

static SLOTS: PerCpu<CpuCell<Slots>> =
    PerCpu::from_array([const { CpuCell::new(Slots::new()) }; MAX_CPUS]);

/// Whether CR3 names contexts.
#[inline(always)]
pub fn in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// Decides for all CPUs. On the first one, before [`init_cpu`].
pub(crate) fn init(command_line: &str) {
    let wanted = pcid::wanted(features().pcid, features().pge, command_line);
    IN_USE.store(wanted, Ordering::Relaxed);
}

/// Switches contexts on, on this CPU: CR4.PGE is set, and CR3 names context 0 (SDM 3A, 4.10.1).
pub(crate) fn init_cpu() {
    if !in_use() {
        return;
    }
    assert!(Cr3::read().context() == 0, "CR3 names a context already");
    // SAFETY: CPUID reports the feature, 64-bit mode is on, and CR3 was checked.
    unsafe { cpu::write_cr4(cpu::read_cr4() | cr::CR4_PCIDE) };
}

/// Loads the space `id` with its top table at `root`. `is_current`: as for [`Slots::enter`].
/// Interrupts are masked.
pub(crate) fn load(id: u64, root: PhysAddr, is_current: bool) {
    if !in_use() {
        let user = Cr3::plain(user_root(root));
        // SAFETY: every space has the kernel's half; the caller keeps the root alive.
        unsafe { Cr3::plain(root).load() };
        note(Cr3::plain(root), user, user);
        return;
    }
    let load = with_slots(|slots| {
        slots.leave(user_is_stale());
        slots.enter(id, is_current)
    });
    let is_dropped = word::catches_up_by_cr3();
    let load = if is_dropped { load.by_cr3() } else { load };
    let (kernel, user) =
        (|flush| Cr3::kernel(root, load.slot, flush), |flush| Cr3::user(root, load.slot, flush));
    // SAFETY: every space has the kernel's half; the caller keeps the root alive.
    unsafe { kernel(load.flush).load() };
    note(kernel(is_dropped), user(load.flush_user), user(false));
}

/// Loads the kernel's own root, which is at `root`. Its context never has translations of programs,
/// and what it has of the kernel is dropped with the others'. Interrupts are masked.
pub(crate) fn load_kernel_root(root: PhysAddr) {
    let mut value = Cr3::plain(root);
    if in_use() {
        with_slots(|slots| slots.leave(user_is_stale()));
        if !word::catches_up_by_cr3() {
            value = value.kept();
        }
    }
    // SAFETY: the kernel's root maps the kernel.
    unsafe { value.load() };
}

/// The way in which this CPU catches up has changed: makes what its entries load follow, and drops
/// what was kept by the way before. Interrupts are masked.
pub(crate) fn follow_tracking() {
    let noted = &percpu::local().kernel_cr3;
    let value = noted.get();
    if in_use() && has_pti() && value != Cr3::NONE {
        noted.set(if word::catches_up_by_cr3() { value.stale() } else { value.kept() });
        local::flush_all();
    }
}

/// Sets what `entry.S` loads: on the way in, on the way back, and on the ways back after that one.
fn note(kernel: Cr3, user: Cr3, user_keep: Cr3) {
    if has_pti() {
        let local = percpu::local();
        local.kernel_cr3.set(kernel);
        local.user_cr3.set(user);
        local.user_cr3_keep.set(user_keep);
    }
}

fn with_slots<R>(f: impl FnOnce(&mut Slots) -> R) -> R {
    // SAFETY: interrupts are masked by the callers, and `f` only decides.
    unsafe { SLOTS.get().with(f) }
}

fn user_is_stale() -> bool {
    percpu::local().user_cr3.get().is_stale()
}

/// The program's context of the active space has a translation that is gone.
fn mark_user_stale() {
    let user = &percpu::local().user_cr3;
    user.set(user.get().stale());
}

/// The kernel's context of the active space was dropped: so must the program's be.
pub(crate) fn dropped_all() {
    if in_use() && has_pti() {
        mark_user_stale();
    }
}

/// The page at `va` was dropped from the kernel's context of the active space: so must it be from
/// the program's.
pub(crate) fn dropped_page(va: u64) {
    if !in_use() || !has_pti() {
        return;
    }
    if !features().invpcid {
        return mark_user_stale();
    }
    let context = percpu::local().user_cr3.get().context();
    if context != 0 {
        let descriptor = [context, va];
        // SAFETY: CPUID reports INVPCID; dropping translations never makes an access unsound. Type
        // 0: one address (SDM 2A).
        unsafe {
            asm!("invpcid {}, [{}]", in(reg) 0u64, in(reg) &descriptor,
                 options(readonly, nostack));
        }
    }
}
