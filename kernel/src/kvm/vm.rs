//! One guest: its memory, its virtual CPUs, and the ioctls of its descriptor.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::kvm::{self, DirtyLog, UserMemoryRegion};
use abi::{Errno, Result};
use machine::sync::SpinLock;
use machine::vmrun::NestedSpace;

use super::memory::{self, Map};
use super::vcpu::{self, Shared};
use super::{MAX_VCPUS, OPEN, capability, check_owner};
use crate::base::sched::current;
use crate::base::sync::Mutex;
use crate::base::user::UserPtr;
use crate::ipc::give_ops;
use crate::mm::Mm;
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
    /// Held while the map is changed.
    change: Mutex<()>,
    /// By arrival.
    vcpus: SpinLock<Vec<Arc<Shared>>>,
    /// The id of the CPU that starts the machine.
    pub(super) boot_cpu: AtomicU32,
    /// What the guest's TSCs are ahead of the host's, as it was set last.
    tsc_offset: SpinLock<u64>,
}

/// KVM_CREATE_VM: the descriptor of a new guest.
pub(super) fn create() -> Result<u64> {
    crate::mm::check_reserve()?;
    let mm = current().process.mm()?;
    let nested = mm.with(|inner| NestedSpace::new(&inner.table)).map_err(|_| Errno::ENOMEM)?;
    let vm = Arc::new(Vm {
        mm,
        nested,
        map: SpinLock::default(),
        version: AtomicU64::new(0),
        change: Mutex::new(()),
        vcpus: SpinLock::default(),
        boot_cpu: AtomicU32::new(0),
        tsc_offset: SpinLock::new(machine::cpu::rdtsc().wrapping_neg()),
    });
    let inode = AnonInode::new(FileType::Regular, 0o600, "kvm-vm");
    give_ops(Arc::new(VmFile { vm, inode }), OPEN, true)
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
        for vcpu in self.vcpus() {
            vcpu.kick();
        }
    }

    pub(super) fn vcpus(&self) -> Vec<Arc<Shared>> {
        self.vcpus.lock().clone()
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
        let map = Arc::new(memory::change(&old, &self.nested, wanted)?);
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
        // First writes are exits again, then the log is taken: a write in between is told twice.
        self.nested.write_protect(start, end);
        UserPtr::<u64>::new(wanted.dirty_bitmap).write_many(&log.take()?)?;
        Ok(0)
    }
}

struct VmFile {
    vm: Arc<Vm>,
    inode: Arc<AnonInode>,
}

impl FileOps for VmFile {
    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        let vm = &self.vm;
        check_owner(&vm.mm)?;
        match command {
            kvm::KVM_CHECK_EXTENSION => Ok(capability(argument)),
            kvm::KVM_CREATE_VCPU if argument < MAX_VCPUS => vcpu::create(vm, argument as u32),
            kvm::KVM_CREATE_VCPU => Err(Errno::EINVAL),
            kvm::KVM_SET_USER_MEMORY_REGION => {
                vm.set_region(&UserPtr::<UserMemoryRegion>::new(argument).read()?)
            }
            kvm::KVM_GET_DIRTY_LOG => vm.dirty_log(argument),
            // Intel's need them; this CPU's virtualisation runs real mode as it is.
            kvm::KVM_SET_TSS_ADDR | kvm::KVM_SET_IDENTITY_MAP_ADDR => Ok(0),
            kvm::KVM_SET_BOOT_CPU_ID => {
                if !vm.vcpus().is_empty() {
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

    fn as_any(&self) -> &dyn Any {
        self
    }
}
