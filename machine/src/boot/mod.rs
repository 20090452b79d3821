//! From the end of `boot.S` to the kernel's first line: memory map, page tables, descriptors, the
//! other CPUs. Each step needs the ones before it; the order is the file's content.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use formats::pvh::{self, Memory as _, StartInfo};

use crate::context_tracking::{pcid, tlb, word};
use crate::cpu::sealed::{self, sealed};
use crate::cpu::sync::Once;
use crate::cpu::{self, MAX_CPUS, apic, kernel_base, log, percpu, phys_to_virt};
use crate::device::{entropy, time};
use crate::entry::{descriptors, shadow_stack};
use crate::memory::frame::{self, PAGE_SIZE};
use crate::memory::{self, Segment, uaccess};
use crate::mitigations;
use crate::text::{cfi, text_poke};

pub(crate) mod kaslr;
mod multiboot;
pub(crate) mod selftest;
mod smp;

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

sealed! {
    static BOOT_INFO: Once<BootInfo> = Once::new();
}
static START_TSC: AtomicU64 = AtomicU64::new(0);

/// What the loader said. Available from `limen_main` on.
pub fn info() -> &'static BootInfo {
    BOOT_INFO.get().expect("boot code has run")
}

const MAX_COMMAND_LINE: usize = 4096;

/// What the boot tables map: the first 4 GiB.
pub(crate) struct LowMemory;

impl pvh::Memory for LowMemory {
    fn read(&self, phys: u64, bytes: &mut [u8]) -> bool {
        let end = phys.checked_add(bytes.len() as u64);
        if phys == 0 || end.is_none_or(|end| end > 4 << 30) {
            return false;
        }
        // SAFETY: the boot tables map the first 4 GiB in the direct map, where the range is; the
        // caller's bytes are elsewhere, in the image.
        unsafe {
            core::ptr::copy_nonoverlapping(phys_to_virt(phys), bytes.as_mut_ptr(), bytes.len());
        }
        true
    }
}

/// What either kind of loader says.
pub(crate) fn loader_says(start_info: u64, magic: u32) -> Result<StartInfo, pvh::Error> {
    if multiboot::is_loader(magic) {
        multiboot::read(start_info, &LowMemory)
    } else {
        StartInfo::read(start_info, &LowMemory)
    }
}

fn address(symbol: *const u8) -> u64 {
    symbol as u64
}

#[unsafe(no_mangle)]
extern "C" fn boot_first_cpu(start_info: u64, magic: u32) -> ! {
    START_TSC.store(cpu::rdtsc(), Ordering::Relaxed);
    // SAFETY: the first CPU, once; APIC ids come with `apic::init`.
    unsafe { percpu::init(0, 0) };
    log::init_serial();
    let start = loader_says(start_info, magic).unwrap_or_else(|error| panic!("{error}"));
    cpu::init();
    uaccess::init();
    let info = BOOT_INFO.call_once(|| init_memory(start));
    memory::init_pti().expect("memory for the programs' tables");
    descriptors::init_idt();
    descriptors::init().expect("memory for interrupt stacks");
    tlb::init(descriptors::choose_syscall_entry);
    let apic_id = apic::init(|phys| memory::map_mmio(phys, PAGE_SIZE).ok());
    percpu::local().apic_id.set(apic_id);
    crate::device::platform::init(info.rsdp, info.command_line);
    time::init(info.start_tsc);
    entropy::init();
    selftest::check_registers();
    selftest::check_page_tables();
    // Before returns go to a thunk that wants it.
    if shadow_stack::prepare().expect("memory for a shadow stack") {
        cpu::shadow_stack::begin();
    }
    let (branches, returns) = (mitigations::branches(), mitigations::returns());
    cfi::boot_pass(info.command_line, branches, returns, entropy::random_u64());
    mitigations::switch_sequences();
    crate::mitigations::behind_guests::choose_flush();
    crate::entry::choose_stack_offset(crate::boot::info().command_line);
    text_poke::close_the_door();
    mitigations::verify_text();
    mitigations::init_cpu();
    if cfi::is_fineibt() {
        descriptors::land_on_endbr();
    }
    cfi::init_cpu();
    check_returns();
    crate::entry::apply_options(info.command_line);
    pcid::init(info.command_line);
    pcid::init_cpu();
    word::init_cpu();
    selftest::check_pcid();
    smp::start_others();
    word::init(crate::boot::info().command_line);
    kaslr::log();
    limen_main()
}

/// Seals what is set at boot, the kernel's and the machine's, for good, and checks that it is. On
/// any CPU, once, when everything is registered and before the first program.
pub fn seal() {
    sealed::close(memory::seal);
    selftest::check_seal();
}

/// The first Rust code of another CPU, on its own stack, called by `smp`.
pub(crate) extern "C" fn boot_other_cpu(cpu: u64) -> ! {
    // SAFETY: `smp` gives each CPU its own id, once.
    unsafe { percpu::init(cpu as usize, percpu::of(cpu as usize).apic_id.get()) };
    cpu::init();
    // SAFETY: the kernel's root maps what the trampoline's does, but for the low page left behind.
    unsafe { cpu::write_cr3(memory::kernel_root().as_u64()) };
    descriptors::init().expect("memory for interrupt stacks");
    apic::init(|phys| memory::map_mmio(phys, PAGE_SIZE).ok());
    selftest::check_registers();
    mitigations::init_cpu();
    cfi::init_cpu();
    check_returns();
    pcid::init_cpu();
    crate::entry::renew_stack_secret();
    word::init_cpu();
    selftest::check_pcid();
    smp::arrived();
    limen_secondary()
}

/// This CPU checks returns by its shadow stack, if it was decided so, and programs can.
fn check_returns() {
    cpu::user_shadow_stack::init_cpu();
    shadow_stack::verify();
    descriptors::choose_syscall_entry();
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

fn init_memory(start: StartInfo) -> BootInfo {
    let mut map = start.memory;
    let memory_end = map.end();
    let segments = segments();
    map.reserve(0, 0x10_0000); // firmware tables, the trampoline page
    map.reserve(0x20_0000, segments[3].end - kernel_base());
    if let Some((from, to)) = start.initrd {
        map.reserve(from, to);
    }
    let command_line = command_line(start.command_line);
    mitigations::init(command_line);
    cpu::user_shadow_stack::init(command_line);
    // Tables for the direct map in 2 MiB pages, the image in 4 KiB pages, and the loader's
    // leftovers are below 4 GiB, which is all the boot tables reach.
    let mut new_table = || {
        let phys = map.take(PAGE_SIZE as u64, 4 << 30)?;
        // SAFETY: `take` gave this page to nobody else; the boot tables map it.
        unsafe { core::ptr::write_bytes(phys_to_virt(phys), 0, PAGE_SIZE) };
        Some(phys)
    };
    // SAFETY: once, on the boot tables; the arguments are as described there.
    unsafe { memory::init(mitigations::plan().pti, memory_end, &segments, &mut new_table) };
    let limit_pfn = (memory_end as usize).div_ceil(PAGE_SIZE);
    let records = map
        .take(frame::records_bytes(limit_pfn) as u64, u64::MAX)
        .expect("memory for the frame records");
    // SAFETY: once; the ranges are RAM in the direct map that nobody uses.
    unsafe { frame::init(frame::phys_to_virt(records), limit_pfn, map.ranges()) };
    BootInfo {
        command_line,
        initrd: start.initrd.filter(|(_, to)| *to <= memory_end).map_or(&[], |(from, to)| {
            // SAFETY: the loader put the module there, and its pages were reserved above.
            unsafe { core::slice::from_raw_parts(frame::phys_to_virt(from), (to - from) as usize) }
        }),
        rsdp: start.rsdp,
        start_tsc: START_TSC.load(Ordering::Relaxed),
    }
}

struct CommandLine {
    bytes: [u8; MAX_COMMAND_LINE],
    len: usize,
}

sealed! {
    static COMMAND_LINE: Once<CommandLine> = Once::new();
}

/// Copies the command line out of the loader's memory, before that is reused. The heap does not
/// exist yet, so the copy lies in a static.
fn command_line(phys: u64) -> &'static str {
    let line = COMMAND_LINE.call_once(|| {
        let mut line = CommandLine { bytes: [0; MAX_COMMAND_LINE], len: 0 };
        while phys != 0 && line.len < MAX_COMMAND_LINE {
            let at = &mut line.bytes[line.len..=line.len];
            if !LowMemory.read(phys + line.len as u64, at) || at[0] == 0 {
                break;
            }
            line.len += 1;
        }
        line
    });
    core::str::from_utf8(&line.bytes[..line.len]).unwrap_or("")
}

const _: () = assert!(MAX_CPUS <= 32, "CPU sets are 32-bit words");
