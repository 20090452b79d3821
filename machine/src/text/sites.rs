//! Room for the tables of patch sites, and the bytes that objtool has written there.
//!
//! The linker keeps the room in read-only data; objtool fills it after linking. The compiler must
//! not know the zeros that it sees at compile time, so the room is made by the assembler and
//! found by the linker script's symbols.
//!
//! Neighbours: `text_patching::site_table` reads the bytes; `objtool::finish` writes them.

use core::arch::global_asm;

/// Bytes of the room. A check takes 8 bytes, a function with a preamble 8, a static branch 12, a
/// return 4. The build with in-kernel tests needs the most, but for those that are not optimised
/// across a crate's parts.
const ROOM: usize = if cfg!(feature = "large-tables") { 256 << 10 } else { 144 << 10 };

global_asm!(
    ".pushsection .limen_sites, \"a\", @progbits",
    ".zero {room}",
    ".popsection",
    room = const ROOM,
);

unsafe extern "C" {
    static __limen_sites_start: u8;
    static __limen_sites_end: u8;
}

/// Whether objtool has finished this image.
pub(crate) fn are_filled() -> bool {
    tables().first().is_some_and(|&first| first != 0)
}

/// The tables, as they are in the image; all zero in an image that objtool has not finished.
#[must_use]
pub fn tables() -> &'static [u8] {
    let start = &raw const __limen_sites_start;
    let len = (&raw const __limen_sites_end).addr() - start.addr();
    // SAFETY: the linker script puts both symbols around one read-only section that is mapped for
    // as long as the kernel runs, and nobody writes it.
    unsafe { core::slice::from_raw_parts(start, len) }
}
