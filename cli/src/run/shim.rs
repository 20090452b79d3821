//! The step between this program and QEMU: the same binary started again, which arranges that the
//! VM dies with its parent and then becomes QEMU.
//!
//! Why it exists: the arrangement (PR_SET_PDEATHSIG, prctl(2)) must be made in the child between
//! fork and exec, where the standard library only offers an unsafe hook. A second exec of
//! ourselves does it in safe code. Neighbour: `vm.rs`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use rustix::thread::set_no_new_privs;

/// First argument that makes this program the shim. Not part of the command line's definition.
pub(crate) const NAME: &str = "__vm";
/// The same for a VM that is to outlive its parent.
pub(crate) const DETACHED: &str = "__vm-detached";

/// `words`: the parent's process id, then the command.
pub(crate) fn exec(words: &[OsString]) -> ExitCode {
    let [parent, program, arguments @ ..] = words else {
        return ExitCode::FAILURE;
    };
    let parent = parent.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    let armed = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died before that call: then it is not our parent any more.
    if armed.is_err() || parent.is_none() || getppid() != parent {
        return ExitCode::FAILURE;
    }
    become_program(program, arguments)
}

/// `words`: the command. No terminal's signals, and nobody's end, reach it.
pub(crate) fn exec_detached(words: &[OsString]) -> ExitCode {
    let [program, arguments @ ..] = words else {
        return ExitCode::FAILURE;
    };
    // It fails for the leader of a process group, which then has no terminal to lose either.
    let _ = setsid();
    become_program(program, arguments)
}

/// Whatever the program executes, it gets no rights by it that it does not have (prctl(2),
/// PR_SET_NO_NEW_PRIVS).
fn become_program(program: &OsString, arguments: &[OsString]) -> ExitCode {
    if let Err(error) = set_no_new_privs(true) {
        say!("no_new_privs: {error}");
        return ExitCode::FAILURE;
    }
    let error = Command::new(program).args(arguments).exec();
    say!("{}: {error}", program.display());
    ExitCode::FAILURE
}
