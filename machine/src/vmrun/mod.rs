//! Runs guests: the machine's side of `mechanisms/svm` and `mechanisms/vmx`.
//!
//! What is hard: a guest is anything its VMM and itself want it to be, and must still reach nothing
//! but the memory its VMM has. So everything that leads out of the guest is written at each entry
//! by [`amd`] or [`intel`], and nowhere else. What the kernel can set (registers, events) is the
//! guest's own business, whatever the values.
//!
//! Entries are made with interrupts masked, in the thread that wants it, so nothing of the thread's
//! is switched: floating-point registers are its own to set (`FpuState`). Debug registers and XCR0
//! are switched here when they differ.
//!
//! Neighbours: `nested` has the tables, `tlb` tells it what leaves an address space; `behind.S` is
//! what precedes the first return behind an exit.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use svm::Svm;
use virt::Event;
use virt::exit::{Entered, Vmrun, Windows};
use virt::regs::{Gprs, Segment, System};
use vmx::Vmx;

use crate::cpu::sync::Once;
use crate::cpu::{self, features};
use crate::memory::frame::OutOfMemory;

pub(crate) mod amd;
mod intel;
mod nested;

pub use nested::{MAX_SLOTS, MapError, NestedSpace, Slot};

/// What this CPU's virtualisation is.
#[derive(Clone, Copy, Debug)]
pub enum Ability {
    /// AMD's.
    Svm(amd::Ability),
    /// Intel's.
    Vmx(vmx::Controls),
}

/// None: no guests can run.
pub fn ability() -> Option<Ability> {
    static ABILITY: Once<Option<Ability>> = Once::new();
    *ABILITY.call_once(|| {
        let svm = amd::detect().map(Ability::Svm);
        svm.or_else(|| intel::detect().map(Ability::Vmx))
    })
}

/// Where a table in the image is that CPUs read by its physical address.
fn image_phys<T>(of: &'static T) -> u64 {
    let at: *const T = of;
    at as u64 - crate::cpu::kernel_base()
}

/// A virtual CPU's hardware part, whoever made the CPU.
#[expect(clippy::large_enum_variant, reason = "one for each virtual CPU, which is on the heap")]
pub enum Hardware {
    /// AMD's.
    Svm(Svm<amd::Vcpu>),
    /// Intel's.
    Vmx(Vmx<intel::Vcpu>),
}

impl Hardware {
    /// A virtual CPU that reaches the memory of `space`; its registers are yet to be set. Fails
    /// where no guests can run, too.
    pub fn new(space: Arc<NestedSpace>) -> Result<Hardware, OutOfMemory> {
        Ok(match ability().ok_or(OutOfMemory)? {
            Ability::Svm(_) => Hardware::Svm(Svm::new(amd::Vcpu::new(space)?)),
            Ability::Vmx(controls) => Hardware::Vmx(Vmx::new(intel::Vcpu::new(space, controls)?)),
        })
    }
}

/// The same call on either.
macro_rules! of {
    ($hardware:expr, $cpu:ident => $call:expr) => {
        match $hardware {
            Hardware::Svm($cpu) => $call,
            Hardware::Vmx($cpu) => $call,
        }
    };
}

impl Vmrun for Hardware {
    fn gprs(&mut self) -> &mut Gprs {
        of!(self, cpu => cpu.gprs())
    }

    fn rip(&self) -> u64 {
        of!(self, cpu => cpu.rip())
    }

    fn set_rip(&mut self, rip: u64) {
        of!(self, cpu => cpu.set_rip(rip));
    }

    fn rflags(&self) -> u64 {
        of!(self, cpu => cpu.rflags())
    }

    fn set_rflags(&mut self, rflags: u64) {
        of!(self, cpu => cpu.set_rflags(rflags));
    }

    fn system(&self) -> System {
        of!(self, cpu => cpu.system())
    }

    fn set_system(&mut self, system: &System) {
        of!(self, cpu => cpu.set_system(system));
    }

    fn segment(&self, index: usize) -> Segment {
        of!(self, cpu => cpu.segment(index))
    }

    fn cpl(&self) -> u8 {
        of!(self, cpu => cpu.cpl())
    }

    fn shadow(&self) -> bool {
        of!(self, cpu => cpu.shadow())
    }

    fn set_shadow(&mut self, shadow: bool) {
        of!(self, cpu => cpu.set_shadow(shadow));
    }

    fn msr(&self, number: u32) -> Option<u64> {
        of!(self, cpu => cpu.msr(number))
    }

    fn set_msr(&mut self, number: u32, value: u64) -> bool {
        of!(self, cpu => cpu.set_msr(number, value))
    }

    fn debug_registers(&mut self) -> &mut [u64; 8] {
        of!(self, cpu => cpu.debug_registers())
    }

    fn tsc_offset(&mut self) -> &mut u64 {
        of!(self, cpu => cpu.tsc_offset())
    }

    fn xcr0(&mut self) -> &mut u64 {
        of!(self, cpu => cpu.xcr0())
    }

    fn priority(&self) -> u8 {
        of!(self, cpu => cpu.priority())
    }

    fn set_priority(&mut self, priority: u8) {
        of!(self, cpu => cpu.set_priority(priority));
    }

    fn next_rip(&self) -> Option<u64> {
        of!(self, cpu => cpu.next_rip())
    }

    fn inject(&mut self, event: Event) {
        of!(self, cpu => cpu.inject(event));
    }

    fn cut_short(&mut self) -> Option<Event> {
        of!(self, cpu => cpu.cut_short())
    }

    fn flush_translations(&mut self) {
        of!(self, cpu => cpu.flush_translations());
    }

    fn cr4_allowed(&self) -> u64 {
        of!(self, cpu => cpu.cr4_allowed())
    }

    fn pdptes_due(&self) -> Option<u64> {
        of!(self, cpu => cpu.pdptes_due())
    }

    fn set_pdptes(&mut self, entries: [u64; 4]) {
        of!(self, cpu => cpu.set_pdptes(entries));
    }

    fn enter(&mut self, windows: Windows, is_busy: &mut dyn FnMut() -> bool) -> Entered {
        of!(self, cpu => cpu.enter(windows, is_busy))
    }
}

/// What XSAVE manages, for the time of an entry.
struct Xcr0 {
    /// What the guest is left with where there is no XSAVE.
    guest: u64,
}

static XCR0_LOGGED: AtomicBool = AtomicBool::new(false);

impl Xcr0 {
    /// Loads the guest's, as far as the host has it.
    fn load(guest: u64) -> Xcr0 {
        let host = features().xcr0;
        let value = guest & host | 1;
        if !features().xsave || value == host {
            return Xcr0 { guest };
        }
        if !virt::vcpu::is_valid_xcr0(value, host) {
            // The kernel has let a value through that the CPU would refuse.
            if !XCR0_LOGGED.swap(true, Ordering::Relaxed) {
                crate::log!("a guest's XCR0 of {guest:#x} is none");
            }
            return Xcr0 { guest };
        }
        cpu::set_xcr0(value);
        Xcr0 { guest }
    }

    /// The host's again; what the guest has left. It is read, not assumed: QEMU's emulation does
    /// not intercept XSETBV (seen with 7.2), and then the guest has set the register itself.
    fn restore(self) -> u64 {
        if !features().xsave {
            return self.guest;
        }
        let left = cpu::xcr0();
        if left != features().xcr0 {
            cpu::set_xcr0(features().xcr0);
        }
        left
    }
}
