//! The ioctls of terminals (ioctl_tty(2)).

use alloc::sync::Arc;

use abi::{Errno, Result, general, ioctl as raw};
use zerocopy::IntoBytes;

use super::termios::{TERMIOS_BYTES, Termios};
use super::{Tty, WinSize, job};
use crate::base::poll::events;
use crate::base::user::UserPtr;
use crate::security::Capability;

/// What a change of settings does before it takes effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    /// Input that was not read is thrown away.
    Flush,
}

/// Serves an ioctl of either side; ENOTTY for one that terminals do not know.
pub(super) fn ioctl(tty: &Arc<Tty>, is_master: bool, command: u32, at: u64) -> Result<u64> {
    match command {
        raw::TCGETS => {
            let termios = *tty.state.lock().discipline.termios();
            let bytes = &termios.as_bytes()[..TERMIOS_BYTES];
            UserPtr::<u8>::new(at).write_bytes(bytes)?;
        }
        raw::TCGETS2 => {
            let termios = *tty.state.lock().discipline.termios();
            UserPtr::<Termios>::new(at).write(&termios)?;
        }
        // Output is never far away: waiting for it to drain has nothing to wait for.
        raw::TCSETS | raw::TCSETSW => return set_termios(tty, at, TERMIOS_BYTES, When::Now),
        raw::TCSETSF => return set_termios(tty, at, TERMIOS_BYTES, When::Flush),
        raw::TCSETS2 | raw::TCSETSW2 => {
            return set_termios(tty, at, size_of::<Termios>(), When::Now);
        }
        raw::TCSETSF2 => return set_termios(tty, at, size_of::<Termios>(), When::Flush),
        raw::TCSBRK | raw::TCSBRKP => job::check_background(tty, general::SIGTTOU)?,
        raw::TCFLSH => return flush(tty, is_master, at),
        raw::TCXONC => return flow(tty, at),
        raw::TIOCGWINSZ => UserPtr::<WinSize>::new(at).write(&tty.window())?,
        raw::TIOCSWINSZ => tty.set_window(UserPtr::<WinSize>::new(at).read()?),
        raw::FIONREAD => {
            let len = tty.state.lock().discipline.queued();
            UserPtr::<i32>::new(at).write(&(len as i32))?;
        }
        raw::TIOCOUTQ => {
            let len = tty.state.lock().output.len();
            UserPtr::<i32>::new(at).write(&(len as i32))?;
        }
        raw::TIOCGETD => UserPtr::<i32>::new(at).write(&0)?,
        raw::TIOCSETD => {
            if UserPtr::<i32>::new(at).read()? != 0 {
                return Err(Errno::EINVAL);
            }
        }
        raw::TIOCEXCL | raw::TIOCNXCL => {}
        raw::TIOCGDEV => UserPtr::<u32>::new(at).write(&(tty.device as u32))?,
        raw::TIOCSTI => {
            if !current_may_administer() {
                return Err(Errno::EPERM);
            }
            let byte = UserPtr::<u8>::new(at).read()?;
            tty.type_in(&[byte]);
        }
        _ => return job_control(tty, is_master, command, at),
    }
    Ok(0)
}

fn job_control(tty: &Arc<Tty>, is_master: bool, command: u32, at: u64) -> Result<u64> {
    match command {
        raw::TIOCGPGRP => {
            let (group, _) = job::ids(tty, is_master)?;
            UserPtr::<u32>::new(at).write(&group)?;
            Ok(0)
        }
        raw::TIOCGSID => {
            let (_, session) = job::ids(tty, is_master)?;
            if session == 0 {
                return Err(Errno::ENOTTY);
            }
            UserPtr::<u32>::new(at).write(&session)?;
            Ok(0)
        }
        raw::TIOCSPGRP => job::set_foreground(tty, UserPtr::<i32>::new(at).read()?),
        raw::TIOCSCTTY if !is_master => job::take(tty, at == 1),
        raw::TIOCNOTTY => job::give_up(tty),
        _ => Err(Errno::ENOTTY),
    }
}

fn current_may_administer() -> bool {
    crate::process::current().subject().capable(Capability::SysAdmin)
}

fn set_termios(tty: &Arc<Tty>, at: u64, len: usize, when: When) -> Result<u64> {
    job::check_background(tty, general::SIGTTOU)?;
    let mut termios = *tty.state.lock().discipline.termios();
    UserPtr::<u8>::new(at).read_bytes(&mut termios.as_mut_bytes()[..len])?;
    {
        let mut state = tty.state.lock();
        if when == When::Flush {
            state.discipline.flush_input();
        }
        state.discipline.set_termios(termios);
        if !termios.input(general::IXON) {
            state.is_stopped = false;
        }
    }
    // Input that was an unfinished line may be readable now.
    tty.readers.wake_all(events::READABLE);
    tty.writers.wake_all(events::WRITABLE);
    tty.keyboard.wake_all(events::WRITABLE);
    Ok(0)
}

/// TCFLSH. For a master, input and output change places.
fn flush(tty: &Arc<Tty>, is_master: bool, which: u64) -> Result<u64> {
    if !is_master {
        job::check_background(tty, general::SIGTTOU)?;
    }
    let (input, output) = match which {
        0 => (!is_master, is_master),
        1 => (is_master, !is_master),
        2 => (true, true),
        _ => return Err(Errno::EINVAL),
    };
    {
        let mut state = tty.state.lock();
        if input {
            state.discipline.flush_input();
        }
        if output {
            state.output.clear();
        }
    }
    tty.keyboard.wake_all(events::WRITABLE);
    tty.writers.wake_all(events::WRITABLE);
    Ok(0)
}

/// TCXONC: stops or continues output. What it says about input is for the other side to obey.
fn flow(tty: &Arc<Tty>, action: u64) -> Result<u64> {
    job::check_background(tty, general::SIGTTOU)?;
    match action {
        0 | 1 => {
            tty.state.lock().is_stopped = action == 0;
            tty.writers.wake_all(events::WRITABLE);
            Ok(0)
        }
        2 | 3 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}
