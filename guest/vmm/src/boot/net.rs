//! A network card whose cable ends in this process (virtio 1.2, 5.1): the other end is 10.0.2.2,
//! answers ARP and ICMP echo, and sends UDP back to where it came from (RFC 826, 792, 768).

use std::collections::VecDeque;

use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;

use super::virtio::{Device, Request};

const OWN_MAC: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];
const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const OWN: [u8; 4] = [10, 0, 2, 2];
const HAS_MAC: u64 = 1 << 5;
/// `struct virtio_net_hdr_v1`.
const HEADER: usize = 12;
/// Frames that wait for a place of the guest's.
const FRAMES_MAX: usize = 256;
const ETHERNET: usize = 14;
const IP: usize = 20;

#[derive(Default)]
pub(super) struct Net {
    frames: VecDeque<Vec<u8>>,
}

/// The sum of RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let pairs = bytes.chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(*p.get(1).unwrap_or(&0)));
    let sum: u32 = pairs.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    (!folded as u16).to_be_bytes()
}

/// The answer to a frame, if it gets one.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    let mut reply = frame.to_vec();
    let (to, rest) = reply.split_at_mut_checked(6)?;
    to.copy_from_slice(rest.get(..6)?);
    rest[..6].copy_from_slice(&OWN_MAC);
    match [*frame.get(12)?, *frame.get(13)?] {
        [8, 6] => answer_arp(frame, &mut reply)?,
        [8, 0] => answer_ip(frame, &mut reply)?,
        _ => return None,
    }
    Some(reply)
}

fn answer_arp(frame: &[u8], reply: &mut [u8]) -> Option<()> {
    let asked = frame.get(ETHERNET..ETHERNET + 28)?;
    if asked[6..8] != [0, 1] || asked[24..28] != OWN {
        return None;
    }
    let arp = &mut reply[ETHERNET..];
    arp[7] = 2;
    arp[18..28].copy_from_slice(&asked[8..18]);
    arp[8..14].copy_from_slice(&OWN_MAC);
    arp[14..18].copy_from_slice(&OWN);
    Some(())
}

fn answer_ip(frame: &[u8], reply: &mut [u8]) -> Option<()> {
    const ICMP: u8 = 1;
    const UDP: u8 = 17;
    let packet = frame.get(ETHERNET..)?;
    if packet.len() < IP + 8 {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    if packet[0] != 0x45 || packet[16..20] != OWN || len > packet.len() {
        return None;
    }
    let ip = &mut reply[ETHERNET..];
    ip[12..16].copy_from_slice(&packet[16..20]);
    ip[16..20].copy_from_slice(&packet[12..16]);
    match packet[9] {
        ICMP if packet[IP] == 8 => {
            ip[IP..IP + 4].fill(0);
            let sum = checksum(&ip[IP..len.max(IP)]);
            ip[IP + 2..IP + 4].copy_from_slice(&sum);
        }
        UDP => {
            // Both ends change places, so the sum stays.
            ip[IP..IP + 2].copy_from_slice(&packet[IP + 2..IP + 4]);
            ip[IP + 2..IP + 4].copy_from_slice(&packet[IP..IP + 2]);
        }
        _ => return None,
    }
    Some(())
}

impl Device for Net {
    fn id(&self) -> u32 {
        1
    }

    fn features(&self) -> u64 {
        HAS_MAC
    }

    fn queues(&self) -> usize {
        2
    }

    fn config(&self) -> Vec<u8> {
        GUEST_MAC.to_vec()
    }

    fn work(&mut self, queues: &mut [Queue], memory: &GuestMemoryMmap) -> bool {
        let mut any = false;
        while let Some(request) = Request::next(&mut queues[1], memory) {
            let reply = request.bytes.get(HEADER..).and_then(answer);
            if self.frames.len() < FRAMES_MAX {
                self.frames.extend(reply);
            }
            request.finish(&mut queues[1], memory, &[]);
            any = true;
        }
        while !self.frames.is_empty()
            && let Some(request) = Request::next(&mut queues[0], memory)
        {
            let frame = self.frames.pop_front().unwrap_or_default();
            let mut bytes = vec![0; HEADER];
            // One buffer.
            bytes[10] = 1;
            bytes.extend(frame);
            request.finish(&mut queues[0], memory, &bytes);
            any = true;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoes_come_back_with_a_sum_that_holds() {
        let mut frame = [&[1; 6][..], &GUEST_MAC, &[8, 0]].concat();
        frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 2, 15, 10, 0, 2, 2]);
        frame.extend([8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let reply = answer(&frame).expect("an answer");
        assert_eq!(reply[..6], GUEST_MAC);
        assert_eq!(reply[26..34], [10, 0, 2, 2, 10, 0, 2, 15]);
        assert_eq!(checksum(&reply[34..46]), [0, 0]);
        assert_eq!(reply[38..], frame[38..]);
    }

    #[test]
    fn short_and_foreign_frames_get_no_answer() {
        let frame = [&[1; 12][..], &[8, 0], &[0x45; 30]].concat();
        for len in 0..frame.len() {
            assert_eq!(answer(&frame[..len]), None);
        }
    }
}
