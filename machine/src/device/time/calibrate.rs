//! The rate of the TSC and of the local APIC's timer: told by the hypervisor or the CPU, or
//! measured.
//!
//! In order of trust: KVM's paravirtual clock; the CPU's own statement (CPUID 15H and 16H, or the
//! leaf 4000_0010H that hypervisors share); a measurement against a clock of known rate. Under QEMU
//! that is the APIC timer itself, 1 GHz in its emulation and in KVM's; elsewhere the HPET, the ACPI
//! power management timer, or the 8254.
//!
//! Measuring is hard where the CPU is a thread that the host stops at will: a pair of readings
//! (TSC, other clock) may be far apart. Of several pairs the one whose two TSC readings enclose the
//! other clock's most closely is taken. And a clock that was just started is left alone for a
//! while: the emulator's other threads look at it, too, and a reading that waits for them is taken
//! at its end, not in the middle of its two TSC readings. That made the clock 0.02 to 0.12 % slow.

use formats::acpi::PmTimer;
use formats::pvclock;

use crate::cpu::{self, apic, clock, cpuid, features, inb, outb, rdtsc};
use crate::device::mmio::Registers;
use crate::device::platform;
use crate::memory::frame;

/// How long to wait between looks whether 2 ms have passed, in TSC ticks. At one microsecond of
/// uncertainty at each end 2 ms give an error of 0.1 %; usually it is a hundred times better.
const MEASURE_TICKS: u64 = 2_100_000;
/// Longest wait for a reference clock that stands still, in TSC ticks.
const MAX_TICKS: u64 = 200_000_000;
const PAIRS: usize = 32;
/// How long a clock that was just started is left alone, in TSC ticks.
const SETTLE_TICKS: u64 = 1_000_000;
/// Rate of the APIC timer in QEMU and KVM: their bus cycle is one nanosecond.
const QEMU_APIC_HZ: u64 = 1_000_000_000;
const PM_TIMER_HZ: u64 = 3_579_545;
const PIT_HZ: u64 = 1_193_182;
const FALLBACK_HZ: u64 = 2_000_000_000;

/// A rate, and whether the clock is alike on all CPUs.
pub(super) struct Rate {
    pub(super) hz: u64,
    pub(super) stable: bool,
}

/// Leaf and signature of the hypervisor, in ASCII, if there is one.
fn hypervisor() -> Option<(u32, [u8; 12])> {
    if !features().hypervisor {
        return None;
    }
    let [max, b, c, d] = cpuid(0x4000_0000, 0);
    let mut name = [0; 12];
    for (chunk, word) in name.chunks_exact_mut(4).zip([b, c, d]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    Some((max, name))
}

fn is_emulation() -> bool {
    matches!(hypervisor(), Some((_, name)) if &name == b"TCGTCGTCGTCG")
}

fn is_kvm() -> bool {
    matches!(hypervisor(), Some((_, name)) if &name == b"KVMKVMKVM\0\0\0")
}

/// The rate of the TSC.
pub(super) fn tsc_rate() -> Rate {
    let stable = features().invariant_tsc || is_emulation();
    if is_kvm()
        && let Some(rate) = kvm_clock_rate()
    {
        return rate;
    }
    if let Some(hz) = told_by_cpu() {
        return Rate { hz, stable };
    }
    let measured = if is_emulation() {
        apic::start_free_running();
        let started = rdtsc();
        while rdtsc().wrapping_sub(started) < SETTLE_TICKS {
            core::hint::spin_loop();
        }
        let hz = measure(QEMU_APIC_HZ, u64::from(u32::MAX), || {
            u64::from(u32::MAX - apic::timer_count())
        });
        apic::init_timer();
        hz
    } else {
        measure_by_hpet().or_else(measure_by_pm_timer).or_else(measure_by_pit)
    };
    let hz = measured.unwrap_or_else(|| {
        crate::log!("nothing to measure the TSC against: taking it for 2 GHz");
        FALLBACK_HZ
    });
    Rate { hz, stable }
}

/// The rate of the APIC timer; 0 if the TSC deadline is used instead.
pub(super) fn apic_timer_hz() -> u64 {
    if features().tsc_deadline {
        return 0;
    }
    if is_emulation() || is_kvm() {
        return QEMU_APIC_HZ;
    }
    apic::start_free_running();
    let start = rdtsc();
    clock::busy_wait_us(5_000);
    let ticks = u64::from(u32::MAX - apic::timer_count());
    let elapsed = rdtsc() - start;
    apic::init_timer();
    (u128::from(ticks) * u128::from(clock::tsc_hz()) / u128::from(elapsed.max(1))) as u64
}

fn plausible(hz: u64) -> Option<u64> {
    (100_000_000..20_000_000_000).contains(&hz).then_some(hz)
}

/// CPUID 15H and 16H (SDM 2A), or the hypervisors' leaf with the TSC's rate in kHz.
fn told_by_cpu() -> Option<u64> {
    if let Some((max, _)) = hypervisor()
        && (0x4000_0010..0x4000_0100).contains(&max)
        && let Some(hz) = plausible(u64::from(cpuid(0x4000_0010, 0)[0]) * 1000)
    {
        return Some(hz);
    }
    let max = cpuid(0, 0)[0];
    if max >= 0x15 {
        let [denominator, numerator, crystal_hz, _] = cpuid(0x15, 0).map(u64::from);
        if denominator != 0 && numerator != 0 && crystal_hz != 0 {
            return plausible(crystal_hz * numerator / denominator);
        }
        // Without the crystal's rate, the base frequency is the TSC's.
        if denominator != 0 && numerator != 0 && max >= 0x16 {
            return plausible(u64::from(cpuid(0x16, 0)[0] & 0xffff) * 1_000_000);
        }
    }
    None
}

const KVM_FEATURES: u32 = 0x4000_0001;
const KVM_FEATURE_CLOCKSOURCE2: u32 = 1 << 3;
const MSR_KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;

/// What KVM's clock says of the TSC: the scale of its per-CPU page, which is the same on all CPUs
/// when the page's flag says that the TSC is stable. The page is given back at once.
fn kvm_clock_rate() -> Option<Rate> {
    if cpuid(KVM_FEATURES, 0)[0] & KVM_FEATURE_CLOCKSOURCE2 == 0 {
        return None;
    }
    let page = frame::Frame::alloc_zeroed().ok()?;
    // SAFETY: CPUID reports the register; KVM writes 32 bytes of a page that is ours.
    unsafe { cpu::wrmsr(MSR_KVM_SYSTEM_TIME_NEW, page.phys() | 1) };
    let info = pvclock::read(&KvmPage(&page));
    // SAFETY: clearing bit 0 ends KVM's use of the page.
    unsafe { cpu::wrmsr(MSR_KVM_SYSTEM_TIME_NEW, 0) };
    let info = info?;
    Some(Rate { hz: plausible(info.tsc_hz())?, stable: info.is_stable })
}

/// The page that KVM writes.
struct KvmPage<'a>(&'a frame::Frame);

impl pvclock::Page for KvmPage<'_> {
    fn word(&self, index: usize) -> u32 {
        let words = frame::phys_to_virt(self.0.phys()).cast::<u32>();
        assert!(index < pvclock::BYTES / 4);
        // SAFETY: inside the frame; volatile, since KVM writes it. Reads are not reordered (SDM 3A,
        // 8.2.2).
        unsafe { words.wrapping_add(index).read_volatile() }
    }
}

/// A reading of a clock with the TSC at that moment, the best of [`PAIRS`].
fn pair(read: &mut impl FnMut() -> u64) -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..PAIRS {
        let before = rdtsc();
        let value = read();
        let width = rdtsc().wrapping_sub(before);
        if width < best.0 {
            best = (width, before.wrapping_add(width / 2), value);
        }
    }
    (best.1, best.2)
}

/// The TSC's rate against a clock of `hz` that counts up and wraps above `mask`.
fn measure(hz: u64, mask: u64, mut read: impl FnMut() -> u64) -> Option<u64> {
    let (tsc_start, start) = pair(&mut read);
    let mut wait = MEASURE_TICKS;
    while wait <= MAX_TICKS {
        while rdtsc().wrapping_sub(tsc_start) < wait {
            core::hint::spin_loop();
        }
        let (tsc_end, end) = pair(&mut read);
        let ticks = end.wrapping_sub(start) & mask;
        // At least 2 ms of the other clock, or it is too coarse to be compared.
        if ticks * 500 >= hz {
            let tsc_ticks = u128::from(tsc_end.wrapping_sub(tsc_start));
            return plausible((tsc_ticks * u128::from(hz) / u128::from(ticks)) as u64);
        }
        wait += MEASURE_TICKS;
    }
    None
}

/// IA-PC HPET 1.0a, 2.3: the period in femtoseconds is in the upper half of the first register.
fn measure_by_hpet() -> Option<u64> {
    const PERIOD: usize = 0x04;
    const CONFIGURATION: usize = 0x10;
    const COUNTER: usize = 0xf0;
    const ENABLE: u32 = 1;
    let registers = Registers::map(platform::firmware().hpet?, 0x400).ok()?;
    let period_fs = u64::from(registers.read32(PERIOD));
    if !(1..=100_000_000).contains(&period_fs) {
        return None;
    }
    let configuration = registers.read32(CONFIGURATION) | ENABLE;
    // SAFETY: lets the counter run; the comparators, which raise interrupts, stay as they are.
    unsafe { registers.write32(CONFIGURATION, configuration) };
    let counter = || u64::from(registers.read32(COUNTER));
    measure(1_000_000_000_000_000 / period_fs, u64::from(u32::MAX), counter)
}

fn measure_by_pm_timer() -> Option<u64> {
    let PmTimer { port, wide } = platform::firmware().pm_timer?;
    let mask = if wide { u64::from(u32::MAX) } else { 0xff_ffff };
    // SAFETY: the FADT names the port of a read-only counter.
    measure(PM_TIMER_HZ, mask, || u64::from(unsafe { cpu::inl(port) }) & mask)
}

/// Counter 2 of the 8254, which raises no interrupt: 16 bits down from 65535 (54 ms).
fn measure_by_pit() -> Option<u64> {
    const COUNTER_2: u16 = 0x42;
    const COMMAND: u16 = 0x43;
    const SYSTEM_CONTROL: u16 = 0x61;
    // SAFETY: counter 2 and its gate have no other user and raise no interrupt.
    let write = |port: u16, value: u8| unsafe { outb(port, value) };
    // SAFETY: as above: reading these ports has no effect on others.
    let read = |port: u16| unsafe { inb(port) };
    // Gate of counter 2 on, speaker off; mode 0, both bytes, then the start value.
    write(SYSTEM_CONTROL, read(SYSTEM_CONTROL) & !2 | 1);
    for (port, value) in [(COMMAND, 0b1011_0000), (COUNTER_2, 0xff), (COUNTER_2, 0xff)] {
        write(port, value);
    }
    measure(PIT_HZ, 0xffff, || {
        // Latches counter 2, then reads its two bytes.
        write(COMMAND, 0b1000_0000);
        u64::from(!u16::from_le_bytes([read(COUNTER_2), read(COUNTER_2)]))
    })
}
