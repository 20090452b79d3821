//! A local APIC (AMD APM 2, chapter 16; Intel SDM 3A, chapter 10): interrupts for one CPU, by
//! priority; its timer; and what it sends to others.
//!
//! What is hard: everybody posts, at any time; so the state is small, under one lock of the
//! caller's, and every call says what the caller must do afterwards ([`Effect`]), without the lock.

/// What the caller of an access must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A message to CPUs.
    Send(Message),
    /// The end of an interrupt that was level-triggered: the I/O APIC wants to know.
    EndOfLevel(u8),
    /// The timer's deadline has changed ([`Lapic::deadline`]).
    Timer,
    /// More may be deliverable than before.
    Changed,
}

/// How a message is delivered, by its number.
#[expect(missing_docs, reason = "the names of the manual")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Fixed,
    LowestPriority,
    Nmi,
    Init,
    Startup,
    External,
}

impl Mode {
    fn from_bits(bits: u32) -> Option<Mode> {
        match bits & 7 {
            0 => Some(Mode::Fixed),
            1 => Some(Mode::LowestPriority),
            4 => Some(Mode::Nmi),
            5 => Some(Mode::Init),
            6 => Some(Mode::Startup),
            7 => Some(Mode::External),
            _ => None,
        }
    }
}

/// To whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// By APIC id; `u32::MAX`: everybody.
    Physical(u32),
    /// By logical id.
    Logical(u32),
    /// The sender.
    Own,
    /// Everybody.
    All,
    /// Everybody but the sender.
    Others,
}

/// An interrupt on its way to CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What to do there.
    pub mode: Mode,
    /// Its vector, or for a start the page.
    pub vector: u8,
    /// Whose.
    pub target: Target,
    /// It stays until it is taken away.
    pub is_level: bool,
    /// INIT only: not the end of one.
    pub is_asserted: bool,
}

impl Message {
    /// From the two words of a message-signalled interrupt (AMD APM 2, 16.11). None: a mode that
    /// does not exist.
    #[must_use]
    pub fn from_msi(address: u32, data: u32) -> Option<Message> {
        let destination = address >> 12 & 0xff;
        let is_logical = address & 1 << 2 != 0;
        let everybody = destination == 0xff;
        let target = match (is_logical, everybody) {
            (false, true) => Target::Physical(u32::MAX),
            (false, false) => Target::Physical(destination),
            (true, _) => Target::Logical(destination),
        };
        Some(Message {
            mode: Mode::from_bits(data >> 8)?,
            vector: data as u8,
            target,
            is_level: data & 1 << 15 != 0,
            is_asserted: true,
        })
    }
}

/// Register offsets.
mod reg {
    pub(super) const ID: u32 = 0x20;
    pub(super) const VERSION: u32 = 0x30;
    pub(super) const TPR: u32 = 0x80;
    pub(super) const PPR: u32 = 0xa0;
    pub(super) const EOI: u32 = 0xb0;
    pub(super) const LDR: u32 = 0xd0;
    pub(super) const DFR: u32 = 0xe0;
    pub(super) const SPIV: u32 = 0xf0;
    pub(super) const ISR: u32 = 0x100;
    pub(super) const TMR: u32 = 0x180;
    pub(super) const IRR: u32 = 0x200;
    pub(super) const ESR: u32 = 0x280;
    pub(super) const ICR: u32 = 0x300;
    pub(super) const ICR_HIGH: u32 = 0x310;
    pub(super) const LVT_TIMER: u32 = 0x320;
    pub(super) const LVT_THERMAL: u32 = 0x330;
    pub(super) const LVT_ERROR: u32 = 0x370;
    pub(super) const INITIAL_COUNT: u32 = 0x380;
    pub(super) const CURRENT_COUNT: u32 = 0x390;
    pub(super) const DIVIDE: u32 = 0x3e0;
    pub(super) const SELF_IPI: u32 = 0x3f0;
}

const MASKED: u32 = 1 << 16;
const ENABLED: u32 = 1 << 8;
/// Bits of the base register.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod base {
    pub const BOOT_CPU: u64 = 1 << 8;
    pub const X2APIC: u64 = 1 << 10;
    pub const ENABLE: u64 = 1 << 11;
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    pub const DEFAULT: u64 = 0xfee0_0000;
}

/// Nanoseconds of a tick of the timer's clock before division: it runs at 1 GHz.
const TICK_NS: u64 = 1;
/// A periodic timer fires no more often than this, ns.
const MIN_PERIOD_NS: u64 = 200_000;

/// 256 bits, by vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vectors([u32; 8]);

impl Vectors {
    fn set(&mut self, vector: u8, on: bool) {
        let word = &mut self.0[usize::from(vector / 32)];
        let bit = 1 << (vector % 32);
        *word = if on { *word | bit } else { *word & !bit };
    }

    fn has(&self, vector: u8) -> bool {
        self.0[usize::from(vector / 32)] >> (vector % 32) & 1 != 0
    }

    fn highest(&self) -> Option<u8> {
        let word = (0..8).rev().find(|&n| self.0[n] != 0)?;
        Some(word as u8 * 32 + 31 - self.0[word].leading_zeros() as u8)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Lapic {
    id: u32,
    base: u64,
    tpr: u8,
    ldr: u32,
    dfr: u32,
    spiv: u32,
    esr: u32,
    icr: u64,
    /// Timer, thermal, performance, LINT0, LINT1, error.
    lvt: [u32; 6],
    requested: Vectors,
    in_service: Vectors,
    level: Vectors,
    initial_count: u32,
    divide: u32,
    /// When the timer's count began, ns.
    started_ns: u64,
    /// TSC of the guest's at which the timer fires; 0: not.
    tsc_deadline: u64,
}

impl Lapic {
    /// As after power-on, of the CPU with this id.
    #[must_use]
    pub fn new(id: u32, is_boot_cpu: bool) -> Lapic {
        let boot = if is_boot_cpu { base::BOOT_CPU } else { 0 };
        let mut lapic = Lapic {
            id,
            base: base::DEFAULT | base::ENABLE | boot,
            tpr: 0,
            ldr: 0,
            dfr: u32::MAX,
            spiv: 0xff,
            esr: 0,
            icr: 0,
            lvt: [MASKED; 6],
            requested: Vectors::default(),
            in_service: Vectors::default(),
            level: Vectors::default(),
            initial_count: 0,
            divide: 0,
            started_ns: 0,
            tsc_deadline: 0,
        };
        if is_boot_cpu {
            // As firmware would leave it: the 8259's interrupts come through.
            lapic.lvt[3] = 0x700;
        }
        lapic
    }

    /// What INIT leaves: base and id.
    pub fn reset(&mut self) {
        let is_boot_cpu = self.base & base::BOOT_CPU != 0;
        *self = Lapic { base: self.base, ..Lapic::new(self.id, is_boot_cpu) };
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The base register.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Sets the base register; false if no CPU takes that value.
    pub fn set_base(&mut self, value: u64) -> bool {
        let known = base::ADDRESS | base::BOOT_CPU | base::X2APIC | base::ENABLE;
        let x2apic = value & base::X2APIC != 0;
        let was_x2apic = self.base & base::X2APIC != 0;
        let enabled = value & base::ENABLE != 0;
        if value & !known != 0 || x2apic && !enabled || was_x2apic && enabled && !x2apic {
            return false;
        }
        self.base = value;
        if x2apic && !was_x2apic {
            // The logical id follows from the other (Intel SDM 3A, 10.12.10.2).
            self.ldr = (self.id >> 4) << 16 | 1 << (self.id & 15);
        }
        true
    }

    /// Whether its registers are MSRs.
    #[must_use]
    pub fn is_x2apic(&self) -> bool {
        self.base & base::X2APIC != 0
    }

    /// Where its registers are in memory, if they are.
    #[must_use]
    pub fn page(&self) -> Option<u64> {
        let in_memory = self.base & (base::ENABLE | base::X2APIC) == base::ENABLE;
        in_memory.then_some(self.base & base::ADDRESS)
    }

    fn is_on(&self) -> bool {
        self.base & base::ENABLE != 0 && self.spiv & ENABLED != 0
    }

    // --------------------------------------------------------------------------------------------
    // Interrupts

    /// An interrupt has come. True: the CPU should look.
    pub fn post(&mut self, vector: u8, is_level: bool) -> bool {
        if !self.is_on() || vector < 16 {
            return false;
        }
        self.requested.set(vector, true);
        self.level.set(vector, is_level);
        true
    }

    /// The class of what is in service, or the task priority, whichever is higher.
    fn processor_priority(&self) -> u8 {
        let serving = self.in_service.highest().map_or(0, |vector| vector & 0xf0);
        if self.tpr & 0xf0 >= serving { self.tpr } else { serving }
    }

    /// The highest interrupt that may be delivered.
    #[must_use]
    pub fn deliverable(&self) -> Option<u8> {
        let vector = self.requested.highest().filter(|_| self.is_on())?;
        (vector & 0xf0 > self.processor_priority() & 0xf0).then_some(vector)
    }

    /// Whether one waits only for a lower task priority.
    #[must_use]
    pub fn is_masked_by_priority(&self) -> bool {
        self.is_on() && self.requested.highest().is_some() && self.deliverable().is_none()
    }

    /// Takes it: it is in service now.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let vector = self.deliverable()?;
        self.requested.set(vector, false);
        self.in_service.set(vector, true);
        Some(vector)
    }

    fn end_of_interrupt(&mut self) -> Effect {
        let Some(vector) = self.in_service.highest() else { return Effect::None };
        self.in_service.set(vector, false);
        if self.level.has(vector) { Effect::EndOfLevel(vector) } else { Effect::Changed }
    }

    /// CR8: the upper half of the task priority.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.tpr >> 4
    }

    /// Sets it.
    pub fn set_priority(&mut self, priority: u8) {
        if self.tpr >> 4 != priority & 15 {
            self.tpr = priority << 4;
        }
    }

    /// Whether the 8259's interrupts come through: LINT0 in that mode, or the APIC switched off.
    #[must_use]
    pub fn takes_external(&self) -> bool {
        let lint0 = self.lvt[3];
        self.base & base::ENABLE == 0 || lint0 & MASKED == 0 && lint0 >> 8 & 7 == 7
    }

    /// What the NMI button does: through LINT1, if that is not masked.
    #[must_use]
    pub fn takes_nmi(&self) -> bool {
        self.lvt[4] & MASKED == 0 && self.lvt[4] >> 8 & 7 == 4
    }

    /// Whether a message is for this CPU. `is_own`: it is the sender.
    #[must_use]
    pub fn is_target(&self, target: Target, is_own: bool) -> bool {
        match target {
            Target::Own => is_own,
            Target::All => true,
            Target::Others => !is_own,
            Target::Physical(id) => {
                id == self.id || id == u32::MAX || id == 0xff && !self.is_x2apic()
            }
            Target::Logical(set) if self.is_x2apic() => {
                set >> 16 == self.ldr >> 16 && set & self.ldr & 0xffff != 0
            }
            Target::Logical(set) if self.dfr >> 28 == 0xf => set & self.ldr >> 24 != 0,
            Target::Logical(set) => {
                let own = self.ldr >> 24;
                set >> 4 & 15 == own >> 4 && set & own & 15 != 0
            }
        }
    }

    // --------------------------------------------------------------------------------------------
    // Registers

    /// Reads the register at an offset. `now_ns`: the clock of the timer.
    #[must_use]
    pub fn read(&self, offset: u32, now_ns: u64) -> u32 {
        let word = |vectors: &Vectors, first: u32| vectors.0[((offset - first) as usize / 16) & 7];
        match offset {
            reg::ID if self.is_x2apic() => self.id,
            reg::ID => self.id << 24,
            // Version 0x14, six entries of the table, EOI broadcast cannot be suppressed.
            reg::VERSION => 5 << 16 | 0x14,
            reg::TPR => self.tpr.into(),
            reg::PPR => self.processor_priority().into(),
            reg::LDR => self.ldr,
            reg::DFR => self.dfr,
            reg::SPIV => self.spiv,
            reg::ISR..reg::TMR => word(&self.in_service, reg::ISR),
            reg::TMR..reg::IRR => word(&self.level, reg::TMR),
            reg::IRR..reg::ESR => word(&self.requested, reg::IRR),
            reg::ESR => self.esr,
            reg::ICR => self.icr as u32,
            reg::ICR_HIGH => (self.icr >> 32) as u32,
            reg::LVT_TIMER..=reg::LVT_ERROR => self.lvt[(offset - reg::LVT_TIMER) as usize / 16],
            reg::INITIAL_COUNT => self.initial_count,
            reg::CURRENT_COUNT => self.current_count(now_ns),
            reg::DIVIDE => self.divide,
            _ => 0,
        }
    }

    /// Writes the register at an offset.
    pub fn write(&mut self, offset: u32, value: u32, now_ns: u64) -> Effect {
        match offset {
            reg::ID if !self.is_x2apic() => self.id = value >> 24,
            reg::TPR => {
                self.tpr = value as u8;
                return Effect::Changed;
            }
            reg::EOI => return self.end_of_interrupt(),
            reg::LDR if !self.is_x2apic() => self.ldr = value & 0xff00_0000,
            reg::DFR if !self.is_x2apic() => self.dfr = value | 0x0fff_ffff,
            reg::SPIV => {
                self.spiv = value & 0x3ff;
                if self.spiv & ENABLED == 0 {
                    self.lvt.iter_mut().for_each(|entry| *entry |= MASKED);
                }
            }
            reg::ESR => self.esr = 0,
            reg::ICR => {
                self.icr = self.icr & !0xffff_ffff | u64::from(value & !(1 << 12));
                return self.send();
            }
            reg::ICR_HIGH => self.icr = self.icr & 0xffff_ffff | u64::from(value) << 32,
            reg::LVT_TIMER => {
                let changes = (self.lvt[0] ^ value) & 3 << 17 != 0;
                self.lvt[0] = self.locked(value & 0x7_10ff);
                if changes {
                    (self.initial_count, self.tsc_deadline) = (0, 0);
                }
                return Effect::Timer;
            }
            reg::LVT_THERMAL..=reg::LVT_ERROR if offset.is_multiple_of(16) => {
                self.lvt[(offset - reg::LVT_TIMER) as usize / 16] = self.locked(value & 0x1_f7ff);
            }
            reg::INITIAL_COUNT if !self.is_deadline_mode() => {
                self.initial_count = value;
                self.started_ns = now_ns;
                return Effect::Timer;
            }
            reg::DIVIDE => {
                self.divide = value & 0b1011;
                return Effect::Timer;
            }
            reg::SELF_IPI if self.is_x2apic() => {
                return match self.post(value as u8, false) {
                    true => Effect::Changed,
                    false => Effect::None,
                };
            }
            _ => {}
        }
        Effect::None
    }

    /// While it is switched off every entry stays masked.
    fn locked(&self, value: u32) -> u32 {
        if self.spiv & ENABLED == 0 { value | MASKED } else { value }
    }

    fn send(&self) -> Effect {
        let low = self.icr as u32;
        let Some(mode) = Mode::from_bits(low >> 8) else { return Effect::None };
        let is_logical = low & 1 << 11 != 0;
        let high = (self.icr >> 32) as u32;
        let destination = if self.is_x2apic() { high } else { high >> 24 };
        let target = match low >> 18 & 3 {
            0 if is_logical => Target::Logical(destination),
            0 if !self.is_x2apic() && destination == 0xff => Target::Physical(u32::MAX),
            0 => Target::Physical(destination),
            1 => Target::Own,
            2 => Target::All,
            _ => Target::Others,
        };
        let is_level = low & 1 << 15 != 0;
        let is_asserted = low & 1 << 14 != 0 || !is_level;
        Effect::Send(Message { mode, vector: low as u8, target, is_level: false, is_asserted })
    }

    /// Reads the MSR of a register; None: there is none.
    #[must_use]
    pub fn read_msr(&self, number: u32, now_ns: u64) -> Option<u64> {
        let offset = (number & 0xff) << 4;
        if !self.is_x2apic() || !is_register(offset) || matches!(offset, reg::EOI | reg::SELF_IPI) {
            return None;
        }
        if offset == reg::ICR {
            return Some(self.icr);
        }
        Some(self.read(offset, now_ns).into())
    }

    /// Writes it.
    pub fn write_msr(&mut self, number: u32, value: u64, now_ns: u64) -> Option<Effect> {
        let offset = (number & 0xff) << 4;
        if !self.is_x2apic() || !is_register(offset) {
            return None;
        }
        if offset == reg::ICR {
            self.icr = value & !(1 << 12);
            return Some(self.send());
        }
        (value >> 32 == 0).then(|| self.write(offset, value as u32, now_ns))
    }

    // --------------------------------------------------------------------------------------------
    // Timer

    fn is_deadline_mode(&self) -> bool {
        self.lvt[0] >> 17 & 3 == 2
    }

    fn is_periodic(&self) -> bool {
        self.lvt[0] >> 17 & 3 == 1
    }

    /// Nanoseconds of one count.
    fn count_ns(&self) -> u64 {
        let shift = (self.divide & 3 | self.divide >> 1 & 4).wrapping_add(1) & 7;
        TICK_NS << shift
    }

    fn period_ns(&self) -> u64 {
        let period_ns = u64::from(self.initial_count) * self.count_ns();
        if self.is_periodic() { period_ns.max(MIN_PERIOD_NS) } else { period_ns }
    }

    fn current_count(&self, now_ns: u64) -> u32 {
        if self.initial_count == 0 || self.is_deadline_mode() {
            return 0;
        }
        let passed = now_ns.saturating_sub(self.started_ns);
        let period_ns = self.period_ns().max(1);
        if !self.is_periodic() && passed >= period_ns {
            return 0;
        }
        let counted = (passed % period_ns) / self.count_ns();
        self.initial_count - counted.min(self.initial_count.into()) as u32
    }

    /// The TSC-deadline register.
    #[must_use]
    pub fn tsc_deadline(&self) -> u64 {
        if self.is_deadline_mode() { self.tsc_deadline } else { 0 }
    }

    /// Sets it.
    pub fn set_tsc_deadline(&mut self, tsc: u64) -> Effect {
        if !self.is_deadline_mode() {
            return Effect::None;
        }
        self.tsc_deadline = tsc;
        Effect::Timer
    }

    /// When the timer fires next. `ns_of_tsc` tells when the guest's TSC is at a value.
    #[must_use]
    pub fn deadline(&self, ns_of_tsc: impl FnOnce(u64) -> u64) -> Option<u64> {
        if self.is_deadline_mode() {
            return (self.tsc_deadline != 0).then(|| ns_of_tsc(self.tsc_deadline));
        }
        (self.initial_count != 0).then(|| self.started_ns.saturating_add(self.period_ns()))
    }

    /// The deadline has passed. True: the CPU should look.
    pub fn expire(&mut self, now_ns: u64) -> bool {
        if self.is_deadline_mode() {
            self.tsc_deadline = 0;
        } else if self.is_periodic() {
            let period_ns = self.period_ns().max(1);
            let passed = now_ns.saturating_sub(self.started_ns) / period_ns;
            self.started_ns = self.started_ns.saturating_add(passed * period_ns);
        } else {
            self.initial_count = 0;
        }
        let entry = self.lvt[0];
        entry & MASKED == 0 && self.post(entry as u8, false)
    }

    // --------------------------------------------------------------------------------------------
    // The VMM's form

    /// All registers, as they lie in memory (KVM_GET_LAPIC).
    #[must_use]
    pub fn registers(&self, now_ns: u64) -> [u8; 1024] {
        let mut page = [0; 1024];
        for offset in (0..1024u32).step_by(16).filter(|&offset| is_register(offset)) {
            let at = offset as usize;
            page[at..at + 4].copy_from_slice(&self.read(offset, now_ns).to_le_bytes());
        }
        page
    }

    /// Takes them (KVM_SET_LAPIC). The id is the CPU's own.
    pub fn set_registers(&mut self, page: &[u8; 1024], now_ns: u64) {
        let word = |offset: u32| {
            let at = offset as usize;
            u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
        };
        self.tpr = word(reg::TPR) as u8;
        self.ldr = if self.is_x2apic() { self.ldr } else { word(reg::LDR) };
        self.dfr = word(reg::DFR) | 0x0fff_ffff;
        self.spiv = word(reg::SPIV) & 0x3ff;
        self.icr = u64::from(word(reg::ICR_HIGH)) << 32 | u64::from(word(reg::ICR) & !(1 << 12));
        for (n, entry) in self.lvt.iter_mut().enumerate() {
            *entry = word(reg::LVT_TIMER + 16 * n as u32) & 0x7_f7ff;
        }
        for (vectors, first) in [
            (&mut self.in_service, reg::ISR),
            (&mut self.level, reg::TMR),
            (&mut self.requested, reg::IRR),
        ] {
            vectors.0 = core::array::from_fn(|n| word(first + 16 * n as u32));
        }
        self.divide = word(reg::DIVIDE) & 0b1011;
        self.initial_count = word(reg::INITIAL_COUNT);
        let left = u64::from(word(reg::CURRENT_COUNT).min(self.initial_count));
        let passed = (u64::from(self.initial_count) - left) * self.count_ns();
        self.started_ns = now_ns.saturating_sub(passed);
    }
}

/// Whether there is a register at the offset.
fn is_register(offset: u32) -> bool {
    offset.is_multiple_of(16)
        && matches!(
            offset,
            reg::ID
                | reg::VERSION
                | reg::TPR
                | reg::PPR
                | reg::EOI
                | reg::LDR
                | reg::DFR
                | reg::SPIV
                | reg::ISR..=reg::ESR
                | reg::ICR
                | reg::ICR_HIGH
                | reg::LVT_TIMER..=reg::LVT_ERROR
                | reg::INITIAL_COUNT
                | reg::CURRENT_COUNT
                | reg::DIVIDE
                | reg::SELF_IPI
        )
}
