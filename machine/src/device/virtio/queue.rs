//! The split virtqueue (2.7): three arrays in memory through which driver and device exchange
//! buffers.
//!
//! The device may write any part of the used ring, the buffers and even the descriptors at any time
//! and wrongly. So everything this side relies on it keeps for itself, in [`Chains`]: which
//! descriptors are free, how chains go on, and the buffers. From the device come only an id and a
//! length, both checked there.
//!
//! Invariants:
//! 1. A buffer belongs to `chains` from before the device can see its address until after the
//!    device said that it is done with it.
//! 2. The rings are never freed, nor are the buffers of a queue that is dropped: nothing tells when
//!    a device really stops writing.

use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::{AtomicU16, Ordering, fence};

use virtqueue::Chains;

use super::QueueAddresses;
use crate::device::mmio::Registers;
use crate::memory::frame::{
    self, Frame, OutOfMemory, PAGE_SHIFT, PAGE_SIZE, phys_to_virt, virt_to_phys,
};
use crate::memory::{self, vmap};

/// What is sent with one request: first the buffers the device reads, then those it writes. Empty
/// ones are left out.
#[derive(Debug, Default)]
pub struct Buffers {
    /// For the device to read: what is in them.
    pub outgoing: [Vec<u8>; 2],
    /// For the device to write: up to their capacity, whatever is in them. A completed request has
    /// what the device wrote in them, the first one filled before the second.
    pub incoming: [Vec<u8>; 2],
    /// Whole frames that the device writes after those are full: contents of files, say, which so
    /// come to where they stay. Others may hold the same frames; whoever looks at them before the
    /// request is completed sees anything.
    pub incoming_frames: Vec<Frame>,
}

impl Buffers {
    fn lens(&self) -> [usize; 4] {
        let [out_0, out_1] = &self.outgoing;
        let [in_0, in_1] = &self.incoming;
        [out_0.len(), out_1.len(), in_0.capacity(), in_1.capacity()]
    }

    /// What the frames are to the device: physical address and length of each run of neighbours.
    fn frame_runs(&self) -> impl Iterator<Item = (u64, usize)> {
        let runs = self.incoming_frames.chunk_by(|a, b| a.phys() + PAGE_SIZE as u64 == b.phys());
        runs.filter_map(|run| Some((run.first()?.phys(), run.len() * PAGE_SIZE)))
    }

    /// Sets the lengths of the incoming buffers to what the device wrote.
    fn set_written(&mut self, written: usize) {
        let mut left = written;
        for buffer in &mut self.incoming {
            let len = left.min(buffer.capacity());
            left -= len;
            // SAFETY: `len` is within the capacity. The bytes were the device's to write, and are
            // its claim: what it left out has whatever the allocation had, which is memory that was
            // exposed to the device, so reading it is defined. Bytes have no invalid values.
            unsafe { buffer.set_len(len) };
        }
    }
}

/// Names a request until it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u16);

impl Token {
    /// A number below [`Queue::size`] that no other request in flight has.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A request that the device is done with.
#[derive(Debug)]
pub struct Completed {
    /// Which.
    pub token: Token,
    /// The buffers that were submitted.
    pub buffers: Buffers,
    /// Bytes the device says it wrote: the sum of the incoming buffers' lengths, and what came into
    /// the frames.
    pub written: usize,
}

/// Why nothing was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// All descriptors are in use: try again after a completion.
    Full,
    /// The device broke the protocol, or the buffers are all empty, too long or too scattered.
    Broken,
}

/// Where to tell the device that a queue has something new.
pub(super) enum Doorbell {
    /// A 32-bit register (memory transport).
    Wide(Registers, u32),
    /// A 16-bit register (PCI).
    Narrow(Registers, u16),
    /// Not set yet.
    None,
}

#[repr(C)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// The parts of a buffer that are contiguous in physical memory: address and length, bytes. All of
/// a buffer in the direct map is one; one of mapped frames ([`crate::memory::vmap`]) is as many as
/// they are scattered.
struct Runs {
    at: *const u8,
    len: usize,
}

impl Iterator for Runs {
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        if self.len == 0 {
            return None;
        }
        let address = device_address(self.at);
        let mut run = self.len;
        if vmap::contains(self.at) {
            run = PAGE_SIZE - self.at as usize % PAGE_SIZE;
            while run < self.len
                && device_address(self.at.wrapping_add(run)) == address + run as u64
            {
                run += PAGE_SIZE;
            }
            run = run.min(self.len);
        }
        self.at = self.at.wrapping_add(run);
        self.len -= run;
        Some((address, run))
    }
}

fn device_address(at: *const u8) -> u64 {
    if vmap::contains(at) {
        memory::kernel_phys(at as u64).expect("a buffer in use is mapped").as_u64()
    } else {
        virt_to_phys(at)
    }
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
/// In the used ring: the device looks at the available ring by itself now.
const NO_NOTIFY: u16 = 1;
/// In the available ring: the driver wants no interrupts now.
const NO_INTERRUPT: u16 = 1;

/// One queue of a device.
pub struct Queue {
    size: u16,
    descriptors: *mut Descriptor,
    /// flags, index, then `size` heads.
    available: *mut u16,
    /// flags, index (16 bits each), then `size` of (id, length), 32 bits each.
    used: *mut u16,
    doorbell: Doorbell,
    chains: Chains<Buffers>,
    available_index: u16,
    used_index: u16,
    broken: bool,
}

// SAFETY: the pointers are to memory that only this queue and its device use; nothing is tied to a
// CPU.
unsafe impl Send for Queue {}

impl Queue {
    /// Largest queue, in descriptors.
    pub(super) const MAX_SIZE: u16 = 256;

    /// Makes an empty queue of `size` descriptors, a power of two.
    pub(super) fn new(size: u16) -> Result<(Queue, QueueAddresses), OutOfMemory> {
        assert!(size.is_power_of_two() && size <= Self::MAX_SIZE);
        let count = usize::from(size);
        let available_at = count * size_of::<Descriptor>();
        let used_at = (available_at + 2 * (3 + count)).next_multiple_of(4);
        let bytes = used_at + 6 + 8 * count;
        let order = bytes.div_ceil(PAGE_SIZE).next_power_of_two().ilog2() as usize;
        let pfn = frame::alloc_block(order).ok_or(OutOfMemory)?;
        let base = phys_to_virt(u64::from(pfn) << PAGE_SHIFT);
        // SAFETY: the block is new and has `PAGE_SIZE << order` bytes.
        unsafe { core::ptr::write_bytes(base, 0, PAGE_SIZE << order) };
        let phys = virt_to_phys(base);
        let addresses = QueueAddresses {
            descriptors: phys,
            driver: phys + available_at as u64,
            device: phys + used_at as u64,
        };
        let queue = Queue {
            size,
            descriptors: base.cast(),
            available: base.wrapping_add(available_at).cast(),
            used: base.wrapping_add(used_at).cast(),
            doorbell: Doorbell::None,
            chains: Chains::new(size),
            available_index: 0,
            used_index: 0,
            broken: false,
        };
        Ok((queue, addresses))
    }

    pub(super) fn set_doorbell(&mut self, doorbell: Doorbell) {
        self.doorbell = doorbell;
    }

    /// Descriptors: a request takes one for each of its buffers that is not empty, and more only
    /// for one whose frames are scattered.
    pub fn size(&self) -> usize {
        usize::from(self.size)
    }

    /// Requests the device has not completed.
    pub fn pending(&self) -> usize {
        self.chains.pending()
    }

    /// Whether the device broke the protocol. The queue does nothing any more then.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Hands buffers to the device. It learns of them at the next [`Queue::notify`]. On an error
    /// the buffers come back.
    #[expect(clippy::result_large_err, reason = "the caller's own buffers, which it moves back")]
    pub fn submit(&mut self, buffers: Buffers) -> Result<Token, (SubmitError, Buffers)> {
        let lens = buffers.lens();
        let [out_0, out_1] = &buffers.outgoing;
        let [in_0, in_1] = &buffers.incoming;
        let addresses = [out_0, out_1, in_0, in_1].map(Vec::as_ptr);
        let parts = || {
            let buffers = addresses.into_iter().zip(lens).zip([0, 0, WRITE, WRITE]);
            buffers.flat_map(|((at, len), flags)| Runs { at, len }.map(move |run| (run, flags)))
        };
        let frames: Vec<_> = buffers.frame_runs().map(|run| (run, WRITE)).collect();
        let count = parts().count() + frames.len();
        let is_too_long =
            count > self.size() || lens.iter().any(|&len| u32::try_from(len).is_err());
        if self.broken || count == 0 || is_too_long {
            return Err((SubmitError::Broken, buffers));
        }
        let mut parts = parts().chain(frames);
        let (size, descriptors) = (self.size, self.descriptors);
        let room = lens[2] + lens[3] + buffers.incoming_frames.len() * PAGE_SIZE;
        let submitted = self.chains.submit(count, buffers, room, |index, next| {
            let Some(((address, len), flags)) = parts.next() else { return };
            let descriptor = Descriptor {
                address,
                len: len as u32,
                flags: flags | if next.is_some() { NEXT } else { 0 },
                next: next.unwrap_or(0),
            };
            assert!(index < size);
            let place = descriptors.wrapping_add(usize::from(index));
            // SAFETY: `index` is below `size`; the array is ours (invariant 2). The buffers, which
            // are moved but not their memory, belong to the record now (invariant 1).
            unsafe { place.write_volatile(descriptor) };
        });
        let head = submitted.map_err(|buffers| (SubmitError::Full, buffers))?;
        let slot = usize::from(self.available_index & (self.size - 1));
        // SAFETY: the slot is inside the available ring.
        unsafe { self.available.wrapping_add(2 + slot).write_volatile(head) };
        self.available_index = self.available_index.wrapping_add(1);
        // The device must see descriptors and slot before the index.
        self.available_word(1).store(self.available_index, Ordering::Release);
        Ok(Token(head))
    }

    fn available_word(&self, at: usize) -> &AtomicU16 {
        assert!(at < 2);
        // SAFETY: flags and index of the ring, aligned, for ever (invariant 2).
        unsafe { AtomicU16::from_ptr(self.available.wrapping_add(at)) }
    }

    fn used_word(&self, at: usize) -> &AtomicU16 {
        assert!(at < 2);
        // SAFETY: as in `available_word`: flags and index of the other ring, for ever.
        unsafe { AtomicU16::from_ptr(self.used.wrapping_add(at)) }
    }

    /// Tells the device that there are new buffers, unless it looks by itself.
    pub fn notify(&self) {
        // The index must be visible before the flag is read, or both sides wait for each other.
        fence(Ordering::SeqCst);
        if self.broken || self.used_word(0).load(Ordering::Relaxed) & NO_NOTIFY != 0 {
            return;
        }
        match self.doorbell {
            // SAFETY: makes the device look at the ring, whose buffers are its to use.
            Doorbell::Wide(register, value) => unsafe { register.write32(0, value) },
            // SAFETY: as above, for devices whose doorbell has 16 bits.
            Doorbell::Narrow(register, value) => unsafe { register.write16(0, value) },
            Doorbell::None => {}
        }
    }

    /// Asks the device to interrupt when it completes requests, or not to. It may do so all the
    /// same. Look for completed requests after switching on: what came before raised no interrupt.
    pub fn set_interrupts(&self, on: bool) {
        self.available_word(0).store(if on { 0 } else { NO_INTERRUPT }, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether [`Queue::pop_completed`] would find something.
    pub fn has_completed(&self) -> bool {
        !self.broken && self.used_word(1).load(Ordering::Acquire) != self.used_index
    }

    /// Takes back a request that the device has completed.
    pub fn pop_completed(&mut self) -> Option<Completed> {
        if !self.has_completed() {
            return None;
        }
        let slot = usize::from(self.used_index & (self.size - 1));
        let element = self.used.wrapping_add(2).cast::<[u32; 2]>().wrapping_add(slot);
        // SAFETY: the element is inside the used ring, 4-aligned.
        let [id, len] = unsafe { element.read_volatile() };
        self.used_index = self.used_index.wrapping_add(1);
        let Some((head, mut buffers, written)) = self.chains.complete(id, len) else {
            self.broken = true;
            crate::log!("a virtio device completed what it was not given (id {id}, {len} bytes)");
            return None;
        };
        buffers.set_written(written);
        Some(Completed { token: Token(head), buffers, written })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Invariant 2.
        self.chains.drain().for_each(mem::forget);
    }
}
