//! The rest of the world as one virtual CPU sees it, while its thread is in KVM_RUN.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use machine::task::Current;
use virt::ioapic;
use virt::lapic::{Effect, Lapic};
use virt::msr;
use virt::pic::Pic;
use virt::vcpu::{Host, Interrupts, Mapped, Signals, Waited};

use super::clock::Registers;
use super::irqchip::{IrqChip, deliver};
use super::memory::Map;
use super::vcpu::Shared;
use super::vm::Vm;
use crate::base::sched;
use crate::base::time::now_ns;
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

    fn with_lapic<R>(&self, f: impl FnOnce(&mut Lapic) -> R) -> Option<R> {
        self.shared.lapic.as_ref().map(|lapic| f(&mut lapic.lock()))
    }

    /// Where in the registers of the local APIC an address is, if it is there.
    fn lapic_offset(&self, address: u64) -> Option<u32> {
        let page = self.with_lapic(|lapic| lapic.page())??;
        (address & !0xfff == page).then_some(address as u32 & 0xfff)
    }

    /// The 8259s and the I/O APIC, where they are the kernel's.
    fn whole_chip(&self) -> Option<&'a IrqChip> {
        self.vm.irqchip.get().filter(|chip| !chip.is_split)
    }

    /// Whether the 8259 has something for this CPU.
    fn external(&self) -> bool {
        let Some(chip) = self.whole_chip() else { return false };
        self.with_lapic(|lapic| lapic.takes_external()) == Some(true)
            && chip.pic.lock().is_pending()
    }

    /// Does what follows an access to the local APIC.
    fn carry_out(&self, effect: Option<Effect>) {
        match effect {
            None | Some(Effect::None | Effect::Changed) => {}
            Some(Effect::Send(message)) => deliver(self.vm, Some(self.shared), message),
            Some(Effect::EndOfLevel(vector)) => match self.whole_chip() {
                Some(chip) => chip.end(self.vm, vector),
                None => self.shared.ended.store(u32::from(vector) + 1, Ordering::Relaxed),
            },
            Some(Effect::Timer) => self.shared.arm(),
        }
    }
}

impl Host for VcpuHost<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        self.map.read(address, into)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> bool {
        let done = self.map.write(address, from);
        if done && self.version != self.vm.version() {
            self.vm.map().0.written_by_old(address, from.len() as u64);
        }
        done
    }

    fn map(&mut self, address: u64, write: bool, _exec: bool) -> Mapped {
        let mapped = self.map.map(&self.vm.mm, &self.vm.nested, address, write);
        // Whoever changes the map takes rights away after the version: either that saw what was
        // mapped here, or this sees the version.
        if self.version != self.vm.version() {
            self.vm.map().0.mapped_by_old(&self.vm.nested, address);
        }
        mapped
    }

    fn device_read(&mut self, address: u64, into: &mut [u8]) -> bool {
        let word = if let Some(offset) = self.lapic_offset(address) {
            let lapic = self.shared.lapic.as_ref();
            lapic.map_or(0, |lapic| lapic.lock().read(offset & !15, now_ns()))
        } else if let Some(chip) = self.whole_chip()
            && address.wrapping_sub(ioapic::ADDRESS) < ioapic::BYTES
        {
            chip.ioapic.lock().read((address - ioapic::ADDRESS) & !15)
        } else {
            return false;
        };
        // Registers of four bytes, each in sixteen.
        let from = (address & 15) as usize;
        for (n, byte) in into.iter_mut().enumerate() {
            *byte = word.to_le_bytes().get(from + n).copied().unwrap_or(0);
        }
        true
    }

    fn device_write(&mut self, address: u64, from: &[u8]) -> bool {
        if self.vm.ring(false, address, from) || self.vm.coalesced.write(false, address, from) {
            return true;
        }
        let mut word = [0; 4];
        let len = from.len().min(4);
        word[..len].copy_from_slice(&from[..len]);
        let value = u32::from_le_bytes(word);
        if let Some(offset) = self.lapic_offset(address) {
            if address.is_multiple_of(16) && from.len() >= 4 {
                let effect = self.with_lapic(|lapic| lapic.write(offset, value, now_ns()));
                self.carry_out(effect);
            }
        } else if let Some(chip) = self.whole_chip()
            && address.wrapping_sub(ioapic::ADDRESS) < ioapic::BYTES
        {
            let message = chip.ioapic.lock().write(address - ioapic::ADDRESS, value);
            message.into_iter().for_each(|message| deliver(self.vm, None, message));
        } else {
            return false;
        }
        true
    }

    fn port_read(&mut self, port: u16, into: &mut [u8]) -> bool {
        let Some(chip) = self.whole_chip() else { return false };
        let [byte] = into else { return false };
        if Pic::has_port(port) {
            *byte = chip.pic.lock().read(port);
            return true;
        }
        let read = chip.pit.get().and_then(|pit| pit.read(port));
        read.map(|value| *byte = value).is_some()
    }

    fn port_write(&mut self, port: u16, from: &[u8]) -> bool {
        if self.vm.ring(true, port.into(), from) || self.vm.coalesced.write(true, port.into(), from)
        {
            return true;
        }
        let Some(chip) = self.whole_chip() else { return false };
        let &[value] = from else { return false };
        if !Pic::has_port(port) {
            return chip.pit.get().is_some_and(|pit| pit.write(port, value));
        }
        let pending = {
            let mut pic = chip.pic.lock();
            pic.write(port, value);
            pic.is_pending()
        };
        if pending {
            self.vm.for_vcpus(Shared::kick_for_external);
        }
        true
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
        if let Some(due) = self.shared.due_clock() {
            due.write_due(&self.vm.clock, &self.map, self.shared.tsc_offset());
        }
        pending & ENDS_GUEST != 0
    }

    fn has_controller(&self) -> bool {
        self.shared.lapic.is_some()
    }

    fn has_pic(&self) -> bool {
        self.whole_chip().is_some()
    }

    fn takes_external(&self) -> bool {
        self.with_lapic(|lapic| lapic.takes_external()).unwrap_or(true)
    }

    fn ended_level(&mut self) -> Option<u8> {
        let ended = self.shared.ended.swap(0, Ordering::Relaxed);
        ended.checked_sub(1).map(|vector| vector as u8)
    }

    fn interrupts(&mut self) -> Interrupts {
        let external = self.external();
        self.with_lapic(|lapic| Interrupts {
            ready: external || lapic.deliverable().is_some(),
            masked: lapic.is_masked_by_priority(),
            priority: lapic.priority(),
        })
        .unwrap_or_default()
    }

    fn acknowledge(&mut self) -> Option<u8> {
        if self.external() {
            return self.vm.irqchip.get().map(|chip| chip.pic.lock().acknowledge());
        }
        self.with_lapic(Lapic::acknowledge).flatten()
    }

    fn set_priority(&mut self, priority: u8) {
        self.with_lapic(|lapic| lapic.set_priority(priority));
    }

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

    fn read_msr(&mut self, number: u32) -> Option<u64> {
        if let Some(value) = self.shared.clock_register(number) {
            return Some(value);
        }
        match number {
            msr::APIC_BASE => Some(self.shared.apic_base()),
            msr::TSC_DEADLINE => self.with_lapic(|lapic| lapic.tsc_deadline()),
            msr::X2APIC_FIRST..=msr::X2APIC_LAST => {
                self.with_lapic(|lapic| lapic.read_msr(number, now_ns())).flatten()
            }
            _ => None,
        }
    }

    fn write_msr(&mut self, number: u32, value: u64) -> Option<bool> {
        if self.shared.change_clock(|clock| clock.write(number, value)) {
            return Some(true);
        }
        let effect = match number {
            msr::APIC_BASE => return Some(self.shared.set_apic_base(value)),
            msr::TSC_DEADLINE => self.with_lapic(|lapic| lapic.set_tsc_deadline(value)),
            msr::X2APIC_FIRST..=msr::X2APIC_LAST => {
                self.with_lapic(|lapic| lapic.write_msr(number, value, now_ns())).flatten()
            }
            _ => return None,
        };
        let known = effect.is_some();
        self.carry_out(effect);
        Some(known)
    }

    fn is_boot_cpu(&self) -> bool {
        self.shared.id == self.vm.boot_cpu.load(Ordering::Relaxed)
    }

    fn tsc(&self) -> u64 {
        machine::cpu::rdtsc()
    }

    fn tsc_offset(&mut self, value: u64, by_guest: bool) -> u64 {
        let exact = value.wrapping_sub(self.tsc());
        let offset = if by_guest { exact } else { self.vm.agree_on_tsc(exact) };
        self.shared.set_tsc_offset(offset);
        self.shared.change_clock(Registers::refresh);
        if self.shared.lapic.is_some() {
            self.shared.arm();
        }
        offset
    }

    fn xcr0_allowed(&self) -> u64 {
        super::cpuid::xcr0_allowed()
    }
}
