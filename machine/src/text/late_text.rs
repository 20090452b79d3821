//! Code that comes after boot and may go again: loaded, checked, run, unloaded.
//!
//! The image keeps room for it beside its own text, so that thunk and callees are in reach. Pages
//! of the room are readable only; [`load`] writes them through a patcher's window, has them checked
//! and given this boot's form and hashes by the code that has checked the whole kernel, and only
//! then makes them executable. They are never writable at their own address, and never both.
//!
//! How to use it, for a compiler of programs: emit a [`Piece`] with the hashes of the *build*
//! ([`hash_of`] gives that of a function of the same type), [`load`] it, take a pointer with
//! [`LateText::function`], and drop the [`LateText`] when nobody calls it any more. When the room
//! is used up ([`Refused::NoRoom`]) interpret instead. Load and unload wait for all CPUs: in a
//! thread, never in an interrupt handler. The bytes come from safe code and are trusted by whoever
//! calls
//! `function`: the safe door for a compiler is a module of this crate that takes that compiler's
//! output type, and nothing else.
//!
//! Why it is hard: each piece brings its own table of checks, in which a trap finds its site, on
//! any CPU and in any context, NMI included, while pieces come and go. Lookups take no lock and
//! wait for nothing; an unload first takes the table out of sight and then lets every CPU pass a
//! point ([`tlb::sync_cores`]) that it reaches only outside of a lookup, and only then frees it.
//!
//! Neighbours: `text_poke` writes, `text_patching::boot` checks, `cfi` asks [`find`] in its traps.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, Ordering};

use text_patching::TextPoke;
use text_patching::preamble;
use text_patching::site_table::{CheckEntry, Contents, FunctionEntry, ReturnEntry, SiteTables};
use text_patching::tail::{BranchKind, Shape, rel32_to};

use crate::context_tracking::tlb;
use crate::cpu::sync::{IrqGuard, SpinLock};
use crate::memory;
use crate::memory::frame::PAGE_SIZE;
use crate::text::cfi;
use crate::text::text_poke::{late_range, late_window, text_range};

/// Pages of the room, which `link.ld` reserves; also the most pieces.
const ROOM_PAGES: usize = 64;
const INT3: u8 = 0xcc;

/// Code to be loaded. All offsets are from its first byte.
pub(crate) struct Piece<'a> {
    /// The bytes, with the hashes of the build.
    pub(crate) code: &'a [u8],
    /// Offset and hash of each check, ascending: the compiler's 14 bytes, and behind them
    /// `2e e8 rel32` with any displacement, which becomes a call of the thunk.
    pub(crate) checks: &'a [(usize, u32)],
    /// Offset and hash of each function that is called through pointers, ascending: 16 bytes of
    /// preamble, `b8 hash` and eleven nops, stand before it.
    pub(crate) functions: &'a [(usize, u32)],
    /// Offset of each direct call or jump (`e8` or `e9`, with any displacement) and the kernel's
    /// function that it leads to: a chain of hooks is a row of these.
    pub(crate) calls: &'a [(usize, u64)],
    /// Offset of each return, ascending: five bytes, `text_patching::return_site::PLAIN`.
    pub(crate) returns: &'a [usize],
}

/// Why a piece was not loaded. Nothing of it is executable then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The kernel itself was not finished: there is nothing to check against.
    NoTables,
    /// The room is used up.
    NoRoom,
    /// The piece is not as its own lists say.
    Malformed,
}

/// What a trap needs to know about a piece.
struct PieceEntry {
    range: Range<u64>,
    tables: Box<[u8]>,
}

/// By the first page of each piece. Written by the piece's owner, read by traps.
static ENTRIES: [AtomicPtr<PieceEntry>; ROOM_PAGES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; ROOM_PAGES];
/// Which pages of the room are in use, one bit each.
static PAGES: SpinLock<u64> = SpinLock::new(0);
const _: () = assert!(ROOM_PAGES == u64::BITS as usize, "a bit for each page");

/// A loaded piece. Dropping it unloads it: see [`LateText::function`] for who must be gone then.
#[derive(Debug)]
pub(crate) struct LateText {
    first: usize,
    pages: usize,
}

impl LateText {
    /// Address of the first byte.
    pub(crate) fn base(&self) -> u64 {
        late_range().start + (self.first * PAGE_SIZE) as u64
    }

    /// A pointer to the function at `offset`.
    ///
    /// # Safety
    /// `F` is the type of the function there; its code keeps what that type promises; and nobody
    /// calls it, or is still in it, when `self` is dropped.
    pub(crate) unsafe fn function<F: Copy>(&self, offset: usize) -> F {
        const { assert!(size_of::<F>() == size_of::<u64>(), "F is a function pointer") };
        let address = self.base() + offset as u64;
        // SAFETY: the caller promises what this function's contract asks for.
        unsafe { core::mem::transmute_copy(&address) }
    }
}

impl Drop for LateText {
    fn drop(&mut self) {
        let entry = ENTRIES[self.first].swap(core::ptr::null_mut(), Ordering::SeqCst);
        // A lookup masks interrupts and waits for nothing, so a CPU that answers is in none that
        // began before the swap.
        tlb::sync_cores();
        if !entry.is_null() {
            // SAFETY: `load` made it from a box, the swap made it ours, and no lookup has it.
            drop(unsafe { Box::from_raw(entry) });
        }
        let (base, pages) = (self.base(), self.pages as u64);
        // SAFETY: nobody is in the piece any more, as `function` demands.
        unsafe { memory::set_image_exec(base, pages, false) };
        let end = base + pages * PAGE_SIZE as u64;
        let mut window = late_window(base..end);
        fill_with_traps(&mut window, base..end);
        drop(window);
        give_back(self.first, self.pages);
    }
}

/// Asks the tables of the piece around `rip`. Takes no lock, allocates nothing.
pub(crate) fn find<T>(rip: u64, ask: impl Fn(&SiteTables<'_>) -> Option<T>) -> Option<T> {
    if !late_range().contains(&rip) {
        return None;
    }
    // While they are masked this CPU answers no unload, so no entry goes away.
    let _irq = IrqGuard::new();
    ENTRIES.iter().find_map(|slot| {
        // SAFETY: an entry that is visible here is freed only after this CPU has answered.
        let entry = unsafe { slot.load(Ordering::SeqCst).as_ref()? };
        let tables = || SiteTables::parse(&entry.tables).ok();
        if entry.range.contains(&rip) { ask(&tables()?) } else { None }
    })
}

/// The build's hash of a function whose address the kernel takes: what a piece's function of the
/// same type carries, and what its checks of such callees expect.
pub(crate) fn hash_of(function: u64) -> Option<u32> {
    let hash = cfi::tables()?.functions().find(function)?.hash;
    (hash != text_patching::preamble::POISON).then_some(hash)
}

/// Pages of all pieces.
#[cfg(feature = "ktest")]
pub(crate) fn pages_in_use() -> u32 {
    PAGES.lock().count_ones()
}

fn mask(first: usize, pages: usize) -> u64 {
    (u64::MAX >> (ROOM_PAGES - pages)) << first
}

/// Takes so many pages in a row; the first of them.
fn take(pages: usize) -> Option<usize> {
    let room = late_range();
    assert!(room.end - room.start == (ROOM_PAGES * PAGE_SIZE) as u64, "link.ld has another room");
    if pages == 0 || pages > ROOM_PAGES {
        return None;
    }
    let mut used = PAGES.lock();
    let first = (0..=ROOM_PAGES - pages).find(|&first| *used & mask(first, pages) == 0)?;
    *used |= mask(first, pages);
    Some(first)
}

fn give_back(first: usize, pages: usize) {
    *PAGES.lock() &= !mask(first, pages);
}

/// Loads a piece. Its pages, and the wait of all CPUs, make it worth it for what runs often.
///
/// # Errors
/// See [`Refused`].
pub(crate) fn load(piece: &Piece<'_>) -> Result<LateText, Refused> {
    let pages = piece.code.len().div_ceil(PAGE_SIZE);
    let first = take(pages).ok_or(Refused::NoRoom)?;
    // From here on a refusal drops it, which fills the pages with traps and gives them back.
    let late = LateText { first, pages };
    let entry = fill(piece, late.base())?;
    ENTRIES[first].store(Box::into_raw(Box::new(entry)), Ordering::SeqCst);
    // SAFETY: the pages are this piece's, checked above; their only writable mapping is gone.
    unsafe { memory::set_image_exec(late.base(), pages as u64, true) };
    tlb::sync_cores();
    Ok(late)
}

/// Writes and checks a piece; it is not executable yet.
fn fill(piece: &Piece<'_>, base: u64) -> Result<PieceEntry, Refused> {
    let (Some(kernel), Some(plan)) = (cfi::tables(), cfi::plan()) else {
        return Err(Refused::NoTables);
    };
    let code = link(piece, base, &kernel)?;
    let bytes = table(piece, base, &kernel)?;
    let tables = SiteTables::parse(&bytes).map_err(|_| Refused::Malformed)?;
    let len = code.len().next_multiple_of(PAGE_SIZE) as u64;
    let mut window = write(&code, base, len);
    // The piece has the compiler's form, as the kernel had before it was finished.
    let checked = plan.check(&window, tables).map_err(|_| Refused::Malformed)?;
    checked.apply(&mut window).map_err(|_| Refused::Malformed)?;
    Ok(PieceEntry { range: base..base + len, tables: bytes })
}

/// The piece's bytes at their final place: calls behind checks lead to the kernel's thunk, direct
/// ones to its functions.
fn link(piece: &Piece<'_>, base: u64, kernel: &SiteTables<'_>) -> Result<Vec<u8>, Refused> {
    let mut code = piece.code.to_vec();
    let outside = |&(at, _): &(usize, u32)| at < PREAMBLE_LEN || at >= code.len();
    if piece.functions.iter().any(outside) {
        return Err(Refused::Malformed);
    }
    for &(check, _) in piece.checks {
        // S+14: 2e e8 rel32
        let end = check.checked_add(TAIL_END).ok_or(Refused::Malformed)?;
        aim(&mut code, base, end, kernel.thunk().ok_or(Refused::Malformed)?)?;
    }
    for &(call, target) in piece.calls {
        let is_branch = matches!(code.get(call), Some(0xe8 | 0xe9));
        if !is_branch || kernel.functions().find(target).is_none() {
            return Err(Refused::Malformed);
        }
        aim(&mut code, base, call + DIRECT_LEN, target)?;
    }
    // Where the CPU tracks branches they could land there; pads come with the boot's form.
    let endbr64 = preamble::endbr64().to_le_bytes();
    if code.windows(endbr64.len()).any(|bytes| bytes == endbr64) {
        return Err(Refused::Malformed);
    }
    Ok(code)
}

/// Gives the branch that ends at offset `end` its displacement.
fn aim(code: &mut [u8], base: u64, end: usize, target: u64) -> Result<(), Refused> {
    let rel = rel32_to(base + end as u64, target).ok_or(Refused::Malformed)?;
    let field = code.get_mut(end - 4..end).ok_or(Refused::Malformed)?;
    field.copy_from_slice(&rel.to_le_bytes());
    Ok(())
}

/// Where the call behind a check ends, from the check's start.
const TAIL_END: usize = 14 + 6;
/// A direct call or jump: e8 or e9, rel32.
const DIRECT_LEN: usize = 5;
/// What stands before a function that is called through pointers.
const PREAMBLE_LEN: usize = 16;

/// Writes the code, and traps behind it up to the end of its last page.
fn write(code: &[u8], base: u64, len: u64) -> crate::text::text_poke::Window<'static> {
    let mut window = late_window(base..base + len);
    fill_with_traps(&mut window, base..base + len);
    for (at, chunk) in (base..).step_by(8).zip(code.chunks(8)) {
        window.poke(at, chunk);
    }
    window
}

fn fill_with_traps(window: &mut crate::text::text_poke::Window<'_>, pages: Range<u64>) {
    pages.step_by(8).for_each(|at| window.poke(at, &[INT3; 8]));
}

fn table(piece: &Piece<'_>, base: u64, kernel: &SiteTables<'_>) -> Result<Box<[u8]>, Refused> {
    let shape = Shape { kind: BranchKind::Call, len: 6 };
    let check = |&(at, hash): &(usize, u32)| CheckEntry {
        site: base + at as u64,
        hash,
        shape,
        thunk: true,
    };
    let function = |&(at, hash): &(usize, u32)| FunctionEntry {
        function: base + at as u64,
        hash,
        taken: true,
    };
    let checks: Vec<_> = piece.checks.iter().map(check).collect();
    let functions: Vec<_> = piece.functions.iter().map(function).collect();
    let at = |&at: &usize| ReturnEntry { site: base + at as u64 };
    let returns: Vec<_> = piece.returns.iter().map(at).collect();
    let contents = Contents {
        // As the kernel's own tables: the thunk must lie above the base.
        base: text_range().start,
        thunk: kernel.thunk(),
        disp: kernel.disp(),
        form: None,
        checks: &checks,
        functions: &functions,
        returns: &returns,
        ..Contents::default()
    };
    let mut bytes = alloc::vec![0; contents.size()].into_boxed_slice();
    contents.write(&mut bytes).map_err(|_| Refused::Malformed)?;
    Ok(bytes)
}
