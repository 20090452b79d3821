//! The calls on System V's queues, semaphores and shared memory (sysvipc(7)), in a name space that is
//! empty at a program's start.

use super::draft::{Draft, Kind, Row};
use super::program::{Norm, Value};
use crate::sys::*;

const CREATE: i64 = IPC_CREAT as i64;

/// A key of the program's, none, or one that nobody has.
fn key(d: &mut Draft) {
    d.of(&[0, 0x7701, 0x7701, 0x7702, 0x7703]);
}

fn get_flags(d: &mut Draft) {
    let exclusive = CREATE | IPC_EXCL as i64;
    d.of(&[CREATE | 0o600, CREATE | 0o600, CREATE | 0o644, exclusive | 0o600, 0, 0o600, CREATE]);
}

/// The id is the kernel's own: only that there is one is recorded.
fn makes(d: &mut Draft, kind: Kind) {
    d.makes(kind);
    d.call.value = Value::Any;
}

/// What IPC_SET reads: an owner and a mode, at the places where IPC_STAT puts them.
fn owner_and_mode(d: &mut Draft, bytes: usize) {
    let mut words = vec![0u64; bytes / 8];
    let (uid, gid) = d.rng.of(&[(1000u64, 1000u64), (0, 0), (5, 5), (u64::from(u32::MAX), 0)]);
    words[0] = uid << 32;
    words[1] = gid;
    words[2] = d.rng.of(&[0o600u64, 0o666, 0, 0o7777]) << 32;
    // Of a queue its greatest size.
    words[11.min(bytes / 8 - 1)] = d.rng.of(&[0u64, 100, 16384, 1 << 20]);
    d.words(&words);
}

/// A control call: `bytes` of state.
fn control(d: &mut Draft, bytes: usize, norm: Norm) {
    match d.rng.below(8) {
        0..4 => {
            d.num(i64::from(IPC_STAT));
            d.out_as(bytes, norm);
        }
        4..6 => {
            d.num(i64::from(IPC_SET));
            owner_and_mode(d, bytes);
        }
        6 => {
            d.num(i64::from(IPC_RMID));
            d.num(0)
        }
        _ => {
            d.of(&[99, -1, 11, 12, 13, 14, 15]);
            d.num(0)
        }
    }
}

fn send(d: &mut Draft) {
    d.fd(&[Kind::Queue]);
    let kind = d.rng.of(&[1u64, 1, 2, 3, 7, 0, u64::MAX]);
    let length = d.a_length();
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend((0..length.min(1024)).map(|at| b'a' + (at % 26) as u8));
    d.input(&bytes);
    d.num(length.min(1 << 32) as i64);
    d.num(i64::from(IPC_NOWAIT));
}

fn receive(d: &mut Draft) {
    d.fd(&[Kind::Queue]);
    let length = d.a_length().min(1 << 32);
    d.out(8 + (length as usize).min(1024));
    d.num(length as i64);
    d.of(&[0, 0, 1, 2, -2, -9, 7, i64::MIN]);
    let more = d.rng.of(&[0, MSG_NOERROR, MSG_EXCEPT, MSG_COPY, 1 << 20]);
    d.num(i64::from(IPC_NOWAIT | more));
}

fn operations(d: &mut Draft) -> i64 {
    let count = d.rng.of(&[0u64, 1, 1, 1, 2, 3]);
    let mut bytes = Vec::new();
    for _ in 0..count {
        bytes.extend(d.rng.of(&[0u16, 0, 1, 2, 3, 400]).to_ne_bytes());
        bytes.extend(d.rng.of(&[1i16, 1, -1, 0, 2, -3, i16::MAX, i16::MIN]).to_ne_bytes());
        let flags = IPC_NOWAIT as u16 | d.rng.of(&[0, 0, SEM_UNDO as u16]);
        bytes.extend(flags.to_ne_bytes());
    }
    d.input(&bytes);
    let wrong = d.rng.of(&[-1, 501, 100_000]);
    if d.chance(20) { wrong } else { count as i64 }
}

fn semaphore_control(d: &mut Draft) {
    d.fd(&[Kind::Semaphores]);
    d.of(&[0, 0, 1, 2, 9, -1]);
    match d.rng.below(8) {
        0..3 => {
            d.of(&[11, 12, 14, 15]);
            d.call.value = Value::Id;
            d.num(0)
        }
        3 => {
            d.num(16);
            d.of(&[0, 1, 5, 32767, 32768, -1])
        }
        4 => {
            d.num(13);
            d.out(64);
        }
        5 => {
            d.num(17);
            d.words(&[0x0002_0001_0003_0000, 0x7fff_0001_0000_0004]);
        }
        _ => control(d, 104, Norm::IpcTimes(2)),
    }
}

/// The table.
pub const ROWS: &[Row] = &[
    (SYS_msgget, 10, |d| {
        key(d);
        get_flags(d);
        makes(d, Kind::Queue)
    }),
    (SYS_msgsnd, 16, send),
    (SYS_msgrcv, 16, receive),
    (SYS_msgctl, 10, |d| {
        d.fd(&[Kind::Queue]);
        control(d, 120, Norm::IpcTimes(3))
    }),
    (SYS_semget, 10, |d| {
        key(d);
        d.of(&[0, 1, 3, 3, 4, -1, 32_001]);
        get_flags(d);
        makes(d, Kind::Semaphores)
    }),
    (SYS_semop, 14, |d| {
        d.fd(&[Kind::Semaphores]);
        let count = operations(d);
        d.num(count)
    }),
    (SYS_semtimedop, 5, |d| {
        d.fd(&[Kind::Semaphores]);
        let count = operations(d);
        d.num(count);
        d.short_zero()
    }),
    (SYS_semctl, 18, semaphore_control),
    (SYS_shmget, 8, |d| {
        key(d);
        d.of(&[0, 1, 4096, 5000, 8192, -1]);
        get_flags(d);
        makes(d, Kind::Segment)
    }),
    (SYS_shmat, 10, |d| {
        d.fd(&[Kind::Segment]);
        d.page();
        d.of(&[0, 0, i64::from(SHM_RDONLY), 0o20_000, 0o40_000, 0o100_000]);
        d.call.value = Value::Address
    }),
    (SYS_shmdt, 8, |d| d.page()),
    (SYS_shmctl, 10, |d| {
        d.fd(&[Kind::Segment]);
        control(d, 112, Norm::IpcTimes(4))
    }),
];
