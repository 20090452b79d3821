//! `limen-vmm bench`: what leaving a guest costs, in ticks of the time-stamp counter. The program
//! of `limen bench guest`, on Limen and on Linux, where it is the first process and loads KVM
//! itself.
//!
//! Under QEMU's `-icount shift=0` a tick is an instruction of the machine, the guest's included. An
//! exit that the kernel handles is a difference: one KVM_RUN with many exits less one with none. An
//! exit to the VMM is one KVM_RUN by the bare system call, so that no library is measured.
//!
//! Reading order: [`command`], [`KERNEL_ROWS`], [`VMM_ROWS`], `transfer` (what a guest sends).

mod code;
mod transfer;

use std::os::fd::AsRawFd as _;
use std::process::ExitCode;
use std::time::Instant;

use kvm_ioctls::IoEventAddress;
use limen_guest_bench::raw::{rdtsc, syscall};
use limen_guest_bench::{furnish, power_off, report_kernel, settle};
use vmm_sys_util::eventfd::EventFd;

use crate::machine::{BYTES, CODE, Guest, Memory, Result, say, set_region};
use crate::tests::ensure;
use code::{COUNT, Operation, looped};

/// How much is measured.
#[derive(Clone, Copy)]
struct Size {
    samples: usize,
    /// Exits of one sample in a loop.
    exits: u64,
    /// Segments of a transfer.
    segments: u64,
    /// Exits of one second's row.
    many: u64,
}

const FULL: Size = Size { samples: 301, exits: 64, segments: 256, many: 30_000 };
const TINY: Size = Size { samples: 5, exits: 8, segments: 8, many: 200 };

/// Linux's modules of KVM, in the order of their needs.
const MODULES: [&str; 3] = ["irqbypass", "kvm", "kvm-amd"];
/// finit_module(2): the file is compressed.
const IS_COMPRESSED: usize = 4;
/// KVM_RUN, without its library.
const KVM_RUN: usize = 0xae80;

/// Exits that the kernel handles: name, operation, whether the controllers are the kernel's.
const KERNEL_ROWS: [(&str, Operation, bool); 6] = [
    ("kernel_cpuid", code::CPUID, false),
    ("kernel_rdmsr", code::RDMSR, false),
    ("kernel_wrmsr", code::WRMSR, false),
    ("kernel_port", code::IN_PIC, true),
    ("kernel_doorbell", code::OUT_BELL, true),
    ("kernel_lapic", code::READ_LAPIC, true),
];
/// Exits to the VMM.
const VMM_ROWS: [(&str, Operation); 5] = [
    ("vmm_out", code::OUT),
    ("vmm_in", code::IN),
    ("vmm_mmio_write", code::MMIO_WRITE),
    ("vmm_mmio_read", code::MMIO_READ),
    ("vmm_halt", code::HLT),
];

/// `[--tiny] [--wall] [--poweroff]`.
pub fn command(words: &[String]) -> ExitCode {
    let has = |word: &str| words.iter().any(|w| w == word);
    let size = if has("--tiny") { TINY } else { FULL };
    furnish();
    let result = load_modules().and_then(|()| {
        settle();
        if has("--wall") { per_second(size) } else { all(size) }
    });
    if let Err(why) = &result {
        println!("failed: {why}");
    }
    report_kernel();
    if has("--poweroff") {
        power_off();
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Where `/modules` has them.
fn load_modules() -> Result<()> {
    for name in MODULES {
        let Ok(file) = std::fs::File::open(format!("/modules/{name}.ko.xz")) else { continue };
        let none = c"".as_ptr() as usize;
        let args = [file.as_raw_fd() as usize, none, IS_COMPRESSED, 0, 0, 0];
        let done = syscall(libc::SYS_finit_module, args);
        ensure(done == 0, || format!("module {name}: error {}", -done))?;
    }
    Ok(())
}

fn all(size: Size) -> Result<()> {
    let mask = 1u64;
    syscall(libc::SYS_sched_setaffinity, [0, 8, &raw const mask as usize, 0, 0, 0]);
    for (name, operation, has_chip) in KERNEL_ROWS {
        println!("{name} {}", in_the_kernel(size, operation, has_chip)?);
    }
    println!("kernel_first_touch {}", first_touch(size)?);
    for (name, operation) in VMM_ROWS {
        println!("{name} {}", to_the_vmm(size, operation)?);
    }
    transfer::all(size.segments, size.samples)
}

/// Runs until the guest is left for its VMM, by the system call alone.
fn enter(guest: &Guest) -> isize {
    syscall(libc::SYS_ioctl, [guest.cpu.as_raw_fd() as usize, KVM_RUN, 0, 0, 0, 0])
}

fn run(guest: &Guest) -> Result<()> {
    let done = enter(guest);
    ensure(done == 0, || format!("KVM_RUN: error {}", -done))
}

/// Ticks of one KVM_RUN.
fn timed(guest: &Guest) -> Result<u64> {
    let start = rdtsc();
    let done = enter(guest);
    let ticks = rdtsc() - start;
    ensure(done == 0, || format!("KVM_RUN: error {}", -done)).map(|()| ticks)
}

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// The median of some samples of `f`, after one that does not count.
fn sampled(samples: usize, mut f: impl FnMut() -> Result<u64>) -> Result<u64> {
    f()?;
    (0..samples).map(|_| f()).collect::<Result<Vec<_>>>().map(median)
}

/// A guest that does the operation as often as [`COUNT`] says, and then asks its VMM.
fn looping(operation: Operation, has_chip: bool) -> Result<Guest> {
    let guest = Guest::long_with(&looped(operation), has_chip)?;
    // What the library's answers would be read from.
    run(&guest)?;
    Ok(guest)
}

fn in_the_kernel(size: Size, operation: Operation, has_chip: bool) -> Result<u64> {
    let guest = looping(operation, has_chip)?;
    let bell = EventFd::new(libc::EFD_NONBLOCK).map_err(|error| format!("eventfd: {error}"))?;
    if has_chip {
        let at = IoEventAddress::Pio(code::BELL.into());
        guest.vm.register_ioevent(&bell, &at, kvm_ioctls::NoDatamatch).map_err(say("ioevent"))?;
    }
    let with = |count| {
        guest.memory.set_word(COUNT, count);
        sampled(size.samples, || timed(&guest))
    };
    let (none, many) = (with(0)?, with(size.exits)?);
    Ok((many - none) / size.exits)
}

/// First touches of pages that the VMM has and the guest's tables have not, each: a kernel may map
/// several at one exit.
fn first_touch(size: Size) -> Result<u64> {
    const SLOT: u32 = 1;
    let guest = Guest::long_with(&looped(code::TOUCH), false)?;
    let memory = Memory::new(BYTES);
    memory.forbid_huge_pages();
    (0..BYTES).step_by(4096).for_each(|at| memory.write(at, &[1]));
    run(&guest)?;
    let with = |count| {
        guest.memory.set_word(COUNT, count);
        sampled(size.samples, || {
            set_region(&guest.vm, SLOT, code::TOUCHED, &memory, BYTES, 0)?;
            let ticks = timed(&guest)?;
            set_region(&guest.vm, SLOT, code::TOUCHED, &memory, 0, 0)?;
            Ok(ticks)
        })
    };
    // The first page pays for the tables on the way.
    let (first, many) = (with(1)?, with(1 + size.exits)?);
    Ok((many - first) / size.exits)
}

fn to_the_vmm(size: Size, operation: Operation) -> Result<u64> {
    let guest = Guest::long(&code::repeated(operation))?;
    let empty = sampled(size.samples, || {
        let start = rdtsc();
        Ok(rdtsc() - start)
    })?;
    Ok(sampled(size.samples, || timed(&guest))?.saturating_sub(empty))
}

/// By the clock: only what it says beside the other kernel means something.
fn per_second(size: Size) -> Result<()> {
    let guest = looping(code::CPUID, false)?;
    guest.memory.set_word(COUNT, size.many);
    let start = Instant::now();
    run(&guest)?;
    println!("second_kernel_cpuid {}", rate(size.many, start));
    let guest = Guest::long(&code::repeated(code::OUT))?;
    let start = Instant::now();
    (0..size.many).try_for_each(|_| run(&guest))?;
    println!("second_vmm_out {}", rate(size.many, start));
    ensure(guest.regs()?.rip >= CODE, || "the guest is nowhere".into())
}

fn rate(count: u64, start: Instant) -> u64 {
    (count as f64 / start.elapsed().as_secs_f64()) as u64
}
