//! What a guest sends and receives: segments in a ring of its memory, a kick for each, and a VMM
//! that passes them on through a socket of its own, as QEMU's user-mode network does.
//!
//! The other end of the socket is a thread beside the VMM, on the one CPU there is: the kernel's
//! stack is part of the price, the guest's is not, since there is none: it copies each segment from
//! one place to another and kicks. TCP in segments of 64 KiB, as a virtio card with segmentation
//! offload has them, UDP in datagrams that fit an Ethernet frame, one kick each. Each segment
//! begins with its number, which the receiver checks.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use limen_guest_bench::raw::rdtsc;

use super::run;
use crate::machine::{Guest, Result, assembled};
use crate::tests::ensure;

/// A TCP segment with offload; a UDP datagram in a frame of 1500 bytes.
const TCP_BYTES: usize = 64 << 10;
const UDP_BYTES: usize = 1472;
/// Datagrams that are on their way at most: half, at each word of the receiver.
const WINDOW: u64 = 32;
const LOOPBACK: &str = "127.0.0.1:0";
const STREAMS_MAX: usize = 4;

// In the guest's memory: its orders, and a buffer for each stream.
const LENGTH: usize = 0x3000;
const SEGMENTS: usize = 0x3008;
const STREAMS: usize = 0x3010;
const BUFFERS: usize = 0x1_0000;
const BUFFER_BYTES: usize = 0x1_0000;
/// Ports: a segment is ready (its stream in AL); one may be put into the buffer; all is done.
const READY: u16 = 0x90;
const WANTED: u16 = 0x91;
const DONE: u16 = 0x80;

// The numbers are those of the constants above; the other place is 0x60000.
std::arch::global_asm!(
    ".pushsection .rodata",
    "limen_vmm_sender:",
    "mov r12, [0x3008]",
    "xor r13d, r13d",
    "test r12, r12",
    "jz 3f",
    "2: mov esi, 0x60000",
    "mov rdi, r13",
    "shl rdi, 16",
    "add rdi, 0x10000",
    "mov rcx, [0x3000]",
    "shr rcx, 3",
    "mov [rsi], r12",
    "rep movsq",
    "mov eax, r13d",
    "out 0x90, al",
    "inc r13",
    "cmp r13, [0x3010]",
    "jb 4f",
    "xor r13d, r13d",
    "4: dec r12",
    "jnz 2b",
    "3: out 0x80, al",
    "jmp limen_vmm_sender",
    "limen_vmm_sender_end:",
    "limen_vmm_receiver:",
    "mov r12, [0x3008]",
    "test r12, r12",
    "jz 3f",
    "2: in al, 0x91",
    "mov esi, 0x10000",
    "mov edi, 0x60000",
    "mov rcx, [0x3000]",
    "shr rcx, 3",
    "cmp [rsi], r12",
    "jne 5f",
    "rep movsq",
    "dec r12",
    "jnz 2b",
    "3: out 0x80, al",
    "jmp limen_vmm_receiver",
    "5: hlt",
    "limen_vmm_receiver_end:",
    ".popsection",
);

unsafe extern "C" {
    static limen_vmm_sender: u8;
    static limen_vmm_sender_end: u8;
    static limen_vmm_receiver: u8;
    static limen_vmm_receiver_end: u8;
}

fn code(is_sender: bool) -> &'static [u8] {
    let (start, end) = match is_sender {
        true => (&raw const limen_vmm_sender, &raw const limen_vmm_sender_end),
        false => (&raw const limen_vmm_receiver, &raw const limen_vmm_receiver_end),
    };
    // SAFETY: labels around each of the programs in `.rodata`.
    unsafe { assembled(start, end) }
}

/// Prints ticks for each segment.
pub(super) fn all(segments: u64, samples: usize) -> Result<()> {
    raise_loopback()?;
    let samples = samples.min(5);
    for (name, streams) in [("transfer_tcp_1_out", 1), ("transfer_tcp_4_out", 4)] {
        let ticks = super::sampled(samples, || tcp_out(streams, segments))?;
        println!("{name} {}", ticks / segments);
    }
    let ticks = super::sampled(samples, || tcp_in(segments))?;
    println!("transfer_tcp_1_in {}", ticks / segments);
    for (name, streams) in [("transfer_udp_1_out", 1), ("transfer_udp_4_out", 4)] {
        let ticks = super::sampled(samples, || udp_out(streams, segments))?;
        println!("{name} {}", ticks / segments);
    }
    Ok(())
}

/// Where this is the only program, nobody has switched the interface on.
fn raise_loopback() -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|error| format!("socket: {error}"))?;
    // SAFETY: a structure of numbers and a union of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as i8, b'o' as i8]);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the kernel reads and writes the structure, which is this function's.
    unsafe {
        libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut request);
        let up = libc::IFF_UP as i16;
        if request.ifr_ifru.ifru_flags & up == 0 {
            request.ifr_ifru.ifru_flags |= up;
            let done = libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw mut request);
            return ensure(done == 0, || "the loopback interface is down".into());
        }
    }
    Ok(())
}

/// What the guest wants of its VMM.
enum Kick {
    /// This stream's buffer is full.
    Ready(usize),
    Wanted,
    Done,
}

struct Machine {
    guest: Guest,
    bytes: usize,
}

impl Machine {
    fn new(is_sender: bool, bytes: usize, streams: usize, segments: u64) -> Result<Machine> {
        let guest = Guest::long(code(is_sender))?;
        guest.memory.set_word(LENGTH, bytes as u64);
        guest.memory.set_word(STREAMS, streams as u64);
        guest.memory.set_word(SEGMENTS, 0);
        run(&guest)?;
        guest.memory.set_word(SEGMENTS, segments);
        Ok(Machine { guest, bytes })
    }

    fn next(&mut self) -> Result<Kick> {
        run(&self.guest)?;
        let (port, byte) = self.guest.port_exit()?;
        match port {
            READY => Ok(Kick::Ready(usize::from(byte).min(STREAMS_MAX - 1))),
            WANTED => Ok(Kick::Wanted),
            DONE => Ok(Kick::Done),
            _ => Err(format!("port {port:#x}")),
        }
    }

    fn segment(&self, stream: usize) -> &[u8] {
        // SAFETY: the guest, whose only CPU does not run now, is who writes there, and the borrow
        // keeps it from running.
        unsafe { self.guest.memory.bytes(BUFFERS + stream * BUFFER_BYTES, self.bytes) }
    }

    fn segment_mut(&mut self) -> &mut [u8] {
        // SAFETY: the guest does not run now, and `&mut self` keeps it and others from the buffer.
        unsafe { self.guest.memory.bytes_mut(BUFFERS, self.bytes) }
    }
}

fn told(what: &'static str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

type Work = JoinHandle<Result<()>>;

fn ended(work: Work) -> Result<()> {
    work.join().map_err(|_| "the other end panicked")?
}

/// The number a segment begins with.
fn number(segment: &[u8]) -> u64 {
    segment.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(LOOPBACK).map_err(told("bind"))?;
    let at = listener.local_addr().map_err(told("getsockname"))?;
    let ours = TcpStream::connect(at).map_err(told("connect"))?;
    let theirs = listener.accept().map_err(told("accept"))?.0;
    Ok((ours, theirs))
}

/// The segments' numbers run down, and from one of a stream to its next by the number of streams.
fn takes(segments: u64, streams: usize, stream: usize) -> impl Iterator<Item = u64> {
    (1..=segments).rev().skip(stream).step_by(streams)
}

fn tcp_out(streams: usize, segments: u64) -> Result<u64> {
    let mut machine = Machine::new(true, TCP_BYTES, streams, segments)?;
    let mut ours = Vec::new();
    let mut others: Vec<Work> = Vec::new();
    for stream in 0..streams {
        let (our, mut their) = pair()?;
        ours.push(our);
        others.push(std::thread::spawn(move || {
            let mut segment = vec![0; TCP_BYTES];
            for wanted in takes(segments, streams, stream) {
                their.read_exact(&mut segment).map_err(told("read"))?;
                ensure(number(&segment) == wanted, || format!("segment {wanted} is another"))?;
            }
            Ok(())
        }));
    }
    let start = rdtsc();
    while let Kick::Ready(stream) = machine.next()? {
        ours[stream].write_all(machine.segment(stream)).map_err(told("write"))?;
    }
    others.into_iter().try_for_each(ended)?;
    Ok(rdtsc() - start)
}

fn tcp_in(segments: u64) -> Result<u64> {
    let mut machine = Machine::new(false, TCP_BYTES, 1, segments)?;
    let (mut ours, mut theirs) = pair()?;
    let start = rdtsc();
    let other: Work = std::thread::spawn(move || {
        let mut segment = vec![0; TCP_BYTES];
        for number in takes(segments, 1, 0) {
            segment[..8].copy_from_slice(&number.to_le_bytes());
            theirs.write_all(&segment).map_err(told("write"))?;
        }
        Ok(())
    });
    let mut passed = 0;
    while let Kick::Wanted = machine.next()? {
        ours.read_exact(machine.segment_mut()).map_err(told("read"))?;
        passed += 1;
    }
    ended(other)?;
    let ticks = rdtsc() - start;
    ensure(passed == segments, || format!("{passed} segments, not {segments}")).map(|()| ticks)
}

/// The other end of a datagram socket, which says each half window that it is there.
fn udp_receiver(socket: UdpSocket, numbers: Vec<u64>, credit: Sender<()>) -> Work {
    std::thread::spawn(move || {
        let mut datagram = [0; UDP_BYTES];
        for (n, wanted) in numbers.into_iter().enumerate() {
            let bytes = socket.recv(&mut datagram).map_err(told("recv"))?;
            let is_it = bytes == UDP_BYTES && number(&datagram) == wanted;
            ensure(is_it, || format!("datagram {wanted} is another"))?;
            if (n as u64 + 1).is_multiple_of(WINDOW / 2) && credit.send(()).is_err() {
                break;
            }
        }
        Ok(())
    })
}

fn udp_out(streams: usize, segments: u64) -> Result<u64> {
    let mut machine = Machine::new(true, UDP_BYTES, streams, segments)?;
    let mut ours: Vec<(UdpSocket, Receiver<()>, u64)> = Vec::new();
    let mut others = Vec::new();
    for stream in 0..streams {
        let (our, their) = (UdpSocket::bind(LOOPBACK), UdpSocket::bind(LOOPBACK));
        let (our, their) = (our.map_err(told("bind"))?, their.map_err(told("bind"))?);
        our.connect(their.local_addr().map_err(told("getsockname"))?).map_err(told("connect"))?;
        let (sender, receiver) = channel();
        ours.push((our, receiver, 0));
        others.push(udp_receiver(their, takes(segments, streams, stream).collect(), sender));
    }
    let start = rdtsc();
    while let Kick::Ready(stream) = machine.next()? {
        let (socket, credit, sent) = &mut ours[stream];
        if *sent >= WINDOW && sent.is_multiple_of(WINDOW / 2) {
            credit.recv().map_err(|_| "the other end is gone")?;
        }
        socket.send(machine.segment(stream)).map_err(told("send"))?;
        *sent += 1;
    }
    others.into_iter().try_for_each(ended)?;
    Ok(rdtsc() - start)
}
