//! One guest with its memory, for the tests.

use core::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

/// Errors are told, never handled: they are what is tested for.
pub type Result<T> = core::result::Result<T, String>;

/// What an ioctl's failure becomes.
pub fn say(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// Memory that a guest may have; unmapped with the last use.
pub struct Memory {
    at: *mut u8,
    len: usize,
}

// SAFETY: the memory is plain bytes, touched by volatile accesses only.
unsafe impl Send for Memory {}
// SAFETY: shared use is by volatile accesses of bytes alone, so no reference to them exists.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(len: usize) -> Memory {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, rights, kind, -1, 0) };
        assert!(at != libc::MAP_FAILED, "no memory");
        Memory { at: at.cast(), len }
    }

    /// The same, from a multiple of `align` on.
    pub fn aligned(len: usize, align: usize) -> Memory {
        let whole = Memory::new(len + align);
        let from = (whole.at as usize).next_multiple_of(align) - whole.at as usize;
        // SAFETY: `whole` is this function's alone; what is before and behind the result goes.
        unsafe {
            libc::munmap(whole.at.cast(), from);
            libc::munmap(whole.at.add(from + len).cast(), align - from);
        }
        // SAFETY: `from` is less than `align`, so the place is within the mapping.
        let at = unsafe { whole.at.add(from) };
        core::mem::forget(whole);
        Memory { at, len }
    }

    pub fn address(&self) -> u64 {
        self.at as u64
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        for (n, &byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping, as was just checked.
            unsafe { self.at.add(offset + n).write_volatile(byte) };
        }
    }

    pub fn byte(&self, offset: usize) -> u8 {
        assert!(offset < self.len);
        // SAFETY: `offset` is within the mapping by the assertion, and the mapping lives as `self`.
        unsafe { self.at.add(offset).read_volatile() }
    }

    pub fn set_word(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    /// Takes the pages away, or gives new ones (`rights`).
    pub fn protect(&self, offset: usize, len: usize, rights: i32) {
        assert!(offset + len <= self.len);
        // SAFETY: within the mapping; nothing of Rust's lies there.
        let done = unsafe { libc::mprotect(self.at.add(offset).cast(), len, rights) };
        assert_eq!(done, 0, "mprotect");
    }

    /// A word as others change it.
    pub fn load(&self, offset: usize) -> u64 {
        self.atomic(offset).load(Ordering::SeqCst)
    }

    /// Sets a word that others read.
    pub fn store(&self, offset: usize, value: u64) {
        self.atomic(offset).store(value, Ordering::SeqCst);
    }

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: within the mapping, aligned, and any bytes are a word; whoever else writes there,
        // guests among them, does so by whole words.
        unsafe { AtomicU64::from_ptr(self.at.add(offset).cast()) }
    }

    /// Maps something else over a range: of a file, or new zeros.
    pub fn replace(&self, offset: usize, len: usize, file: Option<i32>) {
        assert!(offset + len <= self.len);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (kind, fd) = match file {
            Some(fd) => (libc::MAP_SHARED, fd),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: within this value's mapping, of which nobody holds references.
        let at = unsafe {
            libc::mmap(self.at.add(offset).cast(), len, rights, kind | libc::MAP_FIXED, fd, 0)
        };
        assert!(at != libc::MAP_FAILED, "mmap");
    }

    /// Moves pages over others; new zeros are where they were.
    pub fn relocate(&self, from: usize, to: usize, len: usize) {
        assert!(from + len <= self.len && to + len <= self.len);
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are of this value's mapping, of which nobody holds references.
        let at = unsafe { libc::mremap(self.at.add(from).cast(), len, len, how, self.at.add(to)) };
        assert!(at != libc::MAP_FAILED, "mremap");
        self.replace(from, len, None);
    }

    /// Asks for huge pages now.
    pub fn collapse(&self, offset: usize, len: usize) -> bool {
        const MADV_COLLAPSE: i32 = 25;
        assert!(offset + len <= self.len);
        // SAFETY: within this value's mapping; its bytes stay as they are.
        unsafe { libc::madvise(self.at.add(offset).cast(), len, MADV_COLLAPSE) == 0 }
    }

    /// Only pages of 4 KiB from now on.
    pub fn forbid_huge_pages(&self) {
        // SAFETY: advice about this value's own mapping changes none of its bytes. A kernel that
        // has no huge pages may refuse it.
        unsafe { libc::madvise(self.at.cast(), self.len, libc::MADV_NOHUGEPAGE) };
    }

    /// A range of it.
    ///
    /// # Safety
    /// Nobody writes there while the result lives, no guest either.
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.len);
        // SAFETY: within the mapping, and still by the caller's promise.
        unsafe { core::slice::from_raw_parts(self.at.add(offset), len) }
    }

    /// A range of it, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes there while the result lives, no guest either.
    #[expect(clippy::mut_from_ref, reason = "the caller's promise")]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.len);
        // SAFETY: within the mapping, and the caller's alone by its promise.
        unsafe { core::slice::from_raw_parts_mut(self.at.add(offset), len) }
    }

    /// The pages' contents are forgotten.
    pub fn forget(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.len);
        // SAFETY: the range is within the mapping by the assertion; nobody holds references to its
        // bytes, so that they may become zero.
        let done = unsafe { libc::madvise(self.at.add(offset).cast(), len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0, "madvise");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Assembled code for a guest, between two labels.
///
/// # Safety
/// Both labels are of one section that is mapped for reading, in this order.
pub unsafe fn assembled(start: *const u8, end: *const u8) -> &'static [u8] {
    // SAFETY: the caller promises that both are labels of one section, so that all between them
    // is mapped, never written, and lives as long as the program.
    unsafe { core::slice::from_raw_parts(start, end.offset_from(start) as usize) }
}

/// Bytes of memory of [`Guest`].
pub const BYTES: usize = 1 << 20;
/// Where code begins.
pub const CODE: u64 = 0x1000;
/// Where page tables of 64-bit guests are.
const TABLES: u64 = 0x8_0000;

/// The mode a guest starts in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    Real,
    /// 32-bit, without paging.
    Protected,
}

/// A guest with a MiB of memory at 0, and one virtual CPU.
pub struct Guest {
    pub cpu: VcpuFd,
    pub vm: VmFd,
    pub memory: Memory,
    pub kvm: Kvm,
}

impl Guest {
    /// In real mode at `code`.
    pub fn real(code: &[u8]) -> Result<Guest> {
        Guest::of(StartMode::Real, code, false)
    }

    /// In a mode at `code`; with the kernel's interrupt controllers, or without.
    pub fn of(kind: StartMode, code: &[u8], controllers: bool) -> Result<Guest> {
        let kvm = Kvm::new().map_err(say("/dev/kvm"))?;
        let vm = kvm.create_vm().map_err(say("KVM_CREATE_VM"))?;
        if controllers {
            vm.create_irq_chip().map_err(say("KVM_CREATE_IRQCHIP"))?;
            let config = kvm_bindings::kvm_pit_config::default();
            vm.create_pit2(config).map_err(say("KVM_CREATE_PIT2"))?;
        }
        let memory = Memory::new(BYTES);
        memory.write(CODE as usize, code);
        set_region(&vm, 0, 0, &memory, BYTES, 0)?;
        let cpu = vm.create_vcpu(0).map_err(say("KVM_CREATE_VCPU"))?;
        let guest = Guest { cpu, vm, memory, kvm };
        match kind {
            StartMode::Real => start_real(&guest.cpu)?,
            StartMode::Protected => guest.start_protected()?,
        }
        Ok(guest)
    }

    /// At the code in 32-bit protected mode without paging.
    pub fn start_protected(&self) -> Result<()> {
        start_real(&self.cpu)?;
        let mut s = self.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
        s.cr0 |= 1;
        flat(&mut s, false);
        self.cpu.set_sregs(&s).map_err(say("KVM_SET_SREGS"))
    }

    /// In 64-bit mode at `code`; the first and the fourth GiB are mapped to themselves.
    pub fn long(code: &[u8]) -> Result<Guest> {
        Guest::long_with(code, false)
    }

    /// The same, with the kernel's interrupt controllers or without.
    pub fn long_with(code: &[u8], controllers: bool) -> Result<Guest> {
        let guest = Guest::of(StartMode::Real, code, controllers)?;
        // Linux takes 64-bit mode only of a CPU that is told to have it.
        let most = kvm_bindings::KVM_MAX_CPUID_ENTRIES;
        let cpuid = guest.kvm.get_supported_cpuid(most).map_err(say("KVM_GET_SUPPORTED_CPUID"))?;
        guest.cpu.set_cpuid2(&cpuid).map_err(say("KVM_SET_CPUID2"))?;
        guest.memory.set_word(TABLES as usize, (TABLES + 0x1000) | 7);
        for (table, gib) in [(TABLES + 0x2000, 0), (TABLES + 0x3000, 3u64)] {
            guest.memory.set_word((TABLES + 0x1000 + gib * 8) as usize, table | 7);
            for n in 0..512 {
                guest.memory.set_word((table + n * 8) as usize, gib << 30 | n << 21 | 0x87);
            }
        }
        start_long(&guest.cpu)?;
        Ok(guest)
    }

    /// The port of the exit by a port that KVM_RUN just came back for, and what AL was.
    pub fn port_exit(&mut self) -> Result<(u16, u8)> {
        let run = self.cpu.get_kvm_run();
        if run.exit_reason != kvm_bindings::KVM_EXIT_IO {
            return Err(format!("exit {}", run.exit_reason));
        }
        // SAFETY: the reason says which of the union's structures the kernel has filled.
        let io = unsafe { run.__bindgen_anon_1.io };
        let run: *const kvm_bindings::kvm_run = run;
        // SAFETY: the kernel says where in the area, which is mapped as a whole, the data are.
        let byte = unsafe { run.cast::<u8>().add(io.data_offset as usize).read_volatile() };
        Ok((io.port, byte))
    }

    /// What KVM_RUN could not go on with, and where.
    pub fn internal_error(&mut self) -> Result<String> {
        let (regs, s) = (self.regs()?, self.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?);
        // SAFETY: the caller has just met the reason whose structure this is.
        let error = unsafe { self.cpu.get_kvm_run().__bindgen_anon_1.internal };
        Ok(format!(
            "internal error {} of {:x?}: CS {:x} at {:x}, RSP {:x}, CR0 {:x}, CR3 {:x}, EFER {:x}",
            error.suberror,
            &error.data[..2],
            s.cs.selector,
            s.cs.base,
            regs.rsp,
            s.cr0,
            s.cr3,
            s.efer
        ))
    }

    /// In 32-bit protected mode without paging.
    pub fn protected(code: &[u8]) -> Result<Guest> {
        Guest::of(StartMode::Protected, code, false)
    }

    pub fn regs(&self) -> Result<kvm_regs> {
        self.cpu.get_regs().map_err(say("KVM_GET_REGS"))
    }

    pub fn set_regs(&self, regs: &kvm_regs) -> Result<()> {
        self.cpu.set_regs(regs).map_err(say("KVM_SET_REGS"))
    }
}

/// Gives the guest a range of memory, or with no bytes takes it away.
pub fn set_region(
    vm: &VmFd,
    slot: u32,
    guest: u64,
    memory: &Memory,
    bytes: usize,
    flags: u32,
) -> Result<()> {
    let region = kvm_userspace_memory_region {
        slot,
        flags,
        guest_phys_addr: guest,
        memory_size: bytes as u64,
        userspace_addr: memory.address(),
    };
    // SAFETY: the memory lives as long as the guest in all tests, and is touched by volatile
    // accesses only.
    unsafe { vm.set_user_memory_region(region) }.map_err(say("KVM_SET_USER_MEMORY_REGION"))
}

pub fn start_real(cpu: &VcpuFd) -> Result<()> {
    let mut s = cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    s.cs.base = 0;
    s.cs.selector = 0;
    cpu.set_sregs(&s).map_err(say("KVM_SET_SREGS"))?;
    let regs = kvm_regs { rip: CODE, rsp: 0x7000, rflags: 2, ..kvm_regs::default() };
    cpu.set_regs(&regs).map_err(say("KVM_SET_REGS"))
}

fn flat(s: &mut kvm_bindings::kvm_sregs, long: bool) {
    let code = kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector: 8,
        type_: 11,
        present: 1,
        db: u8::from(!long),
        s: 1,
        l: u8::from(long),
        g: 1,
        ..kvm_segment::default()
    };
    let data = kvm_segment { type_: 3, selector: 16, db: 1, l: 0, ..code };
    s.cs = code;
    for segment in [&mut s.ds, &mut s.es, &mut s.fs, &mut s.gs, &mut s.ss] {
        *segment = data;
    }
}

pub fn start_long(cpu: &VcpuFd) -> Result<()> {
    let mut s = cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    s.cr0 = 0x8000_0033;
    s.cr3 = TABLES;
    s.cr4 = 0x20 | 1 << 9;
    s.efer = 0x500;
    flat(&mut s, true);
    cpu.set_sregs(&s).map_err(say("KVM_SET_SREGS"))
}
