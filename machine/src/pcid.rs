//! Loading address spaces with process-context identifiers: the machine's side of
//! `context_tracking::pcid`. Without them (no PCID, or `nopcid`) every load of CR3 drops
//! everything, and this file only notes the values that `entry.S` loads.
//!
//! With page-table isolation the program's context is not the one in use while the kernel drops
//! translations. So it is marked, by taking NOFLUSH from the value that the way back loads
//! (`CpuLocal::user_cr3`); `entry.S` puts it back once loaded. An NMI may come between, but its
//! handlers change no program's translations.
//!
//! Neighbours: `paging` switches, `tlb` says when a space is behind.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use context_tracking::pcid::{self, NOFLUSH, Slots};

use crate::cpu::{self, MAX_CPUS, cr, features};
use crate::paging::{self, USER_ROOT_BIT};
use crate::percpu::{self, CpuCell, PerCpu};

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
    assert!(cpu::read_cr3() & pcid::PCID_MASK == 0, "CR3 names a context already");
    // SAFETY: CPUID reports the feature, 64-bit mode is on, and CR3 was checked.
    unsafe { cpu::write_cr4(cpu::read_cr4() | cr::CR4_PCIDE) };
}

/// Loads the space `id` with its top table at `root`. `is_current`: as for [`Slots::enter`].
/// Interrupts are masked.
pub(crate) fn load(id: u64, root: u64, is_current: bool) {
    if !in_use() {
        // SAFETY: every space has the kernel's half; the caller keeps the root alive.
        unsafe { cpu::write_cr3(root) };
        note(root, root | USER_ROOT_BIT, root | USER_ROOT_BIT);
        return;
    }
    let load = with_slots(|slots| {
        slots.leave(user_is_stale());
        slots.enter(id, is_current)
    });
    let kernel = |flush| pcid::cr3(root, pcid::kernel_pcid(load.slot), flush);
    let user = |flush| pcid::cr3(root | USER_ROOT_BIT, pcid::user_pcid(load.slot), flush);
    // SAFETY: every space has the kernel's half; the caller keeps the root alive.
    unsafe { cpu::write_cr3(kernel(load.flush)) };
    note(kernel(false), user(load.flush_user), user(false));
}

/// Loads the kernel's own root. Its context never has translations of programs, and what it has of
/// the kernel is dropped with the others'. Interrupts are masked.
pub(crate) fn load_kernel_root() {
    let mut root = paging::kernel_root();
    if in_use() {
        with_slots(|slots| slots.leave(user_is_stale()));
        root |= NOFLUSH;
    }
    // SAFETY: the kernel's root maps the kernel.
    unsafe { cpu::write_cr3(root) };
}

/// Sets what `entry.S` loads: on the way in, on the way back, and on the ways back after that one.
fn note(kernel: u64, user: u64, user_keep: u64) {
    if paging::has_pti() {
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
    percpu::local().user_cr3.get() & NOFLUSH == 0
}

/// The program's context of the active space has a translation that is gone.
fn mark_user_stale() {
    let user = &percpu::local().user_cr3;
    user.set(user.get() & !NOFLUSH);
}

/// The kernel's context of the active space was dropped: so must the program's be.
pub(crate) fn dropped_all() {
    if in_use() && paging::has_pti() {
        mark_user_stale();
    }
}

/// The page at `va` was dropped from the kernel's context of the active space: so must it be from
/// the program's.
pub(crate) fn dropped_page(va: u64) {
    if !in_use() || !paging::has_pti() {
        return;
    }
    if !features().invpcid {
        return mark_user_stale();
    }
    let context = percpu::local().user_cr3.get() & pcid::PCID_MASK;
    if context != 0 {
        invpcid(Invalidate::Address, context, va);
    }
}

/// Drops every translation of every context, global ones included. False: no such instruction.
pub(crate) fn drop_everything() -> bool {
    if features().invpcid {
        invpcid(Invalidate::Everything, 0, 0);
    }
    features().invpcid
}

/// Types of INVPCID (SDM 2A).
#[derive(Clone, Copy)]
enum Invalidate {
    Address = 0,
    Everything = 2,
}

/// INVPCID, which CPUID reports.
fn invpcid(what: Invalidate, context: u64, va: u64) {
    let descriptor = [context, va];
    // SAFETY: callers have checked CPUID; dropping translations never makes an access unsound.
    unsafe {
        asm!("invpcid {}, [{}]", in(reg) what as u64, in(reg) &descriptor,
             options(readonly, nostack));
    }
}
