//! Shadow stacks of programs, the CPU's part (SDM 1, 17.2): two registers for each thread.
//!
//! `U_CET` says whether a program's returns are checked. While it runs SSP is where its shadow
//! stack ends; every entry into the kernel keeps that in `PL3_SSP`, and every way back takes it
//! from there, both by the CPU itself, by SYSCALL and SYSRET as well. So between the two the
//! register is the thread's, and a switch saves and loads it. A thread without a shadow stack costs
//! a switch two comparisons; the boundary costs nobody anything.
//!
//! XSAVES could do the same, but needs another form of the whole image. Neighbours:
//! `cpu::shadow_stack` (the kernel's own, which need not be on), `memory::pte` (the pages),
//! `memory::uaccess` (what the kernel writes there),
//! `entry::shadow_stack` in mechanisms (the words and the calls).

use core::sync::atomic::{AtomicBool, Ordering};

use super::sealed::sealed;
use super::{USER_END, cr, features, msr, percpu, rdmsr, read_cr4, write_cr4, wrmsr};

sealed! {
    static EXIST: AtomicBool = AtomicBool::new(false);
}

/// Whether programs can have shadow stacks.
pub fn exist() -> bool {
    EXIST.load(Ordering::Relaxed)
}

/// Decides it: where the CPU has them, unless the command line says no.
pub(crate) fn init(command_line: &str) {
    let refused = formats::params::has_flag(command_line, "nousershstk");
    if refused {
        crate::log!("shadow stacks of programs: off, as asked for");
    }
    EXIST.store(features().shstk && !refused, Ordering::Relaxed);
}

/// Prepares this CPU: no program has a shadow stack, and there can be such. The kernel's own
/// returns and branches stay as they are.
pub(crate) fn init_cpu() {
    if !features().shstk {
        return;
    }
    // SAFETY: the register exists with shadow stacks. Its zero enforces nothing in programs, of
    // which none runs yet.
    unsafe { wrmsr(msr::U_CET, 0) };
    if !exist() {
        return;
    }
    let cr4 = read_cr4();
    if cr4 & cr::CR4_CET == 0 {
        // SAFETY: the register exists, and says what is enforced in the kernel: nothing so far.
        unsafe { wrmsr(msr::S_CET, 0) };
        // SAFETY: CPUID reports shadow stacks, CR0.WP is set, and nothing is enforced.
        unsafe { write_cr4(cr4 | cr::CR4_CET) };
    }
    assert!(read_cr4() & cr::CR4_CET != 0, "CR4.CET is not as it was chosen");
}

/// A thread's two registers. Without a shadow stack both are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserShadowStack {
    control: u64,
    pointer: u64,
}

impl UserShadowStack {
    /// None.
    pub const OFF: UserShadowStack = UserShadowStack { control: 0, pointer: 0 };

    /// One that ends at `pointer`, to which the program may write by WRSS or not. Panics unless
    /// there are such, and the return to a program can load the pointer.
    #[must_use]
    pub fn new(pointer: u64, allows_writes: bool) -> UserShadowStack {
        assert!(exist(), "this CPU has no shadow stacks");
        let writes = if allows_writes { cr::U_CET_WRSS } else { 0 };
        let control = cr::U_CET_SHADOW_STACK | writes;
        UserShadowStack { control, pointer: 0 }.at(pointer)
    }

    /// The same that ends elsewhere.
    #[must_use]
    pub(crate) fn at(self, pointer: u64) -> UserShadowStack {
        assert!(entry::shadow_stack::is_of_program(pointer, USER_END), "no program's shadow stack");
        UserShadowStack { pointer, ..self }
    }

    pub(crate) fn is_on(self) -> bool {
        self.control != 0
    }

    /// Where the running thread's ends, which has one.
    pub(crate) fn pointer() -> u64 {
        rdmsr(msr::PL3_SSP)
    }

    /// Keeps where the running thread's ends, before another one runs.
    #[inline(always)]
    pub(crate) fn save(&mut self) {
        if self.is_on() {
            self.pointer = UserShadowStack::pointer();
        }
    }

    /// Makes this CPU's registers these, when the thread that has them comes. Interrupts are
    /// masked.
    #[inline(always)]
    pub(crate) fn load(&self) {
        if self.control | percpu::local().user_cet.get() != 0 {
            self.write();
        }
    }

    #[cold]
    fn write(&self) {
        let local = percpu::local();
        if local.user_cet.get() != self.control {
            local.user_cet.set(self.control);
            // SAFETY: one of the two was on, so the register exists; a program's calls are all that
            // it changes.
            unsafe { wrmsr(msr::U_CET, self.control) };
        }
        // SAFETY: as before; the pointer is aligned and a program's, or 0, or what the CPU had put
        // there.
        unsafe { wrmsr(msr::PL3_SSP, self.pointer) };
    }
}
