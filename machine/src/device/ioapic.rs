//! I/O APICs: which vector a device's interrupt line raises (82093AA data sheet, chapter 3).
//!
//! Lines have global numbers (GSIs); each controller serves a range of them. All lines are masked
//! until a driver routes its own. Every line goes to the first CPU, which keeps the others free of
//! device interrupts.
//!
//! Neighbours: `irq` gives out vectors; `platform` says where the controllers are.

use alloc::vec::Vec;

use crate::cpu::sync::{Once, SpinLock};
use crate::cpu::{self, irq, percpu};
use crate::device::mmio::Registers;
use crate::device::platform;

const SELECT: usize = 0x00;
const WINDOW: usize = 0x10;
const VERSION: u32 = 1;
const REDIRECTION: u32 = 0x10;

const ACTIVE_LOW: u32 = 1 << 13;
const MASKED: u32 = 1 << 16;

struct Controller {
    registers: Registers,
    gsi_base: u32,
    lines: u32,
}

impl Controller {
    /// Selects a register, then reads it through the window.
    fn read(&mut self, register: u32) -> u32 {
        // SAFETY: selecting a register has no effect of its own.
        unsafe { self.registers.write32(SELECT, register) };
        self.registers.read32(WINDOW)
    }

    fn write(&mut self, register: u32, value: u32) {
        // SAFETY: as in `read`: selecting has no effect of its own.
        unsafe { self.registers.write32(SELECT, register) };
        // SAFETY: what is written concerns the routing of interrupts only, to vectors of `irq`.
        unsafe { self.registers.write32(WINDOW, value) };
    }
}

static CONTROLLERS: Once<SpinLock<Vec<Controller>>> = Once::new();

/// Silences the two 8259 interrupt controllers that the I/O APICs replace. Firmware leaves their
/// timer line on, at a vector that belongs to an exception. (8259A data sheet: ICW1 to ICW4, OCW1.)
pub(crate) fn silence_8259() {
    const FIRST: (u16, u16) = (0x20, 0x21);
    const SECOND: (u16, u16) = (0xa0, 0xa1);
    // A masked line can still end as a spurious interrupt: vectors 0x20 to 0x2f have no handler.
    let settings = [
        (FIRST.0, 0x11),
        (FIRST.1, 0x20),
        (FIRST.1, 4),
        (FIRST.1, 1),
        (SECOND.0, 0x11),
        (SECOND.1, 0x28),
        (SECOND.1, 2),
        (SECOND.1, 1),
        (FIRST.1, 0xff),
        (SECOND.1, 0xff),
    ];
    for (port, value) in settings {
        // SAFETY: the ports of the two controllers, or of nothing; interrupts are masked.
        unsafe { cpu::outb(port, value) };
    }
}

/// Maps the controllers and masks all their lines.
fn controllers() -> &'static SpinLock<Vec<Controller>> {
    CONTROLLERS.call_once(|| {
        let mut all = Vec::new();
        for io_apic in &platform::firmware().io_apics {
            let Ok(registers) = Registers::map(io_apic.address, 0x20) else { continue };
            let mut controller = Controller { registers, gsi_base: io_apic.gsi_base, lines: 0 };
            controller.lines = (controller.read(VERSION) >> 16 & 0xff) + 1;
            for line in 0..controller.lines {
                controller.write(REDIRECTION + 2 * line, MASKED);
            }
            all.push(controller);
        }
        SpinLock::new(all)
    })
}

/// Sends line `gsi` to `handler`, which runs with interrupts masked and must not sleep. The line is
/// taken on its rising edge, so the handler must make the device lower it. False if there is no
/// such line or no vector left.
pub(crate) fn route(gsi: u32, handler: irq::Handler) -> bool {
    let mut controllers = controllers().lock();
    let found = controllers
        .iter_mut()
        .find(|controller| gsi.wrapping_sub(controller.gsi_base) < controller.lines);
    let Some(controller) = found else { return false };
    let Some(vector) = irq::allocate(handler) else { return false };
    let polarity = platform::firmware().overrides.iter().find(|o| o.gsi == gsi);
    let low = polarity.is_some_and(|o| o.active_low);
    let flags = if low { ACTIVE_LOW } else { 0 };
    let register = REDIRECTION + 2 * (gsi - controller.gsi_base);
    // Destination first: the line is masked until the second write.
    controller.write(register + 1, percpu::of(0).apic_id.get() << 24);
    controller.write(register, u32::from(vector) | flags);
    true
}
