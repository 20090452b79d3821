//! Text of an image in a file, seen at its virtual addresses: what rewriting patches.
//!
//! Only executable pieces are text. The map from addresses to file offsets is taken from the parsed
//! image, so a store can reach nothing but the bytes that the audit has seen as code.

use std::ops::Range;

use text_patching::{Text, TextPoke, Unmapped};

use crate::elf::Image;

/// Copy of an image, patchable.
#[derive(Clone, Debug)]
pub struct FileText {
    data: Vec<u8>,
    /// Address, length and file offset of each executable piece, ascending.
    pieces: Vec<(u64, u64, u64)>,
}

impl FileText {
    /// A copy of `data`, whose parsed form is `image`.
    #[must_use]
    pub fn new(data: &[u8], image: &Image<'_>) -> Self {
        let pieces =
            image.text().map(|piece| (piece.address, piece.bytes.len() as u64, piece.file_offset));
        Self { data: data.to_vec(), pieces: pieces.collect() }
    }

    /// The patched file.
    #[must_use]
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    fn range(&self, addr: u64, len: usize) -> Option<Range<usize>> {
        let index = self.pieces.partition_point(|piece| piece.0 <= addr);
        let (start, size, offset) = *self.pieces.get(index.checked_sub(1)?)?;
        let inside = addr - start;
        if inside.checked_add(len as u64)? > size {
            return None;
        }
        let from = usize::try_from(offset.checked_add(inside)?).ok()?;
        Some(from..from.checked_add(len)?)
    }
}

impl Text for FileText {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        let range = self.range(addr, out.len()).ok_or(Unmapped)?;
        out.copy_from_slice(self.data.get(range).ok_or(Unmapped)?);
        Ok(())
    }
}

impl TextPoke for FileText {
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.range(addr, bytes.len());
        if let Some(to) = range.and_then(|range| self.data.get_mut(range)) {
            to.copy_from_slice(bytes);
        }
    }
}
