//! `limen-vmm boot`: a virtual machine that boots Limen or Linux by PVH, as unmodified VMMs on the
//! rust-vmm crates do: memory by `vm-memory`, kernels by `linux-loader`, a serial line by
//! `vm-superio`, queues by `virtio-queue`, interrupts by irqfd.
//!
//! The machine: interrupt controllers and timer in the kernel, COM1, isa-debug-exit, the keyboard
//! controller's reset, and devices on virtio-mmio that ACPI and the kernel's parameters announce
//! (`virtio_mmio.device=`, for kernels that read no AML): a console with Limen's three ports, and
//! where asked for a disk and a network card. Each CPU is a thread; all but the first wait in the
//! kernel for their INIT and SIPI. There is no firmware.
//!
//! Reading order: [`command`], [`load`], [`acpi`], [`virtio`], then the devices.

mod acpi;
mod block;
mod console;
mod load;
mod log;
mod net;
mod virtio;

use std::io::{Read as _, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, mpsc};

use kvm_bindings::{kvm_pit_config, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, GuestMemoryRegion as _};
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

use crate::machine::{Result, say};
use console::Console;
use virtio::{Device, REGISTERS_BYTES, Transport};

const COM1: u16 = 0x3f8;
const COM1_IRQ: u32 = 4;
/// Registers of the first virtio device; the others follow.
const DEVICES: u64 = 0xd000_0000;
/// Interrupt line of the first; 7 and 8 belong to others of old.
const LINES: [u32; 4] = [5, 9, 10, 11];
/// The keyboard controller's command port, and the command that resets the machine.
const KEYBOARD: (u16, u8) = (0x64, 0xfe);
const DEBUG_EXIT: u16 = formats::ports::DEBUG_EXIT_PORT;
/// Memory ends below the devices.
const MEMORY_MAX_MIB: u64 = 3072;

/// Most CPUs: what /dev/kvm gives one guest.
const CPUS_MAX: u8 = 64;

/// What was asked for.
#[derive(Debug, Default)]
struct Options {
    kernel: String,
    initrd: Option<String>,
    append: String,
    memory_mib: u64,
    cpus: u8,
    /// The file of a disk.
    disk: Option<String>,
    /// A network card, and its other end.
    has_net: bool,
    /// The serial line is standard input and output.
    is_serial: bool,
    /// All that comes over the serial line goes to standard error; else see [`log`].
    has_log: bool,
}

impl Options {
    fn parse(words: &[String]) -> Result<Options> {
        let mut options = Options { memory_mib: 128, cpus: 1, ..Options::default() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or(format!("{word}: no value"));
            match word.as_str() {
                "--kernel" => options.kernel = value()?,
                "--initrd" => options.initrd = Some(value()?),
                "--append" => options.append = value()?,
                "--memory" => {
                    let mib = value()?.parse().map_err(|_| "--memory: MiB")?;
                    options.memory_mib = mib;
                }
                "--cpus" => options.cpus = value()?.parse().map_err(|_| "--cpus: a number")?,
                "--disk" => options.disk = Some(value()?),
                "--net" => options.has_net = true,
                "--serial" => options.is_serial = true,
                "--log" => options.has_log = true,
                _ => return Err(format!("{word}: unknown")),
            }
        }
        if options.kernel.is_empty() || !(16..=MEMORY_MAX_MIB).contains(&options.memory_mib) {
            return Err("--kernel ELF is needed, and --memory from 16 to 3072".into());
        }
        if !(1..=CPUS_MAX).contains(&options.cpus) {
            return Err(format!("--cpus from 1 to {CPUS_MAX}"));
        }
        Ok(options)
    }
}

/// Boots, and ends with the status of the program in Limen, or of the machine.
pub fn command(words: &[String]) -> ExitCode {
    match Options::parse(words).and_then(|options| boot(&options)) {
        Ok(status) => ExitCode::from(status),
        Err(why) => {
            eprintln!("limen-vmm: {why}");
            ExitCode::from(126)
        }
    }
}

/// An interrupt line as the serial port pulls it.
struct Line(EventFd);

impl Trigger for Line {
    type E = std::io::Error;

    fn trigger(&self) -> std::io::Result<()> {
        self.0.write(1)
    }
}

type Com1 = Arc<Mutex<Serial<Line, vm_superio::serial::NoEvents, Box<dyn Write + Send>>>>;

/// Everything the guest reaches by exits.
struct Machine {
    com1: Com1,
    devices: Vec<Arc<Mutex<Transport>>>,
    console: Arc<console::Ends>,
}

fn eventfd() -> Result<EventFd> {
    EventFd::new(libc::EFD_NONBLOCK).map_err(|error| format!("eventfd: {error}"))
}

fn boot(options: &Options) -> Result<u8> {
    let kvm = Kvm::new().map_err(say("/dev/kvm"))?;
    let vm = kvm.create_vm().map_err(say("KVM_CREATE_VM"))?;
    vm.create_irq_chip().map_err(say("KVM_CREATE_IRQCHIP"))?;
    vm.create_pit2(kvm_pit_config::default()).map_err(say("KVM_CREATE_PIT2"))?;
    let memory = memory(&vm, options.memory_mib << 20)?;
    let line = eventfd()?;
    vm.register_irqfd(&line, COM1_IRQ).map_err(say("KVM_IRQFD"))?;
    let log = log::Kept::default();
    let out: Box<dyn Write + Send> = match (options.is_serial, options.has_log) {
        (true, _) => Box::new(std::io::stdout()),
        (false, true) => Box::new(std::io::stderr()),
        (false, false) => Box::new(log.clone()),
    };
    let com1 = Arc::new(Mutex::new(Serial::new(Line(line), out)));
    let (console, ends) = Console::new();
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(console)];
    if let Some(disk) = &options.disk {
        devices.push(Box::new(block::Block::open(disk)?));
    }
    if options.has_net {
        devices.push(Box::new(net::Net::default()));
    }
    let mut append = options.append.clone();
    let (mut transports, mut places) = (Vec::new(), Vec::new());
    for ((n, device), gsi) in devices.into_iter().enumerate().zip(LINES) {
        let line = eventfd()?;
        vm.register_irqfd(&line, gsi).map_err(say("KVM_IRQFD"))?;
        let at = DEVICES + n as u64 * REGISTERS_BYTES;
        append += &format!(" virtio_mmio.device={REGISTERS_BYTES}@{at:#x}:{gsi}");
        places.push(acpi::Virtio { address: at, bytes: REGISTERS_BYTES, line: gsi });
        transports.push(Arc::new(Mutex::new(Transport::new(device, memory.clone(), line))));
    }
    let start = load::load(&memory, &options.kernel, options.initrd.as_deref(), &append)?;
    acpi::write(&memory, options.cpus, &places)?;
    let machine = Arc::new(Machine { com1, devices: transports, console: ends });
    machine.read_input(options.is_serial);
    let result = run_cpus(&machine, cpus(&kvm, &vm, options.cpus, start)?);
    if machine.console.status().is_none() {
        log.tell();
    }
    result
}

/// All CPUs; the first begins at `start`.
fn cpus(kvm: &Kvm, vm: &VmFd, count: u8, start: u64) -> Result<Vec<VcpuFd>> {
    let make = |id: u8| {
        let cpu = vm.create_vcpu(id.into()).map_err(say("KVM_CREATE_VCPU"))?;
        load::set_features(kvm, &cpu, id, count)?;
        Ok(cpu)
    };
    let cpus = (0..count).map(make).collect::<Result<Vec<VcpuFd>>>()?;
    load::set_up(&cpus[0], start)?;
    Ok(cpus)
}

/// Runs each in a thread of its own. The machine ends with the first that does; the others' threads
/// end with the process.
fn run_cpus(machine: &Arc<Machine>, cpus: Vec<VcpuFd>) -> Result<u8> {
    let (end, ended) = mpsc::channel();
    for cpu in cpus {
        let (machine, end) = (machine.clone(), end.clone());
        // Nobody listens any more once another CPU has ended.
        std::thread::spawn(move || drop(end.send(machine.run(cpu))));
    }
    ended.recv().map_err(|_| "no CPU runs")?
}

fn memory(vm: &VmFd, bytes: u64) -> Result<GuestMemoryMmap> {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes as usize)])
        .map_err(|error| format!("memory: {error}"))?;
    for (slot, region) in memory.iter().enumerate() {
        let host = memory
            .get_host_address(region.start_addr())
            .map_err(|error| format!("memory: {error}"))?;
        let region = kvm_userspace_memory_region {
            slot: slot as u32,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: host as u64,
            flags: 0,
        };
        // SAFETY: the mapping lives as long as `memory`, which every device has a copy of.
        unsafe { vm.set_user_memory_region(region) }.map_err(say("KVM_SET_USER_MEMORY_REGION"))?;
    }
    Ok(memory)
}

impl Machine {
    /// Brings standard input to the serial line or to Limen's port, from a thread of its own.
    fn read_input(&self, is_serial: bool) {
        let (com1, ends) = (self.com1.clone(), self.console.clone());
        let console = self.devices[0].clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            loop {
                let count = std::io::stdin().read(&mut bytes).unwrap_or(0);
                if is_serial {
                    let mut left = &bytes[..count];
                    while !left.is_empty() {
                        let done = com1.lock().unwrap().enqueue_raw_bytes(left).unwrap_or(0);
                        left = &left[done..];
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                } else {
                    ends.input(&bytes[..count]);
                    console.lock().unwrap().poke();
                }
                if count == 0 {
                    return;
                }
            }
        });
    }

    fn device(&self, address: u64) -> Option<(&Mutex<Transport>, u64)> {
        let offset = address.checked_sub(DEVICES)?;
        let device = self.devices.get((offset / REGISTERS_BYTES) as usize)?;
        Some((device, offset % REGISTERS_BYTES))
    }

    fn run(&self, mut cpu: VcpuFd) -> Result<u8> {
        loop {
            match cpu.run() {
                Ok(VcpuExit::IoIn(port, data)) => self.port_in(port, data),
                Ok(VcpuExit::IoOut(port, data)) => {
                    if let Some(status) = self.port_out(port, data) {
                        return Ok(status);
                    }
                }
                Ok(VcpuExit::MmioRead(address, data)) => match self.device(address) {
                    Some((device, offset)) => device.lock().unwrap().read(offset, data),
                    None => data.fill(0xff),
                },
                Ok(VcpuExit::MmioWrite(address, data)) => {
                    if let Some((device, offset)) = self.device(address) {
                        device.lock().unwrap().write(offset, data);
                    }
                }
                // A triple fault is how machines without firmware restart.
                Ok(VcpuExit::Shutdown) => return Ok(self.console.status().unwrap_or(0)),
                Ok(VcpuExit::Intr | VcpuExit::Hlt) => {}
                Ok(other) => return Err(format!("exit {other:?}")),
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
                Err(error) => return Err(format!("KVM_RUN: {error}")),
            }
        }
    }

    fn port_in(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        if let ([byte], Some(offset @ 0..=7)) = (data, port.checked_sub(COM1)) {
            *byte = self.com1.lock().unwrap().read(offset as u8);
        }
    }

    /// The machine's end, if that is what the guest wants.
    fn port_out(&self, port: u16, data: &[u8]) -> Option<u8> {
        let &[byte, ..] = data else { return None };
        if let Some(offset @ 0..=7) = port.checked_sub(COM1) {
            // What cannot be written is lost, as on a line that nobody listens to.
            let _ = self.com1.lock().unwrap().write(offset as u8, byte);
        }
        if port == DEBUG_EXIT {
            return Some(self.console.status().unwrap_or(byte << 1 | 1));
        }
        ((port, byte) == KEYBOARD).then(|| self.console.status().unwrap_or(0))
    }
}
