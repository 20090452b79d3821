//! The running thread: its address space, and the registers of its program that the CPU holds or
//! the switch has saved.
//!
//! All of it is the running thread's own doing, so no lock is needed; interrupts are masked where a
//! switch in between would load or save the same registers.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::Task;
use super::debug_registers::DebugRegisters;
use super::fpu::FpuState;
use crate::cpu::user_shadow_stack::UserShadowStack;
use crate::cpu::{self, features, msr, percpu, wrmsr};
use crate::memory::{self, Space};

pub(super) fn running() -> &'static Task {
    let task = percpu::running_task();
    assert!(!task.is_null(), "no thread runs yet");
    // SAFETY: the head is the first field of a `Task` (`repr(C)`), where the switch took it from.
    // The slot's reference keeps the running task alive, and only its own code calls this; callers
    // do not let the reference escape a function.
    unsafe { &*task.cast() }
}

/// Replaces the address space of the running thread (exec).
pub fn set_space(space: Arc<Space>) {
    let task = running();
    let old = task.space.lock().replace(space.clone());
    memory::activate(&space);
    drop(old);
}

/// What the running thread's program chose about speculation (`mitigations::by_program::flag`).
pub fn speculation() -> u32 {
    running().speculation.load(Ordering::Relaxed)
}

/// Changes that, at once.
pub fn set_speculation(flags: u32) {
    let before = running().speculation.swap(flags, Ordering::Relaxed);
    crate::mitigations::flags_changed(before, flags);
}

/// Leaves the address space of the running thread (exit), so that it can be freed.
pub fn leave_space() {
    let old = running().space.lock().take();
    memory::deactivate();
    drop(old);
}

/// Copies of the running program's FS and GS bases.
pub fn user_bases() -> (u64, u64) {
    read_bases()
}

/// Sets the running program's FS and GS bases. Callers that take them from a program check for user
/// space first.
pub fn set_user_bases(fs: u64, gs: u64) {
    write_bases(fs, gs);
}

/// Null segments with base 0, for a new program.
pub fn reset_user_segments() {
    let _irq = crate::cpu::sync::IrqGuard::new();
    if read_selectors() != 0 {
        load_selectors(0);
    }
    write_bases(0, 0);
}

/// With the 16 upper bits like bit 47, as any base is that a program can have. Emulators let
/// WRGSBASE load others, which must not fault in the kernel.
fn canonical(address: u64) -> u64 {
    ((address << 16) as i64 >> 16) as u64
}

/// Sets the bases of a program thread that has not run yet; the running program's selectors are its
/// own, too.
pub fn init_user_bases(task: &mut Task, fs: u64, gs: u64) {
    if let Some(user) = &mut task.user {
        let user = user.get_mut();
        (user.fs_base, user.gs_base, user.selectors) = (fs, gs, read_selectors());
    }
}

/// Where the running program's shadow stack ends; None where it has none.
pub fn shadow_stack_pointer() -> Option<u64> {
    // Entries have put it where a switch keeps it: whatever comes between, it is this thread's.
    own_shadow_stack().is_on().then(UserShadowStack::pointer)
}

/// Gives the running program this shadow stack, or takes its own.
pub fn set_shadow_stack(shadow: UserShadowStack) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).shadow = shadow };
    shadow.load();
}

/// Moves the end of the running program's shadow stack, which it has.
pub fn set_shadow_stack_pointer(pointer: u64) {
    let shadow = own_shadow_stack();
    assert!(shadow.is_on(), "no shadow stack");
    set_shadow_stack(shadow.at(pointer));
}

/// What the running program has, as it last was saved or set.
fn own_shadow_stack() -> UserShadowStack {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return UserShadowStack::OFF };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).shadow }
}

/// Gives a program thread that has not run yet the running program's shadow stack, or another one
/// of its kind that ends at `own`.
pub fn init_shadow_stack(task: &mut Task, own: Option<u64>) {
    let Some(pointer) = shadow_stack_pointer() else { return };
    if let Some(user) = &mut task.user {
        user.get_mut().shadow = own_shadow_stack().at(own.unwrap_or(pointer));
    }
}

/// Sets the hardware breakpoints of the running program.
pub fn set_debug_registers(registers: &DebugRegisters) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).debug = *registers };
    registers.load();
}

/// Arms the running program's hardware breakpoints anew. Interrupts are masked.
pub(crate) fn reload_debug_registers() {
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    unsafe { (*user).debug.load() };
}

/// Exchanges the running program's registers with the image `other`, which the CPU has then: a
/// guest's, while the program is in the kernel for it.
pub fn exchange_fpu(other: &mut FpuState) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile.
    let user = unsafe { &mut *user };
    user.fpu.save();
    core::mem::swap(&mut user.fpu, other);
    user.fpu.restore();
}

/// Gives the running program the registers of `image`.
pub fn set_fpu(image: &FpuState) {
    change_fpu(|own| own.copy_from(image));
}

/// Gives the running program the registers of an image that a program wrote
/// ([`FpuState::set_from_user`]).
pub fn set_fpu_from_user(image: &[u8]) {
    change_fpu(|own| own.set_from_user(image));
}

/// `change` is this module's own: it reaches no other reference to the running task's state.
fn change_fpu(change: impl FnOnce(&mut FpuState)) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let Some(user) = running().user_state() else { return };
    // SAFETY: the running task's state, interrupts masked: no switch touches it meanwhile, and
    // `change` does not get at it by another way.
    let user = unsafe { &mut *user };
    change(&mut user.fpu);
    user.fpu.restore();
}

/// Where the running program entered the kernel.
#[cfg(feature = "ktest")]
pub(crate) fn user_ip() -> u64 {
    let task = running();
    assert!(task.user.is_some(), "a kernel thread has no user registers");
    // SAFETY: the running program entered the kernel through the frame at the top of its stack, and
    // only this thread changes it. The field is copied, and no reference to the frame is made: the
    // call that is running holds one.
    unsafe { (&raw const (*task.user_regs()).rip).read_volatile() }
}

/// The FS base, and the GS base that the program has (the inactive one while in the kernel).
pub(super) fn read_bases() -> (u64, u64) {
    let fs = if features().fsgsbase {
        let fs;
        // SAFETY: FSGSBASE is enabled in CR4; reading has no effect.
        unsafe {
            core::arch::asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags));
        }
        fs
    } else {
        cpu::rdmsr(msr::FS_BASE)
    };
    (fs, cpu::rdmsr(msr::KERNEL_GS_BASE))
}

/// DS, ES, FS and GS, from the lowest 16 bits on.
#[inline(always)]
pub(crate) fn read_selectors() -> u64 {
    let (ds, es, fs, gs): (u64, u64, u64, u64);
    // SAFETY: reading selectors has no effect.
    unsafe {
        core::arch::asm!("mov {:e}, ds", "mov {:e}, es", "mov {:e}, fs", "mov {:e}, gs",
                         out(reg) ds, out(reg) es, out(reg) fs, out(reg) gs,
                         options(nomem, nostack, preserves_flags));
    }
    ds | es << 16 | fs << 32 | gs << 48
}

/// Loads what [`read_selectors`] gave. The program's bases must be loaded after it. Interrupts are
/// masked.
#[cold]
pub(crate) fn load_selectors(selectors: u64) {
    let [ds, es, fs, gs] = [0, 16, 32, 48].map(|at| (selectors >> at) as u32 & 0xffff);
    // SAFETY: a program had loaded them, from a GDT that never changes, so they do not fault; the
    // kernel uses no segment but GS, whose base is out of the way in between.
    unsafe {
        core::arch::asm!("mov ds, {:e}", "mov es, {:e}", "mov fs, {:e}",
                         "swapgs", "mov gs, {:e}", "swapgs",
                         in(reg) ds, in(reg) es, in(reg) fs, in(reg) gs,
                         options(nostack, preserves_flags));
    }
}

pub(super) fn write_bases(fs: u64, gs: u64) {
    let (fs, gs) = (canonical(fs), canonical(gs));
    if features().fsgsbase {
        // SAFETY: FSGSBASE is enabled; the value is canonical.
        unsafe {
            core::arch::asm!("wrfsbase {}", in(reg) fs, options(nomem, nostack, preserves_flags));
        }
    } else {
        // SAFETY: FS is the program's; the kernel does not use it. Canonical as above.
        unsafe { wrmsr(msr::FS_BASE, fs) };
    }
    // SAFETY: the inactive GS base is the program's; canonical as above.
    unsafe { wrmsr(msr::KERNEL_GS_BASE, gs) };
}
