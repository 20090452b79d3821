//! Starts a VM that outlives us, and comes back when its program runs.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, mkfifoat};

use super::{CONTROL, GROUP, Info, PASSWD, VmState, make_top, started_ticks, write_info};
use crate::args::RunArgs;
use crate::failure::{Doing, Failure};
use crate::run::jail::Jail;
use crate::run::outcome::{Outcome, STATUS_BOOT_FAILURE};
use crate::run::plan::Plan;
use crate::run::qemu::{Wires, port_file};
use crate::run::{shim, vm};
use crate::{Error, paths};

/// How long the program may take to start.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// How often to look.
const LOOK: Duration = Duration::from_millis(10);
/// Where QEMU's own messages go.
const MESSAGES: &str = "qemu";

pub(crate) fn start(args: &RunArgs, name: &str, plan: &Plan) -> Result<u8, Error> {
    let state = VmState::of(name)?;
    if state.alive().is_some() {
        let text = format!("--detach {name}: it is running already (limen stop {name} ends it)");
        return Err(crate::usage(text));
    }
    if state.dir.exists() {
        std::fs::remove_dir_all(&state.dir).map_err(Failure::at(Doing::Remove, &state.dir))?;
    }
    make_top()?;
    std::fs::create_dir(&state.dir).map_err(Failure::at(Doing::Make, &state.dir))?;
    let started = begin(args, &state, plan);
    if started.is_err() {
        // Of what never ran nothing is listed.
        let _ = std::fs::remove_dir_all(&state.dir);
    }
    wait(&state, &mut started?)
}

/// The VM's process, with all that its folder has to hold.
fn begin(args: &RunArgs, state: &VmState, plan: &Plan) -> Result<Child, Error> {
    for end in ["in", "out"] {
        let path = state.dir.join(CONTROL).with_extension(end);
        let made = mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR);
        made.map_err(|errno| Failure::at(Doing::Make, &path)(errno.into()))?;
    }
    for (file, text) in [(PASSWD, &plan.names.passwd), (GROUP, &plan.names.group)] {
        paths::write(&state.dir.join(file), text)?;
    }
    let mut child = spawn(state, plan)?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let info = Info {
        pid: child.id(),
        started_ticks: started_ticks(child.id()).unwrap_or(0),
        started_s: seconds,
        program: args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    };
    if let Err(error) = write_info(&state.dir, &info) {
        // Nobody could name it, nor end it.
        child.kill()?;
        child.wait()?;
        return Err(error);
    }
    Ok(child)
}

/// In a session of its own, with nothing of ours but the initramfs.
fn spawn(state: &VmState, plan: &Plan) -> Result<Child, Error> {
    let initramfs: OwnedFd = vm::memory_file(&plan.initramfs)?;
    let fd = initramfs.as_fd().as_raw_fd();
    let wires = Wires::Detached { initramfs: fd, dir: state.dir.clone() };
    let command = plan.qemu.command(&wires);
    let messages = port_file(&state.dir, MESSAGES);
    let messages = File::create(&messages).map_err(Failure::at(Doing::Make, &messages))?;
    let mut prefix = Jail::find(&plan.qemu, &wires).prefix;
    prefix.extend([std::env::current_exe()?.into(), shim::DETACHED.into()]);
    let started = Command::new(&prefix[0])
        .args(&prefix[1..])
        .args(&command)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(messages.try_clone()?)
        .stderr(messages)
        .spawn();
    Ok(started.map_err(Failure::at(Doing::Start, Path::new(&prefix[0])))?)
}

/// Until the program runs, or has ended, or never will run.
fn wait(state: &VmState, child: &mut Child) -> Result<u8, Error> {
    let started = Instant::now();
    loop {
        let ended = child.try_wait()?;
        let (facts, outcome) = state.said();
        let has_failed = matches!(outcome, Some(Outcome::NotFound(_) | Outcome::NotExecutable(..)));
        if facts.boot_ns.is_some() && !has_failed {
            say!("limen: {} runs: limen logs {0}, limen stop {0}", state.name);
            return Ok(0);
        }
        if let Some(outcome) = outcome {
            say!("limen: {}", outcome.explanation().unwrap_or_default());
            return Ok(outcome.status());
        }
        if ended.is_some() || started.elapsed() > BOOT_LIMIT {
            // It fails if it has just ended by itself.
            let _ = child.kill();
            child.wait()?;
            for port in [MESSAGES, "klog"] {
                let text = std::fs::read(port_file(&state.dir, port)).unwrap_or_default();
                crate::out::err(format_args!("{}", String::from_utf8_lossy(&text)));
            }
            say!("limen: {}: no program ran", state.name);
            return Ok(STATUS_BOOT_FAILURE);
        }
        std::thread::sleep(LOOK);
    }
}
