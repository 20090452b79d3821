//! From the end of `boot.S` to the kernel's first line: memory map, page tables, descriptors, the
//! other CPUs. Each step needs the ones before it; the order is the file's content.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::{self, MAX_CPUS};
use crate::frame::{self, PAGE_SIZE, PHYS_OFFSET};
use crate::paging::{self, KERNEL_BASE, Segment};
use crate::sync::Once;
use crate::{apic, cfi, context, descriptors, entropy, log, percpu, selftest, smp, time, uaccess};

global_asm!(include_str!("boot.S"), options(att_syntax, raw));

// The kernel, as boot code calls it. `machine/image` binds these names.
unsafe extern "Rust" {
    /// The first CPU, once the machine is up. The other CPUs wait in `limen_secondary`.
    safe fn limen_main() -> !;
    /// Another CPU.
    safe fn limen_secondary() -> !;
}

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __late_text_start: u8;
    static __late_text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __data_end: u8;
}

/// What the loader said, and what the machine found.
pub struct BootInfo {
    /// The kernel's command line.
    pub command_line: &'static str,
    /// The initial RAM disk, empty if there is none.
    pub initrd: &'static [u8],
    /// Physical address of the ACPI root pointer, 0 if unknown.
    pub(crate) rsdp: u64,
    /// TSC when the kernel was entered.
    pub start_tsc: u64,
}

static BOOT_INFO: Once<BootInfo> = Once::new();
static START_TSC: AtomicU64 = AtomicU64::new(0);

/// What the loader said. Available from `limen_main` on.
pub fn info() -> &'static BootInfo {
    BOOT_INFO.get().expect("boot code has run")
}

const MAX_REGIONS: usize = 64;
const MAX_COMMAND_LINE: usize = 4096;

/// `hvm_start_info`, version 1 (Xen's public header of that name).
#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

const START_INFO_MAGIC: u32 = 0x336e_c578;

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryMapEntry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

const MEMORY_RAM: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    address: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

/// Reads a structure the loader left below 4 GiB.
fn read_phys<T: Copy>(phys: u64) -> T {
    assert!(phys != 0 && phys < 4 << 30, "loader structure not below 4 GiB");
    // SAFETY: the boot tables map the first 4 GiB at PHYS_OFFSET; `T` is one of the plain
    // structures above, for which every bit pattern is valid.
    unsafe { ((PHYS_OFFSET + phys) as *const T).read_unaligned() }
}

/// Physical ranges of RAM, sorted, page-aligned, without what is in use.
struct MemoryMap {
    ranges: [(u64, u64); MAX_REGIONS],
    count: usize,
}

impl MemoryMap {
    fn read(start: &StartInfo) -> MemoryMap {
        let mut map = MemoryMap { ranges: [(0, 0); MAX_REGIONS], count: 0 };
        for i in 0..u64::from(start.memory_map_entries) {
            let at = start.memory_map + i * size_of::<MemoryMapEntry>() as u64;
            let entry: MemoryMapEntry = read_phys(at);
            if entry.kind == MEMORY_RAM {
                let first = entry.address.next_multiple_of(PAGE_SIZE as u64);
                let end = (entry.address + entry.size) & !(PAGE_SIZE as u64 - 1);
                map.push(first, end);
            }
        }
        assert!(map.count > 0, "the loader gave no memory map");
        map
    }

    fn push(&mut self, start: u64, end: u64) {
        if start < end && self.count < MAX_REGIONS {
            self.ranges[self.count] = (start, end);
            self.count += 1;
        }
    }

    /// Takes `[start, end)` out of the map.
    fn reserve(&mut self, start: u64, end: u64) {
        let start = start & !(PAGE_SIZE as u64 - 1);
        let end = end.next_multiple_of(PAGE_SIZE as u64);
        for i in 0..self.count {
            let (from, to) = self.ranges[i];
            if end <= from || to <= start {
                continue;
            }
            self.ranges[i] = (from, start.max(from));
            self.push(end, to);
            if self.ranges[i].0 >= self.ranges[i].1 {
                self.ranges[i] = (0, 0);
            }
        }
    }

    fn end(&self) -> u64 {
        self.ranges[..self.count].iter().map(|r| r.1).max().unwrap_or(0)
    }

    /// Takes `bytes` of page-aligned memory below `limit`, from the top of the largest range.
    fn take(&mut self, bytes: u64, limit: u64) -> Option<u64> {
        let bytes = bytes.next_multiple_of(PAGE_SIZE as u64);
        let best = self.ranges[..self.count]
            .iter_mut()
            .filter(|r| r.0 < limit && r.1.min(limit) - r.0 >= bytes)
            .max_by_key(|r| r.1.min(limit) - r.0)?;
        if best.1 <= limit {
            best.1 -= bytes;
            Some(best.1)
        } else {
            best.0 += bytes;
            Some(best.0 - bytes)
        }
    }
}

fn address(symbol: *const u8) -> u64 {
    symbol as u64
}

#[unsafe(no_mangle)]
extern "C" fn boot_first_cpu(start_info: u64) -> ! {
    START_TSC.store(cpu::rdtsc(), Ordering::Relaxed);
    // SAFETY: the first CPU, once; APIC ids come with `apic::init`.
    unsafe { percpu::init(0, 0) };
    log::init_serial();
    let start: StartInfo = read_phys(start_info);
    assert!(start.magic == START_INFO_MAGIC, "not started by a PVH loader");
    cpu::init();
    uaccess::init();
    let info = init_memory(&start);
    BOOT_INFO.call_once(|| info);
    paging::init_pti().expect("memory for the programs' tables");
    descriptors::init_idt();
    descriptors::init().expect("memory for interrupt stacks");
    let apic_id = apic::init();
    percpu::local().apic_id.set(apic_id);
    crate::platform::init(crate::boot::info().rsdp);
    time::init();
    entropy::init();
    selftest::check_registers();
    selftest::check_page_tables();
    cfi::boot_pass(crate::boot::info().command_line);
    crate::entry::apply_options(crate::boot::info().command_line);
    context::init_cpu();
    smp::start_others();
    context::init(crate::boot::info().command_line);
    limen_main()
}

/// The first Rust code of another CPU, on its own stack, called by the trampoline.
pub(crate) extern "C" fn boot_other_cpu(cpu: u64) -> ! {
    // SAFETY: `smp` gives each CPU its own id, once.
    unsafe { percpu::init(cpu as usize, percpu::of(cpu as usize).apic_id.get()) };
    cpu::init();
    // SAFETY: the kernel's root maps what the trampoline's does, but for the low page left behind.
    unsafe { cpu::write_cr3(paging::kernel_root()) };
    descriptors::init().expect("memory for interrupt stacks");
    apic::init();
    selftest::check_registers();
    context::init_cpu();
    smp::arrived();
    limen_secondary()
}

fn meltdown_facts() -> entry::MeltdownFacts {
    let [_, b, c, d] = cpu::cpuid(0, 0);
    let mut vendor = [0; 12];
    for (i, word) in [b, d, c].into_iter().enumerate() {
        vendor[i * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    let rdcl_no =
        cpu::features().arch_capabilities && cpu::rdmsr(cpu::msr::ARCH_CAPABILITIES) & 1 != 0;
    entry::MeltdownFacts { vendor, rdcl_no }
}

fn wants_pti(command_line: &str) -> bool {
    entry::wants_pti(entry::PtiOption::from_command_line(command_line), &meltdown_facts())
}

/// What is done about Meltdown on this CPU, in the words of Linux's `vulnerabilities/meltdown`.
pub fn meltdown() -> &'static str {
    meltdown_facts().describe(paging::has_pti())
}

fn segments() -> [Segment; 4] {
    [
        (address(&raw const __text_start), address(&raw const __text_end), false, true),
        (address(&raw const __late_text_start), address(&raw const __late_text_end), false, false),
        (address(&raw const __rodata_start), address(&raw const __rodata_end), false, false),
        (address(&raw const __data_start), address(&raw const __data_end), true, false),
    ]
    .map(|(start, end, write, exec)| Segment { start, end, write, exec })
}

fn init_memory(start: &StartInfo) -> BootInfo {
    let mut map = MemoryMap::read(start);
    let memory_end = map.end();
    let segments = segments();
    map.reserve(0, 0x10_0000); // firmware tables, the trampoline page
    map.reserve(0x20_0000, segments[3].end - KERNEL_BASE);
    let initrd: Option<Module> = (start.modules > 0).then(|| read_phys(start.module_list));
    if let Some(module) = initrd {
        map.reserve(module.address, module.address + module.size);
    }
    let command_line = command_line(start.command_line);
    // Tables for the direct map in 2 MiB pages, the image in 4 KiB pages, and the loader's
    // leftovers are below 4 GiB, which is all the boot tables reach.
    let mut new_table = || {
        let phys = map.take(PAGE_SIZE as u64, 4 << 30)?;
        // SAFETY: `take` gave this page to nobody else; the boot tables map it.
        unsafe { core::ptr::write_bytes((PHYS_OFFSET + phys) as *mut u8, 0, PAGE_SIZE) };
        Some(phys)
    };
    // SAFETY: once, on the boot tables; the arguments are as described there.
    unsafe { paging::init(wants_pti(command_line), memory_end, &segments, &mut new_table) };
    let limit_pfn = (memory_end as usize).div_ceil(PAGE_SIZE);
    let records = map
        .take(frame::records_bytes(limit_pfn) as u64, u64::MAX)
        .expect("memory for the frame records");
    let usable = map.ranges;
    // SAFETY: once; the ranges are RAM in the direct map that nobody uses.
    unsafe { frame::init(frame::phys_to_virt(records), limit_pfn, &usable[..map.count]) };
    BootInfo {
        command_line,
        initrd: initrd.map_or(&[], |module| {
            // SAFETY: the loader put the module there, and its pages were reserved above.
            unsafe {
                core::slice::from_raw_parts(
                    frame::phys_to_virt(module.address),
                    module.size as usize,
                )
            }
        }),
        rsdp: start.rsdp,
        start_tsc: START_TSC.load(Ordering::Relaxed),
    }
}

struct CommandLine {
    bytes: [u8; MAX_COMMAND_LINE],
    len: usize,
}

static COMMAND_LINE: Once<CommandLine> = Once::new();

/// Copies the command line out of the loader's memory, before that is reused. The heap does not
/// exist yet, so the copy lies in a static.
fn command_line(phys: u64) -> &'static str {
    let line = COMMAND_LINE.call_once(|| {
        let mut line = CommandLine { bytes: [0; MAX_COMMAND_LINE], len: 0 };
        while phys != 0 && line.len < MAX_COMMAND_LINE {
            let byte: u8 = read_phys(phys + line.len as u64);
            if byte == 0 {
                break;
            }
            line.bytes[line.len] = byte;
            line.len += 1;
        }
        line
    });
    core::str::from_utf8(&line.bytes[..line.len]).unwrap_or("")
}

const _: () = assert!(MAX_CPUS <= 32, "CPU sets are 32-bit words");
