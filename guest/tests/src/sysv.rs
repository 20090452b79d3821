//! System V IPC: shared memory segments, semaphore sets, message queues.
//!
//! Manual pages: sysvipc(7), shmget(2), shmat(2), shmctl(2), semget(2), semop(2), semctl(2),
//! msgget(2), msgop(2), msgctl(2). Objects outlive processes, so every test removes its own.

use crate::sys::*;
use crate::{sc, tests};

tests!("sysv":
    shm_is_shared, shm_keys_and_errors, shm_attach_places, shm_removed_but_attached,
    shm_read_only, shm_traces, sem_values, sem_blocks_and_wakes, sem_all_or_nothing,
    sem_zero_and_counts, sem_timeout_and_signal, sem_undo, sem_undo_is_forgotten, sem_removed,
    sem_mutex_of_many, msg_kinds, msg_limits, msg_blocks, msg_removed, msg_copy,
    ids_and_permissions, proc_tables,
);

const SEM_GETPID: i32 = 11;
const SEM_GETVAL: i32 = 12;
const SEM_GETALL: i32 = 13;
const SEM_GETNCNT: i32 = 14;
const SEM_GETZCNT: i32 = 15;
const SEM_SETVAL: i32 = 16;
const SEM_SETALL: i32 = 17;
const UNDO: i16 = 0x1000;
const NOWAIT: i16 = 0o4000;

fn key() -> usize {
    // Other runs on the same host must not meet: the process id makes it one's own.
    0x4c00_0000 | sc!(SYS_getpid).must()
}

/// Removes the object at the end, also of a test that fails.
struct Owned {
    id: usize,
    control: i64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // semctl(2) has the command one further: the argument that the others ignore.
        let command = if self.control == SYS_semctl { [0, IPC_RMID] } else { [IPC_RMID, 0] };
        let _ = sc!(self.control, self.id, command[0], command[1]);
    }
}

fn segment(size: usize) -> Owned {
    let id = sc!(SYS_shmget, IPC_PRIVATE, size, IPC_CREAT | 0o600).must();
    Owned { id, control: SYS_shmctl }
}

fn semaphores(count: usize) -> Owned {
    let id = sc!(SYS_semget, IPC_PRIVATE, count, IPC_CREAT | 0o600).must();
    Owned { id, control: SYS_semctl }
}

fn queue() -> Owned {
    let id = sc!(SYS_msgget, IPC_PRIVATE, IPC_CREAT | 0o600).must();
    Owned { id, control: SYS_msgctl }
}

fn shm_stat(id: usize) -> shmid_ds {
    // SAFETY: a structure of numbers.
    let mut ds: shmid_ds = unsafe { std::mem::zeroed() };
    sc!(SYS_shmctl, id, IPC_STAT, &raw mut ds).is(0);
    ds
}

fn peek(at: usize) -> u64 {
    // SAFETY: the caller has it mapped.
    unsafe { (at as *const u64).read_volatile() }
}

fn poke(at: usize, value: u64) {
    // SAFETY: the caller has it mapped.
    unsafe { (at as *mut u64).write_volatile(value) }
}

fn shm_is_shared() {
    let s = segment(10_000);
    let at = sc!(SYS_shmat, s.id, 0, 0).must();
    assert_eq!(peek(at + 8192), 0);
    poke(at, 7);
    // A child inherits the attachment; another attachment sees the same memory.
    in_child(|| {
        assert_eq!(peek(at), 7);
        let again = sc!(SYS_shmat, s.id, 0, 0).must();
        assert_ne!(again, at);
        poke(again + 4096, 9);
        assert_eq!(shm_stat(s.id).shm_nattch, 3);
        sc!(SYS_shmdt, again).is(0);
        assert_eq!(shm_stat(s.id).shm_nattch, 2);
    });
    assert_eq!(peek(at + 4096), 9);
    let ds = shm_stat(s.id);
    assert_eq!((ds.shm_segsz, ds.shm_nattch), (10_000, 1));
    assert_eq!(ds.shm_cpid as usize, sc!(SYS_getpid).must());
    assert!(ds.shm_ctime > 0 && ds.shm_atime > 0);
    assert_eq!(ds.shm_perm.mode & 0o777, 0o600);
    sc!(SYS_shmdt, at + 4096).fails(EINVAL);
    sc!(SYS_shmdt, at).is(0);
    sc!(SYS_shmdt, at).fails(EINVAL);
    assert_eq!(shm_stat(s.id).shm_nattch, 0);
    // Contents stay without attachments.
    let at = sc!(SYS_shmat, s.id, 0, 0).must();
    assert_eq!((peek(at), peek(at + 4096)), (7, 9));
}

/// Who attached or detached last, in whatever way: an area that is copied by fork(2) or cut in two
/// counts as attached, one that ends by munmap(2), execve(2) or with its process as detached.
fn shm_traces() {
    let s = segment(8192);
    let own = pid();
    let trace = || {
        let ds = shm_stat(s.id);
        (ds.shm_lpid, ds.shm_dtime > 0)
    };
    assert_eq!(trace(), (0, false));
    let at = sc!(SYS_shmat, s.id, 0, 0).must();
    assert_eq!(trace(), (own, false));
    let (out, into) = pipe();
    let child = fork(|| {
        read(out, 1);
        0
    });
    assert_eq!((trace(), shm_stat(s.id).shm_nattch), ((own, false), 2));
    write(into, b"g");
    wait_code(child, 0);
    assert_eq!((trace(), shm_stat(s.id).shm_nattch), ((child, true), 1));
    let child = fork(|| {
        sc!(SYS_munmap, at + 4096, 4096).is(0);
        assert_eq!(shm_stat(s.id).shm_lpid, pid());
        sc!(SYS_kill, pid(), SIGKILL).is(0);
        0
    });
    wait_signal(child, SIGKILL);
    assert_eq!((trace(), shm_stat(s.id).shm_nattch), ((child, true), 1));
    let child = fork(|| {
        let (path, mode) = (c(&own_path()), c("child"));
        let arguments = [path.as_ptr(), mode.as_ptr(), c"true".as_ptr(), std::ptr::null()];
        let _ = sc!(SYS_execve, path.as_ptr(), arguments.as_ptr(), [0usize].as_ptr());
        1
    });
    wait_code(child, 0);
    assert_eq!(trace(), (child, true));
    let fresh = segment(4096);
    let at = sc!(SYS_shmat, fresh.id, 0, 0).must();
    sc!(SYS_mremap, at, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, anon(4096)).must();
    let ds = shm_stat(fresh.id);
    assert_eq!((ds.shm_lpid, ds.shm_dtime > 0, ds.shm_nattch), (own, true, 1));
}

fn shm_keys_and_errors() {
    let k = key();
    sc!(SYS_shmget, k, 100, 0o600).fails(ENOENT);
    sc!(SYS_shmget, k, 0, IPC_CREAT | 0o600).fails(EINVAL);
    let id = sc!(SYS_shmget, k, 100, IPC_CREAT | 0o600).must();
    let s = Owned { id, control: SYS_shmctl };
    sc!(SYS_shmget, k, 100, IPC_CREAT | IPC_EXCL | 0o600).fails(EEXIST);
    sc!(SYS_shmget, k, 100, 0).is(id);
    sc!(SYS_shmget, k, 0, 0).is(id);
    sc!(SYS_shmget, k, 101, 0).fails(EINVAL);
    in_child(|| sc!(SYS_shmget, k, 100, 0).is(id));
    sc!(SYS_shmctl, id, IPC_STAT, 8).fails(EFAULT);
    sc!(SYS_shmctl, id, 999, 0).fails(EINVAL);
    sc!(SYS_shmctl, usize::MAX, IPC_STAT, 0).fails(EINVAL);
    drop(s);
    sc!(SYS_shmat, id, 0, 0).fails(EINVAL);
    sc!(SYS_shmget, k, 100, 0).fails(ENOENT);
}

fn shm_attach_places() {
    let s = segment(8192);
    let room = anon(64 << 10) as usize;
    sc!(SYS_munmap, room, 64 << 10).is(0);
    sc!(SYS_shmat, s.id, room + 1, 0).fails(EINVAL);
    sc!(SYS_shmat, s.id, room + 4097, SHM_RND).is(room + 4096);
    sc!(SYS_shmat, s.id, room + 8192, 0).fails(EINVAL);
    sc!(SYS_shmat, s.id, 0, SHM_REMAP).fails(EINVAL);
    sc!(SYS_shmat, s.id, room + 8192, SHM_REMAP).is(room + 8192);
    poke(room + 8192, 5);
    // Both begin with the segment's first page.
    assert_eq!(peek(room + 4096), 5);
    sc!(SYS_shmdt, room + 4096).is(0);
    assert_eq!(peek(room + 8192), 5);
    // A part of an attachment that was unmapped is no matter.
    sc!(SYS_munmap, room + 8192, 4096).is(0);
    sc!(SYS_shmdt, room + 8192).is(0);
    assert_eq!(shm_stat(s.id).shm_nattch, 0);
}

fn shm_removed_but_attached() {
    let k = key();
    let id = sc!(SYS_shmget, k, 4096, IPC_CREAT | 0o600).must();
    let s = Owned { id, control: SYS_shmctl };
    let at = sc!(SYS_shmat, id, 0, 0).must();
    drop(s);
    let ds = shm_stat(id);
    assert_eq!(ds.shm_perm.mode & 0o7777, 0o1600, "SHM_DEST");
    assert_eq!(ds.shm_perm.__key, 0);
    sc!(SYS_shmget, k, 4096, 0).fails(ENOENT);
    poke(at, 3);
    let again = sc!(SYS_shmat, id, 0, 0).must();
    assert_eq!(peek(again), 3);
    in_child(|| assert_eq!(peek(at), 3));
    sc!(SYS_shmdt, at).is(0);
    sc!(SYS_munmap, again, 4096).is(0);
    sc!(SYS_shmat, id, 0, 0).fails(EINVAL);
}

fn shm_read_only() {
    let s = segment(4096);
    let at = sc!(SYS_shmat, s.id, 0, SHM_RDONLY).must();
    assert_eq!(peek(at), 0);
    let child = fork(|| {
        poke(at, 1);
        0
    });
    wait_signal(child, SIGSEGV);
    sc!(SYS_mprotect, at, 4096, PROT_READ | PROT_WRITE).fails(EACCES);
}

fn operation(number: u16, op: i16, flags: i16) -> sembuf {
    sembuf { sem_num: number, sem_op: op, sem_flg: flags }
}

fn semop(s: &Owned, operations: &[sembuf]) -> Res {
    sc!(SYS_semop, s.id, operations.as_ptr(), operations.len())
}

fn value(s: &Owned, number: usize) -> usize {
    sc!(SYS_semctl, s.id, number, SEM_GETVAL).must()
}

fn set(s: &Owned, number: usize, value: usize) {
    sc!(SYS_semctl, s.id, number, SEM_SETVAL, value).is(0);
}

/// Until `count` processes wait as the command says.
fn until_waiting(s: &Owned, number: usize, command: i32, count: usize) {
    while sc!(SYS_semctl, s.id, number, command).must() != count {
        sc!(SYS_sched_yield).is(0);
    }
}

fn sem_values() {
    let s = semaphores(3);
    assert_eq!(value(&s, 0), 0);
    sc!(SYS_semctl, s.id, 3, SEM_GETVAL).fails(EINVAL);
    sc!(SYS_semctl, s.id, 0, SEM_SETVAL, 32768).fails(ERANGE);
    let all = [1u16, 2, 3];
    sc!(SYS_semctl, s.id, 0, SEM_SETALL, all.as_ptr()).is(0);
    let mut got = [0u16; 3];
    sc!(SYS_semctl, s.id, 0, SEM_GETALL, got.as_mut_ptr()).is(0);
    assert_eq!(got, all);
    let bad = [1u16, 40000, 3];
    sc!(SYS_semctl, s.id, 0, SEM_SETALL, bad.as_ptr()).fails(ERANGE);
    semop(&s, &[operation(1, 5, 0), operation(2, -3, 0)]).is(0);
    assert_eq!((value(&s, 1), value(&s, 2)), (7, 0));
    let own = sc!(SYS_getpid).must();
    sc!(SYS_semctl, s.id, 1, SEM_GETPID).is(own);
    semop(&s, &[operation(3, 1, 0)]).fails(EFBIG);
    semop(&s, &[]).fails(EINVAL);
    sc!(SYS_semop, s.id, 0, 501).fails(E2BIG);
    semop(&s, &[operation(1, 32767, 0)]).fails(ERANGE);
    sc!(SYS_semop, s.id, 8, 1).fails(EFAULT);
    // SAFETY: a structure of numbers.
    let mut ds: semid_ds = unsafe { std::mem::zeroed() };
    sc!(SYS_semctl, s.id, 0, IPC_STAT, &raw mut ds).is(0);
    assert!(ds.sem_nsems == 3 && ds.sem_otime > 0 && ds.sem_ctime > 0);
    sc!(SYS_semget, IPC_PRIVATE, 0, 0o600).fails(EINVAL);
    sc!(SYS_semget, IPC_PRIVATE, 32001, 0o600).fails(EINVAL);
}

fn sem_blocks_and_wakes() {
    let s = semaphores(2);
    let child = fork(|| {
        semop(&s, &[operation(0, -2, 0)]).is(0);
        semop(&s, &[operation(1, 1, 0)]).is(0);
        0
    });
    until_waiting(&s, 0, SEM_GETNCNT, 1);
    semop(&s, &[operation(0, 1, 0)]).is(0);
    semop(&s, &[operation(1, -1, NOWAIT)]).fails(EAGAIN);
    semop(&s, &[operation(0, 1, 0)]).is(0);
    semop(&s, &[operation(1, -1, 0)]).is(0);
    wait_code(child, 0);
    assert_eq!(value(&s, 0), 0);
}

fn sem_all_or_nothing() {
    let s = semaphores(2);
    set(&s, 0, 1);
    semop(&s, &[operation(0, -1, 0), operation(1, -1, NOWAIT)]).fails(EAGAIN);
    assert_eq!(value(&s, 0), 1);
    // Stopped first by one semaphore, then by the other.
    set(&s, 0, 0);
    let child = fork(|| {
        semop(&s, &[operation(0, -1, 0), operation(1, -1, 0)]).is(0);
        0
    });
    until_waiting(&s, 0, SEM_GETNCNT, 1);
    set(&s, 0, 1);
    until_waiting(&s, 1, SEM_GETNCNT, 1);
    assert_eq!(value(&s, 0), 1);
    set(&s, 1, 1);
    wait_code(child, 0);
    assert_eq!((value(&s, 0), value(&s, 1)), (0, 0));
    // In order: what an operation gives, a later one of the same call may take.
    semop(&s, &[operation(0, 1, 0), operation(0, -1, 0), operation(0, 0, 0)]).is(0);
}

fn sem_zero_and_counts() {
    let s = semaphores(1);
    set(&s, 0, 2);
    let child = fork(|| {
        semop(&s, &[operation(0, 0, 0)]).is(0);
        0
    });
    until_waiting(&s, 0, SEM_GETZCNT, 1);
    sc!(SYS_semctl, s.id, 0, SEM_GETNCNT).is(0);
    semop(&s, &[operation(0, -2, 0)]).is(0);
    wait_code(child, 0);
    sc!(SYS_semctl, s.id, 0, SEM_GETZCNT).is(0);
}

fn sem_timeout_and_signal() {
    let s = semaphores(1);
    let op = operation(0, -1, 0);
    let short = timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    sc!(SYS_semtimedop, s.id, &raw const op, 1, &raw const short).fails(EAGAIN);
    let wrong = timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    sc!(SYS_semtimedop, s.id, &raw const op, 1, &raw const wrong).fails(EINVAL);
    // A handler ends the wait, whatever SA_RESTART says.
    let child = fork(|| {
        on_signal(SIGUSR1, nothing as *const () as usize, SA_RESTART, 0);
        semop(&s, &[op]).fails(EINTR);
        0
    });
    until_waiting(&s, 0, SEM_GETNCNT, 1);
    sc!(SYS_kill, child, SIGUSR1).is(0);
    wait_code(child, 0);
    sc!(SYS_semctl, s.id, 0, SEM_GETNCNT).is(0);
}

fn sem_undo() {
    let s = semaphores(2);
    set(&s, 0, 5);
    in_child(|| {
        semop(&s, &[operation(0, -3, UNDO), operation(1, 2, UNDO)]).is(0);
        semop(&s, &[operation(0, -1, 0)]).is(0);
        // A child of its own starts without any, and its end changes nothing.
        in_child(|| ());
        assert_eq!((value(&s, 0), value(&s, 1)), (1, 2));
    });
    assert_eq!((value(&s, 0), value(&s, 1)), (4, 0));
    // A value never goes below 0, and those who waited go on.
    let holder = fork(|| {
        semop(&s, &[operation(0, -4, UNDO), operation(1, 1, UNDO)]).is(0);
        semop(&s, &[operation(1, -3, 0)]).must();
        0
    });
    until_waiting(&s, 1, SEM_GETNCNT, 1);
    let waiter = fork(|| {
        semop(&s, &[operation(0, -4, 0)]).is(0);
        0
    });
    until_waiting(&s, 0, SEM_GETNCNT, 1);
    semop(&s, &[operation(1, -1, 0)]).is(0);
    sc!(SYS_kill, holder, SIGKILL).is(0);
    wait_signal(holder, SIGKILL);
    wait_code(waiter, 0);
    assert_eq!((value(&s, 0), value(&s, 1)), (0, 0));
}

fn sem_undo_is_forgotten() {
    let s = semaphores(1);
    in_child(|| {
        semop(&s, &[operation(0, 3, UNDO)]).is(0);
        set(&s, 0, 7);
    });
    assert_eq!(value(&s, 0), 7, "SETVAL clears what would be taken back");
    in_child(|| {
        (0..2).for_each(|_| semop(&s, &[operation(0, 16000, UNDO)]).is(0));
        set(&s, 0, 0);
        (0..2).for_each(|_| semop(&s, &[operation(0, 16000, UNDO)]).is(0));
        semop(&s, &[operation(0, -32000, 0)]).is(0);
        semop(&s, &[operation(0, 16000, UNDO)]).fails(ERANGE);
        set(&s, 0, 1);
    });
    assert_eq!(value(&s, 0), 1);
}

fn sem_removed() {
    let s = semaphores(1);
    let child = fork(|| {
        semop(&s, &[operation(0, -1, 0)]).fails(EIDRM);
        0
    });
    until_waiting(&s, 0, SEM_GETNCNT, 1);
    let id = s.id;
    drop(s);
    wait_code(child, 0);
    sc!(SYS_semctl, id, 0, SEM_GETVAL).fails(EINVAL);
}

fn sem_mutex_of_many() {
    let (s, m) = (semaphores(1), segment(4096));
    set(&s, 0, 1);
    let at = sc!(SYS_shmat, m.id, 0, 0).must();
    let children: Vec<i32> = (0..6)
        .map(|_| {
            fork(|| {
                for _ in 0..200 {
                    semop(&s, &[operation(0, -1, UNDO)]).is(0);
                    let old = peek(at);
                    sc!(SYS_sched_yield).is(0);
                    poke(at, old + 1);
                    semop(&s, &[operation(0, 1, UNDO)]).is(0);
                }
                0
            })
        })
        .collect();
    children.into_iter().for_each(|child| wait_code(child, 0));
    assert_eq!((peek(at), value(&s, 0)), (1200, 1));
}

#[repr(C)]
struct Message {
    kind: i64,
    text: [u8; 16],
}

fn send(q: &Owned, kind: i64, text: &[u8], flags: i32) -> Res {
    let mut m = Message { kind, text: [0; 16] };
    m.text[..text.len()].copy_from_slice(text);
    sc!(SYS_msgsnd, q.id, &raw const m, text.len(), flags)
}

fn receive(q: &Owned, max: usize, kind: i64, flags: i32) -> Result<(i64, Vec<u8>), i32> {
    let mut m = Message { kind: -1, text: [0xee; 16] };
    let len = sc!(SYS_msgrcv, q.id, &raw mut m, max, kind, flags)?;
    assert!(m.text[len..].iter().all(|&b| b == 0xee));
    Ok((m.kind, m.text[..len].to_vec()))
}

fn msg_kinds() {
    let q = queue();
    for (kind, text) in [(5, "five"), (3, "three"), (9, "nine"), (3, "more"), (7, "")] {
        send(&q, kind, text.as_bytes(), 0).is(0);
    }
    let got = |kind, flags| receive(&q, 16, kind, flags | IPC_NOWAIT);
    assert_eq!(got(9, 0), Ok((9, b"nine".to_vec())));
    assert_eq!(got(-4, 0), Ok((3, b"three".to_vec())));
    assert_eq!(got(-2, 0), Err(ENOMSG));
    assert_eq!(got(5, MSG_EXCEPT), Ok((3, b"more".to_vec())));
    assert_eq!(receive(&q, 2, 0, IPC_NOWAIT), Err(E2BIG));
    assert_eq!(receive(&q, 2, 0, IPC_NOWAIT | MSG_NOERROR), Ok((5, b"fi".to_vec())));
    assert_eq!(got(0, 0), Ok((7, Vec::new())));
    assert_eq!(got(0, 0), Err(ENOMSG));
}

fn msg_stat(q: &Owned) -> msqid_ds {
    // SAFETY: a structure of numbers.
    let mut ds: msqid_ds = unsafe { std::mem::zeroed() };
    sc!(SYS_msgctl, q.id, IPC_STAT, &raw mut ds).is(0);
    ds
}

fn msg_limits() {
    let q = queue();
    let m = vec![1u64; 1200];
    sc!(SYS_msgsnd, q.id, m.as_ptr(), 8193, 0).fails(EINVAL);
    sc!(SYS_msgsnd, q.id, m.as_ptr(), usize::MAX, 0).fails(EINVAL);
    send(&q, 0, b"x", 0).fails(EINVAL);
    send(&q, -1, b"x", 0).fails(EINVAL);
    sc!(SYS_msgsnd, q.id, 8, 1, 0).fails(EFAULT);
    sc!(SYS_msgsnd, q.id, m.as_ptr(), 8192, IPC_NOWAIT).is(0);
    sc!(SYS_msgsnd, q.id, m.as_ptr(), 8192, IPC_NOWAIT).is(0);
    sc!(SYS_msgsnd, q.id, m.as_ptr(), 1, IPC_NOWAIT).fails(EAGAIN);
    let mut ds = msg_stat(&q);
    assert_eq!((ds.msg_qnum, ds.__msg_cbytes, ds.msg_qbytes), (2, 16384, 16384));
    assert_eq!(ds.msg_lspid as usize, sc!(SYS_getpid).must());
    ds.msg_qbytes = 8192;
    sc!(SYS_msgctl, q.id, IPC_SET, &raw const ds).is(0);
    let mut back = vec![0u64; 1200];
    sc!(SYS_msgrcv, q.id, back.as_mut_ptr(), 8192, 0, 0).is(8192);
    assert_eq!(back[..1024], m[..1024]);
    sc!(SYS_msgsnd, q.id, m.as_ptr(), 1, IPC_NOWAIT).fails(EAGAIN);
}

fn msg_blocks() {
    let (q, back) = (queue(), queue());
    let m = [1u64; 1025];
    (0..2).for_each(|_| sc!(SYS_msgsnd, back.id, m.as_ptr(), 8192, 0).is(0));
    let child = fork(|| {
        for i in 0..300i64 {
            let (kind, text) = receive(&q, 16, 0, 0).unwrap();
            assert_eq!((kind, text.len()), (i + 1, 16));
        }
        send(&back, 1, b"done", 0).is(0);
        0
    });
    // More than the queue holds: both sides wait for each other.
    for i in 0..300 {
        let mut m = [i + 1; 3];
        m[1] = 0;
        sc!(SYS_msgsnd, q.id, m.as_ptr(), 16, 0).is(0);
    }
    assert_eq!(receive(&back, 16, 0, MSG_NOERROR).unwrap().1.len(), 16);
    wait_code(child, 0);
}

fn msg_removed() {
    let q = queue();
    let receiver = fork(|| {
        assert_eq!(receive(&q, 16, 0, 0), Err(EIDRM));
        0
    });
    let full = queue();
    let m = [1u64; 1025];
    (0..2).for_each(|_| sc!(SYS_msgsnd, full.id, m.as_ptr(), 8192, 0).is(0));
    let sender = fork(|| {
        send(&full, 1, b"x", 0).fails(EIDRM);
        0
    });
    // Both sleep before the queues go: /proc tells.
    for pid in [receiver, sender] {
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") S ") {
            sc!(SYS_sched_yield).is(0);
        }
    }
    drop((q, full));
    wait_code(receiver, 0);
    wait_code(sender, 0);
}

fn msg_copy() {
    let q = queue();
    send(&q, 4, b"first", 0).is(0);
    send(&q, 2, b"second", 0).is(0);
    let copy = |place| receive(&q, 16, place, MSG_COPY | IPC_NOWAIT);
    if copy(0) == Err(ENOSYS) {
        return; // A Linux without CONFIG_CHECKPOINT_RESTORE.
    }
    assert_eq!(copy(1), Ok((2, b"second".to_vec())));
    assert_eq!(copy(0), Ok((4, b"first".to_vec())));
    assert_eq!(copy(2), Err(ENOMSG));
    assert_eq!(receive(&q, 16, 0, MSG_COPY), Err(EINVAL));
    assert_eq!(msg_stat(&q).msg_qnum, 2);
}

fn ids_and_permissions() {
    let old = semaphores(1).id;
    let s = semaphores(1);
    assert_ne!(s.id, old, "an id is not soon used again");
    if sc!(SYS_geteuid).must() != 0 {
        return; // Only root can become somebody else.
    }
    let k = key();
    let id = sc!(SYS_shmget, k, 4096, IPC_CREAT | 0o640).must();
    let m = Owned { id, control: SYS_shmctl };
    let mut ds = shm_stat(id);
    let child = fork(|| {
        sc!(SYS_setresgid, 4321, 4321, 4321).is(0);
        sc!(SYS_setgroups, 0, 0).is(0);
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_shmat, id, 0, 0).fails(EACCES);
        sc!(SYS_shmget, k, 4096, 0o600).fails(EACCES);
        sc!(SYS_shmget, k, 4096, 0).is(id);
        sc!(SYS_shmctl, id, IPC_STAT, &raw mut ds).fails(EACCES);
        sc!(SYS_shmctl, id, IPC_RMID, 0).fails(EPERM);
        sc!(SYS_semctl, s.id, 0, SEM_SETVAL, 1).fails(EACCES);
        sc!(SYS_semctl, s.id, 0, IPC_RMID).fails(EPERM);
        0
    });
    wait_code(child, 0);
    ds.shm_perm.uid = 1234;
    ds.shm_perm.mode = 0o400;
    sc!(SYS_shmctl, id, IPC_SET, &raw const ds).is(0);
    let child = fork(|| {
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_shmat, id, 0, 0).fails(EACCES);
        sc!(SYS_shmat, id, 0, SHM_RDONLY).must();
        sc!(SYS_shmctl, id, IPC_RMID, 0).is(0);
        0
    });
    wait_code(child, 0);
    std::mem::forget(m);
}

fn proc_tables() {
    let (m, s, q) = (segment(12_345), semaphores(7), queue());
    let line = |table: &str, id: usize| {
        let text = std::fs::read_to_string(format!("/proc/sysvipc/{table}")).unwrap();
        let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let found = text.lines().map(fields).find(|fields| fields[1] == id.to_string());
        (fields(text.lines().next().unwrap()), found.unwrap())
    };
    let (head, row) = line("shm", m.id);
    assert_eq!((head.len(), row.len(), head[3].as_str()), (16, 16, "size"));
    assert_eq!((row[2].as_str(), row[3].as_str(), row[6].as_str()), ("600", "12345", "0"));
    let (head, row) = line("sem", s.id);
    assert_eq!((head.len(), row.len(), row[3].as_str()), (10, 10, "7"));
    let (head, row) = line("msg", q.id);
    assert_eq!((head.len(), row.len(), row[4].as_str()), (14, 14, "0"));
    // SHM_STAT and its like take a place in the table and give the id.
    let (info, stat) = (14, 13);
    let mut buffer = [0u8; 128];
    let last = sc!(SYS_shmctl, 0, info, buffer.as_mut_ptr()).must();
    let ids = (0..=last).filter_map(|at| sc!(SYS_shmctl, at, stat, buffer.as_mut_ptr()).ok());
    assert!(ids.collect::<Vec<_>>().contains(&m.id));
}
