//! The rest of the world as one virtual CPU sees it, while its thread is in KVM_RUN.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use machine::task::Current;
use virt::vcpu::{Host, Interrupts, Mapped, Signals, Waited};

use super::memory::Map;
use super::vcpu::Shared;
use super::vm::Vm;
use crate::base::sched;
use crate::process::{Thread, work};

/// Work that keeps a thread from a guest.
const ENDS_GUEST: u32 = work::SIGNAL | work::EXIT;

/// See the module.
pub(super) struct VcpuHost<'a> {
    pub(super) thread: Current<Thread>,
    pub(super) vm: &'a Vm,
    pub(super) shared: &'a Shared,
    map: Arc<Map>,
    version: u64,
}

impl<'a> VcpuHost<'a> {
    pub(super) fn new(thread: Current<Thread>, vm: &'a Vm, shared: &'a Shared) -> VcpuHost<'a> {
        let (map, version) = vm.map();
        VcpuHost { thread, vm, shared, map, version }
    }
}

impl Host for VcpuHost<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        self.map.read(address, into)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> bool {
        self.map.write(address, from)
    }

    fn map(&mut self, address: u64, write: bool, _exec: bool) -> Mapped {
        self.map.map(&self.vm.mm, &self.vm.nested, address, write)
    }

    fn device_read(&mut self, _address: u64, _into: &mut [u8]) -> bool {
        false
    }

    fn device_write(&mut self, _address: u64, _from: &[u8]) -> bool {
        false
    }

    fn port_read(&mut self, _port: u16, _into: &mut [u8]) -> bool {
        false
    }

    fn port_write(&mut self, _port: u16, _from: &[u8]) -> bool {
        false
    }

    fn is_busy(&mut self) -> bool {
        // Whoever wants something of this CPU asks first, and then looks whether it is in a guest.
        self.shared.in_guest.store(true, Ordering::SeqCst);
        let busy = self.shared.requested.load(Ordering::SeqCst)
            || self.thread.task().work() & (ENDS_GUEST | work::RESCHEDULE) != 0;
        if busy {
            self.shared.in_guest.store(false, Ordering::Relaxed);
        }
        busy
    }

    fn work(&mut self) -> bool {
        self.shared.in_guest.store(false, Ordering::Relaxed);
        self.shared.requested.store(false, Ordering::SeqCst);
        let pending = self.thread.task().work();
        if pending & work::RESCHEDULE != 0 {
            sched::schedule();
        }
        if self.version != self.vm.version() {
            (self.map, self.version) = self.vm.map();
        }
        pending & ENDS_GUEST != 0
    }

    fn has_controller(&self) -> bool {
        false
    }

    fn interrupts(&mut self) -> Interrupts {
        Interrupts::default()
    }

    fn acknowledge(&mut self) -> Option<u8> {
        None
    }

    fn set_priority(&mut self, _priority: u8) {}

    fn signals(&mut self) -> Signals {
        core::mem::take(&mut *self.shared.signals.lock())
    }

    fn wait(&mut self) -> Waited {
        let woken = || self.shared.requested.load(Ordering::SeqCst).then_some(());
        match self.shared.queue.wait(woken) {
            Ok(()) => Waited::Woken,
            Err(_) => Waited::Interrupted,
        }
    }

    fn pause(&mut self) {
        sched::yield_now();
    }

    fn read_msr(&mut self, _number: u32) -> Option<u64> {
        None
    }

    fn write_msr(&mut self, _number: u32, _value: u64) -> Option<bool> {
        None
    }

    fn is_boot_cpu(&self) -> bool {
        self.shared.id == self.vm.boot_cpu.load(Ordering::Relaxed)
    }

    fn tsc(&self) -> u64 {
        machine::cpu::rdtsc()
    }

    fn tsc_offset(&mut self, value: u64, by_guest: bool) -> u64 {
        let exact = value.wrapping_sub(self.tsc());
        if by_guest { exact } else { self.vm.agree_on_tsc(exact) }
    }

    fn xcr0_allowed(&self) -> u64 {
        super::cpuid::xcr0_allowed()
    }
}
