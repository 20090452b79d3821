//! What random programs found (`differ`) about files, pipes, /proc, System V objects and
//! scheduling, as tests of their own.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::sys::*;
use crate::{sc, tests};

tests!("found_files":
    other_ids_end_the_death_signal, nobody_reads_before_what_is_read, refused_is_unchanged,
    ids_are_not_used_again_at_once, robust_lists_of_the_ended, what_is_idle_stays_idle,
    no_value_is_not_read, names_of_any_length, who_follows_a_link_reads_it,
    reading_a_directory_is_seen, reading_nothing_is_seen, times_of_fifos, ends_of_offsets,
    bad_addresses_before_seals, settings_can_be_watched, a_slack_is_a_threads,
    flags_before_promises, what_is_reserved_is_a_hole, objects_without_a_name_are_one,
    pidfds_of_a_process_are_one, leases_of_other_threads_tell_nobody, owners_that_have_gone,
    newest_names_come_first, writing_nothing_changes_nothing, ranges_before_flags,
    no_name_is_no_empty_name, nothing_without_a_name_is_executed, first_threads_of_zombies,
    exchanging_with_a_slash, creating_above_the_scope, locks_in_the_order_of_their_owners,
    stacks_beside_each_other_are_one, others_files_before_directories, others_threads_are_asked,
    segments_end_with_their_bytes, locks_are_read_first, numbers_are_told_from_their_beginning,
    directories_of_processes_are_immutable, names_of_a_process, sizes_of_descriptor_directories,
    what_was_moved_stays_apart, who_cannot_be_sent_was_read, settings_take_nothing,
    sizes_behind_areas, nobody_traces_zombies, who_has_more_keeps_its_priority,
    areas_without_reserve_stay_apart, text_has_nothing_left, what_is_not_shared_is_not_copied,
    what_stays_behind_is_one, no_node_is_the_wrong_one, the_end_is_written_nowhere,
    long_names_are_not_remembered, descriptors_are_no_right_to_a_name, zombies_keep_their_priority,
    what_may_merge_stays_apart, policies_keep_areas_apart, zeros_from_an_offset,
    files_grow_below_what_is_written, limits_of_less_than_a_page,
    stacks_come_by_small_pages, who_asks_for_what_is_there, nobody_is_woken_nowhere,
    who_opens_for_nothing_locks_nothing, only_what_changes_is_cut, no_file_is_cloned,
    what_a_thread_says_of_itself, words_of_one_kind, what_a_file_takes,
);

fn other_ids_end_the_death_signal() {
    let wanted = |signal: i32| {
        let mut found = -1i32;
        sc!(SYS_prctl, PR_GET_PDEATHSIG, &raw mut found, 0, 0, 0).is(0);
        assert_eq!(found, signal);
    };
    in_child(|| {
        sc!(SYS_prctl, PR_SET_PDEATHSIG, 40, 0, 0, 0).is(0);
        sc!(SYS_setfsgid, u32::MAX).must();
        wanted(40);
        sc!(SYS_setfsgid, 1234).must();
        wanted(0);
        sc!(SYS_setfsgid, 0).must();
        sc!(SYS_prctl, PR_SET_PDEATHSIG, 40, 0, 0, 0).is(0);
        // Neither of the real ids alone nor of the saved ones.
        sc!(SYS_setresgid, 1234, u32::MAX, 1234).is(0);
        wanted(40);
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        wanted(0);
    });
}

/// What is moved into a pipe is not looked at while nobody reads there.
fn nobody_reads_before_what_is_read() {
    on_signal(SIGPIPE, SIG_IGN, 0, 0);
    let (r, w) = pipe();
    let null = open("/dev/null", O_RDONLY).fd();
    let directory = open("/proc/self/fd", O_RDONLY).fd();
    sc!(SYS_splice, null, 0, w, 0, 100, 0).fails(EINVAL);
    sc!(SYS_sendfile, w, directory, 0, 100).fails(EINVAL);
    close(r);
    sc!(SYS_splice, null, 0, w, 0, 100, 0).fails(EPIPE);
    sc!(SYS_sendfile, w, directory, 0, 100).fails(EPIPE);
    // Nor are they who cannot give anything.
    let (other, _other) = pipe();
    let own = sc!(SYS_pidfd_open, pid(), 0).fd();
    let event = sc!(SYS_eventfd2, 1, 0).fd();
    for from in [other, own, event] {
        sc!(SYS_sendfile, w, from, 0, 100).fails(EPIPE);
        sc!(SYS_sendfile, w, from, 0, 0).fails(EPIPE);
    }
    let file = open(&own_path(), O_RDONLY).fd();
    sc!(SYS_sendfile, w, file, 0, 100).fails(EPIPE);
    sc!(SYS_sendfile, w, file, 0, 0).fails(EPIPE);
    sc!(SYS_splice, null, 0, w, 0, 0, 0).is(0);
    // Nor where there is no room.
    let (_r, w) = pipe_flags(O_NONBLOCK);
    let block = [0u8; 4096];
    while sc!(SYS_write, w, block.as_ptr(), 4096).is_ok() {}
    let empty = open("/dev/null", O_RDONLY).fd();
    sc!(SYS_splice, empty, 0, w, 0, 100, 0).fails(EAGAIN);
    sc!(SYS_sendfile, w, file, 0, 100).fails(EAGAIN);
    sc!(SYS_sendfile, w, own, 0, 100).fails(EAGAIN);
}

fn refused_is_unchanged() {
    let path = format!("{}/f", dir_in("/dev/shm"));
    let name = c(&path);
    std::fs::write(&path, [1; 8192]).unwrap();
    sc!(SYS_chown, name.as_ptr(), 1234, 1234).is(0);
    sc!(SYS_chmod, name.as_ptr(), 0o6755).is(0);
    let before = open(&path, O_RDWR).fd();
    as_user(|| {
        // Not whole blocks: where there is such a call it fails, elsewhere there is none.
        assert!(sc!(SYS_fallocate, before, FALLOC_FL_INSERT_RANGE, 100, 27).is_err());
        assert!(sc!(SYS_fallocate, before, FALLOC_FL_COLLAPSE_RANGE, 100, 27).is_err());
    });
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o6755);
}

/// The place of an object that has gone is not the next one's.
fn ids_are_not_used_again_at_once() {
    const MSG_STAT: i32 = 11;
    const SHM_STAT: i32 = 13;
    const SEM_STAT: i32 = 18;
    let mut buffer = [0u64; 32];
    let at = buffer.as_mut_ptr();
    let first = sc!(SYS_msgget, IPC_PRIVATE, 0o600).must();
    sc!(SYS_msgctl, first, IPC_RMID, 0).is(0);
    let second = sc!(SYS_msgget, IPC_PRIVATE, 0o600).must();
    sc!(SYS_msgctl, first, MSG_STAT, at).fails(EINVAL);
    assert_ne!(first & 0x7fff, second & 0x7fff);
    sc!(SYS_msgctl, second, MSG_STAT, at).is(second);
    sc!(SYS_msgctl, second, IPC_RMID, 0).is(0);
    let first = sc!(SYS_shmget, IPC_PRIVATE, 4096, 0o600).must();
    sc!(SYS_shmctl, first, IPC_RMID, 0).is(0);
    let second = sc!(SYS_shmget, IPC_PRIVATE, 4096, 0o600).must();
    sc!(SYS_shmctl, first, SHM_STAT, at).fails(EINVAL);
    sc!(SYS_shmctl, second, IPC_RMID, 0).is(0);
    let first = sc!(SYS_semget, IPC_PRIVATE, 1, 0o600).must();
    sc!(SYS_semctl, first, 0, IPC_RMID, 0).is(0);
    let second = sc!(SYS_semget, IPC_PRIVATE, 1, 0o600).must();
    sc!(SYS_semctl, first, 0, SEM_STAT, at).fails(EINVAL);
    sc!(SYS_semctl, second, 0, IPC_RMID, 0).is(0);
    // More than there are places at first: none is lost, and no id comes twice.
    let mut ids = std::collections::BTreeSet::new();
    for round in 0..3 {
        let made: Vec<usize> =
            (0..100).map(|_| sc!(SYS_msgget, IPC_PRIVATE, 0o600).must()).collect();
        for &id in &made {
            assert!(ids.insert(id), "round {round}: {id} again");
            sc!(SYS_msgctl, id, IPC_RMID, 0).is(0);
        }
    }
}

fn robust_lists_of_the_ended() {
    let child = fork(|| 0);
    // It has ended and is not waited for.
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    let (mut head, mut length) = (1u64, 0u64);
    sc!(SYS_get_robust_list, child, &raw mut head, &raw mut length).is(0);
    assert_eq!((head, length), (0, 24));
    wait_code(child, 0);
    sc!(SYS_get_robust_list, child, &raw mut head, &raw mut length).fails(ESRCH);
}

/// Leaving SCHED_IDLE takes what a better nice value takes, and so does leaving the promise that
/// children begin anew.
fn what_is_idle_stays_idle() {
    const RESET_ON_FORK: i32 = 0x4000_0000;
    let zero = 0i32;
    let one = 1i32;
    let set = |policy: i32, priority: &i32| {
        sc!(SYS_sched_setscheduler, 0, policy, priority as *const i32)
    };
    as_user(|| {
        sc!(SYS_setrlimit, RLIMIT_NICE, [0u64, 0].as_ptr()).is(0);
        set(SCHED_BATCH, &zero).is(0);
        set(SCHED_OTHER, &zero).is(0);
        set(SCHED_FIFO, &one).fails(EPERM);
        set(SCHED_OTHER | RESET_ON_FORK, &zero).is(0);
        set(SCHED_OTHER, &zero).fails(EPERM);
        set(SCHED_IDLE | RESET_ON_FORK, &zero).is(0);
        set(SCHED_OTHER | RESET_ON_FORK, &zero).fails(EPERM);
        set(SCHED_BATCH | RESET_ON_FORK, &zero).fails(EPERM);
        set(SCHED_IDLE | RESET_ON_FORK, &zero).is(0);
        let attribute = [48u64 | (SCHED_OTHER as u64) << 32, 1, 0, 0, 0, 0];
        sc!(SYS_sched_setattr, 0, attribute.as_ptr(), 0).fails(EPERM);
    });
    as_user(|| {
        set(SCHED_OTHER, &zero).is(0);
        sc!(SYS_setpriority, PRIO_PROCESS, 0, 5).is(0);
        let nice = |value: i32| [48u64, 0, value as u32 as u64, 0, 0, 0];
        sc!(SYS_sched_setattr, 0, nice(7).as_ptr(), 0).is(0);
        sc!(SYS_sched_setattr, 0, nice(6).as_ptr(), 0).fails(EPERM);
    });
}

fn no_value_is_not_read() {
    let bad = 0xffff_8000_0000_0000u64;
    let missing = c("/proc/self/exe/x");
    let attribute = c"user.a".as_ptr();
    sc!(SYS_setxattr, missing.as_ptr(), attribute, bad, 0, 0).fails(ENOTDIR);
    sc!(SYS_setxattr, missing.as_ptr(), attribute, bad, 1, 0).fails(EFAULT);
    sc!(SYS_setxattr, c("/proc/missing").as_ptr(), attribute, bad, 0, 0).fails(ENOENT);
}

/// Of a name as many bytes are taken as there is room for; all of them count as written.
fn names_of_any_length() {
    in_child(|| {
        let fd = open("/proc/self/comm", O_RDWR).fd();
        let text = [b'n'; 20_000];
        sc!(SYS_write, fd, text.as_ptr(), text.len()).is(text.len());
        assert_eq!(std::fs::read_to_string("/proc/self/comm").unwrap(), "nnnnnnnnnnnnnnn\n");
        // What is behind the bytes that matter need not be there.
        let page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
        sc!(SYS_munmap, page + 4096, 4096).is(0);
        sc!(SYS_write, fd, page + 4096 - 15, 5000).is(5000);
        sc!(SYS_write, fd, page + 4096 - 14, 5000).fails(EFAULT);
    });
}

const LONG_AGO: [u64; 4] = [1000, 5, 2000, 6];

/// Sets times of which the access is older than the change.
fn age(path: &str) {
    sc!(SYS_utimensat, AT_FDCWD, c(path).as_ptr(), LONG_AGO.as_ptr(), AT_SYMLINK_NOFOLLOW).is(0);
    let of = std::fs::symlink_metadata(path).unwrap();
    assert_eq!((of.atime(), of.mtime()), (1000, 2000));
}

/// Seconds of access and change.
fn times(path: &str) -> (i64, i64) {
    let of = std::fs::symlink_metadata(path).unwrap();
    (of.atime(), of.mtime())
}

fn who_follows_a_link_reads_it() {
    let link = format!("{}/l", dir_in("/dev/shm"));
    std::os::unix::fs::symlink("missing", &link).unwrap();
    age(&link);
    let _ = std::fs::symlink_metadata(&link);
    assert_eq!(times(&link), (1000, 2000));
    open(&link, O_RDONLY).fails(ENOENT);
    assert!(times(&link).0 > 2000);
    age(&link);
    std::fs::read_link(&link).unwrap();
    assert!(times(&link).0 > 2000);
    assert_eq!(times(&link).1, 2000);
}

fn reading_a_directory_is_seen() {
    let dir = dir_in("/dev/shm");
    age(&dir);
    let mut bytes = [0u8; 1024];
    let quiet = open(&dir, O_RDONLY | O_NOATIME).fd();
    sc!(SYS_getdents64, quiet, bytes.as_mut_ptr(), 1024).must();
    assert_eq!(times(&dir), (1000, 2000));
    let fd = open(&dir, O_RDONLY).fd();
    assert_eq!(times(&dir), (1000, 2000));
    sc!(SYS_getdents64, fd, bytes.as_mut_ptr(), 1024).must();
    assert!(times(&dir).0 > 2000);
    // Also where there is no room for what was read, or no place.
    for (at, count) in [(bytes.as_mut_ptr(), 22), (bytes.as_mut_ptr(), -1), (8 as *mut u8, 1024)] {
        sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
        age(&dir);
        sc!(SYS_getdents64, fd, at, count).fails(if count == 1024 { EFAULT } else { EINVAL });
        assert!(times(&dir).0 > 2000, "{count}");
    }
}

fn reading_nothing_is_seen() {
    let path = format!("{}/f", dir_in("/dev/shm"));
    std::fs::write(&path, "text").unwrap();
    let fd = open(&path, O_RDONLY).fd();
    age(&path);
    sc!(SYS_read, fd, 8, 4).fails(EFAULT);
    assert!(times(&path).0 > 2000);
    age(&path);
    let mut byte = 0u8;
    sc!(SYS_pread64, fd, &raw mut byte, 1, 100).is(0);
    assert!(times(&path).0 > 2000);
}

fn times_of_fifos() {
    let path = format!("{}/p", dir_in("/dev/shm"));
    sc!(SYS_mknod, c(&path).as_ptr(), S_IFIFO | 0o644, 0).is(0);
    let fd = open(&path, O_RDWR | O_NONBLOCK).fd();
    age(&path);
    sc!(SYS_write, fd, c"ab".as_ptr(), 2).is(2);
    assert_eq!(times(&path).0, 1000);
    assert!(times(&path).1 > 2000);
    age(&path);
    let mut bytes = [0u8; 2];
    sc!(SYS_read, fd, bytes.as_mut_ptr(), 2).is(2);
    assert_eq!(times(&path).1, 2000);
    assert!(times(&path).0 > 2000);
    age(&path);
    sc!(SYS_read, fd, bytes.as_mut_ptr(), 2).fails(EAGAIN);
    assert_eq!(times(&path), (1000, 2000));
}

/// What begins at an offset and would end behind all of them is refused, whatever is there.
fn ends_of_offsets() {
    let fd = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    let mut bytes = [0u8; 100];
    sc!(SYS_lseek, fd, i64::MAX, SEEK_SET).is(i64::MAX as usize);
    sc!(SYS_read, fd, bytes.as_mut_ptr(), 1).fails(EINVAL);
    sc!(SYS_write, fd, bytes.as_ptr(), 1).fails(EINVAL);
    sc!(SYS_lseek, fd, i64::MAX - 100, SEEK_SET).is(i64::MAX as usize - 100);
    sc!(SYS_read, fd, bytes.as_mut_ptr(), 100).is(0);
    sc!(SYS_read, fd, bytes.as_mut_ptr(), 101).fails(EINVAL);
    sc!(SYS_lseek, fd, i64::MAX, SEEK_CUR).fails(EINVAL);
    sc!(SYS_lseek, fd, 101, SEEK_CUR).fails(EINVAL);
    sc!(SYS_lseek, fd, 100, SEEK_CUR).is(i64::MAX as usize);
}

fn bad_addresses_before_seals() {
    const ADD_SEALS: i32 = 1033;
    const SEAL_GROW: i32 = 4;
    const SEAL_WRITE: i32 = 8;
    let fd = sc!(SYS_memfd_create, c"m".as_ptr(), 2).fd();
    sc!(SYS_ftruncate, fd, 5000).is(0);
    sc!(SYS_fcntl, fd, ADD_SEALS, SEAL_GROW).is(0);
    let text = vec![b't'; 3 * 4096];
    let write = |at: usize, len: usize, place: i64| sc!(SYS_pwrite64, fd, at, len, place);
    let text = text.as_ptr() as usize;
    write(8, 8192, 0).fails(EFAULT);
    write(text, 5000, 0).is(5000);
    write(text, 905, 4096).fails(EPERM);
    write(8, 905, 4096).fails(EFAULT);
    write(text, 904, 4096).is(904);
    sc!(SYS_fcntl, fd, ADD_SEALS, SEAL_WRITE).is(0);
    write(text, 10, 0).fails(EPERM);
    write(8, 10, 0).fails(EFAULT);
}

fn settings_can_be_watched() {
    let set = sc!(SYS_epoll_create1, 0).fd();
    let event = [0u32; 3];
    for name in ["/proc/sys/kernel/ostype", "/proc/sys/kernel/hostname", "/proc/sys/vm/swappiness"]
    {
        let fd = open(name, O_RDONLY).fd();
        sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, event.as_ptr()).is(0);
    }
    let fd = open("/proc/self/maps", O_RDONLY).fd();
    sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, event.as_ptr()).fails(EPERM);
}

/// /proc/self/timerslack_ns is the first thread's: another one needs CAP_SYS_NICE.
fn a_slack_is_a_threads() {
    as_user(|| {
        let fd = open("/proc/self/timerslack_ns", O_RDWR).fd();
        let mut text = [0u8; 32];
        sc!(SYS_pread64, fd, text.as_mut_ptr(), 32, 0).must();
        let other = std::thread::spawn(move || {
            let mut text = [0u8; 32];
            sc!(SYS_pread64, fd, text.as_mut_ptr(), 32, 0).fails(EPERM);
            sc!(SYS_write, fd, c"5000".as_ptr(), 4).fails(EPERM);
            // What cannot be read is told first.
            sc!(SYS_write, fd, 8, 4).fails(EFAULT);
            sc!(SYS_write, fd, c"none".as_ptr(), 4).fails(EINVAL);
        });
        other.join().unwrap();
    });
}

/// What was reserved takes room, and is no data before it was written or mapped.
fn what_is_reserved_is_a_hole() {
    let path = format!("{}/f", dir_in("/dev/shm"));
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    let data = |from: i64| sc!(SYS_lseek, fd, from, SEEK_DATA);
    let hole = |from: i64| sc!(SYS_lseek, fd, from, SEEK_HOLE);
    sc!(SYS_fallocate, fd, 0, 0, 4 * 4096).is(0);
    assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 4 * 8);
    data(0).fails(ENXIO);
    hole(0).is(0);
    // Reading does not change that.
    let mut bytes = [1u8; 4096];
    sc!(SYS_pread64, fd, bytes.as_mut_ptr(), 4096, 4096).is(4096);
    assert_eq!(bytes, [0; 4096]);
    data(0).fails(ENXIO);
    sc!(SYS_pwrite64, fd, c"x".as_ptr(), 1, 4096).is(1);
    data(0).is(4096);
    hole(4096).is(8192);
    let at = mmap(0, 4 * 4096, PROT_READ, MAP_SHARED, fd, 0).must();
    let known = |page: usize| {
        let mut known = 2u8;
        sc!(SYS_mincore, at + page * 4096, 4096, &raw mut known).is(0);
        known
    };
    assert_eq!((known(0), known(1), known(3)), (0, 1, 0));
    // SAFETY: the last page of the mapping, which nothing unmaps.
    assert_eq!(unsafe { (at as *const u8).add(3 * 4096).read_volatile() }, 0);
    data(8192).is(3 * 4096);
    assert_eq!(known(3), 1);
    // Reserving again takes nothing away, and counts as a use.
    sc!(SYS_fallocate, fd, 0, 0, 4 * 4096).is(0);
    data(0).is(0);
    assert_eq!(std::fs::read(&path).unwrap()[4096], b'x');
    assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 4 * 8);
}

/// That a program has promised never to write and execute comes behind what is wrong with flags.
fn flags_before_promises() {
    const PR_SET_MDWE: i32 = 65;
    const REFUSE_EXEC_GAIN: usize = 1;
    let memory = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    sc!(SYS_ftruncate, memory, 4096).is(0);
    in_child(|| {
        sc!(SYS_prctl, PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0).is(0);
        let all = PROT_READ | PROT_WRITE | PROT_EXEC;
        let map = |prot: i32, flags: i32| sc!(SYS_mmap, 0, 4096, prot, flags, memory, 0);
        map(all, MAP_SHARED).fails(EACCES);
        map(all, MAP_SHARED_VALIDATE | 0x20_0000).fails(EOPNOTSUPP);
        map(all, 0).fails(EINVAL);
        map(PROT_READ | PROT_WRITE, MAP_SHARED).must();
    });
}

/// A lock of bytes: type, from SEEK_SET, start, length.
fn range(kind: i32, start: i64, len: i64) -> [i64; 4] {
    [i64::from(kind), start, len, 0]
}

fn record_lock(fd: i32, command: i32, mut lock: [i64; 4]) -> Result<[i64; 4], i32> {
    sc!(SYS_fcntl, fd, command, lock.as_mut_ptr()).map(|_| lock)
}

/// eventfd(2), timerfd_create(2) and their like all have the same inode.
fn objects_without_a_name_are_one() {
    const READ: i32 = 0;
    const WRITE: i32 = 1;
    let one = sc!(SYS_eventfd2, 0, 0).fd();
    let other = sc!(SYS_timerfd_create, 0, 0).fd();
    record_lock(one, F_OFD_SETLK, range(READ, 100, 10)).unwrap();
    assert_eq!(record_lock(other, F_OFD_SETLK, range(WRITE, 109, 10)), Err(EAGAIN));
    record_lock(other, F_OFD_SETLK, range(WRITE, 110, 10)).unwrap();
    let met = record_lock(other, F_OFD_GETLK, range(WRITE, 0, 0)).unwrap();
    assert_eq!(met[..3], [0, 100, 10]);
    sc!(SYS_flock, one, LOCK_EX).is(0);
    sc!(SYS_flock, other, LOCK_SH | LOCK_NB).fails(EAGAIN);
    let show = |fd: i32| std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    assert!(show(other).contains("OFDLCK"));
    close(one);
    assert!(show(other).contains("OFDLCK"));
    sc!(SYS_flock, other, LOCK_SH | LOCK_NB).is(0);
    // A process's own locks go with any descriptor of them.
    record_lock(other, F_SETLK, range(READ, 0, 1)).unwrap();
    let blocked = || {
        let met = record_lock(other, F_GETLK, range(WRITE, 0, 1)).unwrap();
        met[0] as i16 == 0
    };
    in_child(|| assert!(blocked()));
    close(sc!(SYS_epoll_create1, 0).fd());
    in_child(|| assert!(!blocked()));
    // What has a number of its own has locks of its own.
    let (r, w) = pipe();
    sc!(SYS_flock, r, LOCK_EX | LOCK_NB).is(0);
    sc!(SYS_flock, w, LOCK_EX | LOCK_NB).fails(EAGAIN);
    // Nobody sets anything of them, and that is said before who may.
    as_user(|| {
        let times = [0u64; 4];
        let set = |times: *const u64| sc!(SYS_utimensat, other, 0, times, 0);
        set(times.as_ptr()).fails(EOPNOTSUPP);
        set(std::ptr::null()).fails(EACCES);
    });
    sc!(SYS_utimensat, other, 0, 0, 0).fails(EOPNOTSUPP);
}

fn pidfds_of_a_process_are_one() {
    let open = |pid: i32| sc!(SYS_pidfd_open, pid, 0).fd();
    let number = |fd: i32| std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino();
    let one = open(pid());
    let lease = |fd: i32, kind: i32| sc!(SYS_fcntl, fd, F_SETLEASE, kind);
    // It counts as open for writing.
    lease(one, 0).fails(EAGAIN);
    lease(one, 2).fails(EAGAIN);
    lease(one, 1).is(0);
    sc!(SYS_fcntl, one, F_GETLEASE).is(1);
    lease(one, 2).is(0);
    let again = open(pid());
    assert_eq!(number(one), number(again));
    lease(one, 1).fails(EAGAIN);
    sc!(SYS_flock, one, LOCK_EX).is(0);
    sc!(SYS_flock, again, LOCK_EX | LOCK_NB).fails(EAGAIN);
    let child = fork(|| {
        sc!(SYS_pause).ok();
        0
    });
    let childs = open(child);
    assert_ne!(number(one), number(childs));
    sc!(SYS_flock, childs, LOCK_EX | LOCK_NB).is(0);
    sc!(SYS_kill, child, SIGKILL).is(0);
    sc!(SYS_wait4, child, 0, 0, 0).is(child as usize);
    let event = sc!(SYS_eventfd2, 0, 0).fd();
    lease(event, 1).fails(EINVAL);
    // It goes with the last of them, though its process stays, and comes again as the same.
    open(sc!(SYS_getppid).must() as i32);
    let known = number(one);
    close(one);
    close(again);
    assert_eq!(number(open(pid())), known);
}

/// Who takes a lease owns the descriptor's signals by its own id, which names a process only where
/// it is the first thread's.
fn leases_of_other_threads_tell_nobody() {
    let path = format!("{}/f", dir_in("/dev/shm"));
    std::fs::write(&path, "text").unwrap();
    on_signal(SIGIO, SIG_IGN, 0, 0);
    let fd = open(&path, O_RDWR).fd();
    let others = std::thread::spawn(move || sc!(SYS_fcntl, fd, F_SETLEASE, 1)).join().unwrap();
    others.is(0);
    sc!(SYS_fcntl, fd, F_GETOWN).is(0);
    // Nor does anybody become the owner later.
    sc!(SYS_fcntl, fd, F_SETLEASE, 1).is(0);
    sc!(SYS_fcntl, fd, F_GETOWN).is(0);
    sigmask(SIG_BLOCK, bit(SIGIO));
    on_signal(SIGIO, SIG_DFL, 0, 0);
    open(&path, O_RDONLY | O_NONBLOCK).fails(EAGAIN);
    let mut pending = 0u64;
    sc!(SYS_rt_sigpending, &raw mut pending, 8).is(0);
    assert_eq!(pending & bit(SIGIO), 0);
    let first = format!("{path}2");
    std::fs::write(&first, "text").unwrap();
    let own = open(&first, O_RDWR).fd();
    in_child(|| {
        let own = open(&first, O_RDWR).fd();
        sc!(SYS_fcntl, own, F_SETLEASE, 1).fails(EAGAIN);
    });
    sc!(SYS_fcntl, own, F_SETLEASE, 1).is(0);
    sc!(SYS_fcntl, own, F_GETOWN).is(pid() as usize);
    open(&first, O_RDONLY | O_NONBLOCK).fails(EAGAIN);
    sc!(SYS_rt_sigpending, &raw mut pending, 8).is(0);
    assert_eq!(pending & bit(SIGIO), bit(SIGIO));
}

/// Who owned a descriptor's signals and is no more is not told as its owner.
fn owners_that_have_gone() {
    const GETOWN_EX: i32 = 16;
    let (r, _w) = pipe();
    let child = fork(|| {
        sc!(SYS_pause).ok();
        0
    });
    sc!(SYS_fcntl, r, F_SETOWN, child).is(0);
    sc!(SYS_fcntl, r, F_GETOWN).is(child as usize);
    sc!(SYS_kill, child, SIGKILL).is(0);
    sc!(SYS_wait4, child, 0, 0, 0).is(child as usize);
    sc!(SYS_fcntl, r, F_GETOWN).is(0);
    let mut owner = [7i32; 2];
    sc!(SYS_fcntl, r, GETOWN_EX, owner.as_mut_ptr()).is(0);
    assert_eq!(owner[1], 0);
}

/// In a file system in memory: what is made while somebody reads on is not seen, and behind the
/// last one is always the same place.
fn newest_names_come_first() {
    let dir = dir_in("/dev/shm");
    let names = ["a", "b", "c", "d"];
    let make = |name: &str| std::fs::write(format!("{dir}/{name}"), "").unwrap();
    names.iter().for_each(|name| make(name));
    let fd = open(&dir, O_RDONLY).fd();
    let read = |room: usize| {
        let mut bytes = [0u8; 4096];
        let len = sc!(SYS_getdents64, fd, bytes.as_mut_ptr(), room).must();
        let (mut at, mut found) = (0, String::new());
        while at < len {
            found.push(char::from(bytes[at + 19]));
            at += usize::from(u16::from_ne_bytes([bytes[at + 16], bytes[at + 17]]));
        }
        found
    };
    let place = || sc!(SYS_lseek, fd, 0, SEEK_CUR).must();
    let go = |to: usize| sc!(SYS_lseek, fd, to, SEEK_SET).is(to);
    assert_eq!(read(4 * 24), "..dc");
    let middle = place();
    make("e");
    assert_eq!(read(4096), "ba");
    assert_eq!(place(), i32::MAX as usize);
    assert_eq!(read(4096), "");
    assert_eq!(read(0), "");
    go(middle);
    std::fs::remove_file(format!("{dir}/b")).unwrap();
    assert_eq!(read(4096), "a");
    // A place that no entry had is that of the next older one.
    go(1 << 40);
    assert_eq!(read(4096), "edca");
    go(0);
    assert_eq!(read(4096), "..edca");
    let empty = open(&dir_in("/dev/shm"), O_RDONLY).fd();
    let mut bytes = [0u8; 4096];
    sc!(SYS_getdents64, empty, bytes.as_mut_ptr(), 4096).is(48);
    sc!(SYS_lseek, empty, 0, SEEK_CUR).is(i32::MAX as usize);
}

/// A write of nothing takes no set-group-ID away, and is not too long anywhere.
fn writing_nothing_changes_nothing() {
    let path = format!("{}/f", dir_in("/dev/shm"));
    std::fs::write(&path, "text").unwrap();
    sc!(SYS_chown, c(&path).as_ptr(), 1234, 1234).is(0);
    sc!(SYS_chmod, c(&path).as_ptr(), 0o6755).is(0);
    sc!(SYS_chmod, c(path.rsplit_once('/').unwrap().0).as_ptr(), 0o777).is(0);
    let fd = open(&path, O_RDWR).fd();
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    as_user(|| {
        sc!(SYS_write, fd, c"x".as_ptr(), 0).is(0);
        sc!(SYS_pwrite64, fd, c"x".as_ptr(), 0, 1).is(0);
    });
    assert_eq!(mode(), 0o6755);
    in_child(|| {
        sc!(SYS_setrlimit, RLIMIT_FSIZE, [100u64, 100].as_ptr()).is(0);
        sc!(SYS_pwrite64, fd, c"x".as_ptr(), 0, i64::MAX).is(0);
        sc!(SYS_lseek, fd, 200, SEEK_SET).is(200);
        sc!(SYS_write, fd, c"x".as_ptr(), 0).is(0);
    });
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4);
}

/// Where there is nothing to write or read no flag is looked at; nor where the range is impossible.
fn ranges_before_flags() {
    let fd = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    let byte = [0u8; 16];
    let part = [byte.as_ptr() as usize, 10];
    let none = [byte.as_ptr() as usize, 0];
    for call in [SYS_pwritev2, SYS_preadv2] {
        let at =
            |part: *const usize, place: i64, flags: i32| sc!(call, fd, part, 1, place, 0, flags);
        at(part.as_ptr(), i64::MAX, 1 << 20).fails(EINVAL);
        at(part.as_ptr(), 0, 1 << 20).fails(EOPNOTSUPP);
        at(none.as_ptr(), 0, 1 << 20).is(0);
        at(none.as_ptr(), i64::MAX, 0).is(0);
        at(std::ptr::without_provenance(8), 0, 1 << 20).fails(EFAULT);
    }
}

/// AT_EMPTY_PATH wants a name without letters: only stat(2)'s like take none at all.
fn no_name_is_no_empty_name() {
    let fd = open("/dev/null", O_RDONLY).fd();
    let mut room = [0u64; 64];
    let at = room.as_mut_ptr();
    sc!(SYS_name_to_handle_at, fd, 0, at, at, AT_EMPTY_PATH).fails(EFAULT);
    sc!(SYS_name_to_handle_at, AT_FDCWD, 0, at, at, AT_EMPTY_PATH).fails(EFAULT);
    sc!(SYS_faccessat2, fd, 0, 0, AT_EMPTY_PATH).fails(EFAULT);
    sc!(SYS_fchownat, fd, 0, 0, 0, AT_EMPTY_PATH).fails(EFAULT);
    sc!(SYS_newfstatat, fd, 0, at, AT_EMPTY_PATH).is(0);
    sc!(SYS_statx, fd, 0, AT_EMPTY_PATH, 32, at).is(0);
}

fn nothing_without_a_name_is_executed() {
    let mode = |fd: i32, wanted: i32| sc!(SYS_faccessat2, fd, c"".as_ptr(), wanted, AT_EMPTY_PATH);
    for fd in [sc!(SYS_eventfd2, 0, 0).fd(), sc!(SYS_pidfd_open, pid(), 0).fd()] {
        mode(fd, 6).is(0);
        mode(fd, 1).fails(EACCES);
        mode(fd, 7).fails(EACCES);
        mode(fd, 0).is(0);
    }
}

/// /proc/PID/task has the first thread as long as the process is there.
fn first_threads_of_zombies() {
    let child = fork(|| 0);
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    let dir = format!("/proc/{child}/task");
    let names: Vec<_> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [child.to_string().as_str()]);
    let stat = std::fs::read_to_string(format!("{dir}/{child}/stat")).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
    assert!(std::fs::metadata(format!("{dir}/{child}/task")).is_err());
    assert!(std::fs::metadata(format!("{dir}/{child}/children")).is_ok());
    assert!(std::fs::metadata(format!("{dir}/1")).is_err());
    wait_code(child, 0);
    assert!(std::fs::metadata(&dir).is_err());
}

fn exchanging_with_a_slash() {
    const EXCHANGE: i32 = 2;
    let dir = dir_in("/dev/shm");
    std::fs::create_dir(format!("{dir}/d")).unwrap();
    std::fs::write(format!("{dir}/f"), "").unwrap();
    let at = |name: &str| c(&format!("{dir}/{name}"));
    let swap = |one: &str, other: &str| {
        sc!(SYS_renameat2, AT_FDCWD, at(one).as_ptr(), AT_FDCWD, at(other).as_ptr(), EXCHANGE)
    };
    swap("d", "f/").fails(ENOTDIR);
    swap("f/", "d").fails(ENOTDIR);
    swap("f/", "d/").fails(ENOTDIR);
    swap("f", "d/").is(0);
    swap("f/", "d").is(0);
}

/// That a path leads out of its scope is told before that what is there cannot be made.
fn creating_above_the_scope() {
    const BENEATH: u64 = 8;
    let dir = open(&dir_in("/dev/shm"), O_RDONLY).fd();
    let make = |name: &str, flags: i32| {
        let how = [flags as u64, 0o600, BENEATH];
        sc!(SYS_openat2, dir, c(name).as_ptr(), how.as_ptr(), 24)
    };
    make("..", O_CREAT | O_RDWR).fails(EXDEV);
    make("..", O_CREAT | O_RDWR | O_EXCL).fails(EXDEV);
    make(".", O_CREAT | O_RDWR).fails(EISDIR);
    make(".", O_CREAT | O_RDWR | O_EXCL).fails(EEXIST);
}

fn locks_in_the_order_of_their_owners() {
    let fd = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    let kinds = || {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let locks = text.lines().filter(|line| line.starts_with("lock:"));
        locks.map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect::<Vec<_>>()
    };
    record_lock(fd, F_OFD_SETLK, range(0, 100, 10)).unwrap();
    record_lock(fd, F_SETLK, range(0, 0, 10)).unwrap();
    sc!(SYS_flock, fd, LOCK_SH).is(0);
    assert_eq!(kinds(), ["FLOCK", "OFDLCK", "POSIX"]);
    record_lock(fd, F_OFD_SETLK, range(2, 0, 0)).unwrap();
    record_lock(fd, F_OFD_SETLK, range(0, 0, 1)).unwrap();
    assert_eq!(kinds(), ["FLOCK", "POSIX", "OFDLCK"]);
}

/// The first page of the area that has this page, and the one behind its last, from `base` on.
fn area_of(base: usize, page: usize) -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ends = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
        number(start)..number(end)
    };
    let at = base + page * 4096;
    let area = maps.lines().map(ends).find(|area| area.contains(&at)).unwrap();
    ((area.start - base) / 4096, (area.end - base) / 4096)
}

/// A place for so many pages, where nothing is.
fn place_for(pages: usize) -> usize {
    let base = mmap(0, pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    sc!(SYS_munmap, base, pages * 4096).is(0);
    base
}

/// Areas that grow downwards become one with others of their kind, as all memory of a process does.
fn stacks_beside_each_other_are_one() {
    let base = place_for(16);
    let (both, at) = (PROT_READ | PROT_WRITE, |page: usize| base + page * 4096);
    let stack = |page: usize, pages: usize| {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN;
        mmap(at(page), pages * 4096, both, flags, -1, 0).is(at(page));
    };
    let area_of = |page: usize| area_of(base, page);
    stack(8, 3);
    assert_eq!(area_of(8), (8, 11));
    sc!(SYS_mprotect, at(9), 4096, PROT_READ).is(0);
    assert_eq!(area_of(8), (8, 9));
    sc!(SYS_mprotect, at(9), 4096, both).is(0);
    assert_eq!(area_of(8), (8, 11));
    stack(11, 2);
    stack(6, 2);
    assert_eq!(area_of(8), (6, 13));
}

/// Of a setting that is a number there is nothing to be read but from its beginning on.
fn numbers_are_told_from_their_beginning() {
    let mut bytes = [0u8; 64];
    let mut read = |name: &str, place: i64| {
        let fd = open(&format!("/proc/sys/{name}"), O_RDONLY).fd();
        sc!(SYS_pread64, fd, bytes.as_mut_ptr(), 64, place).must()
    };
    for name in ["fs/nr_open", "fs/file-nr", "kernel/cap_last_cap", "kernel/sem"] {
        assert!(read(name, 0) > 1);
        assert_eq!(read(name, 1), 0, "{name}");
    }
    for name in ["kernel/osrelease", "kernel/ostype", "kernel/random/boot_id"] {
        assert_eq!(read(name, 1), read(name, 0) - 1, "{name}");
    }
}

/// Who may not link a file is told so, whatever he may do in the directory.
fn others_files_before_directories() {
    std::env::set_current_dir(dir()).unwrap();
    sc!(SYS_mkdir, c"closed".as_ptr(), 0o755).is(0);
    std::fs::write("roots", b"x").unwrap();
    in_child(|| {
        sc!(SYS_setresuid, 0, 1000, u32::MAX).is(0);
        sc!(SYS_link, c"roots".as_ptr(), c"closed/mine".as_ptr()).fails(EPERM);
    });
}

/// Threads of a process may have different users: each is asked for itself.
fn others_threads_are_asked() {
    in_child(|| {
        let main = tid();
        let other = std::thread::spawn(move || {
            sc!(SYS_setresuid, u32::MAX, 5, 1000).is(0);
            sc!(SYS_setpriority, PRIO_PROCESS, main, 19).fails(EPERM);
            sc!(SYS_sched_setaffinity, main, 8, [1u64].as_ptr()).fails(EPERM);
            sc!(SYS_setpriority, PRIO_PROCESS, 0, 5).is(0);
            // The real ids are enough for these.
            sc!(SYS_ioprio_set, 1, main, 2 << 13 | 4).is(0);
        });
        other.join().unwrap();
    });
}

fn segments_end_with_their_bytes() {
    let id = sc!(SYS_shmget, IPC_PRIVATE, 1, 0o600).must();
    sc!(SYS_shmat, id, 0xffff_ffff_ffff_f000u64, 0).fails(ENOMEM);
    let whole = sc!(SYS_shmget, IPC_PRIVATE, 4096, 0o600).must();
    sc!(SYS_shmat, whole, 0xffff_ffff_ffff_f000u64, 0).fails(EINVAL);
    for id in [id, whole] {
        sc!(SYS_shmctl, id, IPC_RMID, 0).is(0);
    }
}

/// FUTEX_UNLOCK_PI asks who has the lock before it looks at the address.
fn locks_are_read_first() {
    let words = [0u32; 2];
    let beside = words.as_ptr() as usize + 1;
    sc!(SYS_futex, -1i64, FUTEX_UNLOCK_PI, 0, 0, 0, 0).fails(EFAULT);
    sc!(SYS_futex, beside, FUTEX_UNLOCK_PI, 0, 0, 0, 0).fails(EPERM);
}

/// Nobody changes anything of /proc/PID and /proc/PID/task/TID, whatever the rights.
fn directories_of_processes_are_immutable() {
    let own = format!("/proc/{}", pid());
    let thread = format!("{own}/task/{}", tid());
    let name = c"user.a".as_ptr();
    for path in [own.as_str(), &thread] {
        sc!(SYS_access, c(path).as_ptr(), W_OK).fails(EPERM);
        sc!(SYS_setxattr, c(path).as_ptr(), name, c"x".as_ptr(), 1, 0).fails(EPERM);
        sc!(SYS_chmod, c(path).as_ptr(), 0o555).fails(EPERM);
        sc!(SYS_utimensat, AT_FDCWD, c(path).as_ptr(), [0u64; 4].as_ptr(), 0).fails(EPERM);
        sc!(SYS_rmdir, c(&format!("{path}/fd")).as_ptr()).fails(EPERM);
        sc!(SYS_unlink, c(&format!("{path}/comm")).as_ptr()).fails(EPERM);
        sc!(SYS_mkdir, c(&format!("{path}/new")).as_ptr(), 0o755).fails(ENOENT);
    }
    let fds = c(&format!("{own}/fd"));
    sc!(SYS_setxattr, fds.as_ptr(), name, c"x".as_ptr(), 1, 0).fails(EOPNOTSUPP);
    let task = c(&format!("{own}/task"));
    in_child(|| {
        sc!(SYS_setresuid, 1000, 1000, 1000).is(0);
        sc!(SYS_access, task.as_ptr(), W_OK).fails(EACCES);
        sc!(SYS_access, c(&own).as_ptr(), W_OK).fails(EPERM);
        sc!(SYS_setxattr, c(&own).as_ptr(), name, c"x".as_ptr(), 1, 0).fails(EPERM);
    });
}

/// What there is of every process, whatever the kernel was built without.
fn names_of_a_process() {
    let mode = |name: &str| {
        let metadata = std::fs::metadata(format!("/proc/self/{name}")).ok();
        metadata.map(|metadata| metadata.permissions().mode() & 0o777)
    };
    assert_eq!(mode("arch_status"), Some(0o444));
    assert_eq!(mode("autogroup"), Some(0o644));
    for (name, bits) in [("patch_state", 0o400), ("cpu_resctrl_groups", 0o444)] {
        assert!(mode(name).is_none_or(|mode| mode == bits), "{name}");
    }
    // A thread has no session of its own.
    assert_eq!(mode(&format!("task/{}/arch_status", tid())), Some(0o444));
    assert_eq!(mode(&format!("task/{}/autogroup", tid())), None);
    let refused = std::fs::write("/proc/self/autogroup", "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EINVAL));
    for (name, text) in [("patch_state", "-1\n"), ("cpu_resctrl_groups", "res:\nmon:\n")] {
        let known = std::fs::read_to_string(format!("/proc/self/{name}")).ok();
        assert!(known.is_none_or(|known| known == text), "{name}");
    }
}

/// The size of /proc/PID/fd is the number of descriptors, and no place to seek to.
fn sizes_of_descriptor_directories() {
    let size = || std::fs::metadata("/proc/self/fd").unwrap().size();
    let before = size();
    let fd = open("/proc/self/fd", O_RDONLY).fd();
    let info = open("/proc/self/fdinfo", O_RDONLY).fd();
    assert_eq!(size(), before + 2);
    assert_eq!(std::fs::metadata("/proc/self/fdinfo").unwrap().size(), 0);
    for fd in [fd, info] {
        sc!(SYS_lseek, fd, 0, SEEK_END).is(0);
        sc!(SYS_lseek, fd, 1, SEEK_END).is(1);
        close(fd);
    }
}

/// Memory that was moved with what is in it is not one with what was made beside its new place;
/// moved back it is one again. What was never used is as if made there.
fn what_was_moved_stays_apart() {
    const PAGE: usize = 4096;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let both = PROT_READ | PROT_WRITE;
    let base = mmap(0, 16 * PAGE, PROT_NONE, flags, -1, 0).must();
    sc!(SYS_munmap, base, 16 * PAGE).is(0);
    let at = |page: usize| base + page * PAGE;
    let make = |page: usize, pages: usize| {
        mmap(at(page), pages * PAGE, both, flags | MAP_FIXED, -1, 0).is(at(page));
    };
    let put = |from: usize, to: usize| {
        let how = MREMAP_MAYMOVE | MREMAP_FIXED;
        sc!(SYS_mremap, at(from), PAGE, PAGE, how, at(to)).is(at(to));
    };
    let starts_at = |page: usize| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{:08x}-", at(page))))
    };
    let write = |page: usize| {
        // SAFETY: a page that was mapped for this.
        unsafe { (at(page) as *mut u8).write_volatile(1) };
    };
    make(2, 3);
    make(8, 2);
    write(8);
    put(8, 5);
    assert!(starts_at(5));
    put(5, 8);
    assert!(starts_at(8) && !starts_at(9));
    make(11, 1);
    put(11, 5);
    assert!(starts_at(2) && !starts_at(5));
    sc!(SYS_munmap, base, 16 * PAGE).is(0);
}

/// What sendfile(2) was asked to send counts as read, also where nothing can be.
fn who_cannot_be_sent_was_read() {
    std::env::set_current_dir(dir()).unwrap();
    sc!(SYS_mkdir, c"inner".as_ptr(), 0o755).is(0);
    let fd = open("inner", O_RDONLY).fd();
    let other = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    let atime = || std::fs::metadata("inner").unwrap().atime();
    for count in [0, 10] {
        sc!(SYS_utimensat, fd, 0, [500u64, 0, 600, 0].as_ptr(), 0).is(0);
        let answer = sc!(SYS_sendfile, other, fd, 0, count);
        assert_eq!(answer, if count == 0 { Ok(0) } else { Err(EINVAL) });
        assert_ne!(atime(), 500, "{count}");
    }
    let (_r, pipe) = pipe();
    sc!(SYS_utimensat, fd, 0, [500u64, 0, 600, 0].as_ptr(), 0).is(0);
    sc!(SYS_sendfile, pipe, fd, 0, 10).fails(EINVAL);
    assert_eq!(atime(), 500);
}

/// A write of nothing to a setting is no value.
fn settings_take_nothing() {
    for name in ["fs/nr_open", "kernel/domainname"] {
        let path = format!("/proc/sys/{name}");
        let fd = open(&path, O_RDWR).fd();
        let before = std::fs::read(&path).unwrap();
        sc!(SYS_write, fd, before.as_ptr(), 0).is(0);
        sc!(SYS_pwrite64, fd, before.as_ptr(), 0, 5).is(0);
        assert_eq!(std::fs::read(&path).unwrap(), before);
        close(fd);
    }
}

/// That what is to be moved reaches behind its area is told before that there is no such room.
fn sizes_behind_areas() {
    let at = mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    sc!(SYS_munmap, at + 4096, 4096).is(0);
    let most = !4095usize;
    sc!(SYS_mremap, at, 8192, most, MREMAP_MAYMOVE).fails(EFAULT);
    sc!(SYS_mremap, at, 4096, most, MREMAP_MAYMOVE).fails(ENOMEM);
    sc!(SYS_munmap, at, 4096).is(0);
}

fn nobody_traces_zombies() {
    const PTRACE_SEIZE: u32 = 0x4206;
    const PTRACE_ATTACH: u32 = 16;
    let child = fork(|| 0);
    let mut info = [0u64; 16];
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    sc!(SYS_ptrace, PTRACE_SEIZE, child, 0, 0).fails(EPERM);
    sc!(SYS_ptrace, PTRACE_SEIZE, child, 1, 0).fails(EIO);
    sc!(SYS_ptrace, PTRACE_ATTACH, child, 0, 0).fails(EPERM);
    sc!(SYS_ptrace, PTRACE_CONT, child, 0, 0).fails(ESRCH);
    wait(child);
    sc!(SYS_ptrace, PTRACE_ATTACH, child, 0, 0).fails(ESRCH);
}

/// A thread without capabilities does not change how one with some is scheduled, whose user it has.
fn who_has_more_keeps_its_priority() {
    in_child(|| {
        let main = tid();
        sc!(SYS_setresuid, 0, 5, u32::MAX).is(0);
        let other = std::thread::spawn(move || {
            sc!(SYS_setresuid, 5, 5, 5).is(0);
            sc!(SYS_setpriority, PRIO_PROCESS, main, 19).fails(EPERM);
            sc!(SYS_sched_setaffinity, main, 8, [1u64].as_ptr()).fails(EPERM);
        });
        other.join().unwrap();
    });
}

/// MAP_NORESERVE is a property of an area; what MREMAP_DONTUNMAP leaves is one with its neighbours.
fn areas_without_reserve_stay_apart() {
    const PAGE: usize = 4096;
    const MREMAP_DONTUNMAP: i32 = 4;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let base = mmap(0, 8 * PAGE, PROT_NONE, flags, -1, 0).must();
    sc!(SYS_munmap, base, 8 * PAGE).is(0);
    let at = |page: usize| base + page * PAGE;
    let starts_at = |page: usize| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{:08x}-", at(page))))
    };
    mmap(at(1), 4 * PAGE, PROT_READ, flags | MAP_FIXED, -1, 0).is(at(1));
    let moved = sc!(SYS_mremap, at(2), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0).must();
    assert!(starts_at(1) && !starts_at(2) && !starts_at(3));
    mmap(at(2), PAGE, PROT_READ, flags | MAP_FIXED | MAP_NORESERVE, -1, 0).is(at(2));
    assert!(starts_at(2) && starts_at(3));
    sc!(SYS_munmap, moved, PAGE).is(0);
    sc!(SYS_munmap, base, 8 * PAGE).is(0);
}

/// Whoever asked for neither to read nor to write (open(2), access mode 3) has no lock.
fn who_opens_for_nothing_locks_nothing() {
    let path = format!("{}/f", dir_in("/dev/shm"));
    std::fs::write(&path, "text").unwrap();
    let fd = open(&path, 3).fd();
    sc!(SYS_flock, fd, LOCK_SH | LOCK_NB).fails(EBADF);
    sc!(SYS_flock, fd, LOCK_EX).fails(EBADF);
    sc!(SYS_flock, fd, LOCK_UN).is(0);
    for flags in [O_RDONLY, O_WRONLY] {
        let fd = open(&path, flags).fd();
        sc!(SYS_flock, fd, LOCK_EX | LOCK_NB).is(0);
        close(fd);
    }
}

/// An area of which a part gets the rights it has already stays whole.
fn only_what_changes_is_cut() {
    const PAGE: usize = 4096;
    const BOTH: i32 = PROT_READ | PROT_WRITE;
    let base = mmap(0, 9 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    let at = |page: usize| base + page * PAGE;
    let starts = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_there = |page: &usize| {
            maps.lines().any(|line| line.starts_with(&format!("{:08x}-", at(*page))))
        };
        (1..9).filter(is_there).collect::<Vec<_>>()
    };
    let protect = |page, pages, rights| sc!(SYS_mprotect, at(page), pages * PAGE, rights).is(0);
    protect(1, 5, BOTH);
    protect(1, 2, PROT_EXEC);
    // SAFETY: the page was mapped just now.
    unsafe { (at(4) as *mut u8).write(1) };
    assert_eq!(starts(), [1, 3, 6]);
    protect(1, 4, BOTH);
    assert_eq!(starts(), [1, 6]);
    protect(2, 1, BOTH);
    assert_eq!(starts(), [1, 6]);
    // What is in front stays whole, too, and what lies behind it is changed.
    protect(3, 4, BOTH);
    assert_eq!(starts(), [1, 7]);
    protect(5, 2, PROT_READ);
    assert_eq!(starts(), [1, 5, 7]);
    protect(6, 1, PROT_READ);
    assert_eq!(starts(), [1, 5, 7]);
    // SAFETY: the page was made writable again.
    unsafe { (at(4) as *mut u8).write(2) };
    sc!(SYS_munmap, base, 9 * PAGE).is(0);
}

/// Text that is made when it is read is a file of no bytes to who asks how many are left.
fn text_has_nothing_left() {
    for path in ["/proc/sys/kernel/ostype", "/proc/self/comm", "/proc/uptime"] {
        let fd = open(path, O_RDONLY).fd();
        let mut left = 7i32;
        sc!(SYS_ioctl, fd, FIONREAD, &raw mut left).is(0);
        assert_eq!(left, 0, "{path}");
        sc!(SYS_ioctl, fd, FIONREAD, 8).fails(EFAULT);
    }
}

/// Descriptors that nobody shares stay what they are, and so do the locks that belong to them.
fn what_is_not_shared_is_not_copied() {
    in_child(|| {
        let fd = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
        record_lock(fd, F_SETLK, range(1, 0, 10)).unwrap();
        let is_told = || {
            let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            text.contains("POSIX")
        };
        assert!(is_told());
        sc!(SYS_close_range, 500, 600, 2).is(0);
        assert!(is_told());
        sc!(SYS_unshare, CLONE_FILES).is(0);
        assert!(is_told());
    });
}

/// MREMAP_DONTUNMAP takes pages, and leaves the area they were in whole.
fn what_stays_behind_is_one() {
    const DONTUNMAP: i32 = 4;
    let base = place_for(16);
    let both = PROT_READ | PROT_WRITE;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(base + 4 * 4096, 6 * 4096, both, flags, -1, 0).is(base + 4 * 4096);
    // SAFETY: this page was mapped above, and nothing else lies there.
    unsafe { *((base + 5 * 4096) as *mut u8) = 1 };
    let flags = DONTUNMAP | MREMAP_MAYMOVE;
    let taken = sc!(SYS_mremap, base + 5 * 4096, 8192, 8192, flags, 0).must();
    assert_eq!(area_of(base, 5), (4, 10));
    sc!(SYS_munmap, taken, 8192).is(0);
    // Of what is locked only the part that was taken is so no more.
    sc!(SYS_mlock, base + 4 * 4096, 6 * 4096).is(0);
    let taken = sc!(SYS_mremap, base + 5 * 4096, 8192, 8192, flags, 0).must();
    assert_eq!(area_of(base, 5), (5, 7));
    sc!(SYS_munmap, taken, 8192).is(0);
    sc!(SYS_munmap, base + 4 * 4096, 6 * 4096).is(0);
}

/// MPOL_MF_STRICT for a policy without a node finds every page at the wrong one.
fn no_node_is_the_wrong_one() {
    const STRICT: i32 = 1;
    let (preferred, local) = (1, 4);
    let both = PROT_READ | PROT_WRITE;
    let at = mmap(0, 8192, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    let node = 1u64;
    sc!(SYS_mbind, at, 8192, preferred, 0, 0, STRICT).is(0);
    // SAFETY: this page was mapped above, and nothing else lies there.
    unsafe { *(at as *mut u8) = 1 };
    for policy in [preferred, local] {
        sc!(SYS_mbind, at, 8192, policy, 0, 0, STRICT).fails(EIO);
        sc!(SYS_mbind, at + 4096, 4096, policy, 0, 0, STRICT).is(0);
    }
    sc!(SYS_mbind, at, 8192, preferred, &raw const node, 64, STRICT).is(0);
    sc!(SYS_mbind, at, 8192, 0, 0, 0, STRICT).is(0);
    sc!(SYS_munmap, at, 8192).is(0);
}

/// Behind the last entry of a directory there is nothing to write, wherever to.
fn the_end_is_written_nowhere() {
    let fd = open(&dir(), O_RDONLY | O_DIRECTORY).fd();
    sc!(SYS_getdents64, fd, 1u64 << 47, 4096).fails(EFAULT);
    let mut entries = [0u8; 4096];
    while sc!(SYS_getdents64, fd, entries.as_mut_ptr(), 4096).must() > 0 {}
    for nowhere in [1u64 << 47, 8] {
        sc!(SYS_getdents64, fd, nowhere, 4096).is(0);
        sc!(SYS_getdents, fd, nowhere, 4096).is(0);
    }
}

/// Who looks up what is remembered only (RESOLVE_CACHED) learns of no name that it is too long.
fn long_names_are_not_remembered() {
    const RESOLVE_CACHED: u64 = 0x20;
    let name = c(&format!("{}/{}", dir(), "n".repeat(300)));
    for (resolve, error) in [(0, ENAMETOOLONG), (RESOLVE_CACHED, EAGAIN)] {
        let how = [0u64, 0, resolve];
        sc!(SYS_openat2, AT_FDCWD, name.as_ptr(), how.as_ptr(), 24).fails(error);
    }
}

/// linkat(2) with AT_EMPTY_PATH takes no descriptor that somebody else opened, whatever the path.
fn descriptors_are_no_right_to_a_name() {
    let base = dir();
    std::fs::write(format!("{base}/f"), "x").unwrap();
    std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (place, file) = (open(&base, O_PATH).fd(), open(&format!("{base}/f"), O_RDONLY).fd());
    let link = |fd: i32, old: &str, new: &str, flags: i32| {
        let new = c(&format!("{base}/{new}"));
        sc!(SYS_linkat, fd, c(old).as_ptr(), AT_FDCWD, new.as_ptr(), flags)
    };
    link(file, "below", "a", AT_EMPTY_PATH).fails(ENOTDIR);
    link(place, "f", "a", AT_EMPTY_PATH).is(0);
    as_user(|| {
        link(file, "below", "b", 0).fails(ENOTDIR);
        link(file, "below", "b", AT_EMPTY_PATH).fails(ENOENT);
        link(file, "", "b", AT_EMPTY_PATH).fails(ENOENT);
        link(place, "missing", "b", AT_EMPTY_PATH).fails(ENOENT);
        link(777, "f", "b", AT_EMPTY_PATH).fails(EBADF);
        link(file, &format!("{base}/missing"), "b", AT_EMPTY_PATH).fails(ENOENT);
        link(file, "/dev/null", "b", AT_EMPTY_PATH).fails(EXDEV);
    });
}

/// Who has ended and was not waited for is scheduled no more, but has its priority, which can be
/// changed.
fn zombies_keep_their_priority() {
    let (ioprio_process, best_effort) = (1, 2usize << 13);
    let child = fork(|| {
        sc!(SYS_setpriority, PRIO_PROCESS, 0, 7).is(0);
        0
    });
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    sc!(SYS_getpriority, PRIO_PROCESS, child).is(20 - 7);
    let stat = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    let nice = || stat().rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().to_owned();
    assert_eq!(nice(), "7");
    sc!(SYS_setpriority, PRIO_PROCESS, child, 19).is(0);
    sc!(SYS_getpriority, PRIO_PROCESS, child).is(20 - 19);
    assert_eq!(nice(), "19");
    sc!(SYS_ioprio_get, ioprio_process, child).is(0);
    wait(child);
    let child = fork(|| {
        sc!(SYS_setpgid, 0, 0).is(0);
        sc!(SYS_setpriority, PRIO_PROCESS, 0, 19).is(0);
        0
    });
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    sc!(SYS_ioprio_get, 2, child).is(best_effort | 7);
    wait(child);
}

/// MADV_MERGEABLE is a property of an area of a program's own memory.
fn what_may_merge_stays_apart() {
    let (base, both) = (place_for(8), PROT_READ | PROT_WRITE);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(base, 4 * 4096, both, flags, -1, 0).is(base);
    sc!(SYS_madvise, base + 4096, 4096, MADV_MERGEABLE).is(0);
    assert_eq!([0, 1, 2].map(|page| area_of(base, page)), [(0, 1), (1, 2), (2, 4)]);
    sc!(SYS_madvise, base, 4 * 4096, MADV_UNMERGEABLE).is(0);
    assert_eq!(area_of(base, 0), (0, 4));
    // What is shared never is.
    let flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
    mmap(base, 4 * 4096, both, flags, -1, 0).is(base);
    sc!(SYS_madvise, base + 4096, 4096, MADV_MERGEABLE).is(0);
    assert_eq!(area_of(base, 1), (0, 4));
    sc!(SYS_munmap, base, 8 * 4096).is(0);
}

/// A memory policy is a property of an area, and told of an address (get_mempolicy(2)).
fn policies_keep_areas_apart() {
    const F_ADDR: i32 = 2;
    let (preferred, bind, local) = (1, 2, 4);
    let (base, both) = (place_for(8), PROT_READ | PROT_WRITE);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(base, 4 * 4096, both, flags, -1, 0).is(base);
    let told = |page: usize| {
        let mut mode = 9u32;
        sc!(SYS_get_mempolicy, &raw mut mode, 0, 0, base + page * 4096, F_ADDR).is(0);
        mode
    };
    sc!(SYS_mbind, base + 4096, 4096, preferred, 0, 0, 0).is(0);
    assert_eq!([0, 1, 2].map(|page| area_of(base, page)), [(0, 1), (1, 2), (2, 4)]);
    // Nobody in particular is preferred: the node that is near.
    assert_eq!([0, 1, 2].map(told), [0, local, 0]);
    sc!(SYS_mbind, base + 2 * 4096, 4096, local, 0, 0, 0).is(0);
    assert_eq!(area_of(base, 1), (1, 3));
    let node = 1u64;
    sc!(SYS_mbind, base + 2 * 4096, 4096, bind, &raw const node, 64, 0).is(0);
    assert_eq!((area_of(base, 1), area_of(base, 2)), ((1, 2), (2, 3)));
    assert_eq!(told(2), bind);
    sc!(SYS_mbind, base, 4 * 4096, 0, 0, 0, 0).is(0);
    assert_eq!((area_of(base, 0), told(1)), ((0, 4), 0));
    sc!(SYS_munmap, base, 8 * 4096).is(0);
}

/// A shared mapping of /dev/zero shows its offset, and has as many bytes as were mapped.
fn zeros_from_an_offset() {
    let fd = open("/dev/zero", O_RDWR).fd();
    let both = PROT_READ | PROT_WRITE;
    for (offset, is_there) in [(0, true), (4096, true), (8192, false)] {
        let at = mmap(0, 8192, both, MAP_SHARED, fd, offset).must();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{at:08x}-"))).unwrap();
        assert_eq!(line.split(' ').nth(2), Some(format!("{offset:08x}").as_str()));
        assert!(line.ends_with("/dev/zero (deleted)"));
        let mut byte = 1u8;
        let part = [&raw mut byte as usize, 1];
        let there = [at, 1];
        let read = sc!(SYS_process_vm_readv, pid(), part.as_ptr(), 1, there.as_ptr(), 1, 0);
        assert_eq!(read, if is_there { Ok(1) } else { Err(EFAULT) });
        sc!(SYS_munmap, at, 8192).is(0);
    }
}

/// What is written to a file's end may come from there: it is there when it is reached.
fn files_grow_below_what_is_written() {
    let path = format!("{}/f", dir());
    std::fs::write(&path, vec![7u8; 6000]).unwrap();
    let fd = open(&path, O_RDWR | O_APPEND).fd();
    let at = mmap(0, 6 * 4096, PROT_READ, MAP_PRIVATE, fd, 0).must();
    sc!(SYS_write, fd, at + 4096, 5000).is(5000);
    assert_eq!(std::fs::read(&path).unwrap().len(), 11_000);
    sc!(SYS_write, fd, at + 5 * 4096, 5).fails(EFAULT);
    sc!(SYS_munmap, at, 6 * 4096).is(0);
}

/// A limit of locked memory that is less than a page refuses for want of room, and not of rights.
fn limits_of_less_than_a_page() {
    let at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    as_user(|| {
        for (limit, error) in [(40u64, ENOMEM), (0, EPERM)] {
            sc!(SYS_setrlimit, RLIMIT_MEMLOCK, [limit, 4096].as_ptr()).is(0);
            sc!(SYS_mlock, at, 4096).fails(error);
        }
    });
    sc!(SYS_munmap, at, 4096).is(0);
}

/// MAP_STACK says that no huge pages are wanted, as MADV_NOHUGEPAGE does.
fn stacks_come_by_small_pages() {
    let (base, both) = (place_for(8), PROT_READ | PROT_WRITE);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(base, 4 * 4096, both, flags, -1, 0).is(base);
    mmap(base + 4 * 4096, 4 * 4096, both, flags | MAP_STACK, -1, 0).is(base + 4 * 4096);
    assert_eq!([0, 4].map(|page| area_of(base, page)), [(0, 4), (4, 8)]);
    sc!(SYS_madvise, base, 4 * 4096, MADV_NOHUGEPAGE).is(0);
    assert_eq!(area_of(base, 0), (0, 8));
    sc!(SYS_munmap, base, 8 * 4096).is(0);
}

/// setresuid(2) and setresgid(2) that change nothing leave the ids of the file system, too.
fn who_asks_for_what_is_there() {
    in_child(|| {
        let ids = [(SYS_setfsgid, SYS_setresgid, 500), (SYS_setfsuid, SYS_setresuid, 600)];
        for (set_fs, set_three, other) in ids {
            let now = || sc!(set_fs, u32::MAX).must();
            sc!(set_fs, other).is(0);
            sc!(set_three, 0, u32::MAX, u32::MAX).is(0);
            sc!(set_three, u32::MAX, u32::MAX, u32::MAX).is(0);
            assert_eq!(now(), other);
            sc!(set_three, u32::MAX, 0, u32::MAX).is(0);
            assert_eq!(now(), 0);
        }
    });
}

/// That nobody is to be woken is told before that the word is nowhere.
fn nobody_is_woken_nowhere() {
    const WAKE_BITSET: i32 = 10;
    let nowhere = 0xffff_8000_0000_0000u64;
    sc!(SYS_futex, nowhere, WAKE_BITSET, 1, 0, 0, 0).fails(EINVAL);
    sc!(SYS_futex, nowhere, WAKE_BITSET, 1, 0, 0, 1).fails(EFAULT);
}

/// Files in memory share no blocks (ioctl_ficlonerange(2)); what cannot be copied is told first.
fn no_file_is_cloned() {
    const FICLONE: u32 = 0x4004_9409;
    const FICLONERANGE: u32 = 0x4020_940d;
    let dir = dir_in("/dev/shm");
    let path = format!("{dir}/f");
    std::fs::write(&path, "text").unwrap();
    let (reads, writes) = (open(&path, O_RDONLY).fd(), open(&path, O_WRONLY).fd());
    let folder = open(&dir, O_RDONLY).fd();
    let elsewhere = open("/proc/self/comm", O_RDONLY).fd();
    let clone = |to: i32, from: i32| {
        let range = [from as u64, 0, 0, 0];
        let by_range = sc!(SYS_ioctl, to, FICLONERANGE, range.as_ptr());
        let whole = sc!(SYS_ioctl, to, FICLONE, from);
        assert_eq!(whole, by_range);
        whole
    };
    clone(writes, reads).fails(EOPNOTSUPP);
    clone(reads, reads).fails(EBADF);
    clone(writes, writes).fails(EBADF);
    clone(writes, -1).fails(EBADF);
    clone(-1, reads).fails(EBADF);
    clone(writes, folder).fails(EISDIR);
    clone(writes, elsewhere).fails(EXDEV);
    clone(open(&path, O_WRONLY | O_APPEND).fd(), reads).fails(EBADF);
    sc!(SYS_ioctl, writes, FICLONERANGE, 8).fails(EFAULT);
    let (end, other) = pipe();
    clone(end, other).fails(EINVAL);
}

/// Settings that are kept and told (prctl(2), arch_prctl(2)).
fn what_a_thread_says_of_itself() {
    const PR_SET_IO_FLUSHER: i32 = 57;
    const PR_GET_IO_FLUSHER: i32 = 58;
    const PR_SET_MEMORY_MERGE: i32 = 67;
    const PR_GET_MEMORY_MERGE: i32 = 68;
    const ARCH_GET_XCOMP_SUPP: i32 = 0x1021;
    const ARCH_GET_XCOMP_PERM: i32 = 0x1022;
    const ARCH_REQ_XCOMP_PERM: i32 = 0x1023;
    let own = |option: i32, value: u64, more: u64| sc!(SYS_prctl, option, value, more, 0, 0);
    for (set, get) in
        [(PR_SET_IO_FLUSHER, PR_GET_IO_FLUSHER), (PR_SET_MEMORY_MERGE, PR_GET_MEMORY_MERGE)]
    {
        own(get, 0, 0).is(0);
        own(set, 1, 0).is(0);
        own(get, 0, 0).is(1);
        own(get, 1, 0).fails(EINVAL);
        own(set, 1, 1).fails(EINVAL);
        in_child(|| own(get, 0, 0).is(1));
        own(set, 0, 0).is(0);
        own(get, 0, 0).is(0);
    }
    own(PR_SET_IO_FLUSHER, 2, 0).fails(EINVAL);
    own(PR_SET_MEMORY_MERGE, 2, 0).is(0);
    own(PR_SET_MEMORY_MERGE, 0, 0).is(0);
    as_user(|| {
        own(PR_SET_IO_FLUSHER, 2, 0).fails(EPERM);
        own(PR_GET_IO_FLUSHER, 0, 0).fails(EPERM);
        own(PR_SET_MEMORY_MERGE, 1, 0).is(0);
    });
    // The state of the extended instructions that can be used: x87 and SSE at least.
    for code in [ARCH_GET_XCOMP_SUPP, ARCH_GET_XCOMP_PERM] {
        let mut mask = 0u64;
        sc!(SYS_arch_prctl, code, &raw mut mask).is(0);
        assert_eq!(mask & 3, 3, "{code:#x}");
        sc!(SYS_arch_prctl, code, 8).fails(EFAULT);
    }
    sc!(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, 2).fails(EOPNOTSUPP);
    sc!(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, 64).fails(EINVAL);
}

/// futex_requeue(2) moves between words of one kind.
fn words_of_one_kind() {
    const FUTEX_REQUEUE: i32 = 456;
    let words = [0u32; 2];
    for (first, second, is_good) in [(2u64, 2u64, true), (130, 130, true), (2, 130, false)] {
        let at = |index: usize| (&raw const words[index]) as u64;
        let both = [0, at(0), first, 0, at(1), second];
        let result = sc!(FUTEX_REQUEUE, both.as_ptr(), 0, 1, 1);
        assert_eq!(result, if is_good { Ok(0) } else { Err(EINVAL) });
        let other = [1, at(0), first, 0, at(1), second];
        let result = sc!(FUTEX_REQUEUE, other.as_ptr(), 0, 1, 1);
        assert_eq!(result, Err(if is_good { EAGAIN } else { EINVAL }));
    }
}

/// FIOQSIZE tells what a file takes, not where it ends.
fn what_a_file_takes() {
    const FIOQSIZE: u32 = 0x5460;
    let path = format!("{}/f", dir_in("/dev/shm"));
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, fd, 1 << 20).is(0);
    let takes = || {
        let mut bytes = 0u64;
        sc!(SYS_ioctl, fd, FIOQSIZE, &raw mut bytes).is(0);
        bytes
    };
    assert_eq!(takes(), 0);
    write(fd, &[1; 6000]);
    assert_eq!(takes(), 8192);
}
