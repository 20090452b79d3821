//! The program's standard streams as open files, where they are pipes on the host: to the program
//! they look like pipes too (fstat(2), isatty(3), ESPIPE for lseek(2)). A terminal is `tty`'s
//! business.
//!
//! A machine without the console device (one that a boot loader has started) has the serial port of
//! the kernel log: what the program writes goes there, and there is nothing to read.

use alloc::sync::Arc;

use abi::{Errno, Result};

use super::signals::broken_pipe;
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::user::UserPtr;
use crate::drivers::Port;
use crate::drivers::console::console;
use crate::vfs::anon::{AnonInode, Reopen};
use crate::vfs::{File, FileOps, FileType, Inode};

/// Which of the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Descriptor 0.
    Input,
    /// Descriptor 1.
    Output,
    /// Descriptor 2.
    Error,
}

/// A stream; what open(2) of /proc/self/fd/N gives again.
struct StreamFile {
    stream: Stream,
    /// The port, and whom it belonged to when this was opened.
    port: Option<(&'static Port, u64)>,
    inode: Arc<AnonInode>,
    me: alloc::sync::Weak<StreamFile>,
}

/// Opens a standard stream of the first program.
pub fn open(stream: Stream) -> Result<Arc<dyn FileOps>> {
    let port = console().ok().map(|console| match stream {
        Stream::Input | Stream::Output => console.stdio(),
        Stream::Error => console.stderr(),
    });
    Ok(open_at(stream, port))
}

/// Opens a standard stream at a port, as long as that belongs to whom it belongs to now.
pub fn open_at(stream: Stream, port: Option<&'static Port>) -> Arc<dyn FileOps> {
    let port = port.map(|port| (port, port.owner()));
    let inode = AnonInode::new(FileType::Fifo, 0o600, "pipe");
    let file = Arc::new_cyclic(|me| StreamFile { stream, port, inode, me: me.clone() });
    let opener: alloc::sync::Weak<dyn Reopen> = file.me.clone();
    file.inode.set_opener(opener);
    file
}

/// Bytes that go to the serial port at once: it is slow, and nobody else writes meanwhile.
const SERIAL_CHUNK: usize = 64;

fn write_to_serial(source: &mut Source<'_>) -> Result<usize> {
    let mut done = 0;
    let mut bytes = [0; SERIAL_CHUNK];
    while source.left() > 0 {
        match source.take(&mut bytes) {
            Ok(len) => {
                machine::log::write_bytes(&bytes[..len]);
                done += len;
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        if crate::base::sched::current().has_pending_signal() {
            break;
        }
        crate::base::sched::yield_if_needed();
    }
    Ok(done)
}

impl Reopen for StreamFile {
    fn reopen(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Ok(self)
    }
}

impl FileOps for StreamFile {
    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        match self.stream {
            Stream::Input => self.port.map_or(Ok(0), |(port, owner)| {
                let nowait = file.is_nonblocking() || !sink.may_wait();
                port.read_as(owner, sink, nowait)
            }),
            Stream::Output | Stream::Error => Err(Errno::EBADF),
        }
    }

    fn write_at(&self, file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        if self.stream == Stream::Input {
            return Err(Errno::EBADF);
        }
        let Some((port, owner)) = self.port else { return write_to_serial(source) };
        let result = {
            let nowait = file.is_nonblocking() || !source.may_wait();
            port.write_as(owner, source, nowait)
        };
        if result == Err(Errno::EPIPE) {
            broken_pipe();
        }
        result
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        let wanted = match self.stream {
            Stream::Input => events::READABLE | events::HUP,
            Stream::Output | Stream::Error => events::WRITABLE | events::ERR,
        };
        let ready = || events::READABLE | events::WRITABLE;
        let state = |(port, owner): (&Port, u64)| match port.owner() == owner {
            true => port.poll(table),
            false => ready() | events::HUP | events::ERR,
        };
        self.port.map_or_else(ready, state) & wanted
    }

    fn ioctl(&self, _file: &File, command: u32, argument: u64) -> Result<u64> {
        match command {
            abi::ioctl::FIONREAD if self.stream == Stream::Input => {
                let own = self.port.filter(|(port, owner)| port.owner() == *owner);
                let available = own.map_or(0, |(port, _)| port.available());
                UserPtr::<i32>::new(argument).write(&(available as i32))?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}
