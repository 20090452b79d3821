//! Whether a call is made, by a thread that serves its calls itself (`process::user_dispatch`).

use abi::general as raw;
use entry::PtRegs;

use crate::base::user::UserPtr;
use crate::process::seccomp::ARCH;
use crate::process::signal::{SigInfo, send};
use crate::process::{current, exit, user_dispatch};

/// Values of the byte: calls are made; calls become signals.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Whether the call in `regs` is made. If not, it is as if it had not begun, and nobody else is
/// asked about it.
pub(super) fn may_call(regs: &mut PtRegs) -> bool {
    let config = user_dispatch::get(&current());
    if regs.rip.wrapping_sub(config.offset) < config.len {
        return true;
    }
    if config.selector != 0 {
        match UserPtr::<u8>::new(config.selector).read() {
            Ok(ALLOW) => return true,
            Ok(BLOCK) => {}
            Ok(_) => exit::exit_group(regs, raw::SIGSYS as i32),
            Err(_) => exit::exit_group(regs, raw::SIGSEGV as i32),
        }
    }
    let number = regs.orig_rax as u32;
    regs.rax = regs.orig_rax;
    send::force(SigInfo::dispatched(regs.rip, number, ARCH));
    false
}
