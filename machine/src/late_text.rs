//! Code that is loaded after boot, into room that the image keeps for it.
//!
//! Pages of the room are readable only; they are written through a patcher's window, checked and
//! given this boot's hashes by the code that has checked the whole kernel, and only then made
//! executable. They are never writable at their own address, and never both. Each piece brings its
//! own table of checks, in which a trap finds its site.
//!
//! Neighbours: `text_poke` writes, `text_patching::boot` checks, `cfi` asks [`find`] in its traps.

#![cfg_attr(not(feature = "ktest"), expect(dead_code, reason = "its first user is its test"))]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use text_patching::TextPoke;
use text_patching::site_table::{CheckEntry, Contents, FunctionEntry, SiteTables};
use text_patching::tail::{Kind, Shape, rel32_to};
use text_patching::trap::CfiFailure;

use crate::cfi;
use crate::frame::PAGE_SIZE;
use crate::sync::{Once, SpinLock};
use crate::text_poke::{late_range, late_window, text_range};
use crate::{paging, tlb};

/// Most pieces that can be loaded.
const PIECES_MAX: usize = 16;

/// Code to be loaded. All offsets are from its first byte.
pub(crate) struct Piece<'a> {
    /// The bytes, with the hashes of the build.
    pub(crate) code: &'a [u8],
    /// Offset and hash of each check.
    pub(crate) checks: &'a [(usize, u32)],
    /// Offset and hash of each function that is called through pointers.
    pub(crate) functions: &'a [(usize, u32)],
}

/// Why a piece was not loaded. Nothing of it is executable then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The kernel itself was not finished: there is nothing to check against.
    NoTables,
    /// The room, or the number of pieces, is used up.
    NoRoom,
    /// The piece is not as its own lists say.
    Malformed,
}

static TABLES: [Once<SiteTables<'static>>; PIECES_MAX] = [const { Once::new() }; PIECES_MAX];
static LOADED: AtomicUsize = AtomicUsize::new(0);
/// The first free byte of the room, relative to its start.
static NEXT: SpinLock<u64> = SpinLock::new(0);

/// Asks the tables of all pieces. Takes no lock.
pub(crate) fn find(
    ask: impl Fn(&SiteTables<'_>) -> Option<CfiFailure>,
) -> Option<CfiFailure> {
    let loaded = LOADED.load(Ordering::Acquire).min(PIECES_MAX);
    TABLES.iter().take(loaded).find_map(|slot| ask(slot.get()?))
}

/// Loads a piece; returns the address of its first byte. It stays for ever.
///
/// # Errors
/// See [`Refused`].
pub(crate) fn load(piece: &Piece<'_>) -> Result<u64, Refused> {
    let (Some(kernel), Some(plan)) = (cfi::tables(), cfi::plan()) else {
        return Err(Refused::NoTables);
    };
    let room = late_range();
    let len = piece.code.len().next_multiple_of(PAGE_SIZE) as u64;
    let mut next = NEXT.lock();
    let slot = TABLES.get(LOADED.load(Ordering::Relaxed)).ok_or(Refused::NoRoom)?;
    if len == 0 || len > room.end - room.start - *next {
        return Err(Refused::NoRoom);
    }
    let base = room.start + *next;
    let mut bytes = write(&link(piece, base, kernel.thunk())?, base, len);
    let tables = table(piece, base, &kernel)?;
    let tables = SiteTables::parse(Box::leak(tables)).map_err(|_| Refused::Malformed)?;
    // The piece has the compiler's form, as the kernel had before it was finished.
    let checked = plan.check(&bytes, tables).map_err(|_| Refused::Malformed)?;
    checked.apply(&mut bytes).map_err(|_| Refused::Malformed)?;
    drop(bytes);
    *next += len;
    slot.call_once(|| tables);
    LOADED.fetch_add(1, Ordering::Release);
    // SAFETY: the pages are this piece's, checked above; their only writable mapping is gone.
    unsafe { paging::set_image_exec(base, len / PAGE_SIZE as u64, true) };
    tlb::sync_cores();
    Ok(base)
}

/// The piece's bytes at their final place: calls behind checks lead to the kernel's thunk.
fn link(piece: &Piece<'_>, base: u64, thunk: Option<u64>) -> Result<Vec<u8>, Refused> {
    let mut code = piece.code.to_vec();
    for &(check, _) in piece.checks {
        // S+14: 2e e8 rel32
        let end = check + TAIL_END;
        let rel = rel32_to(base + end as u64, thunk.ok_or(Refused::Malformed)?);
        let field = code.get_mut(end - 4..end).ok_or(Refused::Malformed)?;
        field.copy_from_slice(&rel.ok_or(Refused::Malformed)?.to_le_bytes());
    }
    Ok(code)
}

/// Where the call behind a check ends, from the check's start.
const TAIL_END: usize = 14 + 6;

fn write(code: &[u8], base: u64, len: u64) -> crate::text_poke::Window<'static> {
    const INT3: u8 = 0xcc;
    let mut window = late_window(base..base + len);
    let filler = core::iter::repeat(&INT3);
    for (at, byte) in (base..base + len).zip(code.iter().chain(filler)) {
        window.poke(at, &[*byte]);
    }
    window
}

fn table(
    piece: &Piece<'_>,
    base: u64,
    kernel: &SiteTables<'_>,
) -> Result<Box<[u8]>, Refused> {
    let shape = Shape { kind: Kind::Call, len: 6 };
    let check = |&(at, hash): &(usize, u32)| {
        CheckEntry { site: base + at as u64, hash, shape, thunk: true }
    };
    let function = |&(at, hash): &(usize, u32)| {
        FunctionEntry { function: base + at as u64, hash, taken: true }
    };
    let checks: Vec<_> = piece.checks.iter().map(check).collect();
    let functions: Vec<_> = piece.functions.iter().map(function).collect();
    let contents = Contents {
        // As the kernel's own tables: the thunk must lie above the base.
        base: text_range().start,
        thunk: kernel.thunk(),
        disp: kernel.disp(),
        form: None,
        checks: &checks,
        functions: &functions,
        ..Contents::default()
    };
    let mut bytes = alloc::vec![0; contents.size()].into_boxed_slice();
    contents.write(&mut bytes).map_err(|_| Refused::Malformed)?;
    Ok(bytes)
}

