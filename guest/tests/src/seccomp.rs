//! Programs that filter their own system calls: seccomp(2), prctl(2).
//!
//! Each test installs its filters in a child, since they never go away.

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst};

tests!("seccomp":
    errors_and_their_numbers, filters_see_the_whole_call, killed_processes, killed_threads,
    trapped_calls, calls_for_a_tracer, a_tracer_acts_before_the_filter, the_strictest_answer_wins,
    forks_and_programs_inherit, threads_inherit, what_is_no_filter, limits, needs_a_promise,
    strict_mode, flags_and_actions, all_threads_at_once, threads_with_other_filters,
    status_tells, many_filters_come_and_go, logged_calls,
    a_supervisor_answers, a_supervisor_gives_descriptors, interrupted_questions,
    a_supervisor_leaves, listeners_and_their_flags, a_tracer_reads_filters, advice_of_a_supervisor,
);

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const TRACE: u32 = 0x7ff0_0000;
const USER_NOTIF: u32 = 0x7fc0_0000;
const ERRNO: u32 = 0x0005_0000;
const TRAP: u32 = 0x0003_0000;
const KILL_THREAD: u32 = 0;
const KILL_PROCESS: u32 = 0x8000_0000;

const SET_STRICT: u32 = 0;
const SET_FILTER: u32 = 1;
const ACTION_AVAIL: u32 = 2;
const TSYNC: u32 = 1;
const TSYNC_ESRCH: u32 = 16;

const ARCH: u32 = 0xc000_003e;

#[repr(C)]
#[derive(Clone, Copy)]
struct Insn {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

const fn op(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}

/// A = a word of the data.
const fn load(offset: u32) -> Insn {
    op(0x20, offset)
}

/// If A is `k` goes on, else skips `skip` instructions.
const fn equal(k: u32, skip: u8) -> Insn {
    Insn { code: 0x15, jt: 0, jf: skip, k }
}

const fn ret(k: u32) -> Insn {
    op(0x06, k)
}

fn install(flags: u32, insns: &[Insn]) -> Res {
    #[repr(C)]
    struct Program(u16, *const Insn);
    let program = Program(insns.len() as u16, insns.as_ptr());
    sc!(SYS_seccomp, SET_FILTER, flags, &raw const program)
}

fn promise() {
    sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
}

/// Call `number` gets `answer`, all others are allowed.
pub fn answer(number: i64, answer: u32) {
    promise();
    let filter = [load(0), equal(number as u32, 1), ret(answer), ret(ALLOW)];
    install(0, &filter).is(0);
}

fn errors_and_their_numbers() {
    in_child(|| {
        answer(SYS_getppid, ERRNO | 33);
        sc!(SYS_getppid).fails(33);
        sc!(SYS_getpid).is(pid() as usize);
        answer(SYS_getuid, ERRNO);
        sc!(SYS_getuid).is(0);
        answer(SYS_getgid, ERRNO | 0xffff);
        assert_eq!(sc!(SYS_getgid), Err(4095), "larger ones are cut");
    });
}

fn filters_see_the_whole_call() {
    in_child(|| {
        promise();
        // In the order of `struct seccomp_data`: number, arch, address, arguments.
        let args: [u64; 6] = std::array::from_fn(|i| 0x1111_0000_2222_0000 + 7 * i as u64);
        let mut filter = vec![load(0), equal(SYS_getsid as u32, 0)];
        filter.push(load(4));
        filter.push(equal(ARCH, 0));
        for (i, arg) in args.iter().enumerate() {
            let at = 16 + 8 * i as u32;
            filter.extend([load(at), equal(*arg as u32, 0)]);
            filter.extend([load(at + 4), equal((*arg >> 32) as u32, 0)]);
        }
        // A word of the instruction's address cannot be 0 in a program.
        filter.extend([load(12), op(0x01, 0), load(8), equal(0, 1), ret(ERRNO | 1)]);
        filter.push(ret(ERRNO | 77));
        let end = filter.len() as u8;
        filter.push(ret(ALLOW));
        // What does not match goes to the end.
        for at in [1, 3].into_iter().chain((5..28).step_by(2)) {
            filter[at].jf = end - at as u8 - 1;
        }
        install(0, &filter).is(0);
        let a = args.map(|arg| arg as usize);
        assert_eq!(call(SYS_getsid as usize, &a), Err(77));
        for changed in 0..6 {
            for bit in [0, 31, 32, 63] {
                let mut other = a;
                other[changed] ^= 1 << bit;
                assert_ne!(call(SYS_getsid as usize, &other), Err(77), "{changed} {bit}");
            }
        }
    });
}

fn killed_processes() {
    for action in [KILL_PROCESS, KILL_PROCESS | 5, KILL_THREAD, 0x1234_0000, 0x9999_0000] {
        let child = fork(|| {
            // A handler is not asked.
            on_signal(SIGSYS, SIG_IGN, 0, 0);
            answer(SYS_getppid, action);
            let _ = sc!(SYS_getppid);
            5
        });
        wait_signal(child, SIGSYS);
    }
    // All threads, whoever makes the call.
    let child = fork(|| {
        answer(SYS_getppid, KILL_PROCESS);
        let other = std::thread::spawn(|| sc!(SYS_getppid));
        let _ = other.join();
        5
    });
    wait_signal(child, SIGSYS);
}

fn killed_threads() {
    let word = &new_shared()[0];
    word.store(0, SeqCst);
    let child = fork(|| {
        answer(SYS_getppid, KILL_THREAD);
        // Not joined: its end is not seen by the library.
        std::thread::spawn(|| {
            word.store(tid() as u32, SeqCst);
            let _ = sc!(SYS_getppid);
            word.store(u32::MAX, SeqCst);
        });
        until(|| word.load(SeqCst) != 0);
        let victim = word.load(SeqCst);
        until(|| sc!(SYS_tkill, victim, 0) == Err(ESRCH));
        if word.load(SeqCst) == victim { 3 } else { 4 }
    });
    wait_code(child, 3);
}

static SEEN: [AtomicI64; 8] = [const { AtomicI64::new(0) }; 8];

extern "C" fn on_sigsys(signal: i32, info: *const i32, context: *const u64) {
    // SAFETY: the kernel passes a siginfo_t and a ucontext_t.
    let info = unsafe { std::slice::from_raw_parts(info, 8) };
    // SAFETY: as above; the registers begin 40 bytes into ucontext_t, RAX is the 14th.
    let (rax, rip) = unsafe { (context.add(5 + 13).read(), context.add(5 + 16).read()) };
    let address = u64::from(info[5] as u32) << 32 | u64::from(info[4] as u32);
    let values = [
        signal.into(),
        info[1].into(),
        info[2].into(),
        i64::from(address == rip),
        info[6].into(),
        i64::from(info[7] as u32),
        rax as i64,
        1,
    ];
    SEEN.iter().zip(values).for_each(|(slot, value)| slot.store(value, SeqCst));
}

fn trapped_calls() {
    in_child(|| {
        answer(SYS_getppid, TRAP | 0x1234);
        on_signal(SIGSYS, on_sigsys as *const () as usize, SA_SIGINFO, 0);
        // What the handler leaves in RAX is the result: the call's number.
        sc!(SYS_getppid).is(SYS_getppid as usize);
        let seen = SEEN.each_ref().map(|slot| slot.load(SeqCst));
        let number = SYS_getppid;
        assert_eq!(seen, [SIGSYS.into(), 0x1234, 1, 1, number, ARCH.into(), number, 1]);
    });
    // Blocked or ignored, it kills.
    for blocked in [true, false] {
        let child = fork(|| {
            if blocked {
                sigmask(SIG_BLOCK, bit(SIGSYS));
            } else {
                on_signal(SIGSYS, SIG_IGN, 0, 0);
            }
            answer(SYS_getppid, TRAP);
            let _ = sc!(SYS_getppid);
            5
        });
        wait_signal(child, SIGSYS);
    }
}

fn pt(request: u32, pid: i32, address: u64, data: u64) -> Res {
    sc!(SYS_ptrace, request, pid, address, data)
}

fn event_status(pid: i32) -> i32 {
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    status
}

/// Byte offsets in `struct user`.
const ORIG_RAX: u64 = 15 * 8;
const RAX: u64 = 10 * 8;

/// Runs `body` in a tracee with `options`; it is stopped by SIGSTOP when this returns.
fn tracee(options: u32, body: impl FnOnce() -> i32) -> i32 {
    let child = fork(|| {
        pt(PTRACE_TRACEME, 0, 0, 0).is(0);
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        body()
    });
    assert_eq!(event_status(child), SIGSTOP << 8 | 0x7f);
    pt(PTRACE_SETOPTIONS, child, 0, options.into()).is(0);
    child
}

fn calls_for_a_tracer() {
    // Nobody traces, or nobody asked for the event.
    in_child(|| {
        answer(SYS_getppid, TRACE | 9);
        sc!(SYS_getppid).fails(ENOSYS);
    });
    let child = tracee(PTRACE_O_TRACESECCOMP as u32, || {
        answer(SYS_getppid, TRACE | 0x4321);
        let own = pid() as usize;
        // As it is; skipped with another result; made to be another call.
        let first = sc!(SYS_getppid) != Ok(own);
        let second = sc!(SYS_getppid) == Err(EPERM);
        let third = sc!(SYS_getppid) == Ok(own);
        i32::from(first) + 2 * i32::from(second) + 4 * i32::from(third)
    });
    for round in 0..3 {
        pt(PTRACE_CONT, child, 0, 0).is(0);
        let expected = SIGTRAP << 8 | (PTRACE_EVENT_SECCOMP << 16) | 0x7f;
        assert_eq!(event_status(child), expected, "round {round}");
        let mut message = 0u64;
        pt(PTRACE_GETEVENTMSG, child, 0, &raw mut message as u64).is(0);
        assert_eq!(message, 0x4321);
        match round {
            1 => {
                pt(PTRACE_POKEUSER, child, ORIG_RAX, u64::MAX).is(0);
                pt(PTRACE_POKEUSER, child, RAX, (-i64::from(EPERM)) as u64).is(0);
            }
            2 => {
                pt(PTRACE_POKEUSER, child, ORIG_RAX, SYS_getpid as u64).is(0);
            }
            _ => {}
        }
    }
    pt(PTRACE_CONT, child, 0, 0).is(0);
    wait_code(child, 7);
}

fn a_tracer_acts_before_the_filter() {
    let child = tracee(PTRACE_O_TRACESYSGOOD as u32, || {
        answer(SYS_getppid, ERRNO | 44);
        // Any call: the tracer makes it getppid.
        i32::from(sc!(SYS_getuid) == Err(44))
    });
    let mut exchanged = false;
    while !exchanged {
        pt(PTRACE_SYSCALL, child, 0, 0).is(0);
        assert_eq!(event_status(child), (SIGTRAP | 0x80) << 8 | 0x7f);
        let mut number = 0u64;
        pt(PTRACE_PEEKUSER, child, ORIG_RAX, &raw mut number as u64).is(0);
        if number == SYS_getuid as u64 {
            pt(PTRACE_POKEUSER, child, ORIG_RAX, SYS_getppid as u64).is(0);
            exchanged = true;
        }
    }
    pt(PTRACE_CONT, child, 0, 0).is(0);
    wait_code(child, 1);
}

fn the_strictest_answer_wins() {
    in_child(|| {
        answer(SYS_getppid, ALLOW);
        answer(SYS_getppid, ERRNO | 1);
        answer(SYS_getppid, ERRNO | 2);
        answer(SYS_getppid, ALLOW);
        answer(SYS_getppid, TRACE);
        answer(SYS_getppid, LOG);
        sc!(SYS_getppid).fails(2);
    });
    let child = fork(|| {
        answer(SYS_getppid, TRAP);
        answer(SYS_getppid, ERRNO | 2);
        let _ = sc!(SYS_getppid);
        5
    });
    wait_signal(child, SIGSYS);
}

fn forks_and_programs_inherit() {
    in_child(|| {
        answer(SYS_getppid, ERRNO | 50);
        in_child(|| {
            answer(SYS_getuid, ERRNO | 51);
            sc!(SYS_getppid).fails(50);
        });
        // The child's own filter is the child's alone.
        assert!(sc!(SYS_getuid).is_ok());
    });
    let child = fork(|| {
        promise();
        let is_exit_7 = [load(0), equal(SYS_exit_group as u32, 3), load(16), equal(7, 1)];
        install(0, &[&is_exit_7[..], &[ret(KILL_PROCESS), ret(ALLOW)]].concat()).is(0);
        let (path, mode) = (c(&own_path()), c("child"));
        let (what, code) = (c("exit"), c("7"));
        let argv = [path.as_ptr(), mode.as_ptr(), what.as_ptr(), code.as_ptr(), std::ptr::null()];
        let envp = [std::ptr::null::<u8>()];
        let _ = sc!(SYS_execve, path.as_ptr(), argv.as_ptr(), envp.as_ptr());
        9
    });
    wait_signal(child, SIGSYS);
}

fn threads_inherit() {
    in_child(|| {
        let word: &'static AtomicU32 = &new_shared()[1];
        let before = std::thread::spawn(|| {
            until(|| word.load(SeqCst) != 0);
            sc!(SYS_getppid).is_ok()
        });
        answer(SYS_getppid, ERRNO | 50);
        word.store(1, SeqCst);
        assert!(before.join().unwrap(), "a thread from before has no filter");
        let after = std::thread::spawn(|| sc!(SYS_getppid)).join().unwrap();
        assert_eq!(after, Err(50));
    });
}

fn what_is_no_filter() {
    in_child(|| {
        promise();
        install(0, &[]).fails(EINVAL);
        install(0, &vec![ret(ALLOW); 4097]).fails(EINVAL);
        let bad: &[&[Insn]] = &[
            &[load(0)],
            &[load(2), ret(ALLOW)],
            &[load(64), ret(ALLOW)],
            &[op(0x28, 0), ret(ALLOW)],
            &[op(0x60, 0), ret(ALLOW)],
            &[op(0x60, 16), ret(ALLOW)],
            &[op(0x34, 0), ret(ALLOW)],
            &[op(0x64, 32), ret(ALLOW)],
            &[op(0x94, 3), ret(ALLOW)],
            &[op(0x05, 1), ret(ALLOW)],
            &[op(0x05, u32::MAX), ret(ALLOW)],
            &[equal(0, 1), ret(ALLOW)],
            &[op(0xffff, 0), ret(ALLOW)],
        ];
        for (i, filter) in bad.iter().enumerate() {
            assert_eq!(install(0, filter), Err(EINVAL), "filter {i}");
        }
        sc!(SYS_seccomp, SET_FILTER, 0, 8).fails(EFAULT);
        sc!(SYS_seccomp, SET_FILTER, 0, 0).fails(EFAULT);
        let dangling = [1u64, 8];
        sc!(SYS_seccomp, SET_FILTER, 0, dangling.as_ptr()).fails(EFAULT);
        // Nothing of that has been installed.
        sc!(SYS_getppid).must();
    });
}

fn limits() {
    in_child(|| {
        promise();
        let longest = vec![ret(ALLOW); 4096];
        let results: Vec<_> = (0..12).map(|_| install(0, &longest)).collect();
        let good = results.iter().take_while(|result| **result == Ok(0)).count();
        assert!((2..9).contains(&good), "{results:?}");
        assert!(results[good..].iter().all(|result| *result == Err(ENOMEM)), "{results:?}");
        // There is room for a short one.
        install(0, &[ret(ALLOW)]).is(0);
        sc!(SYS_getppid).must();
    });
}

fn needs_a_promise() {
    in_child(|| {
        sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
        install(0, &[ret(ALLOW)]).fails(EACCES);
        promise();
        install(0, &[ret(ALLOW)]).is(0);
    });
}

fn strict_mode() {
    let child = fork(|| {
        let (out, into) = pipe();
        sc!(SYS_prctl, PR_SET_SECCOMP, 1, 0, 0, 0).is(0);
        let mut byte = [7u8];
        sc!(SYS_write, into, byte.as_ptr(), 1).is(1);
        sc!(SYS_read, out, byte.as_mut_ptr(), 1).is(1);
        let _ = sc!(SYS_exit, 11);
        0
    });
    wait_code(child, 11);
    let child = fork(|| {
        sc!(SYS_seccomp, SET_STRICT, 0, 0).is(0);
        let _ = sc!(SYS_getpid);
        0
    });
    wait_signal(child, SIGKILL);
    // Neither mode becomes the other.
    in_child(|| {
        answer(SYS_getppid, ERRNO | 1);
        sc!(SYS_seccomp, SET_STRICT, 0, 0).fails(EINVAL);
        sc!(SYS_prctl, PR_SET_SECCOMP, 1, 0, 0, 0).fails(EINVAL);
        sc!(SYS_prctl, PR_GET_SECCOMP).is(2);
    });
}

fn flags_and_actions() {
    in_child(|| {
        promise();
        // Known flags with an address that cannot be read, unknown ones with any.
        for flag in [0, 1, 2, 4] {
            assert_eq!(sc!(SYS_seccomp, SET_FILTER, flag, 0), Err(EFAULT), "flag {flag}");
        }
        for flag in [1u32 << 6, 1 << 31, !0] {
            assert_eq!(sc!(SYS_seccomp, SET_FILTER, flag, 0), Err(EINVAL), "flag {flag:#x}");
        }
        sc!(SYS_seccomp, SET_STRICT, 1, 0).fails(EINVAL);
        sc!(SYS_seccomp, SET_STRICT, 0, 1).fails(EINVAL);
        sc!(SYS_seccomp, 77, 0, 0).fails(EINVAL);
        for action in [KILL_PROCESS, KILL_THREAD, TRAP, ERRNO, TRACE, LOG, ALLOW] {
            sc!(SYS_seccomp, ACTION_AVAIL, 0, &raw const action).is(0);
        }
        let other = 0x7aaa_0000u32;
        sc!(SYS_seccomp, ACTION_AVAIL, 0, &raw const other).fails(EOPNOTSUPP);
        sc!(SYS_seccomp, ACTION_AVAIL, 1, &raw const other).fails(EINVAL);
        sc!(SYS_seccomp, ACTION_AVAIL, 0, 0).fails(EFAULT);
        sc!(SYS_prctl, PR_SET_SECCOMP, 3, 0, 0, 0).fails(EINVAL);
        sc!(SYS_prctl, PR_SET_SECCOMP, 2, 0, 0, 0).fails(EFAULT);
        let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap();
        for word in "kill_process kill_thread trap errno trace log allow".split(' ') {
            assert!(actions.split_whitespace().any(|action| action == word), "{actions}");
        }
        answer(SYS_getppid, USER_NOTIF);
        sc!(SYS_getppid).fails(ENOSYS);
    });
}

fn deny_getppid(flags: u32) -> Res {
    let filter = [load(0), equal(SYS_getppid as u32, 1), ret(ERRNO | 60), ret(ALLOW)];
    install(flags, &filter)
}

fn all_threads_at_once() {
    in_child(|| {
        let word: &'static AtomicU32 = &new_shared()[2];
        word.store(0, SeqCst);
        promise();
        let others: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    word.fetch_add(1, SeqCst);
                    until(|| word.load(SeqCst) == 100);
                    sc!(SYS_getppid)
                })
            })
            .collect();
        until(|| word.load(SeqCst) == 4);
        deny_getppid(TSYNC).is(0);
        word.store(100, SeqCst);
        for other in others {
            assert_eq!(other.join().unwrap(), Err(60));
        }
        sc!(SYS_getppid).fails(60);
    });
}

fn threads_with_other_filters() {
    in_child(|| {
        let word: &'static AtomicU32 = &new_shared()[3];
        word.store(0, SeqCst);
        promise();
        let other = std::thread::spawn(|| {
            install(0, &[ret(ALLOW)]).is(0);
            word.store(tid() as u32, SeqCst);
            until(|| word.load(SeqCst) == 1);
            sc!(SYS_getppid)
        });
        until(|| word.load(SeqCst) != 0);
        let its_tid = word.load(SeqCst) as usize;
        deny_getppid(TSYNC).is(its_tid);
        deny_getppid(TSYNC | TSYNC_ESRCH).fails(ESRCH);
        sc!(SYS_getppid).must();
        // One that is behind on the same chain can be brought forward.
        word.store(1, SeqCst);
        assert!(other.join().unwrap().is_ok());
        word.store(0, SeqCst);
        install(0, &[ret(ALLOW)]).is(0);
        let behind = std::thread::spawn(|| {
            word.store(2, SeqCst);
            until(|| word.load(SeqCst) == 3);
            sc!(SYS_getppid)
        });
        until(|| word.load(SeqCst) == 2);
        install(0, &[ret(ALLOW)]).is(0);
        deny_getppid(TSYNC).is(0);
        word.store(3, SeqCst);
        assert_eq!(behind.join().unwrap(), Err(60));
    });
}

fn status(name: &str) -> u32 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap().parse().unwrap()
}

fn status_tells() {
    in_child(|| {
        let before = status("Seccomp_filters");
        promise();
        assert_eq!(status("NoNewPrivs"), 1);
        install(0, &[ret(ALLOW)]).is(0);
        install(0, &[ret(ALLOW)]).is(0);
        assert_eq!((status("Seccomp"), status("Seccomp_filters")), (2, before + 2));
        in_child(|| assert_eq!((status("Seccomp"), status("Seccomp_filters")), (2, before + 2)));
    });
}

/// More of them than fit anywhere, in several processes; each must do what it says.
fn many_filters_come_and_go() {
    let children: Vec<_> = (0..3)
        .map(|_| {
            fork(|| {
                for round in 1..5u32 {
                    let child = fork(|| {
                        for i in 0..30 {
                            answer(SYS_getppid, ERRNO | (100 * round + i));
                            assert_eq!(sc!(SYS_getppid), Err((100 * round + i) as i32));
                        }
                        0
                    });
                    wait_code(child, 0);
                }
                0
            })
        })
        .collect();
    children.into_iter().for_each(|child| wait_code(child, 0));
}

fn logged_calls() {
    in_child(|| {
        answer(SYS_getppid, LOG);
        sc!(SYS_getppid).must();
        promise();
        let filter = [load(0), equal(SYS_getuid as u32, 1), ret(ERRNO | 3), ret(ALLOW)];
        install(2, &filter).is(0);
        sc!(SYS_getuid).fails(3);
    });
}

const NEW_LISTENER: u32 = 8;
const NOTIF_RECV: u32 = 0xc050_2100;
const NOTIF_SEND: u32 = 0xc018_2101;
const NOTIF_ID_VALID: u32 = 0x4008_2102;
const NOTIF_ADDFD: u32 = 0x4018_2103;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Notif {
    id: u64,
    pid: u32,
    flags: u32,
    nr: u32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}

#[repr(C)]
struct NotifResponse(u64, i64, i32, u32);

/// A filter in front that leaves `number` to whoever has the descriptor.
fn listen(number: i64) -> i32 {
    promise();
    let filter = [load(0), equal(number as u32, 1), ret(USER_NOTIF), ret(ALLOW)];
    install(NEW_LISTENER, &filter).must() as i32
}

fn next(fd: i32) -> Notif {
    let mut notif = Notif::default();
    sc!(SYS_ioctl, fd, NOTIF_RECV, &raw mut notif).is(0);
    notif
}

fn respond(fd: i32, id: u64, value: i64, error: i32, flags: u32) -> Res {
    let response = NotifResponse(id, value, error, flags);
    sc!(SYS_ioctl, fd, NOTIF_SEND, &raw const response)
}

fn ready(fd: i32) -> u32 {
    let mut poll = [fd as u32, 0x5];
    sc!(SYS_poll, poll.as_mut_ptr(), 1, 0).must();
    poll[1] >> 16
}

/// Runs `asks` in a thread that leaves getppid to `supervise`, in a child. What `asks` does runs on
/// after the supervisor has returned.
fn supervised(asks: fn(), supervise: fn(i32)) {
    in_child(|| {
        static FD: AtomicI64 = AtomicI64::new(-1);
        let thread = std::thread::spawn(move || {
            FD.store(listen(SYS_getppid).into(), SeqCst);
            asks();
        });
        while FD.load(SeqCst) < 0 {
            std::thread::yield_now();
        }
        supervise(FD.load(SeqCst) as i32);
        assert!(thread.join().is_ok());
    });
}

fn a_supervisor_answers() {
    supervised(
        || {
            sc!(SYS_getppid, 7, 8).is(1234);
            sc!(SYS_getppid).fails(EPERM);
            assert!(sc!(SYS_getppid).must() > 1, "the call itself");
        },
        |fd| {
            let first = next(fd);
            assert_eq!((first.nr, first.arch), (SYS_getppid as u32, ARCH));
            assert_eq!((first.args[0], first.args[1], first.flags), (7, 8, 0));
            assert!(first.pid != pid() as u32 && first.ip != 0);
            assert_eq!(ready(fd), 4, "something to answer");
            sc!(SYS_ioctl, fd, NOTIF_ID_VALID, &raw const first.id).is(0);
            respond(fd, first.id.wrapping_add(5), 0, 0, 0).fails(ENOENT);
            respond(fd, first.id, 1, 0, 1).fails(EINVAL);
            respond(fd, first.id, 1, 0, 4).fails(EINVAL);
            respond(fd, first.id, 1234, 0, 0).is(0);
            let second = next(fd);
            assert_ne!(first.id, second.id);
            sc!(SYS_ioctl, fd, NOTIF_ID_VALID, &raw const first.id).fails(ENOENT);
            respond(fd, second.id, 0, -EPERM, 0).is(0);
            respond(fd, next(fd).id, 0, 0, 1).is(0);
            // The thread ends, and with it the filter.
            let mut poll = [fd as u32, 0];
            sc!(SYS_poll, poll.as_mut_ptr(), 1, u32::MAX).is(1);
            assert_eq!(poll[1] >> 16, 0x10);
            let mut none = Notif::default();
            sc!(SYS_ioctl, fd, NOTIF_RECV, &raw mut none).fails(ENOENT);
        },
    );
}

fn a_supervisor_gives_descriptors() {
    supervised(
        || {
            let fd = sc!(SYS_getppid).must() as i32;
            sc!(SYS_fcntl, fd, F_GETFD).is(1);
            sc!(SYS_getppid).is(0);
            sc!(SYS_fcntl, 77, F_GETFD).is(0);
            write(77, b"x");
        },
        |fd| {
            let (near, far) = pipe();
            // Id, flags, source, number there, its flags.
            let add = |id: u64, flags: u32, source: i32, to: u32, cloexec: i32| {
                let words = [flags, source as u32, to, cloexec as u32];
                let mut bytes = id.to_ne_bytes().to_vec();
                bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
                sc!(SYS_ioctl, fd, NOTIF_ADDFD, bytes.as_ptr())
            };
            let id = next(fd).id;
            add(id, 8, far, 0, 0).fails(EINVAL);
            add(id, 0, far, 5, 0).fails(EINVAL);
            add(id, 0, far, 0, 1).fails(EINVAL);
            add(id, 0, -1, 0, 0).fails(EBADF);
            add(id.wrapping_add(9), 0, far, 0, 0).fails(ENOENT);
            // The command says how large the structure is: as known, or with zeros behind it.
            let mut bytes = [0u8; 4096];
            bytes[..8].copy_from_slice(&id.to_ne_bytes());
            bytes[12..16].copy_from_slice(&far.to_ne_bytes());
            let sized = |size: u32, bytes: &[u8]| {
                sc!(SYS_ioctl, fd, NOTIF_ADDFD & !0x3fff_0000 | size << 16, bytes.as_ptr())
            };
            sized(16, &bytes).fails(EINVAL);
            sized(4096, &bytes).fails(EINVAL);
            assert!(sized(32, &bytes).must() > 2);
            bytes[31] = 1;
            sized(32, &bytes).fails(E2BIG);
            assert!(add(id, 2, far, 0, O_CLOEXEC).must() > 2, "added, and that is the result");
            let id = next(fd).id;
            add(id, 1, far, 77, 0).is(77);
            respond(fd, id, 0, 0, 0).is(0);
            assert_eq!(read(near, 9), b"x");
        },
    );
}

fn interrupted_questions() {
    supervised(
        || {
            static HITS: AtomicU32 = AtomicU32::new(0);
            extern "C" fn hit(_: i32) {
                HITS.fetch_add(1, SeqCst);
            }
            on_signal(SIGUSR1, hit as *const () as usize, 0, 0);
            sc!(SYS_getppid).fails(EINTR);
            assert_eq!(HITS.load(SeqCst), 1);
            sc!(SYS_getppid).is(9);
        },
        |fd| {
            let asked = next(fd);
            sc!(SYS_tgkill, pid(), asked.pid, SIGUSR1).is(0);
            let again = next(fd);
            assert_ne!(asked.id, again.id);
            respond(fd, asked.id, 1, 0, 0).fails(ENOENT);
            respond(fd, again.id, 9, 0, 0).is(0);
        },
    );
}

fn a_supervisor_leaves() {
    supervised(
        || {
            sc!(SYS_getppid).fails(ENOSYS);
            sc!(SYS_getppid).fails(ENOSYS);
        },
        |fd| {
            next(fd);
            close(fd);
        },
    );
}

fn listeners_and_their_flags() {
    let mut sizes = [0u16; 3];
    sc!(SYS_seccomp, 3, 0, sizes.as_mut_ptr()).is(0);
    assert_eq!(sizes, [80, 24, 64]);
    sc!(SYS_seccomp, 3, 1, sizes.as_mut_ptr()).fails(EINVAL);
    sc!(SYS_seccomp, ACTION_AVAIL, 0, &USER_NOTIF as *const u32).is(0);
    in_child(|| {
        promise();
        install(NEW_LISTENER | TSYNC, &[ret(ALLOW)]).fails(EINVAL);
        install(32, &[ret(ALLOW)]).fails(EINVAL);
        let fd = install(NEW_LISTENER | TSYNC | TSYNC_ESRCH | 32, &[ret(ALLOW)]).must() as i32;
        sc!(SYS_fcntl, fd, F_GETFD).is(1);
        install(NEW_LISTENER, &[ret(ALLOW)]).fails(EBUSY);
        assert_eq!(ready(fd), 0);
        let mut dirty = Notif { flags: 1, ..Notif::default() };
        sc!(SYS_ioctl, fd, NOTIF_RECV, &raw mut dirty).fails(EINVAL);
        sc!(SYS_ioctl, fd, NOTIF_RECV, 8).fails(EFAULT);
        sc!(SYS_ioctl, fd, TCGETS, 0).fails(EINVAL);
        // Nobody who listens: the filter before.
        install(0, &[load(0), equal(SYS_getppid as u32, 1), ret(USER_NOTIF), ret(ALLOW)]).is(0);
        sc!(SYS_getppid).fails(ENOSYS);
    });
}

/// PTRACE_SECCOMP_GET_FILTER and _GET_METADATA: the oldest filter is number 0 (ptrace(2)).
fn a_tracer_reads_filters() {
    const GET_FILTER: u32 = 0x420c;
    const GET_METADATA: u32 = 0x420d;
    const FLAG_LOG: u32 = 2;
    let first = [load(0), equal(1 << 20, 1), ret(LOG), ret(ALLOW)];
    let filters = || {
        promise();
        install(FLAG_LOG, &first).is(0);
        install(0, &[ret(ALLOW)]).is(0);
    };
    let child = tracee(0, || {
        filters();
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        0
    });
    pt(GET_FILTER, child, 0, 0).fails(EINVAL);
    pt(PTRACE_CONT, child, 0, 0).is(0);
    assert_eq!(event_status(child), SIGSTOP << 8 | 0x7f);
    let mut read = [op(0, 0); 4];
    let to = read.as_mut_ptr() as u64;
    pt(GET_FILTER, child, 1, 0).is(1);
    pt(GET_FILTER, child, 0, to).is(4);
    let words = |insns: &[Insn]| -> Vec<(u16, u8, u8, u32)> {
        insns.iter().map(|insn| (insn.code, insn.jt, insn.jf, insn.k)).collect()
    };
    assert_eq!(words(&read), words(&first));
    pt(GET_FILTER, child, 2, 0).fails(ENOENT);
    pt(GET_FILTER, child, 0, 8).fails(EFAULT);
    let metadata = |number: u64, size: u64| {
        let mut words = [number, 7];
        pt(GET_METADATA, child, size, words.as_mut_ptr() as u64).map(|done| (done, words[1]))
    };
    assert_eq!(metadata(0, 16), Ok((16, u64::from(FLAG_LOG))));
    assert_eq!(metadata(1, 99), Ok((16, 0)));
    assert_eq!(metadata(0, 8), Ok((8, 7)));
    assert_eq!(metadata(0, 7), Err(EINVAL));
    assert_eq!(metadata(2, 16), Err(ENOENT));
    pt(PTRACE_KILL, child, 0, 0).is(0);
    assert_eq!(event_status(child), SIGKILL);
    // Not for who has filters of his own.
    in_child(|| {
        let child = tracee(0, || 0);
        filters();
        pt(GET_FILTER, child, 0, 0).fails(EACCES);
        pt(PTRACE_KILL, child, 0, 0).is(0);
        event_status(child);
    });
}

/// SECCOMP_IOCTL_NOTIF_SET_FLAGS (seccomp_unotify(2)): one flag is known.
fn advice_of_a_supervisor() {
    const SET_FLAGS: u64 = 0x4008_2104;
    in_child(|| {
        let fd = listen(SYS_getppid);
        sc!(SYS_ioctl, fd, SET_FLAGS, 1).is(0);
        sc!(SYS_ioctl, fd, SET_FLAGS, 0).is(0);
        sc!(SYS_ioctl, fd, SET_FLAGS, 2).fails(EINVAL);
    });
}
