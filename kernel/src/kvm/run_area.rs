//! `struct kvm_run` and what follows it: pages of a virtual CPU that its VMM maps, through which it
//! is told why the guest was left, and answers.

use alloc::sync::Arc;

use abi::Result;
use abi::kvm::{self, RunIo, RunMmio, exit, run};
use machine::frame::Frame;
use virt::vcpu::Outcome;
use zerocopy::IntoBytes;

use crate::mm::PAGE;
use crate::page_cache::PageCache;

pub(super) struct RunArea {
    /// What mmap(2) of the descriptor maps.
    pub(super) cache: Arc<PageCache>,
    head: Frame,
    ports: Frame,
}

impl RunArea {
    /// The ring of coalesced writes is the guest's, and in the areas of all its CPUs.
    pub(super) fn new(ring: &Frame) -> Result<RunArea> {
        let cache = PageCache::new(None, run::PAGES * PAGE);
        let head = cache.page_for_mapping(0)?;
        let ports = cache.page_for_mapping(run::PORT_PAGE)?;
        cache.share_page(run::COALESCED_PAGE, ring.clone())?;
        Ok(RunArea { cache, head, ports })
    }

    fn byte(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.head.read(offset, &mut byte);
        byte[0]
    }

    pub(super) fn asks_for_window(&self) -> bool {
        self.byte(run::REQUEST_INTERRUPT_WINDOW) != 0
    }

    pub(super) fn asks_to_exit_at_once(&self) -> bool {
        self.byte(run::IMMEDIATE_EXIT) != 0
    }

    pub(super) fn priority(&self) -> u8 {
        self.byte(run::CR8) & 15
    }

    /// The VMM's answer to a read of memory.
    pub(super) fn mmio_data(&self) -> [u8; 8] {
        let mut data = [0; 8];
        self.head.read(run::EXIT + 8, &mut data);
        data
    }

    /// The VMM's answer to an IN.
    pub(super) fn read_ports(&self, into: &mut [u8]) {
        self.ports.read(0, into);
    }

    /// What every exit tells beside its reason.
    pub(super) fn write_state(&self, ready: bool, interrupts: bool, priority: u8, apic_base: u64) {
        self.head.write(run::READY_FOR_INTERRUPT_INJECTION, &[ready.into(), interrupts.into()]);
        self.head.write(run::CR8, u64::from(priority).as_bytes());
        self.head.write(run::APIC_BASE, apic_base.as_bytes());
    }

    fn set_reason(&self, reason: u32) {
        self.head.write(run::EXIT_REASON, reason.as_bytes());
    }

    fn fail_entry(&self, reason: u64) -> u32 {
        self.head.write(run::EXIT, reason.as_bytes());
        exit::FAIL_ENTRY
    }

    /// Tells the VMM why the guest was left. `data`: of port transfers.
    pub(super) fn write_outcome(&self, outcome: &Outcome, data: &[u8; 4096]) {
        let reason = match *outcome {
            Outcome::Io { is_in, size, port, count } => {
                let io = RunIo {
                    direction: u8::from(!is_in),
                    size,
                    port,
                    count,
                    data_offset: run::PORT_PAGE * PAGE,
                };
                self.head.write(run::EXIT, io.as_bytes());
                if !is_in {
                    self.ports.write(0, &data[..(usize::from(size) * count as usize).min(4096)]);
                }
                exit::IO
            }
            Outcome::Mmio { address, data, len, write } => {
                let (len, is_write) = (u32::from(len), u8::from(write));
                let mmio = RunMmio { phys_addr: address, data, len, is_write, pad: [0; 3] };
                self.head.write(run::EXIT, mmio.as_bytes());
                exit::MMIO
            }
            Outcome::Halted => exit::HLT,
            Outcome::Shutdown => exit::SHUTDOWN,
            Outcome::Interrupted => exit::INTR,
            Outcome::WindowOpen => exit::IRQ_WINDOW_OPEN,
            Outcome::EndOfInterrupt(vector) => {
                self.head.write(run::EXIT, &[vector]);
                exit::IOAPIC_EOI
            }
            Outcome::FailedEntry => self.fail_entry(kvm::FAIL_ENTRY_REFUSED),
            Outcome::LostGuest => self.fail_entry(kvm::FAIL_ENTRY_LOST),
            Outcome::Internal { emulation, code } => {
                let suberror = if emulation {
                    kvm::INTERNAL_ERROR_EMULATION
                } else {
                    kvm::INTERNAL_ERROR_UNEXPECTED_EXIT_REASON
                };
                self.head.write(run::EXIT, [suberror, u32::from(!emulation)].as_bytes());
                self.head.write(run::EXIT + 8, code.as_bytes());
                exit::INTERNAL_ERROR
            }
            // The call fails with EFAULT.
            Outcome::BadMemory => exit::UNKNOWN,
        };
        self.set_reason(reason);
    }
}
