//! Terminals (tty(4), termios(3), pty(7), credentials(7) on sessions).
//!
//! Reading order: `termios` and `discipline` (pure: what bytes become), this file (a terminal:
//! input, output, waiting), `job` (sessions and signals), `control` (ioctls), then the two kinds:
//! `pty` with its file system `devpts`, and `console`.
//!
//! Locks: a terminal's `state` is a spin lock: bytes move in and out of it through small buffers
//! on the stack, and signals are sent after it is released. `screen_order` is taken before it.

pub mod console;
mod control;
pub mod devpts;
pub mod discipline;
pub mod job;
pub mod pty;
pub mod termios;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use abi::{Errno, Result, general as raw};
use formats::ports::EXEC_SESSIONS;
use machine::sync::SpinLock;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitError, WaitQueue};
use crate::base::time::{Deadline, NS_PER_SEC};
use crate::drivers::Port;
use crate::drivers::chrdev::CharDevices;
use crate::process::Pid;

use discipline::{Discipline, Event};

/// Output of a pseudo terminal that waits for its master: no write begins above this.
const OUTPUT_MAX: usize = 16 << 10;
/// Bytes moved at once.
const CHUNK: usize = 512;
/// VTIME's unit: tenths of a second.
const VTIME_NS: u64 = 100_000_000;

/// `struct winsize` (ioctl_tty(2)).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default, PartialEq, Eq,
)]
#[repr(C)]
#[expect(missing_docs, reason = "ioctl_tty(2)")]
pub struct WinSize {
    pub rows: u16,
    pub cols: u16,
    pub xpixel: u16,
    pub ypixel: u16,
}

/// Where output goes.
enum Screen {
    /// To whoever holds the master.
    Master,
    /// To the host, as long as the port belongs to whom it did.
    Port(&'static Port, u64),
}

#[derive(Default)]
struct TtyState {
    discipline: Discipline,
    window: WinSize,
    /// The session it controls; 0: none.
    session: Pid,
    /// The process group that may read and that gets signals.
    foreground: Pid,
    /// Nobody is at the keyboard any more.
    is_hung_up: bool,
    /// Ctrl-S or TCOOFF.
    is_stopped: bool,
    /// Output for the master.
    output: VecDeque<u8>,
    /// TIOCPKT.
    packet_mode: bool,
    /// The slave cannot be opened yet (TIOCSPTLCK).
    is_locked: bool,
    /// The slave has been open at least once.
    was_open: bool,
}

/// A terminal.
pub struct Tty {
    state: SpinLock<TtyState>,
    /// Programs that wait for input.
    readers: Arc<WaitQueue>,
    /// Programs that wait for room on the screen.
    writers: Arc<WaitQueue>,
    /// The master's writers, who wait for room in the input.
    keyboard: Arc<WaitQueue>,
    /// The master's readers, who wait for output.
    master_queue: Arc<WaitQueue>,
    screen: Screen,
    screen_order: Mutex<()>,
    /// Device number (makedev(3)).
    device: u64,
    /// Open files of the program's side.
    open_count: AtomicU32,
}

impl Tty {
    fn new(screen: Screen, device: u64) -> Arc<Tty> {
        let queue = || Arc::new(WaitQueue::new());
        Arc::new(Tty {
            state: SpinLock::new(TtyState::default()),
            readers: queue(),
            writers: queue(),
            keyboard: queue(),
            master_queue: queue(),
            screen,
            screen_order: Mutex::new(()),
            device,
            open_count: AtomicU32::new(0),
        })
    }

    /// Its device number, for /proc/PID/stat.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The foreground process group.
    pub fn foreground(&self) -> Pid {
        self.state.lock().foreground
    }

    // --------------------------------------------------------------------------------------------
    // The program's side

    /// Reads as termios(3) says: a line, or as many bytes as VMIN and VTIME ask for.
    fn read(&self, sink: &mut Sink<'_>, nonblocking: bool) -> Result<usize> {
        job::check_background(self, raw::SIGTTIN)?;
        if sink.left() == 0 {
            return Ok(0);
        }
        let (is_canonical, min, time) = {
            let state = self.state.lock();
            let termios = state.discipline.termios();
            let cc = |index: u32| termios.cc[index as usize];
            (termios.is_canonical(), cc(raw::VMIN), cc(raw::VTIME))
        };
        let wait_ns = u64::from(time) * VTIME_NS;
        let deadline = (wait_ns > 0 && min == 0).then(|| Deadline::after_ns(wait_ns));
        let may_be_empty = !is_canonical && min == 0;
        let wanted = if is_canonical { 1 } else { usize::from(min).min(sink.left()).max(1) };
        let mut done = 0;
        loop {
            // After the first byte VTIME runs between bytes.
            let deadline =
                if done > 0 && wait_ns > 0 { Some(Deadline::after_ns(wait_ns)) } else { deadline };
            let nonblocking = nonblocking || may_be_empty && wait_ns == 0;
            match self.wait_for_input(nonblocking, deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(done),
                Err(_) if done > 0 => return Ok(done),
                Err(Errno::EAGAIN) if may_be_empty => return Ok(0),
                Err(error) => return Err(error),
            }
            let bytes = self.state.lock().discipline.read(sink.left().min(CHUNK));
            let whole = bytes.len();
            self.keyboard.wake_one(events::WRITABLE);
            done += sink.put(&bytes)?;
            let more = is_canonical && whole == CHUNK && bytes.last() != Some(&b'\n');
            if !more && (is_canonical || done >= wanted && self.is_drained(sink)) {
                return Ok(done);
            }
        }
    }

    /// Whether a raw read that has enough should end: nothing is left, or nothing fits.
    fn is_drained(&self, sink: &Sink<'_>) -> bool {
        sink.left() == 0 || self.state.lock().discipline.available().is_none()
    }

    /// Waits for input; false: the terminal is hung up.
    fn wait_for_input(&self, nonblocking: bool, deadline: Option<Deadline>) -> Result<bool> {
        let ready = || {
            let state = self.state.lock();
            if state.discipline.available().is_some() {
                Some(true)
            } else {
                state.is_hung_up.then_some(false)
            }
        };
        if nonblocking {
            return ready().ok_or(Errno::EAGAIN);
        }
        match self.readers.wait_deadline(Sleep::Interruptible, deadline, ready) {
            Ok(has_input) => Ok(has_input),
            Err(WaitError::TimedOut) => Err(Errno::EAGAIN),
            Err(WaitError::Interrupted) => Err(Errno::ERESTARTSYS),
        }
    }

    fn write(&self, source: &mut Source<'_>, nonblocking: bool) -> Result<usize> {
        if self.state.lock().discipline.termios().local(raw::TOSTOP) {
            job::check_background(self, raw::SIGTTOU)?;
        }
        let mut done = 0;
        while source.left() > 0 {
            match self.write_chunk(source, nonblocking) {
                Ok(len) => done += len,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_chunk(&self, source: &mut Source<'_>, nonblocking: bool) -> Result<usize> {
        let ready = || {
            let state = self.state.lock();
            if state.is_hung_up {
                return Some(Err(Errno::EIO));
            }
            let has_room = state.output.len() < OUTPUT_MAX && !state.is_stopped;
            has_room.then_some(Ok(()))
        };
        if nonblocking {
            ready().unwrap_or(Err(Errno::EAGAIN))?;
        } else {
            self.writers.wait(ready)??;
        }
        let mut chunk = [0; CHUNK];
        let len = source.take(&mut chunk)?;
        let order = self.screen_order.lock();
        let mut out = Vec::with_capacity(2 * len);
        {
            let mut state = self.state.lock();
            for &byte in &chunk[..len] {
                state.discipline.put(byte, &mut out);
            }
        }
        self.show(&out);
        drop(order);
        Ok(len)
    }

    /// Sends finished output to the screen. `screen_order` is held.
    fn show(&self, bytes: &[u8]) {
        match self.screen {
            Screen::Master => {
                self.state.lock().output.extend(bytes);
                self.master_queue.wake_one(events::READABLE);
            }
            Screen::Port(port, owner) => {
                let mut source = Source::kernel(bytes);
                // A signal may end the port's wait; what was taken must come out all the same. If
                // the host is gone, nobody sees the output.
                while source.left() > 0 {
                    match port.write_as(owner, &mut source, false) {
                        Ok(_) => {}
                        // Sleep in a way that the signal does not end, then try again.
                        Err(Errno::ERESTARTSYS) if !job::is_dying() => {
                            let _ = port.flush(NS_PER_SEC);
                        }
                        Err(_) => break,
                    }
                }
            }
        }
    }

    /// Readiness for programs.
    fn poll(&self, table: &mut PollTable) -> u32 {
        table.wait_on(&self.readers);
        table.wait_on(&self.writers);
        let state = self.state.lock();
        let termios = state.discipline.termios();
        let available = state.discipline.available();
        let enough = if termios.is_canonical() || termios.cc[raw::VTIME as usize] > 0 {
            1
        } else {
            usize::from(termios.cc[raw::VMIN as usize]).max(1)
        };
        let is_line = termios.is_canonical() && available.is_some();
        let mut mask = 0;
        if is_line || available.is_some_and(|len| len >= enough) || state.is_hung_up {
            mask |= events::READABLE;
        }
        if state.is_hung_up {
            mask |= events::HUP | events::ERR;
        }
        if state.output.len() < OUTPUT_MAX && !state.is_stopped {
            mask |= events::WRITABLE;
        }
        mask
    }

    // --------------------------------------------------------------------------------------------
    // The other side

    /// Input from the keyboard. Returns how many bytes were taken; fewer if nobody reads.
    fn type_in(&self, bytes: &[u8]) -> usize {
        let mut signals = Vec::new();
        let mut echo = Vec::new();
        let order = self.screen_order.lock();
        let mut done = 0;
        let (foreground, has_input, flow) = {
            let mut state = self.state.lock();
            let mut flow = None;
            for &byte in bytes {
                if state.discipline.is_full() {
                    break;
                }
                done += 1;
                match state.discipline.input(byte, &mut echo) {
                    Some(Event::Signal(signal)) => signals.push(signal),
                    Some(Event::Flow(goes_on)) => flow = Some(goes_on),
                    None => {}
                }
            }
            if let Some(goes_on) = flow {
                state.is_stopped = !goes_on;
            }
            (state.foreground, state.discipline.available().is_some(), flow)
        };
        if !echo.is_empty() {
            self.show(&echo);
        }
        drop(order);
        if has_input {
            self.readers.wake_one(events::READABLE);
        }
        if flow == Some(true) {
            self.writers.wake_all(events::WRITABLE);
        }
        for signal in signals {
            job::signal_group(foreground, signal);
        }
        done
    }

    /// Nobody is at the keyboard any more: reads end, writes fail, the session hears SIGHUP.
    fn hang_up(&self) {
        self.state.lock().is_hung_up = true;
        let all = events::READABLE | events::WRITABLE | events::HUP | events::ERR;
        self.readers.wake_all(all);
        self.writers.wake_all(all);
        job::hang_up(self);
    }

    fn window(&self) -> WinSize {
        self.state.lock().window
    }

    /// Changes the window's size; the foreground hears SIGWINCH if it is another one.
    pub fn set_window(&self, window: WinSize) {
        let foreground = {
            let mut state = self.state.lock();
            if state.window == window {
                return;
            }
            state.window = window;
            state.foreground
        };
        job::signal_group(foreground, raw::SIGWINCH);
    }
}

/// /dev/tty, /dev/console, /dev/ptmx, /dev/pts/N, /dev/hvcN.
pub const DEVICES: &[CharDevices] = &[
    CharDevices { major: job::TTY_MAJOR, first: 0, count: 1, driver: &job::CurrentTty },
    CharDevices { major: job::TTY_MAJOR, first: 1, count: 1, driver: &console::ConsoleDriver },
    CharDevices { major: job::TTY_MAJOR, first: 2, count: 1, driver: &pty::MasterDriver },
    CharDevices {
        major: console::SESSION_MAJOR,
        first: 0,
        count: EXEC_SESSIONS,
        driver: &console::SessionDriver,
    },
    CharDevices {
        major: pty::SLAVE_MAJOR,
        first: 0,
        count: pty::PTYS_MAX,
        driver: &pty::SlaveDriver,
    },
];
