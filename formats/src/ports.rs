//! Names and numbers of the devices that host and guest agree on.
//!
//! One virtio-serial device carries three ports (virtio 1.2, section 5.3, with
//! `VIRTIO_CONSOLE_F_MULTIPORT`). The guest finds a port by the name that the device announces
//! (`VIRTIO_CONSOLE_PORT_NAME`); the numbers are fixed as well so that a guest may skip waiting
//! for the names. The device takes data for a port only after the guest sent
//! `VIRTIO_CONSOLE_PORT_READY` and then `VIRTIO_CONSOLE_PORT_OPEN` (value 1) for it, and throws
//! away what the guest writes to a port whose host side the device has not reported open. Before
//! the guest ends the VM it waits until the device gave back every output buffer: then the bytes
//! are in the host's socket. Neighbours: `cli/src/run/qemu.rs` makes the devices, the kernel's
//! drivers look for them.

/// Port number of the control channel ([`crate::control`]).
pub const CONTROL_PORT_NR: u32 = 1;
/// Port name of the control channel.
pub const CONTROL_PORT_NAME: &str = "limen.control";
/// Port number of standard input (to the guest) and standard output (from it).
pub const STDIO_PORT_NR: u32 = 2;
/// Port name of standard input and output.
pub const STDIO_PORT_NAME: &str = "limen.stdio";
/// Port number of standard error (from the guest only).
pub const STDERR_PORT_NR: u32 = 3;
/// Port name of standard error.
pub const STDERR_PORT_NAME: &str = "limen.stderr";
/// `max_ports` of the virtio-serial device.
pub const MAX_PORTS: u32 = 8;

/// Programs that can be started from outside at the same time (`limen exec`), in a VM that offers
/// it: its device has [`EXEC_MAX_PORTS`].
pub const EXEC_SESSIONS: u32 = 4;
/// `max_ports` of a device with ports for sessions.
pub const EXEC_MAX_PORTS: u32 = 16;
/// What the three ports of a session are for, in the order of their numbers.
pub const EXEC_PORTS: [&str; 3] = ["control", "stdio", "stderr"];
const EXEC_FIRST_NR: u32 = 4;

/// The port numbers of a session, in the order of [`EXEC_PORTS`]. They are what the program's own
/// three are, but come and go with whoever is connected to them: the guest says
/// [`crate::control::ToHost::Ready`] to each, and what it says before that was for another one.
#[must_use]
pub const fn exec_ports(session: u32) -> [u32; 3] {
    let first = EXEC_FIRST_NR + 3 * session;
    [first, first + 1, first + 2]
}

/// Mount tag of the live root (virtio-9p: `tag` in the configuration space).
pub const ROOT_TAG: &str = "root";
/// Prefix of the mount tags of shared writable folders: `rw0`, `rw1`, ...
pub const RW_TAG_PREFIX: &str = "rw";
/// Most writable shares in one VM.
pub const RW_SHARES_MAX: usize = 8;

/// I/O port of isa-debug-exit. Writing `v` ends QEMU with status `(v << 1) | 1`; the status says
/// nothing beyond that, the control channel's last line does.
pub const DEBUG_EXIT_PORT: u16 = 0xf4;

/// Path, inside the initramfs, of the boot configuration ([`crate::boot_config`]).
pub const CONFIG_PATH: &str = ".limen/config";

/// What the kernel log's panic line begins with. Backtrace lines `  #N 0xffffffff8xxxxxxx` follow.
pub const PANIC_PREFIX: &str = "limen: panic:";
