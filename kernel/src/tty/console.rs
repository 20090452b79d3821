//! The console: the terminal on the host, reached through the port for standard input and output.
//!
//! A kernel thread reads the port and types what comes. When the host closes its end, the
//! terminal is hung up.

use alloc::sync::Arc;

use abi::{Errno, Result};
use machine::sync::Once;

use super::{CHUNK, Screen, Tty, WinSize, job, pty};
use crate::base::io::Sink;
use crate::drivers::Port;
use crate::process::Pid;
use crate::vfs::chrdev::{self as special, CharDriver};
use crate::vfs::{FdTable, FileOps, Inode};

static CONSOLE: Once<Arc<Tty>> = Once::new();

/// Makes the console on the port to the host, and starts its keyboard. ENOMEM.
pub fn start(window: WinSize) -> Result<()> {
    let port = crate::drivers::console::console()?.stdio();
    let device = special::make_device(job::TTY_MAJOR, 1);
    let tty = CONSOLE.call_once(|| Tty::new(Screen::Port(port), device));
    tty.set_window(window);
    crate::process::spawn_kernel("console", move || keyboard(tty, port))?;
    Ok(())
}

/// Reads the port for ever.
fn keyboard(tty: &'static Tty, port: &'static Port) {
    let mut chunk = [0; CHUNK];
    loop {
        let len = match port.read(&mut Sink::kernel(&mut chunk), false) {
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
