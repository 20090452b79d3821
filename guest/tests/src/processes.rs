//! Processes: fork, vfork, clone, clone3, wait, exit, orphans, sessions and groups.
//!
//! Everything here is about who is whose child and what is shared or copied. exec has a file of
//! its own (exec.rs). Manual pages: fork(2), clone(2), wait(2), credentials(7).

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::Ordering::SeqCst;

tests!("processes":
    fork_copies_memory, fork_gives_pids, fork_shares_file_offset, fork_clears_pending_signals,
    vfork_suspends_parent, clone_vm_shares_memory, clone_files_shares_descriptors,
    clone_without_files_copies_descriptors, clone_fs_shares_cwd, clone_settid_words,
    clone_refuses_odd_flags, clone_exit_signal, clone3_pidfd, clone3_chosen_id, clone3_sizes,
    clone_parent, wait_without_children, wait_nohang, wait_options_are_checked,
    wait_stop_and_continue, waitid_fields, waitid_nowait_leaves_zombie, wait_by_group,
    wait_any_collects_all,
    wait_gives_rusage, exit_status_is_eight_bits, exit_group_from_thread,
    leader_exits_before_thread, killed_child_status, zombie_until_reaped, ignored_sigchld_reaps,
    orphan_goes_to_subreaper, orphan_chain, orphan_sends_sigchld, exec_restores_sigchld, pdeathsig,
    sessions, setpgid_rules, kill_group,
    kill_rules, deep_family, tgkill_checks, pidfd_open_polls, pidfd_of_a_thread,
    pidfd_of_a_thread_at_its_start, for_the_superuser_only, process_folder_as_pidfd,
    orphaned_stopped_group_gets_hup,
);

fn fork_copies_memory() {
    let p = anon(3 * 4096);
    // SAFETY: p is this test's own mapping, in both processes.
    unsafe {
        *p = 1;
        let child = fork(|| {
            assert_eq!(*p, 1);
            *p = 2;
            *p.add(4096) = 9;
            i32::from(*p) + 5
        });
        wait_code(child, 7);
        assert_eq!((*p, *p.add(4096)), (1, 0));
    }
}

fn fork_gives_pids() {
    let w = new_shared();
    let me = pid();
    let child = fork(|| {
        w[0].store(pid() as u32, SeqCst);
        w[1].store(sc!(SYS_getppid).must() as u32, SeqCst);
        w[2].store(tid() as u32, SeqCst);
        0
    });
    wait_code(child, 0);
    assert_eq!(w[0].load(SeqCst), child as u32);
    assert_eq!(w[1].load(SeqCst), me as u32);
    assert_eq!(w[2].load(SeqCst), child as u32);
}

fn fork_shares_file_offset() {
    let d = dir();
    let fd = open(&format!("{d}/f"), O_RDWR | O_CREAT).fd();
    write(fd, b"0123456789");
    sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
    in_child(|| assert_eq!(read(fd, 4), b"0123"));
    assert_eq!(read(fd, 4), b"4567");
}

fn fork_clears_pending_signals() {
    sigmask(SIG_BLOCK, bit(SIGUSR1));
    sc!(SYS_kill, pid(), SIGUSR1).is(0);
    in_child(|| {
        let mut pending = !0u64;
        sc!(SYS_rt_sigpending, &raw mut pending, 8).is(0);
        assert_eq!(pending, 0);
        assert_eq!(sigmask(SIG_BLOCK, 0), bit(SIGUSR1), "the mask is inherited");
    });
    let mut pending = 0u64;
    sc!(SYS_rt_sigpending, &raw mut pending, 8).is(0);
    assert_eq!(pending, bit(SIGUSR1));
}

fn vfork_suspends_parent() {
    let w = new_shared();
    let ret: isize;
    // SAFETY: the child touches no stack: it naps, stores one word and exits inside the asm.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov r12d, 200",
            "3: mov eax, 24", // sched_yield, so that a parent that runs would be seen
            "syscall",
            "dec r12d",
            "jnz 3b",
            "mov dword ptr [r13], 77",
            "mov edi, 5",
            "mov eax, 60",
            "syscall",
            "ud2",
            "2:",
            inlateout("rax") SYS_vfork as isize => ret,
            in("r13") w.as_ptr(),
            out("r12") _, lateout("rcx") _, lateout("r11") _, out("rdi") _,
        );
    }
    assert!(ret > 0, "vfork gave {ret}");
    assert_eq!(w[0].load(SeqCst), 77, "the parent ran before the child was done");
    wait_code(ret as i32, 5);
}

/// clone(2) with a stack of its own; the child runs `f(arg)`.
pub fn clone_fn(flags: i32, f: extern "C" fn(*mut c_void) -> c_int, arg: usize) -> i32 {
    let stack = anon(64 * 1024);
    // SAFETY: a fresh stack; tests that share memory wait for the child.
    unsafe { libc::clone(f, stack.add(64 * 1024).cast(), flags, arg as *mut c_void) }
}

extern "C" fn store_7(arg: *mut c_void) -> c_int {
    // SAFETY: the test passes a valid word.
    unsafe { *arg.cast::<u32>() = 7 };
    3
}

extern "C" fn close_fd(arg: *mut c_void) -> c_int {
    i32::from(sc!(SYS_close, arg as usize).is_err())
}

extern "C" fn go_root(_: *mut c_void) -> c_int {
    i32::from(sc!(SYS_chdir, c"/".as_ptr()).is_err())
}

fn clone_vm_shares_memory() {
    let mut word = 0u32;
    let child = clone_fn(CLONE_VM | SIGCHLD, store_7, &raw mut word as usize);
    wait_code(child, 3);
    // SAFETY: own variable, written by the child.
    assert_eq!(unsafe { (&raw const word).read_volatile() }, 7);
    let mut other = 0u32;
    let child = clone_fn(SIGCHLD, store_7, &raw mut other as usize);
    wait_code(child, 3);
    // SAFETY: as for the block above, whose objects live on.
    assert_eq!(unsafe { (&raw const other).read_volatile() }, 0);
}

fn clone_files_shares_descriptors() {
    let (r, _w) = pipe();
    wait_code(clone_fn(CLONE_FILES | SIGCHLD, close_fd, r as usize), 0);
    sc!(SYS_close, r).fails(EBADF);
}

fn clone_without_files_copies_descriptors() {
    let (r, _w) = pipe();
    wait_code(clone_fn(SIGCHLD, close_fd, r as usize), 0);
    close(r);
}

fn clone_fs_shares_cwd() {
    let d = c(&dir());
    sc!(SYS_chdir, d.as_ptr()).is(0);
    wait_code(clone_fn(SIGCHLD, go_root, 0), 0);
    assert_eq!(std::env::current_dir().unwrap().as_os_str(), d.to_str().unwrap());
    wait_code(clone_fn(CLONE_FS | SIGCHLD, go_root, 0), 0);
    assert_eq!(std::env::current_dir().unwrap().as_os_str(), "/");
}

fn clone_settid_words() {
    let w = new_shared();
    let flags = CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
    let (pw, cw) = (w[0].as_ptr(), w[1].as_ptr());
    w[1].store(99, SeqCst);
    let ret = sc!(SYS_clone, flags, 0, pw, cw, 0).must();
    if ret == 0 {
        // The child: its word holds its own id already.
        quit(i32::from(w[1].load(SeqCst) != tid() as u32));
    }
    assert_eq!(w[0].load(SeqCst), ret as u32, "CLONE_PARENT_SETTID is done before clone returns");
    wait_code(ret as i32, 0);
}

fn clone_refuses_odd_flags() {
    sc!(SYS_clone, CLONE_SIGHAND | SIGCHLD, 0, 0, 0, 0).fails(EINVAL);
    sc!(SYS_clone, CLONE_THREAD | CLONE_VM, 0, 0, 0, 0).fails(EINVAL);
    sc!(SYS_clone, CLONE_FS | CLONE_NEWNS, 0, 0, 0, 0).fails(EINVAL);
}

fn clone_exit_signal() {
    // A child whose exit signal is not SIGCHLD is only seen with __WCLONE or __WALL.
    let child = clone_fn(0, go_root, 0);
    let mut status = 0;
    sc!(SYS_wait4, child, &raw mut status, 0, 0).fails(ECHILD);
    sc!(SYS_wait4, child, &raw mut status, __WALL, 0).is(child as usize);
    let child = clone_fn(SIGCHLD, go_root, 0);
    sc!(SYS_wait4, child, &raw mut status, __WCLONE, 0).fails(ECHILD);
    wait_code(child, 0);
}

fn clone3_pidfd() {
    let mut fd = -1i32;
    let mut args = [0u64; 11];
    args[0] = CLONE_PIDFD as u64;
    args[1] = &raw mut fd as u64;
    args[4] = SIGCHLD as u64;
    let child = sc!(SYS_clone3, args.as_ptr(), 64).must();
    if child == 0 {
        loop {
            let _ = sc!(SYS_pause);
        }
    }
    // SAFETY: written by the kernel.
    let fd = unsafe { (&raw const fd).read_volatile() };
    assert!(fd >= 3);
    // Where the descriptor does not wait, "nobody has ended yet" is an error, but for who asks.
    sc!(SYS_fcntl, fd, F_SETFL, O_NONBLOCK).is(0);
    sc!(SYS_waitid, P_PIDFD, fd, 0, WEXITED, 0).fails(EAGAIN);
    sc!(SYS_waitid, P_PIDFD, fd, 0, WEXITED | WNOHANG, 0).is(0);
    sc!(SYS_fcntl, fd, F_SETFL, 0).is(0);
    sc!(SYS_pidfd_send_signal, fd, SIGTERM, 0, 0).is(0);
    let mut info = Siginfo::default();
    sc!(SYS_waitid, P_PIDFD, fd, &raw mut info, WEXITED, 0).is(0);
    assert_eq!((info.signo, info.code, info.pid), (SIGCHLD, CLD_KILLED, child as i32));
    assert_eq!(info.status, SIGTERM);
}

/// The caller chooses the child's id (clone(2), set_tid).
fn clone3_chosen_id() {
    let with = |ids: &[i32], size: usize| {
        let mut args = [0u64; 11];
        args[4] = SIGCHLD as u64;
        args[8] = if ids.is_empty() { 0 } else { ids.as_ptr() as u64 };
        args[9] = size as u64;
        let child = sc!(SYS_clone3, args.as_ptr(), 88);
        if child == Ok(0) {
            let _ = sc!(SYS_exit_group, pid() % 100);
        }
        child
    };
    let free = fork(|| 0);
    wait_code(free, 0);
    with(&[], 1).fails(EINVAL);
    with(&[free], 0).fails(EINVAL);
    with(&[free; 33], 33).fails(EINVAL);
    with(&[0], 1).fails(EINVAL);
    with(&[-1], 1).fails(EINVAL);
    with(&[4_194_304], 1).fails(EINVAL);
    if sc!(SYS_geteuid) != Ok(0) {
        return with(&[free], 1).fails(EPERM);
    }
    with(&[pid()], 1).fails(EEXIST);
    for _ in 0..3 {
        with(&[free], 1).is(free as usize);
        with(&[free], 1).fails(EEXIST);
        wait_code(free, free % 100);
    }
    in_child(|| {
        sc!(SYS_setuid, 1234).is(0);
        with(&[free], 1).fails(EPERM);
        with(&[-1], 1).fails(EINVAL);
    });
}

fn clone3_sizes() {
    let args = [0u64; 600];
    sc!(SYS_clone3, args.as_ptr(), 8).fails(EINVAL);
    sc!(SYS_clone3, args.as_ptr(), 8192).fails(E2BIG);
    let mut tail = [0u64; 16];
    tail[15] = 1;
    sc!(SYS_clone3, tail.as_ptr(), 128).fails(E2BIG);
    tail[15] = 0;
    tail[0] = CLONE_DETACHED as u64;
    sc!(SYS_clone3, tail.as_ptr(), 64).fails(EINVAL);
    sc!(SYS_clone3, 0, 64).fails(EFAULT);
}

fn clone_parent() {
    let w = new_shared();
    let me = pid();
    let child = fork(|| {
        let ret = sc!(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0).must();
        if ret == 0 {
            quit(i32::from(sc!(SYS_getppid).must() as i32 != me) + 40);
        }
        w[0].store(ret as u32, SeqCst);
        0
    });
    wait_code(child, 0);
    wait_code(w[0].load(SeqCst) as i32, 40);
}

fn wait_without_children() {
    sc!(SYS_wait4, -1i32, 0, 0, 0).fails(ECHILD);
    sc!(SYS_wait4, 1, 0, WNOHANG, 0).fails(ECHILD);
    sc!(SYS_waitid, P_ALL, 0, 0, WEXITED | WNOHANG, 0).fails(ECHILD);
}

fn wait_nohang() {
    let (r, w) = pipe();
    let child = fork(|| {
        close(w);
        read(r, 1);
        4
    });
    sc!(SYS_wait4, child, 0, WNOHANG, 0).is(0);
    let mut info = Siginfo { pid: 7, ..Siginfo::default() };
    sc!(SYS_waitid, P_PID, child, &raw mut info, WEXITED | WNOHANG, 0).is(0);
    assert_eq!((info.signo, info.pid), (0, 0), "nothing waitable: si_signo and si_pid are zero");
    close(w);
    wait_code(child, 4);
}

fn wait_options_are_checked() {
    sc!(SYS_wait4, -1i32, 0, 0x100, 0).fails(EINVAL);
    sc!(SYS_waitid, P_ALL, 0, 0, WNOHANG, 0).fails(EINVAL);
    sc!(SYS_waitid, 77, 0, 0, WEXITED, 0).fails(EINVAL);
    sc!(SYS_waitid, P_PID, 0, 0, WEXITED, 0).fails(EINVAL);
    sc!(SYS_wait4, i32::MIN, 0, 0, 0).fails(ESRCH);
}

fn wait_stop_and_continue() {
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let mut s = 0;
    sc!(SYS_kill, child, SIGSTOP).is(0);
    sc!(SYS_wait4, child, &raw mut s, WUNTRACED, 0).is(child as usize);
    assert!(WIFSTOPPED(s) && WSTOPSIG(s) == SIGSTOP, "{s:#x}");
    sc!(SYS_wait4, child, &raw mut s, WUNTRACED | WNOHANG, 0).is(0);
    sc!(SYS_kill, child, SIGCONT).is(0);
    sc!(SYS_wait4, child, &raw mut s, WCONTINUED, 0).is(child as usize);
    assert!(WIFCONTINUED(s), "{s:#x}");
    sc!(SYS_kill, child, SIGTSTP).is(0);
    let mut info = Siginfo::default();
    sc!(SYS_waitid, P_PID, child, &raw mut info, WSTOPPED, 0).is(0);
    assert_eq!((info.code, info.status), (CLD_STOPPED, SIGTSTP));
    // SIGKILL ends a stopped process without SIGCONT.
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn waitid_fields() {
    let child = fork(|| 300);
    let mut info = Siginfo::default();
    let mut ru = [0u64; 18];
    sc!(SYS_waitid, P_PID, child, &raw mut info, WEXITED, ru.as_mut_ptr()).is(0);
    assert_eq!((info.signo, info.code, info.pid), (SIGCHLD, CLD_EXITED, child));
    assert_eq!(info.status, 300 & 0xff);
    assert_eq!(info.uid as usize, sc!(SYS_getuid).must());
}

fn waitid_nowait_leaves_zombie() {
    let child = fork(|| 6);
    let mut info = Siginfo::default();
    for _ in 0..2 {
        sc!(SYS_waitid, P_PID, child, &raw mut info, WEXITED | WNOWAIT, 0).is(0);
        assert_eq!(info.status, 6);
    }
    wait_code(child, 6);
    sc!(SYS_waitid, P_PID, child, &raw mut info, WEXITED, 0).fails(ECHILD);
}

fn wait_by_group() {
    let a = fork(|| {
        let _ = sc!(SYS_setpgid, 0, 0);
        1
    });
    let _ = sc!(SYS_setpgid, a, a);
    let b = fork(|| 2);
    let mut s = 0;
    sc!(SYS_wait4, -a, &raw mut s, 0, 0).is(a as usize);
    assert_eq!(WEXITSTATUS(s), 1);
    sc!(SYS_wait4, 0, &raw mut s, 0, 0).is(b as usize);
    assert_eq!(WEXITSTATUS(s), 2);
}

fn wait_any_collects_all() {
    let mut children: Vec<i32> = (0..200).map(|i| fork(|| i & 0x7f)).collect();
    let mut sum = 0;
    while !children.is_empty() {
        let mut s = 0;
        let got = sc!(SYS_wait4, -1i32, &raw mut s, 0, 0).must() as i32;
        let at = children.iter().position(|&c| c == got).expect("one of mine");
        children.swap_remove(at);
        sum += WEXITSTATUS(s);
    }
    assert_eq!(sum, (0..200).map(|i| i & 0x7f).sum::<i32>());
    sc!(SYS_wait4, -1i32, 0, 0, 0).fails(ECHILD);
}

fn wait_gives_rusage() {
    let child = fork(|| {
        let p = anon(64 * 4096);
        for i in 0..64 {
            // SAFETY: the mapping is this test's own and lives on.
            unsafe { p.add(i * 4096).write_volatile(1) };
        }
        0
    });
    let mut ru = [!0u64; 18];
    sc!(SYS_wait4, child, 0, 0, ru.as_mut_ptr()).is(child as usize);
    assert!(ru[8] >= 64, "ru_minflt {}", ru[8]);
    assert!(ru[0] < 3600 && ru[1] < 1_000_000, "ru_utime {} {}", ru[0], ru[1]);
}

fn exit_status_is_eight_bits() {
    wait_code(fork(|| 0x1ff), 0xff);
    wait_code(fork(|| -1), 0xff);
    wait_code(fork(|| 0x700), 0);
}

fn exit_group_from_thread() {
    let child = fork(|| {
        for _ in 0..3 {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        std::thread::spawn(|| quit(21));
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    wait_code(child, 21);
}

fn leader_exits_before_thread() {
    let w = new_shared();
    let child = fork(|| {
        std::thread::spawn(|| {
            until_at_least(&w[0], 1);
            let _ = sc!(SYS_exit, 9);
        });
        let _ = sc!(SYS_exit, 4);
        0
    });
    // While a thread lives, the process is not waitable, whatever its first thread did.
    for _ in 0..20 {
        sc!(SYS_wait4, child, 0, WNOHANG, 0).is(0);
        nap(1);
    }
    w[0].store(1, SeqCst);
    // Since Linux 5.18 the last thread to go decides the status.
    wait_code(child, 9);
}

fn killed_child_status() {
    for sig in [SIGKILL, SIGTERM, SIGUSR1, SIGALRM, SIGPIPE, SIGRTMIN() + 3, 64] {
        let child = fork(|| {
            let _ = sc!(SYS_kill, pid(), sig);
            0
        });
        wait_signal(child, sig);
    }
}

fn zombie_until_reaped() {
    let child = fork(|| 0);
    let mut info = Siginfo::default();
    sc!(SYS_waitid, P_PID, child, &raw mut info, WEXITED | WNOWAIT, 0).is(0);
    sc!(SYS_kill, child, 0).is(0);
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_code(child, 0);
    sc!(SYS_kill, child, 0).fails(ESRCH);
}

fn ignored_sigchld_reaps() {
    on_signal(SIGCHLD, SIG_IGN, 0, 0);
    let child = fork(|| 0);
    // wait blocks until all are gone, then says that there is none.
    sc!(SYS_wait4, child, 0, 0, 0).fails(ECHILD);
    on_signal(SIGCHLD, SIG_DFL, SA_NOCLDWAIT, 0);
    let child = fork(|| 0);
    sc!(SYS_wait4, child, 0, 0, 0).fails(ECHILD);
}

fn orphan_goes_to_subreaper() {
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    let w = new_shared();
    let me = pid();
    let child = fork(|| {
        let parent = pid();
        let grandchild = fork(move || {
            until(|| sc!(SYS_getppid) != Ok(parent as usize));
            let new = sc!(SYS_getppid).must() as i32;
            if new == me { 11 } else { 12 }
        });
        w[0].store(grandchild as u32, SeqCst);
        0
    });
    wait_code(child, 0);
    wait_code(w[0].load(SeqCst) as i32, 11);
}

fn orphan_chain() {
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    // Ten generations, each parent gone at once; all ten are collected here.
    fn generation(left: u32) -> i32 {
        if left > 0 {
            fork(|| generation(left - 1));
        }
        0
    }
    fork(|| generation(9));
    for _ in 0..10 {
        sc!(SYS_wait4, -1i32, 0, 0, 0).must();
    }
    sc!(SYS_wait4, -1i32, 0, 0, 0).fails(ECHILD);
}

fn orphan_sends_sigchld() {
    // The signal that a child's maker asked for is for the maker, not for who adopts it.
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    on_signal(SIGUSR1, SIG_DFL, 0, 0);
    let (r, w) = pipe();
    let child = fork(|| {
        if sc!(SYS_clone, SIGUSR1, 0, 0, 0, 0) == Ok(0) {
            close(w);
            read(r, 1);
        }
        0
    });
    wait_code(child, 0);
    close(w);
    // SIGUSR1 would end this test. An orphan is waited for like any child, without __WCLONE.
    sc!(SYS_wait4, -1i32, 0, 0, 0).must();
}

fn exec_restores_sigchld() {
    on_signal(SIGUSR1, SIG_DFL, 0, 0);
    let me = c(&own_path());
    let words = [c("x"), c("child"), c("true")];
    let argv: Vec<_> = words.iter().map(|w| w.as_ptr()).chain([std::ptr::null()]).collect();
    let child = match sc!(SYS_clone, SIGUSR1, 0, 0, 0, 0).must() {
        0 => quit(sc!(SYS_execve, me.as_ptr(), argv.as_ptr(), 0).err().unwrap_or(1)),
        child => child as i32,
    };
    sc!(SYS_wait4, child, 0, __WALL, 0).is(child as usize);
}

fn pdeathsig() {
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    let w = new_shared();
    let child = fork(|| {
        let grandchild = fork(|| {
            let _ = sc!(SYS_prctl, PR_SET_PDEATHSIG, SIGUSR2, 0, 0, 0);
            w[1].store(1, SeqCst);
            loop {
                let _ = sc!(SYS_pause);
            }
        });
        w[0].store(grandchild as u32, SeqCst);
        until_at_least(&w[1], 1);
        0
    });
    wait_code(child, 0);
    wait_signal(w[0].load(SeqCst) as i32, SIGUSR2);
}

fn sessions() {
    in_child(|| {
        // The runner made the test a group leader; a forked child is not one.
        let me = pid();
        assert_ne!(sc!(SYS_getpgrp).must() as i32, me);
        sc!(SYS_setsid).is(me as usize);
        sc!(SYS_getsid, 0).is(me as usize);
        sc!(SYS_getpgid, 0).is(me as usize);
        sc!(SYS_setsid).fails(EPERM);
        sc!(SYS_setpgid, 0, 0).fails(EPERM);
        in_child(|| {
            sc!(SYS_getsid, 0).is(me as usize);
        });
        // A session leader that has no terminal: opening /dev/tty says so.
        open("/dev/tty", O_RDWR).fails(ENXIO);
    });
    sc!(SYS_getsid, 0x3fff_ffff).fails(ESRCH);
}

fn setpgid_rules() {
    let (r, w) = pipe();
    let child = fork(|| {
        close(w);
        read(r, 1);
        0
    });
    sc!(SYS_setpgid, child, child).is(0);
    sc!(SYS_getpgid, child).is(child as usize);
    sc!(SYS_setpgid, child, 0x3fff_ffff).fails(EPERM);
    sc!(SYS_setpgid, child, -1i32).fails(EINVAL);
    sc!(SYS_setpgid, 0x3fff_ffff, 0).fails(ESRCH);
    let me = sc!(SYS_getpgrp).must();
    sc!(SYS_setpgid, child, me).is(0);
    sc!(SYS_getpgid, child).is(me);
    close(w);
    wait_code(child, 0);
}

fn kill_group() {
    let leader = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    sc!(SYS_setpgid, leader, leader).is(0);
    let mut group = vec![leader];
    for _ in 0..5 {
        let p = fork(|| {
            loop {
                let _ = sc!(SYS_pause);
            }
        });
        sc!(SYS_setpgid, p, leader).is(0);
        group.push(p);
    }
    sc!(SYS_kill, -leader, SIGTERM).is(0);
    for p in group {
        wait_signal(p, SIGTERM);
    }
    sc!(SYS_kill, -leader, 0).fails(ESRCH);
}

fn kill_rules() {
    sc!(SYS_kill, pid(), 65).fails(EINVAL);
    sc!(SYS_kill, pid(), -1i32).fails(EINVAL);
    sc!(SYS_kill, 0x3fff_ffff, SIGTERM).fails(ESRCH);
    sc!(SYS_kill, pid(), 0).is(0);
}

fn deep_family() {
    fn down(left: i32) -> i32 {
        if left == 0 {
            return 0;
        }
        let child = fork(|| down(left - 1));
        let s = wait(child);
        if WIFEXITED(s) { WEXITSTATUS(s) + 1 } else { 200 }
    }
    assert_eq!(down(60), 60);
}

fn tgkill_checks() {
    sc!(SYS_tgkill, pid(), tid(), 0).is(0);
    sc!(SYS_tgkill, 0, tid(), 0).fails(EINVAL);
    sc!(SYS_tgkill, pid(), -1i32, 0).fails(EINVAL);
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    sc!(SYS_tgkill, pid(), child, 0).fails(ESRCH);
    sc!(SYS_tkill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn pidfd_open_polls() {
    let (r, w) = pipe();
    let child = fork(|| {
        close(w);
        read(r, 1);
        0
    });
    let fd = sc!(SYS_pidfd_open, child, 0).fd();
    let mut p = pollfd { fd, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, 0).is(0);
    close(w);
    sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
    assert_eq!(p.revents & POLLIN, POLLIN);
    wait_code(child, 0);
    sc!(SYS_pidfd_send_signal, fd, 0, 0, 0).fails(ESRCH);
    sc!(SYS_pidfd_open, 0x3fff_ffff, 0).fails(ESRCH);
    sc!(SYS_pidfd_open, child, 0x40).fails(EINVAL);
}

/// PIDFD_THREAD (pidfd_open(2)): a descriptor of one thread.
fn pidfd_of_a_thread() {
    const PIDFD_THREAD: i32 = O_EXCL;
    let (r, w) = pipe();
    let (told, tell) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        told.send(tid()).unwrap();
        read(r, 1);
    });
    let id = tell.recv().unwrap();
    // It is no process.
    let refused = sc!(SYS_pidfd_open, id, 0);
    assert!(matches!(refused, Err(EINVAL | ENOENT)), "{refused:?}");
    let fd = sc!(SYS_pidfd_open, id, PIDFD_THREAD).fd();
    sc!(SYS_fcntl, fd, F_GETFL).is((O_RDWR | PIDFD_THREAD) as usize);
    sc!(SYS_fcntl, fd, F_GETFD).is(FD_CLOEXEC as usize);
    let poll = |fd: i32| {
        let mut entry = pollfd { fd, events: POLLIN, revents: 0 };
        sc!(SYS_poll, &raw mut entry, 1, 0).must();
        entry.revents
    };
    assert_eq!(poll(fd), 0);
    sc!(SYS_pidfd_send_signal, fd, 0, 0, 0).is(0);
    write(w, b"x");
    thread.join().unwrap();
    until(|| poll(fd) != 0);
    assert_eq!(poll(fd), POLLIN | POLLHUP);
    sc!(SYS_pidfd_send_signal, fd, 0, 0, 0).fails(ESRCH);
    sc!(SYS_pidfd_open, id, PIDFD_THREAD).fails(ESRCH);
    // The first thread, and a signal for it alone.
    let first = sc!(SYS_pidfd_open, pid(), PIDFD_THREAD).fd();
    let set = bit(SIGUSR1);
    sc!(SYS_rt_sigprocmask, SIG_BLOCK, &raw const set, 0, 8).is(0);
    sc!(SYS_pidfd_send_signal, first, SIGUSR1, 0, 0).is(0);
    let mut pending = 0u64;
    sc!(SYS_rt_sigpending, &raw mut pending, 8).is(0);
    assert_eq!(pending & set, set);
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(own.contains("SigPnd:\t0000000000000200"), "{own}");
    // Of a child that was waited for.
    let child = fork(|| 0);
    let of_child = sc!(SYS_pidfd_open, child, 0).fd();
    until(|| poll(of_child) != 0);
    assert_eq!(poll(of_child), POLLIN);
    wait_code(child, 0);
    assert_eq!(poll(of_child), POLLIN | POLLHUP);
}

/// CLONE_PIDFD with CLONE_THREAD: a descriptor of the new thread.
fn pidfd_of_a_thread_at_its_start() {
    extern "C" fn end() {
        let _ = sc!(SYS_exit, 0);
    }
    let mut fd = -1i32;
    let stack = anon(65536) as u64 + 65536 - 56;
    // SAFETY: the memory was mapped just now and is the test's own.
    unsafe { (stack as *mut u64).write(end as *const () as u64) };
    let flags = THREAD_FLAGS | CLONE_PIDFD;
    let ret: i64;
    // SAFETY: the new thread has its own stack and calls only `end`, which does not return.
    unsafe {
        std::arch::asm!("syscall", "test rax, rax", "jnz 2f", "pop rax", "call rax", "ud2", "2:",
             inlateout("rax") SYS_clone => ret, in("rdi") flags, in("rsi") stack,
             in("rdx") &raw mut fd, in("r10") 0, in("r8") 0, lateout("rcx") _, lateout("r11") _);
    }
    assert!(ret > 0, "clone: {ret}");
    sc!(SYS_fcntl, fd, F_GETFL).is((O_RDWR | O_EXCL) as usize);
    let mut entry = pollfd { fd, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut entry, 1, -1i32).is(1);
    assert_eq!(entry.revents, POLLIN | POLLHUP);
}

/// vhangup(2) and acct(2) are not for everybody.
fn for_the_superuser_only() {
    in_child(|| {
        sc!(SYS_setresuid, 64321, 64321, 64321).is(0);
        sc!(SYS_vhangup).fails(EPERM);
        sc!(SYS_acct, 0).fails(EPERM);
        sc!(SYS_acct, c"/tmp/x".as_ptr()).fails(EPERM);
    });
    in_child(|| {
        // A session without a terminal has nothing to hang up.
        sc!(SYS_setsid).must();
        sc!(SYS_vhangup).is(0);
    });
}

/// pidfd_send_signal(2) takes an open /proc/PID, too; the others do not.
fn process_folder_as_pidfd() {
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let folder = open(&format!("/proc/{child}"), O_RDONLY | O_DIRECTORY).fd();
    let inside = open(&format!("/proc/{child}/fd"), O_RDONLY | O_DIRECTORY).fd();
    sc!(SYS_pidfd_send_signal, inside, 0, 0, 0).fails(EBADF);
    sc!(SYS_pidfd_send_signal, folder, 0, 0, 0).is(0);
    sc!(SYS_pidfd_getfd, folder, 0, 0).fails(EBADF);
    sc!(SYS_pidfd_send_signal, folder, SIGTERM, 0, 0).is(0);
    wait_signal(child, SIGTERM);
    sc!(SYS_pidfd_send_signal, folder, 0, 0, 0).fails(ESRCH);
}

fn orphaned_stopped_group_gets_hup() {
    // A stopped group that loses its last parent in the session gets SIGHUP, then SIGCONT.
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    let w = new_shared();
    let shell = fork(|| {
        sc!(SYS_setsid).must();
        let job = fork(|| {
            sc!(SYS_setpgid, 0, 0).is(0);
            let _ = sc!(SYS_kill, pid(), SIGSTOP);
            0
        });
        w[0].store(job as u32, SeqCst);
        let mut s = 0;
        sc!(SYS_wait4, job, &raw mut s, WUNTRACED, 0).is(job as usize);
        i32::from(!WIFSTOPPED(s))
    });
    wait_code(shell, 0);
    wait_signal(w[0].load(SeqCst) as i32, SIGHUP);
}
