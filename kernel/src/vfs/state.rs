//! What the kernel hangs on an object, whatever file system it is of: locks, leases, watches, who
//! writes and who runs it, the pipe or socket behind its name, its security label.
//!
//! Why here: each of these lives as long as the object and concerns nobody else. In the object,
//! finding them takes no table, and the traffic of one object never meets a lock of another. Most
//! objects have none of them, so all but the counters are made at their first use.
//!
//! Neighbours: [`super::locks`], [`super::inotify`], [`super::deny_write`], which say what each
//! means.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};

use abi::general as raw;
use machine::sync::{Once, SpinLock};

use super::deny_write::WriterCount;
use super::inotify::Watches;
use super::leases::Leases;
use super::locks::FileLocks;
use crate::base::accounts::{Counted, ObjectKind};

/// What an object stands for elsewhere: the pipe of a FIFO, the socket bound to a name.
type Endpoint = Weak<dyn Any + Send + Sync>;
/// What a security module says of an object.
pub type Label = Arc<dyn Any + Send + Sync>;

/// See the module. Every [`super::Inode`] has one.
#[derive(Default)]
pub struct InodeState {
    /// Who writes to it, or runs it.
    pub writers: WriterCount,
    /// How many open files only read it.
    pub readers: AtomicI32,
    /// Known to give nobody rights by being executed: see `permission::drop_privileges`.
    is_plain: AtomicBool,
    rare: Once<Box<Rare>>,
    /// F_SET_RW_HINT (fcntl(2)), as given.
    pub lifetime_hint: AtomicU8,
    /// FS_*_FL: see [`super::flags`].
    flags: AtomicU32,
    _counted: Counted<{ ObjectKind::Inode as usize }>,
}

/// What few objects have.
#[derive(Default)]
struct Rare {
    locks: FileLocks,
    leases: Leases,
    watches: Watches,
    endpoint: SpinLock<Option<Endpoint>>,
    label: SpinLock<Option<Label>>,
}

impl InodeState {
    fn rare(&self) -> &Rare {
        self.rare.call_once(Box::default)
    }

    /// Its locks, if it ever had any.
    #[inline]
    pub fn known_locks(&self) -> Option<&FileLocks> {
        self.rare.get().map(|rare| &rare.locks)
    }

    /// Its locks.
    pub fn locks(&self) -> &FileLocks {
        &self.rare().locks
    }

    /// Its leases, if it ever had any.
    pub fn known_leases(&self) -> Option<&Leases> {
        self.rare.get().map(|rare| &rare.leases)
    }

    /// Its leases.
    pub fn leases(&self) -> &Leases {
        &self.rare().leases
    }

    /// Its watches, if it ever had any.
    #[inline]
    pub fn known_watches(&self) -> Option<&Watches> {
        self.rare.get().map(|rare| &rare.watches)
    }

    /// Its watches.
    pub fn watches(&self) -> &Watches {
        &self.rare().watches
    }

    /// The pipe or socket that it stands for, as long as somebody uses that.
    pub fn endpoint<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let known = self.rare.get()?.endpoint.lock().clone()?;
        known.upgrade()?.downcast().ok()
    }

    /// The same; if there is none it is now `new`.
    pub fn endpoint_or<T: Any + Send + Sync>(&self, new: Arc<T>) -> Arc<T> {
        let mut slot = self.rare().endpoint.lock();
        let known = slot.as_ref().and_then(Weak::upgrade);
        if let Some(known) = known.and_then(|known| known.downcast().ok()) {
            return known;
        }
        let weak: Weak<T> = Arc::downgrade(&new);
        let old = slot.replace(weak);
        drop(slot);
        drop(old);
        new
    }

    /// Its label.
    pub fn label(&self) -> Option<Label> {
        self.rare.get()?.label.lock().clone()
    }

    /// Gives it a label; the old one is returned, to be dropped by the caller.
    pub fn set_label(&self, label: Option<Label>) -> Option<Label> {
        core::mem::replace(&mut *self.rare().label.lock(), label)
    }

    /// Its flags, as ioctl_iflags(2) has them.
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Whether nothing of it may change.
    #[inline]
    pub fn is_immutable(&self) -> bool {
        self.flags() & raw::FS_IMMUTABLE_FL != 0
    }

    /// Whether it may only grow.
    #[inline]
    pub fn is_append_only(&self) -> bool {
        self.flags() & raw::FS_APPEND_FL != 0
    }

    /// Sets them all; whether that is allowed has been asked.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Whether it is known to give nobody rights by being executed.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.is_plain.load(Ordering::SeqCst)
    }

    /// Says so, before it is looked at; or, after its attributes changed, that it is not known.
    pub fn set_plain(&self, plain: bool) {
        self.is_plain.store(plain, Ordering::SeqCst);
    }
}
