//! What one does with VMs that run: list them, read what they say, end them.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use formats::control::ToGuest;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{CONTROL, VmState, started_ticks};
use crate::args::{LogsArgs, StopArgs};
use crate::failure::{Doing, Failure};
use crate::run::qemu::port_file;
use crate::{Error, usage};

/// SIGTERM: what a program is asked with.
const SIGTERM: u8 = 15;
/// How often to look whether something has come, or ended.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes copied at once.
const CHUNK: usize = 64 << 10;

/// `limen ps`.
pub(crate) fn ps() -> Result<u8, Error> {
    let mut text = format!("{:<20} {:<22} {:>9}  PROGRAM\n", "NAME", "STATUS", "STARTED");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    for state in VmState::all()? {
        let Some(info) = state.info() else { continue };
        let ago = ago(now.saturating_sub(info.started_s));
        let (name, status) = (&state.name, state.status());
        text += &format!("{name:<20} {status:<22} {ago:>9}  {}\n", info.program.join(" "));
    }
    Ok(crate::print(text.as_bytes()))
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} m ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

pub(super) fn existing(name: &str) -> Result<VmState, Error> {
    let state = VmState::of(name)?;
    match state.info() {
        Some(_) => Ok(state),
        None => Err(usage(format!("{name}: there is no such VM (limen ps lists them)"))),
    }
}

/// `limen logs`: standard output and standard error, or the kernel's log.
pub(crate) fn logs(args: &LogsArgs) -> Result<u8, Error> {
    let state = existing(&args.name)?;
    let ports: &[&str] = if args.kernel { &["klog"] } else { &["stdio", "stderr"] };
    let mut files = Vec::new();
    for port in ports {
        files.push(std::fs::File::open(port_file(&state.dir, port))?);
    }
    let mut buffer = vec![0; CHUNK];
    loop {
        // Asked first: what came before the end is read below.
        let is_alive = state.alive().is_some();
        let mut got = 0;
        for (index, file) in files.iter_mut().enumerate() {
            loop {
                let len = file.read(&mut buffer)?;
                if len == 0 {
                    break;
                }
                got += len;
                match index {
                    0 => crate::out::bytes(&buffer[..len]),
                    // Words of the program's for whoever looks; nobody else can be told.
                    _ => std::io::stderr().write_all(&buffer[..len]).unwrap_or_default(),
                }
                if crate::out::has_ended() {
                    return Ok(0);
                }
            }
        }
        if !args.follow || !is_alive {
            return Ok(0);
        }
        if got == 0 {
            std::thread::sleep(LOOK);
        }
    }
}

/// `limen stop`: asks the program to end; after a time ends the VM. What has ended is forgotten.
pub(crate) fn stop(args: &StopArgs) -> Result<u8, Error> {
    let state = existing(&args.name)?;
    if let Some(info) = state.alive() {
        let pid = Pid::from_raw(info.pid as i32).ok_or("an impossible process")?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let message = ToGuest::Signal { number: SIGTERM }.encode();
        let path = state.dir.join(CONTROL).with_extension("in");
        // Read and write: QEMU holds the other end, and if it has just gone nobody must wait.
        let fifo = std::fs::File::options().read(true).write(true).open(&path);
        let sent = fifo.and_then(|mut fifo| fifo.write_all(&message));
        sent.map_err(Failure::at(Doing::Write, &path))?;
        let deadline = Instant::now() + args.time;
        while state.alive().is_some() {
            // The same process: it was alive after the descriptor was made.
            if Instant::now() >= deadline && started_ticks(info.pid) == Some(info.started_ticks) {
                say!("limen: {} does not end: the VM is switched off", args.name);
                pidfd_send_signal(&process, Signal::KILL)?;
                break;
            }
            std::thread::sleep(LOOK);
        }
    }
    say!("limen: {}: {}", args.name, state.status());
    std::fs::remove_dir_all(&state.dir).map_err(Failure::at(Doing::Remove, &state.dir))?;
    // It stays while there are others in it.
    let _ = std::fs::remove_dir(super::top_path());
    Ok(0)
}
