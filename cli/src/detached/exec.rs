//! `limen exec NAME -- PROGRAM`: another program in a VM that runs in the background, with this
//! terminal or these streams, its exit status, signals and the window's size.
//!
//! Why it is hard: the VM offers a few triples of sockets, QEMU takes one connection at a time on
//! each and lets others wait without a word, and a connection that was cut leaves bytes behind. So
//! a lock in the VM's folder says which triple is free, and nothing is said, and nothing believed,
//! before the guest says that it listens.
//!
//! Neighbours: the kernel's `boot/sessions.rs` is at the other end; `run/vm.rs` has the streams and
//! signals of `limen run`, which are the same here.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use formats::boot_config::{BootConfig, KEEP_ID, Stdio};
use formats::control::{LineBuffer, ToGuest, ToHost};
use formats::ports::{EXEC_PORTS, EXEC_SESSIONS};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use signal_hook::consts as signals;

use super::VmState;
use super::commands::existing;
use crate::args::ExecArgs;
use crate::failure::{Doing, Failure};
use crate::run::outcome::Outcome;
use crate::run::plan::{environment, stdio_kinds};
use crate::run::pump::ControlSender;
use crate::run::qemu::session_socket;
use crate::run::vm::{Lost, Manner, catch_signals, start_pumps};
use crate::run::{report_lost, tty};
use crate::{Error, oci, usage};

/// How long a guest may take to say that it listens.
const READY_LIMIT: Duration = Duration::from_secs(15);
/// SIGKILL: what the end of its VM is to a program.
const SIGKILL: u8 = 9;

/// The three sockets of a session, and the lock that makes them ours.
struct Session {
    control: UnixStream,
    stdio: UnixStream,
    stderr: UnixStream,
    _lock: File,
}

/// `limen exec`.
pub(crate) fn exec(args: &ExecArgs) -> Result<u8, Error> {
    let state = existing(&args.name)?;
    if state.alive().is_none() {
        let text = format!("{}: it does not run: {}", args.name, state.status());
        return Err(usage(text));
    }
    let config = config(args, &state)?;
    let encoded = config.encode();
    BootConfig::decode(&encoded)?;
    let mut session = Session::connect(&state)?;
    session.wait_until_ready(&state)?;
    let length = u32::try_from(encoded.len())?;
    session.control.write_all(&ToGuest::Exec { length }.encode())?;
    session.stdio.write_all(&encoded)?;
    let (mut outcome, lost) = session.begin(&config)?.supervise(&args.name)?;
    report_lost(&lost, &mut outcome);
    if let Some(explanation) = outcome.explanation() {
        say!("limen: {explanation}");
    }
    Ok(outcome.status())
}

/// What to start: what is not said is as for the VM's own program.
fn config(args: &ExecArgs, state: &VmState) -> Result<BootConfig, Error> {
    let user = match &args.user {
        Some(name) => state.names().resolve(name)?,
        None => oci::user::User { uid: KEEP_ID, gid: KEEP_ID, ..oci::user::User::default() },
    };
    let stdio = stdio_kinds();
    let mut env = vec![];
    if let (Stdio::Tty, Some(term)) = (stdio[1], std::env::var_os("TERM")) {
        env.push([b"TERM=", term.as_bytes()].concat());
    }
    env.extend(environment::given(&args.env));
    let cwd = args.cwd.as_ref().map_or(&b"."[..], |cwd| cwd.as_os_str().as_bytes());
    Ok(BootConfig {
        program: args.program[0].as_bytes().to_vec(),
        argv: args.program.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env,
        cwd: cwd.to_vec(),
        uid: user.uid,
        gid: user.gid,
        groups: user.groups,
        umask: 0o022,
        stdio,
        winsize: tty::window_size().unwrap_or_default(),
        ..BootConfig::default()
    })
}

impl Session {
    /// The first that nobody uses.
    fn connect(state: &VmState) -> Result<Self, Error> {
        for number in 0..EXEC_SESSIONS {
            let lock = state.dir.join(format!("exec{number}.lock"));
            let lock = File::create(&lock).map_err(Failure::at(Doing::Make, &lock))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let connect = |name: &str| {
                let path = session_socket(&state.dir, number, name);
                UnixStream::connect(&path).map_err(|error| format!("{}: {error}", path.display()))
            };
            let [control, stdio, stderr] = EXEC_PORTS;
            // The control channel last: the guest listens there first.
            let (stdio, stderr) = (connect(stdio)?, connect(stderr)?);
            return Ok(Self { control: connect(control)?, stdio, stderr, _lock: lock });
        }
        let text = format!(
            "{}: {EXEC_SESSIONS} programs of limen exec run there already, which is all at a time",
            state.name
        );
        Err(usage(text))
    }

    /// Until the guest listens; whatever came before was somebody else's.
    fn wait_until_ready(&mut self, state: &VmState) -> Result<(), Error> {
        let deadline = Instant::now() + READY_LIMIT;
        let mut lines = LineBuffer::new();
        let mut is_ready = false;
        let mut buffer = [0; 512];
        while !is_ready {
            let left = deadline.saturating_duration_since(Instant::now());
            // No time at all would be for ever.
            self.control.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.control.read(&mut buffer) {
                Ok(0) => return Err(format!("{}: the VM has ended", state.name).into()),
                Ok(len) => lines.push(&buffer[..len], |line| {
                    is_ready |= ToHost::decode(line) == Some(ToHost::Ready);
                }),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => {
                    let seconds = READY_LIMIT.as_secs();
                    let text = format!(
                        "{}: the VM does not answer within {seconds} s (limen logs --kernel {0})",
                        state.name
                    );
                    return Err(text.into());
                }
            }
        }
        self.control.set_read_timeout(None)?;
        for port in [&mut self.stdio, &mut self.stderr] {
            port.set_nonblocking(true)?;
            while port.read(&mut buffer).is_ok_and(|len| len > 0) {}
            port.set_nonblocking(false)?;
        }
        Ok(())
    }

    /// Starts what copies the streams.
    fn begin(self, config: &BootConfig) -> Result<Client, Error> {
        let sender = ControlSender::new(self.control.try_clone()?);
        let manner = Manner {
            interactive: config.stdio[0] == Stdio::Tty,
            wants_stdin: config.stdio[0] != Stdio::Null,
            ..Manner::default()
        };
        let (stdio, stderr) = (self.stdio.try_clone()?, self.stderr.try_clone()?);
        let (quit, outputs_done) = start_pumps(manner, stdio, stderr, &sender, &Arc::default())?;
        let raw_mode = if manner.interactive { tty::RawMode::enter() } else { None };
        let (caught, lines) = (catch_signals()?, LineBuffer::new());
        let session = self;
        Ok(Client { session, caught, quit, sender, outputs_done, raw_mode, lines, warned: false })
    }
}

/// Everything that speaks while the program runs.
struct Client {
    session: Session,
    caught: Vec<(i32, UnixStream)>,
    quit: UnixStream,
    sender: ControlSender,
    outputs_done: mpsc::Receiver<Option<Lost>>,
    raw_mode: Option<tty::RawMode>,
    lines: LineBuffer,
    /// A signal that ends programs has been passed on already.
    warned: bool,
}

impl Client {
    /// Serves the program to its end: how it ended, and what of its output was lost.
    fn supervise(mut self, name: &str) -> Result<(Outcome, Vec<Lost>), Error> {
        let outcome = loop {
            if let Some(outcome) = self.serve(name)? {
                break outcome;
            }
        };
        // All that the program wrote is in the sockets: the copies find their ends behind it.
        for port in [&self.session.stdio, &self.session.stderr] {
            // It fails where the VM has closed it.
            let _ = port.shutdown(Shutdown::Read);
        }
        let done = [self.outputs_done.recv(), self.outputs_done.recv()];
        drop(self.raw_mode.take());
        Ok((outcome, done.into_iter().flatten().flatten().collect()))
    }

    /// Waits until somebody says something, and acts; the end, if it was that.
    fn serve(&mut self, name: &str) -> Result<Option<Outcome>, Error> {
        let sockets = [&self.session.control, &self.quit].into_iter();
        let sockets = sockets.chain(self.caught.iter().map(|(_, socket)| socket));
        let mut fds: Vec<_> =
            sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)).collect();
        match poll(&mut fds, None) {
            // By a signal: it is seen in the next round.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut byte = [0; 16];
        if ready[1] && self.quit.read(&mut byte)? > 0 {
            return Ok(Some(Outcome::Quit));
        }
        let signals = self.caught.iter_mut().zip(&ready[2..]).filter(|(_, ready)| **ready);
        let mut came = Vec::new();
        for ((number, socket), _) in signals {
            if socket.read(&mut byte)? > 0 {
                came.push(*number);
            }
        }
        for number in came {
            if let Some(outcome) = self.pass_on(number) {
                return Ok(Some(outcome));
            }
        }
        if ready[0] { self.hear(name) } else { Ok(None) }
    }

    /// The first signal goes to the program; the second that ends programs ends the connection.
    fn pass_on(&mut self, number: i32) -> Option<Outcome> {
        if number == signals::SIGWINCH {
            if let Some(size) = tty::window_size().filter(|_| self.raw_mode.is_some()) {
                self.sender.send(&ToGuest::Winsize { rows: size.rows, cols: size.cols });
            }
            return None;
        }
        let is_harmless = [signals::SIGUSR1, signals::SIGUSR2].contains(&number);
        if !is_harmless && std::mem::replace(&mut self.warned, true) {
            return Some(Outcome::Killed(number as u8));
        }
        self.sender.send(&ToGuest::Signal { number: number as u8 });
        None
    }

    /// What the guest says.
    fn hear(&mut self, name: &str) -> Result<Option<Outcome>, Error> {
        let mut buffer = [0; 512];
        let len = self.session.control.read(&mut buffer)?;
        if len == 0 {
            say!("limen: {name}: the VM has ended, and the program with it");
            return Ok(Some(Outcome::Killed(SIGKILL)));
        }
        let mut last = None;
        self.lines.push(&buffer[..len], |line| {
            let message = ToHost::decode(line);
            last = last.take().or(message.as_ref().and_then(Outcome::from_last_message));
        });
        Ok(last)
    }
}
