//! One running VM: starts QEMU, listens to it, and says how it ended.
//!
//! Why it is hard: five sources speak at once (control channel, kernel log, QEMU's own messages,
//! signals to us, the process's end), time runs beside them, and each may be the one that ends the
//! run. One loop waits for all of them; the streams have threads (`pump.rs`). Whatever happens,
//! QEMU is reaped, and if this process is killed the kernel kills QEMU (`shim.rs`).
//!
//! Reading order: [`Vm::start`], [`Vm::supervise`], [`Vm::react`], [`Vm::conclude`].

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use formats::control::{LineBuffer, ToGuest, ToHost};
use limen_share::Share;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts as signals;

use super::jail::Jail;
use super::klog::{KernelLog, WARNING_PREFIX, printable};
use super::limits::{self, Limits, Taken};
use super::outcome::{Facts, Outcome};
use super::pump::{ControlSender, copy_input, copy_output};
use super::qemu::{Qemu, Wires};
use super::{share, shim, tty};
use crate::{Error, words};

/// A VM that has not reached user mode by then has failed.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// How long QEMU may still run after the guest's last message or a panic line.
const END_GRACE: Duration = Duration::from_secs(5);
/// How long QEMU may still run after its connection with the server of the root has ended.
const SERVER_GRACE: Duration = Duration::from_secs(2);
/// How long output may still take after the VM was killed.
const KILLED_DRAIN: Duration = Duration::from_millis(500);
/// When to say that booting takes its time.
const PROGRESS_AFTER: Duration = Duration::from_millis(500);

/// Signals that end this process if nobody handles them: the first of them goes to the program.
const FORWARDED: [i32; 6] = [
    signals::SIGINT,
    signals::SIGTERM,
    signals::SIGHUP,
    signals::SIGQUIT,
    signals::SIGUSR1,
    signals::SIGUSR2,
];

/// How a VM is run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// The program talks with the caller's terminal.
    pub(crate) interactive: bool,
    /// Copy stdin to the guest.
    pub(crate) wants_stdin: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) limits: Limits,
    /// No limits of time: a debugger is expected.
    pub(crate) patient: bool,
    /// 1: kernel log; 2: QEMU's messages as well.
    pub(crate) verbose: u8,
}

/// What the kernel's log calls the reason for which no program ran.
const FAILURE_PREFIX: &str = "limen: boot failed: ";
/// How a reason begins that says enough.
pub(super) const TOLD: &str = "no program ran: ";

/// Everything that is known when a VM has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) facts: Facts,
    pub(crate) kernel_log: KernelLog,
    pub(crate) qemu_log: KernelLog,
    pub(crate) wall: Duration,
    pub(crate) start: Option<Duration>,
    /// What the program wrote and descriptor 1 or 2 did not take.
    pub(crate) lost: Vec<Lost>,
}

/// Output that could not be written: the descriptor, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) fd: u8,
    pub(crate) error: rustix::io::Errno,
}

/// A running VM.
pub(crate) struct Vm {
    manner: Manner,
    child: Child,
    pidfd: OwnedFd,
    started: Instant,
    control: UnixStream,
    kernel_port: UnixStream,
    qemu_messages: UnixStream,
    signals: Vec<(i32, UnixStream)>,
    quit: UnixStream,
    sender: ControlSender,
    outputs_done: mpsc::Receiver<Option<Lost>>,
    lost: Vec<Lost>,
    /// Bytes that the program has written.
    output: Arc<AtomicU64>,
    /// When to look what the VM has taken, if there are limits.
    next_look: Instant,
    /// The caller's terminal, if the program talks with it.
    raw_mode: Option<tty::RawMode>,
    lines: LineBuffer,
    kernel_log: KernelLog,
    qemu_log: KernelLog,
    facts: Facts,
    booted: Option<Duration>,
    /// The guest's last message.
    last: Option<Outcome>,
    /// We ended the VM, for this reason.
    killed: Option<Outcome>,
    /// When a guest that has said its last is no longer waited for.
    end_by: Option<Instant>,
    /// One of [`FORWARDED`] came already.
    warned: bool,
    progress_shown: bool,
    /// Who serves the root, if that is not QEMU.
    share: Option<Share>,
    /// Its threads end, by when QEMU should have ended, too, and why they do.
    share_end: Option<(Instant, String)>,
}

/// What the loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Control,
    KernelLog,
    QemuMessages,
    Quit,
    ProcessEnd,
    /// The server of the root.
    Share,
    Signal(i32),
}

impl Vm {
    /// Starts QEMU with all its wires, and the threads that copy the streams.
    pub(crate) fn start(qemu: &Qemu, initramfs: &[u8], manner: Manner) -> Result<Self, Error> {
        let (control, control_far) = inheritable_pair()?;
        let (stdio, stdio_far) = inheritable_pair()?;
        let (stderr, stderr_far) = inheritable_pair()?;
        let (kernel_port, kernel_far) = inheritable_pair()?;
        let (qemu_messages, messages_far) = UnixStream::pair()?;
        let initramfs = memory_file(initramfs)?;
        let signals = catch_signals()?;
        let mut share = serve_root(qemu, manner);
        let wires = Wires::Inherited {
            control: control_far.as_raw_fd(),
            stdio: stdio_far.as_raw_fd(),
            stderr: stderr_far.as_raw_fd(),
            kernel_log: kernel_far.as_raw_fd(),
            initramfs: initramfs.as_raw_fd(),
            share: share.as_ref().and_then(Share::qemu),
        };
        let command = qemu.command(&wires);
        let started = Instant::now();
        let jail = Jail::find(qemu, &wires);
        if manner.verbose > 0 {
            say!("limen: {}", jail.explanation());
        }
        let child = spawn(jail, &command, messages_far)?;
        if let Some(share) = &mut share {
            share.let_go();
        }
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let sender = ControlSender::new(control.try_clone()?);
        // Until a debugger lets the program run, Ctrl-C is the user's.
        let raw = manner.interactive && !manner.patient;
        let raw_mode = if raw { tty::RawMode::enter() } else { None };
        let output = Arc::new(AtomicU64::new(0));
        let (quit, outputs_done) = start_pumps(manner, stdio, stderr, &sender, &output)?;
        Ok(Self {
            manner,
            child,
            pidfd,
            started,
            control,
            kernel_port,
            qemu_messages,
            signals,
            quit,
            sender,
            outputs_done,
            lost: vec![],
            output,
            next_look: started,
            raw_mode,
            lines: LineBuffer::new(),
            kernel_log: KernelLog::default(),
            qemu_log: KernelLog::default(),
            facts: Facts::default(),
            booted: None,
            last: None,
            killed: None,
            end_by: None,
            warned: false,
            progress_shown: false,
            share,
            share_end: None,
        })
    }

    /// Waits for the end, serving everything on the way.
    pub(crate) fn supervise(mut self) -> Result<Ended, Error> {
        let mut open = vec![Source::ProcessEnd, Source::Control, Source::KernelLog];
        open.extend([Source::QemuMessages, Source::Quit]);
        open.extend(self.share.is_some().then_some(Source::Share));
        open.extend(self.signals.iter().map(|(number, _)| Source::Signal(*number)));
        let mut status = None;
        // QEMU's end closes its sockets: the ports are read to their ends and none is lost. Where
        // we killed it, nothing that is still in them matters.
        while status.is_none()
            || (self.killed.is_none() && open.iter().any(|source| source.ends_with_qemu()))
        {
            for source in self.wait(&open)? {
                if source == Source::ProcessEnd {
                    status = Some(self.child.wait()?);
                }
                if source == Source::ProcessEnd || !self.react(source) {
                    open.retain(|other| *other != source);
                }
            }
            if status.is_none() {
                self.watch_the_clock();
            }
        }
        self.drain_outputs();
        Ok(self.conclude(status))
    }

    /// The sources that have something; none if time has come for [`Self::watch_the_clock`].
    fn wait(&self, open: &[Source]) -> Result<Vec<Source>, Error> {
        let timeout = self.next_deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // One more ms, so that the deadline has passed when poll returns.
            let left = left + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut fds: Vec<_> = open.iter().map(|source| self.poll_fd(*source)).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(open.iter().zip(ready).filter(|(_, ready)| *ready).map(|(source, _)| *source).collect())
    }

    fn poll_fd(&self, source: Source) -> PollFd<'_> {
        let fd = match source {
            Source::Control => self.control.as_fd(),
            Source::KernelLog => self.kernel_port.as_fd(),
            Source::QemuMessages => self.qemu_messages.as_fd(),
            Source::Quit => self.quit.as_fd(),
            Source::ProcessEnd => self.pidfd.as_fd(),
            Source::Share => self.share.as_ref().map_or(self.quit.as_fd(), Share::end_fd),
            Source::Signal(number) => match self.signals.iter().find(|(n, _)| *n == number) {
                Some((_, socket)) => socket.as_fd(),
                None => self.quit.as_fd(),
            },
        };
        PollFd::from_borrowed_fd(fd, PollFlags::IN)
    }

    /// Serves a source that has something. False if it has ended.
    fn react(&mut self, source: Source) -> bool {
        let mut buffer = [0; 16 << 10];
        let socket = match source {
            Source::Control => &mut self.control,
            Source::KernelLog => &mut self.kernel_port,
            Source::QemuMessages => &mut self.qemu_messages,
            Source::Quit => &mut self.quit,
            Source::ProcessEnd => return false,
            Source::Share => {
                let why = self.share.as_mut().map_or_else(String::new, Share::end);
                self.share_end = Some((Instant::now() + SERVER_GRACE, why));
                return false;
            }
            Source::Signal(number) => {
                match self.signals.iter_mut().find(|(other, _)| *other == number) {
                    Some((_, socket)) => socket,
                    None => return false,
                }
            }
        };
        let len = match socket.read(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return true,
            Err(_) => 0,
        };
        let bytes = &buffer[..len];
        match source {
            Source::Control => self.take_messages(bytes),
            Source::KernelLog => self.take_kernel_log(bytes),
            Source::QemuMessages => {
                let show = self.manner.verbose >= 2;
                self.qemu_log.push(bytes, |line| {
                    if show {
                        say!("{line}");
                    }
                });
            }
            Source::Quit if len > 0 => self.kill(Outcome::Quit),
            Source::Signal(number) if len > 0 => self.take_signal(number),
            Source::Quit | Source::Signal(_) | Source::ProcessEnd | Source::Share => {}
        }
        len > 0
    }

    fn take_messages(&mut self, bytes: &[u8]) {
        let mut messages = Vec::new();
        self.lines.push(bytes, |line| match ToHost::decode(line) {
            Some(message) => messages.push(message),
            None => say!("limen: the guest said: {}", printable(line)),
        });
        for message in messages {
            match &message {
                ToHost::AskTime => {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH);
                    let ns = now.map_or(0, |time| time.as_nanos() as u64);
                    self.sender.send(&ToGuest::Realtime { ns });
                }
                ToHost::BootNs(_) => {
                    self.booted = Some(self.started.elapsed());
                    self.clear_progress();
                    if self.manner.interactive && self.raw_mode.is_none() {
                        self.raw_mode = tty::RawMode::enter();
                    }
                }
                ToHost::Log { text } => say!("limen: {}", printable(text)),
                _ => {}
            }
            if let Some(outcome) = Outcome::from_last_message(&message) {
                self.last.get_or_insert(outcome);
                self.end_by.get_or_insert(Instant::now() + END_GRACE);
                self.clear_progress();
            }
            self.facts.note(message);
        }
    }

    fn take_kernel_log(&mut self, bytes: &[u8]) {
        let show = self.manner.verbose >= 1;
        // In raw mode a newline alone does not return the carriage.
        let end = if self.manner.interactive { "\r\n" } else { "\n" };
        self.kernel_log.push(bytes, |line| {
            // A misspelt protection must be seen by whom nobody told to look.
            if show || line.starts_with(WARNING_PREFIX) {
                crate::out::err(format_args!("{line}{end}"));
            }
        });
        if self.kernel_log.has_panicked() {
            self.end_by.get_or_insert(Instant::now() + END_GRACE);
        }
    }

    /// The first signal goes to the program, if one runs; the second kills the VM.
    fn take_signal(&mut self, number: i32) {
        if number == signals::SIGWINCH {
            if let Some(size) = tty::window_size().filter(|_| self.manner.interactive) {
                self.sender.send(&ToGuest::Winsize { rows: size.rows, cols: size.cols });
            }
            return;
        }
        let number = number as u8;
        let is_harmless = [signals::SIGUSR1, signals::SIGUSR2].contains(&i32::from(number));
        if !is_harmless && (self.warned || self.booted.is_none()) {
            return self.kill(Outcome::Killed(number));
        }
        self.warned |= !is_harmless;
        self.sender.send(&ToGuest::Signal { number });
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.killed.is_some() {
            return None;
        }
        let boots = self.booted.is_none() && self.last.is_none() && !self.manner.patient;
        let progress = boots && !self.progress_shown && self.shows_progress();
        [
            self.manner.timeout.map(|limit| self.started + limit),
            boots.then(|| self.started + BOOT_LIMIT),
            progress.then(|| self.started + PROGRESS_AFTER),
            self.end_by,
            self.share_end.as_ref().map(|(deadline, _)| *deadline),
            self.manner.limits.needs_looks().then_some(self.next_look),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Acts on deadlines that have passed.
    fn watch_the_clock(&mut self) {
        let now = Instant::now();
        let elapsed = now - self.started;
        let booted = self.booted.is_some() || self.last.is_some();
        if self.killed.is_some() {
            return;
        }
        if self.manner.limits.needs_looks() && self.next_look <= now {
            self.next_look = now + limits::LOOK;
            let taken = Taken::of_process(self.child.id(), self.output.load(Ordering::Relaxed));
            if let Some(what) = self.manner.limits.exceeded(&taken) {
                return self.kill(Outcome::Limit(what));
            }
        }
        if self.end_by.is_some_and(|deadline| deadline <= now) {
            // The guest has said how it ended, but does not end.
            let panic = self.kernel_log.has_panicked();
            let outcome = if panic { Some(Outcome::Panic) } else { self.last.clone() };
            return self.kill(outcome.unwrap_or(Outcome::Panic));
        }
        // A guest that has said its last needs its root no more.
        let lost = self.share_end.take_if(|(deadline, _)| *deadline <= now);
        if let Some((_, why)) = lost.filter(|_| self.last.is_none()) {
            return self.kill(Outcome::RootLost(why));
        }
        if let Some(limit) = self.manner.timeout.filter(|limit| elapsed >= *limit) {
            return self.kill(match booted {
                true => Outcome::Timeout(limit),
                false => Outcome::BootFailure(format!("{TOLD}not within {limit:?} (--timeout)")),
            });
        }
        if !booted && !self.manner.patient && elapsed >= BOOT_LIMIT {
            let reason = format!("no program ran within {BOOT_LIMIT:?}");
            return self.kill(Outcome::BootFailure(reason));
        }
        if !booted && !self.progress_shown && elapsed >= PROGRESS_AFTER && self.shows_progress() {
            self.progress_shown = true;
            crate::out::err(format_args!("limen: booting ..."));
        }
    }

    fn shows_progress(&self) -> bool {
        use std::io::IsTerminal as _;
        self.manner.verbose == 0 && !self.manner.patient && std::io::stderr().is_terminal()
    }

    fn clear_progress(&mut self) {
        if std::mem::take(&mut self.progress_shown) {
            crate::out::err(format_args!("\r\x1b[K"));
        }
    }

    fn kill(&mut self, outcome: Outcome) {
        self.clear_progress();
        self.killed.get_or_insert(outcome);
        // It fails if QEMU has just ended by itself.
        let _ = self.child.kill();
    }

    /// Waits until stdout and stderr have everything; after a kill, only for a moment.
    fn drain_outputs(&mut self) {
        for _ in 0..2 {
            let done = match self.killed {
                None => self.outputs_done.recv().ok(),
                Some(_) => self.outputs_done.recv_timeout(KILLED_DRAIN).ok(),
            };
            match done {
                Some(lost) => self.lost.extend(lost),
                None => return,
            }
        }
    }

    fn conclude(mut self, status: Option<ExitStatus>) -> Ended {
        self.clear_progress();
        drop(self.raw_mode.take());
        if let Some(share) = self.share.take() {
            share.finish();
        }
        self.kernel_log.finish(|_| {});
        self.qemu_log.finish(|_| {});
        let outcome = match (self.killed, self.last) {
            (Some(outcome), _) => outcome,
            (None, _) if self.kernel_log.has_panicked() => Outcome::Panic,
            (None, Some(outcome)) => outcome,
            (None, None) => {
                let status = status.map_or_else(String::new, |status| format!(" ({status})"));
                let when = if self.booted.is_some() { "the program's end" } else { "boot" };
                let said = self.kernel_log.lines().rev();
                let reason = said.filter_map(|line| line.strip_prefix(FAILURE_PREFIX)).next();
                let messages = self.qemu_log.lines().collect::<Vec<_>>().join("\n");
                Outcome::BootFailure(match (reason, words::of_qemu(&messages)) {
                    (Some(reason), _) => format!("{TOLD}{}", words::of_boot(reason)),
                    (None, Some(reason)) if self.booted.is_none() => format!("{TOLD}{reason}"),
                    _ => format!("QEMU ended{status} before {when}"),
                })
            }
        };
        Ended {
            outcome,
            facts: self.facts,
            kernel_log: self.kernel_log,
            qemu_log: self.qemu_log,
            wall: self.started.elapsed(),
            start: self.booted,
            lost: self.lost,
        }
    }
}

impl Source {
    fn ends_with_qemu(self) -> bool {
        matches!(self, Self::Control | Self::KernelLog | Self::QemuMessages)
    }
}

/// Starts QEMU behind its walls, in a process group of its own: Ctrl-C at the caller's terminal is
/// ours, not QEMU's. What it says goes to `messages`.
fn spawn(jail: Jail, command: &[OsString], messages: UnixStream) -> Result<Child, Error> {
    let mut jailed = jail.prefix;
    jailed.extend([std::env::current_exe()?.into(), shim::NAME.into()]);
    Ok(Command::new(&jailed[0])
        .args(&jailed[1..])
        .arg(std::process::id().to_string())
        .args(command)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(OwnedFd::from(messages.try_clone()?))
        .stderr(OwnedFd::from(messages))
        .spawn()?)
}

/// Starts the server of the root, where this program serves it. Where that fails QEMU does.
fn serve_root(qemu: &Qemu, manner: Manner) -> Option<Share> {
    let root = qemu.root.as_ref()?;
    let cache = root.served?;
    let answer = share::ask(qemu.machine);
    let (share, is_new) = match answer.why_not {
        Some(why) => (Err(why.into()), answer.is_new),
        // QEMU says so where it has the memory for itself.
        None if !host_has(qemu.memory_mib) => {
            (Err("the host does not have so much memory".into()), true)
        }
        None => (share::start(&root.path, cache, qemu.smp), true),
    };
    match share {
        Ok(share) => {
            if manner.verbose > 0 {
                say!("limen: the live root is served by virtio-fs, kept {}", share.sandbox());
            }
            Some(share)
        }
        Err(error) => {
            // What this QEMU lacks it lacks for ever.
            if is_new || manner.verbose > 0 {
                say!(
                    "limen: virtio-fs is not to be had ({error}): the live root goes by 9P, which \
                     is slower, as with --share 9p"
                );
            }
            None
        }
    }
}

/// Whether the host could back the guest's memory: when it is shared, the host finds out only when
/// it is written, and ends somebody then.
fn host_has(memory_mib: u64) -> bool {
    let known = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib_of = |name: &str| {
        let value = known.lines().find_map(|line| line.strip_prefix(name))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    match (kib_of("MemTotal:"), kib_of("SwapTotal:")) {
        (Some(memory), Some(swap)) => memory_mib <= (memory + swap) >> 10,
        _ => true,
    }
}

/// The threads that copy stdin, stdout and stderr. Gives what tells that the user wants to quit,
/// and what gets a word from each of the two output threads at its end.
pub(crate) fn start_pumps(
    manner: Manner,
    stdio: UnixStream,
    stderr: UnixStream,
    sender: &ControlSender,
    output: &Arc<AtomicU64>,
) -> Result<(UnixStream, mpsc::Receiver<Option<Lost>>), Error> {
    let (quit, quit_far) = UnixStream::pair()?;
    let (done, outputs_done) = mpsc::channel();
    let stdin_port = stdio.try_clone()?;
    for (port, fd) in [(stdio, 1), (stderr, 2)] {
        let (done, sender, output) = (done.clone(), sender.clone(), output.clone());
        std::thread::Builder::new().name(format!("copy fd {fd}")).spawn(move || {
            let lost = copy_output(port, fd, &sender, &output).map(|error| Lost { fd, error });
            // Nobody listens any more if the run was cut short.
            let _ = done.send(lost);
        })?;
    }
    let sender = sender.clone();
    if manner.wants_stdin {
        std::thread::Builder::new().name("copy fd 0".to_owned()).spawn(move || {
            let mut quit_far = quit_far;
            copy_input(stdin_port, &sender, manner.interactive, || {
                use std::io::Write as _;
                let _ = quit_far.write_all(b"x");
            });
        })?;
    } else {
        sender.send(&ToGuest::StdinEof { total_bytes: 0 });
    }
    Ok((quit, outputs_done))
}

/// One socket per signal: the kernel's number arrives as the socket that is readable.
pub(crate) fn catch_signals() -> Result<Vec<(i32, UnixStream)>, Error> {
    let mut caught = Vec::new();
    for number in FORWARDED.into_iter().chain([signals::SIGWINCH]) {
        let (near, far) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(number, far)?;
        caught.push((number, near));
    }
    Ok(caught)
}

/// A socket pair whose second end survives exec.
fn inheritable_pair() -> Result<(UnixStream, UnixStream), Error> {
    let (near, far) = UnixStream::pair()?;
    rustix::io::fcntl_setfd(&far, rustix::io::FdFlags::empty())?;
    Ok((near, far))
}

/// A file without a name that holds `bytes` and survives exec.
pub(crate) fn memory_file(bytes: &[u8]) -> Result<OwnedFd, Error> {
    use std::io::Write as _;
    let fd = rustix::fs::memfd_create("limen-initramfs", rustix::fs::MemfdFlags::empty())?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    Ok(file.into())
}
