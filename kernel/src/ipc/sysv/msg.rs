//! Message queues (msgget(2), msgsnd(2), msgrcv(2), msgctl(2)).

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::sysv::{
    IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, MSG_COPY, MSG_EXCEPT, MSG_INFO, MSG_NOERROR,
    MSG_STAT, MSG_STAT_ANY, MsgInfo, MsqidDs,
};
use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::{Object, READ, Table, WRITE, now, own_pid};
use crate::base::sync::{WaitError, WaitQueue};
use crate::base::user::UserPtr;
use crate::fs::pseudo::Text;
use crate::ipc::hooks;
use crate::security::Capability;

/// Longest message, bytes (kernel.msgmax).
const MESSAGE_MAX: usize = 8192;
/// Bytes that a new queue holds (kernel.msgmnb).
const QUEUE_BYTES: u64 = 16384;
/// Most queues (kernel.msgmni).
const QUEUES_MAX: usize = 32000;

struct Message {
    kind: i64,
    text: Vec<u8>,
}

impl Drop for Message {
    fn drop(&mut self) {
        hooks::msg_msg_free_security((self.text.len(),));
    }
}

#[derive(Default)]
struct MessageQueueState {
    messages: VecDeque<Message>,
    removed: bool,
    stime: i64,
    rtime: i64,
    ctime: i64,
    bytes: u64,
    max_bytes: u64,
    sender: u32,
    receiver: u32,
}

/// A queue.
struct Queue {
    state: SpinLock<MessageQueueState>,
    /// Those who wait for room, and for messages.
    senders: WaitQueue,
    receivers: WaitQueue,
}

static QUEUES: Table<Queue> = Table::new(QUEUES_MAX);

/// msgget(2).
pub fn msgget(key: i32, flags: u32) -> Result<u64> {
    let make = || {
        super::check_room()?;
        hooks::msg_queue_alloc_security((key,))?;
        let state = MessageQueueState {
            ctime: now(),
            max_bytes: QUEUE_BYTES,
            ..MessageQueueState::default()
        };
        Ok(Queue {
            state: SpinLock::new(state),
            senders: WaitQueue::new(),
            receivers: WaitQueue::new(),
        })
    };
    QUEUES.get(key, flags, |_| Ok(()), hooks::msg_queue_associate, make)
}

/// Which message a receiver wants.
#[derive(Clone, Copy)]
enum Wanted {
    First,
    Kind(i64),
    AnyBut(i64),
    /// The lowest kind up to this one.
    Lowest(i64),
    /// A copy of the one at this place.
    CopyOf(usize),
}

impl MessageQueueState {
    fn is_full_for(&self, len: usize) -> bool {
        self.bytes + len as u64 > self.max_bytes || self.messages.len() as u64 >= self.max_bytes
    }

    fn position(&self, wanted: Wanted) -> Option<usize> {
        let mut messages = self.messages.iter();
        match wanted {
            Wanted::First => (!self.messages.is_empty()).then_some(0),
            Wanted::Kind(kind) => messages.position(|message| message.kind == kind),
            Wanted::AnyBut(kind) => messages.position(|message| message.kind != kind),
            Wanted::CopyOf(place) => (place < self.messages.len()).then_some(place),
            Wanted::Lowest(most) => messages
                .enumerate()
                .filter(|(_, message)| message.kind <= most)
                .min_by_key(|(_, message)| message.kind)
                .map(|(place, _)| place),
        }
    }

    /// Takes a message, or a copy of one; EAGAIN if there is none. E2BIG.
    fn take(&mut self, wanted: Wanted, max: usize, truncate: bool) -> Result<Message> {
        let place = self.position(wanted).ok_or(Errno::EAGAIN)?;
        if self.messages[place].text.len() > max && !truncate {
            return Err(Errno::E2BIG);
        }
        if matches!(wanted, Wanted::CopyOf(_)) {
            let message = &self.messages[place];
            let mut text = Vec::new();
            text.try_reserve(message.text.len()).map_err(|_| Errno::ENOMEM)?;
            text.extend_from_slice(&message.text);
            return Ok(Message { kind: message.kind, text });
        }
        let message = self.messages.remove(place).ok_or(Errno::EAGAIN)?;
        self.bytes -= message.text.len() as u64;
        self.rtime = now();
        self.receiver = own_pid();
        Ok(message)
    }
}

/// As msgsnd(2) and msgrcv(2) say, a handler ends the wait whatever SA_RESTART says.
fn interrupted(_: WaitError) -> Errno {
    Errno::ERESTARTNOHAND
}

/// msgsnd(2).
pub fn msgsnd(id: u64, at: u64, len: u64, flags: u32) -> Result<u64> {
    let kind = UserPtr::<i64>::new(at).read()?;
    if len > MESSAGE_MAX as u64 || kind < 1 || (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    super::check_room()?;
    let text = UserPtr::<u8>::new(at.wrapping_add(8)).read_many(len as usize)?;
    let queue = QUEUES.find(id)?;
    queue.check(WRITE)?;
    hooks::msg_msg_alloc_security((len as usize,))?;
    hooks::msg_queue_msgsnd((&queue.perm(), len as usize))?;
    let mut message = Some(Message { kind, text });
    let mut send = || {
        let mut state = queue.content.state.lock();
        if state.removed {
            return Some(Err(Errno::EIDRM));
        }
        if state.is_full_for(len as usize) {
            return None;
        }
        if state.messages.try_reserve(1).is_err() {
            return Some(Err(Errno::ENOMEM));
        }
        state.messages.extend(message.take());
        state.bytes += len;
        state.stime = now();
        state.sender = own_pid();
        Some(Ok(()))
    };
    match send() {
        Some(result) => result?,
        None if flags & IPC_NOWAIT != 0 => return Err(Errno::EAGAIN),
        None => queue.content.senders.wait(send).map_err(interrupted)??,
    }
    queue.content.receivers.wake_all(0);
    Ok(0)
}

/// msgrcv(2).
pub fn msgrcv(id: u64, at: u64, max: u64, kind: i64, flags: u32) -> Result<u64> {
    if max > i64::MAX as u64 || (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let wanted = if flags & MSG_COPY != 0 {
        if flags & MSG_EXCEPT != 0 || flags & IPC_NOWAIT == 0 {
            return Err(Errno::EINVAL);
        }
        // As Linux does, which makes the copy's room of what is there.
        UserPtr::<u8>::new(at).read_many((max as usize).min(MESSAGE_MAX))?;
        // There is no message of a number below the first.
        Wanted::CopyOf(usize::try_from(kind).unwrap_or(usize::MAX))
    } else if kind == 0 {
        Wanted::First
    } else if kind < 0 {
        Wanted::Lowest(kind.saturating_neg())
    } else if flags & MSG_EXCEPT != 0 {
        Wanted::AnyBut(kind)
    } else {
        Wanted::Kind(kind)
    };
    let queue = QUEUES.find(id)?;
    queue.check(READ)?;
    hooks::msg_queue_msgrcv((&queue.perm(), kind))?;
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let receive = || {
        let mut state = queue.content.state.lock();
        if state.removed {
            return Some(Err(Errno::EIDRM));
        }
        match state.take(wanted, max, flags & MSG_NOERROR != 0) {
            Err(Errno::EAGAIN) => None,
            result => Some(result),
        }
    };
    let message = match receive() {
        Some(result) => result?,
        None if flags & IPC_NOWAIT != 0 => return Err(Errno::ENOMSG),
        None => queue.content.receivers.wait(receive).map_err(interrupted)??,
    };
    queue.content.senders.wake_all(0);
    let len = message.text.len().min(max);
    UserPtr::new(at).write(&message.kind)?;
    UserPtr::<u8>::new(at.wrapping_add(8)).write_many(&message.text[..len])?;
    Ok(len as u64)
}

fn describe(queue: &Object<Queue>) -> MsqidDs {
    let perm = queue.perm();
    let state = queue.content.state.lock();
    MsqidDs {
        perm,
        stime: state.stime,
        rtime: state.rtime,
        ctime: state.ctime,
        cbytes: state.bytes,
        qnum: state.messages.len() as u64,
        qbytes: state.max_bytes,
        lspid: state.sender,
        lrpid: state.receiver,
        unused: [0; 2],
    }
}

/// msgctl(2).
pub fn msgctl(id: u64, command: u32, buffer: u64) -> Result<u64> {
    if (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let ask = |queue: &Object<Queue>| hooks::msg_queue_msgctl((Some(&queue.perm()), command));
    match command {
        IPC_INFO | MSG_INFO => {
            hooks::msg_queue_msgctl((None, command))?;
            info(command == MSG_INFO, buffer)
        }
        IPC_STAT | MSG_STAT | MSG_STAT_ANY => {
            let queue = if command == IPC_STAT { QUEUES.find(id)? } else { QUEUES.at(id)? };
            if command != MSG_STAT_ANY {
                queue.check(READ)?;
            }
            ask(&queue)?;
            UserPtr::new(buffer).write(&describe(&queue))?;
            Ok(if command == IPC_STAT { 0 } else { u64::from(queue.id) })
        }
        IPC_SET => {
            let new = UserPtr::<MsqidDs>::new(buffer).read()?;
            let queue = QUEUES.find(id)?;
            let who = queue.check_owner()?;
            ask(&queue)?;
            if new.qbytes > QUEUE_BYTES && !who.capable(Capability::SysResource) {
                return Err(Errno::EPERM);
            }
            queue.set_perm(&new.perm)?;
            let mut state = queue.content.state.lock();
            state.max_bytes = new.qbytes;
            state.ctime = now();
            drop(state);
            queue.content.senders.wake_all(0);
            queue.content.receivers.wake_all(0);
            Ok(0)
        }
        IPC_RMID => {
            let queue = QUEUES.find(id)?;
            queue.check_owner()?;
            ask(&queue)?;
            remove(&queue);
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

fn remove(queue: &Arc<Object<Queue>>) {
    QUEUES.remove(queue);
    hooks::msg_queue_free_security((&queue.perm(),));
    let messages = {
        let mut state = queue.content.state.lock();
        state.removed = true;
        core::mem::take(&mut state.messages)
    };
    drop(messages);
    queue.content.senders.wake_all(0);
    queue.content.receivers.wake_all(0);
}

fn info(in_use: bool, buffer: u64) -> Result<u64> {
    let mut info = MsgInfo {
        msgpool: (QUEUES_MAX as u64 * QUEUE_BYTES / 1024) as u32,
        msgmap: QUEUE_BYTES as u32,
        msgmax: MESSAGE_MAX as u32,
        msgmnb: QUEUE_BYTES as u32,
        msgmni: QUEUES_MAX as u32,
        msgssz: 16,
        msgtql: QUEUE_BYTES as u32,
        msgseg: u16::MAX,
        pad: 0,
    };
    if in_use {
        let all = QUEUES.all();
        let sum = |of: fn(&MessageQueueState) -> u64| {
            let each = all.iter().map(|queue| of(&queue.content.state.lock()));
            u32::try_from(each.sum::<u64>()).unwrap_or(u32::MAX)
        };
        info.msgpool = all.len() as u32;
        info.msgmap = sum(|state| state.messages.len() as u64);
        info.msgtql = sum(|state| state.bytes);
    }
    UserPtr::new(buffer).write(&info)?;
    Ok(QUEUES.last_index())
}

/// /proc/sysvipc/msg.
pub fn list(out: &mut Text) -> Result<()> {
    writeln!(
        out,
        "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid  \
         \x20   stime      rtime      ctime"
    );
    for queue in QUEUES.all() {
        let MsqidDs { perm, stime, rtime, ctime, cbytes, qnum, lspid, lrpid, .. } =
            describe(&queue);
        write!(
            out,
            "{:>10} {:>10}  {:>4o}  {cbytes:>10} {qnum:>10} ",
            perm.key, queue.id, perm.mode
        );
        write!(out, "{lspid:>5} {lrpid:>5} {:>5} {:>5} ", perm.uid, perm.gid);
        writeln!(out, "{:>5} {:>5} {stime:>10} {rtime:>10} {ctime:>10}", perm.cuid, perm.cgid);
    }
    Ok(())
}
