//! Programs that are started from outside beside the first one (`limen exec`), where the console
//! device has ports for them: each in a session of its own, with streams and a terminal that go
//! over three ports ([`formats::ports::exec_ports`]).
//!
//! Why it is hard: a port stays, and whoever is connected to it comes and goes, killed at any
//! moment, while a program of theirs that nobody asks any more still reads and writes. So a port
//! belongs to one connection at a time ([`Port::start_anew`]); what the one before has left is
//! thrown away before the next one is told that it may speak.
//!
//! One kernel thread for each triple of ports waits for connections and listens; another one, while
//! a program runs, waits for its end. Neighbours: `start.rs` does the same for the first program;
//! `init` is the parent of all.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, general as raw};
use formats::boot_config::{self, BootConfig, KEEP_ID, Stdio};
use formats::control::{LineBuffer, ToGuest, ToHost};
use formats::ports::EXEC_SESSIONS;
use machine::sync::ReadMostly;

use super::start::{self, Streams};
use crate::base::io::{Sink, Source};
use crate::base::time::NS_PER_SEC;
use crate::drivers::Port;
use crate::drivers::console::{Session, console};
use crate::init::{self, First};
use crate::io::stdio;
use crate::process::signal::{SigInfo, send_to_group};
use crate::security::{Credentials, Subject};
use crate::tty::WinSize;
use crate::tty::console::SessionTerminal;
use crate::vfs::path::{Context, FsContext, Location, resolve, walk};

/// How long a host that has connected to one port may take to connect to the others.
const CONNECT_NS: u64 = 10 * NS_PER_SEC;
/// How often to look whether a slow host has gone that takes no more output.
const FLUSH_NS: u64 = NS_PER_SEC;
/// How long what is on its way to the host may take to arrive.
const SETTLE_NS: u64 = NS_PER_SEC / 10;
const READ_BYTES: usize = 512;

/// Names of the sessions' terminals.
const TERMINALS: [&str; EXEC_SESSIONS as usize] =
    ["/dev/hvc0", "/dev/hvc1", "/dev/hvc2", "/dev/hvc3"];

/// Starts what listens, where there are ports for it.
pub(super) fn listen(root: &Location) -> Result<()> {
    let Ok(console) = console() else { return Ok(()) };
    for number in 0..EXEC_SESSIONS {
        let Some(ports) = console.session(number) else { return Ok(()) };
        let place = Place { number, ports, root: root.clone() };
        crate::process::spawn_kernel("session", move || place.serve())?;
    }
    Ok(())
}

/// Where one program at a time can be started.
struct Place {
    number: u32,
    ports: Session,
    root: Location,
}

/// A program that was started here.
struct Program {
    pid: u32,
    terminal: Option<Arc<SessionTerminal>>,
    has_ended: Arc<AtomicBool>,
    /// Bytes on the stdio port before its input.
    before_input: u64,
}

impl Place {
    fn serve(&self) {
        let mut openings = [0; 3];
        loop {
            if self.wait_for_host(&mut openings).is_ok() {
                self.session();
            }
        }
    }

    /// Until the host has connected to all three ports; they are its own then.
    fn wait_for_host(&self, openings: &mut [u64; 3]) -> Result<()> {
        let Session { control, stdio, stderr } = self.ports;
        openings[0] = control.wait_opened(openings[0], None)?;
        openings[1] = stdio.wait_opened(openings[1], Some(CONNECT_NS))?;
        openings[2] = stderr.wait_opened(openings[2], Some(CONNECT_NS))?;
        for port in [control, stdio, stderr] {
            // What was on its way when the last one went arrives before this one is spoken to, or
            // never does.
            let _ = port.flush(SETTLE_NS);
            port.start_anew();
        }
        Ok(())
    }

    /// Serves one connection to its end.
    fn session(&self) {
        let Session { control, stdio, stderr } = self.ports;
        let owner = control.owner();
        say(control, owner, &ToHost::Ready);
        let mut lines = LineBuffer::new();
        let mut bytes = vec![0; READ_BYTES];
        let mut program = None;
        while let Ok(len @ 1..) = control.read_as(owner, &mut Sink::kernel(&mut bytes), false) {
            let mut messages = Vec::new();
            lines.push(&bytes[..len], |line| messages.extend(ToGuest::decode(line)));
            messages.iter().for_each(|message| self.act(message, &mut program));
        }
        // Nobody reads what the program writes, and its terminal is gone (dropped here).
        stdio.set_output_closed();
        stderr.set_output_closed();
        if let Some(Program { pid, has_ended, .. }) = program
            && !has_ended.load(Ordering::Acquire)
        {
            // The group may have ended meanwhile.
            for number in [raw::SIGHUP, raw::SIGCONT] {
                let _ = send_to_group(pid, SigInfo::kernel(number));
            }
        }
    }

    fn act(&self, message: &ToGuest, program: &mut Option<Program>) {
        match (message, &*program) {
            (ToGuest::Exec { length }, None) => match self.start(*length) {
                Ok(started) => *program = Some(started),
                Err(fate) => say(self.ports.control, self.ports.control.owner(), &fate),
            },
            (ToGuest::StdinEof { total_bytes }, Some(program)) => {
                self.ports.stdio.set_end(total_bytes.saturating_add(program.before_input));
            }
            (ToGuest::OutputClosed { fd: 2 }, _) => self.ports.stderr.set_output_closed(),
            (ToGuest::OutputClosed { .. }, _) => self.ports.stdio.set_output_closed(),
            (ToGuest::Winsize { rows, cols }, Some(Program { terminal: Some(terminal), .. })) => {
                terminal.set_window(WinSize { rows: *rows, cols: *cols, ..WinSize::default() });
            }
            (ToGuest::Signal { number }, Some(program)) => {
                // It may have ended meanwhile.
                let _ = send_to_group(program.pid, SigInfo::kernel(u32::from(*number)));
            }
            // Nothing that could be meant: a host that speaks out of turn.
            _ => {}
        }
    }

    /// Starts what the host describes in `length` bytes. The error is what the host is told.
    fn start(&self, length: u32) -> core::result::Result<Program, ToHost> {
        let refused = |path: &[u8], error: Errno| ToHost::NotExecutable {
            errno: error.number() as u16,
            path: path.to_vec(),
        };
        let config = self.read_config(length).map_err(|error| refused(b"limen exec", error))?;
        let context = self.context(&config).map_err(|error| refused(&config.cwd, error))?;
        let (program, terminal) = self.prepare(&config, context).map_err(|error| match error {
            Errno::ENOENT | Errno::ENOTDIR => ToHost::NotFound { path: config.program.clone() },
            error => refused(&config.program, error),
        })?;
        let control = |pid| {
            if let Some(terminal) = &terminal {
                terminal.control(pid);
            }
        };
        let pid = init::start_beside(program, control);
        let pid = pid.map_err(|error| refused(&config.program, error))?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let (ports, mark) = (self.ports, has_ended.clone());
        let owner = ports.control.owner();
        let waiting = crate::process::spawn_kernel("session-end", move || {
            let status = init::end_of(pid);
            mark.store(true, Ordering::Release);
            tell_end(&ports, owner, status);
        });
        // Without memory for it nobody is told: the host asks in vain, and can be ended.
        waiting.map_err(|error| refused(&config.program, error))?;
        Ok(Program { pid, terminal, has_ended, before_input: u64::from(length) })
    }

    fn read_config(&self, length: u32) -> Result<BootConfig> {
        let length = usize::try_from(length).map_err(|_| Errno::E2BIG)?;
        if length > boot_config::ENCODED_MAX {
            return Err(Errno::E2BIG);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(length, 0);
        let stdio = self.ports.stdio;
        let (owner, mut done) = (stdio.owner(), 0);
        while done < length {
            match stdio.read_as(owner, &mut Sink::kernel(&mut bytes[done..]), false)? {
                0 => return Err(Errno::EPIPE),
                len => done += len,
            }
        }
        BootConfig::decode(&bytes).map_err(|_| Errno::EINVAL)
    }

    /// Where and as whom it runs: as the first program, but where the host says something else.
    fn context(&self, config: &BootConfig) -> Result<Context> {
        let first = start::config().ok_or(Errno::ESRCH)?;
        let credentials = match config.uid {
            KEEP_ID => Credentials::for_user(first.uid, first.gid, first.groups.clone()),
            uid => Credentials::for_user(uid, config.gid, config.groups.clone()),
        };
        let fs = Arc::new(FsContext {
            cwd: ReadMostly::new(self.root.clone()),
            root: ReadMostly::new(self.root.clone()),
            umask: config.umask.into(),
        });
        let subject = Subject { pid: 0, credentials: Arc::new(credentials), domain: None };
        let context = Context { fs, subject };
        for path in [&first.cwd, &config.cwd] {
            let cwd = resolve(&context, raw::AT_FDCWD, path, walk::FOLLOW | walk::DIRECTORY)?;
            *context.fs.cwd.lock() = cwd;
        }
        Ok(context)
    }

    /// Loads the program and opens its streams.
    fn prepare(
        &self,
        config: &BootConfig,
        context: Context,
    ) -> Result<(First, Option<Arc<SessionTerminal>>)> {
        let first = start::config().ok_or(Errno::ESRCH)?;
        let env = merged(&first.env, &config.env);
        let path = find(&context, &config.program, &env)?;
        let config = BootConfig { program: path, env, ..config.clone() };
        let image = start::load(&context, &config)?;
        let stdio = self.ports.stdio;
        let window =
            WinSize { rows: config.winsize.rows, cols: config.winsize.cols, ..WinSize::default() };
        let terminal = match config.stdio.contains(&Stdio::Tty) {
            true => Some(Arc::new(SessionTerminal::start(self.number, stdio, window)?)),
            false => None,
        };
        let stderr = self.ports.stderr;
        let files = start::standard_files(
            &config,
            &context,
            &Streams {
                terminal: TERMINALS[self.number as usize].as_bytes(),
                open: &|stream| {
                    let port = if stream == stdio::Stream::Error { stderr } else { stdio };
                    Ok(stdio::open_at(stream, Some(port)))
                },
            },
        )?;
        Ok((First { image, files: Arc::new(files), fs: context.fs }, terminal))
    }
}

/// Tells the host how the program has ended, behind everything that it has written.
fn tell_end(ports: &Session, owner: u64, status: i32) {
    for port in [ports.stdio, ports.stderr] {
        while port.flush(FLUSH_NS).is_err() && port.owner() == owner && !port.is_closed() {}
    }
    say(ports.control, owner, &start::fate(status));
}

fn say(control: &Port, owner: u64, message: &ToHost) {
    // The host may have gone; then another one must not hear it, and there is nobody to tell.
    let _ = control.write_as(owner, &mut Source::kernel(&message.encode()), false);
}

/// `base`, but what `changes` sets anew.
fn merged(base: &[Vec<u8>], changes: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let name = |entry: &[u8]| entry.split(|&byte| byte == b'=').next().map(<[u8]>::to_vec);
    let is_kept = |entry: &&Vec<u8>| !changes.iter().any(|change| name(change) == name(entry));
    base.iter().filter(is_kept).chain(changes).cloned().collect()
}

/// The path of a program that is named as in a shell: without a slash it is looked for in PATH.
fn find(context: &Context, name: &[u8], env: &[Vec<u8>]) -> Result<Vec<u8>> {
    if name.contains(&b'/') {
        return Ok(name.to_vec());
    }
    let path = env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(b"/bin");
    let mut why = Errno::ENOENT;
    for folder in path.split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { &b"."[..] } else { folder };
        let candidate = [folder, b"/", name].concat();
        match crate::vfs::open::open_executable(context, raw::AT_FDCWD, &candidate, 0) {
            Ok(_) => return Ok(candidate),
            Err(Errno::EACCES) => why = Errno::EACCES,
            Err(_) => {}
        }
    }
    Err(why)
}
