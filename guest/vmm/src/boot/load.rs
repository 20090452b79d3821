//! A kernel in memory, and a CPU at its first instruction (Xen's docs/misc/pvh.pandoc): 32-bit
//! protected mode without paging, EBX at `struct hvm_start_info`.

use std::fs::File;

use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuFd};
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator as _, BootParams};
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::elf::start_info::{
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use linux_loader::loader::{Elf, KernelLoader as _};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};

use super::acpi;
use crate::machine::{Result, say};

const MAGIC: u32 = 0x336e_c578;
const START_INFO: u64 = 0x6000;
const MODULES: u64 = 0x6040;
const MEMORY_MAP: u64 = 0x7000;
const COMMAND_LINE: u64 = 0x2_0000;
/// Longest command line.
const COMMAND_LINE_MAX: usize = 0x1_0000;
/// Memory below the first MiB ends where firmware's would begin.
const LOW_END: u64 = 0x9_fc00;
const HIGH_START: u64 = 0x10_0000;
const USABLE: u32 = 1;

/// Loads all, and gives the first instruction.
pub(super) fn load(
    memory: &GuestMemoryMmap,
    kernel: &str,
    initrd: Option<&str>,
    append: &str,
) -> Result<u64> {
    let fail = |what: &str, why: &dyn core::fmt::Display| format!("{what}: {why}");
    let mut file = File::open(kernel).map_err(|e| fail(kernel, &e))?;
    let loaded = Elf::load(memory, None, &mut file, Some(GuestAddress(HIGH_START)))
        .map_err(|e| fail(kernel, &e))?;
    let PvhBootCapability::PvhEntryPresent(entry) = loaded.pvh_boot_cap else {
        return Err(format!("{kernel}: no PVH entry"));
    };
    if append.len() >= COMMAND_LINE_MAX {
        return Err("the parameters are too long".into());
    }
    let text = [append.as_bytes(), &[0]].concat();
    memory.write_slice(&text, GuestAddress(COMMAND_LINE)).map_err(|e| fail("parameters", &e))?;
    let end = memory.last_addr().0 + 1;
    let modules = initrd.map(|path| load_initrd(memory, path, end)).transpose()?;
    let map = [(0, LOW_END), (HIGH_START, end - HIGH_START)]
        .map(|(addr, size)| hvm_memmap_table_entry { addr, size, type_: USABLE, reserved: 0 });
    let info = hvm_start_info {
        magic: MAGIC,
        version: 1,
        cmdline_paddr: COMMAND_LINE,
        nr_modules: u32::from(modules.is_some()),
        modlist_paddr: if modules.is_some() { MODULES } else { 0 },
        memmap_paddr: MEMORY_MAP,
        memmap_entries: map.len() as u32,
        rsdp_paddr: acpi::ROOT,
        ..hvm_start_info::default()
    };
    let mut params = BootParams::new(&info, GuestAddress(START_INFO));
    params.set_sections(&map, GuestAddress(MEMORY_MAP));
    if let Some(module) = modules {
        params.set_modules(&[module], GuestAddress(MODULES));
    }
    PvhBootConfigurator::write_bootparams(&params, memory).map_err(|e| fail("start info", &e))?;
    Ok(entry.0)
}

/// At the end of memory, on a page.
fn load_initrd(memory: &GuestMemoryMmap, path: &str, end: u64) -> Result<hvm_modlist_entry> {
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let size = bytes.len() as u64;
    let at = end.checked_sub(size).ok_or("the initramfs is larger than memory")? & !0xfff;
    memory.write_slice(&bytes, GuestAddress(at)).map_err(|error| format!("{path}: {error}"))?;
    Ok(hvm_modlist_entry { paddr: at, size, ..hvm_modlist_entry::default() })
}

/// What CPUID tells the CPU with this id, of so many.
pub(super) fn set_features(kvm: &Kvm, cpu: &VcpuFd, id: u8, cpus: u8) -> Result<()> {
    const MULTI_THREADED: u32 = 1 << 28;
    let mut features = kvm.get_supported_cpuid(80).map_err(say("KVM_GET_SUPPORTED_CPUID"))?;
    for leaf in features.as_mut_slice().iter_mut().filter(|leaf| leaf.function == 1) {
        leaf.ebx = leaf.ebx & 0xffff | u32::from(id) << 24 | u32::from(cpus) << 16;
        if cpus > 1 {
            leaf.edx |= MULTI_THREADED;
        }
    }
    cpu.set_cpuid2(&features).map_err(say("KVM_SET_CPUID2"))
}

/// Registers and the interrupt controller of the CPU that starts the machine.
pub(super) fn set_up(cpu: &VcpuFd, entry: u64) -> Result<()> {
    const PROTECTED: u64 = 0x11;
    let mut sregs = cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: 8,
        type_: 11,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    };
    let data = kvm_segment { type_: 3, selector: 16, ..code };
    sregs.cs = code;
    for segment in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss] {
        *segment = data;
    }
    sregs.tr = kvm_segment { limit: 0x67, type_: 11, present: 1, ..kvm_segment::default() };
    sregs.cr0 = PROTECTED;
    sregs.cr4 = 0;
    sregs.efer = 0;
    cpu.set_sregs(&sregs).map_err(say("KVM_SET_SREGS"))?;
    let regs = kvm_regs { rip: entry, rbx: START_INFO, rflags: 2, ..kvm_regs::default() };
    cpu.set_regs(&regs).map_err(say("KVM_SET_REGS"))?;
    // Without firmware nobody else connects the 8259s (LINT0) and NMIs (LINT1).
    let mut lapic = cpu.get_lapic().map_err(say("KVM_GET_LAPIC"))?;
    for (register, mode) in [(0x350, 7u8), (0x360, 4)] {
        let word = [0, mode, 0, 0];
        for (n, byte) in word.into_iter().enumerate() {
            lapic.regs[register + n] = byte as _;
        }
    }
    cpu.set_lapic(&lapic).map_err(say("KVM_SET_LAPIC"))
}
