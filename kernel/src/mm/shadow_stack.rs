//! Shadow stacks of programs: which a thread has, their memory, and what signals put on them.
//!
//! Such memory is an area of its own kind: what changes it are calls, and WRSS where the thread may
//! use it; every other store is refused, the kernel's for the program as well. The registers are
//! `machine::cpu::user_shadow_stack`'s, what is decided `entry::shadow_stack`'s; the calls are in
//! `mapping::shadow_stack`, and who makes and ends a thread asks here.

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::sync::Arc;

use abi::{Errno, Result};
use entry::shadow_stack::{Child, SignalFrame, bytes_of, feature, saved_ssp};
use machine::memory::{Prot, USER_END};
use machine::task::{self, Task};
use machine::user_shadow_stack::UserShadowStack;

use super::vma::VmaFlags;
use super::{Mm, MmInner, PAGE, Removed, Vma};
use crate::base::user::UserPtr;

/// Below it there is none, as on Linux.
pub const LOWEST: u64 = 4 << 30;

/// A thread's.
#[derive(Default)]
pub struct ShadowStack {
    /// [`feature`] bits that are on, and those that its program may not change any more.
    features: AtomicU64,
    locked: AtomicU64,
    /// The area that goes with the thread: start and bytes, which are 0 where it has none.
    start: AtomicU64,
    bytes: AtomicU64,
}

/// An area: its start and its size.
pub type Area = (u64, u64);

impl ShadowStack {
    /// What is on, [`feature`] bits.
    #[inline]
    pub fn features(&self) -> u64 {
        self.features.load(Ordering::Relaxed)
    }

    /// What is locked.
    pub fn locked(&self) -> u64 {
        self.locked.load(Ordering::Relaxed)
    }

    /// Locks more.
    pub fn lock(&self, features: u64) {
        self.locked.fetch_or(features, Ordering::Relaxed);
    }

    /// Locks less.
    pub fn unlock(&self, features: u64) {
        self.locked.fetch_and(!features, Ordering::Relaxed);
    }

    /// The running thread, whose this is, gets a new one.
    pub fn begin(&self, area: Area) {
        self.set_area(area);
        task::set_shadow_stack(UserShadowStack::new(area.0 + area.1, false));
        self.features.store(feature::SHSTK, Ordering::Relaxed);
    }

    /// The running thread, whose this is, may use WRSS from now on, or no more. It has one.
    pub fn allow_writes(&self, allows: bool) {
        let pointer = task::shadow_stack_pointer().unwrap_or(0);
        task::set_shadow_stack(UserShadowStack::new(pointer, allows));
        let writes = if allows { feature::WRSS } else { 0 };
        self.features.store(feature::SHSTK | writes, Ordering::Relaxed);
    }

    /// The running thread, whose this is, has none any more. What is locked stays so.
    pub fn end(&self) -> Option<Area> {
        task::set_shadow_stack(UserShadowStack::OFF);
        self.features.store(0, Ordering::Relaxed);
        self.take_area()
    }

    /// The same for a new program, which may change everything. The area has gone.
    pub fn forget(&self) {
        if self.features() != 0 {
            self.end();
        }
        self.locked.store(0, Ordering::Relaxed);
    }

    /// For a thread in the making of `owner`'s, whose maker runs and has this: the area that will
    /// go with it, and the registers with which it begins. `asked`: bytes of its stack, or 0.
    pub fn for_child(
        &self,
        owner: &impl Owner,
        kind: Child,
        asked: u64,
        task: &mut Task,
    ) -> Result<Option<Area>> {
        let area = match kind {
            Child::None => return Ok(None),
            Child::Copy | Child::Lent => None,
            Child::Own => Some(new_area(owner, asked)?),
        };
        task::init_shadow_stack(task, area.map(|(start, bytes)| start + bytes));
        Ok(if kind == Child::Copy { self.area() } else { area })
    }

    /// What a new thread has of the one that makes it, and the area of its own.
    pub fn inherit(&self, parent: &ShadowStack, area: Option<Area>) {
        self.features.store(parent.features(), Ordering::Relaxed);
        self.locked.store(parent.locked(), Ordering::Relaxed);
        self.set_area(area.unwrap_or_default());
    }

    fn set_area(&self, (start, bytes): Area) {
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn area(&self) -> Option<Area> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        (bytes != 0).then(|| (self.start.load(Ordering::Relaxed), bytes))
    }

    /// The area that was to go with the thread: somebody else sees to it now.
    pub fn take_area(&self) -> Option<Area> {
        let area = self.area();
        self.bytes.store(0, Ordering::Relaxed);
        area
    }
}

/// Who pays for such memory.
pub trait Owner {
    /// Whether there may be as much more: ENOMEM.
    fn check_memory(&self, bytes: u64) -> Result<()>;
    /// Most bytes of all its areas.
    fn total_limit(&self) -> u64;
    /// Most bytes of locked areas.
    fn locked_limit(&self) -> u64;
    /// Most bytes of a stack.
    fn stack_limit(&self) -> u64;
    /// Its memory: ESRCH.
    fn memory(&self) -> Result<alloc::sync::Arc<Mm>>;
}

/// A new area for a thread's shadow stack.
pub fn new_area(owner: &impl Owner, asked: u64) -> Result<Area> {
    let bytes = bytes_of(asked, owner.stack_limit(), PAGE).ok_or(Errno::ENOMEM)?;
    Ok((map(owner, None, bytes)?, bytes))
}

/// Maps a shadow stack of whole pages, at that place, which must be free, or anywhere from
/// [`LOWEST`] on. EINVAL, EEXIST, ENOMEM, EAGAIN.
pub fn map(owner: &impl Owner, place: Option<u64>, bytes: u64) -> Result<u64> {
    if bytes == 0 || place.is_some_and(|place| !place.is_multiple_of(PAGE)) {
        return Err(Errno::EINVAL);
    }
    crate::base::reserve::check_reserve()?;
    owner.check_memory(bytes)?;
    owner.memory()?.with(|inner| inner.map_shadow_stack(owner, place, bytes))
}

/// Gives back a thread's area, if it is there still.
pub fn drop_area(owner: &impl Owner, area: Option<Area>) {
    let Some((start, bytes)) = area else { return };
    let Ok(mm) = owner.memory() else { return };
    let removed: Removed = mm.with(|inner| match inner.check_unmap(start, start + bytes) {
        Ok(()) => inner.unmap(start, start + bytes),
        Err(_) => Removed::new(),
    });
    drop(removed);
}

impl MmInner {
    fn map_shadow_stack(
        &mut self,
        owner: &impl Owner,
        place: Option<u64>,
        bytes: u64,
    ) -> Result<u64> {
        let start = match place {
            Some(start) => self.check_place(start, bytes)?,
            // With a page that stays free below it.
            None => self.find_free(0, bytes.saturating_add(PAGE))? + PAGE,
        };
        let mut vma = Vma::anonymous(start + bytes, Prot::READ | Prot::SHADOW);
        vma.flags |= VmaFlags::SHADOW_STACK | self.lock_future;
        let is_locked = vma.flags.contains(VmaFlags::LOCKED);
        if start < LOWEST || self.total_bytes().saturating_add(bytes) > owner.total_limit() {
            return Err(Errno::ENOMEM);
        }
        if is_locked && !self.may_lock_more(owner.locked_limit(), bytes) {
            return Err(Errno::EAGAIN);
        }
        let brings_in = is_locked && !vma.flags.contains(VmaFlags::LOCK_ON_FAULT);
        self.insert(start, vma)?;
        if brings_in {
            // The area stays if its pages cannot be brought in.
            let _ = self.populate(start, start + bytes);
        }
        Ok(start)
    }

    fn check_place(&self, start: u64, bytes: u64) -> Result<u64> {
        let end = start.checked_add(bytes).filter(|&end| end <= USER_END).ok_or(Errno::ENOMEM)?;
        if self.is_free(start, end) { Ok(start) } else { Err(Errno::EEXIST) }
    }
}

/// A signal's handler is about to run, which returns to `restorer`: notes where the interrupted
/// program's shadow stack ends, and puts the address there. EFAULT where it does not fit.
pub fn push_signal(restorer: u64) -> Result<()> {
    let Some(pointer) = task::shadow_stack_pointer() else { return Ok(()) };
    let frame = SignalFrame::below(pointer).ok_or(Errno::EFAULT)?;
    let (at, saved) = frame.saved;
    UserPtr::new(at).write_shadow_stack(saved)?;
    UserPtr::new(frame.ssp).write_shadow_stack(restorer)?;
    task::set_shadow_stack_pointer(frame.ssp);
    Ok(())
}

/// The handler has returned: back to where the shadow stack ended. EINVAL where another word is
/// there than a signal had put, EFAULT where it is no shadow stack.
pub fn pop_signal(mm: impl FnOnce() -> Result<Arc<Mm>>) -> Result<()> {
    let Some(pointer) = task::shadow_stack_pointer() else { return Ok(()) };
    let mm = mm()?;
    // The return before may have left the end of a shadow stack, at which another page begins.
    let is_in_one = || mm.with(|inner| inner.find(pointer).is_some_and(|v| v.1.is_shadow_stack()));
    if !pointer.is_multiple_of(8) || pointer.is_multiple_of(PAGE) && !is_in_one() {
        return Err(Errno::EFAULT);
    }
    let word = UserPtr::<u64>::new(pointer).read()?;
    task::set_shadow_stack_pointer(saved_ssp(word, USER_END).ok_or(Errno::EINVAL)?);
    Ok(())
}
