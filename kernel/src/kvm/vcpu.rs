//! One virtual CPU: its descriptor, its ioctls, and KVM_RUN.
//!
//! All ioctls of a virtual CPU exclude each other; what others ask of it (`Shared`) does not wait
//! for them.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use abi::kvm::{self, LapicState, MsrEntry, Msrs, Sregs, Xcrs, Xsave};
use abi::{Errno, Result};
use machine::fpu::FpuState;
use machine::pkey::Pkru;
use machine::sync::SpinLock;
use machine::vmrun::Hardware;
use virt::exit::Vmrun;
use virt::lapic::{Lapic, base};
use virt::regs::flags;
use virt::vcpu::{Host as _, MpState, Outcome, Signals, Vcpu, is_valid_xcr0};

use super::host::VcpuHost;
use super::run_area::RunArea;
use super::vm::{Handle, Vm};
use super::{OPEN, check_owner, clock, cpuid, read_entries, state};
use crate::base::sched;
use crate::base::sync::{Mutex, WaitQueue, Wake};
use crate::base::time::{Deadline, NS_PER_SEC, Timer, now_ns, wake_at};
use crate::base::user::UserPtr;
use crate::io::give_ops;
use crate::process::Thread;
use crate::process::current;
use crate::process::signal::{self, SignalSet};
use crate::vfs::anon::AnonInode;
use crate::vfs::{File, FileOps, FileType, Inode};

/// Most registers in one KVM_GET_MSRS or KVM_SET_MSRS.
const MAX_MSRS: usize = 256;

/// What others see of a virtual CPU.
pub(super) struct Shared {
    pub(super) id: u32,
    /// Something has come for it: it looks before it enters the guest.
    pub(super) requested: AtomicBool,
    /// It is in the guest, or about to be.
    pub(super) in_guest: AtomicBool,
    /// The thread in KVM_RUN.
    thread: SpinLock<Option<Arc<Thread>>>,
    /// Where that thread waits for something to come.
    pub(super) queue: WaitQueue,
    pub(super) signals: SpinLock<Signals>,
    /// Its interrupt controller, where those are the kernel's.
    pub(super) lapic: Option<SpinLock<Lapic>>,
    /// The controller's base register, where it is the VMM's.
    apic_base: AtomicU64,
    /// The controller's timer.
    timer: SpinLock<Option<Timer>>,
    /// What the guest's TSC is ahead of the host's.
    tsc_offset: AtomicU64,
    /// KVM's clock, and whether something of it is to be written.
    clock: SpinLock<clock::Registers>,
    is_clock_due: AtomicBool,
    /// One more than the vector of the level-triggered interrupt that was ended last, where the VMM
    /// is to be told; else 0.
    pub(super) ended: AtomicU32,
    /// It has shut down before (a triple fault), and the log says so.
    has_shut_down: AtomicBool,
    own: Weak<Shared>,
}

impl Shared {
    fn new(vm: &Vm, id: u32) -> Arc<Shared> {
        let is_boot_cpu = id == vm.boot_cpu.load(Ordering::Relaxed);
        let has_chip = vm.irqchip.get().is_some();
        let boot = if is_boot_cpu { base::BOOT_CPU } else { 0 };
        Arc::new_cyclic(|own| Shared {
            id,
            requested: AtomicBool::new(false),
            in_guest: AtomicBool::new(false),
            thread: SpinLock::new(None),
            queue: WaitQueue::new(),
            signals: SpinLock::default(),
            lapic: has_chip.then(|| SpinLock::new(Lapic::new(id, is_boot_cpu))),
            apic_base: AtomicU64::new(base::DEFAULT | base::ENABLE | boot),
            timer: SpinLock::new(None),
            tsc_offset: AtomicU64::new(0),
            clock: SpinLock::default(),
            is_clock_due: AtomicBool::new(false),
            ended: AtomicU32::new(0),
            has_shut_down: AtomicBool::new(false),
            own: own.clone(),
        })
    }

    pub(super) fn apic_base(&self) -> u64 {
        match &self.lapic {
            Some(lapic) => lapic.lock().base(),
            None => self.apic_base.load(Ordering::Relaxed),
        }
    }

    /// Sets the base register; false if no CPU takes that value.
    pub(super) fn set_apic_base(&self, value: u64) -> bool {
        match &self.lapic {
            Some(lapic) => lapic.lock().set_base(value),
            None => {
                self.apic_base.store(value, Ordering::Relaxed);
                true
            }
        }
    }

    /// A register of KVM's clock.
    pub(super) fn clock_register(&self, number: u32) -> Option<u64> {
        self.clock.lock().read(number)
    }

    /// Changes them; what follows is written before the next entry.
    pub(super) fn change_clock<R>(&self, f: impl FnOnce(&mut clock::Registers) -> R) -> R {
        let result = f(&mut self.clock.lock());
        self.is_clock_due.store(true, Ordering::Release);
        result
    }

    /// What is to be written now, once.
    pub(super) fn due_clock(&self) -> Option<clock::Registers> {
        if !self.is_clock_due.load(Ordering::Relaxed) {
            return None;
        }
        self.is_clock_due.store(false, Ordering::Relaxed);
        Some(self.clock.lock().take_due())
    }

    pub(super) fn tsc_offset(&self) -> u64 {
        self.tsc_offset.load(Ordering::Relaxed)
    }

    pub(super) fn set_tsc_offset(&self, offset: u64) {
        self.tsc_offset.store(offset, Ordering::Relaxed);
    }

    /// When the controller's timer fires, ns; 0: a TSC deadline that has passed.
    fn deadline(&self) -> Option<u64> {
        let lapic = self.lapic.as_ref()?.lock();
        lapic.deadline(|guest_tsc| {
            let host_tsc = guest_tsc.wrapping_sub(self.tsc_offset.load(Ordering::Relaxed));
            let left = host_tsc.wrapping_sub(machine::cpu::rdtsc()) as i64;
            if left <= 0 {
                return 0;
            }
            let hz = u128::from(machine::time::tsc_hz());
            let left_ns = (left as u128 * u128::from(NS_PER_SEC)).div_ceil(hz);
            now_ns().saturating_add(left_ns.min(u128::from(u64::MAX)) as u64)
        })
    }

    /// The timer's deadline may have changed.
    pub(super) fn arm(&self) {
        let deadline = self.deadline();
        let mut timer = self.timer.lock();
        if let Some(old) = timer.take() {
            old.cancel();
        }
        if let (Some(at), Some(own)) = (deadline, self.own.upgrade()) {
            *timer = Some(wake_at(Deadline(at), own));
        }
    }

    /// The guest is gone: the timer does not fire any more.
    pub(super) fn stop(&self) {
        if let Some(timer) = self.timer.lock().take() {
            timer.cancel();
        }
    }

    /// The 8259's line is up: for those that listen to it.
    pub(super) fn kick_for_external(&self) {
        if self.lapic.as_ref().is_some_and(|lapic| lapic.lock().takes_external()) {
            self.kick();
        }
    }

    /// Makes it look at what has come. Callable from interrupts.
    pub(super) fn kick(&self) {
        self.requested.store(true, Ordering::SeqCst);
        self.queue.wake_all(0);
        if self.in_guest.load(Ordering::SeqCst) {
            let thread = self.thread.lock().clone();
            if let Some(thread) = thread {
                sched::notify(&thread.base);
            }
        }
    }
}

impl Wake for Shared {
    /// The timer of its controller has come to its deadline.
    fn wake(&self, _events: u32) -> bool {
        let now_ns = now_ns();
        let is_due = self.deadline().is_some_and(|at| at <= now_ns);
        if let Some(lapic) = self.lapic.as_ref().filter(|_| is_due) {
            let posted = lapic.lock().expire(now_ns);
            if posted {
                self.kick();
            }
        }
        self.arm();
        true
    }
}

/// What its own ioctls work on.
struct Inner {
    cpu: Vcpu<Hardware>,
    /// The guest's registers while its thread is not in KVM_RUN, the thread's own while it is.
    fpu: FpuState,
    signal_mask: Option<SignalSet>,
    /// Why the guest was left last.
    last: Outcome,
}

struct VcpuFile {
    vm: Arc<Handle>,
    shared: Arc<Shared>,
    area: RunArea,
    inner: Mutex<Inner>,
    inode: Arc<AnonInode>,
}

/// KVM_CREATE_VCPU.
pub(super) fn create(vm: &Arc<Handle>, id: u32) -> Result<u64> {
    crate::base::reserve::check_reserve()?;
    let shared = Shared::new(vm, id);
    shared.set_tsc_offset(vm.tsc_offset());
    let inner = new_inner(vm, &shared, id)?;
    let area = RunArea::new(&vm.coalesced.ring)?;
    let inode = AnonInode::mapped(FileType::Anonymous, 0o600, "kvm-vcpu", area.cache.clone());
    vm.add_vcpu(&shared)?;
    let file = VcpuFile { vm: vm.clone(), shared, area, inner: Mutex::new(inner), inode };
    give_ops(Arc::new(file), OPEN, true)
}

/// In a frame of its own: what is made here is copied once on its way to its place.
#[inline(never)]
fn new_inner(vm: &Handle, shared: &Shared, id: u32) -> Result<Inner> {
    let hardware = Hardware::new(vm.nested.clone()).map_err(|_| Errno::ENOMEM)?;
    let mut cpu = Vcpu::new(hardware).ok_or(Errno::ENOMEM)?;
    *cpu.hardware.tsc_offset() = vm.tsc_offset();
    if shared.lapic.is_some() && id != vm.boot_cpu.load(Ordering::Relaxed) {
        cpu.mp_state = MpState::Uninitialized;
    }
    let mut fpu = FpuState::new().map_err(|_| Errno::ENOMEM)?;
    // Of a CPU after its reset, not of a program.
    fpu.set_keys(Pkru::ALL);
    Ok(Inner { cpu, fpu, signal_mask: None, last: Outcome::Interrupted })
}

impl VcpuFile {
    fn run(&self, inner: &mut Inner) -> Result<u64> {
        let thread = current();
        let mask = inner.signal_mask.map(signal::set_blocked);
        *self.shared.thread.lock() = Some(thread.to_arc());
        self.take_answer(inner);
        machine::task::exchange_fpu(&mut inner.fpu);
        let mut host = VcpuHost::new(thread, &self.vm, &self.shared);
        let outcome = inner.cpu.run(&mut host);
        machine::task::exchange_fpu(&mut inner.fpu);
        self.shared.in_guest.store(false, Ordering::SeqCst);
        let own = self.shared.thread.lock().take();
        drop(own);
        if let Some(mask) = mask {
            signal::set_blocked(mask);
        }
        self.tell(inner, outcome)
    }

    /// A VMM is not told where its guest was, and most end without a word. Once for each CPU: a
    /// guest may do it as often as it is started.
    fn log_shutdown(&self, hardware: &Hardware) {
        if self.shared.has_shut_down.swap(true, Ordering::Relaxed) {
            return;
        }
        let (rip, system) = (hardware.rip(), hardware.system());
        let (cr0, cr2, cr3) = (system.cr0, system.cr2, system.cr3);
        machine::log!(
            "kvm: CPU {} of a guest has shut down at {rip:#x}: cr0 {cr0:#x}, cr2 {cr2:#x}, cr3 \
             {cr3:#x}, efer {:#x}",
            self.shared.id,
            system.efer,
        );
    }

    /// What the VMM has left in `struct kvm_run`.
    fn take_answer(&self, inner: &mut Inner) {
        inner.cpu.exits_at_once = self.area.asks_to_exit_at_once();
        inner.cpu.wants_window = self.area.asks_for_window();
        if self.shared.lapic.is_none() {
            inner.cpu.hardware.set_priority(self.area.priority());
        }
        match core::mem::replace(&mut inner.last, Outcome::Interrupted) {
            Outcome::Io { is_in: true, size, count, .. } => {
                let bytes = usize::from(size) * count as usize;
                let data = &mut inner.cpu.port_data[..];
                let bytes = bytes.min(data.len());
                self.area.read_ports(&mut data[..bytes]);
            }
            Outcome::Mmio { write: false, .. } => {
                inner.cpu.answer_mmio(self.area.mmio_data());
            }
            _ => {}
        }
    }

    fn tell(&self, inner: &mut Inner, outcome: Outcome) -> Result<u64> {
        let hardware = &inner.cpu.hardware;
        let interrupts = hardware.rflags() & flags::IF != 0;
        let takes = self.shared.lapic.as_ref().is_none_or(|lapic| lapic.lock().takes_external());
        let ready = takes && inner.cpu.can_be_interrupted();
        let apic_base = self.shared.apic_base();
        self.area.write_state(ready, interrupts, hardware.priority(), apic_base);
        self.area.write_outcome(&outcome, &inner.cpu.port_data);
        if outcome == Outcome::Shutdown {
            self.log_shutdown(hardware);
        }
        inner.last = outcome;
        match outcome {
            Outcome::Interrupted => Err(Errno::EINTR),
            Outcome::BadMemory => Err(Errno::EFAULT),
            _ => Ok(0),
        }
    }

    fn host(&self) -> VcpuHost<'_> {
        VcpuHost::new(current(), &self.vm, &self.shared)
    }

    fn get_msrs(&self, inner: &mut Inner, at: u64) -> Result<u64> {
        let head = UserPtr::<Msrs>::new(at);
        let entries = read_entries::<Msrs, MsrEntry>(at, head.read()?.nmsrs, MAX_MSRS)?;
        let mut host = self.host();
        let to = head.nth(1).cast::<MsrEntry>();
        for (n, entry) in entries.iter().enumerate() {
            let Some(data) = inner.cpu.read_msr(&mut host, entry.index) else {
                return Ok(n as u64);
            };
            to.nth(n).write(&MsrEntry { data, ..*entry })?;
        }
        Ok(entries.len() as u64)
    }

    fn set_msrs(&self, inner: &mut Inner, at: u64) -> Result<u64> {
        let count = UserPtr::<Msrs>::new(at).read()?.nmsrs;
        let entries = read_entries::<Msrs, MsrEntry>(at, count, MAX_MSRS)?;
        let mut host = self.host();
        let is_set = |e: &&MsrEntry| inner.cpu.write_msr(&mut host, e.index, e.data, false);
        Ok(entries.iter().take_while(is_set).count() as u64)
    }

    fn registers(&self, inner: &mut Inner, command: u32, at: u64) -> Result<Option<u64>> {
        let Inner { cpu, .. } = inner;
        let apic_base = self.shared.apic_base();
        match command {
            kvm::KVM_GET_REGS => UserPtr::new(at).write(&state::regs(&mut cpu.hardware))?,
            kvm::KVM_SET_REGS => {
                state::set_regs(&mut cpu.hardware, &UserPtr::new(at).read()?);
                cpu.forget_instruction();
                cpu.pending.exception = None;
            }
            kvm::KVM_GET_SREGS => {
                UserPtr::new(at).write(&state::sregs(&cpu.hardware, &cpu.pending, apic_base))?;
            }
            kvm::KVM_SET_SREGS => {
                self.set_sregs(cpu, &UserPtr::new(at).read()?)?;
            }
            kvm::KVM_GET_SREGS2 => {
                let sregs = state::sregs(&cpu.hardware, &cpu.pending, apic_base);
                UserPtr::new(at).write(&state::sregs2(&sregs))?;
            }
            kvm::KVM_SET_SREGS2 => {
                let sregs = state::from_sregs2(&UserPtr::new(at).read()?);
                let external = cpu.pending.external;
                self.set_sregs(cpu, &sregs)?;
                cpu.pending.external = external;
            }
            kvm::KVM_GET_DEBUGREGS => {
                UserPtr::new(at).write(&state::debug_registers(&mut cpu.hardware))?;
            }
            kvm::KVM_SET_DEBUGREGS => {
                state::set_debug_registers(&mut cpu.hardware, &UserPtr::new(at).read()?)?;
            }
            kvm::KVM_GET_VCPU_EVENTS => {
                UserPtr::new(at).write(&state::events(&cpu.hardware, &cpu.pending))?;
            }
            kvm::KVM_SET_VCPU_EVENTS => {
                let events = UserPtr::new(at).read()?;
                state::set_events(&mut cpu.hardware, &mut cpu.pending, &events)?;
            }
            kvm::KVM_GET_MP_STATE => UserPtr::new(at).write(&(cpu.mp_state as u32))?,
            kvm::KVM_SET_MP_STATE => {
                let wanted = MpState::from_number(UserPtr::new(at).read()?);
                cpu.mp_state = wanted.ok_or(Errno::EINVAL)?;
            }
            _ => return Ok(None),
        }
        Ok(Some(0))
    }

    fn set_sregs(&self, cpu: &mut Vcpu<Hardware>, sregs: &Sregs) -> Result<()> {
        if !self.shared.set_apic_base(sregs.apic_base) {
            return Err(Errno::EINVAL);
        }
        // What has been set already, a guest's own MOV may have set.
        let allowed = cpuid::cr4_allowed() | cpu.hardware.system().cr4;
        state::set_sregs(&mut cpu.hardware, &mut cpu.pending, sregs, allowed)?;
        if let Some(lapic) = &self.shared.lapic {
            lapic.lock().set_priority(sregs.cr8 as u8);
        }
        cpu.forget_instruction();
        Ok(())
    }

    fn floating_point(&self, inner: &mut Inner, command: u32, at: u64) -> Result<Option<u64>> {
        match command {
            kvm::KVM_GET_FPU => {
                UserPtr::new(at).write(&state::fpu(&state::full_image(&inner.fpu)?))?;
            }
            kvm::KVM_SET_FPU => {
                let mut image = state::full_image(&inner.fpu)?;
                state::set_fpu(&mut image, &UserPtr::new(at).read()?);
                inner.fpu.set_from_user(&image);
            }
            kvm::KVM_GET_XSAVE => {
                let image = state::full_image(&inner.fpu)?;
                // Any CPU's image that Limen manages fits (AVX-512 and PKRU: 2,696 bytes).
                let len = image.len().min(size_of::<Xsave>());
                UserPtr::<u8>::new(at).write_many(&image[..len])?;
                let rest = size_of::<Xsave>() - len;
                UserPtr::<u8>::new(at.wrapping_add(len as u64)).write_zeros(rest)?;
            }
            kvm::KVM_SET_XSAVE => {
                let image = UserPtr::<u8>::new(at).read_many(size_of::<Xsave>())?;
                let present = image[512..520].iter().rev().fold(0, |v, &b| v << 8 | u64::from(b));
                if present & !cpuid::xcr0_allowed() != 0 {
                    return Err(Errno::EINVAL);
                }
                inner.fpu.set_from_user(&image);
            }
            kvm::KVM_GET_XCRS => {
                let mut xcrs = Xcrs { nr_xcrs: 1, ..Xcrs::default() };
                xcrs.xcrs[0].value = *inner.cpu.hardware.xcr0();
                UserPtr::new(at).write(&xcrs)?;
            }
            kvm::KVM_SET_XCRS => {
                let xcrs = UserPtr::<Xcrs>::new(at).read()?;
                if xcrs.flags != 0 || xcrs.nr_xcrs > 16 {
                    return Err(Errno::EINVAL);
                }
                let given = &xcrs.xcrs[..xcrs.nr_xcrs as usize];
                if let Some(xcr0) = given.iter().find(|xcr| xcr.xcr == 0) {
                    if !is_valid_xcr0(xcr0.value, cpuid::xcr0_allowed()) {
                        return Err(Errno::EINVAL);
                    }
                    *inner.cpu.hardware.xcr0() = xcr0.value;
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(0))
    }

    /// In a frame of its own, as the next: the registers take 1 KiB of the stack.
    #[inline(never)]
    fn get_lapic(&self, at: u64) -> Result<u64> {
        let lapic = self.shared.lapic.as_ref().ok_or(Errno::EINVAL)?;
        let regs = lapic.lock().registers(now_ns());
        UserPtr::new(at).write(&LapicState { regs })?;
        Ok(0)
    }

    #[inline(never)]
    fn set_lapic(&self, at: u64) -> Result<u64> {
        let lapic = self.shared.lapic.as_ref().ok_or(Errno::EINVAL)?;
        let state = UserPtr::<LapicState>::new(at).read()?;
        lapic.lock().set_registers(&state.regs, now_ns());
        self.shared.arm();
        Ok(0)
    }

    fn others(&self, inner: &mut Inner, command: u32, at: u64) -> Result<u64> {
        match command {
            kvm::KVM_GET_MSRS => self.get_msrs(inner, at),
            kvm::KVM_SET_MSRS => self.set_msrs(inner, at),
            kvm::KVM_SET_CPUID2 => {
                inner.cpu.cpuid = cpuid::read_table(at)?;
                Ok(0)
            }
            kvm::KVM_GET_CPUID2 => cpuid::write_table(at, &inner.cpu.cpuid),
            kvm::KVM_GET_LAPIC => self.get_lapic(at),
            kvm::KVM_SET_LAPIC => self.set_lapic(at),
            kvm::KVM_INTERRUPT if self.host().has_pic() => Err(Errno::ENXIO),
            kvm::KVM_INTERRUPT => {
                let vector = UserPtr::<u32>::new(at).read()?;
                let vector = u8::try_from(vector).map_err(|_| Errno::EINVAL)?;
                if inner.cpu.pending.external.is_some() {
                    return Err(Errno::EEXIST);
                }
                inner.cpu.pending.external = Some(vector);
                Ok(0)
            }
            kvm::KVM_NMI => {
                inner.cpu.pending.post_nmi();
                Ok(0)
            }
            kvm::KVM_SET_SIGNAL_MASK => {
                inner.signal_mask = read_mask(at)?;
                Ok(0)
            }
            // Off, which it is: what 32-bit guests with a patched task priority would share.
            kvm::KVM_SET_VAPIC_ADDR if UserPtr::<u64>::new(at).read()? == 0 => Ok(0),
            kvm::KVM_SET_VAPIC_ADDR => Err(Errno::EINVAL),
            kvm::KVM_GET_TSC_KHZ => Ok(machine::time::tsc_hz() / 1000),
            _ => Err(Errno::ENOTTY),
        }
    }
}

/// `struct kvm_signal_mask`; None for the null pointer.
fn read_mask(at: u64) -> Result<Option<SignalSet>> {
    let Some(len) = UserPtr::<u32>::new(at).non_null() else { return Ok(None) };
    if len.read()? != 8 {
        return Err(Errno::EINVAL);
    }
    Ok(Some(len.nth(1).cast::<SignalSet>().read()?))
}

impl FileOps for VcpuFile {
    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        check_owner(&self.vm.mm)?;
        let mut inner = self.inner.lock();
        if command == kvm::KVM_RUN {
            return if argument == 0 { self.run(&mut inner) } else { Err(Errno::EINVAL) };
        }
        if let Some(done) = self.registers(&mut inner, command, argument)? {
            return Ok(done);
        }
        if let Some(done) = self.floating_point(&mut inner, command, argument)? {
            return Ok(done);
        }
        self.others(&mut inner, command, argument)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}
