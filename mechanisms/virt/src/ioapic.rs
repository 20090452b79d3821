//! An I/O APIC of 24 pins (Intel 82093AA): from lines to messages.
//!
//! A line that is level-triggered is sent once, and again only when the CPUs have ended that
//! interrupt and the line is still up.

use crate::lapic::{Message, Mode, Target};

/// Pins.
pub const PINS: usize = 24;
/// Where it is in memory.
pub const ADDRESS: u64 = 0xfec0_0000;
/// Bytes of its registers that are looked at.
pub const BYTES: u64 = 0x100;

const MASKED: u64 = 1 << 16;
const LEVEL: u64 = 1 << 15;
const REMOTE_IRR: u64 = 1 << 14;
const STATUS: u64 = 1 << 12;
const LOGICAL: u64 = 1 << 11;

/// See the module.
#[derive(Clone, Debug)]
pub struct IoApic {
    entries: [u64; PINS],
    /// Lines that are up.
    lines: u32,
    select: u32,
    id: u32,
}

impl Default for IoApic {
    fn default() -> Self {
        IoApic { entries: [MASKED; PINS], lines: 0, select: 0, id: 0 }
    }
}

impl IoApic {
    fn message(entry: u64) -> Option<Message> {
        let destination = (entry >> 56) as u32;
        let target = match (entry & LOGICAL != 0, destination) {
            (true, set) => Target::Logical(set),
            (false, 0xff) => Target::Physical(u32::MAX),
            (false, id) => Target::Physical(id),
        };
        let mode = match entry >> 8 & 7 {
            0 => Mode::Fixed,
            1 => Mode::LowestPriority,
            4 => Mode::Nmi,
            5 => Mode::Init,
            7 => Mode::External,
            _ => return None,
        };
        let is_level = entry & LEVEL != 0;
        Some(Message { mode, vector: entry as u8, target, is_level, is_asserted: true })
    }

    /// Sends what a pin has to say.
    fn fire(&mut self, pin: usize) -> Option<Message> {
        let entry = &mut self.entries[pin];
        if *entry & MASKED != 0 || *entry & LEVEL != 0 && *entry & REMOTE_IRR != 0 {
            return None;
        }
        let message = Self::message(*entry)?;
        if *entry & LEVEL != 0 {
            *entry |= REMOTE_IRR;
        }
        Some(message)
    }

    /// A line goes up or down; what is to be sent.
    pub fn set_line(&mut self, pin: usize, up: bool) -> Option<Message> {
        let bit = 1u32.checked_shl(pin as u32).filter(|_| pin < PINS)?;
        let was_up = self.lines & bit != 0;
        self.lines = if up { self.lines | bit } else { self.lines & !bit };
        let is_level = self.entries[pin] & LEVEL != 0;
        if up && (is_level || !was_up) { self.fire(pin) } else { None }
    }

    /// The CPUs have ended the interrupt `vector`; the pins whose it was, and what they send again.
    pub fn end(&mut self, vector: u8, mut ended: impl FnMut(usize, Option<Message>)) {
        for pin in 0..PINS {
            let entry = &mut self.entries[pin];
            if *entry as u8 == vector && *entry & LEVEL != 0 && *entry & REMOTE_IRR != 0 {
                *entry &= !REMOTE_IRR;
                let again = self.lines >> pin & 1 != 0;
                let message = if again { self.fire(pin) } else { None };
                ended(pin, message);
            }
        }
    }

    /// Reads a register of the memory.
    #[must_use]
    pub fn read(&self, offset: u64) -> u32 {
        match offset & 0xff {
            0 => self.select,
            0x10 => match self.select {
                0 | 2 => self.id,
                // Version 0x11, and the highest pin.
                1 => (PINS as u32 - 1) << 16 | 0x11,
                select => {
                    let Some((pin, high)) = pin_of(select) else { return 0 };
                    (self.entries[pin] >> if high { 32 } else { 0 }) as u32
                }
            },
            _ => 0,
        }
    }

    /// Writes a register; what is to be sent.
    pub fn write(&mut self, offset: u64, value: u32) -> Option<Message> {
        match offset & 0xff {
            0 => self.select = value & 0xff,
            0x10 if self.select == 0 => self.id = value & 0x0f00_0000,
            0x10 => {
                let (pin, high) = pin_of(self.select)?;
                let entry = &mut self.entries[pin];
                let kept = REMOTE_IRR | STATUS;
                let written = match high {
                    true => *entry & 0xffff_ffff | u64::from(value) << 32,
                    false => *entry & !0xffff_ffff | u64::from(value),
                };
                *entry = written & !kept | *entry & kept;
                if *entry & LEVEL == 0 {
                    *entry &= !REMOTE_IRR;
                }
                if *entry & LEVEL != 0 && self.lines >> pin & 1 != 0 {
                    return self.fire(pin);
                }
            }
            _ => {}
        }
        None
    }

    /// The entry of a pin, as KVM_GET_IRQCHIP has it; 0 beyond the last.
    #[must_use]
    pub fn entry(&self, pin: usize) -> u64 {
        self.entries.get(pin).copied().unwrap_or(0)
    }

    /// Sets it.
    pub fn set_entry(&mut self, pin: usize, entry: u64) {
        if let Some(slot) = self.entries.get_mut(pin) {
            *slot = entry;
        }
    }

    /// The selected register, the id, and the lines.
    #[must_use]
    pub fn state(&self) -> (u32, u32, u32) {
        (self.select, self.id, self.lines)
    }

    /// Sets them.
    pub fn set_state(&mut self, (select, id, lines): (u32, u32, u32)) {
        (self.select, self.id, self.lines) = (select & 0xff, id, lines & ((1 << PINS) - 1));
    }
}

fn pin_of(select: u32) -> Option<(usize, bool)> {
    let at = select.checked_sub(0x10)? as usize;
    (at / 2 < PINS).then_some((at / 2, at % 2 == 1))
}
