//! Exceptions and interrupts on their way into the guest: which comes first, and what becomes of
//! one whose delivery was cut short by an exit (AMD APM 2, 8.5 and 15.20; Intel SDM 3A, 6.9).

/// Something to deliver through the guest's interrupt descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interrupt of a device.
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// An exception, with its error code if it has one.
    Exception(u8, Option<u32>),
    /// INT n; delivered with the address behind the instruction.
    Software(u8),
}

/// Vectors of exceptions by name.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod vector {
    pub const DB: u8 = 1;
    pub const NMI: u8 = 2;
    pub const BP: u8 = 3;
    pub const OF: u8 = 4;
    pub const UD: u8 = 6;
    pub const DF: u8 = 8;
    pub const TS: u8 = 10;
    pub const NP: u8 = 11;
    pub const SS: u8 = 12;
    pub const GP: u8 = 13;
    pub const PF: u8 = 14;
    pub const AC: u8 = 17;
    pub const MC: u8 = 18;
}

/// Whether exception `vector` pushes an error code (outside of real mode).
#[must_use]
pub const fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// What the CPU makes of a second exception during the delivery of a first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combined {
    /// The second is delivered; the first comes again by itself.
    Second,
    /// #DF.
    DoubleFault,
    /// The CPU shuts down.
    Shutdown,
}

/// Benign, contributory or page fault (Intel SDM 3A, table 6-5).
fn is_contributory(vector: u8) -> bool {
    matches!(vector, 0 | vector::TS | vector::NP | vector::SS | vector::GP)
}

/// Combines two exceptions (Intel SDM 3A, 6.15, "Interrupt 8").
#[must_use]
pub fn combine(first: u8, second: u8) -> Combined {
    let is_fault = |v: u8| is_contributory(v) || v == vector::PF;
    if first == vector::DF && is_fault(second) {
        Combined::Shutdown
    } else if is_contributory(first) && is_contributory(second)
        || first == vector::PF && is_fault(second)
    {
        Combined::DoubleFault
    } else {
        Combined::Second
    }
}

/// What waits to be delivered to one virtual CPU, beside what its interrupt controller has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// An exception that instructions caused, or the last exit.
    pub exception: Option<(u8, Option<u32>)>,
    /// The address of a page fault among them, which delivery puts into CR2.
    pub fault_address: Option<u64>,
    /// Its delivery had begun when the guest was left: it comes before anything new.
    pub cut_short: Option<Event>,
    /// Non-maskable interrupts that wait: at most two (one may be in service).
    pub nmis: u8,
    /// The guest is in its handler: no other is delivered until its IRET.
    pub nmi_masked: bool,
    /// Where that IRET is, once the guest has come to it: it has not been executed yet.
    pub nmi_return: Option<u64>,
    /// An interrupt that the VMM itself has chosen (no interrupt controller in the kernel).
    pub external: Option<u8>,
}

impl Pending {
    /// An exception of the guest's. True: the CPU shuts down.
    #[must_use = "a triple fault ends the guest's run"]
    pub fn raise(&mut self, vector: u8, error: Option<u32>) -> bool {
        let first = match (self.exception, self.cut_short) {
            (Some((first, _)), _) => Some(first),
            (None, Some(Event::Exception(first, _))) => Some(first),
            _ => None,
        };
        match first.map_or(Combined::Second, |first| combine(first, vector)) {
            Combined::Shutdown => return true,
            Combined::DoubleFault => self.exception = Some((vector::DF, Some(0))),
            Combined::Second => self.exception = Some((vector, error)),
        }
        if first.is_some() {
            self.cut_short = None;
        }
        false
    }

    /// As [`Pending::raise`] for a page fault at `address`.
    #[must_use = "a triple fault ends the guest's run"]
    pub fn raise_page_fault(&mut self, address: u64, error: u32) -> bool {
        self.fault_address = Some(address);
        self.raise(vector::PF, Some(error))
    }

    /// The guest was left in the midst of this delivery. INT n, INT3 and INTO come again when the
    /// guest executes them again: RIP still leads to them.
    pub fn was_cut_short(&mut self, event: Event) {
        match event {
            Event::Software(_) | Event::Exception(vector::BP | vector::OF, _) => {}
            _ => self.cut_short = Some(event),
        }
    }

    /// One more non-maskable interrupt.
    pub fn post_nmi(&mut self) {
        self.nmis = (self.nmis + 1).min(if self.nmi_masked { 1 } else { 2 });
    }
}
