//! System V IPC (sysvipc(7)): shared memory segments, semaphore sets, message queues.
//!
//! They are named by numbers and not by descriptors, and live until somebody removes them. What the
//! three have in common is here: the table of ids, the keys that lead to them, who may do what. An
//! id is a place in the table and a sequence number, so that the id of a removed object does not
//! soon mean another one.
//!
//! Reading order: this file, `shm`, `msg`, `sem`, `undo` (what a process's end takes back).
//!
//! Locks: a table's spin lock and an object's are leaves, never held together.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::sysv::{IPC_CREAT, IPC_EXCL, IPC_PRIVATE, Perm};
use abi::{Errno, Result};
use machine::sync::SpinLock;

use crate::base::id_map::IdMap;
use crate::base::time::{NS_PER_SEC, realtime_ns};
use crate::ipc::hooks;
use crate::process::current;
use crate::security::{Capability, Subject};

pub mod msg;
pub mod sem;
pub mod shm;
pub mod undo;

/// Bits of an id below the sequence number; tables are smaller than that.
const INDEX_BITS: u32 = 15;

/// What reading needs, in all three classes of a mode.
pub const READ: u32 = 0o444;
/// What changing needs.
pub const WRITE: u32 = 0o222;

/// Places that are gone through before one is taken again, however few objects there are.
const LEAST_PLACES: usize = 64;

/// An object with its name and its owners.
pub struct Object<T> {
    /// Its id.
    pub id: u32,
    perm: SpinLock<Perm>,
    /// What it is.
    pub content: T,
}

struct Slots<T> {
    objects: IdMap<Arc<Object<T>>>,
    keys: BTreeMap<i32, u32>,
    /// The place behind the one that was taken last.
    next: u32,
    sequence: u16,
}

/// All objects of one kind.
pub struct Table<T> {
    slots: SpinLock<Slots<T>>,
    max: usize,
}

impl<T> Slots<T> {
    fn by_key(&self, key: i32) -> Option<Arc<Object<T>>> {
        self.objects.get(*self.keys.get(&key)?).cloned()
    }

    /// The next free place behind the one that was taken last, around and around: what has gone is
    /// not replaced at once, so that who still asks for it is told.
    fn free_index(&self, max: usize) -> u32 {
        let places = (self.objects.len() * 3 / 2).max(LEAST_PLACES).min(max) as u32;
        let first_free = |from: u32| {
            let used = self.objects.iter_from(from).map(|(index, _)| index);
            from + used.zip(from..).take_while(|(used, index)| used == index).count() as u32
        };
        let found = first_free(self.next);
        if found < places { found } else { first_free(0) }
    }

    fn insert(&mut self, key: i32, mode: u32, content: T, max: usize) -> Arc<Object<T>> {
        let index = self.free_index(max);
        if index < self.next {
            self.sequence = if self.sequence == u16::MAX { 0 } else { self.sequence + 1 };
        }
        self.next = index + 1;
        let who = current().subject();
        let perm = Perm {
            key,
            uid: who.euid,
            gid: who.egid,
            cuid: who.euid,
            cgid: who.egid,
            mode: mode & 0o777,
            seq: self.sequence,
            ..Perm::default()
        };
        let id = u32::from(self.sequence) << INDEX_BITS | index;
        let object = Arc::new(Object { id, perm: SpinLock::new(perm), content });
        self.objects.insert(index, object.clone());
        if key != IPC_PRIVATE {
            self.keys.insert(key, index);
        }
        object
    }
}

impl<T> Table<T> {
    /// An empty table for at most `max` objects.
    pub const fn new(max: usize) -> Self {
        assert!(max < 1 << INDEX_BITS);
        Table {
            slots: SpinLock::new(Slots {
                objects: IdMap::new(),
                keys: BTreeMap::new(),
                next: 0,
                sequence: 0,
            }),
            max,
        }
    }

    /// The `*get` calls: finds the object with `key` or makes one. `suits` looks at one that
    /// exists, `associate` asks the policies about it. EEXIST, ENOENT, EACCES, ENOSPC.
    pub fn get(
        &self,
        key: i32,
        flags: u32,
        suits: impl Fn(&T) -> Result<()>,
        associate: fn((&Perm, u32)) -> Result<()>,
        make: impl Fn() -> Result<T>,
    ) -> Result<u64> {
        loop {
            let found = if key == IPC_PRIVATE { None } else { self.slots.lock().by_key(key) };
            if let Some(object) = found {
                if flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL {
                    return Err(Errno::EEXIST);
                }
                suits(&object.content)?;
                object.check(flags & 0o777)?;
                associate((&object.perm(), flags))?;
                return Ok(u64::from(object.id));
            }
            if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
                return Err(Errno::ENOENT);
            }
            let content = make()?;
            let mut slots = self.slots.lock();
            if slots.objects.len() >= self.max {
                return Err(Errno::ENOSPC);
            }
            // Another may have been faster; what was made for nothing is dropped without the lock.
            if key == IPC_PRIVATE || !slots.keys.contains_key(&key) {
                return Ok(u64::from(slots.insert(key, flags, content, self.max).id));
            }
            drop(slots);
        }
    }

    /// The object with this id. EINVAL.
    pub fn find(&self, id: u64) -> Result<Arc<Object<T>>> {
        let id = u32::try_from(id as i32).map_err(|_| Errno::EINVAL)?;
        let slots = self.slots.lock();
        let object = slots.objects.get(id & ((1 << INDEX_BITS) - 1));
        object.filter(|object| object.id == id).cloned().ok_or(Errno::EINVAL)
    }

    /// The object at a place of the table (the `*_STAT` commands). EINVAL.
    pub fn at(&self, index: u64) -> Result<Arc<Object<T>>> {
        let index = index as u32 & ((1 << INDEX_BITS) - 1);
        self.slots.lock().objects.get(index).cloned().ok_or(Errno::EINVAL)
    }

    /// Takes an object out of the table; whoever still uses it keeps it.
    pub fn remove(&self, object: &Arc<Object<T>>) {
        let index = object.id & ((1 << INDEX_BITS) - 1);
        let key = object.perm().key;
        let mut slots = self.slots.lock();
        if !slots.objects.get(index).is_some_and(|found| Arc::ptr_eq(found, object)) {
            return;
        }
        let removed = slots.objects.remove(index);
        if key != IPC_PRIVATE {
            slots.keys.remove(&key);
        }
        drop(slots);
        drop(removed);
    }

    /// Takes away the key that leads to an object, which stays.
    pub fn remove_key(&self, object: &Object<T>) {
        let key = core::mem::replace(&mut object.perm.lock().key, IPC_PRIVATE);
        if key != IPC_PRIVATE {
            self.slots.lock().keys.remove(&key);
        }
    }

    /// All objects, by place.
    pub fn all(&self) -> Vec<Arc<Object<T>>> {
        self.slots.lock().objects.values().cloned().collect()
    }

    /// The highest place in use, 0 if none is.
    pub fn last_index(&self) -> u64 {
        self.slots.lock().objects.last().map_or(0, u64::from)
    }

    /// How many objects there are.
    pub fn count(&self) -> usize {
        self.slots.lock().objects.len()
    }
}

impl<T> Object<T> {
    /// Owners and mode, as they are now.
    pub fn perm(&self) -> Perm {
        *self.perm.lock()
    }

    /// EACCES unless the caller has the rights `wanted`, of which any class may be set.
    pub fn check(&self, wanted: u32) -> Result<()> {
        let who = current().subject();
        let perm = self.perm();
        let class = if who.euid == perm.uid || who.euid == perm.cuid {
            6
        } else if who.in_group(perm.gid) || who.in_group(perm.cgid) {
            3
        } else {
            0
        };
        let wanted = (wanted >> 6 | wanted >> 3 | wanted) & 7;
        if wanted & !(perm.mode >> class) == 0 || who.capable(Capability::IpcOwner) {
            hooks::ipc_permission((&perm, wanted))
        } else {
            Err(Errno::EACCES)
        }
    }

    /// EPERM unless the caller may change owners or remove the object.
    pub fn check_owner(&self) -> Result<Subject> {
        let who = current().subject();
        let perm = self.perm();
        let owns = who.euid == perm.uid || who.euid == perm.cuid;
        if owns || who.capable(Capability::SysAdmin) { Ok(who) } else { Err(Errno::EPERM) }
    }

    /// IPC_SET: new owner and mode. EINVAL.
    pub fn set_perm(&self, new: &Perm) -> Result<()> {
        if new.uid == u32::MAX || new.gid == u32::MAX {
            return Err(Errno::EINVAL);
        }
        let mut perm = self.perm.lock();
        perm.uid = new.uid;
        perm.gid = new.gid;
        perm.mode = perm.mode & !0o777 | new.mode & 0o777;
        Ok(())
    }

    /// Sets a bit of the mode that is not a right.
    fn mark(&self, bit: u32, on: bool) {
        let mut perm = self.perm.lock();
        perm.mode = if on { perm.mode | bit } else { perm.mode & !bit };
    }
}

/// The time that `*_ds` structures tell, seconds.
fn now() -> i64 {
    (realtime_ns() / NS_PER_SEC) as i64
}

fn own_pid() -> u32 {
    current().process.pid
}

/// ENOMEM if memory is too short for what may outlive its program.
fn check_room() -> Result<()> {
    crate::base::reserve::check_room_for_files().map_err(|_| Errno::ENOMEM)
}
