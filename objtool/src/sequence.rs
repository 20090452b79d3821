//! The bytes of a checked call as the shipped image has them, for whoever wants to measure them.

use text_patching::Text as _;
use text_patching::kcfi::TAIL;
use text_patching::site_table::{self, SiteTables};
use text_patching::tail::BranchKind;

use crate::elf::Image;
use crate::{Error, Result};

/// Bytes of a check and the call behind it.
pub const SEQUENCE_LEN: usize = 20;
/// Where they differ from site to site: the hash, and the way to the thunk.
const VARIES: [core::ops::Range<usize>; 2] = [2..6, 16..20];

/// A checked call of a finished image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Where it is.
    pub site: u64,
    /// Check and call.
    pub bytes: [u8; SEQUENCE_LEN],
    /// How many of the image's checked calls have the same bytes, but for hash and displacement.
    pub same: usize,
    /// How many checked calls it has; tail calls, which are jumps, do not count.
    pub calls: usize,
}

/// The most frequent sequence is the first one's; an image with another one has more than one.
///
/// # Errors
/// When `data` is no finished image, or has no checked call through a thunk.
pub fn sequence(data: &[u8]) -> Result<Sequence> {
    let image = Image::parse(data)?;
    let section = image.section(site_table::SECTION).ok_or(Error::NoSection)?;
    let tables = SiteTables::parse(section.bytes).map_err(Error::Table)?;
    let mut found: Option<Sequence> = None;
    for entry in tables.checks().iter() {
        if !entry.thunk || entry.shape.kind != BranchKind::Call {
            continue;
        }
        let mut bytes = [0; SEQUENCE_LEN];
        let len = TAIL as usize + usize::from(entry.shape.len);
        let there = bytes.get_mut(..len).map(|bytes| image.read(entry.site, bytes));
        if there != Some(Ok(())) {
            return Err(Error::Refused(format!("{:#x} is not in the image", entry.site)));
        }
        let first = Sequence { site: entry.site, bytes, same: 0, calls: 0 };
        let sequence = found.get_or_insert(first);
        sequence.calls += 1;
        sequence.same += usize::from(masked(bytes) == masked(sequence.bytes));
    }
    found.ok_or_else(|| Error::Refused("no checked call".into()))
}

fn masked(mut bytes: [u8; SEQUENCE_LEN]) -> [u8; SEQUENCE_LEN] {
    for range in VARIES {
        bytes.get_mut(range).into_iter().for_each(|part| part.fill(0));
    }
    bytes
}
