//! The seam between what a virtual CPU is and what runs it: [`Vmrun`] enters the guest, [`Exit`]
//! says why it came back. AMD's hardware is behind it (`mechanisms/svm`), Intel's
//! (`mechanisms/vmx`), and scripted tests.

use crate::event::Event;
use crate::regs::{Gprs, Segment, System};

/// Why the guest was left. Where RIP is: at the instruction, unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// An interrupt, NMI or the like of the host: handled by now.
    Host,
    /// The window that was asked for is open.
    InterruptWindow,
    /// IRET at the end of an NMI's handler.
    NmiReturn,
    /// The guest has ended its NMI's handler.
    NmiWindow,
    /// HLT.
    Halt,
    /// CPUID.
    Cpuid,
    /// RDMSR.
    ReadMsr,
    /// WRMSR.
    WriteMsr,
    /// IN, OUT, INS or OUTS.
    Io(Io),
    /// Nothing is mapped at the guest-physical address, or not with that right.
    NestedFault {
        /// Guest-physical, bytes.
        address: u64,
        /// It was a write.
        write: bool,
        /// It was an instruction fetch.
        exec: bool,
    },
    /// MOV to or from CR8, or another access to a control register that is intercepted.
    ControlRegister {
        /// Its number.
        number: u8,
        /// MOV to it.
        write: bool,
    },
    /// MOV to or from a debug register.
    DebugRegister {
        /// Its number.
        number: u8,
        /// MOV to it.
        write: bool,
    },
    /// An exception that is intercepted.
    Exception {
        /// Its vector.
        vector: u8,
        /// Its error code; 0 if it has none.
        error: u32,
    },
    /// XSETBV.
    SetXcr,
    /// PAUSE, too often.
    Pause,
    /// WBINVD or INVD: caches are the host's business.
    CacheFlush,
    /// MONITOR or MWAIT.
    Monitor,
    /// RDPMC.
    ReadCounter,
    /// VMCALL or VMMCALL.
    Hypercall,
    /// An instruction of virtualisation itself, or one that guests do not have.
    Undefined,
    /// A task switch through a task gate or TSS.
    TaskSwitch,
    /// Triple fault.
    Shutdown,
    /// The CPU refused the state: it is the VMM's mistake.
    Invalid,
    /// The CPU left its own state where the guest's belongs, which is lost.
    Lost,
    /// Something that was not asked for; the hardware's code.
    Unknown(u64),
}

/// One I/O instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// The port.
    pub port: u16,
    /// Bytes of one transfer: 1, 2 or 4.
    pub size: u8,
    /// IN or INS.
    pub is_in: bool,
    /// INS or OUTS.
    pub is_string: bool,
    /// RIP behind the instruction.
    pub next_rip: u64,
}

/// What an entry waits for, beside exits of the guest's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Exit once the guest can take an interrupt.
    pub interrupt: bool,
    /// The guest is in an NMI's handler: exit at its IRET ([`Exit::NmiReturn`]) or behind it
    /// ([`Exit::NmiWindow`]).
    pub nmi: bool,
    /// Exit at a write of CR8: an interrupt waits for a lower priority.
    pub priority: bool,
}

/// What became of an attempt to enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The guest ran, and was left.
    Left(Exit),
    /// Not entered: this CPU has something else to do first.
    Busy,
}

/// What runs guest code: a CPU's virtualisation, or a script.
///
/// RIP, RFLAGS and the system registers are the hardware's between two entries, too; so they are
/// asked for one by one. Values may be anything a guest or a VMM can set.
pub trait Vmrun {
    /// General registers, RAX and RSP included.
    fn gprs(&mut self) -> &mut Gprs;
    /// Instruction pointer.
    fn rip(&self) -> u64;
    /// Sets it.
    fn set_rip(&mut self, rip: u64);
    /// Flags.
    fn rflags(&self) -> u64;
    /// Sets them.
    fn set_rflags(&mut self, rflags: u64);
    /// All system registers.
    fn system(&self) -> System;
    /// Sets all system registers.
    fn set_system(&mut self, system: &System);
    /// One segment register, by [`crate::regs::seg`].
    fn segment(&self, index: usize) -> Segment;
    /// Current privilege level.
    fn cpl(&self) -> u8;
    /// Whether interrupts wait for one more instruction (STI, MOV SS).
    fn shadow(&self) -> bool;
    /// Sets that.
    fn set_shadow(&mut self, shadow: bool);
    /// A model-specific register that the hardware switches with the guest; None: it is not one.
    fn msr(&self, number: u32) -> Option<u64>;
    /// Sets one; false: it is not one.
    fn set_msr(&mut self, number: u32, value: u64) -> bool;
    /// Debug registers 0 to 3, 6 and 7 at their places.
    fn debug_registers(&mut self) -> &mut [u64; 8];
    /// What the guest reads beyond the host's TSC, ticks.
    fn tsc_offset(&mut self) -> &mut u64;
    /// The guest's XCR0.
    fn xcr0(&mut self) -> &mut u64;
    /// The task priority (CR8, 0 to 15) as the guest left it.
    fn priority(&self) -> u8;
    /// Sets it for the next entry.
    fn set_priority(&mut self, priority: u8);
    /// RIP behind the instruction that caused the last exit, where the hardware tells.
    fn next_rip(&self) -> Option<u64>;
    /// Delivers an event at the next entry. At most one.
    fn inject(&mut self, event: Event);
    /// The event whose delivery the last exit cut short.
    fn cut_short(&mut self) -> Option<Event>;
    /// The guest's tables of this CPU's translations are to be forgotten at the next entry.
    fn flush_translations(&mut self);
    /// CR4 bits that the guest may set, where its writes are exits.
    fn cr4_allowed(&self) -> u64 {
        u64::MAX
    }
    /// Where in the guest's memory the four entries of PAE paging are that the hardware keeps, if
    /// they are to be read again.
    fn pdptes_due(&self) -> Option<u64> {
        None
    }
    /// These entries.
    fn set_pdptes(&mut self, _entries: [u64; 4]) {}
    /// Runs the guest until it exits. `is_busy` is asked when nothing can come between any more.
    fn enter(&mut self, windows: Windows, is_busy: &mut dyn FnMut() -> bool) -> Entered;
}
