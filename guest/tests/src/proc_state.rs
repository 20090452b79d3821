//! Files of /proc/PID about what a process waits in, who logged it in, its timers, the use of its
//! pages. Who may open them is a table of procfs.rs.
//!
//! Manual pages: `proc_pid_syscall(5)`, `proc_pid_stack(5)`, `proc_pid_loginuid(5)`,
//! `proc_pid_timers(5)`, `proc_pid_clear_refs(5)`, `proc_pid_mountstats(5)`, numa(7),
//! `time_namespaces(7)`.

use std::sync::atomic::Ordering::SeqCst;

use crate::sys::*;
use crate::{sc, tests};

tests!("proc_state":
    calls_of_blocked_threads, calls_of_running_threads, calls_at_stops, stacks_are_the_superusers,
    logins_are_inherited, logins_that_are_refused, timers_are_listed,
    what_clear_refs_takes, use_of_pages_is_forgotten, the_peak_is_reset, pages_of_nodes,
    mount_statistics, clocks_have_no_offsets, what_threads_do_not_have, nothing_is_merged,
);

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn own(name: &str) -> String {
    text(&format!("/proc/self/{name}"))
}

fn call_of(pid: i32) -> String {
    text(&format!("/proc/{pid}/syscall"))
}

fn end(pid: i32) {
    sc!(SYS_kill, pid, SIGKILL).is(0);
    wait(pid);
}

/// A user who is not the superuser.
const USER: u32 = 4321;

fn become_user() {
    sc!(SYS_setgroups, 0, 0).is(0);
    sc!(SYS_setresgid, USER, USER, USER).is(0);
    sc!(SYS_setresuid, USER, USER, USER).is(0);
    sc!(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0).is(0);
}

/// A number, six arguments, and where the program is.
fn words_of(line: &str) -> Vec<u64> {
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => word.parse::<i64>().unwrap() as u64,
    };
    line.strip_suffix('\n').unwrap().split(' ').map(number).collect()
}

fn calls_of_blocked_threads() {
    let (read_end, _write_end) = pipe();
    let buffer = anon(4096);
    let pid = fork(|| {
        let _ = sc!(SYS_read, read_end, buffer, 7, 0x44, 0x55, 0x66);
        0
    });
    let wanted = [SYS_read as u64, read_end as u64, buffer as u64, 7, 0x44, 0x55, 0x66];
    until(|| call_of(pid) != "running\n" && words_of(&call_of(pid))[..7] == wanted);
    let words = words_of(&call_of(pid));
    let (sp, ip) = (words[7], words[8]);
    let maps = text(&format!("/proc/{pid}/maps"));
    let is_in = |address: u64, rights: &str| {
        maps.lines().any(|line| {
            let (range, rest) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let number = |digits| u64::from_str_radix(digits, 16).unwrap();
            (number(start)..number(end)).contains(&address) && rest.starts_with(rights)
        })
    };
    assert!(words.len() == 9 && is_in(sp, "rw") && is_in(ip, "r-x"), "{words:x?}");
    // Its first thread's file is the same.
    assert_eq!(text(&format!("/proc/{pid}/task/{pid}/syscall")), call_of(pid));
    // A stop in the middle of a call is still that call.
    sc!(SYS_kill, pid, SIGSTOP).is(0);
    until(|| text(&format!("/proc/{pid}/status")).contains("State:\tT"));
    until(|| call_of(pid) != "running\n");
    assert_eq!(words_of(&call_of(pid))[..7], wanted);
    end(pid);
}

fn calls_of_running_threads() {
    let turns = &new_shared()[0];
    let pid = fork(|| {
        loop {
            turns.fetch_add(1, SeqCst);
        }
    });
    // Before that it is in the call that made it.
    until_at_least(turns, 1);
    assert_eq!(call_of(pid), "running\n");
    sc!(SYS_kill, pid, SIGSTOP).is(0);
    // Stopped outside of a call: there is no number, and there are no arguments.
    until(|| call_of(pid).starts_with("-1 0x"));
    assert_eq!(words_of(&call_of(pid)).len(), 3, "{}", call_of(pid));
    end(pid);
    // Whoever reads is in a call: this one.
    let words = words_of(&own("syscall"));
    assert_eq!(words[0], SYS_read as u64, "{words:x?}");
}

/// At a tracer's stop it is what the tracer has made of it.
fn calls_at_stops() {
    let pid = fork(|| {
        sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is(0);
        sc!(SYS_kill, pid(), SIGUSR1, 0x33, 0x44, 0x55, 0x66).is(0);
        0
    });
    wait(pid);
    let wanted = [SYS_kill as u64, pid as u64, SIGUSR1 as u64, 0x33, 0x44, 0x55, 0x66];
    until(|| call_of(pid) != "running\n");
    assert_eq!(words_of(&call_of(pid))[..7], wanted);
    // RDI, word 14 of what PTRACE_PEEKUSER sees.
    sc!(SYS_ptrace, PTRACE_POKEUSER, pid, 14 * 8, 0x1234).is(0);
    assert_eq!(words_of(&call_of(pid))[1], 0x1234);
    end(pid);
}

fn stacks_are_the_superusers() {
    let (read_end, _write_end) = pipe();
    let pid = fork(|| {
        become_user();
        read(read_end, 1);
        0
    });
    let path = format!("/proc/{pid}/stack");
    until(|| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&path).unwrap()) == USER);
    // Function names at most, and never an address.
    for line in text(&path).lines() {
        assert!(line.starts_with("[<0>] "), "{line}");
    }
    in_child(|| {
        become_user();
        let fd = open(&path, O_RDONLY).fd();
        let mut byte = 0u8;
        sc!(SYS_read, fd, &raw mut byte, 1).fails(EACCES);
    });
    end(pid);
}

/// Writes to the process's own file, as a whole.
fn set_login(value: &str) -> Res {
    let fd = open("/proc/self/loginuid", O_WRONLY).fd();
    let answer = sc!(SYS_write, fd, value.as_ptr(), value.len());
    close(fd);
    answer
}

const NOBODY: &str = "4294967295";

fn login() -> (String, String) {
    (own("loginuid"), own("sessionid"))
}

fn logins_are_inherited() {
    in_child(|| {
        set_login(NOBODY).is(10);
        assert_eq!(login(), (NOBODY.into(), NOBODY.into()));
        set_login("1000\n").is(5);
        let (uid, session) = login();
        assert_eq!(uid, "1000");
        in_child(|| assert_eq!(login(), ("1000".into(), session.clone())));
        std::thread::spawn(|| {
            assert_eq!(text(&format!("/proc/self/task/{}/loginuid", tid())), "1000");
        })
        .join()
        .unwrap();
        // Each is a session of its own, also of the same user.
        set_login("1000").is(4);
        assert_ne!(login().1, session);
        set_login(NOBODY).is(10);
        assert_eq!(login(), (NOBODY.into(), NOBODY.into()));
        in_child(|| assert_eq!(login().0, NOBODY));
    });
}

fn logins_that_are_refused() {
    in_child(|| {
        set_login(NOBODY).is(10);
        for wrong in ["x", "-1", "0x10", " 9", "9 ", "\n", "1\n\n", ""] {
            set_login(wrong).fails(EINVAL);
        }
        set_login("4294967296").fails(ERANGE);
        assert_eq!(login().0, NOBODY);
        in_child(|| {
            // Only the thread itself.
            let fd = open(&format!("/proc/{}/loginuid", parent()), O_WRONLY).fd();
            sc!(SYS_write, fd, c"5".as_ptr(), 1).fails(EPERM);
        });
        std::thread::spawn(|| set_login("5").fails(EPERM)).join().unwrap();
        // Whoever has not said it yet may say it once.
        become_user();
        set_login("7").is(1);
        set_login("7").fails(EPERM);
        set_login(NOBODY).fails(EPERM);
        assert_eq!(login().0, "7");
    });
}

fn parent() -> usize {
    sc!(SYS_getppid).must()
}

fn timers_are_listed() {
    let event = |value: u64, signal: i32, notify: i32, tid: i32| {
        let mut event = [0u64; 8];
        event[0] = value;
        event[1] = signal as u64 | (notify as u64) << 32;
        event[2] = tid as u64;
        event
    };
    let create = |clock: i32, event: Option<[u64; 8]>| {
        let mut id = 0i32;
        let event = event.as_ref().map_or(std::ptr::null(), |event| event.as_ptr());
        sc!(SYS_timer_create, clock, event, &raw mut id).is(0);
        id
    };
    assert_eq!(own("timers"), "");
    let me = pid();
    let of_other = (!me) << 3 | 2;
    let signal = SIGRTMIN() as u64;
    let rows = [
        (CLOCK_REALTIME, None, 14, "signal/pid", 0),
        (CLOCK_MONOTONIC, Some(event(0xabc, SIGUSR1, SIGEV_NONE, 0)), 10, "none/pid", 1),
        (CLOCK_PROCESS_CPUTIME_ID, Some(event(7, SIGUSR2, 2, 0)), 12, "thread/pid", -6),
        (CLOCK_THREAD_CPUTIME_ID, Some(event(8, SIGUSR2, 0, 0)), 12, "signal/pid", -2),
        (CLOCK_BOOTTIME, Some(event(!0, SIGRTMIN(), 4, tid())), signal, "signal/tid", 7),
        (of_other, Some(event(9, SIGUSR1, 0, 0)), 10, "signal/pid", of_other),
    ];
    let mut wanted = Vec::new();
    let mut ids = Vec::new();
    for (clock, event, signal, notify, shown) in rows {
        let id = create(clock, event);
        let value = event.map_or(id as u64, |event| event[0]);
        let first = format!("ID: {id}\nsignal: {signal}/{value:016x}\n");
        wanted.insert(0, format!("{first}notify: {notify}.{me}\nClockID: {shown}\n"));
        ids.push(id);
    }
    assert_eq!(own("timers"), wanted.concat());
    sc!(SYS_timer_delete, ids[5]).is(0);
    assert_eq!(own("timers"), wanted[1..].concat());
    in_child(|| assert_eq!(own("timers"), "", "they are not inherited"));
    ids[..5].iter().for_each(|&id| sc!(SYS_timer_delete, id).is(0));
    assert_eq!(own("timers"), "");
}

fn clear_refs(what: &str) -> Res {
    let fd = open("/proc/self/clear_refs", O_WRONLY).fd();
    let answer = sc!(SYS_write, fd, what.as_ptr(), what.len());
    sc!(SYS_lseek, fd, 0, SEEK_CUR).is(0);
    close(fd);
    answer
}

fn what_clear_refs_takes() {
    for right in ["1", "2", "3", "4", "5", "1\n", " 1 ", "+1", "01", "1\0"] {
        clear_refs(right).is(right.len());
    }
    for wrong in ["0", "6", "-1", "", "x", "0x1", "1x"] {
        clear_refs(wrong).fails(EINVAL);
    }
    let (go_out, go) = pipe();
    let pid = fork(|| {
        become_user();
        read(go_out, 1);
        0
    });
    let path = format!("/proc/{pid}/clear_refs");
    let of = || std::fs::metadata(&path).unwrap();
    until(|| std::os::unix::fs::MetadataExt::uid(&of()) == USER);
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&of().permissions()), 0o100_200);
    in_child(|| {
        become_user();
        open(&path, O_RDONLY).fails(EACCES);
        let fd = open(&path, O_WRONLY).fd();
        sc!(SYS_write, fd, c"1".as_ptr(), 1).is(1);
    });
    in_child(|| {
        sc!(SYS_setresuid, USER + 1, USER + 1, USER + 1).is(0);
        open(&path, O_WRONLY).fails(EACCES);
    });
    // The superuser may open it to read, and gets nothing.
    let fd = open(&path, O_RDWR).fd();
    let mut byte = 0u8;
    sc!(SYS_read, fd, &raw mut byte, 1).fails(EINVAL);
    write(go, b"g");
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, pid, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    sc!(SYS_write, fd, c"1".as_ptr(), 1).is(1);
    wait(pid);
    sc!(SYS_write, fd, c"1".as_ptr(), 1).fails(ESRCH);
}

const PAGES: usize = 64;

/// `PAGES` pages that are an area of their own.
fn apart(fd: i32) -> *mut u8 {
    let kind = if fd < 0 { MAP_PRIVATE | MAP_ANONYMOUS } else { MAP_PRIVATE };
    let all = mmap(0, (PAGES + 2) * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    let at = all + 4096;
    mmap(at, PAGES * 4096, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0).is(at);
    at as *mut u8
}

fn touch(at: *mut u8, pages: usize) {
    for page in 0..pages {
        // SAFETY: a mapping of that many pages that may be written to.
        unsafe { at.add(page * 4096).write_volatile(1) };
    }
}

/// Kilobytes of a line of smaps about the area at an address.
fn of_area(at: *mut u8, name: &str) -> u64 {
    let smaps = own("smaps");
    let head = format!("{:08x}-", at as usize);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    let line = lines.find(|line| line.starts_with(&format!("{name}:")));
    line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Makes the CPU forget which pages the program has used: it unmaps many at once.
fn forget_translations() {
    let other = anon(PAGES * 4096);
    touch(other, PAGES);
    unmap(other, PAGES * 4096);
}

fn use_of_pages_is_forgotten() {
    let file = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, file, PAGES * 4096).is(0);
    let (anonymous, of_file) = (apart(-1), apart(file));
    let all = (PAGES * 4) as u64;
    for (what, forgotten) in [("1", [true, true]), ("2", [true, false]), ("3", [false, true])] {
        touch(anonymous, PAGES);
        // SAFETY: mapped, and as long as the file.
        (0..PAGES).for_each(|page| unsafe {
            of_file.add(page * 4096).read_volatile();
        });
        forget_translations();
        touch(anonymous, PAGES);
        touch(of_file, PAGES);
        let used = || [anonymous, of_file].map(|at| of_area(at, "Referenced"));
        assert_eq!(used(), [all, all], "{what}");
        clear_refs(what).must();
        assert_eq!(used(), forgotten.map(|is| if is { 0 } else { all }), "{what}");
        assert_eq!(of_area(anonymous, "Rss"), all);
        forget_translations();
        touch(anonymous, 3);
        assert_eq!(used()[0], if forgotten[0] { 12 } else { all }, "{what}");
    }
    // The others change nothing of it.
    touch(anonymous, PAGES);
    forget_translations();
    touch(anonymous, PAGES);
    clear_refs("5").must();
    assert_eq!(of_area(anonymous, "Referenced"), all);
    close(file);
}

fn the_peak_is_reset() {
    const BYTES: usize = 48 << 20;
    let peak = || {
        let status = own("status");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    };
    let at = anon(BYTES);
    touch(at, BYTES / 4096);
    unmap(at, BYTES);
    let before = peak();
    assert!(before >= BYTES, "{before}");
    clear_refs("1").must();
    assert!(peak() >= BYTES);
    clear_refs("5").must();
    assert!(peak() < before - BYTES / 2, "{} of {before}", peak());
    let at = anon(BYTES);
    touch(at, BYTES / 4096);
    unmap(at, BYTES);
    assert!(peak() >= BYTES);
}

fn pages_of_nodes() {
    let at = apart(-1);
    touch(at, PAGES);
    let line_of = |start: usize| {
        let all = own("numa_maps");
        let head = format!("{start:08x} ");
        all.lines().find(|line| line.starts_with(&head)).unwrap_or_default().to_string()
    };
    let line = line_of(at as usize);
    assert!(line.contains(&format!(" default anon={PAGES} dirty={PAGES} ")), "{line}");
    assert!(line.ends_with(" kernelpagesize_kB=4") && line.contains(" N"), "{line}");
    assert_eq!(line_of(at as usize - 4096), format!("{:08x} default", at as usize - 4096));
    let all = own("numa_maps");
    let own_file = format!("file={}", own_path());
    assert!(all.lines().any(|line| line.contains(" stack anon=")), "{all}");
    assert!(all.lines().any(|line| line.contains(&own_file)), "{all}");
    // A child has the same pages as long as neither writes to them.
    in_child(|| {
        let line = line_of(at as usize);
        assert!(line.contains(" mapmax=2 "), "{line}");
    });
    in_child(|| {
        // MPOL_BIND to the first node; a blank in a name ends no word.
        let nodes = 1u64;
        sc!(SYS_set_mempolicy, 2, &raw const nodes, 64).is(0);
        let path = format!("{}/a b=c", dir());
        let file = open(&path, O_RDWR | O_CREAT).fd();
        sc!(SYS_ftruncate, file, PAGES * 4096).is(0);
        let at = apart(file) as usize;
        let line = line_of(at);
        let name = path.replace("a b=c", "a\\040b\\075c");
        assert_eq!(line, format!("{at:08x} bind:0 file={name}"));
    });
}

fn mount_statistics() {
    let statistics = own("mountstats");
    let mounts = own("mounts");
    let wanted = mounts.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        format!("device {} mounted on {} with fstype {}", words[0], words[1], words[2])
    });
    let lines: Vec<&str> = statistics.lines().collect();
    for wanted in wanted {
        assert!(lines.iter().any(|line| line.starts_with(&wanted)), "{wanted}: {statistics}");
    }
}

fn clocks_have_no_offsets() {
    let wanted = "monotonic           0         0\nboottime            0         0\n";
    assert_eq!(own("timens_offsets"), wanted);
    let fd = open("/proc/self/timens_offsets", O_WRONLY).fd();
    sc!(SYS_write, fd, c"monotonic 1 0".as_ptr(), 13).fails(EACCES);
    in_child(|| {
        become_user();
        let fd = open("/proc/self/timens_offsets", O_WRONLY).fd();
        sc!(SYS_write, fd, c"monotonic 1 0".as_ptr(), 13).fails(EPERM);
    });
}

/// What all threads have in common is the process's alone.
fn what_threads_do_not_have() {
    let names = ["coredump_filter", "map_files", "mountstats", "task", "timens_offsets", "timers"];
    for name in names.into_iter().chain(["timerslack_ns"]) {
        std::fs::metadata(format!("/proc/self/{name}")).unwrap();
        let of_thread = c(&format!("/proc/self/task/{}/{name}", tid()));
        let mut found = [0u8; 144];
        sc!(SYS_lstat, of_thread.as_ptr(), found.as_mut_ptr()).fails(ENOENT);
    }
}

fn nothing_is_merged() {
    assert_eq!(own("ksm_merging_pages"), "0\n");
    let merging = own("ksm_stat");
    for name in ["rmap_items", "zero_pages", "merging_pages", "process_profit"] {
        assert!(merging.contains(&format!("ksm_{name} 0\n")), "{merging}");
    }
}
