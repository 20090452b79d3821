//! The registers of a program that is in a system call.
//!
//! SYSCALL leaves a frame that SYSRET gives back, but for two flags (`entry::NEVER_BY_SYSRET`).
//! So a call on whose frame nobody has laid hands asks nothing else on its way out. Most calls only
//! read it and give a result, which `entry.S` puts there; who needs more takes [`CallRegs::all`],
//! and that is noted in the thread's exit-work word, which every way out looks at. There is no
//! other way to the frame, so nothing can be forgotten.

use core::marker::PhantomData;
use core::ops::Deref;

use entry::PtRegs;

use crate::cpu::percpu;

/// A program's registers, to be read.
#[repr(transparent)]
pub struct CallRegs {
    regs: PtRegs,
    // The note is the running thread's: the frame must be its own.
    _not_send: PhantomData<*const ()>,
}

impl CallRegs {
    /// # Safety
    /// `regs` is the frame of the running thread's call, whose way out looks at the exit-work word.
    #[inline(always)]
    pub(super) unsafe fn of(regs: &mut PtRegs) -> &mut CallRegs {
        // SAFETY: the layout is that of `PtRegs`, and the borrow goes on.
        unsafe { &mut *core::ptr::from_mut(regs).cast() }
    }

    /// All registers, to be changed: the way out looks at them again.
    #[inline]
    pub fn all(&mut self) -> &mut PtRegs {
        percpu::note_lent_frame();
        &mut self.regs
    }
}

impl Deref for CallRegs {
    type Target = PtRegs;

    #[inline(always)]
    fn deref(&self) -> &PtRegs {
        &self.regs
    }
}
