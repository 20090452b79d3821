//! Random bytes: a ChaCha20 generator, seeded by the CPU's generator, the host's (virtio-rng) and
//! the jitter of the time-stamp counter.
//!
//! The cipher's output replaces its own key and is handed out piece by piece; what was handed out
//! is erased, so that what is in memory later says nothing of it ("fast key erasure"). Sources are
//! folded in by adding them to the key and replacing it by the cipher's output under it; a bad
//! source can therefore not undo a good one.
//!
//! Not chosen: an estimate of how much entropy there is. Whether a hardware source was there is a
//! fact, and the log says so when none was.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use crate::cpu::sync::{Once, SpinLock};
use crate::cpu::{self, clock, rdrand, rdseed};
use crate::device::virtio::{self, Buffers, DeviceKind, Queue};

const KEY_BYTES: usize = 32;
/// Fresh randomness is folded in this often, when somebody asks for bytes.
const RESEED_NS: u64 = 60_000_000_000;
/// Output of one run of the cipher: four of its blocks, less the next key.
const STOCK_BYTES: usize = 4 * 64 - KEY_BYTES;
/// Requests up to this many bytes are served from the stock.
const SMALL: usize = 128;
/// Bytes asked of the host at a time.
const HOST_BYTES: usize = 64;
/// How long boot waits for the host's bytes, nanoseconds.
const HOST_WAIT_NS: u64 = 20_000_000;
/// Times 256 bits, taken from each of the CPU's generators.
const HARDWARE_ROUNDS: usize = 2;
/// RDRAND and RDSEED may have nothing ready for a moment (SDM 1, 7.3.17).
const MAX_RETRIES: usize = 16;
const JITTER_SAMPLES: usize = 64;

struct Pool {
    key: [u8; KEY_BYTES],
    /// Output in stock: the last `left` bytes. What was handed out is zero.
    stock: [u8; STOCK_BYTES],
    left: usize,
    reseed_at_ns: u64,
}

static POOL: SpinLock<Pool> = SpinLock::new(Pool {
    key: [0; KEY_BYTES],
    stock: [0; STOCK_BYTES],
    left: 0,
    reseed_at_ns: u64::MAX,
});
static HOST: Once<Option<Box<SpinLock<Queue>>>> = Once::new();
static HAS_SOURCE: AtomicBool = AtomicBool::new(false);

impl Pool {
    /// Folds `bytes` into the key.
    fn absorb(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(KEY_BYTES) {
            for (key, byte) in self.key.iter_mut().zip(chunk) {
                *key ^= byte;
            }
            self.run();
        }
    }

    /// Replaces the key and the stock.
    fn run(&mut self) {
        let mut generator = ChaCha20Rng::from_seed(self.key);
        generator.fill_bytes(&mut self.key);
        generator.fill_bytes(&mut self.stock);
        self.left = STOCK_BYTES;
    }

    /// Hands out up to [`STOCK_BYTES`] bytes and erases them.
    fn take(&mut self, bytes: &mut [u8]) {
        if self.left < bytes.len() {
            self.run();
        }
        let from = &mut self.stock[STOCK_BYTES - self.left..][..bytes.len()];
        bytes.copy_from_slice(from);
        from.fill(0);
        self.left -= bytes.len();
    }

    /// Folds in what the CPU's generators and its clock give. Whether a generator gave something.
    fn absorb_cpu(&mut self) -> bool {
        let mut found = false;
        for source in [rdseed, rdrand] {
            for _ in 0..HARDWARE_ROUNDS {
                let words = [(); 4].map(|()| (0..MAX_RETRIES).find_map(|_| source()));
                if words.iter().any(Option::is_some) {
                    self.absorb_words(words.map(Option::unwrap_or_default));
                    found = true;
                }
            }
        }
        self.absorb_words([cpu::rdtsc(), clock::now_ns(), 0, 0]);
        found
    }

    fn absorb_words(&mut self, words: [u64; 4]) {
        let mut bytes = [0; KEY_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        self.absorb(&bytes);
    }

    /// Folds in the times that port accesses take. Worth little in an emulator and something on
    /// hardware.
    fn absorb_jitter(&mut self) {
        const UNUSED_PORT: u16 = 0x80;
        let mut words = [0u64; 4];
        for i in 0..JITTER_SAMPLES {
            // SAFETY: a read of the port that boot code uses for its delays has no effect.
            unsafe { cpu::inb(UNUSED_PORT) };
            let word = &mut words[i % 4];
            *word = word.rotate_left(7) ^ cpu::rdtsc();
        }
        self.absorb_words(words);
    }

    /// Folds in what the host has sent since, and asks it for more.
    fn absorb_host(&mut self) -> bool {
        let Some(Some(queue)) = HOST.get() else { return false };
        let mut queue = queue.lock();
        let Some(completed) = queue.pop_completed() else { return false };
        let mut buffers = completed.buffers;
        let bytes = &mut buffers.incoming[0];
        self.absorb(bytes);
        bytes.fill(0);
        // A queue that refuses is broken; the other sources remain.
        if queue.submit(buffers).is_ok() {
            queue.notify();
        }
        completed.written > 0
    }
}

/// A seed for what is chosen before there is a generator, time or a device: the CPU's generators,
/// its clock, and how long port accesses take. Keeps nothing.
pub(crate) fn early_seed() -> [u8; KEY_BYTES] {
    let mut pool = Pool { key: [0; KEY_BYTES], stock: [0; STOCK_BYTES], left: 0, reseed_at_ns: 0 };
    for _ in 0..HARDWARE_ROUNDS * MAX_RETRIES {
        let [a, b] = cpu::early_random().map(Option::unwrap_or_default);
        pool.absorb_words([a, b, cpu::rdtsc(), 0]);
    }
    pool.absorb_jitter();
    pool.key
}

/// Seeds the generator. On the first CPU, after `time::init`.
pub(crate) fn init() {
    HOST.call_once(start_host);
    let mut pool = POOL.lock();
    pool.absorb(&clock::boot_wall_ns().to_le_bytes());
    let mut found = pool.absorb_cpu();
    pool.absorb_jitter();
    drop(pool);
    let start_ns = clock::now_ns();
    while HOST.get().is_some_and(Option::is_some) && clock::now_ns() - start_ns < HOST_WAIT_NS {
        if POOL.lock().absorb_host() {
            found = true;
            break;
        }
        core::hint::spin_loop();
    }
    HAS_SOURCE.store(found, Ordering::Relaxed);
    if !found {
        crate::log!("no hardware source of randomness (RDRAND, virtio-rng): keys are guessable");
    }
    POOL.lock().reseed_at_ns = clock::now_ns() + RESEED_NS;
}

/// Starts virtio-rng, and asks for the first bytes. It is polled, so it needs no interrupts.
fn start_host() -> Option<Box<SpinLock<Queue>>> {
    let mut device = virtio::take(DeviceKind::Entropy)?;
    let mut start = || {
        device.negotiate(0)?;
        let mut queue = device.queue(0, 4)?;
        queue.set_interrupts(false);
        device.start(Box::new(|| {}))?;
        let mut buffers = Buffers::default();
        buffers.incoming[0] = Vec::with_capacity(HOST_BYTES);
        queue.submit(buffers).map_err(|_| virtio::DeviceError::Broken)?;
        queue.notify();
        Ok::<_, virtio::DeviceError>(Box::new(SpinLock::new(queue)))
    };
    start().inspect_err(|error| crate::log!("virtio-rng does not work: {error:?}")).ok()
}

/// Fills `bytes` with random ones, for keys and for programs (getrandom(2)). Never fails or waits.
pub fn fill(bytes: &mut [u8]) {
    let mut pool = POOL.lock();
    let now = clock::now_ns();
    if now >= pool.reseed_at_ns {
        pool.reseed_at_ns = now + RESEED_NS;
        pool.absorb_cpu();
        pool.absorb_host();
    }
    if bytes.len() <= SMALL {
        pool.take(bytes);
        return;
    }
    // A large request gets a generator of its own, so that the lock is held for a moment only.
    let mut key = [0; KEY_BYTES];
    pool.take(&mut key);
    drop(pool);
    ChaCha20Rng::from_seed(key).fill_bytes(bytes);
}

/// Folds `bytes` that somebody else provides into the generator, as a write to /dev/urandom does.
pub fn add(bytes: &[u8]) {
    const MAX_BYTES: usize = 512;
    POOL.lock().absorb(&bytes[..bytes.len().min(MAX_BYTES)]);
}

/// A random number, for address layout and canaries.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Whether a hardware source took part in the seed.
pub fn has_hardware_source() -> bool {
    HAS_SOURCE.load(Ordering::Relaxed)
}
