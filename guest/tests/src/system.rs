//! Scheduling, identity, limits, /proc, and the calls that fit nowhere else.
//!
//! Manual pages: sched_setaffinity(2), setpriority(2), credentials(7), capabilities(7), prctl(2),
//! getrlimit(2), proc(5), getrandom(2), uname(2), sysinfo(2).

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::Ordering::SeqCst;

tests!("system":
    affinity, getcpu_follows_affinity, idle_cpus_take_what_waits, nice_values, policies, uids,
    root_loses_rights, groups,
    capabilities, prctl_options, rlimits, rlimit_fsize_signal, personality_query, proc_maps,
    proc_status, proc_stat, proc_cmdline_environ, proc_fd, proc_of_others, proc_files,
    proc_self_is_own, proc_lists_processes, proc_mounts, proc_task, sys_cpu, getrandom_forms,
    uname_fields, sysinfo_fields, obsolete_calls, no_new_privs, umask_and_proc_limits, kernel_log,
);

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn affinity() {
    let all = cpus();
    assert!(!all.is_empty());
    for cpu in &all {
        pin(*cpu).is(0);
        assert_eq!(cpus(), [*cpu]);
        in_child(|| assert_eq!(cpus(), [*cpu]));
    }
    pin(1000).fails(EINVAL);
    sc!(SYS_sched_getaffinity, 0, 1, 0).fails(EINVAL);
    sc!(SYS_sched_getaffinity, 0x3fff_ffff, 128, 0).fails(ESRCH);
}

fn getcpu_follows_affinity() {
    for cpu in cpus() {
        pin(cpu).is(0);
        for _ in 0..50 {
            let mut seen = !0u32;
            sc!(SYS_getcpu, &raw mut seen, 0, 0).is(0);
            assert_eq!(seen as usize, cpu);
            // SAFETY: no arguments; the vDSO's answer.
            assert_eq!(unsafe { sched_getcpu() } as usize, cpu);
            let _ = sc!(SYS_sched_yield);
        }
    }
}

/// Two that never sleep, on one CPU while another one is idle: it has to come and take one, though
/// nobody wakes anybody.
fn idle_cpus_take_what_waits() {
    let [_, second, ..] = cpus()[..] else { return };
    let seen = &new_shared()[0];
    // SAFETY: no arguments; glibc's word or a system call.
    let here = || unsafe { sched_getcpu() } as u32;
    let allow_all = |pid: i32| {
        let all = [!0u64; 16];
        sc!(SYS_sched_setaffinity, pid, 128, all.as_ptr()).is(0);
    };
    seen.store(u32::MAX, SeqCst);
    let other = fork(|| {
        pin(second).is(0);
        loop {
            seen.store(here(), SeqCst);
        }
    });
    let first = fork(|| {
        pin(second).is(0);
        while seen.load(SeqCst) != second as u32 {}
        allow_all(other);
        allow_all(0);
        while here() == seen.load(SeqCst) {}
        0
    });
    wait_code(first, 0);
    sc!(SYS_kill, other, SIGKILL).is(0);
    wait_signal(other, SIGKILL);
}

fn nice_values() {
    // Whoever runs the tests may be nice already. The call tells 20 less the value.
    let nicer = 19.min(20 - sc!(SYS_getpriority, PRIO_PROCESS, 0).must() + 5);
    sc!(SYS_setpriority, PRIO_PROCESS, 0, nicer).is(0);
    sc!(SYS_getpriority, PRIO_PROCESS, 0).is(20 - nicer);
    in_child(|| sc!(SYS_getpriority, PRIO_PROCESS, 0).is(20 - nicer));
    sc!(SYS_setpriority, PRIO_PROCESS, 0, 100).is(0);
    sc!(SYS_getpriority, PRIO_PROCESS, 0).is(1);
    sc!(SYS_getpriority, 9, 0).fails(EINVAL);
    in_child(|| {
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_setpriority, PRIO_PROCESS, 0, 0).fails(EACCES);
    });
}

fn policies() {
    sc!(SYS_sched_getscheduler, 0).is(SCHED_OTHER as usize);
    let prio = 0i32;
    sc!(SYS_sched_setscheduler, 0, SCHED_BATCH, &raw const prio).is(0);
    sc!(SYS_sched_getscheduler, 0).is(SCHED_BATCH as usize);
    let one = 1i32;
    sc!(SYS_sched_setscheduler, 0, SCHED_OTHER, &raw const one).fails(EINVAL);
    sc!(SYS_sched_setscheduler, 0, 77, &raw const prio).fails(EINVAL);
    sc!(SYS_sched_get_priority_max, SCHED_FIFO).is(99);
    sc!(SYS_sched_get_priority_min, SCHED_RR).is(1);
    sc!(SYS_sched_get_priority_max, SCHED_OTHER).is(0);
}

fn ids() -> [u32; 3] {
    let mut v = [9u32; 3];
    let p = v.as_mut_ptr();
    sc!(SYS_getresuid, p, p.wrapping_add(1), p.wrapping_add(2)).is(0);
    v
}

fn uids() {
    assert_eq!(ids(), [0, 0, 0], "these tests run as root");
    in_child(|| {
        sc!(SYS_setresuid, 1, 2, 3).is(0);
        assert_eq!(ids(), [1, 2, 3]);
        sc!(SYS_setreuid, -1i32, 3).is(0);
        assert_eq!(ids()[1], 3);
        sc!(SYS_setuid, 7).fails(EPERM);
        sc!(SYS_setresuid, 3, 1, -1i32).is(0);
        assert_eq!(ids(), [3, 1, 3]);
    });
    in_child(|| {
        sc!(SYS_setuid, 50).is(0);
        assert_eq!(ids(), [50, 50, 50]);
        sc!(SYS_setuid, 0).fails(EPERM);
    });
    in_child(|| {
        sc!(SYS_setresuid, -1i32, 9, -1i32).is(0);
        sc!(SYS_setresuid, -1i32, 0, -1i32).is(0);
        assert_eq!(ids(), [0, 0, 0]);
        sc!(SYS_setfsuid, 5).is(0);
        sc!(SYS_setfsuid, -1i32).is(5);
    });
}

fn root_loses_rights() {
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    in_child(|| {
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_kill, child, SIGTERM).fails(EPERM);
        sc!(SYS_kill, child, 0).fails(EPERM);
        sc!(SYS_chroot, c"/tmp".as_ptr()).fails(EPERM);
        sc!(SYS_setgid, 0).is(0);
        sc!(SYS_setgroups, 0, 0).fails(EPERM);
        sc!(SYS_sethostname, c"x".as_ptr(), 1).fails(EPERM);
        sc!(SYS_mount, 0, c"/tmp".as_ptr(), 0, 32, 0).fails(EPERM);
    });
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn groups() {
    in_child(|| {
        let (set, mut got) = ([30u32, 10, 20], [0u32; 8]);
        sc!(SYS_setgroups, 3, set.as_ptr()).is(0);
        sc!(SYS_getgroups, 0, 0).is(3);
        sc!(SYS_getgroups, 8, got.as_mut_ptr()).is(3);
        got[..3].sort_unstable();
        assert_eq!(got[..3], [10, 20, 30]);
        sc!(SYS_getgroups, 2, got.as_mut_ptr()).fails(EINVAL);
        sc!(SYS_setresgid, 4, 5, 6).is(0);
        sc!(SYS_getegid).is(5);
    });
}

fn capabilities() {
    let head = [0x2008_0522u32, 0];
    let mut data = [0u32; 6];
    sc!(SYS_capget, head.as_ptr(), data.as_mut_ptr()).is(0);
    assert_ne!(data[0] & 1 << 21, 0, "root has CAP_SYS_ADMIN");
    in_child(|| {
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        let mut none = [9u32; 6];
        sc!(SYS_capget, head.as_ptr(), none.as_mut_ptr()).is(0);
        assert_eq!((none[0], none[1]), (0, 0));
        sc!(SYS_capset, head.as_ptr(), data.as_ptr()).fails(EPERM);
    });
    let bad = [1u32, 0];
    sc!(SYS_capget, bad.as_ptr(), data.as_mut_ptr()).fails(EINVAL);
    sc!(SYS_prctl, PR_CAPBSET_READ, 21, 0, 0, 0).is(1);
    sc!(SYS_prctl, PR_CAPBSET_READ, 99, 0, 0, 0).fails(EINVAL);
}

fn prctl_options() {
    let mut name = [0u8; 16];
    sc!(SYS_prctl, PR_SET_NAME, c"a-name-longer-than-that".as_ptr(), 0, 0, 0).is(0);
    sc!(SYS_prctl, PR_GET_NAME, name.as_mut_ptr(), 0, 0, 0).is(0);
    assert_eq!(&name, b"a-name-longer-t\0");
    assert_eq!(text("/proc/self/comm"), "a-name-longer-t\n");
    sc!(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0).is(1);
    sc!(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0).is(0);
    sc!(SYS_prctl, PR_SET_DUMPABLE, 9, 0, 0, 0).fails(EINVAL);
    sc!(SYS_prctl, 99999, 0, 0, 0, 0).fails(EINVAL);
    let mut sig = 9i32;
    sc!(SYS_prctl, PR_GET_PDEATHSIG, &raw mut sig, 0, 0, 0).is(0);
    assert_eq!(sig, 0);
    sc!(SYS_prctl, PR_SET_PDEATHSIG, 99, 0, 0, 0).fails(EINVAL);
}

fn rlimits() {
    let mut l = [0u64; 2];
    for which in 0..16 {
        sc!(SYS_getrlimit, which, l.as_mut_ptr()).is(0);
        assert!(l[0] <= l[1], "limit {which}");
    }
    sc!(SYS_getrlimit, 16, l.as_mut_ptr()).fails(EINVAL);
    let (new, mut old) = ([100u64, 200], [0u64; 2]);
    sc!(SYS_prlimit64, 0, RLIMIT_NOFILE, new.as_ptr(), old.as_mut_ptr()).is(0);
    sc!(SYS_getrlimit, RLIMIT_NOFILE, l.as_mut_ptr()).is(0);
    assert_eq!(l, new);
    in_child(|| {
        let mut l = [0u64; 2];
        sc!(SYS_getrlimit, RLIMIT_NOFILE, l.as_mut_ptr()).is(0);
        assert_eq!(l, new);
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_setrlimit, RLIMIT_NOFILE, [100u64, 300].as_ptr()).fails(EPERM);
    });
    sc!(SYS_setrlimit, RLIMIT_NOFILE, [300u64, 200].as_ptr()).fails(EINVAL);
}

fn rlimit_fsize_signal() {
    let f = format!("{}/f", dir());
    let child = fork(|| {
        let _ = sc!(SYS_setrlimit, RLIMIT_FSIZE, [1000u64, 1000].as_ptr());
        let fd = open(&f, O_RDWR | O_CREAT).fd();
        sc!(SYS_write, fd, [0u8; 2000].as_ptr(), 2000).is(1000);
        let _ = sc!(SYS_write, fd, [0u8; 10].as_ptr(), 10);
        0
    });
    wait_signal(child, SIGXFSZ);
}

fn personality_query() {
    sc!(SYS_personality, 0xffff_ffffu32).is(0);
}

fn proc_maps() {
    let p = anon(3 * 4096) as usize;
    sc!(SYS_mprotect, p, 4096, PROT_READ).is(0);
    let maps = text("/proc/self/maps");
    let mut last = 0;
    let mut found = false;
    for line in maps.lines() {
        let range = line.split(' ').next().unwrap();
        let (a, b) = range.split_once('-').unwrap();
        let (a, b) = (usize::from_str_radix(a, 16).unwrap(), usize::from_str_radix(b, 16).unwrap());
        assert!(a < b && (a >= last || line.contains("[vsyscall]")), "{line}");
        assert_eq!(line.split(' ').nth(1).unwrap().len(), 4, "{line}");
        found |= a == p && b == p + 4096 && line.contains(" r--p 00000000 00:00 0");
        last = b;
    }
    assert!(found, "{maps}");
    for want in ["[stack]", "[vdso]", &own_path()] {
        assert!(maps.contains(want), "{want} in {maps}");
    }
    assert!(text("/proc/self/smaps").contains("Rss:"));
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find(|l| l.starts_with(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).split_once(':').unwrap().1.trim()
}

fn proc_status() {
    let s = text("/proc/self/status");
    assert_eq!(field(&s, "Pid"), pid().to_string());
    assert_eq!(field(&s, "PPid"), sc!(SYS_getppid).must().to_string());
    assert_eq!(field(&s, "Uid"), "0\t0\t0\t0");
    assert_eq!(field(&s, "Threads"), "1");
    assert!(field(&s, "State").starts_with('R'));
    assert!(field(&s, "VmRSS").ends_with(" kB"));
    sigmask(SIG_BLOCK, bit(40));
    on_signal(SIGUSR1, SIG_IGN, 0, 0);
    let s = text("/proc/self/status");
    assert_eq!(u64::from_str_radix(field(&s, "SigBlk"), 16), Ok(bit(40)));
    // Others may be ignored since before this program: exec keeps that.
    let ignored = u64::from_str_radix(field(&s, "SigIgn"), 16).unwrap();
    assert_eq!(ignored & bit(SIGUSR1), bit(SIGUSR1));
}

fn proc_stat() {
    let s = text("/proc/self/stat");
    let (head, tail) = s.rsplit_once(") ").unwrap();
    assert!(head.starts_with(&format!("{} (", pid())));
    let f: Vec<&str> = tail.split_whitespace().collect();
    assert_eq!(f.len(), 50);
    assert_eq!((f[0], f[1]), ("R", &*sc!(SYS_getppid).must().to_string()));
    assert_eq!(f[2], sc!(SYS_getpgrp).must().to_string());
    assert!(text("/proc/stat").starts_with("cpu "));
    assert!(text("/proc/stat").contains("\nbtime "));
}

fn proc_cmdline_environ() {
    let raw = std::fs::read("/proc/self/cmdline").unwrap();
    assert!(raw.ends_with(b"\0"));
    let words: Vec<String> = std::env::args().collect();
    let got: Vec<&[u8]> = raw[..raw.len() - 1].split(|b| *b == 0).collect();
    assert_eq!(got.len(), words.len());
    assert!(std::fs::read("/proc/self/environ").is_ok());
    assert!(own_path().starts_with('/') && std::fs::metadata("/proc/self/exe").is_ok());
    assert_eq!(std::fs::read_link("/proc/self/cwd").unwrap(), std::env::current_dir().unwrap());
    assert_eq!(std::fs::read_link("/proc/self/root").unwrap().as_os_str(), "/");
}

fn proc_fd() {
    let f = format!("{}/f", dir());
    let fd = open(&f, O_RDWR | O_CREAT).fd();
    let link = |n: i32| std::fs::read_link(format!("/proc/self/fd/{n}")).unwrap();
    assert_eq!(link(fd).as_os_str(), &*f);
    let (r, _w) = pipe();
    assert!(link(r).to_string_lossy().starts_with("pipe:["));
    let ev = sc!(SYS_eventfd2, 0, 0).fd();
    assert_eq!(link(ev).as_os_str(), "anon_inode:[eventfd]");
    write(fd, b"12345");
    let info = text(&format!("/proc/self/fdinfo/{fd}"));
    assert!(info.starts_with("pos:\t5\nflags:\t0"), "{info}");
    open("/proc/self/fd/9999", O_RDONLY).fails(ENOENT);
    let names = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(names >= 5);
}

fn proc_of_others() {
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let stat = || text(&format!("/proc/{child}/stat"));
    until(|| stat().contains(") S "));
    sc!(SYS_kill, child, SIGSTOP).is(0);
    until(|| stat().contains(") T "));
    sc!(SYS_kill, child, SIGKILL).is(0);
    until(|| stat().contains(") Z "));
    assert_eq!(text(&format!("/proc/{child}/cmdline")), "");
    wait_signal(child, SIGKILL);
    open(&format!("/proc/{child}"), O_RDONLY).fails(ENOENT);
}

fn proc_files() {
    let cpus = text("/proc/cpuinfo").lines().filter(|l| l.starts_with("processor")).count();
    assert!(cpus >= cpus_online());
    let mem = text("/proc/meminfo");
    let kb = |n: &str| field(&mem, n).trim_end_matches(" kB").trim().parse::<u64>().unwrap();
    assert!(kb("MemTotal") >= kb("MemFree") && kb("MemAvailable") > 0);
    let up: f64 = text("/proc/uptime").split(' ').next().unwrap().parse().unwrap();
    assert!(up > 0.0);
    assert_eq!(text("/proc/loadavg").split_whitespace().count(), 5);
    assert!(text("/proc/filesystems").contains("\ttmpfs\n"));
    assert!(text("/proc/version").starts_with("Linux version "));
    for f in ["kernel/pid_max", "vm/overcommit_memory", "kernel/ostype", "kernel/hostname"] {
        assert!(!text(&format!("/proc/sys/{f}")).is_empty(), "{f}");
    }
    assert_eq!(text("/proc/sys/kernel/ostype"), "Linux\n");
}

fn cpus_online() -> usize {
    // SAFETY: the call takes a number and no pointer.
    unsafe { sysconf(_SC_NPROCESSORS_ONLN) as usize }
}

fn proc_self_is_own() {
    assert_eq!(std::fs::read_link("/proc/self").unwrap().as_os_str(), &*pid().to_string());
    in_child(|| {
        assert_eq!(std::fs::read_link("/proc/self").unwrap().as_os_str(), &*pid().to_string());
    });
    let t = std::fs::read_link("/proc/thread-self").unwrap();
    assert_eq!(t.as_os_str(), &*format!("{}/task/{}", pid(), tid()));
}

fn proc_lists_processes() {
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let names: Vec<String> = std::fs::read_dir("/proc")
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for want in [child.to_string(), pid().to_string(), "1".into(), "self".into(), "stat".into()] {
        assert!(names.contains(&want), "{want}");
    }
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn proc_mounts() {
    let m = text("/proc/mounts");
    for (place, kind) in [("/proc", "proc"), ("/dev/shm", "tmpfs")] {
        let has = m.lines().any(|l| {
            let f: Vec<&str> = l.split(' ').collect();
            f.len() == 6 && f[1] == place && f[2] == kind
        });
        assert!(has, "{place} in {m}");
    }
    assert!(text("/proc/self/mountinfo").lines().all(|l| l.contains(" - ")));
}

fn proc_task() {
    let h = std::thread::spawn(|| {
        let names = std::fs::read_dir("/proc/self/task").unwrap().count();
        (tid(), names)
    });
    let (t, n) = h.join().unwrap();
    assert!(t != pid() && n == 2, "{n} tasks");
    until(|| std::fs::read_dir("/proc/self/task").unwrap().count() == 1);
}

fn sys_cpu() {
    for f in ["online", "possible", "present"] {
        let s = text(&format!("/sys/devices/system/cpu/{f}"));
        assert!(s.starts_with('0') && s.ends_with('\n'), "{f}: {s}");
    }
}

fn getrandom_forms() {
    let mut a = [0u8; 64];
    let mut b = [0u8; 64];
    sc!(SYS_getrandom, a.as_mut_ptr(), 64, 0).is(64);
    sc!(SYS_getrandom, b.as_mut_ptr(), 64, GRND_NONBLOCK).is(64);
    assert_ne!(a, b);
    sc!(SYS_getrandom, a.as_mut_ptr(), 64, 0x80).fails(EINVAL);
    sc!(SYS_getrandom, a.as_mut_ptr(), 0, 0).is(0);
    let mut big = vec![0u8; 1 << 20];
    let mut got = 0;
    while got < big.len() {
        got += sc!(SYS_getrandom, big[got..].as_mut_ptr(), big.len() - got, 0).must();
    }
    let ones: u32 = big.iter().map(|b| b.count_ones()).sum();
    assert!((4_150_000..4_240_000).contains(&ones), "{ones} of 8 Mi bits");
}

fn uname_fields() {
    let mut u = [0u8; 390];
    sc!(SYS_uname, u.as_mut_ptr()).is(0);
    let s = |i: usize| String::from_utf8_lossy(u[i * 65..].split(|b| *b == 0).next().unwrap());
    assert_eq!((&*s(0), &*s(4)), ("Linux", "x86_64"));
    let major: u32 = s(2).split('.').next().unwrap().parse().unwrap();
    assert!(major >= 5, "release {}", s(2));
}

fn sysinfo_fields() {
    let mut i = [0u64; 14];
    sc!(SYS_sysinfo, i.as_mut_ptr()).is(0);
    assert!(i[4] > i[5] && i[5] > 0, "totalram, freeram");
    assert_eq!(i[13] as u32, 1, "mem_unit");
}

fn obsolete_calls() {
    for nr in [SYS__sysctl, 174, 177, SYS_nfsservctl, SYS_vserver] {
        sc!(nr, 0, 0, 0, 0, 0).fails(ENOSYS);
    }
    sc!(SYS_set_thread_area, 0).fails(ENOSYS);
}

fn no_new_privs() {
    in_child(|| {
        sc!(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0).is(0);
        sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
        sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0).fails(EINVAL);
        in_child(|| sc!(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0).is(1));
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        assert!(status.contains("\nNoNewPrivs:\t1\n"), "{status}");
    });
    // It belongs to the thread, and to those it makes.
    in_child(|| {
        let made = std::thread::spawn(|| {
            sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
            let get = || sc!(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0).is(1);
            std::thread::spawn(get).join().expect("a thread");
        });
        made.join().expect("a thread");
        sc!(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0).is(0);
    });
}

fn umask_and_proc_limits() {
    sc!(SYS_umask, 0o077).must();
    assert_eq!(field(&text("/proc/self/status"), "Umask"), "0077");
    let l = text("/proc/self/limits");
    assert!(l.starts_with("Limit ") && l.contains("Max open files"));
}

/// /dev/kmsg gives a line a read, with rising numbers; what is written there is in it, and
/// syslog(2) has it, too.
fn kernel_log() {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::OpenOptionsExt as _;
    const WRITTEN: &str = "limen-guest-tests: a line of our own";
    let open = || std::fs::File::options().read(true).custom_flags(O_NONBLOCK).open("/dev/kmsg");
    let mut writer = std::fs::File::options().write(true).open("/dev/kmsg").expect("kmsg");
    writer.write_all(format!("<6>{WRITTEN}\n").as_bytes()).expect("a line");
    let mut log = open().expect("kmsg");
    let (mut line, mut last, mut found) = ([0; 8192], None, false);
    loop {
        let len = match log.read(&mut line) {
            Ok(len) => len,
            Err(error) if error.raw_os_error() == Some(EPIPE) => continue,
            Err(error) => break assert_eq!(error.raw_os_error(), Some(EAGAIN)),
        };
        let text = String::from_utf8_lossy(&line[..len]).into_owned();
        let (head, body) = text.split_once(';').expect("a head");
        let fields: Vec<&str> = head.split(',').collect();
        let number: u64 = fields[1].parse().expect("a number");
        assert!(fields.len() >= 4 && fields[0].parse::<u32>().is_ok(), "{head}");
        assert!(fields[2].parse::<u64>().is_ok() && body.ends_with('\n'), "{text}");
        assert!(last.is_none_or(|last| number > last), "{last:?} before {number}");
        last = Some(number);
        found |= body.contains(WRITTEN);
    }
    assert!(found && last.is_some(), "the line that was written is not there");
    // From the start again, too small a place for a line, and from the end.
    let fd = std::os::fd::AsRawFd::as_raw_fd(&log);
    sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
    sc!(SYS_read, fd, line.as_mut_ptr(), 3).fails(EINVAL);
    sc!(SYS_lseek, fd, 0, SEEK_END).is(0);
    sc!(SYS_read, fd, line.as_mut_ptr(), 8192).fails(EAGAIN);
    let size = sc!(SYS_syslog, 10, 0, 0).must();
    let mut all = vec![0u8; size as usize];
    let len = sc!(SYS_syslog, 3, all.as_mut_ptr(), size).must();
    let text = String::from_utf8_lossy(&all[..len as usize]).into_owned();
    let own = text.lines().find(|line| line.contains(WRITTEN)).expect("in syslog(2), too");
    // Whatever the facility: Linux notes that a program has written it.
    assert!(own.starts_with('<') && own.contains(">["), "{own}");
}
