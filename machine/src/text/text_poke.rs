//! Writing kernel text, which is never writable: the machine's side of `text_patching`.
//!
//! Text is mapped executable and read-only, its alias in the direct map read-only. To change
//! bytes, a [`Window`] maps the one or two pages that hold them a third time, writable and not
//! executable, at `memory::text_alias`; it is there only while the window is held, with interrupts
//! masked, and every CPU has forgotten it when the window is closed.
//!
//! Two ways lead to a window. The boot pass ([`boot_window`]) may write any text, until the door
//! behind it is closed ([`close_the_door`]), before other CPUs start. Afterwards there is only
//! [`switch`], which changes sites that the tables list to the forms that these sites may have, by
//! the int3 protocol; and late text, which may write nothing but its own pages.
//!
//! Why not a private page table for the writer, where other CPUs could not even see the alias: it
//! would have to be known to every path that loads CR3, NMIs included. The alias lives for a few
//! microseconds at an address that a program cannot reach.
//!
//! Neighbours: `cfi` runs the boot pass, `static_branch` and `static_call` switch, `late_text`
//! loads.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use context_tracking::work::Cause;
use entry::PtRegs;
use text_patching::int3::{self, Action, BATCH_MAX, Batch, Step};
use text_patching::{Anomaly, Code, Patch, Text, TextPoke, Unmapped, What};

use crate::context_tracking::tlb;
use crate::cpu;
use crate::cpu::sealed::sealed;
use crate::cpu::sync::{SpinGuard, SpinLock};
use crate::memory::frame::PAGE_SIZE;
use crate::memory::shadow_stack;
use crate::memory::{self, TEXT_ALIAS_PAGES, text_alias};
use crate::text::vdso;

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __entry_text_start: u8;
    static __entry_text_end: u8;
    static __late_text_start: u8;
    static __late_text_end: u8;
}

const PAGE_MASK: u64 = PAGE_SIZE as u64 - 1;

/// Addresses of the image's text.
pub(crate) fn text_range() -> core::ops::Range<u64> {
    (&raw const __text_start) as u64..(&raw const __text_end) as u64
}

/// Addresses of the code that entries execute before they have caught up.
fn entry_range() -> core::ops::Range<u64> {
    (&raw const __entry_text_start) as u64..(&raw const __entry_text_end) as u64
}

/// Addresses of the room for late text.
pub(crate) fn late_range() -> core::ops::Range<u64> {
    (&raw const __late_text_start) as u64..(&raw const __late_text_end) as u64
}

/// Whether `[at, at + len)` lies in `range`.
#[inline(always)]
fn is_inside(range: core::ops::Range<u64>, at: u64, len: usize) -> bool {
    let room = (range.end - range.start).checked_sub(len as u64);
    room.is_some_and(|room| at.wrapping_sub(range.start) <= room)
}

/// Whether `[at, at + len)` is text or room for it.
#[inline(always)]
fn is_text(at: u64, len: usize) -> bool {
    is_inside(text_range(), at, len) || is_inside(late_range(), at, len)
}

/// Kernel text, read at its own address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveText;

impl Text for LiveText {
    #[inline(always)]
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        if !is_text(addr, out.len()) {
            return Err(Unmapped);
        }
        // SAFETY: the bytes are mapped readable for as long as the kernel runs. They are no Rust
        // object; another CPU's patch may be seen in part, which every caller's decoder refuses.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }
}

/// The one writer at a time.
static WRITER: SpinLock<Storage> = SpinLock::new(Storage { patches: [NO_PATCH; BATCH_MAX] });
const NO_PATCH: Patch = Patch::whole(0, Code::new(&[]), Code::new(&[]));
sealed! {
    /// Whether the boot pass may still open a window.
    static DOOR_OPEN: AtomicBool = AtomicBool::new(true);
    /// Whether other CPUs may have seen the alias.
    static OTHERS_RUN: AtomicBool = AtomicBool::new(false);
}

/// Where [`WRITER`] lies.
#[cfg(feature = "ktest")]
pub(crate) fn patches_range() -> core::ops::Range<u64> {
    let start = (&raw const WRITER) as u64;
    start..start + size_of_val(&WRITER) as u64
}

struct Storage {
    /// What int3 handlers read while a batch is active.
    patches: [Patch; BATCH_MAX],
}

/// Text, writable while it lives. Interrupts are masked, and nobody else has one.
pub(crate) struct Window<'a> {
    /// The text page that is mapped at the alias; 0: none.
    page: u64,
    /// The only text that may be written.
    range: core::ops::Range<u64>,
    writer: SpinGuard<'a, Storage>,
}

impl Window<'_> {
    fn open(range: core::ops::Range<u64>) -> Self {
        Window { page: 0, range, writer: WRITER.lock() }
    }

    /// Whether `[addr, addr + len)` may be written.
    #[inline(always)]
    fn covers(&self, addr: u64, len: usize) -> bool {
        is_inside(self.range.clone(), addr, len)
    }

    /// Writes byte by byte, the last one first: a return is whole until its head is a jump's.
    #[inline(never)]
    fn poke_bytes(&mut self, addr: u64, bytes: &[u8]) {
        for (at, &byte) in bytes.iter().enumerate().rev() {
            store(self.alias(addr + at as u64), byte);
        }
    }

    /// Where the byte at `addr` can be written.
    #[inline(always)]
    fn alias(&mut self, addr: u64) -> *mut u8 {
        let page = addr & !PAGE_MASK;
        if page != self.page {
            self.move_to(page);
        }
        (text_alias() + (addr & PAGE_MASK)) as *mut u8
    }

    /// Maps `page` at the alias, in place of the one that was there.
    #[inline(never)]
    fn move_to(&mut self, page: u64) {
        let two = is_text(page + PAGE_SIZE as u64, 1);
        // SAFETY: this window holds the lock, and `poke` has checked the range.
        let mapped = unsafe { memory::map_text_alias(page, two) };
        assert!(mapped, "no memory for the page table of the text alias");
        self.page = page;
    }
}

impl Text for Window<'_> {
    #[inline(always)]
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        LiveText.read(addr, out)
    }
}

impl TextPoke for Window<'_> {
    #[inline(always)]
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        assert!(self.covers(addr, bytes.len()), "a write outside the text of this window");
        let to = self.alias(addr);
        // One store each: an NMI sees the old bytes or the new ones.
        match *bytes {
            [a] => store(to, a),
            [a, b] => store(to, u16::from_le_bytes([a, b])),
            [a, b, c, d] => store(to, u32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => store(to, u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            [a, b, c, d, e] => {
                self.poke_word::<5>(addr, u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]));
            }
            [a, b, c, d, e, f] => {
                self.poke_word::<6>(addr, u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
            }
            _ => self.poke_bytes(addr, bytes),
        }
    }

    /// One store with the bytes behind as they are, so that an NMI finds no mixture: in single
    /// bytes only what ends where this window's text does.
    #[inline(always)]
    fn poke_word<const N: usize>(&mut self, addr: u64, word: u64) {
        const { assert!(N < 8, "stores of eight bytes keep none") };
        if !self.covers(addr, 8) {
            assert!(self.covers(addr, N), "a write outside the text of this window");
            return self.poke_bytes(addr, &word.to_le_bytes()[..N]);
        }
        let to = self.alias(addr);
        let others = u64::MAX << (8 * N);
        store(to, load(to) & others | word & !others);
    }
}

/// Eight bytes of the alias.
#[inline(always)]
fn load(from: *mut u8) -> u64 {
    // SAFETY: as in `store`; what is mapped writable can be read.
    unsafe { from.cast::<u64>().read_unaligned() }
}

/// What one instruction stores.
trait Word: Copy {
    /// # Safety
    /// `to` can be written.
    unsafe fn store(self, to: *mut u8);
}

macro_rules! words {
    ($($word:ty: $class:ident, $mov:literal;)+) => {
        $(impl Word for $word {
            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the caller's. Not left to the compiler, which stores arrays in parts.
                unsafe {
                    core::arch::asm!($mov, to = in(reg) to, value = in($class) self,
                        options(nostack, preserves_flags));
                }
            }
        })+
    };
}

words! {
    u8: reg_byte, "mov byte ptr [{to}], {value}";
    u16: reg, "mov word ptr [{to}], {value:x}";
    u32: reg, "mov dword ptr [{to}], {value:e}";
    u64: reg, "mov qword ptr [{to}], {value:r}";
}

/// One store of `value` at `to`, which need not be aligned.
#[inline(always)]
fn store(to: *mut u8, value: impl Word) {
    // SAFETY: `to` is in the alias, which maps two pages, so 8 bytes from any byte of the first are
    // mapped writable; the alias belongs to the window that called.
    unsafe { value.store(to) };
}

const _: () = assert!(TEXT_ALIAS_PAGES == 2, "eight bytes may cross one page boundary");

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if self.page == 0 {
            return;
        }
        memory::unmap_text_alias();
        if OTHERS_RUN.load(Ordering::Relaxed) {
            tlb::flush_kernel(Cause::TextAlias);
        }
        cpu::serialize();
    }
}

/// A window for the boot pass; `None` once the door is closed.
pub(crate) fn boot_window() -> Option<Window<'static>> {
    DOOR_OPEN.load(Ordering::SeqCst).then(|| Window::open(text_range()))
}

/// No window for all text is opened from here on. Before the other CPUs start.
pub(crate) fn close_the_door() {
    DOOR_OPEN.store(false, Ordering::SeqCst);
    OTHERS_RUN.store(true, Ordering::SeqCst);
    assert_alias_gone();
}

/// Stops the machine if the alias is mapped.
pub(crate) fn assert_alias_gone() {
    assert!(!is_alias_mapped(), "the alias of kernel text is mapped");
}

/// Whether any page of the alias is mapped.
pub(crate) fn is_alias_mapped() -> bool {
    (0..TEXT_ALIAS_PAGES)
        .any(|n| memory::kernel_rights(text_alias() + n * PAGE_SIZE as u64).present)
}

/// A window for pages of late text that are not executable yet.
pub(crate) fn late_window(range: core::ops::Range<u64>) -> Window<'static> {
    let room = late_range();
    assert!(room.start <= range.start && range.end <= room.end, "not in the room for late text");
    assert!(!memory::kernel_rights(range.start).exec, "late text is executable already");
    Window::open(range)
}

/// A window for the vDSO's data page, which is read-only data that programs read.
pub(crate) fn vdso_window() -> Window<'static> {
    Window::open(vdso::data_range())
}

/// A window with one page of late text at the alias.
#[cfg(feature = "ktest")]
pub(crate) fn open_for_test(page: u64) -> Window<'static> {
    let mut window = late_window(page..page + PAGE_SIZE as u64);
    window.poke(page, &[int3::INT3]);
    window
}

/// The batch that the int3 handlers of all CPUs consult.
static ACTIVE: AtomicPtr<Patch> = AtomicPtr::new(core::ptr::null_mut());
static ACTIVE_LEN: AtomicUsize = AtomicUsize::new(0);

/// Changes sites of running text on all CPUs: at most [`BATCH_MAX`], ascending, five bytes each.
/// `next` gives the patches in order. Returns how many were changed; the old instructions are
/// executed by nobody any more then.
///
/// # Errors
/// The first site that is not as its patch says; nothing was changed.
///
/// The caller vouches that every patch is one that `jump_label` or `static_call` derived from the
/// tables; [`is_listed`] is asked again here, since this is the way that stays open.
pub(crate) fn switch<F>(mut next: F) -> Result<usize, Anomaly>
where
    F: FnMut(&LiveText, usize) -> Option<Result<Patch, Anomaly>>,
{
    let mut window = Window::open(text_range());
    let mut count = 0;
    let mut seen = 0;
    while let Some(patch) = next(&LiveText, seen) {
        let patch = patch?;
        seen += 1;
        if patch.is_noop() {
            continue;
        }
        // Code there may run on a CPU that has not caught up; objtool refuses such sites too.
        // Until the door closes no CPU has been in user mode.
        let is_early = DOOR_OPEN.load(Ordering::SeqCst);
        assert!(is_early || !entry_range().contains(&patch.at), "a patch of entry text");
        if !is_listed(patch.at) {
            return Err(Anomaly::new(patch.at, 0, What::UnknownTail));
        }
        let Some(slot) = window.writer.patches.get_mut(count) else {
            return Err(Anomaly::new(patch.at, 0, What::NoRoom));
        };
        *slot = patch;
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    let list = window.writer.patches.as_ptr();
    // SAFETY: the storage is a static that only the holder of the lock writes, and this function
    // holds the lock until all CPUs have left the handlers that read it.
    let patches: &'static [Patch] = unsafe { core::slice::from_raw_parts(list, count) };
    let mut batch = Batch::new(&LiveText, patches)?;
    ACTIVE_LEN.store(count, Ordering::SeqCst);
    ACTIVE.store(list.cast_mut(), Ordering::SeqCst);
    // POINT OF NO RETURN: every byte was verified; from here on there are only stores.
    #[cfg(feature = "ktest")]
    let mut round = 0;
    while batch.advance(&mut window) == Step::SyncCores {
        tlb::sync_cores();
        #[cfg(feature = "ktest")]
        {
            crate::ktest::between(round);
            round += 1;
        }
    }
    if cpu::is_emulated() {
        write_again(&mut window, patches);
    }
    ACTIVE.store(core::ptr::null_mut(), Ordering::SeqCst);
    Ok(count)
}

/// Whether [`switch_all`] would change all of `lists`: ascending, five bytes each.
///
/// # Errors
/// The first patch that is not of a site that may change now, or not as the site is.
pub(crate) fn check_all(lists: &[&[Patch]]) -> Result<(), Anomaly> {
    for chunk in lists.iter().flat_map(|list| list.chunks(BATCH_MAX)) {
        Batch::new(&LiveText, chunk)?;
        for patch in chunk {
            assert!(!entry_range().contains(&patch.at), "a patch of entry text");
            if !is_listed(patch.at) {
                return Err(Anomaly::new(patch.at, 0, What::UnknownTail));
            }
        }
    }
    Ok(())
}

/// As [`switch`], for any number of patches: ascending, five bytes each. They become visible in
/// portions of [`BATCH_MAX`].
///
/// # Errors
/// As [`check_all`]; nothing was changed.
pub(crate) fn switch_all(patches: &[Patch]) -> Result<usize, Anomaly> {
    check_all(&[patches])?;
    let mut changed = 0;
    for chunk in patches.chunks(BATCH_MAX) {
        let mut rest = chunk.iter();
        changed += switch(|_, _| rest.next().map(|&patch| Ok(patch)))?;
    }
    Ok(changed)
}

/// QEMU's emulation forgets what it has translated *before* it does the store, so a CPU that
/// translates a site at that instant keeps the old bytes, synchronised or not. By now it has: one
/// more store of the same bytes makes it forget them.
fn write_again(window: &mut Window<'_>, patches: &[Patch]) {
    for patch in patches {
        for (at, &byte) in (patch.at..).zip(patch.new.as_slice()) {
            window.poke(at, &[byte]);
        }
    }
    tlb::sync_cores();
}

/// Whether a run-time switch may change the five bytes at `site`.
fn is_listed(site: u64) -> bool {
    let listed = crate::text::cfi::tables().is_some_and(|tables| {
        tables
            .calls()
            .find(site)
            .is_some_and(|call| crate::text::static_call::is_open(call.dynamic))
            || tables.branches().find(site).is_some_and(|branch| !branch.ro_after_init)
            || DOOR_OPEN.load(Ordering::SeqCst) && tables.branches().find(site).is_some()
    });
    listed || crate::text::static_call::is_open_trampoline(site)
}

/// An int3 in the kernel: does the work of the instruction that is being put there. False: the int3
/// is nobody's. Interrupts are masked, so this CPU cannot have agreed to the batch's end yet.
pub(crate) fn on_int3(regs: &mut PtRegs) -> bool {
    for _ in 0..INT3_LOOKS {
        let action = active_action(regs.rip).or_else(|| {
            let mut byte = [0];
            LiveText.read(regs.rip.wrapping_sub(1), &mut byte).ok()?;
            int3::on_late_int3(regs.rip, byte[0])
        });
        if let Some(action) = action {
            act(regs, action);
            return true;
        }
        // An int3 without a batch: the next batch may have begun between the two looks.
    }
    false
}

/// How often a handler looks for the batch of an int3 that it sees in text.
const INT3_LOOKS: u32 = 16;

/// What the active batch says about an int3.
fn active_action(rip: u64) -> Option<Action> {
    let list = ACTIVE.load(Ordering::SeqCst);
    if list.is_null() {
        return None;
    }
    // SAFETY: the list is published before the first int3 is written, and is not changed before
    // every CPU has left its handler (it acknowledges the last round with interrupts enabled, or
    // from a wait that no int3 handler makes).
    let patches = unsafe { core::slice::from_raw_parts(list, ACTIVE_LEN.load(Ordering::SeqCst)) };
    int3::on_int3(patches, rip)
}

fn act(regs: &mut PtRegs, action: Action) {
    match action {
        Action::Jump(to) | Action::Retry(to) => regs.rip = to,
        Action::SetThenJump { value, to } => (regs.rax, regs.rip) = (value.into(), to),
        Action::Call { target, return_to } => {
            regs.rsp -= 8;
            // SAFETY: `entry.S` leaves two words of room between the frame and the stack of what
            // was interrupted, whose next push would go exactly there.
            unsafe { (regs.rsp as *mut u64).write(return_to) };
            shadow_stack::call_interrupted();
            regs.rip = target;
        }
        Action::Return => pop_rip(regs),
        Action::ZeroThenReturn => {
            regs.rax = 0;
            pop_rip(regs);
        }
    }
}

/// What RET does.
pub(crate) fn pop_rip(regs: &mut PtRegs) {
    // SAFETY: the interrupted code stands at the entry of a call that it is about to leave, so its
    // stack pointer names the return address.
    regs.rip = unsafe { (regs.rsp as *const u64).read() };
    regs.rsp += 8;
    shadow_stack::return_interrupted();
}
