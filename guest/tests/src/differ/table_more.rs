//! What the other tables leave out: calls of old that newer ones stand beside, message queues of
//! POSIX, several messages at once, programs that cannot be executed, futexes by calls of their
//! own, and commands and options that few programs use. Programs of the seeds from
//! [`super::draft::WIDE_FROM`] on have them, so that those before stay what they are.

use super::draft::*;
use super::program::*;
use crate::sys::*;

const FUTEX_WAKE_CALL: i64 = 454;
const FUTEX_WAIT_CALL: i64 = 455;
const FUTEX_REQUEUE_CALL: i64 = 456;

/// Names of queues: programs begin without any (`observe::clean`).
pub const QUEUES: [&std::ffi::CStr; 2] = [c"differ", c"differ2"];

fn queue_name(d: &mut Draft) {
    let name = d.rng.of(&[&b"differ\0"[..], b"differ\0", b"differ2\0", b"\0", b"a/b\0", b"..\0"]);
    d.input(name);
}

fn queue_attributes(d: &mut Draft, words: &[u64]) {
    let messages = d.rng.of(&[1u64, 2, 5, 10, 11, 0, u64::MAX]);
    let bytes = d.rng.of(&[8u64, 64, 1, 8192, 8193, 0]);
    let flags = d.rng.of(words);
    d.words_or_null(&[flags, messages, bytes, 0, 0, 0, 0, 0]);
}

/// Two messages at once, each in one part.
fn messages(d: &mut Draft, is_output: bool) {
    let mut words = Vec::new();
    for _ in 0..2 {
        let bytes = d.rng.of(&[0u64, 1, 7, 40, 200]);
        let place = match is_output {
            true => OUTPUT + usize::from(d.room(200)),
            false => INPUT + usize::from(d.put(&[b'v'; 200])),
        };
        let place = if d.chance(20) { 0x10 } else { place };
        let part: Vec<u8> =
            [place as u64, bytes].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let part = INPUT as u64 + u64::from(d.put(&part));
        words.extend([0, 0, part, 1, 0, 0, 0, 0xdddd_dddd]);
    }
    let at = d.words(&words);
    d.shows_words(at, &[56, 120]);
    d.of(&[2, 2, 2, 1, 0, -1]);
}

/// A list of strings, or none, or a bad one.
fn strings(d: &mut Draft) {
    let text = INPUT as u64 + u64::from(d.put(b"word\0"));
    let list = d.rng.of(&[[text, 0], [text, 0], [0, 0], [0x10, 0]]);
    d.words_or_null(&list);
}

fn futex_word(d: &mut Draft) -> u16 {
    let value = d.rng.of(&[0u64, 0, 1, 7]);
    d.words(&[value])
}

fn futex_flags(d: &mut Draft) {
    d.of(&[2, 2, 2, 130, 130, 0, 1, 3, 6, 10, 1 << 20]);
}

/// Waiters of futex_waitv(2) and futex_requeue(2).
fn waiters(d: &mut Draft) {
    let mut words = Vec::new();
    for _ in 0..2 {
        let at = d.put(&[0; 8]);
        let flags = d.rng.of(&[2u64, 2, 2, 130, 0, 1 << 20]);
        words.extend([d.rng.of(&[0u64, 0, 1]), INPUT as u64 + u64::from(at), flags]);
    }
    d.words(&words);
}

/// More commands of fcntl(2).
fn fcntl(d: &mut Draft) {
    d.fd(IO);
    match d.rng.below(6) {
        0 => {
            d.num(17);
            d.out(8);
        }
        1 => {
            d.of(&[1035, 1037]);
            d.out(8);
        }
        2 => {
            d.of(&[1036, 1038]);
            let hint = d.rng.of(&[0u64, 1, 2, 5, 6, u64::MAX]);
            d.words(&[hint]);
        }
        3 => {
            d.num(1026);
            d.of(&[0, 1, 2, 0x3f, 0x8000_0001]);
        }
        4 => {
            d.of(&[1027]);
            d.any_fd()
        }
        _ => {
            let kind = d.rng.of(&[0u64, 1, 2, 3]);
            d.num(15);
            let at = d.words(&[kind]);
            d.fix(at + 4, 4, Arg::Id(Actor::Main));
        }
    }
}

fn ioctl(d: &mut Draft) {
    d.fd(&[IO, &[Kind::Dir, Kind::Path, Kind::Pid, Kind::Epoll]].concat());
    match d.rng.below(8) {
        0 => {
            d.of(&[0x8901, 0x8902]);
            let at = d.words(&[0]);
            let arg = d.rng.of(&[Arg::Id(Actor::Main), Arg::Number(0), Arg::Number(1 << 31)]);
            d.fix(at, 4, arg);
        }
        1 => {
            d.of(&[0x5452, 0x5421]);
            let word = d.rng.of(&[0u64, 1, 2]);
            d.words(&[word]);
        }
        2 => {
            // None after which files cannot be removed.
            d.num(0x4008_6602);
            let flags = d.rng.of(&[0u64, 0x40, 0x80, 0xc0, 1, 0x8000_0000]);
            d.words(&[flags]);
        }
        3 => {
            d.num(0x4004_9409);
            d.fd(FILES);
        }
        4 => {
            d.of(&[0x5450, 0x5451]);
            d.num(0)
        }
        _ => {
            // Flags, sizes, labels, terminals, what is none.
            d.of(&[
                0x8008_6601,
                0x801c_581f,
                0x5460,
                2,
                0x5401,
                0x5413,
                0x540f,
                0x8100_9431,
                0x7777,
                0x8020_660b,
            ]);
            d.out(64);
        }
    }
}

fn prctl(d: &mut Draft) {
    match d.rng.below(6) {
        0 => {
            d.of(&[5, 9, 19]);
            d.out(8);
        }
        1 => {
            d.of(&[6, 10, 14, 20, 57, 67]);
            d.of(&[0, 1, 2])
        }
        2 => {
            d.of(&[13, 34, 58, 68, 46, 51, 56]);
            d.num(0)
        }
        3 => {
            d.num(33);
            d.of(&[0, 1, 2]);
            d.of(&[0, 1, 2, 3])
        }
        4 => {
            d.num(25);
            d.out(4);
        }
        _ => {
            d.num(40);
            d.out_as(8, Norm::Time(8));
        }
    }
    while d.call.args.len() < 5 {
        d.of(&[0, 0, 0, 0, 0, 1]);
    }
}

/// Options beside those of the table of sockets, without what is a clock, a counter or an id.
fn option(d: &mut Draft) {
    let (level, names): (i32, &[i64]) = d.rng.of(&[
        (SOL_SOCKET, &[14, 17, 22, 23, 28, 31, 32, 34, 36, 43, 44, 45, 46, 47, 48][..]),
        (SOL_SOCKET, &[59, 60, 69, 70, 72, 73, 74, 75, 76][..]),
        (IPPROTO_TCP, &[13, 14, 16, 19, 20, 21, 22, 26, 27, 28, 30, 31, 32, 33, 34, 36, 37][..]),
        (IPPROTO_IP, &[3, 4, 7, 9, 16, 17, 18, 20, 21, 22, 23, 25, 26, 35, 36, 50, 51, 52][..]),
        (IPPROTO_IP, &[37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48][..]),
        (IPPROTO_IPV6, &[1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 20, 21, 22, 27, 28, 29, 30, 31, 33][..]),
        (IPPROTO_IPV6, &[36, 50, 52, 53, 54, 55, 56, 57, 58, 59, 60, 62, 63, 70, 72, 73][..]),
        (IPPROTO_UDP, &[1, 100, 101, 102, 103, 104, 99][..]),
        (136, &[10, 11][..]),
        (255, &[1, 2][..]),
        (270, &[1, 3, 4, 5, 10, 11, 12, 99][..]),
    ]);
    d.num(i64::from(level));
    d.of(names);
}

fn no_clone(d: &mut Draft) {
    // Flags that contradict each other, signals that are none, sizes: no process comes of it.
    let flags = d.rng.of(&[0x1_0000u64, 0x800, 0x2_0200, 0x1000_0200, 1 << 40, 0x5000_0000]);
    let signal = d.rng.of(&[0u64, 17, 65]);
    d.words(&[flags, 0, 0, 0, signal, 0, 0, 0, 0, 0, 0]);
    d.of(&[64, 80, 88, 0, 63, 4096, 4097, 8192]);
}

/// The table.
pub const ROWS: &[Row] = &[
    (SYS_mq_open, 10, |d| {
        queue_name(d);
        d.flags_with(O_NONBLOCK, &[O_CREAT, O_CREAT, O_RDWR, O_RDWR, O_WRONLY, O_EXCL, O_CLOEXEC]);
        d.of(&[0o644, 0o600, 0o777, 0, 0o400]);
        queue_attributes(d, &[0]);
        d.makes(Kind::MessageQueue)
    }),
    (SYS_mq_unlink, 3, queue_name),
    (SYS_mq_timedsend, 12, |d| {
        d.fd(&[Kind::MessageQueue]);
        d.data();
        d.of(&[0, 1, 5, 32767, 32768, -1]);
        d.short_zero()
    }),
    (SYS_mq_timedreceive, 12, |d| {
        d.fd(&[Kind::MessageQueue]);
        d.out(2048);
        d.of(&[8192, 8192, 64, 8, 7, 0, -1]);
        d.out(4);
        d.short_zero()
    }),
    (SYS_mq_getsetattr, 8, |d| {
        d.fd(&[Kind::MessageQueue]);
        queue_attributes(d, &[0, 2048, 2048, 1]);
        d.out_or_null(64, Norm::Text)
    }),
    (SYS_mq_notify, 4, |d| {
        d.fd(&[Kind::MessageQueue]);
        let signal = d.rng.of(&[10u64, 40, 65, 0]);
        let how = d.rng.of(&[0u64, 1, 1, 3, 9]);
        d.words_or_null(&[7, signal | how << 32, 0, 0, 0, 0, 0, 0])
    }),
    (SYS_sendmmsg, 8, |d| {
        d.fd(SOCKETS);
        messages(d, false);
        d.flags_with(MSG_DONTWAIT | MSG_NOSIGNAL, &[0x8000, 1, 4])
    }),
    (SYS_recvmmsg, 8, |d| {
        d.fd(SOCKETS);
        messages(d, true);
        d.flags_with(MSG_DONTWAIT, &[2, 0x20, 0x1_0000, 1, 0x2000]);
        d.num(0)
    }),
    (SYS_execve, 6, |d| {
        d.path();
        strings(d);
        strings(d)
    }),
    (SYS_execveat, 8, |d| {
        d.dirfd();
        d.path_flags_swapped(
            |d| {
                strings(d);
                strings(d)
            },
            &[AT_SYMLINK_NOFOLLOW],
        )
    }),
    (FUTEX_WAKE_CALL, 4, |d| {
        futex_word(d);
        d.of(&[-1, 1, 0, 1 << 32]);
        d.of(&[0, 1, 7, -1]);
        futex_flags(d)
    }),
    (FUTEX_WAIT_CALL, 4, |d| {
        futex_word(d);
        d.of(&[0, 0, 1, 1 << 32]);
        d.of(&[-1, 1, 0]);
        futex_flags(d);
        d.short_zero();
        d.of(&[0, 1, 2, -1])
    }),
    (SYS_futex_waitv, 4, |d| {
        waiters(d);
        d.of(&[2, 2, 1, 0, 129]);
        d.of(&[0, 0, 0, 1]);
        d.short_zero();
        d.of(&[0, 1, 2])
    }),
    (FUTEX_REQUEUE_CALL, 4, |d| {
        waiters(d);
        d.of(&[0, 0, 0, 1]);
        d.of(&[0, 1, -1]);
        d.of(&[0, 1, -1])
    }),
    (SYS_fcntl, 10, fcntl),
    (SYS_ioctl, 12, ioctl),
    (SYS_prctl, 10, prctl),
    (SYS_setsockopt, 16, |d| {
        d.fd(SOCKETS);
        option(d);
        let value = d.rng.of(&[0u64, 1, 2, 5, 100, 0xffff_ffff, 0x0100_007f]);
        d.words_or_null(&[value, 0, 0, 0]);
        d.of(&[4, 4, 4, 8, 12, 16, 20, 32, 3, 1, 0, -1])
    }),
    (SYS_getsockopt, 16, |d| {
        d.fd(SOCKETS);
        option(d);
        d.out(64);
        let room = d.rng.of(&[4u32, 4, 8, 16, 64, 0, 2, u32::MAX]);
        let at = d.input(&room.to_ne_bytes());
        d.shows(at, 4)
    }),
    (SYS_getdents, 3, |d| {
        d.fd(DIRS);
        d.out_as(2048, Norm::Time(2048));
        d.of(&[2048, 2048, 24, 23, 0, -1])
    }),
    (SYS_faccessat2, 6, |d| {
        d.dirfd();
        d.path_flags_swapped(
            |d| d.of(&[0, 1, 2, 4, 7, 8]),
            &[AT_EACCESS, AT_SYMLINK_NOFOLLOW, AT_EACCESS],
        )
    }),
    (SYS_fchmodat2, 5, |d| {
        d.dirfd();
        d.path_flags_swapped(Draft::mode, &[AT_SYMLINK_NOFOLLOW])
    }),
    (SYS_listxattr, 3, |d| {
        d.path();
        d.buffer();
    }),
    (SYS_llistxattr, 2, |d| {
        d.path();
        d.buffer();
    }),
    (SYS_flistxattr, 2, |d| {
        d.any_fd();
        d.buffer();
    }),
    (SYS_getuid, 1, |_| {}),
    (SYS_geteuid, 1, |_| {}),
    (SYS_getgid, 1, |_| {}),
    (SYS_getegid, 1, |_| {}),
    // How much is mapped already is each kernel's own.
    (SYS_mlockall, 3, |d| d.of(&[2, 2, 4, 6, 0, 8])),
    (SYS_mseal, 4, |d| {
        d.pages();
        d.of(&[0, 0, 0, 1])
    }),
    (SYS_process_madvise, 3, |d| {
        d.fd(&[Kind::Pid]);
        let page = MAPS as u64 + d.rng.below(MAP_PAGES as u64) * PAGE as u64;
        let bytes = d.rng.of(&[PAGE as u64, 3 * PAGE as u64, 1, 0]);
        d.words(&[page, bytes]);
        d.of(&[1, 1, 0, -1]);
        d.of(&[20, 21, 3, 4, 25, 99]);
        d.of(&[0, 0, 0, 1])
    }),
    (SYS_pselect6, 5, |d| {
        d.of(&[0, 3, 8, 16, 64, -1]);
        let sets: Vec<u64> = (0..3).map(|_| d.rng.of(&[0u64, 8, 0x78, 0xfff8, 1 << 40])).collect();
        for set in sets {
            d.words_or_null(&[set, 0]);
        }
        d.short_zero();
        d.num(0)
    }),
    (SYS_epoll_pwait2, 4, |d| {
        d.fd(&[Kind::Epoll]);
        d.out(120);
        d.of(&[10, 1, 0, -1]);
        d.short_zero();
        let set = d.a_signal_set();
        d.words_or_null(&[set]);
        d.of(&[8, 8, 4])
    }),
    (SYS_sched_getaffinity, 2, |d| {
        d.id();
        d.of(&[128, 128, 8, 0, 7]);
        d.out_as(128, Norm::Time(128));
        d.call.value = Value::Any
    }),
    (SYS_sched_setaffinity, 2, |d| {
        d.id();
        d.of(&[8, 8, 4, 0, 128]);
        let mask = d.rng.of(&[1u64, 1, 0, u64::MAX]);
        let mut words = [0u64; 16];
        words[0] = mask;
        d.words(&words);
    }),
    (SYS_seccomp, 2, |d| {
        d.of(&[2, 2, 3, 9]);
        d.of(&[0, 0, 1]);
        let action = d.rng.of(&[0u64, 0x8000_0000, 0x5_0000, 0x7fc0_0000, 0x7fff_0000, 0x1234]);
        let at = d.words(&[action]);
        d.shows(at, 8)
    }),
    (SYS_clone3, 3, no_clone),
    (SYS_arch_prctl, 2, |d| {
        d.of(&[0x1003, 0x1004, 0x1011, 0x9999]);
        d.out_as(8, Norm::Time(8))
    }),
    (SYS_open_tree, 3, |d| {
        d.dirfd();
        d.path_flags(&[O_CLOEXEC, AT_SYMLINK_NOFOLLOW, 0x800]);
        d.makes(Kind::Path)
    }),
    (SYS_syncfs, 2, |d| d.any_fd()),
    (SYS_pipe, 2, |d| d.makes_pair(Kind::PipeRead, Kind::PipeWrite)),
    (SYS_signalfd, 2, |d| {
        d.num(-1);
        let set = d.a_signal_set();
        d.words(&[set]);
        d.of(&[8, 8, 4]);
        d.makes(Kind::Signal)
    }),
    (SYS_setdomainname, 1, |d| {
        d.input(b"name\0");
        d.of(&[4, 65, -1]);
        d.only_for_user()
    }),
    (SYS_fsopen, 1, |d| {
        d.input(b"tmpfs\0");
        d.of(&[0, 1, 2]);
        d.only_for_user()
    }),
    (SYS_pivot_root, 1, |d| {
        d.path();
        d.path();
        d.only_for_user()
    }),
];
