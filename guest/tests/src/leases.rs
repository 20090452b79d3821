//! Leases on files: F_SETLEASE and F_GETLEASE (fcntl(2)).

use crate::sys::*;
use crate::{sc, tests};

tests! { "leases":
    who_may_have_one, others_are_told_of, an_opener_waits, a_lease_shrinks, time_ends_it,
    what_breaks_one, the_signal_of_choice, shown_in_locks,
}

const F_SETLEASE: i32 = 1024;
const F_GETLEASE: i32 = 1025;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const RDLCK: usize = F_RDLCK as usize;
const WRLCK: usize = F_WRLCK as usize;
const UNLCK: usize = F_UNLCK as usize;

fn path() -> String {
    let path = format!("{}/file", dir());
    std::fs::write(&path, b"contents").unwrap();
    path
}

fn set(fd: i32, kind: usize) -> Res {
    sc!(SYS_fcntl, fd, F_SETLEASE, kind)
}

fn get(fd: i32) -> usize {
    sc!(SYS_fcntl, fd, F_GETLEASE).must()
}

fn who_may_have_one() {
    let path = path();
    let reader = open(&path, O_RDONLY).fd();
    assert_eq!(get(reader), UNLCK);
    set(reader, UNLCK).fails(EAGAIN);
    set(reader, 7).fails(EINVAL);
    set(reader, RDLCK).is(0);
    assert_eq!(get(reader), RDLCK);
    // Nobody else has it open: it may be for itself alone.
    set(reader, WRLCK).is(0);
    assert_eq!(get(reader), WRLCK);
    set(reader, UNLCK).is(0);
    assert_eq!(get(reader), UNLCK);
    // Who writes has no lease for reading.
    let writer = open(&path, O_RDWR).fd();
    set(writer, RDLCK).fails(EAGAIN);
    set(reader, RDLCK).fails(EAGAIN);
    set(writer, WRLCK).fails(EAGAIN);
    close(reader);
    set(writer, WRLCK).is(0);
    close(writer);
    // Several may read.
    let both = [0, 1].map(|_| open(&path, O_RDONLY).fd());
    both.iter().for_each(|&fd| set(fd, RDLCK).is(0));
    set(both[0], WRLCK).fails(EAGAIN);
    // The lease is the open file's, whichever descriptor asks.
    let same = sc!(SYS_dup, both[0]).fd();
    assert_eq!(get(same), RDLCK);
    close(both[0]);
    assert_eq!(get(same), RDLCK);
    close(same);
    set(both[1], WRLCK).is(0);
    let (out, _) = pipe();
    set(out, RDLCK).fails(EINVAL);
    let directory = open(&dir(), O_RDONLY).fd();
    set(directory, RDLCK).fails(EINVAL);
    in_child(|| {
        let fd = open(&path.replace("file", "other"), O_RDONLY | O_CREAT).fd();
        sc!(SYS_setresuid, 64321, 64321, 64321).is(0);
        set(fd, RDLCK).fails(EACCES);
    });
}

fn others_are_told_of() {
    let path = path();
    let holder = open(&path, O_RDONLY).fd();
    set(holder, RDLCK).is(0);
    let signals = block_signal(SIGIO);
    // Who reads does not mind.
    close(open(&path, O_RDONLY).fd());
    assert!(taken_signal(signals, 0).is_none());
    open(&path, O_WRONLY | O_NONBLOCK).fails(EWOULDBLOCK);
    let info = taken_signal(signals, 0).expect("a signal");
    assert_eq!((info.signo, info.code), (SIGIO, SI_KERNEL));
    // It is told once; meanwhile the lease says what it is to become.
    open(&path, O_WRONLY | O_NONBLOCK).fails(EWOULDBLOCK);
    assert!(taken_signal(signals, 0).is_none());
    assert_eq!(get(holder), UNLCK);
    // No other gets a new one now.
    let other = open(&path, O_RDONLY).fd();
    set(other, RDLCK).fails(EAGAIN);
    set(holder, UNLCK).is(0);
    close(open(&path, O_WRONLY | O_NONBLOCK).fd());
    set(other, RDLCK).is(0);
}

fn an_opener_waits() {
    let path = path();
    let holder = open(&path, O_RDONLY).fd();
    set(holder, WRLCK).is(0);
    let signals = block_signal(SIGIO);
    let child = fork(|| {
        let fd = open(&path, O_RDWR).fd();
        i32::from(read(fd, 8) != b"changed!")
    });
    assert!(taken_signal(signals, 20).is_some());
    // It is still out while the holder brings the file up to date.
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(sc!(SYS_wait4, child, 0, WNOHANG, 0), Ok(0));
    let again = open(&format!("/proc/self/fd/{holder}"), O_RDONLY | O_NONBLOCK);
    // Its own open is another's, too.
    again.fails(EWOULDBLOCK);
    let _ = std::fs::remove_file(format!("{path}.new"));
    set(holder, UNLCK).is(0);
    wait_code(child, 1);
}

fn a_lease_shrinks() {
    let path = path();
    let holder = open(&path, O_RDONLY).fd();
    set(holder, WRLCK).is(0);
    let signals = block_signal(SIGIO);
    open(&path, O_RDONLY | O_NONBLOCK).fails(EWOULDBLOCK);
    assert!(taken_signal(signals, 0).is_some());
    assert_eq!(get(holder), RDLCK);
    // A writer wants more.
    open(&path, O_WRONLY | O_NONBLOCK).fails(EWOULDBLOCK);
    assert!(taken_signal(signals, 0).is_some());
    assert_eq!(get(holder), UNLCK);
    // Shrinking is enough for readers only.
    set(holder, RDLCK).is(0);
    close(open(&path, O_RDONLY | O_NONBLOCK).fd());
    open(&path, O_WRONLY | O_NONBLOCK).fails(EWOULDBLOCK);
    set(holder, UNLCK).is(0);
    close(open(&path, O_WRONLY | O_NONBLOCK).fd());
}

fn time_ends_it() {
    const SETTING: &str = "/proc/sys/fs/lease-break-time";
    let before = std::fs::read_to_string(SETTING).unwrap();
    assert!(before.trim().parse::<u32>().is_ok_and(|seconds| seconds > 0));
    let path = path();
    let holder = open(&path, O_RDONLY).fd();
    set(holder, WRLCK).is(0);
    let signals = block_signal(SIGIO);
    // The setting is the machine's: elsewhere the opener is seen to wait.
    if !std::fs::read_to_string("/proc/version").unwrap().contains("limen") {
        let child = fork(|| i32::from(open(&path, O_RDONLY).is_ok()));
        assert!(taken_signal(signals, 20).is_some());
        nap(20);
        assert_eq!(sc!(SYS_wait4, child, 0, WNOHANG, 0), Ok(0));
        // The child has the open file, too: closing it here would leave the lease.
        set(holder, UNLCK).is(0);
        return wait_code(child, 1);
    }
    std::fs::write(SETTING, "1\n").unwrap();
    let start = std::time::Instant::now();
    let other = open(&path, O_RDONLY).fd();
    assert!(start.elapsed().as_millis() >= 500);
    assert_eq!(get(holder), RDLCK);
    close(other);
    close(open(&path, O_WRONLY).fd());
    assert_eq!(get(holder), UNLCK);
    set(holder, UNLCK).fails(EAGAIN);
    std::fs::write(SETTING, before).unwrap();
}

fn what_breaks_one() {
    let path = path();
    let signals = block_signal(SIGIO);
    let fresh = || {
        let holder = open(&path, O_RDONLY).fd();
        set(holder, RDLCK).is(0);
        holder
    };
    // truncate(2) waits as an opener does; the names and modes of a file may change.
    let holder = fresh();
    let place = c(&path);
    let child = fork(|| {
        sc!(SYS_truncate, place.as_ptr(), 3).is(0);
        0
    });
    assert!(taken_signal(signals, 20).is_some());
    set(holder, UNLCK).is(0);
    wait_code(child, 0);
    close(holder);
    let holder = fresh();
    sc!(SYS_chmod, place.as_ptr(), 0o600).is(0);
    std::fs::rename(&path, format!("{path}2")).unwrap();
    std::fs::rename(format!("{path}2"), &path).unwrap();
    std::fs::hard_link(&path, format!("{path}3")).unwrap();
    std::fs::remove_file(format!("{path}3")).unwrap();
    close(open(&path, O_PATH).fd());
    assert!(taken_signal(signals, 0).is_none());
    // A signal ends the wait of who opens it.
    let child = fork(|| {
        on_signal(SIGUSR1, nothing as *const () as usize, 0, 0);
        i32::from(open(&path, O_WRONLY) != Err(EINTR))
    });
    assert!(taken_signal(signals, 20).is_some());
    sc!(SYS_kill, child, SIGUSR1).is(0);
    wait_code(child, 0);
    close(holder);
}

fn the_signal_of_choice() {
    let path = path();
    let holder = open(&path, O_RDONLY).fd();
    let number = SIGRTMIN() + 3;
    let signals = block_signal(number);
    sc!(SYS_fcntl, holder, F_SETSIG, number).is(0);
    set(holder, RDLCK).is(0);
    sc!(SYS_fcntl, holder, F_GETOWN).is(pid() as usize);
    open(&path, O_WRONLY | O_NONBLOCK).fails(EWOULDBLOCK);
    let info = taken_signal(signals, 0).expect("a signal");
    // POLL_MSG, with the bits of what poll(2) calls so, and the descriptor.
    assert_eq!((info.signo, info.code), (number, 3));
    assert_eq!((info.pid, info.uid, info.status), (0x441, 0, holder));
    // With the lease go its settings.
    set(holder, UNLCK).is(0);
    sc!(SYS_fcntl, holder, F_GETOWN).is(0);
    sc!(SYS_fcntl, holder, F_GETSIG).is(0);
}

fn shown_in_locks() {
    let path = path();
    let holder = open(&path, O_RDONLY).fd();
    let _signals = block_signal(SIGIO);
    // SAFETY: a structure of numbers.
    let mut stat: stat = unsafe { std::mem::zeroed() };
    sc!(SYS_fstat, holder, &raw mut stat).is(0);
    let shown = || {
        let text = std::fs::read_to_string("/proc/locks").unwrap();
        let end = format!(":{} 0 EOF", stat.st_ino);
        let mut own = text.lines().filter(|line| line.ends_with(&end) && line.contains("LEASE"));
        own.next().map(|line| line.split_whitespace().skip(2).take(3).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(shown(), None);
    set(holder, WRLCK).is(0);
    assert_eq!(shown(), Some(format!("ACTIVE WRITE {}", pid())));
    open(&path, O_WRONLY | O_NONBLOCK).fails(EWOULDBLOCK);
    assert!(shown().is_some_and(|line| line.starts_with("BREAKING ")));
}
