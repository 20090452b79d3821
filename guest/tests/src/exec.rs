//! execve and execveat: what a new program gets, and which files are refused with which errno.
//!
//! The last part builds hostile ELF files from a tiny valid one. Nothing is known about them but
//! this: Linux answers each with an errno or ends the new process with a signal, and so must
//! every other kernel, soon. Manual pages: execve(2), execveat(2), elf(5).

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::Ordering::SeqCst;

tests!("exec":
    arguments_and_environment_arrive, many_arguments, too_much_is_e2big, null_argv_and_envp,
    cloexec_closes, signals_over_exec, pid_is_kept, exec_errors, script_with_interpreter,
    script_edge_cases, nested_scripts, execveat_forms, exec_from_memfd, comm_follows_exec,
    mappings_are_gone, text_busy, auxv_is_sane, stack_is_aligned_and_filled,
    elf_small_runs, elf_truncated, elf_bad_header, elf_bad_program_headers, elf_hostile_segments,
    elf_bad_interpreter, elf_random_bytes, elf_answers_as_linux, interpreter_loops, script_loops,
    exec_failure_leaves_process,
);

fn self_c() -> std::ffi::CString {
    c(&own_path())
}

/// A vector for execve; the strings are leaked, since the process ends or is replaced soon.
fn argv(words: &[std::ffi::CString]) -> Vec<*const c_char> {
    let leak = |w: &std::ffi::CString| w.clone().into_raw().cast_const();
    words.iter().map(leak).chain([std::ptr::null()]).collect()
}

/// Executes this program with these words after its name; never returns.
fn exec_self(words: &[&str], env: &[&str]) -> i32 {
    let me = self_c();
    let w: Vec<_> = std::iter::once("limen").chain(words.iter().copied()).map(c).collect();
    let e: Vec<_> = env.iter().map(|s| c(s)).collect();
    sc!(SYS_execve, me.as_ptr(), argv(&w).as_ptr(), argv(&e).as_ptr()).err().unwrap_or(0)
}

pub fn output_of(words: &[&str], env: &[&str]) -> Vec<u8> {
    let (r, w) = pipe();
    let child = fork(|| {
        let _ = sc!(SYS_dup2, w, 1);
        close(r);
        close(w);
        exec_self(words, env)
    });
    close(w);
    let mut out = Vec::new();
    loop {
        let part = read(r, 65536);
        if part.is_empty() {
            break;
        }
        out.extend(part);
    }
    close(r);
    wait_code(child, 0);
    out
}

fn arguments_and_environment_arrive() {
    let out = output_of(&["child", "echo", "", "a b", "ä\n"], &["X=1", "EMPTY="]);
    let want = "limen\0child\0echo\0\0a b\0ä\n\0--\0X=1\0EMPTY=\0";
    assert_eq!(String::from_utf8_lossy(&out), want);
    assert_eq!(output_of(&["child", "echo"], &[]), b"limen\0child\0echo\0--\0");
}

fn many_arguments() {
    let long = "x".repeat(1000);
    let words: Vec<&str> =
        ["child", "count"].into_iter().chain((0..1000).map(|_| &*long)).collect();
    wait_code(fork(|| exec_self(&words, &[])), 1000 % 251);
    let one = "y".repeat(100_000);
    wait_code(fork(|| exec_self(&["child", "count", &one], &[])), 1);
}

fn too_much_is_e2big() {
    // One string of more than 128 KiB; then too much in all.
    let one = "y".repeat(200_000);
    wait_code(fork(|| exec_self(&["child", "count", &one], &[])), E2BIG);
    let words = vec!["0123456789abcdef0123456789abcdef"; 400_000];
    wait_code(fork(|| exec_self(&words, &[])), E2BIG);
}

fn null_argv_and_envp() {
    // No argument vector: the program gets one empty argument; ours then prints its usage.
    let me = self_c();
    let child = fork(|| {
        let _ = sc!(SYS_close, 2);
        sc!(SYS_execve, me.as_ptr(), 0, 0).err().unwrap_or(0)
    });
    wait_code(child, 2);
}

fn cloexec_closes() {
    // 0..2 stay; 3 close-on-exec, 4 not, 5 set by fcntl, 6 duplicated without the flag.
    let child = fork(|| {
        for fd in 0..3 {
            let null = open("/dev/null", O_RDWR).fd();
            let _ = sc!(SYS_dup2, null, fd);
            let _ = sc!(SYS_close, null);
        }
        for fd in 3..7 {
            let _ = sc!(SYS_dup3, 0, fd, if fd == 3 || fd == 6 { O_CLOEXEC } else { 0 });
        }
        sc!(SYS_fcntl, 5, F_SETFD, FD_CLOEXEC).is(0);
        sc!(SYS_fcntl, 6, F_GETFD).is(FD_CLOEXEC as usize);
        sc!(SYS_dup2, 3, 6).is(6);
        exec_self(&["child", "fds"], &[])
    });
    wait_code(child, 1 + 2 + 4 + 6);
}

fn signals_over_exec() {
    let child = fork(|| {
        on_signal(SIGUSR1, SIG_IGN, 0, 0);
        on_signal(SIGUSR2, 0x1000, 0, 0);
        sigmask(SIG_SETMASK, bit(40) | bit(SIGTERM));
        let want = format!("{} 1 0", bit(40) | bit(SIGTERM));
        exec_self(&["child", "signals", &want], &[])
    });
    wait_code(child, 0);
}

fn pid_is_kept() {
    wait_code(fork(|| exec_self(&["child", "pid-is", &pid().to_string()], &[])), 0);
}

fn try_exec(path: &str) -> i32 {
    try_exec_within(path, RLIM_INFINITY)
}

/// CPU time of such a program: what a hostile file makes a program of may run for ever, or through
/// gigabytes of zeros, where nothing is at a random place.
const CPU_S: u64 = 10;

fn try_exec_within(path: &str, address_space_bytes: u64) -> i32 {
    let p = c(path);
    let w = argv(&[c("x"), c("child"), c("true")]);
    let child = fork(|| {
        let _ = sc!(SYS_setrlimit, RLIMIT_AS, [address_space_bytes; 2].as_ptr());
        let _ = sc!(SYS_setrlimit, RLIMIT_CPU, [CPU_S; 2].as_ptr());
        sc!(SYS_execve, p.as_ptr(), w.as_ptr(), 0).err().unwrap_or(0)
    });
    let s = wait(child);
    if WIFEXITED(s) { WEXITSTATUS(s) } else { 1000 + WTERMSIG(s) }
}

fn file_with(name: &str, mode: u32, bytes: &[u8]) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = format!("{}/{name}", dir());
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn exec_errors() {
    assert_eq!(try_exec("/nonexistent"), ENOENT);
    assert_eq!(try_exec(""), ENOENT);
    assert_eq!(try_exec("/tmp"), EACCES);
    assert_eq!(try_exec("/dev/null"), EACCES);
    assert_eq!(try_exec("/proc/self/exe/x"), ENOTDIR);
    assert_eq!(try_exec(&"a".repeat(300)), ENAMETOOLONG);
    assert_eq!(try_exec(&file_with("plain", 0o644, b"#!/bin/sh\n")), EACCES);
    assert_eq!(try_exec(&file_with("empty", 0o755, b"")), ENOEXEC);
    assert_eq!(try_exec(&file_with("text", 0o755, b"hello there\n")), ENOEXEC);
    let d = dir();
    std::os::unix::fs::symlink("loop", format!("{d}/loop")).unwrap();
    assert_eq!(try_exec(&format!("{d}/loop")), ELOOP);
    sc!(SYS_execve, 0, 0, 0).fails(EFAULT);
    let me = self_c();
    sc!(SYS_execve, me.as_ptr(), 1, 0).fails(EFAULT);
    sc!(SYS_execve, me.as_ptr(), [1usize, 0].as_ptr(), 0).fails(EFAULT);
}

fn run_script(text: &str) -> Vec<u8> {
    let path = file_with("script", 0o755, text.as_bytes());
    let (r, w) = pipe();
    let p = c(&path);
    let args = argv(&[c("zero"), c("one"), c("two")]);
    let child = fork(|| {
        let _ = sc!(SYS_dup2, w, 1);
        // Its usage, where the words are no mode of our program.
        let _ = sc!(SYS_close, 2);
        close(w);
        sc!(SYS_execve, p.as_ptr(), args.as_ptr(), args[3..].as_ptr()).err().unwrap_or(0)
    });
    close(w);
    // The child writes piece by piece: read to the end.
    let mut out = Vec::new();
    loop {
        let part = read(r, 65536);
        if part.is_empty() {
            break;
        }
        out.extend_from_slice(&part);
    }
    wait(child);
    String::from_utf8_lossy(&out).replace(&path, "SCRIPT").into_bytes()
}

fn script_with_interpreter() {
    // The interpreter gets itself, the one optional argument, the script, then argv[1..]. Our
    // program takes a script's path after "child" for the wish to see its arguments.
    let me = own_path();
    let out = run_script(&format!("#! {me}   child  \nrest"));
    let want = format!("{me}\0child\0SCRIPT\0one\0two\0--\0");
    assert_eq!(String::from_utf8_lossy(&out), want);
    // Without an argument; and one argument may hold blanks.
    let out = run_script(&format!("#!{me} child\t x \n"));
    assert_eq!(out, b"", "\"child\\t x\" is one word, and no mode");
}

fn script_edge_cases() {
    assert_eq!(try_exec(&file_with("s", 0o755, b"#!/nonexistent\n")), ENOENT);
    assert_eq!(try_exec(&file_with("s", 0o755, b"#!\n")), ENOEXEC);
    assert_eq!(try_exec(&file_with("s", 0o755, b"#!   \n")), ENOEXEC);
    assert_eq!(try_exec(&file_with("s", 0o755, b"#!/tmp\n")), EACCES);
    let long = format!("#!/{}\n", "a/".repeat(300));
    assert_eq!(try_exec(&file_with("s", 0o755, long.as_bytes())), ENOEXEC);
}

fn nested_scripts() {
    let mut path = own_path();
    // The innermost line has no newline at its end, which is allowed.
    for depth in 0..7 {
        let end = if depth == 0 { "" } else { "\n" };
        path = file_with("s", 0o755, format!("#!{path}{end}").as_bytes());
        let p = c(&path);
        let args = argv(&[c("x")]);
        let child = fork(|| {
            let _ = sc!(SYS_close, 2);
            sc!(SYS_execve, p.as_ptr(), args.as_ptr(), 0).err().unwrap_or(0)
        });
        // Our program's usage (2) when the chain is short enough.
        wait_code(child, if depth < 5 { 2 } else { ELOOP });
    }
}

fn execveat_forms() {
    let me = own_path();
    let (parent, name) = me.rsplit_once('/').unwrap();
    // The first process of a bare kernel is /init.
    let parent = if parent.is_empty() { "/" } else { parent };
    let (dirfd, exe) = (open(parent, O_PATH).fd(), open(&me, O_PATH | O_CLOEXEC).fd());
    let (name, empty) = (c(name), c(""));
    let w = argv(&[c("x"), c("child"), c("true")]);
    let run = |fd: i32, path: &std::ffi::CStr, flags: i32| {
        let child =
            fork(|| sc!(SYS_execveat, fd, path.as_ptr(), w.as_ptr(), 0, flags).err().unwrap_or(0));
        let s = wait(child);
        assert!(WIFEXITED(s), "{}", describe(s));
        WEXITSTATUS(s)
    };
    assert_eq!(run(dirfd, &name, 0), 0);
    assert_eq!(run(exe, &empty, AT_EMPTY_PATH), 0);
    assert_eq!(run(exe, &empty, 0), ENOENT);
    assert_eq!(run(-5, &name, 0), EBADF);
    assert_eq!(run(dirfd, &name, 0x40), EINVAL);
    let d = dir();
    std::os::unix::fs::symlink(&me, format!("{d}/link")).unwrap();
    let dfd = open(&d, O_PATH).fd();
    assert_eq!(run(dfd, c"link", 0), 0);
    assert_eq!(run(dfd, c"link", AT_SYMLINK_NOFOLLOW), ELOOP);
}

fn exec_from_memfd() {
    let fd = sc!(SYS_memfd_create, c"prog".as_ptr(), MFD_CLOEXEC).fd();
    write(fd, &small_elf());
    let w = argv(&[c("x")]);
    let child = fork(|| {
        sc!(SYS_execveat, fd, c"".as_ptr(), w.as_ptr(), 0, AT_EMPTY_PATH).err().unwrap_or(0)
    });
    wait_code(child, 77);
}

fn comm_follows_exec() {
    let d = dir();
    let long = format!("{d}/a-name-of-more-than-fifteen");
    std::os::unix::fs::symlink(own_path(), &long).unwrap();
    let p = c(&long);
    let w = argv(&[c("x"), c("child"), c("pause")]);
    let child = fork(|| sc!(SYS_execve, p.as_ptr(), w.as_ptr(), 0).err().unwrap_or(0));
    let comm = || std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    until(|| comm() == "a-name-of-more-\n");
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn mappings_are_gone() {
    let _keep = anon(64 << 20);
    wait_code(fork(|| exec_self(&["child", "exit", "12"], &[])), 12);
}

fn text_busy() {
    let path = file_with("elf", 0o755, &spin_elf());
    let p = c(&path);
    let w = argv(&[c("x")]);
    let before = std::fs::read_link("/proc/self/exe").unwrap();
    let child = fork(|| sc!(SYS_execve, p.as_ptr(), w.as_ptr(), 0).err().unwrap_or(0));
    let exe = format!("/proc/{child}/exe");
    until(|| std::fs::read_link(&exe).is_ok_and(|e| e != before));
    open(&path, O_WRONLY).fails(ETXTBSY);
    open(&path, O_RDWR | O_TRUNC).fails(ETXTBSY);
    sc!(SYS_truncate, p.as_ptr(), 0).fails(ETXTBSY);
    sc!(SYS_kill, child, SIGKILL).is(0);
    // A zombie runs nothing any more.
    sc!(SYS_waitid, P_PID, child, 0, WEXITED | WNOWAIT, 0).is(0);
    close(open(&path, O_RDWR).fd());
    wait_signal(child, SIGKILL);
    let fd = open(&path, O_WRONLY).fd();
    assert_eq!(try_exec(&path), ETXTBSY, "a file open for writing cannot be executed");
    close(fd);
}

fn auxv_is_sane() {
    // SAFETY: the call takes numbers and no pointers.
    let aux = |k: u64| unsafe { getauxval(k) };
    assert_eq!((aux(AT_PAGESZ), aux(AT_CLKTCK)), (4096, 100));
    assert_eq!(aux(AT_UID) as usize, sc!(SYS_getuid).must());
    assert_eq!(aux(AT_EGID) as usize, sc!(SYS_getegid).must());
    assert_eq!((aux(AT_SECURE), aux(AT_PHENT)), (0, 56));
    assert_ne!(aux(AT_ENTRY), 0);
    assert_ne!(aux(AT_SYSINFO_EHDR), 0, "a vDSO");
    let name = aux(AT_EXECFN) as *const c_char;
    // SAFETY: strings and bytes that the kernel put on the stack.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    let own = own_path();
    assert!(own.ends_with(name.to_str().unwrap().trim_start_matches(['.', '/'])), "{name:?}");
    let platform = unsafe { std::ffi::CStr::from_ptr(aux(AT_PLATFORM) as *const c_char) };
    assert_eq!(platform, c"x86_64");
    let random = || output_of(&["child", "random"], &[]);
    assert_ne!(random(), random(), "AT_RANDOM differs from program to program");
}

fn stack_is_aligned_and_filled() {
    // A program of its own, which exits with what it found: rsp % 16, argc.
    let code = [
        0x48, 0x89, 0xe7, // mov rdi, rsp
        0x83, 0xe7, 0x0f, // and edi, 15
        0x03, 0x3c, 0x24, // add edi, [rsp]
        0xb8, 0x3c, 0, 0, 0, // mov eax, 60
        0x0f, 0x05,
    ];
    let p = c(&file_with("elf", 0o755, &elf_with(&code)));
    for n in 1..9 {
        let words: Vec<_> = (0..n).map(|i| c(&"z".repeat(i * 3))).collect();
        let child =
            fork(|| sc!(SYS_execve, p.as_ptr(), argv(&words).as_ptr(), 0).err().unwrap_or(0));
        wait_code(child, n as i32);
    }
}

pub const BASE: u64 = 0x40_0000;

pub fn elf_with(code: &[u8]) -> Vec<u8> {
    let mut e = vec![0u8; 120];
    e[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    let mut put = |at: usize, bytes: &[u8]| e[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &2u16.to_le_bytes());
    put(18, &62u16.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(24, &(BASE + 120).to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(52, &64u16.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &1u16.to_le_bytes());
    put(64, &1u32.to_le_bytes());
    put(68, &7u32.to_le_bytes());
    put(80, &BASE.to_le_bytes());
    put(88, &BASE.to_le_bytes());
    let size = 120 + code.len() as u64;
    put(96, &size.to_le_bytes());
    put(104, &size.to_le_bytes());
    put(112, &0x1000u64.to_le_bytes());
    e.extend_from_slice(code);
    e
}

/// exit(77)
pub fn small_elf() -> Vec<u8> {
    elf_with(&[0xbf, 77, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05])
}

/// pause() for ever
fn spin_elf() -> Vec<u8> {
    elf_with(&[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7])
}

fn patched(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut e = small_elf();
    e[at..at + bytes.len()].copy_from_slice(bytes);
    e
}

/// What executing these bytes gives: an errno or exit status, 1000 + signal.
pub fn result(bytes: &[u8]) -> i32 {
    try_exec_within(&file_with("elf", 0o755, bytes), ADDRESS_SPACE_BYTES)
}

/// Address space of a program whose file is hostile: whether a kernel lets it have a terabyte of
/// zeros depends on its settings and its memory, and where it does, they are run as instructions.
const ADDRESS_SPACE_BYTES: u64 = 8 << 30;

/// Executing must give an errno or end the new process by a signal or with some status: not more
/// is promised, but it must come to an end.
fn survives(bytes: &[u8]) -> i32 {
    result(bytes)
}

fn elf_small_runs() {
    assert_eq!(result(&small_elf()), 77);
    let mut pie = patched(16, &3u16.to_le_bytes());
    pie[24..32].copy_from_slice(&120u64.to_le_bytes());
    pie[80..88].fill(0);
    pie[88..96].fill(0);
    assert_eq!(result(&pie), 77, "ET_DYN without an interpreter");
    // More memory than file: the rest is zero and writable.
    assert_eq!(result(&patched(104, &0x10000u64.to_le_bytes())), 77);
}

fn elf_truncated() {
    let e = small_elf();
    for n in [1, 3, 4, 5, 16, 52, 63] {
        assert_eq!(result(&e[..n]), ENOEXEC, "{n} bytes");
    }
    for n in [64, 65, 119] {
        let got = result(&e[..n]);
        assert!(got == EIO || got == ENOEXEC, "{n} bytes: {got}");
    }
    // The program is all there but for its last bytes: they read as zero.
    assert!(survives(&e[..121]) >= 1000);
}

fn elf_bad_header() {
    for (at, bytes) in [
        (0, vec![0x7e]),
        (16, 1u16.to_le_bytes().to_vec()),
        (16, 4u16.to_le_bytes().to_vec()),
        (18, 3u16.to_le_bytes().to_vec()),
        (18, 183u16.to_le_bytes().to_vec()),
        (54, 32u16.to_le_bytes().to_vec()),
        (54, 0u16.to_le_bytes().to_vec()),
        (56, 0u16.to_le_bytes().to_vec()),
        (56, 0xffffu16.to_le_bytes().to_vec()),
    ] {
        assert_eq!(result(&patched(at, &bytes)), ENOEXEC, "offset {at}");
    }
    for off in [1u64 << 40, 1 << 62, u64::MAX, u64::MAX - 63] {
        let got = result(&patched(32, &off.to_le_bytes()));
        assert!([ENOEXEC, EIO, EINVAL].contains(&got), "e_phoff {off:#x}: {got}");
    }
    for entry in [0u64, 1 << 63, u64::MAX, 0x7fff_ffff_f000, BASE + 0x10_0000] {
        let got = survives(&patched(24, &entry.to_le_bytes()));
        assert_eq!(got, 1000 + SIGSEGV, "e_entry {entry:#x}");
    }
}

fn elf_bad_program_headers() {
    // p_filesz above p_memsz, sizes and addresses that wrap or leave user space.
    let huge = [1u64 << 47, 1 << 62, u64::MAX, u64::MAX - 4095];
    for v in huge {
        for (name, at) in [("p_vaddr", 80), ("p_memsz", 104), ("p_filesz", 96)] {
            let got = survives(&patched(at, &v.to_le_bytes()));
            assert_ne!(got, 77, "{name} {v:#x}");
        }
    }
    assert_ne!(survives(&patched(104, &1u64.to_le_bytes())), 77, "p_memsz below p_filesz");
    assert_ne!(survives(&patched(72, &1u64.to_le_bytes())), 77, "offset not congruent");
    for align in [0u64, 1, 3, 0x1001, 1 << 40, 1 << 63, u64::MAX] {
        let got = survives(&patched(112, &align.to_le_bytes()));
        assert!(got == 77 || !(200..1000).contains(&got), "p_align {align:#x}: {got}");
    }
    assert!(survives(&patched(68, &4u32.to_le_bytes())) == 1000 + SIGSEGV, "not executable");
    // No PT_LOAD at all.
    assert_ne!(survives(&patched(64, &0u32.to_le_bytes())), 77);
}

pub fn with_segments(segs: &[[u64; 8]]) -> Vec<u8> {
    // type, flags, offset, vaddr, paddr, filesz, memsz, align
    let mut e = small_elf()[..64].to_vec();
    e[56..58].copy_from_slice(&(segs.len() as u16).to_le_bytes());
    for s in segs {
        e.extend((s[0] as u32).to_le_bytes());
        e.extend((s[1] as u32).to_le_bytes());
        s[2..].iter().for_each(|v| e.extend(v.to_le_bytes()));
    }
    let code_at = e.len() as u64;
    e[24..32].copy_from_slice(&(BASE + code_at).to_le_bytes());
    e.extend_from_slice(&small_elf()[120..]);
    e.resize(8192, 0);
    e
}

fn elf_hostile_segments() {
    let load = |off, addr, filesz, memsz| [1, 7, off, addr, addr, filesz, memsz, 0x1000];
    let good = load(0, BASE, 4096, 4096);
    assert_eq!(result(&with_segments(&[good])), 77);
    assert_eq!(result(&with_segments(&[good, load(4096, BASE + 0x10000, 10, 100_000)])), 77);
    let hostile: Vec<Vec<[u64; 8]>> = vec![
        vec![good, load(0, BASE, 4096, 4096)],
        vec![good, load(0, BASE + 0x800, 4096, 8192)],
        vec![load(0, BASE + 0x10000, 4096, 4096), good],
        vec![good, load(0, 0, 4096, 4096)],
        vec![good, load(0, 0x7fff_ffff_e000, 4096, 1 << 40)],
        vec![good, load(0, 1 << 46, 10, 1 << 46)],
        vec![good, load(1 << 50, BASE + 0x100000, 4096, 4096)],
        vec![good, load(0, BASE + 0x100000, 0, 1 << 45)],
        vec![good, load(0xfff, BASE + 0x100000, 1, 1)],
        vec![good; 70],
        vec![good, [2, 7, u64::MAX, u64::MAX, 0, u64::MAX, u64::MAX, 0]],
        vec![good, [0x6474_e551, 7, 0, 0, 0, 0, u64::MAX, 16]],
        vec![good, [6, 4, 1 << 62, 1 << 62, 0, 1 << 62, 1 << 62, 8]],
        vec![good, [7, 4, 0, u64::MAX - 7, 0, u64::MAX, u64::MAX, 1 << 63]],
        vec![good, [0x6474_e553, 4, 0, 0, 0, u64::MAX, 0, 8]],
    ];
    for (i, segs) in hostile.iter().enumerate() {
        let got = survives(&with_segments(segs));
        assert!(got == 77 || !(134..1000).contains(&got), "case {i}: {got}");
    }
}

fn elf_bad_interpreter() {
    let good = [1u64, 7, 0, BASE, BASE, 8192, 8192, 0x1000];
    let with = |path: &[u8], off: u64, size: u64| {
        let mut e = with_segments(&[good, [3, 4, off, 0, 0, size, size, 1]]);
        e[4096..4096 + path.len()].copy_from_slice(path);
        result(&e)
    };
    assert_eq!(with(b"/nonexistent\0", 4096, 13), ENOENT);
    assert_eq!(with(b"/nonexistent", 4096, 12), ENOEXEC, "no zero at the end");
    assert_eq!(with(b"\0", 4096, 1), ENOEXEC, "too short");
    assert_eq!(with(b"/tmp\0", 4096, 5), EACCES);
    assert_eq!(with(b"/x\0", 4096, 0), ENOEXEC);
    assert_eq!(with(b"/x\0", 4096, 5000), ENOEXEC, "longer than a path may be");
    let far = with(b"/x\0", 1 << 40, 3);
    assert!(far == EIO || far == ENOEXEC, "{far}");
    let script =
        file_with("interp", 0o755, b"#!/bin/sh\nthis is no ELF file, and long enough it is");
    let mut z = script.into_bytes();
    z.push(0);
    let got = with(&z, 4096, z.len() as u64);
    assert!(got == ELIBBAD || got == EIO, "{got}");
}

fn elf_random_bytes() {
    // A fixed generator: a thousand files that differ from the good one in a few bytes.
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..1000 {
        let mut e = small_elf();
        for _ in 0..1 + next() % 6 {
            let at = (next() % 120) as usize;
            e[at] = match next() % 3 {
                0 => 0xff,
                1 => 0,
                _ => next() as u8,
            };
        }
        survives(&e);
    }
}

fn elf_answers_as_linux() {
    crate::elf_cases::check();
}

/// A program whose interpreter is itself, and two that are each other's: interpreters have no
/// interpreter of their own (their PT_INTERP is not looked at), so they just start, at their entry.
fn interpreter_loops() {
    let d = dir();
    let program = |name: &str, interpreter: &str| {
        let good = [1u64, 7, 0, 0, 0, 8192, 8192, 0x1000];
        let path = format!("{d}/{interpreter}\0");
        let mut e =
            with_segments(&[good, [3, 4, 4096, 0, 0, path.len() as u64, path.len() as u64, 1]]);
        e[16] = 3;
        let entry = u64::from_le_bytes(e[24..32].try_into().unwrap()) - BASE;
        e[24..32].copy_from_slice(&entry.to_le_bytes());
        e[4096..4096 + path.len()].copy_from_slice(path.as_bytes());
        let at = format!("{d}/{name}");
        std::fs::write(&at, e).unwrap();
        sc!(SYS_chmod, c(&at).as_ptr(), 0o755).is(0);
        at
    };
    let (own, a, b) = (program("own", "own"), program("a", "b"), program("b", "a"));
    for path in [own, a, b] {
        assert_eq!(try_exec(&path), 77, "{path}");
    }
}

fn script_loops() {
    let d = dir();
    let script = |name: &str, interpreter: &str| {
        let at = format!("{d}/{name}");
        std::fs::write(&at, format!("#!{d}/{interpreter} x\n")).unwrap();
        sc!(SYS_chmod, c(&at).as_ptr(), 0o755).is(0);
        at
    };
    let (own, a, b) = (script("own", "own"), script("a", "b"), script("b", "a"));
    for path in [own, a, b] {
        assert_eq!(try_exec(&path), ELOOP, "{path}");
    }
}

fn exec_failure_leaves_process() {
    let w = new_shared();
    let child = fork(|| {
        assert_ne!(try_exec("/nonexistent"), 0);
        let p = c(&file_with("bad", 0o755, &patched(56, &0u16.to_le_bytes())));
        sc!(SYS_execve, p.as_ptr(), 0, 0).fails(ENOEXEC);
        w[0].store(1, SeqCst);
        0
    });
    wait_code(child, 0);
    assert_eq!(w[0].load(SeqCst), 1);
}
