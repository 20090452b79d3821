//! One virtual CPU and the loop that runs it: enter, decide what the exit means, enter again, until
//! the VMM has to decide.
//!
//! The hardware is a [`Vmrun`], the rest of the world a [`Host`]; the tests script both. What the
//! VMM must be asked for is an [`Outcome`]; its answer comes with the next [`Vcpu::run`].
//!
//! Reading order: [`Vcpu::run`], `events`, `exits`, `bus`, `msrs`.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::cpuid::Table;
use crate::event::Pending;
use crate::exit::{Entered, Exit, Vmrun, Windows};
use crate::msr;
use crate::regs::{System, flags, gpr, seg};

mod bus;
mod events;
mod exits;
mod msrs;

use bus::Replay;
pub use exits::is_valid_xcr0;

/// Where a virtual CPU is in its life (the numbers are KVM's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MpState {
    /// Runs.
    #[default]
    Runnable = 0,
    /// An application processor before its INIT.
    Uninitialized = 1,
    /// Waits for its SIPI.
    InitReceived = 2,
    /// Waits for an interrupt.
    Halted = 3,
    /// Its start was announced.
    SipiReceived = 4,
}

impl MpState {
    /// By KVM's number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<MpState> {
        const ALL: [MpState; 5] = [
            MpState::Runnable,
            MpState::Uninitialized,
            MpState::InitReceived,
            MpState::Halted,
            MpState::SipiReceived,
        ];
        ALL.get(number as usize).copied()
    }
}

/// What a guest-physical address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Memory; the CPU can reach it now.
    Memory,
    /// No memory: a device, or nothing.
    Device,
    /// Memory that the VMM does not really have.
    Failed,
}

/// What the interrupt controller has for this CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// One that could be delivered.
    pub ready: bool,
    /// One waits for a lower task priority.
    pub masked: bool,
    /// The task priority, 0 to 15.
    pub priority: u8,
}

/// What other CPUs have sent, beside interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// INIT.
    pub init: bool,
    /// The start address of a SIPI, in pages.
    pub startup: Option<u8>,
    /// NMIs, at most two count.
    pub nmis: u8,
}

/// Whether a wait was worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Something may have come.
    Woken,
    /// The VMM's thread has a signal.
    Interrupted,
}

/// The rest of the world, as one virtual CPU sees it.
pub trait Host {
    /// Reads guest-physical memory; false if some of it is none.
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool;
    /// Writes guest-physical memory; false if some of it is none, or read-only.
    fn write(&mut self, address: u64, from: &[u8]) -> bool;
    /// Makes an address reachable for the CPU.
    fn map(&mut self, address: u64, write: bool, exec: bool) -> Mapped;
    /// Reads a device of the kernel's; false: there is none.
    fn device_read(&mut self, address: u64, into: &mut [u8]) -> bool;
    /// Writes to a device of the kernel's, or leaves the write where the VMM finds it later; false:
    /// neither.
    fn device_write(&mut self, address: u64, from: &[u8]) -> bool;
    /// As `device_read`, for a port.
    fn port_read(&mut self, port: u16, into: &mut [u8]) -> bool;
    /// As `device_write`, for a port.
    fn port_write(&mut self, port: u16, from: &[u8]) -> bool;
    /// Whether something must be done before the guest may be entered. Called with interrupts
    /// masked.
    fn is_busy(&mut self) -> bool;
    /// Does that. True: the VMM's thread has to be let go (a signal).
    fn work(&mut self) -> bool;
    /// Whether the kernel has the interrupt controllers; else the VMM has.
    fn has_controller(&self) -> bool;
    /// What they have for this CPU.
    fn interrupts(&mut self) -> Interrupts;
    /// Whether the kernel has the 8259s, too: else the VMM gives their interrupts.
    fn has_pic(&self) -> bool {
        self.has_controller()
    }
    /// Whether this CPU listens to the 8259s now.
    fn takes_external(&self) -> bool {
        true
    }
    /// A level-triggered interrupt that the guest has ended, and whose I/O APIC is the VMM's.
    fn ended_level(&mut self) -> Option<u8> {
        None
    }
    /// Takes the interrupt that [`Interrupts::ready`] told of.
    fn acknowledge(&mut self) -> Option<u8>;
    /// The guest has set the task priority.
    fn set_priority(&mut self, priority: u8);
    /// What others have sent since the last call.
    fn signals(&mut self) -> Signals;
    /// Sleeps until something has come for this CPU.
    fn wait(&mut self) -> Waited;
    /// The guest spins.
    fn pause(&mut self);
    /// Reads a register of the interrupt controller or the clock; None: it is not one.
    fn read_msr(&mut self, number: u32) -> Option<u64>;
    /// Writes one; None: it is not one, false: not with this value.
    fn write_msr(&mut self, number: u32, value: u64) -> Option<bool>;
    /// Whether this is the CPU that starts the machine.
    fn is_boot_cpu(&self) -> bool;
    /// The host's time-stamp counter.
    fn tsc(&self) -> u64;
    /// What to add to it so that the guest reads `value` now. VMMs set all CPUs to the same value
    /// one after the other, and mean that they agree.
    fn tsc_offset(&mut self, value: u64, by_guest: bool) -> u64;
    /// XCR0 bits the guest may set.
    fn xcr0_allowed(&self) -> u64;
}

/// Why the VMM is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Ports: the data of an OUT is in [`Vcpu::port_data`], an IN's belongs there.
    Io {
        /// IN.
        is_in: bool,
        /// Bytes of one transfer.
        size: u8,
        /// The port.
        port: u16,
        /// Transfers.
        count: u32,
    },
    /// Memory of a device.
    Mmio {
        /// Guest-physical.
        address: u64,
        /// The bytes of a write; a read's belong to [`Vcpu::answer_mmio`].
        data: [u8; 8],
        /// How many.
        len: u8,
        /// It is a write.
        write: bool,
    },
    /// HLT, and the VMM has the interrupt controllers.
    Halted,
    /// Triple fault.
    Shutdown,
    /// The VMM's thread has a signal, or asked not to enter.
    Interrupted,
    /// An interrupt can be given now.
    WindowOpen,
    /// The interrupt of this vector was ended, for the VMM's I/O APIC.
    EndOfInterrupt(u8),
    /// The CPU refused the state.
    FailedEntry,
    /// The CPU lost the state.
    LostGuest,
    /// Nobody knows how to go on: an instruction that software cannot execute (its bytes), or an
    /// exit that nobody asked for.
    Internal {
        /// Emulation failed, else an unknown exit.
        emulation: bool,
        /// The hardware's code.
        code: u64,
    },
    /// The guest uses memory that the VMM has unmapped.
    BadMemory,
}

/// Bytes of [`Vcpu::port_data`].
pub const PORT_BYTES: usize = 4096;

/// What the next [`Vcpu::run`] does first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Resume {
    #[default]
    Enter,
    /// An IN's answer goes to RAX.
    PortIn { size: u8, next_rip: u64 },
    /// The instruction is begun again, with what has been answered.
    Emulate { with_ports: bool },
}

/// Zeros on the heap that have not been on the stack. None without memory.
fn zeros<T: Copy + Default, const N: usize>() -> Option<Box<[T; N]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(N).ok()?;
    values.resize(N, T::default());
    values.into_boxed_slice().try_into().ok()
}

/// See the module.
pub struct Vcpu<H: Vmrun> {
    /// The hardware's part.
    pub hardware: H,
    /// Events on their way.
    pub pending: Pending,
    /// Where it is in its life.
    pub mp_state: MpState,
    /// What CPUID tells.
    pub cpuid: Table,
    /// Data of port transfers.
    pub port_data: Box<[u8; PORT_BYTES]>,
    /// The VMM wants to know when an interrupt can be given.
    pub wants_window: bool,
    /// The VMM wants the loop to end before an entry.
    pub exits_at_once: bool,
    msrs: Box<[u64; msr::PLAIN_COUNT]>,
    resume: Resume,
    replay: Replay,
    /// Writes to devices of the VMM's that it has not been told of: address, length, bytes.
    writes: VecDeque<(u64, u8, [u8; 8])>,
}

/// Most writes that wait; one instruction makes two at most.
const MAX_WRITES: usize = 16;

impl<H: Vmrun> Vcpu<H> {
    /// A CPU as it is after power-on. None without memory.
    #[must_use]
    pub fn new(hardware: H) -> Option<Vcpu<H>> {
        let mut writes = VecDeque::new();
        writes.try_reserve(MAX_WRITES + 2).ok()?;
        let mut vcpu = Vcpu {
            hardware,
            pending: Pending::default(),
            mp_state: MpState::Runnable,
            cpuid: Table::default(),
            port_data: zeros()?,
            wants_window: false,
            exits_at_once: false,
            msrs: zeros()?,
            resume: Resume::Enter,
            replay: Replay::default(),
            writes,
        };
        vcpu.reset();
        Some(vcpu)
    }

    /// What INIT does (AMD APM 2, 14.1): registers as after power-on.
    pub fn reset(&mut self) {
        self.hardware.set_system(&System::reset());
        *self.hardware.gprs() = [0; 16];
        // Family, model, stepping, as CPUID tells them.
        self.hardware.gprs()[gpr::RDX] = self.cpuid.find(1, 0).map_or(0x600, |r| r[0].into());
        self.hardware.set_rip(0xfff0);
        self.hardware.set_rflags(flags::FIXED);
        self.hardware.set_shadow(false);
        *self.hardware.debug_registers() = [0, 0, 0, 0, 0, 0, 0xffff_0ff0, 0x400];
        *self.hardware.xcr0() = 1;
        self.hardware.flush_translations();
        self.pending = Pending::default();
        self.forget_instruction();
    }

    /// The VMM has changed registers: what was begun with the old ones is not gone on with.
    pub fn forget_instruction(&mut self) {
        self.resume = Resume::Enter;
        self.replay.clear();
    }

    /// The answer to a read of [`Outcome::Mmio`].
    pub fn answer_mmio(&mut self, data: [u8; 8]) {
        self.replay.answer(data);
    }

    /// Runs the guest until the VMM has to be asked.
    pub fn run(&mut self, host: &mut impl Host) -> Outcome {
        if let Some(outcome) = self.next_write() {
            return outcome;
        }
        if let Some(outcome) = self.finish_exit(host) {
            return outcome;
        }
        loop {
            if self.exits_at_once || host.work() {
                return Outcome::Interrupted;
            }
            if let Some(vector) = host.ended_level() {
                return Outcome::EndOfInterrupt(vector);
            }
            self.take_signals(host);
            if self.mp_state != MpState::Runnable {
                match self.wait(host) {
                    Some(outcome) => return outcome,
                    None => continue,
                }
            }
            let windows = match self.prepare_events(host) {
                Ok(windows) => windows,
                Err(outcome) => return outcome,
            };
            match self.enter(host, windows) {
                Entered::Busy => {}
                Entered::Left(exit) => {
                    let outcome = self.handle(host, exit);
                    if let Some(outcome) = outcome.or_else(|| self.next_write()) {
                        return outcome;
                    }
                }
            }
        }
    }

    fn enter(&mut self, host: &mut impl Host, windows: Windows) -> Entered {
        if let Some(at) = self.hardware.pdptes_due() {
            let mut bytes = [[0; 8]; 4];
            // What is not there is not present either.
            if !host.read(at, bytes.as_flattened_mut()) {
                bytes = [[0; 8]; 4];
            }
            self.hardware.set_pdptes(bytes.map(u64::from_le_bytes));
        }
        let entered = self.hardware.enter(windows, &mut || host.is_busy());
        match (entered, self.hardware.cut_short()) {
            // Not even begun.
            (Entered::Busy, event) => self.pending.cut_short = event,
            (_, Some(event)) => self.pending.was_cut_short(event),
            (_, None) => {}
        }
        if host.has_controller() && entered != Entered::Busy {
            host.set_priority(self.hardware.priority());
        }
        entered
    }

    /// The next write that the VMM has not been told of.
    fn next_write(&mut self) -> Option<Outcome> {
        let (address, len, data) = self.writes.pop_front()?;
        Some(Outcome::Mmio { address, data, len, write: true })
    }

    /// Goes on where the VMM was asked.
    fn finish_exit(&mut self, host: &mut impl Host) -> Option<Outcome> {
        match core::mem::take(&mut self.resume) {
            Resume::Enter => None,
            Resume::PortIn { size, next_rip } => {
                let mut data = [0; 4];
                data.copy_from_slice(&self.port_data[..4]);
                self.finish_port_in(size, next_rip, data);
                None
            }
            Resume::Emulate { with_ports } => {
                self.emulate(host, with_ports).or_else(|| self.next_write())
            }
        }
    }

    fn take_signals(&mut self, host: &mut impl Host) {
        let signals = host.signals();
        for _ in 0..signals.nmis.min(2) {
            self.pending.post_nmi();
        }
        if signals.init {
            self.reset();
            self.mp_state = match host.is_boot_cpu() {
                true => MpState::Runnable,
                false => MpState::InitReceived,
            };
        }
        if let Some(page) = signals.startup
            && self.mp_state == MpState::InitReceived
        {
            let mut system = self.hardware.system();
            system.segments[seg::CS].selector = u16::from(page) << 8;
            system.segments[seg::CS].base = u64::from(page) << 12;
            self.hardware.set_system(&system);
            self.hardware.set_rip(0);
            self.mp_state = MpState::Runnable;
        }
    }

    /// Not runnable: sleeps, or tells the VMM.
    fn wait(&mut self, host: &mut impl Host) -> Option<Outcome> {
        if self.mp_state == MpState::SipiReceived {
            self.mp_state = MpState::Runnable;
            return None;
        }
        if self.mp_state == MpState::Halted {
            let wakes = self.pending.nmis > 0
                || self.pending.external.is_some()
                || self.pending.exception.is_some()
                || self.hardware.rflags() & flags::IF != 0 && host.interrupts().ready;
            if wakes {
                self.mp_state = MpState::Runnable;
                return None;
            }
            if !host.has_controller() {
                return Some(Outcome::Halted);
            }
        }
        match host.wait() {
            Waited::Woken => None,
            Waited::Interrupted => Some(Outcome::Interrupted),
        }
    }

    fn internal(exit: Exit) -> Outcome {
        let code = match exit {
            Exit::Unknown(code) => code,
            _ => 0,
        };
        Outcome::Internal { emulation: false, code }
    }
}
