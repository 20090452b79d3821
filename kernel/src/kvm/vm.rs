//! One guest: its memory, its virtual CPUs, and the ioctls of its descriptor.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::kvm::cap;
use abi::kvm::{
    self, ClearDirtyLog, CoalescedZone, DirtyLog, EnableCap, IoEventFd, IrqFd, IrqLevel, Msi,
    PitConfig, PitState2, UserMemoryRegion, UserMemoryRegion2,
};
use abi::{Errno, Result};
use machine::sync::{Once, SpinLock};
use machine::vmrun::NestedSpace;
use virt::lapic::Message;

use super::clock::{Clock, Registers};
use super::coalesced::Coalesced;
use super::events::{self, Doorbell, Line};
use super::irqchip::{IrqChip, MAX_ROUTES, PitDevice, deliver};
use super::memory::{self, Map};
use super::vcpu::{self, Shared};
use super::{MAX_VCPUS, OPEN, capability, check_owner};
use crate::base::sync::Mutex;
use crate::base::user::UserPtr;
use crate::io::give_ops;
use crate::mm::{Mm, PAGE};
use crate::process::current;
use crate::vfs::anon::AnonInode;
use crate::vfs::{File, FileOps, FileType, Inode};

/// See the module.
pub(super) struct Vm {
    /// Whose memory it has.
    pub(super) mm: Arc<Mm>,
    pub(super) nested: Arc<NestedSpace>,
    map: SpinLock<Arc<Map>>,
    /// How often the map has changed.
    version: AtomicU64,
    /// How the VMM wants its dirty logs (KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2).
    log_modes: AtomicU64,
    /// Held while the map is changed.
    change: Mutex<()>,
    /// By arrival.
    vcpus: SpinLock<Vec<Arc<Shared>>>,
    /// The id of the CPU that starts the machine.
    pub(super) boot_cpu: AtomicU32,
    /// What the guest's TSCs are ahead of the host's, as it was set last.
    tsc_offset: SpinLock<u64>,
    /// Once the VMM wants them here.
    pub(super) irqchip: Once<IrqChip>,
    pub(super) clock: Clock,
    pub(super) coalesced: Coalesced,
    doorbells: SpinLock<Vec<Doorbell>>,
    lines: SpinLock<Vec<Arc<Line>>>,
}

/// What descriptors hold: with the last one the guest's timers and lines stop, so that no interrupt
/// is left with the last reference to the guest, whose end may sleep.
pub(super) struct Handle(Arc<Vm>);

impl core::ops::Deref for Handle {
    type Target = Arc<Vm>;
    fn deref(&self) -> &Arc<Vm> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stop();
        // Handlers that found it before hold it for as long as one interrupt takes.
        while Arc::strong_count(&self.0) > 1 {
            machine::sync::spin_wait();
        }
    }
}

/// KVM_CREATE_VM: the descriptor of a new guest.
pub(super) fn create() -> Result<u64> {
    crate::base::reserve::check_reserve()?;
    let mm = current().process.mm()?;
    let nested = mm.with(|inner| NestedSpace::new(&mut inner.table)).map_err(|_| Errno::ENOMEM)?;
    let vm = Arc::new(Vm {
        mm,
        nested,
        map: SpinLock::default(),
        version: AtomicU64::new(0),
        log_modes: AtomicU64::new(0),
        change: Mutex::new(()),
        vcpus: SpinLock::default(),
        boot_cpu: AtomicU32::new(0),
        tsc_offset: SpinLock::new(machine::cpu::rdtsc().wrapping_neg()),
        irqchip: Once::new(),
        clock: Clock::new(),
        coalesced: Coalesced::new()?,
        doorbells: SpinLock::default(),
        lines: SpinLock::default(),
    });
    let inode = AnonInode::new(FileType::Anonymous, 0o600, "kvm-vm");
    give_ops(Arc::new(VmFile { vm: Arc::new(Handle(vm)), inode }), OPEN, true)
}

impl Vm {
    /// The map as it is, and its version.
    pub(super) fn map(&self) -> (Arc<Map>, u64) {
        let map = self.map.lock();
        (map.clone(), self.version.load(Ordering::Relaxed))
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn set_map(&self, map: Arc<Map>) {
        let old = {
            let mut slot = self.map.lock();
            self.version.fetch_add(1, Ordering::Relaxed);
            core::mem::replace(&mut *slot, map)
        };
        drop(old);
        self.for_vcpus(Shared::kick);
    }

    /// Calls `f` with each virtual CPU. `f` neither sleeps nor asks for them again.
    pub(super) fn for_vcpus(&self, f: impl FnMut(&Shared)) {
        self.vcpus.lock().iter().map(|vcpu| &**vcpu).for_each(f);
    }

    fn has_vcpus(&self) -> bool {
        !self.vcpus.lock().is_empty()
    }

    /// Whether a write of the guest's is one that signals an eventfd, and nothing more.
    pub(super) fn ring(&self, is_port: bool, address: u64, from: &[u8]) -> bool {
        self.doorbells.lock().iter().any(|bell| bell.ring(is_port, address, from))
    }

    pub(super) fn change_doorbells<R>(
        &self,
        f: impl FnOnce(&mut Vec<Doorbell>) -> Result<R>,
    ) -> Result<R> {
        f(&mut self.doorbells.lock())
    }

    pub(super) fn change_lines<R>(
        &self,
        f: impl FnOnce(&mut Vec<Arc<Line>>) -> Result<R>,
    ) -> Result<R> {
        f(&mut self.lines.lock())
    }

    /// The interrupt of a line was ended by the CPUs.
    pub(super) fn line_ended(&self, number: u32) {
        let ended = |line: &&Arc<Line>| line.number == number;
        let lines: Vec<Arc<Line>> = self.lines.lock().iter().filter(ended).cloned().collect();
        lines.iter().for_each(|line| line.ended(self));
    }

    /// No timer and no line of it fires after this.
    fn stop(&self) {
        let lines = core::mem::take(&mut *self.lines.lock());
        lines.iter().for_each(|line| line.stop());
        if let Some(pit) = self.irqchip.get().and_then(|chip| chip.pit.get()) {
            pit.stop();
        }
        let vcpus = core::mem::take(&mut *self.vcpus.lock());
        vcpus.iter().for_each(|vcpu| vcpu.stop());
    }

    /// KVM_CREATE_IRQCHIP; `is_split`: only the local controllers (KVM_CAP_SPLIT_IRQCHIP).
    fn create_irqchip(&self, is_split: bool) -> Result<u64> {
        let _changing = self.change.lock();
        if self.irqchip.get().is_some() {
            return Err(Errno::EEXIST);
        }
        if self.has_vcpus() {
            return Err(Errno::EINVAL);
        }
        self.irqchip.call_once(|| IrqChip::new(is_split));
        Ok(0)
    }

    fn create_pit(self: &Arc<Self>, at: u64) -> Result<u64> {
        const SPEAKER: u32 = 1;
        let config = UserPtr::<PitConfig>::new(at).read()?;
        let _changing = self.change.lock();
        let chip = self.irqchip.get().filter(|chip| !chip.is_split).ok_or(Errno::ENOENT)?;
        if chip.pit.get().is_some() {
            return Err(Errno::EEXIST);
        }
        chip.pit.call_once(|| PitDevice::new(self, config.flags & SPEAKER != 0));
        Ok(0)
    }

    /// Ioctls on the interrupt controllers. None: not one of them.
    fn interrupts(self: &Arc<Self>, command: u32, at: u64) -> Result<Option<u64>> {
        let chip = || self.irqchip.get().ok_or(Errno::ENXIO);
        let whole_chip = || chip().and_then(|c| if c.is_split { Err(Errno::ENXIO) } else { Ok(c) });
        let pit = || chip()?.pit.get().ok_or(Errno::ENXIO);
        let done = match command {
            kvm::KVM_CREATE_IRQCHIP => self.create_irqchip(false)?,
            kvm::KVM_CREATE_PIT2 => self.create_pit(at)?,
            kvm::KVM_IRQ_LINE | kvm::KVM_IRQ_LINE_STATUS => {
                let asked = UserPtr::<IrqLevel>::new(at).read()?;
                chip()?.set_line(self, asked.irq, asked.level != 0);
                if command == kvm::KVM_IRQ_LINE_STATUS {
                    // Delivered, as far as anybody asks.
                    UserPtr::new(at).write(&IrqLevel { irq: 1, ..asked })?;
                }
                0
            }
            kvm::KVM_SIGNAL_MSI => {
                chip()?;
                let msi = UserPtr::<Msi>::new(at).read()?;
                let message = Message::from_msi(msi.address_lo, msi.data).ok_or(Errno::EINVAL)?;
                deliver(self, None, message);
                1
            }
            kvm::KVM_SET_GSI_ROUTING => chip()?.set_routes(at)?,
            kvm::KVM_GET_IRQCHIP => whole_chip()?.state(at)?,
            kvm::KVM_SET_IRQCHIP => whole_chip()?.set_state(at)?,
            kvm::KVM_GET_PIT2 => {
                UserPtr::new(at).write(&pit()?.state())?;
                0
            }
            kvm::KVM_SET_PIT2 => {
                pit()?.set_state(&UserPtr::<PitState2>::new(at).read()?);
                0
            }
            // Ticks that a guest has missed are not made up for, whatever is asked.
            kvm::KVM_REINJECT_CONTROL => pit().map(|_| 0)?,
            kvm::KVM_IRQFD => events::set_line(self, &UserPtr::<IrqFd>::new(at).read()?)?,
            kvm::KVM_IOEVENTFD => {
                events::set_doorbell(self, &UserPtr::<IoEventFd>::new(at).read()?)?
            }
            _ => return Ok(None),
        };
        Ok(Some(done))
    }

    /// KVM_ENABLE_CAP: what a VMM has to ask for.
    fn enable(&self, at: u64) -> Result<u64> {
        let asked = UserPtr::<EnableCap>::new(at).read()?;
        if asked.flags != 0 {
            return Err(Errno::EINVAL);
        }
        match asked.cap {
            // Routes that are pins of the VMM's I/O APIC: all of them may be.
            cap::SPLIT_IRQCHIP if asked.args[0] <= MAX_ROUTES as u64 => self.create_irqchip(true),
            cap::MANUAL_DIRTY_LOG_PROTECT2 => {
                let modes = asked.args[0];
                let known = kvm::DIRTY_LOG_MANUAL_PROTECT_ENABLE | kvm::DIRTY_LOG_INITIALLY_SET;
                // The second means nothing without the first.
                if modes & !known != 0 || modes == kvm::DIRTY_LOG_INITIALLY_SET {
                    return Err(Errno::EINVAL);
                }
                self.log_modes.store(modes, Ordering::Relaxed);
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn has_log_mode(&self, mode: u64) -> bool {
        self.log_modes.load(Ordering::Relaxed) & mode != 0
    }

    fn set_clock(&self, at: u64) -> Result<u64> {
        self.clock.set(at)?;
        self.for_vcpus(|vcpu| {
            vcpu.change_clock(Registers::refresh);
            vcpu.kick();
        });
        Ok(0)
    }

    /// Enters a virtual CPU; EEXIST if there is one with its id.
    pub(super) fn add_vcpu(&self, shared: &Arc<Shared>) -> Result<()> {
        let mut vcpus = self.vcpus.lock();
        if vcpus.iter().any(|other| other.id == shared.id) {
            return Err(Errno::EEXIST);
        }
        vcpus.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        vcpus.push(shared.clone());
        Ok(())
    }

    /// The offset for a CPU whose TSC the VMM sets: that of the last one, if it is nearly the same.
    pub(super) fn agree_on_tsc(&self, exact: u64) -> u64 {
        let mut last = self.tsc_offset.lock();
        let apart = (exact.wrapping_sub(*last) as i64).unsigned_abs();
        if apart > machine::time::tsc_hz() {
            *last = exact;
        }
        *last
    }

    /// The offset that new CPUs begin with.
    pub(super) fn tsc_offset(&self) -> u64 {
        *self.tsc_offset.lock()
    }

    fn set_region(&self, wanted: &UserMemoryRegion) -> Result<u64> {
        let _changing = self.change.lock();
        let (old, _) = self.map();
        let set_at_first = self.has_log_mode(kvm::DIRTY_LOG_INITIALLY_SET);
        let map = Arc::new(memory::change(&old, &self.nested, wanted, set_at_first)?);
        self.set_map(map.clone());
        // After the map, so that no page is made writable by the old one afterwards: whoever had
        // that one has been asked to look again, and takes this lock's owner's word only then.
        if let Some(region) = map.by_number(wanted.slot)
            && region.dirty().is_some()
        {
            let (start, end) = region.range();
            self.nested.write_protect(start, end);
        }
        Ok(0)
    }

    fn dirty_log(&self, at: u64) -> Result<u64> {
        let wanted = UserPtr::<DirtyLog>::new(at).read()?;
        let _changing = self.change.lock();
        let (map, _) = self.map();
        let region = map.by_number(wanted.slot).ok_or(Errno::ENOENT)?;
        let log = region.dirty().ok_or(Errno::ENOENT)?;
        let (start, end) = region.range();
        let told = UserPtr::<u64>::new(wanted.dirty_bitmap);
        if self.has_log_mode(kvm::DIRTY_LOG_MANUAL_PROTECT_ENABLE) {
            return told.write_many(&log.look()?).map(|()| 0);
        }
        // The log is taken before first writes are exits again: the other way round a page could be
        // written first, and told, in between, and written on without an exit.
        let written = log.take()?;
        self.nested.write_protect(start, end);
        let told = told.write_many(&written);
        if told.is_err() {
            log.put_back(&written);
        }
        told.map(|()| 0)
    }

    /// KVM_CLEAR_DIRTY_LOG: pages of the log that the VMM has copied, or is about to.
    fn clear_dirty_log(&self, at: u64) -> Result<u64> {
        let wanted = UserPtr::<ClearDirtyLog>::new(at).read()?;
        let (first, count) = (wanted.first_page, u64::from(wanted.num_pages));
        let _changing = self.change.lock();
        let (map, _) = self.map();
        let region = map.by_number(wanted.slot).ok_or(Errno::ENOENT)?;
        let log = region.dirty().ok_or(Errno::ENOENT)?;
        let (start, end) = region.range();
        let left = ((end - start) / PAGE).checked_sub(first).ok_or(Errno::EINVAL)?;
        // Whole words, but for the region's last.
        if !first.is_multiple_of(64) || count > left || count < left && !count.is_multiple_of(64) {
            return Err(Errno::EINVAL);
        }
        let mut words =
            UserPtr::<u64>::new(wanted.dirty_bitmap).read_many(count.div_ceil(64) as usize)?;
        if let (Some(last), rest @ 1..) = (words.last_mut(), count % 64) {
            *last &= (1 << rest) - 1;
        }
        // In this order, as where the log is taken. Pages in between that stay in the log are
        // missed once more when they are written, and are in it already.
        if let Some((from, to)) = log.clear((first / 64) as usize, &words) {
            self.nested.write_protect(start + from * PAGE, start + to * PAGE);
        }
        Ok(0)
    }
}

struct VmFile {
    vm: Arc<Handle>,
    inode: Arc<AnonInode>,
}

impl FileOps for VmFile {
    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        let vm = &self.vm;
        check_owner(&vm.mm)?;
        if let Some(done) = vm.interrupts(command, argument)? {
            return Ok(done);
        }
        match command {
            kvm::KVM_CHECK_EXTENSION => Ok(capability(argument)),
            kvm::KVM_CREATE_VCPU if argument < MAX_VCPUS => vcpu::create(vm, argument as u32),
            kvm::KVM_CREATE_VCPU => Err(Errno::EINVAL),
            kvm::KVM_SET_USER_MEMORY_REGION => {
                vm.set_region(&UserPtr::<UserMemoryRegion>::new(argument).read()?)
            }
            kvm::KVM_SET_USER_MEMORY_REGION2 => {
                // Memory of its own (KVM_MEM_GUEST_MEMFD) is an unknown flag.
                let UserMemoryRegion2 {
                    slot,
                    flags,
                    guest_phys_addr,
                    memory_size,
                    userspace_addr,
                    ..
                } = UserPtr::new(argument).read()?;
                let region =
                    UserMemoryRegion { slot, flags, guest_phys_addr, memory_size, userspace_addr };
                vm.set_region(&region)
            }
            kvm::KVM_GET_DIRTY_LOG => vm.dirty_log(argument),
            kvm::KVM_CLEAR_DIRTY_LOG => vm.clear_dirty_log(argument),
            kvm::KVM_ENABLE_CAP => vm.enable(argument),
            // All CPUs have the host's.
            kvm::KVM_GET_TSC_KHZ => Ok(machine::time::tsc_hz() / 1000),
            kvm::KVM_GET_CLOCK => vm.clock.get(argument),
            kvm::KVM_SET_CLOCK => vm.set_clock(argument),
            kvm::KVM_REGISTER_COALESCED_MMIO => {
                vm.coalesced.register(UserPtr::<CoalescedZone>::new(argument).read()?)
            }
            kvm::KVM_UNREGISTER_COALESCED_MMIO => {
                vm.coalesced.unregister(UserPtr::<CoalescedZone>::new(argument).read()?)
            }
            // Intel's need them; this CPU's virtualisation runs real mode as it is.
            kvm::KVM_SET_TSS_ADDR | kvm::KVM_SET_IDENTITY_MAP_ADDR => Ok(0),
            kvm::KVM_SET_BOOT_CPU_ID => {
                if vm.has_vcpus() {
                    return Err(Errno::EBUSY);
                }
                vm.boot_cpu.store(argument as u32, Ordering::Relaxed);
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}
