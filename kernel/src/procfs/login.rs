//! Who has logged in: loginuid and sessionid of /proc/PID (proc_pid_loginuid(5)).
//!
//! Both belong to the process, where Linux has them for each thread: its first thread alone sets
//! them.

use abi::{Errno, Result};

use super::process_dir::Subject;
use crate::fs::pseudo::Text;
use crate::process::current;
use crate::security::{Capability, Login};

fn login(subject: &Subject) -> &Login {
    &subject.process.settings.login
}

pub(super) fn uid(subject: &Subject, out: &mut Text) -> Result<()> {
    write!(out, "{}", login(subject).get() as u32);
    Ok(())
}

pub(super) fn session(subject: &Subject, out: &mut Text) -> Result<()> {
    write!(out, "{}", login(subject).get() >> 32);
    Ok(())
}

/// Anybody may say once who he is; to change that takes CAP_AUDIT_CONTROL. The thread itself alone
/// does it. Each user that is set begins a session.
pub(super) fn set_uid(subject: &Subject, data: &[u8]) -> Result<()> {
    let thread = subject.thread();
    if !thread.is_some_and(|thread| thread.is_current()) {
        return Err(Errno::EPERM);
    }
    let uid = parse_id(data)?;
    let is_set = login(subject).get() != Login::NOBODY;
    if is_set && !current().subject().capable(Capability::AuditControl) {
        return Err(Errno::EPERM);
    }
    login(subject).begin(uid);
    Ok(())
}

/// A decimal number, with a newline behind it or without. EINVAL; ERANGE if it is no id.
fn parse_id(data: &[u8]) -> Result<u32> {
    let digits = data.strip_suffix(b"\n").unwrap_or(data);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Errno::EINVAL);
    }
    let text = core::str::from_utf8(digits).map_err(|_| Errno::EINVAL)?;
    text.parse().map_err(|_| Errno::ERANGE)
}
