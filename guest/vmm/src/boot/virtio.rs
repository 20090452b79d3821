//! virtio-mmio, version 2 (virtio 1.2, 4.2.2): registers of a device, and its queues by the
//! `virtio-queue` crate. What the guest writes is checked there and here: a queue that makes no
//! sense is not used.

use virtio_queue::{Queue, QueueT as _};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

/// Registers of one device, bytes.
pub(super) const REGISTERS_BYTES: u64 = 0x200;
const MAGIC: u32 = 0x7472_6976;
const CONFIG: u64 = 0x100;
const VERSION_1: u64 = 1 << 32;
const QUEUE_MAX: u16 = 256;
const DRIVER_OK: u32 = 4;
const USED: u32 = 1;

/// What a device is behind its registers.
pub(super) trait Device: Send {
    /// Its number (virtio 1.2, 5).
    fn id(&self) -> u32;
    /// Features beside VERSION_1.
    fn features(&self) -> u64 {
        0
    }
    /// How many queues it has.
    fn queues(&self) -> usize;
    /// Its configuration space.
    fn config(&self) -> Vec<u8> {
        Vec::new()
    }
    /// Looks at its queues. True: it has given something back to the guest.
    fn work(&mut self, queues: &mut [Queue], memory: &GuestMemoryMmap) -> bool;
}

/// See the module.
pub(super) struct Transport {
    device: Box<dyn Device>,
    memory: GuestMemoryMmap,
    line: EventFd,
    queues: Vec<Queue>,
    queue: usize,
    status: u32,
    interrupts: u32,
    /// Which half of the features is read.
    half: u32,
}

impl Transport {
    pub(super) fn new(device: Box<dyn Device>, memory: GuestMemoryMmap, line: EventFd) -> Self {
        let mut transport = Transport {
            device,
            memory,
            line,
            queues: Vec::new(),
            queue: 0,
            status: 0,
            interrupts: 0,
            half: 0,
        };
        transport.reset();
        transport
    }

    fn reset(&mut self) {
        let new = || Queue::new(QUEUE_MAX).expect("a power of two");
        self.queues = (0..self.device.queues()).map(|_| new()).collect();
        (self.status, self.interrupts) = (0, 0);
    }

    /// The device has something for the guest, or the guest for it.
    pub(super) fn poke(&mut self) {
        if self.status & DRIVER_OK == 0 {
            return;
        }
        if self.device.work(&mut self.queues, &self.memory) {
            self.interrupts |= USED;
            // Full: the line has been pulled and not yet been looked at.
            let _ = self.line.write(1);
        }
    }

    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        if let Some(at) = offset.checked_sub(CONFIG) {
            let config = self.device.config();
            for (n, byte) in data.iter_mut().enumerate() {
                *byte = config.get(at as usize + n).copied().unwrap_or(0);
            }
            return;
        }
        let features = self.device.features() | VERSION_1;
        let queue = self.queues.get(self.queue);
        let word = match offset {
            0x000 => MAGIC,
            0x004 => 2,
            0x008 => self.device.id(),
            0x00c => 0x4d49_4c4c,
            0x010 => (features >> (32 * (self.half & 1))) as u32,
            0x034 => queue.map_or(0, |queue| u32::from(queue.max_size())),
            0x044 => queue.map_or(0, |queue| u32::from(queue.ready())),
            0x060 => self.interrupts,
            0x070 => self.status,
            _ => 0,
        };
        let bytes = word.to_le_bytes();
        for (n, byte) in data.iter_mut().enumerate() {
            *byte = bytes.get(n).copied().unwrap_or(0);
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let Ok(bytes) = data.try_into() else { return };
        let word = u32::from_le_bytes(bytes);
        match offset {
            0x014 => self.half = word,
            0x030 => self.queue = word as usize,
            0x050 => self.poke(),
            0x064 => self.interrupts &= !word,
            0x070 if word == 0 => self.reset(),
            0x070 => {
                self.status = word;
                self.poke();
            }
            _ => {
                if let Some(queue) = self.queues.get_mut(self.queue) {
                    set_queue(queue, offset, word, &self.memory);
                }
            }
        }
    }
}

fn set_queue(queue: &mut Queue, offset: u64, word: u32, memory: &GuestMemoryMmap) {
    let half = Some(word);
    match offset {
        0x038 => queue.set_size(word as u16),
        0x044 => {
            queue.set_ready(word == 1);
            if !queue.is_valid(memory) {
                queue.set_ready(false);
            }
        }
        0x080 => queue.set_desc_table_address(half, None),
        0x084 => queue.set_desc_table_address(None, half),
        0x090 => queue.set_avail_ring_address(half, None),
        0x094 => queue.set_avail_ring_address(None, half),
        0x0a0 => queue.set_used_ring_address(half, None),
        0x0a4 => queue.set_used_ring_address(None, half),
        _ => {}
    }
}

/// What the guest has put in a queue for the device: the readable bytes, and how many it may write.
pub(super) struct Request {
    head: u16,
    /// Bytes of the guest's.
    pub(super) bytes: Vec<u8>,
    /// Places for the device's: address, length.
    places: Vec<(vm_memory::GuestAddress, u32)>,
}

/// Most bytes of one request.
const REQUEST_MAX: usize = 1 << 20;

impl Request {
    /// The next one of a queue.
    pub(super) fn next(queue: &mut Queue, memory: &GuestMemoryMmap) -> Option<Request> {
        use vm_memory::Bytes as _;
        if !queue.ready() {
            return None;
        }
        let chain = queue.pop_descriptor_chain(memory)?;
        let mut request =
            Request { head: chain.head_index(), bytes: Vec::new(), places: Vec::new() };
        for part in chain {
            let len = (part.len() as usize).min(REQUEST_MAX - request.bytes.len());
            if part.is_write_only() {
                request.places.push((part.addr(), part.len()));
            } else {
                let at = request.bytes.len();
                request.bytes.resize(at + len, 0);
                // Memory that is none reads as zeros.
                let _ = memory.read_slice(&mut request.bytes[at..], part.addr());
            }
        }
        Some(request)
    }

    /// Bytes that the device may write.
    pub(super) fn room(&self) -> usize {
        self.places.iter().map(|&(_, len)| len as usize).sum::<usize>().min(REQUEST_MAX)
    }

    /// Gives it back, with these bytes.
    pub(super) fn finish(self, queue: &mut Queue, memory: &GuestMemoryMmap, bytes: &[u8]) {
        use vm_memory::Bytes as _;
        let mut left = bytes;
        for (at, len) in self.places {
            let (now, rest) = left.split_at(left.len().min(len as usize));
            let _ = memory.write_slice(now, at);
            left = rest;
        }
        let done = bytes.len() - left.len();
        let _ = queue.add_used(memory, self.head, done as u32);
    }
}
