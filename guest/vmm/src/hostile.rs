//! A VMM and a guest without manners: any ioctl at any time with any bytes on the device, guests
//! and virtual CPUs, from two threads of which one takes descriptors and memory away meanwhile, on
//! guests of random code, registers and controllers. Nothing is expected but that the kernel goes
//! on: it answers each call, leaves KVM_RUN when a signal comes, has its memory and its objects
//! back at the end, and runs the next guest.
//!
//! `limen-vmm fuzz [--seed N] [--seconds S]` does it for as long as one likes. What is asked for
//! follows from the seed; how the two threads meet does not.

use std::os::fd::AsRawFd as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvm_ioctls::{Kvm, VcpuFd};
use vmm_sys_util::eventfd::EventFd;

use crate::machine::{BYTES, CODE, Memory, Result, say, set_region, start_long, start_real};
use crate::tests::ensure;

/// What the tests begin with, and how long they go on.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const ROUNDS: u32 = 60;
/// Calls of each thread in a round.
const CALLS: u32 = 120;
/// What calls are given a pointer to.
const BUFFER: usize = 16384;
/// Memory that may be in use afterwards and was not before, KiB.
const KEPT_MAX_KIB: u64 = 2048;
/// Longest that the kernel may take to have all back.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a signal ends what a thread is in.
const SIGNALS: Duration = Duration::from_millis(3);
/// Numbers of the descriptors that calls are made on; none is given to what is opened meanwhile,
/// which takes the lowest.
const PLACES: i32 = 200;
/// Where the device, the guest and the virtual CPUs are among them.
const DEVICE: i32 = PLACES;
const GUEST: i32 = PLACES + 1;
const CPUS: i32 = PLACES + 2;
const CPU_COUNT: usize = 2;

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

/// Direction (1: written, 2: read), number and size of a call.
type Call = (u64, u64, u64);

/// Of the device, of a guest and of a virtual CPU.
const CALLS_OF_DEVICES: [Call; 10] = [
    (0, 0x00, 0),
    (0, 0x01, 0),
    (3, 0x02, 4),
    (0, 0x03, 0),
    (0, 0x04, 0),
    (3, 0x05, 8),
    (3, 0x09, 8),
    (3, 0x0a, 4),
    (3, 0x88, 8),
    (0, 0xff, 0),
];
const CALLS_OF_GUESTS: [Call; 28] = [
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
    (1, 0xa3, 104),
    (1, 0xa5, 32),
    (3, 0xc0, 24),
    (0, 0x03, 0),
    (0, 0xff, 0),
];
const CALLS_OF_CPUS: [Call; 31] = [
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

/// Instructions that software has a part in: whole ones, in hexadecimal, for any mode.
const INSTRUCTIONS: [&[u8]; 40] = [
    &[0xf4],
    &[0x0f, 0xa2],
    &[0x0f, 0x32],
    &[0x0f, 0x30],
    &[0x0f, 0x31],
    &[0x0f, 0x01, 0xf9],
    &[0x0f, 0x33],
    &[0x0f, 0x08],
    &[0x0f, 0x09],
    &[0x0f, 0x01, 0xd0],
    &[0x0f, 0x01, 0xd1],
    &[0x0f, 0x01, 0xd8],
    &[0x0f, 0x01, 0xd9],
    &[0x0f, 0x01, 0xda],
    &[0x0f, 0x01, 0xdb],
    &[0x0f, 0x01, 0xdc],
    &[0x0f, 0x01, 0xc1],
    &[0x0f, 0x01, 0xc8],
    &[0x0f, 0x01, 0xc9],
    &[0x0f, 0x20, 0xc0],
    &[0x0f, 0x22, 0xc0],
    &[0x0f, 0x22, 0xd8],
    &[0x0f, 0x22, 0xe0],
    &[0x0f, 0x23, 0xf8],
    &[0x0f, 0x06],
    &[0x0f, 0xaa],
    &[0xec],
    &[0xee],
    &[0xef],
    &[0x6c],
    &[0xf3, 0x6f],
    &[0xf3, 0xa5],
    &[0xfa],
    &[0xfb],
    &[0xcc],
    &[0xcd, 0x80],
    &[0xcf],
    &[0x9d],
    &[0xf3, 0x90],
    &[0xc6, 0x05],
];

extern "C" fn on_signal(_: i32) {}

/// See the module.
pub fn any_call_at_any_time() -> Result<()> {
    let mut random = Random(SEED);
    // What is made once and kept is made by the first rounds.
    (0..5).try_for_each(|_| round(&mut random))?;
    let before = Accounts::read()?;
    (0..ROUNDS).try_for_each(|_| round(&mut random))?;
    before.hold()?;
    let mut guest = crate::machine::Guest::real(&[0xf4])?;
    crate::tests::expect(&mut guest, "hlt")
}

/// A few rounds each of other seeds, by which the machine itself has been stopped before.
pub fn other_seeds() -> Result<()> {
    const SEEDS: core::ops::RangeInclusive<u64> = 1..=12;
    const ROUNDS_EACH: u32 = 8;
    for seed in SEEDS {
        let mut random = Random(seed);
        (0..ROUNDS_EACH).try_for_each(|_| round(&mut random))?;
    }
    let mut guest = crate::machine::Guest::real(&[0xf4])?;
    crate::tests::expect(&mut guest, "hlt")
}

/// `limen-vmm fuzz`.
pub fn command(words: &[String]) -> ExitCode {
    match fuzz(words) {
        Ok(rounds) => {
            println!("{rounds} rounds");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("limen-vmm: {why}");
            ExitCode::FAILURE
        }
    }
}

fn fuzz(words: &[String]) -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut seed = now.map_or(SEED, |now| now.as_nanos() as u64);
    let mut seconds = 60;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse().ok());
        let number: u64 = number.ok_or(format!("{word}: a number"))?;
        match word.as_str() {
            "--seed" => seed = number,
            "--seconds" => seconds = number,
            _ => return Err(format!("{word}: unknown")),
        }
    }
    println!("seed {seed}");
    // A generator that is 0 stays so.
    let mut random = Random(seed.max(1));
    (0..5).try_for_each(|_| round(&mut random))?;
    let (start, mut rounds) = (Instant::now(), 0);
    let before = Accounts::read()?;
    while start.elapsed() < Duration::from_secs(seconds) {
        round(&mut random)?;
        rounds += 1;
    }
    before.hold()?;
    Ok(rounds)
}

/// What must be as before once all is closed.
struct Accounts {
    free_kib: u64,
    descriptors: usize,
    /// Kinds of objects that live, where the kernel tells (`/proc/limen/accounts`).
    objects: Vec<(String, u64)>,
}

impl Accounts {
    fn read() -> Result<Accounts> {
        /// What a guest is held by: its space, its files and their inodes.
        const KINDS: [&str; 4] = ["threads", "spaces", "files", "inodes"];
        let fail = |error: std::io::Error| format!("/proc: {error}");
        let text = std::fs::read_to_string("/proc/meminfo").map_err(fail)?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
        let words = line.and_then(|line| line.split_whitespace().next());
        let free_kib = words.and_then(|word| word.parse().ok()).ok_or("no MemFree")?;
        let descriptors = std::fs::read_dir("/proc/self/fd").map_err(fail)?.count();
        let text = std::fs::read_to_string("/proc/limen/accounts").unwrap_or_default();
        let pair = |line: &str| {
            let (name, count) = line.split_once(char::is_whitespace)?;
            let name = KINDS.contains(&name).then(|| name.to_owned())?;
            Some((name, count.trim().parse().ok()?))
        };
        Ok(Accounts { free_kib, descriptors, objects: text.lines().filter_map(pair).collect() })
    }

    /// Fails unless all is back in time.
    fn hold(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let now = Accounts::read()?;
            let kept = self.free_kib.saturating_sub(now.free_kib);
            let is_back = kept <= KEPT_MAX_KIB
                && now.descriptors == self.descriptors
                && now.objects == self.objects;
            if is_back {
                return Ok(());
            }
            ensure(start.elapsed() < PATIENCE, || {
                let (then, now_open) = (self.descriptors, now.descriptors);
                let objects = format!("{:?}, then {:?}", self.objects, now.objects);
                format!("{kept} KiB are gone; {then} descriptors, then {now_open}; {objects}")
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// One guest, from its making to its end.
struct Victim {
    kvm: Kvm,
    vm: kvm_ioctls::VmFd,
    cpus: Vec<VcpuFd>,
    memory: Memory,
    events: Vec<EventFd>,
}

impl Victim {
    fn new(random: &mut Random) -> Result<Victim> {
        let kvm = Kvm::new().map_err(say("/dev/kvm"))?;
        let vm = kvm.create_vm().map_err(say("KVM_CREATE_VM"))?;
        if random.below(2) == 0 {
            vm.create_irq_chip().map_err(say("KVM_CREATE_IRQCHIP"))?;
        }
        let memory = Memory::new(BYTES);
        for at in (0..BYTES).step_by(8) {
            memory.set_word(at, random.next());
        }
        if random.below(2) == 0 {
            let mut code = Vec::new();
            while code.len() < 512 {
                code.extend(INSTRUCTIONS[random.below(INSTRUCTIONS.len() as u64) as usize]);
            }
            memory.write(CODE as usize, &code);
        }
        set_region(&vm, 0, 0, &memory, BYTES, random.below(2) as u32)?;
        let cpus: Vec<VcpuFd> = (0..CPU_COUNT as u64)
            .map(|id| vm.create_vcpu(id).map_err(say("KVM_CREATE_VCPU")))
            .collect::<Result<_>>()?;
        let most = kvm_bindings::KVM_MAX_CPUID_ENTRIES;
        let cpuid = kvm.get_supported_cpuid(most).map_err(say("KVM_GET_SUPPORTED_CPUID"))?;
        for cpu in &cpus {
            start_real(cpu)?;
            if random.below(3) == 0 {
                cpu.set_cpuid2(&cpuid).map_err(say("KVM_SET_CPUID2"))?;
                start_long(cpu)?;
            }
        }
        let event = |_| EventFd::new(libc::EFD_NONBLOCK).map_err(|e| format!("eventfd: {e}"));
        let events = (0..2).map(event).collect::<Result<_>>()?;
        let victim = Victim { kvm, vm, cpus, memory, events };
        (0..2 + CPU_COUNT as i32).for_each(|n| victim.put(PLACES + n));
        Ok(victim)
    }

    /// Puts what belongs there at a place.
    fn put(&self, place: i32) {
        let from = match place {
            DEVICE => self.kvm.as_raw_fd(),
            GUEST => self.vm.as_raw_fd(),
            _ => self.cpus[(place - CPUS) as usize].as_raw_fd(),
        };
        // SAFETY: the place is this module's alone, as no descriptor of the program's is so high.
        unsafe { libc::dup2(from, place) };
    }

    /// Takes a place, or memory of the guest's, away, or gives it back.
    fn disturb(&self, random: &mut Random) {
        let page = random.below(BYTES as u64 / 4096) as usize * 4096;
        let place = PLACES + random.below(2 + CPU_COUNT as u64) as i32;
        match random.below(8) {
            // SAFETY: the place is this module's alone, as in `put`.
            0 => drop(unsafe { libc::close(place) }),
            1 | 2 => self.put(place),
            3 => self.memory.forget(page, 4096),
            4 => self.memory.replace(page, 4096, None),
            5 => self.memory.protect(page, 4096, libc::PROT_NONE),
            6 => self.memory.protect(0, BYTES, libc::PROT_READ | libc::PROT_WRITE),
            _ => {
                self.memory.protect(page, 4096, libc::PROT_READ | libc::PROT_WRITE);
                self.memory.set_word(page, random.next());
            }
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        for place in PLACES..CPUS + CPU_COUNT as i32 {
            // SAFETY: the place is this module's alone, as in `put`; one that is closed already
            // stays so.
            unsafe { libc::close(place) };
        }
    }
}

fn round(random: &mut Random) -> Result<()> {
    // SAFETY: the handler does nothing and so may interrupt anything.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    let victim = Victim::new(random)?;
    let seeds = [random.next() | 1, random.next() | 1];
    // Who works: its thread's id; 0 behind its end.
    let working = [const { AtomicUsize::new(1) }; 2];
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|n| {
            let (victim, working) = (&victim, &working[n]);
            scope.spawn(move || {
                // SAFETY: pthread_self takes nothing and changes nothing.
                working.store(unsafe { libc::pthread_self() } as usize, Ordering::SeqCst);
                let mut random = Random(seeds[n]);
                let mut buffer = vec![0u64; BUFFER / 8];
                for _ in 0..CALLS {
                    if n == 1 {
                        victim.disturb(&mut random);
                    }
                    call(&mut random, victim, &mut buffer);
                }
                working.store(0, Ordering::SeqCst);
            })
        });
        // Whatever the guest does, KVM_RUN ends.
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(SIGNALS);
            for id in working.iter().map(|id| id.load(Ordering::SeqCst)).filter(|&id| id > 1) {
                // SAFETY: the handle of the thread is kept until the loop has ended, and its id is
                // valid as long as that.
                unsafe { libc::pthread_kill(id as libc::pthread_t, libc::SIGUSR1) };
            }
        }
    });
    Ok(())
}

/// One call. Its answer is its own business.
fn call(random: &mut Random, victim: &Victim, buffer: &mut [u64]) {
    for word in buffer.iter_mut() {
        *word = if random.below(3) == 0 { random.value() } else { 0 };
    }
    let (table, fd) = match random.below(16) {
        0 => (&CALLS_OF_DEVICES[..], DEVICE),
        1..6 => (&CALLS_OF_GUESTS[..], GUEST),
        _ => (&CALLS_OF_CPUS[..], CPUS + random.below(CPU_COUNT as u64) as i32),
    };
    let (direction, number, size) = table[random.below(table.len() as u64) as usize];
    let mut event = || victim.events[random.below(2) as usize].as_raw_fd() as u64;
    match (fd, number) {
        // Eventfds, or what is none.
        (GUEST, 0x76) => buffer[0] = buffer[0] << 32 | event(),
        (GUEST, 0x79) => buffer[2] = buffer[2] << 32 | event(),
        // Not this program's own memory, but for the guest's.
        (GUEST, 0x46) => {
            let offset = random.below(4) * 4096;
            let other = [victim.memory.address() + offset, 0, 1 << 63, 1];
            buffer[3] = other[random.below(4) as usize];
        }
        (GUEST, 0x42) => buffer[1] = [1, 1 << 63][random.below(2) as usize],
        (GUEST, 0xc0) => {
            let bits = buffer.as_ptr() as u64 + 1024;
            (buffer[0], buffer[1]) = (64 << 32, 0);
            buffer[2] = [bits, 1, 1 << 63][random.below(3) as usize];
        }
        // A mask that keeps the signal away would keep this program in its guest.
        (CPUS.., 0x8b) => (buffer[0], buffer[1]) = (8, 0),
        _ => {}
    }
    let command = direction << 30 | size << 16 | 0xae << 8 | number;
    let makes_guest = fd == DEVICE && number == 0x01;
    let argument = match (size, random.below(8)) {
        (0, _) if fd >= CPUS && number == 0x80 || makes_guest => 0,
        (0, _) => random.value(),
        (_, 0) => random.value() | 1 << 62,
        _ => buffer.as_mut_ptr() as u64,
    };
    // SAFETY: the kernel writes to the buffer, which is larger than any of the structures with the
    // counts of entries that it accepts, or to addresses that are not this program's; the guest
    // reaches its memory only. What is at the place is what calls of this kind are for, or nothing.
    let got = unsafe { libc::ioctl(fd, command, argument) };
    if got >= 0 && (makes_guest || fd == GUEST && number == 0x41) {
        // SAFETY: the descriptor that the call has made, which nobody else knows.
        unsafe { libc::close(got) };
    }
}
