//! Pseudo terminals (pty(7)): a master that a terminal emulator holds, and a slave that looks
//! like a terminal to programs.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, general as raw, ioctl};
use machine::sync::SpinLock;

use super::{CHUNK, Screen, Tty, control, devpts, job};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::user::UserPtr;
use crate::drivers::chrdev::{self, CharDriver};
use crate::vfs::{File, FileOps, Inode};

/// Major number of slaves.
pub(super) const SLAVE_MAJOR: u32 = 136;
/// Most pseudo terminals (kernel.pty.max).
pub(super) const PTYS_MAX: u32 = 4096;
/// TIOCPKT: this byte comes before data.
const PACKET_DATA: u8 = 0;

/// Slaves by number.
static PTYS: SpinLock<BTreeMap<u32, Weak<Tty>>> = SpinLock::new(BTreeMap::new());

/// The slave with this number.
pub(super) fn slave(number: u32) -> Option<Arc<Tty>> {
    PTYS.lock().get(&number).and_then(Weak::upgrade)
}

/// Numbers in use.
pub(super) fn numbers() -> Vec<u32> {
    PTYS.lock().keys().copied().collect()
}

/// Opens the program's side of a terminal through a node.
pub(super) fn open_program_side(
    tty: &Arc<Tty>,
    node: Arc<dyn Inode>,
    flags: u32,
) -> Result<Arc<dyn FileOps>> {
    {
        let mut state = tty.state.lock();
        if state.is_locked || state.is_hung_up {
            return Err(Errno::EIO);
        }
        state.was_open = true;
    }
    tty.open_count.fetch_add(1, Ordering::SeqCst);
    if flags & raw::O_NOCTTY == 0 {
        job::adopt(tty);
    }
    Ok(Arc::new(ProgramSide { tty: tty.clone(), node }))
}

/// The program's side: a slave, the console, or /dev/tty.
struct ProgramSide {
    tty: Arc<Tty>,
    node: Arc<dyn Inode>,
}

impl FileOps for ProgramSide {
    fn has_io_signals(&self) -> bool {
        true
    }

    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        self.tty.read(sink, file.is_nonblocking())
    }

    fn write_at(&self, file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        self.tty.write(source, file.is_nonblocking())
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        self.tty.poll(table)
    }

    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        control::ioctl(&self.tty, false, command, argument)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.node.clone()
    }

    fn release(&self, _file: &File) {
        if self.tty.open_count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.tty.master_queue.wake_all(events::READABLE | events::HUP);
        }
    }
}

/// The terminal behind an open file, if it is the program's side of one.
pub(super) fn of(file: &File) -> Option<&Arc<Tty>> {
    file.ops_as::<ProgramSide>().map(|side| &side.tty)
}

/// The master.
struct Master {
    tty: Arc<Tty>,
    number: u32,
    node: Arc<dyn Inode>,
    is_closed: AtomicBool,
}

impl Master {
    /// Whether the slave was open and is not any more.
    fn is_deserted(&self) -> bool {
        self.tty.open_count.load(Ordering::SeqCst) == 0 && self.tty.state.lock().was_open
    }

    /// Output of the slave; None: there is none yet. EIO once the slave is closed.
    fn try_take(&self, max: usize) -> Option<Result<Vec<u8>>> {
        let mut state = self.tty.state.lock();
        let state = &mut *state;
        if !state.output.is_empty() {
            let len = state.output.len().min(max);
            let mut bytes = Vec::with_capacity(len + 1);
            if state.packet_mode {
                bytes.push(PACKET_DATA);
            }
            let room = max - bytes.len();
            bytes.extend(state.output.drain(..len.min(room)));
            return Some(Ok(bytes));
        }
        let is_deserted = self.tty.open_count.load(Ordering::SeqCst) == 0 && state.was_open;
        is_deserted.then_some(Err(Errno::EIO))
    }

    /// TIOCGPTPEER: opens the slave.
    fn open_peer(&self, flags: u32) -> Result<u64> {
        let node = devpts::node(self.number).ok_or(Errno::EIO)?;
        let ops = open_program_side(&self.tty, node, flags)?;
        let file = File::new(ops, flags & !raw::O_CLOEXEC, None);
        crate::process::give_file(file, flags & raw::O_CLOEXEC != 0)
    }
}

impl FileOps for Master {
    fn has_io_signals(&self) -> bool {
        true
    }

    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if sink.left() == 0 {
            return Ok(0);
        }
        let max = sink.left().min(8 * CHUNK);
        let take = || self.try_take(max);
        let bytes = if file.is_nonblocking() {
            take().unwrap_or(Err(Errno::EAGAIN))?
        } else {
            self.tty.master_queue.wait(take)??
        };
        self.tty.writers.wake_one(events::WRITABLE);
        sink.put(&bytes)
    }

    fn write_at(&self, file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let mut done = 0;
        while source.left() > 0 {
            let has_room = || (!self.tty.state.lock().discipline.is_full()).then_some(());
            let waited = if file.is_nonblocking() {
                has_room().ok_or(Errno::EAGAIN)
            } else {
                self.tty.keyboard.wait(has_room).map_err(Errno::from)
            };
            match waited {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            let mut chunk = [0; CHUNK];
            let room = self.tty.state.lock().discipline.room().clamp(1, CHUNK);
            let len = match source.take(&mut chunk[..room]) {
                Ok(len) => len,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            self.tty.type_in(&chunk[..len]);
            done += len;
        }
        Ok(done)
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.tty.master_queue);
        table.wait_on(&self.tty.keyboard);
        let mut mask = 0;
        {
            let state = self.tty.state.lock();
            if !state.output.is_empty() {
                mask |= events::READABLE;
            }
            if !state.discipline.is_full() {
                mask |= events::WRITABLE;
            }
        }
        if self.is_deserted() {
            mask |= events::HUP;
        }
        mask
    }

    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        let int = UserPtr::<i32>::new(argument);
        match command {
            ioctl::TIOCGPTN => UserPtr::<u32>::new(argument).write(&self.number)?,
            ioctl::TIOCSPTLCK => {
                let is_locked = int.read()? != 0;
                self.tty.state.lock().is_locked = is_locked;
            }
            ioctl::TIOCGPTLCK => {
                let is_locked = self.tty.state.lock().is_locked;
                int.write(&i32::from(is_locked))?;
            }
            ioctl::TIOCPKT => {
                let is_on = int.read()? != 0;
                self.tty.state.lock().packet_mode = is_on;
            }
            ioctl::TIOCGPTPEER => return self.open_peer(argument as u32),
            ioctl::FIONREAD => {
                let len = self.tty.state.lock().output.len();
                int.write(&(len as i32))?;
            }
            _ => return control::ioctl(&self.tty, true, command, argument),
        }
        Ok(0)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.node.clone()
    }

    fn release(&self, _file: &File) {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return;
        }
        PTYS.lock().remove(&self.number);
        devpts::forget(self.number);
        self.tty.hang_up();
    }
}

/// /dev/ptmx: each open makes a new pseudo terminal. ENOSPC when there are too many.
pub(super) struct MasterDriver;

impl CharDriver for MasterDriver {
    fn open(&self, node: Arc<dyn Inode>, _device: u64, _flags: u32) -> Result<Arc<dyn FileOps>> {
        let (number, tty) = {
            let mut ptys = PTYS.lock();
            let free = (0..PTYS_MAX).find(|number| !ptys.contains_key(number));
            let number = free.ok_or(Errno::ENOSPC)?;
            let tty = Tty::new(Screen::Master, chrdev::make_device(SLAVE_MAJOR, number));
            tty.state.lock().is_locked = true;
            ptys.insert(number, Arc::downgrade(&tty));
            (number, tty)
        };
        devpts::make(number);
        Ok(Arc::new(Master { tty, number, node, is_closed: AtomicBool::new(false) }))
    }
}

/// Slaves by their device numbers.
pub(super) struct SlaveDriver;

impl CharDriver for SlaveDriver {
    fn open(&self, node: Arc<dyn Inode>, device: u64, flags: u32) -> Result<Arc<dyn FileOps>> {
        let tty = slave(chrdev::minor(device)).ok_or(Errno::EIO)?;
        open_program_side(&tty, node, flags)
    }
}
