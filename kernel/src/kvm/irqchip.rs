//! Interrupt controllers in the kernel (KVM_CREATE_IRQCHIP): a pair of 8259s, an I/O APIC, a local
//! APIC for each virtual CPU, and the interval timer; and from which line of the VMM's to which of
//! their pins (KVM_SET_GSI_ROUTING).
//!
//! Locks: one for each controller, held for one access; then a CPU's `Shared`. Nothing is called
//! with two of them held. Interrupts may be sent from interrupts.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::kvm::{self, IrqRouting, IrqRoutingEntry, PitChannel, PitState2};
use abi::{Errno, Result};
use machine::sync::{Once, SpinLock};
use virt::ioapic::{self, IoApic};
use virt::lapic::{Message, Mode};
use virt::pic::{Controller, Pic};
use virt::pit::{Channel, Pit};

use super::read_entries;
use super::vcpu::Shared;
use super::vm::Vm;
use crate::base::sync::Wake;
use crate::base::time::{Deadline, Timer, now_ns, wake_at};
use crate::base::user::UserPtr;

/// Lines of a VMM's, and most entries of the table.
pub(super) const MAX_ROUTES: usize = 4096;

/// Where a line leads.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// A pin of the 8259s, 0 to 15.
    Pic(usize),
    /// A pin of the I/O APIC.
    IoApic(usize),
    /// A message: address, data.
    Message(u32, u32),
}

type Table = Vec<(u32, Route)>;

/// See the module.
pub(super) struct IrqChip {
    /// The 8259s and the I/O APIC are the VMM's; those here are not used.
    pub(super) is_split: bool,
    pub(super) pic: SpinLock<Pic>,
    pub(super) ioapic: SpinLock<IoApic>,
    routes: SpinLock<Arc<Table>>,
    pub(super) pit: Once<Arc<PitDevice>>,
}

impl IrqChip {
    pub(super) fn new(is_split: bool) -> IrqChip {
        let both = (0..16).flat_map(|line| {
            [(line, Route::Pic(line as usize)), (line, Route::IoApic(line as usize))]
        });
        let rest = (16..ioapic::PINS as u32).map(|line| (line, Route::IoApic(line as usize)));
        let routes = if is_split { Vec::new() } else { both.chain(rest).collect() };
        IrqChip {
            is_split,
            pic: SpinLock::new(Pic::default()),
            ioapic: SpinLock::new(IoApic::default()),
            routes: SpinLock::new(Arc::new(routes)),
            pit: Once::new(),
        }
    }

    /// KVM_SET_GSI_ROUTING.
    pub(super) fn set_routes(&self, at: u64) -> Result<u64> {
        let head = UserPtr::<IrqRouting>::new(at).read()?;
        if head.flags != 0 || head.nr as usize > MAX_ROUTES {
            return Err(Errno::EINVAL);
        }
        let entries = read_entries::<IrqRouting, IrqRoutingEntry>(at, head.nr, MAX_ROUTES)?;
        let table = entries.iter().map(route).collect::<Result<Table>>()?;
        if self.is_split && table.iter().any(|(_, route)| !matches!(route, Route::Message(..))) {
            return Err(Errno::EINVAL);
        }
        let old = core::mem::replace(&mut *self.routes.lock(), Arc::new(table));
        drop(old);
        Ok(0)
    }

    /// A line of the VMM's goes up or down.
    pub(super) fn set_line(&self, vm: &Vm, line: u32, up: bool) {
        let routes = self.routes.lock().clone();
        for &(_, route) in routes.iter().filter(|(from, _)| *from == line) {
            match route {
                Route::Pic(pin) => {
                    let pending = {
                        let mut pic = self.pic.lock();
                        pic.set_line(pin, up);
                        pic.is_pending()
                    };
                    if pending {
                        vm.for_vcpus(|vcpu| vcpu.kick_for_external());
                    }
                }
                Route::IoApic(pin) => {
                    let message = self.ioapic.lock().set_line(pin, up);
                    message.into_iter().for_each(|message| deliver(vm, None, message));
                }
                Route::Message(address, data) if up => {
                    let message = Message::from_msi(address, data);
                    message.into_iter().for_each(|message| deliver(vm, None, message));
                }
                Route::Message(..) => {}
            }
        }
    }

    /// CPUs have ended a level-triggered interrupt.
    pub(super) fn end(&self, vm: &Vm, vector: u8) {
        let mut again = [None; ioapic::PINS];
        let mut ended = 0u32;
        self.ioapic.lock().end(vector, |pin, message| {
            ended |= 1 << pin;
            again[pin] = message;
        });
        again.into_iter().flatten().for_each(|message| deliver(vm, None, message));
        if ended != 0 {
            let routes = self.routes.lock().clone();
            let is_ended = |route: &Route| matches!(route, Route::IoApic(p) if ended >> p & 1 != 0);
            for (line, _) in routes.iter().filter(|(_, route)| is_ended(route)) {
                vm.line_ended(*line);
            }
        }
    }

    /// KVM_GET_IRQCHIP.
    pub(super) fn state(&self, at: u64) -> Result<u64> {
        let mut state = UserPtr::<kvm::IrqChip>::new(at).read()?;
        let pic = |n: usize| pic_bytes(&self.pic.lock().controllers[n]);
        match state.chip_id {
            kvm::IRQCHIP_PIC_MASTER => state.chip[..16].copy_from_slice(&pic(0)),
            kvm::IRQCHIP_PIC_SLAVE => state.chip[..16].copy_from_slice(&pic(1)),
            kvm::IRQCHIP_IOAPIC => {
                let ioapic = self.ioapic.lock();
                let (select, id, lines) = ioapic.state();
                state.chip[..8].copy_from_slice(&ioapic::ADDRESS.to_le_bytes());
                for (n, word) in [select, id, lines].into_iter().enumerate() {
                    state.chip[8 + 4 * n..12 + 4 * n].copy_from_slice(&word.to_le_bytes());
                }
                for pin in 0..ioapic::PINS {
                    let entry = ioapic.entry(pin).to_le_bytes();
                    state.chip[24 + 8 * pin..32 + 8 * pin].copy_from_slice(&entry);
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        UserPtr::<kvm::IrqChip>::new(at).write(&state)?;
        Ok(0)
    }

    /// KVM_SET_IRQCHIP.
    pub(super) fn set_state(&self, at: u64) -> Result<u64> {
        let state = UserPtr::<kvm::IrqChip>::new(at).read()?;
        let word =
            |at: usize| state.chip[at..at + 4].iter().rev().fold(0, |v, &b| v << 8 | u32::from(b));
        match state.chip_id {
            chip @ (kvm::IRQCHIP_PIC_MASTER | kvm::IRQCHIP_PIC_SLAVE) => {
                self.pic.lock().controllers[chip as usize] = pic_from(&state.chip);
            }
            kvm::IRQCHIP_IOAPIC => {
                let mut ioapic = self.ioapic.lock();
                ioapic.set_state((word(8), word(12), word(16)));
                for pin in 0..ioapic::PINS {
                    let (low, high) = (word(24 + 8 * pin), word(28 + 8 * pin));
                    ioapic.set_entry(pin, u64::from(high) << 32 | u64::from(low));
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}

fn route(entry: &IrqRoutingEntry) -> Result<(u32, Route)> {
    let [first, second, third, ..] = entry.data;
    let route = match (entry.kind, first) {
        (kvm::IRQ_ROUTING_IRQCHIP, kvm::IRQCHIP_PIC_MASTER) if second < 8 => {
            Route::Pic(second as usize)
        }
        (kvm::IRQ_ROUTING_IRQCHIP, kvm::IRQCHIP_PIC_SLAVE) if second < 8 => {
            Route::Pic(second as usize + 8)
        }
        (kvm::IRQ_ROUTING_IRQCHIP, kvm::IRQCHIP_IOAPIC) if (second as usize) < ioapic::PINS => {
            Route::IoApic(second as usize)
        }
        (kvm::IRQ_ROUTING_MSI, address) => Route::Message(address, third),
        _ => return Err(Errno::EINVAL),
    };
    if entry.gsi as usize >= MAX_ROUTES { Err(Errno::EINVAL) } else { Ok((entry.gsi, route)) }
}

fn pic_bytes(c: &Controller) -> [u8; 16] {
    [
        c.last_irr,
        c.irr,
        c.imr,
        c.isr,
        c.priority_add,
        c.irq_base,
        c.read_reg_select,
        c.poll,
        c.special_mask,
        c.init_state,
        c.auto_eoi,
        c.rotate_on_auto_eoi,
        c.special_fully_nested_mode,
        c.init4,
        c.elcr,
        c.elcr_mask,
    ]
}

fn pic_from(bytes: &[u8]) -> Controller {
    Controller {
        last_irr: bytes[0],
        irr: bytes[1],
        imr: bytes[2],
        isr: bytes[3],
        priority_add: bytes[4] & 7,
        // Vectors are the base and a line, below 256.
        irq_base: bytes[5] & 0xf8,
        read_reg_select: bytes[6],
        poll: bytes[7],
        special_mask: bytes[8],
        init_state: bytes[9],
        auto_eoi: bytes[10],
        rotate_on_auto_eoi: bytes[11],
        special_fully_nested_mode: bytes[12],
        init4: bytes[13],
        elcr: bytes[14],
        elcr_mask: bytes[15],
    }
}

/// Brings a message to the CPUs it is for.
pub(super) fn deliver(vm: &Vm, sender: Option<&Shared>, message: Message) {
    let mut is_done = false;
    vm.for_vcpus(|vcpu| {
        let Some(lapic) = &vcpu.lapic else { return };
        let is_own = sender.is_some_and(|sender| core::ptr::eq(sender, vcpu));
        let first_only = message.mode == Mode::LowestPriority;
        if first_only && is_done || !lapic.lock().is_target(message.target, is_own) {
            return;
        }
        let wakes = match message.mode {
            Mode::Fixed | Mode::LowestPriority => {
                let posted = lapic.lock().post(message.vector, message.is_level);
                is_done |= posted;
                posted
            }
            Mode::External => true,
            Mode::Nmi => {
                let nmis = &mut vcpu.signals.lock().nmis;
                *nmis = nmis.saturating_add(1);
                true
            }
            Mode::Init => {
                vcpu.signals.lock().init |= message.is_asserted;
                message.is_asserted
            }
            Mode::Startup => {
                vcpu.signals.lock().startup = Some(message.vector);
                true
            }
        };
        if wakes {
            vcpu.kick();
        }
    });
}

// ------------------------------------------------------------------------------------------------
// The interval timer

/// The timer, and the kernel's timer that its channel 0 is.
pub(super) struct PitDevice {
    own: Weak<PitDevice>,
    vm: Weak<Vm>,
    pit: SpinLock<Pit>,
    armed: SpinLock<Option<Timer>>,
    has_speaker: bool,
}

impl PitDevice {
    pub(super) fn new(vm: &Arc<Vm>, has_speaker: bool) -> Arc<PitDevice> {
        Arc::new_cyclic(|own| PitDevice {
            own: own.clone(),
            vm: Arc::downgrade(vm),
            pit: SpinLock::new(Pit::new(now_ns())),
            armed: SpinLock::new(None),
            has_speaker,
        })
    }

    fn has_port(&self, port: u16) -> bool {
        Pit::has_port(port) && (port != 0x61 || self.has_speaker)
    }

    pub(super) fn read(&self, port: u16) -> Option<u8> {
        self.has_port(port).then(|| self.pit.lock().read(port, now_ns()))
    }

    pub(super) fn write(&self, port: u16, value: u8) -> bool {
        if !self.has_port(port) {
            return false;
        }
        let restarted = self.pit.lock().write(port, value, now_ns());
        if restarted {
            self.arm();
        }
        true
    }

    fn arm(&self) {
        let deadline = self.pit.lock().deadline(now_ns());
        let mut armed = self.armed.lock();
        if let Some(timer) = armed.take() {
            timer.cancel();
        }
        if let (Some(at), Some(own)) = (deadline, self.own.upgrade()) {
            *armed = Some(wake_at(Deadline(at), own));
        }
    }

    /// The guest is gone.
    pub(super) fn stop(&self) {
        if let Some(timer) = self.armed.lock().take() {
            timer.cancel();
        }
    }

    pub(super) fn state(&self) -> PitState2 {
        let pit = self.pit.lock();
        let convert = |c: &Channel| PitChannel {
            count: c.count,
            latched_count: c.latched_count,
            count_latched: c.count_latched,
            status_latched: c.status_latched,
            status: c.status,
            read_state: c.read_state,
            write_state: c.write_state,
            write_latch: c.write_latch,
            rw_mode: c.rw_mode,
            mode: c.mode,
            bcd: c.bcd,
            gate: c.gate,
            count_load_time: c.loaded_ns,
        };
        PitState2 { channels: pit.channels.each_ref().map(convert), ..PitState2::default() }
    }

    pub(super) fn set_state(&self, state: &PitState2) {
        let convert = |c: &PitChannel| Channel {
            count: c.count.clamp(1, 0x1_0000),
            latched_count: c.latched_count,
            count_latched: c.count_latched,
            status_latched: c.status_latched,
            status: c.status,
            read_state: c.read_state,
            write_state: c.write_state,
            write_latch: c.write_latch,
            rw_mode: c.rw_mode,
            mode: c.mode,
            bcd: c.bcd,
            gate: c.gate,
            // Counting begins now, whenever it began for the one who saved it.
            loaded_ns: now_ns() as i64,
        };
        self.pit.lock().channels = state.channels.each_ref().map(convert);
        self.arm();
    }
}

impl Wake for PitDevice {
    fn wake(&self, _events: u32) -> bool {
        if let Some(vm) = self.vm.upgrade()
            && let Some(chip) = vm.irqchip.get()
        {
            chip.set_line(&vm, 0, true);
            chip.set_line(&vm, 0, false);
            self.arm();
        }
        true
    }
}
