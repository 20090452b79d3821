//! The audit level: objtool counts the checks, traps and thunk calls of the kernel image and
//! compares them. Neighbours: `objtool`, and `check` which runs the same audit.

use super::{Context, Summary};
use crate::Error;

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    match crate::check::audit(&context.kernel)? {
        true => Ok(Summary { passed: 1, ..Summary::default() }),
        false => Ok(Summary { failed: 1, ..Summary::default() }),
    }
}
