//! Signals: delivery, masks, queues, alternate stacks, restarts, and what the handler leaves.
//!
//! No test here knows when a signal arrives: where a sleeping call must be interrupted, the
//! signal is sent again and again until the answer is there. Manual pages: signal(7),
//! sigaction(2), rt_sigtimedwait(2), signalfd(2), sigaltstack(2).

use crate::regs::*;
use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

tests!("signals":
    every_signal_is_delivered, default_actions, kill_and_stop_are_fixed, siginfo_of_kill,
    siginfo_of_queue, siginfo_of_child, realtime_signals_queue_in_order,
    standard_signals_collapse, lowest_number_first, mask_holds_and_releases, handler_mask,
    nodefer_nests, resethand_resets, altstack_is_used, altstack_rules, altstack_autodisarm,
    nested_handlers, sigsuspend_swaps_mask, sigtimedwait_takes, sigtimedwait_times_out,
    signalfd_reads, signalfd_mask_updates, read_gives_eintr, read_restarts, nanosleep_eintr_rest,
    wait_restarts, poll_is_never_restarted, pause_returns, sigreturn_keeps_registers,
    handler_may_change_registers, async_signals_keep_registers, sigaction_old_and_errors,
    sigpending_union, ignored_signals_vanish, sigpipe_and_epipe, sigprocmask_errors,
    sync_fault_while_blocked_kills, fault_in_handler_kills, fork_inherits_handlers,
    signal_to_stopped_process, sigcont_clears_stop, thread_directed_masks, alarm_fires,
    siglongjmp_style_exit, sigqueue_permissions, bad_frame_kills, rt_sigreturn_without_frame,
    handler_on_full_stack_kills, trapno_and_error_code,
);

static COUNT: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(sig: i32) {
    LAST.store(sig, SeqCst);
    COUNT.fetch_add(1, SeqCst);
}

fn counting(sig: i32, flags: i32) {
    on_signal(sig, count as *const () as usize, flags, 0);
}

fn raise(sig: i32) {
    sc!(SYS_tgkill, pid(), tid(), sig).is(0);
}

fn pending() -> u64 {
    let mut p = 0u64;
    sc!(SYS_rt_sigpending, &raw mut p, 8).is(0);
    p
}

fn every_signal_is_delivered() {
    for sig in (1..=64).filter(|s| ![SIGKILL, SIGSTOP].contains(s)) {
        counting(sig, 0);
        COUNT.store(0, SeqCst);
        raise(sig);
        assert_eq!((COUNT.load(SeqCst), LAST.load(SeqCst)), (1, sig));
        sc!(SYS_kill, pid(), sig).is(0);
        assert_eq!(COUNT.load(SeqCst), 2, "signal {sig} by kill");
    }
}

fn default_actions() {
    let ignored = [SIGCHLD, SIGURG, SIGWINCH, SIGCONT];
    let stops = [SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU];
    for sig in (1..=64).filter(|s| !stops.contains(s)) {
        let child = fork(|| {
            if sig != SIGKILL {
                on_signal(sig, SIG_DFL, 0, 0);
            }
            let lim = [0usize, 0];
            let _ = sc!(SYS_setrlimit, RLIMIT_CORE, lim.as_ptr());
            let _ = sc!(SYS_kill, pid(), sig);
            7
        });
        if ignored.contains(&sig) { wait_code(child, 7) } else { wait_signal(child, sig) }
    }
}

fn kill_and_stop_are_fixed() {
    for sig in [SIGKILL, SIGSTOP] {
        let act = KernelSigaction { handler: 1, ..KernelSigaction::default() };
        sc!(SYS_rt_sigaction, sig, &raw const act, 0, 8).fails(EINVAL);
    }
    sigmask(SIG_BLOCK, !0);
    assert_eq!(sigmask(SIG_BLOCK, 0), !(bit(SIGKILL) | bit(SIGSTOP)));
}

static INFO: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

extern "C" fn note_info(sig: i32, info: *const Siginfo, _: usize) {
    // SAFETY: the kernel's siginfo stays on this stack until the handler returns.
    let i = unsafe { *info };
    INFO[0].store((i.signo as u64) << 32 | i.code as u32 as u64, SeqCst);
    INFO[1].store((i.pid as u64) << 32 | u64::from(i.uid), SeqCst);
    INFO[2].store(i.status as u32 as u64 | (i.rest[0] as u32 as u64) << 32, SeqCst);
    INFO[3].store(sig as u64, SeqCst);
}

fn siginfo_of_kill() {
    on_signal(SIGUSR1, note_info as *const () as usize, SA_SIGINFO, 0);
    let me = pid() as u64;
    let uid = sc!(SYS_getuid).must() as u64;
    sc!(SYS_kill, pid(), SIGUSR1).is(0);
    assert_eq!(INFO[0].load(SeqCst), (SIGUSR1 as u64) << 32, "SI_USER is 0");
    assert_eq!(INFO[1].load(SeqCst), me << 32 | uid);
    raise(SIGUSR1);
    assert_eq!(INFO[0].load(SeqCst) as i32, SI_TKILL);
}

fn siginfo_of_queue() {
    on_signal(SIGRTMIN(), note_info as *const () as usize, SA_SIGINFO, 0);
    let mut info = Siginfo { signo: 1, code: SI_QUEUE, pid: 11, uid: 22, ..Siginfo::default() };
    info.status = 0x5566_7788;
    info.rest[0] = 0x1122_3344;
    sc!(SYS_rt_sigqueueinfo, pid(), SIGRTMIN(), &raw const info).is(0);
    assert_eq!(INFO[0].load(SeqCst), (SIGRTMIN() as u64) << 32 | SI_QUEUE as u32 as u64);
    assert_eq!(INFO[1].load(SeqCst), 11 << 32 | 22);
    assert_eq!(INFO[2].load(SeqCst), 0x1122_3344_5566_7788);
}

fn siginfo_of_child() {
    on_signal(SIGCHLD, note_info as *const () as usize, SA_SIGINFO, 0);
    let child = fork(|| 9);
    until(|| INFO[3].load(SeqCst) == SIGCHLD as u64);
    assert_eq!(INFO[0].load(SeqCst) as i32, CLD_EXITED);
    assert_eq!(INFO[1].load(SeqCst) >> 32, child as u64);
    assert_eq!(INFO[2].load(SeqCst) as i32, 9);
    wait_code(child, 9);
}

static ORDER: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

extern "C" fn note_order(sig: i32, info: *const Siginfo, _: usize) {
    // SAFETY: the kernel's siginfo stays on this stack until the handler returns.
    let value = unsafe { (*info).status };
    let at = COUNT.fetch_add(1, SeqCst) as usize;
    ORDER[at].store((sig as u64) << 32 | value as u64, SeqCst);
}

fn queue(sig: i32, value: i32) {
    let info = Siginfo { code: SI_QUEUE, status: value, ..Siginfo::default() };
    sc!(SYS_rt_sigqueueinfo, pid(), sig, &raw const info).is(0);
}

fn realtime_signals_queue_in_order() {
    let sig = SIGRTMIN() + 5;
    on_signal(sig, note_order as *const () as usize, SA_SIGINFO, !0);
    sigmask(SIG_BLOCK, bit(sig));
    (0..20).for_each(|i| queue(sig, i));
    assert_eq!(COUNT.load(SeqCst), 0);
    sigmask(SIG_UNBLOCK, bit(sig));
    assert_eq!(COUNT.load(SeqCst), 20);
    for (i, seen) in ORDER.iter().take(20).enumerate() {
        assert_eq!(seen.load(SeqCst), (sig as u64) << 32 | i as u64);
    }
}

fn standard_signals_collapse() {
    counting(SIGUSR1, 0);
    sigmask(SIG_BLOCK, bit(SIGUSR1));
    (0..10).for_each(|_| raise(SIGUSR1));
    sigmask(SIG_UNBLOCK, bit(SIGUSR1));
    assert_eq!(COUNT.load(SeqCst), 1);
}

fn lowest_number_first() {
    // Of several pending, handlers are entered so that the lowest number's runs first when each
    // blocks all others.
    let sigs = [64, 40, 36, SIGUSR2, SIGUSR1, SIGHUP];
    for s in sigs {
        on_signal(s, note_order as *const () as usize, SA_SIGINFO, !0);
    }
    sigmask(SIG_BLOCK, !0);
    sigs.iter().for_each(|&s| queue(s, 0));
    sigmask(SIG_SETMASK, 0);
    // Frames are stacked before the first handler runs, so the mask of the first one counts.
    let got: Vec<u64> = (0..6).map(|i| ORDER[i].load(SeqCst) >> 32).collect();
    assert_eq!(got, [1, 10, 12, 36, 40, 64]);
}

fn mask_holds_and_releases() {
    counting(SIGUSR1, 0);
    assert_eq!(sigmask(SIG_BLOCK, bit(SIGUSR1)) & bit(SIGUSR1), 0);
    raise(SIGUSR1);
    sc!(SYS_kill, pid(), SIGUSR1).is(0);
    assert_eq!((COUNT.load(SeqCst), pending()), (0, bit(SIGUSR1)));
    sigmask(SIG_UNBLOCK, bit(SIGUSR1));
    assert_eq!(COUNT.load(SeqCst), 2, "one for the thread, one for the process");
    assert_eq!(pending(), 0);
}

static MASK_IN_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_mask(_: i32) {
    MASK_IN_HANDLER.store(sigmask(SIG_BLOCK, 0), SeqCst);
}

fn handler_mask() {
    let h = note_mask as *const () as usize;
    on_signal(SIGUSR1, h, 0, bit(SIGUSR2) | bit(40));
    raise(SIGUSR1);
    assert_eq!(MASK_IN_HANDLER.load(SeqCst), bit(SIGUSR1) | bit(SIGUSR2) | bit(40));
    assert_eq!(sigmask(SIG_BLOCK, 0), 0, "and back");
    on_signal(SIGUSR1, h, SA_NODEFER, bit(SIGUSR2));
    raise(SIGUSR1);
    assert_eq!(MASK_IN_HANDLER.load(SeqCst), bit(SIGUSR2));
}

static DEPTH: AtomicU32 = AtomicU32::new(0);
static DEEPEST: AtomicU32 = AtomicU32::new(0);

extern "C" fn nest(sig: i32) {
    let d = DEPTH.fetch_add(1, SeqCst) + 1;
    DEEPEST.fetch_max(d, SeqCst);
    if COUNT.fetch_add(1, SeqCst) < 20 {
        raise(sig);
    }
    DEPTH.fetch_sub(1, SeqCst);
}

fn nodefer_nests() {
    on_signal(SIGUSR1, nest as *const () as usize, SA_NODEFER, 0);
    raise(SIGUSR1);
    assert_eq!(DEEPEST.load(SeqCst), 21);
    COUNT.store(0, SeqCst);
    DEEPEST.store(0, SeqCst);
    on_signal(SIGUSR1, nest as *const () as usize, 0, 0);
    raise(SIGUSR1);
    assert_eq!((DEEPEST.load(SeqCst), COUNT.load(SeqCst)), (1, 21));
}

fn resethand_resets() {
    let flags = SA_RESETHAND;
    counting(SIGUSR1, flags);
    raise(SIGUSR1);
    assert_eq!(COUNT.load(SeqCst), 1);
    assert_eq!(on_signal(SIGUSR1, SIG_DFL, 0, 0).handler, SIG_DFL);
}

static SP: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_sp(_: i32) {
    let local = 0u8;
    SP.store(&raw const local as u64, SeqCst);
    let mut ss = [0usize; 3];
    sc!(SYS_sigaltstack, 0, ss.as_mut_ptr()).is(0);
    COUNT.store(ss[1] as u32, SeqCst);
}

fn altstack_is_used() {
    let alt = anon(65536) as usize;
    let ss = [alt, 0, 65536];
    sc!(SYS_sigaltstack, ss.as_ptr(), 0).is(0);
    on_signal(SIGUSR1, note_sp as *const () as usize, SA_ONSTACK, 0);
    raise(SIGUSR1);
    let sp = SP.load(SeqCst) as usize;
    assert!((alt..alt + 65536).contains(&sp), "{sp:#x} {alt:#x}");
    assert_eq!(COUNT.load(SeqCst), SS_ONSTACK as u32);
    on_signal(SIGUSR1, note_sp as *const () as usize, 0, 0);
    raise(SIGUSR1);
    assert!(!(alt..alt + 65536).contains(&(SP.load(SeqCst) as usize)));
    let mut old = [0usize; 3];
    sc!(SYS_sigaltstack, 0, old.as_mut_ptr()).is(0);
    assert_eq!(old, ss);
    in_child(|| {
        let mut old = [0usize; 3];
        sc!(SYS_sigaltstack, 0, old.as_mut_ptr()).is(0);
        assert_eq!(old, ss, "inherited by fork");
    });
}

extern "C" fn try_change_altstack(_: i32) {
    let off = [0usize, SS_DISABLE as usize, 0];
    sc!(SYS_sigaltstack, off.as_ptr(), 0).fails(EPERM);
    COUNT.fetch_add(1, SeqCst);
}

fn altstack_rules() {
    let alt = anon(65536) as usize;
    sc!(SYS_sigaltstack, [alt, 0, 100].as_ptr(), 0).fails(ENOMEM);
    sc!(SYS_sigaltstack, [alt, 0x55, 65536].as_ptr(), 0).fails(EINVAL);
    sc!(SYS_sigaltstack, [alt, 0, 65536].as_ptr(), 0).is(0);
    on_signal(SIGUSR1, try_change_altstack as *const () as usize, SA_ONSTACK, 0);
    raise(SIGUSR1);
    assert_eq!(COUNT.load(SeqCst), 1);
    sc!(SYS_sigaltstack, [0usize, SS_DISABLE as usize, 0].as_ptr(), 0).is(0);
}

fn altstack_autodisarm() {
    let alt = anon(65536) as usize;
    let auto = 1usize << 31;
    sc!(SYS_sigaltstack, [alt, auto, 65536].as_ptr(), 0).is(0);
    on_signal(SIGUSR1, note_sp as *const () as usize, SA_ONSTACK, 0);
    raise(SIGUSR1);
    assert_eq!(COUNT.load(SeqCst), SS_DISABLE as u32, "disarmed inside the handler");
    let mut old = [0usize; 3];
    sc!(SYS_sigaltstack, 0, old.as_mut_ptr()).is(0);
    assert_eq!(old[0], alt, "armed again after it");
}

static TRACE: AtomicU64 = AtomicU64::new(0);

fn trace(digit: u64) {
    TRACE.store(TRACE.load(SeqCst) * 10 + digit, SeqCst);
}

extern "C" fn outer(_: i32) {
    trace(1);
    raise(SIGUSR2);
    trace(3);
}

extern "C" fn inner(_: i32) {
    trace(2);
}

fn nested_handlers() {
    on_signal(SIGUSR1, outer as *const () as usize, 0, 0);
    on_signal(SIGUSR2, inner as *const () as usize, 0, 0);
    raise(SIGUSR1);
    assert_eq!(TRACE.load(SeqCst), 123);
    TRACE.store(0, SeqCst);
    on_signal(SIGUSR1, outer as *const () as usize, 0, bit(SIGUSR2));
    raise(SIGUSR1);
    assert_eq!(TRACE.load(SeqCst), 132);
}

fn sigsuspend_swaps_mask() {
    counting(SIGUSR1, 0);
    sigmask(SIG_BLOCK, bit(SIGUSR1));
    raise(SIGUSR1);
    let all_but = !bit(SIGUSR1);
    sc!(SYS_rt_sigsuspend, &raw const all_but, 8).fails(EINTR);
    assert_eq!(COUNT.load(SeqCst), 1);
    assert_eq!(sigmask(SIG_BLOCK, 0), bit(SIGUSR1));
    sc!(SYS_rt_sigsuspend, &raw const all_but, 4).fails(EINVAL);
}

fn sigtimedwait_takes() {
    let set = bit(SIGUSR1) | bit(40);
    sigmask(SIG_BLOCK, set);
    queue(40, 5);
    raise(SIGUSR1);
    let mut info = Siginfo::default();
    sc!(SYS_rt_sigtimedwait, &raw const set, &raw mut info, 0, 8).is(SIGUSR1 as usize);
    sc!(SYS_rt_sigtimedwait, &raw const set, &raw mut info, 0, 8).is(40);
    assert_eq!((info.signo, info.code, info.status), (40, SI_QUEUE, 5));
    let me = pid();
    let child = fork(|| {
        let _ = sc!(SYS_kill, me, SIGUSR1);
        0
    });
    sc!(SYS_rt_sigtimedwait, &raw const set, &raw mut info, 0, 8).is(SIGUSR1 as usize);
    assert_eq!(info.pid, child);
    wait_code(child, 0);
}

fn sigtimedwait_times_out() {
    let set = bit(SIGUSR1);
    sigmask(SIG_BLOCK, set);
    let ts = timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    sc!(SYS_rt_sigtimedwait, &raw const set, 0, &raw const ts, 8).fails(EAGAIN);
    let bad = timespec { tv_sec: 0, tv_nsec: -1 };
    sc!(SYS_rt_sigtimedwait, &raw const set, 0, &raw const bad, 8).fails(EINVAL);
}

fn signalfd_reads() {
    let set = bit(SIGUSR1) | bit(SIGUSR2);
    sigmask(SIG_BLOCK, set);
    let fd = sc!(SYS_signalfd4, -1i32, &raw const set, 8, SFD_NONBLOCK | SFD_CLOEXEC).fd();
    let mut buf = [0u8; 300];
    sc!(SYS_read, fd, buf.as_mut_ptr(), 128).fails(EAGAIN);
    sc!(SYS_read, fd, buf.as_mut_ptr(), 127).fails(EINVAL);
    raise(SIGUSR2);
    sc!(SYS_kill, pid(), SIGUSR1).is(0);
    let mut p = pollfd { fd, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, 0).is(1);
    sc!(SYS_read, fd, buf.as_mut_ptr(), 300).is(256);
    let mut got = [buf[0], buf[128]];
    got.sort_unstable();
    assert_eq!(got, [SIGUSR1 as u8, SIGUSR2 as u8]);
    assert_eq!(pending(), 0);
    sc!(SYS_poll, &raw mut p, 1, 0).is(0);
}

fn signalfd_mask_updates() {
    sigmask(SIG_BLOCK, !0);
    let (one, two) = (bit(SIGUSR1), bit(SIGUSR2));
    let fd = sc!(SYS_signalfd4, -1i32, &raw const one, 8, SFD_NONBLOCK).fd();
    raise(SIGUSR2);
    let mut buf = [0u8; 128];
    sc!(SYS_read, fd, buf.as_mut_ptr(), 128).fails(EAGAIN);
    sc!(SYS_signalfd4, fd, &raw const two, 8, 0).is(fd as usize);
    sc!(SYS_read, fd, buf.as_mut_ptr(), 128).is(128);
    sc!(SYS_signalfd4, 0, &raw const two, 8, 0).fails(EINVAL);
    sc!(SYS_signalfd4, -1i32, &raw const two, 4, 0).fails(EINVAL);
}

/// Sends `sig` to a child until it ends; its exit code.
#[track_caller]
fn pester(child: i32, sig: i32) -> i32 {
    let mut s = 0;
    until(|| {
        let _ = sc!(SYS_kill, child, sig);
        sc!(SYS_wait4, child, &raw mut s, WNOHANG, 0) == Ok(child as usize)
    });
    assert!(WIFEXITED(s), "{}", describe(s));
    WEXITSTATUS(s)
}

fn read_gives_eintr() {
    counting(SIGUSR1, 0);
    let (r, _w) = pipe();
    let mut b = 0u8;
    let child = fork(|| sc!(SYS_read, r, &raw mut b, 1).err().unwrap_or(0));
    assert_eq!(pester(child, SIGUSR1), EINTR);
}

fn read_restarts() {
    let s = new_shared();
    SHARED.store(s.as_ptr() as u64, SeqCst);
    on_signal(SIGUSR1, count_shared as *const () as usize, SA_RESTART, 0);
    let (r, w) = pipe();
    let mut b = 0u8;
    let child = fork(|| {
        let got = sc!(SYS_read, r, &raw mut b, 1);
        i32::from(got != Ok(1) || b != b'k')
    });
    for n in 1..=5 {
        sc!(SYS_kill, child, SIGUSR1).is(0);
        until_at_least(&s[0], n);
    }
    write(w, b"k");
    wait_code(child, 0);
}

static SHARED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_shared(_: i32) {
    // SAFETY: the shared page of the test.
    unsafe { (*(SHARED.load(SeqCst) as *const AtomicU32)).fetch_add(1, SeqCst) };
}

fn nanosleep_eintr_rest() {
    counting(SIGUSR1, SA_RESTART);
    let child = fork(|| {
        let ts = timespec { tv_sec: 1000, tv_nsec: 0 };
        let mut left = timespec { tv_sec: 0, tv_nsec: 0 };
        let r = sc!(SYS_nanosleep, &raw const ts, &raw mut left);
        i32::from(r != Err(EINTR) || !(500..=1000).contains(&left.tv_sec))
    });
    // SA_RESTART does not matter: a sleep is always cut short by a handler.
    assert_eq!(pester(child, SIGUSR1), 0);
}

fn wait_restarts() {
    let s = new_shared();
    SHARED.store(s.as_ptr() as u64, SeqCst);
    on_signal(SIGUSR1, count_shared as *const () as usize, SA_RESTART, 0);
    let me = pid();
    let child = fork(|| {
        for n in 1..=3 {
            let _ = sc!(SYS_kill, me, SIGUSR1);
            until_at_least(&s[0], n);
        }
        5
    });
    let mut status = 0;
    sc!(SYS_wait4, child, &raw mut status, 0, 0).is(child as usize);
    assert_eq!(WEXITSTATUS(status), 5);
}

fn poll_is_never_restarted() {
    counting(SIGUSR1, SA_RESTART);
    for which in 0..4 {
        let child = fork(|| {
            let ep = sc!(SYS_epoll_create1, 0).must();
            let mut ev = [0u32; 3];
            let r = match which {
                0 => sc!(SYS_poll, 0, 0, -1i32),
                1 => sc!(SYS_select, 0, 0, 0, 0, 0),
                2 => sc!(SYS_epoll_wait, ep, ev.as_mut_ptr(), 1, -1i32),
                _ => sc!(SYS_rt_sigtimedwait, &raw const BIT40, 0, 0, 8),
            };
            r.err().unwrap_or(0)
        });
        assert_eq!(pester(child, SIGUSR1), EINTR, "call {which}");
    }
}

static BIT40: u64 = 1 << 39;

fn pause_returns() {
    counting(SIGUSR1, SA_RESTART);
    let child = fork(|| sc!(SYS_pause).err().unwrap_or(0));
    assert_eq!(pester(child, SIGUSR1), EINTR);
}

extern "C" fn scramble(_: i32) {
    COUNT.fetch_add(1, SeqCst);
    let zero = [0xeeu8; 16];
    // SAFETY: overwrites vector registers and the flags, which are the interrupted code's.
    unsafe {
        std::arch::asm!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "movdqu xmm\\n, [{}]",
            ".endr",
            "fninit",
            "stc",
            in(reg) zero.as_ptr(),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
}

fn sigreturn_keeps_registers() {
    on_signal(SIGUSR1, scramble as *const () as usize, 0, 0);
    let (p, t) = (pid() as u64, tid() as u64);
    for i in 1..=50 {
        let before = Regs::distinct(SYS_tgkill, [p, t, SIGUSR1 as u64, 0]);
        let after = before.syscall();
        after.assert_kept(&before);
        assert_eq!(after.gp[AX], 0);
        assert_eq!(COUNT.load(SeqCst), i);
    }
}

extern "C" fn change_regs(_: i32, _: usize, ctx: *mut ucontext_t) {
    // SAFETY: the kernel's signal frame stays on this stack until the handler returns.
    let g = unsafe { &mut (*ctx).uc_mcontext.gregs };
    g[REG_RAX as usize] = 4242;
    g[REG_RBX as usize] = 77;
    g[REG_R15 as usize] = -5;
    // Privileged flags are not taken over: IOPL and IF cannot be set from here.
    g[REG_EFL as usize] |= 0x3000;
}

fn handler_may_change_registers() {
    on_signal(SIGUSR1, change_regs as *const () as usize, SA_SIGINFO, 0);
    let before = Regs::distinct(SYS_tgkill, [pid() as u64, tid() as u64, SIGUSR1 as u64, 0]);
    let after = before.syscall();
    assert_eq!((after.gp[0], after.gp[1], after.gp[15]), (4242, 77, (-5i64) as u64));
    assert_eq!(after.flags & 0x3200, 0x200, "IOPL stays 0, IF stays set");
}

fn async_signals_keep_registers() {
    // The child computes with all registers while the parent keeps interrupting it.
    let s = new_shared();
    SHARED.store(s.as_ptr() as u64, SeqCst);
    on_signal(SIGUSR1, count_shared as *const () as usize, 0, 0);
    let child = fork(|| {
        let mut wrong = 0;
        while s[0].load(SeqCst) < 100 {
            let before = Regs::distinct(SYS_getppid, [1, 2, 3, 4]);
            let after = before.syscall();
            let same = (0..16).all(|i| {
                after.xmm[i] == before.xmm[i]
                    && ([0, 2, 7, 11].contains(&i) || after.gp[i] == before.gp[i])
            });
            wrong += i32::from(!same);
            let x: f64 = (1..200).map(|i| 1.0 / f64::from(i)).sum();
            wrong += i32::from(!(5.8..6.0).contains(&std::hint::black_box(x)));
        }
        wrong.min(100)
    });
    until(|| {
        let _ = sc!(SYS_kill, child, SIGUSR1);
        s[0].load(SeqCst) >= 100
    });
    wait_code(child, 0);
}

fn sigaction_old_and_errors() {
    let first = on_signal(SIGUSR1, 0x1234_5678, SA_RESTART | SA_NODEFER, bit(5) | bit(64));
    assert_eq!(first.handler, SIG_DFL);
    let old = on_signal(SIGUSR1, SIG_DFL, 0, 0);
    assert_eq!((old.handler, old.mask), (0x1234_5678, bit(5) | bit(64)));
    assert_eq!(old.flags & 0xffff_ffff, (SA_RESTART | SA_NODEFER) as u32 as u64 | 0x0400_0000);
    for sig in [0, 65, -1i32] {
        sc!(SYS_rt_sigaction, sig, 0, 0, 8).fails(EINVAL);
    }
    sc!(SYS_rt_sigaction, SIGUSR1, 0, 0, 4).fails(EINVAL);
}

fn sigpending_union() {
    sigmask(SIG_BLOCK, !0);
    raise(SIGUSR1);
    sc!(SYS_kill, pid(), SIGUSR2).is(0);
    assert_eq!(pending(), bit(SIGUSR1) | bit(SIGUSR2));
}

fn ignored_signals_vanish() {
    sigmask(SIG_BLOCK, bit(SIGUSR1));
    raise(SIGUSR1);
    on_signal(SIGUSR1, SIG_IGN, 0, 0);
    assert_eq!(pending(), 0, "ignoring discards what is pending");
    sigmask(SIG_UNBLOCK, bit(SIGUSR1));
    (1..=64).filter(|s| ![SIGKILL, SIGSTOP].contains(s)).for_each(|s| {
        on_signal(s, SIG_IGN, 0, 0);
        raise(s);
    });
}

fn sigpipe_and_epipe() {
    let (r, w) = pipe();
    close(r);
    counting(SIGPIPE, 0);
    sc!(SYS_write, w, c"x".as_ptr(), 1).fails(EPIPE);
    assert_eq!(COUNT.load(SeqCst), 1);
    let child = fork(|| {
        on_signal(SIGPIPE, SIG_DFL, 0, 0);
        let _ = sc!(SYS_write, w, c"x".as_ptr(), 1);
        0
    });
    wait_signal(child, SIGPIPE);
}

fn sigprocmask_errors() {
    let set = 0u64;
    sc!(SYS_rt_sigprocmask, 7, &raw const set, 0, 8).fails(EINVAL);
    sc!(SYS_rt_sigprocmask, SIG_BLOCK, &raw const set, 0, 16).fails(EINVAL);
    sc!(SYS_rt_sigprocmask, 7, 0, 0, 8).is(0);
}

fn sync_fault_while_blocked_kills() {
    let child = fork(|| {
        counting(SIGSEGV, 0);
        sigmask(SIG_BLOCK, bit(SIGSEGV));
        // SAFETY: the fault is the point.
        unsafe { std::hint::black_box(16 as *mut u8).write_volatile(0) };
        0
    });
    wait_signal(child, SIGSEGV);
    let child = fork(|| {
        on_signal(SIGSEGV, SIG_IGN, 0, 0);
        // SAFETY: as above; an ignored fault cannot be ignored.
        unsafe { std::hint::black_box(16 as *mut u8).write_volatile(0) };
        0
    });
    wait_signal(child, SIGSEGV);
}

extern "C" fn fault_again(_: i32) {
    // SAFETY: the fault is the point.
    unsafe { std::hint::black_box(16 as *mut u8).write_volatile(0) };
}

fn fault_in_handler_kills() {
    let child = fork(|| {
        on_signal(SIGSEGV, fault_again as *const () as usize, 0, 0);
        fault_again(0);
        0
    });
    wait_signal(child, SIGSEGV);
}

fn fork_inherits_handlers() {
    counting(SIGUSR1, 0);
    in_child(|| {
        raise(SIGUSR1);
        assert_eq!(COUNT.load(SeqCst), 1);
    });
    assert_eq!(COUNT.load(SeqCst), 0);
}

fn signal_to_stopped_process() {
    counting(SIGUSR1, 0);
    let s = new_shared();
    SHARED.store(s.as_ptr() as u64, SeqCst);
    on_signal(SIGUSR1, count_shared as *const () as usize, 0, 0);
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let mut status = 0;
    sc!(SYS_kill, child, SIGSTOP).is(0);
    sc!(SYS_wait4, child, &raw mut status, WUNTRACED, 0).is(child as usize);
    sc!(SYS_kill, child, SIGUSR1).is(0);
    (0..20).for_each(|_| nap(1));
    assert_eq!(s[0].load(SeqCst), 0, "a stopped process runs no handler");
    sc!(SYS_kill, child, SIGCONT).is(0);
    until_at_least(&s[0], 1);
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn sigcont_clears_stop() {
    sigmask(SIG_BLOCK, bit(SIGTSTP) | bit(SIGCONT));
    raise(SIGTSTP);
    assert_eq!(pending() & bit(SIGTSTP), bit(SIGTSTP));
    raise(SIGCONT);
    assert_eq!(pending(), bit(SIGCONT));
    raise(SIGTSTP);
    assert_eq!(pending(), bit(SIGTSTP), "and the other way round");
    on_signal(SIGTSTP, SIG_IGN, 0, 0);
}

fn thread_directed_masks() {
    // A signal for the process goes to the one thread that does not block it.
    counting(SIGUSR1, 0);
    let (tx, rx) = std::sync::mpsc::channel();
    let stop = std::sync::Arc::new(AtomicU32::new(0));
    let s = stop.clone();
    sigmask(SIG_BLOCK, bit(SIGUSR1));
    let h = std::thread::spawn(move || {
        sigmask(SIG_UNBLOCK, bit(SIGUSR1));
        tx.send(()).unwrap();
        until_at_least(&s, 1);
    });
    rx.recv().unwrap();
    for n in 1..=10 {
        sc!(SYS_kill, pid(), SIGUSR1).is(0);
        until_at_least(&COUNT, n);
    }
    stop.store(1, SeqCst);
    h.join().unwrap();
}

fn alarm_fires() {
    counting(SIGALRM, 0);
    sc!(SYS_alarm, 1000).is(0);
    let left = sc!(SYS_alarm, 0).must();
    assert!((500..=1000).contains(&left), "{left}");
    let it = [0i64, 0, 0, 1000];
    sc!(SYS_setitimer, ITIMER_REAL, it.as_ptr(), 0).is(0);
    until_at_least(&COUNT, 1);
}

fn siglongjmp_style_exit() {
    // A handler that never returns, again and again: the kernel keeps no state per frame.
    extern "C" fn jump(_: i32, _: usize, ctx: *mut ucontext_t) {
        // SAFETY: the kernel's frame; the mask is set back as siglongjmp(3) would.
        unsafe {
            sigmask(SIG_SETMASK, 0);
            let g = &(*ctx).uc_mcontext.gregs;
            COUNT.fetch_add(1, SeqCst);
            std::arch::asm!(
                "mov rbx, rsi", "mov rsp, rdx", "mov rbp, rdi", "xor eax, eax", "jmp rcx",
                in("rsi") g[REG_RBX as usize], in("rdx") g[REG_RSP as usize],
                in("rdi") g[REG_RBP as usize], in("rcx") g[REG_RIP as usize],
                in("r12") g[REG_R12 as usize], in("r13") g[REG_R13 as usize],
                in("r14") g[REG_R14 as usize], in("r15") g[REG_R15 as usize],
                options(noreturn)
            );
        }
    }
    on_signal(SIGUSR1, jump as *const () as usize, SA_SIGINFO, 0);
    for i in 1..=100 {
        // What the jump does not restore is only what a call may change.
        let regs = Regs::distinct(SYS_tgkill, [pid() as u64, tid() as u64, SIGUSR1 as u64, 0]);
        let _ = std::hint::black_box(regs.syscall());
        assert_eq!(COUNT.load(SeqCst), i);
    }
}

fn sigqueue_permissions() {
    // A code that only the kernel may send (>= 0) is refused towards others.
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let info = Siginfo { code: 0, ..Siginfo::default() };
    sc!(SYS_rt_sigqueueinfo, child, SIGUSR1, &raw const info).fails(EPERM);
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn bad_frame_kills() {
    // sigreturn with a stack that is not mapped: SIGSEGV, not a crash of anything else.
    let child = fork(|| {
        // SAFETY: the process ends here.
        unsafe {
            std::arch::asm!("mov rsp, 4096", "mov eax, 15", "syscall", "ud2", options(noreturn))
        }
    });
    wait_signal(child, SIGSEGV);
}

fn rt_sigreturn_without_frame() {
    // A frame of random bytes: whatever comes of it, it is the process's own end.
    for fill in [0u8, 0xff, 0x41] {
        let child = fork(|| {
            let stack = anon(65536);
            // SAFETY: own mapping; the process ends here.
            unsafe {
                std::ptr::write_bytes(stack, fill, 65536);
                std::arch::asm!(
                    "mov rsp, {}", "mov eax, 15", "syscall", "ud2",
                    in(reg) stack as usize + 8192, options(noreturn)
                )
            }
        });
        let s = wait(child);
        assert!(WIFSIGNALED(s), "fill {fill:#x}: {}", describe(s));
    }
}

fn handler_on_full_stack_kills() {
    // No room for the frame and no alternate stack: SIGSEGV, forced.
    let child = fork(|| {
        counting(SIGUSR1, 0);
        let (p, t) = (pid(), tid());
        // SAFETY: the stack pointer leads to nothing; the process ends in the delivery.
        unsafe {
            std::arch::asm!(
                "mov rsp, 4096", "mov eax, 234", "syscall", "ud2",
                in("rdi") p, in("rsi") t, in("rdx") SIGUSR1, options(noreturn)
            )
        }
    });
    wait_signal(child, SIGSEGV);
}

static TRAP: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

extern "C" fn note_trap(_: i32, _: usize, ctx: *mut ucontext_t) {
    // SAFETY: the kernel's signal frame stays on this stack until the handler returns.
    let g = unsafe { &mut (*ctx).uc_mcontext.gregs };
    TRAP[0].store(g[REG_TRAPNO as usize] as u64, SeqCst);
    TRAP[1].store(g[REG_ERR as usize] as u64, SeqCst);
    TRAP[2].store(g[REG_CR2 as usize] as u64, SeqCst);
    // The store in `fault_at` is two bytes long: go on behind it.
    g[REG_RIP as usize] += 2;
}

fn trapno_and_error_code() {
    on_signal(SIGSEGV, note_trap as *const () as usize, SA_SIGINFO, 0);
    // SAFETY: `mov [rax], cl` is two bytes; the handler steps over it.
    unsafe { std::arch::asm!("mov [rax], cl", in("rax") 0x10usize) };
    let seen: Vec<u64> = TRAP.iter().map(|t| t.load(SeqCst)).collect();
    // Page fault 14; error code: user, write, not present.
    assert_eq!(seen, [14, 6, 0x10]);
}
