//! A VMM and a guest without manners: any ioctl at any time with any bytes, on guests of random
//! code, registers and controllers. Nothing is expected but that the kernel goes on: it answers
//! each call, leaves KVM_RUN when a signal comes, has its memory back at the end, and runs the next
//! guest.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use crate::machine::{BYTES, Memory, Result, say, set_region, start_real};
use crate::tests::ensure;

const ROUNDS: u32 = 60;
const CALLS: u32 = 120;
/// What calls are given a pointer to.
const BUFFER: usize = 16384;
/// Memory that may be in use afterwards and was not before, KiB.
const KEPT_MAX_KIB: u64 = 2048;

/// A generator of numbers (xorshift64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Small numbers, single bits, ends of ranges, anything.
    fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(8),
            1 => 1 << self.below(64),
            2 => u64::MAX - self.below(3),
            3 => self.below(BYTES as u64) & !0xfff,
            4 => self.below(1 << 32),
            _ => self.next(),
        }
    }
}

/// Direction (1: written, 2: read), number and size of the calls of a guest and of a virtual CPU.
const CALLS_OF_GUESTS: [(u64, u64, u64); 26] = [
    (0, 0x41, 0),
    (1, 0x42, 16),
    (1, 0x46, 32),
    (0, 0x47, 0),
    (1, 0x48, 8),
    (0, 0x60, 0),
    (1, 0x61, 8),
    (3, 0x62, 520),
    (2, 0x63, 520),
    (3, 0x67, 8),
    (1, 0x67, 16),
    (1, 0x68, 16),
    (1, 0x6a, 8),
    (0, 0x71, 0),
    (1, 0x76, 32),
    (1, 0x77, 64),
    (0, 0x78, 0),
    (1, 0x79, 64),
    (1, 0x7b, 48),
    (2, 0x7c, 48),
    (2, 0x9f, 112),
    (1, 0xa0, 112),
    (1, 0xa3, 104),
    (1, 0xa5, 32),
    (0, 0x03, 0),
    (0, 0xff, 0),
];
const CALLS_OF_CPUS: [(u64, u64, u64); 31] = [
    (0, 0x80, 0),
    (2, 0x81, 144),
    (1, 0x82, 144),
    (2, 0x83, 312),
    (1, 0x84, 312),
    (1, 0x86, 4),
    (3, 0x88, 8),
    (1, 0x89, 8),
    (1, 0x8b, 4),
    (2, 0x8c, 416),
    (1, 0x8d, 416),
    (2, 0x8e, 1024),
    (1, 0x8f, 1024),
    (1, 0x90, 8),
    (3, 0x91, 8),
    (2, 0x98, 4),
    (1, 0x99, 4),
    (0, 0x9a, 0),
    (2, 0x9f, 64),
    (1, 0xa0, 64),
    (2, 0xa1, 128),
    (1, 0xa2, 128),
    (0, 0xa3, 0),
    (2, 0xa4, 4096),
    (1, 0xa5, 4096),
    (2, 0xa6, 392),
    (1, 0xa7, 392),
    (2, 0xcc, 320),
    (1, 0xcd, 320),
    (1, 0x93, 8),
    (0, 0x80, 0),
];

extern "C" fn on_signal(_: i32) {}

/// See the module.
pub fn any_call_at_any_time() -> Result<()> {
    // SAFETY: the handler does nothing and so may interrupt anything.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    // SAFETY: this thread outlives the one that is given its id.
    let me = unsafe { libc::pthread_self() } as usize;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whatever the guest does, KVM_RUN ends.
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(3));
                // SAFETY: the id is of the thread that waits at the end of this scope, so it lives.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
            }
        });
        let result = all_rounds();
        done.store(true, Ordering::SeqCst);
        result
    })?;
    let mut guest = crate::machine::Guest::real(&[0xf4])?;
    crate::tests::expect(&mut guest, "hlt")
}

fn all_rounds() -> Result<()> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    // What is made once and kept is made by the first rounds.
    (0..5).try_for_each(|_| round(&mut random))?;
    let before = free_kib()?;
    (0..ROUNDS).try_for_each(|_| round(&mut random))?;
    let kept = before.saturating_sub(free_kib()?);
    ensure(kept <= KEPT_MAX_KIB, || format!("{kept} KiB are gone"))
}

fn free_kib() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|error| format!("{error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
    let words = line.and_then(|line| line.split_whitespace().next());
    words.and_then(|word| word.parse().ok()).ok_or("no MemFree".into())
}

fn round(random: &mut Random) -> Result<()> {
    let kvm = Kvm::new().map_err(say("/dev/kvm"))?;
    let vm = kvm.create_vm().map_err(say("KVM_CREATE_VM"))?;
    if random.below(2) == 0 {
        vm.create_irq_chip().map_err(say("KVM_CREATE_IRQCHIP"))?;
    }
    let memory = Memory::new(BYTES);
    for at in (0..BYTES).step_by(8) {
        memory.set_word(at, random.next());
    }
    set_region(&vm, 0, 0, &memory, BYTES, 0)?;
    let cpus: Vec<VcpuFd> = (0..2)
        .map(|id| vm.create_vcpu(id).map_err(say("KVM_CREATE_VCPU")))
        .collect::<Result<_>>()?;
    for cpu in &cpus {
        start_real(cpu)?;
    }
    let mut buffer = vec![0u64; BUFFER / 8];
    for _ in 0..CALLS {
        call(random, &vm, &cpus, &memory, &mut buffer);
    }
    Ok(())
}

/// One call. Its answer is its own business.
fn call(random: &mut Random, vm: &VmFd, cpus: &[VcpuFd], memory: &Memory, buffer: &mut [u64]) {
    for word in buffer.iter_mut() {
        *word = if random.below(3) == 0 { random.value() } else { 0 };
    }
    let of_cpu = random.below(3) != 0;
    let table = if of_cpu { &CALLS_OF_CPUS[..] } else { &CALLS_OF_GUESTS[..] };
    let (direction, number, size) = table[random.below(table.len() as u64) as usize];
    match (of_cpu, number) {
        // Not this program's own memory, but for the guest's.
        (false, 0x46) => {
            let offset = random.below(4) * 4096;
            buffer[3] = [memory.address() + offset, 0, 1 << 63, 1][random.below(4) as usize];
        }
        (false, 0x42) => buffer[1] = [1, 1 << 63][random.below(2) as usize],
        // A mask that keeps the signal away would keep this program in its guest.
        (true, 0x8b) => (buffer[0], buffer[1]) = (8, 0),
        // Eventfds of this program's: there are none.
        (false, 0x76 | 0x79) => buffer[0] |= 1 << 30,
        _ => {}
    }
    let command = direction << 30 | size << 16 | 0xae << 8 | number;
    let argument = match (size, random.below(8)) {
        (0, _) if of_cpu && number == 0x80 => 0,
        (0, _) => random.value(),
        (_, 0) => random.value() | 1 << 62,
        _ => buffer.as_mut_ptr() as u64,
    };
    let cpu = &cpus[random.below(cpus.len() as u64) as usize];
    let fd = if of_cpu { cpu.as_raw_fd() } else { vm.as_raw_fd() };
    // SAFETY: the kernel writes to the buffer, which is larger than any of the structures with the
    // counts of entries that it accepts, or to addresses that are not this program's; the guest
    // reaches its memory only.
    unsafe { libc::ioctl(fd, command, argument) };
}
