//! The console: the terminal on the host, reached through the port for standard input and output.
//!
//! A kernel thread reads the port and types what comes. When the host closes its end, the
//! terminal is hung up.
//!
//! Programs that are started from outside (`boot/sessions.rs`) have terminals of the same kind, one
//! for each session that is under way: /dev/hvcN (Linux's list of devices, 229 char).

use alloc::sync::Arc;

use abi::{Errno, Result};
use formats::ports::EXEC_SESSIONS;
use machine::sync::{Once, SpinLock};

use super::{CHUNK, Screen, Tty, WinSize, job, pty};
use crate::base::io::Sink;
use crate::drivers::Port;
use crate::drivers::chrdev::{self, CharDriver};
use crate::process::Pid;
use crate::vfs::{FdTable, FileOps, Inode};

static CONSOLE: Once<Arc<Tty>> = Once::new();

/// Makes the console on the port to the host, and starts its keyboard. ENOMEM.
pub fn start(window: WinSize) -> Result<()> {
    let port = crate::drivers::console::console()?.stdio();
    let device = chrdev::make_device(job::TTY_MAJOR, 1);
    let owner = port.owner();
    let tty = CONSOLE.call_once(|| Tty::new(Screen::Port(port, owner), device)).clone();
    tty.set_window(window);
    crate::process::spawn_kernel("console", move || keyboard(&tty, port, owner))?;
    Ok(())
}

/// Major number of sessions' terminals.
pub(super) const SESSION_MAJOR: u32 = 229;

/// The terminals of sessions that are under way and have one.
static SESSIONS: [SpinLock<Option<Arc<Tty>>>; EXEC_SESSIONS as usize] =
    [const { SpinLock::new(None) }; EXEC_SESSIONS as usize];

/// The terminal of a session, until this is dropped: then it is hung up.
pub struct SessionTerminal {
    tty: Arc<Tty>,
    number: u32,
}

impl SessionTerminal {
    /// Makes the terminal of session `number` on its port, and starts its keyboard. ENOMEM.
    pub fn start(number: u32, port: &'static Port, window: WinSize) -> Result<Self> {
        let owner = port.owner();
        let device = chrdev::make_device(SESSION_MAJOR, number);
        let tty = Tty::new(Screen::Port(port, owner), device);
        tty.set_window(window);
        let typed = tty.clone();
        crate::process::spawn_kernel("session-keys", move || keyboard(&typed, port, owner))?;
        if let Some(slot) = SESSIONS.get(number as usize) {
            *slot.lock() = Some(tty.clone());
        }
        Ok(Self { tty, number })
    }

    /// The window has this size now.
    pub fn set_window(&self, window: WinSize) {
        self.tty.set_window(window);
    }

    /// It controls the session of this process, whose program is about to start.
    pub fn control(&self, leader: Pid) {
        job::set_controlling(&self.tty, leader, leader);
    }
}

impl Drop for SessionTerminal {
    fn drop(&mut self) {
        if let Some(slot) = SESSIONS.get(self.number as usize) {
            let old = slot.lock().take();
            drop(old);
        }
        self.tty.hang_up();
    }
}

/// /dev/hvcN. ENXIO if no session of that number has a terminal.
pub(super) struct SessionDriver;

impl CharDriver for SessionDriver {
    fn open(&self, node: Arc<dyn Inode>, device: u64, flags: u32) -> Result<Arc<dyn FileOps>> {
        let slot = SESSIONS.get(chrdev::minor(device) as usize).ok_or(Errno::ENXIO)?;
        let tty = slot.lock().clone().ok_or(Errno::ENXIO)?;
        pty::open_program_side(&tty, node, flags)
    }
}

/// Reads the port until its end.
fn keyboard(tty: &Tty, port: &'static Port, owner: u64) {
    let mut chunk = [0; CHUNK];
    loop {
        let len = match port.read_as(owner, &mut Sink::kernel(&mut chunk), false) {
            Ok(len) if len > 0 => len,
            // The end, or a broken device.
            _ => break,
        };
        let mut done = 0;
        while done < len {
            done += tty.type_in(&chunk[done..len]);
            if done < len {
                tty.keyboard.wait_uninterruptible(|| {
                    (!tty.state.lock().discipline.is_full()).then_some(())
                });
            }
        }
    }
    tty.hang_up();
}

/// Opens the console through a node. ENODEV if there is none.
pub fn open(node: Arc<dyn Inode>, flags: u32) -> Result<Arc<dyn FileOps>> {
    let tty = CONSOLE.get().ok_or(Errno::ENODEV)?;
    pty::open_program_side(tty, node, flags)
}

/// The first program starts: if one of its descriptors is the console, that controls its session.
pub fn first_program(pid: Pid, files: &FdTable) {
    let Some(tty) = CONSOLE.get() else { return };
    let is_console = |fd| {
        files.get(fd).is_ok_and(|file| pty::of(&file).is_some_and(|its| Arc::ptr_eq(its, tty)))
    };
    if (0..3).any(is_console) {
        job::set_controlling(tty, pid, pid);
    }
}

/// The host's window has another size.
pub fn window_changed(rows: u16, cols: u16) {
    if let Some(tty) = CONSOLE.get() {
        tty.set_window(WinSize { rows, cols, ..WinSize::default() });
    }
}

/// /dev/console.
pub(super) struct ConsoleDriver;

impl CharDriver for ConsoleDriver {
    fn open(&self, node: Arc<dyn Inode>, _device: u64, flags: u32) -> Result<Arc<dyn FileOps>> {
        open(node, flags | abi::general::O_NOCTTY)
    }
}
