//! The QEMU command line: which devices the guest sees, and what they are connected to.
//!
//! Why it is hard: host and guest must agree on every device (see `formats::ports`), the two
//! machine models spell the same device differently, and the same VM must come out as a command
//! that a user can paste into a shell (`--dry-run`), where no file descriptor is inherited.
//!
//! Neighbours: `plan.rs` fills in [`Qemu`], `vm.rs` starts the command.

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use formats::ports;

use crate::args::{Cache, MachineModel};
use crate::{Error, usage};

/// Names another QEMU, for instance one that was built by hand.
const QEMU_VARIABLE: &str = "LIMEN_QEMU";
const QEMU_DEFAULT: &str = "qemu-system-x86_64";

/// What QEMU itself may do once it runs: no new processes, no privileges (seccomp filters).
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Entries of each queue of the device that serves the root.
const SHARE_QUEUE: u16 = 512;

/// An accelerator that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    Kvm,
    Tcg,
}

/// A virtual machine, without what it is connected to.
#[derive(Clone, Debug)]
pub(crate) struct Qemu {
    pub(crate) kernel: PathBuf,
    pub(crate) append: String,
    pub(crate) machine: MachineModel,
    pub(crate) accel: Accel,
    pub(crate) cpu: Option<String>,
    pub(crate) smp: u8,
    pub(crate) memory_mib: u64,
    /// TCP port of the debugger stub; the VM waits for it.
    pub(crate) gdb: Option<u16>,
    /// The folder of the host that is the guest's root.
    pub(crate) root: Option<SharedRoot>,
    /// Shared folders on the host, in the order of their tags.
    pub(crate) rw: Vec<PathBuf>,
}

/// A folder of the host that is the guest's root, read-only.
#[derive(Clone, Debug)]
pub(crate) struct SharedRoot {
    pub(crate) path: PathBuf,
    /// Owners and modes are in QEMU's `mapped-file` form (`crate::oci`), not the files' own.
    pub(crate) is_mapped: bool,
    /// This program serves it (`crate::share`), and it is believed so long; otherwise QEMU does.
    pub(crate) served: Option<Cache>,
}

/// What the ports and the initramfs are connected to.
#[derive(Clone, Debug)]
pub(crate) enum Wires {
    /// Inherited file descriptors: sockets, and a memfd with the initramfs.
    Inherited {
        control: RawFd,
        stdio: RawFd,
        stderr: RawFd,
        kernel_log: RawFd,
        initramfs: RawFd,
        /// Who serves the root, if that is not QEMU.
        share: Option<RawFd>,
    },
    /// The files of whoever runs the command: stdio is the program's, all else goes to stderr.
    Pasted { initramfs: PathBuf },
    /// The same for a VM that goes on alone, but what comes for the guest on the control channel is
    /// read from a FIFO beside its file; and with sockets for sessions.
    Detached { initramfs: RawFd, dir: PathBuf },
    /// A file per port in this folder, named by [`port_file`]: nobody answers the guest.
    Files { initramfs: PathBuf, dir: PathBuf },
}

/// MiB of translated code that QEMU keeps in emulation, where it would take 1 GiB: it keeps code by
/// its virtual address, so that each start of a program translates libc anew, and a page that has
/// gathered much of it takes seconds to be written to once it is used for something else.
const TRANSLATED_MIB: u32 = 128;

/// How QEMU emulates a machine: CPUs run side by side where there are several.
pub(crate) fn emulation(smp: u8) -> String {
    let threads = if smp > 1 { "multi" } else { "single" };
    format!("tcg,thread={threads},tb-size={TRANSLATED_MIB}")
}

/// Where [`Wires::Files`] puts what a port says.
pub(crate) fn port_file(dir: &Path, port: &str) -> PathBuf {
    dir.join(port).with_extension("log")
}

impl Wires {
    /// The socket of whoever serves the root, if that is not QEMU.
    fn share(&self) -> Option<RawFd> {
        match self {
            Self::Inherited { share, .. } => *share,
            _ => None,
        }
    }
}

impl Qemu {
    /// The whole command, program first.
    pub(crate) fn command(&self, wires: &Wires) -> Vec<OsString> {
        let mut line = Line(vec![program()]);
        line.add("-no-user-config").add("-nodefaults").add("-no-reboot");
        line.option("-display", "none").option("-sandbox", SANDBOX);
        self.machine(&mut line, wires);
        line.option("-kernel", &self.kernel).option("-append", &self.append);
        self.wires(&mut line, wires);
        self.shares(&mut line, wires);
        line.option("-device", format!("virtio-rng-{}", self.bus()));
        let exit = format!("isa-debug-exit,iobase={:#x},iosize=4", ports::DEBUG_EXIT_PORT);
        line.option("-device", exit);
        if let Some(port) = self.gdb {
            line.option("-gdb", format!("tcp:127.0.0.1:{port}")).add("-S");
        }
        line.0
    }

    /// Whether QEMU itself opens folders of the host whose owners matter.
    pub(crate) fn opens_folders(&self, wires: &Wires) -> bool {
        let root = self.root.as_ref().filter(|_| wires.share().is_none());
        root.is_some_and(|root| !root.is_mapped) || !self.rw.is_empty()
    }

    fn machine(&self, line: &mut Line, wires: &Wires) {
        let machine = match self.machine {
            MachineModel::Microvm => {
                "microvm,x-option-roms=off,pit=off,pic=off,rtc=on,isa-serial=on,acpi=on,pcie=off"
            }
            MachineModel::Q35 => "q35,usb=off,sata=off,smbus=off,vmport=off",
        };
        line.option("-M", machine);
        // virtio 1.x registers, as on PCI, and not those of the drafts before it.
        line.option("-global", "virtio-mmio.force-legacy=false");
        let (accel, cpu) = match self.accel {
            Accel::Kvm => ("kvm".to_owned(), "host"),
            Accel::Tcg => (emulation(self.smp), "max"),
        };
        line.option("-accel", accel).option("-cpu", self.cpu.as_deref().unwrap_or(cpu));
        line.option("-smp", self.smp.to_string()).option("-m", format!("{}M", self.memory_mib));
        if wires.share().is_some() {
            let [memory, machine] = shared_memory(self.memory_mib);
            line.option("-object", memory).option("-machine", machine);
        }
    }

    fn wires(&self, line: &mut Line, wires: &Wires) {
        let (control, stdio, stderr, kernel_log) = match wires {
            Wires::Inherited { control, stdio, stderr, kernel_log, initramfs, .. } => {
                line.option("-initrd", format!("/dev/fd/{initramfs}"));
                let socket = |id: &str, fd| format!("socket,id={id},fd={fd}");
                (
                    socket("control", *control),
                    socket("stdio", *stdio),
                    socket("stderr", *stderr),
                    socket("klog", *kernel_log),
                )
            }
            Wires::Pasted { initramfs } => {
                line.option("-initrd", initramfs);
                let to_stderr = |id: &str| format!("file,id={id},path=/dev/stderr,append=on");
                (
                    to_stderr("control"),
                    "stdio,id=stdio,signal=on".to_owned(),
                    to_stderr("stderr"),
                    to_stderr("klog"),
                )
            }
            Wires::Files { initramfs, dir } => {
                line.option("-initrd", initramfs);
                let to_file = |id: &str| to_file(dir, id);
                (to_file("control"), to_file("stdio"), to_file("stderr"), to_file("klog"))
            }
            Wires::Detached { initramfs, dir } => {
                line.option("-initrd", format!("/dev/fd/{initramfs}"));
                let (pipe, file) = (in_option(&dir.join("control")), port_file(dir, "control"));
                let control = format!("pipe,id=control,path={pipe},logfile={}", in_option(&file));
                let to_file = |id: &str| to_file(dir, id);
                (control, to_file("stdio"), to_file("stderr"), to_file("klog"))
            }
        };
        line.option("-chardev", kernel_log).option("-serial", "chardev:klog");
        let bus = self.bus();
        let max_ports = match wires {
            Wires::Detached { .. } => ports::EXEC_MAX_PORTS,
            _ => ports::MAX_PORTS,
        };
        line.option("-device", format!("virtio-serial-{bus},max_ports={max_ports}"));
        for (id, chardev, number, name) in [
            ("control", control, ports::CONTROL_PORT_NR, ports::CONTROL_PORT_NAME),
            ("stdio", stdio, ports::STDIO_PORT_NR, ports::STDIO_PORT_NAME),
            ("stderr", stderr, ports::STDERR_PORT_NR, ports::STDERR_PORT_NAME),
        ] {
            line.option("-chardev", chardev);
            let port = format!("virtserialport,chardev={id},nr={number},name={name}");
            line.option("-device", port);
        }
        if let Wires::Detached { dir, .. } = wires {
            sessions(line, dir);
        }
    }

    fn shares(&self, line: &mut Line, wires: &Wires) {
        let is_mapped = self.root.as_ref().is_some_and(|root| root.is_mapped);
        if let Some(fd) = wires.share() {
            let [socket, device] = shared_root(self.machine, self.smp, fd);
            line.option("-chardev", socket).option("-device", device);
        }
        let by_qemu = self.root.iter().filter(|_| wires.share().is_none());
        let root = by_qemu.map(|root| (ports::ROOT_TAG.to_owned(), &root.path, true));
        let rw = self.rw.iter().enumerate();
        let rw = rw.map(|(n, path)| (format!("{}{n}", ports::RW_TAG_PREFIX), path, false));
        for (tag, path, readonly) in root.chain(rw) {
            let mut fsdev = OsString::from(format!("local,id={tag},path="));
            fsdev.push(double_commas(path));
            let model = if readonly && is_mapped { "mapped-file" } else { "none" };
            fsdev.push(format!(",security_model={model},multidevs=remap"));
            if readonly {
                fsdev.push(",readonly=on");
            }
            line.option("-fsdev", fsdev);
            let device = format!("virtio-9p-{},fsdev={tag},mount_tag={tag}", self.bus());
            line.option("-device", device);
        }
    }

    fn bus(&self) -> &'static str {
        bus(self.machine)
    }
}

fn bus(machine: MachineModel) -> &'static str {
    match machine {
        MachineModel::Microvm => "device",
        MachineModel::Q35 => "pci",
    }
}

/// The device by which this program serves the root.
pub(crate) fn share_device(machine: MachineModel) -> String {
    format!("vhost-user-fs-{}", bus(machine))
}

/// The values of `-object` and `-machine` by which whoever serves the root writes into the guest's
/// memory.
pub(crate) fn shared_memory(mib: u64) -> [String; 2] {
    let memory = format!("memory-backend-memfd,id=memory,size={mib}M,share=on");
    [memory, "memory-backend=memory".to_owned()]
}

/// The values of `-chardev` and `-device` of the root that this program serves; `fd` is QEMU's end.
pub(crate) fn shared_root(machine: MachineModel, smp: u8, fd: RawFd) -> [String; 2] {
    let device = format!(
        "{},chardev=share,tag={},queue-size={SHARE_QUEUE},num-request-queues={}",
        share_device(machine),
        ports::ROOT_TAG,
        limen_share::queues(smp)
    );
    [format!("socket,id=share,fd={fd}"), device]
}

/// Fails, with what helps, where there is no QEMU.
pub(crate) fn ensure_there() -> Result<(), Error> {
    let program = program();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = match program.as_bytes().contains(&b'/') {
        true => Path::new(&program).is_file(),
        false => std::env::split_paths(&path).any(|folder| folder.join(&program).is_file()),
    };
    match is_there {
        true => Ok(()),
        false => Err(usage(format!(
            "{}: not found: install QEMU (Debian: apt-get install qemu-system-x86), or name it in \
             {QEMU_VARIABLE}",
            program.display()
        ))),
    }
}

/// The QEMU to run.
pub(crate) fn program() -> OsString {
    std::env::var_os(QEMU_VARIABLE).unwrap_or_else(|| QEMU_DEFAULT.into())
}

struct Line(Vec<OsString>);

impl Line {
    fn add(&mut self, word: impl AsRef<OsStr>) -> &mut Self {
        self.0.push(word.as_ref().to_owned());
        self
    }

    fn option(&mut self, name: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.add(name).add(value)
    }
}

/// Sockets for whoever starts programs in a VM that runs alone (`limen exec`).
fn sessions(line: &mut Line, dir: &Path) {
    for session in 0..ports::EXEC_SESSIONS {
        let numbers = ports::exec_ports(session);
        for (number, name) in numbers.into_iter().zip(ports::EXEC_PORTS) {
            let path = in_option(&session_socket(dir, session, name));
            let id = format!("exec{session}-{name}");
            let socket = format!("socket,id={id},path={path},server=on,wait=off");
            line.option("-chardev", socket);
            let port = format!("virtserialport,chardev={id},nr={number},name=limen.{id}");
            line.option("-device", port);
        }
    }
}

/// The socket of a session's port, in a VM's folder.
pub(crate) fn session_socket(dir: &Path, session: u32, name: &str) -> PathBuf {
    dir.join(format!("exec{session}.{name}"))
}

/// A character device that writes a port's file.
fn to_file(dir: &Path, id: &str) -> String {
    format!("file,id={id},path={}", in_option(&port_file(dir, id)))
}

/// A path inside an option of several values.
fn in_option(path: &Path) -> String {
    double_commas(path).to_string_lossy().into_owned()
}

/// QEMU's option parser takes `,,` for a comma inside a value.
fn double_commas(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes().iter();
    let doubled = bytes.flat_map(|&byte| std::iter::repeat_n(byte, 1 + usize::from(byte == b',')));
    OsString::from_vec(doubled.collect())
}

/// A command as a shell takes it back, one option per line.
pub(crate) fn shell_text(command: &[OsString]) -> String {
    let mut text = String::new();
    for (index, word) in command.iter().enumerate() {
        let is_option = word.as_bytes().first() == Some(&b'-');
        text += match (index, is_option) {
            (0, _) => "",
            (_, true) => " \\\n  ",
            (_, false) => " ",
        };
        text += &shell_word(&word.to_string_lossy());
    }
    text
}

fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+,./:@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(machine: MachineModel) -> Qemu {
        Qemu {
            kernel: "/k".into(),
            append: "a='b c'".into(),
            machine,
            accel: Accel::Tcg,
            cpu: None,
            smp: 2,
            memory_mib: 64,
            gdb: None,
            root: Some(SharedRoot { path: "/a,b".into(), is_mapped: false, served: None }),
            rw: vec!["/srv".into()],
        }
    }

    #[test]
    fn devices_follow_the_machine() {
        let wires = Wires::Pasted { initramfs: "/i".into() };
        for (machine, suffix) in [(MachineModel::Microvm, "-device"), (MachineModel::Q35, "-pci")] {
            let command = sample(machine).command(&wires);
            for kind in ["virtio-serial", "virtio-9p", "virtio-rng"] {
                let device = format!("{kind}{suffix}");
                let starts = |word: &OsString| word.to_string_lossy().starts_with(&device);
                assert!(command.iter().any(starts), "{device}");
            }
        }
    }

    #[test]
    fn only_the_root_is_read_only_and_commas_are_doubled() {
        let wires = Wires::Pasted { initramfs: "/i".into() };
        let text = shell_text(&sample(MachineModel::Microvm).command(&wires));
        assert!(text.contains("local,id=root,path=/a,,b,"));
        let read_only: Vec<_> = text.lines().filter(|l| l.contains("readonly=on")).collect();
        assert_eq!(read_only.len(), 1);
        assert!(read_only[0].contains("id=root"));
        assert!(text.contains(r"-append 'a='\''b c'\'''"));
    }

    #[test]
    fn inherited_wires_are_numbers() {
        let (control, stdio, stderr, kernel_log, initramfs, share) = (3, 4, 5, 6, 7, None);
        let wires = Wires::Inherited { control, stdio, stderr, kernel_log, initramfs, share };
        let text = shell_text(&sample(MachineModel::Q35).command(&wires));
        for part in ["id=control,fd=3", "id=stdio,fd=4", "id=klog,fd=6", "-initrd /dev/fd/7"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("vhost-user") && sample(MachineModel::Q35).opens_folders(&wires));
    }

    #[test]
    fn a_served_root_is_nothing_that_qemu_opens() {
        let (control, stdio, stderr, kernel_log, initramfs, share) = (3, 4, 5, 6, 7, Some(8));
        let wires = Wires::Inherited { control, stdio, stderr, kernel_log, initramfs, share };
        for (machine, suffix) in [(MachineModel::Microvm, "device"), (MachineModel::Q35, "pci")] {
            let mut qemu = sample(machine);
            let text = shell_text(&qemu.command(&wires));
            for part in [
                "socket,id=share,fd=8".to_owned(),
                format!("vhost-user-fs-{suffix},chardev=share,tag=root,"),
                "num-request-queues=2".to_owned(),
                "memory-backend-memfd,id=memory,size=64M,share=on".to_owned(),
            ] {
                assert!(text.contains(&part), "{part}");
            }
            assert!(!text.contains("/a,,b") && text.contains("path=/srv"), "{text}");
            assert!(qemu.opens_folders(&wires));
            qemu.rw.clear();
            assert!(!qemu.opens_folders(&wires));
        }
    }
}
