//! The apps level: the programs of `guest/apps.toml`.

use super::{Context, Summary};
use crate::Error;

pub(super) fn run(_context: &Context) -> Result<Summary, Error> {
    Err("not built yet".into())
}
