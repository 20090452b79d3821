//! A pair of 8259A interrupt controllers, as PCs have them: sixteen lines, the second controller on
//! line 2 of the first (Intel 8259A data sheet).

/// State of one controller, in the order of KVM's `struct kvm_pic_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of linux/kvm.h")]
pub struct Controller {
    pub last_irr: u8,
    pub irr: u8,
    pub imr: u8,
    pub isr: u8,
    pub priority_add: u8,
    pub irq_base: u8,
    pub read_reg_select: u8,
    pub poll: u8,
    pub special_mask: u8,
    pub init_state: u8,
    pub auto_eoi: u8,
    pub rotate_on_auto_eoi: u8,
    pub special_fully_nested_mode: u8,
    pub init4: u8,
    pub elcr: u8,
    pub elcr_mask: u8,
}

impl Controller {
    fn set_line(&mut self, line: u8, up: bool) {
        let mask = 1 << line;
        if self.elcr & mask != 0 {
            self.irr = if up { self.irr | mask } else { self.irr & !mask };
        } else if up && self.last_irr & mask == 0 {
            self.irr |= mask;
        }
        self.last_irr = if up { self.last_irr | mask } else { self.last_irr & !mask };
    }

    /// Rank of the highest of some lines; 8: none.
    fn rank(&self, lines: u8) -> u8 {
        if lines == 0 {
            return 8;
        }
        lines.rotate_right(u32::from(self.priority_add & 7)).trailing_zeros() as u8
    }

    /// The line to be served, if one may interrupt what is served now.
    fn pending(&self, is_first: bool) -> Option<u8> {
        let rank = self.rank(self.irr & !self.imr);
        if rank == 8 {
            return None;
        }
        let mut serving = self.isr;
        if self.special_mask != 0 {
            serving &= !self.imr;
        }
        if self.special_fully_nested_mode != 0 && is_first {
            serving &= !(1 << 2);
        }
        (rank < self.rank(serving)).then_some((rank + self.priority_add) & 7)
    }

    fn acknowledge(&mut self, line: u8) {
        let mask = 1 << line;
        if self.auto_eoi != 0 {
            if self.rotate_on_auto_eoi != 0 {
                self.priority_add = (line + 1) & 7;
            }
        } else {
            self.isr |= mask;
        }
        if self.elcr & mask == 0 {
            self.irr &= !mask;
        }
    }

    fn command(&mut self, value: u8) {
        if value & 0x10 != 0 {
            let (elcr, elcr_mask, last) = (self.elcr, self.elcr_mask, self.last_irr);
            *self = Controller { elcr, elcr_mask, last_irr: last, ..Controller::default() };
            self.init4 = value & 1;
            self.init_state = 1;
        } else if value & 8 != 0 {
            if value & 4 != 0 {
                self.poll = 1;
            }
            if value & 2 != 0 {
                self.read_reg_select = value & 1;
            }
            if value & 0x40 != 0 {
                self.special_mask = value >> 5 & 1;
            }
        } else {
            self.end(value);
        }
    }

    /// Operation command word 2: ends of interrupts and rotations.
    fn end(&mut self, value: u8) {
        let line = value & 7;
        match value >> 5 {
            0 | 4 => self.rotate_on_auto_eoi = value >> 7,
            command @ (1 | 5) => {
                let rank = self.rank(self.isr);
                if rank < 8 {
                    let line = (rank + self.priority_add) & 7;
                    self.isr &= !(1 << line);
                    if command == 5 {
                        self.priority_add = (line + 1) & 7;
                    }
                }
            }
            3 => self.isr &= !(1 << line),
            6 => self.priority_add = (line + 1) & 7,
            7 => {
                self.isr &= !(1 << line);
                self.priority_add = (line + 1) & 7;
            }
            _ => {}
        }
    }

    fn data(&mut self, value: u8) {
        match self.init_state {
            0 => self.imr = value,
            1 => {
                self.irq_base = value & 0xf8;
                self.init_state = 2;
            }
            2 => self.init_state = if self.init4 != 0 { 3 } else { 0 },
            _ => {
                self.special_fully_nested_mode = value >> 4 & 1;
                self.auto_eoi = value >> 1 & 1;
                self.init_state = 0;
            }
        }
    }
}

/// Both.
#[derive(Clone, Copy, Debug)]
pub struct Pic {
    /// First and second.
    pub controllers: [Controller; 2],
}

impl Default for Pic {
    fn default() -> Self {
        let first = Controller { elcr_mask: 0xf8, ..Controller::default() };
        let second = Controller { elcr_mask: 0xde, ..Controller::default() };
        Pic { controllers: [first, second] }
    }
}

impl Pic {
    /// Whether a port is one of theirs.
    #[must_use]
    pub const fn has_port(port: u16) -> bool {
        matches!(port, 0x20 | 0x21 | 0xa0 | 0xa1 | 0x4d0 | 0x4d1)
    }

    fn update(&mut self) {
        let second = self.controllers[1].pending(false).is_some();
        self.controllers[0].set_line(2, false);
        self.controllers[0].set_line(2, second);
    }

    /// A line goes up or down.
    pub fn set_line(&mut self, line: usize, up: bool) {
        if line < 16 {
            self.controllers[line / 8].set_line(line as u8 % 8, up);
            self.update();
        }
    }

    /// Whether the CPU's line is up.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.controllers[0].pending(true).is_some()
    }

    /// The CPU takes the interrupt: its vector. Where it has gone meanwhile, the last of the lines.
    pub fn acknowledge(&mut self) -> u8 {
        let [first, second] = &mut self.controllers;
        let vector = match first.pending(true) {
            Some(2) => {
                first.acknowledge(2);
                let line = second.pending(false);
                if let Some(line) = line {
                    second.acknowledge(line);
                }
                second.irq_base + line.unwrap_or(7)
            }
            Some(line) => {
                first.acknowledge(line);
                first.irq_base + line
            }
            None => first.irq_base + 7,
        };
        self.update();
        vector
    }

    /// Reads a port of theirs.
    pub fn read(&mut self, port: u16) -> u8 {
        if let 0x4d0 | 0x4d1 = port {
            return self.controllers[usize::from(port & 1)].elcr;
        }
        let is_first = port < 0xa0;
        let controller = &mut self.controllers[usize::from(!is_first)];
        if controller.poll != 0 {
            controller.poll = 0;
            let line = controller.pending(is_first);
            if let Some(line) = line {
                controller.acknowledge(line);
            }
            self.update();
            return line.map_or(0, |line| 0x80 | line);
        }
        match (port & 1, controller.read_reg_select) {
            (1, _) => controller.imr,
            (_, 0) => controller.irr,
            _ => controller.isr,
        }
    }

    /// Writes a port of theirs.
    pub fn write(&mut self, port: u16, value: u8) {
        if let 0x4d0 | 0x4d1 = port {
            let controller = &mut self.controllers[usize::from(port & 1)];
            controller.elcr = value & controller.elcr_mask;
            return;
        }
        let controller = &mut self.controllers[usize::from(port >= 0xa0)];
        if port & 1 == 0 {
            controller.command(value)
        } else {
            controller.data(value)
        }
        self.update();
    }
}
