//! Semaphore sets (semget(2), semop(2), semctl(2)).
//!
//! The operations of one semop(2) happen all at once or not at all. A call that cannot go on waits
//! on the first semaphore that stops it; when that one changes, it tries all its operations again,
//! and may find itself stopped by another one. Waiters are not served in order: who first finds the
//! values right, goes on.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use abi::sysv::{
    GETALL, GETNCNT, GETPID, GETVAL, GETZCNT, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT,
    SEM_INFO, SEM_STAT, SEM_STAT_ANY, SEM_UNDO, SETALL, SETVAL, SemInfo, SemOp, SemidDs,
};
use abi::{Errno, Result};
use machine::sync::SpinLock;
use zerocopy::{FromZeros, IntoBytes};

use super::undo::{self, UndoList};
use super::{Object, READ, Table, WRITE, now, own_pid};
use crate::base::sched::Sleep;
use crate::base::sync::{WaitError, WaitQueue};
use crate::base::time::{Deadline, TimeSpec};
use crate::base::user::UserPtr;
use crate::fs::pseudo::Text;
use crate::ipc::hooks;
use crate::process::current;

/// Most semaphores of a set, operations of a call, sets (kernel.sem).
const SET_MAX: usize = 32000;
const OPERATIONS_MAX: u64 = 500;
/// Operations that need no allocation.
const FEW_OPERATIONS: usize = 8;
const SETS_MAX: usize = 32000;
const ALL_MAX: u32 = 1_024_000_000;
/// Largest value and largest adjustment.
const VALUE_MAX: i32 = 32767;
const ADJUST_MAX: i32 = 32767;

#[derive(Clone, Copy, Default)]
struct Semaphore {
    value: i32,
    /// Who changed it last.
    pid: u32,
    /// How many wait for it to grow, and to become 0.
    waiting: [u32; 2],
}

struct SemaphoreSetState {
    semaphores: Vec<Semaphore>,
    /// Adjustments of each undo list, by its number.
    adjustments: BTreeMap<u64, Vec<i16>>,
    removed: bool,
    otime: i64,
    ctime: i64,
}

/// A set.
pub struct Set {
    state: SpinLock<SemaphoreSetState>,
    /// One for each semaphore.
    queues: Vec<WaitQueue>,
}

static SETS: Table<Set> = Table::new(SETS_MAX);

/// What stops operations: the index of the first one that cannot be done.
struct Stopped(usize);

impl SemaphoreSetState {
    /// Does all operations, or none. EIDRM, ERANGE.
    fn apply(
        &mut self,
        operations: &[SemOp],
        list: Option<&UndoList>,
    ) -> Result<core::result::Result<(), Stopped>> {
        if self.removed {
            return Err(Errno::EIDRM);
        }
        for (at, operation) in operations.iter().enumerate() {
            match self.apply_one(operation, list) {
                Ok(true) => {}
                outcome => {
                    operations[..at].iter().rev().for_each(|done| self.take_back(done, list));
                    return outcome.map(|_| Err(Stopped(at)));
                }
            }
        }
        for operation in operations {
            self.semaphores[usize::from(operation.number)].pid = own_pid();
        }
        self.otime = now();
        Ok(Ok(()))
    }

    /// Whether the operation could be done.
    fn apply_one(&mut self, operation: &SemOp, list: Option<&UndoList>) -> Result<bool> {
        let (number, change) = (usize::from(operation.number), i32::from(operation.op));
        let semaphore = &mut self.semaphores[number];
        let value = semaphore.value + change;
        if change == 0 && semaphore.value != 0 || value < 0 {
            return Ok(false);
        }
        if value > VALUE_MAX {
            return Err(Errno::ERANGE);
        }
        if change != 0
            && let Some(adjustment) = self.adjustment(operation, list)
        {
            let adjusted = i32::from(*adjustment) - change;
            if !(-ADJUST_MAX - 1..=ADJUST_MAX).contains(&adjusted) {
                return Err(Errno::ERANGE);
            }
            *adjustment = adjusted as i16;
        }
        self.semaphores[number].value = value;
        Ok(true)
    }

    fn take_back(&mut self, operation: &SemOp, list: Option<&UndoList>) {
        let change = operation.op;
        self.semaphores[usize::from(operation.number)].value -= i32::from(change);
        if let Some(adjustment) = self.adjustment(operation, list) {
            *adjustment += change;
        }
    }

    fn adjustment(&mut self, of: &SemOp, list: Option<&UndoList>) -> Option<&mut i16> {
        let list = list.filter(|_| of.flags & SEM_UNDO != 0)?;
        self.adjustments.get_mut(&list.number)?.get_mut(usize::from(of.number))
    }

    /// Nobody takes back what was done to this semaphore before.
    fn forget_adjustments(&mut self, number: usize) {
        for adjustments in self.adjustments.values_mut() {
            adjustments[number] = 0;
        }
    }
}

impl Set {
    fn new(count: usize) -> Result<Set> {
        super::check_room()?;
        let mut semaphores = Vec::new();
        semaphores.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        semaphores.resize(count, Semaphore::default());
        let mut queues = Vec::new();
        queues.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        queues.resize_with(count, WaitQueue::new);
        let state = SemaphoreSetState {
            semaphores,
            adjustments: BTreeMap::new(),
            removed: false,
            otime: 0,
            ctime: now(),
        };
        Ok(Set { state: SpinLock::new(state), queues })
    }

    /// Makes room for the adjustments of a list. ENOMEM.
    fn prepare_undo(&self, list: &UndoList) -> Result<()> {
        if self.state.lock().adjustments.contains_key(&list.number) {
            return Ok(());
        }
        super::check_room()?;
        let mut adjustments = Vec::new();
        adjustments.try_reserve_exact(self.queues.len()).map_err(|_| Errno::ENOMEM)?;
        adjustments.resize(self.queues.len(), 0);
        // Processes may share the list: the first one's stay.
        self.state.lock().adjustments.entry(list.number).or_insert(adjustments);
        Ok(())
    }

    /// Takes back what the list's processes did: they have ended, `pid` as the last one.
    pub fn undo(&self, list: u64, pid: u32) {
        let adjustments = {
            let mut state = self.state.lock();
            let Some(adjustments) = state.adjustments.remove(&list) else { return };
            let changed = adjustments.iter().enumerate().filter(|(_, change)| **change != 0);
            for (number, &change) in changed {
                let semaphore = &mut state.semaphores[number];
                semaphore.value = (semaphore.value + i32::from(change)).clamp(0, VALUE_MAX);
                semaphore.pid = pid;
            }
            state.otime = now();
            adjustments
        };
        let changed = adjustments.iter().zip(&self.queues).filter(|(change, _)| **change != 0);
        changed.for_each(|(_, queue)| queue.wake_all(0));
    }

    fn wake_everybody(&self) {
        self.queues.iter().for_each(|queue| queue.wake_all(0));
    }

    /// Does the operations, as soon as they can be done.
    fn operate(
        &self,
        operations: &[SemOp],
        list: Option<&UndoList>,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let mut outcome = self.state.lock().apply(operations, list)?;
        while let Err(Stopped(at)) = outcome {
            let stopping = operations[at];
            if u32::from(stopping.flags) & IPC_NOWAIT != 0 {
                return Err(Errno::EAGAIN);
            }
            let number = usize::from(stopping.number);
            let kind = usize::from(stopping.op == 0);
            self.state.lock().semaphores[number].waiting[kind] += 1;
            let attempt = || {
                let outcome = self.state.lock().apply(operations, list);
                let still_here = matches!(outcome, Ok(Err(Stopped(now_at))) if now_at == at);
                (!still_here).then_some(outcome)
            };
            let queue = &self.queues[number];
            let waited = queue.wait_deadline(Sleep::Interruptible, deadline, attempt);
            self.state.lock().semaphores[number].waiting[kind] -= 1;
            outcome = waited.map_err(|error| match error {
                // semop(2): never restarted.
                WaitError::Interrupted => Errno::EINTR,
                WaitError::TimedOut => Errno::EAGAIN,
            })??;
        }
        for operation in operations.iter().filter(|operation| operation.op != 0) {
            self.queues[usize::from(operation.number)].wake_all(0);
        }
        Ok(())
    }
}

/// semget(2).
pub fn semget(key: i32, count: i32, flags: u32) -> Result<u64> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    if count > SET_MAX {
        return Err(Errno::EINVAL);
    }
    let suits = |set: &Set| if set.queues.len() < count { Err(Errno::EINVAL) } else { Ok(()) };
    let make = || {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        hooks::sem_alloc_security((key,))?;
        Set::new(count)
    };
    SETS.get(key, flags, suits, hooks::sem_associate, make)
}

/// semop(2).
pub fn semop(id: u64, operations: u64, count: u32) -> Result<u64> {
    semtimedop(id, operations, count, 0)
}

/// semtimedop(2).
pub fn semtimedop(id: u64, operations: u64, count: u32, timeout: u64) -> Result<u64> {
    let timeout = UserPtr::<TimeSpec>::new(timeout).non_null().map(UserPtr::read).transpose()?;
    let count = u64::from(count);
    if count > OPERATIONS_MAX {
        return Err(Errno::E2BIG);
    }
    if count == 0 {
        return Err(Errno::EINVAL);
    }
    let mut few = [SemOp::new_zeroed(); FEW_OPERATIONS];
    let many;
    let at = operations;
    let operations = match few.get_mut(..count as usize) {
        Some(few) => {
            UserPtr::<u8>::new(at).read_bytes(few.as_mut_bytes())?;
            &*few
        }
        None => {
            many = UserPtr::<SemOp>::new(at).read_many(count as usize)?;
            &many
        }
    };
    if (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let timeout_ns = timeout.map(TimeSpec::to_ns).transpose()?;
    let set = SETS.find(id)?;
    if operations.iter().any(|of| usize::from(of.number) >= set.content.queues.len()) {
        return Err(Errno::EFBIG);
    }
    let alters = operations.iter().any(|operation| operation.op != 0);
    set.check(if alters { WRITE } else { READ })?;
    hooks::sem_semop((&set.perm(), alters))?;
    let undoes = |operation: &SemOp| operation.flags & SEM_UNDO != 0 && operation.op != 0;
    let list = operations.iter().any(undoes).then(|| undo::list_of(&current().process));
    if let Some(list) = &list {
        set.content.prepare_undo(list)?;
        list.note(&set)?;
    }
    let deadline = timeout_ns.map(Deadline::after_ns);
    set.content.operate(operations, list.as_deref(), deadline)?;
    Ok(0)
}

/// semctl(2).
pub fn semctl(id: u64, number: u64, command: u32, argument: u64) -> Result<u64> {
    if (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let ask = |set: &Object<Set>| hooks::sem_semctl((Some(&set.perm()), command));
    if command == SETVAL && !(0..=VALUE_MAX).contains(&(argument as i32)) {
        // Before it is asked which semaphore.
        return Err(Errno::ERANGE);
    }
    match command {
        IPC_INFO | SEM_INFO => {
            hooks::sem_semctl((None, command))?;
            info(command == SEM_INFO, argument)
        }
        IPC_STAT | SEM_STAT | SEM_STAT_ANY => {
            let by_id = command == IPC_STAT;
            let set = if by_id { SETS.find(id)? } else { SETS.at(id)? };
            if command != SEM_STAT_ANY {
                set.check(READ)?;
            }
            ask(&set)?;
            UserPtr::new(argument).write(&describe(&set))?;
            Ok(if by_id { 0 } else { u64::from(set.id) })
        }
        GETVAL | GETPID | GETNCNT | GETZCNT => {
            let set = SETS.find(id)?;
            set.check(READ)?;
            ask(&set)?;
            let state = set.content.state.lock();
            let semaphore = state.semaphores.get(number as u32 as usize).ok_or(Errno::EINVAL)?;
            Ok(match command {
                GETVAL => semaphore.value as u64,
                GETPID => u64::from(semaphore.pid),
                GETNCNT => u64::from(semaphore.waiting[0]),
                _ => u64::from(semaphore.waiting[1]),
            })
        }
        GETALL => get_all(&*SETS.find(id)?, argument),
        SETVAL => set_value(&*SETS.find(id)?, number as u32 as usize, argument as i32),
        SETALL => set_all(&*SETS.find(id)?, argument),
        IPC_SET => {
            let new = UserPtr::<SemidDs>::new(argument).read()?;
            let set = SETS.find(id)?;
            set.check_owner()?;
            ask(&set)?;
            set.set_perm(&new.perm)?;
            set.content.state.lock().ctime = now();
            Ok(0)
        }
        IPC_RMID => {
            let set = SETS.find(id)?;
            set.check_owner()?;
            ask(&set)?;
            SETS.remove(&set);
            hooks::sem_free_security((&set.perm(),));
            set.content.state.lock().removed = true;
            set.content.wake_everybody();
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

fn get_all(set: &Object<Set>, to: u64) -> Result<u64> {
    set.check(READ)?;
    hooks::sem_semctl((Some(&set.perm()), GETALL))?;
    let mut values = Vec::<u16>::new();
    values.try_reserve_exact(set.content.queues.len()).map_err(|_| Errno::ENOMEM)?;
    values.extend(set.content.state.lock().semaphores.iter().map(|of| of.value as u16));
    UserPtr::<u16>::new(to).write_many(&values)?;
    Ok(0)
}

fn set_value(set: &Object<Set>, number: usize, value: i32) -> Result<u64> {
    if !(0..=VALUE_MAX).contains(&value) {
        return Err(Errno::ERANGE);
    }
    if number >= set.content.queues.len() {
        return Err(Errno::EINVAL);
    }
    set.check(WRITE)?;
    hooks::sem_semctl((Some(&set.perm()), SETVAL))?;
    {
        let mut state = set.content.state.lock();
        let semaphore = state.semaphores.get_mut(number).ok_or(Errno::EINVAL)?;
        semaphore.value = value;
        semaphore.pid = own_pid();
        state.forget_adjustments(number);
        state.ctime = now();
    }
    set.content.queues[number].wake_all(0);
    Ok(0)
}

fn set_all(set: &Object<Set>, from: u64) -> Result<u64> {
    set.check(WRITE)?;
    hooks::sem_semctl((Some(&set.perm()), SETALL))?;
    let values = UserPtr::<u16>::new(from).read_many(set.content.queues.len())?;
    if values.iter().any(|&value| i32::from(value) > VALUE_MAX) {
        return Err(Errno::ERANGE);
    }
    {
        let mut state = set.content.state.lock();
        for (semaphore, value) in state.semaphores.iter_mut().zip(values) {
            semaphore.value = i32::from(value);
            semaphore.pid = own_pid();
        }
        state.adjustments.values_mut().for_each(|adjustments| adjustments.fill(0));
        state.ctime = now();
    }
    set.content.wake_everybody();
    Ok(0)
}

fn describe(set: &Object<Set>) -> SemidDs {
    let perm = set.perm();
    let state = set.content.state.lock();
    SemidDs {
        perm,
        otime: state.otime,
        ctime: state.ctime,
        nsems: state.semaphores.len() as u64,
        ..SemidDs::default()
    }
}

fn info(in_use: bool, to: u64) -> Result<u64> {
    let mut info = SemInfo {
        semmap: ALL_MAX,
        semmni: SETS_MAX as u32,
        semmns: ALL_MAX,
        semmnu: ALL_MAX,
        semmsl: SET_MAX as u32,
        semopm: OPERATIONS_MAX as u32,
        semume: OPERATIONS_MAX as u32,
        semusz: 20,
        semvmx: VALUE_MAX as u32,
        semaem: ADJUST_MAX as u32,
    };
    if in_use {
        let all = SETS.all();
        info.semusz = all.len() as u32;
        info.semaem = all.iter().map(|set| set.content.queues.len() as u32).sum();
    }
    UserPtr::new(to).write(&info)?;
    Ok(SETS.last_index())
}

/// /proc/sysvipc/sem.
pub fn list(out: &mut Text) -> Result<()> {
    writeln!(
        out,
        "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime"
    );
    for set in SETS.all() {
        let SemidDs { perm, otime, ctime, nsems, .. } = describe(&set);
        write!(out, "{:>10} {:>10}  {:>4o} {nsems:>10} ", perm.key, set.id, perm.mode);
        write!(out, "{:>5} {:>5} {:>5} {:>5} ", perm.uid, perm.gid, perm.cuid, perm.cgid);
        writeln!(out, "{otime:>10} {ctime:>10}");
    }
    Ok(())
}
