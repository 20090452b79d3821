//! Which event the next entry delivers, and which windows it waits for (AMD APM 2, 8.5: what was
//! begun, exceptions, NMI, interrupts, in this order).

use super::{Host, Outcome, Vcpu};
use crate::event::{Event, vector};
use crate::exit::{Vmrun, Windows};
use crate::regs::flags;

impl<H: Vmrun> Vcpu<H> {
    pub(super) fn prepare_events(&mut self, host: &mut impl Host) -> Result<Windows, Outcome> {
        self.end_of_nmi();
        let mut is_busy = self.deliver_exception();
        if self.pending.nmis > 0 && !is_busy && !self.pending.nmi_masked && !self.hardware.shadow()
        {
            self.pending.nmis -= 1;
            self.pending.nmi_masked = true;
            self.hardware.inject(Event::Nmi);
            is_busy = true;
        }
        let mut windows = Windows {
            nmi: self.pending.nmi_masked && self.pending.nmi_return.is_none(),
            ..Windows::default()
        };
        let can_interrupt =
            !is_busy && self.hardware.rflags() & flags::IF != 0 && !self.hardware.shadow();
        if host.has_controller() {
            let interrupts = host.interrupts();
            self.hardware.set_priority(interrupts.priority);
            windows.priority = interrupts.masked;
            // Of the VMM's 8259, where only the local controllers are the kernel's.
            let ready = interrupts.ready || self.pending.external.is_some();
            let wants_window = self.wants_window && !host.has_pic() && host.takes_external();
            if ready && can_interrupt {
                if let Some(vector) = self.pending.external.take().or_else(|| host.acknowledge()) {
                    self.hardware.inject(Event::Interrupt(vector));
                }
            } else if !ready && can_interrupt && wants_window {
                return Err(Outcome::WindowOpen);
            } else {
                windows.interrupt = ready || wants_window;
            }
            return Ok(windows);
        }
        match self.pending.external {
            Some(vector) if can_interrupt => {
                self.pending.external = None;
                self.hardware.inject(Event::Interrupt(vector));
            }
            Some(_) => windows.interrupt = true,
            None if self.wants_window && can_interrupt => return Err(Outcome::WindowOpen),
            None => windows.interrupt = self.wants_window,
        }
        Ok(windows)
    }

    /// Whether an interrupt that the VMM gives now would be delivered at once.
    pub fn can_be_interrupted(&self) -> bool {
        let pending = &self.pending;
        self.hardware.rflags() & flags::IF != 0
            && !self.hardware.shadow()
            && pending.external.is_none()
            && pending.cut_short.is_none()
            && pending.exception.is_none()
    }

    /// What was cut short, or else a new exception. True if there was one.
    fn deliver_exception(&mut self) -> bool {
        if let Some(event) = self.pending.cut_short.take() {
            self.hardware.inject(event);
            return true;
        }
        let Some((number, error)) = self.pending.exception.take() else { return false };
        if let Some(address) = self.pending.fault_address.take() {
            let mut system = self.hardware.system();
            system.cr2 = address;
            self.hardware.set_system(&system);
        }
        // Faults leave RF set in what they push (AMD APM 2, 3.1.6); real mode pushes no code.
        if number != vector::DB {
            let rflags = self.hardware.rflags();
            self.hardware.set_rflags(rflags | flags::RF);
        }
        let error = error.filter(|_| self.hardware.system().is_protected());
        self.hardware.inject(Event::Exception(number, error));
        true
    }

    /// The handler's IRET has been executed once RIP is elsewhere.
    fn end_of_nmi(&mut self) {
        if let Some(at) = self.pending.nmi_return
            && at != self.hardware.rip()
        {
            self.pending.nmi_return = None;
            self.pending.nmi_masked = false;
        }
    }
}
