//! The virtio-fs device as vhost-user has it: QEMU keeps the registers, the requests come here.
//!
//! Why it is hard: queues lie in the guest's memory, which it writes while they are read. Nothing
//! in them ends a thread or the program: a request that makes no sense gets an error for an answer,
//! a queue that makes no sense is left until it is rung again. Each queue has a thread of its own,
//! so a file that keeps the host waiting holds up the requests of its queue and no others; queue 0
//! is for those that must not wait (virtio 1.2, 5.11: the high-priority queue).
//!
//! Neighbours: `serve.rs` answers, `mod.rs` starts, `vhost_user_backend` speaks with QEMU.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuse_backend_rs::abi::fuse_abi::{InHeader, OutHeader};
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::transport::{Reader, VirtioFsWriter, Writer};
use rustix::io::Errno;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VringMutex, VringT as _};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, QueueT as _};
use vm_memory::{GuestAddressSpace as _, GuestMemoryAtomic, GuestMemoryLoadGuard, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

use super::alarm::Alarm;
use super::serve::Served;

/// Most entries of a queue.
const QUEUE_MAX: usize = 1024;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Chain = DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>;

/// A device.
pub(super) struct Device {
    server: Server<Arc<Served>>,
    memory: Memory,
    /// Queues for requests, beside the one of high priority.
    requests: usize,
    event_idx: AtomicBool,
    alarm: Alarm,
}

impl Device {
    pub(super) fn new(served: Arc<Served>, memory: Memory, requests: usize, alarm: Alarm) -> Self {
        let event_idx = AtomicBool::new(false);
        Self { server: Server::new(served), memory, requests, event_idx, alarm }
    }

    /// Serves a queue until it is empty.
    fn serve(&self, vring: &VringMutex<Memory>) -> io::Result<()> {
        while let Some(chain) = self.next(vring) {
            let head = chain.head_index();
            let len = self.answer(&chain);
            vring.add_used(head, len).map_err(io::Error::other)?;
            if vring.needs_notification().map_err(io::Error::other)? {
                vring.signal_used_queue()?;
            }
        }
        Ok(())
    }

    fn next(&self, vring: &VringMutex<Memory>) -> Option<Chain> {
        let memory = self.memory.memory();
        vring.get_mut().get_queue_mut().pop_descriptor_chain(memory)
    }

    /// Answers a request; gives how many bytes the answer has.
    fn answer(&self, chain: &Chain) -> u32 {
        self.handle(chain).or_else(|| refuse(chain)).unwrap_or(0)
    }

    /// None if the request makes no sense, or there is no room for its answer.
    fn handle(&self, chain: &Chain) -> Option<u32> {
        let (reader, writer) = ends(chain)?;
        let answered = self.server.handle_message(reader, Writer::VirtioFs(writer), None, None);
        answered.ok().and_then(|len| u32::try_from(len).ok())
    }
}

/// The request, and the room for its answer.
fn ends(chain: &Chain) -> Option<(Reader<'_>, VirtioFsWriter<'_>)> {
    let reader = Reader::from_descriptor_chain(chain.memory(), chain.clone()).ok()?;
    let writer = VirtioFsWriter::new(chain.memory(), chain.clone()).ok()?;
    Some((reader, writer))
}

/// Answers with EIO, if there is a request to answer and room for that.
fn refuse(chain: &Chain) -> Option<u32> {
    let (mut reader, mut writer) = ends(chain)?;
    let header: InHeader = reader.read_obj().ok()?;
    let len = size_of::<OutHeader>() as u32;
    let answer = OutHeader { len, error: -Errno::IO.raw_os_error(), unique: header.unique };
    writer.write_obj(answer).ok()?;
    Some(len)
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = VringMutex<Memory>;

    fn num_queues(&self) -> usize {
        1 + self.requests
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_MAX
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, enabled: bool) {
        self.event_idx.store(enabled, Ordering::Relaxed);
    }

    fn update_memory(&self, _: Memory) -> io::Result<()> {
        // It is the one that was given to `new`, with other regions.
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.num_queues()).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    /// An error here would end the queue's thread: there is none, whatever the guest does.
    fn handle_event(
        &self,
        queue: u16,
        _: EventSet,
        vrings: &[VringMutex<Memory>],
        _: usize,
    ) -> io::Result<()> {
        self.alarm.watch_this_thread();
        let Some(vring) = vrings.get(usize::from(queue)) else {
            return Ok(());
        };
        let has_event_idx = self.event_idx.load(Ordering::Relaxed);
        loop {
            // A queue that cannot be read is left until it is rung again.
            let is_readable = !has_event_idx || vring.disable_notification().is_ok();
            if !is_readable || self.serve(vring).is_err() {
                return Ok(());
            }
            if !has_event_idx || !vring.enable_notification().unwrap_or(false) {
                return Ok(());
            }
        }
    }
}
